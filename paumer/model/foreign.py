"""Checkpoints of other projects -> (configuration, tensors): rstrudel/segmenter, mmsegmentation.

Names and shapes only; no network class is known here. Pickles are opened with ``weights_only``,
so that code in them never runs.
"""

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paumer.classes import ADE20K, CITYSCAPES
from paumer.model.config import MOST_CLASSES, ModelConfig
from paumer.untrusted import quoted, shorten
from paumer.yaml_file import read_yaml


@dataclass(frozen=True)
class Imported:
    """A foreign checkpoint in our names: ``unused`` lists its tensors that have no place here."""

    source: str
    config: ModelConfig
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]


_BLOCK = r"((?:backbone\.vit|decoder)\.blocks\.\d+)"

_NAMES = (
    (r"encoder\.(?!head)", "backbone.vit."),  # Those of rstrudel/segmenter.
    (r"decoder\.proj_patch", "decoder.project_patches.weight"),
    (r"decoder\.proj_classes", "decoder.project_classes.weight"),
    (r"backbone\.ln1\.", "backbone.vit.norm."),  # Those of mmsegmentation.
    (r"backbone\.layers", "backbone.vit.blocks"),
    (r"backbone\.patch_embed\.projection", "backbone.vit.patch_embed.proj"),
    (r"backbone\.(?!vit)", "backbone.vit."),
    (r"decode_head\.layers", "decoder.blocks"),
    (r"decode_head\.patch_proj", "decoder.project_patches"),
    (r"decode_head\.classes_proj", "decoder.project_classes"),
    (r"decode_head\.mask_norm", "decoder.mask_norm"),
    (r"decode_head\.conv_seg", "decoder.head"),
    (r"(?:decoder|decode_head)\.cls_emb", "decoder.class_embedding"),  # Those of both.
    (r"(?:decoder\.proj_dec|decode_head\.dec_proj)", "decoder.project"),
    (r"(?:decoder|decode_head)\.decoder_norm", "decoder.norm"),
    (_BLOCK + r"\.ln([12])", r"\1.norm\2"),
    (_BLOCK + r"\.attn\.attn\.in_proj_", r"\1.attn.qkv."),
    (_BLOCK + r"\.attn\.attn\.out_proj", r"\1.attn.proj"),
    (_BLOCK + r"\.ffn\.layers\.0\.0", r"\1.mlp.fc1"),
    (_BLOCK + r"\.ffn\.layers\.1", r"\1.mlp.fc2"),
)

_BACKBONES = {
    (192, False): "vit_tiny_patch16_384",
    (384, False): "vit_small_patch16_384",
    (768, False): "vit_base_patch16_384",
    (1024, False): "vit_large_patch16_384",
    (192, True): "deit_tiny_distilled_patch16_224",
    (384, True): "deit_small_distilled_patch16_224",
    (768, True): "deit_base_distilled_patch16_384",
}


def read_checkpoint(path: Path) -> Imported:
    """A Segmenter checkpoint of rstrudel/segmenter or mmsegmentation, whichever it is."""
    content = _load_pickle(path)
    try:
        if isinstance(content.get("model"), Mapping):
            variant = _read_variant(path.with_name("variant.yml"))
            _check_tensors(content["model"], path.stat().st_size)
            return _read_rstrudel(content["model"], variant)
        if isinstance(content.get("state_dict"), Mapping):
            meta = content.get("meta")
            _check_tensors(content["state_dict"], path.stat().st_size)
            return _read_mmseg(content["state_dict"], meta if isinstance(meta, Mapping) else {})
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f'cannot import "{path}": {shorten(str(error))}') from error
    raise ValueError(
        f'"{path}" is neither a rstrudel/segmenter checkpoint (entry "model") nor one of '
        f'mmsegmentation (entry "state_dict"); its entries are {quoted(list(content))}'
    )


