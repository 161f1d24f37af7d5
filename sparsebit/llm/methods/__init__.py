"""Methods that quantize a block: settings as frozen dataclasses, registered by name.

Solvers turn one weight into numbers on a grid; tuners act on the block that was solved.
"""

from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.hqq import Hqq
from sparsebit.llm.methods.rtn import Rtn, Wanda
from sparsebit.llm.methods.solver import SOLVERS, Solved, SolvedMatrix, Solver, WeightSpec
from sparsebit.llm.methods.tune import Tune
from sparsebit.llm.methods.tuner import TUNERS, Tuner

__all__ = [
    "SOLVERS",
    "TUNERS",
    "Gptq",
    "Hqq",
    "Rtn",
    "Solved",
    "SolvedMatrix",
    "Solver",
    "Tune",
    "Tuner",
    "Wanda",
    "WeightSpec",
]
