"""Random networks: the same text for the same seed, and checks that notice what they are for."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.robustness.architectures import (
    attempt,
    check_capture,
    check_seed,
    join,
    masked_original,
    summarize,
)
from benchmarks.robustness.random_nets import MENU, write_net
from sparsebit import SparsebitError


def test_a_seed_gives_one_network() -> None:
    assert write_net(3) == write_net(3) != write_net(4)
    assert sum(len(entries) for entries in MENU.values()) > 250


def test_one_network_passes_all_stages() -> None:
    outcomes = check_seed(1, 120)
    assert list(outcomes) == ["capture", "symbolic", "quantize", "prune"]
    assert not [outcome for outcome in outcomes.values() if outcome[0] in ("CRASH", "WRONG", "SLOW")]


def test_an_error_of_ours_is_refused_and_another_is_a_crash() -> None:
    def ours() -> tuple[str, str]:
        raise SparsebitError("no")

    def foreign() -> tuple[str, str]:
        raise KeyError("weight")

    assert attempt(ours, 10) == ("refused", "no")
    assert attempt(foreign, 10)[0] == "CRASH"
    found = {7: {"capture": attempt(foreign, 10)}, 8: {"capture": attempt(ours, 10)}}
    told = summarize(found)
    assert list(told["failing"]) == [7] and told["refused"] == {"capture": [8]}


def test_a_difference_is_noticed() -> None:
    class Moody(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * float(self.calls)

    outcome, text = check_capture(Moody(), lambda batch=2, size=0: (torch.ones(batch, 3 + size),), "symbolic")
    assert outcome == "WRONG" and "relative difference" in text


def test_the_masked_original_is_zero_where_the_smaller_model_has_nothing() -> None:
    net, small = nn.Linear(4, 3), nn.Linear(2, 3)
    with torch.no_grad():
        small.weight.copy_(net.weight[:, [0, 2]])
        small.bias.copy_(net.bias)
    masked = masked_original(net, small)
    assert torch.equal(masked.weight, net.weight * torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert torch.equal(masked.bias, net.bias)


def test_two_parts_of_a_run_are_one_summary() -> None:
    outcomes = {
        1: {"prune": ("ok", "")},
        2: {"prune": ("refused", "why")},
        3: {"prune": ("WRONG", "so"), "process": ("CRASH", "")},
    }
    parts = [
        {"first seed": seed, "took_s": 1.0, **summarize({seed: stages})} for seed, stages in outcomes.items()
    ]
    both = join(join(parts[0], parts[1]), parts[2])
    assert both == {"first seed": 1, "took_s": 3.0, **summarize(outcomes)}
