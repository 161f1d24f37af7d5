"""The names the model's own files see while a recording runs: they keep sizes, change nothing else, and go again."""

from __future__ import annotations

import builtins
import math
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SpecializationWarning
from sparsebit.graph.capture import capture
from sparsebit.graph.capture.sizes.numbers import Expression, SizeFloat, SizeInt, plain
from sparsebit.graph.capture.sizes.stand_ins import SIZE_FUNCTIONS, CarryingMath, size_names
from tests.graph.capture.sizes.test_numbers import Listener, evaluate, look_up, size_of

SOURCE = """
import math
from torch import nn

abs = "the module's own"

class Model(nn.Module):
    def forward(self, x):
        return x

def look(name):
    return eval(name)
"""


class Reader:
    """Stands for a recorder: says how long a tensor is."""

    quiet = 0

    def __init__(self) -> None:
        self.user = Listener()

    def length(self, tensor: Tensor) -> SizeInt:
        return SizeInt.of(tensor.size(0), Expression(look_up, ("n",), tensor.size(0)), self.user, True)


@pytest.fixture
def own_module() -> Iterator[types.ModuleType]:
    """A loaded module that defines a model class, in a package of its own."""
    module = types.ModuleType("made_up_package.models")
    sys.modules[module.__name__] = module
    exec(SOURCE, vars(module))
    vars(module)["Model"].__module__ = module.__name__
    yield module
    del sys.modules[module.__name__]


def test_the_names_are_there_for_the_time_of_the_recording_only(own_module: types.ModuleType) -> None:
    before = dict(vars(own_module))
    with size_names(Reader(), own_module.Model()):
        assert own_module.look("int") is not int and own_module.look("math") is not math
        assert {"int", "float", "range", "min", "max", "len"} <= set(vars(own_module))
        assert own_module.look("abs") == "the module's own"
        assert math.__class__ is types.ModuleType and builtins.int is int, "nobody else sees them"
    assert dict(vars(own_module)) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_names_go_whatever_happens(own_module: types.ModuleType, error: type[BaseException]) -> None:
    before = dict(vars(own_module))
    with pytest.raises(error), size_names(Reader(), own_module.Model()):
        raise error
    assert dict(vars(own_module)) == before


def test_modules_of_other_packages_are_not_touched(own_module: types.ModuleType) -> None:
    with size_names(Reader(), own_module.Model()):
        spaces = (vars(torch.nn.functional), vars(sys.modules[__name__]), vars(math))
        assert not any(name in space for space in spaces for name in ("int", "range", "max"))


def test_a_name_of_the_modules_own_wins(own_module: types.ModuleType) -> None:
    vars(own_module)["max"] = "mine"
    with size_names(Reader(), own_module.Model()):
        assert own_module.look("max") == "mine"
    assert own_module.look("max") == "mine"


INT, FLOAT, RANGE = (SIZE_FUNCTIONS[name] for name in ("int", "float", "range"))


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (lambda n: INT(n / 2), 4),
        (lambda n: INT(n), 7),
        (lambda n: FLOAT(n), 7),
        (lambda n: SIZE_FUNCTIONS["max"](n, 5), 9),
        (lambda n: SIZE_FUNCTIONS["min"](n, 5, 6), 9),
        (lambda n: CarryingMath("math").sqrt(n), 9),
        (lambda n: CarryingMath("math").floor(n / 2), 9),
        (lambda n: CarryingMath("math").log(n, 2), 8),
    ],
)
def test_the_stand_ins_keep_sizes(function: Callable[[Any], Any], other: int) -> None:
    user = Listener()
    got = function(size_of("n", 6, user))
    assert isinstance(got, SizeInt | SizeFloat) and plain(got) == function(6)
    assert evaluate(got.expression, {"n": other}) == function(other)
    assert not user.told


