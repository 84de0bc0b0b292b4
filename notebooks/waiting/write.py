"""Write the four notebooks on ragged programs from ROOT/results, run them, and (--index) add their numbers to the index.

python notebooks/waiting/write.py ROOT [--write-only] [--index]      results/bench_ragged, results/eval_ragged as far as they are there
"""
import json, subprocess, sys
from pathlib import Path

import nbformat

ROOT = Path(sys.argv[1]).resolve()
WRITE_ONLY, INDEX = "--write-only" in sys.argv, "--index" in sys.argv
NONE = "—"
COMMANDS = {name: f"python run.py experiment={name}" for name in ("bench_ragged", "eval_ragged")}
METRICS = {}
for name in COMMANDS:
    folder = ROOT / "results" / name
    METRICS[name] = json.loads((folder / "metrics.json").read_text()) if (folder / "metrics.json").exists() else {}
    if (folder / "command.txt").exists():
        COMMANDS[name] = (folder / "command.txt").read_text().strip()
EXECUTE = """
import sys, nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient
notebook, manager = nbformat.read(sys.argv[1], as_version=4), KernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
NotebookClient(notebook, km=manager, timeout=120).execute()
nbformat.write(notebook, sys.argv[1])
"""


def number(value, digits):
    return f"{value:.{digits}f}"


def table(run, rows, *, spread="95 %"):
    """Rows: (label, metric, paper, digits); metrics that a run lacks are left out where there is a run."""
    metrics = METRICS[run]
    ends = ("_low", "_high") if spread == "95 %" else ("_p10", "_p90")
    lines = [f"| | metric | paper | ours | {spread} |", "|---|---|---|---|---|"]
    for label, key, paper, digits in rows:
        if metrics and key not in metrics:
            continue
        ours = number(metrics[key], digits) if metrics else NONE
        low, high = (metrics.get(key + end) for end in ends)
        between = NONE if low is None else f"{number(low, digits)}–{number(high, digits)}"
        lines.append(f"| {label} | `{key}` | {paper or NONE} | {ours} | {between} |")
    return "\n".join(lines)


def written(name, cells):
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                         "language_info": {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py",
                                           "mimetype": "text/x-python", "name": "python", "nbconvert_exporter": "python",
                                           "pygments_lexer": "ipython3", "version": "3.11.7"}}
    for place, (kind, text) in enumerate(cells):
        cell = (nbformat.v4.new_markdown_cell if kind == "m" else nbformat.v4.new_code_cell)(text.strip("\n"))
        cell["id"] = f"cell-{place:02d}"
        notebook.cells.append(cell)
    path = ROOT / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    if not WRITE_ONLY:
        subprocess.run([sys.executable, "-c", EXECUTE, str(path)], check=True, cwd=path.parent)
    print("written", path)


SETUP = '''
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from IPython.display import Image
from rich.console import Console

from sparloom.report import {names}

run = read_run(Path("../results/{run}"))
frame, metrics = run.table("per_case"), run.metrics
console = Console(width=170, force_jupyter=False, color_system=None)
pictures = TemporaryDirectory()
folder = Path(pictures.name)
pd.set_option("display.max_rows", None, "display.width", 170)
environment = run.environment
print(run.command)
print(environment["started"], "commit", environment["commit"][:12], "on", environment["machine"]["name"])
'''

