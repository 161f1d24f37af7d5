"""The request that both engines receive, and the silencing of their warnings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.graph.exclusive import exclusively, without_warnings
from sparsebit.graph.run import SavedState


@dataclass
class TranslationRequest:
    """A graph, its example inputs, and the names in the file."""

    flat: FlatGraph
    inputs: Sequence[Tensor]
    names: Sequence[str]
    outputs: Sequence[str]
    choices: Sequence[AxisNames]  # dynamic axes to try, the freest first
    opset: int
    stateful: bool = False  # whether a run changes the model's state
    marked: Collection[str] = ()  # tensors whose markers the translation must have
    state: SavedState = field(init=False)  # of the graph, which every run must leave as it was

    def __post_init__(self) -> None:
        self.state = SavedState(self.flat, parameters=self.stateful)


@exclusively
def quietly() -> Iterator[None]:
    """Silence tracers, which warn about every Python number; whether the result is right is tested afterwards.

    One thread at a time: torch's exporters keep their state in global variables.
    """
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    # It prints complete graphs, and its own switch does not stop it.
    printer = getattr(torch._C, "_jit_onnx_log", None)
    try:
        if printer is not None:
            torch._C._jit_onnx_log = _say_nothing
        with without_warnings():
            yield
    finally:
        logger.setLevel(level)
        if printer is not None:
            torch._C._jit_onnx_log = printer


def _say_nothing(*_: object) -> None:
    pass
