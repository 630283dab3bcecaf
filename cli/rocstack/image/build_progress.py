"""BuildKit's progress as values: what each step is, when it ran, what it printed. Pure; fed by `buildkit`."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

_TITLE = re.compile(r"<<'EOS' \(: \"([^\"]+)\";")
# "[internal] ...", "[worker-base 2/7] RUN ...", and "[2/7] RUN ..." where there is one stage only.
_STAGE = re.compile(r"\[(?P<stage>(?!\d+/\d+\])[^\]]+?)?(?: *\d+/\d+)?\] (?P<text>.*)", re.DOTALL)


@dataclass
class BuildStep:
    """One vertex of the build graph."""

    digest: str
    name: str
    seconds: float | None = None
    started: str | None = None
    cached: bool = False
    error: str | None = None
    log: list[str] = field(default_factory=list)

    @property
    def stage(self) -> str:
        match = _STAGE.match(self.name)
        return (match["stage"] or "image") if match else "export"

    @property
    def title(self) -> str:
        """A short line for people: what a heredoc says it is, or the instruction without its mounts."""
        title = _TITLE.search(self.name)
        if title:
            return title[1]
        match = _STAGE.match(self.name)
        text = match["text"] if match else self.name
        text = re.sub(r"--(mount|network)=\S+\s+", "", text)
        text = re.sub(r"<<'?EOS'?.*", "", text, flags=re.DOTALL)
        return " ".join(text.split())[:100]


@dataclass(frozen=True)
class BuildLine:
    """One finished line of one step's output."""

    step: BuildStep
    text: str


class BuildProgress:
    """Collects the raw JSON stream; `feed` gives the lines and steps that became complete."""

    def __init__(self) -> None:
        self.steps: dict[str, BuildStep] = {}
        self.messages = ""  # what the builder says outside the stream: the closing error
        self._buffer = ""
        self._partial: dict[tuple[str, int], bytes] = {}  # unfinished lines of standard output and error

    def feed(self, text: str) -> Iterator[BuildStep | BuildLine]:
        """Takes a piece of the stream; gives a step each time it starts, ends or fails, and each line of output."""
        self._buffer += text
        decoder = json.JSONDecoder()
        while self._buffer:
            self._buffer = self._buffer.lstrip()
            if not self._buffer.startswith("{"):
                line, newline, rest = self._buffer.partition("\n")
                if not newline:
                    return
                self.messages += line + "\n"
                self._buffer = rest
                continue
            try:
                value, end = decoder.raw_decode(self._buffer)
            except ValueError:
                return
            self._buffer = self._buffer[end:]
            yield from self._take(value)

    def close(self) -> list[BuildLine]:
        """The stream is over: what stands without a newline is a line too."""
        self.messages += self._buffer
        self._buffer = ""
        rests, self._partial = self._partial, {}
        return [self._line(self.steps[digest], rest) for (digest, _), rest in rests.items() if rest]

    def _take(self, value: dict[str, Any]) -> Iterator[BuildStep | BuildLine]:
        for vertex in value.get("vertexes") or []:
            step = self.steps.setdefault(vertex["digest"], BuildStep(vertex["digest"], vertex["name"]))
            before = (step.started, step.seconds, step.error, step.cached)
            step.cached = step.cached or bool(vertex.get("cached"))
            step.started = step.started or vertex.get("started")
            step.error = vertex.get("error") or step.error
            if vertex.get("completed") and vertex.get("started"):
                took = _seconds(step.started or vertex["started"], vertex["completed"])
                step.seconds = (step.seconds or 0.0) if step.cached else took
            if before != (step.started, step.seconds, step.error, step.cached):
                yield step
        for log in value.get("logs") or []:
            step = self.steps.setdefault(log["vertex"], BuildStep(log["vertex"], log["vertex"]))
            stream = (step.digest, log.get("stream", 1))
            data = self._partial.pop(stream, b"") + base64.b64decode(log.get("data") or "")
            *lines, self._partial[stream] = data.split(b"\n")
            for line in lines:
                yield self._line(step, line)

    def _line(self, step: BuildStep, data: bytes) -> BuildLine:
        """Keeps what a terminal would show at the end: a carriage return starts the line again."""
        text = data.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
        step.log.append(text)
        return BuildLine(step, text)

    def failed(self) -> BuildStep | None:
        """The step that failed by itself, not one that was cancelled for it."""
        broken = (step for step in self.steps.values() if step.error and "context canceled" not in step.error)
        return next(broken, None)


def _seconds(started: str, completed: str) -> float:
    begin, end = (datetime.fromisoformat(text) for text in (started, completed))
    return max(0.0, (end - begin).total_seconds())
