"""Renders single blocks of component and NIC templates, the user's overrides over ours."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError

from rocstack import sourcemap
from rocstack.component import Library
from rocstack.errors import BadInput, Where, did_you_mean

BLOCKS = ("builder", "runtime", "copy", "version", "smoke")


def environment(sources: Mapping[str, str]) -> Environment:
    """Strict: an undefined name is an error, never an empty string."""
    return Environment(
        loader=DictLoader(dict(sources)),
        undefined=StrictUndefined,
        extensions=[sourcemap.MarkLines],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # what is rendered is a Dockerfile; values are checked by rocstack.words
    )


def sources(library: Library) -> dict[str, str]:
    """Template name -> text, padded so that line numbers are those of the file."""
    out = {}
    for prefix, files in ((library.kind, library.files), (f"overlay/{library.kind}", library.overrides)):
        for file in files.values():
            out[f"{prefix}/{file.path.name}"] = "\n" * (file.body_line - 1) + file.body
    return out


class Blocks:
    """The blocks of one library. `vars` is what templates may name."""

    def __init__(self, env: Environment, library: Library, vars: dict[str, Any]) -> None:
        self._env = env
        self._library = library
        self._vars = vars

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
                if key not in BLOCKS:
                    hint = did_you_mean(key, BLOCKS)
                    raise BadInput(
                        f"block '{key}' overrides nothing in {name}" + (f": {hint}" if hint else ""),
                        code="override-unmatched",
                        where=Where(str(override.path)),
                    )
                context.blocks.setdefault(key, []).insert(0, function)
        if block not in context.blocks:
            return ""
        text = guarded(lambda: "".join(context.blocks[block][0](context)), self._library)
        return text if sourcemap.split(text)[0].strip() else ""

    def any(self, names: Iterable[str], block: str) -> bool:
        return any(self.render(name, block) for name in names)


def guarded(render: Any, library: Library | None = None) -> Any:
    """Runs a rendering step; a template's mistake becomes an error that names its file and line.

    Raises:
        BadInput: syntax error, undefined name, or anything a template raises.
    """
    try:
        return render()
    except TemplateSyntaxError as error:
        raise _bad_template(str(error.message), error.name or "?", error.lineno, library) from None
    except TemplateError as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith((".j2", "<template>"))]
        name, line = _template_frame(error) if not frames else (frames[-1].filename, frames[-1].lineno or 0)
        raise _bad_template(str(error), name, line, library) from None


def _template_frame(error: BaseException) -> tuple[str, int]:
    """The innermost template and line: Jinja keeps the template object in its frames' globals."""
    found = ("?", 0)
    trace = error.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            found = (template.name or "?", template.get_corresponding_lineno(trace.tb_lineno))
        trace = trace.tb_next
    return found


def _bad_template(message: str, name: str, line: int, library: Library | None) -> BadInput:
    path = name
    if library is not None:
        files = library.overrides if name.startswith("overlay/") else library.files
        file = files.get(name.rsplit("/", 1)[-1].removesuffix(".j2"))
        path = str(file.path) if file else name
    return BadInput(
        f"template error: {message}",
        code="bad-template",
        where=Where(path, line or None),
        next_step="correct the template; `rocstack render` checks it without building",
    )
