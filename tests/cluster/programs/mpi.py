"""MPI on all nodes, by parts: launch, ring, links, collectives. Each rank prints one line of JSON a part, behind the
mark, as it is done: what hangs later takes nothing away.

messages.py, collectives.py and tournament.py are put before this. Arguments: seconds that the parts may take, then the
parts.
"""

import ctypes
import faulthandler
import json
import os
import platform
import re
import sys
import time

KEPT = 6000  # characters of what MPI's libraries said
LOOK = {"OMPI_MCA_pml_base_verbose": "10", "UCX_LOG_LEVEL": "info"}  # the libraries say what they chose
PML = re.compile(r"select: component (\w+) selected")
NOISE = re.compile(r"mca: base:|\] select|UCX  (INFO|DIAG)")
# UCX before 1.15 doesn't say of what is between two nodes that it is; what ranks of one have is told by its transports.
LANE = re.compile(r"(?:inter-node cfg#\d+|ep_cfg\[\d+\]:) tag\(([^)]*)\)")
ON_ONE_NODE = re.compile(r"\b(?:self|sysv|posix|cma|knem|xpmem|rocm_\w+)/")
SMALL, WARM, ITERATIONS, PATIENCE = 8, 10, 300, 0.4  # latency: bytes, unmeasured, at most, seconds
FIRST, LARGE, WINDOW, REPEATS, ENOUGH = 1 << 16, 1 << 22, 8, 3, 0.6  # bandwidth: bytes, messages, times, seconds
NODE = os.environ.get("SLURMD_NODENAME") or platform.node()


