"""§ 3 参数: text → dict, dict × schema → problems. Oracles: json, jsonschema, own tables."""

import collections
import copy
import json
import math
import random
import re
import subprocess
import sys
import types
import warnings
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp as m
from w4d3_tools_mcp import (
    ArgumentsError,
    check_schema,
    closest,
    compile_pattern,
    compile_schema,
    explain,
    parse_arguments,
    repair_arguments,
    show,
    validate_arguments,
)

NAN, INF = math.nan, math.inf


def obj(required=(), **properties):
    """An object schema with no room for other names."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def one(schema):
    """The schema of a tool with one required parameter `v`."""
    return obj(["v"], v=schema)


def texts(args, schema):
    return [str(problem) for problem in validate_arguments(args, schema)]


def oracle(schema, args):
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(args)


# ── parse_arguments ──

NESTED_TEXT = "[" * 150 + "]" * 150
ACCEPTED_AS_JSON = [
    "{}",
    '{"city": "Oulu"}',
    ' \r\n\t{"n": 7}\n ',
    '{"path": "D:\\\\new\\\\table"}',
    '{"": 0}',
    '{"a": {"b": [1, {"c": null}]}}',
    '{"q": "tab\\there, quote\\" and \\u4e2d"}',
    '{"emoji": "\\ud83d\\ude00"}',
    '{"emoji": "😀"}',
    '{"n": -0.5e-3, "m": 12345678901234567890}',
    '{"code": "007"}',
    '{"s": "{\\"k\\": 1}"}',
    '{"s": "[1, 2,]"}',
    '{"s": ",}"}',
    '{"s": "True, None and \'quotes\'"}',
    '{"s": "```json\\n{}\\n```"}',
    '{"s": "全角：“引号”，（括号）"}',
    '{"s": "}{"}',
    '{"a": 1, "a": 1}',
    '{"a": 1, "a": 1.0}',
    '{"s": "NaN Infinity 1e999"}',
    '{"s": "C:\\\\ud800"}',
    '{"n": ' + "9" * 400 + "}",
    '{"n": ' + "9" * 4_000 + "}",
    '{"deep": ' + NESTED_TEXT + "}",
    '{"s": "' + "[" * 5_000 + '"}',
    '{"s": "' + "x" * 1_000_000 + '"}',
]


@pytest.mark.parametrize("text", ACCEPTED_AS_JSON, ids=lambda text: text[:40])
def test_every_json_object_means_what_json_says(text):
    assert parse_arguments(text) == json.loads(text)


MENDED = [
    (None, {}),
    ("", {}),
    ("  \n\t ", {}),
    ("\ufeff", {}),
    ('\ufeff{"a": 1}', {"a": 1}),
    ({"a": object}, {"a": object}),
    (collections.OrderedDict(a=collections.OrderedDict(b=(1, 2))), {"a": {"b": [1, 2]}}),
    (types.MappingProxyType({"a": {"b": None}}), {"a": {"b": None}}),
    (collections.ChainMap({"a": 1}, {"b": object}), {"a": 1, "b": object}),
    # encoded as a string
    (json.dumps('{"a": 1}'), {"a": 1}),
    (json.dumps(json.dumps('{"a": "b\\"c"}')), {"a": 'b"c'}),
    (json.dumps("{'a': None,}"), {"a": None}),
    (json.dumps('  {"a": 1}\n'), {"a": 1}),
    (json.dumps("{}"), {}),
    # fences
    ('```json\n{"a": 1}\n```', {"a": 1}),
    ('```\n{"a": 1}\n```', {"a": 1}),
    ('```JSON\r\n{"a": 1}\r\n```  \n', {"a": 1}),
    ('``` {"a": "``"} ```', {"a": "``"}),
    ('```json\n{"s": "```x```"}\n```', {"s": "```x```"}),
    # raw control characters
    ('{"s": "one\ntwo\tthree\x01"}', {"s": "one\ntwo\tthree\x01"}),
    # trailing commas
    ('{"a": 1,}', {"a": 1}),
    ('{"a": [1, 2, ], }', {"a": [1, 2]}),
    ('{"a": {"b": "x"\n,\n}\n}', {"a": {"b": "x"}}),
    ('{"a": true,}', {"a": True}),
    ('{"a": [[],],}', {"a": [[]]}),
    ('{"s": ",]",}', {"s": ",]"}),
    ('{"s": "\\",}",}', {"s": '",}'}),
    # Python's spelling
    ('{"a": True, "b": None, "c": False}', {"a": True, "b": None, "c": False}),
    ("{'a': 'b'}", {"a": "b"}),
    ("{'a': [1, -2.5, 'x',],}", {"a": [1, -2.5, "x"]}),
    ("{'say': 'it\\'s \"fine\"'}", {"say": 'it\'s "fine"'}),
    ("{'say': \"it's\"}", {"say": "it's"}),
    ("{'p': 'D:\\\\new'}", {"p": "D:\\new"}),
    ("{'nbsp': 'a\\xa0b', 'line': 'a\\nb'}", {"nbsp": "a\xa0b", "line": "a\nb"}),
    ("{'True': 'None', \"x\": 'True,}'}", {"True": "None", "x": "True,}"}),
    ("{'a': '', 'b': \"\"}", {"a": "", "b": ""}),
]


@pytest.mark.parametrize("text, value", MENDED, ids=lambda part: repr(part)[:40])
def test_spelling_with_one_reading_is_mended(text, value):
    assert parse_arguments(text) == value


REFUSED = [
    # cut off
    ('{"a": 1', "没有写完"),
    ('{"a": "some te', "没有写完"),
    ('{"a": [1, 2', "没有写完"),
    ('{"a": {"b": 1}', "没有写完"),
    ('{"a": ', "没有写完"),
    ('{"a', "没有写完"),
    ("{", "没有写完"),
    ('{"a": 1,', "没有写完"),
    ('{"a": tru', "没有写完"),
    ('{"a": "x\\', "没有写完"),
    ('"{\\"a\\": 1', "没有写完"),
    (json.dumps('{"a": 1'), "没有写完"),
    ('```json\n{"a": 1', "没有写完"),
    # not an object
    ("[1, 2]", "对象"),
    ('[{"a": 1}]', "对象"),
    ("3", "对象"),
    ("true", "对象"),
    ("null", "对象"),
    ("None", "对象"),
    ('"hello"', "hello"),
    ('""', "对象"),
    ("我无法调用这个工具。", "JSON"),
    ("city=Oulu", "JSON"),
    ("17*23+4", '写成 {…}，收到的是 "17*23+4"'),
    ("12 km", '收到的是 "12 km"'),
    ('""' * 9, "JSON"),
    # two objects, or more than an object
    ('{"a": 1}{"a": 2}', "多余"),
    ('{"a": 1}\n{"b": 2}', "多余"),
    ('{"a": 1} done', "多余"),
    ('{"a": 1}}', "多余"),
    ('```json\n{"a": 1}\n```\n```json\n{"b": 2}\n```', "多余"),
    # quotes that could be read in two ways
    ('{"code": "print("hi")"}', "双引号"),
    ('{"code": "print(""hi"")"}', "双引号"),
    ("{'code': 'print('hi')'}", "JSON"),
    ("{'code': 'print(''hi'')'}", "JSON"),
    ("{'a': 'b' 'c'}", "JSON"),
    ('{"a": "it"s"}', "双引号"),
    # other spelling mistakes: where, and what to do
    ('{"a" 1}', "冒号"),
    ('{"a": 1 "b": 2}', "逗号"),
    ('{"a": , "b": 2}', "合法的值"),
    ('{"re": "\\*"}', "反斜杠"),
    ('{"u": "\\u12"}', "十六进制"),
    ("{a: 1}", "双引号"),
    ('{\\"a\\": 1}', '“{\\"a\\": 1}” 附近，键要用英文双引号括起来，引号前面不要加反斜杠'),
    ('{"a": 1 \\\\}', '“{"a": 1 \\\\}” 附近'),
    ('{"a": "' + "x" * 600, "分几次发送"),
    ("{,}", "双引号"),
    ('{"a": [,]}', "值"),
    ('{"a": 1,,}', "双引号"),
    ('{"a": 1 // note\n}', "第 1 行第 9 列"),
    ('{\n"a": 1,\n"b" 2}', "第 3 行第 5 列"),
    ("{“a”: 1}", "双引号"),
    # numbers that are none
    ('{"a": NaN}', "NaN"),
    ('{"a": -Infinity}', "-Infinity"),
    ('{"a": [1e999]}', "1e999"),
    ('{"a": -1e400}', "-1e400"),
    (json.dumps('{"a": NaN}'), "NaN"),
    ("{'a': Infinity}", "JSON"),
    ("{'a': 1e999}", "1e999"),
    ("{'a': nan}", "JSON"),
    ('{"a": ' + "7" * 5_000 + "}", "5000 位"),
    ('{"a": -' + "7" * 5_000 + "}", "5001 位"),
    (json.dumps('{"a": ' + "7" * 5_000 + "}"), "5000 位"),
    # keys
    ('{"a": 1, "a": 2}', '"a"'),
    ('{"a": 1, "a": true}', '"a"'),
    ('{"x": {"k": 1, "j": 0, "k": [1]}}', '"k"'),
    ("{'a': 1, 'a': 2}", '"a"'),
    # broken characters
    ('{"s": "\\ud83d"}', "\\ud"),
    ('{"s": "\\uDE00\\ud83d"}', "\\ud"),
    ('{"s": "\ud800"}', "\\ud"),
    ('{"\\udfff": 1}', "\\ud"),
    # too much
    ('{"a":' * 50_000, "嵌套"),
    ("[" * 1_000_000, "嵌套"),
    (json.dumps("[" * 50_000), "对象"),
    ('{"a": ' + "[" * 300 + "]" * 300 + "}", "嵌套"),
    ("{'a': " + "[" * 100_000, "嵌套"),
    ('{"a": "' + "x" * 3_000_000 + '"}', "字符"),
    # Python that is not JSON
    ("__import__('os').getcwd()", "JSON"),
    ("{'a': {1, 2}}", "JSON"),
    ("{'a': 1j}", "JSON"),
    ("{'a': b'x'}", "JSON"),
    ("{'a': (1, 2)}", "JSON"),
    ("{1: 2}", "双引号"),
    ("{'a': 1_000}", "JSON"),
    ("{'a': " + "-" * 30_000 + "1}", "JSON"),
    ("{'a': " + "(" * 300 + ")" * 300 + "}", "JSON"),
    ("{'a': f'{1+1}'}", "JSON"),
    ("dict(a=1)", "JSON"),
    ("{'a': '\\x4'}", "JSON"),
    ("\x00", "JSON"),
    # not text at all
    (3, "对象"),
    (["a"], "对象"),
    (b'{"a": 1}', "对象"),
    (object(), "对象"),
    (NAN, "NaN"),
]


@pytest.mark.parametrize("text, says", REFUSED, ids=lambda part: repr(part)[:40])
def test_what_has_no_single_reading_is_refused_with_a_reason(text, says):
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(text)
    message = str(caught.value)
    assert says in message
    assert len(message) <= 400
    message.encode("utf-8")


def test_a_short_text_that_breaks_off_is_not_told_to_come_in_pieces():
    with pytest.raises(ArgumentsError, match="重新发送完整的 JSON 对象$"):
        parse_arguments("{")


QUADRATIC = [
    '{"a": "' + "\\'" * 200_000,
    "{'a': '" + '\\"' * 200_000,
    "{" + '"' * 400_001,
    "{'" + "\\'" * 200_000,
    "{" + " " * 1_000_000 + ",",
    "{1" + ", " * 500_000,
    '{"a": ' + "[]," * 300_000,
    "```" + " " * 1_000_000,
    "```" + "``` " * 200_000,
    "{" + "True" * 300_000,
    "{" + "\\ud8" * 200_000,
]


@pytest.mark.parametrize("text", QUADRATIC, ids=lambda text: text[:12])
def test_long_nonsense_is_refused_in_linear_time(text):
    with pytest.raises(ArgumentsError):  # minutes, if any scanner were quadratic
        parse_arguments(text)


def in_child_process(code, value, seconds=120):
    """What `code` prints, given the product as `m` and a value; killed if it takes too long."""
    run = [sys.executable, "-c", f"import json, sys, w4d3_tools_mcp as m\n{code}"]
    where = Path(m.__file__).parent
    done = subprocess.run(
        run, cwd=where, input=json.dumps(value), capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


HEADS = ["", "{", '{"a": ', "{'a': '", '{"a": "', "```", "```json\n{", "[", '"{', "{'\\", "1"]
PIECES = [*" \t\"'\\,:[]{}`-e0.aT", "\\u", "\\'", '\\"', ", ", "''", '""', ",]", "None", "``` "]
PARSE_ALL = """
for text in json.load(sys.stdin):
    try:
        m.parse_arguments(text)
    except m.ArgumentsError:
        pass
    m.show(text), m.closest(text, [text[1:], "a"])
    m.repair_arguments({"v": text}, {"properties": {"v": {"type": ["integer", "array"]}}})
