"""`cluster.service` of rocstack.yml: off, `on`, or a mapping; what it needs, and where a mistake is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.base.errors import BadInput
from rocstack.cluster import service
from rocstack.cluster.service import ClusterService, SiteServer
from rocstack.cluster.settings import ClusterSettings
from rocstack.serve.settings import PeopleOfService
from rocstack.settings.settings import load

OIDC = "service: {oidc: {issuer: 'https://i', client_id: x}}"
SHARED = "cluster:\n  mounts: [/nfs:/shared, /models:/models:ro]\n  "


def written(folder: Path, text: str) -> ClusterSettings:
    (folder / "rocstack.yml").write_text(text)
    return load({}, {}, folder)[0].cluster


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a", None),
        ("service: off", None),
        ("service:", None),
        ("service: on", ClusterService()),
        ("service: {}", ClusterService()),
        ("service: {port: 9443, limits: {jobs: 7}}", ClusterService(port=9443, limits={"jobs": 7})),
        (
            "service: {servers: [{model: x, url: 'https://h:1', ca: /shared/ca.pem}]}",
            ClusterService(servers=(SiteServer(model="x", url="https://h:1", ca="/shared/ca.pem"),)),
        ),
    ],
)
def test_off_on_and_more(text: str, expected: ClusterService | None, tmp_path: Path) -> None:
    assert written(tmp_path, SHARED + text + "\n").service == expected


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://h:1/v1", "https://h:1"), ("https://h/v1/", "https://h"), ("https://h/", "https://h"),
        ("https://v1", "https://v1"), ("https://h/llm/v1", "https://h/llm"), ("https://h/xv1", "https://h/xv1"),
    ],
)  # fmt: skip
def test_the_address_of_a_server_ends_before_v1(url: str, kept: str) -> None:
    assert SiteServer(model="x", url=url).url == PeopleOfService(url=url).url == kept


def test_its_folders_are_those_of_the_containers(tmp_path: Path) -> None:
    cluster = written(tmp_path, SHARED + "service: {models: /models/hub}\n")
    assert cluster.service
    assert service.folders(cluster.service, cluster.parsed_mounts) == ("/shared/rocstack", "/models/hub")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("service: yess", 3, "must be a mapping"),
        ("service:\n    prot: 1", 4, "unknown key 'prot': did you mean 'port'?"),
        ("service:\n    port: 443", 4, "must be at least 1024, not 443"),
        ("service:\n    port: 5001", 4, "port 5001 is Slurm's own, the registry's or slurmrestd's"),
        ("rest: {port: 8443}\n  service: on", 4, "port 8443 is Slurm's own"),
        ("service:\n    data: /home", 4, "/home is in none of `mounts` (/shared, /models)"),
        ("service:\n    data: /shared2/x", 4, "/shared2/x is in none of `mounts`"),
        ("service:\n    data: /models/x", 4, "mounted read-only, and the service writes there"),
        ("service:\n    data: /shared/../etc", 4, "no .."),
        ("service:\n    models: /shared/rocstack/m", 4, "is in `data`"),
        ("service: on\n  users:\n    service: {uid: 2000}", 5, "is the user of cluster.service"),
        ("service: on\n  users:\n    al: {uid: 64033}", 5, "is the user of cluster.service"),
        ("service: {limits: {quota_mib: 0}}", 3, "must be at least 1, not 0"),
        ("service:\n    servers: [{model: x, url: 'http://10.0.0.1:1'}]", 4, "in the clear"),
        ("service:\n    oidc: {issuer: 'https://i'}", 4, "client_id"),
        ("service:\n    oidc:\n      issuer: http://i\n      client_id: x", 5, "in the clear"),
        ("service:\n    oidc: {issuer: 'https://i', client_id: x, client_secret: geheim}", 4, "client_secret_file"),
        ("service:\n    oidc: {issuer: 'https://i', client_id: x, hours: 25}", 4, "at most 24, not 25"),
        ("service:\n    oidc: {issuer: 'https://i', client_id: x, ca_file: /none}", 4, "no file /none"),
        (f"{OIDC}\n  users:\n    tokens: {{uid: 2000}}", 5, "is the user of cluster.service"),
        (f"{OIDC}\n  users:\n    al: {{uid: 64034}}", 5, "is the user of cluster.service"),
        (
            "service:\n    servers:\n      - {model: x, url: 'https://h:1', ca: /etc/ca.pem}",
            5,
            "/etc/ca.pem is in none of `mounts`",
        ),
    ],
)
def test_refused_with_its_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        written(tmp_path, f"{SHARED}{text}\n")
    assert says in refused.value.what
    assert str(refused.value.where) == f"{tmp_path}/rocstack.yml:{line}"


def test_it_needs_a_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="folders that all nodes share, and `mounts` names none"):
        written(tmp_path, "cluster:\n  service: on\n")


def test_users_may_have_its_number_where_it_is_off(tmp_path: Path) -> None:
    assert "service" in written(tmp_path, "cluster:\n  users:\n    service: {uid: 64033}\n").users
