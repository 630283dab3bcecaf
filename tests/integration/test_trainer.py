"""The trainer in the image it ships in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trainer_suite
from workspace import Built, engine

pytestmark = pytest.mark.engine


@pytest.fixture
def tested(built: Built) -> Iterator[str]:
    with trainer_suite.with_pytest(built.worker, f"{built.workspace.prefix}/trainer-tests:latest") as image:
        yield image


def test_byte_code_of_what_a_run_imports_is_in_the_image(built: Built) -> None:
    """What isn't, Python compiles at every start of every rank, and writes here."""
    table = "a.table({'text': ['some words ' * 500] * 99})"
    script = f"""
PYTHONDONTWRITEBYTECODE=1 python3 -c "import pyarrow as a, pyarrow.parquet as p; p.write_table({table}, 'd.parquet')"
touch stamp
rocstack-train --steps 1 --data.path=d.parquet --checkpoint.dir=ck --checkpoint.export=hf --output.curves=c.svg >&2
find /usr -name '*.pyc' -newer stamp -not -path '*/rocstack_trainer/*'
"""
    done = engine("run", "--rm", "--no-healthcheck", "--workdir=/tmp", built.worker, "bash", "-euc", script)
    assert "done: step 1" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("which", "least"), [("not slow", 50), pytest.param("slow", 2, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_trainers_tests_pass_in_the_image(tested: str, which: str, least: int) -> None:
    trainer_suite.run(tested, which, least)
