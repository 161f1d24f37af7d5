"""``profile``: run data through the float and the quantized model, and measure the error of each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sparsebit.analysis.profiling.agreement import Agreement, float_outputs, outputs_agree
from sparsebit.analysis.profiling.calls import active, calls_of, only
from sparsebit.analysis.profiling.error_profile import ErrorProfile, LayerError
from sparsebit.analysis.profiling.tensor_error import TensorError, TensorSums
from sparsebit.graph.ops import op_name
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.quantization.compare import compare_operators


def profile(
    qmodel: QuantModel, data: Any, batches: int | None = None, *, progress: bool | None = None
) -> ErrorProfile:
    """Compare every layer of a calibrated model with float, alone and with quantized inputs.

    Args:
        qmodel: calibrated; its quantizers may be on or off, and are restored.
        data: a tensor, or batches as ``QuantModel.calibrate`` takes them.
        batches: how many of them to use; all by default.
        progress: whether to show progress; by default only on a terminal.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        >>> images = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
        >>> qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(images,))
        >>> qmodel.calibrate([images], progress=False)
        >>> errors = profile(qmodel, images)
        >>> [layer.name for layer in errors.layers], errors.output.sqnr_db > 20
        (['0', '2'], True)
    """
    alone: dict[str, Agreement] = {}
    together: dict[str, Agreement] = {}
    output, count = Agreement(), 0
    sums = {name: TensorSums(quantizer) for name, quantizer in active(qmodel).items()}
    qmodel.warn_of_rounded_weights("profile")
    for args, kwargs in calls_of(qmodel, data, batches, "profiling", progress):
        count += 1
        with _watched(sums):
            _add(alone, compare_operators(qmodel.model, args, kwargs, alone=True))
        _add(together, compare_operators(qmodel.model, args, kwargs, alone=False))
        with only(qmodel, ()):
            exact = float_outputs(qmodel(*args, **kwargs))
        with only(qmodel, sums):
            output += outputs_agree(exact, qmodel(*args, **kwargs))
    with torch.no_grad():
        weights = qmodel.weights()
        for name, seen in sums.items():
            if seen.quantizer.side == "W":
                seen.add(weights[name])
    tensors = {name: error for name, seen in sums.items() if (error := seen.finish()) is not None}
    return ErrorProfile(
        layers=tuple(_layers(qmodel, alone, together, tensors)),
        tensors=tuple(tensors.values()),
        output=output,
        left_float={edge.consumer: edge.reason for edge in qmodel.plan.left_float()},
        batches=count,
    )


def _add(sums: dict[str, Agreement], results: Iterator[Any]) -> None:
    for node, exact, rounded in results:
        if exact.is_floating_point():
            sums[node.name] = sums.get(node.name, Agreement()) + Agreement.of(exact, rounded)


@contextlib.contextmanager
def _watched(sums: dict[str, TensorSums]) -> Iterator[None]:
    """Add activations to the sums. The comparison first runs each quantizer, switched off, on the float stream."""

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Quantizer)
        if not module.use_quant:
            sums[module.name].add(inputs[0])

    with contextlib.ExitStack() as hooks:
        for seen in sums.values():
            if seen.quantizer.side == "A":
                hooks.enter_context(seen.quantizer.register_forward_pre_hook(see))
        yield


def _layers(
    qmodel: QuantModel,
    alone: dict[str, Agreement],
    together: dict[str, Agreement],
    tensors: dict[str, TensorError],
) -> Iterator[LayerError]:
    read: dict[str, list[TensorError]] = {}
    for planned in qmodel.plan.tensors:
        for consumer in planned.consumers:
            if planned.name in tensors:
                read.setdefault(consumer, []).append(tensors[planned.name])
    names: set[str] = set()
    for node in qmodel.model.graph.nodes:
        if node.name not in alone:
            continue
        name = str(node.target) if node.op == "call_module" else node.name
        name = node.name if name in names else name  # a module that is called twice
        names.add(name)
        mine = read.get(node.name, [])
        if not mine and node.op == "call_module":  # it has its own quantizers
            inside = [
                m for m in qmodel.model.get_submodule(str(node.target)).modules() if isinstance(m, Quantizer)
            ]
            mine = [tensors[quantizer.name] for quantizer in inside if quantizer.name in tensors]
        yield LayerError(
            name=name,
            node=node.name,
            op=op_name(qmodel.model, node) or "unknown",
            alone=alone[node.name],
            together=together[node.name],
            weight=next((tensor for tensor in mine if tensor.side == "W"), None),
            inputs=tuple(tensor for tensor in mine if tensor.side == "A"),
        )
