"""What a model needs, and how fast it would be: by formula."""

from __future__ import annotations

from rocstack.size import ask
from rocstack.size.sizing import Sized
from rocstack.steps.job_options import SizeOptions


def size(choice: SizeOptions) -> Sized:
    """
    Raises:
        BadInput: an unknown model or GPU, a config that can't be read, or a layout that is impossible.
    """
    return ask.size(choice)
