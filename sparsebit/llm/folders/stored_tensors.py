"""The tensors of a folder by their names in the model.

Files may store them under other names (``embed_out`` for ``lm_head``) or split (one matrix for each expert, where the
model has a stack). transformers has conversion rules for both. They are applied here to the requested tensors only, so
that any model can be read one block at a time.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparsebit.errors import ArtifactError


class StoredTensors:
    """The tensors that ``files`` (the file of each stored tensor) hold for a transformers model."""

    def __init__(self, files: Mapping[str, Path], model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )

        self._files, self._model = files, model
        known, rules = model.state_dict(), get_model_conversion_mapping(model)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._converters: dict[str, Any] = {
            pattern: one for one in converters for pattern in one.source_patterns
        }
        # By name in the model: the stored names, each with the pattern of its converter; experts in order.
        self._parts: dict[str, list[tuple[str, str | None]]] = {}
        for stored in sorted(files, key=dot_natural_key):
            name, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, known)
            if name not in known and stored in known:
                name, pattern = stored, None
            self._parts.setdefault(name, []).append((stored, pattern))

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def read(self, names: Collection[str]) -> Iterator[tuple[str, Tensor, Path]]:
        """Name, tensor and file of each of these parameters, and of those stored together with them."""
        with contextlib.ExitStack() as opened:
            files: dict[Path, Any] = {}

            def tensor(stored: str) -> Tensor:
                path = self._files[stored]
                if path not in files:
                    files[path] = opened.enter_context(open_tensors(path))
                found: Tensor = files[path].get_tensor(stored)
                return found

            for name in names:
                if name not in self._parts:
                    continue
                parts = self._parts[name]
                stored, pattern = parts[0]
                if pattern is None:
                    yield name, tensor(stored), self._files[stored]
                    continue
                converter = copy.deepcopy(self._converters[pattern])
                for part, its_pattern in parts:
                    converter.add_tensor(name, part, its_pattern, tensor(part))
                for target, made in self._convert(converter, name).items():
                    yield target, made[0] if isinstance(made, list) else made, self._files[stored]

    def _convert(self, converter: Any, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = converter.convert(name, model=self._model, config=self._model.config)
        except Exception as error:  # a damaged folder may raise anything
            stored = self._parts[name][0][0]
            raise ArtifactError(
                f"transformers cannot build {name!r} from the tensors in the folder",
                where=str(self._files[stored]),
                got=str(error)[:200],
            ) from error
        return found


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; any problem with it raises our error."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, MemoryError, SafetensorError) as error:  # MemoryError: larger than the address space
        raise ArtifactError("a weights file cannot be read", where=str(path), got=str(error)[:200]) from None
