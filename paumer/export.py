"""ONNX, OpenVINO and torch.export of one configuration or of all, with the proof that they agree.

With `export_fused` the only module that knows onnx and the engines. An exported network takes
normalised pictures of one size, any number of them, and gives coarse logits and the block each
patch paused after: what the predictor needs, so that all engines share its path.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from paumer.criteria import named, on_grid
from paumer.disk import replace_file
from paumer.export_fused import fuse_attention, write_rounded
from paumer.model.segmenter import PausingSegmenter
from paumer.model.weights import ModelConfig
from paumer.pause_config import PauseConfig, Threshold
from paumer.pausing import going_on

AGREEMENT = 0.999
"""The least share of patches whose class must agree with the network before export."""

ROUNDED_AGREEMENT = 0.98
"""The same where weights were rounded to 8 bits."""

EXPORTED = ("entropy", "borders", "neighbours")
"""Criteria by which exported networks pause."""


@dataclass(frozen=True)
class ExportInfo:
    """What an exported file says of itself: how it was made, and what it takes and gives.

    ``pause`` is None where the file serves all configurations of ``blocks``; then its second input
    says how many patches go on after each.
    """

    config: dict[str, Any]
    size: tuple[int, int]
    pause: str | None
    blocks: tuple[int, ...]
    early_exit: bool
    patches: int
    criterion: str = "entropy"

    def kept(self, pause: PauseConfig) -> list[int]:
        """How many patches go on after each of the file's blocks at a configuration."""
        shares = dict(pause.stages)
        extra = sorted(set(shares) - set(self.blocks))
        if extra:
            raise ValueError(
                f'this file cannot pause after block {extra[0]} ("{pause}"): it was exported for '
                f"{', '.join(map(str, self.blocks))}"
            )
        counts, active = [], self.patches
        for block in self.blocks:
            share = shares.get(block, 0.0)
            if isinstance(share, Threshold):
                raise ValueError(f'an exported file takes shares, not thresholds ("{pause}")')
            active = going_on(active, share)
            counts.append(active)
        return counts

    def to_json(self) -> str:
        """As text, for the file's metadata."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ExportInfo":
        """What ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "size": tuple(values["size"]), "blocks": tuple(values["blocks"])})


class _Fixed(nn.Module):
    """One configuration as a module of one input."""

    def __init__(self, model: PausingSegmenter, pause: PauseConfig, info: ExportInfo) -> None:
        super().__init__()
        self.model, self.pause, self.info = model, pause, info

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        who = named(self.info.criterion)
        out = self.model(images, self.pause, who, self.info.early_exit, full_size=False)
        return out.logits, out.paused_after()


class _Dial(nn.Module):
    """All configurations of some blocks as a module whose second input says how many go on."""

    def __init__(self, model: PausingSegmenter, info: ExportInfo) -> None:
        super().__init__()
        self.model, self.info = model, info

    def forward(self, images: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        model, grid = self.model, self.model.grid(images)
        judge = on_grid(named(self.info.criterion), grid)
        walk, done = model.start(images), 0
        for place, block in enumerate(self.info.blocks):
            walk = model.advance(walk, done, block)
            count = cast(int, kept[place].item())  # int() would ask for its value now.
            torch._check(count >= 1)
            torch._check(count <= walk.places.shape[1])
            (walk,) = model.pause(walk, block, count, judge)
            done = block
        walk = model.advance(walk, done, model.backbone.depth)
        out = model.finish([walk], grid, self.info.early_exit)
        return out.logits, out.paused_after()


@torch.inference_mode(False)  # In which the exporter cannot trace.
def export_onnx(
    model: PausingSegmenter,
    path: Path,
    size: tuple[int, int],
    pause: PauseConfig | None = None,
    blocks: Sequence[int] = (3, 5, 7),
    early_exit: bool = False,
    criterion: str = "entropy",
) -> ExportInfo:
    """Write an ONNX file for pictures of ``size`` (height, width), a multiple of the patch.

    With ``pause`` for that configuration, without it for all configurations of ``blocks``.
    """
    onnx = _need("onnx", "onnx")
    _need("onnxscript", "onnx")
    model = model.eval()
    info = _describe(model, size, pause, blocks, early_exit, criterion)
    images = torch.randn(2, 3, *size)
    batch = torch.export.Dim("batch", min=1, max=1024)
    if pause is not None:
        module: nn.Module = _Fixed(model, pause, info)
        inputs: tuple[Tensor, ...] = (images,)
        shapes: dict[str, Any] = {"images": {0: batch}}
    else:
        module = _Dial(model, info)
        start = torch.tensor(info.kept(PauseConfig(tuple((b, 0.3) for b in info.blocks))))
        inputs, shapes = (images, start), {"images": {0: batch}, "kept": None}
    with _only_errors("onnx_ir"):
        program = torch.onnx.export(
            module.eval(),
            inputs,
            input_names=["images", "kept"][: len(inputs)],
            output_names=["logits", "paused_after"],
            dynamic_shapes=shapes,
            custom_translation_table={torch.ops.aten.sort.stable: _sort},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "paumer", info.to_json()
    onnx.checker.check_model(proto)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, proto.SerializeToString())
    return info


@contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Keep a library's warnings, of which a user can make nothing, from being printed."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _sort(
    self: Any, *, stable: bool = True, dim: int = -1, descending: bool = False
) -> tuple[Any, Any]:
    """Sorting in ONNX: its TopK gives equal values in their first order, as a stable sort does."""
    from onnxscript import opset18 as op

    count = op.Shape(self, start=dim, end=None if dim == -1 else dim + 1)
    values, places = op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)
    return values, places


