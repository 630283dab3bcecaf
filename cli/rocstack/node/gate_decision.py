"""What the daemons' start decided, for Slurm's prolog: its jobs don't get the container's environment.

The file is one line: a word, then the sentence. The entrypoint writes the word it was given (refuse, warn, off)
before it asks, so a start that ended badly leaves nothing old behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocstack.node.gate import GateVerdict

from .gate import FITS, UNKNOWN
from .rdma_trial import Trial

PATH = "/run/rocstack/gate"
REFUSE, WARN, OFF = "refuse", "warn", "off"  # ROCSTACK_GATE
FIT, PROVED = "fits", "proved"


@dataclass(frozen=True)
class GateDecision:
    """`word`: fits; proved (unknown, but every device worked); refuse, or warn and off, which start all the same."""

    word: str
    says: str

    @property
    def starts(self) -> bool:
        return self.word != REFUSE


def decide(gate: str, verdict: GateVerdict, tried: Trial) -> GateDecision:
    """Unknown is not fitting, unless every device was tried and works; what fits must not fail its trial."""
    if verdict.result == FITS and tried.works is not False:
        return GateDecision(FIT, verdict.sentence)
    if verdict.result == UNKNOWN and tried.works:
        return GateDecision(PROVED, verdict.sentence)
    return GateDecision(
        gate, verdict.sentence if verdict.result != FITS else f"{verdict.node}: {'; '.join(tried.says)}"
    )


def write(decision: GateDecision) -> bool:
    """False where this container's file system does not let it."""
    try:
        Path(PATH).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(PATH).write_text(f"{decision.word} {decision.says}\n")
        return True
    except OSError:
        return False


def read() -> GateDecision | None:
    try:
        word, _, says = Path(PATH).read_text().strip().partition(" ")
    except OSError:
        return None
    return GateDecision(word, says)
