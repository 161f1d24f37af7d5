"""What holds before anything is imported: how threads wait, and which files need Triton, which can be missing."""

from __future__ import annotations

import importlib.util
import os

# Read when torch is loaded: threads that wait for each other sleep. By spinning they take the cores from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["sparsebit/kernels/*_triton.py"]
