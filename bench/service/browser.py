"""When Chromium first paints a page: by its own clock, asked over the pipe of its debugging protocol."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAINT = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0] || 0"


def first_paint(browser: str, url: str, cookies: Mapping[str, str], profile: Path) -> float:
    """Milliseconds from the start of the navigation, in a fresh profile."""
    theirs, ours = os.pipe(), os.pipe()
    line = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]

    def handles() -> None:  # its protocol is on 3 and 4
        os.dup2(theirs[0], 3)
        os.dup2(ours[1], 4)
        os.set_inheritable(3, True)
        os.set_inheritable(4, True)

    process = subprocess.Popen(
        [*line, f"--user-data-dir={profile}", "about:blank"], preexec_fn=handles, close_fds=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        os.close(theirs[0])
        os.close(ours[1])
        with os.fdopen(theirs[1], "wb") as to, os.fdopen(ours[0], "rb") as back:
            return _measured(Pipe(to, back), url, cookies)
    finally:
        process.kill()
        process.wait()


class Pipe:
    def __init__(self, to: Any, back: Any) -> None:
        self._to, self._back, self._number = to, back, 0

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._to.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self._to.flush()
        while True:
            said = bytearray()
            while (byte := self._back.read(1)) not in (b"\0", b""):
                said += byte
            found = json.loads(said)
            if found.get("id") == self._number:
                return found.get("result") or {}


def _measured(pipe: Pipe, url: str, cookies: Mapping[str, str]) -> float:
    target = pipe.ask("Target.createTarget", url="about:blank")["targetId"]
    session = pipe.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for name, value in cookies.items():
        pipe.ask("Network.setCookie", session, name=name, value=value, url=url, httpOnly=True)
    pipe.ask("Page.navigate", session, url=url)
    for _ in range(200):
        said = pipe.ask("Runtime.evaluate", session, expression=PAINT, returnByValue=True)
        if found := said.get("result", {}).get("value"):
            return float(found)
        time.sleep(0.05)
    raise TimeoutError("it painted nothing within 10 s")
