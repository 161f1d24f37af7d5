"""Lines are counted by kind, and every file that is said to be new is there."""

from __future__ import annotations

from benchmarks.lines.run import LIBRARY, NEW, ROOT, count_kinds, feature_of

TEXT = '''"""A module
of two lines."""

import os


def find(x):
    """Look."""
    if x is None:
        raise ValueError(
            "nothing",
        )
    return os.fspath(x)  # done
'''


def test_lines_are_counted_by_kind() -> None:
    found = count_kinds(TEXT)
    assert found == {"docstrings": 3, "imports": 1, "raised errors": 3, "code": 3, "blank": 4 - 1}
    assert found.total() == len(TEXT.splitlines())


def test_new_files_are_there_and_serve_one_feature() -> None:
    for name, parts in NEW.items():
        for part in parts:
            assert (ROOT / LIBRARY / part).exists(), part
            assert feature_of(part) == name
    assert feature_of("graph/run.py") is None
