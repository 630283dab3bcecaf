"""Why Ansible can't read an inventory: its words, and the line that they are about."""

import os
import re
from pathlib import Path

import yaml

from rocstack.base.errors import BadInput, CheckFailed, Where

# "Failed to parse FILE with ini plugin: why" of ansible-core 2.17, "... inventory with 'ini' plugin: why" of 2.19.
_COMPLAINT = re.compile(
    r"ailed to parse .*?(\w+)'? plugin: (?:.*while loading YAML\. )?(.+?)(?= Failed to parse| <<<| The error app|$)"
)
_HOME = re.compile(r"Unable to create local directories '?(?P<folder>[^':]+?)'?[.:]+ (?P<why>.+?)(: b?'|$| Traceback)")
_SCRIPT = re.compile(r"(?:non-zero exit code (?P<code>-?\d+)|execution error: *(?P<said>.*))")
_SCRIPT_SAID = "Standard error from inventory script:"
_CONFIG = re.compile(
    r"(?:Error reading config file \((?P<file>[^)]+)\): |(?=Config '\w+' from '(?P<origin>[^']+)' has an invalid))"
    r"(?P<why>.+)"
)
_NO_VAULT = "vault secrets"  # none were given, or none fits
_POSITION = re.compile(r"(?:Origin: |appears to be in ')(?P<file>.+?)(?:': line |:)(?P<line>\d+)")
# Where no line is named: what a complaint quotes of one, the longest first.
_QUOTES = (
    re.compile(r"got: (.+)$"), re.compile(r"'(.+)'"), re.compile(r"'(.+?)'"), re.compile(r"^(\S+) is not a known"),
    re.compile(r"same name: (\S+)$"),
)  # fmt: skip
_SECTION = re.compile(r"\s*(?:\[[^\]]*\]\s*)?(?:[#;].*)?")
_NO_RANGE = re.compile(r"[^\[\]=]*(?:\[(?!\w+:\w+(?::\d+)?\])|\])")  # a bracket in a host's name
_MOST = 4_000_000  # bytes of an inventory that is searched
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def refuse_absent(inventory: Path) -> None:
    """
    Raises:
        BadInput: it isn't there, or is no file or folder: a pipe is read once, and several programs read it.
    """
    if not inventory.exists():
        raise BadInput.of("no-inventory", inventory=inventory)
    if not (inventory.is_file() or inventory.is_dir()):
        raise BadInput.of("inventory-no-file", inventory)


def start_error(output: str, inventory: Path) -> CheckFailed | BadInput:
    """What Ansible said before it reached a host; nearly always about the inventory. It tries one format after the
    other, and we show the complaint about the format that the file has."""
    # It wraps lines, and ends some errors with its traceback.
    words = " ".join(output.split()).partition(" Traceback (most recent call last)")[0]
    if home := _HOME.search(words):
        return BadInput.of("no-ansible-home", folder=home["folder"], why=home["why"])
    if _NO_VAULT in words:
        return no_vault(inventory)
    if config := _CONFIG.search(words):
        return BadInput.of("bad-ansible-settings", Where(config["file"] or config["origin"]), why=config["why"])
    if is_script(inventory):
        return _script_error(output, words, inventory)
    messages = [text.strip() for text in re.split(r"\[?\b(?:ERROR|WARNING)\]?[:!]+", words) if text.strip()]
    complaints = {match[1]: match[2] for text in messages if (match := _COMPLAINT.search(text))}
    form = "ini" if "ini" in complaints and inventory.suffix not in (".yml", ".yaml", ".json") else "yaml"
    position = None if form == "ini" else _POSITION.search(words)
    if position or complaints or "inventory" in output or "vault" in output:
        what = complaints.get(form) or (messages or ["no reason given"])[0]
        if position:
            file = Path(position["file"])  # not so where a long path was wrapped
            where = Where(str(file if file.exists() else inventory), int(position["line"]))
        else:
            try:
                text = _text(inventory)
            except UnicodeDecodeError as error:
                at = Where(str(inventory), error.object.count(b"\n", 0, error.start) + 1)
                return BadInput.of("not-utf8", at, byte=error.object[error.start])
            where = Where(str(inventory), (_yaml_line(text) if form == "yaml" else None) or _line(what, text))
        return BadInput.of("unreadable-inventory", where, complaint=what, inventory=inventory)
    said = " ".join(messages[-3:]) or "no reason given"
    return CheckFailed.of("ansible-failed", messages=said, inventory=inventory)


def place(warning: str, inventory: Path) -> Where:
    """What a warning is about, of an inventory that Ansible could read."""
    return Where(str(inventory), _line(warning, _text(inventory, "replace")))


def _text(inventory: Path, errors: str = "strict") -> str:
    """Of a folder there is none."""
    if not inventory.is_file() or inventory.stat().st_size > _MOST:
        return ""
    return inventory.read_text(encoding="utf-8-sig", errors=errors)


def _line(complaint: str, text: str) -> int | None:
    """The line that a complaint without one is about."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    if "host range must be" in complaint:
        odd = (number for number, line in enumerate(lines, 1) if not _SECTION.fullmatch(line) and _NO_RANGE.match(line))
        return next(odd, None)
    quoted = [match[1].lower() for pattern in _QUOTES if (match := pattern.search(complaint))]
    for found in (str.__eq__, str.endswith, str.__contains__):
        for number, line in enumerate(lines, 1):
            if any(found(line.lower(), words) for words in quoted):
                return number
    return None


def _yaml_line(text: str) -> int | None:
    """Where the text stops being YAML."""
    try:
        for _ in yaml.parse(text, Loader=_Loader):
            pass
    except yaml.MarkedYAMLError as error:
        return min(error.problem_mark.line, text.rstrip().count("\n")) + 1 if error.problem_mark else None
    except yaml.reader.ReaderError as error:
        return text.count("\n", 0, error.position) + 1
    return None


def no_vault(inventory: Path) -> BadInput:
    """It has secrets of a vault that Ansible can't open."""
    return BadInput.of("no-vault-password", inventory)


def is_script(inventory: Path) -> bool:
    try:
        with inventory.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _script_error(output: str, words: str, inventory: Path) -> BadInput:
    """Why an inventory that is a program gave none."""
    script = _script(inventory)
    if not os.access(inventory, os.X_OK):
        return BadInput.of("inventory-not-executable", inventory, script=script)
    ended = _SCRIPT.search(words)
    if ended is None:
        complaint = next((text for name, text in _COMPLAINT.findall(words) if name == "script"), "no reason given")
        return BadInput.of("inventory-script-json", inventory, why=complaint, script=script)
    said = output.partition(_SCRIPT_SAID)[2].strip() or (ended["said"] or "")
    lines = [line for line in re.split(r"^\[", said, flags=re.MULTILINE)[0].splitlines() if line.strip()]
    why = lines[-1].strip() if lines else "it said nothing"
    code = f" with exit code {ended['code']}" if ended["code"] else ""
    return BadInput.of("inventory-script-failed", inventory, code=code, why=why, script=script)


def script_without_hosts(inventory: Path) -> BadInput:
    """Of a program that can't be started, or prints nothing, Ansible reads the text, as an inventory of comments."""
    why = "it can't be started, or its answer names no host"
    return BadInput.of("inventory-script-json", inventory, why=why, script=_script(inventory))


def _script(inventory: Path) -> str:
    """As it is called in a shell."""
    return str(inventory) if inventory.is_absolute() else f"./{inventory}"
