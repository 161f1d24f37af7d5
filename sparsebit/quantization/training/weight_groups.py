"""Snap the weights of a model together before each forward pass on a GPU, to save kernel launches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.kernels.grouped import Member, WeightGroup, snap_group
from sparsebit.kernels.launch import AVAILABLE
from sparsebit.numerics import snapping
from sparsebit.quantization.modules.qmodules import QuantOpr
from sparsebit.quantization.quantizers import Quantizer

LARGEST = 2**22  # numbers of one weight: a larger one has enough work for its own launch
# Numbers of one group: about the bucket of DistributedDataParallel, which sends gradients while others are computed.
GROUP = 2**23


Found = tuple[Tensor, Quantizer, Tensor]  # a weight, its quantizer, and the scale of that


class WeightGroups:
    """Finds which weights of a graph can be snapped together, and snaps them before a forward pass.

    Those are weights on CUDA with symmetric integer grids whose quantizer does nothing else than snap.
    """

    def __init__(self) -> None:
        self._leaves: list[nn.Module] | None = None
        self._groups: dict[Any, list[tuple[slice, WeightGroup]]] = {}

    @contextlib.contextmanager
    def snapped(self, gm: nn.Module) -> Iterator[None]:
        """Inside the block, quantizers of weights have their results precomputed where possible."""
        if not (snapping.USE_KERNELS and AVAILABLE):
            yield
            return
        found = self._find(gm)
        try:
            for part, group in self._grouped(found):
                weights = [weight for weight, _, _ in found[part]]
                results = snap_group(group, weights, [scale for _, _, scale in found[part]])
                for (weight, quantizer, _), result in zip(found[part], results, strict=True):
                    # Not by setattr, for which an nn.Module searches all its parts.
                    vars(quantizer)["ready"] = (weight, result)
            yield
        finally:
            for _, quantizer, _ in found:
                vars(quantizer)["ready"] = None

    def _find(self, gm: nn.Module) -> list[Found]:
        if self._leaves is None:
            self._leaves = [
                module
                for module in gm.modules()
                if isinstance(getattr(module, "weight_quantizer", None), Quantizer)
                and not isinstance(module, QuantOpr)
            ]
        found: dict[int, Found] = {}  # one that two layers share is snapped once
        for leaf in self._leaves:
            quantizer: Any = leaf.weight_quantizer
            weight: Any = leaf.weight
            if type(weight) is nn.Parameter and weight.is_cuda and _is_plain(quantizer):
                found.setdefault(id(quantizer), (weight, quantizer, quantizer.scale))
        return list(found.values())

    def _grouped(self, found: list[Found]) -> list[tuple[slice, WeightGroup]]:
        """Groups of consecutive weights, as slices of the found ones."""
        key = tuple(
            [
                (
                    id(q),
                    q.code.bits,
                    w.shape,
                    w.stride(),
                    w.dtype,
                    w.get_device(),
                    scale.shape,
                    scale.requires_grad,
                )
                for w, q, scale in found
            ]
        )
        if key not in self._groups:
            self._groups = {key: _divide(found)}
        return self._groups[key]


def _is_plain(quantizer: Quantizer) -> bool:
    return quantizer.only_snaps and quantizer.code.kind == "int"


def _divide(found: list[Found]) -> list[tuple[slice, WeightGroup]]:
    """Divide into groups that the kernels support; weights between them are snapped alone."""
    groups: list[tuple[slice, WeightGroup]] = []
    members: list[Member] = []
    kind: Any = None
    size = 0

    def close(end: int) -> None:
        nonlocal members, size
        if len(members) > 1:
            device, _, magnitude, _ = kind
            groups.append((slice(end - len(members), end), WeightGroup(members, device, magnitude)))
        members, size = [], 0

    for index, (weight, quantizer, scale) in enumerate(found):
        member = _member(weight, quantizer)
        own = (weight.device, weight.dtype, quantizer.MAGNITUDE, scale.requires_grad)
        if member is None or own != kind or size + weight.numel() > GROUP:
            close(index)
        kind = own
        if member is not None:
            members.append(member)
            size += weight.numel()
    close(len(found))
    return groups


def _member(weight: Tensor, quantizer: Quantizer) -> Member | None:
    scale, factor = quantizer.scale, quantizer.gradient_scale(weight)
    matrix = snapping.matrix_of(weight.shape, weight.stride(), quantizer.layout, scale.numel())
    if matrix is None or matrix.by_column or matrix.rows != matrix.channels or not isinstance(factor, float):
        return None
    # Results lie one after the other, and the kernels of convolutions want them at multiples of 16 bytes.
    if weight.numel() % 8 or weight.numel() > LARGEST or scale.dtype != torch.float32 or scale.dim() != 1:
        return None
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    code = quantizer.code
    return Member(tuple(weight.shape), weight.stride(), matrix, code.low, code.high, factor)
