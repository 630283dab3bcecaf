"""What nodes are to be when some of them can't be read, are new, or leave."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import stat
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from rocstack.base.errors import BadInput
from rocstack.cluster.cgroup import SECCOMP
from rocstack.cluster.oidc import ClusterOidc
from rocstack.cluster.settings import ClusterSettings
from rocstack.container.run_line import RunProfile
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.plan import issuer_files, plan, secrets, services
from rocstack.deploy.plan.desired import DesiredCluster
from rocstack.deploy.plan.issuer_files import IssuerFiles
from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import JournalImages
from rocstack.deploy.ship import by_registry
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.probe.recordings import ProbeFailure

DATA = Path(__file__).parents[1] / "data"
HOSTS = tuple(InventoryHost(f"n{number}", f"10.0.0.{number}", f"10.0.0.{number}") for number in (1, 2, 3))
LABELS = {LABEL_PREFIX + "nic": "tcp", LABEL_PREFIX + "component.slurm": "24.11.5"}
IMAGES = {role: Image(role, f"sha256:{role}", role, LABELS) for role in ("worker", "control")}
SILENT = {"problem": "silent", "error": "no answer within 10 s", "cgroup": 0, "cgroup_writable": False}


@cache
def recorded(name: str) -> Any:
    return json.loads((DATA / f"facts/{name}.json").read_text())


@cache
def keys() -> secrets.Secrets:
    return secrets.read(Path("/nonexistent/rocstack-secrets.yml"))


def wanted(
    nodes: dict[str, dict[str, Any]],
    state: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **more: Any,
) -> DesiredCluster:
    """`nodes` are those that are reached, n1 the control node, with what their engines say otherwise; `state` is n1's
    from the last deploy."""
    found = []
    for name, engine in nodes.items():
        data = copy.deepcopy(recorded("n1" if name == "n1" else "n2"))
        data["deploy"]["engine"] |= engine
        data["deploy"]["state"] = state if name == "n1" else None
        found.append(facts.of_dict(name, data))
    gone = tuple(ProbeFailure(host.name, "unreachable", "no route") for host in HOSTS if host.name not in nodes)
    return DesiredCluster(
        Inventory(Path("inventory.yml"), HOSTS[0], HOSTS),
        ClusterSettings.model_validate(cluster or {}),
        RunProfile(),
        keys(),
        IMAGES,
        Gathered(tuple(found), gone),
        datetime.now(UTC),
        **more,
    )


def deployed() -> dict[str, Any]:
    """The state that a deploy of three nodes leaves on the control node."""
    state = wanted({"n1": {}, "n2": {}, "n3": {}}).node_specs()["n1"].state
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def test_an_engine_that_says_nothing_takes_no_cgroups_away() -> None:
    before = wanted({"n1": {}, "n2": {}, "n3": {}})
    now = wanted({"n1": {}, "n2": SILENT, "n3": {}}, deployed())
    assert before.slurm.cgroups.used
    assert now.slurm == before.slurm
    assert now.plan_notes == before.plan_notes == ()
    assert set(now.node_specs()) == {"n1", "n3"}
    assert now.node_specs()["n3"].containers == before.node_specs()["n3"].containers


def test_a_new_node_whose_engine_says_nothing_waits() -> None:
    now = wanted({"n1": {}, "n2": SILENT, "n3": {}})
    assert (list(now.machines), now.absent, now.slurm.cgroups.used) == (["n1", "n3"], ("n2",), True)
    assert now.plan_notes == ("Slurm doesn't know n2 yet, of which nothing could be read: the next deploy adds it",)


def test_a_worker_in_cgroups_has_its_profile_on_its_node() -> None:
    """Its flags name the file, which the engine's client reads when the container is made."""
    spec = wanted({"n1": {}, "n2": {}, "n3": {}}).node_specs()["n2"]
    (worker,) = (each for each in spec.containers if each.service == "worker")
    assert f"--security-opt=seccomp={SECCOMP}" in worker.args
    assert SECCOMP in worker.reads
    assert json.loads(next(file.content for file in spec.files if file.path == SECCOMP))["syscalls"]


