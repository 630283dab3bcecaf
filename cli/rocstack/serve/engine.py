"""The one vLLM engine behind a gateway: started, watched and started again. It listens on a socket file in a folder
that only the gateway's user can enter, so nobody else reaches its admin calls."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve.engine_arguments import refuse_own
from rocstack.serve.settings import ServeSettings
from rocstack.serve.staging import Staged

# The engine asks no other machine, and reports to none.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
LINES, LINE = 60, 2000  # of its log that are kept for a message, and their characters
DOUBT_S = 0.5  # an engine that broke a connection off ends within that time, or goes on
POLL_S = 5.0  # between two looks at its health
SILENT = 6  # looks without an answer, after which it is ended
DEAD = re.compile(rb"EngineDead|EngineCore encountered an issue")  # vLLM's words: its core ended, and it will, too
DEAD_EVENT = re.compile(rb'(?m)^data: \{"(?:error"|type": ?"error").*(?:' + DEAD.pattern + rb")")
GRACE_S = 20  # between SIGTERM and SIGKILL
TRIES = 3  # starts in a row that may fail before it has ever answered
PAUSE_S = 60.0  # between two starts at most


class Engine:
    def __init__(self, settings: ServeSettings, lost: Callable[[], None], say: Callable[[str], None]) -> None:
        refuse_own(settings.engine.arguments)
        self._settings, self._lost, self._say = settings, lost, say
        self._key = secrets.token_urlsafe(24)
        self._socket = Path(settings.state) / "engine.sock"
        if len(str(self._socket)) > 100:
            raise BadInput.of("state-too-long", folder=settings.state)
        self._process: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._doubted = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=LINES)
        self._failed: CheckFailed | None = None
        self._stopping = False
        self.state = "starting"  # starting, ready, restarting, stopped
        self.starts = 0
        self.began = 0.0
        # The engine closes a connection that is idle for 5 s: one that it may be about to close isn't used.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2)
        self.client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self._socket), limits=limits),
            base_url="http://engine",
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=httpx.Timeout(None, connect=10),
        )

    def command(self) -> list[str]:
        settings = self._settings
        chosen = settings.engine
        # Where this process is killed outright, the engine ends with it.
        with_us = ["setpriv", "--pdeathsig=KILL", "--"] if shutil.which("setpriv") else []
        return [
            *with_us, *chosen.command, "serve", settings.model, f"--uds={self._socket}",
            f"--served-model-name={settings.base}", "--enable-lora", f"--max-loras={settings.active}",
            f"--max-cpu-loras={settings.resident}", f"--max-lora-rank={settings.max_rank}", *chosen.arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_API_KEY": self._key}
        # It starts other Pythons, which would take modules from the working folder.
        own["PYTHONSAFEPATH"] = "1"
        return {**os.environ, **QUIET, **self._settings.engine.environment, **own}

    async def ready(self, seconds: float) -> None:
        """
        Raises:
            CheckFailed: it doesn't answer within that time, or can't be started at all.
        """
        if self._ready.is_set():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), seconds)
        if self._failed:
            raise self._failed
        if self._stopping or not self._ready.is_set():
            raise CheckFailed.of("engine-not-ready", state=self.state)

    def doubt(self) -> None:
        """A request found it gone: the next ones wait until it is known to answer."""
        self._ready.clear()
        self._doubted.set()

    async def run(self) -> None:
        """Until `stop`.

        Raises:
            CheckFailed: it has never answered, in three starts.
        """
        failures = 0
        answered = False
        while not self._stopping:
            began = time.monotonic()
            try:
                await self._once()
                answered = True
                failures = 0 if time.monotonic() - began > PAUSE_S else failures + 1
            except CheckFailed as error:
                failures += 1
                self._say(f"the engine: {error.what}")
                if not answered and (failures >= TRIES or error.code == "no-vllm-command"):
                    self._failed = error
                    self._ready.set()
                    raise
            if not self._stopping:
                self.state = "restarting"
                await asyncio.sleep(min(PAUSE_S, 2.0 ** (failures - 1)) if failures else 0)

    async def stop(self) -> None:
        self._stopping = True
        self.state = "stopped"
        await self._end()
        await self.client.aclose()

    async def load(self, staged: Staged, *, again: bool = False) -> None:
        """
        Raises:
            CheckFailed: it refuses the adapter, or isn't there.
        """
        body = {"lora_name": staged.id, "lora_path": str(staged.folder), "load_inplace": again}
        answer = await self._admin("/v1/load_lora_adapter", body)
        if answer.status_code != 200 and "already been loaded" not in answer.text:
            raise CheckFailed.of("adapter-not-loaded", name=staged.adapter.name, why=answer.text[:300])

    async def unload(self, staged: Staged) -> None:
        """
        Raises:
            CheckFailed: it isn't there.
        """
        await self._admin("/v1/unload_lora_adapter", {"lora_name": staged.id})

    async def _admin(self, path: str, body: dict[str, object]) -> httpx.Response:
        try:
            answer = await self.client.post(path, json=body, timeout=300)
        except httpx.HTTPError as error:
            self.doubt()
            raise CheckFailed.of("engine-lost", why=type(error).__name__) from None
        if answer.status_code >= 500 and DEAD.search(answer.content):
            self.doubt()
            raise CheckFailed.of("engine-lost", why="its core ended")
        return answer

    async def _once(self) -> None:
        """From a start to its end.

        Raises:
            CheckFailed: it ended, or was silent for too long, before it answered.
        """
        self._socket.unlink(missing_ok=True)
        self.starts += 1
        self._lines.clear()
        if shutil.which(first := self._settings.engine.command[0]) is None:
            raise CheckFailed.of("no-vllm-command", command=first, why="there is no such program")
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.command(), env=self.environment(), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise CheckFailed.of("no-vllm-command", command=first, why=error.strerror) from None
        reading = asyncio.create_task(self._read(process))
        try:
            await self._wait_for_health(process)
            self.state, self.began = "ready", time.time()
            self._ready.set()
            self._say(f"the engine answers (start {self.starts})")
            await self._watch(process)
        finally:
            self._ready.clear()
            await self._end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reading, 5)  # a grandchild may hold the pipe
            self._lost()
        if not self._stopping:
            self._say(f"the engine ended with {process.returncode}; starting it again")

    async def _wait_for_health(self, process: asyncio.subprocess.Process) -> None:
        end = time.monotonic() + self._settings.engine.start_s
        while not await self._healthy():
            if process.returncode is not None:
                why = f"it ended with {process.returncode}"
            elif time.monotonic() > end:
                why = f"it didn't answer in {self._settings.engine.start_s} s"
            else:
                await asyncio.sleep(0.1)
                continue
            raise CheckFailed.of("engine-start", why=why, log=self._last_words())

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        silent = 0
        ended = asyncio.ensure_future(process.wait())
        try:
            while not ended.done():
                doubted = asyncio.ensure_future(self._doubted.wait())
                await asyncio.wait([ended, doubted], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                doubted.cancel()
                if self._doubted.is_set():
                    self._doubted.clear()
                    await asyncio.wait([ended], timeout=DOUBT_S)
                if ended.done():
                    return
                silent = 0 if await self._healthy() else silent + 1
                if silent == 0:
                    self._ready.set()
                elif silent >= SILENT:
                    self._say("the engine doesn't answer any more")
                    return
        finally:
            ended.cancel()

    async def _healthy(self) -> bool:
        try:
            return (await self.client.get("/health", timeout=10)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _end(self) -> None:
        """Ends it with all that it started."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_S)
        self._process = None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Its log, passed on, and the end of it kept."""
        assert process.stdout is not None
        with contextlib.ExitStack() as stack:
            log: BinaryIO = sys.stderr.buffer
            if self._settings.engine.log:
                log = stack.enter_context(Path(self._settings.engine.log).open("ab", buffering=0))
            rest = b""
            while piece := await process.stdout.read(65_536):
                with contextlib.suppress(OSError):  # a full disk ends no engine
                    log.write(piece)
                    log.flush()
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-LINE:]
                self._lines.extend(line[-LINE:].decode("utf-8", "replace") for line in lines)

    def _last_words(self) -> str:
        """The line of its log that says most: the last with an error in it."""
        lines = [line.strip() for line in self._lines if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["it said nothing"])[-1][-300:]
