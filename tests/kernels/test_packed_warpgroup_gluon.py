"""The kernel for Hopper is compiled, which needs no GPU: there is no interpreter for its language."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparsebit.kernels.packed_warpgroup import plan_call, values_of

triton = pytest.importorskip("triton")
POINTERS = {
    "x_ptr": "*bf16", "words_ptr": "*i32", "scale_ptr": "*fp16", "zero_point_ptr": "*i16", "parts_ptr": "*fp32",
    "counts_ptr": "*i32", "y_ptr": "*bf16",
}  # fmt: skip


def compile_for_hopper(rows: int, channels: int, groups: int, bits: int, batch: int, has_zero: bool) -> Any:
    """The kernel with the settings of such a product."""
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from sparsebit.kernels.packed_warpgroup_gluon import multiply

    plan = plan_call(rows, channels, groups, bits, batch)
    assert plan is not None
    known = {
        "LOW": 0 if has_zero else -(1 << (bits - 1)), "BITS": bits, "UNIT": 3 if bits == 3 else 1,
        "HAS_ZERO": has_zero, "UNITS_PER_GROUP": channels // values_of(bits) // groups,
        "BATCH": plan.vectors, "STAGES": plan.stages, "AHEAD": bits != 3,
    }  # fmt: skip
    names = multiply.arg_names
    signature = {name: "constexpr" if name in known else POINTERS.get(name, "i32") for name in names}
    aligned = [["tt.divisibility", 16]]
    divisible = {
        (i,): aligned for i, name in enumerate(names) if name in {*POINTERS, "rows", "units_per_row"}
    }
    constants = {(names.index(name),): value for name, value in known.items()}
    source = GluonASTSource(multiply, signature, constants, divisible)
    options = {"num_warps": plan.warps} | ({} if plan.registers is None else {"maxnreg": plan.registers})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(
    ("rows", "channels", "groups", "bits", "batch", "has_zero"),
    [
        (8192, 8192, 64, 4, 128, False),
        (8192, 8192, 256, 4, 16, True),  # four scales in a block
        (8192, 8192, 64, 8, 64, True),
        (4096, 4096, 64, 3, 16, False),
    ],
)
def test_it_compiles_and_fits_the_shared_memory_with_values_in_registers(
    rows: int, channels: int, groups: int, bits: int, batch: int, has_zero: bool
) -> None:
    made = compile_for_hopper(rows, channels, groups, bits, batch, has_zero)
    assert made.metadata.shared <= 227 * 1024
    products = re.findall(r"wgmma\.mma_async\.\S+\s*\{[^}]*\},\s*(\S)", made.asm["ptx"])
    assert products and set(products) == {"{"}  # a list of registers, not a place in shared memory
