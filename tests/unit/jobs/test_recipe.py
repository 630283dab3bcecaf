"""Recipes: what is given becomes words of a shell, and nothing else; wrong input is refused with the right name."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstack.base.errors import BadInput
from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import JobRequest

GIVEN = {
    "accelerate": {"script": "/data/train.py"},
    "deepspeed": {"script": "/data/train.py", "config": "/data/zero.json"},
    "maxtext": {"output": "/data/out"},
    "megatron-deepspeed": {"folder": "/data/megatron", "config": "/data/zero.json"},
    "megatron-lm": {"folder": "/data/megatron", "batch": "512"},
    "primus": {"folder": "/data/primus", "config": "/data/llama.yaml"},
    "torchtitan": {"folder": "/data/run"},
    "finetune": {"model": "/data/llama", "data": "/data/chat.jsonl", "adapter": "/data/adapter"},
    "serve": {"model": "/data/llama", "adapters": "/data/adapters"},
    "torchrun": {"script": "/data/train.py"},
}
ARGUMENTS = {
    "mine": ("python3", "train.py"),
    "megatron-deepspeed": ("--num-layers", "96"),
    "megatron-lm": ("--num-layers", "32"),
}
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
NAMES = sorted(recipes.recipes())


def script(recipe: str, **more: object) -> str:
    known: dict[str, Any] = {"values": GIVEN.get(recipe, {}), "arguments": ARGUMENTS.get(recipe, ())}
    return recipes.script(recipes.find(recipe), JobRequest(**known | more))


def test_accelerate_leaves_the_kind_of_job_to_a_config() -> None:
    """With --multi_gpu, `accelerate launch` ignores that a config asks for FSDP or DeepSpeed."""
    plain = script("accelerate", nodes=2, gpus_per_node=8)
    assert "--multi_gpu" in plain
    assert "--mixed_precision=bf16" in plain
    values = {**GIVEN["accelerate"], "config": "/data/fsdp.yaml"}
    text = script("accelerate", nodes=2, gpus_per_node=8, values=values)
    assert "--config_file=/data/fsdp.yaml" in text
    assert "--num_processes=16" in text
    for option in ("--multi_gpu", "--mixed_precision", "--dynamo_backend"):
        assert option not in text


def test_on_cpus_each_process_of_accelerate_is_a_task(tmp_path: Path) -> None:
    (words,) = ran(script("accelerate", nodes=2, values={**GIVEN["accelerate"], "processes": "2"}), tmp_path)
    assert {"--ntasks=4", "--mpi=pmix", "python3"} <= set(words)
    assert [word for word in words if word.startswith("--ntasks-per-node")][-1] == "--ntasks-per-node=2"


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "megatron-lm", "torchrun", "torchtitan"])
def test_launchers_are_those_of_the_virtual_environment(name: str) -> None:
    """The image's own programs name the image's Python."""
    text = script(name, nodes=2, gpus_per_node=8, values={**GIVEN[name], "venv": "/v"})
    assert 'export PATH=/v/bin:"$PATH"' in text
    assert "python3 -m " in text.splitlines()[-1] + text.splitlines()[-2]


def options(text: str) -> dict[str, str]:
    """Of the lines that sbatch reads."""
    words = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert all(word[0].isalpha() for word in words)
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def ran(text: str, folder: Path) -> list[list[str]]:
    """The words that each srun of the script gets, where `srun` writes them down."""
    program = folder / "srun"
    program.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >>{folder}/words; echo >>{folder}/words\n')
    program.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_CPUS_ON_NODE": "8", "SLURM_JOB_NUM_NODES": "2"}
    subprocess.run(["bash", "-s"], input=text, text=True, env=env, cwd=folder, check=True)
    return [line.split("\0")[:-1] for line in (folder / "words").read_text().split("\n")[:-1]]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_renders_to_a_script_that_shellcheck_accepts(name: str, tmp_path: Path) -> None:
    full = {"nodes": 4, "gpus_per_node": 8, "preflight": True, "spare": 1, "time": "12h"}
    for number, more in enumerate(({}, full)):
        file = tmp_path / f"{number}.sh"
        file.write_text(script(name, **more))
        done = subprocess.run([SHELLCHECK, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


# What ROCm/spur's sbatch and srun know, too (crates/spur-cli of 2026-08): they refuse all else, and read no #SLURM.
SHARED = {
    "sbatch": {
        *("job-name", "chdir", "output", "open-mode", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem"),
        *("time", "partition", "account", "qos", "requeue"),
    },
    "srun": {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "label", "mpi", "exclude"},
}
OWN_SLURM = {"signal", "no-requeue"}


def srun_options(text: str) -> Iterator[str]:
    for line in text.splitlines():
        own = re.match(r"\s*srun\+?=\((.*)\)$", line)
        words = own[1] if own else line.partition('"${srun[@]}"')[2]
        for word in words.split():
            if not own and not word.startswith("-"):
                break  # the program
            if word.startswith("--"):
                yield word[2:].partition("=")[0]


@pytest.mark.parametrize("name", NAMES)
def test_only_options_of_both_schedulers(name: str) -> None:
    full = {"nodes": 4, "gpus_per_node": 8, "preflight": True, "time": "12h", "partition": "a", "account": "b"}
    for more in ({}, full | {"qos": "c", "folder": "/d"}):
        text = script(name, **more)
        assert set(options(text)) <= SHARED["sbatch"]
        assert {word.split("=")[0] for word in re.findall(r"^#SLURM --(.*)", text, re.MULTILINE)} <= OWN_SLURM
        assert set(srun_options(text)) <= SHARED["srun"]
        assert "mpirun" not in text


@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_script(name: str) -> None:
    assert script(name, nodes=3) == script(name, nodes=3)


def test_what_the_person_asks_for_stands_in_the_options() -> None:
    found = options(
        script(
            *("trainer",),
            nodes=3,
            gpus_per_node=8,
            time="90m",
            partition="big",
            account="ml",
            qos="high",
            name="run1",
            folder="/shared/a b",
        )
    )
    assert found["nodes"] == "3"
    assert found["gpus-per-node"] == "8"
    assert found["ntasks-per-node"] == "8"
    assert (found["partition"], found["account"], found["qos"]) == ("big", "ml", "high")
    assert found["time"] == "1:30:00"
    assert found["job-name"] == "run1"
    assert found["chdir"] == "'/shared/a b'"
    assert "exclusive" in found
    assert "requeue" in found


def test_spare_nodes_are_asked_for_and_not_used(tmp_path: Path) -> None:
    text = script("mine", nodes=2, preflight=True, spare=1)
    assert options(text)["nodes"] == "3"
    preflight = tmp_path / "rocstack-preflight"
    preflight.write_text("#!/bin/sh\necho n2\nexit 1\n")
    preflight.chmod(0o755)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho n2\n")
    scontrol.chmod(0o755)
    text = text.replace("$SLURM_JOB_NUM_NODES", "3").replace("SLURM_JOB_NUM_NODES", "3")
    (words,) = ran(text, tmp_path)
    assert "--nodes=2" in words
    assert "--exclude=n2" in words


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x7f"), min_size=1, max_size=60))
def test_a_value_is_one_word_whatever_stands_in_it(text: str) -> None:
    line = script("torchrun", values={"script": text}).splitlines()[-1]
    assert shlex.split(line)[-1] == text


def test_a_long_run_of_spaces_is_no_work() -> None:
    """Each of them was taken for the beginning of a line's end: a megabyte of them took hours."""
    word = " " * 300_000 + "x"
    assert word in recipes.script(recipes.find("mine"), JobRequest(arguments=("echo", word)))


