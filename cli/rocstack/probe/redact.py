"""Takes out of recordings, and of what was said about the same nodes, what names a site: host names, addresses, users,
keys, serial numbers, the boot line's values.

What is taken out is replaced by a stand-in, the same one everywhere: addresses of one subnet stay in one subnet, a GID
stays the GID of its card's address, GPUs of one hive stay in one hive. Without the key nobody finds the way back.

Kept are hardware models, versions, PCI addresses, names of network devices and the libraries' bytes.
"""

import ipaddress
import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from uuid import UUID

from rocstack.node.parse_network import addresses, routes
from rocstack.node.recording import RecordedAnswer, Recording

ROUTES, ADDRESSES = "/proc/net/route", "ip -o -4 addr"
# Files that hold nothing but a number which only one machine has.
SERIALS = re.compile(
    r"/(unique_id|serial(_number)?|(product|board|chassis)_(serial|uuid|asset_tag)|xgmi_hive_id|machine-id|boot_id)$"
)
# Parameters of the kernel whose values are about hardware and memory; of all others only the name stays.
HARMLESS = re.compile(
    r"(BOOT_IMAGE|console|quiet|ro|rw|panic|psi|mitigations|audit|selinux|apparmor|security|lsm|nokaslr|swiotlb|idle|tsc"
    r"|clocksource|crashkernel|transparent_hugepage|isolcpus|(amd_|intel_)?iommu.*|amd_.*|intel_.*|pcie?(_.*|)|numa.*"
    r"|(default_)?hugepages.*|nohz.*|rcu.*|cgroup.*|systemd\.unified_cgroup_hierarchy|(amdgpu|processor|kvm|ttm|drm"
    r"|bnxt_en|bnxt_re|mlx5_core|mlx5_ib|ionic)\..*|(module_|modprobe\.)blacklist)$"
)
HEX = "[0-9a-fA-F]"
END = r"(?!\w)(?!:[:0-9a-fA-F])"  # of an address: a colon may stand behind it, but no more of it
TOKENS = re.compile(
    rf"(?P<uuid>(?<!{HEX}){HEX}{{8}}(?:-{HEX}{{4}}){{3}}-{HEX}{{12}}(?!{HEX}))"
    rf"|(?P<octets>(?<!\w)(?<!\b{HEX}{{2}}:){HEX}{{2}}(?::{HEX}{{2}}){{5,19}}{END})"
    rf"|(?P<dashed>(?<!\w)(?<!\b{HEX}{{2}}-){HEX}{{2}}(?:-{HEX}{{2}}){{5}}(?!\w)(?!-{HEX}))"
    rf"|(?P<guid>(?<!\w)(?<!\b{HEX}{{4}}:)(?<!::){HEX}{{4}}(?::{HEX}{{4}}){{3}}{END})"
    rf"|(?P<ipv6>(?<!\w)(?<![0-9a-fA-F:]:)(?:{HEX}{{0,4}}:){{2,7}}(?:{HEX}{{1,4}}|(?<=::)){END}(?!\.\d))"
    rf"|(?P<named>(?<=enx){HEX}{{12}}(?!{HEX}))"
)
DIGITS = re.compile(rf"{HEX}{{12,}}")  # of a MAC address without colons, or of longer ones
MOST_SERIALS = 1000  # of a node, which are searched for in what was said
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
# Names that say nothing about a site, and have a meaning in what we write ourselves.
PLAIN = frozenset(
    {
        *("localhost", "root", "user", "users", "admin", "default", "name", "ubuntu", "debian", "rocky"),
        *("cluster", "control", "controller", "head", "login", "node", "nodes", "worker", "workers", "host", "hosts"),
        *("gpu", "rocm", "slurm", "munge", "rocstack", "rocstack-verify"),
    }
)
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z][A-Za-z0-9-]+")  # with its domain
PUBLIC = re.compile(
    r"(?:.*\.)?(?:amd|radeon|broadcom|nvidia|hpe|github|githubusercontent|schedmd|docker|kernel|debian|ubuntu|pytorch|python"
    r"|pypi|pythonhosted|huggingface|open-mpi|openucx|arxiv)\.(?:com|org|io|net|co)"
)
# What is secret or personal wherever it stands in what programs said, and what takes its place. None looks to the
# end of a text from each of its characters: a node's text could make that hours.
_SECRET = (
    r"(?:(?:pass(?:word|wd|phrase)|secret|credential|(?:api|access|account|private|signing)[_-]?key)\w{0,40}"
    r"|token|[a-z]_pass|storagepass)(?!\w)"
)
_QUOTED = r"\"[^\"\n]{0,4000}\"|'[^'\n]{0,4000}'"
_HEADER = r"(?:proxy-)?authorization|x-registry-auth|x-slurm-user-token"
_SERIAL = r"(?:\w*[ _-])?(?:serial(?:[ _-]?(?:number|no))?|asset[ _-]tag)"
FORMS = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), "masked-key"),
    (re.compile(r"\b(?:ssh-[a-z0-9]+|ecdsa-sha2-\S{1,40}) [A-Za-z0-9+/=]{20,}(?: \S+)?"), "masked-key"),
    (re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]+\.[\w-]*|\bMUNGE:[\w+/=]+:?"), "masked-key"),
    (re.compile(r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|xox[a-z]-|A[KS]IA)[\w-]{16,}"), "masked-key"),
    (re.compile(rf"(?i)\b((?:{_HEADER})[\"']?\s*[=:]\s*)[\"']?(?:[a-z]+ +)?[^\s\"',;]+"), r"\1masked"),
    (re.compile(r"(?i)\b(bearer +)[\w.~+/=-]{8,}"), r"\1masked"),
    (re.compile(rf"(?i)(\b(?:set-)?cookie: *|[\"']auth[\"']\s*:\s*(?=[\"']))(?:{_QUOTED}|[^\n]+)"), r"\1masked"),
    (re.compile(rf"(?i)({_SECRET}[\"']?\s*[=:]\s*)(?:{_QUOTED}|[\"']?[^\s\"',;]+)"), r"\1masked"),
    (re.compile(rf"(?i)(--{_SECRET}\s+)(?!-)(?:{_QUOTED}|[^\s\"']+)"), r"\1masked"),
    (re.compile(rf"(?i)\b({_SERIAL}[\"']?\s*[=:]\s*)(?!0x0|N/A)\S+"), r"\1masked"),
    (re.compile(r"(?<=://)[^/\s@\"']+@"), ""),
    (re.compile(r"(/home/|/Users/)[^/\s:\"',;)\]]+"), r"\1user"),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@(?!sha256:)[A-Za-z0-9](?:[\w.-]*\w)?"), "user@host"),
)
_SECRET_FIELD = re.compile(rf"(?i)({_SECRET}|{_HEADER}|serial(_?number)?|asset_tag|vpd)$")


