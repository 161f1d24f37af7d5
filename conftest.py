"""What pytest leaves alone everywhere: kernels are written in Triton, and cannot be imported where it is missing."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["sparsebit/kernels/*_triton.py"]
