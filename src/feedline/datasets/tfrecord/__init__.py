"""TFRecord files, the format of TensorFlow."""

from feedline.datasets.tfrecord.dataset import TFRecordDataset

__all__ = ["TFRecordDataset"]
