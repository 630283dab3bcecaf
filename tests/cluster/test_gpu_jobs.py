"""The GPUs as Slurm gives them to jobs: counted right, isolated, and there to be opened and seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import states
from experiments.gpus import gres
from states import profiles, readable

from rocstack.base.errors import CheckFailed
from rocstack.stack.gpus import model_of
from rocstack.verify.evidence import ControllerAnswer, HostAnswer, NoAnswer, NodeEvidence
from rocstack.verify.parsers import amd_smi
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

ACCEPTANCE = "AMD system acceptance guide"
LAMINI = "Lamini, multi-node training: the tests of a cluster"
HARMLESS = ("ENXIO", "ENODEV")  # of a virtual node's devices: permitted, and no driver behind them
# Of a GPU, by its mode: in CPX as many as it has dies for computing.
PARTITIONS = {"SPX": (1,), "DPX": (2,), "TPX": (3,), "QPX": (4,), "CPX": (4, 6, 8)}
OF_PARTS = ("rocm-smi", "rocminfo")  # which count these
BUSY = "mmediate"  # "Immediate execution impossible": Slurm's word for GPUs that others have


@check(
    name="gres",
    title="Slurm counts the GPUs that the node has, and names their model right",
    cannot="whether a job gets them: `gres-job` and `gpu-devices` tell",
    level=2,
    needs=("gpu",),
    item=3,
    cause="slurm.conf or gres.conf was written for another node, or the node has changed since",
    next_step=(
        "run `rocstack deploy`: it writes both from the nodes; check with `scontrol show node NODE | grep Gres`"
    ),
    source=LAMINI,
)
def test_gres(record: Recorder, controller: ControllerAnswer) -> None:
    rows = {row.name: row.gres or "" for row in controller.nodes}
    for node, profile in profiles(record):
        if node.name not in rows:
            record.skipped(node.name, "Slurm doesn't know it")
            continue
        kinds = gres(rows[node.name])
        record.equal(node.name, sum(kinds.values()), len(profile.gpus), "GPUs", evidence=rows[node.name])
        known = " ".join(f"{gpu.name or gpu.gfx} {model_of(gpu.device, gpu.name)}" for gpu in profile.gpus).lower()
        strange = [kind for kind in kinds if kind and kind.lower() not in known]
        if strange:
            has = states.listed(gpu.name or gpu.gfx for gpu in profile.gpus)
            record.failed(node.name, f"Slurm calls them {', '.join(strange)}, the node has {has}", strange[0])


@check(
    name="gres-worker",
    title="slurmd finds the GPUs that Slurm counts on",
    cannot="whether they work",
    level=2,
    needs=("gpu", "jobs"),
    item=3,
    cause="gres.conf names missing device files, or too few",
    next_step="run `rocstack deploy`; check in the worker with `slurmd -G -f /run/slurm/conf/slurm.conf`",
    source=LAMINI,
)
def test_gres_worker(record: Recorder, gpu_jobs: dict[str, Any], controller: ControllerAnswer) -> None:
    counted = {row.name: sum(gres(row.gres or "").values()) for row in controller.nodes}
    for node, text in readable(record, gpu_jobs, "detected"):
        lines = [line for line in text.splitlines() if "Gres Name=gpu" in line]
        count = sum(int(line.partition("Count=")[2].split()[0]) for line in lines if "Count=" in line)
        least, more = counted.get(node.name, 0), {"evidence": "\n".join(lines) or text}
        if count and count >= least:
            record.passed(node.name, count, "GPUs", wanted=f"{least} GPUs", **more)
        else:
            record.failed(node.name, f"{count} of {least} GPUs", count, "GPUs", wanted=f"{least} GPUs", **more)


@check(
    name="gres-job",
    title="A job that asks for one GPU gets exactly one, set by ROCR_VISIBLE_DEVICES alone",
    cannot="that it can be any GPU of the node: `gres-each` tells",
    level=2,
    needs=("gpu", "jobs"),
    item=3,
    cause="gres.conf lacks rocstack's File= lines or has other Flags; or CUDA_ and HIP_ variables hide GPUs",
    next_step="run `srun --gres=gpu:1 env | grep VISIBLE`; `rocstack deploy` writes gres.conf",
    source="Slurm, gres.conf(5), Flags=amd_gpu_env; ROCm documentation, GPU isolation",
)
def test_gres_job(record: Recorder, gpu_jobs: dict[str, Any]) -> None:
    for node, answer in readable(record, gpu_jobs, "one"):
        if "error" in answer:
            why = f"no job with a GPU ran there: {answer['error']}"
            record.skipped(node.name, why) if BUSY in answer["error"] else record.failed(node.name, why)
            continue
        own = answer["env"].get("ROCR_VISIBLE_DEVICES")
        others = sorted(set(answer["env"]) - {"ROCR_VISIBLE_DEVICES"})
        value = len(own.split(",")) if own else None
        if others:
            record.failed(node.name, f"{', '.join(others)} is set, too", value, "GPUs", wanted="1 GPU")
        else:
            record.equal(node.name, value, 1, "GPUs", evidence=f"ROCR_VISIBLE_DEVICES={own}")


@check(
    name="gres-each",
    title="Slurm gives each GPU that it counts to a task of its own",
    cannot="jobs of several users at once; and GPUs that others have while the suite runs",
    level=2,
    needs=("gpu", "jobs"),
    item=3,
    cause=(
        "gres.conf names a device file twice or not at all; or cgroup.conf has ConstrainDevices and the worker can't "
        "write its cgroups, so that all jobs take their node's first GPU"
    ),
    next_step=(
        "run `srun --ntasks=8 --ntasks-per-node=8 --gpus-per-task=1 env | grep VISIBLE`, and "
        "`rocstack deploy INVENTORY --plan`, which names the workers that can't write cgroups"
    ),
    source="Slurm, srun(1), --gpus-per-task; gres.conf(5), File; cgroup.conf(5), ConstrainDevices",
)
def test_gres_each(record: Recorder, gpu_jobs: dict[str, Any]) -> None:
    """As many tasks at once as there are GPUs, or as many as the suite's allocation has, in one job, each with one."""
    for node, answers in _answers(record, gpu_jobs, "each", failing=True):
        given = Counter(_own(node, answer) for answer in answers)
        several = [f"{name} was given to {count} tasks" for name, count in sorted(given.items()) if count > 1]
        wanted = gpu_jobs[node.name]["tasks"]
        why = "; ".join(several) or f"{len(answers)} of {wanted} tasks with a GPU ran"
        record.equal(node.name, len(given), wanted, "GPUs", why=why, evidence=", ".join(sorted(given)))