ENCODER_LEVELS = """
On a GPU (V100), ms by data set and batch: PyTorch, FasterTransformer (FT), CoRa, FT without padding in linear operators (FT-Eff).
"""
PAPER_ENCODER = '''
paper = pd.read_csv(StringIO("""data,size,PyTorch,FT,CoRa,FT-Eff
race,32,12.22,11.0,8.22,8.61
race,64,24.46,21.88,15.91,16.75
race,128,48.73,42.26,31.45,33.61
wiki512,32,12.26,11.0,9.1,9.32
wiki512,64,24.52,22.12,17.4,17.85
wiki512,128,48.72,42.43,32.17,33.66
squadv2,32,8.17,7.56,4.15,4.69
squadv2,64,16.9,15.63,7.78,9.2
squadv2,128,34.18,30.62,15.36,17.91
wiki128,32,2.79,2.45,2.59,2.28
wiki128,64,5.12,4.61,4.72,4.35
wiki128,128,10.1,9.29,8.86,8.54
mnli,32,2.22,2.04,1.11,1.03
mnli,64,4.44,4.06,1.89,1.93
mnli,128,9.53,8.86,3.53,3.78
xnli,32,2.76,2.45,1.56,1.5
xnli,64,5.13,4.62,2.94,2.86
xnli,128,10.03,9.3,5.62,5.49
mrpc,32,1.85,1.73,1.32,1.27
mrpc,64,3.76,3.48,2.6,2.36
mrpc,128,7.42,6.89,4.55,4.55
cola,32,0.67,0.57,0.59,0.44
cola,64,1.02,0.93,0.77,0.63
cola,128,2.37,2.18,1.26,1.17
""")).set_index(["data", "size"])
'''
PAPER_MHA = '''
paper = pd.read_csv(StringIO("""data,size,TF,TF-UB,CoRa
race,32,55,46,44
race,64,111,88,85
race,128,209,156,168
wiki512,32,53,53,47
wiki512,64,106,96,91
wiki512,128,205,172,176
squadv2,32,35,27,20
squadv2,64,68,49,39
squadv2,128,137,79,76
wiki128,32,11,11,9
wiki128,64,19,18,17
wiki128,128,34,33,33
mnli,32,9,9,4
mnli,64,16,14,7
mnli,128,30,23,14
xnli,32,11,11,6
xnli,64,18,18,11
xnli,128,34,28,22
mrpc,32,9,8,5
mrpc,64,14,14,10
mrpc,128,26,23,18
cola,32,5,4,2
cola,64,6,6,3
cola,128,9,8,5
""")).set_index(["data", "size"])
'''


