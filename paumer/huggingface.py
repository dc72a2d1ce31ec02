"""Model directories in Hugging Face's transformers: its Auto classes and its pipeline.

    from paumer.huggingface import register
    from transformers import pipeline

    register()
    segment = pipeline("image-segmentation", model="runs/mine/model")

A mode is part of the configuration: ``model_kwargs={"mode": "3:0.4 exit"}``.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForSemanticSegmentation,
    BatchFeature,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_outputs import SemanticSegmenterOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES

from paumer.data.transforms import Three, normalise
from paumer.inference.points import read_points
from paumer.inference.predictor import ImageLike, as_pixels, short_side_of
from paumer.inference.tiles import Geometry, Inference, Plan, full_logits
from paumer.mode import Mode, ModeLike, read_mode
from paumer.model.config import MODEL_TYPE, ModelConfig
from paumer.model.directory import CONFIG_FILE, find_model
from paumer.model.segmenter import PausingSegmenter

_OWN = {item.name for item in fields(ModelConfig)}


class PaumerConfig(PreTrainedConfig):  # type: ignore[misc]  # Theirs is seen as Any.
    """A model's configuration, and the mode in which transformers runs it."""

    model_type = MODEL_TYPE

    mode: str = "none"
    dtype: Any = None

    def __post_init__(self, **values: Any) -> None:
        self.paumer = {name: values.pop(name) for name in _OWN & set(values)}
        values.pop("format", None)
        classes = dict(enumerate(self.paumer.get("classes", ())))
        values |= {"id2label": classes, "label2id": {name: i for i, name in classes.items()}}
        if self.dtype is None:  # Files may hold weights in 16 bits.
            self.dtype = "float32"
        super().__post_init__(**values)

    def to_dict(self) -> dict[str, Any]:
        """What transformers writes of it, and reads again."""
        values: dict[str, Any] = super().to_dict()
        return {**values.pop("paumer"), **values}

    def model_config(self) -> ModelConfig:
        """How the network is built."""
        return ModelConfig.from_json(self.paumer)


