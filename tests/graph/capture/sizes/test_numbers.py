"""Sizes count like ``int`` and ``float``, and remember how they were computed."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparsebit.graph.capture import capture
from sparsebit.graph.capture.sizes.numbers import Expression, SizeFloat, SizeInt, combine, plain, plain_sizes


class Listener:
    """A recorder that writes down what it is told."""

    def __init__(self) -> None:
        self.closed = False
        self.lost: list[str] = []
        self.decided: list[tuple[Any, ...]] = []

    def size_lost(self, size: Any, how: str) -> None:
        self.lost.append(how)

    def size_decided(self, size: Any, function: Any, operands: tuple[Any, ...], result: bool) -> None:
        self.decided.append((function, tuple(plain(operand) for operand in operands), result))

    @property
    def told(self) -> bool:
        return bool(self.lost or self.decided)


def look_up(name: str) -> int:
    raise AssertionError("only evaluate() reads names")


def size_of(name: str, value: int, user: Listener) -> SizeInt:
    return SizeInt.of(value, Expression(look_up, (name,), value), user)


def evaluate(expression: Any, sizes: dict[str, int]) -> Any:
    """What a graph would compute from an expression at these sizes."""
    if not isinstance(expression, Expression):
        return expression
    if expression.function is look_up:
        return sizes[expression.operands[0]]
    return expression.function(*(evaluate(operand, sizes) for operand in expression.operands))


# -- arithmetic ------------------------------------------------------------------------------------

BINARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")},
    "divmod0": lambda a, b: divmod(a, b)[0],
    "divmod1": lambda a, b: divmod(a, b)[1],
    "power": lambda a, b: a ** (abs(b) % 3),
    "sum": lambda a, b: sum([a, b, a]),
    "product": lambda a, b: math.prod([a, b]),
}
ON_INTS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("and_", "or_", "xor")},
    "lshift": lambda a, b: a << (abs(b) % 4),
    "rshift": lambda a, b: a >> (abs(b) % 4),
}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "round to one": lambda a: round(a, 1),
}


def programs_over(constants: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arithmetic over the sizes n and m, as nested tuples."""
    return st.recursive(
        st.one_of(st.sampled_from(["n", "m"]), constants),
        lambda inside: st.one_of(
            st.tuples(st.sampled_from(sorted(BINARY)), inside, inside),
            st.tuples(st.sampled_from(sorted(ON_INTS)), inside, inside),
            st.tuples(st.sampled_from(sorted(UNARY)), inside),
        ),
        max_leaves=8,
    )


integers = st.integers(-4, 9)
programs = programs_over(st.one_of(integers, st.floats(-4, 4).map(lambda number: round(number, 2))))


def compute(program: Any, sizes: dict[str, Any]) -> Any:
    if isinstance(program, str):
        return sizes[program]
    if not isinstance(program, tuple):
        return program
    values = [compute(part, sizes) for part in program[1:]]
    return (BINARY | ON_INTS | UNARY)[program[0]](*values)


def outcome(program: Any, sizes: dict[str, Any]) -> Any:
    """The number, or the type of the error."""
    try:
        return compute(program, sizes)
    except (ArithmeticError, TypeError, ValueError) as error:
        return type(error)


@given(programs, st.integers(1, 9), st.integers(1, 9))
def test_sizes_count_as_plain_numbers_do(program: Any, n: int, m: int) -> None:
    user = Listener()
    got = outcome(program, {"n": size_of("n", n, user), "m": size_of("m", m, user)})
    expected = outcome(program, {"n": n, "m": m})
    assert plain(got) == expected and type(plain(got)) is type(expected)
    assert not user.lost, "arithmetic alone fixes nothing"


@given(programs, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_expression_gives_the_right_number_at_other_sizes(
    program: Any, n: int, m: int, other_n: int, other_m: int
) -> None:
    user = Listener()
    got = outcome(program, {"n": size_of("n", n, user), "m": size_of("m", m, user)})
    expected = outcome(program, {"n": other_n, "m": other_m})
    if isinstance(got, SizeInt | SizeFloat) and not isinstance(expected, type) and not user.decided:
        assert evaluate(got.expression, {"n": n, "m": m}) == plain(got)
        assert evaluate(got.expression, {"n": other_n, "m": other_m}) == expected


@given(programs_over(integers))
def test_a_number_computed_from_a_size_is_a_size(program: Any) -> None:
    user = Listener()
    got = outcome(program, {"n": size_of("n", 5, user), "m": size_of("m", 3, user)})
    if "n" in names_in(program) and not isinstance(got, type):
        assert isinstance(got, SizeInt | SizeFloat)


def names_in(program: Any) -> str:
    return "".join(map(names_in, program[1:])) if isinstance(program, tuple) else str(program)


def test_python_does_not_ask_a_size_that_a_float_is_multiplied_with() -> None:
    got: Any = 0.5 * size_of("n", 6, Listener())
    assert type(got) is float  # why a recording is compared with one at other sizes


def test_combine_leaves_results_that_are_no_numbers_alone() -> None:
    user = Listener()
    assert combine(lambda a: [a], size_of("n", 3, user)) == [3] and combine(max, 2, 3) == 3
    assert type(combine(operator.add, 2, 3)) is int


@pytest.mark.parametrize(
    "escape",
    [
        lambda n: pow(n, 2, 5),
        lambda n: +n,
        lambda n: ~n,
        lambda n: n.bit_length(),
        lambda n: float(n / 2),
        lambda n: int(n),
        lambda n: int(n / 2),
        lambda n: float(n),
        lambda n: math.sqrt(n),
        lambda n: n * [0],
        lambda n: [0] * n,
        lambda n: "a" * n,
    ],
    ids=[
        "pow3",
        "pos",
        "invert",
        "bit_length",
        "float-float",
        "int",
        "int-float",
        "float",
        "sqrt",
        "*list",
        "list*",
        "str*",
    ],
)
def test_a_size_never_becomes_a_plain_number_untold(escape: Callable[[Any], Any]) -> None:
    user = Listener()
    got = escape(size_of("n", 6, user))
    assert plain(got) == escape(6)
    assert isinstance(got, SizeInt | SizeFloat) or user.told


# -- decisions -------------------------------------------------------------------------------------


@given(
    st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]),
    st.integers(0, 4),
    st.one_of(st.integers(0, 4), st.floats(0, 4)),
)
def test_comparisons_are_right_and_told(name: str, n: int, other: Any) -> None:
    user, function = Listener(), getattr(operator, name)
    result = function(size_of("n", n, user), other)
    assert result is function(n, other)
    assert user.decided == [(function, (n, other), result)]


