"""The doctor: each known text is found in its own example and nowhere else, logs of any kind are read, and each
state of a node is found on a profile that shows it and on no other."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cli_run import Cli
from growth import LINEAR, growth
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack.base import finding_texts, paths
from rocstack.base.errors import BadInput
from rocstack.doctor import fleet, logfile, loglines, logrules, logscan
from rocstack.doctor import nodes as core
from rocstack.doctor.loglines import LogOrigin, origin
from rocstack.stack import component

FOLDER = paths.images() / "findings"
TABLE = finding_texts.load()
TEXTS = [entry for entry in TABLE.values() if entry.text]
DATA = Path(__file__).parents[1] / "data" / "doctor"
LOGS = sorted(DATA.glob("*.log"))
HEALTHY = sorted(DATA.glob("healthy/*.log"))
NOTES = {  # of healthy logs: what is worth a word there
    "rccl-one-node": ("rccl-no-ib-device", "tcp-one-node"),
    "rccl-one-node-no-verbs": ("rccl-no-libibverbs", "tcp-one-node"),
    "time-limit": ("slurm-time-limit",),
    "rccl-libfabric-without-verbs": ("rccl-no-ib-device",),
    "verbs-other-provider": ("verbs-provider-missing",),
    "torchrun-end": ("torch-store-ended",),
    "accepted-runs": ("limit-refused", "sudo-refused"),
}
ALONE = {"transport-unknown"}  # said of any log that isn't RCCL's


def scan(data: bytes, size: int = logfile.PIECE) -> logscan.LogReport:
    return logscan.scan(logfile.pieces(io.BytesIO(data).read, size), TABLE)


def ids(data: bytes) -> set[str]:
    return {finding.code for finding in scan(data).findings} - ALONE


def test_there_are_enough() -> None:
    assert len(TEXTS) >= 40
    assert len(TABLE) - len(TEXTS) >= 25


WORDINGS = [(entry, line) for entry in TEXTS for line in (str(entry.example), *entry.examples)]


@pytest.mark.parametrize(("entry", "line"), WORDINGS, ids=lambda each: getattr(each, "code", None))
def test_each_text_is_found_in_its_examples_only(entry: finding_texts.TextEntry, line: str) -> None:
    """And the sentence about it has no empty place."""
    found = {finding.code: finding for finding in scan(f"before\n{line}\nafter\n".encode()).findings}
    assert entry.code in found
    assert found.keys() - {entry.code} - ALONE <= set(entry.also)
    finding = found[entry.code]
    assert "{" not in finding.what + finding.next
    assert "  " not in finding.what
    assert not re.search(r"\(\)| ,|: ;", finding.what)


def test_each_entry_names_a_public_source_and_no_place_of_ours() -> None:
    for entry in TABLE.values():
        words = " ".join((entry.what, entry.cause, entry.next, entry.source))
        assert not re.search(r"https?://|/work\b|/tmp\b|\bshared/", words), entry.code
        assert set(entry.also) <= set(TABLE), entry.code


def test_every_state_has_its_rule_and_every_rule_its_entry() -> None:
    files = [*FOLDER.glob("log-*.yml"), FOLDER / "node.yml"]
    entries = [entry for file in files for entry in finding_texts.read(file, finding_texts.TextEntry)]
    states = {entry.code for entry in entries if not entry.text}
    assert states == {*core.RULES, *fleet.RULES, *logscan.RULES, core.UNREACHED}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log(path: Path) -> None:
    want = yaml.safe_load(path.with_suffix(".yml").read_text())
    report = scan(path.read_bytes())
    got = {finding.code: json.loads(json.dumps(finding.to_dict())) for finding in report.findings}
    assert set(got) == set(want["findings"])
    assert [*got] == want.get("order", [*got])
    for name, expected in want["findings"].items():
        assert {key: got[name][key] for key in expected} == expected, name
    assert report.transports == want["transports"]
    assert report.lines == path.read_bytes().count(b"\n")


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_has_no_finding(path: Path) -> None:
    found = {finding.code: finding.level for finding in scan(path.read_bytes()).findings}
    assert found == dict.fromkeys(NOTES.get(path.stem, ()), "note")


@pytest.mark.parametrize("nic", [nic for nic in component.nic_profiles() if nic.provider], ids=lambda nic: nic.name)
def test_a_provider_that_is_missed_is_one_of_a_card_that_we_know(nic: component.NicProfile) -> None:
    line = f"libibverbs: Warning: couldn't load driver 'lib{nic.provider}-rdmav57.so': no such file"
    assert ids(line.encode()) == {"verbs-provider-missing"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[1.2] [n1:88:0] ib_md.c:379 UCX DEBUG ibv_reg_mr(length=1) failed: Cannot allocate memory", set()),
        ("[1.2] [n1:88:0] mm_posix.c:206 UCX DIAG open(file_name=/proc/4/fd/3) failed: Permission denied", set()),
        (":3:hip_error.cpp :36 : 22 us: hipDeviceCanAccessPeer: Returned hipErrorInvalidDevice", set()),
        (":1:hip_device.cpp :77 : 22 us: hipSetDevice: Returned hipErrorInvalidDevice", {"gpu-device-ordinal"}),
        ("level=debug msg=\"n1:1:2 [0] NCCL WARN Cuda failure 2 'out of memory'\"", {"gpu-out-of-memory"}),
        ("ok 17 - handles No space left on device", set()),
        ('# if you see "No locks available", mount with flock; to fix `RuntimeError: can\'t start new thread`', set()),
        ('fix "Permission denied (publickey)" hints', set()),
        ("prefix: Permission denied (publickey)", {"ssh-access"}),
        ("- write failed: No space left on device: /data/namespaces/a", {"disk-full"}),
        (
            "n1:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
            {"rccl-shm-full"},
        ),
        ("client_loop: send disconnect: Broken pipe", set()),
        ("[ 20.4] snd_hda_intel: probe of 0000:c5:00.1 failed with error -2", set()),
        ("MPIDI_OFI_handle_cq_error(1): OFI poll failed (a.c:1:f:Input/output error - VNI_NOT_FOUND)", {"cxi-vni"}),
    ],
)
def test_what_a_program_tries_at_debug_level_is_no_event(line: str, found: set[str]) -> None:
    """Unless that level is another program's, which passes the line on."""
    assert ids(line.encode()) == found


