"""Exported networks: what a file says of itself, and functions that run it.

With ``exporting`` the only module that knows onnx and the runtimes. An exported network takes
normalised images of one size, any number of them, and gives coarse logits and the block each patch
paused after: what the predictor needs, so that all engines share its path.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from jaxtyping import Float

from paumer.mode import Mode, ModeLike, check_runnable, read_mode
from paumer.model.walk import active_counts
from paumer.pause_config import MergeConfig, PauseConfig, Threshold

if TYPE_CHECKING:
    from onnx import ModelProto

Runner = Callable[[Float[np.ndarray, "b 3 h w"], list[int]], tuple[np.ndarray, np.ndarray]]
"""Images and how many patches continue, in; logits and the block each patch paused after, out."""

_Infer = Callable[[dict[str, np.ndarray]], list[np.ndarray]]

FORMAT = "paumer 2"
"""The version of what files say of themselves."""


@dataclass(frozen=True)
class ExportInfo:
    """What an exported file says of itself: how it was made, and what it takes and gives.

    With ``dial`` the ratios of the mode's stages are free: a second input says how many patches
    continue after each of its blocks.
    """

    config: dict[str, Any]
    size: tuple[int, int]
    mode: Mode
    dial: bool
    patches: int

    def kept(self, mode: ModeLike) -> list[int]:
        """How many patches are left after each of the file's stages in a mode."""
        mode = read_mode(mode)
        check_exportable(mode)
        own, asked = ([stage[:2] for stage in each.stages] for each in (self.mode, mode))
        if others := sorted(set(asked) - set(own)):
            block, merges = others[0]
            blocks = ", ".join(str(b) for b, m in own if m == merges) or "none"
            raise ValueError(
                f"this file cannot {'merge' if merges else 'pause'} after block {block} "
                f'("{mode}"): it was exported for {blocks}'
            )
        pauses, merged = dict(mode.pause.stages), dict(mode.merge.stages)
        whole = replace(
            mode,
            pause=PauseConfig(tuple((b, pauses.get(b, 0.0)) for b in self.mode.pause.blocks)),
            merge=MergeConfig(tuple((b, merged.get(b, 0.0)) for b, _ in self.mode.merge.stages)),
        )
        return [left for _, _, left in active_counts(self.patches, whole)]

    def to_json(self) -> str:
        """As text, for the file's metadata."""
        blocks = [block for block, _, _ in self.mode.stages]
        values = {**vars(self), "mode": str(self.mode), "blocks": blocks}
        return json.dumps({"format": FORMAT, **values})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        values = json.loads(text)
        if values.get("format") != FORMAT:
            raise ValueError("it was exported by another version of paumer: export it again")
        height, width = values["size"]
        mode = Mode.parse(values["mode"])
        return cls(values["config"], (height, width), mode, values["dial"], values["patches"])


def check_exportable(mode: Mode) -> None:
    """Raise unless a file can run the mode."""
    check_runnable(mode)
    if any(isinstance(amount, Threshold) for _, amount in mode.pause.stages):
        raise ValueError(f'an exported file takes ratios, not thresholds ("{mode}")')


