"""The options of a training; `paumer train` is derived from them, recipes are files of them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter

from paumer.arguments import check_fields, fits, in_words
from paumer.untrusted import near, quoted, shorten

Several = Parameter(consume_multiple=True, negative=())
RUN, MODEL, DATA, PAUSING, LOSS, OPTIMISER, MACHINE = (
    Parameter(group=Group(name, sort_key=number))
    for number, name in enumerate(
        ("Run", "Model", "Data", "Pausing", "Loss", "Optimiser", "Machine")
    )
)
"""How help is ordered."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `paumer train`. A recipe is a YAML file of these."""

    out: Annotated[Path, RUN] = Path("runs/train")
    """Run directory to write; it must not exist."""
    seed: Annotated[int, RUN] = 0
    """Seed of order, crops, draws and new weights."""
    val_every: Annotated[int, RUN] = 500
    """Steps between validations, which also happen at the end."""
    val_mode: Annotated[tuple[str, ...], Several, RUN] = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4")
    """Modes to validate."""
    val_images: Annotated[int | None, RUN] = None
    """Validate on only this many images, spread over the split."""
    save_every: Annotated[int, RUN] = 250
    """Steps between checkpoints."""
    logger: Annotated[tuple[str, ...], Several, RUN] = ("tensorboard",)
    """Loggers besides metrics.csv: tensorboard, none, or with the extra `loggers` mlflow, wandb,
    comet."""

    backbone: Annotated[str, MODEL] = "vit_tiny_patch16_384"
    """timm name of the backbone."""
    decoder: Annotated[Literal["mask", "linear", "pup", "pup-tiny"] | None, MODEL] = None
    """Decoder (default: that of the model to start from, or mask); pup-tiny is the paper's SETR-PUP
    for ViT-Ti."""
    init: Annotated[str, MODEL] = "timm"
    """Where weights come from: timm (download), none, a backbone's .safetensors file, or a model: a
    built-in name, a model directory, a training run or a hub id."""
    context: Annotated[bool, MODEL] = False
    """After a pause the mean of the patches that paused continues with the active ones."""
    window: Annotated[int | None, MODEL] = None
    """Side of sliding windows at inference (default: the whole image at once)."""
    stride: Annotated[int | None, MODEL] = None
    """Distance between windows (default: the window less 32, at least half of it)."""
    drop_path: Annotated[float, MODEL] = 0.1
    """Stochastic depth of the encoder, rising linearly."""
    dropout: Annotated[float, MODEL] = 0.1
    """Dropout of the mask decoder."""

    data: Annotated[str, DATA] = "scenes"
    """scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, a data.yaml, or several joined by +."""
    hold_out: Annotated[str | None, DATA] = None
    """Validate on the training images whose file names match this regular expression, such as a
    drive or a site, and train without them."""
    crop: Annotated[str, DATA] = "256"
    """Crop size: a side, or WIDTHxHEIGHT."""
    fit: Annotated[str | None, DATA] = None
    """Scale images to fit LONGxSHORT before drawing the scale (default: their own size)."""
    scale: Annotated[str, DATA] = "0.5-2"
    """Range of the random scale."""
    balance: Annotated[float, DATA] = 0.0
    """Probability that a crop is centred on a pixel of a class drawn from those in the image."""
    colour: Annotated[float, DATA] = 1.0
    """Strength of random brightness, contrast, saturation and hue: 0 none, 1 the paper's."""
    blur: Annotated[float, DATA] = 0.0
    """Probability of a random blur."""
    noise: Annotated[float, DATA] = 0.0
    """Largest standard deviation of random noise, as a fraction of the range, such as 0.05."""
    compress: Annotated[float, DATA] = 0.0
    """Probability of JPEG compression of a random quality."""
    cutout: Annotated[float, DATA] = 0.0
    """Probability that a random rectangle is hidden and ignored by the loss."""
    skip_bad: Annotated[bool, DATA] = False
    """Skip images that cannot be read, and list them in bad_images.txt."""

    criterion: Annotated[Literal["entropy", "random", "none"], PAUSING] = "entropy"
    """What scores the patches in training; none trains the plain Segmenter, without auxiliary
    loss."""
    ranges: Annotated[str, PAUSING] = "3-9:0.2-0.8"
    """Blocks to draw from and their range of ratios, such as 3-9:0.2-0.8 or 3:0-0.9,5:0.2-0.6."""
    draw: Annotated[tuple[str, ...], Several, PAUSING] = ("pause",)
    """What each step does, drawn from: pause, merge, both, none. One that is named twice is drawn
    twice as often."""
    merging: Annotated[str, PAUSING] = "1-6:0.02-0.15"
    """Blocks after which a merging step merges, up to a drawn one, and the range of its ratio."""
    learn: Annotated[Literal["all", "aux", "block-heads"], PAUSING] = "all"
    """What to train: all, the shared auxiliary head alone, or one head per block."""

    aux_weight: Annotated[float, LOSS] = 0.1
    """Weight of the auxiliary head's loss."""
    class_weights: Annotated[float, LOSS] = 0.0
    """Weigh classes in the loss by their rarity to this power: 0 for none, 0.5 for its root."""
    dice: Annotated[float, LOSS] = 0.0
    """Weight of a Dice loss added to the main decoder's cross entropy."""
    focal: Annotated[float, LOSS] = 0.0
    """Exponent of the focal loss: 0 is cross entropy, 2 gives easy pixels little weight."""
    label_smoothing: Annotated[float, LOSS] = 0.0
    """Fraction of each label that is spread evenly over all classes, such as 0.1."""

    steps: Annotated[int, OPTIMISER] = 2000
    """Training steps."""
    batch: Annotated[int, OPTIMISER] = 8
    """Images per step, over all processes."""
    accumulate: Annotated[int, OPTIMISER] = 1
    """Split each batch into this many parts to save memory."""
    optimizer: Annotated[Literal["adamw", "sgd"], OPTIMISER] = "adamw"
    """Optimiser; sgd has Nesterov momentum 0.9."""
    lr: Annotated[float, OPTIMISER] = 1e-3
    """Learning rate."""
    head_lr: Annotated[float, OPTIMISER] = 1.0
    """Factor on the learning rate of decoder and auxiliary head."""
    layer_decay: Annotated[float, OPTIMISER] = 1.0
    """Factor on the learning rate from each block to the one before it, such as 0.75."""
    min_lr: Annotated[float, OPTIMISER] = 1e-5
    """Learning rate at the end of the polynomial schedule (power 0.9)."""
    warmup: Annotated[int, OPTIMISER] = 0
    """Steps of linear warm-up."""
    weight_decay: Annotated[float, OPTIMISER] = 0.0
    """Weight decay of matrices; norms, biases and embeddings have none."""
    clip: Annotated[float | None, OPTIMISER] = None
    """Largest norm of the gradient."""
    ema: Annotated[float, OPTIMISER] = 0.0
    """Decay of an exponential moving average of the weights, which is validated and saved, such as
    0.999 (0: off)."""

    workers: Annotated[int, MACHINE] = 2
    """Processes that read and crop images."""
    devices: Annotated[int, MACHINE] = 1
    """Devices on this machine; torchrun and SLURM are recognised."""
    nodes: Annotated[int, MACHINE] = 1
    """Machines."""
    accelerator: Annotated[str, MACHINE] = "auto"
    """cpu, gpu, or auto."""
    precision: Annotated[Literal["fp32", "bf16"], MACHINE] = "fp32"
    """Number format."""

    def __post_init__(self) -> None:
        check_fields(self)


