"""What a node's GPUs and links can do: from gpus.yml, sizing.yml, the node models and the thresholds of verify."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from pydantic import Field

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, hinted
from rocstack.base.text import visible
from rocstack.base.words import Line, Name, Value
from rocstack.stack.gpus import GpuModel, targets
from rocstack.verify import thresholds
from rocstack.virtual import model as node_model


class Rate(Value):
    node: Name
    gemm: tuple[float, float] | None = None
    source: Line = ""


class Sizing(Value):
    room: float = Field(gt=0, le=1)
    wire: float = Field(gt=0, le=1)
    products: tuple[float, float]
    attention: float = Field(gt=0, le=1)
    gpus: dict[str, Rate]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A node, and one of its GPUs as the driver counts them. Bytes, bytes/s and FLOP/s; None: nobody says it."""

    gpu: str
    memory: float  # all of it
    budget: float  # what a run may use
    peak: float | None  # bf16
    gemm: tuple[float, float] | None  # what products reach in training, from and to
    attention: float  # of gemm
    hbm: float | None  # of a copy, read and written
    board: int  # GPUs that `inside` was measured with
    inside: float | None  # busbw of a collective of the whole board
    mesh: bool  # each GPU has a link to each, so fewer GPUs have fewer links
    gpus: int  # of a node
    nics: int
    nic: float  # bytes/s of one
    wire: float  # of a NIC's speed that collectives reach

    @property
    def share(self) -> float:
        """Bytes/s of the NICs for each GPU, in a collective."""
        return self.nics * self.nic * self.wire / self.gpus

    def ring(self, members: int) -> float | None:
        """busbw of a collective of so many GPUs within a node."""
        if self.inside is None:
            return None
        links = max(self.board - 1, 1)
        return self.inside * min(1.0, (members - 1) / links) if self.mesh else self.inside

    @property
    def link(self) -> float | None:
        """Bytes/s from one GPU of a node to another."""
        return self.ring(2)


@cache
def sizing() -> Sizing:
    return document.read(paths.images() / "sizing.yml").validate(Sizing)


def known() -> dict[str, GpuModel]:
    return {name: each for target in targets().values() for name, each in target.gpus.items()}


def find(gpu: str, gpus_per_node: int | None = None, network: str | None = None) -> Hardware:
    """
    Raises:
        BadInput: no such GPU, or `network` is not NUMBERxSPEED.
    """
    models, name = known(), gpu.upper()
    if name not in models:
        raise BadInput.of("unknown-gpu", name=visible(gpu), hint=hinted(name, models), known=", ".join(sorted(models)))
    model, rate = models[name], sizing().gpus.get(name)
    node = node_model.load(rate.node) if rate else None
    board = model.board or 1
    nics, speed = _nics(node)
    if network:
        nics, speed = _network(network)
    counted = [f"{board} × AMD Instinct {name}"]
    known_gemm, shares = _threshold("gemm-bf16", counted), sizing().products
    gemm = (known_gemm * shares[0], known_gemm * shares[1]) if known_gemm else None
    gemm = (rate and rate.gemm) or gemm
    inside, hbm = (_threshold(quantity, counted) for quantity in ("all-reduce-busbw", "hbm-bandwidth"))
    gib = float(1 << 30)
    return Hardware(
        gpu=name, memory=model.memory * gib, budget=sizing().room * model.memory * gib,
        peak=model.bf16 * 1e12 if model.bf16 else None,
        gemm=(gemm[0] * 1e12, gemm[1] * 1e12) if gemm else None, attention=sizing().attention,
        hbm=hbm * 1e9 if hbm else None, board=board, inside=inside * 1e9 if inside else None,
        mesh=bool(node and node.gpus and node.gpus.xgmi == "all"), gpus=gpus_per_node or board, nics=nics,
        nic=speed * 1e9 / 8, wire=sizing().wire,
    )  # fmt: skip


def _threshold(quantity: str, gpus: list[str]) -> float | None:
    found = thresholds.load()[quantity].of(gpus, (), nodes=1)
    return found.least if found else None


def _nics(node: node_model.NodeModel | None) -> tuple[int, float]:
    """Cards of the data network, and Gb/s of one."""
    data = [each for each in node.nics if each.nic and not each.management] if node else []
    return (data[0].count, data[0].speed / 1000) if data else (1, 0.0)


def _network(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"([1-9][0-9]?)[x×]([1-9][0-9]{0,4})", text)
    if match is None:
        raise BadInput.of("bad-network", value=visible(text))
    return int(match[1]), float(match[2])
