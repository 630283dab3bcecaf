"""Parquet, Arrow and JSON lines become token files, once: `prepare` first, then data.samples.

Each file becomes one .bin in a folder that is named by a hash of all that went in, so another column or
tokenizer or a changed file has a folder of its own, and a preparation that was ended goes on with the files that
are not there. A file appears by rename: whoever prepares at the same time, it is whole. Where documents count, tokens
are uint32 whose highest bit says that it is trained on, and a .docs file has two uint32 for each document: its tokens,
and how many of those after the first are trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rocstack_trainer.config import Config, Data
from rocstack_trainer.data import shards
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.lent import not_lent
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

if TYPE_CHECKING:
    from rocstack_trainer.data.column import Column, Part

TRAINED = 1 << 31
STALE_S = 3600.0  # a temporary file that nobody wrote to for so long is of a dead process
Say = Callable[[str], None]


def prepare(config: Config, rank: Rank, vocab_size: int, say: Say) -> Data:
    """The settings for data.Samples: `path` and `dtype` of token files. A collective, whatever data.path is.

    All ranks of the process group share the work. If nodes then don't see each other's files, the ranks of each
    node make what it lacks. Waiting has no time limit, but ends when a rank fails or is lost.

    Raises:
        ConfigError: on all ranks the same: a file or column or tokenizer is wrong, the cache can't be written, or
            ranks have different data.
    """
    peers = Peers(rank)
    job = peers.each(lambda: _plan(config, rank, vocab_size))
    for by_node in (False, True):
        seen = peers.agree(lambda: (_node(), job.missing()))
        if not any(missing for _, missing in seen):
            break
        if not by_node:
            progress = Progress(say)
            say(f"tokens: {config.data.path}, {job.what} -> {job.folder}")
        mine = _share(seen, rank, by_node)
        with closing(job.make(mine)) as work:
            peers.in_step(work, progress)
    # A copy on another node may be older, or cut.
    sizes = peers.each(lambda: [file.stat().st_size for file in job.targets], "data.path: ")
    peers.same(f"{len(sizes)} file(s) with {sum(sizes)} bytes", "data.path: the files", ConfigError)
    if skipped := sum(peers.agree(lambda: job.skipped)):
        what = "conversations without an answer" if job.column and job.column.kind == "chat" else "null or empty rows"
        say(f"tokens: {skipped:,} {what} skipped")
    return job.data


@dataclass
class Job:
    """Files to read and to make; `data` is what Samples gets. Without a column there is nothing to make."""

    data: Data
    sources: list[Path]
    targets: list[Path]
    folder: Path = Path()
    column: Column | None = None

    @property
    def by_document(self) -> bool:
        return self.data.layout != "stream"

    @property
    def what(self) -> str:
        return f"{len(self.sources)} file(s), {self.column.how}" if self.column else ""

    @property
    def skipped(self) -> int:
        return self.column.skipped if self.column else 0

    def missing(self) -> list[int]:
        return [i for i, target in enumerate(self.targets) if not target.exists()] if self.column else []

    def make(self, numbers: list[int]) -> Iterator[tuple[int, int, int]]:
        """Makes these targets; yields rows to come, rows done and tokens made, since the last time.

        Raises:
            ConfigError: a source can't be used, or the cache can't be written.
        """
        assert self.column
        for number in numbers:  # all headers first: nothing is made if one is wrong
            yield self.column.rows(self.sources[number]), 0, 0
        try:
            for number in numbers:
                if not self.targets[number].exists():  # another group of this run may have made it
                    yield from self._make(self.sources[number], self.targets[number])
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _make(self, source: Path, target: Path) -> Iterator[tuple[int, int, int]]:
        for old in target.parent.glob("*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > STALE_S:
                    old.unlink()
        suffix = f".{socket.gethostname()}-{os.getpid()}.tmp"
        tmp, docs = target.with_name(f"{target.name}{suffix}"), target.with_name(f"{target.stem}.docs{suffix}")
        try:
            with tmp.open("wb") as out, ExitStack() as stack:
                index = stack.enter_context(docs.open("wb")) if self.by_document else None
                for part in self.column.batches(source):
                    tokens = part.tokens.astype(f"<u{4 if self.data.dtype == 'uint32' else 2}")
                    if index:
                        index.write(_marked(part, tokens).data)
                    out.write(tokens.data)
                    yield 0, part.rows, len(tokens)
                if not out.tell():
                    raise ConfigError(f"{source}: {self._nothing()}")
                for file in filter(None, (out, index)):
                    file.flush()
                    os.fsync(file.fileno())
            if self.by_document:
                docs.replace(target.with_suffix(".docs"))
            tmp.replace(target)
        finally:
            for file in (tmp, docs):
                file.unlink(missing_ok=True)

    def _nothing(self) -> str:
        if self.column.kind == "chat":
            return "no conversation with an answer: no message has the role assistant, or all of those are empty"
        return "no token: its rows are null or empty, or it has none"


def _marked(part: Part, tokens: np.ndarray) -> np.ndarray:
    """Marks in `tokens` what is trained on; gives each document's two numbers."""
    first = np.cumsum(part.lengths) - part.lengths
    answers = np.ones(len(tokens), bool) if part.answers is None else part.answers.copy()
    answers[first] = False  # nothing comes before it that could tell
    tokens |= (answers * np.uint32(TRAINED)).astype(np.uint32)
    trained = np.add.reduceat(answers, first, dtype=np.int64) if len(first) else first
    return np.stack([part.lengths, trained], axis=1).astype("<u4")


