"""What targets accept: complete, and the same as what the how-to says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsebit.config import load_qconfig
from sparsebit.config.quantization.presets import preset_names
from sparsebit.targets import TARGETS
from sparsebit.targets.schemes import SCHEMES_OF, SIDES

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "configure.md"


def test_every_target_says_what_it_accepts_and_virtual_takes_anything() -> None:
    assert [name for name, target in TARGETS.items() if not target.accepts] == ["virtual"]


@pytest.mark.parametrize("backend", [name for name in TARGETS if name != "virtual"])
def test_rows_are_possible_and_refusals_have_reasons(backend: str) -> None:
    for side in SIDES:
        accepts = TARGETS[backend].accepts[side]
        for row in accepts.rows:
            assert set(row.schemes) <= set(SCHEMES_OF[side])
            assert row.dtype == "int" or row.bits == (8,)
        reasons = [accepts.dtype, accepts.bits]
        reasons += (
            [accepts.scheme]
            if {s for row in accepts.rows for s in row.schemes} < set(SCHEMES_OF[side])
            else []
        )
        reasons += [accepts.group_size] if any(row.group_sizes for row in accepts.rows) else []
        assert all(reason.startswith(backend) for reason in reasons)


def test_int8_presets_are_for_their_backend() -> None:
    for name in preset_names():
        if name.startswith("int8_"):
            assert name.removeprefix("int8_") == load_qconfig(name).BACKEND


def test_the_how_to_lists_every_backend_and_its_group_sizes() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", HOW_TO.read_text(), re.MULTILINE))
    assert set(TARGETS) <= set(rows)
    for backend, target in TARGETS.items():
        for accepts in target.accepts.values():
            for row in accepts.rows:
                low, high = row.bits[0], row.bits[-1]
                assert (
                    row.dtype in rows[backend]
                    or f"{low} to {high} bits" in rows[backend]
                    or "int8" in rows[backend]
                )
                assert all(str(size) in rows[backend] for size in row.group_sizes or ())
