"""A recipe at several numbers of nodes, one job after the other: how its speed grows."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.base.text import count
from rocstack.edge import files
from rocstack.jobs import recipe as recipes
from rocstack.jobs import remote
from rocstack.jobs.pools import fitted
from rocstack.jobs.recipe import JobRequest, Recipe
from rocstack.jobs.remote import SlurmControl
from rocstack.node import hostlist
from rocstack.size import scaling, scaling_picture
from rocstack.size.scaling import FigureReader, NodePlaces, Scaled, ScalePoint
from rocstack.steps import jobs
from rocstack.steps.job_options import ScaleOptions
from rocstack.steps.options import inventory_path, settings

OnJob = Callable[[str, int, int], None]  # its number, its nodes, and the batch


def scale(
    name: str, options: ScaleOptions, arguments: tuple[str, ...] = (), on_job: OnJob = lambda job, nodes, batch: None
) -> Iterator[Scaled]:
    """What was measured so far, after each job, with its files written. Whoever stops in the middle, by an exception or
    by closing it, ends the job that runs. A job that fails is the last.

    Raises:
        BadInput: no such recipe, or one that says no figures; numbers of nodes or a batch that can't be; more nodes
            than there are. Nothing was started.
        CheckFailed: the control node isn't reached, or Slurm refuses the first job.
    """
    nodes = scaling.counts(options.nodes)
    if options.weak == options.strong:
        raise BadInput.of("weak-or-strong")
    kind: scaling.Kind = "weak" if options.weak else "strong"
    chosen = settings(options)
    overlay = chosen.overlay_folder()
    recipe, asked = recipes.find(name, overlay), jobs.request(options, arguments, nodes=nodes[-1])
    values = recipes.values(recipe, asked.values)
    batches = scaling.batches(recipe, values, nodes, kind)
    recipes.script(recipe, asked, overlay)  # what is wrong with it is said first
    user = remote.owner(options.user, getpass.getuser(), chosen.cluster.users)
    asked = replace(asked, user=user, folder=asked.folder or f"/home/{user}")
    control = remote.controller(inventory_path(chosen, options.inventory))
    asked = fitted(recipe, asked, control.pools())
    folder = Path(chosen.out) / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    found, where = Scaled(recipe=recipe.name, kind=kind, points=()), set[str]()
    for number, batch in zip(nodes, batches, strict=True):
        request = replace(
            asked, nodes=number, name=f"{recipe.name}-{number}", values={**asked.values, "batch": str(batch)}
        )
        ranks = number * (request.gpus_per_node or recipes.tasks_of_node(recipe, request))
        bubble = scaling.bubble(values, ranks, batch)
        try:
            point, names = _run(control, recipe, request, overlay, on_job, (ranks, batch, bubble))
            if found.points and not point.alike(found.points[0]):
                raise CheckFailed.of("said-no-figures", job=point.job, recipe=recipe.name)
        except RocstackError as error:
            if not found.points:
                raise
            yield replace(found, stopped=f"{count(number, 'node')}: {error.what}")
            return
        where |= set(names)
        found = replace(found, points=(*found.points, point), places=_places(control, where))
        found = replace(found, picture=str(folder / f"{recipe.name}-{kind}.svg"))
        files.write(Path(found.picture), scaling_picture.draw(found))
        files.write(Path(found.picture).with_suffix(".json"), json.dumps(found.to_dict(), indent=1) + "\n")
        yield found


def _run(
    control: SlurmControl,
    recipe: Recipe,
    request: JobRequest,
    overlay: Path | None,
    on_job: OnJob,
    about: tuple[int, int, float],
) -> tuple[ScalePoint, tuple[str, ...]]:
    """What the job said of its speed, and its nodes.

    Raises:
        CheckFailed: Slurm refuses it, it fails, or says nothing of its speed.
    """
    assert recipe.figures is not None, "scaling.batches refuses others"
    ranks, batch, bubble = about
    job = control.submit(recipes.script(recipe, request, overlay), request.user or "")
    ended = False
    try:
        on_job(job, request.nodes or 1, batch)
        reader = FigureReader(recipe.figures)
        for piece in jobs.pieces(control, job, follow=True):
            reader.read(piece)
        view = jobs.view(control, job)
        ended = view.record.over
    finally:
        if not ended:
            with suppress(RocstackError):  # it is over, or nobody answers: what happened is more
                control.change(control.record(job), "scancel")
    if not view.ok:
        failed = view.failed
        lines = "; ".join(failed.lines[-3:]) if failed else view.record.why or view.record.reason
        raise CheckFailed.of("scale-job-failed", job=job, state=view.record.state, lines=lines)
    point = reader.point(job=job, nodes=request.nodes or 1, ranks=ranks, batch=batch, bubble=bubble)
    if point is None:
        raise CheckFailed.of("said-no-figures", job=job, recipe=recipe.name)
    try:
        return point, hostlist.expand(view.record.where)
    except ValueError:
        return point, ()


def _places(control: SlurmControl, names: set[str]) -> NodePlaces:
    found = control.places(sorted(names))
    real, models = (
        {boot for boot, model in found.values() if not model},
        {model for _, model in found.values() if model},
    )
    return NodePlaces(nodes=len(names), hosts=len(real) + bool(models), virtual=tuple(sorted(models)))
