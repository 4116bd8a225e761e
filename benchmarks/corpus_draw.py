"""Traces training steps of public nets and writes down the ops that they are made of, with no GPU.

    python benchmarks/corpus_draw.py --out FOLDER --seconds 1500 --share 0/2     # one half, beside another process
    python benchmarks/corpus_draw.py --out FOLDER --zoo                          # nets of this folder
    python benchmarks/corpus_draw.py --out FOLDER --usual                        # what people train

Nets are those of the libraries' families that are open (libraries_draw.py) or were measured before, in several
variants, and model types of transformers that a survey drew (survey_draw.py), each in another precision, layout and
batch than there: a seed draws them; with `--zoo` those that this folder has in plain torch or by hand, as they are,
whose GPU time was measured; with `--usual` the families of the part usual, each in other sizes, lengths, precisions and
batches than its row has. Every fourth type of transformers, and the families that are still unread, stay
out: other nets are to be predicted blindly. FOLDER/NAME.json.gz: the net, and per distinct op of a steady step how
often it is called, what it is priced at, and by which rule. Nets that are there are not traced again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import math
import random
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import forks
import libraries_draw
import usual_families
from trainfit._time_estimate import price_steady_step
from trainfit.cost import Pricing, pricing_for
from trainfit.cost.described import described
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op
from trainfit.trace import trace_step
from zoo import known_names, libraries, select
from zoo.case import Case, make_step
from zoo.survey import types as survey

SEED, VARIANTS, HELD_OUT = 20261118, 4, 4
LEAST_SHARE = 0.0005
"""Of a step's GPU time: what takes less is left out."""
LIMIT_S, SLOWEST_S = 120, 30
TORCH = "2.11.0+cu130"


@dataclass(frozen=True)
class Job:
    family: str
    library: str
    number: int


def jobs() -> list[Job]:
    lines = map(json.loads, libraries_draw.DRAWN.read_text().splitlines())
    seen = {line["family"] for line in lines if line["part"] != "unread"}
    families = [
        (job.family, job.library)
        for library in libraries.PACKAGES
        if library != "usual"
        for job in libraries_draw.order(library)
        if (job.part == "open" or job.family in seen) and is_written(job.family, library)
    ]
    found = [Job(*family, number) for family in families for number in range(VARIANTS)]
    found += [Job(drawn.name, "transformers", 0) for drawn in survey.read_drawn() if not is_held_out(drawn.type)]
    return random.Random(SEED).sample(found, len(found))


def usual_jobs() -> list[Job]:
    """Those of the part usual, whose rows were measured; families that no row has yet stay out."""
    families = [drawn.family for drawn in libraries.read_drawn() if drawn.part == "usual"]
    found = [Job(family, "usual", number) for family in families for number in range(VARIANTS)]
    return random.Random(SEED).sample(found, len(found))


def zoo_jobs() -> list[Job]:
    """All nets that no library and no survey of transformers has."""
    others = {case.name for case in (*survey.survey_cases(), *libraries.library_cases())}
    names = sorted(set(known_names()) - others)
    return [Job(name, "zoo", 0) for name in random.Random(SEED).sample(names, len(names))]


def is_held_out(model_type: str) -> bool:
    return random.Random(f"{SEED} {model_type}").randrange(HELD_OUT) == 0


def is_written(family: str, library: str) -> bool:
    module = libraries.import_nets(library)
    return not hasattr(module, "WRITTEN") or family in module.WRITTEN


def trace(job: Job) -> dict[str, Any]:
    """The net's line and its ops; runs in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pricing = pricing_for(find_gpu("h200"))
    chance = random.Random(f"{SEED} {job}")
    drawn: Any
    if job.library == "zoo":
        return {"net": {"name": job.family}, **ops_of(select([job.family])[0], False, pricing)}
    if job.library == "transformers":
        drawn = another_survey(next(one for one in survey.read_drawn() if one.name == job.family), chance)
        found = ops_of(survey.case_of(drawn), drawn.checkpointed, pricing)
    else:
        drawn, target_ms = (another_usual if job.library == "usual" else another_of_library)(job, chance)
        found = ops_of(libraries.case_of(drawn), drawn.checkpointed, pricing)
        room = target_ms / found["busy_ms"]
        choice = libraries_draw.MANY_ROWS if job.library == "usual" else libraries_draw.ROWS
        rows = max((rows for rows in choice if rows <= drawn.rows * room), default=1)
        if rows != drawn.rows:
            drawn = replace(drawn, rows=rows)
            found = ops_of(libraries.case_of(drawn), drawn.checkpointed, pricing)
    return {"net": asdict(drawn), **found}


def another_of_library(job: Job, chance: random.Random) -> tuple[libraries.Drawn, float]:
    """As libraries_draw.py draws, with this job's own chance."""
    draw = libraries_draw
    precision = chance.choices(list(draw.PRECISIONS), list(draw.PRECISIONS.values()))[0]
    channels_last, checkpointed = (chance.random() < share for share in (0.5, 0.12))
    target_ms = math.exp(chance.uniform(math.log(20), math.log(150)))
    model, size, made = draw.some_variant(draw.Job(job.family, job.library, "open"), chance)
    net = libraries.net_of(job.library, model, size, tiny=False)
    if precision not in net.precisions:
        precision = chance.choices(net.precisions)[0]
    drawn = libraries.Drawn(
        family=job.family,
        name="_".join(part for part in (job.library, model.replace(".", "_"), size, precision) if part),
        part="open",
        library=job.library,
        model=model,
        size=size,
        precision=precision,
        optimizer=chance.choice(list(libraries.OPTIMIZERS)),
        channels_last=channels_last and net.may_be_channels_last,
        checkpointed=checkpointed and any(hasattr(made.net, method) for method in draw.CHECKPOINTING),
        clip_grad_norm=None,
        rows=net.rows,
    )
    return drawn, target_ms


