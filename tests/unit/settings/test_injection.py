"""No value that passes validation adds an instruction, ends a shell script or opens one, wherever it stands."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_run import refusal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from resolved_stack import instructions, join

from rocstack.base import document, paths
from rocstack.base.document import Path_
from rocstack.base.errors import BadInput
from rocstack.image import render
from rocstack.settings.settings import Settings
from rocstack.settings.settings import load as load_settings
from rocstack.stack import component, overlay, resolve, stack
from rocstack.stack.resolve import ProviderSpec

AMD = "rocm-7.2-ubuntu-24.04"  # it has repositories, archives, source packages and a wheel index
HOSTILE = [
    "\nRUN reboot", "\nEOS\nRUN reboot\n", "EOS", "\nEOS", "$(reboot)", "`reboot`", '"; reboot; "', "'; reboot; '",
    "\\\nRUN reboot", "\\", "<<'EOF'", "<<EOS", " AS other", "--mount=type=secret", "{{ 7 * 7 }}", "{% raw %}",
    "# syntax=x", "\rRUN reboot", "\x00", "\u2028RUN reboot", "\x85RUN reboot", "${ROCSTACK_WORLD}", "\tx", "&reboot",
    ";reboot", "|reboot", ">/etc/passwd", "*", "~root", "-o", "--help", "=x", " x", "x ", "#x", "!x", "%x",
    "^x", "\x1b[0m",
]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.sampled_from("aZ09.-_/:@+~ \n\r\t\"'`$\\;|&<>(){}[]#*?!=,%^\x00\x1b\x85\u2028é"), max_size=12),
    st.text("abcxyz0189.-+", min_size=1, max_size=12),
)
NIC = """\
---
about: a
hardware: [b]
pci: ["0001:0002"]
cards: {"0001:0002": {rdma_core: "50", source: x}}
firmware: {"0001:0002": {known_good: ["1.2"], source: x}}
modules: [c]
provider: d
dscp_source: x
ways:
  package: {packages: [e], kernel_abi: 1-1, source: f}
env: [{name: A_B, value: g, why: h, source: i, when: rocm>=7}]
---
{% block runtime %}
{{ m.provider_install(r) -}}
{% endblock %}
{% block smoke %}
{{ m.provider_smoke(r) -}}
{% endblock %}
"""
PART = """\
---
about: a
needs: [rocm]
after: [pmix]
methods:
  apt: {packages: [b], worker_packages: [c], control_packages: [d], builder_packages: [e], compiler_packages: [f]}
