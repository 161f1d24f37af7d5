"""Export a language model, exactly or not at all, and check the file."""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.graph.run import evaluating
from sparsebit.llm.formats import FORMATS, Format, require_exact
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.lora.attach import require_no_adapters
from sparsebit.llm.proof import ExportReport, prove
from sparsebit.llm.tokens import as_ids, require_known
from sparsebit.storage.drafts import new_place
from sparsebit.storage.place import writing

POSITIONS = 16  # at which predictions are compared
TEXT = "The rain in the mountains fell for three days, and on the fourth the river had taken the bridge."


def export_file(
    model: LanguageModel,
    path: str | os.PathLike[str],
    format: str,
    *,
    ids: Tensor | None = None,
    **options: Any,
) -> ExportReport:
    """Write ``model`` and load it in the format's engine; see ``LanguageModel.export``."""
    kind = make_format(format, options)
    require_no_adapters(model)
    require_exact(format, kind, model)
    ids = example_ids(model) if ids is None else as_ids(ids)
    require_known(ids, model.model)
    place = Path(path)
    if kind.extension and place.suffix != kind.extension:
        raise SparsebitError(
            f"a {format} file ends in {kind.extension}", got=os.fspath(path), hint="rename it"
        )
    with evaluating(model.model), new_place(place) as draft:
        with writing(place, SafetensorError):
            if not kind.extension:
                draft.mkdir()
            kind.write(model, draft, ids)
        # Proven before it takes its place: a run that is stopped meanwhile leaves nothing that looks finished.
        report = prove(model, draft, format, kind.engine, ids)
    return replace(report, path=os.fspath(place))


def make_format(name: str, options: dict[str, Any]) -> Format:
    """The format of this name with its options; an option that it does not have is an error."""
    kind = FORMATS[name]
    known: list[str] = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if unknown := next((key for key in options if key not in known), None):
        raise SparsebitError(
            f"{name} has no option {unknown!r}", expected=", ".join(known) or "no options", hint="remove it"
        )
    return kind(**options)


def example_ids(model: LanguageModel) -> Tensor:
    """Ids to compare predictions on: those of a sentence, or random ones if there is no tokenizer."""
    if model.tokenizer is not None:
        return torch.tensor(model.tokenizer(TEXT)["input_ids"][: 2 * POSITIONS])
    size = int(model.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    return torch.randint(size, (POSITIONS,), generator=torch.Generator().manual_seed(0))