def _check_tensors(state: Mapping[str, Tensor], size: int) -> None:
    """Raise for what is not a tensor, or says it holds more than a file of ``size`` bytes can."""
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{quoted(key)} is not a tensor")
        if tensor.layout != torch.strided or tensor.is_meta:
            raise ValueError(f"{quoted(key)} is not a plain tensor")
        # Tensors whose values are repeated in memory only say that they are large.
        if not tensor.numel() or tensor.numel() * tensor.element_size() > size or tensor.dim() > 4:
            what = f"{quoted(key)} of shape {quoted(tuple(tensor.shape))}"
            raise ValueError(f"{what} cannot be the weights in a file of {size} bytes")


def _read_rstrudel(state: Mapping[str, Tensor], variant: Mapping[str, Any]) -> Imported:
    net = variant.get("net_kwargs", {})
    tensors, unused = _rename(state)
    for name in ("decoder.project_patches.weight", "decoder.project_classes.weight"):
        if name in tensors:  # Used as x @ P there, as a linear layer here.
            tensors[name] = tensors[name].transpose(0, 1)
    options = net.get("decoder", {})
    dataset = variant.get("dataset_kwargs", {}).get("dataset", "")
    names = {"ade20k": ADE20K.names, "cityscapes": CITYSCAPES.names}.get(dataset, ())
    settings: dict[str, Any] = {"norm_eps": 1e-5, "position_resize": "bilinear"}
    if net.get("normalization") == "deit":
        settings |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    inference = variant.get("inference_kwargs")
    if isinstance(inference, Mapping):
        theirs = {"short_side": "im_size", "window": "window_size", "stride": "window_stride"}
        settings |= {ours: inference.get(name) for ours, name in theirs.items()}
    dropout, size = float(options.get("dropout", 0.1)), tuple(net.get("image_size", ()))
    config = _config(tensors, names, dropout, size, settings)
    stated = options.get("n_layers")
    if config.decoder == "mask" and stated not in (None, config.decoder_options["depth"]):
        raise ValueError(
            f"variant.yml says the decoder has {quoted(stated)} layers, "
            f"the checkpoint holds {config.decoder_options['depth']}"
        )
    return Imported("rstrudel/segmenter", config, tensors, unused)


