"""Writes docs/reference.md from the code (commands, settings, fields of stacks, components, NICs and rules, labels, the
trainer's settings), the JSON schemas of node profiles and of verify's report.json, and the man pages in docs/man.

    python docs/generate.py [--check]

--check writes nothing and exits 1 when a file is not what the code says.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any, get_args, get_type_hints

import manual
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rocstack.base import errors, finding_texts, paths, words
from rocstack.base.words import Value
from rocstack.cli.main import app
from rocstack.cluster import service
from rocstack.cluster import settings as cluster
from rocstack.container import run_line, ulimit
from rocstack.image import labels
from rocstack.image.base_image import BaseImage
from rocstack.probe import diagram, profiles, recordings, schema
from rocstack.release import plan
from rocstack.settings import settings
from rocstack.stack import component, overlay, resolve, rules, stack
from rocstack.stack.lock import Lock
from rocstack.verify import artifacts, suite, thresholds
from rocstack.verify.result import ITEMS
from rocstack.virtual import machine, tree
from rocstack.virtual import model as node_model

sys.path.insert(0, str(paths.images() / "trainer"))
from rocstack_trainer.config import Config

FILE = Path(__file__).with_name("reference.md")
SCHEMA = Path(__file__).with_name("node-profile.schema.json")
REPORT_SCHEMA = Path(__file__).with_name("report.schema.json")
TOPOLOGY = Path(__file__).with_name("topology.svg")
MAN = Path(__file__).with_name("man")
# Titles of the files that users write -> their models, the outermost first.
MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "Stack": (
        stack.Stack,
        stack.StackBase,
        stack.Bootstrap,
        stack.AptSuite,
        stack.ComponentChoice,
        stack.SourceArchive,
        stack.AptRepository,
        stack.StackFact,
        stack.FurtherImage,
    ),
    "Component head": (component.Component, component.Packages),
    "NIC profile head": (
        component.NicProfile,
        component.Way,
        component.NicVariable,
        component.RcclPlugin,
        component.CompanionArchive,
    ),
    "Rule": (rules.Rule,),
    "Run profile": (run_line.RunProfile,),
    "Release": (plan.ReleasePlan, plan.ReleaseEntry),
    "Cluster": (
        cluster.ClusterSettings,
        cluster.Partition,
        cluster.Qos,
        cluster.Account,
        cluster.Person,
        cluster.Priorities,
        cluster.Reservation,
        cluster.Timeouts,
        cluster.Rest,
        cluster.SwitchTopology,
        service.ClusterService,
        service.ClusterServiceLimits,
        service.SiteServer,
        service.ClusterOidc,
        cluster.Ship,
        cluster.RolloutSettings,
    ),
}
# What exit codes mean where the general table says too little. A new command needs its line here.
EXIT = {
    "backup": "Exit code 1: the cluster can't give it; 2: the file is there already.",
    "build": "Exit code 1: an image failed or is blocked, or the push was refused.",
    "bundle create": "Exit code 1: something of the release is refused; 2: no release or key; 3: no room, no wheels.",
    "bundle install": "Exit code 1: the bundle is refused, nothing was changed; 2: no bundle, or no key; 3: no engine.",
    "config": "Exit code 2: a setting is unknown or wrong.",
    "demo": "Exit code 1: the image does not run or does not train; 3: it was not built.",
    "deploy": "Exit code 1: a node was not changed or takes no jobs, the others are done; with `--plan`: is not fit.",
    "doctor": "Exit code 1: something is wrong; 0: nothing known was found, which is not the same as healthy.",
    "down": "Exit code 1: jobs run, another deploy runs, or a node could not be changed; 2: nobody confirmed `--data`.",
    "explain": "Exit code 1: a rule is broken, or the image does not fit a node.",
    "export": "Exit code 1: the engine can't give the image; 2: the file is there; 3: no image or no mksquashfs.",
    "first-light": "Exit code 1: a step failed; 2: the file is there; 130: interrupted, the file has what was done.",
    "init": "Exit code 0 also when every file is there already.",
    "local cut": "Exit code 1: the node does not run; 2: no such node; 3: this folder has no virtual cluster.",
    "local down": "Exit code 0 also when nothing is there.",
    "local heal": "Exit code 1: the node does not answer; 2: no such node; 3: this folder has no virtual cluster.",
    "local models": "Exit code 2: a model's file is wrong.",
    "local reboot": "Exit code 1: the node does not answer; 2: no such node; 3: this folder has no virtual cluster.",
    "local status": "Exit code 1: a node or its engine does not answer; 3: this folder has no virtual cluster.",
    "local up": "Exit code 1: a node does not answer, or the engine refused something; 2: an unknown model or fault.",
    "lock": "Exit code 1: apt or pip can't resolve something, or apt has only what a rule refuses.",
    "outdated": "Exit code 0 also when something is newer; 1: a mirror doesn't answer; 2: there is no lock.",
    "logs": "The exit code is that of `docker logs` there; 1: no such container, or ssh fails; 2: no such node.",
    "job cancel": "Exit code 1: Slurm refuses it; 2: no such job.",
    "job logs": "Exit code 1: there is no log yet; 2: no such job.",
    "job requeue": "Exit code 1: Slurm refuses it; 2: no such job.",
    "job show": "Exit code 1: the job failed; 2: no such job.",
    "jobs": "Exit code 1: Slurm doesn't answer.",
    "probe": "Exit code 1: a node could not be read, the others were; 2: the inventory or a recording is wrong.",
    "rebuild": "Exit code 1: a file differs, the build failed, or something is refused; 2: no digest, or no key.",
    "recipes": "Exit code 2: no such recipe, or one is wrong.",
    "release keygen": "Exit code 2: a file is there already, or there is no password.",
    "release promote": "Exit code 1: something is refused, or the report proves nothing; nothing was moved.",
    "release publish": "Exit code 1: an image failed or a tag is taken; no tag was made; 2: a file or key is wrong.",
    "release verify": "Exit code 1: something is refused; 2: there is no such release.",
    "render": "Exit code 2: something is wrong with stack, NIC, overlay, rules or lock.",
    "replay": "Exit code 1: something is concluded otherwise; 2: no file of `first-light`.",
    "report": "Exit code 1: with `--compare`, something fails in B that didn't in A; 2: no report there.",
    "restore": "Exit code 1: jobs run, a deploy runs, or the cluster refused it; 2: no backup, or nobody confirmed.",
    "rollback": "Exit code 1: a node did not go back; 2: there is no release to go back to.",
    "rotate-keys": "Exit code 1: a node doesn't have the new keys, and is named; 2: the secrets can't be changed.",
    "run": "The exit code is that of the command; 3: no image, or no GPU although `--gpus` asks for one.",
    "shell": "The exit code is that of the shell; 1: no such container there; 3: no image, or no GPU to give it.",
    "scale": "Exit code 1: a job failed, and no larger one was run; 2: wrong input, or too many nodes; 130: Ctrl-C.",
    "serve": "Exit code 1: vLLM doesn't start, or the address is taken; 2: no such model; 3: no image, no vLLM.",
    "size": "Exit code 1: the model doesn't fit; 2: no such model, GPU or layout.",
    "stacks": "Exit code 2: a stack or NIC file is wrong.",
    "status": "Exit code 1: something is not in order, and named.",
    "token": "Exit code 1: the control node isn't reached, or Slurm makes no token; 2: no such user.",
    "submit": "Exit code 1: Slurm refuses the job, or with `--follow`, it failed; 2: wrong input, or too many nodes.",
    "verify": "Exit code 1: a check failed, or could not be made; 75: all workers were busy with jobs.",
}

KINDS = {
    **{"str": "Line", "int": "number", "float": "number", "bool": "true or false", "GfxTargets": "list of Gfx"},
    **dict.fromkeys(("Count", "Some", "Limit", "Port"), "number"),
    **dict.fromkeys(("Wave", "Budget"), "number or percentage"),
    "Nodes": "list of Hostlist",
}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads)]
    lines += [["---"] * len(lines[0]), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    root: Any = typer.main.get_command(app)
    context = root.make_context("rocstack", ["stacks"], resilient_parsing=True)
    out = ["## Commands\n", help_text(root.help), "\nOptions of `rocstack` itself:\n", options(root, context)]
    for name, command, sub in leaves(root, context):
        usage = " ".join(["rocstack", name, *command.collect_usage_pieces(sub)])
        if command.context_settings.get("allow_extra_args"):
            usage += " [-- COMMAND...]"
        example = (command.epilog or "").removeprefix("Example: ")
        out += [f"### rocstack {name}\n", help_text(command.help), f"\n```text\n{usage}\n```\n", options(command, sub)]
        out += [EXIT[name] + "\n", f"```sh\n{example}\n```\n" if example else ""]
    return "\n".join(filter(None, out))


def leaves(group: Any, context: Any, above: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every command by its whole name, such as `local up`."""
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        sub = type(context)(command, info_name=name, parent=context)
        whole = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            yield from leaves(command, sub, whole)
        else:
            yield whole, command, sub


