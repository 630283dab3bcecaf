#!/usr/bin/python
"""Works Slurm from the control node. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.engine import Failed
from ansible.module_utils.rocstack_node.exclusive import alone
from ansible.module_utils.rocstack_node.slurm_control import CONTAINER, work

PATIENCE = 90  # seconds; less than the task has

DOCUMENTATION = r"""
module: rocstack_slurm
short_description: Works Slurm from the control node
description:
  - Reads the nodes, drains, waits, resumes, and runs lines of sacctmgr or scontrol in the controller's container.
    Waits while another module of rocstack works on this node.
options:
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
  description: What came of each step.
  type: list
  returned: success
cause:
  description: What probably led to the failure.
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
            "steps": {"type": "list", "elements": "dict", "required": True},
            "container": {"type": "str", "default": CONTAINER},
        }
    )
    try:
        with alone(within=PATIENCE):
            steps = work(module.params["steps"], module.params["container"])
    except Failed as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind)
    module.exit_json(changed=any(step["do"] != "state" for step in module.params["steps"]), steps=steps)


if __name__ == "__main__":
    main()
