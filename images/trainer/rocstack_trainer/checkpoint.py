"""Checkpoints: folders that are complete or not there.

`step-00000008/` holds model.safetensors and config.json (so it is a Hugging Face model folder),
optimizer.safetensors, and state.json with the step and the sha256 of the others. Data order and random
numbers are functions of the step: nothing about them is saved, and the number of ranks may change.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from rocstack_trainer.config import Config
from rocstack_trainer.dp import broadcast
from rocstack_trainer.errors import CheckpointError
from rocstack_trainer.launch import Rank

SLOTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of one parameter


class Checkpoints:
    """Rank 0 writes and reads; the others get everything by broadcast, so no shared file system is needed."""

    def __init__(self, config: Config, rank: Rank, say: Callable[[str], None]) -> None:
        self.keep, self.wanted = config.checkpoint.keep, config.checkpoint.resume
        self.shape, self.rank, self.say = asdict(config.model), rank, say
        self.folder = Path(config.checkpoint.dir)
        self.enabled = bool(config.checkpoint.dir)
        self.saved = -1  # the step of the newest checkpoint that is known to be whole

    def resume(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Gives every rank the newest valid checkpoint, or rank 0's weights where there is none.

        Returns:
            The number of steps already made.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged or are of another model.
        """
        step, state = torch.zeros(1, dtype=torch.int64), tensors(net, optimizer)
        path = self._latest() if self.enabled and self.wanted and self.rank.rank == 0 else None
        if path:
            saved = load_file(path / "model.safetensors") | load_file(path / "optimizer.safetensors")
            if saved.keys() != state.keys():
                raise CheckpointError(f"{path} has other tensors than this model and optimizer")
            with torch.no_grad():
                for name, tensor in state.items():
                    tensor.copy_(saved[name])
            step[0] = _state(path)["step"]
            self.say(f"resume: step {step.item()} from {path}, weights sha256 {sha256(net)[:16]}")
        step = step.to(self.rank.device)
        broadcast([step, *state.values()])
        self.saved = int(step.item()) or -1
        return int(step.item())

    def save(self, step: int, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Writes `step-<step>`, if a folder is configured and it isn't there. Returns the weights' sha256.

        Raises:
            CheckpointError: the ranks' weights differ, or the disk refused.
        """
        digest = sha256(net)
        self._compare_ranks(digest, step)
        if self.enabled and self.rank.rank == 0 and step != self.saved:
            try:
                self._write(step, digest, net, optimizer)
            except OSError as error:
                raise CheckpointError(f"step {step} not saved: {error}\n  older ones are untouched") from error
            self.say(f"checkpoint: step {step} in {self.folder}, weights sha256 {digest[:16]}")
        self.saved = step
        dist.barrier()
        return digest

    def _write(self, step: int, digest: str, net: Any, optimizer: torch.optim.Optimizer) -> None:
        path = self.folder / f"step-{step:08d}"
        tmp = path.with_suffix(".tmp")
        shutil.rmtree(tmp, ignore_errors=True)  # of a run that was killed while writing
        tmp.mkdir(parents=True)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors(net, optimizer).items()}
        weights = {name: state.pop(name) for name, _ in net.named_parameters()}
        save_file(weights, tmp / "model.safetensors", metadata={"format": "pt"})
        save_file(state, tmp / "optimizer.safetensors")
        net.config.save_pretrained(tmp)
        files = {file.name: _size_and_sha256(file) for file in sorted(tmp.iterdir())}
        about = {"step": step, "weights_sha256": digest, "model": self.shape, "files": files}
        (tmp / "state.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for file in (*tmp.iterdir(), tmp):
            _fsync(file)
        shutil.rmtree(path, ignore_errors=True)  # a damaged one of the same step
        tmp.rename(path)
        _fsync(self.folder)
        # By age, not by step: after an earlier step was resumed, the newest file has not the highest number.
        by_age = sorted(self._all(), key=lambda old: (old != path, -old.stat().st_mtime_ns))
        for old in by_age[self.keep :]:
            shutil.rmtree(old)

    def _latest(self) -> Path | None:
        found = self._all()
        for path in found:
            if fault := damage(path):
                self.say(f"resume: {path} skipped: {fault}")
                continue
            was = _state(path)["model"]
            other = [f"model.{key}={was.get(key)}" for key, value in self.shape.items() if was.get(key) != value]
            if other:
                raise CheckpointError(f"{path} is of another model: it has {', '.join(other)}")
            return path
        if found:
            raise CheckpointError(f"no checkpoint in {self.folder} is whole: move them away to start anew")
        return None

    def _all(self) -> list[Path]:
        """Newest first, damaged ones too."""
        return sorted((path for path in self.folder.glob("step-*") if not path.suffix), reverse=True)

    def _compare_ranks(self, digest: str, step: int) -> None:
        mine = int(digest[:15], 16)
        both = torch.tensor([mine, -mine], device=self.rank.device)
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        if both[0] != -both[1]:
            raise CheckpointError(f"the ranks' weights differ at step {step}: {digest[:16]} here")


def damage(path: Path) -> str:
    """Why this checkpoint can't be used; empty if it can. Reads every byte."""
    try:
        for name, (size, digest) in _state(path)["files"].items():
            if (path / name).stat().st_size != size:
                return f"{name} has {(path / name).stat().st_size} of {size} bytes"
            if _size_and_sha256(path / name)[1] != digest:
                return f"{name} is not what was written (sha256)"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"state.json can't be read: {error}"
    return ""


def sha256(net: torch.nn.Module) -> str:
    """Over the bytes of all parameters in name order: equal means bitwise equal."""
    total = hashlib.sha256()
    for _, parameter in sorted(net.named_parameters()):
        total.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def tensors(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor of the run by name. A fresh optimizer gets its zeros here, as AdamW would make them."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in net.named_parameters():
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        found |= {name: parameter} | {f"{name}/{slot}": state[slot] for slot in SLOTS}
    return found


def _state(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "state.json").read_text(encoding="utf-8")))


def _size_and_sha256(file: Path) -> list[int | str]:
    with file.open("rb") as stream:
        return [file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest()]


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
