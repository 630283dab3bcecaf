"""What the documentation says is so: commands exist, links lead somewhere, codes are the code's, the example works."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rocstack.base.errors import BadInput, CheckFailed, Missing, error_texts
from rocstack.cli.main import app
from rocstack.cli.run import COMMANDS
from rocstack.service import failures
from rocstack.service.failures import ServiceError
from rocstack.trust.verification import Untrusted

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "images/trainer"))
from rocstack_trainer.settings import KEYS, SECTIONS

ROOT = Path(__file__).resolve().parents[3]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_SERVICE = [each for each in vars(failures).values() if inspect.isclass(each) and issubclass(each, ServiceError)]
EXIT = {error.__name__: error.exit_code for error in (CheckFailed, BadInput, Missing, Untrusted, *OF_SERVICE)}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def commands(path: Path) -> Iterator[list[str]]:
    """Every command of the page's sh blocks, without variables before it and whatever stands behind a pipe."""
    for language, text in FENCE.findall(path.read_text(encoding="utf-8")):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            stop = next((i for i, word in enumerate(words) if word in ("|", "&&", ">", ";")), len(words))
            if words:
                yield words[:stop]


def complaint(words: list[str]) -> str | None:
    """What the CLI would say against these words after `rocstack`, before it runs anything."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("rocstack", ["config"], resilient_parsing=True)
    command = root if words[0].startswith("-") else root.get_command(context, words[0])
    if command is None:
        return f"no command {words[0]}"
    own = words if command is root else words[1:]
    if (short := getattr(command, "short", None)) and (not own or own[0] not in command.commands):
        own = [short, *own]
    while command is not root and hasattr(command, "commands") and own and not own[0].startswith("-"):
        command, own = command.get_command(context, own[0]), own[1:]
        if command is None:
            return f"no command {' '.join(words)}"
    before = own[: next((i for i, word in enumerate(own) if word in ("--", *COMMANDS)), len(own))]
    known = {opt for param in command.get_params(context) for opt in param.opts}
    unknown = [word for word in before if word.startswith("-") and word.partition("=")[0] not in known]
    if unknown:
        return f"no option {unknown[0]}"
    sub = type(context)(command, info_name=words[0], parent=context, **command.context_settings)
    try:
        rest = command.make_parser(sub).parse_args(args=list(own))[1]
    except Exception as error:  # the library's own copy of click, which has no public name
        return str(error)
    arguments = sum(param.param_type_name == "argument" for param in command.params)
    free = command.context_settings.get("allow_extra_args")
    return None if free or len(rest) <= arguments else f"{rest} is too much"


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_every_command_parses(path: Path) -> None:
    wrong = {shlex.join(words): complaint(words[1:]) for words in commands(path) if Path(words[0]).name == "rocstack"}
    assert not {line: what for line, what in wrong.items() if what}


@pytest.mark.parametrize("path", [*DOCS, ROOT / "images/trainer/README.md"], ids=named)
def test_every_setting_of_the_trainer_exists(path: Path) -> None:
    sections = "|".join(SECTIONS)
    named = set(re.findall(rf"(?:--|`)((?:{sections})\.[a-z_]+)\b(?!\.[a-z])", path.read_text(encoding="utf-8")))
    assert named <= set(KEYS)
    assert named or path.stem != "trainer"


@pytest.mark.parametrize(
    "words",
    [
        ["biuld"],
        ["build", "--nick", "tcp"],
        ["build", "--nic"],
        ["run", "--gpu", "0"],
        ["run", "--gpu", "0", "trainer", "--steps", "1"],
        ["config", "extra"],
        ["local", "upp"],
        ["local", "up", "--node", "2"],
        ["local", "down", "extra"],
    ],
)
def test_a_wrong_command_is_noticed(words: list[str]) -> None:
    assert complaint(words)


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_every_make_target_and_script_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in [*commands(path), *(shlex.split(text) for text in re.findall(r"`(make [a-z-]+)`", prose(path)))]:
        if words[0] == "make":
            assert set(words[1:]) <= targets, words
        elif "/" in words[0] and not words[0].startswith(".venv/"):
            assert (ROOT / words[0]).is_file(), words


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(path)) + re.findall(r'(?:src|href)="([^"]+)"', prose(path)):
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{named(path)}: {target}"
        assert not anchor or anchor in anchors(place), f"{named(path)}: {target}"


@pytest.mark.parametrize("path", DOCS, ids=named)
def test_no_token_is_a_word_of_a_command(path: Path) -> None:
    """Who else is on that machine sees the words of its processes: on a login node all of the cluster's users."""
    told = [line for line in path.read_text(encoding="utf-8").splitlines() if "curl " in line]
    assert not [line for line in told if "$TOKEN" in re.sub(r"<\(echo [^)]*\)", "", line)]


