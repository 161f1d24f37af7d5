"""One HTML page about the compression of a model, and the measurements on it."""

from sparsebit.analysis.accuracy import measure, top1
from sparsebit.report.content import LayerEntry, Measure, ParetoPoint, Report, TensorHistogram
from sparsebit.report.of_language_model import report_language_model
from sparsebit.report.of_model import collect
from sparsebit.report.of_search import report_search
from sparsebit.report.page import render, save_report
from sparsebit.storage import write_text

__all__ = [
    "LayerEntry",
    "Measure",
    "ParetoPoint",
    "Report",
    "TensorHistogram",
    "collect",
    "measure",
    "render",
    "report_language_model",
    "report_search",
    "save_report",
    "top1",
    "write_text",
]
