"""Slurm's commands on the control node, with an ssh that answers what is written here."""

import subprocess
import time
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.cluster.settings import Person
from rocstack.deploy.read import inventory as inventories
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.jobs import recipe as recipes
from rocstack.jobs import remote
from rocstack.jobs.pools import Pool, fitted
from rocstack.jobs.recipe import JobRequest, Layout, Parameter, Recipe
from rocstack.jobs.remote import SlurmControl
from rocstack.jobs.slurm import JobRecord
from rocstack.size import models
from rocstack.size.layout import GpuLayout, problem
from rocstack.steps.job_options import TokenOptions
from rocstack.steps.jobs import EVERY_S, SELDOM_S, pieces, token

CONTROL = SlurmControl(Path("inventory.yml"), SshHost("n1"))
SACCT = Path(__file__).parent / "data/sacct-completed.json"


def answers(monkeypatch: pytest.MonkeyPatch, out: str = "", err: str = "", code: int = 0) -> list[list[str]]:
    """The commands that are run."""
    ran: list[list[str]] = []

    def run(host: SshHost, command: list[str], seconds: float = 60, text: str = "") -> Any:
        ran.append(command)
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(ssh, "run", run)
    return ran


def test_sbatch_runs_as_the_owner_without_the_containers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = answers(monkeypatch, "Submitted batch job 17\n")
    assert CONTROL.submit("#!/bin/sh\n", "alice") == "17"
    (line,) = ran
    assert line[line.index("--user") + 1] == "alice"
    assert line[-1] == "sbatch"
    assert "--ignore-environment" in line
    assert "HOME=/home/alice" in line


@pytest.mark.parametrize(
    ("err", "code", "wanted"),
    [
        ("sbatch: error: Batch job submission failed: Invalid qos\n", 1, "submission-refused"),
        ("unable to find user bob: no matching entries in passwd file", 126, "user-not-deployed"),
        ("Error response from daemon: No such container: rocstack-control", 1, "no-controller"),
        ("ssh: connect to host n1 port 22: Connection refused", 255, "ssh-failed"),
        ("", 1, "submission-refused"),
    ],
)
def test_a_refusal_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch, err: str, code: int, wanted: str) -> None:
    answers(monkeypatch, err=err, code=code)
    with pytest.raises(RocstackError) as caught:
        CONTROL.submit("", "bob")
    assert caught.value.code == wanted


def test_a_token_is_made_in_the_controllers_container_by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = answers(monkeypatch, "SLURM_JWT=aa.bb.c-c_\n")
    assert CONTROL.token("alice", 60) == "aa.bb.c-c_"
    assert ran[0][-4:] == ["scontrol", "token", "username=alice", "lifespan=60"]
    assert "--user" not in ran[0]


@pytest.mark.parametrize("out", ["", "SLURM_JWT=\n", "SLURM_JWT=a b\n"])
def test_no_token_is_said(monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    answers(monkeypatch, out, "scontrol: error: no key")
    with pytest.raises(RocstackError) as caught:
        CONTROL.token("alice", 60)
    assert (caught.value.code, "no key" in caught.value.what) == ("no-token-made", True)


@pytest.mark.parametrize("lifespan", ["8", "0h", "infinite", "91d", "1h30m", ""])
def test_a_time_that_no_token_may_have(lifespan: str) -> None:
    with pytest.raises(RocstackError) as caught:
        token(TokenOptions(lifespan=lifespan))
    assert caught.value.code == "bad-lifespan"


def test_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "train*\x1f2\x1finfinite\x1fgpu:mi300x:8(S:0-1)",
        "train*\x1f1\x1finfinite\x1fgpu:mi300x:8",
        "cpu\x1f4\x1f1:00\x1f(null)",
    )
    mixed = ("mixed\x1f1\x1f1:00\x1fgpu:4", "mixed\x1f1\x1f1:00\x1fgpu:8")
    kinds = ("kinds\x1f1\x1f1:00\x1fgpu:mi300x:8", "kinds\x1f1\x1f1:00\x1fgpu:mi355x:8")
    odd = [f"odd\x1f{number}\x1f1:00\x1fgpu:8" for number in ("²", "9" * 5000, "-1", "")]
    answers(monkeypatch, "\n".join((*lines, *mixed, *kinds, "nonsense", *odd)))
    assert CONTROL.pools() == [
        Pool("train", 3, "infinite", 8, True, "mi300x", 8),
        Pool("cpu", 4, "1:00", 0, False, most=0),
        Pool("mixed", 2, "1:00", 0, False, most=8),
        Pool("kinds", 2, "1:00", 8, False, most=8),
    ]


