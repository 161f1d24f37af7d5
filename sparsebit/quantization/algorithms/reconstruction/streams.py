"""Two streams of calibration data through a graph, block by block: one of the float model, one quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.errors import SparsebitError
from sparsebit.graph.run import flatten_call
from sparsebit.quantization.algorithms.reconstruction.blocks import Block
from sparsebit.quantization.calibration.spill_list import SpillList
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import switched

MOST_IN_MEMORY = 2**30  # bytes of each stream; the rest lies on disk

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Streams:
    """The values between blocks, for every chunk of the data, in both streams, as long as they are needed.

    Each is a list of values by node; values that do not fit in memory are spilled to disk.
    """

    def __init__(self, gm: GraphModule, inputs: Iterable[Call], blocks: Sequence[Block], batch: int) -> None:
        self.gm = gm
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.exact, self.rounded = SpillList(MOST_IN_MEMORY), SpillList(MOST_IN_MEMORY)
        for args, kwargs in _cut(gm, inputs, batch):
            values = dict(zip(placeholders, flatten_call(gm, args, kwargs), strict=True))
            self.exact.append(values)
            self.rounded.append(values)
        self._needed_after: list[set[Node]] = []
        later: set[Node] = set()
        for block in reversed(blocks):
            self._needed_after.append(set(later))
            later |= set(block.inputs)
        self._needed_after.reverse()

    def targets(self, block: Block, module: torch.nn.Module, quantizers: Iterable[Quantizer]) -> None:
        """Run the float stream through a block."""
        with switched(quantizers, False):
            self._run(self.exact, block, module)

    def advance(self, index: int, block: Block, module: torch.nn.Module) -> None:
        """Run the quantized stream through a finished block, and drop values that no later block reads."""
        self._run(self.rounded, block, module)
        for stream in (self.exact, self.rounded):
            for position, values in enumerate(stream):
                stream[position] = {n: v for n, v in values.items() if n in self._needed_after[index]}

    def _run(self, stream: SpillList, block: Block, module: torch.nn.Module) -> None:
        with torch.no_grad():
            for position, values in enumerate(stream):
                results = module(*(values[node] for node in block.inputs))
                stream[position] = values | dict(zip(block.outputs, results, strict=True))


class Samples:
    """Mini-batches of one block: inputs of both streams and the float results.

    If every value has its samples along the first axis, mini-batches are drawn from all samples; otherwise they are the
    chunks of the data. A first axis that holds something else, such as positions, shows in the results of the float
    block: they differ between a mini-batch and the chunks.
    """

    def __init__(
        self,
        streams: Streams,
        block: Block,
        module: torch.nn.Module,
        quantizers: Iterable[Quantizer],
        batch: int,
        generator: torch.Generator,
    ) -> None:
        self.batch, self.generator, self.block = batch, generator, block
        self.exact = [[values[node] for node in block.inputs] for values in streams.exact]
        self.rounded = [[values[node] for node in block.inputs] for values in streams.rounded]
        self.wanted = [[values[node] for node in block.outputs] for values in streams.exact]
        self.count = 0
        if all(_has_samples(row) for row in (*self.exact, *self.wanted)) and _alike(self.exact, self.wanted):
            chunks = self.exact, self.rounded, self.wanted
            self.exact, self.rounded, self.wanted = (
                [[torch.cat(column) for column in zip(*rows, strict=True)]] for rows in chunks
            )
            self.count = len(self.wanted[0][0])
            with switched(quantizers, False), torch.no_grad():
                if not self._independent(module):
                    self.exact, self.rounded, self.wanted = chunks
                    self.count = 0

    def _independent(self, module: torch.nn.Module) -> bool:
        """Whether the float block computes the same for samples that are drawn."""
        rows = torch.randint(
            self.count, (min(self.batch, self.count),), generator=torch.Generator().manual_seed(0)
        )
        exact, _, wanted = self.take(rows.to(self.wanted[0][0].device))
        try:
            found = module(*exact)
        except RuntimeError:  # shapes that do not fit each other any more
            return False
        return all(map(_same, found, wanted))

    def draw(self, steps: int) -> Tensor | None:
        """The samples of each mini-batch, [steps, batch], on the device of the samples.

        None if mini-batches are chunks.
        """
        if not self.count:
            return None
        size = (steps, min(self.batch, self.count))
        return torch.randint(self.count, size, generator=self.generator).to(self.wanted[0][0].device)

    def take(self, rows: Tensor | None) -> tuple[list[Any], list[Any], list[Any]]:
        """(float inputs, quantized inputs, float results) of these samples, or of a chunk that is drawn."""
        if rows is not None:
            return (
                [x.index_select(0, rows) for x in self.exact[0]],
                [x.index_select(0, rows) for x in self.rounded[0]],
                [y.index_select(0, rows) for y in self.wanted[0]],
            )
        chunk = int(torch.randint(len(self.exact), (1,), generator=self.generator))
        return self.exact[chunk], self.rounded[chunk], self.wanted[chunk]

    def all(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """(quantized inputs, float results) of everything once, in parts of a mini-batch."""
        if not self.count:
            yield from zip(self.rounded, self.wanted, strict=True)
            return
        for start in range(0, self.count, self.batch):
            part = slice(start, start + self.batch)
            yield [x[part] for x in self.rounded[0]], [y[part] for y in self.wanted[0]]


def _has_samples(row: Sequence[Any]) -> bool:
    """Whether every value is a tensor with as many samples as the others."""
    tensors = [value for value in row if isinstance(value, Tensor) and value.dim() > 1]
    return bool(tensors) and len(tensors) == len(row) and len({len(tensor) for tensor in tensors}) == 1


def _same(found: Tensor, wanted: Tensor) -> bool:
    """Whether these are equal but for rounding, which depends on the size of a mini-batch."""
    if found.shape != wanted.shape or not wanted.is_floating_point():
        return torch.equal(found, wanted)
    finite = wanted.isfinite()  # masks have minus infinity
    far, size = (torch.where(finite, x, 0.0).float().norm() for x in (found - wanted, wanted))
    return bool(far <= max(torch.finfo(wanted.dtype).eps ** 0.5, 0.01) * size)


def _alike(*streams: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the samples of all chunks have one shape; sentences of different lengths do not."""
    return all(
        len({x.shape[1:] for x in column}) == 1 for rows in streams for column in zip(*rows, strict=True)
    )


