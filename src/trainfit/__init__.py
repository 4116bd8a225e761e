"""trainfit: how much GPU memory a PyTorch training step needs, with no GPU.

The public names are below. Those that need torch are imported when first used, so that `import trainfit` and
`trainfit --help` are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trainfit import errors as errors
from trainfit.step import DDP as DDP
from trainfit.step import FSDP as FSDP
from trainfit.step import Step as Step

if TYPE_CHECKING:
    from trainfit._estimate import Estimate as Estimate
    from trainfit._estimate import estimate as estimate
    from trainfit._plan import plan as plan
    from trainfit._plan import plan_frontier as plan_frontier
    from trainfit._plan_record import Plan as Plan
    from trainfit._verify import verify as verify
    from trainfit._verify_record import Verification as Verification
    from trainfit.ghost import assume_size as assume_size
    from trainfit.ghost import ghost_gpu as ghost_gpu
    from trainfit.parallel import ranks as ranks
    from trainfit.sweeps import SweepResult as SweepResult
    from trainfit.sweeps import sweep as sweep

__version__ = "0.1.0"
__all__ = [
    "DDP",
    "FSDP",
    "Estimate",
    "Plan",
    "Step",
    "SweepResult",
    "Verification",
    "__version__",
    "assume_size",
    "errors",
    "estimate",
    "ghost_gpu",
    "plan",
    "plan_frontier",
    "ranks",
    "sweep",
    "verify",
]

_HOMES = {
    "Estimate": "trainfit._estimate",
    "estimate": "trainfit._estimate",
    "Plan": "trainfit._plan_record",
    "plan": "trainfit._plan",
    "plan_frontier": "trainfit._plan",
    "Verification": "trainfit._verify_record",
    "verify": "trainfit._verify",
    "assume_size": "trainfit.ghost",
    "ghost_gpu": "trainfit.ghost",
    "ranks": "trainfit.parallel",
    "SweepResult": "trainfit.sweeps",
    "sweep": "trainfit.sweeps",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainfit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
