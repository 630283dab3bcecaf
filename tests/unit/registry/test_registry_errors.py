"""What a registry's answers and a connection's errors mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rocstack.registry.registry_errors import TRANSIENT, classify, registry_error

TEXTS = yaml.safe_load((Path(__file__).parents[1] / "data/registry-errors.yml").read_text())


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['kind']}: {case['from']}")
def test_classify(case: dict[str, str]) -> None:
    assert classify(case["text"]) == case["kind"]
    error = registry_error(case["text"], host="registry.example", reference="registry.example/a:x")
    assert error.next_step
    assert error.cause == case["text"].strip()


def test_only_what_may_pass_is_transient() -> None:
    assert {"busy", "unreachable"} == TRANSIENT


def test_signed_addresses_are_not_shown() -> None:
    message = 'Put "https://store.example/x?Signature=s3cret&Expires=1": EOF'
    error = registry_error(message, host="registry.example", reference="x")
    assert error.cause == 'Put "https://store.example/x?...": EOF'
