"""The OpenAPI document, and the TypeScript client that is generated from it: neither lags behind the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocstack.service import __main__ as program

CLIENT = Path(__file__).resolve().parents[3] / "clients/typescript"
AGAIN = "run: make client"
pytestmark = pytest.mark.skipif(not CLIENT.is_dir(), reason="clients/ isn't here: a package's own checkout has none")


def test_the_document_is_the_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((CLIENT / "openapi.json").read_text()), AGAIN


def test_the_types_know_each_call_of_the_document() -> None:
    """Without npm; tests/integration/test_service_typescript.py generates them again."""
    types = (CLIENT / "src/schema.d.ts").read_text()
    document = json.loads((CLIENT / "openapi.json").read_text())
    for path in document["paths"]:
        assert f'    "{path}": {{' in types, AGAIN
    for name in document["components"]["schemas"]:
        assert f"        {name}: {{" in types or f"        {name}:" in types, AGAIN


def test_the_lock_names_no_registry() -> None:
    text = (CLIENT / "package-lock.json").read_text()
    assert "http" not in "".join(line for line in text.splitlines() if "resolved" in line)
    rows = json.loads(text)["packages"]
    assert all(row.get("integrity") for name, row in rows.items() if name)
