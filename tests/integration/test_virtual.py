"""The real tools on virtual nodes: rocm-smi, Slurm's autodetection, lspci, libibverbs and our own collector, in a
container of the worker whose /sys is a node model's tree. What they must say is written out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import REPO, Built, engine

from rocstack.node import parse as read
from rocstack.node.recording import Recording
from rocstack.probe import recordings
from rocstack.probe.redact import mask
from rocstack.virtual import faults, machine, model, tree

pytestmark = pytest.mark.engine

CPUS = "/sys/devices/system/cpu"
COLLECT = "cd /ours && python3 -Bc 'import json; from node import collect; print(json.dumps(collect.collect({})))'"
RECORDED = "recorded"  # as a fault: the tree is that of a masked recording of such a node
TOOLS = """
set +e  # each of them misses something on some model
rocm-smi 2>&1
rocm-smi --showproductname --showid --showbus --showtoponuma --showtopoweight --showtopotype 2>&1
lspci -PP
ibv_devices 2>/dev/null | awk '{print $1}'
true
"""
SLURMD = """
install -d -o munge -g munge /run/munge /etc/munge
head -c 128 /dev/urandom >/etc/munge/munge.key
chown munge /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
runuser -u munge -- munged
mkdir -p /etc/slurm /tmp/spool
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
echo AutoDetect=rsmi >/etc/slurm/gres.conf
cat >/etc/slurm/slurm.conf <<END
ClusterName=virtual
SlurmctldHost=n1
GresTypes=gpu
SlurmdSpoolDir=/tmp/spool
SlurmUser=root
NodeName=n1 Gres={gres}
END
for try in $(seq 50); do [ -S /run/munge/munge.socket.2 ] && break; sleep 0.1; done
slurmd -G 2>&1
"""


class Shelf:
    """A container for every model and set of faults, started once."""

    def __init__(self, worker: str, prefix: str, folder: Path) -> None:
        self.worker, self.prefix, self.folder = worker, prefix, folder
        self.names: dict[tuple[str, ...], str] = {}

    def node(self, *words: str) -> str:
        """The container of a model (first word) with faults: the worker, unprivileged, with that model's /sys."""
        if words not in self.names:
            name = self.names[words] = f"{self.prefix}-virtual-{len(self.names)}"
            self._tree(*words).write_tree(self.folder / name)
            mounts = [f"{self.folder / name}:/sys:ro", f"{CPUS}:{CPUS}:ro"]
            mounts += [f"{REPO}/images/node/devices:/devices:ro", f"{REPO}/cli/rocstack/node:/ours/node:ro"]
            volumes = [word for mount in mounts for word in ("--volume", mount)]
            options = ["--detach", f"--name={name}", "--hostname=n1", "--network=none", "--no-healthcheck", *volumes]
            engine("run", *options, "--entrypoint=sleep", self.worker, "infinity")
            engine("exec", name, "/devices")
        return self.names[words]

    def _tree(self, model_name: str, *words: str) -> Recording:
        if RECORDED in words:
            read = Recording.from_dict(json.loads(self.run(COLLECT.format("tree=True"), model_name)))
            return tree.shown(mask([read], b"key")[0])
        return tree.record(faults.apply(machine.expand(model.load(model_name)), map(faults.parse, words)))

    def run(self, script: str, *words: str) -> str:
        done = engine("exec", "--interactive", self.node(*words), "bash", "-euo", "pipefail", "-s", input=script)
        return done.stdout


