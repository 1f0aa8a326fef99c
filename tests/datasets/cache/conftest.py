"""torch is imported here, and not by test modules: it keeps files open from then on, and spawned workers need none."""

import torch  # noqa: F401
