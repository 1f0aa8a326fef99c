from __future__ import annotations

import numpy as np
import pytest

from feedline.tools.advise.batching import find
from feedline.tools.measure.measured import FloatField, OtherCollate
from tests.tools.advise.measurements import batch, loader, measured, samples


def test_a_sound_batch_has_no_finding() -> None:
    assert find(measured()) == []
    assert find(measured(batch=None)) == []
    assert find(measured(samples=None)) == []


def test_a_batch_that_cannot_be_pickled_is_serious_only_for_processes() -> None:
    bad = batch(not_picklable="it holds a generator")
    (finding,) = find(measured(batch=bad))
    assert (finding.name, finding.severity) == ("unsendable-batch", "serious")
    assert find(measured(batch=bad, loader=loader(engine="thread"))) == []


def test_objects_are_reported_only_if_they_are_a_large_part_of_the_batch() -> None:
    objects = {"object_bytes": 1 << 20, "objects": "boxes (list)", "arena_s": 0.06, "write_s": 0.032}
    (finding,) = find(measured(batch=batch(**objects, bytes=1 << 20)))
    assert finding.name == "serialisation"
    assert "boxes (list)" in finding.evidence
    assert finding.gain == 2.0, "32 ms to make samples, 32 ms to write them"
    assert find(measured(batch=batch(**objects, bytes=64 << 20))) == []


def test_pickled_objects_are_not_reported_again_as_slow_collating() -> None:
    objects = {"object_bytes": 1 << 20, "objects": "boxes (list)", "arena_s": 0.06, "write_s": 0.032, "bytes": 1 << 20}
    findings = find(measured(batch=batch(**objects, collate_s=0.1, is_custom=True)))
    assert [finding.name for finding in findings] == ["serialisation"]


def test_collating_is_compared_with_copying() -> None:
    own = {"collate_s": 0.064, "is_custom": True}
    (finding,) = find(measured(batch=batch(**own, copy_s=0.001)))
    assert (finding.name, finding.gain, finding.code) == ("slow-collate", None, None), "no faster way was found"
    assert find(measured(batch=batch(**own, copy_s=0.05))) == [], "most of the time is copying"
    assert find(measured(batch=batch(collate_s=0.001, copy_s=0.0, is_custom=True))) == [], (
        "negligible beside 32 ms for samples"
    )


def test_leaving_out_a_collate_function_is_advised_if_the_default_gives_the_same() -> None:
    own = batch(collate_s=0.064, copy_s=0.001, is_custom=True, other=OtherCollate("", 0.002))
    (finding,) = find(measured(batch=own))
    assert finding.code == "DataLoader(dataset)"
    assert "Leave out collate_fn" in str(finding.fix)
    assert finding.gain == pytest.approx((32 + 64) / (32 + 2), abs=0.01)


def test_the_rest_of_the_pipeline_counts_on_both_sides_of_a_gain() -> None:
    """Seen once: a gain of 20.1 promised and 3.9 measured, as handing a batch over took longer than making it."""
    stacked = OtherCollate("def collate(samples):\n    return np.stack(samples)", 5e-4)
    own = batch(collate_s=0.02, copy_s=1e-4, is_custom=True, other=stacked)
    quick = samples(seconds=(1e-6,) * 200)
    (finding,) = find(measured(samples=quick, batch=own, loader=loader(engine="inline"), handover_s=5e-3))
    assert finding.gain == pytest.approx((20 + 5) / (0.5 + 5), rel=0.02)
    assert str(finding.code).endswith("DataLoader(dataset, collate_fn=collate)")


def test_the_default_collate_function_is_reported_only_for_many_fields() -> None:
    slow = {"collate_s": 0.064, "copy_s": 0.001}
    assert find(measured(batch=batch(**slow, fields=2))) == [], "two fields cannot be collated faster"
    (finding,) = find(measured(batch=batch(**slow, fields=200)))
    assert "fewer and larger fields" in str(finding.fix)


def test_the_margin_of_slow_collating_is_relative_to_the_samples() -> None:
    """A fast machine collates 200 fields in 1.6 ms. Noise slows down the samples as well, so it changes nothing."""
    fast = samples(seconds=(2.5e-5,) * 200)
    (finding,) = find(measured(samples=fast, batch=batch(collate_s=1.6e-3, fields=200)))
    assert finding.margin == pytest.approx(1.6e-3 / (0.3 / 0.7 * 32 * 2.5e-5), rel=0.01)
    assert find(measured(samples=fast, batch=batch(collate_s=0.9e-3, fields=200))) == [], "too short to matter"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("numbers", 'sample["boxes"] = np.asarray(sample["boxes"])'),
        ("texts", 'sample["boxes"] = "\\0".join(sample["boxes"])'),
        ("", None),
    ],
)
def test_the_suggested_code_depends_on_the_kind_of_objects(kind: str, code: str | None) -> None:
    objects = {"object_bytes": 1 << 20, "objects": "boxes (list)", "arena_s": 0.06, "write_s": 0.032, "bytes": 1 << 20}
    (finding,) = find(measured(batch=batch(**objects, object_kind=kind)))
    assert (finding.code or "").partition("\n")[0] == (code or "")


def test_only_large_float_fields_are_reported() -> None:
    field = FloatField("image", "float32", is_scaled=True, convert_s=5e-4, sample_bytes=600_000)
    (finding,) = find(measured(batch=batch(floats=(field,))))
    assert "585.9 KiB a sample where 146.5 KiB would do" in finding.evidence
    assert "div_(255)" in str(finding.code)
    small = FloatField("mask", "float32", is_scaled=False, convert_s=5e-4, sample_bytes=4000)
    assert find(measured(batch=batch(floats=(small,)))) == []


def test_padding_is_compared_with_buckets() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 640)
    (finding,) = find(measured(samples=samples(lengths=tuple(lengths.tolist()))))
    assert finding.name == "padding"
    padded = lengths.reshape(-1, 32).max(axis=1).sum()
    bucketed = np.sort(lengths).reshape(-1, 32).max(axis=1).sum()
    assert finding.gain == round(padded / bucketed, 2)
    even = tuple(np.random.default_rng(0).integers(950, 1000, 640).tolist())
    assert find(measured(samples=samples(lengths=even))) == []
    assert find(measured(samples=samples(lengths=(1, 1000)))) == [], "too few samples to decide"
