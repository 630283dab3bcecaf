"""RDMA between nodes, by the tools of the field: each pair of a round runs server and client of ibv_rc_pingpong or
ib_write_bw on each rail. MPI, over TCP, only tells the other end when its server listens and how its client ended.

messages.py and tournament.py are put before this. Argument, as JSON that went through zlib and base64: tool; rails,
node -> [[device, port, GID index or null, MTU of RDMA or null], ...], null for a rail that it lacks; together, whether
all rails at once; seconds that one run may take; rounds, at most; more, arguments of the tool; gpus, node -> device ->
the GPU whose memory is meant, and dmabuf, whether that goes by dma-buf: rails of a node whose tool can't are left out.
One line of JSON a run and end; of pingpongs that went well one for all rails of a pair.
"""

import base64
import contextlib
import fcntl
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import time
import zlib

KEPT = 3000  # characters
# Seconds that a server has when its client has ended, badly or well: ibv_rc_pingpong's asks for ever for what a dead
# client sent.
LOST, AFTER = 1, 10
NODE = os.environ.get("SLURMD_NODENAME") or platform.node()
SIOCGIFADDR = 0x8915
SILENT = OSError("the server did not begin to listen")
WELL, WRONG = re.compile(r"\d+ iters in [\d.]+ seconds"), re.compile("invalid data", re.IGNORECASE)  # of pingpongs
GPU, DMABUF = "--use_rocm", "--use_rocm_dmabuf"
LISTEN = "0A"  # in /proc/net/tcp


def main():
    asked = json.loads(zlib.decompress(base64.b64decode(sys.argv[1])))
    os.environ["UCX_TLS"] = "tcp,self,sm"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    names = told_by_all(comm, NODE)  # noqa: F821
    rails = [asked["rails"].get(name, []) if isinstance(name, str) else [] for name in names]
    if "gpus" in asked:
        knows_it = knows(asked["tool"], GPU, *([DMABUF] if asked["dmabuf"] else []))
        able = [each is True for each in told_by_all(comm, knows_it)]  # noqa: F821
        say({"node": NODE, "able": able[comm.rank]})
        rails = [own if can else [None] * len(own) for own, can in zip(rails, able, strict=True)]
    for number, pairs in enumerate(tournament(comm.size)):  # noqa: F821
        if number == asked["rounds"]:
            break
        for first, second in [pair for pair in pairs if comm.rank in pair]:
            run(comm, names, rails, first, second, asked)
        quiet(comm)


def run(comm, names, rails, first, second, asked):
    """All rails of a pair, at once or one after the other; the first is the server."""
    serves, peer = comm.rank == first, second if comm.rank == first else first
    both = [(rail, ends) for rail, ends in enumerate(zip(rails[first], rails[second], strict=False)) if all(ends)]
    for group in [both] if asked["together"] else [[one] for one in both]:
        mine = [(rail, *ends[0 if serves else 1][:3]) for rail, ends in group]
        mtus = [smaller(*(end[3] for end in ends)) for _, ends in group]
        lines = [
            [asked["tool"], *command(asked["tool"], *port, mtu), *memory(asked, port[0]), *asked["more"]]
            for (_, *port), mtu in zip(mine, mtus, strict=True)
        ]
        if serves:
            ports = free_ports(len(lines))
            runs = [start([*words, "-p", str(port)]) for words, port in zip(lines, ports, strict=True)]
            until = time.monotonic() + asked["seconds"]
            up = [port if listening(one, port, until) else None for one, port in zip(runs, ports, strict=True)]
            tell(comm, [address(), up], peer)  # noqa: F821
            codes, now = heard(comm, peer), time.monotonic()
            codes = [1 if code is None else code for code in numbers(codes, len(lines), -255, 255)]  # noqa: F821
            limits = [(now + (LOST if code else AFTER), f"when its client had ended with {code}") for code in codes]
        else:
            where, up = served(heard(comm, peer), len(lines))
            lines = [[*words, "-p", str(port), where] for words, port in zip(lines, up, strict=True)]
            runs = [start(words) if port else SILENT for words, port in zip(lines, up, strict=True)]
            limits = [(time.monotonic() + asked["seconds"], f"within {asked['seconds']:g} s")] * len(runs)
        ends = [end(one, *limit) for one, limit in zip(runs, limits, strict=True)]
        if not serves:
            tell(comm, [code for code, _ in ends], peer)  # noqa: F821
        well = []
        for (rail, device, port, gid), (code, said) in zip(mine, ends, strict=True):
            about = {"node": NODE, "peer": names[peer], "rail": rail, "device": f"{device}:{port}", "gid": gid}
            if asked["together"] and code == 0 and WELL.search(said) and not WRONG.search(said):
                well.append(rail)  # of many nodes the text of all pairs is gigabytes
            else:
                say({**about, "server": serves, "code": code, "said": said[-KEPT:]})
        if well and not serves:
            say({"node": NODE, "peer": names[peer], "well": well})


