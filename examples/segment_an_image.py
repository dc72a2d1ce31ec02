"""Segment an image with and without pausing, and see where its patches paused.

python examples/segment_an_image.py street.jpg --mode "3:0.4,9:0.9 exit"
"""

import argparse
from pathlib import Path

import numpy as np

from paumer import load
from paumer.scenes.scene import scene


def main() -> None:
    """Read the command line, segment the image twice, and write what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("image", nargs="?", help="an image file (default: a synthetic street)")
    parser.add_argument("--model", default="street-tiny", help="built in, a directory, a hub id")
    parser.add_argument("--mode", default="3:0.4,5:0.4", help="or an operating point's name")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write to")
    arguments = parser.parse_args()

    predictor = load(arguments.model)
    image = arguments.image or scene(seed=7)[0]

    # The mode is an argument: one predictor, one set of weights, any speed.
    whole = predictor.predict(image)
    result = predictor.predict(image, arguments.mode)

    # Each patch has the number of the block it paused after, and 0 if it ran through all.
    after, depth = result.paused_after, predictor.network.backbone.depth
    blocks = np.where(after == 0, depth, after).mean()
    print(f"{result.mode}: {(after > 0).mean():.0%} of the patches paused")
    print(f"a patch ran through {blocks:.1f} of {depth} blocks on average")
    same = (result.labels == whole.labels).mean()
    print(f"{same:.1%} of the pixels have the same label as without pausing")
    ratios = sorted(result.class_ratios().items(), key=lambda item: -item[1])
    print(", ".join(f"{name} {ratio:.0%}" for name, ratio in ratios[:5]))

    stem = Path(arguments.image).stem if arguments.image else "street"
    for path in result.save(arguments.out, stem):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
