"""`python3 -m rocstack.service SETTINGS`: serves until SIGTERM. Streams end then, requests finish, jobs go on."""

import argparse
import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from rocstack import base
from rocstack.base.errors import RocstackError
from rocstack.base.server_address import PARSER
from rocstack.service import app, config
from rocstack.service.config import ServiceSettings
from rocstack.service.failures import sentence
from rocstack.service.service import Service

GRACE_S = 30  # for requests that are being answered


class ServiceServer(uvicorn.Server):
    """Tells streams to end before it waits for them."""

    def __init__(self, settings: uvicorn.Config, service: Service) -> None:
        super().__init__(settings)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.stopping.set()
        super().handle_exit(sig, frame)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rocstack.service", description="rocstack's HTTP interface.")
    parser.add_argument("settings", nargs="?", type=Path, help="service.json, as deploy writes it")
    parser.add_argument("--version", action="version", version=f"rocstack {base.__version__}")
    parser.add_argument("--openapi", action="store_true", help="print the OpenAPI document and stop")
    parser.add_argument("--overlay", type=Path, help="folder with the site's own recipes/")
    chosen = parser.parse_args(arguments)
    if chosen.openapi:
        service = Service.of(ServiceSettings(cluster="rocstack", listen="127.0.0.1:8443", database="sqlite://"))
        sys.stdout.write(json.dumps(app.make(service).openapi(), indent=1, sort_keys=True) + "\n")
        return 0
    if chosen.settings is None:
        parser.error("name the settings: service.json")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = config.load(chosen.settings)
        service = Service.of(settings, overlay=chosen.overlay)
        service.storage.check()
    except RocstackError as error:
        where = f"{error.where}: " if error.where else ""
        sys.stderr.write(f"error: {where}{sentence(error)} [{error.code}]\n")
        return error.exit_code
    server = ServiceServer(_uvicorn(settings, service), service)
    server.run()
    return 0 if server.started else 1


def _uvicorn(settings: ServiceSettings, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        app.make(service),
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        log_config=None,
        access_log=False,  # paths have names of people's files; /metrics counts, the audit log tells
        server_header=False,
        date_header=True,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=2000,
        **PARSER,
    )


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when all has ended
        signal.signal(number, lambda *_: None)
    sys.exit(main(sys.argv[1:]))