def help_text(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())


def options(command: Any, context: Any) -> str:
    records = filter(None, (param.get_help_record(context) for param in command.get_params(context)))  # None is hidden
    return table(("option", "what it does"), ((code(first), " ".join(text.split())) for first, text in records))


def exit_rows() -> dict[int, str]:
    classes = (errors.CheckFailed, errors.BadInput, errors.Missing)
    own = {c.exit_code: inspect.cleandoc(c.__doc__ or "") for c in classes}
    return {0: "Done.", **own, 130: "Stopped by Ctrl-C or SIGTERM; the next run goes on from the cache."}


def exit_codes() -> str:
    rows = ((str(number), text) for number, text in exit_rows().items())
    return "## Exit codes\n\n" + table(("code", "meaning"), rows)


def all_settings() -> str:
    rows = []
    for name, info in settings.Settings.model_fields.items():
        shown, variable = info.default, settings.PREFIX + name.upper()
        if isinstance(shown, BaseModel):  # a mapping: rocstack.yml only
            shown, variable = shown.model_dump_json(exclude_defaults=True), ""
        rows.append((code(name), code(variable), code(str(shown)), info.description or ""))
    text = "A flag wins over its variable, that over `rocstack.yml` in the current folder, that over the default.\n"
    return "## Settings\n\n" + text + "\n" + table(("setting", "variable", "default", "what it is"), rows)


