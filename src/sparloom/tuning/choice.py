"""One way to compute a product of three matrices: what is decided, what is kept, what is executed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparloom.errors import SchemaError
from sparloom.fusion import Variant
from sparloom.space import Config
from sparloom.tuning.orders import ORDERS

__all__ = ["PairChoice"]


@dataclass(frozen=True)
class PairChoice:
    """Fused or not, in which tiles, in which order of iterations, by which variant of the kernels.

    Args:
        fused: otherwise loop two begins after loop one; then tiles and order are those of `unfused_schedule`.
        ct_size: most iterations of a coarse tile; 0 where nothing is fused.
        cache_bytes: of one thread, for the inspector; 0 where nothing is fused.
        order: of the iterations: natural, bandwidth, partition or metis, see `sparloom.fusion.inspector`.

    Raises:
        ValueError: an unknown order, no thread, or sizes that do not belong to it.
    """

    fused: bool
    ct_size: int
    cache_bytes: int
    order: str
    variant: Variant
    threads: int

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r} is not one of {', '.join(ORDERS)}")
        if self.threads < 1:
            raise ValueError(f"{self.threads} threads: give at least 1")
        if self.fused != (self.ct_size > 0) or self.fused != (self.cache_bytes > 0):
            raise ValueError(f"fused is {self.fused}, ct_size {self.ct_size} and cache_bytes {self.cache_bytes}: both "
                             f"are above 0 where loops are fused, else 0")
        if not self.fused and self.order != "natural":
            raise ValueError(f"order {self.order!r} of loops that are not fused: take natural")

    @classmethod
    def of(cls, config: Config, *, threads: int) -> "PairChoice":
        """Read a point of `sparloom.space.TileFusionSpace`."""
        variant = Variant(
            local=bool(config["local"]), stream=bool(config["stream"]), stream_first=bool(config["stream_first"]),
            prefetch_bytes=1024 * config["prefetch"])
        return cls(config["ct_size"] > 0, config["ct_size"], 1024 * config["cache"], config["order"], variant, threads)

    @property
    def key(self) -> str:
        """The point of the space as text, which `TileFusionSpace(...).parse` reads."""
        variant = self.variant
        numbers = {"local": int(variant.local), "stream": int(variant.stream),
                   "stream_first": int(variant.stream_first), "prefetch": variant.prefetch_bytes // 1024}
        values = {"ct_size": self.ct_size, "cache": self.cache_bytes // 1024, "order": self.order, **numbers}
        return ",".join(f"{name}={value}" for name, value in values.items())

    def to_json(self) -> dict[str, Any]:
        """Write as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PairChoice":
        """Read what `to_json` wrote.

        Raises:
            SchemaError: a field is missing, unknown or of another type.
        """
        variant = _typed(Variant, value.get("variant") if isinstance(value, Mapping) else None)
        return _typed(cls, {**value, "variant": variant})


def _typed(kind: type, value: Any) -> Any:
    """Fill a dataclass of plain values, whose types must be exactly those it declares."""
    names = {field.name: field.type for field in fields(kind)}
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise SchemaError(f"{kind.__name__} has the fields {', '.join(names)}, got {value!r}")
    for name, declared in names.items():
        if type(value[name]) is not declared:
            raise SchemaError(f"{name} of {kind.__name__} is {value[name]!r}: it must be of type {declared.__name__}")
    try:
        return kind(**value)
    except ValueError as error:
        raise SchemaError(str(error)) from error
