"""What an overlay's template can reach from the real contexts: data, fields, and the functions that are listed here."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import runtime
from jinja2.environment import TemplateModule
from jinja2.sandbox import SecurityError
from pydantic import BaseModel
from resolved_stack import join

from rocstack.base.errors import BadInput
from rocstack.cluster import slurm_files
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_node import slurm_node
from rocstack.node import nic_settings
from rocstack.node.profile import NodeProfile, System
from rocstack.stack import blocks
from rocstack.stack.sandbox import Sandbox, for_templates

RESOLVED = (
    "called",
    "nic_packages",
    "package_names",
    "part",
    "has",
    "build_order",
    "layer_packages",
    "shared_packages",
)
CALLS = {
    "image": {
        *(f"Resolved.{name}" for name in RESOLVED),
        "Part.reaches",
        *("component_block", "has_block", "any_block", "nic_block"),
        *("own_parts", "prefix", "libdir", "dev_packages", "<lambda>"),  # env, key_sha256, source_sha256
    },
    "slurm": {"seconds"},
}
DATA = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)
PICKLE = "cos\\nsystem\\n(S'touch {ran}'\\ntR."


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The variables of every template that was rendered for an image of each kind, and for Slurm's files."""
    caught: dict[str, dict[str, Any]] = {"image": {}, "slurm": {}}
    init, render, kind = blocks.Blocks.__init__, blocks.Blocks.render, "image"

    def keep(self: blocks.Blocks, env: Any, library: Any, vars: dict[str, Any]) -> None:
        for key, value in vars.items():
            caught[kind][f"{key} {len(caught[kind])}"] = value
        caught[kind][f"all {len(caught[kind])}"] = vars  # a dict that is filled later
        init(self, env, library, vars)

    def extra(self: blocks.Blocks, name: str, block: str, **more: Any) -> str:
        caught[kind][f"{name} {block} {len(caught[kind])}"] = more
        return render(self, name, block, **more)

    monkeypatch.setattr(blocks.Blocks, "__init__", keep)
    monkeypatch.setattr(blocks.Blocks, "render", extra)
    for stack, nic in (("debian-13", "broadcom"), ("rocm-7.2-ubuntu-24.04", "tcp")):
        join(stack, nic).render()
    kind = "slurm"
    worker = slurm_node(NodeProfile(1, "x", system=System(cpus=8, memory=1 << 36)), name="n1", address="10.0.0.1")
    slurm_files.files(ClusterSettings(), slurm_files.Control("c", "10.0.0.9"), [worker], password="pass-word-1")
    return caught


def reached(env: Sandbox, start: Any) -> Iterator[tuple[str, Any, str]]:
    """(kind and attribute, object, what holds it) of everything that a template can name, without calling anything."""
    waiting, seen = [("", start)], set[int]()
    keep = []  # an id is one object's only while it lives
    while waiting:
        name, obj = waiting.pop()
        if id(obj) in seen or (type(obj) in DATA and not obj):
            continue
        seen.add(id(obj))
        keep.append(obj)
        yield name, obj, type(obj).__name__
        if isinstance(obj, dict):
            waiting += [(f"{name}[{key!r}]", value) for key, value in obj.items()]
        elif isinstance(obj, tuple | list | set | frozenset):
            waiting += [(f"{name}[]", value) for value in obj]
        if type(obj) in DATA:
            continue
        for attr in dir(obj):
            try:
                value = env.getattr(obj, attr)
                str(value)
            except Exception:  # refused, or a property that has nothing to say
                continue
            waiting.append((f"{name}.{attr}", value))


@pytest.mark.parametrize("kind", ["image", "slurm"])
def test_all_that_the_real_contexts_lead_to(kind: str, contexts: dict[str, dict[str, Any]]) -> None:
    env = blocks.environment({})
    assert isinstance(env, Sandbox)
    calls, kinds = set[str](), set[str]()
    for name, obj, _ in reached(env, contexts[kind]):
        if isinstance(obj, (*DATA, runtime.Macro, TemplateModule)):
            continue
        if callable(obj):
            assert env.is_safe_callable(obj), f"{name}: can be reached and not called"
            calls.add(getattr(obj, "__qualname__", repr(obj)).rpartition("<locals>.")[2])
        else:
            kinds.add(type(obj).__module__.partition(".")[0])
            assert isinstance(obj, BaseModel) or type(obj).__dataclass_fields__, name
    assert calls == CALLS[kind]
    assert kinds == {"rocstack"}


