"""A tiny tokenizer with a chat template and conversations of made-up words, all made here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|{{ m.role }}|>{% if m.role == 'assistant' %}OPEN{{ m.content }}<|end|>CLOSE"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
COMPARED = CHATML.replace("OPEN", "").replace("CLOSE", "")
MARKED = CHATML.replace("OPEN", "{% generation %}").replace("CLOSE", "{% endgeneration %}")
# As templates do that hide what was thought before the last answer.
FORGETFUL = COMPARED.replace(
    "{{ m.content }}<|end|>{% else", "{{ '' if loop.last else '~' }}{{ m.content }}<|end|>{% else"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
END = 256  # bytes come first


def tokenizer(folder: Path, template: str | None = COMPARED) -> Path:
    """A token for each byte, and the special ones: 260."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def talk(*said: str, role: str = "") -> dict[str, Any]:
    """User and assistant in turns, or with another first role."""
    roles = [role or "user", *["assistant", "user"] * len(said)]
    return {"messages": [{"role": r, "content": text} for r, text in zip(roles, said, strict=False)]}


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Greetings that are answered in a way that can be learned, of very different lengths."""
    draw = random.Random(seed)
    names = ["ann", "bob", "eve", "joe"]
    found = []
    for _ in range(count):
        turns = []
        for _ in range(draw.choice([1, 1, 2, 3])):
            who = draw.choice(names)
            turns += [
                f"{who} says hi" + "!" * draw.randrange(12),
                f"hello {who}" + ", how are you?" * draw.randrange(2),
            ]
        found.append(talk(*turns))
    return found


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations whose last answer greets by name, and the same with one that doesn't."""
    found = []
    for each in conversations(count, seed):
        *begin, last = each["messages"]
        found.append({"chosen": [*begin, last], "rejected": [*begin, last | {"content": "who are you" + "?" * seed}]})
    return found


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path
