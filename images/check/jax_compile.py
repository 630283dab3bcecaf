"""jax_compile.py GFX: JAX's ROCm plugin compiles a sharded training step with a flash-attention kernel for eight GPUs
of a target, on a machine without any. Prints what the compiler said.

The plugin's own start needs a GPU, so its library is registered by hand; the compiler gets the GPUs as a topology of
1 slice x 1 host x 8 devices and a description of one (XLA's GpuTargetConfigProto)."""

import importlib.util
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge
from jax.experimental import topologies
from jax.experimental.pallas.ops.gpu import attention
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Compute units, bytes of HBM, bytes/s of HBM, bytes of shared memory. Source: AMD's data sheets of MI250X (one of its
# two GPUs), MI300X and MI355X.
GPUS = {
    "gfx90a": ("AMD Instinct MI250X", 110, 68_702_699_520, 1_638_400_000_000, 65_536),
    "gfx942": ("AMD Instinct MI300X", 304, 206_141_652_992, 5_300_000_000_000, 65_536),
    "gfx950": ("AMD Instinct MI355X", 256, 309_220_868_096, 8_000_000_000_000, 163_840),
}
CONFIG = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 64 threads_per_core_limit: 2048 fpus_per_core: 64
  core_count: {units} device_memory_size: {memory} memory_bandwidth: {bandwidth} clock_rate_ghz: 2.1
  shared_memory_per_block: {shared} shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared}
  l2_cache_size: 4194304 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65536 block_dim_limit_z: 65536
  rocm_compute_capability {{ gcn_arch_name: "{gfx}:sramecc+:xnack-" }}
}}
platform_name: "ROCM" dnn_version_info {{ major: 3 minor: 5 }} runtime_version {{ major: 7 minor: 2 }}
device_description_str: "{name}"
"""
BATCH, LENGTH, HEADS, HEAD, WIDTH = 16, 1024, 8, 64, 512


def devices(gfx: str) -> list:
    name, units, memory, bandwidth, shared = GPUS[gfx]
    plugin = Path(importlib.util.find_spec("jax_plugins.xla_rocm7").origin).with_name("xla_rocm_plugin.so")
    xla_bridge.register_plugin("rocm", priority=500, library_path=str(plugin), options=None)
    jax.config.update("jax_platforms", "cpu")
    config = CONFIG.format(gfx=gfx, name=name, units=units, memory=memory, bandwidth=bandwidth, shared=shared)
    shape = "1x1x8"
    found = topologies.get_topology_desc(topology_name=shape, platform="rocm", target_config=config, topology=shape)
    return found.devices


def main(gfx: str) -> None:
    mesh = Mesh(np.array(devices(gfx)), ("data",))
    heads = P("data", None, None, None)
    # Blocks of 64 and one stage fit into 64 KB of shared memory. Inside shard_map each GPU has its own sequences; left
    # alone the compiler would gather the whole batch for the kernel.
    blocks = attention.BlockSizes(64, 64, 32, 32, 32, 32)

    def kernel(q, k, v):
        return attention.mha(q, k, v, None, HEAD**-0.5, True, blocks, "triton", None, 1)

    flash = jax.shard_map(kernel, mesh=mesh, in_specs=(heads,) * 3, out_specs=heads, check_vma=False)

    def loss(weights, x):
        q, k, v = (
            jnp.einsum("btw,wn->btn", x, weights[i].astype(x.dtype)).reshape(-1, LENGTH, HEADS, HEAD) for i in range(3)
        )
        out = flash(q, k, v).reshape(-1, LENGTH, WIDTH) @ weights[3].astype(x.dtype)
        return ((x + out).astype(jnp.float32) ** 2).mean()

    def step(weights, x):
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return weights - 1e-3 * gradient, value

    def array(shape, kind, spec):
        return jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))

    weights = array((4, WIDTH, WIDTH), jnp.float32, P(None, "data"))
    batch = array((BATCH, LENGTH, WIDTH), jnp.bfloat16, P("data"))
    began = time.monotonic()
    compiled = jax.jit(step, donate_argnums=0).lower(weights, batch).compile()
    took = time.monotonic() - began
    text = compiled.as_text()
    if "triton" not in text:
        sys.exit("the compiled step holds no Triton kernel")
    if not any(each in text for each in ("all-reduce", "reduce-scatter")):
        sys.exit("the compiled step exchanges no gradients")
    code = compiled.runtime_executable().serialize()
    if not re.search(rb"amdgcn-[a-z-]*-%s\b" % gfx.encode(), code):
        sys.exit(f"the compiled step holds no machine code for {gfx}")
    memory = compiled.memory_analysis()
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    shown = f"{len(code) / 1e6:.1f} MB of code, {size / 1e6:.1f} MB a GPU"
    print(f"{len(mesh.devices)} x {GPUS[gfx][0]}: {shown} ({took:.0f} s)")


if __name__ == "__main__":
    main(sys.argv[1])
