"""Errors: one message laid out in labelled parts, and the parts kept as attributes."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import OrderedDict
from typing import Any

import pytest

from sparsebit import errors
from sparsebit.errors import (
    ArtifactError,
    ConfigError,
    PlugInError,
    RegistryError,
    SparsebitError,
    SpecializationWarning,
    advised,
    damaged,
    located,
    running_plug_in,
    with_article,
)
from sparsebit.quantization import OBSERVERS, QuantModel, parse_qconfig

PARTS = {"where": "net.py:12", "expected": "a tensor", "got": "a list", "hint": "wrap it in torch.stack"}
KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SparsebitError)
]


def test_all_parts_in_order_and_aligned() -> None:
    assert str(SparsebitError("cannot capture Net", **PARTS)) == (
        "cannot capture Net\n"
        "  where:    net.py:12\n"
        "  expected: a tensor\n"
        "  got:      a list\n"
        "  next:     wrap it in torch.stack"
    )


def test_a_message_alone_is_only_itself() -> None:
    assert str(SparsebitError("cannot capture Net")) == "cannot capture Net"


@pytest.mark.parametrize(
    "names", [names for count in range(1, 4) for names in itertools.combinations(PARTS, count)], ids="+".join
)
def test_missing_parts_leave_no_trace(names: tuple[str, ...]) -> None:
    error = SparsebitError("no", **{name: PARTS[name] for name in names})
    lines = str(error).splitlines()
    assert len(lines) == 1 + len(names)
    assert [line.endswith(PARTS[name]) for line, name in zip(lines[1:], names, strict=True)] == [True] * len(
        names
    )
    assert {name for name in PARTS if getattr(error, name) is not None} == set(names)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_its_parts_and_is_caught_by_the_base(kind: type[SparsebitError]) -> None:
    with pytest.raises(SparsebitError) as caught:
        raise kind("no", **PARTS)
    assert caught.value.message == "no"
    assert {name: getattr(caught.value, name) for name in PARTS} == PARTS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_crosses_process_borders(kind: type[SparsebitError], copier: object) -> None:
    """Worker processes send their errors to the parent by pickling them."""
    error = kind("no", **PARTS)
    twin = copier(error)  # type: ignore[operator]
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert twin.hint == error.hint


def test_kinds_fit_what_python_programmers_catch() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RegistryError, LookupError)
    assert issubclass(SpecializationWarning, UserWarning)
    assert not issubclass(SpecializationWarning, SparsebitError)


def test_a_missing_package_says_how_to_install_it_from_the_source() -> None:
    text = str(errors.missing_package("scipy", "choosing bits", extra="mixed"))
    assert "choosing bits needs the package 'scipy', which is not installed" in text
    assert 'pip install -e ".[mixed]"' in text
    broken = errors.missing_package("onnx", "exporting", extra="onnx", error=ImportError("libz is too old"))
    assert "cannot be imported: libz is too old" in str(broken)


def test_the_article_fits_the_word() -> None:
    assert with_article("int") == "an int" and with_article("OrderedDict") == "an OrderedDict"
    assert with_article("list") == "a list"
    with pytest.raises(SparsebitError, match="got: an int"):
        QuantModel(3, "w4a8")  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="got:  an OrderedDict"):
        QuantModel(OrderedDict(), "w4a8")  # type: ignore[arg-type]


def test_what_is_damaged_says_where_and_what_to_do() -> None:
    assert str(damaged("a.json", "its length is wrong", expected="3 bytes")) == (
        "a.json is damaged: its length is wrong\n  expected: 3 bytes\n  next:     save the model again"
    )


def test_a_place_is_added_only_to_errors_without_one() -> None:
    with pytest.raises(SparsebitError, match=r"^x\n  where:    here\n  expected: y$"), located("here"):
        raise SparsebitError("x", expected="y")
    with pytest.raises(SparsebitError, match=r"^x\n  where: there$"), located("here"):
        raise SparsebitError("x", where="there")
    with pytest.raises(ConfigError, match=r"^other$"), located("here"):
        raise ConfigError("other")


def test_another_hint_for_what_is_not_a_saved_model() -> None:
    said = r"a.json is damaged: x\n  got:  y\n  next: remove it"
    with pytest.raises(ArtifactError, match=said), advised("remove it"):
        raise damaged("a.json", "x", got="y")
    with pytest.raises(ConfigError, match=r"^other$"), advised("remove it"):
        raise ConfigError("other")


def test_names_from_files_do_not_steer_a_terminal() -> None:
    error = SparsebitError("no layer 'a\x1b[31m'", hint="rename \u202e it\nhere")
    assert str(error) == "no layer 'a\\x1b[31m'\n  next: rename \\u202e it\nhere"
    with pytest.raises(ConfigError, match=r"W.a\\x1b\[31m: unknown key"):
        parse_qconfig({"W": {"a\x1b[31m": 1}})
    with pytest.raises(RegistryError) as unknown:
        OBSERVERS["a" * 5000]
    assert len(str(unknown.value)) < 500


def test_the_line_is_the_plug_ins_wherever_it_is_installed() -> None:
    names: dict[str, Any] = {"__name__": "mine.observers"}
    code = "import json\nclass Mine:\n    def read(self):\n        json.loads('{')"
    exec(compile(code, "/lib/site-packages/mine/observers.py", "exec"), names)
    told = r"line 4 of .*/mine/observers.py"
    with pytest.raises(PlugInError, match=told), running_plug_in("it", names["Mine"]()):
        names["Mine"]().read()