def test_truth_is_a_decision() -> None:
    user = Listener()
    assert size_of("n", 2, user) and not size_of("n", 0, user) and (size_of("n", 2, user) / 2)
    assert [(function, result) for function, _, result in user.decided] == [
        (bool, True),
        (bool, False),
        (bool, True),
    ]


def test_a_size_is_not_equal_to_what_is_no_number() -> None:
    user = Listener()
    assert size_of("n", 2, user) != "2" and size_of("n", 2, user) not in ("a", None) and not user.decided
    with pytest.raises(TypeError):
        operator.lt(size_of("n", 2, user), "3")


def test_shapes_compare_item_by_item() -> None:
    user = Listener()
    assert torch.Size([size_of("n", 2, user), 3]) == torch.Size([2, 3])
    assert user.decided[0][1:] == ((2, 2), True)


def test_a_size_serves_as_a_key_an_index_and_a_bound() -> None:
    user = Listener()
    n = size_of("n", 2, user)
    assert {2: "a"}[n] == "a" and {n: "a"}[2] == "a" and hash(n) == hash(2)
    assert [5, 6, 7][n] == 7 and [5, 6, 7][:n] == [5, 6] and list(range(n)) == [0, 1]
    assert f"{n} {n:03d} {n!r} {n / 4}" == "2 002 2 0.5" and hash(n / 4) == hash(0.5)


# -- after the recording ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda n: n, lambda n: n / 2])
def test_a_size_that_outlives_its_recording_is_a_plain_number(make: Callable[[Any], Any]) -> None:
    user = Listener()
    size = make(size_of("n", 6, user))
    user.closed = True
    assert type(size + 1) is type(plain(size)) and type(combine(abs, size)) is type(plain(size))


@pytest.mark.parametrize("make", [lambda n: n, lambda n: n / 2])
def test_copies_are_the_same_and_pickles_are_plain(make: Callable[[Any], Any]) -> None:
    size = make(size_of("n", 6, Listener()))
    assert copy.deepcopy(size) is size and copy.deepcopy([size])[0] is size
    loaded = pickle.loads(pickle.dumps(size))
    assert loaded == plain(size) and type(loaded) in (int, float)


def test_plain_sizes_replaces_sizes_wherever_they_are() -> None:
    n = size_of("n", 6, Listener())
    value = (n, [n / 2, {"a": n}], slice(n, None, n), torch.Size([n, 3]), "text", None)
    got = plain_sizes(value)
    assert got == (6, [3.0, {"a": 6}], slice(6, None, 6), (6, 3), "text", None)
    assert type(got[0]) is int and type(got[1][1]["a"]) is int and type(got[3][0]) is int
    assert plain_sizes(torch.relu) is torch.relu


# -- in a model ------------------------------------------------------------------------------------


class Reshaping(nn.Module):
    """Sizes in every place an argument can be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        half = length // 2
        y = x[:, : 2 * half].view(batch, half, 2, width).transpose(1, 2).reshape(batch * 2, -1)
        y = y * (width**-0.5) + torch.arange(half * width, dtype=x.dtype)[None] / max(length, 1)
        y = torch.cat([y, y.new_zeros(y.shape[0], width - 1)], dim=1)
        return y[-batch:, : math.ceil(length / 3)] + round(length / 4) - len(x) + x.numel() % 7


@pytest.mark.parametrize("shape", [(2, 6, 4), (3, 9, 4), (1, 5, 2), (4, 12, 7)])
def test_a_recorded_model_computes_its_sizes_anew(shape: tuple[int, ...]) -> None:
    graph = capture(Reshaping(), torch.randn(2, 6, 4))
    x = torch.randn(shape)
    assert torch.equal(graph(x), Reshaping()(x))
