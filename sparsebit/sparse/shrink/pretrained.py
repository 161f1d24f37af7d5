"""A smaller model of a ``transformers`` class: its config with smaller numbers, so that it saves, loads and generates.

It is not known which numbers of a config must change, so they are searched for. A number that equals the width of some
layers, or their number of heads, is a candidate for the remaining width or number. Every combination is tried on the
meta device, the fewest changes first. The first one with the shapes of the shrunk weights is built, filled, and
compared with the shrunk graph.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.channels.trace import tensors_of
from sparsebit.sparse.shrink.graph import shrink_state_dict
from sparsebit.sparse.shrink.module import output_difference
from sparsebit.sparse.shrink.plan import ShrinkPlan

MOST_COMBINATIONS = 64
_DEFAULT_WIDTH = re.compile(r"inner|intermediate|ffn")  # if None, follows from another number
_HEADS = re.compile(r"heads?(_kv)?$")  # num_attention_heads, n_head, num_kv_heads
_NO_WIDTH = re.compile(r"_ids?$|vocab|layers|position|num_labels|pretraining")  # numbers with another meaning


def is_pretrained(model: nn.Module) -> bool:
    """Whether a model can be built from a config and saved with it, like a ``transformers`` model."""
    config = getattr(model, "config", None)
    return hasattr(model, "save_pretrained") and hasattr(config, "to_dict")


def text_config(config: Any) -> Any:
    """The part of a config for text, in models that also read images; else the config itself."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def shrink_pretrained(
    model: nn.Module,
    plan: ShrinkPlan,
    groups: ChannelGroups,
    small: CapturedModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A model of the same class whose config has smaller numbers, equal to the shrunk graph on the inputs given.

    Raises:
        GraphError: if no such config exists, with the widths that differ between layers.
    """
    if not is_pretrained(model):
        raise GraphError(
            f"{type(model).__name__} has no config to make smaller",
            expected="a model of transformers",
            hint='use the shrunk graph, smodel.shrink(), or your own class, smodel.shrink("module")',
        )
    state = shrink_state_dict(model.state_dict(), plan)
    changes = _changes(model, plan, groups)
    # An encoder and a decoder may have a config each (T5Gemma).
    ways = (False, True) if len(_parts(model.config)) > 1 else (False,)
    for numbers, everywhere in itertools.product(_combinations(changes), ways):
        made = _make(model, numbers, state, everywhere=everywhere)
        if made is None:
            continue
        made.train(model.training)
        problem = output_difference(made, small, args, dict(kwargs or {}))
        if problem is None:
            _require_valid(made.config, numbers)
            return made
        raise GraphError(
            f"{type(model).__name__} with a smaller config computes something else: {problem}",
            got=_named(numbers),
            hint="use the shrunk graph: smodel.shrink()",
        )
    if any(map(_HEADS.search, changes)):
        require_own_head_width(model)
    raise GraphError(
        f"no config of {type(model).__name__} describes the result",
        got=_uneven(plan, groups) or _misfit(model, changes, state),
        hint="prune every layer equally (SCOPE: layer, one RATIO), IGNORE what the config cannot name, or use the "
        "shrunk graph: smodel.shrink()",
    )


def _changes(model: nn.Module, plan: ShrinkPlan, groups: ChannelGroups) -> dict[str, list[int | None]]:
    """For each number of the config, by name, its possible values: what remains of a width or count that it equals."""
    left: dict[int, set[int]] = {}
    for name, flags in plan.kept.items():
        left.setdefault(groups.by_name(name).channels, set()).add(int(flags.sum()))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name, axes in plan.index.items():
        for axis, where in axes.items():
            if name in shapes:
                left.setdefault(shapes[name][axis], set()).add(len(where))
    found: dict[str, set[int]] = {}
    for name, value in vars(text_config(model.config)).items():
        if value is None and _DEFAULT_WIDTH.search(name):
            found[name] = set().union(*left.values())
        elif _is_number(value) and not _NO_WIDTH.search(name):
            found[name] = set() if _HEADS.search(name) else set(left.get(value, ()))
            for flags in plan.kept.values() if _HEADS.search(name) else ():
                if value % len(flags) == 0:  # heads that share keys are removed together
                    found[name].add(value // len(flags) * int(flags.sum()))
    return {name: [*sorted(values)] for name, values in found.items() if values}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _combinations(changes: Mapping[str, list[int | None]]) -> Iterator[dict[str, int]]:
    """Every combination of changes, the fewest first."""
    # a different number of heads can have the same shapes; if heads were removed, it must change
    choices = [
        [(name, value) for value in ([] if _HEADS.search(name) else [None]) + values]
        for name, values in changes.items()
    ]
    every = [[(n, v) for n, v in one if v is not None] for one in itertools.product(*choices)]
    for one in sorted(every, key=len)[:MOST_COMBINATIONS]:
        if one:
            yield {name: value for name, value in one if value is not None}


def _config_with(model: nn.Module, numbers: Mapping[str, int], *, everywhere: bool = False) -> Any:
    """The model's config with changed numbers; if heads are removed, the width of a head is set explicitly.

    ``everywhere`` changes them in all of its parts where they are the same, not only in the part for text.
    """
    config: Any = copy.deepcopy(model.config)
    for part in [config, *vars(config).values()]:
        if hasattr(part, "to_dict") and isinstance(part.dtype, str):  # as save_pretrained leaves it behind
            part.dtype = getattr(torch, part.dtype)
    before = {name: getattr(text_config(config), name) for name in numbers}
    for part in _parts(config) if everywhere else [text_config(config)]:
        heads, width = getattr(part, "num_attention_heads", None), getattr(part, "hidden_size", None)
        if "num_attention_heads" in numbers and heads and width and not _names_head_width(part):
            part.head_dim = width // heads  # otherwise it would follow from the number of heads
        for name, value in numbers.items():
            if vars(part).get(name) == before[name]:
                setattr(part, name, value)
    return config


def _parts(config: Any) -> list[Any]:
    """A config and those inside it, each without what is not for text."""
    found = [config, *(one for one in vars(config).values() if hasattr(one, "to_dict"))]
    return list({id(text_config(one)): text_config(one) for one in found}.values())


def _names_head_width(config: Any) -> bool:
    try:
        return getattr(config, "head_dim", None) is not None
    except Exception:  # transformers raises its own error if the width differs from layer to layer
        return True


def _require_valid(config: Any, numbers: Mapping[str, int]) -> None:
    """Raise for a config that transformers neither saves nor loads, such as a width not divisible by the heads."""
    try:
        getattr(config, "validate", lambda: None)()
    except Exception as error:  # its classes may raise anything
        raise GraphError(
            f"transformers does not save a {type(config).__name__} with {_named(numbers)}",
            got=str(error.__cause__ or error)[:200],
            hint="choose another part to remove",
        ) from None


def _named(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in numbers.items())


def _shapes(model: nn.Module, config: Any) -> dict[str, torch.Size] | None:
    """Shapes of a model with this config; None if its values contradict each other."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return {name: tensor.shape for name, tensor in type(model)(config).state_dict().items()}
    except Exception:  # its constructor may raise anything
        return None


