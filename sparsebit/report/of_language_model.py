"""The report of a quantized language model: the error and size of each matrix, and which engines can read the model."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats import FORMATS, require_exact
from sparsebit.llm.language_model import LanguageModel, LayerRecord
from sparsebit.llm.plan import embedding_and_head
from sparsebit.llm.proof import ExportReport
from sparsebit.report.content import LayerEntry, Measure, Report
from sparsebit.report.of_model import made_with


def report_language_model(
    model: LanguageModel, *, name: str | None = None, exports: Iterable[ExportReport] = ()
) -> Report:
    """The content of a page.

    Args:
        model: the result of ``sparsebit.llm.quantize``.
        name: for the title.
        exports: reports of ``model.export``, to be shown on the page.
    """
    title = name or type(model.model).__name__
    count = sum(held.shape[0] * held.shape[1] for held in model.packed)
    size = Measure(
        name="size of the quantized weights",
        before=4 * count,
        after=sum(held.nbytes for held in model.packed),
        unit="bytes",
        note="including scales and zero points, compared with float32",
    )
    worst = max(model.records, key=lambda record: record.loss, default=None)
    sentence = f"{len(model.records)} weights of {title} were pruned and stay in float."
    if model.weights:
        spent = f"{model.bits:.2f} bits each, including scales"
        sentence = f"{len(model.weights)} weights of {title} were quantized to {spent}."
    if worst is not None:
        sentence += f" {worst.name} has the largest error: {worst.loss:.2%} of the energy of its output."
    return Report(
        title=title,
        sentence=sentence,
        measures=(size,) if model.weights else (),
        layers=tuple(_entry(record) for record in model.records),
        in_float=(
            *model.ignored.items(),
            *((name, "HEAD.BIT: 0") for name in embedding_and_head(model.model)),
        ),
        notes=(
            "SQNR: energy of a layer's output over the energy of its error, measured on the inputs from the "
            "calibration data, or on the weight alone if there was no data.",
            *_remarks(model),
            *(engine_notes(model) if model.weights else ()),
            *("; ".join(line.strip() for line in str(report).splitlines()) + "." for report in exports),
        ),
        made_with=made_with(),
    )


def _remarks(model: LanguageModel) -> list[str]:
    """What the methods remarked, once for all weights with the same remark."""
    names: dict[str, list[str]] = {}
    for record in model.records:
        if record.remark:
            names.setdefault(record.remark, []).append(record.name)
    more = {
        remark: f" and {len(found) - 1} more" if len(found) > 1 else "" for remark, found in names.items()
    }
    return [f"{found[0]}{more[remark]}: {remark}." for remark, found in names.items()]


def engine_notes(model: LanguageModel) -> list[str]:
    """The formats that store the model exactly, and why each of the others cannot."""
    exact, notes = [], []
    for name in sorted(FORMATS):
        try:
            require_exact(name, FORMATS[name](), model)
            exact.append(name)
        except SparsebitError as error:
            setting = f" It can with {error.expected}." if error.expected else ""
            said = error.message if error.message.startswith(name) else f"{name}: {error.message}"
            notes.append(f"{said}.{setting}")
    return [f"Formats that store every weight exactly: {', '.join(exact) or 'none'}.", *notes]


def _entry(record: LayerRecord) -> LayerEntry:
    digits = "".join(letter for letter in record.code.partition("_")[0] if letter.isdigit())
    groups = "per channel" if record.group_size is None else f"groups of {record.group_size}"
    op = f"{record.code}, {groups}, {record.bits:.2f} bits"
    return LayerEntry(
        name=record.name,
        node=record.name,
        op="float32" if record.code == "float32" else op,
        weight_bits=int(digits) if digits else None,
        sqnr_alone=-10 * math.log10(record.loss) if record.loss > 0 else None,
    )
