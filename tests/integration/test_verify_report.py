"""The report in a real browser, without network: it opens quickly, looks like something in light, dark, narrow and on
paper, and nothing runs beyond its edge."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from simulated_run import simulated_run

from rocstack.verify.report import page

# as tests/programs.sh
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), "")
# The page itself has no script and forbids any: the test measures a copy. It asks for the width first, so that all is
# laid out, and only the pixels are to be painted.
MEASURE = """<script>addEventListener('load', () => {
  const wide = document.documentElement.scrollWidth;
  document.title = wide && performance.now();
})</script>"""
# No window is less than 500 wide, so the page is shown in a frame.
FRAME = """<title></title>
<iframe frameborder="0" width="{width}" height="800" srcdoc="{text}"></iframe>
<script>onload = () => {{
  const inner = document.querySelector('iframe').contentWindow;
  document.title = [inner.document.documentElement.scrollWidth, inner.innerWidth].join(' ');
}}</script>"""

pytestmark = pytest.mark.skipif(not BROWSER, reason=f"no browser is here ({', '.join(BROWSERS)})")


def browse(folder: Path, file: Path, *options: str) -> str:
    return browse_url(folder, file.as_uri(), *options)


def browse_url(folder: Path, url: str, *options: str) -> str:
    """With a profile of its own; no name resolves, so nothing could be loaded from elsewhere."""
    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    words += [
        f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        *options,
    ]
    return subprocess.run([*words, url], capture_output=True, text=True, timeout=90, check=True).stdout


def shown(folder: Path, text: str) -> list[float]:
    """The numbers that a script of the test puts into the title."""
    copy = folder / "measured.html"
    copy.write_text(re.sub(r"<meta http-equiv=.*?>", "", text))
    dom = browse(folder, copy, "--dump-dom")
    found = re.search(r"<title>([\d. ]+)</title>", dom)
    assert found, dom[:300]
    return [float(number) for number in found[1].split()]


def pixels(file: Path) -> list[bytes]:
    """The rows of a picture, to see whether it is one colour."""
    with Image.open(file) as picture:
        data, line = picture.convert("RGB").tobytes(), 3 * picture.width
    return [data[at : at + line] for at in range(0, len(data), line)]


@pytest.fixture(scope="module")
def sixteen() -> str:
    before = simulated_run(16, bad=(), slow=(), when="2026-11-19T23:15:00Z")
    return page.html(simulated_run(16, absent=("n3",), virtual=True), before)


@pytest.mark.parametrize("nodes", [2, 1000])
def test_it_opens(nodes: int, tmp_path: Path) -> None:
    """docs/bench.md has the time that is wanted and what was measured; the printed line is the figure."""
    text = page.html(simulated_run(nodes, bad=[f"n{i}" for i in range(7, nodes, 9)]))
    text = text.replace("</body>", f"{MEASURE}</body>")
    seconds = min(shown(tmp_path, text)[0] / 1000 for _ in range(2))
    print(f"{nodes} nodes: {len(text) / 1e6:.2f} MB, laid out after {seconds:.2f} s")
    assert seconds > 0
    assert len(text) < 5_000_000


@pytest.mark.parametrize("width", [1280, 400])
def test_only_tables_scroll_sideways(sixteen: str, width: int, tmp_path: Path) -> None:
    wide, window = shown(tmp_path, FRAME.format(width=width, text=html.escape(sixteen)))
    assert wide <= window == width


def test_light_and_dark_are_drawn(sixteen: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(sixteen)
    seen = []
    for scheme in ("", "--blink-settings=preferredColorScheme=0"):
        shot = tmp_path / "shot.png"
        browse(tmp_path, file, f"--screenshot={shot}", "--window-size=1280,1600", *filter(None, [scheme]))
        rows = pixels(shot)
        assert len({bytes(row) for row in rows}) > 300, "it is empty"
        seen.append(rows)
    assert seen[0] != seen[1]


def test_it_prints(sixteen: str, tmp_path: Path) -> None:
    file, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(sixteen)
    browse(tmp_path, file, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    pages = re.findall(rb"/Type\s*/Page\b", paper.read_bytes())
    assert 2 <= len(pages) <= 12
