"""Functions with the schema they should get. test_schema.py loads this file twice: as it
stands and with postponed annotations, so every row holds in both worlds."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import ipaddress
import os
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

ROWS = []  # (function, required names, properties, name, definitions, description)


def expect(required="", /, *, _name=None, _defs={}, _doc=None, **properties):
    def register(fn):
        ROWS.append((fn, required.split(), properties, _name, _defs, _doc))
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


@expect("s", s=STR)
def literal_string(s: typing_extensions.LiteralString): ...


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
    "a c",
    a={"type": "array", "prefixItems": [INT, STR], "minItems": 2, "maxItems": 2},
    c={"type": "array", "prefixItems": [STR], "minItems": 1, "maxItems": 1},
)
def fixed_tuples(a: tuple[int, str], c: Tuple[str]): ...


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


INTS = {"type": "object", "additionalProperties": INT}


@expect("a b c d e", a=arr(INT), b=INTS, c=INTS, d=INTS, e={"type": "object"})
def from_collections(
    a: collections.deque[int],
    b: collections.OrderedDict[str, int],
    c: collections.defaultdict[str, int],
    d: typing.DefaultDict[str, int],
    e: collections.defaultdict,
): ...


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


@expect(
    "a v n",
    a=STR,
    v={**STR, "format": "ipv4"},
    n={**STR, "format": "ipv6"},
    f={**STR, "default": "1/3"},
)
def text_like(
    a: Union[str, os.PathLike],
    v: ipaddress.IPv4Address,
    n: ipaddress.IPv6Address,
    f: fractions.Fraction = fractions.Fraction(1, 3),
): ...


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

    Modes = list[Mode]

    def list(self, modes: Modes): ...

    def method(self, a: int, mode: Mode = Mode.on):
        """Method.

        Args:
            a: Number
        """

    @classmethod
    def class_method(cls, a: int, mode: Mode = Mode.on): ...

    @staticmethod
    def static_method(a: int): ...

    def __call__(self, a: int, mode: Mode = Mode.on):
        """Call it."""


class MoreTools(Tools): ...


NUMBER = {**INT, "description": "Number"}
MODE = {"type": "string", "enum": ["on"], "default": "on"}
expect("a", a=NUMBER, mode=MODE, _name="method")(Tools().method)
expect("a", a=NUMBER, mode=MODE, _name="method")(MoreTools().method)
expect("modes", modes=arr({"type": "string", "enum": ["on"]}), _name="list")(Tools().list)
expect(a={**NUMBER, "default": 1}, mode=MODE, _name="method")(
    functools.partial(Tools().method, a=1)
)
expect("a", a=INT, mode=MODE)(Tools.class_method)
expect("a", a=INT)(Tools.static_method)
expect("a", a=INT)(Tools().static_method)
expect("a", a=INT, mode=MODE, _name="Tools")(Tools())


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


# --- the feature table of the reference (section 1): rows not met above, named as there ---


def text(words, **schema):
    return {**schema, "description": words}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Spot:
    x: float
    y: float = 0.0


SPOT = obj("x", x=NUM, y={**NUM, "default": 0.0})


@expect(
    "i f s b",
    _doc="Four.",
    i=text("an int", **INT),
    f=text("a float", **NUM),
    s=text("a str", **STR),
    b=text("a bool", **BOOL),
)
def basic_four(i: int, f: float, s: str, b: bool):
    """Four.

    Args:
        i: an int
        f: a float
        s: a str
        b: a bool
    """


@expect(_doc="Nothing.")
def no_params():
    """Nothing."""


@expect("b", b={"type": ["string", "null"], "enum": ["a", "b", None]})
def optional_literal_by_pipe(b: Literal["a", "b"] | None): ...


@expect(
    a={**null_or("integer"), "description": "one", "default": None},
    b={**null_or("string"), "description": "two", "default": None},
    c={"anyOf": [arr(INT), NULL], "description": "three", "default": None},
    d={"anyOf": [ref("Spot"), NULL], "description": "four", "default": None},
    _defs={"Spot": SPOT},
)
def annotated_inside_optionals(
    a: Optional[Annotated[int, "one"]] = None,
    b: Annotated[str, "two"] | None = None,
    c: Optional[Annotated[list[int], "three"]] = None,
    d: Annotated[Spot, "four"] | None = None,
): ...


@expect(v=arr({"type": "object"}, default=[{"a": [1]}]))
def default_mutable(v: list[dict] = [{"a": [1]}]): ...


@expect(a=ANY, b=NUM, c=NUM, d={"type": "object"}, e=ANY)
def default_not_json(
    a=object(),
    b: float = float("inf"),
    c: float = float("nan"),
    d: dict = {"x": float("inf")},
    e: Any = len,
): ...


@expect(
    a={"type": "array", "prefixItems": [INT, INT], "minItems": 2, "maxItems": 2, "default": [1, 2]},
    b={**STR, "format": "date", "default": "2026-01-02"},
    c=arr(INT, uniqueItems=True, default=[9, 10]),
    d={**STR, "format": "date-time", "default": "2024-01-01T00:00:00"},
)
def default_containers(
    a: tuple[int, int] = (1, 2),
    b: datetime.date = datetime.date(2026, 1, 2),
    c: frozenset[int] = frozenset({10, 9}),
    d: datetime.datetime = datetime.datetime(2024, 1, 1),
): ...


@expect(
    s={**null_or("string"), "default": None},
    e={"type": ["string", "null"], "enum": ["red", "blue", None], "default": None},
    p={"anyOf": [ref("Spot"), NULL], "default": None},
    x={**null_or("integer"), "description": "text", "default": None},
    _defs={"Spot": SPOT},
)
def none_default_plain_types(
    s: "str" = None, e: Colour = None, p: Spot = None, x: Annotated[int, "text"] = None
): ...


class Service:
    """Service."""

    def method(self, a: int):
        """Method.

        Args:
            a: Number
        """

    @classmethod
    def class_method(cls, a: int):
        """Class.

        Args:
            a: Number
        """

    @staticmethod
    def static_method(a: int):
        """Static."""

    async def later(self, a: int):
        """Later."""

    def with_rest(self, a: int, *rest: str, **more: float):
        """Rest."""

    def partly(self, a: int, b: str, c: float = 1.0):
        """Partly."""

    done = functools.partialmethod(partly, 1)


expect("a", a=NUMBER, _name="method", _doc="Method.")(Service().method)
expect("a", a=NUMBER, _name="method", _doc="Method.")(Service.method)
expect("a", a=NUMBER, _name="class_method", _doc="Class.")(Service.class_method)
expect("a", a=NUMBER, _name="class_method", _doc="Class.")(Service().class_method)
expect("a", a=INT, _name="static_method", _doc="Static.")(Service.static_method)
expect("a", a=INT, _name="static_method", _doc="Static.")(vars(Service)["static_method"])
expect("a", a=INT, _name="later", _doc="Later.")(Service().later)
expect("a", a=INT, _name="with_rest", _doc="Rest.")(Service().with_rest)
expect("a", a=INT, _name="with_rest", _doc="Rest.")(Service.with_rest)


def described(a: int, b: str, k: float = 1.0):
    """Base.

    Args:
        a: aa
        b: bb
        k: kk
    """


A, B, K = text("aa", **INT), text("bb", **STR), text("kk", **NUM)
expect("a b", a=A, b=B, k={**K, "default": 2.0}, _name="described", _doc="Base.")(
    functools.partial(described, k=2.0)
)
expect("b", b=B, k={**K, "default": 1.0}, _name="described")(functools.partial(described, 1))
expect("a b", a=A, b=B, k={**K, "default": 1.0}, _name="described")(logged(described))
expect("a b", a=A, b=B, k={**K, "default": 1.0}, _name="described")(functools.lru_cache(described))


@expect(
    "a",
    a=INT,
    b={"anyOf": [arr(ref("Spot")), NULL], "default": None},
    c=arr(ref("Spot"), default=[]),
    _defs={"Spot": SPOT},
)
def string_annotation(a: "int", b: "Optional[list[Spot]]" = None, c: List["Spot"] = []): ...


@expect("d", d=arr(ANY))
def type_var_inside(d: list[T]): ...


@expect("a", a=INT, _doc="")
def doc_none(a: int): ...


@expect(
    "city",
    _doc="Look up the weather.\n\nSecond paragraph with a colon: here.",
    city=text("The city, for example: Turku\nor Oulu: both fine.", **STR),
    unit=text('Unit. Defaults to "C".', **STR, default="C"),
    rows=text("Data.", type="object", default={}),
)
def doc_google_rich(city: str, unit: str = "C", rows: dict = {}):
    """Look up the weather.

    Second paragraph with a colon: here.

    Args:
        city (str): The city, for example: Turku
            or Oulu: both fine.
        unit (str, optional): Unit. Defaults to "C".
        rows (Dict[str, List[int]]): Data.

    Returns:
        dict: result: with colon

    Raises:
        ValueError: never.

    Example:
        >>> f("x")
    """


ONE, TWO = text("one", **INT), text("two", **INT)


@expect("a b", _doc="Do.", a=ONE, b=TWO)
def doc_google_no_blank(a: int, b: int):
    """Do.
    Args:
        a: one
        b: two
    Returns:
        int
    """


@expect("mode b", _doc="Do.", mode=text("One of:\n- fast: quick\n- slow: good", **STR), b=TWO)
def doc_google_bullets(mode: str, b: int):
    """Do.

    Args:
        mode: One of:
            - fast: quick
            - slow: good
        b: two
    """


@expect("mode b", _doc="Do.", mode=text("First.\n\nSecond: paragraph.", **STR), b=TWO)
def doc_google_paragraphs(mode: str, b: int):
    """Do.

    Args:
        mode: First.

            Second: paragraph.

        b: two

    """


@expect("a", _doc="Do.", a=ONE)
def doc_header_arguments(a: int):
    """Do.

    Arguments:
        a: one
    """


@expect("a", _doc="Do.\n\nMore.", a=ONE, b=text("two\nlines", **STR, default="x"))
def doc_numpy(a: int, b: str = "x"):
    """Do.

    More.

    Parameters
    ----------
    a : int
        one
    b : str, optional
        two
        lines

    Returns
    -------
    int
        x

    Raises
    ------
    ValueError
        y
    """


@expect("a b", _doc="Do.\n\nMore.", a=ONE, b=text("two\nlines", **STR))
def doc_rest(a: int, b: str):
    """Do.

    More.

    :param a: one
    :type a: int
    :param str b: two
        lines
    :return: x
    :raises ValueError: y
    """


CITY, DAYS = text("城市名，例如：北京", **STR), text("天数", **INT, default=1)


@expect("city", _doc="查询天气。", city=CITY, days=DAYS)
def doc_chinese(city: str, days: int = 1):
    """查询天气。

    参数：
        city：城市名，例如：北京
        days：天数
    返回：
        一段文字
    """


@expect("city", _doc="查询天气。", city=CITY, days=DAYS)
def doc_chinese_google(city: str, days: int = 1):
    """查询天气。

    Args:
        city：城市名，例如：北京
        days：天数

    Returns：
        文字
    """


@expect(
    "returns args raises note",
    _doc="Do.",
    returns=text("how many", **INT),
    args=text("text", **STR),
    raises=text("r", **INT),
    note=text("n", **STR),
)
def doc_names_like_sections(returns: int, args: str, raises: int, note: str):
    """Do.

    Args:
        returns: how many
        args: text
        raises: r
        note: n
    """


@expect("a b", _doc="Do.", a=ONE, b=INT)
def doc_extra_and_missing(a: int, b: int):
    """Do.

    Args:
        ghost: boo
        a: one
    """


@expect("a b", _doc="Do.", a=text("one\nmore", **INT), b=TWO)
def doc_tabs(a: int, b: int): ...


doc_tabs.__doc__ = "Do.\n\n\tArgs:\n\t\ta: one\n\t\t\tmore\n\t\tb: two\n"


@expect("a b", _doc="Do.", a=ONE, b=TWO)
def doc_space_before_colon(a: int, b: int):
    """Do.

    Args:
        a (int) : one
        b (int) : two
    """


@expect("a", _doc="Do.", a=ONE)
def doc_raises_before_args(a: int):
    """Do.

    Raises:
        ValueError: bad

    Note:
        Careful: it bites.

    Args:
        a: one
    """


@expect("a b", _doc="Do.", a=text("one", type="object"), b=text("two", **arr()))
def doc_nested_type(a: dict, b: list):
    """Do.

    Args:
        a (dict[str, tuple[int, str]]): one
        b (Optional[List[Tuple[int, (str)]]]): two
    """


@expect("u", u=text('unit (choices: ["C", "F"])', **STR))
def doc_choices(u: str):
    """Do.

    Args:
        u: unit (choices: ["C", "F"])
    """


# --- combinations, one kind after the other ---


@expect("v", v=arr(text("one", **null_or("integer"))))
def annotated_optional_in_list(v: list[Optional[Annotated[int, "one"]]]): ...


@expect("v", v={"type": "object", "additionalProperties": arr({**STR, "minLength": 1})})
def constraint_deep_inside(v: dict[str, list[Annotated[str, Size(1, None)]]]): ...


@expect("v", v={"anyOf": [arr({**INT, "minimum": 0}), NULL], "minItems": 1, "maxItems": 5})
def constraint_around_and_inside(
    v: Annotated[Optional[list[Annotated[int, Ge(0)]]], Size(1, 5)],
): ...


class Place(TypedDict):
    name: str
    at: NotRequired[Tuple[float, float]]


class Trip(TypedDict, total=False):
    """一次旅行。"""

    stops: Required[list[Place]]
    by: Optional[Literal["train", "bus"]]
    back: "Trip"


PLACE = obj(
    "name",
    name=STR,
    at={"type": "array", "prefixItems": [NUM, NUM], "minItems": 2, "maxItems": 2},
)
TRIP = text(
    "一次旅行。",
    **obj(
        "stops",
        stops=arr(ref("Place")),
        by={"type": ["string", "null"], "enum": ["train", "bus", None]},
        back=ref("Trip"),
    ),
)


@expect("t", t={"anyOf": [ref("Trip"), ref("Place")]}, _defs={"Place": PLACE, "Trip": TRIP})
def typed_dicts_in_a_union(t: Union[Trip, Place]): ...


@expect(
    "p q",
    p=ref("Page"),
    q=arr(ref("Page__")),
    _defs={
        "Page_": obj("items", items=arr(INT), first={**null_or("integer"), "default": None}),
        "Page": obj(
            "items",
            items=arr(ref("Page_")),
            first={"anyOf": [ref("Page_"), NULL], "default": None},
        ),
        "Page__": obj("items", items=arr(ANY), first={"default": None}),
    },
)
def generic_in_generic(p: Page[Page[int]], q: list[Page]): ...


U = typing.TypeVar("U")


@dataclasses.dataclass
class Ring(Generic[T, U]):
    here: dict[str, T]
    there: Annotated[U, "Other"]
    back: "Optional[Ring[U, T]]" = None

    class Kind(enum.Enum):
        a = "a"

    kind: Kind = Kind.a


def ring(name, here, there):
    return obj(
        "here there",
        here={"type": "object", "additionalProperties": here},
        there={**there, "description": "Other"},
        back={"anyOf": [ref(name), NULL], "default": None},
        kind={"type": "string", "enum": ["a"], "default": "a"},
    )


@expect(
    "r",
    r=ref("Ring"),
    _defs={"Ring": ring("Ring_", INT, STR), "Ring_": ring("Ring", STR, INT)},
)
def generic_that_contains_another_of_its_kind(r: Ring[int, str]): ...


JSON = Union[None, int, str, List["JSON"], Dict[str, "JSON"]]
Steps = list[Union[int, "Steps"]]
Even = Dict[str, List["Odd"]]
Odd = Union[int, "Even"]


def aliases_of_themselves(json: JSON, steps: Steps = [], even: Even = {}, odds: List[Odd] = []): ...


Score = typing.NewType("Score", float)
Grade = typing.NewType("Grade", Score)
Grades = Dict[str, List[Grade]]


@expect("v w", v=NUM, w={"type": "object", "additionalProperties": arr(NUM)})
def new_type_of_new_type_in_an_alias(v: Grade, w: Grades): ...


class Chain(NamedTuple):
    value: int
    rest: "Optional[Chain]" = None


@expect(
    "c",
    c=ref("Chain"),
    _defs={"Chain": obj("value", value=INT, rest={"anyOf": [ref("Chain"), NULL], "default": None})},
)
def recursive_named_tuple(c: Chain): ...


class Folder(TypedDict):
    files: Dict[str, "Union[Folder, str]"]


@expect(
    "f",
    f=ref("Folder"),
    _defs={
        "Folder": obj(
            "files",
            files={"type": "object", "additionalProperties": {"anyOf": [ref("Folder"), STR]}},
        )
    },
)
def recursive_typed_dict(f: Folder): ...


@dataclasses.dataclass(frozen=True)
class Base:
    """Base.

    Args:
        a (int)：编号
    """

    kind: typing.ClassVar[str] = "base"
    a: int


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    """派生。

    参数：
        a：编号
        b：可选，默认无
    """

    b: Optional[Base] = None
    seed: dataclasses.InitVar[int] = 0
    c: Colour = dataclasses.field(default=Colour.RED, kw_only=True)


BASE = text("Base.", **obj("a", a=text("编号", **INT)))
DERIVED = text(
    "派生。",
    **obj(
        "a",
        a=text("编号", **INT),
        b={"anyOf": [ref("Base"), NULL], "description": "可选，默认无", "default": None},
        seed={**INT, "default": 0},
        c={"type": "string", "enum": ["red", "blue"], "default": "red"},
    ),
)


@expect("d", d=ref("Derived"), _defs={"Base": BASE, "Derived": DERIVED})
def dataclass_with_everything(d: Derived): ...


@expect("v", v={"type": "array", "items": ref("Base"), "uniqueItems": True}, _defs={"Base": BASE})
def set_of_frozen_records(v: set[Base]): ...


@expect(
    b={"anyOf": [ref("Base"), NULL], "default": {"a": 1}},
    s=ref("Spot", default={"x": 1.0, "y": 2.0}),
    _defs={"Base": BASE, "Spot": SPOT},
)
def record_defaults(b: Optional[Base] = Base(1), s: Spot = Spot(1.0, 2.0)): ...


@expect(
    a={"type": ["integer", "string"], "default": "auto"},
    b={"anyOf": [arr(STR), STR], "default": ["x"]},
    c={"anyOf": [{**STR, "format": "date"}, INT], "default": "2026-11-30"},
    d={
        "type": "object",
        "additionalProperties": INT,
        "propertyNames": {"type": "string", "enum": ["red", "blue"]},
        "default": {"red": 1},
    },
    e={**STR, "contentEncoding": "base16", "default": "00ff"},
    f=arr({"type": "string", "enum": ["red", "blue"]}, default=["blue"]),
)
def defaults_in_unions_and_containers(
    a: Union[int, str] = "auto",
    b: Union[List[str], str] = ("x",),
    c: Union[datetime.date, int] = datetime.date(2026, 11, 30),
    d: Dict[Colour, int] = {Colour.RED: 1},
    e: bytes = b"\x00\xff",
    f: Tuple[Colour, ...] = (Colour.BLUE,),
): ...


@expect(a=arr(INT), b=arr(INT, default=[0, 1, 2]), c=arr(INT), d=ANY, e=arr(INT, default=[1]))
def defaults_of_many_items(
    a: Iterable[int] = range(10**9),
    b: Iterable[int] = range(3),
    c: Sequence[int] = [0] * 200_000,
    d=iter([1]),
    e: Iterable[int] = {1: "one"}.keys(),
): ...


@expect(
    "a b c d",
    a=arr({"type": "array", "prefixItems": [INT, INT], "minItems": 2, "maxItems": 2}),
    b={"type": "array", "prefixItems": [INT, null_or("string")], "minItems": 2, "maxItems": 2},
    c={
        "type": "array",
        "items": {"type": "array", "prefixItems": [INT, STR], "minItems": 2, "maxItems": 2},
        "uniqueItems": True,
    },
    d=arr({"type": "string", "enum": ["x", "y"]}, uniqueItems=True),
)
def tuples_and_sets_inside(
    a: Tuple[Tuple[int, int], ...],
    b: Tuple[int, Optional[str]],
    c: typing.Set[Tuple[int, str]],
    d: typing.FrozenSet[Literal["x", "y"]],
): ...


@expect(
    "a b c",
    a={"type": "integer", "enum": [1, 2, 3]},
    b={"type": ["null", "string"], "enum": ["x", "y", None]},
    c={"anyOf": [{"type": "string", "enum": ["auto"]}, arr(INT), NULL]},
)
def literals_in_unions(
    a: Literal[Literal[1, 2], 3],
    b: Union[None, Literal["x", "y"]],
    c: Union[Literal["auto"], List[int], None],
): ...


@expect(
    "a b",
    a={
        "type": "object",
        "additionalProperties": null_or("integer"),
        "propertyNames": {"type": "string", "enum": ["x", "y"]},
    },
    b={"type": "object", "additionalProperties": {"type": "object"}},
)
def mappings_inside(a: Dict[Literal["x", "y"], Optional[int]], b: Mapping[str, Mapping]): ...


Held = typing.TypeVar("Held", bound=Spot)


@expect("a b", a=ref("Spot"), b=arr(ref("Spot")), _defs={"Spot": SPOT})
def type_variable_bound_to_a_record(a: Held, b: Sequence[Held]): ...


@expect("s", s={**STR, "description": "Code", "pattern": "^[A-Z]{2}$"})
def annotated_text_and_pattern(s: Annotated[str, "Code", re.compile("^[A-Z]{2}$")]): ...


expect("b", b=STR, c={**NUM, "default": 1.0}, _name="partly", _doc="Partly.")(
    functools.partial(Service().partly, 1)
)
expect("a b", a=INT, b=STR, c={**NUM, "default": 2.5}, _name="partly")(
    functools.partial(Service().partly, c=2.5)
)
expect("b", b=STR, c={**NUM, "default": 1.0}, _name="partly")(Service().done)
expect("b", b=B, k={**K, "default": 1.0}, _name="described")(
    logged(logged(functools.partial(described, 1)))
)
expect("a", a=A, b={**B, "default": "z"}, k={**K, "default": 1.0}, _name="described")(
    functools.partial(logged(functools.lru_cache(described)), b="z")
)


class ChineseGoogle:
    """不给模型看。"""

    def __call__(self, city: str, days: int = 1):
        """查询天气。

        参数：
            city（字符串）：城市名，
                例如：北京
            days: 天数
        返回：
            一段文字
        """


class ChineseNumpy:
    def __call__(self, city: str, days: int = 1):
        """查询天气。

        参数
        ----
        city : str
            城市名，
            例如：北京
        days : int，默认 1
            天数

        返回
        ----
        str
            一段文字
        """


class ChineseRest:
    def __call__(self, city: str, days: int = 1):
        """查询天气。

        :param city: 城市名，
            例如：北京
        :param int days：天数
        :return: 一段文字
        """


for kind in (ChineseGoogle, ChineseNumpy, ChineseRest):
    expect(
        "city",
        city=text("城市名，\n例如：北京", **STR),
        days=DAYS,
        _name=kind.__name__,
        _doc="查询天气。",
    )(kind())


class OnlyClassDoc:
    """类的说明。

    参数：
        a：编号
    """

    def __call__(self, a: int): ...


expect("a", a=text("编号", **INT), _name="OnlyClassDoc", _doc="类的说明。")(OnlyClassDoc())


@expect("a", a=INT, _name="dispatched")
@functools.singledispatch
def dispatched(a: int): ...


@expect("a b", a=INT, b=null_or("string"))
def keyword_only_nullable(a: int, /, *, b: Optional[str]): ...


@expect(a={**INT, "default": 1}, b={**INT, "default": 2})
def positional_only_defaults(a: int = 1, b: int = 2, /): ...


@expect()
def only_rest(*args: int, **kwargs: str): ...


@expect("a", a=INT)
async def async_generator(a: int) -> typing.AsyncIterator[int]:
    yield a


@expect("a b", _doc="两行\n摘要。", a=text("一\n二", **INT), b=TWO)
def doc_windows(a: int, b: int): ...


doc_windows.__doc__ = "两行\r\n摘要。\r\n\r\nArgs:\r\n    a: 一\r\n      二\r\n    b: two\r\n"


@expect("a b c", _doc="做。", a=text("两个数", **INT), b=text("两个数", **INT), c=text("三", **STR))
def doc_shared_text(a: int, b: int, c: str):
    """做。

    参数说明：
        - a、b（整数）：两个数
        - `c`（str，可选）：三
    返回值：无
    抛出：
        ValueError：从不
    """


class Level(enum.IntFlag):
    low = 1
    high = 2


class Word(str, enum.Enum):
    yes = "是"
    no = "否"


@expect(
    "a b",
    a=arr({"type": "string", "enum": ["是", "否"]}),
    b={"anyOf": [{"type": "integer", "enum": [1, 2]}, arr(NULL)]},
)
def enums_inside(a: List[Word], b: Union[Level, List[None]]): ...
