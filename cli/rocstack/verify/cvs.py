"""Inventory and configuration for AMD's Cluster Validation Suite, so that it runs on the same cluster (on its hosts,
not in rocstack's containers). images/cvs.yml has what doesn't depend on the cluster, and where the format is from."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocstack.base import document, paths
from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.plan import services
from rocstack.deploy.read import inventory
from rocstack.deploy.state import cluster_state
from rocstack.deploy.state.cluster_state import ClusterState
from rocstack.edge import files, ssh
from rocstack.edge.ssh import SshHost
from rocstack.node.fabric import ENV_PATH, parse_env
from rocstack.node.profile import NodeProfile
from rocstack.stack import gpus
from rocstack.verify import thresholds
from rocstack.verify.slurm_session import USER
from rocstack.verify.thresholds import Quantity, Threshold

FILL_IN = "<changeme>"  # cvs itself refuses to run while a value is that
ENV = "rocstack_env.sh"
LARGE = "8589934592"  # bytes, at which our collectives are judged
PAIRWISE = "pairwise_min_bw"
NICS = {"broadcom": "thor", "ainic": "ainic", "mellanox": "connectx"}  # of ours -> cvs' nic_model
# What rocstack itself sets, and no other value than such a one: of the libraries' own variables too some lead to code
# (UCX_GDB_COMMAND, HSA_TOOLS_LIB, NCCL_NET_PLUGIN=/home/x.so).
_NUMBER, _NETDEV, _PORT = r"[0-9]{1,9}", r"[A-Za-z0-9][\w.-]{0,14}", r"[A-Za-z0-9][\w.-]{0,62}(?::[0-9]{1,3})?"
_FABRIC = {
    name: re.compile(value, re.ASCII)
    for names, value in {
        ("NCCL_IB_HCA", "UCX_NET_DEVICES"): rf"=?{_PORT}(?:,{_PORT})*",
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"): rf"=?{_NETDEV}(?:,{_NETDEV})*",
        ("NCCL_IB_ADDR_RANGE",): r"[0-9A-Fa-f.:]{2,45}/[0-9]{1,3}",
        ("NCCL_IB_ADDR_FAMILY",): "AF_INET6?",
        ("NCCL_NET",): "IB|Socket|AWS Libfabric",
        ("NCCL_NET_PLUGIN",): "none",  # else a file that is loaded
        ("NCCL_NET_GDR_LEVEL",): "LOC|PIX|PXB|PHB|SYS",
        ("FI_MR_CACHE_MONITOR",): "disabled|memhooks|userfaultfd",
        ("FI_CXI_RDZV_PROTO",): "default|alt_read",
        ("FI_CXI_RX_MATCH_MODE",): "hardware|hybrid|software",
        (
            *("NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_TC", "NCCL_IB_USE_INLINE"),
            *("NCCL_CROSS_NIC", "NCCL_GDR_FLUSH_DISABLE", "NCCL_IGNORE_CPU_AFFINITY", "RCCL_AINIC_ROCE"),
            *("RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "UCX_IB_GID_INDEX", "UCX_IB_TRAFFIC_CLASS"),
            *("HSA_FORCE_FINE_GRAIN_PCIE", "FI_CXI_DISABLE_HOST_REGISTER", "FI_CXI_DEFAULT_CQ_SIZE"),
            *("FI_CXI_DEFAULT_TX_SIZE", "FI_CXI_RDZV_EAGER_SIZE", "FI_CXI_RDZV_THRESHOLD", "FI_CXI_RDZV_GET_MIN"),
        ): _NUMBER,
    }.items()
    for name in names
}
_MARK = "rocstack-answer"
# Not as root: amd-smi trusts a lock in /dev/shm that any user can have made.
_ASK = f"""cat /sys/class/dmi/id/bios_version; echo {_MARK}; lsmem --summary=only; echo {_MARK}
docker exec --user={USER} {services.WORKER} amd-smi firmware --json; echo {_MARK}
docker exec {services.WORKER} cat {ENV_PATH}"""


@dataclass(frozen=True)
class CvsHost:
    """A worker as cvs reaches it, and as the others do. `login`: ssh's options User, Port and IdentityFile."""

    name: str
    host: str
    address: str
    profile: NodeProfile
    login: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CvsFacts:
    """What one worker said beside its profile; empty where it said nothing."""

    bios: str = ""
    memory: str = ""  # as lsmem prints it: 1.5T
    firmware: Mapping[str, str] = field(default_factory=dict)  # of its first GPU
    fabric: Mapping[str, str] = field(default_factory=dict)


