"""What a NIC profile wants in the environment, and on which versions. It travels in the image as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLUGIN = "plugin"  # in conditions: RCCL's plugin in the image
_CONDITION = re.compile(r"([a-z][a-z0-9_-]*)(?:(>=|<=|==|>|<)([0-9]+(?:\.[0-9]+)*))?")


@dataclass(frozen=True)
class FabricSetting:
    """One environment variable, why it is set and who says so. `when` is what `holds` reads; of several settings of
    one name the first that holds is taken."""

    name: str
    value: str
    why: str
    source: str
    when: str | None = None


@dataclass(frozen=True)
class PluginSettings:
    """RCCL's plugin for a NIC: what RCCL needs it for (`when` is what `holds` reads), what happens without it."""

    name: str
    when: str | None = None
    without: str = ""


@dataclass(frozen=True)
class NicSettings:
    """The part of a NIC profile that a node's environment depends on. Without a `provider` it needs no verbs."""

    nic: str
    modules: tuple[str, ...] = ()  # kernel modules on the host
    pci: tuple[str, ...] = ()  # vendor:device
    provider: str | None = None  # libibverbs' name of the driver
    dscp: int | None = None  # of RoCE traffic
    dscp_source: str | None = None
    env: tuple[FabricSetting, ...] = ()
    plugin: PluginSettings | None = None

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> NicSettings:
        """
        Raises:
            ValueError: not the settings of a NIC profile.
        """
        try:
            parts: dict[str, Any] = {key: tuple(data.get(key, ())) for key in ("modules", "pci")}
            parts["env"] = tuple(FabricSetting(**line) for line in data.get("env", ()))
            parts["plugin"] = PluginSettings(**data["plugin"]) if data.get("plugin") else None
            settings = NicSettings(**{**data, **parts})
            for when in (*(each.when for each in settings.env), settings.plugin.when if settings.plugin else None):
                holds(when, {})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not the settings of a NIC profile: {error}") from error
        return settings


SOFT_ROCE = NicSettings("soft-roce", modules=("rdma_rxe",), provider="rxe")  # RDMA in software, for tests


def holds(when: str | None, versions: Mapping[str, str]) -> bool | None:
    """Whether all of the comma-separated conditions hold: `rocm>=7.2.1`, or `anp` for "is there". None where the
    answer hangs on a version that is not known.

    Raises:
        ValueError: not such conditions.
    """
    answer: bool | None = True
    for part in when.split(",") if when else ():
        match = _CONDITION.fullmatch(part.strip())
        if not match:
            raise ValueError(f"'{part.strip()}' is no condition; write a name, or as in rocm>=7.2.1")
        name, how, bound = match.groups()
        one = _compare(versions.get(name, ""), how, bound) if how else name in versions
        if one is False:
            return False
        answer = answer if one else None
    return answer


def condition_names(when: str) -> list[str]:
    """The names that the conditions speak of."""
    return [match[1] for match in _CONDITION.finditer(when)]


def _compare(version: str, how: str, bound: str) -> bool | None:
    have, want = _numbers(version), _numbers(bound)
    if not have:
        return None
    length = max(len(have), len(want))
    left, right = ([*part, *[0] * (length - len(part))] for part in (have, want))
    return {">=": left >= right, "<=": left <= right, "==": left == right, ">": left > right, "<": left < right}[how]


def _numbers(version: str) -> list[int]:
    """7.2.1 of `7.2.1-43~24.04`; nothing where it doesn't begin with a number."""
    match = re.match(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)*)", version)
    return [int(part) for part in match[1].split(".")] if match else []
