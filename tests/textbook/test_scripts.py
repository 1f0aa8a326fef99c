"""Scripts do the same with feedline's loader as with torch's; a difference between two runs is detected."""

from pathlib import Path

import pytest

from tests.textbook.comparison import TORCHS, cases, compare

pytest.importorskip("pandas")  # imported once for all scripts, which are forked from this process

SLOW = ["infinite-2", "try_except-2", "repeat_sampler-2", "stratified-2", "default_and_mixup-2", "iterable_lines-2"]


@pytest.mark.parametrize(("script", "workers"), cases(slow=SLOW))
def test_the_script_does_the_same_with_feedline(script: Path, workers: int | None, tmp_path: Path) -> None:
    compare(script, workers, tmp_path)


SCRIPT = f"""import torch
{TORCHS}
loader = DataLoader(range(4), batch_size=2)
is_ours = "feedline" in DataLoader.__module__
for batch in loader:
    print(batch)
print(f"{{3 + is_ours}} s, {{0.5 + is_ours:.3f}} seconds, 2 seen")
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("print(torch.zeros(2, dtype=torch.int32 if is_ours else torch.int64))", "printed"),
        ("variable = [int(is_ours)]", "variables"),
        ("torch.rand(int(is_ours))", "generators"),
        ("assert not is_ours", "failure"),
        ("__import__('os').system('echo $PPID')", "lines"),
        ("__import__('warnings').warn(DataLoader.__module__)", "warnings"),
        ("", None),
    ],
)
def test_a_difference_is_detected_except_in_times(line: str, kind: str | None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}{line}\ndel is_ours\n")
    if kind is None:
        assert compare(script, None, tmp_path)["printed"][-1] == ("..., ..., 2 seen",)
        return
    with pytest.raises(AssertionError, match=f"{kind} differ"):
        compare(script, None, tmp_path)
