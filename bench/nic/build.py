"""Measures what compiling a NIC's library adds to `rocstack build`, cold and with nothing changed, and beside it the
same library compiled in a container of the finished image, as it is done today at job start.

    python bench/nic/build.py [--out FILE]

Prints JSON, seconds. Cold means no layer cached; package archives and wheels are. The library is a stand-in for the
vendor's, made from rdma-core's source. The two cold builds run one after the other, so compare them on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "cli"), str(ROOT / "tests/support")]

import broadcom_standin  # noqa: E402

from rocstack.settings import site  # noqa: E402
from rocstack.settings.settings import Settings  # noqa: E402

LIMIT = 30.0  # seconds that the library may add to a cold build
WARM = 5.0  # and to one where nothing changed, all in all
COMPILER = "gcc libc6-dev make autoconf automake libtool libibverbs-dev"
RECIPE = "sh autogen.sh && ./configure && make && make install all"
PEER = f"""
FROM {{image}}
USER root
COPY {{tarball}} /src/
RUN --mount=type=bind,source=build,target=/run/rocstack/build \\
    --mount=type=secret,id=site-env,target=/run/rocstack/site.env \\
    --mount=type=secret,id=site-ca,target=/run/rocstack/ca.pem \\
    rm /etc/dpkg/dpkg.cfg.d/rocstack && /run/rocstack/build/apt-update && /run/rocstack/build/apt-install {COMPILER}
RUN cd /src && tar -xf *.tar.gz && cd libbnxt_re-{broadcom_standin.VERSION} && {RECIPE}
"""


class Bench:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.prefix = f"bench-{uuid.uuid4().hex[:8]}"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT / "cli"), "ROCSTACK_IMAGE_PREFIX": self.prefix}
        self.tarball = broadcom_standin.make_tarball(work)

    def build(self, *options: str) -> float:
        line = [sys.executable, "-m", "rocstack.cli.main", "build", "--nic", "broadcom", "--role", "worker", "--json"]
        started = time.monotonic()
        done = subprocess.run(
            [*line, *options], cwd=self.work, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        return time.monotonic() - started

    def with_library(self, *options: str) -> float:
        accept = ("--way", "source", "--nic-source", str(self.tarball), "--nic-accept", broadcom_standin.VERSION)
        return self.build(*accept, *options)

    def peer(self, folder: Path) -> float:
        """The recipe of AMD's multi-node guide, in a container of an image that lacks the library."""
        here = site.of(Settings())
        (folder / self.tarball.name).write_bytes(self.tarball.read_bytes())
        shutil.copytree(ROOT / "images/build", folder / "build")
        image = f"{self.prefix}/worker:debian-13-broadcom"
        text = PEER.format(image=image, tarball=self.tarball.name)
        line = ["docker", "buildx", "build", "--quiet", "--no-cache", "--tag", f"{self.prefix}/peer", "-f", "-"]
        line += ["--secret", "id=site-env,env=ROCSTACK_SITE_ENV"]
        line += ["--secret", f"id=site-ca,src={here.ca}"] if here.ca else []
        started = time.monotonic()
        env = {**os.environ, "ROCSTACK_SITE_ENV": here.env_file()}
        subprocess.run([*line, str(folder)], input=text, text=True, env=env, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - started

    def clean(self) -> None:
        listed = subprocess.run(
            ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True, check=True
        )
        for name in listed.stdout.split():
            if name.startswith(f"{self.prefix}/"):
                subprocess.run(
                    ["docker", "rmi", name], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(work))
        try:
            bench.with_library()  # every archive is there from now on
            plain, library = bench.build("--no-cache", "--way", "inbox"), bench.with_library("--no-cache")
            warm = bench.with_library()
            peer = bench.peer(Path(folder))
        finally:
            bench.clean()
    found = {
        "cold_inbox_s": round(plain, 1),
        "cold_source_s": round(library, 1),
        "library_adds_s": round(library - plain, 1),
        "limit_s": LIMIT,
        "nothing_changed_s": round(warm, 1),
        "limit_nothing_changed_s": WARM,
        "peer_at_job_start_s": round(peer, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    sys.exit(0 if library - plain < LIMIT and warm < WARM else 1)


if __name__ == "__main__":
    main()
