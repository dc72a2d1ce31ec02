"""The segmenter whose patches pause: walk, score, pause, assemble, decode; early exit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from paumer import pausing
from paumer.criteria import AnyCriterion, Criterion, entropy, on_grid
from paumer.model import weights as files
from paumer.model.backbone import (
    Backbone,
    create_backbone,
    extend_table,
    gather_table,
    normalisation,
)
from paumer.model.decoders import AuxHead, Decoder, TokenDecoder, create_decoder, to_grid, upsample
from paumer.model.walk import Walk
from paumer.model.weights import ModelConfig
from paumer.pause_config import Amount, PauseConfig, Threshold
from paumer.pausing import Stage

NO_PAUSE = PauseConfig()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What ``forward`` gives: class logits, and what happened at each pause.

    ``grid`` is the number of patches down and across. With early exit the logits are
    log-probabilities.
    """

    logits: Float[Tensor, "b classes h w"]
    stages: tuple[Stage, ...]
    grid: tuple[int, int]

    def paused_after(self) -> Int[Tensor, "b gh gw"]:
        """The block after which each patch paused, 0 where it went through all of them."""
        blocks = torch.zeros(
            self.logits.shape[0] * self.grid[0] * self.grid[1],  # len() would fix it in exports.
            dtype=torch.long,
            device=self.logits.device,
        )
        for stage in self.stages:
            blocks[stage.places] = stage.block
            blocks[stage.places.gather(1, stage.kept)] = 0
        return blocks.view(-1, *self.grid)


