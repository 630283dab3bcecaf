"""What is proved of images: in the journal of the cluster's control node, and on this machine in a file by image, which
can be taken to another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rocstack.deploy import journal, lock, ssh
from rocstack.deploy.journal import Journal, Verified
from rocstack.errors import BadInput, CheckFailed, Where
from rocstack.verify.result import BAD, Run
from rocstack.words import Value

FOLDER = "verified"  # below the runs'
SCHEMA = 1


class Claim(Value):
    """What is proved of a worker image, beside this control image, on one cluster; None: nothing any more."""

    cluster: str
    control: str  # its control node
    control_id: str
    verified: Verified | None


@dataclass(frozen=True)
class Kept:
    """What was stored, and where, or why it wasn't; `news`: whether something else is proved than before."""

    sentence: str
    news: bool = True


def after(before: Verified | None, run: Run) -> Verified | None:
    """What is proved after `run`: a level that it failed, and those above, are not any more; a level that it didn't
    come to is as before."""
    failed = min((each.check.level for each in run.results if each.state in BAD), default=None)
    proved = run.proved
    if before and failed is not None and before.level >= failed:
        before = before.model_copy(update={"level": failed - 1}) if failed else None
    if proved is None or (before and before.level > proved):
        return before
    return Verified(level=proved, when=run.when, virtual=run.virtual, report=run.id)


def keep(run: Run, inventory: Path, out: Path) -> Kept:
    """Stores what `run` proved. `out` is the folder of the runs.

    Raises:
        BadInput, Missing, CheckFailed: the control node isn't reached, or has a journal that can't be read.
    """
    if why := _unfit(run):
        return Kept(f"nothing is stored: {why}")
    reach = ssh.reaches(inventory, [run.control])[run.control]
    try:
        with lock.hold(reach) as held:
            known = journal.loads(held.journal)
            if why := _others(run, known):
                return Kept(f"nothing is stored: {why}")
            images, before = known.releases[-1].images, known.releases[-1].verified
            now = after(before, run)
            if now != before:
                held.write(known.verified(now).dumps())
    except CheckFailed as error:
        if error.code != "deploy-running":
            raise
        file = _note(run, out, run.image, run.control_image)
        return Kept(f"stored in {file} only, not on {run.control}: {error.what}")
    file = _note(run, out, images.worker_id, images.control_id)
    same = (before.text if before else "") == (now.text if now else "")
    return Kept(f"{_said(before, now)}: on {run.control}, and in {file}", not same)


def claims(out: Path, worker_id: str, control_id: str) -> tuple[Verified, ...]:
    """What this machine knows to be proved of these images.

    Raises:
        BadInput: the file isn't one.
    """
    found = _read(place(out, worker_id))
    return tuple(each.verified for each in found if each.verified and each.control_id == control_id)


def place(out: Path, worker_id: str) -> Path:
    return out / FOLDER / f"{worker_id.removeprefix('sha256:')}.json"


def _unfit(run: Run) -> str:
    """Why it proves nothing of an image."""
    if not run.complete:
        return "the run was interrupted"
    if run.only:
        return "only some checks were run"
    if not run.image:
        return "no worker runs an image of rocstack"
    if run.busy and not run.failed:
        return "the cluster was busy"
    if run.proved is None and not run.failed:
        return "no check passed that would prove a level"
    return ""


def _others(run: Run, known: Journal) -> str:
    """Why what ran is not the newest release."""
    if known.current:
        return "a deploy of this cluster began and has not ended"
    if not known.releases:
        return "this cluster has no release"
    images = known.releases[-1].images
    if run.control_image and run.control_image not in _ids(images.control_id, images.control_reference):
        return f"the controller on {run.control} runs another image than the newest release's"
    ids = _ids(images.worker_id, images.worker_reference)
    others = [node.name for node in run.nodes if "worker" in node.roles and node.image and node.image not in ids]
    return f"{', '.join(others)} runs another image than the newest release's" if others else ""


def _ids(id_: str, reference: str) -> frozenset[str]:
    """containerd's store calls an image by the digest that it was pulled by."""
    return frozenset({id_, reference.partition("@")[2]} - {""})


def _said(before: Verified | None, now: Verified | None) -> str:
    if before and (now is None or now.level < before.level):
        return f"{before.text} is taken back" + (f", {now.text} stays" if now else "")
    if now and before and now.text == before.text:
        return f"{now.text} stays proved"
    return f"{now.text} is proved" if now else "no level is proved"


def _note(run: Run, out: Path, worker_id: str, control_id: str) -> Path:
    """In the file of this machine; another cluster's claim stays."""
    file = place(out, worker_id)
    known = {(each.cluster, each.control, each.control_id): each for each in _read(file)}
    mine = (run.cluster, run.control, control_id)
    found = after(known[mine].verified if mine in known else None, run)
    known[mine] = Claim(cluster=run.cluster, control=run.control, control_id=control_id, verified=found)
    data = {"schema": SCHEMA, "image": worker_id, "claims": [each.model_dump(mode="json") for each in known.values()]}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    new.replace(file)
    return file


def _read(file: Path) -> list[Claim]:
    try:
        data: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or not file.stem or data["image"] != f"sha256:{file.stem}":
            raise ValueError("another image's")
        return [Claim.model_validate_json(json.dumps(each)) for each in data["claims"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        raise BadInput(
            "it doesn't say what is proved of an image",
            code="bad-verified",
            where=Where(str(file)),
            cause="it was edited, renamed or cut off, or a newer rocstack wrote it",
            next_step="remove it, and bring it again or run `rocstack verify`",
        ) from None
