"""Shared by formats that write a decoder's graph to a folder: supported matrices and decoders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.formats.format import FormatRefusal, WeightKind, refuse_by_kind
from sparsebit.llm.formats.matmul_nbits import block_of, stored_bits
from sparsebit.llm.language_model import LanguageModel
from sparsebit.numerics.packing import packed_length


class DecoderFolder:
    """A folder whose matrices are 2, 4 or 8 bits in blocks of 16 to 256 input channels.

    The width of a head must be a multiple of ``head_step``.
    """

    name: ClassVar[str]
    head_step: ClassVar[int]
    half_scales: ClassVar[bool]  # whether fp16 scales are stored as such, and not in float32
    byte_points: ClassVar[bool]  # whether a zero point takes a byte, and not the bits of a quantized value
    extension: ClassVar[str] = ""
    mixes_widths: ClassVar[bool] = True
    mixes_experts: ClassVar[bool] = True

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Weights that are not 2, 3, 4 or 8 bits in blocks of 16 to 256."""
        if kind.code.kind not in ("int", "full", "uint") or kind.code.bits not in (2, 3, 4, 8):
            return FormatRefusal(layer, f"it has no type for {kind.code}", "BIT: 2, 3, 4 or 8")
        if block_of(kind.group_size or kind.shape[1]) < 16:
            return FormatRefusal(layer, "its blocks are 16 to 256 input channels", "GROUP_SIZE: 32")
        return None

    def nbytes(self, kind: WeightKind) -> int:
        """Three bits are stored as four, and larger groups as several blocks with a scale each."""
        (rows, columns), bits = kind.shape, stored_bits(kind.code.bits)
        count = columns // block_of(kind.group_size or columns)
        scale = 2 if self.half_scales and kind.scale_dtype == torch.float16 else 4
        points = 0 if kind.code.symmetric else packed_length(count, 8 if self.byte_points else bits)
        return rows * (packed_length(columns, bits) + count * scale + points)

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers whose blocks or types the engine does not have; a decoder that it does not have is an error."""
        for layer in describe_decoder(model.model, self.name).layers:
            if layer.attention.width % self.head_step:
                raise SparsebitError(
                    f"{self.name} folders do not support heads of this size",
                    expected=f"a multiple of {self.head_step} channels",
                    got=f"{layer.attention.width} channels",
                    hint="choose another format",
                )
        return refuse_by_kind(model, self.refuse)
