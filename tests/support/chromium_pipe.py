"""Chromium, headless, as a person uses it: over the pipe of its debugging protocol, which needs no other program."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 30.0
LINE = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
ASKS = "Page.javascriptDialogOpening"


class Page:
    """One tab. To questions of the page (`confirm`) it says what `answer` is."""

    def __init__(self, to: Any, back: Any) -> None:
        self._to, self._back, self._number, self._session = to, back, 0, ""
        self.answer, self.questions = True, list[str]()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        wanted = self._send(method, params)
        while True:
            said = bytearray()
            while (byte := self._back.read(1)) not in (b"\0", b""):
                said += byte
            found = json.loads(said)
            if found.get("method") == ASKS:
                self.questions.append(found["params"]["message"])
                self._send("Page.handleJavaScriptDialog", {"accept": self.answer})
            if found.get("id") == wanted:
                assert "error" not in found, found
                return found.get("result") or {}

    def _send(self, method: str, params: Mapping[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._to.write(json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._to.flush()
        return self._number

    def value(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str, seconds: float = WAIT_S) -> Any:
        """What it gives, once that is something."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"{expression}: {self.value('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def go(self, url: str) -> None:
        """There, once it has been read and its scripts have run."""
        before = self.value("performance.timeOrigin")
        self.ask("Page.navigate", url=url)
        self.arrived(before)

    def arrived(self, before: float) -> None:
        self.until(f"performance.timeOrigin != {before} && document.readyState == 'complete'")

    def leaves(self, act: Callable[[], Any]) -> None:
        """`act` leads to another page."""
        before = self.value("performance.timeOrigin")
        act()
        self.arrived(before)

    def back(self) -> None:
        self.leaves(lambda: self.value("setTimeout(() => history.back())"))

    def click(self, selector: str) -> None:
        """As by a mouse, later: what it asks is answered meanwhile."""
        self.until(f"!!document.querySelector({json.dumps(selector)})")
        self.value(f"setTimeout(() => document.querySelector({json.dumps(selector)}).click()), 0")

    def write(self, selector: str, text: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.value(f"document.querySelector({json.dumps(selector)}).value = ''")
        self.ask("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def window(self, width: int, height: int, *, phone: bool = False) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )  # fmt: skip

    def dark(self, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)


@contextmanager
def chromium(browser: str, profile: Path, *options: str) -> Iterator[Page]:
    """A tab in a fresh profile."""
    theirs, ours = os.pipe(), os.pipe()

    def handles() -> None:  # its protocol is on 3 and 4
        os.dup2(theirs[0], 3)
        os.dup2(ours[1], 4)
        os.set_inheritable(3, True)
        os.set_inheritable(4, True)

    process = subprocess.Popen(
        [browser, *LINE, f"--user-data-dir={profile}", *options, "about:blank"], preexec_fn=handles, close_fds=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        os.close(theirs[0])
        os.close(ours[1])
        with os.fdopen(theirs[1], "wb") as to, os.fdopen(ours[0], "rb") as back:
            yield Page(to, back)
    finally:
        process.kill()
        process.wait()