def comments(model: type) -> dict[str, tuple[str, str]]:
    """Field -> (annotation, comment behind it), from the source."""
    source = inspect.getsource(model)
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = re.search(r"  # (.*)$", lines[(node.end_lineno or node.lineno) - 1])
            found[node.target.id] = (kind(node.annotation), comment[1] if comment else "")
    return found


def own_comments(model: type) -> dict[str, tuple[str, str]]:
    return comments(model) if issubclass(model, Value) and model is not Value else {}


def kind(node: ast.expr) -> str:
    """An annotation in words: tuple[Gfx, ...] -> list of Gfx."""
    match node:
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return kind(left)
        case ast.BinOp(left=left, right=right):
            return f"{kind(left)} or {kind(right)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[item, *_])):
            return kind(item)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"map of {kind(key)} to {kind(value)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()])):
            return f"list of {kind(item)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=items)):
            return f"{len(items)} of {kind(items[0])}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            items = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return " or ".join(ast.unparse(item).strip("'") or "nothing" for item in items)
    return KINDS.get(ast.unparse(node), ast.unparse(node))


def default(info: Any) -> str:
    if info.default is PydanticUndefined:
        return "required"
    value = info.default
    if value is None or value in ((), {}, "") or isinstance(value, BaseModel):
        return ""
    return code(", ".join(value) if isinstance(value, tuple | dict) else str(value))


