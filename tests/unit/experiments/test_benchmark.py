"""Cases of a benchmark: stored one by one, resumed, in steps of processes of their own; what a finished run leaves."""

import json
from dataclasses import dataclass, replace

import pandas as pd
import pytest

from sparloom import log
from sparloom.experiments.harness import CaseSteps, finish, run_folder, timed_cases
from sparloom.ragged import LengthCorpus
from sparloom.sparse import SyntheticCorpus


def square(case: int) -> list[dict[str, int]]:
    return [{"case": case, "square": case**2}]


def test_a_killed_run_continues_with_the_next_case(tmp_path):
    done = []

    def killed(case: int) -> list[dict[str, int]]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case)
        return [{"case": case, "square": -1}]

    cases = {str(number): number for number in range(4)}
    costs = dict.fromkeys(cases, 1.0)
    with pytest.raises(KeyboardInterrupt):
        timed_cases(killed, cases, tmp_path, costs=costs, threads=None)
    frame = timed_cases(square, cases, tmp_path, costs=costs, threads=1)
    assert frame["square"].tolist() == [-1, -1, 4, 9]
    fewer = timed_cases(None, {"3": 3, "0": 0}, tmp_path, costs=costs, threads=None)
    assert fewer["case"].tolist() == [3, 0]


def load(case: tuple[str, int]) -> str:
    if case[0] == "lost":
        raise OSError("no file")
    return case[0]


def measure(step: str, case: tuple[str, int], matrix: str) -> list[dict[str, object]]:
    return [{"step": step, "matrix": matrix, "size": case[1]}]


@pytest.mark.slow
def test_steps_run_in_processes_and_leave_unreadable_matrices_out(tmp_path, caplog):
    jobs = {name: {f"{name} {size}": (name, size) for size in (1, 2)} for name in ("a", "lost")}
    steps = CaseSteps(tmp_path, {"decide": jobs, "score": {"a": jobs["a"]}}, load, measure, dict.fromkeys(jobs, 1.0))
    assert steps.do("decide", "lost") == "no file"
    steps.run()
    assert [(case, row["step"]) for step in ("decide", "score") for case, row in steps.rows(step)] == [
        (("a", size), step) for step in ("decide", "score") for size in (1, 2)]
    assert steps.done("decide")["lost 1"] == []
    before = (tmp_path / "score.jsonl").read_bytes()
    steps.run()
    assert (tmp_path / "score.jsonl").read_bytes() == before


@dataclass(frozen=True)
class Settings:
    corpus: SyntheticCorpus
    widths: tuple[int, ...]
    journals: str
    gpu: object = None
    lengths: LengthCorpus | None = None


def test_a_run_is_named_by_all_of_its_settings(tmp_path):
    def name(settings: Settings, *conditions: object) -> str:
        return run_folder(settings, *conditions, corpora=[settings.corpus], without=("gpu",)).name

    corpus = SyntheticCorpus(rows=[40], variants=1, seed=0, families=["uniform"])
    first = Settings(corpus, (8,), str(tmp_path))
    assert name(replace(first, gpu=object(), journals="elsewhere")) == name(first)
    assert len({name(first), name(replace(first, widths=(9,))), name(first, "more"),
                name(replace(first, corpus=replace(corpus, seed=1))),
                name(replace(first, lengths=LengthCorpus("", ["cola"], 0)))}) == 5


def test_a_finished_run_writes_prints_draws_and_forgets(tmp_path):
    folder, drawn = tmp_path / "unfinished", []
    folder.mkdir()
    metrics = {"speedup": 2.0, "speedup_low": 1.5, "speedup_high": 2.5, "cases": 3}
    with log.console.capture() as printed:
        found = finish(tmp_path, folder, metrics, drawn.append, facts={"peers": {"torch": "2"}},
                       per_case=pd.DataFrame({"a": [1]}))
    assert found == metrics
    assert drawn == [tmp_path]
    assert not folder.exists()
    assert pd.read_parquet(tmp_path / "per_case.parquet")["a"].tolist() == [1]
    assert json.loads((tmp_path / "peers.json").read_text()) == {"torch": "2"}
    assert [word for word in ("2.000", "1.500", "2.500", "cases") if word not in printed.get()] == []
