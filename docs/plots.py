"""Draw the pictures of docs/results from the committed runs in results/: `python docs/plots.py [name ...]`.

Each picture has a table of what it shows: `<name>.csv` beside `<name>.svg`. The SVG names the digest of its table, so
that a test finds pictures that are out of date without drawing them.
"""

import hashlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from sparloom.report import Run, case_seconds, dispatch_ratios, dispatch_seconds, read_run
from sparloom.report.figures import STYLE, TICKS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results" / "images"
COLOURS = ("#b5443c", "#5f7fa8", "#d9a441", "#7aa974", "#8a6fa8", "#8c8c8c")
MARKERS = "osD^vP"
WIDTHS = (32, 64, 128)
DIGITS = 5  # of the numbers in the tables
MOST_WIDTH = 256  # of the cases of bench_dispatch


@dataclass(frozen=True)
class Picture:
    """A picture and the table behind it.

    Attributes:
        title: one sentence; the alternative text of the picture.
        table: makes the table: columns series, label, x, value, low and high, as far as `draw` reads them.
        draw: draws the table on axes.
        size: inches.
    """

    name: str
    title: str
    table: Callable[[], pd.DataFrame]
    draw: Callable[[Axes, pd.DataFrame], None]
    size: tuple[float, float] = (7.2, 3.6)

    def csv(self) -> str:
        return self.table().to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n")


def run(name: str) -> Run:
    """Open a committed run."""
    return read_run(ROOT / "results" / name)


def bounded(metrics: Mapping[str, float | None], key: str, **columns: object) -> dict[str, object]:
    """Make the row of a metric with its 95 % bounds."""
    return {**columns, "value": metrics[key], "low": metrics.get(f"{key}_low"), "high": metrics.get(f"{key}_high")}


def overview() -> pd.DataFrame:
    """Collect the headline speedups of layers and products over the fastest alternative."""
    found = {name: run(name).metrics for name in (
        "bench_dispatch_final", "bench_dispatch", "bench_gcn", "bench_ragged", "bench_fusion")}
    rows = [
        ("SpMM, over the fastest of seven libraries", "bench_dispatch_final", "spmm/over_best"),
        ("SDDMM, over the fastest of four", "bench_dispatch_final", "sddmm/over_best"),
        ("GAT, a step of training, over PyG", "bench_dispatch_final", "gat_steps/over_best"),
        ("graph attention, over PyTorch", "bench_dispatch", "attention/over_best"),
        ("means over neighbours with gradients, over PyG", "bench_dispatch", "sage_training/over_best"),
        ("GraphSAGE, a step of training, over PyG", "bench_dispatch", "sage_steps/over_best"),
        ("GCN, 100 steps of training at width 64, over PyG", "bench_gcn", "64/speedup_over_pyg"),
        ("encoder layer, over padded PyTorch", "bench_ragged", "encoder/over_padded"),
        ("encoder layer, over the fastest of ten peers", "bench_ragged", "encoder/over_best_public"),
        ("encoder layer, over those and two with oneDNN", "bench_ragged", "encoder/over_best_peer"),
        ("GeMM-SpMM at width 64, over MKL", "bench_fusion", "gemm_spmm/64/auto_over_mkl"),
    ]
    return pd.DataFrame([bounded(found[name], key, label=label) for label, name, key in rows])


def sparse_bars() -> pd.DataFrame:
    """Collect speedups of sparse operations over each library."""
    metrics = run("bench_dispatch").metrics
    libraries = {"spmm": ("SpMM", {"mkl": "MKL", "torch": "torch", "numba": "Numba", "scipy": "SciPy"}),
                 "sddmm": ("SDDMM", {"sampled_addmm": "torch", "numba": "Numba"}),
                 "attention": ("attention", {"composed": "torch, composed"}),
                 "sage_training": ("neighbour means", {"pyg_csr": "PyG, CSR", "pyg_edge_index": "PyG, edges"})}
    return pd.DataFrame([bounded(metrics, f"{op}/over_{library}", series=title, label=f"{title}: {label}")
                         for op, (title, names) in libraries.items() for library, label in names.items()])


