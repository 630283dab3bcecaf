"""What is read of a base image: data that is judged, and from which nothing gets out into a Dockerfile or a label."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from resolved_stack import Joined, instructions, join

from rocstack.base.errors import BadInput
from rocstack.image import labels
from rocstack.image.base_image import BaseImage
from rocstack.stack import base_reading, overlay, resolve, rules, stack
from rocstack.stack.base_reading import BaseReading

CASES = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parents[1] / "data/bases").glob("*.json")}
AMD = CASES["amd-pytorch"]["reading"]
BASE = BaseImage(reference="a", digest="sha256:1", how="given")
ENTRYPOINT, CMD = ["/bin/sh", "-c", 'exec "$0"\nRUN reboot'], ["it's ${HOME} \\"]
START = {"entrypoint": ENTRYPOINT, "cmd": CMD, "user": "person", "shell": None}


def reading(data: dict[str, Any], **more: object) -> BaseReading:
    return base_reading.parse(json.dumps({**data, **more}), "IMAGE")


def on_top(read: BaseReading, nic: str = "broadcom") -> Joined:
    parts = join("debian-13", nic)
    choice = base_reading.on_top(read, "registry.example.com/amd/pytorch:7.2", "pytorch-7.2")
    value = resolve.resolve(
        choice, nic, parts.components, parts.nics, overlay.load(None), base=choice.base.image, reading=read, on_top=True
    )
    return replace(parts, resolved=value, lock=None)


def judged(case: dict[str, Any]) -> str | None:
    """The refusal of an image with nothing but the NIC's layer."""
    read = reading(case["reading"])
    try:
        base_reading.refuse(read, "IMAGE", "bnxt_re", ["inbox"])
        rules.refuse_broken(rules.judge(rules.load(), on_top(read).resolved.facts()))
    except BadInput as error:
        return error.what
    return None


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_said_of_a_base(name: str) -> None:
    case = CASES[name]
    assert judged(case) == case.get("refused"), case["about"]
    facts = on_top(reading(case["reading"])).resolved.facts()
    assert case.get("facts", {}).items() <= facts.items()
    if "stack" in case:
        value = join("rocm-pytorch", "broadcom").resolved
        try:
            read = value.with_reading(reading(case["reading"]), "IMAGE")
            said = "fits"
            assert read.facts()["rocm.method"] == "amd"
            assert not read.needs_reading
        except BadInput as error:
            said = error.what
        assert said == case["stack"]
    assert value_needs_reading()


def value_needs_reading() -> bool:
    return join("rocm-pytorch").resolved.needs_reading and not join("debian-13").resolved.needs_reading


def test_a_newer_rdma_core_goes_in_whatever_the_base_has() -> None:
    for name in ("own-libibverbs", "other-release"):
        base_reading.refuse(reading(CASES[name]["reading"]), "IMAGE", "bnxt_re", ["newer"])
        base_reading.refuse(reading(CASES[name]["reading"]), "IMAGE", None, ["inbox"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("os", "debian 13"),
        ("os", "debian-13\nRUN reboot"),
        ("python", "3.12 && reboot"),
        ("site", "/opt/venv; reboot"),
        ("site", "../../etc"),
        ("site", "/../../../../etc/site-packages"),
        ("site", "/opt/./site-packages"),
        ("site", "/usr/local/bin/rocstack-train"),
        ("glibc", "2.39\n"),
        ("hip", "$(reboot)"),
        ("gfx", ["gfx942", "{{ 7*7 }}"]),
        ("components", {"rocm": {"version": "7.2", "origin": "amd", "prefix": "/opt/`reboot`"}}),
        ("components", {"rocm": {"version": "7.2\nENV A=b", "origin": "amd"}}),
        ("components", {"../x": {"version": "1", "origin": "amd"}}),
        ("components", {"rocm": {"version": "7.2", "origin": "mine"}}),
        ("verbs", {"path": "lib.so", "package": "1"}),
        ("labels", {"io.rocstack.nic.kernel-abi": "1-9"}),
        ("drivers", {"x": "y"}),
    ],
)
def test_what_it_says_is_data(field: str, value: object) -> None:
    with pytest.raises(BadInput, match="can't be read") as refused:
        reading(AMD, **{field: value})
    assert refused.value.code == "base-unfit"


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"os": "debian-13"', "Traceback (most recent)", "9" * 9999])
def test_an_answer_that_is_none(text: str) -> None:
    with pytest.raises(BadInput, match="can't be read"):
        base_reading.parse(text, "IMAGE")


