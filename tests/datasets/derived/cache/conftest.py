"""Import torch here, not in the test modules: it keeps files open once imported, and spawned workers do not need it."""

import torch  # noqa: F401
