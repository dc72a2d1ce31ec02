"""The losses of the paper (section 3.2): the main decoder's, the auxiliary head's at each pause.

Both are sums over pixels: the loop, which sees the whole batch, divides by their number.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from paumer.classes import IGNORE
from paumer.criteria import Criterion
from paumer.model.backbone import Images
from paumer.model.decoders import Grid, to_grid, upsample
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.pausing import Stage

Labels = Int[Tensor, "b h w"]
Scalar = Float[Tensor, ""]
ClassWeights = Float[Tensor, " classes"] | None


class Losses(NamedTuple):
    """The parts of the loss, each a sum over pixels."""

    main: Scalar
    aux: Scalar


class PixelLoss(nn.Module):
    """What both losses share: cross entropies of enlarged logits, and heads for single blocks."""

    def __init__(self, network: PausingSegmenter, class_weights: ClassWeights = None) -> None:
        super().__init__()
        self.network = network
        self.heads = nn.ModuleList()
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)

    def pixel_weights(self, labels: Labels) -> Float[Tensor, "b h w"]:
        """What each pixel counts: nothing where it has no label."""
        known = labels != IGNORE
        if self.class_weights is None:
            return known.float()
        classes = labels.clamp(max=len(self.class_weights) - 1)
        return torch.where(known, self.class_weights[classes], 0)

    def cross_entropy(self, logits: Float[Tensor, "b classes gh gw"], labels: Labels) -> Scalar:
        """The cross entropy of coarse logits, enlarged to the labels' size, the padding cut off."""
        height, width = labels.shape[1:]
        down, across = self.network.backbone.patch
        padded = (-(-height // down) * down, -(-width // across) * across)
        return F.cross_entropy(
            upsample(logits, padded)[..., :height, :width].float(),
            labels,
            weight=self.class_weights,
            ignore_index=IGNORE,
            reduction="sum",
        )


class PausingLoss(PixelLoss):
    """The whole network learns, in the mode that was drawn for the step."""

    def forward(self, images: Images, labels: Labels, mode: str, criterion: Criterion) -> Losses:
        """The losses of one part of a batch."""
        prediction = self.network(images, mode, criterion, full_size=False)
        main = self.cross_entropy(prediction.logits, labels)
        return Losses(main, self.aux_loss(prediction.stages, prediction.grid, labels))

    def aux_loss(self, stages: Sequence[Stage], grid: Grid, labels: Labels) -> Scalar:
        """The auxiliary head's loss at each pause, over the patches still active there.

        Where patches had paused before, the grid is filled with what the head said of them then,
        from which nothing is learnt again.
        """
        loss = torch.zeros((), device=labels.device)
        for n, stage in enumerate(stages):
            if n == 0:
                whole = stage.logits
            else:
                rows, values = stage.patch_index.flatten(), stage.logits.flatten(0, 1)
                whole = whole.detach().flatten(0, 1).index_copy(0, rows, values).view_as(whole)
            loss = loss + self.cross_entropy(to_grid(whole, grid), labels)
        return loss


class HeadsLoss(PixelLoss):
    """Heads learn on a frozen network: the shared auxiliary one, or one for every block."""

    def __init__(
        self, network: PausingSegmenter, class_weights: ClassWeights = None, own: bool = False
    ) -> None:
        super().__init__(network, class_weights)
        network.requires_grad_(False)
        network.aux_head.requires_grad_(not own)
        if own:
            heads = (copy.deepcopy(network.aux_head) for _ in range(network.backbone.depth))
            self.heads.extend(heads).requires_grad_(True)

    def forward(self, images: Images, labels: Labels, *_: object) -> Losses:
        """The losses of one part of a batch: the heads' over all blocks, without pausing."""
        network = self.network.eval()  # Frozen: no dropped path disturbs what the heads learn from.
        images = pad_to_patches(images, network.backbone.patch)
        with torch.no_grad():
            tokens = list(network.each_block(images))
        heads = self.heads or [network.aux_head] * network.backbone.depth
        loss = images.new_zeros(())
        for head, after in zip(heads, tokens, strict=True):
            logits = to_grid(head(after[:, network.backbone.prefix :]), network.grid(images))
            loss = loss + self.cross_entropy(logits, labels)
        return Losses(loss, torch.zeros_like(loss))
