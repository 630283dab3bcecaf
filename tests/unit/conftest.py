"""Fixtures: the command line without a process or an engine, and the default stack."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from cli_run import Cli, Ran
from hypothesis import HealthCheck, settings
from quick_selection import quick
from resolved_stack import Joined, join

from rocstack.image.context import BuildContext

# How fast a machine makes examples is no property of the code.
settings.register_profile("rocstack", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rocstack")
NO_ENGINE = "unix:///nonexistent/engine.sock"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of each test, and none that is marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        kept = quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """`cli("render", "--nic", "tcp", cwd=..., env={...})` in an empty folder, where no engine answers."""
    from rocstack.cli import ui
    from rocstack.cli.main import main

    def run(*args: str, cwd: Path = tmp_path, env: dict[str, str] | None = None) -> Ran:
        handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("ROCSTACK_")]:
                patch.delenv(name)
            for name, value in {"DOCKER_HOST": NO_ENGINE, "COLUMNS": "200", **(env or {})}.items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["rocstack", *args])
            for terminal in (ui.out, ui.err):
                vars(terminal).pop("console", None)  # as in a process of its own: made in this environment
            capfd.readouterr()
            try:
                with pytest.raises(SystemExit) as ended:
                    main()
            finally:
                ui.State.debug = ui.State.json = False
                for number, handler in handlers:
                    signal.signal(number, handler)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, out, err)

    return run


@pytest.fixture(scope="session")
def default() -> Joined:
    return join()


@pytest.fixture(scope="session")
def default_context(default: Joined) -> BuildContext:
    return default.render()
