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
  ask:
    description:
      - "C(input): what is asked, as rocstack.edge.ansible packs it: C(names) to resolve on the node, C(ports) whose
        owner to report, C(uids) and C(users) whose names and uids, C(reach), host -> addresses with a port to connect
        to, and C(reach_otherwise), those of a host that it doesn't name."
      - "C(host): the node's name in the inventory."
      - "C(asked): the controller's clock when it asked, in seconds since the epoch."
    type: dict
    required: true
author: The rocstack engineers
"""

RETURN = r"""
facts:
  description: The facts as JSON, packed by gzip and base64, so that Ansible handles one plain text.
  type: str
  returned: always
asked:
  description: What the option says.
  type: float
  returned: always
"""


def main() -> None:
    module = AnsibleModule({"ask": {"type": "dict", "required": True}}, supports_check_mode=True)
    ask = module.params["ask"]
    wanted = json.loads(base64.b64decode(ask["input"]))
    reach = wanted.get("reach", {}).get(ask["host"], wanted.get("reach_otherwise", []))
    facts = collect_facts(reach=reach, **{name: wanted.get(name, []) for name in ("names", "ports", "uids", "users")})
    packed = base64.b64encode(gzip.compress(json.dumps(facts, separators=(",", ":")).encode(), 5)).decode()
    module.exit_json(changed=False, facts=packed, asked=ask["asked"])


if __name__ == "__main__":
    main()
