"""One dataclass per command. The command line is derived from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Several = Parameter(consume_multiple=True, negative=())

Engine = Literal["torch", "compile", "onnx", "onnx-int8", "openvino"]
"""What can run the network."""

BUILT_IN = "street-tiny"
"""The model inside the package, which commands use when none is named."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What `paumer bench` measures, and how."""

    pause: Annotated[tuple[str, ...], Several] = ("paper",)
    """Configurations such as none 3:0.4 3:0.2,5:0.4, paper for the 13 of the paper, or operating
    points of the model."""

    model: str | None = None
    """A model directory or hub id. Without it, fresh weights: speed does not depend on them."""

    backbone: str = "vit_tiny_patch16_384"
    """timm name of the backbone when no model is given."""

    decoder: Literal["mask", "linear", "pup"] = "mask"
    """Decoder when no model is given."""

    classes: int = 19
    """Number of classes when no model is given."""

    size: str = "512"
    """Picture size: 512 for 512x512, or WIDTHxHEIGHT."""

    batch: int | Literal["auto"] = 1
    """Pictures per batch, or auto for the size with the best throughput."""

    images: Path | None = None
    """A folder of pictures to run on instead of noise."""

    rounds: int = 15
    """Rounds. Each runs every configuration once; the fastest round counts."""

    warmup: int = 2
    """Rounds run before and not counted."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format; bf16 by autocast."""

    upsample: bool = True
    """Include the final upsampling of the logits to the picture's size."""

    engine: Annotated[tuple[Engine, ...], Several] = ("torch",)
    """What runs the network: torch, compile, onnx, onnx-int8, openvino. Several run in turns."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    criterion: str | None = None
    """Who pauses: entropy, confidence, margin, borders (the highest entropy around a patch),
    neighbours (the mean entropy around it); default: entropy."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    json: Path | None = None
    """Write hardware, versions and measurements here."""

    csv: Path | None = None
    """Write the table here."""

    plot: Path | None = None
    """Draw the table here (PNG, SVG or PDF)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What `paumer import` reads and writes."""

    out: Path
    """Model directory to write; it must not exist."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What `paumer predict` runs, and how."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    out: Path = Path("out")
    """Folder for masks, overlays and pause maps."""

    save: Annotated[tuple[str, ...], Several] = ("mask", "overlay", "paused")
    """What to write of each picture: mask, colour, overlay, paused, entropy."""

    pause: str = "none"
    """A configuration such as 3:0.4,5:0.4, or the name of an operating point."""

    target_fps: float | None = None
    """Move along the model's operating points so that so many pictures are done in a second."""

    latency_ms: float | None = None
    """Move along the model's operating points so that a picture takes at most so long."""

    min_miou: float | None = None
    """Use no operating point with an mIoU (in %) below this."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    criterion: str | None = None
    """Who pauses: entropy, confidence, margin, borders (the highest entropy around a patch),
    neighbours (the mean entropy around it); default: as the operating point does, or entropy."""

    window: int | None = None
    """Side of sliding windows (default: as the model was trained)."""

    stride: int | None = None
    """Distance between windows (default: the window less 32, at least half of it)."""

    short_side: int | None = None
    """Scale pictures so that the shorter side is this long (default: as in training)."""

    scales: Annotated[tuple[float, ...], Several] = (1.0,)
    """Run at each of these scales and average, such as 0.75 1 1.25."""

    flip: bool = False
    """Run mirrored too and average."""

    protect: Annotated[tuple[str, ...], Several] = ()
    """Classes whose patches pause after all others, such as pedestrian bicyclist."""

    engine: Engine = "torch"
    """What runs the network. All but torch prepare each picture size first, which takes a while."""

    batch: int = 4
    """Pictures that run together where they have one size."""

    threads: int | None = None
    """CPU threads (default: torch's; for a video with a target one less: it reads and writes)."""

    device: str = "auto"
    """cpu, cuda, or auto."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What `paumer demo` shows."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    data: str = "scenes"
    """Held-out pictures: scenes, camvid:DIR, or a data.yaml."""

    pictures: int = 40
    """How many of them are counted."""

    out: Path = Path("out")
    """Folder for the report, the plot and the pictures."""

    threads: int | None = None
    """CPU threads (default: torch's)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScenesOptions:
    """What `paumer scenes` draws."""

    out: Path
    """Folder to write; it must not exist."""

    count: int = 200
    """Pictures for training; validation and test get a tenth each, at least one."""

    size: str = "384x288"
    """Picture size: WIDTHxHEIGHT, or one side for a square."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckDataOptions:
    """What `paumer check-data` writes."""

    out: Path | None = None
    """Folder for the report, a plot of class shares and a sheet of samples."""

    splits: Annotated[tuple[str, ...] | None, Several] = None
    """Splits to read, such as train val (default: all there are)."""


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

    stages: int = 1
    """Most pauses drawn in a step (the paper: 1); how many is drawn too."""

    aux_weight: float = 0.1
    """Weight of the auxiliary head's loss."""

    distil: float = 0.0
    """Weight of a loss that draws the paused prediction to the network's own unpaused one."""

    exits: float = 0.0
    """Share of the steps in which paused patches exit early: the auxiliary head has the last word
    on them, and the decoder learns to work on the others alone."""

    rejoin: int | None = None
    """Run this block and those after it on all patches, paused ones too, such as 12 for the last
    of 12 (default: paused patches go straight to the decoder)."""

    context: bool = False
    """After a pause the mean of the patches that paused goes on with the active ones."""

    aux_norm: bool = False
    """The auxiliary head reads normalised tokens; one that was trained without starts afresh."""

    learn: Literal["all", "aux", "block-heads"] = "all"
    """What learns: all, the shared auxiliary head alone, or a head of its own for every block."""

    steps: int = 2000
    """Training steps."""

    batch: int = 8
    """Pictures per step, over all processes."""

    accumulate: int = 1
    """Parts that a process works through one after the other to save memory."""

    crop: str = "256"
    """Crop size: a side, or WIDTHxHEIGHT."""

    fit: str | None = None
    """Scale pictures to fit LONGxSHORT before drawing the scale (default: their own size)."""

    scale: str = "0.5-2"
    """Range of the random scale."""

    window: int | None = None
    """Side of sliding windows at inference (default: the whole picture at once)."""

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

    val_pause: Annotated[tuple[str, ...], Several] = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4")
    """Configurations to validate."""

    val_pictures: int | None = None
    """Validate on this many pictures only, spread over the split."""

    save_every: int = 250
    """Steps between checkpoints."""

    skip_bad: bool = False
    """Pass over pictures that cannot be read, and list them in bad_pictures.txt."""

    workers: int = 2
    """Processes that read and crop pictures."""

    devices: int = 1
    """Devices on this machine; torchrun and SLURM are recognised."""

    nodes: int = 1
    """Machines."""

    accelerator: str = "auto"
    """cpu, gpu, or auto."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What `paumer evaluate` counts, and how."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    data: str = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""

    split: Literal["train", "val", "test"] = "val"
    """Pictures to count on."""

    pause: Annotated[tuple[str, ...], Several] = ("none",)
    """Configurations, paper for the 13 of the paper, or names of operating points."""

    criterion: Annotated[tuple[str, ...], Several] = ()
    """Who pauses: entropy, confidence, margin, borders (the highest entropy around a patch),
    neighbours (the mean entropy around it), random, or oracle (the true labels); default: as the
    operating point does, or entropy."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    window: int | None = None
    """Side of sliding windows (default: as the model was trained)."""

    stride: int | None = None
    """Distance between windows (default: the window less 32, at least half of it)."""

    short_side: int | None = None
    """Scale pictures so that the shorter side is this long (default: as in training)."""

    scales: Annotated[tuple[float, ...], Several] = (1.0,)
    """Run at each of these scales and average, such as 0.75 1 1.25."""

    flip: bool = False
    """Run mirrored too and average."""

    protect: Annotated[tuple[str, ...], Several] = ()
    """Classes whose patches pause after all others, such as pedestrian bicyclist."""

    by_size: bool = False
    """Also IoU by object size: regions below 0.1%, up to 1%, and above 1% of the picture."""

    blocks: bool = False
    """Also accuracy and mIoU of the auxiliary head after every block, without pausing."""

    pictures: int | None = None
    """Count on this many pictures only, spread over the split."""

    batch: int = 8
    """Pictures or windows that run together."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    json: Path | None = None
    """Write everything here, classes and sizes included."""

    csv: Path | None = None
    """Write one row for each configuration here."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What `paumer sweep` goes through, and where it keeps it."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    out: Path
    """Folder for counts and results; a sweep that was stopped there goes on."""

    data: str = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""

    split: Literal["train", "val", "test"] = "val"
    """Pictures to count on."""

    grid: Annotated[tuple[str, ...], Several] = ("paper",)
    """paper (13), one (each block x 20 shares), two (pairs of blocks x 10 x 10 shares), count (all
    choices of blocks at a share of 0.4), or configurations."""

    criterion: str | None = None
    """Who pauses: entropy, confidence, margin, borders (the highest entropy around a patch),
    neighbours (the mean entropy around it), random, or oracle (the true labels); default:
    entropy."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    pictures: int | None = None
    """Count on this many pictures only, spread over the split."""

    batch: int = 8
    """Pictures that run together."""

    speed: Literal["predict", "measure", "none"] = "predict"
    """Speeds from this machine's cost table, timed one by one, or left out; always afterwards."""

    speed_batch: int = 1
    """Pictures per batch when speed is measured or predicted."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    device: str = "auto"
    """cpu, cuda, or auto."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What `paumer tune` looks for: give one of the first three."""

    latency_ms: float | None = None
    """A batch in at most so many milliseconds."""

    speed_up: float | None = None
    """At least so many times as fast as without pausing."""

    max_drop: float | None = None
    """At most so many points of mIoU lost."""

    model: str
    """A model directory or a training run; its operating points are written there."""

    name: str | None = None
    """Name of the operating point (default: the budget, such as 1.5x)."""

    data: str = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""

    split: Literal["train", "val", "test"] = "val"
    """Pictures to count on."""

    pictures: int | None = 50
    """Count on this many pictures only, spread over the split."""

    procedure: Literal["filter", "layers"] | None = None
    """filter (time many, evaluate those fast enough) or layers (block by block); default: filter
    for a budget of time, layers for one of accuracy."""

    adaptive: bool = False
    """Pause by a threshold that meets the budget on average: easy pictures cost less."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    criterion: str = "entropy"
    """Who pauses: entropy, confidence, margin, borders (the highest entropy around a patch),
    neighbours (the mean entropy around it)."""

    most: int = 60
    """Configurations that filter evaluates."""

    batch: int = 1
    """Pictures per batch when speed is measured."""

    rounds: int = 15
    """Rounds of the final timing."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    out: Path | None = None
    """Folder for counts and results (default: tune in the model's folder)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """What `paumer calibrate` fits temperatures of early exit on."""

    model: str
    """A model directory or a training run; the temperatures are written there."""

    data: str = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""

    split: Literal["train", "val", "test"] = "val"
    """Pictures to fit on."""

    pictures: int | None = 50
    """Fit on this many pictures only, spread over the split."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    device: str = "auto"
    """cpu, cuda, or auto."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What `paumer export` writes."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    out: Path
    """File to write, such as model.onnx; it must not exist."""

    format: Literal["onnx", "onnx-int8", "openvino", "program"] = "onnx"
    """onnx; onnx-int8 (8-bit weights, for ONNX Runtime alone); openvino (the same file as onnx,
    proved in OpenVINO); program (torch.export, .pt2)."""

    pause: str | None = None
    """A configuration or an operating point; without it one file serves all of --blocks."""

    blocks: Annotated[tuple[int, ...], Several] = (3, 5, 7)
    """Blocks after which a file for all configurations can pause."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    criterion: Literal["entropy", "borders", "neighbours"] | None = None
    """Who pauses (default: as the operating point does, or entropy)."""

    size: str | None = None
    """Picture size: a side, or WIDTHxHEIGHT (default: the model's)."""

    images: Path | None = None
    """A folder of pictures to prove it on (default: drawn scenes)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `paumer serve` answers with, and its limits."""

    model: str = BUILT_IN
    """A model directory, a training run, a built-in name or a hub id."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in."""

    port: int = 8000
    """Port to listen at; 0 takes a free one."""

    latency_ms: float | None = None
    """99 of 100 requests are answered within this (default: 8 pictures without pausing)."""

    point: str | None = None
    """Stay at this operating point instead of moving with the load."""

    queue: int = 64
    """Requests that may wait."""

    batch: int = 1
    """Pictures that may run together: more pays on a GPU."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    max_mb: float = 20.0
    """Largest body in megabytes."""

    max_pixels: int = 4_194_304
    """Most pixels of a picture."""

    body_seconds: float = 10.0
    """Seconds in which a body has to arrive."""


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
