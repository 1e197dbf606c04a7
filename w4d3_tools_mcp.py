#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = []
# ///
"""工具调用（tool calling）与 MCP 的参考实现：一个文件，只用标准库。CME295 第 4 周第 3 天。

    python3 w4d3_tools_mcp.py --demo           离线看懂工具调用
    python3 w4d3_tools_mcp.py --router-demo    40 个工具里怎么挑出 5 个
    python3 w4d3_tools_mcp.py --mcp-demo       逐条看 MCP 的消息
    python3 w4d3_tools_mcp.py --mcp-server     给 Claude、Cursor 用的 MCP 服务器
    python3 w4d3_tools_mcp.py --ask "问题"     问一个真实的模型
    python3 w4d3_tools_mcp.py --help           其余命令

Map. A section refers only to sections above it; `grep -n '^# §'` prints this list from the code.

    A  pure core
    § 1  词汇 Vocabulary
    § 2  模式 Schema
    § 3  参数 Arguments
    § 4  注册表 Registry
    B  tools
    § 5  计算器 Calculator
    § 6  检索 Search
    § 7  内置工具 Built-in tools
    § 8  路由 Router
    C  models
    § 9  消息格式 Wire formats
    § 10  文本协议 Text formats
    § 11  流式 Streams
    § 12  循环 Loop
    § 13  模拟模型 Mock
    D  MCP
    § 14  JSON-RPC
    § 15  服务端核心 Server core
    § 16  客户端核心 Client core
    E  edges, the only input and output
    § 17  HTTP
    § 18  stdio
    F  command line
    § 19  呈现 Rendering
    § 20  演示 Demos
    § 21  入口 Command line

§1 knows nothing. §2–§3 know types. §4 knows tools, not models. §12 knows models only as something
that answers. §15 knows messages, not pipes. §18 knows pipes, not methods. §21 knows everything and
decides nothing.

How to read it: the first half of the lecture is §1, §4, §12, §13, about 900 lines; take §2 and §3
when you want to know how a schema is made and how arguments are checked. The rest can wait.

Extend it in one place: a tool is one function (§7, or your own file with --tools), a schema keyword
one row in §3, an operation of the calculator one row in §5, a way to write calls as text one row
in §10, an MCP method one row in §15, a backend one row in §17, a command one row in §21.

Limits: lexical search only; arguments are validated, never guessed; tools run in threads of this
process, so a tool that hangs is abandoned, not killed.

Sources: JSON Schema 2020-12; OpenAI Chat Completions, Anthropic Messages and Gemini API references;
MCP specification, five revisions from 2024-11-05 to 2026-07-28; JSON-RPC 2.0; WHATWG server-sent
events; Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

from __future__ import annotations

import ast
import codecs
import collections
import contextlib
import contextvars
import enum
import functools
import io
import itertools
import json
import marshal
import math
import operator
import os
import re
import sys
import threading
import time
import types
import typing
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

VERSION = "1.0.0"

if __name__ == "__main__":  # Ctrl-C while the rest is being defined ends us without a traceback
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else: we are to ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 1  词汇 Vocabulary      uses nothing · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The values that cross section borders. A *call* comes from the model, a *result* goes back to it,
# a *message* is a dict on a wire, an *event* comes out of the loop. History itself is the plain
# OpenAI message list, so that what a learner sees is what goes over the network.


class ToolError(ValueError):
    """Something the model can read and repair; a tool raises it to say no in its own words."""


class ArgumentsError(ToolError):
    """The argument text of a call is not one JSON object; the message says what to do."""


class SchemaError(TypeError, ValueError):
    """A programmer's mistake in a tool definition; names the function and the parameter."""


class BackendError(Exception):
    """The model could not be asked, or did not answer; the message tells the user what to do."""

    turn: Turn | None = None  # what had arrived of an answer that broke off


class RpcError(Exception):
    """A JSON-RPC error reply: `code`, `message` and optional `data` (JSON-RPC 2.0, section 5.1)."""

    def __init__(self, code: int, message: str, data: object = None):
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ToolCall(NamedTuple):
    """One call as the model wrote it."""

    id: str
    name: str
    arguments: str | dict  # untrusted: JSON text, or a parsed dict
    extra: dict | None = None  # unknown keys of the wire to send back, such as signatures


class Problem(NamedTuple):
    """One thing wrong with the arguments; `str(problem)` is one sentence for the model."""

    path: str  # "cfg.lr", "rows[1].x", "" for the arguments as a whole
    keyword: str  # the schema keyword that failed: "type", "required", "enum" ...
    text: str

    def __str__(self) -> str:
        return self.text


class ToolResult(NamedTuple):
    """What goes back to the model for one call: always text, and the value behind it if any."""

    text: str
    status: str = "ok"  # or another of RESULT_STATUS
    value: object = None  # JSON value behind the text; None for errors and plain text
    repairs: tuple[str, ...] = ()  # what was mended in the arguments, one sentence each

    @property
    def is_error(self) -> bool:
        return self.status != "ok"


RESULT_STATUS = {
    "ok": "工具正常返回", "unknown_tool": "没有这个工具", "bad_arguments": "参数不合格",
    "failed": "工具执行出错", "timed_out": "工具超时", "limited": "被限额拦下，没有执行",
    "cancelled": "已取消",
}


class Usage(NamedTuple):
    """Tokens of one model turn; add two with `plus`."""

    input: int = 0
    output: int = 0
    cached: int = 0  # part of `input` that the server read from its prompt cache

    def plus(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(self, other)))


class Turn(NamedTuple):
    """One answer of a model: text, calls, or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"  # "stop", "tool_calls", "length", or the server's own word
    usage: Usage | None = None
    reasoning: str = ""
    extra: dict | None = None  # further keys of the assistant message, sent back unchanged


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 2  模式 Schema      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A Python function describes itself: names and types from its signature, texts from its docstring.
# Every type becomes one `Shape` with both directions: JSON Schema (draft 2020-12) for the model,
# and `read`, which turns the model's JSON into what the annotation promises; so the two cannot
# drift apart. A new type is one row of SCALARS, ARRAYS or OBJECTS; a new way of writing types is
# one function under `@_form`. What JSON cannot express is refused when the tool is defined, with
# the parameter's name. Docstring text beats `Annotated` text. A return type never breaks a schema.
# `inspect` and `dataclasses` are imported where they are needed: that saves 10 ms of start-up.
# Sources: json-schema.org/draft/2020-12; PEP 484, 589, 593, 655, 695.


# --- scalars: one table, Python type ⇄ JSON ---

def _write_text(value: object) -> str:
    text = str(value)
    text.encode()  # raises UnicodeEncodeError, a ValueError: a lone surrogate is not JSON text
    return text


_ENDLESS = 1 << 14_000  # about 4,200 digits; from 4,300 on CPython refuses to print


def _write_number(value: float) -> float:
    if not abs(value) < _ENDLESS:
        raise ValueError("JSON has no NaN, no infinity and no endless integers")
    return int(value) if isinstance(value, int) else float(value)


def _read_whole(cls: type, number: float) -> int:
    if number != int(number):  # 4096.0 is an integer in JSON Schema, 4096.5 is not
        raise ValueError(number)
    return cls(number)


def _read_iso(cls: type, text: str) -> Any:
    """Date, time or both from RFC 3339 text; Python 3.10 knows neither `Z` nor odd fractions."""
    if cls.__name__ == "datetime" and ":" not in text:
        raise ValueError("a date alone is no date-time")
    text = re.sub(r"[.,](\d+)", lambda match: "." + match[1][:6].ljust(6, "0"), text.upper())
    return cls.fromisoformat(text.replace("Z", "+00:00"))


class Scalar(NamedTuple):
    """One row of SCALARS."""

    types: str  # JSON types it is written as: "string", or several, "number string"
    extra: dict = {}  # further schema keywords
    read: Callable = lambda cls, value: cls(value)  # from JSON of that type; may raise anything
    write: Callable = _write_text  # value → JSON value, or ValueError
    wanted: str = ""  # in an error, after the name of the type: how its text looks


# The keys are text, so that a type is recognised without importing its module. Subclasses count.
SCALARS = {
    "builtins.str": Scalar("string"),
    "typing.LiteralString": Scalar("string", read=lambda cls, text: text),
    "builtins.int": Scalar("integer", read=_read_whole, write=_write_number),
    "builtins.float": Scalar("number", write=_write_number),
    "builtins.bool": Scalar("boolean", write=bool),
    "builtins.NoneType": Scalar("null", read=lambda cls, _: None, write=lambda _: None),
    "builtins.complex": Scalar("string", wanted='（如 "1+2j"）'),
    "builtins.bytes": Scalar(
        "string", {"contentEncoding": "base16"}, lambda cls, text: cls.fromhex(text), bytes.hex,
        '（十六进制文字，如 "00ff"）'),
    "datetime.date": Scalar("string", {"format": "date"}, _read_iso),
    "datetime.datetime": Scalar(
        "string", {"format": "date-time"}, _read_iso, lambda v: v.isoformat()),
    "datetime.time": Scalar("string", {"format": "time"}, _read_iso),
    "datetime.timedelta": Scalar(
        "number", {"description": "秒"}, lambda cls, n: cls(seconds=n),
        lambda v: v.total_seconds()),
    "decimal.Decimal": Scalar(
        "number string", read=lambda cls, n: cls(str(n)), wanted='（如 "0.10"）'),
    "uuid.UUID": Scalar("string", {"format": "uuid"}),
    "pathlib.PurePath": Scalar("string"),
    "os.PathLike": Scalar("string", read=lambda cls, text: text),  # as in `str | os.PathLike`
    "ipaddress.IPv4Address": Scalar("string", {"format": "ipv4"}),
    "ipaddress.IPv6Address": Scalar("string", {"format": "ipv6"}),
    "fractions.Fraction": Scalar("string", wanted='（如 "1/3"）'),
}


def _type_key(tp: Any) -> str:
    """How the tables name a class or special form: "builtins.str", "collections.Set"."""
    module = (getattr(tp, "__module__", None) or "").partition(".")[0]
    return f"{module.removesuffix('_extensions')}.{getattr(tp, '__qualname__', '')}"


@functools.lru_cache(maxsize=256)
def _scalar_row(cls: Any) -> Scalar | None:
    keys = map(_type_key, getattr(cls, "__mro__", (cls,)))
    return next((SCALARS[key] for key in keys if key in SCALARS), None)


# --- value → JSON ---

_MOST_ITEMS = 100_000  # of one value: `range(10**12)` and lists that share parts end there
_REST = f"……（太长，只保留前 {_MOST_ITEMS} 项）"


def _plain(value: Any, other: Callable, left: Iterator) -> Any:
    """See `plain`; each item takes one from `left`."""
    cls = type(value)
    if isinstance(value, enum.Enum):
        return _plain(value.value, other, left)
    if row := _scalar_row(cls):
        try:
            return row.write(value)
        except ValueError:
            return other(value)
    if hasattr(cls, "__dataclass_fields__"):
        import dataclasses
        names = [field.name for field in dataclasses.fields(value)]
        value = {name: getattr(value, name) for name in names if hasattr(value, name)}
    for method in ("_asdict", "tolist"):  # a NamedTuple; an array or number of numpy or torch
        if callable(getattr(cls, method, None)):
            return _plain(getattr(value, method)(), other, left)

    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for _, (key, item) in zip(left, value.items()):
            name = _plain(key, other, left)
            name = name if type(name) is str else json.dumps(name)
            if name in made:
                return other(value)
            made[name] = _plain(item, other, left)
        return made if next(left, None) is not None else {**made, "…": other(_REST)}
    if not isinstance(value, (Sequence, set, frozenset, collections.abc.MappingView)):
        return other(value)
    items = [_plain(item, other, left) for _, item in zip(left, value)]
    if isinstance(value, (set, frozenset)):  # sorted: the same order in every run
        items.sort(key=lambda v: (n := isinstance(v, (int, float)), v if n else str(v)))
    return items if next(left, None) is not None else [*items, other(_REST)]


def _refuse(value: object) -> Any:
    raise ValueError(f"{type(value).__name__} 类型的值写不成 JSON")


def plain(value: Any, *, other: Callable = _refuse) -> Any:
    """The value as strict JSON data, always a copy.

    Records become objects, sets sorted arrays, an Enum its value, dates ISO text, bytes hex. What
    JSON cannot hold (NaN, a lone surrogate, two keys of the same text, any other object, a list
    that contains itself, what comes after 100,000 items) goes to `other`, which returns a
    substitute or, by default, raises ValueError. An iterator is never consumed.

    >>> plain({"b": (1, 2), "a": {3, 1}})
    {'b': [1, 2], 'a': [1, 3]}
    """
    try:
        return _plain(value, other, iter(range(_MOST_ITEMS)))
    except RecursionError:
        return other(value)


# --- docstrings ---

class Docstring(NamedTuple):
    """A docstring taken apart."""

    description: str  # all running text, without the sections
    params: dict[str, str]  # name → text


# Words by what stands below or behind them; "other" never reaches the model.
_HEADINGS = {
    "params": "args|arg|arguments|argument|parameters|parameter|params|param|keyword args|"
    "keyword arguments|other parameters|attributes|参数|参数说明|入参|形参|输入|输入参数|属性|字段",
    "other": "returns|return|yields|yield|返回|返回值|返回结果|输出|产出|"
    "raises|raise|exceptions|exception|except|rtype|warns|warning|warnings|note|notes|"
    "example|examples|see also|references|todo|异常|抛出|抛出异常|引发|注意|注意事项|注|备注|警告|"
    "示例|例子|例|样例|参见|参考",
}
_HEADING_KIND = {word: kind for kind, words in _HEADINGS.items() for word in words.split("|")}
_FIELD_KIND = {**_HEADING_KIND, "type": "other", "key": "params", "keyword": "params"}
_HEADING = (
    r"[\s#*]*([^\W\d_]+(?: [a-zA-Z]+)?)[\s*]*(?:[(（].*?[)）][\s*]*)?[:：][\s*]*(.*)")
_FIELD = r"\s*[:@]([a-z]+)\b([^:：]*)[:：]\s*(.*)"
# `name (type) : text`, `a, b: text`, `- name：text`, `*rest: text`, `name [type] - text`.
_ENTRY = (
    r"(?:[-*•]\s+)?([`*]*[^\W\d]\w*(?:`?\s*[,，、]\s*[`*]*[^\W\d]\w*)*)`?\s*"
    r"(?:[(（[].*?[]）)]\s*)?(?:[:：]|[-–—]{1,2}\s)\s*(.*)")
_NUMPY_ENTRY = "([^:：]+).*()"  # each line at the margin: `name`, `a, b : type`
_regex = functools.cache(re.compile)  # at first use: most runs read no docstring


def _begin(line: str, below: str) -> tuple:
    """Kind, pattern of an entry and text behind the colon, of the section that a line begins."""
    if below.lstrip().startswith("---"):
        return _HEADING_KIND.get(line.strip(" :：").lower()), _NUMPY_ENTRY, ""
    if field := _regex(_FIELD).match(line):  # a parameter's name stands last, behind its type
        return _FIELD_KIND.get(field[1]), _ENTRY, ": ".join([*field[2].split()[-1:], field[3]])
    if heading := _regex(_HEADING).match(line):
        kind, text = _HEADING_KIND.get(heading[1].lower()), heading[2]
        if kind != "params" or not text or _regex(_ENTRY).match(text):
            return kind, _ENTRY, text
    return None, "", ""  # also "输入：一段文字": running text


def _entries(entry: str, lines: list[tuple[int, str]]) -> dict[str, str]:
    """Name → text; what is indented deeper belongs to the name above."""
    import inspect

    margin = next((depth for depth, line in lines if line), 0)
    begins, names = _regex(entry).fullmatch, _regex(r"\w+").findall
    found, text = {}, []  # what stands above the first name is dropped
    for depth, line in lines:
        if depth <= margin and (begun := begins(line.strip())):
            text = [begun[2]]
            found.update(dict.fromkeys(names(begun[1]), text))
        else:
            text.append(line)
    return {
        name: inspect.cleandoc("\n".join(text)) if any(text[1:]) else text[0]
        for name, text in found.items()
    }


def parse_docstring(text: str | None) -> Docstring:
    """A docstring's running text, and its text for each parameter.

    Understands Google, NumPy and reST style, headings in Chinese and English, `:` and `：`.
    What stands under Raises, Note, Example and the like is left out.

    >>> parse_docstring("天气。\\n\\n参数：\\n    city (str)：城市名\\n返回：\\n    一句话").params
    {'city': '城市名'}
    """
    import inspect

    lines = [line.rstrip() for line in inspect.cleandoc(text or "").splitlines()]
    kind, indent, entry, held = "text", -1, "", []  # of the section that a line stands in
    sections = [(kind, entry, held)]
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""])):
        depth, begun = len(line) - len(line.lstrip()), None
        if indent < 0 or depth <= indent:  # deeper inside a section nothing begins
            begun, pattern, rest = _begin(line, below)
            if rest and number == 0 and line[0] not in ":@":
                begun = None  # "返回：今天的日期" as a whole docstring is its summary
        if begun:
            kind, indent, entry, held = begun, depth, pattern, [(depth, rest)] if rest else []
        elif (
            depth > indent or not (line and held) or entry is _NUMPY_ENTRY
            or held[-1][1] and held[0][0] <= indent  # right below a heading as far left
        ):
            held.append((depth, line))
            continue
        else:
            kind, indent, entry, held = "text", -1, "", [(depth, line)]
        sections.append((kind, entry, held))
    running, params = [], {}
    for kind, entry, held in sections:
        if kind == "text":
            running.append("\n".join(line for _, line in held).strip())
        elif kind == "params":
            params |= _entries(entry, held)
    return Docstring("\n\n".join(filter(None, running)), params)


# --- types → shapes ---

_TYPE_NAMES = {
    str: "string", int: "integer", float: "number", bool: "boolean",
    list: "array", dict: "object", type(None): "null",
}
# JSON types → what the JSON parser makes of them: True is no number, 4096.0 is an integer as well.
_PARSED = {
    "string": {str}, "integer": {int, float}, "number": {int, float}, "boolean": {bool},
    "null": {type(None)}, "number string": {int, float, str},
}
_WRITE_INSTEAD = "请改用 str、int、list[...]、dict[str, ...]、Literal、Enum、dataclass 等"


class Shape(NamedTuple):
    """One type, both ways."""

    schema: dict  # JSON Schema; a `$ref` in it points to the `defs` of the scope
    read: Callable  # JSON value → Python value; raises if the value does not fit


class _MisfitError(ToolError):
    """A JSON value and what it should have been; put into words only if somebody reads it."""

    def __str__(self) -> str:
        text = json.dumps(self.args[0], ensure_ascii=False, default=repr)
        return f"{text[:80]} 不能当作 {self.args[1]}"


def _expect(value: Any, cls: type) -> None:
    if type(value) is not cls:
        raise _MisfitError(value, _TYPE_NAMES[cls])


def _type_words(schema: dict) -> list[str]:
    """The words after `type` in a schema and its branches."""
    own = schema.get("type", [])
    return sum(map(_type_words, schema.get("anyOf", ())), [own] if isinstance(own, str) else own)


def _one_or_list(names: Iterable[str]) -> str | list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) > 1 else names[0]


def _scalar(origin, args, scope):
    name = getattr(origin, "__name__", origin)
    if not (row := _scalar_row(origin)):
        raise SchemaError(f"类型 {name} 写不成 JSON Schema，{_WRITE_INSTEAD}")
    parsed = _PARSED[row.types]

    def read(value):
        try:
            if type(value) in parsed:
                return row.read(origin, value)
            raise TypeError(value)
        except Exception as error:  # each class has its own, not just ValueError
            raise _MisfitError(value, f"{name}{row.wanted}") from error

    types = row.types.split() if " " in row.types else row.types
    return Shape({"type": types, **row.extra}, read)


# How one way of writing types becomes a shape: make(origin, args, scope), for tuple[int, str] with
# tuple and (int, str). The keys: of a class or special form its `_type_key`, of any other object
# its class, of a kind of classes what marks them.
_FORMS: dict[str, Callable] = {}


def _form(*keys: str) -> Callable:
    return lambda make: _FORMS.update(dict.fromkeys(keys, make)) or make


@functools.lru_cache(maxsize=256)
def _maker(origin: Any) -> Callable:
    marks = [key for key in _FORMS if key[0] == "_" and hasattr(origin, key)]
    keys = [_type_key(origin), type(origin).__name__, *marks]
    return next((_FORMS[key] for key in keys if key in _FORMS), _scalar)


_compile = functools.lru_cache(maxsize=256)(compile)  # annotation texts come again and again


class _Scope:
    """Where names in annotations are looked up, and the `$defs` found so far."""

    def __init__(self, names: dict, local: dict, outer: _Scope | None = None):
        self.names, self.local, self.outer = names, local, outer  # outer: of the record's user
        self.defs: dict = outer.defs if outer else {}  # type → [its name, its shape]

    def resolve(self, text: str) -> Any:
        """What annotation text means; it is the programmer's own code, as for `get_type_hints`."""
        return eval(_compile(text.strip(), "<string>", "eval"), self.names, self.local)

    def shape(self, tp: Any) -> Shape:
        """The shape of any annotation. SchemaError says what is wrong with it."""
        tp = type(None) if tp is None else tp
        try:
            origin = typing.get_origin(tp)
            return _maker(origin or tp)(origin or tp, typing.get_args(tp) if origin else (), self)
        except SchemaError:
            raise
        except RecursionError as error:
            if self.outer:  # said once, of the parameter: a record would go on with its next field
                raise
            raise SchemaError("类型套得太深，请改用层数少一些的类型") from error
        except NameError as error:
            where = "请在模块顶层定义或导入它（不能在函数里，也不能只在 TYPE_CHECKING 下）"
            raise SchemaError(f"标注里的名字 {error.name} 找不到，{where}") from error
        except Exception as error:  # evaluating an annotation runs the programmer's own code
            shown = f"{type(error).__name__}: {error}"
            raise SchemaError(f"类型标注读不懂（{shown}），{_WRITE_INSTEAD}") from error

    def shared(self, key: Any, name: str, make: Callable, *, inline: bool = True) -> Shape:
        """What `make` gives, in place, or a `$ref` to it if it contains itself or inline=False."""
        new = key not in self.defs
        entry = self.defs.setdefault(key, ["", None])
        if not entry[0] and not (new and inline):
            name = re.sub(r"\W", "_", name, flags=re.ASCII)
            while name in [taken for taken, _ in self.defs.values()]:
                name += "_"  # another type of the same name
            entry[0] = name
        if new:
            entry[1] = make()
            if not entry[0]:  # nothing refers to it
                return self.defs.pop(key)[1]
        return Shape({"$ref": f"#/$defs/{entry[0]}"}, lambda value: entry[1].read(value))

    def schema(self, root: dict) -> dict:
        """A root schema together with the `$defs` that its references need."""
        defs = {name: shape.schema for name, shape in self.defs.values()}
        return {**root, "$defs": defs} if defs else root


@_form("typing.Any", "builtins.object")
def _anything(origin, args, scope):
    return Shape({}, lambda value: value)


@_form("str", "ForwardRef", "TypeVar", "NewType", "InitVar", "typing.Required",
       "typing.NotRequired", "typing.ReadOnly", "typing.Final")
def _stand_in(origin, args, scope):
    """The type meant: by the text "int" and by `Required[int]` int, by a TypeVar its bound."""
    if isinstance(text := getattr(origin, "__forward_arg__", origin), str):
        meant = scope.resolve(text)
        if type(meant) is type:  # only an alias needs to be watched: JSON = dict[str, "JSON"]
            return scope.shape(meant)
        return scope.shared((text, scope), text, lambda: scope.shape(meant))
    if choices := getattr(origin, "__constraints__", ()):
        return scope.shape(typing.Union[choices])
    meant = [getattr(origin, name, None) for name in ("__supertype__", "__bound__", "type")]
    return scope.shape(next(filter(None, [*meant, *args]), Any))


def _filled_in(tp: Any, origin: Any, args: tuple) -> Any:
    """A type inside a generic: for Page[int], whose variable is T, list[T] becomes list[int]."""
    meant = dict(zip(getattr(origin, "__parameters__", ()), args))
    if isinstance(tp, typing.TypeVar):
        return meant.get(tp, tp)
    variables = getattr(tp, "__parameters__", ()) if typing.get_origin(tp) else ()
    return tp[tuple(meant.get(v, v) for v in variables)] if variables else tp


@_form("TypeAliasType")
def _alias(origin, args, scope):
    meant = _filled_in(origin.__value__, origin, args)
    return scope.shared((origin, args), origin.__name__, lambda: scope.shape(meant))


# --- patterns: regular expressions in linear time ---

# `re` tries one way after the other: on forty letters (a|aa)+$ takes it minutes, during which no
# thread runs and no deadline fires. Here all ways advance together, one character at a time
# (Thompson 1968), so the work is at most length of the text × size of the pattern. `re` still
# parses, and judges single characters and places such as ^ and \b.

_MAX_MATCHED = 5_000  # characters that a pattern or format is tried on
_MAX_STEPS = 12_000  # of one pattern, its counted repeats written out: `.{1,5000}` has 10,000
# (?<year>…) is JavaScript for (?P<year>…); not behind a backslash, not between square brackets.
_NAMED_GROUP = r"(?s)\\.|\[\^?\]?(?:\\.|[^]\\])*\]|(?P<js>\(\?<(?=[^\W\d]))"
_PARSER = getattr(re, "_parser", None) or re.sre_parse  # the second name: Python 3.10
_COMPILER = getattr(re, "_compiler", None) or re.sre_compile


class Pattern:
    """A regular expression as steps (check, whether it takes a character, the steps that follow).

    A check is None, or as `re.Pattern.match`, or for a look around (first step, characters back,
    what it should give). Step 0 is the end. SchemaError if the expression cannot be used.
    """

    def __init__(self, text: str):
        self.steps: list[tuple] = [(None, False, [])]
        self._leaves: dict[int, Callable] = {}  # a repeated one is compiled once
        try:
            if len(text) > _MAX_MATCHED:
                raise OverflowError("太长")
            text = re.sub(_NAMED_GROUP, lambda match: "(?P<" if match["js"] else match[0], text)
            with warnings.catch_warnings():  # `[[` may mean something else one day
                warnings.simplefilter("ignore")
                re.compile(text)  # finds errors that `parse` alone does not see
                parsed = _PARSER.parse(text)
            self.start = self._chain(parsed, parsed.state.flags, 0)
        except (re.error, RecursionError, OverflowError) as error:
            raise SchemaError(f"正则 {text[:80]} 无法使用（{error}）") from None

    def _add(self, check: object, wide: bool, *targets: int) -> int:
        if len(self.steps) >= _MAX_STEPS:
            raise OverflowError("展开之后太大")
        self.steps.append((check, wide, [*targets]))
        return len(self.steps) - 1

    def _chain(self, nodes: Sequence, flags: int, then: int) -> int:
        """Put the steps for nodes of the parser's tree in front of the step `then`."""
        for node in reversed(nodes):
            name, arg = node[0].name, node[1]
            if name == "SUBPATTERN":
                inner = _COMPILER._combine_flags(flags, arg[1], arg[2])
                then = self._chain(arg[3], inner, then)
            elif name == "BRANCH":
                then = self._add(None, False, *[self._chain(way, flags, then) for way in arg[1]])
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                then = self._repeat(*arg, flags, then)
            elif name in ("ASSERT", "ASSERT_NOT"):
                back = arg[1].getwidth()[0] if arg[0] < 0 else 0
                check = self._chain(arg[1], flags, 0), back, name == "ASSERT"
                then = self._add(check, False, then)
            elif name in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "AT", "FAILURE"):
                if id(node) not in self._leaves:
                    leaf = _PARSER.SubPattern(_PARSER.State(), [node])
                    self._leaves[id(node)] = _COMPILER.compile(leaf, flags).match
                then = self._add(self._leaves[id(node)], name not in ("AT", "FAILURE"), then)
            else:
                raise OverflowError(f"不支持 {name.lower()}")  # such as \1: no linear way is known
        return then

    def _repeat(self, low: int, high: int, inner: Sequence, flags: int, then: int) -> int:
        after = then
        if high > _MAX_MATCHED:  # no end
            then = self._add(None, False, after)
            self.steps[then][2].append(self._chain(inner, flags, then))
            high = low
        for _ in range(high - low):
            then = self._add(None, False, self._chain(inner, flags, then), after)
        for _ in range(low):
            if then == (then := self._chain(inner, flags, then)):
                break  # nothing inside, so nothing to repeat
        return then

    def search(self, text: str, pay=lambda work: None, *, start=None, at: int = 0) -> bool:
        """Whether it matches anywhere (from a step `start` on: at `at`); `pay` may raise to end."""
        always, arrived = ([self.start], []) if start is None else ([], [start])
        for here in range(at, len(text) + 1):
            todo, seen, arrived = always + arrived, set(), []
            while todo:
                if (number := todo.pop()) in seen:
                    continue
                seen.add(number)
                check, wide, targets = self.steps[number]
                if type(check) is tuple:
                    first, back, wanted = check
                    fits = wanted == (
                        here >= back and self.search(text, pay, start=first, at=here - back))
                else:
                    fits = not check or check(text, here)
                if fits:
                    (arrived if wide else todo).extend(targets)
            if 0 in seen:
                return True
            pay(1 + len(seen) // 4)
            if not always and not arrived:
                break
        return False


compile_pattern = functools.lru_cache(128)(Pattern)


# JSON type → `Annotated` constraint, by the attribute that annotated_types, pydantic and re.Pattern
# share → schema keyword. Held against the arguments by §3, not by `read`.
CONSTRAINTS = {
    "number": {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum",
               "lt": "exclusiveMaximum", "multiple_of": "multipleOf"},
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
}
CONSTRAINTS["integer"] = CONSTRAINTS["number"]


@_form("typing.Annotated")
def _annotated(origin, args, scope):
    """`Annotated[int, "text", Ge(1)]`: the first text, and every constraint that fits the type."""
    bare, *notes = args
    notes += [inner for note in notes for inner in getattr(note, "metadata", None) or ()]
    schema, read = scope.shape(bare)
    keywords = [pair for word in _type_words(schema) for pair in CONSTRAINTS.get(word, {}).items()]
    added = {}
    for note in notes:
        if isinstance(text := getattr(note, "description", note), str):
            added.setdefault("description", text)
        for attribute, keyword in keywords:
            limit = getattr(note, attribute, None)
            finite = isinstance(limit, (int, float)) and math.isfinite(limit)
            if isinstance(limit, str) if keyword == "pattern" else finite:
                added[keyword] = limit
    compile_pattern(added.get("pattern", ""))  # now, so that an error names the parameter
    return Shape({**schema, **added}, read)


def _union_schema(schemas: list[dict]) -> dict:
    """Scalars share one `type` list; anything richer becomes `anyOf`. A lone text moves out."""
    described = [schema for schema in schemas if "description" in schema]
    text = {"description": described[0].pop("description")} if len(described) == 1 else {}
    if {} in schemas:
        return text
    bare = all(schema.keys() == {"type"} for schema in schemas)
    rest = [schema for schema in schemas if schema != {"type": "null"}] or schemas
    if not bare and (len(rest) > 1 or rest[0].get("type") in (None, "array", "object")):
        return {"anyOf": schemas, **text}
    merged = {**rest[0], "type": _one_or_list(sum(map(_type_words, schemas), [])), **text}
    if None not in merged.get("enum", [None]):
        merged["enum"].append(None)
    return merged


@_form("typing.Union", "types.UnionType")
def _union(origin, args, scope):
    shapes = [scope.shape(branch) for branch in args]

    def read(value):
        refused = []
        for shape in shapes:  # the first branch that fits
            try:
                return shape.read(value)
            except Exception as error:
                refused.append(error)
        # a record of the right form, but with further wishes, says more than a misfit
        raise min(refused, key=lambda error: isinstance(error, _MisfitError))

    return Shape(_union_schema([shape.schema for shape in shapes]), read)


@_form("__members__", "typing.Literal")
def _choice(origin, args, scope):
    """One of some constants, told apart as JSON does: 1 equals 1.0 but not true."""
    members = list(origin) if isinstance(origin, type) else args
    values = [plain(member) for member in members]

    def read(value):
        for choice, member in zip(values, members):
            if choice == value and (type(choice) is bool) == (type(value) is bool):
                return member
        raise _MisfitError(value, f"{json.dumps(values, ensure_ascii=False)} 之一")

    types = _one_or_list(_TYPE_NAMES[type(value)] for value in values)
    return Shape({"type": types, "enum": [*values]}, read)


# --- containers: origin → what the list or dict of its values, read one by one, is turned into ---

ARRAYS = {
    "builtins.list": list, "builtins.tuple": tuple, "builtins.set": set,
    "builtins.frozenset": frozenset, "collections.deque": collections.deque,
    "collections.Sequence": list, "collections.MutableSequence": list,
    "collections.Collection": list, "collections.Iterable": list,
    "collections.Container": list, "collections.Reversible": list, "collections.Iterator": iter,
    "collections.Set": set, "collections.MutableSet": set,
}
OBJECTS = {
    "builtins.dict": dict, "collections.Mapping": dict, "collections.MutableMapping": dict,
    "collections.OrderedDict": collections.OrderedDict,
    "collections.defaultdict": functools.partial(collections.defaultdict, None),
}


@_form(*ARRAYS)
def _array(origin, args, scope):
    build = ARRAYS[_type_key(origin)]
    fixed = origin is tuple and ... not in (args or [...])
    items = [scope.shape(arg) for arg in args or [Any] if arg is not ...]
    schema: dict = {"type": "array"}
    if fixed:
        schema["prefixItems"] = [item.schema for item in items]
        schema["minItems"] = schema["maxItems"] = len(items)
    else:
        schema["items"] = items[0].schema
    if build in (set, frozenset):
        schema["uniqueItems"] = True
        if args and (typing.get_origin(args[0]) or args[0]).__hash__ is None:
            raise SchemaError(f"集合的元素不能是 {args[0]}（不可哈希）；请改用 list 或 tuple")

    def read(value):
        _expect(value, list)
        if fixed and len(value) != len(items):
            raise _MisfitError(value, f"有 {len(items)} 个元素的 array")
        shapes = items if fixed else itertools.repeat(items[0])
        return build([shape.read(item) for shape, item in zip(shapes, value)])

    return Shape(schema, read)


@_form(*OBJECTS)
def _object(origin, args, scope):
    build = OBJECTS[_type_key(origin)]
    key, item = map(scope.shape, args or (str, Any))
    names, read_key = key
    if _type_words(names) == ["integer"]:  # keys are text in JSON: 8 travels as "8"
        names, read_key = {"pattern": "^-?[0-9]+$"}, lambda text: key.read(json.loads(text))
    elif _type_words(names) not in ([], ["string"]):
        raise SchemaError("字典的键只能是 str、int，或值为它们的 Enum、Literal")

    def read(value):
        _expect(value, dict)
        return build((read_key(name), item.read(element)) for name, element in value.items())

    schema = {"type": "object"}
    if item.schema:
        schema["additionalProperties"] = item.schema
    if names not in ({}, {"type": "string"}):
        schema["propertyNames"] = names
    return Shape(schema, read)


# --- signatures ---

class Parameter(NamedTuple):
    """One parameter of a function, or one field of a record."""

    name: str
    type: Any  # the annotation
    required: bool
    default: Any = object()  # what no schema shows, for it is not JSON
    by_position: bool = False


class Parameters(NamedTuple):
    """What a function takes, read once: its description for a model, and the way to call it."""

    name: str
    description: str
    schema: dict  # of the arguments, with `$defs`
    parameters: list[Parameter]
    shapes: dict[str, Shape]

    def bind(self, values: dict) -> tuple[list, dict]:
        """Positional and keyword arguments for the call, from arguments that the schema accepts.

        JSON values become what the annotations promise: 4096.0 an int, "2026-11-30" a date, an
        object a dataclass. Raises ToolError, which names the parameter, where that is impossible.
        """
        if not values.keys() <= self.shapes.keys():
            raise ToolError(f"没有参数 {'、'.join(sorted(values.keys() - self.shapes.keys()))}")
        positional, keyword = [], {}
        for name, _, required, value, by_position in self.parameters:
            if name in values:
                try:
                    value = self.shapes[name].read(values[name])
                except RecursionError as error:
                    raise ToolError(f"参数 {name} 嵌套太深") from error
                except Exception as error:  # a record's own constructor may raise anything
                    kind = "" if isinstance(error, ToolError) else f"{type(error).__name__} "
                    reason = " ".join(f"{kind}{error}".split())[:200]
                    raise ToolError(f"参数 {name} 不合要求：{reason}") from error
            elif required:
                raise ToolError(f"缺少必填参数 {name}")
            if by_position:
                positional.append(value)
            elif name in values:
                keyword[name] = value
        return positional, keyword


def _signature(fn: Any, name: str) -> list[Parameter]:
    """The parameters a caller fills in: no `self`, no `*args`, no `**kwargs`."""
    import inspect

    try:
        found = list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError) as error:
        raise SchemaError(f"函数 {name} 没有可读的签名；请用 def 写一个函数把它包起来") from error
    first = found[0] if found and not isinstance(fn, type) else None
    if first and first.name in ("self", "cls") and first.annotation is first.empty:
        del found[0]  # `Class.method`, not yet bound
    return [
        Parameter(p.name, Any if p.annotation is p.empty else p.annotation,
                  p.default is p.empty, p.default, p.kind is p.POSITIONAL_ONLY)
        for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _described(parameter: Parameter, scope: _Scope, text: str) -> Shape:
    """The shape of one parameter: its type, its text, and its default if that is JSON."""
    schema, read = scope.shape(parameter.type)
    if text:
        schema["description"] = text
    if not parameter.required:
        try:
            value = plain(parameter.default)
            read(value)
            schema["default"] = value
        except Exception:  # it is no JSON, or of another type; a record's constructor may refuse
            if parameter.default is None:  # `x: int = None`
                nullable = typing.Optional[parameter.type]
                return _described(parameter._replace(type=nullable), scope, text)
    return Shape(schema, read)


def _describe(found, scope, *, name: str, owner: str, doc: Docstring) -> Parameters:
    shapes, faults = {}, []
    for parameter in found:
        text = doc.params.get(parameter.name, "")
        try:
            shapes[parameter.name] = _described(parameter, scope, text)
        except SchemaError as error:
            faults.append(f"{owner} {parameter.name}：{error}")
    if faults:
        raise SchemaError("；".join(faults))
    return Parameters(name, doc.description, {
        "type": "object",
        "properties": {name: shape.schema for name, shape in shapes.items()},
        "required": [parameter.name for parameter in found if parameter.required],
        "additionalProperties": False,
    }, found, shapes)


# --- records: types with named fields become JSON objects ---

@functools.lru_cache(maxsize=256)
def _names_inside(cls: type) -> dict:
    """What annotations in the body of a class may mean: its classes, aliases, variables, itself."""
    body = [pair for base in cls.__mro__[-2::-1] for pair in vars(base).items()]
    body += [(tp.__name__, tp) for tp in (*getattr(cls, "__parameters__", ()), cls)]
    kinds = ("typing", "types")  # of what list[int], Literal["a"], a TypeVar … are
    return {name: tp for name, tp in body if isinstance(tp, type) or type(tp).__module__ in kinds}


def _record_fields(cls: type, args: tuple) -> list[Parameter]:
    """Keys of a TypedDict, otherwise the parameters of the constructor."""
    try:
        hints = typing.get_type_hints(cls, localns=_names_inside(cls), include_extras=True)
    except Exception:  # then each is resolved by itself, so that an error names its field
        hints = getattr(cls, "__annotations__", {})
    if args:
        hints = {name: _filled_in(hint, cls, args) for name, hint in hints.items()}
    if not hasattr(cls, "__required_keys__"):
        fields = _signature(cls, cls.__name__)
        return [field._replace(type=hints.get(field.name, field.type)) for field in fields]
    known = {"typing.Required": True, "typing.NotRequired": False}  # lost if postponed
    return [
        Parameter(name, hint, known.get(
            _type_key(typing.get_origin(hint)), name in cls.__required_keys__))
        for name, hint in hints.items()
    ]


def _name_and_doc(fn: Any) -> tuple[str, str | None]:
    """Name and docstring, but not the "Point(x, y)" that dataclass and namedtuple make up."""
    import inspect

    if isinstance(inner := inspect.unwrap(fn), functools.partial):  # it has no name to hand on
        return _name_and_doc(inner.func)
    if hasattr(fn, "__name__"):
        made_up = isinstance(fn, type) and (fn.__doc__ or "").startswith(f"{fn.__name__}(")
        return fn.__name__, None if made_up else fn.__doc__
    return type(fn).__name__, type(fn).__call__.__doc__ or type(fn).__doc__


def _record_shape(cls: type, args: tuple, scope: _Scope) -> Shape:
    import inspect

    name, doc = cls.__name__, parse_docstring(_name_and_doc(cls)[1])
    module = vars(inspect.getmodule(cls) or types)
    inside = _Scope({**scope.names, **scope.local, **module}, _names_inside(cls), scope)
    fields = _describe(
        _record_fields(cls, args), inside, name=name, owner=f"{name} 的字段", doc=doc)

    def read(value):
        _expect(value, dict)
        positional, keyword = fields.bind(value)
        return cls(*positional, **keyword)

    text = {"description": doc.description} if doc.description else {}
    return Shape({**fields.schema, **text}, read)


@_form("__dataclass_fields__", "__required_keys__", "_field_defaults")  # the latter: NamedTuple
def _record(origin, args, scope):
    return scope.shared(
        (origin, args), origin.__name__, lambda: _record_shape(origin, args, scope), inline=False)


# --- functions ---

def _scope_of(fn: Any) -> _Scope:
    """The names for a function's postponed annotations: of module, class, closure, variables."""
    import inspect

    written = inspect.unwrap(fn)
    if isinstance(written, functools.partial):
        return _scope_of(written.func)
    owner = getattr(written, "__self__", getattr(fn, "__self__", None))
    if not hasattr(written, "__name__"):  # an object that can be called
        owner, written = written, type(written).__call__
    names = {**_names_inside(owner if isinstance(owner, type) else type(owner))}
    free = getattr(getattr(written, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(written, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet
            names[name] = cell.cell_contents
    names |= {tp.__name__: tp for tp in getattr(written, "__type_params__", ())}
    module = getattr(written, "__globals__", None) or vars(inspect.getmodule(written) or types)
    return _Scope(module, names)


def read_parameters(fn: Callable) -> Parameters:
    """Everything about a function that a tool needs. SchemaError names function and parameter."""
    if not callable(fn):
        raise SchemaError(f"{fn!r} 不是函数，不能做工具")
    name, written = _name_and_doc(fn)
    if name == "<lambda>":
        raise SchemaError("lambda 没有名字，不能做工具；请用 def 写成函数，给它起个名字")
    scope, found, doc = _scope_of(fn), _signature(fn, name), parse_docstring(written)
    read = _describe(found, scope, name=name, owner=f"函数 {name} 的参数", doc=doc)
    return read._replace(schema=scope.schema(read.schema))


def function_to_schema(fn: Callable) -> dict:
    """Name, description and parameters (a JSON Schema) of a function, as a model is shown them.

    Parameters without default are required; defaults appear if they are JSON. Raises SchemaError,
    naming function and parameter, for what cannot be expressed.

    >>> def double(n: int = 1): ...
    >>> function_to_schema(double)["parameters"]["properties"]
    {'n': {'type': 'integer', 'default': 1}}
    """
    read = read_parameters(fn)
    return {"name": read.name, "description": read.description, "parameters": read.schema}


def type_to_schema(tp: Any) -> dict:
    """The JSON Schema of one type, with `$defs` where it has records or contains itself.

    >>> type_to_schema(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    scope = _Scope({}, {})
    return scope.schema(scope.shape(tp).schema)


def output_schema(fn: Callable) -> dict | None:
    """An object schema if the function returns a TypedDict or dataclass, else None; no error."""
    import dataclasses
    import inspect

    with contextlib.suppress(Exception):  # what cannot be described is no reason to refuse the tool
        scope, tp = _scope_of(fn), inspect.signature(fn).return_annotation
        tp = scope.resolve(tp) if isinstance(tp, str) else tp
        cls = typing.get_origin(tp) or tp
        keys = (
            {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls)
            else cls.__required_keys__ | cls.__optional_keys__
        )
        schema = _record_shape(cls, typing.get_args(tp), scope).schema
        if keys == set(schema["properties"]):  # a field may be set by no parameter
            return scope.schema(schema)
    return None


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 3  参数 Arguments      uses §1, §2 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# From what the model wrote to a dict the tool can trust, in two steps. `parse_arguments` turns
# text into one dict: it mends spelling (quotes, commas, fences), never meaning: cut-off text is
# not completed, one of two objects is not chosen, a failure does not become {}.
# `validate_arguments` holds the dict against its JSON Schema (draft 2020-12) and reports every
# problem at once, each in one sentence the model can act on. Work and text are always bounded.
# A schema keyword is one row of KEYWORDS. A schema is read once into nodes that hold its rules by
# type; a call only runs the rules for the types it meets.

_MAX_TEXT = 2_000_000  # characters of argument text; a file to write fits, a runaway does not
_MAX_DEPTH = 200  # nested brackets; real arguments stay below 10
_MAX_DIGITS = 4_300  # of one integer: what CPython itself refuses to read (sys.int_info)
_MAX_WORK = 300_000  # per call: 1 for each item or key, 30 for each sentence or step by `$ref`
_MAX_MESSAGE = 400  # characters of one sentence for the model
_MAX_PROBLEMS = 20  # sentences per call; a model repairs no more at a time
_TOO_LARGE = f"嵌套超过 {_MAX_DEPTH} 层或者太大，请改成较小的结构"

# ── Words for the model ──


def _cut(text: str, limit: int = _MAX_MESSAGE) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(value: object, limit: int = 100) -> str:
    """Return `value` as JSON text of at most `limit` characters; safe for every Python value.

    >>> show({"seq_len": "8k"}), show(float("nan")), show("x" * 500, 8)
    ('{"seq_len": "8k"}', 'NaN', '"xxxxxx…')
    """
    encoder = json.JSONEncoder(ensure_ascii=False, default=lambda item: f"<{type(item).__name__}>")
    try:
        pieces = encoder.iterencode(value[:limit] if isinstance(value, str) else value)
        text = "".join(piece[: limit + 1] for piece in itertools.islice(pieces, limit + 1))
    except (ValueError, TypeError):  # 5,000 digits, a loop, a key like (1, 2)
        text = f"<{type(value).__name__}>"
    return _cut(text.encode("utf-8", "backslashreplace").decode("utf-8"), limit)


def _listed(words: list[str], last: str = "、") -> str:
    """Return `A、B、C`, or `A、B 或 C` with last=" 或 "; a long list is cut and says its length."""
    text = last.join(["、".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
    return text if len(text) <= 160 else f"{_cut(text, 150)}（共 {len(words)} 个）"


def _choose_from(values: list) -> str:
    return f"只能是 {_listed([show(v, 60) for v in values])}" + (" 之一" if len(values) > 1 else "")


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be, or None.

    >>> closest("maxTokens", ["min_p", "max_tokens"]), closest("learnig_rate", ["learning_rate"])
    ('max_tokens', 'learning_rate')
    """
    def bare(each: str) -> str:
        return re.sub(r"[\W_]+", "", each[:100]).lower()

    known = {bare(each): each for each in itertools.islice(names, 200)}
    if bare(name) in known:
        return known[bare(name)]
    from difflib import get_close_matches  # only wrong calls need it

    hits = get_close_matches(bare(name), known, n=1, cutoff=0.7)
    return known[hits[0]] if hits else None


def _suggested(name: str, names: Iterable[str]) -> str:
    near = closest(name, names)
    return f"，是不是想写 {_cut(near, 60)}？" if near else ""


# A path is a tuple: first the account of work left, a list of one number shared by the whole call,
# then the names and indices that lead to the value.
def _spend(path: tuple, work: int) -> None:
    """Pay for a step; RecursionError when the call asks too much, as when Python's stack ends."""
    path[0][0] -= work
    if path[0][0] < 0 or len(path) > _MAX_DEPTH:
        raise RecursionError


def _where(path: tuple) -> str:
    """Return a path as text: `cfg.opt.lr`, `rows[1].x`, "" for the arguments as a whole."""
    _spend(path, 30)
    text = "".join(
        f".{step}" if type(step) is str and re.fullmatch(r"[\w$@-]{1,60}", step)
        else f"[{show(step, 40)}]" for step in path[1:][-60:]
    ).removeprefix(".")
    return text if len(text) <= 100 else "…" + text[-99:]


def _fault(path: tuple, keyword: str, says: str, value: object, hint: str = "") -> list[Problem]:
    """Return the one problem `参数 <path> <says>，收到的是 <value><hint>`."""
    where = _where(path)
    subject = f"参数 {where} " if where else "参数整体"
    return [Problem(where, keyword, _cut(f"{subject}{says}，收到的是 {show(value)}{hint}"))]


_LEAVES = frozenset([str, int, bool, type(None)])


def _type_of(value: object) -> str:
    """Return the narrowest JSON type: 3.0 is an integer, 3.5 a number, True neither; or ""."""
    kind = type(value)
    return "integer" if kind is float and value.is_integer() else _TYPE_NAMES.get(kind, "")


def _equality_key(value: object) -> object:
    """Return something hashable, equal for equal JSON values: 1 equals 1.0, but not true."""
    if isinstance(value, list):
        return ("array", *map(_equality_key, value))
    if isinstance(value, dict):
        return frozenset((name, _equality_key(item)) for name, item in value.items())
    if type(value) in (int, float) and 2**60 <= abs(value) < math.inf:
        return ("large", hex(int(value)))  # the hash of a large int is easily made to collide
    plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return value if plain else (id(value),)  # true, false and null are one object each


def _steps(value: dict | list) -> Iterable[tuple]:
    return value.items() if type(value) is dict else enumerate(value)


def _not_json(value: object, path: tuple) -> list[Problem]:
    """Return why `value` is not finite JSON, if so; RecursionError if it is too deep or big."""
    kind, found = type(value), []
    if kind is float:
        return [] if math.isfinite(value) else _fault(path, "finite", "要是有限的数", value)
    if kind is not dict and kind is not list:
        return _fault(path, "json", "不是 JSON 值", value)
    if kind is dict and not {str}.issuperset(map(type, value)):
        return _fault(path, "json", "的键都应该是字符串", value)
    _spend(path, 1 + len(value))
    for step, item in _steps(value):
        if type(item) not in _LEAVES and len(found) <= _MAX_PROBLEMS:
            found += _not_json(item, path + (step,))
    return found


# ── Text → dict ──


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ArgumentsError(f"参数里有 {len(digits)} 位的整数，太长了，请改用较小的数或字符串")
    return int(digits)


def _parse_float(word: str) -> float:
    if not math.isfinite(value := float(word)):  # 1e999, or a constant such as NaN
        raise ArgumentsError(f"JSON 里不能写 {_cut(word, 40)}，请改用普通的数；没有值就写 null")
    return value


def _parse_pairs(pairs: list[tuple[str, object]]) -> dict:
    """Return the pairs as a dict; a key may come twice only with the same value."""
    found = dict(pairs)
    for name, value in pairs if len(found) < len(pairs) else ():
        if _equality_key(found[name]) != _equality_key(value):
            raise ArgumentsError(f"键 {show(name, 60)} 出现了两次而且值不同，请只保留一个")
    return found


_DECODER = json.JSONDecoder(
    parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_float,
    object_pairs_hook=_parse_pairs, strict=False,  # models write raw line breaks inside strings
)


def _load_json(text: str) -> object:
    """Return the value, strictly: json.JSONDecodeError for syntax, ArgumentsError for the rest."""
    if len(text) > _MAX_TEXT:
        raise ArgumentsError(f"参数有 {len(text)} 个字符，超过上限 {_MAX_TEXT}，请分几次发送")
    try:
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > _MAX_DEPTH:
            _not_json(value, ([math.inf],))
        (json.dumps(value, ensure_ascii=False) if "\\u" in text else text).encode("utf-8")
    except RecursionError:
        raise ArgumentsError(f"参数{_TOO_LARGE}") from None
    except UnicodeEncodeError:
        raise ArgumentsError("文字里有不成对的 \\ud… 转义（半个字符），请写出完整的字符") from None
    return value


# Python's spelling is mended token by token: `ast.literal_eval` would join 'a' 'b' to one string,
# a guess at unescaped quotes. A string left open goes to the end: no second try, no n² time.
# Patterns are kept as text, since `re` keeps what it has compiled and importing them is free.
_SLIP = r"""(?xs)
    " [^"\\]*(?:\\.[^"\\]*)* (?:"|\\?\Z)                        # a JSON string: leave it alone
  | '(?P<python> [^'\\]*(?:\\.[^'\\]*)* )(?P<end>'|\\?\Z)       # a Python string
  | \b(?P<word>True|False|None)\b
  | (?<=[\w"'\]}])\s*(?P<comma>,)(?=\s*[\]}])                   # a comma after the last item
"""
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_JSON_ESCAPES = {'"': '\\"', "\\'": "'", "\\x": "\\u00"}


def _json_spelling(match: re.Match) -> str:
    """Return one token of `_SLIP` as JSON spells it."""
    if match["end"] == "'":
        tokens = re.findall(r'(?s)\\.|"|[^\\"]+', match["python"])
        return '"' + "".join(_JSON_ESCAPES.get(token, token) for token in tokens) + '"'
    return "" if match["comma"] else _JSON_WORDS.get(match["word"], match[0])


_SYNTAX_REASONS = {
    "Expecting property name": "键要用英文双引号括起来，引号前面不要加反斜杠",
    "Expecting ':'": "键的后面缺少英文冒号",
    "Expecting ','": '缺少英文逗号；如果是字符串里的双引号，要写成 \\"',
    "Expecting value": "这里缺少一个合法的值",
    "Illegal trailing comma": "最后一项的后面不要加逗号",
    "Invalid \\escape": "字符串里的反斜杠要写成 \\\\",
    "Invalid \\u": "\\u 后面要有四位十六进制数",
    "Extra data": "对象后面还有多余的内容，一次只能发一个对象，前后不要加说明文字",
}


def _explain_syntax(text: str, error: json.JSONDecodeError) -> str:
    """Return what is wrong with JSON text, where, and what to send instead."""
    rest = re.fullmatch(r"[\w+.\\-]*", text[error.pos:])  # nothing, or half a word or number
    broken_off = error.msg.startswith("Unterminated") or (rest and error.msg != "Extra data")
    broken_off = broken_off and text.startswith(("{", "[", '"'))
    at = len(text) - 15 if broken_off else error.pos
    near = re.sub(r'\\(["\\])', r"\1", show(text[max(0, at - 15) : at + 15], 60)[1:-1])
    if broken_off:
        long = "；内容太长就分几次发送" if len(text) > 500 else ""
        return f"参数没有写完，在 “{near}” 之后断了，请重新发送完整的 JSON 对象{long}"
    reasons = (says for start, says in _SYNTAX_REASONS.items() if error.msg.startswith(start))
    place = f"第 {error.lineno} 行第 {error.colno} 列 “{near}” 附近"
    return f"参数不是合法的 JSON：{place}，{next(reasons, error.msg)}。请只发送一个 JSON 对象"


def _read_layer(text: str) -> object:
    """Return the value in `text`: strict JSON, else JSON once slips of spelling are mended."""
    text = text.strip().removeprefix("\ufeff").strip()
    if fenced := text.startswith("```") and re.fullmatch(r"(?s)```[\w-]*\s(.*?)(?:```)?", text):
        text = fenced[1].strip()
    try:
        return _load_json(text) if text else {}
    except json.JSONDecodeError as error:
        first = error
    try:
        return _load_json(re.sub(_SLIP, _json_spelling, text))
    except json.JSONDecodeError:
        if "{" not in text and text[0] not in '["':
            return text  # no object at all: `parse_arguments` says so
        raise ArgumentsError(_explain_syntax(text, first)) from None


def parse_arguments(text: str | dict | None) -> dict:
    """Return the arguments of a call as a dict; ArgumentsError says what to send instead.

    Accepts a JSON object, a dict, and nothing at all ({}). Mends what has one reading only: a code
    fence, a byte-order mark, raw control characters, trailing commas, Python's quotes and words,
    an object encoded as a string once or twice.

    >>> parse_arguments('{"k": 4096,}'), parse_arguments("{'dry': True}"), parse_arguments("")
    ({'k': 4096}, {'dry': True}, {})
    """
    value = "" if text is None else text
    for layer in range(3):  # the text, and an object encoded as a string, once or twice
        if type(value) is str and (layer == 0 or value.strip().startswith(("{", '"', "```"))):
            value = _read_layer(value)
    if type(value) is dict:
        return value
    if isinstance(value, Mapping):  # an OrderedDict, a proxy: what is not JSON stays as it is
        return plain(value, other=lambda item: item)
    raise ArgumentsError(f"参数应该是一个 JSON 对象（object），写成 {{…}}，收到的是 {show(value)}")


_ANY = list(_TYPE_NAMES.values())
# Type names of other languages in real tool sets (BFCL: dict in every tool, float 879 times);
# compared in lower case, which covers Gemini's STRING as well.
_ALIASES = {alias: name for name, others in {
    "string": "str text char character", "integer": "int long short byte bigint",
    "number": "float double decimal", "array": "list tuple set arraylist queue",
    "object": "dict map hashmap hashtable", "boolean": "bool", "null": "none nonetype",
}.items() for alias in [name, *others.split()]}


def _types(schema: object) -> list[str]:
    """Return the names of the JSON types a schema allows; SchemaError if it makes no sense."""
    if isinstance(schema, bool):
        return _ANY if schema else []
    if not isinstance(schema, dict):
        raise SchemaError(f"模式应该是一个对象，现在是 {show(schema, 40)}，不予检查")
    stated = schema.get("type", "any")
    words = [str(name).lower() for name in (stated if isinstance(stated, list) else [stated])]
    if "any" in words:
        return _ANY
    if stated in (None, []) or not _ALIASES.keys() >= set(words):  # ["string", None] is fine
        raise SchemaError(f"不认识的类型 {show(stated, 60)}，不检查类型")
    nullable = ["null"] * (schema.get("nullable") is True)
    return list(dict.fromkeys([_ALIASES[word] for word in words] + nullable))


def _choices(schema: dict) -> list:
    """Return the values that `const` or `enum` allow; [] if there is neither."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return choices if isinstance(choices, list) else []


def _lossless(value: object, names: Iterable[str]) -> object:
    """Return what a text spells in JSON, or a float as int, if the types `names` want just it."""
    found = value
    if type(value) is str and "string" not in names:
        with contextlib.suppress(ValueError):
            found = _load_json(value)
        if type(found) not in (list, dict) and value != value.strip():
            return value
    if type(found) is float and found.is_integer() and "number" not in names:
        found = int(found)
    return found if found is not None and _type_of(found) in names else value


def _advice(value: object, names: Iterable[str]) -> str:
    """Return what to do about a text where the types `names` are wanted, or ""."""
    if type(value) is not str or "string" in names:
        return ""
    bare = _lossless(value, names)
    opened = {"[": "array", "{": "object"}.get(value.lstrip()[:1])  # perhaps with Python's quotes
    wanted = opened if bare is value else show(bare, 40)
    return f"；请直接写 {wanted}，不要加引号" if opened in names or bare is not value else ""


# ── Rules ──
#
# A rule takes what the keyword says (subschemas as nodes), the value, its path, and the node of
# the schema (`SchemaRules` below). It returns what is wrong, in words or as problems, or nothing.


def _rule_limit(holds, says, limit, value, path, node):
    size = value if type(value) in (int, float) else len(value)
    return "" if holds(size, limit) else says.format(show(limit), size)


def _is_multiple(value: int | float, step: int | float) -> bool:
    """Return whether value / step is whole in decimal digits as written, so 0.07 by 0.01 is."""
    from fractions import Fraction

    if type(value) is type(step) is int or not abs(value) < math.inf:
        return value % step == 0
    value, step = (Fraction(n if type(n) is int else repr(n)) for n in (value, step))
    return (value / step).denominator == 1


def _rule_enum(allowed, value, path, node):
    if _equality_key(value) in allowed:
        return ()
    choices = _choices(node.schema)
    hint = _suggested(value, (show(choice) for choice in choices)) if type(value) is str else ""
    return _fault(path, "enum", _choose_from(choices), value, hint)


def _matches(pattern: str, text: str, path: tuple) -> bool:
    return compile_pattern(pattern).search(text, functools.partial(_spend, path))


def _rule_pattern(pattern, value, path, node):
    if len(value) > _MAX_MATCHED:
        return f"超过 {_MAX_MATCHED} 个字符，无法核对正则 {_cut(pattern, 100)}"
    return "" if _matches(pattern, value, path) else f"要符合正则 {_cut(pattern, 100)}"


_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)?"
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# format → (shape, example). Times as in RFC 3339, but the offset may be missing as in isoformat().
# Any other format is an annotation (JSON Schema validation, section 7.2.1).
_FORMATS = {
    "date": (_DATE, "2031-02-28"),
    "date-time": (f"{_DATE}[tT]{_TIME}", "2031-02-28T10:00:00Z"),
    "time": (_TIME, "10:00:00Z"),
    "uuid": (_UUID, "3fa85f64-5717-4562-b3fc-2c963f66afa6"),
    "email": (r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*", "ada@example.org"),
    "uri": (r"[a-zA-Z][a-zA-Z\d+.-]*:[^\s<>\"{}|\\^`]+", "https://example.org/a"),
    "ipv4": (r"\d+(\.\d+){3}", "192.0.2.1"),
    "ipv6": (r"(?=[^:]*:)[\da-fA-F:.]+", "2001:db8::1"),
}


def _exists(name: str, text: str) -> bool:
    """Return whether a well-shaped day is in the calendar, an address in its range."""
    import datetime
    import ipaddress

    with contextlib.suppress(ValueError):
        if name.startswith("date"):
            return bool(datetime.date.fromisoformat(text[:10]))
        return not name.startswith("ip") or bool(ipaddress.ip_address(text))
    return False


def _rule_format(name, value, path, node):
    if name not in _FORMATS:
        return ""
    shape, example = _FORMATS[name]
    fits = len(value) <= _MAX_MATCHED and re.fullmatch(shape, value, re.ASCII)
    return "" if fits and _exists(name, value) else f"应该是 {name} 格式（如 {example}）"


def _rule_unique(wanted, value, path, node):
    seen = {}
    for number, item in enumerate(value if wanted else ()):
        first = seen.setdefault(_equality_key(item), number)
        if first != number:
            return f"的元素不能重复，[{number}] 与 [{first}] 都是 {show(item, 40)}"
    return ""


def _rule_contains(wanted, value, path, node):
    fits = any(not wanted.check(item, path + (number,)) for number, item in enumerate(value))
    return "" if fits else f"里至少要有一个元素符合 {show(wanted.schema)}"


def _rule_required(names, value, path, node):
    return [
        Problem(where := _where(path + (name,)), "required", f"缺少必填参数 {where}")
        for name in names if name not in value
    ]


def _rule_dependent(needs, value, path, node):
    return "；".join(
        f"传了 {_cut(name, 60)} 就必须同时传 {_cut(other, 60)}"
        for name, others in needs.items() if name in value
        for other in others if other not in value
    )


def _unknown_name(name: str, known: list[str], value: dict, path: tuple) -> list[Problem]:
    where, meant = _where(path), _suggested(name, [each for each in known if each not in value])
    accepted = f"，可用的有 {_listed(known)}" if known else "，这里不接受任何参数"
    return [Problem(where, "additionalProperties", f"没有参数 {where}{meant or accepted}")]


def _rule_parts(_, value, path, node):
    """Check the parts of a value: one rule for `properties`, `items` and the like (see `at`)."""
    found, own = [], node.own
    named = {} if "patternProperties" in own else own.get("properties", {})
    for step, item in _steps(value):
        here = path + (step,)
        for part in named.get(step) or node.at(here):
            problems = part.check(item, here)
            if problems and part in own.get("additionalProperties", ()) and not part.names:
                problems = _unknown_name(step, list(own.get("properties", ())), value, here)
            elif item is None and type(step) is str and step not in own.get("required", ()):
                hint = "；不需要就不要传"
                problems = [p._replace(text=_cut(p.text, 390) + hint) for p in problems]
            found += problems
        if len(found) > _MAX_PROBLEMS:
            break
    return found


def _rule_names(wanted, value, path, node):
    for name in value:
        for problem in wanted.check(name, path + (name,)):
            return [problem._replace(text=_cut(f"键名不合要求：{problem}"))]
    return ()


def _rule_ref(target, value, path, node):
    _spend(path, 30)
    return target[0].check(value, path)


def _properties(bodies: list[SchemaRules]) -> dict[str, SchemaRules]:
    pairs = (pair for body in bodies for pair in body.own.get("properties", {}).items())
    return {name: part for name, (part,) in pairs}


@functools.lru_cache(maxsize=512)
def _find_tag(branches: tuple[SchemaRules, ...]) -> tuple[str | None, dict]:
    """Return the property with values of its own in each branch for objects, such as `kind`, and
    the table: key of a value → (the value, its branch)."""
    takers = [branch for branch in branches if "object" in branch.takes]
    parts = [(branch, _properties(branch.bodies({}))) for branch in takers]
    for name in parts[0][1] if len(takers) > 1 else ():
        rows = [(value, branch) for branch, known in parts if name in known
                for value in _choices(known[name].schema)]
        table = {_equality_key(value): (value, branch) for value, branch in rows}
        if len(table) == len(rows) and len({branch for _, branch in rows}) == len(takers):
            return name, table
    return None, {}


def _best_branch(results: list, path: tuple, keyword: str) -> list[Problem]:
    """Return what is wrong in the branch with the fewest problems; [] if all refuse the value."""
    here, flat = _where(path), ("type", "const", "enum", "anyOf", "oneOf", "false")
    near = [found for found in results if found[0].path != here or found[0].keyword not in flat]
    fewest = min(map(len, near), default=0)
    best = {found[0].text: found for found in near if len(found) == fewest}
    if fewest == 1 and len(best) > 1:
        return [Problem(here, keyword, _cut("；或者".join(best)))]
    return list(next(iter(best.values()), []))


def _rule_union(keyword, branches, value, path, node):
    """Check anyOf or oneOf; a tag, or the type of the value, leads to the branch."""
    kind = _type_of(value)
    name, table = _find_tag(branches) if kind == "object" else (None, {})
    if table and name in value:
        if row := table.get(_equality_key(value[name])):
            return row[1].check(value, path)
        choices = _choose_from([choice for choice, _ in table.values()])
        return _fault(path + (name,), "const", choices, value[name])
    failed, fits = [], []
    for number, branch in enumerate(branches, 1):
        if kind in branch.takes:
            if found := branch.check(value, path):
                failed.append(found)
            elif keyword == "anyOf":
                return ()
            else:
                fits.append(str(number))
    if len(fits) > 1:
        return f"只能符合一种写法，却同时符合第 {_listed(fits)} 种"
    if fits:
        return ()
    if best := _best_branch(failed, path, keyword):
        return best
    words = list(dict.fromkeys(word for branch in branches for word in branch.words)) or ["别的值"]
    hint = _advice(value, frozenset().union(*(branch.takes for branch in branches)))
    return _fault(path, keyword, f"应该是 {_listed(words, ' 或 ')}", value, hint)


# ── The table: a new keyword is a new row; problems are reported in the order of the rows ──

def _target(pointer: str, root: object) -> object:
    """Return the subschema that a `$ref` into this schema points to, or None."""
    start, *steps = pointer.split("/")
    for step in steps:
        step = re.sub("%([0-7][0-9a-fA-F])", lambda hit: chr(int(hit[1], 16)), step)
        step = step.replace("~1", "/").replace("~0", "~")  # RFC 6901, section 6; ASCII is enough
        if isinstance(root, list):
            root = {str(number): item for number, item in enumerate(root)}
        root = root.get(step) if isinstance(root, dict) else None
    return root if start == "#" else None


def _references(schema: object) -> list[str]:
    """Return the `$ref`s to schemas for the same value, not for parts of it."""
    if isinstance(schema, dict):
        schema = [schema.get(word) for word in ("$ref", "allOf", "anyOf", "oneOf", "not")]
    if isinstance(schema, list):
        return [pointer for part in schema for pointer in _references(part)]
    return [schema] if isinstance(schema, str) else []


def _resolved(pointer: str, keyword: str, node: SchemaRules) -> tuple[SchemaRules]:
    """Return the node behind a `$ref`, made when it is first met."""
    refs = node.home.refs
    if pointer not in refs:
        target, onward, met = _target(pointer, node.home.root), [pointer], set()
        if target is None:
            raise SchemaError(f"找不到 $ref {show(pointer, 80)}（只支持本模式之内的 #/…）")
        for step in itertools.islice(onward, 1_000):  # `onward` grows meanwhile
            new = node.home.linked(step) - met
            met |= new
            onward += new
        if pointer in met:
            raise SchemaError(f"$ref {show(pointer, 80)} 绕回了自己")
        refs[pointer] = type(node)(target, node.home, pointer)
        refs[pointer].read()  # now, for the schema may well refer to itself
    return (refs[pointer],)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _by_name(own: dict, keyword: str, node: SchemaRules) -> dict[str, tuple[SchemaRules]]:
    return {name: (node.part(schema, keyword, name),) for name, schema in own.items()}


_EVERY = " ".join(_ANY)
# shape → (JSON types of what a keyword says, further condition, what is made of it for the calls)
_SHAPES = {
    "value": (_EVERY, None, lambda own, *_: {_equality_key(own)}),
    "values": ("array", len, lambda own, *_: set(map(_equality_key, own))),
    "flag": ("boolean", None, None),
    "text": ("string", None, None),
    "pattern": ("string", compile_pattern, None),
    "pointer": ("string", None, _resolved),
    "number": ("integer number", lambda own: abs(own) < math.inf, None),
    "positive": ("integer number", lambda own: 0 < own < math.inf, None),
    "count": ("integer", lambda own: own >= 0, None),
    "names": ("array", _are_names, lambda own, *_: dict.fromkeys(own)),
    "names map": ("object", lambda own: all(map(_are_names, own.values())), None),
    "schema": ("object boolean", None, lambda own, word, node: node.part(own, word)),
    "rest": ("object boolean", None, lambda own, word, node: (node.part(own, word),)),
    "schemas": ("array", len, lambda own, word, node: tuple(
        node.part(schema, word, number) for number, schema in enumerate(own)
    )),
    "map": ("object", lambda own: _are_names(list(own)), _by_name),
    "pattern map": (
        "object", lambda own: _are_names(list(own)) and all(map(compile_pattern, own)), _by_name,
    ),
}
# keyword → (types of value it looks at, shape of what it says, rule)
KEYWORDS = {
    "$ref": (_EVERY, "pointer", _rule_ref),
    "enum": (_EVERY, "values", _rule_enum),
    "const": (_EVERY, "value", functools.partial(_rule_enum)),  # another rule: equal ones run once
    "pattern": ("string", "pattern", _rule_pattern),
    "format": ("string", "text", _rule_format),
    "prefixItems": ("array", "schemas", _rule_parts),
    "items": ("array", "rest", _rule_parts),
    "uniqueItems": ("array", "flag", _rule_unique),
    "contains": ("array", "schema", _rule_contains),
    "required": ("object", "names", _rule_required),
    "properties": ("object", "map", _rule_parts),
    "patternProperties": ("object", "pattern map", _rule_parts),
    "additionalProperties": ("object", "rest", _rule_parts),
    "propertyNames": ("object", "schema", _rule_names),
    "dependentRequired": ("object", "names map", _rule_dependent),
    "allOf": (_EVERY, "schemas", lambda own, value, path, _: [
        problem for part in own for problem in part.check(value, path)
    ]),
    "anyOf": (_EVERY, "schemas", functools.partial(_rule_union, "anyOf")),
    "oneOf": (_EVERY, "schemas", functools.partial(_rule_union, "oneOf")),
    "not": (_EVERY, "schema", lambda own, value, path, _: (
        "" if own.check(value, path) else f"不能符合 {show(own.schema)}"
    )),
} | {
    keyword: (kinds, shape, functools.partial(_rule_limit, holds, says))
    for keyword, kinds, shape, holds, says in [  # {0} the limit, {1} the length
        ("minimum", "integer number", "number", operator.ge, "不能小于 {0}"),
        ("maximum", "integer number", "number", operator.le, "不能大于 {0}"),
        ("exclusiveMinimum", "integer number", "number", operator.gt, "必须大于 {0}"),
        ("exclusiveMaximum", "integer number", "number", operator.lt, "必须小于 {0}"),
        ("multipleOf", "integer number", "positive", _is_multiple, "必须是 {0} 的倍数"),
        ("minLength", "string", "count", operator.ge, "至少要有 {0} 个字符"),
        ("maxLength", "string", "count", operator.le, "最多 {0} 个字符，现有 {1} 个"),
        ("minItems", "array", "count", operator.ge, "至少要有 {0} 个元素"),
        ("maxItems", "array", "count", operator.le, "最多 {0} 个元素，现有 {1} 个"),
        ("minProperties", "object", "count", operator.ge, "至少要有 {0} 个键"),
        ("maxProperties", "object", "count", operator.le, "最多 {0} 个键，现有 {1} 个"),
    ]
}
# Of JSON Schema, but not honoured here: said at registration. `type` and `nullable` belong to
# every node; any further word ("optional") is an annotation by the standard.
_UNSUPPORTED = (
    "if then else unevaluatedProperties unevaluatedItems additionalItems dependencies minContains"
    " maxContains dependentSchemas $dynamicRef $recursiveRef"
)

# ── Schema → nodes ──


class SchemaRules:
    """A schema made ready for calls: `rules(args)` returns every problem, [] when all is well.

    Each subschema is one too. `own` holds what the keywords say, `rules` for each type the rules
    that look at it, `notes` what is not checked and why, for the programmer.
    """

    def __init__(self, schema: object, home: SchemaRules | None = None, where: str = "#"):
        self.schema, self.home = schema if isinstance(schema, dict) else {}, home or self
        self.where = where  # JSON pointer
        if home is None:
            self.root, self.refs, self.notes = schema, {}, []
            self.linked = functools.cache(lambda at: {*_references(_target(at, schema))})
        self.own, self.names = {}, _ANY
        try:
            self.names = _types(schema)
        except SchemaError as error:
            self.note(str(error))

    def read(self) -> SchemaRules:
        """Make the rules, and the nodes of all subschemas; returns the node itself."""
        self.rules = {name: {} for name in self.names + ["integer"] * ("number" in self.names)}
        if type(rest := self.schema.get("items")) is list:  # what draft 7 called prefixItems
            self.schema = {**self.schema, "prefixItems": rest, "items": True}
        for keyword, row in KEYWORDS.items():
            if keyword in self.schema:
                self.add(keyword, *row)
        for keyword in filter(self.schema.__contains__, _UNSUPPORTED.split()):
            self.note(f"不支持关键字 {keyword}，不予检查")
        if self.schema.get("nullable") is True:
            self.rules["null"] = {}
        self.rules = {name: tuple(rules.values()) for name, rules in self.rules.items()}
        return self

    def note(self, text: str) -> None:
        self.home.notes.append(_cut(f"{_cut(self.where, 120)}：{text}", 240))

    def add(self, keyword: str, kinds: str, shape: str, rule: Callable) -> None:
        own, (allowed, holds, make) = self.schema[keyword], _SHAPES[shape]
        try:
            if _type_of(own) not in allowed.split() or (holds and not holds(own)):
                raise SchemaError(f"关键字 {keyword} 的值 {show(own, 40)} 不合规定")
            self.own[keyword] = make(own, keyword, self) if make else own
        except SchemaError as error:
            self.note(f"{error}，不予检查")
        else:
            for name in self.rules.keys() & kinds.split():
                self.rules[name][rule] = rule, keyword, self.own[keyword]

    def part(self, schema: object, keyword: str, *steps: object) -> SchemaRules:
        """Return the node of a subschema, for a part of the value or for the value itself."""
        where = "/".join([self.where, keyword, *map(str, steps)])
        return SchemaRules(schema, self.home, where).read()

    def check(self, value: object, path: tuple) -> Sequence[Problem]:
        """Return the problems of a value: its type, or else all that the rules for it find."""
        kind = type(value)
        rules, found = self.rules.get(_type_of(value) if kind is float else _TYPE_NAMES[kind]), ()
        if rules is None:
            return self.refuse(value, path)
        for rule, keyword, own in rules:
            if wrong := rule(own, value, path, self):
                wrong = _fault(path, keyword, wrong, value) if type(wrong) is str else wrong
                found = [*found, *wrong]
        return found

    def refuse(self, value: object, path: tuple) -> list[Problem]:
        if not self.names:
            return _fault(path, "false", "不允许出现，请去掉", value)
        choices = _choices(self.schema)
        tail = f"，{_choose_from(choices)}" if choices else ""
        says = f"应该是 {_listed(self.names, ' 或 ')}{tail}"
        return _fault(path, "type", says, value, _advice(value, self.rules))

    @functools.cached_property
    def groups(self) -> list[tuple[SchemaRules, ...]]:
        """Alternatives: of each group one node applies too; a `$ref` leaves no choice."""
        choices = [self.own[word] for word in ("$ref", "anyOf", "oneOf") if word in self.own]
        return choices + [(node,) for node in self.own.get("allOf", ())]

    @functools.cached_property
    def takes(self) -> frozenset[str]:
        """The names of the types that may pass: never too few, perhaps too many."""
        names = frozenset(self.rules)
        if kinds := set(map(_type_of, _choices(self.schema))):
            names &= kinds | ({"number"} if "integer" in kinds else set())
        for group in self.groups:
            names &= frozenset().union(*(node.takes for node in group))
        return names | {"null"} if self.schema.get("nullable") is True else names

    @functools.cached_property
    def words(self) -> list[str]:
        """What is wanted, for a sentence: ["number", "null"], or the values of an enum."""
        stated = self.names if len(self.names) < len(_ANY) else []
        words = [show(value, 60) for value in _choices(self.schema)] or stated
        inner = (word for group in self.groups for node in group for word in node.words)
        return words or list(dict.fromkeys(inner))

    def bodies(self, value: object) -> list[SchemaRules]:
        """Return the nodes that speak about the parts of `value`: also behind `$ref` and unions."""
        found = [self]
        for group in (group for node in found for group in node.groups):  # `found` grows meanwhile
            fits = [branch for branch in group if _type_of(value) in branch.takes]
            name, table = _find_tag(group) if type(value) is dict else (None, {})
            if row := table.get(_equality_key(value.get(name)) if table else None):
                fits = [row[1]]
            if len(fits) == 1 and fits[0] not in found:
                found += fits
        return found

    def at(self, path: tuple) -> Sequence[SchemaRules]:
        """Return the nodes for the part of a value at the end of a path."""
        own, step = self.own, path[-1]
        if type(step) is int:
            return own.get("prefixItems", ())[step : step + 1] or own.get("items", ())
        found = own.get("properties", {}).get(step, ())
        for pattern, part in own.get("patternProperties", {}).items():
            if _matches(pattern, step[:_MAX_MATCHED], path):
                found += part
        return found or own.get("additionalProperties", ())

    def __call__(self, args: object) -> list[Problem]:
        path = ([_MAX_WORK],)
        if type(args) is not dict:
            return _fault(path, "type", "应该是一个 JSON 对象（object）", args)
        try:
            strange = _not_json(args, path)
            if "json" in [problem.keyword for problem in strange]:
                return strange[:_MAX_PROBLEMS]
            found = list(self.check(args, path))
        except RecursionError:
            return [Problem("", "depth", f"参数{_TOO_LARGE}")]
        if strange:
            places = {problem.path for problem in strange}
            found = [problem for problem in found if problem.path not in places] + strange
        if len(found) > _MAX_PROBLEMS:
            found[_MAX_PROBLEMS - 1 :] = [Problem("", "more", "此外还有别的问题，请先改正以上各处")]
        return found


def _fresh(schema: object) -> SchemaRules:
    try:
        return SchemaRules(schema).read()
    except RecursionError:
        rules = SchemaRules(True).read()
        rules.notes.append("#：模式嵌套太深，不予检查")
        return rules


_compiled = functools.lru_cache(512)(lambda frozen: _fresh(marshal.loads(frozen)))


def compile_schema(schema: dict | bool) -> SchemaRules:
    """Return the rules of a schema, made once per content. Never raises: see `.notes`."""
    try:
        return _compiled(marshal.dumps(schema))  # 2 µs for six fields, and the dict may change
    except ValueError:  # holds something that is not plain data
        return _fresh(schema)


# ── Repairs: only what loses nothing and has one reading ──


def _mended(value: object, node: SchemaRules, path: tuple, repairs: list[str]) -> object:
    """Return the value as `node` wants it; `repairs` gets a sentence for each change."""
    mended = _lossless(value, node.takes)
    if mended is not value:
        repairs.append(_cut(f"参数 {_where(path)} 由 {show(value)} 改成了 {show(mended)}"))
    if type(mended) not in (dict, list):
        return mended
    bodies, kept = node.bodies(mended), {}
    required = {name for body in bodies for name in body.own.get("required", ())}
    optional = _properties(bodies).keys() - required
    for step, item in _steps(mended):
        here = path + (step,)
        part = next((part for body in bodies for part in body.at(here)), None)
        if item is None and step in optional and "null" not in part.takes:
            repairs.append(f"参数 {_where(here)} 是 null，按没有传处理")
        else:
            kept[step] = _mended(item, part, here, repairs) if part else item
    return kept if type(mended) is dict else list(kept.values())


def repair_arguments(args: object, schema: dict | bool) -> tuple[object, list[str]]:
    """Return mended arguments and one sentence for each repair; `args` itself is never changed.

    Mends "4096" → 4096, "true" → true and a quoted array or object where the schema allows no
    string, 4096.0 → 4096 where it wants an integer, and leaves out null where a parameter is
    optional and cannot be null. Never: true ↔ 1, "yes", "8k", 5.5 → 5, x → [x], 5 → "5".

    >>> repair_arguments({"k": "5"}, {"type": "object", "properties": {"k": {"type": "integer"}}})
    ({'k': 5}, ['参数 k 由 "5" 改成了 5'])
    """
    path, repairs = ([_MAX_WORK],), []
    try:
        if type(args) is not dict or _not_json(args, path):
            return args, []
        return _mended(args, compile_schema(schema), path, repairs), repairs
    except RecursionError:
        return args, []


def validate_arguments(args: object, schema: dict | bool, *, coerce=False) -> list[Problem]:
    """Return every problem of `args`, with `coerce` once they are mended; [] means valid.

    >>> schema = {"type": "object", "properties": {"seq_len": {"type": "integer"}}}
    >>> print(*validate_arguments({"seq_len": "8k"}, schema))
    参数 seq_len 应该是 integer，收到的是 "8k"
    """
    if coerce:
        args, _ = repair_arguments(args, schema)
    return compile_schema(schema)(args)


def check_schema(schema: object) -> list[str]:
    """Return what a programmer should know about a tool's schema; [] if every word is honoured.

    >>> check_schema({"type": "object", "properties": {"k": {"type": "widget"}}})
    ['#/properties/k：不认识的类型 "widget"，不检查类型']
    """
    rules = compile_schema(schema)
    notes = [] if rules.names == ["object"] else ['#：参数的模式应该是对象，写明 "type": "object"']
    return list(dict.fromkeys(notes + rules.notes))[:50]


def explain(problems: list[Problem]) -> str:
    """Return the text a model reads: one line for one problem, else a numbered list; "" for none.

    >>> print(explain([Problem("city", "required", "缺少必填参数 city")]))
    缺少必填参数 city。请改正后重新调用。
    """
    if len(problems) < 2:
        return "".join(f"{each}。请改正后重新调用。" for each in problems).replace("？。", "？")
    lines = [f"{number}. {problem}" for number, problem in enumerate(problems, 1)]
    total = itertools.accumulate(len(str(problem)) for problem in problems)
    if (fits := sum(length <= 1_200 for length in total)) < len(lines):
        lines[fits:] = [f"……另有 {len(lines) - fits} 处"]
    return "\n".join([f"参数有 {len(problems)} 处问题：", *lines, "请全部改正后重新调用。"])


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 4  注册表 Registry      uses §1–§3 · a thread for async tools
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A tool is a name, a text for the model, a schema, and something that runs on one dict. Mistakes of
# the programmer raise here, at registration; mistakes of the model become results it can read.

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,45}")  # dots, spaces and longer names: hosts drop the tool
DESCRIPTION_LIMIT = 1024  # characters; OpenAI refuses longer ones
RESULT_CHARACTERS = 1500  # of one result, as in the lecture; a tool may set its own
ERROR_CHARACTERS = 300  # of a failing tool's own message
STREAM_ITEMS = 1000  # taken from the generators in one result, which may be endless
LARGEST_LIMIT = 10**9  # of seconds, turns, characters; None is the way to say "no limit"

LABELS = {
    "read_only": "只读，不改动任何东西",
    "live": "结果随时间变化，相同的调用每次都要执行",
    "private": "读取私人数据",
    "untrusted": "读取不可信内容",
    "sends": "向外发送数据",
    "irreversible": "操作不可撤销",
}

# What a failing tool says may hold keys and paths of this machine; the model needs neither.
_GONE = "[已隐去]"
# A key is known by its beginning and by a body that looks random; sk-learn-estimator is no key.
_RANDOM = r"(?=[\w-]{0,99}?(?:[A-Za-z0-9]{16}|\d{9}|[A-Za-z]\d+[A-Za-z]|\d[A-Za-z]+\d))"
_SECRET = (
    r"(?:api|access|secret|private|account|signing|auth)[_-]?key(?:[_-]?id)?|token|secret"
    r"|password|passwd|passphrase|pwd|credentials?|cookie|密码|口令|密钥|令牌"
)
_WORD = r"(?:[\w@%+-]|\(\w+\))+"  # of a folder's name, as in C:\Program Files (x86)\
_FOLDER = rf"(?:(?:{_WORD} )*(?:[\w.@%+~-]|\(\w+\))+[\\/]+)"
_ROOT = "home|Users|root|etc|tmp|var|usr|opt|mnt|srv|data|dev|proc|private|Volumes|work"
_PRIVATE = (
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", _GONE),
    (r"(?:(?:[sprg]k|hf|gh[opsur]|github_pat|glpat|xox[a-z]|xapp|npm|pypi|xai|shpat|whsec)"
     rf"[-_]{_RANDOM}|A[KS]IA(?=[A-Z0-9]{{12}})|AIza|eyJ)[A-Za-z0-9_.-]{{12,}}", _GONE),
    (r"((?i:authorization)[\"']?\s*[=:]\s*[\"']?)(?:[A-Za-z]+\s+)?[^\s\"',;]+", rf"\1{_GONE}"),
    (r"((?i:bearer))\s+(?!(?:tokens?|auth\w*)\b)\S+", rf"\1 {_GONE}"),
    (r"([Bb]asic)\s+(?=[\w+/]*(?:[a-z][A-Z]|\d))(?:[\w+/]{4})+[\w+/]{2}[\w+/=]{2}(?![\w+/=])",
     rf"\1 {_GONE}"),
    (rf"((?<![\w-])(?<!nexpected )[\w-]*(?:(?i:{_SECRET})|_KEY)[\"']?\s*[=:＝：]\s*)"
     r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'&;]+)", rf"\1{_GONE}"),
    (r"((?<=[?&])(?:key|sig|signature|auth|code)=)[^\s\"'&#]+", rf"\1{_GONE}"),
    (r"([\w+.-]+://)[^/\s:@]*:[^/\s]*@", rf"\1{_GONE}@"),
    # someone's home folder, then every other path: its last name says enough
    (r"(?:/home|/Users|[A-Za-z]:[\\/]+Users)[\\/]+[^\\/\s\"']+(?![^\\/\"']*[\\/])", "~"),
    (r"(?<![_.\\/~)\]}+<#])(?:file:/*|\\\\+\?\\+)?(?:(?:[A-Za-z]:[\\/]+|\\\\+|~\w*[\\/]+)"
     rf"{_FOLDER}*|(?:(?<![^\W\d_])/(?!/)|/(?=(?:{_ROOT})/|[A-Za-z][\w.@-]*/[\w.@-]+/))"
     rf"{_FOLDER}+)([\w.@%+~-]*)", r"\1"),
)


def hide_private(text: str) -> str:
    """The text without keys, passwords and folders of this machine."""
    for pattern, new in _PRIVATE:
        text = re.sub(rf"(?<![A-Za-z0-9]){pattern}", new, text)
    return text


def _said(error: BaseException) -> str:
    with contextlib.suppress(BaseException):  # a broken __str__ must not make two failures of one
        return str(error)
    return ""


def error_text(error: BaseException) -> str:
    """Class and message of an exception in one bounded line, without paths, keys or traceback."""
    message = hide_private(" ".join(_said(error)[:10 * ERROR_CHARACTERS].split()))
    return ": ".join(filter(None, (type(error).__name__, _cut(message, ERROR_CHARACTERS))))


_OS_WORDS = {  # what the system says in English
    "ENOENT": "没有这个文件或文件夹", "EACCES": "没有权限", "EPERM": "没有权限",
    "EISDIR": "这是文件夹", "ENOTDIR": "路径里有一段不是文件夹", "EROFS": "只能读",
    "ENOSPC": "磁盘满了", "ENOEXEC": "不是能运行的程序", "ECONNRESET": "对方断开了",
    "ECONNREFUSED": "没有程序在监听", "ETIMEDOUT": "超时", "ENETUNREACH": "网络不通",
}


def os_reason(error: OSError) -> str:
    """Why the operating system refused, in Chinese where we have words for it."""
    import errno

    code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
    return _OS_WORDS.get(errno.errorcode.get(code, "")) or error.strerror or str(error)


def _whole(text: str) -> str:
    """The text with lone surrogates replaced: half a character cannot be sent as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def json_value(value: object) -> object:
    """Any Python value as a JSON value: what JSON cannot say is named in a string."""
    left = iter(range(STREAM_ITEMS))  # for all generators: they may nest

    def named(odd: object) -> object:
        if isinstance(odd, str):
            return _whole(odd)
        if isinstance(odd, float):  # NaN and infinities are no JSON; their names at least say so
            return str(odd)
        if isinstance(odd, int):  # with more digits than Python writes
            return f"（约 {odd.bit_length() * 0.30103:.0f} 位的整数，太长）"
        if not isinstance(odd, Iterator):
            from reprlib import Repr  # bounded, and safe for a broken __repr__

            short = Repr()
            short.maxother = RESULT_CHARACTERS
            return _whole(short.repr(odd))
        items = []
        for item in odd:
            if next(left, None) is None:
                items.append(f"……（太长，只保留前 {STREAM_ITEMS} 项）")
                break
            items.append(item)
        return plain(items, other=named)

    return plain(value, other=named)


_json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def json_text(value: object) -> str:
    """Strict one-line JSON of a JSON value, Chinese left readable."""
    return _whole(_json_text(value))


def cut(text: str, limit: int | None) -> str:
    """The text in at most `limit` characters; what is missing is said at the end."""
    if limit is None or len(text) <= limit:
        return text
    notice = f"\n（结果过长：共 {len(text)} 个字符，只保留开头部分）"
    return (text[:max(0, limit - len(notice))] + notice)[:limit]


def limit_fault(name: str, value: object) -> str:
    """Why `value` cannot be the limit `name`, or ""; None, no limit, always can."""
    kinds, word = ({int, float}, "数") if name == "seconds" else ({int}, "整数")
    if value is None or type(value) in kinds and 0 < value <= LARGEST_LIMIT:
        return ""
    return f"{name} 应该是大于 0、不超过 {LARGEST_LIMIT} 的{word}或 None，收到的是 {show(value)}"


class Tool(NamedTuple):
    """A tool as the registry keeps it. `run` takes one dict of valid arguments, never **kwargs.

    seconds and characters are the tool's own limits (None: the loop's); output is the JSON Schema
    of the result where it is an object. A model that repeats a call in the next turn is given the
    old result; label a tool `live` when its result changes (a poll, a clock): it always runs.
    """

    name: str
    description: str
    parameters: dict
    run: Callable[[dict], object]
    title: str = ""
    labels: frozenset[str] = frozenset()
    seconds: float | None = None
    characters: int | None = None
    output: dict | None = None

    @classmethod
    def from_function(cls, fn: Callable, **options) -> Tool:
        """The tool that a Python function describes; options replace what was read from it.

        A function may carry them itself: `fn.tool = {"labels": {"live"}, "seconds": 5}`.
        """
        read = read_parameters(fn)

        def run(args: dict) -> object:
            positional, keyword = read.bind(args)
            return fn(*positional, **keyword)

        run.__wrapped__ = fn  # for `review_tool`
        given = getattr(fn, "tool", {})
        if not isinstance(given, dict):
            raise SchemaError(f"工具 {read.name} 的选项不对，tool 应该是一个字典")
        if wrong := [str(name) for name in given | options if name not in cls._fields]:
            fields = "、".join(cls._fields)
            raise SchemaError(f"工具 {read.name} 没有选项 {'、'.join(wrong)}，可用的有 {fields}")
        own = cls(read.name, read.description, read.schema, run, output=output_schema(fn))
        return own._replace(**given | options)

    @property
    def acts(self) -> bool:
        """True when a call changes the world outside; such calls run one by one."""
        return not self.labels.isdisjoint(("sends", "irreversible"))

    def schema(self) -> dict:
        """What a model needs to know: {"name", "description", "parameters"}, a copy."""
        own = dict(zip(self._fields, self[:3]))
        return marshal.loads(marshal.dumps(own))  # the fastest way to copy plain data


# field, what it has to be, what is said otherwise
_TOOL_RULES = (
    ("name", lambda v: isinstance(v, str) and TOOL_NAME.fullmatch(v),
     "名字只能用英文字母、数字、_ 和 -，最多 45 个字符"),
    ("description", lambda v: isinstance(v, str) and v.strip(),
     "缺少说明，模型靠它决定何时调用；请给函数写 docstring"),
    ("description", lambda v: len(str(v)) <= DESCRIPTION_LIMIT,
     f"说明太长，上限是 {DESCRIPTION_LIMIT} 个字符"),
    ("run", callable, "run 应该是函数"),
    ("title", lambda v: isinstance(v, str), "title 应该是文字"),
    ("labels", lambda v: isinstance(v, (set, frozenset, list, tuple))
     and all(label in list(LABELS) for label in v),
     f"标签 labels 要写成集合，如 {{\"private\"}}，里面只能有 {'、'.join(LABELS)}"),
    ("output", lambda v: isinstance(v, (dict, type(None))), "output 应该是 JSON Schema 或 None"),
)


def check_tool(tool: Tool) -> None:
    """Raise SchemaError when hosts or models would stumble over the definition."""
    faults = [
        f"{text}，收到的是 {show(value)}" if value != "" else text
        for field, good, text in _TOOL_RULES if not good(value := getattr(tool, field))
    ]
    faults += filter(None, (limit_fault(n, getattr(tool, n)) for n in ("seconds", "characters")))
    if schema_faults := check_schema(tool.parameters):
        faults.append(f"参数模式有问题：{'；'.join(schema_faults)}")
    if faults:
        raise SchemaError(f"工具 {show(tool.name)}：{'；'.join(faults)}")


def _awaited(value: object) -> object:
    """The value itself, or what the coroutine in it gives.

    That runs in a thread of its own, for an event loop may already run in this one; a daemon, so
    that a tool which never ends does not keep the process alive.
    """
    if not hasattr(value, "__await__"):
        return value
    import asyncio
    from concurrent.futures import Future

    async def finish() -> object:
        return await value

    def work() -> None:
        try:
            future.set_result(asyncio.run(finish()))
        except BaseException as error:
            future.set_exception(error)

    future, context = Future(), contextvars.copy_context()  # `report_progress` looks in the context
    threading.Thread(target=context.run, args=(work,), daemon=True).start()
    return future.result()


class ToolRegistry:
    """Tools by name, in the order they came. Made from functions, `Tool`s, or both.

    >>> tools = ToolRegistry()
    >>> @tools.register
    ... def double(n: int) -> int:
    ...     '''把 n 乘以 2。'''
    ...     return 2 * n
    >>> tools.call(ToolCall("call_0", "double", '{"n": 21}')).text
    '42'
    """

    def __init__(self, tools: Iterable[Tool | Callable] = (), *, coerce: bool = False):
        self._tools: dict[str, Tool] = {}
        self._rules: dict[str, SchemaRules] = {}  # of their parameters, ready for calls
        self.last_error: BaseException | None = None  # what a tool raised, for the programmer
        self.coerce = coerce  # mend harmless slips such as "4096" for 4096; each is reported
        for tool in tools:
            self.add(tool) if isinstance(tool, Tool) else self.register(tool)

    def add(self, tool: Tool) -> Tool:
        """Register a finished tool; what the caller does to its dicts later changes nothing here.

        Raises SchemaError for a bad definition or a taken name.
        """
        check_tool(tool)
        if tool.name in self._tools:
            raise SchemaError(f"工具 {tool.name}：已有同名工具，请改名")
        copied = ("description", "parameters", "title", "output")
        own = json_value({name: getattr(tool, name) for name in copied})
        tool = self._tools[tool.name] = tool._replace(**own, labels=frozenset(tool.labels))
        self._rules[tool.name] = compile_schema(tool.parameters)
        return tool

    def register(self, fn: Callable | None = None, **options) -> Callable:
        """Register a function: `@register`, `@register(title=…)` or `register(fn)`; returns it."""
        if fn is None:
            return functools.partial(self.register, **options)
        self.add(Tool.from_function(fn, **options))
        return fn

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tools

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def get(self, name: object) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools[name] if name in self else None

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def schemas(self) -> list[dict]:
        """[{"name", "description", "parameters"}, …], the neutral form that models are given."""
        return [tool.schema() for tool in self]

    def subset(self, names: Iterable[str]) -> ToolRegistry:
        """A registry of these tools in this order. Raises KeyError for a name it does not have."""
        return ToolRegistry([self[name] for name in names], coerce=self.coerce)

    def call(self, call: ToolCall, *, characters: int | None = RESULT_CHARACTERS) -> ToolResult:
        """The result of one call, whatever the model wrote; never raises, but for Ctrl-C."""
        tool, repairs, value = None, [], None
        try:
            if tool := self.get(call.name):
                value, status = self._value(tool, call, repairs), "ok"
                text = value if type(value) is str else _json_text(value)
            else:
                text, status = self._unknown(call.name), "unknown_tool"
        except ToolError as error:
            text, self.last_error = _said(error) or "工具没有说明原因", error
            status = "bad_arguments" if isinstance(error, ArgumentsError) else "failed"
        except KeyboardInterrupt:  # the user's, not the tool's
            raise
        except BaseException as error:  # sys.exit() or a cancelled task in a tool: not our end
            what = f"工具 {tool.name} 执行出错" if tool else "这个调用读不懂"
            text, status, self.last_error = f"{what}：{error_text(error)}", "failed", error
        text = _whole(cut(text, tool and tool.characters or characters))
        return ToolResult(text, status, value, tuple(repairs))

    def _value(self, tool: Tool, call: ToolCall, repairs: list[str]) -> object:
        args = parse_arguments(call.arguments)
        if self.coerce:
            args, repairs[:] = repair_arguments(args, tool.parameters)
        if problems := self._rules[tool.name](args):
            raise ArgumentsError(explain(problems))
        return json_value(_awaited(tool.run(args)))

    def _unknown(self, name: object) -> str:
        hint = _suggested(name, self.names) if isinstance(name, str) else ""
        known = "、".join(self.names) or "无"
        return f"没有名为 {show(name)} 的工具{hint or '。'}可用的工具：{known}。"


_VAGUE_NAMES = frozenset(
    "api call data do exec execute fn func function get handle handler helper info main process"
    " query run start task test tool util work".split()
)
_CONCRETE = r"(?i)\d|[\"“「『`]|例如|比如|单位|格式|e\.g\.|\bexample|\bunit|\bformat"
_CHOICES = "(?i)可选|取值|只能是|之一|以下|one of|choices|must be|either"
_COMES_BACK = "(?i)返回|给出|得到|return|output|yields|result"
_RETURNS = r"(?im)^[\s:@#*]*(returns?|yields?|返回(?:值|结果)?|输出|产出)[\s*]*([:：]|\n\s*--)"
_LOOKS_UP = "(?i)查|搜|找|检索|search|find|look ?up|query|list|fetch"
_NOTHING_FOUND = (
    "(?i)没有|没找到|找不到|未找到|不存在|为空|空列表"
    "|not found|nothing|empty|no (?:match|result|hit)"
)
_MOST_REQUIRED = 5
_LARGEST_SCHEMA = 8192  # characters; beyond it hosts and small models struggle
_SIMILAR = 0.3  # share of two-character pieces that two descriptions have in common


@functools.lru_cache(2**14)  # every tool is compared with every other
def _two_letters(text: str) -> frozenset[str]:
    text = re.sub(r"\s+", "", text.lower())
    return frozenset(text[i:i + 2] for i in range(len(text) - 1))


def _likeness(one: Tool, other: Tool) -> float:
    a, b = _two_letters(one.name + one.description), _two_letters(other.name + other.description)
    both = len(a & b)
    return both / (len(a) + len(b) - both or 1)


def _review_definition(tool: Tool, others: Iterable[Tool]) -> Iterator[tuple[str, str]]:
    name, said, fn = tool.name, tool.description, getattr(tool.run, "__wrapped__", None)
    section = re.search(_RETURNS, _name_and_doc(fn)[1] or "") if fn else None
    lost = f"：{section[1]} 一节不会发给模型，请写进正文" if section else ""
    guess = "不知道会得到什么，模型就会多调一次或编一个结果"
    if name.lower() in _VAGUE_NAMES or len(name) < 3:
        yield f"名字 {name} 太笼统，改成“动词_对象”，例如 search_notes", "模型先看名字来选工具"
    if len(said) < 15:
        what = f"说明只有 {len(said)} 个字符，请写清做什么、什么时候用"
        yield what, "模型靠说明判断什么时候该用"
    if not re.search(_COMES_BACK, said):
        yield f"说明没有讲返回什么{lost}", guess
    if re.search(_LOOKS_UP, name) and not re.search(_NOTHING_FOUND, said):
        yield f"说明没有讲查不到时返回什么{lost}", guess
    unnamed = [other for other in others if other.name != name and other.name not in said]
    if alike := [other.name for other in unnamed if _likeness(tool, other) >= _SIMILAR]:
        yield f"和 {_listed(alike)} 很像，请写清各自的分工", "分工不清，模型就会选错"
    if (count := len(tool.parameters.get("required", []))) > _MOST_REQUIRED:
        what = f"必填参数有 {count} 个，请给常用值设默认值，或拆成两个工具"
        yield what, "必填越多，越容易缺参数或编参数"
    text = json.dumps(tool.parameters, ensure_ascii=False)
    dear = "有的主机和小模型读不懂嵌套的模式，每次请求也更贵"
    if len(text) > _LARGEST_SCHEMA:
        yield f"参数模式有 {len(text)} 个字符，太大", dear
    if nested := [key for key in ("anyOf", "oneOf", "allOf", "$ref") if f'"{key}"' in text]:
        yield f"参数模式用了 {'、'.join(nested)}，能摊平就摊平", dear


def _review_parameter(schema: dict) -> Iterator[tuple[str, str]]:
    text, kinds = str(schema.get("description", "")), schema.get("type")
    if not schema.keys() - {"description", "default", "title", "examples"}:
        yield "没有类型，请写类型标注，例如 n: int", "没有类型就什么值都放行，错的会一直走进函数里"
    if not text:
        yield "没有说明", "模型只能猜这个参数填什么"
    elif "enum" in schema or kinds == "boolean":
        return
    elif kinds == "string" and re.search(_CHOICES, text):
        yield "取值有限，请改用 Literal 或 Enum", "enum 会进模式，模型和校验都能看到，文字里的不会"
    elif not re.search(_CONCRETE, text):
        yield "说明里没有单位、格式或例子", "“长度”可以是字符、token 或毫秒，一个例子就能说清"


def _review_function(fn: Callable) -> Iterator[tuple[str, str]]:
    """(".parameter" or "", what) of what is written in a function and reaches no model."""
    import inspect

    read, signature = read_parameters(fn), inspect.signature(fn).parameters.values()
    own, texts = read.schema["properties"], parse_docstring(_name_and_doc(fn)[1]).params
    rest = {p.name: str(p) for p in signature if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if rest:
        yield "", f"{'、'.join(rest.values())} 不会进模式，请逐个写出参数"
    for name in [name for name in texts if name not in own | rest]:
        hint = _suggested(name, own) or "，请删去或改名"
        yield "", f"docstring 说明了 {name}，却没有这个参数{hint}"
    for name, kind, required, default, _ in read.parameters:
        if not required and "default" not in own[name]:
            yield f".{name}", f"默认值 {show(default)} 不合标注或写不成 JSON，没有进模式"
        odd = re.search(r"\b(?:complex|Fraction|bytes)\b", str(kind))
        if odd and "enum" not in own[name]:
            yield f".{name}", f"标注 {odd[0]} 在模式里只是 string，请改用 str 或 float，或举例说明"


def review_tool(tool: Tool, others: Iterable[Tool] = ()) -> list[tuple[str, str, str]]:
    """(where, what to improve, why), by the rules of Week 4 Day 3 §2.1; [] when it reads well."""
    advice = [(tool.name, *found) for found in _review_definition(tool, others)]
    if fn := getattr(tool.run, "__wrapped__", None):
        why = "模型只看得到模式，写在别处的它不知道"
        advice += ((tool.name + where, what, why) for where, what in _review_function(fn))
    for name, schema in tool.parameters.get("properties", {}).items():
        found = _review_parameter(schema if isinstance(schema, dict) else {})
        advice += ((f"{tool.name}.{name}", *each) for each in found)
    return advice


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 5  计算器 Calculator      uses §1, §3 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Arithmetic a model may ask for, and nothing else. The text becomes a syntax tree, and only what
# stands in a table below is ever computed: no eval, no attribute, no string, no list. Python's
# integers grow without limit and one big power cannot be interrupted, so an operation whose result
# could be too large is refused *before* it runs. Text that could be read in two ways is refused
# too: 50%-1 is a remainder to Python and 0.5-1 to everyone else. One Chinese line says why.

MAX_LENGTH = 2_000  # characters of one expression
MAX_DEPTH = 100  # brackets within brackets; Python's own parser gives up at 200
MAX_BITS = 13_950  # 4,200 digits: str() of an int refuses more than 4,300 since Python 3.10.7
MAX_ROUND = 300  # decimal places; round(12345, -10**9) would build 10**(10**9)
MAX_MODULUS_BITS = 512  # pow(a, b, m) takes time in the cube of the size
MANY = MAX_LENGTH  # no call has more arguments than characters

OPERATORS = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod), ast.Pow: ("**", pow),
}
SIGNS = {ast.UAdd: operator.pos, ast.USub: operator.neg}
COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
# name → (function, least and most arguments)
FUNCTIONS = {
    name: (getattr(math, name), least, most) for least, most, names in (
        (1, 1, "sqrt exp log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh"
               " acosh atanh degrees radians floor ceil trunc isqrt fabs erf erfc gamma lgamma"
               " factorial"),
        (1, 2, "log perm"),  # log(x) is natural, log(x, base) is not
        (2, 2, "atan2 fmod comb"),
        (1, MANY, "hypot gcd lcm"),
    ) for name in names.split()
} | {
    "ln": (math.log, 1, 1), "deg": (math.degrees, 1, 1), "rad": (math.radians, 1, 1),
    "abs": (abs, 1, 1), "int": (int, 1, 1), "float": (float, 1, 1), "round": (round, 1, 2),
    "pow": (pow, 2, 3), "min": (min, 2, MANY), "max": (max, 2, MANY),
    "sum": (lambda *values: sum(values), 1, MANY),
}


def _power_bits(base: int, exponent: int, modulus: int = 0) -> float:
    """For example 2**100 has 100 bits (and one more); 0, 1, -1 never grow, nor does 2**-100."""
    if modulus:
        largest = max(abs(exponent), abs(modulus)).bit_length()
        return 0 if largest <= MAX_MODULUS_BITS else math.inf
    return exponent * math.log2(abs(base)) if abs(base) > 1 and exponent > 0 else 0


def _product_bits(*factors: int) -> int:
    return sum(map(int.bit_length, factors))


def _falling_bits(n: int, k: int | None = None) -> int:
    """n · (n-1) · … has k factors (n of them in a factorial), none longer than n."""
    return (n if k is None else k) * n.bit_length()


# What bounds the bits of a result when every operand is an int; the others never grow.
BITS = {
    operator.mul: _product_bits, math.lcm: _product_bits, pow: _power_bits,
    math.factorial: _falling_bits, math.perm: _falling_bits,
    math.comb: lambda n, k: _falling_bits(n, min(k, n - k)),
    round: lambda _, places=0: math.inf if abs(places) > MAX_ROUND else 0,
}

# What people type for ASCII. An explicit table and not NFKC, which would turn 5² into 52. `^` is
# replaced in the text because Python's own ^ binds weaker than +, so that 1+2^3 would become 3^3.
TO_ASCII = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | str.maketrans(
    "×✕✖⋅·∙•∗÷∕⁄−–—﹣\u3000\u00a0\u2002\u2003\u2009\u202f",
    "********///----      ",
    "\u200b\u2060\ufeff",
) | str.maketrans(
    {"^": "**", "＾": "**", "≤": "<=", "≥": ">=", "≠": " != ", "π": "pi", "τ": "tau"}
)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
SUPERSCRIPT_RUN = "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+"

FOREIGN = r"(?a)[^\w\s.,()+\-*/%<>=!]"  # everything else is refused unparsed
FOREIGN_HINTS = {
    "√": "开方写 sqrt(16)",
    "∞": "只算有限的数",
    "°": "角度先换成弧度，写 sin(radians(30))",
    "‰": "千分数写成小数，5‰ 写 0.005",
    "。": "小数点写 .",
    "、": "参数之间用逗号，如 max(1, 2)",
    "万": "写成数，3万 写 3*10**4",
    "亿": "写成数，3亿 写 3*10**8",
    ":": "比写成除法，3:4 写 3/4",
    ";": "一次只算一个式子，参数之间用逗号",
    "'": "只写数字、运算符和函数名；1'000 写 1000",
    "[": "不支持列表，参数直接写在括号里，如 max(1, 2)",
    "|": "绝对值写 abs(x)",
    "$": "金额只写数字，单位去掉",
}

PERCENT = "百分数写成小数，50% 写 0.5 或 50/100；取余写 7 % 3，负数加括号，7 % (-3)"
SEPARATED = "不要写千位分隔符，1,000 写 1000；要隔开两个参数就在逗号后加空格，如 max(1, 234)"
DASHES = (("[–—]{2}", "减号只写一个 -"),)  # a Chinese dash is two; as 5--3 it would add
# Text that Python would read in a way its writer may not have meant, or not without a warning.
MISREAD = (
    # Of these only a small 7%-3 or a spaced 70 % -3, alone, is surely a remainder.
    (r"(?s)^(?![+-]?(?:\d%|\d+ % )-(?!1$)\d+$).*(?:%\s*[-+]|[\w)]%\s)", PERCENT),
    (r"\d,\s*0\d\d(?!\d)", SEPARATED),
    # A function of one number, or commas with and without a blank: max(1,234, 5).
    (r"\b(?:round|perm|int|abs|sqrt|float)\([1-9]\d{0,2},\d{3}(?!\d)", SEPARATED),
    (r"(?s)^(?=.*,\s).*(?<![\w.])[1-9]\d{0,2},\d{3}(?!\d)", SEPARATED),
    (r"[\w)]!=", "5!=120 有两种读法：不等于写 5 != 120，阶乘写 factorial(5) == 120"),
    # 1if 2 else 3, 5inches, 0x1for: of a number that runs into a keyword Python would warn.
    (r"\d[a-fA-F]*[jJ]?(?:and|else|for|if|in|is|not|or)", "只支持算术、比较和函数，单位去掉"),
)
# What probably happened when Python could not read the text at all; the first that fits is told.
MALFORMED = (
    ("^$", "式子是空的，写一个如 2*(3+4)"),
    (r"^=|(?<!=)=$", "去掉等号，只写要算的式子"),
    (r"!(?!=)", "阶乘写 factorial(5)"),
    (r"=[<>]|<>", "小于等于写 <=，大于等于写 >=，不等于写 !="),
    (r"(?<![<>=!])=(?!=)", "不能赋值；判断相等写 =="),
    (r"%\s*(?:$|[^\w\s(.]|of\b)", PERCENT),
    (r"\b(?:plus|minus|times|div\w*|percent|of|mod)\b", "运算写符号：+ - * /，取余写 %，如 7 % 3"),
    (r"\d\s*[xX]\s*[\d(.]", "乘号写 *，如 2 * 3"),
    (r"\d\.\d*\.", "一个数只有一个小数点，1.000.000 写 1000000"),
    (r"(?<![A-Za-z])\d\s+\d|\)\s*\d", "两个数之间缺运算符；1 000 写 1000，1 2/3 写 1+2/3"),
    (r"\b0\d", "整数前面不要补 0"),
    (r"[\d)]\s*(?:(?:pi|e|tau)\b|\w*\()", "乘号不能省略，2(3+4) 写 2*(3+4)"),
    (r"\d\s*[A-Za-z]", "单位和变量去掉，只写数，10km 写 10"),
    (r"[A-Za-z]\w*\s+[\w.]", "函数的参数写在括号里，如 sqrt(16)"),
    ("", "缺运算符、数字或括号"),
)


def _check_spelling(text: str, table: tuple) -> None:
    for pattern, hint in table:
        if re.search(pattern, text):
            raise ToolError(f"算式写得不对：{hint}")


def _normalize(text: str) -> str:
    """The same expression in ASCII, with nothing in it that could be misread."""
    if not isinstance(text, str):
        raise ToolError(f"算式应该是 string，收到的是 {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise ToolError(f"算式有 {len(text)} 个字符，最多 {MAX_LENGTH} 个，请分几步算")
    _check_spelling(text, DASHES)
    text = text.translate(TO_ASCII).strip()
    if "math" in text:  # models often write math.sqrt(2)
        text = re.sub(r"(?<![\w.])math\s*\.\s*(?=[a-z])", "", text)
    text = re.sub(SUPERSCRIPT_RUN, lambda run: f"**({run[0].translate(SUPERSCRIPTS)})", text)
    if foreign := re.search(FOREIGN, text):
        sign = foreign[0] if foreign[0].isprintable() else f"U+{ord(foreign[0]):04X}"
        hint = FOREIGN_HINTS.get(sign, "只写数字、运算符、括号和函数名，不写单位和文字")
        raise ToolError(f"算式里不能有“{sign}”：{hint}")
    _check_spelling(text, MISREAD)
    return text


def _parse(text: str) -> ast.expr:
    """The syntax tree of one expression; whichever way Python's parser fails, it is a ToolError."""
    text = _normalize(text)
    depths = [0, *itertools.accumulate((sign == "(") - (sign == ")") for sign in text)]
    if max(depths) > MAX_DEPTH:
        raise ToolError(f"括号嵌套超过 {MAX_DEPTH} 层，请分几步算")
    if min(depths) < 0 or depths[-1]:
        raise ToolError("括号不配对，请检查左右括号")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return _check_spelling(text, MALFORMED)


TOO_LARGE = "数太大，溢出：整数最多约 4200 位，小数最大约 1.8e308"
FAILED = {
    ZeroDivisionError: "除以零，没有意义",
    ValueError: "超出定义域，没有结果",
    TypeError: "需要整数，可以先用 // 或 round 取整",
}


def _bounded(value: Any) -> int | float:
    """The value itself, if it is a real, finite number whose digits can be printed."""
    if isinstance(value, complex):
        raise ToolError("负数的非整数次方是复数，这里只算实数")
    if value.bit_length() > MAX_BITS if isinstance(value, int) else not math.isfinite(value):
        raise ToolError(TOO_LARGE)
    return value


def _written(name: str, values: list) -> str:
    """The operation with its operands, for an error text: `log(-5)`, `1 // 0`."""
    shown = [_cut(str(value), 24) for value in values]
    return f"{name}({', '.join(shown)})" if name.isalnum() else f" {name} ".join(shown)


def _apply(name: str, run: Callable, values: list) -> int | float:
    """The result of one operation, which runs only if its result is known to be small enough."""
    try:
        exact = run in BITS and all(isinstance(value, int) for value in values)
        if exact and BITS[run](*values) > MAX_BITS:
            raise OverflowError
        value = run(*values)
    except OverflowError:
        raise ToolError(TOO_LARGE) from None
    except tuple(FAILED) as error:
        raise ToolError(f"{_written(name, values)} {FAILED[type(error)]}") from None
    return _bounded(value)


def _constant(name: str) -> float:
    if name in CONSTANTS:
        return CONSTANTS[name]
    for function in (name, name.rstrip("0123456789")):  # sin, sin30
        if function in FUNCTIONS:
            raise ToolError(f"{function} 是函数，参数写在括号里，如 {function}(2)")
    raise ToolError(f"没有常数 {name[:40]}，可用：{'、'.join(CONSTANTS)}；变量请换成数")


def _function(name: str, count: int) -> Callable:
    """The function of that name, if it takes `count` arguments."""
    if name in CONSTANTS:
        raise ToolError(f"{name} 是常数，乘号不能省略，写 {name}*(…)")
    if name not in FUNCTIONS:
        near = closest(name, FUNCTIONS)
        names = "、".join(dict.fromkeys([near, *FUNCTIONS] if near else FUNCTIONS))
        raise ToolError(f"没有函数 {name[:40]}，可用：{names}")
    run, least, most = FUNCTIONS[name]
    if not least <= count <= most:
        wanted = [least, "更多"] if most == MANY else range(least, most + 1)
        raise ToolError(f"{name} 应有 {' 或 '.join(map(str, wanted))} 个参数，收到 {count} 个")
    return run


def _evaluate(node: ast.expr) -> int | float | bool:
    """The value of a tree. These cases are the whole grammar: what none of them names is out."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):  # type(True) is bool
            return _bounded(value)
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            # 1+1+1+… is a chain that leans to the left: walked down, it costs no recursion.
            steps = []
            while isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
                steps.append(node)
                node = node.left
            value = _evaluate(node)
            for step in reversed(steps):
                value = _apply(*OPERATORS[type(step.op)], [value, _evaluate(step.right)])
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in SIGNS:
            return SIGNS[type(op)](_evaluate(operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=named):
            if named or ast.Starred in map(type, args):
                raise ToolError("函数的参数按位置写，不写参数名，如 round(3.14159, 2)")
            return _apply(name, _function(name, len(args)), [*map(_evaluate, args)])
        case ast.Compare(ops=ops) if COMPARISONS.keys() >= set(map(type, ops)):
            value = _evaluate(node.left)
            for op, other in zip(ops, node.comparators):
                before, value = value, _evaluate(other)
                if not COMPARISONS[type(op)](before, value):
                    return False
            return True
        case ast.Name(id=name):
            return _constant(name)
        case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name)):
            raise ToolError(f"不支持取属性 .{name[:40]}")
        case ast.Call():
            raise ToolError("乘号不能省略，2(3+4) 写 2*(3+4)")
        case ast.Tuple():
            raise ToolError("逗号只用来隔开函数的参数；小数点写 .，千位分隔符去掉，1,000 写 1000")
    raise ToolError("只支持数字、+ - * / // % **、比较和函数")


def safe_eval(text: str) -> int | float | bool:
    """The value of an arithmetic expression; integers are exact, a comparison gives a bool.

    Full-width characters, × ÷ − · and superscripts are understood, ^ is a power. A ToolError is
    one Chinese line that says what to write instead.

    >>> safe_eval("2×(3+4)"), safe_eval("2*3^2"), safe_eval("1 < 2 < 3")
    (14, 18, True)
    >>> safe_eval("9**9**9")
    Traceback (most recent call last):
    w4d3_tools_mcp.ToolError: 数太大，溢出：整数最多约 4200 位，小数最大约 1.8e308
    """
    try:
        return _evaluate(_parse(text))
    except (MemoryError, RecursionError):  # of Python's parser, or of a tree of 1,900 signs
        raise ToolError("算式嵌套太深，请分几步算") from None


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 6  检索 Search      uses §1 · reads notes files
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Text becomes words, words become a ranking (BM25), and a folder of Markdown becomes sections that
# can be ranked and read. Chinese has no spaces, so a run of it counts as all its pairs of
# characters: 梯度消失 is found by 梯度 and by 消失. Only NotesIndex touches files, only below its
# folder, only to read, and not before the first question. Its errors never show machine paths.

# Patterns are kept as text: compiling them takes longer than importing the rest of this section,
# and `re` remembers what it compiled once. Listing the 40,000 letters of scripts without spaces
# would make it take three milliseconds more, so the scripts that have spaces are listed.
SPACED = "A-Za-zª²³µ¹ºÀ-ÖØ-öø-ԯᴀ-῿⁰-⁹ⁿ-₉ₐ-ₜ"  # Latin, Greek, Cyrillic; n² is one word
WORDS = (
    rf"([{SPACED}]+)"
    r"|(\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)*)"  # 8,192 is 8192; §1.4 stays one word
    rf"|([^\W\d_{SPACED}]+)"
)
HUMPS = "[A-Z]{2,}s?(?![a-z])|[A-Z]?[a-z]+|[A-Z]"  # of camelCase; GPUs is one
FULL_WIDTH = "[０-９Ａ-Ｚａ-ｚ]"
TO_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
# English words that say nothing about a topic; in Chinese notes they are rare, so idf cannot tell.
STOP_WORDS = frozenset(
    "a about all also am an and any are as at be been but by can could did do does for from had has"
    " have how i if in into is it its may me more most my no not of on one or our out please should"
    " so some such than that the their them then there these they this to too up us use used using"
    " was we were what when where which while who why will with would you your".split()
)
# What makes a Chinese sentence a question; cut out of it, so that 显存怎么算 leaves no 存怎.
QUESTION = (
    "为什么|为啥|什么时候|什么意思|什么样|是什么|有什么|什么|怎么办|怎么样|怎么回事|怎么|怎样"
    "|会怎样|如何|多少|有哪些|哪些|哪一节|哪个|哪里|是否|能否|可以|应该|需要|有没有|是不是|能不能"
    "|要不要|请问|干什么|干嘛|干啥|啥|到底|分别|区别|不同|不一样|解决|时候|老是|总是|一直|如果"
    "|那个|这个|[吗呢啊吧呀嘛的了是把跟都也还就才很让被你我他]"
)


def _fold(text: str) -> str:
    return text.translate(TO_HALF_WIDTH) if re.search(FULL_WIDTH, text) else text


@functools.lru_cache(maxsize=2**14)  # a text has few words, often
def _split_word(word: str) -> tuple[str, ...]:
    """A name in camelCase is itself and its parts: LoRA is looked up as lora, KVCache as cache."""
    if word.islower() or word.isupper() or not word.isascii():
        return (word.lower(),)
    parts = re.findall(HUMPS, word)
    return tuple(part.lower() for part in ([word, *parts] if len(parts) > 1 else parts))


def tokenize(text: str, *, latin: Callable[[str], Iterable[str]] = _split_word) -> list[str]:
    """The words of a text in order, for documents and queries alike; `latin` splits a Latin one.

    >>> tokenize("num_kv_heads 占显存，Llama3 §1.4")
    ['num', 'kv', 'heads', '占显', '显存', 'llama', '3', '1.4']
    """
    words: list[str] = []
    for word, number, run in re.findall(WORDS, _fold(text)):
        if word:
            words += latin(word)
        elif number:
            words.append(number.replace(",", ""))
        else:
            run = run.lower()  # there are capitals beyond Latin
            words += map(operator.add, run, run[1:]) if len(run) > 1 else [run]
    return words


SUFFIXES = (("sses", "ss"), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))


@functools.lru_cache(maxsize=2**14)
def stem(word: str) -> str:
    """An English word without its ending, so that caches, cached and caching meet in "cach"."""
    if not (word.isascii() and word.isalpha()) or word.endswith(("ss", "us", "is")):
        return word
    for suffix, instead in SUFFIXES:
        base = word.removesuffix(suffix)
        if 3 <= len(base) < len(word):
            doubled = suffix in ("ing", "ed") and base[-1] == base[-2] and base[-1] not in "ls"
            return base[:-1] if doubled else base + instead
    return word


@functools.lru_cache(maxsize=2**14)
def _telling_parts(word: str) -> tuple[str, ...]:
    return tuple(stem(part) for part in _split_word(word) if part not in STOP_WORDS)


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about, stemmed."""
    return tokenize(text, latin=_telling_parts)


def without_lone(words: list[str]) -> list[str]:
    """The words but for Chinese characters that stand alone, unless there are no others."""
    return [word for word in words if len(word) > 1 or re.match(rf"[\d{SPACED}]", word)] or words


def query_words(text: str) -> list[str]:
    """The words to look for. What only makes it a question is left out, unless nothing remains.

    >>> query_words("显存怎么算？"), query_words("注"), query_words("为什么")
    (['显存'], ['注'], ['为什', '什么'])
    """
    return without_lone(content_words(re.sub(QUESTION, " ", text)) or content_words(text))


MOST_PAIRS = 200  # of characters that one character is looked for in
SLIPPERY = "[A-Za-z]{4,40}"  # whose slips are mended: of a thousand letters they fill 54 MB


def _slips(word: str) -> set[str]:
    """What was meant, if a letter of `word` is too many, missing, wrong or swapped."""
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    return {a + b[1::-1] + b[2:] for a, b in cuts} | {
        a + letter + b[skipped:]
        for a, b in cuts for letter in ("", *"abcdefghijklmnopqrstuvwxyz") for skipped in (0, 1)
    }


def known_words(word: str, notes: Any) -> list[str]:
    """A word as the notes write it: an unknown one is cut in two, or one slip is mended.

    Only words that begin with the same two letters are compared, since a large folder has too many.
    A Chinese character that stands alone is looked for in every pair.
    """
    if len(word) == 1 and not word.isascii():
        return sorted(notes.terms("", word))[:MOST_PAIRS]
    if notes.count(word) or not re.fullmatch(SLIPPERY, word):
        return [word]
    for at in range(2, len(word) - 1):
        if notes.count(word[:at]) and notes.count(word[at:]):
            return [word[:at], word[at:]]
    similar = sorted({*map(stem, _slips(word))} & {*notes.terms(word[:2])})
    return [max(similar, key=notes.count, default=word)]


# A Chinese word is two pairs of characters, or three; as one, a Latin word would be outvoted.
LATIN_WEIGHT = 1.5


def _asked(text: str, notes: Any) -> dict[str, float]:
    """What a text asks for, as the notes write it, and how much each word of it counts."""
    words = (known for word in query_words(text) for known in known_words(word, notes))
    return {word: LATIN_WEIGHT if word.isascii() and word.isalpha() else 1.0 for word in words}


def weigh_fields(*fields: tuple[Iterable[str], float]) -> dict[str, float]:
    """Weighted word counts of one document from (words, weight) pairs, as `BM25` takes them."""
    counts: dict[str, float] = {}
    for words, weight in fields:
        for word in words:
            counts[word] = counts.get(word, 0.0) + weight
    return counts


@functools.lru_cache(maxsize=2**10)
def inverse_frequency(documents: int, having: int) -> float:
    """How much a word tells that `having` of the documents contain (formula 3.3).

    The 1 + keeps a word that most documents contain from counting against them.
    """
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


K1, B = 1.2, 0.75  # how soon a repeated word stops counting; how far long documents pay for it


def damping(length: float, mean: float, k1: float = K1, b: float = B) -> float:
    """How many occurrences in a document of that length say half of what a word can say."""
    return k1 * (1 - b + b * length / mean)


class BM25:
    """Documents ranked by the words of a query (Robertson and Zaragoza 2009, formula 3.15).

    A document is a list of words, or a dict of word → weighted count when its fields differ in
    weight (`weigh_fields`; their section 3.6). What a word adds to a document is worked out when
    the index is built, so that a query touches only the documents that hold its words.

    >>> BM25([["kv", "cache"], ["beam", "search"]]).search(["cache"])
    [(0, 0.6931471805599453)]
    """

    def __init__(self, documents: Iterable[Iterable[str] | Mapping[str, float]], *, k1=K1, b=B):
        counts = [collections.Counter(document) for document in documents]  # of either kind
        mean = sum(sum(count.values()) for count in counts) / max(len(counts), 1) or 1.0
        self.size = len(counts)
        self.postings: dict[str, dict[int, float]] = {}  # word → document → share, below k1 + 1
        for position, count in enumerate(counts):
            half = damping(sum(count.values()), mean, k1, b)
            for word, n in count.items():
                self.postings.setdefault(word, {})[position] = n * (k1 + 1) / (n + half)

    def search(self, query: Iterable[str] | Mapping, top_k: int = 5) -> list[tuple[int, float]]:
        """(position, score) of the best documents, best first; on a tie the earlier one leads.

        Documents that share no word with the query are left out. A repeated word counts once.
        A query may be a dict of word → weight.
        """
        from heapq import nsmallest

        scores: dict[int, float] = {}
        weights = query if isinstance(query, Mapping) else dict.fromkeys(query, 1.0)
        for word, weight in weights.items():
            posting = self.postings.get(word, {})
            idf = weight * inverse_frequency(self.size, len(posting))
            for position, share in posting.items():
                scores[position] = scores.get(position, 0.0) + idf * share
        return nsmallest(top_k, scores.items(), key=lambda hit: (-hit[1], hit[0]))


class Note(NamedTuple):
    """One section of the notes: what stands between two headings."""

    name: str  # the file below the notes folder, without .md: "week1-day4", "llm/attention"
    section: str  # its unique id: "Week 1 Day 4 §1.4", "llm/attention > Setup"
    title: str  # the heading without its number
    line: int  # of the heading, from 1
    text: str  # Markdown below the heading
    level: int = 0  # number of # of the heading; 0 for the file as a whole
    number: str = ""  # "1.4", where the heading has one
    above: str = ""  # the titles of the headings it stands under
    weight: float = 1.0  # of its words in the ranking

    @property
    def heading(self) -> str:
        return f"§{self.number} {self.title}" if self.number else self.title

    @property
    def full_name(self) -> str:
        """The id and the title, where the id does not end with it already."""
        said = f" > {self.title} (" in f" > {self.section} ("  # the copy of a section ends with (2)
        return self.section if said else f"{self.section} {self.title}"


class Hit(NamedTuple):
    """One answer of a search."""

    note: Note
    score: float
    snippet: str  # one line of the text around the best match


MAX_NOTE_BYTES = 2_000_000  # a longer .md file is data, not notes
FRONT_MATTER = r"(?ms)\A---[ \t]*$.*?^(?:---|\.\.\.)[ \t]*$"  # YAML; a lone --- is a rule
FENCE = r"[\s>]*(?:(?:[-*+]|\d+[.)])\s+)*(`{3,}|~{3,})(.*)"  # may stand in a list item
HEADING = r" {0,3}(#{1,6})[ \t]+(\S.*)"
CLOSING = r"(?:^|[ \t])#+[ \t]*$"  # the #s that a heading may end with; that of "C#" is none
MAX_TITLE = 120  # characters; a longer heading is cut
NUMBERED = r"(?:§\s*(\d+(?:\.\d+)*)[.、:：]?\s*)?(.*)"
DAY_TITLE = r"(?i)week\s*(\d+)\s*day\s*(\d+)[\s·:：|—–-]*(.*)"
OPENING_WEIGHT = 0.5  # a few words of opening must not lead over the sections that they introduce


def _cut_at_headings(text: str) -> list[tuple[int, int, str, str]]:
    """(line, level, heading, text) of each section, the first being what stands before a heading.

    A # inside a code fence is a comment. A fence ends with its own sign, at least as often
    (CommonMark 0.31, section 4.5). Underlined headings are not cut at: --- has too many meanings.
    """
    text = re.sub(FRONT_MATTER, lambda head: "\n" * head[0].count("\n"), text)
    parts: list[tuple[int, int, str, list[str]]] = [(1, 0, "", [])]
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(FENCE, line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and "`" not in mark[2]:
            fence = mark[1]
        elif (heading := re.match(HEADING, line)) and (
            title := re.sub(CLOSING, "", heading[2]).strip()
        ):
            parts.append((number, len(heading[1]), title[:MAX_TITLE], []))
            continue
        parts[-1][-1].append(line)
    return [(*head, "\n".join(lines).strip()) for *head, lines in parts]


def _with_unique_sections(notes: Iterable[Note]) -> Iterator[Note]:
    """The notes, the second of two equal ids marked (2)."""
    copies: dict[str, int] = {}  # of each id; so ten thousand equal headings take no time
    for note in notes:
        section = note.section
        while section in copies:
            copies[note.section] += 1
            section = f"{note.section} ({copies[note.section]})"
        copies[section] = 1
        yield note._replace(section=section)


def _notes_of_file(name: str, text: str) -> list[Note]:
    """The file as a whole (its title, the text before the first section), then each section."""
    parts = _cut_at_headings(text)
    if not parts[0][3] and len(parts) > 1 and parts[1][1] == 1:
        del parts[0]
    line, _, title, body = parts[0]
    day = re.fullmatch(DAY_TITLE, title)
    label, title = (f"Week {day[1]} Day {day[2]}", day[3]) if day else (name, title)
    notes = [Note(name, label, title or label, line, body)]
    above = notes[:]  # the sections that the current one stands under
    for line, level, heading, body in parts[1:]:
        while above[-1].level >= level:
            above.pop()
        number, title = re.fullmatch(NUMBERED, heading).groups("")
        section = f"{label} §{number}" if number else f"{above[-1].section} > {title}"
        titles = " ".join(upper.title for upper in above)
        note = Note(name, section, title or section, line, body, level, number, titles)
        above.append(note)
        notes.append(note)
    # A heading with nothing under it, not even a further heading, is no section.
    following = zip(notes, [*notes[1:], notes[0]])
    kept = [note for note, after in following if note.text or after.level > note.level]
    if len(kept) > 1:
        kept[0] = kept[0]._replace(weight=OPENING_WEIGHT)
    return list(_with_unique_sections(kept))


def _shown(path: str, folder: str) -> str:
    """A path below the folder as readers see it; the bytes of a file name may be any."""
    name = path[len(os.path.join(folder, "")):].replace(os.sep, "/")
    return " ".join(name.encode("utf-8", "replace").decode().split())


def _listing(folder: str) -> tuple[dict[str, tuple[str, tuple[int, int]]], list[str]]:
    """Name → path and (time, size) of each .md file below the folder, and what was left out.

    Nothing hidden; no links, which may lead out or in circles. Raises ToolError without a folder.
    """
    if not os.path.isdir(folder):
        raise ToolError("没有找到笔记文件夹，请把 notes 放到脚本旁边，或用 --notes DIR 指定一个")
    files, notices, folders = {}, [], [folder]
    for place in folders:  # which grows meanwhile
        try:
            entries = list(os.scandir(place))
        except OSError:
            notices.append(f"跳过读不了的文件夹 {_shown(place, folder)}")
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = _shown(entry.path, folder)
            if entry.is_symlink():
                notices.append(f"跳过链接 {name}，请放真正的文件")
            elif entry.is_dir():
                folders.append(entry.path)
            elif name.lower().endswith(".md") and entry.is_file():  # no pipe, which would block us
                with contextlib.suppress(OSError):  # vanished since
                    status = entry.stat()
                    files[name[:-3]] = entry.path, (status.st_mtime_ns, status.st_size)
    return dict(sorted(files.items())), sorted(notices)


def _read_file(name: str, path: str) -> tuple[list[Note] | None, str]:
    """The sections of one file, and why if it has none; None if it cannot be read at this time."""
    try:
        if os.path.getsize(path) > MAX_NOTE_BYTES:
            return [], f"跳过太大的文件 {name}.md（超过 {MAX_NOTE_BYTES:,} 字节）"
        with open(path, encoding="utf-8-sig") as file:  # -sig drops a byte order mark
            return _notes_of_file(name, file.read()), ""
    except UnicodeDecodeError:
        return [], f"跳过不是 UTF-8 的文件 {name}.md，请另存为 UTF-8"
    except OSError:  # vanished since it was listed, or not ours to read
        return None, f"跳过读不了的文件 {name}.md"


SNIPPET_WIDTH = 160  # characters
SNIPPET_MATCHES = 100  # places looked at in one section; a page of data may have thousands


def _snippet(text: str, words: Iterable[str]) -> str:
    """One line of about SNIPPET_WIDTH characters around the place where most words stand."""
    rows = (row for row in text.split("\n") if not re.match(FENCE, row))
    line = " ".join(" ".join(rows).split())
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    matches = itertools.islice(re.finditer(pattern, _fold(line), re.I), SNIPPET_MATCHES)

    def variety(start: int) -> int:
        return len({*re.findall(pattern, _fold(line[start : start + SNIPPET_WIDTH]).lower())})

    best = max((match.start() for match in matches), key=variety, default=0)
    start = max(0, min(best - SNIPPET_WIDTH // 4, len(line) - SNIPPET_WIDTH))
    # Both ends move outwards, so that no Latin word is cut, unless it is longer than 20 letters.
    end = re.compile("[!-~]{0,20}").match(line, start + SNIPPET_WIDTH).end()
    start -= len(re.search("[!-~]{0,20}$", line[:start])[0])
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


CHINESE_DIGITS = str.maketrans("一二三四五六七八九", "123456789")
CHINESE_DAY = r"第\s*(\w)\s*周\s*第?\s*(\w)\s*[天日]"
DAY_ADDRESS = (
    r"\b(?:week|w)[\s_-]*0*(\d+)[\s,_-]*(?:day|d)[\s_-]*0*(\d+)"  # Week 1 Day 4, w1d4
    r"(?:(?:[\s,:#§第.-]|section)*(\d+(?:\.\d+)*)节?)?"  # §1.4, 1.4, 第1.4节
)
BARE_NUMBER = r"^(?:第|section )?\s*(\d+(?:\.\d+)+|\d+(?=\s*节?$))(?:\s*节|\s|$)"  # 1.4, 第1.4节


@functools.lru_cache(maxsize=2**10)
def _address(text: str) -> str:
    """What a reader wrote for a section, in the one form in which addresses are compared.

    >>> {_address(name) for name in ("Week 1 Day 4 §1.4", "week1-day4 1.4", "第一周第4天 § １.４")}
    {'week1day4§1.4'}
    """
    text = re.sub(r"\.md\b", "", text.translate(TO_HALF_WIDTH).lower().strip())
    text = re.sub(
        CHINESE_DAY, lambda day: f"week{day[1]}day{day[2]}".translate(CHINESE_DIGITS), text
    )
    text = re.sub(BARE_NUMBER, r"§\1 ", re.sub(DAY_ADDRESS, r"week\1day\2§\3 ", text))
    return re.sub(r"[^\w.§]+|§(?!\s*\d)|(?<!\d)\.|\.(?!\d)", "", text)


def _addresses(note: Note) -> tuple[str, str]:
    """All that a section may be called by, each between blanks, its id first; and its title."""
    names = [note.section, note.title, note.heading, f"{note.section} {note.title}"]
    if note.number:
        names.append(f"§{note.number}")
    if note.level == 0:
        names += [note.name, note.name.rpartition("/")[2]]
    return f" {' '.join(map(_address, names))} ", _address(note.title)


FIELD_WEIGHTS = (4.0, 1.0)  # of a word in the heading, in all other text


def _fields(note: Note) -> list[list[str]]:
    """The words of a section's heading, and of its id and texts."""
    return [content_words(note.heading), content_words(f"{note.section} {note.above} {note.text}")]


def _weighed(note: Note, fields: Iterable[list[str]]) -> dict[str, float]:
    weights = (note.weight * weight for weight in FIELD_WEIGHTS)
    return weigh_fields(*zip(fields, weights))


class NotesInMemory:
    """The sections of a folder, ranked and looked up without any file."""

    def __init__(self, sections: list[Note], notices: Sequence[str] = ()):
        self.sections, self.notices, self.size = sections, notices, len(sections)
        self.outline = sections

    @functools.cached_property
    def _ranking(self) -> BM25:
        return BM25(_weighed(note, _fields(note)) for note in self.sections)

    @functools.cached_property
    def named(self) -> list[tuple[Note, str, str]]:
        """Each section of the outline with what `_addresses` says of it."""
        return [(note, *_addresses(note)) for note in self.outline]

    def count(self, word: str) -> int:
        """How many sections hold a word."""
        return len(self._ranking.postings.get(word, ()))

    def terms(self, start: str, part: str = "") -> list[str]:
        """All words of the notes that begin so and hold that part."""
        return [term for term in self._ranking.postings if term.startswith(start) and part in term]

    def best(self, asked: Mapping[str, float], top_k: int) -> list[tuple[Note, float]]:
        """(section, score) of the sections that hold one of the weighted words, best first."""
        return [(self.sections[at], score) for at, score in self._ranking.search(asked, top_k)]

    def of_file(self, name: str) -> list[Note]:
        """The sections of one file in their order."""
        return [note for note in self.sections if note.name == name]


RANGE = r"(.*?)(\d+(?:\.\d+)*)\s*[-–—~～至到]\s*§?\s*(\d+(?:\.\d+)*)"  # Week 2 Day 6 §1.2–1.3


def _called(notes: Any, name: str) -> list[Note]:
    """The sections that a name may mean: its id, its address, or what the parts of it say."""
    for form in dict.fromkeys((name, re.split(r"[/\\]", name)[-1])):  # notes/week1-day4.md
        address = _address(form)
        days, numbers = re.findall(r"week\d+day\d+", address), re.findall(r"§([\d.]+)", address)
        words = re.sub(r"week\d+day\d+|§[\d.]*", "", address)
        if days and numbers and not re.search(r"\d", words):
            words = ""  # they name the section; what else stands there says no more
        day, number = "".join(days), "".join(numbers)
        in_parts = len(days) < 2 and len(numbers) < 2 and (number or len(words) > 1)
        found = (
            [note for note in notes.outline if note.section == form]
            or [note for note, known_as, _ in notes.named if f" {address} " in known_as]
            or [
                note for note, known_as, title in notes.named
                if in_parts and known_as.startswith(f" {day}")
                and number in ("", note.number) and words in title
            ]
        )
        if found:
            return found
    return []


def _meant(notes: Any, name: str) -> list[tuple[Note, Note]]:
    """(first, last) section of each reading of a name; a range such as §1.2–1.3 has two ends."""
    found = [(note, note) for note in _called(notes, name)]
    written = re.fullmatch(RANGE, name)
    if found or not written:
        return found
    before, *ends = written.groups()
    pairs = itertools.product(*(_called(notes, before + end) for end in ends))
    return [(a, b) for a, b in pairs if a.name == b.name and a.line < b.line]


def _near(notes: Any, name: str) -> list[Note]:
    """At most five sections that an unknown name may have meant, by its spelling or its words."""
    from difflib import get_close_matches

    known = {_address(note.section): note for note in notes.outline}
    address = re.split("(?!^)week", _address(name[:100]))[0]
    if close := get_close_matches(address, known, n=5, cutoff=0.865):  # one sign in nine is wrong
        return [known[each] for each in close]
    asked = _asked(re.sub(rf"(?i){CHINESE_DAY}|{DAY_ADDRESS}|§[\d.]*", " ", name), notes)
    said = {note: asked.keys() & sum(_fields(note), []) for note, _ in notes.best(asked, 5)}
    return [note for note in said if 2 * sum(map(asked.get, said[note])) >= sum(asked.values())]


def _joined(notes: Any, first: Note, last: Note) -> Note:
    """The sections from `first` to `last` as one, with everything under their headings."""
    sections = notes.of_file(first.name)
    ids = [note.section for note in sections]
    start, stop = ids.index(first.section), ids.index(last.section) + 1
    while stop < len(sections) and sections[stop].level > last.level:
        stop += 1
    texts = [sections[start].text]
    for below in sections[start + 1 : stop]:
        texts.append(f"{'#' * below.level} {below.heading}\n\n{below.text}")
    section = first.section if first == last else f"{first.section}–{last.number or last.title}"
    return first._replace(
        section=section, text="\n\n".join(text.strip() for text in texts).strip(),
    )


NOTHING_TO_READ = "笔记文件夹里没有可读的 .md 文件，请用 --notes DIR 换一个文件夹"
MAX_QUERY = 1_000  # characters
MOST_NOTICES = 5  # told one by one; of the others only how many there are
LOOK_AGAIN = 2.0  # seconds after which files may have changed; looking at a thousand takes 10 ms


class NotesIndex:
    """The sections of a folder of Markdown files, searched and looked up.

    They are read on first use, and again when files have changed. notice(text) is told what had to
    be skipped, and why, once that is known.
    """

    def __init__(self, folder: str, *, notice: Callable[[str], None] = lambda text: None):
        self.folder, self.notice = folder, notice
        self._lock = threading.RLock()
        self._notes: Any = None
        self._files, self._looked = None, -math.inf  # what was there, and when
        self._told: set[str] = set()

    def _read(self, files: dict, notices: list[str]) -> Any:
        sections = []
        for name, (path, _) in files.items():
            notes, notice = _read_file(name, path)
            sections += notes or []
            notices += [notice] if notice else []
        return NotesInMemory([*_with_unique_sections(sections)], notices)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        """work(notes), which are read now if they were not yet, or have changed."""
        with self._lock:
            if time.monotonic() - self._looked > LOOK_AGAIN:
                files, notices = _listing(self.folder)
                if files != self._files:
                    self._files = None  # until all is read
                    self._notes = self._read(files, notices)
                    self._tell(self._notes.notices)
                    if not self._notes.size:
                        raise ToolError(NOTHING_TO_READ)
                self._files, self._looked = files, time.monotonic()
            return work(self._notes)

    def _tell(self, notices: Iterable[str]) -> None:
        new = [text for text in notices if text not in self._told]
        self._told.update(new)
        if more := len(new[MOST_NOTICES:]):
            new[MOST_NOTICES:] = [f"还有 {more} 处也跳过了"]
        for text in new:
            self.notice(text)

    @property
    def sections(self) -> list[Note]:
        """All sections in reading order. Of a large folder that is much: prefer search and find."""
        return self._ask(operator.attrgetter("sections"))

    @property
    def outline(self) -> list[Note]:
        """All sections in reading order; those of a large folder without their texts."""
        return self._ask(operator.attrgetter("outline"))

    @property
    def notices(self) -> list[str]:
        """What was skipped and why, one sentence each."""
        return self._ask(operator.attrgetter("notices"))

    def search(self, query: str, top_k: int = 5) -> list[Hit]:
        """The best sections for a question in Chinese or English, best first; [] if no word fits.

        Raises:
            ToolError: the query is blank, or there are no notes.
        """
        if not query.strip():
            raise ToolError("参数 query 不能为空，请给出要查的关键词")
        if len(query) > MAX_QUERY:
            raise ToolError(f"query 有 {len(query)} 个字符，最多 {MAX_QUERY} 个，请只写要查的词")

        def ranked(notes: Any) -> list[Hit]:
            asked = _asked(query, notes)
            return [Hit(*hit, _snippet(hit[0].text, asked)) for hit in notes.best(asked, top_k)]

        return self._ask(ranked)

    def find(self, name: str) -> Note:
        """The section that a search hit or a reader calls by `name`, with all its subsections.

        Accepted: an id (`Week 1 Day 4 §1.4`, `week1-day4 1.4`, `第1周第4天 §1.4`), several in a row
        (`Week 2 Day 6 §1.2–1.3`), a file or day (`week1-day4`), a number or a heading or a part
        of a heading that no other section has.

        Raises:
            ToolError: unknown or ambiguous, with the nearest sections.
        """
        name = name[:MAX_QUERY].strip()

        def found(notes: Any) -> Note:
            meant = _meant(notes, name)
            if len(meant) == 1:
                return _joined(notes, *meant[0])
            near = [note for note, _ in meant[:5]] or _near(notes, name)
            listed = "；".join(note.full_name for note in near)
            reason = "有好几节符合" if meant else "没有这一节"
            some = next((note for note in notes.outline if note.level), notes.outline[0])
            how = f"请写编号或标题（如 {some.section}）、文件名（如 {some.name}）"
            more = f"。相近的有：{listed}" if listed else "；不知道在哪一节，先用 search_notes 查"
            raise ToolError(f"{reason}，{how}{more}")

        return self._ask(found)


# A folder of ten thousand sections takes seconds to index, so it is done once: a SQLite file in the
# user's cache directory keeps words and texts, and a later start reads only files that changed (by
# time and size, as make does). FTS5 proposes sections, then BM25 as above scores them, so both ways
# rank alike. The file is only a cache: a damaged one is made anew, and where there can be none (no
# FTS5, a read-only disk) the notes are held in memory as before.

LARGE_FOLDER = 2_000_000  # bytes of Markdown, about 2,000 sections; memory is faster below that
STORE_VERSION = 3  # of the tables and of tokenize; raise it when either changes
CANDIDATES = 50  # sections that FTS5 proposes for scoring
COMMON = 1_000  # a word in more sections, and in a tenth of all, proposes none if others can
PATIENCE = 20.0  # seconds to wait while another process builds the same index
WORDS_IN_MEMORY = 8_000_000  # bytes that FTS5 collects before it writes them; the default is 1 MB
PROGRESS_STEP = 100  # files between two calls of `progress`
NO_STORE = "建不了索引文件，这么多笔记只好放在内存里，每次启动都要重新读"
NOT_YET = "另一个程序正在为这些笔记建索引，请过一会儿再查"

NOTE_COLUMNS = ", ".join(Note._fields)
STORE_TABLES = f"""
    PRAGMA page_size = 16384;  -- texts are long: a fifth less work than with 4096
    PRAGMA journal_mode = WAL;  -- others read on while one process writes
    PRAGMA synchronous = OFF;  -- what a power failure damages is made anew
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS files(name PRIMARY KEY, time, bytes, notice);
    CREATE TABLE IF NOT EXISTS sections(id INTEGER PRIMARY KEY, size, {NOTE_COLUMNS});
    CREATE INDEX IF NOT EXISTS by_section ON sections(section);
    CREATE INDEX IF NOT EXISTS by_file ON sections(name);
    CREATE INDEX IF NOT EXISTS by_size ON sections(size);
    CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
        head, body, tokenize = "ascii tokenchars '.'");
    CREATE VIRTUAL TABLE IF NOT EXISTS counts USING fts5vocab(words, row);
    CREATE TRIGGER IF NOT EXISTS forget AFTER DELETE ON files BEGIN
        DELETE FROM words WHERE rowid IN (SELECT id FROM sections WHERE name = old.name);
        DELETE FROM sections WHERE name = old.name;
    END;
"""
PROPOSED = f"""
    SELECT head, body, size, {NOTE_COLUMNS} FROM words JOIN sections ON id = words.rowid
    WHERE words.rowid IN (SELECT rowid FROM words WHERE words MATCH ?
        ORDER BY bm25(words, {FIELD_WEIGHTS[0]}, {FIELD_WEIGHTS[1]}) LIMIT ?)
    ORDER BY name, id
"""


def notes_cache(platform: str, variables: Mapping[str, str], home: str) -> str:
    """Where index files belong by the custom of the system (`sys.platform`, `os.environ`)."""
    customs = {"win32": ("LOCALAPPDATA", "AppData", "Local"), "darwin": ("", "Library", "Caches")}
    variable, *places = customs.get(platform, ("XDG_CACHE_HOME", ".cache"))
    return os.path.join(variables.get(variable) or os.path.join(home, *places), "w4d3_tools_mcp")


def _insert(base, table: str, *values: object) -> int:
    marks = ", ".join("?" * len(values))
    return base.execute(f"INSERT INTO {table} VALUES ({marks})", values).lastrowid


def _store_file(base, name: str, path: str, stamp: tuple[int, int]) -> None:
    notes, notice = _read_file(name, path)
    if notes is None:
        notes, stamp = [], (0, 0)  # so that it is tried again
    day = "SELECT 1 FROM sections WHERE section = ?"
    if notes and base.execute(day, (notes[0].section,)).fetchone():  # two files of one title
        notes = [note._replace(section=f"{note.section} ({name})") for note in notes]
    for note in notes:
        fields = _fields(note)
        size = sum(_weighed(note, fields).values())
        id = _insert(base, "sections", None, size, *note)
        _insert(base, "words(rowid, head, body)", id, *map(" ".join, fields))
    _insert(base, "files", name, *stamp, notice)


def _update_store(base, files: dict, progress: Callable[[int, int], None]) -> None:
    rows = base.execute("SELECT name, time, bytes FROM files")
    known = {name: (*stamp,) for name, *stamp in rows}
    stamps = {name: stamp for name, (_, stamp) in files.items()}
    gone = [(name,) for name, _ in known.items() - stamps.items()]
    base.executemany("DELETE FROM files WHERE name = ?", gone)
    changed = sorted(stamps.items() - known.items())
    if changed:
        base.execute("INSERT INTO words(words, rank) VALUES ('hashsize', ?)", (WORDS_IN_MEMORY,))
    for done, (name, stamp) in enumerate(changed, 1):
        _store_file(base, name, files[name][0], stamp)
        if done % PROGRESS_STEP == 0 or done == len(changed):
            progress(done, len(changed))


class NotesInStore(NotesInMemory):
    """What NotesInMemory offers, from an index file that is first brought up to date."""

    def __init__(self, path: str, files: dict, notices: list[str], progress: Callable):
        import sqlite3

        base = self.base = sqlite3.connect(
            path, timeout=PATIENCE, isolation_level=None, check_same_thread=False,
        )
        with base:  # one transaction: all of it, or nothing when we are stopped
            base.executescript(STORE_TABLES)
            _update_store(base, files, progress)
        told = base.execute("SELECT notice FROM files WHERE notice <> '' ORDER BY name")
        self.notices = [*notices, *(notice for notice, in told)]
        totals = "SELECT COUNT(*), AVG(size) FROM sections"
        self.size, self._mean = base.execute(totals).fetchone()

        @functools.lru_cache(maxsize=2**14)  # FTS5 reads a whole list to count a word
        def count(word: str) -> int:
            rows = base.execute("SELECT doc FROM counts WHERE term = ?", (word,))
            return next(rows, (0,))[0]

        self.count = count

    def __del__(self):
        with contextlib.suppress(AttributeError):  # it was never opened
            self.base.close()

    def _notes(self, columns: str, where: str = "", *values: object) -> list[Note]:
        rows = f"SELECT {columns} FROM sections {where} ORDER BY name, id"
        return [Note(*row) for row in self.base.execute(rows, values)]

    @property
    def sections(self) -> list[Note]:
        return self._notes(NOTE_COLUMNS)

    @functools.cached_property
    def outline(self) -> list[Note]:
        return self._notes(NOTE_COLUMNS.replace("text", "''"))

    def of_file(self, name: str) -> list[Note]:
        return self._notes(NOTE_COLUMNS, "WHERE name = ?", name)

    def terms(self, start: str, part: str = "") -> list[str]:
        query = "SELECT term FROM counts WHERE term BETWEEN ? AND ? AND instr(term, ?)"
        return [term for term, in self.base.execute(query, (start, start + "\U0010ffff", part))]

    def best(self, asked: Mapping[str, float], top_k: int) -> list[tuple[Note, float]]:
        rare = [word for word in asked if 0 < self.count(word) <= max(COMMON, self.size // 10)]
        match = " OR ".join(f'"{word}"' for word in rare or asked)  # quoted: none is an operator
        found = self.base.execute(PROPOSED, (match, max(CANDIDATES, 2 * top_k))) if asked else ()
        hits = []
        for heading, text, size, *rest in found:
            note = Note(*rest)
            told = ([w for w in field.split() if w in asked] for field in (heading, text))
            half = damping(size, self._mean)
            hits.append((note, sum(
                asked[word] * inverse_frequency(self.size, self.count(word))
                * n * (K1 + 1) / (n + half)
                for word, n in _weighed(note, told).items()
            )))
        return sorted(hits, key=lambda hit: -hit[1])[:top_k]


class LargeNotesIndex(NotesIndex):
    """Notes of any number: a large folder is searched in a file in `cache`, a small one in memory.

    progress(done, total) is told how many files have been read, where any had to be.
    """

    def __init__(
        self, folder: str, cache: str, *, large: float = LARGE_FOLDER,
        progress: Callable[[int, int], None] = lambda done, total: None, **options: Any,
    ):
        super().__init__(folder, **options)
        self.cache, self.large, self.progress = cache, large, progress

    @property
    def path(self) -> str:
        """The index file of this folder."""
        from hashlib import sha256

        mark = sha256(os.fsencode(os.path.realpath(self.folder))).hexdigest()[:16]
        return os.path.join(self.cache, f"notes-{mark}-v{STORE_VERSION}.sqlite")

    def _read(self, files, notices):
        if sum(size for _, (_, size) in files.values()) < self.large:
            excuse = [NO_STORE] if self.large == math.inf else []
            return super()._read(files, notices + excuse)
        os.makedirs(self.cache, mode=0o700, exist_ok=True)  # notes may be private
        return NotesInStore(self.path, files, notices, self.progress)

    def _ask(self, work):
        with self._lock:
            for _ in range(2):
                try:
                    return super()._ask(work)
                except ToolError:
                    raise
                except Exception as error:  # no SQLite or FTS5, no right to write, a damaged file
                    if "locked" in str(error):
                        raise ToolError(NOT_YET) from error
                self._remove()
            self.large = math.inf
            return super()._ask(work)

    def _remove(self) -> None:
        self._notes, self._files, self._looked = None, None, -math.inf
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.remove(self.path + end)


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 7  内置工具 Built-in tools      uses §1, §3–§6
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The same four for demos, --ask and the MCP server. Signatures and docstrings are all there is:
# schemas are generated from them and cannot drift. To add a tool, write one function.

NOTES_FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "notes")
MOST_HITS = 20  # more than a model reads with care
LARGEST = 10**9  # of any one factor of the KV cache; real models stay far below
NOTE_CHARACTERS = 6000  # a whole section or MOST_HITS hits, which must not be cut inside the JSON


def calculator(expression: str) -> int | float | bool:
    """计算一个算式，返回结果。凡是算数都用它，不要心算；KV Cache 的大小请改用 kv_cache_gib。

    支持 + - * / // % **、括号、比较，sqrt、log、exp、sin、factorial 等函数，以及 pi 和 e。
    算不出时返回原因，例如除以零。

    Args:
        expression: 算式，只含数字、运算符和函数，乘方写 **，例如 "17*23+4" 或 "sqrt(2)/2"。
    """
    return safe_eval(expression)


class KVCache(TypedDict):
    """Size of a KV cache; GiB is 2**30 bytes, per_token_KiB is for one sequence."""

    bytes: int
    GiB: float
    per_token_KiB: float


def kv_cache_gib(
    num_layers: int, num_kv_heads: int, head_dim: int, seq_len: int,
    batch_size: int = 1, bytes_per_value: int = 2,
) -> KVCache:
    """计算大模型推理时 KV Cache 占多少显存，返回总字节数、GiB 和每个 token 的 KiB。

    公式见 Week 1 Day 4 §1.4：2 × 层数 × KV 头数 × 头维 × 长度 × batch × 每个数的字节数。
    只算 KV Cache，不含模型权重；别的算式请用 calculator。

    Args:
        num_layers: Transformer 层数，例如 Llama 3 8B 是 32。
        num_kv_heads: KV 头的个数；用 GQA 时少于注意力头数，例如 8。
        head_dim: 每个头的维度，例如 128。
        seq_len: 序列长度，单位 token，例如 8192。
        batch_size: 同时处理的序列条数，例如 4。
        bytes_per_value: 每个数占的字节数，单位 byte：FP16/BF16 是 2，FP8/INT8 是 1。
    """
    for name, value in dict(locals()).items():
        if not 1 <= value <= LARGEST:
            raise ToolError(f"参数 {name} 应该在 1 到 {LARGEST} 之间，收到的是 {show(value)}")
    per_token = 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
    total = per_token * seq_len * batch_size
    return {"bytes": total, "GiB": total / 2**30, "per_token_KiB": per_token / 2**10}


class NoteHit(TypedDict):
    """One section that matches; `section` is what read_note takes."""

    section: str
    title: str
    snippet: str
    score: float


class NoteHits(TypedDict):
    """What search_notes returns; `message` says in words what was found."""

    message: str
    hits: list[NoteHit]


def notes_tools(index: NotesIndex) -> tuple[Callable, Callable]:
    """The two tools that read one folder of notes: (search_notes, read_note)."""

    def search_notes(query: str, top_k: int = 5) -> NoteHits:
        """在讲义里按关键词查找章节，返回编号、标题、片段和得分；想知道某个知识点在哪一节时用它。

        按词匹配（BM25），不懂同义词：没找到会直接说明，可以换一个说法再查。
        只给片段；要读一节的全文请用 read_note。

        Args:
            query: 关键词，中文或英文，例如 "KV Cache 显存" 或 "GRPO"。
            top_k: 最多返回几节，1 到 20，例如 3。
        """
        if not 1 <= top_k <= MOST_HITS:
            raise ToolError(f"参数 top_k 应该在 1 到 {MOST_HITS} 之间，收到的是 {show(top_k)}")
        hits = [
            NoteHit(section=note.section, title=note.title, snippet=snippet, score=round(score, 2))
            for note, score, snippet in index.search(query, top_k)
        ]
        found = f"找到 {len(hits)} 节，用 read_note 可读全文"
        return {"message": found if hits else "没有找到，请换一个说法再查", "hits": hits}

    def read_note(section: str) -> str:
        """返回讲义中一节的全文；已经知道编号或标题时用它，还不知道在哪一节请先用 search_notes。

        找不到时返回相近的章节名。

        Args:
            section: 章节编号或标题，例如 "Week 1 Day 4 §1.4"、"week1-day4" 或 "KV Cache"。
        """
        note = index.find(section)
        whole, seen = note.text, note.text[:NOTE_CHARACTERS - 500]
        parts = {
            part.section: f"{'#' * part.level} {part.heading}\n\n{part.text}".strip()
            for part in index.outline if part.name == note.name
        }
        left = [name for name, text in parts.items() if text in whole and text not in seen]
        more = f"（太长，一次给不完；后面的请再分别读：{_listed(left)}）\n\n" if left else ""
        return f"{note.full_name}\n\n{more}{whole}"

    search_notes.tool = read_note.tool = {"characters": NOTE_CHARACTERS}
    return search_notes, read_note


search_notes, read_note = notes_tools(NotesIndex(NOTES_FOLDER))


def built_in_tools(index: NotesIndex | None = None) -> ToolRegistry:
    """A new registry of the four, reading the bundled notes or those of `index`."""
    search, read = (search_notes, read_note) if index is None else notes_tools(index)
    titles = {
        calculator: "计算器", kv_cache_gib: "KV Cache 显存", search: "查找讲义", read: "阅读讲义",
    }
    registry = ToolRegistry()
    for fn, title in titles.items():
        registry.register(fn, title=title, labels=frozenset({"read_only"}))
    return registry


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 8  路由 Router      uses §1, §4, §6, §7 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Forty schemas in every request cost tokens and confuse a model; five that fit do neither. A tool
# is ranked as a note is in §6: its words against those of the request (BM25). No network, no model,
# no training. It knows no synonyms and does not translate: where no word is shared it finds nothing
# and says so, never guesses. Weights were chosen on five public sets (make bench-router).

NAME_WEIGHT = 3.0  # a name is the shortest description; all other text counts 1
PAIR_WEIGHT = 0.6  # of two words that stand close together, in the tool as in the request
HAN_WEIGHT = 0.35  # of a single Chinese character; pairs of them are words already (§6)
SATURATION, LENGTH_SHARE = 1.5, 0.6  # k1 and b of BM25
MAX_REQUEST = 4_000  # characters; of a longer one the end counts, where the question stands
# A request of several sentences has several needs. What a tool already chosen answers counts less
# for the next, or the richest need would fill all places.
SENTENCE_END, MANY_SENTENCES, ANSWERED = r"[.?!](?=\s|\Z)|[。？！；]", 4, 0.75

CAMEL_CASE = "(?<=[a-z])(?=[A-Z])"
# Tool names are full of doers and deeds: calculator, calculation and calculate meet in "calcul".
ROLE_ENDING = "(?<=[a-z]{3})(?:ator|ation|at|er|or|ion)$"


@functools.lru_cache(maxsize=2**16)
def _root(word: str) -> str:
    return re.sub(ROLE_ENDING, "", stem(word)) if word.isascii() else word


def _pairs(roots: list[str]) -> list[str]:
    """Each word with the next and the next but one, where both are known ("" is not)."""
    return [f"{a} {b}" for step in (1, 2) for a, b in zip(roots, roots[step:]) if a and b]


def _characters(text: str) -> list[str]:
    return [char for char in text if "\u4e00" <= char <= "\u9fff"]  # the common Chinese ones


def _parameter_text(schema: object) -> str:
    """Names, descriptions and accepted values of all parameters, at any depth, in any dialect."""
    texts, nodes = [], [schema]
    for node in nodes:  # which grows meanwhile
        if isinstance(node, Mapping):
            for key, kind in (("properties", Mapping), ("enum", list)):
                texts += node[key] if isinstance(node.get(key), kind) else ()
            texts.append(node.get("description"))
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return " . ".join(text for text in texts if isinstance(text, str))


def _tool_words(tool: Mapping) -> dict[str, float]:
    """The weighted words that stand for a tool in the ranking."""
    inputs = [tool.get(key) for key in ("parameters", "inputSchema", "input_schema")]
    texts = tool["name"], tool.get("description") or "", _parameter_text(inputs)
    name, about, inputs = (
        [_root(word) for word in content_words(re.sub(CAMEL_CASE, " ", str(text)))]
        for text in texts
    )
    return weigh_fields(
        (name, NAME_WEIGHT),
        (about + inputs, 1.0),
        (_pairs(name) + _pairs(about), PAIR_WEIGHT),
        (_characters(" ".join(map(str, texts))), HAN_WEIGHT),
    )


class Routed(NamedTuple):
    """A tool for a request, how well it fits, and the words of the request that speak for it."""

    name: str
    score: float  # 0.0: not found, but kept
    words: tuple[str, ...]
    tool: Tool | dict


class ToolRouter:
    """Tools ranked for a request. Takes a registry, `Tool`s, or dicts as any vendor writes them.

    >>> router = ToolRouter([{"name": "getWeather", "description": "天气预报 forecast"},
    ...                      {"name": "send_mail", "description": "发送邮件"}])
    >>> [(found.name, found.words) for found in router.pick("明天的天气怎么样", k=1)]
    [('getWeather', ('天气',))]
    """

    def __init__(self, tools: Iterable[Tool | dict]):
        self.tools = list(tools)
        self._coerce = getattr(tools, "coerce", False)
        schemas = [
            tool.schema() if isinstance(tool, Tool) else tool.get("function", tool)
            for tool in self.tools
        ]
        self._names = [schema["name"] for schema in schemas]
        self._ranking = BM25(map(_tool_words, schemas), k1=SATURATION, b=LENGTH_SHARE)

    def _spread(self, terms: Iterable[str], k: int) -> Iterator[tuple[int, float]]:
        """(position, score) of the k best; a word that one has counts less for the next."""
        postings, size = self._ranking.postings, self._ranking.size
        idf = {term: inverse_frequency(size, len(postings[term])) for term in terms}
        gains = {
            place: {t: idf[t] * postings[t][place] for t in terms if place in postings[t]}
            for place, _ in self._ranking.search(terms, 4 * k)
        }
        for _ in range(min(k, len(gains))):
            best = max(gains, key=lambda place: sum(gains[place].values()))
            given = gains.pop(best)
            yield best, sum(given.values())
            for gain in gains.values():
                gain.update((term, gain[term] * ANSWERED) for term in gain.keys() & given.keys())

    def pick(self, query: str, k: int = 5, keep: Iterable[str] = ()) -> list[Routed]:
        """The k tools that fit best, best first; [] when no tool shares a word with the request.

        Those named in `keep` follow beyond k. When there are no more than k tools, all are given.
        """
        postings = self._ranking.postings
        text = re.sub(f"{CAMEL_CASE}|{QUESTION}", " ", query[-MAX_REQUEST:])
        words = without_lone([word for word in tokenize(text) if word not in STOP_WORDS])
        roots = [_root(stem(word)) for word in words]
        spoken = {root: word for root, word in zip(roots, words) if root in postings}
        roots = [root if root in spoken else "" for root in roots]
        terms = [*roots, *_pairs(roots), *_characters(text)]
        terms = [term for term in dict.fromkeys(terms) if term in postings]

        several = len(re.findall(SENTENCE_END, text)) >= MANY_SENTENCES
        ranked = (self._spread if several else self._ranking.search)(terms, max(k, 0))
        kept = set(self._names if len(self.tools) <= k else keep)
        more = [(p, 0.0) for p, name in enumerate(self._names) if name in kept] if kept else []
        picked: dict[int, Routed] = {}
        for place, score in itertools.chain(ranked, more):
            own = tuple(word for root, word in spoken.items() if place in postings[root])
            if place not in picked and (own or not score):  # lone characters are no match
                picked[place] = Routed(self._names[place], score, own, self.tools[place])
        return list(picked.values())

    def subset(self, query: str, k: int = 5, keep: Iterable[str] = ()) -> ToolRegistry:
        """What to offer a model: the k best and those to keep, in the order of the registry.

        Not in the order of the ranking: equal sets make equal prompts, which servers cache. When
        nothing matches, all tools: leaving some out needs a reason.
        """
        picked = self.pick(query, k, keep)
        matched = any(routed.score for routed in picked)
        return self.registry([routed.name for routed in picked] if matched else self._names)

    def registry(self, names: Iterable[str]) -> ToolRegistry:
        """These tools in their own order. Raises SchemaError for dicts, which nobody can run."""
        wanted = set(names)
        chosen = [tool for tool, name in zip(self.tools, self._names) if name in wanted]
        return ToolRegistry(chosen, coerce=self._coerce)


def with_tool_search(
    router: ToolRouter, query: str, *, k: int = 5, keep: Iterable[str] = (),
) -> ToolRegistry:
    """The tools picked, and one more by which the model itself adds what was missed: search_tools.

    The remedy for words that do not match: a model knows synonyms and languages. What it finds is
    added at the end, so the part of the prompt that servers cache stays as it was.
    """
    registry = router.registry(routed.name for routed in router.pick(query, k, keep))

    def search_tools(words: str) -> list[str]:
        """查找没有列出的工具，返回找到的名字，下一轮就能调用；没有找到时返回空列表。

        Args:
            words: 要找的工具的关键词，中英文都写，例如 "天气 预报 weather forecast"。
        """
        found = [routed.tool for routed in router.pick(words, k) if routed.score]
        for tool in found:
            with contextlib.suppress(SchemaError):  # listed already
                registry.add(tool)
        return [tool.name for tool in found]

    registry.register(search_tools)
    return registry


def asked_lately(messages: Iterable[Mapping], *, turns: int = 2) -> str:
    """The last user turns in one text, to route by: "那明天呢？" alone says nothing."""
    asked = [str(message.get("content") or "") for message in messages if message["role"] == "user"]
    return "\n".join(asked[-turns:])


def tools_called(messages: Iterable[Mapping]) -> list[str]:
    """The tools that a conversation has used, to keep: their results are still talked about."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return list(dict.fromkeys(call["function"]["name"] for call in calls))


# What a working assistant may be offered: ten families of four, with siblings that are easy to
# confuse. The four of §7 are real; the others are entries to route among, and say so when called.
# Descriptions are Chinese with the English terms that people use in their requests.

# name(parameter text; parameter? kind text; …) description: ? is optional, the kind is string
# unless given: integer, number, or the accepted values a/b/c. A name alone is a tool of §7.
CATALOGUE = """
搜索 search
    search_notes
    web_search(query 关键词; count? integer 条数) 用搜索引擎查公开网页 web，返回标题和网址
    search_papers(query 关键词; year? integer 最早年份) 查学术论文 paper（arXiv），返回题目和链接
    search_news(query 关键词; days? integer 最近几天) 查最近的新闻 news，返回标题和时间
文件 files
    list_files(path 文件夹路径) 列出文件夹 folder 里的文件名和大小
    read_file(path 文件路径; lines? integer 最多行数) 读取一个文本文件 file 的内容
    write_file(path 文件路径; text 内容) 把文本保存到文件 file，原有内容会被覆盖
    search_files(pattern 要找的文字; path 文件夹路径) 在文件夹里按内容查文件 grep，返回所在的行
邮件 mail
    send_email(to 收件人地址; subject 主题; body 正文) 发送一封邮件 email，发出后不能撤回
    search_email(query 关键词、发件人或日期) 在邮箱里查邮件 email，返回主题和编号
    read_email(id 邮件编号) 读取一封邮件 email 的正文和附件名
    draft_reply(id 邮件编号; tone? formal/casual 语气) 起草对一封邮件的回复 reply，只存草稿，不发送
日历 calendar
    list_events(date 日期 YYYY-MM-DD) 查看某天的日程和会议 calendar
    create_event(title 标题; start 开始时间; minutes? integer 分钟数) 新建日程，或约一个会议 meeting
    find_free_time(people 各人的邮箱; date 日期 YYYY-MM-DD) 找几个人都有空的时间 free time
    set_reminder(text 提醒内容; time 时间 HH:MM) 设置到点提醒 reminder 或闹钟 alarm
代码 code
    run_python(code 源代码) 在沙箱里运行一段 Python 代码，返回输出
    run_tests(path 测试目录) 运行项目的单元测试 pytest，返回失败的用例
    search_code(query 名字或正则; language? 编程语言) 在代码仓库 repo 里查函数或变量的定义
    gpu_status(index? integer 第几块卡) 查看本机 GPU 的显存占用和温度 nvidia-smi
数据 data
    calculator
    query_sql(sql 查询语句) 对数据库 database 执行只读 SQL，返回表格
    plot_chart(data CSV 数据; kind? line/bar/scatter 种类) 把数据画成图 chart
    describe_table(path CSV 文件路径) 统计 CSV 每一列的均值 mean、标准差和缺失
天气与出行 weather and travel
    get_weather(city 城市) 查城市现在的天气 weather：气温、湿度、风力
    get_forecast(city 城市; days? integer 天数) 查未来几天的天气预报 forecast：是否下雨、最高气温
    search_flights(origin 出发城市; target 到达城市; date 日期) 查两地之间的航班 flight 和机票价格
    search_trains(origin 出发站; target 到达站; date 日期) 查高铁、火车 train 的车次和余票
财务 money
    convert_currency(amount number 金额; source 原货币; target 目标货币)
        按当天汇率换算货币 currency，如美元换人民币
    get_stock_price(symbol 股票代码) 查股票 stock 的最新价格和涨跌幅
    add_expense(amount number 金额; category 类别，如交通) 记一笔支出 expense 到账本
    loan_payment(principal number 本金; rate number 年利率 %; months integer 月数)
        计算贷款 loan 的每月还款额和总利息
文档 documents
    read_note
    translate_text(text 原文; target zh/en/ja/fr 目标语言) 把文字翻译 translate 成另一种语言
    summarize_text(text 原文; words? integer 摘要字数) 把长文章缩写成摘要 summary
    read_pdf(path PDF 路径; pages? 页码，如 1-3) 提取 PDF 文档的文字
课程 course
    kv_cache_gib
    weights_gib(params number 参数量) 计算模型参数 weights 占多少显存
    training_gib(params number 参数量) 计算训练时梯度和优化器占多少显存
    training_flops(params number 参数量; tokens number token 数)
        计算训练大模型要多少算力 FLOPs（6ND）
"""


def _row_parameters(text: str) -> dict:
    """The object schema of a row's parameters.

    >>> _row_parameters("n? integer 条数")["properties"]
    {'n': {'type': 'integer', 'description': '条数'}}
    """
    properties, required = {}, []
    row = r"(\w+)(\??) (?:(integer|number|\w+(?:/\w+)+) )?([^;]+)"
    for name, optional, kind, about in re.findall(row, text):
        choices = {"enum": kind.split("/")} if "/" in kind else {}
        kind = "string" if choices else kind or "string"
        properties[name] = {"type": kind, **choices, "description": about}
        required += [] if optional else [name]
    return {"type": "object", "properties": properties, "required": required}


def _catalogue_entry(args: dict) -> object:
    raise ToolError("这只是演示目录里的一个条目，没有接真实的服务，什么也没有做。请如实告诉用户。")


def catalogue_tools(real: ToolRegistry | None = None) -> ToolRegistry:
    """The 40 tools of CATALOGUE, those of §7 from `real`; what else `real` has follows them."""
    real = built_in_tools() if real is None else real
    tools = ToolRegistry()
    for name, parameters, about in re.findall(r"^    (\w+)(?:\((.*)\)\s+(.*))?$", CATALOGUE, re.M):
        tools.add(
            Tool(name, about, _row_parameters(parameters), _catalogue_entry) if about
            else real[name]
        )
    return ToolRegistry([*tools, *(tool for tool in real if tool.name not in tools)])


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 9  消息格式 Wire formats      uses §1, §3, §4 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One tool, one conversation, one choice, several spellings. History is the OpenAI message list; the
# other vendors' shapes are conversions of it, made fresh for every request. `tidy_history` is the
# shape all start from, and reading any of them back gives it again. What a vendor must see again
# unchanged (thinking blocks, signatures) travels in one key of the assistant message.


# --- tools ---


def _without(mapping: dict, key: str) -> dict:
    return {k: v for k, v in mapping.items() if k != key}


def _definition(tool: Tool | dict) -> dict:
    return tool if isinstance(tool, dict) else tool.schema()


def to_openai_tool(tool: Tool | dict) -> dict:
    """{"type": "function", "function": {name, description, parameters}} (Chat Completions)."""
    return {"type": "function", "function": _definition(tool)}


def to_anthropic_tool(tool: Tool | dict) -> dict:
    """{name, description, input_schema} (Messages API)."""
    definition = _definition(tool)
    return {**_without(definition, "parameters"), "input_schema": definition["parameters"]}


# What a Gemini `Schema` may hold (OpenAPI 3.0 subset); everything else is refused with HTTP 400.
_GEMINI_KEPT = frozenset(
    "description enum format maxItems minItems maxLength minLength maximum minimum pattern"
    " maxProperties minProperties required title".split()
)


def _gemini_schema(schema: dict, defs: dict, seen: tuple[str, ...] = ()) -> dict:
    """The schema in Gemini's dialect: upper-case types, `nullable`, references written out."""
    if not isinstance(schema, dict):
        return {}
    if reference := schema.get("$ref"):
        name = reference.rsplit("/", 1)[-1]
        if name in seen:  # a recursive type has no finite written-out form
            return {"type": "OBJECT"}
        target = {**defs.get(name, {}), **_without(schema, "$ref")}
        return _gemini_schema(target, defs, (*seen, name))
    spelled = functools.partial(_gemini_schema, defs=defs, seen=seen)
    result = {key: value for key, value in schema.items() if key in _GEMINI_KEPT}
    kind, branches = schema.get("type"), schema.get("anyOf", schema.get("oneOf", []))
    if isinstance(kind, list):
        kind, branches = None, [{"type": each} for each in kind]
    named = [branch for branch in branches if branch != {"type": "null"}]
    if len(named) == 1:
        result = spelled(named[0]) | result
    elif named:
        result["anyOf"] = [spelled(branch) for branch in named]
    if len(named) < len(branches):
        result["nullable"] = True
    if kind:
        result["type"] = kind.upper()
    if not all(isinstance(value, str) for value in result.get("enum", ())):
        del result["enum"]  # Gemini knows only enums of strings
    elif "enum" in result:
        result.setdefault("type", "STRING")
    if "properties" in schema:
        result["properties"] = {n: spelled(part) for n, part in schema["properties"].items()}
    if "items" in schema or kind == "array":
        result["items"] = spelled(schema.get("items", {}))
    return result


def to_gemini_tool(tool: Tool | dict) -> dict:
    """A function declaration: {name, description, parameters} with upper-case type names."""
    definition = _definition(tool)
    schema = definition["parameters"]
    declaration = _without(definition, "parameters")
    if schema.get("properties"):  # an OBJECT without properties is refused
        declaration["parameters"] = _gemini_schema(schema, schema.get("$defs", {}))
    return declaration


def to_mcp_tool(tool: Tool) -> dict:
    """{name, title, description, inputSchema, outputSchema, annotations}: a copy, as MCP has it."""
    result = {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters}
    if tool.title:
        result["title"] = tool.title
    if tool.output:
        result["outputSchema"] = tool.output
    result["annotations"] = {
        "readOnlyHint": "read_only" in tool.labels,
        "destructiveHint": "irreversible" in tool.labels,
        "openWorldHint": bool(tool.labels & {"sends", "untrusted"}),
    }
    return marshal.loads(marshal.dumps(result))  # the fastest way to copy plain data


TOOL_FORMATS: dict[str, Callable[[Tool], dict]] = {  # the first three also take a bare definition
    "openai": to_openai_tool,
    "anthropic": to_anthropic_tool,
    "gemini": to_gemini_tool,
    "mcp": to_mcp_tool,
}


def tools_in_format(tools: Iterable[Tool | dict], format: str) -> list[dict]:
    """The `tools` value of a request in that vendor's format, a key of TOOL_FORMATS."""
    converted = [TOOL_FORMATS[format](tool) for tool in tools]
    return [{"function_declarations": converted}] if format == "gemini" else converted


# --- tool_choice: "auto", "none", "required" or {"function": {"name": …}} ---


def to_anthropic_choice(choice: str | dict) -> dict:
    """Anthropic's `tool_choice` for OpenAI's."""
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": "any" if choice == "required" else choice}


def to_gemini_choice(choice: str | dict) -> dict:
    """Gemini's `toolConfig` for an OpenAI `tool_choice`."""
    config = {"mode": "ANY"}
    if isinstance(choice, dict):
        config["allowedFunctionNames"] = [choice["function"]["name"]]
    elif choice != "required":
        config["mode"] = choice.upper()
    return {"functionCallingConfig": config}


# --- messages: the OpenAI list, tidied ---

UNREADABLE = "unreadable_arguments"  # servers want an object back even where the model wrote none
NO_RESULT = "这次调用没有结果。"
_SYSTEM_ROLES = ("system", "developer")  # many servers know only the first

# Where an assistant message keeps what one vendor must get back unchanged.
ANTHROPIC_BLOCKS, GEMINI_PARTS = "anthropic_blocks", "gemini_parts"
OWN_KEYS = frozenset({ANTHROPIC_BLOCKS, GEMINI_PARTS, "is_error"})  # never sent to an OpenAI server


def arguments_object(arguments: object) -> dict:
    """The arguments of a call as an object; text that cannot be read is kept inside one.

    >>> arguments_object('{"n": 1}'), arguments_object(""), arguments_object('{"n": ')
    ({'n': 1}, {}, {'unreadable_arguments': '{"n": '})
    """
    try:
        return parse_arguments(arguments)
    except ArgumentsError:
        return {UNREADABLE: str(arguments)}


def _object_text(arguments: object) -> str:
    """JSON text of the arguments' object: the model's own text where that is what it wrote."""
    value = arguments_object(arguments)
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if json.loads(arguments) == value:
            return arguments
    return json_text(json_value(value))


def content_text(content: object) -> str:
    """The text of a `content`: a string, a list of parts, or null. Pictures are only named.

    >>> content_text([{"type": "text", "text": "看图"}, {"type": "image_url", "image_url": {}}])
    '看图\\n[image_url]'
    """
    parts = content if isinstance(content, list) else [content]
    texts = [p.get("text", f"[{p.get('type')}]") if isinstance(p, dict) else p for p in parts]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _numbered(number: int) -> str:
    """An id of nine letters and digits: every known validator takes it (Mistral's is strictest)."""
    return f"call{number:05}"


def _tidy_assistant(message: dict, number: int) -> dict:
    """The message with `content`; calls with an id, a name that servers take (a model may invent
    any), and arguments as JSON text of an object.
    """
    result = {key: value for key, value in message.items() if value not in (None, [])}
    result["content"] = content_text(message.get("content"))
    calls = []
    for position, call in enumerate(result.get("tool_calls", ()), number):
        function = call.get("function") or {}
        name = re.sub("[^A-Za-z0-9_-]", "_", str(function.get("name") or "unnamed"))[:64]
        function = {**function, "name": name, "arguments": _object_text(function.get("arguments"))}
        named = {"id": call.get("id") or _numbered(position), "type": "function"}
        calls.append({**call, **named, "function": function})
    return {**result, "tool_calls": calls} if calls else result


def _with_results(messages: Iterable[dict]) -> Iterator[tuple[dict, list[dict]]]:
    """Each message together with the tool messages that follow it."""
    current, results = {}, []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        yield current, results
        current, results = message, []
    yield current, results


def _answers(message: dict, turn: dict, results: list[dict]) -> Iterator[dict]:
    """One result per call, in call order; each is taken out of `results`."""
    for old, call in zip(message.get("tool_calls") or (), turn.get("tool_calls", ())):
        found = next((r for r in results if r.get("tool_call_id") == old.get("id")), {})
        results[:] = [result for result in results if result is not found]
        text = content_text(found["content"]) if found else NO_RESULT
        yield {**found, "role": "tool", "tool_call_id": call["id"], "content": text}


def _add_user(result: list[dict], text: str, **rest) -> None:
    """Append a user message, or join it to the one before: templates want alternating roles."""
    if result and result[-1]["role"] == "user":
        result[-1] = {**result[-1], "content": f"{result[-1]['content']}\n\n{text}"}
    else:
        result.append({**rest, "role": "user", "content": text})


def tidy_history(messages: list[dict]) -> list[dict]:
    """The same conversation as every server accepts it; an equal list when it was tidy already.

    One system message, first; no two user messages in a row; `content` always there, as text;
    names of calls in plain letters, arguments as JSON text of an object; right behind a turn its
    results, one per call, in order.
    """
    texts = [content_text(m.get("content")) for m in messages if m["role"] in _SYSTEM_ROLES]
    system = "\n\n".join(filter(None, texts))
    result = [{"role": "system", "content": system}] if system else []
    number = 0
    for message, results in _with_results(m for m in messages if m["role"] not in _SYSTEM_ROLES):
        if message.get("role") == "assistant":
            turn = _tidy_assistant(message, number)
            number += len(turn.get("tool_calls", ()))
            if turn.get("tool_calls") or turn["content"]:  # Anthropic refuses an empty turn
                result += [turn, *_answers(message, turn, results)]
        elif text := content_text(message.get("content")):
            _add_user(result, text, **message)
        for orphan in results:  # no call to answer: keep what it says
            _add_user(result, f"工具结果：{content_text(orphan.get('content'))}")
    return result


def plain_messages(messages: Iterable[dict]) -> list[dict]:
    """The messages without our own keys, as an OpenAI server takes them."""
    return [{k: v for k, v in message.items() if k not in OWN_KEYS} for message in messages]


def to_hf_messages(messages: list[dict]) -> list[dict]:
    """Messages for a transformers chat template: arguments as an object, results with their name.

    `tidy_history` reads them back.
    """
    result, names = [], {}
    for message in plain_messages(tidy_history(messages)):
        if message["role"] == "tool":
            message["name"] = names[message["tool_call_id"]]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = arguments_object(function["arguments"])
            names[call["id"]] = function["name"]
        result.append(message)
    return result


# --- messages: Anthropic and Gemini ---


def _rounds(
    messages: list[dict], key: str, blocks: Callable, answer: Callable,
) -> tuple[str, list[tuple]]:
    """(system, [(role, blocks), …]) as both vendors want it: a turn's results in one user turn.

    blocks(message) spells an assistant message that has nothing under `key`, or a user message;
    answer(message, block) spells a result, given the block of its call.
    """
    system, rounds, uses = "", [], iter(())
    for message in tidy_history(messages):
        role = message["role"]
        if role == "system":
            system = message["content"]
            continue
        if role == "tool":
            role, new = "user", [answer(message, next(uses))]
        else:
            new = message.get(key) or blocks(message)
        if role == "assistant":
            uses = iter([b for b in new if b.get("type") == "tool_use" or "functionCall" in b])
        if rounds and role == rounds[-1][0] == "user":
            rounds[-1][1].extend(new)
        else:
            rounds.append((role, list(new)))
    return system, rounds


def _anthropic_blocks(message: dict) -> list[dict]:
    text = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return text + [
        {
            "type": "tool_use", "id": call["id"], "name": call["function"]["name"],
            "input": arguments_object(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]


def _anthropic_result(message: dict, block: dict) -> dict:
    answer = {"type": "tool_result", "tool_use_id": block["id"], "content": message["content"]}
    return {**answer, "is_error": True} if message.get("is_error") else answer


def to_anthropic_messages(messages: list[dict]) -> tuple[str, list[dict]]:
    """(system, messages) of a Messages request."""
    system, rounds = _rounds(messages, ANTHROPIC_BLOCKS, _anthropic_blocks, _anthropic_result)
    return system, [{"role": role, "content": blocks} for role, blocks in rounds]


def _history(
    system: str, rounds: Iterable[tuple], key: str, read: Callable, spell: Callable,
) -> list[dict]:
    """The OpenAI list of a vendor's (role, blocks) rounds: `_rounds` backwards.

    read(block) is ("text", text), ("call", id, name, arguments), ("result", id, text, failed) or
    ("other",); what has no id goes by its position. What spell(message) would not give again, the
    assistant message keeps under `key`.
    """
    result, number, waiting = [{"role": "system", "content": system}] if system else [], 0, iter(())
    for role, blocks in rounds:
        found = {"text": [], "call": [], "result": [], "other": []}
        for kind, *facts in map(read, blocks):
            found[kind].append(facts)
        if role == "user":
            for id, text, failed in found["result"]:
                message = {"role": "tool", "tool_call_id": id or next(waiting)["id"]}
                more = {"is_error": True} if failed else {}
                result.append({**message, "content": text, **more})
            if rest := [block for block in blocks if read(block)[0] != "result"]:
                _add_user(result, content_text(rest))
            continue
        message = {"role": "assistant", "content": "".join(text for (text,) in found["text"])}
        calls = [
            {"id": id or _numbered(position), "type": "function", "function": {
                "name": name, "arguments": json_text(json_value(arguments)),
            }}
            for position, (id, name, arguments) in enumerate(found["call"], number)
        ]
        if calls:
            message["tool_calls"] = calls
        result.append(message if spell(message) == blocks else {**message, key: blocks})
        number, waiting = number + len(calls), iter(calls)
    return result


def _read_anthropic(block: dict) -> tuple:
    match block:
        case {"type": "text", "text": text}:
            return "text", text
        case {"type": "tool_use", "id": id, "name": name, "input": arguments}:
            return "call", id, name, arguments
        case {"type": "tool_result", "tool_use_id": id}:
            return "result", id, content_text(block.get("content")), block.get("is_error")
    return ("other",)


def from_anthropic_messages(system: str | list, messages: list[dict]) -> list[dict]:
    """The OpenAI message list of a Messages request."""
    rounds = [
        (m["role"], [{"type": "text", "text": c}] if isinstance(c := m["content"], str) else c)
        for m in messages
    ]
    system = content_text(system)
    return _history(system, rounds, ANTHROPIC_BLOCKS, _read_anthropic, _anthropic_blocks)


def _gemini_parts(message: dict) -> list[dict]:
    text = [{"text": message["content"]}] if message["content"] else []
    return text + [
        {"functionCall": {
            "id": call["id"], "name": call["function"]["name"],
            "args": arguments_object(call["function"]["arguments"]),
        }}
        for call in message.get("tool_calls", ())
    ]


def _gemini_response(message: dict, part: dict) -> dict:
    """The answer to a functionCall; it has an id when the call has one."""
    call = part["functionCall"]
    known = {key: call[key] for key in ("id", "name") if key in call}
    kind = "error" if message.get("is_error") else "output"
    return {"functionResponse": {**known, "response": {kind: message["content"]}}}


def to_gemini_contents(messages: list[dict]) -> tuple[str, list[dict]]:
    """(system text, contents) of a generateContent request."""
    system, rounds = _rounds(messages, GEMINI_PARTS, _gemini_parts, _gemini_response)
    return system, [{"role": "model" if r == "assistant" else r, "parts": p} for r, p in rounds]


def _read_gemini(part: dict) -> tuple:
    match part:
        case {"functionCall": call}:
            return "call", call.get("id"), call["name"], call.get("args") or {}
        case {"functionResponse": {"response": response}}:
            value = response.get("output", response.get("error", response))
            text = value if isinstance(value, str) else json_text(value)
            return "result", None, text, "error" in response
        case {"text": text} if not part.get("thought"):
            return "text", text
    return ("other",)


def from_gemini_contents(system: str, contents: list[dict]) -> list[dict]:
    """The OpenAI message list of a generateContent request; responses answer calls by position."""
    rounds = [(content.get("role", "user"), content["parts"]) for content in contents]
    return _history(system, rounds, GEMINI_PARTS, _read_gemini, _gemini_parts)


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 10  文本协议 Text formats      uses §1, §3, §9 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A model without native calls writes them into its text, each family in its own way. One row of
# TEXT_FORMATS is one way; a few readers serve all rows. Reasoning is set aside first: what a model
# only considered is never run. A marker of a family is trusted, in the middle of a sentence only
# with a tool on offer; bare JSON or Python runs only as the whole answer, with names and arguments
# that fit the tools. Code fences and `quoted` markers show a call, they do not make one. What
# cannot be read stays text; nothing here raises, or takes more than linear time. Patterns are text
# until first used: all at import would take 10 ms. Sources: the families' templates and docs.

MOST_MISSES = 16  # long looks that led nowhere; a text with more of them is not trying to call
MENDED_CHARACTERS = 20_000  # of JSON or Python that is only nearly right

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_ID_KEYS = ("id", "tool_call_id", "call_id")
_CALL_KEYS = frozenset((*_NAME_KEYS, *_ARGUMENT_KEYS, *_ID_KEYS, "type", "index"))
_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")  # OpenAI, Anthropic, MCP


class _Reading:
    """What the readers of one reply share: the tools, and how often a long look led nowhere."""

    def __init__(self, tools: Iterable[dict] | None, *, cut: bool = False):
        plain = [tool.get("function") or tool for tool in tools or ()]
        self.schemas = {
            tool["name"]: next(filter(None, map(tool.get, _SCHEMA_KEYS)), {})
            for tool in plain if "name" in tool
        }
        self.any_tool, self.cut, self.misses = tools is None, cut, 0
        self.bare = False  # in an answer without markers only exact calls count
        self.begin = 0  # of the text that is not sorted yet
        self.closer = ""  # of the block that is being read

    def miss(self) -> None:
        """A long look has led nowhere."""
        self.misses += 1

    def parameters(self, name: str) -> dict[str, SchemaRules]:
        """The parameters of a tool, also behind `$ref` and unions; {} when it is not known."""
        return _properties(compile_schema(self.schemas.get(name, {})).bodies({}))

    def fits(self, call: ToolCall) -> bool:
        """True when the call names a tool on offer and uses only parameters it has."""
        known = call.name in self.schemas and isinstance(call.arguments, dict)
        return known and call.arguments.keys() <= self.parameters(call.name).keys()

    def line_before(self, text: str, pos: int) -> str:
        """What stands before `pos` in its line, within 200 characters, without separators."""
        return text[max(self.begin, pos - 200):pos].rpartition("\n")[2].strip(" \t\r;,")


_Block = tuple[int, list[ToolCall]]  # what a reader found: where it ends, and the calls in it


def _match(pattern: str, text: str, pos: int = 0) -> re.Match | None:
    return re.compile(pattern).match(text, pos)  # re keeps what it has compiled


def _search(pattern: str, text: str, pos: int = 0) -> re.Match | None:
    return re.compile(pattern).search(text, pos)


def _skip(text: str, pos: int = 0) -> int:
    """The position behind blanks and separators."""
    return _match(r"[\s;,]*", text, pos).end()


# What templates write after an answer, and servers may leave there: <|im_end|>, </s>
_END_TOKEN = r"<[|｜][\w▁]{1,30}[|｜]>|</s>|<end_of_turn>|<start_function_response>|\[e~\["


def _without_end(text: str) -> str:
    """The text without the tokens that a template puts after it, and without blanks there."""
    head, tail = text[:-200], text[-200:]  # to look at all could take quadratic time
    return (head + re.sub(rf"(?:\s*(?:{_END_TOKEN}))+\s*\Z", "", tail)).rstrip()


def _body(text: str, pos: int, closer: str) -> str:
    """The text from `pos` to the closer, or where there is none to the end of the answer."""
    end = text.find(closer, pos) if closer else -1
    return text[pos:end] if end >= 0 else _without_end(text[pos:])


# --- one call, however it is spelled ---


def clean_name(name: str) -> str:
    """The tool's name without what templates leak into it.

    >>> clean_name(" functions.search_notes<|channel|>commentary")
    'search_notes'
    """
    name = name.split("<|")[0].strip(" \t\r\n\"'`")
    return name.removeprefix("functions.").removeprefix("default_api.")  # Gemma's name for them


def _if_readable(read: Callable, text: object) -> Any:
    """What `read` makes of the text, or the text when it is nothing of that kind."""
    try:
        return read(text)
    except ValueError:
        return text


_parsed = functools.partial(_if_readable, parse_arguments)  # an object
_loose = functools.partial(_if_readable, _load_json)  # any JSON value


def _new_call(reading: _Reading, name: str, arguments: object, *, id: object = "") -> ToolCall:
    """A call with its arguments as a dict, or as the model's own text where that is no object."""
    arguments = _parsed(arguments)
    match arguments:  # DeepSeek V3.2 may wrap them once more: {"input": "{…}"}
        case {"arguments": inner, **rest} | {"input": inner, **rest} if not rest:
            inner, outer = (ToolCall("", name, each) for each in (_parsed(inner), arguments))
            if reading.fits(inner) and not reading.fits(outer):  # a tool may have an `input`
                arguments = inner.arguments
        case dict() | str():
            pass
        case _:
            arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id if isinstance(id, str) else "", name, arguments)


def _calls_from(value: object, reading: _Reading) -> list[ToolCall]:
    """The calls that a JSON object or list spells under the known keys; [] unless all is calls."""
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            return []
        entry = entry | inner if isinstance(inner := entry.get("function"), dict) else entry
        keys = entry.keys()
        name, arguments, id = (
            next((entry[key] for key in known if key in keys), None)
            for known in (_NAME_KEYS, _ARGUMENT_KEYS, _ID_KEYS)
        )
        name = clean_name(name) if isinstance(name, str) else ""
        if not name or (reading.bare and not (keys <= _CALL_KEYS and keys & _ARGUMENT_KEYS)):
            return []
        if name != "directly-answer":  # Command R's word for none
            calls.append(_new_call(reading, name, arguments, id=id))
    return calls


# --- readers: JSON, alone or with something around it ---

_BRACKETS = r'(?s)"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|([\]}])'


def _closing(text: str, pos: int) -> int:
    """The end of the bracket that opens at `pos`, or -1; brackets inside strings do not count."""
    depth = 0
    for token in re.compile(_BRACKETS).finditer(text, pos, pos + MENDED_CHARACTERS):
        depth += -1 if token[1] else token[0] in "[{"
        if not depth:
            return token.end()
    return -1


def _json_at(text: str, pos: int, reading: _Reading) -> tuple[object, int] | None:
    """The JSON object or list at `pos` and its end; §3 mends what is nearly JSON."""
    if not text.startswith(("{", "["), pos):
        return None
    doubled = text.startswith("{{", pos)  # Qwen2.5-Coder copies it from its own template
    start, more = pos + doubled, lambda end: doubled and text.startswith("}", end)
    with contextlib.suppress(ValueError, RecursionError):
        end = _DECODER.raw_decode(text, start)[1]
        value = _load_json(text[start:end])  # refuses endless nesting and half characters, too
        return value, end + more(end)
    end = _closing(text, start) if reading.misses <= MOST_MISSES else -1
    with contextlib.suppress(ArgumentsError):
        if end > 0:
            value = parse_arguments('{"value":' + text[start:end] + "}")["value"]
            return value, end + more(end)
    return reading.miss()


def _json_reader(head: str = "", tail: str = "") -> Callable:
    """A reader of head + JSON + tail, both regular expressions.

    The JSON is a call or a list of calls; with a group `name` in the head it is the arguments, and
    a group `id` is the call's id. Arguments may be missing where a tail follows.
    """
    def read(text: str, pos: int, reading: _Reading) -> _Block | None:
        if not (start := _match(head, text, pos)):
            return None
        value, end = _json_at(text, start.end(), reading) or (None, start.end())
        named, stop = start.groupdict(), _match(tail, text, end)
        if not stop:
            return None
        if not named:
            return stop.end(), _calls_from(value, reading)
        whole = isinstance(value, dict) or (value is None and stop[0].strip())
        name = clean_name(start["name"])
        return stop.end(), [_new_call(reading, name, value, id=named.get("id"))] if whole else []

    return read


_read_calls = _json_reader(  # behind a marker; a fence may stand around the JSON
    r"(?:```(?:json)?\s*(?=[\[{]))?", r"(?:\s*```)?",
)
_read_named = _json_reader(r"(?P<name>[\w.-]{1,200})[ \t]*\r?\n\s*")
_kimi_json = _json_reader(
    r"<\|tool_call_begin\|>\s*(?P<id>(?P<name>\d+(?![^\s<])|[^\s<:]{1,200}(?=:\d))(?::\d+)?)\s*"
    r"<\|tool_call_argument_begin\|>\s*",
    r"\s*(?:<\|tool_call_end\|>)?",
)


def _read_kimi(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Kimi's call: the id names the tool, or only counts and the arguments tell which it is."""
    end, calls = _kimi_json(text, pos, reading) or (0, [])
    if calls and calls[0].name.isdigit():
        fitting = [calls[0]._replace(name=tool) for tool in reading.schemas if calls[0].arguments]
        calls = list(filter(reading.fits, fitting))
    return end, calls if len(calls) == 1 else []


# --- readers: tagged parameters, each value as raw text ---


def _typed(tool: str, key: str, reading: _Reading, untyped: Callable, raw: str) -> object:
    """The value that tagged text spells by the tool's schema, or the text when it fits no type."""
    rules, word = reading.parameters(tool).get(key), raw.strip()
    if rules is None or rules.takes >= set(_ANY):
        return untyped(raw)
    names = rules.takes
    if "null" in names and word in ("null", "Null", "NULL", "None"):  # "none" may be a word
        return None
    if "boolean" in names and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if names <= {"string", "null"}:
        return raw
    found = _json_at(word, 0, reading) if names & {"object", "array"} else None
    value = found[0] if found and found[1] == len(word) else _lossless(word, names - {"string"})
    return raw if value is word else value


def _tag_reader(
    call: str, key: str, value_end: str, call_end: str, untyped: Callable = str,
) -> Callable:
    """A reader of <call><key>value<key>value</call>; `untyped` reads where no type is known.

    Group 1 of `call` and `key` is a name, group 2 of `key` DSML's word for "it is a string".
    """
    def read(text: str, pos: int, reading: _Reading) -> _Block | None:
        if not (start := _match(call, text, pos)):
            return None
        name, end, arguments = clean_name(start[1]), start.end(), {}
        while opened := _match(key, text, end):
            if not (stop := _search(value_end, text, opened.end())):
                break
            raw = re.sub(r"\A\r?\n|\r?\n\Z", "", text[opened.end():stop.start()])
            by_type = functools.partial(_typed, name, opened[1], reading, untyped)
            read_as = {"true": str, "false": _loose}.get(opened[2], by_type)
            arguments[opened[1]], end = read_as(raw), stop.end()
        if stop := _match(call_end, text, end):
            return stop.end(), [_new_call(reading, name, arguments)] if name else []
        return reading.miss()

    return read


_read_xml = _tag_reader(
    r"""\s*<(?:｜DSML｜)?(?:function=|(?:function|invoke) name=)["']?([^"'<>\n]{1,200})["']?>""",
    r"""\s*<(?:｜DSML｜)?parameter(?:=| name=)["']?([^"'<>\n]{1,200})["']?"""
    r"""(?: string="(true|false)")?>""",
    r"</(?:｜DSML｜)?parameter>"  # often missing
    r"|(?=<(?:｜DSML｜)?parameter\b|</(?:｜DSML｜)?(?:function|invoke)>\s*(?:<(?!/parameter)|\Z))"
    r"|(?=</tool_call>\s*\Z)",
    r"\s*</(?:｜DSML｜)?(?:function|invoke)>|\s*(?=</tool_call>)",
)
_read_glm = _tag_reader(
    r"\s*([\w.-]{1,200})\s*(?=<arg_key>|</tool_call>)",
    r"\s*<arg_key>([^<]{1,200})</arg_key>\s*()<arg_value>",
    r"</arg_value>",
    r"\s*</tool_call>",
    _loose,
)


# --- readers: Python-like calls, read as syntax and never evaluated ---

_WORDS = {"true": True, "false": False, "null": None, "none": None}


class _Literal(ast.NodeTransformer):
    """JSON's words become Python's; sets and tuples become lists, which keep their order."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node

    def visit_Set(self, node: ast.Set | ast.Tuple) -> ast.expr:
        return ast.List([self.visit(item) for item in node.elts], ast.Load())

    visit_Tuple = visit_Set


def _python_call(node: ast.expr, reading: _Reading) -> ToolCall | None:
    """The call that an expression writes; positional arguments get their names in schema order."""
    match node:
        case ast.Call(func=ast.Name(id="print"), args=[ast.Call() as inner], keywords=[]):
            return _python_call(inner, reading)  # Gemma prints what it calls
        case ast.Call(func=ast.Name() | ast.Attribute()):
            name = clean_name(ast.unparse(node.func)).removesuffix(".call")  # Llama 3.1's built-ins
        case _:
            return None
    keys = [*list(reading.parameters(name))[:len(node.args)], *(k.arg for k in node.keywords)]
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    if len(set(keys)) < len(values) or None in keys:
        return None
    with contextlib.suppress(ValueError, TypeError, RecursionError):  # no literal, or no JSON
        found = [ast.literal_eval(_Literal().visit(value)) for value in values]
        return ToolCall("", name, json.loads(json.dumps(dict(zip(keys, found)), allow_nan=False)))


# A string ends at a quote that something may follow: 'it's' is one string.
_QUOTED = r"{0}([^{0}\\]*(?:(?:\\.|{0}(?!\s*[,)\]}}:]))[^{0}\\]*)*){0}"
_SLOPPY = "(?s)" + _QUOTED.format("'") + "|" + _QUOTED.format('"') + r"|(?<![\w.])0+(?=\d)"


def _spelled_well(token: re.Match) -> str:
    """A string with its quotes and line breaks escaped; 007 without its zeros."""
    if token.lastindex is None:
        return ""
    pieces = re.split(r"(\\.)", token[token.lastindex], flags=re.S)  # escapes stay as they are
    return "'" + "".join(p if i % 2 else repr('"' + p)[2:-1] for i, p in enumerate(pieces)) + "'"


def _python_nodes(source: str) -> list[ast.expr]:
    """The expressions in `source` and in its lists. Raises what Python does for no Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python comments on odd escapes, on the console
        found = [getattr(statement, "value", None) for statement in ast.parse(source).body]
    lists = (v.elts if isinstance(v, (ast.List, ast.Tuple)) else [v] for v in found)
    return list(itertools.chain.from_iterable(lists))


def _read_python(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Calls, or lists of calls, up to the closer; without markers only a list."""
    if reading.bare and not text.startswith("[", pos):
        return None
    source, nodes = _body(text, pos, reading.closer), []
    mended = functools.partial(re.sub, _SLOPPY, _spelled_well)
    for spelled in (str.strip, mended) if len(source) <= MENDED_CHARACTERS else (str.strip,):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            nodes = nodes or _python_nodes(spelled(source))
    calls = [call for node in nodes if (call := _python_call(node, reading))]
    if calls and all(isinstance(node, ast.Call) for node in nodes):
        return pos + len(source), calls
    return reading.miss()


# --- readers of one family each ---

_GEMMA_TOKEN = (
    r'(?s)(<escape>|<\|"\|>)(?P<text>.*?)\1|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
    r"|(?<![\w.$-])(?P<key>[\w.$-]+)(?=\s*:)"
)


def _gemma_token(token: re.Match) -> str:
    word = token["text"] if token[1] else token["key"]
    return token[0] if word is None else json.dumps(word)


def _read_gemma(text: str, pos: int, reading: _Reading) -> _Block | None:
    """One call:name{key:<escape>text<escape>,other:5}: JSON with quotes of its own."""
    if not (start := _match(r"\s*call:\s*([\w.-]{1,200})\s*(?=\{)", text, pos)):
        return None
    source = _body(text, start.end(), reading.closer)
    body = re.sub(_GEMMA_TOKEN, _gemma_token, source).strip()
    value, end = _json_at(body, 0, reading) or (None, 0)
    if end < len(body):
        return reading.miss()
    return start.end() + len(source), [_new_call(reading, clean_name(start[1]), value)]


_HARMONY_CALL = (
    r"(?:<\|start\|>)?(?:assistant)?\s*(?:to=([^\s<]{1,200})\s*)?<\|channel\|>\s*\w{1,20}"
    r"(?:\s+to=([^\s<]{1,200}))?[^<]{0,100}(?:<\|constrain\|>[^<]{0,100})?<\|message\|>"
)
_HARMONY_END = r"<\|(?:call|end|return)\|>|(?=<\|start\|>)|\Z"


def _read_harmony(text: str, pos: int, reading: _Reading) -> _Block | None:
    """A message of gpt-oss with a recipient; arguments that are no JSON are kept as they are."""
    start = _match(_HARMONY_CALL, text, pos)
    name = clean_name(start[1] or start[2] or "") if start else ""
    if not name:
        return None
    stop = _search(_HARMONY_END, text, start.end())
    body = text[start.end():stop.start()].strip()
    call = _new_call(reading, name, body)
    if stop[0] or (body and isinstance(call.arguments, dict)):
        return stop.end(), [call]
    return reading.miss()  # cut off


_REACT_CALL = (
    r"\**Action\**[:：]\**[ \t]*[`\"']?(?P<name>[\w.-]{1,200})"
    r"(?:\[(?P<inside>[^\n]*)\][`\"']?[ \t]*(?=\r?\n|\Z)"  # the paper's own way: name[text]
    r"|[`\"']?[ \t]*\r?\n\s*\**Action Input\**[:：]\**\s*(?:```(?:json)?\s*(?=\{))?)"
)
_REACT_END = r"\n[ \t]*\**(?:Observation|Thought|Action|Final Answer)\**[:：]|\Z"
_INVENTED = r"\s*(?:```\s*)?(\**Observation\**[:：])?"


def _read_react(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Action and Action Input, or Action: name[text]; a bare text is the one required parameter.

    What follows `Observation:` is the model's invention and belongs to the block.
    """
    start = _match(_REACT_CALL, text, pos)
    if not start or reading.line_before(text, pos):
        return None
    name, body, end = clean_name(start["name"]), start["inside"], start.end()
    inside = body is not None
    if inside and name not in reading.schemas:
        return None
    if not inside:
        stop = _search(_REACT_END, text, end - 1).start()
        body, end = _json_at(text, end, reading) or (text[end:stop].strip(), stop)
    call = _new_call(reading, name, body)
    own = compile_schema(reading.schemas.get(name, {})).own
    keys = list(own.get("required") or own.get("properties", ()))
    if keys and body == "":
        return None
    if isinstance(call.arguments, str) and isinstance(body, str):
        cut = reading.cut and not inside and end == len(text)
        if cut or len(keys) > 1 or body.startswith(("{", "[", "`")):
            return None
        if name in reading.schemas:
            raw = body[1:-1] if re.fullmatch(r'"[^"\\]*"', body) else body
            call = call._replace(arguments={k: _typed(name, k, reading, str, raw) for k in keys})
    after = _match(_INVENTED, text, end)
    return len(text) if after[1] else after.end(), [call]


# --- the table: a row per way of writing ---


class TextFormat:
    """Markers and reader of one family; several markers of a kind are separated by blanks.

    opens stand before one or more calls, closes may follow, begins are part of a call; a row
    without opens and begins is bare. known: the marker is also an ordinary word, and believed only
    for tools on offer.
    """

    def __init__(self, read: Callable, opens="", closes="", begins="", known=False):
        self.read, self.known = read, known
        self.opens, self.begins = opens.split(), begins.split()
        self.closes = closes.split(" ") if closes else []  # a line break may be one


TEXT_FORMATS = {
    # JSON behind a marker: Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 3.1 and 4, xLAM;
    # Jamba and MiniMax M1; Granite 20B; Mistral up to Large 2407; Llama 3; Command R7B and A; LFM2
    "json_marked": TextFormat(
        _read_calls,
        "<tool_call> <tool_calls> <function_call> [TOOL_CALLS] <|python_tag|> <|START_ACTION|>"
        " <|tool_call_start|>",
        "</tool_call> </tool_calls> </function_call> <|END_ACTION|> <|tool_call_end|>",
    ),
    # Granite 3.0, 3.2, 3.3 (always a list); InternLM; Phi-4-mini, Firefunction v2
    "granite3": TextFormat(_json_reader(r"(?=\[)"), "<|tool_call|>", "<|/tool_call|>"),
    "internlm": TextFormat(_read_calls, "<|action_start|> <|plugin|>", "<|action_end|>", "", True),
    "phi4": TextFormat(_json_reader(r"functools\s*(?=\[)"), begins="functools["),
    # Mistral from tokenizer v11 on, with or without an id
    "mistral_v11": TextFormat(
        _json_reader(
            r"(?P<name>[\w.-]{1,200})\s*(?:\[CALL_ID\]\s*(?P<id>\w{1,64})\s*)?(?:\[ARGS\])?\s*",
        ),
        "[TOOL_CALLS]",
    ),
    # DeepSeek V3-0324, R1-0528 (with the word function and a fence), V3.1 (without)
    "deepseek": TextFormat(
        _json_reader(
            r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]{1,200})\s*"
            r"(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?\s*)?",
            r"\s*(?:```\s*)?<｜tool▁call▁end｜>",
        ),
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    ),
    "kimi_k2": TextFormat(
        _read_kimi, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
    ),
    # Functionary 3.1, Llama 3 behind Groq (which loses a `>`); Functionary 3.2, GLM-4-9B
    "functionary": TextFormat(
        _json_reader(r"<function=(?P<name>[^<>{\s]{1,200})>?\s*", r"\s*>?\s*</function>"),
        begins="<function=", known=True,
    ),
    "named": TextFormat(_read_named, ">>> <|assistant|>", known=True),
    # Tags: Qwen3-Coder, Qwen3.5, Nemotron 3; MiniMax M2; DeepSeek V3.2. The outer tag is often
    # missing behind Ollama. GLM-4.5, 4.6, 4.7
    "tags": TextFormat(
        _read_xml, "<tool_call> <minimax:tool_call> <｜DSML｜function_calls> <｜DSML｜tool_calls>",
        "</tool_call> </minimax:tool_call> </｜DSML｜function_calls> </｜DSML｜tool_calls>",
        "<｜DSML｜invoke",
    ),
    "tags_bare": TextFormat(
        _read_xml, "<function_calls>", "</function_calls> </tool_call> </minimax:tool_call>",
        "<function= <invoke", known=True,
    ),
    "glm4_5": TextFormat(_read_glm, "<tool_call>"),
    # Python: Llama 3 with name.call(…), Llama 4, LFM2, Olmo 3 (one call per line), Gemma 3
    "llama3_built_in": TextFormat(_read_python, "<|python_tag|>", "\n", known=True),
    "llama4": TextFormat(_read_python, "<|python_start|>", "<|python_end|>"),
    "lfm2": TextFormat(_read_python, "<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": TextFormat(_read_python, "<function_calls>", "</function_calls>"),
    "gemma3": TextFormat(_read_python, "```tool_code", "```", known=True),
    # With a language of their own
    "functiongemma": TextFormat(_read_gemma, "<start_function_call>", "<end_function_call>"),
    "gemma4": TextFormat(_read_gemma, "<|tool_call>", "<tool_call|>"),
    "gpt_oss": TextFormat(_read_harmony, begins="<|start|>assistant <|channel|> to=functions."),
    "command_r": TextFormat(  # R and R+ of 2024
        _json_reader(r"Action:\s*```(?:json)?\s*(?=\[)", r"\s*```"), begins="Action:", known=True,
    ),
    "react": TextFormat(
        _read_react, begins="Action: Action： **Action: **Action： **Action**:", known=True,
    ),
    # Without a marker: Llama 3, xLAM and any small model; Llama 3.2 1B and 3B, ToolACE; GLM-4-9B
    "json": TextFormat(_json_reader(), closes="]"),
    "pythonic": TextFormat(_read_python),
    "glm4": TextFormat(_read_named),
}


# --- taking a reply apart ---

_ROWS = {"functools [": [TEXT_FORMATS["phi4"]]}  # marker → rows; the table cannot spell a blank
for _row in TEXT_FORMATS.values():
    for _marker in (*_row.opens, *_row.begins):
        _ROWS.setdefault(_marker, []).append(_row)
# What may be left over from a call or a result: all closers that are no ordinary words
_CLOSERS = {"</tool_response>", "</function>", "</invoke>", "</｜DSML｜invoke>"}.union(
    word for row in TEXT_FORMATS.values() for word in row.closes if word.startswith("<")
)

_NEXT = r"<\|(?:end|return)\|>|(?=<\|start\|>)"
# What a reply may open with: the marker → (where that part ends, what it holds)
_FRAMES = {
    "<think>": (r"</think>", "reasoning"),
    "[THINK]": (r"\[/THINK\]", "reasoning"),
    "<|START_THINKING|>": (r"<\|END_THINKING\|>", "reasoning"),
    "<|channel>thought": (r"<channel\|>", "reasoning"),  # Gemma 4
    "<|channel|>analysis<|message|>": (_NEXT, "reasoning"),
    "<|channel|>commentary<|message|>": (_NEXT, "text"),
    "<|channel|>final<|message|>": (_NEXT, "text"),
    "<|START_RESPONSE|>": (r"<\|END_RESPONSE\|>", "text"),
    ">>>all\n": (r"(?=>>>)", "text"),  # Functionary 3.2
}
_BEFORE_FRAME = r"(?:\s|<\|start\|>assistant(?=<\|channel\|>(?:analysis|commentary|final)<))*"
_LONE = ("</think>", "[/THINK]")  # without an opener: the template has already written it
_CITATION = r"</?co(?:: ?[\d:,\[\] ]{1,200})?>"  # Cohere: <co>5</co: 0:[0]>
_SHOWN = ("~~~", "`")  # around code: what stands between two runs of these is only shown
_QUOTING = r"""(?m)[`"“「『'‘(（]\Z|^[ \t]*[>*+•-][ \t]*\Z"""  # and what a line quotes or lists


@functools.cache
def _any_of(*words: str) -> re.Pattern:
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))


def _is_quoted(text: str, pos: int) -> bool:
    """True when what stands right before `pos` says that what follows is only shown."""
    return bool(_search(_QUOTING, text[max(0, pos - 9):pos]))


def _read_block(row: TextFormat, text: str, pos: int, reading: _Reading) -> _Block | None:
    """All calls of one block that starts at `pos`, with the markers around them."""
    end, calls, reading.closer = pos, [], "".join(row.closes[:1])
    for opener in row.opens:
        if text.startswith(opener, end):
            end = _skip(text, end + len(opener))
    while (block := row.read(text, _skip(text, end), reading)) and block[1]:
        end = block[0]
        calls += block[1]
    after = _skip(text, end)
    end = next((after + len(word) for word in row.closes if text.startswith(word, after)), end)
    known = reading.any_tool or all(call.name in reading.schemas for call in calls)
    sentence = reading.line_before(text, pos) and _match(r"[ \t;,]*[^\s<\[;,]", text, end)
    if not known and (row.known or sentence):
        return reading.miss()
    return (end, calls) if calls else None


class _Scan:
    """One walk over a reply that sorts it into text, reasoning and calls."""

    def __init__(self, text: str, reading: _Reading, *, keep_calls: bool = False):
        self.text, self.reading, self.keep_calls = text, reading, keep_calls
        self.kept, self.calls = {"text": [], "reasoning": []}, []
        self.opened = False  # a marker of a call stays in the text, and so will its closer

    def enter(self, pos: int) -> int:
        """Take the frames at the start of an answer; returns where its text begins."""
        begin, blank = _any_of(*_FRAMES), functools.partial(_match, _BEFORE_FRAME, self.text)
        while frame := begin.match(self.text, blank(pos).end()):
            closes, holds = _FRAMES[frame[0]]
            stop = _search(closes, self.text, frame.end())
            inside = self.text[frame.end():stop.start() if stop else None].strip()
            pos = stop.end() if stop else len(self.text)
            self.kept[holds].append(re.sub(_CITATION, "", inside))
        self.reading.begin = pos
        return pos

    def take(self, begin: int, end: int) -> int:
        """Leave out this part, and the blanks around it; returns where the next begins."""
        piece = self.text[self.reading.begin:begin].rstrip()
        self.kept["text"].append(piece.lstrip() if self.reading.begin else piece)
        return self.enter(end)

    def marker(self, marker: str, at: int) -> int:
        """Act on a marker; returns where to look on."""
        after = at + len(marker)
        if marker in _SHOWN:
            fence = _match(f"{marker[0]}+", self.text, at)[0]  # ```` may hold ```
            after = at + len(fence)
            end = self.text.find(fence, after)
            whole = end > 0 and (len(fence) > 2 or "\n" not in self.text[after:end])
            return end + len(fence) if whole else after
        quoted, line = _is_quoted(self.text, at), self.reading.line_before(self.text, at)
        if marker in _LONE:
            if self.kept["reasoning"] or quoted or marker.replace("/", "") in line:
                return after
            self.kept, self.calls = {"text": [], "reasoning": [self.text[:at].strip()]}, []
            return self.enter(after)
        if marker in _CLOSERS:
            after = _match(rf"(?:\s*(?:{_any_of(*_CLOSERS).pattern}))+", self.text, at).end()
            edge = not line or _match(r"[ \t]*(?:\r?\n|\Z)", self.text, after)
            if quoted or not edge:
                return after
            opener = marker.replace("/", "").rstrip(">")
            self.opened = self.opened or self.text.find(opener, self.reading.begin, at) >= 0
            return after if self.opened else self.take(at, after)
        for row in _ROWS[marker]:
            if block := _read_block(row, self.text, at, self.reading):
                if quoted or self.keep_calls:  # all of it: a marker inside may open a call, too
                    return block[0]
                self.calls += block[1]
                return self.take(at, block[0])
        self.opened = True
        return after

    def parse(self) -> Turn:
        """Walk to the end; the calls have no ids of ours yet."""
        look, words = self.enter(0), _any_of(*_ROWS, *_CLOSERS, *_LONE, *_SHOWN)
        while (found := words.search(self.text, look)) and self.reading.misses <= MOST_MISSES:
            look = self.marker(found[0], found.start())
        rest = self.text[self.reading.begin:]
        rest = _without_end(rest) if self.calls else rest
        self.kept["text"].append(rest.lstrip() if self.reading.begin else rest)
        text, thought = ("\n".join(filter(None, part)) for part in self.kept.values())
        return Turn(text, tuple(self.calls), reasoning=thought)


def _take_apart(text: str, tools: Iterable[dict] | None, *, cut: bool = False) -> Turn:
    """The reply as text, calls and reasoning; the calls have no ids of ours yet."""
    reading = _Reading(tools, cut=cut)
    parts = _Scan(text, reading).parse()
    said = _without_end(parts.text).lstrip()
    if parts.calls or not said:
        return parts
    fenced = _match(r"(?s)```(?:[\w-]*\s)?((?:(?!```).)*)```\Z", said)
    answer = fenced[1].strip() if fenced else said
    if fenced:
        inner = _Scan(answer, reading).parse()
        if inner.calls and not inner.text:
            return inner._replace(reasoning=parts.reasoning)
    reading.bare = True
    for row in TEXT_FORMATS.values():
        block = None if row.opens or row.begins else _read_block(row, answer, 0, reading)
        if block and block[0] == len(answer) and all(map(reading.fits, block[1])):
            return Turn("", tuple(block[1]), reasoning=parts.reasoning)
    return parts


def with_ids(calls: Iterable[ToolCall], used_ids: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """The calls with ids that are there, differ, and are not in `used_ids`.

    >>> [call.id for call in with_ids([ToolCall("", "f", {}), ToolCall("x", "f", {})], ["x"])]
    ['call00001', 'call00002']
    """
    used, result = set(used_ids), []
    fresh = map(_numbered, itertools.count(1))
    for call in calls:
        if not (call.id or "").strip() or call.id in used:
            call = call._replace(id=next(word for word in fresh if word not in used))
        used.add(call.id)
        result.append(call)
    return tuple(result)


def parse_text_tool_calls(
    text: str, tools: Iterable[dict] | None = None, *, used_ids: Iterable[str] = (), cut=False,
) -> Turn:
    """The calls a model wrote into its text, in order, and the text that is left.

    `tools` are the definitions the model was shown ({"name", "description", "parameters"}); None
    means they are not known, and then only marked calls count. `cut`: a limit ended the text, so
    that its last word may be half of one. Text without a call comes back as it was; beside calls it
    comes without reasoning and markers.

    >>> parse_text_tool_calls('好。<tool_call>{"name": "now", "arguments": {}}</tool_call>')[:2]
    ('好。', (ToolCall(id='call00001', name='now', arguments={}, extra=None),))
    """
    parts = _take_apart(text, tools, cut=cut)
    return parts._replace(calls=with_ids(parts.calls, used_ids)) if parts.calls else Turn(text)


def split_reasoning(text: str) -> tuple[str, str]:
    """(answer, reasoning) of a reply whose reasoning stands in its text; calls stay in the answer.

    >>> split_reasoning("2+3 是 5</think>答案是 5")
    ('答案是 5', '2+3 是 5')
    """
    parts = _Scan(text, _Reading(None), keep_calls=True).parse()
    return parts.text, parts.reasoning


# --- the same while it streams ---

_BARE = (
    r"\{\s*(?:\Z|[\"'{])|\[\s*(?:\Z|\{|[\w.]+\s*(?:\Z|\())"
    r"|[\w.-]+[ \t]*(?:\Z|\r?\n\s*(?:\Z|\{))"
)
_PERHAPS_BARE = rf"{_BARE}|`{{1,2}}\Z|```[\w-]*\s*(?:\Z|[<>]|{_BARE})"
_UNDECIDED = 256  # characters; what may still be bare JSON by then is held to the end


@functools.cache
def _beginnings() -> tuple[int, frozenset[str]]:
    """(length of the longest, all) proper beginnings of what ends text or reasoning."""
    ends = (*_ROWS, *_CLOSERS, *_LONE, "<|END_THINKING|>", "<channel|>", "<|end|>", "<|start|>")
    return max(map(len, ends)), frozenset(w[:n] for w in ends for n in range(1, len(w)))


class TextStream:
    """Takes a reply in pieces and tells what may be shown: all that stands before a possible call.

    `feed` and `close` return (kind, piece) pairs, kind "text" or "reasoning"; ("again", "") says
    that the text so far was reasoning, as a lone </think> has shown. After `close`,
    `parts` is what the whole reply holds, however it was cut into pieces.
    """

    def __init__(self, tools: Iterable[dict] | None = None):
        self.parts, self._tools = Turn(), tools
        self._whole, self._shown, self._new = [], [], []  # pieces; shown of the text; not looked at
        self._pending = ""  # blanks, which go when a call follows, and what may become a marker
        self._kind = "start"  # then "reasoning" or "text"; "held": all to the end
        self._closes = re.compile("")  # what ends the reasoning or the text
        self._thought = False

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """Take a piece; returns what may be shown now."""
        self._whole.append(piece)
        self._new.append(piece)
        if piece.isspace() or self._kind == "held":
            return []
        self._pending += "".join(self._new)
        self._new.clear()
        return list(self._walk())

    def close(self) -> list[tuple[str, str]]:
        """Returns what is left to show at the end of the reply."""
        self.parts = _take_apart("".join(self._whole), self._tools)
        shown = "".join(self._shown)
        again = [] if self.parts.text.startswith(shown) else [("again", "")]
        left = self.parts.text[0 if again else len(shown):]
        thought = self._pending.rstrip() if self._kind == "reasoning" else ""
        return again + [pair for pair in (("reasoning", thought), ("text", left)) if pair[1]]

    def _enter(self) -> bool:
        """An answer begins: with a frame, with what may be a bare call, or as text?"""
        head = self._pending.lstrip()
        if frame := _any_of(*_FRAMES).match(head):
            closes, holds = _FRAMES[frame[0]]
            self._kind, self._closes = "held" if holds == "text" else holds, re.compile(closes)
            self._pending, self._thought = head[frame.end():], True
            return self._kind != "held"
        half_a_frame = any(word.startswith(head) for word in _FRAMES)
        if not head or half_a_frame or _match(_PERHAPS_BARE, head):
            self._kind = "start" if len(head) < _UNDECIDED else "held"
            return False
        self._kind, lone = "text", () if self._thought else _LONE
        self._closes = _any_of(*_ROWS, *_CLOSERS, *lone)
        self._pending = head if self._thought else self._pending
        return True

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Hand over text and reasoning up to what may end them."""
        while self._kind != "held" and (self._kind != "start" or self._enter()):
            pending, end = self._pending, len(self._pending)
            if not (found := self._closes.search(pending)):
                longest, begun = _beginnings()
                tails = (at for at in range(max(0, end - longest), end) if pending[at:] in begun)
                yield from self._handed(next(tails, end))
                return
            lone = self._kind == "text" and self._is_reasoning(found)
            if lone:
                self._shown.clear()
                yield "again", ""
            else:
                yield from self._handed(found.start())
            if self._kind == "text" and not lone:
                self._kind = "held"
            else:
                self._kind, self._pending, self._thought = "start", pending[found.end():], True

    def _is_reasoning(self, found: re.Match) -> bool:
        """True when a lone </think> says what the text before it was; not if that may show it."""
        said = "".join(self._shown) + self._pending[:found.start()]
        shown = any(word in said for word in (*_SHOWN, found[0].replace("/", "")))
        return found[0] in _LONE and not shown and not _is_quoted(said, len(said))

    def _handed(self, length: int) -> list[tuple[str, str]]:
        """That much of what is pending, without the blanks at its end: they wait."""
        body = self._pending[:length].rstrip()
        self._pending = self._pending[len(body):]
        if body and self._kind == "text":
            self._shown.append(body)
        return [(self._kind, body)] if body else []


# --- writing the protocol: for servers that take no tools ---

_PROMPTS = {
    "hermes": """# Tools

You can call the functions listed between <tools> and </tools>, one JSON definition per line:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between these tags:
<tool_call>
{{"name": "function_name", "arguments": {{"parameter": "value"}}}}
</tool_call>

Write one such block per call and nothing after the last one. The results come back between
<tool_response> and </tool_response>. Never write a result yourself. If you need no function,
just answer.""",
    "react": """You can use these tools, one JSON definition per line:
{tools}

To use a tool, write exactly these lines and stop:
Thought: what you need to find out
Action: the name of one tool, out of {names}
Action Input: its arguments as one JSON object

The result comes back after "Observation:". Never write an observation yourself. When you know
enough, write:
Final Answer: the answer for the user""",
}


def text_tools_prompt(tools: Iterable[dict], *, format: str = "hermes") -> str:
    """The part of a system prompt that teaches the protocol "hermes" or "react"; "" without tools.

    English on purpose: small models have seen these formats with English words around them.
    """
    tools = list(tools)
    lines = [json.dumps({"type": "function", "function": t}, ensure_ascii=False) for t in tools]
    names = ", ".join(tool["name"] for tool in tools)
    return _PROMPTS[format].format(tools="\n".join(lines), names=names) if tools else ""


def text_tool_result(text: str, *, format: str = "hermes") -> str:
    """A result as it goes back in the text protocol; all results of a turn make one user message.

    A result cannot end its own tags, so that it cannot pass for words of the user.
    """
    if format == "react":
        return f"Observation: {text}"
    text = text.replace("</tool_response", "</ tool_response")
    return f"<tool_response>\n{text}\n</tool_response>"


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 11  流式 Streams      uses §1, §3, §9, §10 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Bytes become events, and deltas one Turn. A whole reply is one large delta, so there is one reader
# for both. Servers disagree on ids, indexes, names, finish reasons and where reasoning stands; what
# is unusual is put right here and nowhere else, and no reply of any shape raises anything but
# BackendError. Its `turn` then holds what had arrived. Pieces are kept in lists and joined once.
# Errors in place of a piece are seen before (`raise_error_object` in §17).
# Sources: WHATWG HTML 9.2.6; OpenAI Chat Completions and Anthropic Messages references.


# --- bytes → events ---


def sse_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each server-sent event; one without its blank line was cut off and is dropped.

    >>> list(sse_events([b": ping\\r", b"\\ndata:{\\ndata: }\\n\\ndata: half"]))
    ['{\\n}']
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)  # CR, LF, CRLF, however cut
    held, data = [], []
    for chunk in itertools.chain(filter(None, chunks), [b""]):
        *lines, rest = decoder.decode(chunk, not chunk).split("\n")
        for line in lines:
            if held:
                line = "".join((*held, line))
                held = []
            field, _, value = line.partition(":")
            if field.removeprefix("\ufeff") == "data":  # a byte order mark begins some streams
                data.append(value.removeprefix(" "))
            elif not line:
                if text := "\n".join(data):
                    yield text
                data = []
        if rest:
            held.append(rest)


# --- what all folds share ---

Pieces = list[tuple[str, str]]  # (kind, piece) to show: kind "text" or "reasoning"


def _as(kind: type, value: object) -> Any:
    """The value if it is of that kind, else an empty one: what servers send has any shape."""
    return value if isinstance(value, kind) else kind()


_dict, _list, _text = (functools.partial(_as, kind) for kind in (dict, list, str))


def _number(mapping: dict, *keys: str) -> int:
    """The first whole number under one of the keys, else 0."""
    found = (mapping[key] for key in keys if type(mapping.get(key)) is int)
    return max(0, next(found, 0))


_FINISH_REASONS = {  # of old APIs, Mistral, Anthropic, Gemini and gateways → the usual words
    "function_call": "tool_calls", "tool_use": "tool_calls", "end_turn": "stop", "STOP": "stop",
    "stop_sequence": "stop", "max_tokens": "length", "model_length": "length",
    "MAX_TOKENS": "length",
}


# --- OpenAI chat completions ---

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # DeepSeek, vLLM, Ollama native
_ENTRY_KEYS = frozenset({"index", "id", "type", "function"})


def _content_pieces(content: object) -> Iterator[tuple[str, str]]:
    """(kind, text) of a `content`: a string, or a list of parts as Mistral sends it."""
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "thinking" | "reasoning" as kind}:
                inner = part.get(kind) or part.get("text")
                for piece in inner if isinstance(inner, list) else [inner]:
                    yield "reasoning", _dict(piece).get("text") or piece
            case {"text": text} | (str() as text):
                yield "text", text


def _objects(text: str) -> list[str]:
    """The JSON objects one after another where a proxy has merged calls, else the text alone."""
    found, pos = [], _skip(text)
    with contextlib.suppress(ValueError, RecursionError):
        while text.startswith("{", pos):
            end = _DECODER.raw_decode(text, pos)[1]
            found.append(text[pos:end])
            pos = _skip(text, end)
    return list(dict.fromkeys(found)) if len(found) > 1 and pos == len(text) else [text]


class _Slot:
    """A call while it arrives."""

    def __init__(self, index: int | None):
        self.index, self.id, self.name = index, "", ""
        self.whole: dict | None = None  # arguments that came as an object
        self.pieces: list[str] = []
        self.extra: dict = {}

    def add(self, call_id: str, name: str, arguments: object) -> None:
        """Take what one delta adds; a name may be repeated, grow, or come in pieces."""
        self.id = self.id or call_id
        if not self.pieces and self.whole is None and name != self.name:  # else it is a repetition
            self.name = name if name.startswith(self.name) else self.name + name
        if isinstance(arguments, dict):
            self.whole = arguments
        elif arguments not in (None, ""):
            self.pieces.append(arguments if isinstance(arguments, str) else show(arguments, 9999))

    def is_followed_by(self, name: str, arguments: object) -> bool:
        """True when these arguments are complete, and what comes begins a call of its own."""
        begins = isinstance(arguments, dict) or _text(arguments).lstrip().startswith("{")
        if not begins and name == self.name:
            return False
        ended = "".join(self.pieces[-1:]).rstrip().endswith("}")
        return self.whole is not None or (ended and isinstance(_parsed("".join(self.pieces)), dict))

    def calls(self) -> list[ToolCall]:
        """The call, or several where a proxy has merged them; none without a name."""
        texts = [self.whole] if self.whole is not None else _objects("".join(self.pieces))
        name, extra = clean_name(self.name), self.extra or None
        return [ToolCall(self.id, name, text, extra) for text in texts if name]


class OpenAIFold:
    """Chat completion chunks, or one whole reply, folded into a Turn.

    `done`: the server has said that the reply is complete; a transport that saw [DONE] sets it, or
    feeds {"done": True}. `turn` may be asked for more than once. The folds of other vendors read
    what comes in these terms, and have their own `_extra`: what has to go back with the calls.
    """

    def __init__(self, used_ids: Iterable[str] = ()):
        self.done, self.finish, self.usage = False, "", None
        self._used_ids, self._said = list(used_ids), {"text": [], "reasoning": []}
        self._slots, self._by_id, self._reasoning_key = [], {}, ""
        self._by_index: dict[int | None, _Slot] = {}  # None: the last one

    def feed(self, chunk: dict) -> Pieces:
        """Take one chunk; returns what came to show."""
        choice = _dict(next(iter(_list(chunk.get("choices"))), chunk))
        if usage := _dict(chunk.get("usage")) or _dict(choice.get("usage")):
            self._count(usage)
        delta = _dict(choice.get("delta"))
        if whole := not delta and isinstance(choice.get("message"), dict):
            delta = choice["message"]
        # Ollama's own format has no choices, and says itself when it is done
        self.done |= chunk.get("done") is True or (whole and "choices" in chunk)
        if reason := _text(choice.get("finish_reason") or choice.get("done_reason")):
            self.finish, self.done = _FINISH_REASONS.get(reason, reason), True
        touched: list[_Slot] = []
        for position, entry in enumerate(map(_dict, _list(delta.get("tool_calls")))):
            self._take(entry, position if whole else entry.get("index"), touched)
        pieces = list(_content_pieces(delta.get("content") or delta.get("refusal")))
        if key := next((key for key in _REASONING_KEYS if _text(delta.get(key))), ""):
            self._reasoning_key = self._reasoning_key or key
            pieces.insert(0, ("reasoning", delta[key]))
        return [pair for kind, piece in pieces for pair in self._add(kind, piece)]

    def _add(self, kind: str, piece: object) -> Pieces:
        """Keep a piece; returns it for the screen."""
        if not _text(piece):
            return []
        self._said[kind].append(piece)
        return [(kind, piece)]

    def _count(self, usage: dict) -> None:
        details = _dict(usage.get("prompt_tokens_details"))
        self.usage = Usage(
            _number(usage, "prompt_tokens", "input_tokens"),
            _number(usage, "completion_tokens", "output_tokens"),
            _number(details, "cached_tokens") or _number(usage, "prompt_cache_hit_tokens"),
        )

    def _take(self, entry: dict, index: object, touched: list[_Slot]) -> None:
        """Add one entry of `tool_calls` to the call it belongs to."""
        function = _dict(entry.get("function"))
        call_id, name = _text(entry.get("id")).strip(), _text(function.get("name"))
        index, arguments = index if type(index) is int else None, function.get("arguments")
        slot = self._found(index, call_id, name)
        if slot and name and (slot in touched or slot.is_followed_by(name, arguments)):
            slot = None
        if slot is None:
            slot = _Slot(index)
            self._slots.append(slot)
        slot.add(call_id, name, arguments)
        slot.extra |= {key: value for key, value in entry.items() if key not in _ENTRY_KEYS}
        touched.append(slot)
        self._by_index[index] = self._by_index[None] = self._by_id[slot.id] = slot

    def _found(self, index: int | None, call_id: str, name: str) -> _Slot | None:
        """The call that an entry seems to continue; servers leave out or repeat ids and indexes."""
        same_id = self._by_id.get(call_id) if call_id else None
        old = self._by_index.get(index)
        if old and call_id and old.id not in ("", call_id) and (name or index is None):
            return same_id  # Ollama up to 0.20: every index is 0
        return old if name else same_id or old

    def turn(self) -> Turn:
        """The whole reply. Raises BackendError, its `turn` being what came, when it ended early.

        Without an end a reply counts only if it has calls and the arguments of all are complete. A
        call that the length limit cut off stays, with finish "length": the loop will not run it.
        """
        text, more = split_reasoning("".join(self._said["text"]))
        thought = "\n".join(filter(None, ["".join(self._said["reasoning"]), more]))
        slots = sorted(self._slots, key=lambda slot: slot.index or 0)
        calls = with_ids((call for slot in slots for call in slot.calls()), self._used_ids)
        finish = self.finish or "stop"
        if finish != "length":  # the calls decide: this word is often wrong
            finish = "tool_calls" if calls else "stop" if finish == "tool_calls" else finish
        turn = Turn(text, calls, finish, self.usage, thought, self._extra(calls))
        texts = [call.arguments for call in calls]
        whole = (str(each).strip() and isinstance(_parsed(each), dict) for each in texts)
        if not self.done and not (texts and all(whole)):
            error = BackendError("回答没有结束，连接就断了")
            error.turn = turn
            raise error
        return turn

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """The reasoning under its own key: DeepSeek wants it back on turns that call."""
        key, thought = self._reasoning_key, "".join(self._said["reasoning"])
        return {key: thought} if calls and key else None


# --- Anthropic Messages ---

_DELTAS = {  # the type of a delta → (its field, the field of the block, the kind of piece)
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "reasoning"),
    "signature_delta": ("signature", "signature", ""),
    "input_json_delta": ("partial_json", "input", ""),
}


class AnthropicFold(OpenAIFold):
    """Events of the Messages API, or one whole message, folded into a Turn."""

    def __init__(self, used_ids: Iterable[str] = ()):
        super().__init__(used_ids)
        self._blocks, self._counts = {}, {}
        self._pieces: dict[tuple, list[str]] = {}  # (index, field) → what the deltas added

    def feed(self, event: dict) -> Pieces:
        """Take one event; returns what came to show."""
        kind, index, pieces = event.get("type"), event.get("index"), []
        match kind:
            case "content_block_start":
                return self._open(index, _dict(event.get("content_block")))
            case "content_block_delta":
                return self._extend(index, _dict(event.get("delta")))
            case "message":
                for number, block in enumerate(map(_dict, _list(event.get("content")))):
                    pieces += self._open(number, block)
        reason = event.get("stop_reason") or _dict(event.get("delta")).get("stop_reason")
        done = kind in ("message", "message_stop")
        super().feed({"done": done, "finish_reason": reason, "usage": self._sum(event)})
        return pieces

    def _sum(self, event: dict) -> dict:
        """The usage so far; the prompt is what was read anew, from the cache and into it."""
        usage = _dict((_dict(event.get("message")) or event).get("usage"))
        counts = self._counts
        counts |= {key: value for key, value in usage.items() if value is not None}
        cached = _number(counts, "cache_read_input_tokens")
        fresh = _number(counts, "input_tokens") + _number(counts, "cache_creation_input_tokens")
        total = {"prompt_tokens": fresh + cached, "prompt_cache_hit_tokens": cached}
        return counts and {**total, "completion_tokens": _number(counts, "output_tokens")}

    def _open(self, index: object, block: dict) -> Pieces:
        """A block begins, or is whole."""
        self._blocks[repr(index)] = dict(block)
        if block.get("type") == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or ""}
            self._take({"id": block.get("id"), "function": function}, index, [])
        thought = self._add("reasoning", block.get("thinking"))
        return thought + self._add("text", block.get("text"))

    def _extend(self, index: object, delta: dict) -> Pieces:
        """A block goes on."""
        block = self._blocks.setdefault(repr(index), {"type": "text", "text": ""})
        if isinstance(delta.get("citation"), dict):
            block["citations"] = [*_list(block.get("citations")), delta["citation"]]
        field, target, kind = _DELTAS.get(_text(delta.get("type")), ("", "", ""))
        piece = _text(delta.get(field))
        if piece:
            self._pieces.setdefault((repr(index), target), []).append(piece)
        if target == "input":
            self._take({"function": {"arguments": piece}}, index, [])
        return self._add(kind, piece) if kind else []

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """All blocks, unchanged and in order, where text and calls do not say everything."""
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, field), pieces in self._pieces.items():
            begun = _text(blocks[index].get(field))  # never of `input`: that begins as {}
            blocks[index][field] = begun + "".join(pieces)
        kinds = [_text(block.get("type")) for block in blocks.values()]
        if {*kinds} <= {"text", "tool_use"} or kinds.count("tool_use") != len(calls):
            return None
        uses = (block for block in blocks.values() if block.get("type") == "tool_use")
        for block, call in zip(uses, calls):
            block |= {"id": call.id, "name": call.name, "input": _dict(_parsed(call.arguments))}
        return {ANTHROPIC_BLOCKS: list(blocks.values())}


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 12  循环 Loop      uses §1, §4, §9, §10 · threads, no print
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# ask the model → run what it calls → hand the results back → ask again, until it answers in text.
# The loop yields events and prints nothing. Whatever happens (limit, time-out, Ctrl-C), every call
# in the history has exactly one result at every instant, in call order: the assistant message and
# the places of its results are added in one step, and a place only ever changes its text.

CALLS_PER_TURN = 32  # a runaway model can write thousands of calls in one answer
PARALLEL = 8  # tools running at the same time
SLICE = 0.5  # seconds of one wait; Windows notices Ctrl-C only between two waits
PAUSE = 5.0  # seconds; when a slice takes longer, the whole machine stood still, tools too

INTERRUPTED = "用户中断，没有等到这次调用的结果；它如果已经开始执行，操作可能已经发生。"
REPEATED = "（这是同样的调用第二次，结果与上次相同：请直接用它回答，不要再调用。）"
LATE = "（这是超时的那次调用后来给出的结果，没有再执行一次。）"


class Limits(NamedTuple):
    """Guard rails of one run: above 0, or None for no limit."""

    turns: int | None = 8  # model calls
    seconds: float | None = 30.0  # per tool; all tools of one turn share the same start
    tokens: int | None = 200_000  # input + output over the run, as the server reports them
    same_call: int | None = 3  # the same name and arguments in so many turns in a row
    characters: int | None = RESULT_CHARACTERS  # per result


class ModelAsked(NamedTuple):
    """The model is about to be asked for the n-th time (from 1)."""

    number: int


class ModelAnswered(NamedTuple):
    """The model answered; `turn` is already in the history."""

    number: int
    turn: Turn
    seconds: float | None


class CallStarted(NamedTuple):
    """A tool begins to run; all calls of a turn start together."""

    call: ToolCall


class CallFinished(NamedTuple):
    """The one result of a call, in call order; seconds is None without a clock."""

    call: ToolCall
    result: ToolResult
    seconds: float | None


class Finished(NamedTuple):
    """The end of a run. `reason` is "answered" or one of the words in STOP_REASONS."""

    text: str  # the answer, or the last text the model gave before it was stopped
    reason: str
    usage: Usage
    turns: int


STOP_REASONS = {
    "answered": "模型给出了回答",
    "turns": "已达到轮数上限",
    "same_call": "模型连续重复同一个调用",
    "tokens": "已用完 token 预算",
    "length": "回答被长度上限截断",
}

Event = ModelAsked | ModelAnswered | CallStarted | CallFinished | Finished


def _text_of(value: object) -> str:
    """A string as UTF-8 can hold it, anything else as JSON."""
    return _whole(value) if isinstance(value, str) else json_text(json_value(value))


def _wire_call(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": _text_of(call.arguments)}
    own = {"id": call.id, "type": "function", "function": function}
    return own | (call.extra or {}) | own  # unknown keys may not replace known ones


def assistant_message(turn: Turn) -> dict:
    """The OpenAI assistant message of a turn; arguments become a JSON string again."""
    calls = [_wire_call(call) for call in turn.calls]
    own = {"role": "assistant", "content": turn.text, "tool_calls": calls}
    message = own | (turn.extra or {}) | own
    return message if calls else _without(message, "tool_calls")


def tool_message(call: ToolCall, result: ToolResult) -> dict:
    """The OpenAI tool message that answers `call`; `is_error` is for vendors that ask for it."""
    message = {"role": "tool", "tool_call_id": call.id, "content": result.text}
    return {**message, "is_error": True} if result.is_error else message


def call_ids(messages: Iterable[dict]) -> set[str]:
    """The ids of all calls in a history."""
    return {call.get("id") for message in messages for call in message.get("tool_calls") or ()}


def _sound_call(call: ToolCall) -> ToolCall:
    id, name, arguments = map(_text_of, call[:3])
    extra = call.extra and json_value(dict(call.extra))
    return ToolCall(id, name if name.strip() else "unnamed", arguments, extra)


def _sound_turn(turn: Turn, used_ids: Iterable[str]) -> Turn:
    """The turn as history can hold it: UTF-8, arguments as JSON text, whole numbers of tokens.

    Servers refuse a history that holds an id twice: one that is blank or in use is replaced.
    """
    try:
        text, finish, reasoning = (
            _whole(said or "") for said in (turn.text, turn.finish or "stop", turn.reasoning)
        )
        calls = with_ids(map(_sound_call, turn.calls or ()), used_ids)
        usage = turn.usage and Usage(*(n if type(n) is int and n > 0 else 0 for n in turn.usage))
        extra = turn.extra and json_value(dict(turn.extra))
        return Turn(text, calls, finish, usage, reasoning, extra)
    except Exception as error:
        raise BackendError(f"模型的回答不是合格的 Turn：{error_text(error)}") from error


def call_key(call: ToolCall) -> tuple[str, str]:
    """Name and canonical arguments: equal for calls that ask for the same thing."""
    return str(call.name), json.dumps(json_value(_parsed(call.arguments)), sort_keys=True)


def _timed(clock: Callable | None, work: Callable, *args, **options) -> tuple[Any, float | None]:
    """What the work returns, and the seconds it took by the clock, if there is one."""
    begin = clock() if clock else 0.0
    value = work(*args, **options)
    return value, clock() - begin if clock else None


_NO_TOOL = Tool("", "", {}, run=dict)  # stands for a name that no tool has


class _Job:
    """One call on its way: tool, deadline and Ctrl-C race, and the first to finish counts."""

    def __init__(self, call: ToolCall, tool: Tool | None, limits: Limits):
        self.call, self.tool = call, tool or _NO_TOOL
        self.key = call_key(call) if "live" not in self.tool.labels else object()
        self.limit = self.tool.seconds or limits.seconds or math.inf
        self.message = tool_message(call, ToolResult(INTERRUPTED))  # its place in the history
        self.result: ToolResult | None = None  # what the model is told
        self.outcome: ToolResult | None = None  # what the tool gave, even if too late
        self.seconds: float | None = None
        self.started, self.done = False, threading.Event()
        self._lock = threading.RLock()

    def finish(self, result: ToolResult, seconds: float | None = None) -> None:
        with self._lock:
            if self.result is None:
                self.result, self.seconds = result, seconds
                self.done.set()

    def wait(self, begin: float) -> float:
        """Return when it has a result; when its time is up, counted from `begin`, that is it.

        Returns `begin`, later by what the machine stood still meanwhile.
        """
        before = time.monotonic()
        while not self.done.wait(max(0.0, min(SLICE, begin + self.limit - before))):
            after = time.monotonic()
            begin += after - before if after - before > PAUSE else 0.0
            before = after
            if after - begin >= self.limit:
                self._give_up()
        return begin

    def _give_up(self) -> None:
        with self._lock:
            then = "可以换个参数再试，或如实告诉用户。"
            if not self.started:
                then = "它还没有轮到，没有执行。"
            elif self.tool.acts:
                then = "操作可能仍会发生：不要再次调用，请如实告诉用户。"
            text = f"工具在 {self.limit:g} 秒内没有返回结果，已放弃等待。{then}"
            self.finish(ToolResult(text, "timed_out"), self.limit)

    def work(self, tools: ToolRegistry, characters: int | None, slots, clock) -> None:
        """Run the tool, unless time ran out or the user left while this waited for a slot."""
        with slots:
            with self._lock:
                self.started = self.result is None
            if not self.started:
                return
            seconds = None
            try:
                self.outcome, seconds = _timed(clock, tools.call, self.call, characters=characters)
            except BaseException as error:  # a thread that dies would never finish
                self.outcome = ToolResult(f"执行出错：{error_text(error)}", "failed")
            self.finish(self.outcome, seconds)


def _start(jobs: list[_Job], tools: ToolRegistry, characters: int | None, clock) -> None:
    """Start every open job at once in daemon threads.

    Not an executor: an executor waits at exit for a tool that never returns.
    """
    parallel, one_by_one = threading.Semaphore(PARALLEL), threading.Semaphore(1)
    for job in jobs:
        slots = one_by_one if job.tool.acts else parallel
        args = (job.work, tools, characters, slots, clock)
        threading.Thread(target=contextvars.copy_context().run, args=args, daemon=True).start()


class _Memory:
    """What was called before: finds the model that asks the same thing turn after turn."""

    def __init__(self):
        self.streak: dict[tuple, int] = {}  # in how many turns in a row
        self.ran: dict[tuple, _Job] = {}  # the last of those that ask for the same thing

    def count(self, jobs: Iterable[_Job]) -> int:
        """Note one turn's calls; returns the longest streak among them."""
        self.streak = {key: self.streak.get(key, 0) + 1 for key in {job.key for job in jobs}}
        return max(self.streak.values(), default=0)

    def answer(self, job: _Job) -> ToolResult | None:
        """The result of a call that must not run now, or need not run again."""
        same_tool = [old for old in self.ran.values() if old.call.name == job.call.name]
        if job.tool.acts and any(old.outcome is None for old in same_tool):
            text = "这个工具上次超时后还没有结束，操作可能仍会发生；这次没有执行，请如实告诉用户。"
            return ToolResult(text, "limited")
        old = self.ran.get(job.key, job)
        if old.outcome is None or old.outcome.is_error:
            return None
        late = old.outcome is not old.result
        if not late and self.streak[job.key] < 2:
            return None
        return old.outcome._replace(text=f"{old.outcome.text}\n{LATE if late else REPEATED}")


def _cut_off(turn: Turn, index: int) -> bool:
    """True when the answer ended at the token limit inside this call, its last one."""
    last = turn.finish == "length" and index == len(turn.calls) - 1
    arguments = _parsed(turn.calls[index].arguments)
    return last and not (isinstance(arguments, dict) and arguments)  # {}: nothing arrived at all


def _refusal(approve: Callable | None, call: ToolCall) -> ToolResult | None:
    text = "用户没有批准这次调用，不要再试；请说明情况。"
    try:
        if approve is None or approve(call):
            return None
    except Exception as error:
        text = f"没能问到用户是否批准（{error_text(error)}），这次没有执行；请说明情况。"
    return ToolResult(text, "cancelled")


def _settle(jobs: list[_Job], turn: Turn, reason: str, memory: _Memory, approve) -> None:
    """Give a result at once to each call that must not run, or need not."""
    for index, job in enumerate(jobs):
        text = ""
        if reason:
            text = f"{STOP_REASONS[reason]}，这次调用没有执行。"
        elif index >= CALLS_PER_TURN:
            text = f"一轮最多 {CALLS_PER_TURN} 个调用，这一个没有执行。"
        elif _cut_off(turn, index):
            text = "调用写到一半就到了长度上限，没有执行。请缩短参数后重新调用。"
        known = ToolResult(text, "limited") if text else memory.answer(job)
        if result := known or _refusal(approve, job.call):
            job.finish(result)


def _stop_reason(limits: Limits, **reached: int) -> str:
    """The first of these limits that is reached, or ""."""
    for name, value in reached.items():
        if value >= (getattr(limits, name) or math.inf):
            return name
    return ""


def run_tool_loop(
    model, tools: ToolRegistry, messages: list[dict], *,
    limits: Limits = Limits(), tool_choice: str | dict = "auto",
    on_delta: Callable | None = None, approve: Callable[[ToolCall], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> Iterator[Event]:
    """Events of one run: the model is asked, its calls are run, until it answers in text.

    `messages` is the OpenAI message list; it grows in place. It can be sent again whenever the run
    ends, also by closing the generator or Ctrl-C. Raises what `model.chat` raises, BackendError for
    an answer that is no Turn, SchemaError for limits that make no sense.
    """
    if faults := "；".join(filter(None, map(limit_fault, limits._fields, limits))):
        raise SchemaError(f"Limits：{faults}")
    usage, memory, text, reason = Usage(), _Memory(), "", ""
    for number in itertools.count(1):
        yield ModelAsked(number)
        turn, seconds = _timed(
            clock, model.chat, messages, tools.schemas(), tool_choice, on_delta,
        )
        if tool_choice != "none":  # a call is forced once: forced for ever, there is no answer
            tool_choice = "auto"
        turn = _sound_turn(turn, call_ids(messages))
        jobs = [_Job(call, tools.get(call.name), limits) for call in turn.calls]
        messages.extend([assistant_message(turn), *(job.message for job in jobs)])
        usage, text = usage.plus(turn.usage or Usage()), turn.text or text
        try:
            yield ModelAnswered(number, turn, seconds)
            spent, streak = usage.input + usage.output, memory.count(jobs)
            reason = _stop_reason(limits, same_call=streak, tokens=spent, turns=number)
            if not jobs:
                reason = "length" if turn.finish == "length" else "answered"
            _settle(jobs, turn, reason, memory, approve)
            waiting = [job for job in jobs if not job.done.is_set()]
            for job in waiting:
                yield CallStarted(job.call)
            started = time.monotonic()
            _start(waiting, tools, limits.characters, clock)
            for job in jobs:
                started = job.wait(started)
                yield CallFinished(job.call, job.result, job.seconds)
        finally:
            for job in jobs:
                job.finish(ToolResult(INTERRUPTED, "cancelled"))
                job.message.update(tool_message(job.call, job.result))
        memory.ran |= {job.key: job for job in waiting if job.started}
        if reason:
            yield Finished(text, reason, usage, number)
            return


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 13  模拟模型 Mock      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A model without a network: it replays a script. An entry that is a function reads the history
# first, so an answer can quote the tool's real result instead of a figure typed in here.


class MockLLM:
    """Replays `script`, one entry per `.chat`: a Turn, or a function from messages to a Turn.

    `asked` keeps how many messages each request carried: the API is stateless, so it grows.
    Raises BackendError when the script has run out.

    >>> MockLLM([Turn("你好")]).chat([], []).text
    '你好'
    """

    def __init__(self, script: Iterable[Turn | Callable[[list[dict]], Turn]]):
        self._script = iter(script)
        self.asked: list[int] = []

    def chat(self, messages, tools, tool_choice="auto", on_delta=None) -> Turn:
        """The next entry of the script as a Turn; its text also goes to `on_delta`."""
        self.asked.append(len(messages))
        entry = next(self._script, None)
        if entry is None:
            raise BackendError("模拟模型的脚本已经演完，没有下一句了")
        turn = entry(messages) if callable(entry) else entry
        if on_delta and turn.text:
            on_delta("text", turn.text)
        return turn


def last_result(messages: list[dict]) -> object:
    """The newest tool message as a JSON value, or as text where it is no JSON; None without one."""
    text = next((m["content"] for m in reversed(messages) if m["role"] == "tool"), "null")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 14  JSON-RPC      uses §1, §3, §4 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# MCP is JSON-RPC 2.0 with one message per line. A *request* has method and id and gets exactly one
# *reply* with the same id; a *notification* has no id and gets none, not even an error. Here bytes
# become messages and back, and what is neither kind of message is told what is wrong with it.
# Sources: jsonrpc.org/specification; modelcontextprotocol.io, "Base Protocol" of each revision.

PARSE_ERROR = -32700  # the line is not JSON
INVALID_REQUEST = -32600  # it is JSON, but no valid request
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602  # also: no such tool or prompt; since 2026-07-28, no such resource
INTERNAL_ERROR = -32603  # a fault of ours
RESOURCE_NOT_FOUND = -32002  # until 2025-11-25
UNSUPPORTED_VERSION = -32022  # since 2026-07-28; its data lists what the server speaks

_UNREADABLE = {
    UnicodeDecodeError: "不是 UTF-8 编码",
    json.JSONDecodeError: "第 {0.colno} 个字符处读不下去",
    RecursionError: "嵌套太深",
    ValueError: "有 NaN、Infinity，或者有太长的整数",
}


def _refuse_word(word: str) -> object:
    raise ValueError(word)  # Python reads and writes NaN; no other language does


_WIRE_DECODER = json.JSONDecoder(parse_constant=_refuse_word)
# No ASCII escaping: half the bytes for Chinese, and a learner can read the wire.
_WIRE_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
HALF_CHARACTER = "[\ud800-\udfff]"  # a lone surrogate hangs Python SDKs (mcp 2.3.0)


def decode(line: bytes) -> object:
    """The JSON value in one line; a byte-order mark and CRLF do no harm. RpcError -32700."""
    try:
        return _WIRE_DECODER.decode(line.decode("utf-8").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        reason = _UNREADABLE[type(error)].format(error)
        raise RpcError(PARSE_ERROR, f"这一行不是 JSON：{reason}") from None


def encode(message: object) -> bytes:
    """The message as one line of UTF-8. Raises ValueError or TypeError for what is no JSON.

    >>> encode({"id": 1, "result": {"text": "缓存"}}).decode()
    '{"id":1,"result":{"text":"缓存"}}\\n'
    """
    text = _WIRE_ENCODER.encode(message) + "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub(HALF_CHARACTER, "\ufffd", text).encode("utf-8")


def _message(**members: object) -> dict:
    """A message without the members that are None: no MCP schema allows a null there."""
    return {"jsonrpc": "2.0", **{name: it for name, it in members.items() if it is not None}}


def request_message(id: int | str, method: str, params: dict | None = None) -> dict:
    """A request; params may be left out."""
    return _message(id=id, method=method, params=params)


def notification_message(method: str, params: dict | None = None) -> dict:
    """A message that gets no reply."""
    return _message(method=method, params=params)


def result_reply(id: int | str, result: dict) -> dict:
    """The reply of a request that went well, or of a tool that failed in its own way."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def error_reply(id: int | str | None, error: BaseException) -> dict:
    """The reply of a request that could not be served; any other exception is a fault of ours.

    Without a readable id the key is left out: JSON-RPC asks for null, but no MCP schema allows
    null there, and the newer ones make `id` optional. All official clients accept the missing key.
    """
    if not isinstance(error, RpcError):
        error = RpcError(INTERNAL_ERROR, f"服务器内部出错：{error_text(error)}")
    body = {"code": error.code, "message": str(error)}
    return _message(id=id, error=body if error.data is None else {**body, "data": error.data})


def unexpected(where: str, wanted: str, value: object, code: int = INVALID_PARAMS) -> RpcError:
    """The error that says what should stand in one place of a message, and what does."""
    return RpcError(code, f"{where} 应该是{wanted}，收到的是 {show(value)}")


def is_token(value: object) -> bool:
    """Whether it can be an id or progress token: an integer, or text that can go back unchanged.

    Half a character cannot, so it is refused: replaced, the client would not know its own id.
    """
    kind = type(value)  # not isinstance, because True is an int too
    return kind is int or kind is str and not re.search(HALF_CHARACTER, value)


def readable_id(message: object) -> int | str | None:
    """The id of a message if it has a valid one, else None."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if is_token(id) else None


def kind_of(message: object) -> str:
    """"request", "notification" or "response". Raises RpcError -32600 for anything else."""
    if not isinstance(message, dict):
        raise unexpected("一条消息", " JSON 对象", message, INVALID_REQUEST)
    if "method" not in message and ("result" in message or "error" in message):
        return "response"
    if message.get("jsonrpc") != "2.0":
        raise unexpected("jsonrpc", ' "2.0"', message.get("jsonrpc"), INVALID_REQUEST)
    if not isinstance(message.get("method"), str):
        raise unexpected("method", "字符串", message.get("method"), INVALID_REQUEST)
    if "id" not in message:
        return "notification"
    if not is_token(message["id"]):
        raise unexpected("id", "整数，或没有半个字符的字符串", message["id"], INVALID_REQUEST)
    return "request"


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 15  服务端核心 Server core      uses §1, §3, §4, §6, §9, §14 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# McpServer knows messages, not pipes: a dict comes in, dicts go out. Two eras of the protocol meet
# here. *Legacy* (2024-11-05 … 2025-11-25) opens with `initialize`; what was agreed there holds for
# the messages after it. *Modern* (2026-07-28) has no handshake: every request carries its revision
# and the client's abilities in `params._meta`, its "envelope". The era is decided by each message
# alone and never locked: hosts probe, fall back and mix both on one pipe.
# Two kinds of error: what a model can repair is a result with `isError`; what only a program can
# repair is an error reply. A protocol revision is one row of REVISIONS, a method one function.

SERVER_NAME = "cme295-notes"
SERVER_TITLE = "CME295 讲义与计算工具"
INSTRUCTIONS = (
    "CME295（Transformer 与大语言模型）中文自学讲义。遇到课程里的概念、公式或“在哪一节讲”的问题，"
    "先用 search_notes 查，再用 read_note 读原文，回答时写出章节编号；"
    "KV Cache 显存用 kv_cache_gib，其他算式用 calculator，不要心算。全部工具只读，不联网。"
)
OWN_INSTRUCTIONS = (  # for a user's own notes or tools: nothing is known of their subject
    "用户自己的笔记和工具。答案可能写在笔记里时，先用 search_notes 查，再用 read_note 读原文，"
    "回答时写出是哪一节；算式用 calculator，不要心算。"
)
PAGE_ITEMS = 50  # entries in one page of a list
COMPLETIONS = 100  # values in one completion; the protocol allows no more
MCP_RESULT_CHARACTERS = 20_000  # of one tool result; desktop hosts refuse results near 1 MiB

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
ENVELOPE_KEYS = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY})
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
# What MCP has no words for, told to our own client: of a tool, its result and its labels.
LIMIT_KEY, LABELS_KEY = "cme295-notes/maxCharacters", "cme295-notes/labels"

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_ONE_LEVEL = f" {'、'.join(LOG_LEVELS)} 之一"


class Revision(NamedTuple):
    """One revision of the protocol; a row of REVISIONS."""

    name: str
    modern: bool = False  # stateless, every request in an envelope
    batches: bool = False  # a line may be an array of messages


REVISIONS = {
    revision.name: revision
    for revision in (
        Revision("2026-07-28", modern=True),
        Revision("2025-11-25"),
        Revision("2025-06-18"),
        Revision("2025-03-26", batches=True),
        Revision("2024-11-05"),
    )
}
MODERN, LATEST_LEGACY = REVISIONS["2026-07-28"], REVISIONS["2025-11-25"]

# Fields that older revisions do not know; names of revisions sort by date.
FIELDS_SINCE = {
    "annotations": "2025-03-26", "completions": "2025-03-26", "message": "2025-03-26",
    "title": "2025-06-18", "outputSchema": "2025-06-18",
}


def known_fields(item: dict, revision: Revision) -> dict:
    """The item without the fields that came after that revision."""
    return {
        key: value for key, value in item.items() if FIELDS_SINCE.get(key, "") <= revision.name
    }


class Method(NamedTuple):
    """One row of METHODS: the function that answers, and what its requests have in common."""

    answer: Callable[[McpServer, Request], dict | None]  # None: no reply for now
    modern: bool | None = None  # None: in both eras
    cacheable: bool = False  # the result must say how long it may be kept
    slow: bool = False  # may take long: the driver can go on with other messages meanwhile


METHODS: dict[str, Method] = {}


def method(name: str, **kind: bool) -> Callable:
    """Register the decorated function as the one that answers `name`."""

    def add(answer: Callable) -> Callable:
        METHODS[name] = Method(answer, **kind)
        return answer

    return add


_RUNNING = contextvars.ContextVar("the request that this thread works on", default=None)


def report_progress(done: float, total: float | None = None, message: str = "") -> None:
    """Tell the client how far a tool is; for use inside tools, anywhere else it does nothing.

    `done` has to grow from report to report. Raises ToolError when the client has cancelled the
    call, so that a long tool which reports also stops.
    """
    if request := _RUNNING.get():
        request.progress(done, total, message)


_KINDS = {str: "字符串", dict: "对象"}


def member(of: dict, name: str, kind: type, *, path: str = "params.", default: Any = None) -> Any:
    """of[name], which must be of that JSON type, or the default. Raises RpcError -32602 if not."""
    value = of.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not kind:
        raise unexpected(path + name, _KINDS[kind], value)
    return value


class Request:
    """A request on its way. `run` may be called on any thread; the first to end it wins.

    It ends once: by its reply, or by the client's cancellation, after which nothing more is sent.
    """

    def __init__(self, server: McpServer, message: dict, revision: Revision):
        self.server, self.revision = server, revision
        self.id, self.params = message["id"], message.get("params") or {}
        self.row = METHODS[message["method"]]
        self.cancelled = False
        self._done, self._emit, self._owed = -1.0, None, iter((True,))

    @property
    def alive(self) -> bool:
        """Whether its reply is still owed."""
        return self.server.open.get(self.id) is self

    def end(self) -> bool:
        """True for the one caller that ends it; its id is free from then on."""
        if not next(self._owed, False):
            return False
        del self.server.open[self.id]
        return True

    def notify(self, method: str, params: dict) -> None:
        """Send a notification that belongs to this request."""
        self._emit(notification_message(method, known_fields(params, self.revision)))

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Send how far it is, if the client asked for that and it is further than before."""
        if not self.alive:
            raise ToolError("客户端已取消这次调用")
        token = (self.params.get("_meta") or {}).get("progressToken")
        if token is None or not self._done < done < math.inf:
            return
        self._done = done
        params = {"progressToken": token, "progress": done}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message:
            params["message"] = str(message)
        self.notify("notifications/progress", params)

    def run(self, emit: Callable[[dict], None]) -> None:
        """Do the work: emit what belongs to it and, unless cancelled or held open, the reply."""
        self._emit = emit
        if not self.alive:  # cancelled while it waited in a batch
            return
        before = _RUNNING.set(self)
        try:
            result = self.row.answer(self.server, self)
            reply = None if result is None else result_reply(self.id, self._of_its_era(result))
        except BaseException as error:  # whatever happens, a client must not wait for ever
            reply = error_reply(self.id, error)
        finally:
            _RUNNING.reset(before)
        if reply and self.end():
            emit(reply)

    def _of_its_era(self, result: dict) -> dict:
        if not self.revision.modern:
            return result
        more = {"ttlMs": 0, "cacheScope": "private"} if self.row.cacheable else {}
        return {"resultType": "complete", **result, "_meta": {SERVER_KEY: self.server.info}, **more}


def _give(begun: list, emit: Callable[[Any], None]) -> None:
    """Emit messages as they are; run what has to be run."""
    for each in begun:
        emit(each) if isinstance(each, dict) else each.run(emit)


class Batch:
    """An array of messages (2025-03-26 only): its replies come as one array."""

    def __init__(self, begun: list[dict | Request]):
        self._begun = begun

    @property
    def cancelled(self) -> bool:
        """Whether none of its replies is owed any more."""
        return all(each.cancelled for each in self._begun if isinstance(each, Request))

    def run(self, emit: Callable[[object], None]) -> None:
        """As Request.run, for all of them; only notifications do not wait for the end."""
        replies = []
        _give(self._begun, lambda each: (emit if "method" in each else replies.append)(each))
        if replies:
            emit(replies)


def _is_enveloped(message: object) -> bool:
    match message:
        case {"params": {"_meta": dict() as meta}}:
            return not ENVELOPE_KEYS.isdisjoint(meta)
    return False


class McpServer:
    """The server without its pipe: `handle(message)` gives the messages to send back, in order.

    >>> server = McpServer(ToolRegistry())
    >>> server.handle({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    [{'jsonrpc': '2.0', 'id': 1, 'result': {}}]
    """

    def __init__(
        self, tools: ToolRegistry | Callable[[], ToolRegistry], notes: NotesIndex | None = None,
    ):
        self._tools, self.notes, self.page_items = tools, notes, PAGE_ITEMS
        self.instructions = INSTRUCTIONS
        self.info = {"name": SERVER_NAME, "title": SERVER_TITLE, "version": VERSION}
        self.negotiated = LATEST_LEGACY  # what messages without an envelope mean, until agreed
        self.open: dict[int | str, Request] = {}  # requests without a reply so far, by id

    def handle(self, message: object) -> list:
        """All messages that answer this one; slow tools are waited for."""
        sent: list = []
        _give(self.begin(message), sent.append)
        return sent

    def begin(self, message: object) -> list[dict | Request | Batch]:
        """Messages that are ready, or one thing whose `run(emit)` the caller owes.

        Keep calling `begin` meanwhile: that is how pings are answered and calls cancelled.
        """
        if not isinstance(message, list):
            return self._begin_one(message)
        if not message or not self.negotiated.batches or any(map(_is_enveloped, message)):
            text = "只有 2025-03-26 版协议可以把几条消息放进一个数组，请一行发一条"
            return [error_reply(None, RpcError(INVALID_REQUEST, text))]
        return [Batch([begun for each in message for begun in self._begin_in_batch(each)])]

    def _begin_in_batch(self, message: object) -> list[dict | Request]:
        match message:
            case {"method": "initialize"}:
                error = RpcError(INVALID_REQUEST, "initialize 不能放在数组里")
                return [error_reply(readable_id(message), error)]
        return self._begin_one(message)

    def _begin_one(self, message: object) -> list[dict | Request]:
        try:
            match kind_of(message):
                case "request":
                    return self._begin_request(message)
                case "notification":
                    self._notice(message)
        except RpcError as error:
            return [error_reply(readable_id(message), error)]
        return []

    def _begin_request(self, message: dict) -> list[dict | Request]:
        revision, name, id = self._revision_of(message), message["method"], message["id"]
        if name not in METHODS or METHODS[name].modern not in (None, revision.modern):
            raise RpcError(METHOD_NOT_FOUND, f"{revision.name} 版协议里没有方法 {show(name)}")
        if id in self.open:
            raise RpcError(INVALID_REQUEST, f"id {show(id)} 的请求还没有结束，请换一个 id")
        request = self.open[id] = Request(self, message, revision)
        if request.row.slow:
            return [request]
        sent: list = []
        request.run(sent.append)
        return sent

    def _revision_of(self, message: dict) -> Revision:
        """What this request alone says: the modern revision if it has an envelope, else legacy.

        Raises RpcError in the order of the official servers.
        """
        params = member(message, "params", dict, path="", default={})
        meta = member(params, "_meta", dict, default={})
        if not is_token(meta.get("progressToken", 0)):
            raise unexpected("progressToken", "整数，或没有半个字符的字符串", meta["progressToken"])
        if ENVELOPE_KEYS.isdisjoint(meta):
            return self.negotiated
        version = member(meta, VERSION_KEY, str, path="params._meta 里 ")
        member(meta, CAPABILITIES_KEY, dict, path="params._meta 里 ")
        revision = REVISIONS.get(version, LATEST_LEGACY)
        if not revision.modern:
            supported = {"supported": list(REVISIONS), "requested": version}
            raise RpcError(UNSUPPORTED_VERSION, f"不支持协议版本 {show(version)}", supported)
        if (level := meta.get(LOG_LEVEL_KEY, "debug")) not in LOG_LEVELS:
            raise unexpected("logLevel", _ONE_LEVEL, level)
        return revision

    def _notice(self, message: dict) -> None:
        """Take a notification. Only one matters here: the rest needs no action."""
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": id}} if is_token(id):
                if request := self.open.get(id):
                    request.cancelled = request.end()

    @functools.cached_property
    def tools(self) -> ToolRegistry:
        """The tools, made when they are first needed: the first answer does not wait for them."""
        return self._tools() if callable(self._tools) else self._tools

    @functools.cached_property
    def outline(self) -> list[Note]:
        """Every section in reading order, without its text; [] if there are no notes."""
        with contextlib.suppress(ToolError):  # no folder, or nothing in it
            return self.notes.outline if self.notes else []
        return []

    @functools.cached_property
    def files(self) -> dict[str, Note]:
        """The files by name."""
        return {note.name: note for note in self.outline if note.level == 0}


# ── Opening ──


def _capabilities(server: McpServer, revision: Revision) -> dict:
    """What is really offered: no lists that change, no subscriptions, no log messages."""
    names = ("tools", "resources", "prompts", "completions") if server.notes else ("tools",)
    return known_fields({name: {} for name in names}, revision)


@method("initialize", modern=False)
def _initialize(server: McpServer, request: Request) -> dict:
    """Agree on a revision: the one asked for if it is a legacy one, else our newest legacy one."""
    revision = REVISIONS.get(member(request.params, "protocolVersion", str), LATEST_LEGACY)
    server.negotiated = LATEST_LEGACY if revision.modern else revision
    return {
        "protocolVersion": server.negotiated.name,
        "capabilities": _capabilities(server, server.negotiated),
        "serverInfo": known_fields(server.info, server.negotiated),
        "instructions": server.instructions,
    }


@method("server/discover", modern=True, cacheable=True)
def _discover(server: McpServer, request: Request) -> dict:
    """All revisions, newest first: a client that shares only a legacy one can fall back to it."""
    return {
        "supportedVersions": list(REVISIONS),
        "capabilities": _capabilities(server, request.revision),
        "instructions": server.instructions,
    }


@method("ping", modern=False)
def _ping(server: McpServer, request: Request) -> dict:
    return {}


@method("logging/setLevel", modern=False)
def _set_level(server: McpServer, request: Request) -> dict:
    """Accepted though we send no log messages: VS Code asks before its handshake is over."""
    if (level := member(request.params, "level", str)) not in LOG_LEVELS:
        raise unexpected("level", _ONE_LEVEL, level)
    return {}


@method("subscriptions/listen", modern=True)
def _listen(server: McpServer, request: Request) -> None:
    """Acknowledged with an empty subset, for nothing changes while we run; open until cancelled."""
    member(request.params, "notifications", dict)
    meta = {SUBSCRIPTION_KEY: request.id}
    request.notify("notifications/subscriptions/acknowledged", {"notifications": {}, "_meta": meta})


# ── Lists in pages ──


def _page(request: Request, key: str, items: Iterable, entry: Callable[[Any], dict]) -> dict:
    """One page of a list. A cursor is opaque to clients; ours says which list goes on where."""
    size, items = request.server.page_items, list(items)
    starts = {f"{key}@{start}": start for start in range(0, len(items) or 1, size)}
    cursor = member(request.params, "cursor", str, default=f"{key}@0")
    if cursor not in starts:
        raise unexpected("cursor", "收到过的 nextCursor，或者不传", cursor)
    start = starts[cursor]
    shown = items[start:start + size]
    page = {key: [known_fields(entry(item), request.revision) for item in shown]}
    if start + size < len(items):
        page["nextCursor"] = f"{key}@{start + size}"
    return page


def _listed_tool(tool: Tool) -> dict:
    own = {LIMIT_KEY: tool.characters} if tool.characters else {}
    if tool.labels & {"live", "private", "sends"}:  # of which the hints say nothing
        own[LABELS_KEY] = sorted(tool.labels)
    return {**to_mcp_tool(tool), "_meta": own} if own else to_mcp_tool(tool)


@method("tools/list", cacheable=True)
def _list_tools(server: McpServer, request: Request) -> dict:
    return _page(request, "tools", server.tools, _listed_tool)


# ── Calling a tool ──


def _checked(result: ToolResult, tool: Tool) -> ToolResult:
    """The result, or an error that says why it does not keep what the tool's outputSchema promises.

    Clients drop a result that breaks its schema, so the model would never learn what happened.
    """
    if tool.output is None or result.is_error:
        return result
    if problems := validate_arguments(result.value, tool.output):
        reason = f"工具 {tool.name} 的返回值不符合它声明的格式：{explain(problems)}"
        return ToolResult(reason, "failed")
    if len(result.text) < (tool.characters or MCP_RESULT_CHARACTERS):
        return result
    return ToolResult("结果太长，放不下完整的 JSON，请缩小范围再试", "failed")  # text was cut


NOTE_URI = "notes://"
NOTE_TEMPLATE = NOTE_URI + "{note}"


def note_uri(name: str) -> str:
    """`notes://{note}` filled in as RFC 6570 asks.

    >>> note_uri("week1-day4"), note_uri("Week 1 §2")
    ('notes://week1-day4', 'notes://Week%201%20%C2%A72')
    """
    odd = rb"[^A-Za-z0-9._~-]"
    quoted = re.sub(odd, lambda found: b"%%%02X" % ord(found[0]), name.encode("utf-8"))
    return NOTE_URI + quoted.decode("ascii")


def _text_block(text: str) -> dict:
    return {"type": "text", "text": text}


def _resource(name: str, title: str) -> dict:
    return {"uri": note_uri(name), "name": name, "title": title, "mimeType": "text/markdown"}


@method("tools/call", slow=True)
def _call_tool(server: McpServer, request: Request) -> dict:
    """Whatever goes wrong inside the tool, bad arguments too, is a result the model can read."""
    name = member(request.params, "name", str)
    arguments = member(request.params, "arguments", dict, default={})
    request.progress(0, message=f"开始运行 {name}")
    call = ToolCall(str(request.id), name, arguments)
    result = server.tools.call(call, characters=MCP_RESULT_CHARACTERS)
    if result.status == "unknown_tool":
        raise RpcError(INVALID_PARAMS, result.text)
    tool = server.tools[name]
    result = _checked(result, tool)
    answer = {"content": [_text_block(result.text)], "isError": result.is_error}
    structured = tool.output and not result.is_error
    if structured and request.revision.name >= FIELDS_SINCE["outputSchema"]:
        answer["structuredContent"] = result.value
        hits = result.value.get("hits", ()) if name == "search_notes" else ()
        resources = [_resource(hit["section"], hit["title"]) for hit in hits]  # a host can open
        answer["content"] += [{"type": "resource_link", **each} for each in resources]
    return answer


# ── Notes as resources ──


def _note_name(uri: str) -> str:
    name = uri.removeprefix(NOTE_URI).encode("utf-8", "replace")
    name = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), name)
    return name.decode("utf-8", "replace")


def _section(server: McpServer, name: str) -> Note | None:
    """The file or section of exactly that name, with all below it. No name becomes a path."""
    id = server.files[name].section if name in server.files else name
    with contextlib.suppress(ToolError):  # there is nothing like it
        if server.notes and (note := server.notes.find(id)).section == id:
            return note
    return None


def _markdown(uri: str, note: Note) -> dict:
    text = f"# {note.full_name}\n\n{note.text}"
    return {"uri": uri, "mimeType": "text/markdown", "text": text}


@method("resources/list", cacheable=True, slow=True)
def _list_resources(server: McpServer, request: Request) -> dict:
    """The files; their sections are found by searching, or through the template."""
    files = server.files.values()
    return _page(request, "resources", files, lambda file: _resource(file.name, file.title))


@method("resources/templates/list", cacheable=True)
def _list_templates(server: McpServer, request: Request) -> dict:
    template = {
        "uriTemplate": NOTE_TEMPLATE, "name": "note", "mimeType": "text/markdown",
        "title": "笔记的一篇或一节",
        "description": "note 是文件名或章节编号，例如 week1-day4 或 Week 1 Day 4 §1.4",
    }
    return _page(request, "resourceTemplates", [template] if server.notes else [], dict)


@method("resources/read", cacheable=True, slow=True)
def _read_resource(server: McpServer, request: Request) -> dict:
    uri = member(request.params, "uri", str)
    note = _section(server, _note_name(uri)) if uri.startswith(NOTE_URI) else None
    if note is None:
        code = INVALID_PARAMS if request.revision.modern else RESOURCE_NOT_FOUND
        raise RpcError(code, f"没有资源 {show(uri)}", {"uri": uri})
    return {"contents": [_markdown(uri, note)]}


# ── Prompts ──


@functools.lru_cache(1)
def _prompts(notes: NotesIndex | None) -> ToolRegistry:
    """Texts that a person picks in the host. Each is a function as a tool is; it gives blocks."""

    def explain_section(section: typing.Annotated[str, "编号，如 Week 1 Day 4 §1.4"]) -> list:
        """用具体数字讲解笔记中的一节，原文会附上"""
        note = notes.find(section)
        text = (
            f"请讲解笔记 {note.section}《{note.title}》，原文附后。先用两三句话说清它解决什么问题，"
            "再逐步讲，每个公式代入一个具体数字算一遍（用 calculator），最后指出一个易误解的地方。"
        )
        source = {"type": "resource", "resource": _markdown(note_uri(note.section), note)}
        return [_text_block(text), source]

    def quiz_me(
        topic: typing.Annotated[str, "知识点，例如 KV Cache"],
        count: typing.Annotated[str, "题数，1 到 20，默认 5"] = "5",
    ) -> list:
        """围绕一个知识点，一题一题地考"""
        if count not in map(str, range(1, 21)):
            raise ToolError(f"count 应该是 1 到 20 的整数，收到的是 {show(count)}")
        return [_text_block(
            f"请围绕“{topic}”考我 {count} 道题。"
            "先用 search_notes 和 read_note 找到笔记原文，只考笔记里有的内容；一次只出一道，"
            "等我回答后再判断对错、说明理由并写出章节编号，然后出下一道；最后总结我薄弱的地方。"
        )]

    def find_lesson(topic: typing.Annotated[str, "知识点，例如 KV Cache"]) -> list:
        """找出一个知识点在笔记的哪些章节"""
        return [_text_block(
            f"“{topic}”在笔记的哪一节讲？请用 search_notes 查（没找到就换两三种说法再查），"
            "按先后列出相关章节的编号和标题，各用一句话说明讲了什么，并建议先读哪一节。"
        )]

    titles = {explain_section: "讲解一节", quiz_me: "考考我", find_lesson: "在哪一节"}
    return ToolRegistry(Tool.from_function(fn, title=titles[fn]) for fn in titles if notes)


def _listed_prompt(prompt: Tool) -> dict:
    required = prompt.parameters["required"]
    arguments = [
        {"name": name, "description": part["description"], "required": name in required}
        for name, part in prompt.parameters["properties"].items()
    ]
    about = {"name": prompt.name, "title": prompt.title, "description": prompt.description}
    return about | {"arguments": arguments}


@method("prompts/list", cacheable=True)
def _list_prompts(server: McpServer, request: Request) -> dict:
    return _page(request, "prompts", _prompts(server.notes), _listed_prompt)


def _known_prompt(server: McpServer, name: str) -> Tool:
    known = _prompts(server.notes)
    if name not in known:
        raise RpcError(INVALID_PARAMS, f"没有提示词 {show(name)}，可用：{'、'.join(known.names)}")
    return known[name]


@method("prompts/get", slow=True)
def _get_prompt(server: McpServer, request: Request) -> dict:
    """What is wrong with its arguments is an error here: a person gave them, not a model."""
    prompt = _known_prompt(server, member(request.params, "name", str))
    given = member(request.params, "arguments", dict, default={})
    given = {name: value for name, value in given.items() if value != ""}  # left blank in a form
    call = ToolCall("", prompt.name, given)
    result = _prompts(server.notes).call(call, characters=None)
    if result.is_error:
        raise RpcError(INVALID_PARAMS, result.text)
    messages = [{"role": "user", "content": block} for block in result.value]
    return {"description": prompt.description, "messages": messages}


# ── Completion of arguments ──


def _completed(server: McpServer, request: Request) -> tuple[str, str]:
    """(argument, what was typed so far), if the prompt or template of `ref` has that argument."""
    argument = member(request.params, "argument", dict)
    name = member(argument, "name", str, path="params.argument.")
    typed = member(argument, "value", str, path="params.argument.")
    match request.params.get("ref"):
        case {"type": "ref/prompt", "name": str() as prompt}:
            known = _known_prompt(server, prompt).parameters["properties"]
        case {"type": "ref/resource", "uri": uri} if uri == NOTE_TEMPLATE:
            known = {"note"}
        case _:
            known = ()
    if name not in known:
        reason = f"没有可补全的参数 {show(name)}，请检查 ref 和 argument.name"
        raise RpcError(INVALID_PARAMS, reason)
    return name, typed.casefold()


@method("completion/complete", slow=True)
def _complete(server: McpServer, request: Request) -> dict:
    """Choices that begin with what was typed, then those that contain it."""
    name, typed = _completed(server, request)
    sections = [note.section for note in server.outline]
    choices = {
        "section": sections,
        "topic": [note.title for note in server.outline],
        "note": [*server.files, *sections],
    }
    found = [each for each in dict.fromkeys(choices.get(name, ())) if typed in each.casefold()]
    found.sort(key=lambda each: not each.casefold().startswith(typed))  # stable
    shown, more = found[:COMPLETIONS], len(found) > COMPLETIONS
    return {"completion": {"values": shown, "total": len(found), "hasMore": more}}


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 16  客户端核心 Client core      uses §1, §3, §4, §14, §15 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# What a host does: open a session, list what a server offers, call it. `send` is all it knows of
# the world: it takes a message and gives the reply (None for a notification). Remote tools become a
# ToolRegistry, so the same loop runs on local and remote tools. The client advertises no abilities,
# and it forgives what servers get wrong, as far as the meaning is clear.

CLIENT_INFO = {"name": "w4d3-tools-mcp", "version": VERSION}
PROBE_SECONDS = 3.0  # for the first answer; legacy servers may ignore a method they do not know
REQUEST_SECONDS = 60.0
MOST_PAGES = 1000  # of one list; a server whose cursors never repeat must still come to an end


class McpError(BackendError):
    """The server cannot be talked to; the message says what happened."""


class ServerSilentError(McpError):
    """No answer in time; the server may still live."""


class ServerGoneError(McpError):
    """The server has ended or closed its output."""


def answer_server(message: dict) -> dict | None:
    """The reply to a request of the server: pings are answered, anything else is not offered."""
    if message["method"] == "ping":
        return result_reply(message["id"], {})
    return error_reply(message["id"], RpcError(METHOD_NOT_FOUND, "这个客户端不提供任何能力"))


def _block_text(block: object) -> str:
    match block:
        case {"text": str() as text} | {"resource": {"text": str() as text}}:
            return text
        case str():  # not in the protocol, but seen
            return block
        case None | {"type": "resource_link", "uri": str()}:  # to open; the text names it
            return ""
        case {"type": str() as kind, "mimeType": str() as mime}:
            return f"[{kind}：{mime}，这里不显示]"
    return f"[不认识的内容：{show(block)}]"


def result_text(result: dict) -> str:
    """What a model can read of a tool's result: its text blocks, other blocks named in brackets."""
    content = result.get("content")
    blocks = content if isinstance(content, list) else [content]
    texts = [text for block in blocks if (text := _block_text(block))]
    if not texts and "structuredContent" in result:
        return json_text(json_value(result["structuredContent"]))
    return "\n".join(texts)


def _run_remote(client: McpClient, name: str, arguments: dict) -> object:
    """The value that the server's tool returns; every way to fail is a ToolError."""
    try:
        result = client.call_tool(name, arguments)
    except (RpcError, McpError) as error:
        raise ToolError(str(error)) from error
    text = result_text(result)
    if result.get("isError") is True:
        raise ToolError(text)
    with contextlib.suppress(RpcError, ValueError, RecursionError):
        if json_text(value := decode(text.encode("utf-8", "replace"))) == text:
            return value  # JSON, and writing it again gives the same text
    return text


_HINT_LABELS = (
    ("readOnlyHint", False, "read_only"),  # hint, its default by the specification, our label
    ("destructiveHint", True, "irreversible"),
    ("openWorldHint", True, "untrusted"),
)


def as_object(value: object) -> dict:
    """The value if it is a dict, else {}: what a server sends may be anything."""
    return value if isinstance(value, dict) else {}


def _labels(listed: dict, told: object) -> frozenset[str]:
    """What our own server told, else what the hints say; none says that results change."""
    if isinstance(told, list):
        return frozenset(label for label in LABELS if label in told)
    hints = as_object(listed.get("annotations"))
    labels = {label for hint, default, label in _HINT_LABELS if hints.get(hint, default) is True}
    return frozenset(labels - {"irreversible"} if "read_only" in labels else labels)


def _local_name(name: object, taken: ToolRegistry) -> str:
    """A name that hosts and models accept, made from whatever the server calls the tool."""
    base = re.sub(r"[^A-Za-z0-9_-]", "_", str(name))[:45] or "tool"
    names = itertools.chain([base], (f"{base[:41]}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _local_schema(schema: object) -> dict:
    """The server's schema where ours can check it, else with {} for each part that cannot be."""
    whole = {**as_object(schema), "type": "object"}
    if not check_schema(whole):
        return whole
    checked = {"type": "object", "properties": {}}
    for name, part in as_object(whole.get("properties")).items():
        alone = {"type": "object", "properties": {name: part}}
        checked["properties"][name] = {} if check_schema(alone) else part
    demanding = {**checked, "required": whole.get("required")}
    return checked if check_schema(demanding) else demanding


def _remote_tool(client: McpClient, listed: dict, taken: ToolRegistry) -> Tool:
    """The tool for one entry of tools/list, with what hosts or models would not accept mended."""
    remote = listed.get("name")
    name = _local_name(remote, taken)
    description = str(listed.get("description") or listed.get("title") or "").strip()
    own = as_object(listed.get("_meta"))
    limit = own.get(LIMIT_KEY)
    return Tool(
        name, cut(description or f"远程工具 {name}", DESCRIPTION_LIMIT),
        _local_schema(listed.get("inputSchema")),
        run=lambda arguments: _run_remote(client, remote, arguments),
        title=str(listed.get("title") or ""), labels=_labels(listed, own.get(LABELS_KEY)),
        characters=None if limit_fault("characters", limit) else limit,
        output=as_object(listed.get("outputSchema")) or None,
    )


def _result_of(reply: dict | None) -> dict:
    """The result in a reply. Raises RpcError for an error in it, McpError for anything else."""
    match reply:
        case {"error": {"code": int() as code, "message": str() as message, **rest}}:
            raise RpcError(code, message, rest.get("data"))
        case {"result": dict() as result} if result.get("resultType", "complete") == "complete":
            return result
    raise McpError(f"服务器的答复不合协议：{show(reply)}")


class McpClient:
    """A session with one server, in whichever era it speaks.

    `send(message, seconds)` delivers; it raises ServerSilentError or ServerGoneError. `restart()`,
    if given, starts the server anew when it dies of the first question. With `revision` only that
    one is spoken; else the newest is tried first.

    >>> server = McpServer(ToolRegistry())
    >>> client = McpClient(lambda message, seconds: (server.handle(message) or [None])[-1])
    >>> client.connect().revision
    '2026-07-28'
    """

    def __init__(
        self, send: Callable[[dict, float], dict | None], *,
        restart: Callable[[], None] | None = None, revision: str | None = None,
        seconds: float = REQUEST_SECONDS, probe_seconds: float = PROBE_SECONDS,
    ):
        self._send, self._restart, self._wanted = send, restart, revision
        self.seconds, self._probe_seconds = seconds, probe_seconds
        self._ids = itertools.count(1)
        self.revision = ""  # agreed with the server; "" before connect
        self.server: dict = {}  # its name and version
        self.capabilities: dict = {}
        self.instructions = ""

    # ── Opening ──

    def connect(self) -> McpClient:
        """Agree on a revision; returns self. Raises RpcError or McpError when there is none."""
        if self._wanted in (None, MODERN.name) and self._discover():
            return self
        if self._wanted == MODERN.name:
            raise McpError(f"服务器不支持 {self._wanted} 版协议")
        self._initialize(self._wanted or LATEST_LEGACY.name)
        return self

    def _discover(self) -> bool:
        """Ask as the modern era does; False means that the server is a legacy one.

        Not only -32601 but any other error, silence and nonsense mean that, too (spec, versioning).
        """
        result: dict = {}
        try:
            result = self.request(
                "server/discover", revision=MODERN.name, seconds=self._probe_seconds,
            )
        except RpcError as error:
            if error.code == UNSUPPORTED_VERSION:
                result = {"supportedVersions": as_object(error.data).get("supported")}
        except ServerGoneError:
            if self._restart is None:
                raise
            self._restart()
        except McpError:
            pass
        supported = result.get("supportedVersions")
        if not isinstance(supported, list) or MODERN.name not in supported:
            return False
        self._agreed(MODERN.name, result, as_object(result.get("_meta")).get(SERVER_KEY))
        return True

    def _initialize(self, version: str) -> None:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT_INFO}
        result = self.request("initialize", params, revision=version)
        agreed = REVISIONS.get(str(result.get("protocolVersion")), MODERN)
        if agreed.modern:
            raise McpError(f"服务器要用协议版本 {show(result.get('protocolVersion'))}，这里不支持")
        self._agreed(agreed.name, result, result.get("serverInfo"))
        self._send(notification_message("notifications/initialized"), self.seconds)

    def _agreed(self, revision: str, result: dict, server: object) -> None:
        self.revision = revision
        self.server, self.capabilities = as_object(server), as_object(result.get("capabilities"))
        self.instructions = str(result.get("instructions") or "")

    # ── Asking ──

    def request(
        self, method: str, params: dict | None = None, *,
        revision: str = "", seconds: float | None = None,
    ) -> dict:
        """The result of a request, in the agreed revision or another, in `seconds` or the usual.

        Raises RpcError for an error reply, McpError for none at all.
        """
        seconds = seconds or self.seconds
        if MODERN.name == (revision or self.revision):
            envelope = {VERSION_KEY: MODERN.name, CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}
            given = params or {}
            params = {**given, "_meta": {**given.get("_meta", {}), **envelope}}
        message = request_message(next(self._ids), method, params)
        try:
            return _result_of(self._send(message, seconds))
        except ServerSilentError:
            if self.revision:  # during the opening the server may not know this notification
                gone = {"requestId": message["id"], "reason": "等待超时"}
                self._send(notification_message("notifications/cancelled", gone), seconds)
            raise

    def pages(self, method: str, key: str) -> list[dict]:
        """All entries of a list, page by page. A cursor that comes again ends it."""
        entries, cursors, params = [], set(), None
        for _ in range(MOST_PAGES):
            result = self.request(method, params)
            found = result.get(key)
            entries += [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        return entries

    def call_tool(self, name: str, arguments: dict) -> dict:
        """The result of tools/call as it came: {"content", "isError", …}."""
        return self.request("tools/call", {"name": name, "arguments": arguments})

    def tools(self) -> ToolRegistry:
        """The server's tools, ready for the loop; calling one asks the server."""
        registry = ToolRegistry()
        for listed in self.pages("tools/list", "tools"):
            registry.add(_remote_tool(self, listed, registry))
        return registry


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 17  HTTP      uses §1, §3, §4, §9–§13 · http.client imported late
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Models behind a network address. Building a request and reading a reply are pure functions; one
# class sends, waits and tries again. "OpenAI-compatible" servers differ in a hundred small ways:
# the first request is minimal, and a server that refuses it says what it lacks. Each difference is
# one row of OPENAI_QUIRKS, learned from the refusal, told to the user once, kept for the run.
# http.client, not urllib.request: it follows no redirect, asks no proxy unless told to, and lets a
# connection time out in seconds while a slow model may think for minutes.

LONGEST_REPLY = 64 * 2**20  # bytes of one reply; more is a runaway or hostile server
LONGEST_WAIT = 120  # seconds a server may ask us to wait before a retry
LOADING_TRIES = 12  # of a server that is loading its model: about two minutes in all


class Patience(NamedTuple):
    """Seconds to wait. A small CPU can take minutes before the first token of a long prompt."""

    connect: float = 10.0
    silence: float = 600.0  # without a single byte
    whole: float = 1800.0  # for one reply from first to last byte, against endless streams


class HttpError(Exception):
    """A request that brought no whole answer. status 0: the connection or the stream broke.

    text: the server's words; value: the JSON they came in.
    """

    turn: Turn | None = None  # what had arrived before

    def __init__(self, status: int, text: str, value: object = None, headers: Mapping = {}):
        super().__init__(text)
        self.status, self.text, self.value, self.headers = status, text, value, headers


# --- addresses ---

# Patterns stay text in this section: most runs need none, and compiling them costs start-up time.
_PASTED_PATH = (  # the last are Ollama's own
    r"/((chat/)?completions|responses|models|messages|embeddings|api/(chat|generate|tags|show))$"
)
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # to listen on, not to call


def is_loopback(host: str) -> bool:
    """True for this machine: no proxy can reach it."""
    return bool(re.fullmatch(r"(.*\.)?localhost|127\..*|::1", host))


def host_of(url: str) -> str:
    """The host name of an address."""
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


def repair_base_url(text: str) -> str:
    """The base address of an API, from whatever was pasted. Raises BackendError.

    >>> repair_base_url("localhost:11434/v1/chat/completions"), repair_base_url("api.deepseek.com/")
    ('http://localhost:11434/v1', 'https://api.deepseek.com')
    """
    from urllib.parse import urlsplit

    given = text = text.strip().strip("\"'<>")
    if "://" not in text:
        local = re.match(r"localhost\b|[\d.]+(?:[:/]|$)|\[|[^/]+:\d", text)
        text = ("http://" if local else "https://") + text
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not re.fullmatch(r"(?!https?$)[^\s\\]+", host) or parts.scheme not in ("http", "https"):
        raise BackendError(f"看不懂地址 {show(given)}，应该像 http://127.0.0.1:11434/v1")
    if parts.username:
        raise BackendError("地址里不要带用户名和密码，密钥请用 --key")
    host = _ANY_ADDRESS.get(host, host)
    host = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    path = re.sub(_PASTED_PATH, "", re.sub("/+", "/", parts.path).rstrip("/"))
    return parts._replace(netloc=host, path=path, fragment="").geturl()


def ollama_base_url(text: str) -> str:
    """The base address behind OLLAMA_HOST, which may be an address to listen on.

    >>> ollama_base_url("0.0.0.0"), ollama_base_url(":8000")
    ('http://127.0.0.1:11434/v1', 'http://127.0.0.1:8000/v1')
    """
    if "://" not in text:
        host, port, path = re.fullmatch(r"(?s)([^/]*?)(?::(\d+))?(/.*)?", text).groups("")
        text = f"http://{host or '127.0.0.1'}:{port or 11434}{path}"
    return repair_base_url(text).removesuffix("/v1") + "/v1"


# --- what a failure says ---

_ERROR_KEYS = (  # where servers put the sentence, or another object that holds it
    "error_description", "error", "errors", "message", "metadata", "raw", "detail", "msg",
    "error_msg", "title", "base_resp", "status_msg",
)


def _sentence(value: object) -> str:
    """The sentence inside an error body; every server has its own shape."""
    match value:
        case str():
            return value
        case {"msg": str(text), "loc": list(place)}:  # FastAPI
            return f"{'.'.join(map(str, place))}: {text}"
        case list():
            return "; ".join(filter(None, map(_sentence, value[:3])))
        case dict():
            found = [_sentence(value[key]) for key in _ERROR_KEYS if value.get(key)]
            return " ".join(dict.fromkeys(filter(None, found)))
    return ""


def read_error(body: bytes) -> tuple[str, object]:
    """(sentence, JSON value or None) of an error body: JSON of any shape, HTML, text or nothing."""
    text, value, limit = body.decode("utf-8", "replace"), None, 200
    try:
        value, limit = json.loads(text), 600
        text = _sentence(value) or (json_text(json_value(value)) if value else "")
    except (ValueError, RecursionError):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S)
        text = title[1] if title else text
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.I | re.S)
    return _cut(" ".join(text.split()), limit), value


def raise_error_object(value: dict) -> None:
    """Raise HttpError when an object of a reply is an error, as some send under HTTP 200."""
    choice = _dict(next(iter(_list(value.get("choices"))), None))
    value = choice if choice.get("error") else value  # OpenRouter puts it there
    error = value.get("error") or (value if value.get("object") == "error" else None)
    answers = any(value.get(key) for key in ("choices", "candidates", "type", "data", "models"))
    if not error and (answers or not _sentence(value)):
        return
    inner = error if isinstance(error, dict) else value
    code = str(inner.get("code") or inner.get("status_code"))
    status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 200
    status = 529 if "overloaded" in str(inner.get("type")) else status
    raise HttpError(status, read_error(json.dumps(value).encode())[0], value)


def retry_after(headers: Mapping, now: float) -> float | None:
    """Seconds a server asks us to wait, from milliseconds, seconds or a date; None: it did not say.

    >>> retry_after({"retry-after-ms": "1500"}, 0), retry_after({"retry-after": "-3"}, 0)
    (1.5, 0.0)
    """
    milliseconds, text = headers.get("retry-after-ms"), headers.get("retry-after") or ""
    with contextlib.suppress(ValueError):
        seconds = float(milliseconds) / 1000 if milliseconds else float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    from email.utils import parsedate_to_datetime

    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None


_HOPELESS = r"(?i)insufficient_quota|exceeded your current quota|credit balance|余额不足|欠费"
_UNREADABLE_CALL = (
    r"(?i)pars\w+ tool call|does not match the expected|peg-native"  # Ollama, llama-server
    r"|tool_use_failed|failed to call a function"  # Groq
)


def pause_before_retry(failure: HttpError, tries: int, now: float) -> float | None:
    """Seconds to wait before the same request goes out again; None: it would not help.

    `tries` have failed before this one. Sources: RFC 9110 10.2.3; the vendors' own clients.
    """
    status, text = failure.status, failure.text
    if status == 503 and "loading model" in text.lower():  # llama-server while it starts
        return min(15.0, 2.0**tries) if tries < LOADING_TRIES else None
    most = 2 if status in (408, 409, 429) or status > 500 else 0
    if status in (0, 500) or re.search(_UNREADABLE_CALL, text):
        most = 1
    wait = retry_after(failure.headers, now)
    if wait is None:  # clients that failed together should not return together
        wait = 0.5 * 2**tries * (1 + os.urandom(1)[0] / 1024)
    hopeless = wait > LONGEST_WAIT or re.search(_HOPELESS, text)
    return wait if tries < most and not hopeless else None


_SERVERS = {  # by their usual port: the name, how to start it, how to give it a longer context
    11434: ("Ollama", "ollama serve", "设 OLLAMA_CONTEXT_LENGTH=16384 后重启 Ollama"),
    8000: (
        "vLLM", "vllm serve MODEL --enable-auto-tool-choice --tool-call-parser hermes",
        "启动 vLLM 时加大 --max-model-len",
    ),
    8080: (
        "llama-server", "llama-server -m MODEL.gguf --jinja -c 16384",
        "启动 llama-server 时加大 -c，例如 -c 16384",
    ),
    1234: ("LM Studio", "lms server start", "在 LM Studio 里加大 Context Length 后重新加载"),
}


def _servers_at(url: str) -> list[tuple[str, str, str]]:
    """The server that usually has this port, or all of them."""
    return [row for port, row in _SERVERS.items() if f":{port}" in url] or list(_SERVERS.values())


def _longer_context(url: str) -> str:
    if url.startswith("https:"):
        return "缩短问题和 --system，或换一个上下文更长的模型"
    return "；".join(longer for _, _, longer in _servers_at(url))


def connection_problem(error: Exception, url: str, proxy: str) -> BackendError:
    """What the user should do when nothing answers at that address."""
    import socket
    import ssl

    host, url, proxy = host_of(url), url.partition("?")[0], re.sub("//[^/@]*@", "//", proxy)
    match error:
        case ConnectionRefusedError() if is_loopback(host):
            starts = "\n".join(f"  {name}：{start}" for name, start, _ in _servers_at(url))
            tried = "（::1 和 127.0.0.1 都试过）" if host == "localhost" else ""
            text = f"连不上 {url}{tried}：没有程序在监听。先启动服务：\n{starts}\n地址不对请改 "
            text += "--base-url；只想看看效果就用 --backend mock 提问"
        case socket.gaierror() | UnicodeError():
            text = f"找不到主机 {proxy or host}，请检查地址和网络"
        case ssl.SSLCertVerificationError():
            text = f"{host} 的证书不可信：{error.verify_message}；自签的请设 SSL_CERT_FILE"
        case ssl.SSLError():
            text = f"和 {host} 不能建立加密连接；服务若不是 https，地址请以 http:// 开头"
        case OSError():
            text = f"连不上 {url}：{os_reason(error)}，请检查网络和 --base-url"
        case _:
            text = f"{url} 回的不是 HTTP（{error_text(error)}），请检查 --base-url"
    way = f"（经过代理 {proxy}；不想用代理就设 NO_PROXY={host}）" if proxy else ""
    return BackendError(text + way)


# --- the transport ---


class _TimedSocket(io.RawIOBase):
    """A connected socket for http.client; nothing on it, not even a header, outlasts `patience`."""

    def __init__(self, sock, patience: Patience):
        self._sock, self._patience = sock, patience
        self._deadline = time.monotonic() + patience.whole

    def _timed(self, work: Callable, argument):
        left, silence = self._deadline - time.monotonic(), self._patience.silence
        if left > 0:
            self._sock.settimeout(min(silence, left))
            with contextlib.suppress(TimeoutError):
                return work(argument)
        late = f"{self._patience.whole:g} 秒还没有答完"
        what = late if left <= silence else f"{silence:g} 秒没有动静"
        raise BackendError(f"模型 {what}，已停止；可以用 --timeout 放宽")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self._timed(self._sock.recv_into, buffer)

    def sendall(self, data: bytes) -> None:
        self._timed(self._sock.sendall, data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """http.client closes early and reads on; who made the socket closes it."""


def _proxy_for(url: str) -> str:
    """The proxy that the environment names for this address; never one for this machine."""
    if is_loopback(host_of(url)):
        return ""
    from urllib.request import getproxies, proxy_bypass

    scheme, _, rest = url.partition("://")
    return "" if proxy_bypass(rest.partition("/")[0]) else getproxies().get(scheme, "")


def _connection(url: str, proxy: str, seconds: float) -> tuple:
    """(connection, request target, headers for the proxy), not yet connected."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import quote, unquote, urlsplit

    url = quote(url, safe="!#$%&'()*+,/:;=?@[]~")
    parts = urlsplit(url)
    target, headers = url.partition(parts.netloc)[2], {}
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    if not proxy:
        return make(parts.hostname, parts.port, timeout=seconds), target, {}
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        if via.scheme not in ("http", "https") or not via.hostname:
            raise ValueError
        connection = make(via.hostname, via.port or 80, timeout=seconds)
    except ValueError:
        raise BackendError(
            f"只支持 http 代理；请改 HTTPS_PROXY、HTTP_PROXY，或设 NO_PROXY={parts.hostname}",
        ) from None
    if via.username:
        import base64

        secret = unquote(f"{via.username}:{via.password or ''}").encode()
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(secret).decode()
    if parts.scheme == "http":
        return connection, url, headers
    connection.set_tunnel(parts.hostname, parts.port or 443, headers)
    return connection, target, {}


@contextlib.contextmanager
def http_exchange(url: str, headers: dict, body: bytes | None, patience: Patience):
    """Context with the response to a POST of the body, or to a GET where that is None.

    Raises BackendError and HttpError.
    """
    from http.client import HTTPException

    proxy = _proxy_for(url)
    connection, target, extra = _connection(url, proxy, min(patience.connect, patience.whole))
    sock = None
    try:
        try:
            connection.connect()
            sock = connection.sock
            connection.sock = _TimedSocket(sock, patience)
            # a server may refuse a long body before it has read it, and its answer says why
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                method = "GET" if body is None else "POST"
                connection.request(method, target, body, {**headers, **extra})
            response = connection.getresponse()
        except (OSError, UnicodeError, HTTPException) as error:
            if sock and isinstance(error, OSError):
                reason = os_reason(error) if error.errno else "对方没有回答就关闭了"
                raise HttpError(0, f"连接中断（{reason}）") from error
            raise connection_problem(error, url, proxy) from error
        yield response
    finally:
        connection.close()
        if sock:
            sock.close()


def _plain_body(response) -> Iterator[bytes]:
    """The chunks of a body, unpacked: we ask for no compression, some servers send it anyway.

    A connection that breaks just ends it: the fold sees what is missing.
    """
    import zlib
    from http.client import HTTPException

    encoding = (response.headers.get("content-encoding") or "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise BackendError(f"服务器用了不认识的压缩方式 {encoding}")
    unpack, total = bytes if encoding == "identity" else None, 0
    try:
        while chunk := response.read1(65536):
            if unpack is None:  # "deflate" comes with or without zlib's header
                bare = encoding == "deflate" and chunk[0] & 15 != zlib.DEFLATED
                form = -zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32
                unpack = zlib.decompressobj(form).decompress
            chunk = unpack(chunk)
            total += len(chunk)
            if total > LONGEST_REPLY:
                raise BackendError(f"服务器的回复超过 {LONGEST_REPLY // 2**20} MiB，已停止")
            yield chunk
    except zlib.error:
        raise HttpError(0, "服务器的压缩数据坏了") from None
    except (OSError, HTTPException):
        pass


# --- the reply: bytes → JSON objects, whatever the framing ---

_WEB_PAGE = "收到的是网页"  # instead of an API: most often the path is wrong


def _whole_or_lines(chunks: Iterable[bytes]) -> list:
    """The JSON values of a body: one document, or one per line (NDJSON)."""
    text = b"".join(chunks).decode("utf-8-sig", "replace")
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return [json.loads(line) for line in text.split("\n") if line.strip()]


def _events(chunks: Iterable[bytes]) -> Iterator[object]:
    """The JSON value of each event up to [DONE]; keep-alive comments, also as data, are skipped."""
    for data in sse_events(chunks):
        if data.strip() == "[DONE]":
            yield {"done": True}  # some servers keep the connection open: read no further
            return
        if data.strip() and not data.startswith(":"):
            yield json.loads(data)


def reply_objects(chunks: Iterable[bytes]) -> Iterator[dict]:
    """Every JSON object of a reply: server-sent events, NDJSON, or one document.

    The first byte decides, not the content type: servers that ignore `stream` forget that too.
    """
    head, start, chunks, value = b"", b"", iter(chunks), None
    while not start and (chunk := next(chunks, None)) is not None:
        head += chunk
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    chunks = itertools.chain([head], chunks)
    if start == b"<":
        raise HttpError(200, f"{_WEB_PAGE}（{read_error(b''.join(chunks))[0]}），不是 API")
    read = _whole_or_lines if start in (b"{", b"[") else _events
    try:
        for value in read(chunks):
            for item in value if isinstance(value, list) else [value]:  # a list: Gemini
                if not isinstance(item, dict):
                    raise ValueError
                yield item
    except (ValueError, RecursionError):
        raise HttpError(0, "服务器的回复里有一段不是 JSON") from None
    if value in (None, []):
        words = read_error(head)[0]
        raise HttpError(0, f"服务器的回复看不懂：{words}" if words else "服务器的回复是空的")


# --- asking, waiting, asking again ---


class Question(NamedTuple):
    """What one `.chat` is given; the same for every backend."""

    messages: list[dict]
    tools: list[dict]  # neutral definitions, as ToolRegistry.schemas gives them
    choice: str | dict | None = None  # None is "auto": LM Studio refuses the very key


def _question(messages: list[dict], tools: list[dict], choice: str | dict) -> Question:
    """The question; told "none", llama-server prints the call as text: offer nothing instead."""
    tools = tools if choice != "none" else []
    return Question(messages, tools, choice if tools and choice != "auto" else None)


class Settings(NamedTuple):
    """What the user asked for; None and {} mean that the request does not mention it."""

    model: str = ""
    options: dict = {}  # sent as given
    max_tokens: int | None = None
    stream: bool = True


_ESSENTIAL = frozenset({"model", "messages", "contents", "system", "systemInstruction", "tools"})


def refused_field(text: str, body: dict) -> str | None:
    """The field of our request that a refusal names, longest first; short names only in quotes.

    >>> refused_field("Unrecognized request argument supplied: top_k", {"model": "m", "top_k": 5})
    'top_k'
    """
    for field in sorted(set(body) - _ESSENTIAL, key=len, reverse=True):
        quote = "" if len(field) > 3 else "[`'\"]"
        if re.search(rf"(?<!\w){quote}{re.escape(field)}{quote}(?!\w)", text):
            return field
    return None


def estimated_tokens(body: dict) -> int:
    """A deliberately low estimate of what a request costs: real tokenizers count more."""
    sent = [body.get(key) for key in ("messages", "contents", "system", "tools")]
    text = re.sub(r"(\s|\\n)+", " ", json_text(sent))
    text = re.sub(r"(.)\1{3,}", r"\1", text)  # runs of one character cost next to nothing
    wide = (len(text.encode()) - len(text)) / 2  # 汉字 take three bytes
    return int(0.4 * wide + (len(text) - wide) / 7)


_WINDOWS = frozenset({2048, 4096, 8192, 16384, 32768})  # tokens; usual context sizes


def context_was_cut(usage: Usage, low: int) -> bool:
    """True when the server read far less than was sent, or exactly filled a usual window."""
    filled = {usage.input, usage.input + usage.output} & _WINDOWS and 2 * low >= usage.input
    return bool(low >= 1000 and 0 < usage.input < 0.8 * low or filled)


def told_as_text(question: Question) -> Question:
    """The question in the text protocol: tools in the system message, calls and results as text."""
    if not question.tools:
        return question
    prompt = {"role": "system", "content": text_tools_prompt(question.tools)}
    messages: list[dict] = []
    for message in tidy_history([*question.messages, prompt]):
        match message:
            case {"role": "tool", "content": text}:
                _add_user(messages, text_tool_result(text))
            case {"role": "assistant", "tool_calls": calls, "content": text}:
                for function in (call["function"] for call in calls):
                    value = {**function, "arguments": arguments_object(function["arguments"])}
                    text += f"\n<tool_call>\n{json_text(value)}\n</tool_call>"
                messages.append({"role": "assistant", "content": text.strip()})
            case _:
                messages.append(message)
    return Question(messages, [])


def _unwrapped(call: ToolCall, reading: _Reading) -> ToolCall:
    """The call without a list of one (gpt-oss), or a sole key (DeepSeek V3.2), around arguments."""
    text = call.arguments
    listed = isinstance(text, str) and re.fullmatch(r"(?s)\s*\[(.*)\]\s*", text)
    bare = _new_call(reading, call.name, listed[1] if listed else text).arguments
    changed = isinstance(bare, dict) and bare != _parsed(text)
    return call._replace(arguments=bare) if changed else call


def sorted_text(turn: Turn, question: Question) -> Turn:
    """The turn with reasoning, and calls if there are no proper ones, taken out of its text."""
    # an emoji may come in halves, one per delta
    text = turn.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if question.tools and not turn.calls:
        ids, cut_off = call_ids(question.messages), turn.finish == "length"
        parts = parse_text_tool_calls(text, question.tools, used_ids=ids, cut=cut_off)
        if parts.calls:
            thought = turn.reasoning or parts.reasoning
            return turn._replace(text=parts.text, calls=parts.calls, reasoning=thought)
    text, thought = split_reasoning(text)
    reading = _Reading(question.tools)
    calls = tuple(_unwrapped(call, reading) for call in turn.calls)
    return turn._replace(text=text, calls=calls, reasoning=turn.reasoning or thought)


_MODEL_UNKNOWN = (
    r"(?is)model.{0,80}(not found|not exist|no such|unknown|invalid|不存在)"
    r"|(not found|no such|unknown|invalid).{0,20}model|模型.{0,40}不存在"
)
_NO_TOOLS = (  # vLLM, llama-server, Ollama; OpenRouter, strict servers; Mistral and others
    r"(?i)tool-call-parser|tools param requires|do(es)?( not|n't) support (tool|function)"
    r"|endpoints found that support tool|(unrecognized|unknown)[^.]{0,50}\btools\b|body\.tools:"
    r"|\b(tools?(?! choice)|function calling)\b[^.]{0,40} not (supported|enabled|available)"
)
_NO_STREAM = r"(?i)\bstream(ing)?\b.{0,60}(not supported|unsupported)|(not|n't) support stream"
_TOO_LONG = r"(?i)context.{0,9}(length|size|window)|(prompt|input) is too long|maximum.{0,30}tokens"
_CUT_SHORT = (  # reasons to end an answer that was not at its end
    r"(?i)content_?filter|safety|recitation|blocklist|sensitive|refusal|pause_turn|error|resource"
)
_WRONG_PATH = rf"Unexpected endpoint|{_WEB_PAGE}"  # LM Studio's words, under HTTP 200
_TEXT_PROTOCOL = "改用文字协议：工具写进系统提示，从模型的文字里识别调用。"
_ADVICE = (  # the statuses or the words of a refusal; what the user can do about it
    ((0,), "", "重试后还是这样；请看服务器的日志，检查 --base-url"),
    ((), _UNREADABLE_CALL, "模型写出了服务器读不懂的工具调用，重试也一样；换个问法或换个模型再试"),
    (range(201, 400), "", "程序不跟随跳转，请把 --base-url 改成最终的地址"),
    ((401, 403), r"(?i)api.?key|authenticat|unauthori[sz]ed", "{key}"),
    ((407,), "", "代理要登录：把 HTTPS_PROXY、HTTP_PROXY 写成 http://用户:密码@代理地址"),
    ((404, 405), _WRONG_PATH, "请求的地址是 {url}，请检查 --base-url{v1}"),
    ((413,), _TOO_LONG, "对话太长，办法：{longer}"),
    ((402,), _HOPELESS, "账户的额度用完了，请充值或换一个服务"),
    ((429,), "", "请求太多：请稍后再试，一直这样就查账户的配额"),
    (range(500, 1000), "", "请稍后再试；一直这样就看服务器的日志"),
    ((200,), "", "服务器回答时出了错：请稍后再试，或看它的日志；用了 -o 就先去掉"),
    (range(1000), "", "请检查 --base-url、--model 和 -o 的参数"),
)


class HttpModel:
    """A model behind HTTP; a vendor's class says how a request is written and a reply is read.

    notice(sentence) tells the user, once each, what the program had to work around.
    """

    usual_url = url_variable = model_variable = ""  # variables of the environment
    key_variables: tuple[str, ...] = ()
    path, models_path = "", "/models"
    versions: tuple[str, ...] = ()  # ends of a pasted address that `path` has already
    key_header = ("Authorization", "Bearer {}")
    other_headers: dict[str, str] = {}
    quirks: tuple[tuple, ...] = ()  # as OPENAI_QUIRKS
    build: Callable[[Question, Settings], dict]  # the body, before what was learned
    fold: Callable[[set[str]], object]  # used ids → feed(object) → [(kind, text)] …, turn() → Turn

    def __init__(
        self, base_url: str, settings: Settings = Settings(), *, key: str = "",
        key_hint: str = "请用 --key 给出正确的密钥", patience: Patience = Patience(),
        notice: Callable[[str], None] = lambda sentence: None,
        now: Callable = time.time, sleep: Callable = time.sleep,
    ):
        if not key.isascii() or not key.isprintable():
            raise BackendError("密钥里有空白行或不是 ASCII 的字符，多半是复制时多带了内容")
        base, _, self.query = repair_base_url(base_url).partition("?")
        self.base_url = functools.reduce(str.removesuffix, self.versions, base)
        self.settings, self.patience, self.key_hint = settings, patience, key_hint
        key = key.strip()
        self._secret = key.removeprefix("Bearer ")  # with it: a token, as relays want it
        name, form = self.key_header if self._secret == key else ("Authorization", "{}")
        self._headers = {
            "Content-Type": "application/json", "Accept-Encoding": "identity",
            "Connection": "close", "User-Agent": f"w4d3_tools_mcp/{VERSION}",
            **self.other_headers, **({name: form.format(key)} if key else {}),
        }
        self.requests = 0  # for answers, so far, retries included
        self._tell, self._now, self._sleep = notice, now, sleep
        self._said: set[str] = set()
        self._as_text = False  # the server takes no tools
        self._changes: list[Callable[[dict], dict]] = []  # of every request: learned from refusals

    def notice(self, sentence: str) -> None:
        """Tell the user, unless they know already."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._tell(self._without_key(sentence))

    def _without_key(self, text: str) -> str:
        """Some servers quote the key in their errors."""
        return text.replace(self._secret, "[已隐去]") if self._secret else text

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        """The model's answer. Raises BackendError with a sentence for the user."""
        question = _question(messages, tools, tool_choice)
        for last in (False, True):
            turn = self._ask(question, on_delta or (lambda kind, piece: None))
            if turn.calls or turn.text.strip():
                return turn
            if turn.finish == "length":
                raise BackendError("模型用完了长度上限还没有写出回答，请加大 --max-tokens")
            if not last:
                self.notice("模型的回答是空的，再问一次。")
        raise BackendError(f"模型两次都给了空的回答（{turn.finish}），换个问法或换个模型再试")

    def _ask(self, question: Question, show: Callable) -> Turn:
        """One answer, over as many requests as it takes."""
        tries = 0
        while True:
            body = self.build(told_as_text(question) if self._as_text else question, self.settings)
            for change in self._changes:
                body = change(body)
            try:
                return self._once(question, body, show)
            except HttpError as error:
                failure = error
            if turn := self.rescued(failure, question):
                return turn
            if self.mended(failure, body):
                continue
            wait = pause_before_retry(failure, tries, self._now())
            if wait is None:
                unknown = 0 < failure.status < 500 and re.search(_MODEL_UNKNOWN, failure.text)
                known = self._known_models() if unknown else ""
                raise self._explained(failure, known) from failure
            code = f"HTTP {failure.status} " if failure.status else ""
            reason = self._without_key(_cut(code + failure.text, 120))
            self._tell(f"{reason}；{wait:.1f} 秒后重试。")
            show("again", "")
            self._sleep(wait)
            tries += 1

    def _objects(self, path: str, body: dict | None = None) -> Iterator[dict]:
        """The objects of a good reply. Raises HttpError for any other."""
        data = None if body is None else json_text(body).encode()
        mark = ("&" if "?" in path else "?") if self.query else ""
        url = self.base_url + path + mark + self.query
        self.requests += body is not None
        with http_exchange(url, self._headers, data, self.patience) as response:
            chunks = _plain_body(response)
            if response.status >= 300:
                text, value = read_error(b"".join(chunks))
                if response.status < 400:
                    text = f"要求跳转到 {response.headers.get('location', '别处')}"
                raise HttpError(response.status, text, value, response.headers)
            for value in reply_objects(chunks):
                raise_error_object(value)
                yield value

    def _once(self, question: Question, body: dict, show: Callable) -> Turn:
        """The answer to one request."""
        fold, screen = self.fold(call_ids(question.messages)), TextStream(question.tools)
        broken = None
        try:
            for value in self._objects(self.path, body):
                for kind, piece in fold.feed(value):
                    for shown in screen.feed(piece) if kind == "text" else [(kind, piece)]:
                        show(*shown)
            if not fold.done:
                raise HttpError(0, "连接断了，没有结束标记")
        except (HttpError, BackendError) as error:
            broken = error
        for shown in screen.close():
            show(*shown)
        if broken:
            broken.turn = screen.parts
            if begun := _cut(broken.turn.text, 300):
                broken.args = (f"{broken}（已收到：{begun}）",)
            raise broken
        plain = fold.turn()
        turn = sorted_text(plain, question)
        if turn.calls and "tools" in body and not plain.calls:
            self.notice("模型把调用写成了文字，已照样识别并执行。")
        if turn.text and re.search(_CUT_SHORT, turn.finish):
            self.notice(f"回答可能不完整：服务器给的结束原因是 {turn.finish}。")
        usage = turn.usage or Usage()
        low = estimated_tokens(body) if usage.input else 0
        if context_was_cut(usage, low):
            self.notice(
                f"上下文很可能被截断了：发出至少约 {low} 个 token，服务器只读了 {usage.input} 个，"
                f"系统提示和工具说明可能已经丢失。办法：{_longer_context(self.base_url)}。",
            )
        return turn

    def rescued(self, failure: HttpError, question: Question) -> Turn | None:
        """A turn made from what a failure carries: Groq hands over the call it could not parse."""
        match failure.value:
            case {"error": {"failed_generation": str(written)}} if question.tools:
                turn = sorted_text(Turn(written), question)
                return turn if turn.calls else None

    def mended(self, failure: HttpError, body: dict) -> bool:
        """Learn what the server refuses; True when the next request will differ."""
        status, text = failure.status, failure.text
        if status not in (200, 400, 404, 405, 422, 500, 501):
            return False
        if "tools" in body and re.search(_NO_TOOLS, text) and not re.search(_NO_STREAM, text):
            self._as_text = True
            why = "服务器说这个模型不支持工具。"
            for word, port in (("tool-call-parser", 8000), ("jinja", 8080)):
                if word in text:
                    name, start, _ = _SERVERS[port]
                    why = f"这个 {name} 没有打开工具调用，要这样启动：{start}。"
            self.notice(why + _TEXT_PROTOCOL)
            return True
        field = refused_field(text, body) if status in (200, 400, 422) else None
        dropped = functools.partial(_without, key=field)
        row = (re.escape(field or ""), dropped, f"服务器不接受 {field}，已去掉后重发。")
        for refusal, change, notice in (*self.quirks, row):
            if re.search(refusal, text) and change(body) != body:
                self._changes.append(change)
                self.notice(notice)
                return True
        return False

    def _explained(self, failure: HttpError, advice: str = "") -> BackendError:
        """What happened and what to do; `advice` is better than ours."""
        status, text = failure.status, str(failure).rstrip("。.") or "（没有说明）"
        match failure.value:
            case {"error": {"n_ctx": room, "n_prompt_tokens": tokens}}:  # llama-server
                text += f"（对话有 {tokens} 个 token，服务器的上下文只有 {room} 个）"
        wait = retry_after(failure.headers, self._now()) or 0
        if wait > LONGEST_WAIT:
            advice = f"服务器要求等 {wait:.0f} 秒，请晚些再试"
        fits = (
            advice for statuses, words, advice in _ADVICE
            if status in statuses or (words and re.search(words, failure.text))
        )
        ours = next(fits).format(
            key=self.key_hint, url=self.base_url + self.path, longer=_longer_context(self.base_url),
            v1="" if self.versions else "（多数服务以 /v1 结尾）",  # our own path has it already
        )
        who = f"{host_of(self.base_url)} 返回 HTTP {status}：" if status else ""
        problem = BackendError(self._without_key(f"{who}{text}。{advice or ours}"))
        problem.turn = failure.turn
        return problem

    def _known_models(self) -> str:
        try:
            known = self.models()
        except BackendError:
            return "用 --model 换一个模型"
        near = closest(self.settings.model, known)
        hint = f"是不是想用 {near}？" if near else ""
        return f"{hint}可用的模型：{'、'.join(known) or '无'}"

    def models(self) -> list[str]:
        """The names that the server lists. Raises BackendError."""
        try:
            reply = next(self._objects(self.models_path))
        except HttpError as failure:
            if self.mended(failure, {}):
                return self.models()
            raise self._explained(failure) from failure
        listed = _list(reply.get("data") or reply.get("models"))
        names = (_text(m.get("id") or m.get("name")) for m in map(_dict, listed))
        return [name.removeprefix("models/") for name in names if name]


# --- OpenAI and compatible ---


def _filled(body: dict) -> dict:
    """What there is to say: servers refuse empty values, vLLM an empty list of tools."""
    return {key: value for key, value in body.items() if value}


def openai_request(question: Question, settings: Settings) -> dict:
    """The smallest Chat Completions request that says it all."""
    streams = settings.options.get("stream", settings.stream)
    rest = {
        "tools": tools_in_format(question.tools, "openai"), "tool_choice": question.choice,
        "max_tokens": settings.max_tokens, "stream": streams,
        "stream_options": {"include_usage": True} if streams else None,
    }
    messages = plain_messages(tidy_history(question.messages))
    return {"model": settings.model, "messages": messages, **_filled(rest), **settings.options}


def _on_messages(change: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """A change of the request that changes each of its messages."""
    return lambda body: {**body, "messages": [change(message) for message in body["messages"]]}


def _nine_letter_ids(message: dict) -> dict:
    """Ids as Mistral wants them; equal ones stay equal."""
    import zlib

    def short(id: str) -> str:
        return f"i{zlib.crc32(id.encode()):08x}"

    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": short(call["id"])} for call in calls]}
    id = message.get("tool_call_id")
    return {**message, "tool_call_id": short(id)} if id else message


def _one_call_per_turn(body: dict) -> dict:
    """Each turn with several calls as several turns with one call and its result."""
    messages = []
    for message, results in _with_results(body["messages"]):
        said = message.get("content")
        for call, result in zip(message.get("tool_calls", ()), results):
            messages += [{**message, "content": said, "tool_calls": [call]}, result]
            said = ""
        if message and not results:
            messages.append(message)
    return {**body, "messages": messages}


_NEW_NAMES = {"max_tokens": "max_completion_tokens"}
OPENAI_QUIRKS = (  # how a server refuses, how the request changes, what the user is told
    (  # OpenAI o-series and GPT-5
        r"(?s)max_tokens.*max_completion_tokens",
        lambda body: {_NEW_NAMES.get(key, key): value for key, value in body.items()},
        "服务器要 max_completion_tokens，已代替 max_tokens 重发。",
    ),
    (
        _NO_STREAM, lambda body: _without(_without(body, "stream"), "stream_options"),
        "服务器不能边写边发，已改为一次收完。",
    ),
    (  # Mistral
        r"(?i)length of 9|\[?a-zA-Z0-9\]?\{9\}|9 (alphanumeric|characters)",
        _on_messages(_nine_letter_ids), "服务器要九个字符的调用 id，已改写后重发。",
    ),
    (  # gpt-oss template in llama-server
        r"(?i)both content and thinking", _on_messages(
            lambda message: {k: v for k, v in message.items() if not k.startswith("reasoning")}
        ), "服务器不要思考过程，已去掉后重发。",
    ),
    (  # Llama 3 templates
        r"(?i)single tool.calls? at once", _one_call_per_turn,
        "这个模型的模板一轮只容一个调用，已把历史拆开重发。",
    ),
    (  # Gemma 2 templates
        r"(?i)system role (is )?not supported|does not support.{0,9}system (role|message)",
        lambda body: {**body, "messages": tidy_history(
            [{**body["messages"][0], "role": "user"}, *body["messages"][1:]]
        )}, "这个模型的模板没有系统提示，已放进第一条用户消息重发。",
    ),
    (
        r"(?i)content[^.]{0,40}(non-empty|must not be empty|cannot be empty)", _on_messages(
            lambda m: m if m["content"] or "tool_calls" not in m else {**m, "content": None}
        ), "服务器不要空的 content，已改成 null 重发。",
    ),
)


class OpenAICompatLLM(HttpModel):
    """Chat Completions at OpenAI, Ollama, vLLM, llama-server, LM Studio and all who copied it."""

    usual_url = "http://127.0.0.1:11434/v1"
    url_variable, model_variable = "OPENAI_BASE_URL", "OPENAI_MODEL"
    key_variables = ("OPENAI_API_KEY",)
    path = "/chat/completions"
    quirks = OPENAI_QUIRKS
    build = staticmethod(openai_request)
    fold = OpenAIFold

    def mended(self, failure: HttpError, body: dict) -> bool:
        wrong = failure.status in (404, 405) or re.search(_WRONG_PATH, failure.text)
        host = self.base_url.removesuffix("/api")  # right for Open WebUI, not for Ollama
        if wrong and host.count("/") == 2 and not re.search(_MODEL_UNKNOWN, failure.text):
            self.base_url = host + "/v1"
            self.notice(f"地址应该以 /v1 结尾，已改用 {self.base_url}。")
            return True
        return super().mended(failure, body)


# --- Anthropic ---


def anthropic_request(question: Question, settings: Settings) -> dict:
    """A Messages request; `max_tokens` is mandatory there."""
    system, messages = to_anthropic_messages(question.messages)
    rest = {
        "system": system, "tools": tools_in_format(question.tools, "anthropic"),
        "tool_choice": question.choice and to_anthropic_choice(question.choice),
        "stream": settings.stream,
    }
    must = {"model": settings.model, "max_tokens": settings.max_tokens or 8192}
    return {**must, "messages": messages, **_filled(rest), **settings.options}


class AnthropicLLM(HttpModel):
    """The Messages API of Anthropic; Ollama, llama-server, vLLM and LM Studio serve it too."""

    usual_url = "https://api.anthropic.com"
    url_variable, model_variable = "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"
    key_variables = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    path, models_path, versions = "/v1/messages", "/v1/models", ("/v1",)
    key_header = ("x-api-key", "{}")
    other_headers = {"anthropic-version": "2023-06-01"}
    build = staticmethod(anthropic_request)
    fold = AnthropicFold


# --- Gemini ---


def gemini_request(question: Question, settings: Settings) -> dict:
    """A generateContent request; the model's name and `stream` are in its address."""
    system, contents = to_gemini_contents(question.messages)
    declarations = [to_gemini_tool(tool) for tool in question.tools]
    rest = {
        "systemInstruction": system and {"parts": [{"text": system}]},
        "tools": declarations and [{"functionDeclarations": declarations}],
        "toolConfig": question.choice and to_gemini_choice(question.choice),
        "generationConfig": _filled({"maxOutputTokens": settings.max_tokens}) | settings.options,
    }
    return {"contents": contents, **_filled(rest)}


class GeminiFold(OpenAIFold):
    """GenerateContentResponse objects, one or a stream of them, read as chat completion chunks."""

    def __init__(self, used_ids: Iterable[str] = ()):
        super().__init__(used_ids)
        self._parts: list[dict] = []

    def feed(self, value: dict) -> Pieces:
        """Take one object; returns what may be shown. Raises BackendError when Gemini refuses."""
        match value:
            case {"promptFeedback": {"blockReason": reason}}:
                raise BackendError(f"Gemini 拒绝了这个问题：{reason}；请换个问法")
        candidate = _dict(next(iter(_list(value.get("candidates"))), None))
        reason, usage = _text(candidate.get("finishReason")), _dict(value.get("usageMetadata"))
        delta = {"content": "", "reasoning": "", "tool_calls": []}
        for part in map(_dict, _list(_dict(candidate.get("content")).get("parts"))):
            self._parts.append(part)
            delta["reasoning" if part.get("thought") else "content"] += _text(part.get("text"))
            if call := _dict(part.get("functionCall")):
                function = {"name": call.get("name"), "arguments": _dict(call.get("args"))}
                delta["tool_calls"].append({"id": call.get("id"), "function": function})
        wrote = _number(usage, "candidatesTokenCount") + _number(usage, "thoughtsTokenCount")
        counts = usage and {
            "prompt_tokens": _number(usage, "promptTokenCount"), "completion_tokens": wrote,
            "prompt_cache_hit_tokens": _number(usage, "cachedContentTokenCount"),
        }
        choice = {"delta": delta, "finish_reason": reason}
        return super().feed({"choices": [choice], "usage": counts})

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """All parts unchanged, for their signatures."""
        plain = all(part.keys() <= {"text"} for part in self._parts)
        return None if plain else {GEMINI_PARTS: self._parts}


class GeminiLLM(HttpModel):
    """Google's generateContent in its own format."""

    usual_url = "https://generativelanguage.googleapis.com"
    url_variable, model_variable = "GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    models_path, versions = "/v1beta/models", ("/v1beta", "/v1")
    key_header = ("x-goog-api-key", "{}")
    build = staticmethod(gemini_request)
    fold = GeminiFold

    @property
    def path(self) -> str:
        method = "streamGenerateContent?alt=sse" if self.settings.stream else "generateContent"
        return f"/v1beta/models/{self.settings.model}:{method}"


# --- a local model without a server ---


class TransformersLLM:
    """A model directory on this machine, run by transformers with its own chat template.

    Raises BackendError when the packages or the model are missing, or refuse.
    """

    def __init__(
        self, folder: str, settings: Settings = Settings(), *,
        notice: Callable[[str], None] = lambda sentence: None,
    ):
        try:
            import torch  # noqa: F401, transformers generates nothing without it
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except ImportError as error:
            raise BackendError(f"{error}：请先 pip install transformers torch") from error
        except Exception as error:  # the packages raise what they like
            raise BackendError(f"{folder} 不是能读的模型目录：{error_text(error)}") from error
        if not (template := self._tokenizer.chat_template):
            raise BackendError(f"{folder} 没有对话模板（chat template），请换一个 instruct 模型")
        self._as_text = "tools" not in str(template)
        if self._as_text:
            notice(f"这个模型的模板不认识工具。{_TEXT_PROTOCOL}")
        self.settings, self.requests, self.base_url = settings, 0, ""

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        question = _question(messages, tools, tool_choice)
        asked = told_as_text(question) if self._as_text else question
        self.requests += 1
        try:
            inputs = self._tokenizer.apply_chat_template(
                to_hf_messages(asked.messages),
                tools=tools_in_format(asked.tools, "openai") or None,
                add_generation_prompt=True, return_dict=True, return_tensors="pt",
            )
            limit = {"max_new_tokens": self.settings.max_tokens or 1024}
            output = self._model.generate(**inputs, **limit | self.settings.options)[0]
        except Exception as error:
            raise BackendError(f"transformers 没有跑通：{error_text(error)}") from error
        read = inputs["input_ids"].shape[1]
        written = output[read:].tolist()
        ended = written[-1:] and written[-1] in self._tokenizer.all_special_ids
        # markers of calls may be special tokens, so only the one that ends the answer is dropped
        text = self._tokenizer.decode(written[:-1] if ended else written, skip_special_tokens=False)
        usage = Usage(read, len(written))
        turn = sorted_text(Turn(text, (), "stop" if ended else "length", usage), question)
        if on_delta and turn.text:
            on_delta("text", turn.text)
        return turn._replace(finish="tool_calls") if turn.calls and ended else turn


# --- which model to ask ---

# Keys that belong to one host go there by themselves; any other key goes only where the user says.
_HOME_KEYS = {
    "api.openai.com": "OPENAI_API_KEY", "api.anthropic.com": "ANTHROPIC_API_KEY",
    "generativelanguage.googleapis.com": "GEMINI_API_KEY",
    "api.deepseek.com": "DEEPSEEK_API_KEY", "dashscope.aliyuncs.com": "DASHSCOPE_API_KEY",
    "api.moonshot.cn": "MOONSHOT_API_KEY", "open.bigmodel.cn": "ZHIPUAI_API_KEY",
    "api.siliconflow.cn": "SILICONFLOW_API_KEY", "api.mistral.ai": "MISTRAL_API_KEY",
    "api.groq.com": "GROQ_API_KEY", "openrouter.ai": "OPENROUTER_API_KEY",
}
BACKENDS = {
    "openai": OpenAICompatLLM, "anthropic": AnthropicLLM, "gemini": GeminiLLM,
    "transformers": TransformersLLM,
}


def find_place(kind: type[HttpModel], base_url: str, key: str, environ: Mapping) -> dict:
    """Where to ask and with which key, as keywords of `kind`; `key_hint` is for a refusal.

    The address is what the user gave, else the environment's, else the usual one. A key from the
    environment goes only to the address that the environment names with it, or to the host it
    belongs to: OPENAI_API_KEY must not reach whatever --base-url names.
    """
    values = {name: value.strip() for name, value in environ.items() if value.strip()}
    named = values.get(kind.url_variable, "")
    url = base_url or named or kind.usual_url
    if not (base_url or named) and kind is OpenAICompatLLM and "OLLAMA_HOST" in values:
        url = ollama_base_url(values["OLLAMA_HOST"])
    url = repair_base_url(url)
    together = named and url.split("/")[:3] == repair_base_url(named).split("/")[:3]
    home = _HOME_KEYS.get(host_of(url), "") if url.startswith("https:") else ""
    found = [name for name in kind.key_variables if name in values]
    usable = next((name for name in (home, *found) if name in values), "")
    hint = f"请用 --key 给出密钥{f'，或设环境变量 {home}' if home else ''}"
    if found:
        hint = f"环境变量 {found[0]} 没有发给这个地址；要用它就加 --key \"${found[0]}\""
    if key:
        hint = "--key 给的密钥不对，请换一个"
    elif usable and (together or usable == home or home in kind.key_variables):
        token = "Bearer " if usable.endswith("_AUTH_TOKEN") else ""
        key, hint = token + values[usable], f"环境变量 {usable} 里的密钥不对，请换一个"
    return {"base_url": url, "key": key, "key_hint": hint}


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 18  stdio      uses §1, §4, §14–§16 · processes, pipes, threads
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# This section knows pipes, not methods. Both sides speak bytes: UTF-8, one message per line, LF.
# The serving side keeps the two pipes for itself: descriptor 1 then leads to stderr, number 0 to
# nowhere, so no print, logger or child process of a tool can write into the stream or eat from it.

LINE_LIMIT = 10 * 2**20  # bytes; the buffer of the TypeScript SDK ends there too
PATIENCE_SECONDS = 0.01  # for one request, before another thread goes on reading
SLICE_SECONDS = 0.2  # after end of input, how long to wait for the next answer at a time
QUIET_SLICES = 7  # without one: 1.4 s, for clients send SIGTERM after 2 s
WORKING_SECONDS = 0.001  # of processor time in a slice; less means that a tool only waits
LAST_LINE_SECONDS = 0.1  # and at last for a line that is being written
HOLD_SECONDS = 0.003  # for an answer while more lines are at hand, to write several at once


def _in_background(work: Callable[..., None], *args: object) -> threading.Thread:
    """The started thread; a daemon, for the work may never end."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


# ── Serving ──


class Wire:
    """The pipe to the client: whole lines only, from any thread."""

    def __init__(self, descriptor: int):
        self._descriptor, self._owner = descriptor, os.getpid()
        self.lock, self._held, self._due = threading.Lock(), bytearray(), 0.0

    def send(self, message: object, *, hold: Callable[[], bool] = bool) -> None:
        """Write one message, or hold it if `hold()` until one is sent that is due, or `flush`."""
        if os.getpid() != self._owner:  # a tool forked and came back: the parent answers
            os._exit(0)
        try:
            line = encode(message)
        except (ValueError, TypeError, RecursionError) as error:  # such as NaN in a tool's schema
            line = encode(error_reply(readable_id(message), error))
        now = time.monotonic()
        with self.lock:
            if not self._held:
                self._due = now + HOLD_SECONDS
            self._held += line
            due = not hold() or now > self._due  # asked now: a new thread may read and wait by now
        if due:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        with self.lock:
            try:
                while self._held:
                    del self._held[:os.write(self._descriptor, self._held)]
            except OSError:  # a client that has closed its end has no more use for this process
                os._exit(0)


class _Input(io.FileIO):
    """The pipe from the client: before more is waited for, what is held for it is written."""

    def __init__(self, descriptor: int, wire: Wire):
        super().__init__(descriptor)
        self._wire = wire

    def readinto(self, buffer: Any) -> int | None:
        self._wire.flush()
        return io.FileIO.readinto(self, buffer)


def _private_pipes() -> tuple[io.BufferedReader, Wire]:
    """Standard input and output for us alone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # a host may start us with one of them closed
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(nowhere, descriptor)
        if os.name == "posix":  # else a read or write that would wait is taken for the end
            os.set_blocking(descriptor, True)
    wire = Wire(os.dup(1))
    source = io.BufferedReader(_Input(os.dup(0), wire), 2**16)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdout = sys.stderr
    return source, wire


def read_lines(source) -> Iterator[bytes | None]:
    """The lines of a binary file as they come; None stands for one longer than LINE_LIMIT."""
    while line := source.readline(LINE_LIMIT + 1):
        if len(line) <= LINE_LIMIT or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = source.readline(LINE_LIMIT)
        yield None


class Relay:
    """Reads and answers; the reading is handed on when a request keeps its thread too long.

    The thread that reads a request also runs it: no queue and no switch between threads, so quick
    calls cost nothing extra and are answered in order. If it takes longer than PATIENCE_SECONDS, a
    new thread goes on reading: pings, cancellations and other calls do not wait for a slow tool.
    The reading thread holds its answers while there are more lines at hand, but not for longer.
    """

    def __init__(self, source: io.BufferedReader, wire: Wire, server: McpServer):
        self._lines, self._wire, self._server = read_lines(source), wire, server
        self._lock = threading.Lock()  # around the two fields below
        self._current: Request | Batch | None = None  # what the reading thread runs
        self._late: set[Request | Batch] = set()  # what runs on threads that no longer read
        self._begun, self._ended = threading.Event(), threading.Semaphore(0)

    def run(self) -> typing.NoReturn:
        """Keep one thread reading."""
        while True:
            self._wire.flush()
            try:
                _in_background(self._read)
            except RuntimeError:  # the system allows no more threads: until one ends, nobody reads
                time.sleep(PATIENCE_SECONDS)
            else:
                self._watch()

    def _watch(self) -> None:
        """Return when the reading thread is stuck in a request; it will not read again."""
        while True:
            if self._current is None:
                self._begun.wait()
                self._begun.clear()
            request = self._current
            time.sleep(PATIENCE_SECONDS / (1 + len(self._late)))  # a queue of slow calls: hurry
            with self._lock:
                # Stuck because the client does not read? Then nobody should read its requests.
                if request and request is self._current and not self._wire.lock.locked():
                    self._late.add(request)
                    self._current = None
                    return

    def _read(self) -> None:
        for line in self._lines:
            for begun in self._begin(line):
                if isinstance(begun, dict):
                    self._wire.send(begun, hold=lambda: True)
                elif not self._run(begun):
                    return
        self._finish()

    def _begin(self, line: bytes | None) -> list[dict | Request | Batch]:
        try:
            if line is None:
                raise RpcError(INVALID_REQUEST, f"一行最多 {LINE_LIMIT} 字节，这一行已跳过")
            return [] if line.isspace() else self._server.begin(decode(line))
        except Exception as error:  # also a fault of ours, or no memory: the reading must go on
            return [error_reply(None, error)]

    def _run(self, request: Request | Batch) -> bool:
        """Run it; False if another thread reads by now."""
        self._current = request
        if not self._begun.is_set():
            self._begun.set()
        request.run(lambda message: self._wire.send(message, hold=lambda: self._current is request))
        with self._lock:
            if self._current is request:
                self._current = None
                return True
            self._late.discard(request)
        self._ended.release()
        return False

    def _finish(self) -> typing.NoReturn:
        """End of input: wait for late calls as long as they get on, then end the process.

        A tool that only waits is given up after one slice, one that computes after a few. The end
        is hard, for such tools are still running.
        """
        quiet = 0
        while quiet < QUIET_SLICES and any(not each.cancelled for each in self._late.copy()):
            used = time.process_time()
            if self._ended.acquire(timeout=SLICE_SECONDS):
                quiet = 0
            elif time.process_time() - used > WORKING_SECONDS:
                quiet += 1
            else:
                break
        self._wire.lock.acquire(timeout=LAST_LINE_SECONDS)
        os._exit(0)  # stderr is not flushed: nobody may read it, or a tool has closed it


def mcp_serve(make_server: Callable[[], McpServer]) -> typing.NoReturn:
    """Serve on standard input and output until the client closes its end; never returns.

    The pipes are taken first and the server is made after that, so that user tools which print
    while they are loaded do no harm.
    """
    import signal

    source, wire = _private_pipes()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else: the parent ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler may wait for the next line to come
    Relay(source, wire, make_server()).run()


# ── Starting somebody else's server ──

# What a server may see of our environment; keys and tokens in it are none of its business.
PASSED_VARIABLES = (
    "PATH HOME USER LOGNAME SHELL TERM LANG LC_ALL LC_CTYPE TMPDIR TMP TEMP SYSTEMROOT SYSTEMDRIVE"
    " WINDIR COMSPEC PATHEXT APPDATA LOCALAPPDATA PROGRAMFILES USERPROFILE HOMEDRIVE HOMEPATH"
).split()
LAST_WORDS_SECONDS = 0.5  # for the log of a child that has ended
CLOSE_SECONDS = 2.0  # after closing its input, and again after SIGTERM; both SDKs wait as long
LOG_LINES = 20  # of its stderr, kept for error messages


class StdioServer:
    """A server as a child process; `send` is what McpClient needs.

    `trace(direction, item)` sees every message: "→" sent, "←" received, "!" a line that is none.
    It survives banners on standard output, floods on stderr, silence and sudden death.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None,
        trace: Callable[[str, object], None] = lambda direction, item: None,
    ):
        self.command, self.trace = list(command), trace
        self._env = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        self._env.update(env or {})
        self.start()

    def start(self) -> None:
        """Start the child. Raises McpError if there is no such program."""
        import queue
        import shutil
        import subprocess

        program = shutil.which(self.command[0]) or self.command[0]  # finds npx.cmd on Windows
        try:
            self.process = subprocess.Popen(
                [program, *self.command[1:]], env=self._env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=os.name == "posix",  # so that its children can be ended with it
            )
        except OSError as error:
            reason = f"{os_reason(error)}，请检查命令和 PATH"
            raise McpError(f"无法启动 {self.command[0]}：{reason}") from error
        self._waiting: dict[str, Any] = {}  # id → queue for its reply
        self._lines = queue.SimpleQueue()  # to write; None ends the input of the child
        self.log = collections.deque(maxlen=LOG_LINES)
        _in_background(self._write_lines, self.process.stdin, self._lines)
        _in_background(self._read, self.process.stdout, self._waiting)
        self._log_reader = _in_background(self._read_log, self.process.stderr, self.log)

    def restart(self) -> None:
        """End the child, however it is, and start a new one."""
        self.close()
        self.start()

    def __enter__(self) -> StdioServer:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def send(self, message: dict, seconds: float) -> dict | None:
        """The reply to a request; None at once for a notification.

        Raises ServerSilentError after so many seconds, ServerGoneError when the child has ended.
        """
        import queue

        if "id" not in message:
            self._write(message)
            return None
        box = self._waiting[str(message["id"])] = queue.SimpleQueue()  # some answer "1" for 1
        self._write(message)
        try:
            reply = box.get(timeout=seconds)
        except queue.Empty:
            raise ServerSilentError(f"服务器 {seconds:g} 秒没有回答 {message['method']}") from None
        if reply is None:
            raise self.gone()
        return reply

    def gone(self) -> ServerGoneError:
        """The error for a child that has ended, with its last words."""
        self._log_reader.join(LAST_WORDS_SECONDS)  # they may still be in the pipe
        last = "".join(f"\n  {line}" for line in list(self.log)[-3:])
        return ServerGoneError("服务器已经退出" + (f"，它最后的日志：{last}" if last else ""))

    def _write(self, message: dict) -> None:
        self.trace("→", message)
        self.write(encode(message))

    def write(self, line: bytes) -> None:
        """Write bytes as they are; another thread does it, for a stuck child reads nothing.

        Raises ServerGoneError when the child has ended.
        """
        if self.process.stdout.closed:
            raise self.gone()
        self._lines.put(line)

    def end_input(self) -> None:
        """Close the child's input once everything is written; that asks it to end."""
        self._lines.put(None)

    def _write_lines(self, pipe, lines) -> None:
        with contextlib.suppress(OSError), pipe:
            for line in iter(lines.get, None):
                pipe.write(line)
                pipe.flush()

    def _read(self, pipe, waiting: dict) -> None:
        with pipe, contextlib.suppress(OSError, ValueError):
            for line in read_lines(pipe):
                if line is None or not line.isspace():
                    self._receive(line, waiting)
        for box in list(waiting.values()):  # who comes later finds the pipe closed
            box.put(None)

    def _receive(self, line: bytes | None, waiting: dict) -> None:
        try:
            message = decode(line or b"")
            kind = kind_of(message)
        except RpcError:
            text = "（超长的一行）" if line is None else line.decode("utf-8", "replace").rstrip()
            self.trace("!", text)
            return
        self.trace("←", message)
        if kind == "request":
            with contextlib.suppress(McpError):
                self._write(answer_server(message))
        elif kind == "response" and (box := waiting.pop(str(message.get("id")), None)):
            box.put(message)

    def _read_log(self, pipe, log) -> None:
        with pipe, contextlib.suppress(OSError, ValueError):
            for line in read_lines(pipe):
                log.append((line or b"").decode("utf-8", "replace").rstrip()[:500])

    def ended(self, seconds: float) -> bool:
        """Whether the child ends within so many seconds."""
        import subprocess

        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def close(self) -> None:
        """End the child as the specification asks: close its input, then SIGTERM, then SIGKILL."""
        import signal

        self.end_input()
        for name in ("SIGTERM", "SIGKILL"):
            if self.ended(CLOSE_SECONDS):
                return
            if os.name == "posix":
                os.killpg(self.process.pid, getattr(signal, name))
            else:
                self.process.terminate()
        self.process.wait()


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 19  呈现 Rendering      uses §1, §12 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Values → text for a terminal. Columns are counted, not characters: 一个汉字占两列.

_COLOURS = {
    "system": "2", "user": "36", "assistant": "33", "tool": "32",
    "title": "1", "dim": "2", "bad": "31", "good": "32",
}

# Signs of formulas that a GBK console lacks, and how a person would type them.
_TYPED = str.maketrans({
    "−": "-", "²": "^2", "³": "^3", "⁴": "^4", "⁵": "^5", "⁺": "^+", "⁻": "^-", "ᵀ": "^T",
    "⟨": "<", "⟩": ">", "⌈": "ceil(", "⌉": ")", "ŵ": "w'", "•": "*", "⇄": "<->",
})
# What could make a terminal act or show something else, except the colours we use ourselves.
_CONTROL = "(?!\x1b\\[(?:[012]|3[1-6])m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


def typed_instead(error: UnicodeError, *, typed: Mapping[int, str] = _TYPED) -> tuple[str, int]:
    """An error handler for `codecs`: what the console lacks is spelled out, or escaped as in JSON.

    >>> "x²中".encode("ascii", "typed_instead")
    b'x^2\\\\u4e2d'
    """
    return json.dumps(error.object[error.start:error.end].translate(typed))[1:-1], error.end


codecs.register_error("typed_instead", typed_instead)
codecs.register_error("json_escapes", functools.partial(typed_instead, typed={}))


def printable(text: str) -> str:
    """The text for a terminal: control characters are escaped as in JSON, which stays JSON.

    >>> printable("a\\x1b[2J")
    'a\\\\u001b[2J'
    """
    return re.sub(_CONTROL, lambda control: f"\\u{ord(control[0]):04x}", text)


class Style(NamedTuple):
    """How wide the terminal is, in columns, and whether it shows colour."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, name: str) -> str:
        """The text in the colour of that name, or unchanged."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self.colour else text


@functools.cache
def _char_columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # combining or invisible
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def columns(text: str) -> int:
    """Terminal columns of a text: wide characters take two, combining ones none.

    >>> columns("KV 缓存")
    7
    """
    return sum(map(_char_columns, text))


def pad(text: str, width: int) -> str:
    """The text filled with blanks on the right to that many columns."""
    return text + " " * (width - columns(text))


def shortened(text: str, width: int) -> str:
    """The text if it takes no more columns than that, else its beginning and a mark."""
    fitting = sum(used <= width for used in itertools.accumulate(map(_char_columns, text)))
    return text if fitting == len(text) else text[:fitting] + " ……"


def said(text: str, width: int = 80) -> str:
    """What somebody wrote, fit for one line of a message."""
    return " ".join(printable(shortened(text, width)).split())


# Between two of these a line may break: a word or one 汉字, with the marks that may not be parted
# from it, by the rules of Chinese typesetting, and the blanks after it.
_PIECE = (
    r"[（《「『【“‘([{]*(?:(?:(?![\s“‘”’…])[!-\u2e7f])+|\S)"
    r"(?:\s*[，。、；：！？）》」』】”’…,.;:!?)\]}%]|\"(?=\W))*\s*|\s"
)


def wrap(text: str, width: int, hang: int = 0) -> list[str]:
    """Lines of at most `width` columns, with `hang` blanks after a break; line ends are kept.

    >>> wrap("工具调用 tool calling", 12)
    ['工具调用', 'tool calling']
    """
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in re.findall(_PIECE, paragraph):
            whole = columns(piece.rstrip()) <= width - hang
            for part in [piece] if whole else piece:  # its characters
                if line.strip() and columns(line + part.rstrip()) > width:
                    lines.append(line.rstrip())
                    line = " " * hang
                line += part
        lines.append(line.rstrip())
    return lines


def table(rows: Iterable[Iterable[object]], *, right: Iterable[int] = ()) -> list[str]:
    """Rows as aligned lines; the columns numbered in `right` are set flush right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cells)]
    return [
        "  ".join(
            " " * (width - columns(cell)) + cell if i in right else pad(cell, width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


def heading(text: str, style: Style) -> str:
    """A title on a rule across the screen, cut where it would not fit."""
    text = shortened(text, style.width - 8)
    return style.paint(f"── {text} " + "─" * (style.width - columns(text) - 4), "title")


def chapter(title: str, paragraphs: Iterable[str], style: Style) -> Iterator[str]:
    """A heading, and below it the paragraphs in lines that fit the screen."""
    yield heading(title, style)
    for paragraph in paragraphs:
        yield from wrap(paragraph, style.width)


INDENT = 14  # columns, as in "①  assistant  "
_LONGEST_SHOWN = 800  # columns of one field on screen; --json has everything


def message_lines(message: dict, style: Style, *, mark: str = "", remark: str = "") -> list[str]:
    """One history message: mark, role and remark on the first line, then its key fields.

    The remark says who acts and what for; without one the text starts on the first line.
    """
    role, calls = message["role"], message.get("tool_calls", ())
    fields = [
        f"tool_call_id={message['tool_call_id']}" if role == "tool" else "",
        message["content"] or ("" if calls else "（空）"),
    ]
    for call in calls:
        fields += [f"{call['id']}  {call['function']['name']}", call["function"]["arguments"]]
    room = style.width - INDENT
    lines = [style.paint(line, "dim") for line in wrap(remark, room) if line]
    for field in filter(None, fields):
        lines += wrap(shortened(field, _LONGEST_SHOWN), room)
    first = pad(mark, 3) + style.paint(pad(role, INDENT - 3), role)
    margins = itertools.chain([first], itertools.repeat(" " * INDENT))
    return list(map(operator.add, margins, lines))


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 20  演示 Demos      uses §1, §3, §4, §7–§10, §12–§19
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The model is a script; the loop, the tools, the validation and every result are real.

TUTOR = "你是 CME295 课程的助教"
SYSTEM_PROMPT = (
    f"{TUTOR}。先想清楚需不需要工具：能直接回答就直接回答。"
    "算数和查讲义必须用工具，绝不编造工具的结果；拿到结果后不要用同样的参数再调用一次。"
    "工具出错时最多改正重试两次，还不行就如实说明。"
)

KV_QUESTION = (
    "Llama 3 8B（32 层、8 个 KV 头、头维 128）在 8192 长度、batch 4 时 KV Cache 多大？"
)
KV_ARGUMENTS = {
    "num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4,
}


def calling(*calls: tuple[str, dict], first: int = 0) -> Turn:
    """A turn that calls these (name, arguments), with ids call_0, call_1 … counted from `first`."""
    return Turn(finish="tool_calls", calls=tuple(
        ToolCall(f"call_{number}", name, json_text(arguments))
        for number, (name, arguments) in enumerate(calls, first)
    ))


def _answering(answer: str, failure: str = "没有查到。工具说：{0}") -> Callable[[list], Turn]:
    """A model that answers in these words; {0} is the newest result, {1} the one before it.

    Where the results have no such parts, it answers in the words of `failure`.
    """

    def turn(messages: list[dict]) -> Turn:
        results = last_result(messages), last_result(messages[:-1])
        try:
            return Turn(answer.format(*results))
        except (LookupError, TypeError):
            told = results[0].get("message") if isinstance(results[0], dict) else results[0]
            return Turn(failure.format(told if isinstance(told, str) else json_text(results[0])))

    return turn


KV_ANSWER = _answering(
    "KV Cache 约 {0[GiB]} GiB（每 token {0[per_token_KiB]:g} KiB；公式见 Week 1 Day 4 §1.4）。",
    "没有算出来。工具说：{0}",
)
WRITTEN_CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2**10"}}</tool_call>'


def _written_call(messages: list[dict]) -> Turn:
    """What a client makes of a model that knows no tool calls but was told how to write them."""
    text, calls, *_ = parse_text_tool_calls(WRITTEN_CALL)
    return Turn(text, calls)


def gpu_memory(host: str) -> dict:
    """查询一台机器的 GPU 显存占用，返回已用和总量；查不到时报错。

    Args:
        host: 主机名，例如 "gpu-03"。
    """
    raise ConnectionError(f"连接 {host} 超时")


class Scenario(types.SimpleNamespace):
    """One demo: title, lesson, question, the script of the model, and remarks.

    There is one remark for each step, which is a turn of the model or all results of a turn.
    """

    tools: tuple[Callable, ...] = ()  # which it needs besides the usual ones


SCENARIOS = (
    Scenario(
        title="一次调用：模型开口，程序动手",
        lesson="模型不能执行任何东西，它只写出“想调用什么”；执行、校验、权限都是程序的事。",
        question=KV_QUESTION,
        script=(calling(("kv_cache_gib", KV_ARGUMENTS)), KV_ANSWER),
        remarks=(
            "模型只是说出要调用什么，这时什么都没有执行", "程序检查参数、执行，把结果交回去",
            "模型根据结果回答",
        ),
    ),
    Scenario(
        title="并行调用：一轮两个调用",
        lesson="两个调用互不依赖，就放在同一轮里同时执行；结果按调用顺序交回，一个调用一个结果。",
        question="GRPO 和 DPO 分别在讲义的哪一节？",
        script=(
            calling(*(("search_notes", {"query": name, "top_k": 1}) for name in ("GRPO", "DPO"))),
            _answering("GRPO 在 {1[hits][0][section]}，DPO 在 {0[hits][0][section]}。"),
        ),
        remarks=(
            "模型一次写出两个调用", "程序同时执行，两条 tool 消息按调用顺序排列",
            "模型把两个结果合成一个回答",
        ),
    ),
    Scenario(
        title="出错与重试：错误也是给模型读的",
        lesson="参数不对时不抛异常，把“哪里错、要什么、收到什么”写成文字交回：越具体，改得越准。",
        question=KV_QUESTION,
        script=(
            calling(("kv_cache_gib", KV_ARGUMENTS | {"seq_len": "8k"})),
            calling(("kv_cache_gib", KV_ARGUMENTS), first=1),
            KV_ANSWER,
        ),
        remarks=(
            "模型把 seq_len 写成了 \"8k\"", "程序没有执行，把错误写成文字交回去",
            "模型读懂错误，改成 8192 再调用", "这次参数合格，程序执行", "模型根据结果回答",
        ),
    ),
    Scenario(
        title="停不下来的模型：由程序踩刹车",
        lesson="有的模型拿到结果还反复调用。第二次相同的调用只给旧结果和一句提醒，第三次就停。",
        question="17*23+4 是多少？",
        script=tuple(calling(("calculator", {"expression": "17*23+4"}), first=n) for n in range(3)),
        remarks=(
            "模型调用计算器", "程序执行", "同样的调用又来一次", "不再执行：旧结果加一句提醒",
            "还是同样的调用", "程序拒绝执行，结束这一次运行",
        ),
    ),
    Scenario(
        title="工具坏了：如实说，不编造",
        lesson="工具内部的异常变成一句话（没有堆栈、路径和密钥），模型据此如实回答。",
        question="gpu-03 的显存还剩多少？",
        script=(
            calling(("gpu_memory", {"host": "gpu-03"})),
            _answering("没有查到，工具报错：{0}。我不会编一个数字；请稍后再试。"),
        ),
        remarks=("模型调用监控工具", "工具抛出异常，程序把它变成一条结果", "模型承认没有查到"),
        tools=(gpu_memory,),
    ),
    Scenario(
        title="调用写在文字里：没有原生调用的模型",
        lesson="有的模型或服务把调用当普通文字写出来。客户端按格式认出它，后面的过程一模一样。",
        question="2 的 10 次方是多少？",
        script=(_written_call, _answering("2 的 10 次方是 {0}。")),
        remarks=(
            f"模型写的文字是 {WRITTEN_CALL}；客户端认出调用，补上 id", "程序照常检查、执行",
            "模型根据结果回答",
        ),
    ),
)

STEP_MARKS = "①②③④⑤⑥⑦⑧⑨⑩"


def opening(question: str, system: str = SYSTEM_PROMPT) -> list[dict]:
    """A new history: the system prompt and the user's question."""
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


# What we say of the course's notes, as it is said of a user's own.
OWN_WORDS = {
    " CME295 课程的助教": "用户的助手", "CME295 讲义": "笔记", "讲义": "笔记",
    "见 Week 1 Day 4 §1.4": "", "Week 1 Day 4 §1.4": "文件名 > 标题", "week1-day4": "文件名",
}


def own_notes(args) -> bool:
    """Whether the notes are the user's: of what they say nothing is known."""
    return bool(args.notes) and os.path.realpath(args.notes) != NOTES_FOLDER


def for_own_notes(value: object) -> Any:
    """A JSON value, its texts in words that fit notes of which nothing is known."""
    text = json_text(value)
    for ours, own in OWN_WORDS.items():
        text = text.replace(ours, own)
    return json.loads(text)


def tool_for_own_notes(tool: Tool) -> Tool:
    """The same tool, described in such words."""
    shown = {key: getattr(tool, key) for key in ("title", "description", "parameters")}
    return tool._replace(**for_own_notes(shown))


def _tools_of(scenario: Scenario, tools: ToolRegistry) -> ToolRegistry:
    """The given tools and the scenario's own, which replace those of the same name."""
    own = ToolRegistry(scenario.tools)
    return ToolRegistry({tool.name: tool for tool in (*tools, *own)}.values())


def play(scenario: Scenario, tools: ToolRegistry) -> tuple[list, list, MockLLM]:
    """Run a scenario to its end: the history, the events, the model."""
    model, messages = MockLLM(scenario.script), opening(scenario.question)
    events = list(run_tool_loop(model, _tools_of(scenario, tools), messages))
    return messages, events, model


def demo_text(number: int, tools: ToolRegistry, style: Style) -> Iterator[str]:
    """The lines of scenario `number` (from 1): each message with its step and who acts."""
    scenario = SCENARIOS[number - 1]
    (system, user, *rest), events, model = play(scenario, tools)
    yield from chapter(f"场景 {number}  {scenario.title}", (scenario.lesson, ""), style)
    tools_apart = f"{TUTOR}……（工具清单随请求另传，共 {len(_tools_of(scenario, tools))} 个）"
    for message in ({**system, "content": tools_apart}, user):
        yield from message_lines(message, style)
    finishes = (event.turn.finish for event in events if isinstance(event, ModelAnswered))
    steps = itertools.groupby(rest, operator.itemgetter("role"))
    for mark, remark, (role, step) in zip(STEP_MARKS, scenario.remarks, steps):
        yield ""
        if role == "assistant":
            remark += f"（finish_reason={next(finishes)}）"
        for message in step:
            yield from message_lines(message, style, mark=mark, remark=remark)
            mark = remark = ""
    growth = "、".join(map(str, model.asked))
    yield from wrap(
        f"\n结束：{STOP_REASONS[events[-1].reason]}。\n共请求模型 {len(model.asked)} 次，"
        f"各带 {growth} 条消息：接口不记事，每次都要重发全部历史。", style.width,
    )


# --- routing: forty tools, five shown ---

ROUTED_REQUEST = "计算 KV Cache 占多少显存"
ROUTED_TO = 5
MATCHES_SHOWN = 40  # columns of the words that matched, so that a row fits in 80

# request → the tool that should be found; the last two share no word with its description
REQUESTS = {
    "GRPO 在讲义的哪一节？": "search_notes",
    "读一下第 1 周第 4 天的讲义": "read_note",
    "17*23+4 等于多少，帮我算一下": "calculator",
    "加载 13B 的参数要多大显存": "weights_gib",
    "明天上海会下雨吗": "get_forecast",
    "给导师发一封邮件，说作业交了": "send_email",
    "草拟一个回复，先别发": "draft_reply",
    "100 美元能换多少人民币": "convert_currency",
    "下周二下午大家都有空的时间": "find_free_time",
    "哪个文件里写了 API key": "search_files",
    "出门要不要带伞": "get_forecast",
    "How much is 200 dollars in euros?": "convert_currency",
}
# what a model would write when it looks for a tool itself: synonyms, both languages
SECOND_TRIES = {
    "出门要不要带伞": "天气 下雨 weather forecast",
    "How much is 200 dollars in euros?": "货币 汇率 currency",
}


def schema_characters(tools: Iterable[Tool]) -> int:
    """The length of the tool definitions as they are sent in every request."""
    return len(json_text([tool.schema() for tool in tools]))


def routing_text(query: str, router: ToolRouter) -> Iterator[str]:
    """One request: the tools found with scores and matched words, and what leaving out saves."""
    picked = router.pick(query, ROUTED_TO)
    everything = schema_characters(router.tools)
    if not picked:
        yield (
            f"{len(router.tools)} 个工具里没有一个和它有共同的词：不猜。--ask 这时只给模型一个 "
            f"search_tools，由它换个说法查；全部提供要 {everything:,} 个字符的模式文本。"
        )
        return
    rows = [
        (rank, routed.name, f"{routed.score:.2f}", said("、".join(routed.words), MATCHES_SHOWN))
        for rank, routed in enumerate(picked, 1)
    ]
    yield from table([("名次", "工具", "得分", "对上的词或字对"), *rows], right=(0, 2))
    few = schema_characters(routed.tool for routed in picked)
    yield (
        f"\n只提供 {len(picked)} 个：模式（schema）文本从 {everything:,} 个字符"
        f"降到 {few:,} 个，每次请求省 {1 - few / everything:.0%}。"
    )


def requests_text(router: ToolRouter) -> Iterator[str]:
    """The dozen REQUESTS: at which rank the right tool came, and how many were found."""
    rows = []
    for query, name in REQUESTS.items():
        picked = enumerate(router.pick(query, ROUTED_TO), 1)
        rank = next((f"第 {number}" for number, found in picked if found.name == name), "没找到")
        rows.append((query, name, rank))
    yield from table([("请求", "该用的工具", "名次"), *rows])
    *_, ranks = zip(*rows)
    found = len(ranks) - ranks.count("没找到")
    yield f"\n排第 1：{ranks.count('第 1')}/{len(ranks)}    前 {ROUTED_TO}：{found}/{len(ranks)}"


def misses_text(router: ToolRouter) -> Iterator[str]:
    """The requests that miss, why, and how a model finds the tool by itself with search_tools."""
    tools = ToolRegistry(router.tools)
    for query, words in SECOND_TRIES.items():
        search = ToolCall("call_0", "search_tools", {"words": words})
        found = with_tool_search(router, query, k=ROUTED_TO).call(search)
        name = REQUESTS[query]
        yield f"“{query}”该用 {name}，它的说明是：{tools[name].description}"
        yield "两边没有一个词相同。让模型自己换个说法查："
        yield f"  search_tools({words}) → {found.text}\n"
    yield (
        "按词路由不懂同义词，也不会翻译。"
        "办法：说明里写上用户会用的词（中英都写）；让模型用 search_tools "
        "换个说法再查；或者改用向量检索、混合检索（Week 4 Day 2 §2）。"
    )


def few_or_all_text(router: ToolRouter) -> Iterator[str]:
    """The loop of scenario 1 with every tool and with the routed ones: same answer, less sent."""
    yield f"问：{KV_QUESTION}"
    names = [routed.name for routed in router.pick(KV_QUESTION, ROUTED_TO)]
    by_rank = f"（按这个问题挑的，最合适的在前：{'、'.join(names)}）"
    for tools, which in (ToolRegistry(router.tools), ""), (router.registry(names), by_rank):
        _, events, model = play(SCENARIOS[0], tools)
        sent = len(model.asked) * schema_characters(tools)
        yield (
            f"\n带 {len(tools)} 个工具{which}：请求模型 {len(model.asked)} 次，"
            f"共发送模式文本 {sent:,} 个字符。\n答：{events[-1].text}"
        )


def router_demo_text(query: str, tools: ToolRegistry, style: Style) -> Iterator[str]:
    """The whole demo, or with a query only how that one is routed."""
    router, asked = ToolRouter(tools), query or ROUTED_REQUEST
    yield from chapter(f"路由  {said(asked, style.width)}", routing_text(asked, router), style)
    chapters = {
        f"{len(REQUESTS)} 个请求，排得准不准": requests_text,
        "没找到的，为什么": misses_text,
        "同一个循环，全部工具和路由后的工具": few_or_all_text,
    }
    for title, part in () if query else chapters.items():
        yield ""
        yield from chapter(title, part(router), style)


# --- a run with a real model, as it happens ---

QUIET, NORMAL, FULL = range(3)  # what the user wants to see besides the answer
Write = Callable[[str], None]  # writes a text somewhere, at once


def call_text(call: ToolCall) -> str:
    """The call as one would write it in Python: name(key=value, …)."""
    arguments = arguments_object(call.arguments)
    return f"{call.name}({', '.join(f'{key}={show(value)}' for key, value in arguments.items())})"


def _tokens_text(usage: Usage) -> str:
    return f"输入 {usage.input}、输出 {usage.output} 个 token"


def usage_text(end: Finished, seconds: float) -> str:
    """One line on what a run cost."""
    tokens = f"，{_tokens_text(end.usage)}" if any(end.usage) else ""
    return f"请求模型 {end.turns} 次{tokens}，共 {seconds:.1f} 秒。"


class LiveScreen:
    """Shows a run while it happens. Only the answer may go to `answer`; all else goes to `write`.

    On a terminal a line counts the seconds of waiting, and, when `answer` is given, the text of the
    model appears as it is written. `shown` is then what of the last turn has been shown already.
    """

    def __init__(
        self, write: Write, style: Style, *,
        level: int = NORMAL, terminal: bool = False, answer: Write | None = None,
    ):
        self._write, self._style, self._level, self._answer = write, style, level, answer
        self._ticking = terminal and level > QUIET
        self.shown = ""
        self._open = self._end = None  # what writes the unfinished line, and what ends it

    def line(self, text: str, name: str = "dim") -> None:
        """One finished line for the user."""
        self.close()
        for row in printable(text).split("\n"):
            self._write(self._style.paint(row, name) + "\n")

    def notice(self, sentence: str) -> None:
        """Something the program had to work around."""
        if self._level > QUIET:
            self.line(f"注意：{sentence}", "assistant")

    def event(self, event: Event) -> None:
        """Show one event of the loop."""
        if self._level == QUIET:
            return
        full = self._level == FULL
        match event:
            case ModelAsked():
                self.shown = ""
                self.wait("等模型回答")
            case ModelAnswered(turn=turn):
                if full and turn.reasoning and not self._ticking:
                    self.line(f"思考：{turn.reasoning}")
                if turn.calls and turn.text and not self.shown:
                    self.line(self._fitted(turn.text))
                if full and turn.usage:
                    self.line(f"本轮{_tokens_text(turn.usage)}，结束原因 {turn.finish}")
            case CallStarted(call):
                self.line(f"→ {self._fitted(call_text(call))}", "assistant")
                self.wait(f"{said(call.name, 40)} 运行中")
            case CallFinished(call, result, seconds):
                status = f"{RESULT_STATUS[result.status]}：" if result.is_error else ""
                text = f"← {call.name}（{seconds or 0:.2f} 秒） {status}{result.text}"
                self.line(self._fitted(text), "bad" if result.is_error else "tool")
                for repair in result.repairs:
                    self.line(f"  {repair}")

    def _fitted(self, text: str) -> str:
        """The text in two lines of the screen at most, whole when the user wants all."""
        if self._level == FULL:
            return text
        return shortened(" ".join(text.split()), 2 * self._style.width - 8)  # room for marks

    def delta(self, kind: str, piece: str) -> None:
        """Show a piece of the answer, or of the reasoning, as it arrives."""
        if kind == "again":  # the stream broke, or was reasoning so far; the answer begins anew
            self.close()
            self.shown = ""
        elif kind == "text" and self._answer:
            self._add(self._answer, printable(piece))
            self.shown += piece
        elif kind == "reasoning" and self._ticking and self._level == FULL:
            self._add(self._write, self._style.paint(printable(piece), "dim"))

    def _add(self, write: Write, text: str) -> None:
        if self._open is not write:
            self.close()
            self._open, self._end = write, lambda: write("\n")
        write(text)

    def wait(self, what: str) -> None:
        """Count the seconds in one line of the terminal until something else is shown."""
        self.close()
        if not self._ticking:
            return
        stop, seconds = threading.Event(), itertools.count(1)

        def tick() -> None:
            while not stop.wait(1.0):
                self._write(f"\r{what} {next(seconds)} 秒 ")
            self._write("\r" + " " * (columns(what) + 10) + "\r")

        def end() -> None:
            stop.set()
            clock.join()

        clock = threading.Thread(target=tick, daemon=True)
        clock.start()
        self._end = end

    def close(self) -> None:
        """End the unfinished line, be it the clock's or the model's."""
        end, self._open, self._end = self._end, None, None
        if end:
            end()


# --- the trace of a run: OpenTelemetry's GenAI attribute names, one JSON object a line ---


def _without_secrets(value: object, name: str = "") -> object:
    """A JSON value with what looks like a key or password left out of its texts."""
    match value:
        case str():
            return hide_private(f"{name}: {value}").removeprefix(f"{name}: ")
        case dict():
            return {key: _without_secrets(inner, key) for key, inner in value.items()}
        case list():
            return [_without_secrets(inner, name) for inner in value]
    return value


class Trace:
    """Turns the events of a run into lines of JSON; `write` takes one line. Never holds a key.

    Attributes: opentelemetry.io/docs/specs/semconv/gen-ai. Ours have no prefix: time, duration_s,
    status, attempts, tool_result_tokens (an estimate: servers do not tell them apart).
    """

    def __init__(
        self, write: Write, model, *,
        provider: str, arguments: bool = False, now: Callable[[], str],
    ):
        self._write, self._model, self._now, self._arguments = write, model, now, arguments
        self._common = {
            "gen_ai.provider.name": provider,
            "server.address": host_of(getattr(model, "base_url", "")),
        }
        self._requests = self._result_tokens = 0
        self._failures = collections.Counter()  # of each tool, in a row

    def _record(self, operation: str, usage: Usage | None, attributes: dict) -> None:
        settings = getattr(self._model, "settings", None)
        record = {
            "time": self._now(), "gen_ai.operation.name": operation, **self._common,
            "gen_ai.request.model": settings and settings.model,
            "gen_ai.usage.input_tokens": usage and usage.input,
            "gen_ai.usage.output_tokens": usage and usage.output, **attributes,
        }
        known = {key: value for key, value in record.items() if value is not None}
        self._write(json_text(json_value(known)) + "\n")

    def event(self, event: Event) -> None:
        """Write what is worth a line: model turns, tool calls, the end."""
        match event:
            case ModelAnswered(turn=turn, seconds=seconds):
                sent = getattr(self._model, "requests", self._requests + 1)
                usage = turn.usage or Usage()
                self._record("chat", usage, {
                    "duration_s": seconds, "status": "ok", "attempts": sent - self._requests,
                    "gen_ai.response.finish_reasons": [turn.finish],
                    "gen_ai.usage.cache_read.input_tokens": usage.cached,
                    "tool_result_tokens": self._result_tokens,
                })
                self._requests, self._result_tokens = sent, 0
            case CallFinished(call, result, seconds):
                attempts = self._failures[call.name] + 1
                self._failures[call.name] = attempts if result.is_error else 0
                self._result_tokens += len(result.text.encode("utf-8", "replace")) // 4
                shown = {
                    "gen_ai.tool.call.arguments": arguments_object(call.arguments),
                    "gen_ai.tool.call.result": result.text,
                }
                self._record("execute_tool", None, {
                    "duration_s": seconds, "status": result.status, "attempts": attempts,
                    "gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id,
                    "gen_ai.tool.type": "function",
                    "error.type": result.status if result.is_error else None,
                    **(_without_secrets(shown) if self._arguments else {}),
                })
            case Finished(_, reason, usage, turns):
                self._record("invoke_agent", usage, {"status": reason, "turns": turns})

    def failed(self, error: BaseException) -> None:
        """Write that the run ended without an answer."""
        self._record("chat", None, {"status": "failed", "error.type": type(error).__name__})


# --- a model for trying the command offline ---

MOCK_TOOLS = ("calculator", "search_notes")  # it knows no others, so routing keeps them


def mock_model(question: str) -> MockLLM:
    """A scripted model for any question: it calculates what looks like a sum, else searches."""
    plain = question[:200].replace("×", "*").replace("÷", "/")
    if found := re.search(r"[\d(][\d.()\s]*[+*/%-][\d.()\s+*/%-]*[\d)]", plain):
        call = "calculator", {"expression": found[0]}
        return MockLLM([calling(call), _answering("（模拟模型）计算器给出：{0}")])
    call = "search_notes", {"query": question[:200], "top_k": 3}
    answer = "（模拟模型）最相关的一节是 {0[hits][0][section]} {0[hits][0][title]}"
    return MockLLM([calling(call), _answering(answer)])


# What a learner sees of MCP: the lecture's session, message by message, then the same work without
# a handshake. Client, server, pipe and messages are real; only the remarks are written here.

MCP_SHOWN = 600  # characters of a message that is shown whole; --json has everything
MCP_TEXT = 60  # characters of a text in a longer one, of whose lists only the first entry is shown
MCP_TRACED = 5000  # latest messages of one step; a server may write without end

# The work of both sessions: method of McpClient and its arguments.
MCP_WORK = (
    ("connect",),
    ("tools",),
    ("call_tool", "kv_cache_gib", KV_ARGUMENTS),
    ("call_tool", "calculator", {"expression": "__import__('os').system('ls')"}),
    ("call_tool", "format_disk", {}),
)
# revision, title, lesson, a method that it lacks, and a remark on every message
MCP_SESSIONS = (
    (
        "2025-06-18", "第一段  2025-06-18：先握手，再干活",
        "课上讲的会话。主机把服务器当子进程启动，一行一条 JSON：→ 写进它的标准输入，"
        "← 从它的标准输出读到。请求有 id，一定有一个同 id 的答复；通知没有 id，也没有答复。",
        "tools/destroy", """
打招呼：报上协议版本、自己的能力和名字
服务器同意这个版本，报上能力、名字和使用说明；之后的消息都按这个版本理解
握手完成。这是通知：没有 id，没有答复
有哪些工具？
每个工具的 inputSchema 由主机转给模型：OpenAI 叫 parameters，Anthropic 叫 input_schema
模型说要调用工具，主机替它发出 tools/call
content 是给模型读的文字；structuredContent 是同一个结果，给程序用
有人想借计算器执行命令
第一种错：工具说不行。这是正常的 result，isError 为 true，原因交给模型读，模型可以改了再来
调用一个不存在的工具
第二种错：请求本身不对。这是 JSON-RPC 的 error，只有程序能改，不交给模型
调用一个不存在的方法
也是第二种错，只是代码不同：没有这个方法是 -32601""",
    ),
    (
        "2026-07-28", "第二段  2026-07-28：没有握手，每个请求自带信封",
        "同一个进程，同一根管道，换一个客户端，id 又从 1 数起；中间是同样的四件事。"
        "版本和能力改写在每个请求的 params._meta 里，服务器不用记住前面说过什么。",
        "ping", """
先问一句服务器会什么；不问也行，直接 tools/list 一样有答复
supportedVersions 列出它会的全部版本，双方都会的最新一版就是 2026-07-28
请求里多了 _meta，其余和第一段一样
结果多了 resultType（complete 是办完了）；列表还有 ttlMs 和 cacheScope：能缓存多久、给谁用
同样只多了 _meta
多了 resultType 和 _meta，内容一个字都没有变
还是那条命令
第一种错没有变：办完了，但工具说不行
还是那个工具
第二种错也没有变；error 里没有 resultType
ping 在这一版里取消了
所以它和别的不认识的方法一样，是 -32601""",
    ),
)
MCP_DIFFERENCES = (
    ("", "2025-11-25 及以前", "2026-07-28"),
    ("开头", "initialize 握手", "没有握手"),
    ("版本、能力", "握手时说一次，两边记住", "写在每个请求的 _meta 里"),
    ("版本不合", "服务器回一个它会的版本", "error -32022，附上它会的版本"),
    ("结果", "只有内容", "加 resultType，列表加缓存时间"),
    ("去掉的方法", "", "initialize、ping、logging/setLevel 等"),
)


def our_server(args) -> list[str]:
    """The command that starts this file as a server, with the tools and notes of these flags."""
    command = [sys.executable, os.path.abspath(__file__), "--mcp-server"]
    for path in args.tools or ():
        command += ["--tools", os.path.abspath(path)]
    if args.notes:
        command += ["--notes", os.path.abspath(args.notes)]
    return command


Traced = Iterable[str | tuple]  # lines of text, and messages as (direction, item, remark)


def _traced(
    trace: collections.deque, act: Callable, *arguments: object, remarks: Iterator[str] = iter(()),
) -> Any:
    """Do it and yield the messages of it at once; returns what came out, None for an error reply.

    A message is "→" sent or "←" received; "!" is a line that is none.
    """
    import concurrent.futures

    pool, shown = concurrent.futures.ThreadPoolExecutor(1), itertools.count()
    future = pool.submit(act, *arguments)
    pool.shutdown(wait=False)
    while concurrent.futures.wait([future], 0.05).not_done:
        while trace and next(shown) < MCP_TRACED:
            yield *trace.popleft(), next(remarks, "")
    for _ in range(len(trace)):  # the last messages before a server fails say most
        yield *trace.popleft(), next(remarks, "")
    with contextlib.suppress(RpcError):
        return future.result()


def mcp_demo(command: Sequence[str], style: Style) -> Traced:
    """Two sessions with one server process, then the loop of scenario 1 with its tools."""
    trace: collections.deque = collections.deque(maxlen=MCP_TRACED)
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        for revision, title, lesson, missing, text in MCP_SESSIONS:
            yield from chapter(title, (lesson, ""), style)
            client, remarks = McpClient(server.send, revision=revision), iter(text.split("\n")[1:])
            for act, *arguments in (*MCP_WORK, ("request", missing)):
                came = yield from _traced(trace, getattr(client, act), *arguments, remarks=remarks)
                if act == "tools":
                    tools = came
        yield "两代的差别"
        for line in table(MCP_DIFFERENCES):
            yield from wrap(f"  {line}", style.width)
        yield "同一台服务器同时会两代：每条消息自己说明是哪一代，不用先选定。\n"
        lesson = "场景 1 原样再来一遍：循环没有变，只是工具在另一个进程里。"
        yield from chapter("第三段  模型通过 MCP 用工具", (lesson, ""), style)
        yield from demo_text(1, tools, style)
        yield "\n这一次调用在管道上是这两条消息：\n"
        yield from _traced(trace, bool)  # nothing more to do: the loop has sent them
    yield from wrap(
        "主机和工具之间是 MCP，主机和模型之间是 function calling：各管一段，互不代替。",
        style.width,
    )


# ── Somebody else's server ──

_OFFERS = (  # capability, method, key of its result, what to call it
    ("tools", "tools/list", "tools", "工具"),
    ("resources", "resources/list", "resources", "资源"),
    ("resources", "resources/templates/list", "resourceTemplates", "资源模板"),
    ("prompts", "prompts/list", "prompts", "提示词"),
)


def _entry_line(entry: dict) -> str:
    name = entry.get("name") or entry.get("uri")
    about = str(entry.get("description") or entry.get("title") or "").strip()
    return f"  {name}  {about}".partition("\n")[0]


def mcp_visit(command: Sequence[str], style: Style) -> Traced:
    """Connect to any server and ask what it offers: the messages, then a summary in lines."""
    trace: collections.deque = collections.deque(maxlen=MCP_TRACED)
    yield heading(" ".join(command), style)
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        client = McpClient(server.send, restart=server.restart)
        try:
            yield from _traced(trace, client.connect)
            if not client.revision:
                raise McpError("服务器用 error 拒绝了握手，原因见它最后的答复")
            about = client.server
            summary = [f"服务器：{about.get('name', '没有报名字')} {about.get('version', '')}"]
            summary.append(f"协议版本：{client.revision}")
            for capability, method, key, label in _OFFERS:
                if capability in client.capabilities:
                    entries = (yield from _traced(trace, client.pages, method, key)) or ()
                    summary.append(f"{label} {len(entries)} 个")
                    summary += map(_entry_line, entries)
        except McpError as error:
            how = f"--mcp-doctor -- {' '.join(command)}"
            raise McpError(f"{error}\n哪里不对、怎么改，用 {how} 查") from error
        for line in summary:
            yield from wrap(line, style.width, 4)


# ── Messages of either on screen, or as a trace ──


def _mcp_kind(item: object) -> str:
    match item:
        case {"method": method}:
            kind = f"请求 {method}" if "id" in item else f"通知 {method}"
        case {"error": {"code": code}}:
            kind = f"error {code}"
        case {"result": {"isError": True}}:
            kind = "result（isError）"
        case {"result": _}:
            kind = "result"
        case _:
            return "不是消息的一行"
    return f"{kind}  id={show(item['id'])}" if "id" in item else kind


def _abridged(value: object) -> object:
    """The value with long texts cut and lists shown by their first entry."""
    match value:
        case str() if len(value) > MCP_TEXT:
            return value[:MCP_TEXT] + "…"
        case [first, *rest]:
            return [_abridged(first), *([f"…… 还有 {len(rest)} 个"] if rest else [])]
        case dict():
            return {key: _abridged(item) for key, item in value.items()}
    return value


def mcp_text(items: Traced, style: Style) -> Iterator[str]:
    """Lines for the screen; of a message its direction, kind, remark, and the JSON itself."""
    for item in items:
        if isinstance(item, str):
            yield item
            continue
        direction, message, remark = item
        yield f"{direction} {style.paint(_mcp_kind(message), 'title')}"
        for line in wrap(remark, style.width - 2) if remark else ():
            yield style.paint(f"  {line}", "dim")
        text = json_text(json_value(message))
        if len(text) > MCP_SHOWN:
            notice = f"（共 {len(text)} 个字符，这里只写出一部分；加 --json 看全文）"
            text = json_text(json_value(_abridged(message))) + notice
        for line in wrap(text, style.width - 2):
            yield f"  {line}"
        yield ""


def mcp_trace(items: Traced) -> Iterator[str]:
    """The messages alone, one JSON object per line: {"direction", "message"}."""
    for item in items:
        if not isinstance(item, str):
            yield json_text({"direction": item[0], "message": json_value(item[1])})


# ── Examining a server ──
# Only its lines are looked at, so it may be written in anything. A finding is a key of FAULTS and a
# place. Observed with mcp 1.30.0 and 2.3.0, TypeScript SDK 1.32.2 and 2.4.0; hosts by their public
# issues; November 2026.

DOCTOR_SECONDS = 3.0  # for one answer
SLOWEST_START = 10.0  # seconds until Codex gives up
MOST_PLACES = 5  # shown of one fault: a server may have hundreds of tools, or log to its output
MOST_COUNTED = 1000  # places of one fault, and tools to call: a server may write without end
MOST_COMBINED = 60  # characters of server name and tool name together that Cursor accepts
GRAVE, ADVICE = "[问题]", "[建议]"  # in front of a finding that breaks a host, or none

# key | what is wrong | which host it breaks and how (nothing: then it is advice) | what to do
_FAULT_ROWS = r"""
BOM | 有一行以 BOM 开头 | 全部官方 SDK 收不到这条消息 | 输出不带 BOM 的 UTF-8
bytes | 有一行不是 UTF-8 | Python SDK 连接崩溃 | 消息按 UTF-8 编码成字节再写出
NaN | JSON 里有 {} | TypeScript SDK 一直等到超时 | 换成 null 或字符串
half | 文字里有半个字符（\ud800 一类） | Python SDK 一直等到超时 | 换成 U+FFFD
noise | 标准输出上有不是 JSON 的一行：{} | Claude Desktop 弹出错误 | 日志写到标准错误
split | 一条消息写成了好几行 | 全部官方 SDK 收不到它 | 写在一行里：json.dumps 不加 indent
no object | 有一行 JSON 不是对象 | Claude Desktop 弹出错误 | 一行写一个 JSON-RPC 对象
jsonrpc | 有消息没有写 "jsonrpc": "2.0" | 全部官方 SDK 收不到这条消息 | 每条都写上
error | error 里没有整数 code 和文字 message：{} | 全部官方 SDK 收不到这条消息 | 两样都写上
text id | 请求的 id 是数字，答复里成了文字 |  | 原样写回请求的 id，有的客户端对不上
null id | 有消息的 id 是 null |  | 不写这个键，否则 Claude Desktop 弹出错误
long | 有一行超过 10 MiB | TypeScript SDK 断开连接 | 截短结果，或者分页
twice | 一个请求答复了两次 | mcp 1.30.0 崩溃 | 每个请求只答复一次

start | initialize（id 是 0）没有得到结果。{} | 全部主机连接不上 | 先让它在终端里跑起来
buffered | 关闭输入后答复才出来 | 全部主机连接不上 | 立即发出：print 加 flush=True，或用 python -u
slow | 第一次答复要 {} 秒 | Codex 只等 10 秒 | 先答复，费时的准备用时再做
about | {} | 全部官方 SDK 连接不上 |
window | 握手完成前不回答 {} | VS Code 一直等到超时 | 不认识的请求也要回 error -32601
again | 不回答第二次 initialize | Claude Desktop 一直等到超时 | 再答复一次
probe | 不回答 server/discover | 官方 SDK 启动时多等 10 到 60 秒 | 不认识的请求也要回 error -32601
probe kills | 收到 server/discover 就退出 | mcp 2.3.0 和 fastmcp 连接不上 | 回 error，不要退出
locked | 答过 server/discover 就不再握手 | Claude Code、mcp 2.3.0 连接不上 | 按每条消息判断版本
stateless | 没有先问 server/discover 就不答复 | TypeScript SDK 2.4.0 没有工具 | 单独答复
modern | 2026-07-28 的 {} |  | 规范要求写上

list | {} 没有得到结果 | 全部官方 SDK 列不出来 | 没有内容就回空列表
undeclared | {} 没有得到结果 |  | 没有内容就回空列表：没有声明，Claude 也会问
shape | {} | 官方 SDK 拒绝整个列表 |
names | {} 里有同名的 | Claude 和 OpenAI 的接口拒绝请求 | 改名
cursor | {} 的 nextCursor 没完没了 | 有的客户端一直翻页 | 最后一页不写它
name | {} 的名字不合规 | Claude Desktop 不显示任何工具 | 只用英文字母、数字、_、-
combined | {} 的名字加上服务器名太长 | Cursor 丢掉这个工具 | 合起来最多 60 个字符
no text | {} 没有说明 |  | 写清做什么、什么时候用，模型靠它选工具
text | {} 的说明超过 1024 个字符 | OpenAI 的接口拒绝请求 | 改短
$schema | {} 声明了 $schema | Claude Desktop 和 Claude Code 拒绝这个工具 | 删掉 $schema
union | {} 最外层有 anyOf、oneOf 或 allOf | Claude 和 OpenAI 的接口拒绝 | 移到属性里面
schema | {} | Claude 和 OpenAI 的接口拒绝请求 | 按 JSON Schema 写
stray | {} 不在 properties 里 | Gemini 的接口拒绝请求 | 补上这个参数，或从 required 里删去
big | {} 超过 8 KB |  | 删去少用的参数，小模型读不下

content | {} | 官方 SDK 拒绝这个结果 |
output | {} 的结果不符合 outputSchema | 全部官方 SDK 拒绝这个结果 | 两者要一致
too much | {} 的结果接近 1 MiB | Claude Desktop 拒绝这个结果 | 截短
silent | 调用后没有答复：{} | 全部主机一直等到超时 | 出错也要回 isError 或 error
useless | {} |  | 如果错不在参数，看看它缺什么文件、密钥或网络
unknown | 不回答不认识的方法 | 全部主机一直等到超时 | 不认识的请求也要回 error -32601

fragile | 收到一行之后不再答复：{} | 对方只要发错一行，连接就断了 | 回 error，继续读下一行
too deep | 收到一行之后不再答复：{} |  | 回 error，继续读下一行
wrong lines | 不回答：{} |  | 回 error（-32700、-32600 或 -32602），对方才不会空等
notified | 回答了通知 |  | 通知没有 id，不要答复，出错也不答
end | 输入关闭 2 秒后还没有退出 |  | 读到输入结束就退出，不然主机要强行结束它
died | 中途断开，{} | 全部主机断开连接 | 让它不要退出；通知没有 id，不用答复
"""
FAULTS = {
    key: texts
    for key, *texts in (map(str.strip, row.split("|")) for row in _FAULT_ROWS.split("\n") if row)
}
SOUND = f"没有发现问题（查了 {len(FAULTS)} 种）。"

WRONG_LINES = {
    "不是 JSON 的一行": b"{not json\n",
    "id 是 null 的请求": b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n',
    "没有 jsonrpc 的请求": b'{"id":901,"method":"ping"}\n',
    "params 是数组的请求": b'{"jsonrpc":"2.0","id":902,"method":"tools/list","params":[1]}\n',
    "带 NaN 的请求": b'{"jsonrpc":"2.0","id":903,"method":"ping","params":{"x":NaN}}\n',
    "嵌套十万层的 JSON": b"[" * 100_000 + b"]" * 100_000 + b"\n",
}

_HELLO = {"protocolVersion": LATEST_LEGACY.name, "capabilities": {}, "clientInfo": CLIENT_INFO}
_ENVELOPE = {"_meta": {VERSION_KEY: MODERN.name, CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}}
Findings = Iterator[tuple[str, object]]


def _loose_json(line: bytes | None, on_constant: Callable[[str], object] = str) -> object:
    """The JSON value in a line, forgiving what some hosts do not; None if there is none."""
    text = (line or b"").decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, parse_constant=on_constant)
    except (ValueError, RecursionError):
        return None


def _true(faults: Mapping[str, object], where: str = "") -> Findings:
    """The faults whose test found something; the place is `where` or what was found."""
    return ((key, where or found) for key, found in faults.items() if found)


def _in_line(line: bytes | None) -> Findings:
    constants: list[str] = []
    value, data = _loose_json(line, constants.append), line or b""
    unread = value is None and data
    split = unread and re.fullmatch(rb'\s*([\[{]|[\]}],?|"[^"]*"(:.*|,))\s*', data)  # by indent=2
    yield from _true({
        "long": line is None,
        "BOM": data.startswith(codecs.BOM_UTF8),
        "bytes": data.decode("utf-8", "ignore").encode("utf-8") != data,
        "split": bool(split),
        "noise": unread and not split and show(data.decode("utf-8", "replace").strip()),
        "NaN": " 和 ".join(dict.fromkeys(constants)),
        "half": re.search(HALF_CHARACTER, json.dumps(value, ensure_ascii=False)),
        "no object": value is not None and not isinstance(value, dict),
        "jsonrpc": isinstance(value, dict) and value.get("jsonrpc") != "2.0",
        "null id": isinstance(value, dict) and value.get("id", 0) is None,
    })
    match value:
        case {"error": {"code": int(), "message": str()}}:
            pass
        case {"error": error}:
            yield "error", show(error)


class Patient(StdioServer):
    """A server under examination: its lines are read if at all possible, and faults noted."""

    def __init__(self, command: Sequence[str]):
        self.found: dict[str, dict[str, None]] = {}  # key of FAULTS → its places, each once
        self.patience = 3 * SLOWEST_START  # seconds for one answer
        self.about: dict | None = None  # the result of initialize
        self.name, self.modern, self.tools = "", False, []
        self.replies = 0  # lines so far that ask nothing
        self._ids = itertools.chain((0, "server-discover-probe-1"), itertools.count(2))
        self._asked: set[str] = set()
        sent = self._sent = collections.deque(maxlen=2)  # the latest methods
        super().__init__(
            command, trace=lambda way, item: way == "→" and sent.append(item.get("method", "答复")),
        )

    def note(self, findings: Findings) -> None:
        """Remember faults, each with its places, in one line each."""
        for key, where in findings:
            places = self.found.setdefault(key, {})
            if len(places) < MOST_COUNTED:
                places[said(str(where), 300)] = None

    def undergo(self, *stages: Callable[[Patient], Findings]) -> None:
        """Go through stages of the examination, as long as the server lives."""
        try:
            for stage in stages:
                self.note(stage(self))
        except McpError as error:
            self.note([("died", f"最后发给它的是 {' 和 '.join(self._sent)}：{error}")])

    def _receive(self, line: bytes | None, waiting: dict) -> None:
        with contextlib.suppress(RecursionError):
            self.note(_in_line(line))
            message = _loose_json(line)
            self.replies += (answers := "method" not in as_object(message))
            if isinstance(message, dict):
                id = str(message.get("id")) if answers else ""
                self.note(_true({
                    "twice": id in self._asked and id not in waiting,
                    "text id": id in self._asked and id.isdecimal() and message["id"] == id,
                }))
                super()._receive(encode(json_value({"jsonrpc": "2.0", **message})), waiting)

    def answers_at_last(self) -> bool:
        """Whether the answer that did not come in time comes once its input is closed."""
        split, self.patience = "split" in self.found, DOCTOR_SECONDS
        self.end_input()
        with contextlib.suppress(ServerGoneError):
            self.ask("ping")  # never written: only waits for the end of the output
        return "0" not in self._waiting or "split" in self.found and not split

    def ask(self, method: str, params: dict | None = None) -> dict:
        """The reply; {} when there is none in time. Ids are as official clients choose them."""
        message = request_message(next(self._ids), method, params)
        self._asked.add(str(message["id"]))
        try:
            return self.send(message, self.patience)
        except ServerSilentError:
            return {}

    def reacts(self, line: bytes) -> bool:
        """Whether this line causes a reply, told from others by a ping after it."""
        before = self.replies
        self.write(line)
        if not self.ask("ping"):
            raise ServerSilentError("ping")
        time.sleep(DOCTOR_SECONDS / 30)  # it may answer in any order
        return self.replies > before + 1


_TEXT, _SOME_OBJECT = {"type": "string"}, {"type": "object"}


def _demand(needed: str, **properties: dict) -> dict:
    return {"type": "object", "required": needed.split(), "properties": properties}


_PARTS = {"type": "object", "additionalProperties": _SOME_OBJECT}
_SCHEMA = _demand("type", type={"const": "object"}, properties=_PARTS)
_BLOCK = _demand("type", type={"enum": ["text", "image", "audio", "resource", "resource_link"]})
_NAMED = dict.fromkeys(("name", "title", "description", "mimeType"), _TEXT)
_ENTRIES = {  # key of a list result → its entries
    "tools": _demand("name inputSchema", inputSchema=_SCHEMA, outputSchema=_SCHEMA, **_NAMED),
    "resources": _demand("uri name", uri=_TEXT, **_NAMED),
    "resourceTemplates": _demand("uriTemplate name", uriTemplate=_TEXT, **_NAMED),
    "prompts": _demand("name", **_NAMED),
}
# What official clients insist on; null is nowhere the same as nothing.
_DUE = {
    key: _demand(key, nextCursor=_TEXT, **{key: {"type": "array", "items": entry}})
    for key, entry in _ENTRIES.items()
} | {
    "initialize": _demand(
        "protocolVersion capabilities serverInfo", capabilities=_SOME_OBJECT, instructions=_TEXT,
        protocolVersion={"enum": [name for name in REVISIONS if not REVISIONS[name].modern]},
        serverInfo=_demand("name version", name=_TEXT, version=_TEXT, title=_TEXT),
    ),
    "tools/call": _demand("content", content={"type": "array", "items": _BLOCK}),
}


def _misshapen(key: str, shape: str, value: object, who: str) -> Findings:
    for path, keyword, text in validate_arguments(value, _DUE[shape]):
        text, advice = text.replace("必填参数", "").replace("参数 ", ""), "请改正"
        if keyword == "required":
            words = re.findall(r"[^.[\]]+", path)
            *steps, name = [int(word) if word.isdecimal() else word for word in words]
            near = closest(name, functools.reduce(operator.getitem, steps, value))
            advice = f"是不是写成了 {near}？" if near else "请补上"
        yield key, f"{who}：{text}，{advice}"


def _in_schema(schema: object, place: str) -> Findings:
    """What model APIs refuse of a schema though our own checks forgive it."""
    own = as_object(schema)
    kinds, required, given = own.get("type", []), own.get("required"), own.get("properties")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _ANY:
            meant = _ALIASES.get(str(kind).lower(), "、".join(_ANY))
            yield "schema", f"{place}.type 是 {show(kind)}，应该是 {meant}"
    for name in required if isinstance(required, list) and isinstance(given, dict) else ():
        if name not in [*given]:
            yield "stray", f"{place}.required 里的 {show(name)}"
    for key in ("properties", "$defs"):
        for name, part in as_object(own.get(key)).items():
            yield from _in_schema(part, f"{place}.{key}.{name}")
    for key in ("items", "anyOf", "oneOf", "allOf"):
        parts = own.get(key, [])
        for part in parts if isinstance(parts, list) else [parts]:
            yield from _in_schema(part, f"{place}.{key}")


def _in_tool(tool: dict, server: str) -> Findings:
    name, text = tool.get("name"), str(tool.get("description") or "")
    where = f"工具 {show(name)}"
    yield from _true({
        "name": not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(name)),
        "combined": len(f"{server}{name}") > MOST_COMBINED,
        "no text": not text.strip(),
        "text": len(text) > DESCRIPTION_LIMIT,
    }, where)
    for key in ("inputSchema", "outputSchema"):
        schema = as_object(tool.get(key))
        yield from _true({
            "$schema": "$schema" in schema,
            "union": {"anyOf", "oneOf", "allOf"} & schema.keys(),
            "big": len(json_text(json_value(schema))) > 8192,
        }, f"{where} 的 {key}")
        for note in compile_schema(schema).notes if schema else ():
            if re.search("不合规定|找不到", note):
                yield "schema", f"{where} 的 {key} 的 {note.removesuffix('，不予检查')}"
        yield from _in_schema(schema, f"{where} 的 {key}")


def _in_list(method: str, key: str, result: dict, server: str) -> Findings:
    yield from _misshapen("shape", key, result, f"{method} 的答复")
    listed = result.get(key)
    entries = [*map(as_object, listed)] if isinstance(listed, list) else []
    names = [show(entry.get("name")) for entry in entries]
    if key in ("tools", "prompts") and len(set(names)) < len(names):
        yield "names", key
    if key == "tools":
        for tool in entries:
            yield from _in_tool(tool, server)


def _in_result(who: str, result: dict, output: object) -> Findings:
    """What is wrong with the result of a call."""
    yield from _misshapen("content", "tools/call", result, f"{who}的结果")
    if len(result_text(result)) > 1_000_000:
        yield "too much", who
    if isinstance(output, dict) and result.get("isError") is not True:
        if validate_arguments(result.get("structuredContent"), output):
            yield "output", who


_FOR_EXAMPLE = "(?:例如|比如|e\\.g\\.|[Ee]xamples?)\\W{0,3}[\"'`“「]([^\"'`”」]+)"


def _example(schema: object, number: int) -> object:
    """Some value that the schema may accept, another one for each number; first what it names."""
    match schema:
        case {"default": value} | {"const": value}:
            return value
        case {"enum": [_, *_] as values} | {"examples": [_, *_] as values}:
            return values[number % len(values)]
        case {"minimum": least}:
            return least + number
        case {"type": "object", **rest}:
            parts = rest.get("properties") or {}
            return {name: _example(parts.get(name), number) for name in rest.get("required") or ()}
        case {"type": str() as kind, **rest}:
            guesses = {"integer": 1 + number, "number": 1 + number, "boolean": False, "array": []}
            named = not number and re.search(_FOR_EXAMPLE, str(rest.get("description")))
            return guesses.get(kind, named[1] if named else f"test{number}")
    return "test"


# The examination, one session after another; each stage asks and yields what it finds.


def _last_words(log: Iterable[str]) -> str:
    """What a log says went wrong; npm says that first, and last where to read more."""
    lines = [*log]
    errors = [line for line in lines if re.match(r"(?i)(?!\s).*(error|exception|fail)", line)]
    return "它的日志：" + " / ".join(errors[:4] or lines[-1:]) if lines else ""


def _opening(patient: Patient) -> Findings:
    """The handshake as most hosts do it today."""
    begin, reply = time.monotonic(), {}
    with contextlib.suppress(ServerGoneError):
        reply = patient.ask("initialize", _HELLO)
    took, result = time.monotonic() - begin, reply.get("result")
    if not isinstance(result, dict):
        late = not reply and patient.answers_at_last()
        why = f"它回答：{show(reply)}" if reply else _last_words(patient.log)
        yield "buffered" if late else "start", why
        return
    patient.about = result
    patient.patience = DOCTOR_SECONDS + 2 * took  # the next start takes as long
    patient.name = as_object(result.get("serverInfo")).get("name", "")
    if took > SLOWEST_START:
        yield "slow", math.ceil(took)
    yield from _misshapen("about", "initialize", result, "initialize 的答复")
    for method, params in (("logging/setLevel", {"level": "info"}), ("ping", None)):
        if not patient.ask(method, params):
            yield "window", method
    patient.send(notification_message("notifications/initialized"), 0)


def _offers(patient: Patient) -> Findings:
    """The four lists with all their pages; the tools are kept for calling."""
    offered = as_object(patient.about.get("capabilities"))
    for capability, method, key, _ in _OFFERS:
        cursor, seen = None, []
        while not seen or isinstance(cursor, str):
            if cursor in seen or len(seen) == MOST_PAGES:
                yield "cursor", method
                break
            reply = patient.ask(method, {"cursor": cursor} if seen else None)
            result = reply.get("result")
            if not isinstance(result, dict):
                yield "list" if capability in offered or not reply else "undeclared", method
                break
            yield from _in_list(method, key, result, patient.name)
            if key == "tools" and isinstance(result.get(key), list):
                patient.tools = (patient.tools + result[key])[:MOST_COUNTED]
            seen.append(cursor)
            cursor = result.get("nextCursor")


def _call(patient: Patient, who: str, tool: dict, arguments: object):
    """Yields what is wrong with the reply to a call; returns why the call failed, "" if it did not.

    That is no fault: a tool may refuse what it is given.
    """
    reply = patient.ask("tools/call", {"name": tool["name"], "arguments": arguments})
    if not reply:
        yield "silent", who
    elif "error" in reply:
        return show(reply["error"])
    else:
        result = as_object(reply.get("result"))
        yield from _in_result(who, result, tool.get("outputSchema"))
        if result.get("isError") is True:
            return result_text(result)
    return ""


def _calls(patient: Patient) -> Findings:
    """Calls that do no harm: of no tool at all, and of tools that say they only read."""
    yield from _call(patient, "不存在的工具", {"name": "no_such_tool"}, {})
    for tool in patient.tools:
        match tool:
            case {
                "name": name, "inputSchema": {"type": "object"} as schema,
                "annotations": {"readOnlyHint": True},
            } if not check_schema(schema):
                who, reasons = f"工具 {show(name)} ", set()
                for arguments in (_example(schema, 0), _example(schema, 1)):
                    if reasons != {""} and not validate_arguments(arguments, schema):
                        reasons.add((yield from _call(patient, who, tool, arguments)))
                if len(reasons) == 1 and "" not in reasons:
                    yield "useless", f"{who}试了几种参数都失败：{reasons.pop()}"
    if not patient.ask("no/such/method"):
        yield "unknown", ""
    if not patient.ask("initialize", _HELLO):
        yield "again", ""


def _manners(patient: Patient) -> Findings:
    """What it makes of wrong lines, of a notification, and of the end of its input."""
    silent = []
    for name, line in WRONG_LINES.items():
        try:
            if not patient.reacts(line):
                silent.append(name)
        except McpError:
            yield "too deep" if b"[[" in line else "fragile", name
            return
    if silent:
        yield "wrong lines", "、".join(silent)
    if patient.reacts(encode(notification_message("notifications/no_such"))):
        yield "notified", ""
    patient.end_input()
    if not patient.ended(CLOSE_SECONDS):
        yield "end", ""


def _modern_keys(method: str, result: dict) -> Findings:
    missing = [key for key in ("resultType", "ttlMs", "cacheScope") if result.get(key) is None]
    if missing:
        yield "modern", f"{method} 结果缺少 {'、'.join(missing)}"


def _probe(patient: Patient) -> Findings:
    """What clients of 2026-07-28 do first, and hosts that go back to the handshake after it."""
    try:
        reply = patient.ask("server/discover", _ENVELOPE)
    except ServerGoneError:
        yield "probe kills", ""
        return
    if not reply:
        yield "probe", ""
    match reply:
        case {"result": {"supportedVersions": [*versions]} as result} if MODERN.name in versions:
            patient.modern = True
            yield from _modern_keys("server/discover", result)
    if "result" not in patient.ask("initialize", _HELLO):
        yield "locked", ""


def _stateless(patient: Patient) -> Findings:
    """The first line is an enveloped request: TypeScript clients probe another process."""
    result = patient.ask("tools/list", _ENVELOPE).get("result")
    if isinstance(result, dict):
        yield from _modern_keys("tools/list", result)
    else:
        yield "stateless", ""


def mcp_examine(command: Sequence[str]) -> dict[str, list[str]]:
    """Keys of FAULTS, each with its places; it is started up to three times, as hosts do."""
    with Patient(command) as patient:
        patient.undergo(_opening)
        if patient.about is not None:
            patient.undergo(_offers, _calls, _manners)
            patient.restart()
            patient.undergo(_probe)
        if patient.modern:
            patient.restart()
            patient.undergo(_stateless)
    return {key: [*places] for key, places in [*patient.found.items()]}  # it may still be read from


def mcp_doctor_text(command: Sequence[str]) -> Iterator[str]:
    """One line for each finding, grave ones first, and a verdict."""
    found, counts = mcp_examine(command), collections.Counter()
    for key in sorted(found, key=lambda key: not FAULTS[key][1]):
        what, *advice = FAULTS[key]
        mark = GRAVE if advice[0] else ADVICE
        counts[mark] += len(found[key])
        for where in found[key][:MOST_PLACES]:
            texts = (what.format(where).rstrip("。"), *advice)
            yield f"{mark} " + "".join(f"{text}。" for text in texts if text).replace("？。", "？")
        if more := found[key][MOST_PLACES:]:
            yield f"{mark} 同样的问题还有 {len(more)} 处。"
    yield f"{counts[GRAVE]} 个问题会让主机出错，{counts[ADVICE]} 条建议。" if found else SOUND



# ── Registering with a host ──


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _json_block(key: str, command: str, arguments: list[str], **extra: str) -> str:
    entry = {**extra, "command": command, "args": arguments}
    return _pretty({key: {SERVER_NAME: entry}})


def _toml_block(command: str, arguments: list[str]) -> str:
    """A JSON string is also a TOML basic string, and a list of them a TOML array."""
    text, listed = json_text(command), json_text(arguments)
    return f"[mcp_servers.{SERVER_NAME}]\ncommand = {text}\nargs = {listed}"


_IN_HOME = "Windows 上 ~ 是 %USERPROFILE%。"
# Programs that start MCP servers: the shape of their configuration, and where the file is.
HOSTS = {
    "claude": types.SimpleNamespace(
        title="Claude Desktop", block=functools.partial(_json_block, "mcpServers"),
        places=(
            ("macOS", "~/Library/Application Support/Claude/claude_desktop_config.json"),
            ("Windows", r"%APPDATA%\Claude\claude_desktop_config.json"),
            ("Linux", "~/.config/Claude/claude_desktop_config.json"),
        ),
        hint="改完要完全退出再打开 Claude Desktop。加 --write 可以直接写进去。",
    ),
    "cursor": types.SimpleNamespace(
        title="Cursor", block=functools.partial(_json_block, "mcpServers"),
        places=(("全部项目", "~/.cursor/mcp.json"), ("一个项目", ".cursor/mcp.json")),
        hint=_IN_HOME,
    ),
    "vscode": types.SimpleNamespace(
        title="VS Code", block=functools.partial(_json_block, "servers", type="stdio"),
        places=(
            ("一个工作区", ".vscode/mcp.json"),
            ("macOS", "~/Library/Application Support/Code/User/mcp.json"),
            ("Windows", r"%APPDATA%\Code\User\mcp.json"),
            ("Linux", "~/.config/Code/User/mcp.json"),
        ),
        hint="也可以用命令 MCP: Open User Configuration 打开。",
    ),
    "codex": types.SimpleNamespace(
        title="Codex", block=_toml_block,
        places=(("全部项目", "~/.codex/config.toml"), ("一个项目", ".codex/config.toml")),
        hint=_IN_HOME,
    ),
}


def mcp_config_text(host, command: Sequence[str], style: Style) -> tuple[str, str, str]:
    """For one host: a title, the block, ready to paste, and where it goes."""
    places = "".join(f"\n  {line}" for line in table(host.places))
    block = host.block(command[0], [*command[1:]])
    return heading(host.title, style), block, f"\n写进这个文件：{places}\n{host.hint}"


def claude_config_path() -> str:
    """Where Claude Desktop keeps its configuration on this system."""
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux")
    return os.path.expanduser(os.path.expandvars(dict(HOSTS["claude"].places)[system]))


def _merged(old: bytes, block: dict, path: str) -> str:
    """The configuration with our entry, as text. Raises McpError where there is no place for it."""
    try:
        text = old.decode("utf-8-sig").strip() or "{}"
        config = json.loads(text, parse_constant=_refuse_word)
        config.setdefault("mcpServers", {}).update(block["mcpServers"])
    except (ValueError, RecursionError) as error:
        raise McpError(f"{path} 不是合法的 JSON（{error}），没有改动它；请先改好") from None
    except AttributeError:
        raise McpError(f"{path} 应该是 {{\"mcpServers\": {{…}}}} 这样的对象，没有改动它") from None
    return _pretty(config) + "\n"


def write_claude_config(path: str, command: Sequence[str]) -> Iterator[str]:
    """Merge our block into the file, keeping everything else; a copy of the old file stays.

    Raises McpError, with nothing changed, when the file is no JSON.
    """
    import shutil

    path = os.path.realpath(path)  # of a link, what it leads to is written; the link stays
    old, draft = b"", f"{path}.new"
    if os.path.exists(path):
        with open(path, "rb") as file:
            old = file.read()
    block = json.loads(HOSTS["claude"].block(command[0], [*command[1:]]))
    new = _merged(old, block, path).encode("utf-8", "replace")
    if old == new:
        yield f"已经登记过了，没有改动：{path}"
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(draft, "wb") as file:
        file.write(new)
    if old:
        names = (f"{path}.bak{number or ''}" for number in itertools.count())
        backup = next(name for name in names if not os.path.exists(name))
        shutil.copy2(path, backup)
        shutil.copymode(path, draft)  # it may hold keys, for its owner alone
        yield f"原来的文件备份在 {backup}"
    os.replace(draft, path)  # at once: a crash leaves the old file or the new one
    yield f"已写入 {path}，请完全退出再打开 Claude Desktop。"



# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 21  入口 Command line      uses everything above
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One table of commands, one of options. A command is a function from the parsed flags to lines of
# text; `main` prints them and turns every failure into one line and an exit code.

DEBUG_VARIABLE = "W4D3_DEBUG"  # set to 1 to see tracebacks
NARROWEST, WIDEST = 30, 120  # columns; longer lines are hard to read
PIPED_WIDTH = 80  # columns when the output is no terminal
IMPORT_SECONDS = 60.0  # for one --tools file: torch takes a while, an endless loop for ever
ROUTE_ABOVE = 20  # --ask routes by itself when more tools are offered than this
_FUNCTIONS = (types.FunctionType, types.MethodType, type(functools.cache(len)))


class UsageError(Exception):
    """The command line is wrong; the message says what to do. Exit code 2."""


# --- output ---


class _OutputError(Exception):
    """Standard output takes nothing more. Exit code 1."""


def _writer(stream, failed: Callable[[OSError], None] | None = None) -> Callable[[str], None]:
    """Writes text at once. Where the stream takes no more, that is told once, if to anybody."""
    def write(text: str) -> None:
        if stream.isatty():  # \r is our own: it counts the seconds
            text = "\r".join(map(printable, text.split("\r")))
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:  # Python flushes it again at the end: let that go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if failed:
                failed(error)

    return write


def _complain(text: str) -> None:
    _writer(sys.stderr)(text + "\n")


def _end(error: OSError) -> typing.NoReturn:
    """What a standard output that takes no more means for the program."""
    if isinstance(error, BrokenPipeError):  # the reader has seen enough, as in `… | head`
        raise SystemExit(0)
    raise _OutputError(f"写不了标准输出：{os_reason(error)}")


def _spell_out(stream, how: str) -> None:
    """A GBK console must not crash on a rare character."""
    with contextlib.suppress(AttributeError):  # no text file, as in a notebook
        stream.reconfigure(errors=how)


def screen_style(stream) -> Style:
    """Width and colour of an output stream; NO_COLOR, TERM=dumb and COLUMNS are respected."""
    terminal, wanted = stream.isatty(), os.environ.get("COLUMNS", "")[:9]
    width = int(wanted) if wanted.isdecimal() else 0
    if terminal and not width:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if colour and os.name == "nt":
        os.system("")  # switches a Windows console to understanding colour codes
    return Style(max(NARROWEST, min(width or PIPED_WIDTH, WIDEST)), colour)


# --- the user's own tools and notes ---


_kept: list = []  # our standard output, once the usual one has been left to user code


def _stdout():
    return _kept[0] if _kept else sys.stdout


def _keep_stdout() -> None:
    """Make standard output ours alone: what user code prints, or its child, goes to stderr."""
    theirs = sys.stdout
    with contextlib.suppress(OSError, ValueError):  # raised where it is no file, as in a notebook
        _kept.append(open(  # noqa: SIM115 - open as long as we are
            os.dup(theirs.fileno()), "w", encoding=theirs.encoding, errors=theirs.errors,
        ))
        os.dup2(sys.stderr.fileno(), theirs.fileno())
        theirs.reconfigure(line_buffering=True)


def _failure_of(work: Callable[[], None], seconds: float) -> BaseException | None:
    """What `work` raised, be it exit(), in a thread that may be left behind."""
    ended: list[BaseException | None] = []

    def attempt() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return ended[0] if ended else TimeoutError(f"{seconds:g} 秒还没有读完")


def _place(error: BaseException, path: str) -> str:
    """The file and line where it happened: the innermost of the user's own files."""
    import traceback

    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        if file.startswith(os.path.dirname(path)) and "-packages" not in file and file != __file__:
            return f"{file} 第 {line} 行"
    return path


def _import_file(path: str) -> types.ModuleType:
    import importlib.util

    name = "user_tools_" + re.sub(r"\W", "_", os.path.basename(path)[:-3])
    while name in sys.modules:  # two files of one name
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and postponed annotations look their module up here
    # For its siblings, now and when a tool runs: they hide no standard module, only installed ones.
    at = next((i for i, place in enumerate(sys.path) if "-packages" in place), len(sys.path))
    sys.path.insert(at, os.path.dirname(path))
    streams = sys.stdout, sys.stderr
    error = _failure_of(lambda: spec.loader.exec_module(module), IMPORT_SECONDS)
    sys.stdout, sys.stderr = streams
    if error:
        reason = error_text(error)
        if re.search("(SyntaxError|ValueError): .*(null bytes|'utf-8' codec can't decode)", reason):
            reason = "不是 UTF-8，请另存为 UTF-8"
        elif isinstance(error, SyntaxError):
            reason = f"语法错误（SyntaxError）：{error.msg}"  # its text would name the file again
        elif isinstance(error, ModuleNotFoundError) and error.name:
            reason = f"没有安装模块 {error.name}，请给 {sys.executable} 装上，或改用装了它的 Python"
        raise UsageError(f"--tools：{_place(error, path)}：{reason}") from error
    return module


def _user_functions(module: types.ModuleType) -> dict[str, Callable]:
    """Name → public function of the file, or of its __all__; of two names for one the first."""
    names, found = getattr(module, "__all__", None), {}
    listed = isinstance(names, (list, tuple))
    for name in names if listed else [name for name in vars(module) if name[:1] != "_"]:
        value = getattr(module, name)
        if isinstance(value, _FUNCTIONS) and (
            listed or value.__module__ == module.__name__ and value.__name__ != "<lambda>"
        ):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def add_user_tools(registry: ToolRegistry, path: str) -> None:
    """Register every public function of a Python file.

    Raises UsageError naming file, line and reason when the file or a function is unusable.
    """
    module, place = _import_file(path), path
    try:
        functions = _user_functions(module)
        for name, fn in functions.items():
            code = getattr(getattr(fn, "__wrapped__", fn), "__code__", None)
            place = f"{code.co_filename} 第 {code.co_firstlineno} 行" if code else path
            registry.register(fn, **{"name": name, **getattr(fn, "tool", {})})
    except Exception as error:  # also what its own __signature__ or .tool does
        reason = error if isinstance(error, SchemaError) else error_text(error)
        raise UsageError(f"--tools：{place}：{reason}") from error
    if not functions:
        rules = "用 def 写在这个文件里，名字不以 _ 开头，装饰器要用 functools.wraps"
        raise UsageError(f"--tools：{path} 里没有公开的函数：{rules}")


def chosen_notes(args) -> NotesIndex:
    """The notes of --notes, or the bundled ones; a large folder is indexed in the user's cache."""
    def progress(done: int, total: int) -> None:
        if total > PROGRESS_STEP:  # fewer files take no time
            _complain(f"正在为笔记建索引：{done}/{total} 个文件")

    if not args.notes:
        return NotesIndex(NOTES_FOLDER)
    cache = notes_cache(sys.platform, os.environ, os.path.expanduser("~"))
    return LargeNotesIndex(args.notes, cache, progress=progress)


def chosen_tools(args, notes: NotesIndex | None = None) -> ToolRegistry:
    """The built-in tools and those of --tools, reading the notes of --notes.

    What those notes had to leave out is told, unless the caller brings them itself.
    """
    if notes is None:
        notes = chosen_notes(args)
        try:
            for notice in notes.notices if args.notes else ():
                _complain(f"--notes：{notice}")
        except ToolError as error:  # nothing to read in it
            raise UsageError(f"--notes {said(args.notes)}：{error}") from error
    registry = built_in_tools(notes)
    if own_notes(args):
        registry = ToolRegistry(map(tool_for_own_notes, registry))
    if args.tools and not _kept and sys.stdout is not sys.stderr:  # as the server has it
        _keep_stdout()
    for path in dict.fromkeys(map(os.path.abspath, args.tools or ())):
        add_user_tools(registry, path)
    return registry


def _tell_missing_notes(args) -> None:
    """A word to those who took along this file alone: the rest works, so it is no failure."""
    if not args.notes and not os.path.isdir(NOTES_FOLDER):
        _complain("注意：脚本旁边没有 notes 文件夹，查不到讲义；请一起复制来，或加 --notes DIR")


def _pick_tools(registry: ToolRegistry, names: Iterable[str], args) -> ToolRegistry:
    for name in names:
        if name not in registry:
            hint, known = _suggested(name, registry.names), "、".join(registry.names)
            more = "" if hint or args.tools else "；自己写的工具要加 --tools FILE.py"
            raise UsageError(f"没有工具 {said(name)}{hint or '。'}可用：{known}{more}")
    return registry.subset(dict.fromkeys(names)) if names else registry


# --- commands without a model: each takes the flags and yields lines ---


def _lint(picked: ToolRegistry, everything: ToolRegistry, style: Style) -> Iterator[str]:
    found = 0
    for tool in picked:
        advice = review_tool(tool, everything)
        found += len(advice)
        yield style.paint(f"{tool.name}：{len(advice)} 条建议", "bad" if advice else "good")
        for where, what, why in advice:
            yield from wrap(f"  {where}：{what}", style.width)
            for line in wrap(f"    为什么：{why}", style.width):
                yield style.paint(line, "dim")
    yield f"共检查 {len(picked)} 个工具，{found} 条建议。"


def run_schema(args, style: Style) -> Iterator[str]:
    """--schema: tool definitions as JSON, in one vendor's format, or a review of them."""
    registry = chosen_tools(args)
    picked = _pick_tools(registry, args.schema, args)
    if args.lint:
        yield from _lint(picked, registry, style)
    else:
        yield _pretty(tools_in_format(picked, args.format))


def run_call(args, style: Style) -> Iterator[str]:
    """--call: one tool with the arguments a model would write; the text the model would read."""
    name, text = args.call[0], " ".join(args.call[1:])
    tools = chosen_tools(args)
    _pick_tools(tools, [name], args)
    model = MockLLM([Turn(calls=(ToolCall("call_0", name, text),))])
    events = run_tool_loop(model, tools, [])  # for its time limit
    result = next(event.result for event in events if isinstance(event, CallFinished))
    hint = ""
    if result.status == "bad_arguments":
        files = "".join(f' --tools "{path}"' for path in args.tools or ())
        hint = f"（参数的写法：--schema {name}{files}）"
        if "JSON 对象" in result.text:  # not even that came
            example = json_text(_example(tools[name].parameters, 0))
            eaten = "；引号可能被命令行吃掉了，PowerShell 5.1 里要写成 \\\" 而不是 \""
            hint = f"。例如 '{example}'{eaten if re.match('{ *[a-zA-Z_]', text) else ''}{hint}"
    if result.is_error:
        raise ToolError(result.text + hint) from tools.last_error
    yield result.text


def run_router_demo(args, style: Style) -> Iterator[str]:
    """--router-demo: how a request is routed among the 40 tools of the catalogue."""
    query = args.router_demo if isinstance(args.router_demo, str) else ""
    return router_demo_text(query, catalogue_tools(chosen_tools(args)), style)


SCENARIO_NUMBERS = [str(number) for number, _ in enumerate(SCENARIOS, 1)]


def run_demo(args, style: Style) -> Iterator[str]:
    """--demo: scenarios with a scripted model; --json gives their raw message lists."""
    numbers = [int(text) for text in args.demo or SCENARIO_NUMBERS]
    _tell_missing_notes(args)
    tools = chosen_tools(args)
    if args.json:
        runs = [plain_messages(play(SCENARIOS[number - 1], tools)[0]) for number in numbers]
        yield _pretty(runs if runs[1:] else runs[0])
        return
    for number in numbers:
        yield from demo_text(number, tools, style)
        yield ""


def run_mcp_server(args, style: Style) -> typing.NoReturn:
    """--mcp-server: serve until the host closes; standard output belongs to the protocol."""

    def make_server() -> McpServer:
        notes = chosen_notes(args)
        tools = functools.partial(chosen_tools, args, notes)
        server = McpServer(tools() if args.tools else tools, notes)  # of a user's we hear at once
        server.instructions = OWN_INSTRUCTIONS if args.notes or args.tools else INSTRUCTIONS
        if own_notes(args):
            server.info["title"] = for_own_notes(SERVER_TITLE)
        return server

    if sys.stdin.isatty():
        _complain("在等主机发来 JSON-RPC 消息，一行一条；这个命令一般由主机启动，按 Ctrl-C 结束")
    mcp_serve(make_server)


def run_mcp_demo(args, style: Style) -> Iterator[str]:
    """--mcp-demo: every message of a session with our own server, or with the one after `--`."""
    items = mcp_visit(args.rest, style) if args.rest else mcp_demo(our_server(args), style)
    return mcp_trace(items) if args.json else mcp_text(items, style)


def run_mcp_doctor(args, style: Style) -> Iterator[str]:
    """--mcp-doctor: what would go wrong with a server in which host. Exit code 1 if anything."""
    screen = LiveScreen(_writer(sys.stderr), style, terminal=sys.stderr.isatty())
    with contextlib.closing(screen):
        screen.wait("正在体检")
        lines = [*mcp_doctor_text(args.rest or our_server(args))]
    for line in lines:
        yield from wrap(line, style.width, columns(f"{GRAVE} "))
    if any(line.startswith(GRAVE) for line in lines):
        raise SystemExit(1)


def run_mcp_config(args, style: Style) -> Iterator[str]:
    """--mcp-config: how to register this server with a host; --write does it."""
    _tell_missing_notes(args)
    chosen, command = args.mcp_config, our_server(args)
    if args.write:
        if chosen != "claude":
            raise UsageError("--write 只用于 --mcp-config claude，其他主机请自己粘贴")
        yield from write_claude_config(claude_config_path(), command)
    elif chosen in HOSTS:  # stdout is the file: the block and nothing else
        title, block, where = mcp_config_text(HOSTS[chosen], command, style)
        _complain(title)
        yield block
        _complain(where)
    else:
        for host in HOSTS.values():
            yield from (*mcp_config_text(host, command, style), "")


# --- --ask and --models ---


def routed_tools(registry: ToolRegistry, question: str, args) -> ToolRegistry:
    """What --ask offers a model: all tools while they are few, else those that fit the question.

    With search_tools among them, so that what routing misses is one call away.
    """
    if args.no_route or len(registry) <= (args.route or ROUTE_ABOVE):
        return registry
    keep = [args.tool_choice, *(MOCK_TOOLS if args.backend == "mock" else ())]
    return with_tool_search(ToolRouter(registry), question, k=args.route or ROUTED_TO, keep=keep)


def _read_question(text: str) -> str:
    """The question itself, or standard input for "-" in the first encoding that fits."""
    if text != "-":  # in a locale without UTF-8 its bytes come as half characters
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin.isatty():
        _complain("请输入问题，写完按 Ctrl-D（Windows 按 Ctrl-Z 再回车）")
    data = sys.stdin.buffer.read()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's `>`
    for encoding in ["utf-16"] if wide else ["utf-8-sig", sys.stdin.encoding, "gb18030"]:
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return data.decode(encoding)
    return data.decode("utf-8", "replace")


def _wanted_choice(text: str, tools: ToolRegistry, args) -> str | dict:
    if text in ("auto", "none", "required"):
        return text
    _pick_tools(tools, [text], args)
    return {"type": "function", "function": {"name": text}}


def _listed_models(model: HttpModel) -> list[str]:
    """The names that the server lists, at least one. Raises BackendError."""
    if names := model.models():
        return names
    raise BackendError("服务器上没有模型；Ollama 可以先 ollama pull qwen2.5:7b，再用 --model 指定")


def _only_model(model: HttpModel) -> str:
    """The one model that the server lists. Raises UsageError with the list when it has several."""
    names = _listed_models(model)
    if names[1:]:
        raise UsageError("\n  ".join(["请用 --model 选一个模型：", *names]))
    return names[0]


def _connect(args, notice: Callable[[str], None]):
    """The model that the flags and the environment choose, without its name if none is given."""
    kind, name = BACKENDS[args.backend], (args.model or "").strip()
    settings = Settings(name, dict(args.o or ()), args.max_tokens, not args.no_stream)
    if kind is TransformersLLM:
        if not name:
            raise UsageError("--backend transformers 要用 --model 给出本机的模型目录")
        return TransformersLLM(name, settings, notice=notice)
    name = name or os.environ.get(kind.model_variable, "").strip()
    place = find_place(kind, args.base_url or "", args.key or "", os.environ)
    patience = Patience()
    if args.timeout:
        patience = Patience(min(patience.connect, args.timeout), args.timeout, args.timeout)
    return kind(settings=settings._replace(model=name), patience=patience, notice=notice, **place)


def run_models(args, style: Style) -> Iterator[str]:
    """--models: the names of the models that the server offers, one a line."""
    if args.backend in ("mock", "transformers"):
        raise UsageError(f"--models 要连服务器，--backend {args.backend} 没有")
    yield from _listed_models(_connect(args, _complain))


def _ask_before(screen: LiveScreen) -> Callable[[ToolCall], bool]:
    """For --approve: shows a call and asks on the terminal whether to run it."""
    if not sys.stdin.isatty():
        raise UsageError("--approve 每次调用前都要问一句，所以标准输入必须是终端")

    def approve(call: ToolCall) -> bool:
        screen.line(f"要运行 {call_text(call)} 吗？[y/N] ", "title")
        return sys.stdin.readline().strip().lower() in ("y", "yes", "是")

    return approve


def _trace_writer(path: str, screen: LiveScreen) -> Callable[[str], None]:
    """A function that appends a line to the file of --trace; a full disk does not end the run."""
    try:
        file = open(path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - till the end
    except OSError as error:
        raise UsageError(f"--trace：写不了 {path}：{os_reason(error)}") from error
    lost = "--trace：写不进 {}：{}；记录不完整"
    return _writer(file, lambda error: screen.line(lost.format(path, os_reason(error)), "bad"))


_WHAT_NEXT = {
    "turns": "可以用 --max-turns 放宽",
    "same_call": "换个问法或换个模型再试",
    "tokens": "把问题拆小再问",
    "length": "请加大 --max-tokens，没写就是服务器的上限",
}


def _outcome(args, screen, messages, end: Finished, failure, seconds: float) -> Iterator[str]:
    """What a run leaves on stdout; raises what makes it a failure."""
    if args.json:
        run = {
            "answer": end.text, "reason": end.reason, "turns": end.turns,
            "usage": end.usage._asdict(), "messages": messages,
        }
        yield _pretty({**run, **({"error": str(failure) or "用户中断"} if failure else {})})
    elif end.text and screen.shown.strip() != end.text.strip():
        yield end.text
    if failure:
        raise failure
    if not args.q:
        screen.line(usage_text(end, seconds))
    if end.reason != "answered":
        raise BackendError(f"{STOP_REASONS[end.reason]}；{_WHAT_NEXT[end.reason]}")


def run_ask(args, style: Style) -> Iterator[str]:
    """--ask: the answer of a model that may use the tools; everything else goes to stderr."""
    question = _read_question(args.ask).strip()
    if not question:
        raise UsageError("问题是空的，例如 --ask \"17*23+4 是多少？\"；--ask - 从标准输入读")
    if args.trace_args and not args.trace:
        raise UsageError("--trace-args 要和 --trace FILE.jsonl 一起用")
    registry = chosen_tools(args)
    registry.coerce = True  # real models write "4096" for 4096; each repair is shown
    tools = routed_tools(registry, question, args)
    choice = _wanted_choice(args.tool_choice, tools, args)
    terminal = sys.stderr.isatty()
    both = terminal and _stdout().isatty() and not (args.json or args.q)
    screen = LiveScreen(
        _writer(sys.stderr), screen_style(sys.stderr),
        level=QUIET if args.q else FULL if args.v else NORMAL,
        terminal=terminal, answer=_writer(_stdout(), _end) if both else None,
    )
    if tools is not registry:
        screen.notice(
            f"{len(registry)} 个工具里按问题挑了 {len(tools) - 1} 个，其余的模型用 search_tools "
            "查；加 --no-route 就全部提供。"
        )
    approve = _ask_before(screen) if args.approve else None
    model = mock_model(question) if args.backend == "mock" else _connect(args, screen.notice)
    system = for_own_notes(SYSTEM_PROMPT) if own_notes(args) else SYSTEM_PROMPT
    messages = opening(question, system if args.system is None else args.system)
    trace = args.trace and Trace(
        _trace_writer(args.trace, screen), model, provider=args.backend, arguments=args.trace_args,
        now=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    failure, begin = None, time.monotonic()
    end = Finished("", "failed", Usage(), 0)  # until there is a better one
    try:
        if isinstance(model, HttpModel) and not model.settings.model:
            model.settings = model.settings._replace(model=_only_model(model))
        for event in run_tool_loop(
            model, tools, messages, limits=Limits(turns=args.max_turns), tool_choice=choice,
            on_delta=screen.delta, approve=approve, clock=time.monotonic,
        ):
            match event:
                case Finished():
                    end = event
                case ModelAnswered(number, turn):
                    spent = end.usage.plus(turn.usage or Usage())
                    end = end._replace(usage=spent, turns=number)
            screen.event(event)
            if trace:
                trace.event(event)
    except (BackendError, KeyboardInterrupt) as error:
        failure = error
        if trace:
            trace.failed(error)
    finally:
        screen.close()
    yield from _outcome(args, screen, messages, end, failure, time.monotonic() - begin)


# --- the tables ---

# A reader turns the text after a flag into its value, or raises UsageError with what is wrong.


def _not_blank(text: str) -> str:
    if not text.strip():
        raise UsageError("后面的值是空的")
    return text


def _positive(kind: type) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        with contextlib.suppress(ValueError):  # also for 5,000 digits
            if 0 < kind(text) < 10**9:
                return kind(text)
        raise UsageError(f"要大于 0 的{'整' if kind is int else ''}数，收到的是 {said(text)}")

    return read


def _one_of(choices: Iterable[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise UsageError(f"不能是 {said(text)}，可选：{'、'.join(choices)}")
        return text.lower()

    return read


def _tools_file(text: str) -> str:
    reason = "不是 Python 文件（.py）"
    if os.path.isdir(text):
        reason = "这是文件夹，请写出里面的 .py 文件"
    elif _not_blank(text).endswith(".py") and os.path.isfile(text):
        return text
    elif not os.path.exists(text):
        reason = "没有这个文件"
    raise UsageError(f"{said(text)}：{reason}")


def _notes_folder(text: str) -> str:
    if not os.path.isdir(_not_blank(text)):
        raise UsageError(f"{said(text)}：没有这个文件夹")
    if not os.access(text, os.R_OK | os.X_OK):
        raise UsageError(f"{said(text)}：没有权限读")
    return text


def _setting(text: str) -> tuple[str, object]:
    """(key, value) of KEY=VALUE; the value is JSON where it is JSON, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"要写成 KEY=VALUE，例如 -o temperature=0.2，收到的是 {said(text)}")
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(value)
        json.dumps(parsed, allow_nan=False)  # NaN stays a word
        return key, parsed
    if value[:1] in ("[", "{", '"'):
        raise UsageError(f"{key}= 后面不是完整的 JSON：{show(value)}；整段要用单引号括起来")
    return key, value


def _flag(
    flag: str, metavar: str, help: str, commands: Sequence[str] = (),
    read: Callable[[str], object] = str, default: object = None, *, many=False, run=None,
):
    """A command, which has `run`, or an option of the `commands` it shapes.

    `run` takes the parsed flags and a Style, and gives lines for stdout; `read` takes one word;
    with `many` the value is a list. A metavar in brackets may be left out. Without one the flag is
    a switch, and so it is with `-- COMMAND …`, which is not ours to read.
    """
    return types.SimpleNamespace(is_switch=not metavar or "--" in metavar, **locals())


COMMANDS = (
    _flag("--demo", "[N …]", "离线看懂工具调用：六个场景，或只看场景 N",
          read=_one_of(SCENARIO_NUMBERS), run=run_demo, many=True),
    _flag("--router-demo", "[QUERY]", "演示路由：40 个工具里挑 5 个，可以写自己的 QUERY",
          read=_not_blank, run=run_router_demo),
    _flag("--schema", "[NAME …]", "打印工具的 JSON Schema，由函数签名和 docstring 生成",
          run=run_schema, many=True),
    _flag("--call", "NAME [JSON]", "替模型调用一个工具，看参数校验和结果", run=run_call, many=True),
    _flag("--mcp-demo", "[-- COMMAND …]", "逐条看 MCP 的消息；-- 后面可写别家服务器的命令",
          run=run_mcp_demo),
    _flag("--mcp-doctor", "[-- COMMAND …]", "体检 MCP 服务器：在哪个主机里会出什么错、怎么改",
          run=run_mcp_doctor),
    _flag("--mcp-server", "", "MCP 服务器，由 Claude、Cursor 等主机启动", run=run_mcp_server),
    _flag("--mcp-config", "[HOST]", f"打印主机的配置：{'、'.join(HOSTS)}",
          read=_one_of(("all", *HOSTS)), run=run_mcp_config),
    _flag("--ask", "QUESTION", "问真实的模型，它会用这些工具；- 从标准输入读问题",
          run=run_ask),
    _flag("--models", "", "列出服务器上的模型", run=run_models),
)
TOOLS = tuple(command.flag for command in COMMANDS if command.flag != "--models")
MESSAGES, MODEL, ASK = ("--demo", "--mcp-demo", "--ask"), ("--ask", "--models"), ("--ask",)

# In the order of --help: the most used first.
OPTIONS = (
    _flag("--tools", "FILE.py", "把这个文件里的公开函数也当工具，可写多次",
          TOOLS, _tools_file, many=True),
    _flag("--notes", "DIR", "笔记文件夹，默认是脚本旁边的 notes", TOOLS, _notes_folder),
    _flag("--json", "", "只打印原始消息：--demo、--mcp-demo、--ask 都能用", MESSAGES),
    _flag("--model", "NAME", "模型；不写就用 OPENAI_MODEL，或服务器上唯一的一个", ASK),
    _flag("--base-url", "URL",
          "服务地址；不写就看 OPENAI_BASE_URL、OLLAMA_HOST，再没有就用本机的 Ollama",
          MODEL, _not_blank),
    _flag("--key", "KEY", "密钥；不写就看环境变量，那里的密钥只发给它所属的地址",
          MODEL, _not_blank),
    _flag("--backend", "NAME",
          f"接口：{'、'.join(BACKENDS)}，或不联网的 mock；默认 openai（含兼容服务）",
          MODEL, _one_of((*BACKENDS, "mock")), "openai"),
    _flag("-q", "", "安静：只显示答案和错误", ASK),
    _flag("-v", "", "详细：思考、完整的参数和结果", ASK),
    _flag("--approve", "", "每次调用前先问我", ASK),
    _flag("--system", "TEXT", "系统提示，代替默认的", ASK),
    _flag("-o", "KEY=VALUE", "原样放进请求，可写多次，例如 -o temperature=0.2",
          ASK, _setting, many=True),
    _flag("--max-tokens", "N", "一次回复最多多少 token，默认不限", ASK, _positive(int)),
    _flag("--max-turns", "N", "最多请求模型几次，默认 8", ASK, _positive(int), 8),
    _flag("--timeout", "SECONDS", "一次回复最多等多久", MODEL, _positive(float)),
    _flag("--no-stream", "", "不用流式", ASK),
    _flag("--tool-choice", "CHOICE", "auto（默认）、none；第一轮还可以是 required 或工具名",
          ASK, _not_blank, "auto"),
    _flag("--route", "K",
          f"先挑最合适的 K 个工具再问；多于 {ROUTE_ABOVE} 个时自动挑 {ROUTED_TO} 个",
          ASK, _positive(int)),
    _flag("--no-route", "", "不挑，全部工具都给模型", ASK),
    _flag("--trace", "FILE.jsonl", "每个事件追加一行 JSON，字段名用 OpenTelemetry 的",
          ASK, _not_blank),
    _flag("--trace-args", "", "同时记下参数和结果", ASK),
    _flag("--format", "FORMAT", f"哪家的写法：{'、'.join(TOOL_FORMATS)}；默认 openai",
          ("--schema",), _one_of(TOOL_FORMATS), "openai"),
    _flag("--lint", "", "检查工具定义写得好不好，逐条说明怎么改、为什么", ("--schema",)),
    _flag("--write", "", "直接写进 Claude Desktop 的配置文件，原文件留备份", ("--mcp-config",)),
)
CONTRADICTIONS = (("--lint", "--format"), ("--route", "--no-route"), ("-q", "-v"))
ABOUT = ("-h", "--help", "--version")

EXAMPLES = (
    ("--demo", "看六个场景，不联网，什么都不用装"),
    ("--schema kv_cache_gib --format anthropic", "一个工具的 Anthropic 写法"),
    ("--schema --tools my_tools.py --lint", "检查自己写的工具"),
    ("--call calculator '{\"expression\": \"2**10\"}'", "替模型调用一次计算器"),
    ('--ask "17*23+4 是多少？" --model qwen2.5:7b', "问本机 Ollama 里的模型"),
    ("--ask - --base-url http://localhost:8000/v1 < q.txt", "问本机 vLLM，从文件读问题"),
    ("--mcp-config claude --write", "把 MCP 服务器登记到 Claude Desktop"),
)

# --- help ---

HELP_WIDTH = 98
HELP_LEFT = 26  # columns for the flags
SIDE_BY_SIDE = 64  # on a narrower screen the explanation stands below its flag


def _flag_lines(rows: Iterable, width: int) -> Iterator[str]:
    indent = HELP_LEFT if width >= SIDE_BY_SIDE else 6
    for row in rows:
        left = f"  {row.flag} {row.metavar}".rstrip()
        if columns(left) >= indent:
            yield left
            left = ""
        yield from wrap(pad(left, indent) + row.help, width, indent)


def short_help(style: Style) -> Iterator[str]:
    """What a run without arguments prints."""
    width = min(style.width, HELP_WIDTH)
    yield from wrap(
        "工具调用（tool calling）与 MCP 的参考实现，CME295 第 4 周第 3 天。只用标准库。", width,
    )
    yield from ("", "用法：python3 w4d3_tools_mcp.py 命令 [选项]", "", "命令（选一个）")
    yield from _flag_lines(COMMANDS, width)
    yield from ("", "先试：python3 w4d3_tools_mcp.py --demo", "全部选项：--help")


def full_help(style: Style) -> Iterator[str]:
    """What --help prints: commands, options by the command they go with, examples."""
    width = min(style.width, HELP_WIDTH)
    yield from [*short_help(style)][:-3]
    for whose, options in itertools.groupby(
        OPTIONS, lambda row: "通用" if len(row.commands) > 2 else f"{row.commands[0]} 的",
    ):
        yield f"\n{whose}选项"
        yield from _flag_lines(options, width)
    yield "\n例子"
    for arguments, purpose in EXAMPLES:
        yield f"  # {purpose}\n  python3 w4d3_tools_mcp.py {arguments}"
    codes = "0 成功，1 失败，2 命令写错，130 按了 Ctrl-C"
    yield from wrap(f"\n退出码：{codes}。设 {DEBUG_VARIABLE}=1 看堆栈。", width)


# --- the command line → one command and its flags ---


def _sorted_words(words: Iterable[str], rows: dict) -> dict[str, list[str]]:
    """Flag → the texts given with it; words without a flag belong to the command before them."""
    given: dict[str, list[str]] = {}
    command, queue = None, iter(words)
    for word in queue:
        flag, equals, value = word.partition("=")
        row, values = rows.get(flag), [value] if equals else []
        if row is None:
            if command and word[:1] != "-" and "--" in rows[command].metavar:
                raise UsageError(f"别家服务器的命令写在 -- 后面：{command} -- {said(word)} …")
            if command is None or re.fullmatch(r"-+[A-Za-z]\S*", word):
                near = closest(flag, [*rows, *ABOUT])
                hint = f"是不是想写 {near}？" if near else "用 --help 看怎么写"
                raise UsageError(f"不认识 {said(word)}，{hint}")
            flag, values = command, [word]
        elif row.run:
            if flag in given:
                raise UsageError(f"{flag} 写了两次，请合成一次")
            command = flag
        elif row.metavar and not equals:
            values = [*itertools.islice(queue, 1)]
            if not values or values[0].partition("=")[0] in rows:
                raise UsageError(f"{flag} 后面要跟一个值")
        given[flag] = given.get(flag, []) + values
    return given


def _flag_value(row, words: list[str]) -> object:
    """What the texts given with a flag mean: a list, one value, or True for a switch."""
    if not words and row.metavar[:1] not in ("", "["):
        raise UsageError("后面要跟一个值")
    if extra := [] if row.many else words[0 if row.is_switch else 1:]:
        hint = "后面不用写值" if row.is_switch else "只能有一个值，有空格时请加引号"
        raise UsageError(f"{hint}，多出来的是 {said(extra[0])}")
    values = [row.read(word) for word in words]
    return values if row.many else (values or [True])[0]


def parse_command_line(own: list[str], rest: list[str]) -> tuple:
    """The chosen command (None: none given) and the flags as attributes. Raises UsageError.

    `rest` is what came after `--`: somebody else's command, not ours to read.
    """
    rows = {row.flag: row for row in (*COMMANDS, *OPTIONS)}
    given = _sorted_words(own, rows)
    commands = [flag for flag in given if rows[flag].run]
    for one, other in (*itertools.combinations(commands, 2), *CONTRADICTIONS):
        if one in given and other in given:
            raise UsageError(f"{one} 和 {other} 不能同时用，请去掉一个")
    takers = {flag: rows[flag].commands for flag in given if flag not in commands}
    if rest:
        takers["-- 后面的命令"] = [row.flag for row in COMMANDS if "--" in row.metavar]
    for what, allowed in takers.items():
        if not {*commands} & {*allowed}:
            raise UsageError(f"{what} 要和 {' 或 '.join(allowed)} 一起用")
    flags = types.SimpleNamespace(rest=rest)
    for flag, row in rows.items():
        try:
            value = _flag_value(row, given[flag]) if flag in given else row.default
        except UsageError as error:
            raise UsageError(f"{flag} {error}") from None
        setattr(flags, flag.lstrip("-").replace("-", "_"), value)
    return rows[commands[0]] if commands else None, flags


def _lines(argv: list[str]) -> Iterator[str]:
    style = screen_style(sys.stdout)
    own = [*itertools.takewhile(lambda word: word != "--", argv)]
    if {"-h", "--help"} & {*own}:
        yield from full_help(style)
    elif "--version" in own:
        yield f"w4d3_tools_mcp {VERSION}"
    else:
        command, args = parse_command_line(own, argv[len(own) + 1:])
        if sys.flags.optimize > 1:
            raise UsageError(
                "这次运行去掉了 docstring（-OO 或 PYTHONOPTIMIZE=2），而工具的说明都写在里面："
                "请去掉这个设置再运行"
            )
        if args.json or args.schema is not None and not args.lint:
            _spell_out(sys.stdout, "json_escapes")
        yield from command.run(args, style) if command else short_help(style)


# --- failure ---


def _failed(error: Exception) -> int:
    """Tell the user what went wrong, in one sentence; returns the exit code."""
    if _kept:  # a tool that goes on printing must not drown it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with contextlib.suppress(AttributeError, ValueError):  # the tool has closed it
            sys.stdout.flush()  # waits for what it is printing at this moment
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, UsageError):
        _complain(str(error))
        return 2
    known = isinstance(error, (ToolError, SchemaError, BackendError, _OutputError))
    reason = str(error) if known else f"{error_text(error)}（设 {DEBUG_VARIABLE}=1 可看堆栈）"
    if isinstance(error, OSError) and error.filename:
        reason = f"{error.filename}：{os_reason(error)}"
    _complain(f"没有完成：{reason}")
    return 1


def _open_streams() -> None:
    """Make the three standard streams usable. Raises _OutputError when stdout is closed."""
    closed = sys.stdout is None
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # else the next file opened would take its number
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115 - for good
    _spell_out(sys.stdout, "typed_instead")
    _spell_out(sys.stderr, "typed_instead")
    if closed:
        raise _OutputError("标准输出是关着的，结果没有地方显示")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if "中".encode(encoding, "replace") == b"?":
        _complain(f"This console ({encoding}) has no Chinese; try PYTHONIOENCODING=utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code 0, 1 (failed), 2 (wrong usage) or 130 (Ctrl-C)."""
    try:
        _open_streams()
        for line in _lines(sys.argv[1:] if argv is None else argv):
            out = _stdout()
            _writer(out, _end)((printable(line) if out.isatty() else line) + "\n")
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # what was to be said has been said
        return end.code
    except Exception as error:
        return _failed(error)


if __name__ == "__main__":
    # A --tools file that imports ToolError must get this module, not a second copy of it.
    sys.modules.setdefault("w4d3_tools_mcp", sys.modules["__main__"])
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # ours, from the head of this file
        signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own end must not be interrupted
    if threading.active_count() > 1:  # a tool still runs: its prints would crash Python's own end
        os._exit(exit_code)
    sys.exit(exit_code)
