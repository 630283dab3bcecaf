"""The cluster that is disturbed: two virtual nodes, two releases, two jobs, and what is compared afterwards."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rocstack.virtual import cluster_layout
from rocstack.virtual.access import INVENTORY

CLI = Path(__file__).resolve().parents[2] / "cli"
LOCAL = ".rocstack/local"
NODES = ("n1", "n2")  # n1 is the control node, and both are workers
RELEASES = {"A": "1h", "B": "2h"}  # the longest job: a line of slurm.conf
AT_ONCE = ("--canary", "1", "--wave", "100%", "--failures", "2")
DISK = 12 << 30  # bytes, at most: each node's disk is a file that grows
ANSWER = 60.0  # seconds for a command on a node
IDLE = 90.0  # seconds for a node to take jobs again
JOBS = 300.0  # seconds for jobs to end: Slurm lets one that it has requeued wait for two minutes
# What a node is, in one line of JSON. Times and ids that differ between two equal runs are left out.
_LOOK = r"""
import glob, hashlib, json, os, subprocess, time

def docker(*words):
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode()

def inspect(kind, names):
    return json.loads(docker(kind, "inspect", *names) or "[]") if names else []

def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()[:16]

end = time.time() + 60
while "health: starting" in docker("ps") and time.time() < end:
    time.sleep(0.5)
ours = docker("ps", "--all", "--format", "{{.Names}}").split()
containers = {}
for row in inspect("container", ours):
    row["Config"].pop("Hostname", None)
    row["Config"]["Env"].sort()  # the engine gives them in any order
    row["HostConfig"]["Binds"] = sorted(row["HostConfig"]["Binds"] or [])
    health = (row["State"].get("Health") or {}).get("Status", "none")
    containers[row["Name"][1:]] = {
        "image": row["Image"], "args": row["Args"], "config": row["Config"], "host": row["HostConfig"],
        "state": row["State"]["Status"], "health": health,
    }
