"""Order of files for parallel test runs: workers take whole files, so the longest files go first."""

from collections import Counter
from collections.abc import Iterator

import pytest

LONGEST = (  # under tests/, of few tests each; files with more tests follow in the order of their number
    "contract/test_pipeline.py", "unit/platforms/cuda/test_cuda_compiles.py", "unit/experiments/test_loggers.py",
    "contract/test_extending.py", "contract/test_notebooks.py", "unit/experiments/test_training_processes.py",
    "unit/experiments/test_bench_fusion.py", "unit/experiments/test_compare.py",
    "unit/experiments/test_bench_jacobi.py", "unit/experiments/test_eval_ragged.py",
    "unit/experiments/test_bench_dispatch.py", "property/test_sparse_fuzz.py",
    "unit/tuning/test_sparse_calls.py", "unit/experiments/test_bench_ragged.py",
    "unit/experiments/test_bench_gcn.py", "unit/models/test_models_processes.py", "unit/data/test_processes.py",
    "unit/experiments/test_finetune.py", "unit/baselines/test_baselines_encoder.py",
    "unit/platforms/cuda/test_cuda_kernels.py", "unit/experiments/test_launchers.py",
    "unit/experiments/test_collect.py", "unit/nn/test_torch_baselines.py", "unit/experiments/test_bench_encoders.py",
    "unit/experiments/test_trial_commands.py", "unit/experiments/test_bench_recommend.py",
)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # of xdist: the number of tests would be all that counts
        config.option.loadscopereorder = False


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Let every other worker load files from the last to the first: it finds compiled what another one has loaded."""
    outcome = yield
    number = getattr(collector.config, "workerinput", {}).get("workerid", "gw0").removeprefix("gw")
    if isinstance(collector, pytest.Directory) and int(number) % 2:
        outcome.get_result().result.reverse()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.path for item in items)
    places = {config.rootpath / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), -tests[item.path], item.path))
