"""What came of one suite of a peer: passed, failed and not applicable, the last two with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class NotApplicable(Exception):
    """What a test asks is nothing that we offer; the message says why."""


@dataclass
class Suite:
    """Counts of one suite; tests of a file are named ``path/file.py::test``."""

    suite: str
    source: str  # where the tests come from, and what stands in for what
    passed: int = 0
    # Files of tests that were run, and how many passed in each.
    files: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)

    def add_rest_of(self, before: Suite) -> None:
        """Keep what an earlier run found in files that this one did not run."""
        for file, passed in before.files.items():
            if file not in self.files:
                self.files[file] = passed
                self.passed += passed
                self.failed |= _of_file(before.failed, file)
                self.not_applicable |= _of_file(before.not_applicable, file)

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


def _of_file(reasons: dict[str, str], file: str) -> dict[str, str]:
    return {name: why for name, why in reasons.items() if name.partition("::")[0].rpartition("/")[2] == file}