def say(answer):
    print("@rocstack " + json.dumps(answer), flush=True)


def heard(comm, peer):
    """What it sends, None for nonsense; the wait leaves the CPU to who needs it."""
    while not comm.Iprobe(source=peer):
        time.sleep(0.01)
    try:
        return told(comm, peer)  # noqa: F821
    except ValueError:
        return None


def served(told, count):
    """Where the servers of a node listen, and on which ports; none where it told something else."""
    try:
        where, up = told
        return address_of(where), numbers(up, count, 1, 65535)  # noqa: F821
    except (TypeError, ValueError, OSError):
        return "", [None] * count


def smaller(one, other):
    """Of two MTUs that are known: what both ports carry, the way between them has to."""
    return min(one, other) if one and other else None


def command(tool, device, port, gid, mtu):
    """InfiniBand needs no GID index; ib_write_bw finds the MTU by itself."""
    if tool == "ibv_rc_pingpong":
        wide = [] if mtu is None else ["-m", str(mtu)]
        return ["-d", device, "-i", str(port), *([] if gid is None else ["-g", str(gid)]), *wide]
    return ["-d", device, "-i", str(port), "-F", "--report_gbits", *([] if gid is None else ["-x", str(gid)])]


def memory(asked, device):
    """Which memory it is written from and to; nothing is the host's."""
    gpus = asked.get("gpus")
    return [] if gpus is None else [f"{GPU}={gpus[NODE][device]}", *([DMABUF] if asked["dmabuf"] else [])]


def knows(tool, *options):
    """Whether its help names these; one that was built without ROCm leaves them out."""
    try:
        done = subprocess.run([tool, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    words = set(re.findall(r"--\w+", (done.stdout + done.stderr).decode(errors="replace")))
    return words.issuperset(options)


def free_ports(count):
    """All are held until the last is drawn, so none is drawn twice."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def address():
    """Of the network device that sockets use here; without one, the name."""
    netdev = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            row = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", netdev.encode()))
        except OSError:
            return platform.node()
    return socket.inet_ntoa(row[20:24])


def start(words):
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return error


def listening(server, port, until):
    """A server that ends instead never will."""
    while isinstance(server, subprocess.Popen) and server.poll() is None and time.monotonic() < until:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as rows:
                if any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == LISTEN for row in rows):
                    return True
        time.sleep(0.02)
    return False


def end(process, until, limit):
    """Its exit status and words. Those of one that has ended are read even when the time is up."""
    if isinstance(process, OSError):
        return -1, str(process)
    try:
        said = process.communicate(timeout=until - time.monotonic() if process.poll() is None else None)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0] + f"\nno end {limit}".encode()
    return process.returncode, said.decode(errors="replace")


def quiet(comm):
    """A barrier that leaves the CPU to those who are not there yet."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


main()
