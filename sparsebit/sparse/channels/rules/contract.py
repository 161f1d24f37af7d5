"""Linear layers, matrix products, einsum and attention: what is summed over goes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import (
    Operand,
    aligned,
    match,
    operand,
    product_is_zero,
    sum_product,
    to_labels,
)
from sparsebit.sparse.channels.rules.base import (
    Stop,
    add_bias,
    input_of,
    made_by,
    pick,
    read_by,
    rule,
    shape_out,
    tensor_arguments,
    tensor_name,
    tie_vector,
    weight_operand,
    why,
)
from sparsebit.sparse.channels.trace import Trace

IN, OUT = 1000, 1001  # letters of a weight's axes


@rule("linear")
def linear(trace: Trace, call: OpCall) -> Labels:
    """[..., I] by a weight [O, I]."""
    value, shape = input_of(trace, call), shape_out(call)
    last, wide = value.rank - 1, len(call.shape("weight")) == 2
    if wide and value.zero and read_by(trace, call, value, last, 1):
        return made_by(trace, call, 0, last, shape)
    x = operand(trace, value, (*range(last), IN))
    letters: dict[int, tuple[int, Role]] = {0: (OUT, "output"), 1: (IN, "input")}
    w = weight_operand(trace, call, call.arguments["weight"], letters if wide else {0: (IN, "input")})
    layers = sum_product(trace, [x, w], [IN], why(call))
    zero = add_bias(trace, call, layers, OUT) and product_is_zero([x, w], layers)
    return to_labels(layers, (*range(last), *([OUT] if wide else [])), shape, zero)


def _contract(trace: Trace, call: OpCall, operands: Sequence[Operand], result: Sequence[int]) -> Labels:
    """Sum the product of the operands over every letter that the result does not have."""
    summed = [letter for each in operands for letter in each.letters if letter not in result]
    layers = sum_product(trace, operands, summed, why(call))
    return to_labels(layers, result, shape_out(call), product_is_zero(operands, layers))


def _named(trace: Trace, argument: object, letters: Sequence[int], call: OpCall) -> Operand:
    value = trace.labels_of(argument)
    if tensor_name(argument) is None or value.rank != 2:
        return operand(trace, value, letters)
    # a bare matrix: say which axis reads and which makes
    roles: list[Role] = ["input" if letter == IN else "output" for letter in letters]
    found = weight_operand(trace, call, argument, dict(enumerate(zip(letters, roles, strict=True))))
    return replace(found, letters=tuple(letters))


@rule("matmul")
def matmul(trace: Trace, call: OpCall) -> Labels:
    """[..., M, K] by [..., K, N], with an added term in some spellings."""
    *added_terms, left_name, right_name = call.spec.activations
    first, second = call.arguments[left_name], call.arguments[right_name]
    a, b = trace.labels_of(first), trace.labels_of(second)
    if not a.shape or not b.shape:
        raise Stop(why(call))
    batch = max(a.rank, b.rank) - 2
    rows, columns = [batch] if a.rank > 1 else [], [OUT] if b.rank > 1 else []
    left = (*range(batch + 2 - a.rank, batch), *rows, IN)
    right = (*range(batch + 2 - b.rank, batch), IN, *columns)
    operands = [_named(trace, first, left, call), _named(trace, second, right, call)]
    value = _contract(trace, call, operands, (*range(max(batch, 0)), *rows, *columns))
    extra = call.arguments.get(added_terms[0]) if added_terms else None
    if extra is None:
        return value
    added = trace.labels_of(extra)
    if tensor_name(extra) is not None and added.rank == 1:
        tie_vector(trace, call, extra, pick(trace.simple(value), value.rank - 1), "state")
    terms = aligned(trace, value, value.rank), aligned(trace, added, value.rank, extra)
    layers = match(trace, *terms, why(call)).layers
    zero = all(one.zero_at(layer) for layer in layers for one in terms)
    return to_labels(layers, range(value.rank), value.shape, zero)


@rule("einsum")
def einsum(trace: Trace, call: OpCall) -> Labels:
    """Letters as written; an ellipsis stands for the dims that have none."""
    equation = call.arguments["equation"]
    if not isinstance(equation, str):
        raise Stop(f"{why(call)}: the equation is not a string")
    found = [value for _, value in tensor_arguments(trace, call, "operands")]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(found):
        raise Stop(why(call))
    spelled = [_spell(term, value.rank) for term, value in zip(terms, found, strict=True)]
    if any(len(set(term)) < len(term) for term in spelled):
        raise Stop(f"{why(call)}: a repeated letter takes a diagonal")
    letters = [letter for term in spelled for letter in term]
    once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    result = _spell(right, len(shape_out(call))) if arrow else once
    operands = [operand(trace, value, term) for value, term in zip(found, spelled, strict=True)]
    return _contract(trace, call, operands, result)


def _spell(term: str, rank: int) -> tuple[int, ...]:
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    middle = tuple(range(-missing, 0)) if dots else ()
    return (*map(ord, head), *middle, *map(ord, tail))


@rule("attention")
def attention(trace: Trace, call: OpCall) -> Labels:
    """Queries by keys over the head dim, the mask, a softmax over the keys, then by values over the keys."""
    query, key, value = (trace.labels_of(call.arguments[name]) for name in ("query", "key", "value"))
    if call.arguments.get("enable_gqa"):
        heads = query.shape[-3]
        key, value = _repeat_heads(trace, key, heads), _repeat_heads(trace, value, heads)
    if key.rank != query.rank or value.rank != query.rank:
        raise Stop(f"{why(call)}: query, key and value differ in rank")
    batch = tuple(range(query.rank - 2))
    target, source = 2000, 2001
    letters = (*batch, target, source)
    q = operand(trace, query, (*batch, target, IN))
    k = operand(trace, key, (*batch, source, IN))
    scores = Operand(sum_product(trace, [q, k], [IN], why(call)), q.extents | k.extents, letters=letters)
    scores.extents.pop(IN, None)
    if call.arguments.get("attn_mask") is not None:
        mask = trace.labels_of(call.arguments["attn_mask"])
        other = operand(trace, mask, letters[query.rank - mask.rank :], call.arguments["attn_mask"])
        scores.layers = match(trace, scores, other, why(call)).layers
    pinned = f"{why(call)} is a softmax over the keys"
    kept = [trace.pin(trace.simplify(layer), [source], pinned) for layer in scores.layers]
    scores.layers, scores.zero = [layer for layer in kept if layer.dims], False
    v = operand(trace, value, (*batch, source, OUT))
    return _contract(trace, call, [scores, v], (*batch, target, OUT))


def _repeat_heads(trace: Trace, value: Labels, heads: int) -> Labels:
    """Keys and values that serve several query heads each, as the operator repeats them."""
    at = value.rank - 3
    times = heads // value.shape[at]
    layers = [
        Layer(layer.dims, layer.labels.repeat_interleave(times, layer.dims.index(at)))
        if at in layer.dims
        else layer
        for layer in trace.simple(value)
    ]
    shape = (*value.shape[:at], heads, *value.shape[at + 1 :])
    copied = value.shape[at] == 1 and heads > 1
    if copied:
        layers.append(Layer((at,), trace.sets.fresh(heads)))
    return Labels(shape, layers, value.zero and not copied)
