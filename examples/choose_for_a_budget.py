"""Find the best mode for a budget, name it, and use it by its name.

python examples/choose_for_a_budget.py --model runs/mine --data data.yaml --speed-up 1.5
"""

import argparse
from pathlib import Path

from paumer import Measurement, load
from paumer.data.datasets import open_dataset
from paumer.inference.points import write_points
from paumer.measurement import pareto_front
from paumer.model.directory import find_model
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget
from paumer.study.tuning import TuneSettings, tune


def describe(item: Measurement) -> str:
    """What was measured of a mode, in one line."""
    about = "about " if item.predicted else ""
    return f"{item.mode}: mIoU {item.miou or 0:.2%}, {about}{item.speed_up or 0:.2f}x as fast"


def main() -> None:
    """Read the command line, search, and keep the choice as an operating point of the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a model directory or a training run")
    parser.add_argument("--data", default="scenes:8@192x144", help="labelled images of its classes")
    parser.add_argument("--most", type=int, default=12, help="modes to evaluate")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the final timing")
    parser.add_argument("--out", type=Path, default=Path("out/choose"), help="folder for counts")
    budgets = parser.add_mutually_exclusive_group()
    budgets.add_argument("--latency-ms", type=float, help="most milliseconds for an image")
    budgets.add_argument("--speed-up", type=float, help="least speed-up (default: 1.5)")
    budgets.add_argument("--max-drop", type=float, help="most points of mIoU lost")
    arguments = parser.parse_args()

    asked = {name: getattr(arguments, name) for name in ("latency_ms", "speed_up", "max_drop")}
    given = {name: value for name, value in asked.items() if value is not None}
    budget = Budget(**given or {"speed_up": 1.5})

    predictor = load(arguments.model)
    dataset = open_dataset(arguments.data, "val")
    settings = TuneSettings(most=arguments.most, speed=SpeedSettings(rounds=arguments.rounds))
    tuned = tune(predictor, dataset, budget, arguments.out, settings=settings)

    print(f"{len(tuned.evaluated)} modes evaluated; their Pareto front:")
    for item in pareto_front(tuned.evaluated):
        print(f"  {describe(item)}")
    # The finalists were timed in turns on this machine, and the choice is made on those times.
    verdict = "chosen" if tuned.met else "nothing meets it; the nearest is"
    print(f"for {budget}, {verdict}\n  {describe(tuned.choice)}")

    points = {"chosen": tuned.choice} if tuned.met else {}
    write_points(find_model(arguments.model), {**tuned.points, **points})
    again = load(arguments.model)
    for name in again.points:
        result = again.predict(dataset[0].image, name)
        print(f'predict(image, "{name}") runs {result.mode}')


if __name__ == "__main__":
    main()
