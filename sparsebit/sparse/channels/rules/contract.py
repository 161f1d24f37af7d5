"""Linear layers, matrix products, einsum and attention: what is summed over goes together."""

from __future__ import annotations

from collections.abc import Sequence

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import (
    Operand,
    match,
    operand,
    product_is_zero,
    sum_product,
    to_labels,
)
from sparsebit.sparse.channels.rules.base import (
    Stop,
    add_bias,
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
    value = trace.labels_of(call.arguments["input"])
    rank = len(value.shape)
    weight = call.arguments["weight"]
    wide = len(call.shape("weight")) == 2
    if wide and value.zero and read_by(trace, call, value, rank - 1, 1):
        return made_by(trace, call, 0, rank - 1, shape_out(call))
    x = operand(trace, value, (*range(rank - 1), IN))
    letters = {0: (OUT, "output"), 1: (IN, "input")} if wide else {0: (IN, "input")}
    w = weight_operand(trace, call, weight, letters)  # type: ignore[arg-type]
    layers = sum_product(trace, [x, w], [IN], why(call))
    zero = add_bias(trace, call, layers, OUT) and product_is_zero([x, w], layers)
    return to_labels(layers, (*range(rank - 1), *([OUT] if wide else [])), shape_out(call), zero)


def contract(
    trace: Trace, call: OpCall, operands: Sequence[Operand], result: Sequence[int], reason: str
) -> list[Layer]:
    """Sum the product of the operands over every letter that the result does not have."""
    summed = [letter for each in operands for letter in each.letters if letter not in result]
    return sum_product(trace, operands, summed, reason)


def _named(trace: Trace, argument: object, value: Labels, letters: Sequence[int], call: OpCall) -> Operand:
    name = tensor_name(argument)
    if name is not None and len(value.shape) == 2:  # a bare matrix: say which axis reads and which makes
        summed, made = (0, 1) if letters[0] == IN else (1, 0)
        roles = {summed: (letters[summed], "input"), made: (letters[made], "output")}
        found = weight_operand(trace, call, argument, roles)  # type: ignore[arg-type]
        return Operand(found.layers, found.extents, found.zero, None, tuple(letters))
    return operand(trace, value, letters)


@rule("matmul")
def matmul(trace: Trace, call: OpCall) -> Labels:
    """[..., M, K] by [..., K, N], with an added term in some spellings."""
    *added_terms, left_name, right_name = call.spec.activations
    first, second = call.arguments[left_name], call.arguments[right_name]
    a, b = trace.labels_of(first), trace.labels_of(second)
    if not a.shape or not b.shape:
        raise Stop(why(call))
    batch = max(len(a.shape), len(b.shape)) - 2
    left = (*range(batch + 2 - len(a.shape), batch), *([batch] if len(a.shape) > 1 else []), IN)
    right = (*range(batch + 2 - len(b.shape), batch), IN, *([OUT] if len(b.shape) > 1 else []))
    rows = [batch] if len(a.shape) > 1 else []
    result = (*range(max(batch, 0)), *rows, *([OUT] if len(b.shape) > 1 else []))
    operands = [_named(trace, first, a, left, call), _named(trace, second, b, right, call)]
    layers = contract(trace, call, operands, result, why(call))
    value = to_labels(layers, result, shape_out(call), product_is_zero(operands, layers))
    extra = call.arguments.get(added_terms[0]) if added_terms else None
    if extra is None:
        return value
    added = trace.labels_of(extra)
    rank = len(value.shape)
    if tensor_name(extra) is not None and len(added.shape) == 1:
        tie_vector(trace, call, extra, pick(trace.simple(value), rank - 1), "state")
    terms = [
        operand(trace, value, range(rank)),
        operand(trace, added, range(rank - len(added.shape), rank), extra),
    ]
    both = match(trace, *terms, why(call))
    zero = all(one.zero_at(layer) for layer in both.layers for one in terms)
    return to_labels(both.layers, range(rank), value.shape, zero)


@rule("einsum")
def einsum(trace: Trace, call: OpCall) -> Labels:
    """Letters as written; an ellipsis stands for the dims that have none."""
    equation = call.arguments["equation"]
    if not isinstance(equation, str):
        raise Stop(f"{why(call)}: the equation is not a string")
    found = tensor_arguments(trace, call, "operands")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(found):
        raise Stop(why(call))
    spelled = [_spell(term, len(value.shape)) for term, (_, value) in zip(terms, found, strict=True)]
    letters = [letter for term in spelled for letter in term]
    if any(len(set(term)) < len(term) for term in spelled):
        raise Stop(f"{why(call)}: a repeated letter takes a diagonal")
    if arrow:
        result: tuple[int, ...] = _spell(right, len(shape_out(call)))
    else:
        result = tuple(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    operands = [operand(trace, value, term) for (_, value), term in zip(found, spelled, strict=True)]
    layers = contract(trace, call, operands, result, why(call))
    return to_labels(layers, result, shape_out(call), product_is_zero(operands, layers))


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
    rank = len(query.shape)
    if len(key.shape) != rank or len(value.shape) != rank:
        raise Stop(f"{why(call)}: query, key and value differ in rank")
    batch = tuple(range(rank - 2))
    target, source = 2000, 2001
    q = operand(trace, query, (*batch, target, IN))
    k = operand(trace, key, (*batch, source, IN))
    layers = contract(trace, call, [q, k], (*batch, target, source), why(call))
    scores = Operand(layers, q.extents | k.extents, letters=(*batch, target, source))
    scores.extents.pop(IN, None)
    if call.arguments.get("attn_mask") is not None:
        mask = trace.labels_of(call.arguments["attn_mask"])
        names = (*batch, target, source)[rank - len(mask.shape) :]
        other = operand(trace, mask, names, call.arguments["attn_mask"])
        scores.layers = match(trace, scores, other, why(call)).layers
    pinned = f"{why(call)} is a softmax over the keys"
    kept = [trace.pin(trace.simplify(layer), [source], pinned) for layer in scores.layers]
    scores.layers, scores.zero = [layer for layer in kept if layer.dims], False
    v = operand(trace, value, (*batch, source, OUT))
    result = (*batch, target, OUT)
    layers = contract(trace, call, [scores, v], result, why(call))
    return to_labels(layers, result, shape_out(call), product_is_zero([scores, v], layers))


def _repeat_heads(trace: Trace, value: Labels, heads: int) -> Labels:
    """Keys and values that serve several query heads each, as the operator repeats them."""
    at = len(value.shape) - 3
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
    return Labels(shape, tuple(layers), value.zero and not copied)