roles: [worker, control]
exclude: [/f/*]
---
{% block version %}
echo 1
{% endblock %}
{% block smoke %}
ok 1
{% endblock %}
"""


def leaves(data: Any, loc: Path_ = ()) -> Iterator[Path_]:
    """Where text stands; a method is one of a few words, and names that others refer to would not be found."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    for key, value in items:
        if isinstance(value, str) and key != "method":
            yield (*loc, key)
        elif key not in ("layers", "needs", "after", "roles", "alternatives"):
            yield from leaves(value, (*loc, key))


def changed(data: Any, loc: Path_, text: str) -> Any:
    out = copy.deepcopy(data)
    inner = out
    for part in loc[:-1]:
        inner = inner[part]
    inner[loc[-1]] = text
    return out


def keys_too(data: dict[str, Any], loc: Path_, text: str) -> Any:
    """The key itself replaced, where any name may stand."""
    out = copy.deepcopy(data)
    out[loc[0]] = {text if key == loc[1] else key: value for key, value in out[loc[0]].items()}
    return out


def to_stack(data: dict[str, Any]) -> stack.Stack:
    return document.Document("mine.yml", data).validate(stack.Stack, extra={"name": "mine"})


def head(kind: str, name: str, text: str, data: dict[str, Any] | None = None) -> component.TemplateFile:
    folder = Path("mine") / kind
    _, plain, body = text.split("---\n")
    doc = document.parse(plain, "mine")
    return component.TemplateFile(
        name, folder / f"{name}.j2", document.Document("mine", data or doc.data), body, text.count("\n")
    )


PLAIN_STACK = yaml.safe_load((paths.images() / f"stacks/{AMD}.yml").read_text())
PLAIN_STACK["components"]["part"] = {"method": "apt", "version": "1", "packages": ["a"]}
PLAIN_STACK["layers"][-1].append("part")
PLAIN_STACK["components"]["ucx"]["options"] = ["--a=b"]
PLAIN_STACK["components"]["ucx"]["archive"] = "a.tar"
PLAIN_STACK["components"]["pytorch"]["extras"] = ["device-GFX"]
PLAIN_STACK["components"]["ucx"]["beside"] = [
    {"url": "https://b.org/c", "sha256": "0" * 64, "archive": "d", "into": "e"}
]
PLAIN_STACK["base"]["suites"] = [{"suite": "backports", "components": ["main"], "packages": ["b*"]}]
PLAIN_STACK["further"] = {
    "service": {"components": {"service": {"method": "apt", "version": "1"}}, "layers": [["service"]], "disk_mb": 1}
}
PLAIN_NIC, PLAIN_PART = head("nic", "mine", NIC).head.data, head("components", "part", PART).head.data
COMPONENTS, NICS = component.library("components"), component.library("nic")


def with_nic(nic: dict[str, Any]) -> component.TemplateLibrary:
    return component.TemplateLibrary("nic", {**NICS.files, "mine": head("nic", "mine", NIC, nic)}, {})


def resolves(nic: dict[str, Any]) -> None:
    """Raises where a NIC's conditions name no component."""
    component.validate_head(head("nic", "mine", NIC, nic), component.NicProfile)
    parts = component.TemplateLibrary("components", {**COMPONENTS.files, "part": head("components", "part", PART)}, {})
    resolve.resolve(to_stack(PLAIN_STACK), "mine", parts, with_nic(nic), overlay.Overlay())


def dockerfile(data: dict[str, Any], nic: dict[str, Any], part: dict[str, Any], base: str | None = None) -> str:
    components = component.TemplateLibrary(
        "components", {**COMPONENTS.files, "part": head("components", "part", PART, part)}, {}
    )
    nics = with_nic(nic)
    resolved = resolve.resolve(to_stack(data), "mine", components, nics, overlay.Overlay(), base=base)
    context = render.render(resolved, None, components, nics)
    for path, file in context.files.items():
        if path == "rules/dpkg.rules" or path.endswith("nic.sh"):
            assert "reboot" not in file.data.decode(), path
    return context.files["Dockerfile"].data.decode()


def shape(text: str) -> list[str]:
    """Kinds of instructions and ends of scripts, in order."""
    found = instructions(text)
    assert all(re.fullmatch(r"FROM \S+ AS \S+", line) for line in found if line.startswith("FROM"))
    assert "reboot" not in text
    return [line.split()[0] for line in found] + [line for line in text.splitlines() if line == "EOS"]


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return shape(dockerfile(PLAIN_STACK, PLAIN_NIC, PLAIN_PART))


def accepted(validate: Any) -> bool:
    try:
        validate()
    except (BadInput, ValidationError):
        return False
    return True


STACK_FIELDS, NIC_FIELDS, PART_FIELDS = (list(leaves(data)) for data in (PLAIN_STACK, PLAIN_NIC, PLAIN_PART))


def test_the_fields_are_all_there() -> None:
    names = {str(part) for loc in (*STACK_FIELDS, *NIC_FIELDS, *PART_FIELDS) for part in loc}
    used = {*stack.Stack.model_fields, *stack.ComponentChoice.model_fields, *stack.AptRepository.model_fields}
    used |= {*component.NicProfile.model_fields, *component.Way.model_fields, *component.Component.model_fields}
    used |= {*component.Packages.model_fields, *stack.AptSuite.model_fields, *stack.SourceArchive.model_fields}
    not_text = {"asked", "release", "dscp", "env", "plugin", "after", "below_nic"}
    not_text |= {"layers", "needs", "roles", "alternatives", "budget_mb", "disk_mb", "priority", "name", "method"}
    assert used - names - not_text <= {
        "provided",
        "gfx_also",
        "index",
        "key_sha256",
        "pmix",
        "source",
        "driver",
        "exclude",
        "sha256",
        "without",
    }


# Each example renders a whole context; making a failing one smaller would take minutes.
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(st.data())
def test_fields(plain: list[str], data: st.DataObject) -> None:
    """Many fields at once, each with a text that passes beside those before."""
    chosen, nic, part = PLAIN_STACK, PLAIN_NIC, PLAIN_PART
    for loc in data.draw(st.lists(st.sampled_from(STACK_FIELDS), min_size=10, max_size=25, unique=True)):
        text = data.draw(TEXTS)
        with_it = changed(chosen, loc, text)
        if accepted(lambda with_it=with_it: to_stack(with_it)):
            chosen = with_it
    for loc in NIC_FIELDS:
        text = data.draw(TEXTS)
        one = changed(PLAIN_NIC, loc, text)
        if accepted(lambda one=one: resolves(one)):
            nic = changed(nic, loc, text)
    for loc in PART_FIELDS:
        text = data.draw(TEXTS)
        one = changed(PLAIN_PART, loc, text)
        if accepted(
            lambda one=one: component.validate_head(head("components", "part", PART, one), component.Component)
        ):
            part = changed(part, loc, text)
    base: str | None = data.draw(TEXTS)
    if not accepted(lambda: Settings(base_image=str(base))):
        base = None
    assert shape(dockerfile(chosen, nic, part, base or None)) == plain


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_pass_in_no_field_that_is_rendered(text: str) -> None:
    """Only fields that are words for people take them."""
    for loc in STACK_FIELDS:
        if accepted(lambda loc=loc: to_stack(changed(PLAIN_STACK, loc, "a" + text))):
            free = {"about", "driver", "facts", "says", "source"} & {str(part) for part in loc}
            bad = set("\n\r\0\"'`$\\;|&<>(){}#\t") | ({" "} if loc[-1] != "origin" else set())  # quoted where it stands
            assert free or not set(text) & bad, loc
    for loc in NIC_FIELDS:
        one = changed(PLAIN_NIC, loc, "a" + text)
        if accepted(lambda one=one: component.validate_head(head("nic", "mine", NIC, one), component.NicProfile)):
            free = {"about", "hardware", "source", "dscp_source", "why", "when"} & {str(part) for part in loc}
            assert free or loc[0] == "env" or not set(text) & set("\n\r\0\"'`$\\;|&<>(){}# \t"), loc


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["place", "way", "version", "archive", "sha256"])
def test_hostile_providers(field: str, text: str) -> None:
    """What names a release comes from the user's file names and from the nodes."""
    good = {"place": "source", "way": "source", "version": "1.2.3.4", "archive": "a-1.tar.gz", "sha256": "0" * 64}
    for value in (text, good[field] + text):
        if accepted(lambda value=value: ProviderSpec.model_validate({**good, field: value})):
            assert re.fullmatch(r"[A-Za-z0-9.+~:_-]+", value)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", [("components", "part"), ("wheels", "transformers")])
def test_hostile_keys(text: str, key: Path_) -> None:
    for name in (text, "a" + text):
        data = keys_too(PLAIN_STACK, key, name)
        if key[0] == "components":
            data["layers"][-1][-1] = name
        if accepted(lambda data=data: to_stack(data)):
            assert re.fullmatch(r"[a-z0-9.-]+", name)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_overlays(text: str, tmp_path: Path) -> None:
    yml = tmp_path / "overlay.yml"
    for name in (text, "a" + text):
        yml.write_text(yaml.safe_dump({"ucx_worker_packages_append": [name]}))
        error = refusal(lambda: overlay.load(tmp_path))
        if error:
            assert str(error.where).startswith(str(yml))
        else:
            assert re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name)
            found = instructions(join(folder=tmp_path).dockerfile())
            assert len(found) == len(instructions(join().dockerfile()))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "name", ["nic", "stack", "base_image", "image_prefix", "apt_mirror", "pip_index", "tag", "push"]
)
def test_hostile_settings(text: str, name: str, tmp_path: Path) -> None:
    """Refused, or a text that no Dockerfile and no shell ever gets."""
    value = "https://a.example/" + text if name in ("apt_mirror", "pip_index") else "a" + text
    error = refusal(lambda: load_settings({name: value}, {}, tmp_path))
    if error:
        assert (error.code, str(error.where)) == ("bad-setting", f"--{name.replace('_', '-')}")
        return
    chosen, _ = load_settings({name: value}, {}, tmp_path)
    assert not set("\n\r\0") & set(value)
    if name in ("nic", "base_image", "image_prefix", "apt_mirror", "pip_index"):
        assert not set(value) & set("\"'`$\\;|&<>(){}# \t"), value
    assert getattr(chosen, name) == value
