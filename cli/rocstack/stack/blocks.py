"""Renders single blocks of component and NIC templates, the user's overrides over ours; and says which template line
every line of generated text came from."""

import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from rocstack.base import paths
from rocstack.base.errors import BadInput, RocstackError, Where, hinted
from rocstack.stack.component import TemplateFile, TemplateLibrary
from rocstack.stack.sandbox import Sandbox

BLOCKS = {
    "components": ("builder", "runtime", "copy", "version", "smoke"),
    "nic": ("builder", "plugin", "runtime", "smoke"),
    "slurm": (
        *("controller", "security", "jobs", "scheduling", "accounting", "nodes", "partitions", "more"),
        *("gpus", "limits", "daemon", "database"),
    ),
}
NEEDED = {"components": ("version", "smoke"), "nic": (), "slurm": ()}
_MARK = re.compile("\x00([^\x00\n]*:[0-9]+)\x00")


class _MarkLines(Extension):
    """Ends every piece of a literal template line with an invisible mark; `split` takes the marks out again."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        for token in stream:
            if token.type == "data":
                *lines, last = token.value.split("\n")
                marked = [f"{line}\x00{stream.name or '?'}:{at}\x00\n" for at, line in enumerate(lines, token.lineno)]
                end = f"{last}\x00{stream.name or '?'}:{token.lineno + len(lines)}\x00" if last else ""
                token = Token(token.lineno, "data", "".join(marked) + end)
            yield token


def split(marked: str) -> tuple[str, list[str]]:
    """The clean text, and per line (from index 0) the `template:line` it came from."""
    origins: list[str] = []
    for line in marked.split("\n"):
        found = _MARK.findall(line) or origins[-1:] or [""]
        origins.append(found[-1])
    return _MARK.sub("", marked), origins


def environment(sources: Mapping[str, str]) -> Environment:
    """Strict: an undefined name is an error, never an empty string. An overlay's template runs nothing on this machine
    and reads nothing of it: what it can reach is listed (rocstack.stack.sandbox)."""
    return Sandbox(
        loader=DictLoader(dict(sources)),
        undefined=StrictUndefined,
        extensions=[_MarkLines],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # every template is rendered once or twice: folding its constants costs more
        autoescape=False,  # what is rendered is a Dockerfile; values are checked by rocstack.base.words
    )


def _templates(library: TemplateLibrary) -> dict[str, TemplateFile]:
    """Every file by the name that Jinja knows it by."""
    known = {f"{library.kind}/{file.path.name}": file for file in library.files.values()}
    return known | {f"overlay/{library.kind}/{file.path.name}": file for file in library.overrides.values()}


def sources(library: TemplateLibrary) -> dict[str, str]:
    """Template name -> text, padded so that line numbers are those of the file."""
    return {name: "\n" * (file.body_line - 1) + file.body for name, file in _templates(library).items()}


def own_files(library: TemplateLibrary) -> dict[str, str]:
    """Templates that are the user's (files that don't lie among ours, and overrides) -> path."""
    shipped = paths.templates() / library.kind
    return {name: str(file.path) for name, file in _templates(library).items() if file.path.parent != shipped}


def shown(name: str, library: TemplateLibrary | None) -> str:
    """How messages call a template: the user's file as it was named, ours by its place in `templates/`."""
    return (own_files(library) if library else {}).get(name, f"templates/{name}")


class Blocks:
    """The blocks of one library. `vars` is what templates may name."""

    def __init__(self, env: Environment, library: TemplateLibrary, vars: dict[str, Any]) -> None:
        self._env = env
        self._library = library
        self._vars = vars
        check_blocks(env, library, own_files(library))

    def render(self, name: str, block: str, **extra: Any) -> str:
        """One block's text, with line marks; empty when the template has no such block or it yields only space."""
        template = guarded(lambda: self._env.get_template(f"{self._library.kind}/{name}.j2"), self._library)
        context = template.new_context({**self._vars, **extra})
        if name in self._library.overrides:
            own = guarded(lambda: self._env.get_template(f"overlay/{self._library.kind}/{name}.j2"), self._library)
            for key, function in own.blocks.items():
                context.blocks.setdefault(key, []).insert(0, function)
        if block not in context.blocks:
            return ""
        text = guarded(lambda: "".join(context.blocks[block][0](context)), self._library)
        return text if split(text)[0].strip() else ""


def guarded(render: Any, library: TemplateLibrary | None = None) -> Any:
    """Runs a rendering step; a template's mistake becomes an error that names its file and line.

    Raises:
        BadInput: syntax error, undefined name, or anything a template raises.
    """
    try:
        return render()
    except RocstackError:
        raise
    except TemplateSyntaxError as error:
        message, name, line = str(error.message), error.name or "?", error.lineno
    except Exception as error:
        name, line = template_frame(error)
        if not line and not isinstance(error, TemplateError):
            raise  # no template's mistake
        message = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    where = Where(shown(name, library), line or None) if name != "?" else None
    raise BadInput.of("bad-template", where, message=message)


def check_blocks(env: Environment, library: TemplateLibrary, names: Iterable[str]) -> None:
    """Refuses templates with blocks that nothing renders (they are misspelt), and without those that each needs.

    Raises:
        BadInput: with the line.
    """
    known = BLOCKS[library.kind]
    texts = sources(library)
    for name in names:
        place, override = shown(name, library), name.startswith("overlay/")
        parsed = guarded(lambda n=name: env.parse(texts[n], n), library)
        lines = {block.name: block.lineno for block in parsed.find_all(nodes.Block)}
        for block, line in lines.items():
            if block not in known:
                raise BadInput.of("unused-block", Where(place, line), block=block, hint=hinted(block, known))
        if override and not lines:
            raise BadInput.of("override-without-block", Where(place, 1), known=", ".join(known))
        missing = [block for block in NEEDED[library.kind] if block not in lines]
        if missing and not override:
            raise BadInput.of("needed-block", Where(place, 1), block=missing[0])


def template_frame(error: BaseException) -> tuple[str, int]:
    """The innermost template and line: Jinja keeps the template object in its frames' globals."""
    found = ("?", 0)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if template := frame.f_globals.get("__jinja_template__"):
            found = (template.name or "?", template.get_corresponding_lineno(line))
    return found
