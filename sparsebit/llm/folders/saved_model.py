"""A language model in a folder: packed weights, records and the tokenizer's files, as sparsebit stores them.

The tokenizer's files are tensors of bytes: they are replaced together with the weights, or not at all.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError, damaged
from sparsebit.llm.folders.folder_config import import_transformers, require_no_code
from sparsebit.llm.folders.source import (
    making_empty,
    put,
    require_fits,
    run_experts_in_turn,
    separate_blocks,
    tensor_at,
    twin_of,
)
from sparsebit.llm.formats.format import float_state
from sparsebit.llm.language_model import LanguageModel, LayerRecord, install
from sparsebit.llm.lora.attach import require_no_adapters
from sparsebit.llm.packed.stored import from_stored, to_stored
from sparsebit.llm.tokens import read_tokenizer
from sparsebit.sparse.shrink.pretrained import is_pretrained
from sparsebit.storage import ArtifactError, Fields, read_folder, unshared, with_aliases, write_folder
from sparsebit.storage.place import writing

KIND, VERSION = "language model", 4
_FILE_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)  # at most one folder deep, as chat templates are


def save_model(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write everything that ``load_model`` needs, each shared tensor once."""
    require_no_adapters(model)
    packed, matrices = to_stored(model.weights)
    tensors, aliases = unshared(packed)
    floats, float_aliases = unshared(float_state(model.model, once=False))
    config: Any = getattr(model.model, "config", None)
    content = {
        "class": type(model.model).__name__,
        "config": _name_infinities(config.to_dict()) if is_pretrained(model.model) else {},
        "matrices": matrices,
        "aliases": aliases,
        "float_aliases": float_aliases,
        "records": [asdict(record) for record in model.records],
        "ignored": model.ignored,
        "prepared": list(model.prepared),
    }
    groups = {"weights": tensors, "floats": floats, "tokenizer": _tokenizer_files(model)}
    write_folder(folder, KIND, VERSION, content, groups)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder that is deleted afterwards; a full disk raises one of our errors."""
    with writing(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory() as folder:
        yield folder


def _tokenizer_files(model: LanguageModel) -> dict[str, Tensor]:
    with _temporary_folder() as folder:
        model.save_tokenizer(folder)
        found = {path.relative_to(folder).as_posix(): path for path in sorted(Path(folder).rglob("*"))}
        data = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
    return {name: torch.frombuffer(bytearray(b), dtype=torch.uint8) for name, b in data.items() if b}


def _read_tokenizer(files: Mapping[str, Tensor], where: str) -> Any:
    with _temporary_folder() as folder:
        for name, data in files.items():
            if not _FILE_NAME.fullmatch(name) or data.dtype != torch.uint8 or data.ndim != 1:
                raise damaged(where, f"{name[:80]!r} is not a file of a tokenizer")
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.numpy().tobytes())
        return read_tokenizer(folder)


def load_model(folder: str | os.PathLike[str], model: nn.Module | None) -> LanguageModel:
    """The model that ``save_model`` wrote."""
    content, tensors = read_folder(folder, KIND, VERSION)
    made = _empty_model(content, sum(map(len, tensors.values()))) if model is None else twin_of(model)
    run_experts_in_turn(made)
    separate_blocks(made)
    for name, value in with_aliases(tensors.get("floats", {}), content.names("float_aliases")).items():
        require_fits(made, name, value, os.fspath(folder))
        put(made, name, value)
    packed = with_aliases(tensors.get("weights", {}), content.names("aliases"))
    tokenizer = _read_tokenizer(tensors.get("tokenizer", {}), os.fspath(folder))
    prepared = tuple(content.texts("prepared"))
    result = LanguageModel(made, {}, [], tokenizer, content.names("ignored"), prepared)
    result.weights |= from_stored(packed, Fields.each(content.value("matrices"), str(folder)))
    result.records += [_record(said) for said in Fields.each(content.value("records"), str(folder))]
    for name, held in result.weights.items():
        turned = name in result.transposed
        _require_matrix(made, name, held.shape, os.fspath(folder), transposed=turned)
    install(made, result.weights, result.transposed)
    if left := next((name for name, one in made.state_dict().items() if one.is_meta), None):
        raise ArtifactError(f"the saved model has no tensor {left!r}", where=os.fspath(folder))
    return result


def _record(said: Fields) -> LayerRecord:
    size = None if said.value("group_size") is None else said.integer("group_size")
    bits, loss, seen = said.number("bits"), said.number("loss"), said.integer("tokens")
    name, code, remark = said.text("name"), said.text("code"), said.text("remark")
    return LayerRecord(name, code, size, bits, loss, seen, remark, said.flag("transposed"))


def _empty_model(content: Fields, stored: int) -> nn.Module:
    """A model of the saved class and config, built by transformers."""
    name, config = content.text("class"), _read_infinities(dict(content.section("config").items()))
    if not config:
        raise SparsebitError(
            f"{name} is not a class of transformers",
            hint="pass the float model: LanguageModel.load(folder, model)",
        )
    transformers = import_transformers()
    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise content.wrong("class", "a model of the installed transformers")
    require_no_code(config, content.where)
    with making_empty(stored, "the saved model", content.where):
        settings = transformers.AutoConfig.for_model(config.pop("model_type", ""), **config)
        made: nn.Module = kind._from_config(settings, dtype=torch.float32)  # type: ignore[attr-defined]
    return made.eval()


def _name_infinities(value: Any) -> Any:
    """Settings without infinite numbers, which JSON does not have: Mamba 2 has one in ``time_step_limit``.

    Example:
        >>> _name_infinities({"time_step_limit": (0.0, math.inf)})
        {'time_step_limit': [0.0, {'number': 'inf'}]}
        >>> _read_infinities(_)
        {'time_step_limit': [0.0, inf]}
    """
    if isinstance(value, dict):
        return {key: _name_infinities(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_name_infinities(one) for one in value]
    return {"number": str(value)} if isinstance(value, float) and math.isinf(value) else value


def _read_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        if value in ({"number": "inf"}, {"number": "-inf"}):
            return float(value["number"])
        return {key: _read_infinities(one) for key, one in value.items()}
    return [_read_infinities(one) for one in value] if isinstance(value, list) else value


def _require_matrix(
    model: nn.Module, name: str, shape: tuple[int, ...], where: str, *, transposed: bool
) -> None:
    """The model has a parameter that this matrix fits; a name that ends in "[3]" is one of stacked experts."""
    parameter, bracket, index = name.partition("[")
    found = tensor_at(model, parameter, where)
    expected = tuple(found.shape[1:] if bracket else found.shape)
    inside = not bracket or (index[:-1].isdecimal() and int(index[:-1]) < len(found))
    if not inside or expected != (shape[::-1] if transposed else shape):
        raise ArtifactError(
            f"{name!r} does not fit the model", where=where, expected=str(tuple(found.shape)), got=str(shape)
        )
