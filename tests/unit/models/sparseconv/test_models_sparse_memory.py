"""The advice to the allocator."""

from sparloom.models import retain_memory


def test_allocator_settings_can_be_set_twice() -> None:
    assert retain_memory() == retain_memory()
