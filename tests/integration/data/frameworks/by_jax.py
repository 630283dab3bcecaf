"""Where the ranks meet, JAX finds in the environment."""

import jax

jax.distributed.initialize()

import jax.numpy as jnp  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

ranks = multihost_utils.process_allgather(jnp.array([jax.process_index()]))
where = f"rank {jax.process_index()} of {jax.process_count()}"
print(f"{where} with {jax.device_count()} devices: sum {int(ranks.sum())}", flush=True)
