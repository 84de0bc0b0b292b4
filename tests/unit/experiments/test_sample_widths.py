"""Every task reads only labels of the platform's width."""

import pytest

from sparloom.data import Sample, SampleTable
from sparloom.experiments.harness import samples_of
from sparloom.ops import SDDMM, SpMM

TASKS = {
    "finetune_tiny": "target.width=64", "fit_spade": "width=64", "pretrain_cpu": "width=64",
    "recommend": "width=64", "export_csv": "target.width=64"}


class Platform:
    name, preset = "cpu", "t1"

    def __init__(self, width):
        self.width = width


class Samples:
    """Samples of some widths, one configuration on one matrix each."""

    def __init__(self, *widths):
        self.widths = widths

    def table(self, platform, preset, op):
        return SampleTable.of([Sample(
            op=op, platform=platform, preset=preset, matrix="m", width=width, config="a=1", round=0,
            seconds=(float(width),), cpu_seconds=(), kind="wall", failure=None, stolen=False, machine="x", commit="",
            started="2000-01-01T00:00:00Z") for width in self.widths])


@pytest.mark.parametrize("op", [SpMM(), SDDMM()])
def test_samples_of_another_width_are_not_taken(op):
    with pytest.raises(ValueError, match=f"no samples of {op.name} on cpu with 64 columns: give the platform a width "
                                         "of 256, or collect them"):
        samples_of(Samples(256), Platform(64), op)
    with pytest.raises(ValueError, match="with 256 columns: give the platform a width of 32, 128, or"):
        samples_of(Samples(32, 128), Platform(256), op)
    for width in (32, 128):
        assert samples_of(Samples(32, 128), Platform(width), op).widths() == (width,)
        assert samples_of(Samples(width), Platform(width), op).widths() == (width,)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("experiment", TASKS)
def test_every_task_refuses_a_width_without_samples(build, tmp_path, experiment, op):
    options = ("recommender=sparloom", "matrix=none.mtx") if experiment == "recommend" else ()
    task = build(experiment, "samples=tiny", TASKS[experiment], f"op={op}", *options, folder=tmp_path)
    run = (lambda: task.recommender.fitted) if experiment == "recommend" else lambda: task.run(tmp_path)
    with pytest.raises(ValueError, match=f"no samples of {op} on .* with 64 columns: give the platform a width of 256"):
        run()
    assert not (tmp_path / "artifacts").exists()
