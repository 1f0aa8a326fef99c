"""How batches without a common form are pickled: with their arrays beside the pickle, in the memory of the batch."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Reducer
from feedline.abc.memory import Writer


def _reduce_array(array: NDArray[np.generic]) -> object:
    if not array.flags.writeable:  # for example made from bytes; would arrive read-only, unlike with plain pickle
        array = array.copy("A")  # in Fortran order or row by row, as pickle does
    return array.__reduce_ex__(5)


def _reduce_text(value: np.bytes_ | np.str_) -> object:
    """NumPy's own pickle leaves out zeros at the end."""
    return type(value), (bytes(value) if isinstance(value, bytes) else "".join(value),)


class BatchPickler(pickle.Pickler):
    """A pickler that is reused for every batch; its dispatch table is fixed when it is made.

    Args:
        reducers: for each type whose data goes into the memory, how it is written there.
        more: how objects of other types are pickled.
        override: as `reducer_override` of a pickler.
    """

    def __init__(
        self,
        reducers: dict[type, Reducer],
        more: dict[type, Callable[[object], object]],
        override: Callable[[object], object] | None,
    ) -> None:
        self._file = io.BytesIO()
        self._writer: Writer
        self._buffers: list[tuple[int, int]] = []
        super().__init__(self._file, protocol=5, buffer_callback=self._take_buffer)
        self.dispatch_table: dict[type, Any] = {
            **copyreg.dispatch_table,
            np.ndarray: _reduce_array,
            np.bytes_: _reduce_text,
            np.str_: _reduce_text,
            **more,
        }
        for kind, reduce in reducers.items():
            self.dispatch_table[kind] = lambda array, reduce=reduce: reduce(array, self._writer)
        if override is not None:
            vars(self)["reducer_override"] = override  # a method would be called for every object of a batch

    def pickled(self, value: object, writer: Writer) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the pickle of an object, and the place (start, size) of each of its buffers in the memory."""
        self._file.seek(0)
        self._file.truncate()
        self._buffers.clear()
        self._writer = writer
        try:
            self.dump(value)
        finally:
            self.clear_memo()  # it holds the object
            del self._writer
        return self._file.getvalue(), self._buffers

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        if not isinstance(memoryview(buffer).obj, np.ndarray):  # in the pickle, its bytes keep their type
            return True
        raw = buffer.raw()
        if raw.nbytes == 0:
            return True
        address = np.frombuffer(raw, np.uint8).__array_interface__["data"][0]
        self._buffers.append((self._writer.copy(address, raw.nbytes, lasting=False), raw.nbytes))
        return False
