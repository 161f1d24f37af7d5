"""An engine for the check: it opens an exported file and returns what it reads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from sparsebit.llm.engines.rounding import Rounding


class Opened(Protocol):
    """A file that an engine has loaded; ``longest`` is the most tokens of a prompt, if the file limits them."""

    longest: int | None

    def weight(self, name: str) -> Tensor:
        """The values of a matrix as the engine reads them, [out, in], by its name in the original state dict.

        Called after ``log_probabilities``.
        """
        ...

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """Log-probabilities of the next token after each of the last ids, as many as are affordable."""
        ...

    def rounding(self, name: str) -> Rounding | None:
        """How the engine rounds activations before a quantized matrix; None if it multiplies in float."""
        ...


@dataclass(frozen=True)
class Engine:
    """One engine: the modules it needs, and how far it may differ from torch apart from rounding activations.

    ``tolerance`` is the largest mean divergence of its next-token distributions from those of torch, in nats. ``open``
    loads a file; its errors are passed on, and the proof reports them. ``token_ids`` returns the engine's ids of texts,
    for files that hold the tokenizer.
    """

    name: str  # the name its makers use
    modules: tuple[str, ...]
    tolerance: float
    open: Callable[[Path], Opened]
    token_ids: Callable[[Path, Sequence[str]], list[list[int]]] | None = None


def missing_modules(engine: Engine) -> list[str]:
    """The modules of an engine that are not installed.

    Example:
        >>> from sparsebit.llm.engines.openvino import OpenVinoModel
        >>> missing_modules(Engine("an engine", ("torch", "no_such_module"), 0.0, OpenVinoModel))
        ['no_such_module']
    """
    return [name for name in engine.modules if importlib.util.find_spec(name) is None]


def prompt_and_steps(ids: Tensor) -> list[Tensor]:
    """The first half of the ids as one prompt, the rest one by one: the two ways in which an engine is called.

    Example:
        >>> import torch
        >>> prompt_and_steps(torch.tensor([5, 6, 7, 8, 9]))
        [tensor([5, 6, 7]), tensor([8]), tensor([9])]
    """
    half = (len(ids) + 1) // 2
    return [ids[:half], *ids[half:].split(1)] if half < len(ids) else [ids]
