"""This library beside its peers on the same models, data and seeds; each peer in an environment of its own.

Run from the repository root: ``SPARSEBIT_DATA=/path/to/data python -m benchmarks.peers.run --venvs FOLDER``
FOLDER receives one environment per peer, made from the requirements files here. Without ``--part`` and ``--peer``, all
of them run. Rows are written as soon as a peer is done, then the tables, the charts and docs/peers.md are made anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.environment import describe
from benchmarks.peers.page import write_page
from benchmarks.peers.row import Options, Row, failed_row, row_as_dict, row_from

SEED = 0
PARTS = ("vision", "pruning", "language")
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "peers.md"


def run_part(name: str, peers: list[str] | None, options: Options, results: Path, console: Console) -> None:
    """Measure the peers of one part; rows of peers and models that are not asked for stay as they are."""
    part = importlib.import_module(f"benchmarks.peers.{name}.part")
    path = results / f"{name}.json"
    rows = _earlier_rows(path)
    known = list(dict.fromkeys(row.setting for row in rows))
    for peer in part.PEERS:
        if peers is not None and peer not in peers:
            continue
        console.log(f"{name}: {peer}")
        environment = describe(SEED, ("torch", "numpy", "onnx", "onnxruntime"))
        measured = [replace(row, commit=environment["commit"]) for row in measure_peer(part, peer, options)]
        rows = [row for row in rows if not _is_replaced(row, peer, options)] + measured
        for row in measured:
            console.print(row)
            known += [] if row.setting in known else [row.setting]
        # In the order of PEERS, models and earlier settings, whatever the order they were run in.
        order = sorted(
            rows, key=lambda row: (part.PEERS.index(row.peer), row.model, known.index(row.setting))
        )
        content = {
            "environment": environment,
            "part": name,
            "protocol": part.PROTOCOL,
            "rows": [row_as_dict(row) for row in order],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1).replace(str(options.work), "WORK")  # errors name scratch files
        path.write_text(text + "\n", encoding="utf-8")


def _earlier_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    return [row_from({"commit": content["environment"]["commit"]} | row) for row in content["rows"]]


def _is_replaced(row: Row, peer: str, options: Options) -> bool:
    """Does a run of this peer on these models and settings say again what an earlier row says?"""
    of_model = not options.models or row.model in (*options.models, "all")
    return row.peer == peer and of_model and (options.wants(row.setting) or row.setting == "all")


def measure_peer(part: Any, peer: str, options: Options) -> list[Row]:
    """The rows of one peer, or one row with the reason why there are none."""
    try:
        rows: list[Row] = part.measure(peer, options)
        return rows
    except Exception as error:  # another tool's failure is a result, not the end of the run
        return [failed_row(peer, "all", "all", f"{type(error).__name__}: {error}")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venvs", type=Path, help="folder for the peers' environments")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; all if left out")
    parser.add_argument("--peer", action="append", help="repeatable; all if left out")
    parser.add_argument("--model", action="append", help="of the part; repeatable; all if left out")
    parser.add_argument(
        "--setting", action="append", help="how its name begins, such as W4; repeatable; all if left out"
    )
    parser.add_argument("--work", type=Path, help="folder for scratch files; a temporary one if left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few samples: does everything run?")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument(
        "--only-page", action="store_true", help="measure nothing, write the page from the results"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.only_page:
        if arguments.venvs is None:
            parser.error("--venvs: name a folder for the peers' environments")
        with tempfile.TemporaryDirectory(prefix="sparsebit_peers_") as temporary:
            for name in arguments.part or PARTS:
                work = (arguments.work or Path(temporary)) / name
                work.mkdir(parents=True, exist_ok=True)
                options = Options(
                    venvs=arguments.venvs.resolve(),
                    work=work.resolve(),
                    threads=arguments.threads,
                    quick=arguments.quick,
                    models=tuple(arguments.model or ()),
                    settings=tuple(arguments.setting or ()),
                )
                run_part(name, arguments.peer, options, arguments.output, Console(stderr=True))
    write_page(arguments.output, arguments.page, PARTS)


if __name__ == "__main__":
    main()
