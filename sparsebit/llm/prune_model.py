"""``sparsebit.llm.prune``: a smaller model of the same class, with fewer blocks, heads or hidden channels.

Widths are pruned through ``SparseModel``, every block alike, so that the model's own config describes the result.
Blocks are chosen by what they change: one whose output points where its input pointed costs least when it is left out.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import find_hidden, hidden_in, run_model
from sparsebit.llm.blocks.find import Stack, find_stack
from sparsebit.llm.source import load_module
from sparsebit.llm.tokens import Text, as_ids, most_positions, read_tokenizer, require_known, windows
from sparsebit.sparse.pruning import prune as prune_widths

# The layers whose outputs are heads, or hidden channels of the feed-forward part, in the names of transformers. A layer
# that is not an nn.Linear goes by the name of its weight.
HEADS = ("*.q_proj", "*.k_proj", "*.v_proj", "*.query", "*.key", "*.value")
HIDDEN = (
    "*.gate_proj", "*.up_proj", "*.fc1", "*.fc_in", "*.dense_h_to_4h", "*.intermediate.dense", "*.mlp.c_fc.weight",
)  # fmt: skip
SAMPLES, LENGTH = 8, 128  # of the text, to measure with


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
        hidden: the part of the hidden channels of every feed-forward layer that goes.
        heads: the part of the attention heads that goes; heads that share keys and values go together.
        blocks: how many blocks go.
        tokenizer: for texts; by default the one in the model's folder.
    """
    if not (hidden or heads or blocks):
        raise SparsebitError("no part to prune was named", expected="hidden=, heads= or blocks=")
    for name, part in (("hidden", hidden), ("heads", heads)):
        if not 0 <= part < 1:
            raise SparsebitError(f"{name}: expected at least 0 and less than 1", got=str(part))
    if not isinstance(model, nn.Module):
        tokenizer = tokenizer or read_tokenizer(model)
        model = load_module(model)
    rows = None
    if data is not None:
        ids = as_ids(data, tokenizer)
        require_known(ids, model)
        rows = windows(ids, SAMPLES, min(LENGTH, len(ids), most_positions(model) or LENGTH))
    if blocks:
        if rows is None:
            raise SparsebitError("choosing blocks needs data", hint="pass data=")
        model = drop_blocks(model, rows, blocks)
    if hidden or heads:
        model = _prune_widths(model, rows, hidden, heads)
    return model


def _prune_widths(model: nn.Module, rows: Tensor | None, hidden: float, heads: float) -> nn.Module:
    names = [name for name, part in model.named_modules() if type(part).forward is nn.Linear.forward]
    names += [name for name, _ in model.named_parameters()]
    rules = []
    for part, patterns, ratio in (("hidden channels", HIDDEN, hidden), ("heads", HEADS, heads)):
        known = [pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)]
        if ratio and not known:
            raise SparsebitError(
                f"the names of the layers that compute the {part} of {type(model).__name__} are unknown",
                expected="ordinary linear layers named " + ", ".join(patterns),
                hint="use sparsebit.SparseModel with a config for its layers",
            )
        rules += [{pattern: {"RATIO": ratio}} for pattern in known if ratio]
    strategy = "l1norm" if rows is None else "activation_norm"
    settings = {"TYPE": "structured", "STRATEGY": strategy, "RATIO": 0.0, "ROUND_TO": 1, "SPECIFIC": rules}
    example = {"input_ids": torch.zeros(2, 8, dtype=torch.long) if rows is None else rows[:2]}
    batches = None if rows is None else [{"input_ids": pair, "use_cache": False} for pair in rows.split(2)]
    return prune_widths(
        model,
        {"SPARSER": settings, "DEVICE": "cpu"},
        batches,
        example_kwargs={**example, "use_cache": False},
        form="pretrained",
    )


def drop_blocks(model: nn.Module, rows: Tensor, count: int) -> nn.Module:
    """A copy without the ``count`` blocks that change the direction of the hidden states least."""
    changes = block_changes(model, rows)
    if not 0 < count < len(changes):
        raise SparsebitError(
            f"{count} of {len(changes)} blocks cannot be removed", expected=f"from 1 to {len(changes) - 1}"
        )
    going = set(sorted(range(len(changes)), key=changes.__getitem__)[:count])
    made = copy.deepcopy(model)
    stack = find_stack(made)
    kept = [index for index in range(len(changes)) if index not in going]
    _replace_blocks(made, stack, kept)
    return made


@torch.no_grad()
def block_changes(model: nn.Module, rows: Tensor) -> list[float]:
    """One minus the mean cosine between what goes into each block and what comes out."""
    stack = find_stack(model)
    found: list[list[float]] = [[] for _ in stack.modules]

    def measure(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            _, before = find_hidden(args, kwargs)
            cosine = nn.functional.cosine_similarity(before.float(), hidden_in(output).float(), dim=-1)
            found[index].append(1 - float(cosine.mean()))

        return hook

    with contextlib.ExitStack() as hooks:
        for index, block in enumerate(stack.modules):
            hooks.enter_context(block.register_forward_hook(measure(index), with_kwargs=True))
        for row in rows:
            run_model(model, row[None])
    return [sum(values) / max(len(values), 1) for values in found]


def _replace_blocks(model: Any, stack: Stack, kept: Sequence[int]) -> None:
    """Keep these blocks, renumber them, and say so in the config."""
    holder = model.get_submodule(stack.path)
    config = getattr(model, "config", None)
    name = next(
        (one for one in ("num_hidden_layers", "n_layer") if getattr(config, one, None) == len(stack.modules)),
        "",
    )
    if not name or not isinstance(holder, nn.ModuleList):
        raise SparsebitError(
            f"{type(model).__name__} has no config that says how many blocks there are",
            expected="a model of transformers with num_hidden_layers",
        )
    for new, old in enumerate(kept):
        for module in stack.modules[old].modules():
            if getattr(module, "layer_idx", None) == old:  # its place in the cache
                module.layer_idx = new  # type: ignore[assignment]
    path, _, last = stack.path.rpartition(".")
    setattr(model.get_submodule(path), last, nn.ModuleList(stack.modules[index] for index in kept))
    setattr(config, name, len(kept))
    for key in ("layer_types", "no_rope_layers"):  # one entry for each block
        if isinstance(entries := getattr(config, key, None), list) and len(entries) == len(stack.modules):
            setattr(config, key, [entries[index] for index in kept])
