"""Ten thousand adapters on one server: how long they take to register, what a cold one costs, what the gateway adds,
and how requests over many adapters compare with those over one.

    .venv/bin/python bench/serve [--adapters 10000] [--engine "vllm"] [--json FILE] [-- arguments of vllm serve]

The model is a tiny Llama from a seed and the adapters are real ones of rank 4, so that what is measured is the handling
of adapters and not the arithmetic of a model. Needs vLLM: `--engine` is its command on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import tiny_adapters as tiny  # noqa: E402

TOKENS, LONG = 12, 32  # of an answer
CLIENTS, REQUESTS = 16, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=10_000)
    parser.add_argument("--engine", default="vllm", help="vLLM's command")
    parser.add_argument(
        "--folder", type=Path, help="where model and adapters are made and kept; default: a temporary one"
    )
    parser.add_argument(
        "--seen-as", type=Path, help="what the gateway calls that folder, where it runs in a root of its own"
    )
    parser.add_argument("--gateway", default=f"{sys.executable} -m rocstack.serve", help="the gateway's command")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    parser.add_argument("arguments", nargs="*", help="of vllm serve")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        numbers = measured(chosen, chosen.folder or Path(scratch))
    for name, value in numbers.items():
        print(f"{name:48} {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(numbers, indent=1) + "\n")


def measured(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    seen = chosen.seen_as or folder
    if not (folder / "tiny").exists():
        tiny.llama(folder / "tiny")
    for number in range(chosen.adapters):
        if not (folder / "adapters" / name(number)).exists():
            tiny.adapter(folder / "adapters" / name(number), "tiny", seed=number)
    port = free_port()
    settings = {
        "model": f"{seen}/tiny", "listen": f"127.0.0.1:{port}", "state": f"{seen}/state", "max_rank": 8, "resident": 32,
        "sources": [{"folder": f"{seen}/adapters"}], "rescan_s": 5,
        "engine": {"command": shlex.split(chosen.engine), "arguments": chosen.arguments, "log": f"{seen}/engine.log"},
    }  # fmt: skip
    (folder / "serve.json").write_text(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "cli"))}
    command = [*shlex.split(chosen.gateway), f"{seen}/serve.json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as gateway:
        assert gateway.stderr
        try:
            registered = next(line for line in gateway.stderr if "registered" in line)
            said: list[str] = []
            threading.Thread(target=lambda: said.extend(gateway.stderr or ()), daemon=True).start()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
                began = time.monotonic()
                while not up(client):
                    if gateway.poll() is not None:
                        sys.exit("the gateway ended: " + "".join(said))
                    time.sleep(0.2)
                return {
                    "adapters": chosen.adapters,
                    "registered (s)": float(registered.split(" in ")[1].split()[0]),
                    "engine starts (s)": round(time.monotonic() - began, 1),
                    **asked(client, chosen.adapters, folder / "state/engine.sock", gateway.pid),
                    "load of this machine (1 min)": round(os.getloadavg()[0], 1),
                }
        finally:
            gateway.terminate()
            gateway.wait(60)


def asked(client: httpx.Client, adapters: int, engine: Path, gateway: int) -> dict[str, Any]:
    for model in ["tiny", name(0)] * 5:
        ask(client, model)  # warm
    cold = [timed(lambda number=number: ask(client, name(number))) for number in spread(adapters, 100)]  # type: ignore[misc]
    last = spread(adapters, 100)[-16:]
    resident = [timed(lambda number=number: ask(client, name(number))) for number in last * 6]  # type: ignore[misc]
    used = processor(gateway)
    through, direct = overhead(client, engine)
    used = processor(gateway) - used
    one = [name(last[0])] * REQUESTS
    mixed = [name(last[number % 8]) for number in range(REQUESTS)]
    many = [name(last[number % 16]) for number in range(REQUESTS)]
    base = ["tiny"] * REQUESTS
    rounds = {"base": base, "one adapter": one, "8 adapters": mixed, "16 adapters": many}
    took = {label: min(at_once(client, models) for _ in range(3)) for label, models in rounds.items()}
    answers = {ask(client, name(number)) for number in last}
    return {
        f"cold, {TOKENS} tokens: p50 (ms)": middle(cold),
        f"cold, {TOKENS} tokens: p99 (ms)": top(cold),
        f"resident, {TOKENS} tokens: p50 (ms)": middle(resident),
        f"resident, {TOKENS} tokens: p99 (ms)": top(resident),
        "cold / resident, p50": round(statistics.median(cold) / statistics.median(resident), 2),
        "gateway adds, p50 (ms)": round((statistics.median(through) - statistics.median(direct)) * 1000, 2),
        "gateway's processor time for a request (ms)": round(used / len(through) * 1000, 2),
        "one token through it, p50 (ms)": middle(through),
        "one token without it, p50 (ms)": middle(direct),
        **{f"{REQUESTS} requests of {LONG} tokens, {label} (s)": round(each, 2) for label, each in took.items()},
        "16 adapters / one": round(took["16 adapters"] / took["one adapter"], 2),
        "different answers of 16 adapters": len(answers),
        "list of all models (s)": round(timed(lambda: client.get("/v1/models").raise_for_status()), 2),
    }


def overhead(client: httpx.Client, engine: Path) -> tuple[list[float], list[float]]:
    """One token of the base by the gateway and straight from the engine, in turns."""
    through, direct = [], []
    key = key_of(engine)
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(engine)), base_url="http://engine", timeout=60,
        headers={"Authorization": f"Bearer {key}"},
    ) as straight:  # fmt: skip
        for _ in range(100):
            through.append(timed(lambda: ask(client, "tiny", 1)))
            direct.append(timed(lambda: ask(straight, "tiny", 1)))
    return through, direct


def key_of(engine: Path) -> str:
    """The engine's key, which only its own user can read."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"/state/engine.sock") and word.startswith(b"--uds=") for word in words):
                variables = dict(
                    each.split(b"=", 1) for each in (process / "environ").read_bytes().split(b"\0") if each
                )
                return variables[b"VLLM_API_KEY"].decode()
        except OSError:
            continue
    sys.exit("the engine isn't found")


def processor(process: int) -> float:
    """Seconds that it has used of a processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_once(client: httpx.Client, models: Sequence[str]) -> float:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return timed(lambda: list(pool.map(lambda model: ask(client, model, LONG), models)))


def ask(client: httpx.Client, model: str, tokens: int = TOKENS) -> str:
    body = {
        "model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        sys.exit(f"{model}: {answer.text}")
    return str(answer.json()["choices"][0]["message"]["content"])


def spread(adapters: int, number: int) -> list[int]:
    """Numbers of adapters over all of them."""
    return [1 + each * (adapters - 1) // number for each in range(number)]


def up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def timed(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def middle(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1000, 1)


def top(seconds: Sequence[float]) -> float:
    return round(statistics.quantiles(seconds, n=100)[98] * 1000, 1)


def name(number: int) -> str:
    return f"adapter-{number:05}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
