"""Which template line every line of generated text came from."""

import re
from collections.abc import Iterable

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

_MARK = re.compile("\x00([^\x00]*):([0-9]+)\x00")


class MarkLines(Extension):
    """Ends every piece of a literal template line with an invisible mark; `split` takes the marks out again."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        for token in stream:
            if token.type == "data":
                yield Token(token.lineno, "data", _mark(token.value, stream.name or "?", token.lineno))
            else:
                yield token


def _mark(text: str, name: str, line: int) -> str:
    *lines, last = [f"{piece}\x00{name}:{number}\x00" for number, piece in enumerate(text.split("\n"), start=line)]
    return "".join(f"{each}\n" for each in lines) + (last if not last.startswith("\x00") else "")


def split(marked: str) -> tuple[str, list[str]]:
    """The clean text, and per line (from index 0) the `template:line` it came from."""
    origins: list[str] = []
    lines: list[str] = []
    last = ""
    for line in marked.split("\n"):
        found = _MARK.findall(line)
        if found:
            last = f"{found[-1][0]}:{found[-1][1]}"
        origins.append(last)
        lines.append(_MARK.sub("", line))
    return "\n".join(lines), origins
