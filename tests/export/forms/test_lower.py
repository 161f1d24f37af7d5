"""Every way a tensor can be quantized, through the file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from sparsebit.export.proof.file_side import stored_weights
from sparsebit.quantization import QuantModel
from sparsebit.quantization.quantizers import QUANTIZERS, Uniform, register_quantizer
from tests.export.nets import Residual, Tokens, config, initializers, op_types, quantized

FLOAT_INPUTS = {"bits": 0}
WAYS: dict[str, dict[str, Any]] = {
    "e4m3": {"dtype": "fp8_e4m3", "scheme": "per-tensor-symmetric"},
    "e5m2": {"dtype": "fp8_e5m2", "scheme": "per-tensor-symmetric"},
    "int8": {},
    "int4": {"bits": 4},
    "float": FLOAT_INPUTS,
}
SETTINGS: dict[str, tuple[type[nn.Module], dict[str, Any], str, set[int]]] = {
    # net, config, backend, ONNX types of the codes in the file
    "int8": (Residual, config(), "onnxruntime", {2, 3}),
    "signed activations": (Residual, config(a={"scheme": "per-tensor-symmetric"}), "onnxruntime", {2, 3}),
    "affine weights": (Residual, config(w={"scheme": "per-channel-affine"}), "onnxruntime", {2}),
    "per tensor": (Residual, config(w={"scheme": "per-tensor-symmetric"}), "onnxruntime", {2, 3}),
    "4-bit weights": (Residual, config(w={"bits": 4}), "onnxruntime", {2, 22}),
    "2 bits": (Residual, config(w={"bits": 2}, a={"bits": 2}), "onnxruntime", {2, 3}),
    "3 and 7 bits": (Tokens, config(w={"bits": 3}, a={"bits": 7}), "onnxruntime", {2, 3}),
    "5 and 6 bits": (
        Tokens,
        config(w={"bits": 5}, a={"bits": 6, "scheme": "per-tensor-symmetric"}),
        "onnxruntime",
        {2, 3},
    ),
    "16 bits": (Residual, config(w={"bits": 16}, a={"bits": 16}), "virtual", {4, 5}),
    "10 and 12 bits": (Tokens, config(w={"bits": 10}, a={"bits": 12}), "virtual", {4, 5}),
    "groups": (
        Tokens,
        config(w={"bits": 4, "scheme": "per-group-affine", "group_size": 16}, a=FLOAT_INPUTS),
        "onnxruntime",
        {21},
    ),
    "ragged groups": (
        Tokens,
        config(w={"bits": 4, "scheme": "per-group-symmetric", "group_size": 24}, a=FLOAT_INPUTS),
        "virtual",
        {22},
    ),
    "groups of a convolution": (
        Residual,
        config(w={"bits": 4, "scheme": "per-group-symmetric", "group_size": 4}, a=FLOAT_INPUTS),
        "virtual",
        {22},
    ),
    "activations per channel": (Residual, config(a={"scheme": "per-channel-affine"}), "virtual", {2, 3}),
    "tokens": (Tokens, config(a={"scheme": "per-token-symmetric"}), "virtual", {3}),
    "affine tokens": (Tokens, config(a={"scheme": "per-token-affine"}), "virtual", {3}),
    "float8": (
        Tokens,
        config(
            w={"dtype": "fp8_e4m3", "scheme": "per-tensor-symmetric"},
            a={"dtype": "fp8_e4m3", "scheme": "per-tensor-symmetric"},
        ),
        "virtual",
        {17},
    ),
    **{
        f"float8 {w} beside {a}": (net, config(w=WAYS[w], a=WAYS[a]), "virtual", types)
        for net, w, a, types in (
            (Residual, "e4m3", "e4m3", {17}),
            (Residual, "e5m2", "e5m2", {19}),
            (Residual, "int8", "e4m3", {3}),
            (Tokens, "int8", "e4m3", {3}),
            (Tokens, "int4", "e4m3", {22}),
            (Residual, "e4m3", "int8", {2, 17}),
            (Tokens, "e4m3", "int8", {2, 17}),
            (Tokens, "e4m3", "float", {17}),
        )
    },
}
TYPES = {2, 3, 4, 5, 17, 18, 19, 20, 21, 22, 25, 26}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_file_holds_the_right_types_and_computes_the_right_codes(name: str, tmp_path: Path) -> None:
    net, setting, backend, types = SETTINGS[name]
    x = torch.randn(2, 3, 8, 8) if net is Residual else torch.randn(2, 5, 32)
    qmodel = quantized(net(), x, {**setting, "BACKEND": backend})
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", extra_info=True)
    onnx.checker.check_model(str(done.path), full_check=True)
    report = check(qmodel.model, done, [((x,), {}), ((2 * x[:1],), {})])
    assert report.ok, report
    assert {
        t.data_type for t in initializers(done.path).values() if t.name.endswith(("codes", "transposed"))
    } & TYPES <= types
    assert {t.name for t in report.tensors} == set(done.tensors)


def test_narrow_activations_are_clipped_to_their_range(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x, config(a={"bits": 4}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((100 * x,), {})])  # far outside the range that was measured
    assert report.ok, report
    assert op_types(done.path).count("Clip") == len(
        [name for name in done.tensors if not name.endswith("weight")]
    )


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)


def test_grouped_transposed_convolutions_keep_a_scale_for_each_channel(tmp_path: Path) -> None:
    x = torch.randn(2, 4, 5, 5)
    qmodel = quantized(Transposed(), x, config(BACKEND="virtual"))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert check(qmodel.model, done, [((x,), {})]).ok


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(16, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layer(self.layer(self.embedding(ids)))
        return nn.functional.linear(x, self.embedding.weight)


def test_a_weight_used_twice_is_stored_once(tmp_path: Path) -> None:
    ids = torch.randint(16, (2, 5))
    qmodel = QuantModel(Shared().eval(), config(BACKEND="virtual"), example_inputs=(ids,))
    qmodel.calibrate([ids], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    done = export_graph(qmodel.model, (ids,), path=tmp_path / "net.onnx")
    stored = [t for t in initializers(done.path).values() if t.name.startswith("layer.weight.codes")]
    assert len(stored) == 1
    assert check(qmodel.model, done, [((ids,), {})]).ok


def test_equal_constants_are_one_initializer(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    done = export_graph(
        quantized(Residual(), x, config(a={"scheme": "per-tensor-symmetric"})).model,
        (x,),
        path=tmp_path / "net.onnx",
    )
    scalars = [t for t in initializers(done.path).values() if t.data_type == 2 and not t.dims]
    assert len(scalars) == 2  # every zero point and lower bound is 128, every upper bound 255


@pytest.fixture
def shrinking() -> Any:
    """A user's quantizer that does something to the tensor before it is snapped."""

    @register_quantizer
    class Shrinking(Uniform):
        TYPE = "shrinking"

        def prepare(self, x: Tensor) -> Tensor:
            return torch.tanh(x) if self.side == "W" else x.clamp(-1, 1)

    yield "shrinking"
    QUANTIZERS.remove("shrinking")


def test_what_a_quantizer_does_before_snapping_is_exported(tmp_path: Path, shrinking: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    setting = config()
    for side in ("W", "A"):
        setting[side]["QUANTIZER"]["TYPE"] = shrinking
    torch.manual_seed(1)
    net = Residual()
    with torch.no_grad():
        net.stem.weight.mul_(16)
    qmodel = quantized(net, 3 * x, setting)
    done = export_graph(qmodel.model, (3 * x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((3 * x,), {})])
    assert report.ok, report
    weight = dict(stored_weights(onnx_ir.load(done.path)))["stem.weight"]
    assert np.abs(weight).max() <= 1 < float(net.stem.weight.detach().abs().max())
