"""Segmentation scoring: images per second and processor core, the model's own time not counted.

    python -m benchmarks.segmentation [--quick]

Maps of 14x14 patches against masks of 224x224 pixels, all scores of `segmentation_scores`, on one thread.
"""

import time
from collections.abc import Callable

import torch

from benchmarks._rows import Row
from xattn.evaluation import segmentation_scores, segmentation_totals

SIZE, GRID, BATCH = 224, 14, 16


def main(quick: bool = False) -> list[Row]:
    """Images per second for each way to threshold."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(BATCH, GRID, GRID, generator=generator)
    masks = (torch.rand(BATCH, 1, 8, 8, generator=generator) > 0.6).float()
    masks = torch.nn.functional.interpolate(masks, size=(SIZE, SIZE))[:, 0].long()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = {
            str(threshold): lambda threshold=threshold: segmentation_totals(
                segmentation_scores(maps, masks, threshold=threshold)
            )
            for threshold in ("mean", "otsu", "best")
        }
        times = {name: min(_core_seconds(call) for _ in range(2 if quick else 6)) for name, call in calls.items()}
    finally:
        torch.set_num_threads(threads)
    case = f"{GRID}x{GRID} maps, {SIZE}x{SIZE} masks"
    return [
        Row("segmentation", case, f"threshold {name}: images per second and core", BATCH / seconds, "higher")
        for name, seconds in times.items()
    ]


def _core_seconds(function: Callable[[], object]) -> float:
    """Processor time of one call, whatever else runs on the machine."""
    start = time.process_time()
    function()
    return time.process_time() - start


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
