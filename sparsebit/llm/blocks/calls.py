"""How a block is called, how a model is run, and how blocks are replaced while it runs.

The model's own forward makes the arguments of its blocks, such as masks and position embeddings, which may differ from
block to block. Every block is replaced while they are recorded, so that none has to be in memory.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.errors import SparsebitError, with_article
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.exclusive import replaced
from sparsebit.llm.blocks.spill import MOST_BYTES

ROUND_ONLY = (
    "to quantize it, pass no data, with METHOD: rtn: weights are then rounded without running the model"
)


@dataclass(frozen=True)
class BlockCall:
    """The arguments of one block for one batch; ``hidden`` says where the hidden states go."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    hidden: int | str

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[BlockCall, Tensor]:
        """The call without its hidden states, and the hidden states.

        A cache that the model makes although none is wanted is left out: every run of the block would add to it.
        """
        place, hidden = find_hidden(args, kwargs)
        blank = tuple(None if index == place or _is_cache(one) else one for index, one in enumerate(args))
        named = {key: None if key == place or _is_cache(one) else one for key, one in kwargs.items()}
        return cls(blank, named, place), hidden

    def run(self, block: Callable[..., Any], hidden: Tensor) -> Tensor:
        """The hidden states after the block."""
        return hidden_in(self.output(block, hidden))

    def output(self, block: Callable[..., Any], hidden: Tensor) -> Any:
        """All that the block returns."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if isinstance(self.hidden, int):
            args[self.hidden] = hidden
        else:
            kwargs[self.hidden] = hidden
        return block(*args, **kwargs)


@dataclass(frozen=True)
class BlockRuns:
    """A block, how it is called and what it is called on, batch by batch.

    Attributes:
        half: allows products in bfloat16.
        single: the call for the first sequence alone; None where it is known for the batch only.
        name: of the block in its model.
        leaves: what the model reads of the block's result, as places in its flat form; the first are the hidden states.
        limit: bytes of the results of all batches that stay in memory; the rest goes to disk.
        sequence_axis: of hidden states; Gemma 3n has several for each token, and their axis comes first.
    """

    block: nn.Module
    calls: Sequence[BlockCall]
    hidden: Sequence[Tensor]
    half: bool = False
    single: BlockCall | None = None
    name: str = ""
    leaves: tuple[int, ...] = (0,)
    limit: int = MOST_BYTES
    sequence_axis: int = 0

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

    def outputs(self, number: int) -> list[Tensor]:
        """The hidden states after the block for one batch, and what else the model reads."""
        hidden = self.hidden[number]
        output = self.calls[number].output(self.block, hidden)
        found = pytree.tree_leaves(output)
        return [hidden_in(output).to(hidden.dtype), *(found[leaf] for leaf in self.leaves[1:])]

    def on(self, hidden: Sequence[Tensor]) -> BlockRuns:
        """The same block called on other hidden states."""
        return replace(self, hidden=hidden)

    def first_sequence(self) -> BlockRuns:
        """Only the first sequence of the first batch, or that batch where no call for less is known."""
        if self.single is None:
            return BlockRuns(self.block, [self.calls[0]], [self.hidden[0]])
        return BlockRuns(self.block, [self.single], [self.hidden[0].narrow(self.sequence_axis, 0, 1)])


def hidden_in(output: Any) -> Tensor:
    """The hidden states in what a block returns: the tensor itself, or the first item of a tuple or list."""
    found = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(found, Tensor):
        raise SparsebitError(
            "a block returned no hidden states",
            expected="a tensor, or a tuple that begins with one",
            got=with_article(type(output).__name__),
            hint=ROUND_ONLY,
        )
    return found


def find_hidden(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int | str, Tensor]:
    """The hidden states and their place: the first argument that is a floating-point tensor with a feature axis."""
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
            return place, value
    raise SparsebitError(
        "a block was called without hidden states",
        expected="a floating-point tensor with a feature axis among its arguments",
        got=", ".join(with_article(type(value).__name__) for _, value in places) or "no argument",
        hint=ROUND_ONLY,
    )


@contextlib.contextmanager
def reading_ids(model: nn.Module, ids: Tensor) -> Iterator[None]:
    """What a model raises on token ids becomes an error of ours, with the model's line."""
    try:
        yield
    except (SparsebitError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        place = source_of_error(error)
        raise SparsebitError(
            f"{type(model).__name__} raised {type(error).__name__} on token ids: "
            f"{str(error).strip().partition(chr(10))[0]}",
            where=str(place) if place else None,
            expected="a model that is called with token ids alone",
            got=f"{str(ids.dtype).removeprefix('torch.')}{list(ids.shape)}",
            hint="put the model into a module whose forward takes token ids and passes what else it needs",
        ) from error


def decoder_ids(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """The argument for a decoder behind an encoder, if the model has both: the same ids, shifted by one."""
    known = inspect.signature(model.forward).parameters
    if not {"input_ids", "decoder_input_ids"} <= {*known}:
        return {}
    shifted: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    return {"decoder_input_ids": ids if shifted is None else shifted(labels=ids)}


def run_model(model: nn.Module, ids: Tensor) -> Any:
    """The model on token ids, without a cache where it has one. A decoder behind an encoder reads the same ids."""
    known = inspect.signature(model.forward).parameters
    keywords: dict[str, Any] = decoder_ids(model, ids)
    if "use_cache" in known:
        keywords["use_cache"] = False
    configs = {
        id(config): config for config in (getattr(module, "config", None) for module in model.modules())
    }
    caching = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    # A module around a decoder may not accept the argument.
    with replaced(*((config, "use_cache", False) for config in caching)):
        try:
            return model(input_ids=ids, **keywords) if "input_ids" in known else model(ids, **keywords)
        except IndexError as error:  # not every config says how many positions its tables have
            raise SparsebitError(
                f"{type(model).__name__} looks for a row that one of its tables does not have: {error}",
                got=f"sequences of {ids.shape[-1]} tokens, ids up to {int(ids.max())}",
                hint="pass shorter sequences (CALIBRATION.LENGTH, or less data for llm.prune)",
            ) from error


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


def _is_cache(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("update", "get_seq_length"))


class StandIns:
    """While active, ``answer`` is called instead of each block, with its number and its arguments."""

    def __init__(self, blocks: Sequence[nn.Module], answer: Callable[..., Any]) -> None:
        self._blocks, self._answer = blocks, answer
        self._own: list[Any] = [None] * len(blocks)  # the instance's own forward, if it has one

    def __enter__(self) -> StandIns:
        for number in range(len(self._blocks)):
            self._replace(number)
        return self

    def __exit__(self, *error: object) -> None:
        for number in range(len(self._blocks)):
            self._put_back(number)

    def run(self, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the block itself returns."""
        self._put_back(number)
        try:
            return self._blocks[number](*args, **kwargs)
        finally:
            self._replace(number)

    def _replace(self, number: int) -> None:
        block: Any = self._blocks[number]
        self._own[number] = vars(block).get("forward")
        block.forward = partial(self._answer, number)

    def _put_back(self, number: int) -> None:
        block: Any = self._blocks[number]
        del block.forward
        if self._own[number] is not None:
            block.forward = self._own[number]
