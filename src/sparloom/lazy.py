"""Lazy imports: packages that import their names on first use, and old public names that still resolve.

All packages and names that were moved or renamed are listed here.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = [
    "PACKAGES", "RENAMED", "attach", "first_name", "import_with_hint", "old_package", "on_demand", "resolve",
    "stored_class_name",
]

PACKAGES = {
    "sparloom.dispatch": "sparloom.tuning",
    "sparloom.dispatch.csr": "sparloom.tuning.sparse",
    "sparloom.search": "sparloom.tuning",
    "sparloom.tasks": "sparloom.experiments",
}
"""Old package -> package that has its names."""
RENAMED: dict[str, str] = {
    "sparloom.cli.Given": "sparloom.cli.RunOptions",
    "sparloom.cli.check_places": "sparloom.cli.check_paths",
    "sparloom.cli.choices": "sparloom.cli.group_choices",
    "sparloom.cli.flat": "sparloom.cli.dotted_keys",
    "sparloom.cli.folders": "sparloom.cli.config_folders",
    "sparloom.cli.idle": "sparloom.cli.unused_overrides",
    "sparloom.cli.merged": "sparloom.cli.merge_overrides",
    "sparloom.cli.nearest": "sparloom.cli.close_names",
    "sparloom.cli.reason": "sparloom.cli.failure_reason",
    "sparloom.cli.show": "sparloom.cli.print_experiments",
    "sparloom.data.Facts": "sparloom.data.ManifestEntry",
    "sparloom.data.cap": "sparloom.data.coarsen",
    "sparloom.data.check_stored": "sparloom.data.verify_stored",
    "sparloom.data.draw_more": "sparloom.data.select_labels",
    "sparloom.data.plain": "sparloom.data.to_json_values",
    "sparloom.experiments.DecisionWay": "sparloom.experiments.PolicyVariant",
    "sparloom.experiments.FineTuned": "sparloom.experiments.FineTunedRecommender",
    "sparloom.experiments.Fitted": "sparloom.experiments.FittedRecommender",
    "sparloom.experiments.Learning": "sparloom.experiments.LearnerConfig",
    "sparloom.files.remove_leavings": "sparloom.files.remove_leftovers",
    "sparloom.files.settle": "sparloom.files.restore_folder",
    "sparloom.fusion.LEAST_FUSED_RATIO": "sparloom.fusion.MIN_FUSED_RATIO",
    "sparloom.jit.RESULTS": "sparloom.jit.RESULT_POOL",
    "sparloom.jit.Watch": "sparloom.jit.ChangeDetector",
    "sparloom.models.MatrixView": "sparloom.models.MatrixFeatures",
    "sparloom.models.fill": "sparloom.models.load_weights",
    "sparloom.models.norm_of": "sparloom.models.make_norm",
    "sparloom.models.open_networks": "sparloom.models.load_networks",
    "sparloom.models.open_trees": "sparloom.models.load_trees",
    "sparloom.models.performance.Candidates": "sparloom.models.performance.CandidateScorer",
    "sparloom.models.performance.Growth": "sparloom.models.performance.BoostingConfig",
    "sparloom.models.performance.fold_of": "sparloom.models.performance.problem_folds",
    "sparloom.models.performance.grow_each": "sparloom.models.performance.train_per_fold",
    "sparloom.models.performance.grow_further": "sparloom.models.performance.continue_training",
    "sparloom.platforms.Rival": "sparloom.platforms.BaselineBinder",
    "sparloom.platforms.cublas_strmm": "sparloom.baselines.cublas_strmm",
    "sparloom.platforms.cusparse_spmm": "sparloom.baselines.cusparse_spmm",
    "sparloom.platforms.spade.Sign": "sparloom.platforms.spade.PublishedEffect",
    "sparloom.platforms.spade.sign_records": "sparloom.platforms.spade.effect_records",
    "sparloom.ragged.arranged": "sparloom.ragged.pack_values",
    "sparloom.report.Learning": "sparloom.report.PaperClaim",
    "sparloom.report.Scene": "sparloom.report.JudgedProblems",
    "sparloom.report.Truth": "sparloom.report.RuntimeTable",
    "sparloom.report.rival_choice": "sparloom.report.baseline_choice",
    "sparloom.space.TileFusionSpace": "sparloom.fusion.TileFusionSpace",
    "sparloom.sparse.Patience": "sparloom.sparse.RetryPolicy",
    "sparloom.tuning.Effort": "sparloom.tuning.MeasurementBudget",
    "sparloom.tuning.KeptPlan": "sparloom.tuning.CacheEntry",
    "sparloom.tuning.Load": "sparloom.tuning.SystemLoad",
    "sparloom.tuning.PairChoice": "sparloom.tuning.FusionConfig",
    "sparloom.tuning.RaggedEffort": "sparloom.tuning.RaggedBudget",
    "sparloom.tuning.Workshop": "sparloom.tuning.ExecutorFactory",
    "sparloom.tuning.sparse.Contest": "sparloom.tuning.sparse.CandidateSet",
    "sparloom.tuning.sparse.CpuPlace": "sparloom.tuning.sparse.CpuBackend",
    "sparloom.tuning.sparse.CudaPlace": "sparloom.tuning.sparse.CudaBackend",
    "sparloom.tuning.sparse.CudaSwitches": "sparloom.tuning.sparse.CudaSettings",
    "sparloom.tuning.sparse.Place": "sparloom.tuning.sparse.Backend",
    "sparloom.tuning.sparse.Proposals": "sparloom.tuning.sparse.CandidateSource",
    "sparloom.tuning.sparse.Switches": "sparloom.tuning.sparse.Settings",
}
"""Old name in the package that has it now -> new full name."""
EXTRAS = {
    "cupy": "gpu", "dvc": "data", "fbgemm_gpu": "peers", "mkl": "peers", "numba": "fusion", "optuna": "scale",
    "pymetis": "peers", "ray": "scale", "smac": "tuners", "submitit": "scale", "sympy": "fusion",
    "tensorboard": "track", "torch": "torch", "torch_geometric": "peers", "triton": "gpu", "wandb": "track",
    **dict.fromkeys((
        "joblib", "lightgbm", "lightning", "matplotlib", "pandas", "pyarrow", "rich", "sklearn"), "experiments"),
}
"""Extras that install a library."""
SEARCH = ("Evolution", "Ranked", "best", "portfolio", "top_k")
"""Names of sparloom.tuning that came from sparloom.search; all others came from sparloom.dispatch."""


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the functions __getattr__ and __dir__ of a package that imports its names on first use.

    Args:
        package: full name.
        homes: public name -> full name of its module.

    Raises:
        ValueError: a public name is also the name of a module of the package, which would replace it when imported.
    """
    hidden = sorted(name for name in homes if f"{package}.{name}" in homes.values())
    if hidden:
        raise ValueError(f"{', '.join(hidden)} of {package} would be hidden by modules of the same name: rename one")

    def find(name: str) -> Any:
        if name not in homes:
            if f"{package}.{name}" in RENAMED:
                return resolve(package, name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(homes))}")
        return getattr(import_with_hint(homes[name], f"{package}.{name}"), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    names.homes = homes  # for the reference pages of the documentation
    return find, names


def attach(
    package: str, modules: Mapping[str, Iterable[str]],
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make __all__, __getattr__ and __dir__ of a package, as `on_demand`.

    Args:
        modules: module of the package -> its public names.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}
    return sorted(homes), *on_demand(package, homes)


def install_command(extra: str) -> str:
    """Return what to type to install an extra, for messages: from a wheel, and in a checkout."""
    return f"pip install 'sparloom[{extra}]' (in a checkout: pip install -e \".[{extra}]\")"


def import_with_hint(module: str, wanted: str) -> ModuleType:
    """Import a module of the package.

    Args:
        wanted: what the caller asked for, for the message.

    Raises:
        ImportError: a library that it needs is not installed; the message names the extra that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library in ("", "sparloom"):
            raise
        raise ImportError(f"{wanted} needs {library}, which is not installed: "
                          f"{install_command(EXTRAS.get(library, 'experiments'))}", name=missing.name) from missing


def first_name(target: str) -> str:
    """Return the original full name of the target of a configuration.

    Digests of configurations hash this name, so that renaming a class does not hide what is stored under a digest.
    """
    before = {new: old for old, new in reversed(RENAMED.items())}
    parts = target.split(".")
    for count in range(len(parts), 0, -1):
        head = ".".join(parts[:count])
        if head in before:
            parts = [*before[head].split("."), *parts[count:]]
            break
    for package in ("sparloom.tuning.sparse", "sparloom.tuning", "sparloom.experiments"):
        count = package.count(".") + 1
        if ".".join(parts[:count]) == package:
            old = next(old for old, new in PACKAGES.items() if new == package)
            if package == "sparloom.tuning" and parts[count:] and parts[count] in SEARCH:
                old = "sparloom.search"
            return ".".join([old, *parts[count:]])
    return ".".join(parts)


def stored_class_name(owner: object) -> str:
    """Return the original class name of an object, which file names and digests contain."""
    kind = type(owner)
    parts = kind.__module__.split(".")
    for count in range(len(parts), 1, -1):  # public names are listed with their package, not with its inner module
        name = ".".join([*parts[:count], kind.__name__])
        first = first_name(name).rpartition(".")[2]
        if first != kind.__name__:
            return first
    return kind.__name__


def resolve(package: str, name: str) -> Any:
    """Import what an old name of a package refers to.

    Args:
        package: full name of the package that has it now, such as "sparloom.tuning".

    Raises:
        AttributeError: the package never had such a name.
    """
    target = RENAMED.get(f"{package}.{name}")
    if target is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home, _, renamed = target.rpartition(".")
    return getattr(import_module(home), renamed)


def old_package(package: str) -> Callable[[str], Any]:
    """Make the function __getattr__ of an old package."""

    def find(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if f"{package}.{name}" in PACKAGES:
            return import_module(f"{package}.{name}")
        return getattr(import_module(PACKAGES[package]), name)

    return find
