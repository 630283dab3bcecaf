"""The files of a run: report.json, and what is made of it."""

from __future__ import annotations

from pathlib import Path

from rocstack.verify.result import Run


def write(run: Run, folder: Path) -> None:
    (folder / "report.json").write_text(run.dumps(), encoding="utf-8")
