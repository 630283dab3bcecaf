#!/usr/bin/python
"""Brings a node to its specification. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.apply import apply
from ansible.module_utils.rocstack_node.engine import NodeError

DOCUMENTATION = r"""
module: rocstack_apply
short_description: Brings a node to its specification
description:
  - Writes files, removes and starts containers, runs commands in them where something changed, removes images that
    nobody keeps, and writes node.json. What already matches stays untouched.
  - If a container doesn't become healthy, it is removed and its predecessor starts again. Files written for it get
    their old content back, unless another container came up with them. If a command fails, the files of its container
    are restored too, and the commands run once more.
  - Waits while another rocstack module works on this node. Without C(state) this is only a part of the specification;
    the remaining commands run with the whole one.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  files:
    description: Files to write.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path on the node.
        type: str
        required: true
      content:
        description: Content in base64.
        type: str
        required: true
      mode:
        description: Mode in octal.
        type: str
        required: true
      uid:
        description: Owner's uid.
        type: int
        required: true
      gid:
        description: Group's gid.
        type: int
        required: true
  images:
    description: Images as rocstack_pull takes them.
    type: list
    elements: dict
    default: []
  containers:
    description:
      - Containers with C(name), C(service), C(image), C(args), C(command), C(spec), C(reads) and C(healthy_within).
    type: list
    elements: dict
    default: []
  remove:
    description: Names of containers to remove.
    type: list
    elements: str
    default: []
  absent:
    description: Paths of files to remove at the end.
    type: list
    elements: str
    default: []
  exec:
    description: Commands, a container's name first, that run where something changed.
    type: list
    elements: list
    default: []
  keep:
    description: Ids of images to keep; without it all are kept.
    type: list
    elements: str
  state:
    description: What to write to node.json at the end.
    type: dict
    default: {}
  heal:
    description: Restart containers that match but are unhealthy.
    type: bool
    default: false
author: The rocstack engineers
"""

RETURN = r"""
files:
  description: Paths of the files that were written or removed.
  type: list
  returned: always
containers:
  description:
    - For each container C(action) (kept, started, restarted, created, replaced), C(health), C(seconds), C(notes) and,
      where it failed, the last lines of its C(log).
  type: dict
  returned: always
removed:
  description: Names of the containers that were removed.
  type: list
  returned: always
exec:
  description: Commands that ran.
  type: list
  returned: always
pruned:
  description: Ids of the images that were removed.
  type: list
  returned: always
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
    dicts = {"type": "list", "elements": "dict", "default": []}
    number = {"type": "int", "required": True}
    text = {"type": "str", "required": True}
    file = {"path": text, "content": {**text, "no_log": True}, "mode": text, "uid": number, "gid": number}
    module = AnsibleModule(
        {
            "fence": {"type": "dict", "required": True},
            "files": {**dicts, "options": file},
            "images": dicts,
            "containers": dicts,
            "remove": {"type": "list", "elements": "str", "default": []},
            "absent": {"type": "list", "elements": "str", "default": []},
            "exec": {"type": "list", "elements": "list", "default": []},
            "keep": {"type": "list", "elements": "str"},
            "state": {"type": "dict", "default": {}},
            "heal": {"type": "bool", "default": False},
        }
    )
    done = {}
    try:
        apply(module.params, done, heal=module.params["heal"])
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind, **done)
    module.exit_json(**done)


if __name__ == "__main__":
    main()
