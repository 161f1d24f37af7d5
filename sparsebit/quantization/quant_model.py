"""QuantModel: the verbs of quantization, in the order they are used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsebit.batches import Feed, ModelInputs, crop_like
from sparsebit.config import QConfig
from sparsebit.graph.capture.dynamic import Dynamic
from sparsebit.quantization.batch_norm.tune import tune_batch_norm
from sparsebit.quantization.build import build_graph, make_recovery, require_float_model
from sparsebit.quantization.calibration.record import CalibrationRecord
from sparsebit.quantization.calibration.round import CalibrationRound
from sparsebit.quantization.calibration.steps import finish_round, require_asym, run_loader
from sparsebit.quantization.checkpoint import load_checkpoint, save_checkpoint
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quant_config import parse_qconfig
from sparsebit.quantization.quantized_module import QuantizedModule
from sparsebit.quantization.training.fused_relus import FusedRelus
from sparsebit.quantization.training.sharded import require_unsharded
from sparsebit.quantization.training.training import BatchNormMode, ObserverMode
from sparsebit.quantization.training.weight_groups import WeightGroups

if TYPE_CHECKING:
    from sparsebit.export import OnnxExport


class QuantModel(QuantizedModule):
    """A model with quantizers on the edges of its graph, ready to be calibrated, measured, trained and exported.

    The user's model is never changed. Until this model is trained or moved, both share the memory of their weights.

    Args:
        model: any ``nn.Module``.
        config: from ``parse_qconfig``, or anything that it accepts: a path, a preset's name, a dict.
        example_inputs: the arguments of one call: a tuple of positional ones, a dict of keyword ones, or one tensor.
            Without them, the model is traced by ``QTracer``, which fails if control flow depends on the inputs.
        example_kwargs: keyword arguments of that call.
        plan: a plan to follow instead of making one.
        dynamic: dimensions of the inputs that must be free, as for ``sparsebit.capture``.

    Attributes:
        record, recovery: what is kept from calibration, and the recovery steps.
        calibration: the current round, if any.
        tuned: whether batch norm was folded after calibration.
        made_from: the name of the model's class, for messages.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from sparsebit.quantization import QuantModel
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
        >>> qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(torch.randn(2, 3, 8, 8),))
        >>> qmodel.calibrate([torch.randn(4, 3, 8, 8)], progress=False)
        >>> len(qmodel.quantizers), all(quantizer.is_enable for quantizer in qmodel.quantizers.values())
        (4, True)
    """

    accepts_loss_kwargs = False  # transformers' Trainer would add its own arguments to the model's

    def __init__(
        self,
        model: nn.Module,
        config: QConfig | str | os.PathLike[str] | Mapping[str, Any],
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
        *,
        plan: QuantPlan | None = None,
        dynamic: Dynamic | None = None,
    ) -> None:
        model = require_float_model(model)
        settings, inputs = parse_qconfig(config), ModelInputs(model, example_inputs, example_kwargs)
        built = build_graph(model, inputs.example, settings, plan, dynamic)
        super().__init__(built.graph, settings, built.plan, inputs)
        self.record = CalibrationRecord(batch_norms=built.batch_norms)
        self.recovery = make_recovery(settings, self.quantizers.values())
        self.calibration: CalibrationRound | None = None
        self.weight_groups, self.fused_relus = WeightGroups(), FusedRelus()
        self.tuned, self.made_from = False, type(model).__name__
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward; during calibration, quantizers measure their tensors."""
        if self.calibration is not None:
            with self.calibration.recorded(args, kwargs, training=self.training):
                return self.model(*args, **kwargs)
        if torch.compiler.is_compiling():
            outputs = self.model(*args, **kwargs)
        else:
            with self.weight_groups.snapped(self.model), self.fused_relus.applied(self.model):
                outputs = self.model(*args, **kwargs)
        if self.qat.distillation is not None and self.training:
            self.qat.distillation.see(outputs, args, kwargs, self.device)
        return outputs

    def prepare_calibration(self) -> None:
        """Start calibration: evaluation mode, quantizers switched off and measuring."""
        self.require_float_weights("calibration")
        require_unsharded(self, "calibration")
        self.eval()
        if self.calibration is not None:
            self.calibration.cancel()
        self.calibration = CalibrationRound(
            self.model, self.quantizers, self.record, keep_biases=self.qat.started
        )

    def calc_qparams(
        self,
        asym: bool = False,
        w_quant: bool = False,
        a_quant: bool = False,
        folder: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """End calibration: compute scales, run the config's recovery steps, and switch quantization on.

        Args:
            asym: measure each activation once more, with the layers before it quantized.
            w_quant: with ``asym``, quantize the weights of those layers.
            a_quant: with ``asym``, quantize their activations.
            folder: where long recovery steps save finished blocks; a killed run resumes from there.
            progress: whether to show progress; by default only on a terminal.
        """
        finish_round(self, asym=asym, w_quant=w_quant, a_quant=a_quant, folder=folder, shown=progress)
        self.set_quant(w_quant=True, a_quant=True)

    def calibrate(
        self,
        loader: Any,
        batches: int | None = None,
        *,
        asym: bool = False,
        w_quant: bool = False,
        a_quant: bool = False,
        feed: Feed | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """Calibrate in one call; afterwards the model is quantized. If it fails, an earlier calibration stays.

        Args:
            loader: gives batches: tensors, ``(inputs, labels)``, or dicts of keyword arguments; ``sparsebit.batches``
                has the rule. A single tensor is one batch.
            batches: how many to use; all by default, and at most 512 of a loader without a length.
            asym, w_quant, a_quant: as for ``calc_qparams``.
            feed: a function from a batch to its arguments, a tuple or a dict, instead of that rule.
            folder, progress: as for ``calc_qparams``.
        """
        require_asym(asym, w_quant, a_quant)
        self.prepare_calibration()
        try:
            run_loader(self, loader, batches, feed, progress)
            self.calc_qparams(asym, w_quant, a_quant, folder, progress)
        finally:
            if self.calibration is not None:
                self.calibration.cancel()
                self.calibration = None

    def init_QAT(
        self,
        *,
        batch_norm: BatchNormMode = "leave",
        observers: ObserverMode = "freeze",
        distill: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        """Start training: end calibration and switch all quantizers on. From here on, train it like any module.

        Args:
            batch_norm: ``leave`` it as it is, ``freeze`` its statistics, or ``fold`` it into the weights now.
            observers: ``update`` lets grids that are not learned follow the data; ``freeze`` keeps them.
            distill: the share of the loss that is the distance to the float model, 0 to 1; see ``distill()``.
            temperature: of the softmax in that distance.
        """
        self.require_float_weights("training")
        if self.calibration is not None:
            self.calc_qparams()
        self.qat.start(self, batch_norm, observers, distill, temperature)

    def distill(self, loss: Tensor) -> Tensor:
        """Mix a loss with the distance of the last forward to the float model, in the share that ``init_QAT`` set."""
        return loss if self.qat.distillation is None else self.qat.distillation.mix(loss)

    def train(self, mode: bool = True) -> QuantModel:
        """Switch mode; batch norms that were frozen for training stay as they are."""
        self.model.train(mode)  # first, because if it raises an error, nothing must be switched
        super().train(mode)
        self.qat.hold_norms(self.model)
        return self

    def batchnorm_tuning(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block, forwards re-estimate batch norm with quantized weights; at the end it is folded.

        Needs ``SCHEDULE.BN_TUNING`` in the config. (Hubara et al., arXiv 2006.10518)
        """
        return tune_batch_norm(self)

    def save(self, folder: str | os.PathLike[str], *, floats: bool = False) -> None:
        """Write config, plan, weights and scales to a folder: JSON and safetensors, all of it or nothing.

        Quantized weights are written as packed quantized values. With ``floats=True``, and always in training, float
        weights are written instead: they are needed to calibrate or train the loaded model, or to switch quantization
        off. Training resumes from the folder, with distillation; save the optimizer's state yourself.

        With several processes, call it on one of them; a model divided by ``fully_shard`` is saved by all.
        """
        save_checkpoint(self, folder, floats=floats)

    def export_onnx(
        self, dummy_data: Any, name: str | os.PathLike[str], *names: Any, **options: Any
    ) -> OnnxExport:
        """Write an ONNX file with integer weights, run it, and compare it with this model tensor by tensor.

        The arguments and the report are those of ``sparsebit.export.export_onnx``; the first calibration samples are
        compared, if they are known. The file is always quantized, so the model must be calibrated.
        """
        from sparsebit.export import export_onnx

        require_unsharded(self, "export")
        recorded = crop_like(self.record.sample, dummy_data) if self.record.sample is not None else None
        if recorded is not None:
            options.setdefault("calls", [recorded])
        with self.quantized() if options.get("quantized", True) else contextlib.nullcontext():
            return export_onnx(self, dummy_data, name, *names, **options)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: nn.Module,
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
    ) -> QuantModel:
        """The quantized model that ``save`` wrote, for a model of the same architecture with any weights.

        The example inputs are in the folder; pass others only to capture the model with those. A model that was saved
        in training continues with the options of ``init_QAT``. It is in training mode if ``model`` is.
        """
        return load_checkpoint(cls, folder, model, example_inputs, example_kwargs)
