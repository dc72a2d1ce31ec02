"""IoU by object size: small regions are where pausing can hurt."""

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from paumer.classes import IGNORE

SIZES = ("small", "medium", "large")
EDGES = (0.001, 0.01)
"""Small regions cover less than a thousandth of the image, large ones at least a hundredth."""


def count_sizes(
    labels: Integer[np.ndarray, "h w"],
    truth: Integer[np.ndarray, "h w"],
    classes: int,
    ignore: int = IGNORE,
) -> Int[np.ndarray, "3 3 classes"]:
    """For each region size and class the pixels that are right, labelled so, and truly so.

    Regions are connected pixels of one class, also over corners. Right and missed pixels count by
    the size of the true region they lie in, wrongly labelled ones by that of the predicted region.
    Pixels whose true label is ``ignore`` do not count.
    """
    known, right = truth != ignore, labels == truth
    true_sizes, label_sizes = region_sizes(truth, classes), region_sizes(labels, classes)
    hit = _count(true_sizes, truth, right & known, classes)
    wrong = _count(label_sizes, labels, ~right & known, classes)
    missed = _count(true_sizes, truth, ~right & known, classes)
    return np.stack([hit, hit + wrong, hit + missed], axis=1)


def region_sizes(labels: Integer[np.ndarray, "h w"], classes: int) -> Int[np.ndarray, "h w"]:
    """For each pixel the size of its region: 0 small, 1 medium, 2 large."""
    try:
        from scipy import ndimage
    except ImportError as error:
        what = "IoU by object size needs scipy"
        raise ImportError(f"{what}: pip install 'paumer[figures]'") from error
    sizes = np.zeros(labels.shape, np.int64)
    around = np.ones((3, 3), bool)
    edges = [edge * labels.size for edge in EDGES]
    for label in np.unique(labels):
        if label < classes:
            regions, _ = ndimage.label(labels == label, around)
            bins = np.searchsorted(edges, np.bincount(regions.ravel()), side="right")
            here = regions > 0
            sizes[here] = bins[regions[here]]
    return sizes


def _count(
    sizes: Int[np.ndarray, "h w"],
    labels: Integer[np.ndarray, "h w"],
    where: Bool[np.ndarray, "h w"],
    classes: int,
) -> Int[np.ndarray, "3 classes"]:
    flat = sizes[where] * classes + labels[where]
    return np.bincount(flat, minlength=3 * classes).reshape(3, classes)


def ratio(
    part: Integer[np.ndarray, "*s"], whole: Integer[np.ndarray, "*s"]
) -> Float[np.ndarray, "*s"]:
    """``part / whole``, and NaN where there is no whole."""
    out = np.full(part.shape, np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def mean_known(values: Float[np.ndarray, "*s n"]) -> Float[np.ndarray, "*s"]:
    """The mean over the last axis of what is not NaN; NaN where nothing is known."""
    count = (~np.isnan(values)).sum(-1)
    return np.where(count > 0, np.nansum(values, -1) / np.maximum(1, count), np.nan)