def require_own_head_width(model: nn.Module) -> None:
    """Raise for a class that computes the width of a head from their number: no config can describe fewer heads.

    Such a class builds layers of the same size for any number of heads.
    """
    config = text_config(model.config)
    names = [name for name, value in vars(config).items() if _HEADS.search(name) and _is_number(value)]
    single = _shapes(model, _config_with(model, dict.fromkeys(names, 1)))
    if single is None or any(
        single[name].numel() < tensor.numel() for name, tensor in model.state_dict().items() if name in single
    ):
        return
    own = getattr(config, "attribute_map", {})
    width, heads = (own.get(name, name) for name in ("hidden_size", "num_attention_heads"))
    sizes = f"{getattr(config, width, '?')} / {getattr(config, heads, '?')}"
    raise GraphError(
        f"no config of {type(model).__name__} has fewer heads of the same width",
        got=f"the class computes the width of a head as {width} / {heads} ({sizes}): fewer heads would be wider",
        hint="remove hidden channels or blocks instead, or take the result as a graph: "
        "sparsebit.prune(model, config, form='graph')",
    )


def _make(
    model: nn.Module, numbers: Mapping[str, int], state: Mapping[str, Tensor], *, everywhere: bool
) -> nn.Module | None:
    """A model with this config and these weights; None if they do not fit each other."""
    config = _config_with(model, numbers, everywhere=everywhere)
    if _shapes(model, config) != {name: tensor.shape for name, tensor in state.items()}:
        return None
    with torch.random.fork_rng(devices=[]):
        made: nn.Module = type(model)(config)
    before, parameters = tensors_of(model), dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in tensors_of(made).items():  # including buffers that no state dict holds
        source = state[name] if name in state else before[name]
        tensor.data = source.detach().clone()  # including its type and device
        if name in parameters:
            tensor.requires_grad_(parameters[name].requires_grad)
    if hasattr(model, "generation_config"):
        made.generation_config = copy.deepcopy(model.generation_config)
    return made


def _misfit(model: nn.Module, changes: Mapping[str, list[int | None]], state: Mapping[str, Tensor]) -> str:
    """The first tensor whose size no config explains, in the closest config."""
    closest: tuple[int, str] | None = None
    for numbers in _combinations(changes):
        shapes = _shapes(model, _config_with(model, numbers)) or {}
        wrong = [name for name, tensor in state.items() if name in shapes and shapes[name] != tensor.shape]
        if wrong and (closest is None or len(wrong) < closest[0]):
            sizes = f"{tuple(shapes[wrong[0]])} instead of {tuple(state[wrong[0]].shape)}"
            closest = len(wrong), f"{wrong[0]} is {sizes} with {_named(numbers)}"
    return closest[1] if closest is not None else "widths that its config cannot name"


def _uneven(plan: ShrinkPlan, groups: ChannelGroups) -> str:
    """Groups of one width that keep different numbers of channels."""
    left: dict[int, dict[int, str]] = {}
    for group in groups.free:
        count = int(plan.kept[group.name].sum()) if group.name in plan.kept else group.channels
        left.setdefault(group.channels, {}).setdefault(count, group.name)
    found = [
        f"{width} channels: "
        + ", ".join(f"{name} keeps {count}" for count, name in sorted(counts.items())[:3])
        for width, counts in left.items()
        if len(counts) > 1
    ]
    return "; ".join(found[:2])