def watched(work):
    """Runs `work` in a child; its own output is kept here, so that it is there even if MPI ends the process. `work`
    takes what prints an answer."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(theirs, 1), os.dup2(theirs, 2)
        os.close(ours), os.close(theirs)

        def say(**answer):
            out.write(f"@rocstack {json.dumps({'node': NODE, **answer})}\n")
            out.flush()

        work(say)
        ctypes.CDLL(None).fflush(None)  # what C has not written yet
        os._exit(0)
    os.close(theirs)
    text = bytearray()
    with os.fdopen(ours, "rb") as said:
        while piece := said.read1():
            text += piece
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told = text.decode(errors="replace")
    kept = "\n".join(line for line in told.splitlines() if not NOISE.search(line))[-KEPT:]
    lanes = lanes_of(told)
    answer = {"part": "end", "node": NODE, "rank": int(os.environ.get("PMIX_RANK", -1)), "code": code, "said": kept}
    answer |= {"pml": sorted({*PML.findall(told)}), "lanes": lanes}
    print(f"@rocstack {json.dumps(answer)}", flush=True)
    return code & 255


def lanes_of(told):
    """To other nodes, as UCX names them."""
    known = (lanes for lanes in LANE.findall(told) if not ON_ONE_NODE.search(lanes))
    return sorted({lane for lanes in known for lane in lanes.split()})


def main(say):
    seconds, *parts = sys.argv[1:]
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    for name, value in LOOK.items():
        os.environ.setdefault(name, value)
    began = time.time()
    import mpi4py

    mpi4py.rc(initialize=False, finalize=False)
    from mpi4py import MPI

    MPI.Init()
    comm = MPI.COMM_WORLD
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    about = {"rank": comm.rank, "world": comm.size, "host": MPI.Get_processor_name()}
    say(part="launch", **about, seconds=round(time.time() - began, 3), mpi=MPI.Get_library_version().split(",")[0])
    known = {"ring": ring, "links": links, "collectives": collectives}  # noqa: F821 (collectives.py)
    for part in parts:
        started = time.monotonic()
        try:
            answer = known[part](MPI, comm)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if answer is not None:
            say(part=part, rank=comm.rank, seconds=round(time.monotonic() - started, 3), **answer)
        quiet(comm)
    MPI.Finalize()


def quiet(comm):
    """A barrier that leaves the CPU to those who are not there yet."""
    request, pause = comm.Ibarrier(), 0.0
    while not request.Test():
        time.sleep(pause)
        pause = min(pause + 0.0002, 0.01)


def ring(MPI, comm):
    """To the next rank, from the one before: an array that only that one sends, then a list that all signed."""
    import numpy as np

    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    count = 4099
    sent, got = np.arange(count, dtype="int64") * (comm.rank + 3), np.empty(count, dtype="int64")
    comm.Sendrecv(sent, after, 7, got, before, 7)
    wrong = np.flatnonzero(got != np.arange(count, dtype="int64") * (before + 3))
    signed = [] if comm.rank == 0 else list(told(comm, before, 8))  # noqa: F821 (messages.py)
    if comm.size > 1:
        tell(comm, [*signed, comm.rank], after, 8)  # noqa: F821
    if comm.rank == 0 and comm.size > 1:
        signed = told(comm, before, 8)  # noqa: F821
    expected = list(range(comm.size if comm.rank == 0 and comm.size > 1 else comm.rank))
    why = f"{len(wrong)} of {count} values wrong from rank {before}" if len(wrong) else ""
    if signed != expected:
        why = why or f"the list came as {signed!s:.80}"
    return {"before": before, "wrong": why}


def links(MPI, comm):
    """All pairs of nodes, by one rank each; pairs of a round have no node in common. None: this rank took no part."""
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    heads = comm.Split(0 if local.rank == 0 else MPI.UNDEFINED, comm.rank)
    if heads == MPI.COMM_NULL:
        return None
    names = [str(name) for name in told_by_all(heads, NODE)]  # noqa: F821 (messages.py)
    row = {}
    for pairs in tournament(heads.size):  # noqa: F821
        peer = next((set(pair) - {heads.rank} for pair in pairs if heads.rank in pair), set())
        for other in peer:
            row[names[other]] = link(heads, other)
        quiet(heads)
    return {"row": row}


def link(comm, peer):
    """Half a round trip, and the bandwidth from here to there; what arrived is compared."""
    leads = comm.rank < peer
    latency, wrong = pingpong(comm, peer, leads)
    sent = None
    for sends in (leads, not leads):
        if sends:
            sent = send(comm, peer)
        else:
            wrong += receive(comm, peer)
    return {"latency_us": round(latency * 1e6, 3), "bandwidth": sent["rate"], "bytes": sent["bytes"], "wrong": wrong}


def pingpong(comm, peer, leads):
    """The median. Messages are numbered; 0 is the last."""
    import numpy as np

    mine, theirs = np.zeros(SMALL // 8, "int64"), np.zeros(SMALL // 8, "int64")
    times, wrong, number, until = [], 0, 0, None
    while True:
        number += 1
        started = time.perf_counter()
        if leads:
            late = until is not None and started > until
            mine[:] = 0 if late or number > WARM + ITERATIONS else number
            comm.Send(mine, peer, 1)
            comm.Recv(theirs, peer, 1)
            wrong += int(theirs[0] != -mine[0])
        else:
            comm.Recv(theirs, peer, 1)
            mine[:] = -theirs
            comm.Send(mine, peer, 1)
            wrong += int(theirs[0] not in (0, number))
        times.append(time.perf_counter() - started)
        if number == WARM:
            until = started + PATIENCE
        if (mine if leads else theirs)[0] == 0 or wrong:
            break
    return float(np.median(times[WARM:] or times)) / 2, wrong


def body(sender, receiver):
    import numpy as np

    one = np.frombuffer(np.random.default_rng([sender, receiver]).bytes(LARGE), "uint8")
    window = np.tile(one, (WINDOW, 1))
    window[:, 0] = range(WINDOW)  # each message its own
    return window


def send(comm, peer):
    """Ever larger messages while there is time; of the largest the best of some."""
    import numpy as np

    window, size, rate, left = body(comm.rank, peer), FIRST, 0.0, REPEATS
    ack, until = np.zeros(1, "int64"), time.perf_counter() + ENOUGH
    while True:
        count = WINDOW if size == LARGE else 1
        comm.Send(np.array([size, count]), peer, 2)
        comm.Recv(ack, peer, 3)  # its receives are posted
        started = time.perf_counter()
        for request in [comm.Isend(window[slot, :size], peer, 4) for slot in range(count)]:
            request.Wait()
        comm.Recv(ack, peer, 5)
        now = time.perf_counter()
        new = size * count / (now - started) / 1e9
        rate = max(rate, new) if size == LARGE and left < REPEATS else new
        left -= size == LARGE
        if not left or now > until:
            break
        size = min(size * 2, LARGE)
    comm.Send(np.array([0, 0]), peer, 2)
    return {"rate": float(f"{rate:.4g}"), "bytes": size}


def receive(comm, peer):
    """How many messages arrived changed."""
    import numpy as np

    expected, got = body(peer, comm.rank), np.zeros((WINDOW, LARGE), "uint8")
    order, ack, wrong = np.zeros(2, "int64"), np.zeros(1, "int64"), 0
    while True:
        comm.Recv(order, peer, 2)
        size, count = map(int, order)
        if not size:
            return wrong
        got[:count, :size] = 255 - expected[:count, :size]  # not what was there before
        requests = [comm.Irecv(got[slot, :size], peer, 4) for slot in range(count)]
        comm.Send(ack, peer, 3)
        for request in requests:
            request.Wait()
        comm.Send(ack, peer, 5)
        wrong += sum(not np.array_equal(got[slot, :size], expected[slot, :size]) for slot in range(count))


if __name__ == "__main__":
    sys.exit(watched(main))
