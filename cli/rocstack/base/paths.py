"""Where the package's own data lies: inside the wheel, or in a checkout."""

from pathlib import Path


def data_root() -> Path:
    """The folder that holds `images/`, `templates/` and `playbooks/`."""
    packaged = Path(__file__).parents[1] / "data"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3]


def images() -> Path:
    return data_root() / "images"


def templates() -> Path:
    return data_root() / "templates"


def playbooks() -> Path:
    return data_root() / "playbooks"
