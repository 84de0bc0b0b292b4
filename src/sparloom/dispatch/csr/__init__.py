"""Operations on one sparse matrix: which kernel runs is decided by measurement, checked, and remembered."""

from sparloom.dispatch.csr.calls import csr_attention, prepare, sddmm, spmm
from sparloom.dispatch.csr.contest import Contest, CsrChoice, CsrPlan
from sparloom.dispatch.csr.cpu_place import CpuPlace
from sparloom.dispatch.csr.cuda_place import CudaPlace
from sparloom.dispatch.csr.cuda_rivals import CUDA_LIBRARIES
from sparloom.dispatch.csr.decide import CsrDecider, CsrPolicy
from sparloom.dispatch.csr.estimate import CsrEstimate
from sparloom.dispatch.csr.place import Place
from sparloom.dispatch.csr.prepared import Prepared
from sparloom.dispatch.csr.probe_log import ProbeLog
from sparloom.dispatch.csr.proposals import SHORTLISTS, Proposals
from sparloom.dispatch.csr.rivals import LIBRARIES, Library, Product, gathered_pieces
from sparloom.dispatch.csr.sample import Sample, sample_rows
from sparloom.dispatch.csr.shortlist import CsrCostModel
from sparloom.dispatch.csr.switches import CudaSwitches, Switches

__all__ = ["CUDA_LIBRARIES", "LIBRARIES", "SHORTLISTS", "Contest", "CpuPlace", "CsrChoice", "CsrCostModel",
           "CsrDecider", "CsrEstimate", "CsrPlan", "CsrPolicy", "CudaPlace", "CudaSwitches", "Library", "Place",
           "Prepared", "ProbeLog", "Product", "Proposals", "Sample", "Switches", "csr_attention", "gathered_pieces",
           "prepare", "sample_rows", "sddmm", "spmm"]
