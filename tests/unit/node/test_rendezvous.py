"""Where ranks meet: what a task is told, by Slurm's own variables as they were recorded on two nodes."""

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstack.node import hostlist, rendezvous

SECRET = "a" * 64
BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0"}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}


def exported(env: dict[str, str], secret: str = SECRET) -> dict[str, str]:
    """What the task of this environment then has."""
    after = dict(env)
    for line in rendezvous.lines(env, rendezvous.variables(env, secret)):
        word, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if word == "export":
            after[name] = value
        else:
            after.pop(name)
    return after


def test_a_task_is_told_its_rank_and_where_it_meets_the_others() -> None:
    task = exported(STEP)
    assert {name: task[name] for name in ("MASTER_ADDR", "NNODES", "NODE_RANK", "WORLD_SIZE", "RANK")} == {
        "MASTER_ADDR": "n1",
        "NNODES": "2",
        "NODE_RANK": "1",
        "WORLD_SIZE": "4",
        "RANK": "3",
    }
    assert (task["LOCAL_RANK"], task["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert task["JAX_COORDINATOR_ADDRESS"] == f"n1:{task['MASTER_PORT']}"
    assert int(task["MASTER_PORT"]) in rendezvous.PORTS
    assert "PET_NNODES" not in task  # two tasks on a node are no torchrun


def test_all_tasks_of_a_step_meet_at_one_place_and_no_other_step_or_job_does() -> None:
    places = {
        (name, exported(STEP | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank} | more, secret)["MASTER_PORT"])
        for rank in "01"
        for name, more, secret in (
            ("step 0", {}, SECRET),
            ("step 1", {"SLURM_STEP_ID": "1"}, SECRET),
            ("again", {"SLURM_RESTART_COUNT": "1"}, SECRET),
            ("another job", {}, "b" * 64),
        )
    }
    assert len(places) == 4
    assert len({port for _, port in places}) == 4


def test_one_task_a_node_is_told_what_torchrun_reads() -> None:
    task = exported(STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"})
    assert (task["PET_NNODES"], task["PET_NODE_RANK"], task["PET_MASTER_ADDR"]) == ("2", "1", "n1")
    assert task["PET_MASTER_PORT"] == task["MASTER_PORT"]


def test_one_node_meets_at_its_loopback() -> None:
    alone = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0"}
    assert exported(STEP | alone)["MASTER_ADDR"] == "127.0.0.1"


def test_a_batch_script_and_the_daemons_of_mpirun_have_no_rank() -> None:
    for env in (BATCH, STEP | {"OMPI_TOOL_NAME": "mpirun", "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_NUM_NODES": "1"}):
        task = exported(env)
        assert task["MASTER_ADDR"] == "n1"
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NNODES"} & set(task)
    assert exported(BATCH)["MASTER_PORT"] == task["MASTER_PORT"]  # mpirun's ranks on all nodes


def test_what_the_job_set_stays_and_what_an_outer_step_was_given_does_not() -> None:
    script = exported(BATCH)
    assert exported(script | STEP)["MASTER_PORT"] != script["MASTER_PORT"]
    assert exported(script | STEP | {"MASTER_PORT": "777"})["MASTER_PORT"] == "777"
    outer = exported(STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"})
    inner = exported(outer | STEP | {"SLURM_STEP_ID": "5"})
    assert (inner["RANK"], inner["WORLD_SIZE"]) == ("3", "4")
    assert "PET_NNODES" not in inner  # it was the outer step's


FIRST = STEP | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}


def test_the_task_that_listens_is_told_of_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(rendezvous, "PORTS", range(port, port + 1))

        def told(env: dict[str, str], secret: str = SECRET) -> str:
            return rendezvous.taken(env, rendezvous.variables(env, secret))

        script = BATCH | {"SLURM_NODEID": "0"}
        for env in (FIRST, script, exported(script) | FIRST):
            assert told(env).startswith(f"print rocstack: MASTER_PORT {port} is taken on n1")
        elsewhere = (STEP, FIRST | {"SLURM_LOCALID": "1"}, FIRST | {"SLURM_NODEID": "1"})
        for env in (*elsewhere, FIRST | {"OMPI_TOOL_NAME": "mpirun"}, FIRST | {"MASTER_PORT": "777"}):
            assert told(env) == ""
        assert told(FIRST, "") == ""
    assert told(FIRST) == ""


def test_without_a_secret_there_is_no_port() -> None:
    task = exported(STEP, "")
    assert task["MASTER_ADDR"] == "n1"
    assert task["RANK"] == "3"
    assert not {"MASTER_PORT", "JAX_COORDINATOR_ADDRESS", rendezvous.SECRET} & set(task)


def test_programs_get_another_secret_than_ports_are_made_of() -> None:
    assert exported(STEP)[rendezvous.SECRET] not in ("", SECRET)


def test_every_node_makes_the_same_secret_and_only_the_user_reads_it(tmp_path: Path) -> None:
    key = tmp_path / "munge.key"
    key.write_bytes(b"k" * 128)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid())}
    for node in ("n1", "n2", "n1"):  # again: the job was requeued
        rendezvous.write_secret(job, tmp_path / node, key)
    one, other = (rendezvous.read_secret(job, tmp_path / node) for node in ("n1", "n2"))
    assert one == other
    assert len(one) == 64
    status = (tmp_path / "n1/7").stat()
    assert stat.S_IMODE(status.st_mode) == 0o400
    assert status.st_uid == os.getuid()
    rendezvous.write_secret(job | {"SLURM_JOB_ID": "8"}, tmp_path / "n1", key)
    assert rendezvous.read_secret(job | {"SLURM_JOB_ID": "8"}, tmp_path / "n1") != one
    assert rendezvous.read_secret(job | {"SLURM_JOB_ID": "../7"}, tmp_path / "n1") == ""


