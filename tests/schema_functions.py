"""Functions with the schema they should get. test_schema.py loads this file twice: as it
stands and with postponed annotations, so every row holds in both worlds."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import re
import typing
import uuid
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import (
    Annotated,
    Any,
    Dict,
    Generic,
    List,
    Literal,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
    Union,
)

try:  # comes with jsonschema below Python 3.13, where typing itself has all of them
    import typing_extensions
except ImportError:
    typing_extensions = typing
NotRequired, ReadOnly, Required = (
    getattr(typing_extensions, name) for name in ("NotRequired", "ReadOnly", "Required")
)

ROWS = []  # (function, required names, properties, further expectations)


def expect(required="", /, **properties):
    def register(fn):
        name = properties.pop("_name", None)
        ROWS.append((fn, required.split(), properties, name, properties.pop("_defs", {})))
        return fn

    return register


INT, NUM, STR, BOOL, NULL = (
    {"type": t} for t in ("integer", "number", "string", "boolean", "null")
)
ANY = {}


def arr(items=ANY, **more):
    return {"type": "array", "items": items, **more}


def obj(required="", /, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def null_or(*names):
    return {"type": [*names, "null"]}


def ref(name, **more):
    return {"$ref": f"#/$defs/{name}", **more}


# --- scalars, unions ---


@expect("a b c d", a=INT, b=NUM, c=STR, d=BOOL)
def four_scalars(a: int, b: float, c: str, d: bool): ...


@expect()
def nothing(): ...


@expect("n", n=null_or("integer"))
def optional_without_default(n: Optional[int]): ...


@expect(n={**null_or("integer"), "default": None})
def optional_with_default(n: Optional[int] = None): ...


@expect(n={**null_or("string"), "default": None})
def pipe_optional(n: str | None = None): ...


@expect("v", v={"type": ["integer", "string"]})
def two_scalars(v: Union[int, str]): ...


@expect("v", v={"type": ["number", "boolean", "null"]})
def three_scalars(v: Union[float, bool, None]): ...


@expect("v", v=STR)
def same_json_type_once(v: Union[str, pathlib.Path]): ...


@expect("v", v={"anyOf": [arr(INT), STR, NULL]})
def union_with_list(v: list[int] | str | None): ...


@expect("v", v={"anyOf": [arr(INT), NULL]})
def optional_list(v: Optional[List[int]]): ...


@expect("v", v={"anyOf": [{"type": "string", "enum": ["auto"]}, INT]})
def literal_or_int(v: Union[Literal["auto"], int]): ...


@expect("v", v=ANY)
def union_with_any(v: Union[Any, None]): ...


@expect("v", v=NULL)
def only_none(v: None): ...


# --- Literal and Enum ---


class Unit(enum.Enum):
    """Units."""

    celsius = "C"
    fahrenheit = "F"


class Bits(enum.IntEnum):
    four = 4
    eight = 8


class Mixed(enum.Enum):
    off = False
    one = 1
    name_ = "n"
    nothing = None


class Text(str, enum.Enum):
    a = "x"
    b = "y"


class Pair(enum.Enum):
    low = (0, 1)
    high = (2, 3)


@expect(u={"type": "string", "enum": ["C", "F"], "default": "C"})
def literal_text(u: Literal["C", "F"] = "C"): ...


@expect("b", b={"type": "integer", "enum": [4, 8]})
def literal_int(b: Literal[4, 8]): ...


@expect("b", b={"type": ["string", "integer", "boolean"], "enum": ["auto", 1, True]})
def literal_mixed(b: Literal["auto", 1, True]): ...


@expect("b", b={"type": ["string", "null"], "enum": ["a", None]})
def literal_none(b: Literal["a", None]): ...


@expect("b", b={"type": ["string", "null"], "enum": ["a", "b", None]})
def optional_literal(b: Optional[Literal["a", "b"]]): ...


@expect("b", b={"type": "integer", "enum": [4]})
def literal_of_enum_member(b: Literal[Bits.four]): ...


@expect("b c", b={"type": "string", "enum": ["C", "F"]}, c={"type": "integer", "enum": [4, 8]})
def enums(b: Unit, c: Bits): ...


@expect(
    b={"type": "string", "enum": ["C", "F"], "default": "F"},
    c={"type": "integer", "enum": [4, 8], "default": 8},
    d={"type": "string", "enum": ["x", "y"], "default": "y"},
)
def enum_defaults(b: Unit = Unit.fahrenheit, c: Bits = Bits.eight, d: Text = Text.b): ...


@expect("b", b={"type": ["boolean", "integer", "string", "null"], "enum": [False, 1, "n", None]})
def enum_mixed(b: Mixed): ...


@expect("b", b={"type": "array", "enum": [[0, 1], [2, 3]]})
def enum_of_tuples(b: Pair): ...


@expect(b={"type": ["string", "null"], "enum": ["C", "F", None], "default": None})
def enum_optional(b: Optional[Unit] = None): ...


# --- containers ---


@expect("a b c d", a=arr(INT), b=arr(STR), c=arr(), d=arr())
def lists(a: list[int], b: List[str], c: list, d: List): ...


@expect(
    "a b c",
    a={"type": "array", "prefixItems": [INT, STR], "minItems": 2, "maxItems": 2},
    b={"type": "array", "minItems": 0, "maxItems": 0},
    c={"type": "array", "prefixItems": [STR], "minItems": 1, "maxItems": 1},
)
def fixed_tuples(a: tuple[int, str], b: tuple[()], c: Tuple[str]): ...


@expect("a b c", a=arr(INT), b=arr(), c=arr(STR))
def open_tuples(a: tuple[int, ...], b: tuple, c: Tuple[str, ...]): ...


@expect(
    "a b c", a=arr(STR, uniqueItems=True), b=arr(INT, uniqueItems=True), c=arr(uniqueItems=True)
)
def sets(a: set[str], b: frozenset[int], c: typing.AbstractSet): ...


@expect(
    "a b c d",
    a={"type": "object", "additionalProperties": NUM},
    b={"type": "object"},
    c={"type": "object"},
    d={"type": "object"},
)
def dicts(a: dict[str, float], b: dict, c: Dict[str, Any], d: Dict): ...


@expect(
    "a b",
    a={"type": "object", "additionalProperties": STR, "propertyNames": {"pattern": "^-?[0-9]+$"}},
    b={
        "type": "object",
        "additionalProperties": INT,
        "propertyNames": {"type": "string", "enum": ["C", "F"]},
    },
)
def dict_keys(a: dict[int, str], b: dict[Unit, int]): ...


@expect("v", v=arr({"type": "object", "additionalProperties": arr(null_or("number"))}))
def nested(v: list[dict[str, list[Optional[float]]]]): ...


@expect(
    "a b c d e",
    a=arr(INT),
    b={"type": "object", "additionalProperties": INT},
    c=arr(STR),
    d=arr(INT),
    e={"type": "object", "additionalProperties": arr()},
)
def abstract(
    a: Sequence[int],
    b: Mapping[str, int],
    c: Iterable[str],
    d: typing.Sequence[int],
    e: MutableMapping[str, list],
): ...


@expect("a b", a=arr(INT), b={"type": "object", "additionalProperties": INT})
def from_collections(a: collections.deque[int], b: collections.OrderedDict[str, int]): ...


# --- records ---


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Filter(TypedDict, total=False):
    field: Required[str]
    value: Annotated[int, "上限"]


class Sequel(Movie, total=False):
    of: "Movie"
    note: ReadOnly[str]


class Shelf(typing_extensions.TypedDict, total=False):
    tag: Required[str]
    size: Optional[int]


@dataclasses.dataclass
class Optimizer:
    """How to train.

    Attributes:
        lr: Learning rate
    """

    lr: float
    name: Literal["adam", "sgd"] = "adam"
    betas: tuple[float, float] = (0.9, 0.99)
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Config:
    optimizer: Optimizer
    steps: int = 10
    hidden: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Tree:
    value: int
    children: "list[Tree]" = dataclasses.field(default_factory=list)
    parent: Optional["Tree"] = None


Old = collections.namedtuple("Old", "a b", defaults=[1])
Labelled = collections.namedtuple("Labelled", "cls self_")
T = typing.TypeVar("T")


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    first: Optional[T] = None


OPTIMIZER = obj(
    "lr",
    lr={**NUM, "description": "Learning rate"},
    name={"type": "string", "enum": ["adam", "sgd"], "default": "adam"},
    betas={
        "type": "array",
        "prefixItems": [NUM, NUM],
        "minItems": 2,
        "maxItems": 2,
        "default": [0.9, 0.99],
    },
    tags=arr(STR),
) | {"description": "How to train."}
TREE = obj(
    "value",
    value=INT,
    children=arr(ref("Tree")),
    parent={"anyOf": [ref("Tree"), NULL], "default": None},
)


@expect("p", p=ref("Point"), _defs={"Point": obj("x", x=NUM, y={**NUM, "default": 0.0})})
def named_tuple(p: Point): ...


@expect("p", p=ref("Old"), _defs={"Old": obj("a", a=ANY, b={"default": 1})})
def plain_namedtuple(p: Old): ...


@expect(
    p=ref("Point", default={"x": 1, "y": 2}),
    _defs={"Point": obj("x", x=NUM, y={**NUM, "default": 0.0})},
)
def named_tuple_default(p: Point = Point(1, 2)): ...


@expect("m", m=ref("Movie"), _defs={"Movie": obj("title", title=STR, year=INT)})
def typed_dict(m: Movie): ...


@expect(
    "f",
    f=ref("Filter"),
    _defs={"Filter": obj("field", field=STR, value={**INT, "description": "上限"})},
)
def typed_dict_partial(f: Filter): ...


@expect(
    "s",
    s=ref("Sequel"),
    _defs={
        "Movie": obj("title", title=STR, year=INT),
        "Sequel": obj("title", title=STR, year=INT, of=ref("Movie"), note=STR),
    },
)
def typed_dict_inherited(s: Sequel): ...


@expect("s", s=ref("Shelf"), _defs={"Shelf": obj("tag", tag=STR, size=null_or("integer"))})
def typed_dict_of_typing_extensions(s: Shelf): ...


@expect("o", o=ref("Optimizer"), _defs={"Optimizer": OPTIMIZER})
def dataclass_param(o: Optimizer): ...


@expect(
    "c",
    c=ref("Config"),
    _defs={
        "Optimizer": OPTIMIZER,
        "Config": obj("optimizer", optimizer=ref("Optimizer"), steps={**INT, "default": 10}),
    },
)
def dataclass_nested(c: Config): ...


@expect("t", t=ref("Tree"), _defs={"Tree": TREE})
def dataclass_recursive(t: Tree): ...


@expect(
    t={"anyOf": [arr(ref("Tree")), NULL], "default": None, "description": "Trees"},
    _defs={"Tree": TREE},
)
def dataclass_inside(t: Annotated[Optional[list[Tree]], "Trees"] = None): ...


@expect(
    "p",
    p=ref("Page"),
    _defs={"Page": obj("items", items=arr(INT), first={**null_or("integer"), "default": None})},
)
def generic_dataclass(p: Page[int]): ...


# --- Annotated ---


class Ge(NamedTuple):
    ge: int


class Limits(NamedTuple):
    ge: int
    lt: int
    multiple_of: int


class Size(NamedTuple):
    min_length: int
    max_length: int


@dataclasses.dataclass
class FieldLike:
    description: str
    metadata: list


@expect("n", n={**INT, "description": "How many"})
def annotated(n: Annotated[int, "How many"]): ...


@expect("n", n={**INT, "description": "From the docstring"})
def annotated_and_docstring(n: Annotated[int, "From Annotated"]):
    """Do.

    Args:
        n: From the docstring
    """


@expect(n={**null_or("integer"), "description": "How many", "default": None})
def annotated_inside_optional(n: Optional[Annotated[int, "How many"]] = None): ...


@expect("n", n={**INT, "description": "Outer", "minimum": 1})
def annotated_twice(n: Annotated[Annotated[int, Ge(1)], "Outer"]): ...


@expect("n", n={**INT, "description": "Count", "minimum": 1})
def annotated_constraint(n: Annotated[int, "Count", Ge(1)]): ...


@expect("n", n={**INT, "description": "Count", "minimum": 2})
def annotated_field_object(n: Annotated[int, FieldLike("Count", [Ge(2)])]): ...


@expect("s", s={**STR, "pattern": "^[a-z]+$"})
def annotated_pattern(s: Annotated[str, re.compile("^[a-z]+$")]): ...


@expect("n", n=NUM)
def annotated_endless(n: Annotated[float, Ge(float("-inf")), Ge("a"), Ge(None)]): ...


@expect(
    "n v",
    n={**INT, "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 3},
    v=arr(STR, minItems=1, maxItems=2),
)
def annotated_many(n: Annotated[int, Limits(0, 9, 3)], v: Annotated[list[str], Size(1, 2)]): ...


@expect("s", s={**null_or("string"), "minLength": 1, "maxLength": 2})
def annotated_optional_size(s: Annotated[Optional[str], Size(1, 2)]): ...


@expect(n={**INT, "minimum": 1})
def default_against_constraint(n: Annotated[int, Ge(1)] = 0): ...


@expect("v", v=arr({**STR, "description": "One tag"}))
def annotated_item(v: list[Annotated[str, "One tag"]]): ...


# --- other scalars ---


@expect(
    "d t m",
    d={**STR, "format": "date"},
    t={**STR, "format": "date-time"},
    m={**STR, "format": "time"},
)
def dates(d: datetime.date, t: datetime.datetime, m: datetime.time): ...


@expect("u p n", u={**STR, "format": "uuid"}, p=STR, n={"type": ["number", "string"]})
def string_like(u: uuid.UUID, p: pathlib.Path, n: decimal.Decimal): ...


@expect(d={"type": ["string", "null"], "format": "date", "default": None})
def optional_date(d: Optional[datetime.date] = None): ...


@expect("s b c", s={**NUM, "description": "秒"}, b={**STR, "contentEncoding": "base16"}, c=STR)
def rarer_scalars(s: datetime.timedelta, b: bytes, c: complex): ...


class Tag(str):
    pass


UserId = typing.NewType("UserId", int)
Words = typing.NewType("Words", List[UserId])
Bound = typing.TypeVar("Bound", bound=int)
Choice = typing.TypeVar("Choice", int, str)


@expect("a b c d", a=INT, b=arr(INT), c=STR, d=INT)
def new_types(a: UserId, b: Words, c: Tag, d: "UserId"): ...


@expect("a b c", a=ANY, b=INT, c={"type": ["integer", "string"]})
def type_variables(a: T, b: Bound, c: Choice): ...


@expect("a b c", a=ANY, b=ANY, c=ANY)
def open_types(a: Any, b: object, c): ...


@expect("a b", a=INT, b=arr(ref("Tree")), _defs={"Tree": TREE})
def strings(a: "int", b: 'list["Tree"]'): ...


# --- defaults ---


@expect(
    a={**INT, "default": 3},
    b={**NUM, "default": 0.5},
    c={**STR, "default": ""},
    d={**BOOL, "default": False},
    e={"default": 5},
)
def plain_defaults(a: int = 3, b: float = 0.5, c: str = "", d: bool = False, e=5): ...


@expect(a=arr(INT, default=[1]), b={"type": "object", "default": {"k": [1]}})
def mutable_defaults(a: list[int] = [1], b: dict = {"k": [1]}): ...


@expect(a=ANY, b=NUM, c=NUM, d=arr(NUM), e=STR, f=INT)
def defaults_beyond_json(
    a=object(),
    b: float = float("inf"),
    c: float = float("nan"),
    d: list[float] = [float("nan")],
    e: str = "\ud800",
    f: int = 10**5000,
): ...


@expect(
    a=arr(INT, default=[1, 2]),
    b={**STR, "format": "date", "default": "2026-11-30"},
    c=arr(STR, uniqueItems=True, default=["a", "b"]),
    d={"type": ["number", "string"], "default": "0.10"},
    e={**STR, "default": "notes/a.md"},
    f={**NUM, "description": "秒", "default": 90.0},
)
def converted_defaults(
    a: tuple[int, ...] = (1, 2),
    b: datetime.date = datetime.date(2026, 11, 30),
    c: set[str] = frozenset({"b", "a"}),
    d: decimal.Decimal = decimal.Decimal("0.10"),
    e: pathlib.PurePath = pathlib.PurePosixPath("notes/a.md"),
    f: datetime.timedelta = datetime.timedelta(seconds=90),
): ...


@expect(
    n={**null_or("integer"), "default": None},
    v={"anyOf": [arr(INT), NULL], "default": None},
    w={"default": None},
)
def none_for_plain_type(n: int = None, v: list[int] = None, w=None): ...


@expect(n=INT, s=STR, b=INT)
def default_of_wrong_type(n: int = "auto", s: str = 5, b: int = True): ...


@expect(
    o=ref("Optimizer", default={"lr": 0.1, "name": "adam", "betas": [0.9, 0.99], "tags": []}),
    _defs={"Optimizer": OPTIMIZER},
)
def dataclass_default(o: Optimizer = Optimizer(0.1)): ...


# --- kinds of parameters and callables ---


@expect("a b", a=INT, b=STR, c={**INT, "default": 1})
def keyword_only(a: int, *, b: str, c: int = 1): ...


@expect("b a", b=INT, a=STR)
def positional_only(b: int, /, a: str): ...


@expect("a c", a=INT, c=INT)
def variadic(a: int, *args: int, c: int, **kwargs: str): ...


class Tools:
    """A box of tools."""

    class Mode(enum.Enum):
        on = "on"

    def method(self, a: int, mode: Mode = Mode.on):
        """Method.

        Args:
            a: Number
        """

    @classmethod
    def class_method(cls, a: int): ...

    @staticmethod
    def static_method(a: int): ...

    def __call__(self, a: int):
        """Call it."""


NUMBER = {**INT, "description": "Number"}
MODE = {"type": "string", "enum": ["on"], "default": "on"}
expect("a", a=NUMBER, mode=MODE, _name="method")(Tools().method)
expect("a", a=INT)(Tools.class_method)
expect("a", a=INT)(Tools.static_method)
expect("a", a=INT)(Tools().static_method)
expect("a", a=INT, _name="Tools")(Tools())


class Plain:
    def method(self, a: int): ...


expect("a", a=INT, _name="method")(Plain.method)


@expect("cls x", cls=STR, x=INT)
def cls_as_an_ordinary_name(cls: str, x: int): ...


@expect("c", c=ref("Labelled"), _defs={"Labelled": obj("cls self_", cls=ANY, self_=ANY)})
def cls_as_a_field(c: Labelled): ...


def base(a: int, b: str = "x", c: float = 1.0):
    """Base."""


expect("a", a=INT, b={**STR, "default": "y"}, c={**NUM, "default": 1.0}, _name="base")(
    functools.partial(base, b="y")
)
expect(b={**STR, "default": "x"}, c={**NUM, "default": 1.0}, _name="base")(
    functools.partial(base, 1)
)
expect(c={**NUM, "default": 1.0}, _name="base")(functools.partial(functools.partial(base, 1), "z"))
expect(a={**INT, "default": 5}, b={**STR, "default": "x"}, c={**NUM, "default": 1.0})(
    functools.partial(base, a=5)
)


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@expect("a", a=NUMBER, _name="wrapped")
@logged
@logged
def wrapped(a: int):
    """Do.

    Args:
        a: Number
    """


@expect("a", a=INT, _name="cached")
@functools.lru_cache(maxsize=None)
def cached(a: int): ...


@expect("a", a=INT)
async def asynchronous(a: int): ...


@expect("a", a=INT)
def generator(a: int) -> typing.Iterator[int]:
    yield a


@expect("a", a=INT)
def strange_return(a: int) -> "NoSuchThing": ...


expect("lr", **OPTIMIZER["properties"], _name="Optimizer")(Optimizer)
expect("obj", obj=ANY, _name="len")(len)
