"""docs/recipes.md has every recipe; its commands are right, and where a script is shown, it is the real one's end."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.jobs import recipe as recipes

PAGE = (Path(__file__).resolve().parents[3] / "docs/recipes.md").read_text(encoding="utf-8")
ELSEWHERE = {"serve", "finetune", "diloco"}  # is what they printed, or a test looks at it
PARTS = dict(re.findall(r"^## ([a-z-]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_recipe_has_a_part() -> None:
    assert set(PARTS) == set(recipes.recipes())


@pytest.mark.parametrize("name", sorted(PARTS))
def test_its_command_is_right(name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # there is no cluster
    (command,) = re.findall(r"^```sh\n(rocstack submit .*?)\n```$", PARTS[name], re.MULTILINE | re.DOTALL)
    words = [word for word in shlex.split(command.replace("\\\n", " "))[1:] if word != "--follow"]
    shown = re.findall(r"^```text\n\.\.\.\n(.*?)\n```$", PARTS[name], re.MULTILINE | re.DOTALL)
    printed = "--print" in words
    ran = cli(*([words[0], "--print", *words[1:]] if not printed else words))
    assert ran.code == 0, ran.err
    assert shown or not printed
    if printed:
        assert ran.out.endswith(f"\n{shown[0]}\n")
    else:
        assert re.search(r"^```text\n(\.\.\.|job )", PARTS[name], re.MULTILINE) or name in ELSEWHERE
