"""Small unmodified models with their inputs: what every graph front-end, pass and consumer is tested on."""

from __future__ import annotations

import dataclasses

from . import audio, cnn, decoder, language, nasty, rnn, vision
from .entry import Call, ZooEntry, outputs_of
from .symbolic import SYMBOLIC

ZOO: dict[str, ZooEntry] = {}
for _family in (cnn, rnn, language, decoder, vision, audio, nasty):
    for _entry in _family.ENTRIES:
        assert _entry.name not in ZOO, f"two zoo entries are named {_entry.name!r}"
        ZOO[_entry.name] = dataclasses.replace(_entry, symbolic=_entry.name in SYMBOLIC)

__all__ = ["ZOO", "Call", "ZooEntry", "outputs_of"]
