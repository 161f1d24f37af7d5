"""From a compressed graph to a file a runtime executes, and the proof that it does."""

from sparsebit.export.check import CheckReport, IntegerOp, OutputAgreement, TensorAgreement, check
from sparsebit.export.check.tensorrt import Finding, check_tensorrt
from sparsebit.export.errors import ExportError
from sparsebit.export.export_graph import Exported, export_graph
from sparsebit.export.export_onnx import OnnxExport, export_onnx

__all__ = [
    "CheckReport",
    "ExportError",
    "Exported",
    "Finding",
    "IntegerOp",
    "OnnxExport",
    "OutputAgreement",
    "TensorAgreement",
    "check",
    "check_tensorrt",
    "export_graph",
    "export_onnx",
]
