"""The 80 rows of the feature table and the further rows, written from the table's wording."""
import abc, collections.abc as cabc, dataclasses, datetime as dt, decimal, enum, functools, json, pathlib, re, sys, types, typing, uuid, warnings
from typing import *
import __future__
import jsonschema
import w4d3_tools_mcp as m
from w4d3_tools_mcp import function_to_schema as F, SchemaError
seen, bad = 0, []
def S(fn):
    out = F(fn); json.dumps(out, allow_nan=False).encode()
    p = out["parameters"]; jsonschema.Draft202012Validator.check_schema(p)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", out["name"]), out["name"]
    assert isinstance(out["description"], str) and p["type"] == "object" and p["additionalProperties"] is False
    fc = None  # a datetime default without offset is allowed
    for name, q in p["properties"].items():
        assert "title" not in q and "nullable" not in q
        if "default" in q: jsonschema.Draft202012Validator({**q, "$defs": p.get("$defs", {})}, format_checker=fc).validate(q["default"])
        if name not in p["required"] and "default" not in q: pass
    return out
def row(name, fn, required=None, desc=None, fname=None, /, defs=None, **props):
    global seen; seen += 1
    try:
        o = S(fn); p = o["parameters"]
        if required is not None: assert p["required"] == required.split(), ("required", p["required"])
        if props or required == "": 
            assert p["properties"] == props, (p["properties"])
            assert list(p["properties"]) == list(props), "order"
        if desc is not None: assert o["description"] == desc, repr(o["description"])
        if fname: assert o["name"] == fname, o["name"]
        if defs is not None: assert p.get("$defs", {}) == defs, p.get("$defs")
    except BaseException as e: bad.append((name, type(e).__name__, e))
def raises(name, fn, *words):
    global seen; seen += 1
    try: o = F(fn); bad.append((name, "no error", o))
    except SchemaError as e:
        if not all(w in str(e) for w in words): bad.append((name, str(e)))
    except BaseException as e: bad.append((name, type(e), e))
I, N, T, B, Z = ({"type": t} for t in "integer number string boolean null".split())
def d(s, text): return {**s, "description": text}
def obj(req, **props): return dict(type="object", properties=props, required=req.split(), additionalProperties=False)
def basic(i: int, f: float, s: str, b: bool):
    """Four.

    Args:
        i: an int
        f: a float
        s: a str
        b: a bool
    """
