"""Sums a vector over all ranks; ends with an error when a sum is wrong."""

import sys
from array import array

from mpi4py import MPI

length = int(sys.argv[1])  # doubles
world = MPI.COMM_WORLD
mine = array("d", [world.rank + 1.0]) * length
total = array("d", bytes(8 * length))
world.Allreduce([mine, MPI.DOUBLE], [total, MPI.DOUBLE], op=MPI.SUM)
expected = world.size * (world.size + 1) / 2
if set(total) != {expected}:
    sys.exit(f"rank {world.rank}: {set(total)} instead of {expected}")
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: sum {total[0]}", flush=True)
