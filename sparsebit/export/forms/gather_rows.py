"""Embeddings on integers: the quantized rows are gathered, and only they are dequantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, dequantized

ROWS, ROWS_SCALED = "Rows", "RowsScaled"


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

    types = editor.ir.DataType
    if codes.dtype in (types.INT4, types.UINT4):  # no runtime gathers 4 bits; folded when the file is loaded
        kind = types.INT8 if codes.dtype == types.INT4 else types.UINT8
        codes = make("Cast", [codes], "Widen", kind, to=int(kind))
        zero_point = editor.constant(array_of(zero_point).astype(np.int32), kind, f"{zero_point.name}.wide")
    rows = make("Gather", [codes, ids], ROWS, codes.dtype)
    values = array_of(scale)
    if values.ndim == 0 or attribute(table, "axis", 1) % 2 == 1:  # one scale, or one per column
        axis = {"axis": -1} if values.ndim else {}
        made = make("DequantizeLinear", [rows, scale, zero_point], "DequantizeLinear", types.FLOAT, **axis)
    else:
        made = make("Cast", [rows], "RowNumbers", types.FLOAT, to=int(types.FLOAT))
        if np.any(array_of(zero_point)):
            column = _column(editor, array_of(zero_point), f"{name}.row_zero_points")
            zeros = make("Gather", [column, ids], "RowZeroPoints", types.FLOAT)
            made = make("Sub", [made, zeros], "Centred", types.FLOAT)
        column = _column(editor, values, f"{name}.row_scales")
        scales = make("Gather", [column, ids], "RowScales", types.FLOAT)
        made = make("Mul", [made, scales], ROWS_SCALED, types.FLOAT)
    made.shape = like.shape
    return made


def _column(editor: Editor, values: Any, name: str) -> Any:
    """One float per row, with an axis for the columns."""
    return editor.constant(values.astype(np.float32).reshape(-1, 1), editor.ir.DataType.FLOAT, name)
