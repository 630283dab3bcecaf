"""The ranks of one node, watched while they train: `rocstack-train`'s own command line and loop, run after run.

PyTorch is imported once; each rank of each run is a fork of this task, so many runs take little more time than one. In
a run with `kill` the one that dies is the last node's task itself: Slurm sees it, and that run is the last. Every other
rank is a process of its own even then: as it ends its connections do, and the next one notices.

argv[1] is JSON: {"ranks": on a node, "runs": [...]}. Each run has a `name`, `over` ("alone": one rank on each node by
itself, "node": the ranks of each node together, "all"), `settings` for rocstack-train and `seconds` that it may take.
Where wanted, `ids`: say which samples are each rank's; `kill`: the step after which a rank of the last node gets
SIGKILL, unless a run before it failed; `damage`: checkpoints to copy `from`, `to`, and to change the newest of. Prints
an answer for each run and rank. `private` are folders that are to be this user's alone. With `jax`, the source of
programs/jax_check.py, JAX trains, and not the trainer.
"""

import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

PLAN = json.loads(sys.argv[1])
NAME = os.environ["SLURMD_NODENAME"]
NODE, NODES = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_STEP_NUM_NODES"])
SAID = 600  # characters of what a rank said that failed


def main():
    try:
        prepare()
    except Exception:
        answer({"name": "start", "over": "alone"}, 0, 1, {}, traceback.format_exc())
        return
    if NODE == 0:
        for run in PLAN["runs"]:
            if "damage" in run:  # before a run goes on from the same ones
                damage(Path(run["damage"]["from"]), Path(run["damage"]["to"]))
    failed = False
    for run in PLAN["runs"]:
        if "kill" in run and failed:
            return
        if "kill" in run and NODE == NODES - 1:
            others = [Fork(run, local) for local in range(1, PLAN["ranks"])]
            answer(run, 0, *trained(run, 0), "")
        else:
            others = [Fork(run, local) for local in range(1 if run["over"] == "alone" else PLAN["ranks"])]
        ended = [(fork.local, *fork.wait()) for fork in others]
        for each in ended:
            answer(run, *each)
        failed = failed or any(code for _, code, *_ in ended)


def prepare():
    """Imports what the runs need, and starts no thread: forks follow. Of JAX nothing can be imported before a fork."""
    for folder in PLAN.get("private", []):
        private(folder)
    if "jax" in PLAN:
        return
    import transformers
    from transformers.models.llama import modeling_llama  # noqa: F401

    import rocstack_trainer.train  # noqa: F401

    transformers.AutoModelForCausalLM  # noqa: B018  # is imported when it is named


def private(folder):
    """Makes it for this user alone. Another user may have been first: with what is put there, ranks would go on."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is there already, and isn't this user's alone") from None


def place(run, local):
    """(rank, ranks) in the run."""
    if run["over"] == "all":
        return NODE * PLAN["ranks"] + local, NODES * PLAN["ranks"]
    return local, 1 if run["over"] == "alone" else PLAN["ranks"]


def environment(run, local):
    """As torchrun sets it; Slurm's task prolog said where rank 0 of all is. The port is the run's own, so that a rank
    that is early doesn't meet the run before."""
    rank, world = place(run, local)
    host = os.environ["MASTER_ADDR"] if run["over"] == "all" else "127.0.0.1"
    name = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}.{run['name']}"
    found = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": min(world, PLAN["ranks"])}
    found |= {"MASTER_ADDR": host, "MASTER_PORT": 15000 + zlib.crc32(name.encode()) % 16000}
    return {key: str(value) for key, value in found.items()}


