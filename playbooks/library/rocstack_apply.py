#!/usr/bin/python
"""Makes a node what its order says. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.apply import apply
from ansible.module_utils.rocstack_node.engine import NodeError

DOCUMENTATION = r"""
module: rocstack_apply
short_description: Makes a node what its order says
description:
  - Writes files, removes and starts containers, runs commands in them where something changed, removes images that
    nobody keeps, and writes node.json. What is as described stays untouched.
  - A container that does not become healthy is removed again. Files that were written for it, and with which no other
    container has come up, get their content before; then the container before it is started. Where a command fails
    the files of its container are put back as well, and the commands run once more.
  - Waits while another module of rocstack works on this node. An order without C(state) is a part, which leaves it to
    the whole one to run the rest of the commands.
options:
  files:
    description: Files to be there.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where.
        type: str
        required: true
      content:
        description: What is in it, in base64.
        type: str
        required: true
      mode:
        description: Rights in octal.
        type: str
        required: true
      uid:
        description: Number of the owner.
        type: int
        required: true
      gid:
        description: Number of the group.
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
    description: Names of containers not to be there.
    type: list
    elements: str
    default: []
  exec:
    description: Commands, a container's name first, that run where something changed.
    type: list
    elements: list
    default: []
  keep:
    description: Ids of images that stay; without it all stay.
    type: list
    elements: str
  state:
    description: What is written to node.json in the end.
    type: dict
    default: {}
  heal:
    description: Whether containers that are as described but unhealthy are restarted.
    type: bool
    default: false
author: The rocstack engineers
"""

RETURN = r"""
files:
  description: Paths of the files that were written.
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
  description: What probably led to the failure.
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
            "files": {**dicts, "options": file},
            "images": dicts,
            "containers": dicts,
            "remove": {"type": "list", "elements": "str", "default": []},
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
