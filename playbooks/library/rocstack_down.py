#!/usr/bin/python
"""Removes what deploys created on a node. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.removal import take_down

DOCUMENTATION = r"""
module: rocstack_down
short_description: Removes what deploys created on a node
description:
  - Stops and removes the containers of all services; volumes, images and files only where they are named.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  volumes:
    description: Names of volumes to remove, with what is in them.
    type: list
    elements: str
    default: []
  images:
    description: Remove the images that deploys brought.
    type: bool
    default: false
  files:
    description: Files and folders of rocstack to remove.
    type: list
    elements: str
    default: []
author: The rocstack engineers
"""

RETURN = r"""
containers:
  description: Names of the containers that were removed.
  type: list
  returned: always
volumes:
  description: Names of the volumes that were removed.
  type: list
  returned: always
images:
  description: Ids of the images that were removed.
  type: list
  returned: always
files:
  description: Paths that were removed.
  type: list
  returned: always
"""


def main() -> None:
    names = {"type": "list", "elements": "str", "default": []}
    fence = {"type": "dict", "required": True}
    module = AnsibleModule(
        {"fence": fence, "volumes": names, "images": {"type": "bool", "default": False}, "files": names}
    )
    params, done = module.params, {}
    try:
        take_down(params["volumes"], params["images"], params["files"], done, fence=params["fence"])
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind, **done)
    module.exit_json(**done)


if __name__ == "__main__":
    main()
