"""Every MPI collective with every type, on odd sizes, against numpy. Functions only: it is put before mpi.py."""

import functools
import time

SIZES = (0, 1, 3, 17, 1023, 65537)
ELEMENTS = 1 << 20  # of all ranks together, at most
BUDGET = 15  # seconds, and one more for 20 ranks: a slow link is not judged here
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TYPES = (*INTEGERS, "float16", "float32", "float64", "complex64", "complex128")
WIDE, SUM, PROD = "wide", "sum", "prod"
OPERATIONS = {"SUM": "add", "PROD": "multiply", "MAX": "maximum", "MIN": "minimum"}  # MPI's, numpy's


def collectives(MPI, comm):
    """Rank 0 ends it when time is up, between two cases. Each rank compares what it got itself."""
    plan, lacking = planned(MPI, comm)
    began, run, wrong, go = time.monotonic(), 0, [], bytearray(1)
    for size, name, title, call, more in plan:
        go[0] = time.monotonic() - began < BUDGET + comm.size / 20
        comm.Bcast([go, MPI.BYTE])
        if not go[0]:
            break
        run += 1
        try:
            right = call(Case(MPI, comm, name, size), *more)
        except MPI.Exception as error:
            right, title = False, f"{title} ({error})"
        if not right:
            wrong.append(f"{title} of {size} {name}")
    # Where nothing is moved nothing is tried.
    kinds = [len({(name, title) for size, name, title, *_ in part if size}) for part in (plan[:run], plan)]
    answer = {"cases": run, "planned": len(plan), "right": run - len(wrong), "wrong": wrong[:5], "lacking": lacking}
    return {**answer, "kinds": kinds[0], "kinds_planned": kinds[1]}


