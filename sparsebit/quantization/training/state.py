"""What training of a quantized model was told, as it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsebit.storage import Fields


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What ``init_QAT`` was told, and which parameters are held.

    Attributes:
        freeze: whether batch norms stay in evaluation mode.
        following: the quantizers whose ranges follow what they see.
        held: the parameters without a gradient.
        distill, temperature: of distillation; None where there is none.
        folded: whether batch norm was folded already in the model that is distilled from.
    """

    freeze: bool
    following: Sequence[str]
    held: Sequence[str]
    distill: float | None = None
    temperature: float | None = None
    folded: bool = False

    @classmethod
    def read(cls, fields: Fields) -> TrainingState:
        """That of a saved model."""
        distill, temperature = fields.optional_number("distill"), fields.optional_number("temperature")
        if (distill is None) != (temperature is None) or (temperature is not None and temperature <= 0):
            raise fields.wrong("temperature", "a number above 0 where a model is distilled from")
        return cls(
            freeze=fields.flag("freeze"),
            following=fields.texts("following"),
            held=fields.texts("held"),
            distill=distill,
            temperature=temperature,
            folded=fields.flag("folded"),
        )
