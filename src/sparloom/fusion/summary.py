"""What a schedule came to, in numbers."""

import numpy as np

from sparloom.fusion.schedule import TileSchedule

__all__ = ["summarise"]

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


def summarise(schedule: TileSchedule) -> dict[str, float]:
    """Report a schedule.

    Returns:
        fused_ratio (Equation 3), fused_rows (share of loop two), needed_rows (share of loop one that wavefront 1
        reads); per wavefront w: tiles_w and quantiles of the size of its tiles, size_w_min, _q25, _median, _q75, _max,
        in iterations of loop one for w = 0, of loop two for w = 1, left out where there is no tile; bytes;
        build_seconds.
    """
    sizes = (np.diff(schedule.first), np.diff(schedule.second_ptr)[schedule.tiles[0] :])
    summary = {
        "fused_ratio": schedule.fused_ratio,
        "fused_rows": schedule.fused_rows,
        "needed_rows": float(schedule.needed.mean()) if schedule.needed.size else 0.0,
    }
    for wavefront, size in enumerate(sizes):
        summary[f"tiles_{wavefront}"] = size.size
        if size.size:
            quantiles = np.quantile(size, list(QUANTILES.values()))
            summary |= {f"size_{wavefront}_{name}": float(q) for name, q in zip(QUANTILES, quantiles, strict=True)}
    return summary | {"bytes": schedule.bytes, "build_seconds": schedule.build_seconds}
