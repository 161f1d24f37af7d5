"""The commands, in the order of a usual workflow; the file of a command is loaded only when it is used."""

from __future__ import annotations

import importlib
from functools import partial

from sparsebit.cli.command import Command, Entry

_HELP = {
    "capture": "show a model as a graph: nodes, operators, cost",
    "compress": "find the recipe that meets given goals: pruning, bits, ranges, recovery",
    "prune": "remove channels or single weights from a model",
    "quantize": "quantize a model: plan which tensors become integers, and calibrate",
    "profile": "show the error of a quantized model, layer by layer",
    "export": "write a model as ONNX, run the file and compare it",
    "check": "run an ONNX file and compare it with its model",
    "bench": "time models and ONNX files side by side",
    "llm": "quantize, prune, export, evaluate or chat with a language model",
    "schema": "print the schema of config files, or the YAML of a preset",
}


def _load(name: str) -> Command:
    command: Command = importlib.import_module(f"sparsebit.cli.{name}").COMMAND
    return command


COMMANDS = tuple(Entry(name, words, partial(_load, name)) for name, words in _HELP.items())
