"""The `docker run` line: each file in data/hosts describes one host and the line that it should get."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from rocstack.base.errors import BadInput, Missing
from rocstack.container import environment, ulimit
from rocstack.container.environment import parse_env
from rocstack.container.host import Host, of_node, read_host
from rocstack.container.mount import check_mounts, parse_mount
from rocstack.container.run_line import RunLine, RunProfile, parse_gpus, run_line, shell_quote
from rocstack.node.limits import hard_limits, raises_limits, refused_ulimit
from rocstack.node.parse import parse
from rocstack.node.recording import DeviceNode, Recording

CASES = sorted((Path(__file__).parents[1] / "data/hosts").glob("*.yml"))


def host_from(case: dict[str, Any]) -> Host:
    devices = {
        path: DeviceNode("c", 226, 0, kind["gid"], kind["mode"]) for kind in case["devices"] for path in kind["paths"]
    }
    files = {f"{folder}/mtu": "9000\n" for folder in case.get("folders", [])}
    for number, minor in enumerate(case.get("kfd", [])):
        files[f"/sys/class/kfd/kfd/topology/nodes/{number}/properties"] = (
            f"simd_count {1216 if minor else 0}\ndrm_render_minor {minor}\n"
        )
    engine = case["engine"]
    rows = [("Limit", "Soft Limit", "Hard Limit", "Units"), ("Max stack size", 8388608, "unlimited", "bytes")]
    rows += [
        ("Max open files", 1024, engine["nofile"], "files"),
        ("Max locked memory", 65536, engine["memlock"], "bytes"),
    ]
    limits = hard_limits("".join(f"{a:<25} {b!s:<20} {c!s:<20} {d:<10}\n" for a, b, c, d in rows))
    status = f"Name:\tdockerd\nCapEff:\t{engine['capabilities']}\nCapBnd:\t000001ffffffffff\n"
    raises = raises_limits(status, engine.get("uid_map", "         0          0 4294967295\n"))
    recording = Recording(files=files, devices=devices)
    return of_node(recording, parse(recording), limits, raises, int(case["shm_gib"] * 2**30))


def line_for(host: Host, run: dict[str, Any]) -> RunLine:
    return run_line(
        host,
        run["image"],
        run.get("command", ()),
        profile=RunProfile(**run.get("profile", {})),
        gpus=parse_gpus(run.get("gpus", "all")),
        mounts=[parse_mount(text, base=Path("/")) for text in run.get("mounts", [])],
        workspace=Path(run["workspace"]) if "workspace" in run else None,
        env=parse_env(run.get("env", []), {}),
        terminal=run.get("terminal", False),
        stdin=run.get("stdin", False),
        name=run.get("name"),
    )


def pasted(text: str) -> list[str]:
    """The arguments that docker gets when a person pastes `text` into a shell."""
    script = 'docker() { printf "%s\\0" "$@"; }\n' + text
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_line_for_host(file: Path) -> None:
    case = yaml.safe_load(file.read_text())
    line = line_for(host_from(case), case["run"])
    assert shell_quote(line) + "\n" == case["line"]
    assert list(line.notes) == case["notes"]
    assert pasted(shell_quote(line)) == list(line.args), "what is printed is what runs"


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_least_privilege(file: Path) -> None:
    case = yaml.safe_load(file.read_text())
    line = line_for(host_from(case), case["run"])
    closed = ("--privileged", "SYS_ADMIN", "MKNOD", "NET_RAW", "unconfined")
    assert not [flag for flag in line.flags if any(word in flag for word in closed)]
    assert {"--security-opt=no-new-privileges", "--cap-drop=ALL"} <= set(line.flags)
    assert "--group-add=0" not in line.flags
    assert len(set(line.flags)) == len(line.flags)


def test_this_machine_can_be_read() -> None:
    host = read_host()
    assert host.limits["memlock"] >= -1
    assert host.shm is None or host.shm > 0
    assert run_line(host, "w:1").args[-1] == "w:1"


def test_a_node_without_anything() -> None:
    assert of_node(Recording(), parse(Recording()), {}, True) == Host()


def test_chosen_gpu_that_is_not_there() -> None:
    host = Host.model_validate(
        {
            "kfd": {"path": "/dev/kfd", "gid": 1, "mode": 0o660},
            "render": ({"path": "/dev/dri/renderD128", "gid": 1, "mode": 0o660},),
            "gpus": (128,),
        }
    )
    with pytest.raises(BadInput, match="no GPU 1: this host has 1") as caught:
        run_line(host, "w:1", gpus=(0, 1))
    assert caught.value.exit_code == 2
    with pytest.raises(Missing, match="no /dev/kfd") as missing:
        run_line(Host(), "w:1", gpus=(0,))
    assert missing.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "gpus"), [("all", None), ("none", ()), ("0", (0,)), ("2,0-1", (2, 0, 1)), ("1-2,2", (1, 2))]
)
def test_parse_gpus(text: str, gpus: tuple[int, ...] | None) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["", "x", "3-1", "0,", "-1", "0;1", "9999"])
def test_parse_gpus_refuses(text: str) -> None:
    with pytest.raises(BadInput, match="is not a list of GPUs"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/data", "/data:/data"),
        ("/data:ro", "/data:/data:ro"),
        ("out:/out", "/home/ada/out:/out"),
        ("../x/", "/home/x:/home/x"),
        ("~/models:/m:rw", "/root/models:/m"),
    ],
)
def test_parse_mount(text: str, mount: str) -> None:
    assert str(parse_mount(text, base=Path("/home/ada"), home=Path("/root"))) == mount


@pytest.mark.parametrize("text", ["", ":/x", "/a:b", "/a:/", "/a:/b:/c", "/a:/b:rx", "/a::ro", "/a\n:/b"])
def test_parse_mount_refuses(text: str) -> None:
    with pytest.raises(BadInput, match="can't mount"):
        parse_mount(text, base=Path("/"))


def test_check_mounts(tmp_path: Path) -> None:
    here = parse_mount(f"{tmp_path}:/x", base=tmp_path)
    assert check_mounts([here]) == (here,)
    with pytest.raises(BadInput, match="already mounted at /x"):
        check_mounts([here, here])
    with pytest.raises(BadInput, match="there is no"):
        check_mounts([parse_mount("gone", base=tmp_path)])


def test_secret_stays_out_of_the_line_and_of_repr() -> None:
    env = parse_env(["HF_TOKEN", "KEY=a=b", "EMPTY="], {"HF_TOKEN": "s3cret"})
    assert env.values == (("HF_TOKEN", "s3cret"), ("KEY", "a=b"), ("EMPTY", ""))
    line = run_line(Host(), "w:1", env=env)
    assert {"--env=HF_TOKEN", "--env=KEY", "--env=EMPTY"} <= set(line.flags)
    assert "s3cret" not in repr((line, env))


def test_variables_that_steer_the_client_are_not_put_into_its_environment() -> None:
    env = parse_env(["PATH=/x", "DOCKER_HOST=tcp://y", "LD_LIBRARY_PATH=/z"], {})
    assert env.values == ()
    assert env.flags == ("--env=PATH=/x", "--env=DOCKER_HOST=tcp://y", "--env=LD_LIBRARY_PATH=/z")


@pytest.mark.parametrize("text", ["", "=x", "A B", "1A", "A-B=c", "--privileged"])
def test_parse_env_refuses(text: str) -> None:
    with pytest.raises(BadInput, match="is not a valid variable name"):
        parse_env([text], {})
    assert environment.NOTHING.flags == ()


@pytest.mark.parametrize(
    ("value", "limit"),
    [(-1, "-1:-1"), ("-1:-1", "-1:-1"), (67108864, "67108864:67108864"), ("1024:-1", "1024:-1")],
)
def test_limit(value: object, limit: str) -> None:
    assert RunProfile.model_validate({"ulimits": {"stack": value}}).ulimits == {"stack": limit}


@pytest.mark.parametrize("value", ["", "x", "1:", -2, 1.5, True, None, "-1:5", "6:5", "1:1 --privileged"])
def test_limit_refuses(value: object) -> None:
    with pytest.raises(ValidationError):
        RunProfile.model_validate({"ulimits": {"nofile": value}})


def test_written_limit_is_asked_for_and_auto_is_found_out() -> None:
    poor = Host(limits={"memlock": 65536, "nofile": 1024}, raises_limits=False)
    wanted = RunProfile.model_validate({"ulimits": {"memlock": -1, "nofile": "auto", "stack": "auto"}}).ulimits
    given, notes = ulimit.choose(poor, wanted)
    assert given == {"memlock": "-1:-1", "stack": "67108864:67108864"}
    assert notes == ("ulimit nofile can't be raised on this host and stays at 1024",)


def test_unknown_limit_and_size() -> None:
    with pytest.raises(ValidationError, match="only memlock, nofile, stack can be auto"):
        RunProfile.model_validate({"ulimits": {"core": "auto"}})
    with pytest.raises(ValidationError, match="there is no limit 'memlok'"):
        RunProfile.model_validate({"ulimits": {"memlok": 1}})
    with pytest.raises(ValidationError):
        RunProfile.model_validate({"shm": "64 GB"})
    assert TypeAdapter(RunProfile).json_schema()["properties"]["ulimits"]["default"] == "auto"


REFUSALS = yaml.safe_load((Path(__file__).parents[1] / "data/refused-ulimits.yml").read_text())


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: str(case["limit"]))
def test_refused_ulimit(case: dict[str, Any]) -> None:
    assert refused_ulimit(case["stderr"]) == case["limit"]


def test_line_without_the_refused_limit() -> None:
    line = run_line(Host(), "w:1", ["--ulimit=memlock=5"])
    again = line.without_ulimit("memlock")
    assert set(line.flags) - set(again.flags) == {"--ulimit=memlock=-1:-1"}
    assert again.command == line.command
    assert again.notes[-1].startswith("ulimit memlock can't be raised on this host; RoCE")
