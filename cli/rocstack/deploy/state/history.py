"""Who changed the cluster and when: the history on the control node, to which the holder of the cluster's lock adds a
line of JSON when it begins and one when it ends (rocstack.node.cluster_lock). It is a node's word: read in bounds, and
a line that can't be read is left out."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import from_json
from rocstack.deploy.read import journal
from rocstack.deploy.state.cluster_state import HOLDER
from rocstack.edge import ssh
from rocstack.edge.locks import Sign
from rocstack.edge.ssh import SshHost
from rocstack.trust.keys import PublicKey, SigningKey

MOST = 256 << 10  # bytes of it that are read, its newest
_LOCK_MOST = 4 << 10  # bytes of the lock's file
_JOURNAL_MOST = 4 << 20  # bytes of deploy.json: of a thousand nodes it has 150 KB
_MARK = "rocstack-answer"  # a login shell may say things of its own
_SCRIPT = f"""
lock={journal.lock().path}
echo {_MARK}
{HOLDER} | head -c {_LOCK_MOST}
echo
echo {_MARK}
[ ! -e {journal.PATH} ] || head -c {_JOURNAL_MOST} {journal.PATH}
echo
echo {_MARK}
[ ! -e {journal.lock().history} ] || exec tail -c {MOST} {journal.lock().history}
"""
MARK, SIGNER = "signature", "key"  # of a line: its signature, and the fingerprint of the key
_OF_THE_NODE = ("began", "ended")  # which whoever signs a line doesn't know
# Of a line, where keys are trusted; else it has the signer's fingerprint.
UNSIGNED, CHANGED, UNKNOWN = "unsigned", "changed", "by a key that isn't trusted"
AT_WORK, UNENDED = "at work", "began, never ended"  # outcomes beside done, failed, interrupted
_WRITERS = ("deploy", "deploy --resume", "rollback", "down --data")  # commands that write or remove deploy.json


class DeployRecord(BaseModel):
    """What somebody did under the cluster's lock. `fence` is the lock's number; times are the control node's, UTC;
    `nodes` are those that it changed, or was to change where it hasn't ended."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    fence: int
    who: str
    command: str
    began: str
    ended: str = ""
    outcome: str = ""
    why: str = ""
    image: str = ""  # the worker's id
    digest: str = ""  # the registry's
    nodes: tuple[str, ...] = Field(default=())
    failed: tuple[str, ...] = Field(default=())
    journal: str = ""  # digest of deploy.json as this work left it
    signed: str = ""  # by whom; nothing of a line itself says so


@dataclass(frozen=True)
class DeployHistory:
    """From the oldest. `unread` lines could not be read. `forged` were written over one that a trusted key signed.
    `journal` says of deploy.json what a line's `signed` does of the line: by whom it is signed as it is now."""

    deploys: tuple[DeployRecord, ...] = ()
    unread: int = 0
    forged: int = 0
    journal: str = ""

    @property
    def ok(self) -> bool:
        return not self.forged and CHANGED not in (self.journal, *(each.signed for each in self.deploys))

    def to_dict(self) -> dict[str, Any]:
        known: dict[str, Any] = to_jsonable_python(self)
        return known


def signing(key: SigningKey) -> Sign:
    """Signs the last line of each work."""

    def sign(line: Mapping[str, Any]) -> dict[str, Any]:
        own = {"at": journal.now(), SIGNER: key.public.fingerprint}
        return {**own, MARK: base64.b64encode(key.sign(_content({**line, **own}))).decode()}

    return sign


def _content(row: Mapping[str, Any]) -> bytes:
    known = {name: value for name, value in row.items() if name not in (*_OF_THE_NODE, MARK)}
    return json.dumps(known, sort_keys=True, separators=(",", ":")).encode()


def _signed(line: str, keys: Sequence[PublicKey]) -> str:
    row = from_json(line)
    if MARK not in row:
        return UNSIGNED
    try:
        mark = base64.b64decode(row[MARK], validate=True)
    except (ValueError, TypeError):
        return CHANGED
    signers = [key.fingerprint for key in keys if key.signed(_content(row), mark)]
    claimed = row.get(SIGNER)  # of somebody who left, perhaps; it proves no more than a line without a signature
    stranger = isinstance(claimed, str) and claimed not in [key.fingerprint for key in keys]
    return signers[0] if signers else UNKNOWN if stranger else CHANGED


def parse(lines: Iterable[str], holder: str = "", keys: Sequence[PublicKey] = (), digest: str = "") -> DeployHistory:
    """`holder` is what the lock's file says while somebody has it. With `keys` each line is checked, and `digest` of
    deploy.json with what the last who wrote it said."""
    entries: dict[int, DeployRecord] = {}
    unread = forged = 0
    for line in filter(None, lines):
        try:
            entry = DeployRecord.model_validate_json(line)
            signed = _signed(line, keys) if keys else ""
        except ValueError:  # also pydantic's
            unread += 1
            continue
        before = entries.get(entry.fence)
        if before and before.signed not in ("", UNSIGNED, CHANGED, UNKNOWN):
            forged += 1  # nothing follows the last line of a work
        else:
            entries[entry.fence] = entry.model_copy(update={"signed": signed})
    now = _fence(holder)
    unended = {each.fence: AT_WORK if each.fence == now else UNENDED for each in entries.values() if not each.ended}
    for fence, outcome in unended.items():
        entries[fence] = entries[fence].model_copy(update={"outcome": outcome})
    deploys = tuple(entries.values())
    return DeployHistory(deploys, unread, forged, _journal(deploys, digest) if keys and digest else "")


def _journal(deploys: Sequence[DeployRecord], digest: str) -> str:
    last = next((each for each in reversed(deploys) if each.command in _WRITERS), None)
    if last is None or last.outcome == AT_WORK:
        return ""
    if not last.journal or last.signed in (UNSIGNED, CHANGED, UNKNOWN):
        return UNSIGNED
    return last.signed if last.journal == digest else CHANGED


def read(ssh_host: SshHost, keys: Sequence[PublicKey] = ()) -> DeployHistory:
    """Of the control node; changes nothing. With `keys` each line is checked.

    Raises:
        CheckFailed: ssh doesn't get through, or the file can't be read.
    """
    code, out, err = ssh.output(ssh_host, ["sh", "-c", _SCRIPT], MOST + _JOURNAL_MOST + 2 * _LOCK_MOST)
    if code:
        raise CheckFailed.of("history-unread", host=ssh_host.host, why=err)
    _, _, rest = out.partition(f"{_MARK}\n")
    holder, _, rest = rest.partition(f"{_MARK}\n")
    deployed, _, text = rest.partition(f"{_MARK}\n")
    lines = text.split("\n")
    if len(text.encode()) >= MOST:  # its first line is the end of one
        del lines[0]
    return parse(lines, holder.strip(), keys, _digest(deployed))


def _digest(text: str) -> str:
    try:
        return journal.loads(text).digest()
    except BadInput:
        return "of nothing that could be signed"
    except CheckFailed:  # a newer rocstack's, which knows what it means
        return ""


def _fence(holder: str) -> int:
    """The number of the lock that is held; 0 where none is."""
    try:
        return int(from_json(holder)["fence"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
