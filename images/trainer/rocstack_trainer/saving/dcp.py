"""Tensors in a folder, in the format of torch.distributed.checkpoint (DCP): a file per rank, and `.metadata`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    FileSystemReader,
    FileSystemWriter,
    Metadata,
    SavePlan,
    SavePlanner,
    save,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.futures import Future

Shape = tuple[torch.dtype, tuple[int, ...]]

warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)  # DCP in PyTorch 2.6 causes it


class _Writer(FileSystemWriter):
    """Keeps the first fault instead of raising it.

    DCP would send it to all ranks, but PyTorch 2.6 can't pickle it under Python 3.13, and then they hang. And of a
    full disk PyTorch's zip writer says only "unexpected pos": what the system said is what came before.
    """

    fault: Exception | None = None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # rank 0 has made the folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            self._keep(error)
        nothing: Future = Future()
        nothing.set_result([])
        return nothing

    def finish(self, metadata: Metadata, results: list) -> None:
        try:
            super().finish(metadata, results)
        except Exception as error:
            self._keep(error)

    def _keep(self, error: BaseException) -> None:
        while error.__context__:
            error = error.__context__
        self.fault = error if isinstance(error, OSError) else OSError(str(error))


def write(tensors: dict[str, torch.Tensor], path: Path, group: dist.ProcessGroup | None) -> list[Path]:
    """All ranks of the group write theirs, which no other rank has, and sync them to the disk.

    Returns:
        The files that this rank wrote.

    Raises:
        OSError: the disk refused; on this rank only.
    """
    writer = _Writer(path)
    metadata = save(tensors, storage_writer=writer, process_group=group)
    if writer.fault:
        raise writer.fault
    mine = {info.relative_path for index, info in metadata.storage_data.items() if index.fqn in tensors}
    return [path / name for name in mine] + [path / ".metadata"] * (dist.get_rank(group) == 0)


def read(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Fills the tensors in place. No other rank takes part.

    Raises:
        OSError: a file can't be read.
    """
    if not tensors:
        return
    reader, planner = FileSystemReader(path), DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(dict(tensors), metadata, True)
    reader.set_up_storage_reader(metadata, True)
    [plan] = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    [plan] = reader.prepare_global_plan([plan])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def contents(path: Path) -> dict[str, Shape]:
    """Names, types and shapes of the tensors in the folder."""
    found: dict[str, Any] = FileSystemReader(path).read_metadata().state_dict_metadata
    return {
        name: (about.properties.dtype, tuple(about.size))
        for name, about in found.items()
        if isinstance(about, TensorStorageMetadata)
    }


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
