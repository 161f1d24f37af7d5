"""The line of the model's own source, out of stacks that are mostly torch's."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsebit
from sparsebit.graph.capture.source import Source, find_source, is_foreign, running_line, source_of_error


def line_of(text: str) -> int:
    """The number of the line in this file that holds a text."""
    return next(
        n
        for n, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.strip().startswith(text)
    )


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize(
    ("filename", "foreign"),
    [
        (torch.__file__, True),
        (nn.functional.__file__, True),
        (sparsebit.__file__, True),
        (os.__file__, True),
        (functools.__file__, True),
        ("<frozen importlib._bootstrap>", True),
        (__file__, False),
        (pytest.__file__, False),
        ("<ipython-input-1-abc>", False),
        (os.path.dirname(torch.__file__) + "vision/models/resnet.py", False),
    ],
)
def test_files_are_the_users_unless_known(filename: str, foreign: bool) -> None:
    assert is_foreign(filename) is foreign


def test_the_innermost_line_of_the_user_is_found_through_torch() -> None:
    found: list[Source | None] = []
    module = Broken()
    module.linear.register_forward_pre_hook(lambda *_: found.append(find_source()))
    module(torch.ones(1, 4))
    assert found[0] is not None and found[0].filename == __file__ and "<lambda>" in found[0].function


def helper() -> Source | None:
    return functools.reduce(lambda _, __: find_source(inspect.currentframe()), [0, 0])  # type: ignore[arg-type,return-value]


def test_a_given_frame_is_where_the_search_starts() -> None:
    found = helper()
    assert found is not None and found.line == line_of("return functools.reduce")
    frame = inspect.currentframe()
    here = find_source(frame)
    assert here is not None and here.function == "test_a_given_frame_is_where_the_search_starts"


def test_an_error_inside_torch_is_the_users_line() -> None:
    with pytest.raises(RuntimeError) as error:
        Broken()(torch.ones(1, 3))
    place = source_of_error(error.value)
    assert place is not None and place.filename == __file__
    assert place.line == line_of("return self.linear(x)") and place.function == "Broken.forward"


def test_an_error_without_a_line_of_the_user_has_no_place() -> None:
    assert source_of_error(ValueError("never raised")) is None


def test_a_source_shows_its_code() -> None:
    line = line_of("return self.linear(x)")
    text = str(Source(__file__, line, "Broken.forward"))
    assert text == f"{__file__}:{line} in Broken.forward: return self.linear(x)"
    assert str(Source("<string>", 3, "forward")) == "<string>:3 in forward"
    assert linecache.getline(__file__, line)


def test_a_message_names_the_line_that_runs_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here = inspect.currentframe()
    assert here is not None
    assert running_line() == str(Source(__file__, here.f_lineno, here.f_code.co_qualname))
    monkeypatch.setattr("sparsebit.graph.capture.source.find_source", lambda: None)
    assert running_line() is None
