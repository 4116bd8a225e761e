"""The survey's table: predictions beside what the GPU measured, for the blind cases and those to develop with.

    python benchmarks/survey_table.py > benchmarks/results/survey_h200.md
    python benchmarks/survey_table.py --part development --predicted P.jsonl --measured ROWS.jsonl    # from other files

In: results/survey_h200.jsonl (survey_measure.py), survey_steps_h200.jsonl (measure_host.py: further processes of steps
that wait for the CPU), predictions of second_predict.py: of the blind cases survey_last_predicted_h200.jsonl and
survey_last_without_cudnn_h200.jsonl (fourth draw), survey_unseen_predicted_h200.jsonl (third),
survey_fresh_predicted_h200.jsonl (second), survey_predicted_h200.jsonl (first), of all of them again
survey_last_now_h200.jsonl, survey_unseen_now_h200.jsonl, survey_fresh_now_h200.jsonl and survey_now_h200.jsonl; of the
others survey_third_predicted_h200.jsonl, survey_further_predicted_h200.jsonl, survey_development_predicted_h200.jsonl;
survey_own_host_h200.jsonl (by the prices of kernels that the set was predicted with and what `calibrate` timed of the
host in the very run that measured). Out: tables, and how many rows are within the limits. Errors are predicted /
measured - 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from second_table import ALLOCATED, KERNELS, LAUNCHES, MIB, RESERVED, Job, Rows, again, is_launch_bound, share
from survey_draw import DRAWS
from zoo.images import image_net_cases
from zoo.survey import survey_nets
from zoo.survey.fourth import fourth_nets
from zoo.survey.further import further_nets
from zoo.survey.third import third_nets
from zoo.survey.types import DRAWN, Part, job_names

RESULTS = Path(__file__).parent / "results"
DATASHEET = 0.2
NETS = {"blind": survey_nets, "fresh": further_nets, "unseen": third_nets, "last": fourth_nets}
"""Who gives the nets in plain torch, those to develop with and the blind ones, by the draw's blind part."""
ASKED = {
    "GPU busy": "each within 8%",
    "GPU busy by the datasheet": "each within 20%, median 10%",
    "step, bound by kernels": "each within 8%",
    "step, bound by launches, host of that run": "each within 20% on the host that `calibrate` measured",
    "launch-bound or not": "all recognised, and a range stated",
}
"""What the project asks of each line."""
HEAD = """# Architectures that a seed chose

`python benchmarks/survey_table.py` (H200, torch 2.11.0+cu130, transformers 5.17; each row a process of its own, steps
that wait for the CPU in several). survey_draw.py drew model types of transformers and ways to train them, four times,
no type twice for the same task; zoo/survey, zoo/survey/further, zoo/survey/third and
zoo/survey/fourth draw precision, optimizer, batch and part of nets in plain torch. Predicted with torch 2.11
and no GPU; errors are predicted / measured - 1. "own host": the step by what `calibrate` timed of the host in the run
that measured these rows, for steps that wait for the CPU; everything else is by the profile of then. "now": predicted
by the shipped profile after these rows were measured, no blind test; a dash: as before. Allocated and reserved are of
the classic allocator.
"""
LAST = """The fourth draw's: everything was frozen, then these were predicted with the profile of then and the
predictions committed, then they were measured. The step of those that were predicted to wait for the CPU, or not for
sure to be bound by kernels, is the median of the processes that ran in turns with the host's part of `calibrate`, which
was decided before they ran; the GPU's time ended after 112 s of it, so these are one or two processes each, and three
calibrations of the host. tipsv2_dpt, which waits, was not among them. The types of transformers had never been trained
here, and their tasks are of no earlier draw: 8 find boxes, 4 estimate depth, 5 are backbones, 2 segment images, 2
transcribe speech, one each labels tokens, answers questions and has no head; 57 types before or between them could not
be trained or traced by rule, among them all that read images and write texts. They have been in sight since: prices
were mended with them among others, and the column "now" is by the shipped profile of now. Why those beyond 8% of GPU
busy were off then, as traced ops matched with the profiled kernels in order tell:

- deformable_detr (+34%): `grid_sample` at 5,440 x 4 points per image and head (32 images of 32 channels, fp32), priced
  alike for all four levels: backward 1.04 ms at 8 x 8, 0.72 at 16 x 16, 0.48 at 32 x 32, 0.34 at 64 x 64, priced at
  1.20 each (+13.2 ms of 24 ops), forward 0.06 to 0.08, priced at 0.31 (+5.9); `stack` of their results along the last
  but one dimension (rows of 4), 0.53, priced at 0.18 (-2.1; CatArrayBatchedCopy).
- keyword_spotter (-28%): the weights' gradient of the first layer (one channel to 128, window of 5 x 5, 40 x 101
  places, float16): 6.2 ms, priced at 2.4, twice (sm80_xmma_wgrad_implicit_gemm_indexed_wo_smem), and convolutions of a
  window per channel, channels-last results of mixed formats: 3 x 1 forward 17.0 ms in all, priced at 10.9
  (conv2d_grouped_direct_kernel), backward 17.0, at 13.4; dilated 1 x 3 over one row backward 7.7, at 1.9 (products
  between tensorTransformGeneric), forward 2.3, at 0.9.
- message_passing (-22%): products of 116,736 matrices, which cuBLAS runs as two kernels of 65,535 and 51,201, fp32: 64
  x 64 by a vector 2.06 ms, priced at 1.23 (gemvx), by the transposed 0.79, at 0.30 (gemv2N), column by row to 64 x 64
  0.79, at 0.40 (sm80_xmma_gemm_f32f32 64x64x8); four of each.
- soft_actor_critic (-21%, memory -16%): not prices: the trace lacks the actor's backward pass. The actor runs first
  under `torch.no_grad`, autocast keeps the weights it cast there, and traced, those need no gradient; on the GPU they
  are kept, too (no casts the second time), but the gradient flows. Missing are, float16, the critics' input gradients
  (131,072 x 1,024 by 1,024 x 393, 1.04 ms each, two, cutlass_75_tensorop_f16_s1688gemm), their casts to fp32 (0.15
  each) and sum (0.14), and the actor's own products: 4.3 ms of the 6.1. The rest: `addmm` of 393 to 1,024 features
  1.11, priced at 0.90, six (-1.3; same kernel).
- interest_evolution (+20%): one op, the backward pass of cuDNN's GRU (64 to 128 features, 50 steps of 4,915 rows,
  float16): 8.1 ms (GRU_elementWise_bp2 6.0, RNN_blockPersist_bp_GRU_FMA 1.6), priced at 12.3.
- zoedepth (-12%): indices of relative positions lie in the CPU's memory: 48 copies (Memcpy HtoD, pageable) of 332,929
  indices, 0.13 to 0.34 ms, 8.7 in all, not priced; `index_put` of 332,929 rows of 16 into 2,212 0.21, priced at 0.12,
  24 (-2.2; indexing_backward_kernel_small_stride); one convolution of 1 x 1 from 161 to 80 channels over 384 x 384
  places, bfloat16, backward 3.7 (cutlass_75_wmma_tensorop 3.1), priced at 5.5.
- d_fine (+12%): `grid_sample` backward at 300 x 4 points (64 images of 32 channels, bfloat16): 0.01 ms, priced at 0.17,
  18 ops (+2.8); convolutions with a window of 5 x 5 per channel of 192 channels over 32 x 32 places backward 0.095,
  priced at 0.136, 18 (+0.7; conv_depthwise2d_grad_weight), forward 0.029, at 0.040.
- layered_extraction (-11%): products of 26,214 matrices of 8 x 512, 16 x 512 and 256 x 8 by a vector, float16: 0.13 to
  0.25 ms, priced at 0.03 to 0.12, 15 ops (-2.4 of 2.8 ms; nvjet_sm90_hsh_8x64_64x16, _256x8_64x6, _128x8_64x12).
- factored_video (-10%): batch norms of 45 to 144 channels over 8 x 16 x 56 x 56 places, float16: backward 0.57 to 0.61
  ms, priced at 0.36 to 0.49, 20 ops (-3.5; bn_bw_1C11_kernel_new), forward 0.28 to 0.36, at 0.25 to 0.29 (-1.0;
  bn_fw_tr_1C11_kernel_NCHW); the weights' gradient of the first layer (3 to 45 channels, 1 x 7 x 7) 2.4, at 1.7, two
  (-1.4; sm80_xmma_wgrad_implicit_gemm_indexed_wo_smem).
- conditional_detr, every layer checkpointed (+8%): frozen batch norms, bfloat16 images times a number per channel in
  fp32 ([32,256,128,128]: 0.65 ms, priced at 0.89; elementwise_kernel<128, 4>): 53 ops, 9.0 ms, priced at 12.5.

Memory: depth_anything and prompt_depth_anything by one op, the input gradient of 32 to 32 channels, 3 x 3, of 518 x 518
places, bfloat16, which cuDNN computes by Winograd's transforms with copies in float32 (2.5 GB); parakeet_ctc by the
weight gradient of 1,024 to 1,025 channels, which cuBLAS computes sample by sample. The others were not looked into."""
UNSEEN = """Predicted with the profile of then, and the predictions committed, before they were measured. They have been
in sight since: prices were mended with them among others, and the column "now" is by the shipped profile of now. The
step of those that wait for the CPU is the median of the processes that ran in turns with the host's part of
`calibrate`, which was decided before they ran; the GPU's time ended after 186 s of it, so these are one or two
processes each, and five calibrations of the host. Of the types of transformers 21 are of the tasks of the earlier
draws, the last that were left or could be had with another way to train them; altclip, blip, clipseg (images and
texts), mlcd and yolos (no head) are of tasks that no earlier draw had. Why those beyond 8% of GPU busy were off then,
as traced ops matched with the profiled kernels in order told:

- xdeep_fm: one-dimensional convolutions with windows of 1 from 3,328 to 128 channels over 12,288 rows of 16 places,
  float16: backward 14.4 ms, priced at 22.2, forward 1.2, at 2.4: the longest kernels are cuBLAS's products
  (nvjet_sm90), and those of the backward pass were taken for cuDNN's own.
- sound_codec: one op, the weights' gradient of the first layer (one channel to 32, window of 7, 24,000 places,
  float16): 2.1 ms (sm80_xmma_wgrad_implicit_gemm_indexed_wo_smem), priced at 0.25.
- times_net: convolutions of 64 channels over 2 x 96 to 24 x 8 places in fp32: cuDNN runs those of 5 x 5 and 3 x 3 in
  the frequency domain (cf32 products), 190 to 410 us, priced at 112 to 164, and 11 x 11 ones of small images 305,
  priced at 618; 6.9 ms of kernels match no op. What that takes as workspace, a third of its memory, is not known here.
- swin_unetr: norms of one sample of 96 x 96 x 96 places, bfloat16, 1.4 ms, priced at 0.9, and 3 x 3 x 3 convolutions of
  48 channels there, forward 1.9, priced at 1.2, backward 3.4, at 2.6.
- fourier_operator: two-dimensional complex transforms of 6,528 images of 128 x 128, 1.15 ms, priced at 0.70, and those
  of real numbers 0.60, at 0.45.

Memory beyond the limits was not looked into but for times_net."""
FRESH = """Predicted with the profile of then, and the predictions committed, before they were measured. They have been
in sight since: prices were mended with them among others, and the column "now" is by the shipped profile of now. The
image nets are those of zoo/images.py, written for another test and never measured before. The step of those that wait
for the CPU is the median of the processes that ran in turns with the host's part of `calibrate`, which was decided
before they ran. Why those beyond 8% of GPU busy were off then, as traced ops matched with the profiled kernels in order
told:

- metaclip_2: one op, the weights' gradient of the patches (32 x 32 of 3 channels, bfloat16): 2.1 ms, priced at 13.5;
  cuDNN's old kernel (wgrad_alg1_engine) has 22 samples, and none like it.
- laguna: experts' products in fp32 where torch may round to TF32; they were taken for exact ones.
- zaya: experts' products in fp32, 950 us each, priced at 1363: an untrained router sends most tokens to few experts,
  and few large products take less than many small ones; they were taken for equal.
- world_model: convolutions of 3,072 small images from or to 3 channels (4 x 4 and 6 x 6), 5.1 ms priced at 3.0, 2.4 at
  1.6, 4.2 at 3.3.
- informer: x[:, :, index] of a matrix of indices behind two dimensions, 5.0 ms, priced at 1.9, and twice more.
- gan: the first layer's convolution from one pixel (4 x 4, transposed): 0.83 and 0.37 ms, priced at 0.08 and 0.05.
- unet_plus: channels-last bfloat16 batch norms of 32 channels, 364 us priced at 214, backward 256 at 157.
- sch_net: sums by index (384,000 rows into 25,600) 166 us, priced at 364; gathered rows 232, at 286: they lie in the
  cache.
- deep_ar: an LSTM of 191 steps, 2,458 sequences and 128 units: forward 22.9 ms, priced at 38.1;
  backward 44.7, at 31.4.
- neural_ode: convolutions' gradients 318 us, priced at 275, pointwise ops that write another layout than they read, 27
  at 11, and 4 ms of kernels that match no op.

Memory: cuDNN runs float32 LSTMs of 128 units (deep_ar, dual_path) by a kernel (RNN_blockPersist) whose workspace was
not known; unet3d's weight gradients were taken for products of cuBLASLt. These are equal now; resnext_nhwc stands."""
BLIND = """Predicted, and the predictions committed, before any of them was measured. They have been in sight since:
prices were mended with them among others, and the column "now" is by the shipped profile of now. Why those beyond 8%
were off then, as the names of kernels told:

- temporal_net: cuDNN runs some of its convolutions over time, dilated up to 64 times, by an old kernel
  (implicit_convolve_sgemm), 8 times 5.3 ms of 80, priced at 0.6 and 1.0 each.
- penalised_critic: the double backward of strided convolutions is a convolution by images as windows, priced at 5.5
  and 2.4 ms; the longest kernel takes 1.25.
- optical_flow: grid_sample with corners aligned is cuDNN's kernel, and was taken for torch's own.
- graph_attention: lookups of 1.28 million short rows take 0.6 ns a row, and were priced by bytes.
- conv_mixer: depthwise 9 x 9 convolutions, 1.5 and 4.5 ms, priced at 1.0 and 3.7.
- radiance_field: the gradient of a running product was traced as a loop of n^2 ops, which torch runs for tensor
  subclasses only.
- scanned_gru: running sums along an outer dimension, 240 us, priced at 286 and 380.
- moonshine: adds with a transposed operand, joins of strided pieces, pieces stacked along a fifth dimension, attention
  of heads of 36 that are padded to 40: each priced 15 to 70% too low.
- esmc: products of 512 rows in fp32, 45 ms, priced at 41.
- two_towers: gradients of embedding bags, 2.8 ms, priced at 1.5; a product of 19,661 rows and columns, 4.4, at 3.5.
- high_resolution: float16 batch norms and transposes around convolutions of small images.

cellular_automaton, the one step bound by launches that was beyond 20%, took 70.7 ms in one process and 59.0 in two."""
DEVELOPMENT = """These were measured first and looked into op by op: prices and the host's costs were mended where
they were off, so this is no blind test. Predicted by the shipped profile of now. Their steps are of one process each,
with no calibration of the host beside it. The third draw's; before anything was mended with them, 12 of these 14 were
within 8% of GPU busy, the worst at -37%:"""
SECOND_DEVELOPMENT = """
The second draw's; before anything was mended with them, 15 of these 22 were within 8% of GPU busy.
"""
FIRST_DEVELOPMENT = """
The first draw's. 18 of these steps were timed after a profiler had run in their process, which slows launches
(survey_h200.jsonl says which); the others in several runs whose hosts differed in speed. videomae, vit_msn and pvt were
measured again, since their first batch took memory of its own while it was made.
"""


