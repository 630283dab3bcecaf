"""The nodes themselves: operating system, kernel, memory and limits, as AMD's guides want them."""

from __future__ import annotations

from datetime import datetime

import kernel
import states
from states import readable

from rocstack.base.text import listed
from rocstack.doctor import logscan
from rocstack.verify.evidence import HostAnswer, JobAnswer, NoAnswer
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

ACCEPTANCE = "AMD system acceptance guide"
NETWORKING = "AMD cluster networking guide"
CVS = "ROCm/cvs, host checks"
IOMMU_OFF = ("iommu=pt", "iommu.passthrough=1", "iommu=off", "amd_iommu=off", "intel_iommu=off")
RECENT = 15 * 60  # seconds, of AMD's guide, for which a link that was down is a fault; afterwards the ports tell
SHOWN = 5


@check(
    name="os",
    title="The operating system is the same on all nodes",
    cannot="which version is right; anything on a single node",
    level=1,
    cause="one node was installed at another time or updated alone",
    next_step="install the node like the others",
    source=CVS,
)
def test_os(record: Recorder) -> None:
    states.equal(record, "the operating system", lambda profile: profile.system.os)


@check(
    name="kernel",
    title="The kernel is the same on all nodes",
    cannot="whether the common version is good; anything on a single node",
    level=2,
    cause="one node was updated alone, or hasn't been rebooted since an update",
    next_step="compare `uname -r` with the installed kernels on the node; drain it, then reboot it",
    source=CVS,
)
def test_kernel(record: Recorder) -> None:
    states.equal(record, "the kernel", lambda profile: profile.system.kernel)


@check(
    name="rocm",
    title="The hosts' own ROCm is the same on all nodes that have one",
    cannot="anything of the image's own ROCm, which is what jobs use",
    level=2,
    needs=("gpu",),
    cause="one node was updated alone, or installed without ROCm",
    next_step=(
        "install one release on all hosts, or none: the image brings its own; check `cat /opt/rocm/.info/version`"
    ),
    source=CVS,
)
def test_rocm(record: Recorder) -> None:
    versions = {node.name: node.profile.tools.get("rocm") for node in record.nodes if node.profile}
    if not any(versions.values()):
        for node in record.nodes:
            record.skipped(node.name, f"no ROCm on {node.name} beside the containers; the image brings its own")
        return
    record.all_equal({name: version or "none" for name, version in versions.items()}, "ROCm of the host")


