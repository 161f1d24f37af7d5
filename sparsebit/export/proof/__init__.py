"""Proof that an exported file does what the model does, and does it on integers."""

from sparsebit.export.proof.compare import check
from sparsebit.export.proof.report import CheckReport, IntegerOp, OutputAgreement, TensorAgreement

__all__ = ["CheckReport", "IntegerOp", "OutputAgreement", "TensorAgreement", "check"]
