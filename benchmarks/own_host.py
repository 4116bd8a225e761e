"""The shipped profile with the host of one run: a profile for steps that were measured in that very run.

    python benchmarks/own_host.py host.partial.gz --out own.json                    # records of measure_host.py
    python benchmarks/second_predict.py --profile own.json --out own_host.jsonl cvt_amp dit_amp:every

Kernels keep the shipped prices; the CPU's costs are what `trainfit calibrate` makes of the run's records.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from trainfit.calibrate.host import host_costs, traced_models
from trainfit.cost.profile import shipped_profile, write_profile
from trainfit.gpus.catalogue import find_gpu

SHIPPED = Path(__file__).parents[1] / "src" / "trainfit" / "cost" / "profiles" / "h200.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="host.partial of measure_host.py, gzipped or not")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in args.records]
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    profile = shipped_profile("h200")
    if profile is None:
        parser.error("the package ships no profile of the H200")
    content = json.loads(SHIPPED.read_text())
    gpu = find_gpu("h200")
    content["host"] = host_costs(records, gpu, profile.tables, traced_models(gpu))
    write_profile(args.out, content)


if __name__ == "__main__":
    main()
