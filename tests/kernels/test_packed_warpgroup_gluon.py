"""The kernel for Hopper is compiled, which needs no GPU: there is no interpreter for its language."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from sparsebit.kernels.packed_warpgroup import FEW, FEW_BITS, plan_call, words_of_block

triton = pytest.importorskip("triton")
POINTERS = {"parts_ptr": "*fp32", "counts_ptr": "*i32", "y_ptr": "*bf16"}


def compile_for_hopper(rows: int, channels: int, groups: int, bits: int, batch: int, has_zero: bool) -> Any:
    """The kernel with the settings of such a product."""
    from triton._utils import canonicalize_dtype
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from sparsebit.kernels.packed_few_gluon import multiply_few
    from sparsebit.kernels.packed_warpgroup_gluon import describe, multiply

    plan = plan_call(rows, channels, groups, bits, batch)
    assert plan is not None
    vectors, warps, repeats, _, registers, few = plan.settings
    tall = 16 * warps * repeats
    scales = describe(torch.empty(groups, rows, dtype=torch.float16), 1, tall)
    descriptors = {
        "x": describe(torch.empty(batch, channels, dtype=torch.bfloat16), vectors, plan.block),
        "words": describe(
            torch.empty(rows, channels * bits // 32, dtype=torch.int32),
            tall,
            words_of_block(bits, plan.block),
        ),
        "scales": scales,
        "zeros": describe(torch.empty(groups, rows, dtype=torch.int16), 1, tall) if has_zero else scales,
    }
    known = {
        "LOW": 0 if has_zero else -(1 << (bits - 1)), "BITS": bits, "HAS_ZERO": has_zero, "GROUP": plan.group,
        "BLOCK": plan.block, "GROUPS": plan.scales, "VECTORS": vectors, "REPEATS": repeats, "STAGES": plan.stages,
    }  # fmt: skip
    kernel = multiply_few if few else multiply
    names = kernel.arg_names
    signature = {name: "constexpr" if name in known else POINTERS.get(name, "i32") for name in names}
    for name, one in descriptors.items():
        kind = canonicalize_dtype(one.base.dtype)
        signature[name] = f"tensordesc<{kind}{list(one.block_shape)},{one.layout!r}>"
    aligned = [["tt.divisibility", 16]]
    divisible = {(i,): aligned for i, name in enumerate(names) if name in {*POINTERS, "rows", "channels"}}
    constants = {(names.index(name),): value for name, value in known.items()}
    source = GluonASTSource(kernel, signature, constants, divisible)
    options = {"num_warps": warps} | ({} if registers is None else {"maxnreg": registers})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(
    ("rows", "channels", "groups", "bits", "batch", "has_zero"),
    [
        (8192, 8192, 64, 4, 128, False),
        (28672, 8192, 256, 4, 100, True),  # four scales in a block
        (8192, 8192, 64, 8, 64, True),
        (4096, 4096, 32, 3, 16, False),
        (4096, 4096, 32, 2, 300, False),
        (8192, 8192, 256, 4, 2, True),  # few vectors
        (4096, 4096, 32, 4, 16, False),
        (8192, 8192, 64, 2, 5, False),
    ],
)
def test_it_compiles_and_fits_the_shared_memory_with_values_in_registers(
    rows: int, channels: int, groups: int, bits: int, batch: int, has_zero: bool
) -> None:
    made = compile_for_hopper(rows, channels, groups, bits, batch, has_zero)
    assert made.metadata.shared <= 227 * 1024
    if bits in FEW_BITS and batch <= FEW:
        assert "mma.sync" in made.asm["ptx"] and "wgmma" not in made.asm["ptx"]
        return
    products = re.findall(r"wgmma\.mma_async\.\S+\s*\{[^}]*\},\s*(\S)", made.asm["ptx"])
    assert products and set(products) == {"{"}  # a list of registers, not a place in shared memory
