"""`rocstack backup` and `restore`: Slurm's queue and accounting in one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json

if TYPE_CHECKING:
    from rocstack.deploy.work.backup import BackupInfo

Inventory = Annotated[Path, typer.Argument(help="The cluster's inventory.")]
File = Annotated[Path, typer.Argument(help="Backup file. It contains jobs' scripts, so only you can read it.")]


def register(app: typer.Typer) -> None:
    options.add(app, "backup", backup, "rocstack backup inventory.yml slurm-2026-11-20.tar.zst")
    options.add(app, "restore", restore, "rocstack restore inventory.yml slurm-2026-11-20.tar.zst")


def backup(inventory: Inventory, file: File, json: options.Json = False) -> None:
    """Save the accounting database and slurmctld's state to one file. Nothing is stopped."""
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.state import service_target
    from rocstack.deploy.work import backup as backups

    began = time.monotonic()
    nodes = inventories.load(options.inventory(options.settings(), inventory))
    target = service_target.target(nodes.path, nodes.control.name, "controller")
    info = backups.backup(target.ssh_host, file)
    if json:
        print_json({"file": str(file), **info.__dict__})
        return
    out.print(escape(f"{file}: {_of(info)}, {info.size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s"))
    out.print("keys are not in it: keep rocstack-secrets.yml as well")


def restore(
    inventory: Inventory,
    file: File,
    force: options.Force = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Replace the accounting database and slurmctld's state with a backup. The controller stops meanwhile."""
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.read import journal
    from rocstack.deploy.state import service_target
    from rocstack.deploy.work import backup as backups
    from rocstack.deploy.work import controller
    from rocstack.edge import locks

    began = time.monotonic()
    info = backups.about(file)
    nodes = inventories.load(options.inventory(options.settings(), inventory))
    options.confirmed(
        f"Slurm's queue and accounting become those of the backup, {_of(info)}: what came since is lost.", yes
    )
    target = service_target.target(nodes.path, nodes.control.name, "controller")
    with locks.cluster_lock(target.ssh_host, journal.lock()):
        controller.end_jobs(target.ssh_host, force)
        cancelled = backups.restore(target.ssh_host, file)
    if json:
        print_json({"file": str(file), **info.__dict__, "cancelled": cancelled})
        return
    if cancelled:
        out.print(f"cancelled, because they ran then and don't run now: {', '.join(map(str, cancelled))}")
    out.print(escape(f"restored: {_of(info)}, {time.monotonic() - began:.1f} s"))
    out.print(f"next: rocstack status {escape(str(inventory))}")


def _of(info: BackupInfo) -> str:
    return f"cluster {info.cluster}, Slurm {info.slurm}, {info.time}"
