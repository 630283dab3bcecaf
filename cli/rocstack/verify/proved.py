"""What is proved of images: in the journal of the cluster's control node, and on this machine in a file by image, which
can be taken to another one."""

import re
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import CheckFailed
from rocstack.deploy.read import journal, verified
from rocstack.deploy.read.journal import Journal, VerifiedLevel
from rocstack.edge import locks, ssh
from rocstack.verify.result import BAD, Run


@dataclass(frozen=True)
class StoredProof:
    """What was stored, and where, or why it wasn't; `news`: whether something else is proved than before."""

    sentence: str
    news: bool = True


def after(before: VerifiedLevel | None, run: Run) -> VerifiedLevel | None:
    """What is proved after `run`: no level that it failed, nor one above; one that it didn't come to is as before."""
    failed = min((each.check.level for each in run.results if each.state in BAD), default=None)
    proved = run.proved
    if before and failed is not None and before.level >= failed:
        before = before.model_copy(update={"level": failed - 1}) if failed else None
    if proved is None or (before and before.level > proved):
        return before
    return VerifiedLevel(level=proved, when=run.when, virtual=run.virtual, report=run.id)


def keep(run: Run, inventory: Path, out: Path) -> StoredProof:
    """Stores what `run` proved. `out` is the folder of the runs.

    Raises:
        BadInput, Missing, CheckFailed: the control node isn't reached, or has a journal that can't be read.
    """
    if why := _unfit(run):
        return StoredProof(f"nothing was stored: {why}")
    ssh_host = ssh.ssh_hosts(inventory, [run.control])[run.control]
    try:
        with locks.cluster_lock(ssh_host, journal.lock()) as lock:
            known = journal.loads(lock.text)
            if why := _others(run, known):
                return StoredProof(f"nothing was stored: {why}")
            images, before = known.releases[-1].images, known.releases[-1].verified
            now = after(before, run)
            if now != before:
                lock.write(known.verified(now).dumps())
    except CheckFailed as error:
        if error.code != "deploy-running":
            raise
        file = _note(run, out, run.image, run.control_image)
        return StoredProof(f"stored in {file} only, not on {run.control}: {error.what}")
    file = _note(run, out, images.worker_id, images.control_id)
    same = (before.text if before else "") == (now.text if now else "")
    return StoredProof(f"{_said(before, now)}: on {run.control}, and in {file}", not same)


def _unfit(run: Run) -> str:
    """Why it proves nothing of an image."""
    reasons = {
        "the run was interrupted": not run.complete,
        "only some checks were run": run.only,
        # Its file has this name, which nodes say.
        "no worker runs an image of rocstack": not re.fullmatch("sha256:[0-9a-f]{64}", run.image),
        "the cluster was busy": run.busy and not run.failed,
        "no check passed that would prove a level": run.proved is None and not run.failed,
    }
    return next((why for why, so in reasons.items() if so), "")


def _others(run: Run, known: Journal) -> str:
    """Why what ran is not the newest release."""
    if known.current:
        return "a deploy of this cluster began and has not ended"
    if not known.releases:
        return "this cluster has no release"
    images = known.releases[-1].images
    # containerd's store calls an image by the digest that it was pulled by.
    control = ("", images.control_id, images.control_reference.partition("@")[2])
    worker = ("", images.worker_id, images.worker_reference.partition("@")[2])
    others = [node.name for node in run.nodes if "worker" in node.roles and node.image not in worker]
    what = ", ".join(others) if run.control_image in control else f"the controller on {run.control}"
    return f"{what} runs another image than the newest release's" if what else ""


def _said(before: VerifiedLevel | None, now: VerifiedLevel | None) -> str:
    if before and (now is None or now.level < before.level):
        return f"{before.text} is taken back" + (f", {now.text} stays" if now else "")
    if now and before and now.text == before.text:
        return f"{now.text} stays proved"
    return f"{now.text} is proved" if now else "no level is proved"


def _note(run: Run, out: Path, worker_id: str, control_id: str) -> Path:
    """In the file of this machine; another cluster's claim stays."""
    file = verified.file_of(out, worker_id)
    known = {(each.cluster, each.control, each.control_id): each for each in verified.read(file)}
    mine = (run.cluster, run.control, control_id)
    proof = after(known[mine].verified if mine in known else None, run)
    known[mine] = verified.Claim(cluster=run.cluster, control=run.control, control_id=control_id, verified=proof)
    verified.write(file, worker_id, known.values())
    return file
