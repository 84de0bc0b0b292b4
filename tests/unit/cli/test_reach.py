"""Options that the task of a run does not read are refused or listed."""

import pytest

from sparloom import cli

TREE = {
    "width": 256, "seed": 0,
    "op": {"_target_": "SpMM"}, "timing": {"rounds": 1}, "corpus": {"names": ["a"]},
    "target": {"_target_": "Spade", "preset": "cognate32", "width": "${width}", "level": "t1",
               "dram_gb_per_s": 58.6},
    "source": {"_target_": "CpuKernels", "width": "${width}", "threads": 2},
    "recommender": {"samples": {"data": "${paths.data}"}, "platform": "${target}"},
    "task": {"op": "${op}", "platforms": ["${source}"], "recommender": "${recommender}", "steps": 3},
}


def resolved(**widths):
    return TREE | {name: TREE[name] | {"width": widths.get(name, 64)} for name in ("source", "target")} | {"width": 64}


def test_unused_overrides_are_listed():
    overrides = ["experiment=x", "op=sddmm", "timing=quick", "corpus.names=[b]", "width=64", "target.width=64",
                 "platform@target=spade", "+recommender.votes=3", "task.steps=4", "paths.outputs=/o",
                 "hydra/launcher=local", "seed=1", "~timing.rounds"]
    assert cli.unused_overrides(TREE, overrides) == ["timing=quick", "corpus.names=[b]", "~timing.rounds"]


@pytest.mark.parametrize("given", ["width=64", "+width=64", "++width=64"])
def test_a_width_that_a_platform_ignores_is_refused(given):
    with pytest.raises(cli.UsageError, match="width=64 does not reach the target platform, which has a width of its "
                                             r"own, 128: give target.width=64"):
        cli.refuse_unseen_width(TREE, resolved(target=128), [given])


def test_changed_settings_of_a_machine_need_another_preset():
    with pytest.raises(cli.UsageError, match="dram_gb_per_s=5 changes the machine, but the samples of preset"):
        cli.refuse_other_machines(TREE, ["target.dram_gb_per_s=5"])
    with pytest.raises(cli.UsageError, match="level=t0 changes the machine"):  # another simulator
        cli.refuse_other_machines(TREE, ["target.level=t0"])
    for allowed in (["target.dram_gb_per_s=5", "target.preset=slow"], ["target.width=64"], ["target.orders=waco"],
                    ["source.threads=1"]):
        cli.refuse_other_machines(TREE, allowed)
    collecting = TREE | {"task": {"platforms": ["${target}"]}}
    cli.refuse_other_machines(collecting, ["target.dram_gb_per_s=5"])