def encoder():
    rows = [
        ("encoder layer over padded PyTorch, its fastest form (bar 2.0)", "encoder/over_padded", "1.60", 2),
        ("least of all cases", "encoder/over_padded_min", None, 2),
        ("over the best of all peers in each case (bar 1.15)", "encoder/over_best_peer", None, 2),
        ("least of all cases (bar 0.9)", "encoder/over_best_peer_min", None, 2),
        ("over length-sorted micro-batches", "encoder/over_micro_batches", None, 2),
        ("over a loop of SDPA on packed tokens", "encoder/over_packed_loop", None, 2),
        ("over torch.nested", "encoder/over_nested", None, 2),
        ("over FlexAttention, compiled", "encoder/over_flex", None, 2),
    ]
    attention = [
        ("attention over padded PyTorch", "mha/over_padded", None, 2),
        ("over length-sorted micro-batches (bar 1.35)", "mha/over_microbatch", "1.37", 2),
        ("least of all cases", "mha/over_microbatch_min", None, 2),
        ("over the best of all peers in each case", "mha/over_best_peer", None, 2),
        ("masked: triangles of tiles over computing all, RACE (bar 1.6)", "causal/over_unmasked", None, 2),
        ("the same, MNLI", "causal/mnli/over_unmasked", None, 2),
    ]
    prelude = [("prelude, share of a layer's time, mean (bar 0.01)", "prelude_share", "0.007 to 0.07 (GPU)", 4),
               ("the same, largest", "prelude_share_max", None, 4)]
    first = f"""
# CoRa figure 11 and tables of latencies: the encoder layer without padding

**Claim of the paper.** An encoder layer whose ragged operators a compiler has made is 1.6 times as fast as padded PyTorch on a V100 (geometric mean over eight data sets and batches of 32, 64 and 128), and as fast
as FasterTransformer's hand-written kernels without padding in linear operators; multi-head attention on 64 ARM cores is 1.37 times as fast as length-sorted micro-batches in TensorFlow (§7.2).

**Reads** `results/bench_ragged` (`{COMMANDS['bench_ragged']}`): hidden size 512, 8 heads of 64, 2048 within, float32, two threads, batches from the head of each data set. All methods compute the same to 10⁻⁴ and run in turn. *Padded* is the fastest of
PyTorch's ordinary path, its fused path for inference, and torch.compile with and without frozen weights; *micro-batches* the fastest power of two, by either path. Peers far behind in a first run are left out, so their ratios cover fewer cases and favour them. Numbers are geometric
means over cases with 95 % bootstrap bounds; extremes and shares have none. The paper's numbers are those of its machines; no GPU is measured here.

The layer:

{table('bench_ragged', rows)}

Attention by itself:

{table('bench_ragged', attention)}

What a batch pattern costs before the first of six layers:

{table('bench_ragged', prelude)}
"""
    names = "case_seconds, data_title, draw_ragged, read_run"
    cells = [
        ("m", first),
        ("c", SETUP.format(names=names, run="bench_ragged").replace("from pathlib", "from io import StringIO\nfrom pathlib", 1)
         + '''peers = run.folder / "peers.json"
if peers.exists():
    print(" ".join(peers.read_text(encoding="utf-8").split()))
'''),
        ("m", "## Figure 11: every case\n\nHow many times as fast as padding; *best of all peers* contains padding and micro-batches."),
        ("c", 'draw_ragged(frame, folder)\nImage(folder / "encoder.png", width=1000)'),
        ("m", "## Latencies of the encoder layer\n\nMilliseconds of each method; empty where a peer was too slow to take part. Then, on the right, how many times as fast as padded PyTorch and as the best peer ours is, and in the paper CoRa as PyTorch and as FT-Eff."),
        ("c", PAPER_ENCODER + '''
seconds = case_seconds(frame, "encoder").groupby(["data", "size"], sort=False).median()
rivals = [name for name in seconds if name not in ("sparloom", "prelude")]
table = (1e3 * seconds[["sparloom", *rivals]]).round(1).astype(object).where(seconds[["sparloom", *rivals]].notna(), "")
table["over padded"] = (seconds["padded"] / seconds["sparloom"]).round(2)
table["over best"] = (seconds[rivals].min(axis=1) / seconds["sparloom"]).round(2)
table["CoRa over PyTorch"] = (paper["PyTorch"] / paper["CoRa"]).reindex(seconds.index).round(2)
table["CoRa over FT-Eff"] = (paper["FT-Eff"] / paper["CoRa"]).reindex(seconds.index).round(2)
table.rename(index=data_title, level="data")
'''),
        ("c", '''
told = paper.loc[paper.index.isin(seconds.index)]
print(f"Ours is {metrics['encoder/over_padded']:.2f} times as fast as padding over {len(seconds)} cases and ahead of every peer in {(table['over best'] > 1).sum()}.")
gains = pd.DataFrame({"ours over padded": seconds["padded"] / seconds["sparloom"], "paper's over PyTorch": told["PyTorch"] / told["CoRa"]}).dropna()
if len(gains) > 2:
    print(f"Where the paper gains most, so do we: rank correlation of the ratios {gains.rank().corr().iloc[0, 1]:.2f} over {len(gains)} cases.")
'''),
        ("m", "Which peer is the fastest, by number of cases, for the layer and for attention:"),
        ("c", '''
pd.DataFrame({part: case_seconds(frame, part).drop(columns=["sparloom", "prelude"], errors="ignore").idxmin(axis=1).value_counts() for part in ("encoder", "mha")}).fillna(0).astype(int)
'''),
        ("m", "## Multi-head attention\n\nThe paper's table is of a 64-core ARM CPU: TensorFlow padded (TF), in micro-batches (TF-UB), and CoRa, ms."),
        ("c", 'Image(folder / "mha.png", width=1000)'),
        ("c", PAPER_MHA + '''
seconds = case_seconds(frame, "mha").groupby(["data", "size"], sort=False).median()
rivals = [name for name in seconds if name != "sparloom"]
table = (1e3 * seconds[["sparloom", *rivals]]).round(1).astype(object).where(seconds[["sparloom", *rivals]].notna(), "")
table["over padded"] = (seconds["padded"] / seconds["sparloom"]).round(2)
table["over micro-batches"] = (seconds["micro_batches"] / seconds["sparloom"]).round(2)
table["CoRa over TF"] = (paper["TF"] / paper["CoRa"]).reindex(seconds.index).round(2)
table["CoRa over TF-UB"] = (paper["TF-UB"] / paper["CoRa"]).reindex(seconds.index).round(2)
table.rename(index=data_title, level="data")
'''),
        ("m", "## Masked attention\n\nScores, softmax and mix alone: on triangles of tiles, computed whole and then masked, and without a mask. Milliseconds and how many times as fast as *whole* the triangles are."),
        ("c", '''
seconds = case_seconds(frame, "causal").groupby(["data", "size"], sort=False).median()
(1e3 * seconds).round(2).assign(gain=(seconds["whole"] / seconds["sparloom"]).round(2)).rename(index=data_title, level="data")
'''),
        ("m", "## The prelude\n\nMicroseconds that building all tables of a batch takes, and its share of one of six layers in percent; the paper's, on a GPU, are 0.7 % (RACE, 128) to some 7 % (CoLA, 32), most of it the copy to the device."),
        ("c", '''
seconds = case_seconds(frame, "encoder").groupby(["data", "size"], sort=False).median()
pd.DataFrame({"microseconds": 1e6 * seconds["prelude"], "share, %": 100 * seconds["prelude"] / 6 / seconds["sparloom"]}).round(2).rename(index=data_title, level="data")
'''),
    ]
    written("ragged_encoder", cells)


