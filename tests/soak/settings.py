"""The settings of a soak: its duration, its configurations, and how often their programs are killed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CONFIGURATIONS = ("items-processes", "items-threads", "tar-processes", "pictures-forkserver")
"""The programs that a soak runs side by side. `data.py` describes each."""


@dataclass(frozen=True)
class Settings:
    """Everything that the supervisor and the training programs must agree on."""

    seed: int
    folder: str
    """The folder of data, checkpoints and results."""
    hours: float = 2.0
    """How long the programs train. A soak lasts longer if the kills and the last life need more time."""
    resumes: int = 10
    """How often each program is killed and resumed."""
    configurations: tuple[str, ...] = CONFIGURATIONS
    size: int = 1200
    """Samples of a dataset."""
    batch_size: int = 8
    step_s: float = 0.005
    """How long a training step takes at least. Without it, four programs would keep every core busy."""
    measured_cycles: int = 12
    """The minimum number of cycles of the last life after its warm-up."""
    grace_s: float = 60.0
    """How long workers and threads may take to end after their loader was closed."""
    hang_s: float = 300.0
    """A program that delivers nothing for this long counts as hanging. Its stacks go into the result."""
    tolerance_bytes: int = 16 << 20
    """How much a program may grow after its warm-up."""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.hours * 3600

    def as_json(self) -> str:
        """Return it as text for the command line of a program."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what `as_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "configurations": tuple(values["configurations"])})
