"""Nothing that stands in a recording makes the parsers fail: a profile comes out, or "not a recording"."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import recorded_nodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_nodes import KINDS, PROFILE

from rocstack.base import finding_texts
from rocstack.doctor import nodes
from rocstack.nic.elf import read_libibverbs, read_provider
from rocstack.node.collect_commands import COMMANDS
from rocstack.node.parse import parse
from rocstack.node.recording import LARGEST, RecordedAnswer, Recording, pack, unpack
from rocstack.probe.classes import classes, traits

CASES = {name: recorded_nodes.recording(name) for name in recorded_nodes.names()}
FIELDS = list(Recording().to_dict())


def read_library(data: bytes, is_libibverbs: bool) -> Any:
    return read_libibverbs(data) if is_libibverbs else read_provider(data)


def hold(rec: Recording) -> None:
    """A profile that its own schema accepts, and that the rest can work with."""
    profile = parse(rec, KINDS, read_library)
    assert PROFILE.validate_json(json.dumps(PROFILE.dump_python(profile, mode="json"))) == profile
    traits(profile)
    assert len(classes([profile])) == 1


def hold_or_refused(data: Any) -> None:
    refused = ""
    try:
        hold(Recording.from_dict(data))
    except ValueError as error:
        refused = str(error)
    assert not refused or refused.startswith(("not a recording: ", "a recording of schema "))


texts = st.one_of(
    st.text(max_size=40),
    st.integers().map(str),
    st.sampled_from(
        ["", "\0", "-1", "9" * 5000, "1e999", "NaN", "0x", "\u0663", "4: ", ": ", "1\t2\t3", "255", "-0x1"]
    ),
    st.sampled_from(sorted({text for rec in CASES.values() for text in rec.files.values()})),
)


@given(st.sampled_from(sorted(CASES)), st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_text_in_any_file(name: str, data: st.DataObject) -> None:
    rec = CASES[name]
    changed = data.draw(st.lists(st.sampled_from(sorted(rec.files)), min_size=1, max_size=12))
    files = {**rec.files, **{path: data.draw(texts) for path in changed}}
    answers = {line: replace(rec.commands[line], out=data.draw(texts)) for line in sorted(rec.commands)}
    hold(replace(rec, files=files, commands=answers, _children={}))


@given(st.sampled_from(sorted(CASES)), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_anything_may_be_missing_or_point_anywhere(name: str, data: st.DataObject) -> None:
    rec = CASES[name]
    kept = {path: text for path, text in rec.files.items() if data.draw(st.booleans())}
    places = st.sampled_from(["/", "", "/sys", "..", *sorted(rec.links), *sorted(rec.links.values())])
    links = {path: data.draw(places) if data.draw(st.booleans()) else to for path, to in rec.links.items()}
    hold(replace(rec, files=kept, links=links, _children={}))


@pytest.mark.parametrize("text", ["0" * 100_000, "0." * 50_000, "version: x" + " " * 100_000 + "y", "a" * 100_000])
def test_a_long_text_is_looked_at_once(text: str) -> None:
    """What one node says, patterns that try each of its letters to the end looked at for hours; and a number of
    thousands of digits is no version."""
    rec, files = CASES["mi300x-thor2"], {"/opt/rocm/.info/version": text, "/etc/libibverbs.d/x.driver": text}
    kinds = {re.sub("[0-9a-f]+", "#", path): path for path in rec.files}  # one file of each kind
    answers = {line: RecordedAnswer(0, text) for line in (*COMMANDS, *rec.commands)}
    said = replace(
        rec, files={**rec.files, **dict.fromkeys(kinds.values(), text), **files}, commands=answers, _children={}
    )
    hold(said)
    nodes.examine([parse(said, KINDS, read_library)], finding_texts.table())


names = st.text(alphabet=st.characters(exclude_characters="/"), max_size=8)
folders = ("class/net", "class/infiniband", "class/infiniband_verbs", "bus/pci/devices", "class/kfd/kfd/topology/nodes")


@given(
    st.lists(st.tuples(st.sampled_from(folders), names, st.sampled_from(["mtu", "ibdev", "vendor", "ports/1/state"])))
)
@settings(deadline=None)
def test_any_name(rows: list[tuple[str, str, str]]) -> None:
    files = {f"/sys/{folder}/{name}/{file}": "1\n" for folder, name, file in rows}
    hold_or_refused({**Recording().to_dict(), "files": files})


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)),
    max_leaves=6,
)


@given(st.one_of(values, st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, values))))
def test_any_json_is_a_recording_or_refused(data: Any) -> None:
    hold_or_refused(data)


@given(st.sampled_from(FIELDS), values)
@settings(deadline=None)
def test_any_value_in_any_field(field: str, value: Any) -> None:
    hold_or_refused({**CASES["mi300x-thor2"].to_dict(), field: value})


PACKED = pack(b"library" * 100)


@pytest.mark.parametrize("text", ["", "!", "AAAA", PACKED[:-8], "\n" + PACKED, pack(b"")[:12], "H4sI" * 20])
def test_bytes_that_do_not_unpack(text: str) -> None:
    with pytest.raises(ValueError, match="not a recording"):
        Recording.from_dict({**Recording().to_dict(), "blobs": {"/usr/lib/libibverbs.so.1": text}})


def test_packed_bytes_that_swell() -> None:
    with pytest.raises(ValueError, match="not a recording"):
        Recording.from_dict({**Recording().to_dict(), "blobs": {"/bomb": pack(bytes(LARGEST + 1))}})
    assert unpack(pack(bytes(1000))) == bytes(1000)


@pytest.mark.parametrize("schema", [0, 2, "1", None, True])
def test_another_schema(schema: Any) -> None:
    with pytest.raises(ValueError, match="recording of schema"):
        Recording.from_dict({**Recording().to_dict(), "schema": schema})
