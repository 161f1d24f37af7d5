"""A language model quantized by several processes is the one that a single process makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm import finished_blocks
from sparsebit.llm.blocks.across_processes import merge_statistics, own_batches, share_runs
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import Matrix
from tests.llm.models import DECODERS, ROUTES, tokens
from tests.ranks import join_group, needs_distributed, run_ranks, watch_writes

# 4 batches, the last one smaller: not the same number on every rank.
CALIBRATION = {"SAMPLES": 28, "LENGTH": 16}
CASES: dict[str, tuple[str, Any]] = {
    "rtn": ("llama", "rtn"),
    "gptq": ("llama", "gptq"),
    "awq": ("llama", ["awq", {"rtn": {"steps": 4}}]),
    "tuned": ("llama", ["rtn", {"signround": {"steps": 4}}]),
    "experts": ("mixtral", "gptq"),
    "skips": ("skips", "gptq"),
    "pairs": ("bart", "gptq"),
}


def made(case: str, folder: str | None = None) -> dict[str, Tensor]:
    """The weights of each layer, on their grids."""
    model, method = CASES[case]
    settings = {"METHOD": method, "CALIBRATION": CALIBRATION}
    done = llm.quantize(
        (DECODERS | ROUTES)[model](), tokens(28 * 16), settings, folder=folder, progress=False
    )
    return {name: held.numbers() for name, held in done.weights.items()}


def work(rank: int, folder: str) -> None:
    writes = watch_writes(finished_blocks)
    for size, cases in ((2, ("gptq",)), (3, tuple(CASES))):
        if rank >= size:
            continue
        join_group(rank, size, folder, f"store{size}")
        found: dict[str, Any] = {case: made(case) for case in cases}
        found["kept"] = made("gptq", f"{folder}/blocks{size}")
        found["writes"] = writes.copy()
        writes.clear()
        messages = []
        for what in ("data", "no data", "method", "model", "embedding", "folder"):  # another on the last rank
            other = what if rank == size - 1 else ""
            data = tokens(28 * 16).flip(0) if other == "data" else tokens(28 * 16)
            method = "rtn" if other == "method" else "gptq"
            model = DECODERS["gpt2" if other == "model" else "llama"]()
            next(model.parameters()).data += float(other == "embedding")
            try:
                llm.quantize(
                    model,
                    None if other == "no data" else data,
                    {"METHOD": method, "CALIBRATION": CALIBRATION},
                    folder=f"{folder}/other" if other == "folder" else None,
                    progress=False,
                )
            except SparsebitError as error:
                messages.append(str(error))
        found["messages"] = messages
        torch.save(found, f"{folder}/{size}.{rank}.pt")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@needs_distributed
def test_ranks_make_what_one_process_makes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_ranks(work, range(3), tmp_path)
    alone = {case: made(case) for case in CASES}
    for size, cases in ((2, ("gptq",)), (3, tuple(CASES))):
        ranks = [torch.load(tmp_path / f"{size}.{rank}.pt", weights_only=True) for rank in range(size)]
        for case in cases:
            for name, weight in alone[case].items():
                for one in ranks:
                    assert one[case][name].equal(ranks[0][case][name]), (size, case, name)
                # Sums in another order: where that decides, a weight goes to its other neighbour.
                other = (ranks[0][case][name] != weight).float().mean()
                assert float(other) <= (0 if case == "rtn" else 0.02), (size, case, name, float(other))
        assert all(one["kept"][name].equal(weight) for one in ranks for name, weight in one["gptq"].items())
        # Blocks are written once, by the first rank.
        assert [one["writes"] for one in ranks] == [
            ["block-0000", "block-0001", "block-0002"],
            *([[]] * (size - 1)),
        ]
        for rank, one in enumerate(ranks):
            assert one["messages"][0].startswith("the calibration data differs between processes")
            assert "needs calibration data" in one["messages"][1]
            assert ("on another process" in one["messages"][1]) == (rank < size - 1)
            assert len(one["messages"]) == 6
            for message in one["messages"][2:]:
                assert message.startswith("the model or its config differs between processes")


def test_one_process_runs_everything() -> None:
    assert list(own_batches(3)) == [0, 1, 2]
    assert [int(one) for (one,) in share_runs(2, lambda number: [torch.tensor(number)])] == [0, 1]
    found = {Matrix("it"): InputStatistics.empty(2, shift=False)}
    assert merge_statistics(found) is found
