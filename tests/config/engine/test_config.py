"""Loading: every kind of source, overrides on top, and every way it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given

from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError
from tests.config.strategies import configs, plain_config

ROOT = Path(__file__).parents[3]


def complaint(source: Any, overrides: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_qconfig(source, overrides)
    return str(caught.value)


def test_one_config_from_every_kind_of_source(tmp_path: Path) -> None:
    config = load_qconfig(plain_config())
    path = tmp_path / "w8.yaml"
    path.write_text(config.to_yaml())
    for source in (
        path,
        str(path),
        config,
        OrderedDict(plain_config()),
        MappingProxyType(plain_config()),
        config.to_dict(),
    ):
        assert load_qconfig(source) == config
    assert load_qconfig(path).source == str(path)
    assert load_qconfig(load_qconfig(path), ["DEVICE=cpu"]).source == str(path)


def test_what_was_given_is_left_as_it_was() -> None:
    data = plain_config()
    load_qconfig(data, ["W.QUANTIZER.BIT=4", "SCHEDULE.FUSE_BN=true"])
    assert data == plain_config()


def test_a_path_is_a_file_even_when_a_preset_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w4a8").write_text(load_qconfig(plain_config()).to_yaml())
    assert load_qconfig(Path("w4a8")).W.QUANTIZER.BIT == 8
    assert load_qconfig("w4a8").W.QUANTIZER.BIT == 4


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("W.QUANTIZER.BIT=4", "W.QUANTIZER.BIT", 4),
        (" BACKEND = openvino", "BACKEND", "openvino"),
        ("SCHEDULE.FUSE_BN=true", "SCHEDULE.FUSE_BN", True),
        ("A.OBSERVER.PERCENTILE.ALPHA=1e-4", "A.OBSERVER.PERCENTILE.ALPHA", 0.0001),
        ("SKIP_TRACE_MODULES=[a.*, b]", "SKIP_TRACE_MODULES", ("a.*", "b")),
        ("A.OBSERVER={TYPE: mse}", "A.OBSERVER.TYPE", "mse"),
        ("W.QUANTIZER.DTYPE=fp8_e4m3", "W.QUANTIZER.DTYPE", "fp8_e4m3"),
    ],
)
def test_overrides(override: str, key: str, value: object) -> None:
    found: Any = load_qconfig(plain_config(), [override])
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_later_overrides_win_and_one_needs_no_list() -> None:
    assert load_qconfig("w4a8", ["W.QUANTIZER.BIT=4", "W.QUANTIZER.BIT=6"]).W.QUANTIZER.BIT == 6
    assert load_qconfig("w4a8", "W.QUANTIZER.BIT=6").W.QUANTIZER.BIT == 6


def test_an_override_of_bits_or_type_replaces_both() -> None:
    float8 = load_qconfig(plain_config(), ["W.QUANTIZER.BIT=fp8_e4m3"])
    assert load_qconfig(float8, ["W.QUANTIZER.BIT=4"]).W.QUANTIZER.DTYPE == "int"
    assert load_qconfig("w4a8", ["W.QUANTIZER.DTYPE=fp8_e5m2"]).W.QUANTIZER.BIT == 8
    assert load_qconfig("w4a8", ["W.QUANTIZER.DTYPE=int"]).W.QUANTIZER.BIT == 4


def test_rules_in_an_override() -> None:
    config = load_qconfig("w4a8", ["W.SPECIFIC={layer1.0: [QUANTIZER.BIT, 8]}"])
    assert [rule.pattern for rule in config.W.SPECIFIC] == ["layer1.0"]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["W.QUANTIZER.BITT=4"],
            "override 'W.QUANTIZER.BITT=4': W.QUANTIZER.BITT: unknown key; did you mean 'BIT'?",
        ),
        (
            ["W.QUANTIZER={BIT:4}"],
            "override 'W.QUANTIZER={BIT:4}': W.QUANTIZER.BIT:4: unknown key; "
            "write 'BIT: 4', with a space after the colon",
        ),
        (["W.QUANTIZER.BIT"], "override 'W.QUANTIZER.BIT': expected KEY=VALUE such as W.QUANTIZER.BIT=4"),
        (["=4"], "override '=4': expected KEY=VALUE such as W.QUANTIZER.BIT=4"),
        (["W..BIT=4"], "override 'W..BIT=4': expected KEY=VALUE such as W.QUANTIZER.BIT=4"),
        (
            ["W.SPECIFIC.conv1=4"],
            "override 'W.SPECIFIC.conv1=4': W.SPECIFIC.conv1: cannot be set; set SPECIFIC itself, with all its rules",
        ),
        (
            ["BACKEND.X=4"],
            "override 'BACKEND.X=4': BACKEND.X: cannot be set; BACKEND is not a section",
        ),
        (
            ["W.SPECIFIC=[1"],
            "override 'W.SPECIFIC=[1': line 1, column 3: expected ',' or ']', but got '<stream end>'",
        ),
        (
            ["W.QUANTIZER.BIT=99", "ABC=1"],
            "w4a8: 2 problems\n"
            "  override 'W.QUANTIZER.BIT=99': W.QUANTIZER.BIT: expected an integer from 2 to 16, 0 for float, "
            "fp8_e4m3 or fp8_e5m2, got 99\n"
            "  override 'ABC=1': ABC: unknown key; there are: DEVICE, BACKEND, SKIP_TRACE_MODULES, FIRST_LAST, "
            "SCHEDULE, W, A",
        ),
    ],
)
def test_wrong_overrides(overrides: list[str], text: str) -> None:
    assert complaint("w4a8", overrides) == text


def test_a_file_with_problems_names_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w8.yaml").write_text(
        "W: {QSCHEME: per-channel-symmetric, QUANTIZER: {BITT: 8}}\nA: {QSCHEME: affine}\n"
    )
    assert complaint("w8.yaml").splitlines()[:2] == [
        "w8.yaml: 3 problems",
        "  W.QUANTIZER.BITT: unknown key; did you mean 'BIT'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the config is empty; it needs at least W and A with QSCHEME and QUANTIZER.BIT"),
        ("# nothing\n", "the config is empty; it needs at least W and A with QSCHEME and QUANTIZER.BIT"),
        ("{}", "the config is empty; it needs at least W and A with QSCHEME and QUANTIZER.BIT"),
        (
            "- W\n- A\n",
            "expected keys with values (at least W and A with QSCHEME and QUANTIZER.BIT), got a list",
        ),
        (
            "just text",
            "expected keys with values (at least W and A with QSCHEME and QUANTIZER.BIT), got a str",
        ),
        ("3: 4\n", "expected a string as key, got 3"),
        ("W: &w {A: *w}\n", "a part of the config contains itself"),
    ],
)
def test_files_that_are_no_configs(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w8.yaml").write_text(text)
    assert complaint("w8.yaml") == f"w8.yaml: {message}"


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint("w8.yaml") == f"w8.yaml: no such file; looked in {tmp_path}"
    assert complaint("w4a9") == "w4a9: no such preset or file; did you mean 'w4a8'?"
    assert complaint("int8_ort") == "int8_ort: no such preset or file; did you mean 'int8_onnxruntime'?"
    assert complaint(str(tmp_path)) == f"{tmp_path}: is a folder; name the file in it"
    Path("picture.yaml").write_bytes(b"\x89PNG\xff")
    assert complaint("picture.yaml") == "picture.yaml: not UTF-8 text (byte 0); is it a YAML file?"
    assert complaint("x" * 5000 + ".yaml").endswith("cannot be read: File name too long")
    assert complaint("W:\0") == "'W:\\x00': cannot be read: this is not a valid file name"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "w8.yaml"
    path.touch(mode=0)
    assert complaint(path).endswith("cannot be read: Permission denied")


@pytest.mark.parametrize("source", [None, 3, ["W"], object])
def test_other_sources_are_refused(source: object) -> None:
    kind = type(source).__name__
    assert complaint(source) == (
        f"qconfig: expected a path, the name of a preset, a mapping or a config, got {kind}"
    )


@given(configs())
def test_loading_is_the_same_through_a_dict_and_through_yaml(data: dict[str, Any]) -> None:
    config = load_qconfig(data)
    assert load_qconfig(config, ["DEVICE=cpu"]) == load_qconfig({**data, "DEVICE": "cpu"})


def test_the_config_package_needs_no_torch() -> None:
    """With an empty stand-in for the package above it, which does import torch."""
    program = (
        "import sys, types; top = types.ModuleType('sparsebit'); top.__path__ = ['sparsebit']; "
        "sys.modules['sparsebit'] = top; import sparsebit.config, sparsebit.config.engine.schema; "
        "sparsebit.config.load_qconfig('w4a8'); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
