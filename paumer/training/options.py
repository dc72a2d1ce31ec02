"""The options of a training; `paumer train` is derived from them, recipes are files of them."""

import difflib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

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
    own = {str(name).replace("-", "_"): value for name, value in _read_mapping(path).items()}
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
    values = _read_mapping(path)
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
    for name, kind in get_type_hints(TrainOptions).items():
        if name in values and not _fits(values[name], kind):
            given = str(values[name])[:60]
            raise ValueError(f'{name} is "{given}" in "{path}": give {_in_words(kind)}')
    modes = values.get("val_mode", TrainOptions.val_mode)
    return TrainOptions(**{**values, "val_mode": tuple(modes), "out": directory})


_WORDS = {
    int: "a whole number",
    float: "a number, such as 0.001",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    NoneType: "null",
}


def _fits(value: object, kind: Any) -> bool:
    """Whether a value from YAML is of an option's type."""
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if parts := get_args(kind):
        return any(_fits(value, part) for part in parts)
    if kind is int:
        return type(value) is int and abs(value) < 2**63
    return type(value) in {float: (int, float), Path: (str,)}.get(kind, (kind,))


def _in_words(kind: Any) -> str:
    """What to give for an option of this type."""
    if get_origin(kind) is tuple:
        return "a list of texts"
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    return " or ".join(map(_in_words, get_args(kind))) or _WORDS[kind]


def plain_options(options: TrainOptions) -> dict[str, object]:
    """The options as YAML can hold them: ``read_options`` reads them back."""
    return {**asdict(options), "out": str(options.out), "val_mode": list(options.val_mode)}


def _read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; an empty file is an empty one."""
    from paumer.yaml_file import read_yaml

    values = read_yaml(path)
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
