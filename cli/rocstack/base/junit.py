"""JUnit XML, which CI systems read: of builds and of verify runs."""

import re
from collections.abc import Iterable
from typing import Literal

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

_RESULTS = {"failure": Failure, "error": Error, "skipped": Skipped}
# Colours of a log, and characters that XML can't hold.
_NOT_XML = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def case(
    classname: str,
    name: str,
    seconds: float | None = None,
    *,
    result: Literal["failure", "error", "skipped"] | None = None,
    message: str = "",
    text: str = "",
    output: str = "",
) -> TestCase:
    """`message` and `text` belong to the result; `output` is what a case that passed printed."""
    made = TestCase(_clean(name), _clean(classname), None if seconds is None else round(seconds, 3))
    if result:
        made.result = [_RESULTS[result](_clean(message))]
        if text:
            made.result[0].text = _clean(text)
    if output:
        made.system_out = _clean(output)
    return made


def suite(name: str, cases: Iterable[TestCase], *, seconds: float, timestamp: str = "") -> TestSuite:
    made = TestSuite(_clean(name))
    made.add_testcases(list(cases))
    made.update_statistics()  # type: ignore[no-untyped-call]
    made.time = round(seconds, 3)
    if timestamp:
        made.timestamp = _clean(timestamp)
    return made


def report(name: str, suites: Iterable[TestSuite], *, seconds: float) -> str:
    made = JUnitXml(_clean(name))
    for each in suites:
        made.add_testsuite(each)
    made.update_statistics()  # type: ignore[no-untyped-call]
    made.time = round(seconds, 3)
    return text_of(made)


def text_of(element: JUnitXml | TestSuite) -> str:
    return str(element.tostring().decode()) + "\n"  # type: ignore[no-untyped-call]


def _clean(text: str) -> str:
    return _NOT_XML.sub("", text)