def read(paths: Sequence[Path]) -> Rows:
    """By case and variant; later rows count."""
    rows = (json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines())
    return {(row["case"], row["variant"]): row for row in rows}


def read_steps(paths: Sequence[Path]) -> dict[Job, list[float]]:
    found: dict[Job, list[float]] = {}
    for row in (json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()):
        if "step_ms" in row:
            found.setdefault((row["case"], row["variant"]), []).append(row["step_ms"])
    return found


def groups_of(part: Part) -> dict[str, list[Job]]:
    """The part's cases by where they come from."""
    draw = next(draw for draw in DRAWS if part in draw.parts)
    groups = {
        "Of transformers": job_names(part),
        "In plain torch": [case.name for case in NETS[draw.blind]()[part == draw.blind]],
        "Image nets": [case.name for case in image_net_cases()] if part == "fresh" else [],
    }
    return {kind: [job_of(name) for name in names] for kind, names in groups.items() if names}


def job_of(name: str) -> Job:
    return name.removesuffix(":every"), "every layer" if name.endswith(":every") else "plain"


def table(jobs: Sequence[Job], predicted: Rows, measured: Rows, own_host: Rows, now: Rows) -> Iterator[str]:
    yield (
        "| case | allocated MiB | error | now | reserved MiB | error | now | GPU busy ms | error | now | by datasheet"
        " | step ms | error | now | own host | range | bound by |"
    )
    yield "|---" * 17 + "|"
    for job in jobs:
        row, found = predicted[job], measured[job]
        bytes_found = found["peak_allocated_bytes"], found["peak_reserved_bytes"]
        later = now.get(job, row)
        cells = [job[0] + (", every layer checkpointed" if job[1] != "plain" else "")]
        for value, second, truth in zip(row["classic"], later["classic"], bytes_found, strict=True):
            cells += [f"{truth / MIB:.1f}", share(value, truth), again(share(value, truth), share(second, truth))]
        for kind, truth in (("busy_ms", found["kernels_ms"]), ("step_ms", found["step_ms"])):
            first = error(row[kind], truth)
            cells += [f"{truth:.1f}", first, again(first, error(later[kind], truth))]
            if kind == "busy_ms":
                cells.append(error(row["datasheet_ms"], truth))
        cells += [error(own_host[job]["step_ms"], found["step_ms"]) if job in own_host else ""]
        cells += ["{:.0f} to {:.0f}".format(*row["range_ms"]), bound(row, found)]
        yield f"| {' | '.join(cells)} |"