row("basic_four", basic, "i f s b", "Four.", i=d(I,"an int"), f=d(N,"a float"), s=d(T,"a str"), b=d(B,"a bool"))
def no_params(): "Nothing."
row("no_params", no_params, "", "Nothing.")
def f(n: Optional[int]): "x"
row("optional_required", f, "n", n={"type": ["integer", "null"]})
def f(n: Optional[int] = None): "x"
row("optional_default", f, "", n={"type": ["integer", "null"], "default": None})
def f(s: str | None = None): "x"
row("pipe_optional", f, "", s={"type": ["string", "null"], "default": None})
def f(v: Union[int, str]): "x"
row("union_plain", f, "v", v={"type": ["integer", "string"]})
def f(v: list[int] | str | None): "x"
row("union_container", f, "v", v={"anyOf": [{"type": "array", "items": I}, T, Z]})
def f(u: Literal["C", "F"] = "C"): "x"
row("literal_str", f, "", u={"type": "string", "enum": ["C", "F"], "default": "C"})
def f(b: Literal[4, 8]): "x"
row("literal_int", f, "b", b={"type": "integer", "enum": [4, 8]})
def f(b: Literal["auto", 1, True]): "x"
row("literal_mixed", f, "b", b={"type": ["string", "integer", "boolean"], "enum": ["auto", 1, True]})
def f(b: Literal["a", None]): "x"
row("literal_with_none", f, "b", b={"type": ["string", "null"], "enum": ["a", None]})
def f(b: Optional[Literal["a", "b"]]): "x"
row("optional_literal", f, "b", b={"type": ["string", "null"], "enum": ["a", "b", None]})
class Color(enum.Enum): RED = "red"; BLUE = "blue"
class Pri(enum.IntEnum): LOW = 1; HIGH = 2
class StrE(str, enum.Enum): A = "a"
def f(c: Color): "x"
row("enum_values", f, "c", defs={}, c={"type": "string", "enum": ["red", "blue"]})
def f(p: Pri): "x"
row("int_enum", f, "p", p={"type": "integer", "enum": [1, 2]})
def f(c: Color = Color.BLUE, p: Pri = Pri.LOW, s: StrE = StrE.A): "x"
row("enum_default", f, "", c={"type": "string", "enum": ["red", "blue"], "default": "blue"}, p={"type": "integer", "enum": [1, 2], "default": 1}, s={"type": "string", "enum": ["a"], "default": "a"})
def f(v: list[int]): "x"
row("list_int", f, "v", v={"type": "array", "items": I})
def f(v: List[str]): "x"
row("typing_list_str", f, "v", v={"type": "array", "items": T})
def f(v: list): "x"
row("bare_list", f, "v", v={"type": "array", "items": {}})
def f(v: tuple[int, str]): "x"
row("fixed_tuple", f, "v", v={"type": "array", "prefixItems": [I, T], "minItems": 2, "maxItems": 2})
def f(v: tuple[int, ...]): "x"
row("open_tuple", f, "v", v={"type": "array", "items": I})
def f(v: set[str]): "x"
row("set_str", f, "v", v={"type": "array", "items": T, "uniqueItems": True})
def f(v: dict[str, float]): "x"
row("dict_typed", f, "v", v={"type": "object", "additionalProperties": N})
def f(v: dict): "x"
row("bare_dict", f, "v", v={"type": "object"})
def f(v: list[dict[str, list[Optional[float]]]]): "x"
row("nested_generics", f, "v", v={"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}}}})
def f(a: cabc.Sequence[int], b: cabc.Mapping[str, float], c: cabc.Iterable[str], d: cabc.MutableSequence[int], e: cabc.Set[str], g: cabc.Collection[int], h: typing.Mapping, i: typing.Iterable): "x"
row("abc_types", f, "a b c d e g h i", a={"type": "array", "items": I}, b={"type": "object", "additionalProperties": N}, c={"type": "array", "items": T}, d={"type": "array", "items": I}, e={"type": "array", "items": T, "uniqueItems": True}, g={"type": "array", "items": I}, h={"type": "object"}, i={"type": "array", "items": {}})
if sys.version_info >= (3, 11):
    class Movie(TypedDict): title: str; year: NotRequired[int]
    class Partial(TypedDict, total=False): must: Required[str]; may: int
    def f(m: Movie): "x"
    row("typed_dict", f, "m", defs={"Movie": obj("title", title=T, year=I)}, m={"$ref": "#/$defs/Movie"})
    def f(p: Partial): "x"
    row("typed_dict_partial", f, "p", defs={"Partial": obj("must", must=T, may=I)}, p={"$ref": "#/$defs/Partial"})
@dataclasses.dataclass
class Point: x: float; y: float = 0.0; tags: list[str] = dataclasses.field(default_factory=list)
PT = obj("x", x=N, y={**N, "default": 0.0}, tags={"type": "array", "items": T})
def f(p: Point): "x"
row("dataclass_param", f, "p", defs={"Point": PT}, p={"$ref": "#/$defs/Point"})
class NT(NamedTuple): a: int; b: str = "q"
def f(p: NT): "x"
row("named_tuple", f, "p", defs={"NT": obj("a", a=I, b={**T, "default": "q"})}, p={"$ref": "#/$defs/NT"})
@dataclasses.dataclass
class Node: value: int; children: List["Node"] = dataclasses.field(default_factory=list); nxt: Optional["Node"] = None
NODE = obj("value", value=I, children={"type": "array", "items": {"$ref": "#/$defs/Node"}}, nxt={"anyOf": [{"$ref": "#/$defs/Node"}, Z], "default": None})
def f(n: Node): "x"
row("recursive_dataclass", f, "n", defs={"Node": NODE}, n={"$ref": "#/$defs/Node"})
def f(n: Annotated[int, "how many"]): "x"
row("annotated_text", f, "n", n=d(I, "how many"))
def f(n: Annotated[int, "from annotated"]):
    """x

    Args:
        n: from doc
    """
row("annotated_and_doc", f, "n", "x", n=d(I, "from doc"))
def f(a: Optional[Annotated[int, "txt"]] = None, b: Annotated[str, "t2"] | None = None, c: Optional[Annotated[list[int], "t3"]] = None): "x"
row("annotated_inside_optional", f, "", a={"type": ["integer", "null"], "description": "txt", "default": None}, b={"type": ["string", "null"], "description": "t2", "default": None}, c={"anyOf": [{"type": "array", "items": I}, Z], "description": "t3", "default": None})
def f(a: dt.date, b: dt.datetime): "x"
row("dates", f, "a b", a={**T, "format": "date"}, b={**T, "format": "date-time"})
def f(u: uuid.UUID, p: pathlib.Path): "x"
row("string_like", f, "u p", u={**T, "format": "uuid"}, p=T)
def f(a: decimal.Decimal): "x"
row("decimal_param", f, "a", a={"type": ["number", "string"]})
def f(a: Any): "x"
row("any_param", f, "a", a={})
def f(a, b=3): "x"
row("no_annotation", f, "a", a={}, b={"default": 3})
def f(a: int = 3, b: float = .5, c: str = "s", d: bool = True, e: list = [1], g: dict = {"k": None}): "x"
row("defaults_json", f, "", a={**I, "default": 3}, b={**N, "default": .5}, c={**T, "default": "s"}, d={**B, "default": True}, e={"type": "array", "items": {}, "default": [1]}, g={"type": "object", "default": {"k": None}})
def f(v: list[dict] = [{"a": [1]}]): "x"
F(f)["parameters"]["properties"]["v"]["default"][0]["a"].append(2)
row("default_mutable", f, "", v={"type": "array", "items": {"type": "object"}, "default": [{"a": [1]}]})
def f(a=object(), b: float = float("inf"), c: float = float("nan"), d: dict = {"x": float("inf")}, e: Any = len): "x"
row("default_not_json", f, "", a={}, b=N, c=N, d={"type": "object"}, e={})
def f(a: tuple[int, int] = (1, 2), b: dt.date = dt.date(2026, 1, 2), c: frozenset[int] = frozenset({10, 9}), e: dt.datetime = dt.datetime(2024, 1, 1)): "x"
row("default_containers", f, "", a={"type": "array", "prefixItems": [I, I], "minItems": 2, "maxItems": 2, "default": [1, 2]}, b={**T, "format": "date", "default": "2026-01-02"}, c={"type": "array", "items": I, "uniqueItems": True, "default": [9, 10]}, e={**T, "format": "date-time", "default": "2024-01-01T00:00:00"})
def f(n: int = None, s: "str" = None, e: Color = None, p: Point = None, x: Annotated[int, "t"] = None): "x"
row("none_default_plain_int", f, "", n={"type": ["integer", "null"], "default": None}, s={"type": ["string", "null"], "default": None}, e={"type": ["string", "null"], "enum": ["red", "blue", None], "default": None}, p={"anyOf": [{"$ref": "#/$defs/Point"}, Z], "default": None}, x={"type": ["integer", "null"], "description": "t", "default": None})
def f(*, a: int, b: str = "x"): "x"
row("keyword_only", f, "a", a=I, b={**T, "default": "x"})
def f(b: int, a: str, /): "x"
row("positional_only", f, "b a", b=I, a=T)
def f(a: int, *args: str, **kwargs: float): "x"
row("var_args", f, "a", a=I)
class Svc:
    """Service."""
    def meth(self, a: int):
        """M.

        Args:
            a: aa
        """
    @classmethod
    def cm(cls, a: int): "C."
    @staticmethod
    def sm(a: int): "St."
    def __call__(self, a: int): "Called."
row("bound_method", Svc().meth, "a", "M.", "meth", a=d(I, "aa"))
row("unbound_method", Svc.meth, "a", "M.", "meth", a=d(I, "aa"))
row("class_method", Svc.cm, "a", "C.", "cm", a=I)
row("static_method", Svc.sm, "a", "St.", "sm", a=I)
row("callable_object", Svc(), "a", "Called.", "Svc", a=I)
def base(a: int, b: str, k: float = 1.0):
    """Base.

    Args:
        a: aa
        b: bb
        k: kk
    """
row("partial_keyword", functools.partial(base, k=2.0), "a b", "Base.", "base", a=d(I, "aa"), b=d(T, "bb"), k={**d(N, "kk"), "default": 2.0})
row("partial_positional", functools.partial(base, 1), "b", "Base.", "base", b=d(T, "bb"), k={**d(N, "kk"), "default": 1.0})
def deco(fn):
    @functools.wraps(fn)
    def inner(*a, **k): return fn(*a, **k)
    return inner
row("wrapped", deco(base), "a b", "Base.", "base", a=d(I, "aa"), b=d(T, "bb"), k={**d(N, "kk"), "default": 1.0})
row("cached", functools.lru_cache(base), "a b", "Base.", "base", a=d(I, "aa"), b=d(T, "bb"), k={**d(N, "kk"), "default": 1.0})
async def af(a: int): "A."
row("async_function", af, "a", "A.", "af", a=I)
def f(a: "int", b: "Optional[list[Point]]" = None, c: List["Point"] = []): "x"
row("string_annotation", f, "a", a=I, b={"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Point"}}, Z], "default": None}, c={"type": "array", "items": {"$ref": "#/$defs/Point"}, "default": []})
def f(ok: int, city: "Nowhere"): "x"
raises("bad_forward_ref", f, "city", "Nowhere")
UserId = NewType("UserId", int)
def f(u: UserId): "x"
row("new_type", f, "u", u=I)
TT = TypeVar("TT"); TB = TypeVar("TB", bound=str); TC = TypeVar("TC", int, float)
def f(a: TT, b: TB, c: TC, d: list[TT]): "x"
row("type_vars", f, "a b c d", a={}, b=T, c={"type": ["integer", "number"]}, d={"type": "array", "items": {}})
class Custom: pass
def f(n: int, thing: Custom): "x"
raises("custom_class", f, "thing", "Custom")
def f(a: int): pass
row("doc_none", f, "a", "", a=I)
def f(city: str, unit: str = "C", rows: dict = {}):
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
row("doc_google_rich", f, "city", "Look up the weather.\n\nSecond paragraph with a colon: here.", city=d(T, "The city, for example: Turku\nor Oulu: both fine."), unit={**d(T, 'Unit. Defaults to "C".'), "default": "C"}, rows={"type": "object", "description": "Data.", "default": {}})
def f(a: int, b: int):
    """Do.
    Args:
        a: one
        b: two
    Returns:
        int
    """
