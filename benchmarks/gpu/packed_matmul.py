"""Products with a packed weight on the GPU: are they right, and how far are they from bfloat16 and from the floor?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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
            code=draw.choice(["int4", "uint4", "int8", "uint8", "int2", "uint2", "int4_full"]),
            group_size=draw.choice([32, 64, 128, None]),
            dtype=draw.choice([torch.bfloat16, torch.float16]),
            scale_dtype=draw.choice([torch.float16, torch.bfloat16, torch.float32]),
            seed=seed * 1000 + index,
        )
        for index in range(count)
    ]


def compare(case: Case, device: str, is_covered: Callable[..., bool] = packed_matmul.covers) -> str | None:
    """How the product differs from that with the unpacked weight in float64; None where it does not."""
    x, packed, grid = case.make(device)
    code, zero_point = grid.code, grid.zero_point.to(torch.int16)
    if not is_covered(x, packed, grid.scale, code.bits, case.group_size):
        return "not covered"
    got, again = (
        packed_matmul.multiply_packed(x, packed, grid.scale, zero_point, code.bits, code.low)
        for _ in range(2)
    )
    weight = grid.numbers(grid.unpack(packed, case.channels), torch.float64)
    expected = F.linear(x.double(), weight)
    error = float((got.double() - expected).norm() / expected.norm())
    problems = [] if torch.equal(got, again) else ["two runs differ"]
    if not error < 8e-3:  # also NaN
        problems.append(f"relative error {error:.3g}")
    return "; ".join(problems) or None


SHAPES = ((28672, 8192), (8192, 8192), (4096, 4096))
VECTOR_TILES = ((8, 256, 4), (4, 512, 4), (16, 128, 4), (16, 256, 8), (4, 256, 4), (8, 128, 4), (8, 512, 8))
BATCH_TILES = ((32, 16, 4), (64, 16, 4), (16, 16, 2), (64, 32, 8), (32, 32, 4), (128, 16, 8))


def measure(copy_bytes_per_second: float, time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """Microseconds for each shape and batch, beside bfloat16 and the memory floor, and the tile that was fastest."""
    for out, channels in SHAPES:
        reference = torch.randn(out, channels, device="cuda", dtype=torch.bfloat16)
        for code, batches in (("int4", (1, 4, 16, 64, 256)), ("int8", (1, 16)), ("int2", (1,))):
            for batch in batches:
                case = Case(out, channels, batch, code)
                x, packed, grid = case.make("cuda")
                zero_point = grid.zero_point.to(torch.int16)
                # Copies in turn, so that no weight is found in the cache.
                copies = [packed.clone() for _ in range(max(1, 2**28 // packed.numel()))]
                plain = [reference] + [reference.clone() for _ in range(2**28 // reference.nbytes)]
                turn = iter(range(10**9))

                def step(x: Tensor = x, grid: Grid = grid, copies: list[Tensor] = copies, turn: Any = turn,
                         zero_point: Tensor = zero_point) -> None:  # fmt: skip
                    held = copies[next(turn) % len(copies)]
                    packed_matmul.multiply_packed(
                        x, held, grid.scale, zero_point, grid.code.bits, grid.code.low
                    )

                def step_plain(x: Tensor = x, plain: list[Tensor] = plain, turn: Any = turn) -> None:
                    F.linear(x, plain[next(turn) % len(plain)])

                name = "VECTOR_TILE" if batch == 1 else "BATCH_TILE" if batch <= packed_matmul.BATCH else None
                chosen = getattr(packed_matmul, name) if name else None
                tiles = VECTOR_TILES if batch == 1 else BATCH_TILES
                times: dict[str, float] = {}
                for tile in tiles if name and code == "int4" else [chosen]:
                    if name:
                        setattr(packed_matmul, name, tile)
                    try:
                        times[str(tile)] = time_of(step, graph=True)
                    except Exception as error:
                        print(f"  tile {tile} failed: {type(error).__name__}: {str(error)[:200]}")
                if name:
                    setattr(packed_matmul, name, chosen)
                moved = packed.nbytes + grid.scale.nbytes + zero_point.nbytes + x.nbytes + 2 * batch * out
                yield {
                    "shape": [out, channels],
                    "code": code,
                    "batch": batch,
                    "floor_us": moved / copy_bytes_per_second * 1e6,
                    "bf16_us": time_of(step_plain, graph=True),
                    "packed_us": times.get(str(chosen)),
                    "tiles_us": times,
                }
                del copies, plain
