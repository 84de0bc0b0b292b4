"""Operations on one sparse matrix: which kernel runs is decided by measurement, checked, and remembered."""

from sparloom.tuning.sparse.calls import csr_attention, prepare, sddmm, spmm
from sparloom.tuning.sparse.contest import Contest, CsrChoice, CsrPlan
from sparloom.tuning.sparse.cpu_place import CpuPlace
from sparloom.tuning.sparse.cuda_place import CudaPlace
from sparloom.tuning.sparse.cuda_rivals import CUDA_LIBRARIES
from sparloom.tuning.sparse.decide import CsrDecider, CsrPolicy
from sparloom.tuning.sparse.estimate import CsrEstimate
from sparloom.tuning.sparse.place import Place
from sparloom.tuning.sparse.prepared import Prepared
from sparloom.tuning.sparse.probe_log import ProbeLog
from sparloom.tuning.sparse.proposals import SHORTLISTS, Proposals
from sparloom.tuning.sparse.rivals import LIBRARIES, Library, Product, gathered_pieces
from sparloom.tuning.sparse.sample import Sample, sample_rows
from sparloom.tuning.sparse.shortlist import CsrCostModel
from sparloom.tuning.sparse.switches import CudaSwitches, Switches

__all__ = ["CUDA_LIBRARIES", "LIBRARIES", "SHORTLISTS", "Contest", "CpuPlace", "CsrChoice", "CsrCostModel",
           "CsrDecider", "CsrEstimate", "CsrPlan", "CsrPolicy", "CudaPlace", "CudaSwitches", "Library", "Place",
           "Prepared", "ProbeLog", "Product", "Proposals", "Sample", "Switches", "csr_attention", "gathered_pieces",
           "prepare", "sample_rows", "sddmm", "spmm"]
