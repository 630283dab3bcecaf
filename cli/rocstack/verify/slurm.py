"""The deployed cluster's Slurm, as an ordinary user of it: one allocation that all steps share, and jobs of their own.

Commands run in the controller's container, which every deployed cluster has. Nothing is left behind: `close` cancels
what still is there.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.deploy import services
from rocstack.errors import CheckFailed

USER = "rocstack-verify"  # made by every deploy, with an account and a partition of that name
NAME = "rocstack-verify"  # of jobs, with a word of the run behind it
MARK = "@rocstack "  # before an answer in JSON; libraries print lines of their own
LIMIT = 30  # minutes that a job may take, if nothing else is said
GRACE = 15.0  # seconds beyond a step's own, for Slurm
TASKS = 4  # that the allocation has room for on a node
OPEN = ("idle", "mix")  # sinfo's words for nodes on which jobs start
_PIECE = 1024  # bytes: longer lines travel in such pieces, between which those of other tasks may come


@dataclass(frozen=True)
class Step:
    """What a step said. `answers` are those of its tasks, in no order."""

    code: int
    out: str
    err: str

    @property
    def answers(self) -> list[Any]:
        lines = (line.partition(MARK) for line in self.out.splitlines())
        return [json.loads(text) for _, mark, text in lines if mark]

    @property
    def said(self) -> str:
        """For a person: the end of what it printed."""
        lines = [line for line in f"{self.out}\n{self.err}".splitlines() if line.strip() and MARK not in line]
        return "\n".join(lines[-12:])

    def expect(self, what: str) -> Step:
        """
        Raises:
            CheckFailed: it ended with another status than 0.
        """
        if self.code == 0:
            return self
        raise CheckFailed(f"{what} ended with {self.code}: {self.said or 'it said nothing'}", code="step-failed")


@dataclass
class Slurm:
    """`wait` is how many seconds a job may wait for its turn. With `gpus` the allocation takes so many on each node,
    and the node for itself; it lasts `minutes`."""

    control: Host
    user: str = USER
    wait: float = 300
    gpus: int = 0
    name: str = field(default_factory=lambda: f"{NAME}-{secrets.token_hex(3)}")  # of this run's jobs
    minutes: int = LIMIT
    _job: str = ""
    _nodes: tuple[str, ...] = ()

    def run(self, *command: str, seconds: float = 60, env: Mapping[str, str] | None = None) -> CommandResult:
        """As the user, in the controller's container."""
        words = ["docker", "exec", f"--user={self.user}", "--workdir=/tmp", "--env=HOME=/tmp"]
        words += [f"--env={name}={value}" for name, value in (env or {}).items()]
        return self.control.run(shlex.join([*words, services.CONTROL, *command]), seconds=seconds)

    def admin(self, *command: str, seconds: float = 60) -> CommandResult:
        """As root there: for what an ordinary user can't make, such as a QoS."""
        return self.control.run(shlex.join(["docker", "exec", services.CONTROL, *command]), seconds=seconds)

    def allocate(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The nodes that were got, and for which steps can run from now on; those busy for longer than `wait` are left
        out. Once: later calls give the same ones.

        Raises:
            CheckFailed: none was got.
        """
        if self._job:
            return self._nodes
        said = self._salloc(nodes, self.wait)
        if not self._job and len(nodes) > 1:
            free = self._free(nodes)
            said = self._salloc(free, 15) if free else said
        if not self._job:
            raise CheckFailed(
                f"Slurm gave no nodes to the user {self.user} within {self.wait:.0f} s: {said}",
                code="no-allocation",
                cause="the cluster is busy, or the user has no account: it is made by `rocstack deploy`",
                next_step="wait longer (--wait 2h), or name another user (--user)",
            )
        return self._nodes

    def step(
        self,
        *command: str,
        nodes: Sequence[str] = (),
        tasks: int = 1,
        seconds: float = 120,
        env: Mapping[str, str] | None = None,
        options: Iterable[str] = (),
    ) -> Step:
        """A step on `nodes` (default: all that are allocated), `tasks` on each. `allocate` must have been called."""
        chosen = tuple(nodes) or self._nodes
        words = ["srun", f"--jobid={self._job}", "--overlap", "--chdir=/tmp", f"--nodes={len(chosen)}"]
        words += [f"--nodelist={','.join(chosen)}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1"]
        words += ["--kill-on-bad-exit=1", "--wait=10", "--quit-on-interrupt", "--input=none", "--label", *options]
        # Not --export: a value may hold a comma.
        more = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        done = self.run(*words, *more, *command, seconds=seconds + GRACE)
        return Step(done.rc, _whole(done.stdout), _whole(done.stderr))

    def python(self, program: Path, *arguments: str, **more: Any) -> Step:
        """A program of ours as a step: its source travels in the command line, so nothing is left on a node."""
        return self.step("python3", "-c", program.read_text(encoding="utf-8"), *arguments, **more)

    def submit(self, script: str, *options: str) -> str:
        """A batch job; its number.

        Raises:
            CheckFailed: it was refused.
        """
        words = [
            "sbatch",
            "--parsable",
            f"--job-name={self.name}",
            f"--time={LIMIT}",
            "--chdir=/tmp",
            "--output=/dev/null",
        ]
        words += [f"--partition={self.partition}"] if self.partition else []
        done = self.run(*words, *options, f"--wrap={script}")
        if done.rc:
            raise CheckFailed(f"sbatch: {done.stderr.strip() or 'no reason given'}", code="step-failed")
        return str(done.stdout).strip().partition(";")[0]

    def release(self) -> None:
        """Gives the allocation back: others are to have the nodes."""
        if self._job:
            self.run("scancel", self._job)
        self._job, self._nodes = "", ()

    def close(self) -> None:
        """All jobs of this run end."""
        self.run("scancel", f"--user={self.user}", f"--name={self.name}")
        self._job, self._nodes = "", ()

    def _salloc(self, nodes: Sequence[str], wait: float) -> str:
        """Sets the job if it was got; else why not."""
        words = [
            "salloc",
            "--no-shell",
            f"--job-name={self.name}",
            f"--time={self.minutes}",
            f"--immediate={max(wait, 1):.0f}",
        ]
        words += [f"--partition={self.partition}"] if self.partition else []
        words += [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--ntasks-per-node={TASKS}"]
        words += ["--exclusive", f"--gres=gpu:{self.gpus}"] if self.gpus else []
        done = self.run(*words, seconds=wait + 30)
        found = re.search(r"Granted job allocation (\d+)", done.stderr)
        if found and done.rc == 0:
            self._job, self._nodes = found[1], tuple(nodes)
            return ""
        lines = [line for line in done.stderr.strip().splitlines() if "Pending job" not in line]
        return lines[-1] if lines else "no reason given"

    @property
    def partition(self) -> str:
        """The one that deploy makes for the suite, with all nodes; another user goes where users go."""
        return NAME if self.user == USER else ""

    def states(self, nodes: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Node -> sinfo's word for its state, and how many of its CPUs are free."""
        done = self.run("sinfo", "--all", "--noheader", "--Node", "--format=%N %t %C", f"--nodes={','.join(nodes)}")
        rows = (line.split() for line in done.stdout.splitlines())
        # CPUs are allocated/idle/other/all.
        return {row[0]: (row[1], int(row[2].split("/")[1])) for row in rows if len(row) == 3}

    def _free(self, nodes: Sequence[str]) -> list[str]:
        now = self.states(nodes)
        return [name for name in nodes if name in now and now[name][0] in OPEN and now[name][1] >= TASKS]


def _whole(labelled: str) -> str:
    """The lines of all tasks without their labels, each in one piece again."""
    lines, begun = [], dict[str, str]()
    for line in labelled.splitlines():
        found = re.match(r" *(\d+): (.*)", line)
        if not found:
            lines.append(line)
            continue
        task, piece = found.groups()
        text = begun.pop(task, "") + piece
        if len(piece.encode()) == _PIECE:
            begun[task] = text
        else:
            lines.append(text)
    return "\n".join([*lines, *begun.values()])
