"""Its sibling: similar patches become one, and come apart again as copies.

The idea is ToMe's (Bolya et al., 2023), by tokens after a block. Every second patch looks for the
most similar one among the others, and the pairs that are most alike become one token: the mean over
all patches that it stands for. Attention counts a token as often as it stands for a patch. Pure
functions of tensors and numbers; prefix tokens are never merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer import pausing
from paumer.pausing import Stage, Tokens

Patches = Float[Tensor, "b n d"]
Sizes = Float[Tensor, "b n"]


class Match(NamedTuple):
    """Which patches stay, in their order, which join another one, and which one they join.

    ``into`` points into ``kept``.
    """

    kept: Int[Tensor, "b k"]
    joining: Int[Tensor, "b m"]
    into: Int[Tensor, "b m"]


@dataclass(frozen=True, slots=True)
class Merge:
    """One merging: the patches before it, and who joined whom.

    ``patch_index`` is as in `pausing.Stage`; ``match`` points into it.
    """

    block: int
    patch_index: Int[Tensor, "b n"]
    match: Match

    def pairs(self) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
        """The patches of the whole batch that joined others, and those they joined."""
        kept, joining, into = self.match
        index = self.patch_index
        target = index.gather(1, kept).gather(1, into)
        return index.gather(1, joining).flatten(), target.flatten()


def merged_count(n: int, ratio: float) -> int:
    """How many of ``n`` patches are left when a ratio of them is merged into others."""
    return n - min(int(ratio * n), n // 2)


def match(patches: Patches, keep: int) -> Match:
    """Which patches become part of others, so that ``keep`` of at least two are left.

    Patches at even positions may join one at an odd position: the most similar one, by cosine.
    Those most alike do; equals go to the first.
    """
    n, patches = patches.shape[1], patches.detach()
    length = torch.linalg.vector_norm(patches, dim=-1, keepdim=True).clamp(min=1e-12)
    # Cosines but for the length of the one who looks: it is the same for all it looks at.
    similar = patches[:, ::2] @ (patches[:, 1::2] / length[:, 1::2]).transpose(1, 2)
    best = similar.amax(-1) / length[:, ::2, 0]
    chosen = best.argsort(dim=1, descending=True, stable=True)[:, : n - keep]
    # Whom they join is asked of the chosen only: finding where a maximum lies is slow.
    joining, target = 2 * chosen, 2 * take(similar, chosen).argmax(-1) + 1
    stays = _all_but(joining, n)
    return Match(_where(stays, keep), joining, stays.cumsum(1).gather(1, target) - 1)


def merge(
    tokens: Tokens, sizes: Sizes, match: Match, prefix: int = 0
) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b k"]]:
    """The tokens that are left, and how many patches each stands for.

    What others joined is the mean over all of these; the ``prefix`` stays as it is.
    """
    kept, joining, into = match
    left = pausing.pause(tokens, pausing.rows_of(kept, tokens.shape[1], prefix))
    more = sizes.gather(1, joining)
    sizes = sizes.gather(1, kept).scatter_add(1, into, more)
    # A mean moves towards what joins it, by its part of the whole: only these rows are touched.
    way = take(tokens, joining + prefix) - take(left, into + prefix)
    way = way * (more / sizes.gather(1, into))[..., None]
    rows = pausing.rows_of(into + prefix, left.shape[1])
    left.flatten(0, 1).index_add_(0, rows, way.flatten(0, 1))
    return left, sizes


def spread(values: Int[Tensor, "b k"], match: Match) -> Int[Tensor, "b n"]:
    """Values of those that stayed, given to all that are part of them."""
    kept, joining, into = match
    count = kept.shape[1] + joining.shape[1]
    whole = values.new_zeros(kept.shape[0], count).scatter(1, kept, values)
    return whole.scatter(1, joining, values.gather(1, into))


def take(values: Float[Tensor, "b n d"], index: Int[Tensor, "b m"]) -> Float[Tensor, "b m d"]:
    """Of each image the rows that ``index`` says."""
    return pausing.pause(values, pausing.rows_of(index, values.shape[1]))


def come_apart(
    active: int, events: Sequence[Stage | Merge]
) -> tuple[Int[Tensor, "b n"], list[tuple[Stage, Int[Tensor, "b _p"]]]]:
    """Where each patch of the images is found once all tokens stand in one row.

    The row begins with the ``active`` tokens; behind them stand those of each pause that paused,
    the first pause first. ``events`` are all pauses and mergings in the order they happened. Also
    gives the pauses, each with which of its tokens paused.
    """
    paused = []
    for event in events:
        if isinstance(event, Stage):
            n, kept = event.patch_index.shape[1], event.kept
            paused.append((event, _where(_all_but(kept, n), n - kept.shape[1])))
    end = active + sum(places.shape[1] for _, places in paused)
    images, device = events[0].patch_index.shape[0], events[0].patch_index.device
    rows, left = torch.arange(active, device=device).expand(images, -1), list(paused)
    for event in reversed(events):
        if isinstance(event, Merge):
            rows = spread(rows, event.match)
        else:
            _, places = left.pop()
            begin = end - places.shape[1]
            own = torch.arange(begin, end, device=device).expand(images, -1)
            whole = torch.zeros_like(event.patch_index).scatter(1, event.kept, rows)
            rows, end = whole.scatter(1, places, own), begin
    return rows, paused


def _all_but(index: Int[Tensor, "b m"], n: int) -> Int[Tensor, "b n"]:
    """Ones, with zeros at ``index``."""
    return index.new_ones(index.shape[0], n).scatter(1, index, 0)


def _where(ones: Int[Tensor, "b n"], count: int) -> Int[Tensor, "b k"]:
    """Where the ones are, in order; each image has ``count`` of them."""
    return ones.argsort(dim=1, descending=True, stable=True)[:, :count]


def part_of(merges: Sequence[Merge], patches: int) -> Int[Tensor, " n"]:
    """For each of so many patches the one that stands for it after some mergings, itself if none.

    Patches of all images are counted through, as in ``patch_index``.
    """
    own = torch.arange(patches, device=merges[0].patch_index.device)
    for merge in merges:
        joining, target = merge.pairs()
        step = torch.arange(patches, device=own.device)
        step[joining] = target
        own = step[own]
    return own
