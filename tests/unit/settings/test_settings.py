"""Settings: which of flag, variable, file and default wins, and that nothing misspelt is passed over."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_run import Cli, listing

from rocstack.base.errors import BadInput
from rocstack.cli.config import settings_text
from rocstack.container.run_line import RunProfile
from rocstack.settings.settings import Settings, load
from rocstack.steps import options
from rocstack.steps.options import settings


def written(folder: Path, text: str) -> Path:
    (folder / "rocstack.yml").write_text(text)
    return folder


def source(found: Any, name: str) -> tuple[Any, str]:
    setting = next(each for each in found if each.name == name)
    return setting.value, setting.source


def test_defaults(tmp_path: Path) -> None:
    chosen, found = load({}, {}, tmp_path)
    assert chosen == Settings()
    assert (chosen.stack, chosen.nic, chosen.stack_name(), chosen.overlay_folder()) == (
        "debian-13",
        "tcp",
        "debian-13",
        None,
    )
    assert {each.source for each in found} == {"default"}
    assert [each.name for each in found] == list(Settings.model_fields)
    assert all(info.description for info in Settings.model_fields.values())


@pytest.mark.parametrize("layers", list(itertools.product([True, False], repeat=3)))
def test_precedence(layers: tuple[bool, bool, bool], tmp_path: Path) -> None:
    flag, variable, file = layers
    if file:
        written(tmp_path, "# first line\nnic: broadcom\n")
    env = {"ROCSTACK_NIC": "mellanox"} if variable else {}
    chosen, found = load({"nic": "slingshot" if flag else None}, env, tmp_path)
    expected = (
        ("slingshot", "--nic")
        if flag
        else ("mellanox", "ROCSTACK_NIC")
        if variable
        else ("broadcom", f"{tmp_path}/rocstack.yml:2")
        if file
        else ("tcp", "default")
    )
    assert source(found, "nic") == expected
    assert chosen.nic == expected[0]


def test_an_empty_flag_wins_and_an_empty_variable_does_not(tmp_path: Path) -> None:
    written(tmp_path, "overlay: mine\n")
    assert load({"overlay": ""}, {}, tmp_path)[0].overlay == ""
    assert load({}, {"ROCSTACK_OVERLAY": ""}, tmp_path)[0].overlay == "mine"


@pytest.mark.parametrize("text", ["7", " 7"])
def test_numbers_from_the_environment(text: str, tmp_path: Path) -> None:
    if text == "7":
        assert load({}, {"ROCSTACK_ATTEMPTS": text}, tmp_path)[0].attempts == 7
    else:
        with pytest.raises(BadInput, match="attempts = ' 7'"):
            load({}, {"ROCSTACK_ATTEMPTS": text}, tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("nci: tcp\n", 1, "unknown setting 'nci': did you mean 'nic'?"),
        ("nic: tcp\nstak: x\n", 2, "did you mean 'stack'"),
        ("zzz: 1\n", 1, "unknown setting 'zzz'"),
        ("1: x\n", 1, "unknown setting '1'"),
        ("nic: 5\n", 1, "nic = 5"),
        ("stack: x\nnic:\n  - tcp\n", 2, 'nic = ["tcp"]'),
        ("nic: tcp\nnic: tcp\n", 2, "appears twice"),
        ("attempts: 0\n", 1, "attempts = 0: must be at least 1, not 0"),
        ("NIC: tcp\n", 1, "did you mean 'nic'"),
        ("base:\n", 1, "base: must be one of auto, registry, mmdebstrap, and nothing is there"),
        ("base: true\n", 1, "base: must be one of auto, registry, mmdebstrap, not true"),
        (f"ca_bundle: {'x' * 3000}\n", 1, f"no file {'x' * 120}..."),
        (f"sources: {'x' * 900}\n", 1, f"no folder {'x' * 120}..."),
        ("cluster: {control_address: 10.0.0.256}\n", 1, "'10.0.0.256' is not a host name or an address"),
        ("cluster: {gres: on}\n", 1, "cluster.gres: must be one of auto, off, not true"),
        (
            "attempts: '4'\nbase: registy\n",
            2,
            "'registy' is not one of auto, registry, mmdebstrap: did you mean 'registry'?",
        ),
        ("ca_bundle: /nonexistent.pem\n", 1, "no file /nonexistent.pem"),
        ("base_image: 'a b'\n", 1, "is not an image reference"),
        ("apt_mirror: ftp://a.example\n", 1, "is not a plain http(s) address"),
        ("run:\n  ulimit: auto\n", 2, "unknown key 'ulimit': did you mean 'ulimits'?"),
        ("stack: x\nrun: {shm: 1T}\n", 2, "run.shm: '1T' is not host or a size such as 64g"),
        ("run:\n  shm: host\n  ulimits: atuo\n", 3, "run.ulimits: 'atuo' is not"),
        (
            "nic_repository:\n  name: v\n  uri: ftp://a.example\n",
            3,
            "nic_repository.uri: 'ftp://a.example' is not a plain",
        ),
        ("partitions: {}\n", 1, "unknown setting 'partitions': it belongs below `cluster:`"),
        ("nic: tcp\ntag: a b\n", 2, "'a b' is not a tag"),
        ("push: http://r.example:5000\n", 1, "write it without http://"),
        ("image_prefix: Up/X\n", 1, "'Up/X' is not the start of an image's name"),
        ("sources: /nosuch\n", 1, "no folder /nosuch"),
        ("out: ''\n", 1, "it is empty"),
        ("nic_repository: 5\n", 1, "nic_repository = 5: must be a mapping (key: value), not '5'"),
        ("nic_repository: [a]\n", 1, 'nic_repository = ["a"]: must be a mapping (key: value), not a list'),
        ("run: 7\n", 1, "run = 7: must be a mapping"),
        ("rehearsal: maybe\n", 1, "must be true or false, not 'maybe'"),
        ("run:\n  ulimits:\n    memlok: -1\n", 3, "there is no limit 'memlok': did you mean 'memlock'"),
        ('out: "a\\nb"\n', 1, "out = 'a\\nb': 'a\\nb' is not one line of text"),
        (f"nic: {'A' * 9000}\n", 1, f"nic = '{'A' * 120}...': '{'A' * 120}...' is not a name"),
        ("- nic\n", 1, "must hold a mapping"),
    ],
)
def test_refused_with_file_and_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        load({}, {}, written(tmp_path, text))
    assert says in refused.value.what
    assert str(refused.value.where) == f"{tmp_path}/rocstack.yml:{line}"


@pytest.mark.parametrize(
    "name", ["rocstack.yaml", "rocstack.YML", "Rocstack.yml", ".rocstack.yml", "rocstack.yml.txt", "rocstac.yml"]
)
def test_settings_of_a_file_of_another_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("nic: broadcom\n")
    with pytest.raises(BadInput, match=f"'{name}' is never read: the settings are in rocstack.yml"):
        load({}, {}, tmp_path)
    assert load({}, {}, written(tmp_path, "nic: mellanox\n"))[0].nic == "mellanox"


def test_other_files_are_not_settings(tmp_path: Path) -> None:
    (tmp_path / "rocstack").mkdir()
    (tmp_path / "rocstack.yaml").mkdir()
    for name in ("rocstack.lock", "rocstack-secrets.yml", "rocstack.yml~", "release.yml", "inventory.yml"):
        (tmp_path / name).write_text("nic: broadcom\n")
    assert load({}, {}, tmp_path)[0] == Settings()


@pytest.mark.parametrize("target", ["/nonexistent/rocstack.yml", "rocstack.yml"])
def test_a_link_to_nothing_is_not_passed_over(target: str, tmp_path: Path) -> None:
    (tmp_path / "rocstack.yml").symlink_to(target)
    with pytest.raises(BadInput, match="can't read"):
        load({}, {}, tmp_path)


@pytest.mark.parametrize("text", ["", "---\n", "null\n", "# all is commented out\n---\n"])
def test_a_file_that_says_nothing(text: str, tmp_path: Path) -> None:
    assert load({}, {}, written(tmp_path, text))[0] == Settings()


@pytest.mark.parametrize("text", ["off", "'off'", "OFF"])
def test_gpus_can_be_left_out(text: str, tmp_path: Path) -> None:
    """YAML reads `off` as false."""
    assert load({}, {}, written(tmp_path, f"cluster: {{gres: {text}}}\n"))[0].cluster.gres == text.strip("'").lower()


@pytest.mark.parametrize(
    ("flags", "env", "where"),
    [
        ({"nic": "a b"}, {}, "--nic"),
        ({"base_image": "a b"}, {}, "--base-image"),
        ({}, {"ROCSTACK_NIC": "a b"}, "ROCSTACK_NIC"),
        ({}, {"ROCSTACK_ATTEMPTS": "²"}, "ROCSTACK_ATTEMPTS"),
        ({}, {"ROCSTACK_ATTEMPTS": "many"}, "ROCSTACK_ATTEMPTS"),
        ({}, {"ROCSTACK_RUN": "auto"}, "ROCSTACK_RUN"),
    ],
)
def test_refused_with_their_source(flags: dict[str, str], env: dict[str, str], where: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        load(flags, env, tmp_path)
    assert (refused.value.code, str(refused.value.where)) == ("bad-setting", where)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("ROCSTACK_NICS", "did you mean 'ROCSTACK_NIC'?"),
        ("ROCSTACK_STAK", "did you mean 'ROCSTACK_STACK'?"),
        ("ROCSTACK_CA_BUNDEL", "did you mean 'ROCSTACK_CA_BUNDLE'?"),
        ("ROCSTACK_BASEIMAGE", "did you mean 'ROCSTACK_BASE_IMAGE' or 'ROCSTACK_"),
    ],
)
def test_misspelt_variables(variable: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        load({}, {variable: "x"}, tmp_path)
    assert hint in refused.value.what
    assert refused.value.code == "unknown-key"


@pytest.mark.parametrize(
    "variable", ["ROCSTACK_WORLD", "ROCSTACK_ROLE", "ROCSTACK_SITE_ENV", "ROCSTACK", "MY_ROCSTACK_NICS"]
)
def test_variables_of_others(variable: str, tmp_path: Path) -> None:
    """The images themselves set some."""
    assert load({}, {variable: "x"}, tmp_path)[0] == Settings()


def test_passwords_are_not_shown(tmp_path: Path, cli: Cli) -> None:
    address = "https://user:s3cret@mirror.example/debian"
    chosen, found = load({"pip_index": address}, {}, tmp_path)
    assert chosen.pip_index == address
    assert source(found, "pip_index") == ("https://***@mirror.example/debian", "--pip-index")
    ran = cli("config", env={"ROCSTACK_APT_MIRROR": address, "ROCSTACK_PIP_INDEX": address + " x"})
    assert ran.code == 2
    assert "s3cret" not in ran.out + ran.err
    ran = cli("config", env={"ROCSTACK_PIP_INDEX": address})
    assert ran.code == 0
    assert "s3cret" not in ran.out
    assert "https://***@mirror.example/debian" in ran.out


def test_a_mirror_with_a_password_is_refused(tmp_path: Path, cli: Cli) -> None:
    """Its address stands in the image's list of sources."""
    ran = cli("config", env={"ROCSTACK_APT_MIRROR": "https://user:s3cret@mirror.example/debian"})
    assert ran.code == 2
    assert "s3cret" not in ran.out + ran.err


