"""Messages come out as they went in."""

from __future__ import annotations

import io

import numpy as np
import pytest

from sparsebit.runtime.wire import dtype_named, receive, send


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int8", "uint8", "int64", "bool", "bfloat16", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (4, 1, 2)])
def test_arrays_survive(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones((*shape, 2), dtype_named(dtype))[..., 0]  # not contiguous
    stream = io.BytesIO()
    send(stream, {"word": "é"}, {"a": array, "b": array[None]})
    send(stream, {})
    stream.seek(0)
    header, found = receive(stream)
    assert header == {"word": "é"} and found["a"].shape == shape and found["a"].dtype == array.dtype
    assert (
        np.array_equal(found["a"], array) and found["b"].shape == (1, *shape) and found["a"].flags.writeable
    )
    assert receive(stream) == ({}, {})
    with pytest.raises(EOFError):
        receive(stream)


@pytest.mark.parametrize("value", ["words", np.array(["words"]), np.array([None]), [1.0]])
def test_nothing_is_sent_where_a_value_is_not_an_array_of_numbers(value: object) -> None:
    stream = io.BytesIO()
    with pytest.raises(TypeError, match="not an array of numbers: x"):
        send(stream, {}, {"x": value})
    assert not stream.getvalue()
