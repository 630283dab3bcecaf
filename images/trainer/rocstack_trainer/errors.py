"""What can go wrong, said for the person who started the training."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TrainerError(Exception):
    """The run can't go on; the message says what happened and what to do next."""

    exit_code = 1
    everywhere = False  # is it raised on all ranks, with the same words?


class ConfigError(TrainerError, ValueError):
    """A setting is wrong: nothing was started or written."""

    exit_code = 2


class MissingError(TrainerError):
    """Something this machine or its PyTorch doesn't have."""

    exit_code = 3


class NonFiniteError(TrainerError):
    """Loss or gradient is NaN or infinite; the optimizer step was not made on any rank."""

    everywhere = True


class CheckpointError(TrainerError):
    """Checkpoints are there, but none can be used; or the last could not be written."""

    everywhere = True


class PeerLostError(TrainerError):
    """Another rank ended or can't be reached: the same run may do better on a second start."""

    exit_code = 4


MOST_NAMES = 16
KINDS = {
    kind.__name__: kind
    for kind in (TrainerError, ConfigError, MissingError, NonFiniteError, CheckpointError, PeerLostError)
}


def few(names: Iterable[object]) -> str:
    """The first of them: each of a thousand ranks may say it of a thousand others."""
    every = [*map(str, names)]
    return ", ".join(every[:MOST_NAMES]) + (f" and {len(every) - MOST_NAMES} more" if len(every) > MOST_NAMES else "")


@contextmanager
def alike() -> Iterator[None]:
    """What is done here follows from the settings alone: if it fails, it fails on all ranks."""
    try:
        yield
    except TrainerError as error:
        error.everywhere = True
        raise


def explain(error: RuntimeError) -> PeerLostError | None:
    """What gloo or RCCL say when a rank is gone, with the address of that rank where they know it."""
    text = str(error)
    lost = r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote process exited|socket.*closed"
    if not re.search(f"(?i){lost}", text):
        return None
    where = re.search(r"\[([0-9a-fA-F.:]+)\]:(\d+)", text)
    who = f"the rank at {where[1]}" if where else "another rank"
    return PeerLostError(f"{who} ended or can't be reached\n  {text.splitlines()[0]}")
