"""The old ``_extra.onnx``: a second file whose Q and DQ nodes carry their width as an attribute ``bits``."""

from __future__ import annotations

import os
from pathlib import Path

from sparsebit.errors import SparsebitError, missing_package
from sparsebit.export.forms.lower import BITS


def add_extra_info_to_onnx(onnx_path: str | os.PathLike[str]) -> Path:
    """Write ``<name>_extra.onnx`` beside a file of ``export_onnx(..., extra_info=True)``, and return its path.

    The attribute is not part of ONNX, and runtimes refuse a file that has it: it is meant for your own tools. The file
    that ``export_onnx`` writes says the same in the metadata of its nodes, and runs.
    """
    try:
        import onnx
    except ImportError as error:
        raise missing_package(
            "onnx", "extra information in an ONNX file", extra="onnx", error=error
        ) from None
    source = Path(onnx_path)
    if not source.is_file():
        raise SparsebitError(
            "there is no such file",
            where=str(source),
            hint="call export_onnx(...) first",
        )
    try:
        model = onnx.load(source, load_external_data=False)
    except Exception as error:  # protobuf's errors have no common base
        raise SparsebitError("the file is not an ONNX model", where=str(source), got=str(error)) from None
    written = 0
    for node in model.graph.node:
        bits = next((entry.value for entry in node.metadata_props if entry.key == BITS), None)
        if bits is not None and bits.isdecimal() and node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            node.attribute.append(onnx.helper.make_attribute("bits", int(bits)))
            written += 1
    if not written:
        raise SparsebitError(
            "the nodes of the file have no bit widths",
            where=str(source),
            hint="write it with qmodel.export_onnx(..., extra_info=True)",
        )
    extra = source.with_name(f"{source.stem}_extra.onnx")
    onnx.save(model, extra)
    return extra
