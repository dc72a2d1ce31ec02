"""Checkpoints that survive a kill at any instant, and hold no pickle.

A checkpoint is one safetensors file: tensors, and everything else as JSON in its header. It is
written under another name, flushed to the disk and renamed, so what bears its name is complete.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from paumer.disk import replace_file

_SUFFIX = ".safetensors"


def save_checkpoint(directory: Path, step: int, state: dict[str, object], keep: int = 2) -> Path:
    """Write the state after ``step``; older checkpoints beyond ``keep`` go only after that."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    outline = _take_out(state, "", tensors)
    content = save(tensors, metadata={"step": str(step), "outline": json.dumps(outline)})
    path = directory / _name(step)
    replace_file(path, content)
    for old in list_checkpoints(directory)[keep:]:
        if old != path:
            old.unlink(missing_ok=True)
    return path


def load_checkpoint(directory: Path) -> tuple[int, dict[str, object]]:
    """The step and state of the newest checkpoint that can be read.

    Raises FileNotFoundError where there is none, and ValueError where none can be read.
    """
    problems = []
    for path in list_checkpoints(directory):
        try:
            return _read(path)
        except UNREADABLE as error:
            problems.append(f"{path.name}: {str(error) or type(error).__name__}")
    if problems:
        raise ValueError(
            f'no checkpoint in "{directory}" can be read ({"; ".join(problems)}): bring one back, '
            f"or remove them to start from the beginning"
        )
    raise FileNotFoundError(f'there is no checkpoint in "{directory}"')


UNREADABLE = (SafetensorError, OSError, ValueError, TypeError, LookupError, RuntimeError)
"""What reading a damaged or foreign checkpoint raises, or putting one where it does not fit."""


def _read(path: Path) -> tuple[int, dict[str, object]]:
    with safe_open(path, "pt") as file:
        header = file.metadata() or {}
        if not header.keys() >= {"step", "outline"}:
            raise ValueError("it is not a checkpoint of a training run")
        step, state = int(header["step"]), _put_back(json.loads(header["outline"]), file)
    if path.name != _name(step):
        raise ValueError(f"it says it is of step {step}")
    if not isinstance(state, dict):
        raise ValueError(f"it holds no state but {state!r:.40}")
    return step, state


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    found = sorted(directory.glob(f"step-*{_SUFFIX}"), reverse=True)
    return [path for path in found if path.is_file()]


def _name(step: int) -> str:
    return f"step-{step:08d}{_SUFFIX}"


def _take_out(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with each tensor replaced by a reference to it."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        items = [[key, _take_out(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        return {"dict": items}
    if isinstance(value, list | tuple):
        return [_take_out(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _put_back(outline: Any, file: Any) -> Any:
    if isinstance(outline, list):
        return [_put_back(item, file) for item in outline]
    if isinstance(outline, dict):
        if "tensor" in outline:
            return file.get_tensor(outline["tensor"])
        return {key: _put_back(item, file) for key, item in outline["dict"]}
    return outline
