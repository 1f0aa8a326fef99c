"""The Triton kernel of `feedline.images.resampling`; importing it imports Triton."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kernel(
    table,
    out,
    stride_image,
    stride_color,
    stride_row,
    stride_column,
    height,
    width,
    scale_0,
    scale_1,
    scale_2,
    shift_0,
    shift_1,
    shift_2,
    IS_BYTES: tl.constexpr,  # noqa: N803  Triton has constants in capitals
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """Compute some rows of one image. `table` has twelve numbers for each image: see `_with_triton`."""
    image = tl.program_id(0)
    entry = table + image * 12
    source = tl.load(entry).to(tl.pointer_type(tl.uint8))
    source_height = tl.load(entry + 1).to(tl.int32)
    source_width = tl.load(entry + 2).to(tl.int32)
    pitch, step, plane = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    row, flip = tl.load(entry + 6), tl.load(entry + 7)
    left = tl.load(entry + 8).to(tl.int32).to(tl.float32, bitcast=True)
    top = tl.load(entry + 9).to(tl.int32).to(tl.float32, bitcast=True)
    box_width = tl.load(entry + 10).to(tl.int32).to(tl.float32, bitcast=True)
    box_height = tl.load(entry + 11).to(tl.int32).to(tl.float32, bitcast=True)

    # Pixels that lie at least partly in the box; those outside are cropped before resizing.
    first_x = tl.maximum(tl.floor(left).to(tl.int32), 0)
    last_x = tl.minimum(tl.ceil(left + box_width).to(tl.int32), source_width)
    first_y = tl.maximum(tl.floor(top).to(tl.int32), 0)
    last_y = tl.minimum(tl.ceil(top + box_height).to(tl.int32), source_height)

    x = tl.arange(0, COLUMNS)
    y = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    scale_x, scale_y = box_width / width, box_height / height
    reach_x, reach_y = tl.maximum(scale_x, 1.0), tl.maximum(scale_y, 1.0)
    center_x = left + (x.to(tl.float32) + 0.5) * scale_x
    center_y = top + (y.to(tl.float32) + 0.5) * scale_y
    falloff_x, falloff_y = 1 / reach_x, 1 / reach_y
    # The first pixel whose center is within reach, and how many are at most.
    begin_x = tl.ceil(center_x - reach_x - 0.5).to(tl.int32)
    taps = tl.ceil(2 * reach_x).to(tl.int32)

    total_x = tl.zeros((COLUMNS,), tl.float32)
    for tap in range(0, taps):
        at = begin_x + tap
        weight = tl.maximum(1.0 - tl.abs(at.to(tl.float32) + 0.5 - center_x) * falloff_x, 0.0)
        total_x += tl.where((at >= first_x) & (at < last_x), weight, 0.0)

    lowest = top + (tl.program_id(1) * ROWS + 0.5) * scale_y
    highest = lowest + (ROWS - 1) * scale_y
    begin_y = tl.maximum(tl.ceil(lowest - reach_y - 0.5).to(tl.int32), first_y)
    end_y = tl.minimum(tl.ceil(highest + reach_y - 0.5).to(tl.int32), last_y)

    total_y = tl.zeros((ROWS,), tl.float32)
    red = tl.zeros((ROWS, COLUMNS), tl.float32)
    green = tl.zeros((ROWS, COLUMNS), tl.float32)
    blue = tl.zeros((ROWS, COLUMNS), tl.float32)
    for line in range(begin_y, end_y):
        weight_y = tl.maximum(1.0 - tl.abs(line + 0.5 - center_y) * falloff_y, 0.0)
        total_y += weight_y
        base = source + line * pitch
        red_line = tl.zeros((COLUMNS,), tl.float32)
        green_line = tl.zeros((COLUMNS,), tl.float32)
        blue_line = tl.zeros((COLUMNS,), tl.float32)
        for tap in range(0, taps):
            at = begin_x + tap
            inside = (at >= first_x) & (at < last_x)
            weight = tl.maximum(1.0 - tl.abs(at.to(tl.float32) + 0.5 - center_x) * falloff_x, 0.0)
            place = base + at * step
            red_line += weight * tl.load(place, inside, 0).to(tl.float32)
            green_line += weight * tl.load(place + plane, inside, 0).to(tl.float32)
            blue_line += weight * tl.load(place + 2 * plane, inside, 0).to(tl.float32)
        red += weight_y[:, None] * red_line[None, :]
        green += weight_y[:, None] * green_line[None, :]
        blue += weight_y[:, None] * blue_line[None, :]

    inverse = 1.0 / (total_y[:, None] * total_x[None, :])
    to_x = tl.where(flip != 0, width - 1 - x, x)
    target = out + row * stride_image + y[:, None] * stride_row + to_x[None, :] * stride_column
    inside = (y[:, None] < height) & (x[None, :] < width)
    red, green, blue = red * inverse * scale_0, green * inverse * scale_1, blue * inverse * scale_2
    red, green, blue = red + shift_0, green + shift_1, blue + shift_2
    if IS_BYTES:
        red = tl.minimum(tl.maximum(tl.floor(red + 0.5), 0.0), 255.0)
        green = tl.minimum(tl.maximum(tl.floor(green + 0.5), 0.0), 255.0)
        blue = tl.minimum(tl.maximum(tl.floor(blue + 0.5), 0.0), 255.0)
    tl.store(target, red.to(out.dtype.element_ty), inside)
    tl.store(target + stride_color, green.to(out.dtype.element_ty), inside)
    tl.store(target + 2 * stride_color, blue.to(out.dtype.element_ty), inside)
