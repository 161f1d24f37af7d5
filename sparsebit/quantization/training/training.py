"""Quantization-aware training: what ``init_QAT`` adds to ordinary training, and how it is saved."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.errors import SparsebitError
from sparsebit.processes import world_size
from sparsebit.quantization.batch_norm.fold import fold_quantized, needs_batch_norm
from sparsebit.quantization.modules.leaves import own_memory
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.training.distillation import Distillation

if TYPE_CHECKING:
    from sparsebit.quantization.modules.quant_graph import QuantGraph
    from sparsebit.quantization.quant_model import QuantModel

_logger = logging.getLogger(__name__)

BatchNormMode = Literal["leave", "freeze", "fold"]
ObserverMode = Literal["freeze", "update"]


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The options of ``init_QAT``, in the form that is saved.

    Attributes:
        freeze: whether batch norms stay in evaluation mode.
        following: the quantizers whose ranges follow their inputs.
        held: the parameters without a gradient.
        distill, temperature: of distillation; None if there is none.
        folded: whether batch norm is already folded in the teacher.
    """

    freeze: bool
    following: tuple[str, ...]
    held: tuple[str, ...]
    distill: float | None = None
    temperature: float | None = None
    folded: bool = False

    def __post_init__(self) -> None:
        if (self.distill is None) != (self.temperature is None) or (
            self.temperature is not None and self.temperature <= 0
        ):
            raise ValueError("a distilled model needs a temperature above 0")


class Training:
    """The settings of training a quantized model.

    Attributes:
        started: whether ``init_QAT`` was called.
        frozen_norms: whether batch norms stay in evaluation mode.
        distillation: the teacher, if requested.
    """

    def __init__(self) -> None:
        self.started = self.frozen_norms = False
        self.distillation: Distillation | None = None

    def start(
        self,
        qmodel: QuantModel,
        batch_norm: BatchNormMode,
        observers: ObserverMode,
        distill: float,
        temperature: float,
    ) -> None:
        """Switch quantization on, and set up the requested options; see ``QuantModel.init_QAT``."""
        if batch_norm not in ("leave", "freeze", "fold") or observers not in ("freeze", "update"):
            raise SparsebitError(
                "init_QAT does not have this option",
                expected="batch_norm: leave, freeze or fold; observers: freeze or update",
                got=f"batch_norm={batch_norm!r}, observers={observers!r}",
            )
        if batch_norm == "fold" and (names := needs_batch_norm(qmodel.model)):
            raise SparsebitError(
                f"the quantizer of {names[0]!r} normalizes the weight, so the batch norm after it must stay",
                got=f"batch_norm='fold' with {len(names)} such weights",
                hint="train with batch_norm='freeze' or 'leave'; export folds it in the end",
            )
        qmodel.set_quant(w_quant=True, a_quant=True)
        if not any(parameter.requires_grad for parameter in qmodel.parameters()):
            _logger.warning(
                "no parameter of this model requires a gradient; call model.requires_grad_(True) to train it"
            )
        self.distillation = None
        if not isinstance(distill, int | float | None) or distill:
            self.distillation = Distillation(
                _quantizers_off(copy.deepcopy(qmodel.model)), distill, temperature, folded=qmodel.tuned
            )
        if not self.started:
            own_memory(qmodel.model)
        if batch_norm == "fold":
            fold_quantized(qmodel.model, exact=False)
            qmodel.tuned = True
        self.frozen_norms = batch_norm == "freeze"
        for quantizer in qmodel.quantizers.values():
            learns = any(True for _ in quantizer.parameters())
            quantizer.following = observers == "update" and not learns
            quantizer.processes = world_size()
            if quantizer.fake_fused:  # its grid would never get a gradient
                quantizer.requires_grad_(False)
        self.started = True
        qmodel.train(qmodel.training)

    def settle(self, qmodel: QuantModel) -> None:
        """Freeze batch norms and followed ranges for the last part of training."""
        for quantizer in qmodel.quantizers.values():
            quantizer.following = False
        self.frozen_norms = True
        qmodel.train(qmodel.training)

    def hold_norms(self, gm: QuantGraph) -> None:
        """Put batch norms that were frozen back into evaluation mode."""
        for module in gm.modules():
            if self.frozen_norms and isinstance(module, _BatchNorm):
                module.eval()

    def state(self, qmodel: QuantModel) -> TrainingState:
        """The options; the teacher's tensors are saved by the caller."""
        taught = self.distillation
        return TrainingState(
            freeze=self.frozen_norms,
            following=tuple(sorted(name for name, q in qmodel.quantizers.items() if q.following)),
            held=tuple(sorted(n for n, p in qmodel.model.named_parameters() if not p.requires_grad)),
            distill=taught.weight if taught else None,
            temperature=taught.temperature if taught else None,
            folded=taught.folded if taught else False,
        )

    def load_state(
        self, qmodel: QuantModel, state: TrainingState, teacher: QuantGraph | None, *, started: bool
    ) -> None:
        """Restore the options, with the loaded teacher."""
        self.started, self.frozen_norms = started, state.freeze
        for name, quantizer in qmodel.quantizers.items():
            quantizer.following = name in state.following
            quantizer.processes = world_size() if started else 1
        for name, parameter in qmodel.model.named_parameters():
            parameter.requires_grad_(name not in state.held and parameter.is_floating_point())
        if teacher is not None:
            assert state.distill is not None and state.temperature is not None
            self.distillation = Distillation(
                _quantizers_off(teacher), state.distill, state.temperature, folded=state.folded
            )
        qmodel.train(qmodel.training)


def _quantizers_off(gm: QuantGraph) -> QuantGraph:
    for module in gm.modules():
        if isinstance(module, Quantizer):
            module.use_quant = module.observing = False
    return gm
