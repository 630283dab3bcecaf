"""What `rocstack first-light` does when steps fail, are left out or interrupted, and what of it stands in the file. The
steps themselves are made up here; they run for real in the integration tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli
from made_runs import on, result, run

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.node.recording import Recording
from rocstack.probe.recordings import ProbeFailure, Recorded
from rocstack.steps import first_light as steps
from rocstack.steps.options import FirstLightOptions
from rocstack.steps.verify import VerifyResult
from rocstack.verify import first_light as light_files
from rocstack.virtual import machine, model, tree

NAMES = ("gpu-a-17.acme.corp", "gpu-a-18.acme.corp")


@dataclass
class Reached:
    """What each step is to give; an exception is raised."""

    folder: Path
    probe: Any = None
    build: Any = None
    deploy: Any = None
    verify: Any = None
    done: list[str] = field(default_factory=list)

    def run(self, **options: Any) -> dict[str, str]:
        given = FirstLightOptions(inventory=self.folder / "inventory.yml", out=self.file, **options)
        light = steps.first_light(given).light
        assert light_files.read(self.file) == light
        return self.states

    @property
    def file(self) -> Path:
        return self.folder / "light.json.gz"

    @property
    def states(self) -> dict[str, str]:
        return {step.name: step.state for step in light_files.read(self.file).steps}

    def step(self, name: str, value: Any) -> Any:
        self.done.append(name)
        if isinstance(value, BaseException):
            raise value
        return value


@dataclass
class Outcome:
    ready: tuple[str, ...] = NAMES
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def ok(self) -> bool:
        return not (self.failed or self.stopped)

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


@dataclass
class Report:
    ok: bool = True
    images: tuple[Any, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "by": "ann@login1.acme.corp", "log": f"copied to {NAMES[0]} (10.20.30.40)"}


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reached:
    nodes = [tree.record(machine.expand(model.load("mi300x-thor2"), number)) for number in (1, 2)]
    named = tuple(
        Recording(**{**{k: v for k, v in vars(each).items() if k[0] != "_"}, "host": name})
        for each, name in zip(nodes, NAMES, strict=True)
    )
    made = Reached(tmp_path, Recorded(named), Report(), Outcome(), run(result(on(NAMES[0])), level=1))
    hosts = tuple(InventoryHost(name, name, name, variables={"ansible_user": "anna"}) for name in NAMES)
    (tmp_path / "inventory.yml").write_text("# bastion.acme.corp\n")
    monkeypatch.chdir(tmp_path)

    def verify(options: Any, on_event: Any) -> VerifyResult:
        found = made.step("verify", made.verify)
        options.report.mkdir(parents=True)
        (options.report / "evidence.json").write_text(json.dumps({"cluster": {"control": NAMES[0]}}))
        return VerifyResult(found, options.report)

    monkeypatch.setattr(steps.inventories, "load", lambda path: Inventory(path, hosts[0], hosts))
    monkeypatch.setattr(steps.recordings, "record_inventory", lambda path, tree: made.step("probe", made.probe))
    monkeypatch.setattr(steps.builds, "build", lambda options, events: made.step("build", made.build))
    monkeypatch.setattr(steps.deploys, "deploy", lambda options, events: made.step("deploy", made.deploy))
    monkeypatch.setattr(steps.verifies, "verify", verify)
    monkeypatch.setattr(steps.service_target, "target", lambda path, node: steps.service_target.Target(None, "c"))
    monkeypatch.setattr(steps.ssh, "output", lambda *args: (0, f"done: step 20 on {NAMES[1]}", ""))
    return made


def test_all_steps_and_no_name_in_the_file(reached: Reached) -> None:
    states = reached.run(level=1)
    assert states == {**dict.fromkeys(steps.STEPS, "done"), "rccl-tests": "skipped"}
    text = light_files.read(reached.file).model_dump_json()
    assert [word for word in (*NAMES, "gpu-a-1", "acme", "anna", "ann@", "10.20.30.40") if word in text] == []
    assert "done: step 20 on node-2" in text


def test_a_build_that_fails_keeps_what_needs_it_from_being_tried(reached: Reached) -> None:
    reached.build = CheckFailed("it broke", code="x")
    assert reached.run() == {
        **dict.fromkeys(("deploy", "verify", "rccl-tests", "training"), "skipped"), "probe": "done", "build": "failed"
    }  # fmt: skip
    assert reached.done == ["probe", "build"]


def test_an_image_of_ones_own_is_deployed_without_a_build(reached: Reached) -> None:
    assert reached.run(image="own")["build"] == "skipped"
    assert reached.done == ["probe", "deploy", "verify"]


def test_of_a_deploy_that_failed_on_a_node_the_others_are_verified(reached: Reached) -> None:
    reached.deploy = Outcome(ready=NAMES[:1], failed={NAMES[1]: "no space"})
    states = reached.run()
    assert (states["deploy"], states["verify"], states["training"]) == ("failed", "done", "done")


def test_a_deploy_that_left_no_worker_ends_it(reached: Reached) -> None:
    reached.deploy = Outcome(ready=(), stopped="the controller doesn't start")
    states = reached.run()
    assert (states["deploy"], states["verify"], states["training"]) == ("failed", "skipped", "skipped")


def test_checks_that_fail_keep_nobody_from_training(reached: Reached) -> None:
    reached.verify = run(result(on(NAMES[0], "failed", "why")))
    states = reached.run()
    assert (states["verify"], states["training"]) == ("failed", "done")
    assert not light_files.read(reached.file).ok


def test_rccl_tests_are_what_verify_found(reached: Reached) -> None:
    reached.verify = run(result(on(NAMES[0], "failed", "wrong sums"), name="rccl-collectives", level=2), level=2)
    assert reached.run()["rccl-tests"] == "failed"


def test_a_node_that_is_not_read_is_named_and_the_rest_goes_on(reached: Reached) -> None:
    failure = ProbeFailure(NAMES[1], "unreachable", f"no route to {NAMES[1]}")
    reached.probe = Recorded(reached.probe.recordings[:1], (failure,))
    states = reached.run()
    assert (states["probe"], states["deploy"]) == ("failed", "done")
    step = light_files.read(reached.file).steps[0]
    assert step.why == "node-2: no route to node-2"


def test_without_any_node_nothing_else_is_tried(reached: Reached) -> None:
    reached.probe = Recorded((), (ProbeFailure(NAMES[0], "unreachable", "no route"),))
    states = reached.run()
    assert set(states.values()) == {"failed", "skipped"}
    assert reached.done == ["probe"]


@pytest.mark.parametrize("step", ["probe", "build", "deploy", "verify"])
def test_an_interrupt_leaves_what_there_is(reached: Reached, step: str) -> None:
    setattr(reached, step, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        reached.run()
    before = steps.STEPS[: steps.STEPS.index(step)]
    assert reached.states == {**dict.fromkeys(before, "done"), step: "interrupted"}


def test_a_defect_of_ours_is_worth_a_line_too(reached: Reached) -> None:
    reached.build = KeyError("gfx")
    assert reached.run()["build"] == "failed"
    assert light_files.read(reached.file).steps[1].why == "KeyError: 'gfx'"


def test_json_stands_alone_on_standard_output(reached: Reached, cli: Cli) -> None:
    done = cli("first-light", "inventory.yml", "--out", str(reached.file), "--json", cwd=reached.folder)
    assert done.code == 0, done.err
    assert json.loads(done.out)["ok"]
    assert "probe" in done.err


def test_a_file_that_is_there_is_kept(reached: Reached) -> None:
    reached.file.write_bytes(b"of another run")
    with pytest.raises(BadInput) as refused:
        reached.run()
    assert refused.value.code == "not-empty"
    assert reached.file.read_bytes() == b"of another run"
    assert reached.done == []


def test_training_runs_as_the_user_of_the_suite(reached: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[list[str]] = []
    monkeypatch.setattr(steps.ssh, "output", lambda host, line, *more: lines.append(line) or (0, "done", ""))
    reached.run(level=1)
    (line,) = lines
    assert line[line.index("--user") + 1] == "rocstack-verify"
    assert line[line.index("--workdir") + 1] == "/"
    assert line.index("--user") < line.index("c"), "of docker exec"
    assert "--partition=rocstack-verify" in line[line.index("srun") :]


def test_an_image_without_the_trainer_trains_nothing(reached: Reached) -> None:
    labels = {"io.rocstack.component.maxtext": "0.2.1", "io.rocstack.framework": "maxtext"}
    reached.verify = reached.verify.model_copy(update={"labels": labels})
    assert reached.run(level=1)["training"] == "skipped"
    (training,) = (step for step in light_files.read(reached.file).steps if step.name == "training")
    assert training.why == "no trainer in the image"
