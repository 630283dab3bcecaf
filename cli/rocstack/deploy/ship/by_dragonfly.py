"""Dragonfly on the nodes of a cluster: each then pulls from the Dragonfly of its own, which asks its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rocstack.base.errors import CheckFailed
from rocstack.deploy.orders.events import Watch
from rocstack.deploy.orders.order import Registry
from rocstack.deploy.orders.runs import Hands, why
from rocstack.deploy.plan.prepare import Prepared
from rocstack.deploy.ship.by_registry import account, home

# Docker takes plain HTTP from 127.0.0.0/8 without a setting of its own (docs.docker.com/reference/cli/dockerd), so
# neither daemon.json nor the engine is touched. The image is pulled by digest: what comes this way can't be another.
LOCAL = "127.0.0.1:4001"


def join(prepared: Prepared, sources: Mapping[str, Registry], hands: Hands, watch: Watch) -> dict[str, Registry]:
    """What takes the place of the nodes' sources: LOCAL with the same account, where Dragonfly runs. Other nodes pull
    from the registry itself, and that is said.

    Raises:
        CheckFailed: it doesn't run on the control node, so nobody would tell the nodes of each other.
    """
    wanted = prepared.wanted
    assert wanted is not None
    control, registry = wanted.inventory.control.name, home(wanted)
    cluster = {
        "scheduler": wanted.control_address,
        "registry": f"https://{registry}",
        "ca": account(wanted, registry).ca,
    }
    names = dict.fromkeys((control, *sources))
    runs = hands.send("p2p.yml", {name: {**cluster, "address": wanted.address(name)} for name in names})
    if runs[control].state != "ok":
        raise CheckFailed(
            f"Dragonfly doesn't run on the control node {control}: {why(runs[control])}",
            code="p2p-failed",
            next_step="see docs/shipping.md for what it needs, or ship by another way: --method registry",
        )
    for name, run in runs.items():
        if run.state != "ok":
            watch.say(f"{name} pulls from {registry}, without Dragonfly: {why(run)}")
    return {name: replace(source, address=LOCAL, ca="") for name, source in sources.items() if runs[name].state == "ok"}
