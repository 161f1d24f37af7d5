"""What a trace says of a graph is true of its numbers: what it calls zero is zero once channels are masked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.sparse.channels import ChannelGroups, find_groups, mask_tensors
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.masking.masked_graph import MaskedGraph
from sparsebit.sparse.shrink.alive import Alive
from tests.sparse.zoo import STRUCTURES
from tests.sparse.zoo.checks import captured, error_against_original, shrunk
from tests.sparse.zoo.choose import choose
from tests.sparse.zoo.entry import Net, parameter


def wrong_zeros(gm: CapturedModule, groups: ChannelGroups, inputs: tuple[Any, ...]) -> list[str]:
    """Nodes that are called zero where a channel is removed, and are not, in the masked graph."""
    kept, masked, found = choose(groups, 0.5), copy.deepcopy(gm), list[str]()
    for name, mask in mask_tensors(groups, kept).items():
        fetch_tensor(masked, name).data.mul_(mask)
    alive = Alive(groups, kept)

    def look(node: Any, value: Any) -> None:
        labels = groups.trace.values.get(node.name)
        if not isinstance(labels, Labels) or not labels.zero or not isinstance(value, Tensor):
            return
        for dim in {dim for family in labels.families for dim in family.dims}:
            flags = alive.along(labels, dim)
            if flags is not None and bool(value.movedim(dim, 0)[~flags].ne(0).any()):
                found.append(node.name)

    with torch.no_grad():
        MaskedGraph(masked, groups, kept).watch(inputs, {}, look)
    return found


@pytest.mark.parametrize("name", sorted(STRUCTURES))
@pytest.mark.filterwarnings("ignore::sparsebit.errors.SpecializationWarning")
def test_zeros_of_the_zoo_are_zero(name: str) -> None:
    entry = STRUCTURES[name]
    gm, inputs = captured(entry.make(), entry.inputs()), entry.inputs()
    assert wrong_zeros(gm, find_groups(gm), inputs) == []


Step = Callable[[Any, Tensor, Tensor], Tensor]  # of the parts, the channels and the input
# Each makes [4, 8] from [4, 8] with something that is not zero in the place of a removed channel.
BROADCAST: dict[str, Step] = {
    "less its mean over everything": lambda m, x, seen: x - x.mean(),
    "its mean on the left": lambda m, x, seen: x.mean(-1, keepdim=True) - x,
    "plus its maximum": lambda m, x, seen: x + x.amax(-1, keepdim=True),
    "plus its sum, expanded": lambda m, x, seen: x + x.sum(-1, keepdim=True).expand(4, 8),
    "plus a size": lambda m, x, seen: x + x.shape[0],
    "plus a number": lambda m, x, seen: 0.5 + x,
    "plus a learned number": lambda m, x, seen: x + m.one,
    "plus a learned column": lambda m, x, seen: x + m.column,
    "plus the input's mean": lambda m, x, seen: torch.add(x, seen.mean(-1, keepdim=True), alpha=2),
    "chosen by its sign": lambda m, x, seen: torch.where(x > 0, x, 0.5),
    "chosen by a row's sign": lambda m, x, seen: torch.where(seen[:, :1] > 0, x, m.column),
    "filled": lambda m, x, seen: x.masked_fill(seen[:, :1] > 0, 0.5),
    "not below a number": lambda m, x, seen: x.clamp(min=0.1),
    "the larger of it and a column": lambda m, x, seen: torch.maximum(x, m.column),
    "between it and a column": lambda m, x, seen: torch.lerp(x, m.column, 0.3),
    "plus a product of columns": lambda m, x, seen: torch.addcmul(x, m.column, m.column),
    "softmax of rows": lambda m, x, seen: x.softmax(0),
    "the order in a column": lambda m, x, seen: x.argsort(0).double(),
    "added to a product": lambda m, x, seen: torch.addmm(m.column, x, m.square),
    "a computed bias": lambda m, x, seen: F.linear(x, m.square, m.vector.sigmoid()),
    "a norm's shift": lambda m, x, seen: F.layer_norm(x, (8,), m.vector.cos(), m.vector),
    "a hidden state": lambda m, x, seen: m.cell(seen, x.sigmoid()),
}


def build(step: Step, end: Step) -> nn.Module:
    def forward(m: Any, seen: Tensor) -> Tensor:
        return end(m, step(m, m.first(seen), seen), seen)

    torch.manual_seed(0)
    layers = {"first": nn.Linear(6, 8), "cell": nn.GRUCell(6, 8), "head": nn.Linear(8, 3)}
    bare = {"one": (1,), "column": (4, 1), "square": (8, 8), "vector": (8,)}
    return Net(forward, layers | {name: parameter(*shape) for name, shape in bare.items()}).double()


ENDS: dict[str, Step] = {
    "layer": lambda m, x, seen: m.head(x),  # its weight makes what is removed zero
    "sum": lambda m, x, seen: x.sum(-1),
    "mean": lambda m, x, seen: x.mean(-1),
    "length": lambda m, x, seen: F.normalize(x, dim=-1) @ m.vector,
    "cosine": lambda m, x, seen: F.cosine_similarity(x, m.column, dim=-1),
    "smallest": lambda m, x, seen: torch.linalg.vector_norm(x, -1, dim=-1),
    "products": lambda m, x, seen: x @ x.T,
}


@pytest.mark.parametrize("name", BROADCAST)
def test_what_is_broadcast_along_a_channel_is_not_zero(name: str) -> None:
    inputs = (torch.randn(4, 6, dtype=torch.float64),)
    for end in ENDS.values():
        gm = captured(build(BROADCAST[name], end), inputs)
        groups = find_groups(gm)
        assert wrong_zeros(gm, groups, inputs) == []
        if not groups.trace.statistics:  # those are taken over what is left, by design
            assert error_against_original(gm, shrunk(gm, groups, 0.5)[0], inputs) < 1e-12
