"""Settings for a small chain of layers, whose fixtures are in the conftest of this folder."""

from __future__ import annotations

from sparsebit.quantization import parse_qconfig

FAST = ("W.OBSERVER.TYPE=minmax", "A.OBSERVER.TYPE=minmax")
CONFIG = parse_qconfig("w4a8", ["DEVICE=cpu", "FIRST_LAST=null", *FAST])
