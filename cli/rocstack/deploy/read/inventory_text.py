"""The files of an inventory as they were written: the line of each group, host and variable, and what Ansible would
drop with a warning at most. Of an inventory that a program makes there is nothing to see here."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from rocstack.base import document
from rocstack.base.errors import BadInput, Where, hinted
from rocstack.base.text import distance
from rocstack.deploy.read import inventory_values

GROUP_KEYS = ("hosts", "vars", "children")
_MOST = 4_000_000  # bytes of a file; a larger one has no lines here
_DEEPEST = 30
_DIGITS = 100  # Python reads no number of thousands
_IGNORED = (".cfg", ".retry", ".pyc", ".pyo", "~", ".bak", ".orig", ".rpm", ".md", ".txt", ".rst", ".swp")
_VARS = ("group_vars", "host_vars")
_YAML = ("", ".yml", ".yaml", ".json")
_SECTION = re.compile(r"\s*\[([^:\]]+)(?::(\w+))?\]")
_PAIR = re.compile(r"(?:^|\s)([^\s=\"']+)\s*=")
_RANGE = re.compile(r"\[(\w+)([:-])(\w+)(?::\d+)?\]")
# What YAML makes of a host's name without quotes.
MERGE = "tag:yaml.org,2002:merge"  # <<: *others
_KINDS = {"int": "a number", "float": "a number", "bool": "true or false", "null": "nothing", "timestamp": "a date"}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class InventoryText:
    """`names` are lines by group and host, `variables` by (group or host, variable)."""

    path: Path
    names: dict[str, Where] = field(default_factory=dict)
    variables: dict[tuple[str, str], Where] = field(default_factory=dict)
    owners: dict[str, Where] = field(default_factory=dict)  # of files in group_vars and host_vars
    _lost: list[BadInput] = field(default_factory=list)
    _unread: list[BadInput] = field(default_factory=list)

    def of(self, name: str) -> Where:
        """Where a group or host is named first."""
        return self.names.get(name, Where(str(self.path)))

    def variable(self, variable: str, host: str, groups: Iterable[str] = ()) -> Where:
        """Where a host gets it from; if that isn't plain, where it stands first."""
        for owner in (host, *sorted(groups), "all"):
            if found := self.variables.get((owner, variable)):
                return found
        return self._first.get(variable, Where(str(self.path)))

    @cached_property
    def _first(self) -> dict[str, Where]:
        return {variable: where for (_, variable), where in reversed(self.variables.items())}

    def refuse_lost(self) -> None:
        """
        Raises:
            BadInput: a key that Ansible skips, or one that takes the place of another.
        """
        for error in self._lost:
            raise error

    def refuse_unread(self) -> None:
        """Where Ansible failed: it names no file and no line.

        Raises:
            BadInput: a file beside the inventory that is no YAML, or holds no variables.
        """
        for error in self._unread:
            raise error

    def refuse_nobodys(self, known: Iterable[str]) -> None:
        """
        Raises:
            BadInput: a file beside the inventory is of a group or host that is misspelt.
        """
        names = (*known, "all", "ungrouped")
        for owner, where in self.owners.items():
            meant = None if owner in names else next((each for each in names if _misspelt(owner, each)), None)
            if meant:
                raise BadInput.of("vars-of-nobody", where, owner=owner, meant=meant)

    def nobodys(self, known: Iterable[str]) -> tuple[str, ...]:
        """Files beside the inventory that are of no group and no host in it: maybe of another inventory."""
        others = ((owner, at) for owner, at in self.owners.items() if owner not in (*known, "all", "ungrouped"))
        return tuple(
            f"{where.path} is read by nobody: no group and no host is called '{owner}'" for owner, where in others
        )

    def _range(self, name: str, where: Where) -> None:
        """n[5:1] is nobody to Ansible, n[1-4] no range."""
        for begin, sign, end in _RANGE.findall(name):
            if sign == "-":
                self._lost.append(BadInput.of("inventory-range", where, name=name, meant=name.replace("-", ":")))
            elif (begin.isdecimal() and end.isdecimal() and int(begin) > int(end)) or (
                len(begin) == 1 == len(end) and begin > end
            ):
                meant = name.replace(f"{begin}:{end}", f"{end}:{begin}")
                self._lost.append(BadInput.of("inventory-range", where, name=name, meant=meant))

    def _add(self, owner: str, variable: str, where: Where) -> None:
        self.variables.setdefault((owner, variable), where)


