"""Values of a pruning config as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsebit.config.pruning.sconfig import load_sconfig
from tests.config.pruning.test_sconfig import complaint, config


@pytest.mark.parametrize("text", ["2:4", "[2, 4]", '"2:4"', "2/4"])
def test_n_of_m_as_people_write_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nm.yaml"
    path.write_text(f"SPARSER: {{TYPE: nm, STRATEGY: l1norm, NM: {text}}}")
    found = load_sconfig(path)
    assert found.SPARSER.NM == (2, 4)
    assert found.layer(["fc"], "linear").ratio == 0.5


@pytest.mark.parametrize("value", ["4x4", [4, 4], 4, "4, 4"])
def test_blocks_as_people_write_them(value: Any) -> None:
    assert load_sconfig(config(TYPE="block", BLOCK=value)).SPARSER.BLOCK == (4, 4)


def test_all_of_it_is_refused_with_what_to_write_instead() -> None:
    """An old file used it for layers that should stay."""
    assert complaint(config(RATIO=1.0)) == (
        "sconfig: SPARSER.RATIO: expected at least 0 and less than 1, got 1.0; "
        "to leave a layer unchanged write 0"
    )
