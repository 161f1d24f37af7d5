"""The order in which a decoder's parts are computed, for a builder of any engine's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sparsebit.llm.decoder.parts import (
    Activation,
    Attention,
    Decoder,
    Experts,
    FeedForward,
    Matrix,
    Norm,
)

Value = TypeVar("Value")


class GraphBuilder(Protocol[Value]):
    """Adds nodes to a graph of values [batch, length, channels]."""

    def embed(self, decoder: Decoder) -> Value:
        """The embedding rows of the input ids, plus learned positions if there are any."""
        ...

    def norm(self, x: Value, norm: Norm) -> Value:
        """The norm of ``x``."""
        ...

    def add_and_norm(self, x: Value, y: Value, norm: Norm) -> tuple[Value, Value]:
        """The sum, and its norm."""
        ...

    def attend(self, index: int, attention: Attention, x: Value) -> Value:
        """The attention of layer ``index``, before its output projection."""
        ...

    def multiply_matrix(self, matrix: Matrix, x: Value) -> Value:
        """The product with a matrix, plus its bias."""
        ...

    def halves(self, x: Value) -> tuple[Value, Value]:
        """The first and the second half of the channels."""
        ...

    def activate(self, activation: Activation, x: Value) -> Value:
        """The activation of every value."""
        ...

    def add(self, x: Value, y: Value) -> Value:
        """The sum."""
        ...

    def multiply(self, x: Value, y: Value) -> Value:
        """The elementwise product; ``y`` may have a single channel."""
        ...

    def scale(self, x: Value, factor: float) -> Value:
        """``x * factor``."""
        ...

    def sigmoid(self, x: Value) -> Value:
        """The sigmoid of every value."""
        ...

    def softcap(self, x: Value, bound: float) -> Value:
        """``bound * tanh(x / bound)``."""
        ...

    def mix(self, experts: Experts, x: Value) -> Value:
        """The weighted sum of the chosen experts, by an engine operator or by ``mix_all``."""
        ...


def build_logits(graph: GraphBuilder[Value], decoder: Decoder) -> Value:
    """Build the nodes of the decoder, and return the logits."""
    hidden = graph.embed(decoder)
    normed = _norm(graph, hidden, decoder.layers[0].before_attention)
    following = [*(layer.before_attention for layer in decoder.layers[1:]), decoder.norm]
    for index, (layer, next_norm) in enumerate(zip(decoder.layers, following, strict=True)):
        attended = graph.attend(index, layer.attention, normed)
        attended = graph.multiply_matrix(layer.attention.output, attended)
        attended = _scale(graph, _norm(graph, attended, layer.after_attention), layer.factor)
        if not layer.parallel:
            hidden, normed = _add_and_norm(graph, hidden, attended, layer.before_feed_forward)
        elif layer.before_feed_forward is not None:
            normed = graph.norm(hidden, layer.before_feed_forward)
        change = build_feed_forward(graph, layer.feed_forward, normed)
        change = _scale(graph, _norm(graph, change, layer.after_feed_forward), layer.factor)
        if layer.parallel:
            change = graph.add(attended, change)
        hidden, normed = _add_and_norm(graph, hidden, change, next_norm)
    logits = _scale(graph, graph.multiply_matrix(decoder.head, normed), decoder.logit_factor)
    return graph.softcap(logits, decoder.softcap) if decoder.softcap else logits


def build_feed_forward(graph: GraphBuilder[Value], part: FeedForward | Experts, x: Value) -> Value:
    """Build the nodes of a feed-forward part."""
    if isinstance(part, Experts):
        mixed = graph.mix(part, x)
        if part.shared is None or part.shared_gate is None:
            return mixed
        share = graph.sigmoid(graph.multiply_matrix(part.shared_gate, x))
        return graph.add(mixed, graph.multiply(build_feed_forward(graph, part.shared, x), share))
    made = [graph.multiply_matrix(matrix, x) for matrix in part.inputs]
    if not part.gated:
        inner = graph.activate(part.activation, made[0])
    else:
        gate, up = graph.halves(made[0]) if len(made) == 1 else made
        inner = graph.multiply(graph.activate(part.activation, gate), up)
    return graph.multiply_matrix(part.down, inner)


def mix_all(graph: GraphBuilder[Value], experts: Experts, x: Value, weights: Sequence[Value]) -> Value:
    """The sum of all experts, each times its weight [batch, length, 1], which is zero if it was not chosen."""
    first, *others = (
        graph.multiply(build_feed_forward(graph, expert, x), weight)
        for expert, weight in zip(experts.experts, weights, strict=True)
    )
    for other in others:
        first = graph.add(first, other)
    return first


def _norm(graph: GraphBuilder[Value], x: Value, norm: Norm | None) -> Value:
    return x if norm is None else graph.norm(x, norm)


def _add_and_norm(graph: GraphBuilder[Value], x: Value, y: Value, norm: Norm | None) -> tuple[Value, Value]:
    if norm is not None:
        return graph.add_and_norm(x, y, norm)
    both = graph.add(x, y)
    return both, both


def _scale(graph: GraphBuilder[Value], x: Value, factor: float) -> Value:
    return x if factor == 1 else graph.scale(x, factor)