def products():
    vgemm = [("over a loop of torch.mm (bar 1.0)", "vgemm/over_loop", "at least 0.73 (MKL's vgemm)", 2),
             ("least of all sizes of batch", "vgemm/over_loop_min", None, 2),
             ("over padded torch.bmm (bar 1.5)", "vgemm/over_padded", None, 2),
             ("least of all sizes of batch", "vgemm/over_padded_min", None, 2)]
    trmm = [("over BLAS strmm (bar 0.9)", "trmm/over_blas", "at least 0.81 (cuBLAS)", 2),
            ("least of all sizes", "trmm/over_blas_min", None, 2),
            ("over the dense product", "trmm/over_dense", None, 2)]
    trmm += [(f"over the dense product, {size} rows" + (" (bar 1.0)" if size >= 1024 else ""), f"trmm/{size}/over_dense", None, 2)
             for size in (512, 1024, 2048, 4096)]
    first = f"""
# CoRa figures 9 and 10: products of variable size, and by a triangle

**Claim of the paper.** A batch of products of different sizes, compiled from one ragged program, reaches at least 73 % of MKL's own routine on an Intel CPU and is level with hand-written kernels on a GPU; a product by a lower triangular
matrix reaches 81 % of cuBLAS where its reduction is split at the diagonal and its rows are balanced (§7.1).

**Reads** `results/bench_ragged` (`{COMMANDS['bench_ragged']}`): float32, two threads; extents of products are multiples of 128 from 512 to 1408, drawn uniformly. Every method is checked against the others and all of one case run in turn. *Loop* calls torch.mm once for each product, *padded* is torch.bmm with all as large as the
largest; *blas* is STRMM of SciPy's BLAS, *dense* torch.mm with zeros above the diagonal; *unsplit*, *split* and *balanced* are the paper's schedules with generated loops, ours leaves tiles to our routine for products. Numbers are geometric means over sizes with 95 % bootstrap bounds; numbers of one size and extremes have none.

Products of variable size:

{table('bench_ragged', vgemm)}

Product by a triangle:

{table('bench_ragged', trmm)}
"""
    cells = [
        ("m", first),
        ("c", SETUP.format(names="case_seconds, draw_ragged, read_run", run="bench_ragged")),
        ("m", "## Figure 9: products of variable size\n\nUseful operations only: what padding computes in vain does not count."),
        ("c", 'draw_ragged(frame, folder)\nImage(folder / "vgemm.png", width=640)'),
        ("c", '''
seconds = case_seconds(frame, "vgemm").droplevel(["data", "number"])
flops = frame[frame["part"] == "vgemm"].groupby("size")["flops"].first()
rates = (1 / seconds).mul(flops, axis=0) / 1e9
rates.round(1).assign(**{f"over {name}": (seconds[name] / seconds["sparloom"]).round(2) for name in ("loop", "padded")})
'''),
        ("c", '''
print(f"Ours reaches {100 * (seconds['loop'] / seconds['sparloom']).min():.0f} % of a loop of torch.mm at least; padding to the largest takes {(seconds['padded'] / seconds['sparloom']).max():.2f} times as long as ours at most.")
'''),
        ("m", "## Figure 10: product by a triangle\n\nHalf of what a dense product computes is counted: n³ for n rows."),
        ("c", 'Image(folder / "trmm.png", width=640)'),
        ("c", '''
seconds = case_seconds(frame, "trmm").droplevel(["data", "number"])
flops = frame[frame["part"] == "trmm"].groupby("size")["flops"].first()
rates = (1 / seconds[["sparloom", "balanced", "split", "unsplit", "blas", "dense"]]).mul(flops, axis=0) / 1e9
rates.round(1).assign(**{f"over {name}": (seconds[name] / seconds["sparloom"]).round(2) for name in ("blas", "dense")})
'''),
        ("m", "What each of the paper's two steps brings with generated loops: splitting the reduction at the diagonal over not, balancing over none; and products of tiles over both."),
        ("c", '''
pd.DataFrame({"split over unsplit": seconds["unsplit"] / seconds["split"], "balanced over split": seconds["split"] / seconds["balanced"], "tiles over balanced": seconds["balanced"] / seconds["sparloom"]}).round(2)
'''),
    ]
    written("ragged_products", cells)


