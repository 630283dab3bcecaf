"""The one edge to Ansible: runs a playbook of ours on the nodes of an inventory and gives what each node said.

Whatever Ansible reads is an inventory, and the person's own ansible.cfg, ssh configuration, vault and host keys stay
in force; only what would change our results or print noise is set over them.
"""

import base64
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from rocstack import node
from rocstack.base import paths
from rocstack.base.errors import BadInput, Missing
from rocstack.base.text import visible_lines
from rocstack.edge import complaints, files, reaper

State = Literal["started", "ok", "failed", "unreachable"]
OnEvent = Callable[[str, State], None]
OnTask = Callable[[str, str, State, Mapping[str, Any]], None]  # host, task, how it stands, what its module said
Watch = Callable[[], None]
WATCH_S = 0.3  # seconds between two calls of it
FORKS = 64
_ENDS: dict[str, State] = {"runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}
_FORCED = {
    "ANSIBLE_STDOUT_CALLBACK": "default",
    "ANSIBLE_VERBOSITY": "0",
    "ANSIBLE_NOCOLOR": "True",
    "ANSIBLE_DEPRECATION_WARNINGS": "False",
    "ANSIBLE_LOCALHOST_WARNING": "False",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING": "False",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    # Facts as variables: a node that names options of ssh in its answer would say how this machine reaches it.
    "ANSIBLE_INJECT_FACT_VARS": "False",
    "MAX_EVENT_RES": str(1 << 30),  # ansible-runner drops larger results without a word
}
# No agent, Kerberos ticket or display of the person's is lent to a node, whose root could use them, though their ssh
# configuration does so. What the inventory itself says counts.
NOTHING_LENT = "-akx"
_DEFAULTS = {
    "ANSIBLE_PIPELINING": "True",
    "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
    # A node that hangs, or whose network is cut, would be waited for as long as TCP does: hours.
    "ANSIBLE_SSH_EXTRA_ARGS": f"{NOTHING_LENT} -o ServerAliveInterval=10 -o ServerAliveCountMax=3",
}
# Where Python is looked for on nodes. By their full paths: what a login shell finds first may be a version manager's
# shim that starts nothing. Not in vars_files, which Ansible reads again for each node.
_PYTHONS = [*(f"/usr/bin/python3.{minor}" for minor in range(14, 7, -1)), "/usr/bin/python3", "python3"]
# ssh would wait for ever at a terminal that nobody sees; so it fails, and its reason is shown.
_ANSWERS = {r"continue connecting \(.*\)\?": "no", r"Enter passphrase for .*:": "", r"[Pp]assword:": ""}
# ssh says first what went wrong, and then what follows from it; before that a banner, or a frame of @, may stand.
_SSH_SAYS = re.compile(
    r"^(ssh: |kex_exchange_identification|Load key |Bad owner|no such identity|Unable to negotiate|Host key ver"
    r"|command-line|.*: line \d+: |.*Permission denied|Connection (closed|reset|timed)|Received disconnect)"
)
_HARMLESS = ("Invalid characters were found in group names",)  # they are not replaced either
_UUID = re.compile(r"[0-9a-f-]{36}")
_UNREACHED = r"^Data could not be sent to remote host .*? can be reached over ssh:\s*"


@dataclass(frozen=True)
class HostRun:
    """How a playbook ended on one host; `results` holds what each task's module returned."""

    host: str
    state: State
    reason: str = ""
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class _Events:
    """Ansible's events, joined by host. ansible-runner finds them in Ansible's output, among which is what nodes say,
    too; so one counts only with the file that Ansible wrote of it into `folder`, under a name that no node knows."""

    on_event: OnEvent
    on_task: OnTask
    log: IO[str] | None
    folder: Path = Path()
    hosts: dict[str, HostRun] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    no_hosts: bool = False

    def add(self, event: Mapping[str, Any]) -> bool:
        printed = str(event.get("stdout") or "")
        if self.log and printed:
            self.log.write(visible_lines(printed.replace("\r", "")) + "\n")  # it has a terminal
        if not self._wrote(str(event.get("uuid"))):
            self.texts.append(printed)
            return False
        kind, data = event["event"], event.get("event_data") or {}
        self.no_hosts |= kind == "playbook_on_no_hosts_matched"
        host, task = data.get("host"), data.get("task", "")
        if host is None:
            self.texts.append(printed)
        elif kind == "runner_on_start":
            if host not in self.hosts:
                self.hosts[host] = HostRun(host, "started")
                self.on_event(host, "started")
            self.on_task(host, task, "started", {})
        elif kind in _ENDS and not data.get("ignore_errors"):
            state, result = _ENDS[kind], data.get("res") or {}
            results = {**self.hosts[host].results, task: result} if host in self.hosts else {task: result}
            self.hosts[host] = HostRun(host, state, "" if state == "ok" else reason(result), results)
            self.on_event(host, state)
            self.on_task(host, task, state, result)
        return False  # nothing of it is kept on the disk

    def _wrote(self, uuid: str) -> bool:
        """Whether this event is Ansible's own; its file goes. ansible-runner has taken all of it out of that file."""
        if not _UUID.fullmatch(uuid):
            return False
        try:
            (self.folder / f"{uuid}-partial.json").unlink()
        except FileNotFoundError:
            return False
        return True


def run(
    playbook: str,
    inventory: Path,
    *,
    forks: int = FORKS,
    variables: Mapping[str, Any] | None = None,
    node_specs: Mapping[str, object] | None = None,
    limit: Iterable[str] | None = None,
    timeout: int = 60,
    log: Path | None = None,
    on_event: OnEvent = lambda host, state: None,
    on_task: OnTask = lambda host, task, state, result: None,
    watch: Watch = lambda: None,
) -> tuple[HostRun, ...]:
    """Runs `playbooks/<playbook>` on every host that it names; one HostRun each, in the order of their first answer.

    `variables` become `rocstack_input`, `packed`; they appear in the process list, so nothing secret belongs there.
    `node_specs`, by host, may hold keys: each is `packed`, too, and Ansible reads them out of this process's memory.
    `limit` leaves out all other hosts. `timeout` is in seconds, for playbooks that ask. What Ansible prints is added to
    `log`. `on_event` (a host's first start, and each end) and `on_task` (each task's) are called in another thread.
    `watch` is called before the run and several times a second during it; what it raises ends the run, and all
    processes of it. So does a kill of this process.

    Raises:
        BadInput: the inventory isn't there, can't be read or names no host.
        Missing: Ansible isn't installed.
        CheckFailed: Ansible ended before it reached any host.
    """
    complaints.refuse_absent(inventory)
    _, env = program("ansible-playbook")
    watch()
    with ExitStack() as open_files:
        private = open_files.enter_context(tempfile.TemporaryDirectory(prefix="rocstack-"))
        open_files.enter_context(reaper.reaped(private))
        events = _Events(on_event, on_task, open_files.enter_context(log.open("a")) if log else None)
        # Our modules find the package `node` there, under a name that Ansible doesn't have.
        env["ANSIBLE_MODULE_UTILS"] = f"{private}/module_utils"
        Path(private, "module_utils").mkdir()
        Path(private, "module_utils/rocstack_node").symlink_to(Path(node.__file__).parent)
        secret = ""
        if node_specs is not None:
            text = json.dumps({"node_specs": {name: packed(row) for name, row in node_specs.items()}})
            secret = open_files.enter_context(files.in_memory(text))
        settings = {
            "playbook": str(paths.playbooks() / playbook),
            "inventory": str(inventory.absolute()),
            "forks": forks,
            "extravars": {
                "rocstack_input": packed(variables or {}),
                "rocstack_node_specs": secret,
                "rocstack_timeout": timeout,
                "ansible_interpreter_python_fallback": _PYTHONS,
            },
        }
        if limit is not None:  # in a file: a thousand names would not fit on a command line
            Path(private, "limit").write_text("\n".join(limit) + "\n")
            settings["limit"] = f"@{private}/limit"
        code = _ansible(private, settings, env, events, watch)
    if events.hosts:
        return tuple(events.hosts.values())
    if events.no_hosts or not code:
        raise BadInput.of("no-hosts", inventory)
    raise complaints.start_error("\n".join(events.texts), inventory)


def packed(value: object) -> str:
    """A value for a playbook, which unpacks it by `b64decode | from_json`. Ansible takes the text of a variable for a
    template and runs what it says, and much of our text is what nodes said."""
    # Half characters, which JSON can name, become "?": Ansible refuses them.
    return base64.b64encode(json.dumps(value, ensure_ascii=False).encode(errors="replace")).decode()


def program(name: str) -> tuple[str, dict[str, str]]:
    """The path of a program of Ansible's, and the environment in which it runs.

    Raises:
        Missing: Ansible isn't installed.
    """
    env = environment(os.environ)
    path = shutil.which(name, path=env["PATH"])
    if path is None:
        raise Missing.of("no-ansible", program=name)
    return path, env


def environment(env: Mapping[str, str]) -> dict[str, str]:
    # Started by its path, rocstack runs in an environment whose programs PATH doesn't name.
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", os.defpath)))
    return {**_DEFAULTS, **env, **_FORCED, "PATH": path}


def _ansible(private: str, settings: Mapping[str, Any], env: dict[str, str], events: _Events, watch: Watch) -> int:
    from ansible_runner import runner as runner_module  # type: ignore[import-untyped]
    from ansible_runner.interface import init_runner  # type: ignore[import-untyped]
    from ansible_runner.utils import OutputEventFilter  # type: ignore[import-untyped]

    class NamesAlone(OutputEventFilter):  # type: ignore[misc]
        """Takes of an event in the output nothing but its name: anything may stand there, since a node can write one.
        All else is in the file that Ansible wrote."""

        EVENT_DATA_RE = re.compile(r"\x1b\[K([A-Za-z0-9+/=]{4,78}\x1b\[\d\d?D)\x1b\[K")

        def _emit_event(self, printed: str, event: object = None) -> Any:
            name = event.get("uuid") if isinstance(event, dict) else None
            known = {"uuid": name} if isinstance(name, str) and _UUID.fullmatch(name) else {}
            return super()._emit_event(printed, known)

    runner_module.OutputEventFilter = NamesAlone
    runner = init_runner(
        private_data_dir=private,
        project_dir=str(Path.cwd()),  # Ansible looks for ansible.cfg where it runs
        **settings,
        envvars=env,
        passwords=_ANSWERS,
        suppress_env_files=True,
        quiet=True,
        event_handler=events.add,
        cancel_callback=lambda: False,  # without one it takes the signals away from us
    )
    if "ANSIBLE_HOST_KEY_CHECKING" not in os.environ:  # ansible-runner turns it off; that is not ours to decide
        runner.config.env.pop("ANSIBLE_HOST_KEY_CHECKING", None)
    runner.config.pexpect_timeout, runner.config.suppress_output_file = 0.1, True
    runner.remove_partials, events.folder = False, Path(runner.config.artifact_dir, "job_events")
    _interruptible(runner.run, private, watch)
    return int(runner.rc or 0)


def _interruptible(action: Callable[[], object], mark: str, watch: Watch) -> None:
    """Runs `action` in a thread. An interrupt, or what `watch` raises, ends the processes that carry `mark` in their
    environment: Ansible's workers and their ssh have process groups of their own, and no signal to Ansible reaches all
    of them."""
    done = threading.Event()  # not Thread.join, which believes that the thread has ended when it is interrupted
    failures: list[BaseException] = []

    def body() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=body, daemon=True).start()
    try:
        while not done.wait(WATCH_S):
            watch()
    except BaseException:
        while reaper.end_marked(mark) or not done.wait(0.02):
            pass
        raise
    for error in failures:
        raise error


def reason(result: Mapping[str, Any]) -> str:
    """Why a task failed, in one line: the first that ssh says itself, or the last of the module."""
    texts = [str(result.get(key) or "").strip() for key in ("module_stderr", "msg", "stderr", "exception")]
    text = next(filter(None, texts), "no reason given")
    by_ssh = "over ssh:" in text or "via ssh:" in text
    for prefix in ("Task failed: ", "Action failed: ", "Failed to connect to the host via ssh: "):
        text = text.removeprefix(prefix)
    text = re.sub(_UNREACHED, "", text) or "the connection broke off"
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if by_ssh and _SSH_SAYS.match(line)), lines[-1])


def warnings(output: str) -> tuple[str, ...]:
    """What Ansible warned of, each in one line and once; without what means nothing."""
    parts = re.split(r"^\[([A-Z ]+)\]: *", output, flags=re.MULTILINE)
    said = (" ".join(text.split()) for kind, text in zip(parts[1::2], parts[2::2], strict=True) if kind == "WARNING")
    return tuple(dict.fromkeys(each for each in said if each and not each.startswith(_HARMLESS)))
