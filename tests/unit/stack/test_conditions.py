"""Conditions in the head of a NIC profile, and files with a byte order mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import Cli

HEAD = """\
---
about: Mine
pci: ["15b3:1021"]
modules: [mlx5_core]
provider: mlx5
ways:
  inbox:
    packages: [ibverbs-providers]
    needs:
      rdma: ">=40"
env:
  - name: NCCL_NET
    value: IB
    why: so
    source: mine
    when: rocm>=7.2.1
---
{% block runtime %}
{% endblock %}
"""
WRONG = {
    "versions": ('rdma: ">=40"', 'rdma: "=>40"', 10, "'=>40' is no condition on versions, such as >=40"),
    "a component of a variable": ("rocm>=7.2.1", "rcom>=7.2.1", 16, "which is no component: did you mean 'rocm'?"),
    "what a node has": ("rocm>=7.2.1", "hac", 16, "did you mean 'hca'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_condition_that_would_never_hold(case: str, tmp_path: Path, cli: Cli) -> None:
    old, new, line, says = WRONG[case]
    file = tmp_path / "own/nic/mine.j2"
    file.parent.mkdir(parents=True)
    file.write_text(HEAD.replace(old, new))
    ran = cli("render", "--nic", "mine", "--overlay", str(tmp_path / "own"), "--json")
    error = ran.json()["error"]
    assert says in error["what"]
    assert (ran.code, error["where"]) == (2, f"{file}:{line}")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_no_text(mark: str, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "own/nic/mine.j2"
    file.parent.mkdir(parents=True)
    file.write_text(mark + HEAD)
    (tmp_path / "rocstack.yml").write_text(f"{mark}nic: mine\noverlay: own\n")
    assert cli("render").code == 0
