"""A training loop of your own: the mode is an argument of each step.

python examples/own_training_loop.py
"""

import torch
from torch.utils.data import DataLoader

from paumer import Mode, PauseConfig, build_model, load
from paumer.criteria import entropy
from paumer.data.datasets import open_dataset
from paumer.data.transforms import normalise
from paumer.training.losses import PausingLoss

dataset = open_dataset("scenes:8@96x64", "train")
network = build_model("vit_tiny_patch16_224", "linear", dataset.class_set.names, image_size=96)
config = network.config
assert config is not None

losses_of = PausingLoss(network.train())  # Of the decoder and the auxiliary head.
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
for step, batch in enumerate(DataLoader(dataset, batch_size=2, shuffle=True)):
    images = normalise(batch.image.movedim(-1, 1), config.mean, config.std)
    mode = Mode(pause=PauseConfig.draw(seed=0, step=step))  # A random block and ratio.
    losses = losses_of(images, batch.labels.long(), str(mode), entropy)
    loss = (losses.main + 0.1 * losses.aux) / batch.labels.numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}, {mode}: loss {loss:.2f}")

network.save_pretrained("runs/own-loop")
print(load("runs/own-loop").predict(dataset[0].image, "3:0.4"))
