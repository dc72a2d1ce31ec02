"""The method on one picture: who pauses after each block, how sure the head is, the result."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8

from paumer.criteria import entropy
from paumer.data.labels import paint
from paumer.media import overlay
from paumer.pause_config import PauseConfig
from paumer.pausing import Stage
from paumer.predict import Inference, Predictor
from paumer.segmentation import block_colours
from paumer.study.paper_figures import Panel


def illustrate(
    predictor: Predictor, image: UInt8[np.ndarray, "h w 3"], how: Inference
) -> list[Panel]:
    """The panels of the paper's first figure: for each pause the entropy and who has paused."""
    if not how.pause:
        raise ValueError("nothing pauses: give a configuration such as 3:0.4,5:0.4,7:0.4")
    if predictor.config.window is not None:
        raise ValueError("the illustration needs whole pictures: this model cuts them into windows")
    (result,) = predictor.predict_batch([image], how)
    with torch.inference_mode():
        prediction = predictor.network(
            predictor.network_inputs(image)[:1],
            how.pause,
            early_exit=how.early_exit,
            full_size=False,
        )
    colours = block_colours(len(how.pause.blocks) + 1)[1:]
    key = tuple(
        (f"after block {block}", colour)
        for block, colour in zip(how.pause.blocks, colours, strict=True)
    )
    panels = [Panel("picture", image)]
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
    dimmed = replace(end, pause=PauseConfig(((1, 0.5),))).tinted(0.85, ((0, 0, 0), (30, 30, 30)))
    return [
        *panels,
        Panel(f"through all blocks: {(result.paused_after == 0).mean():.0%}", dimmed),
        Panel("result", overlay(image, paint(result.labels, result.classes))),
    ]


def _entropy_map(stage: Stage, grid: tuple[int, int]) -> Float[np.ndarray, "gh gw"]:
    """The entropy of the patches that were active before a pause; NaN where one had paused."""
    values = torch.full((grid[0] * grid[1],), torch.nan)
    values[stage.places[0].cpu()] = entropy(stage.logits, stage.places)[0].float().cpu()
    return values.view(grid).numpy()
