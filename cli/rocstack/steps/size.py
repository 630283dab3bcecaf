"""What a model needs, and how fast it would be: by formula, and by the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocstack.base.errors import BadInput
from rocstack.size import ask
from rocstack.size.sizing import Sized
from rocstack.steps.job_options import SizeOptions

if TYPE_CHECKING:
    from rocstack.size.compiled import Compiled


@dataclass(frozen=True)
class Answers:
    """`compiled` is None where nobody asked for it."""

    formula: Sized
    compiled: Compiled | None = None

    @property
    def ok(self) -> bool:
        """Where the compiler was asked, it decides."""
        return self.compiled.ok if self.compiled else self.formula.ok

    def to_dict(self) -> dict[str, Any]:
        own = {"compiled": self.compiled.to_dict()} if self.compiled else {}
        return {**self.formula.to_dict(), **own}


def size(choice: SizeOptions) -> Answers:
    """
    Raises:
        BadInput: an unknown model or GPU, a config that can't be read, a layout that is impossible, or one or a model
            that MaxText hasn't.
        Missing: no engine, or no image with MaxText.
        CheckFailed: the image's program gave no answer.
    """
    if choice.image and not choice.compile:
        raise BadInput.of("image-without-compile")
    sized = ask.size(choice)
    if not choice.compile:
        return Answers(sized)
    from rocstack.steps import size_compile  # the engine's client takes longer to load than the formula to answer

    return Answers(sized, size_compile.compile(sized, choice.image))