def error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}"


def bound(row: dict[str, Any], found: dict[str, Any]) -> str:
    text = "launches" if is_launch_bound(found) else "kernels"
    if is_launch_bound(found) == row["launch_bound"]:
        return text
    return f"{text}, predicted otherwise" + ("" if row["launch_bound_sure"] else " but not for sure")


def summary(jobs: Sequence[Job], predicted: Rows, measured: Rows, own_host: Rows) -> Iterator[str]:
    waiting = [job for job in jobs if is_launch_bound(measured[job])]
    working = [job for job in jobs if job not in waiting]

    def counted(what: str, chosen: Sequence[Job], errors: Sequence[float], limit: float) -> str:
        equal = f", {sum(one == 0 for one in errors)} equal" if limit in (ALLOCATED, RESERVED) else ""
        beyond = [f"{job[0]} {one:+.1%}" for job, one in zip(chosen, errors, strict=True) if abs(one) > limit]
        sizes = [abs(one) for one in errors]
        return (
            f"- {what}: median {statistics.median(sizes):.2%}, {len(errors) - len(beyond)} of {len(errors)} within"
            f" {limit:.1%}{equal}{asked(what)}" + (f"; beyond: {', '.join(beyond)}" if beyond else "") + "."
        )

    for index, (what, limit) in enumerate((("allocated", ALLOCATED), ("reserved", RESERVED))):
        errors = [predicted[job]["classic"][index] / measured[job][f"peak_{what}_bytes"] - 1 for job in jobs]
        yield counted(what, jobs, errors, limit)
    for what, kind, truth, chosen, rows, limit in (
        ("GPU busy", "busy_ms", "kernels_ms", jobs, predicted, KERNELS),
        ("GPU busy by the datasheet", "datasheet_ms", "kernels_ms", jobs, predicted, DATASHEET),
        ("step, bound by kernels", "step_ms", "step_ms", working, predicted, KERNELS),
        ("step, bound by launches", "step_ms", "step_ms", waiting, predicted, LAUNCHES),
        ("step, bound by launches, host of that run", "step_ms", "step_ms", waiting, own_host, LAUNCHES),
    ):
        if chosen and rows:
            yield counted(what, chosen, [rows[job][kind] / measured[job][truth] - 1 for job in chosen], limit)
    stated = [job for job in jobs if "busy_range_ms" in predicted[job]]
    if stated:
        ranges = [predicted[job]["busy_range_ms"] for job in stated]
        near = sum(low <= measured[job]["kernels_ms"] <= high for job, (low, high) in zip(stated, ranges, strict=True))
        wide = statistics.median(math.sqrt(high / low) - 1 for low, high in ranges)
        yield (
            f"- GPU busy within the range that is stated for it, {wide:.1%} to either side in the middle: {near} of"
            f" {len(stated)}."
        )
    right = [job for job in jobs if is_launch_bound(measured[job]) == predicted[job]["launch_bound"]]
    sure = [job for job in jobs if predicted[job]["launch_bound_sure"]]
    inside = [
        job
        for job in jobs
        if predicted[job]["range_ms"][0] <= measured[job]["step_ms"] <= predicted[job]["range_ms"][1]
    ]
    yield (
        f"- launch-bound or not: {len(right)} of {len(jobs)} recognised, {sum(job in right for job in sure)} of the"
        f" {len(sure)} said to be sure; the step within the stated range in {len(inside)}"
        f"{asked('launch-bound or not')}."
    )