def test_a_worker_lies_where_its_engine_makes_cgroups() -> None:
    two = {"cgroup": 2, "cgroup_driver": "cgroupfs"}
    spec = wanted({"n1": {}, "n2": two, "n3": two | {"cgroup_driver": "systemd"}}).node_specs()
    parents = [arg for name in ("n2", "n3") for arg in spec[name].containers[0].args if "cgroup-parent" in arg]
    assert parents == ["--cgroup-parent=/rocstack.slice", "--cgroup-parent=rocstack.slice"]


def test_cgroups_are_not_lost_silently() -> None:
    lost = wanted({"n1": {}, "n2": {}, "n3": {"cgroup_writable": False}}, deployed()).plan_notes
    assert "because of n3" in lost[0]
    assert lost[1].startswith("jobs will no longer be held in cgroups because of n3, and every worker is replaced")
    assert len(wanted({"n1": {}, "n2": {}, "n3": {"cgroup_writable": False}}).plan_notes) == 1, "there was no cluster"


def test_a_worker_that_was_never_read_may_be_named() -> None:
    cluster = {"partitions": {"train": {"nodes": ["n[1-2]"]}, "late": {"nodes": ["n2"]}}}
    text = wanted({"n1": {}, "n3": {}}, cluster=cluster).slurm.texts["slurm.conf"]
    assert "PartitionName=train Nodes=n1 " in text
    assert 'PartitionName=late Nodes="" ' in text


@pytest.mark.parametrize(
    ("settings", "said"), [({}, b"drain\n"), ({"drain": True}, b"drain\n"), ({"drain": False}, b"say\n")]
)
def test_whether_an_ill_node_drains_itself(settings: dict[str, Any], said: bytes) -> None:
    spec = wanted({"n1": {}, "n2": {}}, cluster={"health": settings}).node_specs()["n2"]
    assert [file.content for file in spec.files if file.path == f"{services.CLUSTER}/health"] == [said]


def test_images_stay_under_the_names_that_a_deploy_gave_them() -> None:
    """containerd's store has ids of its own."""
    ident = f"sha256:{'ab' * 32}"
    kept = wanted({"n1": {}, "n2": {}, "n3": {}}, keep=frozenset({ident})).node_specs()["n2"].keep
    assert kept is not None
    assert {ident, "rocstack/worker:abababababab", "rocstack/control:abababababab"} <= {*kept}


@pytest.mark.parametrize(("store", "ships"), [("containerd", False), ("graph", True)])
def test_an_image_that_is_only_known_by_name(store: str, ships: bool) -> None:
    """A release's layers are not in the journal, so in containerd's store its name says that it is there."""
    now = wanted({"n1": {}, "n2": {"store": store}, "n3": {}})
    spec, found = now.node_specs()["n2"], now.facts.node("n2")
    assert found is not None
    there = {
        "id": "sha256:manifest",
        "names": [spec.images[0].name_on_node],
        "digests": [],
        "layers": ["sha256:l"],
        "size": 1,
    }
    about = {"created": "", "role": "worker", "content": "", "stack": "", "nic": "tcp"}
    images = (facts.NodeImage.model_validate({**there, **about}, strict=False),)
    made = plan.changes(spec, found.model_copy(update={"images": images}))
    assert any(change.kind == "ship" for change in made) == ships


STORE, PUSHES = "image registry", "pushes to the image registry"


def files_of(desired: DesiredCluster, name: str) -> dict[str, bytes]:
    return {file.path: file.content for file in desired.node_specs()[name].files}


def flags(desired: DesiredCluster) -> tuple[str, ...]:
    return next(each for each in desired.node_specs()["n1"].containers if each.name == services.CONTROL).args


def test_slurmrestd_is_open_by_tls_only_and_where_it_is_asked_for() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    closed, opened = wanted(nodes), wanted(nodes, cluster={"rest": {"port": 6821}, "ship": {"method": "archive"}})
    for desired in (closed, opened):
        assert "--env=ROCSTACK_RESTD=127.0.0.1:300" in flags(desired)
    assert not any("REST_TLS" in flag for flag in flags(closed))
    assert "--env=ROCSTACK_REST_TLS=0.0.0.0:6821" in flags(opened)
    pem = x509.load_pem_x509_certificate(files_of(opened, "n1")[services.SERVER[0]])
    names = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"n1", "localhost"} <= {*names.get_values_for_type(x509.DNSName)}, "also without a registry of ours"
    for port in (298, 300, 5000, 5001):
        with pytest.raises(ValueError, match=f"port {port} is Slurm's own, or the registry's"):
            ClusterSettings.model_validate({"rest": {"port": port}})


