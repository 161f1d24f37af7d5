"""The parts of a decoder as an engine's graph needs them: matrices by name, and what is computed with them.

No part depends on the model's family. Matrices are named as in the state dict, where a builder finds them packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix [out, in] that activations are multiplied by.

    Attributes:
        name: its name in the state dict, followed by "[3]" for one of stacked experts.
        shape: [out, in].
        read: returns its float values [out, in], for a matrix that is not packed.
        storage: the address of its data; matrices with the same address are one tensor.
        bias: added to the product.
    """

    name: str
    shape: tuple[int, int]
    read: Callable[[], Tensor]
    storage: int
    bias: Tensor | None = None

    @property
    def layer(self) -> str:
        """The name without ".weight", as accuracy levels and reports use it."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over the last axis; ``weight`` includes any constant that the model adds to it."""

    kind: Literal["rms", "layer"]  # the second one subtracts the mean first
    weight: Tensor
    epsilon: float
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotations of the first ``2 * len(frequencies)`` channels of a head.

    Attributes:
        scaling: multiplies cosine and sine.
        interleaved: pairs are neighbours; otherwise the first half of the channels is paired with the second.
        long_frequencies: used for all positions of a call if one of them is at least ``original_context``.
    """

    frequencies: Tensor
    scaling: float
    interleaved: bool = False
    long_frequencies: Tensor | None = None
    original_context: int = 0

    @property
    def width(self) -> int:
        """The channels of a head that are rotated."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, eq=False, kw_only=True)
class Attention:
    """Attention with causal masks.

    Attributes:
        inputs: the matrices of queries, keys and values, or one matrix for all three.
        groups: the number of head groups in one matrix for all three. Its rows are the queries, keys and values of the
            first group, then those of the second.
        clip: the bound of the projections; 0 for none.
        norms: norms of the queries and of the keys, over each head or over all heads.
        window: positions that a query sees, including its own; None for all.
        softcap: the bound of the scores; 0 for none.
    """

    inputs: tuple[Matrix, ...]
    output: Matrix
    heads: int
    kv_heads: int
    width: int
    scale: float
    groups: int = 1
    clip: float = 0.0
    norms: tuple[Norm, Norm] | None = None
    rotary: Rotary | None = None
    window: int | None = None
    softcap: float = 0.0

    @property
    def rows(self) -> tuple[int, int, int]:
        """The numbers of query, key and value rows in one group."""
        keys = self.kv_heads // self.groups * self.width
        return self.heads // self.groups * self.width, keys, keys

    @property
    def row_order(self) -> Tensor:
        """The order of rows that puts all queries first, then keys, then values, for one matrix that holds all three.

        Example:
            >>> from types import SimpleNamespace
            >>> matrix = SimpleNamespace()
            >>> two = Attention(
            ...     inputs=(matrix,), output=matrix, heads=2, kv_heads=2, width=2, scale=1.0, groups=2
            ... )
            >>> two.row_order.tolist()
            [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
        """
        places = torch.arange(self.groups * sum(self.rows)).view(self.groups, -1)
        return torch.cat([part.flatten() for part in places.split(self.rows, 1)])


@dataclass(frozen=True, eq=False, kw_only=True)
class FeedForward:
    """``down(activation(gate) * up)``, or ``down(activation(up))`` without a gate.

    ``inputs`` are the matrices of gate and up, or one matrix with the gate's rows first.
    """

    inputs: tuple[Matrix, ...]
    down: Matrix
    activation: Activation
    gated: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Experts:
    """The sum of the ``chosen`` experts with the largest router outputs, weighted by the softmax of all outputs.

    Attributes:
        normalized: whether the weights of the chosen experts are divided by their sum.
        shared: an expert for every token, weighted by the sigmoid of the product with ``shared_gate``.
    """

    router: Matrix
    experts: tuple[FeedForward, ...]
    chosen: int
    normalized: bool
    shared: FeedForward | None = None
    shared_gate: Matrix | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """Attention and feed-forward, each between norms.

    Attributes:
        parallel: attention and feed-forward both read the layer's input, and their sum is added to it.
        before_feed_forward: None in a parallel layer means that the feed-forward part reads the attention's input.
        factor: multiplies what is added to the layer's input.
    """

    before_attention: Norm | None
    attention: Attention
    feed_forward: FeedForward | Experts
    before_feed_forward: Norm | None
    after_attention: Norm | None = None
    after_feed_forward: Norm | None = None
    parallel: bool = False
    factor: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoder:
    """From token ids to logits.

    Attributes:
        embedding: the token table, whose rows are multiplied by ``embedding_factor``.
        positions: the table of learned positions, starting at row ``position_offset``.
        context: the longest text the model was made for, in tokens.
        logit_factor: multiplies the logits.
        softcap: the bound of the logits; 0 for none.
    """

    embedding: Matrix
    embedding_factor: float
    positions: Matrix | None
    position_offset: int
    layers: tuple[Layer, ...]
    norm: Norm
    head: Matrix
    logit_factor: float
    softcap: float
    context: int
