"""What a release decides of each entry of release.yml before anything is built: no engine is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import BadInput, RocstackError
from rocstack.image import base_image as bases
from rocstack.release.download import fetched
from rocstack.release.plan import ReleaseEntry, ReleaseFile
from rocstack.release.record import ReleasedImage
from rocstack.settings.settings import Settings
from rocstack.stack import lock as locks
from rocstack.stack import stack
from rocstack.stack.component import FURTHER, Role
from rocstack.stack.stack import Stack
from rocstack.steps.image_plan import ImagePlan, plan_image
from rocstack.steps.options import LOCK, BuildOptions, settings


@dataclass(frozen=True)
class EntryPlan:
    """One entry of release.yml; `inputs` is the digest of all that is decided before its images are built."""

    entry: ReleaseEntry
    at: int
    options: BuildOptions
    image: ImagePlan
    inputs: Mapping[Role, str]
    done: dict[Role, ReleasedImage] = field(default_factory=dict)

    @property
    def images(self) -> list[ReleasedImage]:
        """Those that are done, in the stack's order."""
        return [self.done[role] for role in self.inputs if role in self.done]


def plan_entry(file: ReleaseFile, at: int, chosen: Settings, note: Callable[[str], None]) -> EntryPlan:
    """
    Raises:
        BadInput: with the entry's line, where nothing names a better place.
    """
    entry, where = file.plan.images[at], file.where("images", at)

    def given(text: str | None) -> str | None:
        return str(file.path_of(text)) if text else None

    name = str(given(entry.stack)) if entry.stack.endswith((".yml", ".yaml")) else entry.stack
    try:
        own = stack.load(name, chosen.overlay_folder())
        source = given(entry.nic_source)
        if entry.nic_from_url:
            folder = Path(chosen.out) / "nic-sources"
            source = str(fetched(str(entry.nic_source), str(entry.nic_sha256), folder, note, chosen.ca_bundle))
        options = BuildOptions(
            stack=name, nic=entry.nic, methods=entry.methods, gfx=entry.gfx, sources=given(entry.sources),
            lock=_lock_file(file, entry, own), profiles=file.path_of(entry.profiles) if entry.profiles else None,
            nic_source=source, nic_releases=entry.nic_releases, nic_plugin=given(entry.nic_plugin),
            frozen=True, push="", role=entry.roles[0] if len(entry.roles) == 1 else "",
        )  # fmt: skip
        planned = plan_image(options, settings(options), note)
        if planned.lock is None:
            raise BadInput.of("release-without-lock", stack=own.name)
    except RocstackError as error:
        error.where = error.where or where
        raise
    value = planned.resolved
    if alone := [role for role in entry.roles if role not in value.stack.roles and role in FURTHER]:
        raise BadInput.of("release-role-alone", file.where("images", at, "roles"), role=alone[0])
    roles = [role for role in value.stack.roles if role in entry.roles]
    if not roles:
        raise BadInput.of("no-such-image", where, stack=own.name, role=entry.roles[0])
    decided = {
        "context": planned.render().digest(),
        "lock": planned.lock.digest(),
        "base": chosen.base_image or bases.local_name(value.stack, chosen).rpartition(":")[2],
        "rehearsal": list(planned.lacks),
    }

    def digest(role: Role) -> str:
        return hashlib.sha256(json.dumps({**decided, "role": value.called(role)}, sort_keys=True).encode()).hexdigest()

    return EntryPlan(entry, at, options, planned, {role: digest(role) for role in roles})


def _lock_file(file: ReleaseFile, entry: ReleaseEntry, own: Stack) -> Path:
    if entry.lock:
        return file.path_of(entry.lock)
    if LOCK.exists() and locks.read(LOCK).stack != own.name:
        return locks.shipped(own)
    return LOCK
