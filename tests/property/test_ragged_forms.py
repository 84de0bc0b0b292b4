"""Round trips of ragged values of any lengths: padded with a mask, packed with cu_seqlens."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import InterpretedLibrary

from sparloom.ragged import Length, RaggedTensor, Structure, Tensor, dims

batch, row, head, inner = dims("batch row head inner")
batches = Length("batches")
lengths = Length("lengths", {batch: batches()})
quick = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck),
                 max_examples=60)
batches_of_lengths = st.lists(st.integers(0, 5), max_size=5)
storages = st.sampled_from([{}, {"padding": {row: 4}}, {"full": (row,)}])


def drawn(tensor, of):
    packed = np.random.default_rng(0).standard_normal(of.size(Tensor("x", tensor.axes)), dtype=np.float32)
    return RaggedTensor.from_packed(tensor, of, packed)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.cc
@settings(quick)
@given(counts=batches_of_lengths, storage=storages, wider=st.integers(0, 2))
def test_lengths_follow_from_the_mask(counts, storage, wider):
    tensor = Tensor("x", {batch: batches(), row: lengths(batch), head: 2, inner: 3}, **storage)
    made = drawn(tensor, Structure({lengths: counts}, InterpretedLibrary))
    padded, mask = made.to_padded(fill=np.nan)
    beyond = ((0, 0), (0, wider))
    padded, mask = np.pad(padded, (*beyond, (0, 0), (0, 0)), constant_values=np.nan), np.pad(mask, beyond)
    back = RaggedTensor.from_padded(tensor, None, padded, mask=mask)
    np.testing.assert_array_equal(back.structure.table(lengths), counts)
    np.testing.assert_array_equal(back.data, made.data)


@pytest.mark.cc
@settings(quick)
@given(counts=batches_of_lengths, storage=storages, flat=st.booleans())
def test_lengths_follow_from_cu_seqlens(counts, storage, flat):
    tensor = Tensor("x", {batch: batches(), row: lengths(batch), inner: 3}, **storage)
    made = drawn(tensor, Structure({lengths: counts}, InterpretedLibrary))
    packed, starts = made.to_packed()
    back = RaggedTensor.from_packed(tensor, None, packed.reshape(-1) if flat else packed, cu_seqlens=starts)
    np.testing.assert_array_equal(back.structure.table(lengths), counts)
    np.testing.assert_array_equal(back.data, made.data)


@settings(quick)
@given(counts=batches_of_lengths, changed=st.data())
def test_any_other_mask_is_refused(counts, changed):
    tensor = Tensor("x", {batch: batches(), row: lengths(batch)})
    of = Structure({lengths: counts}, InterpretedLibrary)
    padded, mask = drawn(tensor, of).to_padded()
    if mask.size:
        place = changed.draw(st.integers(0, mask.size - 1))
        mask.reshape(-1)[place] ^= True
        with pytest.raises(ValueError, match="tensor x from a mask"):
            RaggedTensor.from_padded(tensor, of, padded, mask=mask)
