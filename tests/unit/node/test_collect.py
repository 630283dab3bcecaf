"""The collector: what it brings, what it leaves, and what it says it could not read."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rocstack.node import collect as collecting
from rocstack.node import collect_commands, recording
from rocstack.node.collect import collect
from rocstack.node.parse import parse
from rocstack.node.recording import RecordedAnswer, Recording

NODE = Path(recording.__file__).parent
PORT = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/infiniband/bnxt_re0/ports/1"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000\n"


def tree(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


def gid_table(root: Path, rows: dict[int, str], length: int = 256) -> Path:
    files = {f"{PORT}/gids/{row}": rows.get(row, ZERO) for row in range(length)}
    files |= {f"{PORT}/gid_attrs/types/{row}": "RoCE v2\n" for row in rows}
    return tree(root, files, {"sys/class/infiniband/bnxt_re0": "../../devices/" + PORT[12:-8]})


def test_gid_rows_up_to_the_last_in_use(tmp_path: Path) -> None:
    used = {0: "fe80:0000:0000:0000:0200:00ff:fe00:0001\n", 3: "0000:0000:0000:0000:0000:ffff:0a00:0001\n"}
    files = collect(str(gid_table(tmp_path, used)))["files"]
    assert {path.rpartition("/")[2] for path in files if "/gids/" in path} == {"0", "1", "2", "3"}
    assert {path.rpartition("/")[2] for path in files if "/types/" in path} == {"0", "3"}


@pytest.mark.parametrize("code", ["EINVAL", "ENODEV", "EOPNOTSUPP", "ENOENT"])
def test_what_the_kernel_has_no_answer_for_is_no_failure(code: str, tmp_path: Path, failing: Any) -> None:
    tree(tmp_path, {"sys/class/net/eth0/speed": "", "sys/class/net/eth0/mtu": "1500\n"})
    failing("speed", code)
    found = collect(str(tmp_path))
    assert found["unread"] == {}
    assert list(found["files"].values()) == ["1500\n"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reading of files of one name fails like this."""
    import builtins
    import errno

    def fail(name: str, code: str) -> None:
        real = builtins.open

        def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).endswith("/" + name):
                number = getattr(errno, code)
                raise OSError(number, os.strerror(number))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(builtins, "open", opened)

    return fail


@pytest.mark.parametrize(
    ("code", "uid", "why"),
    [
        ("EACCES", 1000, "permission denied: needs root"),
        ("EPERM", 1000, "permission denied: needs root"),
        ("EACCES", 0, "permission denied"),
        ("EIO", 0, "Input/output error"),
    ],
)
def test_unread_with_the_reason(
    code: str, uid: int, why: str, tmp_path: Path, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"proc/cmdline": "quiet\n", "proc/version": "Linux\n"})
    failing("cmdline", code)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    found = collect(str(tmp_path))
    assert found["unread"] == {"/proc/cmdline": why}
    assert found["files"] == {"/proc/version": "Linux\n"}


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def listed(path: str) -> list[str]:
        if path.endswith("/dev/infiniband"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    found = collect(str(tree(tmp_path, {"dev/infiniband/uverbs0": ""})))
    assert found["unread"]["/dev/infiniband"].startswith("permission denied")


def test_nothing_there_is_nothing_wrong(tmp_path: Path) -> None:
    found = collect(str(tmp_path))
    assert found == {**Recording().to_dict(), "folders": []}
    assert parse(Recording.from_dict(found)).unread == ()


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tree(tmp_path, {"sys/class/net/eth0/mtu": "1500\n"})), b"sys/class/net/\xff\xfe")
    os.mkdir(folder)
    Path(os.fsdecode(folder), "mtu").write_text("9000\n")
    profile = parse(Recording.from_dict(json.loads(json.dumps(collect(str(tmp_path))))))
    assert {netdev.name: netdev.mtu for netdev in profile.netdevs} == {"eth0": 1500, "??": 9000}


def test_pipes_sockets_and_loops_hold_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/cmdline")
    tree(tmp_path, {}, {"etc/os-release": "group", "etc/group": "os-release"})
    found = collect(str(tmp_path))
    assert found["files"] == {}
    assert found["unread"] == {}


def test_links_stay_below_the_root(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"usr/lib/os-release": "ID=inside\n"},
        {"etc/os-release": "/usr/lib/os-release", "etc/group": "../../../../../../../../etc/group"},
    )
    found = collect(str(tmp_path))
    assert found["files"] == {"/usr/lib/os-release": "ID=inside\n"}
    assert found["links"]["/etc/os-release"] == "/usr/lib/os-release"


