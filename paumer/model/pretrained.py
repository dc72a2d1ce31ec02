"""A network from its configuration, and from and to a model directory or the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn
from torch.overrides import TorchFunctionMode

from paumer.arguments import checked
from paumer.model import directory as files
from paumer.model.backbone import Backbone, create_backbone
from paumer.model.config import ModelConfig
from paumer.model.decoders import AuxHead, create_decoder


class Pretrained(nn.Module, PyTorchModelHubMixin):
    """How a network of backbone, decoder and auxiliary head is built, saved and loaded.

    Its constructor takes these parts and the configuration. The methods are those of Hugging
    Face's models.
    """

    config: ModelConfig | None

    @classmethod
    def from_config(cls, config: ModelConfig, backbone: Backbone | None = None) -> Self:
        """A network of that configuration with fresh weights, but for a backbone that is given."""
        backbone = backbone or create_backbone(
            config.backbone,
            config.image_size,
            norm_eps=config.norm_eps,
            position_resize=config.position_resize,
            drop_path=config.drop_path,
        )
        width, classes = backbone.width, len(config.classes)
        decoder = create_decoder(config.decoder, width, classes, config.decoder_options)
        return cls(backbone, decoder, AuxHead(width, classes), config)

    @checked
    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **push_to_hub_kwargs: object,
    ) -> str | None:
        """Write the model directory; in one that exists, other files stay."""
        if self.config is None:
            raise ValueError(
                "this segmenter was put together by hand and has no configuration to save: "
                "give one to its constructor, or use build_model(...)"
            )
        directory = Path(save_directory)
        files.save_model(directory, self.config, self.state_dict())
        if not push_to_hub:
            return None
        options: dict[str, Any] = push_to_hub_kwargs
        return self.push_to_hub(repo_id or directory.name, **options)

    @classmethod
    @checked
    def from_pretrained(  # type: ignore[override]  # Unknown options are refused.
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str | torch.device = "cpu",
        **hub: Unpack[files.HubOptions],
    ) -> Self:
        """The network of a model directory or a hub model, ready for inference.

        Reads ``config.json`` and ``model.safetensors``, never a pickle.
        """
        device = pick_device(map_location)  # Before anything is downloaded or read.
        directory = files.find_model(str(pretrained_model_name_or_path), **hub)
        config, tensors = files.load_model(directory)
        try:
            with without_values():
                network = cls.from_config(config)
        except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            file = directory / files.CONFIG_FILE
            raise ValueError(f'"{file}" describes no network: {error}') from error
        files.load_tensors(network, tensors, directory / files.WEIGHTS_FILE)
        return network.to(device).eval()


_FILLING = (
    *("add_", "clamp_", "constant_", "div_", "erfinv_", "fill_", "kaiming_uniform_", "mul_"),
    *("normal_", "uniform_", "zero_"),
)
"""What initial weights are made with."""


class _Unfilled(TorchFunctionMode):
    """Inside, what is on the meta device is not filled: nothing comes of it, and it takes long."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in _FILLING:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Inside, a network takes no memory, whatever its configuration says, and is made quickly."""
    with torch.device("meta"), _Unfilled():
        yield


def pick_device(name: str | torch.device) -> torch.device:
    """The device of that name; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'cannot use device "{name}": {reason}') from error
    if device.type == "meta":
        raise ValueError('cannot use device "meta": it holds no weights; give cpu, cuda or auto')
    return device
