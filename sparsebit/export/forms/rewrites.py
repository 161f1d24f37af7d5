"""Exact rewrites that make integer kernels possible. Each takes one node and returns whether it changed it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import (
    MOVES,
    Editor,
    array_of,
    attribute,
    dequantized,
    only_reader,
    readers,
)

OPAQUE_MOVES = frozenset({"Gather", "Flatten", "Slice", "Concat", "DepthToSpace", "SpaceToDepth"})
ACTIVATIONS = ("Relu", "Clip")
ENDS_IN_CODES = ("Conv", "Add", "Gemm", "MatMul", "Concat", "Mul", "AveragePool")  # integer kernels that do
LIMITS = {"INT8": (-128, 127), "UINT8": (0, 255)}


def size_from_codes(editor: Editor, node: Any) -> bool:
    """Take the size of a tensor from its quantized values, so that only quantized values of it are read."""
    found = [reader for reader in readers(node.inputs[0]) if reader.op_type == "QuantizeLinear"]
    if found:
        node.replace_input_with(0, found[0].outputs[0])
    return bool(found)


def drop_empty_pad(editor: Editor, node: Any) -> bool:
    """Remove a Pad that adds nothing."""
    pads = editor.evaluated(node.inputs[1])
    if pads is None or np.any(pads) or node.outputs[0].is_graph_output():
        return False
    editor.replace(node.outputs[0], node.inputs[0])
    return True


def pad_into_conv(editor: Editor, node: Any) -> bool:
    """Move the zeros of a Pad into the padding of the convolution after it."""
    pad = node.inputs[0].producer()
    if pad is None or pad.op_type != "Pad" or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    ends = _zero_pads(editor, pad)
    if ends is None:
        return False
    before = attribute(node, "pads", [0] * len(ends))
    sums = [int(a + b) for a, b in zip(before, ends, strict=True)]
    node.attributes["pads"] = editor.ir.AttrInt64s("pads", sums)
    node.replace_input_with(0, pad.inputs[0])
    return True


def _zero_pads(editor: Editor, node: Any) -> list[int] | None:
    """The zeros that a Pad adds to the spatial axes, starts then ends; None if it does anything else."""
    pads, value = editor.evaluated(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else None
    if attribute(node, "mode", "constant") != "constant" or pads is None or len(node.inputs) > 3:
        return None
    if value is not None and (array_of(value) is None or float(array_of(value)) != 0):
        return None
    rank = len(pads) // 2
    starts, ends = list(map(int, pads[:rank])), list(map(int, pads[rank:]))
    if any(starts[:2]) or any(ends[:2]) or min([*starts, *ends]) < 0:
        return None
    return [*starts[2:], *ends[2:]]


def repeat_grid(editor: Editor, node: Any) -> bool:
    """Quantize once more, on the same grid, before a product that follows operators without integer kernels.

    The numbers are on the grid already, so this changes none of them; but ONNX Runtime then sees integers before
    the product after a Gather or Flatten, and runs both on integers.
    """
    passed: set[str] = set()
    source, weight = _moved_from(node.inputs[0], passed), dequantized(node.inputs[1])
    if not passed & OPAQUE_MOVES or source is None or weight is None:
        return False
    if array_of(source.inputs[0]) is not None or np.ndim(array_of(source.inputs[1])) != 0:
        return False
    name = source.name.removesuffix("/DequantizeLinear")
    again = _on_grid(editor, node.inputs[0], source, before=node, label=f"{name}/again/{node.name}")
    node.replace_input_with(0, again)
    return True


def _moved_from(value: Any, passed: set[str]) -> Any:
    """The DequantizeLinear from which all numbers of a value come unchanged; operators in between go to ``passed``."""
    before = value.producer()
    if before is None or before.op_type == "DequantizeLinear":
        return before
    if before.op_type not in MOVES | OPAQUE_MOVES | {"MaxPool"}:
        return None
    passed.add(before.op_type)
    parts = before.inputs if before.op_type == "Concat" else before.inputs[:1]
    sources = [_moved_from(part, passed) for part in parts]
    return sources[0] if all(source is sources[0] for source in sources) else None


def _on_grid(editor: Editor, value: Any, like: Any, *, before: Any, label: str) -> Any:
    """A value quantized and dequantized on the grid of a QuantizeLinear or DequantizeLinear."""
    grid, kind = list(like.inputs[1:3]), like.inputs[2].dtype
    codes = editor.node(
        "QuantizeLinear", [value, *grid], before=before, name=f"{label}/Quantize", output=f"{label}.codes",
        like=value, dtype=kind,
    )  # fmt: skip
    return editor.node(
        "DequantizeLinear", [codes, *grid], before=before, name=f"{label}/Dequantize",
        output=f"{label}.quantized", like=value,
    )  # fmt: skip


def grids_before_concat(editor: Editor, node: Any) -> bool:
    """Quantize the float inputs of a Concat on the grid that its result is quantized on.

    That changes no result, and all inputs being integers, the Concat runs on integers: nothing is unpacked for it.
    """
    quantize = only_reader(node.outputs[0])
    if quantize is None or quantize.op_type != "QuantizeLinear" or not _one_grid_of_8_bits(quantize):
        return False
    sources = [dequantized(value) for value in node.inputs]
    if None not in sources or all(source is None for source in sources):
        return False
    for index, (value, source) in enumerate(zip(list(node.inputs), sources, strict=True)):
        if source is None and array_of(value) is None:
            label = f"{node.name}/{index}"
            node.replace_input_with(index, _on_grid(editor, value, quantize, before=node, label=label))
    return True


def mean_as_pool(editor: Editor, node: Any) -> bool:
    """Write a mean over height and width between quantized tensors as GlobalAveragePool, which runs on integers."""
    source, quantize = dequantized(node.inputs[0]), only_reader(node.outputs[0])
    if source is None or quantize is None or quantize.op_type != "QuantizeLinear":
        return False
    axes = editor.evaluated(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    tensor = editor.markers.tensors.get(source.name.removesuffix("/DequantizeLinear"))
    if axes is None or tensor is None or len(tensor.shape) != 4 or not _one_grid_of_8_bits(quantize):
        return False
    if sorted(int(axis) % 4 for axis in axes) != [2, 3]:
        return False
    name, dtype = node.name, node.outputs[0].dtype
    pool = f"{name}/GlobalAveragePool"
    value = editor.node("GlobalAveragePool", [node.inputs[0]], before=node, name=pool, dtype=dtype)
    if not attribute(node, "keepdims", 1):
        value = _on_grid(editor, value, quantize, before=node, label=f"{name}/pooled")
        value = editor.node(
            "Flatten", [value], before=node, name=f"{name}/Flatten", like=node.outputs[0], axis=1
        )
    editor.swap(node, value)
    return True


def _one_grid_of_8_bits(quantize: Any) -> bool:
    kind = quantize.inputs[2].dtype
    return kind is not None and kind.name in LIMITS and np.ndim(array_of(quantize.inputs[1])) == 0


def clip_codes(editor: Editor, node: Any) -> bool:
    """Apply a Relu or Clip before a QuantizeLinear to the quantized values instead.

    Quantizing is monotonic, so clipping the numbers and clipping the quantized values are the same; and what the
    range of the grid clips anyway needs nothing at all. A convolution then ends in QuantizeLinear directly, as it
    must to run on integers.
    """
    kind = node.outputs[0].dtype
    scale, zero_point = array_of(node.inputs[1]), array_of(node.inputs[2])
    if kind is None or kind.name not in LIMITS or scale is None or scale.ndim or not _behind_kernel(node):
        return False
    clip, pools = node.inputs[0].producer(), []
    while clip is not None and clip.op_type == "MaxPool" and only_reader(clip.outputs[0]) is not None:
        pools.append(clip)
        clip = clip.inputs[0].producer()
    if clip is None or clip.op_type not in ACTIVATIONS or only_reader(clip.outputs[0]) is None:
        return False
    bounds = _bounds(clip)
    if bounds is None or (pools and len(pools[-1].outputs) > 1):
        return False
    low, high = (_code(end, scale, zero_point, LIMITS[kind.name]) for end in bounds)
    editor.replace(clip.outputs[0], clip.inputs[0])
    _clip(editor, node, low, high, kind)
    return True


def _behind_kernel(node: Any) -> bool:
    """Whether the operator before the activation has an integer kernel that returns quantized values."""
    before = node.inputs[0].producer()
    while before is not None and before.op_type in ("MaxPool", *ACTIVATIONS):
        before = before.inputs[0].producer()
    return before is not None and before.op_type in ENDS_IN_CODES


def _bounds(node: Any) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    ends = []
    for index, missing in ((1, -np.inf), (2, np.inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        array = missing if value is None else array_of(value)
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
    """Clip the values of a QuantizeLinear, combined with an existing Clip."""
    codes = node.outputs[0]
    following = only_reader(codes)
    merged = following is not None and following.op_type == "Clip"
    if merged:
        ends = [array_of(value) for value in following.inputs[1:3]]
        low, high = max(low, int(ends[0])), min(high, int(ends[1]))
    if (low, high) == LIMITS[kind.name]:
        return
    name = node.name.removesuffix("/QuantizeLinear")
    bounds = [editor.constant(np.array(end), kind, f"{name}.code_bound") for end in (low, high)]
    if merged:
        for index, value in enumerate(bounds):
            following.replace_input_with(index + 1, value)
        return
    editor.put_behind(codes, "Clip", bounds, name=f"{name}/Clip")


def sum_before_norm(editor: Editor, node: Any) -> bool:
    """Write the residual add before a layer norm as Sum.

    ONNX Runtime fuses Add and LayerNormalization to SkipLayerNormalization, whose CPU kernel takes nine times as long
    as the two apart (1.31, 128 x 384: 0.25 ms against 0.03). It does not fuse Sum, which computes the same.
    """
    norms = any(reader.op_type == "LayerNormalization" for reader in readers(node.outputs[0]))
    constant = any(array_of(value) is not None for value in node.inputs)
    if not norms or constant or not editor.markers.tensors:  # a float model is written as it is
        return False
    editor.swap(
        node, editor.node("Sum", node.inputs, before=node, name=f"{node.name}/Sum", like=node.outputs[0])
    )
    return True
