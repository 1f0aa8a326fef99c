"""Endless sources: message queues."""

from feedline.datasets.formats.streams.dataset import StreamDataset
from feedline.datasets.formats.streams.feed import Feed, Message
from feedline.datasets.formats.streams.redis import RedisStream

__all__ = ["Feed", "Message", "RedisStream", "StreamDataset"]
