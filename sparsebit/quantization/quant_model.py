"""QuantModel: the verbs of quantization, in the order they are used."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.above import call_above, in_notebook
from sparsebit.batches import Call, Feed, ModelInputs, crop_like, explained, to_device
from sparsebit.config import QConfig
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes import SIMPLIFY, fold_batch_norm, remove_dead_nodes, run_passes
from sparsebit.graph.show import mermaid
from sparsebit.quantization.algorithms import AdaRoundLayers, Algorithm, Job, Stage, make_algorithms
from sparsebit.quantization.algorithms.reconstruction import Reconstruction
from sparsebit.quantization.batch_norm.tune import (
    fold_quantized,
    has_batch_norm,
    statistics_of,
    tune_batch_norm,
    without_scale,
)
from sparsebit.quantization.calibration.processes import raise_together
from sparsebit.quantization.calibration.round import Calibration
from sparsebit.quantization.checkpoint import load_checkpoint, save_checkpoint
from sparsebit.quantization.compare import Checker, operator_errors
from sparsebit.quantization.modules.freeze import (
    freeze_weights,
    frozen_names,
    require_float_weights,
    thaw_weights,
)
from sparsebit.quantization.modules.insert import build_own_quantizers, insert_quantizers, replace_registered
from sparsebit.quantization.modules.leaves import evaluating, own_leaves, own_memory
from sparsebit.quantization.modules.qmodules import QuantOpr, switch
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.plan import QuantPlan, make_plan
from sparsebit.quantization.plan.layers import find_layers
from sparsebit.quantization.quant_config import parse_qconfig
from sparsebit.quantization.quantizers import AdaRound, Quantizer
from sparsebit.quantization.training.qat import (
    BatchNormMode,
    Distillation,
    batch_norms,
    follow,
    leave_unused,
    parameter_groups,
)
from sparsebit.targets import TARGETS


class QuantModel(nn.Module):
    """A model with quantizers on the edges of its graph, ready to be calibrated, measured, trained and exported.

    The user's model is not changed, by training or moving this one either; until then they share their memory.

    Args:
        model: any ``nn.Module``.
        config: from ``parse_qconfig``, or anything that takes: a path, a preset's name, a dict.
        example_inputs: the arguments of one call: a tuple of positional ones, a dict of keyword ones, or one tensor.
            Left out, the model is traced symbolically by ``QTracer``, which fails on models that look at their inputs.
        example_kwargs: keyword arguments of that call.
        plan: a plan to follow instead of making one.

    Attributes:
        model: the graph; ``qmodel.model.layer1_0_conv1.input_quantizer`` reaches every quantizer by flat name.
        cfg, plan, device: what was asked for, what was decided, where calibration data is moved to.
        tuned: whether batch norm was re-estimated and folded.
        weights_rounded: whether it was loaded from quantized values, so that the float weights are those on the grid.
        made_from: the name of the model's class, for messages.

    Example:
        >>> from sparsebit.quantization import QuantModel
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
        >>> qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(torch.randn(2, 3, 8, 8),))
        >>> qmodel.calibrate([torch.randn(4, 3, 8, 8)], progress=False)
        >>> qmodel.set_quant(w_quant=True, a_quant=True)
        >>> len(qmodel.quantizers)
        4
    """

    accepts_loss_kwargs = False  # transformers' Trainer would add arguments of its own to those of the model
    model: QuantGraph
    _distillation: Distillation | None

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
        self._frozen_norms, self._distillation = False, None
        self._batch_norms: dict[str, tuple[Tensor, Tensor]] = {}
        self._sample: Call | None = None  # of the calibration data, for checking what is exported
        self._shifts: dict[str, Tensor] = {}
        self.cfg = parse_qconfig(config)
        self.made_from = type(model).__name__
        self.inputs = ModelInputs(model, example_inputs, example_kwargs)
        by_hand = [name for name, module in model.named_modules() if isinstance(module, QuantOpr)]
        captured = capture(model, *self.inputs.example, skip=(*self.cfg.SKIP_TRACE_MODULES, *by_hand))
        self.plan = self._quantize(captured, plan)
        self.model = QuantGraph.around(captured)
        self._calibration: Calibration | None = None
        self.enable_qat = self.tuned = self.weights_rounded = False
        self.training = model.training
        self._recovery("before"), self._recovery("after")  # a wrong option is better found before the work

    def _quantize(self, gm: CapturedModule, plan: QuantPlan | None) -> QuantPlan:
        target = TARGETS[self.cfg.BACKEND]
        own_leaves(gm)
        run_passes(gm, SIMPLIFY)
        known = find_layers(gm)
        if self.cfg.SCHEDULE.FUSE_BN and not self.cfg.SCHEDULE.BN_TUNING:
            with evaluating(gm):
                self._batch_norms = statistics_of(gm)
                run_passes(gm, (fold_batch_norm, remove_dead_nodes))
        owned = replace_registered(gm, self.cfg)
        build_own_quantizers(gm, self.cfg, owned)
        plan = plan or make_plan(gm, self.cfg, target, known=known, owned=owned)
        insert_quantizers(gm, plan)
        device = next((tensor.device for tensor in (*gm.parameters(), *gm.buffers())), None)
        for module in gm.modules():
            if isinstance(module, Quantizer) and device is not None:
                module.to(device)
        return plan

    @property
    def device(self) -> torch.device:
        """Where the parameters are, and calibration data is moved to."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.device for tensor in tensors), torch.device(self.cfg.DEVICE))

    # -- looking at it ------------------------------------------------------------------------------------------

    @property
    def quantizers(self) -> dict[str, Quantizer]:
        """Every quantizer by the name of its tensor, in the order of the graph module."""
        found = (module for module in self.model.modules() if isinstance(module, Quantizer))
        return {quantizer.name: quantizer for quantizer in found}

    def __repr__(self) -> str:
        lines = [f"QuantModel for {self.plan.target}: {len(self.quantizers)} quantizers"]
        return "\n".join([*lines, *(f"  {quantizer.describe()}" for quantizer in self.quantizers.values())])

    def dump_mermaid(self, f: TextIO) -> None:
        """Write the graph as a Mermaid flowchart, quantizers included."""
        f.write(mermaid(self.model))

    # -- running and calibrating --------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own forward; while calibrating, quantizers measure what passes."""
        if self._calibration is not None:
            if self.training:
                raise SparsebitError(
                    "calibration runs in evaluation mode, so that dropout and batch norm do as they will later",
                    hint="call qmodel.eval(), or prepare_calibration() again after train()",
                )
            with self._calibration.recorded(args, kwargs), torch.no_grad():
                return self.model(*args, **kwargs)
        outputs = self.model(*args, **kwargs)
        if self._distillation is not None and self.training:
            self._distillation.to_device(self.device)
            self._distillation.see(outputs, args, kwargs)
        return outputs

    def prepare_calibration(self) -> None:
        """Begin a round of calibration: evaluation mode, quantizers off and measuring."""
        self._require_float_weights("calibration")
        self.eval()
        self.set_quant(w_quant=False, a_quant=False)
        if not self.enable_qat:  # training has made the biases its own
            for name, shift in self._shifts.items():
                bias = fetch_tensor(self.model, name)
                bias.data = (bias.data.double() - shift.to(bias.device)).to(bias.dtype)
        self._shifts.clear()
        self._calibration = Calibration(self.model, self.quantizers)

    def calc_qparams(
        self,
        asym: bool = False,
        w_quant: bool = False,
        a_quant: bool = False,
        folder: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """End it: turn what was measured into scales and zero points, and run the config's recovery steps.

        Args:
            asym: measure each activation once more, behind layers that are already quantized, as it will meet them.
            w_quant: with ``asym``, quantize the weights of those layers.
            a_quant: with ``asym``, quantize their activations.
            folder: where long recovery steps keep what is finished; a run that was killed goes on from there.
            progress: show bars or not; by default on a terminal.
        """
        calibration = self._calibration
        if calibration is None:
            raise SparsebitError(
                "calc_qparams() was called before prepare_calibration()",
                expected="prepare_calibration(), some batches, then calc_qparams()",
            )
        _require_asym(asym, w_quant, a_quant)
        calibration.require_data()
        self._calibration = None  # the round is over, also if its data or the weights turn out to be no good
        job = self._job(calibration, folder, progress)
        before, after = (self._recovery(stage) for stage in ("before", "after"))
        try:
            for algorithm in before:
                algorithm.apply(job)
            if before:
                calibration.measure_again(progress)
            weights = {name: self._weight(name) for name, q in self.quantizers.items() if q.side == "W"}
            if asym:
                calibration.finish_in_order(weights, w_quant=w_quant, a_quant=a_quant, shown=progress)
            else:
                calibration.finish(weights)
        finally:
            calibration.close()
        for algorithm in after:
            algorithm.apply(job)
        self._sample = calibration.inputs[0] if len(calibration.inputs) else None

    def calibrate(
        self,
        loader: Iterable[Any],
        batches: int | None = None,
        *,
        asym: bool = False,
        w_quant: bool = False,
        a_quant: bool = False,
        feed: Feed | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """The whole of calibration in one call, with a progress bar.

        Args:
            loader: gives batches: tensors, ``(inputs, labels)``, or dicts of keyword arguments; ``sparsebit.batches``
                has the rule. A lone tensor is one batch.
            batches: how many to use; all by default, and at most 512 of a loader without a length.
            asym, w_quant, a_quant: as for ``calc_qparams``.
            feed: makes the positional arguments (a tuple) or keyword arguments (a dict) of a batch, where that is
                not right.
            folder: as for ``calc_qparams``.
            progress: show a bar or not; by default on a terminal.
        """
        _require_asym(asym, w_quant, a_quant)
        self.prepare_calibration()
        try:
            failure: Exception | None = None
            try:
                calls = self.inputs.calls(
                    loader, batches, feed=feed, device=self.device, what="calibrating", shown=progress
                )
                for number, call in enumerate(calls, 1):
                    with explained(number, call, self.inputs.example):
                        self(*call.args, **call.kwargs)
            except Exception as error:
                failure = error
            raise_together(failure)
            self.calc_qparams(asym, w_quant, a_quant, folder, progress)
        finally:
            if self._calibration is not None:
                self._calibration.close()
                self._calibration = None

    def _job(
        self, calibration: Calibration, folder: str | os.PathLike[str] | None, shown: bool | None
    ) -> Job:
        place = Path(folder) if folder is not None else None
        return Job(
            gm=self.model,
            plan=self.plan,
            quantizers=self.quantizers,
            inputs=calibration.inputs,
            folder=place,
            batch_norms=self._batch_norms,
            shown=shown,
            shifts=self._shifts,
        )

    def _recovery(self, stage: Stage) -> list[Algorithm]:
        """The algorithms of one stage: those of the config, and AdaRound where a weight's quantizer is one."""
        found = make_algorithms(self.cfg.SCHEDULE.RECOVERY, stage)
        rounding = any(isinstance(quantizer, AdaRound) for quantizer in self.quantizers.values())
        if stage == "after" and rounding and not any(isinstance(a, Reconstruction) for a in found):
            found.insert(0, AdaRoundLayers())  # the others then see what was decided
        return found

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the quantizers of weights and of activations on or off; fused ones stay off."""
        quantizers = self.quantizers
        missing = [
            name
            for name, q in quantizers.items()
            if (w_quant if q.side == "W" else a_quant) and not q.calibrated and not q.fake_fused
        ]
        if missing:
            raise SparsebitError(
                f"{len(missing)} quantizers have no scale yet, the first is {missing[0]!r}",
                expected="prepare_calibration(), some batches, calc_qparams(), then set_quant()",
            )
        for quantizer in quantizers.values():
            switch(quantizer, w_quant if quantizer.side == "W" else a_quant)

    def init_QAT(
        self,
        *,
        batch_norm: BatchNormMode = "leave",
        observers: Literal["freeze", "update"] = "freeze",
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
        if batch_norm not in ("leave", "freeze", "fold") or observers not in ("freeze", "update"):
            raise SparsebitError(
                "init_QAT got a choice it does not know",
                expected="batch_norm: leave, freeze or fold; observers: freeze or update",
                got=f"batch_norm={batch_norm!r}, observers={observers!r}",
            )
        if self._calibration is not None:
            self.calc_qparams()
        if batch_norm == "fold" and (names := without_scale(self.model)):
            raise SparsebitError(
                f"the quantizer of {names[0]!r} gives the weight one size, so the batch norm behind it must stay",
                got=f"batch_norm='fold' with {len(names)} such weights",
                hint="train with batch_norm='freeze' or 'leave'; export folds it in the end",
            )
        self._distillation = None
        if distill:
            self.set_quant(w_quant=False, a_quant=False)
            teacher = copy.deepcopy(self.model)
            self._distillation = Distillation(teacher, distill, temperature, folded=self.tuned)
        self.set_quant(w_quant=True, a_quant=True)
        if not self.enable_qat:
            own_memory(self.model)
        if batch_norm == "fold":
            fold_quantized(self.model, exact=False)
            self.tuned = True
        self._frozen_norms = batch_norm == "freeze"
        follow(self.quantizers.values(), observers == "update")
        leave_unused(self.quantizers.values())
        self.enable_qat = True
        self.train(self.training)

    def distill(self, loss: Tensor) -> Tensor:
        """The loss of the last forward, mixed with the distance to the float model that ``init_QAT`` asked for."""
        return loss if self._distillation is None else self._distillation.mix(loss)

    def parameter_groups(
        self, lr: float, *, quantizer_lr: float | None = None, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: weights decay, norms and biases do not, what quantizers learn has its own rate."""
        return parameter_groups(self, lr, quantizer_lr=quantizer_lr, weight_decay=weight_decay)

    def train(self, mode: bool = True) -> QuantModel:
        """Switch mode; batch norms that were frozen for training stay as they are."""
        super().train(mode)
        if mode and self._frozen_norms:
            for norm in batch_norms(self.model):
                norm.eval()
        return self

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
        self._distillation, self.enable_qat = None, False
        return freeze_weights(self.model)

    def thaw(self) -> list[str]:
        """Make float weights of frozen ones, with the numbers they have; returns the names of those weights."""
        return thaw_weights(self.model)

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
        self,
        dummy_data: Any,
        name: str | os.PathLike[str],
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        dynamic_axes: Mapping[str, Any] | None = None,
        opset_version: int | None = None,
        verbose: bool = False,
        extra_info: bool = False,
        **options: Any,
    ) -> Any:
        """Write an ONNX file with integer weights, run it, and compare it with this model tensor by tensor.

        The arguments, ``check=False`` among the ``options``, and the report that comes back are those of
        ``sparsebit.export.export_onnx``. What is compared are the first calibration samples, if they are at hand.
        Quantizers are exported as they are switched: call ``set_quant`` first.
        """
        recorded = crop_like(self._sample, dummy_data) if self._sample is not None else None
        if recorded is not None:
            options.setdefault("calls", [recorded])
        return call_above(
            "sparsebit.export.export_onnx",
            self,
            dummy_data,
            name,
            input_names,
            output_names,
            dynamic_axes,
            opset_version,
            verbose,
            extra_info,
            **options,
        )

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
        in the middle of training goes on as ``init_QAT`` had set it up, without another call of it; whether it is in
        training mode is up to the model that is passed, and ``train()``.
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

    def _weight(self, name: str) -> Tensor:
        planned = {tensor.name: tensor.producer for tensor in self.plan.weights()}
        if name in planned:
            return fetch_tensor(self.model, planned[name])
        owner = next(
            m for m in self.model.modules() if getattr(m, "weight_quantizer", None) is self.quantizers[name]
        )
        weight = owner.weight
        assert isinstance(weight, Tensor)
        return weight


def _require_asym(asym: bool, w_quant: bool, a_quant: bool) -> None:
    if (w_quant or a_quant) and not asym:
        raise SparsebitError(
            "w_quant and a_quant say what is quantized in front of each layer, which only asym=True looks at",
            hint="pass asym=True, or switch quantization on afterwards with set_quant()",
        )