row("doc_google_no_blank", f, "a b", "Do.", a=d(I, "one"), b=d(I, "two"))
def f(mode: str, b: int):
    """Do.

    Args:
        mode: One of:
            - fast: quick
            - slow: good
        b: two
    """
row("doc_google_bullets", f, "mode b", "Do.", mode=d(T, "One of:\n- fast: quick\n- slow: good"), b=d(I, "two"))
def f(mode: str, b: int):
    """Do.

    Args:
        mode: First.

            Second: paragraph.

        b: two

    """
row("doc_google_paragraphs", f, "mode b", "Do.", mode=d(T, "First.\n\nSecond: paragraph."), b=d(I, "two"))
def f(a: int):
    """Do.

    Arguments:
        a: one
    """
row("doc_header_arguments", f, "a", "Do.", a=d(I, "one"))
def f(a: int, b: str = "x"):
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
row("doc_numpy", f, "a", "Do.\n\nMore.", a=d(I, "one"), b={**d(T, "two\nlines"), "default": "x"})
def f(a: int, b: str):
    """Do.

    More.

    :param a: one
    :type a: int
    :param str b: two
        lines
    :return: x
    :raises ValueError: y
    """
row("doc_rest", f, "a b", "Do.\n\nMore.", a=d(I, "one"), b=d(T, "two\nlines"))
def f(city: str, days: int = 1):
    """查询天气。

    参数：
        city：城市名，例如：北京
        days：天数
    返回：
        一段文字
    """
