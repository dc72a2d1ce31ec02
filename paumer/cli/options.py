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
    """Which split to use."""


@options
class CountOptions(DataOptions):
    """Which labelled images, and how many."""

    limit: Annotated[int | None, DATA] = None
    """Use only this many images, spread over the split."""


@options
class TilingOptions:
    """Windows, scales and mirroring."""

    window: Annotated[int | None, MODE] = None
    """Side of sliding windows (default: as the model was trained)."""
    stride: Annotated[int | None, MODE] = None
    """Distance between windows (default: the window less 32, at least half of it)."""
    scales: Annotated[tuple[float, ...], Several, MODE] = (1.0,)
    """Run at each of these scales and average, such as 0.75 1 1.25."""
    flip: Annotated[bool, MODE] = False
    """Average with the mirrored image."""
    batch: Annotated[int, MACHINE] = 8
    """Images or windows per batch; only those of one size share a batch."""


@options
class MachineOptions:
    """Threads and device."""

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
    """Options of `paumer bench`."""

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
    """Untimed rounds before."""
    precision: Annotated[Literal["fp32", "bf16"], MACHINE] = "fp32"
    """Number format; bf16 by autocast."""
    upsample: Annotated[bool, MACHINE] = True
    """Include the final upsampling of the logits to the image's size."""
    engine: Annotated[tuple[Engine, ...], Several, MACHINE] = ("torch",)
    """What runs the network: torch, compile, onnx, onnx-int8, openvino. Several are interleaved."""
    json: Annotated[Path | None, RESULT] = None
    """Write hardware, versions and measurements to this file."""
    csv: Annotated[Path | None, RESULT] = None
    """Write the table to this file."""
    plot: Annotated[Path | None, RESULT] = None
    """Draw the table to this file (PNG, SVG or PDF)."""


@options
class PredictOptions(ModelOptions, TilingOptions, MachineOptions):
    """Options of `paumer predict`."""

    out: Annotated[Path, RESULT] = Path("out")
    """Folder for masks, overlays and pause maps."""
    save: Annotated[tuple[str, ...], Several, RESULT] = ("mask", "overlay", "paused")
    """What to write for each image: mask, colour, overlay, paused, entropy."""
    mode: Annotated[str, MODE] = "none"
    """Inference settings: STAGES [exit] [by=NAME] [protect=a+b] [size=288], such as
    "3:0.4,9:0.9 exit", or an operating point. Images larger than those of training are scaled down;
    size=full, or --window, keeps their size."""
    target_fps: Annotated[float | None, MODE] = None
    """Switch between the model's operating points to process this many images per second."""
    latency_ms: Annotated[float | None, MODE] = None
    """Switch between the model's operating points so that no image takes longer than this."""
    min_miou: Annotated[float | None, MODE] = None
    """Use no operating point with an mIoU (in %) below this."""
    engine: Annotated[Engine, MACHINE] = "torch"
    """What runs the network. All but torch take a while to prepare each image size."""
    isolate: Annotated[bool, DATA] = False
    """For untrusted images: decode each in a process of its own, with limits of time and memory."""
    batch: Annotated[int, MACHINE] = 4
    """Images per batch; only those of one size share a batch."""
    threads: Annotated[int | None, MACHINE] = None
    """CPU threads (default: torch's; one less for a video with a target, for decoding and
    encoding)."""


@options
class DemoOptions(ModelOptions, MachineOptions):
    """Options of `paumer demo`."""

    data: Annotated[str, DATA] = "scenes"
    """Held-out images: sample, scenes, camvid:DIR, or a data.yaml."""
    limit: Annotated[int, DATA] = 40
    """Number of images."""
    out: Annotated[Path, RESULT] = Path("out")
    """Folder for the report, the plot and the images."""


@options
class EvaluateOptions(ModelOptions, CountOptions, TilingOptions, MachineOptions):
    """Options of `paumer evaluate`."""

    mode: Annotated[tuple[str, ...], Several, MODE] = ("none",)
    """Modes such as none 3:0.4 "3:0.4,9:0.9 exit by=neighbours" "3:0.4 size=288", operating points,
    or paper for the 13 of the paper's table. by=random pauses at random, by=oracle by the true
    labels."""
    by_size: Annotated[bool, RESULT] = False
    """Also IoU by object size: regions below 0.1%, up to 1%, and above 1% of the image."""
    groups: Annotated[str | None, RESULT] = None
    """Also mIoU by group, such as a drive or a site: a regular expression that finds the group in a
    file's name (its first bracket, or all of it), or folder for the name of the folder."""
    blocks: Annotated[bool, RESULT] = False
    """Also accuracy and mIoU of the auxiliary head after every block, without pausing."""
    json: Annotated[Path | None, RESULT] = None
    """Write everything to this file, with classes and sizes."""
    csv: Annotated[Path | None, RESULT] = None
    """Write one row per mode to this file."""


@options
class SweepOptions(ModelOptions, CountOptions, MachineOptions):
    """Options of `paumer sweep`."""

    out: Annotated[Path, RESULT]
    """Folder for counts and results; a stopped sweep resumes there."""
    grid: Annotated[tuple[str, ...], Several, MODE] = ("paper",)
    """paper (13), one (each block x 20 ratios), two (pairs of blocks x 10 x 10 ratios), count (all
    choices of blocks at a ratio of 0.4), also combined, as in "paper exit by=neighbours"; or modes
    (by=random and by=oracle too) and operating points."""
    batch: Annotated[int, MACHINE] = 8
    """Images per batch."""
    speed: Annotated[Literal["predict", "measure", "none"], MACHINE] = "predict"
    """Speeds, after counting: from this machine's cost table, timed one by one, or none."""
    speed_batch: Annotated[int, MACHINE] = 1
    """Images per batch when speed is measured or predicted."""


