"""Differences between the two runs of a script are detected."""

from pathlib import Path

import pytest

from tests.textbook.comparison import TORCHS, compare

SCRIPT = f"""import torch
{TORCHS}
loader = DataLoader(range(4), batch_size=2)
is_ours = "feedline" in DataLoader.__module__
for batch in loader:
    print(batch)
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("print(torch.zeros(2, dtype=torch.int32 if is_ours else torch.int64))", "printed"),
        ("print(*[3] * is_ours)", "printed"),
        ("variable = [int(is_ours)]", "variables"),
        ("torch.rand(int(is_ours))", "generators"),
        ("assert not is_ours", "failure"),
        ("__import__('os').system('echo $PPID')", "lines"),
        ("__import__('warnings').warn(DataLoader.__module__)", "warnings"),
    ],
)
def test_a_difference_is_detected(line: str, kind: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}{line}\ndel is_ours\n")
    with pytest.raises(AssertionError, match=f"{kind} differ"):
        compare(script, None, tmp_path)


def test_times_are_not_compared(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}print(f'{{3 + is_ours}} s, {{0.5 + is_ours:.3f}} seconds, 2 seen')\ndel is_ours\n")
    facts = compare(script, None, tmp_path)
    assert facts["printed"][-1] == ("..., ..., 2 seen",)
