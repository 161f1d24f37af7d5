"""Reductions, scans and sorting: along the channel axis they mix channels, which the table assumes by default."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family
from sparsebit.graph.value import TensorInfo

_row = family("reduce")
_reduce = family("reduce", channels="reduce")
_sum = family("reduce", channels="sum", keeps_zero=True)
_along = family("reduce", channels="along_dim")
_DIM = "input, dim=None, keepdim=False"
_SUM = "input, dim=None, keepdim=False, *, dtype=None"


def _flag_is_not_a_dimension(arguments: dict[str, object]) -> None:
    """The argument of ``x.std(False)`` is a flag and not a dimension."""
    if isinstance(arguments["dim"], bool):
        arguments["unbiased"], arguments["dim"] = arguments["dim"], None


def _variance(name: str) -> OpSpec:
    return _row(
        name,
        "input, dim=None, unbiased=None, keepdim=False, *, correction=None",
        tidy=_flag_is_not_a_dimension,
        channels="statistic",
        several=name.endswith("_mean"),
    )


def _extremum(name: str, pairwise: str) -> OpSpec:
    def choose(node: Node) -> str:
        """``torch.max(x, y)`` compares two tensors; a number in the second place is the dimension."""
        second = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
        if not isinstance(second, Node):
            return name
        # Without a recorded shape a tensor is more likely: dimensions are usually literals.
        is_tensor = isinstance(second.meta["value"], TensorInfo) if "value" in second.meta else True
        return pairwise if is_tensor else name

    overloads = dict.fromkeys(
        (getattr(torch, name), getattr(torch.Tensor, name), f"aten::{name}.other"), choose
    )
    return _reduce(name, _DIM, only=(f"aten::{name}",), overloads=overloads)


OPS = (
    _sum("sum", _SUM),
    _sum("mean", _SUM, channels="mean"),
    _reduce("prod", _SUM),
    _sum("nansum", _SUM),
    _reduce("nanmean", _SUM),
    _extremum("max", "maximum"),
    _extremum("min", "minimum"),
    *(_reduce(name, _DIM) for name in ("amax", "amin", "median", "nanmedian")),
    _reduce("aminmax", "input, *, dim=None, keepdim=False", several=True),
    *(_reduce(name, _DIM, integers=True) for name in ("argmax", "argmin", "any", "all")),
    *map(_variance, ("std", "var", "std_mean", "var_mean")),
    _reduce("mode", "input, dim=-1, keepdim=False", several=True),
    _reduce("kthvalue", "input, k, dim=-1, keepdim=False", several=True),
    _reduce("quantile", "input, q, dim=None, keepdim=False, *, interpolation='linear'"),
    _reduce("logsumexp", "input, dim, keepdim=False", "aten::special_logsumexp"),
    _sum("count_nonzero", "input, dim=None", integers=True),
    _sum(
        "norm",
        "input, p=2, dim=None, keepdim=False, dtype=None",
        *(torch.linalg.norm, torch.linalg.vector_norm, "aten::linalg_norm", "aten::linalg_vector_norm"),
        aliases={"ord": "p", "A": "input"},
    ),
    _along("cumsum", "input, dim, *, dtype=None", keeps_zero=True),
    _along("cumprod", "input, dim, *, dtype=None"),
    _along("cummax", "input, dim", several=True),
    _along("cummin", "input, dim", several=True),
    _along("logcumsumexp", "input, dim"),
    _along("diff", "input, n=1, dim=-1, prepend=None, append=None"),
    _along("sort", "input, dim=-1, descending=False, stable=False", several=True),
    _along("argsort", "input, dim=-1, descending=False, stable=False", integers=True),
    _along("topk", "input, k, dim=-1, largest=True, sorted=True", several=True),
    _row(
        "unique",
        "input, sorted=True, return_inverse=False, return_counts=False, dim=None",
        *("aten::_unique2", "aten::unique_dim", "aten::_unique"),
        data_sized=True,
    ),
    _row("unique_consecutive", "input, return_inverse=False, return_counts=False, dim=None", data_sized=True),
    _row("bincount", "input, weights=None, minlength=0", integers=True, data_sized=True),
    _row("histc", "input, bins=100, min=0, max=0"),
    _row(
        "searchsorted",
        "sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None",
        activations=("sorted_sequence", "input"),
        integers=True,
    ),
    _row("dist", "input, other, p=2", activations=("input", "other")),
    _row(
        "cosine_similarity",
        "x1, x2, dim=1, eps=1e-8",
        nn.CosineSimilarity,
        activations=("x1", "x2"),
        channels="cosine_similarity",
    ),
    _row(
        "pairwise_distance",
        "x1, x2, p=2.0, eps=1e-6, keepdim=False",
        nn.PairwiseDistance,
        activations=("x1", "x2"),
    ),
)
