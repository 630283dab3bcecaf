"""The trained model as a Hugging Face folder, which plain transformers loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models.fingerprint import sha256, weights
from rocstack_trainer.saving.folder import fsync, replace

OURS = "rocstack-train.json"  # says that the folder is an export, and of what
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
             "*.model", "*.tiktoken")  # fmt: skip


def check(config: Config) -> None:
    """Raises ConfigError or OSError if `write` would fail, or would replace what isn't an export."""
    path = Path(config.checkpoint.export)
    if path.exists() and any(path.iterdir()) and not (path / OURS).exists():
        raise ConfigError(f"{path} has other things in it: name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(probe, ignore_errors=True)
    probe.mkdir()
    probe.rmdir()


def write(config: Config, net: Any, step: int) -> None:
    """The folder is there whole or not at all. Weights are float32, as they were trained. Raises OSError."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    path = Path(config.checkpoint.export)
    tmp = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    cache, net.config.use_cache = net.config.use_cache, True  # which training has no use for
    try:
        net.save_pretrained(tmp)
        _copy_tokenizer(config.data.tokenizer or config.model.path, tmp)
        about = {"step": step, "weights_sha256": sha256(weights(net)), "from": config.model.path or config.model.type}
        (tmp / OURS).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for entry in (*tmp.iterdir(), tmp):
            fsync(entry)
        replace(tmp, path)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    finally:
        net.config.use_cache = cache


def _copy_tokenizer(source: str, to: Path) -> None:
    if not source:
        return
    for pattern in TOKENIZER:
        for file in Path(source).glob(pattern):
            if file.is_file():
                shutil.copyfile(file, to / file.name)
