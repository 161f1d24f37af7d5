"""A detector in int8 whose decoding stays in float: boxes before and after, and an ONNX file of the network.

The network returns class scores and box distances for every cell of its feature map; what turns them into boxes is
ordinary Python behind it, and is not captured. Give your own network of that form with --model package.module:factory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from pictures import load, make_model
from torch import Tensor, nn

from sparsebit import QuantModel


class Detector(nn.Module):
    """Eight times smaller feature maps; for each cell a score per class and the distances to the sides of a box."""

    def __init__(self, classes: int = 8, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.scores, self.sides = nn.Conv2d(4 * width, classes, 1), nn.Conv2d(4 * width, 4, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, H, W] to scores [N, classes, H/8, W/8] and distances [N, 4, H/8, W/8]."""
        features = self.backbone(images)
        return self.scores(features), torch.relu(self.sides(features))


def decode(scores: Tensor, sides: Tensor, count: int = 10) -> tuple[Tensor, Tensor]:
    """The ``count`` best cells of one picture: boxes [count, 4] and classes [count]."""
    best, classes = scores.sigmoid().flatten(1).max(0)
    cells = best.topk(min(count, len(best))).indices
    y, x = cells // scores.shape[-1], cells % scores.shape[-1]
    left, top, right, bottom = sides.flatten(1)[:, cells]
    return torch.stack([x - left, y - top, x + right, y + bottom], 1), classes[cells]


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes [A, 4] and [B, 4]: [A, B]."""
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area_a, area_b = ((box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b))
    return shared / (area_a[:, None] + area_b[None] - shared).clamp(min=1e-9)


@torch.no_grad()
def found_again(model: nn.Module, other: nn.Module, batches: list[Tensor]) -> float:
    """The part of the boxes of ``model`` that ``other`` finds too: the same class, overlap of at least a half."""
    same = total = 0
    for images in batches:
        for scores, sides, scores_2, sides_2 in zip(*model(images), *other(images), strict=True):
            (boxes, classes), (boxes_2, classes_2) = decode(scores, sides), decode(scores_2, sides_2)
            matches = (overlap(boxes, boxes_2) >= 0.5) & (classes[:, None] == classes_2[None])
            same, total = same + int(matches.any(1).sum()), total + len(boxes)
    return same / total


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize, compare boxes, export; returns the part of the boxes found again."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, required=True, help="folder of pictures, or a zip such as coco_val128.zip"
    )
    options.add_argument(
        "--model", help="package.module:factory; default: a small network with random weights"
    )
    options.add_argument("--weights", type=Path)
    options.add_argument("--size", type=int, default=256)
    options.add_argument("--limit", type=int, default=128)
    options.add_argument("--onnx", default="detector.onnx")
    options = options.parse_args(words)

    torch.manual_seed(0)
    model = make_model(options.model, options.weights) if options.model else Detector().eval()
    batches = [images for images, _ in load(options.data, options.size, 16, options.limit)]
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(batches[0][:2],))
    qmodel.calibrate(batches[:4])
    again = found_again(model, qmodel, batches)
    print(f"{again:.1%} of the boxes are found again in int8")
    print(qmodel.export_onnx(batches[0][:2], options.onnx))
    return {"found again": again}


if __name__ == "__main__":
    main()