def another_usual(job: Job, chance: random.Random) -> tuple[libraries.Drawn, float]:
    """By the weights of usual_families.py, with this job's own chance."""
    usual, weighted = usual_families, libraries_draw.weighted
    written = importlib.import_module("zoo.libraries.usual").WRITTEN[job.family]
    size = chance.choice(sorted(written.sizes))
    options = {name: chance.choice(values) for name, values in written.options.items()}
    net = libraries.net_of(job.library, job.family, size, tiny=False, options=options)
    weights = {kind: weight for kind, weight in usual.precisions(job.family).items() if kind in net.precisions}
    precision = weighted(chance, weights)
    drawn = libraries.Drawn(
        family=job.family,
        name="_".join(part for part in (job.library, job.family, size, precision) if part),
        part="usual",
        library=job.library,
        model=job.family,
        size=size,
        precision=precision,
        optimizer=weighted(chance, usual.OPTIMIZERS),
        channels_last=chance.random() < usual.CHANNELS_LAST and net.may_be_channels_last,
        checkpointed=False,
        clip_grad_norm=1.0 if chance.random() < usual.CLIPPED else None,
        rows=net.rows,
        options=options,
    )
    return drawn, math.exp(chance.uniform(*map(math.log, usual.TARGET_MS)))


def another_survey(drawn: survey.Drawn, chance: random.Random) -> survey.Drawn:
    others = [precision for precision in libraries_draw.PRECISIONS if precision != drawn.precision]
    precision = chance.choices(others, [libraries_draw.PRECISIONS[other] for other in others])[0]
    rows = max(1, round(drawn.rows * chance.choice((0.5, 0.75, 1, 1.5, 2))))
    return replace(drawn, precision=precision, rows=rows)


def ops_of(case: Case, checkpointed: bool, pricing: Pricing) -> dict[str, Any]:
    begin_s = time.process_time()
    traced = trace_step(make_step(case, checkpointed), pricing.gpu, torch_version=TORCH)
    step = price_steady_step(traced, pricing)
    lasted_s = time.process_time() - begin_s
    if lasted_s > SLOWEST_S:
        raise libraries_draw.Skipped(f"takes {lasted_s:.0f} s to price")
    busy_ns = sum(cost.kernel_ns for cost in step.costs)
    rows: dict[str, list[Any]] = {}
    for op, cost in zip(step.ops, step.costs, strict=True):
        row = rows.setdefault(json.dumps(signature(op)), [0, 0, cost.rule])
        row[0] += 1
        row[1] += cost.kernel_ns
    kept = {key: row for key, row in rows.items() if row[1] >= LEAST_SHARE * busy_ns}
    return {"busy_ms": busy_ns / 1e6, "ops": [[*json.loads(key), *row] for key, row in kept.items()]}


def signature(op: Op) -> list[Any]:
    return [op.name, *described(op.args, op.kwargs, op.tf32)]


def write(path: Path, line: dict[str, Any]) -> None:
    path.write_bytes(gzip.compress(json.dumps(line).encode(), mtime=0))


def left(out: Path, part: int, parts: int, chosen: list[Job]) -> Iterator[Job]:
    for number, job in enumerate(chosen):
        if number % parts == part and not path_of(out, job).exists():
            yield job


def path_of(out: Path, job: Job) -> Path:
    return out / f"{job.library}_{job.family}_{job.number}.json.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--usual", action="store_true")
    args = parser.parse_args()
    part, parts = map(int, args.share.split("/"))
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = zoo_jobs() if args.zoo else usual_jobs() if args.usual else jobs()
    until_s = time.monotonic() + args.seconds
    for job, found in forks.run(list(left(args.out, part, parts, chosen)), trace, width=1, timeout_s=LIMIT_S):
        if "error" in found:
            text = re.sub(r"\S*/site-packages/", "", found["error"])[:160]
        else:
            text = f"{found['busy_ms']:.1f} ms, {len(found['ops'])} ops"
        print(f"{job.library} {job.family} {job.number}: {text}", flush=True)
        write(path_of(args.out, job), found)
        if time.monotonic() > until_s:
            return


if __name__ == "__main__":
    main()
