"""Which settings of the kernels for packed weights are fastest? The times that their tables were chosen by.

``python -m benchmarks.gpu.run packed_tiles_vector packed_tiles_matrix packed_tiles_unpacked packed_tiles_warpgroup``
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks.gpu.packed_matmul import (
    SHAPES,
    Case,
    compare,
    kernel_arguments,
    make_plain_step,
    make_step,
    take_turns,
)
from sparsebit.kernels import packed_matmul, packed_warpgroup

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
# Warps, repeats, programs on a multiprocessor and registers, by vectors of a tile; and the batches they are timed with.
WARPGROUPS: dict[int, tuple[tuple[tuple[int, int, int, int | None], ...], tuple[int, ...]]] = {
    16: (((4, 1, 4, 128), (4, 2, 2, None), (4, 2, 3, 168), (4, 4, 1, None)), (4, 8, 16)),
    32: (((4, 1, 4, 128), (4, 2, 2, None), (4, 2, 3, 168)), (24, 32)),
    64: (((4, 1, 2, None), (4, 1, 3, 168), (4, 2, 2, None), (8, 1, 2, 128)), (48, 64, 128, 192)),
    128: (((4, 1, 2, None), (8, 1, 1, None), (8, 2, 1, None)), (96, 128, 192, 256, 384, 512)),
    256: (((8, 1, 1, None),), (192, 256, 384, 512, 1024, 2000)),
}
# The same for the kernel of few vectors.
_FEW = (
    (4, 4, 2, 128),
    (4, 4, 3, 80),
    (4, 2, 3, 80),
    (4, 2, 4, 64),
    (8, 2, 2, 80),
    (8, 4, 1, 168),
    (4, 1, 4, 64),
)
FEW = {8: (_FEW, (2, 4, 8)), 16: (_FEW, (9, 16))}
WARPGROUP_CODES = (("int4", 128), ("int4", 32), ("uint4", 128), ("int8", 128), ("int3", 128), ("int2", 128))


def measure_warpgroup(time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """The kernel for Hopper, each of its settings checked first; beside bfloat16 and the ways without this kernel."""
    every = [packed_warpgroup.Settings(n, *one) for n, (some, _) in WARPGROUPS.items() for one in some]
    every += [packed_warpgroup.Settings(n, *one, few=True) for n, (some, _) in FEW.items() for one in some]
    wanted = list(itertools.product(WARPGROUP_CODES, every))
    wrong: dict[Any, str | None] = {}
    with ProcessPoolExecutor(12, multiprocessing.get_context("spawn")) as pool:
        for key, problem in zip(wanted, pool.map(_check_warpgroup, wanted), strict=True):
            wrong[key] = problem
            if problem is not None:
                yield {"code": key[0], "settings": key[1], "wrong": problem}
    if all(wrong.values()):
        raise RuntimeError("no settings give the right product")
    batches = sorted({batch for _, some in (*WARPGROUPS.values(), *FEW.values()) for batch in some})
    bf16: dict[tuple[int, int, int], float] = {}
    for shape, (code, size) in itertools.product(SHAPES, WARPGROUP_CODES):
        _, packed, grid = Case(*shape, 1, code, size).make("cuda")
        weights, (_, *arguments) = take_turns(packed), kernel_arguments(packed, grid)
        for batch in batches:
            if (key := (*shape, batch)) not in bf16:
                bf16[key] = time_of(make_plain_step(*key), 8, graph=True)
            x = torch.randn(batch, shape[1], device="cuda", dtype=torch.bfloat16)
            row = {"shape": shape, "code": code, "group_size": size, "batch": batch, "bf16_us": bf16[key]}
            fits = [one for one in every if batch in (FEW if one.few else WARPGROUPS)[one.vectors][1]]
            for settings in (None, *(one for one in fits if wrong[(code, size), one] is None)):
                _use(settings)
                step = lambda: packed_matmul.multiply_packed(x, next(weights), *arguments)  # noqa: B023, E731
                yield row | {"settings": settings, "us": round(time_of(step, 8, graph=True), 2)}


def _use(settings: packed_warpgroup.Settings | None) -> None:
    packed_warpgroup.choose_settings = lambda *_: [] if settings is None else [settings]
    packed_warpgroup.plan_call.cache_clear()


def _check_warpgroup(key: tuple[tuple[str, int], packed_warpgroup.Settings]) -> str | None:
    (code, size), settings = key
    _use(settings)
    case = Case(272, 2048, settings.vectors - 3, code, size)
    if packed_warpgroup.plan_call(272, 2048, 2048 // size, int(code[-1]), case.batch) is None:
        return "does not fit"
    try:
        cases = [case, dataclasses.replace(case, rows=4096, batch=2 * settings.vectors)]
        return "; ".join(found for one in cases if (found := compare(one, "cuda"))) or None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


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
