"""§4: registration refuses what hosts refuse; a call always gives a result."""

import asyncio
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from w4d3_tools_mcp import (
    LABELS,
    RESULT_CHARACTERS,
    RESULT_STATUS,
    SchemaError,
    Tool,
    ToolCall,
    ToolError,
    ToolRegistry,
    cut,
    error_text,
    json_value,
    review_tool,
)

EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(run=lambda args: "好", name="a_tool", description="说明", parameters=EMPTY, **options):
    return Tool(name, description, parameters, run, **options)


def call(registry, name="a_tool", arguments="{}", **options):
    return registry.call(ToolCall("id", name, arguments), **options)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a.b",
        "中文",
        "a" * 46,
        "a/b",
        "a\n",
        None,
        5,
        "naïve",
    ],
)
def test_illegal_names_are_refused(name):
    with pytest.raises(SchemaError, match="名字"):
        ToolRegistry([tool(name=name)])


@pytest.mark.parametrize("name", ["a", "kv_cache_gib", "get-weather", "a" * 45, "getWeather2"])
def test_legal_names_are_taken(name):
    assert ToolRegistry([tool(name=name)]).names == [name]


BAD = [0, -1, math.inf, math.nan, 1e20, "5", True, [5]]


@pytest.mark.parametrize(
    "fault, options",
    [
        ("缺少说明", {"description": "  "}),
        ("缺少说明", {"description": None}),
        ("上限", {"description": "长" * 1025}),
        ("标签", {"labels": frozenset({"nonsense"})}),
        ("标签", {"labels": {"read_only", 5}}),
        ("标签", {"labels": [["read_only"]]}),
        ("标签", {"labels": "read_only"}),
        ("标签", {"labels": None}),
        ("run", {"run": None}),
        ("title", {"title": None}),
        ("output", {"output": "{}"}),
        *(
            (f"{name} 应该是大于 0", {name: bad})
            for name in ("seconds", "characters")
            for bad in BAD
        ),
        ("characters", {"characters": 1.5}),
        ("参数模式", {"parameters": {"type": "array"}}),
        ("参数模式", {"parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}),
        ("参数模式", {"parameters": "{}"}),
    ],
)
def test_bad_definitions_raise_at_registration(fault, options):
    with pytest.raises(SchemaError, match=fault):
        ToolRegistry([tool(**options)])


def test_every_fault_of_a_definition_is_named_at_once():
    with pytest.raises(SchemaError) as caught:
        ToolRegistry([tool(title=5, seconds="x", labels=None)])
    assert all(word in str(caught.value) for word in ("a_tool", "title", "seconds", "labels"))


def test_characters_that_cannot_be_sent_are_replaced():
    odd = tool(description="说明\ud800", title="\udfff", parameters={**EMPTY, "title": "\ud800"})
    registry = ToolRegistry([odd])
    json.dumps([registry.schemas(), registry["a_tool"].title], ensure_ascii=False).encode("utf-8")


def test_nobody_outside_can_change_a_registered_tool():
    parameters = copy.deepcopy(EMPTY)
    registry = ToolRegistry([tool(parameters=parameters)])
    before = copy.deepcopy(registry.schemas())
    parameters["properties"]["n"] = {"type": "integer"}
    registry.schemas()[0]["parameters"]["properties"]["m"] = {}
    registry["a_tool"].schema()["parameters"]["required"] = ["m"]
    assert registry.schemas() == before and call(registry).text == "好"


def test_a_taken_name_is_refused():
    with pytest.raises(SchemaError, match="a_tool.*同名"):
        ToolRegistry([tool(), tool()])


def test_functions_register_by_call_and_by_decorator():
    registry = ToolRegistry()

    @registry.register
    def one() -> int:
        """一。"""
        return 1

    @registry.register(title="二", seconds=2.0, labels=frozenset({"private"}))
    def two() -> int:
        """二。"""
        return 2

    registry.register(one, name="uno")
    assert registry.names == ["one", "two", "uno"] and one() == 1
    assert (registry["two"].title, registry["two"].seconds) == ("二", 2.0)
    assert call(registry, "uno").text == "1"


def test_a_function_may_carry_its_own_options():
    def slow() -> int:
        """慢。"""
        return 1

    slow.tool = {"title": "慢工具", "seconds": 5.0}
    assert ToolRegistry([slow])["slow"].title == "慢工具"


@pytest.mark.parametrize(
    "own, wrong",
    [
        ({"colour": "red", "seconds": 5}, "没有选项 colour，"),
        ({5: 1}, "没有选项 5，"),
        (5, "不对"),
        ("title", "不对"),
        ({"labels": "private"}, "要写成集合"),
    ],
)
def test_options_that_do_not_exist_are_refused_by_name(own, wrong):
    def slow():
        """慢。"""

    slow.tool = own
    with pytest.raises(SchemaError, match=f"slow.*{wrong}"):
        ToolRegistry([slow])


def test_a_function_without_docstring_is_refused_by_name():
    def silent(): ...

    with pytest.raises(SchemaError, match="silent.*docstring"):
        ToolRegistry([silent])


def test_subset_keeps_the_order_asked_for():
    registry = ToolRegistry([tool(name="a"), tool(name="b"), tool(name="c")])
    assert registry.subset(["c", "a"]).names == ["c", "a"] and len(registry) == 3


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def record(
    n: int,
    day: datetime.date,
    colour: Colour,
    point: Point,
    where: Path,
    money: decimal.Decimal,
    ident: uuid.UUID,
    bag: set[int],
    pair: tuple[int, str],
    /,
    *,
    maybe: Point | None = None,
) -> str:
    """记录收到的值的类型。"""
    return " ".join(
        type(v).__name__ for v in (n, day, colour, point, where, money, ident, bag, pair, maybe)
    )


def test_accepted_values_become_what_the_function_expects():
    arguments = {
        "n": 4096.0,
        "day": "2026-11-30",
        "colour": "red",
        "point": {"x": 1.0},
        "where": "a/b",
        "money": "1.10",
        "ident": str(uuid.UUID(int=5)),
        "bag": [1, 2],
        "pair": [1, "a"],
        "maybe": {"x": 3},
    }
    result = call(ToolRegistry([record]), "record", json.dumps(arguments))
    assert result.status == "ok", result.text
    path = type(Path("a")).__name__
    assert result.text == f"int date Colour Point {path} Decimal UUID set tuple Point"


async def later(n: int) -> int:
    """晚一点返回。"""
    await asyncio.sleep(0)
    return n + 1


def test_async_functions_run():
    assert call(ToolRegistry([later]), "later", '{"n": 1}').text == "2"


def test_async_functions_run_inside_a_running_event_loop():
    async def host():
        return call(ToolRegistry([later]), "later", '{"n": 1}').text

    assert asyncio.run(host()) == "2"


VARIABLE = contextvars.ContextVar("VARIABLE", default="nothing")


async def reads_variable() -> str:
    """读变量。"""
    return VARIABLE.get()


def test_context_variables_reach_async_tools():
    VARIABLE.set("here")
    assert call(ToolRegistry([reads_variable]), "reads_variable").text == "here"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_async_tool_that_raises_what_it_likes_becomes_a_result(error):
    async def fails():
        raise error

    results = []
    registry = ToolRegistry([tool(lambda args: fails())])

    def work():  # as in the loop: Ctrl-C itself goes to the main thread only
        try:
            results.append(call(registry).status)
        except KeyboardInterrupt:
            results.append("failed")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert results == ["failed"]


def test_a_process_does_not_wait_for_async_tools_that_never_end():
    code = """
import asyncio, threading, w4d3_tools_mcp as w
async def hangs() -> int:
    "一直等。"
    begun.set()
    await asyncio.sleep(3600)
begun = threading.Event()
call = w.ToolRegistry([hangs]).call
threading.Thread(target=call, args=[w.ToolCall("", "hangs", "")], daemon=True).start()
print(begun.wait(20))
"""
    root = Path(__file__).resolve().parent.parent
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, timeout=60, encoding="utf-8"
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)


class Pair(NamedTuple):
    a: int
    b: str


class Loose(TypedDict):
    a: int


class Odd:
    def __repr__(self):
        return "Odd(\ud800)"


@pytest.mark.parametrize(
    "value, text",
    [
        ("文字", "文字"),
        (None, "null"),
        ({"字": 1.5}, '{"字": 1.5}'),
        (math.nan, "nan"),
        ([math.inf, -math.inf], '["inf", "-inf"]'),
        ({3, 1, 2}, "[1, 2, 3]"),
        ((1, "a"), '[1, "a"]'),
        (datetime.date(2026, 11, 30), "2026-11-30"),
        ({"d": datetime.datetime(2026, 1, 2, 3, 4)}, '{"d": "2026-01-02T03:04:00"}'),
        (Point(1, 2), '{"x": 1, "y": 2}'),
        ([Colour.RED], '["red"]'),
        (Loose(a=1), '{"a": 1}'),
        ((n for n in range(3)), "[0, 1, 2]"),
        ({1: "a", None: "b"}, None),
        (Odd(), "Odd(?)"),
        ("\ud800", "?"),
        ({"k\ud800": 1}, '{"k?": 1}'),
        (2**70, str(2**70)),
    ],
)
def test_results_become_strict_json(value, text):
    result = call(ToolRegistry([tool(lambda args: value)]))
    assert result.status == "ok", result.text
    result.text.encode("utf-8")
    if not isinstance(result.value, str):
        json.loads(result.text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert text is None or result.text == text


def endless():
    while True:
        yield 1


def nested_generators():
    while True:
        yield nested_generators()


class BrokenRepr:
    def __repr__(self):
        raise SystemExit


class LongRepr:
    def __repr__(self):
        return "x" * 10**6


def shared():
    items = [1]
    for _ in range(60):  # 2**60 items when written out
        items = [items, items]
    return items


def deep():
    items = []
    for _ in range(100_000):
        items = [items]
    return items


def self_containing():
    items = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "make",
    [
        endless,
        nested_generators,
        lambda: itertools.count(),
        lambda: {"a": [endless(), endless()]},
        lambda: iter([range(10**9)] * 3),
        lambda: range(10**9),
        lambda: {"a": range(10**9), "b": range(10**9)},
        shared,
        deep,
        BrokenRepr,
        LongRepr,
        lambda: [BrokenRepr(), LongRepr()],
        self_containing,
        lambda: 10**5000,
        lambda: [-(10**5000)],
        object,
        lambda: b"\xff",
        lambda: 1j,
    ],
)
def test_no_return_value_escapes(make):
    result = call(ToolRegistry([tool(lambda args: make())]))
    assert result.status in RESULT_STATUS and result.text and len(result.text) <= RESULT_CHARACTERS


def raising(error):
    def run(args):
        raise error

    return ToolRegistry([tool(run)])


class BrokenMessage(Exception):
    def __str__(self):
        raise RuntimeError("even the message fails")


@pytest.mark.parametrize(
    "error, said",
    [
        (ToolError("请给正数"), "请给正数"),
        (ValueError("太大"), "工具 a_tool 执行出错：ValueError: 太大"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (RecursionError("deep"), "RecursionError"),
        (MemoryError(), "MemoryError"),
        (BrokenMessage(), "BrokenMessage"),
        (type("Ends", (Exception,), {"__str__": lambda e: sys.exit()})(), "Ends"),
        (type("Odd", (Exception,), {"__str__": lambda e: 5, "__repr__": lambda e: 5})(), "Odd"),
        (type("Mute", (ToolError,), {"__str__": lambda e: sys.exit()})(), "没有说明"),
        (ToolError(), "没有说明"),
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("x" * 10**7), "xxx…"),
        (ValueError("a\nb\n  c"), "ValueError: a b c"),
        (ValueError("\ud800"), "ValueError: ?"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_a_failing_tool_becomes_one_line(error, said):
    result = call(raising(error))
    assert result.status == "failed" and said in result.text
    assert "Traceback" not in result.text and "\n" not in result.text


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnop1234",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOi.eyJzdWIiOi.abcdefgh",
        "sk-proj-4fJ_x-9aBcdEfGh12345",
        "sk-ant-api03-AbCd1234EfGh",
        "sk_live_51Habcdefghijklm",
        "github_pat_11ABCDEFG0abcdefghijkl_XYZ",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "glpat-xYz12_ab34cdEFghIJ",
        "xoxb-123456789012-abcdefGHIJ",
        "xapp-1-A0123456789-abcdef",
        "hf_AbCdEfGhIjKlMnOpQrSt",
        "npm_abcdefghij0123456789",
        "ASIAABCDEFGHIJKLMNOP",
    ],
)
@pytest.mark.parametrize(
    "form", ["key {}", "密钥{}失败", "https://x/?k={}", "'{}'", "Authorization: Bearer {}"]
)
def test_keys_do_not_reach_the_model(secret, form):
    assert secret not in error_text(ValueError(form.format(secret)))


@pytest.mark.parametrize(
    "message, gone, kept",
    [
        ("No such file: '/home/someone/private/notes.md'", "/home", "notes.md"),
        (r"cannot open C:\Users\someone\notes.md", "someone", "notes.md"),
        (r"cannot open C:\Program Files\Some One\notes.md", "Some", "notes.md"),
        (r"cannot open C:\Program Files (x86)\Acme\notes.md", "Acme", "notes.md"),
        (r"cannot open C:\Users\someone", "someone", "~"),
        (r"No such file: 'C:\\Users\\someone\\notes.md'", "someone", "notes.md"),
        ("cannot open C:/Users/someone/notes.md", "someone", "notes.md"),
        (r"打开D:\数据\用户\notes.md失败", "用户", "notes.md失败"),
        (r"cannot open \\server\share\dir\notes.md", "server", "notes.md"),
        (r"cannot open '\\\\server\\share\\notes.md'", "server", "notes.md"),
        (r"cannot open \\?\C:\Users\someone\notes.md", "someone", "open notes.md"),
        ("see file:///home/someone/notes.md", "someone", "notes.md"),
        ("see file:///C:/Users/someone/notes.md", "someone", "notes.md"),
        ("see file://server/share/notes.md", "server", "notes.md"),
        ("找不到/home/someone/notes.md", "someone", "找不到notes.md"),
        ("文件：/home/someone/notes.md，", "someone", "notes.md，"),
        ("读取/etc/passwd失败", "/etc", "passwd失败"),
        ("error:/home/someone/notes.md", "someone", "notes.md"),
        ("path=/home/someone/notes.md", "someone", "notes.md"),
        ("(/home/someone/notes.md)", "someone", "(notes.md)"),
        ("not allowed: /home/someone", "someone", "~"),
        ("use /a/b or /c/d", "/a", "use b or d"),
        ("~/secret/dir/file.txt missing", "secret", "file.txt"),
        ("/home/a b/with blank/x.py failed", "with blank", "x.py"),
        ("password=hunter2 wrong", "hunter2", "password"),
        ('password="my secret pw" wrong', "secret pw", "wrong"),
        ("{'password': 'hunter 2'}", "hunter", "password"),
        ("pwd=hunter2", "hunter2", "pwd"),
        ("密码：hunter2", "hunter2", "密码"),
        ("密码:hunter2", "hunter2", "密码"),
        ("OPENAI_KEY=abc123", "abc123", "OPENAI_KEY"),
        ("Cookie: id=abc123", "abc123", "Cookie"),
        ("口令＝hunter2", "hunter2", "口令"),
        ("api_key: abc123", "abc123", "api_key"),
        ("设置api_key=abc123", "abc123", "api_key"),
        ('{"token": "abc123"}', "abc123", "token"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "FEMI", "AWS_SECRET"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "K7MD", "AWS_SECRET"),
        ("Server=x;Pwd=hunter2;Database=d", "hunter2", "Database=d"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNl", "Authorization"),
        ("Authorization: Token abc", "abc", "Authorization"),
        ("{'Authorization': 'Bearer abc'}", "abc", "Authorization"),
        ("sent Basic dXNlcjpwYXNzd29yZA== to x", "dXNl", "to x"),
        ("sent bearer abcdef to x", "abcdef", "to x"),
        ("postgres://user:pw@host/db", "pw@", "host"),
        ("postgresql+psycopg2://user:p@ss@host/db", "ss@", "host"),
        ("redis://:pw@localhost:6379/0", "pw@", "localhost:6379/0"),
        ("https://x/?key=abc123&b=1", "abc123", "b=1"),
        ("https://x/y?a=1&sig=abc123", "abc123", "a=1"),
        ("-----BEGIN RSA PRIVATE KEY----- MIIabc -----END RSA PRIVATE KEY----- x", "MII", " x"),
        ("-----BEGIN PRIVATE KEY----- MIIabc", "MII", "已隐去"),
    ],
)
def test_paths_and_passwords_do_not_reach_the_model(message, gone, kept):
    text = error_text(OSError(message))
    assert gone not in text and kept in text


@pytest.mark.parametrize(
    "message",
    """sk-learn-estimator-failed|sk-learn-estimator-failed-2024|skipped_connections_total
    hf_hub_download_failed|pk_users_v2_constraint|max_tokens: 4096|monkey=banana|primary key: id
    KeyError: 'token'|token 已过期|密码错误|Bearer token missing|basic understanding of things
    Basic JavaScript course|5 km/h|2026/11/30|and/or|1/2 + 3/4|n/a|http://host/a/b|a / b/c / d
    https://host:8080/v1/models/x|输入/输出/错误|中/英/日/韩|价格 元/GB/月|支持mp3/wav/flac格式
    </body></html>|+/- 5/6|C++ / Rust|application/json|text/html, */*|ratio 3:4|10:30:00|x: y
    use (a/b) or c/d|打开/数据|#/properties/k/type|Unexpected token: }|http://[::1]/a/b""".replace(
        "\n    ", "|"
    ).split("|"),
)
def test_ordinary_words_and_slashes_stay(message):
    assert message in error_text(ValueError(message))


@pytest.mark.parametrize(
    "piece",
    """a a- /a /a/ a/ \\ (a) /(a)(b) eyJ. : ://: sk- sk-a ?key= /home C: token: a+. api_ aB1/
    Basic -----BEGIN~PRIVATE~KEY----- ~ ~/ \\\\a' password=" """.split(),
)
def test_hiding_takes_no_more_than_a_moment(piece):
    text = piece.replace("~", " ") * 10**5
    assert len(error_text(ValueError(text))) < 400
    assert len(error_text(ValueError("/" + text))) < 400


def test_long_results_are_cut_and_say_so():
    result = call(ToolRegistry([tool(lambda args: "字" * 5000)]))
    assert len(result.text) <= RESULT_CHARACTERS and "5000" in result.text


def test_a_tool_may_set_its_own_length():
    assert len(call(ToolRegistry([tool(lambda args: "字" * 5000, characters=4000)])).text) <= 4000
    assert len(call(ToolRegistry([tool(lambda args: "字" * 5000)]), characters=90).text) <= 90
    assert len(call(ToolRegistry([tool(lambda args: "字" * 5000)]), characters=None).text) == 5000


def test_errors_of_every_kind_are_cut_too():
    many = ToolRegistry([tool(name=f"tool_{n}") for n in range(2000)])
    assert len(call(many, "nothing").text) <= RESULT_CHARACTERS
    assert len(call(raising(ToolError("长" * 10**5)), characters=50).text) <= 50


@given(st.text(max_size=200), st.integers(1, 120))
def test_cut_never_exceeds_its_limit(text, limit):
    assert len(cut(text, limit)) <= limit
    assert cut(text, limit) == text or len(text) > limit


@pytest.mark.parametrize("name", ["a_tol", "", None, ["x"], "a" * 10_000, "\ud800", 5])
def test_an_unknown_name_gets_the_list_of_tools(name):
    result = call(ToolRegistry([tool()]), name)
    assert result.status == "unknown_tool" and "a_tool" in result.text and len(result.text) < 600


def test_the_closest_name_is_suggested():
    assert "是不是想写 a_tool" in call(ToolRegistry([tool()]), "atool").text


class Unreadable:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Unhashable(str):
    __hash__ = None


def repr_of(value):
    return type(value).__name__


@pytest.mark.parametrize(
    "odd",
    [
        None,
        5,
        "a_tool",
        object(),
        {"name": "a_tool"},
        Unreadable(),
        ToolCall("", Unhashable("a_tool"), "{}"),
        ToolCall("", "a_tool", Unreadable()),
        ToolCall("", "a_tool", {1: 2, (3,): {4}, "x": object()}),
        ToolCall("", "a_tool", {"x": math.nan}),
    ],
    ids=repr_of,
)
def test_a_call_of_any_shape_gives_a_result(odd):
    result = ToolRegistry([tool()]).call(odd)
    assert result.is_error and result.text and result.status in RESULT_STATUS


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", "null x", '{"a": NaN}', 5, b"\xff", "[" * 10_000, object()]
)
def test_unreadable_arguments_are_a_result(arguments):
    assert call(ToolRegistry([tool()]), arguments=arguments).status == "bad_arguments"


def number(n: int) -> int:
    """原样返回。"""
    return n


def test_the_lectures_sentence_is_in_the_result():
    result = call(ToolRegistry([number]), "number", '{"n": "8k"}')
    assert '参数 n 应该是 integer，收到的是 "8k"' in result.text


def test_repairs_are_off_unless_asked_for_and_visible_when_made():
    assert call(ToolRegistry([number]), "number", '{"n": "4096"}').status == "bad_arguments"
    mended = call(ToolRegistry([number], coerce=True), "number", '{"n": "4096"}')
    assert mended.text == "4096" and len(mended.repairs) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_every_value_has_a_strict_json_form(value):
    json.dumps(json_value(value), allow_nan=False)


@given(st.text() | json_values)
def test_call_never_raises(arguments):
    assert call(ToolRegistry([number]), "number", arguments).status in RESULT_STATUS


def test_labels_say_what_they_mean():
    assert set(LABELS) >= {"private", "untrusted", "sends", "irreversible"}


def described(text, **properties):
    return tool(
        name="find_notes",
        description=text,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(properties),
        },
    )


GOOD = "在讲义里查找章节，返回编号和标题；没有找到时返回空列表。"


@pytest.mark.parametrize(
    "rule, reviewed",
    [
        ("太笼统", tool(name="run", description=GOOD)),
        ("说明只有", tool(description="查")),
        ("返回什么", tool(description="在讲义里把相关的章节都统计一下再整理")),
        ("查不到", described("在讲义里查找章节，返回编号和标题。")),
        ("没有说明", described(GOOD, q={"type": "string"})),
        ("没有类型", described(GOOD, q={"description": "分数，例如 85", "default": 1})),
        ("单位、格式或例子", described(GOOD, q={"type": "integer", "description": "长度"})),
        (
            "Literal",
            described(GOOD, q={"type": "string", "description": "模式，可选 fast 或 slow"}),
        ),
        (
            "必填",
            described(
                GOOD, **{f"p{i}": {"type": "boolean", "description": "开"} for i in range(6)}
            ),
        ),
        (
            "anyOf",
            described(
                GOOD, q={"anyOf": [{"type": "string"}, {"type": "array"}], "description": "例如 1"}
            ),
        ),
    ],
)
def test_the_review_finds_each_kind_of_weakness(rule, reviewed):
    assert any(rule in what and why for _, what, why in review_tool(reviewed))


def reviewed(signature="n: int", returns="，返回结果", entry="n: 个数，例如 3"):
    text = f"把一个东西换成另一个东西{returns}\n\n    Args:\n        {entry}\n    "
    space: dict = {}
    exec(f"def convert_it({signature}):\n    {text!r}", space)
    return review_tool(Tool.from_function(space["convert_it"]))


@pytest.mark.parametrize(
    "where, said, written",
    [
        ("", "Returns 一节不会发给模型，请写进正文", {"returns": "\n\n    Returns:\n        米数"}),
        ("", "returns 一节", {"returns": "\n\n    :returns: 米数"}),
        ("", "Returns 一节", {"returns": "\n\n    Returns\n    -------\n    int\n"}),
        ("", "返回值 一节", {"returns": "\n\n    返回值：\n        米数"}),
        ("", "unti，却没有这个参数，是不是想写 unit？", {"signature": "unit", "entry": "unti: 米"}),
        ("", "zzz，却没有这个参数，请删去或改名", {"entry": "zzz: 单位，例如 km"}),
        ("", "*args、**kw 不会进模式", {"signature": "*args, **kw", "entry": "*args: 例如 1"}),
        (".n", '默认值 "3" 不合标注', {"signature": "n: int = '3'"}),
        (".n", "默认值 NaN", {"signature": "n: float = float('nan')"}),
        (".n", "标注 complex 在模式里只是 string", {"signature": "n: complex"}),
        (".n", "标注 bytes 在模式里只是 string", {"signature": "n: 'list[bytes]'"}),
    ],
)
def test_the_review_names_what_is_written_and_reaches_no_model(where, said, written):
    found = [row for row in reviewed(**written) if said in row[1]]
    assert [row[0] for row in found] == [f"convert_it{where}"] and found[0][2]


@pytest.mark.parametrize("default", ["", " = 3", " = None"])
def test_the_review_is_content_with_a_good_function(default):
    assert reviewed(f"n: int{default}") == []


def test_a_function_without_docstring_is_told_just_that():
    def bare(n: int): ...

    with pytest.raises(SchemaError, match="请给函数写 docstring$"):
        ToolRegistry([bare])


def test_the_review_asks_for_the_difference_between_siblings():
    one = tool(name="search_mail", description="在邮件里按关键词搜索，返回标题；没有时返回空列表。")
    other = tool(
        name="search_mails", description="在邮件里按关键词搜索，返回全文；没有时返回空列表。"
    )
    assert any("search_mails" in what for _, what, _ in review_tool(one, [one, other]))


def test_the_review_is_content_with_a_good_definition():
    good = described(GOOD, q={"type": "string", "description": '关键词，例如 "GRPO"'})
    assert review_tool(good) == []
