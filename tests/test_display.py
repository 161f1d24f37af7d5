"""Tables in a pipe and in narrow terminals; objects in a notebook."""

from __future__ import annotations

import io
from collections import OrderedDict

import pytest
import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import nn

from sparsebit.display import as_text, fit, in_notebook, print_to, printable, short_bytes, short_number
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel
from tests.quantization.nets import quantized

NAME = "features.denseblock4.denselayer16.conv2"


def sample() -> Table:
    table = Table(title="errors", show_footer=True)
    for header in ("layer", "operator", "SQNR", "cosine", "why"):
        table.add_column(header)
    table.add_row(NAME, "adaptive_avg_pool2d", "31.3 dB", "0.99", "its input is " + "long " * 20)
    return table


def shown(value: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(fit(value, width))
    return captured.get().splitlines()


def test_text_is_as_wide_as_it_needs_to_be() -> None:
    lines = as_text(Group(sample(), Text("word " * 60))).splitlines()
    row = next(line for line in lines if NAME in line)
    assert "adaptive_avg_pool2d" in row and "long " * 19 in row
    assert lines[-1] == ("word " * 60).rstrip()


def test_sentences_wrap_before_names() -> None:
    lines = shown(sample(), 110)
    assert max(map(len, lines)) <= 110
    row = next(line for line in lines if NAME in line)
    assert "adaptive_avg_pool2d" in row and "0.99" in row
    assert "no room" not in "".join(lines)


def test_a_narrow_terminal_keeps_names_whole_and_says_what_is_left_out() -> None:
    lines = shown(sample(), 80)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if NAME in line)
    assert "adaptive_avg_pool2d" in row
    assert " ".join(lines[-2:]).find("no room for") >= 0 and "why" in " ".join(lines[-2:])


def test_what_fits_is_left_as_it_is() -> None:
    table = sample()
    assert fit(table, 400) is table
    assert fit("words", 3) == "words"


def test_an_object_is_drawn_by_the_notebook_integration() -> None:
    qmodel = quantized()
    assert qmodel._repr_html_() == in_notebook(qmodel) and "<" in in_notebook(qmodel)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (25_557_032, "25.6 M"),
        (4_089_184_256, "4.09 G"),
        (999_900, "1000 k"),
    ],
)
def test_numbers_are_short(count: int, text: str) -> None:
    assert short_number(count) == text


def test_bytes_have_a_unit_of_their_own() -> None:
    assert (short_bytes(12), short_bytes(102_228_128)) == ("12 B", "102 MB")


def test_a_terminal_shows_names_as_text_and_keeps_its_own_colours() -> None:
    table = Table("layer")
    table.add_row(Text("[red]a\x1b[2J", style="bold"))
    written = io.StringIO()
    console = Console(file=written, width=40, force_terminal=True, color_system="standard", _environ={})
    for value in ("[red]a\x1b[2J", table):
        print_to(console, value)
    text = written.getvalue()
    assert text.count(r"[red]a\x1b[2J") == 2 and "\x1b[2J" not in text
    assert "\x1b[1m" in text and text.startswith("[red]a") and text.endswith("\u2518\n")
    assert printable("two\n\tlines \u4e2d\u6587") == "two\n\tlines \u4e2d\u6587"


def test_names_of_layers_do_not_steer_a_terminal() -> None:
    net = nn.Sequential(
        OrderedDict({"a\x1b[31m": nn.Linear(4, 16), "relu": nn.ReLU(), "b": nn.Linear(16, 4)})
    )
    x = torch.randn(2, 4)
    qmodel = QuantModel(net.eval(), "int8_onnxruntime", x)
    smodel = SparseModel(net, {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}, x)
    for value in (qmodel, qmodel.plan, smodel.groups(), smodel.report(), smodel.model.capture_report):
        assert "\x1b" not in str(value)
    assert r"a\x1b[31m" in str(qmodel.plan) and r"a\x1b[31m" in repr(qmodel)
