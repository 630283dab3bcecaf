from pathlib import Path

import pytest

from rocstack_trainer import settings
from rocstack_trainer.config import Config, micro_batches
from rocstack_trainer.errors import ConfigError

FILE = """\
[model]
hidden_size = 192

[train]
steps = 7
lr = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_overrides_win_over_the_file_and_the_file_over_defaults(file: Path) -> None:
    config = settings.load(str(file), ["--train.steps=9", "--train.deterministic=False", "--data.path=a=b.bin"])
    assert config.train.steps == 9
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    assert config.train.deterministic is False
    assert config.data.path == "a=b.bin"
    assert config.train.seed == Config().train.seed


def test_the_printed_settings_read_back_as_the_same(tmp_path: Path) -> None:
    config = settings.load("tiny", ["--train.lr=1e-5", '--checkpoint.dir=/a "quoted" ü\\path', "--train.clip=0"])
    path = tmp_path / "printed.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert settings.load(str(path)) == config


def test_every_preset_is_valid() -> None:
    presets = sorted(settings.PRESETS.glob("*.toml"))
    assert presets
    for preset in presets:
        settings.load(preset.stem)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--train.stpes=3", "unknown setting train.stpes: did you mean train.steps?"),
        ("--steps=3", "did you mean train.steps?"),
        ("--trian.lr=3", "did you mean train.lr?"),
        ("--zzz", "unknown setting zzz"),
        ("--train.lr", "write it as --train.lr=VALUE"),
        ("--train.lr=fast", "train.lr must be a number, not 'fast'"),
        ("--train.lr=nan", "must be finite"),
        ("--train.steps=1.5", "must be a whole number"),
        ("--train.steps=-1", "must be at least 0"),
        ("--train.deterministic=yes", "must be true or false"),
        ("--parallel.backend=glo", "did you mean gloo?"),
        ("--checkpoint.keep=0", "must be at least 1"),
        ("--checkpoint.every=5", "needs checkpoint.dir"),
        ("--model.num_attention_heads=5", "multiple of model.num_attention_heads"),
        ("--model.num_key_value_heads=3", "multiple of model.num_key_value_heads"),
        ("--data.seq_len=4096", "at most model.max_position_embeddings"),
        ("--model.attention_dropout=1", "below 1"),
        ("--diloco.group=1", "diloco.group must be below diloco.groups"),
        ("--parallel.compress=int9", "did you mean int8?"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load("tiny", [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--parallel.algorithm=ring"], "must be one of auto, flat, hierarchical, not 'ring'"),
        (["--diloco.groups=2", "--checkpoint.dir=c", "--checkpoint.every=7"], "multiple of diloco.inner_steps"),
    ],
)
def test_settings_that_do_not_go_together(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.load("tiny", overrides)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps", "stpes", "run.toml:5: unknown setting train.stpes: did you mean train.steps?"),
        ("[train]", "[trian]", "run.toml:4: unknown section [trian]: did you mean train?"),
        ("steps = 7", "steps = true", "run.toml:5: train.steps must be a whole number, not True"),
        ("lr = 1", 'lr = "1"', "run.toml:6: train.lr must be a number, not '1'"),
        ("[model]\n", "steps = 3\n[model]\n", "unknown section [steps]"),
        ("lr = 1", "lr = ", "run.toml: not valid TOML"),
    ],
)
def test_a_wrong_file_says_where(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        settings.load(str(file))
    assert message in str(caught.value)


def test_a_missing_preset_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"did you mean tiny\?\n  presets: tiny"):
        settings.load("tinny")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        settings.load(str(path))


def test_the_batch_is_shared_by_the_ranks() -> None:
    train = settings.load("tiny", ["--train.batch=24", "--train.micro_batch=3"]).train
    assert micro_batches(train, 1) == (3, 8)
    assert micro_batches(train, 4) == (3, 2)
    with pytest.raises(ConfigError, match="by 5 ranks evenly: try 20"):
        micro_batches(train, 5)
    with pytest.raises(ConfigError, match="try 48"):
        micro_batches(train, 48)
    with pytest.raises(ConfigError, match="micro_batch=3 doesn't divide the 4 samples"):
        micro_batches(train, 6)
