"""Storage of cub's kernels: scans, sorts, selections, sums of flags, and thrust's sorts, which are made of them.

In: how many items there are and of what type. Out: bytes, as cub asks torch's allocator for them. Sources: cub 3.0,
which CUDA 13.0 brings, where it makes room for what its tiles tell each other (single_pass_scan_operators.cuh,
util_temporary_storage.cuh, dispatch/*.cuh) and how many items a tile has (dispatch/tuning/*.cuh, compute capability
9.0). Confirmed by an H200 with torch 2.11 (benchmarks/results/hidden_calls_h200.jsonl.gz: sorts, nonzero, topk,
embeddings, unique and more).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import HALVES, ceil_div, item_bytes, max_threads_per_sm, round_up

_ALIGNMENT = 256
_STATUS_BYTES, _PADDING = 4, 32
"""Of a tile without its value; tiles that are looked at beyond the first."""
_SINGLE_TILE = 1
"""Bytes asked for where nothing is needed."""

_SCAN_THREADS, _SCAN_ITEMS = 128, 15
_SUM_THREADS, _SUM_ITEMS, _SUM_OVERSUBSCRIPTION = 256, 16, 5
_FLAGGED_TILE = 384 * 11
_UNIQUE_TILES = {1: 256 * 22, 2: 256 * 22, 4: 384 * 17, 8: 384 * 11}
_UNIQUE_BY_KEY_TILE = 640 * 7
"""Of int64 keys whose values are int32."""
_SCAN_BY_KEY_TILE = 288 * 14
"""Of int32 keys whose values are int32."""

_RADIX_BITS, _DIGITS = 8, 256
_PAIR_TILES = {1: 384 * 9, 2: 512 * 11, 4: 384 * 14, 8: 384 * 12}
"""By the bytes of a key, beside values and offsets of 8 bytes: tuning_radix_sort.cuh, sm90, RegBoundScaling."""
_KEY_TILES = {1: 512 * 19, 2: 512 * 19, 4: 384 * 19, 8: 384 * 15}
_FLOAT_KEY_TILE = 384 * 18
_SORTED_AS_ONE, _PORTION = 256 * 9, 2**28 - 1
_MERGE_TILE, _THRUST_ALIGNMENT = 256 * 17, 128


def _together(sizes: Sequence[int]) -> int:
    """Several arrays in one piece of memory, each of them aligned."""
    return sum(round_up(size, _ALIGNMENT) for size in sizes) + _ALIGNMENT - 1


def _states(num_items: int, tile: int, state_bytes: int) -> int:
    return (_PADDING + ceil_div(num_items, tile)) * state_bytes


def _scanned(num_items: int, tile: int, state_bytes: int) -> int:
    """Only states, which are aligned as one piece of memory within another."""
    return _together([_together([_states(num_items, tile, state_bytes)])])


def scan_bytes(num_items: int, dtype: str) -> int:
    """Of a scan of one row with an operator of torch's own (tuning_scan.cuh: DefaultPolicy, MemBoundScaling). The
    states of torch's halves, no built-in type to cub, are three arrays, others one."""
    item = item_bytes(dtype)
    tile = _SCAN_THREADS * min(_SCAN_ITEMS * 4 // item, _SCAN_ITEMS * 2)
    if dtype not in HALVES:
        return _scanned(num_items, tile, 2 * item if item > 2 else _STATUS_BYTES)
    values = _states(num_items, tile, item)
    return _together([_together([_states(num_items, tile, _STATUS_BYTES), values, values])])


def scan_by_key_bytes(num_items: int) -> int:
    """Of a scan of int32 that begins anew where another int32 changes: keys before each tile beside the states."""
    tiles = ceil_div(num_items, _SCAN_BY_KEY_TILE)
    return _together([_states(num_items, _SCAN_BY_KEY_TILE, 16), 4 * (tiles + 1)])


def flag_sum_bytes(num_items: int, gpu: Gpu) -> int:
    """Of a sum of flags as int32: one for each block that the GPU may run, however few are."""
    if num_items <= _SUM_THREADS * _SUM_ITEMS:
        return _SINGLE_TILE
    blocks = gpu.num_sms * (max_threads_per_sm(gpu) // _SUM_THREADS) * _SUM_OVERSUBSCRIPTION
    return _together([4 * blocks])


def select_bytes(num_items: int) -> int:
    """Of a selection of int64 indices by flags."""
    return _scanned(num_items, _FLAGGED_TILE, 2 * _STATUS_BYTES)


def unique_bytes(num_items: int, dtype: str) -> int:
    """Of a selection of each value that differs from the one before."""
    return _scanned(num_items, _UNIQUE_TILES[item_bytes(dtype)], 2 * _STATUS_BYTES)


def unique_by_key_bytes(num_items: int) -> int:
    """Of the places where sorted int64 change; they are counted as int64."""
    return _scanned(num_items, _UNIQUE_BY_KEY_TILE, 16)


def index_sort_bytes(num_items: int, num_bits: int) -> int:
    """Of pairs of indices, as torch sorts them: 8 bytes each."""
    if num_items <= _SORTED_AS_ONE and num_bits < 64:
        return _SINGLE_TILE
    return pair_sort_bytes(num_items, 8, num_bits)


def pair_sort_bytes(num_items: int, key_bytes: int, num_bits: int) -> int:
    """Of keys with an int64 each: DispatchRadixSort::InvokeOnesweep's counters, and second buffers if there are several
    passes."""
    copied = [num_items * key_bytes, num_items * 8] if num_bits > _RADIX_BITS else []
    return _together([*_counters(num_items, num_bits, _PAIR_TILES[key_bytes]), *copied])


def key_sort_bytes(num_items: int, dtype: str, num_bits: int) -> int:
    """The same of keys alone."""
    key_bytes = item_bytes(dtype)
    tile = _FLOAT_KEY_TILE if dtype == "float32" else _KEY_TILES[key_bytes]
    copied = [num_items * key_bytes] if num_bits > _RADIX_BITS else []
    return _together([*_counters(num_items, num_bits, tile), *copied])


def small_key_sort_bytes(num_items: int, num_bits: int) -> int:
    """Of int64 of so many bits that have no values."""
    return key_sort_bytes(num_items, "int64", num_bits) if num_items > _SORTED_AS_ONE else _SINGLE_TILE


def _counters(num_items: int, num_bits: int, tile: int) -> list[int]:
    """Digits of all passes, what each tile found before it, the next tile of each pass."""
    passes = ceil_div(num_bits, _RADIX_BITS)
    portion = _PORTION // tile * tile
    portions = ceil_div(num_items, portion)
    looked_back = ceil_div(min(num_items, portion), tile) * _DIGITS * 4
    return [portions * passes * _DIGITS * 8, looked_back, portions * passes * 4]


def thrust_sort_bytes(num_items: int, dtype: str) -> int:
    """Of thrust's sort of keys with an int64 each: the radix sort between two buffers of thrust's own; of halves, no
    built-in type to it, a merge sort."""
    keys, values = num_items * item_bytes(dtype), num_items * 8
    if dtype in HALVES:
        return _together([4 * (ceil_div(num_items, _MERGE_TILE) + 1), keys, values])
    num_bits = 8 * item_bytes(dtype)
    counters = _together(_counters(num_items, num_bits, _PAIR_TILES[item_bytes(dtype)]))
    return round_up(keys, _THRUST_ALIGNMENT) + round_up(values, _THRUST_ALIGNMENT) + counters
