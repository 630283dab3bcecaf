"""The recipe `serve`: its script writes settings that a gateway takes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rocstack.jobs.recipe import JobRequest, find, script
from rocstack.serve.settings import load


def test_the_script_writes_settings_that_hold(tmp_path: Path) -> None:
    values = {"model": "/models/it's", "adapters": "/a b/$(c)", "max_rank": "16"}
    values |= {"repository": "https://example.com/adapters", "repository_login": "/a b/login"}
    text = script(find("serve"), JobRequest(values=values, arguments=("--max-model-len=512", "--x=a b")))
    kept = tmp_path / "kept.json"
    (tmp_path / "srun").write_text(f'#!/bin/sh\nfor last; do :; done\ncp "$last" {kept}\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the folder that the job runs in')")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_ON_NODE": "2"}
    subprocess.run(["bash", "-c", text], check=True, env=environment, cwd=tmp_path)
    found = load(kept)
    assert (found.model, found.max_rank, found.tokens) == ("/models/it's", 16, None)
    assert [each.folder for each in found.sources] == ["/a b/$(c)"]
    known = [(each.repository, each.login) for each in found.repositories]
    assert known == [("https://example.com/adapters", "/a b/login")]
    assert found.engine.arguments == ("--max-model-len=512", "--x=a b")
    assert not Path(found.state).parent.exists()  # it goes with the job


def test_a_gateway_that_is_killed_is_started_again_and_one_that_gives_up_is_not(tmp_path: Path) -> None:
    text = script(find("serve"), JobRequest(values={"model": "/models/x"}))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_ON_NODE": "2"}
    for codes, ended in (((137, 139, 0), 0), ((137, 2), 2), ((1,), 1), ((139,) * 5, 139)):
        asked = tmp_path / "asked"
        asked.write_text("")
        cases = "".join(f"{number}) exit {code};;\n" for number, code in enumerate(codes, 1))
        (tmp_path / "srun").write_text(f"#!/bin/sh\necho >>{asked}\ncase $(wc -l <{asked}) in\n{cases}esac\nexit 99\n")
        (tmp_path / "srun").chmod(0o755)
        done = subprocess.run(["bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, check=False)
        assert (done.returncode, len(asked.read_text())) == (ended, len(codes)), done.stderr
