"""Files <-> (configuration, tensors): our model directories, and how they survive bad luck.

Nothing here knows a network class, and nothing here reads a pickle.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paumer.disk import sync, usual_mode

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
POINTS_FILE = "operating_points.json"
MODELS = Path(__file__).parents[1] / "models"
"""Where the built-in models lie, each a directory of its name."""

_LARGEST = 65536  # No real picture side or decoder width is beyond this.


@dataclass(frozen=True)
class ModelConfig:
    """How to build the network again, and what its classes and pictures are.

    ``short_side`` is the length that the shorter side of pictures is scaled to, None leaves them;
    ``window`` and ``stride`` say how large pictures are cut (see ``Inference``). ``rejoin`` is the
    block before which paused patches come back; without it they meet again in the decoder. With
    ``context`` the mean of the patches that pause goes on in their place. With ``aux_norm`` the
    auxiliary head normalises what it reads. ``temperatures`` divide the logits of an early exit:
    the auxiliary head's after each block, then the decoder's.
    """

    backbone: str
    decoder: str
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    colours: tuple[tuple[int, int, int], ...] = ()
    decoder_options: Mapping[str, int | float] = field(default_factory=dict)
    norm_eps: float | None = None
    position_resize: str = "timm"
    drop_path: float = 0.0
    short_side: int | None = None
    window: int | None = None
    stride: int | None = None
    rejoin: int | None = None
    context: bool = False
    aux_norm: bool = False
    temperatures: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.backbone, self.decoder, self.position_resize, *_listed(self.classes)):
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is not a name")
        if not self.classes:
            raise ValueError("classes needs at least one name")
        _check_numbers("image_size", self.image_size, 2, 1, _LARGEST)
        _check_numbers("mean", self.mean, 3, -_LARGEST, _LARGEST)
        _check_numbers("std", self.std, 3, 1e-6, _LARGEST)
        _check_numbers("norm_eps", [1e-5 if self.norm_eps is None else self.norm_eps], 1, 0, 1)
        _check_numbers("drop_path", [self.drop_path], 1, 0, 1)
        for name in ("short_side", "window", "stride", "rejoin"):
            _check_numbers(name, [getattr(self, name) or 1], 1, 1, _LARGEST)
        temperatures = _listed(self.temperatures)
        _check_numbers("temperatures", temperatures, len(temperatures), 0.01, 100)
        for name in ("context", "aux_norm"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name}: {value!r} is not true or false")
        for colour in _listed(self.colours):
            _check_numbers("colours", colour, 3, 0, 255)
        if self.colours and len(self.colours) != len(self.classes):
            raise ValueError(f"{len(self.colours)} colours for {len(self.classes)} classes")
        if not isinstance(self.decoder_options, Mapping):
            raise ValueError(f"decoder_options {self.decoder_options!r} are not named numbers")
        for name, number in self.decoder_options.items():
            _check_numbers(name, [number], 1, 0, 64 if name == "depth" else _LARGEST)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The configuration written as JSON values; anything unknown or missing is named."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known - {"format"}):
            raise ValueError(f"unknown entries: {', '.join(unknown)}")
        if missing := sorted({"backbone", "decoder", "classes", "image_size"} - set(values)):
            raise ValueError(f"missing entries: {', '.join(missing)}")
        given = {key: _frozen(value) for key, value in values.items() if key in known}
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The configuration as JSON values; what came later is named only where it is used."""
        later = {"rejoin": None, "context": False, "aux_norm": False, "temperatures": ()}
        values = {key: v for key, v in asdict(self).items() if key not in later or v != later[key]}
        return {"format": "paumer 1", **values}


