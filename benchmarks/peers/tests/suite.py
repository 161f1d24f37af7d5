"""What came of one suite of a peer: passed, failed and not applicable, the last two with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class NotApplicable(Exception):
    """What a test asks is nothing that we offer; the message says why."""


@dataclass
class Suite:
    """Counts of one suite."""

    suite: str
    source: str  # where the tests come from, and what stands in for what
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, test: Callable[[], None]) -> None:
        """Run one test and count it."""
        try:
            test()
        except NotApplicable as reason:
            self.not_applicable[name] = str(reason)
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            self.passed += 1
