"""Guess inputs of a model from the layers that read them, if none are given.

Which channels belong together does not depend on the height of an image or the length of a text: any inputs that the
model accepts are sufficient to record it. Values that depend on sizes (multiply-accumulates, latency) are then unknown.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.graph.copies import copy_module
from sparsebit.graph.ops import OpCall, bind

logger = logging.getLogger(__name__)

BATCH = 2
SIDES = {1: (64, 128, 1024, 16), 2: (64, 224, 32, 28, 96, 128, 256, 299, 384, 512), 3: (16, 32, 64, 112)}
LENGTHS = (16, 64, 8)


def guess_inputs(model: nn.Module, skip: Sequence[str] = ()) -> tuple[Tensor, ...]:
    """Positional inputs on which the model runs.

    Raises:
        SparsebitError: with the signature of the required inputs, if none are found.

    Example:
        >>> [list(x.shape) for x in guess_inputs(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(7200, 2)))]
        [[2, 3, 32, 32]]
    """
    names = _required(model)
    try:
        gm = capture(model, frontend="symbolic", skip=skip)
    except CaptureError as error:
        raise _ask(model, error.message) from error
    nodes = {str(node.target): node for node in gm.graph.nodes if node.op == "placeholder"}
    choices = []
    for name in names:
        found = list(_candidates(gm, nodes[name])) if name in nodes else []
        if not found:
            raise _ask(model, f"no layer says which sizes {name!r} has")
        choices.append(found)
    runner, problem = copy_module(model).eval(), "it takes no inputs"
    for inputs in itertools.islice(itertools.product(*choices), 64):
        try:
            with torch.no_grad():
                runner(*inputs)
        except Exception as error:  # if the model raises any error, these are not its inputs
            problem = f"on {_sizes(inputs)}: {error}".partition("\n")[0]
        else:
            logger.info("no example inputs are given; the model runs on %s", _sizes(inputs))
            return inputs
    raise _ask(model, problem)


def _required(model: nn.Module) -> list[str]:
    """The required inputs of ``forward``."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return [one.name for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty]


def _candidates(gm: GraphModule, node: Node) -> Iterator[Tensor]:
    """Inputs that fit the first layer that reads this argument, the most likely ones first."""
    waiting, seen = [node], {node}
    while waiting:
        reader = waiting.pop(0)
        call = bind(gm, reader) if reader.op.startswith("call_") else None
        found = list(_suiting(gm, call)) if call is not None else []
        if found:
            yield from found
            return
        new = [user for user in reader.users if user not in seen]
        seen.update(new)
        waiting += new


def _suiting(gm: GraphModule, call: OpCall) -> Iterator[Tensor]:
    spec, like = call.spec, next(gm.parameters(), torch.zeros(()))

    def floats(*shape: int) -> Tensor:
        return torch.zeros(BATCH, *shape, dtype=like.dtype, device=like.device)

    if spec.channels == "convolution" and spec.weight_axes is not None:
        reads = spec.weight_axes[1]
        channels = call.shape("weight")[reads] * (call.groups if reads == 1 else 1)
        yield from (floats(channels, *[side] * spec.spatial) for side in SIDES[spec.spatial])
    elif spec.name == "linear":
        features = call.shape("weight")[1]
        yield from (floats(features), *(floats(length, features) for length in LENGTHS))
    elif spec.name == "embedding":
        rows = call.shape("weight")[0]
        for length in LENGTHS:
            ids = torch.arange(BATCH * length, device=like.device) % rows
            yield ids.reshape(BATCH, length)
    elif spec.family == "rnn" and isinstance(call.module, nn.RNNBase):
        yield floats(LENGTHS[0], call.module.input_size)


def _sizes(inputs: Sequence[Tensor]) -> str:
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" for x in inputs)


def _ask(model: nn.Module, problem: str) -> SparsebitError:
    return SparsebitError(
        "the model must run once to find which channels belong together, and no inputs for it could be guessed",
        where=f"{type(model).__name__}.forward{inspect.signature(model.forward)}",
        got=problem,
        hint="pass example_inputs=(...) to SparseModel, the positional inputs of one call, and example_kwargs= by name",
    )
