"""Exact rewrites that let integer kernels in: no number changes, except that biases are rounded as the kernels do."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.editor import Editor, array_of, attribute, evaluated, only_reader, readers
from sparsebit.export.lower import MOVES, is_dequantized, quantized_source
from sparsebit.export.weights_first import as_matmul

OPAQUE_MOVES = frozenset({"Gather", "Flatten", "Slice", "DepthToSpace", "SpaceToDepth"})
_LIMITS = {"INT8": (-128, 127), "UINT8": (0, 255)}


def sizes_from_codes(editor: Editor) -> int:
    """Ask the codes of a tensor for its size, not the tensor: it then is read as codes alone; returns how many."""
    changed = 0
    for node in [node for node in editor.graph if node.op_type in ("Shape", "Size")]:
        quantize = next(
            (reader for reader in readers(node.inputs[0]) if reader.op_type == "QuantizeLinear"), None
        )
        if quantize is not None:
            node.replace_input_with(0, quantize.outputs[0])
            changed += 1
    if changed:
        editor.graph.sort()  # what depends on the size now comes behind the codes
    return changed


def pads_into_convs(editor: Editor) -> int:
    """Let a convolution pad with zeros itself, where a Pad in front of it did; returns how many. Empty ones go."""
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "Pad"]:
        pads = evaluated(editor, node.inputs[1])
        if pads is not None and not np.any(pads) and not node.outputs[0].is_graph_output():
            editor.replace(node.outputs[0], node.inputs[0])
    for node in [node for node in editor.graph if node.op_type == "Conv"]:
        pad = node.inputs[0].producer()
        if pad is None or pad.op_type != "Pad" or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
            continue
        ends = _zero_pads(editor, pad)
        if ends is None:
            continue
        before = list(attribute(node, "pads", [0] * len(ends)))
        sums = [int(a + b) for a, b in zip(before, ends, strict=True)]
        node.attributes["pads"] = editor.ir.AttrInt64s("pads", sums)
        node.replace_input_with(0, pad.inputs[0])
        changed += 1
    editor.sweep()
    return changed


def _zero_pads(editor: Editor, node: Any) -> list[int] | None:
    """What a Pad adds to the spatial axes, starts then ends; None if it does anything else."""
    pads, value = evaluated(editor, node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else None
    if attribute(node, "mode", "constant") != "constant" or pads is None or len(node.inputs) > 3:
        return None
    if value is not None and (array_of(value) is None or float(array_of(value)) != 0):
        return None
    rank = len(pads) // 2
    starts, ends = list(map(int, pads[:rank])), list(map(int, pads[rank:]))
    if any(starts[:2]) or any(ends[:2]) or min([*starts, *ends]) < 0:
        return None
    return [*starts[2:], *ends[2:]]


def repeat_grids(editor: Editor) -> int:
    """Quantize once more, on the same grid, behind operators that integers do not pass by themselves; returns how many.

    The numbers are on the grid already, so this changes none of them; but ONNX Runtime then sees integers in front of
    the product behind a Gather or Flatten, and runs both on integers.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in ("Gemm", "MatMul", "Conv")]:
        value, opaque = node.inputs[0], False
        while (before := value.producer()) is not None and before.op_type in MOVES | OPAQUE_MOVES | {
            "MaxPool"
        }:
            opaque |= before.op_type in OPAQUE_MOVES
            value = before.inputs[0]
        source, weight = is_dequantized(value), is_dequantized(node.inputs[1])
        if not opaque or source is None or weight is None or array_of(source.inputs[0]) is not None:
            continue
        if np.ndim(array_of(source.inputs[1])) != 0:
            continue
        moved, name = node.inputs[0], source.name.removesuffix("/DequantizeLinear")
        grid, label = list(source.inputs[1:3]), f"{name}/again/{node.name}"
        codes = editor.node(
            "QuantizeLinear", [moved, *grid], before=node, name=f"{label}/Quantize", output=f"{label}.codes",
            like=moved, dtype=source.inputs[0].dtype,
        )  # fmt: skip
        again = editor.node(
            "DequantizeLinear", [codes, *grid], before=node, name=f"{label}/Dequantize",
            output=f"{label}.quantized", like=moved, dtype=moved.dtype,
        )  # fmt: skip
        node.replace_input_with(0, again)
        changed += 1
    return changed


