"""The zoo: every training step that is measured on a GPU and predicted without one.

`zoo()` gives the cases by name; `zoo(tiny=True)` the same architectures with two layers, short sequences and small
batches, which run on a CPU in seconds and show that a case is spelt right. `make_step(case)` is the predictor's view.
Nothing here needs a GPU. `python -m zoo`, run in benchmarks/, lists the names.

    case.py            what a case is, and the step that the predictor takes of it
    hf.py plain.py     the zoo: transformers' models, and nets in plain torch
    blind.py images.py second.py second_nets.py
                       further ones, each predicted before it was measured
    survey/            what a seed drew: types.py, model types of transformers; nets in plain torch, the first draw's,
                       further/, third/ and fourth/
    libraries/         nets of public libraries, a file for each library and part; `usual*.py` are what people train
"""

from __future__ import annotations

import sys
from functools import cache

from zoo.blind import blind_cases
from zoo.case import Case, make_step
from zoo.hf import hf_cases
from zoo.images import image_net_cases
from zoo.libraries import import_libraries, library_cases
from zoo.plain import torch_cases
from zoo.second import second_cases
from zoo.survey import survey_nets
from zoo.survey.fourth import fourth_nets
from zoo.survey.further import further_nets
from zoo.survey.third import third_nets
from zoo.survey.types import survey_cases

__all__ = ["Case", "make_step", "select", "zoo"]


def zoo(tiny: bool = False) -> dict[str, Case]:
    """All cases by name, in a stable order."""
    cases = {case.name: case for case in (*hf_cases(tiny), *torch_cases(tiny))}
    return cases


def select(names: list[str], tiny: bool = False) -> list[Case]:
    """The named cases, those of the blind tests among them, or all of the zoo when no name is given."""
    known = _known(tiny)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown case {', '.join(unknown)}; known: {', '.join(known)}")
    import_libraries(names)
    return [known[name] for name in names or zoo(tiny)]


def known_names() -> list[str]:
    """Of all cases, also those of the blind tests."""
    return list(_known(tiny=False))


@cache
def _known(tiny: bool) -> dict[str, Case]:
    others = (*blind_cases(tiny), *second_cases(tiny), *image_net_cases(tiny), *survey_cases(tiny))
    draws = (survey_nets, further_nets, third_nets, fourth_nets)
    nets = (case for draw in draws for part in draw(tiny) for case in part)
    return zoo(tiny) | {case.name: case for case in (*others, *nets, *library_cases(tiny))}
