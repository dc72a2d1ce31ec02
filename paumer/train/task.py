"""The loss, the random block and share, optimiser and schedule (paper, section 3.2)."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from paumer.criteria import Criterion, entropy, random_by_place
from paumer.model.decoders import to_grid, upsample
from paumer.model.segmenter import NO_PAUSE, PausingSegmenter, pad_to_patches
from paumer.options import TrainOptions
from paumer.pause_config import PauseConfig
from paumer.pausing import Stage
from paumer.train.feed import Batch, mix

IGNORE = 255


@dataclass(frozen=True)
class Losses:
    """The parts of the loss, each a sum over pixels."""

    main: Float[Tensor, ""]
    aux: Float[Tensor, ""]
    distil: Float[Tensor, ""] | float = 0.0


class TrainTask(lightning.LightningModule):
    """One network, one optimiser; every step draws its own pause configuration.

    All randomness of a step follows from (seed, step, place in the batch), so that a resumed run
    goes on exactly and several processes do what one would.
    """

    automatic_optimization = False

    def __init__(
        self,
        network: PausingSegmenter,
        options: TrainOptions,
        ranges: Mapping[int, tuple[float, float]],
        class_weights: Float[Tensor, " classes"] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.options = options
        self.ranges = ranges
        self.step = 0
        self.heads: nn.ModuleList | None = None
        if options.learn == "block-heads":
            self.heads = nn.ModuleList(
                copy.deepcopy(network.aux_head) for _ in range(network.backbone.depth)
            )
        if options.learn != "all":
            network.requires_grad_(False)
            network.aux_head.requires_grad_(options.learn == "aux")
        elif options.criterion == "none":
            network.aux_head.requires_grad_(False)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._optimizer_state: dict[str, Any] | None = None

    def training_step(self, batch: Batch, _: int) -> None:
        """One step: draw, forward, backward, update."""
        if not len(batch.images):
            raise ValueError(
                f"{batch.names[0]} (mend or remove it, or train with --skip-bad to pass over it)"
            )
        options, step = self.options, batch.step
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step) * group["factor"]
        # Dropout and drop path draw from the global state: make it a function of the step.
        torch.manual_seed(mix(options.seed, step, self.global_rank, 7))
        pause = self.draw(step)
        pixels = self._all_sum(self.pixel_weights(batch.labels).sum())
        share = self.trainer.world_size / pixels.clamp(min=1)
        optimizer.zero_grad()
        main = aux = torch.zeros((), device=self.device)
        size = -(-len(batch.images) // options.accumulate)
        for begin in range(0, len(batch.images), size):
            part = slice(begin, begin + size)
            criterion = self.criterion(batch, begin)
            with self.attention():
                images, labels = batch.images[part], batch.labels[part]
                losses = self.losses(images, labels, pause, criterion, self.exits(step))
            extra = options.aux_weight * losses.aux + options.distil * losses.distil
            loss = (losses.main + extra) * share
            if not torch.isfinite(loss):
                raise ValueError(
                    f"the loss became {float(loss)} at step {step} (pictures "
                    f"{', '.join(batch.names)}). Earlier checkpoints are intact; "
                    f"begin a new run from this one's model (--init RUN/model) with a lower --lr, "
                    f"--clip 1, or --precision fp32"
                )
            self.manual_backward(loss)
            main, aux = main + losses.main.detach() * share, aux + losses.aux.detach() * share
        if options.clip:
            nn.utils.clip_grad_norm_(self.parameters(), options.clip)
        optimizer.step()
        self.step = step + 1
        self.log_dict({"loss": main, "aux_loss": aux}, prog_bar=True, logger=False)

    @contextmanager
    def attention(self) -> Iterator[None]:
        """How attention is computed: in bf16 on a CPU, plain products train faster than fused."""
        if self.options.precision != "bf16" or self.device.type != "cpu":
            yield
            return
        settings = torch.backends.cuda  # Of the CPU as well.
        before = settings.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
        settings.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            settings.allow_fp16_bf16_reduction_math_sdp(before)

    def draw(self, step: int) -> PauseConfig:
        """This step's pause configuration, the same on every process."""
        if self.options.criterion == "none" or self.options.learn != "all":
            return NO_PAUSE
        return PauseConfig.draw(self.options.seed, step, self.ranges, self.options.stages)

    def exits(self, step: int) -> bool:
        """Whether paused patches exit early in this step, the same on every process."""
        return mix(self.options.seed, step, 11) < self.options.exits * 2**63

    def criterion(self, batch: Batch, begin: int) -> Criterion:
        """Who pauses of the pictures from ``begin`` on."""
        if self.options.criterion != "random":
            return entropy
        height, width = batch.images.shape[2:]
        down, across = self.network.backbone.patch
        first = self.global_rank * len(batch.images) + begin
        patches = -(-height // down) * -(-width // across)
        return random_by_place(mix(self.options.seed, batch.step, 3), first * patches)

    def losses(
        self,
        images: Float[Tensor, "b 3 h w"],
        labels: Int[Tensor, "b h w"],
        pause: PauseConfig,
        criterion: Criterion,
        early_exit: bool = False,
    ) -> Losses:
        """Cross entropies summed over pixels: main decoder and auxiliary head."""
        if self.options.learn == "all":
            prediction = self.network(images, pause, criterion, early_exit, full_size=False)
            main = self._cross_entropy(self._enlarge_grid(prediction.logits, labels), labels)
            aux = self._aux_loss(prediction.stages, prediction.grid, labels)
            if not self.options.distil or not pause:
                return Losses(main, aux)
            return Losses(main, aux, self._distance(images, prediction.logits, labels))
        heads = self.heads or [self.network.aux_head] * self.network.backbone.depth
        self.network.eval()  # Frozen: no dropped path disturbs what the heads learn from.
        images = pad_to_patches(images, self.network.backbone.patch)
        with torch.no_grad():
            walks = [self.network.start(images)]
            for block in range(self.network.backbone.depth):
                walks.append(self.network.advance(walks[-1], block, block + 1))
        grid = self.network.grid(images)
        aux = images.new_zeros(())
        for head, walk in zip(heads, walks[1:], strict=True):
            logits = head(walk.tokens[:, self.network.backbone.prefix :])
            aux = aux + self._cross_entropy(self._enlarge(logits, grid, labels), labels)
        return Losses(aux, torch.zeros_like(aux))

    def pixel_weights(self, labels: Int[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
        """What each pixel counts: nothing where it has no label."""
        known = labels != IGNORE
        if self.class_weights is None:
            return known.float()
        return torch.where(
            known, self.class_weights[labels.clamp(max=len(self.class_weights) - 1)], 0
        )

    def _aux_loss(
        self, stages: Sequence[Stage], grid: tuple[int, int], labels: Int[Tensor, "b h w"]
    ) -> Float[Tensor, ""]:
        """The auxiliary head's loss at each pause, over the patches still active there.

        Where patches had paused before, the grid is filled with what the head said of them then,
        from which nothing is learnt again.
        """
        loss = torch.zeros((), device=labels.device)
        whole: Tensor | None = None
        for stage in stages:
            if whole is None:
                whole = stage.logits
            else:
                rows, values = stage.places.flatten(), stage.logits.flatten(0, 1)
                whole = whole.detach().flatten(0, 1).index_copy(0, rows, values).view_as(whole)
            loss = loss + self._cross_entropy(self._enlarge(whole, grid, labels), labels)
        return loss

    def _enlarge(
        self, logits: Float[Tensor, "b n classes"], grid: tuple[int, int], labels: Tensor
    ) -> Float[Tensor, "b classes h w"]:
        """Logits of patches at the labels' size, the padding cut off."""
        return self._enlarge_grid(to_grid(logits, grid), labels)

    def _enlarge_grid(
        self, logits: Float[Tensor, "b classes gh gw"], labels: Int[Tensor, "b h w"]
    ) -> Float[Tensor, "b classes h w"]:
        height, width = labels.shape[1:]
        down, across = self.network.backbone.patch
        padded = (-(-height // down) * down, -(-width // across) * across)
        return upsample(logits, padded)[..., :height, :width]

    def _distance(
        self,
        images: Float[Tensor, "b 3 h w"],
        logits: Float[Tensor, "b classes gh gw"],
        labels: Int[Tensor, "b h w"],
    ) -> Float[Tensor, ""]:
        """The divergence of the paused prediction from the unpaused one, summed over pixels.

        It is taken on the decoder's grid, where each cell counts what its pixels weigh.
        """
        with torch.no_grad():
            teacher = self.network(images, full_size=False).logits.float().log_softmax(1)
        student = logits.float().log_softmax(1)
        each = (teacher.exp() * (teacher - student)).sum(1)
        weights = self.pixel_weights(labels)
        cell = F.adaptive_avg_pool2d(weights[:, None], each.shape[1:])[:, 0]
        total: Tensor = (each * cell).sum() * (weights[0].numel() / each[0].numel())
        return total

    def _cross_entropy(
        self, logits: Float[Tensor, "b classes h w"], labels: Int[Tensor, "b h w"]
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(
            logits.float(),
            labels,
            weight=self.class_weights,
            ignore_index=IGNORE,
            reduction="sum",
        )

    def _all_sum(self, value: Float[Tensor, ""]) -> Float[Tensor, ""]:
        if self.trainer.world_size == 1:
            return value
        total: Tensor = self.trainer.strategy.reduce(value, reduce_op="sum")
        return total

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser, as it was when the run stopped."""
        optimizer = make_optimizer(self, self.options)
        if self._optimizer_state is not None:
            optimizer.load_state_dict(self._optimizer_state)
        return optimizer

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert not isinstance(optimizer, list)
        return {
            "network": dict(self.network.state_dict()),
            "heads": dict(self.heads.state_dict()) if self.heads else {},
            "optimizer": optimizer.state_dict(),
        }

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved after ``step`` steps."""
        self.network.load_state_dict(state["network"])
        if self.heads:
            self.heads.load_state_dict(state["heads"])
        self._optimizer_state = state["optimizer"]
        self.step = step


def learning_rate(options: TrainOptions, step: int) -> float:
    """Linear warm-up, then polynomial decay with power 0.9 to the least rate."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.min_lr + (options.lr - options.min_lr) * float((1 - done) ** 0.9)


def make_optimizer(task: TrainTask, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW or SGD over what learns; only matrices decay, and heads have a rate of their own."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and not name.endswith(("_token", "pos_embed", "_embedding"))
            factor = 1.0 if name.startswith("network.backbone.") else options.head_lr
            groups.setdefault((decays, factor), []).append(parameter)
    settings = [
        {"params": some, "weight_decay": options.weight_decay if decays else 0.0, "factor": factor}
        for (decays, factor), some in groups.items()
    ]
    if options.optimizer == "sgd":
        return torch.optim.SGD(settings, lr=options.lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(settings, lr=options.lr)
