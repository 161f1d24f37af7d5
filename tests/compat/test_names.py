from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsebit.compat.config_tree import PRUNING, QUANTIZATION, CfgNode
from sparsebit.compat.names import FUNCTIONS, GONE, GONE_FILES, MOVED, OldNameError, find
from sparsebit.config import load_qconfig, load_sconfig

PAGE = (Path(__file__).parents[2] / "docs" / "from_old_sparsebit.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, str]:
    """A table of the page: what the first column names, and the text beside it."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))


@pytest.mark.parametrize("path", MOVED)
def test_what_moved_is_found(path: str) -> None:
    assert find(path) is not None


@pytest.mark.parametrize("path", GONE)
def test_what_is_gone_says_what_replaces_it(path: str) -> None:
    with pytest.raises(OldNameError, match=r"of the old Sparsebit does not exist here\n  next: use \w+"):
        find(path)


def test_the_page_lists_every_name_and_what_it_is_now() -> None:
    said = rows("Names")
    for path, text in said.items():
        if path in MOVED:
            assert text == f"`{MOVED[path].replace(':', '.')}`", path
        else:
            assert text == f"removed; use {GONE[path]}", path
    listed = {path.rpartition(".")[2] for path in said}
    assert {path.rpartition(".")[2] for path in [*MOVED, *GONE]} <= listed


def test_the_page_lists_every_file_of_which_nothing_is_left() -> None:
    said = rows("Files that no longer exist")
    assert said == {path: f"use {advice}" for path, advice in GONE_FILES.items()}


def test_any_name_of_such_a_file_says_what_replaces_it() -> None:
    with pytest.raises(OldNameError, match=r"use sparsebit\.numerics\.Grid"):
        find("sparsebit.quantization.quantizers.quant_tensor.trt_fake_quant")


def leaves(node: CfgNode, prefix: str = "") -> set[str]:
    return {
        path
        for key, value in node.items()
        for path in (leaves(value, f"{prefix}{key}.") if isinstance(value, CfgNode) else {prefix + key})
    }


def test_the_page_lists_every_old_key() -> None:
    assert set(rows("Config keys")) == leaves(QUANTIZATION) | leaves(PRUNING)


def test_the_old_defaults_are_read_once_the_required_keys_are_there() -> None:
    cfg = QUANTIZATION.clone()
    for side, scheme in (("W", "per-channel-symmetric"), ("A", "per-tensor-affine")):
        cfg.merge_from_list([f"{side}.QSCHEME", scheme, f"{side}.QUANTIZER.BIT", 8])
    assert load_qconfig(cfg).A.QADD.ENABLE_QUANT is False
    sparse = PRUNING.clone()
    sparse.merge_from_list(["SPARSER.TYPE", "structed", "SPARSER.STRATEGY", "l1norm", "SPARSER.RATIO", 0.5])
    assert load_sconfig(sparse).SPARSER.TYPE == "structured"


def test_functions_are_named_with_the_way_to_find_their_nodes() -> None:
    assert "Reshape" in FUNCTIONS["shape"]
    with pytest.raises(OldNameError, match="op_name"):
        find("sparsebit.quantization.modules.shape.Reshape")
