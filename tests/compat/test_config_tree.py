from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparsebit.compat.config_tree import QUANTIZATION, CfgNode, update_config
from sparsebit.config import load_qconfig, load_sconfig
from sparsebit.errors import ConfigError


def test_a_clone_changes_alone() -> None:
    twin = QUANTIZATION.clone()
    twin.W.QUANTIZER.BIT = 4
    twin["A"]["QSCHEME"] = "per-tensor-affine"
    assert QUANTIZATION.W.QUANTIZER.BIT is None
    assert QUANTIZATION.A.QSCHEME is None


def test_frozen_means_frozen_all_the_way_down() -> None:
    twin = QUANTIZATION.clone()
    twin.freeze()
    assert twin.clone().is_frozen()
    with pytest.raises(ConfigError, match=r"this config is frozen\n  where: BIT\n  next:  call defrost\(\)"):
        twin.W.QUANTIZER.BIT = 4
    twin.defrost()
    twin.W.QUANTIZER.BIT = 4
    assert twin.W.QUANTIZER.BIT == 4


def test_merging_from_lists_files_and_others(tmp_path: Path) -> None:
    twin = QUANTIZATION.clone()
    (tmp_path / "w.yaml").write_text("W: {QUANTIZER: {TYPE: lsq}}")
    twin.merge_from_file(tmp_path / "w.yaml")
    twin.merge_from_other_cfg({"A": {"QSCHEME": "per-tensor-affine"}})
    twin.merge_from_list(["W.QUANTIZER.BIT", 4])
    assert twin.W.QUANTIZER == {"TYPE": "lsq", "DISABLE": False, "BIT": 4}
    assert yaml.safe_load(twin.dump())["A"]["QSCHEME"] == "per-tensor-affine"
    with pytest.raises(ConfigError, match="do not come in pairs"):
        twin.merge_from_list(["W.QUANTIZER.BIT"])
    with pytest.raises(ConfigError, match="unknown section"):
        twin.merge_from_list(["W.QUANTISER.BIT", 4])
    with pytest.raises(AttributeError, match="has no key 'QUANTISER'"):
        twin.W.QUANTISER  # noqa: B018


def test_a_misspelt_key_is_found_when_the_config_is_used() -> None:
    twin = QUANTIZATION.clone()
    twin.merge_from_list(["W.QUANTIZER.BITT", 4])
    with pytest.raises(ConfigError, match="did you mean 'BIT'"):
        load_qconfig(twin)


def test_update_config_changes_a_tree_in_place_and_keeps_it_frozen() -> None:
    twin = QUANTIZATION.clone()
    twin.freeze()
    assert update_config(twin, "w.quantizer.bit", 4) is twin
    assert twin.W.QUANTIZER.BIT == 4
    assert twin.is_frozen()


def test_update_config_of_a_parsed_config_says_that_it_returns_a_new_one() -> None:
    parsed = load_qconfig("int8_onnxruntime")
    with pytest.warns(UserWarning, match=r"returns a new config with A\.OBSERVER\.TYPE changed"):
        changed = update_config(parsed, "A.OBSERVER.TYPE", "percentile")
    assert changed.A.OBSERVER.TYPE == "percentile"
    assert parsed.A.OBSERVER.TYPE != "percentile"
    pruning = load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}})
    with pytest.warns(UserWarning, match=r"SPARSER\.RATIO"):
        assert update_config(pruning, "SPARSER.RATIO", 0.25).SPARSER.RATIO == 0.25


def test_nested_dicts_become_trees() -> None:
    assert CfgNode({"A": {"B": 1}}).A.B == 1
