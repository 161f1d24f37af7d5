"""SCHEDULE.RECOVERY: steps by name, options by name, and mistakes with the nearest of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsebit.config.engine.steps import Step
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.config.quantization.recovery import RECOVERY, STEP_RULES
from sparsebit.errors import ConfigError
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
    assert RECOVERY.parse((equalization, brecq)) == (equalization, brecq)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    written = ["equalization", {"brecq": {"steps": 10, "lr": 1e-3}}]
    assert RECOVERY.write(steps(written)) == written
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
    assert "weight_correction has no options" in complaint([{"weight_correction": {"steps": 1}}])
    assert "expected a list of steps" in complaint(3)
    assert "one name with its options" in complaint([{"brecq": {}, "adaround": {}}])
    assert "one name with its options" in complaint([{"brecq": 7}])
    assert "there are: rounds" in complaint([{"equalization": {"stage": "after"}}])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_takes_the_options_that_configs_may_name(name: str) -> None:
    """Settings are declared once, where no torch is imported; the algorithm inherits them."""
    options = STEP_RULES[name].option_names
    assert options is not None
    assert ALGORITHMS[name](**{option: getattr(ALGORITHMS[name], option) for option in options})


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            {"brecq": {"steps": "many"}},
            "expected an integer of at least 1 for option steps of brecq, not 'many'",
        ),
        (
            {"brecq": {"steps": 10.5}},
            "an integer of at least 1 for option steps of brecq, not 10.5",
        ),
        ({"brecq": {"lr": True}}, "expected a number above 0 for option lr of brecq, not True"),
        ({"brecq": {"steps": 0}}, "expected an integer of at least 1 for option steps of brecq, not 0"),
        (
            {"smoothquant": {"alpha": 2}},
            "expected a number from 0 to 1 for option alpha of smoothquant, not 2",
        ),
        ({"bias_correction": {"method": "guess"}}, "expected empirical or analytic"),
    ],
    ids=str,
)
def test_wrong_values_are_found_when_the_config_is_read(step: dict[str, Any], told: str) -> None:
    assert told in complaint([step])