def read(path: Path) -> InventoryText:
    """What can be read of it; Ansible says what can't."""
    text = InventoryText(path)
    for file, owner in _files(path):
        try:
            if file.stat().st_size > _MOST:
                continue
            content = file.read_text(encoding="utf-8")
        except OSError:
            continue
        except UnicodeDecodeError as error:
            if owner is not None:
                at = Where(str(file), error.object.count(b"\n", 0, error.start) + 1)
                text._unread.append(BadInput.of("not-utf8", at, byte=error.object[error.start]))
            continue
        if owner is not None:
            text.owners.setdefault(owner, Where(str(file), 1))
        marked, content = content.startswith("\ufeff"), content.removeprefix("\ufeff")
        if content.startswith(("#!", "$ANSIBLE_VAULT")):
            continue
        root = _composed(content) if file.suffix in _YAML else None
        if isinstance(root, yaml.MappingNode):
            _Yaml(text, file).read(root, owner)
        elif owner is not None:
            _no_variables(text, file, content)
        elif file.suffix not in (*_YAML[1:], ".toml"):
            if marked:
                text._lost.append(BadInput.of("inventory-mark", Where(str(file), 1)))
            _ini(text, file, content)
        elif isinstance(root, yaml.SequenceNode):
            text._lost.append(BadInput.of("inventory-all-list", Where(str(file), root.start_mark.line + 1)))
    return text


def refuse_lost(path: Path) -> None:
    """For commands that take any inventory, with other groups, too.

    Raises:
        BadInput: as `InventoryText.refuse_lost`.
    """
    if path.is_file() or path.is_dir():
        read(path).refuse_lost()


def _shape(name: str) -> str:
    """n# of n12: names of one row of hosts have the same."""
    return re.sub("[0-9]+", "#", name)


def _misspelt(word: str, name: str) -> bool:
    """Not n10 for n1, or gpu for cpu: those are others."""
    letters, wanted = (re.sub("[0-9]", "", text) for text in (word, name))
    return letters != wanted and len(word) > 4 and distance(word, name, 3) <= (1 if len(word) < 7 else 2)


