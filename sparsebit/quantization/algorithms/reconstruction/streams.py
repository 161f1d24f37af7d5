"""Two streams of calibration data through a graph, block by block: one of the float model, one quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node

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
        chunks = (chunk for args, kwargs in inputs for chunk in split_call(args, kwargs, batch))
        self.exact, self.rounded = SpillList(MOST_IN_MEMORY), SpillList(MOST_IN_MEMORY)
        for args, kwargs in chunks:
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
    chunks of the data.
    """

    def __init__(self, streams: Streams, block: Block, batch: int, generator: torch.Generator) -> None:
        self.batch, self.generator, self.block = batch, generator, block
        self.exact = [[values[node] for node in block.inputs] for values in streams.exact]
        self.rounded = [[values[node] for node in block.inputs] for values in streams.rounded]
        self.wanted = [[values[node] for node in block.outputs] for values in streams.exact]
        self.count = 0
        if all(_has_samples(row) for row in (*self.exact, *self.wanted)) and _alike(self.exact, self.wanted):
            self.exact, self.rounded, self.wanted = (
                [[torch.cat(column) for column in zip(*rows, strict=True)]]
                for rows in (self.exact, self.rounded, self.wanted)
            )
            self.count = len(self.wanted[0][0])

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


def _alike(*streams: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the samples of all chunks have one shape; sentences of different lengths do not."""
    return all(
        len({x.shape[1:] for x in column}) == 1 for rows in streams for column in zip(*rows, strict=True)
    )


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
