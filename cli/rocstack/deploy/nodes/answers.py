"""What our Ansible modules answer, as values: each answer is checked once, here, before anything reads it.

The modules are in playbooks/library, and what they answer with in rocstack.node. Keys that Ansible adds are left out.
"""

from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError

from rocstack.base.text import from_json

T = TypeVar("T", bound=BaseModel)


class Answer(BaseModel):
    """Keys that a model doesn't name are dropped: Ansible adds some, and a newer module may. As a string it is what
    people read as soon as a node has answered."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    def __str__(self) -> str:
        return ""


class AppliedContainer(Answer):
    """What became of a container. `action`: kept, started, restarted, created or replaced."""

    action: str
    health: str
    seconds: float
    notes: tuple[str, ...] = ()
    log: tuple[str, ...] = ()  # its last lines, where it failed


class ApplyAnswer(Answer):
    """rocstack_apply; a run that failed says what it did until then."""

    files: tuple[str, ...]
    containers: dict[str, AppliedContainer]
    removed: tuple[str, ...]
    exec: tuple[tuple[str, ...], ...]
    pruned: tuple[str, ...]

    def __str__(self) -> str:
        acted = [
            f"{name.removeprefix('rocstack-')} {each.action} ({each.seconds:.1f} s)"
            for name, each in self.containers.items()
            if each.action != "kept"
        ]
        return ", ".join(acted) or ("files written" if self.files else "")


class PulledImage(Answer):
    """`bytes` came over the wire; None where the engine doesn't count them."""

    name: str
    id: str
    changed: bool
    attempts: int
    seconds: float
    bytes: int | None
    layers: dict[str, int]  # pulled, existing
    retried: tuple[str, ...]


class PullAnswer(Answer):
    """rocstack_pull."""

    images: tuple[PulledImage, ...]

    def __str__(self) -> str:
        pulled = [each for each in self.images if each.changed]
        if not pulled:
            return ""
        count, seconds = sum(each.bytes or 0 for each in pulled), sum(each.seconds for each in pulled)
        attempts = max(each.attempts for each in pulled)
        again = f", {attempts} attempts" if attempts > 1 else ""
        return f"pulled {count / 1e6:.1f} MB in {seconds:.1f} s{again}"


class TrustAnswer(Answer):
    """rocstack_trust: fingerprints of the keys that signed each image, by role."""

    signers: dict[str, tuple[str, ...]]

    def __str__(self) -> str:
        return "found the images signed by the keys of the trust policy"


class CopiedImage(Answer):
    """`error` is empty where the copy arrived."""

    target: str
    changed: bool
    seconds: float
    error: str


class CopyAnswer(Answer):
    """rocstack_registry_copy."""

    copies: tuple[CopiedImage, ...]


class DownAnswer(Answer):
    """rocstack_down: what was removed."""

    containers: tuple[str, ...]
    volumes: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class SwapAnswer(Answer):
    """rocstack_rotate with the step `swap`."""

    swapped: bool


class SlurmAnswer(Answer):
    """rocstack_slurm: one row a step, which `STEPS` gives a shape."""

    steps: tuple[dict[str, Any], ...]


class DrainAnswer(Answer):
    """`kept`: node -> why somebody else drained it."""

    drained: tuple[str, ...]
    kept: dict[str, str]


class WaitDrainedAnswer(Answer):
    """`busy`: node -> what still runs there; `refused`: job -> why it can't be requeued."""

    busy: dict[str, str]
    requeued: tuple[int, ...]
    refused: dict[str, str]


class WaitReadyAnswer(Answer):
    """`waiting`: node -> why no job can start there."""

    waiting: dict[str, str]


TASKS: dict[str, tuple[str, type[Answer]]] = {  # by name: what people read while it runs, and its answer
    "Trust": ("checking the signatures itself", TrustAnswer),
    "Pull": ("pulling the image", PullAnswer),
    "Copy": ("filling the rack's registry", CopyAnswer),
    "Control": ("starting the control plane", ApplyAnswer),
    "Containers": ("writing its files, starting its containers", ApplyAnswer),
    "Stop the controller": ("stopping the controller; jobs run on", Answer),
    "Swap": ("replacing its keys", SwapAnswer),
    "Start the services": ("starting its services with the new keys", Answer),
    "Prove": ("asking the controller with the new key", Answer),
    "Slurm": ("waiting for Slurm", SlurmAnswer),
    "Down": ("stopping its containers", DownAnswer),
}


def parse(model: type[T], data: object) -> T:
    """What a node answered, as a value.

    Raises:
        ValueError: it is something else; says which field is wrong.
    """
    try:
        text = pydantic_core.to_json(data)
        from_json(text)  # pydantic takes a number of any length, and no float holds it
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}") from None
    except (pydantic_core.PydanticSerializationError, UnicodeError) as error:
        raise ValueError(f"{error}"[:200]) from None
