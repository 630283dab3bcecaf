"""On each GPU of the node: how fast it multiplies bf16 matrices, and copies memory. With PyTorch, or with JAX where
that is what the image has for GPUs. One line of JSON."""

import importlib.util
import json
import os
import platform
import time

SIZE, TIMES, BYTES = 8192, 50, 4 << 30


def fastest(work, wait, times):
    """Seconds of one `work`, in the fastest of three runs; `wait` waits for what it returned."""
    wait(work())
    best = None
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(times):
            last = work()
        wait(last)
        took = (time.perf_counter() - began) / times
        best = took if best is None else min(best, took)
    return best


def measured(name, multiplied, copied, error):
    tflops, gb = 2 * SIZE**3 / multiplied / 1e12, 2 * BYTES / copied / 1e9
    return {"name": name, "tflops": tflops, "gb": gb, "error": error}


def by_torch(torch, index):
    torch.cuda.set_device(index)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wanted = a[:8].double() @ b.double()
    error = float(((a @ b)[:8].double() - wanted).norm() / wanted.norm())

    def wait(_):
        torch.cuda.synchronize()

    took = fastest(lambda: torch.matmul(a, b), wait, TIMES)
    source = torch.empty(BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copied = fastest(lambda: target.copy_(source), wait, 10)
    return measured(torch.cuda.get_device_name(index), took, copied, error)


def by_jax(jax, device):
    import numpy

    draw = numpy.random.default_rng(0)
    drawn = [draw.standard_normal((SIZE, SIZE), numpy.float32).astype(jax.numpy.bfloat16) for _ in range(2)]
    a, b = (jax.device_put(each, device) for each in drawn)
    multiply = jax.jit(jax.numpy.matmul)
    wanted = drawn[0][:8].astype(numpy.float64) @ drawn[1].astype(numpy.float64)
    found = numpy.asarray(multiply(a, b)[:8]).astype(numpy.float64)
    error = float(numpy.linalg.norm(found - wanted) / numpy.linalg.norm(wanted))
    took = fastest(lambda: multiply(a, b), jax.block_until_ready, TIMES)
    # Reads and writes each byte once, as a copy does; XLA would leave out a plain one.
    source = jax.device_put(numpy.zeros(BYTES, numpy.uint8), device)
    flip = jax.jit(jax.numpy.invert)
    copied = fastest(lambda: flip(source), jax.block_until_ready, 10)
    return measured(device.device_kind, took, copied, error)


def jax_gpus():
    """JAX and the GPUs that it sees; none where it has no plugin for ROCm. One that sees none raises RuntimeError."""
    plugins = importlib.util.find_spec("jax_plugins")
    names = [name for folder in (plugins.submodule_search_locations if plugins else ()) for name in os.listdir(folder)]
    if not any(name.startswith("xla_rocm") for name in names):
        return None, []
    import jax

    return jax, jax.devices("gpu")


answer = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "gpus": [], "error": ""}
try:
    import torch

    jax, devices = (None, []) if torch.version.hip else jax_gpus()
    if torch.version.hip:
        answer["gpus"] = [by_torch(torch, index) for index in range(torch.cuda.device_count())]
    elif devices:
        answer["gpus"] = [by_jax(jax, device) for device in devices]
    else:
        answer["error"] = f"PyTorch {torch.__version__} in the image is built without ROCm"
except (ImportError, RuntimeError) as error:
    answer["error"] = f"{type(error).__name__}: {error}"
print("@rocstack " + json.dumps(answer), flush=True)