def sparse_matrices() -> pd.DataFrame:
    """Divide the seconds of the fastest library by ours, by matrix and width: small cases, too."""
    per_case = run("bench_dispatch").table("per_case")
    seconds = dispatch_seconds(per_case)
    counted = seconds[seconds.index.get_level_values("width") <= MOST_WIDTH]
    least = dispatch_ratios(seconds).loc[counted.index].min(axis=1).rename("value").reset_index()
    nnz = per_case.drop_duplicates("matrix").set_index("matrix")["nnz"]
    titles = {"spmm": "SpMM", "sddmm": "SDDMM", "attention": "attention"}
    order = list(titles)
    least = least[least["op"].isin(order)].sort_values("op", key=lambda ops: ops.map(order.index), kind="stable")
    return pd.DataFrame({"series": least["op"].map(titles), "label": least["matrix"], "width": least["width"],
                         "x": least["matrix"].map(nnz), "value": least["value"]})


def sparse_widths() -> pd.DataFrame:
    """Collect speedups over the fastest library by width."""
    metrics = run("bench_dispatch").metrics
    return pd.DataFrame([bounded(metrics, f"{op}/{width}/over_best", series=title, x=width)
                         for op, title in (("spmm", "SpMM"), ("sddmm", "SDDMM"), ("attention", "attention"))
                         for width in (32, 64, 128, 256, 512) if f"{op}/{width}/over_best" in metrics])


def cognate_bars() -> pd.DataFrame:
    """Collect the share of the optimum that each method reaches with its first choice."""
    rows = run("eval_figure04").table("rows")
    rows = rows[rows["row"] != "optimum"]
    return pd.DataFrame({"series": rows["group"].map({"spmm": "SpMM", "sddmm": "SDDMM"}), "label": rows["label"],
                         "value": rows["top1_of_optimum"], "low": rows["top1_of_optimum_low"],
                         "high": rows["top1_of_optimum_high"]})


def cognate_matrices() -> pd.DataFrame:
    """Compute the share of the optimum on every matrix, for SpMM: geometric means over seeds."""
    frame = run("eval_figure04").per_matrix
    frame = frame[(frame["group"] == "spmm") & frame["row"].isin(["cognate", "sparloom"])]
    share = np.log(frame["best_seconds"] / frame["top1_seconds"])
    found = frame.assign(share=share).groupby(["row", "matrix"], as_index=False).agg(x=("nnz", "first"),
                                                                                      value=("share", "mean"))
    titles = {"cognate": "COGNATE, 500 samples", "sparloom": "sparloom, 500 samples"}
    return pd.DataFrame({"series": found["row"].map(titles), "label": found["matrix"], "x": found["x"],
                         "value": np.exp(found["value"])})


def cognate_samples() -> pd.DataFrame:
    """Collect the share of the optimum by the number of matrices to learn from."""
    rows = run("eval_figure12").table("rows")
    rows = rows[rows["row"] != "optimum"]
    series = {"cognate": "COGNATE", "no_transfer": "the same network without transfer",
              "static": "one configuration for all"}
    return pd.DataFrame({"series": rows["row"].str.replace(r"_\d+$", "", regex=True).map(series),
                         "x": rows["target_matrices"].astype(int), "value": rows["top1_of_optimum"],
                         "low": rows["top1_of_optimum_low"], "high": rows["top1_of_optimum_high"]})


def tree_bars() -> pd.DataFrame:
    """Collect the rate of the chosen kernel as a share of the best."""
    metrics = run("fit_trees").metrics | run("fit_trees_gemm").metrics
    keys = {"noise_ceiling": "fastest in an earlier sweep", "mean_efficiency": "trees on log1p of the rate",
            "distilled_mean_efficiency": "the same, distilled to 150 trees",
            "static_efficiency": "one configuration for all", "random_efficiency": "random choice",
            "vendor_efficiency": "MKL through torch.mm"}
    return pd.DataFrame([bounded(metrics, f"{prefix}{key}", series=title, label=label)
                         for prefix, title in (("oof/", "GEMM"), ("spmm/oof_", "SpMM"), ("sddmm/oof_", "SDDMM"))
                         for key, label in keys.items() if metrics.get(f"{prefix}{key}") is not None])


