"""The files of a run: report.json, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rocstack.probe import schema as profile_schema
from rocstack.verify import check, junit, outliers, result, verdict
from rocstack.verify.report import page
from rocstack.verify.result import Run

JSON, SCHEMA, JUNIT, HTML = "report.json", "report.schema.json", "junit.xml", "report.html"
PASSING, FAILING, SLOW = "passing_nodes.txt", "failing_nodes.txt", "slow_nodes.txt"
NAMES = (JSON, SCHEMA, JUNIT, HTML, PASSING, FAILING, SLOW)


def write(run: Run, folder: Path, previous: Run | None = None) -> None:
    """`previous` is what the HTML report compares with. The lists of nodes hold workers, a name on each line; a slow
    one is passing or failing, too, and is only listed where there are nodes enough to tell."""
    run = run.model_copy(update={"schema_": result.SCHEMA, "slow_nodes": outliers.find(run)})
    found, slow = verdict.judge(run), {each.node for each in run.slow_nodes if each.sure}
    texts = {
        JSON: run.dumps(),
        SCHEMA: schema_text(),
        JUNIT: junit.junit(run),
        HTML: page.html(run, previous),
        PASSING: _lines(found.names("passing", "worker")),
        FAILING: _lines(found.names("failing", "worker")),
        SLOW: _lines(node.name for node in run.nodes if "worker" in node.roles and node.name in slow),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def schema() -> dict[str, Any]:
    """JSON schema of report.json, with the comments behind the fields."""
    found = Run.model_json_schema(by_alias=True, mode="serialization")
    comments = profile_schema.comments(result) | profile_schema.comments(check)
    for name, part in (*found.get("$defs", {}).items(), ("Run", found)):
        for field, about in part.get("properties", {}).items():
            about.pop("title", None)
            if text := comments.get(name, {}).get(field):
                about["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rocstack report"}
    return {**head, **{key: value for key, value in found.items() if key != "title"}}


def schema_text() -> str:
    """The published file's content."""
    return json.dumps(schema(), indent=1) + "\n"


def _lines(names: Iterable[str]) -> str:
    return "".join(f"{name}\n" for name in names)
