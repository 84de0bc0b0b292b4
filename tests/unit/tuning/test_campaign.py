"""Campaigns: what is asked and told lies in a folder, and few trials find nearly the best configurations."""

import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

import sparloom
from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.models import MatrixFeatures
from sparloom.space import read_description
from sparloom.sparse import Pattern
from sparloom.tuning import Campaign, Proposal
from sparloom.tuning.campaign import TOLD
from sparloom.tuning.engine import MAX_FAILURES, MIN_LABELS_TO_END

CHIP = """
name: chip
operations: [spmm]
parameters:
  block_rows: {kind: integer, values: [8, 64, 512], default: 64, tiles: i}
  block_cols: {kind: integer, values: [256, all], default: all, tiles: j}
  prefetch: {kind: integer, values: [0, 2, 4], default: 0, own: true}
  codec: {kind: categorical, values: [none, delta, bitmap], default: none, own: true}
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "chip.yaml"
    path.write_text(CHIP)
    return read_description(path).space("spmm")


@pytest.fixture(scope="module")
def matrices() -> dict[str, MatrixFeatures]:
    rng = np.random.default_rng(0)
    found = {}
    for number in range(5):
        shape = tuple(int(size) for size in rng.integers(300, 2000, 2))
        matrix = scipy.sparse.random_array(shape, density=10 ** rng.uniform(-3, -2), format="csr", rng=rng)
        found[f"m{number}"] = MatrixFeatures.from_pattern(Pattern(shape, matrix.indptr, matrix.indices))
    return found


def seconds(view: MatrixFeatures, config) -> float:
    panels = 1 if config["block_cols"] == "all" else -(-view.shape[1] // config["block_cols"])
    blocks = -(-view.shape[0] // config["block_rows"]) * panels
    unpack = {"none": 1.0, "delta": 0.8, "bitmap": 3e3 / view.nnz}[config["codec"]]
    return 1e-4 * view.nnz * unpack + 0.01 * (1 - 0.2 * config["prefetch"]) * blocks + 0.05 * config["prefetch"]


def regret(campaign: Campaign, space) -> float:
    """Geometric mean of the time of the best known configuration over that of the best."""
    labels = campaign.labels().groupby("problem")["seconds"].min()
    best = {name: min(seconds(view, config) for config in space) for name, view in campaign.problems.items()}
    return math.exp(np.mean([math.log(labels[name] / best[name]) for name in best]))


def run(campaign: Campaign, batches: int, count: int) -> Campaign:
    for _ in range(batches):
        for trial in campaign.ask(count):
            campaign.tell(trial.problem, trial.config, seconds=seconds(campaign.problems[trial.problem], trial.config))
    return campaign


def test_few_trials_find_nearly_the_best(space, matrices, tmp_path) -> None:
    campaigns = [run(sparloom.Campaign(tmp_path / f"chosen{seed}", space, matrices, seed=seed), 8, 5)
                 for seed in range(4)]
    assert all(len(each.labels()) == 40 for each in campaigns)
    rng = np.random.default_rng(0)
    drawn = []
    for number in range(10):
        other = Campaign(tmp_path / f"drawn{number}", space, matrices)
        for name in matrices:
            for config in space.sample(8, rng):
                other.tell(name, config, seconds=seconds(matrices[name], config))
        drawn.append(regret(other, space))
    reached = np.mean([regret(each, space) for each in campaigns])
    assert reached < 1.1
    assert reached - 1 < (np.mean(drawn) - 1) / 2


def test_a_space_that_is_too_large_to_list_is_searched(matrices, tmp_path) -> None:
    (tmp_path / "large.yaml").write_text(CHIP + "".join(
        f"  own{number}: {{kind: integer, low: 1, high: 16, default: 1, own: true}}\n" for number in range(3)))
    campaign = Campaign(tmp_path / "state", read_description(tmp_path / "large.yaml").search_space(), matrices)
    for _ in range(3):
        for trial in campaign.ask(5):
            campaign.tell(trial.problem, trial.config, seconds=seconds(matrices[trial.problem], trial.config))
    assert set(campaign.labels()["problem"]) == set(matrices)


def test_every_matrix_runs_first_and_no_program_twice(space, matrices, tmp_path) -> None:
    campaign = Campaign(tmp_path, space, matrices)
    first = campaign.ask(5)
    assert {trial.problem for trial in first} == set(matrices)
    asked = [*first, *campaign.ask(200), *campaign.ask(1000)]
    assert len(set(asked)) == len(asked) == sum(len({space.bind(view.shape).canonical(config) for config in space})
                                                     for view in matrices.values())
    assert campaign.ask(3) == []


def test_the_estimate_comes_first(space, matrices, tmp_path) -> None:
    def estimate(view, configs):
        return np.array([seconds(view, config) for config in configs])

    campaign = Campaign(tmp_path, space, matrices, estimator=estimate)
    for trial in campaign.ask(5):
        view = matrices[trial.problem]
        assert seconds(view, trial.config) == min(seconds(view, config) for config in space)
        campaign.tell(trial.problem, trial.config, seconds=seconds(view, trial.config))
    assert all(each.regret < 0.25 for each in campaign.summary())


def test_a_campaign_goes_on_where_it_was(space, matrices, tmp_path) -> None:
    campaign = Campaign(tmp_path, space, matrices)
    running = campaign.ask(4)
    again = Campaign(tmp_path, space, matrices)
    assert again.pending() == running
    again.tell(running[0].problem, running[0].config, failure="out of memory")
    again.forget(running[1])
    assert campaign.pending() == running[2:]
    assert campaign.labels().empty
    assert not {trial for trial in campaign.ask(1000)} & {running[0], *running[2:]}
    assert running[1] in campaign.pending()


def test_what_was_told_survives_a_kill(space, matrices, tmp_path) -> None:
    script = """if True:
        import sys, itertools
        from sparloom.files import append_lines
        from pathlib import Path
        import json
        for number in itertools.count():
            append_lines(Path(sys.argv[1]) / "told.jsonl", [json.dumps({"problem": "m0", "config": sys.argv[2],
                         "seconds": 1.0 + number, "failure": None})])
            print(number, flush=True)
    """
    campaign = Campaign(tmp_path, space, matrices)
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), space.default().key],
                               stdout=subprocess.PIPE, text=True)
    while int(process.stdout.readline()) < 50:
        pass
    process.send_signal(signal.SIGKILL)
    printed = [50, *map(int, process.communicate()[0].split())]
    assert len(campaign._told()) >= printed[-1]
    with (tmp_path / TOLD).open("ab") as file:
        file.write(b'{"problem": "m0", "conf')  # as a crash leaves it
    campaign.tell("m1", space.default(), seconds=2.0)
    assert set(campaign.labels()["problem"]) == {"m0", "m1"}


def test_askers_at_once_get_different_trials(space, matrices, tmp_path) -> None:
    askers = [Campaign(tmp_path, space, matrices) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = [trial for part in pool.map(lambda asker: asker.ask(9), askers) for trial in part]
    assert len(set(found)) == 36


def test_expected_gain_and_regret_shrink(space, matrices, tmp_path) -> None:
    campaign = run(Campaign(tmp_path, space, matrices), 2, 5)
    before = campaign.summary()
    after = run(campaign, 6, 5).summary()
    assert np.mean([each.regret for each in after]) < np.mean([each.regret for each in before])
    assert np.mean([each.gain for each in after]) < 0.05
    for each in after:
        assert each.seconds == seconds(matrices[each.problem], each.config)
    assert sum(each.trials for each in after) == 40


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("count", [1, 2])
def test_one_matrix_is_enough_in_any_unit(space, matrices, tmp_path, count, scale) -> None:
    campaign = Campaign(tmp_path, space, dict(list(matrices.items())[:count]))
    for told in range(30):
        trials = campaign.ask(1, tolerance=0.002)
        if told < MIN_LABELS_TO_END:
            assert [each.gain for each in campaign.summary()] == [math.inf] * count
        if not trials:
            break
        view = matrices[trials[0].problem]
        campaign.tell(trials[0].problem, trials[0].config, seconds=scale * seconds(view, trials[0].config))
    assert MIN_LABELS_TO_END <= campaign.count() < 30
    best = {name: min(seconds(view, config) for config in space) for name, view in campaign.problems.items()}
    for each in campaign.summary():
        assert each.seconds < 1.03 * scale * best[each.problem]
        assert each.regret < 0.03


def test_a_campaign_ends_once_little_is_to_be_gained(space, matrices, tmp_path) -> None:
    campaign = run(Campaign(tmp_path, space, matrices), 12, 5)
    before = (tmp_path / "asked.jsonl").read_bytes()
    assert campaign.ask(5, tolerance=0.5) == []
    assert (tmp_path / "asked.jsonl").read_bytes() == before
    assert campaign.ask(5)


def test_a_matrix_that_always_fails_is_given_up(space, matrices, tmp_path) -> None:
    campaign = Campaign(tmp_path, space, matrices)
    while campaign.count() < 200 and (trials := campaign.ask(1, tolerance=0.002)):
        name, config = trials[0].problem, trials[0].config
        campaign.tell(name, config, seconds=None if name == "m0" else seconds(matrices[name], config),
                      failure="empty" if name == "m0" else None)
    found = {each.problem: each for each in campaign.summary()}
    assert campaign.count() < 100
    assert found["m0"].config is None
    assert found["m0"].gain == 0
    assert found["m0"].trials <= MAX_FAILURES
    assert regret_of(found, matrices, space) < 1.02


def regret_of(found, matrices, space) -> float:
    return math.exp(np.mean([math.log(each.seconds / min(seconds(matrices[name], config) for config in space))
                             for name, each in found.items() if each.seconds is not None]))


def test_no_result_is_lost_while_failures_are_dropped(space, matrices, tmp_path) -> None:
    configs = [config for name in matrices for config in list(space)]
    campaign = Campaign(tmp_path, space, matrices)

    def tell(number: int) -> None:
        config = configs[number]
        Campaign(tmp_path, space, matrices).tell("m0", config, seconds=1.0 + number)

    with ThreadPoolExecutor(3) as pool:
        told = [pool.submit(tell, number) for number in range(40)]
        while not all(each.done() for each in told):
            campaign.tell("m1", configs[0], failure="timeout")
            campaign.forget_failures()
        for each in told:
            each.result()
    assert sorted(row["seconds"] for row in campaign._told()) == [1.0 + number for number in range(40)]


def test_conditions_are_part_of_a_campaign(space, matrices, tmp_path) -> None:
    campaign = Campaign(tmp_path, space, matrices, conditions={"command": "./simulat", "levels": (1, 2)})
    Campaign(tmp_path, space, matrices, conditions={"command": "./simulate", "levels": (1, 2)})  # nothing is told
    campaign.tell("m0", space.default(), seconds=1.0)
    Campaign(tmp_path, space, matrices, conditions={"command": "./simulate", "levels": (1, 2), "unit": "cycles"})
    for given, name in (({"command": "./other"}, "command"), ({"unit": "seconds"}, "unit")):
        with pytest.raises(SchemaError, match=f"under other conditions, {name}"):
            Campaign(tmp_path, space, matrices, conditions=given)
    right = json.loads((tmp_path / "campaign.json").read_text())
    for wrong in ("{", "{}", "[]", *(json.dumps({**right, name: None}) for name in right)):
        (tmp_path / "campaign.json").write_text(wrong)
        with pytest.raises(SchemaError, match=r"campaign\.json is damaged"):
            Campaign(tmp_path, space, matrices)


def other_patterns(view: Pattern) -> dict[str, Pattern]:
    """Patterns of the same size: rows in another order, one nonzero moved, columns reversed."""
    matrix = scipy.sparse.csr_array((np.ones(view.nnz), view.indices, view.indptr), view.shape)
    rows, moved = matrix[::-1].tocsr(), matrix.tolil()
    row, col = int(view.row_ids()[0]), int(view.indices[0])
    moved[row, col], moved[row, next(each for each in range(view.cols) if matrix[row, each] == 0)] = 0, 1
    columns = matrix[:, ::-1].tocsr()
    return {name: Pattern.from_coo(*scipy.sparse.coo_array(each).coords, view.shape)
            for name, each in (("rows", rows), ("one nonzero", moved), ("columns", columns))}


BAND = Pattern.from_coo(np.repeat(np.arange(40), 2), (np.repeat(np.arange(40), 2) + np.tile([0, 1], 40)) % 40, (40, 40))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("change", ["rows", "one nonzero", "columns"])
def test_other_matrices_of_the_same_size_are_refused(space, tmp_path, change, stored) -> None:
    def features(pattern: Pattern) -> MatrixFeatures:
        live = MatrixFeatures.from_pattern(pattern)
        return MatrixFeatures.from_stored(live.input, live.statistics, lambda: live.walks) if stored else live

    other = other_patterns(BAND)[change]
    assert (other.shape, other.nnz) == (BAND.shape, BAND.nnz)
    views = {"a": features(BAND), "b": features(other)}
    Campaign(tmp_path, space, views)
    Campaign(tmp_path, space, {"b": features(other), "a": features(Pattern(BAND.shape, BAND.indptr, BAND.indices))})
    for wrong in ({"a": views["b"], "b": views["b"]}, {"a": views["b"], "b": views["a"]}):
        with pytest.raises(SchemaError, match="other problems, such as 'a': choose an empty folder"):
            Campaign(tmp_path, space, wrong)


@pytest.mark.parametrize("given", [
    {"block_rows": 8, "block_cols": "all", "prefetch": 2, "codec": "delta"},
    {"codec": "delta", "prefetch": np.int32(2), "block_cols": np.str_("all"), "block_rows": np.int64(8)},
    {"block_rows": "8", "block_cols": "all", "prefetch": 2.0, "codec": "delta"},
    "block_rows=8,block_cols=all,prefetch=2,codec=delta",
])
def test_configurations_are_told_as_dicts_and_keys(space, matrices, tmp_path, given) -> None:
    campaign = Campaign(tmp_path, space, matrices)
    campaign.tell("m0", given, seconds=np.float32(0.5))
    config = space.parse("block_rows=8,block_cols=all,prefetch=2,codec=delta")
    assert campaign.program("m0", given) == campaign.program("m0", config)
    assert campaign.labels().to_dict("records") == [
        {"problem": "m0", "config": campaign.program("m0", config).key, "seconds": 0.5}]


RIGHT = {"block_rows": 8, "block_cols": "all", "prefetch": 2, "codec": "delta"}


@pytest.mark.parametrize(("given", "error", "message"), [
    ({**RIGHT, "blok": 1}, ValueError, "'blok' is no parameter: give block_rows, block_cols, prefetch, codec"),
    (dict(list(RIGHT.items())[:3]), ValueError, "'codec' is missing: give block_rows, block_cols, prefetch, codec"),
    ({}, ValueError, "'block_rows' is missing"),
    ({**RIGHT, "block_rows": 9}, ValueError, "block_rows=9 is not in the space: its values are 8, 64, 512"),
    ({**RIGHT, "prefetch": math.nan}, ValueError, "prefetch=nan is not in the space"),
    ({**RIGHT, "codec": ["delta"]}, ValueError, r"codec=\['delta'\] is not in the space: its values are none, delta"),
    ((8, "all", 2, "delta"), TypeError, "config is of type tuple: give a Config, its key such as 'block_rows=64,"),
    (None, TypeError, "config is of type NoneType: give a Config, its key .* or a dict of all parameters"),
    (Proposal("m0", sparloom.space.Config("chip", ())), TypeError, "config is of type Proposal: give a Config"),
    (sparloom.space.Config("other", tuple(RIGHT.items())), IllegalSchedule, "belongs to space other, not to chip"),
    ("block_rows", ValueError, "is not of the form name=value"),
])
def test_other_configurations_are_refused(space, matrices, tmp_path, given, error, message) -> None:
    with pytest.raises(error, match=message):
        Campaign(tmp_path, space, matrices).tell("m0", given, seconds=1.0)
    assert not (tmp_path / TOLD).exists()


def test_many_results_are_told_at_once_or_not_at_all(space, matrices, tmp_path, monkeypatch) -> None:
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(file), real(file))[1])
    campaign = Campaign(tmp_path, space, matrices)
    campaign.tell("m1", RIGHT, failure="no memory")
    before = (tmp_path / TOLD).read_bytes()
    results = [{"problem": "m0", "config": config, "seconds": 1.0 + number}
               for number, config in enumerate([*space, *space])]
    with pytest.raises(ValueError, match=r"m0, .*: seconds=-1\.0: give a positive number"):
        campaign.tell_all([*results, {"problem": "m0", "config": RIGHT, "seconds": -1.0}])
    for wrong in ({"problem": "m0", "config": RIGHT, "second": 1.0}, {"problem": "m0", "seconds": 1.0}, "m0"):
        with pytest.raises(TypeError, match=f"result {len(results) + 1} is .*: give a dict with problem, config"):
            campaign.tell_all([*results, wrong])
    assert (tmp_path / TOLD).read_bytes() == before
    flushed.clear()
    campaign.tell_all(results)
    assert len(flushed) <= 3
    assert campaign.count() == 1 + len(results)
    assert campaign.history()["seconds"].tolist()[1:] == [1.0 + number for number in range(len(results))]


FULL = """
import json, resource, sys
from pathlib import Path
from sparloom import Campaign
from sparloom.models import MatrixFeatures
from sparloom.space import read_description
from sparloom.sparse import Pattern
import numpy as np
folder, limit, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
space = read_description(folder / "chip.yaml").space("spmm")
matrix = MatrixFeatures.from_pattern(Pattern((4, 4), np.arange(5), np.arange(4, dtype=np.int32)))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
campaign = Campaign(folder / "state", space, {"m": matrix})
results = [{"problem": "m", "config": config, "seconds": 2.0} for config in space]
try:
    {"ask": lambda: campaign.ask(20), "tell_all": lambda: campaign.tell_all(results),
     "tell": lambda: [campaign.tell(**result) for result in results]}[what]()
