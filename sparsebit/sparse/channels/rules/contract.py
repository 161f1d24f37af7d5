"""Linear layers, matrix products, einsum and attention: channels that are summed over are removed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import Operand, product_is_zero, to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, pick, rule, tensor_name
from sparsebit.sparse.stored_weight import StoredWeight, stored_weight

IN, OUT, EACH = 1000, 1001, 1002  # letters of a weight's axes: input, output, and index in a stack


@rule("linear")
def linear(at: Visit) -> Labels:
    """[..., I] by a weight [O, I]."""
    value = at.input
    last, wide = value.rank - 1, len(at.call.shape("weight")) == 2
    if wide and value.zero and at.reads(value, last, 1):
        return at.makes(0, last)
    x = at.operand(value, (*range(last), IN))
    letters: dict[int, tuple[int, Role]] = {0: (OUT, "output"), 1: (IN, "input")}
    w = at.weight(at.arguments["weight"], letters if wide else {0: (IN, "input")})
    families = at.sum_product([x, w], [IN])
    zero = at.add_bias(families, OUT) and product_is_zero([x, w], families)
    return to_labels(families, (*range(last), *([OUT] if wide else [])), at.shape, zero)


def _contract(at: Visit, operands: Sequence[Operand], result: Sequence[int]) -> Labels:
    """Sum the product of the operands over every letter that the result lacks."""
    summed = [letter for each in operands for letter in each.letters if letter not in result]
    families = at.sum_product(operands, summed)
    return to_labels(families, result, at.shape, product_is_zero(operands, families))


def _named(at: Visit, argument: object, letters: Sequence[int]) -> Operand:
    """An operand with named dims; for a parameter, note which axis is its input and which its output."""
    value = at.trace.labels_of(argument)
    stored, name = stored_weight(at.call.owner, argument), tensor_name(argument)
    if stored is None and name is not None:  # a buffer
        stored = StoredWeight(name, tuple(range(value.rank)))
    return at.operand(value, letters) if stored is None or value.rank != 2 else _stored(at, stored, letters)


def _stored(at: Visit, stored: StoredWeight, letters: Sequence[int]) -> Operand:
    named = {axis: (letter, _role(letter)) for axis, letter in zip(stored.axes, letters, strict=True)}
    return replace(at.weight(stored.name, named), letters=tuple(letters))


def _role(letter: int) -> Role:
    return "input" if letter == IN else "state" if letter == EACH else "output"


@rule("matmul")
def matmul(at: Visit) -> Labels:
    """[..., M, K] by [..., K, N], with an added term in some spellings."""
    *added_terms, left_name, right_name = at.call.spec.activations
    a, b = at.labels(left_name), at.labels(right_name)
    if not a.shape or not b.shape:
        raise Stop(at.why)
    batch = max(a.rank, b.rank) - 2
    rows, columns = [batch] if a.rank > 1 else [], [OUT] if b.rank > 1 else []
    left = (*range(batch + 2 - a.rank, batch), *rows, IN)
    right = (*range(batch + 2 - b.rank, batch), IN, *columns)
    operands = [_named(at, at.arguments[left_name], left), _named(at, at.arguments[right_name], right)]
    value = _contract(at, operands, (*range(max(batch, 0)), *rows, *columns))
    extra = at.arguments.get(added_terms[0]) if added_terms else None
    if extra is None:
        return value
    added = at.trace.labels_of(extra)
    if tensor_name(extra) is not None and added.rank == 1:
        at.tie_vector(extra, pick(at.trace.simple(value), value.rank - 1), "state")
    terms = at.aligned(value, value.rank), at.aligned(added, value.rank, extra)
    families = at.match(*terms).families
    zero = all(one.zero_at(family) for family in families for one in terms)
    return to_labels(families, range(value.rank), value.shape, zero)


@rule("grouped_mm")
def grouped_mm(at: Visit) -> Labels:
    """Rows [S, I], each multiplied by one matrix of a stack [E, I, O], such as an expert; all matrices shrink alike."""
    rows, stack = at.input, at.labels("other")
    stored = stored_weight(at.call.owner, at.arguments["other"])
    if rows.rank != 2 or stack.rank != 3 or at.arguments.get("bias") is not None:
        raise Stop(f"{at.why}: it does not multiply rows by a stack of matrices")
    x, letters = at.operand(rows, (0, IN)), (EACH, IN, OUT)
    w = at.operand(stack, letters) if stored is None else _stored(at, stored, letters)
    reason = f"{at.why} selects matrices by number"
    w.families = [family for family in (at.pin(one, [EACH], reason) for one in w.families) if family.dims]
    return _contract(at, [x, w], (0, OUT))


@rule("einsum")
def einsum(at: Visit) -> Labels:
    """Letters as written; an ellipsis stands for the unnamed dims."""
    equation = at.arguments["equation"]
    if not isinstance(equation, str):
        raise Stop(f"{at.why}: the equation is not a string")
    found = [value for _, value in at.tensors("operands")]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(found):
        raise Stop(at.why)
    spelled = [_spell(term, value.rank) for term, value in zip(terms, found, strict=True)]
    if any(len(set(term)) < len(term) for term in spelled):
        raise Stop(f"{at.why}: a repeated letter takes a diagonal")
    letters = [letter for term in spelled for letter in term]
    once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    result = _spell(right, len(at.shape)) if arrow else once
    operands = [at.operand(value, term) for value, term in zip(found, spelled, strict=True)]
    return _contract(at, operands, result)


def _spell(term: str, rank: int) -> tuple[int, ...]:
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    middle = tuple(range(-missing, 0)) if dots else ()
    return (*map(ord, head), *middle, *map(ord, tail))


@rule("attention")
def attention(at: Visit) -> Labels:
    """Queries by keys over the head dim, the mask, a softmax over the keys, then by values over the keys."""
    query, key, value = (at.labels(name) for name in ("query", "key", "value"))
    if at.arguments.get("enable_gqa"):
        heads = query.shape[-3]
        key, value = _repeat_heads(at, key, heads), _repeat_heads(at, value, heads)
    if key.rank != query.rank or value.rank != query.rank:
        raise Stop(f"{at.why}: query, key and value differ in rank")
    batch = tuple(range(query.rank - 2))
    target, source = 2000, 2001
    letters = (*batch, target, source)
    q = at.operand(query, (*batch, target, IN))
    k = at.operand(key, (*batch, source, IN))
    scores = Operand(at.sum_product([q, k], [IN]), q.extents | k.extents, letters=letters)
    scores.extents.pop(IN, None)
    if at.arguments.get("attn_mask") is not None:
        mask = at.labels("attn_mask")
        other = at.operand(mask, letters[query.rank - mask.rank :], at.arguments["attn_mask"])
        scores.families = at.match(scores, other).families
    reason = f"{at.why} is a softmax over the keys"
    kept = [at.pin(at.trace.simplify(family), [source], reason) for family in scores.families]
    scores.families, scores.zero = [family for family in kept if family.dims], False
    v = at.operand(value, (*batch, source, OUT))
    return _contract(at, [scores, v], (*batch, target, OUT))


def _repeat_heads(at: Visit, value: Labels, heads: int) -> Labels:
    """Keys and values that serve several query heads each, repeated as the operator does."""
    dim = value.rank - 3
    times = heads // value.shape[dim]
    families = [
        Family(family.dims, family.labels.repeat_interleave(times, family.dims.index(dim)))
        if dim in family.dims
        else family
        for family in at.trace.simple(value)
    ]
    shape = (*value.shape[:dim], heads, *value.shape[dim + 1 :])
    copied = value.shape[dim] == 1 and heads > 1
    if copied:
        families.append(Family((dim,), at.trace.sets.fresh(heads)))
    return Labels(shape, families, value.zero and not copied)
