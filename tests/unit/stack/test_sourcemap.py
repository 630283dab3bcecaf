"""Which template line a generated line came from: exact, or the failure report points to the wrong place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolved_stack import join

from rocstack.base import paths
from rocstack.stack import blocks, sourcemap, stack

# Jinja's own marks; what is left of a template line stands in the rendered line as it is.
JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|\{\{.*|.*\}\}|\{#.*|.*#\}")


def rendered(sources: dict[str, str], **vars: object) -> list[tuple[str, str]]:
    """(line, origin) of the template `main`."""
    text, origins = sourcemap.split(blocks.environment(sources).get_template("main").render(vars))
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
    assert checked > 300
