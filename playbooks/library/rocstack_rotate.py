#!/usr/bin/python
"""New keys on a node, while its jobs run on. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node import rotation
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.fence import Fence
from ansible.module_utils.rocstack_node.node_lock import STATE, node_lock

TIMEOUT_S = 90  # seconds; less than the tasks have

DOCUMENTATION = r"""
module: rocstack_rotate
short_description: Replaces keys on a node, while its jobs run on
description:
  - One step of a rotation. C(stop) stops Slurm's controller, C(swap) writes the keys and restarts munged in the
    worker's container, C(start) restarts the other services, C(prove) asks the controller with the new key.
options:
  fence:
    description: Number and holder of the cluster's lock; a node refuses an older number than it knows.
    type: dict
    required: true
  step:
    description: What to do.
    type: str
    choices: [stop, swap, start, prove]
    required: true
  munge:
    description: File of the MUNGE key, for C(swap), as rocstack_apply has files.
    type: dict
  files:
    description: Other files.
    type: list
    elements: dict
    default: []
  database:
    description: The database's password, for slurmdbd.conf; empty on nodes without one.
    type: str
    default: ""
  keys:
    description: Fingerprints of the keys, on the control node.
    type: dict
    default: {}
author: The rocstack engineers
"""

RETURN = r"""
swapped:
  description: The node has the new keys.
  type: bool
  returned: success
cause:
  description: Likely cause of the failure.
  type: str
  returned: failure
kind:
  description: The failure in one word, for programs.
  type: str
  returned: failure
"""


def main() -> None:
    number, text = {"type": "int", "required": True}, {"type": "str", "required": True}
    file = {"path": text, "content": {**text, "no_log": True}, "mode": text, "uid": number, "gid": number}
    module = AnsibleModule(
        {
            "fence": {"type": "dict", "required": True},
            "step": {"type": "str", "choices": ["stop", "swap", "start", "prove"], "required": True},
            "munge": {"type": "dict", "options": file},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file},
            "database": {"type": "str", "default": "", "no_log": True},
            "keys": {"type": "dict", "default": {}, "no_log": False},
        }
    )
    step = module.params["step"]
    fence = Fence(module.params["fence"], STATE)
    try:
        with node_lock(within=TIMEOUT_S, fence=fence):
            if step == "swap":
                rotation.swap(module.params)
            else:
                getattr(rotation, step)()
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind)
    module.exit_json(changed=step != "prove", swapped=step == "swap")


if __name__ == "__main__":
    main()
