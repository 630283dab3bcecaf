"""Names of variables that the fabric's and the GPUs' libraries read (images/environment.yml). A misspelt one changes
nothing, and at most a line in a job's log says so."""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from rocstack.base import paths
from rocstack.base.text import distance

_ASSIGNED = re.compile(r"(?<![\w$.{/-])([A-Za-z][A-Za-z0-9]*_\w+)=(?!=)")
_FEW = 3  # letters of words that differ by one letter and are two words: TX and RX


@cache
def known() -> frozenset[str]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load((paths.images() / "environment.yml").read_text(encoding="utf-8"), loader)
    return frozenset(name for library in data.values() for name in library["names"].split())


@lru_cache(maxsize=10_000)  # of the service's people, who may write any
def misspelt(name: str) -> str | None:
    """Why nothing reads this variable; None for one that is known, and for one that is nearly none of them."""
    if name in known():
        return None
    near = sorted(
        (other for other in known() if _alike(name, other)), key=lambda other: (distance(name, other, 9), other)
    )
    return f"no library reads '{name}': did you mean '{near[0]}'?" if near else None


def misspelt_in(text: str) -> Iterator[tuple[int, str]]:
    """Of what a script or a Dockerfile sets by NAME=VALUE: lines (from 1), and why nothing reads what they set."""
    for number, line in enumerate(text.splitlines(), 1):
        is_comment = line.lstrip().startswith("#") and not line.startswith(("#SBATCH", "#SLURM"))
        for name in () if is_comment else _ASSIGNED.findall(line):
            if why := misspelt(name):
                yield number, why


def _alike(one: str, other: str) -> bool:
    """Word by word: real names differ by a word (NCCL_MIN_CTAS, NCCL_MAX_CTAS), mistakes within one."""
    one, other = one.lower(), other.lower()
    if one.replace("_", "") == other.replace("_", ""):
        return True
    words, others = one.split("_"), other.split("_")
    return len(words) == len(others) and all(map(_alike_words, words, others))


def _alike_words(one: str, other: str) -> bool:
    if max(len(one), len(other)) <= _FEW:
        return sorted(one) == sorted(other) or (len(one) != len(other) and distance(one, other, 2) < 2)
    return distance(one, other, 3) <= (1 if min(len(one), len(other)) < 8 else 2)