def test_only_the_lines_that_are_needed(tmp_path: Path) -> None:
    group = "root:x:0:\nvideo:x:44:alice\nrender:x:109:\nalice:x:1000:\n"
    release = 'PRETTY_NAME="Debian"\nHOME_URL="https://example.org/"\nID=debian\n'
    found = collect(str(tree(tmp_path, {"etc/group": group, "etc/os-release": release})))
    assert found["files"]["/etc/group"] == "video:x:44:alice\nrender:x:109:\n"
    assert "example.org" not in found["files"]["/etc/os-release"]


def test_only_functions_that_matter_and_the_bridges_above_them(tmp_path: Path) -> None:
    bridge, nic, disk = "pci0000:00/0000:00:01.0", "0000:01:00.0", "0000:02:00.0"
    files = {f"sys/devices/{bridge}/{name}": text for name, text in (("vendor", "0x1022"), ("class", "0x060400"))}
    for address, kind in ((nic, "0x020000"), (disk, "0x010802")):
        files |= {f"sys/devices/{bridge}/{address}/vendor": "0x14e4", f"sys/devices/{bridge}/{address}/class": kind}
    links = {f"sys/bus/pci/devices/{address}": f"../../../devices/{bridge}/{address}" for address in (nic, disk)}
    found = collect(str(tree(tmp_path, files, links)))
    assert f"/sys/devices/{bridge}/class" in found["files"]
    assert not [path for path in (*found["files"], *found["links"]) if disk in path]


def test_libraries_by_all_their_places_once(tmp_path: Path) -> None:
    lib = "usr/lib/x86_64-linux-gnu"
    files = {
        f"{lib}/libibverbs.so.1.14.56.1": "verbs",
        f"{lib}/libmlx5.so.1.25.56.1": "mlx5",
        f"{lib}/libibverbs/libbnxt_re-rdmav34.so": "inbox",
        f"{lib}/libibverbs/libefa-rdmav34.so": "not asked for",
        "usr/local/lib/libbnxt_re-rdmav34.so": "vendor",
        "usr/lib64/libibverbs/libionic-rdmav59.so": "x" * (collecting.LARGEST_LIBRARY + 1),
    }
    links = {
        f"{lib}/libibverbs.so.1": "libibverbs.so.1.14.56.1",
        f"{lib}/libibverbs/libmlx5-rdmav34.so": "../libmlx5.so.1.25.56.1",
        "usr/local/lib/libbnxt_re.so": "libbnxt_re-rdmav34.so",
        "usr/local/lib/libbnxt_re-235.2.86.0.so": "libbnxt_re.so",
    }
    rec = Recording.from_dict(collect(str(tree(tmp_path, files, links))))
    assert sorted(data.decode() for data in rec.blobs.values()) == ["inbox", "mlx5", "vendor", "verbs"]
    versions = {item.path: item.version for item in parse(rec).libraries if item.driver == "bnxt_re"}
    assert versions == {
        f"/{lib}/libibverbs/libbnxt_re-rdmav34.so": None,
        "/usr/local/lib/libbnxt_re-rdmav34.so": "235.2.86.0",
    }
    assert rec.unread == {"/usr/lib64/libibverbs/libionic-rdmav59.so": "larger than 4 MiB"}
    assert not collect(str(tmp_path), libraries=False)["blobs"]


def test_a_virtual_nodes_own_words(tmp_path: Path) -> None:
    ours = "sys/devices/virtual/rocstack"
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    files = {
        f"{ours}/model": "mi300x-thor2\n",
        f"{ours}/root/proc/cmdline": "iommu=pt\n",
        f"{ours}/root/proc/net/route": head + "rdma0\t0064A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        f"{ours}/root/proc/1/limits": f"{'Max locked memory':26}unlimited            unlimited            bytes\n",
        f"{ours}/commands/ethtool -i rdma0": "driver: bnxt_en\nversion: 235\n",
        f"{ours}/commands/ip -o -4 addr": "9: rdma0    inet 192.168.100.11/24\n",
        "proc/cmdline": "quiet\n",
        "proc/net/route": head + "eth0\t00000000\t010010AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
        "run/docker.pid": "12\n",
        "proc/12/limits": f"{'Max locked memory':26}8388608              8388608              bytes\n",
    }
    profile = parse(Recording.from_dict(collect(str(tree(tmp_path, files)))))
    assert profile.virtual == "mi300x-thor2"
    assert profile.system.cmdline == "iommu=pt"
    assert [route.netdev for route in profile.routes] == ["eth0", "rdma0"]  # the real network and the model's
    assert [address.netdev for address in profile.addresses] == ["rdma0"]
    assert profile.limits == {"memlock": -1}