def test_nodes_have_neither_the_pushers_password_nor_one_anothers_key() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    plain = wanted(nodes)
    rack = dataclasses.replace(HOSTS[1], rack_registry="10.0.0.2:5443")
    inventory = dataclasses.replace(plain.inventory, workers=(HOSTS[0], rack, HOSTS[2]))
    racks, push = dataclasses.replace(plain, inventory=inventory), keys().registry_password.encode()
    assert push in files_of(racks, "n1").values()
    assert push not in {*files_of(racks, "n2").values(), *files_of(racks, "n3").values()}
    assert files_of(racks, "n2")[services.REGISTRY] == keys().rack_password("n2").encode()
    of_hosts = {files_of(racks, name)[services.SERVER[1]] for name in ("n1", "n2")}
    assert len(of_hosts) == 2
    assert keys().registry_key.encode() not in of_hosts, "from which all follow"


def accounts(desired: DesiredCluster, node: str) -> dict[str, str]:
    """Of the registry that a node runs, those that pull."""
    lines = files_of(desired, node)[services.REGISTRY_PULL].decode().splitlines()
    return dict(line.split(":") for line in lines)  # type: ignore[misc]


def test_each_node_has_an_account_of_its_own_at_each_registry() -> None:
    """What a rack's root reads of its registry's accounts opens no other, and what a node is given is nobody else's."""
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    plain = wanted(nodes)
    rack = dataclasses.replace(HOSTS[1], rack_registry="10.0.0.2:5443")
    inventory = dataclasses.replace(plain.inventory, workers=(HOSTS[0], rack, HOSTS[2]))
    racks = dataclasses.replace(plain, inventory=inventory)
    assert set(accounts(racks, "n1")) == {"n1", "n2", "n3"}
    assert set(accounts(racks, "n2")) == {"n2"}, "n3 is in no rack of n2's"
    every = [*accounts(racks, "n1").values(), *accounts(racks, "n2").values(), keys().registry_password]
    assert len(every) == len(set(every))
    for name in ("n1", "n2", "n3"):
        login = by_registry.account(racks, racks.registry_address, name)
        assert (login.user, login.password) == (name, accounts(racks, "n1")[name])
    login = by_registry.account(racks, "10.0.0.2:5443", "n2")
    assert (login.user, login.password) == ("n2", accounts(racks, "n2")["n2"])


def test_a_node_that_has_left_loses_its_account() -> None:
    """While the registry runs on: it takes the file over, as it does for a node that is new."""
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    plain = wanted(nodes)
    left = dataclasses.replace(
        plain, inventory=dataclasses.replace(plain.inventory, workers=plain.inventory.workers[:2])
    )
    assert set(accounts(plain, "n1")) - set(accounts(left, "n1")) == {"n3"}
    before, after = (each.node_specs()["n1"] for each in (plain, left))
    assert before.digests()[services.STORE] == after.digests()[services.STORE]
    (store,) = (each for each in after.containers if each.name == services.STORE)
    assert services.REGISTRY_PULL not in store.reads
    folder = services.REGISTRY_PULL.rpartition("/")[0]
    assert f"--volume={folder}:{folder}:ro" in store.args, "a mounted file would stay the one that it was"
    assert services.TAKE_ACCOUNTS in after.commands
    assert services.TAKE_ACCOUNTS not in after.part(("worker",)).commands
    controller = services.controller("n1", "image", (), 6821, 1 << 34)
    assert "--memory=8g" in controller.args
    assert not any(services.PULLS in arg for arg in controller.args), (
        "it has slurmrestd's key from the registry's folder"
    )


