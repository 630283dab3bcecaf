"""fabric.env as a shell in a container reads it, values with spaces and quotes too."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import engine

from rocstack.node.fabric import Fabric, FabricVariable, parse_env, render_env

pytestmark = pytest.mark.engine

FABRIC = Fabric(
    node="n1",
    nic="slingshot",
    lines=(
        FabricVariable("NCCL_NET", "AWS Libfabric", "a space"),
        FabricVariable("NCCL_IB_HCA", "=bnxt_re0:1,bnxt_re1:1", "an equals sign first"),
        FabricVariable("SITE_NOTE", "it's a $HOME of \\ its own # not a comment", "all that a shell would touch"),
        FabricVariable("EMPTY", "", "nothing"),
    ),
)


def test_a_container_gets_what_was_meant(base: str, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "fabric.env"
    path.write_text(render_env(FABRIC))
    mounted = ("--volume", f"{path}:/fabric.env:ro", base, "sh", "-euc", "set -a; . /fabric.env; exec env -0")
    done = engine("run", "--rm", "--network=none", f"--name={prefix}-env", *mounted)
    read = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert {name: read.get(name) for name in FABRIC.env} == FABRIC.env
    assert parse_env(path.read_text()) == FABRIC.env
