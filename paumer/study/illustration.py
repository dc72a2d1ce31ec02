"""The method on one image: what pauses after each block, how sure the head is, the result."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8

from paumer.criteria import entropy
from paumer.inference.predictor import Predictor
from paumer.inference.result import block_colours
from paumer.mode import Mode


@dataclass(frozen=True)
class Panel:
    """One image of the method's illustration."""

    title: str
    image: UInt8[np.ndarray, "h w 3"] | Float[np.ndarray, "gh gw"]
    key: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    """What colours painted over the image mean."""


def illustrate(predictor: Predictor, image: UInt8[np.ndarray, "h w 3"], mode: Mode) -> list[Panel]:
    """The panels of the paper's first figure: for each pause the entropy and what has paused."""
    if not mode.pause:
        raise ValueError("nothing pauses: give a mode such as 3:0.4,5:0.4,7:0.4")
    if predictor.config.window is not None:
        raise ValueError("the illustration needs whole images: this model cuts them into windows")
    (result,) = predictor.predict_batch([image], mode)
    with torch.inference_mode():
        seen = predictor.network_inputs(image, mode)
        prediction = predictor.weights()(seen, replace(mode, size=None), full_size=False)
    blocks, paused = mode.pause.blocks, result.paused_after
    colours = block_colours(len(blocks) + 1)[1:]
    key = tuple((f"after block {b}", colour) for b, colour in zip(blocks, colours, strict=True))
    panels = [Panel("image", image)]
    for number, stage in enumerate(prediction.stages, 1):
        scores = entropy(stage.logits, stage.patch_index)[0].float().cpu()
        entropies = np.full(prediction.grid, np.nan, np.float32)  # Where one had paused before.
        entropies.flat[stage.patch_index[0].cpu().numpy()] = scores.numpy()
        so_far = replace(result, paused_after=np.where(paused <= stage.block, paused, 0))
        title = f"paused so far: {(so_far.paused_after > 0).mean():.0%}"
        panels.append(Panel(f"entropy after block {stage.block}", entropies))
        panels.append(Panel(title, so_far.tinted(), key[:number]))
    dimmed = result.tinted(0.85, [(30, 30, 30)] * (len(blocks) + 1))
    panels.append(Panel(f"through all blocks: {(paused == 0).mean():.0%}", dimmed))
    return [*panels, Panel("result", result.blended())]
