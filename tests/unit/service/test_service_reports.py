"""Verify reports in the service: what the interface and the page tell of them, and what they may hold."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Site
from fake_slurmrestd import FakeSlurmrestd, token
from made_runs import on, result, run
from simulated_run import simulated_run

from rocstack.cluster.service import REPORT_MIB, report_name
from rocstack.service import reports
from rocstack.verify.result import Run

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e"


def put(site: Site, found: Run | str, level: int = 3) -> Path:
    folder = Path(site.service.settings.reports)
    folder.mkdir(exist_ok=True)
    file = folder / report_name(level)
    file.write_text(found if isinstance(found, str) else found.dumps())
    return file


async def shown(site: Site, path: str = "/cluster") -> Any:
    site.client.cookies.set("rocstack_token", token("alice"))
    return await site.client.get(path)


async def test_there_is_none_yet(site: Site) -> None:
    alice = site.of("alice")
    assert (await alice.get("/v1/verify/reports")).json()["data"] == []
    assert (await alice.get("/v1/verify/reports/1")).json()["error"]["code"] == "no-such-report"
    page = (await shown(site)).text
    assert "rocstack verify INVENTORY" in page
    assert "Last verify</th>" not in page


async def test_the_last_of_each_level_the_newest_first(site: Site) -> None:
    put(site, simulated_run(2, bad=("n2",), slow=()))
    put(site, run(result(on("n1"), on("n2")), id="later", when="2026-11-24T00:00:00Z"), 1)
    alice = site.of("alice")
    newest, older = (await alice.get("/v1/verify/reports")).json()["data"]
    assert (newest["id"], newest["level"], newest["passed"], newest["failed"]) == ("later", 1, True, [])
    assert [each["state"] for each in newest["nodes"]] == ["passing", "passing"]
    assert (older["passed"], older["proved"], older["virtual"]) == (False, 1, False)
    assert older["nodes"][1]["state"] == "failing"
    assert "gpu-count" in older["nodes"][1]["failed"]
    whole = (await alice.get(f"/v1/verify/reports/{older['id']}")).text
    assert whole == simulated_run(2, bad=("n2",), slow=()).dumps()
    page = (await shown(site)).text
    assert "2 of 2 nodes pass level 1" in page
    assert 'viewBox="0 0' in page, "the drawing is of the newest run that has one"
    assert "GPU 7" in page
    assert f'href="/cluster/reports/{older["id"]}"' in page


async def test_the_page_says_of_each_node_what_it_is_and_what_fails(site: Site) -> None:
    file = put(site, simulated_run(4, bad=("n2",), slow=(), virtual=True))
    page = (await shown(site)).text
    assert re.search(r"<td>n2</td>.*?>fails</span>.*?virtual.*?gpu-count", page, re.S)
    assert re.search(r"<td>n1</td>.*?>passes</span>", page, re.S)
    assert "emulated" in page
    assert "Every GPU of the node is there" in page
    assert "<code>rocstack doctor</code> on the node" in page
    assert len(page) < 60_000
    file.write_text(simulated_run(4, bad=(), slow=()).dumps())
    assert "fails</span>" not in (await shown(site, "/cluster/part")).text, "a new one is read at once"


async def test_a_large_cluster_is_a_small_page(site: Site, slurm: FakeSlurmrestd) -> None:
    slurm.nodes = 1000
    put(site, simulated_run(40, bad=[f"n{n}" for n in range(20, 41)], slow=()))
    page = (await shown(site)).text
    assert len(page) < 250_000
    assert "1000 of 1000 nodes take jobs. The first 200 are shown" in page
    assert page.index("<td>n40</td>") < page.index("<td>n1</td>")


async def test_what_nodes_said_is_text(site: Site) -> None:
    bad = result(on("n1", "failed", HOSTILE, evidence=HOSTILE), on("n2"))
    bad = bad.model_copy(update={"check": bad.check.model_copy(update={"title": HOSTILE, "next_step": HOSTILE})})
    devices = {"gpus": [{"index": 0, "name": HOSTILE}], "nics": [{"name": HOSTILE, "state": HOSTILE}]}
    drawn = result(on("n1"), name="topology").model_copy(
        update={"drawings": {"topology": {"nodes": {HOSTILE: devices}}, "other": HOSTILE, "matrix": [[[]]]}}
    )
    put(site, run(bad, drawn, id=HOSTILE, cluster=HOSTILE, who=HOSTILE, when=HOSTILE))
    row = (await site.of("alice").get("/v1/verify/reports")).json()["data"][0]
    assert (row["id"], row["created_at"]) == (HOSTILE, None)
    link = re.search(r'href="(/cluster/reports/[^"]+)"', (await shown(site)).text)
    for path in ("/cluster", "/cluster/part"):
        found = await shown(site, path)
        assert "<script>alert" not in found.text
        assert "<img" not in found.text
        assert "\u202e" not in found.text
        assert "unsafe" not in found.headers["content-security-policy"]
    assert link
    assert "/" not in link[1].removeprefix("/cluster/reports/")


async def test_the_whole_report_is_a_page_that_can_do_nothing(site: Site) -> None:
    put(site, simulated_run(2, bad=("n2",), slow=()))
    found = await shown(site, "/cluster/reports/20261120-233100")
    rules = [each.strip() for each in found.headers["content-security-policy"].split(";")]
    assert {"default-src 'none'", "sandbox", "form-action 'none'"} <= set(rules)
    assert not [each for each in rules if each.startswith(("script-src", "connect-src"))]
    assert "Every pair of nodes exchanges messages" in found.text
    assert (await shown(site, "/cluster/reports/none")).status_code == 404
    site.client.cookies.clear()
    for path in ("/cluster/reports/20261120-233100", "/v1/verify/reports", "/v1/verify/reports/20261120-233100"):
        assert (await site.client.get(path)).status_code == 401, path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a report of rocstack"),
        ("[" * 100_000, "can't be read"),
        (json.dumps({"schema": 99}), "format 99"),
        ("x" * ((REPORT_MIB << 20) + 1), f"more than {REPORT_MIB} MB"),
    ],
    ids=["cut", "deep", "newer", "large"],
)
async def test_one_that_cannot_be_read_is_said_and_hides_no_other(site: Site, text: str, why: str) -> None:
    put(site, text)
    put(site, run(id="good"), 1)
    assert [each["id"] for each in (await site.of("alice").get("/v1/verify/reports")).json()["data"]] == ["good"]
    page = (await shown(site)).text.replace("&#39;", "'")
    assert "report of level 3 can't be read" in page
    assert why in page
    assert "2 nodes pass" in page or "of 2 nodes" in page


async def test_it_is_read_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read, times = put(site, run(id="a")), reports.result.read, []
    monkeypatch.setattr(reports.result, "read", lambda path: times.append(path) or read(path))
    for _ in range(3):
        await shown(site)
    assert times == [file]
    file.write_text(run(id="b").dumps())
    os.utime(file, ns=(1, 1))
    assert (await site.of("alice").get("/v1/verify/reports")).json()["data"][0]["id"] == "b"


async def test_the_whole_is_the_file_and_not_made_anew(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have 24 MB: made for each who asks, it would cost seconds and hundreds of MB."""
    text = json.dumps(json.loads(run(id="a").dumps()), indent=1)
    put(site, text)
    monkeypatch.delattr(Run, "dumps")
    found = await site.of("alice").get("/v1/verify/reports/a")
    assert (found.text, found.headers["content-length"]) == (text, str(len(text)))
    put(site, "{")
    assert (await site.of("alice").get("/v1/verify/reports/a")).json()["error"]["code"] == "no-such-report"
