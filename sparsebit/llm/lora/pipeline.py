"""One update of the adapters with the blocks divided among processes, by ``torch.distributed.pipelining``.

A stage is the model itself, called on the ids, with every block outside the stage skipped: its first block gets the
hidden states that the process before it sent, and the model stops after its last one. Masks and positions are therefore
computed by the model's own code, for any architecture. The last stage also runs what follows the blocks.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import (
    BlockCall,
    StandIns,
    hidden_in,
    logits_of,
    run_model,
)
from sparsebit.llm.blocks.find import Stack, find_stack
from sparsebit.llm.blocks.route import find_route
from sparsebit.llm.lora.processes import adapters, next_token_loss
from sparsebit.llm.weights.uses import Enough
from sparsebit.processes import answered, gather_values, share_tensors, sum_tensors, take_from_first


class BlockStage(nn.Module):
    """Some of the blocks of a model: ids to hidden states at first, hidden states to hidden states, or to logits."""

    def __init__(self, model: nn.Module, stack: Stack, blocks: range) -> None:
        super().__init__()
        self.is_first, self.is_last = blocks.start == 0, blocks.stop == len(stack.names)
        self.blocks = nn.ModuleList(stack.modules[index] for index in blocks)
        example = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
        self._route = find_route(model, stack.names, lambda name: contextlib.nullcontext(model), example)
        if not self._route.direct or len(self._route.visits) != len(stack.names):
            raise SparsebitError(
                f"{type(model).__name__} computes something between its blocks, or does not call each once",
                expected="each block is called with the result of the one before it",
                hint="train it with pipeline=False",
            )
        self._model = [model]  # in a list, because a stage has no modules but its own blocks
        self._stack, self._range = stack, blocks

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """``x`` is the ids in the first stage, the hidden states [batch, length, width] elsewhere, with ``ids`` too."""
        behind: list[Tensor] = []

        def answer(index: int, *args: Any, **kwargs: Any) -> Any:
            call, hidden = BlockCall.of(args, kwargs)
            if index not in self._range:
                return self._route.visits[index].answer({0: hidden}, pytree.tree_leaves((args, kwargs)))
            given = x if ids is not None and index == self._range.start else hidden
            output = call.output(lambda *args, **kwargs: stand_ins.run(index, args, kwargs), given)
            if index == self._range.stop - 1 and not self.is_last:
                behind.append(hidden_in(output))
                raise Enough
            return output

        stand_ins = StandIns(self._stack.modules, answer)
        with contextlib.suppress(Enough), stand_ins:
            output = run_model(self._model[0], x if ids is None else ids)
        return behind[0] if behind else logits_of(output)


class BlockPipeline:
    """Every process has some of the blocks and updates the adapters in them; sequences follow one another."""

    def __init__(self, model: nn.Module, rank: int, world: int, batch: int, length: int) -> None:
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        stack = find_stack(model)
        self._parts = divide_blocks(len(stack.names), world)
        self._every = [
            [parameter for index in part for parameter in adapters(stack.modules[index])]
            for part in self._parts
        ]
        if not all(self._every) or sum(map(len, self._every)) != len(adapters(model)):
            raise SparsebitError(
                "a pipeline needs adapters in the blocks of every process, and none outside the blocks",
                hint="add_lora(model, layers=('*_proj',)), or pipeline=False",
            )
        take_from_first(adapters(model))  # they start from random numbers, which differ between processes
        self._rank, self._world, self.parameters = rank, world, self._every[rank]
        device = self.parameters[0].device
        self._device = device
        part = BlockStage(model, stack, self._parts[rank])
        ids = torch.zeros(1, length, dtype=torch.long, device=device)
        given, made = _example(model, stack, ids, part)
        stage = PipelineStage(part, rank, world, device, input_args=given, output_args=made)
        self._schedule = ScheduleGPipe(stage, n_microbatches=batch, loss_fn=next_token_loss)

    def backward(self, rows: Tensor) -> float:
        """Gradients of the mean over all sequences; the last process sends the loss to the others."""
        rows = rows.to(self._device)
        losses: list[Tensor] = []
        last = self._rank == self._world - 1
        target: dict[str, Any] = {"target": rows, "losses": losses} if last else {}
        with answered():
            if self._rank == 0:
                self._schedule.step(rows, **target, return_outputs=False)
            else:
                self._schedule.step(ids=rows, **target, return_outputs=False)
        return float(gather_values(float(torch.stack(losses).detach().mean()) if last else 0.0)[-1])

    def gradient_norm(self) -> Tensor:
        """The norm over all processes."""
        own = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        squared = own.square()
        sum_tensors([squared])
        return squared.sqrt()

    def share(self) -> None:
        """Each process sends the adapters of its blocks to all others."""
        first = sum(map(len, self._every[: self._rank]))
        own = {first + index: parameter.data for index, parameter in enumerate(self.parameters)}
        for parameter, sent in zip(itertools.chain(*self._every), share_tensors(own), strict=True):
            parameter.data.copy_(sent)


def divide_blocks(count: int, world: int) -> list[range]:
    """Neighbouring blocks for each process, as evenly as possible.

    Example:
        >>> divide_blocks(5, 2)
        [range(0, 3), range(3, 5)]
    """
    if count < world:
        raise SparsebitError(
            f"{count} blocks cannot be divided among {world} processes", hint="start fewer processes"
        )
    ends = [-(-count * index // world) for index in range(world + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(ends)]


@torch.no_grad()
def _example(model: nn.Module, stack: Stack, ids: Tensor, part: BlockStage) -> tuple[Tensor, Tensor]:
    """The inputs and outputs of a stage for one sequence, on the meta device; hidden states carry gradients."""
    hidden = BlockStage(model, stack, range(1))(ids)  # of the width and dtype that all hidden states have
    given = ids if part.is_first else hidden
    made = part(ids) if part.is_first else part(hidden, ids)
    shapes = given.to("meta"), made.to("meta")
    for one in shapes:
        one.requires_grad_(one.is_floating_point())
    return shapes
