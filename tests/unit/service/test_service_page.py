"""The page in the test's process: what it shows, refuses and escapes. A browser looks at it in tests/integration."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import httpx
import pytest
from conftest import CHAT, Site, adapter, lines, tuned
from fake_slurmrestd import FakeSlurmrestd, recorded, token

from rocstack.service import jobs, page
from rocstack.service.curve import curve
from rocstack.service.slurm_answers import ClusterNode, SlurmJob

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
HERE = {"Origin": "http://test"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FRESH_S", 0.0)


def browser(site: Site, user: str = "alice") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=site.application, raise_app_exceptions=False)
    cookies = {"rocstack_token": token(user)} if user else {}
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=HERE, cookies=cookies)


def metrics(folder: Path, steps: int) -> None:
    rows = [{"step": n, "loss": 5 / n, "tokens_per_s": 900.0 + n} for n in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


async def started(site: Site, **fields: str) -> str:
    done = await browser(site).post("/new/mine", data={"words": "hostname", **fields})
    assert done.status_code == 303, done.text
    return done.headers["location"].rpartition("/")[2]


async def test_the_way_in_and_out(site: Site) -> None:
    page = browser(site, "")
    for path in ("/", "/jobs", "/files", "/new/fine-tuning"):
        found = await page.get(path)
        assert (found.status_code, "Paste your token" in found.text) == (401, True), path
    wrong = await page.post("/login", data={"token": "x"})
    assert (wrong.status_code, "This is no token of Slurm" in wrong.text) == (401, True)
    assert "over" in (await page.post("/login", data={"token": token("alice", -5)})).text
    for pasted in (f'"{token("alice")}"', f"Authorization: Bearer {token('alice')}"):
        assert (await page.post("/login", data={"token": pasted})).status_code == 303, pasted
    done = await page.post("/login", data={"token": f" SLURM_JWT={token('alice')}\n"})
    cookie = done.headers["set-cookie"]
    assert (done.status_code, done.headers["location"]) == (303, "/jobs")
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert "You have no jobs yet" in (await page.get("/jobs")).text
    out = await page.post("/logout")
    assert 'rocstack_token=""' in out.headers["set-cookie"]


async def test_nobody_beside_it_signs_people_in_as_himself(site: Site) -> None:
    """A job's page on another node, or somebody on the network, can give a browser a cookie of a plain name."""
    site.service.settings = site.service.settings.model_copy(update={"certificate": "c", "key": "k"})
    page = browser(site, "bob")
    page.base_url, page.headers["Origin"] = httpx.URL("https://test"), "https://test"
    assert (await page.get("/jobs")).status_code == 401
    done = await page.post("/login", data={"token": token("alice")})
    parts = {part.strip() for part in done.headers["set-cookie"].split(";")}
    assert {f"__Host-rocstack_token={token('alice')}", "Path=/", "Secure"} <= parts
    assert not any(part.lower().startswith("domain") for part in parts)
    assert "alice" in (await page.get("/jobs")).text
    out = await page.post("/logout")
    assert {'__Host-rocstack_token=""', "Max-Age=0", "Secure"} <= {
        part.strip() for part in out.headers["set-cookie"].split(";")
    }
    assert (await page.get("/jobs")).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": ""}]
)
async def test_another_sites_page_changes_nothing(site: Site, headers: dict[str, str]) -> None:
    key = await started(site)
    page = browser(site)
    page.headers.pop("Origin")
    for path in (f"/jobs/{key}/cancel", "/new/mine", "/logout", "/login"):
        assert (await page.post(path, data={"words": "x"}, headers=headers)).status_code in (401, 403), path
    assert (await site.service.jobs.rows.own(await site.service.door.caller(token("alice")), key)).status == "queued"


