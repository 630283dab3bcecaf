#!/usr/bin/python
"""Copies an image between registries. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.fence import Fence
from ansible.module_utils.rocstack_node.node_lock import STATE
from ansible.module_utils.rocstack_node.registry_copy import copy_image

DOCUMENTATION = r"""
module: rocstack_registry_copy
short_description: Copies an image between registries
description:
  - Copies an image from registry to registry with skopeo, out of the control image on this host, one copy after the
    other, and compares digest and media types of what arrived. What is there already is not copied. A copy that fails
    is no reason not to try the next.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  copies:
    description: C(source) and C(target) as HOST:PORT/PATH, C(digest), and the C(tag) that it gets.
    type: list
    elements: dict
    required: true
    suboptions:
      source:
        description: From where.
        type: str
        required: true
      target:
        description: Where to.
        type: str
        required: true
      digest:
        description: Of the manifest.
        type: str
        required: true
      tag:
        description: Its name there.
        type: str
        required: true
  logins:
    description: Who the registries know this host as.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description: Host and port.
        type: str
        required: true
      user:
        description: User; empty for none.
        type: str
        default: ""
      password:
        description: The user's password.
        type: str
        default: ""
      ca:
        description: Certificate in PEM; empty where this host knows it.
        type: str
        default: ""
  image:
    description: Id of the control image here.
    type: str
    required: true
author: The rocstack engineers
"""

RETURN = r"""
copies:
  description: For each C(target) C(changed), C(seconds) and C(error), which is empty where it worked.
  type: list
  returned: always
"""


def main() -> None:
    text = {"type": "str", "default": ""}
    must = {"type": "str", "required": True}
    login = {"host": must, "user": text, "password": {**text, "no_log": True}, "ca": text}
    copy = dict.fromkeys(("source", "target", "digest", "tag"), must)
    module = AnsibleModule(
        {
            "fence": {"type": "dict", "required": True},
            "copies": {"type": "list", "elements": "dict", "required": True, "options": copy},
            "logins": {"type": "list", "elements": "dict", "default": [], "options": login},
            "image": must,
        }
    )
    params, done = module.params, []
    fence = Fence(params["fence"], STATE)
    for each in params["copies"]:
        row = {"target": each["target"], "changed": False, "seconds": 0.0, "error": ""}
        try:
            fence.announce()
            row.update(copy_image(each, params["logins"], params["image"]))
        except NodeError as failed:
            row["error"] = failed.what
        done.append(row)
    module.exit_json(changed=any(row["changed"] for row in done), copies=done)


if __name__ == "__main__":
    main()