class PausingSegmenter(nn.Module, PyTorchModelHubMixin, library_name="paumer", tags=["paumer"]):
    """A ViT segmenter that runs at any pause configuration, given with every call.

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
        rejoin, depth = config and config.rejoin, backbone.depth
        if config and config.temperatures and len(config.temperatures) != depth + 1:
            raise ValueError(
                f"{len(config.temperatures)} temperatures for {depth} blocks and the decoder: "
                f"give {depth + 1}, or none"
            )
        if rejoin is not None and rejoin not in range(3, depth + 1):
            raise ValueError(
                f"paused patches cannot come back before block {rejoin}: this backbone has {depth} "
                f"blocks, and the first two cannot spare anything; give 3 to {depth}"
            )
        self.backbone = backbone
        self.decoder = decoder
        self.aux_head = aux_head
        self.config = config

    @property
    def rejoin(self) -> int | None:
        """The block before which paused patches come back, if not only in the decoder."""
        return self.config.rejoin if self.config else None

    @property
    def context(self) -> bool:
        """Whether the mean of the patches that pause goes on, so that the active ones see it."""
        return self.config is not None and self.config.context

    @property
    def pausing_depth(self) -> int:
        """How many blocks run on active patches alone; a pause spares work before the last."""
        return self.rejoin - 1 if self.rejoin else self.backbone.depth

    def forward(
        self,
        images: Float[Tensor, "b 3 h w"],
        pause: PauseConfig = NO_PAUSE,
        criterion: AnyCriterion = entropy,
        early_exit: bool = False,
        full_size: bool = True,
    ) -> Prediction:
        """Class logits of normalised pictures of any size.

        With ``early_exit`` paused patches take the auxiliary head's word and the decoder works on
        the others only. Without ``full_size`` the logits stay on the decoder's coarse grid, which
        covers the picture padded to whole patches.
        """
        self.check(pause, early_exit)
        height, width = images.shape[2:]
        images = pad_to_patches(images, self.backbone.patch)
        grid = self.grid(images)
        judge = on_grid(criterion, grid)
        walks, done = [self.start(images)], 0
        for block, amount in pause.stages:
            walks = [self.advance(walk, done, block) for walk in walks]
            walks = [w for walk in walks for w in self.pause(walk, block, amount, judge)]
            done = block
        walks = [self.advance(walk, done, self.backbone.depth) for walk in walks]
        prediction = self.finish(walks, grid, early_exit)
        if not full_size:
            return prediction
        logits = upsample(prediction.logits, tuple(images.shape[2:]))[..., :height, :width]
        return replace(prediction, logits=logits)

    def forward_many(
        self,
        images: Float[Tensor, "b 3 h w"],
        ways: Sequence[tuple[PauseConfig, bool]],
        criterion: AnyCriterion = entropy,
    ) -> Iterator[tuple[int, Prediction]]:
        """The coarse prediction of each way, a configuration with or without early exit.

        Configurations form a tree by their stages, and what several have in common is computed
        once. Each comes with its number in ``ways``, in the order in which the tree is walked.
        """
        for pause, early_exit in ways:
            self.check(pause, early_exit)
        images = pad_to_patches(images, self.backbone.patch)
        branch = [(number, pause.stages, early) for number, (pause, early) in enumerate(ways)]
        grid = self.grid(images)
        yield from self._visit([self.start(images)], 0, branch, on_grid(criterion, grid), grid)

    def _visit(
        self,
        walks: list[Walk],
        done: int,
        branch: Sequence[tuple[int, tuple[tuple[int, Amount], ...], bool]],
        criterion: Criterion,
        grid: tuple[int, int],
    ) -> Iterator[tuple[int, Prediction]]:
        """Predictions of a branch: numbers of ways, the stages still before them, early exit."""
        coming = dict.fromkeys(stages[0] for _, stages, _ in branch if stages)
        for block, amount in sorted(coming, key=lambda stage: stage[0]):
            walks = [self.advance(walk, done, block) for walk in walks]
            done = block
            paused = [w for walk in walks for w in self.pause(walk, block, amount, criterion)]
            following = [
                (number, stages[1:], early)
                for number, stages, early in branch
                if stages[:1] == ((block, amount),)
            ]
            yield from self._visit(paused, done, following, criterion, grid)
        ending = [(number, early) for number, stages, early in branch if not stages]
        if ending:
            walks = [self.advance(walk, done, self.backbone.depth) for walk in walks]
        for number, early in ending:
            yield number, self.finish(walks, grid, early)

    def start(self, images: Float[Tensor, "b 3 h w"]) -> Walk:
        """Pictures of whole patches, cut and embedded, before block 1."""
        tokens, table = self.backbone.embed(images)
        batch, patches = tokens.shape[0], tokens.shape[1] - self.backbone.prefix
        places = torch.arange(batch * patches, device=tokens.device).view(batch, patches)
        return Walk(tokens, places, table, whole_table=table)

    def advance(self, walk: Walk, done: int, until: int) -> Walk:
        """The walk after block ``until``, when block ``done`` was the last one run."""
        if self.rejoin and walk.stages and done < self.rejoin <= until:
            walk, done = self._run(walk, done, self.rejoin - 1), self.rejoin - 1
            walk = replace(walk, tokens=self.assemble(walk), table=walk.whole_table, means=None)
        return self._run(walk, done, until)

    def _run(self, walk: Walk, done: int, until: int) -> Walk:
        tokens, table, means = walk.tokens, walk.table, walk.means
        if means is not None:  # They stand behind the patches.
            tokens = torch.cat([tokens, means], 1)
            table = None if table is None else extend_table(table, means.shape[1])
        for number in range(done + 1, until + 1):
            tokens = self.backbone.run_block(number, tokens, table)
        if means is not None:
            own = walk.tokens.shape[1]
            tokens, means = tokens[:, :own], tokens[:, own:]
        return replace(walk, tokens=tokens, means=means)

    def pause(
        self, walk: Walk, block: int, amount: Amount | int, criterion: Criterion
    ) -> list[Walk]:
        """The walk without the patches that pause after ``block``: one, or by threshold several."""
        prefix = self.backbone.prefix
        # The prefix passes the head too: cutting it off first would copy all tokens.
        logits = self.aux_head(walk.tokens)[:, prefix:]
        score = criterion(logits.detach(), walk.places)
        walks = []
        for pictures, keep in pausing.group_by_count(score, amount):
            part, some, scores = walk, logits, score
            if pictures is not None:
                part, some, scores = walk.select(pictures), logits[pictures], score[pictures]
            kept = pausing.choose(scores, keep)
            rows = pausing.rows_of(kept, part.tokens.shape[1], prefix)
            stage = Stage(block, part.tokens, part.places, some, scores, kept, rows)
            walks.append(
                replace(
                    part,
                    tokens=pausing.pause(part.tokens, rows),
                    places=part.places.gather(1, kept),
                    table=None if part.table is None else gather_table(part.table, kept),
                    stages=(*part.stages, stage),
                    means=self._means(part, kept) if self.context else None,
                )
            )
        return walks

    def _means(self, walk: Walk, kept: Int[Tensor, "b k"]) -> Float[Tensor, "b m d"] | None:
        """Those of earlier pauses, and that of the patches which pause now, if any do."""
        if kept.shape[1] == walk.places.shape[1]:
            return walk.means
        mean = pausing.mean_paused(walk.tokens, kept, self.backbone.prefix)
        return mean if walk.means is None else torch.cat([walk.means, mean], 1)

    def assemble(self, walk: Walk) -> Float[Tensor, "b t d"]:
        """All tokens of a walk's pictures in their first order, paused ones as they stood."""
        return pausing.assemble(walk.tokens, [(stage.tokens, stage.rows) for stage in walk.stages])

    def finish(
        self, walks: Sequence[Walk], grid: tuple[int, int], early_exit: bool = False
    ) -> Prediction:
        """The coarse prediction of walks that went through all blocks, in the pictures' order."""
        parts = [self._exit(w) if early_exit else self._tokens(w) for w in walks]
        whole = parts[0]
        if len(walks) > 1:
            order = torch.cat([walk.pictures for walk in walks]).argsort()
            whole = torch.cat(parts)[order]
        if early_exit:
            logits = to_grid(whole, grid)
        else:
            logits = self.decoder(self.backbone.norm(whole)[:, self.backbone.prefix :], grid)
        return Prediction(logits, tuple(s for walk in walks for s in walk.stages), grid)

    def grid(self, images: Float[Tensor, "b 3 h w"]) -> tuple[int, int]:
        """How many patches there are down and across pictures of whole patches."""
        height, width = self.backbone.patch
        return images.shape[2] // height, images.shape[3] // width

    def _tokens(self, walk: Walk) -> Float[Tensor, "b t d"]:
        return walk.tokens if self.rejoin else self.assemble(walk)

    def _exit(self, walk: Walk) -> Float[Tensor, "b n classes"]:
        # Log-probabilities, because the two heads' raw logits have different scales.
        assert isinstance(self.decoder, TokenDecoder)
        patches = self.backbone.norm(walk.tokens)[:, self.backbone.prefix :]
        log_p = self._log_p(self.decoder.token_logits(patches), self.backbone.depth)
        stages = [
            (
                self._log_p(stage.logits, stage.block - 1),
                pausing.rows_of(stage.kept, stage.places.shape[1]),
            )
            for stage in walk.stages
        ]
        return pausing.assemble(log_p, stages)

    def _log_p(
        self, logits: Float[Tensor, "b n classes"], head: int
    ) -> Float[Tensor, "b n classes"]:
        """Log-probabilities, at the head's temperature where it has one."""
        if self.config and self.config.temperatures:
            logits = logits / self.config.temperatures[head]
        return logits.log_softmax(-1)

    def check(self, pause: PauseConfig, early_exit: bool) -> None:
        """Raise unless this network can pause like this."""
        pause.check(self.backbone.depth, early_exit, self.rejoin)
        if early_exit and not isinstance(self.decoder, TokenDecoder):
            raise ValueError(
                f"early exit is not possible with {type(self.decoder).__name__}: it convolves over "
                f"the full grid of patches, so it needs the paused ones too. "
                f"Use the mask or the linear decoder"
            )

    def multiply_adds(
        self, size: tuple[int, int], pause: PauseConfig = NO_PAUSE, early_exit: bool = False
    ) -> int:
        """Exact multiply-adds of one picture of ``size`` (height, width), by shares only.

        Counted as usual: convolutions, linear layers and attention products, not upsampling.
        """
        self.check(pause, early_exit)
        down, across = (-(-s // p) for s, p in zip(size, self.backbone.patch, strict=True))
        patches = down * across
        active, means, total = patches, 0, self.backbone.multiply_adds_embed(patches)
        shares = dict(pause.stages)
        if any(isinstance(share, Threshold) for share in shares.values()):
            raise ValueError(f'the cost of "{pause}" depends on the picture: give shares')
        head = sum(m.weight.numel() for m in self.aux_head.modules() if isinstance(m, nn.Linear))
        for number in range(1, self.backbone.depth + 1):
            if number == self.rejoin:
                active, means = patches, 0
            own = active + self.backbone.prefix
            total += self.backbone.multiply_adds_block(number, own + means)
            if isinstance(share := shares.get(number), float):
                total += own * head
                active, before = pausing.going_on(active, share), active
                means += self.context and active < before
        return total + self.decoder.multiply_adds(active if early_exit else patches)

    @classmethod
    def from_config(cls, config: ModelConfig) -> Self:
        """A network of that configuration with fresh weights."""
        backbone = create_backbone(
            config.backbone,
            config.image_size,
            norm_eps=config.norm_eps,
            position_resize=config.position_resize,
            drop_path=config.drop_path,
        )
        return cls._around(backbone, config)

    @classmethod
    def _around(cls, backbone: Backbone, config: ModelConfig) -> Self:
        classes = len(config.classes)
        decoder = create_decoder(
            config.decoder, backbone.width, classes, **dict(config.decoder_options)
        )
        aux_head = AuxHead(backbone.width, classes, config.aux_norm)
        return cls(backbone, decoder, aux_head, config)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the model directory: ``config.json``, ``model.safetensors``, ``README.md``.

        A new directory appears complete or not at all; in one that exists, each file is replaced
        as a whole and other files stay.
        """
        if self.config is None:
            raise ValueError(
                "this segmenter was put together by hand and has no configuration to save: "
                "give one to its constructor, or use build_model(...)"
            )
        directory = Path(save_directory)
        files.save_model(directory, self.config, self.state_dict())
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id or directory.name, **push_to_hub_kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
        **_: Any,
    ) -> Self:
        """The network of a model directory or a hub model, ready for inference.

        Reads ``config.json`` and ``model.safetensors``, never a pickle.
        """
        directory = files.find_model(
            str(pretrained_model_name_or_path),
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
        )
        config, tensors = files.load_model(directory)
        try:
            with torch.device("meta"):  # Takes no memory, whatever the numbers say.
                shapes = cls.from_config(config)
        except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            file = directory / files.CONFIG_FILE
            raise ValueError(f'"{file}" describes no network: {error}') from error
        files.check_tensors(shapes, tensors, directory / files.WEIGHTS_FILE)
        model = cls.from_config(config)
        files.load_tensors(model, tensors, directory)
        return model.to(map_location).eval()


def build_model(
    backbone: str = "vit_tiny_patch16_384",
    decoder: str = "mask",
    classes: int | Sequence[str] = 19,
    image_size: int | tuple[int, int] | None = None,
    weights: bool | str | Path = False,
    drop_path: float = 0.0,
    rejoin: int | None = None,
    context: bool = False,
    aux_norm: bool = False,
    **decoder_options: Any,
) -> PausingSegmenter:
    """A pausing segmenter around the timm ViT of that name.

    ``classes`` are their names or just how many. ``weights`` initialises the backbone: True for
    timm's own by download, or a local safetensors file. ``image_size`` is what the position
    embeddings are stored for (default: the backbone's own); pictures of any size still run.
    ``rejoin`` is the block before which paused patches come back (default: in the decoder). With
    ``context`` the mean of the patches that pause goes on in their place. With ``aux_norm`` the
    auxiliary head normalises what it reads.
    """
    names = [f"class {i}" for i in range(classes)] if isinstance(classes, int) else classes
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    part = create_backbone(backbone, size, weights, drop_path)
    height, width = part.vit.patch_embed.img_size
    mean, std = normalisation(backbone)
    config = ModelConfig(
        backbone=backbone,
        decoder=decoder,
        classes=tuple(names),
        image_size=(height, width),
        decoder_options=decoder_options,
        mean=mean,
        std=std,
        drop_path=drop_path,
        rejoin=rejoin,
        context=context,
        aux_norm=aux_norm,
    )
    return PausingSegmenter._around(part, config)


def pad_to_patches(
    images: Float[Tensor, "b 3 h w"], patch: tuple[int, int]
) -> Float[Tensor, "b 3 height width"]:
    """The pictures, with zeros added right and below to make whole patches."""
    down, right = -images.shape[2] % patch[0], -images.shape[3] % patch[1]
    return F.pad(images, (0, right, 0, down)) if down or right else images
