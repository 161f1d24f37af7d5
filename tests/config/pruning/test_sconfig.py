"""The pruning config: every kind of source, every value, every combination that cannot work, all told at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine.match import Layer
from sparsebit.config.pruning.sconfig import SConfig, load_sconfig
from sparsebit.errors import ConfigError

ROOT = Path(__file__).parents[3]
LAYERS = [Layer(("layer1.0.conv1", "layer1_0_conv1"), "conv2d"), Layer(("fc",), "linear")]


def config(**sparser: Any) -> dict[str, Any]:
    return {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, **sparser}}


def complaint(source: Any, overrides: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sconfig(source, overrides)
    return str(caught.value)


def test_one_config_from_every_kind_of_source(tmp_path: Path) -> None:
    found = load_sconfig(config())
    path = tmp_path / "sconfig.yaml"
    path.write_text(found.to_yaml())
    for source in (path, str(path), found, found.to_dict()):
        assert load_sconfig(source) == found
        assert hash(load_sconfig(source)) == hash(found)
    assert load_sconfig(path).source == str(path)


def test_defaults() -> None:
    found = load_sconfig(config())
    assert (found.SPARSER.ROUND_TO, found.SPARSER.SCOPE, found.SPARSER.TARGET) == (8, "layer", "units")
    assert (found.DEVICE, found.IGNORE, found.SCHEDULE.TYPE) == ("auto", (), "one-shot")


@pytest.mark.parametrize(
    ("old", "new"), [("structed", "structured"), ("unstructed", "unstructured"), ("N:M", "nm")]
)
def test_old_spellings(old: str, new: str) -> None:
    data = config(TYPE=old)
    if new == "nm":
        data["SPARSER"].pop("RATIO")
    assert new == load_sconfig(data).SPARSER.TYPE


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"RATIO": 1}, "SPARSER.RATIO: expected at least 0 and less than 1, got 1"),
        ({"RATIO": "half"}, "got 'half'"),
        ({"STRATEGY": "l1nrom"}, "did you mean 'l1norm'?"),
        ({"TYPE": "structurd"}, "did you mean 'structured'?"),
        ({"ROUND_TO": 0}, "SPARSER.ROUND_TO: expected an integer of at least 1, got 0"),
        ({"NM": "4:2"}, "SPARSER.NM: expected N:M, which keeps N of every M weights, such as 2:4, got '4:2'"),
        ({"BLOCK": [1, 1]}, "SPARSER.BLOCK: expected rows and columns of a block"),
        ({"ROUNDTO": 8}, "SPARSER.ROUNDTO: unknown key; did you mean 'ROUND_TO'?"),
        (
            {"SPECIFIC": {"fc": {"TYPE": "nm"}}},
            "SPARSER.SPECIFIC['fc'].TYPE: unknown key; there are: STRATEGY",
        ),
        ({"SPECIFIC": {"fc": {"RATIO": 2}}}, "SPARSER.SPECIFIC['fc'].RATIO: expected at least 0"),
        ({"TYPE": "unstructured", "STRATEGY": "hrank"}, "expected a criterion for TYPE unstructured"),
        (
            {"TYPE": "unstructured", "SPECIFIC": {"fc": {"STRATEGY": "fpgm"}}},
            "SPARSER.SPECIFIC['fc'].STRATEGY",
        ),
        ({"TYPE": "unstructured", "TARGET": "macs"}, "SPARSER.TARGET: expected units with TYPE unstructured"),
        (
            {"OPTIONS": {"p": 2}},
            "SPARSER.OPTIONS.p: expected an option of l1norm, got 'p'; l1norm has no options",
        ),
        ({"STRATEGY": "random", "OPTIONS": {"sead": 2}}, "did you mean 'seed'?"),
        ({"RATIO": None}, "SPARSER.RATIO: required"),
        ({"TYPE": "nm", "RATIO": 0.3}, "SPARSER.RATIO: expected nothing, or 0.5 with NM 2:4"),
        ({"TYPE": "nm", "RATIO": None, "SCOPE": "global"}, "SPARSER.SCOPE: expected layer with TYPE nm"),
    ],
)
def test_what_is_wrong_is_told(changes: dict[str, Any], told: str) -> None:
    assert told in complaint(config(**changes))


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("SPARSER: {TYP: nm, STRATEGY: l1, RATIO: 7}\nIGNOR: [fc]\n")
    lines = complaint(path).splitlines()
    assert lines[0] == f"{path}: 3 problems"
    assert {line.split(":")[0].strip() for line in lines[1:]} == {"SPARSER.TYP", "SPARSER.RATIO", "IGNOR"}


def test_schedules_that_cannot_be() -> None:
    assert "SCHEDULE.TIMES: expected 1" in complaint({**config(), "SCHEDULE": {"TIMES": 3}})
    cubic = {**config(), "SCHEDULE": {"TYPE": "agp", "TIMES": 3, "INITIAL_RATIO": 0.6}}
    assert "SCHEDULE.INITIAL_RATIO: expected at most RATIO, 0.5" in complaint(cubic)
    nm = {**config(TYPE="nm", RATIO=None), "SCHEDULE": {"TYPE": "cubic"}}
    assert "SCHEDULE.TYPE: expected one-shot with TYPE nm" in complaint(nm)


def test_overrides_come_last_and_are_named_in_messages() -> None:
    found = load_sconfig(config(), ["SPARSER.RATIO=0.25", "SCHEDULE.TYPE=cubic", "SCHEDULE.TIMES=4"])
    assert (found.SPARSER.RATIO, found.SCHEDULE.TIMES) == (0.25, 4)
    assert complaint(config(), "SPARSER.RATIO=2").startswith(
        "override 'SPARSER.RATIO=2': SPARSER.RATIO: expected"
    )
    assert "expected KEY=VALUE such as SPARSER.RATIO=0.3" in complaint(config(), ["SPARSER.RATIO"])
    assert "set SPECIFIC itself" in complaint(config(), ["SPARSER.SPECIFIC.fc=1"])


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({}, "the config is empty; it needs at least SPARSER"),
        (7, "expected a path, a mapping or a config, got int"),
        ("missing.yaml", "missing.yaml: no such file"),
        (".", "is a folder"),
        ({1: 2}, "expected a string as key"),
    ],
)
def test_sources_that_are_none(source: Any, told: str) -> None:
    assert told in complaint(source)


def test_a_quantization_config_is_told_where_it_belongs() -> None:
    assert "W: unknown key; this is a quantization config, for sparsebit.quantize" in complaint({"W": {}})
    assert complaint("int8_onnxruntime").endswith("; a pruning config has no presets")


def test_later_rules_win_and_say_what_was_asked() -> None:
    found = load_sconfig(config(SPECIFIC=[{"layer1.*": {"RATIO": 0.3}}, {"op:conv2d": {"ROUND_TO": 4}}]))
    conv = found.layer(["layer1.0.conv1"], "conv2d")
    assert (conv.ratio, conv.round_to, conv.asked) == (0.3, 4, True)
    assert found.layer(["fc"], "linear") == ("l1norm", 0.5, 8, (2, 4), (4, 4), False)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    found = load_sconfig({**config(SPECIFIC={"layr1.*": {"RATIO": 0.1}}), "IGNORE": ["head"]})
    with pytest.raises(ConfigError) as caught:
        found.require_matched(LAYERS, ["layer1", "fc"])
    assert "SPARSER.SPECIFIC['layr1.*']: no layer matches; the nearest name is 'layer1'" in str(caught.value)
    assert "IGNORE['head']: no module matches" in str(caught.value)
    load_sconfig({**config(), "IGNORE": ["layer1*", "fc"]}).require_matched(LAYERS, ["layer1", "fc"])


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load_sconfig(config()).SPARSER = None  # type: ignore[misc,assignment]
    with pytest.raises(ConfigError, match="RATIO"):
        SConfig(SPARSER={"TYPE": "structured", "STRATEGY": "l1norm"})


@given(
    st.sampled_from(["structured", "unstructured", "block"]),
    st.floats(0, 0.99),
    st.integers(1, 64),
    st.sampled_from(["layer", "global"]),
    st.lists(st.sampled_from(["a", "b.*", "op:linear"]), max_size=3),
)
def test_what_is_written_reads_as_the_same(
    kind: str, ratio: float, multiple: int, scope: str, patterns: list[str]
) -> None:
    rules = [{pattern: {"RATIO": 0.1, "NM": [1, 4]}} for pattern in patterns]
    data = config(TYPE=kind, RATIO=ratio, ROUND_TO=multiple, SCOPE=scope, SPECIFIC=rules)
    found = load_sconfig(data)
    assert load_sconfig(found.to_dict()) == found
    assert found.to_yaml() == load_sconfig(found.to_dict()).to_yaml()
