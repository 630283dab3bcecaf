"""What root and jobs in our containers may do, with the flags that a deploy and `rocstack run` give them."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_containers import PRIVILEGES
from workspace import REPO, Built, engine

from rocstack.cluster.cgroup import SECCOMP, cgroup_flags
from rocstack.container.host import Device, Host
from rocstack.container.run_line import run_line

pytestmark = pytest.mark.engine

# Each system call of x86-64 by its number, since libc may do something of its own first.
CALLS = """
import ctypes, errno, os, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *words):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    code = libc.syscall(ctypes.c_long(number), *words)
    print(name, "ok" if code >= 0 else errno.errorcode[ctypes.get_errno()])
    return code
"""
TRY = """
class Piece(ctypes.Structure): _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]
theirs, mine = ctypes.create_string_buffer(b"their memory"), ctypes.create_string_buffer(12)
child = os.fork()
if not child: time.sleep(60); os._exit(0)
ctypes.memset(theirs, 0, 12)
at, to = (Piece(ctypes.addressof(each), 12) for each in (theirs, mine))
call("cma", 310, child, ctypes.byref(to), 1, ctypes.byref(at), 1, 0)
print("read", mine.raw.decode())
os.kill(child, 9)
call("set_mempolicy", 238, 0, 0, 0)
call("mbind", 237, 0, 0, 0, 0, 0, 0)
call("mount", 165, b"none", b"/mnt", b"tmpfs", 0, 0)
call("unshare", 272, 0x20000)
call("mknod", 133, b"/tmp/disk", 0o60600, 0x800)
call("bpf", 321, 5, 0, 0)
call("inet", 41, 2, 1, 0)
call("vsock", 41, 40 | 1 << 32, 1, 0)
status = [line.split() for line in open("/proc/self/status")]
print(*(word for words in status if words[0] in ("NoNewPrivs:", "Seccomp:") for word in words))
"""
# A program for devices that says yes (r0 = 1; exit), loaded and attached to a new cgroup, as Slurm does for each job.
DEVICE_PROGRAM = """
import struct
code = struct.pack("<BBhi", 0xb7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)
text, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
load = struct.pack("<IIQQIIQ", 15, 2, ctypes.addressof(text), ctypes.addressof(licence), 0, 0, 0).ljust(128, b"\\0")
program = call("load", 321, 5, load, len(load))
os.mkdir("/cgroup/rocstack-test-job")
try:
    folder = os.open("/cgroup/rocstack-test-job", os.O_RDONLY)
    attach = struct.pack("<IIII", folder, max(program, 0), 6, 0).ljust(128, b"\\0")
    call("attach", 321, 8, attach, len(attach))
finally:
    os.rmdir("/cgroup/rocstack-test-job")
"""


def said(image: str, flags: list[str], script: str) -> list[str]:
    line = ("run", "--rm", "--network=none", *flags, "--entrypoint=python3", image, "-c", CALLS + script)
    return engine(*line).stdout.splitlines()


def cgroups(version: int) -> list[str]:
    flags = cgroup_flags("privileges", version, True)
    rights = [flag for flag in flags if not flag.startswith(("--volume", "--cgroup-parent"))]
    return [flag.replace(SECCOMP, str(REPO / "images/seccomp.json")) for flag in rights]


def gpu_node() -> list[str]:
    """The line of a node with GPUs, as far as this machine can have it."""
    device = Device(path="/dev/kfd", gid=0, mode=0o666)
    line = run_line(Host(kfd=device, render=(device,)), "image")
    return [flag for flag in line.flags if flag.startswith(("--cap", "--security"))]


@pytest.mark.parametrize("more", [[], cgroups(1), cgroups(2)], ids=["gpus", "cgroup-v1", "cgroup-v2"])
def test_jobs_have_what_they_need_and_root_no_way_out(built: Built, more: list[str]) -> None:
    """Reading another rank's memory and binding memory work; no mount, no namespace, no device node."""
    lines = said(built.worker, [*gpu_node(), *more], TRY)
    if more:  # the kernel reads 32 bits of what an engine's own filter compares whole
        assert "vsock EPERM" in lines
    assert [line for line in lines if "vsock" not in line] == [
        "cma ok",
        "read their memory",
        "set_mempolicy ok",
        "mbind ok",
        "mount EPERM",
        "unshare EPERM",
        "mknod EPERM",
        f"bpf {'E2BIG' if '--cap-add=BPF' in more else 'EPERM'}",
        "inet ok",
        "NoNewPrivs: 1 Seccomp: 2",
    ]


def test_devices_of_version_2_need_no_administrator(built: Built) -> None:
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    folder = next((words[1] for words in mounts if words[2] == "cgroup2"), None)
    if folder is None:
        pytest.skip("no cgroup2 is mounted here")
    flags = [*PRIVILEGES["worker"], *cgroups(2), f"--volume={folder}:/cgroup"]
    assert said(built.worker, flags, DEVICE_PROGRAM) == ["load ok", "attach ok"]
    load = DEVICE_PROGRAM.replace('call("attach"', '0 and call("attach"')
    for needed in ("--cap-add=BPF", "--cap-add=NET_ADMIN"):
        assert said(built.worker, [flag for flag in flags if flag != needed], load) == ["load EPERM"]


@pytest.mark.parametrize("role", ["worker", "control"])
def test_no_program_gives_more_rights(built: Built, role: str) -> None:
    script = "find / -xdev -type f -perm /6000; getcap -r / 2>/dev/null; echo looked"
    done = engine("run", "--rm", "--network=none", "--entrypoint=sh", getattr(built, role), "-c", script)
    assert done.stdout.split() == ["looked"]


def test_a_user_stays_who_he_is(built: Built) -> None:
    """Even where somebody makes a set-uid program later."""
    script = """
        cp /usr/bin/id /usr/bin/setpriv /tmp && chmod 4755 /tmp/id /tmp/setpriv
        as() { setpriv --reuid=2000 --regid=2000 --clear-groups "$@"; }
        as /tmp/id -u  # the effective one
        as /tmp/setpriv --reuid=0 id -u 2>/dev/null || echo refused
    """
    line = ("run", "--rm", "--network=none", *PRIVILEGES["worker"], "--entrypoint=bash", built.worker, "-c", script)
    assert engine(*line).stdout.split() == ["2000", "refused"]
