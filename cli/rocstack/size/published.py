"""Published training runs, beside what the arithmetic says of them: images/published-runs.yml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from rocstack.base import document, paths
from rocstack.base.words import Line, Name, Value
from rocstack.size import hardware, models
from rocstack.size.layout import GpuLayout
from rocstack.size.speed import Speed, speed


class PublishedRun(Value):
    model: Name
    gpu: Line
    nodes: int = Field(ge=1)
    sequence: int = Field(ge=1)
    layout: dict[Name, int]
    published: float = Field(gt=0)
    unit: Literal["TFLOPS", "tokens/s"]
    attention: Literal["full", "causal"] = "causal"
    fitted: bool = False
    assumed: Line
    source: Line

    @property
    def degrees(self) -> GpuLayout:
        degrees: dict[str, Any] = dict(self.layout)
        return GpuLayout(**degrees)


@dataclass(frozen=True)
class Compared:
    """`slow` and `fast` in the unit of the run, of one GPU."""

    name: str
    run: PublishedRun
    slow: float
    fast: float

    @property
    def middle(self) -> float:
        """How much more the middle of both bounds is than what was published, as a share."""
        return (self.slow + self.fast) / 2 / self.run.published - 1

    @property
    def outside(self) -> float:
        """How far the published value lies outside the bounds, as a share; 0 within."""
        low = min(self.run.published / self.slow - 1, 0.0)
        return low or max(self.run.published / self.fast - 1, 0.0)


def load() -> dict[str, PublishedRun]:
    doc = document.read(paths.images() / "published-runs.yml")
    return {name: doc.part(name).validate(PublishedRun) for name in doc.data}


def compare(name: str, run: PublishedRun, known: Speed | None = None) -> Compared:
    """Beside the formula's speed, or one that is known by other means."""
    shape, _ = models.find(run.model)
    layout = run.degrees
    found = known or speed(shape, layout, run.sequence, hardware.find(run.gpu))
    assert found is not None, "the runs are of GPUs whose rates are known"
    # Half of the scores are masked; who counts them all has more FLOPs of the same step.
    more = 3 * shape.attention_flops(run.sequence) if run.attention == "full" else 0.0
    of_one = (found.flops + more) / 1e12 if run.unit == "TFLOPS" else 1.0
    slow, fast = (each / layout.gpus * of_one for each in found.rate)
    return Compared(name, run, slow, fast)


def table() -> list[Compared]:
    return [compare(name, run) for name, run in load().items()]