METHODS = sorted(name for name in dir(BaseModel) if callable(getattr(BaseModel, name, None)) or name == "model_extra")


@pytest.mark.parametrize("name", [*METHODS, "with_suite", "accounts_of", "_problems", "model_config", "model_fields"])
def test_a_models_own_works_are_closed(name: str) -> None:
    assert not blocks.environment({}).is_safe_attribute(ClusterSettings(), name, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["parse_raw", "model_validate_json", "copy", "with_suite"])
def test_an_object_that_got_in_is_not_called(name: str) -> None:
    text = "{{ f('x') }}"
    template = blocks.environment({"t": text}).get_template("t")
    with pytest.raises(SecurityError):
        template.render(f=getattr(ClusterSettings(), name))


@pytest.mark.parametrize(
    "obj", [Path("/"), types, nic_settings.condition_names, open, type, ClusterSettings, Path.read_text]
)
def test_nothing_else_is_open(obj: Any) -> None:
    env = blocks.environment({"t": "{{ x('/etc/hostname') }}"})
    with pytest.raises(SecurityError):
        env.get_template("t").render(x=obj)
    names = [name for name in dir(obj) if env.is_safe_attribute(obj, name, None)]  # type: ignore[attr-defined]
    assert not names


def test_what_templates_use_goes_on() -> None:
    text = (
        "{{ 'a'.upper() }}{{ '{} {}'.format('b', 1) }}{{ {'k': 1}.items() | list }}{{ range(2) | list }}"
        "{% for x in (1, 2) %}{{ loop.index }}{{ loop.cycle('o', 'e') }}{% endfor %}{{ f(2) }}"
        "{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}{{ dict(a=1).get('a') }}"
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ c.default_partition }}{{ c.partitions.train.tier }}"
    )

    @for_templates
    def double(number: int) -> int:
        return 2 * number

    said = blocks.environment({"t": text}).get_template("t").render(f=double, c=ClusterSettings())
    assert blocks.split(said)[0] == f"Ab 1[('k', 1)][0, 1]1o2e421<1>train{ClusterSettings().partitions['train'].tier}"


REACH: list[tuple[str, Callable[[Path], str]]] = [
    ("r.stack", lambda ran: f"parse_raw(\"{PICKLE.format(ran=ran)}\", proto='pickle', allow_pickle=true)"),
    ("r.stack", lambda ran: "parse_file('/etc/hostname')"),
    ("r", lambda ran: "model_copy(update={'base': 'x'})"),
    ("r", lambda ran: "model_fields_set"),
    ("nic_block", lambda ran: "__globals__"),
    ("'{0.parse_raw}'", lambda ran: "format(r.stack)"),
]


@pytest.mark.parametrize(("start", "call"), REACH)
def test_an_overlay_runs_nothing(start: str, call: Callable[[Path], str], tmp_path: Path) -> None:
    file = tmp_path / "mine/components/ucx.j2"
    file.parent.mkdir(parents=True)
    file.write_text(f"{{% block smoke %}}\n{{{{ {start}.{call(tmp_path / 'ran')} }}}}\n{{% endblock %}}\n")
    with pytest.raises(BadInput, match="unsafe"):
        join(folder=tmp_path / "mine").render()
    assert not (tmp_path / "ran").exists()


def test_an_overlay_of_slurms_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine/slurm/slurm.conf.j2"
    file.parent.mkdir(parents=True)
    pickled = PICKLE.format(ran=tmp_path / "ran")
    call = f"cluster.parse_raw(\"{pickled}\", proto='pickle', allow_pickle=true)"
    file.write_text(f"{{% block more %}}\n{{{{ {call} }}}}\n{{% endblock %}}\n")
    control = slurm_files.Control("c", "10.0.0.9")
    with pytest.raises(BadInput, match="unsafe"):
        slurm_files.files(ClusterSettings(), control, [], password="pass-word-1", overlay=tmp_path / "mine")
    assert not (tmp_path / "ran").exists()
