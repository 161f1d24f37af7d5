"""2:4 kernels are given to the layers where they are faster, by a measurement that is made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu.semi_structured import prune
from sparsebit.errors import SparsebitError
from sparsebit.sparse import prune as sparsebit_prune
from sparsebit.sparse import semi_structured as subject
from sparsebit.sparse import use_sparse_kernels
from sparsebit.sparse.compressed_linear import CompressedLinear
from sparsebit.sparse.int8_linear import Int8Linear


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 4))
    with torch.no_grad():
        for index in (0, 2):
            layers[index].weight.copy_(prune(layers[index].weight))
    return layers


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """As on a GPU, with these times for weights of these numbers of outputs: dense, 2:4 and int8."""

    def use(times: dict[int, tuple[float, ...]]) -> list[Any]:
        asked: list[Any] = []

        def measure(
            linear: nn.Linear, layers: list[CompressedLinear], vectors: int, in_cuda_graph: bool
        ) -> tuple[tuple[float, ...], tuple[int, ...]]:
            asked.append((tuple(linear.weight.shape), vectors))
            return times[linear.out_features][: 1 + len(layers)], tuple(range(5, 5 + len(layers)))

        monkeypatch.setattr(subject, "measure_products", measure)
        monkeypatch.setattr(
            subject,
            "why_dense",
            lambda weight: "" if subject.is_two_of_four(weight) else "dense: the weight is not 2:4",
        )
        return asked

    return use


def test_only_layers_where_it_is_faster_are_replaced(on_a_gpu: Callable[..., list[Any]]) -> None:
    model = net().train()
    asked = on_a_gpu({128: (30.0, 20.0), 64: (10.0, 25.0)})
    weights = {name: module.weight for name, module in model.named_children() if hasattr(module, "weight")}
    x = torch.randn(3, 5, 64)
    expected = model(x)
    report = use_sparse_kernels(model, x)
    assert asked == [((128, 64), 15), ((64, 128), 15)]
    assert [(layer.layer, layer.used) for layer in report.layers] == [("0", True), ("2", False), ("3", False)]
    assert isinstance(model[0], CompressedLinear) and model[0].algorithms == {15: 5}
    assert model[2].weight is weights["2"] and model[3].weight is weights["3"]
    assert torch.equal(model(x), expected) and model.training and model[1].training
    text = str(report)
    assert "2:4 kernels in 1 of 3 linear layers" in text and "the weight is not 2:4" in text
    row = next(line for line in text.splitlines() if "128x64" in line)
    assert "15" in row and "30.0" in row and "20.0" in row and row.rstrip(" │").endswith("2:4")


def test_a_layer_that_is_called_twice_counts_with_both_calls(on_a_gpu: Callable[..., list[Any]]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(64, 64), nn.Linear(64, 128)
            for layer in (self.used, self.unused):
                layer.weight.data = prune(layer.weight.data)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.used(x)[:2])

    on_a_gpu({64: (10.0, 4.0)})
    used, unused = use_sparse_kernels(Twice(), torch.randn(8, 64)).layers
    assert used.vectors == 10 and used.dense_us == 20.0 and used.sparse_us == 8.0 and used.used
    assert not unused.used and unused.reason == "dense: the example does not use it"


def test_int8_where_it_is_allowed_and_the_fastest(on_a_gpu: Callable[..., list[Any]]) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()
            self.first = self.body[0]  # the same layer by another name

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    times = {128: (30.0, 20.0, 10.0), 64: (30.0, 20.0, 25.0), 4: (9.0, 8.0, 1.0)}
    on_a_gpu(times)
    x = torch.randn(3, 5, 64)
    assert not any(layer.int8 for layer in use_sparse_kernels(Shared(), x).layers)
    model = Shared().eval()
    model.body[3].weight.data = prune(model.body[3].weight.data)
    expected = model(x)
    report = use_sparse_kernels(model, x, int8=True)
    first, second, last = report.layers
    assert first.int8 and first.used and first.int8_us == 10.0
    assert isinstance(model.body[0], Int8Linear) and model.first is model.body[0] and not model.first.training
    assert second.used and not second.int8 and second.int8_us == 25.0
    assert last.used and last.int8_us is None  # 4 outputs are too few for the int8 kernel
    assert "2:4 int8" in next(line for line in str(report).splitlines() if "128x64" in line)
    assert 0 < (model(x) - expected).norm() < 0.02 * expected.norm()
    (layer,) = use_sparse_kernels(net()[0], x, int8=True).layers
    assert not layer.used and "nn.Sequential(model)" in layer.reason


def test_only_where_the_model_does_nothing_but_call_the_layer(
    on_a_gpu: Callable[..., list[Any]],
) -> None:
    class Net(nn.Module):
        """Of both layers of torch's encoder, torch reads the weights; the last layer has a hook."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.called, self.hooked = nn.Linear(64, 64), nn.Linear(64, 64)
            self.hooked.register_forward_hook(lambda *_: None)
            for layer in (self.encoder.linear1, self.encoder.linear2, self.called, self.hooked):
                layer.weight.data = prune(layer.weight.data)

        def forward(self, x: Tensor) -> Tensor:
            return self.hooked(self.called(self.encoder(x)))

    on_a_gpu({64: (30.0, 20.0, 10.0), 128: (30.0, 20.0, 10.0)})
    model, x = Net().eval(), torch.randn(2, 5, 64)
    report = use_sparse_kernels(model, x, int8=True)
    reasons = {layer.layer: layer.reason for layer in report.layers}
    assert reasons.pop("called") == "" and reasons.pop("hooked") == "dense: the layer has hooks"
    assert all(
        reasons[f"encoder.linear{index}"].endswith("reads attributes of the layer") for index in (1, 2)
    )
    assert isinstance(model.called, Int8Linear) and type(model.encoder.linear1) is nn.Linear
    with torch.no_grad():
        assert model(x).shape == x.shape


