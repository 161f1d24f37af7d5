"""ONNX Runtime's own static quantizer, in the settings its documentation offers for x86."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class _Reader:
    """Calibration data as the quantizer wants it."""

    def __init__(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self.feeds, None)


def quantize_with_peer(source: Path, folder: Path, feeds: Sequence[Mapping[str, Any]]) -> dict[str, Path]:
    """One file for each setting that works, by its name."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
        shape_inference,
    )

    class Reader(_Reader, CalibrationDataReader):  # type: ignore[misc]
        pass

    prepared = folder / "prepared.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shape_inference.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        except Exception:
            prepared = source
        made = {}
        settings = {
            "qdq u8s8 per channel": (QuantFormat.QDQ, QuantType.QUInt8, True, {}),
            "qdq u8s8 per tensor": (QuantFormat.QDQ, QuantType.QUInt8, False, {}),
            "qoperator u8s8 per channel": (QuantFormat.QOperator, QuantType.QUInt8, True, {}),
            "qdq u8s8 per channel, linear ops only": (
                QuantFormat.QDQ,
                QuantType.QUInt8,
                True,
                {"op_types_to_quantize": ["Conv", "MatMul", "Gemm"]},
            ),
        }
        for name, (form, kind, per_channel, more) in settings.items():
            path = folder / f"peer_{len(made)}.onnx"
            try:
                quantize_static(
                    str(prepared),
                    str(path),
                    Reader(feeds),
                    quant_format=form,
                    activation_type=kind,
                    weight_type=QuantType.QInt8,
                    per_channel=per_channel,
                    **more,
                )
            except Exception:
                continue
            made[name] = path
    return made
