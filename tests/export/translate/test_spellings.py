"""Functions spelled by others compute what torch's own compute, also inside of modules and in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsebit import QuantModel, capture
from sparsebit.export import export_graph
from sparsebit.export.translate.spellings import SPELLINGS, TIES, Spelled
from sparsebit.runtime import OnnxFile
from tests.export.nets import op_types

VECTORS = [torch.arange(3.0), torch.arange(4.0)]
IMAGES = [torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
X, ROWS = IMAGES[0], IMAGES[0][..., 0]
HEADS = torch.randn(2, 6, 5, 8, generator=torch.Generator().manual_seed(2))
GROUPED = (torch.rand(6, 8), torch.rand(3, 8, 4), torch.tensor([2, 2, 6], dtype=torch.int32))
GROUPED_MM = [
    getattr(owner, name)
    for owner, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
    if hasattr(owner, name)
]
ENDS = torch.tensor([-2.0, -1e-9, -0.0, 0.0, 1e-9, 0.5, 3.0])
MASK = torch.ones(6, 6).tril().bool()

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (torch.hstack, (VECTORS,), {}),
    (torch.hstack, (IMAGES,), {}),
    (torch.vstack, (IMAGES,), {}),
    (torch.vstack, ([VECTORS[0], VECTORS[0]],), {}),
    (torch.dstack, (IMAGES,), {}),
    (torch.tensor_split, (X, 3, 2), {}),
    (torch.tensor_split, (VECTORS[1], (1, -1)), {}),
    (torch.Tensor.tensor_split, (VECTORS[1], 3), {}),
    (torch.tile, (X, (2, 1)), {}),
    (torch.expm1, (torch.tensor([-90.0, -3.0, -1e-6, 0.0, 1e-7, 0.9, 5.0, 80.0]),), {}),
    (torch.hypot, tuple(IMAGES), {}),
    (torch.atan2, (ENDS[:, None], ENDS[None]), {}),
    (F.threshold, (X, 0.3, -1.0), {}),
    (F.channel_shuffle, (X, 3), {}),
    (F.rms_norm, (X, (5, 7)), {"weight": torch.rand(5, 7), "eps": 1e-3}),
    (F.rms_norm, (X, (7,)), {}),
    (F.local_response_norm, (X, 3), {}),
    (F.local_response_norm, (ROWS, 4), {"alpha": 0.5, "beta": 0.5, "k": 2.0}),
    (F.batch_norm, (X, None, None, torch.rand(6), torch.rand(6), True), {}),
    (F.bilinear, (ROWS, ROWS, torch.rand(4, 5, 5), torch.rand(4)), {}),
    (F.scaled_dot_product_attention, (ROWS, ROWS, ROWS), {}),
    (F.scaled_dot_product_attention, (ROWS, ROWS, ROWS, MASK), {"scale": 0.5}),
    (F.scaled_dot_product_attention, (ROWS, ROWS, ROWS), {"attn_mask": MASK.expand(2, 6, 6)}),
    (F.scaled_dot_product_attention, (ROWS, ROWS, ROWS), {"is_causal": True}),
    (F.scaled_dot_product_attention, (HEADS, HEADS[:, :2], HEADS[:, :2]), {"enable_gqa": True}),
    *((function, (GROUPED[0], GROUPED[1]), {"offs": GROUPED[2]}) for function in GROUPED_MM),
    (torch.histc, (torch.tensor([-1.0, 0, 3, 3, 14, 28, 29]), 29), {"min": 0, "max": 28}),
    (torch.Tensor.histc, (X, 7, -1, 2), {}),
    (F.adaptive_avg_pool1d, (ROWS, 3), {}),
    (F.adaptive_avg_pool2d, (X, (3, None)), {}),
    (F.adaptive_avg_pool3d, (IMAGES[0].unsqueeze(1), 4), {}),
    (F.adaptive_max_pool1d, (ROWS, 2), {}),
    (F.adaptive_max_pool2d, (X, (2, 3)), {}),
    (F.adaptive_max_pool3d, (IMAGES[0].unsqueeze(1), 4), {}),
]


@pytest.mark.parametrize(("function", "arguments", "named"), CALLS)
def test_equal_to_torch(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = SPELLINGS[function](*arguments, **named), function(*arguments, **named)
    assert ours is not None
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-6)


def test_every_spelling_is_compared() -> None:
    assert {function for function, _, _ in CALLS} == set(SPELLINGS)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (F.batch_norm, (X, torch.zeros(6), torch.ones(6))),
        (F.scaled_dot_product_attention, (X, X, X)),
        (F.adaptive_avg_pool2d, (X, (5, 7))),
    ],
)
def test_a_call_that_exporters_know_stays_as_it_is(function: Any, arguments: tuple[Any, ...]) -> None:
    assert SPELLINGS[function](*arguments) is None
    with Spelled():
        assert torch.equal(function(*arguments), function(*arguments))


class Norms(nn.Module):
    """Operators that the exporter by tracing lacks, as modules and as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.local = nn.RMSNorm(7), nn.LocalResponseNorm(3)
        self.pool = nn.AdaptiveAvgPool2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tile(torch.expm1(self.local(self.norm(x))), (1, 2, 1, 1))
        return self.pool(torch.hypot(y, y.sin()))  # type: ignore[no-any-return]


def test_a_model_of_them_is_translated_by_tracing_with_a_free_batch_and_no_branches(tmp_path: Path) -> None:
    model = Norms().eval()
    done = export_graph(capture(model, (X,)), (X,), path=tmp_path / "net.onnx", engine="script")
    assert done.axes and not done.attempts and "If" not in op_types(done.path)
    more = torch.cat([X, 2 * X])
    torch.testing.assert_close(OnnxFile(done.path)(more), model(more), rtol=1e-4, atol=1e-5)


class Routed(nn.Module):
    """Tokens sorted by a small number, as layers of experts sort them: most of them are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.sort((x[:, 0] > 0).long())[1]
        return self.second(self.first(x)[order])


def test_a_file_may_order_equal_values_in_its_own_way(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = QuantModel(Routed().eval(), "int8_onnxruntime", example_inputs=(x,))
    model.calibrate([x], progress=False)
    model.export_onnx(x, tmp_path / "a.onnx")  # its check raises where they differ


@pytest.mark.parametrize("function", TIES)
@pytest.mark.parametrize("largest", [True, False])
def test_among_equal_values_the_first_comes_first(function: Any, largest: bool) -> None:
    x = torch.randint(3, (64,), generator=torch.Generator().manual_seed(0))
    topk = function.__name__ == "topk"
    named = {"k": 64, "largest": largest} if topk else {"descending": largest}
    with Spelled(TIES):
        found = function(x, **named)
    places = found if function.__name__ == "argsort" else found.indices
    expected = sorted(range(64), key=lambda place: (-x[place] if largest else x[place], place))
    assert places.tolist() == expected