def test_sizes_that_the_kernels_refuse_stay_dense_with_the_reason(
    on_a_gpu: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu({})

    def refuse(*_: Any) -> Any:
        raise RuntimeError("Error original_tensor.shape is not supported!\nmore")

    monkeypatch.setattr(subject, "measure_products", refuse)
    report = use_sparse_kernels(net(), torch.randn(2, 64))
    assert report.layers[0].reason == "dense: Error original_tensor.shape is not supported!"
    assert not any(layer.used for layer in report.layers)


def test_refused_without_a_gpu_a_2_4_weight_an_example_or_a_layer(on_a_gpu: Callable[..., list[Any]]) -> None:
    with pytest.raises(
        SparsebitError,
        match=r"(?s)no linear layer can have 2:4 kernels.*got: *0 \(on cpu, not on a GPU\), 2 .*next: *prune it",
    ):
        use_sparse_kernels(net(), torch.randn(2, 64))
    on_a_gpu({})
    with pytest.raises(SparsebitError, match=r"got: *0 \(the weight is not 2:4\)"):
        use_sparse_kernels(nn.Sequential(nn.Linear(64, 4)), torch.randn(2, 64))
    with pytest.raises(
        SparsebitError, match=r"(?s)depends on how many vectors.*use_sparse_kernels\(model, batch\)"
    ):
        use_sparse_kernels(net())
    with pytest.raises(SparsebitError, match=r"this model has no nn.Linear layer"):
        use_sparse_kernels(nn.ReLU(), torch.randn(2))


def test_what_pruning_leaves_is_found() -> None:
    config = {"SPARSER": {"TYPE": "nm", "STRATEGY": "l1norm", "CLASSIFIER": True}}
    pruned = sparsebit_prune(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)), config, [torch.ones(2, 64)]
    )
    found = [module for module in pruned.modules() if subject.is_plain_linear(module)]
    assert len(found) == 2 and all(subject.is_two_of_four(module.weight) for module in found)


def test_two_of_four() -> None:
    assert subject.is_two_of_four(prune(torch.randn(6, 8))) and subject.is_two_of_four(torch.zeros(2, 4))
    assert not subject.is_two_of_four(torch.ones(2, 6)) and not subject.is_two_of_four(torch.ones(2, 8))


def test_the_fastest_algorithm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [9.0, 7.0, 3.0, 4.0]

    def repeat(layer: CompressedLinear, x: Tensor, in_cuda_graph: bool) -> Callable[[], Any]:
        (algorithm,) = layer.algorithms.values()
        if algorithm >= len(times):
            raise RuntimeError("no such algorithm")
        return lambda: times[algorithm]

    monkeypatch.setattr(subject, "_repeat", repeat)
    monkeypatch.setattr(subject, "_time", lambda function: function())
    layer, x = CompressedLinear(torch.ones(4, 4), None), torch.ones(3, 4)
    assert subject.find_algorithm(layer, x) == 2
    times.clear()
    with pytest.raises(RuntimeError, match="no such algorithm"):
        subject.find_algorithm(layer, x)


@pytest.mark.gpu
@pytest.mark.parametrize("in_cuda_graph", [False, True])
def test_the_real_kernels_give_the_same_results_and_a_time_is_measured_once(in_cuda_graph: bool) -> None:
    subject._measured.clear()
    layers = nn.Sequential(nn.Linear(4096, 11008), nn.ReLU(), nn.Linear(11008, 4096), nn.Linear(4096, 11008))
    layers = layers.to("cuda", torch.bfloat16).eval()
    with torch.no_grad():
        for index in (0, 2, 3):
            layers[index].weight.copy_(prune(layers[index].weight))
        x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        expected = layers(x)
        report = use_sparse_kernels(layers, x, in_cuda_graph=in_cuda_graph)
        assert len(subject._measured) == 2 and report.layers[0].dense_us == report.layers[2].dense_us
        for layer in report.layers:
            assert layer.dense_us and layer.sparse_us and layer.used == (layer.sparse_us < layer.dense_us)
        # Without launches the 2:4 kernels need two thirds of the time; with them it depends on the processor.
        assert not in_cuda_graph or all(layer.used for layer in report.layers)
        torch.testing.assert_close(layers(x), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("wrong", [3, None, {"a": nn.Linear(4, 4)}])
def test_what_is_not_a_module_is_refused(wrong: Any) -> None:
    with pytest.raises(SparsebitError, match=r"use_sparse_kernels takes a torch\.nn\.Module"):
        use_sparse_kernels(wrong, torch.zeros(1, 4))
