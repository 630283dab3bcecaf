"""`explain --image`, and `run` with the host's libraries: what the gate says of an image of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import gate_cases
import pytest
import recorded_nodes
from cli_run import Cli

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.edge import engine
from rocstack.node.gate import FITS, UNFIT
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.probe.profiles import write_profiles
from rocstack.steps import run
from rocstack.steps.explain import ImageFit, explain
from rocstack.steps.options import ExplainOptions


def has(image: str, monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    """The engine has this image under every name."""
    labels = {**gate_cases.labels(image), **{LABEL_PREFIX + key: text for key, text in changed.items()}}
    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(engine, "find_image", lambda *_: SimpleNamespace(labels=labels))


@pytest.mark.parametrize(
    ("image", "node", "result", "says"),
    [
        ("broadcom inbox", "thor2 abi 1", FITS, "kernel ABI 1"),
        ("broadcom inbox", "thor2 abi 6", UNFIT, "kernel ABI 6, the image's bnxt_re supports 1-1"),
        ("cards not said", "thor2 abi 1", FITS, "kernel ABI 1"),  # an older rocstack's
        ("broadcom inbox 39", "thor2 abi 1", UNFIT, "14e4:1760 needs rdma-core 50 or newer"),
    ],
)
def test_an_image_and_a_node(
    image: str, node: str, result: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(image, monkeypatch)
    write_profiles(tmp_path / "nodes.json", [gate_cases.node(node)])
    found = explain(ExplainOptions(image="rocstack/worker:x", profiles=tmp_path / "nodes.json"))
    assert isinstance(found, ImageFit)
    ((verdict,), shown) = found.verdicts, found.to_dict()
    assert (verdict.result, found.ok) == (result, result == FITS)
    assert says in shown["nodes"][0]["says"]


def test_an_image_that_cant_use_the_nodes_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has("tcp", monkeypatch, gfx="gfx90a", framework="pytorch")
    node = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
    write_profiles(tmp_path / "nodes.json", [node])
    found = explain(ExplainOptions(image="rocstack/worker:x", profiles=tmp_path / "nodes.json"))
    assert isinstance(found, ImageFit)
    assert [verdict.result for verdict in found.verdicts] == [FITS]
    assert (found.ok, found.lacks) == (False, ("no code for gfx942", "no PyTorch with ROCm"))


def test_an_image_says_what_its_libraries_have_code_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    code = {"gfx.rccl": "gfx90a,gfx942", "gfx.hipblaslt": "none"}
    has("tcp", monkeypatch, **{"gfx": "gfx942", "framework": "jax", "framework.rocm": "7", **code})
    node = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
    write_profiles(tmp_path / "nodes.json", [node])
    found = explain(ExplainOptions(image="rocstack/worker:x", profiles=tmp_path / "nodes.json"))
    assert isinstance(found, ImageFit)
    assert found.to_dict()["code"] == {"hipblaslt": [], "rccl": ["gfx90a", "gfx942"]}
    ran = cli("explain", "--image", "rocstack/worker:x", "--profiles", str(tmp_path / "nodes.json"))
    assert "hipblaslt has code for no GPU\nrccl has code for gfx90a, gfx942" in ran.out


def test_no_image_and_a_control_image(monkeypatch: pytest.MonkeyPatch) -> None:
    has("tcp", monkeypatch, role="control")
    with pytest.raises(BadInput):
        explain(ExplainOptions(image="x"))
    monkeypatch.setattr(engine, "find_image", lambda *_: None)
    with pytest.raises(Missing):
        explain(ExplainOptions(image="x"))


def test_the_hosts_library_is_mounted_for_an_image_of_an_older_rocstack(monkeypatch: pytest.MonkeyPatch) -> None:
    has("mellanox host", monkeypatch, **{"nic.cards": ""})
    monkeypatch.setattr(run, "probe_host", lambda: gate_cases.node("host cx7"))
    assert run._host_libraries("x", None, needed=True)
    monkeypatch.setattr(run, "probe_host", lambda: gate_cases.node("thor2 abi 6"))
    with pytest.raises(CheckFailed):
        run._host_libraries("x", None, needed=True)