except OSError as error:
    print(json.dumps([error.filename, campaign.count(), len(campaign.pending()), len(campaign.summary())]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "name"), [("ask", "asked.jsonl"), ("tell", "told.jsonl"), ("tell_all", "told.jsonl")])
def test_a_full_disk_costs_no_result(space, tmp_path, what, name) -> None:
    """A limit of the size of files stands for the full disk: writes end in the middle of a line."""
    (tmp_path / "chip.yaml").write_text(CHIP)
    matrix = MatrixFeatures.from_pattern(Pattern((4, 4), np.arange(5), np.arange(4, dtype=np.int32)))
    campaign = Campaign(tmp_path / "state", space, {"m": matrix})
    asked = campaign.ask(2)
    campaign.tell("m", asked[0].config, seconds=1.0)
    before = {path: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), "600", what], capture_output=True, text=True,
                          timeout=120, check=True)
    filename, count, pending, matrices = json.loads(done.stdout)
    assert filename == str(tmp_path / "state" / name)
    journal = (tmp_path / "state" / name).read_bytes()
    assert journal.startswith(before.pop(tmp_path / "state" / name))
    assert journal.endswith(b"\n")
    assert all(path.read_bytes() == content for path, content in before.items())
    if what != "tell":
        assert (count, pending) == (1, 1)
    assert matrices == 1
    assert campaign.ask(3)