def test_a_line_settles_one_finding_and_no_more() -> None:
    stuck = "E1118 77 rendezvous.cc:38] waiting for `initialize clique for rank 6` for 10 seconds and may be stuck.\n"
    settled = "E1118 77 rendezvous.cc:42] Thread is unstuck!\n"
    assert ids((stuck + settled).encode()) == set()
    assert ids((stuck * 2 + settled).encode()) == {"xla-clique-stuck"}


def test_what_ends_the_tries_of_one_file_says_nothing_of_anothers() -> None:
    tried = b"slurmdbd: error: mysql_real_connect failed: 2002 Can't connect\n"
    started = b"slurmdbd: slurmdbd version 25.05.3 started\n"
    several = {"a.log": tried + started, "b.log": tried * 2, "c.log": started + tried}
    for name, there in (("a.log", set()), ("b.log", {"slurm-database"}), ("c.log", {"slurm-database"})):
        assert ids(several[name]) == there
    (finding,) = logscan.scan_files([(name, [data]) for name, data in several.items()], TABLE).findings
    assert (finding.file, finding.line, finding.count) == ("b.log", 1, 3)


def test_there_are_many_healthy_logs() -> None:
    assert len(HEALTHY) >= 20


PREFIXES = {
    "0: ": LogOrigin(None, 0),
    " 12: ": LogOrigin(None, 12),
    "[1,3]<stdout>:": LogOrigin(None, 3),
    "[prterun-n1-77@1,3]<stderr>: ": LogOrigin(None, 3),
    "[rank7]: ": LogOrigin(None, 7),
    "[default0]:": LogOrigin(None, None),
    "node-03: ": LogOrigin("node-03", None),
    "n1.cluster.example1: ": LogOrigin("n1.cluster.example1", None),
    "2026-08-22T10:11:12.123Z ": LogOrigin(None, None),
    "[2026-10-06T15:42:05] ": LogOrigin(None, None),
    "[ 8123.440] ": LogOrigin(None, None),
    "Aug  2 10:11:12 n4 kernel: ": LogOrigin("n4", None),
    "[1,3]<stderr>:n2:812:830 [3] NCCL INFO ": LogOrigin("n2", 3),
    "5: 2026-08-22 10:11:12,1 n8:1:2 [0] ": LogOrigin("n8", 5),
    "worker-2  | ": LogOrigin("worker-2", None),
    "slurmd-n9: ": LogOrigin("n9", None),
    "eth0: ": LogOrigin(None, None),
    "libibverbs: ": LogOrigin(None, None),
    "mlx5_0: ": LogOrigin(None, None),
    "step 3: ": LogOrigin(None, None),
    "99999999999999999999: ": LogOrigin(None, 999999999),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_before_a_line(prefix: str) -> None:
    assert origin(prefix + "Unable to create QP.") == PREFIXES[prefix]
    assert ids((prefix + "Unable to create QP.").encode()) == {"perftest-create-qp"}


ALL = b"".join(path.read_bytes() for path in LOGS)
WHOLE = scan(ALL)


@settings(max_examples=30)
@given(st.integers(1, len(ALL) + 1))
def test_the_size_of_the_pieces_does_not_matter_to_whole_lines(size: int) -> None:
    """Lines longer than a piece are cut; from the longest line on nothing depends on the size."""
    report = scan(ALL, max(size, 400))
    assert report == WHOLE


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(data: bytes) -> None:
    report = scan(data)
    assert report.lines == data.count(b"\n") + (not data.endswith(b"\n") if data else 0)


@given(st.text(max_size=300), st.sampled_from(TEXTS), st.text(max_size=300))
def test_a_text_is_found_amid_anything(before: str, entry: finding_texts.TextEntry, after: str) -> None:
    noise = f"{before} {entry.example} {after}".replace("\n", " ").replace("\r", " ").replace("\x1b", " ")
    assert entry.code in ids(noise.encode("utf-8", "replace"))


@pytest.mark.parametrize("entry", TEXTS, ids=lambda entry: entry.code)
def test_a_text_is_found_behind_a_label_and_before_a_mark(entry: finding_texts.TextEntry) -> None:
    assert entry.code in ids(f"1: {entry.example} x".replace("\n", " ").encode())


def test_an_excerpt_is_short_and_harmless() -> None:
    line = b"x" * 5000 + b" Unable to create QP. \x1b[2J\x07" + b"y" * 5000
    (finding,) = [f for f in scan(line).findings if f.code == "perftest-create-qp"]
    assert "Unable to create QP" in finding.seen[0]
    assert len(finding.seen[0]) < 220
    assert finding.seen[0].isprintable()


@pytest.mark.parametrize("end", [b"\n", b"\r", b""])
def test_of_a_long_line_what_is_near_is_looked_at(end: bytes) -> None:
    key = b"Unable to create QP."
    (found,) = loglines.holding(b"n1: first\n" + b"x" * 9000 + key + b"y" * 9000 + end, key)
    assert found == (2, "x" * 500 + key.decode() + "y" * (500 - len(key)))


ENDLESS = ("a", "8", " ", "x:", "1:", "x[", "a1", ": ", "(", "/")


@pytest.mark.parametrize("entry", TEXTS, ids=lambda entry: entry.code)
def test_a_text_of_any_length_costs_as_much_as_it_is_long(entry: finding_texts.TextEntry) -> None:
    """What a job's user writes doesn't hold its reader up: thousands of lines are near a known text."""
    for part in ENDLESS:
        assert growth(entry.read, part) < LINEAR, part


def test_a_plugins_name_of_any_length_costs_as_much_as_it_is_long() -> None:
    for part in ("libnccl-net.so.", "libnccl-net", "librccl-anp.so-"):
        assert growth(logrules._Plugin.lacking.search, part) < LINEAR, part


def test_a_line_without_end_is_not_kept_whole() -> None:
    class Endless(io.RawIOBase):
        left = 40 << 20

        def read(self, size: int = -1) -> bytes:
            size = min(size, self.left)
            self.left -= size
            return b"x" * size

    assert max(len(piece) for piece in logfile.pieces(Endless().read, 1 << 16)) <= 2 << 16


def test_names_are_bounded() -> None:
    data = b"".join(b"n%d: Unable to create QP.\n" % i for i in range(1000))
    (finding,) = [f for f in scan(data).findings if f.code == "perftest-create-qp"]
    assert finding.count == 1000
    assert len(finding.nodes) == 64


# The command


@pytest.mark.parametrize(
    ("encoded", "what"),
    [
        (lambda text: text.encode(), "utf-8"),
        (lambda text: b"\xff\xfe" + text.encode("utf-16-le"), "utf-16 with mark"),
        (lambda text: text.encode("utf-16-be"), "utf-16 without"),
        (lambda text: b"caf\xe9 \x80\n" + text.encode(), "latin-1"),
        (lambda text: gzip.compress(text.encode()), "gzip"),
        (lambda text: text.replace("\n", "\r\n").encode(), "DOS lines"),
    ],
)
def test_any_encoding(cli: Cli, tmp_path: Path, encoded: object, what: str) -> None:
    log = tmp_path / "odd name\t.log"
    log.write_bytes(encoded((DATA / "mixed.log").read_text()))  # type: ignore[operator]
    done = cli("doctor", "--log", str(log), "--json")
    assert done.code == 1, what
    assert [finding["id"] for finding in done.json()["findings"]] == ["tcp-mixed"]


def test_exit_codes_and_words(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--log", str(DATA / "rdma.log"))
    assert (done.code, done.err) == (0, "")
    assert "nothing known was found in 7 lines" in done.out
    assert "healthy" not in done.out
    done = cli("doctor", "--log", str(DATA / "mixed.log"))
    assert done.code == 1
    assert re.search(r"^  next +\S", done.out, re.MULTILINE)


def test_standard_input() -> None:
    command = [sys.executable, "-m", "rocstack.cli.main", "doctor", "-"]
    done = subprocess.run(command, input=(DATA / "mixed.log").read_bytes(), capture_output=True)
    assert done.returncode == 1
    assert b"standard input: 5 lines" in done.stdout


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "no-file"),
        (lambda path: path.mkdir(), "not-a-log"),
        (lambda path: path.write_bytes(b""), "not-a-log"),
        (lambda path: path.write_bytes(Path("/bin/ls").read_bytes()), "not-a-log"),
        (lambda path: path.write_bytes(gzip.compress(b"x" * 5000)[:20]), "not-a-log"),
        (lambda path: path.write_bytes(gzip.compress(bytes(range(256)) * 10)), "not-a-log"),
    ],
    ids=["missing", "folder", "empty", "program", "cut gzip", "packed program"],
)
def test_bad_input(cli: Cli, tmp_path: Path, make: object, code: str) -> None:
    path = tmp_path / "log"
    make(path)  # type: ignore[operator]
    done = cli("doctor", "--log", str(path), "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, code)


@pytest.mark.parametrize(("packed", "program"), [(lzma.compress, "xz"), (bz2.compress, "bzip2")])
def test_a_packed_log_is_unpacked_by_its_program(
    cli: Cli, tmp_path: Path, packed: Callable[[bytes], bytes], program: str
) -> None:
    (tmp_path / "log").write_bytes(packed(bytes(range(32, 127)) * 200))
    done = cli("doctor", "--log", "log", "--json")
    assert done.json()["error"]["next"] == f"unpack it: `{program} -dc FILE | rocstack doctor -`"


def test_one_thing_at_a_time(cli: Cli) -> None:
    done = cli("doctor", "inventory.yml", "--log", "x", "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "one-source")


WHOLE_ENTRY = "x:\n  level: error\n  what: m\n  cause: c\n  next: n\n  source: s\n"
TEXT_ENTRY = WHOLE_ENTRY + "  text: t\n  example: t\n"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("x:\n  level: error\n", "what"),
        ("x: [1]\n", "mapping"),
        (WHOLE_ENTRY.replace("error", "bad"), "level"),
        (WHOLE_ENTRY + "  text: t\n", "example"),
        (WHOLE_ENTRY + "  txet: t\n", "text"),
        (TEXT_ENTRY.replace("what: m", "what: '{a}'"), "fills a"),
        (TEXT_ENTRY + "  match: '('\n", "regular expression"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, body: str, word: str) -> None:
    (tmp_path / "x.yml").write_text(body)
    with pytest.raises(BadInput, match=word) as caught:
        finding_texts.load(tmp_path)
    assert caught.value.where


def test_an_entry_stands_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yml").write_text(WHOLE_ENTRY)
    with pytest.raises(BadInput, match="two files"):
        finding_texts.load(tmp_path)


@pytest.mark.slow
def test_a_log_of_a_gigabyte_fits_into_little_memory(tmp_path: Path) -> None:
    program = """
import io, re
from rocstack.doctor import logfile, logscan
from rocstack.base import finding_texts
line = b"2026-08-22 10:11:12,123 [rank0] step 123 loss 2.3456 tokens/s 12345 mem 120GiB\\n" * 12000
class Log(io.RawIOBase):
    left = 1_000_000_000
    def readable(self): return True
    def readinto(self, buffer):
        count = min(len(buffer), self.left, len(line)); self.left -= count
        buffer[:count] = line[:count]; return count
report = logscan.scan(logfile.pieces(io.BufferedReader(Log(), 1 << 20).read), finding_texts.load())
assert report.bytes == 1_000_000_000
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])  # ru_maxrss starts at the parent's
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000  # KB


def test_several_files_are_read_as_one_log() -> None:
    """One log a rank: what they say together counts, and each line is its own file's."""
    files = {
        "rank0.log": b"a\nn1:1:2 [0] NCCL INFO Using network Socket\nb",
        "rank1.log": b"n2:1:2 [0] NCCL INFO Using network Socket\nc\nUnable to create QP.\n",
        "rank2.log": b"Initialize clique for rank 2\n",
        "rank3.log": b"Initialize clique for rank 3\nstep 1\n",
    }
    report = logscan.scan_files([(name, [data]) for name, data in files.items()], TABLE)
    places = {finding.code: (finding.file, finding.line) for finding in report.findings}
    assert places == {
        "perftest-create-qp": ("rank1.log", 3),
        "tcp-fallback": ("", None),
        "clique-stall": ("rank2.log", 1),
    }
    assert (report.lines, report.files) == (9, {"rank0.log": 3, "rank1.log": 3, "rank2.log": 1, "rank3.log": 2})