@check(
    name="kernel-parameters",
    title="The IOMMU doesn't translate GPUs' and NICs' addresses, and the kernel runs with pci=realloc=off",
    cannot="the BIOS' settings; in a guest, its host's",
    level=2,
    needs=("gpu",),
    cause="the boot loader lacks iommu=pt or pci=realloc=off, or the node hasn't been rebooted since they were set",
    next_step="add them to GRUB_CMDLINE_LINUX_DEFAULT, run `update-grub`, and reboot the node",
    source=ACCEPTANCE,
)
def test_kernel_parameters(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """What the kernel says of its IOMMU groups goes before the words: it may be built so, and a guest may have none."""
    wanted = "iommu=pt pci=realloc=off"
    for node in record.nodes:
        line = node.profile.system.cmdline if node.profile else None
        host = on_hosts.get(node.name)
        if line is None or node.profile is None:
            record.skipped(node.name, "its kernel's command line was not read")
            continue
        cards = {*(gpu.pci for gpu in node.profile.gpus), *(nic.pci for nic in node.profile.nics if nic.nic)}
        groups = host.iommu if isinstance(host, HostAnswer) and not node.virtual else None
        words = set(line.split())
        asked = {word for each in words if each.startswith("pci=") for word in each[4:].split(",")}
        lacking = [] if "realloc=off" in asked else ["pci=realloc=off"]
        if groups is None:
            lacking += [] if words & set(IOMMU_OFF) else ["iommu=pt"]
            text = " ".join(each for each in (*IOMMU_OFF, "pci=realloc=off") if each in words)
        else:
            translated = sorted(pci for pci in cards if (groups.get(pci) or "identity") != "identity")
            lacking += [f"pass-through of {listed(translated)}"] if translated else []
            text = f"{sum(pci in groups for pci in cards)} of {len(cards)} cards behind an IOMMU"
        if lacking == ["pci=realloc=off"] and groups is not None and not cards & set(groups):
            record.measured(node.name, f"{text}, without pci=realloc=off", wanted=wanted)  # a guest: its host's affair
        elif lacking:
            record.failed(node.name, f"without {', '.join(lacking)}", text, wanted=wanted, evidence=line)
        else:
            record.passed(node.name, text, wanted=wanted, evidence=line)


@check(
    name="numa-balancing",
    title="Automatic NUMA balancing is off",
    cannot="who might turn it on later",
    level=2,
    needs=("gpu",),
    cause="the distribution turns it on by default; it makes RCCL's bandwidth vary",
    next_step="run `sysctl kernel.numa_balancing=0`; the playbook host-nic.yml makes it permanent",
    source=f"{ACCEPTANCE}; {NETWORKING}",
)
def test_numa_balancing(record: Recorder) -> None:
    for node in record.nodes:
        value = node.profile.system.numa_balancing if node.profile else None
        if value is None:
            record.skipped(node.name, "the kernel has no NUMA balancing, or it could not be read")
        else:
            record.equal(node.name, value, 0, why=f"numa_balancing is {value}, not 0")


@check(
    name="memory",
    title="All of the node's memory is online",
    cannot="whether it is sound: `kernel-log` has the errors that the kernel heard of",
    level=2,
    needs=("gpu",),
    cause="a broken or badly seated memory module, or memory that is kept offline",
    next_step="check `lsmem`, `dmidecode -t memory`, and the BMC's log",
    source=ACCEPTANCE,
)
def test_memory(record: Recorder) -> None:
    """Beside what its GPU model wants: as much as most nodes have, to a fiftieth that firmware may keep."""
    sizes = {n.name: n.profile.system.memory for n in record.nodes if n.profile and n.profile.system.memory}
    usual = sorted(sizes.values())[len(sizes) // 2] if sizes else 0
    for node in record.nodes:
        size = sizes.get(node.name)
        if size is not None and size < usual * 0.98:
            why = f"{size / 1e12:.3f} TB, most nodes have {usual / 1e12:.3f} TB"
            record.failed(node.name, why, size / 1e12, "TB", wanted=f"{usual / 1e12:.3f} TB")
        else:
            record.judge(node.name, size / 1e12 if size else None, "memory")


@check(
    name="memlock",
    title="A job may lock as much memory as RDMA needs",
    cannot="whether the cards can pin as much",
    level=2,
    needs=("jobs", "gpu"),
    cause="the container engine or slurmd has the system's default limit",
    next_step="set LimitMEMLOCK=infinity for the engine (playbook host-nic.yml), then run `rocstack deploy`",
    source=f"{NETWORKING}, resource limits",
)
def test_memlock(record: Recorder, in_jobs: dict[str, JobAnswer]) -> None:
    for node in record.nodes:
        value = in_jobs[node.name].memlock if node.name in in_jobs else None
        if value is not None and value < 0:
            record.passed(node.name, "unlimited", wanted="unlimited")
        elif node.virtual:
            record.skipped(node.name, "virtual node: the machine under it decides what may be locked")
        else:
            record.judge(node.name, None if value is None else value / 1e9, "memlock")


@check(
    name="shm",
    title="Jobs have enough shared memory for the node's GPUs",
    cannot="how much of it other jobs use at the same time",
    level=2,
    needs=("jobs", "gpu"),
    cause="the worker's container runs with a small /dev/shm of its own",
    next_step="run `rocstack deploy`: it starts the container with the host's; check `df /dev/shm` on the host",
    source="AMD-AGI/Primus, node smoke",
)
def test_shm(record: Recorder, in_jobs: dict[str, JobAnswer]) -> None:
    for node in record.nodes:
        value = in_jobs[node.name].shm if node.name in in_jobs else None
        if node.virtual and value is not None:
            record.measured(node.name, value / 1e9, "GB", evidence="of the machine under the virtual node")
        else:
            record.judge(node.name, None if value is None else value / 1e9, "shm")


@check(
    name="kernel-log",
    title="The kernel log has no fault of a GPU, a network card, memory or PCIe in 7 days, nor of a link in 15 minutes",
    cannot=(
        "what the log's buffer has lost, and faults in words that our list hasn't; corrected errors, page "
        "faults, memory that ran out, refused buffers or queues and backtraces are left out, since hardware "
        "mends the one and any program makes the others; memory that failed where nothing used it is told, until "
        "the driver's list of bad pages is full"
    ),
    level=2,
    core=True,
    cause="a GPU, a card or its driver has failed since the node was started",
    next_step=(
        "`rocstack doctor --log FILE` explains lines of `dmesg`; test a GPU that failed with RVS before the next job"
    ),
    source=f"{ACCEPTANCE}, dmesg; {CVS}, err_patterns",
)
def test_kernel_log(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """Faults of the last days; a link that was down, of the last minutes; memory that is used up, whenever it was."""
    for node, lines in readable(record, on_hosts, "log"):
        if node.virtual:
            record.skipped(node.name, "virtual node: its kernel's log is another machine's")
            continue
        now, started = on_hosts[node.name].now, kernel.before_up(lines)
        past = [line for line in lines if line in started or _past(line, now)]
        contained = [line for line in lines if line not in past and kernel.contained(line)]
        lines = [line for line in lines if line not in past and line not in contained]
        text = "".join(f"{line}\n" for line in lines).encode()
        findings = [found for found in logscan.scan([text], states.known()).findings if found.code in kernel.ENTRIES]
        bad = [line for line in lines if kernel.bad(line)]
        bad += [line for finding in findings for line in finding.seen if line not in bad]
        why = "; ".join(dict.fromkeys(finding.what for finding in findings)) or f"{len(bad)} lines report errors"
        if contained and not bad:
            about = "\n".join(contained[-SHOWN:])
            record.measured(node.name, len(contained), "errors of memory that nothing used", wanted="0", evidence=about)
        else:
            record.equal(node.name, len(bad), 0, "lines", why=why, evidence="\n".join((bad or past)[-SHOWN:]))


def _past(line: str, now: float | None) -> bool:
    limit = RECENT if kernel.LINK.search(line) else kernel.OLD
    return not kernel.lasting(line) and _age(line, now) > limit


def _age(line: str, now: float | None) -> float:
    """Seconds since the line was written; 0 where it does not say when."""
    try:
        return (now or 0) - datetime.fromisoformat(line.split()[0]).timestamp() if now else 0
    except (ValueError, IndexError):
        return 0


@check(
    name="firewall",
    title="No firewall blocks packets between the nodes",
    cannot=(
        "firewalls outside the nodes, and whether rules that let some packets in let in the right ones: MPI's "
        "checks tell"
    ),
    level=1,
    needs=("nodes:2",),
    cause="a firewall blocks all that no rule allows; MPI and torch use any port",
    next_step=(
        "run `ufw disable` or `systemctl disable --now firewalld`, or add a rule that allows the cluster's networks"
    ),
    source=NETWORKING,
)
def test_firewall(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """Whether one that lets some packets in lets in the right ones is what MPI's checks tell."""
    for node, tools in readable(record, on_hosts, "firewall"):
        refusing = [f"{tool}: {what}" for tool, what in tools.items() if what]
        letting = [f"{tool}: {what}" for tool, what in on_hosts[node.name].filters.items()]
        if refusing:
            record.failed(node.name, "; ".join(refusing), len(refusing), wanted="off")
        elif letting:
            record.measured(node.name, "on", wanted="off", evidence="\n".join(letting))
        elif not tools:
            record.skipped(node.name, f"no firewall tool on {node.name}")
        else:
            record.passed(node.name, "off", evidence=f"asked: {', '.join(tools)}")
