"""While a model is captured, parts of torch are replaced for the whole process: one capture at a time.

The lock keeps two captures from putting each other's replacements back. A replacement itself must ask
``in_this_thread``: models that run in other threads meanwhile are not part of the capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

CAPTURING = threading.RLock()


def in_this_thread() -> Callable[[], bool]:
    """A function that says whether it is called in the thread that asks now."""
    thread = threading.get_ident()
    return lambda: threading.get_ident() == thread
