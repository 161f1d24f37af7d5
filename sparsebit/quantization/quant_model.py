"""QuantModel: the verbs of quantization, in the order they are used."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.batches import Feed, ModelInputs, crop_like, to_device
from sparsebit.config import QConfig
from sparsebit.display import in_notebook
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture.frontend import capture
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.show import mermaid
from sparsebit.quantization.batch_norm.fold import fold_quantized
from sparsebit.quantization.batch_norm.statistics import has_batch_norm
from sparsebit.quantization.batch_norm.tune import tune_batch_norm
from sparsebit.quantization.build import build_graph, require_float_model
from sparsebit.quantization.calibration.record import CalibrationRecord
from sparsebit.quantization.calibration.round import CalibrationRound
from sparsebit.quantization.calibration.steps import finish_round, make_job, require_asym, run_batches
from sparsebit.quantization.checkpoint import load_checkpoint, save_checkpoint
from sparsebit.quantization.compare import Checker, operator_errors
from sparsebit.quantization.modules.freeze import (
    freeze_weights,
    frozen_names,
    require_float_weights,
    thaw_weights,
)
from sparsebit.quantization.modules.qmodules import QuantOpr
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.modules.weights import quantized_weights
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quant_config import parse_qconfig
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.recovery import Recovery
from sparsebit.quantization.switches import require_calibrated, switch, switched
from sparsebit.quantization.training.optimizer_groups import parameter_groups
from sparsebit.quantization.training.training import BatchNormMode, ObserverMode, Training

if TYPE_CHECKING:
    from sparsebit.export import OnnxExport


class QuantModel(nn.Module):
    """A model with quantizers on the edges of its graph, ready to be calibrated, measured, trained and exported.

    The user's model is never changed. Until this one is trained or moved, the two share the memory of their weights.

    Args:
        model: any ``nn.Module``.
        config: from ``parse_qconfig``, or anything that takes: a path, a preset's name, a dict.
        example_inputs: the arguments of one call: a tuple of positional ones, a dict of keyword ones, or one tensor.
            Left out, the model is traced symbolically by ``QTracer``, which fails on models that look at their inputs.
        example_kwargs: keyword arguments of that call.
        plan: a plan to follow instead of making one.

    Attributes:
        model: the graph; ``qmodel.model.layer1_0_conv1.input_quantizer`` reaches every quantizer by flat name.
        cfg, plan: what was asked for, and what was decided.
        inputs: what the model takes, by its example and its signature.
        record, recovery, qat: what calibration left behind, the recovery steps, what training was told.
        tuned: whether batch norm was folded after calibration.
        weights_rounded: whether it was loaded from quantized values, so that the float weights are those on the grid.
        made_from: the name of the model's class, for messages.

    Example:
        >>> from sparsebit.quantization import QuantModel
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
        >>> qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(torch.randn(2, 3, 8, 8),))
        >>> qmodel.calibrate([torch.randn(4, 3, 8, 8)], progress=False)
        >>> len(qmodel.quantizers), all(quantizer.is_enable for quantizer in qmodel.quantizers.values())
        (4, True)
    """

    accepts_loss_kwargs = False  # transformers' Trainer would add arguments of its own to those of the model
    model: QuantGraph
    _repr_html_ = in_notebook

    def __init__(
        self,
        model: nn.Module,
        config: QConfig | str | os.PathLike[str] | Mapping[str, Any],
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
        *,
        plan: QuantPlan | None = None,
    ) -> None:
        super().__init__()
        require_float_model(model)
        self.cfg, self.made_from = parse_qconfig(config), type(model).__name__
        self.inputs = ModelInputs(model, example_inputs, example_kwargs)
        by_hand = [name for name, module in model.named_modules() if isinstance(module, QuantOpr)]
        captured = capture(model, *self.inputs.example, skip=(*self.cfg.SKIP_TRACE_MODULES, *by_hand))
        self.model, self.plan, batch_norms = build_graph(captured, self.cfg, plan)
        self.record = CalibrationRecord(batch_norms=batch_norms)
        self.recovery = Recovery(self.cfg, self.quantizers)
        self.qat = Training()
        self.calibration: CalibrationRound | None = None  # while one is open
        self.tuned = self.weights_rounded = False
        self.training = model.training

    # -- looking at it ------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the parameters are, and calibration data is moved to."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.device for tensor in tensors), torch.device(self.cfg.DEVICE))

    @property
    def quantizers(self) -> dict[str, Quantizer]:
        """Every quantizer by the name of its tensor, in the order of the graph module."""
        found = (module for module in self.model.modules() if isinstance(module, Quantizer))
        return {quantizer.name: quantizer for quantizer in found}

    def weights(self) -> dict[str, Tensor]:
        """The float weights that are quantized, by the names of their quantizers."""
        return {q.name: fetch_tensor(self.model, path) for path, q in quantized_weights(self.model).items()}

    @property
    def enable_qat(self) -> bool:
        """Whether ``init_QAT`` was called."""
        return self.qat.started

    def __repr__(self) -> str:
        lines = [f"QuantModel for {self.plan.target}: {len(self.quantizers)} quantizers"]
        return "\n".join([*lines, *(f"  {quantizer.describe()}" for quantizer in self.quantizers.values())])

    def dump_mermaid(self, f: TextIO) -> None:
        """Write the graph as a Mermaid flowchart, quantizers included."""
        f.write(mermaid(self.model))

    # -- running and calibrating --------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own forward; while calibrating, quantizers measure what passes."""
        if self.calibration is not None:
            if self.training:
                raise SparsebitError(
                    "calibration runs in evaluation mode, so that dropout and batch norm behave as they will later",
                    hint="call qmodel.eval(), or prepare_calibration() again after train()",
                )
            with self.calibration.recorded(args, kwargs), torch.no_grad():
                return self.model(*args, **kwargs)
        outputs = self.model(*args, **kwargs)
        if self.qat.distillation is not None and self.training:
            self.qat.distillation.to_device(self.device)
            self.qat.distillation.see(outputs, args, kwargs)
        return outputs

    def prepare_calibration(self) -> None:
        """Begin a round of calibration: evaluation mode, quantizers off and measuring."""
        self._require_float_weights("calibration")
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
        """End it: turn what was measured into scales, run the config's recovery steps, and switch quantization on.

        Args:
            asym: measure each activation once more, behind layers that are already quantized, as it will meet them.
            w_quant: with ``asym``, quantize the weights of those layers.
            a_quant: with ``asym``, quantize their activations.
            folder: where long recovery steps keep what is finished; a run that was killed goes on from there.
            progress: show bars or not; by default on a terminal.
        """
        require_asym(asym, w_quant, a_quant)
        calibration = self.calibration
        if calibration is None:
            raise SparsebitError(
                "calc_qparams() was called before prepare_calibration()",
                expected="prepare_calibration(), some batches, then calc_qparams()",
            )
        calibration.require_data()
        self.calibration = None  # from here the round is over, also if it fails
        job = make_job(self, calibration, folder, progress)
        finish_round(self, calibration, job, asym=asym, w_quant=w_quant, a_quant=a_quant)
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
                has the rule. A lone tensor is one batch.
            batches: how many to use; all by default, and at most 512 of a loader without a length.
            asym, w_quant, a_quant: as for ``calc_qparams``.
            feed: makes the positional arguments (a tuple) or keyword arguments (a dict) of a batch, where that rule
                is not right.
            folder: as for ``calc_qparams``.
            progress: show a bar or not; by default on a terminal.
        """
        require_asym(asym, w_quant, a_quant)
        self.prepare_calibration()
        try:
            run_batches(self, loader, batches, feed, progress)
            self.calc_qparams(asym, w_quant, a_quant, folder, progress)
        finally:
            if self.calibration is not None:
                self.calibration.cancel()
                self.calibration = None

    # -- switching ----------------------------------------------------------------------------------------------

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the quantizers of weights and of activations on or off; fused ones stay off."""
        wanted = {q: w_quant if q.side == "W" else a_quant for q in self.quantizers.values()}
        require_calibrated(quantizer for quantizer, on in wanted.items() if on)
        for quantizer, on in wanted.items():
            switch(quantizer, on)

    @contextlib.contextmanager
    def quantized(self) -> Iterator[None]:
        """Inside the block everything is quantized, whatever ``set_quant`` said; an error where not calibrated."""
        require_calibrated(self.quantizers.values())
        with switched(self.quantizers.values(), True):
            yield

    def freeze(self) -> list[str]:
        """Hold weights as quantized values and drop the floats; returns the names of those weights.

        The model gives the same numbers, bit for bit, and takes as much memory as its quantized weights. It can be run,
        saved, moved, measured and exported; calibration and training need ``thaw()`` first. A weight stays in float
        where something also reads it unquantized, and where its operator is a ``QuantOpr`` of yours.
        """
        weights = {name: q for name, q in self.quantizers.items() if q.side == "W" and not q.fake_fused}
        if loose := [name for name, quantizer in weights.items() if not quantizer.is_enable]:
            raise SparsebitError(
                f"freeze() needs quantized weights, and {len(loose)} are not: {loose[0]!r} is the first",
                expected="a calibrated model with its quantizers on",
                hint="calibrate(loader), then set_quant(w_quant=True, a_quant=True), then freeze()",
            )
        self.qat = Training()
        return freeze_weights(self.model)

    def thaw(self) -> list[str]:
        """Make float weights of frozen ones, with the numbers they have; returns the names of those weights."""
        return thaw_weights(self.model)

    # -- training -----------------------------------------------------------------------------------------------

    def init_QAT(
        self,
        *,
        batch_norm: BatchNormMode = "leave",
        observers: ObserverMode = "freeze",
        distill: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        """End calibration and switch everything on, for ordinary training of this module from here on.

        Args:
            batch_norm: ``leave`` it as it is, ``freeze`` its statistics, or ``fold`` it into the weights now.
            observers: ``update`` lets grids that are not learned follow weights and activations; ``freeze`` keeps them.
            distill: how much of the loss is the distance to the float model, from 0 to 1; see ``distill()``.
            temperature: of the softmax that distance is taken at.
        """
        self._require_float_weights("training")
        if self.calibration is not None:
            self.calc_qparams()
        self.qat.start(self, batch_norm, observers, distill, temperature)

    def distill(self, loss: Tensor) -> Tensor:
        """The loss of the last forward, mixed with the distance to the float model that ``init_QAT`` asked for."""
        return loss if self.qat.distillation is None else self.qat.distillation.mix(loss)

    def parameter_groups(
        self, lr: float, *, quantizer_lr: float | None = None, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: weights decay, norms and biases do not, what quantizers learn has its own rate."""
        return parameter_groups(self, lr, quantizer_lr=quantizer_lr, weight_decay=weight_decay)

    def train(self, mode: bool = True) -> QuantModel:
        """Switch mode; batch norms that were frozen for training stay as they are."""
        super().train(mode)
        self.qat.hold_norms(self.model)
        return self

    @contextlib.contextmanager
    def batchnorm_tuning(self) -> Iterator[None]:
        """Inside the block, forwards re-estimate batch norm behind quantized weights; on leaving it is folded.

        Needs ``SCHEDULE.BN_TUNING`` in the config. (Hubara et al., arXiv 2006.10518)
        """
        if not self.cfg.SCHEDULE.BN_TUNING:
            raise SparsebitError(
                "batch norm was not kept for tuning", hint="set SCHEDULE.BN_TUNING: true in the config"
            )
        with tune_batch_norm(self):
            yield

    # -- measuring ----------------------------------------------------------------------------------------------

    def get_quantization_error(
        self, data: Any, checker: Checker = F.mse_loss, is_async: bool = True
    ) -> dict[str, Any]:
        """How far each quantized operator's result is from its float result.

        Args:
            data: the input: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
            checker: a function of (float result, quantized result).
            is_async: True quantizes one operator at a time, so each number is that operator's own doing. False lets
                errors run on through the model, so each number is what has gathered by then.
        """
        args, kwargs, *_ = to_device(self.inputs.batch(data), self.device)
        return operator_errors(self.model, args, kwargs, checker=checker, alone=is_async)

    # -- keeping it ---------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], *, floats: bool = False) -> None:
        """Write config, plan, weights and scales to a folder: JSON and safetensors, all of it or nothing.

        Weights that are quantized are written as packed quantized values, and the loaded model has exactly those. With
        ``floats=True``, and always in training, the float weights are written instead: needed to calibrate or train the
        loaded model as this one, or to switch its quantization off.

        What ``init_QAT`` was told goes along, the float model it distills from included, so that training goes on from
        the folder; the optimizer's state is for you to keep beside it.
        """
        save_checkpoint(self, folder, floats=floats)

    def export_onnx(
        self, dummy_data: Any, name: str | os.PathLike[str], *names: Any, **options: Any
    ) -> OnnxExport:
        """Write an ONNX file with integer weights, run it, and compare it with this model tensor by tensor.

        The arguments and the report that comes back are those of ``sparsebit.export.export_onnx``. What is compared are
        the first calibration samples, if they are at hand. The file is quantized whatever ``set_quant`` said; a model
        that was not calibrated is an error.
        """
        from sparsebit.export import export_onnx

        recorded = crop_like(self.record.sample, dummy_data) if self.record.sample is not None else None
        if recorded is not None:
            options.setdefault("calls", [recorded])
        with self.quantized() if options.get("quantized", True) else contextlib.nullcontext():
            return export_onnx(self, dummy_data, name, *names, **options)

    def folded(self) -> QuantGraph:
        """The graph as a runtime takes it: batch norm folded wherever that changes no result, on a copy.

        It is what ``export_onnx`` writes. Where there is no batch norm and no frozen weight it is the graph itself.
        """
        if not has_batch_norm(self.model) and not frozen_names(self.model):
            return self.model
        gm = copy.deepcopy(self.model)
        thaw_weights(gm)
        fold_quantized(gm, exact=True)
        return gm

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: nn.Module,
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
    ) -> QuantModel:
        """The quantized model that ``save`` wrote, on a model of the same architecture, whatever its weights.

        The example inputs are in the folder; give others only to capture the model with those. A model that was saved
        in the middle of training goes on as ``init_QAT`` had set it up. It is in training mode if ``model`` is.
        """
        return load_checkpoint(cls, folder, model, example_inputs, example_kwargs)

    def _require_float_weights(self, what: str) -> None:
        require_float_weights(self.model, what)
        if self.weights_rounded:
            warnings.warn(
                f"{what} starts from weights that are already quantized, as they were saved; "
                "save(folder, floats=True) keeps the float weights",
                stacklevel=3,
            )
            self.weights_rounded = False

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantModel:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    def __reduce__(self) -> Any:
        """Refused: a pickle would run code when it is loaded, and could not name the classes of the graph."""
        raise SparsebitError(
            "a QuantModel cannot be pickled (torch.save)",
            hint="qmodel.save(folder) and QuantModel.load(folder, model), or torch.save(qmodel.state_dict(), file)",
        )