def _cut(gm: GraphModule, inputs: Iterable[Call], batch: int) -> Iterator[Call]:
    """Calls with at most ``batch`` samples; uncut if the model does not compute the same for a piece."""
    fits: bool | None = None
    for call in inputs:
        pieces = split_call(*call, batch)
        if len(pieces) > 1 and fits is None:
            with switched([q for q in gm.modules() if isinstance(q, Quantizer)], False), torch.no_grad():
                fits = _computes_pieces(gm, call, pieces[0], batch)
        yield from pieces if fits else [call]


def _computes_pieces(gm: GraphModule, call: Call, piece: Call, batch: int) -> bool:
    """Whether the results for the first samples of a call are those of the call."""
    size = next(len(leaf) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor))
    try:
        found, wanted = (pytree.tree_leaves(gm(*args, **kwargs)) for args, kwargs in (piece, call))
    except (RuntimeError, SparsebitError):  # shapes that do not fit each other any more
        return False
    pairs = [
        (a, b[:batch])
        for a, b in zip(found, wanted, strict=True)
        if isinstance(b, Tensor) and b.shape[:1] == (size,)
    ]
    return bool(pairs) and all(_same(*pair) for pair in pairs)


def split_call(args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> list[Call]:
    """Split one call into several with at most ``batch`` samples, along the first axis, if all inputs share it."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    sizes = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if len(sizes) != 1 or any(isinstance(leaf, Tensor) and leaf.dim() == 0 for leaf in leaves):
        return [(args, kwargs)]
    (size,) = sizes
    pieces = []
    for start in range(0, size, batch):
        cut = [leaf[start : start + batch] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        pieces.append(pytree.tree_unflatten(cut, structure))
    return pieces
