"""A recipe says how a kind of job is run: its parameters in the head (YAML), the commands below. With a request it
makes a batch script, the same one for the same input. Pure but for reading the files."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from jinja2 import DictLoader, StrictUndefined, TemplateError, TemplateSyntaxError, nodes
from pydantic import Field, model_validator

from rocstack.base import environment as variables
from rocstack.base.errors import BadInput, Where, hinted
from rocstack.base.words import AtKey, Duration, Line, Name, Value, word
from rocstack.stack.blocks import template_frame
from rocstack.stack.component import TemplateFile, library
from rocstack.stack.sandbox import Sandbox

BASE = "_job"  # what all scripts have in common
ParameterName = Annotated[str, word(r"[a-z][a-z0-9_]{0,30}", "a parameter's name (small letters, digits and _)")]
Kind = Literal["text", "path", "integer", "number", "switch", "words"]
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
MOST = 1 << 62
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,4000}")
_SLURM = (r"[a-z0-9_][a-z0-9_.-]{0,62}", "a name (small letters, digits and _.-)")
_WORDS = {
    **dict.fromkeys(("partition", "account", "qos"), _SLURM),
    "node": (r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}", "the name of one node"),
    "name": (r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}", "a job's name (letters, digits and _.-)"),
    "folder": (r"/[^\x00-\x1f\x7f'\"%]{0,1000}", "an absolute path on the nodes, without quotes and %"),
    "time": (r"infinite|[1-9][0-9]{0,5}[smhd]", "a time such as 90m, 12h, 7d or infinite"),
}
_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,10000}")


class Parameter(Value):
    """What a recipe lets a person choose. A parameter without a default has to be given."""

    about: Line
    type: Kind = "text"  # words: arguments, split as a shell splits them
    default: str | int | float | bool | None = None
    optional: bool = False  # it may be left out though it has no default
    choices: tuple[str, ...] = ()
    least: float | None = None

    @property
    def needed(self) -> bool:
        return self.default is None and not self.optional

    def parse(self, given: str) -> Any:
        """
        Raises:
            ValueError: it is of another type, or not among the choices.
        """
        if self.choices and given not in self.choices:
            raise ValueError(f"'{given}' is none of its values{hinted(given, self.choices)}")
        if self.type == "switch":
            if given.lower() not in YES + NO:
                raise ValueError(f"'{given}' is neither yes nor no")
            return given.lower() in YES
        if self.type in ("integer", "number"):
            try:
                number = int(given) if self.type == "integer" else float(given)
            except ValueError:
                raise ValueError(f"'{given}' is no {'whole number' if self.type == 'integer' else 'number'}") from None
            if not abs(number) < MOST:  # not a number, either
                raise ValueError(f"{given:.40} is no number to count with")
            if self.least is not None and number < self.least:
                raise ValueError(f"{given} is less than {self.least:g}")
            return number
        if self.type == "words":
            try:
                words = shlex.split(given)
            except ValueError as error:
                raise ValueError(f"a shell couldn't split it: {error}") from None
            if all(map(_TEXT.fullmatch, words)):
                return tuple(words)
        elif (_PATH if self.type == "path" else _TEXT).fullmatch(given):
            return given
        raise ValueError("it has control characters" if given else "it is empty")


class Layout(Value):
    """How the job asks for nodes, where the person doesn't say otherwise."""

    nodes: Annotated[int, Field(ge=1, le=65536)] = 1
    tasks_per_node: Annotated[int, Field(ge=1, le=4096)] | Literal["gpu"] = 1  # gpu: one for each GPU
    exclusive: bool = False  # whole nodes
    time: Duration | None = None  # default: the partition's
    warn: Annotated[int, Field(ge=0, le=65535)] = 0  # seconds before its end at which it gets SIGUSR1; 0: never
    requeue: bool = False  # it goes on by itself after a node failed or a job with higher priority took its place


class Figures(Value):
    """What the program says of its own speed, line by line: patterns (of Python's re) with one group, the number."""

    tokens: Line = ""  # a second
    all: bool = False  # those of all devices; else of each
    tflops: Line = ""  # of each device

    @model_validator(mode="after")
    def _patterns(self) -> Self:
        for name in ("tokens", "tflops"):
            try:
                groups = re.compile(getattr(self, name)).groups
            except re.error as error:
                raise AtKey((name,), f"it is no pattern: {error}") from None
            if getattr(self, name) and groups != 1:
                raise AtKey((name,), f"it has {groups} groups, and one has to be the number")
        if not (self.tokens or self.tflops):
            raise AtKey(("tokens",), "tokens or tflops must say where the numbers are")
        return self


