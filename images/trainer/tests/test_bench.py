"""The bench's numbers: what they are made of, not how large they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE, SMALL, ranks

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.rank import Rank

BENCH = PACKAGE.parents[1] / "bench/train"
if not BENCH.exists():
    pytest.skip("bench/train is not here: this is not a whole tree", allow_module_level=True)
sys.path.append(str(BENCH))
import sums as bench  # noqa: E402

SIDES = ["flat", "ring", "hierarchical", "flat:bf16", "flat:int8+zstd"]


def rows(rank: Rank, *args: object) -> list[dict]:
    return bench.all_reduce(rank, *args)


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return ranks(2, rows, SIDES, [4096, 40_000], 2)[0]


def test_every_side_of_every_size_has_a_row(found: list[dict]) -> None:
    sides = [bench.BACKEND, *SIDES]
    assert [(row["bytes"], row["side"]) for row in found] == [(n, s) for n in (4096, 40_000) for s in sides]


def test_busbw_is_rccl_tests_formula(found: list[dict]) -> None:
    for row in found:  # two ranks: 2(n-1)/n is 1
        assert row["busbw_gb_s"] == pytest.approx(row["bytes"] / (row["ms"] / 1e3) / 1e9)
        assert 0 < row["min_ms"] <= row["ms"]


def test_exact_sides_are_exact_and_codecs_are_not(found: list[dict]) -> None:
    for row in found:
        if ":" in row["side"]:
            assert 1e-4 < row["error"] < 0.02
        else:
            assert row["error"] == 0


def test_sent_bytes(found: list[dict]) -> None:
    share = {row["side"]: row["sent_bytes"] / row["bytes"] for row in found if row["bytes"] == 40_000}
    assert (share["flat"], share["ring"], share["flat:bf16"]) == (1, 1, 0.5)
    assert share["flat:int8+zstd"] < 0.26


def test_command_prints_json_and_a_table() -> None:
    done = bench_command("all-reduce", "--ranks", "2", "--sides", "flat", "--sizes", "4096", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["side"] for row in json.loads(done.stdout)["rows"]] == [bench.BACKEND, "flat"]
    assert "busbw_gb_s" in done.stderr


STARTED = """
import json, pathlib, sys
ranks, options = int(sys.argv[1]), dict(word.partition("=")[::2] for word in sys.argv if "=" in word)
speed = 100 * ranks if int(options["--train.batch"]) > 8 else 150
lines = [json.dumps({"tokens_per_s": value}) for value in (1, 2, speed, speed + 1, speed - 1)]
pathlib.Path(options["--output.metrics"]).write_text("\\n".join(lines))
"""


def test_scaling_is_speed_per_rank_beside_the_first_count(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(STARTED)
    start = f"{sys.executable} {tmp_path}/start.py {{ranks}}"
    done = bench_command("scaling", "--counts", "1,4", "--start", start, "--json", "--train.batch=8")
    assert done.returncode == 0, done.stderr
    found = [tuple(row.values()) for row in json.loads(done.stdout)["rows"]]
    assert found == [  # the first two steps don't count
        ("weak", 1, 8, 5, 150, 1),
        ("weak", 4, 32, 5, 400, 400 / 4 / 150),
        ("strong", 1, 8, 5, 150, 1),
        ("strong", 4, 8, 5, 150, 0.25),
    ]


@pytest.mark.slow
def test_scaling_of_the_real_command() -> None:
    done = bench_command("scaling", "--counts", "1", "--json", "--train.steps=4", *SMALL)
    assert done.returncode == 0, done.stderr
    assert [(row["batch"], row["steps"], row["efficiency"]) for row in json.loads(done.stdout)["rows"]] == [
        (4, 4, 1)
    ] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sides", "flatt"], "flat"),
        (["--sides", "flat:int9"], "int8"),
        (["--ranks", "3", "--nodes", "2"], "evenly"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_input_is_refused_before_ranks_start(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench.run(["all-reduce", *words])


def test_a_failing_run_is_named() -> None:
    done = bench_command("scaling", "--counts", "1", "--train.steps=1", "--train.lr=-1")
    assert done.returncode == 2
    assert "train.lr" in done.stderr


def bench_command(*words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    line = [sys.executable, str(BENCH / "sums.py"), *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
