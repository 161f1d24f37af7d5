"""Operators that draw random numbers: dropout and its kin (no-ops in eval mode), and noise."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named


def _dropout(
    name: str, *targets: object, signature: str = "input, p=0.5, training=True, inplace=False"
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="dropout",
        signature=signature,
        aliases={"train": "training"},
        moves="alpha" not in name,
        elementwise=True,
        view=True,  # in eval mode the input itself is returned
        random=True,
    )


def _noise(
    name: str, *targets: object, signature: str, activations: tuple[str, ...] = (), integers: bool = False
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="random",
        signature=signature,
        activations=activations,
        channels="same_size" if name.endswith("_like") else "",
        integers=integers,
        random=True,
    )


def _low_is_optional(arguments: dict[str, object]) -> None:
    """``randint(10, (2, 3))`` is ``randint(0, 10, (2, 3))``."""
    if arguments.get("size") is None and isinstance(arguments.get("high"), (tuple, list)):
        arguments["size"], arguments["high"], arguments["low"] = arguments["high"], arguments.get("low"), 0
    elif arguments.get("high") is None:
        arguments["high"], arguments["low"] = arguments.get("low"), 0
    arguments.setdefault("low", 0)


_OFF_BY_DEFAULT = "input, p=0.5, training=False, inplace=False"
_OPTIONS = "generator=None, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False"

OPS = (
    _dropout("dropout", nn.Dropout, "native_dropout"),
    _dropout(
        "feature_dropout",
        *("dropout1d", "dropout2d", "dropout3d", nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    ),
    _dropout("alpha_dropout", nn.AlphaDropout, signature=_OFF_BY_DEFAULT),
    _dropout("feature_alpha_dropout", nn.FeatureAlphaDropout, signature=_OFF_BY_DEFAULT),
    OpSpec(
        name="drop_path",
        targets=("torchvision.ops.stochastic_depth.stochastic_depth", "timm.layers.drop.drop_path"),
        class_names=("*DropPath", "StochasticDepth"),
        family="dropout",
        signature="input, p=0.0, training=False, mode='row'",
        aliases={"drop_prob": "p"},
        attributes={"p": "drop_prob"},
        moves=True,
        elementwise=True,
        view=True,
        random=True,
    ),
    _noise("rand", signature=f"*size, {_OPTIONS}"),
    _noise("randn", signature=f"*size, {_OPTIONS}"),
    OpSpec(
        name="randint",
        targets=named("randint"),
        family="random",
        signature=f"low, high=None, size=None, *, {_OPTIONS}",
        tidy=_low_is_optional,
        activations=(),
        integers=True,
        random=True,
    ),
    _noise("randperm", signature=f"n, *, {_OPTIONS}", integers=True),
    _noise("rand_like", signature=f"input, *, {_OPTIONS}"),
    _noise("randn_like", signature=f"input, *, {_OPTIONS}"),
    _noise("randint_like", signature=f"input, low, high=None, *, {_OPTIONS}"),
    OpSpec(
        name="normal",
        targets=(torch.normal, "aten::normal"),
        family="random",
        signature="mean, std=1.0, size=None, *, generator=None",
        activations=(),
        random=True,
    ),
    OpSpec(  # overwrites a tensor, as the three after it
        name="fill_normal",
        targets=(torch.Tensor.normal_, "aten::normal_", "aten::normal_functional"),
        family="random",
        signature="input, mean=0.0, std=1.0, *, generator=None",
        activations=(),
        random=True,
    ),
    _noise("uniform", signature="input, start=0.0, end=1.0, *, generator=None"),
    _noise("exponential", signature="input, lambd=1.0, *, generator=None"),
    _noise("random", signature="input, start=0, end=None, *, generator=None"),
    _noise("bernoulli", signature="input, p=None, *, generator=None", activations=("input",)),
    _noise("poisson", signature="input, generator=None", activations=("input",)),
    _noise(
        "multinomial",
        signature="input, num_samples, replacement=False, *, generator=None",
        activations=("input",),
        integers=True,
    ),
)