class SizedBy(Value):
    """Which parameters say what `rocstack size` has to know."""

    model: ParameterName  # a name, or on the nodes a folder of Hugging Face
    rank: ParameterName | None = None  # of adapters; without it, all of the model is trained
    sequence: ParameterName | None = None  # tokens of a sequence
    setting: Line = ""  # an argument that says so, up to the number: max_target_length=
    tokens: Annotated[int, Field(ge=1, le=1 << 22)] = 2048  # of a sequence where nobody says it
    maxtext: bool = False  # the layout is handed on as settings of MaxText


class Recipe(Value):
    name: Name
    about: Line
    needs_gpus: bool = False
    seen: Line = ""  # where it was run, and how far
    job: Layout = Layout()
    parameters: dict[ParameterName, Parameter] = {}
    arguments: Line = ""  # what the words after `--` are; empty: it takes none
    needs_arguments: bool = False
    figures: Figures | None = None  # with a parameter `batch`, `rocstack scale` can run it
    size: SizedBy | None = None  # where no number of nodes is given

    @model_validator(mode="after")
    def _parameters_fit(self) -> Self:
        for name, each in self.parameters.items():
            if each.default is None:
                continue
            try:
                each.parse(str(each.default))
            except ValueError as error:
                raise AtKey(("parameters", name, "default"), str(error)) from None
        for key in ("model", "rank", "sequence"):
            known = getattr(self.size, key, None)
            if known and known not in self.parameters:
                raise AtKey(("size", key), f"there is no parameter {known}{hinted(known, self.parameters)}")
        return self


@dataclass(frozen=True)
class JobRequest:
    """What a person asks for. None: as the recipe has it, or as Slurm's configuration has it."""

    nodes: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    time: str | None = None  # 30s, 90m, 12h, 7d or infinite
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    name: str | None = None
    node: str | None = None  # the one that it runs on
    folder: str = ""  # where it runs; empty: where sbatch runs
    user: str | None = None
    share: bool = False  # other jobs may run on its nodes
    preflight: bool = False
    spare: int = 0  # nodes more than it needs, for those that the preflight leaves out
    values: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """
        Raises:
            BadInput: what Slurm would read as something else.
        """
        for name, (pattern, meaning) in _WORDS.items():
            value = getattr(self, name)
            if value and not re.fullmatch(pattern, value):
                raise BadInput.of("bad-job-option", option=name, value=value, meaning=meaning)
        if self.spare and not self.preflight:
            raise BadInput.of("spare-for-nothing")


def recipes(overlay: Path | None = None) -> dict[str, Recipe]:
    """Ours and the site's, by name.

    Raises:
        BadInput: a head is wrong.
    """
    return {name: _validated(file) for name, file in _files(overlay).items() if name != BASE}


def find(name: str, overlay: Path | None = None) -> Recipe:
    """
    Raises:
        BadInput: there is none of this name, or its head is wrong.
    """
    files = _files(overlay)
    if name not in files or name == BASE:
        raise BadInput.of("unknown-recipe", name=name, hint=hinted(name, set(files) - {BASE}))
    return _validated(files[name])


def script(recipe: Recipe, request: JobRequest, overlay: Path | None = None) -> str:
    """The batch script.

    Raises:
        BadInput: a parameter that it doesn't have or that is missing, a value of another type, a template that fails.
    """
    files = _files(overlay)
    layout, tasks = recipe.job, tasks_of_node(recipe, request)
    if request.arguments and not recipe.arguments:
        raise BadInput.of("unused-arguments", recipe=recipe.name, first=request.arguments[0])
    if recipe.needs_arguments and not request.arguments:
        raise BadInput.of("missing-arguments", recipe=recipe.name, about=recipe.arguments)
    for text in (*request.values.values(), *request.arguments):
        for _, why in variables.misspelt_in(text):
            raise BadInput.of("misspelt-env", why=why)
    names = {
        "p": values(recipe, request.values),
        "recipe": recipe,
        "request": request,
        "nodes": request.nodes or layout.nodes,
        "tasks_per_node": tasks,
        "tasks": tasks * (request.nodes or layout.nodes),
        "gpus": request.gpus_per_node or 0,
        "arguments": request.arguments,
        "minutes": slurm_time(request.time or layout.time),
        "name": request.name or recipe.name,
    }
    environment = Sandbox(
        loader=DictLoader({name: file.body for name, file in files.items()}),
        undefined=StrictUndefined,
        finalize=quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        _check_blocks(environment, files, recipe.name)
        template = environment.get_template(recipe.name)
        text = "".join(template.root_render_func(template.new_context(names)))  # `render` hides the template's lines
    except Exception as error:  # a template can raise anything
        mistake = isinstance(error, TemplateError)
        if not mistake and template_frame(error)[0] not in files:
            raise
        why = str(error) if mistake else f"{type(error).__name__}: {error}"
        raise BadInput.of("recipe-template", _place(error, files, recipe.name), why=why) from None
    lines = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines)


