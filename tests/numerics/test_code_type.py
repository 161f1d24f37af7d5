"""Types of codes: their ranges, their names, and what is refused."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import ConfigError
from sparsebit.numerics import CodeType
from sparsebit.numerics.code_type import NF4_LEVELS

INTEGERS = [CodeType(kind, bits) for kind in ("int", "uint", "full") for bits in range(2, 17)]
CODES = [*INTEGERS, CodeType("fp8_e4m3", 8), CodeType("fp8_e5m2", 8), CodeType("nf4", 4)]


@pytest.mark.parametrize("code", CODES, ids=str)
def test_a_name_means_one_type(code: CodeType) -> None:
    assert CodeType.parse(str(code)) == code


@pytest.mark.parametrize("code", INTEGERS, ids=str)
def test_integers_use_all_their_bits(code: CodeType) -> None:
    assert code.high - code.low + 1 == 2**code.bits
    assert code.low == (0 if code.kind == "uint" else -(2 ** (code.bits - 1)))
    info = torch.iinfo(code.dtype)
    assert info.min <= code.low and code.high <= info.max


def test_the_smallest_dtype_holds_the_codes() -> None:
    expected = {
        "int8": torch.int8, "int4": torch.int8, "uint8": torch.uint8, "uint4": torch.uint8, "uint9": torch.int16,
        "int16": torch.int16, "uint16": torch.int32, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
        "nf4": torch.uint8,
    }  # fmt: skip
    assert {name: CodeType.parse(name).dtype for name in expected} == expected


def test_specs_ask_for_signed_or_counted_integers_and_8_bit_floats() -> None:
    assert [str(CodeType.of(4)), str(CodeType.of(4, False)), str(CodeType.of(8, True, "fp8_e5m2"))] == [
        "int4",
        "uint4",
        "fp8_e5m2",
    ]


@pytest.mark.parametrize("bits", [1, 17, 0, -8, True, 8.0])
def test_widths_out_of_range_are_refused(bits: object) -> None:
    with pytest.raises(ConfigError, match=r"(?s)bits from 2 to 16.*got"):
        CodeType("int", bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["int1", "float8", "uint4_full", "int", 8, "int4 ", "int444"])
def test_unknown_names_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match=r"bits from 2 to 16|int2 to int16, uint2"):
        CodeType.parse(name)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nf4 has 4 bits"):
        CodeType("nf4", 8)


def test_nf4_takes_the_nearest_level() -> None:
    code, x = CodeType("nf4", 4), torch.linspace(-1, 1, 4001, dtype=torch.float64)
    levels = torch.tensor(NF4_LEVELS, dtype=torch.float64)
    best = (x[:, None] - levels).abs().amin(1)
    assert torch.equal((code.nearest(x) - x).abs(), best)
    assert sorted(NF4_LEVELS) == list(NF4_LEVELS) and 0.0 in NF4_LEVELS
