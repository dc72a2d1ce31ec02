"""Its sibling: similar patches become one, and come apart again as copies.

The idea is ToMe's (Bolya et al., 2023), by tokens after a block. Every second patch looks for the
most similar one among the others, and the pairs that are most alike become one token: the mean over
all patches that it stands for. Attention counts a token as often as it stands for a patch. Pure
functions of tensors and numbers; prefix tokens are never merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Patches = Float[Tensor, "b n d"]
Sizes = Float[Tensor, "b n"]


@dataclass(frozen=True, slots=True)
class Merge:
    """One merging: the patches before it, which of them stay, and where each one went.

    ``patch_index`` is as in `pausing.Stage`. ``kept`` points into it, and ``owner`` says which of
    the ``kept`` each patch is part of now.
    """

    block: int
    patch_index: Int[Tensor, "b n"]
    kept: Int[Tensor, "b k"]
    owner: Int[Tensor, "b n"]


def merged_count(n: int, ratio: float) -> int:
    """How many of ``n`` patches are left when a ratio of them is merged into others."""
    return n - min(int(ratio * n), n // 2)


def match(patches: Patches, keep: int) -> tuple[Int[Tensor, "b k"], Int[Tensor, "b n"]]:
    """Which ``keep`` of the patches stay, in their order, and which of these each one joins.

    Patches at even positions may join one at an odd position: the most similar one, by cosine.
    Those most alike do; equals go to the first.
    """
    batch, n, _ = patches.shape
    unit = F.normalize(patches.detach(), dim=-1)
    best, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(-1)
    chosen = best.argsort(dim=1, descending=True, stable=True)[:, : n - keep]
    source, target = 2 * chosen, 2 * partner.gather(1, chosen) + 1
    stays = torch.ones(batch, n, dtype=torch.long, device=patches.device).scatter(1, source, 0)
    position = stays.cumsum(1) - 1
    owner = position.scatter(1, source, position.gather(1, target))
    kept = stays.argsort(dim=1, descending=True, stable=True)[:, :keep]
    return kept, owner


def merge(
    patches: Patches, sizes: Sizes, owner: Int[Tensor, "b n"], keep: int
) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b k"]]:
    """The means of what goes together, over the patches it stands for, and how many these are."""
    together = sizes.new_zeros(sizes.shape[0], keep).scatter_add(1, owner, sizes)
    weight = (sizes / together.gather(1, owner))[..., None]
    target = owner[..., None].expand_as(patches)
    means = torch.zeros_like(patches[:, :keep]).scatter_add(1, target, patches * weight)
    return means, together


def attention_bias(sizes: Sizes, before: int = 0, behind: int = 0) -> Float[Tensor, "b 1 1 t"]:
    """What makes attention see a token as often as it stands for a patch.

    There are ``before`` and ``behind`` other tokens, each of which stands for itself.
    """
    return F.pad(sizes.log(), (before, behind))[:, None, None]


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
    first = events[0].owner if isinstance(events[0], Merge) else events[0]
    batch, device, left = first.shape[0], first.device, len(paused)
    rows = torch.arange(active, device=device).expand(batch, -1)
    for event, count in zip(reversed(events), reversed(counts), strict=True):
        if isinstance(event, Merge):
            rows = rows.gather(1, event.owner)
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
