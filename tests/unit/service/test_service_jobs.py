"""Jobs: handed to Slurm once, as their owner's; followed, ended, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, adapter, serve, tuned
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.jobs import recipe
from rocstack.service import app, cluster_view, handover, jobs, progress, routes_jobs, storage, tuning

pytestmark = pytest.mark.anyio
MINE = {"recipe": "mine", "arguments": ["hostname"], "gpus_per_node": 0}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Slurm says is new at once, and nobody waits."""
    monkeypatch.setattr(jobs, "FRESH_S", 0.0)
    monkeypatch.setattr(cluster_view, "FRESH_S", 0.0)
    monkeypatch.setattr(handover, "LOOK_AFTER_S", 0.0)
    monkeypatch.setattr(tuning, "LOOK_S", 0.01)
    monkeypatch.setattr(routes_jobs, "LOOK_S", 0.01)


def folder(site: Site, key: str, user: str = "alice") -> Path:
    return site.data / user / "jobs" / key


async def test_a_job_is_its_owners_and_says_why_it_waits(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    made = (await alice.post("/v1/jobs", json=MINE)).json()
    assert (made["status"], made["recipe"], made["slurm_job"]) == ("queued", "mine", 100)
    sent = slurm.submitted[0]
    assert sent["user"] == "alice"
    assert sent["job"]["comment"] == f"rocstack:{made['id']}:1"
    assert sent["job"]["standard_output"] == f"{folder(site, made['id'])}/log"
    assert "USER=alice" in sent["job"]["environment"]
    assert (sent["job"]["nodes"], sent["job"]["tasks"]) == ("1", 1)
    assert sent["script"].rstrip().endswith("hostname")
    shown = (await alice.get(f"/v1/jobs/{made['id']}")).json()
    assert "waits" in shown["why"]
    slurm.set(100, "RUNNING", nodes="n1")
    assert (await alice.get(f"/v1/jobs/{made['id']}")).json()["status"] == "running"
    (folder(site, made["id"]) / "log").write_text("n1\nö")
    slurm.set(100, "COMPLETED")
    listed = (await alice.get("/v1/jobs")).json()["data"]
    assert [(each["id"], each["status"]) for each in listed] == [(made["id"], "succeeded")]
    said = [each["message"] for each in (await alice.get(f"/v1/jobs/{made['id']}/events")).json()["data"]]
    assert said == ["created: recipe mine", "queued: Slurm's job 100", "running on n1", "it ended well"]
    log = (await alice.get(f"/v1/jobs/{made['id']}/log")).json()
    assert log == {"text": "n1\nö", "offset": 5, "size": 5}
    assert (await alice.get(f"/v1/jobs/{made['id']}/log", params={"offset": 3})).json()["text"] == "ö"


async def test_nobody_sees_or_changes_anothers(site: Site, slurm: FakeSlurmrestd) -> None:
    key = (await site.of("alice").post("/v1/jobs", json=MINE)).json()["id"]
    tune = (await tuned(site.of("alice"))).json()["id"]
    bob = site.of("bob")
    assert (await bob.get("/v1/jobs")).json()["data"] == []
    assert (await bob.get("/v1/fine_tuning/jobs")).json()["data"] == []
    answers = [await bob.get(f"/v1/jobs/{key}{more}") for more in ("", "/log", "/metrics", "/events")]
    answers += [await bob.post(f"/v1/jobs/{key}/{verb}") for verb in ("cancel", "requeue")]
    answers += [await bob.get(f"/v1/fine_tuning/jobs/{tune}{more}") for more in ("", "/events", "/checkpoints")]
    answers += [await bob.post(f"/v1/fine_tuning/jobs/{tune}/{verb}") for verb in ("cancel", "pause", "resume")]
    answers += [
        await bob.get(f"/v1/fine_tuning/jobs/{tune}/events?stream=true"),
        await bob.get(f"/v1/jobs/{key}/log?stream=true"),
    ]
    assert {(each.status_code, each.json()["error"]["code"]) for each in answers} == {(404, "no-such-own-job")}
    assert not slurm.cancelled


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"recipe": "min"}, "unknown-recipe"),
        ({"recipe": "mine"}, "missing-arguments"),
        ({"recipe": "finetune", "parameters": {"modell": "x"}}, "unknown-parameter"),
        ({"recipe": "trainer", "parameters": {"steps": "x"}}, "bad-parameter"),
        (MINE | {"nodes": 3}, "too-many-nodes"),
        (MINE | {"partition": "trian"}, "unknown-partition"),
        (MINE | {"name": "a b"}, "bad-job-option"),
        (MINE | {"name": "\ud800"}, "bad-request"),
        (MINE | {"qos": "\ud800"}, "bad-request"),
        (MINE | {"time": "9" * 10_000}, "bad-request"),
        (MINE | {"nodes": 0}, "bad-request"),
        (MINE | {"node": 1}, "bad-request"),
        ([], "bad-request"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_made(
    site: Site, slurm: FakeSlurmrestd, body: Any, code: str
) -> None:
    alice = site.of("alice")
    # Not by `json=`: what is half of a character goes as its escape alone.
    answer = await alice.post("/v1/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert (await alice.get("/v1/jobs")).json()["data"] == []
    assert not (site.data / "alice" / "jobs").exists()
    assert not slurm.submitted


async def test_slurms_refusal_is_said_and_the_job_failed(site: Site, slurm: FakeSlurmrestd) -> None:
    slurm.refuse = "Invalid account or account/partition combination specified"
    answer = await site.of("alice").post("/v1/jobs", json=MINE | {"account": "nobodys"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "slurm-refuses")
    assert slurm.refuse in answer.json()["error"]["message"]
    row = (await site.of("alice").get("/v1/jobs")).json()["data"][0]
    assert (row["status"], row["error"]["code"]) == ("failed", "slurm-refuses")


async def test_jobs_that_are_over_are_bounded(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has jobs refused again and again would fill the control node's disk."""
    monkeypatch.setattr(jobs, "KEPT", 2)
    slurm.refuse = "no"
    alice, bob = site.of("alice"), site.of("bob")
    await bob.post("/v1/jobs", json=MINE)
    for number in range(5):
        await alice.post("/v1/jobs", json=MINE | {"name": f"n{number}"})
    assert [row["name"] for row in (await alice.get("/v1/jobs")).json()["data"]] == ["n4", "n3", "n2"]
    assert len((await bob.get("/v1/jobs")).json()["data"]) == 1


async def test_scripts_are_made_beside_what_others_ask(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of words like variables took minutes to look through, in which the service answered nobody."""
    made: list[int] = []
    real = recipe.script

    def noted(*args: Any) -> str:
        made.append(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(recipe, "script", noted)
    alice = site.of("alice")
    answer = await alice.post("/v1/jobs", json=MINE | {"arguments": ["x" * 4000] * 20})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "job-too-long")
    assert not made
    assert (await alice.post("/v1/jobs", json=MINE)).status_code == 200
    assert made
    assert threading.get_ident() not in made


async def test_a_submission_whose_answer_got_lost_is_not_sent_twice(site: Site, slurm: FakeSlurmrestd) -> None:
    slurm.lose = 1
    made = (await site.of("alice").post("/v1/jobs", json=MINE)).json()
    assert (made["status"], made["slurm_job"]) == ("queued", 100)
    assert len(slurm.submitted) == 1


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80"])
async def test_a_name_that_is_no_text_harms_nobody(site: Site, slurm: FakeSlurmrestd, name: bytes) -> None:
    """squeue of Slurm 24.11.5 said such a name in JSON as it is; one person's stood in everybody's way."""
    assert (await site.of("bob").post("/v1/jobs", json=MINE)).status_code == 200
    slurm.jobs[100]["name"] = name.decode(errors="surrogateescape")
    slurm.lose = 1  # so that all jobs are asked for
    made = (await site.of("alice").post("/v1/jobs", json=MINE)).json()
    assert (made["status"], made["slurm_job"]) == ("queued", 101)
    slurm.set(100, "RUNNING")
    assert (await site.of("bob").get("/v1/jobs")).json()["data"][0]["status"] == "running"


@pytest.mark.parametrize("away", ["down", "controller_down"])
async def test_what_cannot_be_handed_over_is_kept_and_sent_later(site: Site, slurm: FakeSlurmrestd, away: str) -> None:
    alice = site.of("alice")
    assert (await alice.get("/v1/nodes")).status_code == 200  # the token is known, the partitions too
    assert (await alice.post("/v1/jobs", json=MINE)).status_code == 200
    setattr(slurm, away, True)
    answers = [await alice.post("/v1/jobs", json=MINE | {"name": "later"}) for _ in range(2)]
    assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [(503, "job-kept")] * 2
    rows = (await alice.get("/v1/jobs")).json()["data"]
    assert [(row["name"], row["status"]) for row in rows] == [("later", "sending"), ("mine", "queued")]
    assert "handed over when it does" in rows[0]["why"]
    setattr(slurm, away, False)
    await site.service.jobs.handover.resend()
    rows = (await alice.get("/v1/jobs")).json()["data"]
    assert [row["status"] for row in rows] == ["queued", "queued"]
    assert len(slurm.submitted) == 2


async def test_after_a_restart_a_job_is_looked_for_first(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(handover, "HANDED_S", -1.0)
    slurm.lose = 1
    assert (await site.of("alice").post("/v1/jobs", json=MINE)).status_code == 503
    other = serve(tmp_path, slurm)
    reached = Site(other, site.client, app.make(other))
    alice = reached.of("alice")
    assert (await alice.get("/v1/jobs")).json()["data"][0]["status"] == "sending"
    await other.jobs.handover.resend()
    row = (await alice.get("/v1/jobs")).json()["data"][0]
    assert (row["status"], row["slurm_job"]) == ("queued", 100)
    assert len(slurm.submitted) == 1
    await other.stop()


async def test_one_that_slurmctld_forgot_is_in_accounting(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    code = {"return_code": {"set": True, "infinite": False, "number": 3}, "signal": {"id": {"set": False, "number": 0}}}
    slurm.set(100, "FAILED", exit_code=code)
    slurm.forget(100)
    row = (await alice.get(f"/v1/jobs/{key}")).json()
    assert (row["status"], row["error"]["message"]) == ("failed", "it failed, exit code 3")


async def test_two_cancel_at_once(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    answers = await asyncio.gather(*(alice.post(f"/v1/jobs/{key}/cancel") for _ in range(3)))
    assert [(each.status_code, each.json()["status"]) for each in answers] == [(200, "cancelled")] * 3
    assert slurm.cancelled == [(100, "")]


async def test_requeue_runs_it_again_after_the_old_one(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    slurm.set(100, "RUNNING")
    again = (await alice.post(f"/v1/jobs/{key}/requeue")).json()
    assert (again["slurm_job"], again["run"], again["status"]) == (101, 2, "queued")
    assert slurm.cancelled == [(100, "")]
    assert slurm.submitted[1]["job"]["dependency"] == "afterany:100"
    assert slurm.submitted[1]["job"]["comment"] == f"rocstack:{key}:2"
    for run, sent in enumerate(slurm.submitted, 1):
        said = [line for line in sent["script"].splitlines() if "the job begins again" in line]
        done = subprocess.run(["bash", "-c", *said], env=dict(e.split("=", 1) for e in sent["job"]["environment"]),
                              capture_output=True, text=True)  # fmt: skip
        assert done.stdout == ("rocstack: the job begins again\n" if run == 2 else "")


async def test_so_many_jobs_and_no_more(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    made = [await alice.post("/v1/jobs", json=MINE | {"name": f"j{n}"}) for n in range(4)]
    assert [answer.status_code for answer in made] == [200, 200, 200, 429]
    assert len(os.listdir(site.data / "alice" / "jobs")) == 3, "the one that isn't has no folder"
    slurm.set(100, "COMPLETED")
    await alice.get("/v1/jobs")
    assert (await alice.post("/v1/jobs", json=MINE)).status_code == 200
    over, live = (answer.json()["id"] for answer in made[:2])
    codes = [(await alice.post(f"/v1/jobs/{key}/requeue")).status_code for key in (over, live)]
    assert codes == [429, 200], "one that is over would be one more"
    assert (await site.of("bob").post("/v1/jobs", json=MINE)).status_code == 200


async def test_many_that_run_again_at_once_have_one_limit(site: Site, slurm: FakeSlurmrestd) -> None:
    alice, keys = site.of("alice"), []
    for number in range(5):
        made = await alice.post("/v1/jobs", json=MINE | {"name": f"j{number}"})
        keys.append(made.json()["id"])
        slurm.set(100 + number, "COMPLETED")
        await alice.get("/v1/jobs")
    answers = await asyncio.gather(*(alice.post(f"/v1/jobs/{key}/requeue") for key in keys))
    assert sorted(each.status_code for each in answers) == [200, 200, 200, 429, 429]


async def test_pages(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    made = []
    for n in range(3):
        made.append((await alice.post("/v1/jobs", json=MINE | {"name": f"j{n}"})).json()["id"])
    first = (await alice.get("/v1/jobs", params={"limit": 2})).json()
    rest = (await alice.get("/v1/jobs", params={"limit": 2, "after": first["last_id"]})).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert sorted(each["id"] for each in first["data"] + rest["data"]) == sorted(made)
    assert (await alice.get("/v1/jobs", params={"after": "job-x"})).status_code == 404
    assert (await alice.get("/v1/jobs", params={"status": "failed"})).json()["data"] == []


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "folder", "parent"])
async def test_a_log_that_is_something_else_is_not_read(site: Site, slurm: FakeSlurmrestd, kind: str) -> None:
    """A job's owner may put there what she likes; the service reads only what is hers."""
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    secret = site.data / "bob" / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("bob's")
    log = folder(site, key) / "log"
    if kind == "symlink":
        log.symlink_to(secret)
    elif kind == "hardlink":
        os.link(secret, log)
    elif kind == "fifo":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    else:
        (secret.parent / "log").write_text("bob's")
        log.parent.rmdir()
        log.parent.symlink_to(secret.parent)
    assert (await alice.get(f"/v1/jobs/{key}/log")).json() == {"text": "", "offset": 0, "size": 0}


async def test_a_log_as_it_comes(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    slurm.set(100, "COMPLETED")
    (folder(site, key) / "log").write_text("one\ndata: [DONE]\n</script>\n")
    answer = await alice.get(f"/v1/jobs/{key}/log?stream=true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [each for each in answer.text.split("\n\n") if each]
    assert json.loads(events[0].splitlines()[1].removeprefix("data: "))["text"].startswith("one\ndata:")
    assert events[1:] == ["data: [DONE]"]


async def test_fine_tuning_from_a_file_to_a_model(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    made = (await tuned(alice, suffix="greets", hyperparameters={"n_epochs": 2, "batch_size": 2})).json()
    key = made["id"]
    assert (made["object"], made["status"], made["hyperparameters"]["n_epochs"]) == ("fine_tuning.job", "queued", 2)
    script = slurm.submitted[0]["script"]
    for word in ("--steps=4", "--train.batch=2", f"--output.metrics={folder(site, key)}/metrics.jsonl"):
        assert word in script, script
    assert f"--export {folder(site, key)}/adapter" in script
    slurm.set(100, "RUNNING", nodes="n1")
    step = {"step": 1, "loss": 2.5, "loss_hex": "0x1", "tokens_per_s": 100.0, "mfu": None, "x": "<script>"}
    (folder(site, key) / "metrics.jsonl").write_text(json.dumps(step) + "\nno json\n" + '{"step": "1"}\n{"step"')
    (folder(site, key) / "checkpoints" / "step-00000001").mkdir(parents=True)
    events = (await alice.get(f"/v1/fine_tuning/jobs/{key}/events")).json()["data"]
    assert [each["message"] for each in events] == [
        "checkpoint of step 1 is written",
        "Step 1/4: training loss=2.5000",
        "running on n1",
        "queued: Slurm's job 100",
        "created: recipe finetune",
    ]
    assert (events[1]["type"], events[1]["data"]["train_loss"]) == ("metrics", 2.5)
    saved = (await alice.get(f"/v1/fine_tuning/jobs/{key}/checkpoints")).json()["data"]
    assert [(each["step_number"], each["metrics"]["train_loss"]) for each in saved] == [(1, 2.5)]
    assert (await alice.get(f"/v1/jobs/{key}/metrics")).json()["data"] == [
        {"step": 1, "loss": 2.5, "tokens_per_s": 100.0}
    ]
    adapter(folder(site, key) / "adapter")
    slurm.set(100, "COMPLETED")
    done = (await alice.get(f"/v1/fine_tuning/jobs/{key}")).json()
    assert (done["status"], done["fine_tuned_model"].rpartition(":")[0]) == ("succeeded", "ft:org-tiny:alice:greets")
    model = (await alice.get(f"/v1/models/{done['fine_tuned_model']}")).json()
    assert (model["base"], model["rank"], model["owned_by"]) == ("org/tiny", 8, "alice")
    stored = next((site.data / "alice" / "adapters").iterdir())
    assert sorted(os.listdir(stored)) == ["adapter_config.json", "adapter_model.safetensors"]
    assert [each["id"] for each in (await site.of("bob").get("/v1/models")).json()["data"]] == ["org/tiny"]
    assert (await site.of("bob").get(f"/v1/models/{model['id']}")).status_code == 404
    assert (await site.of("bob").delete(f"/v1/models/{model['id']}")).status_code == 404
    for name in sorted(os.listdir(stored)):
        there = f"/v1/models/{model['id']}/files/{name}"
        got = await alice.get(there, headers={"Accept": "text/html"})
        assert (got.content, got.headers["content-disposition"]) == (
            (stored / name).read_bytes(), f'attachment; filename="{name}"',
        )  # fmt: skip
        assert (await site.of("bob").get(there)).status_code == 404
    assert (await alice.get(f"/v1/models/{model['id']}/files/other")).status_code == 400
    base = await alice.get("/v1/models/org/tiny/files/adapter_config.json")
    assert base.json()["error"]["code"] == "base-model-downloads"
    more = (await tuned(alice, model=model["id"])).json()
    assert "--lora.adapter=" in slurm.submitted[1]["script"], more
    assert "--lora.rank=8)" in slurm.submitted[1]["script"], "an adapter keeps its rank"
    other = (await tuned(alice, model=model["id"], rocstack={"rank": 16})).json()["error"]
    assert (other["code"], other["param"]) == ("adapter-keeps-rank", "rank")
    assert (await alice.delete(f"/v1/models/{model['id']}")).json()["deleted"]
    assert not stored.exists()
    assert (await alice.delete("/v1/models/org/tiny")).json()["error"]["code"] == "base-model-stays"


@pytest.mark.parametrize("fault", ["none", "pickle", "short", "linked", "rank", "over quota"])
async def test_an_adapter_that_is_none(site: Site, slurm: FakeSlurmrestd, fault: str) -> None:
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    place = folder(site, key) / "adapter"
    if fault != "none":
        adapter(place, 4096 if fault == "rank" else 8)
    if fault == "pickle":
        (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")
    elif fault == "short":
        data = (place / "adapter_model.safetensors").read_bytes()
        (place / "adapter_model.safetensors").write_bytes(data[:-4])
    elif fault == "over quota":  # which counts holes, too: the copy has none
        os.truncate(place / "adapter_model.safetensors", 64 << 20)
    elif fault == "linked":
        (place / "adapter_model.safetensors").rename(site.data / "w")
        (place / "adapter_model.safetensors").symlink_to(site.data / "w")
    slurm.set(100, "COMPLETED")
    row = (await alice.get(f"/v1/fine_tuning/jobs/{key}")).json()
    assert (row["status"], row["fine_tuned_model"]) == ("failed", None)
    code = {"rank": "adapter-rank", "over quota": "adapter-over-quota"}.get(fault, "adapter-not-whole")
    assert row["error"]["code"] == code
    if fault == "over quota":
        assert "quota of 2 MiB" in row["error"]["message"]
        assert str(place) in row["error"]["message"]
        assert (place / "adapter_model.safetensors").exists()
    assert [each["id"] for each in (await alice.get("/v1/models")).json()["data"]] == ["org/tiny"]
    assert os.listdir(site.data / "alice" / "adapters") == []


async def test_adapters_that_come_at_once_have_one_quota(site: Site, slurm: FakeSlurmrestd) -> None:
    alice, keys = site.of("alice"), []
    for number in (100, 101):
        keys.append(key := (await tuned(alice, seed=number)).json()["id"])
        adapter(place := folder(site, key) / "adapter")
        data = 3 << 19  # of 2 MiB
        head = json.dumps(
            {"a.lora_A.weight": {"dtype": "F32", "shape": [data // 4], "data_offsets": [0, data]}}
        ).encode()
        (place / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(data))
        slurm.set(number, "COMPLETED")
    rows = [each.json() for each in await asyncio.gather(*(alice.get(f"/v1/fine_tuning/jobs/{key}") for key in keys))]
    assert sorted(row["status"] for row in rows) == ["failed", "succeeded"]
    assert next(row["error"]["code"] for row in rows if row["error"]) == "adapter-over-quota"
    assert len(os.listdir(site.data / "alice" / "adapters")) == 1


async def test_pause_and_resume(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    place = f"/v1/fine_tuning/jobs/{key}"
    assert (await alice.post(f"{place}/resume")).json()["error"]["code"] == "job-not-live"
    slurm.set(100, "RUNNING")
    assert (await alice.post(f"{place}/pause")).json()["status"] == "paused"
    assert slurm.cancelled == [(100, "TERM")]
    slurm.set(100, "COMPLETED")
    paused = (await alice.get(place)).json()
    assert paused["status"] == "paused", "it saved, and isn't done"
    assert paused["rocstack"]["state"] == "COMPLETED"
    resumed = (await alice.post(f"{place}/resume")).json()
    assert (resumed["status"], resumed["rocstack"]["slurm_job"]) == ("queued", 101)
    assert "dependency" not in slurm.submitted[1]["job"]
    assert slurm.submitted[1]["script"] == slurm.submitted[0]["script"]
    assert (await alice.get(f"/v1/train/jobs/{key}")).json()["status"] == "QUEUED"
    assert (await alice.post(f"/v1/train/jobs/{key}/cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"model": "org/tini"}, "model", "no-such-served-model"),
        ({"model": "../../etc"}, "model", "no-such-served-model"),
        ({"training_file": "file-x"}, "training_file", "no-such-file"),
        ({"validation_file": "file-x"}, "validation_file", "no-such-file"),
        ({"suffix": "a/b"}, "suffix", "bad-suffix"),
        ({"integrations": [{"type": "wandb"}]}, "integrations", "no-integrations"),
        ({"method": {"type": "dpo"}}, "method.type", "bad-request"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "bad-request"),
    ],
)
async def test_a_fine_tuning_that_cannot_be(site: Site, more: dict[str, Any], param: str, code: str) -> None:
    error = (await tuned(site.of("alice"), **more)).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


async def test_a_model_is_meant(site: Site) -> None:
    assert "did you mean 'org/tiny'" in (await tuned(site.of("alice"), model="org/tini")).json()["error"]["message"]


async def test_a_file_stays_while_a_job_needs_it(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    made = (await tuned(alice)).json()
    answer = await alice.delete(f"/v1/files/{made['training_file']}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "file-in-use")
    await alice.post(f"/v1/fine_tuning/jobs/{made['id']}/cancel")
    assert (await alice.delete(f"/v1/files/{made['training_file']}")).status_code == 200


async def test_events_as_they_come_until_the_end_and_again_from_one_on(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    rows = [json.dumps({"step": n, "loss": 1.0 / n}) for n in (1, 2)]
    (folder(site, key) / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    slurm.set(100, "FAILED")
    answer = await alice.get(f"/v1/fine_tuning/jobs/{key}/events?stream=true")
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    events = [json.loads(each) for each in data[:-1]]
    assert [each["message"].split(":")[0] for each in events] == [
        "created",
        "queued",
        "Step 1/3",
        "Step 2/3",
        "it failed",
    ]
    head = {"Last-Event-ID": events[2]["id"], "Accept": "text/event-stream"}
    again = await alice.get(f"/v1/fine_tuning/jobs/{key}/events", headers=head)
    assert again.text.count("data: {") == 2


async def test_a_stream_looks_at_new_steps_alone(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made the events of all steps each second: three streams of a long job kept the service from all others."""
    looks: list[int] = []
    real = progress.metrics

    def noted(*args: Any) -> Any:
        looks.append(args[3])
        return real(*args)

    monkeypatch.setattr(progress, "metrics", noted)
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    slurm.set(100, "RUNNING", nodes="n1")
    metrics = folder(site, key) / "metrics.jsonl"
    metrics.write_text("".join(f'{{"step": {step}, "loss": 1.5}}\n' for step in (1, 2)))
    caller = await site.service.door.caller(token("alice"))
    messages = []
    async for event in site.service.tuning.stream(caller, key):
        messages.append(event["message"])
        if event["message"].startswith("Step 2/"):
            with metrics.open("a") as file:
                file.write('{"step": 3, "loss": 1.5}\n')
            slurm.set(100, "FAILED")
    steps = [message for message in messages if message.startswith("Step")]
    assert [step.partition("/")[0] for step in steps] == ["Step 1", "Step 2", "Step 3"]
    assert looks[:2] == [0, 2]


async def test_what_a_job_writes_fills_no_memory(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that no float holds, more steps and more checkpoints than anybody looks at: the newest count."""
    monkeypatch.setattr(progress, "STEPS", 3)
    monkeypatch.setattr(progress, "READ", 2000)
    monkeypatch.setattr(storage, "LISTED", 4)
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    rows = [json.dumps({"step": each, "loss": 1.5}) for each in range(500)]
    odd = [f'{{"step": {500 + at}, "loss": {number}}}' for at, number in enumerate(("9" * 400, "1e308", "NaN"))]
    (folder(site, key) / "metrics.jsonl").write_text("\n".join([*rows, *odd]) + "\n")
    for step in range(9):
        (folder(site, key) / "checkpoints" / f"step-{step}").mkdir(parents=True)
    slurm.set(100, "RUNNING", nodes="n1")
    assert (await alice.get(f"/v1/jobs/{key}/metrics")).json()["data"] == [{"step": 500 + at} for at in range(3)]
    events = (await alice.get(f"/v1/fine_tuning/jobs/{key}/events")).json()["data"]
    assert len([each for each in events if each["message"].startswith("Step ")]) == 3
    assert len((await alice.get(f"/v1/fine_tuning/jobs/{key}/checkpoints")).json()["data"]) == 4
    page = await alice.get(f"/jobs/{key}")
    assert page.status_code == 200


async def test_a_log_goes_on_from_any_word_of_a_reader(site: Site, slurm: FakeSlurmrestd) -> None:
    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    (folder(site, key) / "log").write_text("hello\n")
    slurm.set(100, "FAILED")
    for last in ("²".encode("latin-1"), b"9" * 5000, b"-1"):
        head = [(b"Last-Event-ID", last), (b"Accept", b"text/event-stream")]
        answer = await alice.get(f"/v1/jobs/{key}/log", headers=head)
        assert "hello" in answer.text


async def test_each_change_is_in_the_audit_log(site: Site, slurm: FakeSlurmrestd) -> None:
    from sqlalchemy import select

    from rocstack.service.tables import AuditLine

    alice = site.of("alice")
    key = (await tuned(alice)).json()["id"]
    await alice.post(f"/v1/jobs/{key}/cancel")
    rows = await site.service.database.run(lambda session: list(session.scalars(select(AuditLine))))
    assert [(row.who, row.what) for row in rows] == [
        ("alice", "file.create"),
        ("alice", "job.create"),
        ("alice", "job.cancel"),
    ]
    assert token("alice") not in str([vars(row) for row in rows])
