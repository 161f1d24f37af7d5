"""The page about several processes, on several processes; on one it runs with all other pages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.test_pages_run import DOCS, ROOT
from tests.ranks import needs_distributed


@needs_distributed
def test_the_page_runs_under_torchrun(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "many_processes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    # As the page advises: threads of gloo can abort a process that ends by itself.
    blocks.append("os._exit(0)")
    (tmp_path / "page.py").write_text("\n\n".join(blocks), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        "page.py",
    ]
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    output = tmp_path / "output"
    with open(output, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | variables,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        process.wait(600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # each process says where it is
        process.wait()
    assert process.returncode == 0, output.read_text(encoding="utf-8", errors="replace")
    assert (tmp_path / "trained").is_dir() and (tmp_path / "tiny-w4").is_dir()
