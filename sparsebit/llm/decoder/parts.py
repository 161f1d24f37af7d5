"""The parts of a decoder, as a graph for an engine needs them: matrices by name, and what is computed with them.

No part says which model it comes from. A matrix is named as in the state dict, so that a builder finds its packed form.
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
        name: in the state dict; followed by "[3]" for one of stacked experts.
        shape: [out, in].
        read: gives its float values [out, in], for a matrix that is not packed.
        storage: the address of what the module holds; matrices with the same one are one tensor.
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
    """A norm over the last axis; ``weight`` is what it multiplies by, with any constant that the model adds."""

    kind: Literal["rms", "layer"]  # the second one subtracts the mean first
    weight: Tensor
    epsilon: float
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotations of the first ``2 * len(frequencies)`` channels of a head.

    Attributes:
        scaling: of cosine and sine.
        interleaved: the pairs are neighbours; otherwise the first half of the channels is paired with the second.
        long_frequencies: used for all positions of a call with a position of at least ``original_context``.
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
        inputs: the matrices of queries, keys and values; or one matrix for all of them.
        groups: how many groups of heads one matrix for all of them has. Its rows are the queries, keys and values of
            the first group, then those of the second.
        clip: the bound of what the products give; 0 for none.
        norms: of the queries and of the keys, over each head or over all of them.
        window: positions that are seen, the current one included; None for all.
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
        """How many rows of one group are queries, keys and values."""
        keys = self.kv_heads // self.groups * self.width
        return self.heads // self.groups * self.width, keys, keys

    @property
    def row_order(self) -> Tensor:
        """Which row of one matrix for all of them is at each place if all queries come first, then keys, then values.

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

    ``inputs`` are the matrices of gate and up, or one matrix with the rows of the gate before those of up.
    """

    inputs: tuple[Matrix, ...]
    down: Matrix
    activation: Activation
    gated: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Experts:
    """The sum of the ``chosen`` experts with the largest router outputs, weighted by the softmax of all outputs.

    Attributes:
        normalized: the weights of the chosen ones are divided by their sum.
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
        parallel: both read the layer's input, and their sum is added to it.
        before_feed_forward: None in a parallel layer means that the feed-forward part reads what the attention reads.
        factor: of what is added to the layer's input.
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
        embedding: the table of the tokens, whose rows are multiplied by ``embedding_factor``.
        positions: the table of learned positions, the first of them at row ``position_offset``.
        context: positions that the model was made for.
        logit_factor: of the logits.
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
