"""What nets of torchaudio have in common: how speech is spelt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def spelt(scores: Tensor, symbols: Tensor) -> Tensor:
    """Connectionist loss of log probabilities (frames, rows, symbols); 0 is the blank."""
    frames = torch.full((scores.shape[1],), scores.shape[0], device=scores.device)
    lengths = torch.full((symbols.shape[0],), symbols.shape[1], device=scores.device)
    return F.ctc_loss(scores.float(), symbols + 1, frames, lengths, zero_infinity=True)
