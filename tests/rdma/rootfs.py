"""What a machine starts from: the worker image's files as a disk, and a kernel with a small ramdisk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".rocstack/cache/soft-roce"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

SSHD_CONFIG = """\
HostKey /machine/key
AuthorizedKeysFile /machine/key.pub
PermitRootLogin prohibit-password
UsePAM no
Subsystem sftp internal-sftp
SetEnv {environment}
"""
SSH_CONFIG = """\
Host n1 n2
    IdentityFile /machine/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""
HOSTS = "127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n"


@dataclass(frozen=True)
class Boot:
    """Files that machines start from; `key` is for ssh, and good for this run only."""

    kernel: Path
    ramdisk: Path
    disk: Path
    key: Path


def prepare(image: str, folder: Path) -> Boot:
    """Makes all of it in `folder`. 15 s, and as long again for the kernel when it isn't in the cache."""
    labels = inspect(image)["Labels"]
    archive = parts(image, labels["io.rocstack.base.digest"])
    with tarfile.open(archive) as tar:
        for name in ("kernel", "initramfs"):
            tar.extract(f"./{name}", folder, filter="data")
    machine = folder / "machine"
    write_machine(image, machine)
    disk = folder / "disk.img"
    container = run("docker", "create", image).stdout.strip()
    try:
        as_root = [] if os.geteuid() == 0 else ["fakeroot"]
        run(*as_root, str(HERE / "disk.sh"), container, str(archive), str(machine), str(disk))
    finally:
        run("docker", "rm", "--force", container)
    return Boot(kernel=folder / "kernel", ramdisk=folder / "initramfs", disk=disk, key=machine / "key")


def parts(image: str, base: str) -> Path:
    """Kernel, ramdisk, modules and sshd as a tar, fetched once for a base image."""
    scripts = [HERE / "guest/parts.sh", HERE / "guest/ramdisk-init"]
    key = hashlib.sha256(base.encode() + b"".join(file.read_bytes() for file in scripts)).hexdigest()[:16]
    archive = CACHE / f"{key}.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        proxies = [f"--env={name}" for name in PROXIES if name in os.environ]
        mount = f"--volume={HERE / 'guest'}:/guest:ro"
        with partial.open("wb") as out:
            run("docker", "run", "--rm", *proxies, mount, "--entrypoint=/guest/parts.sh", image, stdout=out)
        partial.rename(archive)
    return archive


def write_machine(image: str, folder: Path) -> None:
    """The folder /machine: process 1, the settings of ssh, and what the tests run inside."""
    folder.mkdir()
    for file in (HERE / "guest/init", HERE / "guest/allreduce.py"):
        shutil.copy(file, folder)
    environment = " ".join(f'"{variable}"' for variable in inspect(image)["Env"])
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(environment=environment))
    (folder / "ssh_config").write_text(SSH_CONFIG)
    (folder / "hosts").write_text(HOSTS)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))


def inspect(image: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(run("docker", "image", "inspect", image).stdout)[0]["Config"]
    return config


def run(*command: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr[-2000:]}"
    return done
