"""§2: functions to JSON Schema, docstrings, values to JSON, and JSON back to values."""

import __future__

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import ipaddress
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Callable, List, Literal, NamedTuple, Optional, TypedDict, Union

import jsonschema
import pytest
import schema_postponed as postponed
from hypothesis import given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp as product
from w4d3_tools_mcp import (
    SchemaError,
    ToolCall,
    ToolError,
    ToolRegistry,
    function_to_schema,
    output_schema,
    parse_docstring,
    plain,
    read_parameters,
    type_to_schema,
)

# --- the table of functions, in both worlds of annotations ---


def call_arguments(fn, args):
    return read_parameters(fn).bind(args)


ROWS_FILE = pathlib.Path(__file__).with_name("schema_functions.py")


def load_rows(name, flags):
    module = types.ModuleType(name)
    sys.modules[name] = module  # classes look up their annotations in their module
    code = compile(ROWS_FILE.read_text("utf-8"), ROWS_FILE, "exec", flags=flags, dont_inherit=True)
    exec(code, vars(module))
    return module


EAGER = load_rows("schema_rows_eager", 0)
POSTPONED = load_rows("schema_rows_postponed", __future__.annotations.compiler_flag)
ALL_ROWS = [
    pytest.param(*row, id=f"{world}-{number}-{getattr(row[0], '__name__', 'object')}")
    for world, module in (("eager", EAGER), ("postponed", POSTPONED))
    for number, row in enumerate(module.ROWS)
]


def check(schema):
    """Strict JSON, a valid schema, and every default valid under its own schema."""
    json.dumps(schema, allow_nan=False).encode("utf-8")
    parameters = schema["parameters"]
    jsonschema.Draft202012Validator.check_schema(parameters)
    objects = [parameters, *parameters.get("$defs", {}).values()]
    for holder in objects:
        for prop in holder.get("properties", {}).values():
            if "default" in prop:
                root = {**prop, "$defs": parameters.get("$defs", {})}
                jsonschema.Draft202012Validator(root).validate(prop["default"])


@pytest.mark.parametrize("fn, required, properties, name, defs, doc", ALL_ROWS)
def test_function_has_the_expected_schema(fn, required, properties, name, defs, doc):
    schema = function_to_schema(fn)
    check(schema)
    parameters = schema["parameters"]
    assert parameters["properties"] == properties
    assert list(parameters["properties"]) == list(properties)
    assert parameters["required"] == required
    assert parameters["additionalProperties"] is False
    assert parameters.get("$defs", {}) == defs
    assert schema["name"] == (name or getattr(fn, "__name__", "base"))
    assert isinstance(schema["description"], str)
    assert doc is None or schema["description"] == doc


def test_table_is_large_and_the_same_in_both_worlds():
    assert len(ALL_ROWS) >= 160 and len(EAGER.ROWS) == len(POSTPONED.ROWS)


# --- postponed annotations, local classes, names that do not exist ---


def properties(fn):
    schema = function_to_schema(fn)
    check(schema)
    return schema["parameters"]["properties"]


def test_local_class_is_found_when_annotations_are_eager():
    @dataclasses.dataclass
    class Local:
        n: int

    def tool(item: Local, more: "int" = 1): ...

    assert properties(tool)["item"] == {"$ref": "#/$defs/Local"}


def test_postponed_local_class_is_found_through_the_closure():
    tool = postponed.local_class_in_closure()
    assert properties(tool)["item"] == {"$ref": "#/$defs/Local"}
    read = call_arguments(tool, {"item": {"n": 1, "again": {"n": 2}}})[1]["item"]
    assert read.again.n == 2


def test_a_name_of_the_closure_may_have_no_value_yet():
    def tool(n: "int"):
        return later, n

    assert properties(tool) == {"n": {"type": "integer"}}
    later = 1


@pytest.mark.parametrize(
    "fn",
    [
        postponed.Owner().method,
        postponed.Heir().method,
        postponed.Owner.class_method,
        postponed.Owner(),
        functools.partial(postponed.Owner().method),
        functools.cache(postponed.Owner().method),
    ],
)
def test_nested_class_of_the_owner_is_found(fn):
    props = properties(fn)
    assert props["mode"]["enum"] == ["fast"] and props["box"] == {"$ref": "#/$defs/Box"}


def test_nested_class_of_a_record_is_found():
    fields = function_to_schema(postponed.nested_in_a_record)["parameters"]["$defs"]["Crate"]
    size = {"type": "string", "enum": ["s"]}
    assert fields["properties"] == {
        "size": {**size, "default": "s"},
        "sizes": {"type": "array", "items": size},
    }


def test_records_that_refer_to_each_other_end_in_references():
    schema = function_to_schema(postponed.mutual)
    check(schema)
    assert set(schema["parameters"]["$defs"]) == {"Left", "Right"}
    assert schema["parameters"]["properties"]["b"]["description"] == "右"


JSON_TREE = typing.Dict[str, "JSON_TREE"]  # noqa: F821
TREE = {"a": [1, None, {"b": "c"}], "d": {}}
EVEN = {"a": [1, {"b": []}]}