def asked(what: str) -> str:
    return f" (asked: {ASKED[what]})" if what in ASKED else ""


def section(part: Part, predicted: Rows, measured: Rows, own_host: Rows, now: Rows) -> Iterator[str]:
    groups = groups_of(part)
    wanted = list(itertools.chain(*groups.values()))
    jobs = [job for job in wanted if job in measured and "classic" in predicted.get(job, ())]
    yield from table(jobs, predicted, measured, own_host, now)
    for kind, members in (*groups.items(), ("All", jobs)):
        chosen = [job for job in members if job in jobs]
        yield f"\n{kind}, {len(chosen)} cases:\n"
        if chosen:
            yield from summary(chosen, predicted, measured, own_host)
    if now:
        yield "\nAll, predicted now, which is no blind test:\n"
        yield from summary(jobs, now, measured, {})
    if missing := [" ".join(job) for job in wanted if job not in jobs]:
        yield f"- not measured, or not predicted: {', '.join(missing)}."


def with_all_steps(rows: Rows, steps: dict[Job, list[float]], in_turns: Collection[Job] = ()) -> Rows:
    """The rows that were profiled, with the median step of all processes; where the row's own process had run a
    profiler before, or the others ran in turns with the host's calibration, its step counts only if there is no other.
    """
    found: Rows = {}
    for job, row in rows.items():
        later = steps.get(job, [])
        own = [] if later and (job in in_turns or row.get("step_ms_after_a_profiler")) else [row["step_ms"]]
        if "kernels_ms" in row:
            found[job] = row | {"step_ms": statistics.median([*own, *later])}
    return found


