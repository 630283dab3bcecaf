"""How the image is started on this host: devices, groups, limits, mounts and environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.container.environment import parse_env
from rocstack.container.host import read_host
from rocstack.container.mount import Mount, check_mounts, parse_mount
from rocstack.container.run_line import RunLine, parse_gpus, run_line
from rocstack.edge import engine
from rocstack.image.build_report import with_built_stack
from rocstack.nic.host_libraries import host_mounts
from rocstack.nic.ways import with_card_needs
from rocstack.node.gate import FITS, SLINGSHOT, judge
from rocstack.node.image_facts import from_labels
from rocstack.probe.recordings import probe_host
from rocstack.stack import component
from rocstack.stack.component import ROLES
from rocstack.steps.job_options import SERVE, TRAIN, RunOptions
from rocstack.steps.options import settings


@dataclass(frozen=True)
class RunPlan:
    """A line for the engine's client, and the variables that its environment must have for it."""

    line: RunLine
    variables: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {"args": list(self.line.args), "notes": list(self.line.notes)}


def plan_run(
    options: RunOptions = RunOptions(),
    command: tuple[str, ...] = (),
    *,
    terminal: bool = False,
    stdin: bool = False,
    dry: bool = False,
) -> RunPlan:
    """The `docker run` line for this host. With `dry` it may be for an image or an engine that isn't there.

    Raises:
        BadInput: an option is wrong; this host has no such GPU.
        Missing: no engine, no image, or no GPU although some were asked for.
        CheckFailed: the image needs a library of this host that doesn't fit it.
    """
    chosen = with_built_stack(settings(options))
    if options.role not in ROLES:
        raise BadInput.of("unknown-role", role=options.role, hint=f": known: {', '.join(ROLES)}")
    reference = options.image or chosen.image_name(options.role)
    variables = parse_env(options.env, os.environ)
    own = [parse_mount(text, base=Path.cwd(), home=Path.home()) for text in options.mount]
    gpus = parse_gpus(options.gpus)
    mounts = check_mounts([*check_mounts(own), *_host_libraries(reference, chosen.overlay_folder(), needed=not dry)])
    line = run_line(
        read_host(),
        reference,
        command,
        profile=chosen.run,
        gpus=gpus,
        mounts=mounts,
        workspace=Path.cwd(),
        env=variables,
        user=_person() if command[:1] in ((TRAIN,), (SERVE,)) else None,
        terminal=terminal,
        stdin=stdin,
        name=options.name,
    )
    if not dry and options.image is None and engine.find_image(engine.connect(), reference) is None:
        raise Missing.of("not-built-here", reference=reference, stack=chosen.stack, nic=chosen.nic)
    return RunPlan(line, dict(variables.values))


def _person() -> tuple[int, int] | None:
    """Who owns a run's checkpoints. None where root in the container is the person already."""
    if os.geteuid() == 0:
        return None
    try:
        rootless = engine.is_rootless(engine.connect())
    except Missing:  # matters to a dry run alone; otherwise the start reports it
        rootless = False
    return None if rootless else (os.geteuid(), os.getegid())


def _host_libraries(reference: str, overlay: Path | None, *, needed: bool) -> tuple[Mount, ...]:
    """Libraries of this host that the image takes at start, if they fit it.

    Raises:
        CheckFailed: they don't fit, or that can't be decided.
    """
    try:
        local = engine.find_image(engine.connect(), reference)
    except Missing:
        if needed:
            raise
        return ()
    image = from_labels(reference, (local.labels if local else None) or {})
    if image.nic != SLINGSHOT and not any(provider.way == "host" for provider in image.providers):
        return ()
    node = probe_host()
    verdict = judge(with_card_needs(image, component.nic_profiles(overlay)), node)
    if verdict.result != FITS:
        raise CheckFailed.of("host-library-unfit", result=verdict.result, sentence=verdict.sentence)
    return host_mounts(image, node)