def test_bad_arguments_are_refused(space, matrices, tmp_path) -> None:
    campaign = Campaign(tmp_path, space, matrices)
    key = space.default().key
    for error, message, call in (
            (ValueError, "problem 'x' is not in this campaign", lambda: campaign.tell("x", key, seconds=1.0)),
            (ValueError, "seconds=0: give a positive number", lambda: campaign.tell("m0", key, seconds=0)),
            (ValueError, "seconds=nan", lambda: campaign.tell("m0", key, seconds=math.nan)),
            (ValueError, "seconds='1': give a positive number", lambda: campaign.tell("m0", key, seconds="1")),
            (ValueError, "seconds=True", lambda: campaign.tell("m0", key, seconds=True)),
            (ValueError, "give either seconds or failure", lambda: campaign.tell("m0", key)),
            (ValueError, "give either seconds or failure", lambda: campaign.tell("m0", key, seconds=1.0, failure="x")),
            (IllegalSchedule, "block_rows", lambda: campaign.tell("m0", key.replace("block_rows=64", "block_rows=5"),
                                                                  seconds=1.0)),
            (ValueError, r"ask\(0\): ask for at least one", lambda: campaign.ask(0)),
            (ValueError, "there is no problem", lambda: Campaign(tmp_path, space, {})),
            (SchemaError, "holds a campaign with other problems",
             lambda: Campaign(tmp_path, space, {"m0": matrices["m0"]})),
            (SchemaError, "holds a campaign with other problems",
             lambda: Campaign(tmp_path, space, {**matrices, "m0": matrices["m1"]}))):
        with pytest.raises(error, match=message):
            call()
    assert not (tmp_path / TOLD).exists()
    (tmp_path / TOLD).write_text("nonsense\n")
    with pytest.raises(SchemaError, match=r"told\.jsonl, line 1 is damaged"):
        campaign.labels()