async def test_a_job_from_the_form_to_its_end(site: Site, slurm: FakeSlurmrestd) -> None:
    page, key = browser(site), await started(site, nodes="1", time="30m")
    assert slurm.submitted[0]["user"] == "alice"
    listed = (await page.get("/jobs")).text
    assert f'href="/jobs/{key}"' in listed
    assert "queued" in listed
    slurm.set(100, "RUNNING", nodes="n1")
    folder = site.data / "alice" / "jobs" / key
    (folder / "log").write_text("".join(f"line {n} <b>ö\n" for n in range(99_999)) + "step one\n")
    metrics(folder, 30)
    part = (await page.get(f"/jobs/{key}/part", headers={"HX-Request": "true"})).text
    assert "<html" not in part
    assert "step one" in part
    assert "line 99998 &lt;b&gt;" in part
    assert "line 9990 " not in part
    whole = await page.get(f"/jobs/{key}/log")
    assert (whole.headers["content-type"], whole.headers["x-content-type-options"]) == (
        "text/plain; charset=utf-8",
        "nosniff",
    )
    assert whole.text == (folder / "log").read_text()
    assert re.search(r'<path d="M[\d.,]+ L', part)
    assert "loss: 0.167 at step 30" in part
    assert "Cancel" in part
    assert (await page.post(f"/jobs/{key}/cancel")).status_code == 303
    assert slurm.cancelled[0][0] == 100
    after = (await page.get(f"/jobs/{key}")).text
    assert "Run again" in after
    assert ">Cancel<" not in after
    assert "30m" in after


async def test_the_use_of_gpus_and_what_is_not_known_of_it(site: Site, slurm: FakeSlurmrestd) -> None:
    page, alice = browser(site), site.of("alice")

    async def numbers(key: str) -> dict[str, str]:
        part = (await page.get(f"/jobs/{key}/part")).text
        return dict(re.findall(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", part))

    keys = []
    for number, gpus in enumerate((8, 0), 100):
        body = {"recipe": "mine", "arguments": ["hostname"], "nodes": 2, "gpus_per_node": gpus}
        keys.append((await alice.post("/v1/jobs", json=body)).json()["id"])
        slurm.set(number, "RUNNING", nodes="n[1-2]")
    some, none = [await numbers(key) for key in keys]
    assert (some["GPUs"], "unknown" in some["GPUs busy"]) == ("16", True)
    assert (none["GPUs"], "GPUs busy" in none) == ("none", False)
    rows = [{"step": n, "loss": 1.0, "gpu_busy": 90.0 + n, "mfu": 0.414, "memory_mb": 61400.0} for n in (1, 2)]
    (site.data / "alice/jobs" / keys[0] / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    some = await numbers(keys[0])
    assert (some["GPUs busy"], some["of the peak speed (MFU)"], some["MB of GPU memory"]) == ("92 %", "41.4%", "61,400")
    assert "GPUs busy, %: 92 at step 2" in (await page.get(f"/jobs/{keys[0]}/part")).text
    assert (await alice.get(f"/v1/jobs/{keys[0]}")).json()["slurm"]["gpus"] == 16


def test_gpus_of_a_job_as_slurm_counts_them() -> None:
    live, over = recorded("jobs")["jobs"][0], recorded("accounting")["jobs"][0]
    assert SlurmJob.of(live).gpus == SlurmJob.of_accounting(over).gpus == 8
    waits = live | {"tres_alloc_str": "", "tres_req_str": "cpu=1,node=2,billing=1,gres/gpu=16,gres/gpu:mi300x=16"}
    assert SlurmJob.of(waits).gpus == 16
    assert SlurmJob.of(live | {"tres_alloc_str": "cpu=1,xgres/gpu=3", "tres_req_str": None}).gpus == 0
    assert SlurmJob.of_accounting(over | {"tres": {"allocated": "x", "requested": [{"type": "gres"}]}}).gpus == 0


async def test_a_size_is_for_the_gpus_that_slurm_tells_of(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"gpu:mi355x:8(S:0-1)": "mi355x", "gpu:8": "", "craynetwork:4,gpu:mi250x:8": "mi250x", "": ""}
    nodes = {gres: ClusterNode.of({"gres": gres}) for gres in kinds}
    assert {gres: node.gpu for gres, node in nodes.items()} == kinds

    async def known(_: object) -> list[ClusterNode]:
        return [*nodes.values()][:1]

    monkeypatch.setattr(site.service.jobs.cluster, "nodes", known)
    monkeypatch.setattr(page, "HTMX", Path(__file__))
    assert "MI355X each" in (await browser(site).get("/size?model=llama-3.1-8b&nodes=1")).text
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 128, "vocab_size": 260, "num_key_value_heads": 1, "max_position_embeddings": 512}
    (Path(site.service.settings.models) / "org/tiny/config.json").write_text(json.dumps(config))
    own = (await browser(site).get("/size?model=org/tiny&nodes=1")).text
    assert "org/tiny on 1 node with" in own, "and not the path of its config"
    assert 'hx-get="/size"' in (await browser(site).get("/new/fine-tuning")).text


async def test_a_form_keeps_what_was_written_and_says_what_is_wrong(site: Site, slurm: FakeSlurmrestd) -> None:
    page = browser(site)
    done = await page.post("/new/trainer", data={"p.steps": "many", "nodes": "1", "p.config": HOSTILE})
    assert done.status_code == 400
    assert "&#39;many&#39; is no whole number" in done.text
    assert 'value="many"' in done.text
    assert "<script>alert" not in done.text
    assert (await page.post("/new/trainer", data={"nodes": "99"})).status_code == 400
    assert (await page.post("/new/trainer", data={"nodes": "x"})).status_code == 400
    assert (await page.post("/new/mine", data={"words": "'open"})).status_code == 400
    assert (await page.get("/new/nothing")).status_code == 400
    assert "Write the command and its arguments" in (await page.post("/new/mine", data={"words": " "})).text
    assert not slurm.submitted


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("n_epochs", "three", "Passes over the file (epochs): it must be a whole number, such as 2"),
        ("batch_size", "0", "Examples in a step (batch size): it must be 1 or more"),
        ("learning_rate_multiplier", "1,5", "Learning rate, times 0.0001: it must be a number, with a point"),
        ("learning_rate_multiplier", "nan", "Learning rate, times 0.0001: it must be"),
        ("gpus_per_node", "99999999999999999999", "GPUs of each node: it must be 64 or less"),
        ("nodes", "-1", "Nodes: it must be 1 or more"),
        ("nodes", "9" * 5000, "Nodes: the number is too long"),
        ("time", "1 hour", "&#39;1 hour&#39; is not a time such as 90m"),
        ("suffix", "日本", "A suffix has up to 40 letters"),
    ],
)
async def test_a_wrong_field_is_named_as_the_form_names_it(site: Site, field: str, value: str, says: str) -> None:
    page = browser(site)
    await page.post("/files", files={"file": ("a.jsonl", lines(CHAT))})
    key = re.findall(r"file=([\w-]+)", (await page.get("/files")).text)[0]
    wrong = await page.post("/new/fine-tuning", data={"model": "org/tiny", "training_file": key, field: value})
    assert (wrong.status_code, says in wrong.text) == (400, True), re.findall('role="alert">(.*?)</p>', wrong.text)


