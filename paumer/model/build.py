"""A fresh network from a few numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paumer.arguments import checked
from paumer.model.backbone import create_backbone
from paumer.model.config import ModelConfig
from paumer.model.segmenter import PausingSegmenter


@checked
def build_model(  # Eight parameters: what a user of the paper's networks chooses, by their names.
    backbone: str = "vit_tiny_patch16_384",
    decoder: str = "mask",
    classes: int | Sequence[str] = 19,
    image_size: int | tuple[int, int] | None = None,
    weights: bool | str | Path = False,
    *,
    drop_path: float = 0.0,
    context: bool = False,
    decoder_options: Mapping[str, int | float] | None = None,
) -> PausingSegmenter:
    """A pausing segmenter around the timm ViT ``backbone``, such as vit_tiny_patch16_384.

    ``decoder`` is mask, linear or pup, with ``decoder_options`` such as ``{"depth": 2}`` of mask.
    ``classes`` are their names or just how many. ``weights`` initialises the backbone: True for
    timm's own by download, or a local safetensors file. ``image_size`` is what the position
    embeddings are stored for (default: the backbone's own); images of any size still run. With
    ``context`` the mean of the patches that pause continues in their place. ``drop_path`` is the
    stochastic depth of the encoder in training.
    """
    names = [f"class {i}" for i in range(classes)] if isinstance(classes, int) else classes
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    part = create_backbone(backbone, size, weights, drop_path)
    trained: dict[str, Any] = part.vit.pretrained_cfg  # As timm's weights were trained.
    config = ModelConfig(
        backbone=backbone,
        decoder=decoder,
        classes=tuple(names),
        image_size=part.vit.patch_embed.img_size,
        decoder_options=dict(decoder_options or {}),
        mean=trained["mean"],
        std=trained["std"],
        drop_path=drop_path,
        context=context,
    )
    return PausingSegmenter.from_config(config, part)
