"""Where the package's own data lies, inside the wheel or in a checkout; whether a person's path leads anywhere."""

from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def data_root() -> Path:
    """The folder that holds `images/`, `templates/` and `playbooks/`."""
    return Path(__file__).parents[1] / "data" if packaged() else Path(__file__).resolve().parents[3]


def packaged() -> bool:
    """Whether this is an installed package, whose data is no one's to change."""
    return (Path(__file__).parents[1] / "data").is_dir()


def images() -> Path:
    return data_root() / "images"


def templates() -> Path:
    return data_root() / "templates"


def playbooks() -> Path:
    return data_root() / "playbooks"


def there(text: str, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether something is at the path that a person wrote."""
    try:
        return kind(Path(text).expanduser())
    except (RuntimeError, OSError, ValueError):  # nobody's home; a name that no file can have
        return False