def export(
    path: Path, folder: Path, cluster: ClusterSettings, overlay: Path | None = None
) -> tuple[list[Path], list[str]]:
    """Reads the cluster and writes the files. Their paths, and what cvs can't know from them or a person must fill in.

    Raises:
        BadInput, Missing, CheckFailed: as `read_state`; no worker was reached.
    """
    state = cluster_state.read_state(inventory.load(path), cluster, overlay=overlay, forks=cluster.ship.forks)
    hosts = tuple(_hosts(state))
    if not hosts:
        raise CheckFailed.of("no-worker", inventory=path)
    labels = state.release.images.labels if state.release else {}
    said = _ask(state.gathered.ssh_hosts[hosts[0].name], bool(hosts[0].profile.virtual))
    facts = replace(said, fabric=harmless(said.fabric))
    made = documents(hosts, facts, labels.get("io.rocstack.component.rocm", ""), overlay)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: json.dumps(value, indent=4) + "\n" for name, value in made.items()}
    texts[ENV] = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in facts.fabric.items())
    for name, text in texts.items():
        files.write(folder / name, text)
    absent = [failure.node for failure in state.gathered.failures]
    notes = list(_notes(hosts, facts, absent, made))
    if left := [name for name in said.fabric if name not in facts.fabric]:
        notes.append(f"{ENV} lacks what may lead to code or isn't the fabric's: {', '.join(left)}")
    return [folder / name for name in texts], notes


def harmless(fabric: Mapping[str, str]) -> dict[str, str]:
    """Of one worker's variables those that all jobs of cvs may have: they lead to no code."""
    return {name: value for name, value in fabric.items() if name in _FABRIC and _FABRIC[name].fullmatch(value)}


def documents(hosts: tuple[CvsHost, ...], facts: CvsFacts, rocm: str, overlay: Path | None = None) -> dict[str, Any]:
    """The files' contents, by name. `overlay`: the site's folder, whose thresholds go before ours."""
    profile = hosts[0].profile
    hardware = thresholds.hardware(profile)
    texts: dict[str, Any] = document.read(paths.images() / "cvs.yml").data
    collectives, transfers, bounds = (texts.pop(name) for name in ("collectives", "transfers", "bounds"))
    rows_of = {name: tuple(Threshold(**row) for row in rows) for name, rows in bounds.items()}
    known = thresholds.load(overlay) | {name: Quantity(unit="GB/s", thresholds=rows) for name, rows in rows_of.items()}

    def least(quantity: str) -> str:
        bound = known[quantity].of(*hardware, nodes=len(hosts)) if quantity else None
        return f"{bound.least:.2f}" if bound and bound.least is not None else ""

    kinds = [nic.nic for nic in profile.nics if nic.nic]
    own = (each.netdev for each in profile.addresses if each.address.partition("/")[0] == hosts[0].address)
    netdevs = (name for name in own if _FABRIC["GLOO_SOCKET_IFNAME"].fullmatch(name))  # a word of cvs' command lines
    models = filter(None, (gpus.model_of(gpu.device, gpu.name) for gpu in profile.gpus))
    busbw = {name: least(quantity) for name, quantity in collectives.items()}
    rccl, ibperf, health = (texts[name] for name in ("rccl_config", "ibperf_config", "health_config"))
    rccl["rccl"]["mpi_params"] |= {
        "no_of_nodes": str(len(hosts)),
        "no_of_local_ranks": _usual(len(each.profile.gpus) for each in hosts),
        "mpi_oob_port": facts.fabric.get("GLOO_SOCKET_IFNAME") or next(netdevs, FILL_IN),
        "net_dev_list": facts.fabric.get("NCCL_IB_HCA", "").lstrip("="),
    }
    rccl["rccl"]["rccl_test_params"]["rccl_collective"] = list(collectives)
    rccl["rccl"]["cvs_params"] |= {
        "nic_model": NICS.get(kinds[0] if kinds else "", FILL_IN),
        "verify_bus_bw": str(any(busbw.values())),
        PAIRWISE: least(PAIRWISE) or FILL_IN,
    }
    rccl["rccl"]["results"] = {name: {"bus_bw": {LARGE: bound}} for name, bound in busbw.items() if bound}
    bound = least("rdma-write-bandwidth")  # one direction's, of large messages
    ibperf["ibperf"] |= {
        "gid_index": facts.fabric.get("NCCL_IB_GID_INDEX", "3"),
        "verify_bw": str(bool(bound)),
        "expected_results": {"ib_write_bw": {"8388608": {"8": bound, "16": bound}}} if bound else {},
    }
    health["transferbench"]["results"] |= {
        key: least(transfers.get(key, key)) or FILL_IN for key in (*transfers, *bounds) if key != PAIRWISE
    }
    health["rvs"]["config_path_mi300x"] = f"{health['rvs']['config_path_default']}/{next(models, '')}"
    texts["host_config"]["host"] |= _host([each.profile for each in hosts], facts, rocm)
    cluster = {
        "username": hosts[0].login.get("User", "{user-id}"),
        "priv_key_file": hosts[0].login.get("IdentityFile", "/home/{user-id}/.ssh/id_rsa"),
        "head_node_dict": {"mgmt_ip": hosts[0].host},
        "env_vars": {},
        "node_dict": {each.host: {"bmc_ip": "NA", "vpc_ip": each.address} for each in hosts},
    }
    return {f"{name}.json": value for name, value in {"cluster": cluster, **texts}.items()}


