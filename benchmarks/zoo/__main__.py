"""Lists the zoo's cases: `python -m zoo`, run in benchmarks/."""

from __future__ import annotations

from zoo import zoo

if __name__ == "__main__":
    for case in zoo().values():
        print(f"{case.name:24} {case.precision:8} {'checkpointed too' if case.checkpoint else ''}")
