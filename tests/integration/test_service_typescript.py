"""The TypeScript client as npm makes it: generated again it is the same, compiled it works with the running service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_slurmrestd import token
from service_site import serving
from workspace import REPO

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")]
CLIENT = REPO / "clients/typescript"


def test_the_client_is_as_generated_and_works(tmp_path: Path) -> None:
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    for line in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "generate"]):
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "src/schema.d.ts").read_text() == (CLIENT / "src/schema.d.ts").read_text(), "npm run generate"
    with serving(tmp_path / "site") as site:
        given = {**os.environ, "URL": site.url, "TOKEN": token("alice")}
        done = subprocess.run(["npm", "test"], cwd=folder, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, "as it should be" in done.stdout) == (0, True), done.stdout + done.stderr
