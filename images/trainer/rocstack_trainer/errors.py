"""What can go wrong, said for the person who started the training."""


class TrainerError(Exception):
    """The run can't go on; the message says what happened and what to do next."""

    exit_code = 1


class ConfigError(TrainerError, ValueError):
    """A setting is wrong: nothing was started or written."""

    exit_code = 2


class MissingError(TrainerError):
    """Something this machine or its PyTorch doesn't have."""

    exit_code = 3


class NonFiniteError(TrainerError):
    """Loss or gradient is NaN or infinite; the optimizer step was not made on any rank."""


class CheckpointError(TrainerError):
    """Checkpoints are there, but none can be used."""


class PeerLostError(TrainerError):
    """Another rank ended or can't be reached."""
