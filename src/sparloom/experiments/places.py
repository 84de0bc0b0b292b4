"""Where the data of a corpus lie under the data folder."""

from pathlib import Path

from sparloom.sparse import Corpus

__all__ = ["corpus_name", "data_folder"]


def corpus_name(corpus: Corpus) -> str:
    """Name a kind of corpus as conf/corpus does: SuiteSparseCorpus is "suitesparse"."""
    return type(corpus).__name__.removesuffix("Corpus").lower()


def data_folder(data: str, corpus: Corpus) -> Path:
    """Folder of samples, inputs and statistics: `data` for the real matrices, in it one for every other corpus."""
    name = corpus_name(corpus)
    return Path(data) if name == "suitesparse" else Path(data) / name
