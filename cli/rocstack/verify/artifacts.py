"""The files of a run: report.json, and what is made of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from junitparser import TestCase

from rocstack.base import junit
from rocstack.edge import files
from rocstack.probe import schema as profile_schema
from rocstack.verify import outliers, result, verdict
from rocstack.verify.report import page
from rocstack.verify.result import BAD, REPORT, CheckResult, Measure, Run

SCHEMA, JUNIT, HTML = "report.schema.json", "junit.xml", "report.html"
PASSING, FAILING, SLOW = "passing_nodes.txt", "failing_nodes.txt", "slow_nodes.txt"
CLUSTER = "cluster"  # the JUnit name of a case about the cluster as a whole
NAMES = (REPORT, SCHEMA, JUNIT, HTML, PASSING, FAILING, SLOW)


def write(run: Run, folder: Path, previous: Run | None = None) -> None:
    """`previous` is what the HTML report compares with. The lists of nodes hold workers, a name on each line; a slow
    one is passing or failing, too, and is only listed where there are nodes enough to tell. The folder may be
    somebody else's: a link in it is replaced, and nothing is written to where it leads."""
    run = run.model_copy(update={"schema_": result.SCHEMA, "slow_nodes": outliers.find(run)})
    judged, slow = verdict.judge(run), {each.node for each in run.slow_nodes if each.sure}
    files.write(folder / REPORT, run.dumps())  # first: all else can be made of it again
    texts = {
        SCHEMA: schema_text(),
        JUNIT: junit_xml(run),
        HTML: page.html(run, previous),
    }
    lists = {
        PASSING: judged.names("passing", "worker"),
        FAILING: judged.names("failing", "worker"),
        SLOW: [node.name for node in run.nodes if "worker" in node.roles and node.name in slow],
    }
    texts |= {file: "".join(f"{name}\n" for name in names) for file, names in lists.items()}
    for name, text in texts.items():
        files.write(folder / name, text)


def schema() -> dict[str, Any]:
    return profile_schema.schema(Run, result, "rocstack report", "serialization")


def schema_text() -> str:
    """The published file's content."""
    return json.dumps(schema(), indent=1) + "\n"


def junit_xml(run: Run) -> str:
    """JUnit XML: a suite for each level, in it a class for each check and a case for each node."""
    suites = []
    for level in sorted({each.check.level for each in run.results}):
        results = [each for each in run.results if each.check.level == level]
        cases = [case for each in results for case in _cases(each)]
        seconds = sum(each.seconds for each in results)
        suites.append(junit.suite(f"level {level}", cases, seconds=seconds, timestamp=run.when.removesuffix("Z")))
    return junit.report(f"rocstack verify {run.cluster}", suites, seconds=run.seconds)


def _cases(result: CheckResult) -> Iterator[TestCase]:
    by_node, states = verdict.by_node(result), verdict.states(result)
    seconds = result.seconds / len(states)
    for node, state in states.items():
        classname, name = f"level{result.check.level}.{result.check.name}", node or CLUSTER
        measures = [measure for measure in by_node.get(node, ()) if measure.state == state]
        why = "; ".join(dict.fromkeys(measure.why for measure in measures if measure.why)) or result.why
        if state in BAD:
            finding, values = result.finding, map(_value, measures)
            lines = [finding.what, f"cause: {finding.cause}", f"next: {finding.next}", *values]
            text = "\n".join(filter(None, (*lines, *(measure.evidence for measure in measures))))
            tag: Literal["error", "failure"] = "error" if state == "error" else "failure"
            yield junit.case(classname, name, seconds, result=tag, message=why, text=text)
        elif state == "skipped":
            yield junit.case(classname, name, seconds, result="skipped", message=why)
        else:
            output = "\n".join(_value(measure) for measure in measures if measure.value is not None)
            yield junit.case(classname, name, seconds, output=output)


def _value(measure: Measure) -> str:
    """ "n2: 31.5 GB/s (at least 304 GB/s; virtual)"."""
    value = "" if measure.value is None else f"{measure.value} {measure.unit}".strip()
    notes = "; ".join(filter(None, (measure.wanted, "virtual" if measure.virtual else "")))
    pair = f"{measure.node} to {measure.peer}: " if measure.peer else ""
    return f"{pair}{value}{f' ({notes})' if notes else ''}".strip()