"""


def test_hostile_text_of_every_kind_is_read_in_linear_time():
    texts = [
        f"{head}{piece * (40_000 // len(piece))}{tail}"
        for head in HEADS
        for piece in PIECES
        for tail in ("", "}", "!")
    ]
    in_child_process(PARSE_ALL, texts)  # minutes, if any scanner were quadratic


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=5)


@given(OBJECTS)
def test_written_by_json_read_back_the_same(value):
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(json.dumps(value, ensure_ascii=False, indent=1)) == value
    assert parse_arguments(json.dumps(json.dumps(value))) == value


@given(
    st.dictionaries(
        st.text("ab'\"\\ \n,}{:", max_size=6), st.text("x'\"\\n,]}\t", max_size=9) | st.none()
    )
)
def test_written_by_python_read_back_the_same(value):
    assert parse_arguments(repr(value)) == value


@given(OBJECTS.filter(bool), st.data())
def test_a_cut_off_object_is_never_completed(value, data):
    text = json.dumps(value)
    cut = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(ArgumentsError):
        parse_arguments(text[:cut])


@given(st.text("{}[]\"':,\\ 01eE+-.tTrueNonfals`ud8x\n", max_size=40))
def test_any_text_gives_a_dict_of_finite_json_or_a_clean_error(text):
    try:
        value = parse_arguments(text)
    except ArgumentsError as error:
        assert len(str(error)) <= 400
    else:
        assert type(value) is dict
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")


# ── validate_arguments: verdicts that jsonschema shares ──

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
SHAPE = one(
    {
        "oneOf": [
            obj(["kind", "r"], kind={"const": "disc"}, r={"type": "number"}),
            obj(["kind", "w"], kind={"const": "bar"}, w={"type": "number"}),
        ]
    }
)
VALUES = {  # schema of v → values to try; jsonschema gives the verdict
    '{"type": "integer"}': [4, 4.0, 4.5, "4", True, None, 1e300, -0.0, [4], 10**30],
    '{"type": "number"}': [0.5, 3, "0.5", False, None, 10**400],
    '{"type": "string"}': ["", "x", 4, None, ["x"], {}],
    '{"type": "boolean"}': [True, False, 0, 1, "true", None],
    '{"type": "null"}': [None, 0, "", False],
    '{"type": "array"}': [[], [1], {}, "[]", None],
    '{"type": "object"}': [{}, {"a": 1}, [], "{}"],
    '{"type": ["integer", "null"]}': [1, None, "1", 1.5],
    '{"type": ["string", "array"]}': ["a", [], {}, 3],
    "{}": [None, 1, "x", [], {}],
    '{"enum": ["a", "b"]}': ["a", "c", None, 1],
    '{"enum": [1, 2.0]}': [1, 1.0, 2, True, "1"],
    '{"enum": [true]}': [True, 1, 1.0],
    '{"enum": [0]}': [0, False, 0.0, -0.0],
    '{"enum": [[false], {"k": 1}]}': [[False], [0], {"k": 1.0}, {"k": True}, {}],
    '{"enum": [null]}': [None, 0],
    '{"const": 1}': [1, 1.0, True, "1"],
    '{"const": {"a": [1, "x"]}}': [{"a": [1, "x"]}, {"a": ["x", 1]}, {}],
    '{"const": null}': [None, False],
    '{"type": "integer", "minimum": 1, "maximum": 5}': [0, 1, 5, 6, 3.0],
    '{"minimum": 2}': [1, 2, "text", None],
    '{"maximum": 1e3}': [1000, 1001, 10**400, -(10**400)],
    '{"exclusiveMinimum": 0}': [0, 0.0001, -1],
    '{"exclusiveMaximum": 1}': [1, 0.999, 1.0],
    '{"multipleOf": 64}': [4096, 100, 0, 64.0, "x"],
    '{"multipleOf": 0.5}': [1.5, 0.75, 2],
    '{"minLength": 2}': ["", "中", "中文", "😀", 5],
    '{"maxLength": 2}': ["中文", "中文字", "😀😀"],
    '{"pattern": "[0-9]"}': ["a1b", "ab", "", 5],
    '{"pattern": "^[A-Z]{2}$"}': ["AB", "ABC", "ab"],
    '{"pattern": "^(-[a-z]+)*$"}': ["", "-a-b", "a"],
    '{"format": "date"}': [
        "2031-02-28",
        "2031-02-29",
        "2032-02-29",
        "2031-2-8",
        "28.02.2031",
        "",
        7,
    ],
    '{"format": "uuid"}': ["3fa85f64-5717-4562-b3fc-2c963f66afa6", "3fa85f64", "x" * 36],
    '{"format": "email"}': ["a@b.org", "nobody"],
    '{"format": "ipv4"}': ["10.0.0.1", "10.0.0.256", "1.2.3", "01.2.3.4", "::1"],
    '{"format": "ipv6"}': ["::1", "2001:db8::1", "1.2.3.4", ":::", "fe80::1%eth0"],
    '{"format": "int32"}': [5, "x"],
    '{"items": {"type": "integer"}}': [[], [1, 2], [1, "2"], "x"],
    '{"items": false}': [[], [1]],
    '{"items": true}': [[None]],
    '{"minItems": 1}': [[], [1], "x"],
    '{"maxItems": 1}': [[], [1, 2]],
    '{"uniqueItems": true}': [
        [1, 2],
        [1, 1.0],
        [1, True],
        [[1], [1]],
        [{"a": 1}, {"a": 1}],
        ["1", 1],
    ],
    '{"uniqueItems": false}': [[1, 1]],
    '{"uniqueItems": true, "items": true}': [
        [1e300, 10**300],
        [2**64, 2.0**64],
        [2**70, 2**71],
        [None, False, 0],
    ],
    '{"prefixItems": [{"type": "integer"}, {"type": "string"}]}': [
        [1, "a"],
        ["a", 1],
        [1],
        [],
        [1, "a", None],
    ],
    '{"prefixItems": [{"type": "integer"}], "items": false}': [[1], [1, 2], []],
    '{"prefixItems": [{}], "items": {"type": "string"}}': [[1, "a"], [1, 2]],
    '{"contains": {"const": "root"}}': [["a", "root"], ["a"], []],
    '{"required": ["a"]}': [{"a": None}, {}, []],
    '{"properties": {"a": {"type": "integer"}}}': [{"a": 1}, {"a": "1"}, {"b": "1"}, {}],
    '{"properties": {"a": false}}': [{}, {"a": 1}],
    '{"additionalProperties": false}': [{}, {"a": 1}],
    '{"additionalProperties": {"type": "number"}}': [{"a": 1, "b": 2}, {"a": "x"}],
    '{"patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": false}': [
        {"x_a": 1},
        {"x_a": "1"},
        {"y": 1},
    ],
    '{"propertyNames": {"pattern": "^[a-z]+$"}}': [{"ab": 1}, {"A": 1}, {}],
    '{"minProperties": 1}': [{}, {"a": 1}],
    '{"maxProperties": 1}': [{"a": 1}, {"a": 1, "b": 2}],
    '{"dependentRequired": {"a": ["b", "c"]}}': [{"a": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1}],
    '{"allOf": [{"type": "integer"}, {"minimum": 3}]}': [3, 2, "x"],
    '{"anyOf": [{"type": "number"}, {"type": "null"}]}': [1, None, "x", True],
    '{"anyOf": [{"type": "string", "minLength": 2}, {"type": "integer", "minimum": 0}]}': [
        "ab",
        "a",
        1,
        -1,
        [],
    ],
    '{"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]}': ["auto", 4, 4.0, "x", None],
    '{"anyOf": [{"type": "integer", "enum": [4.0]}, {"type": "number", "enum": [7]}]}': [
        4,
        4.0,
        7,
        7.0,
        5,
    ],
    '{"oneOf": [{"type": "integer"}, {"type": "string"}]}': [1, "a", []],
    '{"oneOf": [{"type": "integer"}, {"minimum": 2}]}': [1, 3, 2.5, "x"],
    '{"oneOf": [{"type": "number"}, {"type": "integer"}]}': [1, 1.0, 1.5],
    '{"not": {"const": "root"}}': ["root", "x"],
    '{"not": {}}': [1],
    '{"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}}}': [
        {"a": {}},
        {"a": {"b": 1}},
    ],
    '{"default": 5, "title": "t", "description": "d", "examples": [1], "$comment": "c"}': [None],
}
SHARED_CASES = [(schema, value) for schema, values in VALUES.items() for value in values]


@pytest.mark.parametrize("schema, value", SHARED_CASES, ids=lambda part: repr(part)[:60])
def test_verdict_agrees_with_jsonschema(schema, value):
    schema = one(json.loads(schema))
    problems = validate_arguments({"v": value}, schema)
    assert (problems == []) == oracle(schema, {"v": value})
    assert all("v" in str(problem) and len(str(problem)) <= 400 for problem in problems)


WHOLE_CASES = [
    (TREE, {"root": {"v": 1, "kids": [{"v": 2, "kids": []}]}}),
    (TREE, {"root": {"v": 1, "kids": [{"v": "2"}]}}),
    (TREE, {"root": {"kids": [{}]}}),
    (SHAPE, {"v": {"kind": "bar", "w": 1}}),
    (SHAPE, {"v": {"kind": "bar", "r": 1}}),
    (SHAPE, {"v": {"kind": "star"}}),
    (SHAPE, {"v": {"w": 1}}),
    (SHAPE, {"v": 3}),
    (
        {"properties": {"n": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "integer"}}},
        {"n": "x"},
    ),
    (
        {"properties": {"n": {"$ref": "#/$defs/m~0n"}}, "$defs": {"m~n": {"type": "integer"}}},
        {"n": "x"},
    ),
    (
        {"properties": {"n": {"$ref": "#/$defs/a%20b"}}, "$defs": {"a b": {"type": "integer"}}},
        {"n": "x"},
    ),
    (
        {
            "properties": {"n": {"$ref": "#/$defs/P/prefixItems/1"}},
            "$defs": {"P": {"prefixItems": [{}, {"type": "null"}]}},
        },
        {"n": 1},
    ),
    (
        {
            "properties": {"n": {"$ref": "#/$defs/K", "maximum": 3}},
            "$defs": {"K": {"type": "integer"}},
        },
        {"n": 5},
    ),
    (
        {
            "properties": {"n": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "null"}},
        },
        {"n": 5},
    ),
    (
        {"properties": {"kid": {"$ref": "#"}}, "additionalProperties": False},
        {"kid": {"kid": {"x": 1}}},
    ),
    ({"properties": {"kid": {"$ref": "#"}}, "additionalProperties": False}, {"kid": {"kid": {}}}),
    ({"required": ["a"], "properties": {"a": {}}}, {}),
    ({}, {"anything": [1, {"x": None}]}),
    (True, {"a": 1}),
    (False, {}),
]


@pytest.mark.parametrize("schema, args", WHOLE_CASES, ids=lambda part: repr(part)[:50])
def test_verdict_on_whole_schemas_agrees_with_jsonschema(schema, args):
    assert (validate_arguments(args, schema) == []) == oracle(schema, args)


# ── patterns: the language of `re`, in linear time ──

PLACES = "(?m:^) (?m:$) (?<=a) (?<!a) (?=a) (?!b) (?<=ab)"
ATOMS = r"a b ab [ab] [^a] . \d \w \s \b \B ^ $ \A \Z A - \n 1 é [a-z0-9] [^\W_] ()"
ATOMS = st.sampled_from([*ATOMS.split(), *PLACES.split(), "(?i:a)", "(?-i:a)", "(?s:.)"])
REPEATS = st.sampled_from("* + ? {2} {1,3} {0,2} {2,} *? +? ??".split())
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]}|)"),
        st.tuples(inner, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda pair: f"{pair[0]}{pair[1]})"),
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["", "(?i)", "(?s)", "(?m)", "(?a)"]),
    PATTERNS,
    st.text("abA1 -\né_", max_size=7),
)
@settings(max_examples=400, deadline=None)
def test_a_pattern_means_what_it_means_to_re(flags, pattern, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = bool(re.search(flags + pattern, text))
        except re.error:
            return
        assert compile_pattern(flags + pattern).search(text) == expected


EMAIL = r"^[^@\s]+@[^@\s]+\.[a-z]+$"
SEMVER = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)
ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)"
    r"[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
TOOLS_USE = [
    (ZOD_EMAIL, ["a.b@example.org"], ["a..b@example.org", ".a@b.cd", "a@b"]),
    (EMAIL, ["ada@example.org"], ["ada@example", "a b@c.de", "@c.de"]),
    (SEMVER, ["1.0.0", "1.2.3-rc.1+build.5"], ["1.0", "01.2.3", "1.2.3-"]),
    (r"^\d{4}-\d{2}-\d{2}$", ["2026-11-30"], ["2026-11-3", "x2026-11-30"]),
    (r"^[a-z0-9]+(?:-[a-z0-9]+)*$", ["a-slug-2"], ["a--b", "-a", ""]),
    (r"^\w+( \w+)*$", ["two words"], ["two  words", " a"]),
    (
        r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        ["0" * 8 + "-0000" * 3 + "-" + "0" * 12],
        ["0"],
    ),
    (r"^(?=.*[A-Z])(?=.*\d).{8,}$", ["Passw0rds"], ["password", "P0"]),
    (r"^(?!-)[a-z-]{1,63}(?<!-)$", ["a-b"], ["-a", "a-"]),
    (r"^#?([0-9a-f]{3}|[0-9a-f]{6})$", ["#fff", "a0b1c2"], ["#ffff"]),
    (r"^(/[^/ ]*)+/?$", ["/a/b/"], ["a/b", "/a b"]),
    (r"^https?://[^\s/$.?#].[^\s]*$", ["https://example.org/a?b"], ["ftp://a", "http://"]),
    (r"^\+?[1-9]\d{1,14}$", ["+358401234567"], ["0401", "+"]),
    (r"^(\d{1,3}\.){3}\d{1,3}$", ["10.0.0.1"], ["10.0.1"]),
    (r"^.{1,1000}$", ["x", "x" * 1_000], ["", "x" * 1_001]),
    (r"^[\u4e00-\u9fff]+$", ["图尔库"], ["Turku", ""]),
    (r"^.{0,2000}$", ["", "x" * 2_000], ["x" * 2_001]),
    (r"^\w{1,4096}$", ["x" * 4_096], ["", "x" * 4_097, "a b"]),
]


@pytest.mark.parametrize("pattern, good, bad", TOOLS_USE, ids=lambda part: str(part)[:30])
def test_patterns_of_real_tools_are_checked(pattern, good, bad):
    schema = one({"type": "string", "pattern": pattern})
    assert check_schema(schema) == []
    for text in good + bad:
        assert oracle(schema, {"v": text}) == (text in good)
        assert (texts({"v": text}, schema) == []) == (text in good)


EXPLOSIVE = [
    "(a+)+$",
    "(a|aa)+$",
    "^(a+?)+?$",
    "(a?){20}a{20}b",
    "((a?){20}a{20})*b",
    "a*a*a*a*b",
    "(.*)*(.*)*(.*)*b",
    "(a*)*b",
    "^(\\w+\\s?)*$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$",
    "(a|b)*a(a|b){200}c",
    "(?=(a*)*b)a",
    "(?=(?=(a*)*b)a)*a",
    "(?:(?!(a|aa)+$).)*b",
    "((a{0,60}){0,9}){2,}b",
    "(x+x+)+y|(a|a)*b|(?i:A+)+!!",
]


def test_named_groups_may_be_written_as_in_javascript():
    year = compile_pattern(r"^(?<year>\d{4})-(?<month>\d\d)$")
    assert year.search("2026-11") and not year.search("26-11")
    no_group = compile_pattern(r"^\(?<a[(?<b]?\\(?<c>d)$")  # only the last one is a group
    assert no_group.search(r"(<a\d") and no_group.search(r"<a<\d")
    assert not no_group.search(r"<aP\d")


CHECK_ALL = """
patterns, texts = json.load(sys.stdin)
for pattern in patterns:
    schema = {"type": "object", "properties": {"v": {"pattern": pattern}}}
    schema["patternProperties"] = {pattern: {"type": "integer"}}
    refused = m.check_schema(schema)
    for text in texts:
        m.validate_arguments({"v": text}, schema), m.validate_arguments({text: 1}, schema)
