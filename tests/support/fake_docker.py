"""A `docker` command that plays a script: what it is asked is written down, what it answers is data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = (
    f"#!{sys.executable}\n"
    + """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
with (folder / "calls").open("a") as calls:
    print(json.dumps(words), file=calls)
answers = json.loads((folder / "answers").read_text())
line = " ".join(words)
known = [begin for begin in answers if line.startswith(begin)]
if not known:
    sys.exit("nobody expected: docker " + line)
begin = max(known, key=len)
left = answers[begin]
answer = left[0] if len(left) == 1 else left.pop(0)
(folder / "answers").write_text(json.dumps(answers))
if words[:2] == ["system", "dial-stdio"]:
    asked = b""
    while b"\\r\\n\\r\\n" not in asked:
        asked += sys.stdin.buffer.read1()
    (folder / "asked").write_bytes(asked)
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.exit(answer.get("code", 0))
"""
)


class Fake:
    """`answers`: how a command line begins -> its answers {"out", "err", "code"}, the last for all that follow."""

    def __init__(self, folder: Path, answers: dict[str, list[dict[str, Any]]]) -> None:
        self.folder = folder
        (folder / "docker").write_text(PROGRAM)
        (folder / "docker").chmod(0o755)
        (folder / "answers").write_text(json.dumps(answers))
        (folder / "calls").write_text("")

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def asked(self) -> str:
        """The last request to the engine's API."""
        return (self.folder / "asked").read_text()


def stream(*events: dict[str, Any], status: str = "200 OK") -> dict[str, Any]:
    """What the API answers: one event a line."""
    body = "".join(json.dumps(event) + "\n" for event in events)
    return {"out": f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"}
