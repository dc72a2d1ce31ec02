"""The training loop: draw a mode, forward, backward, update; validate, save, stop in good order.

Every random number of a step follows from (seed, step, index in the batch), so that a resumed run
is exact and several processes do what one would.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paumer.criteria import Criterion, entropy, random
from paumer.mode import UNPAUSED, Mode
from paumer.pause_config import NO_MERGE, NO_PAUSE, MergeConfig, PauseConfig, parse_ranges
from paumer.training.feed import Batch, mix
from paumer.training.losses import PixelLoss
from paumer.training.options import TrainOptions

Metrics = dict[str, float]


@dataclass
class Training:
    """What learns, by what, and how far it is."""

    options: TrainOptions
    fabric: Fabric
    loss: PixelLoss
    step: int = 0
    """How many steps are done."""
    stopped_by: int | None = None
    """The signal that ended the run early."""

    def __post_init__(self) -> None:
        optimizer = make_optimizer(self.loss, self.options)
        self.average: AveragedModel | None = None
        if self.options.ema:
            rule = get_ema_multi_avg_fn(self.options.ema)  # type: ignore[no-untyped-call]
            self.average = AveragedModel(self.loss, self.fabric.device, multi_avg_fn=rule)
        self.wrapped, self.optimizer = self.fabric.setup(self.loss, optimizer)
        self.ranges = parse_ranges(self.options.ranges)
        self.merging = parse_ranges(self.options.merging)

    @property
    def result(self) -> PixelLoss:
        """What is validated and saved: what learns, or the average of its weights."""
        return self.loss if self.average is None else cast(PixelLoss, self.average.module)

    def run(self, batches: Iterable[Batch | str], after: Callable[[Metrics], None]) -> None:
        """One step for every batch; ``after`` is called after each of them.

        A signal ends the run after the step at hand, once ``after`` has seen it.
        """
        with self._signals():
            for batch in batches:
                if isinstance(batch, str):
                    raise ValueError(
                        f"{batch} (fix or remove it, or train with --skip-bad to skip it)"
                    )
                metrics = self._learn(batch)
                self.step = batch.step + 1
                after(metrics)
                if self.stopped_by is not None:
                    return

    def _learn(self, batch: Batch) -> Metrics:
        """One step: draw, forward, backward, update."""
        options, fabric, step = self.options, self.fabric, batch.step
        images, labels = fabric.to_device((batch.images, batch.labels))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(options, step) * group["factor"]
        # Dropout and drop path draw from the global state: make it a function of the step.
        torch.manual_seed(mix(options.seed, step, fabric.global_rank, 7))
        mode = self.draw(step)
        pixels: Any = fabric.all_reduce(self.loss.pixel_weights(labels).sum(), reduce_op="sum")
        scale = fabric.world_size / pixels.clamp(min=1)
        self.optimizer.zero_grad()
        main = aux = dice = torch.zeros((), device=fabric.device)
        image = fabric.world_size / options.batch  # What an image counts of a batch.
        size = -(-len(images) // options.accumulate)
        for begin in range(0, len(images), size):
            part = slice(begin, begin + size)
            with attention(options, fabric.device):
                criterion = self.criterion(batch, begin)
                losses = self.wrapped(images[part], labels[part], str(mode), criterion)
            loss = (losses.main + options.aux_weight * losses.aux) * scale
            if losses.dice is not None:
                loss = loss + options.dice * losses.dice * image
                dice = dice + losses.dice.detach() * image
            if not torch.isfinite(loss):
                raise ValueError(
                    f"the loss became {loss.item()} at step {step} (images "
                    f"{', '.join(batch.names)}). Earlier checkpoints are intact; "
                    f"begin a new run from this one's model (--init RUN/model) with a lower --lr, "
                    f"--clip 1, or --precision fp32"
                )
            fabric.backward(loss)
            main, aux = main + losses.main.detach() * scale, aux + losses.aux.detach() * scale
        if options.clip:
            nn.utils.clip_grad_norm_(self.loss.parameters(), options.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.loss)
        metrics = {"loss": float(main), "aux_loss": float(aux)}
        return {**metrics, "dice_loss": float(dice)} if options.dice else metrics

    def draw(self, step: int) -> Mode:
        """This step's mode, the same on every process."""
        options, seed = self.options, self.options.seed
        if options.learn != "all":
            return UNPAUSED
        kind = Random(f"kind {seed} {step}").choice(options.draw)
        pauses = kind in ("pause", "both") and options.criterion != "none"
        merges = kind in ("merge", "both")
        return Mode(
            pause=PauseConfig.draw(seed, step, self.ranges) if pauses else NO_PAUSE,
            merge=MergeConfig.draw(seed, step, self.merging) if merges else NO_MERGE,
        )

    def criterion(self, batch: Batch, begin: int) -> Criterion:
        """What scores the patches of the images from ``begin`` on."""
        if self.options.criterion != "random":
            return entropy
        height, width = batch.images.shape[2:]
        down, across = self.loss.network.backbone.patch
        first = self.fabric.global_rank * len(batch.images) + begin
        patches = -(-height // down) * -(-width // across)
        return random(mix(self.options.seed, batch.step, 3), first * patches)

    def state(self) -> dict[str, object]:
        """All that a resumed run needs."""
        state = {
            "network": dict(self.loss.network.state_dict()),
            "heads": dict(self.loss.heads.state_dict()),
            "optimizer": self.optimizer.state_dict(),
        }
        return {**state, **({"average": dict(self.average.state_dict())} if self.average else {})}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from a state that was saved after ``step`` steps."""
        self.loss.network.load_state_dict(state["network"])
        self.loss.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step = step

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the run after the step at hand; the second one at once."""

        def note(number: int, _: object) -> None:
            if self.stopped_by is not None:
                raise KeyboardInterrupt
            self.stopped_by = number

        before = {n: signal.signal(n, note) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def attention(options: TrainOptions, device: torch.device) -> Iterator[None]:
    """How attention is computed: in bf16 on a CPU, plain products train faster than fused."""
    if options.precision != "bf16" or device.type != "cpu":
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


def learning_rate(options: TrainOptions, step: int) -> float:
    """Linear warm-up, then polynomial decay with power 0.9 to the least rate."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.min_lr + (options.lr - options.min_lr) * float((1 - done) ** 0.9)


def make_optimizer(loss: PixelLoss, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW or SGD over what learns; only matrices decay, and heads have a rate of their own.

    With a layer decay that of each block is less than that of the next one.
    """
    depth = loss.network.backbone.depth
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and not name.endswith(("_token", "pos_embed", "_embedding"))
            factor = options.head_lr
            if name.startswith("network.backbone."):
                factor = options.layer_decay ** (depth + 1 - layer_of(name, depth))
            groups.setdefault((decays, factor), []).append(parameter)
    settings = [
        {"params": group, "weight_decay": options.weight_decay * decays, "factor": factor}
        for (decays, factor), group in groups.items()
    ]
    if options.optimizer == "sgd":
        return torch.optim.SGD(settings, lr=options.lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(settings, lr=options.lr)


def layer_of(name: str, depth: int) -> int:
    """Which block a parameter of the backbone belongs to: 0 before the first, last the norm."""
    _, _, rest = name.partition(".blocks.")
    if rest:
        return int(rest.split(".")[0]) + 1
    return depth + 1 if ".vit.norm." in name else 0
