"""The files behind `data.path`: one, those of a folder, or those that fit a pattern."""

from __future__ import annotations

import difflib
import glob
import re
from pathlib import Path

from rocstack_trainer.errors import ConfigError

KINDS = (".bin", ".parquet", ".jsonl", ".arrow")
WORDS = ".bin, .parquet, .jsonl or .arrow"
SHARD = re.compile(r"(.*?)(\d+)-of-(\d{1,5})(-[0-9a-f]+)?")  # train-00000-of-00004; older data sets add a hash
SPLIT = re.compile(r"(train|valid|val|test|eval|dev)")


def find(path: str) -> list[Path]:
    """The files in the order of their names, all of one kind.

    One file that is named alone may be a shard of several: the person asked for that one.

    Raises:
        ConfigError: there is none, they are of two kinds or of several splits, or a shard is missing.
    """
    here = Path(path)
    if here.is_dir():
        found = [Path(name) for kind in KINDS for name in sorted(glob.glob(f"{glob.escape(path)}/*{kind}"))]
        found = [file for file in found if not file.name.startswith("cache-")]  # of the datasets package
        splits = {match[0] for file in found if (match := SPLIT.match(file.name))}
        if len(splits) > 1:
            hint = f"choose one, as in --data.path='{path}/train*'"
            raise ConfigError(f"data.path: {path} has files of several splits: {', '.join(sorted(splits))}\n  {hint}")
    elif here.exists():
        found = [here]
    else:
        found = [Path(name) for name in sorted(glob.glob(path, recursive=True))]
    if not found:
        raise ConfigError(f"data.path: {path}: {_absent(here)}")
    kinds = sorted({file.suffix for file in found})
    if len(kinds) > 1 or kinds[0] not in KINDS:
        first = ", ".join(next(file.name for file in found if file.suffix == kind) for kind in kinds)
        raise ConfigError(f"data.path: {path} is {first}: they must be all {WORDS}")
    if found != [here]:
        _complete(found)
    return found


def _absent(path: Path) -> str:
    if path.is_dir() and (path / "dataset_dict.json").is_file():
        return f"it has several splits: choose one, as in --data.path={path}/train"
    if path.is_dir():
        return f"no {WORDS} file in it (folders inside are not searched: name them, as in DIR/**/*.parquet)"
    if glob.has_magic(str(path)):
        return "no file has such a name"
    close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*")], 1)
    return "No such file or folder" + (f": did you mean {path.parent / close[0]}?" if close else "")


def _complete(files: list[Path]) -> None:
    """Of x-00000-of-00004 all four have to be on the disk, though a pattern may leave some out."""
    matches = [(file, SHARD.fullmatch(file.stem)) for file in files]
    for folder, suffix, prefix, total in sorted({(f.parent, f.suffix, m[1], m[3]) for f, m in matches if m}):
        there = [match for file in folder.glob(f"*{suffix}") if (match := SHARD.fullmatch(file.stem))]
        numbers = {int(match[2]): match[2] for match in there if (match[1], match[3]) == (prefix, total)}
        first = int(0 not in numbers and int(total) in numbers)  # some count from 1
        missing = sorted(set(range(first, first + int(total))) - set(numbers))
        if missing:
            width = len(next(iter(numbers.values())))
            name = folder / f"{prefix}{missing[0]:0{width}}-of-{total}{suffix}"
            raise ConfigError(
                f"data.path: {name} is missing: {int(total) - len(missing)} of {int(total)} shards are there\n"
                "  fetch it again; to train without it, name those to use in a folder of their own"
            )
