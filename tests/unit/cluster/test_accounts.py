"""QoS, accounts, users and reservations: what real Slurm said (data/accounts), and the commands that follow."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base.errors import BadInput
from rocstack.cluster import accounts, slurm_records
from rocstack.cluster.settings import ClusterSettings

CASES = sorted((Path(__file__).parents[1] / "data/accounts").glob("*.yml"))
FRESH = yaml.safe_load((Path(__file__).parents[1] / "data/accounts/fresh-defaults.yml").read_text())["answers"]
NOW = datetime(2026, 11, 20, 20, 30)


def changes(cluster: dict[str, Any], answers: dict[str, str], now: datetime = NOW) -> accounts.SlurmChanges:
    wanted = ClusterSettings.model_validate(cluster)
    return accounts.changes(wanted, slurm_records.read(answers), workers=["n1", "n2"], groups={"rack": ["n1"]}, now=now)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    made = changes(case["cluster"], case["answers"])
    assert [" ".join(line) for line in made.commands] == case["commands"]
    assert list(made.notes) == case["notes"]


def test_parents_before_their_children_and_default_accounts_first() -> None:
    tree = {"c": {"parent": "b"}, "b": {"parent": "a"}, "a": {}}
    users = {"al": {"uid": 2000, "accounts": ["c", "a"]}, "bo": {"uid": 2001, "accounts": ["a", "b"]}}
    lines = [line[2:] for line in changes({"accounts": tree, "users": users}, FRESH).commands if line[2] == "add"]
    assert [line[2] for line in lines if line[1] == "account"] == ["name=a", "name=b", "name=c"]
    assert [line[2:] for line in lines if line[1] == "user"] == [
        ("name=al", "account=c", "defaultaccount=c"),
        ("name=bo", "account=a", "defaultaccount=a"),
        ("name=al", "account=a"),
        ("name=bo", "account=b"),
    ]


def test_many_users_are_one_command() -> None:
    users = {f"user{number}": {"uid": 2000 + number} for number in range(300)}
    adds = [line for line in changes({"users": users}, FRESH).commands if line[2:4] == ("add", "user")]
    assert len(adds) == 1
    assert adds[0][4].count(",") == 299


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (datetime(2026, 12, 1), ["StartTime=2026-12-24T08:00:00", "EndTime=2026-12-26T08:00:00"]),
        (datetime(2026, 12, 25), ["StartTime=now", "EndTime=2026-12-26T08:00:00"]),
        (datetime(2026, 12, 26, 8), None),
    ],
)
def test_a_reservation_in_time(now: datetime, words: list[str] | None) -> None:
    wanted = {"r": {"count": 2, "accounts": ["default"], "start": "2026-12-24T08:00", "duration": "2d"}}
    made = changes({"reservations": wanted}, FRESH, now)
    lines = [line for line in made.commands if line[0] == "scontrol"]
    assert (list(lines[0][4:6]) if lines else None) == words
    assert bool(made.notes) == (words is None)


def test_a_reservation_leaves_out_what_slurm_does_not_know_yet() -> None:
    of = {"accounts": ["default"]}
    wanted = {"both": {"nodes": ["n[1-2]"], **of}, "late": {"nodes": ["n2"], **of}}
    made = accounts.changes(
        ClusterSettings.model_validate({"reservations": wanted}),
        slurm_records.read(FRESH),
        workers=["n1", "n2"],
        groups={},
        now=NOW,
        absent=["n2"],
    )
    lines = [line for line in made.commands if "reservation" in line]
    assert [(line[3], "Nodes=n1" in line) for line in lines] == [("ReservationName=both", True)]
    assert made.notes == tuple(f"reservation {name}: without n2, which Slurm doesn't know yet" for name in wanted)


def test_a_reservation_of_a_node_that_is_not_there() -> None:
    with pytest.raises(BadInput, match=r"cluster\.reservations\.r\.nodes names 'n3'"):
        changes({"reservations": {"r": {"nodes": ["n3"], "accounts": ["default"]}}}, FRESH)


@pytest.mark.parametrize("name", ["qos", "associations", "users"])
def test_what_is_no_answer_is_refused(name: str) -> None:
    """A complaint between the lines must not look like an empty cluster."""
    with pytest.raises(ValueError, match="sacctmgr said 'sacctmgr: error: oops'"):
        slurm_records.read({**FRESH, name: "sacctmgr: error: oops\n"})


def test_no_answer_is_no_empty_cluster() -> None:
    """Slurm always has the QoS normal and the account root."""
    with pytest.raises(ValueError, match="nothing"):
        slurm_records.read(dict.fromkeys(FRESH, ""))
