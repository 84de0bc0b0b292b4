"""Outcomes of jobs that ended, failed or were stopped, and of broken launchers."""

import json

import pytest
from hydra.core.utils import JobReturn, JobStatus

from hydra_plugins.sparloom_sweeps._jobs import Job
from sparloom.cli import Reported, UsageError
from sparloom.files import write_sums
from sparloom.log import STOPPED


class Trial:
    """Trial with the methods that a job calls."""

    def __init__(self, **noted):
        self.user_attrs = noted

    def set_user_attr(self, key, value):
        self.user_attrs[key] = value


@pytest.fixture
def job(tmp_path):
    return Job(Trial(), overrides=[], folder=tmp_path, objective="loss")


def returned(value):
    failed = isinstance(value, Exception)
    return JobReturn(status=JobStatus.FAILED if failed else JobStatus.COMPLETED, _return_value=value)


def metrics(folder, **values):
    (folder / "metrics.json").write_text(json.dumps(values))


@pytest.mark.parametrize(("value", "outcome"), [
    (1, 1.0), (0.5, 0.5),
    (float("nan"), "loss is nan, not a finite number"), (None, "loss is None, not a finite number"),
    (ValueError("two\nlines"), "ValueError: two lines"), (Reported("told already"), "told already"),
    (KeyError("a"), "KeyError: 'a'"),
])
def test_outcome_is_a_value_or_a_reason(job, value, outcome):
    assert job.outcome(returned(value)) == outcome


def test_a_job_that_stopped_on_request_is_pruned_with_any_result(job):
    (job.folder / STOPPED).touch()
    assert job.outcome(returned(1.0)) == "pruned"
    assert job.outcome(returned(ValueError())) == "pruned"


def test_missing_metric_names_the_nearest(job):
    metrics(job.folder, los=1.0)
    with pytest.raises(UsageError, match=r"the task returns no metric 'loss': set objective; did you mean los\?"):
        job.outcome(returned(None))


def test_jobs_that_ended_before_the_launcher_broke_keep_their_results(job):
    assert job.outcome(RuntimeError("a worker died")) == "RuntimeError: a worker died"
    metrics(job.folder, loss=2.0)
    assert job.outcome(RuntimeError("a worker died")) == 2.0


def test_only_a_noted_folder_is_believed(job):
    metrics(job.folder, loss=2.0)
    assert job.stored_outcome() is None
    job.trial.set_user_attr("folder", str(job.folder))
    assert job.stored_outcome() == 2.0
    (job.folder / STOPPED).touch()
    assert job.stored_outcome() == "pruned"


def test_clearing_forgets_another_sweep(job):
    metrics(job.folder, loss=2.0)
    (job.folder / STOPPED).touch()
    job.clear()
    assert list(job.folder.iterdir()) == []
    assert job.stored_outcome() is None


def test_clearing_keeps_recent_files_of_a_surviving_worker(job):
    job.clear()
    metrics(job.folder, loss=2.0)
    (job.folder / STOPPED).touch()
    job.clear()
    assert [path.name for path in job.folder.iterdir()] == ["metrics.json"]


@pytest.mark.parametrize("content", ['{"loss": 2.0', '{"loss": 3.0}'])
def test_damaged_metrics_are_those_of_a_run_that_has_not_ended(job, content):
    metrics(job.folder, loss=2.0)
    write_sums(job.folder, {})
    assert job.value() == 2.0
    (job.folder / "metrics.json").write_text(content)
    assert job.value() is None
