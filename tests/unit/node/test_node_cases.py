"""Every case of data/nodes: the parsers make the expected profile, and the collector brings them all they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import recorded_nodes
from recorded_nodes import KINDS, PROFILE, plain

from rocstack.node.collect import collect
from rocstack.node.parse import parse
from rocstack.node.recording import Recording

CASES = recorded_nodes.names()


@pytest.mark.parametrize("name", CASES)
def test_parsed(name: str) -> None:
    assert plain(parse(recorded_nodes.recording(name), KINDS)) == recorded_nodes.expected(name)


@pytest.mark.parametrize("name", CASES)
def test_collected_from_a_tree(name: str, tmp_path: Path) -> None:
    rec = recorded_nodes.recording(name)
    rec.write_tree(tmp_path, below="/")
    found = Recording.from_dict(collect(str(tmp_path)))
    assert not found.unread
    whole = replace(found, host=rec.host, devices=rec.devices, commands=rec.commands, unread=rec.unread, _children={})
    assert plain(parse(whole, KINDS)) == recorded_nodes.expected(name)


@pytest.mark.parametrize("name", CASES)
def test_profile_is_valid_and_survives_json(name: str) -> None:
    profile = parse(recorded_nodes.recording(name), KINDS)
    assert PROFILE.validate_json(PROFILE.dump_json(profile)) == profile


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_what_it_is(name: str) -> None:
    case = recorded_nodes.case(name)
    assert case["about"]
    assert case["origin"].startswith(("recorded: ", "made: "))


def test_cases_are_of_both_origins() -> None:
    assert {recorded_nodes.case(name)["origin"].partition(":")[0] for name in CASES} == {"recorded", "made"}


@pytest.mark.parametrize("name", CASES)
def test_a_recording_survives_json(name: str) -> None:
    rec = recorded_nodes.recording(name)
    assert Recording.from_dict(rec.to_dict()) == rec
