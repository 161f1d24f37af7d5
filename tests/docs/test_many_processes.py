"""The page about several processes, on several processes; on one it runs with all other pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_pages_run import DOCS, ROOT
from tests.ranks import needs_distributed


@needs_distributed
def test_the_page_runs_under_torchrun(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "many_processes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "page.py").write_text("\n\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"),
            "page.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained").is_dir() and (tmp_path / "tiny-w4").is_dir()
