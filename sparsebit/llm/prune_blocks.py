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
from sparsebit.graph.copies import copy_module
from sparsebit.graph.run import evaluating
from sparsebit.llm.blocks.calls import find_hidden, hidden_in, reading_ids, run_model
from sparsebit.llm.blocks.find import Stack, find_stack
from sparsebit.sparse.shrink.pretrained import text_config


def drop_blocks(model: nn.Module, rows: Tensor, count: int) -> nn.Module:
    """A copy without the ``count`` blocks that change the direction of the hidden states least."""
    total = len(find_stack(model).modules)
    if not 0 < count < total:
        raise SparsebitError(
            f"{count} of {total} blocks cannot be removed", expected=f"from 1 to {total - 1}"
        )
    changes = block_changes(model, rows)
    kept = sorted(sorted(range(total), key=changes.__getitem__)[count:])
    made = copy_module(model)
    stack = find_stack(made)
    _replace_blocks(made, stack, kept)
    _shorten_config(model, made, stack, kept)
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
        hooks.enter_context(reading_ids(model, rows[:1]))
        for row in rows:
            run_model(model, row[None])
    return [sum(values) / max(len(values), 1) for values in found]


def _replace_blocks(made: nn.Module, stack: Stack, kept: Sequence[int]) -> None:
    """Keep these blocks, and renumber them."""
    if not isinstance(made.get_submodule(stack.path), nn.ModuleList):
        raise SparsebitError(
            f"blocks of {type(made).__name__} cannot be removed", expected="blocks in a ModuleList"
        )
    for new, old in enumerate(kept):
        for module in stack.modules[old].modules():
            if getattr(module, "layer_idx", None) == old:  # its index in the cache
                module.layer_idx = new  # type: ignore[assignment]
    path, _, last = stack.path.rpartition(".")
    setattr(made.get_submodule(path), last, nn.ModuleList(stack.modules[index] for index in kept))


def _shorten_config(model: nn.Module, made: nn.Module, stack: Stack, kept: Sequence[int]) -> None:
    """Change the config of ``made`` to one from which its class builds it.

    Names of the setting differ, and a config may have one number for an encoder and another one for a decoder. So each
    number that could be meant is tried.
    """
    count, places = len(stack.modules), ("layer", "block", "depth")
    settings = vars(text_config(getattr(model, "config", None)))
    refusals = []
    for name, value in settings.items():
        if type(value) is not int or value != count or not any(place in name for place in places):
            continue
        changes: dict[str, Any] = {name: len(kept)}
        for key, entries in settings.items():
            for_each = any(place in key for place in (*places, "pattern", "intermediate_size"))
            if for_each and isinstance(entries, list | tuple) and len(entries) == count:
                changes[key] = type(entries)(entries[index] for index in kept)
        config = copy.deepcopy(made.config)
        _change(config, changes)
        refusal = _find_difference(model, made, config, stack.path, kept)
        if refusal is None:
            return _change(made.config, changes)
        refusals.append(refusal)
    raise next(
        (one for one in refusals if one.where),
        SparsebitError(
            f"{type(model).__name__} has no config that gives the number of blocks",
            expected="a transformers model with num_hidden_layers",
            got=next((one.got for one in refusals if one.got), None),
            hint="remove hidden channels or heads instead",
        ),
    )


def _change(config: Any, changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        setattr(text_config(config), key, value)


def _find_difference(
    model: nn.Module, made: nn.Module, config: Any, path: str, kept: Sequence[int]
) -> SparsebitError | None:
    """Why the class does not build ``made`` from a config: a setting of a block that depends on its position, say."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        before = _build(model, model.config)
        try:
            after = _build(model, type(config).from_dict(config.to_dict()))  # as it is read from a folder
        except Exception as error:  # transformers passes on whatever its classes raise
            return SparsebitError("the class cannot be built", got=f"{type(error).__name__}: {error}"[:200])
    blocks = after.get_submodule(path)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != len(kept):
        return SparsebitError("this number is not that of the blocks")
    for new, old in enumerate(kept):
        was, now = _settings(before.get_submodule(path)[old]), _settings(blocks[new])  # type: ignore[index]
        for name in was | now:
            if was.get(name) != now.get(name):
                return SparsebitError(
                    f"block {old} cannot become block {new} of {type(model).__name__}",
                    where=name,
                    expected=str(was.get(name)),
                    got=str(now.get(name)),
                    hint="remove a different number of blocks, or hidden channels or heads instead",
                )
    failed = None if _initialization_error(before) else _initialization_error(after)
    if failed is not None:
        return SparsebitError(
            f"{type(model).__name__} cannot be built with {len(kept)} blocks",
            where="the initialization of its weights",
            got=f"{type(failed).__name__}: {failed}"[:200],
            hint="remove fewer blocks",
        )
    shapes, wanted = ({name: one.shape for name, one in net.state_dict().items()} for net in (after, made))
    if name := min((name for name in shapes | wanted if shapes.get(name) != wanted.get(name)), default=""):
        return SparsebitError(
            f"{type(model).__name__} cannot be built with {len(kept)} blocks",
            where=name,
            expected=str(wanted.get(name)),
            got=str(shapes.get(name)),
        )
    return None


def _build(model: Any, config: Any) -> nn.Module:
    built: nn.Module = type(model)._from_config(copy.deepcopy(config), dtype=torch.float32)
    return built


def _initialization_error(built: Any) -> Exception | None:
    """What the class raises when it initializes its weights, as it does while a folder is read."""
    try:
        built.initialize_weights()
    except Exception as error:  # transformers passes on whatever its classes raise
        return error
    return None


def _settings(block: nn.Module) -> dict[str, object]:
    """The classes, sizes and plain settings in a block, without its index."""
    found: dict[str, object] = {name: tuple(one.shape) for name, one in block.named_parameters()}
    for path, module in block.named_modules():
        found[path] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, int | float | str) and not name.startswith("_") and name != "layer_idx":
                found[f"{path}.{name}"] = value
    return found