def test_an_order_that_was_cut_off_is_finished() -> None:
    """Its files are as they should be, but what takes them over in running daemons may not have run."""
    desired = wanted({"n1": {}, "n2": {}, "n3": {}})
    spec = NodeSpec(files=desired.node_specs()["n1"].files)
    there = desired.control.model_copy(update={"files": {file.path: file.sha256 for file in spec.files}})
    assert plan.changes(spec, there) == ()
    assert [each.kind for each in plan.changes(spec, there.model_copy(update={"unfinished": True}))] == ["file"]


def test_registries_and_their_ports() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    assert wanted(nodes, cluster={"ship": {"port": 5050}}).ports == {"n1": {5050: STORE, 5051: PUSHES}}
    assert wanted(nodes, cluster={"ship": {"registry": "reg.example.org/site"}}).ports == {}
    rest = {"ship": {"registry": "reg.example.org/site"}, "rest": {"port": 6821}}
    assert wanted(nodes, cluster=rest).ports == {"n1": {6821: "slurmrestd by https"}}
    racks = wanted(nodes)
    rack = dataclasses.replace(HOSTS[1], rack_registry="10.0.0.2:5443")
    racks = dataclasses.replace(racks, inventory=dataclasses.replace(racks.inventory, workers=(HOSTS[0], rack)))
    assert racks.ports == {"n1": {5000: STORE, 5001: PUSHES}, "n2": {5443: STORE, 5444: PUSHES}}


def test_the_controllers_slurm_is_known_later() -> None:
    assert deployed()["slurm"] == "24.11.5"
    ids = {"worker": f"sha256:{'a' * 64}", "control": f"sha256:{'c' * 64}"}
    release = JournalImages.of({role: dataclasses.replace(image, id=ids[role]) for role, image in IMAGES.items()})
    assert release.by_role()["control"].slurm == "24.11.5"
    assert release.model_copy(update={"control_labels": {}}).by_role()["control"].slurm == ""


def test_a_node_that_claims_anothers_address_gets_neither_its_rack_nor_a_certificate_for_it() -> None:
    """n3 says that it has the address of the controller, or the one by which the inventory names n2's registry."""
    plain = wanted({"n1": {}, "n2": {}, "n3": {}})
    rack, away = "10.0.0.2:5443", {"rocstack_address": "10.9.0.2"}
    n2 = dataclasses.replace(HOSTS[1], address="10.9.0.2", rack_registry=rack, variables=away)
    n3 = dataclasses.replace(HOSTS[2], host="n3.example", rack_registry="n3.example:5443")
    inventory = dataclasses.replace(plain.inventory, workers=(HOSTS[0], n2, n3))
    for claimed in ("10.0.0.1", "10.0.0.2", "10.7.7.7"):
        node = plain.facts.nodes[2]
        addresses = tuple(dataclasses.replace(each, address=f"{claimed}/24") for each in node.profile.addresses)
        liar = node.model_copy(update={"profile": dataclasses.replace(node.profile, addresses=addresses)})
        gathered = Gathered((*plain.facts.nodes[:2], liar), words=facts.words_of(inventory))
        cluster = ClusterSettings(control_address="10.7.7.7")
        racks = dataclasses.replace(plain, inventory=inventory, facts=gathered, cluster=cluster)
        assert [(each.registry, each.node) for each in racks.mirrors] == [(rack, "n2"), ("n3.example:5443", "n3")]
        pem = x509.load_pem_x509_certificate(files_of(racks, "n3")[services.SERVER[0]])
        names = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert claimed not in {*map(str, names.get_values_for_type(x509.IPAddress))}
    of_site = dataclasses.replace(n2, rack_registry="10.8.8.8:5443")
    claims = {"n2": "10.9.0.2", "n3": "10.8.8.8"}
    inventory = dataclasses.replace(inventory, workers=(HOSTS[0], of_site, n3))
    found = inventory.rack_registries(lambda host: claims.get(host.name, host.address))
    assert [(each.registry, each.node) for each in found] == [("10.8.8.8:5443", None), ("n3.example:5443", "n3")]
    own = inventory.rack_registries(lambda host: {"n2": "10.8.8.8"}.get(host.name, host.address))
    assert own[0].node == "n2", "its own rack's it may be, by an address that only the node knows"


