"""The arguments of each block of a model, found without running the blocks.

The model runs once per batch with every block replaced by a stand-in that returns its hidden states unchanged. The
stand-ins receive the arguments of the blocks, such as masks and position embeddings, which may differ from block to
block. Only the hidden states differ: those of the first block are kept, and running the blocks computes the rest.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.graph.exclusive import replaced
from sparsebit.llm.blocks.find import Stack
from sparsebit.llm.weights.uses import Enough


@dataclass(frozen=True)
class BlockCall:
    """The arguments of one block for one batch; ``hidden`` says where the hidden states go."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    hidden: int | str

    def run(self, block: Callable[..., Any], hidden: Tensor) -> Tensor:
        """The hidden states after the block."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if isinstance(self.hidden, int):
            args[self.hidden] = hidden
        else:
            kwargs[self.hidden] = hidden
        return hidden_in(block(*args, **kwargs))


@dataclass(frozen=True)
class BlockRuns:
    """A block, how it is called and what it is called on, batch by batch.

    Attributes:
        half: allows products in bfloat16.
        single: the call for the first sequence alone; None where the call of the first batch fits it.
        name: of the block in its model.
    """

    block: nn.Module
    calls: Sequence[BlockCall]
    hidden: Sequence[Tensor]
    half: bool = False
    single: BlockCall | None = None
    name: str = ""

    def products(self) -> contextlib.AbstractContextManager[object]:
        """The mode in which the block runs on calibration data; entered before any other.

        The rounding error of bfloat16 (two parts in a thousand, different for each token) is far below that of
        quantization. The price: the result depends more on the order of summation, and so on the number of processes.
        """
        return torch.autocast(self.hidden[0].device.type, torch.bfloat16, enabled=self.half)

    def run(self, number: int = 0) -> Tensor:
        """The hidden states after the block for one batch."""
        hidden = self.hidden[number]
        return self.calls[number].run(self.block, hidden).to(hidden.dtype)

    def on(self, hidden: Sequence[Tensor]) -> BlockRuns:
        """The same block called on other hidden states."""
        return replace(self, hidden=hidden)

    def first_sequence(self) -> BlockRuns:
        """Only the first sequence of the first batch."""
        return BlockRuns(self.block, [self.single or self.calls[0]], [self.hidden[0][:1]])


@dataclass
class Recorded:
    """One batch: the hidden states before the first block, and the call of every block."""

    hidden: Tensor
    calls: list[BlockCall] = field(default_factory=list)


@dataclass
class BlockStreams:
    """The calibration data on its way through the blocks, in batches.

    Attributes:
        recorded: the calls of every block.
        hidden: the output of the last compressed block.
        floats: the output of the same block in the float model; None if nothing uses it.
        ids: the tokens.
        as_tuple: whether blocks return tuples.
        half: whether weights are multiplied in bfloat16.
        single: how every block is called for the first sequence alone.
    """

    recorded: list[Recorded]
    hidden: Sequence[Tensor]
    floats: Sequence[Tensor] | None
    ids: Sequence[Tensor] = ()
    as_tuple: bool = False
    half: bool = False
    single: Recorded | None = None

    def runs(self, block: nn.Module, index: int, name: str) -> BlockRuns:
        """The block of this place and name on what the compressed blocks before it give."""
        calls = [one.calls[index] for one in self.recorded]
        single = None if self.single is None else self.single.calls[index]
        return BlockRuns(block, calls, self.hidden, self.half, single, name)


def hidden_in(output: Any) -> Tensor:
    """The hidden states in what a block returns: the tensor itself, or the first item of a tuple or list."""
    found = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(found, Tensor):
        raise SparsebitError(
            "a block returned no hidden states",
            expected="a tensor, or a tuple that begins with one",
            got=type(output).__name__,
        )
    return found


Answer = Callable[[int, tuple[Any, ...], dict[str, Any]], Tensor]  # to the place of a block and its arguments


class _StandIn(nn.Module):
    def __init__(self, block: nn.Module, answer: Callable[..., Any], index: int) -> None:
        super().__init__()
        self.answer, self.index = answer, index
        # Models look at attributes of their layers, such as the kind of attention.
        for name, value in vars(block).items():
            if not name.startswith("_") and not isinstance(value, (nn.Module, Tensor)) and name != "training":
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer(self.index, args, kwargs)


class _Recorder:
    def __init__(self, count: int) -> None:
        self.count = count
        self.recorded: Recorded | None = None

    def see(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        place, hidden = find_hidden(args, kwargs)
        if self.recorded is None:
            self.recorded = Recorded(hidden.detach())
        blank_args = tuple(None if index == place else value for index, value in enumerate(args))
        blank_kwargs = {name: None if name == place else value for name, value in kwargs.items()}
        self.recorded.calls.append(BlockCall(blank_args, blank_kwargs, place))
        if index == self.count - 1:
            raise Enough
        return hidden


def find_hidden(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int | str, Tensor]:
    """The hidden states and their place: the first argument that is a floating-point tensor with a feature axis."""
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
            return place, value
    raise SparsebitError("a block was called without hidden states", expected="a floating-point tensor")


def run_model(model: nn.Module, ids: Tensor) -> Any:
    """The model on token ids, without a cache where it has one."""
    known = inspect.signature(model.forward).parameters
    keywords = {"use_cache": False} if "use_cache" in known else {}
    configs = {
        id(config): config for config in (getattr(module, "config", None) for module in model.modules())
    }
    caching = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    # A module around a decoder may not accept the argument.
    with replaced(*((config, "use_cache", False) for config in caching)):
        return model(input_ids=ids, **keywords) if "input_ids" in known else model(ids, **keywords)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returns: an object that holds them, or the tensor itself."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise SparsebitError(
            "the model does not predict tokens",
            expected="logits",
            got=type(output).__name__,
            hint="load it with its head, as AutoModelForCausalLM does; for BUDGET, set MEASURE: loss",
        )
    return logits


def outputs_of(output: Any) -> Tensor:
    """The logits, or the hidden states of a model that has no head, such as an encoder."""
    return logits_of(getattr(output, "last_hidden_state", output))


@torch.no_grad()
def returns_tuple(model: nn.Module, stack: Stack, ids: Tensor) -> bool:
    """Whether a block returns a tuple, from running the first one.

    Refuses models that compute between blocks, and those whose blocks hand on more than hidden states: what else a
    block returns (the position bias of T5) may not depend on its hidden states.
    """
    outputs: list[Any] = []
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def see_output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not outputs:
            given.append((args, kwargs))
            outputs.append(output)

    def see_next(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.equal(find_hidden(args, kwargs)[1], hidden_in(outputs[0])):
            raise SparsebitError(
                f"{type(model).__name__} computes something between its blocks",
                expected="each block is called with the result of the one before it",
                hint="use sparsebit.quantize, which sees the whole model",
            )
        others = outputs[0][1:] if isinstance(outputs[0], (tuple, list)) else ()
        rest = [one for one in pytree.tree_leaves(others) if isinstance(one, Tensor)]
        if any(value is one for value in pytree.tree_leaves((args, kwargs)) for one in rest):
            hidden = find_hidden(*given[0])[1]
            first = pytree.tree_map_only(Tensor, lambda one: one.flip(-1) if one is hidden else one, given[0])
            again = pytree.tree_leaves(stack.modules[0](*first[0], **first[1])[1:])
            if not all(map(torch.equal, rest, (one for one in again if isinstance(one, Tensor)))):
                raise SparsebitError(
                    f"the blocks of {type(model).__name__} hand on more than hidden states",
                    expected="one tensor of hidden states that goes from block to block",
                    hint="use sparsebit.quantize, which sees the whole model",
                )
        raise Enough

    with (
        contextlib.suppress(Enough),
        stack.modules[0].register_forward_hook(see_output, with_kwargs=True),
        stack.modules[1].register_forward_pre_hook(see_next, with_kwargs=True),
    ):
        run_model(model, ids)
    return isinstance(outputs[0], (tuple, list))


@contextlib.contextmanager
def stand_ins(model: nn.Module, stack: Stack, answer: Answer, *, as_tuple: bool) -> Iterator[None]:
    """While active, ``answer`` is called instead of the blocks for the hidden states behind them.

    What else blocks return, where they return tuples, is what the first one returns.
    """
    others: list[Any] = []

    def answer_as_block(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = answer(index, args, kwargs)
        if not as_tuple:
            return hidden
        if index == 0:
            with torch.no_grad():
                others[:] = stack.modules[0](*args, **kwargs)[1:]
        return hidden, *others

    holder = model.get_submodule(stack.path) if stack.path else model
    keys = [name.rsplit(".", 1)[-1] for name in stack.names]
    blocks = [holder._modules[key] for key in keys]
    try:
        for index, key in enumerate(keys):
            holder._modules[key] = _StandIn(stack.modules[index], answer_as_block, index)
        yield
    finally:
        for key, block in zip(keys, blocks, strict=True):
            holder._modules[key] = block


@torch.no_grad()
def run_behind(model: nn.Module, stack: Stack, ids: Tensor, hidden: Tensor, *, as_tuple: bool) -> Any:
    """The model on one batch, with ``hidden`` for what its last block gives."""
    with stand_ins(model, stack, lambda index, args, kwargs: hidden, as_tuple=as_tuple):
        return run_model(model, ids)


@torch.no_grad()
def record_calls(model: nn.Module, stack: Stack, ids: Tensor, *, as_tuple: bool) -> Recorded:
    """Run the model on one batch without its blocks, and return what they would have been called with."""
    recorder = _Recorder(len(stack.names))
    with contextlib.suppress(Enough), stand_ins(model, stack, recorder.see, as_tuple=as_tuple):
        run_model(model, ids)
    if recorder.recorded is None or len(recorder.recorded.calls) != len(stack.names):
        count = 0 if recorder.recorded is None else len(recorder.recorded.calls)
        raise SparsebitError(
            f"the model called {count} of the {len(stack.names)} blocks in {stack.path!r}",
            expected="each block once, in order",
            hint="models that skip or repeat blocks cannot be compressed block by block; use sparsebit.quantize",
        )
    return recorder.recorded
