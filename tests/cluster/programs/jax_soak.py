"""As soak.py, with JAX: multiplies and sums for so many seconds, with whole numbers, so that every result is known
exactly. What one rank says of itself is one line of JSON, with "error" where it ended before its time. Arguments:
seconds, size of a matrix, elements of a sum, backend (nccl: on GPUs).

JAX ends the process of a rank that misses another one. So a child does the work, and this process says how it ended.
"""

import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from statistics import median

MAXTEXT = "/opt/maxtext/lib"  # where the image of stack maxtext-rocm-7.2 has JAX
LARGEST = 7  # of the numbers that are summed
SHARES = 64  # what a rank's numbers are multiplied by, at most: fp32 holds the sums of 16,000 ranks exactly
PATIENCE_S = 120  # for the others to start
RANK, WORLD, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def devices(on_gpus):
    """One of each rank, in their order."""
    os.environ.update(XLA_PYTHON_CLIENT_PREALLOCATE="false", TF_CPP_MIN_LOG_LEVEL="1")
    if os.path.isdir(MAXTEXT):
        sys.path.insert(0, MAXTEXT)
    import jax

    jax.config.update("jax_enable_x64", True)
    if not on_gpus:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    start = {"num_processes": WORLD, "process_id": RANK, "local_device_ids": [LOCAL] if on_gpus else None}
    start |= {"cluster_detection_method": "deactivate", "initialization_timeout": PATIENCE_S}
    jax.distributed.initialize(address, **start)
    found = jax.devices()
    if len(found) != WORLD:
        raise RuntimeError(f"JAX sees {len(found)} devices of {WORLD} ranks")
    return jax, found


def work(seconds, size, count, on_gpus, answer):
    """Until the time is up on rank 0."""
    jax, found = devices(on_gpus)
    import numpy
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    answer["backend"] = "nccl" if found[RANK].platform == "gpu" else "gloo"
    mesh = Mesh(numpy.array(found), ("ranks",))
    own = NamedSharding(mesh, P("ranks"))
    total = sum(rank % SHARES + 1 for rank in range(WORLD))

    def given(array):
        return jax.make_array_from_process_local_data(own, array[None], (WORLD, *array.shape))

    def one(a, b, product, going):
        rank = jax.lax.axis_index("ranks")
        pattern = (jnp.arange(count) % (LARGEST + 1)).astype(jnp.float32)
        sums = jax.lax.psum(pattern * (rank % SHARES + 1).astype(jnp.float32), "ranks")
        products = (a[0] @ b[0]).sum(axis=1)
        more = jax.lax.psum(jnp.where(rank == 0, going[0], 0.0), "ranks")
        return (sums != pattern * total).sum()[None], (products != product[0]).any()[None], more[None]

    draw = numpy.random.default_rng(RANK)
    a, b = (draw.integers(0, 4, (size, size)).astype("float64") for _ in range(2))
    inputs = [given(each) for each in (a, b, a @ b.sum(axis=1))]
    step = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False))
    step = step.lower(*inputs, given(numpy.ones(()))).compile()
    until, more = time.monotonic() + seconds, 1.0
    while more:
        began = time.perf_counter()
        seen = step(*inputs, given(numpy.array(float(time.monotonic() < until))))
        wrong_sums, wrong_product, more = (each.addressable_data(0).item() for each in seen)
        answer["wrong_sums"] += int(wrong_sums)
        answer["wrong_products"] += int(wrong_product)
        answer["rounds"] += 1
        answer["times"].append(time.perf_counter() - began)
    jax.distributed.shutdown()  # once all have come so far: with rank 0 the others would end


def child(path, answer):
    """Never returns."""
    try:
        os.dup2(2, 1)  # what others print is no answer
        work(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "nccl", answer)
    except BaseException as error:
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    times = answer.pop("times")
    answer |= {"median_ms": median(times or [0]) * 1e3, "slowest_ms": max(times, default=0) * 1e3}
    with open(path, "w") as file:
        json.dump(answer, file)
    os._exit(0)


def main():
    answer = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "rank": RANK, "backend": sys.argv[4]}
    answer |= {"ranks": WORLD, "rounds": 0, "wrong_sums": 0, "wrong_products": 0, "error": ""}
    with tempfile.NamedTemporaryFile("r") as file:
        pid = os.fork()
        if not pid:
            child(file.name, {**answer, "times": []})
        _, status = os.waitpid(pid, 0)
        try:
            answer = json.load(file)
        except ValueError:
            how = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else f"code {status >> 8}"
            answer |= {"error": f"its process ended: {how}", "median_ms": 0.0, "slowest_ms": 0.0}
    print("@rocstack " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
