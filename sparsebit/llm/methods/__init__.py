"""Methods that quantize one weight: settings as frozen dataclasses, registered by name."""

from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import SOLVERS, Solved, Solver, WeightSpec

__all__ = ["SOLVERS", "Gptq", "Rtn", "Solved", "Solver", "WeightSpec"]
