"""AutoSAC under the names of `torch.distributed._tools`: trackers, estimators and the solver, as views on the stages.

Code written for torch's runs after changing the import path: `from trainfit.autosac.mem_tracker import MemTracker`.
They work under `trainfit.ghost_gpu(...)` with no GPU, under torch's FakeTensorMode where there is one, on CPU tensors
and on real CUDA tensors. Beyond torch's: `collect_stats` needs one run for all statistics, `apply_sac` makes a model
follow the decisions, policies can be greedy, and every tracker takes `gpu=`, the name of the target.
"""

from trainfit.autosac.checkpointing import apply_sac as apply_sac
from trainfit.autosac.collect import collect_stats as collect_stats
from trainfit.autosac.ilp_utils import aggregate_stats as aggregate_stats
from trainfit.autosac.ilp_utils import get_peak_memory_runtime_baseline as get_peak_memory_runtime_baseline
from trainfit.autosac.ilp_utils import parse_module_info as parse_module_info
from trainfit.autosac.mem_tracker import MemTracker as MemTracker
from trainfit.autosac.mod_tracker import ModTracker as ModTracker
from trainfit.autosac.runtime_estimator import RuntimeEstimator as RuntimeEstimator
from trainfit.autosac.sac_estimator import SACEstimator as SACEstimator
from trainfit.autosac.sac_ilp import (
    get_greedy_checkpointing_policy_per_module as get_greedy_checkpointing_policy_per_module,
)
from trainfit.autosac.sac_ilp import (
    get_optimal_checkpointing_policy_per_module as get_optimal_checkpointing_policy_per_module,
)
from trainfit.autosac.sac_ilp import sac_milp as sac_milp
