"""The small program written beside an exported file, which uses it and nothing of paumer."""

SCRIPT = '''"""Segment images with {file}: python {script} street.jpg streets/*.png --mode balanced

Needs numpy, pillow and {runtime}. Writes a mask (its values are the classes) and an overlay of
each image. segment() is what to take over into a program of your own.
"""

import argparse
import json
import pathlib

import numpy as np
from PIL import Image, ImageOps

FILE = pathlib.Path(__file__).with_name("{file}")


{start}

def segment(start, image, mode=None):
    """The class of each pixel of a PIL image, as numpy array (height, width)."""
    info, run = start
    feed = dict(info["modes"][mode]) if mode else {{}}
    width, height = image.size
    side = feed.pop("short_side", None) or info["short_side"]
    if not side and info["trained_side"] and min(image.size) > info["trained_side"]:
        side = info["trained_side"]
    if side and side > 0:  # As in training, the shorter side has this length.
        size = [max(1, round(length * side / min(width, height))) for length in (width, height)]
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image.convert("RGB"))[None]
    if info["pixels"] == "normalised":
        config = info["config"]
        normal = (pixels / np.float32(255) - np.float32(config["mean"])) / np.float32(config["std"])
        pixels = normal.transpose(0, 3, 1, 2)
    types = {{"protect": np.float32, "neighbours": bool, "exit": bool}}
    feed = {{name: np.array(value, types.get(name, float)) for name, value in feed.items()}}
    answer = run({{"images": pixels, "size": np.array([height, width]), **feed}})[0]
    return answer if info["output"] == "labels" else answer.argmax(0)


def main():
    start = open_file()
    info = start[0]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", type=pathlib.Path)
    parser.add_argument("--mode", choices=info["modes"] or None, help="default: " + info["mode"])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names, colours = info["config"]["classes"], np.array(info["colours"], np.uint8)
    for path in options.images:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
        labels = segment(start, image, options.mode)
        if len(names) <= 256:
            mask = Image.fromarray(labels.astype(np.uint8))
            mask.putpalette(colours.tobytes())
        else:
            mask = Image.fromarray(labels.astype(np.uint16))
        mask.save(options.out / (path.stem + "_mask.png"))
        overlay = Image.blend(image, Image.fromarray(colours[labels]), 0.5)
        overlay.save(options.out / (path.stem + "_overlay.png"))
        counts = np.bincount(labels.ravel(), minlength=len(names)) / labels.size
        found = [number for number in np.argsort(-counts) if counts[number]]
        print(f"{{path}}:", ", ".join(f"{{names[i]}} {{counts[i]:.1%}}" for i in found))


if __name__ == "__main__":
    main()
'''

START = {
    "onnxruntime": '''def open_file(path=FILE):
    """What the file says of itself, and a function that runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # It warns of inputs that have a default.
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    info = json.loads(session.get_modelmeta().custom_metadata_map["paumer"])
    return info, lambda feed: session.run([info["output"]], feed)[0]
''',
    "openvino": '''def open_file(path=FILE):
    """What the file says of itself, and a function that runs it, in the file's own mode."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    info, ready = json.loads(model.get_rt_info(["framework", "paumer"]).astype(str)), {}

    def run(feed):
        shape = feed["images"].shape
        if shape not in ready:  # Each size is prepared when it is first met.
            model.reshape({"images": list(shape)})
            ready[shape] = core.compile_model(model, "CPU")
        return ready[shape]({name: feed[name] for name in ("images", "size")})[info["output"]]

    return info, run
''',
}


def script_text(file: str, script: str, runtime: str) -> str:
    """The program that uses a file in a runtime: onnxruntime or openvino."""
    return SCRIPT.format(file=file, script=script, runtime=runtime, start=START[runtime])
