"""Renders single blocks of component and NIC templates, the user's overrides over ours."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError, nodes

from rocstack.base import paths
from rocstack.base.errors import BadInput, RocstackError, Where, did_you_mean
from rocstack.stack import sourcemap
from rocstack.stack.component import TemplateLibrary

BLOCKS = {
    "components": ("builder", "runtime", "copy", "version", "smoke"),
    "nic": ("builder", "plugin", "runtime", "smoke"),
    "slurm": (
        *("controller", "security", "jobs", "scheduling", "accounting", "nodes", "partitions", "more"),
        *("gpus", "limits", "daemon", "database"),
    ),
}
NEEDED = {"components": ("version", "smoke"), "nic": (), "slurm": ()}


def environment(sources: Mapping[str, str]) -> Environment:
    """Strict: an undefined name is an error, never an empty string."""
    return Environment(
        loader=DictLoader(dict(sources)),
        undefined=StrictUndefined,
        extensions=[sourcemap.MarkLines],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # every template is rendered once or twice: folding its constants costs more
        autoescape=False,  # what is rendered is a Dockerfile; values are checked by rocstack.base.words
    )


def sources(library: TemplateLibrary) -> dict[str, str]:
    """Template name -> text, padded so that line numbers are those of the file."""
    out = {}
    for prefix, files in ((library.kind, library.files), (f"overlay/{library.kind}", library.overrides)):
        for file in files.values():
            out[f"{prefix}/{file.path.name}"] = "\n" * (file.body_line - 1) + file.body
    return out


def own_files(library: TemplateLibrary) -> dict[str, str]:
    """Templates that are the user's (files that don't lie among ours, and overrides) -> path."""
    shipped = paths.templates() / library.kind
    added = {f"{library.kind}/{f.path.name}": f for f in library.files.values() if f.path.parent != shipped}
    overrides = {f"overlay/{library.kind}/{f.path.name}": f for f in library.overrides.values()}
    return {name: str(file.path) for name, file in (added | overrides).items()}


def shown(name: str, *libraries: TemplateLibrary) -> str:
    """How messages call a template: the user's file as it was named, ours by its place in `templates/`."""
    return next((own_files(library)[name] for library in libraries if name in own_files(library)), f"templates/{name}")


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
        override = self._library.overrides.get(name)
        if override:
            own = guarded(
                lambda: self._env.get_template(f"overlay/{self._library.kind}/{override.path.name}"),
                self._library,
            )
            for key, function in own.blocks.items():
                context.blocks.setdefault(key, []).insert(0, function)
        if block not in context.blocks:
            return ""
        text = guarded(lambda: "".join(context.blocks[block][0](context)), self._library)
        return text if sourcemap.split(text)[0].strip() else ""

    def any(self, names: Iterable[str], block: str) -> bool:
        return any(self.render(name, block) for name in names)


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
        raise _bad_template(str(error.message), error.name or "?", error.lineno, library) from None
    except Exception as error:
        name, line = _template_frame(error)
        if not line and not isinstance(error, TemplateError):
            raise  # no template's mistake
        told = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise _bad_template(told, name, line, library) from None


def check_blocks(env: Environment, library: TemplateLibrary, names: Iterable[str]) -> None:
    """Refuses templates with blocks that nothing renders (they are misspelt), and without those that each needs.

    Raises:
        BadInput: with the line.
    """
    known = BLOCKS[library.kind]
    texts = sources(library)
    for name in names:
        blocks = list(guarded(lambda n=name: env.parse(texts[n], n), library).find_all(nodes.Block))
        for block in blocks:
            if block.name not in known:
                hint = did_you_mean(block.name, known)
                raise BadInput(
                    f"block '{block.name}' is never used" + (f": {hint}" if hint else ""),
                    code="override-unmatched",
                    where=Where(shown(name, library), block.lineno),
                )
        if not blocks and name.startswith("overlay/"):
            raise BadInput(
                "it overrides nothing, because it has no block",
                code="override-unmatched",
                where=Where(shown(name, library), 1),
                next_step=f"override one of these blocks: {', '.join(known)}",
            )
        missing = [block for block in NEEDED[library.kind] if block not in {each.name for each in blocks}]
        if missing and not name.startswith("overlay/"):
            raise BadInput(
                f"it has no block '{missing[0]}'",
                code="bad-template",
                where=Where(shown(name, library), 1),
                next_step="add the block: every component must print its version and test itself",
            )


def _template_frame(error: BaseException) -> tuple[str, int]:
    """The innermost template and line: Jinja keeps the template object in its frames' globals."""
    frame = ("?", 0)
    trace = error.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            frame = (template.name or "?", template.get_corresponding_lineno(trace.tb_lineno))
        trace = trace.tb_next
    return frame


def _bad_template(message: str, name: str, line: int, library: TemplateLibrary | None) -> BadInput:
    where = Where(shown(name, *filter(None, [library])), line or None) if name != "?" else None
    return BadInput(
        f"template error: {message}",
        code="bad-template",
        where=where,
        next_step="correct the template; `rocstack render` checks it without building",
    )
