"""Components from source, for real: the distribution's source packages of OpenMPI, Slurm and MUNGE, built against
its ROCm, UCX and PMIx, in a worker that passes its smoke test. Minutes, and a quarter of an hour on two busy cores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from workspace import REPO, STACK, Workspace, engine

from rocstack.stack import lock, stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FROM_SOURCE = {
    'munge: {method: apt, version: "0.5.16"}': 'munge: {method: source, version: "0.5.16", source: munge}',
    'slurm: {method: apt, version: "24.11.5"}': 'slurm: {method: source, version: "24.11.5", source: slurm-wlm}',
    'openmpi: {method: apt, version: "5.0.7"}': (
        'openmpi: {method: source, version: "5.0.7", source: openmpi, packages: [python3-mpi4py]}'
    ),
}


def stack_from_source(folder: Path) -> Path:
    """The default stack with three components from source, under its own name, and a lock for it."""
    text = (REPO / f"images/stacks/{STACK}.yml").read_text()
    for old, new in FROM_SOURCE.items():
        assert text.count(f"  {old}\n") == 1
        text = text.replace(old, new)
    file = folder / "from-source.yml"
    file.write_text(text)
    chosen = stack.load(str(file))
    locked = json.loads((REPO / f"images/stacks/{STACK}.lock").read_text())
    locked |= {"stack": chosen.name, "definition": lock.definition_digest(chosen)}
    (folder / "rocstack.lock").write_text(json.dumps(locked))
    return file


@pytest.fixture(scope="module")
def worker(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The worker image, built with the control image; both smoke tests have passed, or there would be none."""
    workspace = Workspace(tmp_path_factory.mktemp("source"), prefix, made=made)
    file = stack_from_source(workspace.folder)
    arguments = ["--stack", str(file), "--base-image", base]
    done = workspace.run("build", "--json", *arguments, timeout=3600)
    assert done.code == 0, done.err + done.failures()
    return f"{prefix}/worker:from-source-tcp"


def inside(image: str, script: str) -> str:
    return engine("run", "--rm", image, "bash", "-euo", "pipefail", "-c", script).stdout


def test_openmpi_is_gpu_aware(worker: str) -> None:
    info = inside(worker, "ompi_info --parsable")
    for wanted in ("mca:accelerator:rocm:", "mca:pml:ucx:", "mca:osc:ucx:"):
        assert any(line.startswith(wanted) for line in info.splitlines()), wanted
    assert "path:prefix:/opt/openmpi" in info


def test_the_built_openmpi_is_the_one_in_use(worker: str) -> None:
    """Debian's mpi4py and torch are linked to libmpi.so.40 of Debian's OpenMPI, which is in the image too."""
    assert "/usr/lib/x86_64-linux-gnu/libmpi.so.40" in inside(worker, "dpkg -L libopenmpi40")
    assert inside(worker, 'readlink -f "$(command -v mpirun)" "$(command -v ompi_info)"').split() == [
        "/opt/openmpi/bin/mpirun",
        "/opt/openmpi/bin/ompi_info",
    ]
    for module in ("mpi4py.MPI", "torch"):
        mapped = inside(worker, f"python3 -c \"import {module}; print(open('/proc/self/maps').read())\"")
        loaded = set(re.findall(r"/\S*/lib(?:mpi|open-pal)\.so\S*", mapped))
        assert len(loaded) >= 2, module
        assert all(path.startswith("/opt/openmpi/lib/") for path in loaded), (module, loaded)


def test_slurm_and_openmpi_have_one_pmix(worker: str) -> None:
    conf = "printf 'ClusterName=c\\nSlurmctldHost=h\\n' >/tmp/slurm.conf; export SLURM_CONF=/tmp/slurm.conf; "
    assert "pmix_v5" in inside(worker, conf + "srun --mpi=list 2>&1")
    assert "slurm 24.11.5" in inside(worker, conf + "slurmd -V")
    assert inside(worker, "ls /usr/lib/libpmi2.so.0 /usr/lib/slurm/gpu_rsmi.so /usr/lib/slurm/mpi_pmix_v5.so")
    (only,) = inside(worker, "find / -xdev -type f -name 'libpmix.so.2*'").split()
    linked = inside(worker, "ldd /opt/openmpi/lib/libmpi.so.40 | awk '/libpmix/{print $3}' | xargs readlink -f")
    assert linked.split() == [only]


def test_nothing_of_the_builders_is_left(worker: str) -> None:
    """No compiler, no headers, no static library, no source, and none of apt's foreign settings."""
    folders = "/opt /usr/lib/slurm /usr/include"
    found = inside(
        worker,
        "command -v gcc cc make || true; ls -d /src /out /runtime 2>/dev/null || true; find /etc/apt -name 'rocstack*';"
        f"find {folders} \\( -name '*.a' -o -name '*.la' -o -name '*.h' \\)",
    )
    assert found.strip() == ""


def test_munge_is_the_built_one(worker: str) -> None:
    assert inside(worker, "munged --version").startswith("munge-0.5.16")
    assert engine("run", "--rm", worker, "dpkg", "-s", "munge", check=False).returncode != 0
    assert inside(worker, "stat -c %U:%a /etc/munge /var/lib/munge /var/log/munge").split() == ["munge:700"] * 3
