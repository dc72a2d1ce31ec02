"""The network in code of your own: a backbone, a DataLoader, a training loop, a pool of threads.

python examples/in_your_code.py --steps 20
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import timm
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paumer import Mode, Model, PauseConfig, PausingSegmenter, load
from paumer.data.datasets import open_dataset
from paumer.data.samples import Sample
from paumer.data.transforms import normalise
from paumer.model.backbone import Backbone
from paumer.model.decoders import AuxHead, create_decoder


def own_backbone(name: str, classes: int) -> PausingSegmenter:
    """A segmenter around a timm ViT that you made yourself."""
    backbone = Backbone(timm.create_model(name, num_classes=0, dynamic_img_size=True))
    width = backbone.width
    return PausingSegmenter(
        backbone, create_decoder("linear", width, classes, {}), AuxHead(width, classes)
    )


def own_loop(network: PausingSegmenter, data: str, steps: int) -> float:
    """The last loss of a training loop of your own over torch's DataLoader."""
    dataset = cast(Dataset[Sample], open_dataset(data, "train"))  # Samples collate as they are.
    loader = DataLoader(dataset, batch_size=2, shuffle=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss, step = torch.zeros(()), 0
    while step < steps:
        for batch in loader:
            images = normalise(batch.image.movedim(-1, 1), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
            labels = batch.labels.long()
            mode = Mode(pause=PauseConfig.draw(seed=0, step=step, ranges={2: (0.2, 0.8)}))
            prediction = network.train()(images, mode)
            loss = F.cross_entropy(prediction.logits, labels, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if step == steps:
                break
    return float(loss.detach())


def own_threads(model: Model, data: str, modes: list[str]) -> list[str]:
    """One model, several threads, each call in a mode of its own."""
    images = [sample.image for sample in map(open_dataset(data, "val").__getitem__, range(2))]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(model.predict, images * len(modes), sorted(modes * len(images)))
        return [f"{result.mode}: {max(result.class_ratios().values()):.0%}" for result in results]


def main() -> None:
    """Read the command line and run all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", default="vit_tiny_patch16_224", help="timm name")
    parser.add_argument("--data", default="scenes:4@96x64", help="labelled images of one size")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--model", default="street-tiny", help="what the threads share")
    arguments = parser.parse_args()

    classes = len(open_dataset(arguments.data, "train").class_set)
    network = own_backbone(arguments.backbone, classes)
    loss = own_loop(network, arguments.data, arguments.steps)
    print(f"{arguments.steps} steps of an own loop: loss {loss:.2f}")
    print("\n".join(own_threads(load(arguments.model), arguments.data, ["none", "3:0.5 exit"])))


if __name__ == "__main__":
    main()