def line(where: Where) -> str:
    """What stands there."""
    lines = Path(where.path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return lines[(where.line or 1) - 1] if (where.line or 1) <= len(lines) else ""


def _files(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Each file, and whose variables it holds."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.is_file() and not file.name.startswith(".") and not file.name.endswith(_IGNORED):
                yield file, None
    else:
        yield path, None
    for kind in _VARS:
        for entry in sorted((folder / kind).iterdir()) if (folder / kind).is_dir() else ():
            for file in sorted(entry.rglob("*")) if entry.is_dir() else [entry]:
                if file.is_file() and file.suffix in _YAML and not file.name.startswith("."):
                    yield file, entry.name if entry.is_dir() else entry.stem


def _composed(content: str) -> yaml.Node | None:
    """The nodes of a YAML text. Not their values: tags such as !vault are Ansible's."""
    loader = _Loader(content)
    try:
        depth = 0
        for event in yaml.parse(content, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:  # to compose it would crash
                return None
        node: yaml.Node | None = loader.get_single_node()
        return node
    except (yaml.YAMLError, ValueError):
        return None


def _no_variables(text: InventoryText, file: Path, content: str) -> None:
    try:
        node = yaml.compose(content, Loader=_Loader)
    except RecursionError:
        return
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = Where(str(file), min(mark.line, content.rstrip().count("\n")) + 1 if mark else None)
        text._unread.append(BadInput.of("bad-yaml", at, why=getattr(error, "problem", None) or error))
        return
    if node is not None and node.tag != "tag:yaml.org,2002:null":
        text._unread.append(BadInput.of("inventory-no-variables", Where(str(file), node.start_mark.line + 1)))


@dataclass
class _Yaml:
    text: InventoryText
    file: Path
    seen: set[int] = field(default_factory=set)  # an alias is a node that was met before

    def read(self, root: yaml.MappingNode, owner: str | None) -> None:
        self._twice(root)
        self.seen.clear()
        if owner is not None:
            self._variables(owner, root)
            return
        top = self._pairs(root)
        if not any(key.value == "plugin" for key, _ in top):
            for key, value in top:
                self._group(key, value)

    def _where(self, node: yaml.Node) -> Where:
        return Where(str(self.file), node.start_mark.line + 1)

    def _pairs(self, node: yaml.Node) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode) or id(node) in self.seen:
            return []
        self.seen.add(id(node))
        return [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]

    def _twice(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.SequenceNode) and id(node) not in self.seen:
            self.seen.add(id(node))
            for item in node.value:
                self._twice(item)
        lines: dict[str, int] = {}
        for key, value in self._pairs(node):
            first = lines.setdefault(key.value, key.start_mark.line + 1)
            at = self._where(key)
            if at.line != first and key.tag != MERGE:
                self.text._lost.append(BadInput.of("inventory-twice", at, key=key.value, first=first))
            self._twice(value)

    def _group(self, name: yaml.ScalarNode, node: yaml.Node) -> None:
        group = str(name.value)
        self.text.names.setdefault(group, self._where(name))
        for key, value in self._pairs(node):
            if key.value in GROUP_KEYS and isinstance(value, yaml.SequenceNode):
                first = next((each.value for each in value.value if isinstance(each, yaml.ScalarNode)), "NAME")
                at = self._where(value)
                self.text._lost.append(BadInput.of("inventory-list", at, key=key.value, group=group, first=first))
            elif key.value == "vars":
                self._variables(group, value)
            elif key.value == "hosts":
                if isinstance(value, yaml.ScalarNode):
                    self.text.names.setdefault(value.value, self._where(value))
                for host, variables in self._pairs(value):
                    if host.tag == MERGE:
                        continue
                    if host.tag != "tag:yaml.org,2002:str":
                        kind = _KINDS.get(host.tag.rpartition(":")[2], "something else")
                        error = BadInput.of("inventory-unquoted", self._where(host), name=host.value, kind=kind)
                        self.text._lost.append(error)
                    self.text._range(host.value, self._where(host))
                    self.text.names.setdefault(host.value, self._where(host))
                    if isinstance(variables, yaml.SequenceNode):
                        at = self._where(variables)
                        self.text._lost.append(BadInput.of("inventory-host-list", at, host=host.value))
                    self._variables(host.value, variables)
                    self._hosts_inside(host.value, variables)
            elif key.value == "children":
                for child, below in self._pairs(value):
                    self._group(child, below)
            else:
                hint = hinted(key.value, GROUP_KEYS)
                error = BadInput.of("inventory-key", self._where(key), key=key.value, group=group, hint=hint)
                self.text._lost.append(error)

    def _hosts_inside(self, host: str, node: yaml.Node) -> None:
        """What is indented too far: to Ansible it is a variable, and the host is lost."""
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag == MERGE:
                continue
            below = value.value if isinstance(value, yaml.MappingNode) else ()
            alike = "#" in _shape(host) and _shape(host) == _shape(str(key.value))
            as_host = isinstance(value, yaml.MappingNode) or value.tag == "tag:yaml.org,2002:null"
            of_host = any(str(each.value).startswith(("ansible_", "rocstack_")) for each, _ in below)
            # A variable may well have connections in it (of a BMC, say), but hardly a number in its name.
            if (alike and as_host) or (of_host and "#" in _shape(str(key.value))):
                error = BadInput.of("inventory-host-inside", self._where(key), name=key.value, host=host)
                self.text._lost.append(error)

    def _variables(self, owner: str, node: yaml.Node) -> None:
        for key, value in self._pairs(node):
            at = self._where(key)
            self.text._add(owner, key.value, at)
            if value.tag != "tag:yaml.org,2002:int":
                continue
            why = ""
            if len(value.value) > _DIGITS:
                why = "is too long a number"
            elif document.is_other_number(value.value) and key.value.startswith(("ansible_", "rocstack_")):
                why = "is another number to YAML, which reads it to the base of 8 or 60; in quotes it is a text"
            if why:
                said = inventory_values.shown(key.value, value.value).strip("'")
                bad = BadInput.of("bad-variable", at, variable=key.value, value=said, name=owner, why=why)
                self.text._lost.append(bad)


def _ini(text: InventoryText, file: Path, content: str) -> None:
    group, kind, seen = "ungrouped", None, dict[tuple[str, str], int]()
    # Of a folder, a file may go on with the groups of those before it.
    groups, children = {"all", "ungrouped", *text.names}, list[tuple[str, Where]]()
    for number, line in enumerate(content.splitlines(), 1):
        where, words = Where(str(file), number), line.split("#", 1)[0].split()
        if not words or words[0].startswith(";"):
            continue
        if section := _SECTION.match(line):
            group, kind = section[1], section[2]
            if kind not in (None, *GROUP_KEYS):
                hint = hinted(kind, GROUP_KEYS)
                text._lost.append(BadInput.of("inventory-section", where, group=group, kind=kind, hint=hint))
            text.names.setdefault(group, where)
            if kind == "vars":
                children.append((group, where))
            else:
                groups.add(group)
        elif words[0].startswith("[") and ":" not in words[0]:
            text._lost.append(BadInput.of("inventory-open", where, line=line.strip()))
        elif kind == "vars":
            text._add(group, line.partition("=")[0].strip(), where)
            if "=" not in line:
                text._lost.append(BadInput.of("inventory-pair", where, word=words[0], host=group))
        elif kind == "children":
            children.append((words[0], where))
        else:
            _host_line(text, line, where)
            first = seen.setdefault((group, words[0]), number)
            if first != number:
                text._lost.append(BadInput.of("inventory-twice", where, key=words[0], first=first))
    for name, where in children:
        if name not in groups:
            text._lost.append(BadInput.of("inventory-child", where, name=name, hint=hinted(name, groups)))


def _host_line(text: InventoryText, line: str, where: Where) -> None:
    try:
        host, *rest = shlex.split(line, comments=True)
    except ValueError:  # an open quote: Ansible's to judge
        return
    text.names.setdefault(host, where)
    text._range(host, where)
    for variable in _PAIR.findall(line):
        text._add(host, variable, where)
    for word in rest:
        if not word.partition("=")[0] or "=" not in word:
            text._lost.append(BadInput.of("inventory-pair", where, word=word, host=host))
            return
