"""Embeddings on integers: the quantized rows are gathered, and only they are dequantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, dequantized

ROWS, ROWS_SCALED = "Rows", "RowsScaled"
# The opset from which ONNX Runtime moves a uint8 pair over int8 rows, and then refuses their types.
MOVED_PAIRS = 21


def gather_rows(editor: Editor, node: Any) -> bool:
    """Gather quantized rows of a table instead of rows of the dequantized table.

    Otherwise runtimes would dequantize the complete table on every run. The numbers are the same: a row is dequantized
    by its own scale, in float32.
    """
    table = dequantized(node.inputs[0])
    if table is None or attribute(node, "axis", 0) != 0 or attribute(table, "block_size", 0):
        return False
    codes, scale = array_of(table.inputs[0]), array_of(table.inputs[1])
    if codes is None or codes.ndim != 2 or scale is None:
        return False
    editor.swap(node, _rows(editor, table, node))
    return True


def _rows(editor: Editor, table: Any, node: Any) -> Any:
    """The dequantized rows that a Gather takes from a table."""
    name, ids, like = table.name.rpartition("/")[0], node.inputs[1], node.outputs[0]
    codes, scale, zero_point = table.inputs

    def make(op_type: str, inputs: list[Any], word: str, dtype: Any, **attributes: Any) -> Any:
        return editor.node(op_type, inputs, before=node, name=f"{name}/{word}", dtype=dtype, **attributes)

    def of_rows(values: Any, label: str, word: str) -> Any:
        """Scales or zero points as floats, of the rows that are gathered where each has its own."""
        column = values.astype(np.float32).reshape(-1, 1) if by_row else values.astype(np.float32)
        held = editor.constant(column, types.FLOAT, f"{name}.{label}")
        return make("Gather", [held, ids], word, types.FLOAT) if by_row else held

    types, values, zeros = editor.ir.DataType, array_of(scale), array_of(zero_point)
    by_row = values.ndim > 0 and attribute(table, "axis", 1) % 2 == 0
    kind = codes.dtype
    if kind in (types.INT4, types.UINT4):  # no runtime gathers 4 bits; folded when the file is loaded
        kind = types.INT8 if kind == types.INT4 else types.UINT8
        codes = make("Cast", [codes], "Widen", kind, to=int(kind))
    rows = make("Gather", [codes, ids], ROWS, kind)
    if by_row or (kind == types.INT8 and editor.opset >= MOVED_PAIRS):
        made = make("Cast", [rows], "RowNumbers", types.FLOAT, to=int(types.FLOAT))
        if np.any(zeros):
            zero = of_rows(zeros, "row_zero_points", "RowZeroPoints")
            made = make("Sub", [made, zero], "Centred", types.FLOAT)
        made = make("Mul", [made, of_rows(values, "row_scales", "RowScales")], ROWS_SCALED, types.FLOAT)
    else:
        zero = editor.constant(zeros.astype(np.int32), kind, f"{zero_point.name}.wide")
        axis = {"axis": -1} if values.ndim else {}
        made = make("DequantizeLinear", [rows, scale, zero], "DequantizeLinear", types.FLOAT, **axis)
    made.shape = like.shape
    return made
