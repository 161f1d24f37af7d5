"""Triton kernels compiled for devices that are not here: assembly and shared memory, which no interpreter sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# KiB of shared memory of a program, by capability: A100, RTX 30 and 40, H100, B200, RTX 50.
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
_NAMES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int16: "i16",
    torch.uint8: "u8", torch.int64: "i64",
}  # fmt: skip


class Device:
    """Stands in for ``kernels.launch.launch``: compiles for a capability, and keeps the names of the kernels."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.compiled: list[str] = []

    def launch(
        self,
        kernel: Any,
        programs: int,
        tensors: Sequence[Tensor],
        floats: tuple[float, ...],
        settings: tuple[Any, ...],
        warps: int = 4,
        across: int = 1,
        registers: int | None = None,
    ) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile
        from triton.runtime.errors import OutOfResources

        given = dict(zip(kernel.arg_names, [*tensors, *floats, *settings], strict=True))
        fixed = {p.name for p in kernel.params if p.is_constexpr}
        names = list(given)
        signature = {name: "constexpr" if name in fixed else _type_of(value) for name, value in given.items()}
        constants = {(names.index(name),): given[name] for name in fixed}
        aligned = {
            (names.index(n),): [["tt.divisibility", 16]] for n in names if signature[n].startswith("*")
        }
        options: dict[str, Any] = {"num_warps": warps} | ({} if registers is None else {"maxnreg": registers})
        target = GPUTarget("cuda", self.capability, 32)
        made = compile(ASTSource(kernel, signature, constants, aligned), target=target, options=options)
        limit = SHARED[self.capability] * 1024
        if made.metadata.shared > limit:
            raise OutOfResources(made.metadata.shared, limit, "shared memory")
        self.compiled.append(kernel.__name__)


def _type_of(value: object) -> str:
    if isinstance(value, Tensor):
        return f"*{_NAMES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"
