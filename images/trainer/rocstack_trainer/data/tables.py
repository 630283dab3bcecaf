"""Files with columns: parquet, the Arrow streams of a folder that Hugging Face datasets saved, and JSON lines.

Three kinds of columns can be trained on: lists of token numbers (`ids`), `text`, and conversations (`chat`), which are
lists of messages with a role.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rocstack_trainer import lent
from rocstack_trainer.errors import ConfigError

BATCH_BYTES = 2 << 20  # of a column at a time, about: a second or less of a tokenizer
MOST_ROWS = 65536


class Table(ABC):
    """`types` has the column names and what they hold, in words for a person; `rows` counts what `batches` gives."""

    types: dict[str, str]
    rows: int

    @abstractmethod
    def kind(self, name: str) -> str:
        """`ids`, `text`, `chat`, or nothing if it can't be trained on."""

    @abstractmethod
    def batches(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        """Row numbers and their values, an Arrow array or a list, a few MB at a time."""

    def where(self, row: int) -> str:
        return f": row {row}"


class Arrow(Table):
    """What parquet and Arrow streams share: columns have types."""

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        self.schema, self.rows = schema, rows
        self.types = {field.name: str(field.type) for field in schema}

    def kind(self, name: str) -> str:
        kind, types = self.schema.field(name).type, pa.types
        inner = getattr(kind, "value_type", kind)  # of a list, or of a dictionary of strings
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            if types.is_struct(inner):
                return "chat" if "role" in [field.name for field in inner] else ""
            return "ids" if types.is_integer(inner) else ""
        return "text" if types.is_string(inner) or types.is_large_string(inner) else ""

    def numbered(self, batches: Iterator[pa.RecordBatch], name: str) -> Iterator[tuple[Sequence[int], Any]]:
        first = 0
        for batch in batches:
            batch.validate(full=True)  # offsets in a file may lead anywhere
            yield range(first, first + len(batch)), batch.column(name)
            first += len(batch)


class Parquet(Arrow):
    def __init__(self, file: pq.ParquetFile) -> None:
        super().__init__(file.schema_arrow, file.metadata.num_rows)
        self.file = file

    def batches(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        about = self.file.metadata
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        mine = [c for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")]
        size = sum(max(c.total_uncompressed_size, 8 * c.num_values) for c in mine)  # lists: num_values are the numbers
        at_once = min(MOST_ROWS, max(1, BATCH_BYTES * about.num_rows // max(1, size)))
        yield from self.numbered(self.file.iter_batches(at_once, columns=[name], use_threads=False), name)


class Stream(Arrow):
    """Mapped into memory: what isn't read stays on the disk."""

    def __init__(self, source: pa.NativeFile) -> None:
        with pa.ipc.open_stream(source) as reader:
            self.parts = [*reader]
            super().__init__(reader.schema, sum(map(len, self.parts)))

    def batches(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        def pieces() -> Iterator[pa.RecordBatch]:
            for part in self.parts:
                size = part.column(name).get_total_buffer_size()  # .nbytes follows offsets, which aren't checked yet
                at_once = min(MOST_ROWS, max(1, BATCH_BYTES * len(part) // max(1, size)))
                yield from (part.slice(start, at_once) for start in range(0, len(part), at_once))

        yield from self.numbered(pieces(), name)


class Lines(Table):
    """A JSON object a line. Rows are numbered as lines are, from 1; empty ones don't count."""

    def __init__(self, path: Path, source: Path) -> None:
        """`path` is what a person calls it."""
        self.path, self.source = path, source
        with source.open("rb") as file:
            self.rows = sum(not line.isspace() for line in file)
        self.first = next((row for _, row, _ in self._read()), {})
        self.types = {name: self.kind(name) or type(value).__name__ for name, value in self.first.items()}

    def kind(self, name: str) -> str:
        value = self.first[name]
        items = value if isinstance(value, list) else []
        if items and all(isinstance(item, dict) and "role" in item for item in items):
            return "chat"
        if items and all(type(item) is int for item in items):
            return "ids"
        return "text" if isinstance(value, str) else ""

    def batches(self, name: str) -> Iterator[tuple[Sequence[int], Any]]:
        kind, size, rows, values = self.kind(name), 0, [], []
        for number, row, length in self._read():
            value = row.get(name)
            wanted = str if kind == "text" else list
            if value is not None and not isinstance(value, wanted):
                raise ConfigError(f"{self.path}:{number}: {name} is no {'text' if wanted is str else 'list'}")
            if kind == "ids" and not all(type(item) is int and abs(item) < 1 << 62 for item in value or ()):
                raise ConfigError(f"{self.path}:{number}: {name} has other things than whole numbers")
            rows.append(number)
            values.append(value)
            size += length
            if size > BATCH_BYTES or len(rows) == MOST_ROWS:
                yield rows, values if kind != "ids" else pa.array(values, pa.list_(pa.int64()))
                size, rows, values = 0, [], []
        if rows:
            yield rows, values if kind != "ids" else pa.array(values, pa.list_(pa.int64()))

    def where(self, row: int) -> str:
        return f":{row}"

    def _read(self) -> Iterator[tuple[int, dict[str, Any], int]]:
        with self.source.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # of UTF-8 too
                    raise ConfigError(f"{self.path}:{number}: no JSON: {error}") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{self.path}:{number}: no JSON object, as in " + '{"messages": [...]}')
                yield number, row, len(line)


@contextmanager
def opened(path: Path) -> Iterator[Table]:
    """Raises ConfigError if it can't be read, now or while its batches are."""
    kind = "parquet" if path.suffix == ".parquet" else "an Arrow stream"
    try:
        with lent.opened(path) as source:
            if path.suffix == ".jsonl":
                yield Lines(path, source)
            elif path.suffix == ".arrow":
                with pa.memory_map(str(source)) as mapped:
                    yield Stream(mapped)
            else:
                # Through a small buffer: without it, a whole column of a row group is in memory.
                how = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
                with pq.ParquetFile(source, **how) as file:
                    yield Parquet(file)
    except (pa.ArrowException, OSError) as error:
        if path.suffix == ".jsonl":
            raise ConfigError(f"{path}: can't be read: {error}") from None
        raise ConfigError(f"{path}: can't be read as {kind}, it is cut or damaged: {str(error).strip()}") from None
