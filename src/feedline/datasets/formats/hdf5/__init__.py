"""HDF5 files as one dataset."""

from feedline.datasets.formats.hdf5.dataset import HDF5Dataset

__all__ = ["HDF5Dataset"]