def overheads():
    padding = []
    for size, told in ((32, "0.035"), (128, "0.023")):
        padding += [(f"partial padding (paper's), batch {size}: computed in vain", f"padding/batch_{size}", told, 4),
                    (f"largest of the data sets", f"padding/batch_{size}_max", None, 4),
                    (f"our schedule, batch {size} (bar 0.035 at 32)", f"padding_own/batch_{size}", None, 4),
                    (f"padded to the longest, batch {size}", f"padding_dense/batch_{size}", None, 3),
                    (f"our triangles of tiles in masked attention, batch {size}", f"padding_own/causal_batch_{size}", None, 3)]
    memory = [("padded over ragged activations, batch 64", "memory/dense_over_ragged", None, 2),
              ("over those stored in multiples of 64 (paper's)", "memory/dense_over_partial", None, 2),
              ("over what our layer keeps for its gradients", "memory/dense_over_own", None, 2),
              ("the same, least", "memory/dense_over_own_min", None, 2), ("the same, greatest", "memory/dense_over_own_max", None, 2)]
    told = {("cola", 32): (("2.93", "32.15"), ("1.2", "5.27")), ("cola", 128): (("11.18", "104.22"), ("4.58", "17.5")),
            ("race", 32): (("2.93", "666.54"), ("1.2", "106.87")), ("race", 128): (("11.18", "2609.58"), ("4.58", "418.06"))}
    prelude = []
    for (data, size), (redundant, optimised) in told.items():
        title, key = {"cola": "CoLA", "race": "RACE"}[data], f"prelude/{data}_{size}"
        prelude += [(f"{title}, {size}: kB of the paper's tables per kernel, storage", f"{key}/redundant_storage_kb", redundant[0], 2),
                    ("loop fusion", f"{key}/redundant_fusion_kb", redundant[1], 2),
                    ("once per tensor, storage", f"{key}/by_tensor_storage_kb", optimised[0], 2),
                    ("loop fusion", f"{key}/by_tensor_fusion_kb", optimised[1], 2),
                    ("sparse storage, once per tensor", f"{key}/sparse_by_tensor_storage_kb", None, 2),
                    ("ours, storage", f"{key}/shared_storage_kb", None, 2), ("loop fusion", f"{key}/shared_fusion_kb", None, 2)]
    times = []
    for data, size in told:
        title, key = {"cola": "CoLA", "race": "RACE"}[data], f"prelude/{data}_{size}"
        times += [(f"{title}, {size}: ours, shared, over one structure per kernel", f"{key}/over_unshared", None, 2),
                  ("over the paper's tables per tensor, NumPy", f"{key}/over_by_tensor", None, 2),
                  ("over sparse storage per tensor, NumPy", f"{key}/over_sparse_by_tensor", None, 2)]
    hoisting = [(f"{title}: {what}", f"hoisting/{operator}/{metric}", None, 2)
                for operator, title in (("proj1", "Proj1"), ("qkt", "QKT"), ("qkt_fused", "QKT, three loops fused"), ("softmax", "Softmax"), ("attnv", "AttnV"), ("proj2", "Proj2"))
                for what, metric in (("time with ragged storage over dense", "vdims_slowdown"), ("after load hoisting", "hoisted_slowdown"))]
    first = f"""
# CoRa figures 2, 22 and 23: what padding wastes, and what raggedness costs

**Claim of the paper.** Padding to the longest multiplies the computation of an encoder layer, the more the larger the batch (figure 2); a little padding of loops adds 3.5 % at batches of 32 and 2.3 % at 128 (figure 22); ragged activations take less memory; auxiliary tables are small when
operators share them, and much smaller than those of sparse storage; and what ragged loops and storage cost an operator is little after loads of tables are hoisted out of loops, which QKT cannot do without (§7.4, figure 23).

**Reads** `results/eval_ragged` (`{COMMANDS['eval_ragged']}`). Computation, memory and kilobytes are counted, over the first ten batches of each data set; *our schedule* counts the iterations of the program that runs. Shares are geometric means over data sets. Seconds are measured, two threads, all arms
of a comparison in turn, medians over turns with 10th and 90th percentile. The paper's factor for memory is lost in its text.

Computation in vain, relative to what has to be computed:

{table('eval_ragged', padding, spread='10–90 %')}

Memory of activations:

{table('eval_ragged', memory, spread='10–90 %')}

Auxiliary tables of a layer; the paper's kernels make twice as many as there are tensors, ours need one:

{table('eval_ragged', prelude, spread='10–90 %')}

How many times as fast ours are built (compiled code called from Python; the paper's tables and those of sparse storage by vectorised NumPy):

{table('eval_ragged', times, spread='10–90 %')}

Sequences of one length:

{table('eval_ragged', hoisting, spread='10–90 %')}
"""
    names = "data_title, draw_computation, draw_hoisting, draw_memory, draw_padding, draw_prelude, hoisting_frame, over_ideal, over_ragged, prelude_frame, read_run"
    cells = [
        ("m", first),
        ("c", SETUP.format(names=f"(\n    {names},\n)", run="eval_ragged")),
        ("m", "## Figure 2: computation with all sequences padded to the longest"),
        ("c", 'draw_computation(frame, folder / "computation")\nImage(folder / "computation.png", width=760)'),
        ("m", "## Figure 22: ways to pad\n\nOurs pads nothing: tiles of products take any extent."),
        ("c", 'draw_padding(frame, folder / "padding")\nImage(folder / "padding.png", width=1000)'),
        ("c", '''
over_ideal(frame).drop(columns="ideal").rename(index=data_title, level="data").unstack("size").round(3)
'''),
        ("m", "Masked attention, scores computed over those that are wanted: *dense* computes all, *own* triangles of tiles. Sequences shorter than a tile gain nothing; the paper, which pads to tiles of its own, says as much of MNLI."),
        ("c", '''
over_ideal(frame, causal=True).drop(columns="ideal").rename(index=data_title, level="data").unstack("size").round(2)
'''),
        ("m", "## Memory\n\nWhat the forward pass keeps for the gradients. Ours computes scores again and keeps the largest of each row and its sum; the paper's storage in multiples of 64 is larger than padding where sequences are shorter than that."),
        ("c", 'draw_memory(frame, folder / "memory")\nImage(folder / "memory.png", width=760)'),
        ("c", '''
stored = over_ragged(frame)
pd.DataFrame({f"padded over {name}": stored["dense"] / stored[name] for name in ("partial", "ragged", "own")}).rename(index=data_title).round(2)
'''),
        ("m", "## Prelude\n\nTables for one batch, shared by all layers of a model. The encoder of ours reads every tensor at its fused loop alone, so the maps of fused loops, most of the paper's kilobytes, are not needed and not built; what is left says where sequences begin, in 64 bits."),
        ("c", 'draw_prelude(frame, folder / "prelude")\nImage(folder / "prelude.png", width=1100)'),
        ("c", '''
found = prelude_frame(frame).rename(index=data_title, level="data").round(2)
found.astype(object).where(found.notna(), "")
'''),
        ("m", "## Figure 23: ragged loops and storage where nothing is ragged\n\nAll sequences have one length, so all forms do the same work. *QKT, three loops fused* is the paper's schedule, in which every tile looks up its sequence and both coordinates; our own leaves tiles to a routine for products, whose arguments are computed once for each."),
        ("c", 'draw_hoisting(frame, folder / "hoisting")\nImage(folder / "hoisting.png", width=860)'),
        ("c", '''
ratios = hoisting_frame(frame)
worst = ratios["vdims"].idxmax()
print(f"Without hoisting the slowest operator, {worst}, takes {ratios.loc[worst, 'vdims']:.1f} times as long as dense, with it {ratios.loc[worst, 'hoisted']:.2f} times; the others take {ratios.drop(index=worst)['hoisted'].min():.2f} to {ratios.drop(index=worst)['hoisted'].max():.2f} times.")
ratios.round(2)
'''),
    ]
    written("ragged_overheads", cells)