def models() -> str:
    out = ["## Files\n"]
    for title, kinds in MODELS.items():
        for model in kinds:
            notes = {name: note for each in reversed(model.__mro__) for name, note in own_comments(each).items()}
            about = " ".join(inspect.cleandoc(model.__doc__ or "").split()) if "__doc__" in vars(model) else ""
            rows = [
                (code(name), notes[name][0], default(info), info.description or notes[name][1])
                for name, info in model.model_fields.items()
                if name not in ("code",) and not (name == "name" and model in (stack.Stack, *heads()))
            ]
            name = title if model is kinds[0] else f"{title}: {model.__name__}"
            out += [
                f"### {name}\n",
                about + "\n" if about else "",
                table(("field", "kind", "default", "what it is"), rows),
            ]
    operations = ", ".join(code(op) for op in overlay.OPERATIONS)
    lists = ", ".join(code(name) for name in component.LISTS)
    out.append(
        "### Overlay\n\nKeys of `overlay.yml` are `<component>_<list>_<operation>`; in a component's name '_' stands "
        f"for '-'. Lists: {lists}. Operations: {operations}. Values are lists of Package.\n"
    )
    return "\n".join(filter(None, out))


def heads() -> tuple[type[BaseModel], ...]:
    return (component.Component, component.NicProfile)


def kinds_of_text() -> str:
    """The checked strings of `words`, with the meaning that error messages use."""
    found = re.findall(r'^(\w+) = Annotated\[\s*str,\s*word\(r?"(.*?)", "(.*?)"\)', inspect.getsource(words), re.M)
    rows = [(name, meaning.replace("\\\\", "\\"), code(pattern)) for name, pattern, meaning in found]
    rows += [
        ("Method", ", ".join(get_args(stack.Method)), ""),
        ("Role", ", ".join(component.ROLES), ""),
        (
            "Condition",
            "a version specifier, a word, `!word` (anything else), or a list of these of which one must match",
            "",
        ),
        ("Size", "a number with b, k, m or g behind it", ""),
        (
            "Ulimits",
            f"`auto` ({', '.join(ulimit.AUTO)}), or a map of limit to SOFT[:HARD], -1 (unlimited) or `auto`",
            "",
        ),
    ]
    return "### Kinds of text\n\n" + table(("kind", "meaning", "pattern"), rows)


def all_labels() -> str:
    """The labels of a real rendering; what differs from build to build is shown as its kind."""
    templates = paths.templates()
    seen = {
        key: "..."
        for file in sorted(templates.rglob("*.j2"))
        for key in re.findall(r"^fact ([a-z0-9.-]+) ", file.read_text(), re.M)
    }
    parts, nics = component.library("components"), component.library("nic")
    read = "nic.kernel-abi nic.modules nic.pci nic.provider nic.provider-sha256 nic.provider-version nic.providers"
    seen |= dict.fromkeys([*read.split(), "verbs.private-abi"], "...")
    chosen = resolve.resolve(stack.load("debian-13"), "broadcom", parts, nics, overlay.Overlay())
    base = BaseImage(reference="<reference of the base>", digest="<digest of the base>", how="registry")
    manifest = {"facts": seen, "versions": {"<name>": "<version, read in the image>"}}
    found = labels.labels(chosen, "worker", base, Lock(stack="debian-13", definition="0" * 64), manifest, "0" * 64)
    rows = [
        (code(key), code(re.sub(r"^[0-9a-f]{64}$", "<sha256>", value)), origin(key, seen))
        for key, value in found.items()
    ]
    text = "As the worker image of `debian-13` for `broadcom` carries them; `io.rocstack.control` is the control "
    text += "image's. `docker image inspect` shows them.\n"
    return "## Labels\n\n" + text + "\n" + table(("label", "value", "from"), rows)


def origin(key: str, measured: dict[str, str]) -> str:
    name = key.removeprefix(labels.OWN)
    if name in measured or name.startswith("component."):
        return "measured in the image"
    return {"content": "context, base, packages and wheels", "lock": "the lock, if there is one"}.get(name, "the build")


