"""Which few of all candidates are worth a measurement."""

from collections import Counter

from sparloom.space import Config, GridSpace
from sparloom.tuning import Evolution
from sparloom.tuning.cost_model import PairCostModel
from sparloom.tuning.problem import Problem
from sparloom.tuning.search import best

__all__ = ["shortlist", "unfused_configs"]

ALIKE = 2  # candidates with the same tiles
EVOLUTION = Evolution(population=512, generations=12, patience=4, mutation=0.2, tournament=3, seed=0)
RANKED = 512  # of the space, among which the shortlist is taken


def unfused_configs(space: GridSpace) -> list[Config]:
    """List the points that fuse nothing."""
    return [config for config in space if config["ct_size"] == 0]


def shortlist(
    model: PairCostModel, problem: Problem, space: GridSpace, *, threads: int, count: int,
) -> list[Config]:
    """Take fused candidates with low scores, the best first, but few that have the same tiles.

    Args:
        threads: of the executor.
        count: at most so many.
    """
    ranked = best(lambda configs: model.score(problem, configs), space, min(RANKED, len(space)), evolution=EVOLUTION)
    alike: Counter[tuple[str, int]] = Counter()
    chosen: dict[tuple[object, ...], Config] = {}
    for config in (each.config for each in ranked):
        if config["ct_size"] == 0:
            continue
        tiling = problem.sketch(config["order"]).tiling(
            ct_size=config["ct_size"], cache_bytes=1024 * config["cache"], threads=threads)
        tiles = (config["order"], tiling.tiles)
        program = (*tiles, *(config[name] for name in ("local", "stream", "stream_first", "prefetch")))
        if program not in chosen and alike[tiles] < ALIKE:
            chosen[program] = config
            alike[tiles] += 1
    return list(chosen.values())[:count]
