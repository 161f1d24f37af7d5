"""Reductions, scans and orderings: over channels they mix them, which the table takes as the rule."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named
from sparsebit.graph.value import TensorInfo

_DIM = "input, dim=None, keepdim=False"
_SUM = "input, dim=None, keepdim=False, *, dtype=None"


def _reduce(
    name: str,
    *targets: object,
    signature: str = _DIM,
    channels: str = "reduce",
    keeps_zero: bool = False,
    integers: bool = False,
    several: bool = False,
    **aliases: str,
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="reduce",
        signature=signature,
        aliases=aliases,
        channels=channels,
        keeps_zero=keeps_zero,
        integers=integers,
        several=several,
    )


def _variance(name: str) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name),
        family="reduce",
        signature="input, dim=None, unbiased=None, keepdim=False, *, correction=None",
        tidy=_flag_is_not_a_dimension,
        channels="statistic",
        several=name.endswith("_mean"),
    )


def _flag_is_not_a_dimension(arguments: dict[str, object]) -> None:
    """``x.std(False)`` says how, not where."""
    if isinstance(arguments["dim"], bool):
        arguments["unbiased"], arguments["dim"] = arguments["dim"], None


def _between(name: str, *targets: object, signature: str, channels: str = "") -> OpSpec:
    first, second = signature.split(", ")[:2]
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="reduce",
        signature=signature,
        activations=(first, second),
        channels=channels,
    )


def _extremum(name: str, pairwise: str) -> OpSpec:
    def choose(node: Node) -> str:
        """``torch.max(x, y)`` compares two tensors; a number in the second place is the dimension."""
        second = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
        if not isinstance(second, Node):
            return name
        # Without a record a tensor is the likelier guess: dimensions are mostly written down.
        is_tensor = isinstance(second.meta["value"], TensorInfo) if "value" in second.meta else True
        return pairwise if is_tensor else name

    return OpSpec(
        name=name,
        targets=(f"aten::{name}",),
        family="reduce",
        overloads={
            getattr(torch, name): choose,
            getattr(torch.Tensor, name): choose,
            f"aten::{name}.other": choose,
        },
        signature=_DIM,
        channels="reduce",
    )


OPS = (
    _reduce("sum", signature=_SUM, channels="sum", keeps_zero=True),
    _reduce("mean", signature=_SUM, channels="mean", keeps_zero=True),
    _reduce("prod", signature=_SUM),
    _reduce("nansum", signature=_SUM, channels="sum", keeps_zero=True),
    _reduce("nanmean", signature=_SUM),
    _extremum("max", "maximum"),
    _extremum("min", "minimum"),
    _reduce("amax"),
    _reduce("amin"),
    _reduce("aminmax", signature="input, *, dim=None, keepdim=False", several=True),
    _reduce("argmax", integers=True),
    _reduce("argmin", integers=True),
    _reduce("any", integers=True),
    _reduce("all", integers=True),
    _variance("std"),
    _variance("var"),
    _variance("std_mean"),
    _variance("var_mean"),
    _reduce("median"),
    _reduce("nanmedian"),
    _reduce("mode", signature="input, dim=-1, keepdim=False", several=True),
    _reduce("kthvalue", signature="input, k, dim=-1, keepdim=False", several=True),
    _reduce("quantile", signature="input, q, dim=None, keepdim=False, *, interpolation='linear'"),
    _reduce("logsumexp", "aten::special_logsumexp", signature="input, dim, keepdim=False"),
    _reduce("count_nonzero", signature="input, dim=None", channels="sum", keeps_zero=True, integers=True),
    _reduce(
        "norm",
        *(torch.linalg.norm, torch.linalg.vector_norm, "aten::linalg_norm", "aten::linalg_vector_norm"),
        channels="sum",
        keeps_zero=True,
        signature="input, p=2, dim=None, keepdim=False, dtype=None",
        ord="p",
        A="input",
    ),
    _reduce("cumsum", signature="input, dim, *, dtype=None", channels="along_dim", keeps_zero=True),
    _reduce("cumprod", signature="input, dim, *, dtype=None", channels="along_dim"),
    _reduce("cummax", signature="input, dim", channels="along_dim", several=True),
    _reduce("cummin", signature="input, dim", channels="along_dim", several=True),
    _reduce("logcumsumexp", signature="input, dim", channels="along_dim"),
    _reduce("diff", signature="input, n=1, dim=-1, prepend=None, append=None", channels="along_dim"),
    _reduce(
        "sort", signature="input, dim=-1, descending=False, stable=False", channels="along_dim", several=True
    ),
    _reduce(
        "argsort",
        signature="input, dim=-1, descending=False, stable=False",
        channels="along_dim",
        integers=True,
    ),
    _reduce(
        "topk", signature="input, k, dim=-1, largest=True, sorted=True", channels="along_dim", several=True
    ),
    _reduce(
        *("unique", "aten::_unique2", "aten::unique_dim", "aten::_unique"),
        channels="",
        signature="input, sorted=True, return_inverse=False, return_counts=False, dim=None",
    ),
    _reduce(
        "unique_consecutive",
        signature="input, return_inverse=False, return_counts=False, dim=None",
        channels="",
    ),
    _reduce("bincount", signature="input, weights=None, minlength=0", channels="", integers=True),
    _reduce("histc", signature="input, bins=100, min=0, max=0", channels=""),
    OpSpec(
        name="searchsorted",
        targets=named("searchsorted"),
        family="reduce",
        signature="sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None",
        activations=("sorted_sequence", "input"),
        integers=True,
    ),
    _between("dist", signature="input, other, p=2"),
    _between(
        "cosine_similarity",
        nn.CosineSimilarity,
        signature="x1, x2, dim=1, eps=1e-8",
        channels="cosine_similarity",
    ),
    _between("pairwise_distance", nn.PairwiseDistance, signature="x1, x2, p=2.0, eps=1e-6, keepdim=False"),
)
