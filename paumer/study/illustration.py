"""The method on one image: what pauses after each block, how sure the head is, the result."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8

from paumer.classes import paint
from paumer.criteria import entropy
from paumer.drawing import overlay
from paumer.inference.predictor import Predictor
from paumer.inference.result import block_colours
from paumer.mode import Mode
from paumer.pause_config import PauseConfig
from paumer.pausing import Stage


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
        prediction = predictor.network(seen, replace(mode, size=None), full_size=False)
    blocks = mode.pause.blocks
    colours = block_colours(len(blocks) + 1)[1:]
    key = tuple(
        (f"after block {block}", colour) for block, colour in zip(blocks, colours, strict=True)
    )
    panels = [Panel("image", image)]
    for number, stage in enumerate(prediction.stages, 1):
        so_far = np.where(result.paused_after <= stage.block, result.paused_after, 0)
        panels += [
            Panel(f"entropy after block {stage.block}", _entropy_map(stage, prediction.grid)),
            Panel(
                f"paused so far: {(so_far > 0).mean():.0%}",
                replace(result, paused_after=so_far.astype(np.uint8)).tinted(),
                key[:number],
            ),
        ]
    end = replace(result, paused_after=(result.paused_after > 0).astype(np.uint8))
    dimmed = replace(end, mode=Mode(pause=PauseConfig(((1, 0.5),)))).tinted(
        0.85, ((0, 0, 0), (30, 30, 30))
    )
    return [
        *panels,
        Panel(f"through all blocks: {(result.paused_after == 0).mean():.0%}", dimmed),
        Panel("result", overlay(image, paint(result.labels, result.classes))),
    ]


def _entropy_map(stage: Stage, grid: tuple[int, int]) -> Float[np.ndarray, "gh gw"]:
    """The entropy of the patches that were active before a pause; NaN where one had paused."""
    values = torch.full((grid[0] * grid[1],), torch.nan)
    values[stage.patch_index[0].cpu()] = entropy(stage.logits, stage.patch_index)[0].float().cpu()
    return values.view(grid).numpy()
