"""Nets of iTransformer: many series are foreseen at once, each of them a token.

Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from iTransformer import iTransformer, iTransformerFFT
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import WITH_FP32_WEIGHTS, Net, floats


def foresee(net: nn.Module, past: Tensor, future: Tensor) -> Tensor:
    loss: Tensor = net(past, targets=future)
    return loss


def foreseeing(make: Any, series: int, past: int, future: int, **sizes: Any) -> Net:
    build = partial(make, num_variates=series, lookback_len=past, pred_length=future, **sizes)
    fields = {"past": floats(past, series), "future": floats(future, series)}
    return Net(make.__name__, lambda: Trained(build(), foresee), 32, fields, WITH_FP32_WEIGHTS)


FEW = {"series": 5, "past": 16, "future": 4, "dim": 32, "depth": 2, "heads": 2, "dim_head": 16}
POWER = {"series": 321, "past": 96, "future": 96, "dim": 512, "depth": 3, "heads": 8, "dim_head": 64}
TRAFFIC = {"series": 862, "past": 720, "future": 192, "dim": 512, "depth": 4, "heads": 8, "dim_head": 64}
WRITTEN: dict[str, Written] = {
    "inverted": Written(
        partial(foreseeing, iTransformer), FEW,
        {"power": POWER | {"use_reversible_instance_norm": True}, "traffic": TRAFFIC},
    ),
    "inverted_fft": Written(partial(foreseeing, iTransformerFFT), FEW, {"power": POWER, "traffic": TRAFFIC}),
}  # fmt: skip
