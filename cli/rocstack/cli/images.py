"""`rocstack build`, `render`, `lock`, `stacks` and `explain`."""

import sys
from typing import TYPE_CHECKING

from rocstack.base.text import count, listed
from rocstack.cli.command import Answer, asked_password, command
from rocstack.cli.ui import escape, mb, out, paragraph, say, show_finding, table
from rocstack.steps.job_options import ExportOptions
from rocstack.steps.options import (
    BuildOptions,
    ExplainOptions,
    LockOptions,
    OutdatedOptions,
    RenderOptions,
    StacksOptions,
)

if TYPE_CHECKING:
    from rocstack.stack.newer import Newer


@command("rocstack build --nic broadcom --push registry.example.com:5000/hpc")
def build(choice: BuildOptions) -> Answer:
    """Build, test and label the worker and control images of a stack for a NIC."""
    from rocstack.cli.build_display import BuildDisplay, show
    from rocstack.steps import build as steps

    with BuildDisplay() as events:
        report = steps.build(choice, events)
    yield report
    show(report, events.folder)


@command("rocstack render --nic broadcom --to ./context")
def render(choice: RenderOptions) -> Answer:
    """Print the Dockerfile, or write the whole build context. Builds nothing and needs no engine."""
    from rocstack.steps import explain as steps

    result = steps.render(choice, say)
    yield result
    if result.changes is not None:
        sys.stdout.write(result.changes or "nothing changed since the last build\n")
    elif result.folder:
        out.say(f"{len(result.context.files)} files in {result.folder}")
        say(f"build it by hand: docker buildx build --target worker {result.folder}")
    else:
        sys.stdout.write(result.dockerfile)


@command("rocstack lock --stack debian-13")
def lock(choice: LockOptions) -> Answer:
    """Pin every package, wheel and source of a stack by version and sha256, and the base by digest."""
    from rocstack.steps import build as steps

    result = steps.lock(choice, say, asked_password)
    yield result
    if upgrade := result.upgrade:
        for each in upgrade.refused:
            out.say(f"left alone: {each.name} {each.before}{each.after and f', not {each.after}'}: {each.refused}")
        for each in upgrade.changes:
            out.say(f"upgraded: {each.name} {each.before} -> {each.after}")
        out.say(f"{upgrade.file}: {count(len(upgrade.changes), 'version')} changed")
    for change in result.changes:
        out.say(f"{change.what}: {change.locked} -> {change.found}")
    made = result.lock
    out.print(
        f"{result.file}: {len(made.packages)} packages, {len(made.wheels)} wheels, {len(made.sources)} sources, "
        f"base {made.base.digest[:19] if made.base else 'none'}, hash {made.digest()[:12]}"
    )
    if result.signature:
        out.say(f"{result.signature}: its signature")


@command("rocstack outdated --stack debian-13")
def outdated(choice: OutdatedOptions) -> Answer:
    """Show what is newer in a stack's sources than in its lock, and what the rules say of it. Changes nothing."""
    from rocstack.steps import outdated as steps

    result = steps.outdated(choice, say)
    yield result
    rows = [
        (_name(each), each.locked, each.newer or "not looked up", "security" if each.security else "", _said(each))
        for each in result.rows
    ]
    if rows:
        table(("NAME", "LOCKED", "NEWER", "FIX", "RULES"), rows)
    if result.gone:
        out.say(f"in no index any more: {listed(result.gone)}")
    newer = sum(each.newer is not None for each in result.rows)
    unseen = len(result.rows) - newer
    fixes = f"{sum(each.security for each in result.rows)} with security fixes"
    if not result.security:
        fixes = "security fixes not looked up: no security suite among the sources"
    out.say(f"{newer} newer, {fixes}; {unseen} not looked up")
    if any(each.in_base for each in result.rows):
        say(f"some are of the base image {result.base}: a new lock has them once that image is a newer one")


def _name(row: "Newer") -> str:
    more = len(row.packages) - 1 if row.kind == "package" else 0
    return f"{row.name} (and {more} more)" if more > 0 else row.name


def _said(row: "Newer") -> str:
    if row.rules == "not looked up":
        return row.why
    allowed = f"; {row.allowed} is allowed" if row.rules == "refused" and row.allowed else ""
    return f"{row.rules}{': ' if row.why else ''}{row.why}{allowed}"


@command("rocstack stacks")
def stacks(choice: StacksOptions) -> Answer:
    """List the stacks and NIC profiles."""
    from rocstack.stack.choice import framework
    from rocstack.steps import explain as steps

    known = steps.stacks(choice)
    yield known
    rows = [(s.name, s.base.os, " ".join(s.gfx), framework(s), s.about) for s in known.stacks]
    table(("STACK", "OS", "GFX", "TRAINS WITH", "ABOUT"), rows)
    out.print()
    table(("NIC", "WAYS", "ABOUT"), [(n.name, " ".join(n.ways), n.about) for n in known.nics])


@command("rocstack explain --stack rocm-7.2-ubuntu-24.04 --gfx gfx950")
def explain(choice: ExplainOptions) -> Answer:
    """Explain why a combination is allowed or refused, rule by rule; with --image, why it fits a node or doesn't."""
    from rocstack.base import finding_texts
    from rocstack.doctor.diagnosis import of_gate
    from rocstack.steps import explain as steps

    result = steps.explain(choice, say)
    yield result
    if isinstance(result, steps.ImageFit):
        texts = finding_texts.table()
        for fit in result.verdicts:
            if finding := of_gate(fit, texts):
                show_finding(finding, fit.node + (f", virtual {fit.virtual}" if fit.virtual else ""), label=fit.result)
            else:
                out.print(f"[green]{fit.result}[/]: {escape(fit.sentence)}")
        for library, targets in result.code:
            out.say(f"{library} has code for {', '.join(targets) or 'no GPU'}")
        if result.lacks:
            out.say(f"the nodes' GPUs can't train with it: it has {' and '.join(result.lacks)}")
        return
    idle, broken = sum(v.state == "does not apply" for v in result.verdicts), sum(v.refuses for v in result.verdicts)
    for verdict in result.verdicts:
        if verdict.state != "does not apply":
            told = verdict.state == "broken" and not verdict.refuses
            show_finding(verdict.finding, label=verdict.rule.level if told else verdict.state)
    for name, target in result.targets.items():
        out.print(f"[bold]target[/] {escape(f'{name}: {target.sentence}')}")
        paragraph("source", target.source)
    for fact in result.stack.facts:
        out.print(f"[bold]fact[/] {escape(fact.says)}")
        paragraph("source", fact.source)
    for each in result.fits:
        out.say(f"{each.stack.name}: {'has ' + ' and '.join(each.lacks) if each.lacks else 'suits the nodes'}")
    if result.why:
        out.say(result.why)
    if result.lacks:
        out.say(f"stack {result.stack.name} has {' and '.join(result.lacks)}")
    out.print(f"{'allowed' if result.ok else 'refused'}: {broken} broken, {idle} rules do not apply")


@command("rocstack export --format squashfs -o worker.sqsh")
def export(choice: ExportOptions) -> Answer:
    """Write an image as one squashfs file (enroot, pyxis), an OCI layout (podman, umoci) or a SIF file (Apptainer)."""
    from rocstack.steps import export as steps

    done = steps.export(choice, say)
    yield done
    out.say(f"{done.path}: {mb(done.size)}, with {mb(done.content)} of files")
