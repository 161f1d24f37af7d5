"""Proof that an exported file does what the model does, and does it on integers."""

from sparsebit.export.check.check import check
from sparsebit.export.check.report import CheckReport, IntegerOp, OutputAgreement, TensorAgreement

__all__ = ["CheckReport", "IntegerOp", "OutputAgreement", "TensorAgreement", "check"]