def planned(MPI, comm):
    """The cases, from small to large, and the types that this MPI hasn't."""
    import numpy as np

    lacking = []
    for name in TYPES:
        try:
            comm.Bcast(np.zeros(1, name))
        except KeyError:  # before anything is sent
            lacking.append(name)
    largest = min(max(SIZES), ELEMENTS // comm.size | 1)
    plan = [(0, "uint8", "Barrier", barrier, ())]
    for size in sorted({min(size, largest) for size in SIZES}):
        for name in [name for name in TYPES if name not in lacking]:
            operations = [each for each in OPERATIONS if not name.startswith("complex") or each in ("SUM", "PROD")]
            plan += [(size, name, call.__name__.capitalize(), call, ()) for call in MOVING]
            plan += [(size, name, f"{c.__name__.capitalize()} {op}", c, (op,)) for c in REDUCING for op in operations]
    return plan, lacking


class Case:
    """A type and a size; what every rank gives is known to all."""

    def __init__(self, MPI, comm, name, size):
        import numpy

        self.MPI, self.comm, self.np = MPI, comm, numpy
        self.type, self.size, self.rank, self.world = numpy.dtype(name), size, comm.rank, comm.size
        self.root = size % comm.size

    def rows(self, kind=WIDE):
        """What each rank gives: world x size."""
        return rows(kind, self.type.name, tuple(range(self.world)), self.size)

    def ragged(self, kind=WIDE):
        """world x (size + 2), of which rank r has size + r % 3; and those numbers."""
        return rows(kind, self.type.name, tuple(range(self.world)), self.size + 2), [
            self.size + rank % 3 for rank in range(self.world)
        ]

    def empty(self, *shape):
        """Nobody's values."""
        return self.np.full(shape, 113, self.type)

    def code(self):
        return self.MPI.Datatype.fromcode(self.type.char)

    def flat(self, parts):
        return self.np.concatenate([*parts, self.empty(0)]).astype(self.type)

    def same(self, got, wanted):
        return bool(self.np.array_equal(got, wanted))


@functools.lru_cache(maxsize=6)
def rows(kind, name, seeds, size):
    """len(seeds) x size values with which any order of operations is exact in any type: 0..100 to be moved; of -2..2
    to be added, some 30 ranks'; to be multiplied units, of which one rank's are twice as large. Nothing overflows:
    Open MPI saturates some unsigned sums, which its standard leaves open."""
    import numpy as np

    seed, index = np.array(seeds, "uint64").reshape(-1, 1), np.arange(size, dtype="uint64")
    mixed = (index * np.uint64(2654435761) + (seed + np.uint64(1)) * np.uint64(40503)) >> np.uint64(7)
    compound, sign = np.dtype(name).kind == "c", 0 if np.dtype(name).kind == "u" else 2
    if kind == PROD:
        values = np.where((mixed % 2) | (sign == 0), 1, -1) * np.where(index % len(seeds) == seed, 2, 1)
        return (values * np.where(mixed % 3, 1, 1j)).astype(name) if compound else values.astype(name)
    values = (mixed % 101).astype("int64")
    if kind == SUM:
        some = (mixed >> np.uint64(5)) % np.uint64(len(seeds) // 32 + 1) == 0
        values = np.where(some, values % (3 + sign) - sign, 0)
    return (values + 1j * ((mixed >> np.uint64(9)) % 3)).astype(name) if compound else values.astype(name)


def barrier(case):
    """Nobody is out before rank 0 is in."""
    comm, tag = case.comm, 11
    if comm.rank:
        comm.Barrier()
        comm.Send(b"x", 0, tag)
        return True
    time.sleep(0.05)
    early = comm.Iprobe(tag=tag)
    comm.Barrier()
    for _ in range(case.world - 1):
        comm.Recv(bytearray(1), tag=tag)
    return not early


def bcast(case):
    wanted = case.rows()[case.root]
    got = wanted.copy() if case.rank == case.root else case.empty(case.size)
    case.comm.Bcast(got, case.root)
    return case.same(got, wanted)


def scatter(case):
    given, got = case.rows(), case.empty(case.size)
    case.comm.Scatter(given if case.rank == case.root else None, got, case.root)
    return case.same(got, given[case.rank])


def scatterv(case):
    given, counts = case.ragged()
    got = case.empty(counts[case.rank])
    parts = case.flat(row[:count] for row, count in zip(given, counts, strict=True))
    case.comm.Scatterv([parts, counts, case.code()] if case.rank == case.root else None, got, case.root)
    return case.same(got, given[case.rank][: len(got)])


def gather(case):
    given, got = case.rows(), case.empty(case.world, case.size)
    case.comm.Gather(given[case.rank], got if case.rank == case.root else None, case.root)
    return case.rank != case.root or case.same(got, given)


def gatherv(case):
    given, counts = case.ragged()
    wanted = case.flat(row[:count] for row, count in zip(given, counts, strict=True))
    got, mine = case.empty(len(wanted)), given[case.rank][: counts[case.rank]]
    case.comm.Gatherv(mine, [got, counts, case.code()] if case.rank == case.root else None, case.root)
    return case.rank != case.root or case.same(got, wanted)


def allgather(case):
    given, got = case.rows(), case.empty(case.world, case.size)
    case.comm.Allgather(given[case.rank], got)
    return case.same(got, given)


def allgatherv(case):
    given, counts = case.ragged()
    wanted = case.flat(row[:count] for row, count in zip(given, counts, strict=True))
    got = case.empty(len(wanted))
    case.comm.Allgatherv(given[case.rank][: counts[case.rank]], [got, counts, case.code()])
    return case.same(got, wanted)


def alltoall(case):
    given = rows(WIDE, case.type.name, tuple(case.rank * case.world + to for to in range(case.world)), case.size)
    wanted = rows(WIDE, case.type.name, tuple(by * case.world + case.rank for by in range(case.world)), case.size)
    got = case.empty(case.world, case.size)
    case.comm.Alltoall(given, got)
    return case.same(got, wanted)


def alltoallv(case):
    size, world, name = case.size + 2, case.world, case.type.name
    counts = [case.size + (case.rank + other) % 3 for other in range(world)]  # the same both ways
    given = rows(WIDE, name, tuple(case.rank * world + to for to in range(world)), size)
    wanted = rows(WIDE, name, tuple(by * world + case.rank for by in range(world)), size)
    parts, expected = (case.flat(row[:n] for row, n in zip(each, counts, strict=True)) for each in (given, wanted))
    got = case.empty(len(expected))
    case.comm.Alltoallv([parts, counts, case.code()], [got, counts, case.code()])
    return case.same(got, expected)


def reduced(case, operation, given):
    return getattr(case.np, OPERATIONS[operation]).reduce(given, axis=0, dtype=case.type)


def kind_of(operation):
    return {"SUM": SUM, "PROD": PROD}.get(operation, WIDE)


def reduce(case, operation):
    given, got = case.rows(kind_of(operation)), case.empty(case.size)
    case.comm.Reduce(given[case.rank], got if case.rank == case.root else None, getattr(case.MPI, operation), case.root)
    return case.rank != case.root or case.same(got, reduced(case, operation, given))


def allreduce(case, operation):
    given, got = case.rows(kind_of(operation)), case.empty(case.size)
    case.comm.Allreduce(given[case.rank], got, getattr(case.MPI, operation))
    return case.same(got, reduced(case, operation, given))


def reduce_scatter(case, operation):
    """Each rank gets its part, of another length than the next one's."""
    counts = [case.size // case.world + rank % 3 for rank in range(case.world)]
    given = rows(kind_of(operation), case.type.name, tuple(range(case.world)), sum(counts))
    got, begin = case.empty(counts[case.rank]), sum(counts[: case.rank])
    case.comm.Reduce_scatter(given[case.rank], got, counts, getattr(case.MPI, operation))
    return case.same(got, reduced(case, operation, given)[begin : begin + len(got)])


def scan(case, operation):
    given, got = case.rows(kind_of(operation)), case.empty(case.size)
    case.comm.Scan(given[case.rank], got, getattr(case.MPI, operation))
    return case.same(got, reduced(case, operation, given[: case.rank + 1]))


MOVING = (bcast, scatter, scatterv, gather, gatherv, allgather, allgatherv, alltoall, alltoallv)
REDUCING = (reduce, allreduce, reduce_scatter, scan)
