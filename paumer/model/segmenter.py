"""The segmenter whose patches pause: walk, score, pause, assemble, decode; early exit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from paumer import criteria, pausing
from paumer.criteria import Criterion
from paumer.mode import UNPAUSED, Mode, ModeLike, read_mode
from paumer.model.backbone import Backbone, attention_block_macs, extend_table, gather_table
from paumer.model.config import ModelConfig
from paumer.model.decoders import Decoder, TokenDecoder, to_grid, upsample
from paumer.model.pretrained import Pretrained
from paumer.model.walk import Branch, Pause, Step, Walk
from paumer.pausing import Stage

GivenCriteria = Mapping[str, Criterion]
"""What names of criteria stand for in one call: the random one's seed, the oracle's labels."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What ``forward`` gives: class logits, and what happened at each pause.

    ``grid`` is the number of patches down and across. With early exit the logits are
    log-probabilities.
    """

    logits: Float[Tensor, "b classes h w"]
    stages: tuple[Stage, ...]
    grid: tuple[int, int]

    def __repr__(self) -> str:
        return f"Prediction(logits of {tuple(self.logits.shape)}, {len(self.stages)} stages)"

    def paused_after(self) -> Int[Tensor, "b gh gw"]:
        """The block after which each patch paused, 0 where it went through all of them."""
        blocks = torch.zeros(
            self.logits.shape[0] * self.grid[0] * self.grid[1],  # len() would fix it in exports.
            dtype=torch.long,
            device=self.logits.device,
        )
        for stage in self.stages:
            blocks[stage.patch_index] = stage.block
            blocks[stage.patch_index.gather(1, stage.kept)] = 0
        return blocks.view(-1, *self.grid)


class PausingSegmenter(Pretrained, library_name="paumer", tags=["paumer"]):
    """A ViT segmenter that runs in any mode, given with every call.

    ``aux_head`` gives tokens after any block their class logits (the paper's D_A). It is shared
    by all blocks. ``config`` says how to build the same network again; saving needs it.
    """

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
        images: Float[Tensor, "b 3 h w"],
        mode: ModeLike = UNPAUSED,
        criterion: Criterion | None = None,
        full_size: bool = True,
    ) -> Prediction:
        """Class logits of normalised images of any size.

        ``criterion`` scores the patches instead of the one that the mode names. Without
        ``full_size`` the logits stay on the decoder's coarse grid, which covers the image padded to
        whole patches.
        """
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
        images: Float[Tensor, "b 3 h w"],
        modes: Sequence[Mode],
        given: GivenCriteria = MappingProxyType({}),
        each_step: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, Prediction]]:
        """The coarse prediction of each mode, with its number in ``modes``.

        Modes form a tree by their stages, and what several have in common is computed once; they
        come in the order in which the tree is walked. ``each_step`` is called after every block and
        every pause, and may raise.
        """
        images = pad_to_patches(images, self.backbone.patch)
        grid = self.grid(images)
        branch = self.plan(modes, grid, given)
        for step in self.steps(images, branch):
            if each_step:
                each_step()
            for number in step.ends:
                yield number, self.finish(step.walks, grid, modes[number].early_exit)

    def plan(self, modes: Sequence[Mode], grid: tuple[int, int], given: GivenCriteria) -> Branch:
        """Modes as a tree of pauses."""
        scores: dict[tuple[str, tuple[str, ...]], Criterion] = {}
        chains = []
        for number, mode in enumerate(modes):
            self.check(mode)
            key = (mode.criterion, mode.protect)
            if mode.pause and key not in scores:
                scores[key] = self.criterion(mode, grid, given)
            stages = [Pause(block, amount, scores[key]) for block, amount in mode.pause.stages]
            chains.append((number, stages))
        return Branch.tree(chains)

    def criterion(
        self, mode: Mode, grid: tuple[int, int], given: GivenCriteria = MappingProxyType({})
    ) -> Criterion:
        """What scores the patches in a mode: the one place where names become functions."""
        score = given.get(mode.criterion) or criteria.named(mode.criterion, grid)
        protected = [self._names.index(name) for name in mode.protect]
        return criteria.protecting(score, protected) if protected else score

    def steps(self, images: Float[Tensor, "b 3 h w"], branch: Branch) -> Iterator[Step]:
        """Images of whole patches after every block and every pause of a tree of pauses."""
        yield from self._travel([self.start(images)], 0, branch)

    def each_block(self, images: Float[Tensor, "b 3 h w"]) -> Iterator[Float[Tensor, "b t d"]]:
        """The tokens of images of whole patches after each block, when nothing pauses."""
        for step in self.steps(images, Branch(ends=(0,))):
            if not step.ends:
                yield step.walks[0].tokens

    def _travel(self, walks: list[Walk], done: int, branch: Branch) -> Iterator[Step]:
        for pause, following in branch.pauses:
            for block in range(done + 1, pause.block + 1):
                walks = [self.run_block(walk, block) for walk in walks]
                yield Step(block, walks)
            done = pause.block
            paused = [part for walk in walks for part in self.pause(walk, pause)]
            yield Step(done, paused, paused=True)
            yield from self._travel(paused, done, following)
        if branch.ends:
            for block in range(done + 1, self.backbone.depth + 1):
                walks = [self.run_block(walk, block) for walk in walks]
                yield Step(block, walks)
            yield Step(self.backbone.depth, walks, ends=branch.ends)

    def start(self, images: Float[Tensor, "b 3 h w"]) -> Walk:
        """Images of whole patches, cut and embedded, before block 1."""
        tokens, table = self.backbone.embed(images)
        batch, patches = tokens.shape[0], tokens.shape[1] - self.backbone.prefix
        patch_index = torch.arange(batch * patches, device=tokens.device).view(batch, patches)
        return Walk(tokens, patch_index, table)

    def run_block(self, walk: Walk, block: int) -> Walk:
        """The walk after ``block``, before which it stands."""
        tokens, table, means = walk.tokens, walk.table, walk.means
        if means is None:
            return replace(walk, tokens=self.backbone.run_block(block, tokens, table))
        count = tokens.shape[1]
        both = torch.cat([tokens, means], 1)  # They stand behind the patches.
        table = None if table is None else extend_table(table, means.shape[1])
        both = self.backbone.run_block(block, both, table)
        return replace(walk, tokens=both[:, :count], means=both[:, count:])

    def pause(self, walk: Walk, pause: Pause) -> list[Walk]:
        """The walk without the patches that pause now: one, or by threshold several."""
        prefix = self.backbone.prefix
        # The prefix passes the head too: cutting it off first would copy all tokens.
        all_logits = self.aux_head(walk.tokens)[:, prefix:]
        all_scores = pause.criterion(all_logits.detach(), walk.patch_index)
        walks = []
        for images, keep in pausing.group_by_count(all_scores, pause.amount):
            part, logits, score = walk, all_logits, all_scores
            if images is not None:
                part, logits, score = walk.select(images), logits[images], score[images]
            kept = pausing.choose(score, keep)
            rows = pausing.rows_of(kept, part.tokens.shape[1], prefix)
            stage = Stage(pause.block, part.tokens, part.patch_index, logits, score, kept, rows)
            walks.append(
                replace(
                    part,
                    tokens=pausing.pause(part.tokens, rows),
                    patch_index=part.patch_index.gather(1, kept),
                    table=None if part.table is None else gather_table(part.table, kept),
                    stages=(*part.stages, stage),
                    means=self._means(part, kept) if self.context else None,
                )
            )
        return walks

    def _means(self, walk: Walk, kept: Int[Tensor, "b k"]) -> Float[Tensor, "b m d"] | None:
        """Those of earlier pauses, and that of the patches which pause now, if any do."""
        if kept.shape[1] == walk.patch_index.shape[1]:
            return walk.means
        mean = pausing.mean_paused(walk.tokens, kept, self.backbone.prefix)
        return mean if walk.means is None else torch.cat([walk.means, mean], 1)

    def assemble(self, walk: Walk) -> Float[Tensor, "b t d"]:
        """All tokens of a walk's images in their first order, paused ones as they stood."""
        return pausing.assemble(walk.tokens, [(stage.tokens, stage.rows) for stage in walk.stages])

    def finish(
        self, walks: Sequence[Walk], grid: tuple[int, int], early_exit: bool = False
    ) -> Prediction:
        """The coarse prediction of walks that went through all blocks, in the images' order."""
        parts = [self._exit(walk) if early_exit else self.assemble(walk) for walk in walks]
        whole = parts[0]
        if len(walks) > 1:
            order = torch.cat([walk.images for walk in walks]).argsort()
            whole = torch.cat(parts)[order]
        if early_exit:
            logits = to_grid(whole, grid)
        else:
            logits = self.decoder(self.backbone.norm(whole)[:, self.backbone.prefix :], grid)
        return Prediction(logits, tuple(s for walk in walks for s in walk.stages), grid)

    def _exit(self, walk: Walk) -> Float[Tensor, "b n classes"]:
        # Log-probabilities, because the two heads' raw logits have different scales.
        assert isinstance(self.decoder, TokenDecoder)
        patches = self.backbone.norm(walk.tokens)[:, self.backbone.prefix :]
        log_p = self.decoder.token_logits(patches).log_softmax(-1)
        stages = [
            (stage.logits.log_softmax(-1), pausing.rows_of(stage.kept, stage.patch_index.shape[1]))
            for stage in walk.stages
        ]
        return pausing.assemble(log_p, stages)

    def grid(self, images: Float[Tensor, "b 3 h w"]) -> tuple[int, int]:
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
        if mode.early_exit and not isinstance(self.decoder, TokenDecoder):
            raise ValueError(
                f"early exit is not possible with {type(self.decoder).__name__}: it convolves over "
                f"the full grid of patches, so it needs the paused ones too. "
                f"Use the mask or the linear decoder"
            )
        if unknown := [name for name in mode.protect if name not in self._names]:
            known = ", ".join(self._names) or "no names"
            raise ValueError(f'no class "{unknown[0]}" to protect: the model knows {known}')

    def macs(self, size: tuple[int, int], mode: ModeLike = UNPAUSED) -> int:
        """Exact MACs of one image of ``size`` (height, width), by ratios only.

        Counted as usual: convolutions, linear layers and attention products, not upsampling.
        """
        mode = read_mode(mode)
        self.check(mode)
        backbone = self.backbone
        patches = -(-size[0] // backbone.patch[0]) * -(-size[1] // backbone.patch[1])
        kept = pausing.keep_counts(patches, mode.pause)
        head = sum(m.weight.numel() for m in self.aux_head.modules() if isinstance(m, nn.Linear))
        total = patches * int(backbone.vit.patch_embed.proj.weight.numel())
        active, means = patches, 0
        for number, block in enumerate(backbone.blocks, 1):
            total += attention_block_macs(block, backbone.prefix + active + means)
            if number in kept:
                total += (backbone.prefix + active) * head
                means += self.context and kept[number] < active
                active = kept[number]
        return total + self.decoder.macs(active if mode.early_exit else patches)


def pad_to_patches(
    images: Float[Tensor, "b 3 h w"], patch: tuple[int, int]
) -> Float[Tensor, "b 3 height width"]:
    """The images, with zeros added right and below to make whole patches."""
    down, right = -images.shape[2] % patch[0], -images.shape[3] % patch[1]
    return F.pad(images, (0, right, 0, down)) if down or right else images
