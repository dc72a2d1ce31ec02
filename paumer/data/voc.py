"""The classes of Pascal VOC, in the colours of its palette."""

from paumer.classes import ClassSet, Colour

_NAMES = """
background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike
person pottedplant sheep sofa train tvmonitor
"""


def _colour(label: int) -> Colour:
    """The bits of a label, three at a time, are the bits of red, green and blue, highest first."""
    red, green, blue = (
        sum((label >> 3 * bit + channel & 1) << 7 - bit for bit in range(8)) for channel in range(3)
    )
    return red, green, blue


VOC = ClassSet(tuple(_NAMES.split()), tuple(map(_colour, range(21))))