def _plan(config: Config, rank: Rank, vocab_size: int) -> Job:
    data = config.data
    plain = replace(data, layout="stream")
    files = [*map(not_lent, shards.find(data.path))] if data.path else []
    if not files or files[0].suffix == ".bin":
        if data.layout not in ("auto", "stream"):
            what = "token files don't" if files else "synthetic data doesn't"
            raise ConfigError(f"data.layout={data.layout}: {what} say where a document begins")
        return Job(plain, files, files)
    # Before the tokenizer's threads start: the ranks of a node share its cores.
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // rank.local_world)))
    from rocstack_trainer.data.column import Column  # pyarrow is needed for this only

    column = Column(files[0], data, config.model.path, vocab_size)
    layout = data.layout if data.layout != "auto" else "padded" if column.kind == "chat" else "stream"
    if layout == "stream" and column.kind == "chat":
        raise ConfigError("data.layout=stream cuts conversations anywhere: use padded or packed")
    kind = "uint16" if layout == "stream" and vocab_size <= 1 << 16 else "uint32"
    inputs = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    went_in = [inputs, column.name, column.key, kind, layout != "stream"]
    key = hashlib.sha256(json.dumps(went_in).encode()).hexdigest()
    folder = Path(data.cache or files[0].parent / "rocstack-tokens") / key[:16]
    targets = [folder / f"{i:06}.bin" for i in range(len(files))]  # not as the shards of a set: their names say which
    owners = {0, os.geteuid(), *(file.stat().st_uid for file in files)}
    try:
        for made in (folder.parent, folder):
            made.mkdir(mode=0o755, parents=True, exist_ok=True)
            if made == folder or not data.cache:  # a cache that is named may be a group's
                _refuse_strangers(made, owners)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    return Job(replace(data, path=str(folder), dtype=kind, layout=layout), files, targets, folder, column)


def _refuse_strangers(folder: Path, owners: Collection[int]) -> None:
    """Its name follows from the data's, so whoever can write beside the data could make it first, with other tokens.

    Raises:
        ConfigError: somebody else than the data's owner or us can put something there.
    """
    about = folder.lstat()
    if stat.S_ISLNK(about.st_mode) or about.st_uid not in owners:
        fault = "is a link" if stat.S_ISLNK(about.st_mode) else f"belongs to user {about.st_uid}"
    elif about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX:
        fault = f"can be written by others ({stat.filemode(about.st_mode)})"
    else:
        return
    raise ConfigError(
        f"data.cache: {folder} {fault}: its tokens may not be those of the data\n"
        "  set data.cache to a folder of your own"
    )


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    hint = "set data.cache to a folder that every rank can write, with room for 2 or 4 bytes per token"
    return ConfigError(f"data.cache: {folder} on {socket.gethostname()}: {error.strerror or error}\n  {hint}")


def _share(seen: list[tuple[str, list[int]]], rank: Rank, by_node: bool) -> list[int]:
    """Which files this rank makes of those that somebody lacks, here or on its node."""
    members = [r for r, (node, _) in enumerate(seen) if not by_node or node == seen[rank.rank][0]]
    wanted = sorted({number for r in members for number in seen[r][1]})
    start = len(wanted) * rank.group // rank.groups  # DiLoCo's groups begin at different ends
    return (wanted[start:] + wanted[:start])[members.index(rank.rank) :: len(members)]


class Progress:
    """Says now and then how far all ranks are: soon at first, then ever less often."""

    def __init__(self, say: Say) -> None:
        self.say, self.began = say, time.monotonic()
        self.said = self.began

    def __call__(self, sums: list[int]) -> None:
        now = time.monotonic()
        if sums and now - self.said > max(10, (now - self.began) / 10):
            self.said, (rows, done, made) = now, sums
            speed = made / (now - self.began)
            self.say(f"tokens: {done / max(1, rows):.0%} of {rows:,} rows, {made:,} tokens, {speed:,.0f} a second")


def _node() -> str:
    """The same for processes that see the same local disks: a container has a host name of its own."""
    return socket.gethostname() + Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
