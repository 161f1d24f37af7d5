"""What is written is plain, and reads as the same."""

from __future__ import annotations

import yaml

from sparsebit.config import load_qconfig, load_sconfig
from sparsebit.config.engine.write import write_section
from sparsebit.config.engine.yaml_file import write_yaml


def test_only_plain_values_are_written() -> None:
    config = load_sconfig(
        {"SPARSER": {"TYPE": "nm", "STRATEGY": "random", "NM": "1:4", "OPTIONS": {"seed": 3}}}
    )
    written = write_section(config)
    assert written["SPARSER"]["NM"] == [1, 4] and written["SPARSER"]["OPTIONS"] == {"seed": 3}
    assert "RATIO" not in written["SPARSER"]  # it is not set
    assert yaml.safe_load(write_yaml(written)) == written


def test_values_of_their_own_kind_have_a_writer() -> None:
    config = load_qconfig("w4a8", ["SCHEDULE.RECOVERY=[adaround]"])
    written = write_section(config, {"RECOVERY": lambda found: ["told"]})
    assert written["SCHEDULE"]["RECOVERY"] == ["told"]
