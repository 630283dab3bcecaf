"""The cases of failed builds: one folder each, with the templates that failed, what the builder said, and what
rocstack must make of it.

    CASE/Dockerfile.j2, components/*.j2, smoke/*/*.j2   rendered as rocstack renders: with the line map
    CASE/stream.txt     what `docker buildx build --progress=rawjson` wrote, made by `record.py`; or
    CASE/log.txt        the lines of one step, copied from somewhere
    CASE/expected.yml   fields of the Failure; `cause` and `next_step` by a part of their text
"""

from __future__ import annotations

from pathlib import Path

from rocstack.image.context import BuildContext, ContextFile
from rocstack.stack import blocks

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/expected.yml"))


def context(case: str) -> BuildContext:
    """The case's context, rendered; its generated files carry their template lines."""
    folder = HERE / case
    texts = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.j2"))}
    env = blocks.environment(texts)
    files: dict[str, ContextFile] = {}
    origins: dict[str, list[str]] = {}
    for name in texts:
        if not name.startswith("components/"):
            path = name.removesuffix(".j2")
            text, origins[path] = blocks.split(env.get_template(name).render())
            files[path] = ContextFile(text.encode())
    return BuildContext(files, origins)
