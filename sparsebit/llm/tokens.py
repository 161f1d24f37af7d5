"""Text as rows of token ids, for calibration and for evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.llm.folders.folder_config import offline, require_own_vocabulary, require_plain_files

Text = Tensor | Sequence[Tensor] | str | os.PathLike[str]


def as_ids(data: Text, tokenizer: Any = None) -> Tensor:
    """Ids on the CPU, from ids, from a text file, or from the text itself; texts need a tokenizer.

    Example:
        >>> as_ids([torch.tensor([1, 2]), torch.tensor([[3]])])
        tensor([1, 2, 3])
    """
    if isinstance(data, Tensor):
        if data.is_floating_point() or data.is_complex() or data.dtype == torch.bool or data.is_meta:
            got = "a tensor on the meta device" if data.is_meta else f"a tensor of {data.dtype}"
            raise SparsebitError("token ids must be integers", got=got)
        return data.flatten().long().cpu()
    if isinstance(data, (str, os.PathLike)):
        if tokenizer is None:
            raise SparsebitError(
                "text needs a tokenizer",
                hint="pass tokenizer=, a folder that holds one, or token ids instead of text",
            )
        text = _read(data)
        return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
    if isinstance(data, Sequence) and data and all(isinstance(item, Tensor) for item in data):
        return torch.cat([as_ids(item) for item in data])
    raise SparsebitError(
        "calibration data cannot be read",
        expected="token ids, a list of them, a text, or the path of a text file",
        got=type(data).__name__,
    )


def require_known(ids: Tensor, model: object) -> None:
    """Raise for ids outside the model's embedding table, if the model names that table."""
    table = getattr(model, "get_input_embeddings", lambda: None)()
    rows = getattr(table, "num_embeddings", None)
    if rows is not None and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise SparsebitError(
            "the data holds token ids that the model does not know",
            expected=f"0 to {rows - 1}",
            got=f"{int(ids.min())} to {int(ids.max())}",
            hint="tokenize the text with this model's own tokenizer",
        )


def most_positions(model: object) -> int | None:
    """The most tokens a model with a table of positions reads at once; None if it computes positions."""
    config = getattr(model, "config", None)
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(model, nn.Module) or not isinstance(most, int):
        return None
    words = getattr(model, "get_input_embeddings", lambda: None)()
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding) and one is not words]
    rows = range(most, most + 3)  # some tables start with a few rows that no position uses
    skipped = [
        (one.padding_idx or 0) + 1
        for one in tables
        if one.padding_idx is not None and one.num_embeddings in rows
    ]
    if any(one.num_embeddings in rows for one in tables):
        return most - max(skipped, default=0)  # positions start after the padding row
    return most if any(one.dim() > 1 and len(one) in rows for one in model.buffers()) else None


def require_positions(length: int, model: object, setting: str) -> None:
    """Raise for sequences that are longer than a model's table of positions."""
    most = most_positions(model)
    if most is not None and length > most:
        raise SparsebitError(
            f"{type(model).__name__} reads at most {most} tokens at once",
            got=f"sequences of {length}",
            hint=f"set {setting}{most}",
        )


def windows(ids: Tensor, samples: int, length: int, seed: int = 0) -> Tensor:
    """``samples`` rows of ``length`` ids from random places of a text, [samples, length].

    Example:
        >>> windows(torch.arange(100), 2, 4).shape
        torch.Size([2, 4])
    """
    if len(ids) < length:
        raise SparsebitError(
            f"the text has {len(ids)} tokens, less than one sample of {length}",
            hint="use more text, or a smaller CALIBRATION.LENGTH",
        )
    generator = torch.Generator().manual_seed(seed)
    if len(ids) // length >= samples:  # samples do not overlap if the text is long enough
        starts = torch.randperm(len(ids) // length, generator=generator)[:samples] * length
    else:
        starts = torch.randint(len(ids) - length + 1, (samples,), generator=generator)
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


def read_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """The tokenizer in a model's folder, or None if there is none. No code in the folder is run."""
    place = Path(folder)
    if not any((place / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    require_plain_files(place)
    require_own_vocabulary(place)
    try:
        with offline():
            made = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        made("")  # some settings are looked at only now
        return made
    except Exception as error:  # what a damaged tokenizer raises has no common base
        raise ArtifactError(
            "transformers cannot read the tokenizer", where=os.fspath(place), got=str(error)[:200]
        ) from None


def write_tokenizer(tokenizer: Any, folder: str | os.PathLike[str]) -> None:
    """Write a tokenizer's files; failures of the system raise ``OSError``."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is not Exception:  # which is what the package tokenizers makes of it
            raise
        raise OSError(str(error)) from None


def _read(data: str | os.PathLike[str]) -> str:
    path = Path(data)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except OSError:
        pass  # a text too long to be a file name
    except UnicodeDecodeError:
        raise SparsebitError(f"{os.fspath(path)!r} is not UTF-8 text") from None
    looks_like_a_path = "/" in str(data) or path.suffix
    if isinstance(data, os.PathLike) or (
        len(str(data)) < 256 and looks_like_a_path and len(str(data).split()) == 1
    ):
        raise SparsebitError(f"there is no file {os.fspath(path)!r}", expected="a text file or a text")
    return str(data)
