"""Saving a run, and going on from there to the bit.

Data order and random numbers follow from the step: nothing about them is saved, and the number of ranks may
change. On a shared file system each rank writes and reads its part; else rank 0 does it for all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rocstack_trainer import sharding
from rocstack_trainer.config import Config
from rocstack_trainer.errors import CheckpointError, ConfigError, TrainerError
from rocstack_trainer.models import fingerprint
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.saving import dcp, export, folder
from rocstack_trainer.saving.state import State
from rocstack_trainer.slices import Slice, of


class Checkpoints:
    """All methods are for all ranks of the group together, and end alike on all of them.

    Raises:
        ConfigError: checkpoint.dir or checkpoint.export can't be used, or the first has a run of other groups.
        CheckpointError: there are checkpoints, but none is whole.
    """

    def __init__(self, config: Config, rank: Rank, say: Callable[[str], None], shard: int = 1) -> None:
        self.config, self.rank, self.settings, self.shard = config, rank, config.checkpoint, shard
        self.staging: dict[str, torch.Tensor] = {}
        self.say = say if rank.rank == 0 else lambda _: None
        self.enabled, self.saved, self.digest = bool(self.settings.dir), -1, ""
        self.failed, self.fault = -1, ""  # the step that could not be saved last, and why
        self.pool = ThreadPoolExecutor(1)
        self.running: Future[str | None] | None = None
        self.damaged: set[Path] = set()
        self.found: tuple[Path, dict[str, Any]] | None = None
        self.peers = Peers(rank)
        if not (self.enabled or self.settings.export):
            return
        self.peers = Peers.aside(rank)
        if self.settings.export and rank.group == 0:
            self.peers.first(lambda: export.check(config), "checkpoint.export: ", ConfigError)
        if not self.enabled:
            return
        # By DiLoCo group: each is a run of its own, but for the outer steps.
        self.folder = Path(self.settings.dir) / (f"group-{rank.group}" if rank.groups > 1 else "")
        self.shared = folder.shared(self.folder, self.peers, "checkpoint.dir: ")
        if not self.shared and shard > 1:
            raise ConfigError(f"checkpoint.dir: not all ranks see {self.folder}, and each has a part of the model")
        if not self.shared:
            self.say(f"checkpoint: not all ranks see {self.folder}: rank 0 saves for all, error feedback is left out")
        self.takes_part = self.shared or rank.rank == 0
        self.background = self.settings.background and rank.backend != "mpi"
        if self.settings.background and not self.background:
            self.say("checkpoint: not in the background, MPI can't do that")
        if self.settings.resume:
            self.peers.first(lambda: [*map(folder.private, {Path(self.settings.dir), self.folder})], "checkpoint.dir: ")
            self.found = self._newest_whole()

    def notes(self) -> dict[str, Any]:
        """The notes of the checkpoint that `resume` is going to use; empty if there is none."""
        return self.found[1]["notes"] if self.found else {}

    def resume(self, state: State) -> int:
        """Reads the newest whole checkpoint into the state of every rank.

        Returns:
            The number of steps already made; 0 if there is no checkpoint, and the state is as it was.

        Raises:
            CheckpointError: it is of another model.
        """
        if not self.found:
            return 0
        path, about = self.found
        mine, owner = self._divide(state)
        if other := self.peers.first(lambda: state.difference(path, about["model"])):
            raise CheckpointError(f"{path} is of another model or optimizer: {other}\n  take another checkpoint.dir")
        own = self._residuals(state)
        same = (about["world"], about.get("shard", 1)) == (self.rank.world, self.shard) and self.shared
        if not all(self.peers.agree(lambda: same and dcp.shapes(own).items() <= dcp.contents(path).items())):
            if state.per_rank:
                self.say("resume: error feedback starts anew: these are other ranks or buckets than those that saved")
            own = {}
        if self.shard > 1:  # each reads its own slices
            mine = state.common()
        self.peers.each(lambda: dcp.read(mine | own, path))
        if self.shard == 1:
            for name, tensor in state.common().items():
                self.peers.broadcast(tensor, owner[name])
        fingerprint.compare(state.net, self.peers, f"after {path} was read", self.shard)
        self.saved = -1 if about["notes"].get("owes") else about["step"]  # with its outer step, it is another one
        self.digest = about["weights_sha256"]
        self.say(f"resume: step {about['step']} from {path}, weights sha256 {self.digest[:16]}")
        return about["step"]

    def save(self, step: int, state: State) -> str | None:
        """Writes `step-<step>`, unless it is there. If that fails, it is said, and training goes on.

        Returns:
            The weights' sha256 if they are on the disk now; None if not, or not yet (checkpoint.background).

        Raises:
            CheckpointError: the ranks' weights differ.
        """
        self.wait()
        if step == self.saved:
            return self.digest
        fingerprint.compare(state.net, self.peers, f"at step {step}", self.shard)
        if not self.enabled:
            return None
        mine = self._divide(state)[0] | (self._residuals(state) if self.shared else {})
        about = {"step": step, "world": self.rank.world, "shard": self.shard}
        about |= {"notes": state.notes, "model": state.model()}
        if self.background:
            mine, copied = self._copied(mine)
            self.running = self.pool.submit(self._write, mine, about, copied)
            return None
        slices = {name: of(tensor) for name, tensor in mine.items()}
        return self._write({name: each._replace(mine=each.mine.cpu()) for name, each in slices.items()}, about)

    def _copied(self, mine: dict[str, torch.Tensor]) -> tuple[dict[str, Slice], Callable[[], object]]:
        """Copies of this rank's part, since training changes them while they are written; and what to call before
        they are read. From a GPU they come into pinned memory, which is kept, while training goes on."""
        out, gpu = {}, self.rank.device != "cpu"
        for name, tensor in mine.items():
            piece = of(tensor)
            if name not in self.staging:
                self.staging[name] = torch.empty(piece.mine.shape, dtype=piece.mine.dtype, pin_memory=gpu)
            out[name] = piece._replace(mine=self.staging[name].copy_(piece.mine, non_blocking=gpu))
        return out, torch.cuda.current_stream().record_event().synchronize if gpu else bool

    def wait(self) -> str | None:
        """Until nothing is being saved in the background any more. Returns that one's sha256, if it did end well."""
        running, self.running = self.running, None
        return running.result() if running else None

    def finish(self, step: int, state: State) -> str:
        """The last save and, at the last step, the export. Returns the weights' sha256.

        Raises:
            CheckpointError: one of the two failed.
        """
        self.wait()
        digest = None if self.failed == step else self.save(step, state) or self.wait()
        done = step >= self.config.train.steps and not state.notes.get("owes")
        if done and self.settings.export and self.rank.group == 0:
            tensors = sharding.whole(state.net) if self.shard > 1 else fingerprint.weights(state.net)
            what = self.config, state.net.config, tensors, step, state.notes
            self.peers.first(lambda: export.write(*what), "checkpoint.export: ")
            self.say(export.told(self.config, state.notes))
        if self.enabled and not digest:
            raise CheckpointError(f"the last step, {step}, is not saved: {self.fault}")
        return digest or self._digest(state)

    def _digest(self, state: State) -> str:
        """The sha256 of all weights, of which each rank hashes a part."""
        weights = fingerprint.weights(state.net)
        owner = dcp.owners(weights, self.rank.world // self.shard)
        mine = {name: tensor for name, tensor in weights.items() if self._writes(tensor, owner[name])}
        return fingerprint.combined(_joined(self.peers.agree(lambda: fingerprint.each(mine))))

    def _write(self, mine: dict[str, Slice], about: dict[str, Any], copied: Callable[[], object] = bool) -> str | None:
        began, step = time.time(), about["step"]
        tmp = self.folder / f"step-{step:08d}.tmp"

        def part() -> tuple[list[dcp.Row], folder.Sums, dict[str, str]]:
            if not self.takes_part:
                return [], {}, {}
            copied()
            rows, files = dcp.write(mine, tmp, self.rank.rank)
            weights = {name.removeprefix("model."): t for name, t in mine.items() if name.startswith("model.")}
            return rows, files, fingerprint.of_slices(weights)

        def whole() -> str:
            rows, files, hashes = zip(*parts, strict=True)
            files += (folder.sums(dcp.write_index([*chain(*rows)], tmp)),)
            about.update(weights_sha256=fingerprint.combined(_joined(hashes)), files=_joined(files))
            folder.publish(tmp, about, self.settings.keep, self.damaged)
            return about["weights_sha256"]

        try:
            self.peers.first(lambda: folder.begin(tmp))
            parts = self.peers.collect(part)
            digest = self.peers.first(whole)
        except TrainerError as error:
            if self.rank.rank == 0:
                shutil.rmtree(tmp, ignore_errors=True)
            self.failed, self.fault = step, str(error)
            self.say(f"checkpoint: step {step} is not saved: {error}\n  the ones before are untouched")
            return None
        self.saved, self.digest = step, digest
        self.say(f"checkpoint: step {step} in {self.folder}, {time.time() - began:.1f} s, weights sha256 {digest[:16]}")
        return digest

    def _divide(self, state: State) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """What this rank writes and reads, but for the residuals; and which copy of the model each of the common
        tensors is taken from."""
        common, leaders = state.common(), state.leaders()
        taken = self.peers.first(lambda: sum(tensor.nbytes for tensor in leaders.values()))
        owner = dcp.owners(common, self.rank.world // self.shard if self.shared else 1, taken)
        return {name: t for name, t in common.items() if self._writes(t, owner[name])} | leaders, owner

    def _writes(self, tensor: torch.Tensor, copy: int) -> bool:
        """Does this rank write a tensor that is taken from copy number `copy` of the model?"""
        mine, place = divmod(self.rank.rank, self.shard)
        return mine == copy and (of(tensor).sliced or place == 0)

    def _residuals(self, state: State) -> dict[str, torch.Tensor]:
        return {f"rank{self.rank.rank}.{name}": tensor for name, tensor in state.per_rank.items()}

    def _newest_whole(self) -> tuple[Path, dict[str, Any]] | None:
        found = [Path(name) for name in self.peers.first(lambda: [*map(str, folder.newest_first(self.folder))])]
        readers = self.rank.world if self.shared else 1
        for path in found:
            look = lambda path=path: self.takes_part and folder.damage(path, self.rank.rank, readers)  # noqa: E731
            fault = next(filter(None, self.peers.agree(look)), "")
            if not fault:
                return path, self.peers.first(lambda path=path: folder.about(path))
            self.damaged.add(path)
            self.say(f"resume: {path} skipped: {fault}")
        if found:
            raise CheckpointError(f"no checkpoint in {self.folder} is whole: move them away to start anew")
        return self.peers.first(lambda: folder.check_groups(Path(self.settings.dir), self.rank.groups))


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}
