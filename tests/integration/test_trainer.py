"""The trainer's own tests, run in the image it ships in: its PyTorch, its wheels, its Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from place import REPO, Built, engine

pytestmark = pytest.mark.engine


@pytest.fixture
def with_pytest(built: Built) -> Iterator[str]:
    """The worker image and the distribution's pytest on it; nothing below is replaced by it."""
    name = f"{built.place.prefix}/trainer-tests:latest"
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


def test_trainers_tests_pass_in_the_image(with_pytest: str) -> None:
    line = ["--rm", "--no-healthcheck", "--shm-size=1g", "--workdir=/tmp", "--env=OMP_NUM_THREADS=1"]
    line += ["--env=PYTHONDONTWRITEBYTECODE=1", f"--volume={REPO / 'images/trainer'}:/trainer:ro"]
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "/trainer/tests"]
    done = engine("run", *line, with_pytest, *command, check=False)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 50
    where = engine("run", "--rm", with_pytest, "python3", "-c", "import rocstack_trainer as t; print(t.__file__)")
    assert where.stdout.startswith("/usr/local/lib/python3"), "the installed one was tested, not the checkout's"
