"""`docker buildx build` as it is started."""

import csv
import shutil
import subprocess
from pathlib import Path

import pytest

from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.settings.site import Site


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_folder_that_was_sent_names_no_program_that_git_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """buildx asks git about the context. A commit that isn't there would be fetched, by the program that the
    repository's settings name."""
    work, ran = tmp_path / "sent", tmp_path / "ran"
    (context := work / ".rocstack/context").mkdir(parents=True)
    git = ["git", "-C", str(work)]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    (work / ".git/refs/heads/main").write_text(f"{1:040x}\n")
    values = {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://nowhere/",
        "core.sshCommand": f"touch {ran};",
    }
    for name, value in values.items():
        subprocess.run([*git, "config", name, value], check=True)
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(f"#!/bin/sh\ngit -C {context} show --format=%H HEAD --quiet -- >&2\n")
    docker.chmod(0o755)
    subprocess.run([docker], check=False, capture_output=True)
    assert ran.exists()
    ran.unlink()
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    Buildkit().run(BuildkitRequest(context, "worker", "", Site()), lambda event: None)
    assert not ran.exists()


def test_a_path_names_one_file(tmp_path: Path) -> None:
    """A copied folder may have a file of certificates at `ca.pem,src=/root/.ssh/id_rsa`, and buildx takes the last."""
    path = 'ca.pem,src=/root/"x/id_rsa'
    request = BuildkitRequest(tmp_path, "worker", "", Site(ca=path), dest=tmp_path / "a,dest=b")
    command = request.command()
    lists = [command[command.index(option) + 1] for option in ("--secret", "--output")]
    assert list(csv.reader(lists)) == [["id=site-ca", f"src={path}"], ["type=local", f"dest={tmp_path}/a,dest=b"]]
