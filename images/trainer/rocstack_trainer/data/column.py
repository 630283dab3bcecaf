"""One column of files as token numbers: lists of them, text through a tokenizer, or conversations through its chat
template."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from rocstack_trainer.config import Data
from rocstack_trainer.data import chat
from rocstack_trainer.data.tables import Table, opened
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models import pretrained

END = 0xFF  # ends a document of bytes: it is never in UTF-8
PREFERRED = ("messages", "input_ids", "text")
PAIR, PAIRS_AT_ONCE = ("chosen", "rejected"), 256


class Part(NamedTuple):
    """Some rows: their tokens (1-D, whole numbers), the number of those in each document, and of a conversation for
    each token whether it is an answer's."""

    rows: int
    tokens: np.ndarray
    lengths: np.ndarray
    answers: np.ndarray | None = None


class Column:
    """Reads one column of files that have it; with data.layout=pairs two, of which each row gives two conversations.

    `kind`, `name` and `how` say what is read; `key` is the identity of tokenizer and template. `vocab_size` is the
    model's.

    Raises:
        ConfigError: the file can't be read, or has no such column; no tokenizer, or no chat template.
    """

    def __init__(self, first: Path, data: Data, model_path: str, vocab_size: int) -> None:
        self.data, self.vocab_size, self.skipped, self.key = data, vocab_size, 0, ""
        self.pairs = data.layout == "pairs"
        with opened(first) as table:
            self.name = data.column or next((name for name in PREFERRED if name in table.types), "text")
            self.name = " and ".join(PAIR) if self.pairs else self.name
            self.kind = self._kind(first, table)
        self.how = f"column {self.name}"
        self.folder = data.tokenizer or model_path
        self.setting = "data.tokenizer" if data.tokenizer else "model.path"
        if self.kind != "ids":
            self._identify()
        if self.kind == "chat":
            self.how += f", {self.chat.how}"
            self.key += hashlib.sha256(self.chat.jinja.encode()).hexdigest()

    def rows(self, path: Path) -> int:
        """How many rows the file has, if its column can be read. Raises ConfigError."""
        with opened(path) as table:
            self._kind(path, table)
            return table.rows

    def batches(self, path: Path) -> Iterator[Part]:
        """A few MB at a time. Rows that are null or empty, or conversations without an answer, count in `skipped`.

        Raises:
            ConfigError: the file is cut or damaged, a row is wrong, or a token is not in the vocabulary.
        """
        with opened(path) as table:
            read = {"ids": self._listed, "text": self._text, "chat": self._chat}[self._kind(path, table)]
            for rows, values in self._paired(table) if self.pairs else table.batches(self.name):
                part = read(path, table, rows, values)
                tokens = part.tokens
                if tokens.size and (tokens.max() >= self.vocab_size or tokens.min() < 0):
                    wrong = tokens.max() if tokens.max() >= self.vocab_size else tokens.min()
                    raise ConfigError(
                        f"{path}: {self.how} has token {wrong}, the model knows 0 to {self.vocab_size - 1}\n"
                        "  it was tokenized for another model, or data.tokenizer is not this model's"
                    )
                self.skipped += len(rows) - len(part.lengths)
                yield part

    def _paired(self, table: Table) -> Iterator[tuple[list[int], list[Any]]]:
        """Row numbers and conversations, a chosen and a rejected one in turns. What both begin with may be a column."""

        def cells(name: str) -> Iterator[tuple[int, Any]]:
            return chain.from_iterable(zip(rows, _listed(part), strict=True) for rows, part in table.batches(name))

        prompts = "prompt" in table.types and table.kind("prompt") == "chat"
        pairs = zip(*map(cells, ("prompt", *PAIR) if prompts else PAIR), strict=True)
        while some := list(islice(pairs, PAIRS_AT_ONCE)):
            begins = [row[0][1] or [] if prompts else [] for row in some]
            ends = [[value for _, value in row[-2:]] for row in some]
            rows = [row[0][0] for row in some for _ in PAIR]
            yield rows, [start + end if end else [] for start, two in zip(begins, ends, strict=True) for end in two]

    def _listed(self, path: Path, _table: Table, rows: Any, column: Any) -> Part:
        values, lengths = column.flatten(), pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        if values.null_count:
            raise ConfigError(f"{path}: {self.how}: a list has null among its numbers")
        return Part(len(rows), values.to_numpy(zero_copy_only=False), lengths[lengths > 0])

    def _text(self, _path: Path, _table: Table, rows: Any, column: Any) -> Part:
        found = [self._encode(text) for text in _listed(column) if text] if not self.folder else []
        if self.folder and (documents := [text for text in _listed(column) if text]):
            # verbose=False: a document may be longer than the model's window, samples are cut from all of them.
            how = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
            found = [np.array([*ids, self._end], np.int64) for ids in self.tokenizer(documents, **how)["input_ids"]]
        return _joined(len(rows), found)

    def _chat(self, path: Path, table: Table, rows: Any, column: Any) -> Part:
        found = []
        for row, messages in zip(rows, _listed(column), strict=True):
            try:
                found.append(self.chat(messages or []))
            except ValueError as error:
                raise ConfigError(f"{path}{table.where(row)}: {error}") from None
        good, size = [bool(answers[1:].any()) for _, answers in found], 1 + self.pairs
        found = [each for i, each in enumerate(found) if all(good[i - i % size : i - i % size + size])]
        return _joined(len(rows), [ids for ids, _ in found], [answers for _, answers in found])

    def _kind(self, path: Path, table: Table) -> str:
        """`ids`, `text` or `chat`."""
        names = list(table.types)
        if self.pairs:
            if any(name not in names or table.kind(name) != "chat" for name in PAIR):
                raise ConfigError(f"{path}: data.layout=pairs takes columns of conversations named chosen and rejected")
            return "chat"
        if names.count(self.name) != 1:
            there = ", ".join(f"{name} ({kind})" for name, kind in table.types.items())
            wanted = self.data.column
            close = difflib.get_close_matches(wanted or "text", names, 1)
            usable = [name for name in names if table.kind(name) in ("chat", "text")]
            guess = (close or (usable if len(usable) == 1 else []) or ["NAME"])[0]
            what = f"no column {wanted}" if wanted else f"no column {', '.join(PREFERRED[:-1])} or {PREFERRED[-1]}"
            raise ConfigError(f"{path}: {what}; it has {there or 'none'}\n  set --data.column={guess}")
        if kind := table.kind(self.name):
            return kind
        raise ConfigError(
            f"{path}: column {self.name} is {table.types[self.name]}: it must be text, lists of whole numbers, or"
            " lists of messages with role and content"
        )

    def _identify(self) -> None:
        self.how += f" by the tokenizer in {self.folder}" if self.folder else " as bytes"
        if not self.folder:
            if self.kind == "chat":
                raise ConfigError("conversations need a tokenizer with a chat template: set data.tokenizer")
            if self.vocab_size <= END:
                raise ConfigError(f"text as bytes needs model.vocab_size=256, not {self.vocab_size}")
            return
        used = pretrained.tokenizer(self.folder)
        if not used:
            hint = "set data.tokenizer to a folder that has one"
            raise ConfigError(f"{self.setting}: {self.folder} has no tokenizer: {hint}")
        self.key = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in used)).hexdigest()

    @cached_property
    def tokenizer(self) -> Any:
        """Loaded only where there is something to do."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # each kind of tokenizer fails in its own way
            raise ConfigError(f"{self.setting}: {self.folder}: the tokenizer can't be loaded: {error}") from error

    @cached_property
    def chat(self) -> chat.Chat:
        where = f"{self.setting}: {self.folder}"
        return chat.Chat(self.tokenizer, chat.template(self.data.chat_template, self.tokenizer, where), where)

    @cached_property
    def _end(self) -> int:
        if self.tokenizer.eos_token_id is None:
            hint = "documents would run into each other: set eos_token in its tokenizer_config.json"
            raise ConfigError(f"{self.setting}: the tokenizer in {self.folder} has no end-of-text token\n  {hint}")
        return int(self.tokenizer.eos_token_id)

    @staticmethod
    def _encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "replace") + bytes([END]), np.uint8)


def _listed(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _joined(rows: int, tokens: list[np.ndarray], answers: list[np.ndarray] | None = None) -> Part:
    empty = [np.empty(0, np.int64)]
    masks = np.concatenate([np.empty(0, bool), *answers]) if answers is not None else None
    return Part(rows, np.concatenate(tokens or empty), np.array([len(each) for each in tokens], np.int64), masks)
