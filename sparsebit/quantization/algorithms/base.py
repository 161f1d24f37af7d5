"""The interface of a recovery algorithm, and its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from sparsebit.config.engine.plugins import PlugInClasses, PlugInRule
from sparsebit.config.quantization.recovery import STEP_RULES
from sparsebit.errors import RegistryError
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.quantization.calibration.spill_list import SpillList
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quantizers import Quantizer

Stage = Literal["before", "after"]


@dataclass
class Job:
    """A graph with quantizers, and the calibration inputs, which can be read repeatedly.

    ``inputs`` gives (args, kwargs) of one call after another, from memory or disk. ``folder`` is where finished parts
    of the work are saved, so that a killed run resumes from there; None keeps nothing. ``batch_norms`` are mean and
    standard deviation of the results of layers that had one before it was folded, by node; a step that rescales those
    results also rescales these. ``shown`` is whether to show progress. ``shifts``, by name, are the changes of biases,
    which are undone before the model is calibrated again. ``notes`` says what was done.
    """

    gm: QuantGraph
    plan: QuantPlan
    quantizers: dict[str, Quantizer]
    inputs: SpillList
    folder: Path | None = None
    batch_norms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    shown: bool | None = None
    shifts: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def weights(self) -> Iterator[tuple[str, Quantizer, Tensor]]:
        """Every quantized weight: its name, its quantizer, and the float tensor."""
        for tensor in self.plan.weights():
            quantizer = self.quantizers[tensor.name]
            if not quantizer.fake_fused:
                yield tensor.name, quantizer, fetch_tensor(self.gm, tensor.producer)


class Algorithm(ABC):
    """One way to recover accuracy. Subclasses are frozen dataclasses of settings.

    ``stage`` says when it runs: ``before`` ranges are measured, because it changes weights, or ``after``.
    """

    NAME: ClassVar[str]
    stage: ClassVar[Stage] = "after"

    @abstractmethod
    def apply(self, job: Job) -> None:
        """Run the algorithm."""


ALGORITHMS: PlugInClasses[type[Algorithm], PlugInRule] = PlugInClasses(STEP_RULES, Algorithm)


def register_algorithm(cls: Any = None, *, replace: bool = False) -> Any:
    """Class decorator: let ``SCHEDULE.RECOVERY`` name this algorithm, with its fields as options.

    Written as ``@register_algorithm`` or ``@register_algorithm(replace=True)``.
    """
    if cls is None:
        return partial(register_algorithm, replace=replace)
    if (stage := getattr(cls, "stage", "after")) not in get_args(Stage):
        raise RegistryError(
            f"{cls.__qualname__} has no stage {stage!r}", expected=" or ".join(get_args(Stage))
        )
    name: Any = getattr(cls, "NAME", None)
    return ALGORITHMS.register(name, replace=replace, rule=PlugInRule(options=cls))(cls)
