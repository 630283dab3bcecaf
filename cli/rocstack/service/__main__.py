"""Stands in for the interface: it answers GET /health, and nothing else."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rocstack.base import __version__
from rocstack.base.text import from_json


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    status = 200 if scope.get("path") == "/health" else 404
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"rocstack {__version__}\n")
        sys.exit()
    said = from_json(Path(sys.argv[1]).read_text())
    host, _, port = said["listen"].rpartition(":")
    files = {"ssl_certfile": said["certificate"], "ssl_keyfile": said["key"]}
    import_module("uvicorn").run(app, host=host, port=int(port), lifespan="off", **files)
