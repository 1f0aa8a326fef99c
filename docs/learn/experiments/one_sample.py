"""Question: which parts make up the time to load one JPEG file?

It reads, decodes, crops and converts files of 500x375 pixels with Pillow and NumPy, as most datasets do, and sums the
CPU time of each part. CPU time is hardly disturbed by other programs, so the shares are steady on a busy machine.

    python docs/learn/experiments/one_sample.py
"""

# ruff: noqa: D103

import io
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from PIL import Image


def write_files(folder: Path, count: int) -> list[Path]:
    noise, paths = np.random.default_rng(0), []
    for number in range(count):
        coarse = Image.fromarray(noise.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        pixels = np.asarray(coarse) + noise.normal(0, 8, (375, 500, 3))
        paths.append(folder / f"{number}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def main() -> None:
    paths = write_files(Path(mkdtemp()), 40)
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    spent: Counter[str] = Counter()
    for path in paths * 5:
        times = [time.process_time()]
        data = path.read_bytes()
        times.append(time.process_time())
        image = Image.open(io.BytesIO(data)).convert("RGB")
        times.append(time.process_time())
        crop = image.resize((224, 224), Image.BILINEAR, box=(60, 40, 440, 330))
        times.append(time.process_time())
        pixels = np.ascontiguousarray(((np.asarray(crop, np.float32) / 255 - mean) / std).transpose(2, 0, 1))
        times.append(time.process_time())
        assert pixels.shape == (3, 224, 224)
        for name, before, after in zip(("read", "decode", "crop", "convert"), times, times[1:], strict=False):
            spent[name] += after - before
    total = sum(spent.values())
    for name, seconds in spent.items():
        sys.stdout.write(f"{name:8} {seconds / len(paths) / 5 * 1e3:6.2f} ms  {seconds / total:5.1%}\n")
    sys.stdout.write(f"{'in all':8} {total / len(paths) / 5 * 1e3:6.2f} ms\n")


if __name__ == "__main__":
    main()
