"""One column of parquet files as token numbers: lists of them, or text through a tokenizer."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rocstack_trainer.config import Data
from rocstack_trainer.errors import ConfigError

BATCH_BYTES = 2 << 20  # of a column at a time, about: a second or less of a tokenizer
END = 0xFF  # ends a document of bytes: it is never in UTF-8
TOKENIZER_FILES = re.compile(r"tokenizer.*|vocab.*|merges.*|special_tokens_map\.json|added_tokens\.json|.*\.model")


class Column:
    """Reads one column of files that have it.

    `name` and `how` say what is read; `key` is the tokenizer's identity. `vocab_size` is the model's.

    Raises:
        ConfigError: the file can't be read, or has no such column of whole numbers or text; no tokenizer.
    """

    def __init__(self, first: Path, data: Data, model_path: str, vocab_size: int) -> None:
        self.wanted, self.vocab_size, self.skipped, self.key = data.column, vocab_size, 0, ""
        with _opened(first) as file:
            names = file.schema_arrow.names
            self.name = data.column or ("input_ids" if "input_ids" in names else "text")
            self.how = f"column {self.name}"
            self.folder = data.tokenizer or model_path
            self.setting = "data.tokenizer" if data.tokenizer else "model.path"
            if self._type(first, file) == "text":
                self._identify()

    def rows(self, path: Path) -> int:
        """How many rows the file has, if its column can be read. Raises ConfigError."""
        with _opened(path) as file:
            self._type(path, file)
            return int(file.metadata.num_rows)

    def batches(self, path: Path) -> Iterator[tuple[int, np.ndarray]]:
        """Rows and their tokens (1-D, whole numbers), a few MB at a time. Null and empty rows count in `skipped`.

        Raises:
            ConfigError: the file is cut or damaged, or has a token that is not in the vocabulary.
        """
        with _opened(path) as file:
            kind = self._type(path, file)
            for batch in file.iter_batches(_rows_at_once(file, self.name), columns=[self.name], use_threads=False):
                column = batch.column(0)
                tokens = self._listed(path, column) if kind == "ids" else self._text(column)
                if tokens.size and (tokens.max() >= self.vocab_size or tokens.min() < 0):
                    wrong = tokens.max() if tokens.max() >= self.vocab_size else tokens.min()
                    raise ConfigError(
                        f"{path}: {self.how} has token {wrong}, the model knows 0 to {self.vocab_size - 1}\n"
                        "  it was tokenized for another model, or data.tokenizer is not this model's"
                    )
                yield len(column), tokens

    def _listed(self, path: Path, column: Any) -> np.ndarray:
        full = pc.sum(pc.greater(pc.list_value_length(column), 0)).as_py() or 0
        self.skipped += len(column) - full
        values = column.flatten()
        if values.null_count:
            raise ConfigError(f"{path}: {self.how}: a list has null among its numbers")
        return values.to_numpy(zero_copy_only=False)

    def _text(self, column: Any) -> np.ndarray:
        documents = [text for text in column.to_pylist() if text]
        self.skipped += len(column) - len(documents)
        return self.encode(documents) if documents else np.empty(0, np.int64)

    def _type(self, path: Path, file: pq.ParquetFile) -> str:
        """`ids` or `text`."""
        schema, types = file.schema_arrow, pa.types
        if schema.names.count(self.name) != 1:
            there = ", ".join(f"{field.name} ({field.type})" for field in schema)
            close = difflib.get_close_matches(self.wanted or "text", schema.names, 1)
            texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
            guess = (close or (texts if len(texts) == 1 else []) or ["NAME"])[0]
            what = f"no column {self.wanted}" if self.wanted else "no column input_ids or text"
            raise ConfigError(f"{path}: {what}; it has {there}\n  set --data.column={guess}")
        kind = schema.field(self.name).type
        inner = getattr(kind, "value_type", kind)  # of a list, or of a dictionary of strings
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            if types.is_integer(inner):
                return "ids"
        elif types.is_string(inner) or types.is_large_string(inner):
            return "text"
        raise ConfigError(f"{path}: column {self.name} is {kind}: it must be text, or lists of whole numbers")

    def _identify(self) -> None:
        self.how += f" by the tokenizer in {self.folder}" if self.folder else " as bytes"
        if not self.folder:
            if self.vocab_size <= END:
                raise ConfigError(f"text as bytes needs model.vocab_size=256, not {self.vocab_size}")
            return
        used = sorted(f for f in Path(self.folder).glob("*") if TOKENIZER_FILES.fullmatch(f.name) and f.is_file())
        if not used:
            hint = "set data.tokenizer to a folder that has one"
            raise ConfigError(f"{self.setting}: {self.folder} has no tokenizer: {hint}")
        self.key = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in used)).hexdigest()

    @cached_property
    def encode(self) -> Callable[[list[str]], np.ndarray]:
        """Documents to tokens, with an end after each; a tokenizer is loaded only where there is something to do."""
        if not self.folder:
            return _bytes
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # each kind of tokenizer fails in its own way
            raise ConfigError(f"{self.setting}: {self.folder}: the tokenizer can't be loaded: {error}") from error
        end = tokenizer.eos_token_id
        if end is None:
            hint = "documents would run into each other: set eos_token in its tokenizer_config.json"
            raise ConfigError(f"{self.setting}: the tokenizer in {self.folder} has no end-of-text token\n  {hint}")

        def encode(documents: list[str]) -> np.ndarray:
            # verbose=False: a document may be longer than the model's window, samples are cut from all of them.
            found = tokenizer(documents, add_special_tokens=False, return_attention_mask=False, verbose=False)
            return np.fromiter(chain.from_iterable(chain(ids, (end,)) for ids in found["input_ids"]), np.int64)

        return encode


def _bytes(documents: list[str]) -> np.ndarray:
    end = bytes([END])
    return np.frombuffer(end.join(text.encode("utf-8") for text in documents) + end, np.uint8)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Read through a small buffer: without it, a whole column of a row group is in memory."""
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: can't be read as parquet, it is cut or damaged: {str(error).strip()}") from None


def _rows_at_once(file: pq.ParquetFile, name: str) -> int:
    about = file.metadata
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    mine = [c for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")]
    size = sum(max(c.total_uncompressed_size, 8 * c.num_values) for c in mine)  # lists: num_values are the numbers
    return min(65536, max(1, BATCH_BYTES * about.num_rows // max(1, size)))
