"""Replace each marker by QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparsebit.errors import ExportError
from sparsebit.export.forms.container import Container, container_of
from sparsebit.export.forms.editor import SCALED, Editor, attribute
from sparsebit.export.translate.marker import DOMAIN, Marked, tensor_label
from sparsebit.numerics.layout import spread

BITS, NAME = "sparsebit.bits", "sparsebit.tensor"
_TYPES = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE"}


def lower(editor: Editor, *, unsigned_activations: bool, extra_info: bool) -> list[str]:
    """Replace every marker; returns the names of the tensors that are now integers in the file."""
    done: dict[tuple[str, Any], Any] = {}
    lowered: list[str] = []
    for node in [node for node in editor.graph.all_nodes() if node.domain == DOMAIN]:
        key = attribute(node, "key")
        if node.graph is not editor.graph:
            raise ExportError(
                f"{key!r} is quantized inside a branch or loop, which cannot be exported yet",
                hint="keep this tensor in float",
            )
        tensor = editor.markers.tensors[key]
        known = (key, node.inputs[0] if tensor.side == "A" else None)
        if known not in done:
            named = replace(tensor, name=tensor_label(key, lowered.count(key)))
            container = container_of(tensor, unsigned_activations=unsigned_activations, opset=editor.opset)
            info = {NAME: key, BITS: str(tensor.bits)} if extra_info else {}
            done[known] = _Lowering(editor, node, named, container, info).value()
            lowered.append(key)
        editor.swap(node, done[known])
    editor.sweep()
    for imports in (editor.model.opset_imports, editor.graph.opset_imports):
        imports.pop(DOMAIN, None)
    return list(dict.fromkeys(lowered))


class _Lowering:
    """One marker, and the nodes that are put in its place."""

    def __init__(
        self, editor: Editor, node: Any, tensor: Marked, container: Container, info: dict[str, str]
    ) -> None:
        self.editor, self.node, self.tensor, self.container, self.info = editor, node, tensor, container, info
        self.name, self.float32 = tensor.name, editor.ir.DataType.FLOAT
        needless = tensor.side == "W" and container.unpacked  # it is multiplied by its scales
        grid: tuple[Any, Any, dict[str, Any]] = (None, None, {}) if needless else self._grid()
        self.scale, self.zero_point, self.attributes = grid

    def value(self) -> Any:
        """The value that replaces the marker, in the type the model computes in."""
        original = self.editor.ir.DataType[_TYPES.get(self.tensor.dtype, "FLOAT")]
        codes = self._weight() if self.tensor.side == "W" else self._activation(original)
        value = self._unpacked(codes) if self.container.unpacked else self._dequantized(codes)
        return value if original == self.float32 else self._cast(value, original, "CastBack", "cast")

    def _put(self, op_type: str, inputs: list[Any], word: str, output: str, dtype: Any, **more: Any) -> Any:
        return self.editor.node(
            op_type, inputs, before=self.node, name=f"{self.name}/{word}", output=f"{self.name}.{output}",
            like=self.node.inputs[0], dtype=dtype, **more,
        )  # fmt: skip

    def _cast(self, value: Any, to: Any, word: str, output: str) -> Any:
        return self._put("Cast", [value], word, output, to, to=int(to))

    def _constant(self, values: Any, dtype: Any, word: str) -> Any:
        return self.editor.constant(np.asarray(values), dtype, f"{self.name}.{word}")

    def _weight(self) -> Any:
        codes = self.tensor.codes
        assert codes is not None
        dtype = self.container.dtype.numpy()
        array = codes.view(torch.uint8).numpy().view(dtype) if self.container.is_float else codes.numpy()
        return self._constant(array, self.container.dtype, "codes")

    def _activation(self, original: Any) -> Any:
        container, value = self.container, self.node.inputs[0]
        if original != self.float32:
            # the grid is always computed in float32, so the file does it too
            value = self._cast(value, self.float32, "Cast", "float")
        clips_numbers = container.clip is not None and "16" in container.kind
        if clips_numbers:  # no runtime clips 16-bit integers, nor computes on them
            if not self.tensor.per_tensor:
                raise ExportError(
                    f"{self.name!r}: {self.tensor.bits} bits with a scale per channel cannot be written"
                )
            bounds = [self._constant(float(end), self.float32, "bound") for end in self.tensor.grid.ends()]
            value = self._put("Clip", [value, *bounds], "Clip", "clipped", self.float32)
        more = {"saturate": 1} if container.is_float else {}
        value = self._put(
            "QuantizeLinear", [value, self.scale, self.zero_point], "QuantizeLinear", "codes",
            container.dtype, metadata=self.info, **self.attributes, **more,
        )  # fmt: skip
        if container.clip is not None and not clips_numbers:
            words = zip(container.clip, ("code_min", "code_max"), strict=True)
            bounds = [self._constant(end, container.dtype, word) for end, word in words]
            value = self._put("Clip", [value, *bounds], "Clip", "clipped", container.dtype)
        return value

    def _dequantized(self, codes: Any) -> Any:
        return self._put(
            "DequantizeLinear", [codes, self.scale, self.zero_point], "DequantizeLinear", "quantized",
            self.float32, metadata=self.info, **self.attributes,
        )  # fmt: skip

    def _unpacked(self, codes: Any) -> Any:
        """8-bit floats as a cast and a product.

        ONNX Runtime would replace DequantizeLinear by integer kernels, which then fail on 8-bit floats.
        """
        tensor = self.tensor
        scale = tensor.grid.scale[0] if tensor.per_tensor else tensor.grid.spread(tensor.shape)[0]
        wide = self._cast(codes, self.float32, "Widen", "wide")
        factors = [wide, self._constant(scale.numpy(), self.float32, "scale")]
        return self._put("Mul", factors, SCALED, "quantized", self.float32)

    def _grid(self) -> tuple[Any, Any, dict[str, int]]:
        """Scale, zero point and the attributes that give their axis and blocks."""
        grid, shape = self.tensor.grid, self.tensor.shape
        scale, zero_point = grid.scale.numpy(), grid.zero_point.numpy() + self.container.shift
        attributes: dict[str, int] = {}
        if scale.size == 1:
            scale, zero_point = scale.reshape(()), zero_point.reshape(())
        elif grid.layout.kind == "channel" and grid.layout.groups == 1:
            attributes["axis"] = grid.layout.axes[0] % max(len(shape), 1)
        else:
            axis, block = _blocks(self.tensor)
            scale, zero_point = (_by_block(self.tensor, v, axis, block) for v in (scale, zero_point))
            attributes |= {"axis": axis, "block_size": block}
        return (
            self._constant(scale, self.float32, "scale"),
            self._constant(zero_point, self.container.dtype, "zero_point"),
            attributes,
        )


def _blocks(tensor: Marked) -> tuple[int, int]:
    """Axis and length of the blocks that share a scale. With a shorter last group, the length divides both."""
    layout, shape = tensor.grid.layout, tensor.shape
    axis = layout.input_axis % len(shape)
    inputs = shape[axis] // (layout.groups if axis == 0 else 1)
    size = min(layout.group_size or inputs, inputs)
    if layout.groups > 1 and axis != 0:
        raise ExportError(f"{tensor.name!r}: no ONNX form for {layout}")
    return axis, math.gcd(size, inputs)


def _by_block(tensor: Marked, values: Any, axis: int, block: int) -> Any:
    """One value for each block of the tensor, in a tensor of its rank."""
    everywhere = spread(torch.from_numpy(np.ascontiguousarray(values)), tensor.shape, tensor.grid.layout)
    array = everywhere.expand(tensor.shape).numpy()
    return array[tuple(slice(None, None, block if place == axis else 1) for place in range(array.ndim))]