@pytest.mark.parametrize("path", [*DOCS, *(ROOT / "docs").glob("*.svg")], ids=named)
def test_no_host_and_no_path_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    hosts = set(re.findall(r"\b[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:org|com|io|net|dev|cloud)\b", text))
    allowed = {"docker.io", "example.com", "registry.example.com"}  # docker.io: the package
    assert not hosts - allowed
    assert "docker.io/" not in text
    assert not re.findall(r"(?<![\w.])/(?:work|tmp|root|home|mnt)\b", text)


def test_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        env={"PYTHONPATH": str(ROOT / "cli"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_readme_names_every_page() -> None:
    assert {p.name for p in DOCS[2:]} <= set(re.findall(r"\(docs/([\w-]+\.md)", DOCS[0].read_text()))


def raised() -> tuple[dict[str, set[int]], set[str], set[str]]:
    """From the source: error code -> exit codes, where one is raised by its class; patterns of codes that are put
    together; and every plain text, among which a code may be that goes through a helper."""
    found: dict[str, set[int]] = defaultdict(set)
    patterns, texts = set(), {"usage"}
    for file in sorted((ROOT / "cli" / "rocstack").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name), keywords=words) if name in EXIT:
                    code = next(word.value for word in words if word.arg == "code")
                    if isinstance(code, ast.Constant):
                        found[str(code.value)].add(EXIT[name])
                    elif isinstance(code, ast.JoinedStr):
                        parts = (str(p.value) if isinstance(p, ast.Constant) else "[a-z]+" for p in code.values)
                        patterns.add("".join(parts))
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="of"), args=[first, *_]) if name in EXIT:
                    for part in ast.walk(first):
                        if isinstance(part, ast.Constant) and part.value in error_texts():
                            found[error_texts()[part.value].get("code", part.value)].add(EXIT[name])
                case ast.Constant(value=str(text)):
                    texts.add(text)
    texts |= {entry.get("code", name) for name, entry in error_texts().items()}
    return dict(found), patterns, texts


def test_every_error_code_is_explained() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9, ]+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    table = {code: {int(n) for n in exits.split(",")} for code, exits, *_ in rows}
    codes, patterns, texts = raised()
    assert len(codes) > 40
    assert {code: exits for code, exits in codes.items() if not exits <= table.get(code, set())} == {}
    assert {pattern for pattern in patterns if not any(re.fullmatch(pattern, row) for row in table)} == set()
    unknown = {row for row in table if row not in texts and not any(re.fullmatch(p, row) for p in patterns)}
    assert unknown == set(), "codes that the source doesn't have (any more)"
    assert list(table) == sorted(table)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of customize.md, written out."""
    text = (ROOT / "docs" / "customize.md").read_text(encoding="utf-8")
    files = re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for name, body in files:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body)
    assert len(files) == 6
    return tmp_path


def rocstack(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rocstack.cli.main", *words]
    env = {"PYTHONPATH": str(ROOT / "cli"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_the_example_renders(example: Path) -> None:
    done = rocstack(example, "render", "--to", "context")
    assert done.returncode == 0, done.stderr
    dockerfile = (example / "context" / "Dockerfile").read_text()
    assert dockerfile.startswith("# mpi-only for intel")
    installed = set(dockerfile.replace("\\", " ").split())
    assert {"strace", "numactl", "fio"} <= installed
    assert "rdmacm-utils" not in installed
    assert "COPY trainer/" not in dockerfile
    smoke = "\n".join(p.read_text() for p in (example / "context" / "smoke" / "worker").iterdir())
    assert "tcp transport is offered" in smoke, "super() is rocstack's own text"
    assert "cma transport is offered" in smoke
    assert "fio reads 1 MB at random" in smoke
    assert "driver irdma" in smoke


def test_the_example_is_listed_and_allowed(example: Path) -> None:
    listed = rocstack(example, "stacks").stdout
    assert "mpi-only" in listed
    assert "Intel E810" in listed
    assert rocstack(example, "explain").stdout.splitlines()[-1].startswith("allowed")


def test_each_command_and_group_of_commands_has_a_man_page() -> None:
    root: Any = typer.main.get_command(app)
    pages = {file.stem for file in (ROOT / "docs/man").glob("*.1")}
    assert {f"rocstack-{name}" for name in root.commands} <= pages