def schedules():
    fusion = []
    for size in (32, 64, 128):
        key = f"pad_fusion/race_{size}"
        fusion += [(f"RACE, {size}: changes of padding inlined over by themselves, products offloaded", f"{key}/inlined_over_separate_products", None, 2),
                   ("the same, products as generated loops", f"{key}/inlined_over_separate_loops", None, 2),
                   ("share of the time that the changes by themselves take", f"{key}/changes_share", None, 3),
                   ("ours, without padding, over inlined", f"{key}/sparloom_over_inlined_products", None, 2)]
    splitting = []
    for operator, title in (("attnv", "AttnV"), ("qkt", "QKT")):
        for size in (32, 64, 128):
            key = f"splitting/{operator}/mnli_{size}"
            splitting += [(f"{title}, MNLI, {size}: split over padded", f"{key}/split_over_padded", None, 2),
                          ("parts at once over one after the other", f"{key}/hfused_over_split", None, 2),
                          ("tiles of any extent over padded", f"{key}/exact_over_padded", None, 2)]
    kernels = []
    for data, size, title in (("race", 128, "RACE, 128"), ("cola", 32, "CoLA, 32")):
        key = f"breakdown/{data}_{size}"
        kernels += [(f"{title}: {name} over PyTorch's", f"{key}/{operator}_over_torch", told if data == "race" else None, 2)
                    for operator, name, told in (("qkv", "Proj1", "1.07 (FT-Eff)"), ("attention", "QKT, Softmax and AttnV", "1.47 (FT-Eff)"), ("projection", "Proj2", None), ("ff1", "FF1", "0.98 (FT-Eff)"), ("ff2", "FF2", None), ("norm1", "first norm", None))]
        kernels += [(f"{title}: all kernels", f"{key}/total_over_torch", "1.07 (FT-Eff)" if data == "race" else None, 2)]
    first = f"""
# CoRa figures 12, 13, 14 and 24: schedules, and the layer kernel by kernel

**Claim of the paper.** Fusing the operators that change padding with their neighbours makes multi-head attention clearly faster on a GPU (figure 12), while on CPUs they are cheap (D.8); splitting an operation into whole tiles and the rest saves work on sequences as short as a tile, which on a CPU shows at once and on a GPU only
with the parts fused horizontally (§7.3, figure 14); kernel by kernel, attention is faster than FasterTransformer's and linear operators are nearly level (figures 13 and 24).

**Reads** `results/eval_ragged` (`{COMMANDS['eval_ragged']}`): hidden size 512, 8 heads of 64, float32, two threads, the first batch of each data set. Every arm is checked against PyTorch or NumPy; all arms of a comparison run in turn. Numbers are medians over turns of the ratio of seconds, with 10th and 90th percentile. The paper's numbers are of a V100, by
operators of its table 10; most of its figures 12 and 14 are given without numbers.

Changes of padding:

{table('eval_ragged', fusion, spread='10–90 %')}

Splitting:

{table('eval_ragged', splitting, spread='10–90 %')}

Kernel by kernel:

{table('eval_ragged', kernels, spread='10–90 %')}
"""
    names = "PAPER_RACE, breakdown_frame, data_title, draw_breakdown, draw_pad_fusion, draw_splitting, pad_fusion_frame, read_run, splitting_frame"
    cells = [
        ("m", first),
        ("c", SETUP.format(names=f"(\n    {names},\n)", run="eval_ragged")),
        ("m", "## Figure 12: changes of padding\n\nMulti-head attention with scores padded to tiles of 64. *Loops*: the products of the attention are generated loops, in which the condition of AddPad can stand; *products*: they are left to a routine that reads plain arrays, so the change becomes storage that the operator before writes. *No padding* is our own attention, one kernel."),
        ("c", 'draw_pad_fusion(frame, folder / "pad_fusion")\nImage(folder / "pad_fusion.png", width=860)'),
        ("c", "pad_fusion_frame(frame).rename(index=data_title, level=\"data\").round(1)"),
        ("c", '''
found = pad_fusion_frame(frame)
print(f"The changes of padding by themselves take {100 * (found['changes'] / found['separate_products']).min():.1f} to {100 * (found['changes'] / found['separate_products']).max():.1f} % of the attention; "
      f"without any padding it takes {100 * (found['sparloom'] / found['separate_products']).min():.0f} to {100 * (found['sparloom'] / found['separate_products']).max():.0f} % of the time.")
'''),
        ("m", "## Figure 14: operation splitting\n\nTime over that with rows (of QKT: columns, too) padded to tiles of 64. All arms leave tiles to the same routine; AttnV is split into two parts, QKT into four."),
        ("c", 'draw_splitting(frame, folder / "splitting")\nImage(folder / "splitting.png", width=860)'),
        ("c", 'splitting_frame(frame).rename(index=data_title, level="data").round(2)'),
        ("m", "## Figures 13 and 24: kernel by kernel\n\nOur layer has seven kernels: QKT, Softmax and AttnV are one. Beside them the packed operators of PyTorch: `linear` with what follows it, `scaled_dot_product_attention` on one sequence after the other, `layer_norm`. A kernel alone finds its operands where the run before left them, so the sum is not quite the time of a layer."),
        ("c", 'draw_breakdown(frame, folder / "breakdown")\nImage(folder / "breakdown.png", width=1100)'),
        ("m", "Milliseconds, how many times as fast ours is, and each kernel's share of the sum; on the right the paper's shares for RACE at 128 sequences."),
        ("c", '''
found = breakdown_frame(frame)
shares = found.div(found.groupby(["data", "size"]).transform("sum"))
told = pd.DataFrame(PAPER_RACE)
told = told.div(told.sum()).rename_axis("operator")
table = found.round(2).assign(**{"times as fast": (found["torch"] / found["sparloom"]).round(2), "share, torch": shares["torch"].round(3), "share, sparloom": shares["sparloom"].round(3)})
table.join(told.add_prefix("paper's share, ").round(3), on="operator").rename(index=data_title, level="data")
'''),
        ("c", '''
for (data, size), rows in found.groupby(["data", "size"], sort=False):
    ratio = (rows["torch"] / rows["sparloom"]).droplevel(["data", "size"])
    print(f"{data_title(data)}, {size}: all kernels {rows['torch'].sum() / rows['sparloom'].sum():.2f} times as fast as PyTorch's, from {ratio.min():.2f} ({ratio.idxmin()}) to {ratio.max():.2f} ({ratio.idxmax()}).")
'''),
    ]
    written("ragged_schedules", cells)