def open_program(path: Path) -> Runner:
    """A function that runs a torch.export program."""
    module = torch.export.load(path).module()

    def run(images: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            logits, paused = module(torch.from_numpy(images))
        return logits.numpy(), paused.numpy()

    return run


def open_onnx(
    path: Path, engine: str = "onnx", threads: int | None = None, fused: bool = False
) -> tuple[ExportInfo, Runner]:
    """What an ONNX file says of itself, and a function that runs it in an engine.

    ``fused`` makes each attention one operation first, where ONNX Runtime runs it.
    """
    if not path.is_file():
        raise FileNotFoundError(f'there is no exported file "{path}": make it with paumer export')
    proto, info = read_onnx(path)
    if engine == "openvino":
        infer = _openvino(path, threads)
    else:
        infer = _onnxruntime(path, fuse_attention(proto) if fused else proto, threads)
    # Activations are rounded together: images run one by one, and none depends on the others.
    rounded = any(node.op_type == "DynamicQuantizeLinear" for node in proto.graph.node)

    def run(images: np.ndarray, kept: list[int]) -> tuple[np.ndarray, np.ndarray]:
        counts = {"kept": np.asarray(kept, np.int64)} if info.dial else {}
        parts = np.split(images, len(images)) if rounded else [images]
        answers = [infer({"images": part, **counts}) for part in parts]
        logits, paused = (np.concatenate(each) for each in zip(*answers, strict=True))
        return logits, paused

    return info, run


def _onnxruntime(path: Path, proto: "ModelProto", threads: int | None) -> _Infer:
    runtime = need("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    content = proto.SerializeToString()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The runtime raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot run "{path}": {error}') from error
    return lambda inputs: session.run(["logits", "paused_after"], inputs)


def _openvino(path: Path, threads: int | None) -> _Infer:
    openvino = need("openvino", "openvino")
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    lock = Lock()

    def infer(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with lock:  # The next run writes over what this one gave.
            results = request.infer(inputs)
            return [results[name].copy() for name in ("logits", "paused_after")]

    return infer


def read_onnx(path: Path) -> tuple["ModelProto", ExportInfo]:
    """The graph of an ONNX file, and what it says of itself."""
    onnx = need("onnx", "onnx")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # The reader raises classes of its own for every kind of trouble.
        raise ValueError(f'cannot read "{path}": {error}') from error
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    if "paumer" not in notes:
        raise ValueError(f'"{path}" was not made by paumer export: it does not say what it takes')
    try:
        return proto, ExportInfo.from_json(notes["paumer"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f'cannot use "{path}": {error}') from error


def fuse_attention(proto: "ModelProto") -> "ModelProto":
    """An ONNX graph with each attention as one operation of ONNX Runtime's.

    What is fused is what torch's exporter makes of timm's attention: softmax between two products
    whose queries, keys and values are the thirds of one linear layer, untouched but for the usual
    scale. Others, such as rotary ones, stay as they are.
    """
    from onnxscript.rewriter import pattern, rewrite

    def attention(op: Any, linear: Any, query_scale: Any, key_scale: Any) -> Any:
        shape = pattern.ANY_VALUE
        thirds = op.Reshape(linear, shape, _outputs=["thirds"])
        turned = op.Transpose(thirds, perm=[2, 0, 3, 1, 4])
        q, k, v = (op.Squeeze(op.Slice(turned, [i], [i + 1], [0]), [0]) for i in range(3))
        k = op.Reshape(op.Transpose(op.Reshape(k, shape), perm=[0, 2, 1]), shape)
        scores = op.MatMul(op.Mul(q, query_scale), op.Mul(k, key_scale))
        mixed = op.MatMul(op.Softmax(scores, axis=-1), v)
        return op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), shape)

    def usual_scale(_: Any, thirds: Any, query_scale: Any, key_scale: Any, **__: object) -> bool:
        scales = [scale.const_value for scale in (query_scale, key_scale)]
        if thirds.shape is None or None in scales:
            return False
        # Each is the fourth root of 1 / head size.
        return all(abs(scale.numpy().item() ** 4 * thirds.shape[4] - 1) < 1e-4 for scale in scales)

    def fused(op: Any, linear: Any, thirds: Any, **_: object) -> Any:
        parts = op.Split(linear, num_outputs=3, axis=2, _outputs=3)
        heads = thirds.shape[3]
        return op.MultiHeadAttention(*parts, num_heads=heads, _domain="com.microsoft")

    # Other nodes still use the shapes of some: what nothing uses any longer is removed at the end.
    rule = pattern.RewriteRule(attention, fused, usual_scale, remove_nodes=False)
    return rewrite(proto, pattern_rewrite_rules=[rule])


def need(module: str, extra: str) -> ModuleType:
    """An optional library, or an error that says what to install."""
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'paumer[{extra}]'") from error