class PaumerForSemanticSegmentation(PreTrainedModel):  # type: ignore[misc]
    """The network as transformers calls it: ``pixel_values`` in, full-size ``logits`` out."""

    config_class = PaumerConfig
    main_input_name = "pixel_values"
    _no_split_modules = ("Backbone",)

    def __init__(self, config: PaumerConfig) -> None:
        super().__init__(config)
        network = PausingSegmenter.from_config(config.model_config())
        # Its parts are ours, so that weights have the same names in both.
        self.backbone, self.decoder, self.aux_head = (
            network.backbone,
            network.decoder,
            network.aux_head,
        )
        self.__dict__["network"] = network
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Make what no file holds, such as rotary tables; all weights are read."""
        if hasattr(module, "init_non_persistent_buffers"):
            module.init_non_persistent_buffers()  # type: ignore[operator]

    def forward(
        self,
        pixel_values: Float[Tensor, "b 3 h w"],
        labels: Int[Tensor, "b h w"] | None = None,
        mode: ModeLike | None = None,
    ) -> SemanticSegmenterOutput:
        """Logits of the images' size, and the cross entropy where ``labels`` are given (255: none).

        ``mode`` is that of the configuration if none is given.
        """
        chosen = self._mode(self.config.mode if mode is None else mode)
        logits = self._logits(pixel_values, chosen)
        loss = None if labels is None else F.cross_entropy(logits, labels.long(), ignore_index=255)
        return SemanticSegmenterOutput(loss=loss, logits=logits)

    def _mode(self, given: ModeLike) -> Mode:
        """The mode that is meant, also by the name of an operating point of the model."""
        try:
            mode = read_mode(given)
        except ValueError:
            points = read_points(find_model(self.config.name_or_path))
            mode = read_mode(given, {name: point.mode for name, point in points.items()})
        if mode.size is not None:
            raise ValueError(
                f'the image processor scales images, not the mode ("{mode}"): give it short_side'
            )
        return mode

    def _logits(
        self, images: Float[Tensor, "b 3 h w"], mode: Mode
    ) -> Float[Tensor, "b classes h w"]:
        network, config = self.network, self.network.config
        if not config.window:
            whole: Tensor = network(images, mode).logits
            return whole
        inference = Inference(window=config.window, stride=config.stride)
        size = images.shape[2], images.shape[3]
        geometry = Geometry.of(size, network.backbone.patch, inference=inference)
        (height, width), answers = geometry.window, {}
        for top, left in geometry.corners:
            part = images[:, :, top : top + height, left : left + width]
            answers[top, left] = network(part, mode, full_size=False).logits.float().cpu()
        each = [
            full_logits(geometry.enlarge({corner: part[i] for corner, part in answers.items()}))
            for i in range(len(images))
        ]
        return torch.stack(each).to(images.device)

    def save_pretrained(
        self, save_directory: str | Path, is_main_process: bool = True, **options: Any
    ) -> None:
        """Write a model directory, which `paumer.load` reads too; the mode is not part of it."""
        if is_main_process:
            self.network.save_pretrained(save_directory, **options)


class PaumerImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """Images scaled and normalised as `paumer.load(...).predict` does it."""

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        mean: Three = (0.5, 0.5, 0.5),
        std: Three = (0.5, 0.5, 0.5),
        short_side: int | None = None,
        trained_side: int | None = None,
        **_: object,
    ) -> None:
        super().__init__()
        self.mean, self.std = mean, std
        self.short_side, self.trained_side = short_side, trained_side

    @classmethod
    def get_image_processor_dict(
        cls, pretrained_model_name_or_path: str | Path, **kwargs: object
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's own configuration: nothing is kept twice."""
        kwargs["image_processor_filename"] = CONFIG_FILE
        found: tuple[dict[str, Any], dict[str, Any]] = super().get_image_processor_dict(
            pretrained_model_name_or_path, **kwargs
        )
        return found

    def preprocess(
        self,
        images: ImageLike | list[ImageLike] | tuple[ImageLike, ...],
        return_tensors: str = "pt",
    ) -> BatchFeature:
        """``pixel_values`` of one image or of several that are scaled to one size."""
        several = images if isinstance(images, list | tuple) else [images]
        pixels = [self._scaled(as_pixels(image)) for image in several]
        if sizes := {tuple(one.shape[1:]) for one in pixels[1:] if one.shape != pixels[0].shape}:
            height, width = next(iter(sizes))
            raise ValueError(
                f"images of {pixels[0].shape[2]}x{pixels[0].shape[1]} and {width}x{height} "
                f"pixels make no batch: give those of one size, or one at a time"
            )
        normal = normalise(torch.stack(pixels), self.mean, self.std)
        return BatchFeature({"pixel_values": normal}, tensor_type=return_tensors)

    def _scaled(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[Tensor, "3 _h _w"]:
        size = image.shape[0], image.shape[1]
        side = short_side_of(size, self.short_side, self.trained_side)
        return Plan.of(image, Geometry.of(size, (1, 1), side)).pixels

    def post_process_semantic_segmentation(
        self,
        outputs: SemanticSegmenterOutput,
        target_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> list[Int[Tensor, "_h _w"]]:
        """The labels of each image, at its (height, width) in ``target_sizes``."""
        logits = [one[None] for one in outputs.logits]
        if target_sizes is not None:
            logits = [
                F.interpolate(one, tuple(size), mode="bilinear")
                for one, size in zip(logits, target_sizes, strict=True)
            ]
        return [one[0].argmax(0) for one in logits]


def register() -> None:
    """Make model directories known to the Auto classes of transformers; as often as you like."""
    AutoConfig.register(MODEL_TYPE, PaumerConfig, exist_ok=True)
    AutoModelForSemanticSegmentation.register(
        PaumerConfig, PaumerForSemanticSegmentation, exist_ok=True
    )
    # Where the pipeline looks before it warns of models that it does not know.
    MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES[MODEL_TYPE] = (
        PaumerForSemanticSegmentation.__name__
    )
    AutoImageProcessor.register(
        PaumerConfig,
        image_processor_classes={"pil": PaumerImageProcessor, "torchvision": PaumerImageProcessor},
        exist_ok=True,
    )
