"""What quantization-aware training needs beside ordinary training of a ``QuantModel``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.errors import SparsebitError
from sparsebit.quantization.quantizers import Quantizer

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel

BatchNormMode = Literal["leave", "freeze", "fold"]


def batch_norms(module: nn.Module) -> Iterable[_BatchNorm]:
    """Every batch norm inside."""
    return (child for child in module.modules() if isinstance(child, _BatchNorm))


def parameter_groups(
    qmodel: QuantModel, lr: float, *, quantizer_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for an optimizer: weights; biases and norms, which do not decay; what quantizers learn.

    Example:
        >>> from sparsebit.quantization import QuantModel, parse_qconfig
        >>> config = parse_qconfig("w4a8", ["W.QUANTIZER.TYPE=lsq", "A.QUANTIZER.TYPE=lsq"])
        >>> qmodel = QuantModel(nn.Sequential(nn.Linear(4, 2)), config, torch.zeros(1, 4))
        >>> [len(group["params"]) for group in parameter_groups(qmodel, 0.1)]
        [1, 1, 2]
    """
    learned = {id(p) for q in qmodel.quantizers.values() for p in q.parameters()}
    weights, small, grids = list[Tensor](), list[Tensor](), list[Tensor]()
    for parameter in qmodel.parameters():
        if parameter.requires_grad:
            kind = grids if id(parameter) in learned else weights if parameter.dim() > 1 else small
            kind.append(parameter)
    groups = [
        {"params": weights, "lr": lr, "weight_decay": weight_decay},
        {"params": small, "lr": lr, "weight_decay": 0.0},
        {"params": grids, "lr": lr if quantizer_lr is None else quantizer_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Distillation(nn.Module):
    """Pulls the model that is being trained towards the float one it came from (Hinton et al., arXiv 1503.02531).

    The teacher is held aside: its parameters are not trained, and are in no state dict. ``folded`` is whether batch
    norm was gone from it already, by which its graph is made again when it is loaded.
    """

    def __init__(
        self, teacher: nn.Module, weight: float, temperature: float = 4.0, *, folded: bool = False
    ) -> None:
        super().__init__()
        if not 0 < weight <= 1 or temperature <= 0:
            raise SparsebitError(
                "distillation needs a weight above 0 and up to 1, and a positive temperature",
                got=f"weight={weight}, temperature={temperature}",
            )
        teacher.eval()
        for parameter in teacher.parameters():
            parameter.requires_grad_(False)
        self.__dict__["teacher"] = teacher
        self.weight, self.temperature, self.folded = weight, temperature, folded
        self._pending: tuple[Tensor, Tensor] | None = None

    @property
    def teacher(self) -> nn.Module:
        """The float model."""
        held: nn.Module = self.__dict__["teacher"]
        return held

    def see(self, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what the student said, and ask the teacher."""
        with torch.no_grad():
            answer = self.teacher(*args, **kwargs)
        student, teacher = _first_float(outputs), _first_float(answer)
        self._pending = (student, teacher)

    def mix(self, loss: Tensor) -> Tensor:
        """``loss`` of the last forward, mixed with its distance to the teacher."""
        if self._pending is None:
            raise SparsebitError(
                "there is no forward to distill", expected="outputs = qmodel(x), then qmodel.distill(loss)"
            )
        (student, teacher), self._pending = self._pending, None
        t = self.temperature
        distance = F.kl_div(
            F.log_softmax(student.float() / t, -1),
            F.log_softmax(teacher.float() / t, -1),
            reduction="batchmean",
            log_target=True,
        )
        rows = student.numel() / student.shape[-1] / max(len(student), 1)  # more than one answer a sample
        return (1 - self.weight) * loss + self.weight * t * t * distance / rows

    def to_device(self, device: torch.device) -> None:
        """Bring the teacher along."""
        self.teacher.to(device)


def _first_float(outputs: Any) -> Tensor:
    found = next(
        (x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()), None
    )
    if found is None:
        raise SparsebitError("the model returns no tensor of floating point to distill")
    return found


def follow(quantizers: Iterable[Quantizer], on: bool) -> None:
    """Let quantizers without learned grids keep adjusting them to what they see in training, or stop."""
    for quantizer in quantizers:
        quantizer.following = on and not any(True for _ in quantizer.parameters())


def leave_unused(quantizers: Iterable[Quantizer]) -> None:
    """Take no gradient for the grid of a quantizer that is switched off for good: it would never come."""
    for quantizer in quantizers:
        if quantizer.fake_fused:
            quantizer.requires_grad_(False)
