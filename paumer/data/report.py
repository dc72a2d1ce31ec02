"""What a check of a data set found."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from paumer.data.layouts import Problem


@dataclass(frozen=True)
class Report:
    """What a check found in one split.

    `images` counts those that have a mask. `class_pixels` are exact counts over all masks that
    could be read, in the order of `classes`; `sizes` are (width, height) and how many images
    have it, the most frequent first. `contents` are file and content hash of every image.
    """

    name: str
    split: str
    images: int
    problems: tuple[Problem, ...]
    classes: tuple[str, ...]
    class_pixels: tuple[int, ...]
    ignored_pixels: int
    sizes: tuple[tuple[tuple[int, int], int], ...]
    contents: tuple[tuple[str, str], ...] = field(repr=False, default=())

    @property
    def class_shares(self) -> tuple[float, ...]:
        """The share of each class among the labelled pixels."""
        total = max(1, sum(self.class_pixels))
        return tuple(pixels / total for pixels in self.class_pixels)

    def to_json(self) -> dict[str, object]:
        """The report as JSON values, without the content hashes."""
        values = asdict(self)
        del values["contents"]
        values["sizes"] = [
            {"width": width, "height": height, "images": count}
            for (width, height), count in self.sizes
        ]
        return values

    def to_text(self) -> str:
        """The report to read: totals, sizes, a table of classes, and every problem."""
        sizes = [f"{width}x{height} ({count})" for (width, height), count in self.sizes]
        more = f" and {len(sizes) - 6} more" if len(sizes) > 6 else ""
        lines = [
            f"{self.name} {self.split}: {self.images:,} images, "
            f"{len(self.problems) or 'no'} problem{'s' if len(self.problems) != 1 else ''}",
            f"sizes: {', '.join(sizes[:6]) or 'none could be read'}{more}",
            "",
        ]
        rows = [("class", "pixels", "share")]
        for name, pixels, share in zip(
            self.classes, self.class_pixels, self.class_shares, strict=True
        ):
            rows.append((name, f"{pixels:,}", f"{share:.2%}"))
        rows.append(("(ignored)", f"{self.ignored_pixels:,}", ""))
        wide = [max(len(row[i]) for row in rows) for i in range(3)]
        lines += [
            f"{name:<{wide[0]}}  {pixels:>{wide[1]}}  {share:>{wide[2]}}".rstrip()
            for name, pixels, share in rows
        ]
        if self.problems:
            kinds = Counter(problem.kind for problem in self.problems)
            lines += ["", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())]
            lines += [f"- {problem.kind}: {problem.message}" for problem in self.problems]
        return "\n".join(lines)
