"""A batch script's head as the description that slurmrestd takes: it reads no #SBATCH or #SLURM lines itself. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from rocstack.base.errors import hinted
from rocstack.service.failures import RequestRefused

Fields = dict[str, Any]
_MARKS = ("#SBATCH", "#SLURM")  # sbatch reads both
_LINE = re.compile(r"#S(?:BATCH|LURM)\s+--([a-z-]+)(?:=(.*?))?\s*")
_UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}


def number(value: int) -> dict[str, Any]:
    """As Slurm's data parser has numbers that may be unset or infinite."""
    return {"number": value, "set": True, "infinite": False}


def description(script: str, more: Mapping[str, Any]) -> Fields:
    """The fields for what stands in the head, and `more` above them.

    Raises:
        RequestRefused: a line that isn't known here: it would be left out in silence.
    """
    found: Fields = {}
    for line in script.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break  # as sbatch: below the first command they count for nothing
        if not line.startswith(_MARKS):
            continue
        match = _LINE.fullmatch(line)
        option, value = (match[1], match[2] or "") if match else (line.partition(" ")[2].strip(), "")
        if option not in _OPTIONS:
            raise RequestRefused.of("unknown-sbatch", option=option[:80], hint=hinted(option, _OPTIONS))
        try:
            found |= _OPTIONS[option](_unquoted(value))
        except (ValueError, KeyError):
            raise RequestRefused.of("bad-sbatch", option=option, value=value[:80]) from None
    nodes, each = found.get("nodes"), found.get("tasks_per_node")
    if nodes and each and str(nodes).isdigit() and "tasks" not in found:
        found["tasks"] = int(nodes) * each
    return found | dict(more)


def minutes(text: str) -> dict[str, Any]:
    """Slurm's own forms: MIN, MIN:SEC, H:M:S, D-H, D-H:M, D-H:M:S."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return {"set": False, "infinite": True, "number": 0}
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minute, second = (*parts, 0, 0)[:3]
    else:
        hours, minute, second = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    seconds = ((int(days or 0) * 24 + hours) * 60 + minute) * 60 + second
    return number(max(1, -(-seconds // 60)))


def _signal(text: str) -> Fields:
    name, _, delay = text.rpartition(":")[2].partition("@")
    flags = {"B": "BATCH_JOB"}.get(text.partition(":")[0]) if ":" in text else None
    fields: Fields = {"kill_warning_signal": name, "kill_warning_delay": number(int(delay or 60))}
    return fields | ({"kill_warning_flags": [flags]} if flags else {})


def _memory(text: str) -> Fields:
    amount = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not amount:
        raise ValueError(text)
    return {"memory_per_node": number(int(int(amount[1]) * _UNITS[amount[2]]))}


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _text(name: str) -> Callable[[str], Fields]:
    return lambda value: {name: value}


def _count(name: str) -> Callable[[str], Fields]:
    return lambda value: {name: int(value)}


_OPTIONS: Mapping[str, Callable[[str], Fields]] = {
    "account": _text("account"),
    "chdir": _text("current_working_directory"),
    "comment": _text("comment"),
    "constraint": _text("constraints"),
    "cpus-per-task": _count("cpus_per_task"),
    "dependency": _text("dependency"),
    "error": _text("standard_error"),
    "exclude": lambda value: {"excluded_nodes": value.split(",")},
    "exclusive": lambda value: {"shared": [value or "none"]},
    "gpus-per-node": lambda value: {"tres_per_node": f"gres/gpu:{value}"},
    "gres": lambda value: {"tres_per_node": ",".join(f"gres/{each}" for each in value.split(","))},
    "job-name": _text("name"),
    "licenses": _text("licenses"),
    "mem": _memory,
    "nodelist": lambda value: {"required_nodes": value.split(",")},
    "nodes": _text("nodes"),
    "no-requeue": lambda value: {"requeue": False},
    "ntasks": _count("tasks"),
    "ntasks-per-node": _count("tasks_per_node"),
    "open-mode": lambda value: {"open_mode": [value.upper()]},
    "output": _text("standard_output"),
    "partition": _text("partition"),
    "qos": _text("qos"),
    "requeue": lambda value: {"requeue": True},
    "reservation": _text("reservation"),
    "signal": _signal,
    "time": lambda value: {"time_limit": minutes(value)},
}
