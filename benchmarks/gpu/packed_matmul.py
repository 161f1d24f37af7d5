"""Products with a packed weight on the GPU: are they right, and how far are they from bfloat16 and from the floor?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.kernels import packed_matmul
from sparsebit.numerics import CodeType, Grid, Layout


@dataclass(frozen=True)
class Case:
    """One weight and one batch, drawn from a seed."""

    rows: int
    channels: int
    batch: int
    code: str = "int4"
    group_size: int | None = 128
    dtype: torch.dtype = torch.bfloat16
    scale_dtype: torch.dtype = torch.float16
    seed: int = 0

    def make(self, device: str) -> tuple[Tensor, Tensor, Grid]:
        """x, packed bytes and the grid."""
        generator = torch.Generator(device).manual_seed(self.seed)
        code = CodeType.parse(self.code)
        groups = 1 if self.group_size is None else self.channels // min(self.group_size, self.channels)
        size = (self.rows, self.channels * code.bits // 8)
        packed = torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8)
        count = self.rows * groups
        scale = (torch.rand(count, generator=generator, device=device) * 0.02 + 0.001).to(self.scale_dtype)
        zero_point = torch.zeros(count, device=device)
        if not code.symmetric:
            zero_point = torch.randint(0, code.high, (count,), generator=generator, device=device).float()
        kind = "channel" if self.group_size is None else "group"
        grid = Grid(scale, zero_point, code, Layout(kind=kind, group_size=self.group_size))
        x = torch.randn(self.batch, self.channels, generator=generator, device=device).to(self.dtype)
        return x, packed, grid


def draw_cases(count: int, seed: int) -> list[Case]:
    """Random sizes, batches, widths and dtypes, odd numbers of rows among them."""
    draw = random.Random(seed)
    return [
        Case(
            rows=draw.choice([1, 3, 16, 33, 100, 257, 1024]),
            channels=128 * draw.choice([1, 2, 3, 7, 16, 33]),
            batch=draw.choice([1, 1, 2, 3, 5, 8, 15, 16, 17, 40]),
            code=draw.choice(
                ["int4", "uint4", "int8", "uint8", "int3", "uint3", "int2", "uint2", "int4_full"]
            ),
            group_size=draw.choice([32, 64, 128, None]),
            dtype=draw.choice([torch.bfloat16, torch.float16]),
            scale_dtype=draw.choice([torch.float16, torch.bfloat16, torch.float32]),
            seed=seed * 1000 + index,
        )
        for index in range(count)
    ]


def kernel_arguments(packed: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor | None, int, int]:
    """A packed weight and its grid as the kernels take them."""
    scale, zero_point = (one.reshape(len(packed), -1).T.contiguous() for one in (grid.scale, grid.zero_point))
    points = None if grid.code.symmetric else zero_point.to(torch.int16)
    return packed, scale, points, grid.code.bits, grid.code.low


def compare(case: Case, device: str) -> str | None:
    """How the product differs from that with the unpacked weight in float64; None where it does not."""
    x, packed, grid = case.make(device)
    arguments = kernel_arguments(packed, grid)
    if not packed_matmul.covers(x, packed, arguments[1], grid.code.bits):
        return "not covered"
    got, again = (packed_matmul.multiply_packed(x, *arguments) for _ in range(2))
    weight = grid.numbers(grid.unpack(packed, case.channels), torch.float64)
    expected = F.linear(x.double(), weight)
    error = float((got.double() - expected).norm() / expected.norm())
    problems = [] if torch.equal(got, again) else ["two runs differ"]
    if not error < 8e-3:  # also NaN
        problems.append(f"relative error {error:.3g}")
    return "; ".join(problems) or None


SHAPES = ((28672, 8192), (4096, 4096), (8192, 8192))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
SOME = (1, 4, 16, 64, 128, 256, 1024)
MANY = (65, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2000)
CODES = {  # and the sizes of groups
    "int4": (128, 32, 64, None), "uint4": (128,), "int8": (128,), "int3": (128,), "int2": (128,),
}  # fmt: skip


def measure(
    copy_bytes_per_second: float,
    time_of: Callable[..., float],
    batches: Sequence[int] = BATCHES,
    all_batches: bool = False,
) -> Iterator[dict[str, Any]]:
    """Microseconds for each width, shape and batch, beside bfloat16 and the memory floor.

    Without ``all_batches`` only 4 bits in groups of 128 are measured with all of them.
    """
    bf16: dict[tuple[int, int, int], float] = {}
    for code, sizes in CODES.items():
        for size, (out, channels) in itertools.product(sizes, SHAPES):
            several = all_batches or (code == "int4" and size == 128)
            for batch in batches if several else SOME:
                step, moved = make_step(Case(out, channels, batch, code, size))
                key = (out, channels, batch)
                if key not in bf16:
                    bf16[key] = time_of(make_plain_step(*key), graph=True)
                yield {
                    "shape": [out, channels],
                    "code": code,
                    "group_size": size,
                    "batch": batch,
                    "floor_us": moved / copy_bytes_per_second * 1e6,
                    "bf16_us": bf16[key],
                    "packed_us": time_of(step, graph=True),
                }


def make_step(case: Case) -> tuple[Callable[[], Tensor], int]:
    """One product, with copies of the weight in turn, so that none is found in the cache; and the bytes it moves."""
    x, packed, grid = case.make("cuda")
    _, *arguments = kernel_arguments(packed, grid)
    turn = take_turns(packed)
    moved = packed.nbytes + x.nbytes + 2 * case.batch * case.rows
    moved += sum(one.nbytes for one in arguments if isinstance(one, Tensor))
    return lambda: packed_matmul.multiply_packed(x, next(turn), *arguments), moved


def take_turns(weight: Tensor) -> Iterator[Tensor]:
    """Copies of a weight in turn, so many that none is found in the device's cache."""
    return itertools.cycle([weight] + [weight.clone() for _ in range(2**28 // weight.nbytes)])


def make_plain_step(out: int, channels: int, batch: int) -> Callable[[], Tensor]:
    """The same product in bfloat16."""
    weight = torch.randn(out, channels, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(batch, channels, device="cuda", dtype=torch.bfloat16)
    turn = take_turns(weight)
    return lambda: F.linear(x, next(turn))
