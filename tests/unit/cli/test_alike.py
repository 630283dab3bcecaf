"""Equal complaints of many nodes are one on the screen."""

from __future__ import annotations

import pytest

from rocstack.base import finding_texts
from rocstack.base.findings import Finding
from rocstack.cli.nodes_display import show_alike


def away(number: int, why: str) -> Finding:
    reason = f"ssh: connect to host 10.1.{number // 250}.{number % 250} port 22: {why}"
    values = {"reason": reason, "inventory": "inv.yml", "node": f"w{number}"}
    return finding_texts.table()["node-unreached"].finding(values, node=f"w{number}")


def test_a_thousand_nodes_that_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    show_alike([away(n, "No route to host" if n == 500 else "Connection refused") for n in range(1, 1001)])
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 10
    assert "(999 nodes: w[1-499,501-1000]): can't be read: ssh: connect to host 10.1.0.1 port 22" in said
    assert "(w500): can't be read: ssh: connect to host 10.1.2.0 port 22: No route to host" in said


def test_what_differs_stays_apart(capsys: pytest.CaptureFixture[str]) -> None:
    show_alike([Finding("a", "error", f"{n} GPUs", node=f"n{n}") for n in (1, 2)])
    assert capsys.readouterr().out.count("error a") == 2
