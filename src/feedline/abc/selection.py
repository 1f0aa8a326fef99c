"""The contracts of datasets whose samples come from other datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Derived(ABC):
    """A map-style dataset whose samples come from other datasets, so that messages can name the original index.

    Example:
        >>> from feedline.abc import Derived
        >>> class Reversed(Derived):
        ...     def __init__(self, dataset):
        ...         self.dataset = dataset
        ...     def __len__(self):
        ...         return len(self.dataset)
        ...     def __getitem__(self, index):
        ...         return self.dataset[len(self) - 1 - index]
        ...     def origin(self, index):
        ...         return self.dataset, len(self) - 1 - index
        >>> Reversed([10, 20, 30]).origin(0)
        ([10, 20, 30], 2)
    """

    # Any: a dataset is any suitable object.
    @abstractmethod
    def origin(self, index: Any) -> tuple[object, object]:
        """Return the origin of a sample: the attribute `dataset`, or one of `datasets`, and the index in it.

        Called when a sample has failed; may raise any exception if there is no such sample.
        """


class Selection(Derived):
    """A map-style dataset whose sample i is sample `indices[i]` of another one.

    If a loader can read the other dataset in one vectorised step, it reads this one in the same way. This applies only
    to subclasses, and only if their samples are as described here.

    Example:
        >>> import numpy as np
        >>> from feedline.abc import Selection
        >>> class Part(Selection):
        ...     def __init__(self, dataset, indices):
        ...         self.dataset, self.indices = dataset, np.asarray(indices)
        ...     def __len__(self):
        ...         return len(self.indices)
        ...     def __getitem__(self, index):
        ...         return self.dataset[self.indices[index]]
        >>> Part([10, 20, 30], [2, 0]).origin(0)
        ([10, 20, 30], 2)
    """

    # Any: a dataset is any suitable object.
    dataset: Any
    """The other dataset."""
    indices: NDArray[np.int64]
    """Indices of the selected samples, in order."""

    def origin(self, index: Any) -> tuple[Any, Any]:
        return self.dataset, int(self.indices[index])
