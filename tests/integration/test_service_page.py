"""The service's page in a real browser: what others write on it runs nothing, and it fits a narrow window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chromium_pipe import chromium
from service_site import PageSite, serving, signing_in
from test_verify_report import BROWSER, BROWSERS, browse_url, pixels

from rocstack.cluster.service import report_name
from rocstack.verify import result

pytestmark = pytest.mark.skipif(not BROWSER, reason=f"no browser is here ({', '.join(BROWSERS)})")
UNKNOWN = "--ignore-certificate-errors"  # the page's is its own
HOSTILE = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> PageSite:
    with serving(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.mark.parametrize("path", ["/jobs/JOB", "/cluster", "/new/fine-tuning"])
def test_it_shows_something_in_light_and_dark(site: PageSite, tmp_path: Path, path: str) -> None:
    file, seen = tmp_path / "page.png", []
    for dark in ([], ["--blink-settings=preferredColorScheme=0"]):
        options = [f"--screenshot={file}", "--window-size=1100,900", *dark]
        browse_url(tmp_path, site.url + path.replace("JOB", site.job), *options)
        rows = pixels(file)
        assert len({*rows}) > 20, "it is one colour"
        seen.append(rows[-1])
    assert seen[0] != seen[1], "dark is as light"


def test_what_a_job_writes_runs_nothing(site: PageSite, tmp_path: Path) -> None:
    (site.folder / "log").write_text(HOSTILE)
    for row in site.slurm.jobs.values():
        row["nodes"] = HOSTILE
    dom = browse_url(tmp_path, f"{site.url}/jobs/{site.job}", "--dump-dom", "--virtual-time-budget=2000")
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title
    assert title[1] == "finetune-support · alpha"
    assert "&lt;script&gt;document.title" in dom


def test_what_nodes_said_to_verify_runs_nothing(site: PageSite, tmp_path: Path) -> None:
    file = site.reports / report_name(3)
    found = result.read(file)
    said = {"state": "failed", "why": HOSTILE, "evidence": HOSTILE}
    bad = tuple(each.model_copy(update=said) for each in found.results[0].measures)
    check = found.results[0].check.model_copy(update={"title": HOSTILE})
    results = (found.results[0].model_copy(update={"check": check, "state": "failed", "measures": bad}),)
    file.write_text(found.model_copy(update={"results": (*results, *found.results[1:])}).dumps())
    for path, name in (("/cluster", "Cluster · alpha"), (f"/cluster/reports/{found.id}", "simulated")):
        dom = browse_url(tmp_path, site.url + path, "--dump-dom", "--virtual-time-budget=2000")
        title = re.search(r"<title>(.*?)</title>", dom)
        assert title
        assert name in title[1]
        assert "&lt;script&gt;document.title" in dom


def test_who_comes_back_from_the_issuers_site_is_signed_in(tmp_path: Path) -> None:
    """A browser keeps the session's cookie, strict and this host's alone, from a request that another site began."""
    with signing_in(tmp_path) as url:
        also = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
        with chromium(BROWSER, tmp_path / "profile", also, UNKNOWN) as page:
            page.ask("Page.navigate", url=f"{url}/login/issuer")
            page.until("document.body && document.body.innerText.includes('Sign out alice')")
            assert page.value("document.querySelector('h1').textContent") == "Your jobs"
