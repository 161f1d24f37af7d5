"""Distillation: the model in training learns from the float model it was made from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.graph.capture.call.structure import tensors_of


class Distillation:
    """Adds the distance to the original float model to the training loss (Hinton et al., arXiv 1503.02531).

    It compares the probabilities of the classes in the first output of the model: along axis 1 of images and volumes
    (4 axes or more), along the last axis of everything else.
    ``folded`` says whether its batch norms were folded already, so that loading builds the same graph again.
    """

    def __init__(
        self, teacher: nn.Module, weight: float, temperature: float = 4.0, *, folded: bool = False
    ) -> None:
        numbers = isinstance(weight, int | float) and isinstance(temperature, int | float)
        if not numbers or not 0 < weight <= 1 or not temperature > 0:
            raise SparsebitError(
                "distillation needs a weight above 0 and up to 1, and a positive temperature",
                got=f"weight={weight!r:.80}, temperature={temperature!r:.80}",
            )
        teacher.eval()
        for parameter in teacher.parameters():
            parameter.requires_grad_(False)
        self.teacher, self.weight, self.temperature, self.folded = teacher, weight, temperature, folded
        self._pending: tuple[Tensor, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state, without the results of the last forward pass, which cannot be copied."""
        return {**vars(self), "_pending": None}

    def see(
        self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None = None
    ) -> None:
        """Store the outputs of the student, and run the teacher on the same inputs."""
        held = (*self.teacher.parameters(), *self.teacher.buffers())
        if device is not None and any(tensor.device != device for tensor in held):
            self.teacher.to(device)  # only if needed: torch 2.11 does not compile it
        with torch.no_grad():
            answer = self.teacher(*args, **kwargs)
        student, teacher = _first_float(outputs), _first_float(answer)
        self._pending = (student, teacher)

    def mix(self, loss: Tensor) -> Tensor:
        """``loss`` of the last forward pass, mixed with the distance to the teacher."""
        if self._pending is None:
            raise SparsebitError(
                "distill() needs the outputs of a forward",
                expected="outputs = qmodel(x), then qmodel.distill(loss)",
            )
        (student, teacher), self._pending = self._pending, None
        classes = 1 if student.dim() > 3 else -1  # as nn.CrossEntropyLoss takes images
        if student.shape[classes] == 1:
            raise SparsebitError(
                "distillation compares probabilities of classes, and the model returns one number per answer",
                expected="logits of at least two classes",
                got=f"an output of shape {list(student.shape)}",
                hint="train without distill",
            )
        t = self.temperature
        distance = F.kl_div(
            F.log_softmax(student.float() / t, classes),
            F.log_softmax(teacher.float() / t, classes),
            reduction="batchmean",
            log_target=True,
        )
        # A sample may have several answers.
        rows = student.numel() / student.shape[classes] / max(len(student), 1)
        return (1 - self.weight) * loss + self.weight * t * t * distance / rows


def _first_float(outputs: Any) -> Tensor:
    """The first floating-point tensor that is not a single number, as a loss before the logits is."""
    found = next((x for x in tensors_of(outputs) if x.is_floating_point() and x.dim()), None)
    if found is None:
        raise SparsebitError("the model returns no floating-point tensor to distill")
    return found
