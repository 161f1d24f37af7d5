"""Batches from code, arrays and images; and example inputs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsebit.batches import example_from
from sparsebit.cli.command import UsageError
from sparsebit.cli.data import (
    example_inputs,
    from_shapes,
    open_data,
    read_npz,
)
from sparsebit.errors import SparsebitError
from tests.cli.data_arguments import arguments


def test_a_generator_function_gives_its_batches_again_and_again(place: Path) -> None:
    data = open_data(arguments("--data", "net.py:batches"))
    first, second = (torch.cat([x for x, _ in data]) for _ in range(2))
    assert torch.equal(first, second) and len(first) == 24
    assert len(list(open_data(arguments("--data", "net.py:batches", "--batches", "2")))) == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("net.py:empty", "holds no batches"),
        ("net.py:words", "does not yield batches"),
        ("net.py:broken", "no such dataset"),
        ("nothing.npz", "no such file"),
        ("nowhere", "no such data: nowhere"),
        ("net.py", "cannot be read as data"),
        ("net.py:not_a_model", "cannot be read as data"),
        ("net.py:started", "can be read only once"),
    ],
)
def test_mistakes_in_data_say_what_to_do(place: Path, source: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        open_data(arguments("--data", source))
    assert words in str(error.value)


def test_arrays_with_labels_become_pairs(place: Path) -> None:
    np.savez("x.npz", images=np.ones((5, 3)), labels=np.arange(5, dtype=np.int32))
    batches = read_npz(Path("x.npz"), 2)
    assert [len(x) for x, _ in batches] == [2, 2, 1]
    assert batches[0][0].dtype == torch.float32 and batches[0][1].dtype == torch.int64


def test_several_arrays_become_keyword_arguments(place: Path) -> None:
    np.savez("x.npz", ids=np.ones((4, 3), dtype=np.int64), mask=np.ones((4, 3), dtype=bool), y=np.arange(4))
    batch = read_npz(Path("x.npz"), 4)[0]
    assert set(batch) == {"ids", "mask", "y"}
    args, kwargs = example_from(None, batch)
    assert args == () and set(kwargs) == {"ids", "mask"} and len(kwargs["ids"]) == 2


def test_bad_arrays_are_refused(place: Path) -> None:
    np.savez("x.npz", a=np.ones((4, 3)), b=np.ones((5, 3)))
    with pytest.raises(UsageError, match="the same first dimension"):
        read_npz(Path("x.npz"), 2)
    np.savez("y.npz", y=np.arange(3))
    with pytest.raises(UsageError, match="labels only"):
        read_npz(Path("y.npz"), 2)
    np.savez("z.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="cannot be read"):
        read_npz(Path("z.npz"), 2)


def test_shapes_are_typed_inputs() -> None:
    args, kwargs = from_shapes(["2x3x4", "2x7:int64", "mask=2x7:bool"])
    assert [tuple(x.shape) for x in args] == [(2, 3, 4), (2, 7)] and args[1].dtype == torch.int64
    assert kwargs["mask"].dtype == torch.bool
    for text in ("2,3", "2x3:int65", "x", "2xx3"):
        with pytest.raises(UsageError, match="cannot read the input"):
            from_shapes([text])


def test_without_an_example_the_message_says_how_to_give_one() -> None:
    with pytest.raises(UsageError, match="--input 1x3x224x224"):
        example_inputs(arguments(), torch.nn.Identity())


def test_data_that_does_not_fit_the_model_is_told_with_the_names(place: Path) -> None:
    np.savez("x.npz", foo=np.ones((4, 3), np.float32), bar=np.ones((4, 3), np.float32))
    words = arguments("--data", "x.npz")
    with pytest.raises(UsageError) as error:
        example_inputs(words, torch.nn.Linear(3, 2), open_data(words))
    assert "does not fit Linear" in str(error.value) and "a dict with foo, bar" in str(error.value)
    assert "are matched to arguments by name" in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("0x3", "holds nothing"), ("9999999x9999999x9999", "not enough memory"), ("2:float99", "cannot read")],
)
def test_inputs_that_cannot_be_made(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_shapes([text])


def test_not_a_number_is_found_in_whatever_batch_it_is(place: Path) -> None:
    x = np.ones((6, 3), np.float32)
    x[5, 1] = np.nan
    np.savez("x.npz", x=x)
    with pytest.raises(UsageError, match=r"batch 3 of 'x\.npz' contains NaN"):
        list(open_data(arguments("--data", "x.npz", "--batch-size", "2")))


def test_files_that_are_no_arrays(place: Path) -> None:
    Path("text.npz").write_text("hello")
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        read_npz(Path("text.npz"), 2)
    np.savez("none.npz")
    np.savez("zero.npz", x=np.ones((0, 3)))
    for name in ("none.npz", "zero.npz"):
        with pytest.raises(UsageError, match="holds no samples"):
            read_npz(Path(name), 2)


@pytest.mark.parametrize("at", range(0, 600, 23))
def test_a_damaged_npz_is_our_error(place: Path, at: int) -> None:
    np.savez("x.npz", images=np.arange(40.0).reshape(8, 5), labels=np.arange(8))
    data = bytearray(Path("x.npz").read_bytes())
    data[at] ^= 0xFF
    Path("x.npz").write_bytes(data)
    with contextlib.suppress(SparsebitError):
        read_npz(Path("x.npz"), 4)