def test_arguments_reach_the_program_as_they_are(tmp_path: Path) -> None:
    hostile = ("python3", "a b", "$(touch x)", "`id`", "'", '"', "{{ 7*7 }}", "*", "-n")
    (words,) = ran(script("mine", arguments=hostile), tmp_path)
    assert words[-len(hostile) :] == list(hostile)
    assert not (tmp_path / "x").exists()


def test_the_trainer_gets_its_settings(tmp_path: Path) -> None:
    values = {"config": "run.toml", "steps": "7", "checkpoints": "/shared/ck"}
    (words,) = ran(script("trainer", nodes=2, values=values, arguments=("--train.lr=1e-4",)), tmp_path)
    assert words[words.index("rocstack-train") + 1 :] == [
        *("--config", "run.toml", "--steps=7", "--checkpoint.dir=/shared/ck", "--checkpoint.every=500"),
        *("--checkpoint.requeue=true", "--train.lr=1e-4"),
    ]
    assert "--cpus-per-task=8" in words
    assert "--label" in words


@pytest.mark.parametrize(
    ("name", "more", "code", "says"),
    [
        ("trainer", {"values": {"stps": "3"}}, "unknown-parameter", "did you mean 'steps'?"),
        ("trainer", {"values": {"steps": "0"}}, "bad-parameter", "less than 1"),
        ("trainer", {"values": {"steps": "x"}}, "bad-parameter", "no whole number"),
        ("trainer", {"values": {"steps": "9" * 400}}, "bad-parameter", "no number to count with"),
        ("trainer", {"values": {"data": "a\nb"}}, "bad-parameter", "control characters"),
        ("finetune", {"values": {}}, "missing-parameter", "needs model"),
        ("finetune", {"values": GIVEN["finetune"] | {"layout": "paked"}}, "bad-parameter", "did you mean 'packed'"),
        ("finetune", {"values": GIVEN["finetune"] | {"lr": "nan"}}, "bad-parameter", "no number"),
        ("mine", {"arguments": ()}, "missing-arguments", "python3 train.py"),
        ("trainer", {"time": "3x"}, "bad-job-option", "90m"),
        ("trainer", {"partition": "a b"}, "bad-job-option", "partition"),
        ("trainer", {"folder": "relative"}, "bad-job-option", "absolute"),
        ("trainer", {"name": "x\n#SBATCH --uid=0"}, "bad-job-option", "name"),
        ("trainer", {"spare": 1}, "spare-for-nothing", "preflight"),
    ],
)
def test_wrong_input(name: str, more: dict[str, object], code: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        script(name, **more)
    assert caught.value.code == code
    assert says in f"{caught.value.what} {caught.value.cause} {caught.value.next_step}"


def test_an_unknown_recipe() -> None:
    with pytest.raises(BadInput, match="did you mean 'trainer'"):
        recipes.find("trainr")
    with pytest.raises(BadInput):
        recipes.find("_job")


HEAD = "---\nabout: mine\nparameters:\n  words: {about: words, type: words, default: a b}\n---\n"


def own(folder: Path, text: str, name: str = "own") -> Path:
    (folder / "recipes").mkdir()
    (folder / f"recipes/{name}.sbatch.j2").write_text(text)
    return folder


def test_a_site_has_its_own_recipes(tmp_path: Path) -> None:
    folder = own(tmp_path, HEAD + '{% extends "_job" %}\n{% block commands %}\nsrun x {{ p.words }}\n{% endblock %}\n')
    assert "own" in recipes.recipes(folder)
    text = recipes.script(recipes.find("own", folder), JobRequest(values={"words": "c 'd e'"}), folder)
    assert text.splitlines()[-1] == "srun x c 'd e'"


def test_a_recipe_fills_blocks_of_another_one(tmp_path: Path) -> None:
    block = "{{% block {} %}}\n{}\n{{% endblock %}}\n"
    commands = block.format("commands", "load\n" + block.format("run", ""))
    folder = own(tmp_path, HEAD + '{% extends "_job" %}\n' + commands)
    (folder / "recipes/ours.sbatch.j2").write_text(HEAD + '{% extends "own" %}\n' + block.format("run", "srun x"))
    text = recipes.script(recipes.find("ours", folder), JobRequest(), folder)
    assert text.split()[-3:] == ["load", "srun", "x"]


def test_a_site_changes_the_commands_of_ours_or_of_all(tmp_path: Path) -> None:
    folder = own(
        tmp_path, '{% extends "_job" %}\n{% block commands %}\nmine {{ p.config }}\n{% endblock %}\n', "trainer"
    )
    (folder / "recipes/_job.sbatch.j2").write_text("#!/bin/sh\nmodule load x\n{% block commands %}\n{% endblock %}\n")
    text = recipes.script(recipes.find("trainer", folder), JobRequest(), folder)
    assert text == "#!/bin/sh\nmodule load x\nmine tiny\n"


def test_a_link_of_a_stranger_brings_no_file_of_this_machine_into_a_script(tmp_path: Path) -> None:
    """A folder that was copied, by git for example, has the links of whoever made it."""
    (tmp_path / "rocstack-secrets.yml").write_text("registry_ca_key: precious\n")
    (folder := tmp_path / "overlay").mkdir()
    own(folder, HEAD + '{% include "mine" %}\n')
    link = folder / "recipes/mine.sbatch.j2"
    link.symlink_to(tmp_path / "rocstack-secrets.yml")
    with pytest.raises(BadInput) as caught:
        recipes.script(recipes.find("own", folder), JobRequest(), folder)
    assert caught.value.code == "overlay-leads-out"
    assert str(link) in str(caught.value.where)


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    """And the folder of recipes may be a link itself."""
    (folder := tmp_path / "overlay").mkdir()
    own(tmp_path, HEAD + "srun x\n")
    (tmp_path / "recipes/same.sbatch.j2").symlink_to("own.sbatch.j2")
    (folder / "recipes").symlink_to(tmp_path / "recipes")
    assert recipes.script(recipes.find("same", folder), JobRequest(), folder) == "srun x\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD.replace("about: mine", "abuot: mine"), 2),
        (HEAD.replace("type: words", "type: wrds"), 4),
        (HEAD.replace("default: a b", 'default: "a \'b"'), 4),
        (HEAD.replace("parameters", "figures: {tokens: '([0-9]+'}\nparameters"), 3),
        (HEAD.replace("parameters", "figures: {tokens: '[0-9]+'}\nparameters"), 3),
        (HEAD.replace("parameters", "figures: {all: true}\nparameters"), 3),
        (HEAD.replace("parameters", "size: {model: wrods}\nparameters"), 3),
        (HEAD + "srun {{ p.wrds }}\n", 6),
        (HEAD + "{% if %}\n", 6),
        (HEAD + "{{ 1 / 0 }}\n", 6),
        (HEAD + "#\n{{ nodes + p.words }}\n", 7),
        (HEAD + "{% for each in range(10**9) %}\n{% endfor %}\n", 6),
        (HEAD + "{{ recipe.parse_file('/etc/passwd') }}\n", 6),
        (HEAD + '{% extends "_job" %}\n{% block command %}\nsrun x\n{% endblock %}\n', 7),
    ],
)
def test_a_wrong_recipe_is_named_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    folder = own(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        recipes.script(recipes.find("own", folder), JobRequest(), folder)
    assert str(caught.value.where) == f"{tmp_path}/recipes/own.sbatch.j2:{line}"