Callback = Callable[[int, dict[str, float]], None]
"""Called after a step with its number and what is known of it: loss, and sometimes lr and mIoU."""


@dataclass(frozen=True, kw_only=True)
class TrainCall(TrainOptions):
    """The options of a training from Python, where functions can be given too.

    As elsewhere, paths and sides may be of either type, and several of something one or a list.
    """

    out: str | Path = TrainOptions.out  # type: ignore[assignment]
    data: str | Path = TrainOptions.data  # type: ignore[assignment]
    init: str | Path = TrainOptions.init  # type: ignore[assignment]
    crop: str | int = TrainOptions.crop  # type: ignore[assignment]
    val_mode: str | Sequence[str] = TrainOptions.val_mode  # type: ignore[assignment]
    draw: str | Sequence[str] = TrainOptions.draw  # type: ignore[assignment]
    logger: str | Sequence[str] = TrainOptions.logger  # type: ignore[assignment]
    callbacks: Sequence[Callback] = ()
    """Each is called after every step."""

    def options(self) -> TrainOptions:
        """What a file can hold of it."""
        values = {item.name: getattr(self, item.name) for item in fields(TrainOptions)}
        for name in ("val_mode", "draw", "logger"):
            one = values[name]
            values[name] = (one,) if isinstance(one, str) else tuple(one)
        values |= {name: str(values[name]) for name in ("data", "init", "crop")}
        return TrainOptions(**{**values, "out": Path(self.out)})


TrainCall.__init__.__qualname__ = "train"  # What Python's own messages call it.


def parse_size(text: str | int) -> tuple[int, int]:
    """Width and height from ``512`` or ``1024x512``."""
    try:
        sides = [int(side) for side in str(text).lower().split("x")]
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
    if not isinstance(parent, str | None) or len(parent or "") > 1000:
        raise ValueError(f'"{path}" extends {quoted(parent)}: name one recipe, such as scenes.yaml')
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
    values["out"] = directory
    _check_names(values, path)
    for name, kind in get_type_hints(TrainOptions).items():
        if name in values and not fits(values[name], kind):
            given = str(values[name])[:60]
            raise ValueError(f'{name} is "{given}" in "{path}": give {in_words(kind)}')
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return TrainOptions(**values)


def plain_options(options: TrainOptions) -> dict[str, object]:
    """The options as YAML can hold them: ``read_options`` reads them back."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(options).items()}
    return {**plain, "out": str(options.out)}


def _read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; an empty file is an empty one."""
    from paumer.yaml_file import read_yaml

    values = read_yaml(path)
    if values is not None and not isinstance(values, dict):
        raise ValueError(f'"{path}" does not hold options: write lines such as "steps: 2000"')
    return values or {}


def _check_names(values: dict[Any, Any], path: Path) -> None:
    """Raise for names that are not options, with the one to use instead."""
    from paumer.yaml_file import line_of

    known = [item.name for item in fields(TrainOptions)]
    unknown = [str(name) for name in values if name not in known]
    for name in unknown:
        if name in RENAMED:
            raise ValueError(f'"{path}": {name} is now {RENAMED[name]}')
        if name in REMOVED:
            raise ValueError(f'"{path}": {name} was removed in 0.2: see docs/negative-results.md')
    if unknown:
        line, listed = line_of(path, unknown[0]), shorten(", ".join(unknown), 200)
        guess = near(unknown[0], known)
        raise ValueError(f'"{path}" names options that are not known: line {line}, {listed}{guess}')
