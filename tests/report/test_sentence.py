"""What was done, in one sentence."""

from __future__ import annotations

from sparsebit.report.content import Measure
from sparsebit.report.sentence import summarize
from tests.report.samples import quantized


def test_the_sentence_says_what_was_done() -> None:
    plan = quantized("w4a8").plan
    size = Measure(name="size", before=8, after=2, unit="bytes")
    same = Measure(name="accuracy", before=0.9, after=0.9, unit="share", better="higher")
    assert summarize("net", plan, [size, same]) == (
        "net was quantized to 4- to 8-bit weights and 8-bit activations, which made it 4.0× smaller; "
        "its accuracy stayed at 90.0%."
    )
