"""Lists the zoo's cases, or those of a part of the survey as the other scripts take them (NAME:every is a case that is
trained with every layer checkpointed):

    python -m zoo           # in benchmarks/
    python -m zoo last
"""

from __future__ import annotations

import sys

from zoo import zoo
from zoo.survey.types import job_names

if __name__ == "__main__":
    for part in sys.argv[1:]:
        print(*job_names(part))
    if len(sys.argv) == 1:
        for case in zoo().values():
            print(f"{case.name:24} {case.precision:8} {'checkpointed too' if case.checkpoint else ''}")