def test_a_container_under_a_name_of_its_own_is_left_alone() -> None:
    def there(name: str) -> dict[str, Any]:
        return {
            "name": name, "id": name, "service": "worker", "image": "", "spec": "", "status": "running", "health": "",
            "restarts": 0, "started": "", "pid": 1, "error": "",
        }  # fmt: skip

    desired = wanted({"n1": {}, "n2": {}})
    names = ("rocstack-control", "rocstack-db-old", "rocstack-registry", "somebodys-test", "rocstack-worker")
    node = facts.of_dict(
        "n2", {**recorded("n2"), "deploy": {**recorded("n2")["deploy"], "containers": [*map(there, names)]}}
    )
    seen = replace(desired, facts=replace(desired.facts, nodes=(desired.facts.nodes[0], node)))
    assert set(seen.node_specs()["n2"].remove) == {"rocstack-control", "rocstack-db", "rocstack-registry"}


SERVED: dict[str, Any] = {"mounts": ("/nfs:/shared",), "service": True, "users": {"al": {"uid": 2000}}}


def served(nodes: dict[str, dict[str, Any]], **cluster: Any) -> DesiredCluster:
    images = {**IMAGES, "service": Image("service", "sha256:service", "service", {})}
    return dataclasses.replace(wanted(nodes, cluster=SERVED | cluster), images=images)


def container(desired: DesiredCluster, name: str, node: str = "n1") -> Any:
    return next((each for each in desired.node_specs()[node].containers if each.name == name), None)


def test_without_a_service_nothing_speaks_of_it() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    spec = wanted(nodes, cluster={"mounts": ("/nfs:/shared",)}).node_specs()["n1"]
    said = json.dumps(spec.to_dict() | {"keep": []})
    assert "rocstack-service" not in said
    assert "service-database" not in said
    assert set(spec.state["images"]) == {"worker", "control"}


def test_the_service_is_on_the_control_node_alone_and_has_no_rights() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    desired = served(nodes)
    own = container(desired, services.API)
    assert container(desired, services.API, "n2") is None
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--user=64033:64033"} <= {*own.args}
    assert not any(arg.startswith(("--cap-add", "--privileged", "--env")) for arg in own.args)
    assert "--volume=/nfs:/shared" in own.args
    assert desired.ports["n1"][8443] == "the service by https"
    assert {image.role for image in desired.node_specs()["n1"].images} == {"worker", "control", "service"}
    assert desired.node_specs()["n1"].state["images"]["service"] == "sha256:service"
    assert (
        "--volume=/etc/rocstack/keys/service-database:/run/secrets/service-database:ro"
        in container(desired, services.DB).args
    )


def test_what_a_user_has_put_at_the_services_folder_gets_no_other_owner(tmp_path: Path) -> None:
    """The command runs as root, and users may write beside the folder: a link could come between a look and the act."""
    commands = served({"n1": {}, "n2": {}, "n3": {}}).node_specs()["n1"].commands
    (line,) = (each for each in commands if each[-1] == "/shared/rocstack")
    assert line[:4] == (services.CONTROL, "sh", "-c", line[3])
    (tmp_path / "chown").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/chowned\n')
    (tmp_path / "chown").chmod(0o755)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    env = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    for name in ("theirs", "link", "dangling", "new/folder"):
        subprocess.run([*line[1:-1], f"{tmp_path}/{name}"], env=env, check=True, capture_output=True)
    assert (tmp_path / "chowned").read_text() == f"--no-dereference 64033:64033 {tmp_path}/new/folder\n"
    assert stat.S_IMODE((tmp_path / "new/folder").stat().st_mode) == 0o711


