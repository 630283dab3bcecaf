"""RDMA between nodes, by the tools of the field: each pair of a round runs server and client of ibv_rc_pingpong or
ib_write_bw on each
rail. MPI, over TCP, only tells the other end when its server listens.

tournament.py is put before this. Argument, as JSON: tool; rails, node -> [[device, port, GID index or null], ...];
together, whether all rails
at once; seconds that one run may take; rounds, at most; more, arguments of the tool. One line of JSON a run and end; of
pingpongs that went well one for all rails of a pair.
"""

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

KEPT = 3000  # characters
NODE = os.environ.get("SLURMD_NODENAME") or platform.node()
SIOCGIFADDR = 0x8915
SILENT = OSError("the server did not begin to listen")
WELL, WRONG = re.compile(r"\d+ iters in [\d.]+ seconds"), re.compile("invalid data", re.IGNORECASE)  # of pingpongs
LISTEN = "0A"  # in /proc/net/tcp


def main():
    asked = json.loads(sys.argv[1])
    os.environ["UCX_TLS"] = "tcp,self,sm"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    names = comm.allgather(NODE)
    rails = [asked["rails"][name] for name in names]
    for number, pairs in enumerate(tournament(comm.size)):  # noqa: F821
        if number == asked["rounds"]:
            break
        for first, second in [pair for pair in pairs if comm.rank in pair]:
            run(comm, names, rails, first, second, asked)
        quiet(comm)


def run(comm, names, rails, first, second, asked):
    """All rails of a pair, at once or one after the other; the first is the server."""
    serves, peer = comm.rank == first, second if comm.rank == first else first
    both = list(enumerate(zip(rails[first], rails[second], strict=False)))
    for group in [both] if asked["together"] else [[one] for one in both]:
        mine = [(rail, *ends[0 if serves else 1]) for rail, ends in group]
        lines = [[asked["tool"], *command(asked["tool"], *ends), *asked["more"]] for _, *ends in mine]
        if serves:
            ports = [free_port() for _ in lines]
            runs = [start([*words, "-p", str(port)]) for words, port in zip(lines, ports, strict=True)]
            up = [port if listening(one, port) else None for one, port in zip(runs, ports, strict=True)]
            comm.send((address(), up), peer)
        else:
            while not comm.iprobe(source=peer):  # leaves the CPU to who needs it
                time.sleep(0.01)
            where, up = comm.recv(source=peer)
            lines = [[*words, "-p", str(port), where] for words, port in zip(lines, up, strict=True)]
            runs = [start(words) if port else SILENT for words, port in zip(lines, up, strict=True)]
        well = []
        for (rail, device, port, gid), one in zip(mine, runs, strict=True):
            code, said = end(one, asked["seconds"])
            about = {"node": NODE, "peer": names[peer], "rail": rail, "device": f"{device}:{port}", "gid": gid}
            if asked["together"] and code == 0 and WELL.search(said) and not WRONG.search(said):
                well.append(rail)  # of many nodes the text of all pairs is gigabytes
            else:
                say({**about, "server": serves, "code": code, "said": said[-KEPT:]})
        if well and not serves:
            say({"node": NODE, "peer": names[peer], "well": well})


def say(answer):
    print("@rocstack " + json.dumps(answer), flush=True)


def command(tool, device, port, gid):
    """InfiniBand needs no GID index."""
    if tool == "ibv_rc_pingpong":
        return ["-d", device, "-i", str(port), *([] if gid is None else ["-g", str(gid)])]
    return ["-d", device, "-i", str(port), "-F", "--report_gbits", *([] if gid is None else ["-x", str(gid)])]


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


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


def listening(server, port, seconds=20):
    """A server that ends instead never will."""
    until = time.monotonic() + seconds
    while isinstance(server, subprocess.Popen) and server.poll() is None and time.monotonic() < until:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as rows:
                if any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == LISTEN for row in rows):
                    return True
        time.sleep(0.02)
    return False


def end(process, seconds):
    """Its exit status and words."""
    if isinstance(process, OSError):
        return -1, str(process)
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[0] + f"\nno end within {seconds:g} s".encode()
    return process.returncode, said.decode(errors="replace")


def quiet(comm):
    """A barrier that leaves the CPU to those who are not there yet."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


main()
