"""Which ops need no second measurement: those that are priced as one that was measured.

In: an op as a sample describes it. Out: `kind_of`, a text that is the same for ops of one rule whose sizes differ by
half a doubling or less. Workloads overlap: nets call what grids and draws have, too. Leaving out four samples in ten so
changed what 487 public nets are priced at by less than leaving out their own families did by chance. Convolutions are
never alike: cuDNN chooses among too many kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainfit.cost.classify import ROOFLINE, works
from trainfit.cost.described import read_op
from trainfit.cost.work import base_name
from trainfit.records import Phase

_PER_DOUBLING = 2


def kind_of(
    name: str, args: Sequence[object], kwargs: Mapping[str, object], outputs: Sequence[object], num_sms: int
) -> str:
    """On a GPU of so many processors; an op that no rule knows is alike to none but itself."""
    op = read_op(name, args, kwargs, [output for output in outputs if output], Phase.FORWARD)
    work = None if base_name(op).startswith("convolution") else next(iter(works(op, num_sms)), None)
    if work is None or work.rule == ROOFLINE:
        return f"{name}{args}{kwargs}"
    return f"{work.rule} {[round(_PER_DOUBLING * value) for value in work.coordinates]}"
