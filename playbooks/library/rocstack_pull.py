#!/usr/bin/python
"""Pulls a node's images by digest. Standard library and Python 3.8."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rocstack_node.apply import write_state
from ansible.module_utils.rocstack_node.engine import NodeError
from ansible.module_utils.rocstack_node.pull import pull

DOCUMENTATION = r"""
module: rocstack_pull
short_description: Pulls a node's images by digest
description:
  - Pulls missing images, checks that each is the expected one, and tags it. Retries while the registry can't be
    reached.
options:
  fence:
    description:
      - Number of the cluster's lock under which this is asked, and who took it. A node that knows a larger number
        refuses. Empty for a run without the lock.
    type: dict
    required: true
  images:
    description: Images with C(id), C(name) and C(reference), which ends in a digest.
    type: list
    elements: dict
    required: true
  registry:
    description: Login for the registry, and the registry's CA certificate.
    type: dict
    suboptions:
      address:
        description: Host and port.
        type: str
      user:
        description: User; empty for none.
        type: str
      password:
        description: The user's password.
        type: str
      ca:
        description: Certificate in PEM; empty where the node knows it.
        type: str
  retry_s:
    description: How long to retry after an image's first failure, in seconds.
    type: float
    default: 600
  state:
    description: What to write to node.json at the end.
    type: dict
    default: {}
author: The rocstack engineers
"""

RETURN = r"""
images:
  description:
    - For each image C(name), C(id), C(changed), C(attempts), C(seconds), C(bytes) over the wire, C(layers) with the
      numbers C(pulled) and C(existing), and C(retried), the reasons.
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
    texts = {name: {"type": "str"} for name in ("address", "user", "ca")}
    login = {**texts, "password": {"type": "str", "no_log": True}}
    module = AnsibleModule(
        {
            "fence": {"type": "dict", "required": True},
            "images": {"type": "list", "elements": "dict", "required": True},
            "registry": {"type": "dict", "options": login},
            "retry_s": {"type": "float", "default": 600},
            "state": {"type": "dict", "default": {}},
        }
    )
    params = module.params
    try:
        images = pull(params["images"], params["registry"], params["retry_s"], fence=params["fence"])
        write_state(params["state"])
    except NodeError as failed:
        module.fail_json(msg=failed.what, cause=failed.cause, kind=failed.kind)
    module.exit_json(changed=any(image["changed"] for image in images), images=images)


if __name__ == "__main__":
    main()
