"""`rocstack size --compile` with a program in the engine's place: what it is asked, what of its answer is shown, and
that its container is gone afterwards."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from pathlib import Path

import pytest
from cli_run import Cli
from rich.console import Console

from rocstack.cli import size as size_command
from rocstack.cli import ui
from rocstack.steps import size_search

RECORDED = Path(__file__).parents[1] / "data/size/llama-3.1-70b-512.json"
FOUR = ("size", "llama-3.1-70b", "--compile", "--image", "own/maxtext:1", "--json")
LAYOUT = ("--nodes", "64", "--tp", "1", "--pp", "1", "--shard", "512", "--micro-batch", "1", "--accumulate", "1")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that writes down what it is asked, and answers with the file `answer`, or ends as `code` says."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
cd {tmp_path}
echo "$*" >>lines
[ "$1" = image ] && {{ echo sha256:image; exit 0; }}
[ "$1" = run ] || exit 0
cat >request
[ ! -e code ] || {{ echo "Killed by somebody" >&2; exit "$(cat code)"; }}
cat answer
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path


def test_both_answers(cli: Cli, engine: Path) -> None:
    (engine / "answer").write_bytes(RECORDED.read_bytes())
    ran = cli(*FOUR, *LAYOUT)
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["compiled"]["memory"]["arguments"] == pytest.approx(
        said["compiled"]["memory"]["formula"]["arguments"], rel=0.01
    )
    assert {each["where"] for each in said["compiled"]["collectives"]} == {"fabric"}
    request = json.loads((engine / "request").read_text())
    assert (request["nodes"], request["per_node"], request["gpu"]["gfx"]) == (64, 8, "gfx942")
    start, end = (engine / "lines").read_text().splitlines()
    assert "--network=none" in start
    assert "--read-only" in start
    name = next(word for word in start.split() if word.startswith("--name="))
    assert end == f"rm --force {name.removeprefix('--name=')}"


def test_a_person_reads_both(cli: Cli, engine: Path) -> None:
    (engine / "answer").write_bytes(RECORDED.read_bytes())
    ran = cli(*FOUR[:-1], *LAYOUT)
    assert "GIB OF A GPU" in ran.out
    assert "all-gather" in ran.out
    assert "says the compiler" in ran.out


def test_what_the_compiler_refuses_is_said(cli: Cli, engine: Path) -> None:
    refused = {"phase": "trace", "type": "ValueError", "says": "heads 7 aren't divisible by 8"}
    (engine / "answer").write_text(json.dumps({"refused": refused, "seconds": {}}))
    ran = cli(*FOUR, *LAYOUT)
    assert ran.code == 1
    (finding,) = json.loads(ran.out)["compiled"]["findings"]
    assert finding["code"] == "maxtext-indivisible"
    shown = cli(*FOUR[:-1], *LAYOUT)
    assert "aren't divisible by 8" in shown.out
    assert "GIB OF A GPU" not in shown.out


@pytest.mark.parametrize(("answer", "code"), [("nonsense", "compiler-says-nonsense"), (None, "compiler-ended")])
def test_no_answer(cli: Cli, engine: Path, answer: str | None, code: str) -> None:
    if answer is None:
        (engine / "code").write_text("137")
    else:
        (engine / "answer").write_text(answer)
    ran = cli(*FOUR, *LAYOUT)
    assert ran.code == 1
    assert json.loads(ran.out or ran.err)["error"]["code"] == code
    assert (engine / "lines").read_text().splitlines()[-1].startswith("rm --force rocstack-size-")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["llama-3.1-8b", "--image", "own/maxtext:1"], "image-without-compile"),
        (["llama-3.1-8b", "--compile", "--method", "lora"], "lora-not-compiled"),
        (["mpt-7b", "--compile"], "no-such-maxtext-model"),
        (["llama-3.1-8b", "--compile", "--pp", "8", "--nodes", "1", "--accumulate", "9"], "uneven-rounds"),
        (["llama-3.1-8b", "--search"], "search-without-compile"),
        (["llama-3.1-8b", "--compile", "--search", "--method", "lora"], "lora-not-compiled"),
        (["llama-3.1-8b", "--compile", "--search", "--gpu", "mi210"], "search-without-times"),
    ],
)
def test_what_is_refused_before_anything_starts(cli: Cli, engine: Path, words: list[str], code: str) -> None:
    ran = cli("size", *words, "--json")
    assert ran.code == 2
    assert json.loads(ran.out or ran.err)["error"]["code"] == code
    assert not (engine / "lines").exists()


SEARCH = ("size", "llama-3.1-8b", "--nodes", "1", "--compile", "--search", "--image", "own/maxtext:1")
SEARCHED = (*SEARCH, "--tp", "1", "--pp", "1", "--shard", "8", "--recompute", "none")  # two layouts fit, as the first


def layouts(*temporaries: int | None) -> str:
    """What the image's program says of layouts in shards of 8: each fits or doesn't, or kills the compiler."""
    axes, said = [["data", 1], ["fsdp", 8]], []
    for number, size in enumerate(temporaries):
        answer: dict[str, object] = {"arguments": 1 << 30, "temporaries": size, "axes": axes, "seconds": {"compile": 5}}
        if size is None:
            answer = {"refused": {"phase": "compile", "type": "Died", "says": "Aborted"}, "seconds": {}}
        said.append(json.dumps({"number": number, "cpu": 6.5, **answer}))
    return "\n".join(reversed(said)) + "\n"


@pytest.fixture
def there(engine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(engine)
    return engine


def test_layouts_side_by_side(cli: Cli, there: Path) -> None:
    (there / "answer").write_text(layouts(300 << 30, 5 << 30))
    ran = cli(*SEARCHED, "--json")
    assert ran.code == 0, ran.err
    request = json.loads((there / "request").read_text())
    assert (len(request["steps"]), request["at_once"]) == (2, 2)
    said = json.loads(ran.out)
    good, large = said["search"]["layouts"]
    assert (good["fits"], large["fits"]) == (True, False)
    assert said["layout"] == good["layout"]
    assert said["compiled"] == good["compiled"]
    assert (there / said["search"]["picture"]).read_text().startswith("<svg")
    (there / "lines").unlink()
    again = cli(*SEARCHED)
    assert again.code == 0, again.err
    assert "run" not in (there / "lines").read_text()  # all answers are kept
    assert "STEP S" in again.out
    assert "GiB more than a run may use" in again.out
    assert max(len(line) for line in again.out.splitlines() if "×" in line and line[0] == " ") <= 80


def test_what_died_is_tried_again(cli: Cli, there: Path) -> None:
    (there / "answer").write_text(layouts(None, 300 << 30))
    ran = cli(*SEARCHED)
    assert ran.code == 1
    assert "died with this layout: Aborted" in ran.out
    (there / "answer").write_text(layouts(1 << 30))
    assert cli(*SEARCHED).code == 0
    assert len(json.loads((there / "request").read_text())["steps"]) == 1


def test_no_layout_fits(cli: Cli, there: Path) -> None:
    ran = cli("size", "llama-3.1-405b", "--nodes", "1", "--compile", "--search", "--image", "own/maxtext:1")
    assert ran.code == 1
    assert "no layout fits by the formula" in ran.out
    assert not (there / "request").exists()


def test_one_that_can_not_be_read_is_alone_with_it(cli: Cli, there: Path) -> None:
    odd, good = layouts(1 << 30, 5 << 30).splitlines()
    (there / "answer").write_text(odd.replace('["data", 1]', '["other", 3]') + "\n" + good + "\n")
    ran = cli(*SEARCHED)
    assert ran.code == 0, ran.err
    assert "can't be read" in ran.out
    cli(*SEARCHED)
    assert len(json.loads((there / "request").read_text())["steps"]) == 1, "a newer rocstack may read it"


def test_a_container_that_is_killed_in_the_middle_of_a_line(cli: Cli, there: Path) -> None:
    (there / "answer").write_text(layouts(1, 1)[:40])
    (there / "bin/docker").write_text((there / "bin/docker").read_text() + '[ "$1" = run ] && exit 137\n')
    ran = cli(*SEARCHED, "--json")
    assert (ran.code, json.loads(ran.out)["error"]["code"]) == (1, "compiler-ended")


def test_a_narrow_terminal(cli: Cli, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (there / "answer").write_text(layouts(5 << 30, 5 << 30))
    cli(*SEARCHED)
    narrow = ui.Terminal()
    vars(narrow)["console"] = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=40)
    monkeypatch.setattr(size_command, "out", narrow)
    monkeypatch.setattr(size_command, "table", partial(ui.table, on=narrow))
    cli(*SEARCHED)
    lines = narrow.file.getvalue().splitlines()
    (head,) = [line for line in lines if "STEP" in line and "GIB" in line]
    assert "WAITS" not in head


@pytest.mark.parametrize(
    "answer",
    [
        "nonsense\n",
        '{"number": 9, "cpu": 1.0}\n',
        layouts(1),
        layouts(1) * 2,
        layouts(1, 1).strip(),
        '{"refused": {}}\n',
    ],
)
def test_a_search_without_its_answers(cli: Cli, there: Path, answer: str) -> None:
    (there / "answer").write_text(answer)
    ran = cli(*SEARCHED, "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["error"]["code"] == "compiler-says-nonsense"
    assert (there / "lines").read_text().splitlines()[-1].startswith("rm --force rocstack-size-")


def test_the_oldest_answers_go(cli: Cli, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_search, "KEPT", 3)
    folder = there / ".rocstack/size/answers"
    folder.mkdir(parents=True)
    for number in range(4):
        path = folder / f"{number}.json"
        path.write_text("{}")
        os.utime(path, (number, number))
    (folder / "gone.json").symlink_to("none")  # as one is that another search takes away meanwhile
    (there / "answer").write_text(layouts(300 << 30, 5 << 30))
    assert cli(*SEARCHED).code == 0
    (folder / "gone.json").unlink()
    left = {path.name for path in folder.iterdir()}
    assert "3.json" in left
    assert len(left) == 3