def checks() -> str:
    """What the acceptance suite proves, and what measured values must reach."""
    about = (
        f"Of `rocstack verify`, by level; {ITEMS} kinds of test that any training cluster must pass have a number. "
        "Nodes are compared with most of them; one alone is measured. The source is that of the demand; thresholds "
        "by hardware have their own, below.\n"
    )
    rows = [
        (
            f"{each.level}{', core' if each.core else ''}",
            code(each.name),
            str(each.item or ""),
            each.title,
            each.cannot,
            code(", ".join(each.needs)),
            each.source or "ours",
        )
        for each in suite.listed()
    ]
    bounds = [
        (code(name), each.text(quantity.unit), each.gpu, each.nic, " to ".join(map(str, each.nodes or ())), each.source)
        for name, quantity in thresholds.load().items()
        for each in quantity.thresholds
    ]
    heads = ("level", "check", "no.", "what is so where it passes", "what it can't tell", "needs", "source")
    return "\n".join(
        (
            "## Checks\n",
            about,
            table(heads, rows),
            "### Thresholds\n",
            "The first holds whose patterns are found in the node's GPUs and NICs; else a value is just measured.\n",
            table(("quantity", "wanted", "GPU", "NIC", "nodes", "source"), bounds),
        )
    )


def findings() -> str:
    """What doctor, precheck and the rules can find, and what to do about it."""
    kinds = {
        "log": "a log",
        "deploy": "before a deploy",
        "node": "nodes",
        "rules": "a stack",
        "size": "a layout of a model",
        "status": "a deployed cluster",
    }
    rows = []
    for file in sorted((paths.images() / "findings").glob("*.yml")):
        entries: Iterable[finding_texts.Entry]
        entries = (
            rules.load() if file.name == finding_texts.RULES else finding_texts.read(file, finding_texts.TextEntry)
        )
        for each in entries:
            what = each.cause if file.name == finding_texts.RULES else each.what
            rows.append((code(each.code), each.level, kinds[file.stem.partition("-")[0]], what, each.next))
    about = (
        "By code, from `images/findings/*.yml`. What stands in braces is filled in. `source` and cause are shown too.\n"
    )
    return "## Findings\n\n" + about + "\n" + table(("code", "level", "found in", "what", "next step"), sorted(rows))


def error_table() -> str:
    """What a command can refuse, or fail at, and what to do about it."""
    rows = [
        (code(entry.get("code", name)), entry["what"], entry.get("cause", ""), entry.get("next", ""))
        for name, entry in errors.error_texts().items()
    ]
    about = (
        "By code, from `images/errors/*.yml`. What stands in braces is filled in. With `--json`, errors have the same"
        " codes. Exit code 1: something failed; 2: the input is wrong; 3: this machine lacks something.\n"
    )
    return "## Errors\n\n" + about + "\n" + table(("code", "what", "cause", "next step"), sorted(rows))


def trainer() -> str:
    """Every setting of a training run, and the table by which gradients are compressed."""
    about = "As the sections of its TOML file; `--section.key=value` on the command line goes before.\n"
    out = ["## The trainer's settings\n", about]
    for section, model in get_type_hints(Config).items():
        notes = comments(model)
        rows = []
        for field in dataclasses.fields(model):
            sort, note = notes[field.name]
            shown = str(field.default).lower() if sort == "bool" else str(field.default)
            rows.append((code(field.name), {"Line": "text", "float": "number"}.get(sort, sort), code(shown), note))
        text = " ".join(inspect.cleandoc(model.__doc__ or "").split())
        out += [f"### [{section}]\n", "" if text.startswith(f"{model.__name__}(") else text + "\n"]
        out.append(table(("setting", "kind", "default", "what it is"), rows))
    source = ast.parse((paths.images() / "trainer/rocstack_trainer/gradients/topology.py").read_text())
    codecs = [
        [str(value.value) for value in call.args[1:] if isinstance(value, ast.Constant)]
        for call in ast.walk(source)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Row"
    ]
    out += ["### How gradients are compressed\n", "`parallel.compress=auto` goes by the slowest link between nodes:\n"]
    out.append(table(("link", "codec", "why"), ([link, code(codec), why] for codec, link, why in codecs)))
    return "\n".join(filter(None, out))


