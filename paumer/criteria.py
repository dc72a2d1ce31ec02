"""Which patches still need work: functions of one signature; those that score higher continue.

``score(logits, patch_index)`` takes the auxiliary head's logits. ``patch_index`` counts the patches
over the whole batch (see ``pausing.Stage``), so that a criterion can look up what it knows of a
patch. ``named`` gives those that a ``Mode`` can name.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn import functional as F

from paumer.classes import IGNORE

Logits = Float[Tensor, "b n classes"]
PatchIndex = Int[Tensor, "b n"]
Score = Float[Tensor, "b n"]
Criterion = Callable[[Logits, PatchIndex], Score]


def entropy(logits: Logits, patch_index: PatchIndex) -> Score:
    """Posterior entropy in nats: the paper's criterion (equation 4)."""
    log_p = logits.float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def random(seed: int, first: int = 0) -> Criterion:
    """A criterion that knows nothing: the paper's random-pausing baseline (section 4).

    A patch's score follows from the seed and its index alone. ``first`` is added to the indices:
    where a part of a batch begins in the whole.
    """
    offset = (seed * 0xBF58476D1CE4E5B9 + (1 << 63)) % (1 << 64) - (1 << 63)

    def score(logits: Logits, patch_index: PatchIndex) -> Score:
        # The finaliser of splitmix64, in wrapping 64-bit arithmetic.
        number = (patch_index + first + 1) * -7046029254386353131 + offset
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            number = (number ^ _shifted(number, shift)) * factor
        return _shifted(number ^ _shifted(number, 31), 40).float() / 2**24

    return score


def protecting(criterion: Criterion, classes: Sequence[int]) -> Criterion:
    """A criterion by which patches that look like some classes pause after all others."""

    def score(logits: Logits, patch_index: PatchIndex) -> Score:
        predicted = logits.argmax(-1)
        protected = sum(predicted == number for number in classes)
        return criterion(logits, patch_index) + 1000 * protected

    return score


def neighbours(grid: tuple[int, int]) -> Criterion:
    """Mean entropy of a patch and its active neighbours: one that looks beyond the patch itself.

    What was merged into another patch is not looked at; that one stands where it stood.
    """
    patches = grid[0] * grid[1]

    def score(logits: Logits, patch_index: PatchIndex) -> Score:
        entropies, patch = entropy(logits, patch_index), patch_index % patches

        def around(values: Score) -> Score:
            """The mean around each patch, with 0 for those that paused before."""
            image = values.new_zeros((values.shape[0], patches)).scatter(1, patch, values)
            return F.avg_pool2d(image.view(-1, 1, *grid), 3, 1, 1).flatten(1).gather(1, patch)

        return around(entropies) / around(torch.ones_like(entropies)) + entropies / 1000

    return score


def _shifted(number: Int[Tensor, "*s"], bits: int) -> Int[Tensor, "*s"]:
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def oracle(labels: Integer[Tensor, "images patches"], ignore: int = IGNORE) -> Criterion:
    """A criterion that knows the true class of every patch: what is already right pauses first.

    Patches to be ignored pause before all others. This is the upper bound of section 3.1.
    """

    def score(logits: Logits, patch_index: PatchIndex) -> Score:
        truth = labels.to(patch_index.device).flatten()[patch_index].long()
        known = truth != ignore
        truth = torch.where(known, truth, 0)
        p_truth = logits.float().softmax(-1).gather(-1, truth.unsqueeze(-1)).squeeze(-1)
        wrong = (logits.argmax(-1) != truth).float()
        return torch.where(known, wrong + 1 - p_truth, -1.0)

    return score


def patch_labels(
    labels: Integer[Tensor, "b h w"], patch: tuple[int, int], classes: int, ignore: int = IGNORE
) -> Int[Tensor, "b patches"]:
    """The commonest label of every patch, in reading order; ``ignore`` where nothing is labelled.

    The image is padded with ``ignore`` to whole patches. Equal counts go to the lower label.
    """
    height, width = labels.shape[1:]
    down, right = -height % patch[0], -width % patch[1]
    padded = F.pad(labels, (0, right, 0, down), value=ignore)
    pixels = padded.unfold(1, patch[0], patch[0]).unfold(2, patch[1], patch[1]).flatten(3)
    pixels = pixels.flatten(1, 2).long()
    votes = torch.zeros(*pixels.shape[:2], classes + 1, dtype=torch.int32, device=labels.device)
    slot = torch.where(pixels == ignore, classes, pixels)
    votes.scatter_add_(2, slot, torch.ones_like(slot, dtype=torch.int32))
    count, winner = votes[..., :classes].max(-1)
    return torch.where(count > 0, winner, ignore)


def named(name: str, grid: tuple[int, int]) -> Criterion:
    """The criterion of that name for images of so many patches down and across."""
    if name == "entropy":
        return entropy
    if name == "neighbours":
        return neighbours(grid)
    raise ValueError(f'nothing says what "{name}" knows: give the criterion itself')
