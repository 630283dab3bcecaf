"""MaxText's own train step, compiled for AMD GPUs that aren't there: a request as JSON on standard input, the answer as
JSON on standard output, everything that others print on standard error.

Request: `config`, MaxText's keys and values; `gpu`, `gfx` with its `units`, `memory` in bytes and `name`; `nodes` and
`per_node`; `order`, the mesh's axes as GPUs lie beside each other, the outermost first; `attention`, dot_product or
flash; `prove`, whether machine code is looked for in the serialised step.

Answer: `arguments` and `temporaries`, bytes of a GPU; `axes`, those of the mesh with their sizes, in the order in which
the text numbers GPUs; `text`, the compiled text's lines that hold collectives or lead to them; `seconds` of each phase;
`code`, the target whose ELF the step holds. Or `refused`: the phase that failed, the error's type and its words.

Many steps: `steps`, requests; `at_once`; and for each of them at most `seconds` of the processor (by the clock
SLOWEST times as many) and `bytes` of memory. Each is compiled in a fork of this process, which has imported everything
once. The answers come as lines, as they are found, each with its `number` and the processor's seconds, `cpu`. Of a fork
that took too long, grew too large, or died, `refused` has the type TooLong, TooLarge or Died.

The plugin's own start needs a GPU, so its library is registered by hand; the compiler gets the GPUs as a topology of
nodes x 1 x GPUs and a description of one (XLA's GpuTargetConfigProto). MaxText's train_compile knows TPUs alone, so its
mesh is replaced. Three defects of MaxText 0.2.1 are worked round: its flash kernel's blocks ask for more shared memory
than MI300X has; it calls the kernel outside shard_map, so that every GPU gathers the whole batch; and it can't scan the
layers of a pipeline stage, which are compiled one by one then.
"""

import importlib.util
import json
import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
import types
from contextlib import suppress
from pathlib import Path

MOST = 1 << 20  # bytes of a request
TEXT = 8 << 20  # characters of the answer's text
WORDS = 4_000  # of an error
SLOWEST = 5  # the share of a processor that a step gets on a machine that others use, as its inverse
KEY = re.compile(r"[a-z][a-z0-9_]{0,60}")

# Bytes/s of HBM, bytes of shared memory. Source: AMD's data sheets of MI250X (one of its two GPUs), MI300X and MI355X.
TARGETS = {
    "gfx90a": (1_638_400_000_000, 65_536),
    "gfx942": (5_300_000_000_000, 65_536),
    "gfx950": (8_000_000_000_000, 163_840),
}
GPU = """
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
FIXED = {
    "run_name": "size", "base_output_directory": "/tmp/size", "hardware": "gpu", "dataset_type": "synthetic",
    "enable_checkpointing": False, "skip_jax_distributed_system": True, "log_config": False, "jax_cache_dir": "",
    "compile_topology": "rocm", "compile_topology_num_slices": 1, "internal_compile": True, "tokenizer_path": "none",
}  # fmt: skip

COLLECTIVE = re.compile(
    r" (?:all-gather|all-reduce|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)
HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLING = r"\b(?:calls|to_apply|body|branch_computations|true_computation|false_computation)="
CALLS = re.compile(CALLING + r"(\{[^}]*\}|%?[\w.\-]+)")
KEPT = re.compile(
    rf"(?:{CALLING}|\bsource_target_pairs=)"
    r"(?:\{\{[^=]*?\}\}|\{[^}]*\}|%?[\w.\-]+)"
    r"|\breplica_groups=(?:\{\{.*?\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Refused(Exception):
    pass


def excerpt(text):
    """The lines of collectives and of what leads to them, computation by computation, without operands."""
    bodies, entry, current = {}, None, None
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            current = head[1]
            bodies[current] = []
            entry = current if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (COLLECTIVE.search(line) or CALLS.search(line)):
            bodies[current].append(line)
    called = {name: [(line, re.findall(r"[\w.\-]+", " ".join(CALLS.findall(line)))) for line in lines]
              for name, lines in bodies.items()}  # fmt: skip
    reach = {name for name, lines in bodies.items() if any(map(COLLECTIVE.search, lines))}
    more = True
    while more:
        found = {name for name, lines in called.items() if any(reach.intersection(names) for _, names in lines)}
        more = not found <= reach
        reach |= found
    kept = []
    for name, lines in called.items():
        if name not in reach:
            continue
        kept.append(f"{'ENTRY ' if name == entry else ''}%{name} {{")
        kept += [_short(line) for line, names in lines if COLLECTIVE.search(line) or reach.intersection(names)]
        kept.append("}")
    if sum(map(len, kept)) > TEXT:
        raise Refused("the compiled text has more collectives than this program hands on")
    return kept


def _short(line):
    """`%name = type op()` and the attributes that count; the type only of collectives."""
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    operation = re.search(r"(?:^|[ )}\]])([a-z][a-z0-9\-]*)\(", rest)
    kind = rest[: operation.start(1)].strip() if COLLECTIVE.search(line) else ""
    trips = TRIPS.search(line)
    attributes = [each[0] for each in KEPT.finditer(rest)] + ([f"trips={trips[1]}"] if trips else [])
    shape = re.sub(r"/\*.*?\*/|\{[^}]*\}", "", kind)
    return ", ".join([f"{name} = {shape} {operation[1]}()".replace("  ", " "), *attributes])


def devices(gpu, nodes, per_node):
    from jax._src import xla_bridge
    from jax.experimental import topologies

    plugin = Path(importlib.util.find_spec("jax_plugins.xla_rocm7").origin).with_name("xla_rocm_plugin.so")
    xla_bridge.register_plugin("rocm", priority=500, library_path=str(plugin), options=None)
    bandwidth, shared = TARGETS[gpu["gfx"]]
    config = GPU.format(**gpu, bandwidth=bandwidth, shared=shared)
    shape = f"{nodes}x1x{per_node}"
    found = topologies.get_topology_desc(topology_name=shape, platform="rocm", target_config=config, topology=shape)
    return found.devices


def placed(found, axes, order):
    """The devices as an array of the mesh's `axes` (name -> size), which lie in the machine by `order`."""
    import numpy as np

    rest = [name for name in axes if name not in order]
    assert all(axes[name] == 1 for name in rest), rest
    names = [*order, *rest]
    array = np.array(found).reshape([axes[name] for name in names])
    return array.transpose([names.index(name) for name in axes])


