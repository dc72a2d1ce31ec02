"""A segmenter around a timm ViT that you made yourself.

python examples/own_backbone.py
"""

import timm
import torch

from paumer import PausingSegmenter
from paumer.model.backbone import Backbone
from paumer.model.decoders import AuxHead, create_decoder

CLASSES, SIZE = 11, (96, 128)
backbone = Backbone(timm.create_model("vit_tiny_patch16_224", num_classes=0, dynamic_img_size=True))
network = PausingSegmenter(
    backbone,
    create_decoder("linear", backbone.width, CLASSES),
    AuxHead(backbone.width, CLASSES),  # What scores the patches, after any block.
).eval()

images = torch.rand(2, 3, *SIZE)  # Normalised images of any size.
for mode in ("none", "3:0.4", "3:0.4,6:0.5 exit"):
    with torch.inference_mode():
        prediction = network(images, mode)
    paused = (prediction.paused_after() > 0).float().mean()
    macs = network.macs(SIZE, mode) / network.macs(SIZE)
    print(f"{mode}: {tuple(prediction.logits.shape)}, {paused:.0%} paused, {macs:.0%} of the MACs")
