"""The files by which enroot starts an image, run by a shell."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from rocstack.container.rootfs import copy_tree, start_files

CONFIG = {"Entrypoint": ["/bin/echo", "it's"], "Cmd": ["a b", "$HOME"], "Env": ["A=b c", "NO", "TWO=x\ny"]}


@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        (CONFIG, (), "it's a b $HOME\n"),
        (CONFIG, ("c", "d e"), "it's c d e\n"),
        ({"Cmd": ["/bin/echo", "alone"]}, (), "alone\n"),
        ({"Entrypoint": None, "WorkingDir": "/usr/bin"}, ("pwd",), "/usr/bin\n"),
        ({}, ("-c",), None),
    ],
)
def test_rc(tmp_path: Path, config: dict[str, object], given: tuple[str, ...], said: str | None) -> None:
    rc = tmp_path / "rc"
    rc.write_bytes(start_files(config)["etc/rc"])
    done = subprocess.run(["/bin/sh", rc, *given], capture_output=True, text=True)
    assert (done.stdout if done.returncode == 0 else None) == said


def test_environment_has_one_variable_a_line() -> None:
    assert start_files(CONFIG)["etc/environment"] == b"A=b c\n"


def test_a_folder_of_any_name_is_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "a b; touch x"
    rc = tmp_path / "rc"
    rc.write_bytes(start_files({"WorkingDir": str(folder), "Cmd": ["pwd"]})["etc/rc"])
    done = subprocess.run(["/bin/sh", rc], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"{folder}\n"


def test_the_tree_has_no_devices_and_our_files_once() -> None:
    source, target = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=source, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("./etc/rc", b"old"), ("dev/null", b""), (".dockerenv", b""), ("usr/ü", b"12345")):
            member = tarfile.TarInfo(name)
            member.size, member.uid, member.mode = len(data), 64030, 0o4711
            member.pax_headers = {"SCHILY.xattr.user.x": "kept"}
            tar.addfile(member, io.BytesIO(data))
    data = source.getvalue()
    assert copy_tree((data[at : at + 999] for at in range(0, len(data), 999)), target, CONFIG, 7) == 5
    target.seek(0)
    with tarfile.open(fileobj=target) as tar:
        found = {member.name: member for member in tar}
    assert sorted(found) == ["etc/environment", "etc/fstab", "etc/rc", "etc/rc.local", "usr/ü"]
    kept = found["usr/ü"]
    assert (kept.uid, kept.mode, kept.pax_headers["SCHILY.xattr.user.x"]) == (64030, 0o4711, "kept")
    assert found["etc/rc"].mtime == 7
