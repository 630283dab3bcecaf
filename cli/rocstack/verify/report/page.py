"""The whole report as one HTML file that needs nothing else: no script, no font, no network."""

import re
from collections import Counter
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rocstack.base import paths
from rocstack.base.levels import LEVELS
from rocstack.base.text import count
from rocstack.verify import compare, outliers, verdict
from rocstack.verify.report import charts, drawings, failures, matrix, topology
from rocstack.verify.report.drawings import Drawings
from rocstack.verify.report.topology import Picture
from rocstack.verify.result import CheckResult, Run
from rocstack.verify.verdict import NodeVerdict, RunVerdict

ROWS = 100  # of a table of nodes
WORDS = {"passed": "passed", "measured": "measured", "failed": "failed", "error": "could not run", "skipped": "skipped"}
# What no text for people needs: controls, marks of direction, invisible, half, private and no characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\uf8ff\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U0010ffff]"
)
_UNKNOWN = ("no GPU and no known NIC", "unknown: the node is absent")  # of a node that took part, and of another


def html(run: Run, previous: Run | None = None) -> str:
    """`previous` is compared with. Whatever came from nodes is escaped."""
    judged, drawn = verdict.judge(run), drawings.read(run)
    nodes = _nodes(judged)
    states: Counter[str] = Counter(result.state for result in run.results)
    text = (
        environment()
        .get_template("page.html.j2")
        .render(
            run=run,
            verdict=judged,
            mood=mood(run, judged),
            when=_when(run.when),
            counts=[(state, states[state]) for state in WORDS if states[state]],
            levels=LEVELS,
            models=sorted({node.virtual for node in run.nodes if node.virtual}),
            failures=list(failures.failures(run)),
            nodes=nodes[:ROWS],
            nodes_unsaid=max(len(nodes) - ROWS, 0),
            passing=verdict.folded(judged.names("passing"), 2000),
            slow=[(each.check, outliers.text(each)) for each in outliers.find(run)],
            table=matrix.table(run),
            kinds=list(matrix.kinds(run)),
            heatmaps=[
                (result, map)
                for result, each in drawn.matrix
                for quantity in each.quantities
                if (map := charts.heatmap(quantity))
            ],
            charts=[(result, chart) for result, each in drawn.curves if (chart := charts.chart(each))],
            pictures=_pictures(drawn),
            unreadable=drawn.unreadable,
            comparison=compare.compare(previous, run) if previous else None,
            previous=previous,
            fabrics=_fabrics(run),
            hardware=_hardware(run),
            words=WORDS,
        )
    )
    return _seen(text)


def topology_part(run: Run) -> Markup:
    """The drawings of its nodes alone, to stand in another page; empty where there are none."""
    pictures = _pictures(drawings.read(run))
    if not pictures:
        return Markup("")
    return Markup(_seen(environment().get_template("topology.html.j2").render(run=run, pictures=pictures)))


def environment() -> Environment:
    """Of the templates of the report, and of pictures that are drawn alike."""
    found = Environment(
        loader=FileSystemLoader(paths.templates() / "report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"when": _when, "number": matrix.number, "count": count, "words": words}
    found.globals |= {"marks": matrix.MARKS, "moods": {"good": "✓", "bad": "✗", "odd": "!"}}
    return found


def _seen(text: str) -> str:
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _pictures(drawn: Drawings) -> list[tuple[CheckResult, Picture]]:
    return [(result, each) for result, drawing in drawn.topology for each in topology.pictures(drawing)]


def words(text: str) -> Markup:
    """Escaped; what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def mood(run: Run, judged: RunVerdict) -> str:
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


def _nodes(judged: RunVerdict) -> list[NodeVerdict]:
    """Those of which there is something to say."""
    order = ("failing", "absent", "not judged")
    return sorted((each for each in judged.nodes if each.state in order), key=lambda each: order.index(each.state))


def _fabrics(run: Run) -> list[tuple[str, dict[str, str]]]:
    """(nodes, their environment), nodes that are alike together."""
    groups = matrix.alike((node, tuple(sorted(own.items()))) for node, own in run.fabric.items())
    return [(matrix.label(names), dict(own)) for own, names in groups[:ROWS]]


def _hardware(run: Run) -> list[tuple[str, str, str]]:
    """(nodes, what they are made of, their node model), nodes that are alike together."""
    groups = matrix.alike(
        (node.name, (node.model or _UNKNOWN[bool(node.absent)], node.virtual or "")) for node in run.nodes
    )
    return [(matrix.label(names), model, virtual) for (model, virtual), names in groups[:ROWS]]
