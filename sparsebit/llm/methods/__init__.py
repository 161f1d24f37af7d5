"""Methods that quantize a block: settings as frozen dataclasses, registered by name.

Preparations change a block without changing what it computes; solvers turn one weight into numbers on a grid; tuners
train the solved block.
"""

from sparsebit.llm.methods.awq import Awq
from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.hqq import Hqq
from sparsebit.llm.methods.preparation import Preparation
from sparsebit.llm.methods.registration import METHODS, register_method
from sparsebit.llm.methods.rotate import Rotate
from sparsebit.llm.methods.rtn import Rtn, Wanda
from sparsebit.llm.methods.signround import SignRound
from sparsebit.llm.methods.smoothquant import SmoothQuant
from sparsebit.llm.methods.solver import Solved, SolvedMatrix, Solver, WeightSpec
from sparsebit.llm.methods.tune import Tune
from sparsebit.llm.methods.tuner import Tuner

__all__ = [
    "METHODS",
    "Awq",
    "Gptq",
    "Hqq",
    "Preparation",
    "Rotate",
    "Rtn",
    "SignRound",
    "SmoothQuant",
    "Solved",
    "SolvedMatrix",
    "Solver",
    "Tune",
    "Tuner",
    "Wanda",
    "WeightSpec",
    "register_method",
]
