"""Exact rewrites that let integer kernels in: no number changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, evaluated, only_reader, readers
from sparsebit.export.forms.lower import MOVES, is_dequantized

OPAQUE_MOVES = frozenset({"Gather", "Flatten", "Slice", "Concat", "DepthToSpace", "SpaceToDepth"})
LIMITS = {"INT8": (-128, 127), "UINT8": (0, 255)}


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
        passed: set[str] = set()
        source, weight = _moved_from(node.inputs[0], passed), is_dequantized(node.inputs[1])
        if not passed & OPAQUE_MOVES or source is None or weight is None:
            continue
        if array_of(source.inputs[0]) is not None:
            continue
        if np.ndim(array_of(source.inputs[1])) != 0:
            continue
        name = source.name.removesuffix("/DequantizeLinear")
        again = _on_grid(editor, node.inputs[0], source, before=node, label=f"{name}/again/{node.name}")
        node.replace_input_with(0, again)
        changed += 1
    return changed


def _on_grid(editor: Editor, value: Any, like: Any, *, before: Any, label: str) -> Any:
    """A value quantized and dequantized on the grid of a QuantizeLinear or DequantizeLinear."""
    grid, kind = list(like.inputs[1:3]), like.inputs[2].dtype
    codes = editor.node(
        "QuantizeLinear", [value, *grid], before=before, name=f"{label}/Quantize", output=f"{label}.codes",
        like=value, dtype=kind,
    )  # fmt: skip
    return editor.node(
        "DequantizeLinear", [codes, *grid], before=before, name=f"{label}/Dequantize",
        output=f"{label}.quantized", like=value, dtype=value.dtype,
    )  # fmt: skip


def grids_before_concats(editor: Editor) -> int:
    """Quantize the float inputs of a Concat on the grid that its result is quantized on; returns how many.

    That changes none of the codes, and all inputs being on integers, so is the Concat: nothing is unpacked for it.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "Concat"]:
        quantize = only_reader(node.outputs[0])
        if quantize is None or quantize.op_type != "QuantizeLinear" or not _one_grid_of_8_bits(quantize):
            continue
        sources = [is_dequantized(value) for value in node.inputs]
        if None not in sources or all(source is None for source in sources):
            continue
        for index, (value, source) in enumerate(zip(list(node.inputs), sources, strict=True)):
            if source is None and array_of(value) is None:
                label = f"{node.name}/{index}"
                node.replace_input_with(index, _on_grid(editor, value, quantize, before=node, label=label))
                changed += 1
    return changed


def means_as_pools(editor: Editor, ranks: Mapping[str, int]) -> int:
    """Write a mean over height and width, between codes, as GlobalAveragePool, which runs on them; returns how many.

    ``ranks`` has the number of dimensions of every quantized tensor.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "ReduceMean"]:
        source, quantize = is_dequantized(node.inputs[0]), only_reader(node.outputs[0])
        if source is None or quantize is None or quantize.op_type != "QuantizeLinear":
            continue
        axes = evaluated(editor, node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
        rank = ranks.get(source.name.removesuffix("/DequantizeLinear"))
        if axes is None or rank != 4 or not _one_grid_of_8_bits(quantize):
            continue
        if sorted(int(axis) % 4 for axis in axes) != [2, 3]:
            continue
        value = editor.node(
            "GlobalAveragePool", [node.inputs[0]], before=node, name=f"{node.name}/GlobalAveragePool",
            output=f"{node.outputs[0].name}_pooled", dtype=node.outputs[0].dtype,
        )  # fmt: skip
        if not attribute(node, "keepdims", 1):
            value = _on_grid(editor, value, quantize, before=node, label=f"{node.name}/pooled")
            value = editor.node(
                "Flatten", [value], before=node, name=f"{node.name}/Flatten", output=f"{node.outputs[0].name}_flat",
                like=node.outputs[0], dtype=node.outputs[0].dtype, axis=1,
            )  # fmt: skip
        editor.replace(node.outputs[0], value)
        editor.graph.remove(node, safe=True)
        changed += 1
    return changed


def _one_grid_of_8_bits(quantize: Any) -> bool:
    kind = quantize.inputs[2].dtype
    return kind is not None and kind.name in LIMITS and np.ndim(array_of(quantize.inputs[1])) == 0


def _moved_from(value: Any, passed: set[str]) -> Any:
    """The DequantizeLinear that all numbers of a value come from, unchanged; what is between is added to ``passed``."""
    before = value.producer()
    if before is None or before.op_type == "DequantizeLinear":
        return before
    if before.op_type not in MOVES | OPAQUE_MOVES | {"MaxPool"}:
        return None
    passed.add(before.op_type)
    sources = [
        _moved_from(part, passed) for part in before.inputs[: None if before.op_type == "Concat" else 1]
    ]
    return sources[0] if all(source is sources[0] for source in sources) else None


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
        if kind is None or kind.name not in LIMITS or scale is None or scale.ndim or not _behind_kernel(node):
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
        low, high = (_code(end, scale, zero_point, LIMITS[kind.name]) for end in bounds)
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
    if (low, high) == LIMITS[kind.name]:
        return
    name = node.name.removesuffix("/QuantizeLinear")
    bounds = [editor.constant(np.array(end), kind, f"{name}.code_bound") for end in (low, high)]
    if merged:
        for index, value in enumerate(bounds):
            following.replace_input_with(index + 1, value)
        return
    editor.put_behind(codes, "Clip", bounds, name=f"{name}/Clip", output=f"{name}.clipped")


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