def round_onnx(source: Path, path: Path) -> None:
    """Write an exported ONNX file with linear layers in 8 bits, for ONNX Runtime alone."""
    _need("onnxruntime", "onnx")
    with _only_errors("root"):
        write_rounded(_read_onnx(source)[0], path)


def export_program(
    model: PausingSegmenter,
    path: Path,
    size: tuple[int, int],
    pause: PauseConfig,
    early_exit: bool = False,
    criterion: str = "entropy",
) -> ExportInfo:
    """Write a torch.export program (.pt2) of one configuration."""
    model = model.eval()
    info = _describe(model, size, pause, (), early_exit, criterion)
    batch = torch.export.Dim("batch", min=1, max=1024)
    with torch.no_grad():
        program = torch.export.export(
            _Fixed(model, pause, info),
            (torch.randn(2, 3, *size),),
            dynamic_shapes={"images": {0: batch}},
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial.pt2")
    torch.export.save(program, partial, extra_files={"paumer.json": info.to_json()})
    partial.replace(path)
    return info


def open_program(path: Path) -> "Runner":
    """A function that runs a torch.export program."""
    module = torch.export.load(path).module()

    def run(images: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            logits, paused = module(torch.from_numpy(images))
        return logits.numpy(), paused.numpy()

    return run


Runner = Callable[[Float[np.ndarray, "b 3 h w"], list[int]], tuple[np.ndarray, np.ndarray]]
"""Pictures and how many patches go on, in; logits and the block each patch paused after, out."""


def open_onnx(
    path: Path, engine: str = "onnx", threads: int | None = None, fused: bool = False
) -> tuple[ExportInfo, Runner]:
    """What an ONNX file says of itself, and a function that runs it in an engine.

    ``fused`` makes each attention one operation first, where ONNX Runtime runs it.
    """
    if not path.is_file():
        raise FileNotFoundError(f'there is no exported file "{path}": make it with paumer export')
    if engine == "openvino":
        return _open_openvino(path, threads)
    runtime = _need("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    proto, info = _read_onnx(path)
    if fused:
        fuse_attention(proto)
    # Activations are rounded together: pictures run one by one, and none depends on the others.
    rounded = any(node.op_type == "DynamicQuantizeLinear" for node in proto.graph.node)
    content = proto.SerializeToString()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The runtime raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot run "{path}": {error}') from error

    def run(images: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
        counts = {"kept": np.asarray(kept, np.int64)} if info.pause is None else {}
        parts = np.split(images, len(images)) if rounded else [images]
        found = [session.run(None, {"images": part, **counts}) for part in parts]
        logits, paused = (np.concatenate(each) for each in zip(*found, strict=True))
        return logits, paused

    return info, run


def _open_openvino(path: Path, threads: int | None) -> tuple[ExportInfo, Runner]:
    openvino = _need("openvino", "openvino")
    _, info = _read_onnx(path)
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()

    def run(images: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
        feed: dict[str, Any] = {"images": images}
        if info.pause is None:
            feed["kept"] = np.asarray(kept, np.int64)
        results = request.infer(feed)
        return results["logits"], results["paused_after"]

    return info, run


def verify(
    model: PausingSegmenter,
    info: ExportInfo,
    run: Runner,
    images: Float[Tensor, "b 3 h w"],
    pauses: Sequence[PauseConfig],
    least: float = AGREEMENT,
) -> float:
    """The least share of patches, over configurations, whose class agrees with the network.

    Raises if it is below ``least``.
    """
    worst = 1.0
    for pause in pauses:
        with torch.inference_mode():
            exits = info.early_exit and bool(pause)
            own = model(images, pause, named(info.criterion), exits, full_size=False)
        kept = info.kept(pause) if info.pause is None else []
        logits, _ = run(images.numpy(), kept)
        same = logits.argmax(1) == own.logits.argmax(1).numpy()
        worst = min(worst, float(same.mean()))
        if worst < least:
            raise ValueError(
                f'the exported network disagrees with the original at "{pause}": only '
                f"{worst:.2%} of the patches have the same class"
            )
    return worst


def _describe(
    model: PausingSegmenter,
    size: tuple[int, int],
    pause: PauseConfig | None,
    blocks: Sequence[int],
    early_exit: bool,
    criterion: str,
) -> ExportInfo:
    if criterion not in EXPORTED:
        raise ValueError(f'no export pauses by "{criterion}": choose one of {", ".join(EXPORTED)}')
    if model.config is None:
        raise ValueError("the network has no configuration: its classes are not known")
    patch = model.backbone.patch
    if any(side % p for side, p in zip(size, patch, strict=True)):
        raise ValueError(
            f"a size of {size[1]}x{size[0]} is not made of whole patches of {patch[1]}x{patch[0]}"
        )
    if pause is not None:
        model.check(pause, early_exit)
        if any(isinstance(amount, Threshold) for _, amount in pause.stages):
            raise ValueError(f'an exported file takes shares, not thresholds ("{pause}")')
    else:
        model.check(PauseConfig(tuple((block, 0.5) for block in blocks)), early_exit)
        if model.context:
            raise ValueError(
                "one file cannot serve all configurations of a model with a context, because how "
                "many means go on depends on where patches pause: give one (--pause)"
            )
    assert isinstance(model.config, ModelConfig)
    return ExportInfo(
        config=model.config.to_json(),
        size=size,
        pause=None if pause is None else str(pause),
        blocks=() if pause is not None else tuple(blocks),
        early_exit=early_exit,
        patches=(size[0] // patch[0]) * (size[1] // patch[1]),
        criterion=criterion,
    )


def _read_onnx(path: Path) -> tuple[Any, ExportInfo]:
    """The graph of an ONNX file, and what it says of itself."""
    onnx = _need("onnx", "onnx")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # The reader raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot read "{path}": {error}') from error
    found = {entry.key: entry.value for entry in proto.metadata_props}
    if "paumer" not in found:
        raise ValueError(f'"{path}" was not made by paumer export: it does not say what it takes')
    return proto, ExportInfo.from_json(found["paumer"])


def _need(module: str, extra: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'paumer[{extra}]'") from error


USE_SCRIPT = '''"""Segment a picture with {file}: python THIS.py street.jpg [share ...]

Needs numpy, pillow and onnxruntime. With a file for all configurations, give a share for each
block at which it can pause.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime
from PIL import Image

file = pathlib.Path(__file__).with_name("{file}")
session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
info = json.loads(session.get_modelmeta().custom_metadata_map["paumer"])
config, (height, width) = info["config"], info["size"]

picture = Image.open(sys.argv[1]).convert("RGB")
pixels = np.asarray(picture.resize((width, height)), np.float32) / 255
normal = (pixels - np.float32(config["mean"])) / np.float32(config["std"])
feed = {{"images": normal.transpose(2, 0, 1)[None]}}
if info["pause"] is None:
    shares = [float(text) for text in sys.argv[2:]] or [0.4] * len(info["blocks"])
    if len(shares) != len(info["blocks"]):
        sys.exit(f"give a share for each of the blocks {{info['blocks']}}")
    counts, active = [], info["patches"]
    for share in shares:
        active = max(1, active - int(share * active))
        counts.append(active)
    feed["kept"] = np.array(counts, np.int64)
logits, paused_after = session.run(None, feed)
labels = logits[0].argmax(0)
for label, count in sorted(zip(*np.unique(labels, return_counts=True)), key=lambda pair: -pair[1]):
    print(f"{{config['classes'][label]}}: {{count / labels.size:.1%}}")
print(f"{{(paused_after > 0).mean():.0%}} of the patches paused")
mask = Image.fromarray(labels.astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
mask.save(pathlib.Path(sys.argv[1]).stem + "_mask.png")
'''
"""A small program that uses an exported file and nothing of paumer."""
