"""Data movement, selection and odd operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..collect import Collector, vectors
from ..entry import floats, image_sizes, images, integers

nasty = Collector()


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)


@nasty(vectors(6, 8))
class SplitsAndStacks(_Layer):
    """split, chunk, unbind, stack, cat, hstack, tensor_split and star unpacking."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.fc(x).split(4, dim=-1)
        first, *rest = torch.chunk(a, 3, dim=1)
        rows = b.unbind(dim=1)
        stacked = torch.stack([row * (index + 1) for index, row in enumerate(rows)], dim=1)
        left, right = torch.tensor_split(stacked, 2, dim=-1)
        return torch.cat([first, *rest, torch.cat((right, left), -1)], dim=1) + torch.hstack([a, b])


@nasty(vectors(6, 8))
class RollsAndFlips(_Layer):
    """roll, flip, rot90, repeat_interleave, tile, movedim and swapaxes."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(torch.roll(x, shifts=(2, -1), dims=(1, 2))).flip(1)
        y = y + torch.rot90(y, 2, dims=[1, 2]) + y.movedim(1, 2).swapaxes(1, 2)
        return torch.tile(y, (1, 2, 1)) + y.repeat_interleave(2, dim=1)


@nasty(vectors(6, 8))
class GatherAndScatter(_Layer):
    """gather, scatter, scatter_add, index_select, take_along_dim and advanced indexing."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        order = y.argsort(dim=1)
        y = y.gather(1, order) + torch.take_along_dim(x, order, dim=1)
        spread = torch.zeros_like(y).scatter(2, order.clamp(max=7), y)
        summed = torch.zeros_like(y).scatter_add(1, order, y)
        picked = y.index_select(2, torch.tensor([7, 0, 3, 3, 1, 2, 5, 4]))
        return spread + summed + picked + y[:, [5, 4, 3, 2, 1, 0]] + y[torch.arange(x.size(0)), 2][:, None]


@nasty(vectors(6, 8))
class TopAndSort(_Layer):
    """topk, sort, max with indices, median, argmax, kthvalue."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(x)
        values, indices = y.topk(3, dim=-1)
        ordered = torch.sort(y, dim=1, descending=True)
        peak = y.max(dim=2)
        return (
            values,
            indices,
            ordered.values,
            peak.values + y.median(2)[0],
            y.argmax(-1),
            y.kthvalue(2, dim=1).values,
        )


@nasty(vectors(6, 8))
class ReductionsAndChoices(_Layer):
    """where, cumsum, norm, clamp, var_mean, logsumexp, prod, any, all and amax."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = torch.where(y > 0, y, y * 0.1).cumsum(dim=1)
        y = y / y.norm(dim=-1, keepdim=True).clamp(min=1e-6) + F.normalize(x, p=2.0, dim=-1)
        variance, mean = torch.var_mean(y, dim=2, keepdim=True)
        flags = (y > 0.1).any(-1, keepdim=True).float() + (y > -1).all(-1, keepdim=True)
        return (
            (y - mean) * variance.rsqrt()
            + y.logsumexp(2, keepdim=True)
            + flags
            + y.clamp(-0.5, 0.5).prod(1, keepdim=True)
        )


@nasty(vectors(6, 8))
class BooleanIndexing(_Layer):
    """x[mask], whose length depends on the data, beside masked_select and nonzero."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(x)
        mask = x[..., 0] > 0
        return y[mask].sum(0), torch.masked_select(y, y > 0), mask.nonzero(), y[mask & ~mask].sum()


@nasty(vectors(6, 8))
class IndexForms(_Layer):
    """Ellipsis, None, negative and stepped slices, mixed integers, a tuple kept in a variable."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        where = (slice(None), slice(1, -1), -1)
        parts = y[..., ::2][:, -3:], y[:, None, 2, 1::2], y[where][..., None, None], y[:, -1:, 0:4]
        return sum(part.mean(dim=(1, 2)) for part in parts) if len(parts) == 4 else y


@nasty(lambda batch: ((floats(batch, 4, 5), floats(batch, 5, 3, seed=1), floats(batch, 4, 3, seed=2)), {}))
class MatrixProducts(nn.Module):
    """bmm, baddbmm, matmul by operator and method, tensordot, outer, addmm, mv and dot."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.vector = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        y = torch.baddbmm(c, a, b, beta=0.5) + a.bmm(b) + a.matmul(b) + a @ b
        y = y @ self.weight + torch.tensordot(y, self.weight, dims=([2], [0]))
        rows = y.flatten(0, 1)
        y = torch.addmm(self.vector, rows, self.weight).view_as(c) + (rows @ self.vector).view(-1, 4, 1)
        return y + torch.outer(self.vector, self.vector).sum() + torch.dot(self.vector, self.vector)


@nasty(images(8), other_sizes=image_sizes((12, 10)))
class FoldAndUnpool(nn.Module):
    """Unfold and fold, max pooling with indices and unpooling, pixel unshuffle, channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.conv = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(memory_format=torch.channels_last)
        patches = F.unfold(x, kernel_size=2, stride=2)
        folded = F.fold(patches * 2, output_size=x.shape[-2:], kernel_size=2, stride=2)
        pooled, indices = self.pool(folded)
        return (
            self.unpool(pooled, indices)
            + F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2)
            + _up(self.conv(F.pixel_unshuffle(x, 2)))
        )


def _up(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


@nasty(images(8), other_sizes=image_sizes((12, 10)))
class GridSample(nn.Module):
    """A spatial transformer: affine_grid and grid_sample."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.locate(x.mean((2, 3))).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


@nasty(vectors(6, 8))
class VmapInside(_Layer):
    """torch.vmap over a plain function, as mask builders do."""

    def forward(self, x: Tensor) -> Tensor:
        products = torch.vmap(torch.dot)(self.fc(x).flatten(0, 1), x.flatten(0, 1))
        places = torch.arange(x.size(1))
        causal = torch.vmap(lambda i: torch.vmap(lambda j: i >= j)(places))(places)
        return products.view(x.shape[:2]) @ causal.float()


@nasty(lambda batch: ((floats(batch, 6), floats(batch, 6, seed=1), integers(6, batch, seed=2)), {}))
class LossInside(nn.Module):
    """Losses and similarities as part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.similarity, self.bilinear = (
            nn.Linear(6, 6),
            nn.CosineSimilarity(dim=1),
            nn.Bilinear(6, 6, 2),
        )

    def forward(self, x: Tensor, y: Tensor, target: Tensor) -> dict[str, Tensor]:
        logits = self.fc(x)
        loss = (
            F.cross_entropy(logits, target, label_smoothing=0.1)
            + F.mse_loss(logits, y)
            + F.smooth_l1_loss(logits, y)
        )
        return {"loss": loss, "similarity": self.similarity(logits, y), "bilinear": self.bilinear(x, y)}


@nasty(vectors(8))
class OperatorZoo(_Layer):
    """Reflected, unary, power, modulo, comparison and bitwise operators with Python numbers."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = (
            2
            - y
            + 3 * y / 4
            + 1 / (y**2 + 1)
            + 2.0 ** y.clamp(-2, 2)
            - (-y) % 3
            + abs(y.detach()) // 0.5
            + (+y)
        )
        chosen = ((y > 0) & (x < 1)) | ~(x >= 0.5) ^ (y != x) | (x == 0)
        return y * chosen + torch.add(y, x, alpha=2) - y.sub(x, alpha=0.5) + torch.addcmul(y, x, x, value=0.3)
