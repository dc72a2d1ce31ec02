"""The options of a training; `paumer train` is derived from them, recipes are files of them."""

import difflib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

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
    """What decides which patches pause in training; none trains the plain Segmenter, without
    auxiliary loss."""
    ranges: str = "3-9:0.2-0.8"
    """Blocks to draw from and their range of ratios, such as 3-9:0.2-0.8 or 3:0-0.9,5:0.2-0.6."""
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


RENAMED = {"val_pause": "val_mode", "val_pictures": "val_images"}
"""Options of 0.1 that have another name now."""
REMOVED = {"stages": 1, "distil": 0.0, "exits": 0.0, "rejoin": None, "aux_norm": False}
"""Options of 0.1 that gained nothing, each with the value that left it out."""


def read_recipe(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, object]:
    """The options that a recipe sets, over those of the recipe it ``extends``.

    Null takes an option back to its default.
    """
    chain = " -> ".join(str(file) for file in (*extended_by, path))
    if path.resolve() in {file.resolve() for file in extended_by}:
        raise ValueError(f"recipes extend each other in a circle: {chain}")
    if not path.is_file():
        raise FileNotFoundError(f'no recipe at "{path}"' + (f": {chain}" if extended_by else ""))
    own = {str(name).replace("-", "_"): value for name, value in _read_yaml(path).items()}
    parent = own.pop("extends", None)
    _check_names(own, path)
    if not isinstance(parent, str | None):
        raise ValueError(f'"{path}" extends {parent}: name one recipe, such as scenes.yaml')
    base = read_recipe(path.parent / parent, (*extended_by, path)) if parent else {}
    return {name: value for name, value in {**base, **own}.items() if value is not None}


def read_options(directory: Path) -> TrainOptions:
    """The options a run was started with, also by 0.1; its directory may have moved."""
    path = directory / "args.yaml"
    if not path.is_file():
        raise FileNotFoundError(f'"{directory}" is not a run directory: args.yaml is missing')
    values = _read_yaml(path)
    if not values:
        raise ValueError(f'"{path}" holds no options: bring back what the run was started with')
    for name, default in REMOVED.items():
        if values.pop(name, default) != default:
            raise ValueError(
                f'"{path}" uses {name}, which was removed in 0.2: resume it with paumer 0.1, or '
                f"begin a new run from this one's model (--init RUN/model)"
            )
    values = {RENAMED.get(name, name): value for name, value in values.items()}
    _check_names(values, path)
    for item in fields(TrainOptions):
        value, numbers = values.get(item.name, item.default), (int, float, int | None, float | None)
        if item.type in numbers and not isinstance(value, item.type | int | float):
            raise ValueError(f'{item.name} is "{value}" in "{path}": give a number')
    modes = values.get("val_mode", TrainOptions.val_mode)
    return TrainOptions(**{**values, "val_mode": tuple(modes), "out": directory})


def plain_options(options: TrainOptions) -> dict[str, object]:
    """The options as YAML can hold them: ``read_options`` reads them back."""
    return {**asdict(options), "out": str(options.out), "val_mode": list(options.val_mode)}


def _read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; an empty file is an empty one."""
    import yaml

    content = path.read_bytes()
    try:
        values = yaml.safe_load(content)
    except yaml.reader.ReaderError as error:
        line = content.count(b"\n", 0, error.position) + 1
        raise ValueError(f'"{path}" is not valid YAML: line {line}, {error.reason}') from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f'"{path}" is not valid YAML: line {line}, {error.problem}') from error
    if values is not None and not isinstance(values, dict):
        raise ValueError(f'"{path}" does not hold options: write lines such as "steps: 2000"')
    return values or {}


def _check_names(values: dict[Any, Any], path: Path) -> None:
    """Raise for names that are not options, with the one to use instead."""
    known = [item.name for item in fields(TrainOptions)]
    unknown = sorted(str(name) for name in values if name not in known)
    for name in unknown:
        if name in RENAMED:
            raise ValueError(f'"{path}": {name} is now {RENAMED[name]}')
        if name in REMOVED:
            raise ValueError(f'"{path}": {name} was removed in 0.2: see docs/negative-results.md')
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f'"{path}" names options that are not known: {", ".join(unknown)}{hint}')
