"""The arithmetic of memory: what a run needs on each GPU, and the layout in which it fits.

Bytes per token and layer are those that autograd keeps of a Llama block (h: hidden size, i: MLP, k: keys, all in
values), counted with torch.autograd.graph.saved_tensors_hooks, with fused attention, which keeps no matrix of scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocstack_trainer import loss
from rocstack_trainer.config import Config, micro_batches
from rocstack_trainer.errors import ConfigError, alike
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

# Values of h, i and k: in float32; in bf16 by autocast, which leaves what runs through the layers in float32; in bf16
# by FSDP2, which casts all of it. And of what a layer keeps of its input if it is computed again in backward.
KEPT = {"fp32": (32, 16, 8, 4), "autocast": (30, 8, 4, 4), "bf16": (20, 8, 4, 2)}
UNKNOWN_RANK = 64  # of adapters that lora.adapter brings
ROOM = 0.9  # of a GPU's memory: RCCL, the libraries and what lies between tensors have the rest


@dataclass(frozen=True)
class Sizes:
    """Of a model: all its parameters, those of its largest layer, and what a token needs."""

    parameters: int
    block: int
    layers: int
    hidden: int
    mlp: int
    keys: int
    vocabulary: int
    trained: int  # parameters that have a gradient: all, or those of adapters

    @property
    def root(self) -> int:
        """Parameters outside the layers: embedding and output matrix."""
        return self.parameters - self.layers * self.block


@dataclass(frozen=True)
class Layout:
    """`shard` ranks share one copy of the model; with `recompute`, backward computes each layer again."""

    shard: int = 1
    recompute: bool = False

    def __str__(self) -> str:
        return f"--parallel.shard={self.shard} --train.recompute={'layers' if self.recompute else 'none'}"


def sizes(about: Any, rank: int = 0) -> Sizes:
    """Of a transformers config; makes the model without memory for it. `rank` is that of LoRA, 0 without."""
    import torch

    from rocstack_trainer.models import pretrained
    from rocstack_trainer.sharding import blocks

    with pretrained.parameters_on_meta():
        net = pretrained.new(about)
    layers = [sum(p.numel() for p in block.parameters()) for block in blocks(net)] or [0]
    text = about.get_text_config()
    heads = getattr(text, "num_attention_heads", 1) or 1
    head = getattr(text, "head_dim", 0) or text.hidden_size // heads
    mlp = getattr(text, "intermediate_size", 0) or 4 * text.hidden_size
    keys = head * (getattr(text, "num_key_value_heads", 0) or heads)
    count = sum(p.numel() for p in net.parameters())
    adapters = sum(rank * (m.in_features + m.out_features) for m in net.modules() if isinstance(m, torch.nn.Linear))
    return Sizes(count, max(layers), len(layers), text.hidden_size, mlp, keys, text.vocab_size, adapters or count)


def need(model: Sizes, layout: Layout, tokens: int, bf16: bool) -> dict[str, float]:
    """Bytes of a rank at its peak, by what they are for. `tokens` are those of a forward pass."""
    n, trained, shard = model.parameters, model.trained, layout.shard
    h, i, k, again = KEPT["fp32" if not bf16 else "autocast" if shard == 1 else "bf16"]
    width = 2 if bf16 else 4
    layer = tokens * (h * model.hidden + i * model.mlp + k * model.keys)
    kept = model.layers * layer  # or only each layer's input, and all of the one that is being computed
    activations = model.layers * tokens * again * model.hidden + layer if layout.recompute else kept
    pieces = loss.pieces_of(tokens, model.vocabulary)
    found = {"weights": 4 * n / shard, "gradients": 4 * trained / shard, "AdamW": 8 * trained / shard}
    if trained < n:  # frozen ones are kept in what they are multiplied in
        found["weights"] = (width * n + 4 * trained) / shard
    if shard > 1:  # the root and two layers are whole at a time, and so are the gradients of what is summed up
        largest = max(model.block, model.root)
        found["gathered"] = width * (2 * model.root + 2 * model.block) + (width + 4) * largest
    elif bf16 and trained == n:
        found["bf16 copies"] = 2 * n
    found["activations"] = activations
    found["logits"] = 12 * tokens * model.vocabulary / pieces + 2 * 4 * tokens * model.hidden
    return found


def layouts(rank: Rank, shards: list[int], recompute: str) -> Iterator[Layout]:
    """What there is, the fastest first: inside a node weights are gathered fast, so that comes before computing twice,
    and both before gathering between nodes."""
    modes = {"none": [False], "layers": [True], "auto": [False, True]}[recompute]
    inside = [shard for shard in shards if shard <= rank.local_world]
    for group in (inside, [shard for shard in shards if shard not in inside]):
        for again in modes:
            yield from (Layout(shard, again) for shard in group)


def possible(rank: Rank) -> list[int]:
    """Numbers of ranks that may share a model: parts of a node, or whole nodes."""
    local, world = rank.local_world, rank.world
    return [n for n in range(1, world + 1) if world % n == 0 and (local % n == 0 or n % local == 0)]


@alike()
def choose(config: Config, rank: Rank, about: Any, bf16: bool) -> tuple[Layout, str]:
    """The first layout that the settings leave and that fits, and a line that says why. For all ranks together.

    Raises:
        ConfigError: on all ranks: none fits; it says by how much, and which one would.
    """
    peers, links = Peers(rank), config.parallel
    if rank.world % (links.shard or 1):
        raise ConfigError(f"parallel.shard={links.shard} doesn't divide the {rank.world} ranks: {possible(rank)} do")
    mine = links.memory_gb * 1e9 or available(rank)
    budgets, local_worlds = zip(*peers.agree(lambda: (mine, rank.local_world)), strict=True)
    budget, rank = min(budgets), replace(rank, local_world=min(local_worlds))  # the same on all ranks
    rows = micro_batches(config.train, rank.world)[0] * (2 if config.data.layout == "pairs" else 1)
    tokens = rows * config.data.seq_len
    adapters = config.lora.rank or (UNKNOWN_RANK if config.lora.on else 0)
    model = Sizes(**peers.first(lambda: asdict(_sizes(about, adapters))))
    shards = [links.shard] if links.shard else [1] if config.outer else possible(rank)  # DiLoCo has whole weights
    asked = [*layouts(rank, shards, config.train.recompute)]
    fits = next((each for each in asked if total(model, each, tokens, bf16) <= budget), None)
    if fits:
        return fits, f"memory: {words(need(model, fits, tokens, bf16))} a rank, of {size_of(budget)}; {fits}"
    smallest = min(asked, key=lambda each: total(model, each, tokens, bf16))
    over = total(model, smallest, tokens, bf16) - budget
    raise ConfigError(
        f"the model doesn't fit: a rank would need {words(need(model, smallest, tokens, bf16))} with {smallest},"
        f" and has {size_of(budget)}: {size_of(over)} too little\n  {_hint(model, rank, tokens, bf16, budget)}"
    )


def _sizes(about: Any, adapters: int) -> Sizes:
    try:
        return sizes(about, adapters)
    except Exception as error:  # each model type checks its sizes in its own way
        raise ConfigError(f"model.type={about.model_type}: {error}") from error


def total(model: Sizes, layout: Layout, tokens: int, bf16: bool) -> float:
    return sum(need(model, layout, tokens, bf16).values())


def words(parts: dict[str, float]) -> str:
    each = ", ".join(f"{what} {size_of(size)}" for what, size in parts.items())
    return f"{size_of(sum(parts.values()))} ({each})"


def size_of(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def available(rank: Rank) -> float:
    """Bytes that this rank may use: of its GPU, or its share of the host's memory."""
    if rank.device != "cpu":
        import torch

        return ROOM * torch.cuda.mem_get_info(rank.device)[1]
    with open("/proc/meminfo") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    return 1024 * kib / rank.local_world


def _hint(model: Sizes, rank: Rank, tokens: int, bf16: bool, budget: float) -> str:
    here = [*layouts(rank, possible(rank), "auto")]
    if fits := next((each for each in here if total(model, each, tokens, bf16) <= budget), None):
        return f"it fits with {fits}"
    ranks = next((n for n in (2**e for e in range(16)) if total(model, Layout(n, True), tokens, bf16) <= budget), None)
    if ranks:
        return f"with --train.recompute=layers it fits on {ranks} ranks that share it (--parallel.shard={ranks})"
    return "a smaller train.micro_batch or data.seq_len needs less, a shard of more ranks doesn't help"
