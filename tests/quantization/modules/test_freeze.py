"""Frozen weights: the same numbers from fewer bytes, wherever the weight is and whatever happens to the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.numerics.packed import PackedTensor
from sparsebit.quantization import QuantModel
from sparsebit.quantization.modules.freeze import frozen_names, packed_state
from sparsebit.quantization.quantizers import Frozen
from sparsebit.storage.tensor_file import Deferred


class Functional(nn.Module):
    """A linear layer whose weight is a parameter of the module around it, and is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, self.weight)), self.weight)


class Tied(nn.Module):
    """An embedding and an output layer that share one table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.embedding(x)))


def images() -> Tensor:
    return torch.randn(4, 6, 8, 8)


CASES: dict[str, tuple[Any, Any]] = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), images),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(6, 12, 3, groups=3), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=12)),
        images,
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(6, 8, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3)),
        images,
    ),
    "linear": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), images),
    "functional": (Functional, lambda: torch.randn(5, 12)),
    "functional inside": (
        lambda: nn.Sequential(nn.Linear(12, 12), nn.Sequential(Functional())),
        lambda: torch.randn(5, 12),
    ),
    "tied": (Tied, lambda: torch.randint(20, (3, 5))),
    "attention": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda: torch.randn(2, 5, 16),
    ),
}


def config(bits: int = 8, scheme: str = "per-channel-symmetric", **quantizer: Any) -> dict[str, Any]:
    group = {"GROUP_SIZE": 4} if "group" in scheme else {}
    return {
        "BACKEND": "virtual",
        "W": {"QSCHEME": scheme, **group, "QUANTIZER": {"TYPE": "uniform", "BIT": bits, **quantizer}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "uniform", "BIT": 8}},
    }


def quantized(case: str, settings: dict[str, Any] | None = None) -> tuple[QuantModel, Tensor]:
    build, data = CASES[case]
    torch.manual_seed(0)
    x = data()
    qmodel = QuantModel(build().eval(), settings or config(), example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel, x


def weight_bytes(qmodel: QuantModel) -> int:
    """Memory of all parameters and buffers, each storage counted once."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in (*qmodel.parameters(), *qmodel.buffers())
    }
    return sum(storages.values())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheme", ["per-channel-symmetric", "per-tensor-affine", "per-group-affine"])
def test_outputs_stay_bit_identical(case: str, scheme: str) -> None:
    qmodel, x = quantized(case, config(4, scheme))
    weights = [name for name, q in qmodel.quantizers.items() if q.side == "W"]
    expected, before = qmodel(x), weight_bytes(qmodel)
    names = qmodel.freeze()
    assert sorted(names) == sorted(weights) == frozen_names(qmodel.model)
    assert torch.equal(qmodel(x), expected)
    assert weight_bytes(qmodel) < before
    assert not any(p.dim() > 1 and p.requires_grad for n, p in qmodel.model.named_parameters() if n in names)
    assert qmodel.freeze() == []
    # A copy, and one that is moved, are frozen too.
    twin = copy.deepcopy(qmodel).to("cpu")
    assert torch.equal(twin(x), expected)
    assert frozen_names(twin.model) == frozen_names(qmodel.model)
    assert twin.state_dict().keys() == qmodel.state_dict().keys()
    # A state goes over to another frozen model.
    other, _ = quantized(case, config(4, scheme))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    other.freeze()
    other.load_state_dict(qmodel.state_dict())
    assert torch.equal(other(x), expected)
    assert sorted(qmodel.thaw()) == sorted(names)
    assert torch.equal(qmodel(x), expected)
    assert frozen_names(qmodel.model) == []


def test_tied_weights_are_held_once_and_stay_tied() -> None:
    qmodel, _ = quantized("tied")
    (name,) = qmodel.freeze()
    held = [module for module in qmodel.model.modules() if isinstance(module, Frozen)]
    assert len(held) == 1 and held[0].name == name
    qmodel.thaw()
    assert qmodel.model.embedding.weight is qmodel.model.head.weight