print(len(patterns))
"""


def generated_patterns(count):
    """Random nests of repeats, the kind that backtracking cannot bear."""
    pick = random.Random(7).choice

    def piece(depth):
        if depth == 0:
            return pick(["a", "aa", "[ab]", ".", "\\w", "a?", "ab", "^", "$"])
        form = pick(["({0}){2}", "(?:{0}|{1}){2}", "{0}{1}", "({0}{1}?){2}", "(?={0}){1}"])
        return form.format(
            piece(depth - 1), piece(depth - 1), pick(["*", "+", "*?", "{2,}", "{0,9}"])
        )

    return [f"{piece(3)}{pick(['', '$', 'c'])}" for _ in range(count)]


def test_no_pattern_takes_long_on_any_text():
    texts = ["a" * 5_000 + "!", "ab" * 2_500, "aaaa@" + "a." * 2_000 + "!"]
    patterns = EXPLOSIVE + generated_patterns(40)
    assert in_child_process(CHECK_ALL, [patterns, texts], 300).strip() == str(len(patterns))


def test_a_pattern_that_means_something_else_one_day_warns_nobody(capfd):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert check_schema(one({"pattern": "[[a]x--y]&&"})) == [] and told == []
    assert capfd.readouterr() == ("", "")


def test_nasty_patterns_are_checked_all_the_same():
    for pattern in ["(a|aa)+$", "^(a+?)+?$", "a*a*a*b", "^(a?){20}a{20}$", "(a*)*b"]:
        schema = one({"pattern": pattern})
        assert check_schema(schema) == []
        for text in ["a" * 22, "a" * 22 + "b", "a" * 22 + "c", ""]:
            expected = bool(re.search(pattern.replace("(a*)*", "a*"), text))
            assert (validate_arguments({"v": text}, schema) == []) == expected


def test_work_on_many_long_texts_is_bounded_for_the_whole_call():
    schema = one({"items": {"pattern": "(a|b)*a(a|b){200}c"}})
    (problem,) = validate_arguments({"v": ["a" * 5_000] * 1_000}, schema)
    assert problem.keyword == "depth"


HOSTILE_FORMATS = """
for name, pieces in json.load(sys.stdin).items():
    for piece in pieces:
        values = [piece * (5_000 // len(piece)) + tail for tail in "x! "] * 100
        m.validate_arguments({"v": values}, {"properties": {"v": {"items": {"format": name}}}})
"""


def test_formats_are_checked_in_linear_time():
    pieces = [
        ":",
        ".",
        "1",
        "a",
        "-",
        "@",
        "a.",
        "a@",
        "1:",
        "1.",
        "a:b",
        "0-",
        "2031-02-28T10:00:00.",
    ]
    in_child_process(HOSTILE_FORMATS, dict.fromkeys(m._FORMATS, pieces))


# ── validate_arguments: what is said ──

LR = obj(["learning_rate"], learning_rate={"type": "number"})
MESSAGES = [
    (one({"type": "integer"}), {"v": "8k"}, ['参数 v 应该是 integer，收到的是 "8k"']),
    (one({"type": "integer"}), {"v": None}, ["参数 v 应该是 integer，收到的是 null"]),
    (
        one({"type": "integer"}),
        {"v": "12"},
        ['参数 v 应该是 integer，收到的是 "12"；请直接写 12，不要加引号'],
    ),
    (
        one({"type": "boolean"}),
        {"v": "true"},
        ['参数 v 应该是 boolean，收到的是 "true"；请直接写 true，不要加引号'],
    ),
    (
        one({"type": "array"}),
        {"v": "[1, 2]"},
        ['参数 v 应该是 array，收到的是 "[1, 2]"；请直接写 [1, 2]，不要加引号'],
    ),
    (
        one({"type": "object"}),
        {"v": "{}"},
        ['参数 v 应该是 object，收到的是 "{}"；请直接写 {}，不要加引号'],
    ),
    (  # Python's quotes, or cut off: not mended, but the advice is the same
        one({"type": "object"}),
        {"v": "{'a': 1}"},
        ["参数 v 应该是 object，收到的是 \"{'a': 1}\"；请直接写 object，不要加引号"],
    ),
    (
        one({"type": ["array", "null"]}),
        {"v": " [1, 2"},
        ['参数 v 应该是 array 或 null，收到的是 " [1, 2"；请直接写 array，不要加引号'],
    ),
    (one({"type": "object"}), {"v": "[1"}, ['参数 v 应该是 object，收到的是 "[1"']),
    (one({"type": ["integer", "null"]}), {"v": []}, ["参数 v 应该是 integer 或 null，收到的是 []"]),
    (
        obj(v={"type": "string"}),
        {"v": None},
        ["参数 v 应该是 string，收到的是 null；不需要就不要传"],
    ),
    (
        one({"type": "string", "enum": ["C", "F"]}),
        {"v": "K"},
        ['参数 v 只能是 "C"、"F" 之一，收到的是 "K"'],
    ),
    (
        one({"type": "string", "enum": ["C", "F"]}),
        {"v": 1},
        ['参数 v 应该是 string，只能是 "C"、"F" 之一，收到的是 1'],
    ),
    (
        one({"enum": ["red", "green"]}),
        {"v": "Red"},
        ['参数 v 只能是 "red"、"green" 之一，收到的是 "Red"，是不是想写 "red"？'],
    ),
    (one({"const": True}), {"v": 1}, ["参数 v 只能是 true，收到的是 1"]),
    (one({"minimum": 1}), {"v": 0}, ["参数 v 不能小于 1，收到的是 0"]),
    (one({"maximum": 16}), {"v": 17.5}, ["参数 v 不能大于 16，收到的是 17.5"]),
    (one({"exclusiveMinimum": 0}), {"v": 0}, ["参数 v 必须大于 0，收到的是 0"]),
    (one({"multipleOf": 64}), {"v": 100}, ["参数 v 必须是 64 的倍数，收到的是 100"]),
    (one({"minLength": 1}), {"v": ""}, ['参数 v 至少要有 1 个字符，收到的是 ""']),
    (
        one({"maxLength": 2}),
        {"v": "中文字"},
        ['参数 v 最多 2 个字符，现有 3 个，收到的是 "中文字"'],
    ),
    (
        one({"format": "date"}),
        {"v": "soon"},
        ['参数 v 应该是 date 格式（如 2031-02-28），收到的是 "soon"'],
    ),
    (
        one({"anyOf": [{"type": "number"}, {"type": "null"}]}),
        {"v": "x"},
        ['参数 v 应该是 number 或 null，收到的是 "x"'],
    ),
    (
        one({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        {"v": 0},
        ["参数 v 不能小于 1，收到的是 0"],
    ),
    (
        one({"anyOf": [{"const": "auto"}, {"type": "integer"}]}),
        {"v": "x"},
        ['参数 v 应该是 "auto" 或 integer，收到的是 "x"'],
    ),
    (
        one({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}),
        {"v": [1, "x"]},
        ['参数 v[1] 应该是 integer，收到的是 "x"'],
    ),
    (
        one({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        {"v": {}},
        ["缺少必填参数 v.a；或者缺少必填参数 v.b"],
    ),
    (SHAPE, {"v": {"kind": "bar"}}, ["缺少必填参数 v.w"]),
    (
        SHAPE,
        {"v": {"kind": "star", "w": 1}},
        ['参数 v.kind 只能是 "disc"、"bar" 之一，收到的是 "star"'],
    ),
    (
        one({"not": {"const": "root"}}),
        {"v": "root"},
        ['参数 v 不能符合 {"const": "root"}，收到的是 "root"'],
    ),
    (one(False), {"v": 1}, ["参数 v 不允许出现，请去掉，收到的是 1"]),
    (
        LR,
        {"learnig_rate": 0.1},
        ["缺少必填参数 learning_rate", "没有参数 learnig_rate，是不是想写 learning_rate？"],
    ),
    (LR, {"learning_rate": 0.1, "zzz": 1}, ["没有参数 zzz，可用的有 learning_rate"]),
    (obj(), {"zzz": 1}, ["没有参数 zzz，这里不接受任何参数"]),
    (obj(city={}), {"City": "x"}, ["没有参数 City，是不是想写 city？"]),
    (obj(max_tokens={}), {"maxTokens": 1}, ["没有参数 maxTokens，是不是想写 max_tokens？"]),
    (
        obj(["a", "b", "c"], a={}, b={}, c={}),
        {},
        ["缺少必填参数 a", "缺少必填参数 b", "缺少必填参数 c"],
    ),
    (
        obj(["to", "body"], to={"type": "string"}, body={"type": "string"}),
        {"to": 5, "bdy": "x"},
        [
            "缺少必填参数 body",
            "参数 to 应该是 string，收到的是 5",
            "没有参数 bdy，是不是想写 body？",
        ],
    ),
    (
        one(obj(["lr"], lr={"type": "number"})),
        {"v": {"lr": []}},
        ["参数 v.lr 应该是 number，收到的是 []"],
    ),
    (
        one(obj(["lr"], lr={})),
        {"v": {"lrr": 1}},
        ["缺少必填参数 v.lr", "没有参数 v.lrr，是不是想写 lr？"],
    ),
    (
        TREE,
        {"root": {"v": 1, "kids": [{"v": "two"}]}},
        ['参数 root.kids[0].v 应该是 integer，收到的是 "two"'],
    ),
    (
        one({"items": {"type": "string"}}),
        {"v": ["a", 1, 2]},
        ["参数 v[1] 应该是 string，收到的是 1", "参数 v[2] 应该是 string，收到的是 2"],
    ),
    (
        one({"properties": {"a b": {"type": "string"}}}),
        {"v": {"a b": 1}},
        ['参数 v["a b"] 应该是 string，收到的是 1'],
    ),
    (
        one({"uniqueItems": True}),
        {"v": [1, 2, 1.0]},
        ["参数 v 的元素不能重复，[2] 与 [0] 都是 1.0，收到的是 [1, 2, 1.0]"],
    ),
    (
        one({"contains": {"const": "x"}}),
        {"v": []},
        ['参数 v 里至少要有一个元素符合 {"const": "x"}，收到的是 []'],
    ),
    (
        one({"propertyNames": {"pattern": "^[a-z]+$"}}),
        {"v": {"A": 1}},
        ['键名不合要求：参数 v.A 要符合正则 ^[a-z]+$，收到的是 "A"'],
    ),
    (
        one({"dependentRequired": {"a": ["b"]}}),
        {"v": {"a": 1}},
        ['参数 v 传了 a 就必须同时传 b，收到的是 {"a": 1}'],
    ),
    (one({"type": "number"}), {"v": INF}, ["参数 v 要是有限的数，收到的是 Infinity"]),
    (
        obj(["a"], a={}, v={"minimum": 1}),
        {"v": NAN},
        ["缺少必填参数 a", "参数 v 要是有限的数，收到的是 NaN"],
    ),
    (one({"type": "float"}), {"v": "x"}, ['参数 v 应该是 number，收到的是 "x"']),
    (
        one({"type": "string", "nullable": True}),
        {"v": 1},
        ["参数 v 应该是 string 或 null，收到的是 1"],
    ),
    (
        one({"oneOf": [{"type": "number"}, {"minimum": 0}]}),
        {"v": 1},
        ["参数 v 只能符合一种写法，却同时符合第 1、2 种，收到的是 1"],
    ),
]


@pytest.mark.parametrize("schema, args, expected", MESSAGES, ids=lambda part: repr(part)[:40])
def test_each_problem_is_one_sentence_with_place_expectation_and_value(schema, args, expected):
    assert texts(args, schema) == expected


@pytest.mark.parametrize("args", [[1, 2], "text", None, 3, True, {1, 2}, object()], ids=repr)
def test_arguments_that_are_no_object_are_one_problem(args):
    (problem,) = validate_arguments(args, obj(a={}))
    assert "object" in str(problem) and problem.path == ""


def test_problem_carries_path_and_keyword():
    (problem,) = validate_arguments({"v": [{"x": 0}]}, one({"items": obj(x={"minimum": 1})}))
    assert (problem.path, problem.keyword) == ("v[0].x", "minimum")


NOT_JSON = [
    {"v": {1, 2}},
    {"v": (1,)},
    {"v": b"x"},
    {"v": 1j},
    {"v": object()},
    {1: 2},
    {"v": {None: 1}},
]


@pytest.mark.parametrize("args", NOT_JSON, ids=repr)
def test_values_that_are_not_json_are_refused_even_where_anything_goes(args):
    assert validate_arguments(args, {})


def test_non_finite_numbers_are_refused_anywhere():
    assert validate_arguments({"a": [{"b": -INF}]}, {}) and validate_arguments({"a": NAN}, True)


POLICY = [  # where we differ from jsonschema on purpose, or it raises
    ({"type": "number", "multipleOf": 0.01}, 0.07, True),
    ({"type": "number", "multipleOf": 0.1}, 0.3, True),
    ({"type": "number", "multipleOf": 0.01}, 0.075, False),
    ({"type": "number", "multipleOf": 0.1}, 1e308, True),
    ({"type": "number", "multipleOf": 0.1}, 10**400, True),
    ({"type": "number", "multipleOf": 1e-300}, 1e300, True),
    ({"type": "dict"}, {}, True),
    ({"type": "dict"}, [], False),
    ({"type": "tuple", "items": {"type": "float"}}, [1, 2.5], True),
    ({"type": "float"}, 0.5, True),
    ({"type": "STRING"}, "x", True),
    ({"type": "INTEGER"}, "x", False),
    ({"type": "any"}, [None], True),
    ({"type": "Boolean"}, True, True),
    ({"type": "ArrayList", "items": {"type": "long"}}, [1], True),
    ({"type": "HashMap"}, {"a": 1}, True),
    ({"type": ["int", "None"]}, None, True),
    ({"type": "widget"}, 5, True),
    ({"type": "string", "nullable": True}, None, True),
    ({"type": "string", "nullable": True, "enum": ["a"]}, None, True),
    ({"type": "string", "nullable": False}, None, False),
    ({"items": [{"type": "integer"}, {"type": "string"}]}, [1, 2], False),
    ({"format": "date-time"}, "2031-02-28T10:00:00Z", True),
    ({"format": "date-time"}, "2031-02-28T10:00:00.5+02:00", True),
    ({"format": "date-time"}, "2031-02-28", False),
    ({"format": "time"}, "10:00:00Z", True),
    ({"format": "time"}, "10:00:00+03:00", True),
    ({"format": "time"}, "25:00:00Z", False),
    ({"format": "time"}, "9am", False),
    ({"format": "date-time"}, "2024-01-01T00:00:00", True),
    ({"format": "date-time"}, "2024-01-01t23:59:60.25", True),
    ({"format": "date-time"}, "2024-02-30T00:00:00", False),
    ({"format": "date-time"}, "2024-01-01T00:00", False),
    ({"format": "date-time"}, "2024-01-01 00:00:00", False),
    ({"format": "date-time"}, "2024-01-01T00:00:00+0800", False),
    ({"format": "time"}, "10:00:00", True),
    ({"format": "time"}, "10:00:00.125", True),
    ({"format": "time"}, "10:00", False),
    ({"format": "time"}, "24:00:00", False),
    ({"format": "uri"}, "https://例.org/中文", True),
    ({"format": "uri"}, "no scheme", False),
    ({"format": "email"}, "a b@c", False),
    ({"$ref": "https://example.org/other.json"}, 5, True),
    ({"$ref": "#/$defs/missing"}, 5, True),
    ({"pattern": "(unclosed"}, "x", True),
    ({"pattern": "(a+)+$"}, "a" * 50 + "b", False),
    ({"pattern": "(a+)+$"}, "b" + "a" * 50, True),
    ({"pattern": "^x"}, "x" * 6_000, False),
    ({"default": 3, "type": "string"}, None, False),
    ({"type": "integer", "optional": True}, 3, True),
    ({"minimum": "5", "required": "a", "enum": 3, "properties": []}, {}, True),
]


@pytest.mark.parametrize("schema, value, valid", POLICY, ids=lambda part: repr(part)[:50])
def test_documented_policy_where_the_standard_is_silent_or_harsh(schema, value, valid):
    assert (validate_arguments({"v": value}, one(schema)) == []) is valid


def test_defaults_never_make_a_value_valid():
    assert validate_arguments({}, one({"type": "integer", "default": 3}))


# ── validate_arguments: hostile input ──


def test_messages_stay_short_whatever_is_received():
    schema = one({"type": "integer", "enum": list(range(5_000))}) | {"minProperties": 2}
    for value in [
        "x" * 10**6,
        "\ud800" * 500,
        "\x00" * 500,
        [[1] * 999] * 99,
        {"k" * 9_999: 1},
        10**4_299 + 1,
    ]:
        for problem in validate_arguments({"v": value, "n" * 5_000: 1}, schema):
            assert len(str(problem)) <= 400
            str(problem).encode("utf-8")


def test_thousands_of_problems_are_cut_to_a_readable_number():
    wrong = {f"n{i}": i for i in range(5_000)}
    for schema in [obj(), {"additionalProperties": {"type": "string"}}]:
        problems = validate_arguments(wrong, schema)
        assert len(problems) == 20 and "别的问题" in str(problems[-1])
    assert len(validate_arguments({"v": ["x"] * 10**5}, one({"items": {"type": "null"}}))) == 20


def deep(levels, leaf=0):
    for _ in range(levels):
        leaf = {"v": [leaf]}
    return leaf


@pytest.mark.parametrize("schema", [{}, {"properties": {"v": {"items": {"$ref": "#"}}}}], ids=repr)
def test_deep_arguments_are_a_problem_not_a_crash(schema):
    assert validate_arguments(deep(90), schema) == []
    assert [p.keyword for p in validate_arguments(deep(50_000), schema)] == ["depth"]


def test_a_loop_in_the_arguments_is_a_problem():
    loop = {}
    loop["a"] = [loop, loop]
    assert validate_arguments(loop, {})


HEAVY = [
    ({"uniqueItems": True}, [(2**61 - 1) * n for n in range(20_000)]),  # one hash for all of them
    ({"contains": {"enum": ["abc"]}}, ["abd"] * 100_000),
    ({"items": {"anyOf": [{"enum": ["abc"]}, {"enum": ["abd"]}]}}, ["abd"] * 100_000),
    ({"type": "string"}, [[[0] * 1_000] * 100]),
]


@pytest.mark.parametrize("schema, value", HEAVY, ids=lambda part: repr(part)[:40])
def test_large_arguments_take_no_more_than_linear_time(schema, value):
    problems = validate_arguments({"v": value}, one(schema))
    assert all(len(str(problem)) <= 400 for problem in problems)


def test_thousands_of_repairs_are_not_told_one_by_one():
    _, repairs = repair_arguments({"v": ["1"] * 200_000}, one({"items": {"type": "integer"}}))
    assert len(repairs) <= 10_000


LOOPS = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}},
    },
    {"not": {"$ref": "#"}},
    one({"$ref": "#/properties/v"}),
    one({"$ref": "#/properties/v/anyOf/0", "anyOf": [{"$ref": "#/properties/v"}]}),
    *(
        one({"$ref": "#/$defs/A"})
        | {
            "$defs": {
                "A": {"properties": {"x": {"$ref": "#/$defs/C"}}, word: [{"$ref": "#/$defs/C"}]},
                "C": {"$ref": "#/$defs/A"},
            }
        }
        for word in ("allOf", "anyOf", "oneOf")
    ),
]


@pytest.mark.parametrize("schema", LOOPS, ids=repr)
def test_a_reference_loop_is_noted_and_does_not_hang(schema):
    assert any("绕回" in note for note in check_schema(schema))
    assert compile_schema(schema).takes and repair_arguments({"v": {"x": "1"}}, schema)[1] == []
    assert all(problem.keyword == "not" for problem in validate_arguments({"v": {"x": 1}}, schema))


def test_a_name_with_a_slash_is_not_taken_for_a_path():
    schema = obj(a={"not": {"type": "null"}}, b={"$ref": "#/properties/a/not"})
    schema["properties"] = {"a/not": {"type": "string"}, **schema["properties"]}
    assert oracle(schema, {"b": None}) and validate_arguments({"b": None}, schema) == []
    assert not oracle(schema, {"b": "x"}) and validate_arguments({"b": "x"}, schema)


def test_overlapping_recursive_branches_cannot_take_exponential_time():
    part = {"properties": {"v": {"items": {"$ref": "#/$defs/N"}}}, "required": ["q"]}
    schema = {"$ref": "#/$defs/N", "$defs": {"N": {"anyOf": [part, part, part]}}}
    (problem,) = validate_arguments(deep(60), schema)
    assert problem.keyword == "depth"


def test_doubling_references_cannot_take_exponential_time():
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    defs["d60"] = {"type": "integer"}
    assert validate_arguments({"v": "x"}, one({"$ref": "#/$defs/d0"}) | {"$defs": defs})


def test_each_reference_is_looked_up_a_few_times_however_they_are_knit(monkeypatch):
    lookups, target = [], m._target
    monkeypatch.setattr(m, "_target", lambda *args: lookups.append(args[0]) or target(*args))
    layers = [[{"$ref": f"#/$defs/d{i + 1}_{j}"} for j in range(20)] for i in range(8)] + [[{}]]
    defs = {f"d{i}_{j}": {"anyOf": refs} for i, refs in enumerate(layers) for j in range(20)}
    assert check_schema({**one({"$ref": "#/$defs/d0_0"}), "$defs": defs}) == []
    assert len(lookups) <= 3 * len(defs)  # 13,000, if each loop were looked for from the start


def test_schemas_of_any_depth_and_size_compile():
    deep_schema = {"type": "object"}
    for _ in range(5_000):
        deep_schema = {"properties": {"v": deep_schema}}
    wide = {"properties": {f"p{i}": {"type": "integer"} for i in range(20_000)}}
    loop = {}
    loop["properties"] = {"a": loop, "b": loop}
    links = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(5_000)}
    chain = {"properties": {"v": {"$ref": "#/$defs/d0"}}, "$defs": links}
    nested_enum = []
    for _ in range(5_000):
        nested_enum = [nested_enum]
    for schema in [deep_schema, wide, loop, chain, {"enum": [nested_enum]}]:
        assert check_schema(schema)
        validate_arguments({"v": {"v": 1}}, schema)


# ── validate_arguments: random schemas against jsonschema, and anything at all ──

NAMES = st.sampled_from(["a", "b", "c"])
LEAF = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, -3, "", "a", "ab", 10**20])
DATA = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["integer", "number", "string", "boolean", "null", "array", "object"])
COUNT = st.integers(0, 3)
WORDS = st.lists(NAMES, max_size=2, unique=True)


def keywords(inner):
    some = st.lists(inner, min_size=1, max_size=3)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(DATA, min_size=1, max_size=3),
        "const": DATA,
        "minimum": st.sampled_from([0, 1, 2.5]),
        "maximum": st.sampled_from([0, 1, 2.5]),
        "exclusiveMinimum": st.sampled_from([0, 1]),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": COUNT,
        "maxLength": COUNT,
        "pattern": st.sampled_from(["a", "^b", "^a+$"]),
        "items": inner,
        "prefixItems": some,
        "minItems": COUNT,
        "maxItems": COUNT,
        "uniqueItems": st.booleans(),
        "contains": inner,
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": WORDS,
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["a|b", "^c$"]), inner, max_size=2),
        "propertyNames": inner,
        "minProperties": COUNT,
        "maxProperties": COUNT,
        "dependentRequired": st.dictionaries(NAMES, WORDS, max_size=2),
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": inner,
        "$ref": st.sampled_from(["#/$defs/X", "#/$defs/Y"]),
    }


def schema_of(inner):
    options = keywords(inner)
    chosen = st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: options[name] for name in names})
    )


SCHEMAS = st.recursive(
    st.booleans() | st.builds(lambda name: {"type": name}, TYPES) | st.just({"const": "a"}),
    schema_of,
    max_leaves=8,
)
DEFS = st.just(
    {
        "X": {"type": ["integer", "null"]},
        "Y": {"properties": {"a": {"$ref": "#/$defs/Y"}, "b": {"const": 1}}},
    }
)
ROOTS = st.builds(lambda schema, defs: {**schema, "$defs": defs}, schema_of(SCHEMAS), DEFS)
QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(ROOTS, st.dictionaries(NAMES, DATA, max_size=3))
def test_random_schemas_and_values_get_the_verdict_of_jsonschema(schema, args):
    assert (validate_arguments(args, schema) == []) == oracle(schema, args)


# The pitfalls of reference section 3, each as a kind: schemas and values made at random.
TRICKY = st.sampled_from(
    [True, False, None, 0, 1, -1, -0.0, 1.0, 4096.0, 0.5, "1", "true", "", [], {}]
    + [2**53, 2**53 + 1, float(2**53), 2**64, 2.0**64, 10**400, -(10**400), 1e308, 5e-324]
)
TRICKY_DATA = st.recursive(
    TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)
NUMBERS = TRICKY.filter(lambda value: type(value) in (int, float))
PITFALLS = st.one_of(
    st.builds(lambda name: {"type": name}, TYPES),
    st.builds(lambda names: {"type": names}, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
    st.builds(lambda values: {"enum": values}, st.lists(TRICKY_DATA, min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, TRICKY_DATA),
    st.builds(lambda value: {"uniqueItems": value}, st.booleans()),
    st.builds(
        lambda word, value: {word: value},
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        NUMBERS,
    ),
    st.builds(lambda n, name: {"multipleOf": n, "type": name}, st.integers(1, 3), TYPES),
    st.builds(lambda word, n: {word: n}, st.sampled_from(["minLength", "maxItems"]), COUNT),
)


@settings(QUICK, max_examples=600)
@given(PITFALLS, TRICKY_DATA, st.data())
def test_pitfalls_get_the_verdict_of_jsonschema(schema, value, data):
    near = data.draw(st.sampled_from([value, [value, value], [value, 1], [value, True]]))
    for wrapped in (schema, {"items": schema}, {"anyOf": [schema, {"const": "no"}]}):
        for each in (value, near, copy.deepcopy(schema.get("enum", [0])[0])):
            expected = jsonschema.Draft202012Validator(one(wrapped)).is_valid({"v": each})
            assert (validate_arguments({"v": each}, one(wrapped)) == []) == expected


@QUICK
@given(
    st.decimals(0, 1000, places=3), st.sampled_from(["0.001", "0.01", "0.1", "0.25", "2", "2.5"])
)
def test_multiples_are_those_of_the_decimal_digits(value, step):
    schema = one({"multipleOf": json.loads(step)})
    value = json.loads(str(value))
    expected = Fraction(str(value)) % Fraction(step) == 0
    assert (validate_arguments({"v": value}, schema) == []) == expected


KNOWN = {
    "city": ({"type": "string"}, "Oulu", [5, True, None, ["Oulu"]], ["City", "ciyt", "citty"]),
    "learning_rate": (
        {"type": "number"},
        0.1,
        ["0.1", True, None],
        ["learnig_rate", "lerning_rate"],
    ),
    "max_tokens": (
        {"type": "integer"},
        4096.0,
        [5.5, "8k", False, None],
        ["maxTokens", "max-tokens"],
    ),
    "unit": ({"enum": ["C", "F"]}, "C", ["K", "c", None, 1], ["units", "Unit"]),
    "tags": (
        {"type": "array", "items": {"type": "string"}},
        ["a"],
        ['["a"]', {}, None],
        ["tag", "Tags"],
    ),
}


@QUICK
@given(st.data(), st.permutations(sorted(KNOWN)))
def test_all_that_is_wrong_is_told_at_once_with_the_name_that_was_meant(data, order):
    """Present but null is a wrong value, not a missing one; a near name is suggested."""
    schema, args, wrong = obj(order, **{name: KNOWN[name][0] for name in order}), {}, {}
    for name in order:
        _, good, bad, misspelt = KNOWN[name]
        match data.draw(st.sampled_from(["good", "bad", "missing", "misspelt"])):
            case "good":
                args[name] = good
            case "bad":
                args[name] = data.draw(st.sampled_from(bad))
                wrong[name] = f"参数 {name} "
            case "missing":
                wrong[name] = f"缺少必填参数 {name}"
            case "misspelt":
                other = data.draw(st.sampled_from(misspelt))
                args[other] = good
                wrong[name] = f"缺少必填参数 {name}"
                wrong[other] = f"没有参数 {other}，是不是想写 {name}？"
    problems = {problem.path: str(problem) for problem in validate_arguments(args, schema)}
    assert problems.keys() == wrong.keys()
    assert all(text.startswith(wrong[path]) for path, text in problems.items())
    assert all(show(args[n]) in problems[n] for n in wrong if n in args and n in KNOWN)


ANY_VALUE = st.recursive(
    LEAF
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["#", "#/a", "(", "^(a+)+$", "$ref", b"x", (1,), {2}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            NAMES | st.sampled_from([*m.KEYWORDS, "type", "nullable", "then", 7]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@QUICK
@given(ANY_VALUE, ANY_VALUE)
def test_no_schema_and_no_arguments_raise(schema, args):
    problems = validate_arguments(args, schema) + validate_arguments({"a": args}, schema)
    problems += validate_arguments({"a": args}, schema, coerce=True)
    repair_arguments(args, schema)
    assert all(len(text) <= 400 for text in map(str, problems))
    assert all(isinstance(note, str) for note in check_schema(schema))
    assert len(explain(problems)) <= 1_700


# ── compile_schema ──


def test_a_changed_schema_is_a_new_schema():
    schema = one({"type": "integer"})
    assert validate_arguments({"v": "x"}, schema)
    schema["properties"]["v"]["type"] = "string"
    assert validate_arguments({"v": "x"}, schema) == []


def test_compiled_rules_do_not_follow_later_changes():
    schema = one({"enum": ["a"]})
    rules = compile_schema(schema)
    schema["properties"]["v"]["enum"].append("b")
    assert rules({"v": "b"}) and not validate_arguments({"v": "b"}, schema)


def test_true_and_one_are_different_schemas():
    assert validate_arguments({"v": 1}, one({"const": 1})) == []
    assert validate_arguments({"v": 1}, one({"const": True}))


def test_a_schema_with_foreign_objects_still_works():
    assert validate_arguments({"v": "x"}, one({"type": "integer", "default": object()}))


# ── check_schema ──

SOUND = [
    obj(a={"type": "integer"}),
    TREE,
    SHAPE,
    {"type": "object"},
    obj(a={"type": "float", "optional": True, "x-unit": "km"}),
]


@pytest.mark.parametrize("schema", SOUND, ids=lambda schema: repr(schema)[:40])
def test_a_sound_schema_has_no_notes(schema):
    assert check_schema(schema) == []


NOTES = [
    (None, "对象"),
    ([], "对象"),
    (True, "对象"),
    ({"type": "string"}, "object"),
    ({"properties": {}}, "object"),
    (one({"type": "widget"}), '#/properties/v：不认识的类型 "widget"'),
    (one({"type": 7}), "不认识的类型 7"),
    (one({"type": []}), "不认识的类型"),
    (one({"type": None}), "不认识的类型 null"),
    (one({"$ref": "#/$defs/none"}), "#/$defs/none"),
    (one({"$ref": "http://example.org/x.json"}), "x.json"),
    (one({"pattern": "[a"}), "正则"),
    (one({"pattern": r"(a)\1"}), "groupref"),
    (one({"pattern": "(?:[ab]{1,90}){1,90}"}), "太大"),
    (one({"pattern": "(?:){4000000000}(a{4000000000}){4000000000}"}), "太大"),
    (one({"pattern": "a" * 100_000}), "太长"),
    (one({"pattern": "(" * 500 + ")" * 500}), "正则"),
    (one({"patternProperties": {"[a": {}}}), "正则"),
    (one({"unevaluatedProperties": False}), "unevaluatedProperties"),
    (obj() | {"unevaluatedItems": False}, "unevaluatedItems"),
    (one({"if": {"type": "integer"}, "then": {"minimum": 5}}), "不支持关键字 then"),
    (one({"items": {"$dynamicRef": "#x"}}), "#/properties/v/items：不支持关键字 $dynamicRef"),
    (one({"minimum": "3"}), "minimum"),
    (one({"minLength": -1}), "minLength"),
    (one({"multipleOf": 0}), "multipleOf"),
    (one({"exclusiveMinimum": True}), "exclusiveMinimum"),
    (one({"enum": "a"}), "enum"),
    (one({"properties": {"a": 3}}), "#/properties/v/properties/a"),
    ({"type": "object", "required": "a"}, "required"),
    (
        {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"type": "x"}},
        },
        "#/$defs/A：",
    ),
]


@pytest.mark.parametrize("schema, says", NOTES, ids=lambda part: repr(part)[:50])
def test_what_is_not_honoured_is_named_with_its_place(schema, says):
    notes = check_schema(schema)
    assert any(says in note for note in notes)
    assert all(len(note) <= 240 for note in notes)


# ── repair_arguments ──

REPAIRED = [
    ({"type": "integer"}, "4096", 4096),
    ({"type": "integer"}, "-3", -3),
    ({"type": "integer"}, "4096.0", 4096),
    ({"type": "integer"}, 4096.0, 4096),
    ({"type": "number"}, "0.5", 0.5),
    ({"type": "float"}, "1e3", 1000.0),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "false", False),
    ({"type": ["integer", "null"]}, "7", 7),
    ({"type": "array"}, "[1, 2]", [1, 2]),
    ({"type": "array", "items": {"type": "integer"}}, '["1", 2.0]', [1, 2]),
    ({"type": "object"}, ' {"a": 1}\n', {"a": 1}),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "2.5", 2.5),
    ({"enum": [4, 8]}, "8", 8),
    ({"$ref": "#/$defs/I"}, "5", 5),
    ({"items": {"$ref": "#/$defs/I"}}, ["5", 6], [5, 6]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}]}, ["5", "6"], [5, "6"]),
    ({"additionalProperties": {"type": "integer"}}, {"k": "1"}, {"k": 1}),
    ({"allOf": [{"type": "integer"}]}, "1", 1),
    ({"properties": {"n": {"type": "integer"}}}, {"n": None, "m": None}, {"m": None}),
    (SHAPE["properties"]["v"], {"kind": "bar", "w": "3"}, {"kind": "bar", "w": 3}),
]
KEPT = [
    ({"type": "string"}, "4096"),
    ({"type": "string"}, '{"k": 1}'),
    ({"type": ["string", "null"]}, '{"k": 1}'),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5"),
    ({}, "5"),
    ({"enum": ["4", "8"]}, "4"),
    ({"type": "string"}, 5),
    ({"type": "integer"}, "8k"),
    ({"type": "integer"}, " 5 "),
    ({"type": "integer"}, "1_000"),
    ({"type": "integer"}, "007"),
    ({"type": "integer"}, "5.5"),
    ({"type": "integer"}, 5.5),
    ({"type": "integer"}, True),
    ({"type": "integer"}, "true"),
    ({"type": "integer"}, "9" * 5_000),
    ({"type": "number"}, "NaN"),
    ({"type": "number"}, "1e999"),
    ({"type": "number"}, 4.0),
    ({"type": "number", "enum": [4, 5]}, 4.0),
    ({"type": "boolean"}, 1),
    ({"type": "boolean"}, "yes"),
    ({"type": "boolean"}, "True"),
    ({"type": "null"}, "null"),
    ({"type": ["integer", "null"]}, "null"),
    ({"type": "array"}, 1),
    ({"type": "array"}, '{"a": 1}'),
    ({"type": "object"}, "[1]"),
    ({"type": "object"}, "{'a': 1}"),
    ({"type": "integer"}, None),
    ({"properties": {"n": {"type": ["integer", "null"]}}}, {"n": None}),
    ({"properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"n": None}),
    ({"$ref": "#/$defs/none"}, "5"),
]


def with_integer(schema):
    return one(schema) | {"$defs": {"I": {"type": "integer"}}}


@pytest.mark.parametrize("schema, value, mended", REPAIRED, ids=lambda part: repr(part)[:40])
def test_lossless_repairs_are_made_and_told(schema, value, mended):
    args = {"v": value}
    before = copy.deepcopy(args)
    result, repairs = repair_arguments(args, with_integer(schema))
    assert result == {"v": mended} and json.dumps(result) == json.dumps({"v": mended})
    assert args == before and type(args["v"]) is type(before["v"])
    assert repairs and all("参数 v" in text and len(text) <= 400 for text in repairs)
    assert validate_arguments(args, with_integer(schema), coerce=True) == []


@pytest.mark.parametrize("schema, value", KEPT, ids=lambda part: repr(part)[:40])
def test_what_could_lose_or_guess_is_left_alone(schema, value):
    assert repair_arguments({"v": value}, with_integer(schema)) == ({"v": value}, [])


def test_repairs_are_asked_for_never_silent():
    assert validate_arguments({"v": "5"}, one({"type": "integer"}))


@QUICK
@given(ROOTS, st.dictionaries(NAMES, DATA, max_size=3))
def test_repairs_never_break_valid_arguments_and_never_change_the_original(schema, args):
    before = json.dumps(args)
    mended, repairs = repair_arguments(args, schema)
    assert json.dumps(args) == before
    assert bool(repairs) == (json.dumps(mended) != before)
    if validate_arguments(args, schema) == []:
        assert validate_arguments(mended, schema) == []


# ── words ──


def test_explain_keeps_the_sentences_and_says_what_to_do():
    one_problem = validate_arguments({"seq_len": "8k"}, obj(seq_len={"type": "integer"}))
    assert explain(one_problem) == '参数 seq_len 应该是 integer，收到的是 "8k"。请改正后重新调用。'
    several = validate_arguments({"a": 1}, obj(["b"], b={}))
    lines = explain(several).splitlines()
    assert lines[1:3] == ["1. 缺少必填参数 b", "2. " + str(several[1])]
    assert lines[0].startswith("参数有 2 处") and "重新调用" in lines[-1]
    assert explain([]) == ""


def test_explain_is_bounded_and_says_how_much_is_left_out():
    problems = [m.Problem("p", "type", "字" * 400)] * 20
    text = explain(problems)
    assert len(text) < 1_400 and "另有 17 处" in text


SHOWN = [
    ("8k", '"8k"'),
    (True, "true"),
    (None, "null"),
    (-INF, "-Infinity"),
    ({"a": [1, "中"]}, '{"a": [1, "中"]}'),
    ("\ud800", '"\\ud800"'),
    ({1, 2}, '"<set>"'),
    (10**5_000, "<int>"),
    ({(1, 2): 3}, "<dict>"),
]


@pytest.mark.parametrize(
    "value, text", SHOWN, ids=lambda part: repr(part)[:30] if not isinstance(part, int) else "int"
)
def test_show_gives_json_for_json_and_something_for_everything(value, text):
    assert show(value) == text


@given(ANY_VALUE, st.integers(2, 50))
def test_show_never_raises_and_never_exceeds_its_limit(value, limit):
    assert len(show(value, limit)) <= limit


CLOSE = [
    ("learnig_rate", ["learning_rate", "batch"], "learning_rate"),
    ("City", ["city"], "city"),
    ("max-tokens", ["maxTokens", "max_t"], "maxTokens"),
    ("城市名", ["城市", "日期"], "城市"),
    ("zzz", ["city"], None),
    ("", ["city"], None),
    ("x", [], None),
    ("x" * 10**6, ["xx"], None),
]


@pytest.mark.parametrize("name, names, expected", CLOSE, ids=lambda part: repr(part)[:20])
def test_closest_name(name, names, expected):
    assert closest(name, names) == expected
