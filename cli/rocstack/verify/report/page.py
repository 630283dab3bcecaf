"""The whole report as one HTML file that needs nothing else: no script, no font, no network."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rocstack.base import paths
from rocstack.base.levels import LEVELS
from rocstack.base.text import count
from rocstack.verify import compare, outliers, verdict
from rocstack.verify.report import charts, drawings, failures, matrix, topology
from rocstack.verify.result import Run
from rocstack.verify.verdict import NodeVerdict, RunVerdict

ROWS = 100  # of a table of nodes
WORDS = {"passed": "passed", "measured": "measured", "failed": "failed", "error": "could not run", "skipped": "skipped"}


def html(run: Run, previous: Run | None = None) -> str:
    """`previous` is compared with. Whatever came from nodes is escaped."""
    judged, drawn = verdict.judge(run), drawings.read(run)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            run=run,
            verdict=judged,
            mood=_mood(run, judged),
            when=_when(run.when),
            counts=_counts(run),
            levels=LEVELS,
            models=sorted({node.virtual for node in run.nodes if node.virtual}),
            failures=failures.failures(run),
            nodes=_nodes(judged)[:ROWS],
            nodes_unsaid=max(len(_nodes(judged)) - ROWS, 0),
            passing=verdict.folded(judged.names("passing"), 2000),
            slow=[(each.check, outliers.text(each)) for each in outliers.find(run)],
            table=matrix.table(run),
            kinds=matrix.kinds(run),
            heatmaps=[
                (result, map)
                for result, each in drawn.matrices
                for quantity in each.quantities
                if (map := charts.heatmap(quantity))
            ],
            charts=[(result, chart) for result, each in drawn.curves if (chart := charts.chart(each))],
            pictures=[(result, each) for result, drawing in drawn.topologies for each in topology.pictures(drawing)],
            unreadable=drawn.unreadable,
            comparison=compare.compare(previous, run) if previous else None,
            previous=previous,
            fabrics=_alike(run.fabric),
            hardware=_hardware(run),
            words=WORDS,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(paths.templates() / "report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"when": _when, "number": matrix.number, "count": count, "words": _words}
    environment.globals |= {"marks": matrix.MARKS, "moods": {"good": "✓", "bad": "✗", "odd": "!"}}
    return environment


def _words(text: str) -> Markup:
    """Escaped; what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _mood(run: Run, judged: RunVerdict) -> str:
    """good, bad, or odd: nothing fails, but not every node was judged."""
    if judged.cluster or judged.names("failing") or not run.complete:
        return "bad"
    return "odd" if len(judged.names("passing")) < len(run.nodes) or not run.nodes else "good"


def _when(text: str) -> str:
    """20 Nov 2026, 23:31 UTC."""
    try:
        return f"{datetime.fromisoformat(text):%-d %b %Y, %H:%M} UTC"
    except ValueError:
        return text


def _counts(run: Run) -> list[tuple[str, int]]:
    states: Counter[str] = Counter(result.state for result in run.results)
    return [(state, states[state]) for state in WORDS if states[state]]


def _nodes(judged: RunVerdict) -> list[NodeVerdict]:
    """Those of which there is something to say."""
    order = ("failing", "absent", "not judged")
    return sorted((each for each in judged.nodes if each.state in order), key=lambda each: order.index(each.state))


def _alike(values: Mapping[str, Mapping[str, str]]) -> list[tuple[str, dict[str, str]]]:
    """Nodes with the same values together."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for node, own in values.items():
        groups[tuple(sorted(own.items()))].append(node)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(_label(names), dict(own)) for own, names in ordered[:ROWS]]


def _hardware(run: Run) -> list[tuple[str, str, str]]:
    """(nodes, what they are made of, their node model), nodes that are alike together."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in run.nodes:
        model = node.model or ("unknown: the node is absent" if node.absent else "no GPU and no known NIC")
        groups[model, node.virtual or ""].append(node.name)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(_label(names), model, virtual) for (model, virtual), names in ordered[:ROWS]]


def _label(names: Iterable[str]) -> str:
    every = list(names)
    listed = verdict.folded(every, 120)
    return listed if len(every) < 3 else f"{count(len(every), 'node')}: {listed}"
