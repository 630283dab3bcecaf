"""The trainer's own tests, run in the image it ships in: its PyTorch, its wheels, its Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from workspace import REPO, Built, engine

pytestmark = pytest.mark.engine


@pytest.fixture
def with_pytest(built: Built) -> Iterator[str]:
    """The worker image and the distribution's pytest on it; nothing below is replaced by it."""
    name = f"{built.workspace.prefix}/trainer-tests:latest"
    packages = "python3-pytest python3-hypothesis"
    dockerfile = (
        f"FROM {built.worker}\n"
        "RUN dpkg-query -W >/before && apt-get -qq update \\\n"
        f" && apt-get -qqy install --no-install-recommends {packages} \\\n"
        " && dpkg-query -W | sort >/after && sort /before | comm -23 - /after >/replaced && test ! -s /replaced\n"
    )
    engine("build", "--quiet", "--tag", name, "-", input=dockerfile)
    yield name
    engine("rmi", name, check=False)


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
def test_trainers_tests_pass_in_the_image(with_pytest: str, which: str, least: int) -> None:
    line = ["--rm", "--no-healthcheck", "--shm-size=1g", "--workdir=/tmp", "--env=OMP_NUM_THREADS=1"]
    line += ["--cap-add=SYS_ADMIN"]  # to mount a small disk, and fill it
    line += ["--env=PYTHONDONTWRITEBYTECODE=1", f"--volume={REPO / 'images/trainer'}:/trainer:ro"]
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rsf", "-m", which, "/trainer/tests"]
    done = engine("run", *line, with_pytest, *command, check=False)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= least
    where = engine("run", "--rm", with_pytest, "python3", "-c", "import rocstack_trainer as t; print(t.__file__)")
    assert where.stdout.startswith("/usr/local/lib/python3"), "the installed one was tested, not the checkout's"
