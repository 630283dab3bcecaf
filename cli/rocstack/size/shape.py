"""The shape of a transformer, and its parameters and FLOPs, counted exactly. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What counts in a model's config. Widths are in values; of what a model doesn't have, there are 0."""

    type: str  # as Hugging Face calls it
    layers: int
    hidden: int
    vocabulary: int
    context: int  # tokens that it was made for; 0: unknown
    heads: int
    keys: int  # heads of keys and values
    head: int  # width of one, of queries and keys
    value: int  # width of one, of values
    query_rank: int = 0  # DeepSeek's latent attention: queries, and keys with values, go through these widths
    key_rank: int = 0
    rope: int = 0  # the part of `head` that has positions, and is shared by all heads
    mlp: int  # of a dense layer
    gated: bool = True  # three matrices instead of two
    dense_layers: int = 0  # the first layers without experts; of a model without experts, all
    experts: int = 0
    active: int = 0  # experts of a token
    expert_mlp: int = 0
    shared_mlp: int = 0  # the experts that all tokens go through
    router_bias: bool = False
    tied: bool = False  # the output matrix is the embedding
    positions: int = 0  # learned ones
    norms: int = 2  # of a layer
    norm_bias: bool = False
    key_norm: bool = False  # queries and keys have norms of their own
    key_bias: bool = False  # queries, keys and values have a bias
    out_bias: bool = False  # so has the matrix behind the attention
    mlp_bias: bool = False
    window: int = 0  # tokens that a layer with a sliding window looks back
    windowed: int = 0  # layers that have one

    @property
    def sparse_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def attention(self) -> int:
        """Parameters of the attention's matrices of one layer."""
        h, out = self.hidden, self.heads * self.value * self.hidden
        if self.key_rank:
            plain = self.head - self.rope
            queries = h * self.query_rank + self.query_rank * self.heads * self.head
            keys = h * (self.key_rank + self.rope) + self.key_rank * self.heads * (plain + self.value)
            return (queries or h * self.heads * self.head) + keys + out
        return h * self.heads * self.head + h * self.keys * (self.head + self.value) + out

    @property
    def dense(self) -> int:
        """Parameters of the matrices of a dense MLP."""
        return (2 + self.gated) * self.hidden * self.mlp

    @property
    def shared(self) -> int:
        return 3 * self.hidden * self.shared_mlp

    @property
    def expert(self) -> int:
        return 3 * self.hidden * self.expert_mlp

    @property
    def router(self) -> int:
        return self.hidden * self.experts

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def small(self) -> int:
        """Norms and biases of one layer, which no layout splits; of a dense MLP's biases, where all layers are."""
        norm = (1 + self.norm_bias) * self.hidden * self.norms
        norm += 2 * self.head * self.key_norm + self.query_rank + self.key_rank
        keys = (self.heads * self.head + self.keys * (self.head + self.value)) * self.key_bias
        mlp = (self.hidden + self.mlp * (1 + self.gated)) * self.mlp_bias
        return norm + keys + self.hidden * self.out_bias + mlp

    def parts(self) -> dict[str, int]:
        """All parameters, by part."""
        sparse = self.sparse_layers
        found = {
            "embeddings": self.embedding + self.positions * self.hidden,
            "attention": self.layers * self.attention,
            "MLP": self.dense_layers * self.dense + sparse * self.shared,
            "experts": sparse * self.experts * self.expert,
            "router": sparse * (self.router + self.experts * self.router_bias),
            "norms and biases": self.layers * self.small + (1 + self.norm_bias) * self.hidden,
            "output": 0 if self.tied else self.embedding,
        }
        return {name: count for name, count in found.items() if count}

    @property
    def parameters(self) -> int:
        return sum(self.parts().values())

    def worked(self, sparse: bool) -> int:
        """Parameters of one layer's matrices that a token is multiplied with."""
        mlp = self.active * self.expert + self.shared + self.router if sparse else self.dense
        return self.attention + mlp

    @property
    def active_parameters(self) -> int:
        """Those of all layers and the output matrix that a token is multiplied with."""
        layers = self.dense_layers * self.worked(False) + self.sparse_layers * self.worked(True)
        return layers + self.embedding

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA on every matrix of attention and dense or shared MLP; experts and output have none."""
        h, heads = self.hidden, self.heads
        if self.key_rank:
            plain = self.head - self.rope + self.value
            attention = [(h, self.query_rank), (self.query_rank, heads * self.head), (h, self.key_rank + self.rope)]
            attention.append((self.key_rank, heads * plain))
        else:
            attention = [(h, heads * self.head), (h, self.keys * self.head), (h, self.keys * self.value)]
        attention.append((heads * self.value, h))
        per_layer = sum(into + out for into, out in attention)
        dense, shared = (2 + self.gated) * (h + self.mlp), 3 * (h + self.shared_mlp) * bool(self.shared_mlp)
        return rank * (self.layers * per_layer + self.dense_layers * dense + self.sparse_layers * shared)

    def attention_flops(self, sequence: int) -> float:
        """Of a token in forward, in all layers: scores and their sum, as each token looks at those before it."""
        seen = sequence / 2
        near = min(self.window, sequence)
        short = near - near * near / (2 * sequence) if self.windowed else 0
        width = 2 * self.heads * (self.head + self.value)
        return width * ((self.layers - self.windowed) * seen + self.windowed * short)

    def flops(self, sequence: int, trained: bool = True) -> float:
        """Of a token, forward and backward, as they are useful: nothing is counted twice that is computed twice.
        Without `trained`, weights have no gradients."""
        return (6 if trained else 4) * self.active_parameters + 3 * self.attention_flops(sequence)
