"""The deployed cluster's Slurm, as an ordinary user of it: one allocation that all steps share, and jobs of their own.

Commands run in the controller's container, which every deployed cluster has. Nothing is left behind: `close` cancels
what still is there.
"""

import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json, values_of
from rocstack.deploy.plan import services
from rocstack.edge.ssh import bounded
from rocstack.node import hostlist
from rocstack.verify.evidence import CheckSkipped
from rocstack.verify.parsers import LONGEST
from rocstack.verify.result import BUSY, Skip

USER = "rocstack-verify"  # made by every deploy, with an account and a partition of that name
NAME = "rocstack-verify"  # of jobs, with a word of the run behind it
MARK = "@rocstack "  # before an answer in JSON; libraries print lines of their own
LIMIT = 30  # minutes that a job may take, if nothing else is said
NODES_A_MINUTE = 6  # of an allocation's: what all nodes do together takes longer, the more they are
GRACE = 15.0  # seconds beyond a step's own, for Slurm
TASKS = 4  # that the allocation has room for on a node
OPEN = ("idle", "mix")  # sinfo's words for nodes on which jobs start
TAKEN = ("alloc", "mix", "comp", "resv", "maint", "plnd", "block")  # and for those on which they will
BEGINNING = ("CONFIGURING", "Prolog")  # squeue's words for a job that has its nodes and hasn't begun
TIMEOUT_S = 10.0  # seconds for one to begin, and for one that is cancelled to end
PAUSE = 0.3
MOST_VALUES = 2_000_000  # of all tasks of a step
KILLED = 10.0  # seconds that we wait longer for a command than it may take: the end of it is to be heard
# srun's options for tasks none of which waits for another: that one ends, or its node dies, ends no other.
INDEPENDENT = ("--kill-on-bad-exit=0", "--wait=0", "--no-kill")
TOGETHER = ("--kill-on-bad-exit=1", "--wait=10")  # seconds after the first that ended, however it did
# Python and other tools read what is in the working folder and at home, and in /tmp everybody can put something there.
FOLDER = "/"
_PIECE = 1024  # bytes: longer lines travel in such pieces, between which those of other tasks may come


@dataclass(frozen=True)
class StepOutput:
    """What a step said."""

    code: int
    out: str
    err: str

    @property
    def answers(self) -> list[Any]:
        """Those of its tasks, in no order; without one that was cut off as its task was killed."""
        answers = []
        if values_of(self.out) > MOST_VALUES:
            return []
        for line in self.out.split("\n"):
            with suppress(ValueError):
                answers.append(from_json(line.partition(MARK)[2]))
        return [answer for answer in answers if answer is not None]

    @property
    def said(self) -> str:
        """For a person: the end of what it printed."""
        lines = [line for line in f"{self.out}\n{self.err}".splitlines() if line.strip() and MARK not in line]
        return "\n".join(line[:LONGEST] for line in lines[-12:])

    def expect(self, what: str) -> list[Any]:
        """The answers.

        Raises:
            CheckFailed: no task gave one.
        """
        if answers := self.answers:
            return answers
        why = self.said or "it said nothing"
        raise CheckFailed.of("step-unanswered", step=what, code=self.code, why=why)


