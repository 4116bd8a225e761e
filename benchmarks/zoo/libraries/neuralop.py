"""Nets of neuraloperator: what a flow looks like later, learned as operators between functions on a grid.

Spectra are complex and of fp32. Out: `WRITTEN`, the models by name with their sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from neuralop.losses import LpLoss
from neuralop.models import CODANO, TFNO, UNO
from torch import Tensor, nn

from zoo.libraries import Trained, Written
from zoo.survey import Net, floats


def foresee(net: nn.Module, now: Tensor, later: Tensor) -> Tensor:
    loss: Tensor = LpLoss(d=2, p=2)(net(now), later)
    return loss


def foreseeing(make: Any, side: int, variables: int, **sizes: Any) -> Net:
    fields = {name: floats(variables, side, side) for name in ("now", "later")}
    return Net(make.__name__, lambda: Trained(make(**sizes), foresee), 8, fields, ("fp32", "tf32"))


def tensor_fno(variables: int, **sizes: Any) -> Net:
    return foreseeing(TFNO, variables=variables, in_channels=variables, out_channels=variables, **sizes)


def uno(variables: int, width: int, modes: tuple[int, ...], **sizes: Any) -> Net:
    """Like a U: the middle layers see a coarser grid and have more channels."""
    wide = [width, 2 * width, 2 * width, 2 * width, width]
    build = partial(
        UNO, in_channels=variables, out_channels=variables, hidden_channels=width, n_layers=5, uno_out_channels=wide,
        uno_n_modes=[[count, count] for count in modes],
        uno_scalings=[[1.0, 1.0], [0.5, 0.5], [1, 1], [1, 1], [2, 2]], horizontal_skips_map={4: 0, 3: 1},
        channel_mlp_skip="linear",
    )  # fmt: skip
    build.__name__ = "UNO"  # type: ignore[attr-defined]
    return foreseeing(build, variables=variables, **sizes)


def codano(layers: int, modes: int, heads: int, **sizes: Any) -> Net:
    """Every variable is a token, whose features are functions."""
    return foreseeing(
        CODANO, n_layers=layers, n_modes=[[modes, modes]] * layers, n_heads=[heads] * layers,
        per_layer_scaling_factors=[[1, 1]] * layers, attention_scaling_factors=[0.5] * layers, **sizes,
    )  # fmt: skip


WRITTEN: dict[str, Written] = {
    "tensor_fno": Written(
        tensor_fno,
        {"side": 16, "variables": 1, "n_modes": (4, 4), "hidden_channels": 8, "n_layers": 2, "factorization": "Tucker",
         "rank": 0.5},
        {"tucker": {"side": 128, "variables": 3, "n_modes": (32, 32), "hidden_channels": 128, "n_layers": 4,
                    "factorization": "Tucker", "rank": 0.42},
         "cp": {"side": 256, "variables": 1, "n_modes": (64, 64), "hidden_channels": 96, "n_layers": 6,
                "factorization": "CP", "rank": 0.2}},
    ),
    "uno": Written(
        uno, {"side": 16, "variables": 1, "width": 8, "modes": (4, 4, 4, 4, 4)},
        {"small": {"side": 256, "variables": 2, "width": 48, "modes": (32, 16, 16, 16, 32)},
         "base": {"side": 128, "variables": 3, "width": 64, "modes": (32, 16, 16, 16, 32)}},
    ),
    "codano": Written(
        codano,
        {"side": 16, "variables": 2, "layers": 2, "modes": 4, "heads": 2, "hidden_variable_codimension": 4,
         "lifting_channels": 8, "projection_channels": 8},
        {"base": {"side": 64, "variables": 4, "layers": 5, "modes": 32, "heads": 4, "hidden_variable_codimension": 64,
                  "lifting_channels": 64, "projection_channels": 64, "attention_token_dim": 8}},
    ),
}  # fmt: skip