def clip_codes(editor: Editor) -> int:
    """Take a Relu or Clip in front of QuantizeLinear over to the codes; returns how many.

    Quantizing is monotonic, so clipping the numbers and clipping their codes are the same; and what the range of
    the codes clips anyway needs nothing at all. A convolution then ends in QuantizeLinear directly, as it must
    to run on integers.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "QuantizeLinear"]:
        kind = node.outputs[0].dtype
        scale, zero_point = array_of(node.inputs[1]), array_of(node.inputs[2])
        if (
            kind is None
            or kind.name not in _LIMITS
            or scale is None
            or scale.ndim
            or not _behind_kernel(node)
        ):
            continue
        clip, pools = node.inputs[0].producer(), []
        while clip is not None and clip.op_type == "MaxPool" and only_reader(clip.outputs[0]) is not None:
            pools.append(clip)
            clip = clip.inputs[0].producer()
        if clip is None or clip.op_type not in ("Relu", "Clip") or only_reader(clip.outputs[0]) is None:
            continue
        bounds = _bounds(clip)
        if bounds is None or (pools and len(pools[-1].outputs) > 1):
            continue
        low, high = (_code(end, scale, zero_point, _LIMITS[kind.name]) for end in bounds)
        editor.replace(clip.outputs[0], clip.inputs[0])
        _clip(editor, node, low, high, kind)
        changed += 1
    editor.sweep()
    return changed


def _behind_kernel(node: Any) -> bool:
    """Whether what is before the activation has an integer kernel that ends in codes."""
    value = node.inputs[0]
    while value.producer() is not None and value.producer().op_type in ("MaxPool", "Relu", "Clip"):
        value = value.producer().inputs[0]
    before = value.producer()
    return before is not None and before.op_type in (
        "Conv",
        "Add",
        "Gemm",
        "MatMul",
        "Concat",
        "Mul",
        "AveragePool",
    )


def _bounds(node: Any) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    ends = []
    for index, missing in ((1, -np.inf), (2, np.inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            ends.append(missing)
            continue
        array = array_of(value)
        if array is None:
            return None
        ends.append(float(array))
    return ends[0], ends[1]


def _code(number: float, scale: Any, zero_point: Any, limits: tuple[int, int]) -> int:
    if np.isinf(number):
        return limits[number > 0]
    code = np.rint(np.float32(number) / np.float32(scale)) + int(zero_point)
    return int(np.clip(code, *limits))


def _clip(editor: Editor, node: Any, low: int, high: int, kind: Any) -> None:
    """Clip the codes of a QuantizeLinear, together with a Clip that is already there."""
    codes = node.outputs[0]
    following = only_reader(codes)
    merged = following is not None and following.op_type == "Clip"
    if merged:
        ends = [array_of(value) for value in following.inputs[1:3]]
        low, high = max(low, int(ends[0])), min(high, int(ends[1]))
    if (low, high) == _LIMITS[kind.name]:
        return
    name = node.name.removesuffix("/QuantizeLinear")
    bounds = [editor.constant(np.array(end), kind, f"{name}.code_bound") for end in (low, high)]
    if merged:
        for index, value in enumerate(bounds):
            following.replace_input_with(index + 1, value)
        return
    users = readers(codes)
    clipped = editor.node(
        "Clip", [codes, *bounds], before=users[0], name=f"{name}/Clip", output=f"{name}.clipped",
        like=codes, dtype=kind,
    )  # fmt: skip
    for user, index in list(codes.uses()):
        if user is not clipped.producer():
            user.replace_input_with(index, clipped)


def sums_before_norms(editor: Editor) -> int:
    """Spell the residual add in front of a layer norm as Sum; returns how many.

    ONNX Runtime fuses Add and LayerNormalization to SkipLayerNormalization, whose CPU kernel takes nine times as long
    as the two apart (1.31, 128 x 384: 0.25 ms against 0.03). It does not fuse Sum, which computes the same.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "Add"]:
        norms = any(reader.op_type == "LayerNormalization" for reader in readers(node.outputs[0]))
        if not norms or any(array_of(value) is not None for value in node.inputs):
            continue
        value = editor.node(
            "Sum", list(node.inputs), before=node, name=f"{node.name}/Sum", output=f"{node.outputs[0].name}_summed",
            like=node.outputs[0], dtype=node.outputs[0].dtype,
        )  # fmt: skip
        editor.replace(node.outputs[0], value)
        editor.graph.remove(node, safe=True)
        changed += 1
    return changed