def test_what_the_service_reads() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    servers = [{"model": "x", "url": "https://h:1"}]
    desired = served(nodes, service={"port": 9443, "models": "/shared/hub", "servers": servers}, rest={"port": 6821})
    files = {file.path: file for file in desired.node_specs()["n1"].files}
    assert {*container(desired, services.API).reads} <= {*files}
    said = json.loads(files[services.SERVICE_SETTINGS].content)
    assert (said["listen"], said["data"], said["models"]) == ("0.0.0.0:9443", "/shared/rocstack", "/shared/hub")
    assert said["users"] == {"al": {"uid": 2000, "gid": 2000}}, "not the acceptance suite's"
    assert said["limits"] == {"file_mib": 512, "quota_mib": 10240, "jobs": 100}
    assert said["servers"] == [{"model": "x", "url": "https://h:1", "ca": None}]
    none = {file.path: file for file in served(nodes, rest={"port": 6821}).node_specs()["n1"].files}
    assert "servers" not in json.loads(none[services.SERVICE_SETTINGS].content), "an older image would refuse the key"
    for path in (services.SERVICE_TLS[1], services.SERVICE_DATABASE):
        assert (files[path].mode, files[path].uid, files[path].gid) == (0o400, 64033, 64033)
    assert files[services.SERVICE_TLS[1]].content != files[services.SERVER[1]].content, "no other server's key"
    password = files[services.SERVICE_DATABASE].content.decode()
    assert password == keys().service_database_password != keys().database_password
    assert password not in files[services.SERVICE_SETTINGS].content.decode()
    pem = x509.load_pem_x509_certificate(files[services.SERVICE_TLS[0]].content)
    names = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "n1" in names.get_values_for_type(x509.DNSName)
    assert "10.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))


def test_a_service_that_is_switched_off_goes() -> None:
    there = {
        "name": services.API, "id": "a", "service": "service", "image": "", "spec": "", "status": "running",
        "health": "", "restarts": 0, "started": "", "pid": 1, "error": "",
    }  # fmt: skip
    desired = wanted({"n1": {}, "n2": {}})
    node = facts.of_dict("n1", {**recorded("n1"), "deploy": {**recorded("n1")["deploy"], "containers": [there]}})
    seen = replace(desired, facts=replace(desired.facts, nodes=(node, desired.facts.nodes[1])))
    assert seen.node_specs()["n1"].remove == (services.API,)


def test_with_an_issuer_there_is_a_maker_of_tokens_and_it_alone_has_the_key() -> None:
    issuer = {"issuer": "https://i", "client_id": "c"}
    files = IssuerFiles(b"the-secret", b"the CA")
    desired = dataclasses.replace(served({"n1": {}, "n2": {}}, service={"oidc": issuer}), issuer=files)
    spec = desired.node_specs()["n1"]
    own, api = container(desired, services.TOKENS), container(desired, services.API)
    assert container(desired, services.TOKENS, "n2") is None
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--user=64034:64033"} <= {*own.args}
    key = f"--volume={services.TOKENS_JWT}:/run/secrets/jwt.key:ro"
    assert [each.name for each in spec.containers if any("jwt" in arg for arg in each.args)] == [
        services.CONTROL, services.TOKENS,
    ]  # fmt: skip
    assert key in own.args
    sockets = "--volume=rocstack-tokens-run:/run/rocstack-tokens"
    assert (sockets in own.args, f"{sockets}:ro" in api.args) == (True, True)
    written = {file.path: file for file in spec.files}
    assert {*own.reads, *api.reads} <= {*written}
    said = json.loads(written[services.SERVICE_SETTINGS].content)
    assert said["oidc"] == {**issuer, "user_claim": "preferred_username", "hours": 8}
    for path, user in ((services.TOKENS_JWT, 64034), (services.ISSUER_SECRET, 64033)):
        assert (written[path].mode, written[path].uid) == (0o400, user)
    assert (said["oidc_secret"], written[services.ISSUER_SECRET].content) == (services.ISSUER_SECRET, b"the-secret")
    assert "the-secret" not in json.dumps([[each.args, each.reads] for each in spec.containers])
    assert "oidc" not in json.dumps(list(map(str, served({"n1": {}}).node_specs()["n1"].containers)))
    public = dataclasses.replace(desired, issuer=IssuerFiles())
    assert services.ISSUER_SECRET not in {file.path for file in public.node_specs()["n1"].files}
    assert "oidc_secret" not in json.loads(
        next(f.content for f in public.node_specs()["n1"].files if f.path == services.SERVICE_SETTINGS)
    )