@pytest.mark.parametrize("user", ["", "--privileged", "a b", "0", "../x"])
def test_no_command_runs_in_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    answers(monkeypatch, SACCT.read_text().replace('"user": "alice"', f'"user": "{user}"'))
    with pytest.raises(CheckFailed, match="no user's name"):
        CONTROL.record("15")


@pytest.mark.parametrize("number", ["", "x", "-1", "1;2", "1 2", "--all"])
def test_a_number_is_one(number: str) -> None:
    with pytest.raises(BadInput, match="no job's number"):
        CONTROL.record(number)


PEOPLE = {"ann": Person(uid=2000), "bob": Person(uid=2001)}


def test_whose_job_it_is() -> None:
    assert remote.owner("ann", "root", PEOPLE) == "ann"
    assert remote.owner(None, "bob", PEOPLE) == "bob"
    assert remote.owner(None, "root", {"ann": PEOPLE["ann"]}) == "ann"
    for given, users, code in ((None, PEOPLE, "whose-job"), ("anna", PEOPLE, "unknown-user"), (None, {}, "no-users")):
        with pytest.raises(BadInput) as caught:
            remote.owner(given, "root", users)
        assert caught.value.code == code


RECIPE = Recipe(name="x", about="x", job=Layout(nodes=2), needs_gpus=True)
POOLS = [Pool("cpu", 1, "1:00", 0, False, most=0), Pool("train", 4, "infinite", 8, True, most=8)]


def test_a_job_gets_all_gpus_of_its_nodes_unless_it_says_how_many() -> None:
    assert fitted(RECIPE, JobRequest(), POOLS).gpus_per_node == 8
    assert fitted(RECIPE, JobRequest(gpus_per_node=2), POOLS).gpus_per_node == 2


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (JobRequest(nodes=4, preflight=True, spare=1), "too-many-nodes"),
        (JobRequest(partition="cpu", nodes=1), "no-gpus-there"),
        (JobRequest(partition="cpu", nodes=1, gpus_per_node=1), "too-many-gpus"),
        (JobRequest(nodes=1, gpus_per_node=9), "too-many-gpus"),
        (JobRequest(partition="trian"), "unknown-partition"),
        (JobRequest(partition="cpu", nodes=1, gpus_per_node=0, time="2m"), "too-long"),
        (JobRequest(partition="cpu", nodes=1, gpus_per_node=0, time="infinite"), "too-long"),
    ],
)
def test_what_the_partition_does_not_have(request_: JobRequest, code: str) -> None:
    with pytest.raises(BadInput) as caught:
        fitted(RECIPE, request_, POOLS)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("limit", "longest"),
    [("30:00", "30m"), ("1:00:00", "1h"), ("1-12:00:00", "36h"), ("infinite", "infinite"), ("", "infinite")],
)
def test_the_time_of_a_partition(limit: str, longest: str) -> None:
    """As sinfo writes it; the service doesn't know it of every one."""
    pools = [Pool("train", 2, limit, 8, True)]
    assert fitted(RECIPE, JobRequest(time=longest), pools)
    assert fitted(RECIPE, JobRequest(), pools), "the partition's own"
    if longest != "infinite":
        with pytest.raises(BadInput):
            fitted(RECIPE, JobRequest(time=f"{int(longest[:-1]) + 1}{longest[-1]}"), pools)


def test_a_job_without_end_has_the_year_of_its_partition() -> None:
    pools = [Pool("train", 2, "365-00:00:00", 8, True), Pool("short", 2, "364-23:00:00", 8, False)]
    assert fitted(RECIPE, JobRequest(time="infinite"), pools).time == "365d"
    assert fitted(RECIPE, JobRequest(), pools).time is None
    with pytest.raises(BadInput) as caught:
        fitted(RECIPE, JobRequest(time="infinite", partition="short"), pools)
    assert caught.value.code == "too-long"


def test_times_are_said_as_people_write_them() -> None:
    with pytest.raises(BadInput) as caught:
        fitted(RECIPE, JobRequest(time="4000d"), [Pool("train", 2, "525600:00", 8, True)])
    assert caught.value.what == "the job asks for 4000d, the partition train lets none run longer than 365d"


MEGATRON = {"folder": "/m", "config": "/z.json"}


@pytest.mark.parametrize("kind", [{"type": "text", "default": "auto"}, {"type": "integer", "default": -1}])
def test_a_sites_own_recipe_may_mean_another_thing_by_pp(kind: dict[str, Any]) -> None:
    parameters = {name: Parameter(about="mine", **kind) for name in ("pp", "tp", "batch", "micro_batch")}
    assert fitted(RECIPE.model_copy(update={"parameters": parameters}), JobRequest(), [Pool("cpu", 3, "", 8, True)])


