"""How the suite's own programs are started on the nodes."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocstack.verify.deployed_cluster import DeployedCluster


def test_root_takes_no_module_from_the_folder_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login user's, or the working folder where the node is this machine."""
    (tmp_path / "json.py").write_text("open('ran', 'w')\n")
    (program := tmp_path / "program.py").write_text("import json\nprint(json.dumps(1))\n")
    monkeypatch.chdir(tmp_path)

    def here(line: str, names: object, seconds: float) -> dict[str, SimpleNamespace]:
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        return {"n1": SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)}

    said = DeployedCluster.python(SimpleNamespace(everywhere=here), program)  # type: ignore[arg-type]
    assert (said, (tmp_path / "ran").exists()) == ({"n1": 1}, False)