def mask(
    recordings: Sequence[Recording], key: bytes, hostnames: Mapping[str, str] | None = None
) -> tuple[Recording, ...]:
    """The recordings without what names their site; hosts become node-1, node-2 ... `key` is random and not kept;
    `hostnames` are what hosts call themselves, by their names here."""
    own = hostnames or {}
    redaction = Redaction(key, recordings, [(each.host, own.get(each.host, "")) for each in recordings])
    return tuple(map(redaction.recording, recordings))


class Redaction:
    """What names a site, and its stand-ins: one for all that is said about the same nodes.

    Args:
        hosts: the names of each node; all of the first become node-1.
        words: whatever else is to go -> what takes its place. A short one goes only where it stands alone.
    """

    def __init__(
        self,
        key: bytes,
        recordings: Sequence[Recording] = (),
        hosts: Sequence[Collection[str]] = (),
        words: Mapping[str, str] | None = None,
    ) -> None:
        self._key = key
        self._networks = sorted({n for r in recordings for n in _networks(r)}, key=lambda n: -n.prefixlen)
        self._words = {word.lower(): to for word, to in (words or {}).items() if _telling(word)}
        self._addresses: set[str] = set()
        self._versions: set[str] = set()
        self._bare: dict[str, str] = {}  # addresses of hardware without their colons -> others
        self._host_names: dict[str, str] = {}
        firsts = [next(iter(names), "").lower() for names in hosts]
        # Also of those that are addresses, or can't be told from other words.
        self._nodes = {name: f"node-{number}" for number, name in enumerate(firsts, 1) if name not in PLAIN}
        for number, names in enumerate(hosts, 1):
            for name in names:
                if _is_address(name):
                    self._addresses.add(name)
                    continue
                short, _, domain = name.lower().partition(".")
                self._host_names |= {each: f"node-{number}" for each in (name.lower(), short) if _telling(each)}
                self._words |= {domain: "domain"} if "." in domain else {}
        # What a node calls itself may be another's name.
        self._host_names |= {name: to for name, to in self._nodes.items() if name in self._host_names}
        for recording in recordings:
            serials = 0
            for path, content in recording.files.items():
                if SERIALS.search(path) and len(content.strip()) > 3:
                    serials += 1
                    if serials <= MOST_SERIALS:
                        self._words[content.strip().lower()] = self._like(content.strip())
                elif _plain(path):
                    self._versions.update(IPV4.findall(content))
                self._bare |= self._spellings(content)
            known = recording.commands.get(ADDRESSES, RecordedAnswer(0, "")).out
            self._addresses.update(IPV4.findall(known))
        self._versions -= self._addresses
        self._words |= self._host_names
        self._hosts_pattern = _any_of(self._host_names)
        self._pattern = _any_of(self._words)
        self._sizes = sorted({len(bare) for bare in self._bare}, reverse=True)

    def recording(self, recording: Recording) -> Recording:
        text = self.text
        return replace(
            recording,
            host=self._nodes.get(recording.host.lower(), recording.host),
            files={text(path): self.file(path, content) for path, content in recording.files.items()},
            blobs={text(p): data for p, data in ((p, _blob(p, d)) for p, d in recording.blobs.items()) if data},
            links={text(path): text(to) for path, to in recording.links.items()},
            folders=tuple(text(path) for path in recording.folders),
            devices={text(path): node for path, node in recording.devices.items()},
            commands={
                text(line): replace(answer, out=self.words(text(answer.out), any_address=line == ADDRESSES))
                for line, answer in recording.commands.items()
            },
            unread={text(what): self.words(text(why)) for what, why in recording.unread.items()},
            _children={},
        )

    def file(self, path: str, content: str) -> str:
        if path == ROUTES:
            return self._routes(content)
        if path == "/proc/cmdline":
            kernels, dashes, _ = content.partition(" -- ")  # what follows is for the first process
            content = " ".join(map(_parameter, kernels.split())) + (" -- masked\n" if dashes else "\n")
        elif path == "/etc/group":
            content = re.sub(r"(?m)^([^:\n]*:[^:\n]*:\d*:).*$", r"\1", content)  # who is in it
        elif "/kfd/topology/nodes/" in path:
            content = re.sub(r"(?m)^(unique_id|hive_id) ([1-9]\d*)$", lambda m: f"{m[1]} {self._like(m[2])}", content)
        elif SERIALS.search(path):
            return self._like(content)
        content = self.text(content)
        return content if _plain(path) else self.words(content, any_address=path == "/proc/cmdline")

    def value(self, value: Any) -> Any:
        """A JSON value: its texts as `said`; of its keys, the nodes' names and addresses."""
        if isinstance(value, str):
            return self.said(value)
        if isinstance(value, Mapping):
            return {self.key(name): self.field(name, each) for name, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value

    def key(self, name: str) -> str:
        name = name.encode(errors="replace").decode()
        name = self._hosts_pattern.sub(_instead(self._host_names), self.text(name))
        return IPV4.sub(lambda m: m[0] if m[0] in self._versions else self._ipv4(m[0]), name)

    def field(self, name: str, value: Any) -> Any:
        if _SECRET_FIELD.search(name) and isinstance(value, str | int) and not isinstance(value, bool):
            return self._like(value) if isinstance(value, str) else 0
        return self.value(value)

    def said(self, text: str) -> str:
        """What a program said: without all that, and without what looks like a key, a person or somebody's server."""
        text = text.encode(errors="replace").decode()  # half characters, which JSON can name and no file hold
        for form, to in FORMS:
            text = form.sub(to, text)
        text = self._known(self.text(text))
        text = re.sub(rf"(?<=://){NAME.pattern}", lambda m: m[0] if PUBLIC.fullmatch(m[0]) else "host", text)
        return IPV4.sub(lambda m: m[0] if m[0] in self._versions else self._ipv4(m[0]), text)

    def text(self, text: str) -> str:
        """Without UUIDs, MAC addresses, GUIDs, GIDs and IPv6 addresses, wherever they stand."""
        return TOKENS.sub(lambda m: getattr(self, "_" + str(m.lastgroup))(m[0]), text)

    def words(self, text: str, *, any_address: bool = False) -> str:
        """Without host names, serial numbers and IPv4 addresses: the known ones or, in a text about the network, where
        no version looks like one, all."""
        text = self._known(text)
        return IPV4.sub(lambda m: self._ipv4(m[0]) if any_address or m[0] in self._addresses else m[0], text)

    def _known(self, text: str) -> str:
        """Without the words that are known, and the addresses: of these a node may have told any number, so they are
        looked up and not searched for."""
        text = self._pattern.sub(_instead(self._words), text)
        return DIGITS.sub(lambda m: self._without_bare(m[0]), text) if self._bare else text

    def _without_bare(self, digits: str) -> str:
        small, out, at = digits.lower(), list[str](), 0
        while at < len(digits):
            size = next((size for size in self._sizes if small[at : at + size] in self._bare), 0)
            out.append(self._bare[small[at : at + size]] if size else digits[at])
            at += size or 1
        return "".join(out)

    def _digest(self, kind: str, value: object, size: int) -> bytes:
        return blake2b(f"{kind} {value}".encode(), key=self._key, digest_size=size).digest()

    def _like(self, text: str) -> str:
        """Another text of the same length and kinds of characters; zeros stay zeros."""
        if not text.strip("0 \n"):
            return text
        numbers = self._digest("serial", text.strip(), 64)
        while len(numbers) < len(text):
            numbers += self._digest("serial", numbers, 64)
        letters = 6 if re.fullmatch(rf"{HEX}+\s*", text) else 26
        alphabets = (string.digits, string.ascii_lowercase[:letters], string.ascii_uppercase[:letters])
        return "".join(
            next((a[1:][n % (len(a) - 1)] for a in alphabets if c in a), c)
            for c, n in zip(text, numbers)  # noqa: B905
        )

    def _mac(self, mac: bytes) -> bytes:
        plain = mac in (bytes(6), b"\xff" * 6)
        return mac if plain else b"\x02" + self._digest("mac", mac.hex(), 5)

    def _spellings(self, content: str) -> dict[str, str]:
        """How else programs write the addresses that a file has: without colons."""
        found: dict[str, str] = {}
        for match in TOKENS.finditer(content):
            if match.lastgroup in ("octets", "guid") and any(bytes.fromhex(match[0].replace(":", ""))):
                found[match[0].replace(":", "").lower()] = self.text(match[0]).replace(":", "")
        return found

    def _dashed(self, text: str) -> str:
        return self._octets(text.replace("-", ":")).replace(":", "-")

    def _octets(self, text: str) -> str:
        raw = bytes.fromhex(text.replace(":", ""))
        masked = self._mac(raw) if len(raw) == 6 else self._eui64(raw[:8]) + self._digest("hardware", raw, 12)
        return masked[: len(raw)].hex(":")

    def _named(self, text: str) -> str:
        return self._mac(bytes.fromhex(text)).hex()

    def _uuid(self, text: str) -> str:
        return str(UUID(bytes=self._digest("uuid", text.lower(), 16)))

    def _eui64(self, raw: bytes) -> bytes:
        """An interface's 64-bit name: through its MAC address where it was made from one."""
        if raw[3:5] == b"\xff\xfe":
            mac = self._mac(bytes([raw[0] ^ 2]) + raw[1:3] + raw[5:])
            return bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
        return b"\x02" + self._digest("guid", raw.hex(), 7) if any(raw) else raw

    def _guid(self, text: str) -> str:
        return self._eui64(bytes.fromhex(text.replace(":", ""))).hex(":", 2)

    def _ipv6(self, text: str) -> str:
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return text  # a PCI address, or nothing of the kind
        raw = address.packed
        if address.ipv4_mapped:
            raw = raw[:12] + ipaddress.IPv4Address(self._ipv4(str(address.ipv4_mapped))).packed
        elif int(address) > 1 and raw[0] != 0xFF:
            prefix = raw[:8] if raw[:8] == b"\xfe\x80" + bytes(6) else b"\xfd" + self._digest("prefix", raw[:8], 7)
            raw = prefix + self._eui64(raw[8:])
        new = ipaddress.IPv6Address(raw)
        return new.exploded if len(text) == 39 else str(new)

    def _ipv4(self, text: str) -> str:
        try:
            return str(ipaddress.IPv4Address(self._moved(int(ipaddress.IPv4Address(text)))))
        except ValueError:
            return text  # no address after all

    def _moved(self, address: int) -> int:
        """The address in its network's new place; one outside of the known networks counts as in a /24."""
        value = f"{address:032b}"
        length = next((n.prefixlen for n in self._networks if ipaddress.IPv4Address(address) in n), 24)
        moved = self._flipped(value[:length])
        # 10.0.0.0/8 as a whole can't be moved; its hosts can
        if moved == value[:length] and len(set(value[length:])) > 1:
            moved = self._flipped(value[:24])
        return int(moved + value[len(moved) :], 2)

    def _flipped(self, bits: str) -> str:
        return "".join(str(int(bit) ^ self._flips(bits[:at])) for at, bit in enumerate(bits))

    def _flips(self, before: str) -> bool:
        """Does the bit behind these change?"""
        if _on_the_way(before) or before.startswith(FIXED):
            return False
        # the first that may change does: no address stays what it was
        return _on_the_way(before[:-1]) or bool(self._digest("bits", before, 1)[0] & 1)

    def _routes(self, content: str) -> str:
        """The kernel's table: addresses as hex, least byte first."""
        lines = content.splitlines()
        for number, line in enumerate(lines[1:], 1):
            cells = line.split("\t")
            for at in (1, 2):
                if len(cells) > 7 and re.fullmatch(rf"{HEX}{{8}}", cells[at]):
                    value = int.from_bytes(bytes.fromhex(cells[at]), "little")
                    cells[at] = self._moved(value).to_bytes(4, "little").hex().upper()
            lines[number] = "\t".join(cells)
        return "\n".join(lines) + "\n" * content.endswith("\n")


def _is_address(name: str) -> bool:
    try:
        return bool(IPV4.fullmatch(name) or ipaddress.IPv6Address(name))
    except ValueError:
        return False


def _telling(word: str) -> bool:
    return len(word) > 1 and not (word.isdecimal() and len(word) < 4) and word.lower() not in PLAIN


def _instead(words: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    """What takes the place of a word, however it is spelt. A pattern that ignores case takes more for the same letter
    than `lower` does: the long s, the i without its dot."""

    def find(match: re.Match[str]) -> str:
        said = match[0]
        if said.lower() in words:
            return words[said.lower()]
        return next(to for word, to in words.items() if re.fullmatch(re.escape(word), said, re.IGNORECASE))

    return find


def _any_of(words: Collection[str]) -> re.Pattern[str]:
    """Of several, the longest; short ones only where they are no part of another word."""
    longest = [re.escape(word) for word in sorted(words, key=len, reverse=True)]
    long, short = ([w for w in longest if (len(w) > 8) is is_long] for is_long in (True, False))
    alone = rf"(?<![A-Za-z0-9_])(?:{'|'.join(short) or '(?!)'})(?![A-Za-z0-9_])"
    return re.compile("|".join([*long, alone]), re.IGNORECASE)


def _plain(path: str) -> bool:
    """Is what looks like an address in it a version?"""
    if path.endswith("/node_desc"):
        return False
    return path.endswith("/os-release") or path.startswith(("/sys/", "/var/lib/dpkg/"))


def _parameter(word: str) -> str:
    name, equals, _ = word.partition("=")
    return word if not equals or HARMLESS.match(name) else f"{name}=masked"


def _blob(path: str, data: bytes) -> bytes:
    """Libraries whole; of a PCI function's registers those before the extended ones, which hold its serial number."""
    if data.startswith(b"\x7fELF"):
        return data
    return data[:256] if path.endswith("/config") else b""


def _networks(recording: Recording) -> list[ipaddress.IPv4Network]:
    """The networks that a recording speaks of, but no single host and not the whole internet."""
    networks = []
    for text in (*(each.address for each in addresses(recording)), *(each.to for each in routes(recording))):
        with suppress(ValueError):
            networks.append(ipaddress.IPv4Network(text, strict=False))
    return [network for network in networks if 0 < network.prefixlen < 32]


def _bits(network: str) -> str:
    parsed = ipaddress.IPv4Network(network)
    return f"{int(parsed[0]):032b}"[: parsed.prefixlen]


# Networks that mean something by themselves: addresses neither leave nor enter them.
PRIVATE = tuple(map(_bits, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
FIXED = tuple(map(_bits, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")))  # nor change in them


def _on_the_way(before: str) -> bool:
    return any(network.startswith(before) and network != before for network in (*PRIVATE, *FIXED))
