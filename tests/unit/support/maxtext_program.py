"""images/maxtext/compile.py as a module; MaxText itself is in its image alone."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from rocstack.base import paths


def load() -> ModuleType:
    """A new one: tests change it."""
    spec = importlib.util.spec_from_file_location("maxtext_compile", paths.images() / "maxtext/compile.py")
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