def tree_problems() -> pd.DataFrame:
    """Tabulate the efficiency of the trees' choice on every problem against its shortest time."""
    sparse, dense = (run(name).table("per_problem") for name in ("fit_trees", "fit_trees_gemm"))
    frame = pd.concat([dense, sparse[sparse["op"] != "gemm"]], ignore_index=True)
    titles = {"gemm": "GEMM", "spmm": "SpMM", "sddmm": "SDDMM"}
    frame = frame[frame["method"] == "model"]
    return pd.DataFrame({"series": frame["op"].map(titles), "label": frame["matrix"], "width": frame["width"],
                         "x": frame["best_seconds"] * 1e3, "value": frame["efficiency"]})


def fusion_bars() -> pd.DataFrame:
    """Collect speedups of `fuse="auto"` over libraries and our unfused kernels."""
    metrics = run("bench_fusion").metrics
    return pd.DataFrame([
        bounded(metrics, f"{op}/{width}/auto_over_{method}", series=f"{width} columns", label=f"{title}, over {label}")
        for op, title in (("gemm_spmm", "GeMM-SpMM"), ("spmm_spmm", "SpMM-SpMM"))
        for method, label in (("mkl", "MKL"), ("torch", "torch"), ("unfused", "our own unfused")) for width in WIDTHS])


def fusion_matrices() -> pd.DataFrame:
    """Divide the seconds of MKL and of our unfused kernels by ours, on every real matrix at 64 columns."""
    frame = run("bench_fusion").per_matrix
    frame = frame[(frame["part"] == "real") & (frame["op"] == "gemm_spmm") & (frame["width"] == 64)
                  & (frame["threads"] == 2)]
    seconds = frame.pivot(index=["matrix", "nnz"], columns="method", values="seconds")
    parts = [pd.DataFrame({"series": label, "label": seconds.index.get_level_values("matrix"),
                           "x": seconds.index.get_level_values("nnz"),
                           "value": (seconds[slow] / seconds["auto"]).to_numpy()})
             for slow, label in (("mkl", "over MKL"), ("unfused", "over our own unfused kernels"))]
    return pd.concat(parts).dropna(subset="value")


def gcn_widths() -> pd.DataFrame:
    """Collect speedups of training a graph convolutional network over PyTorch Geometric, by width."""
    metrics = run("bench_gcn").metrics
    keys = {"speedup_over_pyg": "100 steps with all preparation", "step_speedup_over_pyg": "a step",
            "unfused_over_pyg": "100 steps, by separate operations"}
    rows = [bounded(metrics, f"{width}/{key}", series=label, x=width)
            for key, label in keys.items() for width in WIDTHS]
    paper = [{"series": "the paper's", "x": width, "value": value}
             for width, value in zip(WIDTHS, (3.84, 2.33, 1.34), strict=True)]
    return pd.DataFrame(rows + paper)


def ragged_bars() -> pd.DataFrame:
    """Collect speedups of the encoder layer over PyTorch's forms, on both machines."""
    forms = {"padded": "padded, fastest form", "micro_batches": "length-sorted micro-batches",
             "packed_loop": "packed loop", "nested_fast": "torch.nested", "fbgemm": "FBGEMM", "flex": "FlexAttention",
             "onednn_loop": "loop, oneDNN", "onednn_flex": "FlexAttention, oneDNN"}
    rows = []
    for name, machine in (("bench_ragged", "AVX-512"), ("bench_ragged_avx2", "AVX2")):
        metrics = run(name).metrics
        rows += [bounded(metrics, f"encoder/over_{form}", series=machine, label=label)
                 for form, label in forms.items() if metrics.get(f"encoder/over_{form}") is not None]
    return pd.DataFrame(rows)


