"""What `local up` decides before it makes anything: names, networks, addresses, digests, SSH files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.virtual import access, cluster_layout, faults, model, node_image
from rocstack.virtual.cluster_layout import ClusterRequest
from rocstack.virtual.local_cluster import LocalCluster

MODEL = model.load("mi300x-thor2")
NET = IPv4Network("10.213.7.0/24")
HOSTS = {"n1": "10.213.7.11", "n2": "10.213.7.12"}


def test_nodes_get_fixed_addresses() -> None:
    machines = ClusterRequest(MODEL, 3).machines(NET)
    own = [str(next(p.address for p in m.ports if p.spec.management)) for m in machines]
    assert [m.host for m in machines] == ["n1", "n2", "n3"]
    assert own == ["10.213.7.11/24", "10.213.7.12/24", "10.213.7.13/24"]
    assert {m.gateway for m in machines} == {"10.213.7.1"}


def test_a_folder_has_one_cluster_and_another_folder_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert cluster_layout.cluster_id(tmp_path / "a") == cluster_layout.cluster_id(tmp_path / "link")
    assert cluster_layout.cluster_id(tmp_path / "a") != cluster_layout.cluster_id(tmp_path / "b")


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("rocstack", "rocstack-local-0a1b2c3d"),
        ("reg.example.com:5000/hpc", "reg.example.com-5000-hpc-local-0a1b2c3d"),
    ],
)
def test_names_are_names_to_the_engine(prefix: str, name: str) -> None:
    assert cluster_layout.name(prefix, "0a1b2c3d") == name


def test_a_network_in_use_is_not_taken() -> None:
    taken = [IPv4Network("10.213.3.0/24"), IPv4Network("10.213.4.128/25"), IPv4Network("10.213.6.0/23")]
    free = cluster_layout.free_networks(taken, "00000003")
    assert free[:2] == [IPv4Network("10.213.5.0/24"), IPv4Network("10.213.8.0/24")]
    assert free[-1] == IPv4Network("10.213.2.0/24")


def test_no_network_left_is_said() -> None:
    with pytest.raises(CheckFailed) as error:
        cluster_layout.free_networks([IPv4Network("10.0.0.0/8")], "00000000")
    assert error.value.code == "no-subnet"


def test_routes_without_the_default_route() -> None:
    text = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert cluster_layout.routes(text) == [IPv4Network("172.17.0.0/16"), IPv4Network("192.0.2.0/24")]


def test_a_digest_changes_with_all_a_node_is_made_of() -> None:
    def digest(image: str = "i", keys: str = "k", wanted: str = "", network: IPv4Network = NET) -> str:
        asked = (faults.parse(wanted),) if wanted else ()
        return cluster_layout.digest(ClusterRequest(MODEL, 1, asked).machines(network)[0], image, keys)

    others = [digest("j"), digest(keys="l"), digest(wanted="gpu-missing=1")]
    assert digest() == digest()
    assert len({digest(), *others}) == 4


def test_the_inventory_is_an_ordinary_one() -> None:
    folder = Path("/some where/100%/local")
    seen = yaml.safe_load(access.inventory(folder, HOSTS, "mi300x-thor2"))["all"]
    assert seen["vars"] == {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": "/some where/100%%/local/id_ed25519",  # ssh expands %
        "ansible_ssh_common_args": "-F '/some where/100%/local/ssh_config'",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    assert list(seen["children"]["control"]["hosts"]) == ["n1"]
    assert seen["children"]["workers"]["hosts"] == {
        "n1": {"ansible_host": "10.213.7.11"}, "n2": {"ansible_host": "10.213.7.12"},
    }  # fmt: skip
    assert "Virtual nodes" in access.inventory(folder, HOSTS, "mi300x-thor2").splitlines()[0]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client")
def test_ssh_reads_the_configuration_as_meant(tmp_path: Path) -> None:
    folder = tmp_path / "100% of it"
    folder.mkdir()
    file = folder / access.CONFIG
    file.write_text(access.ssh_config(folder, HOSTS))
    shown = subprocess.run(["ssh", "-F", str(file), "-G", "n2"], capture_output=True, text=True, check=True).stdout
    said = dict(line.split(" ", 1) for line in shown.splitlines())
    assert (said["hostname"], said["user"], said["stricthostkeychecking"]) == ("10.213.7.12", "root", "true")
    assert said["userknownhostsfile"].replace("%%", "%").strip('"') == str(folder / access.KNOWN)


@pytest.mark.parametrize("name", ['x"\n    ProxyCommand touch ran\n#', 'a "b"'])
def test_the_name_of_a_copied_folder_is_no_setting_of_ssh(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        access.ssh_config(Path("/work", name), HOSTS)
    assert refused.value.code == "odd-folder"


@pytest.mark.parametrize("name", ["{{ lookup('pipe', 'touch ran') }}", "${HOME}"])
def test_the_name_of_a_copied_folder_is_no_template_of_ansibles(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        access.inventory(Path("/work", name), HOSTS, "mi300x-thor2")
    assert refused.value.code == "odd-folder"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / access.KEY
    public = access.make_key(file, "a comment")
    assert public.startswith("ssh-ed25519 ")
    assert file.stat().st_mode & 0o777 == 0o600
    assert access.make_key(file, "a comment") == public
    assert access.known_hosts({"10.213.7.11": public}) == f"10.213.7.11 {' '.join(public.split()[:2])}\n"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_keys_of_a_copied_folder_let_nobody_in(tmp_path: Path) -> None:
    """Its author has them, too, and virtual nodes are privileged."""
    theirs = access.make_key(tmp_path / access.KEY, "a stranger")
    access.make_key(tmp_path / "nodes/n1" / access.HOST_KEY, "a stranger")
    networks: list[object] = []
    client = SimpleNamespace(networks=SimpleNamespace(list=lambda filters: networks))
    cluster = LocalCluster(client, tmp_path, "rocstack")  # type: ignore[arg-type]
    ours = cluster._login()
    assert ours.split()[1] != theirs.split()[1]
    assert not (tmp_path / "nodes/n1").exists()
    networks.append(object())  # the engine knows this folder's cluster
    assert cluster._login() == ours


def test_without_ssh_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing) as error:
        access.require_ssh()
    assert (error.value.code, error.value.next_step) == ("no-ssh", "install the package openssh-client")


def test_the_dockerfile_of_nodes_is_clean(tmp_path: Path) -> None:
    made = node_image.context("debian:trixie-slim")
    assert made.digest() == node_image.context("debian:trixie-slim").digest()
    assert made.digest() != node_image.context("ubuntu:24.04").digest()
    assert made.files["Dockerfile"].data.startswith(b"FROM debian:trixie-slim AS node\n")
    old = node_image.context("debian:trixie-slim", check_valid_until=False).files["Dockerfile"].data
    assert b"RUN touch /etc/apt/no-valid-until\n" in old  # as the stack takes the index of its own packages
    file = tmp_path / "Dockerfile"
    file.write_bytes(made.files["Dockerfile"].data)
    # SC3047: hadolint takes a RUN with --mount for sh, and the file sets bash.
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--ignore", "SC3047", file], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
