"""Ansible runs what lies in `shell_plugins` of the folder where it is started. In /tmp that may be anybody's; else it
may have come with a folder that was copied. It loads connection plugins before, so this is one. It lies beside the
playbooks, so it is there however they are started."""

from __future__ import annotations

from ansible.plugins.connection import local
from ansible.plugins.loader import shell_loader

DOCUMENTATION = r"""
name: rocstack_shells
short_description: Keeps Ansible from plugins of the folder where it is started
description:
  - Connects to nothing. What it does, it does when it is loaded, before Ansible looks for shell plugins.
author: The rocstack engineers
"""

shell_loader.config = []  # "shell_plugins", as seen from there; no setting says anything else


class Connection(local.Connection):
    transport = "rocstack_shells"