def _own(node: NodeEvidence, answer: dict[str, Any]) -> str:
    """The GPU of a task that asked for one. The device that it may open; Slurm's number of it counts from the node's
    first GPU only where devices aren't kept from it."""
    can = _can_open(node, answer)
    return can[0] if len(can) == 1 else f"ROCR_VISIBLE_DEVICES={answer['env'].get('ROCR_VISIBLE_DEVICES', '')}"


def _can_open(node: NodeEvidence, answer: dict[str, Any]) -> list[str]:
    seen = {path: why for path, why in answer.get("devices", {}).items() if "renderD" in path}
    return sorted(path for path, why in seen.items() if not why or (node.virtual and why in HARMLESS))


@check(
    name="gres-isolation",
    title="A job that asks for one GPU can't open another",
    cannot="access by ways other than the GPUs' device files",
    level=2,
    needs=("gpu", "jobs"),
    item=3,
    cause=(
        "cgroup.conf lacks ConstrainDevices, or the worker can't write its cgroups; jobs can reach each other's GPUs"
    ),
    next_step=(
        "run `rocstack deploy INVENTORY --plan`: it names the workers that can't write cgroups (check `mount | grep "
        "cgroup` there); fix them, set `cluster.cgroup: auto` in rocstack.yml and run `rocstack deploy`"
    ),
    source="Slurm, cgroup.conf(5), ConstrainDevices",
)
def test_gres_isolation(record: Recorder, gpu_jobs: dict[str, Any], controller: ControllerAnswer) -> None:
    settings = controller.settings
    for node, answer in _answers(record, gpu_jobs, "one"):
        seen = [path for path in answer.get("devices", {}) if "renderD" in path]
        can = _can_open(node, answer)
        without = "" if "cgroup" in settings.get("TaskPlugin", "") else "Slurm does without cgroups here"
        if without and node.virtual:
            record.skipped(node.name, f"{without}: nothing keeps a job from others' GPUs")
        elif len(seen) < 2:
            record.skipped(node.name, "one GPU is all that the node has")
        else:
            why = f"{without and f'{without}; '}a job with one GPU may open {len(can)}: {', '.join(can)}"
            record.equal(node.name, len(can), 1, "GPUs", why=why, evidence=f"{len(seen)} device files")


