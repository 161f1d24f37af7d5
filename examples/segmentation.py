"""An encoder-decoder for segmentation in int8: pixels that keep their class, and an ONNX file.

Give your own network with --model package.module:factory: pictures [N, 3, H, W] to class scores [N, classes, H, W].
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from pictures import load, make_model
from torch import Tensor, nn

from sparsebit import QuantModel


class Segmenter(nn.Module):
    """Two steps down, two steps up, with a connection across: a very small U-Net."""

    def __init__(self, classes: int = 8, width: int = 16) -> None:
        super().__init__()
        self.first = self._layer(3, width)
        self.down = nn.Sequential(nn.MaxPool2d(2), self._layer(width, 2 * width), nn.MaxPool2d(2))
        self.middle = self._layer(2 * width, 2 * width)
        self.last = self._layer(3 * width, width)
        self.classes = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _layer(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes for each pixel."""
        first = self.first(images)
        deep = F.interpolate(
            self.middle(self.down(first)), scale_factor=4.0, mode="bilinear", align_corners=False
        )
        return self.classes(self.last(torch.cat([first, deep], 1)))


@torch.no_grad()
def compare(model: nn.Module, other: nn.Module, batches: list[Tensor]) -> dict[str, float]:
    """How many pixels have the same class, and the mean intersection over union with the first one's classes."""
    same = total = 0
    shared: dict[int, int] = {}
    either: dict[int, int] = {}
    for images in batches:
        a, b = model(images).argmax(1), other(images).argmax(1)
        same, total = same + int((a == b).sum()), total + a.numel()
        for label in a.unique().tolist():
            shared[label] = shared.get(label, 0) + int(((a == label) & (b == label)).sum())
            either[label] = either.get(label, 0) + int(((a == label) | (b == label)).sum())
    return {"same": same / total, "mIoU": sum(shared[k] / either[k] for k in shared) / len(shared)}


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize, compare pixels, export; returns what ``compare`` found."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, required=True, help="folder of pictures, or a zip such as camvid_calib32.zip"
    )
    options.add_argument(
        "--model", help="package.module:factory; default: a small network with random weights"
    )
    options.add_argument("--weights", type=Path)
    options.add_argument("--size", type=int, default=256)
    options.add_argument("--limit", type=int, default=32)
    options.add_argument("--onnx", default="segmenter.onnx")
    options = options.parse_args(words)

    torch.manual_seed(0)
    model = make_model(options.model, options.weights) if options.model else Segmenter().eval()
    batches = [images for images, _ in load(options.data, options.size, 8, options.limit)]
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(batches[0][:2],))
    qmodel.calibrate(batches[:4])
    found = compare(model, qmodel, batches)
    print(
        f"{found['same']:.1%} of the pixels keep their class; mIoU with the float model {found['mIoU']:.3f}"
    )
    print(qmodel.export_onnx(batches[0][:2], options.onnx))
    return found


if __name__ == "__main__":
    main()