def test_the_stand_ins_are_the_built_ins_for_everything_else() -> None:
    assert (
        INT("ff", 16) == 255 and INT() == 0 and FLOAT("inf") == math.inf and list(RANGE(1, 7, 2)) == [1, 3, 5]
    )
    assert SIZE_FUNCTIONS["max"]([3, 1]) == 3 and SIZE_FUNCTIONS["min"]("b", "a", key=ord) == "a"
    assert INT.from_bytes(b"\x01", "big") == 1 and FLOAT.fromhex("0x1p3") == 8
    assert (
        isinstance(3, INT)
        and not isinstance(3.0, INT)
        and isinstance(3.0, (INT, FLOAT))
        and issubclass(bool, INT)
    )
    assert isinstance(3, INT | str) and isinstance(range(3), RANGE)
    assert operator.eq(int, INT) and operator.eq(INT, int) and operator.ne(INT, float)
    assert hash(INT) == hash(int) and {int: "a"}[INT] == "a" and type(n := 3) in (FLOAT, INT) and n == 3
    assert CarryingMath("math").pi == math.pi and CarryingMath("math").prod([2, 3]) == 6
    with pytest.raises(TypeError):
        SIZE_FUNCTIONS["max"]()


def test_a_loop_over_a_size_is_told() -> None:
    user = Listener()
    assert list(RANGE(size_of("n", 3, user))) == [0, 1, 2] and user.lost == ["length of a Python loop"]
    assert list(RANGE(1, 3)) == [1, 2] and len(user.lost) == 1


def test_len_of_a_tensor_is_a_size_and_of_anything_else_a_number(own_module: types.ModuleType) -> None:
    reader = Reader()
    with size_names(reader, own_module.Model()):
        length = own_module.look("len")
        assert isinstance(length(torch.ones(4, 2)), SizeInt) and length("abc") == 3 and length([1]) == 1
        with pytest.raises(TypeError, match="0-d tensor"):
            length(torch.tensor(1.0))
        reader.quiet = 1
        assert type(length(torch.ones(4, 2))) is int


# -- in a model of this file -----------------------------------------------------------------------


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def follows(function: Callable[[Tensor], Any]) -> bool:
    """Whether a graph captured at one size gives the model's numbers at others."""
    graph = capture(Applies(function), torch.randn(4, 6))
    return all(
        torch.equal(graph(x), function(x)) for x in (torch.randn(4, 6), torch.randn(5, 8), torch.randn(1, 3))
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * int(x.size(1) / 2),
        lambda x: x * float(x.size(0)),
        lambda x: x * math.sqrt(x.size(1)),
        lambda x: x / math.log2(x.size(1) + 1),
        lambda x: x * max(*x.shape) - min(x.size(0), 3),
        lambda x: x * len(x),
        lambda x: x * math.prod(x.shape) + sum(x.shape),
        lambda x: x * (x.size(0) if isinstance(x.size(0), int) else 100),
        lambda x: x * math.ceil(x.size(1) ** 0.5) % 5,
    ],
)
def test_sizes_follow_through_the_names_a_model_uses(function: Callable[[Tensor], Any]) -> None:
    assert follows(function)


def test_a_loop_over_a_size_is_warned_about_with_its_line() -> None:
    with pytest.warns(
        SpecializationWarning, match=r"length of a Python loop: 4 stays 4 .*test_size_names.py:\d+ in "
    ):
        capture(Applies(lambda x: sum(x[i] for i in range(x.size(0)))), torch.randn(4, 6))


def test_a_type_is_still_the_built_in() -> None:
    assert follows(lambda x: x * 2 if type(x.dim()) is int else x * 3)


def test_built_in_types_are_still_dtypes() -> None:
    assert follows(lambda x: x + torch.zeros(1, dtype=float))


def test_another_thread_may_use_the_models_files_meanwhile() -> None:
    """Only the recording thread's tensors belong to the recording."""
    started, finished, lengths = threading.Event(), threading.Event(), []

    def work() -> None:
        started.wait(10)
        lengths.append(len(torch.ones(9, 9)))
        finished.set()

    def function(x: Tensor) -> Tensor:
        started.set()
        finished.wait(10)
        return x * 2

    thread = threading.Thread(target=work)
    thread.start()
    capture(Applies(function), torch.randn(4, 6))
    thread.join()
    assert type(lengths[0]) is int
