"""On each GPU of the node: how fast it multiplies bf16 matrices, and copies memory. One line of JSON."""

import json
import os
import platform
import time

SIZE, TIMES, BYTES = 8192, 50, 4 << 30


def fastest(work, torch, times):
    work()
    best = None
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) / times
        best = took if best is None else min(best, took)
    return best


def gpu(torch, index):
    torch.cuda.set_device(index)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wanted = a[:8].double() @ b.double()
    error = float(((a @ b)[:8].double() - wanted).norm() / wanted.norm())
    took = fastest(lambda: torch.matmul(a, b), torch, TIMES)
    source = torch.empty(BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copied = fastest(lambda: target.copy_(source), torch, 10)
    name = torch.cuda.get_device_name(index)
    return {"name": name, "tflops": 2 * SIZE**3 / took / 1e12, "gb": 2 * BYTES / copied / 1e9, "error": error}


answer = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "gpus": [], "error": ""}
try:
    import torch

    if torch.version.hip:
        answer["gpus"] = [gpu(torch, index) for index in range(torch.cuda.device_count())]
    else:
        answer["error"] = f"PyTorch {torch.__version__} in the image is built without ROCm"
except (ImportError, RuntimeError) as error:
    answer["error"] = f"{type(error).__name__}: {error}"
print("@rocstack " + json.dumps(answer), flush=True)
