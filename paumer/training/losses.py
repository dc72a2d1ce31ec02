"""The losses of the paper (section 3.2): the main decoder's, the auxiliary head's at each pause.

Both are sums over pixels: the loop, which sees the whole batch, divides by their number. A Dice
loss may be added, which is a sum over images.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from paumer.classes import IGNORE
from paumer.criteria import Criterion
from paumer.merging import Merge, part_of
from paumer.model.backbone import Grid, Images
from paumer.model.decoders import to_grid, upsample
from paumer.model.segmenter import PausingSegmenter, pad_to_patches
from paumer.pausing import Stage

Labels = Int[Tensor, "b h w"]
Scalar = Float[Tensor, ""]
ClassWeights = Float[Tensor, " classes"] | None


@dataclass(frozen=True)
class LossSettings:
    """What is added to the paper's cross entropy, or changed of it; nothing by default."""

    focal: float = 0.0
    label_smoothing: float = 0.0
    dice: bool = False


class Losses(NamedTuple):
    """The parts of the loss: sums over pixels, and over images where Dice is asked for."""

    main: Scalar
    aux: Scalar
    dice: Scalar | None = None


class PixelLoss(nn.Module):
    """What both losses share: cross entropies of enlarged logits, and heads for single blocks."""

    def __init__(
        self,
        network: PausingSegmenter,
        class_weights: ClassWeights = None,
        settings: LossSettings = LossSettings(),  # noqa: B008  # Frozen.
    ) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
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
        """The cross entropy of coarse logits, enlarged to the labels' size."""
        full = self.enlarge(logits, labels)
        loss = partial(F.cross_entropy, full, labels, ignore_index=IGNORE)
        loss_of_class = partial(
            loss, weight=self.class_weights, label_smoothing=self.settings.label_smoothing
        )
        if not self.settings.focal:
            return loss_of_class(reduction="sum")
        unsure = -torch.expm1(-loss(reduction="none"))  # One minus the label's probability.
        # The slope of a root at 0 is infinite.
        factor = unsure.clamp(min=1e-6) ** self.settings.focal
        return (factor * loss_of_class(reduction="none")).sum()

    def dice(self, logits: Float[Tensor, "b classes gh gw"], labels: Labels) -> Scalar:
        """The sum over images of one minus the mean Dice coefficient of the classes they show."""
        known = (labels != IGNORE)[:, None]
        found = self.enlarge(logits, labels).softmax(1) * known
        truth = F.one_hot(labels.where(known[:, 0], 0), found.shape[1]).movedim(-1, 1) * known
        there = truth.sum((2, 3))
        both = 2 * (found * truth).sum((2, 3)) / (found.sum((2, 3)) + there).clamp(min=1)
        shown = there > 0
        missed = ((1 - both) * shown).sum(1) / shown.sum(1).clamp(min=1)
        return missed.sum()

    def enlarge(
        self, logits: Float[Tensor, "b classes gh gw"], labels: Labels
    ) -> Float[Tensor, "b classes h w"]:
        """Coarse logits at the labels' size, the padding cut off."""
        height, width = labels.shape[1:]
        down, across = self.network.backbone.patch
        padded = (-(-height // down) * down, -(-width // across) * across)
        return upsample(logits, padded)[..., :height, :width].float()


class PausingLoss(PixelLoss):
    """The whole network learns, in the mode that was drawn for the step."""

    def forward(self, images: Images, labels: Labels, mode: str, criterion: Criterion) -> Losses:
        """The losses of one part of a batch."""
        prediction = self.network(images, mode, criterion, full_size=False)
        main = self.cross_entropy(prediction.logits, labels)
        dice = self.dice(prediction.logits, labels) if self.settings.dice else None
        stages, merges = prediction.stages, prediction.merges
        return Losses(main, self.aux_loss(stages, prediction.grid, labels, merges), dice)

    def aux_loss(
        self, stages: Sequence[Stage], grid: Grid, labels: Labels, merges: Sequence[Merge] = ()
    ) -> Scalar:
        """The auxiliary head's loss at each pause, over the patches still active there.

        Where patches had paused before, the grid is filled with what the head said of them then,
        which gives no gradient again. Merged patches are what the one is that they are part
        of.
        """
        if not stages:  # Every parameter gets a gradient: several processes wait for it.
            return 0 * torch.cat([p.flatten() for p in self.network.aux_head.parameters()]).sum()
        batch, classes = len(labels), stages[0].logits.shape[2]
        patches, loss = batch * grid[0] * grid[1], torch.zeros((), device=labels.device)
        whole = stages[0].logits.new_zeros(patches, classes)
        for stage in stages:
            rows, values = stage.patch_index.flatten(), stage.logits.flatten(0, 1)
            all_active = len(values) == patches
            whole = values if all_active else whole.detach().index_copy(0, rows, values)
            before = [merge for merge in merges if merge.block <= stage.block]
            shown = whole[part_of(before, patches)] if before else whole
            loss = loss + self.cross_entropy(to_grid(shown.view(batch, -1, classes), grid), labels)
        return loss


class HeadsLoss(PixelLoss):
    """Heads learn on a frozen network: the shared auxiliary one, or one for every block."""

    def __init__(
        self,
        network: PausingSegmenter,
        class_weights: ClassWeights = None,
        settings: LossSettings = LossSettings(),  # noqa: B008  # Frozen.
        own: bool = False,
    ) -> None:
        super().__init__(network, class_weights, settings)
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