def integer_biases(editor: Editor) -> int:
    """Store the bias of a quantized Linear as int32 with the scale of the products; returns how many.

    The scale must be exactly input scale times weight scale, or ONNX Runtime stays in float. Convolutions keep theirs
    in float, because there the runtime does the same by itself.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in ("Gemm", "MatMul")]:
        weight, source = is_dequantized(node.inputs[1]), quantized_source(node.inputs[0])
        if weight is None or source is None or array_of(weight.inputs[0]) is None:
            continue
        where = (node, 2) if node.op_type == "Gemm" else _added(node)
        if where is None or len(where[0].inputs) <= where[1] or where[0].inputs[where[1]] is None:
            continue
        reader, index = where
        bias = array_of(reader.inputs[index])
        scales = _product_scale(node, source, weight)
        if bias is None or bias.ndim != 1 or bias.dtype != np.float32 or scales is None:
            continue
        codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
        if scales.shape not in ((), bias.shape):
            continue
        if np.abs(codes).max(initial=0) >= 2**31:
            _keep_apart(editor, node, reader, index, bias)
            continue
        reader.replace_input_with(index, _stored(editor, reader, reader.inputs[index], codes, scales))
        changed += 1
    editor.sweep()
    return changed


def _keep_apart(editor: Editor, node: Any, reader: Any, index: int, bias: Any) -> None:
    """Leave a bias too large for int32 in float, and subtract its negative: a sum would undo the integer product."""
    if node.op_type == "Gemm":
        as_matmul(editor, node, apart=True)
        return
    name = reader.inputs[index].name
    negated = editor.constant(-bias, reader.inputs[index].dtype, f"{name}.negated")
    value = editor.node(
        "Sub", [node.outputs[0], negated], before=reader, name=f"{reader.name}/Sub",
        output=f"{reader.outputs[0].name}_sum", like=reader.outputs[0], dtype=reader.outputs[0].dtype,
    )  # fmt: skip
    editor.replace(reader.outputs[0], value)
    editor.graph.remove(reader, safe=True)


def _stored(editor: Editor, reader: Any, bias: Any, codes: Any, scales: Any) -> Any:
    int32, float32 = editor.ir.DataType.INT32, editor.ir.DataType.FLOAT
    name = bias.name
    inputs = [
        editor.constant(codes.astype(np.int32), int32, f"{name}.codes"),
        editor.constant(scales, float32, f"{name}.scale"),
        editor.constant(np.zeros(scales.shape), int32, f"{name}.zero_point"),
    ]
    attributes: dict[str, Any] = {"axis": 0} if scales.ndim else {}
    return editor.node(
        "DequantizeLinear", inputs, before=reader, name=f"{name}/DequantizeLinear",
        output=f"{name}.quantized", like=bias, dtype=float32, **attributes,
    )  # fmt: skip


def _added(node: Any) -> tuple[Any, int] | None:
    """The Add right behind a MatMul, and the place of its other input."""
    reader = only_reader(node.outputs[0])
    if reader is None or reader.op_type != "Add":
        return None
    return reader, 1 if reader.inputs[0] is node.outputs[0] else 0


def _product_scale(node: Any, source: Any, weight: Any) -> Any:
    """Input scale times weight scale, in float32 as the runtime multiplies; None where they vary inside a product."""
    ours, theirs = array_of(source.inputs[1]), array_of(weight.inputs[1])
    if attribute(weight, "block_size", 0) or ours.dtype != np.float32 or theirs.dtype != np.float32:
        return None
    if theirs.ndim == 0:
        return (ours * theirs).reshape(())
    output_axis = 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
    if theirs.ndim != 1 or attribute(weight, "axis", 1) % 2 != output_axis:
        return None
    return ours * theirs
