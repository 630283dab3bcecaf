"""`cluster:` of rocstack.yml: what may stand in it, and where a mistake is said to be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from cli_run import Cli
from pydantic import ValidationError

from rocstack.base.errors import BadInput
from rocstack.cli.config import example as init_file
from rocstack.cli.config import settings_text
from rocstack.cluster import settings
from rocstack.cluster.operation import how_many, seconds
from rocstack.cluster.settings import ClusterSettings
from rocstack.image import render
from rocstack.settings.settings import load


def written(folder: Path, text: str) -> ClusterSettings:
    (folder / "rocstack.yml").write_text(text)
    return load({}, {}, folder)[0].cluster


@pytest.mark.parametrize("text", ["", "cluster:\n", "cluster: {}\n"])
def test_nothing_said_is_a_good_cluster(text: str, tmp_path: Path) -> None:
    cluster = written(tmp_path, text)
    assert cluster == ClusterSettings()
    assert (list(cluster.partitions), cluster.default_partition) == (["train"], "train")
    assert [(name, each.priority) for name, each in cluster.qos.items()] == [
        ("low", 10),
        ("normal", 100),
        ("high", 1000),
    ]
    assert cluster.qos["high"].preempts == ("low",)
    assert cluster.qos["low"].preempt_mode == "requeue"
    assert list(cluster.accounts) == ["default"]


def test_the_example_that_init_writes(tmp_path: Path) -> None:
    commented = "".join(f"#{line}\n" for line in init_file("cluster").splitlines())
    assert commented in settings_text()
    cluster = written(tmp_path, init_file("cluster"))
    assert cluster.model_fields_set == set(yaml.safe_load(init_file("cluster"))["cluster"])
    assert cluster.priorities == ClusterSettings().priorities
    assert cluster.rollout == ClusterSettings().rollout
    assert cluster.accounts_of("alice") == ("vision", "research")


def test_as_json_and_back() -> None:
    cluster = ClusterSettings.model_validate(yaml.safe_load(init_file("cluster"))["cluster"])
    assert ClusterSettings.model_validate_json(cluster.model_dump_json()) == cluster
    assert ClusterSettings.model_validate(json.loads(cluster.model_dump_json())) == cluster


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("nmae: x", 2, "unknown key 'nmae': did you mean 'name'?"),
        ("environment: {}", 2, "unknown key 'environment': did you mean 'env'?"),
        ("users:\n    al: {uid: 2000, administrator: admin}", 3, "did you mean 'admin'?"),
        ("qos:\n    high: {priorty: 4}", 3, "unknown key 'priorty': did you mean 'priority'?"),
        (
            "qos:\n    high: {preempts: [lwo]}",
            3,
            "cluster.qos.high.preempts.0: there is no QoS 'lwo': known: high, normal",
        ),
        ("qos:\n    high: {max_nodes: -2}", 3, "cluster.qos.high.max_nodes"),
        ("partitions:\n    a: {nodes: 'n[1'}", 3, "'n[1' is no hostlist"),
        ("partitions:\n    a: {max_time: 24:00:00}", 3, "24:00:00 is read to the base of 8 or 60 by YAML"),
        ("partitions:\n    a: {max_time: 1w}", 3, "'1w' is not a duration"),
        ("partitions:\n    a: {max_time: 3651d}", 3, "a job runs for 3650d at most"),
        ("partitions: {}", 2, "it is empty"),
        ("partitions:\n    a: {default: true}\n    b: {default: true}", 4, "only one can be the default"),
        ("partitions:\n    a: {qos: gold}", 3, "there is no QoS 'gold'"),
        (
            "partitions:\n    a:\n      tier: 2\n      accounts:\n      - default\n      - defualt",
            7,
            "did you mean 'default'?",
        ),
        ("accounts:\n    a: {fairshare: 99999999999}", 3, "must be at most 4294967293"),
        ("accounts:\n    a: {max_gpus: 99999999999}", 3, "must be at most 4294967293"),
        ("accounts:\n    root: {}", 3, "'root' is the account above all others"),
        ("qos:\n    a: {priority: 99999999999}", 3, "must be at most 4294967293"),
        ("accounts:\n    a: {parent: b}\n    b: {parent: a}", 3, "a is its own parent"),
        ("accounts:\n    a: {parent: c}", 3, "there is no account 'c'"),
        ("accounts:\n    a: {default_qos: c}", 3, "there is no QoS 'c'"),
        ("accounts:\n    a: {qos: low}", 3, "must be a list"),
        ("users:\n    al: {uid: 64030}", 3, "64030 is slurm in the images"),
        ("users:\n    al: {uid: 65533}", 3, "65533 is hitch in the images"),
        ("users:\n    al: {uid: 999}", 3, "cluster.users.al.uid"),
        ("users:\n    al: {}", 3, "cluster.users.al.uid: it is missing"),
        ("users:\n    al: {uid: 2000, accounts: [x]}", 3, "there is no account 'x'"),
        ("reservations:\n    a: {accounts: [default]}", 3, "name either `nodes` or a `count`"),
        ("reservations:\n    a: {count: 2, nodes: [n1], accounts: [default]}", 3, "name either `nodes` or a `count`"),
        ("reservations:\n    a: {count: 2}", 3, "nobody could use it"),
        ("reservations:\n    a: {count: 2, accounts: [default], duration: 7d}", 3, "one that ends needs a `start`"),
        ("reservations:\n    a: {count: 2, accounts: [default], partition: x}", 3, "there is no partition 'x'"),
        ("reservations:\n    a: {count: 2, accounts: [default], start: tomorrow}", 3, "is not now, or a time"),
        ("rollout: {wave: 0%}", 2, "cluster.rollout.wave: 0% is neither"),
        ("rollout: {wave: 0}", 2, "cluster.rollout.wave: 0 is neither"),
        ("ship: {method: torrent}", 2, "cluster.ship.method"),
        ("ship: {method: p2p}", 2, "p2p was removed; take auto"),
        ("ship: {link_gbps: 25}", 2, "link_gbps was removed; delete it"),
        ("mounts: [home]", 2, "SRC[:DST[:ro]]"),
        ("slurm: {A b: 3}", 2, "'A b' is not a keyword"),
        ('slurm: {Licenses: "a\\nPluginDir=/x"}', 2, "cluster.slurm.Licenses"),
        ("cgroup: atuo", 2, "cluster.cgroup: 'atuo' is not one of auto, v1, v2, disabled: did you mean 'auto'?"),
        ("slurm:\n    SchedulerParamters: x", 3, "did you mean 'SchedulerParameters'"),
        ("slurm:\n    SlurmctldDebug: debgu", 3, "SlurmctldDebug can't be 'debgu': did you mean 'debug'?"),
        ("slurm:\n    KillOnBadExit: soon", 3, "must be a whole number, not 'soon'"),
        ("qos:\n    a: {flags: [DenyOnLimits]}", 3, "there is no flag 'DenyOnLimits': did you mean 'DenyOnLimit'?"),
        ("users: {al: {uid: 2000}}\n  reservations:\n    a: {count: 2, users: [la]}", 4, "did you mean 'al'?"),
        (
            "reservations:\n    a: {count: 2, accounts: [default], start: 2026-02-30T08:00}",
            3,
            "no such time as 2026-02-30",
        ),
        ("partitions:\n    default: {}", 3, "Slurm reads 'default' as the default of all partitions"),
        ("partitions:\n    rocstack-verify: {}", 3, "'rocstack-verify' is the acceptance suite's"),
        ("partitions:\n    a: {nodes: []}", 3, "it names no node"),
        ("partitions:\n    a: {max_time: 168}", 3, "'168' is not a duration such as 30s, 90m, 12h, 7d"),
        ("qos:\n    low: {grace: 60}", 3, "'60' is not a duration"),
        ("health: {every: 5}", 2, "'5' is not a duration"),
        ("qos:\n    a: {preempts: [a]}", 3, "'a' would preempt itself: Slurm refuses a loop"),
        ("qos:\n    a: {preempts: [b]}\n    b: {preempts: [a]}", 3, "'a' would preempt itself through 'b'"),
        ("qos:\n    a: {preempts: [b]}\n    b: {preempts: [c]}\n    c: {preempts: [b]}", 4, "through 'c'"),
        ("accounts:\n    rocstack-verify: {}", 3, "is the acceptance suite's"),
        ("accounts:\n    a: {qos: [low], default_qos: high}", 3, "'high' is not among its `qos`"),
        ("users:\n    rocstack-verify: {uid: 2000}", 3, "is the acceptance suite's"),
        ("users:\n    root: {uid: 2000}", 3, "'root' is a user of the images"),
        ("users:\n    nobody: {uid: 2000}", 3, "'nobody' is a user of the images"),
        ("users:\n    al: {uid: 2000, gid: 64030}", 3, "64030 is slurm in the images"),
        ("users:\n    al: {uid: 2000}\n    bo: {uid: 2000}", 4, "al and bo have one uid, 2000"),
        ("priorities: {qos: 5000000000}", 2, "must be at most 4294967293, not 5000000000"),
        ("ship: {registry: http://r.example:5000}", 2, "write it without http://"),
        ("ship: {method: archive, registry: r.example:5000/x}", 2, "nothing is pulled with `method: archive`"),
        ("mounts:\n    - /home\n    - /home", 4, "/home is mounted above already"),
        ("mounts: [/]", 2, "is not an absolute path below /"),
        ("mounts: [/home/../etc]", 2, "has '..': write the path itself"),
        ("mounts: [/data:/usr]", 2, "it would hide /usr of the images"),
        ("mounts: [/etc/rocstack]", 2, "it would hide /etc/rocstack"),
        ("slurm:\n    DebugFlags: Gress", 3, "DebugFlags can't be 'Gress': did you mean 'Gres'?"),
        ("slurm:\n    LaunchParameters: use_interactive_stp", 3, "did you mean 'use_interactive_step'?"),
        ("slurm:\n    MaxArraySize: 99999999999", 3, "MaxArraySize must be from 0 to 4000001"),
        ("name: a.b", 2, "names tables of Slurm's database"),
        (f"name: {'x' * 41}", 2, "at most 40 letters"),
        ("qos: high", 2, "cluster.qos"),
    ],
)
def test_refused_with_its_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        written(tmp_path, f"cluster:\n  {text}\n")
    assert says in refused.value.what
    assert str(refused.value.where) == f"{tmp_path}/rocstack.yml:{line}"


def test_uids_of_the_images_are_taken() -> None:
    assert {uid: name for name, uid in render.UIDS.items()}.items() <= settings.TAKEN.items()


def test_users_as_the_containers_read_them() -> None:
    users = {"bob": {"uid": 2001, "gid": 100}, "alice": {"uid": 2000}}
    assert ClusterSettings.model_validate({"users": users}).user_lines() == "alice 2000 2000\nbob 2001 100\n" + SUITE
    assert ClusterSettings().user_lines() == SUITE


SUITE = "rocstack-verify 42433 42433\n"  # the acceptance suite's user is always there


@pytest.mark.parametrize(
    ("text", "value"), [("30s", 30), ("90m", 5400), ("12h", 43200), ("7d", 604800), ("infinite", None)]
)
def test_durations(text: str, value: int | None) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("share", "nodes", "many"), [(3, 100, 3), ("25%", 4, 1), ("25%", 5, 2), ("100%", 7, 7), ("1%", 3, 1)]
)
def test_shares(share: int | str, nodes: int, many: int) -> None:
    assert how_many(share, nodes) == many


def test_a_frozen_value() -> None:
    with pytest.raises(ValidationError):
        ClusterSettings().name = "other"  # type: ignore[misc]


def test_config_shows_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rocstack.yml").write_text("nic: mellanox\ncluster:\n  keep_images: 3\n  mounts: [/home]\n")
    table = cli("config", env={"COLUMNS": "400"}).out
    lines = {line.split()[0]: line.split()[1:3] for line in table.splitlines()}
    assert lines["cluster.keep_images"] == ["3", f"{tmp_path}/rocstack.yml:2"]
    assert lines["cluster.mounts"] == ["[/home]", f"{tmp_path}/rocstack.yml:2"]
    assert lines["cluster.cgroup"] == ["auto", "default"]
    assert cli("config", "--json").json()["cluster"]["value"] == {"keep_images": 3, "mounts": ["/home"]}


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/cluster.md").read_text()
    examples = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 5
    for example in examples:
        assert written(tmp_path, example) != ClusterSettings()
