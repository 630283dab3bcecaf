"""Rendering: the same bytes for the same input, the user's changes in it, and what every Dockerfile has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli, listing
from resolved_stack import Joined, instructions, join

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.image import render
from rocstack.image.context import BuildContext
from rocstack.stack import component, stack

NAMES, NICS = stack.names(), sorted(component.library("nic").files)
FIO = """\
---
about: fio, the storage benchmark
methods:
  apt:
    worker_packages: [fio]
---
{% block version %}
fio --version
{% endblock %}
{% block smoke %}
ok "fio starts"
{% endblock %}
"""
INTEL = """\
---
about: Intel E810
provider: irdma
ways:
  inbox: {packages: [irdma-tools]}
env:
  - {name: NCCL_IB_TIMEOUT, value: "23", why: a long fabric, source: the site}
---
{% block smoke %}
ok "{{ r.nic.provider }}"
{% endblock %}
"""


def put(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


@pytest.mark.parametrize("nic", NICS)
@pytest.mark.parametrize("name", NAMES)
def test_what_every_dockerfile_has(name: str, nic: str) -> None:
    text = join(name, nic).dockerfile()
    assert not re.search(r"#\s*(syntax|escape|check)\s*=", text)
    assert "\x00" not in text
    found = instructions(text)
    kinds = {line.split()[0] for line in found}
    assert kinds <= {"FROM", "SHELL", "ENV", "RUN", "COPY", "ARG", "HEALTHCHECK", "ENTRYPOINT"}
    stages: list[str] = []
    for line in found:
        if line.startswith("FROM"):
            base, stage = re.fullmatch(r"FROM (\S+) AS (\S+)", line).groups()  # type: ignore[union-attr]
            assert base in stages or base in ("scratch", stack.load(name).base.image)
            stages.append(stage)
        for source in re.findall(r"from=(\S+?)[, ]", line):
            assert source in stages
    assert len(stages) == len(set(stages))
    for role in stack.load(name).roles:
        assert {role, f"{role}-base", f"smoke-{role}", f"check-{role}", f"report-{role}"} <= set(stages)
    assert not any(re.search(r"(?i)password|token|secret=", line.replace("type=secret", "")) for line in found)


@pytest.mark.parametrize("name", NAMES)
def test_every_shell_script_tells_its_line(name: str) -> None:
    lines = join(name).dockerfile().splitlines()
    for before, after in pairwise(lines):
        if before.endswith("<<'EOS'"):
            assert "rocstack-failed-at: $LINENO: $BASH_COMMAND" in after


def test_smoke_scripts_parse(default_context: BuildContext) -> None:
    for path, file in default_context.files.items():
        if path.startswith("smoke/"):
            checked = subprocess.run(["bash", "-n"], input=file.data, capture_output=True, check=False)
            assert checked.returncode == 0, (path, checked.stderr)
            assert (b"version() {" in file.data) == (not path.endswith(("-nic.sh", "-libraries.sh")))


def test_every_component_is_tested_in_its_roles(default: Joined, default_context: BuildContext) -> None:
    for role in ("worker", "control"):
        tested = {
            re.sub(r"^\d\d-|\.sh$", "", path.rsplit("/", 1)[1])
            for path in default_context.files
            if re.match(rf"smoke/{role}(-trainer|-below)?/", path)
        }
        wanted = {part.name for part in default.resolved.parts if part.reaches(role)}
        assert tested == wanted | {"libraries"} | ({"nic"} if role == "worker" else set())


def test_what_knows_no_nic_is_tested_below_its_layer(default_context: BuildContext) -> None:
    def stage(name: str) -> str:
        return text.split(f"AS {name}\n")[1].split("\nFROM ")[0]

    text = default_context.files["Dockerfile"].data.decode()
    assert "FROM worker-below AS smoke-worker-below\nCOPY rootfs/common/ /\nCOPY rootfs/worker/ /\n" in text
    assert "source=smoke/worker-below,target=/run/rocstack/smoke " in stage("smoke-worker-below")
    assert "source=smoke/worker,target=/run/rocstack/smoke " in stage("smoke-worker")
    assert "COPY --from=smoke-worker-below /out/ /smoke/below/\n" in stage("check-worker")


def test_facts(default: Joined, default_context: BuildContext) -> None:
    facts = json.loads(default_context.files["facts/worker.json"].data)
    assert facts["identity"]["stack"] == "debian-13"
    assert default.lock
    assert facts["identity"]["lock"] == default.lock.digest()
    assert "slurmd" in facts["packages"]["slurm"]
    assert "slurmctld" in json.loads(default_context.files["facts/control.json"].data)["packages"]["slurm"]


def test_the_exclude_rules_of_stack_components_and_gfx(default: Joined, default_context: BuildContext) -> None:
    rules = default_context.files["rules/dpkg.rules"].data.decode().splitlines()
    # Last, and so stronger than what the targets keep: MI300A's database leaves an image for MI300X by an exclude.
    assert rules[-len(default.resolved.exclude) :] == [f"path-exclude={glob}" for glob in default.resolved.exclude]
    other = join(gfx=("gfx908",)).render().files["rules/dpkg.rules"].data.decode().splitlines()
    assert set(rules) != set(other)
    assert all(re.match(r"path-(exclude|include)=/\S+$", rule) for rule in [*rules, *other])


def test_stages_that_compile_are_the_same_for_every_target() -> None:
    """What UCX, OpenMPI or Slurm are compiled in doesn't depend on the GPU: another target has them cached."""
    one, other = (join(gfx=(gfx,)).render().files for gfx in ("gfx942", "gfx90a"))
    assert {path for path in one if path.startswith("build/") and one[path] != other[path]} == set()
    stages = [
        dict(re.findall(r"(?ms)^FROM \S+ AS (\S+)$(.*?)(?=^FROM |\Z)", files["Dockerfile"].data.decode()))
        for files in (one, other)
    ]
    assert {"tools", "index"} < set(stages[0])
    different = {name for name in stages[0] if stages[0][name] != stages[1][name]}
    assert different <= {"wheels", "worker-below", "worker-base", "control-base", "worker", "control"}, different


