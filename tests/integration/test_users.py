"""Accounts of those whose jobs run here, as both images make them. The script is this checkout's."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import REPO, engine

pytestmark = pytest.mark.engine
SCRIPT = REPO / "images/rootfs/common/usr/local/bin/rocstack-users"


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """Any image of the default stack that is here: the script is mounted into it."""
    labels = ("io.rocstack.role=control", "io.rocstack.stack=debian-13")
    found = engine("images", "--quiet", *(f"--filter=label={label}" for label in labels)).stdout.split()
    return found[0] if found else str(request.getfixturevalue("built").control)


def run(image: str, folder: Path, users: str, after: str = "true") -> tuple[int, str]:
    """Its code, what it says on both streams, and what `after` says."""
    (folder / "users").write_text(users)
    mounts = (f"--volume={folder}:/run/rocstack/cluster:ro", f"--volume={SCRIPT}:/usr/local/bin/rocstack-users:ro")
    script = f"exec 2>&1; rocstack-users; code=$?; {after}; exit $code"
    done = engine("run", "--rm", "--network=none", "--entrypoint=bash", *mounts, image, "-c", script, check=False)
    return done.returncode, done.stdout


def test_they_are_made_once(image: str, tmp_path: Path) -> None:
    users = "# who computes\n\nalice 2001 2001\nbob 2002 2001\ncarol 2003 100"
    after = "rocstack-users; for name in alice bob carol; do getent passwd $name; stat -c '%U %G %a' /home/$name; done"
    code, said = run(image, tmp_path, users, after)
    assert code == 0
    assert said.splitlines() == [
        "alice:x:2001:2001::/home/alice:/bin/bash",
        "alice alice 700",
        "bob:x:2002:2001::/home/bob:/bin/bash",
        "bob alice 700",
        "carol:x:2003:100::/home/carol:/bin/bash",
        "carol users 700",
    ]


def test_a_home_that_is_there_stays(image: str, tmp_path: Path) -> None:
    users = "alice 2001 2001\n"
    before = "rm -rf /home/alice; mkdir -m 0711 /home/alice; touch /home/alice/mine; userdel alice; rocstack-users"
    code, said = run(image, tmp_path, users, f"{before}; stat -c '%U %a' /home/alice; ls /home/alice")
    assert (code, said.splitlines()) == (0, ["root 711", "mine"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("root 0 0", "root: a user has a uid and a gid, both numbers"),
        ("dave 999 2001", "dave: uid 999 is of the system"),
        ("dave 2004 44", "dave: gid 44 is of the system"),
        ("dave 2004", "dave: a user has a uid and a gid"),
        ("dave 2004 2004 x", "more than name, uid and gid"),
        ("alice 2004 2004", "alice stands in line 1, too"),
        ("dave 2001 2001", "uid 2001 stands in line 1, too"),
        ("slurm 2004 2004", "slurm has the uid 64030 here, not 2004"),
        ("dave 64030 64030", "uid 64030 is slurm's here, not dave's"),
        ("users 2004 2004", "the group users has the gid 100 here, not 2004"),
        ("da/ve 2004 2004", "'da/ve' is no name of a user"),
        ("-dave 2004 2004", "'-dave' is no name of a user"),
    ],
)
def test_nothing_is_made_when_a_line_is_wrong(image: str, tmp_path: Path, line: str, says: str) -> None:
    code, said = run(image, tmp_path, f"alice 2001 2001\n{line}\n", "getent passwd alice dave")
    assert code == 2
    assert f"rocstack-users: /run/rocstack/cluster/users:2: {says}" in said
    assert "alice:x:" not in said


def test_without_a_file_there_is_nothing_to_do(image: str, tmp_path: Path) -> None:
    code, said = run(image, tmp_path, "", "rm -f /nothing; rocstack-users /nothing; echo $?")
    assert (code, said) == (0, "0\n")
