"""The cluster's keys: made once, kept, read encrypted, and never replaced by accident."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.deploy.plan import secrets, tls
from rocstack.deploy.plan.secrets import NAMES, Secrets

VAULT = Path(sys.executable).with_name("ansible-vault")


@pytest.fixture(scope="session")
def made() -> Secrets:
    """Made once: a CA takes its time."""
    return secrets.read(Path("/nonexistent/secrets.yml"))


@pytest.fixture
def file(tmp_path: Path, made: Secrets) -> Path:
    path = tmp_path / secrets.FILE
    secrets.save(path, made)
    return path


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)


def without(file: Path, *names: str) -> None:
    data = {name: value for name, value in yaml.safe_load(file.read_text()).items() if name not in names}
    file.write_text(yaml.safe_dump(data))


def test_made_once_and_read_again(file: Path, made: Secrets) -> None:
    assert made.new == NAMES
    assert file.stat().st_mode & 0o777 == 0o600
    again = secrets.read(file)
    assert again == replace(made, new=())
    before = file.read_bytes()
    secrets.save(file, again)
    assert file.read_bytes() == before
    assert (len(again.munge_key), len(again.jwt_key)) == (1024, 32)
    assert "ansible-vault encrypt rocstack-secrets.yml" in file.read_text()


def test_each_cluster_has_its_own(made: Secrets) -> None:
    other = secrets.read(Path("/nonexistent/secrets.yml"))
    mine, its = made.fingerprints(), other.fingerprints()
    assert list(mine) == list(NAMES)
    assert all(mine[name] != its[name] for name in NAMES)


def test_nothing_shows_a_key(made: Secrets) -> None:
    shown = repr(made) + str(made) + str(made.fingerprints())
    for name in NAMES:
        value = getattr(made, name)
        text = value if isinstance(value, str) else base64.b64encode(value).decode()
        assert text[:40] not in shown


def test_reading_writes_nothing(tmp_path: Path) -> None:
    secrets.read(tmp_path / secrets.FILE)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_missing_is_added_and_the_others_stay(file: Path, made: Secrets) -> None:
    file.write_text("# mine\n" + file.read_text().replace("jwt_key:", "# jwt_key:"))
    found = secrets.read(file)
    assert found.new == ("jwt_key",)
    secrets.save(file, found)
    assert secrets.read(file) == replace(made, jwt_key=found.jwt_key, new=())
    assert file.read_text().startswith("# mine\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_who_comes_second_overwrites_nothing(tmp_path: Path, made: Secrets) -> None:
    path = tmp_path / secrets.FILE
    mine, theirs = made, replace(made, jwt_key=b"x" * 32)
    secrets.save(path, theirs)
    with pytest.raises(CheckFailed) as refused:
        secrets.save(path, mine)
    assert refused.value.code == "secrets-changed"
    assert secrets.read(path).jwt_key == b"x" * 32


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(BadInput, match="other users") as refused:
        secrets.read(file)
    assert (refused.value.code, str(refused.value.where)) == ("open-secrets", str(file))


BROKEN = {
    "text": "only words",
    "list": "[1, 2]",
    "unclosed": "munge_key: 'SECRETSECRET",
    "one value encrypted": "munge_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162SECRETSECRET\n",
    "misspelt": "mung_key: SECRETSECRET",
    "no base64": "munge_key: SECRET-SECRET",
    "short": f"jwt_key: {base64.b64encode(b'SECRETSECRET').decode()}",
    "number": "database_password: 123456789012345678",
    "quotes": "database_password: 'SECRETSECRET \"; drop'",
    "no key": "registry_key: SECRETSECRET",
    "half a CA": "registry_ca: SECRETSECRET",
    "no PEM": "registry_ca: SECRETSECRET\nregistry_ca_key: SECRETSECRET",
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_said_without_showing_it(case: str, tmp_path: Path) -> None:
    file = tmp_path / secrets.FILE
    file.write_text(BROKEN[case])
    file.chmod(0o600)
    with pytest.raises(BadInput) as refused:
        secrets.read(file)
    assert (refused.value.code, str(refused.value.where)) == ("bad-secrets", str(file))
    assert "SECRET" not in str(refused.value.to_dict())
    assert "1234567890" not in str(refused.value.to_dict())


def test_a_key_without_a_name(tmp_path: Path) -> None:
    file = tmp_path / secrets.FILE
    file.write_text("null: x")
    file.chmod(0o600)
    with pytest.raises(BadInput, match="unknown key 'None': known: database_password"):
        secrets.read(file)


def test_the_ca_of_one_cluster_with_the_key_of_another(file: Path) -> None:
    text = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**text, "registry_ca": tls.make_ca(datetime.now(UTC))[0]}))
    with pytest.raises(BadInput, match="not the key of registry_ca"):
        secrets.read(file)


def encrypt(file: Path) -> Path:
    password = file.with_name("password")
    password.write_text("p")
    command = [str(VAULT), "encrypt", "--vault-password-file", str(password), str(file)]
    subprocess.run(command, check=True, capture_output=True)
    assert "munge" not in file.read_text()
    return password


def test_encrypted_it_is_read_by_the_persons_ansible_settings(file: Path, made: Secrets) -> None:
    password = encrypt(file)
    file.chmod(0o644)  # as a checkout has it
    with pytest.raises(BadInput) as locked:
        secrets.read(file)
    assert locked.value.code == "locked-secrets"
    (file.parent / "ansible.cfg").write_text(f"[defaults]\nvault_password_file = {password}\n")
    assert secrets.read(file) == replace(made, new=())


def test_an_encrypted_file_is_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(file, "jwt_key")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(encrypt(file)))
    with pytest.raises(BadInput, match="lacks jwt_key") as refused:
        secrets.read(file)
    assert refused.value.code == "missing-secrets"


def test_a_wrong_password_gives_the_reason(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = encrypt(file)
    password.write_text("another")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    with pytest.raises(BadInput, match="Decryption failed") as refused:
        secrets.read(file)
    assert refused.value.code == "locked-secrets"


def test_another_laptop_without_the_file_replaces_nothing(file: Path, made: Secrets) -> None:
    there = made.fingerprints()
    secrets.refuse_others(file, secrets.read(file), there)
    secrets.refuse_others(file, made, {})  # a cluster that has none yet
    elsewhere = secrets.read(file.with_name("none.yml"))
    with pytest.raises(BadInput, match="munge_key") as refused:
        secrets.refuse_others(file, elsewhere, there)
    assert refused.value.code == "other-secrets"
    assert "another folder" in str(refused.value.cause)


def test_a_key_taken_out_on_purpose_is_replaced(file: Path, made: Secrets) -> None:
    without(file, "registry_ca", "registry_ca_key")
    found = secrets.read(file)
    assert found.new == ("registry_ca", "registry_ca_key")
    secrets.refuse_others(file, found, made.fingerprints())
    with pytest.raises(BadInput, match=r"jwt_key$"):
        secrets.refuse_others(file, replace(found, jwt_key=b"x" * 32), made.fingerprints())


def test_a_folder_that_can_not_be_written(made: Secrets, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RocstackError) as refused:
        secrets.save(tmp_path / "file" / secrets.FILE, made)
    assert refused.value.code == "no-secrets-file"


def test_beside_the_inventory_and_not_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    assert secrets.beside(tmp_path / "inventory.yml") == tmp_path / secrets.FILE
    assert secrets.beside(tmp_path / "site") == tmp_path / secrets.FILE


@pytest.mark.parametrize("new", [(), ("jwt_key",)])
def test_keys_that_a_killed_run_left_beside_the_file_go(new: tuple[str, ...], file: Path, made: Secrets) -> None:
    for name in new:
        without(file, name)
        file.chmod(0o600)
    code = (
        "import os, signal, sys; from pathlib import Path; from rocstack.edge import files\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write(Path(sys.argv[1]), 'munge_key: x', private=True)"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    secrets.save(file, replace(made, new=new))
    assert list(file.parent.iterdir()) == [file]
