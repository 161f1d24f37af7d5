"""Remove the blocks of a language model that change the hidden states least.

A block whose output has the same direction as its input costs least to remove.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.graph.run import evaluating
from sparsebit.llm.blocks.calls import find_hidden, hidden_in, run_model
from sparsebit.llm.blocks.find import Stack, find_stack
from sparsebit.sparse.shrink.pretrained import text_config


def drop_blocks(model: nn.Module, rows: Tensor, count: int) -> nn.Module:
    """A copy without the ``count`` blocks that change the direction of the hidden states least."""
    changes = block_changes(model, rows)
    if not 0 < count < len(changes):
        raise SparsebitError(
            f"{count} of {len(changes)} blocks cannot be removed", expected=f"from 1 to {len(changes) - 1}"
        )
    going = set(sorted(range(len(changes)), key=changes.__getitem__)[:count])
    made = copy.deepcopy(model)
    kept = [index for index in range(len(changes)) if index not in going]
    _replace_blocks(made, find_stack(made), kept)
    _require_same_blocks(model, made, kept)
    return made


@torch.no_grad()
def block_changes(model: nn.Module, rows: Tensor) -> list[float]:
    """One minus the mean cosine between the input and the output of each block."""
    stack = find_stack(model)
    found: list[list[float]] = [[] for _ in stack.modules]

    def measure(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            _, before = find_hidden(args, kwargs)
            cosine = nn.functional.cosine_similarity(before.float(), hidden_in(output).float(), dim=-1)
            found[index].append(1 - float(cosine.mean()))

        return hook

    with evaluating(model), contextlib.ExitStack() as hooks:
        for index, block in enumerate(stack.modules):
            hooks.enter_context(block.register_forward_hook(measure(index), with_kwargs=True))
        for row in rows:
            run_model(model, row[None])
    return [sum(values) / max(len(values), 1) for values in found]


def _replace_blocks(model: Any, stack: Stack, kept: Sequence[int]) -> None:
    """Keep these blocks, renumber them, and update the config."""
    holder = model.get_submodule(stack.path)
    config = text_config(getattr(model, "config", None))
    name = next(
        (
            one
            for one in ("num_hidden_layers", "n_layer", "n_layers")
            if getattr(config, one, None) == len(stack.modules)
        ),
        "",
    )
    if not name or not isinstance(holder, nn.ModuleList):
        raise SparsebitError(
            f"{type(model).__name__} has no config that gives the number of blocks",
            expected="a transformers model with num_hidden_layers",
        )
    for new, old in enumerate(kept):
        for module in stack.modules[old].modules():
            if getattr(module, "layer_idx", None) == old:  # its index in the cache
                module.layer_idx = new  # type: ignore[assignment]
    path, _, last = stack.path.rpartition(".")
    setattr(model.get_submodule(path), last, nn.ModuleList(stack.modules[index] for index in kept))
    setattr(config, name, len(kept))
    for key in ("layer_types", "no_rope_layers"):  # one entry for each block
        if isinstance(entries := getattr(config, key, None), list) and len(entries) == len(stack.modules):
            setattr(config, key, [entries[index] for index in kept])


def _require_same_blocks(model: Any, made: Any, kept: Sequence[int]) -> None:
    """Raise if the class would build a block differently at its new position."""
    path = find_stack(model).path
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        before, after = (type(one)(copy.deepcopy(one.config)).get_submodule(path) for one in (model, made))
    for new, old in enumerate(kept):
        was, now = _settings(before[old]), _settings(after[new])
        for name in was | now:
            if was.get(name) != now.get(name):
                raise SparsebitError(
                    f"block {old} cannot become block {new} of {type(model).__name__}",
                    where=name,
                    expected=str(was.get(name)),
                    got=str(now.get(name)),
                    hint="remove a different number of blocks, or hidden channels or heads instead",
                )


def _settings(block: nn.Module) -> dict[str, object]:
    """The classes, sizes and plain settings in a block, without its index."""
    found: dict[str, object] = {name: tuple(one.shape) for name, one in block.named_parameters()}
    for path, module in block.named_modules():
        found[path] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, int | float | str) and not name.startswith("_") and name != "layer_idx":
                found[f"{path}.{name}"] = value
    return found
