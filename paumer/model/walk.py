"""Pictures on their way through the encoder."""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from paumer import pausing
from paumer.pausing import Stage


@dataclass(frozen=True, slots=True)
class Walk:
    """Pictures on their way through the encoder, equally many patches of each still active.

    ``table`` is the rotary table of the active patches, ``whole_table`` that of all. ``means`` go
    through the blocks too, one for each pause, where the network has a context.
    """

    tokens: Float[Tensor, "b t d"]
    places: Int[Tensor, "b n"]
    table: Tensor | None
    stages: tuple[Stage, ...] = ()
    whole_table: Tensor | None = None
    means: Float[Tensor, "b m d"] | None = None

    @property
    def pictures(self) -> Int[Tensor, " b"]:
        """Which pictures of the batch these are."""
        first = self.stages[0].places if self.stages else self.places
        return first[:, 0] // first.shape[1]

    def select(self, pictures: Int[Tensor, " g"]) -> "Walk":
        """The same walk of some of its pictures."""
        stages = []
        for old in self.stages:
            kept, length, patches = old.kept[pictures], old.tokens.shape[1], old.places.shape[1]
            stages.append(
                Stage(
                    old.block,
                    old.tokens[pictures],
                    old.places[pictures],
                    old.logits[pictures],
                    old.score[pictures],
                    kept,
                    pausing.rows_of(kept, length, length - patches),
                )
            )
        table = self.table
        if table is not None and table.dim() == 4:
            table = table[pictures]
        return replace(
            self,
            tokens=self.tokens[pictures],
            places=self.places[pictures],
            table=table,
            stages=tuple(stages),
            means=None if self.means is None else self.means[pictures],
        )
