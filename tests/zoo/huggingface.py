"""Builders of ``transformers`` models: from a small config, never downloaded, imported only when built."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn


def hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A builder of ``transformers.<model>(transformers.<config>(**settings))``.

    A setting may itself be ``(config name, settings)``: a nested config, such as the backbone of a detector.
    """

    def build() -> nn.Module:
        import transformers

        def nested(value: Any) -> Any:
            if isinstance(value, tuple):
                name, inner = value
                return getattr(transformers, name)(**inner)
            return value

        with warnings.catch_warnings():
            # DeBERTa scripts a few functions while its module is imported.
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
            chosen = getattr(transformers, model)
        return chosen(
            getattr(transformers, config)(**{key: nested(value) for key, value in settings.items()})
        )

    return build


# The usual 0.02 makes so narrow a net nearly constant: a graph that lost a branch would look nearly right.
SPREAD = {"initializer_range": 0.2}
TRANSFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    **SPREAD,
}
