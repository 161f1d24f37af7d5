"""Random networks as source text: a seed gives a Python file with a class ``Net`` and a function ``inputs``."""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Entry = tuple[str, list[str], str]  # expression, statements of __init__, kind of the result


def read_menu() -> dict[str, list[Entry]]:
    """The entries of the menu, by the kind of value they read."""
    path = Path(__file__).with_name("operator_menu.txt")
    menu: dict[str, list[Entry]] = {}
    kind = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            kind = line[1:-1]
        elif line and not line.startswith("#"):
            body, _, result = line.partition(" -> ")
            expression, _, setup = body.partition(" | ")
            entry = (expression, setup.split(" ; ") if setup else [], result or kind)
            menu.setdefault(kind, []).append(entry)
    return menu


MENU = read_menu()
STARTS = {  # how an input is made, and the statement of __init__ and forward that turns it into a value
    "image": ("torch.randn(batch, 4, 12 + size, 12 + 2 * size)", "", "{x}"),
    "signal": ("torch.randn(batch, 6, 16 + size)", "", "{x}"),
    "sequence": ("torch.randn(batch, 6 + size, 16)", "", "{x}"),
    "vector": ("torch.randn(batch, 16)", "", "{x}"),
    "tokens": (
        "torch.randint(0, 50, (batch, 6 + size))",
        "self.embed = nn.Embedding(50, 16)",
        "self.embed({x})",
    ),
}
WIDTHS = (6, 8, 12, 16, 24)
MOST_NUMBERS = 60_000


class Program:
    """A network under construction: every statement has been run, so the shapes are those of real tensors."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.module = chance, nn.Module().eval()
        self.setup: list[str] = []
        self.steps: list[str] = []
        self.kinds: dict[str, str] = {}
        self.scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional, "self": self.module}

    def add(self, expression: str, setup: list[str], kind: str) -> bool:
        """Take a statement if it runs and its result is of use."""
        before = set(self.module._modules), set(self.module._parameters), set(self.module._buffers)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for line in setup:
                    exec(line, self.scope)
                self.module.eval()
                value = eval(expression, self.scope)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            value = None
        if not _useful(value, kind):
            for table, names in zip(
                (self.module._modules, self.module._parameters, self.module._buffers), before, strict=True
            ):
                for name in set(table) - names:
                    del table[name]
            return False
        name = f"v{len(self.kinds)}"
        self.setup += setup
        self.steps.append(f"{name} = {expression}")
        self.scope[name], self.kinds[name] = value, kind
        return True

    def try_one(self) -> bool:
        """Draw one entry of the menu for one of the newest values."""
        names = list(self.kinds)
        name = names[-1] if self.chance.random() < 0.75 else self.chance.choice(names[-4:])
        kind, value = self.kinds[name], self.scope[name]
        own = self.chance.random() < 0.7
        expression, setup, result = self.chance.choice(MENU[kind if own else "any"])
        same = [other for other in names if other != name and self.scope[other].shape == value.shape]
        channels = value.shape[1 if kind in ("image", "signal") else -1]
        divisors = [number for number in (2, 3, 4, 1) if channels % number == 0]
        filled = {
            "x": name,
            "y": self.chance.choice(same or [name]),
            "m": f"m{len(self.kinds)}",
            "c": channels,
            "o": self.chance.choice(WIDTHS),
            "g": divisors[0] if self.chance.random() < 0.7 else self.chance.choice(divisors),
        }
        return self.add(
            expression.format(**filled),
            [line.format(**filled) for line in setup],
            kind if result == "any" else result,
        )


def _useful(value: Any, kind: str) -> bool:
    """A float tensor of the right rank and a reasonable size, with numbers that do not explode or vanish."""
    rank = {"image": 4, "signal": 3, "sequence": 3, "vector": 2}[kind]
    if not isinstance(value, torch.Tensor) or value.dim() != rank or value.dtype != torch.float32:
        return False
    if not 8 <= value.numel() <= MOST_NUMBERS or value.shape[0] != 2 or min(value.shape[1:]) < 1:
        return False
    largest = float(value.abs().max())
    return bool(torch.isfinite(value).all()) and 1e-3 < largest < 1e3


def write_net(seed: int) -> str:
    """The source text of the network of a seed."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    program = Program(chance)
    starts = [chance.choice(list(STARTS))]
    if chance.random() < 0.2:
        starts.append(chance.choice(list(STARTS)))
    makers = []
    for place, start in enumerate(starts):
        maker, setup, value = STARTS[start]
        makers.append(maker)
        argument = f"x{place}"
        program.scope[argument] = eval(maker, {"torch": torch, "batch": 2, "size": 0})
        setup, value = setup.replace("embed", f"embed{place}"), value.replace("embed", f"embed{place}")
        kind = "sequence" if start == "tokens" else start
        program.add(value.format(x=argument), [setup] if setup else [], kind)
    wanted, tries = chance.randint(4, 14), 0
    while len(program.steps) < wanted and tries < 200:
        program.try_one()
        tries += 1
    last = list(program.kinds)[-1]
    if chance.random() < 0.5:  # a head, as most networks have one
        channels = program.scope[last].shape[1 if program.kinds[last] in ("image", "signal") else -1]
        layer = {"image": "nn.Conv2d({}, 5, 1)", "signal": "nn.Conv1d({}, 5, 1)"}.get(
            program.kinds[last], "nn.Linear({}, 5)"
        )
        program.add(f"self.head({last})", [f"self.head = {layer.format(channels)}"], program.kinds[last])
    return _text(program, makers, seed)


def _text(program: Program, makers: list[str], seed: int) -> str:
    read = [name for step in program.steps for name in re.findall(r"\bv\d+", step)]
    results = [name for name in program.kinds if read.count(name) == 1][-3:]  # written, and read by no one
    form = program.chance.random()
    if len(results) == 1 or form < 0.5:
        answer = results[-1]
    elif form < 0.75:
        answer = ", ".join(results)
    else:
        answer = "{" + ", ".join(f'"{name}": {name}' for name in results) + "}"
    arguments = ", ".join(f"x{place}" for place in range(len(makers)))
    tab = "\n        "
    return f'''"""Random network {seed}."""
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {tab.join(program.setup) or "pass"}

    def forward(self, {arguments}):
        {tab.join(program.steps)}
        return {answer}


def inputs(batch=2, size=0):
    return ({", ".join(makers)},)
'''
