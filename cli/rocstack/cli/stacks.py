"""`rocstack stacks` and `rocstack explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rocstack.cli import findings, options
from rocstack.cli.ui import escape, out, print_json, say, table
from rocstack.steps.explain import ExplainOptions, StacksOptions

if TYPE_CHECKING:
    from rocstack.steps.explain import Explanation, ImageFit


def register(app: typer.Typer) -> None:
    options.add(app, "stacks", stacks, "rocstack stacks")
    options.add(app, "explain", explain, "rocstack explain --stack rocm-7.2-ubuntu-24.04 --gfx gfx950")


def stacks(choice: StacksOptions, json: options.Json = False) -> None:
    """List the stacks and NIC profiles."""
    from rocstack.steps.explain import stacks as step

    known = step(choice)
    if json:
        print_json(known.to_dict())
        return
    table(("STACK", "OS", "GFX", "ABOUT"), [(s.name, s.base.os, " ".join(s.gfx), s.about) for s in known.stacks])
    out.print()
    table(("NIC", "WAYS", "ABOUT"), [(n.name, " ".join(n.ways), n.about) for n in known.nics])


def explain(choice: ExplainOptions, json: options.Json = False) -> None:
    """Explain why a combination is allowed or refused, rule by rule; with --image, why it fits a node or doesn't."""
    from rocstack.steps.explain import Explanation
    from rocstack.steps.explain import explain as step

    result = step(choice, say)
    if json:
        print_json(result.to_dict())
    elif isinstance(result, Explanation):
        _show(result)
    else:
        _show_fit(result)
    if not result.ok:
        raise typer.Exit(1)


def _show(result: Explanation) -> None:
    for verdict in result.verdicts:
        if verdict.state == "does not apply":
            continue
        findings.show(verdict.finding, label=verdict.state)
    idle, broken = (sum(v.state == state for v in result.verdicts) for state in ("does not apply", "broken"))
    for fact in result.stack_facts:
        out.print(f"[bold]fact[/] {escape(fact.says)}")
        findings.paragraph("source", fact.source)
    out.print(f"{'allowed' if result.ok else 'refused'}: {broken} broken, {idle} rules do not apply")


def _show_fit(fit: ImageFit) -> None:
    from rocstack.base import finding_texts
    from rocstack.doctor.diagnosis import of_gate

    texts = finding_texts.table()
    for verdict in fit.verdicts:
        if finding := of_gate(verdict, texts):
            virtual = f", virtual {verdict.virtual}" if verdict.virtual else ""
            findings.show(finding, verdict.node + virtual, label=verdict.result)
        else:
            out.print(f"[green]{verdict.result}[/]: {escape(verdict.sentence)}")
