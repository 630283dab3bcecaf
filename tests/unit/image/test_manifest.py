"""The build's own Python: what is in an image and how large each part is, and what dpkg's rules leave out."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstack.base import paths

MANIFEST, PRUNE = (str(paths.images() / name) for name in ("check/manifest.py", "build/prune_tree.py"))
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12

Package: tini
Status: install ok installed
Version: 0.19.0-3
Description: tiny init
 a long text, with Depends: nothing

Package: slurmd
Status: install ok installed
Version: 24.11.5-4
Pre-Depends: init-system-helpers (>= 1.54)
Depends: libc6 (>= 2.38), libpmix-any | other, munge:any

Package: libpmix2
Status: install ok installed
Source: pmix
Version: 5.0.7-1
Provides: libpmix-any (= 5), libpmix.so.2
Depends: libc6

Package: munge
Status: hold ok installed
Source: munge (0.5.15-1)
Version: 0.5.16
Depends: libc6, gone

Package: removed
Status: deinstall ok config-files
Version: 1

Package: never-there
Status: purge ok not-installed
Priority: optional
"""
BASE = STATUS[: STATUS.index("Package: tini")]
FACTS = {
    "identity": {"stack": "debian-13", "role": "worker"},
    "packages": {"system": ["tini"], "slurm": ["slurmd"], "pmix": ["libpmix2"], "nic": []},
    "prefixes": {"ucx": "/opt/ucx/"},
    "site_packages": "/usr/local/lib/python3.13/dist-packages",
    "wheels": {"torch": "pytorch"},
}
SITE = FACTS["site_packages"]


def put(root: Path, path: str, data: str | int) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x" * data if isinstance(data, int) else data)
    return file


def lay_out(folder: Path) -> None:
    """A finished tree, the base it came from, the trainer's files, and what the smoke test wrote."""
    root = folder / "root"
    put(root, "/var/lib/dpkg/status", STATUS)
    put(folder / "base", "/var/lib/dpkg/status", BASE)
    files = {
        "libc6:amd64": {"/lib/x86_64-linux-gnu/libc.so.6": 1000},
        "tini": {"/usr/bin/tini": 10},
        "slurmd": {"/usr/sbin/slurmd": 2000, "/usr/share/doc/slurmd/copyright": None},
        "libpmix2": {"/usr/lib/libpmix.so.2": 300},
        "munge": {"/usr/bin/munge": 40, "/usr/lib/python3/dist-packages/m.py": 7},
    }
    for package, listed in files.items():
        put(root, f"/var/lib/dpkg/info/{package}.list", "/.\n/usr\n" + "".join(f"{path}\n" for path in listed))
        for path, size in listed.items():
            if size:
                put(root, path.replace("/lib/x86", "/usr/lib/x86"), size)
    (root / "lib").symlink_to("usr/lib")
    put(root, "/usr/lib/python3/dist-packages/__pycache__/m.cpython-313.pyc", 3)
    put(root, "/opt/ucx/lib/libucp.so.0", 500)
    (root / "opt/ucx/lib/libucp.so").symlink_to("libucp.so.0")
    os.link(root / "opt/ucx/lib/libucp.so.0", root / "opt/ucx/lib/hardlink")
    put(root, "/etc/own", 5)
    for name, size in (("torch", 4000), ("Py_Arrow.x", 600)):
        put(root, f"{SITE}/{name}/a.so", size)
        record = f"{name}/a.so,sha256=x,{size}\n{name}-1.2.dist-info/RECORD,,\n../../bin/{name},,\n"
        put(root, f"{SITE}/{name}-1.2.dist-info/RECORD", record)
    put(folder / "extra", f"{SITE}/rocstack_trainer/train.py", 70)
    put(
        folder / "smoke",
        "slurm.tsv",
        "ok\tslurm\tslurmd starts\nskipped\tslurm\tno GPU\nversion\tslurm\t24.11.5\n",
    )
    put(folder / "smoke", "below/slurm.tsv", "ok\tslurm\tslurmd starts\n")  # tested twice
    put(folder / "smoke", "rdma.tsv", "fact\trdma\tverbs.private-abi=34=x\nok\trdma\ta\nok\trdma\tb\tc\n")
    put(folder, "facts.json", json.dumps(FACTS))


def manifest(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    out = folder / "out/etc/rocstack/manifest.json"
    args = ["--root", "root", "--base", "base", "--facts", "facts.json", "--smoke", "smoke", "--out", str(out)]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["manifest.py", *args, *more])
    runpy.run_path(MANIFEST, run_name="__main__")
    return dict(json.loads(out.read_text()))


def test_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    found = manifest(tmp_path, monkeypatch, "--extra", "extra")
    assert {key: found[key] for key in ("stack", "role")} == FACTS["identity"]
    assert found["sources"] == {"libpmix2": "pmix", "munge": "munge@0.5.15-1"}
    assert found["packages"] == {
        "libc6": "2.41-12",
        "libpmix2": "5.0.7-1",
        "munge": "0.5.16",
        "slurmd": "24.11.5-4",
        "tini": "0.19.0-3",
    }
    assert found["wheels"] == {"py-arrow-x": "1.2", "torch": "1.2"}
    assert found["versions"] == {"slurm": "24.11.5"}
    assert found["facts"] == {"verbs.private-abi": "34=x"}
    assert found["smoke"] == {
        "rdma": {"ok": ["a", "b\tc"], "skipped": []},
        "slurm": {"ok": ["slurmd starts"], "skipped": ["no GPU"]},
    }