@dataclass
class SlurmSession:
    """`wait` is how many seconds a job may wait for its turn. With `gpus` the allocation takes so many on each node,
    and the node for itself; it lasts `minutes`."""

    control: Host
    user: str = USER
    wait: float = 300
    gpus: int = 0
    name: str = field(default_factory=lambda: f"{NAME}-{secrets.token_hex(3)}")  # of this run's jobs
    minutes: int = LIMIT
    _job: str = ""
    _order: tuple[str, ...] = ()  # of all nodes, as Slurm has them
    _nodes: tuple[str, ...] = ()  # that were got, now or before
    _busy: str = ""
    _until: float = 0.0

    @property
    def left(self) -> float:
        """Seconds that the allocation still lasts."""
        return self._until - time.monotonic() if self._job else 0.0

    def run(self, *command: str, seconds: float = 60, env: Mapping[str, str] | None = None) -> CommandResult:
        """As the user, in the controller's container."""
        words = [f"--user={self.user}", f"--env=HOME=/home/{self.user}"]
        words += [f"--env={name}={value}" for name, value in (env or {}).items()]
        return self.admin(*command, seconds=seconds, options=words)

    def admin(self, *command: str, seconds: float = 60, options: Iterable[str] = ()) -> CommandResult:
        """As root there: for what an ordinary user can't make, such as a QoS. `options` are those of docker exec."""
        line = [f"--workdir={FOLDER}", *options, services.CONTROL, *bounded(seconds), *command]
        return self.control.run(shlex.join(["docker", "exec", *line]), seconds=seconds + KILLED)

    def allocate(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The nodes that were got, and for which steps can run from now on; those busy for longer than `wait` are left
        out. Once: later calls give the same ones, but for those that died; an allocation that was lost, as it was
        preempted or its time was up, is taken again.

        Raises:
            CheckSkipped: others' jobs are on all of them.
            CheckFailed: none was got.
        """
        self.kept(nodes)
        if self._job:
            return self._nodes
        if self._busy:
            raise CheckSkipped(self._busy, Skip(kind="busy"))
        nodes = self._in([name for name in nodes if name in self._nodes], (*OPEN, *TAKEN)) or nodes
        refusal = self._salloc(nodes, self.wait)
        if not self._job and len(nodes) > 1:
            free = self._free(nodes)
            refusal = self._salloc(free, 15) if free else refusal
        if self._job:
            return self._nodes
        taken = any(state.rstrip("*-+$@~#!%^") in TAKEN for state, _ in self.states(nodes).values())
        if "timed out" in refusal and taken and not self._free(nodes):
            waited = f"{self.wait / 60:.0f} min" if self.wait >= 60 else f"{self.wait:.0f} s"
            self._busy = f"{BUSY} (waited {waited})"
            raise CheckSkipped(self._busy, Skip(kind="busy"))
        raise CheckFailed.of("no-allocation", user=self.user, seconds=self.wait, why=refusal)

    def kept(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Of these, the ones that the allocation still has: none died, and it is not taken again."""
        if not self._job:
            return ()
        listed = self.run("squeue", "--all", "--noheader", f"--jobs={self._job}", "--states=running", "--format=%N")
        names = hostlist.expand(listed.stdout.strip()) if listed.stdout.strip() else ()
        if listed.rc == 0 and names:
            self._nodes = tuple(name for name in self._nodes if name in names)
        elif listed.rc == 0 or "Invalid job id" in listed.stderr:
            self._job = ""
        return tuple(name for name in nodes if self._job and name in self._nodes)

    def step(
        self,
        *command: str,
        nodes: Sequence[str] = (),
        tasks: int = 1,
        seconds: float = 120,
        env: Mapping[str, str] | None = None,
        options: Iterable[str] = (),
        independent: bool = False,
    ) -> StepOutput:
        """A step on `nodes` (default: all that are allocated), `tasks` on each. Call `allocate` first. `independent`
        tasks don't wait for each other; otherwise all end when one fails, and 10 s after the first that is through."""
        chosen = tuple(nodes) or self._nodes
        words = ["srun", f"--jobid={self._job}", "--overlap", f"--chdir={FOLDER}", f"--nodes={len(chosen)}"]
        words += [f"--nodelist={','.join(chosen)}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1"]
        together = INDEPENDENT if independent else TOGETHER
        # Slurm's own default where there are more tasks than nodes; by it `heard` knows whose a task is.
        words += ["--distribution=block"] if tasks > 1 else []
        words += [*together, "--quit-on-interrupt", "--input=none", "--label", *options]
        # Not --export: a value may hold a comma.
        words += ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        done = self.run(*words, *command, seconds=seconds + GRACE)
        return self.heard(done, chosen, tasks)

    def heard(self, done: CommandResult, nodes: Sequence[str], tasks: int = 1) -> StepOutput:
        """Of an srun with --label and `tasks` on each of these nodes: an answer counts as its own node's only."""
        if MARK in done.stdout and not self._order:
            words = ("sh", "-c", "scontrol --all --oneliner show nodes | cut -d' ' -f1")
            listed = self.admin(*words).stdout.split()
            self._order = tuple(word.removeprefix("NodeName=") for word in listed)
        place = {name: number for number, name in enumerate(self._order)}
        # Tasks are numbered along Slurm's table of nodes, whatever the order of --nodelist.
        nodes = sorted(nodes, key=lambda name: place.get(name, len(place)))
        places = [name for name in nodes for _ in range(tasks)]
        return StepOutput(done.rc, _whole(done.stdout, places), _whole(done.stderr, places))

    def python(self, program: Path, *arguments: str, **more: Any) -> StepOutput:
        """A program of ours as a step: its source travels in the command line, so nothing is left on a node."""
        return self.step("python3", "-c", program.read_text(encoding="utf-8"), *arguments, **more)

    def submit(self, script: str, *options: str) -> str:
        """A batch job; its number.

        Raises:
            CheckFailed: it was refused.
        """
        words = [f"--time={LIMIT}", f"--chdir={FOLDER}", "--output=/dev/null", *options, f"--wrap={script}"]
        done = self.run("sbatch", "--parsable", *self._named(), *words)
        if done.rc:
            raise CheckFailed.of("job-refused", why=done.stderr.strip() or "no reason given")
        return str(done.stdout).strip().partition(";")[0]

    def release(self) -> None:
        """Gives the allocation back: others are to have the nodes."""
        self.cancel(self._job)
        self._job = ""

    def close(self) -> None:
        """All jobs of this run end."""
        self.cancel(*self.jobs_named(self.name))
        self._job = ""

    def heal(self) -> None:
        """Ends what a run left that was killed. Whoever calls this has the cluster's turn, so it is nobody's."""
        left = self.jobs_named(NAME)
        self.cancel(*left)
        deadline = time.monotonic() + 3 * TIMEOUT_S
        while left and self.jobs_named(NAME) and time.monotonic() < deadline:
            time.sleep(PAUSE)

    def cancel(self, *jobs: str) -> None:
        """But none that is about to begin, if that doesn't last: Slurm may drain the node as one that can't end it."""
        numbers = [job for job in jobs if job]
        if not numbers:
            return
        words = ["squeue", "--all", "--noheader", f"--jobs={','.join(numbers)}", "--format=%T|%r"]
        deadline = time.monotonic() + TIMEOUT_S
        while any(word in self.run(*words).stdout for word in BEGINNING) and time.monotonic() < deadline:
            time.sleep(PAUSE)
        self.run("scancel", *numbers)

    def jobs_named(self, name: str) -> list[str]:
        """The user's jobs of this name, or that begin with it."""
        listed = self.run("squeue", "--all", "--noheader", f"--user={self.user}", "--format=%i|%j").stdout
        rows = (line.strip().partition("|") for line in listed.splitlines())
        return [number for number, _, called in rows if called == name or called.startswith(f"{name}-")]

    def _salloc(self, nodes: Sequence[str], wait: float) -> str:
        """Sets the job if it was got; else why not."""
        minutes = self.minutes + len(nodes) // NODES_A_MINUTE
        words = [f"--time={minutes}", f"--immediate={max(wait, 1):.0f}", "--no-kill"]  # as one of its nodes dies
        words += [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--ntasks-per-node={TASKS}"]
        words += ["--exclusive", f"--gres=gpu:{self.gpus}"] if self.gpus else []
        done = self.run("salloc", "--no-shell", *self._named(), *words, seconds=wait + 30)
        granted = re.search(r"Granted job allocation (\d+)", done.stderr)
        if granted and done.rc == 0:
            self._job, self._nodes = granted[1], tuple(nodes)
            self._until = time.monotonic() + 60 * minutes
            return ""
        lines = [line for line in done.stderr.strip().splitlines() if "Pending job" not in line]
        return lines[-1] if lines else "no reason given"

    @property
    def partition(self) -> str:
        """The one that deploy makes for the suite, with all nodes; another user goes where users go."""
        return NAME if self.user == USER else ""

    def _named(self) -> list[str]:
        return [f"--job-name={self.name}", *([f"--partition={self.partition}"] if self.partition else [])]

    def states(self, nodes: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Node -> sinfo's word for its state, and how many of its CPUs are free."""
        done = self.run("sinfo", "--all", "--noheader", "--Node", "--format=%N %t %C", f"--nodes={','.join(nodes)}")
        rows = (line.split() for line in done.stdout.splitlines())
        # CPUs are allocated/idle/other/all.
        return {row[0]: (row[1], int(row[2].split("/")[1])) for row in rows if len(row) == 3}

    def _free(self, nodes: Sequence[str]) -> list[str]:
        """Those on which a job of the suite could start now; with GPUs it takes the node for itself."""
        return self._in(nodes, OPEN[:1] if self.gpus else OPEN, TASKS)

    def _in(self, nodes: Sequence[str], states: Sequence[str], cpus: int = 0) -> list[str]:
        """Those in one of these states, of which so many CPUs are free."""
        now = self.states(nodes) if nodes else {}
        return [name for name in nodes if name in now and now[name][0] in states and now[name][1] >= cpus]


def _whole(labelled: str, places: Sequence[str]) -> str:
    """The lines of all tasks without their labels, each in one piece again; without answers in another node's name.
    `places`: each task's node. Only the newline parts lines here: srun puts a label behind no other."""
    pieced, begun = list[tuple[str, list[str]]](), dict[str, list[str]]()
    for line in labelled.removesuffix("\n").split("\n"):
        match = re.match(r" *([0-9]{1,9}): (.*)", line)
        task, piece = match.groups() if match else ("", line)
        begun.setdefault(task, []).append(piece)
        if not match or len(piece.encode()) != _PIECE:
            pieced.append((task, begun.pop(task)))
    lines, strange = list[str](), dict[str, None]()
    for task, pieces in (*pieced, *begun.items()):
        text = "".join(pieces)
        if _is_own(text, places[int(task)] if task and int(task) < len(places) else ""):
            lines.append(text)
        else:
            strange[f"task {task or 'unknown'} answered in another node's name: that is left out"] = None
    return "\n".join([*lines, *strange])


def _is_own(line: str, node: str) -> bool:
    """An answer of the node itself, or none. One that was cut off is none."""
    try:
        answer = from_json(line.partition(MARK)[2])
    except ValueError:
        return True
    return answer is None or (isinstance(answer, dict) and answer.get("node") == node != "")
