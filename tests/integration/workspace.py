"""The command line as a person starts it: its own process and folder, and image names that nobody else uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocstack.virtual.cluster_layout import cluster_id

REPO = Path(__file__).resolve().parents[2]
STACK = "debian-13"


def engine(*args: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """One docker command."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=False, **options)
    assert not check or done.returncode == 0, f"docker {' '.join(args)}: {done.stderr}"
    return done


def inspect(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine("image", "inspect", image).stdout)[0]
    return found


@dataclass(frozen=True)
class Outcome:
    """One ended command."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def image(self, role: str) -> dict[str, Any]:
        """The report of one image of a `build --json`."""
        return next(image for image in self.json["images"] if image["role"] == role)

    def failure(self, role: str) -> dict[str, Any]:
        """Why one image of a `build --json` failed."""
        assert self.code == 1, self.err + self.out
        image = self.image(role)
        assert image["status"] == "failed"
        found: dict[str, Any] = image["failure"]
        return found

    def failures(self) -> str:
        """What a `build --json` says of what went wrong."""
        said = self.json if self.out else {}
        images = [image["failure"] for image in said.get("images", []) if image["failure"]]
        return json.dumps(images or said, indent=1)


@dataclass(frozen=True)
class Workspace:
    """A folder in which commands run; `tree` is the checkout whose program, images and templates are used."""

    folder: Path
    prefix: str
    tree: Path = REPO
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)  # ids of all images built here

    def command(self, *args: str) -> list[str]:
        return [self.python, "-m", "rocstack.cli.main", *args]

    def environ(self) -> dict[str, str]:
        # COLUMNS would tell the width of a terminal that ours is not: `pytest -n` sets it.
        mine = {k: v for k, v in os.environ.items() if not k.startswith("ROCSTACK_") and k != "COLUMNS"}
        paths = {"PYTHONPATH": str(self.tree / "cli"), "ROCSTACK_IMAGE_PREFIX": self.prefix}
        # The default stack has no code for the GPUs of virtual nodes.
        return {**mine, **paths, "ROCSTACK_REHEARSAL": "1", **self.env}

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        return subprocess.Popen(self.command(*args), cwd=self.folder, env=self.environ(), **{**streams, **options})

    def run(self, *args: str, timeout: float = 900) -> Outcome:
        started = time.monotonic()
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
            self.note_images()
        return Outcome(process.returncode, out, err, time.monotonic() - started)

    def build(self, *args: str) -> Outcome:
        """A build that must succeed."""
        done = self.run("build", "--json", *args)
        assert done.code == 0, done.err + done.failures()
        return done

    def nodes(self) -> dict[str, str]:
        """The virtual nodes of this folder, name -> id of the container; other folders have some under like names."""
        cluster = f"label=io.rocstack.local={cluster_id(self.folder / '.rocstack/local')}"
        form = '{{.Label "io.rocstack.local.node"}} {{.ID}}'
        lines = engine("ps", "--all", "--no-trunc", "--filter", cluster, "--format", form).stdout.splitlines()
        return dict(sorted(map(str.split, lines)))

    def note_images(self) -> None:
        for file in self.folder.glob(".rocstack/*/report.json"):
            images = json.loads(file.read_text())["images"]
            self.made.update(image["image_id"] for image in images if image["image_id"])

    def reference(self, role: str, nic: str = "tcp") -> str:
        return f"{self.prefix}/{role}:{STACK}-{nic}"

    def with_env(self, **env: str) -> Workspace:
        return replace(self, env={**self.env, **env})

    def with_tree(self, folder: Path) -> Workspace:
        """The same workspace with a copy of the checkout in `folder`, free to be changed."""
        unwanted = shutil.ignore_patterns("__pycache__", ".*")
        for name in ("cli", "images", "templates", "playbooks", "tests/cluster"):
            shutil.copytree(REPO / name, folder / name, ignore=unwanted)
        return replace(self, tree=folder)


@dataclass(frozen=True)
class Built:
    """The default stack, built for tcp."""

    workspace: Workspace
    first: Outcome

    @property
    def worker(self) -> str:
        return self.workspace.reference("worker")

    @property
    def control(self) -> str:
        return self.workspace.reference("control")


def stack_file(folder: Path, **changes: int) -> Path:
    """The default stack under its own name in another folder, with some of its numbers changed."""
    text = (REPO / f"images/stacks/{STACK}.yml").read_text()
    for key, value in changes.items():
        kept = [line for line in text.splitlines() if not line.startswith(f"{key}:")]
        assert len(kept) == len(text.splitlines()) - 1, f"the stack has no {key}"
        text = "\n".join([*kept, f"{key}: {value}", ""])
    file = folder / f"{STACK}.yml"
    file.write_text(text)
    return file


def edited_lock(folder: Path, edit: Any) -> None:
    """rocstack.lock in `folder`: the stack's own after `edit` changed it."""
    lock = json.loads((REPO / f"images/stacks/{STACK}.lock").read_text())
    edit(lock)
    (folder / "rocstack.lock").write_text(json.dumps(lock))
