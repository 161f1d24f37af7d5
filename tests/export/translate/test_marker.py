"""Markers: what stands where a quantizer was, and everything that is known of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sparsebit.export import ExportError
from sparsebit.export.translate.marker import (
    Markers,
    code_tensor,
    mark,
    mark_tensor,
    quantizers_of,
    tensor_label,
    unrounded_codes,
)
from sparsebit.quantization import QuantModel
from sparsebit.quantization.switches import substituted
from tests.export.nets import config, quantized

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def model(**a: object) -> QuantModel:
    torch.manual_seed(0)
    return quantized(nn.Sequential(nn.Linear(4, 2)), X, config(a=a) | {"BACKEND": "virtual"})


def test_a_marker_changes_nothing_and_is_seen_by_tracers() -> None:
    assert torch.equal(mark(X, "key"), X)
    traced = make_fx(lambda x: mark(x, "key") + 1)(X)
    assert "torch.ops.sparsebit.mark.default" in traced.code and "'key'" in traced.code


def test_every_quantized_tensor_is_written_down_once() -> None:
    qmodel, markers = model(), Markers()
    with substituted(quantizers_of(qmodel), markers.note):
        noted = qmodel(X)
    assert torch.equal(noted, qmodel(X)) and set(markers.tensors) == set(qmodel.quantizers)
    weight, activation = markers.tensors["0.weight"], markers.tensors["input_1"]
    assert weight.codes is not None and torch.equal(
        weight.codes, code_tensor(qmodel.quantizers["0.weight"], qmodel.weights()["0.weight"])
    )
    assert activation.codes is None and activation.per_tensor and not weight.per_tensor
    quantizer = qmodel.quantizers["input_1"]
    rounded = unrounded_codes(quantizer, X).round().clamp(0, 255)
    assert torch.equal(rounded, code_tensor(quantizer, X).float())


def test_tokens_are_snapped_by_plain_operators() -> None:
    quantizer = model(scheme="per-token-symmetric").quantizers["input_1"]
    assert torch.equal(mark_tensor(quantizer, X), quantizer.snap(X))
    assert [tensor_label("x", call) for call in (0, 2)] == ["x", "x@2"]


def test_what_cannot_be_written_is_refused() -> None:
    qmodel = model()
    quantizer = qmodel.quantizers["input_1"]
    quantizer.set_grid(torch.tensor([-1.0]), torch.tensor([0.0]))
    with pytest.raises(ExportError, match="a scale of 'input_1' is not a positive number"):
        Markers().note(quantizer, X)
    quantizer.name = "0.weight"
    with pytest.raises(ExportError, match="two quantizers have the same name"):
        quantizers_of(qmodel)
    fresh = QuantModel(nn.Sequential(nn.Linear(4, 2)), "int8_onnxruntime", X)
    for one in fresh.quantizers.values():
        one.use_quant = True
    with pytest.raises(ExportError, match=r"has no scale yet(.|\n)*call calibrate"):
        quantizers_of(fresh)
