"""rocstack's own package as it lies in an image: the files that its wheel has, in the wheel's places."""

from pathlib import Path

from rocstack.base import paths
from rocstack.image.context import ContextFile, tree

DATA = ("images", "templates", "playbooks", "tests/cluster")


def files(site_packages: str) -> dict[str, ContextFile]:
    """Its part of the context."""
    own = f"package{site_packages}/rocstack"
    found = tree(Path(paths.__file__).parents[1], own)
    if not paths.packaged():
        for name in DATA:
            found |= tree(paths.data_root() / name, f"{own}/data/{name}")
        lock = "requirements.lock"
        found[f"{own}/data/{lock}"] = ContextFile((paths.data_root() / lock).read_bytes())
    return found
