"""Images on their way through the encoder, and the tree of stages that they follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer import merging, pausing
from paumer.criteria import Criterion
from paumer.merging import Match, Merge
from paumer.mode import Mode
from paumer.pause_config import Amount, Threshold
from paumer.pausing import Stage, Tokens


@dataclass(frozen=True, slots=True)
class Walk:
    """Images on their way through the encoder, equally many patches of each still active.

    ``table`` is the rotary table of the active patches. ``means`` go through the blocks too, one
    for each pause, where the network has a context. ``sizes`` says how many patches each active one
    stands for, once some were merged.
    """

    tokens: Tokens
    patch_index: Int[Tensor, "b n"]
    table: Tensor | None
    stages: tuple[Stage, ...] = ()
    means: Float[Tensor, "b m d"] | None = None
    merges: tuple[Merge, ...] = ()
    sizes: Float[Tensor, "b n"] | None = None

    @property
    def images(self) -> Int[Tensor, " b"]:
        """Which images of the batch these are."""
        first = self.events[0].patch_index if self.events else self.patch_index
        return first[:, 0] // first.shape[1]

    @property
    def events(self) -> list[Stage | Merge]:
        """Pauses and mergings in the order they happened."""
        both: list[Stage | Merge] = [*self.merges, *self.stages]
        return sorted(both, key=lambda event: (event.block, isinstance(event, Stage)))

    def come_apart(
        self,
    ) -> tuple[Int[Tensor, "b n"], list[tuple[Stage, Int[Tensor, "b _p"]]]]:
        """Where each patch is found once some were merged: see `merging.come_apart`."""
        return merging.come_apart(self.patch_index.shape[1], self.events)

    def select(self, images: Int[Tensor, " g"]) -> "Walk":
        """The same walk of some of its images."""
        stages = []
        for old in self.stages:
            parts = (old.tokens, old.patch_index, old.logits, old.score, old.kept)
            tokens, patch_index, logits, score, kept = (part[images] for part in parts)
            rows = pausing.rows_of(kept, tokens.shape[1], tokens.shape[1] - patch_index.shape[1])
            sizes = None if old.sizes is None else old.sizes[images]
            stages.append(Stage(old.block, tokens, patch_index, logits, score, kept, rows, sizes))
        merges = [
            Merge(old.block, old.patch_index[images], Match(*(part[images] for part in old.match)))
            for old in self.merges
        ]
        table = self.table
        if table is not None and table.dim() == 4:
            table = table[images]
        return replace(
            self,
            tokens=self.tokens[images],
            patch_index=self.patch_index[images],
            table=table,
            stages=tuple(stages),
            means=None if self.means is None else self.means[images],
            merges=tuple(merges),
            sizes=None if self.sizes is None else self.sizes[images],
        )


class Pause(NamedTuple):
    """One pause to come: after which block, how many patches, and what scores them."""

    block: int
    amount: Amount | int
    criterion: Criterion


class Merging(NamedTuple):
    """One merging to come: after which block, and what ratio or how many patches are left."""

    block: int
    amount: float | int


Coming = Pause | Merging


@dataclass(frozen=True)
class Branch:
    """A tree of stages: those that come next, by block, and the numbers of what ends here."""

    coming: Sequence[tuple[Coming, "Branch"]] = ()
    ends: Sequence[int] = ()

    @classmethod
    def tree(cls, chains: Sequence[tuple[int, Sequence[Coming]]]) -> "Branch":
        """Numbered chains of stages as one tree, in which equal beginnings are one."""
        coming: dict[Coming, list[tuple[int, Sequence[Coming]]]] = {}
        for number, stages in chains:
            if stages:
                coming.setdefault(stages[0], []).append((number, stages[1:]))
        return cls(
            [(stage, cls.tree(coming[stage])) for stage in sorted(coming, key=lambda s: s.block)],
            [number for number, stages in chains if not stages],
        )


class Step(NamedTuple):
    """Where images stand: after a block, just after a stage there, or at the end of a branch."""

    block: int
    walks: list[Walk]
    paused: bool = False
    ends: Sequence[int] = ()


def active_counts(patches: int, mode: Mode) -> list[tuple[int, bool, int]]:
    """After which block each stage of a mode happens, whether it merges, and how many are left."""
    counts = []
    for block, merges, amount in mode.stages:
        if isinstance(amount, Threshold):
            raise ValueError(f'the cost of "{mode}" depends on the image: give ratios')
        count = merging.merged_count if merges else pausing.keep_count
        patches = count(patches, amount)
        counts.append((block, merges, patches))
    return counts


def group_by_count(
    score: Float[Tensor, "b n"], amount: Amount | int
) -> list[tuple[Int[Tensor, " g"] | None, int]]:
    """The images that can run together, and how many patches of each continue.

    By ratio that is the whole batch (``None``). By threshold every image pauses what scores
    below it, and images whose counts agree form a group. A whole number is the count itself.
    """
    if isinstance(amount, int | torch.SymInt):
        return [(None, amount)]
    if not isinstance(amount, Threshold):
        return [(None, pausing.keep_count(score.shape[1], amount))]
    # "Not below" rather than "at least": a score that is not a number counts as needing work.
    counts = (~(score < amount.below)).sum(1).clamp(min=1)
    return [((counts == count).nonzero()[:, 0], count) for count in sorted(set(counts.tolist()))]