row("doc_chinese", f, "city", "查询天气。", city=d(T, "城市名，例如：北京"), days={**d(I, "天数"), "default": 1})
def f(city: str, unit: str):
    """查询天气。

    Args:
        city：城市
        unit：单位

    Returns：
        文字
    """
row("doc_chinese_google", f, "city unit", "查询天气。", city=d(T, "城市"), unit=d(T, "单位"))
def f(returns: int, args: str, raises: int, note: str):
    """Do.

    Args:
        returns: how many
        args: text
        raises: r
        note: n
    """
row("doc_names_like_sections", f, "returns args raises note", "Do.", returns=d(I, "how many"), args=d(T, "text"), raises=d(I, "r"), note=d(T, "n"))
def f(a: int, b: int):
    """Do.

    Args:
        ghost: boo
        a: one
    """
row("doc_extra_and_missing", f, "a b", "Do.", a=d(I, "one"), b=I)
def f(a: int, b: int): pass
f.__doc__ = "Do.\n\n\tArgs:\n\t\ta: one\n\t\t\tmore\n\t\tb: two\n"
row("doc_tabs", f, "a b", "Do.", a=d(I, "one\nmore"), b=d(I, "two"))
def f(name: str, n: int):
    """Do.

    Args:
        name (str) : who
        n (int) : num
    """