def use_flash_kernel(meshes):
    """Blocks of 64 and one stage fit into 64 KB of shared memory; inside shard_map each GPU has its own sequences."""
    import jax
    from jax.experimental.pallas.ops.gpu import attention
    from jax.sharding import PartitionSpec as P
    from maxtext.layers import attention_op

    def mha(q, k, v, segment_ids=None, sm_scale=1.0, causal=False):
        side = 64 if q.shape[-1] <= 128 else 32
        blocks = attention.BlockSizes(side, side, 32, 32, 32, 32)
        heads, tokens = P(("data", "fsdp", "expert"), None, "tensor", None), P(("data", "fsdp", "expert"), None)

        def kernel(q, k, v, ids):
            return attention.mha(q, k, v, ids, sm_scale, causal, blocks, "triton", None, 1)

        mapped = jax.shard_map(
            kernel, mesh=meshes[0], in_specs=(heads, heads, heads, tokens), out_specs=heads, check_vma=False
        )
        return mapped(q, k, v, segment_ids)

    attention_op.gpu_pallas_attention = types.SimpleNamespace(mha=mha)


def scan_stages():
    """MaxText forgets an argument where it scans the layers of a stage."""
    from maxtext.layers import decoders

    scan = decoders.Decoder.scan_decoder_layers

    def with_mode(self, *arguments, **keywords):
        return scan(self, *arguments, **{"model_mode": self.model_mode, **keywords})

    decoders.Decoder.scan_decoder_layers = with_mode


def libraries():
    """All that a step needs, ten seconds of imports. Nothing of it starts a thread that a fork would miss."""
    os.environ.update(DECOUPLE_GCLOUD="TRUE", TF_CPP_MIN_LOG_LEVEL="3", JAX_ENABLE_COMPILATION_CACHE="0")
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    from maxtext.trainers.pre_train import train_compile  # noqa: F401


