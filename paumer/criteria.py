"""Who still needs work: functions of one signature, ``score(logits, places)``, higher goes on.

``logits`` are the auxiliary head's. ``places`` number the patches over the whole batch (see
``pausing.Stage``), so that a criterion can look up what it knows of a patch. One that looks at
neighbours is told first how many patches a picture has down and across: ``OnGrid``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn import functional as F

Criterion = Callable[[Float[Tensor, "b n classes"], Int[Tensor, "b n"]], Float[Tensor, "b n"]]


@dataclass(frozen=True)
class OnGrid:
    """A criterion for pictures of any size: ``make`` gives that of a grid, (down, across)."""

    make: Callable[[tuple[int, int]], Criterion]


AnyCriterion = Criterion | OnGrid


def on_grid(criterion: AnyCriterion, grid: tuple[int, int]) -> Criterion:
    """The criterion for pictures of so many patches down and across."""
    return criterion.make(grid) if isinstance(criterion, OnGrid) else criterion


def entropy(
    logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """Posterior entropy in nats: the paper's criterion (equation 4)."""
    log_p = logits.float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def confidence(
    logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """One minus the probability of the likeliest class."""
    return 1 - logits.float().softmax(-1).amax(-1)


def margin(
    logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """One minus the lead, in probability, of the likeliest class over the second."""
    first, second = logits.float().softmax(-1).topk(2, dim=-1).values.unbind(-1)
    return 1 - (first - second)


def random(generator: torch.Generator) -> Criterion:
    """A criterion that knows nothing: the paper's random-pausing baseline (section 4)."""

    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        shape = logits.shape[:2]
        return torch.rand(shape, generator=generator, device=generator.device).to(logits.device)

    return score


def random_by_place(seed: int, first: int = 0) -> Criterion:
    """A random score that follows from the seed and a patch's place, whoever asks and how often.

    ``first`` is added to the places: where a part of a batch begins in the whole.
    """
    offset = (seed * 0xBF58476D1CE4E5B9 + (1 << 63)) % (1 << 64) - (1 << 63)

    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        # The finaliser of splitmix64, in wrapping 64-bit arithmetic.
        number = (places + first + 1) * -7046029254386353131 + offset
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            number = (number ^ _shifted(number, shift)) * factor
        return _shifted(number ^ _shifted(number, 31), 40).float() / 2**24

    return score


def protecting(criterion: AnyCriterion, classes: Sequence[int]) -> AnyCriterion:
    """A criterion by which patches that look like some classes pause after all others."""
    chosen = tuple(classes)
    if isinstance(criterion, OnGrid):
        return OnGrid(lambda grid: _protecting(criterion.make(grid), chosen))
    return _protecting(criterion, chosen)


def _protecting(criterion: Criterion, classes: tuple[int, ...]) -> Criterion:
    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        found = logits.argmax(-1)
        held = torch.zeros_like(found, dtype=torch.bool)
        for number in classes:
            held |= found == number
        return criterion(logits, places) + 1000 * held

    return score


def near_borders(criterion: Criterion, grid: tuple[int, int]) -> Criterion:
    """A criterion by which a patch needs as much work as the neediest of its neighbours.

    ``grid`` is how many patches a picture has down and across; ``borders`` finds it out. Patches
    that have paused say nothing of their neighbours.
    """

    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        own = criterion(logits, places)
        # Its own score decides between neighbours that share the neediest one.
        spread = F.max_pool2d(_laid_out(own, places, grid, -torch.inf), 3, 1, 1)
        return _gathered(spread, places) + own / 1000

    return score


def among_neighbours(criterion: Criterion, grid: tuple[int, int]) -> Criterion:
    """A criterion by which a patch needs as much work as it and its neighbours do on average.

    ``grid`` is how many patches a picture has down and across; ``neighbours`` finds it out.
    Patches that have paused do not count.
    """

    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        own = criterion(logits, places)
        total = F.avg_pool2d(_laid_out(own, places, grid, 0.0), 3, 1, 1)
        count = F.avg_pool2d(_laid_out(torch.ones_like(own), places, grid, 0.0), 3, 1, 1)
        return _gathered(total, places) / _gathered(count, places) + own / 1000

    return score


def _laid_out(
    values: Float[Tensor, "b n"], places: Int[Tensor, "b n"], grid: tuple[int, int], rest: float
) -> Float[Tensor, "b 1 down across"]:
    """The values of patches where they lie in their pictures, ``rest`` elsewhere."""
    patches = grid[0] * grid[1]
    canvas = values.new_full((values.shape[0], patches), rest)
    return canvas.scatter(1, places % patches, values).view(-1, 1, *grid)


def _gathered(
    values: Float[Tensor, "b 1 down across"], places: Int[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """The values at the places of patches."""
    flat = values.flatten(1)
    return flat.gather(1, places % flat.shape[1])


def _shifted(number: Int[Tensor, "*s"], bits: int) -> Int[Tensor, "*s"]:
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def oracle(labels: Integer[Tensor, "pictures patches"], ignore: int = 255) -> Criterion:
    """A criterion that knows the true class of every patch: what is already right pauses first.

    Patches to be ignored pause before all others. This is the upper bound of section 3.1.
    """

    def score(
        logits: Float[Tensor, "b n classes"], places: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        truth = labels.to(places.device).flatten()[places].long()
        known = truth != ignore
        truth = torch.where(known, truth, 0)
        p_truth = logits.float().softmax(-1).gather(-1, truth.unsqueeze(-1)).squeeze(-1)
        wrong = (logits.argmax(-1) != truth).float()
        return torch.where(known, wrong + 1 - p_truth, -1.0)

    return score


def patch_labels(
    labels: Integer[Tensor, "b h w"], patch: tuple[int, int], classes: int, ignore: int = 255
) -> Int[Tensor, "b patches"]:
    """The commonest label of every patch, in reading order; ``ignore`` where nothing is labelled.

    The picture is padded with ``ignore`` to whole patches. Equal counts go to the lower label.
    """
    height, width = labels.shape[1:]
    down, right = -height % patch[0], -width % patch[1]
    padded = torch.nn.functional.pad(labels, (0, right, 0, down), value=ignore)
    pixels = padded.unfold(1, patch[0], patch[0]).unfold(2, patch[1], patch[1]).flatten(3)
    pixels = pixels.flatten(1, 2).long()
    votes = torch.zeros(*pixels.shape[:2], classes + 1, dtype=torch.int32, device=labels.device)
    slot = torch.where(pixels == ignore, classes, pixels)
    votes.scatter_add_(2, slot, torch.ones_like(slot, dtype=torch.int32))
    count, winner = votes[..., :classes].max(-1)
    return torch.where(count > 0, winner, ignore)


borders = OnGrid(partial(near_borders, entropy))
"""By entropy, where a patch needs as much work as the neediest of its neighbours."""

neighbours = OnGrid(partial(among_neighbours, entropy))
"""By entropy, where a patch needs as much work as it and its neighbours do on average."""

CRITERIA: dict[str, AnyCriterion] = {
    "entropy": entropy,
    "confidence": confidence,
    "margin": margin,
    "borders": borders,
    "neighbours": neighbours,
}
"""Criteria that need nothing but the logits, by name."""


def named(name: str) -> AnyCriterion:
    """The criterion of that name."""
    if name not in CRITERIA:
        raise ValueError(f'no criterion "{name}": choose one of {", ".join(CRITERIA)}')
    return CRITERIA[name]


def name_of(criterion: AnyCriterion) -> str | None:
    """The name of a criterion, if it has one."""
    return next((name for name, known in CRITERIA.items() if known is criterion), None)
