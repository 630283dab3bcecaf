"""Which stack is chosen for nodes: from a recorded profile and changes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import recorded_nodes

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.node.profile import NodeProfile
from rocstack.stack import choice, gpus, stack
from rocstack.stack.stack import Stack

MI300X = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
DEBIAN, R64, R72 = (stack.load(name) for name in ("debian-13", "rocm-6.4-ubuntu-24.04", "rocm-7.2-ubuntu-24.04"))


def node(gfx: str | None = "gfx942", os: str = "ubuntu-24.04", **changes: Any) -> NodeProfile:
    found = tuple(replace(gpu, gfx=gfx) for gpu in MI300X.gpus)
    return replace(MI300X, gpus=found, system=replace(MI300X.system, os=os), **changes)


def chosen(*nodes: NodeProfile, stacks: tuple[Stack, ...] = (DEBIAN, R64, R72)) -> tuple[str, str]:
    need = choice.NodesNeed.of(nodes)
    best, why = choice.choose([choice.fit(each, need) for each in stacks])
    return best.stack.name, why


def other(name: str, **changes: Any) -> Stack:
    return R72.model_copy(update={"name": name, **changes})


@pytest.mark.parametrize(
    ("nodes", "name", "says"),
    [
        ([node()], R64.name, "code for gfx942; ROCm 6.4.3, as the driver 6.12.12 has it"),
        ([node(amdgpu="6.16.13")], R72.name, "ROCm 7.2.3, as the driver 6.16.13 has it"),
        ([node(amdgpu="6.16.6")], R72.name, "code for gfx942; ROCm 7.2.3; PyTorch"),  # the newer one
        ([node(amdgpu="in-tree")], R72.name, "code for gfx942; ROCm 7.2.3; PyTorch"),
        ([node(), node("gfx950")], R72.name, "code for gfx942, gfx950"),
        ([node(None, amdgpu=None)], R72.name, "code for gfx942"),  # by the card's PCI id
        ([node("gfx90a")], R64.name, "rocm-7.2-ubuntu-24.04 would do, too: choose it with --stack"),
        ([node(os="debian-12")], R64.name, "PyTorch 2.9.1+rocm6.4; ubuntu-24.04"),
    ],
)
def test_the_stack_for_the_nodes(nodes: list[NodeProfile], name: str, says: str) -> None:
    found, why = chosen(*nodes)
    assert found == name
    assert says in why


def test_the_nodes_own_system_comes_first() -> None:
    debian = other("mine", base=DEBIAN.base)
    assert chosen(node(os="debian-13"), stacks=(R64, debian))[0] == "mine"
    assert chosen(node(os="debian-12"), stacks=(R64, debian))[0] == "mine"
    assert chosen(node(os="ubuntu-24.04"), stacks=(R64, debian))[0] == R64.name


def test_two_that_suit_equally_are_left_to_the_person() -> None:
    jax = other("jaxed", framework="jax", components={**R72.components, "jax": R72.components["pytorch"]})
    jax = jax.model_copy(update={"wheels": {"jax-rocm7-plugin": "0.9.1"}})
    with pytest.raises(BadInput) as refused:
        chosen(node(amdgpu="6.16.13"), stacks=(R64, R72, jax))
    assert refused.value.code == "several-stacks"
    assert "rocm-7.2-ubuntu-24.04 (ubuntu-24.04, ROCm 7.2.3, PyTorch 2.11.0+rocm7.2)" in refused.value.what
    assert "jaxed (ubuntu-24.04, ROCm 7.2.3, JAX 2.11.0+rocm7.2)" in refused.value.what


def test_one_on_somebodys_image_is_never_chosen_unasked() -> None:
    assert chosen(node(amdgpu="6.16.13"), stacks=(stack.load("rocm-pytorch"), R64, R72))[0] == R72.name


def test_one_for_a_single_program_is_known_by_its_framework() -> None:
    maxtext, serves, debian = (stack.load(name) for name in ("maxtext-rocm-7.2", "vllm-cpu", "rocm-7.2-debian"))
    assert [each.for_one_program for each in (maxtext, serves, debian)] == [True, True, False]
    assert choice.fit(maxtext, choice.NodesNeed.of([node(amdgpu="6.16.13")])).lacks == ()
    assert choice.framework(maxtext) == "MaxText 0.2.1"


def test_none() -> None:
    with pytest.raises(CheckFailed) as refused:
        chosen(node("gfx1201"))
    assert refused.value.code == "no-stack-fits"
    assert "debian-13 has no code for gfx1201 and no PyTorch with ROCm; rocm-6.4" in refused.value.what


@pytest.mark.parametrize(
    ("own", "where", "lacks"),
    [
        (DEBIAN, node(), ("no code for gfx942", "no PyTorch with ROCm")),
        (DEBIAN, node("gfx90a"), ("no PyTorch with ROCm",)),
        (R72, node(), ()),
        (R72, node(amdgpu="6.7.0"), ("no support for the driver 6.7.0 of n1",)),  # ROCm 6.1's
        (R64, node(amdgpu="6.7.0"), ()),
        (R64, node(amdgpu="6.99.1"), ()),  # not known, so nothing is said
        (R72, node("gfx1201"), ("no code for gfx1201",)),
        (DEBIAN.model_copy(update={"components": {}}), node("gfx90a"), ()),  # it trains nothing
        (DEBIAN, replace(MI300X, gpus=()), ()),
    ],
)
def test_what_a_stack_lacks(own: Stack, where: NodeProfile, lacks: tuple[str, ...]) -> None:
    fit = choice.fit(own, choice.NodesNeed.of([where]))
    assert fit.lacks == lacks
    if not lacks:
        return choice.refuse_unusable(fit, ())
    with pytest.raises(CheckFailed) as refused:
        choice.refuse_unusable(fit, [fit, choice.fit(other("mine"), choice.NodesNeed.of([node()]))])
    assert refused.value.what.startswith(f"stack {own.name} has {' and '.join(lacks)}")
    assert refused.value.next_step
    assert "build with --stack mine; --rehearsal" in refused.value.next_step


def test_targets_and_drivers() -> None:
    assert gpus.complaint("gfx924") == "'gfx924' is no known GPU target: did you mean 'gfx942'?"
    assert not gpus.complaint("gfx942")
    assert (gpus.target_of("1002:74b5"), gpus.target_of("1002:0000")) == ("gfx942", None)
    assert gpus.targets()["gfx942"].wave == 64
    modules = ("6.12.12", "6.16.13", "7.1.3.31500000", "5.18.13", "6.99.1", "in-tree", "9" * 5000, None)
    found = [gpus.driver_release(each) for each in modules]
    assert found == ["6.4", "30.30", "31.50", "5.18.13", None, None, None, None]
    assert [gpus.driver_rocm(each) for each in ("30.30", "6.4", "31.50")] == ["7.2", "6.4", "10.0"]
