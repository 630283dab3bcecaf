"""Each error's text is in images/errors once; whoever raises it fills exactly its places, and none is unused."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rocstack.base import paths
from rocstack.base.errors import BadInput, RocstackError, Where, error_texts
from rocstack.service import failures

PACKAGE = Path(__file__).resolve().parents[3] / "cli/rocstack"
FOLDER = paths.images() / "errors"
KINDS = {"BadInput", "CheckFailed", "Missing", "RocstackError", "Untrusted", "cls"}
KINDS |= {name for name, kind in vars(failures).items() if isinstance(kind, type) and issubclass(kind, RocstackError)}


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Every `BadInput.of(...)` and its like, with its place in the code."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "of":
                owner = node.func.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name in KINDS:
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}", node


def names_of(call: ast.Call) -> list[str]:
    """The errors that a call may raise: its first argument, one text or a choice of two."""
    first = call.args[0]
    choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
    return [each.value for each in choices if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def places(entry: dict[str, str]) -> set[str]:
    fields = {field for text in entry.values() for _, field, _, _ in string.Formatter().parse(text) if field}
    return {re.split(r"[.\[]", field)[0] for field in fields}


CALLS = list(raised())


def test_each_name_stands_once() -> None:
    keys = [key for path in FOLDER.glob("*.yml") for key in re.findall(r"(?m)^([^\s#][^:]*):", path.read_text())]
    assert sorted(keys) == sorted(set(keys)) == sorted(error_texts())


def test_a_file_is_named_after_its_package() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert {path.stem for path in FOLDER.glob("*.yml")} <= packages


def test_each_error_is_complete() -> None:
    for name, entry in error_texts().items():
        assert set(entry) <= {"code", "what", "cause", "next", "page"}, name
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", entry.get("code", name)), name
        assert entry["what"], name
        for part, text in entry.items():
            assert isinstance(text, str), (name, part)
            assert text.strip() == text != "", (name, part)
            assert "\n" not in text, (name, part)
            assert text.count("`") % 2 == 0, f"{name}: a command stands between two backquotes"
            assert not text.endswith("."), f"{name}: no full stop at the end"


# By requests that the service's page doesn't send.
NOT_ON_PAGE = {"no-expiry", "no-such-part", "upload-incomplete", "no-conversations"}


def test_the_page_names_no_request_and_no_option() -> None:
    shown = {
        name: entry["page"] if "page" in entry else entry.get("next", "")
        for stem in ("service", "jobs")
        for name, entry in yaml.safe_load((FOLDER / f"{stem}.yml").read_text()).items()
        if stem == "service" or "page" in entry
    }
    odd = {name for name, text in shown.items() if re.search(r"/v1/|(^|\s)--[a-z]", text)}
    assert odd <= NOT_ON_PAGE


def test_the_page_begins_no_sentence_with_a_name() -> None:
    """It would be written with a capital."""
    entries = yaml.safe_load((FOLDER / "service.yml").read_text()).items()
    odd = {name for name, entry in entries if entry["what"].startswith("{")}
    at_deploy = {"service-file-unreadable", "no-data-folder", "no-acls"}
    assert odd <= NOT_ON_PAGE | at_deploy | {"no-model-yet", "upload-closed"}


def test_whoever_raises_it_fills_its_places() -> None:
    assert len(CALLS) > 500
    for place, call in CALLS:
        names = names_of(call)
        assert names, f"{place}: name the error in the call itself, for this test and for people who search"
        given = {keyword.arg for keyword in call.keywords}
        assert None not in given, f"{place}: no ** here"
        wanted = set().union(*(places(dict(error_texts()[name])) for name in names))
        assert given == wanted, place


def test_no_text_is_unused() -> None:
    assert set(error_texts()) == {name for _, call in CALLS for name in names_of(call)}


def test_empty_sentences_are_left_out_and_values_are_not_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"code": "shared", "what": "no {name}", "cause": "{why}", "next": "{step}"}
    monkeypatch.setattr("rocstack.base.errors.error_texts", lambda: {"one": entry})
    error = BadInput.of("one", Path("a.yml"), name="{name}", why=None, step="run it")
    assert (error.what, error.code, error.cause, error.next_step) == ("no {name}", "shared", None, "run it")
    assert error.where == Where("a.yml")


def test_the_texts_are_plain_yaml() -> None:
    for path in FOLDER.glob("*.yml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict), path
