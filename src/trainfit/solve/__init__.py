"""Stage `solve`: what each block keeps, so that the step is as fast as possible within a budget. No torch.

A menu per block class by minimum cuts (`menu`), one small integer program over the blocks (`milp`), and an exact
simulation, passed in, that judges the result (`search`).
"""

from trainfit.solve.baselines import greedy, uniform
from trainfit.solve.graph import build_graph
from trainfit.solve.memory import BaseMemory, base_memory, resident_storages
from trainfit.solve.menu import frontier
from trainfit.solve.milp import Choice
from trainfit.solve.planned import CHECKPOINTED, PlannedTraces, Way
from trainfit.solve.replay import Option, evaluate, rerun
from trainfit.solve.search import Found, Infeasible, Search, Verdict
from trainfit.solve.whole import Problem
from trainfit.solve.words import summarize

__all__ = [
    "CHECKPOINTED",
    "BaseMemory",
    "Choice",
    "Found",
    "Infeasible",
    "Option",
    "PlannedTraces",
    "Problem",
    "Search",
    "Verdict",
    "Way",
    "base_memory",
    "build_graph",
    "evaluate",
    "frontier",
    "greedy",
    "rerun",
    "resident_storages",
    "summarize",
    "uniform",
]