def test_config(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path, "nic: mellanox\nrun: {ulimits: {nofile: 4096}}\n")
    shown = cli("config", "--json", env={"ROCSTACK_STACK": "x"}).json()
    assert list(shown) == ["schema", *Settings.model_fields]
    assert shown["nic"] == {"value": "mellanox", "source": f"{tmp_path}/rocstack.yml:1", "about": "NIC profile"}
    assert shown["stack"]["source"] == "ROCSTACK_STACK"
    assert shown["run"]["value"] == {"ulimits": {"nofile": 4096}}
    assert cli("config", "--json", cwd=Path("/")).json()["run"]["value"] == RunProfile().model_dump()
    text = cli("config").out.splitlines()
    assert text[0].split() == ["SETTING", "VALUE", "FROM", "ABOUT"]
    assert any(line.split()[:2] == ["nic", "mellanox"] for line in text)


def test_the_file_that_init_writes(tmp_path: Path) -> None:
    """With every line uncommented it says the defaults."""
    assert load({}, {}, written(tmp_path, settings_text()))[0] == Settings()
    lines = [
        line.removeprefix("#") if line.startswith("#") and line[1] != " " else line
        for line in settings_text().split("\n")
    ]
    text = "\n".join(lines)
    assert set(yaml.safe_load(text)) == set(Settings.model_fields)
    chosen, found = load({}, {}, written(tmp_path, text))
    assert chosen == Settings()
    assert not [each for each in found if each.source == "default"]