row("doc_space_before_colon", f, "name n", "Do.", name=d(T, "who"), n=d(I, "num"))
def f(a: int):
    """Do.

    Raises:
        ValueError: bad

    Note:
        Careful: it bites.

    Args:
        a: one
    """
row("doc_raises_before_args", f, "a", "Do.", a=d(I, "one"))
def f(a: dict, b: list):
    """Do.

    Args:
        a (dict[str, tuple[int, str]]): one
        b (Optional[List[Tuple[int, (str)]]]): two
    """
row("doc_nested_type", f, "a b", "Do.", a={"type": "object", "description": "one"}, b={"type": "array", "items": {}, "description": "two"})
ns = {"__name__": "rows_future"}; mod = types.ModuleType("rows_future"); sys.modules["rows_future"] = mod
SRC = '''
import dataclasses
from typing import *
def basic(a: int, b: list[str] | None = None, c: Literal["x"] = "x"): "x"
@dataclasses.dataclass
class Tree:
    v: int
    kids: list[Tree] = dataclasses.field(default_factory=list)
def rec(t: Tree): "x"
def make():
    @dataclasses.dataclass
    class Local:
        a: int
    def tool(good: int, item: Local): "x"
    return tool
'''
exec(compile(SRC, "rows_future", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True), mod.__dict__)
LI = {"type": "array", "items": T}
row("future_basic", mod.basic, "a", a=I, b={"anyOf": [LI, Z], "default": None}, c={"type": "string", "enum": ["x"], "default": "x"})
row("future_recursive", mod.rec, "t", defs={"Tree": obj("v", v=I, kids={"type": "array", "items": {"$ref": "#/$defs/Tree"}})}, t={"$ref": "#/$defs/Tree"})
raises("future_local", mod.make(), "item", "Local")
# further rows
if sys.version_info >= (3, 12):
    exec('''
type Ids = list[int]
type J = dict[str, J] | list[J] | str | None
def f(v: Ids, w: J): "x"
def g[T: int](a: T, b: list[T]): "x"
''', globals())
    row("type alias", f, "v w"); row("pep695", g, "a b", a=I, b={"type": "array", "items": I})
    w = F(f)["parameters"]; v = jsonschema.Draft202012Validator(w)
    assert v.is_valid({"v": [1], "w": {"a": ["x", None]}}) and not v.is_valid({"v": ["x"], "w": None}) and not v.is_valid({"v": [], "w": 3})
def gen(n: int) -> Iterator[int]: yield n
row("generator", gen, "n", n=I)
def badret(n: int) -> "Never_heard": "x"
row("bad return", badret, "n", n=I)
raises("lambda", lambda x: x, "名字")
def f(z: complex): "x"
row("complex", f, "z", z=T)
def f(n: int, cb: Callable[[int], str]): "x"
raises("callable", f, "cb")
row("len", len, "obj", None, "len", obj={})
def f(u: str):
    """x

    Args:
        u: unit (choices: ["C", "F"])
    """
row("choices", f, "u", u=d(T, 'unit (choices: ["C", "F"])'))
class Ge(NamedTuple): ge: int
def f(n: Annotated[int, "text", Ge(1)]): "x"
row("#11", f, "n", n={**d(I, "text"), "minimum": 1})
# section 5 round trips
def f(body: Optional[str]): "x"
assert m.call_arguments(f, {"body": '{"k": 1}'})[1] == {"body": '{"k": 1}'}
def f(p: str): "x"
assert m.call_arguments(f, {"p": "12345"})[1] == {"p": "12345"}
print(sys.version.split()[0], "rows", seen, "bad", len(bad))
for b in bad: print(*b)
