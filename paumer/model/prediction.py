"""What a network says of a batch of images."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paumer.merging import Merge
from paumer.model.backbone import Grid
from paumer.pausing import Stage

Blocks = Int[Tensor, "b gh gw"]


@dataclass(frozen=True, eq=False, slots=True)
class Prediction:
    """What ``forward`` gives: class logits, and what happened at each pause.

    ``grid`` is the number of patches down and across. With early exit the logits are
    log-probabilities.
    """

    logits: Float[Tensor, "b classes h w"]
    stages: tuple[Stage, ...]
    grid: Grid
    merges: tuple[Merge, ...] = ()

    def __repr__(self) -> str:
        return f"Prediction(logits of {tuple(self.logits.shape)}, {len(self.stages)} stages)"

    def paused_after(self) -> Blocks:
        """The block after which each patch paused, 0 where it went through all of them."""
        blocks = self._zeros()
        for stage in self.stages:
            blocks[stage.patch_index] = stage.block
            blocks[stage.patch_index.gather(1, stage.kept)] = 0
        # What is part of another patch went as far as that one; the last to be merged first.
        for merge in reversed(self.merges):
            joining, target = merge.pairs()
            blocks = blocks.scatter(0, joining, blocks.index_select(0, target))
        return blocks.view(-1, *self.grid)

    def merged_after(self) -> Blocks:
        """The block after which each patch became part of another one, 0 where it did not."""
        blocks = self._zeros()
        for merge in self.merges:
            blocks = blocks.scatter(0, merge.pairs()[0], merge.block)
        return blocks.view(-1, *self.grid)

    def maps(self) -> tuple[Float[Tensor, "b classes h w"], Blocks, Blocks]:
        """The logits, and the blocks after which patches paused and merged."""
        return self.logits, self.paused_after(), self.merged_after()

    def _zeros(self) -> Int[Tensor, " n"]:
        batch = self.logits.shape[0]  # len() would fix it in exports.
        return self.logits.new_zeros(batch * self.grid[0] * self.grid[1], dtype=torch.long)
