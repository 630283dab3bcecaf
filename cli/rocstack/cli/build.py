"""`rocstack build`: the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rocstack.cli import options
from rocstack.cli.ui import err, escape, mb, out, print_json, table
from rocstack.steps.build import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

    from rocstack.image.build_report import BuildReport, ImageReport


def register(app: typer.Typer) -> None:
    options.add(app, "build", build, "rocstack build --nic broadcom --push registry.example.com:5000/hpc")


def build(choice: BuildOptions, json: options.Json = False) -> None:
    """Build, test and label the worker and control images of a stack for a NIC."""
    from rocstack.cli.build_display import BuildDisplay
    from rocstack.steps import build as steps

    with BuildDisplay() as events:
        report = steps.build(choice, events)
    print_json(report.to_dict()) if json else show(report, events.folder)
    if not report.ok:
        raise typer.Exit(1)


def show(report: BuildReport, folder: Path) -> None:
    for image in report.images:
        if image.failure:
            _show_failure(image)
    built = [image for image in report.images if image.status == "built"]
    for image in built[:1]:
        total = sum(image.components.values())
        table(
            ("COMPONENT", "VERSION", "SIZE", "SHARE", "SMOKE TEST"),
            [
                *(
                    (
                        name,
                        image.versions.get(name, ""),
                        mb(size),
                        f"{100 * size / total:.0f} %",
                        "; ".join(image.smoke.get(name, ())),
                    )
                    for name, size in image.components.items()
                ),
                *(
                    (name, "", "", "", "; ".join(seen))
                    for name, seen in image.smoke.items()
                    if name not in image.components
                ),
            ],
            title=f"{image.role}: what is in it",
            right=(2, 3),
        )
        out.print()
        table(
            ("PACKAGE", "SIZE"),
            [(n, mb(s)) for n, s in image.largest.items()],
            title="the ten largest",
            right=(1,),
        )
        out.print()
        for item in image.drift[:10]:
            out.print(f"changed since the lock: {item.what} {item.locked} -> {item.found}")
        if len(image.drift) > 10:
            out.print(f"... and {len(image.drift) - 10} more; `rocstack lock` pins what is there now")
    table(
        ("IMAGE", "STATUS", "SIZE", "TIME", "ID"),
        [
            (
                image.reference,
                f"blocked by {image.blocked_by}" if image.blocked_by else image.status,
                mb(image.size_bytes),
                f"{image.seconds:.1f} s",
                (image.image_id or "").removeprefix("sha256:")[:12],
            )
            for image in report.images
        ],
        right=(2, 3),
    )
    for image in built:
        if image.role == "worker" and not image.gate and report.nic != "tcp":
            out.print("judged by no node: --profiles or --inventory names those that it must fit")
        for verdict in image.gate:
            out.print(f"{verdict.result}: {verdict.says}", markup=False)
        for reference, digest in image.pushed.items():
            out.print(f"pushed {reference}@{digest}")
    out.print(
        f"\nbase {report.base} ({report.base_digest[:19]}), index of {report.world}, {report.seconds:.1f} s in all"
    )
    out.print(f"logs and reports: {folder}/", markup=False)


def _show_failure(image: ImageReport) -> None:
    failure = image.failure
    assert failure is not None
    err.print(f"[bold red]failed:[/] {escape(image.reference)} in stage {escape(failure.stage)}")
    if failure.step:
        err.print(f"  step: {escape(failure.step)}")
    err.print(f"  error: {escape(failure.error)}")
    for line in failure.context:
        err.print(f"    | {escape(line)}")
    if failure.template:
        err.print(f"  template: {escape(failure.template)} (Dockerfile line {failure.dockerfile_line})")
    for label, text in (("cause", failure.cause), ("next", failure.next_step)):
        if text:
            err.print(f"  {label}: {escape(text)}")
    tries = f" after {image.attempts} attempts" if image.attempts > 1 else ""
    err.print(f"  kind: {failure.kind}{tries}")
    err.print(f"  log: {escape(image.log)}")
    err.print(f"  reproduce: {escape(failure.reproduce)}")