def test_a_models_addresses_are_added_to_the_machines_own(tmp_path: Path) -> None:
    ours = "sys/devices/virtual/rocstack/commands"
    tree(tmp_path, {f"{ours}/ip -o -4 addr": "9: rdma0    inet 192.168.100.11/24\n", f"{ours}/uname -m": "sparc\n"})
    node = collecting._Node(str(tmp_path))
    node.commands = {"ip -o -4 addr": {"code": 0, "out": "2: eth0    inet 172.16.0.2/16\n"}, "uname -m": {}}
    node.read_ours()
    assert node.commands["ip -o -4 addr"]["out"].splitlines() == [
        "2: eth0    inet 172.16.0.2/16",
        "9: rdma0    inet 192.168.100.11/24",
    ]
    assert node.commands["uname -m"]["out"] == "sparc\n"


def test_this_machine() -> None:
    """Whatever it has: nobody raises, the words agree with other tools', and nothing was changed."""
    found = collect()
    rec = Recording.from_dict(json.loads(json.dumps(found)))
    assert {**found, "blobs": {}} == {**rec.to_dict(), "blobs": {}}
    profile = parse(rec)
    assert profile.name == os.uname().nodename
    assert profile.system.kernel == os.uname().release
    assert profile.system.cpus == os.cpu_count()
    assert abs((profile.system.clock or 0) - time.time()) < 60
    assert {netdev.name for netdev in profile.netdevs} | {"lo"} >= {
        name for name in os.listdir("/sys/class/net") if not name.startswith("veth") and name != "bonding_masters"
    }
    assert profile.virtual is None


def test_addresses_are_those_of_ip() -> None:
    try:
        done = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no ip here to compare with")
    words = [line.split() for line in done.stdout.splitlines()]
    expected = sorted((row[1], row[3]) for row in words if not row[1].startswith("lo") and row[2] == "inet")
    known = parse(Recording.from_dict(collect(libraries=False))).addresses
    assert sorted((item.netdev, item.address) for item in known) == expected


def test_what_is_no_address_is_left_out() -> None:
    """Slurm would take it for a name, and wait for the name service."""
    words = ("10.0.0.300/24", "....../8", "10.0.0.7/99", "10.0.0.7.8/24", "10.0.0.7/16")
    rec = Recording.from_dict(collect(libraries=False))
    rec.commands["ip -o -4 addr"] = RecordedAnswer(0, "".join(f"2: eth0    inet {word}\n" for word in words))
    assert [each.address for each in parse(rec).addresses] == ["10.0.0.7/16"]


def test_without_programs_the_kernel_still_answers() -> None:
    found = collect(run=False, libraries=False)["commands"]
    assert set(found) >= {"uname -m", "date +%s.%N", "ip -o -4 addr"}
    assert not set(found) & set(collect_commands.COMMANDS)


def test_a_program_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "slurmd"
    program.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(collect_commands, "PROGRAM_FOLDERS", f"{tmp_path}:{collect_commands.PROGRAM_FOLDERS}")
    monkeypatch.setattr(collect_commands, "TIMEOUT_S", 0.2)
    assert collect_commands.run_command("slurmd -V") == (None, "no answer within 0.2 s")


def test_a_program_that_fails_or_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nicctl").write_text("#!/nowhere/sh\n")
    (tmp_path / "slurmd").write_text("#!/bin/sh\nprintf 'no \\377 here' >&2; exit 3\n")
    for name in ("nicctl", "slurmd"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(collect_commands, "PROGRAM_FOLDERS", f"{tmp_path}:{collect_commands.PROGRAM_FOLDERS}")
    assert collect_commands.run_command("nothing-of-this-name --version") == (None, "")
    assert collect_commands.run_command("nicctl version") == (None, "No such file or directory")
    assert collect_commands.run_command("slurmd -V") == ({"code": 3, "out": "no \ufffd here"}, "")


def test_it_changes_nothing(tmp_path: Path) -> None:
    gid_table(tmp_path, {0: "fe80:0000:0000:0000:0200:00ff:fe00:0001\n"}, length=4)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    collect(str(tmp_path))
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("file", sorted(NODE.glob("*.py")), ids=lambda file: file.name)
def test_the_package_is_python_3_8_and_needs_nothing(file: Path) -> None:
    """Syntax, and what it imports: the standard library and itself."""
    module = ast.parse(file.read_text(), feature_version=(3, 8))
    future = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future or file.name == "__init__.py"
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= set(sys.stdlib_module_names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names
        assert not isinstance(node, ast.Match)


def test_no_generic_is_made_at_run_time() -> None:
    """`Counter[str]()` or `tuple[int, ...]` outside of annotations fail before Python 3.9, `X | None` before 3.10."""
    types = {
        "tuple",
        "list",
        "dict",
        "set",
        "frozenset",
        "type",
        "Counter",
        "Callable",
        "Mapping",
        "Sequence",
        "Iterator",
    }
    for file in NODE.glob("*.py"):
        module = ast.parse(file.read_text())
        annotations = {
            id(part)
            for node in ast.walk(module)
            for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
            if note is not None
            for part in ast.walk(note)
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and id(node) not in annotations:
                assert node.value.id not in types, f"{file.name}:{node.lineno}"
