"""Judges evidence after evidence with the checks of tests/cluster: they are collected once, and each request is run in
a fork of this process. It reads a line of JSON for each from stdin and answers "done" on stdout."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Generator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import _lru_cache_wrapper
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from rocstack.verify import artifacts, pytest_plugin, suite, thresholds
from rocstack.verify.evidence import Evidence, load

# What checks import when they run.
PRELOADED = ("pdb", "numpy", "rocstack.image.labels", "rocstack.doctor.nodes", "rocstack.doctor.logscan")


class Server:
    """Stands before pytest's own loop: the parent never gets past it, each child runs the loop once."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        read_tables()
        gc.disable()
        gc.freeze()  # pytest collects garbage at its end
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                prepare(session, json.loads(line))
                return (yield)
            os.waitpid(child, 0)
            os.write(self.answers, b"done\n")
        os._exit(0)


def read_tables() -> None:
    """Those that a process reads once: each child would read its own."""
    for module in [each for name, each in sys.modules.items() if name.startswith("rocstack.")]:
        for each in list(vars(module).values()):
            if isinstance(each, _lru_cache_wrapper) and not signature(each).parameters:
                each()
    thresholds.load()
    thresholds.load(None)  # to its cache another call


def prepare(session: pytest.Session, request: dict[str, Any]) -> None:
    """As if pytest had been started with the options of this request."""
    folder, option = Path(request["folder"]), session.config.option
    with (folder / "log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    option.rocstack_level, option.rocstack_only = request["level"], request["only"]
    chosen = [(item, pytest_plugin.of_item(item)) for item in session.items]
    session.items[:] = [
        item
        for item, check in chosen
        if check and check.level <= request["level"] and fnmatchcase(check.name, request["only"])
    ]
    run = session.config.stash[pytest_plugin._SUITE]
    run.folder, run.evidence = folder, Evidence(load(folder / "given.json"))


def main(evidence: str) -> None:
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    Evidence.write = lambda *_: None  # type: ignore[method-assign]
    artifacts.write = lambda run, folder, *_, **__: (folder / suite.REPORT).write_text(run.dumps())  # and no HTML
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # hypothesis takes a second
    checks = suite.checks()
    line = [
        "-p",
        "testinfra.plugin",
        "-p",
        "rocstack.verify.pytest_plugin",
        "-p",
        "no:logging",
        "-p",
        "no:cacheprovider",
    ]
    line += [
        "-c",
        os.devnull,
        f"--rootdir={checks}",
        "--assert=plain",
        "--tb=native",
        "--capture=no",
        "-q",
        "--level=4",
    ]
    pytest.main([*line, f"--evidence={evidence}", str(checks)], plugins=[Server(answers)])


if __name__ == "__main__":
    main(sys.argv[1])
