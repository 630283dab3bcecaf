"""What an image that serves has of rocstack: the gateway's modules and those below them, as its wheel would lay them
out, and vLLM's requirements with the commands that start both."""

from pathlib import Path

from rocstack.base import paths
from rocstack.image.context import ContextFile

VLLM = "vllm"  # the component
FOLDERS = ("base", "serve")


def files() -> dict[str, ContextFile]:
    """Its part of the context."""
    package = Path(paths.__file__).parents[1]
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        found |= {f"vllm/package/rocstack/{folder}/{each.name}": each for each in (package / folder).glob("*.py")}
    errors = paths.images() / "errors"
    found |= {f"vllm/package/rocstack/data/images/errors/{each.name}": each for each in errors.glob("*.yml")}
    found |= {f"vllm/{each.name}": each for each in (paths.images() / VLLM).iterdir() if each.is_file()}
    return {"vllm/package/rocstack/__init__.py": ContextFile(b"")} | {
        name: ContextFile(path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
        for name, path in found.items()
    }
