"""Tensors in a folder, in the format of torch.distributed.checkpoint (DCP): a file per rank, and `.metadata`.

DCP's own `save` and `load` aren't used: between the ranks and from the disk they unpickle whatever comes. Here ranks
tell each other rows of JSON, and `.metadata` is read with the few classes that belong into it.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    SavePlan,
)
from torch.distributed.checkpoint import filesystem as files_
from torch.distributed.checkpoint import metadata as meta
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from rocstack_trainer.errors import CheckpointError
from rocstack_trainer.saving.folder import Sums
from rocstack_trainer.slices import Slice, local

# Tensor, type and shape; where in it this slice begins, and the slice's shape; file, offset and length in bytes.
Row = tuple[str, str, list[int], list[int], list[int], str, int, int]
INDEX = ".metadata"
# What may be in it, by the module that its pickle names. Not BytesStorageMetadata: DCP unpickles what that stands for.
KNOWN: dict[str, Any] = {
    "torch.distributed.checkpoint.metadata": meta,
    "torch.distributed.checkpoint.filesystem": files_,
    "torch.serialization": torch.serialization,
    "torch": torch,
    "pathlib": pathlib,
    "pathlib._local": pathlib,  # Python 3.13's name for it
}
NAMES = {"Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex"}
NAMES |= {"StorageMeta", "_MEM_FORMAT_ENCODING", "_StorageInfo", "_get_layout", "Size", "PosixPath"}
Shape = tuple[torch.dtype, tuple[int, ...]]

warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)  # DCP in PyTorch 2.6 causes it


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = getattr(KNOWN.get(module), name, None)
        if name in NAMES or isinstance(found, torch.dtype):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} doesn't belong into a checkpoint")


class _Counted:
    """A file that is written from its beginning to its end, and takes the sha256 of it on the way."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.size, self.sha256 = stream, 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.size += memoryview(data).nbytes
        return int(self.stream.write(data))

    def tell(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Files(files_.FileSystem):
    """DCP's, which keeps what was written in mind."""

    def __init__(self) -> None:
        self.written: dict[str, _Counted] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if "w" not in mode:
                yield stream
                return
            yield self.written.setdefault(Path(path).name, _Counted(stream))


class _Planner(DefaultSavePlanner):
    """Of slices: which part of which tensor each of them is."""

    def __init__(self, slices: dict[str, Slice]) -> None:
        super().__init__()
        self.slices = slices

    def create_local_plan(self) -> SavePlan:
        return SavePlan([self._item(name, piece) for name, piece in self.slices.items()])

    def resolve_data(self, item: WriteItem) -> torch.Tensor:
        return self.slices[item.index.fqn].mine

    @staticmethod
    def _item(name: str, piece: Slice) -> WriteItem:
        chunk = meta.ChunkStorageMetadata(torch.Size(piece.start), piece.mine.shape)
        about = TensorWriteData(chunk, meta.TensorProperties.create_from_tensor(piece.mine), torch.Size(piece.shape))
        return WriteItem(meta.MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=about)


def write(slices: dict[str, Slice], path: Path, number: int) -> tuple[list[Row], Sums]:
    """Writes those of rank `number`, which no other rank has, into a file and syncs it to the disk.

    Returns:
        For `write_index`, which rank 0 calls with everybody's; and the file's size and sha256.

    Raises:
        OSError: the disk refused.
    """
    slices = {name: piece for name, piece in slices.items() if piece.mine.numel() or not piece.sliced}
    if not slices:
        return [], {}
    writer, planner = FileSystemWriter(path), _Planner(slices)
    writer.fs = files = _Files()
    plan = planner.create_local_plan()
    plan = writer.prepare_global_plan([*[SavePlan([])] * number, plan])[number]  # names the file after the rank
    try:
        results = writer.write_data(planner.finish_plan(plan), planner).wait()
    except Exception as error:
        # Of a full disk PyTorch's zip writer says only "unexpected pos": what the system said is what came before.
        first: BaseException = error
        while first.__context__:
            first = first.__context__
        raise first if isinstance(first, OSError) else OSError(str(first)) from None
    rows = []
    for result in results:
        at, piece = result.storage_data, slices[result.index.fqn]
        about = str(piece.mine.dtype).removeprefix("torch."), piece.shape, piece.start, list(piece.mine.shape)
        rows.append((result.index.fqn, *about, at.relative_path, at.offset, at.length))
    return rows, {name: (file.size, file.sha256.hexdigest()) for name, file in files.written.items()}


def write_index(rows: Sequence[Row], path: Path) -> Path:
    """`.metadata`, by which DCP finds the tensors of all ranks. Raises OSError."""
    tensors: dict[str, Any] = {}
    places = {}
    for name, kind, shape, start, size, file, offset, length in rows:
        about = meta.TensorProperties(dtype=getattr(torch, kind))
        whole = tensors.setdefault(name, meta.TensorStorageMetadata(about, torch.Size(shape), []))
        whole.chunks.append(meta.ChunkStorageMetadata(torch.Size(start), torch.Size(size)))
        places[meta.MetadataIndex(name, torch.Size(start), len(whole.chunks) - 1)] = files_._StorageInfo(
            file, offset, length
        )
    paths = {name: (name,) for name in tensors}
    with (path / INDEX).open("wb") as out:
        pickle.dump(meta.Metadata(tensors, paths, places, meta.StorageMeta()), out)
        out.flush()
        os.fsync(out.fileno())
    return path / INDEX


def read(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Fills the tensors in place. No other rank takes part.

    Raises:
        OSError: a file can't be read.
        CheckpointError: `.metadata` is not what was written here.
    """
    # Where there are more ranks than rows, some have nothing of a tensor.
    tensors = {name: t for name, t in tensors.items() if local(t).numel() or not t.numel()}
    if not tensors:
        return
    reader, planner, metadata = FileSystemReader(path), DefaultLoadPlanner(), _index(path)
    planner.set_up_planner(dict(tensors), metadata, True)
    reader.set_up_storage_reader(metadata, True)
    [plan] = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    [plan] = reader.prepare_global_plan([plan])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def contents(path: Path) -> dict[str, Shape]:
    """Names, types and shapes of the tensors in the folder. Raises as `read`."""
    tensors = _index(path).state_dict_metadata
    return {name: (about.properties.dtype, tuple(about.size)) for name, about in tensors.items()}


def _index(path: Path) -> meta.Metadata:
    with (path / INDEX).open("rb") as file:
        try:
            return _Unpickler(file).load()
        except Exception as error:  # a pickle can raise anything
            raise CheckpointError(f"{path / INDEX} is not what rocstack-train writes: {error}") from error


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, Shape]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def owners(tensors: dict[str, torch.Tensor], ranks: int, first: int = 0) -> dict[str, int]:
    """Which of `ranks` writes and reads which tensor, so that all have about as many bytes; 0 has `first` already."""
    load = [first] + [0] * (ranks - 1)
    out = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        out[name] = min(range(ranks), key=load.__getitem__)
        load[out[name]] += tensor.nbytes
    return out