def save_model(directory: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a model directory.

    A new one appears complete or not at all. In one that exists each file is replaced as a whole,
    all of them or none if something fails, and a model card or other files already there stay.
    """
    parent = directory.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=parent))
    try:
        new.chmod(usual_mode())
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, new / WEIGHTS_FILE, metadata={"format": "pt"})
        (new / CONFIG_FILE).write_text(json.dumps(config.to_json(), indent=2) + "\n", "utf-8")
        if not (directory / CARD_FILE).exists():
            (new / CARD_FILE).write_text(_model_card(config), "utf-8")
        for file in new.iterdir():
            sync(file)
        if directory.exists():
            _move_files(new, directory)
            sync(directory)
        else:
            new.rename(directory)
        sync(parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _move_files(new: Path, directory: Path) -> None:
    """Replace the files of a directory by the new ones, or put the old ones back and raise."""
    before = new / "before"
    before.mkdir()
    names = [name for name in (WEIGHTS_FILE, CONFIG_FILE, CARD_FILE) if (new / name).exists()]
    for name in names:
        if (directory / name).exists():
            _link(directory / name, before / name)
    moved = []
    try:
        for name in names:
            moved.append(name)
            os.replace(new / name, directory / name)
    except BaseException:
        for name in moved:
            if (before / name).exists():
                os.replace(before / name, directory / name)
            else:
                (directory / name).unlink(missing_ok=True)
        raise


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:  # A file system without hard links.
        shutil.copy2(file, to)


def find_model(name: str, **hub_options: Any) -> Path:
    """The directory of a model on disk, a training run's, a built-in one, or one from the hub.

    Only ``config.json``, ``model.safetensors`` and, where there are any, the operating points are
    ever asked for; pickles are refused.
    """
    if os.path.isdir(name):
        inner = Path(name) / "model"
        return inner if (inner / CONFIG_FILE).is_file() else Path(name)
    if name in (known.name for known in MODELS.glob("*")):
        return MODELS / name
    try:
        paths = [hf_hub_download(name, file, **hub_options) for file in (CONFIG_FILE, WEIGHTS_FILE)]
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise _no_model(name, error) from error
    except EntryNotFoundError as error:
        raise FileNotFoundError(
            f'hub model "{name}" has no {CONFIG_FILE} with {WEIGHTS_FILE}: '
            f"weights kept as a pickle (pytorch_model.bin) are not loaded"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise _no_model(name, error) from error
    with suppress(EntryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError):
        hf_hub_download(name, POINTS_FILE, **hub_options)
    return Path(paths[0]).parent


def _no_model(name: str, error: Exception) -> FileNotFoundError:
    return FileNotFoundError(
        f'no model directory at "{name}", and no such model could be had from the hub ({error})'
    )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A text that differs where any weight differs."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_model(directory: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and tensors of a model directory."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            hint = ""
            if name == WEIGHTS_FILE and (directory / "pytorch_model.bin").exists():
                hint = "; its pytorch_model.bin is a pickle, which could run code: not loaded"
            raise FileNotFoundError(f'"{directory}" is no model directory: {name} is missing{hint}')
    try:
        values = json.loads((directory / CONFIG_FILE).read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        config = ModelConfig.from_json(values)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f'cannot read "{directory / CONFIG_FILE}": {error}') from error
    try:
        return config, load_file(directory / WEIGHTS_FILE)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f'cannot read "{directory / WEIGHTS_FILE}": {error}') from error


def load_tensors(
    module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path, fresh: str = ""
) -> None:
    """Put tensors into a module: all of them, each where it belongs.

    Those whose name starts with ``fresh`` may be missing and keep the values they have.
    """
    check_tensors(module, tensors, source, fresh)
    module.load_state_dict(dict(tensors), strict=False)


def check_tensors(
    module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path, fresh: str = ""
) -> None:
    """Raise unless ``load_tensors`` would find every name and shape in place."""
    own = module.state_dict()
    missing = [key for key in own if key not in tensors and not (fresh and key.startswith(fresh))]
    surplus = [key for key in tensors if key not in own]
    shapes = [
        f"{key} is {tuple(tensors[key].shape)}, expected {tuple(own[key].shape)}"
        for key in own
        if key in tensors and tensors[key].shape != own[key].shape
    ]
    problems = [
        f"{title}: {', '.join(keys[:5])}{f' and {len(keys) - 5} more' if len(keys) > 5 else ''}"
        for title, keys in (("missing", missing), ("not known", surplus), ("wrong shape", shapes))
        if keys
    ]
    if problems:
        raise ValueError(f'tensors of "{source}" do not fit the model; {"; ".join(problems)}')


def _listed(values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{values!r} is not a list")
    return values


def _check_numbers(name: str, values: Any, count: int, low: float, high: float) -> None:
    for value in _listed(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: {value!r} is not a number")
        if not low <= value <= high:
            raise ValueError(f"{name}: {value} is out of range, {low} to {high}")
    if len(values) != count:
        raise ValueError(f"{name} needs {count} numbers, not {len(values)}")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _model_card(config: ModelConfig) -> str:
    return (
        "---\nlibrary_name: paumer\npipeline_tag: image-segmentation\ntags:\n- paumer\n---\n\n"
        f"# {config.backbone}, {config.decoder} decoder, {len(config.classes)} classes\n\n"
        "A segmenter whose patches can pause. One set of weights serves every pause "
        "configuration:\n\n"
        "```python\nfrom paumer import PauseConfig, PausingSegmenter\n\n"
        'model = PausingSegmenter.from_pretrained("path/to/this/directory")\n'
        'prediction = model(images, PauseConfig.parse("3:0.4,5:0.4"))\n```\n\n'
        f"Pictures are RGB, scaled to 0..1, mean {list(config.mean)}, std {list(config.std)}.\n\n"
        f"Classes: {', '.join(config.classes)}.\n"
    )
