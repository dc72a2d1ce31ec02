"""A network from its configuration, and from and to a model directory or the hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from paumer.model import directory as files
from paumer.model.backbone import Backbone, create_backbone
from paumer.model.config import ModelConfig
from paumer.model.decoders import AuxHead, Decoder, create_decoder


class Pretrained(PyTorchModelHubMixin):
    """What a network of backbone, decoder and auxiliary head needs to be built, saved and loaded.

    Its methods are those of Hugging Face's models.
    """

    config: ModelConfig | None

    if TYPE_CHECKING:

        def __init__(
            self,
            backbone: Backbone,
            decoder: Decoder,
            aux_head: nn.Module,
            config: ModelConfig | None = None,
        ) -> None: ...

        def state_dict(self) -> dict[str, Tensor]:  # noqa: D102
            ...

    @classmethod
    def from_config(cls, config: ModelConfig) -> Self:
        """A network of that configuration with fresh weights."""
        backbone = create_backbone(
            config.backbone,
            config.image_size,
            norm_eps=config.norm_eps,
            position_resize=config.position_resize,
            drop_path=config.drop_path,
        )
        return cls.around(backbone, config)

    @classmethod
    def around(cls, backbone: Backbone, config: ModelConfig) -> Self:
        """The network of that configuration around a backbone, with fresh heads."""
        classes, options = len(config.classes), dict(config.decoder_options)
        decoder = create_decoder(config.decoder, backbone.width, classes, options)
        return cls(backbone, decoder, AuxHead(backbone.width, classes), config)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: object = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, object] | None = None,
        **push_to_hub_kwargs: object,
    ) -> str | None:
        """Write the model directory: ``config.json``, ``model.safetensors``, ``README.md``.

        A new directory appears complete or not at all; in one that exists, each file is replaced
        as a whole and other files stay.
        """
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
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str | torch.device = "cpu",
        **_: object,
    ) -> Self:
        """The network of a model directory or a hub model, ready for inference.

        Reads ``config.json`` and ``model.safetensors``, never a pickle.
        """
        hub = files.HubOptions(
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            revision=revision,
        )
        directory = files.find_model(str(pretrained_model_name_or_path), hub)
        config, tensors = files.load_model(directory)
        try:
            with torch.device("meta"):  # Takes no memory, whatever the numbers say.
                network = cls.from_config(config)
        except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            file = directory / files.CONFIG_FILE
            raise ValueError(f'"{file}" describes no network: {error}') from error
        assert isinstance(network, nn.Module)
        files.fill(network, tensors, directory / files.WEIGHTS_FILE)
        network.to(map_location).eval()
        return network
