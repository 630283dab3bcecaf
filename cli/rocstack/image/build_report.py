"""The result of a build as values: for the table, for JSON, for JUnit."""

import json
from pathlib import Path
from typing import Any, Literal

from rocstack.base import junit
from rocstack.base.words import Value
from rocstack.image.build_failure import BuildFailure
from rocstack.settings.settings import Settings
from rocstack.stack.lock import Drift

SCHEMA = 1  # of report.json


class StepTime(Value):
    stage: str
    step: str
    seconds: float
    cached: bool


class GateResult(Value):
    """Whether the image fits one of the nodes that it was built for."""

    node: str
    result: str
    says: str


class ImageReport(Value):
    """One image: built, failed, or blocked by another image's failure."""

    role: str
    reference: str
    status: Literal["built", "failed", "blocked"] = "built"
    seconds: float = 0
    log: str
    blocked_by: str | None = None
    image_id: str | None = None
    size_bytes: int | None = None  # uncompressed
    versions: dict[str, str] = {}
    components: dict[str, int] = {}  # bytes
    largest: dict[str, int] = {}  # package -> bytes
    smoke: dict[str, tuple[str, ...]] = {}
    drift: tuple[Drift, ...] = ()
    steps: tuple[StepTime, ...] = ()
    gate: tuple[GateResult, ...] = ()
    failure: BuildFailure | None = None
    attempts: int = 1
    pushed: dict[str, str] = {}  # tag reference -> digest, read back from the registry


class BuildReport(Value):
    rocstack: str
    stack: str
    why: str = ""  # this stack, where it was chosen for the nodes
    rehearsal: str = ""  # what the worker lacks for the GPUs of the nodes that it is built for
    nic: str
    way: str
    base: str
    base_digest: str
    lock: str | None
    world: str
    context_digest: str
    seconds: float
    images: tuple[ImageReport, ...]

    @property
    def ok(self) -> bool:
        return all(image.status == "built" for image in self.images)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "ok": self.ok, **self.model_dump()}

    def to_junit(self) -> str:
        """One test case for each image, and one for each component's smoke test."""
        name = f"{self.stack}.{self.nic}"
        cases = []
        for image in self.images:
            how: dict[str, Any] = {}
            if failure := image.failure:
                where = f" ({failure.template})" if failure.template else ""
                text = "\n".join([*failure.context, "", f"reproduce: {failure.reproduce}"])
                how = {"result": "failure", "message": f"{failure.stage}: {failure.error}{where}", "text": text}
            elif image.status == "blocked":
                how = {"result": "skipped", "message": f"blocked by {image.blocked_by}"}
            cases.append(junit.case(name, image.role, image.seconds, **how))
            for component, seen in image.smoke.items():
                cases.append(junit.case(f"{name}.{image.role}.smoke", component, output="\n".join(seen)))
        return junit.text_of(junit.suite(f"rocstack build {self.stack} {self.nic}", cases, seconds=self.seconds))


def last_base(folder: Path) -> str | None:
    """The base that the last build in `folder` started from; None where no report tells it."""
    return _read(folder, "base")


def with_built_stack(chosen: Settings) -> Settings:
    """Settings that name no stack get the one that the last build for their NIC took without one being named."""
    if "stack" in chosen.model_fields_set:
        return chosen
    reports = sorted(Path(chosen.out).glob(f"*-{chosen.nic}/report.json"), key=lambda file: file.stat().st_mtime)
    done = [file.parent for file in reports if _read(file.parent, "ok") == "True"]
    built = [(_read(folder, "stack"), _read(folder, "why")) for folder in done]
    names = [name for name, why in built if name and (why or name == chosen.stack_name())]
    return chosen.model_copy(update={"stack": names[-1]}) if names else chosen


def _read(folder: Path, key: str) -> str | None:
    """From the report of the last build."""
    try:
        return str(json.loads((folder / "report.json").read_text())[key])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def over_budget(image: ImageReport, budget_mb: int) -> str | None:
    """A sentence when the image is larger than its stack allows."""
    if image.size_bytes is None or image.size_bytes <= budget_mb * 1_000_000:
        return None
    largest = next(iter(image.largest.items()), None)
    tail = f"; the largest package is {largest[0]} ({largest[1] / 1e6:.0f} MB)" if largest else ""
    return f"{image.size_bytes / 1e6:.0f} MB uncompressed, the stack's budget is {budget_mb} MB{tail}"
