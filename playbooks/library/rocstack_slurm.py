#!/usr/bin/python
"""Controls Slurm from the control node. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.containers import CONTROLLER
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.fence import Fence
from ansible.module_utils.rocstack_node.node_lock import STATE, node_lock
from ansible.module_utils.rocstack_node.slurm_control import run_steps

TIMEOUT_S = 90  # seconds; less than the task has

DOCUMENTATION = r"""
module: rocstack_slurm
short_description: Controls Slurm from the control node
description:
  - Drains nodes, waits for them and resumes them. Waits while another rocstack module works on this node.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  steps:
    description: Steps with C(do) and its arguments, one after the other.
    type: list
    elements: dict
    required: true
  container:
    description: The controller's container.
    type: str
    default: rocstack-control
author: The rocstack engineers
"""

RETURN = r"""
steps:
  description: Result of each step.
  type: list
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
    module = AnsibleModule(
        {
            "fence": {"type": "dict", "required": True},
            "steps": {"type": "list", "elements": "dict", "required": True},
            "container": {"type": "str", "default": CONTROLLER},
        }
    )
    fence = Fence(module.params["fence"], STATE)
    try:
        with node_lock(within=TIMEOUT_S, fence=fence):
            steps = run_steps(module.params["steps"], module.params["container"], fence.check)
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind)
    module.exit_json(changed=bool(steps), steps=steps)


if __name__ == "__main__":
    main()
