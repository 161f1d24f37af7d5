"""``sparsebit profile``: what it needs."""

from __future__ import annotations

from tests.cli.conftest import Cli

DATA = ("--data", "net.py:batches")


def test_profile_needs_a_quantized_model(cli: Cli) -> None:
    assert cli("profile", "net.py:make", *DATA).code == 2


def test_errors_are_those_against_the_float_weights_of_the_model(cli: Cli) -> None:
    assert cli("quantize", "net.py:make", *DATA, "-o", "int8").code == 0
    found = cli("profile", "net.py:make", "--quantized", "int8", *DATA, "--json")
    weights = [tensor for tensor in found.data["tensors"] if tensor["side"] == "W"]
    assert weights and all(tensor["sqnr_db"] is not None for tensor in weights)  # None is exact
    assert "activations alone" not in found.err
