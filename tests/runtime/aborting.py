"""A child process whose runtime aborts on every model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from sparsebit.runtime import isolation

ABORTS = """
import os, sys, sparsebit.runtime.child as child
def abort(*args, **named):
    sys.stderr.write("terminate called\\n  what():  bad shape\\n")
    sys.stderr.flush()
    os.abort()
child.open_source = abort
child.serve(*map(int, sys.argv[2:]))
"""


@contextmanager
def no_child() -> Iterator[None]:
    """Inside the block sessions start a child of their own, and it ends with the block."""
    with patch.object(isolation, "_child", None):
        try:
            yield
        finally:
            if isolation._child is not None:
                isolation._child.end()


@contextmanager
def aborting_runtime() -> Iterator[None]:
    """Inside the block every model that is opened in the child aborts it."""
    before, _, _ = isolation._START.partition("from sparsebit.runtime.child")
    with no_child(), patch.object(isolation, "_START", before + ABORTS):
        yield
