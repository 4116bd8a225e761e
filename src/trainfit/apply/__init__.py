"""Decisions + module -> the same module, planned: the replay executor.

`record_block` runs a block on tensors without data and gives its `BlockProgram`; `plan_replay` turns a program and a
decision into the ops to replay; `apply_decisions` makes a model follow decisions, without wrapper modules or dispatch
modes at run time; gradients are bit-identical to the unplanned model's.
"""

from trainfit.apply.agreement import agree_when_ranks_meet as agree_when_ranks_meet
from trainfit.apply.blocks import BlockRecorder as BlockRecorder
from trainfit.apply.blocks import find_blocks as find_blocks
from trainfit.apply.blocks import record_blocks as record_blocks
from trainfit.apply.carry import carry_decision as carry_decision
from trainfit.apply.executor import BlockStats as BlockStats
from trainfit.apply.executor import Handle as Handle
from trainfit.apply.executor import apply_decisions as apply_decisions
from trainfit.apply.record import record_block as record_block
from trainfit.apply.replay import ReplayPlan as ReplayPlan
from trainfit.apply.replay import plan_replay as plan_replay
from trainfit.apply.replay import structure_of as structure_of