images = sorted(docker("image", "ls", "--quiet", "--no-trunc", "--filter", "label=io.rocstack.role").split())
files = {p: digest(p) for p in sorted(glob.glob("/etc/rocstack/**", recursive=True)) if os.path.isfile(p)}
state = json.load(open("/var/lib/rocstack/node.json"))
left = [p for p in glob.glob("/var/lib/rocstack/under-way") + glob.glob("/var/lib/rocstack/*.new")]
left += [p for f in ("/tmp", "/dev/shm", "/root/.ansible/tmp") for p in glob.glob(f + "/*") + glob.glob(f + "/.[a-z]*")]
left = [p for p in left if "/runc-process" not in p]  # the engine's own, of a moment
worker = "docker exec rocstack-worker sha256sum /run/slurm/conf/slurm.conf"
conf = subprocess.run(worker.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()[:16]
print(json.dumps({"containers": containers, "images": images, "files": files, "node.json": state, "left": left,
                  "slurm.conf": conf}))
"""


def pids(name: str) -> str:
    """A shell's line that prints the processes of this name, those in containers too; a node has no pidof, and
    Debian's slurmctld calls itself slurmctld-wlm."""
    return f"grep -lsxE '{name}(-wlm)?' /proc/[0-9]*/comm | cut -d / -f 3"


def run(*command: str | Path, check: bool = True, seconds: float = ANSWER * 10, **options: Any) -> str:
    words = [str(word) for word in command]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=seconds, **options
    )
    if check and done.returncode:
        raise RuntimeError(f"{shlex.join(words)} failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


class Cluster:
    """Made, with release A on it, by `start`, and gone after `close`."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder.resolve(), prefix
        self.release = "A"
        self.images: dict[str, str] = {}
        self.loops: dict[str, str] = {}
        self.gate = ""
        own = {"TMPDIR": self.folder / "tmp", "ANSIBLE_HOME": self.folder / "tmp/ansible", "PYTHONPATH": CLI}
        self.env = {**os.environ, "ROCSTACK_IMAGE_PREFIX": prefix, **{name: str(path) for name, path in own.items()}}
        self.name = cluster_layout.name(prefix, cluster_layout.cluster_id(self.folder / LOCAL))
        self.reference: dict[str, dict[str, Any]] = {}
        self._seen: tuple[tuple[int, int], dict[str, Any]] = (0, 0), {}  # the journal, and which file it was

    # The nodes

    def start(self) -> None:
        for name in ("tmp", "shm"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        worker = f"{self.prefix}/worker:debian-13-tcp"
        for release in RELEASES:
            self.images[release] = f"{self.prefix}/worker:{self.name.rpartition('-')[2]}-{release.lower()}"
            # Random bytes of its own: a layer that takes a while, and that no cache has.
            lines = f"FROM {worker}\nRUN head -c 16000000 /dev/urandom >/opt/{secrets.token_hex(4)}\n"
            run("docker", "build", "--quiet", "--tag", self.images[release], "-", input=lines)
        for node in NODES:
            self._disk(node)
        self.rocstack("local", "up", "--nodes", str(len(NODES)))
        self.undisturbed()

    def undisturbed(self) -> None:
        """Deploys both releases; how the nodes are then is what every disturbed deploy has to come to."""
        for release in ("A", "B", "A"):
            self.prepare(release)
            out, err, code = self.ended(self.deploy(release))
            if code:
                raise RuntimeError(f"the undisturbed deploy failed: {err[-2000:]}{out[-2000:]}")
            if not self.idle():
                raise RuntimeError(f"not idle after an undisturbed deploy: {self._states()}")
            self.reference[release] = self.look()
            self.release = release

    def close(self) -> None:
        self.rocstack("local", "down", check=False)
        for file in self.loops.values():
            run("losetup", "--detach", file, check=False)
        for node in NODES:
            (self.folder / f"{node}.img").unlink(missing_ok=True)
        for image in self.images.values():
            run("docker", "rmi", image, check=False)

    def _disk(self, node: str) -> None:
        """A disk of its own, which can be full. `local up` takes a volume that is there already."""
        file, name = self.folder / f"{node}.img", f"{self.name}-{node}"
        with file.open("wb") as image:
            image.truncate(DISK)
        run("mkfs.ext4", "-q", "-m", "0", file)
        self.loops[node] = run("losetup", "--find", "--show", file).strip()
        labels = ["--label", f"{cluster_layout.LABEL}={self.name.rpartition('-')[2]}"]
        labels += ["--label", f"{cluster_layout.LABEL}.node={node}"]
        options = ["--driver", "local", "--opt", "type=ext4", "--opt", f"device={self.loops[node]}"]
        run("docker", "volume", "create", *options, *labels, name)

    def on(self, node: str, script: str, check: bool = True, **options: Any) -> str:
        """As root on a node, by its container: no network is needed."""
        return run("docker", "exec", "-i", f"{self.name}-{node}", "sh", "-c", script, check=check, **options)

    def slurm(self, command: str, check: bool = True) -> str:
        return self.on("n1", f"docker exec rocstack-control {command}", check)

    def address(self, node: str) -> str:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{.Gateway}}{{end}}"
        return run("docker", "inspect", "--format", form, f"{self.name}-{node}").strip()

    def received(self, node: str) -> int:
        """Bytes."""
        return int(self.on(node, "awk '/eno1:/ { sub(/.*:/, \"\"); print $1 }' /proc/net/dev"))

    # Commands

    def rocstack(self, *words: str, check: bool = True) -> str:
        return run(sys.executable, "-m", "rocstack.cli.main", *words, check=check, cwd=self.folder, env=self.env)

    def deploy(self, release: str, *words: str) -> subprocess.Popen[str]:
        """A process in a session of its own, with a /dev/shm of its own: what is left there is ours."""
        image = () if "--resume" in words else ("--image", self.images[release])
        rocstack = [sys.executable, "-m", "rocstack.cli.main", "deploy", f"{LOCAL}/{INVENTORY}", "--json"]
        own = 'mount --bind "$0" /dev/shm && exec "$@"'
        line = [
            "env",
            "--default-signal=INT",
            "unshare",
            "--mount",
            "sh",
            "-c",
            own,
            str(self.folder / "shm"),
            *rocstack,
            *image,
            *AT_ONCE,
            *words,
        ]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(line, cwd=self.folder, env=self.env, text=True, start_new_session=True, **streams)

    def ended(self, process: subprocess.Popen[str], seconds: float = 900) -> tuple[str, str, int]:
        """Standard output, error, exit code."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return out, f"{err}\nno end within {seconds:.0f} s", -999
        return out, err, process.returncode

    def prepare(self, release: str, missing: str = "") -> None:
        """Whatever brings `release` has to bring its image, too. On node `missing` no worker is there."""
        partition = {"train": {"default": True, "max_time": RELEASES[release]}}
        settings = {"health": {"drain": False}, "partitions": partition}
        (self.folder / "rocstack.yml").write_text(json.dumps({"cluster": settings}))
        for node in NODES:
            if node == missing:
                self.on(node, "docker rm --force rocstack-worker")
            ident = run("docker", "image", "inspect", "--format", "{{.Id}}", self.images[release]).strip()
            used = self.on(
                node, "docker ps --all --format '{{.Names}}' | xargs -r docker inspect --format '{{.Image}}'"
            )
            if ident not in used:
                self.on(node, f"docker image rm --force {ident}", check=False)

    def journal(self) -> dict[str, Any]:
        """As it is now; empty while the control node is away. Cheap to ask again and again."""
        file = Path(f"/var/lib/docker/volumes/{self.name}-n1/_data/var/lib/rocstack/deploy.json")
        with suppress(OSError, ValueError):
            state = file.stat()
            if (state.st_ino, state.st_mtime_ns) != self._seen[0]:
                self._seen = (state.st_ino, state.st_mtime_ns), json.loads(file.read_text())
            return self._seen[1]
        return {}

    # Jobs

    def submit(self) -> list[str]:
        """One that runs on n2 until the gate is open, and one that waits for both nodes."""
        self.gate = secrets.token_hex(4)
        wait = f"until [ -e /tmp/{self.gate} ]; do sleep 0.2; done"
        lines = (f"--nodelist=n2 --wrap {shlex.quote(wait)}", "--nodes=2 --exclusive --wrap 'srun hostname'")
        submit = "sbatch --parsable --chdir=/tmp --output=/dev/null --time=30"
        jobs = [self.slurm(f"{submit} {line}").strip() for line in lines]
        until(lambda: self.slurm(f"squeue --noheader --format=%T --jobs={jobs[0]}").strip() == "RUNNING", 60)
        return jobs

    def open_gate(self) -> None:
        """Past the node's engine, which may be frozen."""
        self.on("n2", f"for pid in $({pids('slurmd')}); do touch /proc/$pid/root/tmp/{self.gate}; done", check=False)

    def job_states(self, jobs: list[str]) -> dict[str, str]:
        """Waits for their end; as accounting has them."""
        states: dict[str, str] = {}

        def over() -> bool:
            self.open_gate()
            form = "--noheader --parsable2 --allocations --format=JobID,State"
            rows = self.slurm(f"sacct {form} --jobs={','.join(jobs)}", check=False).split()
            states.update((row.split("|")[0], row.split("|")[1]) for row in rows)
            return len(states) == len(jobs) and not {"PENDING", "RUNNING", "REQUEUED"} & {*states.values()}

        with suppress(TimeoutError):
            until(over, JOBS, 1.0)
        return {job: states.get(job, "unknown") for job in jobs}

    # What is compared

    def idle(self) -> bool:
        """Whether both nodes take jobs before long, or Slurm itself has drained one: that lasts."""
        with suppress(TimeoutError):
            until(lambda: {*self._states().values()} == {"idle none"} or self.drained_by_slurm(), IDLE)
        return {*self._states().values()} == {"idle none"}

    def drained_by_slurm(self) -> dict[str, str]:
        """Node -> why."""
        rows = {node: text.partition(" ")[::2] for node, text in self._states().items()}
        return {node: why for node, (state, why) in rows.items() if "drain" in state and not why.startswith("rocstack")}

    def _states(self) -> dict[str, str]:
        lines = self.slurm("sinfo --noheader --Node --format='%N %T %E'", check=False).splitlines()
        return {node: text for node, _, text in (line.strip().partition(" ") for line in lines)}

    def look(self) -> dict[str, Any]:
        """Everything a deploy makes of the nodes."""
        found = {node: json.loads(self.on(node, "python3 -", input=_LOOK)) for node in NODES}
        last = (self.journal().get("releases") or [{}])[-1]
        images = {key: last.get("images", {}).get(key) for key in ("worker_id", "control_id")}
        return {
            **found,
            "journal": {"open": bool(self.journal().get("current")), "healthy": last.get("healthy"), **images},
        }

    def status(self) -> list[str]:
        """What `rocstack status` finds, but for notes."""
        text = self.rocstack("status", f"{LOCAL}/{INVENTORY}", "--json", check=False)
        rows = json.loads(text)["findings"]
        return [f"status: {row['node']} {row['code']}" for row in rows if row["level"] != "note"]

    def left_here(self) -> tuple[list[str], list[str]]:
        """What a deploy left on this machine: keys and processes; and temporary files without any."""
        tokens = _secrets((self.folder / LOCAL / "rocstack-secrets.yml").read_text())
        paths = [path for name in ("shm", "tmp") for path in (self.folder / name).rglob("*") if path.is_file()]
        keys = [path for path in paths if "shm" in path.parts or any(word in path.read_bytes() for word in tokens)]
        found = [f"keys are left: {path.relative_to(self.folder)}" for path in keys]
        files = [f"left: {path.relative_to(self.folder)}" for path in paths if path not in keys]
        mark = f"TMPDIR={self.folder / 'tmp'}".encode()
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                line = file.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line and mark in file.read_bytes() and "[mux]" not in line and int(file.parent.name) != os.getpid():
                    found.append(f"runs still: {line[:120]}")
        return found, files

    def sweep(self) -> None:
        """Takes away what was left, for the next to be judged by itself."""
        for name in ("shm", "tmp"):
            run("find", self.folder / name, "-mindepth", "1", "-delete", check=False)
        for node in NODES:
            self.on(node, "find /tmp /root/.ansible/tmp -mindepth 1 -delete 2>/dev/null", check=False)


def _secrets(text: str) -> list[bytes]:
    """Each key, line by line, and the head of the file in which nodes' specifications, with keys, go to Ansible."""
    keys = {name: str(value) for name, value in yaml.safe_load(text).items() if name != "registry_ca"}
    lines = [line.encode() for value in keys.values() for line in value.splitlines() if not line.startswith("-----")]
    return [*lines, b'{"node_specs": {']


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            yield from differences(found.get(key), wanted.get(key), f"{where}/{key}" if where else key)
    elif found != wanted:
        yield f"{where}: {found!r}, undisturbed {wanted!r}"


def until(true: Callable[[], object], seconds: float, pause: float = 0.3) -> None:
    """
    Raises:
        TimeoutError: it isn't so in time.
    """
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(pause)
