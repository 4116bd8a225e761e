"""Temporary storage of cub's radix sort of (key, value) pairs of 8 bytes each, as torch calls it for indices.

Source: cub's DispatchRadixSort, onesweep: the second half of the double buffers (only with more than one pass), one
histogram of 256 counters of 8 bytes per pass of 8 bits, 256 words of 4 bytes per tile, counters; each part aligned to
256 bytes. Probe: the embedding and index_put rows.
"""

from __future__ import annotations

from trainfit.gpus.hidden.tensors import ceil_div, round_up

_ALIGNMENT = 256
_TILE_ITEMS = 4608
_SINGLE_TILE_ITEMS = 2304
_BITS_PER_PASS = 8


def radix_sort_bytes(num_items: int, num_bits: int) -> int:
    if num_items <= _SINGLE_TILE_ITEMS and num_bits < 64:
        return 1
    passes = ceil_div(num_bits, _BITS_PER_PASS)
    buffers = 2 * round_up(8 * num_items, _ALIGNMENT) if passes > 1 else 0
    histograms = passes * 256 * 8
    lookback = ceil_div(num_items, _TILE_ITEMS) * 256 * 4
    return buffers + histograms + lookback + _ALIGNMENT + _ALIGNMENT - 1
