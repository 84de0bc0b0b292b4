"""The advice to the allocator."""

from sparloom.models import retain_memory


def test_advice_to_the_allocator_can_be_given_twice() -> None:
    assert retain_memory() == retain_memory()