@pytest.mark.parametrize(
    ("nodes", "more", "says"),
    [
        (768, {}, ""),
        (48, {}, ""),
        (4, {"tp": "8", "pp": "8"}, "--set tp=8 --set pp=4,"),
        (3, {"tp": "8", "pp": "2", "batch": "3"}, "--set tp=8 --set pp=3,"),
        (3, {"tp": "3", "pp": "2", "batch": "9"}, "--set batch=8,"),
        (768, {"batch": "700"}, "--set batch=672,"),
        (768, {"batch": "768", "micro_batch": "16"}, "--set batch=1536,"),
        (4, {"tp": "9" * 18}, "--set pp=8,"),
    ],
)
def test_the_layout_of_a_job_is_possible(nodes: int, more: dict[str, str], says: str) -> None:
    """LUMI's text: 6,144 ranks at TP 8 and PP 8 share its batch of 768 in 8 micro-batches, so they are 96 copies."""
    asked = JobRequest(nodes=nodes, values=MEGATRON | more, arguments=("--num-layers", "80"))
    pools = [Pool("standard-g", 1024, "infinite", 8, True, "mi250x")]
    recipe = recipes.find("megatron-deepspeed")
    if says:
        with pytest.raises(BadInput, match=r"can't be shared out|no layout of") as caught:
            fitted(recipe, asked, pools)
        assert (caught.value.code, says in f"{caught.value.next_step},") == ("impossible-layout", True)
        return
    text = recipes.script(recipe, fitted(recipe, asked, pools))
    assert f"srun=(--nodes={nodes} --ntasks-per-node=8 " in text
    words = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8"
    assert words in text
    shape, model = models.named("lumi-140b")
    plan = GpuLayout(tp=8, pp=8, dp=nodes * 8 // 64, accumulate=768 // (nodes * 8 // 64))
    assert problem(shape, plan, nodes * 8) is None, model.name


def test_the_marks_of_two_questions_about_the_queue_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = answers(monkeypatch)
    assert CONTROL.queue() == CONTROL.queue("alice") == []
    formats = {next(word for word in line if word.startswith("--format=")) for line in ran}
    assert len(formats) == 2


def test_a_job_that_says_nothing_is_looked_at_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look costs two connections, and Slurm's database a question: many people follow jobs for hours."""
    states = chain(["PENDING"] * 2, ["RUNNING"] * 40, repeat("FAILED"))
    texts = chain([b"a"], [b""] * 30, [b"b"], repeat(b""))
    slept: list[float] = []

    def record(self: SlurmControl, job: str) -> JobRecord:
        state = next(states)
        where = "" if state == "PENDING" else "n1"
        return JobRecord(job, "j", state, "alice", "a", "p", "q", where, 1, 1, 1, 0, 0, 0, 0, "/", "/log")

    monkeypatch.setattr(SlurmControl, "record", record)
    monkeypatch.setattr(SlurmControl, "log", lambda self, record: remote.Log(SshHost("n1"), record))
    monkeypatch.setattr(remote.Log, "read", lambda self, offset=0: next(texts))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert "".join(pieces(CONTROL, "7", follow=True)) == "ab"
    waiting, silent, end = slept[:2], slept[2:32], slept[-3:]
    assert waiting[0] == silent[0] == end[0] == EVERY_S
    assert silent == sorted(silent)
    assert silent[-1] == SELDOM_S
    assert slept[33] == EVERY_S, "it spoke"
    assert end == [EVERY_S] * 3, "its last lines are not waited for so long"


def test_the_way_to_slurm_takes_one_run_of_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("control: {hosts: {n1: {ansible_host: 10.0.0.1}}}\nworkers: {hosts: {n2: }}\n")
    monkeypatch.setattr(inventories, "_asking", lambda path: pytest.fail("nobody needs the list"))
    found = remote.controller(path)
    assert (found.ssh_host.host, found.ssh_host.address) == ("n1", "10.0.0.1")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("control: {hosts: {n1: , n2: }}\nworkers: {hosts: {n2: }}\n", "several-controls"),
        ("controller: {hosts: {n1: }}\nworkers: {hosts: {n2: }}\n", "no-control"),
        ("control: {hosts: {n1: }}\ncontrol: {hosts: {n2: }}\nworkers: {hosts: {n2: }}\n", "duplicate-key"),
        ("control: {hosts: {n1: {ansible_connection: docker}}}\nworkers: {hosts: {n2: }}\n", "bad-inventory"),
        ("control: {hosts: {n1: {ansible_host: '{{ nothing }}'}}}\nworkers: {hosts: {n2: }}\n", "bad-inventory"),
    ],
)
def test_an_inventory_without_a_way_to_slurm(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text(text)
    with pytest.raises(RocstackError) as error:
        remote.controller(path)
    assert error.value.code == code
