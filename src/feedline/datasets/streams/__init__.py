"""Endless sources: message queues."""

from feedline.datasets.streams.dataset import StreamDataset
from feedline.datasets.streams.feed import Feed, Message
from feedline.datasets.streams.redis import RedisStream

__all__ = ["Feed", "Message", "RedisStream", "StreamDataset"]
