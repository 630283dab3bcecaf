#!/usr/bin/python
"""Reads everything that a deploy decides by. Read-only; standard library and Python 3.8."""

from __future__ import annotations

import base64
import gzip
import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.deploy_facts import collect_facts

DOCUMENTATION = r"""
module: rocstack_facts
short_description: Reads everything that a deploy decides by
description:
  - The recording of a node's hardware as rocstack_collect makes it, and the state of its container engine, ports,
    users, files and network. Changes nothing.
options:
  names:
    description: Host names to resolve on the node.
    type: list
    elements: str
    default: []
  reach:
    description: Addresses with a port, C(10.0.0.1:6817), to connect to from the node.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports whose owner to report.
    type: list
    elements: int
    default: []
  uids:
    description: Uids whose names to report.
    type: list
    elements: int
    default: []
  users:
    description: User names whose uids to report.
    type: list
    elements: str
    default: []
  asked:
    description: The controller's clock when it asked, in seconds since the epoch.
    type: float
author: The rocstack engineers
"""

RETURN = r"""
facts:
  description: The facts as JSON, packed by gzip and base64, so that Ansible handles one plain text.
  type: str
  returned: always
asked:
  description: The option of that name.
  type: float
  returned: always
"""


def main() -> None:
    texts = {"type": "list", "elements": "str", "default": []}
    numbers = {"type": "list", "elements": "int", "default": []}
    options = {"names": texts, "reach": texts, "ports": numbers, "uids": numbers, "users": texts}
    module = AnsibleModule({**options, "asked": {"type": "float"}}, supports_check_mode=True)
    facts = collect_facts(**{name: module.params[name] for name in options})
    packed = base64.b64encode(gzip.compress(json.dumps(facts, separators=(",", ":")).encode(), 5)).decode()
    module.exit_json(changed=False, facts=packed, asked=module.params["asked"])


if __name__ == "__main__":
    main()
