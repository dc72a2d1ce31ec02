"""Files <-> (configuration, tensors): our model directories, and how they survive bad luck.

Nothing here knows a network class, and nothing here reads a pickle.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paumer.disk import new_beside, sync
from paumer.model.config import MODEL_TYPE, ModelConfig
from paumer.untrusted import near, read_json, shorten

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
PROCESSOR_FILE = "preprocessor_config.json"
POINTS_FILE = "operating_points.json"
MODELS = Path(__file__).parents[1] / "models"
"""Where the built-in models lie, each a directory of its name."""
_PATIENCE = 5.0  # Seconds in which the hub has to answer.


def save_model(directory: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a model directory.

    A new one appears complete or not at all. In one that exists each file is replaced as a whole,
    all of them or none if something fails, and a model card or other files already there stay.
    """
    with new_beside(directory) as new:
        _save_tensors(new / WEIGHTS_FILE, tensors)
        values = {"model_type": MODEL_TYPE, **config.to_json()}
        (new / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        # What transformers asks for; the rest it reads from the configuration (huggingface.py).
        (new / PROCESSOR_FILE).write_text('{"image_processor_type": "PaumerImageProcessor"}\n')
        if not (directory / CARD_FILE).exists():
            (new / CARD_FILE).write_text(_model_card(config), "utf-8")
        for file in new.iterdir():
            sync(file)
        if directory.exists():
            _move_files(new, directory)
            sync(directory)
        else:
            new.rename(directory)
        sync(new.parent)


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a new file; a disk that fails is an OSError."""
    path.touch()
    mode = path.stat().st_mode  # As the umask says, where safetensors lets nobody else read.
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        raise OSError(f'cannot write "{path.name}": {error}') from error
    path.chmod(mode)


def _move_files(new: Path, directory: Path) -> None:
    """Replace the files of a directory by the new ones, or put the old ones back and raise."""
    before = new / "before"
    before.mkdir()
    names = [
        name
        for name in (WEIGHTS_FILE, CONFIG_FILE, PROCESSOR_FILE, CARD_FILE)
        if (new / name).exists()
    ]
    for name in names:
        if (directory / name).exists():
            try:
                os.link(directory / name, before / name)
            except OSError:  # A file system without hard links.
                shutil.copy2(directory / name, before / name)
    try:
        for name in names:
            os.replace(new / name, directory / name)
    except BaseException:
        for name in names:
            if (before / name).exists():
                os.replace(before / name, directory / name)
            else:
                (directory / name).unlink(missing_ok=True)
        raise


class HubOptions(TypedDict, total=False):
    """How a model is asked for from the hub: as in ``huggingface_hub.hf_hub_download``."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool
    force_download: bool


def find_model(name: str, **hub: Unpack[HubOptions]) -> Path:
    """The directory of a model on disk, a training run's, a built-in one, or one from the hub.

    Only ``config.json``, ``model.safetensors`` and the operating points are ever downloaded:
    pickles are refused.
    """
    if unknown := sorted(set(hub) - set(HubOptions.__annotations__)):
        choice = ", ".join(HubOptions.__annotations__)
        raise TypeError(f'no option "{unknown[0]}" of a hub model: there are {choice}')
    if os.path.isdir(name):
        inner = Path(name) / "model"
        return inner if (inner / CONFIG_FILE).is_file() else Path(name)
    built_in = [known.name for known in MODELS.glob("*")]
    if name in built_in:
        return MODELS / name
    if is_model(name):
        return Path(name).parent
    if os.path.lexists(name):
        raise ValueError(f'"{name}" is a file, not a model directory{_hint(Path(name).suffix)}')
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name[0] == ".":
        raise FileNotFoundError(
            f'no model directory at "{name}"{_near(name, built_in)}: give a directory, '
            f"a built-in name ({', '.join(built_in)}) or a hub id (owner/name)"
        )
    is_there = _hub_answers()
    if not is_there and not hub.get("force_download"):
        hub["local_files_only"] = True
    try:
        paths = [hf_hub_download(name, file, **hub) for file in (CONFIG_FILE, WEIGHTS_FILE)]
    except (EntryNotFoundError, HFValidationError, OSError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise FileNotFoundError(
                f'hub model "{name}" has no {CONFIG_FILE} with {WEIGHTS_FILE}: '
                f"weights kept as a pickle (pytorch_model.bin) are not loaded"
            ) from error
        reason = str(error).splitlines()[0] if is_there else "it does not answer"
        raise FileNotFoundError(
            f'no model directory at "{name}"{_near(name, built_in)}, and no such model could be '
            f"loaded from the hub: {reason}"
        ) from error
    with suppress(EntryNotFoundError, OSError):
        hf_hub_download(name, POINTS_FILE, **hub)
    return Path(paths[0]).parent


def is_model(file: str | Path) -> bool:
    """Whether a file is the weights of a model directory, not those of a backbone."""
    file = Path(file)
    with suppress(OSError, ValueError):
        config = read_json(file.parent / CONFIG_FILE)
        return file.is_file() and file.name == WEIGHTS_FILE and "decoder" in config
    return False


def _near(name: str, built_in: Sequence[str]) -> str:
    """What was meant, where something there is has a name like that."""
    beside: list[str] = []
    with suppress(OSError):
        beside = [str(path) for path in Path(name).parent.iterdir() if path.is_dir()]
    return near(name, [*built_in, *beside])


def _hint(suffix: str) -> str:
    """What would do instead of a file with that suffix."""
    if suffix in (".onnx", ".pt2"):
        return ": an exported file predicts, and cannot be trained or exported again"
    if suffix in (".pth", ".pt", ".ckpt"):
        return ": paumer import makes one of a checkpoint"
    return f": give the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}"


def _hub_answers() -> bool:
    """Whether the hub is there; asking it for a file would take half a minute to find out."""
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # Which one depends on the library that asks.
        return False
    return True


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
            raise FileNotFoundError(
                f'"{directory}" is not a model directory: {name} is missing{hint}'
            )
    values = read_json(directory / CONFIG_FILE)
    try:
        config = ModelConfig.from_json(values)
    except (ValueError, TypeError, RecursionError) as error:
        reason = shorten(str(error))
        raise ValueError(f'cannot read "{directory / CONFIG_FILE}": {reason}') from error
    try:
        return config, load_file(directory / WEIGHTS_FILE)
    except (SafetensorError, OSError, ValueError) as error:
        reason = shorten(str(error))
        raise ValueError(f'cannot read "{directory / WEIGHTS_FILE}": {reason}') from error


def load_tensors(
    module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path, fresh: str = ""
) -> None:
    """Put tensors into a module: all of them, each where it belongs.

    Those whose name starts with ``fresh`` may be missing and keep the values they have. The module
    may have been built on the meta device; then it is on the CPU.
    """
    expected = module.state_dict()
    needed = [key for key in expected if not (fresh and key.startswith(fresh))]
    missing = [key for key in needed if key not in tensors]
    surplus = [key for key in tensors if key not in expected]
    shapes = [
        f"{key} is {tuple(tensors[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in expected
        if key in tensors and tensors[key].shape != expected[key].shape
    ]
    types = [
        f"{key} is {tensor.dtype}, expected {wanted.dtype}"
        for key, wanted in expected.items()
        if (tensor := tensors.get(key, wanted)).is_floating_point() != wanted.is_floating_point()
    ]
    titles = {"missing": missing, "not known": surplus, "wrong shape": shapes, "wrong type": types}
    problems = [
        f"{title}: {shorten(', '.join(keys[:5]))}"
        + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        for title, keys in titles.items()
        if keys
    ]
    if problems:
        raise ValueError(f'tensors of "{source}" do not fit the model; {"; ".join(problems)}')
    meta = any(tensor.is_meta for tensor in expected.values())
    # Copied where kept, because what is mapped from a file may lie at odd addresses.
    values = {name: tensor.to(expected[name].dtype, copy=meta) for name, tensor in tensors.items()}
    module.load_state_dict(values, strict=False, assign=meta)
    for part in module.modules():
        # Such as rotary tables, which no file holds.
        empty = [item for item in part.named_buffers(recurse=False) if item[1].is_meta]
        for name, buffer in empty:
            setattr(part, name, torch.empty_like(buffer, device="cpu"))
        if empty:
            part.init_non_persistent_buffers()  # type: ignore[operator]


def _model_card(config: ModelConfig) -> str:
    return (
        "---\nlibrary_name: paumer\npipeline_tag: image-segmentation\ntags:\n- paumer\n---\n\n"
        f"# {config.backbone}, {config.decoder} decoder, {len(config.classes)} classes\n\n"
        "A segmenter whose patches can pause. One set of weights serves every pause "
        "configuration:\n\n"
        "```python\nimport paumer\n\n"
        'model = paumer.load("path/to/this/directory")\n'
        'result = model.predict("street.jpg", "3:0.4,5:0.4")\n```\n\n'
        f"Images are RGB, scaled to 0..1, mean {list(config.mean)}, std {list(config.std)}.\n\n"
        f"Classes: {', '.join(config.classes)}.\n"
    )