@pytest.mark.parametrize(
    ("words", "mark"),
    [
        ("echo hi && pwd", "&amp;&amp;"), ("cat a | wc", "|"), ("a; b", ";"), ("a >out", "&gt;"),
        ("a 2>&1", "2&gt;&amp;"), ("bash -c 'echo hi && pwd | cat; ls'", ""), ('python3 t.py --x="a | b"', ""),
        ("t.py --url=http://h/?a=1&b=2", ""), ("awk -F '|' x", ""), ("t.py a\\;", ""),
    ],
)  # fmt: skip
async def test_a_command_for_a_shell_is_not_taken_for_words(site: Site, words: str, mark: str) -> None:
    done = await browser(site).post("/new/mine", data={"words": words})
    assert done.status_code == (400 if mark else 303)
    assert not mark or f"no shell runs it, so {mark} is only a word" in done.text


async def test_a_cluster_without_gpus_promises_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(_: object) -> list[ClusterNode]:
        return [ClusterNode.of({"name": "n1", "gres": gres})]

    monkeypatch.setattr(site.service.jobs.cluster, "nodes", known)
    monkeypatch.setattr(page, "HTMX", Path(__file__))
    client, size = browser(site), "/size?model=llama-3.1-8b&gpu=mi300x&nodes="
    for gres, says in (
        ("", "This cluster has 1 node and no GPUs."), ("gpu:mi300x:8", "This cluster has 1 node."),
        ("gpu:mi250x:8", "This cluster has 1 node with MI250X."),
    ):  # fmt: skip
        assert f"<b>{says}</b>" in (await client.get(f"{size}2")).text, gres
        form = (await client.get("/new/fine-tuning")).text
        assert ("have no GPUs" in form, 'hx-get="/size"' in form) == (not gres, bool(gres))
    gres = "gpu:mi300x:8"
    assert "This cluster has" not in (await client.get(f"{size}1")).text


