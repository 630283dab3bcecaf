"""Jobs: what recipes there are, submit one, and look at, end or requeue a job."""

import codecs
import getpass
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.base.text import count, visible
from rocstack.cluster.settings import LONGEST_TOKEN
from rocstack.jobs import recipe as recipes
from rocstack.jobs import remote, slurm
from rocstack.jobs.pools import asked_for, check_layout, fitted
from rocstack.jobs.recipe import JobRequest, Recipe
from rocstack.jobs.remote import SlurmControl
from rocstack.jobs.slurm import FailedTask, Job, JobRecord
from rocstack.settings.settings import Settings
from rocstack.steps import job_size
from rocstack.steps.job_options import JobOptions, RecipeOptions, SubmitOptions, TokenOptions
from rocstack.steps.options import StacksOptions, inventory_path, settings

EVERY_S, SELDOM_S = 1.0, 5.0  # between two looks at a job that is followed: while it says something, and at most
SETTLE = 3  # looks at the log after the job's end: the last lines may come late


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm has taken. `why` says how its nodes were chosen; empty where nothing was to choose. `control`:
    the way by which it went there, for whoever follows it."""

    id: str
    user: str
    recipe: str
    script: str
    why: str = ""
    control: SlurmControl = field(kw_only=True, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "user": self.user, "recipe": self.recipe, "script": self.script, "why": self.why}


@dataclass(frozen=True)
class PrintedScript:
    """`why`: as in `Submitted`."""

    script: str
    why: str = ""


@dataclass(frozen=True)
class JobView:
    """A job and, where it failed, the first task that did, or the script itself."""

    record: JobRecord
    failed: FailedTask | None = None

    @property
    def ok(self) -> bool:
        return self.record.ok

    def to_dict(self) -> dict[str, Any]:
        return {**self.record.to_dict(), "failed": self.failed.to_dict() if self.failed else None}


@dataclass(frozen=True)
class PersonToken:
    """`ends`: seconds since 1970."""

    token: str = field(repr=False)
    user: str
    ends: int

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token, "user": self.user, "ends": self.ends}


def list_recipes(options: StacksOptions = StacksOptions()) -> dict[str, Recipe]:
    """By name.

    Raises:
        BadInput: a head is wrong.
    """
    return recipes.recipes(settings(options).overlay_folder())


def find_recipe(name: str, options: StacksOptions = StacksOptions()) -> Recipe:
    """
    Raises:
        BadInput: there is none of this name, or its head is wrong.
    """
    return recipes.find(name, settings(options).overlay_folder())


def print_script(name: str, options: SubmitOptions = SubmitOptions(), arguments: tuple[str, ...] = ()) -> PrintedScript:
    """The script, by what is given alone: GPUs are those of --gpus-per-node. Only how many nodes a model takes, the
    cluster is asked, where there is one.

    Raises:
        BadInput: as `submit`, but for what only the cluster knows.
    """
    chosen = settings(options)
    overlay = chosen.overlay_folder()
    recipe, asked = recipes.find(name, overlay), _request(options, arguments)
    plain = recipes.script(recipe, asked, overlay)
    if asked.gpus_per_node:
        check_layout(recipe, asked)
    if not job_size.model_of(recipe, asked):
        return PrintedScript(plain)
    nodes = f"{count(recipe.job.nodes, 'node')}, as the recipe has it"
    try:
        found = _on_cluster(chosen, recipe, asked, options)
    except BadInput as error:
        if error.code == "job-too-big":
            raise
        return PrintedScript(plain, f"{nodes}: {error.what}")
    except (CheckFailed, Missing) as error:
        return PrintedScript(plain, f"{nodes}: {error.what}")
    return PrintedScript(recipes.script(recipe, found.request, overlay), found.why)


def submit(name: str, options: SubmitOptions = SubmitOptions(), arguments: tuple[str, ...] = ()) -> Submitted:
    """Renders the recipe's script and hands it to Slurm as the job of its owner.

    Raises:
        BadInput: no such recipe, parameter, partition, user; more nodes than there are.
        CheckFailed: Slurm refuses it, or the control node isn't reached.
    """
    chosen = settings(options)
    overlay = chosen.overlay_folder()
    recipe, asked = recipes.find(name, overlay), _request(options, arguments)
    recipes.script(recipe, asked, overlay)  # what is wrong with it is said first
    found = _on_cluster(chosen, recipe, asked, options)
    script = recipes.script(recipe, found.request, overlay)
    user = found.request.user or ""
    number = found.control.submit(script, user)
    return Submitted(number, user, recipe.name, script, found.why, control=found.control)


@dataclass(frozen=True)
class _OnCluster:
    control: SlurmControl
    request: JobRequest
    why: str


def _on_cluster(chosen: Settings, recipe: Recipe, asked: JobRequest, options: SubmitOptions) -> _OnCluster:
    """The request with what the cluster knows: its owner, nodes for its model, and their GPUs.

    Raises:
        BadInput, CheckFailed: as `submit`.
    """
    user = remote.owner(options.user, getpass.getuser(), chosen.cluster.users)
    asked = replace(asked, user=user, folder=asked.folder or f"/home/{user}")
    control = remote.controller(inventory_path(chosen, options.inventory))
    pools = control.pools()

    def read(path: str) -> bytes:
        return control.file(path, user, job_size.LARGEST)

    found = job_size.by_size(recipe, asked, asked_for(asked, pools), read)
    return _OnCluster(control, fitted(recipe, found.request, pools), found.why)


def token(options: TokenOptions = TokenOptions()) -> PersonToken:
    """By which slurmrestd and the service know a user. Whoever has it can do all that she can, until it ends.

    Raises:
        BadInput: no such user, or no time that a token may have.
        CheckFailed: the control node isn't reached, or Slurm makes no token.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", options.lifespan)
    seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_TOKEN:
        raise BadInput.of("bad-lifespan", value=visible(options.lifespan))
    chosen = settings(options)
    user = remote.owner(options.user, getpass.getuser(), chosen.cluster.users)
    control = remote.controller(inventory_path(chosen, options.inventory))
    return PersonToken(control.token(user, seconds), user, int(time.time()) + seconds)


