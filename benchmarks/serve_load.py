"""What the service does under load, part by part, against what it should do.

    python benchmarks/serve_load.py                             all parts of the built-in model
    python benchmarks/serve_load.py levels --model runs/mine        one part
    python benchmarks/serve_load.py levels --levels 0.5 2 --arrivals 100    a short look

    levels   Poisson arrivals at multiples of capacity; beside it the same service without pausing
    steps    the load rises and falls
    traces   replays of benchmarks/load: the governor, each fixed point, one that knows the future
    hostile  slow clients, clients that hang up, bombs and floods: what they cost the others
    mixed    clients with mixed modes: masks against those computed alone
    workers  two processes that compute against one; one is killed
    batches  throughput at full batches against the bare predictor
    proxy    two replicas behind nginx against two bare predictors; one is killed

The service runs on one core with one thread, the load comes from another one. S0 is what an image
takes without pausing when the service is never idle, C0 = 1/S0; the latency target is 8 S0. What
is found goes to load.json, where parts measured before stay, and load.png.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from serve_client import make_images
from serve_compare import batches, mixed, proxy, workers
from serve_disturbed import hostile
from serve_levels import Images, Outcome, Setting, levels, measure, steps
from serve_traces import traces
from traces import FOLDER

LOADED: dict[str, Callable[[argparse.Namespace, Images, Setting], Outcome]] = {
    "levels": levels,
    "steps": steps,
    "traces": traces,
    "hostile": hostile,
}
COMPARED = {"mixed": mixed, "batches": batches, "workers": workers, "proxy": proxy}


def parse_arguments() -> argparse.Namespace:
    """The options, with all parts where none is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, parts = parser.add_argument, [*LOADED, *COMPARED]
    add("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)} (default: all)")
    add("--model", default="street-tiny")
    add("--out", type=Path, default=Path("out/load"))
    add("--size", type=int, default=256)
    add("--patience", type=float, default=8, help="latency target in S0")
    add("--cores", type=int, nargs=2, default=[0, 1], help="of service and load")
    add("--seed", type=int, default=0)
    add("--levels", type=float, nargs="+", default=[0.5, 1, 1.5, 2, 3])
    add("--arrivals", type=int, default=600, help="of each level")
    add("--steps", type=float, nargs="+", default=[2.0, 3.0])
    add("--traces", type=Path, default=FOLDER, help="folder of files with a time on each line")
    add("--windows", type=int, default=8, help="with, and as many without, hostile clients")
    add("--window", type=float, default=30, help="seconds of one")
    add("--slow", type=int, default=200)
    add("--cancelled", type=int, default=1000)
    add("--bodies", type=int, default=300)
    add("--requests", type=int, default=1000, help="with mixed modes")
    add("--rounds", type=int, default=5, help="of comparisons with the bare predictor")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"no part {', '.join(unknown)}: choose from {', '.join(parts)}")
    arguments.parts = arguments.parts or parts
    return arguments


def main() -> None:
    """Run the parts and print whether what is wanted holds."""
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "load.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    images = make_images(16, (arguments.size, arguments.size))
    everywhere = os.sched_getaffinity(0)
    for part in arguments.parts:
        # Replicas take both cores, and whoever asks them has to share.
        os.sched_setaffinity(
            0, everywhere if part in ("proxy", "workers") else [arguments.cores[1]]
        )
        if part in LOADED:
            setting = measure(arguments, images)  # Each time: machines drift.
            numbers, verdicts = LOADED[part](arguments, images, setting)
            times = {"s0_ms": 1000 * setting.s0, "target_ms": 1000 * setting.target}
        else:
            numbers, verdicts = COMPARED[part](arguments)
            times = {}
        found[part] = {"found": numbers, "verdicts": verdicts, **times}
        file.write_text(json.dumps(found, indent=1))
    rows = [row for part in arguments.parts for row in found[part]["verdicts"]]
    width = max(len(row[0]) for row in rows)
    for what, target, measured, holds in rows:
        print(f"{what:{width}}  {target:>9}  {measured:>9}  {'holds' if holds else 'FAILS'}")


if __name__ == "__main__":
    main()
