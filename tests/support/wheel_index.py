"""A wheel index on this machine."""

from __future__ import annotations

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def add_wheel(folder: Path, name: str, version: str, needs: Iterable[str] = ()) -> None:
    """An empty wheel in the index's `folder`."""
    place = folder / name.replace("_", "-")
    place.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", str(folder.name))
        lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
        extras = (need.partition("extra == ")[2].strip("'") for need in needs)
        lines += "".join(f"Provides-Extra: {extra}\n" for extra in extras if extra)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which `folder` is served: every folder in it is an index."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *words: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
