"""Example inputs as data: what can be written is read back, and damaged descriptions are refused."""

from __future__ import annotations

import json

import torch

from sparsebit.sparse.origin import describe_example, described_example


def test_example_inputs_come_back() -> None:
    assert describe_example((), {}) is None
    assert described_example(None) is None
    given = {"lengths": torch.tensor([3, 1]), "cache": None, "use_cache": False, "mode": {"scale": 0.5}}
    described = describe_example((torch.ones(1, 2), [torch.zeros(2, 0)], (1,)), given)
    rebuilt = described_example(json.loads(json.dumps(described)))
    assert rebuilt is not None
    args, kwargs = rebuilt
    assert torch.equal(args[0], torch.zeros(1, 2))  # sizes are enough
    assert args[1][0].shape == (2, 0) and args[2] == (1,)
    assert torch.equal(kwargs.pop("lengths"), given.pop("lengths"))  # these are not
    assert kwargs == given
