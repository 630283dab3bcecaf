"""The question and its answer: what a model needs, and how fast it would be, by formula."""

from __future__ import annotations

from typing import Protocol

from rocstack.base.errors import BadInput
from rocstack.base.text import visible
from rocstack.size import hardware, models, sizing
from rocstack.size.layout import Asked
from rocstack.size.sizing import Sized

RANK = 16  # of LoRA
SEQUENCE = 8192  # where nobody says it, and the model was made for as many
_RECOMPUTE = {"auto": None, "none": False, "layers": True}


class SizeQuestion(Protocol):
    """What of a layout is None is chosen: what fits, and of that the fastest."""

    @property
    def model(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def nodes(self) -> int | None: ...
    @property
    def gpus_per_node(self) -> int | None: ...
    @property
    def network(self) -> str | None: ...
    @property
    def seq(self) -> int | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def method(self) -> str: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def tp(self) -> int | None: ...
    @property
    def cp(self) -> int | None: ...
    @property
    def pp(self) -> int | None: ...
    @property
    def dp(self) -> int | None: ...
    @property
    def shard(self) -> int | None: ...
    @property
    def ep(self) -> int | None: ...
    @property
    def micro_batch(self) -> int | None: ...
    @property
    def accumulate(self) -> int | None: ...
    @property
    def interleave(self) -> int | None: ...
    @property
    def recompute(self) -> str: ...


def size(choice: SizeQuestion) -> Sized:
    """
    Raises:
        BadInput: an unknown model or GPU, a config that can't be read, or a layout that is impossible.
    """
    if choice.method not in ("full", "lora"):
        raise BadInput.of("bad-method", value=visible(choice.method))
    if choice.rank and choice.method != "lora":
        raise BadInput.of("rank-without-lora", rank=choice.rank)
    if choice.recompute not in _RECOMPUTE:
        raise BadInput.of("bad-recompute", value=visible(choice.recompute))
    shape, model = models.find(choice.model)
    node = hardware.find(choice.gpu, choice.gpus_per_node, choice.network)
    sequence = choice.seq or model.sequence or min(shape.context or SEQUENCE, SEQUENCE)
    rank = (choice.rank or RANK) if choice.method == "lora" else 0
    return sizing.answer(model, shape, node, layout(choice), nodes=choice.nodes, sequence=sequence, rank=rank)


def layout(choice: SizeQuestion) -> Asked:
    return Asked(
        tp=choice.tp, cp=choice.cp, pp=choice.pp, dp=choice.dp, shard=choice.shard, ep=choice.ep,
        micro=choice.micro_batch, accumulate=choice.accumulate, interleave=choice.interleave, batch=choice.batch,
        recompute=_RECOMPUTE[choice.recompute],
    )  # fmt: skip
