"""The DiLoCo configuration that AMD published for MI300, and others of that kind, as our settings."""

import json
from pathlib import Path

import pytest

from rocstack_trainer import published, settings
from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError

PRINTED = (Path(__file__).parent / "published" / "mi300-150m.toml").read_text()
GROUP_1 = {"GLOBAL_UNIQUE_ID": "1", "GLOBAL_RANK": "1", "GLOBAL_WORLD_SIZE": "2"}
MEETING = {"GLOBAL_ADDR": "10.0.0.7", "GLOBAL_PORT": "5565"}


def config(tmp_path: Path, text: str = PRINTED, overrides=(), env=None) -> tuple[Config, str]:
    found = published.translate(text, "x.toml", overrides, env)
    assert found
    tree, ours, notes = found
    path = tmp_path / "ours.toml"
    path.write_text("\n".join(f"{s}.{k} = {json.dumps(v)}" for s, part in tree.items() for k, v in part.items()))
    return settings.load(str(path), ours), "\n".join(notes)


def test_the_printed_file_runs_as_it_is(tmp_path: Path) -> None:
    found, notes = config(tmp_path)
    model, train, diloco = found.model, found.train, found.diloco
    assert (model.hidden_size, model.num_hidden_layers, model.num_attention_heads) == (1024, 12, 16)
    assert (model.intermediate_size, model.vocab_size) == (2816, 32000)
    assert (train.batch, train.micro_batch, train.steps, train.warmup, train.lr) == (256, 64, 88_000, 1000, 4e-4)
    assert (train.min_lr, train.weight_decay, found.data.seq_len, found.data.path) == (0, 0.1, 1024, "")
    assert (diloco.inner_steps, diloco.compress, diloco.outer_lr, diloco.outer_momentum) == (500, "int8", 0.7, 0.9)
    assert (found.checkpoint.dir, found.checkpoint.every) == ("/data/datasets/dilico/dilico_doubleGRP", 44000)
    assert (diloco.groups, diloco.always) == (1, True)  # the document's DiLoCo with one group
    for told in (
        "[data] is there more than once",
        "train.reshard_after_forward is not used: layers are always given back",
        "train.torch_profiler is not used",
        "project is not used: no experiment tracker",
        "data.fake: made-up words",
        "diloco.compression=uint8: int8 in blocks",
    ):
        assert f"x.toml: {told}" in notes
    assert len(notes.splitlines()) == 6


def test_its_commands_say_which_group_this_is(tmp_path: Path) -> None:
    words = ["--data.data_rank=1", "--data.data_world_size=2"]
    by_options, _ = config(tmp_path, overrides=words)
    by_env, notes = config(tmp_path, overrides=words, env=GROUP_1 | MEETING)
    for found in (by_options, by_env):
        assert (found.diloco.group, found.diloco.groups, found.diloco.always) == (1, 2, False)
    assert by_env.parallel.store == "10.0.0.7:5565"
    assert "10.0.0.7:5565, where `rocstack-train --store 5565` must run" in notes


def test_options_of_both_kinds_come_last(tmp_path: Path) -> None:
    words = ["--train.micro_bs=32", "--optim.optim.lr=1e-3", "--ckpt.path=/c", "--train.seed=7", "--diloco.groups=2"]
    found, _ = config(tmp_path, overrides=words)
    assert (found.train.micro_batch, found.train.lr, found.checkpoint.dir, found.train.seed) == (32, 1e-3, "/c", 7)
    assert (found.diloco.groups, found.diloco.group) == (2, -1)


def test_real_data_and_its_tokenizer(tmp_path: Path) -> None:
    text = PRINTED.replace("fake = true", "seq_length = 512").replace("path to downloaded data", "/data/fineweb")
    found, notes = config(tmp_path, text)
    assert (found.data.path, found.data.seq_len) == ("/data/fineweb", 512)
    assert "--data.tokenizer=FOLDER should be a copy of mistralai/Mistral-7B-v0.1" in notes


def test_without_diloco_it_is_plain_data_parallel(tmp_path: Path) -> None:
    text = 'name_model = "70M"\ntype_model = "llama2"\ntrain.micro_bs = 8\n[optim]\nbatch_size = 16\nodd = 1\n'
    found, notes = config(tmp_path, text, env=GROUP_1 | MEETING)
    assert not found.outer
    assert (found.train.batch, found.parallel.store) == (16, "")
    assert "optim.odd is not used: there is nothing like it here" in notes


def test_the_sizes_are_those_of_the_models(tmp_path: Path) -> None:
    text = 'name_model = "7B"\ntype_model = "llama2"\n'
    assert config(tmp_path, text)[0].model.intermediate_size == 11008  # as in Llama 2's own config.json
    found, notes = config(tmp_path, text.replace("llama2", "llama3").replace("7B", "70B"))
    assert (found.model.intermediate_size, found.model.num_key_value_heads) == (28672, 8)  # as in Llama 3 70B's
    assert "rope_theta=500000" in notes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"150M"', '"151M"', "no sizes are published for 151M of llama2(?s:.*)there are debugmodel of llama2"),
        ('"uint8"', '"fp4"', "must be no or uint8, not 'fp4'"),
        ("warmup_steps", 'sched_type = "wsd-sqrt"\nwarmup_steps', "cosine"),
        ("lr = 4e-4", "lr = = 4", "x.toml: not valid TOML"),
    ],
)
def test_what_can_not_be_had_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        published.translate(PRINTED.replace(old, new), "x.toml")
    with pytest.raises(ConfigError, match="GLOBAL_RANK=x"):
        published.translate(PRINTED, "x.toml", env={"GLOBAL_RANK": "x"})


def test_our_own_files_are_left_alone() -> None:
    for text in ("", "[train]\nsteps = 3\n", Config().to_toml(), "[data]\n# [optim]\n"):
        assert published.translate(text, "x.toml") is None
