"""What the CIFAR-10 examples share: images, the ResNet of He et al. (2015), and accuracy."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class Block(nn.Module):
    """Two convolutions; where the stage changes, the shortcut is strided and padded with zero channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1 or self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(out + x)


class ResNet(nn.Module):
    """ResNet-(6n+2): three stages of n blocks; 20 layers with n = 3."""

    def __init__(self, blocks: int = 3, width: int = 16) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width]
        for stage in (1, 2, 3):
            layers = [Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)]
            layers += [Block(widths[stage], widths[stage], 1) for _ in range(blocks - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(*layers))
        self.linear = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, 10] of images [N, 3, 32, 32]."""
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def parser(about: str) -> argparse.ArgumentParser:
    """The options of all four examples."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument(
        "--data", type=Path, default=os.environ.get("SPARSEBIT_DATA"), help="folder of cifar10_*.npz"
    )
    options.add_argument(
        "--weights", type=Path, help="state dict of a trained ResNet-20; default: in the data folder"
    )
    options.add_argument("--limit", type=int, help="use only so many test images")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--lr", type=float, default=0.02)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return options


def images(folder: Path, part: str, limit: int | None = None, batch: int = 100) -> list[Batch]:
    """Batches of ``cifar10_<part>.npz``: uint8 [N, 32, 32, 3] and labels."""
    with numpy.load(Path(folder) / f"cifar10_{part}.npz") as file:
        pixels, labels = (
            torch.from_numpy(file["images"][:limit]),
            torch.from_numpy(file["labels"][:limit]).long(),
        )
    normal = ((pixels / 255 - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
    return list(zip(normal.split(batch), labels.split(batch), strict=True))


def trained(folder: Path, weights: Path | None) -> nn.Module:
    """The trained network, in evaluation mode."""
    model = ResNet()
    path = weights or Path(folder) / "cifar10_resnet20.pt"
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[Batch], device: str = "cpu") -> float:
    """Percent of the images whose class is right."""
    model.eval()
    right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in batches)
    return 100 * right / sum(len(y) for _, y in batches)


def augmented(x: Tensor) -> Tensor:
    """Shifted by up to four pixels and, half of the time, mirrored; the same for a batch."""
    dx, dy = torch.randint(0, 9, (2,)).tolist()
    x = F.pad(x, (4, 4, 4, 4))[:, :, dy : dy + 32, dx : dx + 32]
    return x.flip(3) if torch.rand(()) < 0.5 else x


def train(model: nn.Module, batches: list[Batch], options: argparse.Namespace, step=None) -> None:
    """SGD with a cosine schedule. ``step(loss)`` may change the loss; called without one it ends a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, options.epochs * len(batches)))
    for epoch in range(options.epochs):
        model.train()
        for index in torch.randperm(len(batches)).tolist():
            x, y = batches[index]
            loss = F.cross_entropy(model(augmented(x).to(options.device)), y.to(options.device))
            loss = step(loss) if step else loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step:
                step(None)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
