"""Measures `rocstack build` beside the same package set in one plain Dockerfile, in one run.

    python bench/build [--only cold,warm,trainer,size,step,layer,render] [--out FILE]

Prints JSON. Both builds start from the same base, with no layer and no download cached: rocstack's by a stack of its
own name (its cache mounts carry it) and --no-cache. Both build the worker image; rocstack's time includes its smoke
test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
TRAINER = ("numpy", "pyarrow", "safetensors", "zstandard")  # what rocstack_trainer imports beside it
STEPS = 20
Result = dict[str, Any]


class CommandFailed(Exception):
    pass


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done


def timed(*command: str | Path, cwd: Path | None = None, **env: str) -> tuple[float, str]:
    started = time.monotonic()
    text = run(*command, cwd=cwd, **env).stdout
    return time.monotonic() - started, text


class Bench:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        self.tree = work / "tree"  # a copy, so that the trainer can be changed
        for part in ("cli", "images", "templates", "playbooks"):
            shutil.copytree(ROOT / part, self.tree / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        stack = (ROOT / "images/stacks/debian-13.yml").read_text()
        (work / f"{self.name}.yml").write_text(stack)
        lock = json.loads((ROOT / "images/stacks/debian-13.lock").read_text())
        (work / "bench.lock").write_text(json.dumps({**lock, "stack": self.name}))
        self.env = {"PYTHONPATH": str(self.tree / "cli"), "ROCSTACK_IMAGE_PREFIX": self.name}

    def rocstack(self, *words: str) -> tuple[float, str]:
        command = [sys.executable, "-m", "rocstack.cli.main", *words]
        stack = ["--stack", str(self.work / f"{self.name}.yml"), "--lock", "bench.lock"]
        return timed(*command, *stack, cwd=self.work, **self.env)

    def images(self) -> list[str]:
        listed = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
        return [name for name in listed if name.startswith((f"{self.name}/", f"{self.name}-"))]

    def cold(self) -> Result:
        base = self.base()  # neither side's time includes it
        ours, report = self.rocstack("build", "--no-cache", "--json", "--role", "worker")  # the peer has no control
        theirs = self.peer(base)
        worker = next(i for i in json.loads(report)["images"] if i["role"] == "worker")
        return {
            "cold": {
                "rocstack_s": round(ours, 1),
                "peer_s": round(theirs, 1),
                "ratio": round(ours / theirs, 3),
                "limit": 0.7,
                "rocstack_steps": {
                    f"{s['stage']}: {s['step']}": s["seconds"] for s in worker["steps"] if not s["cached"]
                },
            }
        }

    def base(self) -> str:
        """Makes the base image and nothing else, so that no cache of ours is filled."""
        code = (
            "from rocstack.edge import engine\n"
            "from rocstack.image import base_image\n"
            "from rocstack.settings.settings import Settings\n"
            "from rocstack.stack import stack\n"
            f"chosen = Settings(image_prefix={self.name!r})\n"
            f"name = {str(self.work / f'{self.name}.yml')!r}\n"
            "print(base_image.ensure(engine.connect(), stack.load(name), chosen, lambda text: None).reference)"
        )
        return timed(sys.executable, "-c", code, cwd=self.work, **self.env)[1].split()[-1]

    def peer(self, base: str) -> float:
        """Builds the peer from the packages that the stack's components name; gives its seconds."""
        folder = self.work / "peer"
        shutil.copytree(ROOT / "images/trainer/rocstack_trainer", folder / "rocstack_trainer", dirs_exist_ok=True)
        text = Path(__file__).with_name("Dockerfile.peer").read_text()
        sys.path.insert(0, str(self.tree / "cli"))
        from rocstack.stack import component, overlay, resolve, stack  # the copy under test

        chosen = stack.load("debian-13")
        value = resolve.resolve(
            chosen, "tcp", component.library("components"), component.library("nic"), overlay.Overlay()
        )
        for part in value.parts:
            words = " ".join(part.packages.packages + part.packages.worker_packages)
            text = text.replace(f"@{part.name}@", words)
        text = text.replace("@wheels@", " ".join(f"{n}=={v}" for n, v in chosen.wheels.items()))
        (folder / "Dockerfile").write_text(text)
        command = ["docker", "buildx", "build", "--no-cache", "--build-arg", f"BASE={base}", "-t", f"{self.name}-peer"]
        ca = next((os.environ[n] for n in ("PIP_CERT", "SSL_CERT_FILE") if os.environ.get(n)), None)
        command += ["--secret", f"id=ca,src={ca}"] if ca else []
        return timed(*command, str(folder))[0]

    def warm(self) -> Result:
        self.rocstack("build")  # the control image too
        times = [self.rocstack("build")[0] for _ in range(5)]
        return {
            "warm": {
                "median_s": round(statistics.median(times), 2),
                "all_s": [round(t, 2) for t in times],
                "limit_s": 3,
            }
        }

    def trainer(self) -> Result:
        """A change in the trainer: time, and what is new in the image."""
        reference = f"{self.name}/worker:{self.name}-tcp"
        before = set(self.layers(reference))
        with (self.tree / "images/trainer/rocstack_trainer/__init__.py").open("a") as file:
            file.write(f"# changed {time.time()}\n")
        seconds, _ = self.rocstack("build")
        fresh = [layer for layer in self.layers(reference) if layer not in before]
        return {
            "trainer_change": {
                "seconds": round(seconds, 2),
                "limit_s": 10,
                "new_layers": len(fresh),
                "new_layer_compressed_bytes": self.compressed(reference, fresh),
                "limit_bytes": 1_000_000,
            }
        }

    def layers(self, reference: str) -> list[str]:
        return list(json.loads(run("docker", "image", "inspect", reference).stdout)[0]["RootFS"]["Layers"])

    def compressed(self, reference: str, fresh: list[str]) -> int:
        """gzip size of the new layers, the last ones of the image."""
        archive = self.work / "image.tar"
        run("docker", "save", "-o", archive, reference)
        with tarfile.open(archive) as tar:
            manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
            files = manifest[0]["Layers"][-len(fresh) :] if fresh else []
            total = sum(len(gzip.compress(tar.extractfile(name).read())) for name in files)  # type: ignore[union-attr]
        archive.unlink()
        return total

    def size(self) -> Result:
        def measured(reference: str) -> int:
            return int(json.loads(run("docker", "image", "inspect", reference).stdout)[0]["Size"])

        ours, theirs = measured(f"{self.name}/worker:{self.name}-tcp"), measured(f"{self.name}-peer")
        return {
            "size": {
                "rocstack_bytes": ours,
                "peer_bytes": theirs,
                "ratio": round(ours / theirs, 3),
                "limit_ratio": 0.7,
                "limit_bytes": 1_600_000_000,
            }
        }

    def step(self) -> Result:
        """Median step of the tiny model on 2 ranks, image and host in turns."""
        venv = ROOT / ".rocstack" / "bench-venv"
        if not (venv / "done").exists() or (venv / "done").read_text() != " ".join(TRAINER):
            run(sys.executable, "-m", "venv", "--clear", venv)
            run(venv / "bin/pip", "install", "-q", TORCH, "transformers==5.23.0", *TRAINER)
            (venv / "done").write_text(" ".join(TRAINER))
        words = ["--config", "tiny", "--steps", str(STEPS), "--ranks", "2"]
        image = [
            "docker",
            "run",
            "--rm",
            "--no-healthcheck",
            "--ipc=host",
            f"{self.name}/worker:{self.name}-tcp",
            "rocstack-train",
        ]
        host = [venv / "bin/python", "-m", "rocstack_trainer"]
        inside: list[float] = []
        outside: list[float] = []
        for _ in range(3):
            inside.append(step_ms(run(*image, *words, cwd=self.work).stdout))
            outside.append(step_ms(run(*host, *words, cwd=self.work, PYTHONPATH=str(ROOT / "images/trainer")).stdout))
        ours, theirs = min(inside), min(outside)
        return {
            "trainer_step": {
                "image_ms": ours,
                "host_wheel_ms": theirs,
                "ratio": round(ours / theirs, 3),
                "limit": 1.2,
                "all_image_ms": inside,
                "all_host_ms": outside,
                "host_torch": TORCH,
            }
        }

    def layer(self) -> Result:
        """A NIC's layer on somebody's image of about 1 GB."""
        image = f"{self.name}/somebodys:1"
        packages = "apt-get update -qq && apt-get install -qq --no-install-recommends python3 >/dev/null"
        folder = self.work / "somebodys"
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {self.base()}\nRUN {packages} && head -c 900M /dev/urandom >/data\n")
        run("docker", "buildx", "build", "--quiet", "--tag", image, folder)
        command = [
            sys.executable,
            "-m",
            "rocstack.cli.main",
            "build",
            "--from",
            image,
            "--nic",
            "broadcom",
            "--no-cache",
        ]
        size = int(run("docker", "image", "inspect", "--format={{.Size}}", image).stdout)
        seconds, _ = timed(*command, cwd=self.work, **self.env)
        return {"layer": {"base_mb": round(size / 1e6), "cold_s": round(seconds, 1), "limit_s": 30}}

    def render(self) -> Result:
        times = [self.rocstack("render")[0] for _ in range(7)]
        return {"render": {"median_s": round(statistics.median(times), 3), "limit_s": 0.5}}

    def clean(self) -> None:
        """Removes the images and the download caches that this run made, and nothing else."""
        # A cache mount's description holds its id, and with it this run's name.
        prune = ["docker", "buildx", "prune", "--force", "--filter", f"description~={self.name}"]
        subprocess.run(prune, capture_output=True, check=False)
        for name in self.images():
            subprocess.run(["docker", "rmi", "-f", name], capture_output=True, check=False)


def step_ms(text: str) -> float:
    """The trainer's own median, from its closing line."""
    line = next(line for line in text.splitlines() if "median step" in line)
    return float(line.split("median step ")[1].split(" ms")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="cold,warm,trainer,size,step,layer,render")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    result: Result = {
        "command": " ".join(["python bench/build", *sys.argv[1:]]),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            if "cold" not in wanted and {"size", "trainer", "step"} & set(wanted):
                bench.rocstack("build")
            for name in ("cold", "size", "warm", "trainer", "step", "layer", "render"):
                if name in wanted:
                    print(f"measuring {name} ...", file=sys.stderr, flush=True)
                    try:
                        result |= getattr(bench, name)()
                    except (CommandFailed, OSError, LookupError, ValueError, StopIteration) as error:
                        result |= {name: {"failed": str(error) or type(error).__name__}}  # the others are measured
        finally:
            bench.clean()
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    sys.exit(any("failed" in part for part in result.values() if isinstance(part, dict)))


if __name__ == "__main__":
    main()