@pytest.fixture(scope="module")
def shelf(built: Built, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    shelf = Shelf(built.worker, prefix, tmp_path_factory.mktemp("trees"))
    yield shelf
    engine("rm", "--force", *shelf.names.values())


@pytest.mark.parametrize(
    ("name", "gpus", "product", "device", "gfx"),
    [
        ("mi300x-thor2", 8, "AMD Instinct MI300X OAM", "0x74a1", "gfx942"),
        ("mi325x-thor2", 8, "AMD Instinct MI325X", "0x74a5", "gfx942"),
        ("mi355x-pollara", 8, "AMD Instinct MI355X", "0x75a3", "gfx950"),
        (
            "mi250x-slingshot",
            8,
            "AMD INSTINCT MI250X (MCM) OAM AC MBA",
            "0x7408",
            "gfx9010",
        ),  # so rocm-smi writes gfx90a
        ("mixed-broken", 7, "AMD Instinct MI300X OAM", "0x74a1", "gfx942"),
    ],
)
def test_rocm_smi_shows_the_gpus(shelf: Shelf, name: str, gpus: int, product: str, device: str, gfx: str) -> None:
    cards = json.loads(shelf.run("rocm-smi --showproductname --showid --showbus --json 2>/dev/null", name))
    assert sorted(cards) == [f"card{index}" for index in range(gpus)]
    assert {card["Card Series"] for card in cards.values()} == {product}
    assert {card["Device ID"] for card in cards.values()} == {device}
    assert {card["GFX Version"] for card in cards.values()} == {gfx}


def test_rocm_smi_shows_the_links(shelf: Shelf) -> None:
    said = shelf.run("rocm-smi --showtopoweight --showtopotype --showtoponuma", "mi250x-slingshot")
    weights = [line.split()[1:] for line in said.splitlines() if re.match(r"GPU\d +\d", line)][:8]
    assert weights[0] == ["0", "15", "15", "30", "30", "30", "15", "30"]
    assert weights[5] == ["30", "15", "30", "30", "15", "0", "30", "15"]
    assert len(re.findall(r"\bXGMI\b", said)) == 56
    assert re.findall(r"Numa Node: (\d)", said) == ["3", "3", "1", "1", "0", "0", "2", "2"]


@pytest.mark.parametrize(
    ("name", "gres", "type", "count"),
    [
        ("mi300x-thor2", "gpu:mi300x:8", "mi300x", 8),
        ("mi325x-thor2", "gpu:mi325x:8", "mi325x", 8),
        ("mi355x-pollara", "gpu:mi355x:8", "mi355x", 8),
        ("mi250x-slingshot", "gpu:mi250x:8", "mi250x", 8),
        ("mixed-broken", "gpu:mi300x:7", "mi300x", 7),
    ],
)
def test_slurm_finds_the_gpus_with_their_type(shelf: Shelf, name: str, gres: str, type: str, count: int) -> None:
    said = shelf.run(SLURMD.format(gres=gres), name)
    found = re.findall(r"Gres Name=gpu Type=(\S+) Count=1 Index=\d+ ID=\d+ File=(\S+) Links=\S+ Flags=(\S+)", said)
    assert found == [
        (type, f"/dev/dri/renderD{minor}", "HAS_FILE,HAS_TYPE,ENV_RSMI") for minor in range(128, 128 + count)
    ]


@pytest.mark.parametrize(
    ("name", "filter", "count", "first", "text"),
    [
        ("mi300x-thor2", "1002:74a1", 8, "05:00.0", "Aqua Vanjaram [Instinct MI300X]"),
        ("mi300x-thor2", "14e4:1760", 8, "06:00.0", "BCM57608"),
        ("mi300x-cx7", "15b3:1021", 8, "06:00.0", "MT2910 Family [ConnectX-7]"),
        ("mi250x-slingshot", "17db:0501", 4, "29:00.0", "Cassini 1 [Slingshot 200Gb]"),
        ("mixed-broken", "1002:74a1", 7, "05:00.0", "Instinct MI300X"),
    ],
)
def test_lspci_shows_the_devices(shelf: Shelf, name: str, filter: str, count: int, first: str, text: str) -> None:
    lines = shelf.run(f"lspci -d {filter}", name).splitlines()
    assert len(lines) == count
    assert lines[0].startswith(first)
    assert all(text in line for line in lines)


def test_lspci_shows_the_way_through_the_switch(shelf: Shelf) -> None:
    lines = shelf.run("lspci -PP -d 1002:74a1; lspci -PP -d 14e4:1760", "mi300x-thor2").splitlines()
    ways = [line.split()[0] for line in lines]
    assert ways[1] == "18:01.1/19:00.0/1a:00.0/1b:00.0/1c:00.0/1d:00.0"
    assert ways[9] == "18:01.1/19:00.0/1a:01.0/1e:00.0"


@pytest.mark.parametrize(
    ("name", "wanted", "lists"),
    [
        ("mi325x-thor2", (), [f"bnxt_re{i}" for i in range(8)]),
        ("mi325x-thor2", ("nic-missing=bnxt_re5",), [f"bnxt_re{i}" for i in (0, 1, 2, 3, 4, 6, 7)]),
        ("mi325x-thor2", ("no-device-node=bnxt_re5",), [f"bnxt_re{i}" for i in (0, 1, 2, 3, 4, 6, 7)]),
        ("mi300x-cx7", (), [f"mlx5_{i}" for i in range(9)]),
        ("mi300x-thor2", ("abi=1",), [f"bnxt_re{i}" for i in range(8)]),
        ("mi300x-thor2", (), []),  # kernel ABI 6: rdma-core's own provider has none of it
        ("mi355x-pollara", (), []),  # no ionic provider in rdma-core 56
        ("mixed-broken", (), ["mlx5_0", "mlx5_1", "mlx5_bond_0"]),
    ],
)
def test_libibverbs_lists_what_its_providers_fit(
    shelf: Shelf, name: str, wanted: tuple[str, ...], lists: list[str]
) -> None:
    lines = shelf.run("ibv_devices 2>/dev/null", name, *wanted).splitlines()
    assert sorted(line.split()[0] for line in lines[2:]) == lists


@pytest.mark.parametrize("name", ["mi300x-thor2", "mi250x-slingshot", "mi300x-cx7"])
def test_the_tools_read_the_tree_of_a_recording(shelf: Shelf, name: str) -> None:
    said = shelf.run(TOOLS, name)
    assert len(said.splitlines()) > 100
    assert shelf.run(TOOLS, name, RECORDED) == said
    kind = name.partition("-")[0]
    gres = shelf.run(SLURMD.format(gres=f"gpu:{kind}:8"), name, RECORDED)
    assert gres.count(f"Gres Name=gpu Type={kind} Count=1") == 8


@pytest.mark.parametrize("name", model.names())
def test_our_collector_reads_the_model_off_the_node(shelf: Shelf, name: str) -> None:
    seen = read.parse(Recording.from_dict(json.loads(shelf.run(COLLECT.format(""), name))), recordings.kinds())
    meant = read.parse(tree.record(faults.apply(machine.expand(model.load(name)), [])), recordings.kinds())
    assert seen.virtual == name
    assert seen.gpus == meant.gpus
    assert seen.nics == meant.nics
    assert seen.verbs == meant.verbs
    assert seen.affinity == meant.affinity
    assert seen.cxi == meant.cxi
    assert seen.groups.get("/dev/kfd") == (109 if seen.gpus else None)
    assert seen.system.cmdline == meant.system.cmdline
    assert seen.system.cpus == meant.system.cpus
    assert [library.driver for library in seen.libraries if library.driver == "bnxt_re"] == ["bnxt_re"], "the image's"