def test_init(cli: Cli, tmp_path: Path) -> None:
    ran = cli("init", "--json")
    assert (ran.code, ran.json()) == (0, {"schema": 1, "written": ["rocstack.yml", "inventory.yml"], "kept": []})
    (tmp_path / "rocstack.yml").write_text("nic: mellanox\n")
    (tmp_path / "inventory.yml").unlink()
    ran = cli("init")
    assert ran.out.splitlines()[:2] == ["kept rocstack.yml", "wrote inventory.yml"]
    assert (tmp_path / "rocstack.yml").read_text() == "nic: mellanox\n"
    inventory = yaml.safe_load((tmp_path / "inventory.yml").read_text())
    assert set(inventory["all"]["children"]) == {"control", "workers"}
    assert cli("init", "[new]/folder").out.splitlines()[0] == "wrote [new]/folder/rocstack.yml"
    assert set(listing(tmp_path / "[new]/folder")) == {"rocstack.yml", "inventory.yml"}


def test_init_writes_nothing_where_a_link_leads(cli: Cli, tmp_path: Path) -> None:
    (work := tmp_path / "copied").mkdir()
    (work / "rocstack.yml").symlink_to("../made")
    ran = cli("init", "--json", cwd=work)
    assert (ran.code, ran.json()["kept"]) == (0, ["rocstack.yml"])
    assert not (tmp_path / "made").exists()


