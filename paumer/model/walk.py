"""Images on their way through the encoder, and the tree of pauses that they follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from paumer import pausing
from paumer.criteria import Criterion
from paumer.pause_config import Amount
from paumer.pausing import Stage


@dataclass(frozen=True, slots=True)
class Walk:
    """Images on their way through the encoder, equally many patches of each still active.

    ``table`` is the rotary table of the active patches. ``means`` go through the blocks too, one
    for each pause, where the network has a context.
    """

    tokens: Float[Tensor, "b t d"]
    patch_index: Int[Tensor, "b n"]
    table: Tensor | None
    stages: tuple[Stage, ...] = ()
    means: Float[Tensor, "b m d"] | None = None

    @property
    def images(self) -> Int[Tensor, " b"]:
        """Which images of the batch these are."""
        first = self.stages[0].patch_index if self.stages else self.patch_index
        return first[:, 0] // first.shape[1]

    def select(self, images: Int[Tensor, " g"]) -> "Walk":
        """The same walk of some of its images."""
        stages = []
        for old in self.stages:
            parts = (old.tokens, old.patch_index, old.logits, old.score, old.kept)
            tokens, patch_index, logits, score, kept = (part[images] for part in parts)
            rows = pausing.rows_of(kept, tokens.shape[1], tokens.shape[1] - patch_index.shape[1])
            stages.append(Stage(old.block, tokens, patch_index, logits, score, kept, rows))
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
        )


class Pause(NamedTuple):
    """One pause to come: after which block, how many patches, and what scores them."""

    block: int
    amount: Amount | int
    criterion: Criterion


@dataclass(frozen=True)
class Branch:
    """A tree of pauses: those that come next, by block, and the numbers of what ends here."""

    pauses: Sequence[tuple[Pause, "Branch"]] = ()
    ends: Sequence[int] = ()

    @classmethod
    def chain(cls, pauses: Sequence[Pause]) -> "Branch":
        """Pauses one after the other, with one end."""
        branch = cls(ends=(0,))
        for pause in reversed(pauses):
            branch = cls(pauses=((pause, branch),))
        return branch

    @classmethod
    def tree(cls, chains: Sequence[tuple[int, Sequence[Pause]]]) -> "Branch":
        """Numbered chains of pauses as one tree, in which equal beginnings are one."""
        coming: dict[Pause, list[tuple[int, Sequence[Pause]]]] = {}
        for number, pauses in chains:
            if pauses:
                coming.setdefault(pauses[0], []).append((number, pauses[1:]))
        return cls(
            [(pause, cls.tree(coming[pause])) for pause in sorted(coming, key=lambda p: p.block)],
            [number for number, pauses in chains if not pauses],
        )


class Step(NamedTuple):
    """Where images stand: after a block, just after a pause there, or at the end of a branch."""

    block: int
    walks: list[Walk]
    paused: bool = False
    ends: Sequence[int] = ()
