"""One thread: the models here are small."""

from tests.threads import one_thread

__all__ = ["one_thread"]
