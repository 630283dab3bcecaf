"""The service's page as a person uses it: in a real browser, by mouse and by keyboard, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium_pipe import Page, chromium
from fake_slurmrestd import token
from service_site import PageSite, serving
from test_verify_report import BROWSER, BROWSERS

from rocstack.service.page import HTMX

pytestmark = pytest.mark.skipif(not BROWSER, reason=f"no browser is here ({', '.join(BROWSERS)})")
ALERT = "document.querySelector('main [role=alert]').textContent"
PAGES = (
    "/jobs", "/jobs/JOB", "/new", "/new/mine", "/new/fine-tuning", "/files", "/models", "/cluster", "/size",
    "/try?model=org/llama",
)  # fmt: skip
TOO_WIDE = "[...document.querySelectorAll('*')].filter(each => each.scrollWidth > 360).map(each => each.tagName).join()"
TAB, ENTER = ("Tab", 9), ("Enter", 13, "\r")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    with serving(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(BROWSER, tmp_path / "profile") as page:
        yield page


def heading(page: Page) -> str:
    return str(page.value("document.querySelector('h1').textContent"))


def submitted(page: Page, site: PageSite, name: str) -> str:
    """The address of a new job's page."""
    page.go(f"{site.url}/new/mine")
    page.write("[name=name]", name)
    page.write("[name=words]", "python3 train.py")
    page.leaves(lambda: page.click("form[data-stay] button"))
    assert heading(page).startswith(name)
    return str(page.value("location.href"))


def test_a_refused_form_keeps_what_was_written_and_back_sends_nothing_again(page: Page, site: PageSite) -> None:
    form = f"{site.url}/new/mine"
    page.go(f"{site.url}/jobs")
    page.go(form)
    page.write("[name=name]", "refused-once")
    page.write("[name=words]", "python3 'train.py")
    page.click("form[data-stay] button")
    page.until("!!document.querySelector('main [role=alert]')")
    assert "No closing quotation" in page.value(ALERT)
    assert page.value("document.activeElement.getAttribute('role')") == "alert", "it is read out, and in sight"
    assert page.value("document.querySelector('[name=name]').value") == "refused-once"
    assert page.value("location.href") == form
    before = len(site.slurm.submitted)
    page.write("[name=words]", "python3 train.py")
    page.leaves(lambda: page.click("form[data-stay] button"))
    assert heading(page).startswith("refused-once")
    page.back()
    assert (page.value("location.href"), heading(page)) == (form, "New job: mine")
    page.back()
    assert page.value("location.href") == f"{site.url}/jobs"
    assert len(site.slurm.submitted) == before + 1