NUMBERS = '''    ("encoder layer, 24 batches: over padded PyTorch", "bench_ragged", "encoder/over_padded", 1.60),
    ("encoder layer: over the best peer of each case", "bench_ragged", "encoder/over_best_peer", None),
    ("multi-head attention: over length-sorted micro-batches", "bench_ragged", "mha/over_microbatch", 1.37),
    ("products of variable size: over a loop of torch.mm", "bench_ragged", "vgemm/over_loop", None),
    ("products by a triangle: over BLAS", "bench_ragged", "trmm/over_blas", None),
    ("masked attention, RACE: over computing all", "bench_ragged", "causal/over_unmasked", None),
    ("prelude, share of a layer", "bench_ragged", "prelude_share", None),
    ("partial padding of the paper, batches of 32: computed in vain", "eval_ragged", "padding/batch_32", 0.035),
    ("our schedule, batches of 32: computed in vain", "eval_ragged", "padding_own/batch_32", None),
    ("activations, batches of 64: padded over what our layer keeps", "eval_ragged", "memory/dense_over_own", None),
'''


def index():
    path = ROOT / "notebooks" / "index.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "numbers += [" in cell.source and "bench_ragged" not in cell.source:
            mark = '    ("trees on GEMM, mean efficiency out of fold"'
            assert mark in cell.source
            cell.source = cell.source.replace(mark, NUMBERS + mark)
    nbformat.write(notebook, path)
    subprocess.run([sys.executable, "-c", EXECUTE, str(path)], check=True, cwd=path.parent)
    print("written", path)


for make in (encoder, products, overheads, schedules):
    run = "bench_ragged" if make in (encoder, products) else "eval_ragged"
    if METRICS[run] or WRITE_ONLY:
        make()
    else:
        print("no results of", run, "yet:", make.__name__, "is left as it is")
if INDEX:
    index()
