"""Keeps what a node says from the run of all nodes: what Ansible acts on in its main process, where a value of another
shape ends the run everywhere, and an answer without an end. Lies beside the playbooks, so it is there however they are
started."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.callback import CallbackBase
from ansible.plugins.connection import ssh

DOCUMENTATION = r"""
name: rocstack_answers
type: aggregate
short_description: Keeps what a node says from the run of all nodes
description:
  - Tells nothing. What it does, it does when it is loaded, before Ansible starts the processes that read answers.
author: The rocstack engineers
"""

MOST = 64 << 20  # bytes of what ssh says in one task
PIECE = 1 << 20

# Of modules; set_stats is an action of the operator's machine, and keeps its own.
constants.INTERNAL_RESULT_KEYS = tuple(dict.fromkeys((*constants.INTERNAL_RESULT_KEYS, "ansible_stats")))


class _Bounded:
    """The output of ssh, which Ansible reads as long as there is any, and keeps."""

    def __init__(self, pipe: Any, process: subprocess.Popen[bytes]) -> None:
        self._pipe, self._process, self._left = pipe, process, MOST

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def read(self) -> bytes:
        """What is there, but no more than a piece of it. Ansible asks when there is something, and doesn't wait."""
        data = os.read(self._pipe.fileno(), PIECE)
        try:
            while data and len(data) < PIECE and (more := os.read(self._pipe.fileno(), PIECE - len(data))):
                data += more
        except BlockingIOError:
            pass
        self._left -= len(data)
        if self._left < 0:
            self._process.kill()
            raise AnsibleConnectionFailure(f"it answered with more than {MOST >> 20} MB")
        return data


class _Ssh(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.stdout, self.stderr = (pipe and _Bounded(pipe, self) for pipe in (self.stdout, self.stderr))


class _Subprocess:
    """The module, as Ansible's ssh sees it."""

    Popen = _Ssh

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


ssh.subprocess = _Subprocess()


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rocstack_answers"