def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    size = manifest(tmp_path, monkeypatch, "--extra", "extra")["size"]
    components = size["components"]
    assert {name: components[name] for name in ("system", "slurm", "pytorch", "ucx")} == {
        "system": 10,
        "slurm": 2000 + 300 + 40 + 7 + 3,  # its libraries by Depends and Provides, munge's byte code
        "pytorch": 4000 + len("torch/a.so,sha256=x,4000\ntorch-1.2.dist-info/RECORD,,\n../../bin/torch,,\n"),
        "ucx": 500,  # a hard link counts once, a symbolic link not at all
    }
    assert "pmix" not in components  # the first component that needs a package has it
    assert components["trainer"] == 70 + 600 + len(
        "Py_Arrow.x/a.so,sha256=x,600\nPy_Arrow.x-1.2.dist-info/RECORD,,\n../../bin/Py_Arrow.x,,\n"
    )
    infos = [
        (Path(folder) / name).lstat()
        for tree in ("root", "extra")
        for folder, _, names in os.walk(tmp_path / tree)
        for name in names
        if not (Path(folder) / name).is_symlink()
    ]
    real = sum({info.st_ino: info.st_size for info in infos}.values())
    assert size["bytes"] == sum(components.values())
    assert size["bytes"] == real
    assert list(components.values()) == sorted(components.values(), reverse=True)
    assert list(size["largest_packages"])[:2] == ["torch (wheel)", "slurmd"]
    assert size["largest_packages"]["libc6"] == 1000  # listed in /lib, lies in /usr/lib
    assert len(size["largest_files"]) <= 10
    assert next(iter(size["largest_files"])) == f"{SITE}/torch/a.so"


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order the file system lists names in: equal sizes are in the order of their names."""
    lay_out(tmp_path)
    for number in (3, 1, 2):
        put(tmp_path, f"root/opt/same/{number}", 9000)
    found = [manifest(tmp_path, monkeypatch)]
    real = os.scandir

    class Backwards:
        def __init__(self, folder: str) -> None:
            with real(folder) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Backwards)
    found.append(manifest(tmp_path, monkeypatch))
    assert json.dumps(found[0]) == json.dumps(found[1])
    assert list(found[0]["size"]["largest_files"])[:3] == [f"/opt/same/{number}" for number in (1, 2, 3)]


def test_without_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    whole = manifest(tmp_path, monkeypatch, "--extra", "extra")["size"]["bytes"]
    assert manifest(tmp_path, monkeypatch)["size"]["bytes"] == whole - 70


MAN, LIB, TEXT = "usr/share/man/a.1", "usr/lib/x.so", "usr/share/doc.txt"
COPY, DEEP = "usr/share/doc/a/copyright", "usr/share/doc/a/sub/x"


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        (["path-exclude=/usr/share/doc/*"], {MAN, LIB, TEXT}),
        (["path-exclude=/usr/*", "path-include=/usr/lib/*"], {LIB}),
        (["path-include=/usr/lib/*", "path-exclude=/usr/*"], set()),
        (["path-exclude=/usr/share/*/?.1", "# path-exclude=/*", "nonsense", ""], {LIB, TEXT, COPY, DEEP}),
        (["path-exclude=/usr/share/doc/a/sub/*"], {MAN, LIB, TEXT, COPY}),
        (["path-exclude=/USR/*"], {MAN, LIB, TEXT, COPY, DEEP}),
    ],
)
def test_prune_tree(
    rules: list[str],
    left: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "root"
    every = (MAN, LIB, TEXT, COPY, DEEP)
    for path in every:
        put(root, path, 500_000)
    put(tmp_path, "rules", "\n".join(rules) + "\n")
    monkeypatch.setattr(sys, "argv", ["prune_tree.py", str(tmp_path / "rules"), str(root)])
    runpy.run_path(PRUNE, run_name="__main__")
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} == left
    assert not [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert root.is_dir()
    gone = len(every) - len(left)
    assert capsys.readouterr().out == f"pruned {gone} files, {gone * 0.5:.0f} MB\n"


def test_prune_tree_removes_links_and_not_what_they_point_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = put(tmp_path, "kept/file", 10)
    link = tmp_path / "root/usr/share/doc/link"
    link.parent.mkdir(parents=True)
    link.symlink_to(kept)
    put(tmp_path, "rules", "path-exclude=/usr/share/doc/*\n")
    monkeypatch.setattr(sys, "argv", ["prune_tree.py", str(tmp_path / "rules"), str(tmp_path / "root")])
    runpy.run_path(PRUNE, run_name="__main__")
    assert kept.exists()
    assert not list((tmp_path / "root").iterdir())