@pytest.mark.parametrize("module", [EAGER, POSTPONED])
@pytest.mark.parametrize(
    "args, fits",
    [
        ({"json": TREE, "steps": [1, [2, [3]]], "even": EVEN, "odds": [EVEN, 1]}, True),
        ({"json": {"a": [1, {"b": 1.5}]}}, False),
        ({"json": None, "steps": [1, [2, ["x"]]]}, False),
        ({"json": None, "even": {"a": [{"b": {}}]}}, False),
        ({"json": None, "odds": [{"a": [{"b": 1}]}]}, False),
    ],
)
def test_an_alias_that_contains_itself_becomes_a_reference(module, args, fits):
    schema = function_to_schema(module.aliases_of_themselves)
    check(schema)
    assert {"JSON", "Steps"} < schema["parameters"]["$defs"].keys()
    assert jsonschema.Draft202012Validator(schema["parameters"]).is_valid(args) == fits
    if fits:
        assert call_arguments(module.aliases_of_themselves, args) == ([], args)
    else:
        with pytest.raises(ToolError):
            call_arguments(module.aliases_of_themselves, args)


def test_too_deep_a_value_is_said_plainly():
    deep = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ToolError, match="^参数 json 嵌套太深$"):
        call_arguments(EAGER.aliases_of_themselves, {"json": deep})


T = typing.TypeVar("T")


@dataclasses.dataclass
class Growing(typing.Generic[T]):
    a: "Optional[Growing[list[T]]]" = None
    b: "Optional[Growing[dict[str, T]]]" = None


def growing(n: int, v: Growing[int]): ...
def deep_type(n: int, v: functools.reduce(lambda tp, _: list[tp], range(3_000), int)): ...
def misspelt_in_an_alias(a: List["Nowhere"], b: "List[Nowhere]"): ...  # noqa: F821


class Engine: ...


def custom(n: int, engine: Engine): ...
def custom_inside(engines: Optional[list[Engine]] = None): ...
def takes_callable(n: int, run: Callable[[int], str]): ...
def takes_bare_callable(run: Callable): ...
def takes_type(kind: type[int]): ...
def odd_key(table: dict[tuple[int, int], str]): ...
def bad_text(x: "list[int"): ...  # noqa: F722
def bad_attribute(x: "datetime.nothing"): ...
def empty_enum(x: enum.Enum("Nothing", [])): ...
def callable_in_a_list(runs: list[Callable[..., Any]]): ...
def callable_with_default(n: int = 1, run: Optional[Callable] = None): ...
def takes_pattern(p: re.Pattern): ...


@dataclasses.dataclass
class Pair:
    a: int = 0


@dataclasses.dataclass
class Machine:
    a: Engine
    b: Callable


class PatternLike(NamedTuple):
    pattern: str


def empty_literal(x: Literal[()]): ...
def set_of_lists(x: set[list[int]]): ...
def set_of_dicts(x: typing.FrozenSet[dict[str, int]]): ...
def set_of_records(x: typing.AbstractSet[Pair]): ...
def bad_pattern(x: Annotated[str, PatternLike(r"(a)\1")]): ...
def broken_pattern(x: Annotated[str, PatternLike("[a")]): ...
def several(n: int, engine: Engine, run: Callable, x: "Nowhere"): ...  # noqa: F821
def several_fields(m: Machine): ...
def same_mistake_twice(a: "Nowhere", b: "Nowhere", c: Machine, d: list[Machine]): ...  # noqa: F821