def test_a_node_keeps_the_newest_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "munge.key"
    key.write_bytes(b"k")
    monkeypatch.setattr(rendezvous, "KEPT", 3)
    for job in range(1, 7):
        rendezvous.write_secret({"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(os.getuid())}, tmp_path / "jobs", key)
        os.utime(tmp_path / f"jobs/{job}", (job, job))
    assert {each.name for each in (tmp_path / "jobs").iterdir()} == {"4", "5", "6"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_users_jobs_take_no_other_users_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "munge.key").write_bytes(b"k")
    monkeypatch.setattr(rendezvous, "KEPT", 2)
    for job, uid in ((1, 2001), *((number, 6666) for number in range(2, 9))):
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(uid)}
        rendezvous.write_secret(env, tmp_path / "jobs", tmp_path / "munge.key")
        os.utime(tmp_path / f"jobs/{job}", (job, job))
    assert {each.name for each in (tmp_path / "jobs").iterdir()} == {"1", "7", "8"}


def test_a_secret_that_another_prolog_removes_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "munge.key").write_bytes(b"k")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid())}
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [folder / "5", *listed(folder), folder / "6"])
    monkeypatch.setattr(rendezvous, "KEPT", 1)
    rendezvous.write_secret(job, tmp_path / "jobs", tmp_path / "munge.key")
    assert len(rendezvous.read_secret(job, tmp_path / "jobs")) == 64


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": "../x", "SLURM_JOB_UID": "0"}, {"SLURM_JOB_ID": "7"}])
def test_a_job_without_a_number_gets_no_secret(env: dict[str, str], tmp_path: Path) -> None:
    key = tmp_path / "munge.key"
    key.write_bytes(b"k")
    with pytest.raises(ValueError, match="invalid literal"):
        rendezvous.write_secret(env, tmp_path / "jobs", key)
    assert not (tmp_path / "jobs").exists()


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}", fullmatch=True), min_size=1, max_size=8, unique=True))
def test_the_first_name_is_that_of_the_whole_list(names: list[str]) -> None:
    text = hostlist.fold(names)
    assert hostlist.first(text) == hostlist.expand(text)[0] == names[0]


@pytest.mark.parametrize("text", ["", ",n1", "[", "n["])
def test_no_hostlist_has_no_first_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no hostlist"):
        hostlist.first(text)
