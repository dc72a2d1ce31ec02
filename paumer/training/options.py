"""The options of a training; `paumer train` is derived from them, recipes are files of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Several = Parameter(consume_multiple=True, negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `paumer train` trains, on what, and how. A recipe is a YAML file of these."""

    out: Path = Path("runs/train")
    """Run directory to write; it must not exist."""
    data: str = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""
    backbone: str = "vit_tiny_patch16_384"
    """timm name of the backbone."""
    decoder: Literal["mask", "linear", "pup", "pup-tiny"] | None = None
    """Decoder (default: mask, or that of the model to start from); pup-tiny is the paper's SETR-PUP
    for ViT-Ti."""
    init: str = "timm"
    """Where weights come from: timm (download), none, a .safetensors file, or a model directory."""
    criterion: Literal["entropy", "random", "none"] = "entropy"
    """Who pauses in training; none trains the plain Segmenter, without auxiliary loss."""
    ranges: str = "3-9:0.2-0.8"
    """Blocks to draw from and their range of shares, such as 3-9:0.2-0.8 or 3:0-0.9,5:0.2-0.6."""
    aux_weight: float = 0.1
    """Weight of the auxiliary head's loss."""
    context: bool = False
    """After a pause the mean of the patches that paused continues with the active ones."""
    learn: Literal["all", "aux", "block-heads"] = "all"
    """What learns: all, the shared auxiliary head alone, or a head of its own for every block."""
    steps: int = 2000
    """Training steps."""
    batch: int = 8
    """Images per step, over all processes."""
    accumulate: int = 1
    """Parts that a process works through one after the other to save memory."""
    crop: str = "256"
    """Crop size: a side, or WIDTHxHEIGHT."""
    fit: str | None = None
    """Scale images to fit LONGxSHORT before drawing the scale (default: their own size)."""
    scale: str = "0.5-2"
    """Range of the random scale."""
    window: int | None = None
    """Side of sliding windows at inference (default: the whole image at once)."""
    stride: int | None = None
    """Distance between windows (default: the window less 32, at least half of it)."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimiser; sgd has Nesterov momentum 0.9."""
    lr: float = 1e-3
    """Learning rate."""
    head_lr: float = 1.0
    """Factor on the learning rate of decoder and auxiliary head."""
    min_lr: float = 1e-5
    """Learning rate at the end of the polynomial schedule (power 0.9)."""
    warmup: int = 0
    """Steps of linear warm-up."""
    weight_decay: float = 0.0
    """Weight decay of matrices; norms, biases and embeddings have none."""
    clip: float | None = None
    """Largest norm of the gradient."""
    drop_path: float = 0.1
    """Stochastic depth of the encoder, rising linearly."""
    dropout: float = 0.1
    """Dropout of the mask decoder."""
    class_weights: float = 0.0
    """Weigh classes in the loss by their rarity to this power: 0 not at all, 0.5 by its root."""
    seed: int = 0
    """Decides order, crops, draws and fresh weights."""
    val_every: int = 500
    """Steps between validations, which also happen at the end."""
    val_mode: Annotated[tuple[str, ...], Several] = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4")
    """Modes to validate."""
    val_images: int | None = None
    """Validate on this many images only, spread over the split."""
    save_every: int = 250
    """Steps between checkpoints."""
    skip_bad: bool = False
    """Skip images that cannot be read, and list them in bad_images.txt."""
    workers: int = 2
    """Processes that read and crop images."""
    devices: int = 1
    """Devices on this machine; torchrun and SLURM are recognised."""
    nodes: int = 1
    """Machines."""
    accelerator: str = "auto"
    """cpu, gpu, or auto."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format."""


def parse_size(text: str) -> tuple[int, int]:
    """Width and height from ``512`` or ``1024x512``."""
    try:
        sides = [int(side) for side in text.lower().split("x")]
        width, height = sides if len(sides) == 2 else (sides[0], sides[0])
        if len(sides) > 2 or min(width, height) < 1:
            raise ValueError
    except ValueError:
        raise ValueError(f'size "{text}" is not a side or WIDTHxHEIGHT, such as 512') from None
    return width, height


def parse_span(text: str) -> tuple[float, float]:
    """Least and most from ``0.5-2``."""
    try:
        least, most = (float(part) for part in text.split("-"))
        if not 0 < least <= most:
            raise ValueError
    except ValueError:
        raise ValueError(f'"{text}" is not LEAST-MOST, such as 0.5-2') from None
    return least, most