def test_wheels_come_with_their_hashes(default: Joined, default_context: BuildContext) -> None:
    assert default.lock
    lines = default_context.files["wheels/0.txt"].data.decode().splitlines()
    assert len(lines) == len(default.lock.wheels)
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    without = render.render(default.resolved, None, default.components, default.nics)
    assert without.files["wheels/0.txt"].data == b""
    render.require_lock(default.resolved, default.lock)
    with pytest.raises(BadInput, match="no lock") as refused:
        render.require_lock(default.resolved, None)
    assert refused.value.code == "no-lock"


def test_modes(default_context: BuildContext) -> None:
    modes = {path: file.mode for path, file in default_context.files.items()}
    assert modes["build/apt-install"] == modes["trainer/usr/local/bin/rocstack-train"] == 0o755
    assert modes["Dockerfile"] == modes["check/manifest.py"] == 0o644
    assert set(modes.values()) == {0o755, 0o644}
    assert not any("__pycache__" in path or "/." in path for path in modes)


def test_a_change_of_the_trainer_is_a_change_of_its_files_only(
    default: Joined, default_context: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would build more than its own layer anew."""
    import shutil

    for name in ("images", "templates"):
        shutil.copytree(paths.data_root() / name, tmp_path / name)
    source = tmp_path / "images/trainer/rocstack_trainer/train.py"
    source.write_text(source.read_text() + "# changed\n")
    monkeypatch.setattr(paths, "data_root", lambda: tmp_path)
    changed = default.render()
    different = [p for p in default_context.files if changed.files[p] != default_context.files[p]]
    assert len(different) == 1
    assert different[0].startswith("trainer/")
    assert changed.digest() != default_context.digest()


def test_same_bytes_whatever_the_process(tmp_path: Path) -> None:
    """Another hash seed, folder, umask, locale, time zone and home: not a byte and not a mode differs."""
    seen = []
    for number, (seed, umask, extra) in enumerate(
        [
            ("1", 0o022, {"LC_ALL": "C.UTF-8", "TZ": "UTC"}),
            ("4711", 0o077, {"LC_ALL": "POSIX", "TZ": "Asia/Tokyo", "PYTHONUTF8": "0", "LANG": "de_DE.ISO-8859-1"}),
        ]
    ):
        folder = tmp_path / f"place {number}"
        folder.mkdir()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ROCSTACK_", "LC_", "LANG"))}
        env |= {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(Path(render.__file__).parents[2]),
            "HOME": str(folder),
            **extra,
        }
        ran = subprocess.run(
            [sys.executable, "-m", "rocstack.cli.main", "render", "--nic", "mellanox", "--to", "out"],
            cwd=folder,
            env=env,
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        out = folder / "out"
        modes = {str(path.relative_to(out)): path.stat().st_mode for path in sorted(out.rglob("*"))}
        seen.append((listing(out), modes))
    assert seen[0] == seen[1]


def test_written_and_printed_are_the_same(cli: Cli, tmp_path: Path) -> None:
    assert cli("render", "--to", "a").code == 0
    whole = cli("render", "--json").json()
    assert {path: text.encode() for path, text in whole["files"].items()} == {
        path: data for path, data in listing(tmp_path / "a").items() if data is not None
    }
    assert cli("render").out == whole["files"]["Dockerfile"]
    assert cli("render", "--to", "a", "--json").json()["digest"] == whole["digest"]


def test_package_lists(tmp_path: Path) -> None:
    put(
        tmp_path,
        "overlay.yml",
        "system_worker_packages_append: [strace]\nrdma_worker_packages_remove: [rdmacm-utils]\n"
        "slurm_control_packages_override: [slurmctld]\n",
    )
    before, after = (set(text.split()) for text in (join().dockerfile(), join(folder=tmp_path).dockerfile()))
    assert after - before == {"strace"}
    gone = {"rdmacm-utils", "slurmdbd", "slurmrestd", "slurm-wlm-mysql-plugin", "slurm-wlm-jwt-plugin"}
    assert before - after == gone


def test_a_new_component_is_one_new_file(tmp_path: Path) -> None:
    put(tmp_path, "components/fio.j2", FIO)
    text = (paths.images() / "stacks/debian-13.yml").read_text()
    mine = text.replace("  rdma: {", '  fio: {method: apt, version: "3.39"}\n  rdma: {').replace(
        "openmpi, pytorch]\n", "openmpi, pytorch, fio]\n"
    )
    put(tmp_path, "stacks/mine.yml", mine)
    plain, context = join().render(), join("mine", folder=tmp_path).render()
    assert "fio" in context.files["Dockerfile"].data.decode().split()
    assert context.files["smoke/worker/10-fio.sh"].data == b'version() {\nfio --version\n}\nok "fio starts"\n'
    versions = "rootfs/worker/usr/local/lib/rocstack/versions.d/fio"
    assert set(context.files) - set(plain.files) == {"smoke/worker/10-fio.sh", versions} | {
        path for path in context.files if path.startswith("smoke/worker-trainer/")
    } - set(plain.files)
    assert context.asked["fio"] == f"{tmp_path}/components/fio.j2:5"


def test_a_new_nic_profile_is_one_new_file(tmp_path: Path) -> None:
    put(tmp_path, "nic/intel.j2", INTEL)
    context = join(nic="intel", folder=tmp_path).render()
    text = context.files["Dockerfile"].data.decode()
    assert "# NIC profile intel: inbox" in text
    assert "    irdma-tools\n" in text
    nics = json.loads(context.files["rootfs/worker/usr/local/lib/rocstack/python/nics.json"].data)
    assert [line["value"] for nic in nics if nic["nic"] == "intel" for line in nic["env"]] == ["23"]
    worker, control = text.split("AS worker-base")[1].split("AS control-base")
    assert "irdma" in worker
    assert "irdma" not in control
    assert context.files["smoke/worker/90-nic.sh"].data == b'ok "irdma"\n'


def test_replacing_a_shipped_component(tmp_path: Path) -> None:
    put(tmp_path, "components/rccl.j2", FIO)
    text = join(folder=tmp_path).dockerfile()
    assert "librccl1" not in text
    assert " fio" in text


def test_packages_know_the_line_that_asks_for_them(default_context: BuildContext) -> None:
    for package, place in default_context.asked.items():
        path, _, line = place.partition(":")
        assert package in (paths.data_root() / path).read_text().splitlines()[int(line) - 1]
    assert {"slurmd", "libucx0", "tini"} <= set(default_context.asked)


def test_diff(cli: Cli, tmp_path: Path) -> None:
    refused = cli("render", "--diff", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (2, "no-build")
    assert listing(tmp_path) == {}
    folder = tmp_path / ".rocstack/debian-13-tcp"
    folder.mkdir(parents=True)
    assert cli("render", "--to", str(folder / "context")).code == 0
    before = listing(tmp_path)
    assert cli("render", "--diff").out == "nothing changed since the last build\n"
    put(tmp_path, "mine/overlay.yml", "ucx_worker_packages_append: [strace]\n")
    ran = cli("render", "--diff", "--overlay", "mine")
    assert ran.code == 0
    added = [line for line in ran.out.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert [line for line in added if "strace" in line]
    assert "--- last build/Dockerfile" in ran.out
    whole: dict[str, Any] = cli("render", "--diff", "--overlay", "mine", "--json").json()
    assert whole == {"schema": 1, "changed": True, "diff": ran.out}
    assert {path: data for path, data in listing(tmp_path).items() if not path.startswith("mine")} == before


def test_diff_is_against_the_base_of_the_last_build(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / ".rocstack/debian-13-tcp"
    folder.mkdir(parents=True)
    base = "rocstack/base:debian-13-0123456789ab"
    cli("render", "--base-image", base, "--to", str(folder / "context"))
    (folder / "report.json").write_text(json.dumps({"base": base}))
    assert cli("render", "--diff").out == "nothing changed since the last build\n"
    (folder / "report.json").write_text("{damaged")
    assert f"-FROM {base} AS base" in cli("render", "--diff").out


def test_diff_of_a_stack_whose_name_looks_like_a_file_name(cli: Cli, tmp_path: Path) -> None:
    """Path('rocm-7.2-ubuntu-24.04').stem is another name."""
    folder = tmp_path / ".rocstack/rocm-7.2-ubuntu-24.04-tcp"
    args = ("render", "--stack", "rocm-7.2-ubuntu-24.04")
    cli(*args, "--to", str(folder / "context"))
    assert cli(*args, "--diff").out == "nothing changed since the last build\n"
