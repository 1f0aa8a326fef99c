import pytest

pytest.register_assert_rewrite("tests.textbook.comparison")  # so that a failed comparison shows the difference
