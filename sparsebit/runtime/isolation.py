"""Open and run models in a child process, so that a runtime that ends its process does not end the user's.

One child serves all sessions of a process. It starts with the first session or before it, and restarts after a session
that crashed it; it ends with the process that started it. Measured in ``docs/decisions/046-shared-memory.md``.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsebit.runtime.session import (
    LONGEST_REASON,
    InputInfo,
    Session,
    SessionError,
    SessionOptions,
    describe,
    open_source,
)
from sparsebit.runtime.wire import Receiver, Sender, dtype_named, give_back, shared_file

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from sparsebit.runtime.child import serve
serve(*map(int, sys.argv[2:]))
"""
_numbers = itertools.count()


class Child:
    """The process, and the conversation with it: one request at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child may write to it
        self.lock = threading.Lock()
        self.unused: list[int] = []  # sessions to close with the next request
        self.files = (shared_file(), shared_file())  # for the arrays of requests, and of answers
        asked, answered = numbers = [file.fileno() for file in self.files]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _START, json.dumps(sys.path), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            pass_fds=numbers,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests = Sender(self.process.stdin, asked)
        self.answers = Receiver(self.process.stdout, answered)

    @property
    def usable(self) -> bool:
        """Whether the child runs and was started by this process: a forked process cannot share it."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(
        self, header: Mapping[str, Any], arrays: Mapping[str, Any], *, what: str, where: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """One request and its answer; ``what`` begins the message of the error if the child ends."""
        with self.lock:
            closing = list(self.unused)
            try:
                self.requests.send({**header, "close": closing}, arrays)
                del self.unused[: len(closing)]
                answer, shared = self.answers.receive()
                results = {name: array.copy() for name, array in shared.items()}
                for file in self.files:  # for both files: the other process is waiting for the next request
                    give_back(file.fileno())
            except (EOFError, BrokenPipeError):
                code = self.process.wait()
                reason = f": {said}" if (said := self.last_words()) else ""
                raise SessionError(f"{what} ended with {_ending(code)}{reason}", where=where) from None
            except TypeError:  # nothing was sent
                raise
            except OSError as error:  # nor here
                raise SessionError(
                    f"no memory to share with the process of the runtime: {error.strerror}", where=where
                ) from error
            except BaseException:  # interrupted in the middle of an answer: the next one could not be read
                self.process.kill()
                self.process.wait()
                raise
        if "error" in answer:
            parts = answer["error"]
            raise SessionError(parts.pop("message"), **parts)
        return answer, results

    def drop(self, number: int) -> None:
        """Close a session that is no longer used, at once or with the next request."""
        self.unused.append(number)
        if not self.usable or not self.lock.acquire(blocking=False):
            return
        try:
            closing = list(self.unused)
            self.requests.send({"do": "close", "close": closing})
            del self.unused[: len(closing)]
        except OSError:
            pass  # it has ended, and its sessions with it
        finally:
            self.lock.release()

    def last_words(self) -> str:
        """What the child wrote before it ended: the error of C++, or else the last line."""
        self.said.seek(0)
        lines = [
            line.strip() for line in self.said.read().decode(errors="replace").splitlines() if line.strip()
        ]
        thrown = [line.partition("what():")[2].strip() for line in lines if "what():" in line]
        return (thrown or lines or [""])[-1][:LONGEST_REASON]

    def end(self) -> None:
        """End the child."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.communicate()
        for file in (self.said, *self.files):
            file.close()


_child: Child | None = None
_starting = threading.Lock()


def start_child() -> None:
    """Start the child before it is needed: it starts up while this process does other work."""
    if _can_start():
        _running_child()


def open_isolated(source: str | bytes, runtime: str, options: SessionOptions) -> Session:
    """Open a path or a serialized model in the child; in this process if Python cannot be started again."""
    if not _can_start():
        return open_source(source, runtime, options)
    child, number = _running_child(), next(_numbers)
    where = describe(source)
    told, _ = child.ask(
        {
            "do": "open",
            "number": number,
            "path": os.path.abspath(source) if isinstance(source, str) else None,
            "runtime": runtime,
            "options": vars(options),
        },
        {"model": np.frombuffer(source, np.uint8)} if isinstance(source, bytes) else {},
        what=f"{runtime} could not open the model: its process",
        where=where,
    )

    def execute(feed: dict[str, Any]) -> dict[str, Any]:
        return child.ask(
            {"do": "run", "number": number},
            feed,
            what=f"{runtime} could not run the model: its process",
            where=where,
        )[1]

    weakref.finalize(execute, child.drop, number)
    return Session(
        runtime=runtime,
        source=where,
        inputs=tuple(
            InputInfo(name=name, shape=tuple(shape), dtype=dtype_named(dtype))
            for name, shape, dtype in told["inputs"]
        ),
        output_names=tuple(told["outputs"]),
        execute=execute,
    )


def _can_start() -> bool:
    return bool(sys.executable) and not getattr(sys, "frozen", False)  # frozen: Python embedded in a program


def _running_child() -> Child:
    global _child
    with _starting:
        if _child is None or not _child.usable:
            if _child is not None:
                _child.end()
            else:
                atexit.register(_end_child)
            _child = Child()
        return _child


def _end_child() -> None:
    if _child is not None:
        _child.end()


def _ending(code: int) -> str:
    """How a process ended.

    Example:
        >>> _ending(-6), _ending(3)
        ('SIGABRT', 'exit code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
