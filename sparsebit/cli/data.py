"""What DATA and --input mean: batches from the user's code, a folder of images, or an .npz file; example inputs."""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.batches import LABELS, Call, DataError, example_from
from sparsebit.cli.command import UsageError
from sparsebit.cli.image_folder import ImageFolder
from sparsebit.cli.preflight import require_data
from sparsebit.cli.reference import blamed_on, call, resolve
from sparsebit.errors import with_article
from sparsebit.progress import length
from sparsebit.quantization import QuantModel
from sparsebit.storage.archive import require_expansion

MOST_EXPANSION = 100  # of an .npz file when unpacked; a file of zeros grows by 1,000
BATCH = 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


@dataclass(frozen=True)
class Again:
    """Batches that can be iterated several times, as far as the user's code allows."""

    start: Callable[[], Iterable[Any]]
    limit: int | None = None
    name: str = "the data"

    def __iter__(self) -> Iterator[Any]:
        batches = iter(itertools.islice(self.start(), self.limit))
        for count in itertools.count(1):
            with blamed_on(f"the data {self.name!r}"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            if any(value.is_floating_point() and bool(value.isnan().any()) for value in _tensors(batch)):
                raise UsageError(f"batch {count} of {self.name!r} contains NaN")
            yield batch

    def __len__(self) -> int:
        known = length(self.start())
        if known is None and self.limit is None:
            raise TypeError("the number of batches is not known")
        return min(count for count in (known, self.limit) if count is not None)


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]


def open_data(arguments: argparse.Namespace, source: str | None = None) -> Again:
    """The batches that the arguments describe, at least one."""
    text: str = source or arguments.data
    data = Again(_start(text, arguments), arguments.batches, text)
    first(data, text)
    return data


def first(data: Iterable[Any], text: str = "the data") -> Any:
    """The first batch."""
    for batch in data:
        if isinstance(batch, Tensor | tuple | list | Mapping):
            return batch
        raise UsageError(
            f"{text!r} does not yield batches",
            expected="a tensor, a tuple of tensors (inputs, labels), or a dict of them",
            got=with_article(type(batch).__name__),
        )
    raise UsageError(
        f"{text!r} holds no batches",
        expected="at least one",
        hint="check the path, and that a generator was not already read to its end",
    )


def _start(text: str, arguments: argparse.Namespace) -> Callable[[], Iterable[Any]]:
    require_data(text)
    path = Path(text)
    if path.is_dir():
        size, mean, std = arguments.image_size or 224, arguments.mean or MEAN, arguments.std or STD
        folder = ImageFolder(path, arguments.batch_size or BATCH, size, tuple(mean), tuple(std))
        return lambda: folder
    if path.suffix == ".npz":
        batches = read_npz(path, arguments.batch_size or BATCH)
        return lambda: batches
    found = resolve(text, "data")
    if isinstance(found, Iterator):
        raise UsageError(
            f"{text!r} can be read only once",
            got=with_article(type(found).__name__),
            hint="name the function that makes it",
        )
    if not callable(found) or isinstance(found, Iterable):
        return lambda: _iterable(found, text)
    return lambda: _iterable(call(found, text, "data"), text)


def _iterable(found: Any, text: str) -> Iterable[Any]:
    if isinstance(found, Tensor):
        return [found]
    if not isinstance(found, Iterable):
        raise UsageError(
            f"{text!r} cannot be read as data",
            expected="an iterable of batches",
            got=type(found).__name__,
        )
    return found


