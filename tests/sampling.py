"""The number of Hypothesis examples of a test, which its profile scales."""

import hypothesis


def examples(count: int) -> int:
    """Scale a test's own number of examples as the profile scales the default, which is 100; at least to five."""
    return min(count, max(5, count * hypothesis.settings().max_examples // 100))