def _check_blocks(environment: Sandbox, files: Mapping[str, TemplateFile], name: str) -> None:
    """Refuses a block that no script has: its commands would be left out without a word."""
    own = environment.parse(files[name].body, name)
    known, tree, parents = set[str](), own, set(files) - {name}
    while parent := next((node.template for node in tree.body if isinstance(node, nodes.Extends)), None):
        if not isinstance(parent, nodes.Const) or parent.value not in parents:
            return  # Jinja says what is wrong with it
        parents.remove(parent.value)
        tree = environment.parse(files[parent.value].body, parent.value)
        known |= {block.name for block in tree.find_all(nodes.Block)}
    if tree is own:
        return
    for block in (node for node in own.body if isinstance(node, nodes.Block)):
        if block.name not in known:
            at = Where(str(files[name].path), files[name].body_line + block.lineno - 1)
            raise BadInput.of("recipe-block", at, block=block.name, hint=hinted(block.name, known))


def tasks_of_node(recipe: Recipe, request: JobRequest) -> int:
    own = recipe.job.tasks_per_node
    return request.tasks_per_node or (max(1, request.gpus_per_node or 0) if own == "gpu" else own)


def _place(error: Exception, files: Mapping[str, TemplateFile], name: str) -> Where:
    """Where a template failed; Jinja itself knows the line of one that it can't read."""
    at, line = template_frame(error)
    if isinstance(error, TemplateSyntaxError):
        at, line = error.name or name, error.lineno
    if at not in files:
        return Where(str(files[name].path))
    return Where(str(files[at].path), files[at].body_line + line - 1)


def quoted(value: Any) -> str:
    """As a word of a shell; several words of a list, none of nothing. All that a recipe prints goes through it."""
    if value is None or value == ():
        return ""
    if isinstance(value, tuple | list):
        return shlex.join(map(str, value))
    return shlex.quote(str(value))


def slurm_time(duration: str | None) -> str | None:
    """As Slurm takes it: `90m` is 1:30:00, without a limit it is UNLIMITED."""
    if duration is None:
        return None
    if duration == "infinite":
        return "UNLIMITED"
    seconds = int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def values(recipe: Recipe, given: Mapping[str, str]) -> dict[str, Any]:
    """The parameters by name; None: it has none.

    Raises:
        BadInput: one that the recipe doesn't have or that is missing, or a value of another type.
    """
    for name in given:
        if name not in recipe.parameters:
            hint = hinted(name, recipe.parameters)
            raise BadInput.of("unknown-parameter", name=name, recipe=recipe.name, hint=hint)
    found: dict[str, Any] = {}
    for name, each in recipe.parameters.items():
        text = given.get(name, None if each.default is None else str(each.default))
        if text is None and each.needed:
            raise BadInput.of("missing-parameter", name=name, recipe=recipe.name, about=each.about)
        try:
            found[name] = None if text is None else each.parse(text)
        except ValueError as error:
            raise BadInput.of("bad-parameter", name=name, why=error, about=each.about) from None
    return found


@cache
def _files(overlay: Path | None) -> dict[str, TemplateFile]:
    """A site's file with a head adds or replaces a recipe; one without a head replaces the script below our head."""
    found = library("recipes", overlay)
    bodies = {
        name: replace(found.files[name], path=each.path, body=each.body, body_line=each.body_line)
        for name, each in found.overrides.items()
    }
    return found.files | bodies


def _validated(file: TemplateFile) -> Recipe:
    return file.head.validate(Recipe, extra={"name": file.name})
