"""Conversations as tokens, by the tokenizer's own chat template, and which of them the assistant said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rocstack_trainer.errors import ConfigError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # a template with it says itself what the assistant said
Message = dict[str, Any]
HINT = "mark the answers in a copy of the template with {% generation %}, and name it as data.chat_template"


def template(path: str, tokenizer: Any, where: str) -> str:
    """The Jinja template of the file `path`, else the tokenizer's own.

    Raises:
        ConfigError: there is none, or it can't be read.
    """
    if path:
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"data.chat_template: {path}: can't be read: {error}") from None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        hint = "take the tokenizer of an instruction-tuned model, or name a Jinja file as data.chat_template"
        raise ConfigError(f"{where}: the tokenizer has no chat template\n  {hint}") from None


class Chat:
    """`chat(messages)`: token numbers (int64), and for each whether it is part of an answer (bool)."""

    def __init__(self, tokenizer: Any, jinja: str, where: str) -> None:
        self.tokenizer, self.jinja = tokenizer, jinja
        if not tokenizer.is_fast:
            raise ConfigError(f"{where}: which tokens are answers can be told with a fast tokenizer only")
        marked = GENERATION.search(jinja)
        self.how = "answers by the template's own marks" if marked else "answers by comparison"
        self.answers: Callable[[list[Message]], tuple[Any, Any]] = self._marked if marked else self._compared

    def __call__(self, messages: list[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Raises ValueError, in words for a person: the template refuses it, or doesn't tell answers apart."""
        if not messages:
            return np.empty(0, np.int64), np.empty(0, bool)
        for message in messages:
            if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
                raise ValueError("a message has no role")
        ids, mask = self.answers(messages)
        return np.asarray(ids, np.int64), np.asarray(mask, bool)

    def _marked(self, messages: list[Message]) -> tuple[Any, Any]:
        found = self._apply(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return found["input_ids"], found["assistant_masks"]

    def _compared(self, messages: list[Message]) -> tuple[Any, Any]:
        """An answer is what the template adds to the conversation so far, with its opening of an answer."""
        whole, spans = self._text(messages), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if not i:
                raise ValueError(f"it begins with an answer, which the template doesn't tell apart: {HINT}")
            before, after = self._text(messages[:i], add_generation_prompt=True), self._text(messages[: i + 1])
            if not (after.startswith(before) and whole.startswith(after)):
                raise ValueError(
                    f"the template writes a conversation otherwise when message {i + 1} follows, or more after it: "
                    f"which of it is an answer can't be told\n  {HINT}"
                )
            spans.append((len(before), len(after)))
        found = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts = np.asarray(found["offset_mapping"], np.int64).reshape(-1, 2)[:, 0]
        mask = np.zeros(len(starts), bool)
        for start, end in spans:
            mask |= (starts >= start) & (starts < end)
        return found["input_ids"], mask

    def _text(self, messages: list[Message], **how: Any) -> str:
        return str(self._apply(messages, tokenize=False, **how))

    def _apply(self, messages: list[Message], **how: Any) -> Any:
        try:
            return self.tokenizer.apply_chat_template(messages, chat_template=self.jinja, **how)
        except Exception as error:  # a template says in its own way what it doesn't take
            raise ValueError(f"the chat template refuses it: {error}") from error
