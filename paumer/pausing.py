"""The idea: some patches pause and keep their representation, the others continue.

Paper, section 3 and appendix A. Pure functions of tensors and numbers. Tokens are laid out as
timm lays them out, ``prefix`` tokens (class, distillation, registers) first: these never pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Tokens = Float[Tensor, "b t d"]


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """One pause: the tokens before it, which patches continued, and why.

    ``patch_index`` counts patches over the whole batch: image * patches per image + patch, in
    reading order. ``kept`` points into ``patch_index``, ``rows`` into the images' tokens laid end
    to end. A batch pausing by threshold has a stage for every group of images of which equally
    many patches continued.
    """

    block: int
    tokens: Tokens
    patch_index: Int[Tensor, "b n"]
    logits: Float[Tensor, "b n classes"]
    score: Float[Tensor, "b n"]
    kept: Int[Tensor, "b k"]
    rows: Int[Tensor, " r"]
    sizes: Float[Tensor, "b n"] | None = None
    """How many patches each one stands for, where some were merged before."""

    def __repr__(self) -> str:
        images, before = self.score.shape
        return (
            f"Stage(after block {self.block}, {self.kept.shape[1]} of {before} patches continue, "
            f"images: {images})"
        )


def keep_count(n: int, ratio: float) -> int:
    """How many of ``n`` patches continue when a ratio of them pauses: none at 1, else some."""
    return max(1, n - int(ratio * n)) if ratio < 1 else 0


def choose(score: Float[Tensor, "b n"], keep: int) -> Int[Tensor, "b k"]:
    """The patches with the ``keep`` highest scores, in reading order; equals go to the first."""
    best = score.argsort(dim=1, descending=True, stable=True)[:, :keep]
    return best.sort(dim=1).values


def rows_of(kept: Int[Tensor, "b k"], length: int, prefix: int = 0) -> Int[Tensor, " r"]:
    """Which rows of a batch of ``length`` tokens each, laid end to end, continue."""
    batch, device = kept.shape[0], kept.device
    kept = kept + prefix
    if prefix:
        kept = torch.cat([torch.arange(prefix, device=device).expand(batch, -1), kept], 1)
    if batch > 1:
        kept = kept + torch.arange(0, batch * length, length, device=device)[:, None]
    return kept.flatten()


def pause(tokens: Tokens, rows: Int[Tensor, " r"]) -> Float[Tensor, "b s d"]:
    """The tokens in ``rows``, which continue. The others are left behind."""
    return tokens.flatten(0, 1).index_select(0, rows).view(tokens.shape[0], -1, tokens.shape[2])


def mean_paused(tokens: Tokens, kept: Int[Tensor, "b k"], prefix: int) -> Float[Tensor, "b 1 d"]:
    """The mean of the patches that pause, of which there must be some."""
    patches = tokens[:, prefix:]
    paused = torch.ones_like(patches[..., :1]).scatter(1, kept[..., None], 0.0)
    return (patches * paused).sum(1, keepdim=True) / (patches.shape[1] - kept.shape[1])


def assemble(
    tokens: Float[Tensor, "b s d"],
    stages: Sequence[tuple[Float[Tensor, "b _t d"], Int[Tensor, " _r"]]],
) -> Tokens:
    """All tokens in their first order: active ones as they are now, paused ones as they were.

    ``stages`` are the pauses in the order they happened, each as what it was given: the tokens
    before it, and the rows that continued.
    """
    if not stages:
        return tokens
    # Written over the first stage's tokens, later stages last, so that only these are copied.
    (first, rows), *later = stages
    afters = [*(before for before, _ in later), tokens]
    canvas = first.flatten(0, 1).index_copy(0, rows, afters[0].flatten(0, 1))
    for (_, kept_rows), after in zip(later, afters[1:], strict=True):
        rows = rows[kept_rows]
        canvas = canvas.index_copy_(0, rows, after.flatten(0, 1))
    return canvas.view(first.shape)
