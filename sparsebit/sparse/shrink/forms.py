"""From a choice to an ordinary model: a smaller graph, or a model of the user's own class."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sparsebit.batches import Call
from sparsebit.errors import GraphError, with_article
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.capture.snapshot import undisturbed
from sparsebit.graph.copies import copy_module
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.pruner import Pruner
from sparsebit.sparse.layer_sparser import detach
from sparsebit.sparse.masking.holding import hold
from sparsebit.sparse.origin import Origin, describe_example
from sparsebit.sparse.shrink.graph import shrink_graph
from sparsebit.sparse.shrink.module import shrink_module
from sparsebit.sparse.shrink.plan import ShrinkPlan
from sparsebit.sparse.shrink.pretrained import is_pretrained, shrink_pretrained

ShrunkForm = Literal["graph", "module", "pretrained"]


def make_smaller(
    pruner: Pruner,
    kept: Mapping[str, Tensor],
    form: ShrunkForm,
    original: nn.Module,
    examples: Call,
    *,
    remember: bool = True,
) -> nn.Module:
    """A model with only what is in ``kept``; the graph and the original are not changed.

    Args:
        pruner: the pruner of the graph.
        kept: what is kept, by name.
        form: "graph", "module" for the user's own class, or "pretrained" for that class with a smaller config.
        original: the user's own model.
        examples: to check a model of the user's class with.
        remember: whether their sizes are the user's own, to be saved with the model.
    """
    if form not in get_args(ShrunkForm):
        raise GraphError(
            f"a smaller model has no form {form!r}", expected=" or ".join(map(repr, get_args(ShrunkForm)))
        )
    _require_flags(pruner, kept)
    small: nn.Module
    if not isinstance(pruner, ChannelPruner):
        small = copy_module(pruner.gm if form == "graph" else original)
        for name, mask in pruner.tensor_masks(kept).items():
            held = small.get_parameter(name)
            hold(held, mask.to(held.device))
    else:
        plan = pruner.plan(kept)
        small = shrink_graph(pruner.gm, plan)
        _require_running(small, examples)
        if form == "pretrained":
            small = shrink_pretrained(original, plan, pruner.groups, small, *examples)
        elif form == "module":
            small = _own_class(pruner, plan, small, original, examples)
    detach(small)
    small.__dict__["shrunk_from"] = origin_of(pruner, kept, form, examples if remember else None)
    return small


def _require_flags(pruner: Pruner, kept: Mapping[str, Tensor]) -> None:
    """Raise unless a choice has a tensor for each name; groups check their own."""
    if not isinstance(kept, Mapping):
        raise GraphError(
            "what stays is not given by name",
            expected="a dict of bool tensors",
            got=with_article(type(kept).__name__),
        )
    weights = [layer.tensor for layer in pruner.layers]
    for name, flags in kept.items():
        if pruner.groups is None and name not in weights:
            raise GraphError(f"no weight is named {name!r}", expected=", ".join(weights[:20]))
        if not isinstance(flags, Tensor):
            raise GraphError(
                "what stays is not a tensor",
                where=repr(name),
                expected="a bool tensor",
                got=with_article(type(flags).__name__),
            )


def _require_running(small: CapturedModule, examples: Call) -> None:
    """Raise if the smaller graph cannot run on the example inputs; the graph and random state are not changed."""
    try:
        with undisturbed(small), torch.no_grad():
            for module in small.modules():
                module.training = False  # batch norm in training refuses one sample
            small(*examples.args, **examples.kwargs)
    except Exception as error:
        raise GraphError(
            "the smaller model cannot run: an operator was given a size that does not fit the channels left",
            got=str(error),
            hint="keep the channels of the layers around that operator, IGNORE: [their.dotted.names], and report it",
        ) from error


def _own_class(
    pruner: ChannelPruner, plan: ShrinkPlan, small: CapturedModule, original: nn.Module, examples: Call
) -> nn.Module:
    if not is_pretrained(original):
        return shrink_module(original, plan, small, *examples)
    try:
        return shrink_pretrained(original, plan, pruner.groups, small, *examples)
    except GraphError as error:
        shrunk = shrink_module(original, plan, small, *examples)
        warnings.warn(
            f"save_pretrained cannot be used for this model: {error.message} ({error.got}); "
            "use sparsebit.sparse.save, or prune every layer equally",
            stacklevel=4,
        )
        return shrunk


def origin_of(pruner: Pruner, kept: Mapping[str, Tensor], form: ShrunkForm, examples: Call | None) -> Origin:
    """What is needed, besides the weights, to create a smaller model again from the original class."""
    flags = {name: flag.clone() for name, flag in kept.items()}
    example = None if examples is None else describe_example(*examples)
    return Origin(
        pruner.config.to_dict(),
        graph_digest(pruner.gm),
        flags,
        example,
        "graph" if form == "graph" else "module",
    )
