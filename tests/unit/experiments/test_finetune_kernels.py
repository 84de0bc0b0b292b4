"""Fine-tuning on sparse kernels of the CPU: one width of the samples, and files where the benchmark reads them."""

import pytest
from sparse_table import write_spmm_table

from sparloom.data import StoredSamples
from sparloom.experiments.cognate import EvaluationData
from sparloom.ops import SpMM
from sparloom.platforms import CpuKernels
from sparloom.sparse import SyntheticCorpus


def test_labels_are_those_of_the_width(tmp_path):
    write_spmm_table(tmp_path, 4)
    samples = StoredSamples(data=str(tmp_path), folder="", corpus=SyntheticCorpus([10], 1, 0, ["uniform"]))
    for width, points in ((32, 72), (128, 90)):
        labels = EvaluationData(CpuKernels(2, width), SpMM(), samples, "test").labels
        assert labels.groupby("matrix")["config"].nunique().unique().tolist() == [points]
    with pytest.raises(ValueError, match=r"no samples of spmm on cpu_kernels with 64 columns: .* width of 32, 128"):
        _ = EvaluationData(CpuKernels(2, 64), SpMM(), samples, "test").labels


def test_missing_prerequisites_are_made_for_the_same_width(build, tmp_path):
    task = build("finetune_cpu_kernels", folder=tmp_path)
    assert task.checkpoints.overrides(task.target, task.op, "target") == ("op=spmm", "target.width=128")
    assert task.checkpoints.overrides(task.source, task.op, "source") == ("op=spmm", "platform@source=cpu")
    made = build("autoencode_cpu_kernels", *task.checkpoints.overrides(task.target, task.op, "target"),
                 folder=tmp_path)
    assert made.platform.space(made.op).digest() == task.target.space(task.op).digest()