def render() -> str:
    intro = "# Reference\n\nMade from the code by `python docs/generate.py`; don't edit it.\n"
    parts = (
        intro,
        commands(),
        exit_codes(),
        all_settings(),
        models(),
        kinds_of_text(),
        all_labels(),
        checks(),
        findings(),
        error_table(),
        trainer(),
    )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def topology(name: str = "mi300x-thor2") -> str:
    """What `rocstack probe` draws of a virtual node of this model, as a picture."""
    recording = tree.record(machine.expand(node_model.load(name)))
    lines = diagram.draw(recordings.profiles([recording])[0]).splitlines()
    width, height = 8 * max(map(len, lines)) + 24, 17 * len(lines) + 22
    texts = [
        f'  <text x="12" y="{24 + 17 * i}" xml:space="preserve">{escape(line)}</text>' for i, line in enumerate(lines)
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
            f'  aria-label="{escape(lines[0])}">',
            "  <style>",
            "    rect { fill: #0d1117 }",
            "    text { fill: #e6edf3; font: 13px 'DejaVu Sans Mono', Menlo, Consolas, monospace }",
            "  </style>",
            f'  <rect width="{width}" height="{height}" rx="8"/>',
            *texts,
            "</svg>\n",
        )
    )


def man_pages() -> Iterator[tuple[Path, str]]:
    root: Any = typer.main.get_command(app)
    context = root.make_context("rocstack", ["stacks"], resilient_parsing=True)

    def records(command: Any, sub: Any) -> tuple[tuple[str, str], ...]:
        return tuple(filter(None, (param.get_help_record(sub) for param in command.get_params(sub))))

    def page(name: str, command: Any, sub: Any) -> manual.ManCommand:
        group = hasattr(command, "commands")
        other = command.context_settings.get("allow_extra_args") and not group
        return manual.ManCommand(
            name=name,
            summary=help_text(command.help).partition(". ")[0].rstrip("."),
            usage=" ".join(command.collect_usage_pieces(sub)) + (" [-- COMMAND...]" if other else ""),
            text=help_text(command.help),
            options=records(command, sub),
            exits="" if group else EXIT[name],
            example=(command.epilog or "").removeprefix("Example: "),
        )

    own = tuple(page(*each) for each in leaves(root, context))
    groups = tuple(
        page(name, command, type(context)(command, info_name=name, parent=context, **command.context_settings))
        for name, command in root.commands.items()
        if hasattr(command, "commands")
    )
    exits = tuple((str(number), text) for number, text in exit_rows().items())
    files = (
        ("rocstack.yml", "Settings of the current folder; `rocstack init` writes one with comments."),
        ("inventory.yml", "The nodes: an Ansible inventory with the groups control and workers."),
        ("rocstack.lock", "The versions and sha256 that `rocstack lock` pinned."),
        (".rocstack/", "Build contexts, logs and reports."),
    )
    found = manual.pages(help_text(root.help), records(root, context), own, groups, exits, files)
    yield from ((MAN / name, text) for name, text in found.items())


def main(argv: list[str]) -> int:
    texts = {FILE: render(), SCHEMA: schema.text(profiles.Profiles), TOPOLOGY: topology(), **dict(man_pages())}
    texts[REPORT_SCHEMA] = artifacts.schema_text()
    stale = [file for file in MAN.glob("*") if file not in texts]
    if argv == ["--check"]:
        wrong = [file for file, text in texts.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
        for file in wrong:
            sys.stderr.write(f"{file.name} is not what the code says: run `python docs/generate.py`\n")
        for file in stale:
            sys.stderr.write(f"{file.name} is of a command that is gone: run `python docs/generate.py`\n")
        return 1 if wrong or stale else 0
    if argv:
        sys.stderr.write("usage: python docs/generate.py [--check]\n")
        return 2
    MAN.mkdir(exist_ok=True)
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    for file in stale:
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
