"""Match two operands: channels that are combined element by element, or summed over, are removed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.trace import Trace


@dataclass(eq=False)
class Operand:
    """A tensor whose dims are named by integers that the operands share (the letters of an einsum)."""

    families: list[Family]
    extents: dict[int, int]
    zero: bool = True
    wild: object = None  # the node that makes a constant fill
    letters: tuple[int, ...] = ()

    def wide(self, letter: int) -> bool:
        """Whether it has more than one position along this letter."""
        return self.extents.get(letter, 1) > 1

    def zero_at(self, family: Family) -> bool:
        """Whether it is zero where a channel of this family is removed; not if it is broadcast along that."""
        return self.zero and all(map(self.wide, family.dims))


def operand(trace: Trace, value: Labels, letters: Sequence[int], node: object = None) -> Operand:
    """A value with its dims named."""
    named = dict(enumerate(letters))
    families = [family.moved(named) for family in trace.simple(value)]
    extents = {letter: size for letter, size in zip(letters, value.shape, strict=True) if size > 1}
    return Operand(families, extents, value.zero, node if value.wild else None, tuple(letters))


def match(trace: Trace, left: Operand, right: Operand, reason: str, *, summed: Sequence[int] = ()) -> Operand:
    """Tie the labels of two operands along shared letters; the result has the families of both.

    A letter along which one operand is wider than one but has no labels must keep its size in the other. Where a family
    varies along more letters than the one it meets, it keeps those it shares if they are summed over, and
    otherwise the others: a scale for the dims of a head leaves the heads removable.
    """
    for plain, wild in ((left, right), (right, left)):
        if wild.wild is not None:
            _adopt(trace, plain, wild)
    matched: set[int] = set()
    for i, a in enumerate(left.families):
        a = left.families[i] = trace.simplify(a)
        shared = [letter for letter in a.dims if right.wide(letter)]
        if not shared:
            continue
        best, common = _partner(trace, a, right.families, matched)
        if best is None:
            left.families[i] = trace.pin(a, shared, f"{reason} combines it with a tensor of fixed size")
            continue
        b = right.families[best]
        rest = [letter for letter in (*a.dims, *b.dims) if letter not in common]
        if rest and not summed and _rest_is_free(a, b, common, left, right):
            left.families[i] = trace.pin(a, common, reason)
            right.families[best] = trace.pin(b, common, reason)
            continue
        a, b = trace.pin(a, rest, reason), trace.pin(b, rest, reason)
        order = tuple(letter for letter in common if letter in a.dims and letter in b.dims)
        if order == tuple(common):
            trace.sets.join(a.along(order), b.along(order))
        left.families[i], right.families[best] = trace.simplify(a), trace.simplify(b)
        matched.add(best)
    for j, b in enumerate(right.families):
        if j not in matched:
            b = trace.simplify(b)
            fixed = [letter for letter in b.dims if left.wide(letter)]
            right.families[j] = trace.pin(b, fixed, f"{reason} combines it with a tensor of fixed size")
    families = [*left.families, *(b for j, b in enumerate(right.families) if j not in matched)]
    extents = left.extents | right.extents
    return Operand([family for family in families if family.dims], extents)


def sum_product(
    trace: Trace, operands: Sequence[Operand], summed: Sequence[int], reason: str
) -> list[Family]:
    """The families left after summing the product of operands over letters.

    A removed channel must contribute nothing to the sum. A family that also varies along other letters (heads and
    their dims) gives up one or the other.
    """
    value = operands[0]
    for other in operands[1:]:
        value = match(trace, value, other, reason, summed=summed)
    left = []
    for family in map(trace.simplify, value.families):
        gone = [letter for letter in family.dims if letter in summed]
        rest = [letter for letter in family.dims if letter not in summed]
        if gone and rest:
            family = trace.pin(family, gone if trace.whole_heads else rest, reason)
            gone = [letter for letter in family.dims if letter in summed]
        if not gone:
            left.append(family)
        elif not any(one.zero_at(family) for one in operands):
            trace.pin(family, gone, f"{reason} sums values that would not be zero for a removed channel")
    return [family for family in left if family.dims]


def alive(trace: Trace, value: Operand) -> list[Family]:
    """The families that still vary."""
    return [family for family in map(trace.simplify, value.families) if family.dims]


def product_is_zero(operands: Sequence[Operand], families: Sequence[Family]) -> bool:
    """Whether the product of operands is zero where a channel of any of these families is removed."""
    return all(any(one.zero_at(family) for one in operands) for family in families)


def to_labels(value: Sequence[Family], letters: Sequence[int], shape: tuple[int, ...], zero: bool) -> Labels:
    """Back to positions: the dims of the result are these letters."""
    where = {letter: dim for dim, letter in enumerate(letters)}
    return Labels(shape, [family.moved(where) for family in value], zero)


def _partner(
    trace: Trace, family: Family, others: list[Family], taken: set[int]
) -> tuple[int | None, tuple[int, ...]]:
    best: int | None = None
    common: tuple[int, ...] = ()
    for j, other in enumerate(others):
        if j in taken:
            continue
        other = others[j] = trace.simplify(other)
        both = tuple(letter for letter in family.dims if letter in other.dims)
        if len(both) > len(common):
            best, common = j, both
    return best, common


def _rest_is_free(a: Family, b: Family, common: Sequence[int], left: Operand, right: Operand) -> bool:
    """Whether letters that are not common can vary: the other operand has size one there."""
    mine = [letter for letter in a.dims if letter not in common]
    theirs = [letter for letter in b.dims if letter not in common]
    if mine and theirs:
        return False
    return all(not right.wide(letter) for letter in mine) and all(not left.wide(letter) for letter in theirs)


def _adopt(trace: Trace, plain: Operand, wild: Operand) -> None:
    wanted = [family for family in map(trace.simplify, plain.families) if all(map(wild.wide, family.dims))]
    free = [letter for letter, size in wild.extents.items() if size > 1 and not plain.wide(letter)]
    wanted += [Family((letter,), trace.sets.fresh(wild.extents[letter])) for letter in free]
    where = {letter: dim for dim, letter in enumerate(wild.letters)}
    wild.families = list(wanted)
    trace.adopt(wild.wild, tuple(family.moved(where) for family in wanted))
    wild.wild = None
