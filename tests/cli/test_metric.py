"""--test and --metric: numbers from labels and functions of the user's own."""

from __future__ import annotations

from tests.cli.conftest import Cli

DATA = ("--data", "net.py:batches")


def test_a_metric_of_the_users_own(cli: Cli) -> None:
    words = ("--test", "net.py:batches", "--metric", "net.py:first_logit")
    assert cli("quantize", "net.py:make", *DATA, *words, "-o", "int8").code == 0
    done = cli("quantize", "net.py:make", *DATA, "--test", "net.py:unlabelled", "-o", "int8")
    assert done.code == 2 and "no labels" in done.err
