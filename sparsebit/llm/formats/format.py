"""The base class of file formats: what a format can store, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLayer, PackedLinear
from sparsebit.llm.packed.plain_linear import multiplies_only
from sparsebit.numerics import CodeType
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import packed_length
from sparsebit.registry import Registry
from sparsebit.sparse.shrink.pretrained import is_pretrained

Holder = Literal["linear", "conv1d", "embedding", "experts", "other"]


class FormatRefusal(NamedTuple):
    """A layer that a format cannot store exactly, and the setting with which it could."""

    layer: str
    reason: str
    setting: str


class WeightKind(NamedTuple):
    """What is known about a weight before its values."""

    code: CodeType
    group_size: int | None
    scale_dtype: torch.dtype
    shape: tuple[int, int]  # [out, in]
    holder: Holder = "linear"

    @property
    def groups(self) -> int:
        """The groups of a row."""
        return self.shape[1] // (self.group_size or self.shape[1])


class Format(Protocol):
    """One format: its refusals are collected before anything is written."""

    extension: ClassVar[str]  # of the file; empty for a folder
    engine: ClassVar[Engine]  # what the written file is loaded with to prove it
    mixes_widths: ClassVar[bool]  # whether layers may differ in their bits
    mixes_experts: ClassVar[bool]  # whether experts may

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Why weights of this kind can never be stored exactly; None if they can."""
        ...

    def nbytes(self, kind: WeightKind) -> int:
        """The bytes of a weight of this kind in the file: quantized values, scales and zero points."""
        ...

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Every layer that cannot be written without changing its numbers."""
        ...

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Write a model that was not refused. ``ids`` are for choices made by measurement."""
        ...


FORMATS: Registry[type[Format]] = Registry("format")


def require_exact(format_name: str, format: Format, model: LanguageModel) -> None:
    """Raise an error unless the format stores every weight bit for bit."""
    if not model.weights:
        raise SparsebitError(
            f"{format_name} stores quantized weights, and the model has none",
            hint="quantize with W.BIT, or write the float model: model.model.save_pretrained(folder)",
        )
    require_transformers(model.model, format_name)
    found = [
        FormatRefusal(name, "its groups reorder input channels", "groups of neighbouring input channels")
        for name, held in layers_of(model)
        if held.grid.order is not None
    ]
    found += format.refusals(model)
    if found:
        first = found[0]
        others = len({refusal.layer for refusal in found}) - 1
        more = f", and {others} more layers" if others else ""
        raise SparsebitError(
            f"{format_name} cannot store {first.layer!r} exactly{more}: {first.reason}",
            expected=first.setting,
            hint="quantize with that setting, or choose another format",
        )


def refuse_by_kind(
    model: LanguageModel, refuse: Callable[[str, WeightKind], FormatRefusal | None]
) -> Iterator[FormatRefusal]:
    """The layers of a model that a format refuses by their kind alone."""
    for name, held in layers_of(model):
        if refusal := refuse(name, kind_of(model.model, name, held)):
            yield refusal


def kind_of(model: nn.Module, layer: str, held: PackedTensor) -> WeightKind:
    """The kind of a packed weight, as formats are asked about it."""
    rows, columns = held.shape
    grid = held.grid
    return WeightKind(
        grid.code, grid.layout.group_size, grid.scale.dtype, (rows, columns), holder_of(model, layer)
    )


def holder_of(model: nn.Module, layer: str) -> Holder:
    """The kind of module that holds a weight; "conv1d" is GPT-2's layer, which stores [in, out]."""
    if "[" in layer:
        return "experts"
    path, _, key = layer.rpartition(".")
    module = getattr(model.get_submodule(path), key)
    if isinstance(module, (nn.Embedding, PackedEmbedding)):
        return "embedding"
    if type(module).__name__ == "Conv1D" or (isinstance(module, PackedLinear) and module.transposed):
        return "conv1d"
    return "linear" if isinstance(module, PackedLinear) or multiplies_only(module) else "other"


def float_state(model: nn.Module, *, once: bool = True) -> dict[str, Tensor]:
    """Every tensor that is not packed, by its original state-dict name; tied ones ``once``, or under all names."""
    packed = tuple(f"{name}." for name, one in model.named_modules() if isinstance(one, PackedLayer))
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        is_bias = name.endswith(".bias")
        if name.startswith(packed) and not is_bias:
            continue
        if once and tensor.data_ptr() in seen and tensor.numel():
            continue
        seen.add(tensor.data_ptr())
        found[name] = tensor
    return found


def require_transformers(model: nn.Module, format_name: str) -> None:
    """Raise an error unless this is a transformers model, whose class and config the format needs."""
    if not is_pretrained(model):
        raise SparsebitError(
            f"{format_name} needs a transformers model",
            got=type(model).__name__,
            hint="save it with model.save(folder)",
        )


def write_pretrained(
    model: LanguageModel, path: Path, tensors: dict[str, Tensor], quantization_config: dict[str, Any]
) -> None:
    """A folder of transformers: all tensors, the config and the tokenizer."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path / "model.safetensors", metadata={"format": "pt"})
    config: Any = model.model.config
    described = config.to_dict() | {
        "quantization_config": quantization_config,
        "architectures": [type(model.model).__name__],
    }
    type(config).from_dict(described).save_pretrained(path)
    model.save_tokenizer(path)


def by_rows(held: PackedTensor) -> tuple[Tensor, Tensor]:
    """Scales and zero points as [out, groups]."""
    rows = held.shape[0]
    return held.grid.scale.reshape(rows, -1), held.grid.zero_point.reshape(rows, -1).to(torch.int64)


def words(packed: Tensor) -> Tensor:
    """Rows of bytes as rows of little-endian 32-bit words, filled up with zeros.

    Example:
        >>> words(torch.tensor([[1, 0, 0, 0, 2]], dtype=torch.uint8))
        tensor([[1, 2]], dtype=torch.int32)
    """
    padded = torch.nn.functional.pad(packed, (0, -packed.shape[-1] % 4))
    # Flat first: a single row may be contiguous with a stride that a view of another width refuses.
    return padded.flatten().view(torch.int32).view(*padded.shape[:-1], -1)


def word_bytes(count: int, bits: int) -> int:
    """The bytes of a row of ``words``."""
    return packed_length(count, bits) + -packed_length(count, bits) % 4


def layers_of(model: LanguageModel) -> Iterator[tuple[str, PackedTensor]]:
    """The packed matrices by the name of their layer, without ".weight"."""
    for name, held in model.weights.items():
        yield name.removesuffix(".weight"), held
