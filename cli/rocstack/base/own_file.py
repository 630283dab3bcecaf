"""A file of this machine, as a setting names it."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from rocstack.base import paths
from rocstack.base.text import shortened


def _there(text: str) -> str:
    if text and not paths.there(text, Path.is_file):
        raise ValueError(f"no file {shortened(text)}")
    return text


OwnFile = Annotated[str, AfterValidator(_there)]  # "" names none
