"""start.yml: what its two tasks on a control node that is a worker, too, leave to each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from jinja2.nativetypes import NativeEnvironment

START = Path(__file__).parents[3] / "playbooks/start.yml"
USERS, CONTROL = ["rocstack-worker", "rocstack-users"], ["rocstack-control", "scontrol", "reconfigure"]


def modules() -> list[dict[str, Any]]:
    plays = yaml.safe_load(START.read_text())
    return [task["rocstack_apply"] for play in plays for task in play["tasks"] if "rocstack_apply" in task]


def render(text: str, **values: Any) -> Any:
    return NativeEnvironment().from_string(text).render(rocstack_spec={"exec": [CONTROL, USERS]}, **values)


def test_the_first_is_a_part_and_the_second_runs_the_rest() -> None:
    control, whole = modules()
    assert "state" not in control, "only the whole order takes the mark away that something has to follow"
    assert list(render(control["exec"])) == [CONTROL]
    assert list(render(whole["exec"], begun={"exec": [CONTROL]})) == [USERS]
    assert list(render(whole["exec"], begun={"exec": []})) == list(render(whole["exec"])) == [CONTROL, USERS]


def test_what_is_ill_is_restarted_unless_somebody_says_no() -> None:
    assert [render(module["heal"]) for module in modules()] == [True, True]
    assert [render(module["heal"], rocstack_heal=False) for module in modules()] == [False, False]


def test_the_service_waits_until_the_cluster_is_there() -> None:
    """Whatever is wrong with it, and with the files that only it reads, the first task has nothing to do with it."""
    control, whole = modules()
    containers = [{"service": name} for name in ("db", "controller", "service", "worker")]
    files = [{"path": path} for path in ("/etc/rocstack/service/service.json", "/etc/rocstack/keys/service-database")]

    def rendered(text: str) -> list[Any]:
        spec = {"containers": containers, "files": files}
        env = NativeEnvironment()
        env.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None  # Ansible's own
        return list(env.from_string(text).render(rocstack_spec=spec))

    assert rendered(control["containers"]) == containers[:2]
    assert rendered(whole["containers"]) == containers
    assert rendered(control["files"]) == files[1:]
    assert rendered(whole["files"]) == files
