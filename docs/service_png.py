"""The pictures of service.md: `.venv/bin/python docs/service_png.py`. Jobs, numbers, the report and the answer are made
up."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/unit/support")]

from service_site import serving  # noqa: E402

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")

with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as site:
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    asked = {"text": "I was charged twice for my order. Can I have one of them back?", "tokens": "256"}
    answered = httpx.post(f"{site.url}/try?model=org/llama", data=asked, headers={"Origin": site.url}).text
    (tried := Path(folder) / "try.html").write_text(answered.replace("<head>", f'<head><base href="{site.url}/">', 1))
    pages = {
        "job": (f"{site.url}/jobs/{site.job}", "1000,780"),
        "cluster": (f"{site.url}/cluster", "1000,1310"),
        "try": (f"file://{tried}", "1000,560"),
    }
    for name, (url, size) in pages.items():
        file = ROOT / f"docs/service-{name}.png"
        subprocess.run([*words, f"--window-size={size}", f"--screenshot={file}", url], check=True, capture_output=True)
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(128).save(file, optimize=True)