@options
class TuneOptions(CountOptions, MachineOptions):
    """Options of `paumer tune`: give one of --latency-ms, --speed-up and --max-drop."""

    latency_ms: float | None = None
    """Budget: milliseconds per batch."""
    speed_up: float | None = None
    """Budget: speed-up over no pausing."""
    max_drop: float | None = None
    """Budget: points of mIoU lost."""
    model: Annotated[str, MODEL] = DEFAULT_MODEL
    """A model directory or training run, which gets the operating points; a built-in or hub model
    is copied first."""
    name: Annotated[str | None, RESULT] = None
    """Name of the operating point (default: the budget, such as 1.5x)."""
    limit: Annotated[int | None, DATA] = 50
    """Use only this many images, spread over the split."""
    mode: Annotated[str, MODE] = "auto"
    """What to search: auto stands for the stages, as in "auto exit by=neighbours"."""
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
    """Choose by the worst of darker, noisier, blurred and compressed copies of this many images (0:
    none)."""
    batch: Annotated[int, MACHINE] = 1
    """Images per batch when speed is measured."""
    rounds: Annotated[int, MACHINE] = 15
    """Rounds of the final timing."""
    out: Annotated[Path | None, RESULT] = None
    """Folder for counts and results (default: tune in the model's folder)."""


@options
class ExportOptions(ModelOptions):
    """Options of `paumer export`."""

    out: Annotated[Path, RESULT]
    """File to write, such as model.onnx; it must not exist."""
    format: Annotated[Literal["onnx", "onnx-int8", "openvino", "program"], RESULT] = "onnx"
    """onnx; onnx-int8 (8 bits without calibration, for ONNX Runtime alone); openvino (in one mode,
    run and verified in OpenVINO); program (torch.export, .pt2)."""
    mode: Annotated[str, MODE] = "none"
    """Default mode of the file: a mode or an operating point. A file for OpenVINO runs in this mode
    only."""
    output: Annotated[Literal["labels", "logits", "probabilities"], RESULT] = "labels"
    """What other programs get for each pixel."""
    pixels: Annotated[Literal["uint8", "normalised"], RESULT] = "uint8"
    """What other programs pass in: RGB bytes, or values normalised as in training."""
    input: Annotated[str | None, MODE] = None
    """Fix the input shape and the mode, for runtimes that need it: a side, or WIDTHxHEIGHT."""
    images: Annotated[Path | None, DATA] = None
    """A folder of images to verify the file on (default: the sample set and synthetic scenes)."""
    calibrate: Annotated[str | None, DATA] = None
    """Write 8 bits, with ranges from images of this data: camvid:DIR, a data.yaml and so on."""
    split: Annotated[Split, DATA] = "val"
    """Split on which the loss of 8 bits is measured."""
    limit: Annotated[int | None, DATA] = 100
    """Use only this many images, spread over the split."""
    max_drop: Annotated[float, RESULT] = 0.5
    """Refuse 8 bits that lose more points of mIoU than this at any operating point."""


@options
class ServeOptions(ModelOptions, MachineOptions):
    """Options of `paumer serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 admits other machines, under any name unless --allow-host gives
    some."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    latency_ms: Annotated[float | None, MODE] = None
    """Target for 99% of the requests (default: the time of 8 images without pausing)."""
    point: Annotated[str | None, MODE] = None
    """Stay at this operating point instead of following the load."""
    queue: int = 64
    """Requests that may wait."""
    batch: Annotated[int, MACHINE] = 1
    """Most images per batch; more than 1 helps on a GPU."""
    workers: Annotated[int, MACHINE] = 1
    """Compute processes that share one model in memory and divide the threads."""
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
    """Seconds for a request body to arrive."""
    drain_seconds: float = 30.0
    """Seconds for accepted requests after SIGTERM."""
    allow_host: Annotated[tuple[str, ...], Several] = ()
    """More host names to answer for, such as seg.example.org or *.example.org."""


@options
class FigureOptions:
    """Options of all figures."""

    out: Annotated[Path, RESULT] = Path("figures")
    """Folder to write to."""
    title: Annotated[str, RESULT] = ""
    """Title of the figure."""


@options
class MethodOptions(ModelOptions, MachineOptions, FigureOptions):
    """Options of `paumer study method`."""

    mode: Annotated[str, MODE] = "3:0.4,5:0.4,7:0.4"
    """A mode such as "3:0.4,9:0.9 exit", or the name of an operating point."""


@options
class TradeoffOptions(FigureOptions):
    """Options of `paumer study tradeoff`."""

    segmenter: Annotated[str | None, DATA] = None
    """FOLDER of a sweep of the plain Segmenter: its unpaused point is marked."""
    pareto: Annotated[bool, RESULT] = False
    """Only the Pareto front of each line."""
    name: Annotated[str, RESULT] = "tradeoff"
    """Name of the files."""


@options
class EntropyOptions(ModelOptions, DataOptions, MachineOptions, FigureOptions):
    """Options of `paumer study entropy`."""

    fraction: Annotated[float, DATA] = 0.1
    """Fraction of the images to use, spread evenly."""
    heads: Annotated[Path | None, MODEL] = None
    """A run of `paumer train --learn block-heads`: one head per block instead of the shared one."""


@options
class BlocksOptions(FreshModelOptions, MachineOptions, FigureOptions):
    """Options of `paumer study blocks`."""

    ratio: Annotated[float, MODE] = 0.4
    """Ratio of active patches that pause each time."""
    batch: Annotated[int, MACHINE] = 1
    """Images per batch."""
