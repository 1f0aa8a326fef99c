from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.tools.write.stores import pack_as, read

FIELDS: dict[str, Any] = {
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "number": 3.5,
    "flag": True,
    "complex": 1 + 2j,
    "half": np.float16(0.5),
    "text": "ä☃",
    "bytes": b"\0a\0",
    "ragged": np.arange(3, dtype=np.float32),
}


def test_h5py_reads_the_output(tmp_path: Path) -> None:
    second = {**FIELDS, "ragged": np.zeros(0, np.float32), "text": "", "bytes": b""}
    packed = pack_as("hdf5", tmp_path, [FIELDS, second])
    with h5py.File(packed.path) as file:
        assert list(file) == list(FIELDS), "in the order of the sample"
        assert file["array"].shape == (2, 2, 3)
        assert file["text"].asstr()[0] == "ä☃"
        assert file["bytes"].attrs["feedline"] == b"bytes"
        assert file["ragged"][0].tolist() == [0, 1, 2]
        assert file["half"].dtype == np.float16
    first = read(packed)[0]
    assert (first["text"], first["bytes"], bool(first["flag"])) == ("ä☃", b"\0a\0", True)