def test_what_nothing_uses_any_more_goes() -> None:
    """Secrets of the issuer and the service, of a control node or a rack's registry, and an older version's account."""
    old = [*services.OPTIONAL_SECRETS, services.MUNGE_KEY, "/etc/rocstack/other"]
    on, off = (
        served({"n1": {}, "n2": {}}, service={"oidc": {"issuer": "https://i", "client_id": "c"}}),
        wanted({"n1": {}, "n2": {}}),
    )
    on = dataclasses.replace(on, issuer=IssuerFiles(b"secret", b"CA"))

    def gone(desired: DesiredCluster, name: str) -> set[str]:
        nodes = tuple(each.model_copy(update={"files": dict.fromkeys(old, "sha")}) for each in desired.facts.nodes)
        spec = replace(desired, facts=replace(desired.facts, nodes=nodes)).node_specs()[name]
        named = {each.what for each in plan.changes(spec, nodes[0]) if "nothing uses it" in each.why}
        assert named == set(spec.absent)
        assert spec.part(("worker",)).absent == ()
        return named

    assert gone(on, "n1") == {services.OLDER_PULL}
    oidc = {services.ISSUER_SECRET, services.ISSUER_CA, services.TOKENS_JWT}
    assert gone(off, "n1") == {*oidc, services.OLDER_PULL, services.SERVICE_DATABASE, services.SERVICE_TLS[1]}
    assert gone(on, "n2") == set(services.OPTIONAL_SECRETS)


def test_each_secret_of_a_control_node_goes_once_it_is_none() -> None:
    """All but the MUNGE key, which a worker has, too."""
    desired = served({"n1": {}, "n2": {}}, service={"oidc": {"issuer": "https://i", "client_id": "c"}})
    spec = dataclasses.replace(desired, issuer=IssuerFiles(b"secret", b"CA")).node_specs()["n1"]
    secret = {file.path for file in spec.files if not file.mode & 0o044}
    assert {services.JWT_KEY, "/etc/rocstack/slurm/slurmdbd.conf"} < secret
    assert secret - {*services.OPTIONAL_SECRETS} == {services.MUNGE_KEY}


@pytest.mark.parametrize(
    ("content", "mode", "code"),
    [
        ("s3cret\n", 0o600, ""), ("s3cret", 0o644, "open-client-secret"), ("two words", 0o600, "bad-client-secret"),
        ("", 0o600, "bad-client-secret"), ("x" * 4097, 0o600, "bad-client-secret"),
    ],
)  # fmt: skip
def test_the_secret_of_the_client(content: str, mode: int, code: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    file.chmod(mode)
    settings = ClusterOidc(issuer="https://i", client_id="c", client_secret_file=str(file))
    if not code:
        assert issuer_files.read(settings).secret == b"s3cret"
        assert "s3cret" not in repr(issuer_files.read(settings))
        return
    with pytest.raises(BadInput) as refused:
        issuer_files.read(settings)
    assert refused.value.code == code
    assert not content or content not in str(refused.value.to_dict())


def test_the_ca_of_the_issuer(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    settings = ClusterOidc(issuer="https://i", client_id="c", ca_file=str(file))
    for content in ("no PEM", "", "\n"):
        file.write_text(content)
        with pytest.raises(BadInput) as refused:
            issuer_files.read(settings)
        assert refused.value.code == "bad-issuer-ca"
    file.write_text(keys().registry_ca)
    assert issuer_files.read(settings).ca == keys().registry_ca.encode()


@pytest.mark.parametrize(
    ("labels", "mpi"),
    [
        ({}, "pmix"), ({"component.slurm": "24.11.5", "component.pmix": "5.0.7"}, "pmix"),
        ({"component.slurm": "24.11.5"}, "none"),
    ],
)  # fmt: skip
def test_srun_starts_no_ranks_of_mpi_where_the_workers_have_no_pmix(labels: dict[str, str], mpi: str) -> None:
    worker = replace(IMAGES["worker"], labels={LABEL_PREFIX + key: value for key, value in labels.items()})
    desired = dataclasses.replace(wanted({"n1": {}, "n2": {}}), images={**IMAGES, "worker": worker})
    assert f"\nMpiDefault={mpi}\n" in desired.slurm.texts["slurm.conf"]
