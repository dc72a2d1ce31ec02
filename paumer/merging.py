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

Patches = Float[Tensor, "b n d"]
Sizes = Float[Tensor, "b n"]


class Match(NamedTuple):
    """Which patches stay, in their order, which join another one, and which one they join."""

    kept: Int[Tensor, "b k"]
    joining: Int[Tensor, "b m"]
    target: Int[Tensor, "b m"]


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
        _, joining, target = self.match
        index = self.patch_index
        return index.gather(1, joining).flatten(), index.gather(1, target).flatten()


def merged_count(n: int, ratio: float) -> int:
    """How many of ``n`` patches are left when a ratio of them is merged into others."""
    return n - min(int(ratio * n), n // 2)


def match(patches: Patches, keep: int) -> Match:
    """Which patches become part of others, so that ``keep`` of at least two are left.

    Patches at even positions may join one at an odd position: the most similar one, by cosine.
    Those most alike do; equals go to the first.
    """
    batch, n, _ = patches.shape
    patches = patches.detach()
    length = torch.linalg.vector_norm(patches, dim=-1, keepdim=True).clamp(min=1e-12)
    # Cosines but for the length of the one who looks: it is the same for all it looks at.
    similar = patches[:, ::2] @ (patches[:, 1::2] / length[:, 1::2]).transpose(1, 2)
    best, partner = similar.max(-1)
    best = best / length[:, ::2, 0]
    chosen = best.argsort(dim=1, descending=True, stable=True)[:, : n - keep]
    joining, target = 2 * chosen, 2 * partner.gather(1, chosen) + 1
    stays = torch.ones(batch, n, dtype=torch.long, device=patches.device).scatter(1, joining, 0)
    kept = stays.argsort(dim=1, descending=True, stable=True)[:, :keep]
    return Match(kept, joining, target)


def merge(
    patches: Patches, sizes: Sizes, match: Match
) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b k"]]:
    """The means of what goes together, over the patches it stands for, and how many these are."""
    kept, joining, target = match
    together = sizes.scatter_add(1, target, sizes.gather(1, joining))
    weight = sizes / together.scatter(1, joining, together.gather(1, target))
    parts, n = (patches * weight[..., None]).flatten(0, 1), patches.shape[1]
    # Only what joins another is added, which is faster than adding up everything.
    more = parts.index_select(0, pausing.rows_of(joining, n))
    parts = parts.index_add_(0, pausing.rows_of(target, n), more)
    return take(parts.view(patches.shape), kept), together.gather(1, kept)


def spread(values: Int[Tensor, "b k"], match: Match) -> Int[Tensor, "b n"]:
    """Values of those that stayed, given to all that are part of them."""
    kept, joining, target = match
    count = kept.shape[1] + joining.shape[1]
    whole = values.new_zeros(kept.shape[0], count).scatter(1, kept, values)
    return whole.scatter(1, joining, whole.gather(1, target))


def take(values: Float[Tensor, "b n d"], index: Int[Tensor, "b m"]) -> Float[Tensor, "b m d"]:
    """Of each image the rows that ``index`` says."""
    return pausing.pause(values, pausing.rows_of(index, values.shape[1]))


def come_apart(
    active: int, events: Sequence[Merge | Int[Tensor, "b _k"]], counts: Sequence[int]
) -> tuple[Int[Tensor, "b n"], list[Int[Tensor, "b _p"]]]:
    """Where each patch of the images is found once all tokens stand in one row.

    The row begins with the ``active`` tokens; behind them stand those of each pause that paused,
    the first pause first. ``events`` are mergings and, of each pause, the positions that continued,
    in the order they happened, ``counts`` the number of tokens before each of them. Also gives,
    for each pause, which of its tokens paused.
    """
    paused = [
        _others(event, count)
        for event, count in zip(events, counts, strict=True)
        if not isinstance(event, Merge)
    ]
    ends = torch.tensor([0, *(part.shape[1] for part in paused)]).cumsum(0).tolist()
    first = events[0].match.kept if isinstance(events[0], Merge) else events[0]
    batch, device, left = first.shape[0], first.device, len(paused)
    rows = torch.arange(active, device=device).expand(batch, -1)
    for event, count in zip(reversed(events), reversed(counts), strict=True):
        if isinstance(event, Merge):
            rows = spread(rows, event.match)
            continue
        left -= 1
        behind = active + torch.arange(ends[left], ends[left + 1], device=device)
        whole = rows.new_zeros(batch, count).scatter(1, event, rows)
        rows = whole.scatter(1, paused[left], behind.expand(batch, -1))
    return rows, paused


def _others(kept: Int[Tensor, "b k"], count: int) -> Int[Tensor, "b p"]:
    """The positions below ``count`` that are not kept, in order."""
    gone = torch.ones(kept.shape[0], count, dtype=torch.long, device=kept.device).scatter(
        1, kept, 0
    )
    return gone.argsort(dim=1, descending=True, stable=True)[:, : count - kept.shape[1]]


def part_of(merges: Sequence[Merge], patches: int) -> Int[Tensor, " n"]:
    """For each of so many patches the one that stands for it after some mergings, itself if none.

    Patches of all images are counted through, as in ``patch_index``.
    """
    own = torch.arange(patches, device=merges[0].patch_index.device)
    for merge in merges:
        index, (_, joining, target) = merge.patch_index, merge.match
        step = torch.arange(patches, device=own.device)
        step[index.gather(1, joining).flatten()] = index.gather(1, target).flatten()
        own = step[own]
    return own