@pytest.mark.parametrize("nic", ["broadcom", "mellanox", "tcp"])
def test_nothing_but_the_nics_layer(nic: str) -> None:
    context = on_top(reading(AMD, start=START), nic).render()
    found = instructions(context.files["Dockerfile"].data.decode())
    first = ["FROM scratch AS packages", "FROM registry.example.com/amd/pytorch:7.2 AS base", "USER root"]
    assert found[:3] == first
    last = found[next(i for i, line in enumerate(found) if line.endswith(" AS worker")) :]
    assert [line.split()[0] for line in last] == ["FROM", "ENV", "COPY", "USER", "SHELL", "ENTRYPOINT", "CMD"]
    # It starts what it started, as the same user and whatever the words hold.
    words = {line.split()[0]: line.partition(" ")[2] for line in last}
    assert json.loads(words["ENTRYPOINT"]) == ["/usr/local/bin/rocstack-entrypoint", *ENTRYPOINT]
    assert json.loads(words["CMD"]) == CMD
    assert words["USER"] == "person"
    assert json.loads(words["SHELL"]) == ["/bin/sh", "-c"]
    text = context.files["Dockerfile"].data.decode()
    others = ("useradd", "userdel", "dpkg.cfg.d", "policy-rc.d", "HEALTHCHECK", "COPY trainer")
    assert [word for word in others if word in text] == []
    smoke = {path for path in context.files if path.startswith("smoke/")}
    assert smoke == {"smoke/worker/00-rdma.sh", "smoke/worker/90-nic.sh"}


def test_its_labels() -> None:
    value = on_top(reading(AMD)).resolved
    manifest: dict[str, Any] = {"facts": {}, "versions": {}, "packages": {}, "wheels": {}}
    made = labels.labels(value, "worker", BASE, None, manifest, "c")
    own = {key.removeprefix("io.rocstack."): text for key, text in made.items()}
    expected = {"role": "job", "gfx": "gfx90a,gfx942,gfx950", "rocm.method": "amd", "torch.hip": "7.2.53211"}
    assert expected.items() <= own.items()
    plain = on_top(reading(CASES["own-libibverbs"]["reading"])).resolved
    without = labels.labels(plain, "worker", BASE, None, manifest, "c")
    assert not {"io.rocstack.gfx", "io.rocstack.rocm.method", "io.rocstack.torch.hip"} & without.keys()


def test_a_stack_is_built_where_the_base_has_its_parts() -> None:
    parts = join("rocm-pytorch", "broadcom")
    rocm = {"version": "7.2.9", "origin": "amd", "prefix": "/opt/rocm-7.2.9"}
    read = reading(AMD, components={**AMD["components"], "rocm": rocm})
    value = parts.resolved.with_reading(read, "IMAGE")
    context = replace(parts, resolved=value).render()
    text = context.files["Dockerfile"].data.decode()
    assert "USER root" in text
    assert "--with-rocm=/opt/rocm-7.2.9" in text
    assert "AS control" not in text
    assert "trainer/opt/venv/lib/python3.12/site-packages/rocstack_trainer/__init__.py" in context.files
    assert value.stack.components["rocm"].version == "7.2.9"
    assert value.stack.framework_rocm == "7.2"
    assert stack.load("rocm-pytorch").components["rocm"].version == "7.2.4"
