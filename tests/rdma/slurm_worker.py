"""Slurm on one of the machines: its controller, and a worker that Docker starts with the flags of a deploy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import Machine, Outcome
from rootfs import inspect

from rocstack.cluster import cgroup, slurm_files
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_node import Gres, SlurmNodeConfig
from rocstack.container.environment import Environment
from rocstack.container.host import Host
from rocstack.container.run_line import run_line
from rocstack.deploy.plan import services

NAME = "w1"
UID = 2000
GPUS = ("/dev/zero", "/dev/full")  # who may open them is what counts
SETTINGS = {
    "cgroup": "v2",
    "users": {"alice": {"uid": UID}},
    "health": {"every": "infinite"},  # it would take longer than it may, on an emulated CPU
}
WITHOUT_DATABASE = """\
{% block accounting %}
{% endblock %}
{% block security %}
AuthType=auth/munge
CredType=cred/munge
{% endblock %}
"""
# The image is small, since Docker copies it: its programs are the machine's own, mounted.
ENGINE = """
    [ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
    mkdir -p /image/{dev,proc,sys,run,tmp,usr,opt,var/lib,var/log,root} /sys/fs/cgroup/other
    chmod 1777 /image/tmp
    for name in bin sbin lib lib64; do ln -s usr/$name /image/$name; done
    cp -a /etc /image && cp -a /var/lib/slurm /var/lib/munge /image/var/lib
    setsid dockerd --storage-driver=vfs --bridge=none --iptables=false --ip6tables=false \
        >/run/dockerd.log 2>&1 </dev/null &
    until docker info >/dev/null 2>&1; do sleep 0.2; done
"""
CONTROLLER = """
    head -c 128 /dev/urandom >/etc/rocstack/keys/munge.key
    install -d -o munge -g munge /run/munge /etc/munge /var/log/munge /var/lib/munge
    install -o munge -g munge -m 0400 /etc/rocstack/keys/munge.key /etc/munge/munge.key
    setpriv --reuid=munge --regid=munge --clear-groups munged
    install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld
    ln -s slurmctld-wlm /usr/sbin/slurmctld  # its name says what it is
"""
START = """
    setsid setpriv --reuid=slurm --regid=slurm --clear-groups --inh-caps=+net_bind_service \
        --ambient-caps=+net_bind_service slurmctld -D >>/run/slurmctld.log 2>&1 </dev/null &
    until timeout 5 sinfo; do sleep 0.2; done
"""
STOP = """
    docker rm --force {name}
    kill $(cat /run/docker.pid /var/lib/slurm/slurmctld.pid /run/munge/munged.pid)
    grep -v ^alice: /etc/passwd >/run/passwd && cp /run/passwd /etc/passwd
"""


@dataclass(frozen=True)
class Worker:
    """It is up, and has no job."""

    machine: Machine

    def job(self, asked: str, *program: str) -> Outcome:
        """Of somebody who is not root."""
        user = f"setpriv --reuid={UID} --regid={UID} --clear-groups"
        return self.machine.try_run(f"cd /tmp && {user} srun {asked} {shlex.join(program)}", 120)

    def batch(self, asked: str, script: str) -> str:
        """The number of a job that runs."""
        user = f"setpriv --reuid={UID} --regid={UID} --clear-groups"
        line = f"sbatch --parsable --chdir=/tmp --output=/dev/null {asked} --wrap {shlex.quote(script)}"
        job = self.machine.run(f"cd /tmp && {user} {line}").strip()
        self.machine.run(f"until squeue -h -j {job} -o %T | grep -qx RUNNING; do sleep 0.2; done")
        return job

    def ended(self, job: str) -> None:
        self.machine.run(f"while squeue -h -j {job} -o %T | grep .; do sleep 0.2; done", 120)

    def restart_controller(self) -> None:
        file = "/var/lib/slurm/slurmctld.pid"
        self.machine.run(f"kill $(cat {file}); while kill -0 $(cat {file}) 2>/dev/null; do sleep 0.2; done" + START)

    def jump(self, hours: int) -> None:
        """Of the machine's clock, which all on it have in common."""
        self.machine.run(f"date --set=@$(($(date +%s) + {3600 * hours}))")

    def root(self, script: str) -> str:
        return self.machine.run(f"docker exec {services.WORKER} bash -c {shlex.quote(script)}")

    def ready(self) -> None:
        """Says what it said, where it doesn't come up."""
        done = self.machine.try_run("until sinfo -h -p train -o %T | grep -qx idle; do sleep 0.2; done", 180)
        if done.code:
            said = self.machine.try_run(
                f"docker logs {services.WORKER}; tail -n 20 /run/slurmctld.log /run/dockerd.log"
            )
            raise AssertionError(f"the worker is not idle: {said.said[-6000:]}")

    def restart(self) -> None:
        self.machine.run(f"docker restart --time=5 {services.WORKER}")
        self.machine.run(
            f"until docker logs --since=1m {services.WORKER} 2>&1 | grep -q 'slurmd started on'; do sleep 0.2; done"
        )
        self.ready()


@contextmanager
def worker(machine: Machine, image: str, folder: Path) -> Iterator[Worker]:
    """`folder` is for the settings' overlay."""
    (folder / "slurm").mkdir()
    (folder / "slurm/slurm.conf.j2").write_text(WITHOUT_DATABASE)
    gres = (Gres("fake", len(GPUS), ",".join(GPUS)),)
    node = SlurmNodeConfig(NAME, "127.0.0.1", 2, 600, (1, 2, 1), gres, cgroup=2, cgroup_writable=True)
    settings = ClusterSettings.model_validate(SETTINGS)
    control = slurm_files.Control(machine.name, "127.0.0.1")
    files = slurm_files.files(settings, control, [node], password="not-so-secret-1234", overlay=folder)
    machine.run(f"mkdir -p {services.SLURM} /etc/slurm {services.CLUSTER} {services.KEYS}")
    for name in ("slurm.conf", "gres.conf", "cgroup.conf", "mpi.conf"):
        machine.write(f"/etc/slurm/{name}", files.texts[name])
    machine.write(f"{services.CLUSTER}/users", settings.user_lines())
    machine.write(cgroup.SECCOMP, cgroup.seccomp_profile().decode())
    machine.run(ENGINE, 180)
    try:
        machine.run(f"echo alice:x:{UID}:{UID}::/tmp:/bin/bash >>/etc/passwd" + CONTROLLER + START)
        driver = machine.run("docker info --format '{{.CgroupDriver}}'").strip()
        config = inspect(image)
        changes = [f"--change=ENV {variable}" for variable in config["Env"]]
        changes.append(f"--change=ENTRYPOINT {json.dumps(config['Entrypoint'])}")
        machine.run(f"tar -C /image -c . | docker import {shlex.join(changes)} - worker")
        # The gate takes longer than Slurm waits for it, on an emulated CPU.
        line = run_line(Host(), "worker", stays=True, env=Environment(("--env=ROCSTACK_GATE=off",)))
        flags = cgroup.cgroup_flags(NAME, 2, True, driver=driver)
        spec = services.worker(NAME, "worker", line.flags, control.address, flags, " ".join(GPUS))
        programs = "--volume=/usr:/usr:ro --volume=/opt:/opt:ro"
        machine.run(f"docker run --detach --name={spec.name} {shlex.join(spec.args)} {programs} worker")
        up = Worker(machine)
        up.ready()
        yield up
    finally:
        machine.try_run(STOP.format(name=services.WORKER))
