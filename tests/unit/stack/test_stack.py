"""Stacks: the shipped ones are valid, and whatever is wrong in one is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base.errors import BadInput
from rocstack.stack import stack

PLAIN = Path(__file__).parents[1] / "data/stacks/plain.yml"
BAD = yaml.safe_load((Path(__file__).parents[1] / "data/bad-stacks.yml").read_text())


@pytest.mark.parametrize("name", stack.names())
def test_shipped(name: str) -> None:
    chosen = stack.load(name)
    assert chosen.name == name
    assert sorted(n for layer in chosen.layers for n in layer) == sorted(chosen.components)
    assert all(fact.source for fact in chosen.facts)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_refused(case: dict[str, Any], tmp_path: Path) -> None:
    plain = PLAIN.read_text()
    assert plain.count(case["old"]) >= 1
    text = plain.replace(case["old"], case["new"], 1)
    file = tmp_path / "mine.yml"
    file.write_text(text)
    line = 1 + text.count("\n", 0, text.index(case["at"]))
    with pytest.raises(BadInput) as refused:
        stack.load(str(file))
    assert case["says"] in refused.value.what
    assert str(refused.value.where) == f"{file}:{line}"
    assert refused.value.exit_code == 2


def test_the_plain_copy_is_accepted(tmp_path: Path) -> None:
    """Otherwise the cases above would prove nothing."""
    (tmp_path / "mine.yml").write_text(PLAIN.read_text())
    mine = stack.load(str(tmp_path / "mine.yml"))
    assert mine.name == "mine"
    assert mine.model_copy(update={"name": "plain"}) == stack.load(str(PLAIN))


@pytest.mark.parametrize("field", ["about", "base", "python", "gfx", "components", "layers", "budget_mb", "disk_mb"])
def test_needed(field: str, tmp_path: Path) -> None:
    data = yaml.safe_load(PLAIN.read_text())
    del data[field]
    file = tmp_path / "mine.yml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(BadInput, match=f"^{field}: it is missing"):
        stack.load(str(file))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("debian13", "did you mean 'debian-13' or 'rocm-7.2-debian-13'?"),
        ("rocm-7.2-ubuntu-24.4", "did you mean 'rocm-7.2-ubuntu-24.04'"),
        ("fedora", f"known: {', '.join(stack.names())}"),
        ("../debian-13", "did you mean 'debian-13' or 'rocm-7.2-debian-13'?"),
    ],
)
def test_no_such_stack(name: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        stack.load(name)
    assert f"no stack '{name}': {hint}" in refused.value.what
    assert refused.value.code == "unknown-stack"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file") as refused:
        stack.load(str(tmp_path / "none.yml"))
    assert refused.value.code == "unknown-stack"


def test_own_stacks_come_first(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    text = PLAIN.read_text()
    (tmp_path / "stacks/site.yml").write_text(text)
    (tmp_path / "stacks/debian-13.yml").write_text(text.replace("budget_mb: ", "budget_mb: 9"))
    assert set(stack.names(tmp_path)) == {*stack.names(), "site"}
    assert stack.load("site", tmp_path).budget_mb == stack.load(str(PLAIN)).budget_mb
    assert str(stack.load("debian-13", tmp_path).budget_mb).startswith("9")
    assert not str(stack.load("debian-13").budget_mb).startswith("9")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("debian-13", "debian-13"),
        ("rocm-7.2-ubuntu-24.04", "rocm-7.2-ubuntu-24.04"),
        ("a/b/mine-1.2.yml", "mine-1.2"),
        ("mine.yaml", "mine"),
    ],
)
def test_name_of(text: str, name: str) -> None:
    assert stack.name_of(text) == name


def test_other_gfx_targets() -> None:
    chosen = stack.load("debian-13")
    assert chosen.with_gfx(("gfx906", "gfx908")) == chosen.model_copy(
        update={"gfx": ("gfx906", "gfx908"), "gfx_also": ()}
    )
    for wrong in ((), ("mi300x",), ("gfx90a", ""), ("gfx90a\n",)):
        with pytest.raises(BadInput) as refused:
            chosen.with_gfx(wrong)
        assert refused.value.code == "bad-gfx"


@pytest.mark.parametrize(
    ("name", "changes", "rocm"),
    [
        ("rocm-7.2-ubuntu-24.04", {}, "7.2"),
        ("debian-13", {}, None),  # Debian's PyTorch has no ROCm
        ("debian-13", {"framework": "jax"}, None),  # there is no JAX
        ("debian-13", {"framework": "jax", "component": "jax", "wheels": {"jax-rocm7-plugin": "0.9.1"}}, "7"),
        ("debian-13", {"framework": "jax", "component": "jax", "wheels": {"jaxlib": "0.9.1"}}, None),
    ],
)
def test_the_frameworks_rocm(name: str, changes: dict[str, Any], rocm: str | None) -> None:
    chosen = stack.load(name)
    if component := changes.pop("component", None):
        changes["components"] = {component: chosen.components["pytorch"]}
    assert chosen.model_copy(update=changes).framework_rocm == rocm


@pytest.mark.parametrize("name", [n for n in stack.names() if "trainer" in stack.load(n).components])
def test_the_trainer_has_what_its_smoke_test_asks_for(name: str) -> None:
    """It trains LoRA there, which peft does."""
    assert {"transformers", "peft", "accelerate", "safetensors", "zstandard"} <= {*stack.load(name).wheels}
