"""``sparsebit profile``: what it needs."""

from __future__ import annotations

from tests.cli.conftest import Cli

DATA = ("--data", "net.py:batches")


def test_profile_needs_a_quantized_model(cli: Cli) -> None:
    assert cli("profile", "net.py:make", *DATA).code == 2
