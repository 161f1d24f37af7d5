"""Training for the demo's network: plain, short, and the same on every run.

``python -m sparsebit.demo.train FILE`` writes the weights that ``net()`` loads.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.demo.digits import BATCH, TRAINING, digits
from sparsebit.demo.digits_net import DigitsNet
from sparsebit.progress import progress


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block torch uses one thread: for such a small network, more threads would be slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def train(model: nn.Module, epochs: int, *, lr: float = 0.05, seed: int = 0) -> None:
    """Train in place on shifted copies of the training images, with a learning rate that falls to zero."""
    images, labels = (tensor[:TRAINING] for tensor in digits())
    chance = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (TRAINING // BATCH))
    model.train()
    for _ in progress(range(epochs), "training"):
        for chosen in torch.randperm(TRAINING, generator=chance).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(_shifted(images[chosen], chance)), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def _shifted(images: Tensor, chance: torch.Generator) -> Tensor:
    """The images moved by up to one pixel, all of a batch alike."""
    down, right = torch.randint(0, 3, (2,), generator=chance).tolist()
    return functional.pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def trained(epochs: int = 30, seed: int = 0) -> DigitsNet:
    """A network trained from scratch."""
    torch.manual_seed(seed)
    model = DigitsNet()
    train(model, epochs, seed=seed)
    return model


if __name__ == "__main__":
    from safetensors.torch import save_file

    state = trained().state_dict()
    save_file({name: t.half() if t.is_floating_point() else t for name, t in state.items()}, sys.argv[1])
