"""docs/python.md: its examples run, its table has every name, and `import rocstack` stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rocstack

PAGE = Path(__file__).resolve().parents[3] / "docs/python.md"
BLOCKS = re.findall(r"^(<!-- needs .*? -->\n)?```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_empty_folder")
def test_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that need no engine, one after the other; of the others the names and the options."""
    names: dict[str, Any] = {}
    for needs, text in BLOCKS:
        if needs:
            for call in ast.walk(ast.parse(text)):
                if isinstance(call, ast.Attribute) and ast.unparse(call.value) == "rocstack":
                    assert call.attr in rocstack.__all__
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Options"):
                    assert eval(ast.unparse(call), names)
        else:
            exec(text, names)
    shown = capsys.readouterr().out
    assert "FROM" in shown or "#" in shown
    assert "unknown-nic" in shown
    assert '"findings"' in shown


def test_every_name_is_in_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    own = {name for name in rocstack.__all__ if not name.startswith("_")}
    assert {name for name in own if f"`{name}`" not in text} == set()
    assert all(getattr(rocstack, name) for name in rocstack.__all__)
    assert rocstack._HOME.keys() == own


def test_steps_print_nothing(tmp_path: Path) -> None:
    """Neither print, nor the terminal's modules, in any of them."""
    for file in Path(rocstack.__file__).parent.glob("steps/*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\bprint\(|\bsys\.std|rocstack\.cli|\binput\(|\btyper\b|\brich\b", text), file


def test_a_package_with_a_step_s_name_can_be_called() -> None:
    from rocstack.probe import summary

    assert isinstance(rocstack.probe, ModuleType)
    assert callable(rocstack.probe)
    assert rocstack.probe.summary is summary  # type: ignore[attr-defined]
    with pytest.raises(rocstack.BadInput):
        rocstack.doctor(rocstack.DoctorOptions(inventory="x", log="y"))
    with pytest.raises(AttributeError):
        _ = rocstack.nothing  # type: ignore[attr-defined]


def test_such_a_package_is_the_same_before_its_modules_are_loaded() -> None:
    code = "import rocstack; first = rocstack.probe; import rocstack.probe.summary; print(first is rocstack.probe)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_import_is_light() -> None:
    code = "import sys, rocstack; print(sorted(name for name in sys.modules if name.partition('.')[0] in {!r}))"
    heavy = ("rocstack", "pydantic", "typer", "rich", "docker", "yaml")
    ran = subprocess.run([sys.executable, "-c", code.format(heavy)], capture_output=True, text=True, check=True)
    assert ast.literal_eval(ran.stdout) == ["rocstack", "rocstack.base"]
