"""The process in which models are opened that may crash it; :mod:`sparsebit.runtime.isolation` starts it.

It imports no torch, so that it starts in a tenth of a second.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sparsebit.errors import SparsebitError
from sparsebit.runtime.session import Session, SessionError, SessionOptions, first_line, open_source
from sparsebit.runtime.wire import Receiver, Sender

ERROR_PARTS = ("message", "where", "expected", "got", "hint")


def serve(asked: int, answered: int) -> None:
    """Answer requests from standard input until it ends; the arguments are the files with the arrays of each way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    requests, answers = Receiver(sys.stdin.buffer, asked), Sender(os.fdopen(os.dup(1), "wb"), answered)
    os.dup2(2, 1)  # whatever a runtime prints must not get between the answers
    sessions: dict[int, Session] = {}
    while True:
        try:
            request, arrays = requests.receive()
        except EOFError:
            return
        for number in request["close"]:
            sessions.pop(number, None)
        if request["do"] == "close":
            continue
        try:
            answers.send(*_answer(request, arrays, sessions))
        except Exception as error:
            told = error if isinstance(error, SparsebitError) else SessionError(first_line(error))
            answers.send({"error": {name: getattr(told, name) for name in ERROR_PARTS}})


def _answer(
    request: dict[str, Any], arrays: dict[str, Any], sessions: dict[int, Session]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if request["do"] == "run":
        return {}, sessions[request["number"]].run(arrays)
    source = arrays["model"].tobytes() if "model" in arrays else request["path"]
    session = open_source(source, request["runtime"], SessionOptions(**request["options"]))
    sessions[request["number"]] = session
    inputs = [(value.name, value.shape, str(value.dtype)) for value in session.inputs]
    return {"inputs": inputs, "outputs": session.output_names}, {}