@check(
    name="gpu-devices",
    title="A job may open the device files of its GPUs",
    cannot="whether a GPU computes",
    level=2,
    core=True,
    needs=("gpu", "jobs"),
    item=1,
    cause="the worker's container lacks a device file, or the file's group doesn't include the job's user",
    next_step="run `srun --gres=gpu:1 ls -l /dev/kfd /dev/dri`; `rocstack deploy` restarts the worker's container",
    source="ROCm install documentation, GPU access permissions",
)
def test_gpu_devices(record: Recorder, gpu_jobs: dict[str, Any]) -> None:
    seen = {node.name: profile for node, profile in profiles(record)}
    for node, answer in _answers(record, gpu_jobs, "all", failing=True):
        wanted = ["/dev/kfd", *(f"/dev/dri/renderD{g.render_minor}" for g in seen[node.name].gpus if g.render_minor)]
        good = ("", *HARMLESS) if node.virtual else ("",)
        bad = {path: answer["devices"].get(path, "not there") for path in wanted}
        bad = {path: why for path, why in bad.items() if why not in good}
        texts = [f"{path}: {why}" for path, why in bad.items()]
        why = f"{texts[0]}{f' and {len(texts) - 1} more' if len(texts) > 1 else ''}" if texts else ""
        record.equal(node.name, len(wanted) - len(bad), len(wanted), "devices", why=why, evidence="\n".join(texts))