class Fork:
    """One rank of one run."""

    def __init__(self, run, local):
        self.local, self.deadline = local, time.monotonic() + run["seconds"]
        self.said, self.told = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        self.process = os.fork()
        if not self.process:
            self._train(run)

    def _train(self, run):
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(self.said.fileno(), stream)
            code, seen = trained(run, self.local)
            self.told.write(json.dumps(seen).encode())
            for file in (self.told, sys.stdout, sys.stderr):
                file.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self):
        """(exit code, what was seen, what it said); it is ended when its time is over."""
        ended = 0
        while not ended:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if not ended and time.monotonic() > self.deadline:
                os.kill(self.process, signal.SIGKILL)
                ended, status = os.waitpid(self.process, 0)
            time.sleep(0.01)
        for file in (self.said, self.told):
            file.seek(0)
        seen = json.loads(self.told.read() or b"{}")
        return os.waitstatus_to_exitcode(status), seen, self.said.read().decode(errors="replace")


def trained(run, local):
    """(exit code, what was seen) of one rank of the trainer."""
    os.environ.update(environment(run, local))
    if "jax" in PLAN:
        program = {"__name__": "jax_check"}
        exec(compile(PLAN["jax"], "jax_check.py", "exec"), program)
        code, seen = program["trained"](run, *place(run, local), local)
        return code, seen | ({"device": processor()} if run["platform"] == "cpu" else {})
    from rocstack_trainer import cli

    seen = {"losses": [], "began": time.time()}
    watch(run, seen, local)
    return cli.run(run["settings"]), seen


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "CPU")


def watch(run, seen, local):
    """Looks at each step of the trainer's loop from outside of it."""
    import numpy
    import torch

    from rocstack_trainer import train as loop
    from rocstack_trainer.models import fingerprint

    def weights(net):
        return fingerprint.sha256(fingerprint.weights(net))

    def device(rank):
        return processor() if rank.device == "cpu" else torch.cuda.get_device_name()

    def epoch(data, rank):
        """The samples of this rank in the first epoch, in their order: of position p of all, rank p mod N has it."""
        steps = range(-(-data.n // data.batch))
        mine = numpy.concatenate([data.ids(step, rank.rank, rank.world) for step in steps])
        return mine[: len(range(rank.rank, data.n, rank.world))].tolist()

    def one_step(net, adam, gradients, data, step, config, rank, *more):
        if not seen["losses"]:
            about = {"from": step, "before": weights(net), "device": device(rank), "tokens": data.batch * data.seq_len}
            seen.update(about, samples=data.n, ids=epoch(data, rank) if "ids" in run else [])
            seen["first"] = time.time()
        done = made(net, adam, gradients, data, step, config, rank, *more)
        seen["losses"].append(float(done[0]))  # on the device
        seen["last"] = time.time()
        if step + 1 == config.train.steps:
            seen["after"] = weights(net)
        if step + 1 == run.get("kill") and NODE == NODES - 1 and local == 0:
            answer(run, local, -signal.SIGKILL, seen, "")
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    made, loop.one_step = loop.one_step, one_step


def damage(source, target):
    """A copy of the checkpoints of which the newest has some other bytes, in the middle of its largest file."""
    shutil.copytree(source, target)
    newest = max(target.glob("step-*"))
    file = max(newest.glob("*.distcp"), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    for at in range(middle, middle + 64):
        content[at] ^= 0xFF
    file.write_bytes(content)


def answer(run, local, code, seen, said):
    rank, world = place(run, local)
    found = {"run": run["name"], "node": NAME, "rank": rank, "world": world, "code": code, **seen}
    own = "\n".join(line for line in said.splitlines() if " NCCL INFO " not in line)
    found |= {"said": own[-SAID:] if code else ""}
    print("@rocstack " + json.dumps(found | ({"rccl": ways(said)} if run["over"] == "all" else {})), flush=True)


def ways(said):
    """What RCCL says of the network that this rank uses: each way once."""
    lines = [(re.search(r"Using network .*| via NET/\S+", line), line) for line in said.splitlines()]
    return list(
        {re.sub(r"/\d+", "", found[0]): line for found, line in lines if found and "NCCL INFO" in line}.values()
    )


main()
