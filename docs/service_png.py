"""The picture of a job in service.md: `.venv/bin/python docs/service_png.py`. The jobs and numbers are made up."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/unit/support")]

from service_site import serving  # noqa: E402

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")

with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as site:
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,780"]
    file = ROOT / "docs/service-job.png"
    subprocess.run([*words, f"--screenshot={file}", f"{site.url}/jobs/{site.job}"], check=True, capture_output=True)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(64).save(file, optimize=True)
