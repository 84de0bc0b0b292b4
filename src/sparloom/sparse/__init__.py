"""Sparse matrices: patterns, files, corpora, orders and statistics.

A `Pattern` or `SparseMatrix` (pattern.py) is read from a file (matrix_files.py), which is unpacked (archive.py) and, as
MatrixMarket text, parsed (market.py). Corpora name many matrices (corpus.py): files of a folder, the SuiteSparse
collection (suitesparse.py, download.py), or generated ones (synthetic.py, generators/). Statistics describe patterns
(features.py), also as a tiled schedule visits them (walks.py).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "corpus": (
        "Corpus", "FolderCorpus", "JoinedCorpus", "MatrixEntry", "Part", "ROW_BINS", "Role", "family_role",
        "is_matrix_file", "row_bin", "stratified_choice",
    ),
    "download": ("RetryPolicy",),
    "features": ("STATISTICS", "locality_order", "reorder", "signed_logarithm", "statistics"),
    "matrix_files": ("MATRIX_ENDINGS", "matrix_stem", "read_matrix", "write_matrix"),
    "pattern": ("BFLOAT16", "Pattern", "SparseMatrix"),
    "suitesparse": ("SuiteSparseCorpus",),
    "synthetic": (
        "ANCHORS", "AUTOSAGE_GRAPHS", "AnchorCorpus", "AutosageCorpus", "REORDERED_ANCHORS", "SYNTHETIC_ROLES",
        "SyntheticCorpus"
    ),
    "walks": (
        "PRIVATE_BYTES", "SHARED_BYTES", "WALK", "WALKS", "WALK_STATISTICS", "WalkGrid", "WalkStatistics",
        "select_walks", "walk_statistics"),
})
