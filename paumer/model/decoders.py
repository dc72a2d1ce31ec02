"""From tokens and their grid to logits: linear, Segmenter's mask transformer, SETR-PUP."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import cast

import torch
from jaxtyping import Float
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from paumer.model.backbone import Grid, attention_bias, attention_block_macs

Patches = Float[Tensor, "b n d"]
Logits = Float[Tensor, "b n classes"]
Sizes = Float[Tensor, "b n"]
Options = Mapping[str, float]


class TokenDecoder(nn.Module):
    """A decoder that gives every token its logits, whatever tokens there are: it can early-exit."""

    token_logits: Callable[[Patches, Sizes | None], Logits]
    """Class logits of each token, some of which may stand for several patches."""

    def forward(self, tokens: Patches, grid: Grid) -> Float[Tensor, "b classes h w"]:
        """Class logits on the patch grid."""
        return to_grid(self.token_logits(tokens, None), grid)


class AuxHead(nn.Linear):
    """The paper's auxiliary head: one linear layer, the same for each token after any block."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)


class LinearDecoder(TokenDecoder):
    """One linear layer, the same for each token: the paper's 1x1 convolution."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = AuxHead(width, classes)

    def token_logits(self, tokens: Patches, sizes: Sizes | None = None) -> Logits:
        """Class logits of each token."""
        return cast(Tensor, self.head(tokens))

    def macs(self, tokens: int) -> int:
        """MACs over ``tokens`` patches of one image."""
        return tokens * self.head.weight.numel()


class MaskTransformer(TokenDecoder):
    """Segmenter's decoder: class embeddings join the patches for a few blocks.

    A patch's logit for a class is the product of the two, normalised (paper, appendix C).
    """

    def __init__(self, width: int, classes: int, depth: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.class_embedding = nn.Parameter(torch.empty(1, classes, width))
        self.blocks = nn.ModuleList(
            Block(width, width // 64, qkv_bias=True, proj_drop=dropout, norm_layer=nn.LayerNorm)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.project_patches = nn.Linear(width, width, bias=False)
        self.project_classes = nn.Linear(width, width, bias=False)
        self.mask_norm = nn.LayerNorm(classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.class_embedding, std=0.02)
        nn.init.normal_(self.project_patches.weight, std=width**-0.5)
        nn.init.normal_(self.project_classes.weight, std=width**-0.5)

    def token_logits(self, tokens: Patches, sizes: Sizes | None = None) -> Logits:
        """Class logits of each token; those of merged patches are as if they were all there."""
        count = tokens.shape[1]
        embedding = self.class_embedding.expand(tokens.shape[0], -1, -1)
        both = torch.cat([self.project(tokens), embedding], 1)
        bias = None if sizes is None else attention_bias(sizes, behind=embedding.shape[1])
        for block in self.blocks:
            both = block(both) if bias is None else block(both, attn_mask=bias.to(both.dtype))
        both = self.norm(both)
        patches = F.normalize(self.project_patches(both[:, :count]), dim=-1)
        classes = F.normalize(self.project_classes(both[:, count:]), dim=-1)
        return cast(Tensor, self.mask_norm(patches @ classes.transpose(1, 2)))

    def macs(self, tokens: int) -> int:
        """MACs over ``tokens`` patches of one image."""
        _, classes, width = self.class_embedding.shape
        blocks = sum(attention_block_macs(block, tokens + classes) for block in self.blocks)
        projections = (2 * tokens + classes) * width * width
        return blocks + projections + tokens * classes * width


class PUPDecoder(nn.Module):
    """SETR's progressive upsampling: convolutions over the grid, each followed by enlarging it.

    The classifier stands before the last enlarging, which is left to the final upsampling.
    The original has 256 channels and 4 convolutions of x2; the paper's ViT-Ti form 192, 2 and x4.
    """

    def __init__(
        self, width: int, classes: int, channels: int = 256, depth: int = 4, scale: int = 2
    ) -> None:
        super().__init__()
        self.scale = scale
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width if i == 0 else channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            )
            for i in range(depth)
        )
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, tokens: Patches, grid: Grid) -> Float[Tensor, "b classes h w"]:
        """Class logits on a grid ``scale ** (depth - 1)`` times as fine as the patches."""
        features = to_grid(tokens, grid)
        for number, convolution in enumerate(self.convolutions):
            if number:
                features = upsample(features, tuple(self.scale * s for s in features.shape[2:]))
            features = convolution(features)
        return cast(Tensor, self.classifier(features))

    def macs(self, tokens: int) -> int:
        """MACs over ``tokens`` patches of one image."""
        total, pixels = 0, tokens
        for number, convolution in enumerate(self.convolutions):
            pixels *= self.scale**2 if number else 1
            total += pixels * sum(p.numel() for p in convolution.parameters() if p.dim() == 4)
        return total + pixels * self.classifier.weight.numel()


Decoder = LinearDecoder | MaskTransformer | PUPDecoder

DECODERS = {"linear": LinearDecoder, "mask": MaskTransformer, "pup": PUPDecoder}


def create_decoder(name: str, width: int, classes: int, options: Options | None = None) -> Decoder:
    """The decoder of that name: ``linear``, ``mask`` or ``pup``."""
    if name not in DECODERS:
        raise ValueError(f'no decoder "{name}": choose one of {", ".join(DECODERS)}')
    known = list(signature(DECODERS[name]).parameters)[2:]
    if unknown := [option for option in options or {} if option not in known]:
        choice = ", ".join(known) or "none"
        raise TypeError(f'the {name} decoder has no option "{unknown[0]}": choose from {choice}')
    return cast(Decoder, DECODERS[name](width, classes, **(options or {})))


def to_grid(values: Float[Tensor, "b n c"], grid: Grid) -> Float[Tensor, "b c h w"]:
    """Values of patches in reading order, laid out as an image."""
    return values.transpose(1, 2).reshape(values.shape[0], values.shape[2], *grid)


def upsample(values: Float[Tensor, "b c h w"], size: tuple[int, ...]) -> Float[Tensor, "b c H W"]:
    """The image enlarged to ``size`` (height, width), bilinearly between pixel centres."""
    return F.interpolate(values, size=size, mode="bilinear", align_corners=False)
