"""Whether a file can train: JSON lines of conversations or of text, as the trainer reads them. Pure but for reading."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rocstack.base.text import count, visible
from rocstack.service.failures import RequestRefused

LONGEST = 16 << 20  # bytes of a line
SHOWN = 5  # faults that are named, and lines of each
KEYS = 1000  # that all lines together have
ROLES = ("system", "user", "assistant", "developer")
_TYPES: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}


@dataclass(frozen=True)
class Trainable:
    kind: str  # conversations or text
    samples: int


class _Wrong(ValueError):
    pass


def check(lines: Iterable[bytes]) -> Trainable:
    """
    Raises:
        RequestRefused: it can't train; the lines are named.
    """
    faults: dict[str, list[int]] = {}  # the first lines of each
    wrong, named, samples, kind = 0, 0, 0, ""
    types: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _row(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            found = _kind(row)
            if kind and found != kind:
                raise _Wrong(f"it has {found}, the lines above have {kind}")
            kind = found
            _same_types(row, types)
            samples += 1
        except _Wrong as error:
            wrong += 1
            if str(error) in faults or len(faults) < SHOWN:
                numbers = faults.setdefault(str(error), [])
                if len(numbers) < SHOWN:
                    numbers.append(number)
                    named += 1
    if wrong:
        said = "; ".join(f"line {', '.join(map(str, numbers))}: {fault}" for fault, numbers in faults.items())
        more = f"; and {count(wrong - named, 'line')} more" if wrong > named else ""
        raise RequestRefused.of("untrainable", faults=said, more=more).about("file")
    if not samples:
        raise RequestRefused.of("untrainable", faults="it has no lines", more="").about("file")
    return Trainable(kind, samples)


def _row(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise _Wrong(f"it has more than {LONGEST >> 20} MiB")
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_number)
        half = b"\\u" in line and _has_half(row)
    except UnicodeDecodeError as error:
        raise _Wrong(f"no UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise _Wrong("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise _Wrong(f"no JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise _Wrong(str(error)[:200]) from None
    if not isinstance(row, dict):
        raise _Wrong("no JSON object")
    if half:
        raise _Wrong("it has half of a character (\\ud800 to \\udfff without its other half)")
    return row


def _has_half(row: Any) -> bool:
    """JSON can say what no UTF-8 can, and no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _no_number(word: str) -> Any:
    raise _Wrong(f"{word} is no number of JSON")


def _kind(row: dict[str, Any]) -> str:
    if "messages" in row:
        _conversation(row["messages"])
        return "conversations"
    if "text" in row:
        if not isinstance(row["text"], str) or not row["text"].strip():
            raise _Wrong("its text is empty, or no text")
        return "text"
    keys = ", ".join(f"'{visible(key[:30])}'" for key in list(row)[:4])
    raise _Wrong(f"neither `messages` nor `text`; it has {keys or 'nothing'}")


def _conversation(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise _Wrong("`messages` is no list, or empty")
    for at, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise _Wrong(f"message {at} is no object")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise _Wrong(f"message {at} has the role {visible(repr(role)[:30])}; known: {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise _Wrong(f"message {at} has no text as its content")
        if any(key not in ("role", "content", "name", "weight") for key in message):
            raise _Wrong(f"message {at} has more than role and content: tools aren't trained")
    if messages[0]["role"] == "assistant":
        raise _Wrong("it begins with an answer: nothing leads to it")
    if not any(each["role"] == "assistant" and each["content"].strip() for each in messages):
        raise _Wrong("it has no answer of the assistant to learn from")


def _same_types(row: dict[str, Any], types: dict[str, str]) -> None:
    """The trainer reads columns: each key has one type in all lines."""
    for key, value in row.items():
        if value is None or key in ("messages", "text"):
            continue
        name = _TYPES.get(type(value), "an object")
        if len(types) >= KEYS and key not in types:
            raise _Wrong(f"the file has more than {KEYS} different keys")
        if types.setdefault(key, name) != name:
            raise _Wrong(f"'{visible(key[:30])}' is {name}, in the lines above {types[key]}")
