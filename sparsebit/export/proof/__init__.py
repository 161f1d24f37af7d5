"""Checks that an exported file computes the same as the model, and on integers."""

from sparsebit.export.proof.compare import check
from sparsebit.export.proof.outputs import OutputAgreement
from sparsebit.export.proof.report import CheckReport, IntegerOp, TensorAgreement

__all__ = ["CheckReport", "IntegerOp", "OutputAgreement", "TensorAgreement", "check"]
