"""What else was tried with late exits by neighbours, one thing at a time; kept in results/.

    python benchmarks/exit_options.py --data camvid:DIR

On runs of benchmarks/evidence.py, the configurations that were measured there. *calibrated*: with
temperatures fitted on some of the very pictures that count, which flatters them. *blended*,
*settled*: what exits is mixed half and half with the mean of the probabilities around it, or
replaced by it where the two disagree. *protected*: pedestrians and bicyclists pause after all
others.
"""

import argparse
from dataclasses import replace

import record
import torch
from torch.nn import functional as F

from paumer import Inference, PauseConfig, PausingSegmenter, Predictor, load
from paumer.commands.console import write_jsonl
from paumer.criteria import neighbours
from paumer.data.datasets import open_dataset
from paumer.study.accuracy import evaluate
from paumer.study.sweep import describe, load_tallies, save_tallies
from paumer.study.temperature import fit_temperatures

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
record.add_arguments(parser)
parser.add_argument("--seeds", type=int, nargs="*", default=[0])
parser.add_argument("options", nargs="*", default=["protected", "blended", "settled", "calibrated"])
arguments = parser.parse_args()
torch.set_num_threads(1)
dataset = open_dataset(arguments.data, "val")


class Blended(PausingSegmenter):
    """Early exits half and half with what is around them."""

    def finish(self, walks, grid, early_exit=False):
        """The prediction, mixed where patches exit."""
        found = super().finish(walks, grid, early_exit)
        return replace(found, logits=self.mixed(found.logits)) if early_exit else found

    def mixed(self, logits):
        """Log-probabilities half and half."""
        own, around = _around(logits)
        return ((own + around) / 2).clamp_min(1e-9).log()


class Settled(Blended):
    """Early exits with what is around them where the two disagree."""

    def mixed(self, logits):
        """Log-probabilities of the one or the other."""
        own, around = _around(logits)
        agree = own.argmax(1, keepdim=True) == around.argmax(1, keepdim=True)
        return torch.where(agree, own, around).clamp_min(1e-9).log()


def _around(logits):
    own = logits.softmax(1)
    return own, F.avg_pool2d(own, 3, 1, 1, count_include_pad=False)


for seed in arguments.seeds:
    folder = arguments.results / f"paumer-{seed}"
    pauses = [PauseConfig.parse(text) for text in load_tallies(folder / "val-neighbours.npz")]
    for option in arguments.options:
        kept = folder / f"val-{option}.npz"
        if kept.exists():
            continue
        predictor = load(arguments.runs / f"paumer-{seed}")
        network = predictor.network
        guarded = ("pedestrian", "bicyclist") if option == "protected" else ()
        if option in ("blended", "settled"):
            kind = Blended if option == "blended" else Settled
            parts = network.backbone, network.decoder, network.aux_head, network.config
            predictor = Predictor(kind(*parts))
        if option == "calibrated":
            fits = fit_temperatures(predictor, dataset, range(0, len(dataset), 8))
            temperatures = tuple(fit.temperature for fit in fits)
            network.config = replace(network.config, temperatures=temperatures)
        ways = [
            Inference(pause=p, early_exit=bool(p), criterion=neighbours, protect=guarded, batch=4)
            for p in pauses
        ]
        tallies = evaluate(predictor, dataset, ways)
        size = predictor.input_size(dataset[0].labels.shape, ways[0])
        lines = [m.to_json() for m in describe(predictor, ways, tallies, size, data="camvid val")]
        save_tallies(kept, ways, tallies)
        write_jsonl(kept.with_suffix(".jsonl"), lines)
        for way, tally in zip(ways, tallies, strict=True):
            print(f"paumer-{seed} {option} {way.pause}: {100 * tally.miou:.2f}", flush=True)
