"""One rank of a JAX training run, for programs/training.py, which starts it and says what was seen: a small model of
which every rank has a replica, and each a share of every batch; XLA puts in the sum of the gradients.

The samples are the same on any number of ranks, so the losses are, too.
"""

import hashlib
import os
import sys
import time

MAXTEXT = "/opt/maxtext/lib"  # where the image of stack maxtext-rocm-7.2 has JAX
SAMPLES, LENGTH, WORDS, WIDTH = 1021, 32, 64, 64  # a prime number of samples: ranks have uneven shares of an epoch
RATE = 1.0  # the length of a step in the space of weights


def trained(run, rank, world, local):
    """What was seen of `run["steps"]` steps of `run["batch"]` samples; `run["platform"]` is cpu, or gpu."""
    if os.path.isdir(MAXTEXT):
        sys.path.insert(0, MAXTEXT)
    os.environ.update(XLA_PYTHON_CLIENT_PREALLOCATE="false", TF_CPP_MIN_LOG_LEVEL="1")
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    if run["platform"] == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if world > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        gpu = None if run["platform"] == "cpu" else [local]
        start = {"num_processes": world, "process_id": rank, "local_device_ids": gpu}
        start |= {"cluster_detection_method": "deactivate"}  # it would read Slurm's variables of the task, not the rank
        jax.distributed.initialize(address, **start, initialization_timeout=run["seconds"])
        devices = jax.devices(run["platform"])
    else:
        devices = jax.devices(run["platform"])[:1]
    if len(devices) != world:
        raise RuntimeError(f"JAX sees {len(devices)} devices of {world} ranks")
    seen = {"losses": [], "from": 0, "samples": SAMPLES, "tokens": run["batch"] * LENGTH}
    train(jax, devices, run, rank, world, seen)
    if world > 1:
        jax.distributed.shutdown()
    return 0, seen


def train(jax, devices, run, rank, world, seen):
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(numpy.array(devices), ("ranks",))
    everywhere, shared = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("ranks"))
    texts, order = samples(numpy)
    numbers = numpy.random.default_rng(0)
    shapes = {"words": (WORDS, WIDTH), "inner": (WIDTH, 4 * WIDTH), "outer": (4 * WIDTH, WIDTH), "last": (WIDTH, WORDS)}
    drawn = {name: numbers.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    net = {name: jax.make_array_from_callback(each.shape, everywhere, each.__getitem__) for name, each in drawn.items()}

    def loss(net, batch):
        state = net["words"][batch[:, :-1]]
        state = state + jax.nn.gelu(state @ net["inner"]) @ net["outer"]
        chances = jax.nn.log_softmax(state @ net["last"])
        return -jax.numpy.take_along_axis(chances, batch[:, 1:, None], axis=-1).mean()

    @jax.jit
    def step(net, batch):
        value, gradients = jax.value_and_grad(loss)(net, batch)
        size = jax.numpy.sqrt(sum((each**2).sum() for each in gradients.values()))
        return jax.tree.map(lambda w, g: w - RATE * g / size, net, gradients), value

    def batch(number):
        """Of positions p of the epoch those of this rank: p mod ranks."""
        places = [(number * run["batch"] + row) % SAMPLES for row in range(rank, run["batch"], world)]
        mine = texts[order[places]]
        return jax.make_array_from_process_local_data(shared, mine, (run["batch"], LENGTH + 1))

    if "ids" in run:
        seen["ids"] = [int(sample) for sample in order[rank::world]]
    seen["device"], seen["before"] = devices[rank].device_kind, digest(numpy, net)
    compiled = step.lower(net, batch(0)).compile()
    seen["first"] = time.time()
    for number in range(run["steps"]):
        net, value = compiled(net, batch(number))
        seen["losses"].append(float(value))
        seen["last"] = time.time()
    seen["after"] = digest(numpy, net)


def samples(numpy):
    """Texts in which each word follows from the one before, nearly always; and their order in an epoch."""
    draw = numpy.random.default_rng(1)
    texts = numpy.zeros((SAMPLES, LENGTH + 1), "int32")
    texts[:, 0] = draw.integers(0, WORDS, SAMPLES)
    for at in range(LENGTH):
        noise = draw.integers(0, WORDS, SAMPLES) * (draw.random(SAMPLES) < 0.05)
        texts[:, at + 1] = (texts[:, at] * 5 + 17 + noise) % WORDS
    return texts, draw.permutation(SAMPLES)


def digest(numpy, net):
    """Of this rank's own replica."""
    found = hashlib.sha256()
    for name in sorted(net):
        found.update(numpy.asarray(net[name].addressable_data(0)).tobytes())
    return found.hexdigest()