@pytest.mark.parametrize(
    "fn, words",
    [
        (postponed.misspelt, ["misspelt", "city", "Citty"]),
        (postponed.for_type_checkers, ["for_type_checkers", "amount", "Decimal", "TYPE_CHECKING"]),
        (postponed.local_class_unseen(), ["tool", "item", "Local", "模块顶层"]),
        (postponed.broken_field, ["broken_field", " b", "Broken", "Nowhere"]),
        (custom, ["custom", "engine", "Engine", "dataclass"]),
        (custom_inside, ["custom_inside", "engines", "Engine"]),
        (takes_callable, ["函数 takes_callable 的参数 run：类型 Callable", "Literal"]),
        (takes_bare_callable, ["函数 takes_bare_callable 的参数 run：类型 Callable"]),
        (callable_in_a_list, ["函数 callable_in_a_list 的参数 runs：类型 Callable"]),
        (callable_with_default, ["函数 callable_with_default 的参数 run：类型 Callable"]),
        (takes_pattern, ["函数 takes_pattern 的参数 p：类型 Pattern"]),
        (growing, ["函数 growing 的参数 v：类型套得太深"]),
        (deep_type, ["函数 deep_type 的参数 v：类型套得太深"]),
        (misspelt_in_an_alias, ["参数 a：", "参数 b：", "Nowhere"]),
        (takes_type, ["takes_type", "kind"]),
        (odd_key, ["odd_key", "table", "字典的键"]),
        (bad_text, ["bad_text", "x"]),
        (bad_attribute, ["bad_attribute", "x"]),
        (empty_enum, ["empty_enum", "x"]),
        (empty_literal, ["empty_literal", "x"]),
        (set_of_lists, ["set_of_lists", "x", "list[int]", "不可哈希"]),
        (set_of_dicts, ["set_of_dicts", "x", "不可哈希"]),
        (set_of_records, ["set_of_records", "x", "Pair", "不可哈希"]),
        (bad_pattern, ["bad_pattern", "x", "正则", "groupref"]),
        (broken_pattern, ["broken_pattern", "x", "正则 [a"]),
        (vars(EAGER.Service)["class_method"], ["classmethod", "函数"]),
        (several, ["several", "engine：", "参数 run：", "参数 x："]),
        (same_mistake_twice, ["参数 a：", "参数 b：", "参数 c："]),
        (several_fields, ["several_fields", "m：", "Machine 的字段", "a：", "b："]),
        (lambda x: x, ["lambda", "名字"]),
        (3, ["3", "函数"]),
        (max, ["max", "签名"]),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(fn, words):
    with pytest.raises(SchemaError) as caught:
        function_to_schema(fn)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value) and "Recursion" not in str(caught.value)


def test_error_names_only_the_parameter_that_is_wrong():
    with pytest.raises(SchemaError) as caught:
        function_to_schema(postponed.misspelt)
    assert "days" not in str(caught.value)


def test_unresolvable_return_type_is_no_error():
    assert list(properties(postponed.bad_return)) == ["n"]
    assert output_schema(postponed.bad_return) is None


@pytest.mark.parametrize("flags", [0, __future__.annotations.compiler_flag])
def test_classes_made_by_exec_find_their_names(flags):
    source = """
import dataclasses
from typing import Optional, TypedDict
@dataclasses.dataclass
class Node:
    value: int
    next: Optional["Node"] = None
class Bag(TypedDict):
    nodes: list[Node]
def tool(bag: Bag, node: Optional[Node] = None): ...
"""
    names = {"__name__": "json"}  # a module that has none of these names
    exec(compile(source, "made", "exec", flags=flags, dont_inherit=True), names)
    schema = function_to_schema(names["tool"])
    check(schema)
    assert set(schema["parameters"]["$defs"]) == {"Node", "Bag"}


# --- syntax of Python 3.12 ---

NEW_SYNTAX = """
import dataclasses
import typing
type Ids = list[int]
type Json = dict[str, Json] | list[Json] | str | None
type Pair[A] = tuple[A, A]
type Nest[A] = list[Nest[A]] | A
type Broken = Nowhere
def plain_alias(v: Ids, w: Ids | None = None): ...
def recursive_alias(v: Json): ...
def generic_alias(v: Pair[int], w: Pair[Pair[str]]): ...
def recursive_generic_alias(v: Nest[int]): ...
def generic[T: int](v: T, w: list[T]): ...
class Tools[T: int]:
    def method(self, v: T, w: list[T]): ...
@dataclasses.dataclass
class Box[T]:
    items: list[T]
    inner: "Box[T] | None" = None
def boxed(v: Box[int]): ...
class Row[T](typing.NamedTuple):
    items: list[T]
class Sheet[T](typing.TypedDict, total=False):
    items: typing.Required[list[T]]
def in_rows(v: Row[int]): ...
def in_sheets(v: Sheet[int]): ...
def broken_alias(v: Broken): ...
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize("flags", [0, __future__.annotations.compiler_flag])
def test_type_statement_and_type_parameters(flags):
    sys.modules["new_syntax"] = module = types.ModuleType("new_syntax")
    names = vars(module)
    exec(compile(NEW_SYNTAX, "new", "exec", flags=flags, dont_inherit=True), names)
    ints = {"type": "array", "items": {"type": "integer"}}
    assert properties(names["plain_alias"]) == {
        "v": ints,
        "w": {"anyOf": [ints, {"type": "null"}], "default": None},
    }
    twice = properties(names["generic_alias"])
    assert twice["v"]["prefixItems"] == [{"type": "integer"}] * 2
    assert twice["w"]["prefixItems"][0]["prefixItems"] == [{"type": "string"}] * 2
    for fn in (names["generic"], names["Tools"]().method):
        assert properties(fn) == {"v": {"type": "integer"}, "w": ints}
    for fn, name in (("boxed", "Box"), ("in_rows", "Row"), ("in_sheets", "Sheet")):
        defs = function_to_schema(names[fn])["parameters"]["$defs"]
        assert list(defs) == [name] and defs[name]["properties"]["items"] == ints
        assert defs[name]["required"] == ["items"]
    nest = function_to_schema(names["recursive_generic_alias"])
    check(nest)
    validator = jsonschema.Draft202012Validator(nest["parameters"])
    assert validator.is_valid({"v": [[1], 2]}) and not validator.is_valid({"v": [["a"]]})
    recursive = function_to_schema(names["recursive_alias"])
    check(recursive)
    validator = jsonschema.Draft202012Validator(recursive["parameters"])
    assert validator.is_valid({"v": {"a": ["x", None, {}]}}) and not validator.is_valid({"v": [1]})
    with pytest.raises(SchemaError, match="broken_alias.*v.*Nowhere"):
        function_to_schema(names["broken_alias"])


# --- docstrings ---

GOOGLE = """
    Look up the weather: now and later.

    Works for cities only.

    Args:
        city (str): City, one of: Turku,
            Oulu: the big ones.

            Second paragraph: kept.
        unit (Literal["C", "F"], optional): Unit of
          temperature
        modes (dict[str, tuple(int, int)]) : One of:
            - fast: quick
            - slow: thorough
    Returns:
        dict: text for nobody
    Raises:
        ValueError: never
    Note:
        Not shown.

    Example:
        >>> weather("Turku")

    Closing words.
"""
NUMPY = """Look up the weather: now and later.

    Works for cities only.

    Parameters
    ----------
    city : str
        City, one of: Turku,
        Oulu: the big ones.

        Second paragraph: kept.
    unit : {"C", "F"}, default "C"
        Unit of
        temperature

    x, y : int
        Coordinates
    bare
        No type

    Returns
    -------
    dict
        text for nobody

    Notes
    -----
    Not shown.

    Examples
    --------
    >>> weather("Turku")
    """
REST = """Look up the weather: now and later.

    Works for cities only.

    :param city: City, one of: Turku,
        Oulu: the big ones.

        Second paragraph: kept.
    :type city: str
    :param dict[str, int] unit: Unit of
      temperature
    :param empty:
    :returns: text for nobody
    :rtype: dict
    :raises ValueError: never
    """
CHINESE = """查天气：现在和以后。

    只查城市。

    参数：
        city (str)：城市，例如：图尔库，
            奥卢：大城市。

            第二段：保留。
        unit（str，可选）: 温度
            单位
    返回：
        字典
    异常：
        ValueError：从不
    注意：
        不给人看
    示例：
        >>> weather("Turku")
    """
CITY = "City, one of: Turku,\nOulu: the big ones.\n\nSecond paragraph: kept."
UNIT = "Unit of\ntemperature"
RUNNING = "Look up the weather: now and later.\n\nWorks for cities only."


@pytest.mark.parametrize(
    "text, description, params",
    [
        (None, "", {}),
        ("", "", {}),
        ("   \n  ", "", {}),
        ("One line.", "One line.", {}),
        (
            GOOGLE,
            RUNNING + "\n\nClosing words.",
            {"city": CITY, "unit": UNIT, "modes": "One of:\n- fast: quick\n- slow: thorough"},
        ),
        (
            NUMPY,
            RUNNING,
            {"city": CITY, "unit": UNIT, "x": "Coordinates", "y": "Coordinates", "bare": "No type"},
        ),
        (REST, RUNNING, {"city": CITY, "unit": UNIT, "empty": ""}),
        (
            CHINESE,
            "查天气：现在和以后。\n\n只查城市。",
            {
                "city": "城市，例如：图尔库，\n奥卢：大城市。\n\n第二段：保留。",
                "unit": "温度\n单位",
            },
        ),
        ("Do.\nArgs:\n  a: One\n  b: Two\nReturns:\n  x", "Do.", {"a": "One", "b": "Two"}),
        ("Do.\n\nArguments:\n\n    a: One\n\n    b: Two\n", "Do.", {"a": "One", "b": "Two"}),
        ("Do.\n\nParameters:\n    a: One", "Do.", {"a": "One"}),
        ("Do.\n\nKeyword Args:\n    a: One", "Do.", {"a": "One"}),
        (
            "Do.\n\nArgs:\n    returns: How many\n    args: The rest\n    note: Text\n    x: y",
            "Do.",
            {"returns": "How many", "args": "The rest", "note": "Text", "x": "y"},
        ),
        (
            "Do.\n\nArgs:\n    returns:\n        How many\n    args:\n        Rest",
            "Do.",
            {"returns": "How many", "args": "Rest"},
        ),
        ("Do.\n\nArgs:\n    city：城市\n    unit：单位", "Do.", {"city": "城市", "unit": "单位"}),
        ("Do.\n\tArgs:\n\t\ta: One\n\t\t\tmore\n\t\tb: Two", "Do.", {"a": "One\nmore", "b": "Two"}),
        ("Do.\n\nRaises:\n    E: x\n\nNote:\n    y\n\nArgs:\n    a: One", "Do.", {"a": "One"}),
        (
            "Do.\n\nArgs:\n    *args: Rest\n    **kwargs: More",
            "Do.",
            {"args": "Rest", "kwargs": "More"},
        ),
        (
            "Do.\n\nArgs:\n    a: One\n    goes on at the same indentation\n    b: Two",
            "Do.",
            {"a": "One\ngoes on at the same indentation", "b": "Two"},
        ),
        ("做。\n\n参数：\na：一\nb：二\n\n返回：三", "做。", {"a": "一", "b": "二"}),
        ("做。\n参数:\n- a：一\n- `b` (int): 二\n返回: 三\n还是三", "做。", {"a": "一", "b": "二"}),
        ("做。\n\n参数：\n    a、b：两个数", "做。", {"a": "两个数", "b": "两个数"}),
        ("做。\n\n注意：不给人看。\n还是不看。\n\n后话。", "做。\n\n后话。", {}),
        ("返回：今天的日期", "返回：今天的日期", {}),
        ("写摘要。\n输入：一段文字", "写摘要。\n输入：一段文字", {}),
        ("Do.\nArgs: a: One\n\nMore.", "Do.\n\nMore.", {"a": "One"}),
        ("Do.\n\nArgs:\n      a: One\n    b: Two\n", "Do.", {"a": "One", "b": "Two"}),
        ("Note: this is the summary.", "Note: this is the summary.", {}),
        ("Args:\n    a: One", "", {"a": "One"}),
        (":param a: One\n:return: x", "", {"a": "One"}),
        ("Do.\n\n@param a: One", "Do.", {"a": "One"}),
        (
            "Do: this.\nAnd that: too.\n\nUsage: like this",
            "Do: this.\nAnd that: too.\n\nUsage: like this",
            {},
        ),
        ("Do.\n\n## 参数：\n    a：一", "Do.", {"a": "一"}),
        ("Do.\n\n**Args:**\n    a: One", "Do.", {"a": "One"}),
        ("Do.\n\nArgs:\n\nText after an empty section.", "Do.\n\nText after an empty section.", {}),
        (
            "Do.\n\nArgs:\n    a: See https://x.org/y: there\n    b (int): (see: c)",
            "Do.",
            {"a": "See https://x.org/y: there", "b": "(see: c)"},
        ),
        ("Do.\n\nReturns (dict): x", "Do.", {}),
        ("做。\n\n参数\n----\na : int\n    一\n\n返回\n----\nint", "做。", {"a": "一"}),
        ("Do.\n\nSection\n-------\nText.", "Do.\n\nSection\n-------\nText.", {}),
        (  # a dash for the colon, brackets for the type; a dash inside a word or text cuts nothing
            "Do.\n\nArgs:\n    a - One - two\n    b (int) -- Two: 2\n    c [str]: Non-empty",
            "Do.",
            {"a": "One - two", "b": "Two: 2", "c": "Non-empty"},
        ),
        ("Do.\n\nArgs:\n    a: One\n    non-empty", "Do.", {"a": "One\nnon-empty"}),
    ],
)
def test_docstring_is_taken_apart(text, description, params):
    doc = parse_docstring(text)
    assert (doc.description, doc.params) == (description, params)


HEADS = [
    "",
    "Args:\n  ",
    "Args:\n  a",
    "Args:\n  a (",
    ":param ",
    "参数：\n- a、",
    "a\n---\n",
    "##",
]
PIECES = [*" \t#*`:：()（,、.-_a9\r\f\xa0", ", ", "a ", "a, ", "() ", "a:", ")(", "：a\n", " \n"]


def test_docstring_of_hostile_text_takes_linear_time():
    """A quadratic pattern takes minutes here; the bound is for a slow machine."""
    code = (
        "import sys, json, w4d3_tools_mcp as m\n"
        "for text in json.load(sys.stdin): m.parse_docstring(text)\n"
    )
    texts = [
        f"Do.\n\n{head}{piece * (40_000 // len(piece))}{tail}"
        for head in HEADS
        for piece in PIECES
        for tail in ("", ":", "!\nb: x")
    ]
    where = pathlib.Path(product.__file__).parent
    run = [sys.executable, "-c", code]
    subprocess.run(run, cwd=where, input=json.dumps(texts), text=True, timeout=120, check=True)


def test_ghosts_in_the_docstring_are_ignored_and_missing_texts_left_out():
    def tool(a: int, b: int):
        """Do.

        Args:
            a: One
            ghost: Nobody
        """

    assert properties(tool) == {
        "a": {"type": "integer", "description": "One"},
        "b": {"type": "integer"},
    }


@given(st.text(alphabet="ab:：-\n \t参数返回Args()", max_size=80))
def test_no_docstring_breaks_the_parser(text):
    doc = parse_docstring(text)
    assert isinstance(doc.description, str) and all(isinstance(v, str) for v in doc.params.values())


# --- value to JSON ---


class Color(enum.Enum):
    red = "r"
    pair = (1, 2)


class Spot(NamedTuple):
    x: int
    when: Optional[datetime.date] = None


@dataclasses.dataclass
class Job:
    name: str
    spots: List[Spot] = dataclasses.field(default_factory=list)
    path: pathlib.Path = pathlib.Path(".")


class Arraylike:
    def tolist(self):
        return [1, (2,)]


DAY = datetime.date(2026, 11, 30)


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        ("中", "中"),
        ((1, [2, {3}]), [1, [2, [3]]]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, "a"}), ["a", 2]),
        (
            {2: "a", None: "b", DAY: "c", Color.red: "d", True: "e"},
            {"2": "a", "true": "e", "null": "b", "2026-11-30": "c", "r": "d"},
        ),
        (range(3), [0, 1, 2]),
        (Color.pair, [1, 2]),
        (
            Job("j", [Spot(1, DAY)]),
            {"name": "j", "spots": [{"x": 1, "when": "2026-11-30"}], "path": "."},
        ),
        (
            datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
            "2026-01-02T03:04:00+00:00",
        ),
        (datetime.timedelta(minutes=2), 120.0),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"\x00\xff", "00ff"),
        (1 + 2j, "(1+2j)"),
        (EAGER.Text.a, "x"),
        (EAGER.Bits.four, 4),
        (EAGER.Tag("t"), "t"),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (Arraylike(), [1, [2]]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
        ({"b": 1}.items(), [["b", 1]]),
        ({"b": 1}.values(), [1]),
        (typing.OrderedDict(a=1), {"a": 1}),
    ],
)
def test_plain_gives_json_of_exact_types(value, expected):
    made = plain(value)
    assert made == expected and json.loads(json.dumps(made, allow_nan=False)) == expected
    assert type(made) is type(expected)


LOOP = []
LOOP.append(LOOP)
BOMB = [0] * 10
for _ in range(12):
    BOMB = [BOMB] * 10  # 10^13 items, 130 of them in memory


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        "\ud800",
        object(),
        pytest.param(10**5000, id="long"),
        Engine,
        len,
        LOOP,
        [{"k": object()}],
        {1: 2, "1": 6},
        {"k": [{None: 1, "null": 1}]},
        iter([1]),
        range(10**12),
        dict.fromkeys(range(200_000)),
        pytest.param(BOMB, id="shared parts"),
    ],
)
def test_what_json_cannot_hold_goes_to_other(value):
    with pytest.raises(ValueError):
        plain(value)
    assert "?" in json.dumps(plain(value, other=lambda v: "?"))


def test_what_is_too_long_is_cut_and_says_so():
    for value in (range(10**12), BOMB, dict.fromkeys(range(200_000)), [[range(10**12)]]):
        made = json.dumps(plain(value, other=repr), ensure_ascii=False)
        assert "太长" in made and len(made) < 3_000_000


@pytest.mark.parametrize("made", [lambda: range(10**12), lambda: itertools.count(), lambda: BOMB])
def test_a_tool_that_gives_more_than_anyone_can_read_is_answered(made):
    def tool():
        """Gives a lot."""
        return made()

    result = ToolRegistry([tool]).call(ToolCall("1", "tool", "{}"))
    assert result.status == "ok" and len(result.text) <= 1_500
    assert len(json.dumps(result.value)) < 3_000_000


def test_iterators_are_not_consumed():
    def items():
        raise AssertionError
        yield

    assert plain([items()], other=lambda value: "?") == ["?"]

    def tool(a=items()): ...  # noqa: B008

    assert properties(tool) == {"a": {}}


def test_plain_copies():
    value = {"a": [1]}
    made = plain(value)
    made["a"].append(2)
    assert value == {"a": [1]}


def test_changing_a_schema_changes_no_other_schema():
    def tool(a: decimal.Decimal, b: list[int] = [1]): ...

    first = properties(tool)
    first["a"]["type"].append("null")
    first["b"]["default"].append(2)
    first["b"]["items"]["type"] = "string"
    assert properties(tool) == {
        "a": {"type": ["number", "string"]},
        "b": {"type": "array", "items": {"type": "integer"}, "default": [1]},
    }
    assert tool.__defaults__ == ([1],)


# --- JSON to value ---


class Options(TypedDict, total=False):
    unit: Color
    spot: Spot


def exact(value):
    """A value with all its types, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return type(value), [(exact(k), exact(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value), [exact(item) for item in value]
    return type(value), value


UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    "tp, sent, received",
    [
        (int, 4096.0, 4096),
        (int, 7, 7),
        (float, 4, 4.0),
        (float, 0.5, 0.5),
        (str, "12345", "12345"),
        (bool, True, True),
        (None, None, None),
        (Any, 4.0, 4.0),
        (Any, {"a": [1]}, {"a": [1]}),
        (Optional[str], '{"k": 1}', '{"k": 1}'),
        (Optional[int], None, None),
        (Optional[int], 3.0, 3),
        (Union[int, str], "5", "5"),
        (Union[int, float], 0.5, 0.5),
        (Union[str, int], 5, 5),
        (Literal[4, 8], 8.0, 8),
        (Literal[1, True], True, True),
        (Literal[True, 1], 1, 1),
        (Literal["a", None], None, None),
        (Color, "r", Color.red),
        (Color, [1, 2], Color.pair),
        (EAGER.Bits, 8.0, EAGER.Bits.eight),
        (EAGER.Mixed, False, EAGER.Mixed.off),
        (EAGER.Mixed, 1, EAGER.Mixed.one),
        (Optional[Color], None, None),
        (list[int], [1.0, 2], [1, 2]),
        (tuple[int, str], [1.0, "a"], (1, "a")),
        (tuple[float, ...], [1, 2], (1.0, 2.0)),
        (set[int], [1.0, 2], {1, 2}),
        (frozenset[Color], ["r"], frozenset({Color.red})),
        (typing.Sequence[int], [1.0], [1]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[int, str], {"8": "a"}, {8: "a"}),
        (dict[EAGER.Unit, int], {"C": 1.0}, {EAGER.Unit.celsius: 1}),
        (dict[EAGER.Bits, int], {"8": 1}, {EAGER.Bits.eight: 1}),
        (datetime.date, "2026-11-30", DAY),
        (
            datetime.datetime,
            "2026-11-30T08:09:10Z",
            datetime.datetime(2026, 11, 30, 8, 9, 10, tzinfo=UTC),
        ),
        (
            datetime.datetime,
            "2026-11-30t08:09:10.5+00:00",
            datetime.datetime(2026, 11, 30, 8, 9, 10, 500000, tzinfo=UTC),
        ),
        (datetime.datetime, "2026-11-30 08:09", datetime.datetime(2026, 11, 30, 8, 9)),
        (datetime.time, "08:09:10.123456789Z", datetime.time(8, 9, 10, 123456, tzinfo=UTC)),
        (datetime.timedelta, 90, datetime.timedelta(seconds=90)),
        (Union[datetime.datetime, datetime.date], "2026-11-30", DAY),
        (Union[datetime.date, str], "soon", "soon"),
        (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
        (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
        (uuid.UUID, "00000000-0000-0000-0000-000000000005", uuid.UUID(int=5)),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (Union[int, os.PathLike], "a/b", "a/b"),
        (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
        (fractions.Fraction, "2/6", fractions.Fraction(1, 3)),
        (bytes, "00ff", b"\x00\xff"),
        (complex, "1+2j", 1 + 2j),
        (Spot, {"x": 1.0, "when": "2026-11-30"}, Spot(1, DAY)),
        (Spot, {"x": 2}, Spot(2)),
        (Job, {"name": "j", "spots": [{"x": 1}]}, Job("j", [Spot(1)])),
        (Options, {"unit": "r", "spot": {"x": 1}}, {"unit": Color.red, "spot": Spot(1)}),
        (Options, {}, {}),
        (Union[Spot, Job], {"name": "j"}, Job("j")),
        (Optional[Job], None, None),
        (EAGER.Tree, {"value": 1.0, "children": [{"value": 2}]}, EAGER.Tree(1, [EAGER.Tree(2)])),
        (EAGER.Page[int], {"items": [1.0]}, EAGER.Page([1])),
        (collections.defaultdict[str, int], {"a": 1.0}, collections.defaultdict(None, a=1)),
        (typing.DefaultDict[str, list[int]], {"a": [1]}, collections.defaultdict(None, a=[1])),
        (typing.Container[int], [1.0], [1]),
        (typing.Reversible[str], ["a"], ["a"]),
        (EAGER.UserId, 3.0, 3),
        (Annotated[int, EAGER.Ge(1)], 3.0, 3),
        (EAGER.Bound, 3.0, 3),
        (EAGER.Tag, "t", EAGER.Tag("t")),
        (list[Optional[Spot]], [None, {"x": 1}], [None, Spot(1)]),
    ],
)
def test_json_becomes_what_the_annotation_promises(tp, sent, received):
    def tool(value: tp): ...

    schema = function_to_schema(tool)
    check(schema)
    jsonschema.Draft202012Validator(schema["parameters"]).validate({"value": sent})
    positional, keyword = call_arguments(tool, {"value": sent})
    assert positional == [] and exact(keyword["value"]) == exact(received)
    if sent != received:  # and the way back fits the schema again
        jsonschema.Draft202012Validator(schema["parameters"]).validate({"value": plain(received)})


@pytest.mark.parametrize(
    "tp, sent",
    [
        (int, 5.5),
        (int, True),
        (int, "5"),
        (float, "x"),
        (float, True),
        (str, 5),
        (bool, 1),
        (int, None),
        (datetime.date, "2026-02-30"),
        (datetime.datetime, "2026-11-30"),
        (uuid.UUID, "x"),
        (decimal.Decimal, "abc"),
        (Color, "blue"),
        (Literal[1], True),
        (list[int], "a"),
        (list[int], ["a"]),
        (tuple[int, str], [1]),
        (set, [[1]]),
        (dict[int, str], {"a": "b"}),
        (Spot, {"y": 1}),
        (Spot, {}),
        (Job, {"name": "j", "extra": 1}),
        (Optional[int], "x"),
        (float, 10**400),
        (Job, []),
        (dict[str, int], []),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_parameter(tp, sent):
    def tool(value: tp): ...

    with pytest.raises(ToolError, match="value"):
        call_arguments(tool, {"value": sent})


def test_an_iterator_is_read_once():
    def tool(items: typing.Iterator[int], more: Iterator[str] = iter(())): ...

    assert properties(tool) == {
        "items": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": "array", "items": {"type": "string"}},
    }
    items = call_arguments(tool, {"items": [1.0, 2]})[1]["items"]
    assert next(items) == 1 and list(items) == [2] and list(items) == []


def test_parameters_go_the_way_the_signature_wants():
    def tool(a: int, b: int = 2, c: int = 3, /, d: int = 4, *rest, e: int, **more): ...

    assert call_arguments(tool, {"a": 1, "c": 5.0, "e": 6}) == ([1, 2, 5], {"e": 6})
    with pytest.raises(ToolError, match="缺少必填参数 a"):
        call_arguments(tool, {"e": 1})
    with pytest.raises(ToolError, match="没有参数 z"):
        call_arguments(tool, {"a": 1, "e": 1, "z": 1})


def test_left_out_parameters_keep_the_default_object():
    marker = object()

    def tool(a=marker, *, b=marker):
        return a is marker and b is marker

    positional, keyword = call_arguments(tool, {})
    assert tool(*positional, **keyword)


def test_what_was_read_once_binds_again_and_again():
    read = read_parameters(EAGER.four_scalars)
    args = {"a": 1.0, "b": 2, "c": "3", "d": False}
    assert read.bind(args) == read.bind(args) == call_arguments(EAGER.four_scalars, args)
    assert read.schema == function_to_schema(EAGER.four_scalars)["parameters"]


@pytest.mark.parametrize("fn", [row[0] for row in EAGER.ROWS])
def test_defaults_sent_back_are_accepted(fn):
    props = function_to_schema(fn)["parameters"]
    sent = {
        name: prop["default"] for name, prop in props["properties"].items() if "default" in prop
    }
    if not props["required"]:
        call_arguments(fn, sent)


@dataclasses.dataclass
class Even:
    n: int

    def __post_init__(self):
        if self.n % 2:
            raise KeyError("n must be\neven" + "!" * 500)


class Evens(TypedDict):
    one: Even


@pytest.mark.parametrize(
    "tp, sent, words",
    [
        (Even, {"n": 1}, "参数 value 不合要求：KeyError"),
        (Optional[Even], {"n": 1}, "参数 value 不合要求：KeyError"),
        (Union[None, Even], {"n": 1}, "参数 value 不合要求：KeyError"),
        (list[Even], [{"n": 1}], "参数 value 不合要求：KeyError"),
        (Evens, {"one": {"n": 1}}, "参数 value 不合要求：参数 one 不合要求：KeyError"),
        (Even, {"n": "x"}, '参数 value 不合要求：参数 n 不合要求："x" 不能当作 int'),
        (bytes, "xyz", '"xyz" 不能当作 bytes（十六进制文字，如 "00ff"）'),
        (complex, "a", '"a" 不能当作 complex（如 "1+2j"）'),
        (decimal.Decimal, "a", '"a" 不能当作 Decimal（如 "0.10"）'),
        (dict[int, str], {"a": ""}, "参数 value 不合要求"),
        (Annotated[float, EAGER.Limits(0, 9, 3)], 10**400, "参数 value"),
    ],
)
def test_what_a_constructor_refuses_is_one_short_sentence(tp, sent, words):
    def tool(value: tp): ...

    with pytest.raises(ToolError) as caught:
        call_arguments(tool, {"value": sent})
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 300


TYPES = st.recursive(
    st.sampled_from(
        [
            int,
            float,
            str,
            bool,
            None,
            Any,
            bytes,
            datetime.date,
            datetime.timedelta,
            decimal.Decimal,
            uuid.UUID,
            pathlib.PurePosixPath,
            Color,
            Spot,
            Job,
            Options,
            EAGER.Tree,
            Literal["x", 1, None],
            Literal[True],
            list,
            dict,
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda a: list[a]),
        inner.map(lambda a: Optional[a]),
        inner.map(lambda a: dict[str, a]),
        inner.map(lambda a: tuple[a, ...]),
        inner.map(lambda a: Annotated[a, "text"]),
        st.tuples(inner, inner).map(lambda pair: Union[pair]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
    ),
    max_leaves=6,
)
EXAMPLES = {
    "date": "2024-02-29",
    "uuid": "00000000-0000-0000-0000-000000000005",
    "base16": "00ff",
    "string": "7",
    "integer": 4.0,
    "number": 2.5,
    "boolean": True,
    "null": None,
    None: {"a": [1]},
}


def example(draw, schema, defs, depth=0):
    """A JSON value that a schema allows."""
    if "$ref" in schema:
        return example(draw, defs[schema["$ref"].rpartition("/")[2]], defs, depth + 1)
    if "anyOf" in schema:
        return example(
            draw,
            draw(st.sampled_from(schema["anyOf"])) if depth < 4 else schema["anyOf"][-1],
            defs,
            depth + 1,
        )
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    kind = draw(st.sampled_from(kind)) if isinstance(kind, list) else kind
    if kind == "array":
        items = schema.get(
            "prefixItems", [schema.get("items")] * draw(st.integers(0, 2 if depth < 4 else 0))
        )
        return [example(draw, item, defs, depth + 1) for item in items]
    if kind == "object":
        wanted = (
            set(schema.get("required", ())) if depth > 3 else schema.get("properties", {}).keys()
        )
        props = {key: prop for key, prop in schema.get("properties", {}).items() if key in wanted}
        props = props or (
            {"8": schema["additionalProperties"]} if schema.get("additionalProperties") else {}
        )
        return {key: example(draw, prop, defs, depth + 1) for key, prop in props.items()}
    return EXAMPLES[
        schema.get("format") or schema.get("contentEncoding") or kind if kind == "string" else kind
    ]


@given(TYPES, st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_a_schema_allows_can_be_read_and_written_back(tp, data):
    def tool(value: tp): ...

    schema = function_to_schema(tool)
    check(schema)
    parameters = schema["parameters"]
    sent = example(data.draw, parameters["properties"]["value"], parameters.get("$defs", {}))
    validator = jsonschema.Draft202012Validator(parameters)
    validator.validate({"value": sent})
    received = call_arguments(tool, {"value": sent})[1]["value"]
    validator.validate({"value": plain(received)})


# --- return types, description, names ---


def gives_job() -> Job: ...
def gives_options() -> "Options": ...
def gives_tree() -> EAGER.Tree: ...
def gives_spot() -> Spot: ...
def gives_int() -> int: ...
def gives_engine() -> Engine: ...
def gives_nothing(): ...
async def gives_later() -> Job: ...


@dataclasses.dataclass
class Hidden:
    a: int
    b: int = dataclasses.field(init=False)


def gives_hidden() -> Hidden: ...
def gives_derived() -> EAGER.Base: ...  # has a ClassVar
def gives_page() -> "EAGER.Page[int]": ...


@pytest.mark.parametrize(
    "fn, value",
    [
        (gives_job, Job("j", [Spot(1, DAY)])),
        (gives_later, Job("j")),
        (gives_options, {"spot": Spot(1)}),
        (gives_tree, EAGER.Tree(1, [EAGER.Tree(2)])),
        (gives_derived, EAGER.Base(1)),
        (gives_page, EAGER.Page([1], 2)),
    ],
)
def test_record_results_have_an_object_schema_that_fits(fn, value):
    schema = output_schema(fn)
    assert schema["type"] == "object"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(plain(value))


@pytest.mark.parametrize(
    "fn", [gives_spot, gives_int, gives_engine, gives_nothing, gives_hidden, len, 3]
)
def test_other_results_have_no_schema(fn):
    assert output_schema(fn) is None


def test_description_is_the_running_text_only():
    def tool(a: int):
        """First.

        Second.

        Args:
            a: One

        Returns:
            Nothing.
        """

    assert function_to_schema(tool)["description"] == "First.\n\nSecond."
    assert function_to_schema(EAGER.ROWS[0][0])["description"] == ""
    assert function_to_schema(EAGER.Tools())["description"] == "Call it."


def test_type_alone_has_a_schema():
    assert type_to_schema(int) == {"type": "integer"}
    assert (
        type_to_schema(Spot)["$ref"] == "#/$defs/Spot" and "Spot" in type_to_schema(Spot)["$defs"]
    )
    for tp in (Engine, JSON_TREE):
        with pytest.raises(SchemaError):
            type_to_schema(tp)


def test_two_classes_of_one_name_stay_apart():
    Spot2 = NamedTuple("Spot", [("z", int)])

    def tool(a: Spot, b: Spot2): ...

    assert properties(tool) == {"a": {"$ref": "#/$defs/Spot"}, "b": {"$ref": "#/$defs/Spot_"}}


def test_schemas_can_be_made_without_importing_the_modules_of_scalars():
    code = (
        "import sys, w4d3_tools_mcp as m\n"
        "def f(a: int, b: str | None = None): ...\n"
        "m.function_to_schema(f)\n"
        "assert not {'datetime', 'decimal', 'uuid', 'pathlib'} & set(sys.modules)\n"
    )
    where = pathlib.Path(product.__file__).parent
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=where, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
