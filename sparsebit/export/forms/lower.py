"""Markers become QuantizeLinear and DequantizeLinear, each where it stands."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparsebit.export.errors import ExportError
from sparsebit.export.forms.container import Container, container_of
from sparsebit.export.forms.editor import Editor, array_of, attribute, readers
from sparsebit.export.translate.marker import DOMAIN, Marked, Markers
from sparsebit.numerics.layout import spread

MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
SCALED = "Scaled"
BITS, NAME = "sparsebit.bits", "sparsebit.tensor"


def lower(
    model: Any, markers: Markers, *, unsigned_activations: bool, opset: int, extra_info: bool
) -> list[str]:
    """Replace every marker; returns the names of the tensors that are now integers in the file."""
    editor = Editor(model)
    done: dict[tuple[str, Any], Any] = {}
    lowered: list[str] = []
    for node in [node for node in editor.graph.all_nodes() if node.domain == DOMAIN]:
        if node.graph is not editor.graph:
            raise ExportError(
                f"{attribute(node, 'key')!r} is quantized inside a branch or loop, which cannot be written yet",
                hint="leave this tensor in float",
            )
        key = attribute(node, "key")
        tensor, source = markers.tensors[key], node.inputs[0]
        known = (key, source if tensor.side == "A" else None)
        if known not in done:
            container = container_of(tensor, unsigned_activations=unsigned_activations, opset=opset)
            info = {NAME: key, BITS: str(tensor.bits)} if extra_info else {}
            label = tensor_label(key, lowered.count(key))
            write = _write_weight if tensor.side == "W" else _write_activation
            done[known] = write(editor, node, replace(tensor, name=label), container, info)
            lowered.append(key)
        editor.replace(node.outputs[0], done[known])
        editor.graph.remove(node, safe=True)
    editor.sweep()
    model.opset_imports.pop(DOMAIN, None)
    editor.graph.opset_imports.pop(DOMAIN, None)
    return list(dict.fromkeys(lowered))


def tensor_label(name: str, call: int) -> str:
    """The name in the file of the tensor a quantizer sees in its n-th call, counted from 0; most are called once."""
    return name if call == 0 else f"{name}@{call}"


def _write_activation(
    editor: Editor, node: Any, tensor: Marked, container: Container, info: dict[str, str]
) -> Any:
    ir = editor.ir
    name, source = tensor.name, node.inputs[0]
    scale, zero_point, attributes = _grid(editor, tensor, container)
    value, original = source, _onnx_type(editor, tensor)
    if original != ir.DataType.FLOAT:
        # the grid is computed in float32 whatever the model computes in, so the file does it too
        value = editor.node(
            "Cast", [value], before=node, name=f"{name}/Cast", output=f"{name}.float", like=source,
            dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT),
        )  # fmt: skip
    if container.clip is not None and container.kind in ("INT16", "UINT16"):
        value = _clip_numbers(
            editor, node, tensor, value
        )  # no runtime clips 16-bit codes, nor computes on them
    more = {"saturate": 1} if container.is_float else {}
    value = editor.node(
        "QuantizeLinear", [value, scale, zero_point], before=node, name=f"{name}/QuantizeLinear",
        output=f"{name}.codes", like=source, dtype=container.dtype, metadata=dict(info), **attributes, **more,
    )  # fmt: skip
    if container.clip is not None and container.kind in ("INT8", "UINT8"):
        low, high = (
            editor.constant(np.array(end), container.dtype, f"{name}.code_{word}")
            for end, word in zip(container.clip, ("min", "max"), strict=True)
        )
        value = editor.node(
            "Clip", [value, low, high], before=node, name=f"{name}/Clip", output=f"{name}.clipped",
            like=source, dtype=container.dtype,
        )  # fmt: skip
    if container.unpacked:
        value = _unpacked(editor, node, tensor, value)
    else:
        value = editor.node(
            "DequantizeLinear", [value, scale, zero_point], before=node, name=f"{name}/DequantizeLinear",
            output=f"{name}.quantized", like=source, dtype=ir.DataType.FLOAT, metadata=dict(info), **attributes,
        )  # fmt: skip
    return _back(editor, node, name, value, source, original)


def _clip_numbers(editor: Editor, node: Any, tensor: Marked, value: Any) -> Any:
    if not tensor.per_tensor:
        raise ExportError(f"{tensor.name!r}: {tensor.bits} bits with a scale per channel cannot be written")
    ends = [float(end) for end in tensor.grid.ends()]
    bounds = [
        editor.constant(np.array(end), editor.ir.DataType.FLOAT, f"{tensor.name}.bound") for end in ends
    ]
    return editor.node(
        "Clip", [value, *bounds], before=node, name=f"{tensor.name}/Clip", output=f"{tensor.name}.clipped",
        like=value, dtype=value.dtype,
    )  # fmt: skip


def _write_weight(
    editor: Editor, node: Any, tensor: Marked, container: Container, info: dict[str, str]
) -> Any:
    name, source = tensor.name, node.inputs[0]
    assert tensor.codes is not None
    if container.unpacked:
        codes = editor.constant(_codes(tensor, container), container.dtype, f"{name}.codes")
        value = _unpacked(editor, node, tensor, codes)
        return _back(editor, node, name, value, source, _onnx_type(editor, tensor))
    scale, zero_point, attributes = _grid(editor, tensor, container)
    initializer = editor.constant(_codes(tensor, container), container.dtype, f"{name}.codes")
    value = editor.node(
        "DequantizeLinear", [initializer, scale, zero_point], before=node, name=f"{name}/DequantizeLinear",
        output=f"{name}.quantized", like=source, dtype=editor.ir.DataType.FLOAT, metadata=dict(info), **attributes,
    )  # fmt: skip
    return _back(editor, node, name, value, source, _onnx_type(editor, tensor))


def _unpacked(editor: Editor, node: Any, tensor: Marked, codes: Any) -> Any:
    """8-bit floats as a cast and a product.

    Kernels for integers would take the place of DequantizeLinear, and then refuse 8-bit floats.
    """
    float32, name = editor.ir.DataType.FLOAT, tensor.name
    value = editor.node(
        "Cast", [codes], before=node, name=f"{name}/Widen", output=f"{name}.wide", like=node.inputs[0],
        dtype=float32, to=int(float32),
    )  # fmt: skip
    scale = tensor.grid.scale[0] if tensor.per_tensor else tensor.grid.spread(tensor.shape)[0]
    return editor.node(
        "Mul", [value, editor.constant(scale.numpy(), float32, f"{name}.scale")], before=node, name=f"{name}/{SCALED}",
        output=f"{name}.quantized", like=node.inputs[0], dtype=float32,
    )  # fmt: skip


def _onnx_type(editor: Editor, tensor: Marked) -> Any:
    names = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE"}
    return editor.ir.DataType[names.get(tensor.dtype, "FLOAT")]


def _back(editor: Editor, node: Any, name: str, value: Any, source: Any, original: Any) -> Any:
    """In the type the model computes in."""
    if original == editor.ir.DataType.FLOAT:
        return value
    return editor.node(
        "Cast", [value], before=node, name=f"{name}/CastBack", output=f"{name}.cast", like=source,
        dtype=original, to=int(original),
    )  # fmt: skip


def _codes(tensor: Marked, container: Container) -> Any:
    codes = tensor.codes
    assert codes is not None
    if container.is_float:
        return codes.view(torch.uint8).numpy().view(container.dtype.numpy())
    return codes.numpy()


def _grid(editor: Editor, tensor: Marked, container: Container) -> tuple[Any, Any, dict[str, int]]:
    """Scale, zero point and the attributes that say how they lie along the tensor."""
    scale, zero_point = tensor.grid.scale.numpy(), tensor.grid.zero_point.numpy() + container.shift
    layout, shape, float32 = tensor.grid.layout, tensor.shape, editor.ir.DataType.FLOAT
    attributes: dict[str, int] = {}
    if scale.size == 1:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    elif layout.kind == "channel" and layout.groups == 1:
        attributes["axis"] = layout.axes[0] % max(len(shape), 1)
    else:
        axis, block = _blocks(tensor)
        scale, zero_point = (_by_block(tensor, v, axis, block) for v in (scale, zero_point))
        attributes |= {"axis": axis, "block_size": block}
    return (
        editor.constant(scale, float32, f"{tensor.name}.scale"),
        editor.constant(zero_point, container.dtype, f"{tensor.name}.zero_point"),
        attributes,
    )


def _blocks(tensor: Marked) -> tuple[int, int]:
    """Axis and length of the blocks that share a scale. A shorter last group is cut into pieces all have in common."""
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
    index = tuple(slice(None, None, block) if place == axis else slice(None) for place in range(array.ndim))
    return array[index]


def is_dequantized(value: Any) -> Any:
    """The DequantizeLinear a value comes from, or None."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def reads_only(value: Any, *op_types: str) -> bool:
    """Whether all readers of a value are of these types."""
    found = readers(value)
    return bool(found) and not value.is_graph_output() and all(node.op_type in op_types for node in found)


def is_float8(value: Any) -> bool:
    """Whether a value is made of 8-bit floats that were unpacked, perhaps behind a reshape."""
    while value.producer() is not None and value.producer().op_type in MOVES:
        value = value.producer().inputs[0]
    node = value.producer()
    return node is not None and node.op_type == "Mul" and str(node.name).endswith(f"/{SCALED}")


def behind_moves(value: Any) -> Any:
    """The DequantizeLinear a value comes from, perhaps behind a reshape, or None."""
    while value.producer() is not None and value.producer().op_type in MOVES:
        value = value.producer().inputs[0]
    return is_dequantized(value)


def quantized_source(value: Any) -> Any:
    """The DequantizeLinear with one scale that an activation comes from, perhaps behind a reshape, or None."""
    node = behind_moves(value)
    if node is None:
        return None
    scale = array_of(node.inputs[1])
    return node if scale is not None and scale.ndim == 0 and array_of(node.inputs[0]) is None else None
