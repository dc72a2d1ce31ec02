"""Temperatures with which the two heads of an early exit are equally sure of themselves.

The auxiliary head's probabilities of a paused patch and the decoder's of its neighbour are blended
when they are enlarged to the picture, so the surer head wins. Dividing logits by a temperature,
fitted where the truth is known, makes the heads as sure as they are right.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from paumer.data.datasets import Dataset
from paumer.pause_config import PauseConfig
from paumer.predict import Predictor
from paumer.study.accuracy import Progress, check_classes, read_ahead
from paumer.study.uncertainty import whole_picture

SHARE = 0.5
"""The share that pauses after a block while its temperature is fitted."""

MOST = 128
"""So many patches of a picture at most speak for a head: all of them are kept in memory."""

LARGEST = 20.0
"""Temperatures lie between one over this and this."""


@dataclass(frozen=True)
class Fit:
    """One head's temperature, over how many patches, and their mean loss without it and with it.

    ``block`` is that after which the auxiliary head spoke, 0 for the decoder.
    """

    block: int
    temperature: float
    patches: int
    before: float
    after: float


def fit_temperatures(
    predictor: Predictor,
    dataset: Dataset,
    indices: Sequence[int],
    progress: Progress | None = None,
) -> list[Fit]:
    """The fit of the auxiliary head after each block, then of the decoder.

    Half of the patches exit after each block in turn, each picture whole; a patch's truth is the
    commonest class in it. A head that no labelled patch was left to stays at a temperature of 1.
    """
    check_classes(predictor, dataset)
    network = copy.copy(predictor.network)
    network.config = replace(predictor.config, temperatures=())
    heads = range(network.backbone.depth + 1)
    ways = [(PauseConfig(((block, SHARE),)), True) for block in heads[1:]]
    said: dict[int, list[Tensor]] = {head: [] for head in heads}
    truths: dict[int, list[Tensor]] = {head: [] for head in heads}
    for done, (sample,) in enumerate(read_ahead(dataset, [[place] for place in indices]), 1):
        images, truth = whole_picture(predictor, dataset, sample)
        with torch.no_grad():
            for _, found in network.forward_many(images, ways):
                log_p = found.logits.flatten(2)[0].T.float().cpu()
                speaker = found.paused_after().flatten().cpu()
                for head in sorted(set(speaker.tolist())):
                    known = (speaker == head) & (truth[0] != dataset.class_set.ignore)
                    chosen = known.nonzero()[:, 0]
                    chosen = chosen[:: max(1, -(-len(chosen) // MOST))]
                    said[head].append(log_p[chosen])
                    truths[head].append(truth[0][chosen])
        if progress:
            progress(done, len(indices))
    return [_fit(head, said[head], truths[head]) for head in (*heads[1:], 0)]


def _fit(block: int, said: Sequence[Tensor], truths: Sequence[Tensor]) -> Fit:
    patches = sum(len(one) for one in truths)
    if not patches:
        return Fit(block, 1.0, 0, math.nan, math.nan)
    log_p, truth = torch.cat(list(said)), torch.cat(list(truths))
    temperature = best_temperature(log_p, truth)
    before, after = (float(F.cross_entropy(log_p / t, truth)) for t in (1.0, temperature))
    return Fit(block, temperature, patches, before, after)


def best_temperature(logits: Float[Tensor, "n classes"], truth: Int[Tensor, " n"]) -> float:
    """The temperature at which the true classes are likeliest, to four digits."""
    place = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([place], max_iter=50, line_search_fn="strong_wolfe")

    def temperature() -> Tensor:
        return (math.log(LARGEST) * place.tanh()).exp()  # Kept within bounds.

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits / temperature(), truth)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(f"{temperature().item():.4g}")
