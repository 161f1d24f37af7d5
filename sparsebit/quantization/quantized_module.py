"""A graph with quantizers as a module: shown, switched, frozen, compared and copied."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any, Self, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.batches import ModelInputs, device_of, to_device
from sparsebit.config import QConfig
from sparsebit.display import in_notebook
from sparsebit.errors import SparsebitError, refuse_pickle
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.show import mermaid
from sparsebit.quantization.batch_norm.fold import fold_quantized
from sparsebit.quantization.batch_norm.statistics import has_batch_norm
from sparsebit.quantization.compare import Checker, operator_errors
from sparsebit.quantization.modules.freeze import (
    freeze_weights,
    frozen_names,
    thaw_weights,
)
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.modules.weights import weights_read
from sparsebit.quantization.plan import QuantPlan
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import require_calibrated, switch, switched
from sparsebit.quantization.training.sharded import require_unsharded
from sparsebit.quantization.training.training import Training


class QuantizedModule(nn.Module):
    """The base of ``QuantModel``: the graph, its quantizers, and the methods that need no data.

    Attributes:
        model: the graph; ``qmodel.model.layer1_0_conv1.input_quantizer`` reaches every quantizer by flat name.
        cfg, plan: the config, and the decisions made from it.
        inputs: the inputs of the model, from its example and its signature.
        qat: the options and state of training.
        weights_rounded: whether it was loaded from quantized values, so that the float weights lie on the grid.
    """

    _repr_html_ = in_notebook
    why_not_capture = "change the float model first (prune it), then quantize the result"

    def __init__(self, graph: QuantGraph, config: QConfig, plan: QuantPlan, inputs: ModelInputs) -> None:
        super().__init__()
        self.model, self.cfg, self.plan, self.inputs = graph, config, plan, inputs
        self.qat = Training()
        self.weights_rounded = False
        self._lacks_scales = True
        # A hook, because a module around this one loads its state without calling load_state_dict.
        self.register_load_state_dict_post_hook(type(self)._after_loading)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """The device of the parameters, to which calibration data is moved."""
        return device_of(self, self.cfg.DEVICE)

    @property
    def quantizers(self) -> dict[str, Quantizer]:
        """Every quantizer by the name of its tensor, in the order of the graph module."""
        found = (module for module in self.model.modules() if isinstance(module, Quantizer))
        return {quantizer.name: quantizer for quantizer in found}

    def weights(self) -> dict[str, Tensor]:
        """The float weights that are quantized, by the names of their quantizers; of frozen ones, their numbers."""
        reads = (read for node in self.model.graph.nodes for read in weights_read(self.model, node))
        found = {quantizer: fetch_tensor(self.model, path) for path, quantizer in reads}
        return {q.name: q.snap(weight) if weight.is_meta else weight for q, weight in found.items()}

    @property
    def enable_qat(self) -> bool:
        """Whether ``init_QAT`` was called."""
        return self.qat.started

    def parameter_groups(
        self, lr: float, *, quantizer_lr: float | None = None, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: weights with decay, norms and biases without, quantizers with their own rate."""
        learned = {id(p) for q in self.quantizers.values() for p in q.parameters()}
        weights, small, grids = list[Tensor](), list[Tensor](), list[Tensor]()
        for parameter in self.parameters():
            if parameter.requires_grad:
                kind = grids if id(parameter) in learned else weights if parameter.dim() > 1 else small
                kind.append(parameter)
        groups = [
            {"params": weights, "lr": lr, "weight_decay": weight_decay},
            {"params": small, "lr": lr, "weight_decay": 0.0},
            {"params": grids, "lr": lr if quantizer_lr is None else quantizer_lr, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def __repr__(self) -> str:
        lines = [f"QuantModel for {self.plan.target}: {len(self.quantizers)} quantizers"]
        return "\n".join([*lines, *(f"  {quantizer.describe()}" for quantizer in self.quantizers.values())])

    def dump_mermaid(self, f: TextIO) -> None:
        """Write the graph as a Mermaid flowchart, quantizers included."""
        f.write(mermaid(self.model))

    @property
    def _calibrated(self) -> bool:
        return all(quantizer.calibrated for quantizer in self.quantizers.values())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._lacks_scales = not self._calibrated
        super()._load_from_state_dict(*args, **kwargs)

    def _after_loading(self, keys: object) -> None:
        """A model that got its scales from the state is quantized, as after calibration."""
        if self._lacks_scales and self._calibrated:
            self.set_quant(w_quant=True, a_quant=True)

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the quantizers of weights and of activations on or off; fused ones stay off."""
        if wrong := [on for on in (w_quant, a_quant) if not isinstance(on, int) or on not in (True, False)]:
            raise SparsebitError("set_quant() takes True or False", got=f"{wrong[0]!r:.80}")
        wanted = {q: w_quant if q.side == "W" else a_quant for q in self.quantizers.values()}
        require_calibrated(quantizer for quantizer, on in wanted.items() if on)
        for quantizer, on in wanted.items():
            switch(quantizer, on)

    @contextlib.contextmanager
    def quantized(self) -> Iterator[None]:
        """Inside the block everything is quantized, even if ``set_quant`` switched it off; needs calibration."""
        require_calibrated(self.quantizers.values())
        with switched(self.quantizers.values(), True):
            yield

    def freeze(self) -> list[str]:
        """Store weights as quantized values and drop the floats; returns the names of those weights.

        The model gives the same numbers, bit for bit, and takes as much memory as its quantized weights. It can be run,
        saved, moved and exported; calibration, training and profiles need ``thaw()`` first. A weight stays in float
        if an operator also reads it unquantized, or if its operator is your own ``QuantOpr``.
        """
        require_unsharded(self, "freeze()")
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
        """Turn frozen weights into floats with the same numbers; returns the names of those weights."""
        return thaw_weights(self.model)

    def folded(self) -> QuantGraph:
        """The graph for a runtime: a copy with batch norm folded wherever that does not change results.

        ``export_onnx`` writes this graph. Without batch norm and frozen weights, no copy is made.
        """
        if not has_batch_norm(self.model) and not frozen_names(self.model):
            return self.model
        gm = copy.deepcopy(self.model)
        thaw_weights(gm)
        fold_quantized(gm, exact=True)
        return gm

    def get_quantization_error(
        self, data: Any, checker: Checker = F.mse_loss, is_async: bool = True
    ) -> dict[str, Any]:
        """The error of each quantized operator's result, compared with its float result.

        Args:
            data: the input: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
            checker: a function of (float result, quantized result).
            is_async: True quantizes one operator at a time, so each number is that operator's own error. With False,
                errors accumulate through the model.
        """
        self.warn_of_rounded_weights("get_quantization_error")
        args, kwargs, *_ = to_device(self.inputs.batch(data), self.device)
        return operator_errors(self.model, args, kwargs, checker=checker, alone=is_async)

    def require_float_weights(self, what: str) -> None:
        """Raise if weights are frozen; warn once if the floats were made from quantized values."""
        if names := frozen_names(self.model):
            raise SparsebitError(
                f"{what} needs float weights, and {len(names)} of this model's are frozen",
                got=f"{names[0]!r} among them",
                hint="call thaw() first, which turns the quantized values into floats, or build the model again",
            )
        if self.weights_rounded:
            warnings.warn(
                f"{what} starts from weights that are already quantized, as they were saved; "
                "save(folder, floats=True) keeps the float weights",
                stacklevel=3,
            )
            self.weights_rounded = False

    def warn_of_rounded_weights(self, what: str) -> None:
        """Warn that errors are measured without those of the weights, if the float weights are gone."""
        if self.weights_rounded or frozen_names(self.model):
            warnings.warn(
                f"{what} shows the errors of the activations alone: this model was loaded or frozen without its float "
                "weights; measure before that, or save(folder, floats=True)",
                stacklevel=3,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    __reduce__ = refuse_pickle
