"""The command line. Reads and checks everything before torch is imported, which alone takes a second."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rocstack_trainer import __version__, settings
from rocstack_trainer.config import Config, micro_batches
from rocstack_trainer.errors import ConfigError, TrainerError, alike
from rocstack_trainer.rank import Rank, from_env, split
from rocstack_trainer.ranks import connect, launch, secret
from rocstack_trainer.ranks.rendezvous import STORE
from rocstack_trainer.ranks.spawn import die_with_parent, omp_threads, python, spawn

EPILOG = """\
any setting:  --section.key=value, as in --train.lr=1e-3 (--print-config shows all of them)
example:      rocstack-train --config tiny --steps 5 --ranks 2
on a cluster: srun, mpirun and torchrun start the ranks; leave --ranks out then
stop:         SIGTERM, SIGUSR1 or Ctrl-C saves a checkpoint at the next step and exits 0
exit codes:   0 done, 1 failed, 2 wrong settings, 3 something is missing here, 4 another rank was lost,
              128+n ended by signal n
"""


def main() -> NoReturn:
    code = run(sys.argv[1:])
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # nobody reads it; Python would try again at its end, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code or launch.is_open():
        os._exit(code)  # closing a broken process group, or gloo's, could hang
    sys.exit(0)  # MPI_Finalize runs at an ordinary exit


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    started = float(os.environ.setdefault("ROCSTACK_TRAINER_STARTED", str(time.time())))
    rank = Rank()
    try:
        rank = from_env(os.environ)
        spawned = "ROCSTACK_TRAINER_PARENT" in os.environ
        if spawned:
            die_with_parent()
        args, config = parse(argv)
        if args.store is not None:
            return connect.serve(*args.store)
        if args.print_config:
            print(*(f"# {note}" for note in args.notes), config.to_toml(), sep="\n")
            return 0
        if args.source is not None:
            if not config.checkpoint.export:
                raise ConfigError("--from needs --export FOLDER: where to write to")
            from rocstack_trainer.saving.export import from_checkpoint

            print(from_checkpoint(config, args.source))
            return 0
        if args.ranks is not None and not spawned:
            return start_ranks(args, config, rank, argv)
        # torch reads it once, when it is imported.
        os.environ.setdefault("OMP_NUM_THREADS", str(omp_threads(rank.local_world)))
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # c10d's pages of warnings come before our one line
        rank = launch.with_device(rank, args.check_backend or config.parallel.backend)
        if args.check_backend:
            from rocstack_trainer.all_reduce_check import check

            check(rank, config.parallel.timeout_s)
            return 0
        if rank.rank == 0:
            with suppress(OSError):
                print(*args.notes, header(config, rank), sep="\n", flush=True)
        with alike():
            rank = split(rank, config.diloco)
            micro_batches(config.train, rank.world)
        from rocstack_trainer.train import train

        return train(config, rank, started)
    except TrainerError as error:
        if rank.rank == 0 or not error.everywhere:
            group = f"group {rank.group}: " if rank.groups > 1 else ""
            who = f"rank {rank.rank}: " if rank.world > 1 and not error.everywhere else ""
            print(f"error: {group}{who}{error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def parse(argv: list[str]) -> tuple[argparse.Namespace, Config]:
    parser = argparse.ArgumentParser(
        "rocstack-train",
        description="Trains a causal language model data-parallel on GPUs (RCCL) or CPUs (gloo, MPI).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", default="tiny", help="TOML file or the name of a preset (default: tiny)")
    parser.add_argument("--steps", type=int, help="same as --train.steps=N")
    parser.add_argument("--ranks", type=int, help="start N ranks on this machine")
    parser.add_argument("--restarts", type=int, default=0, help="with --ranks: start lost ranks again, so many times")
    about = "only serve the store where ranks meet, at this machine's address HOST; port 0: any"
    parser.add_argument("--store", type=place, metavar="[HOST:]PORT", help=about)
    parser.add_argument("--export", metavar="FOLDER", help="same as --checkpoint.export=FOLDER")
    about = "only export this checkpoint, such as run1/step-00000500"
    parser.add_argument("--from", type=Path, dest="source", metavar="CHECKPOINT", help=about)
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and stop")
    parser.add_argument("--check-backend", choices=("gloo", "mpi", "nccl"), help="only check its all-reduce")
    parser.add_argument("--version", action="version", version=__version__)
    args, rest = parser.parse_known_args(argv)
    overrides = rest + ([] if args.steps is None else [f"--train.steps={args.steps}"])
    overrides += [] if args.export is None else [f"--checkpoint.export={args.export}"]
    args.notes = []
    for word in [word for word in overrides if word.startswith("@")]:  # as prime's commands have it
        overrides.remove(word)
        args.config = word.removeprefix("@")
    return args, settings.load(args.config, overrides, args.notes.append)


def place(text: str) -> tuple[int, str]:
    """Port and host of PORT or HOST:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    return int(port), host


def start_ranks(args: argparse.Namespace, config: Config, rank: Rank, argv: list[str]) -> int:
    if args.ranks < 1:
        raise ConfigError(f"--ranks {args.ranks}: at least 1")
    if rank.world > 1:
        raise ConfigError(f"--ranks {args.ranks}: leave it out, {rank.launcher} already started {rank.world} ranks")
    groups = 1 if args.check_backend or config.diloco.group >= 0 else config.diloco.groups
    if not args.check_backend:  # said once here, not by every rank
        micro_batches(config.train, split(Rank(world=args.ranks), config.diloco).world)
    if args.check_backend == "mpi" or config.parallel.backend == "mpi":
        raise ConfigError("--ranks can't start MPI ranks: use mpirun -n N or srun --mpi=pmix")
    os.environ.setdefault("OMP_NUM_THREADS", str(omp_threads(args.ranks)))
    if not (config.parallel.store or os.environ.get(STORE)):  # in that one, ranks of other commands may be
        secret.make()
    return spawn(args.ranks, [*python(), "rocstack_trainer", *argv], groups, args.restarts)


def header(config: Config, rank: Rank) -> str:
    import torch

    accelerator = f"ROCm {torch.version.hip}" if torch.version.hip else "no ROCm"
    return (
        f"{config.to_toml()}\n"
        f"rocstack-train {__version__}: PyTorch {torch.__version__} ({accelerator}), {rank.world} rank(s)"
        f" by {rank.launcher}, {rank.backend} on {rank.device.partition(':')[0]},"
        f" {torch.get_num_threads()} thread(s) each"
    )
