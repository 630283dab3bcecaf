"""Blocks of components and NIC profiles: overriding them, and mistakes told with file and line; and which template
line a generated line came from: exact, or the failure report points to the wrong place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_run import Cli, listing
from hypothesis import given
from hypothesis import strategies as st
from resolved_stack import join

from rocstack.base import paths
from rocstack.base.errors import BadInput, Missing
from rocstack.stack import blocks, stack

HEAD = "---\nabout: mine\nmethods:\n  apt:\n    worker_packages: [fio]\n---\n"
NIC = "---\nabout: mine\nways: {inbox: {}}\n---\n"
VERSION = "{% block version %}\necho 1\n{% endblock %}\n"
SMOKE = '{% block smoke %}\nok "1"\n{% endblock %}\n'


def put(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_override_with_super(tmp_path: Path) -> None:
    put(
        tmp_path,
        "components/munge.j2",
        '{% block smoke %}\n{{ super() -}}\nok "mine too"\n{% endblock %}\n'
        "{% block runtime %}\ntouch /mine\n{% endblock %}",
    )
    plain, changed = join().render(), join(folder=tmp_path).render()
    script = "smoke/worker-below/01-munge.sh"
    assert changed.files[script].data == plain.files[script].data + b'ok "mine too"\n'
    before, after = (c.files["Dockerfile"].data.decode().splitlines() for c in (plain, changed))
    assert "touch /mine" in after
    assert "rm -f /etc/munge/munge.key" in before
    assert "rm -f /etc/munge/munge.key" not in after
    own = tmp_path / "components/munge.j2"
    assert changed.origins[script][-2] == f"{own}:3"
    assert changed.origin("Dockerfile", after.index("touch /mine") + 1) == f"{own}:6"
    same = [path for path in plain.files if plain.files[path] == changed.files[path]]
    assert set(plain.files) - set(same) == {"Dockerfile", "smoke/worker-below/01-munge.sh", "smoke/control/01-munge.sh"}


def test_a_block_that_ours_lacks_can_be_added(tmp_path: Path) -> None:
    put(tmp_path, "components/system.j2", "{% block runtime %}\ntouch /mine\n{% endblock %}")
    assert "touch /mine" not in join().dockerfile()
    assert join(folder=tmp_path).dockerfile().count("touch /mine") == 1


def test_an_empty_override_takes_out(tmp_path: Path) -> None:
    put(tmp_path, "components/rccl.j2", "{% block runtime %}{% endblock %}")
    assert "prune_fatbin.py" in join().dockerfile()
    assert "prune_fatbin.py" not in join(folder=tmp_path).dockerfile()


MISTAKES = [
    # path, text, line, code, part of the message
    ("components/ucx.j2", "{% block smoke %}\nx\n{{ nope }}\n{% endblock %}", 3, "bad-template", "'nope' is undefined"),
    ("components/ucx.j2", "{% block smoke %}\n{{ part.nope }}\n{% endblock %}", 2, "bad-template", "'nope'"),
    ("components/ucx.j2", "{% block smoke %}\n\n{{ 1 / 0 }}\n{% endblock %}", 3, "bad-template", "ZeroDivisionError"),
    ("components/ucx.j2", '{% block smoke %}\n{{ r.part("x") }}\n{% endblock %}', 2, "bad-template", "StopIteration"),
    ("components/ucx.j2", "{% block smoke %}\n{{ 'a' + 1 }}\n{% endblock %}", 2, "bad-template", "TypeError"),
    ("components/ucx.j2", "{% block smoke %}\n{{ super( }}\n{% endblock %}", 2, "bad-template", "unexpected '}'"),
    ("components/ucx.j2", "\n{% block smoke %}\nx\n", 3, "bad-template", "Unexpected end of template"),
    ("components/ucx.j2", "{% block smoke %}\n{{ 'a' | nope }}\n{% endblock %}", 2, "bad-template", "No filter named"),
    ("components/ucx.j2", "{% block smoke %}{% include 'x' %}{% endblock %}", 1, "bad-template", "x"),
    ("components/munge.j2", "{% block copy %}\n{{ super().nope }}\n{% endblock %}", 2, "bad-template", "nope"),
    (
        "components/system.j2",
        "{% block runtime %}\n{{ super() }}\n{% endblock %}",
        2,
        "bad-template",
        "no parent block",
    ),
    ("components/ucx.j2", "x\n{% block smok %}\n{% endblock %}", 2, "override-unmatched", "did you mean 'smoke'?"),
    ("components/ucx.j2", "ucx_info\n", 1, "override-unmatched", "it has no block"),
    ("components/ucx.j2", "", 1, "override-unmatched", "it has no block"),
    ("nic/tcp.j2", "{% block copy %}\n{% endblock %}", 1, "override-unmatched", "known: builder, plugin, runtime"),
    ("nic/tcp.j2", "{% block smoke %}\n\n{{ part.name }}\n{% endblock %}", 3, "bad-template", "'part' is undefined"),
    ("components/fio.j2", HEAD + VERSION + "{% block smok %}\n{% endblock %}", 10, "override-unmatched", "'smoke'?"),
    ("components/fio.j2", HEAD + SMOKE, 1, "bad-template", "it has no block 'version'"),
    ("components/fio.j2", HEAD + VERSION, 1, "bad-template", "it has no block 'smoke'"),
    ("nic/mine.j2", NIC + "{% block smok %}\n{% endblock %}", 5, "override-unmatched", "did you mean 'smoke'?"),
    (
        "components/ucx.j2",
        HEAD + VERSION + "{% block smoke %}{{ x }}{% endblock %}",
        10,
        "bad-template",
        "'x' is undef",
    ),
]


@pytest.mark.parametrize(("path", "text", "line", "code", "says"), MISTAKES)
def test_mistakes_are_told_with_their_line(
    path: str, text: str, line: int, code: str, says: str, tmp_path: Path, cli: Cli
) -> None:
    file = put(tmp_path, f"mine/{path}", text)
    before = listing(tmp_path)
    ran = cli("render", "--overlay", "mine", "--to", "context", "--json")
    error = ran.json()["error"]
    assert says in error["what"]
    assert (ran.code, error["code"]) == (2, code)
    assert error["where"] == f"mine/{path}:{line}"
    assert file.exists()
    assert listing(tmp_path) == before


def test_our_own_defects_are_not_blamed_on_a_template() -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        blocks.guarded(broken)


def test_our_own_errors_pass() -> None:
    def missing() -> None:
        raise Missing("x", code="y")

    with pytest.raises(Missing):
        blocks.guarded(missing)


def test_undefined_is_never_empty() -> None:
    env = blocks.environment({"a": "{{ x }}", "b": "{% if x %}{% endif %}", "c": "{% for i in x %}{% endfor %}"})
    for name in "abc":
        with pytest.raises(BadInput, match="'x' is undefined"):
            blocks.guarded(lambda n=name: env.get_template(n).render())


# Jinja's own marks; what is left of a template line stands in the rendered line as it is.
JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|\{\{.*|.*\}\}|\{#.*|.*#\}")


def rendered(sources: dict[str, str], **vars: object) -> list[tuple[str, str]]:
    """(line, origin) of the template `main`."""
    text, origins = blocks.split(blocks.environment(sources).get_template("main").render(vars))
    lines = text.split("\n")
    assert len(lines) == len(origins)
    return list(zip(lines, origins, strict=True))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a\nb\nc", ["1 a", "2 b", "3 c"]),
        ("a\n{# two\nlines #}\nb\n", ["1 a", "4 b", "4 "]),
        ("{% if x %}\na\n{% else %}\nb\n{% endif %}\nc\n", ["2 a", "6 c", "6 "]),
        ("{% for i in range(2) %}\na{{ i }}\nb\n{% endfor %}\nc\n", ["2 a0", "3 b", "2 a1", "3 b", "5 c", "5 "]),
        ("a {% if x -%}\n   b\n{%- endif %} c\nd\n", ["3 a b c", "4 d", "4 "]),
        ("\n\n{{ x }}\n", ["1 ", "2 ", "3 True", "3 "]),
        ("{% macro m() %}\nin\n{% endmacro %}\n{{ m() -}}\nout\n", ["2 in", "5 out", "5 "]),
        ("{% raw %}\n{{ a }}\n{% endraw %}\nb\n", ["1 ", "2 {{ a }}", "4 b", "4 "]),
        ("a\n{% block b %}one line{% endblock %}", ["1 a", "2 one line"]),
    ],
)
def test_lines(template: str, expected: list[str]) -> None:
    found = rendered({"main": template}, x=True)
    assert [f"{origin.rpartition(':')[2]} {line}" for line, origin in found] == expected


def test_other_templates() -> None:
    sources = {
        "main": "a\n{% include 'part' %}\n{% import 'macros' as m %}\n{{ m.two(1) -}}\nlast\n",
        "part": "{# head #}\np1\np2\n",
        "macros": "{% macro two(x) %}\nfirst {{ x }}\nsecond\n{% endmacro %}\n",
    }
    assert rendered(sources) == [
        ("a", "main:1"),
        ("p1", "part:2"),
        ("p2", "part:3"),
        ("first 1", "macros:2"),
        ("second", "macros:3"),
        ("last", "main:5"),
        ("", "main:5"),
    ]


@given(st.lists(st.sampled_from(["text", "", "  x", "{# c #}", "{% if 1 %}", "{% endif %}", "{{ 3 }}"]), max_size=12))
def test_plain_lines_map_to_themselves(parts: list[str]) -> None:
    lines, depth = [], 0
    for number, part in enumerate(parts, start=1):
        if part == "{% endif %}" and depth == 0:
            continue
        depth += (part == "{% if 1 %}") - (part == "{% endif %}")
        lines.append(part.replace("text", f"text {number}").replace("x", f"x{number}"))
    text = "\n".join([*lines, *["{% endif %}"] * depth]) + "\n"
    for line, origin in rendered({"main": text}):
        if "x" in line:
            assert text.split("\n")[int(origin.partition(":")[2]) - 1] == line


@pytest.mark.parametrize("name", stack.names())
@pytest.mark.parametrize("nic", ["tcp", "broadcom"])
def test_every_line_of_a_real_context(name: str, nic: str) -> None:
    """What stands in the template outside Jinja's marks stands in the line that is said to come from it."""
    context = join(name, nic).render()
    checked = 0
    for path, origins in context.origins.items():
        lines = context.files[path].data.decode().split("\n")
        assert len(lines) == len(origins)
        for line, origin in zip(lines, origins, strict=True):
            if not origin or line.strip() in ("", "}"):  # the brace is added to the version's block
                continue
            template, _, number = origin.partition(":")
            source = (paths.templates().parent / template).read_text().split("\n")[int(number) - 1]
            for piece in JINJA.split(source):
                assert piece.strip() in line, (path, line, origin, source)
                checked += len(piece.strip()) > 3
    assert checked > 100


@pytest.mark.parametrize(
    "text",
    [
        "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('touch ran') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ f.__globals__ }}",
        "{{ '%s'.format.__self__.__class__ }}",
        "{{ '{0.__class__}'.format(f) }}",
    ],
)
def test_a_template_of_an_overlay_runs_nothing_here(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    template = blocks.environment({"t": text}).get_template("t")
    with pytest.raises(BadInput):
        blocks.guarded(lambda: template.render(f=lambda: 1))
    assert list(tmp_path.iterdir()) == []
