"""From a compressed graph to a file that a runtime executes, and the check that it computes the same."""

from sparsebit.errors import ExportError
from sparsebit.export.graph_export import Exported, export_graph
from sparsebit.export.onnx_export import OnnxExport, export_onnx
from sparsebit.export.proof import CheckReport, IntegerOp, OutputAgreement, TensorAgreement, check
from sparsebit.export.proof.tensorrt import Finding, check_tensorrt

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
