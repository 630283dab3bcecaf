"""`rocstack init`: commented files to start from."""

from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json

INVENTORY = """\
# An ordinary Ansible inventory: any form that Ansible reads will do, group_vars and an ansible.cfg too.
# `rocstack deploy inventory.yml --plan` says what is wrong with it or with the nodes, and changes nothing.
all:
  vars:
    ansible_user: root
    # Without root: a user who may become it.
    #ansible_user: ops
    #ansible_become: true
    # A password belongs into a vault: `ansible-vault encrypt_string --name ansible_become_password`.
    # Through a jump host (or say it in ~/.ssh/config, which is read as well):
    #ansible_ssh_common_args: -J ops@bastion.example.com
  children:
    # One node runs the scheduler, its database and the image registry. It may stand among the workers, too.
    control:
      hosts:
        head:
          ansible_host: 192.0.2.10
    # The GPU nodes. A name is also what Slurm calls the node; where it can't be resolved, say ansible_host.
    workers:
      hosts:
        node[01:04]:
        #node05: {ansible_host: 192.0.2.25}
      #vars:
        # Where the nodes reach each other by another address than they are reached from here, say it per node:
        #rocstack_address: 10.0.0.25
    # Racks with a registry mirror of their own, for `ship: rack`:
    #rack1:
    #  hosts: {node01: , node02: }
    #  vars:
    #    rocstack_rack_registry: mirror1.example.com:5000
"""

# Uncommented it is what the defaults are, but for users, accounts and reservations, which are examples.
CLUSTER = """\
cluster:
  name: rocstack
  partitions:
    train: {nodes: [all], max_time: 7d}       # nodes: all, names, n[1-3], or groups of the inventory
  qos:                                        # by priority; preempted jobs are requeued
    low: {priority: 10, preempt_mode: requeue, grace: 60s}
    normal: {priority: 100, preempts: [low]}
    high: {priority: 1000, preempts: [low], max_gpus_per_user: 32}
  accounts:
    research: {fairshare: 60}
    vision: {parent: research, max_gpus: 64}
  users:
    alice: {uid: 2000, accounts: [vision, research]}
    bob: {uid: 2001, accounts: [research], admin: operator}
  priorities: {age: 1000, fairshare: 10000, qos: 100000, size: 500, partition: 1000}
  reservations:                               # dedicated capacity
    vision-nodes: {count: 2, accounts: [vision]}
  mounts: [/home, /data]                      # shared folders of the nodes
  rollout: {canary: 1, wave: 25%, drain_timeout: 4h, failures: 1}
"""


def register(app: typer.Typer) -> None:
    options.add(app, "init", init, "rocstack init")


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write the files to.")] = Path("."),
    json: options.Json = False,
) -> None:
    """Write a commented rocstack.yml and inventory.yml; existing files stay as they are."""
    files = {"rocstack.yml": settings_text(), "inventory.yml": INVENTORY}
    folder.mkdir(parents=True, exist_ok=True)
    written = [name for name in files if not (folder / name).exists()]
    for name in written:
        (folder / name).write_text(files[name])
    if json:
        print_json({"written": written, "kept": [name for name in files if name not in written]})
        return
    for name in files:
        out.print(f"{'wrote' if name in written else 'kept'} {folder / name}", markup=False)
    out.print("next: rocstack build")


def settings_text() -> str:
    """Every setting with its description and default, commented out."""
    from pydantic import BaseModel

    from rocstack.settings.settings import Settings

    lines = [
        "# Settings of rocstack. A flag or a ROCSTACK_* variable wins over this file; `rocstack config` shows all.",
        "",
    ]
    for name, info in Settings.model_fields.items():
        default = info.default
        if name == "cluster":
            example = "".join(f"#{line}\n" for line in CLUSTER.splitlines())
            lines += [f"# {info.description}; an example, see docs/cluster.md", example]
            continue
        shown = (
            {None: "null", "": '""'}.get(default, default)
            if not isinstance(default, BaseModel)
            else default.model_dump_json()
        )
        lines += [f"# {info.description}", f"#{name}: {shown}", ""]
    return "\n".join(lines)