@pytest.mark.parametrize(("bits", "most"), [(8, 0.27), (4, 0.15)])
def test_memory_falls_with_the_bits(bits: int, most: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    x = torch.randn(2, 256)
    qmodel = QuantModel(net, config(bits), example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    in_float = sum(p.numel() * p.element_size() for p in net.parameters())
    qmodel.freeze()
    assert weight_bytes(qmodel) <= most * in_float


@pytest.mark.parametrize("kind", ["lsq", "dorefa", "adaround"])
def test_what_a_quantizer_does_before_it_snaps_is_in_the_codes(kind: str) -> None:
    qmodel, x = quantized("conv", config(4, TYPE=kind))
    expected = qmodel(x)
    qmodel.freeze()
    assert torch.equal(qmodel(x), expected)
    qmodel.thaw()
    assert torch.equal(qmodel(x), expected)


def test_half_precision_follows_the_model() -> None:
    qmodel, x = quantized("linear")
    qmodel.freeze()
    half = copy.deepcopy(qmodel).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    assert half.quantizers["0.weight"].scale.dtype == torch.float32


def test_what_needs_floats_is_refused_with_the_way_out() -> None:
    qmodel, x = quantized("conv")
    qmodel.set_quant(w_quant=False, a_quant=True)
    with pytest.raises(
        SparsebitError, match=r"(?s)freeze\(\) needs quantized weights.*'0\.weight'.*set_quant"
    ):
        qmodel.freeze()
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.freeze()
    with pytest.raises(SparsebitError, match=r"(?s)calibration needs float weights, and 2 .*thaw\(\)"):
        qmodel.calibrate([x], progress=False)
    with pytest.raises(SparsebitError, match=r"(?s)training needs float weights.*thaw\(\)"):
        qmodel.init_QAT()
    with pytest.raises(SparsebitError, match=r"(?s)is frozen and cannot be switched to float.*thaw\(\)"):
        qmodel.set_quant(w_quant=False, a_quant=False)
    expected = qmodel(x)
    with pytest.raises(SparsebitError, match=r"(?s)is frozen and cannot be measured again"):
        qmodel.quantizers["0.weight"].set_bit(4)
    assert torch.equal(qmodel(x), expected)
    qmodel.thaw()
    qmodel.calibrate([x], progress=False)


def test_a_weight_that_something_reads_in_float_stays() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight) * self.weight.sum()

    torch.manual_seed(0)
    x = torch.randn(3, 6)
    qmodel = QuantModel(Both().eval(), config(), example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    expected = qmodel(x)
    assert qmodel.freeze() == []
    assert torch.equal(qmodel(x), expected)


def test_errors_are_still_measured_and_shown() -> None:
    qmodel, x = quantized("conv")
    qmodel.freeze()
    with pytest.warns(UserWarning, match="shows the errors of the activations alone"):
        errors = qmodel.get_quantization_error(x)
    assert set(errors) == {"0", "2"} and all(float(error) >= 0 for error in errors.values())
    assert "0.weight: int8 per-channel-symmetric" in repr(qmodel)


def test_a_frozen_model_is_exported_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    qmodel, x = quantized("conv")
    qmodel.export_onnx(x, tmp_path / "a.onnx")
    qmodel.freeze()
    qmodel.export_onnx(x, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert frozen_names(qmodel.model)


def test_saving_packs_one_weight_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packed weights at once, or their memory left behind, would be another part of the model."""
    qmodel, _ = quantized("conv")
    packed: list[str] = []
    make = PackedTensor.of
    monkeypatch.setattr(PackedTensor, "of", staticmethod(lambda x, grid: packed.append("") or make(x, grid)))
    state, names = packed_state(qmodel.model)
    assert names and not packed
    waiting = [value for value in state.values() if isinstance(value, Deferred)]
    assert len(waiting) == len(names)
    assert all(one.detach().shape == one.shape for one in waiting) and len(packed) == len(names)
