"""What several lines of a log say together: the way that RCCL's data took, the NICs that each host uses, a plugin that
was asked for and isn't there, a start that never ends. Pure."""

import re
from collections import Counter
from typing import NamedTuple, Protocol

from rocstack.base.finding_texts import Table
from rocstack.base.text import listed
from rocstack.doctor.diagnosis import Diagnosis, diagnosis
from rocstack.doctor.loglines import excerpt, holding, origin

CODES = (
    "tcp-fallback",
    "tcp-mixed",
    "tcp-one-node",
    "transport-unknown",
    "rccl-plugin-missing",
    "rccl-nics-differ",
    "clique-stall",
    "nic-link-down",
)
_NAMES = 64  # nodes and processes that are named
_MANY = 65536  # that are remembered
_TAIL = 65536  # bytes at the end of a log
_PROCESS = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):(\d{1,10}):\d{1,10} \[")


class _Rule(Protocol):
    @property
    def keys(self) -> tuple[bytes, ...]: ...  # what the lines hold that it looks at

    def look(self, number: int, line: str) -> None: ...

    def findings(self, table: Table) -> list[Diagnosis]: ...


class Rules:
    """All of them, fed with the pieces of a log."""

    def __init__(self) -> None:
        self.network, self.start, self.links = _Network(), _Start(), _Links()
        self.opened = False  # ibv_devinfo shows a device
        self.all: tuple[_Rule, ...] = (self.network, _Plugin(), _Nics(), self.start, self.links)

    def look(self, piece: bytes, before: int) -> None:
        """`before`: lines that came before this piece."""
        self.network.info = self.network.info or any(mark in piece for mark in (b"NCCL INFO", b"NCCL WARN"))
        self.opened = self.opened or b"hca_id:" in piece
        self.start.piece(piece)
        for rule in self.all:
            for key in rule.keys:
                for number, line in holding(piece, key):
                    rule.look(before + number, line)

    def ended(self) -> None:
        """The file's end."""
        self.start.ended()
        self.links.ended()

    def findings(self, table: Table) -> list[Diagnosis]:
        return [finding for rule in self.all for finding in rule.findings(table)]

    def shown(self) -> set[str]:
        """What makes an entry harmless that says so."""
        return self.network.shown() | ({"device-opened"} if self.opened else set())

    def transports(self) -> dict[str, int]:
        return self.network.used()


def _host(line: str) -> str | None:
    process = _PROCESS.search(line)
    return process[1] if process else origin(line).node


class _Network:
    """Which transport each process says that it uses."""

    keys = (b"Using network ", b"via NET/", b"NET/Socket : Using", b"NET/IB : Using", b" nNodes ")
    using = re.compile(r"NCCL INFO Using network (?P<net>[A-Za-z][\w.-]{0,63}(?: Libfabric)?)")  # engines' JSON goes on
    offered = re.compile(r"NCCL INFO NET/(?P<net>Socket|IB) : Using")  # of releases that don't say which they use
    via_net = re.compile(r"via NET/(?P<net>[A-Za-z][\w -]{0,40}(?=/)|[A-Za-z]\w*)")  # also "AWS Libfabric", "IB-CAST"
    nodes = re.compile(r" nNodes (\d{1,6})\b")

    def __init__(self) -> None:
        self.info = False
        self.processes: dict[str, str] = {}  # "n1:812" -> "IB"; a later word replaces an earlier one
        self.offers: dict[str, tuple[int, str]] = {}  # with the line, of those that may not say more
        self.via: set[str] = set()
        self.most = 0  # nodes of a communicator, where a line says it

    def look(self, number: int, line: str) -> None:
        if match := self.nodes.search(line):
            self.most = max(self.most, int(match[1]))
        elif match := self.via_net.search(line):
            self.via.add(_family(match["net"]))
        elif match := self.using.search(line) or self.offered.search(line):
            process = _PROCESS.search(line)
            place = origin(line)
            name = f"{process[1]}:{process[2]}" if process else f"{place.node or '?'}:{place.rank}"
            if match.re is self.offered and (name in self.offers or len(self.offers) < _MANY):
                self.offers[name] = max((number, match["net"]), self.offers.get(name, (0, "")))
            elif match.re is self.using and (name in self.processes or len(self.processes) < _MANY):
                self.processes[name] = _family(match["net"])

    def _all(self) -> dict[str, str]:
        return {name: kind for name, (_, kind) in sorted(self.offers.items())} | self.processes

    def used(self) -> dict[str, int]:
        kinds = list(self._all().values())
        return {kind: kinds.count(kind) for kind in sorted({*kinds, *self.via})}

    def findings(self, table: Table) -> list[Diagnosis]:
        processes = self._all()
        sockets = [name for name, kind in processes.items() if kind == "Socket"]
        others = {*processes.values(), *self.via} - {"Socket"}
        every = {name.partition(":")[0] for name in processes}
        if not sockets and "Socket" not in self.via:
            if others or not self.info:
                return []
            return [diagnosis(table["transport-unknown"], {"why": "RCCL's start isn't in it"})]
        hosts = tuple(dict.fromkeys(name.partition(":")[0] for name in sockets)) or ("some ranks",)
        alone = "Socket" not in self.via and len(every) == 1 and self.most < 2
        name = "tcp-mixed" if others else "tcp-one-node" if alone else "tcp-fallback"
        count = f"{len(sockets)} processes on " if len(sockets) > 1 else ""
        who = count + listed(hosts)
        values = {"who": who, **({"level": "note"} if alone and not others and self.most == 1 else {})}
        return [diagnosis(table[name], values, count=max(len(sockets), 1), nodes=hosts[:_NAMES])]

    def shown(self) -> set[str]:
        processes = self._all()
        kinds = {*processes.values(), *self.via}
        alone = len({name.partition(":")[0] for name in processes}) == 1 and self.most < 2 and "Socket" not in self.via
        return {*(["one-node"] if alone else []), *(["rdma-used"] if kinds and "Socket" not in kinds else [])}


def _family(net: str) -> str:
    """IB for RCCL's own verbs transports and their plugins (IBext_v8, IB-CAST, ROCM-IB), else the name itself."""
    return "IB" if net.startswith("IB") or net.endswith("-IB") else net[:40]


class _Missing(NamedTuple):
    line: int
    shown: str
    file: str


class _Plugin:
    """A network plugin that isn't there matters where somebody named it: RCCL looks for one by default, too."""

    keys = (
        b"cannot open shared object file",
        b"No plugin found",
        b"Could not find: ",
        b"NCCL_NET_PLUGIN",
        b"set by env to",
    )
    lacking = re.compile(
        r"(?<!\w)(?P<file>lib[rn]ccl-net[\w.-]{0,80}\.so[\w.]{0,40}|librccl-anp[\w.-]{0,80}\.so)"
        r"(?:: cannot open|\)|[.,]? |$)"
    )
    named = re.compile(
        r"(?:NCCL_NET_PLUGIN(?: set by environment to |=)\"?|Plugin name set by env to )(?P<name>[\w./-]*[\w-])"
    )

    def __init__(self) -> None:
        self.missing: dict[str, _Missing] = {}
        self.count: Counter[str] = Counter()
        self.names: set[str] = set()

    def look(self, number: int, line: str) -> None:
        if match := self.named.search(line):
            self.names.add(match["name"][:200])
            self.names.discard("none")
        elif match := self.lacking.search(line):
            file = match["file"].rstrip(".")
            self.count[file] += 1
            first = self.missing.get(file)
            if first.line > number if first else len(self.missing) < _NAMES:
                self.missing[file] = _Missing(number, excerpt(line, file.encode()), file)

    def findings(self, table: Table) -> list[Diagnosis]:
        asked = [each for each in self.missing.values() if any(self._asked(each.file, name) for name in self.names)]
        if not asked:
            return []
        first = min(asked)
        values, count = {"file": first.file}, self.count[first.file]
        return [diagnosis(table["rccl-plugin-missing"], values, line=first.line, seen=(first.shown,), count=count)]

    @staticmethod
    def _asked(file: str, name: str) -> bool:
        name = name.rpartition("/")[2]
        return file == name or file in {f"lib{kind}ccl-net-{name}.so" for kind in "nr"} or file == f"{name}.so"


class _Nics:
    """Hosts of one job that use other NICs than the rest: a rail is missing, or a card that is none is among them."""

    keys = (b"NET/IB : Using", b"NET/IB: Using")
    device = re.compile(r"\[\d+\](?:=\{\[\d+\] ?)?(?P<name>[A-Za-z][\w.-]*):(?P<port>\d+)/(?P<kind>[A-Za-z]+)")

    def __init__(self) -> None:
        self.by_host: dict[str, tuple[str, ...]] = {}
        self.first: dict[str, tuple[int, str]] = {}

    def look(self, number: int, line: str) -> None:
        host = _host(line)
        devices = tuple(sorted({f"{m['name']}:{m['port']}/{m['kind']}" for m in self.device.finditer(line)}))
        if host and devices and (host in self.by_host or len(self.by_host) < _MANY):  # each rank may have its own
            self.by_host[host] = tuple(sorted({*self.by_host.get(host, ()), *devices}))
            self.first.setdefault(host, (number, excerpt(line, b"Using")))

    def findings(self, table: Table) -> list[Diagnosis]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for host, devices in self.by_host.items():
            groups.setdefault(devices, []).append(host)
        if len(groups) < 2:
            return []
        usual = max(groups, key=lambda devices: (len(groups[devices]), len(devices)))
        odd = tuple(host for devices, hosts in groups.items() if devices != usual for host in hosts)
        example = self.by_host[odd[0]]
        less, more = sorted(set(usual) - set(example)), sorted(set(example) - set(usual))
        differs = [*([f"without {listed(less, 4)}"] if less else []), *([f"with {listed(more, 4)}"] if more else [])]
        values = {
            "hosts": listed(odd, 4),
            "which": f"{odd[0]} uses {len(example)}, {' and '.join(differs)}; the others use {len(usual)}",
            "level": "error" if any(len(self.by_host[host]) != len(usual) for host in odd) else "warning",
        }
        number, shown = self.first[odd[0]]
        entry = table["rccl-nics-differ"]
        return [diagnosis(entry, values, nodes=odd[:_NAMES], count=len(odd), line=number, seen=(shown,))]


class _Start:
    """A job that stands still while XLA or RCCL sets up its communicators: nothing else follows in its log."""

    keys = (b"nitialize clique", b"nitializing clique", b"nitialize NCCL clique", b"nitializing NCCL clique")
    same = re.compile(rb"NCCL|[Cc]lique|rendezvous|^\s*$")  # what other ranks and threads say on the way there

    def __init__(self) -> None:
        self.count = self.line = 0  # of the last one; of the first file that ends with it
        self.shown = self.found = ""
        self.last = 0
        self.tail = b""

    def piece(self, piece: bytes) -> None:
        self.tail = (self.tail + piece)[-_TAIL:]

    def look(self, number: int, line: str) -> None:
        if "may be stuck" in line:  # XLA says so itself
            return
        if number > self.last:
            self.last, self.shown = number, excerpt(line, b"clique")
        self.count += 1

    def ended(self) -> None:
        at = max(self.tail.rfind(key) for key in self.keys)
        after = self.tail[at:].splitlines()[1:]
        stands = self.last and at >= 0 and all(self.same.search(line) for line in after)
        stands = stands and not any(b"Init COMPLETE" in line for line in after)
        if stands and not self.line:
            self.line, self.found = self.last, self.shown
        self.last, self.tail = 0, b""

    def findings(self, table: Table) -> list[Diagnosis]:
        if not self.line:
            return []
        return [diagnosis(table["clique-stall"], line=self.line, seen=(self.found,), count=self.count)]


# Not that of a PCIe slot, which is another matter.
LINK = re.compile(
    r"(?<!\S)(?:\(slave )?(?P<device>(?!Slot\()[^\s)]{1,64})"
    r"(?:\)?: (?:NIC )?link (?:is |status definitely )?| CXI_EVENT_LINK_)(?P<state>up|down)\b",
    re.IGNORECASE,
)


class _Links:
    """Links that went down: not those that come up for the first time afterwards, as on each start of a node."""

    keys = (
        b"ink is Down",
        b"ink down",
        b"ink is Up",
        b"ink up",
        b"ink is down",
        b"ink is up",
        b"CXI_EVENT_LINK_",
        b"link status definitely ",  # a bond's member
    )

    def __init__(self) -> None:
        self.up: dict[tuple[str | None, str], int] = {}  # node and device -> the first line, of this file
        self.down: list[tuple[int, str, tuple[str | None, str]]] = []
        self.first: tuple[int, str, str] | None = None  # line, excerpt, device, of all files
        self.count = 0
        self.nodes: dict[str, None] = {}

    def look(self, number: int, line: str) -> None:
        match = LINK.search(line)
        if match is None:
            return
        link = (origin(line).node, match["device"])
        if match["state"].lower() == "up" and len(self.up) < _MANY:
            self.up[link] = min(number, self.up.get(link, number))
        elif match["state"].lower() == "down" and len(self.down) < _MANY:
            self.down.append((number, excerpt(line, b"ink"), link))

    def ended(self) -> None:
        for number, shown, link in sorted(self.down, key=lambda each: each[0]):
            node, device = link
            if number < self.up.get(link, 0):
                continue
            self.first = self.first or (number, shown, device)
            self.count += 1
            if node and len(self.nodes) < _NAMES:
                self.nodes[node] = None
        self.up, self.down = {}, []

    def findings(self, table: Table) -> list[Diagnosis]:
        if self.first is None:
            return []
        line, shown, device = self.first
        values, nodes = {"device": device}, tuple(self.nodes)
        return [diagnosis(table["nic-link-down"], values, line=line, seen=(shown,), count=self.count, nodes=nodes)]