def test_a_rough_number_has_no_exponent() -> None:
    values = {180.0: "180", 1734.0: "1,700", 0.000781: "0.00078", 2.0: "2", 0.0: "0"}
    assert {value: page._rough(value) for value in values} == values


async def test_the_form_offers_what_there_is_and_slurm_gets_what_was_chosen(site: Site, slurm: FakeSlurmrestd) -> None:
    page = browser(site)
    shown = (await page.get("/new/mine")).text
    assert '<option value="normal">normal (priority' in shown
    assert '<select name="partition">' in shown
    await started(site, name="try-1", gpus_per_node="2", qos="normal")
    job = slurm.submitted[0]["job"]
    assert (job["name"], job["tres_per_node"], job["qos"]) == ("try-1", "gres/gpu:2", "normal")
    slurm.down = True
    shown = (await page.get("/new/mine")).text
    assert '<input name="qos"' in shown, "it can be written where Slurm doesn't tell"


async def test_a_person_who_goes_wrong_gets_a_page_and_a_program_an_answer(site: Site) -> None:
    page, html = browser(site), {"Accept": "text/html,*/*"}
    found = await page.get("/nonsense", headers=html)
    assert (found.status_code, "There is no such page" in found.text) == (404, True)
    assert "script-src 'self';" in found.headers["content-security-policy"]
    assert (await page.get("/jobs/x", headers=html)).text.count("Sign out alice") == 1, "the way on is there"
    for path in ("/nonsense", "/v1/nonsense"):
        headers = html if path.startswith("/v1") else {}
        assert (await page.get(path, headers=headers)).json()["error"]["code"] == "no-such-page"


async def test_where_it_runs_is_said_in_names(site: Site, slurm: FakeSlurmrestd) -> None:
    page, key = browser(site), await started(site)
    for nodes, said in (
        ("n[1-2]", "It runs on n1, n2, for "), ("n[01-16]", "n01, n02, n03 and 13 more, for "), ("n[1", "on n[1, for ")
    ):  # fmt: skip
        slurm.set(100, "RUNNING", nodes=nodes)
        assert said in (await page.get(f"/jobs/{key}")).text
    slurm.set(100, "FAILED", nodes="n1")
    shown = (await page.get(f"/jobs/{key}")).text
    assert "It failed." in shown
    assert "It wrote nothing." in shown


async def test_what_is_waited_for_and_what_failed_is_said_in_the_list(site: Site, slurm: FakeSlurmrestd) -> None:
    """A job of no time limit counts as one of a year: an expected start after it is none."""
    page, key = browser(site), await started(site)
    far = {"set": True, "infinite": False, "number": int(time.time()) + 360 * 86400}
    slurm.set(100, "PENDING", "Resources", start_time=far)
    shown = (await page.get(f"/jobs/{key}")).text
    assert "It is next; it waits until enough nodes are free." in shown
    assert "When it starts isn&#39;t known" in shown or "When it starts isn't known" in shown
    assert "expected to start" not in shown
    assert (await site.of("alice").get(f"/v1/jobs/{key}")).json()["expected_start"] is None
    assert '<button id="cancel"' in shown, "by its id it keeps the keyboard's place when the part is renewed"
    down = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    slurm.set(100, "PENDING", "Resources", state_description=down)
    assert "nodes that it needs are down, take no new jobs" in (await page.get("/jobs")).text
    slurm.set(100, "PREEMPTED")  # and isn't requeued
    shown = (await page.get("/jobs")).text
    assert "a job with a higher priority took its place" in shown
    assert ">failed<" in shown
    await started(site)
    code = {"return_code": {"set": True, "infinite": False, "number": 143}, "signal": {}}
    slurm.set(101, "TIMEOUT", exit_code=code)
    assert re.search(r"it reached its time limit\s*<", (await page.get("/jobs")).text), "its code says no more"