def _host(profiles: list[NodeProfile], facts: CvsFacts, rocm: str) -> dict[str, Any]:
    """What is so on most nodes is wanted of all; links as fast as they can be."""
    gpus = [gpu for each in profiles for gpu in each.gpus]
    nics = [nic for each in profiles for nic in each.nics if nic.nic]
    return {
        "os_version": _pattern(_usual(each.system.os_name for each in profiles)),
        "kernel_version": _pattern(_usual(each.system.kernel for each in profiles)),
        "rocm_version": rocm or FILL_IN,
        "bios_version": _pattern(facts.bios or FILL_IN),
        "online_memory": facts.memory or FILL_IN,
        "gpu_count": _usual(len(each.gpus) for each in profiles),
        "gpu_pcie_speed": _usual(gpu.pcie.max_speed for gpu in gpus),
        "gpu_pcie_width": _usual(gpu.pcie.max_width for gpu in gpus),
        "nic_pcie_speed": _usual(nic.pcie.max_speed for nic in nics),
        "nic_pcie_width": _usual(nic.pcie.max_width for nic in nics),
        "fw_dict": dict(facts.firmware),
    }


def _usual(values: Iterable[object]) -> str:
    """That of most; as cvs writes numbers."""
    known = Counter(value for value in values if value is not None)
    most = next((value for value, _ in known.most_common(1)), FILL_IN)
    return f"{most:g}" if isinstance(most, float) else str(most)


def _pattern(text: str) -> str:
    """cvs searches for it as a regular expression."""
    return re.sub(r"([()\[\]{}+*?|^$\\])", r"\\\1", text)


def _notes(
    hosts: tuple[CvsHost, ...], facts: CvsFacts, absent: Iterable[str], made: Mapping[str, Any]
) -> Iterable[str]:
    yield f"copy {ENV} to the head node's home; cvs wants ROCm, rccl-tests and Open MPI on the hosts"
    if models := {each.profile.virtual for each in hosts if each.profile.virtual}:
        yield f"virtual nodes ({', '.join(sorted(models))}): cvs would measure hardware that isn't there"
    for name, value in made.items():
        if keys := list(_open(value)):
            yield f"{name}: fill in what is {FILL_IN}: {', '.join(keys)}"
    if not facts.firmware:
        yield "host_config.json: fw_dict is empty, and cvs fails on the firmware: see `amd-smi firmware` on a good node"
    if any(each.login.get("Port", "22") != "22" for each in hosts):
        yield "cvs knows ssh's port 22 only"
    for name in absent:
        yield f"{name} was not reached and is left out"


def _open(value: Mapping[str, Any]) -> Iterable[str]:
    """The keys, at any depth, whose value is still to be filled in."""
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _open(each)
        elif each == FILL_IN:
            yield key


def _hosts(state: ClusterState) -> Iterable[CvsHost]:
    for each in state.inventory.workers:
        facts = state.gathered.node(each.name)
        if facts:
            inside = state.gathered.address(each)
            yield CvsHost(each.name, each.host, inside, facts.profile, login(state.gathered.ssh_hosts[each.name]))


def login(ssh_host: SshHost) -> dict[str, str]:
    """Of ssh's options those that cvs takes; a password is not among them."""
    matches = (re.fullmatch(r'(User|Port|IdentityFile)="?([^"]*)"?', word) for word in ssh_host.program)
    return {match[1]: match[2] for match in reversed([each for each in matches if each])}


def _ask(ssh_host: SshHost, virtual: bool) -> CvsFacts:
    done = ssh.run(ssh_host, ["sh", "-c", _ASK])
    bios, memory, firmware, fabric = (text.strip() for text in (*done.stdout.split(_MARK), "", "", "")[:4])
    size = re.search(r"Total online memory: *(\S+)", memory)
    try:
        env = parse_env(fabric)
    except ValueError:
        env = {}
    return CvsFacts(bios, size[1] if size else "", {} if virtual else read_firmware(firmware), env)


def read_firmware(text: str) -> dict[str, str]:
    """Of `amd-smi firmware --json`: the first GPU's; empty where it is something else."""
    try:
        return {str(each["fw_id"]): str(each["fw_version"]) for each in from_json(text)[0]["fw_list"]}
    except (ValueError, LookupError, TypeError):
        return {}
