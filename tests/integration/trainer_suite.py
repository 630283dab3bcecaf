"""The trainer's own tests in an image that ships it: its PyTorch, its wheels, its Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from workspace import REPO, engine


@contextmanager
def with_pytest(worker: str, name: str) -> Iterator[str]:
    """The worker image and the distribution's pytest on it; nothing below is replaced by it."""
    packages = "python3-pytest python3-hypothesis"
    dockerfile = (
        f"FROM {worker}\n"
        "RUN dpkg-query -W >/before && apt-get -qq -o Acquire::Check-Valid-Until=false update \\\n"
        f" && apt-get -qqy install --no-install-recommends {packages} \\\n"
        " && dpkg-query -W | sort >/after && sort /before | comm -23 - /after >/replaced && test ! -s /replaced\n"
    )
    engine("build", "--quiet", "--tag", name, "-", input=dockerfile)
    try:
        yield name
    finally:
        engine("rmi", name, check=False)


def run(image: str, which: str, least: int, files: str = "") -> None:
    """Those that pytest's `-m` selects pass, at least so many, with the installed trainer."""
    line = ["--rm", "--no-healthcheck", "--shm-size=1g", "--workdir=/tmp", "--env=OMP_NUM_THREADS=1"]
    line += ["--cap-add=SYS_ADMIN"]  # to mount a small disk, and fill it
    line += ["--env=PYTHONDONTWRITEBYTECODE=1", f"--volume={REPO / 'images/trainer'}:/trainer:ro"]
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rsf", "-m", which]
    done = engine("run", *line, image, *command, f"/trainer/tests/{files}", check=False)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= least
    where = engine("run", "--rm", image, "python3", "-c", "import rocstack_trainer as t; print(t.__file__)")
    assert where.stdout.startswith("/usr/local/lib/python3"), "the installed one was tested, not the checkout's"
