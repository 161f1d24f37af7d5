"""Which settings of the kernels for packed weights are fastest? The times that their tables were chosen by.

``python -m benchmarks.gpu.run packed_tiles_vector packed_tiles_matrix packed_tiles_unpacked``
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.packed_matmul import SHAPES, Case, compare, make_plain_step, make_step
from sparsebit.kernels import packed_matmul

# Rows of a program, warps, whether words are read ahead, and registers, for each width.
VECTOR_TILES: dict[str, tuple[tuple[int, int, bool, int | None], ...]] = {
    "int4": (
        (16, 4, False, 128), (16, 4, False, None), (16, 4, True, 128), (16, 4, True, None), (8, 4, False, None),
        (8, 4, True, 96), (16, 2, False, 128), (16, 2, True, None), (8, 2, True, 96), (16, 4, False, 112),
    ),
    "int2": ((16, 4, False, 96), (16, 4, False, None), (16, 4, True, 96), (32, 4, False, 128)),
    "int3": ((8, 4, False, None), (8, 4, True, 96), (16, 4, False, 112), (16, 2, True, 128)),
    "int8": ((4, 4, False, None), (4, 4, True, 96), (4, 2, True, None)),
}  # fmt: skip
# The width, group size, numbers of vectors, and tiles that are tried for them: see packed_matmul.Tile.
MATRIX_TILES: dict[tuple[str, int, tuple[int, ...]], tuple[packed_matmul.Tile, ...]] = {
    ("int3", 128, (16, 64)): (
        (64, 1, 4, 4, 528, None), (64, 2, 3, 4, 528, None), (64, 4, 2, 4, 264, None), (64, 2, 3, 4, 264, None),
    ),
    ("int4", 128, (128,)): (
        (64, 1, 3, 4, 264, None), (128, 1, 3, 8, 132, None), (64, 2, 2, 4, 264, None), (64, 1, 4, 4, 132, None),
    ),
    ("int8", 128, (16, 64)): ((128, 1, 3, 8, 264, None), (128, 2, 3, 8, 264, None), (64, 1, 4, 4, 264, None)),
    ("int2", 128, (16, 64)): ((128, 2, 3, 8, 264, None), (128, 4, 2, 8, 264, None), (128, 1, 3, 4, 264, None)),
    ("int4", 128, (64,)): (
        (128, 1, 3, 4, 264, None), (64, 1, 4, 4, 264, None), (128, 1, 3, 8, 132, None), (64, 2, 3, 4, 264, None),
    ),
    ("int4", 128, (8, 16)): (
        (64, 2, 3, 4, 660, 96), (128, 1, 3, 4, 792, None), (64, 1, 4, 4, 528, None), (64, 4, 2, 4, 528, None),
    ),
}  # fmt: skip


def measure_vector(time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """One vector and every width, each checked before it is timed."""
    for code, tiles in VECTOR_TILES.items():
        for tile in tiles:
            packed_matmul.VECTOR_TILES[int(code[-1])] = tile
            wrong = compare(Case(257, 4096, 1, code), "cuda")
            for shape in SHAPES:
                yield _time(Case(*shape, 1, code), tile, time_of) | {"wrong": wrong}


def measure_matrix(time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """Several vectors."""
    packed_matmul.BATCH = dict.fromkeys(packed_matmul.BATCH, 128)
    packed_matmul.MOST = dict.fromkeys(packed_matmul.BATCH, (128, 128))
    for (code, group, batches), tiles in MATRIX_TILES.items():
        for tile, batch in itertools.product(tiles, batches):
            packed_matmul.TILES = {batch: {int(code[-1]): (tile, tile)}}
            for shape in SHAPES[:2]:
                yield _time(Case(*shape, batch, code, group), tile, time_of)


def measure_unpacked(time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """Many vectors with the unpacked weight, made in parts of so many MB (None: at once), beside bfloat16."""
    packed_matmul.MOST = dict.fromkeys(packed_matmul.BATCH, (1, 1))
    for shape in SHAPES:
        for batch in (128, 256, 1024, 4096):
            us = time_of(make_plain_step(*shape, batch), graph=True)
            yield {"shape": shape, "batch": batch, "bf16_us": us}
            for megabytes in (None, 32, 48):
                packed_matmul.IN_PARTS = 2**60 if megabytes is None else 0
                packed_matmul.UNPACKED_BYTES = (megabytes or 0) * 2**20
                yield _time(Case(*shape, batch), ("MB", megabytes), time_of)


def _time(case: Case, tile: tuple[Any, ...], time_of: Callable[..., float]) -> dict[str, Any]:
    row = {"shape": (case.rows, case.channels), "code": case.code, "group_size": case.group_size}
    row |= {"batch": case.batch, "tile": tile}
    try:
        step, moved = make_step(case)
        return row | {"us": round(time_of(step, graph=True), 2), "mb": round(moved / 1e6, 1)}
    except Exception as error:  # a setting that does not fit the device is a result as well
        return row | {"us": float("nan"), "error": f"{type(error).__name__}: {error}"[:200]}
