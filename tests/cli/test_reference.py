"""Names of the user's objects, and what is said when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.cli.command import UsageError
from sparsebit.cli.model import load_model
from sparsebit.cli.reference import is_reference, resolve, resolve_function


@pytest.mark.parametrize(
    "text", ["net.py:make", "torch.nn:Linear", "/a/b c/net.py:Net.make", "C:/x/net.py:make"]
)
def test_references_have_a_place_and_a_name(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize("text", ["net.py", ":make", "net.py:", "net.py:two words", "data.npz", "images/"])
def test_other_texts_do_not(text: str) -> None:
    assert not is_reference(text)


def test_objects_classes_and_functions_make_models(place: Path) -> None:
    for name in ("make", "Net", "ready"):
        assert not load_model(f"net.py:{name}").training
    assert resolve("torch.nn:functional.relu", "function")


def test_a_function_that_fails_is_blamed_by_its_name(place: Path) -> None:
    (place / "mine.py").write_text("words = 'no function'\n\ndef half(x):\n    return 1 / x\n")
    half = resolve_function("mine.py:half", "loss")
    assert half(2) == 0.5
    with pytest.raises(
        UsageError, match=r"the loss 'mine.py:half' failed: ZeroDivisionError(.|\n)*mine.py:4"
    ):
        half(0)
    with pytest.raises(UsageError, match=r"'mine.py:words' is not a function(.|\n)*a str"):
        resolve_function("mine.py:words", "loss")


def test_neighbours_of_a_file_can_be_imported(place: Path) -> None:
    (place / "neighbour_of_net.py").write_text(
        "from torch import nn\n\ndef small():\n    return nn.Linear(2, 2)\n"
    )
    (place / "main_file.py").write_text("from neighbour_of_net import small\n")
    assert load_model("main_file.py:small").in_features == 2


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("net.py", "say which object in the file: net.py:name"),
        ("weights.pt", "add --weights FILE"),
        ("nothing.py:make", "no such file: nothing.py"),
        ("net.py:mkae", "did you mean 'make'?"),
        ("net.py:not_a_model", "got:      an int"),
        ("net.py:needs_arguments", "without required arguments"),
        ("net.py:broken", "ValueError: no such dataset"),
        ("no_such_package.models:net", "no module named 'no_such_package'"),
        ("net:make_it", "has no model named 'make_it'"),
    ],
)
def test_mistakes_say_what_to_do(place: Path, reference: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model(reference)
    assert words in str(error.value)


def test_a_failure_in_the_users_code_names_its_line(place: Path) -> None:
    (place / "wrong.py").write_text("import torch\n\nvalue = 1 / 0\n")
    with pytest.raises(UsageError, match="ZeroDivisionError") as error:
        resolve("wrong.py:value", "model")
    assert str(error.value.where).endswith("wrong.py:3")
    (place / "syntax.py").write_text("def f(:\n")
    with pytest.raises(UsageError, match="SyntaxError") as error:
        resolve("syntax.py:f", "model")
    assert str(error.value.where).endswith("syntax.py:1")
