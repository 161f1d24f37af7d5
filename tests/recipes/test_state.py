"""The state of a search on disk: another one, a damaged one and an edited one are refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.recipes import compress
from sparsebit.recipes.state import digest_data
from sparsebit.storage.json_text import canonical
from tests.recipes.searching import Batches, Net


def test_data_is_seen_in_containers_of_any_kind() -> None:
    digests = {digest_data([UserDict(x=torch.full((2,), number))]) for number in (0.0, 1.0)}
    assert len(digests) == 2


def test_a_folder_of_another_search_is_refused(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    compress(net, batches, size=0.4, max_drop=1.0, folder=tmp_path)
    with pytest.raises(SparsebitError, match="a different max_drop and size") as error:
        compress(net, batches, size=0.3, max_drop=0.5, folder=tmp_path)
    assert (error.value.expected, error.value.got) == ("max_drop: 1.0; size: 0.4", "max_drop: 0.5; size: 0.3")
    torch.manual_seed(1)
    with pytest.raises(SparsebitError, match="a different model"):
        compress(Net().eval(), batches, size=0.4, max_drop=1.0, folder=tmp_path)


def test_a_search_with_another_metric_or_later_batch_is_refused(
    net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"size": 0.4, "max_drop": 1.0, "folder": tmp_path}
    compress(net, batches, metric=lambda model: 0.75, **options)
    with pytest.raises(SparsebitError, match="another metric") as error:
        compress(net, batches, metric=lambda model: 0.5, **options)
    assert error.value.expected == "0.75 for the float model, as in this search"
    (x, y), *others = reversed(batches)
    with pytest.raises(SparsebitError, match="a different data"):
        compress(net, [*reversed(others), (x + 1, y)], metric=lambda model: 0.75, **options)


def test_a_damaged_state_is_refused(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(SparsebitError, match="cannot be read"):
        compress(net, batches, size=0.5, folder=tmp_path)


@pytest.mark.parametrize("kind", ["digest", "metric", "trials", "nested", "pipe", "text"])
def test_an_edited_state_of_a_search_is_refused(
    net: nn.Module, batches: Batches, tmp_path: Path, kind: str
) -> None:
    options: dict[str, Any] = {"size": 0.4, "max_drop": 1.0, "folder": tmp_path}
    compress(net, batches, **options)
    path = tmp_path / "search.json"
    content = json.loads(path.read_text())
    if kind == "digest":
        content["trials"][0]["measured"]["metric"] = 7.5
    elif kind == "metric":
        content["trials"][0]["measured"]["metric"] = "much"
    elif kind == "trials":
        content["trials"] = {"a": 1}
    if kind in ("metric", "trials"):
        content["digest"] = hashlib.sha256(
            canonical({key: value for key, value in content.items() if key != "digest"})
        ).hexdigest()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("[" * 9999 if kind == "nested" else "?" if kind == "text" else json.dumps(content))
    with pytest.raises(SparsebitError, match=r"search.json"):
        compress(net, batches, **options)