async def test_a_fine_tuning_from_a_file(site: Site, slurm: FakeSlurmrestd) -> None:
    page = browser(site)
    bad = await page.post("/files", files={"file": ("a.jsonl", b'{"messages": []}\n{"x": 1}\n')})
    assert bad.status_code == 400
    assert "The file a.jsonl isn" in bad.text
    assert "line 1:" in bad.text
    good = await page.post("/files", files={"file": (f"{HOSTILE}.jsonl", lines(CHAT))})
    assert good.status_code == 303
    listed = (await page.get("/files")).text
    assert "<script>" not in listed
    assert "<img" not in listed
    key = re.findall(r"file=([\w-]+)", listed)[0]
    form = (await page.get(f"/new/fine-tuning?file={key}&model=org/tiny")).text
    assert f'value="{key}" selected' in form
    body = {"model": "org/tiny", "training_file": key, "suffix": "mine", "n_epochs": "2", "nodes": "1"}
    wrong = await page.post("/new/fine-tuning", data=body | {"rank": "0"})
    assert (wrong.status_code, "rank" in wrong.text) == (400, True)
    done = await page.post("/new/fine-tuning", data=body)
    assert done.status_code == 303, done.text
    assert slurm.submitted[0]["job"]["name"] == "finetune-mine"
    shown = (await page.get(done.headers["location"])).text
    assert "Pause" in shown
    assert (await page.post(f"/files/{key}/delete")).status_code == 409, "the job needs it"
    await page.post(f"{done.headers['location']}/cancel")
    assert (await page.post(f"/files/{key}/delete")).status_code == 303


async def test_a_paused_job_says_what_it_holds_and_from_where_it_goes_on(site: Site, slurm: FakeSlurmrestd) -> None:
    page = browser(site)
    await page.post("/files", files={"file": ("a.jsonl", lines(CHAT))})
    file = re.findall(r"file=([\w-]+)", (await page.get("/files")).text)[0]
    done = await page.post("/new/fine-tuning", data={"model": "org/tiny", "training_file": file, "n_epochs": "2"})
    place = done.headers["location"]
    slurm.set(100, "RUNNING", nodes="n1")
    shown = (await page.get(place)).text
    assert "It runs on n1" in shown
    assert "It starts up: the model is loaded before the first step." in shown
    metrics(folder := site.data / "alice" / place.removeprefix("/"), 2)
    shown = (await page.get(place)).text
    assert re.search(r"<dt>step</dt><dd>2 <small>of \d</small></dd>", shown)
    assert "It starts up" not in shown
    await page.post(f"{place}/pause")
    shown = (await page.get(place)).text
    assert "It saves what it has; then its nodes are free for others." in shown
    assert "it saves what it has" in (await page.get("/jobs")).text
    slurm.set(100, "CANCELLED", nodes="n1")
    shown = (await page.get(place)).text
    assert "It holds no nodes. Resume begins at its start: nothing of it was saved." in shown
    assert "It runs on" not in shown
    (folder / "checkpoints/step-00000002").mkdir(parents=True)
    assert "Resume goes on from step 2." in (await page.get(place)).text
    assert "it holds no nodes" in (await page.get("/jobs")).text
    await page.post(f"{place}/cancel")
    assert "It was cancelled; Run again goes on from step 2." in (await page.get(place)).text


async def test_hostile_text_is_text(site: Site, slurm: FakeSlurmrestd) -> None:
    page, key = browser(site), await started(site)
    slurm.set(100, "FAILED", nodes=HOSTILE)
    (site.data / "alice" / "jobs" / key / "log").write_text(HOSTILE)
    for path in (f"/jobs/{key}", f"/jobs/{key}/part", "/jobs", "/jobs/rows"):
        found = await page.get(path)
        assert "<script>alert" not in found.text, path
        assert "<img" not in found.text, path
        assert "script-src 'self';" in found.headers["content-security-policy"]
        assert "unsafe" not in found.headers["content-security-policy"]


