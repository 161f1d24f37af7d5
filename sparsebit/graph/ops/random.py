"""Operators that draw random numbers: dropouts, which do nothing in evaluation mode, and noise."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spellings import family

# in eval mode a dropout returns the input itself: it may be a view
_dropout = family(
    "dropout", aliases={"train": "training"}, moves=True, elementwise=True, view=True, random=True
)
_noise = family("random", activations=(), random=True)
_DROPS = "input, p=0.5, training=True, inplace=False"
_OFF_BY_DEFAULT = "input, p=0.5, training=False, inplace=False"
_OPTIONS = "generator=None, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False"


def _low_is_optional(arguments: dict[str, object]) -> None:
    """``randint(10, (2, 3))`` is ``randint(0, 10, (2, 3))``."""
    if arguments.get("size") is None and isinstance(arguments.get("high"), (tuple, list)):
        arguments["size"], arguments["high"], arguments["low"] = arguments["high"], arguments.get("low"), 0
    elif arguments.get("high") is None:
        arguments["high"], arguments["low"] = arguments.get("low"), 0
    arguments.setdefault("low", 0)


OPS = (
    _dropout("dropout", _DROPS, nn.Dropout, "native_dropout"),
    _dropout(
        "feature_dropout",
        _DROPS,
        *("dropout1d", "dropout2d", "dropout3d", nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    ),
    _dropout("alpha_dropout", _OFF_BY_DEFAULT, nn.AlphaDropout, moves=False),
    _dropout("feature_alpha_dropout", _OFF_BY_DEFAULT, nn.FeatureAlphaDropout, moves=False),
    _dropout(
        "drop_path",
        "input, p=0.0, training=False, mode='row'",
        only=("torchvision.ops.stochastic_depth.stochastic_depth", "timm.layers.drop.drop_path"),
        class_names=("*DropPath", "StochasticDepth"),
        aliases={"drop_prob": "p"},
        attributes={"p": "drop_prob"},
    ),
    _noise("rand", f"*size, {_OPTIONS}"),
    _noise("randn", f"*size, {_OPTIONS}"),
    _noise("randint", f"low, high=None, size=None, *, {_OPTIONS}", tidy=_low_is_optional, integers=True),
    _noise("randperm", f"n, *, {_OPTIONS}", integers=True),
    _noise("rand_like", f"input, *, {_OPTIONS}", channels="same_size"),
    _noise("randn_like", f"input, *, {_OPTIONS}", channels="same_size"),
    _noise("randint_like", f"input, low, high=None, *, {_OPTIONS}", channels="same_size"),
    _noise("normal", "mean, std=1.0, size=None, *, generator=None", only=(torch.normal, "aten::normal")),
    _noise(  # overwrites a tensor, as the three after it
        "fill_normal",
        "input, mean=0.0, std=1.0, *, generator=None",
        only=(torch.Tensor.normal_, "aten::normal_", "aten::normal_functional"),
    ),
    _noise("uniform", "input, start=0.0, end=1.0, *, generator=None"),
    _noise("exponential", "input, lambd=1.0, *, generator=None"),
    _noise("random", "input, start=0, end=None, *, generator=None"),
    _noise("bernoulli", "input, p=None, *, generator=None", activations=("input",)),
    _noise("poisson", "input, generator=None", activations=("input",)),
    _noise(
        "multinomial",
        "input, num_samples, replacement=False, *, generator=None",
        activations=("input",),
        integers=True,
    ),
)