def queue(options: JobOptions = JobOptions(), user: str | None = None) -> list[Job]:
    """Jobs that wait, run, or ended in the last minutes.

    Raises:
        BadInput, CheckFailed: the inventory is wrong; the control node isn't reached.
    """
    return _controller(options).queue(user or "")


def show(job: str, options: JobOptions = JobOptions()) -> JobView:
    """
    Raises:
        BadInput, CheckFailed: as `queue`; there is no such job.
    """
    return view(_controller(options), job)


def view(control: SlurmControl, job: str) -> JobView:
    """As `show`."""
    record = control.record(job)
    if not record.over or record.ok:
        return JobView(record)
    try:
        log = control.log(record).end()
        return JobView(record, slurm.failed_task(log) or slurm.failed_script(log, record))
    except (BadInput, CheckFailed):  # it failed before it had a log, or its node is gone
        return JobView(record)


def cancel(job: str, options: JobOptions = JobOptions()) -> JobRecord:
    """
    Raises:
        BadInput, CheckFailed: as `queue`; there is no such job; Slurm refuses.
    """
    return _change(job, options, "scancel")


def requeue(job: str, options: JobOptions = JobOptions()) -> JobRecord:
    """
    Raises:
        BadInput, CheckFailed: as `queue`; there is no such job; Slurm refuses.
    """
    return _change(job, options, "scontrol", "requeue")


def log(job: str, options: JobOptions = JobOptions(), *, follow: bool = False) -> Iterator[str]:
    """The job's output in pieces. With `follow` it goes on until the job is over; one that waits is waited for.

    Raises:
        BadInput, CheckFailed: as `queue`; there is no such job, or no log.
    """
    control = _controller(options)
    return pieces(control, job, follow=follow)


def pieces(control: SlurmControl, job: str, *, follow: bool) -> Iterator[str]:
    """As `log`."""
    (record, over), pause = _looked(control, job), EVERY_S
    while follow and not over and not record.where:
        pause = _rest(pause)
        record, over = _looked(control, job)
    file, offset, left = control.log(record), 0, SETTLE
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        piece = file.read(offset)
        offset += len(piece)
        yield text.decode(piece)
        if len(piece) == remote.PIECE:
            continue
        if not follow or (over and (left <= 0 or (record.state == "COMPLETED" and not piece))):
            return
        if over:
            left -= 1
            time.sleep(EVERY_S)
        else:
            pause = _rest(EVERY_S if piece else pause)
            record, over = _looked(control, job)


def _looked(control: SlurmControl, job: str) -> tuple[JobRecord, bool]:
    """And whether it is over. Of one that goes back into the queue accounting has the end until it is there."""
    record = control.record(job)
    if record.state not in ("PREEMPTED", "NODE_FAIL"):
        return record, record.over
    return record, all(each.state in slurm.ENDED for each in control.queue(record.user) if each.id == job)


def _rest(seconds: float) -> float:
    """How long the next one is: each look is two connections and a question to Slurm's database."""
    time.sleep(seconds)
    return min(seconds * 1.3, SELDOM_S)


def _change(job: str, options: JobOptions, *command: str) -> JobRecord:
    control = _controller(options)
    record = control.record(job)
    control.change(record, *command)
    return control.record(job)


def _controller(options: JobOptions) -> SlurmControl:
    return remote.controller(inventory_path(settings(options), options.inventory))


def request(options: RecipeOptions, arguments: tuple[str, ...], **more: Any) -> JobRequest:
    """
    Raises:
        BadInput: a value that Slurm would read as something else.
    """
    return JobRequest(
        **{name: getattr(options, name) for name in SAME},
        folder=str(options.folder or ""),
        values=_pairs(options.set),
        arguments=arguments,
        **more,
    )


def _request(options: SubmitOptions, arguments: tuple[str, ...]) -> JobRequest:
    return request(options, arguments, **{name: getattr(options, name) for name in OWN})


SAME = ("tasks_per_node", "gpus_per_node", "time", "partition", "account", "qos", "user")
OWN = ("nodes", "name", "share", "preflight", "spare")


def _pairs(given: tuple[str, ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise BadInput.of("bad-pair", given=each)
        found[name.replace("-", "_")] = value
    return found