def read_npz(path: Path, batch_size: int) -> list[Any]:
    """Batches of the arrays in a file: ``(x, y)`` for one array and labels, a dict by name for several.

    Arrays named labels, label, targets, target or y are labels. Double precision becomes single; nothing else changes.
    """
    if path.is_file() and not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an .npz file", expected="arrays, saved by numpy.savez")
    try:
        if path.is_file():
            require_expansion(path, MOST_EXPANSION)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", expected="plain arrays, saved by numpy.savez"
        ) from None
    except MemoryError:
        raise UsageError(f"{path} does not fit into memory") from None
    if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise UsageError(f"{path}: {strange[0]!r} is not an array", expected="arrays, saved by numpy.savez")
    tensors = {name: _tensor(name, array, path) for name, array in arrays.items()}
    sizes = {name: len(tensor) if tensor.dim() else 0 for name, tensor in tensors.items()}
    if not any(sizes.values()):
        raise UsageError(f"{path} holds no samples", expected="arrays whose first axis counts them")
    if len(set(sizes.values())) != 1:
        got = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UsageError(f"{path}: all arrays must have the same first dimension, the samples", got=got)
    label = next((name for name in LABELS if name in tensors), None)
    inputs = [name for name in tensors if name != label]
    if len(inputs) > 1:
        parts = {name: tensor.split(batch_size) for name, tensor in tensors.items()}
        return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
    if not inputs:
        raise UsageError(f"{path} holds labels only", got=str(label))
    pieces = tensors[inputs[0]].split(batch_size)
    return list(zip(pieces, tensors[label].split(batch_size), strict=True)) if label else list(pieces)


def _tensor(name: str, array: Any, path: Path) -> Tensor:
    try:
        tensor = torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
    except TypeError:
        raise UsageError(f"{path}: {name} holds {array.dtype}, which torch does not support") from None
    return tensor.long() if name in LABELS and not tensor.is_floating_point() else tensor


def example_inputs(
    arguments: argparse.Namespace, model: nn.Module, data: Iterable[Any] | None = None
) -> Call:
    """Example inputs: --input, else the first batch of the data, else the inputs it was quantized with."""
    if arguments.input:
        args, kwargs = from_shapes(arguments.input)
    elif data is not None:
        try:
            args, kwargs = example_from(model, first(data))
        except DataError as error:
            raise UsageError(
                f"the data does not fit {type(model).__name__}: {error.message}",
                expected=f"forward{inspect.signature(model.forward)}",
                got=error.got,
                hint="arrays of an .npz and keys of a batch are matched to arguments by name; labels are named "
                f"{', '.join(LABELS)}",
            ) from error
    elif isinstance(model, QuantModel):
        return Call(*model.inputs.example)  # saved with it
    else:
        raise UsageError("the model needs an example input", hint="add --input 1x3x224x224, or --data DATA")
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        named = f" and {', '.join(kwargs)} by name" if kwargs else ""
        raise UsageError(
            f"the {'input' if arguments.input else 'data'} does not fit {type(model).__name__}: {error}",
            expected=f"forward{signature}",
            got=f"{len(args)} inputs by position{named}",
            hint="arrays of an .npz, keys of a batch and --input NAME=SHAPE are matched to arguments by name; labels "
            f"are named {', '.join(LABELS)}",
        ) from error
    return Call(args, kwargs)


def from_shapes(texts: Sequence[str]) -> Call:
    """Random inputs of the given sizes.

    Example:
        >>> args, kwargs = from_shapes(["2x3", "mask=2x5:bool"])
        >>> args[0].shape, kwargs["mask"].dtype
        (torch.Size([2, 3]), torch.bool)
    """
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    chance = torch.Generator().manual_seed(0)
    for text in texts:
        match = _SHAPE.fullmatch(text)
        dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
        if match is None or not isinstance(dtype, torch.dtype):
            raise UsageError(
                f"cannot read the input {text!r}",
                expected="sizes such as 1x3x224x224, 1x128:int64 or mask=1x128:bool",
            )
        shape = tuple(int(size) for size in match["shape"].split("x"))
        if 0 in shape:
            raise UsageError(f"the input {text!r} holds nothing", expected="sizes of 1 and more")
        try:
            value = torch.ones(shape, dtype=dtype)  # a token or a mask value that is valid for every model
            if dtype.is_floating_point:
                value = torch.randn(shape, generator=chance).to(dtype)
        except RuntimeError as error:
            raise UsageError(f"there is not enough memory for an input of {text!r}") from error
        if match["name"]:
            kwargs[match["name"]] = value
        else:
            args.append(value)
    return Call(tuple(args), kwargs)
