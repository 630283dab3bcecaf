"""`rocstack build`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import err, escape, mb, out, print_json, say, table

if TYPE_CHECKING:
    from rocstack.image.build_report import BuildReport, ImageReport


def register(app: typer.Typer) -> None:
    app.command("build", epilog="Example: rocstack build --nic broadcom --push registry.example.com:5000/hpc")(build)


def build(
    nic: options.Nic = None,
    stack: options.Stack = None,
    role: Annotated[str, typer.Option(help="Build one role only: worker or control.")] = "",
    gfx: options.Gfx = None,
    way: options.Way = None,
    methods: options.With = [],  # noqa: B006
    profiles: options.Profiles = None,
    inventory: options.Inventory = None,
    nic_source: options.NicSource = None,
    nic_accept: options.NicAccept = None,
    nic_plugin: options.NicPlugin = None,
    nic_variants: options.NicVariants = False,
    overlay: options.Overlay = None,
    base: Annotated[str | None, typer.Option(help="auto, registry or mmdebstrap.")] = None,
    base_image: Annotated[str | None, typer.Option(help="Base image instead of the stack's own.")] = None,
    lock: options.LockFile = options.LOCK,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Fail when the distribution has other versions than the lock.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch the package index anew (it is kept for a week).")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step anew.")] = False,
    push: Annotated[str | None, typer.Option(help="Push to this registry when all images are built.")] = None,
    tag: Annotated[str | None, typer.Option(help="Release tag; default: ISO year and week.")] = None,
    move_tags: Annotated[
        bool, typer.Option("--move-tags", help="Let a tag that exists point to the new image.")
    ] = False,
    ca_bundle: Annotated[str | None, typer.Option(help="The company's CA bundle (PEM).")] = None,
    json: options.Json = False,
) -> None:
    """Build, smoke-test and label the worker and control images of a stack for a NIC."""
    from rocstack.base.errors import BadInput, did_you_mean
    from rocstack.cli.build_display import display
    from rocstack.cli.nic_choice import NicDecision
    from rocstack.edge import engine
    from rocstack.image import base_image as bases
    from rocstack.image import render
    from rocstack.image.build import Build, image_name, write_report
    from rocstack.settings import site
    from rocstack.stack.component import ROLES
    from rocstack.stack.lock import for_stack

    chosen = options.settings(
        nic=nic,
        stack=stack,
        overlay=overlay,
        nic_source=nic_source,
        nic_accept=nic_accept,
        nic_plugin=nic_plugin,
        base=base,
        base_image=base_image,
        push=push,
        tag=tag,
        ca_bundle=ca_bundle,
    )
    if role and role not in ROLES:
        hint = did_you_mean(role, ROLES)
        raise BadInput(f"no role '{role}': {hint}", code="unknown-role")
    roles = tuple(r for r in ROLES if not role or r == role)
    # All that can be refused without the engine is refused first.
    decision = NicDecision(chosen, way, nic_variants, profiles, inventory)
    value, components, nics = options.resolved(chosen, gfx=gfx, methods=methods, decide=decision)
    archives = decision.plan.archives if decision.plan else {}
    locked = for_stack(value.stack, lock)
    render.require_lock(value, locked)
    render.render(value, locked, components, nics, archives)
    decision.show(value.nic.name)
    if chosen.push:
        from rocstack.registry.release import wanted_tags
        from rocstack.registry.tags import parse_registry

        parse_registry(chosen.push)
        wanted_tags(value.stack.name, value.nic.name, chosen)
    engine.require_buildx()
    client = engine.connect()
    engine.require_version(client)
    if not all(engine.find_image(client, image_name(chosen, value, each)) for each in roles):
        engine.require_disk(client, value.stack.disk_mb)
    start = bases.ensure(client, value.stack, chosen, say)
    value = value.model_copy(update={"base": start.reference})
    folder = Path(chosen.out) / f"{value.stack.name}-{value.nic.name}"
    with display(roles, value) as shown:
        report = Build(
            client=client,
            resolved=value,
            lock=locked,
            context=render.render(value, locked, components, nics, archives),
            base=start,
            settings=chosen,
            site=site.of(chosen),
            folder=folder,
            roles=roles,
            nodes=decision.nodes,
            frozen=frozen,
            no_cache=no_cache,
            refresh=refresh,
            on_event=shown.event,
            on_note=shown.note,
        ).run()
    if report.ok and chosen.push:
        from rocstack.registry.release import push_images

        report = push_images(client, report, chosen, move_tags=move_tags, say=say)
        write_report(folder, report)
    if json:
        print_json(report.to_json())
    else:
        show(report, folder)
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