def test_a_file_that_cannot_train_is_refused_on_its_page(page: Page, site: PageSite, tmp_path: Path) -> None:
    for name, text in (("bad.jsonl", '{"text": 1}\n'), ("good.jsonl", '{"text": "a document"}\n' * 8)):
        (tmp_path / name).write_text(text)

    def upload(name: str) -> None:
        root = page.ask("DOM.getDocument")["root"]["nodeId"]
        node = page.ask("DOM.querySelector", nodeId=root, selector="[type=file]")["nodeId"]
        page.ask("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / name)])
        page.click("form[data-stay] button")

    page.go(f"{site.url}/files")
    upload("bad.jsonl")
    assert "line 1" in page.until(f"document.querySelector('main [role=alert]') && {ALERT}")
    page.leaves(lambda: upload("good.jsonl"))
    assert "good.jsonl" in page.value("document.querySelector('main table').textContent")


def test_a_job_is_ended_once_it_was_asked(page: Page, site: PageSite) -> None:
    address = submitted(page, site, "to-end")
    page.answer = False
    page.click("#cancel")
    page.until("document.querySelector('#cancel').offsetWidth")
    page.go(address)
    assert page.questions == ["End this job? What it has not saved is lost."]
    assert page.value("!!document.querySelector('#cancel')")
    page.answer = True
    page.leaves(lambda: page.click("#cancel"))
    assert page.value("document.querySelector('main .state').textContent") == "cancelled"


def test_who_is_not_answered_is_told_and_keeps_the_form(page: Page, site: PageSite) -> None:
    page.go(f"{site.url}/new/mine")
    page.ask("Network.enable")
    off = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.ask("Network.emulateNetworkConditions", offline=True, **off)
    page.write("[name=words]", "python3 train.py")
    page.click("form[data-stay] button")
    page.until("!document.querySelector('#old').hidden")
    assert page.value("document.querySelector('[name=words]').value") == "python3 train.py"
    page.ask("Network.emulateNetworkConditions", offline=False, **off)
    page.leaves(lambda: page.click("form[data-stay] button"))
    assert heading(page).startswith("mine")


def test_whose_session_is_over_keeps_the_form(page: Page, site: PageSite) -> None:
    page.go(f"{site.url}/new/mine")
    page.write("[name=words]", "python3 train.py")
    page.value("fetched = fetch; fetch = async () => new Response('', {status: 401})")
    page.click("form[data-stay] button")
    assert "signed out" in page.until("document.querySelector('#old').textContent")
    page.value("fetch = fetched")
    page.leaves(lambda: page.click("form[data-stay] button"))
    assert heading(page).startswith("mine")


@pytest.mark.parametrize(
    ("body", "says"),
    [('{"error": {"message": "of a proxy"}}', "doesn't answer"), ('<main><p role="alert">Later.</p></main>', "Later.")],
)
def test_an_answer_without_a_form_keeps_what_was_written(page: Page, site: PageSite, body: str, says: str) -> None:
    page.go(f"{site.url}/new/mine")
    page.write("[name=words]", "python3 train.py")
    page.value(f"fetch = async () => new Response(`{body}`, {{status: 503}})")
    page.click("form[data-stay] button")
    assert says in page.until("document.querySelector('#old').textContent")
    assert page.value("document.querySelector('[name=words]').value") == "python3 train.py"
    assert not page.value("document.querySelector('form[data-stay] button').disabled")


def test_a_job_by_keyboard_alone(page: Page, site: PageSite) -> None:
    page.go(f"{site.url}/new/mine")
    page.press(*TAB)
    assert page.value("document.activeElement.textContent") == "Skip to the content"
    page.press(*ENTER)
    page.until("location.hash == '#main'")
    for name, text in (("name", "by-keyboard"), ("words", "true")):
        while page.value("document.activeElement.name || ''") != name:
            page.press(*TAB)
            assert page.value("document.activeElement != document.body"), "the end of the page"
        page.ask("Input.insertText", text=text)
    page.leaves(lambda: page.press(*ENTER))
    assert heading(page).startswith("by-keyboard")


def test_enter_sends_a_token(page: Page, site: PageSite) -> None:
    page.go(f"{site.url}/login")
    page.write("[name=token]", token("alice"))
    page.leaves(lambda: page.press(*ENTER))
    assert page.value("location.pathname") == "/jobs"


@pytest.mark.skipif(not HTMX.exists(), reason="libjs-htmx isn't installed")
def test_what_renews_itself_waits_while_its_text_is_marked(page: Page, site: PageSite) -> None:
    page.go(f"{site.url}/jobs/{site.job}")
    log = "document.querySelector('pre.log')"
    renewed = "performance.getEntriesByType('resource').filter(each => each.name.endsWith('/part')).length"
    page.value(f"getSelection().selectAllChildren({log}); window.first = {log}")
    page.until(f"{renewed} >= 2")
    assert page.value(f"window.first === {log}"), "the marked text is still there"
    page.value("getSelection().removeAllRanges()")
    page.until(f"window.first !== {log}")


def test_a_phone_scrolls_down_and_never_sideways(page: Page, site: PageSite) -> None:
    page.window(360, 740, phone=True)
    wide = {}
    for path in PAGES:
        page.go(site.url + path.replace("JOB", site.job))
        assert len(page.value("document.body.innerText")) > 100, path
        if page.value("document.documentElement.scrollWidth > 360"):
            wide[path] = page.value(TOO_WIDE)
    assert not wide
