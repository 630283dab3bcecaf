"""Measures the trainer beside torch's DDP and FSDP2 and the Hugging Face Trainer, in the worker image.

    python bench/train [--only step,shard,link,codecs,diloco,all-reduce,ranks,starts,gpu] [--image NAME] [--out FILE]

A table per part on stderr, one JSON on stdout. Each part is one container without a network: what it makes (network
namespaces, shaped links, files) goes with it, also on Ctrl-C. accelerate, which only the Hugging Face Trainer needs,
is mounted from a temporary folder. The trainer is this tree's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import link

ROOT = Path(__file__).resolve().parents[2]
PEER = "accelerate==1.15.0"
LINK = ["--rate", "100mbit", "--model", "dense", "--steps", "14", "--seeds", "3"]  # under ten minutes
CODECS = "ddp,ddp#2,flat:bf16,flat:int8,flat:int8+zstd,flat:int5+zstd,flat:int4+zstd,flat:int3+zstd"
CODECS += ",ddp:16bit,ddp:powersgd:16,ddp:powersgd:4,alone"
LOSSY = "ddp,ddp:16bit,ddp:powersgd:16,ddp:powersgd:4,flat:int8+zstd,flat:int5+zstd,flat:int4+zstd,flat:int3+zstd"
PARTS = {
    "step": ["compare.py", "--sides", "ddp,ddp#2,flat,loop,trainer", "--steps", "60"],
    "shard": ["compare.py", "--sides", "fsdp2,fsdp2#2,sharded", "--steps", "60"],
    "link": ["compare.py", *LINK, "--sides", CODECS],
    "codecs": ["compare.py", "--model", "dense", "--steps", "120", "--seeds", "3", "--sides", LOSSY],
    "diloco": ["diloco.py", "--rate", "100mbit", "--steps", "3000"],
    "all-reduce": ["sums.py", "all-reduce", "--ranks", "2", "--json"],
    "ranks": ["ranks.py", "--json"],
    "starts": ["starts.py", "--json"],
    "gpu": ["compare.py", "--device", "cuda", "--model", "gpu", "--sides", "ddp,ddp#2,flat,trainer"],
}
MISSING = 3  # the exit code of what the image lacks
PEER_PARTS = {"step", "gpu"}  # one of their sides is the Hugging Face Trainer
HOSTS = {"control": link.CONTROL, "rank0": link.address(0), "rank1": link.address(1)}
NEEDS = ["--network=none", *(f"--add-host={name}:{address}" for name, address in HOSTS.items())]
NEEDS += ["--cap-add=NET_ADMIN", "--cap-add=SYS_ADMIN", "--shm-size=1g"]
GPU = ["--network=none", "--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"]


class Bench:
    def __init__(self, image: str, peer: Path) -> None:
        self.image, self.peer = image, peer
        self.name = f"rocstack-bench-{uuid.uuid4().hex[:8]}"

    def fetch_peer(self) -> str:
        """Here and not in the container, whose network could lack this site's certificates and mirrors; what pip says
        if it fails."""
        line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(self.peer), PEER]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr)[-4000:] if done.returncode else ""

    def part(self, words: list[str], options: list[str]) -> dict[str, Any]:
        mounts = {ROOT / "bench/train": "/bench", ROOT / "images/trainer": "/trainer", self.peer: "/peer"}
        env = {
            "PYTHONPATH": "/trainer:/peer",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
        }
        command = ["docker", "run", "--rm", "--init", "--no-healthcheck", "--entrypoint=", "--workdir=/bench"]
        command += [f"--name={self.name}", *options]
        command += [f"--volume={here}:{there}:ro" for here, there in mounts.items()]
        command += [f"--env={key}={value}" for key, value in env.items()]
        try:
            done = subprocess.run([*command, self.image, "python3", *words], stdout=subprocess.PIPE, text=True)
        finally:
            subprocess.run(["docker", "kill", self.name], capture_output=True, check=False)
        if done.returncode == MISSING:
            return {"skipped": "this image's PyTorch can't do it, see above"}
        if done.returncode:
            return {"failed": f"exit code {done.returncode}"}
        return dict(json.loads(done.stdout))


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """What was wanted, beside what came out; how far the peer differs from itself is noise."""
    judged: dict[str, Any] = {}
    if sides := result.get("step", {}).get("sides"):
        again, ours = sides["ddp#2"], sides["loop"]
        judged["losses equal DDP's to the last bit"] = ours["equal_steps"] == ours["steps"] >= 20
        judged["CPU per step of the whole trainer over DDP's"] = ours["cpu_x"]
        judged["the same of its sum alone"] = sides["flat"]["cpu_x"]
        judged["the same of DDP over itself"] = again["cpu_x"]
        judged["it is at most 1"] = ours["cpu_x"] <= 1
    if sides := result.get("codecs", {}).get("sides"):
        plain = sides["ddp"]["last_10"]
        apart = max(abs(mean - plain[0]) for mean in plain) + 0.02  # what another seed does, and a little
        for name in ("flat:int5+zstd", "flat:int4+zstd", "flat:int3+zstd"):
            worse = max(mine - other for mine, other in zip(sides[name]["last_10"], plain, strict=True))
            judged[f"{name}: fewer bytes than DDP's"] = sides["ddp"]["sent_bytes"] / sides[name]["sent_bytes"]
            judged[f"{name}: loss above DDP's, at most"] = worse
            judged[f"{name}: that is within what seeds differ"] = worse <= apart
    if sides := result.get("shard", {}).get("sides"):
        ours, again = sides["sharded"]["cpu_x"], sides["fsdp2#2"]["cpu_x"]
        judged |= {"CPU per step over FSDP2's": ours, "the same of FSDP2 over itself": again}
        judged["it is at most 1.02"] = ours <= 1.02
    if sides := result.get("link", {}).get("sides"):
        speed = max(min(sides[name]["speeds_x"]) for name in sides if "zstd" in name)
        judged |= {"tokens/s over DDP's at 100 Mb/s, of the worst seed": speed, "it is at least 8": speed >= 8}
        judged["share of computing in DDP's step there"] = sides["alone"]["ms"] / sides["ddp"]["ms"]
    if ratio := result.get("diloco", {}).get("bytes_ratio"):
        judged |= {"DDP's bytes per token over DiLoCo's": ratio, "it is at least 1500": ratio >= 1500}
    if sides := result.get("gpu", {}).get("sides"):
        speed = sides["flat"]["speed_x"]
        judged |= {"tokens/s over DDP's on one GPU": speed, "it is at least 1": speed >= 1}
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--image", default="rocstack/worker:debian-13-tcp")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if subprocess.run(["docker", "image", "inspect", args.image], capture_output=True, check=False).returncode:
        sys.exit(f"no image {args.image}: `rocstack build` makes it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result: dict[str, Any] = {
        "command": " ".join(["python bench/train", *sys.argv[1:]]),
        "image": args.image,
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as peer:
        bench = Bench(args.image, Path(peer))
        missing = bench.fetch_peer() if PEER_PARTS & set(wanted) else ""
        for name in wanted:
            if missing and name in PEER_PARTS:
                result[name] = {"failed": missing}
                continue
            if name == "gpu" and not Path("/dev/kfd").exists():
                result[name] = {"skipped": "no /dev/kfd: there is no AMD GPU here"}
                continue
            print(f"\n{name}: {' '.join(PARTS[name])}", file=sys.stderr, flush=True)
            result[name] = bench.part(PARTS[name], GPU if name == "gpu" else NEEDS)
    result["load_after"] = round(os.getloadavg()[0], 2)
    result["judged"] = judge(result)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    failed = any("failed" in result[name] for name in wanted) or False in result["judged"].values()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
