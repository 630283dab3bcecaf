#!/usr/bin/python
"""Reads the data of a node profile. Read-only; standard library and Python 3.8."""

from __future__ import annotations

import base64
import gzip
import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.collect import collect

DOCUMENTATION = r"""
module: rocstack_collect
short_description: Reads the data of a node profile
description:
  - Copies the small files under /sys, /proc and /etc from which the controller makes a node profile. Changes nothing.
options:
  root:
    description: Folder that stands for the root of the file system.
    type: path
    default: /
  tree:
    description: Also read what rocm-smi, lspci and libibverbs need of /sys.
    type: bool
    default: false
author: The rocstack engineers
"""

RETURN = r"""
recording:
  description: The recording as JSON, packed by gzip and base64, so that Ansible handles one plain text.
  type: str
  returned: always
"""


def main() -> None:
    options = {"root": {"type": "path", "default": "/"}, "tree": {"type": "bool", "default": False}}
    module = AnsibleModule(options, supports_check_mode=True)
    text = json.dumps(collect(module.params["root"], tree=module.params["tree"]), separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), 5)).decode()
    module.exit_json(changed=False, recording=packed)


if __name__ == "__main__":
    main()
