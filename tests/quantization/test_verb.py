"""The short verb: a model and data in, a quantized model out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.batches import DataError
from sparsebit.errors import SparsebitError
from sparsebit.quantization.verb import quantize
from tests.quantization.nets import images, residual


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, image: Tensor, meta: Tensor) -> Tensor:
        y: Tensor = self.layer(image) * meta
        return y


def test_the_model_is_quantized_and_the_users_is_not_changed() -> None:
    net = residual()
    exact = net(images())
    batches = [(images(seed=seed), torch.zeros(4)) for seed in range(3)]
    qmodel = quantize(net, batches, progress=False)
    assert qmodel.plan.target == "onnxruntime"
    assert 0 < (qmodel(images()) - exact).norm() < 0.05 * exact.norm()
    assert torch.equal(net(images()), exact)


def test_a_generator_gives_its_first_batch_to_capture_and_to_calibration() -> None:
    whole = quantize(residual(), [images(seed=0) * 3, images(seed=1)], progress=False)
    once = quantize(residual(), (images(seed=0) * 3, images(seed=1)).__iter__(), progress=False)
    assert whole.quantizers["x"].scale == once.quantizers["x"].scale
    assert (
        quantize(residual(), iter([images(), images() * 9]), batches=1, progress=False)
        .quantizers["x"]
        .calibrated
    )


def test_two_inputs_without_labels_dicts_and_feed() -> None:
    x, meta = torch.randn(8, 4), torch.rand(8, 3)
    found = [
        quantize(TwoInputs().eval(), data, "int8_onnxruntime", feed=feed, progress=False)
        for data, feed in (
            ([(x, meta)], None),
            ([{"image": x, "meta": meta, "labels": torch.zeros(8)}], None),
            ([{"pixels": x, "other": meta}], lambda batch: (batch["pixels"], batch["other"])),
        )
    ]
    assert all(
        {"image", "meta"} <= set(qmodel.inputs.example.kwargs) or len(qmodel.inputs.example.args) == 2
        for qmodel in found
    )
    with pytest.raises(DataError, match=r"takes 2 inputs \(image, meta\), but the batch has 1"):
        quantize(TwoInputs().eval(), [x], progress=False)


def test_the_model_inside_a_wrapper_says_what_it_takes() -> None:
    batches = [(torch.ones(2, 4), torch.ones(2, 3), torch.zeros(2))]  # passes labels on, if it is asked
    assert quantize(nn.DataParallel(TwoInputs()), batches, progress=False).plan.weights()
    compiles = list[object]()
    compiled = torch.compile(TwoInputs(), backend=lambda graph, inputs: compiles.append(graph))
    assert quantize(compiled, batches, progress=False).plan.weights() and not compiles


def test_it_is_a_public_name() -> None:
    assert sparsebit.quantize is quantize


def test_what_is_not_a_model_is_refused_before_the_data_is_read() -> None:
    with pytest.raises(SparsebitError, match=r"takes a torch.nn.Module(.|\n)*a list"):
        quantize([torch.randn(2, 4)], nn.Linear(4, 4))  # type: ignore[arg-type]
