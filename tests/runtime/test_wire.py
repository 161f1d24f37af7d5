"""Messages come out as they went in."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import numpy as np
import pytest

from sparsebit.runtime import wire
from sparsebit.runtime.wire import Receiver, Sender, dtype_named, give_back, shared_file

Ends = tuple[Sender, Receiver]


@pytest.fixture(params=["memory", "disk"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    if request.param == "disk":  # as on macOS
        monkeypatch.delattr(os, "memfd_create", raising=False)
    stream = io.BytesIO()
    with shared_file() as file:
        yield Sender(stream, file.fileno()), Receiver(stream, file.fileno())


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int8", "uint8", "int64", "bool", "bfloat16", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (4, 1, 2)])
def test_arrays_survive(ends: Ends, dtype: str, shape: tuple[int, ...]) -> None:
    sender, receiver = ends
    array = np.ones((*shape, 2), dtype_named(dtype))[..., 0]  # not contiguous
    sender.send({"word": "é"}, {"a": array, "b": array[None]})
    sender.stream.seek(0)
    header, found = receiver.receive()
    assert header == {"word": "é"} and found["a"].shape == shape and found["a"].dtype == array.dtype
    assert np.array_equal(found["a"], array) and found["b"].shape == (1, *shape)
    with pytest.raises(EOFError):
        receiver.receive()


def test_a_longer_message_follows_a_shorter_one(ends: Ends) -> None:
    sender, receiver = ends
    for count in (3, 100_000, 0, 5):
        began = sender.stream.tell()
        sender.send({}, {"x": np.arange(count)})
        sender.stream.seek(began)
        _, found = receiver.receive()
        assert found["x"].tolist() == list(range(count))


def test_large_memory_is_given_back(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = ends
    sender.send({}, {"x": np.zeros(1000)})
    sender.stream.seek(0)
    receiver.receive()
    give_back(sender.file)
    assert os.fstat(sender.file).st_size == 8000
    monkeypatch.setattr(wire, "LARGEST_KEPT", 7999)
    give_back(sender.file)
    assert os.fstat(sender.file).st_size == 0
    began = sender.stream.tell()
    sender.send({}, {"x": np.ones(3)})
    sender.stream.seek(began)
    assert receiver.receive()[1]["x"].tolist() == [1, 1, 1]  # also in the old mapping


@pytest.mark.parametrize("value", ["words", np.array(["words"]), np.array([None]), [1.0]])
def test_nothing_is_sent_where_a_value_is_not_an_array_of_numbers(ends: Ends, value: object) -> None:
    with pytest.raises(TypeError, match="not an array of numbers: x"):
        ends[0].send({}, {"x": value})
    assert ends[0].stream.tell() == 0
