"""The table of error texts. Recorded ones are in the tests of pull, engine_facts and registry_errors."""

from __future__ import annotations

import pytest

from rocstack.node import engine_errors


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", "full"),
        ("x509: certificate has expired or is not yet valid", "certificate-time"),
        ("x509: certificate signed by unknown authority", "untrusted"),
        ("manifest unknown: manifest unknown", "not-found"),
        ("toomanyrequests: You have reached your pull rate limit", "busy"),
        ("read tcp 10.0.0.1:5000: connection reset by peer", "unreachable"),
        ("something new", "unknown"),
    ],
)
def test_what_a_text_means(text: str, kind: str) -> None:
    assert engine_errors.kind(text, engine_errors.PATTERNS, "unknown") == kind


def test_only_kinds_that_were_asked_for() -> None:
    text = "denied: connection refused"
    assert engine_errors.kind(text, ["denied"]) == "denied"
    assert engine_errors.kind(text, ["unreachable"]) == "unreachable"
    assert engine_errors.kind(text, ["full"]) == ""


def test_the_complaint_without_its_noise() -> None:
    text = "docker: Error response from daemon: No such\n image: x\nSee 'docker run --help'."
    assert engine_errors.without_noise(text) == "No such image: x"
