"""Endless sources: message queues, and files that grow."""

from feedline.datasets.streams.dataset import StreamDataset
from feedline.datasets.streams.feed import Feed, Message
from feedline.datasets.streams.lines import GrowingFile
from feedline.datasets.streams.redis import RedisStream

__all__ = ["Feed", "GrowingFile", "Message", "RedisStream", "StreamDataset"]
