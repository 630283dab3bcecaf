"""`python3 -m rocstack.serve FILE.json`: the gateway and its engine, until SIGTERM or SIGINT."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.base.server_address import PARSER
from rocstack.serve import announcement
from rocstack.serve.announcement import Announcement
from rocstack.serve.app import make_app
from rocstack.serve.engine import Engine
from rocstack.serve.gateway import Gateway
from rocstack.serve.own_certificate import new_certificate
from rocstack.serve.settings import ServeSettings, load

GRACE_S = 60  # for which running streams may go on after a SIGTERM
POLL_S = 0.1


def say(text: str) -> None:
    sys.stderr.write(f"serve: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1:
            raise BadInput.of("serve-usage")
        asyncio.run(_serve(load(Path(arguments[0]))))
    except RocstackError as error:
        place = f"{error.where}: " if error.where else ""
        say(f"error: {error.code}: {place}{error.what}")
        for name, text in (("cause", error.cause), ("next", error.next_step)):
            if text:
                say(f"  {name}: {text}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


class _Server(uvicorn.Server):
    """uvicorn's would end by the signal itself, in the middle of the engine's own end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def ask_to_end(self) -> None:
        self.force_exit = self.should_exit  # the second time
        self.should_exit = True


async def _serve(settings: ServeSettings) -> None:
    """
    Raises:
        RocstackError: the settings are wrong, or the engine or the listener can't be started.
    """
    token = announcement.new_token()
    gateway = Gateway(settings, say, announcement.Holder(token) if settings.announce else None)
    certificate, key = settings.certificate, settings.key
    if settings.announce:
        announcement.check(Path(settings.announce))  # before a model is loaded, which may take long
        certificate, key = map(str, new_certificate(Path(settings.state)))
    server = _Server(_uvicorn(make_app(gateway), settings, certificate, key))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.ask_to_end)
    serving = asyncio.create_task(server.serve())
    announcing: list[asyncio.Task[None]] = []
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            port = server.servers[0].sockets[0].getsockname()[1]
            say(f"{settings.base} at {'https' if certificate else 'http'}://{settings.listen_at(port)}/v1")
            if settings.announce and certificate:
                said = Announcement(port, token, Path(certificate).read_text(encoding="ascii"))
                announcing = [asyncio.create_task(_announce(gateway.engine, said, Path(settings.announce)))]
        if gateway.ended:
            ends = [gateway.ended, *announcing]
            await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                if end.done():
                    server.should_exit = True
                    await serving
                    end.result()
    finally:
        for each in announcing:
            each.cancel()
        await asyncio.gather(*announcing, return_exceptions=True)
        server.should_exit = True
        try:
            await serving
        except SystemExit:  # uvicorn's word for an address that it can't have
            raise CheckFailed.of("serve-no-listener", listen=settings.listen) from None


def _uvicorn(app: FastAPI, settings: ServeSettings, certificate: str | None, key: str | None) -> uvicorn.Config:
    return uvicorn.Config(
        app, host=settings.host, port=settings.port, ssl_certfile=certificate, ssl_keyfile=key, log_level="warning",
        access_log=False, timeout_graceful_shutdown=GRACE_S, server_header=False, **PARSER,
    )  # fmt: skip


async def _announce(engine: Engine, said: Announcement, file: Path) -> None:
    """From when it can be asked until this is cancelled.

    Raises:
        CheckFailed: it can't be written.
    """
    try:
        with suppress(OSError):
            file.unlink(missing_ok=True)  # of one that was killed
        while engine.state != "ready":
            await asyncio.sleep(POLL_S)
        said.write(file)
        await asyncio.Event().wait()
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
