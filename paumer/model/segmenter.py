"""The segmenter whose patches pause and merge: walk, score, pause, assemble, decode; early exit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from paumer import criteria, merging, pausing
from paumer.arguments import check, checked
from paumer.criteria import Criterion
from paumer.merging import Merge, take
from paumer.mode import UNPAUSED, Mode, ModeLike, read_mode
from paumer.model.backbone import (
    Backbone,
    Grid,
    Images,
    attention_bias,
    attention_block_macs,
    extend_table,
    gather_table,
)
from paumer.model.config import ModelConfig
from paumer.model.decoders import Decoder, TokenDecoder, to_grid, upsample
from paumer.model.prediction import Prediction
from paumer.model.pretrained import Pretrained
from paumer.model.walk import (
    Branch,
    Coming,
    Merging,
    Pause,
    Step,
    Walk,
    active_counts,
    group_by_count,
)
from paumer.pause_config import Threshold
from paumer.pausing import Stage, Tokens

GivenCriteria = Mapping[str, Criterion]
"""What names of criteria stand for in one call: the random one's seed, the oracle's labels."""


class PausingSegmenter(Pretrained, library_name="paumer", tags=["paumer"]):
    """A ViT segmenter that runs in any mode, given with every call.

    ``aux_head`` gives tokens after any block their class logits (the paper's D_A). It is shared
    by all blocks. ``config`` says how to build the same network again; saving needs it.
    """

    @checked
    def __init__(
        self,
        backbone: Backbone,
        decoder: Decoder,
        aux_head: nn.Module,
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.decoder = decoder
        self.aux_head = aux_head
        self.config = config

    @property
    def _names(self) -> tuple[str, ...]:
        return self.config.classes if self.config else ()

    @property
    def context(self) -> bool:
        """Whether the mean of the patches that pause continues, so that the active ones see it."""
        return self.config is not None and self.config.context

    def forward(
        self,
        images: Images,
        mode: ModeLike = UNPAUSED,
        criterion: Criterion | None = None,
        full_size: bool = True,
    ) -> Prediction:
        """Class logits of normalised images of any size.

        ``criterion`` scores the patches instead of the one that the mode names. Without
        ``full_size`` the logits stay on the decoder's coarse grid, which covers the image padded to
        whole patches.
        """
        if not torch.compiler.is_compiling():
            check("criterion", criterion, Criterion | None)
            check("full_size", full_size, bool)
        mode = read_mode(mode)
        given = {} if criterion is None else {mode.criterion: criterion}
        ((_, prediction),) = self.forward_many(images, [mode], given)
        if not full_size:
            return prediction
        padded = tuple(g * p for g, p in zip(prediction.grid, self.backbone.patch, strict=True))
        height, width = images.shape[2:]
        logits = upsample(prediction.logits, padded)[..., :height, :width]
        return replace(prediction, logits=logits)

    def forward_many(
        self,
        images: Images,
        modes: Sequence[Mode],
        given: GivenCriteria = MappingProxyType({}),
        each_step: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, Prediction]]:
        """The coarse prediction of each mode, with its number in ``modes``.

        Modes form a tree by their stages, and what several have in common is computed once; they
        come in the order in which the tree is walked. ``each_step`` is called after every block and
        every pause, and may raise.
        """
        if not torch.compiler.is_compiling():  # Which reads no annotations.
            check_images(images)
            check("modes", modes, Sequence[Mode])
            check("given", given, GivenCriteria)
            check("each_step", each_step, Callable[[], None] | None)
        images = pad_to_patches(images, self.backbone.patch)
        grid = self.grid(images)
        branch = self.plan(modes, grid, given)
        for step in self.steps(images, branch):
            if each_step:
                each_step()
            for number in step.ends:
                yield number, self.finish(step.walks, grid, modes[number].early_exit)

    def plan(self, modes: Sequence[Mode], grid: Grid, given: GivenCriteria) -> Branch:
        """Modes as a tree of stages."""
        scores: dict[tuple[str, tuple[str, ...]], Criterion] = {}
        chains = []
        for number, mode in enumerate(modes):
            self.check(mode)
            key = (mode.criterion, mode.protect)
            if mode.pause and key not in scores:
                scores[key] = self.criterion(mode, grid, given)
            stages: list[Coming] = []
            for block, merges, amount in mode.stages:
                if merges:
                    assert not isinstance(amount, Threshold)
                    stages.append(Merging(block, amount))
                else:
                    stages.append(Pause(block, amount, scores[key]))
            chains.append((number, stages))
        return Branch.tree(chains)

    def criterion(self, mode: Mode, grid: Grid, given: GivenCriteria) -> Criterion:
        """What scores the patches in a mode: the one place where names become functions."""
        score = given.get(mode.criterion) or criteria.named(mode.criterion, grid)
        protected = [self._names.index(name) for name in mode.protect]
        return criteria.protecting(score, protected) if protected else score

    def steps(self, images: Images, branch: Branch) -> Iterator[Step]:
        """Images of whole patches after every block and every stage of a tree of stages."""
        yield from self._travel([self.start(images)], 0, branch)

    def each_block(self, images: Images) -> Iterator[Tokens]:
        """The tokens of images of whole patches after each block, when nothing pauses."""
        for step in self.steps(images, Branch(ends=(0,))):
            if not step.ends:
                yield step.walks[0].tokens

    def _travel(self, walks: list[Walk], done: int, branch: Branch) -> Iterator[Step]:
        for stage, following in branch.coming:
            for block in range(done + 1, stage.block + 1):
                walks = [self.run_block(walk, block) for walk in walks]
                yield Step(block, walks)
            done = stage.block
            if isinstance(stage, Merging):
                after = [self.merge(walk, stage) for walk in walks]
            else:
                after = [part for walk in walks for part in self.pause(walk, stage)]
            yield Step(done, after, paused=True)
            yield from self._travel(after, done, following)
        if branch.ends:
            left = walks[0].patch_index.shape[1]  # None, where all have left.
            for block in range(done + 1, self.backbone.depth + 1 if left else 0):
                walks = [self.run_block(walk, block) for walk in walks]
                yield Step(block, walks)
            yield Step(self.backbone.depth, walks, ends=branch.ends)

    def start(self, images: Images) -> Walk:
        """Images of whole patches, cut and embedded, before block 1."""
        tokens, table = self.backbone.embed(images)
        batch, patches = tokens.shape[0], tokens.shape[1] - self.backbone.prefix
        patch_index = torch.arange(batch * patches, device=tokens.device).view(batch, patches)
        return Walk(tokens, patch_index, table)

    def run_block(self, walk: Walk, block: int) -> Walk:
        """The walk after ``block``, before which it stands."""
        tokens, table, means = walk.tokens, walk.table, walk.means
        bias = None
        if walk.sizes is not None:
            behind = 0 if means is None else means.shape[1]
            bias = attention_bias(walk.sizes, self.backbone.prefix, behind)
        if means is None:
            return replace(walk, tokens=self.backbone.run_block(block, tokens, table, bias))
        count = tokens.shape[1]
        both = torch.cat([tokens, means], 1)  # They stand behind the patches.
        table = None if table is None else extend_table(table, means.shape[1])
        both = self.backbone.run_block(block, both, table, bias)
        return replace(walk, tokens=both[:, :count], means=both[:, count:])

    def pause(self, walk: Walk, pause: Pause) -> list[Walk]:
        """The walk without the patches that pause now: one, or by threshold several."""
        prefix = self.backbone.prefix
        # The prefix passes the head too: cutting it off first would copy all tokens.
        all_logits = self.aux_head(walk.tokens)[:, prefix:]
        all_scores = pause.criterion(all_logits.detach(), walk.patch_index)
        walks = []
        for images, keep in group_by_count(all_scores, pause.amount):
            part, logits, score = walk, all_logits, all_scores
            if images is not None:
                part, logits, score = walk.select(images), logits[images], score[images]
            kept = pausing.choose(score, keep)
            rows = pausing.rows_of(kept, part.tokens.shape[1], prefix)
            index, sizes = part.patch_index, part.sizes
            stage = Stage(pause.block, part.tokens, index, logits, score, kept, rows, sizes)
            walks.append(
                replace(
                    part,
                    tokens=pausing.pause(part.tokens, rows),
                    patch_index=index.gather(1, kept),
                    table=None if part.table is None else gather_table(part.table, kept),
                    stages=(*part.stages, stage),
                    sizes=None if sizes is None else sizes.gather(1, kept),
                    means=self._means(part, kept) if self.context else None,
                )
            )
        return walks

    def merge(self, walk: Walk, merge: Merging) -> Walk:
        """The walk with the most similar patches merged."""
        index, prefix = walk.patch_index, self.backbone.prefix
        keep, n = merge.amount, index.shape[1]
        if isinstance(keep, float):
            keep = merging.merged_count(n, keep)
            if keep == n:
                return walk
        patches = walk.tokens[:, prefix:]
        match = merging.match(patches, keep)
        sizes = torch.ones_like(patches[..., 0]) if walk.sizes is None else walk.sizes
        tokens, sizes = merging.merge(walk.tokens, sizes, match, prefix)
        return replace(
            walk,
            tokens=tokens,
            patch_index=index.gather(1, match.kept),
            table=None if walk.table is None else gather_table(walk.table, match.kept),
            merges=(*walk.merges, Merge(merge.block, index, match)),
            sizes=sizes,
        )

    def _means(self, walk: Walk, kept: Int[Tensor, "b k"]) -> Float[Tensor, "b m d"] | None:
        """Those of earlier pauses, and that of the patches which pause now, if any do."""
        if kept.shape[1] == walk.patch_index.shape[1]:
            return walk.means
        mean = pausing.mean_paused(walk.tokens, kept, self.backbone.prefix)
        return mean if walk.means is None else torch.cat([walk.means, mean], 1)

    def assemble(self, walk: Walk) -> Tokens:
        """All tokens of a walk's images in their first order, paused ones as they stood."""
        return pausing.assemble(walk.tokens, [(stage.tokens, stage.rows) for stage in walk.stages])

    def finish(self, walks: Sequence[Walk], grid: Grid, early_exit: bool = False) -> Prediction:
        """The coarse prediction of walks that went through all blocks, in the images' order."""
        merged = bool(walks[0].merges)
        decoded = early_exit or (merged and isinstance(self.decoder, TokenDecoder))
        if merged:
            parts = [self._come_apart(walk, early_exit) for walk in walks]
        else:
            parts = [self._exit(walk) if early_exit else self.assemble(walk) for walk in walks]
        whole = parts[0]
        if len(walks) > 1:
            order = torch.cat([walk.images for walk in walks]).argsort()
            whole = torch.cat(parts)[order]
        if decoded:
            logits = to_grid(whole, grid)
        else:
            patches = whole if merged else self.backbone.norm(whole)[:, self.backbone.prefix :]
            logits = self.decoder(patches, grid)
        stages = tuple(stage for walk in walks for stage in walk.stages)
        return Prediction(logits, stages, grid, tuple(m for walk in walks for m in walk.merges))

    def _come_apart(self, walk: Walk, early_exit: bool) -> Float[Tensor, "b n c"]:
        """The logits of all patches, some of which were merged; of PUP, the normed tokens.

        A decoder of tokens runs on merged ones: what stands for several patches counts so often.
        """
        prefix = self.backbone.prefix
        assert walk.sizes is not None
        rows, paused = walk.come_apart()
        own = walk.tokens[:, prefix:]
        if early_exit:
            values = [self._log_probabilities(walk)]
            values += [take(s.logits.log_softmax(-1), p) for s, p in paused]
            return take(torch.cat(values, 1), rows)
        tokens = [own, *(take(s.tokens[:, prefix:], p) for s, p in paused)]
        whole = self.backbone.norm(torch.cat(tokens, 1))
        if not isinstance(self.decoder, TokenDecoder):
            return take(whole, rows)
        sizes = [walk.sizes]
        for stage, places in paused:
            before = torch.ones_like(stage.score) if stage.sizes is None else stage.sizes
            sizes.append(before.gather(1, places))
        return take(self.decoder.token_logits(whole, torch.cat(sizes, 1)), rows)

    def _exit(self, walk: Walk) -> Float[Tensor, "b n classes"]:
        stages = [
            (stage.logits.log_softmax(-1), pausing.rows_of(stage.kept, stage.patch_index.shape[1]))
            for stage in walk.stages
        ]
        return pausing.assemble(self._log_probabilities(walk), stages)

    def _log_probabilities(self, walk: Walk) -> Float[Tensor, "b n classes"]:
        """What the decoder says of the active patches, of which there may be none."""
        # Log-probabilities, because the two heads' raw logits have different scales.
        assert isinstance(self.decoder, TokenDecoder)
        patches = self.backbone.norm(walk.tokens)[:, self.backbone.prefix :]
        if not patches.shape[1]:
            return walk.stages[-1].logits[:, :0]
        return self.decoder.token_logits(patches, walk.sizes).log_softmax(-1)

    def grid(self, images: Images) -> Grid:
        """How many patches there are down and across images of whole patches."""
        height, width = self.backbone.patch
        return images.shape[2] // height, images.shape[3] // width

    def check(self, mode: Mode) -> None:
        """Raise unless this network can run images so."""
        if mode.size is not None:
            raise ValueError(
                f'a network takes images as they are ("{mode}"): '
                f"scale them first, or give the mode to a Predictor"
            )
        mode.pause.check(self.backbone.depth, mode.early_exit)
        last = mode.merge.stages[-1][0] if mode.merge else 0
        if last > self.backbone.depth or (mode.pause.leaves and last > mode.pause.blocks[-1]):
            raise ValueError(
                f'nothing is left to merge after block {last} ("{mode}"): '
                f"this backbone has {self.backbone.depth} blocks"
            )
        if mode.early_exit and not isinstance(self.decoder, TokenDecoder):
            raise ValueError(
                f"early exit is not possible with {type(self.decoder).__name__}: it convolves over "
                f"the full grid of patches, so it needs the paused ones too. "
                f"Use the mask or the linear decoder"
            )
        if unknown := [name for name in mode.protect if name not in self._names]:
            known = ", ".join(self._names) or "no names"
            raise ValueError(f'no class "{unknown[0]}" to protect: the model knows {known}')

    @checked
    def macs(self, size: tuple[int, int], mode: ModeLike = UNPAUSED) -> int:
        """Exact MACs of one image of ``size`` (height, width), by ratios only.

        Counted as usual: convolutions, linear layers and attention products, not upsampling.
        """
        mode = read_mode(mode)
        self.check(mode)
        backbone = self.backbone
        patches = -(-size[0] // backbone.patch[0]) * -(-size[1] // backbone.patch[1])
        counts = active_counts(patches, mode)
        head = sum(m.weight.numel() for m in self.aux_head.modules() if isinstance(m, nn.Linear))
        total = patches * int(backbone.vit.patch_embed.proj.weight.numel())
        active, means, paused = patches, 0, 0
        for number, block in enumerate(backbone.blocks, 1):
            total += attention_block_macs(block, backbone.prefix + active + means) if active else 0
            for _, merges, left in (count for count in counts if count[0] == number):
                if merges:
                    total += (active // 2) * (active - active // 2) * backbone.width
                else:
                    total += (backbone.prefix + active) * head
                    means += self.context and left < active
                    paused += active - left
                active = left
        if mode.early_exit:
            return total + (self.decoder.macs(active) if active else 0)
        whole = not isinstance(self.decoder, TokenDecoder)
        return total + self.decoder.macs(patches if whole else active + paused)


def check_images(images: Images) -> None:
    """Raise unless a network can run these, as far as their type and shape say."""
    check("images", images, Tensor)
    usable = images.ndim == 4 and images.shape[1] == 3 and images.numel() > 0
    if not usable or not images.is_floating_point():
        raise ValueError(
            f"images is of shape {tuple(images.shape)} and type {images.dtype}: give normalised "
            f"images, floats of shape (images, 3, height, width), or any image to a Predictor"
        )


def pad_to_patches(images: Images, patch: tuple[int, int]) -> Float[Tensor, "b 3 height width"]:
    """The images, with zeros added right and below to make whole patches."""
    down, right = -images.shape[2] % patch[0], -images.shape[3] % patch[1]
    return F.pad(images, (0, right, 0, down)) if down or right else images
