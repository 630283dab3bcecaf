"""Tensors in a folder, in the format of torch.distributed.checkpoint (DCP): a file per rank, and `.metadata`.

DCP's own `save` and `load` aren't used: between the ranks and from the disk they unpickle whatever comes, and a list
of classes doesn't make a pickle harmless, since it can set attributes of those classes. Here ranks tell each other rows
of JSON, a checkpoint is read by the same rows (tensors.json), and `.metadata` is written for DCP alone.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import metadata as meta
from torch.distributed.checkpoint.filesystem import _StorageInfo

from rocstack_trainer.errors import CheckpointError
from rocstack_trainer.saving.folder import Sums
from rocstack_trainer.slices import Slice, local

# Tensor, type and shape; where in it this slice begins, and the slice's shape; file, offset and length in bytes.
Row = tuple[str, str, list[int], list[int], list[int], str, int, int]
INDEX, FOR_DCP = "tensors.json", ".metadata"
PLAIN = re.compile(r"\w[\w.-]*")  # the name of a file in the folder
Shape = tuple[torch.dtype, tuple[int, ...]]


class _Counted:
    """A file that is written from its beginning to its end, and takes the sha256 of it on the way."""

    def __init__(self, stream: BinaryIO) -> None:
        self.size, self.sha256, self.stream, self.flush = 0, hashlib.sha256(), stream, stream.flush

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self.size += memoryview(data).nbytes
        return self.stream.write(data)


def write(slices: dict[str, Slice], path: Path, number: int) -> tuple[list[Row], Sums]:
    """Writes those of rank `number`, which no other rank has, into a file and syncs it to the disk.

    Returns:
        For `write_index`, which rank 0 calls with everybody's; and the file's size and sha256.

    Raises:
        OSError: the disk refused.
    """
    file, rows = path / f"__{number}_0.distcp", []
    slices = {name: piece for name, piece in slices.items() if piece.mine.numel() or not piece.sliced}
    if not slices:
        return [], {}
    try:
        with file.open("wb") as stream:
            out = _Counted(stream)
            for name, piece in slices.items():
                whole = piece.mine.untyped_storage().nbytes() == piece.mine.nbytes
                kind, at = str(piece.mine.dtype).removeprefix("torch."), out.size
                torch.save(piece.mine if whole else piece.mine.clone(), out)  # it would save all of a view's memory
                about = kind, piece.shape, piece.start, list(piece.mine.shape)
                rows.append((name, *about, file.name, at, out.size - at))
            stream.flush()
            os.fsync(stream.fileno())
    except Exception as error:
        # Of a full disk PyTorch's zip writer says only "unexpected pos": what the system said is what came before.
        first: BaseException = error
        while first.__context__:
            first = first.__context__
        raise first if isinstance(first, OSError) else OSError(str(first)) from None
    return rows, {file.name: (out.size, out.sha256.hexdigest())}


def write_index(rows: Sequence[Row], path: Path) -> list[Path]:
    """The files by which we, and DCP, find the tensors of all ranks. Raises OSError."""
    written = {INDEX: json.dumps(rows).encode(), FOR_DCP: pickle.dumps(_metadata(rows))}
    for name, data in written.items():
        with (path / name).open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    return [path / name for name in written]


def _metadata(rows: Sequence[Row]) -> meta.Metadata:
    tensors: dict[str, Any] = {}
    places = {}
    for name, kind, shape, start, size, file, offset, length in rows:
        about = meta.TensorProperties(dtype=_dtype(kind))
        whole = tensors.setdefault(name, meta.TensorStorageMetadata(about, torch.Size(shape), []))
        whole.chunks.append(meta.ChunkStorageMetadata(torch.Size(start), torch.Size(size)))
        index = meta.MetadataIndex(name, torch.Size(start), len(whole.chunks) - 1)
        places[index] = _StorageInfo(file, offset, length)
    return meta.Metadata(tensors, {name: (name,) for name in tensors}, places, meta.StorageMeta())


def _dtype(kind: str) -> torch.dtype:
    found = getattr(torch, kind, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{kind!r:.40} is no type of a tensor")
    return found


def read(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Fills the tensors in place. No other rank takes part.

    Raises:
        OSError: a file can't be read.
        CheckpointError: tensors.json is not what was written here.
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
    try:
        rows = json.loads((path / INDEX).read_bytes())
        if not isinstance(rows, list):
            raise TypeError("it is no list")
        return _metadata([_row(*each) for each in rows])
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path / INDEX} is not what rocstack-train writes: {error}") from error


def _row(
    name: object, kind: object, shape: object, start: object, size: object, file: object, offset: object, length: object
) -> Row:
    """One of a file's, which may hold anything.

    Raises:
        TypeError: it is no row.
    """
    numbers = (shape, start, size, [offset, length])
    if not all(isinstance(each, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in each) for each in numbers):
        raise TypeError("a shape, or a place in a file, is not of whole numbers")
    if not all(isinstance(text, str) for text in (name, kind, file)) or not PLAIN.fullmatch(str(file)):
        raise TypeError(f"{file!r:.80} is no file of this folder")
    return name, kind, shape, start, size, file, offset, length  # type: ignore[return-value]


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, Shape]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def owners(tensors: dict[str, torch.Tensor], ranks: int, first: int = 0) -> dict[str, int]:
    """Which of `ranks` writes and reads which tensor, so that all have about as many bytes; 0 has `first` already."""
    load = sorted([(first, 0), *((0, rank) for rank in range(1, ranks))])
    out = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        least, out[name] = load[0]
        heapq.heapreplace(load, (least + tensor.nbytes, out[name]))
    return out
