"""What long work is given to report how far it is."""

from collections.abc import Callable, Mapping

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is."""

StepProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

TrainingProgress = Callable[[int, int, Mapping[str, float]], None]
"""Called with how many steps are done, how many there are, and the newest numbers."""

Say = Callable[[str], None]
"""Called with a line for people."""
