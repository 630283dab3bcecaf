"""programs/mpi.py on all nodes: one step, if all goes well. What hangs or doesn't start is found out, and the rest is
run without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.edge.ssh import FAILED
from rocstack.node import hostlist

PROGRAMS = Path(__file__).parents[1] / "programs"
TASKS = 2  # ranks on a node
PARTS = ("ring", "links", "collectives")
SECONDS, ONE_NODE_SECONDS = 60.0, 30.0  # that a step may take, on few nodes and on one that is tried by itself
AT_ONCE = 8  # connections to the control node: of more than ten that begin together its sshd drops some (MaxStartups)


@dataclass(frozen=True)
class _Said:
    """Of one step. `why`: what may tell why it ended as it did."""

    answers: Sequence[Any]
    why: str
    code: int

    def all(self, part: str, nodes: Sequence[str]) -> bool:
        """Whether each node gave all its answers: another one's can't stand for them."""
        counts = Counter(answer["node"] for answer in self.answers if answer["part"] == part)
        return all(counts[node] >= wanted(part) for node in nodes)


def wanted(part: str) -> int:
    """Answers of a node."""
    return 1 if part == "links" else TASKS


def seconds(nodes: int) -> float:
    """That a step may take, by the number of nodes: of the pairs a round takes two seconds."""
    return SECONDS + 2 * nodes


def source(*names: str) -> str:
    """Programs as one."""
    return "\n".join((PROGRAMS / name).read_text(encoding="utf-8") for name in names)


def launched(slurm: Any, asked: Sequence[str], *, shared: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """The parts on all nodes.

    Args:
        shared: nodes share a machine, where a rank that waits should let others work.

    Returns:
        asked: the nodes; nodes: those on which it was run; broken: of the others, why MPI doesn't start there;
        failed: why it starts on each node, but not on all; ended: part -> why not every rank came out of it; answers.
    """
    env = {"OMPI_MCA_mpi_yield_when_idle": "1"} if shared else {}
    nodes, left = tuple(asked), list(parts)
    results: dict[str, Any] = {"asked": list(asked), "broken": {}, "ended": {}, "failed": "", "answers": []}
    while nodes and left:
        step = _run(slurm, env, nodes, left, seconds(len(nodes)))
        if not step.all("launch", nodes):
            broken = {} if results["broken"] else _broken(slurm, env, nodes)
            results["broken"] |= broken
            nodes = tuple(node for node in nodes if node not in broken)
            if not broken:
                results["failed"] = step.why
                break
            continue
        unfinished = next((part for part in left if not step.all(part, nodes)), None)
        done = left[: left.index(unfinished) + 1] if unfinished else left
        results["answers"] += [answer for answer in step.answers if answer["part"] in ("launch", "end", *done)]
        left = left[len(done) :]
        if unfinished:
            results["ended"][unfinished] = step.why
    return {**results, "nodes": list(nodes)}


def others(slurm: Any, nodes: Collection[str]) -> set[str]:
    """Those on which jobs run that are not the suite's, in hidden partitions too; an ordinary user isn't always shown
    them. Other users' jobs are not asked for their names, which may be of several lines and read as anything."""
    own = {*slurm.jobs_named(slurm.name)}
    words = ("squeue", "--all", "--noheader", "--states=running,completing", "--format=%i|%N")
    rows = (line.strip().partition("|") for line in slurm.admin(*words).stdout.splitlines())
    lists = [names for number, _, names in rows if names and number not in own]
    return {name for names in lists for name in hostlist.expand(names)} & {*nodes}


def _run(slurm: Any, env: Mapping[str, str], nodes: Sequence[str], parts: Sequence[str], seconds: float) -> _Said:
    words = ["python3", "-c", source("messages.py", "collectives.py", "tournament.py", "mpi.py"), str(seconds), *parts]
    step = slurm.step(*words, nodes=nodes, tasks=TASKS, seconds=seconds + 10, env=env)
    ends = [answer for answer in step.answers if answer["part"] == "end" and answer["code"]]
    why = "\n".join(f"{end['node']}, rank {end['rank']}: {end['said']}" for end in ends[:2]) or step.said
    return _Said(step.answers, why or f"it ended with {step.code} and said nothing", step.code)


def _broken(slurm: Any, env: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """The nodes on which it doesn't start even by themselves."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = dict(zip(nodes, pool.map(lambda node: _alone(slurm, env, node), nodes), strict=True))
    return {node: step.why for node, step in tried.items() if not step.all("launch", [node])}


def _alone(slurm: Any, env: Mapping[str, str], node: str) -> _Said:
    """Once more where ssh to the control node failed, which tells nothing of this one."""
    step = _run(slurm, env, [node], [], ONE_NODE_SECONDS)
    return _run(slurm, env, [node], [], ONE_NODE_SECONDS) if step.code == FAILED else step