def answer(request):
    began = time.monotonic()
    phase, seconds = "start", {}

    def done(name):
        nonlocal began
        now = time.monotonic()
        seconds[name], began = round(now - began, 2), now

    try:
        libraries()
        import jax
        from flax.linen import partitioning
        from jax.sharding import AxisType, Mesh
        from maxtext.configs import pyconfig
        from maxtext.trainers.pre_train import train, train_compile
        from maxtext.utils import maxtext_utils, sharding

        done("start")
        phase = "config"
        gpus = request["nodes"] * request["per_node"]
        settings = {**FIXED, **request["config"], "attention": request["attention"]}
        settings["internal_compile_num_devices"] = gpus
        if not all(KEY.fullmatch(key) for key in settings):
            raise Refused("a key of the configuration is none of MaxText's")
        base = Path(importlib.util.find_spec("maxtext").submodule_search_locations[0]) / "configs/base.yml"
        config = pyconfig.initialize(["size", str(base), *(f"{key}={value}" for key, value in settings.items())])
        degrees = map(math.prod, zip(config.dcn_parallelism, config.ici_parallelism, strict=True))
        axes = dict(zip(config.mesh_axes, degrees, strict=True))
        found = devices(request["gpu"], request["nodes"], request["per_node"])
        mesh = Mesh(placed(found, axes, request["order"]), config.mesh_axes, axis_types=(AxisType.Auto,) * len(axes))
        scan_stages()
        if request["attention"] == "flash":
            use_flash_kernel([mesh])
        done("config")
        phase = "trace"
        arguments, keywords, state, _, model = train_compile.get_shaped_inputs(mesh, config)
        # As MaxText's train loop does it, and train_compile doesn't: weights lie where the optimizer's states do. The
        # shapes name where they lay before.
        weights, state = sharding.maybe_update_params_sharding_with_opt(config, state)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments[0])
        step, into, out, static, donated = maxtext_utils.get_functional_train_with_signature(
            train.train_step, sharding.get_input_data_sharding(config, mesh), state, model, config, weights
        )
        with jax.set_mesh(mesh), partitioning.axis_rules(config.logical_axis_rules):
            jitted = jax.jit(step, in_shardings=into, out_shardings=out, static_argnums=static, donate_argnums=donated)
            lowered = jitted.lower(shapes, *arguments[1:], **keywords)
        done("trace")
        phase = "compile"
        compiled = lowered.compile()
        done("compile")
        phase = "read"
        memory = compiled.memory_analysis()
        said = {
            "arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes,
            "axes": list(axes.items()), "text": excerpt(compiled.as_text()),
        }  # fmt: skip
        if request.get("prove"):
            code = compiled.runtime_executable().serialize()
            elf = re.search(rb"amdgcn-[a-z-]*-(gfx[0-9a-f]+)\b", code)
            said["code"] = elf[1].decode() if elf and b"\x7fELF" in code else None
        done("read")
        return {**said, "seconds": seconds}
    except Exception as error:  # whatever MaxText, JAX or the compiler says: an answer, not a traceback
        if os.environ.get("ROCSTACK_DEBUG"):
            import traceback

            traceback.print_exc()
        refused = {"phase": phase, "type": type(error).__name__, "says": str(error)[:WORDS]}
        return {"refused": refused, "seconds": seconds}


def forked(step, path, seconds):
    """A process of its own that writes its answer to `path`; where memory runs out, it is the one to go."""
    pid = os.fork()
    if pid:
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        path.write_text(json.dumps(answer(step)))
    finally:
        os._exit(0)


def held(pid):
    """Bytes of memory that a process has for itself; 0 of one that has ended."""
    status = ""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
    own = re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)
    return 1024 * int(own[1]) if own else 0


def side_by_side(request):
    """(number, seconds of the processor, answer) of each step, as they end."""
    with suppress(Exception):  # each step says the same of it
        libraries()
    waiting, running, folder = list(enumerate(request["steps"])), {}, Path(tempfile.mkdtemp())
    while waiting or running:
        while waiting and len(running) < request["at_once"]:
            number, step = waiting.pop(0)
            running[forked(step, folder / str(number), request["seconds"])] = [number, time.monotonic(), None]
        time.sleep(0.05)
        for pid, (number, began, why) in list(running.items()):
            if why is None and time.monotonic() - began > SLOWEST * request["seconds"]:
                running[pid][2] = "TooLong", f"no answer within {SLOWEST * request['seconds']} s"
            elif why is None and held(pid) > request["bytes"]:
                running[pid][2] = "TooLarge", f"it needs more than {request['bytes'] / (1 << 30):.1f} GiB"
            if running[pid][2]:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if not ended:
                continue
            why, path = running.pop(pid)[2], folder / str(number)
            said = None
            with suppress(OSError, ValueError):
                said = json.loads(path.read_text())
            path.unlink(missing_ok=True)
            if said is None:
                by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                if by == signal.SIGXCPU:
                    why = "TooLong", f"no answer within {request['seconds']} s of the processor"
                kind, words = why or ("Died", str(signal.strsignal(by)) if by else "it gave no answer")
                said = {"refused": {"phase": "compile", "type": kind, "says": words}, "seconds": {}}
            yield number, round(used.ru_utime + used.ru_stime, 2), said


def main():
    said = os.dup(1)
    os.dup2(2, 1)  # what MaxText prints
    raw = sys.stdin.buffer.read(MOST + 1)
    if len(raw) > MOST:
        sys.exit("the request is too long")
    request = json.loads(raw)
    with os.fdopen(said, "w") as out:
        if "steps" in request:
            for number, cpu, each in side_by_side(request):
                out.write(json.dumps({"number": number, "cpu": cpu, **each}) + "\n")
                out.flush()
        else:
            out.write(json.dumps(answer(request)) + "\n")
            out.flush()
    os._exit(0)  # the compiler's threads take seconds to end


if __name__ == "__main__":
    main()