@check(
    name="gpu-tools",
    title="In a job, ROCm's tools and lspci see the GPUs that the node has",
    cannot="whether what the tools say of a GPU is so, beside their number",
    level=2,
    needs=("gpu", "jobs"),
    item=1,
    cause="the job sees another /sys than the node's, or the image's ROCm doesn't know this GPU",
    next_step="run `rocm-smi`, `rocminfo` and `lspci -d 1002:` with `srun --gres=gpu:8`",
    source=f"{LAMINI}; {ACCEPTANCE}",
)
def test_gpu_tools(record: Recorder, gpu_jobs: dict[str, Any], on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """rocm-smi and rocminfo count the partitions that a GPU is divided into."""
    seen = {node.name: profile for node, profile in profiles(record)}
    for node, answer in _answers(record, gpu_jobs, "all"):
        pcis = {gpu.pci for gpu in seen[node.name].gpus}
        counts = {"rocm-smi": answer["smi"] and len(answer["smi"]["cards"])}
        counts["lspci"] = None if answer["lspci"] is None else len(pcis & set(answer["lspci"]))
        if not node.virtual:  # nothing computes there
            counts["rocminfo"] = answer["agents"]
            try:
                counts["amd-smi"] = _listed((answer.get("amd_smi") or {}).get("list"))
            except CheckFailed as error:
                record.failed(node.name, error.what)
        known = {tool: count for tool, count in counts.items() if count is not None}
        if not known:
            record.skipped(node.name, "none of rocm-smi, amd-smi, rocminfo and lspci is in the image", "no-tool")
        parts = len(seen[node.name].gpus)
        wrong = {
            tool: count for tool, count in known.items() if count not in _counts(tool, parts, pcis, on_hosts[node.name])
        }
        more: dict[str, Any] = {"evidence": ", ".join(f"{name} {number}" for name, number in known.items())}
        more["wanted"] = f"{len(pcis)} GPUs" + (f" in {parts} parts" if parts > len(pcis) else "")
        for tool, count in wrong.items():
            number = parts if tool in OF_PARTS else len(pcis)
            record.failed(node.name, f"{tool} sees {count} of {number}", count, "GPUs", **more)
        if known and not wrong:
            record.passed(node.name, next(iter(known.values())), "GPUs", **more)


@check(
    name="hip-check",
    title="A kernel that was compiled with the image computes the right result on each GPU",
    cannot="more than one small kernel: `gemm` and the checks of training compute more",
    level=2,
    needs=("gpu", "jobs", "real"),
    item=1,
    cause="the image has no code for this GPU, its HIP doesn't fit the driver, or the GPU computes wrong results",
    next_step=(
        "run `srun --gres=gpu:8 /usr/local/lib/rocstack/hip-check`; `rocstack explain --image` tells what code is in it"
    ),
    source="ours: images/check/hip_check.hip",
)
def test_hip_check(record: Recorder, gpu_jobs: dict[str, Any]) -> None:
    for node, answer in _answers(record, gpu_jobs, "all"):
        text = answer.get("hip")
        if text is None:
            record.skipped(node.name, "no hip-check in the image", "no-tool")
            continue
        number = len(node.profile.gpus) if node.profile else 0
        right = text.count("the kernel's result is right")
        wrong = [line for line in text.splitlines() if line.strip() and "result is right" not in line]
        more = {"wanted": f"{number} GPUs", "evidence": text}
        if wrong or right < number:  # a GPU that is divided counts as several
            why = f"{right} of {number} GPUs compute: {wrong[-1] if wrong else 'it gave no answer'}"
            record.failed(node.name, why, right, "GPUs", **more)
        else:
            record.passed(node.name, right, "GPUs", **more)


def _counts(tool: str, parts: int, pcis: Collection[str], host: NoAnswer | HostAnswer) -> set[int]:
    """What a tool may count: cards, or the parts that the driver has of them, also by how they are divided now."""
    if tool not in OF_PARTS:
        return {len(pcis)}
    modes = {host.partitions.get(pci) for pci in pcis} if isinstance(host, HostAnswer) else set()
    numbers = PARTITIONS.get(modes.pop() or "", (1,)) if len(modes) == 1 else (1,)
    return {parts, *(len(pcis) * number for number in numbers)}


def _listed(text: str | None) -> int | None:
    """GPUs, however many partitions each is of: functions of one PCI device."""
    return None if text is None else len({address.rpartition(".")[0] for address in amd_smi.gpus(text)})


@check(
    name="smi-seconds",
    title="rocm-smi answers quickly",
    cannot="a GPU that hangs only under load",
    level=2,
    needs=("gpu", "jobs", "real"),
    cause="a hung GPU delays every query",
    next_step="check `dmesg | grep amdgpu`; drain the node and power-cycle it",
    source="AMD-AGI/Primus, node smoke",
)
def test_smi_seconds(record: Recorder, gpu_jobs: dict[str, Any]) -> None:
    for node, answer in _answers(record, gpu_jobs, "all"):
        smi, number = answer["smi"], len(node.profile.gpus) if node.profile else 0
        if smi is None:
            record.skipped(node.name, "no rocm-smi in the image", "no-tool")
        elif len(smi["cards"]) < number:  # what fails at once is fast, too
            why = f"rocm-smi told of {len(smi['cards'])} of {number} GPUs, after {smi['seconds']:.1f} s"
            record.failed(node.name, why, smi["seconds"], "s", wanted=f"{number} GPUs")
        else:
            record.judge(node.name, smi["seconds"], "smi-seconds")


def _answers(
    record: Recorder, gpu_jobs: dict[str, Any], job: str, failing: bool = False
) -> list[tuple[NodeEvidence, Any]]:
    """Of the jobs that ran. Where none did the nodes are skipped; they fail, once, where it isn't that others have the
    GPUs."""
    ran = []
    for node, answer in readable(record, gpu_jobs, job):
        if "error" in answer:
            why = f"no job with its GPUs ran there: {answer['error']}"
            record.failed(node.name, why) if failing and BUSY not in answer["error"] else record.skipped(node.name, why)
        else:
            ran.append((node, answer))
    return ran
