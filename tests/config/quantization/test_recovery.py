"""SCHEDULE.RECOVERY: steps by name, options by name, and mistakes with the nearest of each."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sparsebit.config.quantization import recovery
from sparsebit.config.quantization.load import load_qconfig
from sparsebit.config.quantization.recovery import Step, parse_recovery, step_names, write_recovery
from sparsebit.errors import ConfigError
from sparsebit.quantization import parse_qconfig
from sparsebit.quantization.algorithms import ALGORITHMS
from tests.config.strategies import plain_config


def steps(value: Any) -> tuple[Step, ...]:
    data = plain_config()
    data.setdefault("SCHEDULE", {})["RECOVERY"] = value
    return load_qconfig(data).SCHEDULE.RECOVERY


def complaint(value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        steps(value)
    return str(caught.value)


def test_every_way_to_write_a_step() -> None:
    assert steps([]) == ()
    assert steps("brecq") == steps(["Brecq"]) == steps([{"brecq": None}]) == steps({"brecq": {}})
    (equalization, brecq) = steps(["equalization", {"brecq": {"steps": 10, "lr": 0.5}}])
    assert equalization.name == "equalization" and not equalization.options
    assert brecq.name == "brecq" and dict(brecq.options) == {"steps": 10, "lr": 0.5}
    assert parse_recovery((equalization, brecq)) == (equalization, brecq)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    written = ["equalization", {"brecq": {"steps": 10, "lr": 1e-3}}]
    assert write_recovery(steps(written)) == written
    data = plain_config()
    data.setdefault("SCHEDULE", {})["RECOVERY"] = written
    config = load_qconfig(data)
    path = tmp_path / "it.yaml"
    path.write_text(config.to_yaml())
    assert load_qconfig(path) == config and load_qconfig(config.to_dict()) == config


def test_one_line_on_the_command_line() -> None:
    data = plain_config()
    config = load_qconfig(data, ["SCHEDULE.RECOVERY=[equalization, {brecq: {lr: 1e-3}}]"])
    assert [step.name for step in config.SCHEDULE.RECOVERY] == ["equalization", "brecq"]
    assert config.SCHEDULE.RECOVERY[1].options["lr"] == 1e-3


def test_mistakes_name_the_nearest() -> None:
    assert "did you mean 'brecq'?" in complaint(["breqc"])
    assert "SCHEDULE.RECOVERY" in complaint(["breqc"])
    assert "did you mean 'steps'?" in complaint([{"brecq": {"step": 1}}])
    assert "it has none" in complaint([{"weight_correction": {"steps": 1}}])
    assert "expected a list of steps" in complaint(3)
    assert "one name with its options" in complaint([{"brecq": {}, "adaround": {}}])
    assert "one name with its options" in complaint([{"brecq": 7}])


def test_stage_is_no_option() -> None:
    assert "options of equalization: rounds" in complaint([{"equalization": {"stage": "after"}}])


def test_what_is_known_without_the_library_is_what_the_library_has() -> None:
    """Configs can be checked before the algorithms are imported; the two lists must not drift apart."""
    spec = importlib.util.spec_from_file_location("fresh", recovery.__file__)
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    own = {name: tuple(f.name for f in fields(kind)) for name, kind in ALGORITHMS.items()}  # type: ignore[arg-type]
    assert own == fresh._OPTIONS
    assert set(own) <= set(step_names())


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"brecq": {"steps": "many"}}, "(?s)brecq: steps.*a whole number.*'many'"),
        ({"brecq": {"steps": 10.5}}, "(?s)brecq: steps.*a whole number.*10.5"),
        ({"brecq": {"lr": True}}, "(?s)brecq: lr.*a number.*True"),
        ({"brecq": {"steps": 0}}, "steps, batch and largest of at least 1"),
        ({"smoothquant": {"alpha": 2}}, "from 0 to 1"),
        ({"bias_correction": {"method": "guess"}}, "empirical or analytic"),
    ],
    ids=str,
)
def test_wrong_values_are_found_before_any_work(step: dict[str, Any], told: str) -> None:
    import torch

    from sparsebit.quantization import QuantModel

    data = plain_config()
    data.setdefault("SCHEDULE", {})["RECOVERY"] = [step]
    with pytest.raises(ConfigError, match=told):
        QuantModel(torch.nn.Linear(2, 2), parse_qconfig(data), torch.zeros(1, 2))