def document() -> Iterator[str]:
    blind = {part: list(itertools.chain(*groups_of(part).values())) for part in ("last", "unseen", "fresh")}
    steps = read_steps([RESULTS / "survey_steps_h200.jsonl"])
    measured = with_all_steps(
        read([RESULTS / "survey_h200.jsonl"]), steps, in_turns=[*itertools.chain(*blind.values())]
    )
    own_host = read([RESULTS / "survey_own_host_h200.jsonl"])

    def again_blind(part: Part, predicted: str, now: str) -> Iterator[str]:
        return section(part, read([RESULTS / predicted]), measured, own_host, read([RESULTS / now]))

    yield HEAD
    yield f"## Last\n\n{LAST}\n"
    yield from again_blind("last", "survey_last_predicted_h200.jsonl", "survey_last_now_h200.jsonl")
    yield "\nAll, by a CPU build of torch, which guesses cuDNN's kernels; blind, too:\n"
    without = read([RESULTS / "survey_last_without_cudnn_h200.jsonl"])
    yield from summary([job for job in blind["last"] if job in measured and job in without], without, measured, {})
    yield f"\n## Blind in the third draw\n\n{UNSEEN}\n"
    yield from again_blind("unseen", "survey_unseen_predicted_h200.jsonl", "survey_unseen_now_h200.jsonl")
    yield f"\n## Blind in the second draw\n\n{FRESH}\n"
    yield from again_blind("fresh", "survey_fresh_predicted_h200.jsonl", "survey_fresh_now_h200.jsonl")
    yield f"\n## Blind in the first draw\n\n{BLIND}\n"
    yield from again_blind("blind", "survey_predicted_h200.jsonl", "survey_now_h200.jsonl")
    yield f"\n## Development\n\n{DEVELOPMENT}\n"
    yield from section("third", read([RESULTS / "survey_third_predicted_h200.jsonl"]), measured, {}, {})
    yield SECOND_DEVELOPMENT
    yield from section("further", read([RESULTS / "survey_further_predicted_h200.jsonl"]), measured, {}, {})
    yield FIRST_DEVELOPMENT
    yield from section("development", read([RESULTS / "survey_development_predicted_h200.jsonl"]), measured, {}, {})
    yield "\n## Left out\n"
    lines = [json.loads(line) for line in DRAWN.read_text().splitlines()]
    yield from (f"- {line['type']}: {' '.join(line['skipped'].split())}" for line in lines if "skipped" in line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=get_args(Part))
    parser.add_argument("--predicted", type=Path, nargs="+", default=[])
    parser.add_argument("--measured", type=Path, nargs="+", default=[])
    parser.add_argument("--timed", type=Path, nargs="+", default=[])
    args = parser.parse_args()
    if args.part is None:
        print(*document(), sep="\n")
        return
    measured = with_all_steps(read(args.measured), read_steps(args.timed))
    print(*section(args.part, read(args.predicted), measured, {}, {}), sep="\n")


if __name__ == "__main__":
    main()
