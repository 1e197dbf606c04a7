"""Functions whose annotations cannot all be evaluated at module level."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, NamedTuple, Optional

if TYPE_CHECKING:
    from decimal import Decimal


def good(n: int): ...


def misspelt(n: int, city: Citty, days: int): ...  # noqa: F821


def for_type_checkers(amount: Decimal): ...


def bad_return(n: int) -> Citty: ...  # noqa: F821


def local_class_unseen():
    @dataclasses.dataclass
    class Local:
        n: int

    def tool(item: Local): ...

    return tool


def local_class_in_closure():
    @dataclasses.dataclass
    class Local:
        n: int
        again: Optional[Local] = None

    def tool(item: Local) -> str:
        return str(Local(item.n))

    return tool


@dataclasses.dataclass
class Broken:
    fine: int
    odd: Nowhere  # noqa: F821


def broken_field(b: Broken): ...


@dataclasses.dataclass
class Left:
    right: Optional[Right] = None


@dataclasses.dataclass
class Right:
    left: list[Left]


def mutual(a: Left, b: Annotated[Optional[Right], "右"] = None): ...


class Owner:
    class Mode(enum.Enum):
        fast = "fast"

    class Box(NamedTuple):
        w: int

    def method(self, mode: Mode, box: Box) -> Owner.Box: ...

    @classmethod
    def class_method(cls, mode: Mode, box: Box): ...

    def __call__(self, mode: Mode, box: Box): ...


class Heir(Owner): ...


@dataclasses.dataclass
class Crate:
    class Size(enum.Enum):
        small = "s"

    Sizes = list[Size]
    size: Size = Size.small
    sizes: Sizes = dataclasses.field(default_factory=list)


def nested_in_a_record(crate: Crate): ...