def test_the_vendors_repository(tmp_path: Path) -> None:
    """A mapping with a list in it, as docs/nic.md shows it; an address with a password would stay in the image."""
    text = (
        "nic_repository:\n  name: v\n  uri: https://a.example/x\n  suite: jammy\n  components: [main]\n"
        "  key: https://a.example/k\n  origin: v\n"
    )
    found, _ = load({}, {}, written(tmp_path, text))
    assert found.nic_repository
    assert found.nic_repository.components == ("main",)
    with pytest.raises(BadInput) as refused:
        load({}, {}, written(tmp_path, text.replace("https://a.example/x", "https://u:geheim@a.example/x")))
    assert "geheim" not in str(refused.value.to_dict())


@pytest.mark.parametrize("line", ["nic: brodcom", "stack: debian13", "overlay: nosuch"])
def test_a_name_that_is_none_has_its_line(line: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rocstack.yml").write_text(f"attempts: 4\n{line}\n")
    error = cli("render", "--json", cwd=tmp_path).json()["error"]
    assert error["where"] == f"{tmp_path}/rocstack.yml:2"
    flag, value = line.split(": ")
    (tmp_path / "rocstack.yml").write_text("attempts: 4\n")  # a flag says it, and no line
    error = cli("render", f"--{flag}", value, "--json", cwd=tmp_path).json()["error"]
    assert error["where"] is None


def test_a_copied_folder_has_nothing_written_where_its_links_lead(tmp_path: Path, monkeypatch: Any) -> None:
    """Whoever made it, such as the author of a repository that was cloned, knows where people have their files."""
    (home := tmp_path / "home").mkdir()
    (home / "precious").write_text("mine")
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    for link, to in (("debian-13-tcp/context", home), ("debian-13-tcp/logs/worker.log", home / "precious")):
        (path := work / ".rocstack" / link).parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(to)
        with pytest.raises(BadInput) as caught:
            settings()
        assert caught.value.code == "out-leads-out"
        assert str(path) in str(caught.value.where)
        options._refuse_links.cache_clear()
        path.unlink()
    (work / ".rocstack/own").symlink_to("debian-13-tcp")
    assert settings(out=str(home)).out == str(home)
    assert settings().out == ".rocstack"


def test_a_copied_folder_shows_what_is_in_it(tmp_path: Path, monkeypatch: Any, cli: Cli) -> None:
    """One of mode 0311, as an archive can have it, is written to, and its links are not seen."""
    (hidden := tmp_path / ".rocstack/debian-13-tcp").mkdir(parents=True)
    (hidden / "world").symlink_to("/home/somebody/.bashrc")
    hidden.chmod(0o311)
    scan = os.scandir

    def scandir(path: str) -> Any:  # root sees it
        if Path(path) == hidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    error = cli("render", "--json", cwd=tmp_path).json()["error"]
    assert (error["code"], error["where"]) == ("no-access", str(hidden))


def test_links_in_a_ring_are_no_defect(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / ".rocstack").symlink_to(".rocstack")
    assert cli("render", "--json", cwd=tmp_path).json()["error"]["code"] == "no-access"


@pytest.mark.parametrize("out", [".rocstack", "builds/here"])
def test_a_copied_folder_has_no_link_in_the_place_of_the_folder_itself(
    out: str, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "home/here").mkdir(parents=True)
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    first, _, rest = out.partition("/")
    (work / first).symlink_to("../home")
    with pytest.raises(BadInput) as caught:
        settings(out=out)
    assert (caught.value.code, str(caught.value.where)) == ("out-leads-out", str(work / out))
    options._refuse_links.cache_clear()
    (work / first).unlink()
    (work / "own" / rest).mkdir(parents=True)
    (work / first).symlink_to("own")
    assert settings(out=out).out == out