async def test_nobody_sees_anothers(site: Site) -> None:
    key, bob = await started(site), browser(site, "bob")
    for path in (f"/jobs/{key}", f"/jobs/{key}/part", f"/jobs?after={key}"):
        found = await bob.get(path)
        assert (found.status_code, "<h1>That can" in found.text) == (404, True), path
    assert (await bob.post(f"/jobs/{key}/cancel")).status_code == 404
    assert (await bob.post(f"/jobs/{key}/explode")).status_code == 403


async def test_a_part_of_a_page_leads_to_the_way_in(site: Site) -> None:
    found = await browser(site, "").get("/jobs/rows", headers={"HX-Request": "true"})
    assert (found.status_code, found.headers["hx-refresh"]) == (401, "true")
    late = browser(site, "")
    late.cookies.set("rocstack_token", token("alice", -5))
    assert "The token of alice is over" in (await late.get("/jobs")).text, "as the whole page says"


async def test_slurm_away_is_said_and_nothing_is_lost(site: Site, slurm: FakeSlurmrestd) -> None:
    page, key = browser(site), await started(site)
    slurm.down = True
    assert (await page.get(f"/jobs/{key}")).status_code == 200
    away = await page.get("/cluster")
    assert (away.status_code, 'http-equiv="refresh"' in away.text) == (503, True), "it comes back by itself"
    ended = await page.post(f"/jobs/{key}/cancel")
    assert (ended.status_code, 'http-equiv="refresh"' in ended.text) == (503, False), "what was sent isn't sent again"
    slurm.down = False
    assert "take jobs" in (await page.get("/cluster")).text


async def test_an_adapter_is_downloaded_and_deleted(site: Site, slurm: FakeSlurmrestd) -> None:
    page, key = browser(site), (await tuned(site.of("alice"), suffix="mine")).json()["id"]
    adapter(site.data / "alice/jobs" / key / "adapter")
    slurm.set(100, "COMPLETED")
    await page.get(f"/jobs/{key}")
    shown = (await page.get("/models")).text
    links = re.findall(r'href="(/v1/models/[^"]+)"', shown)
    assert [link.rpartition("/")[2] for link in links] == ["adapter_config.json", "adapter_model.safetensors"]
    assert (await page.get(links[0])).json() == {"peft_type": "LORA", "r": 8}
    [delete] = re.findall(r'action="(/models/[^"]+/delete)"', shown)
    assert (await browser(site, "bob").post(delete)).status_code == 404
    assert (await page.post(delete)).status_code == 303
    assert "/v1/models/" not in (await page.get("/models")).text


async def test_the_cluster_and_a_size(site: Site) -> None:
    page = browser(site)
    shown = (await page.get("/cluster")).text
    assert "2 of 2 nodes take jobs" in shown
    assert "Fine-tune" in (await page.get("/models")).text
    sized = (await page.get("/size?model=llama-3.1-8b&method=full&nodes=2")).text
    assert "fits" in sized
    assert "tokens a second" in sized
    part = (await page.get("/size?model=nothing", headers={"HX-Request": "true"})).text
    assert "<html" not in part
    assert 'role="alert"' in part


async def test_static_files_are_those_three(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = browser(site)
    monkeypatch.setattr(page, "HTMX", tmp_path / "htmx.min.js")
    names = ("page.css", "page.js", "../service.yml", "htmx.js")
    assert [(await client.get(f"/static/{name}")).status_code for name in names] == [200, 200, 404, 404]
    (tmp_path / "htmx.min.js").write_text("script")
    assert (await client.get("/static/htmx.js")).text == "script"
    assert '<script src="/static/htmx.js" defer>' in (await client.get("/jobs")).text


def test_a_curve() -> None:
    assert curve("x", []) is None
    assert curve("x", [(1, 2.0)]) is None
    assert curve("x", [(1, 2.0), (2, float("nan"))]) is None
    flat = curve("x", [(1, 2.0), (2, 2.0)])
    assert flat
    assert len(flat.rows) >= 2
    assert curve("x", [(1, 0.0), (2, 5e-324)])
    made = curve("loss", [(step, 1000 / step) for step in range(1, 100_001)])
    assert made
    assert made.path.count("L") < 400
    assert [tick.text for tick in made.columns] == ["1", "100,000"]
    assert all(0 <= tick.at <= 200 for tick in made.rows)
    assert made.last == "0.01"
