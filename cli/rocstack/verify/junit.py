"""A run as JUnit XML: a test case for each check on each node."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from rocstack.image.build_report import xml_text
from rocstack.verify import verdict
from rocstack.verify.result import BAD, CheckResult, Measure, Run

CLUSTER = "cluster"  # the name of the case of a check on the cluster as a whole


def junit(run: Run) -> str:
    """A suite for each level, in it a class for each check. Characters that XML can't hold are left out."""
    root = ET.Element("testsuites", name=f"rocstack verify {xml_text(run.cluster)}", time=f"{run.seconds:.1f}")
    for level in sorted({result.check.level for result in run.results}):
        suite = ET.SubElement(root, "testsuite", name=f"level {level}", timestamp=run.when.removesuffix("Z"))
        results = [result for result in run.results if result.check.level == level]
        for result in results:
            _cases(suite, result)
        suite.set("time", f"{sum(result.seconds for result in results):.3f}")
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(suite: ET.Element, result: CheckResult) -> None:
    mine = verdict.by_node(result)
    states = verdict.states(result)
    each = result.seconds / len(states)
    for node, state in states.items():
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"level{result.check.level}.{result.check.name}",
            name=xml_text(node or CLUSTER),
            time=f"{each:.3f}",
        )
        meant = [measure for measure in mine.get(node, ()) if measure.state == state]
        why = "; ".join(dict.fromkeys(measure.why for measure in meant if measure.why)) or result.why
        if state in BAD:
            tag = ET.SubElement(case, "error" if state == "error" else "failure", message=xml_text(why))
            tag.text = xml_text("\n".join(filter(None, _said(result, meant))))
        elif state == "skipped":
            ET.SubElement(case, "skipped", message=xml_text(why))
        elif values := [_value(measure) for measure in meant if measure.value is not None]:
            ET.SubElement(case, "system-out").text = xml_text("\n".join(values))


def _said(result: CheckResult, measures: list[Measure]) -> list[str]:
    about = [f"not so: {result.check.title}", f"cause: {result.check.cause}", f"next: {result.check.next_step}"]
    return [*about, *(_value(measure) for measure in measures), *(measure.evidence for measure in measures)]


def _value(measure: Measure) -> str:
    """ "n2: 31.5 GB/s (at least 304 GB/s; virtual)"."""
    value = "" if measure.value is None else f"{measure.value} {measure.unit}".strip()
    notes = "; ".join(filter(None, (measure.wanted, "virtual" if measure.virtual else "")))
    pair = f"{measure.node} to {measure.peer}: " if measure.peer else ""
    return f"{pair}{value}{f' ({notes})' if notes else ''}".strip()
