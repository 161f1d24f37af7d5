"""``make demo``: the graph of a small model, as a table, a drawing, operator coverage and cost."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from sparsebit.analysis.cost import cost
from sparsebit.graph import capture, show
from sparsebit.graph.ops import coverage
from sparsebit.graph.passes import FOLD, SIMPLIFY, run_passes

_OUTPUT = Path("outputs") / "demo"


class _Block(nn.Module):
    """Depthwise-separable residual block with squeeze-and-excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.depthwise(x)))
        gate = self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))).sigmoid()
        mixed: Tensor = self.pointwise(y * gate)
        return x + mixed


class _DemoNet(nn.Module):
    """A classifier for 32x32 images, small enough to read its whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.blocks = nn.Sequential(_Block(16), _Block(16))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.stem(images))
        logits: Tensor = self.head(self.dropout(features.mean((2, 3)).view(images.size(0), -1)))
        return logits


def main() -> None:
    """Capture the demo model, simplify it, and show what came out."""
    console = Console()
    torch.manual_seed(0)
    model, images = _DemoNet().eval(), torch.randn(2, 3, 32, 32)
    graph = capture(model, images)
    batch = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        expected = model(batch)
        equal = torch.equal(graph(batch), expected)
        changes = run_passes(graph, SIMPLIFY + FOLD)
        off = (graph(batch) - expected).abs().max().item()
    console.print(show.to_rich_table(graph, columns=("name", "op", "inputs", "shape", "params")))
    console.print(f"captured with batch 2, run with batch 5: equal to the model bit for bit: {equal}")
    console.print("passes: " + ", ".join(f"{name} {count}" for name, count in changes.items() if count))
    console.print(f"after the passes the largest difference is {off:.1e}")
    console.print(str(coverage(graph)))
    console.print(cost(graph).table())
    _OUTPUT.mkdir(parents=True, exist_ok=True)
    drawing = _OUTPUT / "graph.mmd"
    drawing.write_text(show.mermaid(graph), encoding="utf-8")
    console.print(f"drawing: {drawing} (Mermaid; paste it into any Mermaid viewer)")


if __name__ == "__main__":
    main()
