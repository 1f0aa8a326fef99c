"""TFRecord files, the format of TensorFlow."""

from feedline.datasets.formats.tfrecord.dataset import TFRecordDataset

__all__ = ["TFRecordDataset"]
