"""All workloads that `calibrate` measures, in groups.

Each is a callable that runs torch code on the GPU; the ops inside are timed.
"""

from __future__ import annotations

import torch

from trainfit.calibrate import (
    broadcasts,
    compute,
    crowded,
    drawn,
    drawn_attentions,
    drawn_filters,
    drawn_graphs,
    drawn_images,
    drawn_indices,
    drawn_layouts,
    drawn_maps,
    drawn_matrices,
    drawn_norms,
    drawn_points,
    drawn_products,
    drawn_recurrents,
    drawn_tokens,
    extreme_filters,
    extremes,
    filters,
    fourier,
    functions,
    further,
    images,
    library_filters,
    lookups,
    memory,
    odd_sizes,
    recurrents,
    replayed,
    usual_filters,
    walks,
)
from trainfit.calibrate.workloads import Workload

Group = tuple[str, int, list[Workload]]


def groups() -> list[Group]:
    """(name, repeats, workloads), those last for which libraries compile longest: rehearsals begin with these.
    Convolutions and recurrent layers run once warm and once cold: their library makes many calls, each of which the
    profiler keeps."""
    bf16, fp32 = torch.bfloat16, torch.float32
    return [
        ("pointwise", 2, memory.pointwise()),
        ("layouts", 2, memory.layouts()),
        ("rows", 2, memory.rowwise()),
        ("matmul bf16", 3, compute.matmuls(bf16, (512, 2048, 4096, 8192, 16384), every=2)),
        ("tables", 2, memory.tables()),
        ("optimizers", 2, memory.updates()),
        ("matmul fp32", 2, compute.matmuls(fp32, (1024, 4096, 8192), every=2)),
        ("images", 2, memory.images()),
        ("batched matmul", 3, [*compute.batched_products(), *compute.grouped_products()]),
        ("hidden sizes fp32", 2, compute.hidden_products(fp32, (4096, 8192))),
        ("signals", 2, memory.signals()),
        ("matrices", 2, memory.matrices()),
        ("image norms", 3, images.norms()),
        ("maps", 2, images.maps()),
        ("between", 2, broadcasts.between()),
        ("matmul tf32", 2, compute.rounded_products()),
        ("rest", 2, broadcasts.rest()),
        ("attention products", 2, compute.attention_products()),
        ("lookups", 2, lookups.lookups()),
        ("fourier", 2, fourier.fourier()),
        ("extremes", 2, extremes.extremes()),
        ("further", 2, further.further()),
        ("drawn", 2, drawn.drawn()),
        ("drawn indices", 2, drawn_indices.drawn_indices()),
        ("drawn images", 2, drawn_images.drawn_images()),
        ("drawn products", 2, drawn_products.drawn_products()),
        ("walks", 2, walks.walks()),
        ("classes", 2, walks.classes()),
        ("drawn points", 2, drawn_points.drawn_points()),
        ("drawn matrices", 2, drawn_matrices.drawn_matrices()),
        ("drawn layouts", 2, drawn_layouts.drawn_layouts()),
        ("drawn graphs", 2, drawn_graphs.drawn_graphs()),
        ("drawn recurrents", 1, drawn_recurrents.drawn_recurrents()),
        ("drawn tokens", 2, drawn_tokens.drawn_tokens()),
        ("drawn maps", 2, drawn_maps.drawn_maps()),
        ("crowded", 2, crowded.crowded()),
        ("ops of nets", 2, replayed.ops_of_nets()),
        ("recurrents of nets", 1, replayed.recurrents_of_nets()),
        ("plain recurrents", 1, recurrents.plain()),
        ("pools of nets", 2, replayed.pools_of_nets()),
        ("filters in groups", 1, filters.filters()),
        ("long filters in groups", 1, filters.long_filters(160, seed=35)),
        ("recurrent", 1, recurrents.recurrents()),
        ("usual filters", 1, usual_filters.usual(1600, seed=3)),
        ("frequent filters", 1, drawn_filters.frequent(480, seed=2)),
        ("extreme filters", 1, extreme_filters.extreme(900, seed=4)),
        ("drawn filters", 1, drawn_filters.drawn(800, seed=1)),
        ("attention", 3, compute.attentions()),
        ("functions", 2, functions.functions()),
        ("drawn attention", 2, drawn_attentions.drawn(900, seed=7)),
        ("attention of few heads", 2, drawn_attentions.of_few_heads(160, seed=33)),
        ("attention of few queries", 2, drawn_attentions.of_few_queries(320, seed=34)),
        ("masked attention", 2, drawn_attentions.masked(400, seed=31)),
        ("dropped attention", 2, drawn_attentions.masked_and_dropped(80, seed=32)),
        ("odd sizes", 2, odd_sizes.odd_sizes()),
        ("norms of whole images", 2, drawn_norms.of_whole_images(400, seed=31)),
        ("norms of images", 2, drawn_norms.norms(560, seed=21)),
        ("filters of libraries", 1, library_filters.of_libraries(1900, seed=22)),
        ("filters by channel", 1, library_filters.by_channel(840, seed=23)),
        ("filters of nets", 1, replayed.filters_of_nets()),
    ]
