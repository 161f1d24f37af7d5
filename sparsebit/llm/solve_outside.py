"""The embedding and the head: the head is solved on the hidden states after all blocks, the embedding is rounded.

If both are one tensor, it is solved as the head, where an error costs most: the embedding is followed by norms and
residual sums, which tolerate an error of the same size ten times better.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from sparsebit.errors import located
from sparsebit.llm.blocks.streams import Streams
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.language_model import Made
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import Solver, output_loss, solve_weight
from sparsebit.llm.plan import Plan
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import first_input


def solve_outside(source: WeightSource, plan: Plan, solver: Solver, data: Streams | None) -> list[Made]:
    """Solve the weights outside the blocks, with ``data`` from after the last block. A shared tensor stays shared."""
    names: dict[int, list[str]] = {}
    for name in plan.outside():
        names.setdefault(source.model.get_parameter(name).data_ptr(), []).append(name)
    found = []
    for alike in names.values():
        weight, spec = source.model.get_parameter(alike[0]).data.float(), plan.spec(alike[0])
        assert spec is not None
        seen = measure_head(source, alike[0], data) if solver.needs_data and data is not None else None
        with located(alike[0]):
            if seen is None:
                solved, tokens = Rtn(steps=24).solve(weight, None, spec), 0
                solved = solved.noted("pruned by magnitude" if spec.code is None else "rounded to nearest")
            else:
                solved, tokens = solve_weight(solver, weight, seen, spec), seen.tokens
        loss = output_loss(weight, solved.weight, None if seen is None else seen.mean_gram())
        made = solved.made(alike[0], loss, tokens)
        found += [made._replace(name=name) for name in alike]
        if made.held is None:  # it stays in float
            _put(source.model, alike, solved.weight)
    return found


def _put(model: nn.Module, names: list[str], weight: Tensor) -> None:
    """Replace one parameter, which has all of these names."""
    parameter = nn.Parameter(weight.to(model.get_parameter(names[0]).dtype), requires_grad=False)
    for name in names:
        path, _, key = name.rpartition(".")
        setattr(model.get_submodule(path), key, parameter)


@torch.no_grad()
def measure_head(source: WeightSource, name: str, data: Streams) -> InputStatistics | None:
    """Statistics of the inputs of the weight ``name`` after the blocks; None if it multiplies nothing."""
    parameters = {name: source.model.get_parameter(name)}
    streams = [one for one in (data.own, data.floats) if one is not None]
    found: InputStatistics | None = None
    for number in range(len(data.own.ids)):
        inputs = [first_input(parameters, partial(stream.run_rest, number)) for stream in streams]
        if inputs[0] is None:
            return None
        if found is None:
            found = InputStatistics.empty(inputs[0].shape[-1], shift=len(inputs) > 1, device=inputs[0].device)
        found.update(inputs[0], inputs[1] if len(inputs) > 1 else None, half=data.own.half)
    if found is not None:
        found.require_finite(name)
    return found
