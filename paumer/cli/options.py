"""One dataclass per command, from which the command line is derived, on shared bases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, dataclass_transform

from cyclopts import Group, Parameter

from paumer import DEFAULT_MODEL
from paumer.training.options import Several

Engine = Literal["torch", "compile", "onnx", "onnx-int8", "openvino"]
"""What can run the network."""

Split = Literal["train", "val", "test"]

MODEL, DATA, MODE, RESULT, MACHINE = (
    Parameter(group=Group(name, sort_key=number))
    for number, name in enumerate(("Model", "Data", "Mode", "Results", "Machine"))
)
T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are options of their own names."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(kind))


@options
class ModelOptions:
    """Which model."""

    model: Annotated[str, MODEL] = DEFAULT_MODEL
    """A model directory, a training run, an exported file, a built-in name or a hub id."""


@options
class DataOptions:
    """Which labelled images."""

    data: Annotated[str, DATA] = "scenes"
    """sample, scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, voc:DIR, a data.yaml, or several
    joined by +."""
    split: Annotated[Split, DATA] = "val"
    """Images to count on."""


@options
class CountOptions(DataOptions):
    """Which labelled images, and how many of them."""

    limit: Annotated[int | None, DATA] = None
    """Count on this many images only, spread over the split."""


@options
class TilingOptions:
    """How images are cut and repeated."""

    window: Annotated[int | None, MODE] = None
    """Side of sliding windows (default: as the model was trained)."""
    stride: Annotated[int | None, MODE] = None
    """Distance between windows (default: the window less 32, at least half of it)."""
    scales: Annotated[tuple[float, ...], Several, MODE] = (1.0,)
    """Run at each of these scales and average, such as 0.75 1 1.25."""
    flip: Annotated[bool, MODE] = False
    """Run mirrored too and average."""
    batch: Annotated[int, MACHINE] = 8
    """Images or windows that run together where they have one size."""


@options
class MachineOptions:
    """What computes."""

    threads: Annotated[int | None, MACHINE] = None
    """CPU threads (default: torch's)."""
    device: Annotated[str, MACHINE] = "auto"
    """cpu, cuda, or auto."""


@options
class FreshModelOptions:
    """A model, or fresh weights: speed does not depend on them."""

    model: Annotated[str | None, MODEL] = None
    """A model directory or hub id. Without it, fresh weights: speed does not depend on them."""
    backbone: Annotated[str, MODEL] = "vit_tiny_patch16_384"
    """timm name of the backbone when no model is given."""
    input: Annotated[str, MODE] = "512"
    """Input shape: 512 for 512x512, or WIDTHxHEIGHT."""


@options
class BenchOptions(FreshModelOptions, MachineOptions):
    """What `paumer bench` measures, and how."""

    mode: Annotated[tuple[str, ...], Several, MODE] = ("paper",)
    """Modes such as none 3:0.4 "3:0.4,9:0.9 exit by=neighbours" "3:0.4 size=288", operating points,
    or paper for the 13 of the paper's table ("paper exit": with early exit)."""
    decoder: Annotated[Literal["mask", "linear", "pup"], MODEL] = "mask"
    """Decoder when no model is given."""
    classes: Annotated[int, MODEL] = 19
    """Number of classes when no model is given."""
    batch: Annotated[int | Literal["auto"], MACHINE] = 1
    """Images per batch, or auto for the size with the best throughput."""
    images: Annotated[Path | None, DATA] = None
    """A folder of images to run on instead of noise."""
    rounds: Annotated[int, MACHINE] = 15
    """Rounds. Each runs every mode once; the fastest round counts."""
    warmup: Annotated[int, MACHINE] = 2
    """Rounds run before and not counted."""
    precision: Annotated[Literal["fp32", "bf16"], MACHINE] = "fp32"
    """Number format; bf16 by autocast."""
    upsample: Annotated[bool, MACHINE] = True
    """Include the final upsampling of the logits to the image's size."""
    engine: Annotated[tuple[Engine, ...], Several, MACHINE] = ("torch",)
    """What runs the network: torch, compile, onnx, onnx-int8, openvino. Several run in turns."""
    json: Annotated[Path | None, RESULT] = None
    """Write hardware, versions and measurements here."""
    csv: Annotated[Path | None, RESULT] = None
    """Write the table here."""
    plot: Annotated[Path | None, RESULT] = None
    """Draw the table here (PNG, SVG or PDF)."""


@options
class PredictOptions(ModelOptions, TilingOptions, MachineOptions):
    """What `paumer predict` runs, and how."""

    out: Annotated[Path, RESULT] = Path("out")
    """Folder for masks, overlays and pause maps."""
    save: Annotated[tuple[str, ...], Several, RESULT] = ("mask", "overlay", "paused")
    """What to write of each image: mask, colour, overlay, paused, entropy."""
    mode: Annotated[str, MODE] = "none"
    """How images run: STAGES [exit] [by=NAME] [protect=a+b] [size=288], such as "3:0.4,9:0.9 exit",
    or the name of an operating point. size=full keeps images larger than the model was trained
    for, as --window does."""
    target_fps: Annotated[float | None, MODE] = None
    """Move along the model's operating points so that so many images are done in a second."""
    latency_ms: Annotated[float | None, MODE] = None
    """Move along the model's operating points so that an image takes at most so long."""
    min_miou: Annotated[float | None, MODE] = None
    """Use no operating point with an mIoU (in %) below this."""
    engine: Annotated[Engine, MACHINE] = "torch"
    """What runs the network. All but torch prepare each image size first, which takes a while."""
    isolate: Annotated[bool, DATA] = False
    """Decode each image in a process of its own, with limits of time and memory: for images of
    strangers."""
    batch: Annotated[int, MACHINE] = 4
    """Images that run together where they have one size."""
    threads: Annotated[int | None, MACHINE] = None
    """CPU threads (default: torch's; for a video with a target one less: it reads and writes)."""


@options
class DemoOptions(ModelOptions, MachineOptions):
    """What `paumer demo` shows."""

    data: Annotated[str, DATA] = "scenes"
    """Held-out images: sample, scenes, camvid:DIR, or a data.yaml."""
    limit: Annotated[int, DATA] = 40
    """How many of them are counted."""
    out: Annotated[Path, RESULT] = Path("out")
    """Folder for the report, the plot and the images."""


@options
class EvaluateOptions(ModelOptions, CountOptions, TilingOptions, MachineOptions):
    """What `paumer evaluate` counts, and how."""

    mode: Annotated[tuple[str, ...], Several, MODE] = ("none",)
    """Modes such as none 3:0.4 "3:0.4,9:0.9 exit by=neighbours" "3:0.4 size=288", operating points,
    or paper for the 13 of the paper's table. by=random pauses at random, by=oracle by the truth."""
    by_size: Annotated[bool, RESULT] = False
    """Also IoU by object size: regions below 0.1%, up to 1%, and above 1% of the image."""
    groups: Annotated[str | None, RESULT] = None
    """Also mIoU by group, such as a drive or a site: a regular expression that finds the group in a
    file's name (its first bracket, or all of it), or folder for the name of the folder."""
    blocks: Annotated[bool, RESULT] = False
    """Also accuracy and mIoU of the auxiliary head after every block, without pausing."""
    json: Annotated[Path | None, RESULT] = None
    """Write everything here, classes and sizes included."""
    csv: Annotated[Path | None, RESULT] = None
    """Write one row for each mode here."""


@options
class SweepOptions(ModelOptions, CountOptions, MachineOptions):
    """What `paumer sweep` goes through, and where it keeps it."""

    out: Annotated[Path, RESULT]
    """Folder for counts and results; a sweep that was stopped there resumes."""
    grid: Annotated[tuple[str, ...], Several, MODE] = ("paper",)
    """paper (13), one (each block x 20 ratios), two (pairs of blocks x 10 x 10 ratios), count (all
    choices of blocks at a ratio of 0.4), also with more words, as in "paper exit by=neighbours"; or
    modes, also by=random and by=oracle, and operating points."""
    batch: Annotated[int, MACHINE] = 8
    """Images that run together."""
    speed: Annotated[Literal["predict", "measure", "none"], MACHINE] = "predict"
    """Speeds from this machine's cost table, timed one by one, or left out; always afterwards."""
    speed_batch: Annotated[int, MACHINE] = 1
    """Images per batch when speed is measured or predicted."""


@options
class TuneOptions(CountOptions, MachineOptions):
    """What `paumer tune` looks for: give one of --latency-ms, --speed-up and --max-drop."""

    latency_ms: float | None = None
    """A batch in at most so many milliseconds."""
    speed_up: float | None = None
    """At least so many times as fast as without pausing."""
    max_drop: float | None = None
    """At most so many points of mIoU lost."""
    model: Annotated[str, MODEL] = DEFAULT_MODEL
    """A model directory or a training run, whose operating points are written there; those of a
    built-in or hub model go to a copy."""
    name: Annotated[str | None, RESULT] = None
    """Name of the operating point (default: the budget, such as 1.5x)."""
    limit: Annotated[int | None, DATA] = 50
    """Count on this many images only, spread over the split."""
    mode: Annotated[str, MODE] = "auto"
    """What is searched through: auto stands for the stages, as in "auto exit by=neighbours"."""
    procedure: Annotated[Literal["filter", "layers", "dial"] | None, MODE] = None
    """filter (time many, evaluate those fast enough), layers (block by block) or dial (sizes,
    mergings, pauses and exits together); default: filter for a budget of time, layers for one of
    accuracy."""
    most: Annotated[int, MODE] = 60
    """Modes that filter and dial evaluate."""
    groups: Annotated[str | None, DATA] = None
    """Choose by the worst group of images, such as a drive or a site: a regular expression that
    finds the group in a file's name, or folder."""
    shifts: Annotated[int, DATA] = 20
    """Choose by the worst of darker, noisier, blurred and compressed copies of so many images; 0
    for none."""
    batch: Annotated[int, MACHINE] = 1
    """Images per batch when speed is measured."""
    rounds: Annotated[int, MACHINE] = 15
    """Rounds of the final timing."""
    out: Annotated[Path | None, RESULT] = None
    """Folder for counts and results (default: tune in the model's folder)."""


@options
class ExportOptions(ModelOptions):
    """What `paumer export` writes."""

    out: Annotated[Path, RESULT]
    """File to write, such as model.onnx; it must not exist."""
    format: Annotated[Literal["onnx", "onnx-int8", "openvino", "program"], RESULT] = "onnx"
    """onnx; onnx-int8 (8 bits without calibration, for ONNX Runtime alone); openvino (in one mode,
    run and verified in OpenVINO); program (torch.export, .pt2)."""
    mode: Annotated[str, MODE] = "none"
    """The mode in which the file runs where its inputs say nothing else: one or an operating point.
    It is the only one of a file for OpenVINO."""
    output: Annotated[Literal["labels", "logits", "probabilities"], RESULT] = "labels"
    """What the file gives of each pixel to other programs."""
    pixels: Annotated[Literal["uint8", "normalised"], RESULT] = "uint8"
    """What other programs give to the file: RGB bytes, or numbers normalised as in training."""
    input: Annotated[str | None, MODE] = None
    """Fix the input shape and the mode, for runtimes that need it: a side, or WIDTHxHEIGHT."""
    images: Annotated[Path | None, DATA] = None
    """A folder of images to verify it on (default: the sample set and synthetic scenes)."""
    calibrate: Annotated[str | None, DATA] = None
    """Write 8 bits, with ranges seen on images of this data: camvid:DIR, a data.yaml and so on."""
    split: Annotated[Split, DATA] = "val"
    """Images on which to count what 8 bits cost."""
    limit: Annotated[int | None, DATA] = 100
    """Count on this many images only, spread over the split."""
    max_drop: Annotated[float, RESULT] = 0.5
    """Refuse 8 bits that lose more than so many points of mIoU in any operating point."""


@options
class ServeOptions(ModelOptions, MachineOptions):
    """What `paumer serve` answers with, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in, under any name unless some are given
    by --allow-host."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    latency_ms: Annotated[float | None, MODE] = None
    """99 of 100 requests are answered within this (default: 8 images without pausing)."""
    point: Annotated[str | None, MODE] = None
    """Stay at this operating point instead of moving with the load."""
    queue: int = 64
    """Requests that may wait."""
    batch: Annotated[int, MACHINE] = 1
    """Images that may run together: more pays on a GPU."""
    workers: Annotated[int, MACHINE] = 1
    """Processes that compute, with one model in shared memory; each has its part of the threads."""
    engine: Annotated[Engine, MACHINE] = "torch"
    """What runs the network."""
    max_mb: float = 20.0
    """Largest body in megabytes."""
    max_pixels: int = 4_194_304
    """Most pixels of an image; a side counts as at least 16."""
    max_side: int = 16_384
    """Longest side of an image."""
    decode_seconds: float = 5.0
    """CPU seconds that decoding an image may take."""
    decode_mb: float = 256.0
    """Megabytes that decoding an image may take."""
    body_seconds: float = 10.0
    """Seconds in which a body has to arrive."""
    drain_seconds: float = 30.0
    """Seconds that accepted requests have after SIGTERM."""
    allow_host: Annotated[tuple[str, ...], Several] = ()
    """More names that the service answers for, such as seg.example.org or *.example.org."""


@options
class FigureOptions:
    """Where a figure goes."""

    out: Annotated[Path, RESULT] = Path("figures")
    """Folder to write to."""
    title: Annotated[str, RESULT] = ""
    """Title of the figure."""


@options
class MethodOptions(ModelOptions, MachineOptions, FigureOptions):
    """What `paumer study method` draws."""

    mode: Annotated[str, MODE] = "3:0.4,5:0.4,7:0.4"
    """A mode such as "3:0.4,9:0.9 exit", or the name of an operating point."""


@options
class TradeoffOptions(FigureOptions):
    """What `paumer study tradeoff` draws."""

    segmenter: Annotated[str | None, DATA] = None
    """FOLDER of a sweep of the plain Segmenter: its unpaused point is marked."""
    pareto: Annotated[bool, RESULT] = False
    """Only the Pareto front of each line."""
    name: Annotated[str, RESULT] = "tradeoff"
    """Name of the files."""


@options
class EntropyOptions(ModelOptions, DataOptions, MachineOptions, FigureOptions):
    """What `paumer study entropy` counts."""

    fraction: Annotated[float, DATA] = 0.1
    """Fraction of the images to count on, spread evenly."""
    heads: Annotated[Path | None, MODEL] = None
    """A run of `paumer train --learn block-heads`: a head of its own for every block instead of the
    shared one."""


@options
class BlocksOptions(FreshModelOptions, MachineOptions, FigureOptions):
    """What `paumer study blocks` predicts."""

    ratio: Annotated[float, MODE] = 0.4
    """The ratio of patches that pause each time."""
    batch: Annotated[int, MACHINE] = 1
    """Images per batch."""
