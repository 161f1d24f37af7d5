"""Element-wise operators: channels that are combined are removed together."""

from __future__ import annotations

from torch.fx import Node

from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, pick, rule


@rule("elementwise")
def join_elements(at: Visit) -> Labels:
    """The rule of every element-wise operator: tie the broadcast labels of all operands."""
    return _join(at, at.tensors())


@rule("first_operand")
def join_first(at: Visit) -> Labels:
    """The rule of element-wise operators whose other tensors are only parameters: a dtype, the ends of bins."""
    return _join(at, at.tensors(*at.call.spec.activations))


def _join(at: Visit, found: list[tuple[Node, Labels]]) -> Labels:
    if not found:
        raise Stop(f"{at.why} has no tensor operand")
    shape = at.shape
    operands = [at.aligned(value, len(shape), node) for node, value in found]
    result = operands[0]
    for other in operands[1:]:
        result = at.match(result, other)
    families = at.alive(result)
    zero = all(at.call.keeps_zero([one.zero_at(family) for one in operands]) for family in families)
    return to_labels(families, range(len(shape)), shape, zero)


@rule("prelu")
def prelu(at: Visit) -> Labels:
    """One slope, or one per channel."""
    value = at.input
    families = at.trace.simple(value)
    if at.call.shape("weight") != (1,):
        for family in [family for family in families if 1 in family.dims]:
            at.pin(family, [dim for dim in family.dims if dim != 1])
        families = at.trace.simple(value)
        at.tie_vector(at.arguments["weight"], pick(families, 1), "state")
    return Labels(value.shape, families, value.zero)


@rule("same_size")
def same_size(at: Visit) -> Labels:
    """A new tensor in the size of another: it shrinks with it."""
    value = at.input
    return Labels(value.shape, at.trace.simple(value), at.call.keeps_zero(()))


@rule("fill")
def fill(at: Visit) -> Labels:
    """A constant fill can be created in any size: it takes the labels of the first tensor it is combined with."""
    return Labels(at.shape, zero=at.call.keeps_zero(()), wild=True)
