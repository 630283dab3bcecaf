#!/usr/bin/python
"""Judges the images of a deploy by a trust policy. Standard library, openssl's command, and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.fence import Fence
from ansible.module_utils.rocstack_node.node_lock import STATE
from ansible.module_utils.rocstack_node.trust import judge

DOCUMENTATION = r"""
module: rocstack_trust
short_description: Judges the images of a deploy by a trust policy
description:
  - Checks signatures and attestations of images with openssl, by keys of which this node must remember one, before
    anything of the images comes here. Changes nothing.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  order:
    description: Images with what belongs to them, and the policy, as C(rocstack.node.trust.judge) takes it.
    type: dict
    required: true
author: The rocstack engineers
"""

RETURN = r"""
signers:
  description: Fingerprints of the keys that signed each image, by role.
  type: dict
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
        {"fence": {"type": "dict", "required": True}, "order": {"type": "dict", "required": True}},
        no_log=True,  # the order is megabytes
    )
    params = module.params
    try:
        Fence(params["fence"], STATE).announce()
        signers = judge(params["order"])
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind)
    module.exit_json(changed=False, signers=signers)


if __name__ == "__main__":
    main()
