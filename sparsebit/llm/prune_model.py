"""``sparsebit.llm.prune``: a smaller model of the same class, with fewer blocks, heads or hidden channels.

Widths are pruned by ``SparseModel``, equally in every block, so that the model's config describes the result.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.llm.arguments import require_count, require_part
from sparsebit.llm.blocks.calls import decoder_ids
from sparsebit.llm.blocks.find import find_stacks
from sparsebit.llm.folders.source import float_module, load_module, stored_dtype
from sparsebit.llm.language_model import is_quantized
from sparsebit.llm.prune_blocks import drop_blocks
from sparsebit.llm.tokens import Text, as_ids, most_positions, read_tokenizer, require_known, windows
from sparsebit.sparse import ChannelGroups, SparseModel
from sparsebit.sparse.channels import Group
from sparsebit.sparse.choose.masks import count_removed
from sparsebit.sparse.layer_sparser import detach
from sparsebit.sparse.shrink.pretrained import is_pretrained, require_own_head_width

SAMPLES, LENGTH = 8, 128  # of the text, to measure with
STEP = 32  # hidden channels are removed in groups as large as the smallest quantization group


@torch.no_grad()
def prune(
    model: nn.Module | str | os.PathLike[str],
    data: Text | None = None,
    *,
    hidden: float = 0.0,
    heads: float = 0.0,
    blocks: int = 0,
    tokenizer: Any = None,
) -> nn.Module:
    """A smaller model of the same class; the one that was given is unchanged.

    Args:
        model: of transformers, or a folder as ``save_pretrained`` writes it.
        data: token ids, a text, or the path of a text file. With it, channels are scored by weight times input;
            without, by weight. Needed to choose blocks.
        hidden: the fraction of the hidden channels to remove from every feed-forward layer, equally from all experts.
            If the width is a multiple of 32, so is the number removed, so that the rest can be quantized in groups.
            Layers that are no wider than one such step stay as they are.
        heads: the fraction of the attention heads to remove; heads that share keys and values are removed together.
        blocks: how many blocks to remove.
        tokenizer: for texts; by default the one in the model's folder.
    """
    require_part("hidden", hidden)
    require_part("heads", heads)
    require_count("blocks", blocks, least=0)
    if not (hidden or heads or blocks):
        raise SparsebitError("nothing to prune was given", expected="hidden=, heads= or blocks=")
    stored: torch.dtype | None = None
    if isinstance(model, str | os.PathLike):
        tokenizer, stored = tokenizer or read_tokenizer(model), stored_dtype(model)
        model = load_module(model)
    _require_float(model)
    model = float_module(model)
    rows = None
    if data is not None:
        ids = as_ids(data, tokenizer)
        if not len(ids):
            raise SparsebitError("the data holds no tokens", hint="pass a text, or token ids")
        require_known(ids, model)
        rows = windows(ids, SAMPLES, min(LENGTH, len(ids), most_positions(model) or LENGTH))
        rows = rows.to(device_of(model))
    if heads:
        require_own_head_width(model)
    # Before blocks are removed: a list of which one block is left would not be found.
    paths = [stack.path for stack in find_stacks(model)]
    if blocks:
        if rows is None:
            raise SparsebitError("choosing blocks needs data", hint="pass data=")
        model = drop_blocks(model, rows, blocks)
    if hidden or heads:
        with stacked_experts(model) as put_back:
            model = _prune_widths(model, paths, rows, hidden, heads)
            put_back(model)
    if stored is not None:
        _store_as(model, stored)
    return model


def _store_as(model: Any, dtype: torch.dtype) -> None:
    """Convert weights that were read from a folder as float32 to the type they have there, but not the buffers."""
    model.config.dtype = dtype
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _require_float(model: object) -> None:
    """Raise unless this is a model of transformers with float weights."""
    if is_quantized(model):
        raise SparsebitError(
            "quantized weights cannot be pruned", hint="prune the float model first, then quantize the result"
        )
    if not isinstance(model, nn.Module) or not is_pretrained(unwrap(model)):
        raise SparsebitError(
            f"{type(model).__name__} is not a transformers model",
            expected="a model, or the path of a folder that save_pretrained wrote",
            hint="use sparsebit.prune with a config for any other module",
        )


def _prune_widths(
    model: nn.Module, paths: Sequence[str], rows: Tensor | None, hidden: float, heads: float
) -> nn.Module:
    """The model with narrower blocks, which are in the lists at ``paths``."""
    blank = torch.zeros(2, 8, dtype=torch.long, device=device_of(model))

    def arguments(ids: Tensor) -> dict[str, Tensor]:
        return {"input_ids": ids, **decoder_ids(model, ids)}

    takes = inspect.signature(model.forward).parameters
    # Models that generate take it, some of them among others by any name.
    caches = "use_cache" in takes or getattr(model, "generation_config", None) is not None
    without = {"use_cache": False} if caches else {}
    batches = None if rows is None else [{**arguments(pair), **without} for pair in rows.split(2)]
    strategy = "l1norm" if rows is None else "activation_norm"
    settings = {"TYPE": "structured", "STRATEGY": strategy, "RATIO": 0.0, "ROUND_TO": 1}
    try:
        smodel = SparseModel(
            model,
            {"SPARSER": settings, "DEVICE": "cpu"},
            example_kwargs={**arguments(blank if rows is None else rows[:2]), **without},
            copy_model=False,
        )
        names = [f"{path}.{name}" for path in paths for name, _ in model.get_submodule(path).named_children()]
        found = find_widths(smodel.groups(), names)
        # A layer may compute several groups: experts that hold [in, out] count for the residual stream too.
        for sparser in smodel.sparsers.values():
            sparser.set_ratio(0.0)
        for part, ratio, step in (("hidden", hidden, STEP), ("heads", heads, 1)):
            if ratio:
                _ask(smodel, found[part], ratio, step, f"{part}={ratio} of {type(model).__name__}")
        return smodel.shrink_to(smodel.choose(batches), "pretrained")
    finally:
        detach(model)


@contextlib.contextmanager
def stacked_experts(model: Any) -> Iterator[Callable[[Any], None]]:
    """Compute transformers experts as one stack, because a loop over the experts that tokens reach cannot be captured.

    Yields a function that makes another model compute its experts as this one did before.
    """
    before = model.get_experts_implementation() if hasattr(model, "get_experts_implementation") else {}
    ways = before if {"eager", "batched_mm"}.intersection(before.values()) else {}
    if ways:
        try:
            model.set_experts_implementation("grouped_mm")
        except ValueError:  # a class without experts
            ways = {}

    def put_back(other: Any) -> None:
        if ways:
            other.set_experts_implementation(ways)

    try:
        yield put_back
    finally:
        put_back(model)


def find_widths(groups: ChannelGroups, blocks: Sequence[str]) -> dict[str, list[Group]]:
    """The heads and the hidden channels of each block, as ``{"heads": [...], "hidden": [...]}``.

    Heads pass a softmax: they are in the queries and in the result. Hidden channels are the other channels that a layer
    beside the attention computes. Neither are channels that several blocks compute together, such as the residual
    stream, and the channels of each head.
    """
    calls = groups.trace.calls
    attention = {name for name, call in calls.items() if call.spec.channels in ("attention", "softmax")}
    queries = {name: calls[name].node.all_input_nodes[0].name for name in attention}
    inside = {str(calls[name].node.meta.get("module_path")) for name in attention} - {*blocks}
    found: dict[str, list[Group]] = {"heads": [], "hidden": []}
    for group in groups:
        if len({_holder(name, blocks) for name in group.producers} - {""}) != 1:
            continue
        if any({name, queries[name]} <= {*group.nodes} for name in attention):
            found["heads"].append(group)
        elif not attention.intersection(group.nodes) and not any(
            _holder(name, [*inside]) for name in group.producers
        ):
            found["hidden"].append(group)
    return found


def _holder(name: str, paths: Sequence[str]) -> str:
    """The one of these modules that contains a layer."""
    return next((path for path in paths if name.startswith(f"{path}.")), "")


def _ask(smodel: SparseModel, groups: Sequence[Group], ratio: float, step: int, what: str) -> None:
    """Request the removal of a fraction of these channels; an error if it is too small or too large to remove."""
    free = [group for group in groups if group.frozen is None]
    if not free:
        raise SparsebitError(
            f"{what}: none can be removed",
            got=next((str(group.frozen) for group in groups), "none was found in its blocks"),
        )
    wide = [group for group in free if group.channels > math.gcd(group.channels, step)]
    if not wide:
        raise SparsebitError(
            f"{what}: none can be removed",
            where=free[0].name,
            expected=f"more than {step}, which are removed {step} at a time" if step > 1 else "more than one",
            got=str(free[0].channels),
        )
    for group in wide:  # others are no feed-forward layers: adapters, gates, the states of Mamba
        own = math.gcd(group.channels, step)
        removed = own * round(count_removed(group.channels, ratio) / own)
        if not 0 < removed < group.channels:
            raise SparsebitError(
                f"{what}: {removed} of {group.channels} would be removed",
                where=group.name,
                expected=f"from {own / group.channels:.3g} to {1 - own / group.channels:.3g}: "
                f"they are removed {own} at a time",
            )
        made = {where.tensor for where in group.slices if where.role == "output"}
        makers = [layer.name for layer in smodel.pruner.layers if layer.tensor in made]
        if not makers:
            raise SparsebitError(
                f"{what}: the layer that computes them multiplies in an unknown way", where=group.name
            )
        for name in makers:
            smodel.sparsers[name].set_ratio(removed / group.channels)
