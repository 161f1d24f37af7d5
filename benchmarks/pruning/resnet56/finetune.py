"""A short fine-tune on the 10,000 training images at hand, with the dense model as a teacher."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.tasks.progress import track

LEARNING_RATE, MOMENTUM, DECAY = 0.02, 0.9, 5e-4
TEMPERATURE, TEACHER_SHARE = 4.0, 0.9


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shifted by up to 4 pixels and mirrored: [N, 3, 32, 32]; the border is what normalized black is not, zero."""
    count = len(images)
    padded = functional.pad(images, (4, 4, 4, 4))
    rows, columns = (torch.randint(0, 9, (2, count), generator=generator)).to(images.device)
    span = torch.arange(32, device=images.device)
    down = (rows[:, None] + span)[:, :, None]
    right = (columns[:, None] + span)[:, None, :]
    shifted = padded[torch.arange(count, device=images.device)[:, None, None], :, down, right].movedim(-1, 1)
    mirror = (torch.rand(count, generator=generator) < 0.5).to(images.device)
    return torch.where(mirror[:, None, None, None], shifted.flip(-1), shifted)


def batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(images), generator=generator)
    for chosen in order.split(size)[: len(images) // size]:
        yield images[chosen.to(images.device)], labels[chosen.to(labels.device)]


def loss_of(output: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with the labels, and the teacher's soft answers (Hinton et al., 2015)."""
    soft = functional.kl_div(
        functional.log_softmax(output / TEMPERATURE, 1),
        functional.log_softmax(taught / TEMPERATURE, 1),
        log_target=True,
        reduction="batchmean",
    )
    return (1 - TEACHER_SHARE) * functional.cross_entropy(
        output, labels
    ) + TEACHER_SHARE * TEMPERATURE**2 * soft


def finetune(
    small: nn.Module,
    teacher: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch: int,
    seed: int,
    rate: float = LEARNING_RATE,
) -> None:
    """Train ``small`` in place: SGD with a cosine that starts after a short warm-up; left in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(
        small.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True
    )
    steps = epochs * (len(images) // batch)
    warm = min(100, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / max(1, warm)) * 0.5 * (1 + math.cos(math.pi * min(1, step / steps))),
    )
    teacher.eval()
    small.train()
    for _ in track(range(epochs), "fine-tuning"):
        for inputs, targets in batches(images, labels, batch, generator):
            inputs = augment(inputs, generator)
            with torch.no_grad():
                taught = teacher(inputs)
            loss = loss_of(small(inputs), taught, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    small.eval()


@torch.no_grad()
def refresh_statistics(model: nn.Module, images: Tensor, batch: int = 250) -> None:
    """Batch statistics of the smaller net, averaged over ``images``: no weight changes."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
    model.train()
    for part in images.split(batch):
        model(part)
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
