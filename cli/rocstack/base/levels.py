"""The levels of `rocstack verify`: what each proves, from the image to a soak."""

from typing import Annotated

from pydantic import Field

LEVELS = {
    0: "the image",
    1: "the cluster without its GPUs",
    2: "GPUs and fabric, functional",
    3: "performance against thresholds",
    4: "soak",
}
HARDWARE = 2  # from this level on a check is about hardware

Level = Annotated[int, Field(ge=0, le=max(LEVELS))]