def _read_mmseg(state: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Imported:
    tensors, unused = _rename(state)
    if strange := [key for key in unused if key.startswith("decode_head.")]:
        raise ValueError(f"its decoder is not Segmenter's: {', '.join(strange[:5])}")
    if "decoder.head.weight" in tensors:
        tensors["decoder.head.weight"] = tensors["decoder.head.weight"].flatten(1)
    dataset = meta.get("dataset_meta")
    names = dataset.get("classes", ()) if isinstance(dataset, Mapping) else meta.get("CLASSES", ())
    settings = {"norm_eps": 1e-6, "position_resize": "bicubic"}
    names = tuple(name for name in names or () if isinstance(name, str))
    config = _config(tensors, names, 0.0, (), settings)
    return Imported("mmsegmentation", config, tensors, unused)


def _config(
    tensors: Mapping[str, Tensor],
    names: tuple[str, ...],
    dropout: float,
    image_size: tuple[int, ...],
    settings: Mapping[str, Any],
) -> ModelConfig:
    """The configuration that follows from the shapes of the tensors, with these ``settings``."""
    try:
        position = tensors["backbone.vit.pos_embed"]
        patch = tensors["backbone.vit.patch_embed.proj.weight"].shape[-1]
        masks = "decoder.class_embedding" in tensors
        head = tensors["decoder.class_embedding" if masks else "decoder.head.weight"]
    except KeyError as missing:
        raise ValueError(f"it is not a Segmenter checkpoint: no {missing}") from None
    width, distilled = position.shape[-1], "backbone.vit.dist_token" in tensors
    if (width, distilled) not in _BACKBONES or patch != 16:
        raise ValueError(f"no backbone is known of {width} channels and patch {patch}")
    patches = position.shape[1] - 1 - distilled
    side = round(patches**0.5) * patch
    size = (image_size[0], image_size[1]) if len(image_size) == 2 else (side, side)
    if size[0] // patch * (size[1] // patch) != patches:
        raise ValueError(f"it has {patches} positions, which do not fit an image of {quoted(size)}")
    classes = head.shape[1] if masks else head.shape[0]
    if classes > MOST_CLASSES:
        raise ValueError(f"it has {classes} classes, and at most {MOST_CLASSES} are read")
    if not len(names) == len(set(names)) == classes:
        names = tuple(f"class {i}" for i in range(classes))
    depth = len({key.split(".")[2] for key in tensors if key.startswith("decoder.blocks.")})
    return ModelConfig(
        backbone=_BACKBONES[width, distilled],
        decoder="mask" if masks else "linear",
        classes=names,
        image_size=size,
        decoder_options={"depth": depth, "dropout": dropout} if masks else {},
        **settings,
    )


def _rename(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Tensors under our names, and the names of those that are not part of our networks."""
    tensors: dict[str, Tensor] = {}
    unused: list[str] = []
    for key, tensor in state.items():
        name = key
        for pattern, replacement in _NAMES:
            name = re.sub(f"^{pattern}", replacement, name)
        if name in tensors:
            raise ValueError(f"{key!r} and another tensor are both {name!r} here")
        if re.match(r"backbone\.vit\.(?!head)|decoder\.", name):
            tensors[name] = tensor
        else:
            unused.append(key)
    return tensors, tuple(unused)


def _read_variant(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f'"{path}" is missing: a rstrudel/segmenter checkpoint needs it beside it'
        )
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f'"{path}" does not hold settings')
    return content


def _load_pickle(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f'no checkpoint at "{path}"')
    with path.open("rb") as file:
        start = file.read(4)
    if start != _ARCHIVE and start[:2] not in (bytes((0x80, version)) for version in range(2, 6)):
        raise ValueError(
            f'"{path}" is not a checkpoint: give the .pth file of rstrudel/segmenter or '
            f"mmsegmentation"
        )
    try:
        _check_pickles(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (?!None)([\w.]+)", str(error))
        more = f", such as {shorten(found[1], 200)}" if found else ""
        raise ValueError(
            f'"{path}" is damaged or holds more than tensors and plain values{more}; '
            f"such a pickle could do harm, so nothing of it was loaded"
        ) from error
    except Exception as error:  # There is no saying what a damaged pickle raises.
        advice = "weights_only" in str(error)  # To load it whatever it does.
        reason = "it is not a file of weights" if advice else shorten(str(error))
        raise ValueError(f'cannot read checkpoint "{path}": {reason}') from error
    if not isinstance(content, Mapping):
        raise ValueError(f'"{path}" holds a {type(content).__name__}, not a checkpoint')
    return content


_ARCHIVE = b"PK\3\4"
_MOST_PICKLED = 2**22
_CALLED = re.compile(
    r"collections (OrderedDict|Counter)|(builtins|__builtin__) (set|complex)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
    r"|torch (\w+Storage|Size|device|bool|[a-z]+\d+)|torch\.storage \w+Storage"
)
"""What pickles of tensors name. Of what torch allows beside it some ask for any amount of memory:
`bytearray(n)`, `torch.FloatTensor(n)`, encodings of encodings."""


def _check_pickles(path: Path) -> None:
    """Raise if a checkpoint is compressed, or its pickles are long or name more than they need."""
    with path.open("rb") as file:
        if file.read(4) != _ARCHIVE:
            file.seek(0)
            # A number that says what it is, a version, the machine, the content, names of storages.
            _check_pickle(file.read(_MOST_PICKLED), 5)
            return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > path.stat().st_size or any(
            entry.compress_type != zipfile.ZIP_STORED for entry in entries
        ):
            raise ValueError("it is compressed, which no checkpoint of torch is")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                _check_pickle(archive.open(entry).read(_MOST_PICKLED), 1)


def _check_pickle(content: bytes, count: int) -> None:
    file = io.BytesIO(content)
    try:
        for _ in range(count):
            for code, argument, _ in pickletools.genops(file):
                if "GLOBAL" in code.name and not _CALLED.fullmatch(str(argument)):
                    raise pickle.UnpicklingError("GLOBAL " + str(argument).replace(" ", "."))
    except ValueError as error:
        most = f"{_MOST_PICKLED // 2**20} MB"
        raise ValueError(f"its pickle is damaged or longer than {most}") from error