def ragged_cases() -> pd.DataFrame:
    """Divide the seconds of padded PyTorch by ours, by data set and batch size."""
    frame = run("bench_ragged").table("per_case")
    seconds = case_seconds(frame, "encoder").reset_index()
    tokens = frame[frame["part"] == "encoder"].drop_duplicates(["data", "size"]).set_index(["data", "size"])
    share = [tokens.loc[(row.data, row.size_), "tokens"] / (row.size_ * tokens.loc[(row.data, row.size_), "longest"])
             for row in seconds.rename(columns={"size": "size_"}).itertuples()]
    return pd.DataFrame({"series": [f"{size} sequences" for size in seconds["size"]], "label": seconds["data"],
                         "x": share, "value": seconds["padded"] / seconds["sparloom"]})


def ragged_sizes() -> pd.DataFrame:
    """Collect speedups of products of variable size by the number of products, on both machines."""
    rows = []
    for name, machine in (("bench_ragged", "AVX-512"), ("bench_ragged_avx2", "AVX2")):
        metrics = run(name).metrics
        rows += [bounded(metrics, f"vgemm/{size}/over_loop", series=machine, x=size) for size in (2, 4, 8, 16, 32)]
    return pd.DataFrame(rows)


def _series(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    names = list(dict.fromkeys(frame["series"])) if "series" in frame else [""]
    for number, name in enumerate(names):
        yield number, name, frame[frame["series"] == name] if name else frame


def bars(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw horizontal bars with intervals, a group for each label, a colour for each series."""
    labels = list(dict.fromkeys(frame["label"]))
    shared = "series" in frame and frame.duplicated("label").any()
    count = frame["series"].nunique() if shared else 1
    height = 0.8 / count
    for number, name, rows in _series(frame):
        at = np.array([labels.index(label) for label in rows["label"]], float)
        at += (number - (count - 1) / 2) * height if shared else 0
        axes.barh(at, rows["value"], 0.9 * height, color=COLOURS[number % len(COLOURS)], label=name or None)
        known = rows["low"].notna()
        spread = np.abs(rows.loc[known, ["low", "high"]].to_numpy().T - rows.loc[known, "value"].to_numpy())
        axes.errorbar(rows.loc[known, "value"], at[known.to_numpy()], xerr=spread, fmt="none", color="#404040",
                      linewidth=1, capsize=2)
        for place, value, end in zip(at, rows["value"], rows["high"].fillna(rows["value"]), strict=True):
            axes.annotate(f"{value:.2f}", (end, place), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlim(0, 1.08 * frame[["value", "high"]].max(axis=None))
    axes.axvline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    if count > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=count, fontsize=8)


def scatter(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw a point for each row, a colour and a marker for each series; x is logarithmic if it spans a decade."""
    for number, name, rows in _series(frame):
        axes.scatter(rows["x"], rows["value"], s=14, marker=MARKERS[number], color=COLOURS[number], alpha=0.7,
                     linewidth=0, label=name)
    if frame["x"].max() > 10 * frame["x"].min():
        axes.set_xscale("log")
    axes.axhline(1, color="#404040", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.legend(loc="best", fontsize=8)


def lines(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw a line with intervals for each series, x logarithmic with a tick at each value."""
    for number, name, rows in _series(frame):
        low, high = (rows[each].fillna(rows["value"]) for each in ("low", "high"))
        axes.fill_between(rows["x"], low, high, color=COLOURS[number], alpha=0.18, linewidth=0)
        axes.plot(rows["x"], rows["value"], color=COLOURS[number], marker=MARKERS[number], markersize=4, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(frame["x"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="best", fontsize=8)


def labelled(draw: Callable[[Axes, pd.DataFrame], None], x: str = "", y: str = "", *, log: bool = False,
             bottom: float | None = None) -> Callable[[Axes, pd.DataFrame], None]:
    """Name the axes; a logarithmic upright axis of speedups gets round ticks."""

    def drawn(axes: Axes, frame: pd.DataFrame) -> None:
        draw(axes, frame)
        axes.set(xlabel=x, ylabel=y)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator(TICKS))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:g}")
        if bottom is not None:
            axes.set_ylim(bottom=bottom)

    return drawn


FASTER, SHARE = "times as fast", "share of the optimum"
PICTURES = (
    Picture("overview", "Speedups of layers and products over the alternatives", overview,
            labelled(bars, FASTER), (7.6, 3.4)),
    Picture("sparse_bars", "Speedups of sparse operations over each library", sparse_bars, labelled(bars, FASTER)),
    Picture("sparse_matrices", "Speedup over the fastest library, by matrix and width", sparse_matrices,
            labelled(scatter, "nonzeros", FASTER, log=True)),
    Picture("sparse_widths", "Speedup over the fastest library, by width", sparse_widths,
            labelled(lines, "columns of the dense operand", FASTER, bottom=0)),
    Picture("cognate_bars", "Share of the optimum on SPADE, by each method's first choice", cognate_bars,
            labelled(bars, SHARE), (7.2, 5.2)),
    Picture("cognate_matrices", "Share of the optimum on every matrix", cognate_matrices,
            labelled(scatter, "nonzeros", SHARE)),
    Picture("cognate_samples", "Share of the optimum by the number of matrices to learn from", cognate_samples,
            labelled(lines, "matrices of SPADE to learn from, 100 samples each", SHARE)),
    Picture("tree_bars", "Rate of the chosen kernel as a share of the best", tree_bars,
            labelled(bars, "share of the best rate"), (7.2, 4.2)),
    Picture("tree_problems", "Share of the best rate on every problem", tree_problems,
            labelled(scatter, "milliseconds of the best kernel", "share of the best rate")),
    Picture("fusion_bars", "Speedups of two products in a row over libraries and over our unfused kernels", fusion_bars,
            labelled(bars, FASTER), (7.2, 4.6)),
    Picture("fusion_matrices", "Speedup of GeMM-SpMM at 64 columns on every matrix", fusion_matrices,
            labelled(scatter, "nonzeros", FASTER, log=True)),
    Picture("gcn_widths", "Speedup of training a GCN over PyTorch Geometric, by width", gcn_widths,
            labelled(lines, "features", FASTER, bottom=0)),
    Picture("ragged_bars", "Speedups of an encoder layer over PyTorch's forms", ragged_bars, labelled(bars, FASTER),
            (7.2, 4.4)),
    Picture("ragged_cases", "Speedup of an encoder layer over padded PyTorch, by batch", ragged_cases,
            labelled(scatter, "share of tokens that are no padding", FASTER, bottom=0)),
    Picture("ragged_sizes", "Speedup of products of variable size over a loop of torch.mm", ragged_sizes,
            labelled(lines, "products in a batch", FASTER, bottom=0)),
)


def digest(csv: str) -> str:
    """Return the text by which an SVG names the table that it shows."""
    return f"table sha256:{hashlib.sha256(csv.encode()).hexdigest()}"


def draw(picture: Picture) -> None:
    """Write the table and the picture."""
    csv = picture.csv()
    (FOLDER / f"{picture.name}.csv").write_text(csv, encoding="utf-8")
    with rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": "sparloom",
                     "font.sans-serif": ["DejaVu Sans", "Arial"]}):
        made = Figure(figsize=picture.size, layout="constrained")
        axes = made.subplots()
        made.suptitle(picture.title, x=0.01, ha="left", fontsize=11)
        picture.draw(axes, pd.read_csv(io.StringIO(csv)))
        made.savefig(FOLDER / f"{picture.name}.svg",
                     metadata={"Date": None, "Title": picture.title, "Description": digest(csv)}, facecolor="white")


if __name__ == "__main__":
    for each in PICTURES:
        if not sys.argv[1:] or each.name in sys.argv[1:]:
            draw(each)
