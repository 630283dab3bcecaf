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
    from rocstack.size.search import Searched
    from rocstack.steps.size_search import OnTried


@dataclass(frozen=True)
class Answers:
    """`compiled` is None where nobody asked for it; of a search it is that of the best layout, which `formula` is of,
    too."""

    formula: Sized
    compiled: Compiled | None = None
    searched: Searched | None = None

    @property
    def ok(self) -> bool:
        """Where the compiler was asked, it decides."""
        if self.searched:
            return self.searched.best is not None
        return self.compiled.ok if self.compiled else self.formula.ok

    def to_dict(self) -> dict[str, Any]:
        own = {"compiled": self.compiled.to_dict()} if self.compiled else {}
        found = {"search": self.searched.to_dict()} if self.searched else {}
        return {**self.formula.to_dict(), **own, **found}


def size(choice: SizeOptions, on_tried: OnTried = lambda tried, done, of: None) -> Answers:
    """`on_tried` is told of each layout of a search.

    Raises:
        BadInput: an unknown model or GPU, a config that can't be read, a layout that is impossible, or one or a model
            that MaxText hasn't.
        Missing: no engine, or no image with MaxText.
        CheckFailed: the image's program gave no answer.
    """
    if choice.search and not choice.compile:
        raise BadInput.of("search-without-compile")
    if choice.image and not choice.compile:
        raise BadInput.of("image-without-compile")
    sized = ask.size(choice)
    if not choice.compile:
        return Answers(sized)
    if sized.rank:
        raise BadInput.of("lora-not-compiled")
    if choice.search:
        from rocstack.steps import size_search

        found = size_search.compile_layouts(sized, ask.layout(choice), choice.image, choice.model, on_tried)
        best = found.best
        return Answers(best.sized if best else sized, best.said if best else None, found)
    from rocstack.steps import size_compile  # the engine's client takes longer to load than the formula to answer

    return Answers(sized, size_compile.compile(sized, choice.image))
