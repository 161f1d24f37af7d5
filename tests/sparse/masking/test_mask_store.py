"""Masks by name, in a state dict whose keys cannot hold dots."""

from __future__ import annotations

import torch

from sparsebit.sparse.masking.mask_store import MaskStore


def test_names_with_slashes_and_percent_signs_come_back() -> None:
    names = ["a.b", "a/b", "a%2Fb", "</script>", "100%", "a./b"]
    store = MaskStore({name: torch.ones(1, dtype=torch.bool) for name in names})
    assert list(store.as_dict()) == names and len(store.state_dict()) == len(names)
    store.update({"a/b": torch.zeros(1, dtype=torch.bool)})
    assert [name for name, mask in store.items() if not mask.all()] == ["a/b"]
