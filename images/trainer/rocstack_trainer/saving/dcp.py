"""Tensors in a folder, in the format of torch.distributed.checkpoint (DCP): a file per rank, and `.metadata`.

DCP's own `save` and `load` aren't used: between the ranks and from the disk they unpickle whatever comes. Here ranks
tell each other rows of JSON, and `.metadata` is read with the few classes that belong into it.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import warnings
from collections.abc import Sequence
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

from rocstack_trainer.errors import CheckpointError

Row = tuple[str, str, list[int], str, int, int]  # tensor, type, shape; file, offset and length in bytes
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


def write(tensors: dict[str, torch.Tensor], path: Path, number: int) -> list[Row]:
    """Writes those of rank `number`, which no other rank has, into a file and syncs it to the disk.

    Returns:
        For `write_index`, which rank 0 calls with everybody's.

    Raises:
        OSError: the disk refused.
    """
    writer, planner = FileSystemWriter(path), DefaultSavePlanner()
    planner.set_up_planner(tensors, None, False)
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
        at, tensor = result.storage_data, tensors[result.index.fqn]
        about = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        rows.append((result.index.fqn, *about, at.relative_path, at.offset, at.length))
    return rows


def files(rows: Sequence[Row]) -> list[str]:
    return sorted({file for _, _, _, file, _, _ in rows})


def write_index(rows: Sequence[Row], path: Path) -> Path:
    """`.metadata`, by which DCP finds the tensors of all ranks. Raises OSError."""
    tensors: dict[str, Any] = {}
    places = {}
    for name, kind, shape, file, offset, length in rows:
        size, start = torch.Size(shape), torch.Size([0] * len(shape))
        about = meta.TensorProperties(dtype=getattr(torch, kind))
        tensors[name] = meta.TensorStorageMetadata(about, size, [meta.ChunkStorageMetadata(start, size)])
        places[meta.MetadataIndex(name, start, 0)] = files_._StorageInfo(file, offset, length)
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


def owners(tensors: dict[str, torch.Tensor], ranks: int, first: int) -> dict[str, int]:
    """Which rank writes and reads which tensor, so that all have about as many bytes; rank 0 has `first` already."""
    load = [first] + [0] * (ranks - 1)
    out = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        out[name] = min(range(ranks), key=load.__getitem__)
        load[out[name]] += tensor.nbytes
    return out
