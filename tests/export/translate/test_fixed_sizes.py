from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export import check, export_graph
from sparsebit.export.translate.fixed_sizes import fix_sizes
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.request import TranslationRequest
from tests.export.nets import op_types, quantized, run_file


class Same(nn.Module):
    """Padding that follows the image, as in models from TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        missing = (x.size(3) + 1) // 2 * 2 + 1 - x.size(3)
        x = torch.relu(self.conv(nn.functional.pad(x, [0, missing, 0, missing])))
        return self.head(x).reshape(x.size(0), -1)


def test_only_what_follows_no_dynamic_axis_is_fixed() -> None:
    x = torch.randn(2, 3, 9, 9)
    flat = FlatGraph(capture(Same(), x))
    request = TranslationRequest(flat, [x], ["x"], ["y"], [{"x": {0: "batch"}}], 20)
    assert fix_sizes(request) >= 1
    left = [node for node in flat.body.graph.nodes if node.target is torch.Tensor.size]
    assert [node.args[1] for node in left] == [0]
    assert flat(torch.randn(5, 3, 9, 9))[0].shape[0] == 5


def test_padding_goes_into_the_convolution(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 9, 9)
    qmodel = quantized(Same(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    of_channels = 2 * done.rewrites["fourth_channel"]  # of the image and of the weight
    assert op_types(done.path).count("Pad") == of_channels and done.rewrites["pad_into_conv"] == 1
    report = check(qmodel.model, done, [((x,), {}), ((torch.randn(5, 3, 9, 9),), {})])
    assert report.ok and not report.fallbacks and len(report.ops) == 2, report


def test_a_dynamic_image_keeps_its_padding(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 9, 9)
    model = Same().eval()
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    done = export_graph(capture(model, x), (x,), path=tmp_path / "net.onnx", dynamic_axes=axes)
    for size in ((9, 9), (12, 12), (15, 15)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(
            torch.from_numpy(run_file(done.path, x)[0]), model(x), atol=1e-4, rtol=1e-4
        )
