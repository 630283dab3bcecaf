"""The run as a value: what the cluster was, and what was found. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rocstack.verify.result import CheckResult, NodeSeen, Run

_COMPONENT = "io.rocstack.component."


def run(found: Mapping[str, Any], *, started: float, results: tuple[CheckResult, ...], **about: Any) -> Run:
    """`found` is the evidence "cluster"; `about` what `Run` has of the rest."""
    when = datetime.fromtimestamp(started, UTC)
    worker, control = (_image(found["images"], role) for role in ("worker", "control"))
    return Run(
        id=when.strftime("%Y%m%d-%H%M%S"),
        cluster=found["cluster"],
        control=found["control"],
        when=when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.time() - started, 1),
        nodes=tuple(_node(each) for each in found["nodes"]),
        image=worker.get("id", ""),
        digest=worker.get("digest", ""),
        control_image=control.get("id", ""),
        labels=found.get("labels", {}),
        versions={
            name.removeprefix(_COMPONENT): text
            for name, text in found.get("labels", {}).items()
            if name.startswith(_COMPONENT)
        },
        fabric=found.get("fabric", {}),
        results=results,
        **about,
    )


def _image(images: Sequence[Mapping[str, Any]], role: str) -> Mapping[str, Any]:
    """That of most nodes."""
    return next((each for each in images if each["role"] == role), {})


def _node(each: Mapping[str, Any]) -> NodeSeen:
    profile = each["profile"] or {"gpus": (), "nics": ()}
    gpus = Counter(_short(gpu["name"]) or gpu["gfx"] or "GPU" for gpu in profile["gpus"])
    nics = Counter(nic["nic"] for nic in profile["nics"] if nic["nic"])
    model = ", ".join(f"{count} × {name}" for name, count in (*gpus.items(), *nics.items()))
    return NodeSeen(
        name=each["name"],
        roles=tuple(each["roles"]),
        virtual=each["virtual"],
        absent=each["absent"],
        image=each["image"],
        model=model,
    )


def _short(name: str | None) -> str:
    """MI300X of "AMD Instinct MI300X OAM"."""
    return next((word for word in (name or "").split() if word.startswith("MI")), "")
