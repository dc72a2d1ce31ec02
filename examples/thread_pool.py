"""One model, several threads, each call in a mode of its own.

python examples/thread_pool.py
"""

from concurrent.futures import ThreadPoolExecutor

from paumer import load
from paumer.data.datasets import open_dataset

model = load("street-tiny")
images = [sample.image for sample in open_dataset("scenes:2@192x144", "val")]
jobs = [(image, mode) for image in images for mode in ("none", "balanced", "fast")]

with ThreadPoolExecutor(2) as pool:
    for result in pool.map(lambda job: model.predict(*job), jobs):
        largest = max(result.class_ratios().items(), key=lambda item: item[1])
        print(f"{result}: {largest[0]} {largest[1]:.0%}")
