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
    "cancelled": "用户中断",
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


# The keys are text, so that a type is recognised without importing its module. Subclasses count.
SCALARS = {
    "builtins.str": Scalar("string"),
    "typing.LiteralString": Scalar("string", read=lambda cls, text: text),
    "builtins.int": Scalar("integer", read=_read_whole, write=_write_number),
    "builtins.float": Scalar("number", write=_write_number),
    "builtins.bool": Scalar("boolean", write=bool),
    "builtins.NoneType": Scalar("null", read=lambda cls, _: None, write=lambda _: None),
    "builtins.complex": Scalar("string"),
    "builtins.bytes": Scalar(
        "string", {"contentEncoding": "base16"}, lambda cls, text: cls.fromhex(text), bytes.hex),
    "datetime.date": Scalar("string", {"format": "date"}, _read_iso),
    "datetime.datetime": Scalar(
        "string", {"format": "date-time"}, _read_iso, lambda v: v.isoformat()),
    "datetime.time": Scalar("string", {"format": "time"}, _read_iso),
    "datetime.timedelta": Scalar(
        "number", {"description": "秒"}, lambda cls, n: cls(seconds=n),
        lambda v: v.total_seconds()),
    "decimal.Decimal": Scalar("number string", read=lambda cls, n: cls(str(n))),
    "uuid.UUID": Scalar("string", {"format": "uuid"}),
    "pathlib.PurePath": Scalar("string"),
    "os.PathLike": Scalar("string", read=lambda cls, text: text),  # as in `str | os.PathLike`
    "ipaddress.IPv4Address": Scalar("string", {"format": "ipv4"}),
    "ipaddress.IPv6Address": Scalar("string", {"format": "ipv6"}),
    "fractions.Fraction": Scalar("string"),
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
            raise _MisfitError(value, name) from error

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
    value, text = value[:limit] if isinstance(value, str) else value, ""
    encoder = json.JSONEncoder(ensure_ascii=False, default=lambda item: f"<{type(item).__name__}>")
    try:
        for piece in encoder.iterencode(value):
            text += piece[: limit + 1]
            if len(text) > limit:
                break
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
    names = [name, *itertools.islice(names, 200)]
    bare = [re.sub(r"[\W_]+", "", each[:100]).lower() for each in names]
    wanted, known = bare[0], dict(zip(bare[1:], names[1:]))
    if wanted in known:
        return known[wanted]
    import difflib  # only wrong calls need it

    hits = difflib.get_close_matches(wanted, known, n=1, cutoff=0.7)
    return known[hits[0]] if hits else None


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
    text = ""
    for step in path[1:][-60:]:
        if type(step) is str:
            text += f".{step}" if re.fullmatch(r"[\w$@-]{1,60}", step) else f"[{show(step, 40)}]"
        else:
            text += f"[{step}]"
    text = text.removeprefix(".")
    return text if len(text) <= 100 else "…" + text[-99:]


def _fault(path: tuple, keyword: str, says: str, *came: object, hint: str = "") -> list[Problem]:
    """Return the one problem `参数 <path> <says>，收到的是 <came><hint>`."""
    where = _where(path)
    received = "".join(f"，收到的是 {show(value)}" for value in came)
    text = (f"参数 {where} " if where else "参数整体") + says + received + hint
    return [Problem(where, keyword, _cut(text))]


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
    for step, item in value.items() if kind is dict else enumerate(value):
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


def _nesting(text: str) -> int:
    """Return how deep the brackets outside strings go."""
    bare = re.sub(r'(?s)"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', "", text)
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", bare))
    return max(itertools.accumulate(steps, initial=0))


def _load_json(text: str) -> object:
    """Return the value, strictly: json.JSONDecodeError for syntax, ArgumentsError for the rest."""
    if len(text) > _MAX_TEXT:
        raise ArgumentsError(f"参数有 {len(text)} 个字符，超过上限 {_MAX_TEXT}，请分几次发送")
    if text.count("[") + text.count("{") > _MAX_DEPTH and _nesting(text) > _MAX_DEPTH:
        raise ArgumentsError(f"参数{_TOO_LARGE}")
    try:
        value = _DECODER.decode(text)
        if re.search(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]", text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:  # the caller was deep in the stack already
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
    "Expecting property name": "键要用英文双引号括起来",
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
    rest = re.compile(r"[\w+.\\-]*\Z").match(text, error.pos)  # nothing, or half a word or number
    broken_off = error.msg.startswith("Unterminated") or (rest and error.msg != "Extra data")
    if broken_off and text.startswith(("{", "[", '"')):
        tail = show(text[-30:], 60)
        return f"参数没有写完，在 {tail} 之后断了，请重新发送完整的 JSON 对象；内容太长就分几次发送"
    reasons = [says for start, says in _SYNTAX_REASONS.items() if error.msg.startswith(start)]
    near = show(text[max(0, error.pos - 15) : error.pos + 15], 60)
    place = f"第 {error.lineno} 行第 {error.colno} 列 {near} 附近"
    return f"参数不是合法的 JSON：{place}，{(reasons or [error.msg])[0]}。请只发送一个 JSON 对象"


def _read_layer(text: str) -> object:
    """Return the value in `text`: strict JSON, else JSON once slips of spelling are mended."""
    text = text.strip().removeprefix("\ufeff").strip()
    fenced = re.fullmatch(r"(?s)```[\w-]*\s(.*?)(?:```)?", text)
    text = fenced[1].strip() if fenced else text
    try:
        return _load_json(text) if text else {}
    except json.JSONDecodeError as error:
        first = error
    try:
        return _load_json(re.sub(_SLIP, _json_spelling, text))
    except json.JSONDecodeError:
        raise ArgumentsError(_explain_syntax(text, first)) from None


def parse_arguments(text: str | bytes | dict | None) -> dict:
    """Return the arguments of a call as a dict; ArgumentsError says what to send instead.

    Accepts a JSON object, a dict, and nothing at all ({}). Mends what has one reading only: a code
    fence, a byte-order mark, raw control characters, trailing commas, Python's quotes and words,
    an object encoded as a string once or twice.

    >>> parse_arguments('{"k": 4096,}'), parse_arguments("{'dry': True}"), parse_arguments("")
    ({'k': 4096}, {'dry': True}, {})
    """
    value = "" if text is None else text
    if isinstance(value, (bytes, bytearray)):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise ArgumentsError("参数不是 UTF-8 编码的文字，请重新发送一个 JSON 对象") from None
    for layer in range(3):  # the text, and an object encoded as a string, once or twice
        if isinstance(value, str):
            inner = value.strip().startswith(("{", '"', "```"))
            value = _read_layer(value) if inner or layer == 0 else value
    if isinstance(value, Mapping):  # of an OrderedDict, a proxy: what is not JSON stays as it is
        return value if type(value) is dict else plain(value, other=lambda item: item)
    raise ArgumentsError(f"参数应该是一个 JSON 对象（object），写成 {{…}}，收到的是 {show(value)}")


_ANY = list(_TYPE_NAMES.values())
# Type names of other languages in real tool sets (BFCL: dict in every tool, float 879 times);
# compared in lower case, which covers Gemini's STRING as well.
_ALIASES = dict(zip(_ANY, _ANY)) | {
    "str": "string", "text": "string", "char": "string", "character": "string",
    "int": "integer", "long": "integer", "short": "integer", "byte": "integer",
    "bigint": "integer", "float": "number", "double": "number", "decimal": "number",
    "list": "array", "tuple": "array", "set": "array", "arraylist": "array", "queue": "array",
    "dict": "object", "map": "object", "hashmap": "object", "hashtable": "object",
    "bool": "boolean", "none": "null", "nonetype": "null",
}


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
    if not words or stated is None or not _ALIASES.keys() >= set(words):  # ["string", None] is fine
        raise SchemaError(f"不认识的类型 {show(stated, 60)}，不检查类型")
    nullable = ["null"] if schema.get("nullable") is True else []
    return list(dict.fromkeys([_ALIASES[word] for word in words] + nullable))


def _choices(schema: dict) -> list:
    """Return the values that `const` or `enum` allow; [] if there is neither."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return choices if isinstance(choices, list) else []


def _lossless(value: object, names: Iterable[str]) -> object:
    """Return what a text spells in JSON, or a float as int, if the types `names` want just it."""
    found = value
    if type(value) is str and "string" not in names:
        try:
            found = _load_json(value)
        except ValueError:
            return value
        if type(found) not in (list, dict) and value != value.strip():
            return value
    if type(found) is float and found.is_integer() and "number" not in names:
        found = int(found)
    return found if found is not None and _type_of(found) in names else value


def _advice(value: object, names: Iterable[str]) -> str:
    """Return what to do about a text where the types `names` are wanted, or ""."""
    if type(value) is not str or "string" in names:
        return ""
    for name, bracket, noun in [("array", "[", "数组"), ("object", "{", "对象")]:
        if name in names and value.lstrip().startswith(bracket):
            return f"；请直接传{noun}，不要加引号"
    bare = _lossless(value, names)
    return f"；请直接写 {show(bare, 40)}，不要加引号" if bare is not value else ""


# ── Rules ──
#
# A rule takes what the keyword says (subschemas as nodes), the value, its path, and the node of
# the whole schema (`SchemaRules` below). It returns problems, an empty sequence if all is well.


def _rule_limit(keyword, holds, says, limit, value, path, node):
    size = value if type(value) in (int, float) else len(value)
    text = "" if holds(size, limit) else says.format(show(limit), size, show(value))
    return _fault(path, keyword, text) if text else ()


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
    choices, meant = _choices(node.schema), None
    if type(value) is str:
        meant = closest(value, [choice for choice in choices if type(choice) is str])
    hint = f"，是不是想写 {show(meant, 60)}？" if meant else ""
    return _fault(path, "enum", _choose_from(choices), value, hint=hint)


def _matches(pattern: str, text: str, path: tuple) -> bool:
    return compile_pattern(pattern).search(text, functools.partial(_spend, path))


def _rule_pattern(pattern, value, path, node):
    shown = _cut(pattern, 100)
    if len(value) > _MAX_MATCHED:
        return _fault(path, "pattern", f"超过 {_MAX_MATCHED} 个字符，无法核对正则 {shown}")
    if _matches(pattern, value, path):
        return ()
    return _fault(path, "pattern", f"要符合正则 {shown}", value)


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
    shape, example = _FORMATS.get(name, (".*", ""))
    fits = len(value) <= _MAX_MATCHED and re.fullmatch(shape, value, re.ASCII)
    if name not in _FORMATS or (fits and _exists(name, value)):
        return ()
    return _fault(path, "format", f"应该是 {name} 格式（如 {example}）", value)


def _rule_unique(wanted, value, path, node):
    seen = {}
    for number, item in enumerate(value if wanted else ()):
        first = seen.setdefault(_equality_key(item), number)
        if first != number:
            says = f"的元素不能重复，[{number}] 与 [{first}] 相同"
            return _fault(path, "uniqueItems", says, item)
    return ()


def _rule_contains(wanted, value, path, node):
    if any(not wanted.check(item, path + (number,)) for number, item in enumerate(value)):
        return ()
    return _fault(path, "contains", f"里至少要有一个元素{wanted.described()}", value)


def _rule_required(names, value, path, node):
    if value.keys() >= names.keys():
        return ()
    missing = [_where(path + (name,)) for name in names if name not in value]
    return [Problem(where, "required", f"缺少必填参数 {where}") for where in missing]


def _rule_dependent(needs, value, path, node):
    return [
        Problem(where, "dependentRequired", f"传了 {_cut(name, 60)} 就必须同时传 {where}")
        for name, others in needs.items() if name in value
        for where in [_where(path + (other,)) for other in others if other not in value]
    ]


def _unknown_name(name: str, known: list[str], value: dict, path: tuple) -> list[Problem]:
    spare = [each for each in known if each not in value]
    where, meant = _where(path), closest(name, spare) or closest(name, known)
    tail = f"，可用的有 {_listed(known)}" if known else "，这里不接受任何参数"
    if meant:
        tail = f"，是不是想写 {_cut(meant, 60)}？"
    return [Problem(where, "additionalProperties", f"没有参数 {where}{tail}")]


def _rule_parts(_, value, path, node):
    """Check the parts of a value: one rule for `properties`, `items` and the like (see `at`)."""
    found, own = [], node.own
    named = {} if "patternProperties" in own else own.get("properties", {})
    for step, item in value.items() if type(value) is dict else enumerate(value):
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
            return _fault(path, "propertyNames", f"的键 {show(name, 60)} 不合要求：{problem}")
    return ()


def _rule_ref(pointer, value, path, node):
    _spend(path, 30)
    return node.home.refs[pointer].check(value, path)


def _rule_if(condition, value, path, node):
    branch = node.own.get("else" if condition.check(value, path) else "then")
    return branch.check(value, path) if branch else ()


def _properties(bodies: list[SchemaRules]) -> dict[str, SchemaRules]:
    known = [body.own.get("properties", {}) for body in bodies]
    return {name: part for properties in known for name, (part,) in properties.items()}


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
    if kind == "object" and name in value:
        if row := table.get(_equality_key(value[name])):
            return row[1].check(value, path)
        choices = _choose_from([choice for choice, _ in table.values()])
        return _fault(path + (name,), "const", choices, value[name])
    failed, fits = [], []
    for number, branch in enumerate(branches, 1):
        if kind in branch.takes and (found := branch.check(value, path)):
            failed.append(found)
        elif kind in branch.takes:
            fits.append(str(number))
            if keyword == "anyOf":
                break
    if len(fits) > 1:
        return _fault(path, keyword, f"只能符合一种写法，却同时符合第 {_listed(fits)} 种", value)
    if fits or (best := _best_branch(failed, path, keyword)):
        return () if fits else best
    words = list(dict.fromkeys(word for branch in branches for word in branch.words)) or ["别的值"]
    hint = _advice(value, frozenset().union(*(branch.takes for branch in branches)))
    return _fault(path, keyword, f"应该是 {_listed(words, ' 或 ')}", value, hint=hint)


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


def _resolved(pointer: str, keyword: str, node: SchemaRules) -> str:
    """Return the pointer of a `$ref` once the schema behind it is among the nodes."""
    target, refs = _target(pointer, node.home.root), node.home.refs
    if target is None or pointer in node.trail:
        reason = "找不到（只支持本模式之内的 #/…）" if target is None else "绕回了自己"
        raise SchemaError(f"$ref {show(pointer, 80)} {reason}")
    if pointer not in refs:
        refs[pointer] = node  # a stand-in: the schema may well refer to itself
        refs[pointer] = type(node)(target, node.home, pointer, (*node.trail, pointer))
    return pointer


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# shape → (JSON types of what a keyword says, further condition, what is made of it for the calls)
_SHAPES = {
    "value": (_ANY, None, lambda own, *_: {_equality_key(own)}),
    "values": (["array"], len, lambda own, *_: set(map(_equality_key, own))),
    "flag": (["boolean"], None, None),
    "text": (["string"], None, None),
    "pattern": (["string"], None, lambda own, *_: own if compile_pattern(own) else None),
    "pointer": (["string"], None, _resolved),
    "number": (["integer", "number"], lambda own: abs(own) < math.inf, None),
    "positive": (["integer", "number"], lambda own: 0 < own < math.inf, None),
    "count": (["integer"], lambda own: own >= 0, None),
    "names": (["array"], _are_names, lambda own, *_: dict.fromkeys(own)),
    "names map": (["object"], lambda own: all(map(_are_names, own.values())), None),
    "schema": (["object", "boolean"], None, lambda own, word, node: node.part(own, word)),
    "rest": (["object", "boolean"], None, lambda own, word, node: (node.part(own, word),)),
    "schemas": (["array"], len, lambda own, word, node: tuple(
        node.part(schema, word, number) for number, schema in enumerate(own)
    )),
    "map": (["object"], lambda own: _are_names(list(own)), lambda own, word, node: {
        name: (node.part(schema, word, name),) for name, schema in own.items()
    }),
    "pattern map": (["object"], lambda own: _are_names(list(own)), lambda own, word, node: [
        (pattern, (node.part(schema, word, pattern),))
        for pattern, schema in own.items() if compile_pattern(pattern)
    ]),
}
_NUMBER, _STRING, _ARRAY, _OBJECT = ["integer", "number"], ["string"], ["array"], ["object"]
# keyword → (types of value it looks at, shape of what it says, rule)
KEYWORDS = {
    "$ref": (_ANY, "pointer", _rule_ref),
    "enum": (_ANY, "values", _rule_enum),
    "const": (_ANY, "value", lambda *args: _rule_enum(*args)),  # its own, beside that of enum
    "pattern": (_STRING, "pattern", _rule_pattern),
    "format": (_STRING, "text", _rule_format),
    "prefixItems": (_ARRAY, "schemas", _rule_parts),
    "items": (_ARRAY, "rest", _rule_parts),
    "uniqueItems": (_ARRAY, "flag", _rule_unique),
    "contains": (_ARRAY, "schema", _rule_contains),
    "required": (_OBJECT, "names", _rule_required),
    "properties": (_OBJECT, "map", _rule_parts),
    "patternProperties": (_OBJECT, "pattern map", _rule_parts),
    "additionalProperties": (_OBJECT, "rest", _rule_parts),
    "propertyNames": (_OBJECT, "schema", _rule_names),
    "dependentRequired": (_OBJECT, "names map", _rule_dependent),
    "allOf": (_ANY, "schemas", lambda own, value, path, _: [
        problem for part in own for problem in part.check(value, path)
    ]),
    "anyOf": (_ANY, "schemas", functools.partial(_rule_union, "anyOf")),
    "oneOf": (_ANY, "schemas", functools.partial(_rule_union, "oneOf")),
    "not": (_ANY, "schema", lambda own, value, path, _: (
        () if own.check(value, path) else _fault(path, "not", f"不能{own.described()}", value)
    )),
    "if": (_ANY, "schema", _rule_if),
    "then": (_ANY, "schema", lambda *_: ()),  # `if` reads it, and `else`
    "else": (_ANY, "schema", lambda *_: ()),
} | {
    keyword: (kinds, shape, functools.partial(_rule_limit, keyword, holds, says))
    for keyword, kinds, shape, holds, says in [  # {0} the limit, {1} the length, {2} the value
        ("minimum", _NUMBER, "number", operator.ge, "不能小于 {0}，收到的是 {2}"),
        ("maximum", _NUMBER, "number", operator.le, "不能大于 {0}，收到的是 {2}"),
        ("exclusiveMinimum", _NUMBER, "number", operator.gt, "必须大于 {0}，收到的是 {2}"),
        ("exclusiveMaximum", _NUMBER, "number", operator.lt, "必须小于 {0}，收到的是 {2}"),
        ("multipleOf", _NUMBER, "positive", _is_multiple, "必须是 {0} 的倍数，收到的是 {2}"),
        ("minLength", _STRING, "count", operator.ge, "至少要有 {0} 个字符，收到的是 {2}"),
        ("maxLength", _STRING, "count", operator.le, "最多 {0} 个字符，收到的有 {1} 个：{2}"),
        ("minItems", _ARRAY, "count", operator.ge, "至少要有 {0} 个元素，收到的是 {2}"),
        ("maxItems", _ARRAY, "count", operator.le, "最多 {0} 个元素，收到的有 {1} 个：{2}"),
        ("minProperties", _OBJECT, "count", operator.ge, "至少要有 {0} 个键，收到的是 {2}"),
        ("maxProperties", _OBJECT, "count", operator.le, "最多 {0} 个键，收到的有 {1} 个：{2}"),
    ]
}
# Of JSON Schema, but not honoured here: said at registration. `type` and `nullable` belong to
# every node; any further word ("optional") is an annotation by the standard.
_UNSUPPORTED = "unevaluatedProperties unevaluatedItems additionalItems dependencies minContains"
_UNSUPPORTED += " maxContains dependentSchemas $dynamicRef $recursiveRef"

# ── Schema → nodes ──


class SchemaRules:
    """A schema made ready for calls: `rules(args)` returns every problem, [] when all is well.

    Each subschema is one too. `own` holds what the keywords say, `rules` for each type the rules
    that look at it, `notes` what is not checked and why, for the programmer.
    """

    def __init__(self, schema: object, home: SchemaRules | None = None, where="#", trail=("#",)):
        self.schema, self.home = schema if isinstance(schema, dict) else {}, home or self
        self.where, self.trail = where, trail  # JSON pointer; `$ref`s that led to this same value
        if home is None:
            self.root, self.refs, self.notes = schema, {}, []  # refs: pointer → subschema
        self.own, self.names = {}, _ANY
        try:
            self.names = _types(schema)
        except SchemaError as error:
            self.note(str(error))
        self.rules = {name: {} for name in self.names + ["integer"] * ("number" in self.names)}
        if type(rest := self.schema.get("items")) is list:  # what draft 7 called prefixItems
            self.schema = {**self.schema, "prefixItems": rest, "items": True}
        for keyword in filter(self.schema.__contains__, KEYWORDS):
            self.add(keyword, *KEYWORDS[keyword])
        for keyword in filter(self.schema.__contains__, _UNSUPPORTED.split()):
            self.note(f"不支持关键字 {keyword}，不予检查")
        if self.schema.get("nullable") is True:
            self.rules["null"] = {}
        self.rules = {name: tuple(rules.items()) for name, rules in self.rules.items()}

    def note(self, text: str) -> None:
        self.home.notes.append(_cut(f"{_cut(self.where, 120)}：{text}", 240))

    def add(self, keyword: str, kinds: list[str], shape: str, rule: Callable) -> None:
        own, (allowed, holds, make) = self.schema[keyword], _SHAPES[shape]
        if _type_of(own) not in allowed or (holds and not holds(own)):
            self.note(f"关键字 {keyword} 的值 {show(own, 40)} 不合规定，不予检查")
            return
        try:
            self.own[keyword] = make(own, keyword, self) if make else own
        except SchemaError as error:
            self.note(f"{error}，不予检查")
            return
        for name in self.rules.keys() & kinds:
            self.rules[name][rule] = self.own[keyword]

    def part(self, schema: object, keyword: str, *steps: object) -> SchemaRules:
        """Return the node of a subschema, for a part of the value or for the value itself."""
        where = "/".join([self.where, keyword, *map(str, steps)])
        trail = self.trail if KEYWORDS[keyword][0] is _ANY else ()
        return SchemaRules(schema, self.home, where, trail)

    def check(self, value: object, path: tuple) -> Sequence[Problem]:
        """Return the problems of a value: its type, or else all that the rules for it find."""
        kind = type(value)
        rules, found = self.rules.get(_type_of(value) if kind is float else _TYPE_NAMES[kind]), ()
        if rules is None:
            return self.refuse(value, path)
        for rule, own in rules:
            if problems := rule(own, value, path, self):
                found = [*found, *problems]
        return found

    def refuse(self, value: object, path: tuple) -> list[Problem]:
        if not self.names:
            return _fault(path, "false", "不允许出现，请去掉")
        choices = _choices(self.schema)
        tail = f"，{_choose_from(choices)}" if choices else ""
        says = f"应该是 {_listed(self.names, ' 或 ')}{tail}"
        return _fault(path, "type", says, value, hint=_advice(value, self.rules))

    @functools.cached_property
    def groups(self) -> list[tuple[SchemaRules, ...]]:
        """Alternatives: of each group one node applies too; a `$ref` leaves no choice."""
        behind = [(self.home.refs[self.own["$ref"]],)] if "$ref" in self.own else []
        every = [self.own["allOf"]] if len(self.own.get("allOf", ())) == 1 else []
        return behind + every + [self.own[word] for word in ("anyOf", "oneOf") if word in self.own]

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

    def described(self) -> str:
        return f"是 {_listed(self.words, ' 或 ')}" if self.words else f"符合 {show(self.schema)}"

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
        found = own["properties"].get(step, ()) if "properties" in own else ()
        for pattern, part in own.get("patternProperties", ()):
            if _matches(pattern, step[:_MAX_MATCHED], path):
                found += part
        return found or own.get("additionalProperties", ())


    def __call__(self, args: object) -> list[Problem]:
        path = ([_MAX_WORK],)
        if type(args) is not dict:
            return _fault(path, "type", "应该是一个 JSON 对象（object）", args)
        try:
            strange = _not_json(args, path)
            if any(problem.keyword == "json" for problem in strange):
                return strange[:_MAX_PROBLEMS]
            found = list(self.check(args, path))
        except RecursionError:
            return _fault(([_MAX_WORK],), "depth", _TOO_LARGE)
        if strange:
            places = {problem.path for problem in strange}
            found = [problem for problem in found if problem.path not in places] + strange
        if len(found) > _MAX_PROBLEMS:
            found[_MAX_PROBLEMS - 1 :] = [Problem("", "more", "此外还有别的问题，请先改正以上各处")]
        return found


def _fresh(schema: object) -> SchemaRules:
    try:
        return SchemaRules(schema)
    except RecursionError:
        rules = SchemaRules(True)
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
    for step, item in mended.items() if type(mended) is dict else enumerate(mended):
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
    if not isinstance(schema, dict):
        return [f"#：参数的模式应该是一个对象，现在是 {show(schema, 60)}"]
    rules = compile_schema(schema)
    notes = [] if rules.names == ["object"] else ['#：参数的模式应该写明 "type": "object"']
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
_PRIVATE = tuple((re.compile(rf"(?<![A-Za-z0-9]){pattern}"), new) for pattern, new in (
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
))


def _said(error: BaseException) -> str:
    with contextlib.suppress(BaseException):  # a broken __str__ must not make two failures of one
        return str(error)
    return ""


def error_text(error: BaseException) -> str:
    """Class and message of an exception in one bounded line, without paths, keys or traceback."""
    message = " ".join(_said(error)[:10 * ERROR_CHARACTERS].split())
    for pattern, replacement in _PRIVATE:
        message = pattern.sub(replacement, message)
    message = _cut(message, ERROR_CHARACTERS)
    return ": ".join(filter(None, (type(error).__name__, message)))


def _whole(text: str) -> str:
    """The text with lone surrogates replaced: half a character cannot be sent as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _short_repr(value: object) -> str:
    from reprlib import Repr  # bounded, and safe for a broken __repr__

    short = Repr()
    short.maxother = RESULT_CHARACTERS
    return _whole(short.repr(value))


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
            return _short_repr(odd)
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

        own = {
            "name": read.name, "description": read.description, "parameters": read.schema,
            "run": run, "output": output_schema(fn),
        }
        try:
            return cls(**{**own, **getattr(fn, "tool", {}), **options})
        except TypeError as error:
            given = getattr(fn, "tool", {})
            names = {*options, *map(str, given if isinstance(given, dict) else ())}
            fields, wrong = "、".join(cls._fields), sorted(names - {*cls._fields})
            what = f"没有选项 {'、'.join(wrong)}" if wrong else "的选项不对"
            raise SchemaError(f"工具 {read.name} {what}，可用的有 {fields}") from error

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
        f"{text}，收到的是 {show(value)}"
        for field, good, text in _TOOL_RULES if not good(value := getattr(tool, field))
    ]
    faults += filter(None, (limit_fault(n, getattr(tool, n)) for n in ("seconds", "characters")))
    if schema_faults := check_schema(tool.parameters):
        faults.append(f"参数模式有问题：{'；'.join(schema_faults)}")
    if faults:
        raise SchemaError(f"工具 {show(tool.name)}：{'；'.join(faults)}")


def _awaited(value: object) -> object:
    """The value itself, or what the coroutine or asynchronous generator in it gives.

    That runs in a thread of its own, for an event loop may already run in this one; a daemon, so
    that a tool which never ends does not keep the process alive.
    """
    if not (hasattr(value, "__await__") or hasattr(value, "__aiter__")):
        return value
    import asyncio
    from concurrent.futures import Future

    async def finish() -> object:
        result = await value if hasattr(value, "__await__") else value
        if not hasattr(result, "__aiter__"):
            return result
        items = []
        async for item in result:
            items.append(item)
            if len(items) > STREAM_ITEMS:  # one too many: `json_value` says that there is more
                break
        return iter(items)

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
        tool, repairs = None, []
        try:
            tool = self.get(call.name)
            result = self._run(tool, call, repairs)
        except ToolError as error:
            status = "bad_arguments" if isinstance(error, ArgumentsError) else "failed"
            result = ToolResult(_said(error) or "工具没有说明原因", status)
        except KeyboardInterrupt:  # the user's, not the tool's
            raise
        except BaseException as error:  # sys.exit() or a cancelled task in a tool: not our end
            what = f"工具 {tool.name} 执行出错" if tool else "这个调用读不懂"
            result = ToolResult(f"{what}：{error_text(error)}", "failed")
        limit = tool and tool.characters or characters
        return result._replace(text=_whole(cut(result.text, limit)), repairs=tuple(repairs))

    def _run(self, tool: Tool | None, call: ToolCall, repairs: list[str]) -> ToolResult:
        if tool is None:
            return ToolResult(self._unknown(call.name), "unknown_tool")
        args = parse_arguments(call.arguments)
        if self.coerce:
            args, repairs[:] = repair_arguments(args, tool.parameters)
        if problems := validate_arguments(args, tool.parameters):
            raise ArgumentsError(explain(problems))
        value = json_value(_awaited(tool.run(args)))
        return ToolResult(value if isinstance(value, str) else json_text(value), value=value)

    def _unknown(self, name: object) -> str:
        near = closest(name, self.names) if isinstance(name, str) else None
        hint = f"是不是想调用 {near}？" if near else ""
        return f"没有名为 {show(name)} 的工具。{hint}可用的工具：{'、'.join(self.names) or '无'}。"


class Advice(NamedTuple):
    """One thing a reviewer would change in a tool definition."""

    where: str  # "tool" or "tool.parameter"
    what: str
    why: str


_VAGUE_NAMES = frozenset(
    "api call data do exec execute fn func function get handle handler helper info main process"
    " query run start task test tool util work".split()
)
_CONCRETE = re.compile(r"\d|[\"“「『`]|例如|比如|单位|格式|e\.g\.|\bexample|\bunit|\bformat", re.I)
_CHOICES = re.compile(r"可选|取值|只能是|之一|以下|one of|choices|must be|either", re.I)
_COMES_BACK = re.compile(r"返回|给出|得到|return|output|yields|result", re.I)
_LOOKS_UP = re.compile(r"查|搜|找|检索|search|find|look ?up|query|list|fetch", re.I)
_NOTHING_FOUND = re.compile(
    r"没有|没找到|找不到|未找到|不存在|为空|空列表"
    r"|not found|nothing|empty|no (?:match|result|hit)", re.I,
)
_MOST_REQUIRED = 5
_LARGEST_SCHEMA = 8192  # characters; beyond it hosts and small models struggle
_MOST_SIBLINGS = 3  # named, of those that look alike
_SIMILAR = 0.3  # share of two-character pieces that two descriptions have in common


@functools.lru_cache(2**14)  # every tool is compared with every other
def _two_letters(text: str) -> frozenset[str]:
    text = re.sub(r"\s+", "", text.lower())
    return frozenset(text[i:i + 2] for i in range(len(text) - 1))


def _likeness(one: Tool, other: Tool) -> float:
    a, b = _two_letters(one.name + one.description), _two_letters(other.name + other.description)
    both = len(a & b)
    return both / (len(a) + len(b) - both or 1)


def _review_definition(tool: Tool, others: list[Tool]) -> Iterator[tuple[str, str]]:
    name, said = tool.name, tool.description
    guess = "不知道会得到什么，模型就会多调一次或编一个结果"
    if name.lower() in _VAGUE_NAMES or len(name) < 3:
        yield f"名字 {name} 太笼统，改成“动词_对象”，例如 search_notes", "模型先看名字来选工具"
    if len(said) < 15:
        what = f"说明只有 {len(said)} 个字符，请写清做什么、什么时候用"
        yield what, "模型靠说明判断什么时候该用"
    if not _COMES_BACK.search(said):
        yield "说明没有讲返回什么", guess
    if _LOOKS_UP.search(name) and not _NOTHING_FOUND.search(said):
        yield "说明没有讲查不到时返回什么", guess
    alike = [o.name for o in others if o.name not in said and _likeness(tool, o) >= _SIMILAR]
    for like in alike[:_MOST_SIBLINGS]:
        yield f"和 {like} 很像，请写清两者的分工", "分工不清，模型就会选错"
    if more := len(alike[_MOST_SIBLINGS:]):
        yield f"另外还和 {more} 个工具很像，请写清各自的分工", "分工不清，模型就会选错"
    if (count := len(tool.parameters.get("required", []))) > _MOST_REQUIRED:
        what = f"必填参数有 {count} 个，请给常用值设默认值，或拆成两个工具"
        yield what, "必填越多，越容易缺参数或编参数"
    text = json.dumps(tool.parameters, ensure_ascii=False)
    dear = "有的主机和小模型读不懂嵌套的模式，每次请求也更贵"
    if len(text) > _LARGEST_SCHEMA:
        yield f"参数模式有 {len(text)} 个字符，太大", dear
    if nested := [key for key in ("anyOf", "oneOf", "allOf", "$ref") if f'"{key}"' in text]:
        yield f"参数模式用了 {'、'.join(nested)}，能摊平就摊平", dear


def _review_parameter(text: str, schema: dict) -> Iterator[tuple[str, str]]:
    kinds = schema.get("type", ())
    if not schema.keys() - {"description", "default", "title", "examples"}:
        yield "没有类型，请写类型标注，例如 n: int", "没有类型就什么值都放行，错的会一直走进函数里"
    if not text:
        yield "没有说明", "模型只能猜这个参数填什么"
    elif "enum" in schema or kinds == "boolean":
        return
    elif _CHOICES.search(text) and kinds == "string":
        yield "取值有限，请改用 Literal 或 Enum", "enum 会进模式，模型和校验都能看到，文字里的不会"
    elif not _CONCRETE.search(text):
        yield "说明里没有单位、格式或例子", "“长度”可以是字符、token 或毫秒，一个例子就能说清"


def review_tool(tool: Tool, others: Iterable[Tool] = ()) -> list[Advice]:
    """What to improve and why, by the rules of Week 4 Day 3 §2.1; [] when it reads well."""
    others = [other for other in others if other.name != tool.name]
    advice = [Advice(tool.name, *found) for found in _review_definition(tool, others)]
    for name, schema in tool.parameters.get("properties", {}).items():
        schema = schema if isinstance(schema, dict) else {}
        found = _review_parameter(str(schema.get("description", "")), schema)
        advice += (Advice(f"{tool.name}.{name}", *each) for each in found)
    return advice


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 5  计算器 Calculator      uses §1 · pure
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


class Operation(NamedTuple):
    """A function of numbers; `bits` bounds the size of its result when every operand is an int."""

    run: Callable[..., Any]
    least: int = 1  # how many arguments it takes
    most: int = 1
    bits: Callable[..., float] | None = None


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


OPERATORS = {
    ast.Add: ("+", Operation(operator.add)),
    ast.Sub: ("-", Operation(operator.sub)),
    ast.Mult: ("*", Operation(operator.mul, bits=_product_bits)),
    ast.Div: ("/", Operation(operator.truediv)),
    ast.FloorDiv: ("//", Operation(operator.floordiv)),
    ast.Mod: ("%", Operation(operator.mod)),
    ast.Pow: ("**", Operation(pow, bits=_power_bits)),
}
SIGNS = {ast.UAdd: operator.pos, ast.USub: operator.neg}
COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
PLAIN = (
    "sqrt exp log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
    " degrees radians floor ceil trunc isqrt fabs erf erfc gamma lgamma"
)
FUNCTIONS = {name: Operation(getattr(math, name)) for name in PLAIN.split()} | {
    "ln": Operation(math.log),
    "log": Operation(math.log, 1, 2),  # log(x) is natural, log(x, base) is not
    "deg": Operation(math.degrees), "rad": Operation(math.radians), "abs": Operation(abs),
    "int": Operation(int), "float": Operation(float),
    "round": Operation(round, 1, 2, lambda _, places=0: abs(places) > MAX_ROUND and math.inf),
    "pow": Operation(pow, 2, 3, _power_bits),
    "fmod": Operation(math.fmod, 2, 2), "atan2": Operation(math.atan2, 2, 2),
    "min": Operation(min, 2, MANY), "max": Operation(max, 2, MANY),
    "sum": Operation(lambda *values: sum(values), 1, MANY),
    "hypot": Operation(math.hypot, 1, MANY), "gcd": Operation(math.gcd, 1, MANY),
    "lcm": Operation(math.lcm, 1, MANY, _product_bits),
    "factorial": Operation(math.factorial, bits=_falling_bits),
    "perm": Operation(math.perm, 1, 2, _falling_bits),
    "comb": Operation(math.comb, 2, 2, lambda n, k: _falling_bits(n, min(k, n - k))),
}

# What people type for ASCII. An explicit table and not NFKC, which would turn 5² into 52. `^` is
# replaced in the text because Python's own ^ binds weaker than +, so that 1+2^3 would become 3^3.
TYPED = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
TYPED |= dict.fromkeys("×✕✖⋅·∙•∗", "*") | dict.fromkeys("÷∕⁄", "/") | dict.fromkeys("−–—﹣", "-")
TYPED |= dict.fromkeys("\u3000\u00a0\u2002\u2003\u2009\u202f", " ")
TYPED |= dict.fromkeys("\u200b\u2060\ufeff", "")
TYPED |= {"^": "**", "＾": "**", "≤": "<=", "≥": ">=", "≠": " != ", "π": "pi", "τ": "tau"}
TO_ASCII = str.maketrans(TYPED)
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
# Text that Python would read in a way its writer may not have meant, or not without a warning.
MISREAD = (
    # Of these only a small 7%-3 or a spaced 70 % -3, alone, is surely a remainder.
    (r"(?s)^(?![+-]?(?:\d%|\d+ % )-(?!1$)\d+$).*(?:%\s*[-+]|[\w)]%\s)", PERCENT),
    (r"\d,\s*0\d\d(?!\d)", SEPARATED),
    # A function of one number, or commas with and without a blank: max(1,234, 5).
    (r"\b(?:round|perm|int|abs|sqrt|float)\([1-9]\d{0,2},\d{3}(?!\d)", SEPARATED),
    (r"(?s)^(?=.*,\s).*(?<![\w.])[1-9]\d{0,2},\d{3}(?!\d)", SEPARATED),
    (r"[\w)]!=", "5!=120 有两种读法：不等于写 5 != 120，阶乘写 factorial(5) == 120"),
    (r"\d(?:and|else|for|if|in|is|not|or)\b", "只支持算术、比较和函数"),
)
# What probably happened when Python could not read the text at all; the first that fits is told.
MALFORMED = (
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
TOO_DEEP = "算式嵌套太深，请分几步算"


def _syntax_hint(text: str, table: tuple) -> str | None:
    return next((hint for pattern, hint in table if re.search(pattern, text)), None)


def _normalize(text: str) -> str:
    """The same expression in ASCII, with nothing in it that could be misread.

    Raises:
        ToolError: it is too long, or holds characters that no arithmetic needs.
    """
    if not isinstance(text, str):
        raise ToolError(f"算式应该是 string，收到的是 {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise ToolError(f"算式有 {len(text)} 个字符，最多 {MAX_LENGTH} 个，请分几步算")
    if re.search("[–—]{2}", text):  # a Chinese dash is two of them; as 5--3 it would add
        raise ToolError("算式写得不对：减号只写一个 -")
    text = text.translate(TO_ASCII).strip()
    text = re.sub(SUPERSCRIPT_RUN, lambda run: f"**({run[0].translate(SUPERSCRIPTS)})", text)
    if not text:
        raise ToolError("算式是空的，请写一个式子，如 2*(3+4)")
    if foreign := re.search(FOREIGN, text):
        sign = foreign[0] if foreign[0].isprintable() else f"U+{ord(foreign[0]):04X}"
        hint = FOREIGN_HINTS.get(sign, "只写数字、运算符、括号和函数名，不写单位和文字")
        raise ToolError(f"算式里不能有“{sign}”：{hint}")
    return text


def _parse(text: str) -> ast.expr:
    """The syntax tree of one expression; whichever way Python's parser fails, it is a ToolError."""
    text = _normalize(text)
    if hint := _syntax_hint(text, MISREAD):
        raise ToolError(f"算式写得不对：{hint}")
    depths = [0, *itertools.accumulate((sign == "(") - (sign == ")") for sign in text)]
    if max(depths) > MAX_DEPTH:
        raise ToolError(f"括号嵌套超过 {MAX_DEPTH} 层，请分几步算")
    if min(depths) < 0 or depths[-1]:
        raise ToolError("括号不配对，请检查左右括号")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise ToolError(f"算式写得不对：{_syntax_hint(text, MALFORMED)}") from None
    except (MemoryError, RecursionError):
        raise ToolError(TOO_DEEP) from None


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
    shown = [text if len(text) <= 24 else text[:20] + "…" for text in map(str, values)]
    return f"{name}({', '.join(shown)})" if name.isalnum() else f" {name} ".join(shown)


def _apply(name: str, operation: Operation, values: list) -> int | float:
    """The result of one operation, which runs only if its result is known to be small enough."""
    try:
        exact = operation.bits and all(isinstance(value, int) for value in values)
        if exact and operation.bits(*values) > MAX_BITS:
            raise OverflowError
        value = operation.run(*values)
    except OverflowError:
        raise ToolError(TOO_LARGE) from None
    except tuple(FAILED) as error:
        raise ToolError(f"{_written(name, values)} {FAILED[type(error)]}") from None
    return _bounded(value)


def _identifier(node: ast.expr) -> str:
    """`sqrt` for both `sqrt` and `math.sqrt`, which models often write."""
    match node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="math"), attr=name):
            return name
        case ast.Attribute(attr=name):
            raise ToolError(f"不支持取属性 .{name[:40]}")
    raise ToolError("乘号不能省略，2(3+4) 写 2*(3+4)")


def _constant(name: str) -> float:
    if name in CONSTANTS:
        return CONSTANTS[name]
    for function in (name, name.rstrip("0123456789")):  # sin, sin30
        if function in FUNCTIONS:
            raise ToolError(f"{function} 是函数，参数写在括号里，如 {function}(2)")
    raise ToolError(f"没有常数 {name[:40]}，可用：{'、'.join(CONSTANTS)}；变量请换成数")


def _math_function(name: str, count: int) -> Operation:
    """The whitelisted function of that name, if it takes `count` arguments."""
    if name in CONSTANTS:
        raise ToolError(f"{name} 是常数，乘号不能省略，写 {name}*(…)")
    if name not in FUNCTIONS:
        from difflib import get_close_matches

        near = get_close_matches(name[:40].lower(), FUNCTIONS, n=3)
        names = "、".join(dict.fromkeys([*near, *FUNCTIONS]))
        raise ToolError(f"没有函数 {name[:40]}，可用：{names}")
    operation = FUNCTIONS[name]
    least, most = operation.least, operation.most
    if not least <= count <= most:
        wanted = [least, "更多"] if most == MANY else range(least, most + 1)
        raise ToolError(f"{name} 应有 {' 或 '.join(map(str, wanted))} 个参数，收到 {count} 个")
    return operation


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
        case ast.Call(func=func, args=args, keywords=[]) if ast.Starred not in map(type, args):
            name = _identifier(func)
            return _apply(name, _math_function(name, len(args)), [*map(_evaluate, args)])
        case ast.Call():
            raise ToolError("函数的参数按位置写，不写参数名，如 round(3.14159, 2)")
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            value = _evaluate(node.left)
            for op, other in zip(node.ops, node.comparators):
                before, value = value, _evaluate(other)
                if not COMPARISONS[type(op)](before, value):
                    return False
            return True
        case ast.Name() | ast.Attribute():
            return _constant(_identifier(node))
        case ast.Tuple():
            raise ToolError("逗号只用来隔开函数的参数；小数点写 .，千位分隔符去掉，1,000 写 1000")
    raise ToolError("只支持数字、+ - * / // % **、比较和函数")


def safe_eval(text: str) -> int | float | bool:
    """The value of an arithmetic expression; integers are exact, a comparison gives a bool.

    Full-width characters, × ÷ − · and superscripts are understood, ^ is a power.

    >>> safe_eval("2×(3+4)"), safe_eval("2*3^2"), safe_eval("1 < 2 < 3")
    (14, 18, True)
    >>> safe_eval("9**9**9")
    Traceback (most recent call last):
    w4d3_tools_mcp.ToolError: 数太大，溢出：整数最多约 4200 位，小数最大约 1.8e308

    Raises:
        ToolError: one Chinese line that says what to write instead.
    """
    try:
        return _evaluate(_parse(text))
    except RecursionError:
        raise ToolError(TOO_DEEP) from None


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 6  检索 Search      uses §1 · reads notes files
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Text becomes words, words become a ranking (BM25), and a folder of Markdown becomes sections that
# can be ranked and read. Chinese has no spaces, so a run of it counts as all its pairs of
# characters: 梯度消失 is found by 梯度 and by 消失. Only NotesIndex touches files, only below its
# folder, only to read, and not before the first question. Its errors never show machine paths.

# Patterns are kept as text: compiling them takes longer than importing the rest of this section,
# and `re` remembers what it compiled once.
HAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af"  # no spaces
WORDS = (
    rf"([{HAN}]+)"
    r"|(\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)*)"  # 8,192 is 8192; §1.4 stays one word
    rf"|([^\W\d_{HAN}]+)"
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
    for han, number, word in re.findall(WORDS, _fold(text)):
        if han:
            words += map(operator.add, han, han[1:]) if len(han) > 1 else [han]
        elif number:
            words.append(number.replace(",", ""))
        else:
            words += latin(word)
    return words


MOST_PAIRS = 200  # of characters that one character is looked for in
SLIPPERY = "[A-Za-z]{4,40}"  # whose slips are mended: of a thousand letters they fill 54 MB
SUFFIXES = (("sses", "ss"), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))


@functools.lru_cache(maxsize=2**14)
def stem(word: str) -> str:
    """An English word without its ending, so that caches, cached and caching meet in "cach"."""
    if not (word.isascii() and word.isalpha()) or word.endswith(("ss", "us", "is")):
        return word
    for suffix, instead in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            base = word.removesuffix(suffix)
            doubled = suffix in ("ing", "ed") and base[-1] == base[-2] and base[-1] not in "ls"
            return base[:-1] if doubled else base + instead
    return word


@functools.lru_cache(maxsize=2**14)
def _telling_parts(word: str) -> tuple[str, ...]:
    return tuple(stem(part) for part in _split_word(word) if part not in STOP_WORDS)


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about, stemmed."""
    return tokenize(text, latin=_telling_parts)


def query_words(text: str) -> list[str]:
    """The words to look for. What only makes it a question is left out, unless nothing remains.

    >>> query_words("显存怎么算？"), query_words("注"), query_words("为什么")
    (['显存'], ['注'], ['为什', '什么'])
    """
    words = content_words(re.sub(QUESTION, " ", text)) or content_words(text)
    return [word for word in words if len(word) > 1 or not re.fullmatch(f"[{HAN}]", word)] or words


def _slips(word: str) -> set[str]:
    """What was meant, if a letter of `word` is too many, missing, wrong or swapped."""
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    letters = ("", *"abcdefghijklmnopqrstuvwxyz")
    return {
        before + letter + rest
        for before, after in cuts for letter in letters for rest in (after, after[1:])
    } | {before + after[1:2] + after[:1] + after[2:] for before, after in cuts}


def known_words(words: Iterable[str], notes: Any) -> list[str]:
    """The words as the notes write them: an unknown one is cut in two, or one slip is mended.

    Only words that begin with the same two letters are compared, since a large folder has too many.
    A Chinese character that stands alone is looked for in every pair.
    """
    known: list[str] = []
    for word in words:
        if len(word) == 1 and not word.isascii():
            known += sorted(notes.terms("", word))[:MOST_PAIRS]
        elif not re.fullmatch(SLIPPERY, word) or notes.count(word):
            known.append(word)
        else:
            cuts = ((word[:at], word[at:]) for at in range(2, len(word) - 1))
            similar = sorted(set(map(stem, _slips(word))).intersection(notes.terms(word[:2])))
            known += next((cut for cut in cuts if all(map(notes.count, cut))), None) or [
                max(similar, key=notes.count, default=word)
            ]
    return known


def weigh_fields(*fields: tuple[Iterable[str], float]) -> dict[str, float]:
    """Weighted word counts of one document from (words, weight) pairs, as `BM25` takes them."""
    counts: dict[str, float] = {}
    for words, weight in fields:
        for word in words:
            counts[word] = counts.get(word, 0.0) + weight
    return counts


def inverse_frequency(documents: int, having: int) -> float:
    """How much a word tells that `having` of the documents contain (formula 3.3).

    The 1 + keeps a word that most documents contain from counting against them.
    """
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


K1, B = 1.2, 0.75  # how soon a repeated word stops counting; how far long documents pay for it


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
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self.size = len(counts)
        self.postings: dict[str, dict[int, float]] = {}  # word → document → share, below k1 + 1
        for position, (count, length) in enumerate(zip(counts, lengths)):
            damping = k1 * (1 - b + b * length / mean)
            for word, n in count.items():
                self.postings.setdefault(word, {})[position] = n * (k1 + 1) / (n + damping)

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
        best = nsmallest(top_k, ((-score, position) for position, score in scores.items()))
        return [(position, -score) for score, position in best]


class Note(NamedTuple):
    """One section of the notes: what stands between two headings."""

    name: str  # the file below the notes folder, without .md: "week1-day4", "llm/attention"
    section: str  # its unique id: "Week 1 Day 4 §1.4", "llm/attention > Setup"
    title: str  # the heading without its number
    line: int  # of the heading, from 1
    text: str  # Markdown below the heading
    level: int = 0  # number of # of the heading; 0 for the file as a whole
    number: str = ""  # "1.4", where the heading has one

    @property
    def heading(self) -> str:
        return f"§{self.number} {self.title}" if self.number else self.title


class Hit(NamedTuple):
    """One answer of a search."""

    note: Note
    score: float
    snippet: str  # one line of the text around the best match


MAX_NOTE_BYTES = 2_000_000  # a longer .md file is data, not notes
FENCE = r"[\s>]*(?:(?:[-*+]|\d+[.)])\s+)*(`{3,}|~{3,})(.*)"  # may stand in a list item
HEADING = r" {0,3}(#{1,6})[ \t]+(\S.*)"
MAX_TITLE = 120  # characters; a longer heading is cut
NUMBERED = r"§\s*(\d+(?:\.\d+)*)[.、:：]?\s*(.*)"
DAY_TITLE = r"(?i)week\s*(\d+)\s*day\s*(\d+)[\s·:：|—–-]*(.*)"


def _heading_text(written: str) -> str:
    """The words of a heading without the closing #s it may have; the one of "C#" stays."""
    text = written.rstrip()
    bare = text.rstrip("#")
    return (bare.rstrip() if bare[-1:] in ("", " ", "\t") else text)[:MAX_TITLE]


def _cut_at_headings(text: str) -> list[tuple[int, int, str, str]]:
    """(line, level, heading, text) of each section, the first being what stands before a heading.

    A # inside a code fence is a comment. A fence ends with its own sign, at least as often
    (CommonMark 0.31, section 4.5). Underlined headings are not cut at: --- has too many meanings.
    """
    lines = text.split("\n")
    parts: list[tuple[int, int, str, list[str]]] = [(1, 0, "", [])]
    fence = ""
    ends = (i for i, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "..."))
    head = next(ends, 0) if lines[0].rstrip() == "---" else 0  # YAML; a lone --- is a rule
    for number, line in enumerate(lines[head:], head + 1):
        mark = re.match(FENCE, line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and "`" not in mark[2]:
            fence = mark[1]
        elif (heading := re.match(HEADING, line)) and (title := _heading_text(heading[2])):
            parts.append((number, len(heading[1]), title, []))
            continue
        parts[-1][3].append(line)
    return [(line, level, heading, "\n".join(body).strip()) for line, level, heading, body in parts]


def _with_unique_sections(notes: Iterable[Note]) -> list[Note]:
    """The notes, the second of two equal ids marked (2)."""
    unique: dict[str, Note] = {}
    counts: dict[str, int] = {}  # so that ten thousand equal headings take no time
    for note in notes:
        section = note.section
        while section in unique:
            counts[note.section] = counts.get(note.section, 1) + 1
            section = f"{note.section} ({counts[note.section]})"
        unique[section] = note._replace(section=section)
    return list(unique.values())


def _notes_of_file(name: str, text: str) -> list[Note]:
    """The file as a whole (its title, the text before the first section), then each section."""
    parts = _cut_at_headings(text)
    if not parts[0][3] and len(parts) > 1 and parts[1][1] == 1:
        del parts[0]
    line, _, title, body = parts[0]
    day = re.fullmatch(DAY_TITLE, title)
    label, title = (f"Week {day[1]} Day {day[2]}", day[3]) if day else (name, title)
    notes = [Note(name, label, title or label, line, body)]
    above = [(0, label)]  # the headings that the current one stands under
    for line, level, heading, body in parts[1:]:
        while above[-1][0] >= level:
            above.pop()
        numbered = re.fullmatch(NUMBERED, heading)
        number, title = numbered.groups() if numbered else ("", heading)
        section = f"{label} §{number}" if number else f"{above[-1][1]} > {title}"
        above.append((level, section))
        notes.append(Note(name, section, title or section, line, body, level, number))
    # A heading with nothing under it, not even a further heading, is no section.
    levels = [note.level for note in notes[1:]] + [0]
    kept = [note for note, after in zip(notes, levels) if note.text or after > note.level]
    return _with_unique_sections(kept)


def check_notes_folder(folder: str) -> None:
    """Nothing, if the folder is there; a ToolError that says what to do, if it is not."""
    if not os.path.isdir(folder):
        raise ToolError("没有找到笔记文件夹，请把 notes 放到脚本旁边，或用 --notes DIR 指定一个")


def _markdown_files(folder: str, notices: list[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of each .md file below the folder, sorted, nothing hidden, nothing outside.

    Raises:
        ToolError: there is no such folder.
    """
    check_notes_folder(folder)
    root = os.path.join(os.path.realpath(folder), "")

    def shown(path: str) -> str:
        relative = path[len(os.path.join(folder, "")):].replace(os.sep, "/")
        return " ".join(relative.encode("utf-8", "replace").decode().split())  # may be any bytes

    for place, folders, files in os.walk(
        folder, onerror=lambda error: notices.append(f"跳过读不了的文件夹 {shown(error.filename)}")
    ):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (os.path.join(place, name) for name in folders):
            if os.path.islink(path):  # os.walk does not follow it: it may lead out, or in circles
                notices.append(f"跳过链接来的文件夹 {shown(path)}")
        for file in sorted(files):
            path = os.path.join(place, file)
            if file.startswith(".") or not file.lower().endswith(".md"):
                continue
            if os.path.islink(path) and not os.path.realpath(path).startswith(root):
                notices.append(f"跳过指向文件夹外面的链接 {shown(path)}")
            elif os.path.isfile(path):  # a pipe called x.md would block the reader
                yield shown(path)[:-3], path


def _read_file(name: str, path: str, notices: list[str]) -> list[Note] | None:
    """The sections of one file: [] if it is no notes, None if it cannot be read at this time."""
    try:
        if os.path.getsize(path) > MAX_NOTE_BYTES:
            notices.append(f"跳过太大的文件 {name}.md（超过 {MAX_NOTE_BYTES:,} 字节）")
            return []
        with open(path, encoding="utf-8-sig") as file:  # -sig drops a byte order mark
            return _notes_of_file(name, file.read())
    except UnicodeDecodeError:
        notices.append(f"跳过不是 UTF-8 的文件 {name}.md")
        return []
    except OSError:  # vanished since it was listed, or not ours to read
        notices.append(f"跳过读不了的文件 {name}.md")
        return None


NOTHING_TO_READ = "笔记文件夹里没有可读的 .md 文件，请用 --notes DIR 换一个文件夹"
MAX_QUERY = 1_000  # characters
SNIPPET_WIDTH = 160  # characters
SNIPPET_MATCHES = 100  # places looked at in one section; a page of data may have thousands


def _word_edge(line: str, at: int, step: int) -> int:
    """The nearest place in direction `step` that cuts no Latin word, or `at` if that is far."""
    near = range(at, at + 20 * step, step)
    return next((i for i in near if not re.fullmatch("[!-~]{2}", line[max(0, i - 1) : i + 1])), at)


def _snippet(text: str, words: Iterable[str]) -> str:
    """One line of about SNIPPET_WIDTH characters around the place where most words stand."""
    rows = (row for row in text.split("\n") if not re.match(FENCE, row))
    line = " ".join(" ".join(rows).split())
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "$^"
    matches = list(re.finditer(pattern, _fold(line), re.IGNORECASE))[:SNIPPET_MATCHES]

    def variety(start: int) -> int:
        near = (match for match in matches if start <= match.start() < start + SNIPPET_WIDTH)
        return len({match[0].lower() for match in near})

    best = max((match.start() for match in matches), key=variety, default=0)
    start = max(0, min(best - SNIPPET_WIDTH // 4, len(line) - SNIPPET_WIDTH))
    start, end = _word_edge(line, start, -1), _word_edge(line, start + SNIPPET_WIDTH, 1)
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


CHINESE_DIGITS = str.maketrans("一二三四五六七八九", "123456789")
CHINESE_DAY = r"第\s*(\w)\s*周\s*第?\s*(\w)\s*[天日]"
DAY_ADDRESS = (
    r"\b(?:week|w)[\s_-]*0*(\d+)[\s,_-]*(?:day|d)[\s_-]*0*(\d+)(?:\.md\b)?"  # Week 1 Day 4, w1d4
    r"(?:(?:[\s,:#§第.-]|section)*(\d+(?:\.\d+)*)节?)?"  # §1.4, 1.4, 第1.4节
)
BARE_NUMBER = r"^(?:第|section )?\s*(\d+(?:\.\d+)+|\d+(?=\s*节?$))(?:\s*节|\s|$)"  # 1.4, 第1.4节


@functools.lru_cache(maxsize=2**10)
def _address(text: str) -> str:
    """What a reader wrote for a section, in the one form in which addresses are compared.

    >>> {_address(name) for name in ("Week 1 Day 4 §1.4", "week1-day4 1.4", "第一周第4天 § １.４")}
    {'week1day4§1.4'}
    """
    text = text.translate(TO_HALF_WIDTH).lower().strip()
    text = re.sub(
        CHINESE_DAY, lambda day: f"week{day[1]}day{day[2]}".translate(CHINESE_DIGITS), text
    )
    text = re.sub(BARE_NUMBER, r"§\1 ", re.sub(DAY_ADDRESS, r"week\1day\2§\3 ", text))
    return re.sub(r"[^\w.§]+|§(?!\s*\d)|(?<!\d)\.|\.(?!\d)", "", text)


# How much a word counts for, measured on the bundled notes: in the heading, in all other text …
FIELD_WEIGHTS = (4.0, 1.0)
# … and in the query: a Chinese word is two pairs of characters, or three; as one, a Latin word
# would be outvoted.
LATIN_WEIGHT = 1.5
# A few words of opening must not lead over the sections that they introduce.
OPENING_WEIGHT = 0.5


def _asked(words: Iterable[str]) -> dict[str, float]:
    """What a query asks for, and how much each word of it counts."""
    return {word: LATIN_WEIGHT if word.isascii() and word.isalpha() else 1.0 for word in words}


def _placed(notes: list[Note]) -> Iterator[tuple[Note, list[tuple[list[str], float]]]]:
    """Each section with its fields: (words, weight) of its heading, and of its id and texts."""
    above: list[Note] = []  # the headings that the current section stands under
    for note, after in zip(notes, [*notes[1:], None]):
        above = [upper for upper in above if upper.level < note.level]
        is_opening = note.level == 0 and after is not None and after.level > 0
        scale = OPENING_WEIGHT if is_opening else 1.0
        text = " ".join([note.section, *(upper.title for upper in above), note.text])
        fields = zip((note.heading, text), FIELD_WEIGHTS)
        yield note, [(content_words(field), weight * scale) for field, weight in fields]
        above.append(note)


def _addresses_of(note: Note) -> list[str]:
    """All that a section may be called by, as addresses; that of its id comes first."""
    names = [note.section, note.title, note.heading, f"{note.section} {note.title}"]
    if note.number:
        names.append(f"§{note.number}")
    if note.level == 0:
        file = note.name.rpartition("/")[2]
        names += [note.name, file, f"{note.name}.md", f"{file}.md"]
    return list(dict.fromkeys(map(_address, names)))


class NotesInMemory:
    """The sections of a folder, ranked and looked up without any file."""

    def __init__(self, sections: list[Note], notices: Sequence[str] = ()):
        self.sections, self.notices = sections, notices
        self.outline = sections

    @functools.cached_property
    def _ranking(self) -> BM25:
        return BM25(weigh_fields(*fields) for _, fields in _placed(self.sections))

    @functools.cached_property
    def _known_as(self) -> list[tuple[Note, set[str]]]:
        return [(note, set(_addresses_of(note))) for note in self.sections]

    def count(self, word: str) -> int:
        """How many sections hold a word."""
        return len(self._ranking.postings.get(word, ()))

    def terms(self, start: str, part: str = "") -> list[str]:
        """All words of the notes that begin so and hold that part."""
        return [term for term in self._ranking.postings if term.startswith(start) and part in term]

    def best(self, words: Iterable[str], top_k: int) -> list[tuple[Note, float]]:
        """(section, score) of the sections that hold one of the words, best first."""
        ranked = self._ranking.search(_asked(words), top_k)
        return [(self.sections[position], score) for position, score in ranked]

    def called(self, section: str, address: str) -> list[Note]:
        """The sections with this id, else those at this address."""
        found = [note for note in self.sections if note.section == section]
        return found or [note for note, addresses in self._known_as if address in addresses]

    def like(self, day: str, number: str, words: str) -> list[Note]:
        """The sections of a day, with a number, with some words in the title; "" fits all."""
        return [
            note for note in self.sections
            if number in ("", note.number) and words in _address(note.title)
            and _address(note.section).startswith(day)
        ]

    def after(self, note: Note) -> Iterable[Note]:
        """The sections that follow in reading order."""
        return itertools.islice(self.sections, self.sections.index(note) + 1, None)


MOST_NOTICES = 5  # told one by one; of the others only how many there are
RANGE = r"(.*?)(\d+(?:\.\d+)*)\s*[-–—~～至到]\s*§?\s*(\d+(?:\.\d+)*)"  # Week 2 Day 6 §1.2–1.3


def _called(notes: Any, name: str) -> list[Note]:
    """The sections that a name may mean: its id, its address, or what the parts of it say."""
    for form in dict.fromkeys((name, re.split(r"[/\\]", name)[-1])):  # notes/week1-day4.md
        address = _address(form)
        if found := notes.called(form, address):
            return found
        days, numbers = re.findall(r"week\d+day\d+", address), re.findall(r"§([\d.]+)", address)
        words = re.sub(r"week\d+day\d+|§[\d.]*", "", address)
        if days and numbers and not re.search(r"\d", words):
            words = ""  # they name the section; what else stands there says no more
        if len(days) < 2 and len(numbers) < 2 and (numbers or len(words) > 1):
            if found := notes.like("".join(days), "".join(numbers), words):
                return found
    return []


def _meant(notes: Any, name: str) -> list[tuple[Note, Note]]:
    """(first, last) section of each reading of a name; a range such as §1.2–1.3 has two ends."""
    found = [(note, note) for note in _called(notes, name)]
    written = re.fullmatch(RANGE, name)
    if found or not written:
        return found
    before, *numbers = written.groups()
    firsts, lasts = (_called(notes, before + number) for number in numbers)
    return [(a, b) for a in firsts for b in lasts if a.name == b.name and a.line < b.line]


def _joined(notes: Any, first: Note, last: Note) -> Note:
    """The sections from `first` to `last` as one, with everything under their headings."""
    texts, past = [first.text], first == last
    for below in notes.after(first):
        if past and below.level <= last.level:
            break
        past = past or below == last
        texts.append(f"{'#' * below.level} {below.heading}\n\n{below.text}")
    section = first.section if first == last else f"{first.section}–{last.number or last.title}"
    return first._replace(
        section=section, text="\n\n".join(text.strip() for text in texts).strip(),
    )


class NotesIndex:
    """The sections of a folder of Markdown files, searched and looked up; read on first use.

    notice(text) is told what had to be skipped, and why, once that is known.
    """

    def __init__(self, folder: str, *, notice: Callable[[str], None] | None = None):
        self.folder, self.notice = folder, notice
        self._lock = threading.RLock()
        self._skipped: list[str] = []  # what was found out before the notes were read
        self._told: set[str] = set()

    @functools.cached_property
    def _memory(self) -> NotesInMemory:
        sections, notices = [], [*self._skipped]
        for name, path in _markdown_files(self.folder, notices):
            sections += _read_file(name, path, notices) or []
        self._tell(notices)
        if not sections:
            raise ToolError(NOTHING_TO_READ)
        return NotesInMemory(_with_unique_sections(sections), notices)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        """work(notes), which are read now if they were not yet."""
        with self._lock:
            memory = self._memory
        return work(memory)

    def _tell(self, notices: list[str]) -> None:
        new = [text for text in dict.fromkeys(notices) if text not in self._told]
        self._told.update(new)
        if more := len(new[MOST_NOTICES:]):
            new[MOST_NOTICES:] = [f"还有 {more} 处也跳过了"]
        for text in new if self.notice else ():
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
            words = known_words(query_words(query), notes)
            found = notes.best(words, top_k)
            return [Hit(note, score, _snippet(note.text, words)) for note, score in found]

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
            near = meant[:5] or notes.best(known_words(query_words(name), notes), 5)
            listed = "；".join(f"{note.section} {note.title}" for note, _ in near)
            reason = "有好几节符合" if meant else "没有这一节"
            how = "请写编号（如 Week 1 Day 4 §1.4）、文件名（如 week1-day4）或标题"
            raise ToolError(f"{reason}，{how}" + (f"。相近的有：{listed}" if listed else ""))

        return self._ask(found)


# A folder of ten thousand sections takes seconds to index, so it is done once: a SQLite file in the
# user's cache directory keeps words and texts, and a later start reads only files that changed (by
# time and size, as make does). FTS5 proposes sections, then BM25 as above scores them, so both ways
# rank alike. The file is only a cache: a damaged one is made anew, and where there can be none (no
# FTS5, a read-only disk) the notes are held in memory as before.

LARGE_FOLDER = 2_000_000  # bytes of Markdown, about 2,000 sections; memory is faster below that
STORE_VERSION = 2  # of the tables and of tokenize; raise it when either changes
CANDIDATES = 50  # sections that FTS5 proposes for scoring
COMMON = 1_000  # a word in more sections, and in a tenth of all, proposes none if others can
PATIENCE = 120.0  # seconds to wait while another process builds the same index
WORDS_IN_MEMORY = 8_000_000  # bytes that FTS5 collects before it writes them; the default is 1 MB
PROGRESS_STEP = 100  # files between two calls of `progress`
NO_STORE = "建不了索引文件，这么多笔记只好放在内存里，每次启动都要重新读"

# The sections of a file have the ids from `first` up to, not with, `last`, in reading order.
STORE_TABLES = """
    PRAGMA page_size = 16384;  -- texts are long: a fifth less work than with 4096
    PRAGMA journal_mode = WAL;  -- others read on while one process writes
    PRAGMA synchronous = NORMAL;
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS files(
        name TEXT PRIMARY KEY, time INTEGER, bytes INTEGER, first INTEGER, last INTEGER,
        length REAL, notice TEXT);
    CREATE TABLE IF NOT EXISTS sections(
        id INTEGER PRIMARY KEY, addresses TEXT, titled TEXT, scale REAL,
        name TEXT, section TEXT, title TEXT, line INTEGER, text TEXT, level INTEGER, number TEXT);
    CREATE INDEX IF NOT EXISTS by_section ON sections(section);
    CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
        heading, text, tokenize = "ascii tokenchars '.'");
    CREATE VIRTUAL TABLE IF NOT EXISTS counts USING fts5vocab(words, row);
    COMMIT;
"""
NOTE_COLUMNS = ", ".join(f"s.{field}" for field in Note._fields)
PROPOSED = f"""
    SELECT s.scale, w.heading, w.text, {NOTE_COLUMNS}
    FROM words AS w JOIN sections AS s ON s.id = w.rowid
    WHERE w.rowid IN (SELECT rowid FROM words WHERE words MATCH ?
        ORDER BY bm25(words, {FIELD_WEIGHTS[0]}, {FIELD_WEIGHTS[1]}) LIMIT ?)
"""


def notes_cache(platform: str, variables: Mapping[str, str], home: str) -> str:
    """Where index files belong by the custom of the system (`sys.platform`, `os.environ`)."""
    customs = {
        "win32": variables.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"),
        "darwin": os.path.join(home, "Library", "Caches"),
    }
    common = variables.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(customs.get(platform, common), "w4d3_tools_mcp")


def _insert(base, table: str, *values: object) -> None:
    base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _store_file(base, name: str, path: str, stamp: tuple[int, int]) -> list[str]:
    """Read one file into the store, or its notice; of what cannot be read it is returned only."""
    notices: list[str] = []
    notes, length = _read_file(name, path, notices), 0.0
    if notes is None:
        return notices
    day = "SELECT 1 FROM sections WHERE section = ?"
    if notes and base.execute(day, (notes[0].section,)).fetchone():  # two files of one title
        notes = [note._replace(section=f"{note.section} ({name})") for note in notes]
    first = base.execute("SELECT COALESCE(MAX(last), 1) FROM files").fetchone()[0]
    for id, (note, fields) in enumerate(_placed(notes), first):
        length += sum(weight * len(words) for words, weight in fields)
        known_as, scale = f" {' '.join(_addresses_of(note))} ", fields[-1][1]
        _insert(base, "sections", id, known_as, _address(note.title), scale, *note)
        _insert(base, "words(rowid, heading, text)", id, *(" ".join(words) for words, _ in fields))
    _insert(base, "files", name, *stamp, first, first + len(notes), length, "".join(notices))
    return []


def _forget_file(base, name: str) -> None:
    row = "SELECT first, last - 1 FROM files WHERE name = ?"
    ids = base.execute(row, (name,)).fetchone()
    base.execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", ids)
    base.execute("DELETE FROM sections WHERE id BETWEEN ? AND ?", ids)
    base.execute("DELETE FROM files WHERE name = ?", (name,))


def _changes(base, listed: dict) -> tuple[set[str], list[str]]:
    """(files to forget, files to read) until the store fits the folder."""
    rows = base.execute("SELECT name, time, bytes FROM files")
    known = {name: (*stamp,) for name, *stamp in rows}
    changed = [name for name, (_, stamp) in listed.items() if known.get(name) != stamp]
    return (known.keys() - listed.keys()) | (known.keys() & {*changed}), changed


def _update_store(base, listed: dict, notices: list[str], progress: Callable | None) -> None:
    """Bring the store up to date in one transaction: all of it, or nothing when we are stopped."""
    if not any(_changes(base, listed)):
        return
    with base:
        base.execute("BEGIN IMMEDIATE")
        gone, changed = _changes(base, listed)  # again: another process may have done it meanwhile
        base.execute("INSERT INTO words(words, rank) VALUES ('hashsize', ?)", (WORDS_IN_MEMORY,))
        for name in gone:
            _forget_file(base, name)
        for done, name in enumerate(changed, 1):
            notices += _store_file(base, name, *listed[name])
            if progress and (done % PROGRESS_STEP == 0 or done == len(changed)):
                progress(done, len(changed))


class NotesInStore:
    """What NotesInMemory offers, from an index file."""

    def __init__(self, base: Any, skipped: list[str]):
        self.base, self._skipped = base, skipped
        # FTS5 reads a whole list to count a word, so each is counted once.
        self.count = functools.lru_cache(maxsize=2**14)(self._count)

    def _count(self, word: str) -> int:
        row = self.base.execute("SELECT doc FROM counts WHERE term = ?", (word,)).fetchone()
        return row[0] if row else 0

    def terms(self, start: str, part: str = "") -> list[str]:
        query = "SELECT term FROM counts WHERE term BETWEEN ? AND ? AND instr(term, ?)"
        return [term for term, in self.base.execute(query, (start, start + "\U0010ffff", part))]

    def _notes(self, condition: str, *values: object, columns: str = NOTE_COLUMNS) -> list[Note]:
        query = f"SELECT {columns} FROM sections AS s WHERE {condition} ORDER BY s.name, s.id"
        return [Note(*row) for row in self.base.execute(query, values)]

    @property
    def sections(self) -> list[Note]:
        return self._notes("1")

    @property
    def outline(self) -> list[Note]:
        return self._notes("1", columns=NOTE_COLUMNS.replace("s.text", "''"))

    @property
    def notices(self) -> list[str]:
        rows = self.base.execute("SELECT notice FROM files WHERE notice <> '' ORDER BY name")
        return [*self._skipped, *(notice for notice, in rows)]

    def called(self, section: str, address: str) -> list[Note]:
        section = section.encode("utf-8", "replace").decode()  # half a character is in no database
        return self._notes("s.section = ?", section) or self._notes(
            "instr(s.addresses, ?)", f" {address} "
        )

    def like(self, day: str, number: str, words: str) -> list[Note]:
        condition = "? IN ('', s.number) AND instr(s.titled, ?) AND instr(s.addresses, ?) = 1"
        return self._notes(condition, number, words, f" {day}")

    def after(self, note: Note) -> list[Note]:
        return self._notes("s.name = ? AND s.line > ?", note.name, note.line)

    def best(self, words: Iterable[str], top_k: int) -> list[tuple[Note, float]]:
        totals = "SELECT SUM(last - first), SUM(length) FROM files"
        sections, length = self.base.execute(totals).fetchone()
        telling = {
            word: weight * inverse_frequency(sections, self.count(word))
            for word, weight in _asked(words).items() if self.count(word)
        }
        rare = [word for word in telling if self.count(word) <= max(COMMON, sections // 10)]

        def scored(row: tuple) -> tuple[Note, float]:
            scale, fields = row[0], [text.split() for text in row[1:3]]
            score, size = 0.0, scale * sum(map(operator.mul, FIELD_WEIGHTS, map(len, fields)))
            damping = K1 * (1 - B + B * size * sections / length)
            for word, tells in telling.items():
                counts = (words.count(word) for words in fields)
                n = scale * sum(map(operator.mul, FIELD_WEIGHTS, counts))
                score += tells * n * (K1 + 1) / (n + damping)
            return Note(*row[3:]), score

        if not telling:
            return []
        match = " OR ".join(f'"{word}"' for word in rare or telling)  # quoted: none is an operator
        found = self.base.execute(PROPOSED, (match, max(CANDIDATES, 2 * top_k)))
        hits = sorted(map(scored, found), key=lambda hit: (-hit[1], hit[0].name, hit[0].line))
        return hits[:top_k]


class LargeNotesIndex(NotesIndex):
    """Notes of any number: a large folder is searched in a file in `cache`, a small one in memory.

    progress(done, total) is told how many files have been read, where any had to be.
    """

    def __init__(
        self, folder: str, cache: str, *, large: int = LARGE_FOLDER,
        progress: Callable[[int, int], None] | None = None, **options: Any,
    ):
        super().__init__(folder, **options)
        self.cache, self.large, self.progress = cache, large, progress
        self._store: NotesInStore | None = None

    def close(self) -> None:
        """Let go of the index file; the next search opens it again."""
        if self._store is not None:
            self._store.base.close()
            self._store = None

    def __del__(self):
        with contextlib.suppress(AttributeError):  # it was never quite made
            self.close()

    @functools.cached_property
    def path(self) -> str:
        from hashlib import sha256

        mark = sha256(os.fsencode(os.path.realpath(self.folder))).hexdigest()[:16]
        return os.path.join(self.cache, f"notes-{mark}-v{STORE_VERSION}.sqlite")

    @functools.cached_property
    def _listed(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """Name → path and (time, size) of each file; {} when notes are held in memory."""
        listed = {}
        for name, path in _markdown_files(self.folder, self._skipped):
            with contextlib.suppress(OSError):  # vanished since
                status = os.stat(path)
                listed[name] = path, (status.st_mtime_ns, status.st_size)
        if sum(stamp[1] for _, stamp in listed.values()) >= self.large:
            return listed
        self._skipped.clear()  # whoever reads the notes will find it again
        return {}

    def _ask(self, work):
        with self._lock:
            if self._listed:
                try:
                    return self._with_store(work)
                except (ImportError, OSError):
                    self._listed = {}
                    self._skipped[:] = [NO_STORE]
        return super()._ask(work)

    def _with_store(self, work: Callable) -> Any:
        """work(store), on a new one if the file is damaged. Raises OSError if there can be none."""
        import sqlite3

        for _ in range(2):
            try:
                if self._store is None:
                    self._store = self._opened()
                return work(self._store)
            except sqlite3.OperationalError as error:  # no FTS5, no right to write, locked for ever
                raise OSError(str(error)) from error
            except sqlite3.DatabaseError:
                if self._store:
                    self._store.base.close()
                    self._store = None
                for end in ("", "-wal", "-shm"):
                    with contextlib.suppress(OSError):
                        os.remove(self.path + end)
        raise OSError("damaged again")

    def _opened(self) -> NotesInStore:
        """The store, made where it is new, and brought up to date."""
        import sqlite3

        os.makedirs(self.cache, mode=0o700, exist_ok=True)  # notes may be private
        base = sqlite3.connect(
            self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False,
        )
        try:
            base.executescript(STORE_TABLES)
            skipped = [*self._skipped]
            _update_store(base, self._listed, skipped, self.progress)
            store = NotesInStore(base, skipped)
            self._tell(store.notices)
            if not base.execute("SELECT 1 FROM sections").fetchone():
                raise ToolError(NOTHING_TO_READ)
        except BaseException:
            base.close()
            raise
        return store


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 7  内置工具 Built-in tools      uses §1, §3–§6
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The same four for demos, --ask and the MCP server. Signatures and docstrings are all there is:
# schemas are generated from them and cannot drift. To add a tool, write one function.

NOTES_FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "notes")
MOST_HITS = 20  # more than a model reads with care
LARGEST = 10**9  # of any one factor of the KV cache; real models stay far below
NOTE_CHARACTERS = 6000  # read_note returns whole sections


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
        return f"{note.section} {note.title}\n\n{note.text}"

    read_note.tool = {"characters": NOTE_CHARACTERS}
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
HAN_CHARACTER = "[\u4e00-\u9fff]"  # the common ones; all of HAN takes 3 ms to compile
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
    """Each word with the next and the next but one; stop words between them are gone already."""
    return [f"{a} {b}" for step in (1, 2) for a, b in zip(roots, roots[step:])]


def _parameter_text(schema: object) -> str:
    """Names, descriptions and accepted values of all parameters, at any depth, in any dialect."""
    texts, nodes = [], [schema]
    while nodes:
        node = nodes.pop()
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
        (re.findall(HAN_CHARACTER, " ".join(map(str, texts))), HAN_WEIGHT),
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
        self._documents = [_tool_words(schema) for schema in schemas]
        self._ranking = BM25(self._documents, k1=SATURATION, b=LENGTH_SHARE)

    def _ranked(self, terms: list[str], k: int) -> Iterator[tuple[int, float]]:
        """(position, score) of the k best; a word that one has counts less for the next."""
        postings, size = self._ranking.postings, self._ranking.size
        weights = {term: inverse_frequency(size, len(postings[term])) for term in terms}
        gains = {
            place: {t: n * postings[t][place] for t, n in weights.items() if place in postings[t]}
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
        text = re.sub(f"{CAMEL_CASE}|{QUESTION}", " ", query[-MAX_REQUEST:])
        roots = [_root(word) for word in query_words(text)]
        terms = dict.fromkeys([*roots, *_pairs(roots), *re.findall(HAN_CHARACTER, text)])
        terms = [term for term in terms if term in self._ranking.postings]  # few: the rest is quick
        written = {_root(stem(word)): word for word in re.findall("[a-z]+", text.lower())}
        spoken = {root: written.get(root, root) for root in roots if root in self._ranking.postings}

        def evidence(position: int) -> tuple[str, ...]:
            own = self._documents[position]
            return tuple(dict.fromkeys(word for root, word in spoken.items() if root in own))

        several = len(re.findall(SENTENCE_END, text)) >= MANY_SENTENCES
        ranked = (self._ranked if several else self._ranking.search)(terms, max(k, 0))
        scores = {p: score for p, score in ranked if evidence(p)}  # lone characters are no match
        kept = set(self._names if len(self.tools) <= k else keep)
        more = [p for p, name in enumerate(self._names) if name in kept] if kept else []
        return [
            Routed(self._names[p], scores.get(p, 0.0), evidence(p), self.tools[p])
            for p in dict.fromkeys([*scores, *more])
        ]

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

# family → (name, description, "parameter text; parameter? kind text; …"); ? is optional, the kind
# is string unless given: integer, number, or the accepted values a/b/c
CATALOGUE = {
    "搜索 search": (
        "search_notes",
        ("web_search", "用搜索引擎查公开网页 web，返回标题和网址",
         "query 关键词; count? integer 条数"),
        ("search_papers", "查学术论文 paper（arXiv），返回题目和链接",
         "query 关键词; year? integer 最早年份"),
        ("search_news", "查最近的新闻 news，返回标题和时间",
         "query 关键词; days? integer 最近几天"),
    ),
    "文件 files": (
        ("list_files", "列出文件夹 folder 里的文件名和大小", "path 文件夹路径"),
        ("read_file", "读取一个文本文件 file 的内容", "path 文件路径; lines? integer 最多行数"),
        ("write_file", "把文本保存到文件 file，原有内容会被覆盖", "path 文件路径; text 内容"),
        ("search_files", "在文件夹里按内容查文件 grep，返回所在的行",
         "pattern 要找的文字; path 文件夹路径"),
    ),
    "邮件 mail": (
        ("send_email", "发送一封邮件 email，发出后不能撤回",
         "to 收件人地址; subject 主题; body 正文"),
        ("search_email", "在邮箱里查邮件 email，返回主题和编号", "query 关键词、发件人或日期"),
        ("read_email", "读取一封邮件 email 的正文和附件名", "id 邮件编号"),
        ("draft_reply", "起草对一封邮件的回复 reply，只存草稿，不发送",
         "id 邮件编号; tone? formal/casual 语气"),
    ),
    "日历 calendar": (
        ("list_events", "查看某天的日程和会议 calendar", "date 日期 YYYY-MM-DD"),
        ("create_event", "新建日程，或约一个会议 meeting",
         "title 标题; start 开始时间; minutes? integer 分钟数"),
        ("find_free_time", "找几个人都有空的时间 free time",
         "people 各人的邮箱; date 日期 YYYY-MM-DD"),
        ("set_reminder", "设置到点提醒 reminder 或闹钟 alarm", "text 提醒内容; time 时间 HH:MM"),
    ),
    "代码 code": (
        ("run_python", "在沙箱里运行一段 Python 代码，返回输出", "code 源代码"),
        ("run_tests", "运行项目的单元测试 pytest，返回失败的用例", "path 测试目录"),
        ("search_code", "在代码仓库 repo 里查函数或变量的定义",
         "query 名字或正则; language? 编程语言"),
        ("gpu_status", "查看本机 GPU 的显存占用和温度 nvidia-smi", "index? integer 第几块卡"),
    ),
    "数据 data": (
        "calculator",
        ("query_sql", "对数据库 database 执行只读 SQL，返回表格", "sql 查询语句"),
        ("plot_chart", "把数据画成图 chart", "data CSV 数据; kind? line/bar/scatter 种类"),
        ("describe_table", "统计 CSV 每一列的均值 mean、标准差和缺失", "path CSV 文件路径"),
    ),
    "天气与出行 weather and travel": (
        ("get_weather", "查城市现在的天气 weather：气温、湿度、风力", "city 城市"),
        ("get_forecast", "查未来几天的天气预报 forecast：是否下雨、最高气温",
         "city 城市; days? integer 天数"),
        ("search_flights", "查两地之间的航班 flight 和机票价格",
         "origin 出发城市; target 到达城市; date 日期"),
        ("search_trains", "查高铁、火车 train 的车次和余票",
         "origin 出发站; target 到达站; date 日期"),
    ),
    "财务 money": (
        ("convert_currency", "按当天汇率换算货币 currency，如美元换人民币",
         "amount number 金额; source 原货币; target 目标货币"),
        ("get_stock_price", "查股票 stock 的最新价格和涨跌幅", "symbol 股票代码"),
        ("add_expense", "记一笔支出 expense 到账本", "amount number 金额; category 类别，如交通"),
        ("loan_payment", "计算贷款 loan 的每月还款额和总利息",
         "principal number 本金; rate number 年利率 %; months integer 月数"),
    ),
    "文档 documents": (
        "read_note",
        ("translate_text", "把文字翻译 translate 成另一种语言",
         "text 原文; target zh/en/ja/fr 目标语言"),
        ("summarize_text", "把长文章缩写成摘要 summary", "text 原文; words? integer 摘要字数"),
        ("read_pdf", "提取 PDF 文档的文字", "path PDF 路径; pages? 页码，如 1-3"),
    ),
    "课程 course": (
        "kv_cache_gib",
        ("weights_gib", "计算模型参数 weights 占多少显存", "params number 参数量"),
        ("training_gib", "计算训练时梯度和优化器占多少显存", "params number 参数量"),
        ("training_flops", "计算训练大模型要多少算力 FLOPs（6ND）",
         "params number 参数量; tokens number token 数"),
    ),
}


def _row_parameters(text: str) -> dict:
    """The object schema of a row's parameters.

    >>> _row_parameters("n? integer 条数")["properties"]
    {'n': {'type': 'integer', 'description': '条数'}}
    """
    properties, required = {}, []
    for name, *words in (part.split() for part in text.split("; ")):
        kind = words.pop(0) if re.fullmatch(r"integer|number|\w+(/\w+)+", words[0]) else "string"
        choices = {"enum": kind.split("/")} if "/" in kind else {}
        properties[name.rstrip("?")] = {
            "type": "string" if choices else kind, **choices, "description": " ".join(words),
        }
        required += [] if name.endswith("?") else [name]
    return {"type": "object", "properties": properties, "required": required}


def _catalogue_entry(args: dict) -> object:
    raise ToolError("这只是演示目录里的一个条目，没有接真实的服务，什么也没有做。请如实告诉用户。")


def catalogue_tools(real: ToolRegistry | None = None) -> ToolRegistry:
    """The 40 tools of CATALOGUE, those of §7 from `real`; what else `real` has follows them."""
    real = built_in_tools() if real is None else real
    rows = [row for family in CATALOGUE.values() for row in family]
    tools = [
        real[row] if isinstance(row, str)
        else Tool(row[0], row[1], _row_parameters(row[2]), _catalogue_entry) for row in rows
    ]
    return ToolRegistry([*tools, *(tool for tool in real if tool.name not in rows)])


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
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    result = {key: value for key, value in schema.items() if key in _GEMINI_KEPT}
    named = [kind.upper() for kind in kinds if kind != "null"]
    branches = [b for b in schema.get("anyOf", schema.get("oneOf", [])) if b != {"type": "null"}]
    if len(named) == 1:
        result["type"] = named[0]
    elif named:
        branches = [{"type": kind.lower()} for kind in named]
    if branches:
        result["anyOf"] = [_gemini_schema(branch, defs, seen) for branch in branches]
    if "null" in kinds or {"type": "null"} in schema.get("anyOf", []):
        result["nullable"] = True
    if "enum" in result:  # Gemini knows only enums of strings
        if all(isinstance(value, str) for value in result["enum"]):
            result.setdefault("type", "STRING")
        else:
            del result["enum"]
    if "properties" in schema:
        result["properties"] = {
            name: _gemini_schema(value, defs, seen) for name, value in schema["properties"].items()
        }
    if "items" in schema or "ARRAY" in named:
        result["items"] = _gemini_schema(schema.get("items", {}), defs, seen)
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
    """{name, title, description, inputSchema, outputSchema, annotations} (MCP 2025-06-18 on)."""
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
    return result


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


# --- tool_choice ---

_CHOICE_WORDS = {  # OpenAI's word → (Anthropic's type, Gemini's mode)
    "auto": ("auto", "AUTO"), "required": ("any", "ANY"), "none": ("none", "NONE"),
}


def _openai_choice(word: str, names: Iterable[str] = ()) -> str | dict:
    """OpenAI's spelling of another vendor's word, or of the one tool that is named."""
    match list(names):
        case [name]:
            return {"type": "function", "function": {"name": name}}
    return next(ours for ours, theirs in _CHOICE_WORDS.items() if word in theirs)


def to_anthropic_choice(choice: str | dict) -> dict:
    """Anthropic's spelling of "auto", "none", "required" or {"function": {"name": …}}."""
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": _CHOICE_WORDS[choice][0]}


def from_anthropic_choice(choice: dict) -> str | dict:
    """The OpenAI spelling of an Anthropic `tool_choice`."""
    return _openai_choice(choice["type"], [choice["name"]] if choice["type"] == "tool" else ())


def to_gemini_choice(choice: str | dict) -> dict:
    """Gemini's `toolConfig` for an OpenAI `tool_choice`."""
    if isinstance(choice, dict):
        config = {"mode": "ANY", "allowedFunctionNames": [choice["function"]["name"]]}
    else:
        config = {"mode": _CHOICE_WORDS[choice][1]}
    return {"functionCallingConfig": config}


def from_gemini_choice(choice: dict) -> str | dict:
    """The OpenAI spelling of a Gemini `toolConfig`; one of several names becomes "required"."""
    config = choice["functionCallingConfig"]
    return _openai_choice(config["mode"], config.get("allowedFunctionNames", ()))


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
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [part if isinstance(part, dict) else {"text": part} for part in content]
    texts = [part.get("text", f"[{part.get('type')}]") for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _openai_call(id: str, name: str, arguments: str) -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_message(id: str, text: str, failed: object) -> dict:
    message = {"role": "tool", "tool_call_id": id, "content": text}
    return {**message, "is_error": True} if failed else message


def _numbered(number: int) -> str:
    """An id of nine letters and digits: every known validator takes it (Mistral's is strictest)."""
    return f"call{number:05}"


def _tidy_assistant(message: dict, number: int) -> dict:
    """The message with `content`, and calls with an id and arguments as JSON text of an object."""
    result = {key: value for key, value in message.items() if value not in (None, [])}
    result["content"] = content_text(message.get("content"))
    if calls := message.get("tool_calls"):
        result["tool_calls"] = []
        for position, call in enumerate(calls, number):
            function = call.get("function") or {}
            text = _object_text(function.get("arguments"))
            tidy = _openai_call(call.get("id") or _numbered(position), "", text)
            function = {**function, "arguments": text}
            result["tool_calls"].append({**call, **tidy, "function": function})
    return result


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
    arguments as JSON text of an object; right behind a turn its results, one per call, in order.
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
    system, rounds, open_calls = "", [], iter(())
    for message in tidy_history(messages):
        role = "user"
        match message["role"]:
            case "system":
                system = message["content"]
                continue
            case "assistant":
                role, new = "assistant", message.get(key) or blocks(message)
                uses = [b for b in new if b.get("type") == "tool_use" or "functionCall" in b]
                open_calls = iter(uses)
            case "tool":
                new = [answer(message, next(open_calls))]
            case _:
                new = blocks(message)
        if role == "user" and rounds and rounds[-1][0] == "user":
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


def _assistant(text: str, calls: list[dict], key: str, own: list[dict], blocks: Callable) -> dict:
    """An assistant message; the vendor's blocks are kept where text and calls do not say all."""
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return message if blocks(message) == own else {**message, key: own}


def from_anthropic_messages(system: str | list, messages: list[dict]) -> list[dict]:
    """The OpenAI message list of a Messages request."""
    result = [{"role": "system", "content": content_text(system)}] if system else []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            text = "".join(b["text"] for b in blocks if b["type"] == "text")
            calls = [
                _openai_call(b["id"], b["name"], json_text(json_value(b["input"])))
                for b in blocks if b["type"] == "tool_use"
            ]
            result.append(_assistant(text, calls, ANTHROPIC_BLOCKS, blocks, _anthropic_blocks))
            continue
        for answer in (b for b in blocks if b["type"] == "tool_result"):
            text = content_text(answer.get("content"))
            result.append(_tool_message(answer["tool_use_id"], text, answer.get("is_error")))
        if rest := [b for b in blocks if b["type"] != "tool_result"]:
            _add_user(result, content_text(rest))
    return result


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


def from_gemini_contents(system: str, contents: list[dict]) -> list[dict]:
    """The OpenAI message list of a generateContent request; responses answer calls by position."""
    result, number, waiting = [{"role": "system", "content": system}] if system else [], 0, iter(())
    for content in contents:
        parts = content["parts"]
        if content.get("role") == "model":
            found = [part["functionCall"] for part in parts if "functionCall" in part]
            calls = [
                _openai_call(
                    call.get("id") or _numbered(i), call["name"],
                    json_text(json_value(call.get("args") or {})),
                )
                for i, call in enumerate(found, number)
            ]
            text = "".join(p["text"] for p in parts if "text" in p and not p.get("thought"))
            result.append(_assistant(text, calls, GEMINI_PARTS, parts, _gemini_parts))
            number, waiting = number + len(calls), iter(calls)
            continue
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        for response in (answer["response"] for answer in answers):
            value = response.get("output", response.get("error", response))
            text = value if isinstance(value, str) else json_text(value)
            result.append(_tool_message(next(waiting)["id"], text, "error" in response))
        if rest := [part for part in parts if "functionResponse" not in part]:
            _add_user(result, content_text(rest))
    return result


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 10  文本协议 Text formats      uses §1, §3 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A model without native calls writes them into its text, each family in its own way. One row of
# TEXT_FORMATS is one way; a few readers serve all rows. Reasoning is set aside first: what a model
# only considered is never run. A marker of a family is trusted; bare JSON or Python runs only as
# the whole answer, with names and arguments that fit the tools on offer. Code fences and `quoted`
# markers show a call, they do not make one. What cannot be read stays text; nothing here raises, or
# takes more than linear time. Patterns are kept as text, for `re` to compile when first used: all
# at import would take 10 ms. Sources: the chat templates and format pages of the families.

MOST_MISSES = 16  # long looks that led nowhere; a text with more of them is not trying to call
MENDED_CHARACTERS = 20_000  # of JSON or Python that is only nearly right

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_ID_KEYS = ("id", "tool_call_id", "call_id")
_CALL_KEYS = frozenset((*_NAME_KEYS, *_ARGUMENT_KEYS, *_ID_KEYS, "type", "index"))
_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")  # OpenAI, Anthropic, MCP


class TextParse(NamedTuple):
    """A reply taken apart: what is left to show, and the calls in the order they were written."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    format: str = ""  # the row of TEXT_FORMATS that read the first call
    reasoning: str = ""


class _Reading:
    """What the readers of one reply share: the tools, and how often a long look led nowhere."""

    def __init__(self, tools: Iterable[dict] | None, *, cut: bool = False):
        plain = [tool.get("function") or tool for tool in tools or ()]
        self.schemas = {
            tool["name"]: next((tool[key] for key in _SCHEMA_KEYS if key in tool), None) or {}
            for tool in plain if "name" in tool
        }
        self.any_tool, self.cut = tools is None, cut
        self.bare = False  # in an answer without markers only exact calls count
        self.begin = 0  # of the answer, behind the reasoning
        self.closer = ""  # of the block that is being read
        self.misses = 0

    def parameters(self, name: str) -> dict[str, SchemaRules]:
        """The parameters of a tool, also behind `$ref` and unions; {} when it is not known."""
        return _properties(compile_schema(self.schemas.get(name, {})).bodies({}))

    def fits(self, call: ToolCall) -> bool:
        """True when the call names a tool on offer and uses only parameters it has."""
        known = call.name in self.schemas and isinstance(call.arguments, dict)
        return known and call.arguments.keys() <= self.parameters(call.name).keys()


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
    last = max(0, len(text) - 200)
    return (text[:last] + re.sub(rf"(?:\s*(?:{_END_TOKEN}))+\s*\Z", "", text[last:])).rstrip()


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


def _parsed(arguments: object) -> object:
    """The arguments as an object, or what the model wrote when they are none."""
    try:
        return parse_arguments(arguments)
    except ArgumentsError:
        return arguments


def _new_call(reading: _Reading, name: str, arguments: object, *, id: object = "") -> ToolCall:
    """A call with its arguments as a dict, or as the model's own text where that is no object."""
    arguments = _parsed(arguments)
    match arguments:  # DeepSeek V3.2 may wrap them once more: {"input": "{…}"}
        case {"arguments": inner, **rest} | {"input": inner, **rest} if not rest:
            inner, known = _parsed(inner), reading.parameters(name).keys()
            if known and isinstance(inner, dict) and inner.keys() <= known:
                arguments = inner
        case dict() | str():
            pass
        case _:
            arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id if isinstance(id, str) else "", name, arguments)


def _call_from(entry: object, reading: _Reading) -> ToolCall | None:
    """The call that a JSON object spells under any of the known keys; None when it spells none."""
    if isinstance(entry, dict) and isinstance(entry.get("function"), dict):
        entry = {**entry, **entry["function"]}
    if not isinstance(entry, dict) or (reading.bare and not entry.keys() <= _CALL_KEYS):
        return None
    name = clean_name(next((entry[k] for k in _NAME_KEYS if isinstance(entry.get(k), str)), ""))
    given = [entry[key] for key in _ARGUMENT_KEYS if key in entry]
    if not name or (reading.bare and not given):
        return None
    call_id = next((entry[key] for key in _ID_KEYS if entry.get(key)), "")
    return _new_call(reading, name, given[0] if given else None, id=call_id)


def _calls_from(value: object, reading: _Reading) -> list[ToolCall]:
    """The calls of one JSON value, an object or a list; [] unless all of it is calls."""
    calls = [_call_from(v, reading) for v in (value if isinstance(value, list) else [value])]
    if None in calls:
        return []
    return [call for call in calls if call.name != "directly-answer"]  # Command R's word for none


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
    with contextlib.suppress(ValueError, RecursionError):
        end = _DECODER.raw_decode(text, pos)[1]
        return _load_json(text[pos:end]), end  # §3 also refuses endless nesting and half characters
    if _match(r"\{\{[^{]", text, pos):  # Qwen2.5-Coder copies it from its own template
        if found := _json_at(text, pos + 1, reading):
            return found[0], found[1] + text.startswith("}", found[1])
    end = _closing(text, pos) if reading.misses <= MOST_MISSES else -1
    with contextlib.suppress(ArgumentsError):
        if end > 0:
            return parse_arguments('{"value":' + text[pos:end] + "}")["value"], end
    reading.misses += 1
    return None


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


def _loose(raw: str) -> object:
    """The JSON value that the text spells, or the text."""
    try:
        return _load_json(raw)
    except ValueError:
        return raw


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
        reading.misses += 1
        return None

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


def _python_literal(node: ast.expr) -> object:
    """The JSON value of a Python literal. Raises ValueError for anything that would be computed."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            if not isinstance(value, float) or math.isfinite(value):
                return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -_python_literal(node.operand)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_python_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(k, ast.Constant) for k in keys):
            return {str(k.value): _python_literal(v) for k, v in zip(keys, values)}
    raise ValueError("not a literal")


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
    with contextlib.suppress(ValueError, RecursionError):
        return ToolCall("", name, dict(zip(keys, map(_python_literal, values))))


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
    """The expressions in `source` and in its lists, mended if need be; [] if it is no Python."""
    import warnings

    attempts = [source]
    if len(source) <= MENDED_CHARACTERS:
        attempts.append(re.sub(_SLOPPY, _spelled_well, source))
    for attempt in attempts:
        with (
            contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # Python comments on odd escapes, on the console
            found = [getattr(statement, "value", None) for statement in ast.parse(attempt).body]
            lists = (v.elts if isinstance(v, (ast.List, ast.Tuple)) else [v] for v in found)
            return list(itertools.chain.from_iterable(lists))
    return []


def _read_python(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Calls, or lists of calls, up to the closer; without markers only a list."""
    if reading.bare and not text.startswith("[", pos):
        return None
    source = _body(text, pos, reading.closer)
    nodes = _python_nodes(source.strip())
    calls = [call for node in nodes if (call := _python_call(node, reading))]
    if calls and all(isinstance(node, ast.Call) for node in nodes):
        return pos + len(source), calls
    reading.misses += 1
    return None


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
    found = _json_at(body, 0, reading)
    if found and found[1] == len(body):
        call = _new_call(reading, clean_name(start[1]), found[0])
        return start.end() + len(source), [call]
    reading.misses += 1
    return None


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
    reading.misses += 1  # cut off
    return None


_REACT_CALL = (
    r"\**Action\**[:：]\**[ \t]*[`\"']?([\w.-]{1,200})[`\"']?[ \t]*\r?\n\s*"
    r"\**Action Input\**[:：]\**\s*(?:```(?:json)?\s*(?=\{))?"
)
_REACT_END = r"\n[ \t]*\**(?:Observation|Thought|Action|Final Answer)\**[:：]|\Z"
_INVENTED = r"\s*(?:```\s*)?(\**Observation\**[:：])?"


def _read_react(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Action and Action Input; a bare text is the tool's one required parameter.

    What follows `Observation:` is the model's invention and belongs to the block.
    """
    start = _match(_REACT_CALL, text, pos)
    line = max(reading.begin, text.rfind("\n", 0, pos) + 1)
    if not start or text[line:pos].strip():
        return None
    name = clean_name(start[1])
    if found := _json_at(text, start.end(), reading):
        call, end = _new_call(reading, name, found[0]), found[1]
    else:
        end = _search(_REACT_END, text, start.end() - 1).start()
        body = text[start.end():end].strip()
        call = _new_call(reading, name, body)
        own = compile_schema(reading.schemas.get(name, {})).own
        keys = list(own.get("required") or own.get("properties", ()))
        bare = isinstance(call.arguments, str)
        if (keys and not body) or (bare and reading.cut and end == len(text)):
            return None  # cut off
        if bare and (len(keys) > 1 or body.startswith(("{", "[", "`"))):
            return None  # text for one of several parameters, or JSON that is none
        if bare and name in reading.schemas:
            raw = body[1:-1] if re.fullmatch(r'"[^"\\]*"', body) else body
            call = call._replace(arguments={k: _typed(name, k, reading, str, raw) for k in keys})
    after = _match(_INVENTED, text, end)
    return len(text) if after[1] else after.end(), [call]


# --- the table: a row per way of writing ---


class TextFormat(NamedTuple):
    """Markers and reader of one family; several markers of a kind are separated by blanks.

    opens stand before one or more calls, closes may follow, begins are part of a call; a row
    without opens and begins is bare. known: the marker is also an ordinary word, and believed only
    for tools on offer.
    """

    read: Callable[[str, int, _Reading], _Block | None]
    opens: str = ""
    closes: str = ""
    begins: str = ""
    known: bool = False


_read_named = _json_reader(r"(?P<name>[\w.-]{1,200})[ \t]*\r?\n\s*")

TEXT_FORMATS = {
    # Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 3.1 and 4, xLAM
    "hermes": TextFormat(_read_calls, "<tool_call>", "</tool_call>"),
    # Qwen3-Coder, Qwen3.5, Nemotron 3; the outer tag is often missing behind Ollama
    "qwen3_coder": TextFormat(_read_xml, "<tool_call>", "</tool_call>"),
    "qwen3_coder_bare": TextFormat(_read_xml, "", "</tool_call>", "<function=", known=True),
    # GLM-4.5, 4.6, 4.7
    "glm4_5": TextFormat(_read_glm, "<tool_call>"),
    # Functionary 3.1, Llama 3 behind Groq (which loses a `>`); Functionary 3.2
    "functionary": TextFormat(
        _json_reader(r"<function=(?P<name>[^<>{\s]{1,200})>?\s*", r"\s*>?\s*</function>"),
        begins="<function=", known=True,
    ),
    "functionary_3_2": TextFormat(_read_named, ">>>", known=True),
    # Mistral up to Large 2407, xLAM; from tokenizer v11 on, with or without an id
    "mistral": TextFormat(_read_calls, "[TOOL_CALLS]"),
    "mistral_v11": TextFormat(
        _json_reader(
            r"(?P<name>[\w.-]{1,200})\s*(?:\[CALL_ID\]\s*(?P<id>\w{1,64})\s*)?(?:\[ARGS\])?\s*",
        ),
        "[TOOL_CALLS]",
    ),
    # Llama 3.1 to 3.3 with their token: JSON, or name.call(…)
    "llama3": TextFormat(_read_calls, "<|python_tag|>"),
    "llama3_built_in": TextFormat(_read_python, "<|python_tag|>", "\n", known=True),
    # DeepSeek V3-0324, R1-0528 (with the word function and a fence), V3.1 (without); V3.2
    "deepseek": TextFormat(
        _json_reader(
            r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]{1,200})\s*"
            r"(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?\s*)?",
            r"\s*(?:```\s*)?<｜tool▁call▁end｜>",
        ),
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    ),
    "deepseek_v3_2": TextFormat(
        _read_xml, "<｜DSML｜function_calls> <｜DSML｜tool_calls>",
        "</｜DSML｜function_calls> </｜DSML｜tool_calls>",
    ),
    "kimi_k2": TextFormat(
        _read_kimi, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
    ),
    # Granite 3.0, 3.2, 3.3 (always a list), 20B-FC
    "granite3": TextFormat(_json_reader(r"(?=\[)"), "<|tool_call|>", "<|/tool_call|>"),
    "granite_20b": TextFormat(_read_calls, "<function_call>", "</function_call>"),
    # Phi-4-mini, Firefunction v2
    "phi4": TextFormat(_json_reader(r"functools(?=\[)"), begins="functools["),
    # Command R7B and A; R and R+ of 2024
    "command_a": TextFormat(_read_calls, "<|START_ACTION|>", "<|END_ACTION|>"),
    "command_r": TextFormat(
        _json_reader(r"Action:\s*```(?:json)?\s*(?=\[)", r"\s*```"), begins="Action:", known=True,
    ),
    "react": TextFormat(
        _read_react, begins="Action: Action： **Action: **Action： **Action**:", known=True,
    ),
    "internlm": TextFormat(_read_calls, "<|action_start|> <|plugin|>", "<|action_end|>", "", True),
    # Jamba (a list), MiniMax M1 (one object per line); MiniMax M2, whose outer tag may be missing
    "jamba": TextFormat(_read_calls, "<tool_calls>", "</tool_calls>"),
    "minimax_m2": TextFormat(_read_xml, "<minimax:tool_call>", "</minimax:tool_call>"),
    "invoke": TextFormat(
        _read_xml, "<function_calls>", "</function_calls> </minimax:tool_call>", "<invoke",
        known=True,
    ),
    # FunctionGemma; Gemma 4; Gemma 3 and CodeGemma
    "functiongemma": TextFormat(_read_gemma, "<start_function_call>", "<end_function_call>"),
    "gemma4": TextFormat(_read_gemma, "<|tool_call>", "<tool_call|>"),
    "gemma3": TextFormat(_read_python, "```tool_code", "```", known=True),
    "gpt_oss": TextFormat(_read_harmony, begins="<|start|>assistant <|channel|> to=functions."),
    "llama4": TextFormat(_read_python, "<|python_start|>", "<|python_end|>"),
    # LFM2, LFM2.5, in Python or on request in JSON; Olmo 3 (one call per line)
    "lfm2": TextFormat(_read_python, "<|tool_call_start|>", "<|tool_call_end|>"),
    "lfm2_json": TextFormat(_read_calls, "<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": TextFormat(_read_python, "<function_calls>", "</function_calls>"),
    "glm4_marked": TextFormat(_read_named, "<|assistant|>", known=True),
    # Without a marker: Llama 3, xLAM and any small model; Llama 3.2 1B and 3B, ToolACE; GLM-4-9B
    "json": TextFormat(_json_reader(), closes="] </tool_call>"),
    "pythonic": TextFormat(_read_python),
    "glm4": TextFormat(_read_named),
}


# --- taking a reply apart ---


def _either(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


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
_FRAME = _either(_FRAMES)
_BEFORE_FRAME = r"(?:\s|<\|start\|>assistant(?=<\|channel\|>(?:analysis|commentary|final)<))*"
_LONE = ("</think>", "[/THINK]")  # without an opener: the template has already written it
_CITATION = r"</?co(?:: ?[\d:,\[\] ]{1,200})?>"  # Cohere: <co>5</co: 0:[0]>
_SHOWN = ("~~~", "`")  # around code: what stands between two runs of these is only shown
_QUOTING = r"""(?m)[`"“「『'‘(（]\Z|^[ \t]*[>*+•-][ \t]*\Z"""  # and what a line quotes or lists


def _is_quoted(text: str, pos: int) -> bool:
    """True when what stands right before `pos` says that what follows is only shown."""
    return bool(_search(_QUOTING, text[max(0, pos - 9):pos]))


_ROWS: dict[str, list[str]] = {}
for _name, _row in TEXT_FORMATS.items():
    for _marker in f"{_row.opens} {_row.begins}".split():
        _ROWS.setdefault(_marker, []).append(_name)
_MARKER = _either((*_ROWS, *_LONE, *_SHOWN))


def _read_block(row: TextFormat, text: str, pos: int, reading: _Reading) -> _Block | None:
    """All calls of one block that starts at `pos`, with the markers around them."""
    end, calls, reading.closer = pos, [], row.closes
    for opener in row.opens.split():
        if text.startswith(opener, end):
            end = _skip(text, end + len(opener))
    while (block := row.read(text, _skip(text, end), reading)) and block[1]:
        end = block[0]
        calls += block[1]
    if row.known and not reading.any_tool and any(c.name not in reading.schemas for c in calls):
        reading.misses += 1
        return None
    after = _skip(text, end)
    closer = next((word for word in row.closes.split() if text.startswith(word, after)), "")
    return (after + len(closer) if closer else end, calls) if calls else None


class _Scan:
    """One walk over a reply that sorts it into text, reasoning and calls."""

    def __init__(self, text: str, reading: _Reading, *, keep_calls: bool = False):
        self.text, self.reading, self.keep_calls = text, reading, keep_calls
        self.said: list[str] = []
        self.thought: list[str] = []
        self.calls: list[ToolCall] = []
        self.format = ""
        self.begin = 0  # of the text that is not sorted yet

    def enter(self, pos: int) -> int:
        """Take the frames at the start of an answer; returns where its text begins."""
        blank = functools.partial(_match, _BEFORE_FRAME, self.text)
        while frame := _match(_FRAME, self.text, blank(pos).end()):
            closes, holds = _FRAMES[frame[0]]
            stop = _search(closes, self.text, frame.end())
            inside = self.text[frame.end():stop.start() if stop else None].strip()
            pos = stop.end() if stop else len(self.text)
            part = self.thought if holds == "reasoning" else self.said
            part.append(re.sub(_CITATION, "", inside))
        self.begin = self.reading.begin = pos
        return pos

    def leave(self, end: int | None = None) -> None:
        """Keep the text up to a call or the end, without the blanks around calls and frames."""
        piece = self.text[self.begin:end]
        if self.calls and end is None:
            piece = _without_end(piece)
        piece = piece.lstrip() if self.begin else piece
        self.said.append(piece if end is None else piece.rstrip())

    def marker(self, marker: str, at: int) -> int:
        """Act on a marker; returns where to look on."""
        after = at + len(marker)
        if marker in _SHOWN:
            fence = _match(f"{marker[0]}+", self.text, at)[0]  # ```` may hold ```
            after = at + len(fence)
            end = self.text.find(fence, after)
            whole = end > 0 and (len(fence) > 2 or "\n" not in self.text[after:end])
            return end + len(fence) if whole else after
        quoted = _is_quoted(self.text, at)
        if marker in _LONE:
            if self.thought or quoted:
                return after
            self.thought, self.said, self.calls = [self.text[:at].strip()], [], []
            return self.enter(after)
        for name in () if quoted else _ROWS[marker]:
            if block := _read_block(TEXT_FORMATS[name], self.text, at, self.reading):
                if self.keep_calls:
                    return block[0]
                self.leave(at)
                self.format = self.format if self.calls else name
                self.calls += block[1]
                return self.enter(block[0])
        return after

    def parse(self) -> TextParse:
        """Walk to the end; the calls have no ids of ours yet."""
        look = self.enter(0)
        while (found := _search(_MARKER, self.text, look)) and self.reading.misses <= MOST_MISSES:
            look = self.marker(found[0], found.start())
        self.leave()
        text, thought = ("\n".join(filter(None, part)) for part in (self.said, self.thought))
        return TextParse(text, tuple(self.calls), self.format if self.calls else "", thought)


def _take_apart(text: str, tools: Iterable[dict] | None, *, cut: bool = False) -> TextParse:
    """The reply as text, calls and reasoning; the calls have no ids of ours yet."""
    reading = _Reading(tools, cut=cut)
    parts = _Scan(text, reading).parse()
    said = _without_end(parts.text).lstrip()
    if parts.calls or not said:
        return parts
    fenced = _match(r"(?s)```(?:[\w-]*\s)?((?:(?!```).)*)```\Z", said)
    answer = fenced[1].strip() if fenced else said
    if fenced and answer.startswith(("<", "[", ">")):
        inner = _Scan(answer, reading).parse()
        if inner.calls and not inner.text:
            return inner._replace(reasoning=parts.reasoning)
    reading.bare = True
    for name, row in TEXT_FORMATS.items():
        block = None if row.opens or row.begins else _read_block(row, answer, 0, reading)
        if block and block[0] == len(answer) and all(map(reading.fits, block[1])):
            return TextParse("", tuple(block[1]), name, parts.reasoning)
    return parts


def with_ids(calls: Iterable[ToolCall], used_ids: Iterable[str] = ()) -> tuple[ToolCall, ...]:
    """The calls with ids that are there, differ, and are not in `used_ids`.

    An id of ours is 9 letters and digits, which every server accepts (Mistral is the strictest).

    >>> [call.id for call in with_ids([ToolCall("", "f", {}), ToolCall("x", "f", {})], ["x"])]
    ['call00001', 'call00002']
    """
    used, result = set(used_ids), []
    fresh = (f"call{number:05}" for number in itertools.count(1))
    for call in calls:
        if not isinstance(call.id, str) or not call.id.strip() or call.id in used:
            call = call._replace(id=next(word for word in fresh if word not in used))
        used.add(call.id)
        result.append(call)
    return tuple(result)


def parse_text_tool_calls(
    text: str, tools: Iterable[dict] | None = None, *, used_ids: Iterable[str] = (), cut=False,
) -> TextParse:
    """The calls a model wrote into its text, and the text that is left.

    `tools` are the definitions the model was shown ({"name", "description", "parameters"}); None
    means they are not known, and then only marked calls count. `cut`: a limit ended the text, so
    that its last word may be half of one. Text without a call comes back as it was; beside calls it
    comes without reasoning and markers.

    >>> parse_text_tool_calls('好。<tool_call>{"name": "now", "arguments": {}}</tool_call>')[:2]
    ('好。', (ToolCall(id='call00001', name='now', arguments={}, extra=None),))
    """
    parts = _take_apart(text, tools, cut=cut)
    return parts._replace(calls=with_ids(parts.calls, used_ids)) if parts.calls else TextParse(text)


def split_reasoning(text: str) -> tuple[str, str]:
    """(answer, reasoning) of a reply whose reasoning stands in its text; calls stay in the answer.

    >>> split_reasoning("2+3 是 5</think>答案是 5")
    ('答案是 5', '2+3 是 5')
    """
    parts = _Scan(text, _Reading(None), keep_calls=True).parse()
    return parts.text, parts.reasoning


# --- the same while it streams ---

_CALL_BEGINS, _TEXT_ENDS = _either(_ROWS), _either((*_ROWS, *_LONE))
_ENDS = (*_ROWS, *_LONE, "<|END_THINKING|>", "<channel|>", "<|end|>", "<|start|>")
_LONGEST = max(map(len, _ENDS))
_BEGUN = rf"(?:{_either({word[:n] for word in _ENDS for n in range(1, len(word))})})\Z"
_BARE = (
    r"\{\s*(?:\Z|[\"'{])|\[\s*(?:\Z|\{|[\w.]+\s*(?:\Z|\())"
    r"|[\w.-]+[ \t]*(?:\Z|\r?\n\s*(?:\Z|\{))"
)
_PERHAPS_BARE = rf"{_BARE}|`{{1,2}}\Z|```[\w-]*\s*(?:\Z|[<>]|{_BARE})"
_UNDECIDED = 256  # characters; what may still be bare JSON by then is held to the end


class TextStream:
    """Takes a reply in pieces and tells what may be shown: all that stands before a possible call.

    `feed` and `close` return (kind, piece) pairs, kind "text" or "reasoning"; ("again", "") says
    that the text so far was reasoning, as a lone </think> has shown. After `close`,
    `parts` is what the whole reply holds, however it was cut into pieces.
    """

    def __init__(self, tools: Iterable[dict] | None = None):
        self.parts = TextParse("")
        self._tools = tools
        self._whole: list[str] = []
        self._shown: list[str] = []  # of the text
        self._blanks: list[str] = []  # after what was shown: dropped when a call follows
        self._pending = ""  # may become a marker
        self._kind = "start"  # then "reasoning" or "text"; "held": all to the end
        self._closes = ""  # pattern of what ends the reasoning or the text
        self._thought = False

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """Take a piece; returns what may be shown now."""
        out: list[tuple[str, str]] = []
        self._whole.append(piece)
        if not self._pending and piece.isspace():
            self._blanks.append(piece)
            return out
        self._pending += piece
        while self._enter() if self._kind == "start" else self._show(out):
            pass
        return out

    def close(self) -> list[tuple[str, str]]:
        """Returns what is left to show at the end of the reply."""
        self.parts = _take_apart("".join(self._whole), self._tools)
        shown = "".join(self._shown)
        again = [] if self.parts.text.startswith(shown) else [("again", "")]
        left = self.parts.text[0 if again else len(shown):]
        thought = self._pending if self._kind == "reasoning" else ""
        return again + [pair for pair in (("reasoning", thought), ("text", left)) if pair[1]]

    def _enter(self) -> bool:
        """An answer begins: with a frame, with what may be a bare call, or as text?"""
        head = self._pending.lstrip()
        if frame := _match(_FRAME, head):
            closes, holds = _FRAMES[frame[0]]
            self._go_on("reasoning" if holds == "reasoning" else "held", head[frame.end():])
            self._closes = closes
            return True
        half_a_frame = any(word.startswith(head) for word in _FRAMES)
        if not head or half_a_frame or _match(_PERHAPS_BARE, head):
            self._kind = "start" if len(head) < _UNDECIDED else "held"
            return False
        if self._thought:
            self._go_on("text", head)
        self._kind, self._closes = "text", _CALL_BEGINS if self._thought else _TEXT_ENDS
        return True

    def _go_on(self, kind: str, pending: str) -> None:
        """What came before is reasoning; the blanks after it are nobody's."""
        self._kind, self._pending, self._thought = kind, pending, True
        self._blanks.clear()

    def _show(self, out: list) -> bool:
        """Hand over text or reasoning up to what may end it; True when something else begins."""
        if self._kind == "held":
            self._pending = ""
            return False
        found = _search(self._closes, self._pending)
        if not found or (self._kind == "text" and found[0] not in _LONE):
            tail = max(0, len(self._pending) - _LONGEST)
            stop = found or _search(_BEGUN, self._pending, tail)
            self._emit(stop.start() if stop else len(self._pending), out)
            self._kind = "held" if found else self._kind
            return bool(found)
        said = "".join(self._shown) + self._pending[:found.start()]
        if self._kind == "text" and ("`" in said or "~~~" in said or _is_quoted(said, len(said))):
            self._kind = "held"  # perhaps only shown, in code or in quotes
            return True
        rest = self._pending[found.end():]
        if self._kind == "text":  # all of it was reasoning
            self._shown.clear()
            out.append(("again", ""))
        else:
            self._emit(found.start(), out)
        self._go_on("start", rest)
        return True

    def _emit(self, length: int, out: list) -> None:
        """Hand over that much, but keep the blanks at its end."""
        piece, self._pending = self._pending[:length], self._pending[length:]
        body = piece.rstrip()
        if body:
            out.append((self._kind, "".join(self._blanks) + body))
            self._shown += [out[-1][1]] if self._kind == "text" else []
            self._blanks.clear()
        self._blanks.append(piece[len(body):])


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
# Sources: WHATWG HTML 9.2.6; OpenAI Chat Completions and Anthropic Messages references.


# --- bytes → events ---


def _sse_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that end in CR, LF or CRLF, however the chunks are cut; an open one is lost."""
    held, after_cr = [], False
    for chunk in chunks:
        if not chunk:
            continue
        if after_cr:
            chunk = chunk.removeprefix(b"\n")
        after_cr = chunk.endswith(b"\r")
        for line in chunk.splitlines(keepends=True):
            held.append(line.rstrip(b"\r\n"))
            if line.endswith((b"\r", b"\n")):
                yield b"".join(held)
                held = []


def sse_events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each server-sent event; one without its blank line was cut off and is dropped.

    >>> list(sse_events([b": ping\\r", b"\\ndata:{\\ndata: }\\n\\ndata: half"]))
    ['{\\n}']
    """
    data: list[str] = []
    for number, line in enumerate(_sse_lines(chunks)):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
        field, _, value = line.decode("utf-8", "replace").partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif not line:
            if text := "\n".join(data):
                yield text
            data = []


# --- what both folds share ---

Pieces = list[tuple[str, str]]  # (kind, piece) to show: kind "text" or "reasoning"


def _as(kind: type, value: object) -> Any:
    """The value if it is of that kind, else an empty one: what servers send has any shape."""
    return value if isinstance(value, kind) else kind()


_dict, _list, _text = (functools.partial(_as, kind) for kind in (dict, list, str))


def _number(mapping: dict, *keys: str) -> int:
    """The first whole number under one of the keys, else 0."""
    found = (mapping[key] for key in keys if type(mapping.get(key)) is int)
    return max(0, next(found, 0))


def _broken(words: str, turn: Turn) -> BackendError:
    error = BackendError(words)
    error.turn = turn
    return error


class _Fold:
    """Text, reasoning, usage and ending of a reply while it arrives.

    A wire format adds `feed`, `_calls` (as they came) and `_extra` (what has to go back with them).
    `done`: the server has said that the reply is complete; a transport that saw [DONE] sets it, or
    feeds {"done": True}. `turn` may be asked for more than once.
    """

    def __init__(self, used_ids: Iterable[str] = ()):
        self.done, self.finish = False, ""
        self.usage: Usage | None = None
        self._used_ids = list(used_ids)
        self._said: list[str] = []
        self._thought: list[str] = []

    def _add(self, kind: str, piece: str) -> Pieces:
        """Keep a piece; returns it for the screen."""
        if not piece:
            return []
        (self._said if kind == "text" else self._thought).append(piece)
        return [(kind, piece)]

    def _assembled(self) -> Turn:
        text, thought = split_reasoning("".join(self._said))
        calls = with_ids(self._calls(), self._used_ids)
        finish = self.finish or "stop"
        if finish != "length":  # the calls decide: this word is often wrong
            finish = "tool_calls" if calls else "stop" if finish == "tool_calls" else finish
        thought = "\n".join(filter(None, ["".join(self._thought), thought]))
        return Turn(text, calls, finish, self.usage, thought, self._extra(calls))

    def turn(self) -> Turn:
        """The whole reply. Raises BackendError, its `turn` being what came, when it ended early.

        Without an end a reply counts only if it has calls and the arguments of all are complete. A
        call that the length limit cut off stays, with finish "length": the loop will not run it.
        """
        turn = self._assembled()
        texts = [call.arguments for call in turn.calls]
        whole = (str(each).strip() and isinstance(_parsed(each), dict) for each in texts)
        if not self.done and not (texts and all(whole)):
            raise _broken("回答没有结束，连接就断了", turn)
        return turn

    def _check(self, chunk: dict) -> None:
        """Raise BackendError when the chunk is an error instead of a piece of the reply."""
        error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
        if error:
            words = _text(_dict(error).get("message")) or _text(error) or show(error, 300)
            code = _dict(error).get("code") or _dict(error).get("type")
            words += f"（{code}）" if code else ""
            raise _broken(f"模型服务报错：{words}", self._assembled())


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
                    yield "reasoning", _text(_dict(piece).get("text")) or _text(piece)
            case {"text": str(text)} | str(text):
                yield "text", text


def _objects(text: str) -> list[str]:
    """The JSON objects one after another where a proxy has merged calls, else the text alone."""
    found, pos = [], _skip(text)
    try:
        while pos < len(text):
            value, end = json.JSONDecoder().raw_decode(text, pos)
            if not isinstance(value, dict):
                return [text]
            found.append(text[pos:end])
            pos = _skip(text, end)
    except (ValueError, RecursionError):
        return [text]
    return list(dict.fromkeys(found)) if len(found) > 1 else [text]


class _Slot:
    """A call while it arrives."""

    def __init__(self, index: object):
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


def _openai_usage(usage: dict) -> Usage:
    details = _dict(usage.get("prompt_tokens_details"))
    return Usage(
        _number(usage, "prompt_tokens", "input_tokens"),
        _number(usage, "completion_tokens", "output_tokens"),
        _number(details, "cached_tokens") or _number(usage, "prompt_cache_hit_tokens"),
    )


_FINISH_REASONS = {  # of old APIs, Mistral, Anthropic, Gemini and gateways → the usual words
    "function_call": "tool_calls", "tool_use": "tool_calls", "end_turn": "stop", "STOP": "stop",
    "stop_sequence": "stop", "max_tokens": "length", "model_length": "length",
    "MAX_TOKENS": "length",
}


class OpenAIFold(_Fold):
    """Chat completion chunks, or one whole reply, folded into a Turn."""

    def __init__(self, used_ids: Iterable[str] = ()):
        super().__init__(used_ids)
        self._slots: list[_Slot] = []
        self._by_id: dict[str, _Slot] = {}
        self._by_index: dict[int, _Slot] = {}
        self._reasoning_key = ""

    def feed(self, chunk: dict) -> Pieces:
        """Take one chunk; returns what came to show. Raises BackendError for an error chunk."""
        self._check(chunk)
        choice = _dict(next(iter(_list(chunk.get("choices"))), chunk))
        for usage in (_dict(chunk.get("usage")), _dict(choice.get("usage"))):
            if usage:
                self.usage = _openai_usage(usage)
        delta = _dict(choice.get("delta"))
        if whole := not delta and isinstance(choice.get("message"), dict):
            delta, self.done = choice["message"], self.done or "choices" in chunk
        self.done = self.done or chunk.get("done") is True  # Ollama's own format
        if reason := _text(choice.get("finish_reason") or choice.get("done_reason")):
            self.finish, self.done = _FINISH_REASONS.get(reason, reason), True
        entries = _list(delta.get("tool_calls"))
        if isinstance(delta.get("function_call"), dict):
            entries = [*entries, {"function": delta["function_call"]}]
        touched: list[_Slot] = []
        for position, entry in enumerate(map(_dict, entries)):
            self._take(entry, position if whole else entry.get("index"), touched)
        pieces = self._reasoning(delta)
        for kind, text in _content_pieces(delta.get("content") or delta.get("refusal")):
            pieces += self._add(kind, text)
        return pieces

    def _reasoning(self, delta: dict) -> Pieces:
        key = next((key for key in _REASONING_KEYS if _text(delta.get(key))), "")
        self._reasoning_key = self._reasoning_key or key
        return self._add("reasoning", _text(delta.get(self._reasoning_key)))

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
        self._by_index[index] = self._by_id[slot.id] = slot

    def _found(self, index: int | None, call_id: str, name: str) -> _Slot | None:
        """The call that an entry seems to continue; servers leave out or repeat ids and indexes."""
        same_id = self._by_id.get(call_id) if call_id else None
        old = self._by_index.get(index) if index is not None else None
        if old is None and index is None:
            last = self._slots[-1] if self._slots else None
            opens = call_id and (name or (last and last.id))
            old = same_id or (None if opens else last)
        if not name:
            return same_id or old
        if old and call_id and old.id not in ("", call_id):  # Ollama up to 0.20: every index is 0
            return same_id
        return old

    def _calls(self) -> list[ToolCall]:
        slots, indexes = self._slots, [slot.index for slot in self._slots]
        if len({*map(repr, indexes)}) == len(slots) and all(type(i) is int for i in indexes):
            slots = sorted(slots, key=lambda slot: slot.index)
        return [call for slot in slots for call in slot.calls()]

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """The reasoning under its own key: DeepSeek wants it back on turns that call."""
        thought = "".join(self._thought)
        return {self._reasoning_key: thought} if calls and thought and self._reasoning_key else None


# --- Anthropic Messages ---

_DELTAS = {  # the type of a delta → (its field, the field of the block)
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}


def _is_use(block: dict) -> bool:
    return block.get("type") == "tool_use" and bool(clean_name(_text(block.get("name"))))


class AnthropicFold(_Fold):
    """Events of the Messages API, or one whole message, folded into a Turn."""

    def __init__(self, used_ids: Iterable[str] = ()):
        super().__init__(used_ids)
        self._blocks: dict[object, dict] = {}
        self._pieces: dict[tuple, list[str]] = {}  # (index, field) → what the deltas added
        self._counts: dict = {}

    def feed(self, event: dict) -> Pieces:
        """Take one event; returns what came to show. Raises BackendError for an error event."""
        self._check(event)
        match event.get("type"):
            case "message_start":
                self._count(_dict(event.get("message")))
            case "content_block_start":
                return self._open(event.get("index"), _dict(event.get("content_block")))
            case "content_block_delta":
                return self._extend(event.get("index"), _dict(event.get("delta")))
            case "message_delta":
                self._count(event)
                self._stop(_dict(event.get("delta")))
            case "message_stop":
                self.done = True
            case "message":
                self._count(event)
                self._stop(event)
                self.done = True
                blocks = enumerate(map(_dict, _list(event.get("content"))))
                return [pair for index, block in blocks for pair in self._open(index, block)]
        return []

    def _count(self, holder: dict) -> None:
        """Usage is cumulative; the prompt is what was read anew, from the cache and into it."""
        if not (usage := _dict(holder.get("usage"))):
            return
        counts = self._counts
        counts |= {key: value for key, value in usage.items() if value is not None}
        cached = _number(counts, "cache_read_input_tokens")
        fresh = _number(counts, "input_tokens") + _number(counts, "cache_creation_input_tokens")
        self.usage = Usage(fresh + cached, _number(counts, "output_tokens"), cached)

    def _stop(self, holder: dict) -> None:
        if reason := _text(holder.get("stop_reason")):
            self.finish, self.done = _FINISH_REASONS.get(reason, reason), True

    def _open(self, index: object, block: dict) -> Pieces:
        self._blocks[repr(index)] = dict(block)
        thought = self._add("reasoning", _text(block.get("thinking")))
        return thought + self._add("text", _text(block.get("text")))

    def _extend(self, index: object, delta: dict) -> Pieces:
        block = self._blocks.setdefault(repr(index), {"type": "text", "text": ""})
        if isinstance(delta.get("citation"), dict):
            block["citations"] = [*_list(block.get("citations")), delta["citation"]]
        field, target = _DELTAS.get(_text(delta.get("type")), ("", ""))
        if piece := _text(delta.get(field)):
            self._pieces.setdefault((repr(index), target), []).append(piece)
        kind = {"text": "text", "thinking": "reasoning"}.get(field)
        return self._add(kind, piece) if kind else []

    def _whole_blocks(self) -> list[dict]:
        """The blocks as one message would have had them; `input` is text where it was streamed."""
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, field), pieces in self._pieces.items():
            begun = _text(blocks[index].get(field))  # never of `input`: that begins as {}
            blocks[index][field] = begun + "".join(pieces)
        return list(blocks.values())

    def _calls(self) -> list[ToolCall]:
        return [
            ToolCall(_text(block.get("id")), clean_name(block["name"]), block.get("input") or {})
            for block in self._whole_blocks() if _is_use(block)
        ]

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """All blocks, unchanged and in order, where text and calls do not say everything."""
        blocks, waiting = self._whole_blocks(), iter(calls)
        if {_text(block.get("type")) for block in blocks} <= {"text", "tool_use"}:
            return None
        for block in filter(_is_use, blocks):
            call = next(waiting)
            block |= {"id": call.id, "name": call.name, "input": _dict(_parsed(call.arguments))}
        return {ANTHROPIC_BLOCKS: blocks}


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 12  循环 Loop      uses §1, §3, §4 · threads, no print
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# ask the model → run what it calls → hand the results back → ask again, until it answers in text.
# The loop yields events and prints nothing. Whatever happens (limit, time-out, Ctrl-C), every call
# in the history has exactly one result at every instant, in call order: the assistant message and
# the places of its results are added in one step, and a place only ever changes its text.

CALLS_PER_TURN = 32  # a runaway model can write thousands of calls in one answer
PARALLEL = 8  # tools running at the same time
SLICE = 0.5  # seconds of one wait; Windows notices Ctrl-C only between two waits

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


def _argument_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json_text(json_value(arguments))


def _wire_call(call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": _argument_text(call.arguments)}
    own = {"id": call.id, "type": "function", "function": function}
    return {**own, **(call.extra or {}), **own}  # unknown keys may not replace known ones


def assistant_message(turn: Turn) -> dict:
    """The OpenAI assistant message of a turn; arguments become a JSON string again."""
    calls = [_wire_call(call) for call in turn.calls]
    own = {"role": "assistant", "content": turn.text, "tool_calls": calls}
    message = {**own, **(turn.extra or {}), **own}
    if not calls:
        del message["tool_calls"]
    return message


def tool_message(call: ToolCall, result: ToolResult) -> dict:
    """The OpenAI tool message that answers `call`; `is_error` is for vendors that ask for it."""
    message = {"role": "tool", "tool_call_id": call.id, "content": result.text}
    return {**message, "is_error": True} if result.is_error else message


def _sound_call(call: ToolCall, used: set[str]) -> ToolCall:
    names = (text if isinstance(text, str) else show(text) for text in (call.id, call.name))
    id, name, arguments = map(_whole, (*names, _argument_text(call.arguments)))
    fresh = (f"call{number:05}" for number in itertools.count(len(used)))
    id = next(id for id in itertools.chain([id], fresh) if id.strip() and id not in used)
    used.add(id)
    extra = call.extra and json_value(dict(call.extra))
    return ToolCall(id, name if name.strip() else "unnamed", arguments, extra)


def _sound_turn(turn: Turn, used: set[str]) -> Turn:
    """The turn as history can hold it: UTF-8, arguments as JSON text, whole numbers of tokens.

    Servers refuse a history that holds an id twice: one that is blank or in `used` is replaced.
    """
    try:
        text, finish, reasoning = (
            _whole(said or "") for said in (turn.text, turn.finish or "stop", turn.reasoning)
        )
        calls = tuple(_sound_call(call, used) for call in turn.calls or ())
        usage = turn.usage and Usage(*(n if type(n) is int and n > 0 else 0 for n in turn.usage))
        extra = turn.extra and json_value(dict(turn.extra))
        return Turn(text, calls, finish, usage, reasoning, extra)
    except Exception as error:
        raise BackendError(f"模型的回答不是合格的 Turn：{error_text(error)}") from error


def call_key(call: ToolCall) -> tuple[str, str]:
    """Name and canonical arguments: equal for calls that ask for the same thing."""
    try:
        arguments = json_value(parse_arguments(call.arguments))
    except ArgumentsError:
        arguments = str(call.arguments)
    return str(call.name), json.dumps(arguments, sort_keys=True)


_NO_TOOL = Tool("", "", {}, run=dict)  # stands for a name that no tool has


class _Job:
    """One call on its way: tool, deadline and Ctrl-C race, and the first to finish counts."""

    def __init__(self, call: ToolCall, tool: Tool | None, limits: Limits):
        self.call, self.tool, self.key = call, tool or _NO_TOOL, call_key(call)
        self.limit = self.tool.seconds or limits.seconds
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

    def wait(self, begin: float) -> None:
        """Return when it has a result; when its time is up, counted from `begin`, that is it."""
        end = begin + (self.limit or math.inf)
        while not self.done.wait(max(0.0, min(SLICE, end - time.monotonic()))):
            if time.monotonic() < end:
                continue
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
                begin = clock() if clock else 0.0
                self.outcome = tools.call(self.call, characters=characters)
                seconds = clock() - begin if clock else None
            except BaseException as error:  # a thread that dies would never finish
                text = f"执行出错：{error_text(error)}"
                self.outcome = self.outcome or ToolResult(text, "failed")
            self.finish(self.outcome, seconds)


def _start(jobs: list[_Job], tools: ToolRegistry, characters: int | None, clock) -> None:
    """Start every open job at once in daemon threads.

    Not an executor: an executor waits at exit for a tool that never returns.
    """
    parallel, one_by_one = threading.Semaphore(PARALLEL), threading.Semaphore(1)
    for job in jobs:
        slots = one_by_one if job.tool.acts else parallel
        work = (contextvars.copy_context().run, job.work, tools, characters, slots, clock)
        threading.Thread(target=work[0], args=work[1:], daemon=True).start()


class _Memory:
    """What was called before: finds the model that asks the same thing turn after turn."""

    def __init__(self):
        self.streak: dict[tuple[str, str], int] = {}  # in how many turns in a row
        self.ran: list[_Job] = []

    def count(self, jobs: Iterable[_Job]) -> int:
        """Note one turn's calls; returns the longest streak among them."""
        keys = {job.key for job in jobs if "live" not in job.tool.labels}
        self.streak = {key: self.streak.get(key, 0) + 1 for key in keys}
        return max(self.streak.values(), default=0)

    def answer(self, job: _Job) -> ToolResult | None:
        """The result of a call that must not run now, or need not run again."""
        same_tool = [old for old in self.ran if old.call.name == job.call.name]
        if job.tool.acts and any(old.outcome is None for old in same_tool):
            text = "这个工具上次超时后还没有结束，操作可能仍会发生；这次没有执行，请如实告诉用户。"
            return ToolResult(text, "limited")
        old = next((old for old in reversed(same_tool) if old.key == job.key), job)
        if "live" in job.tool.labels or old.outcome is None or old.outcome.is_error:
            return None
        late = old.outcome is not old.result
        if not late and self.streak[job.key] < 2:
            return None
        return old.outcome._replace(text=f"{old.outcome.text}\n{LATE if late else REPEATED}")


def _cut_off(turn: Turn, index: int) -> bool:
    """True when the answer ended at the token limit inside this call, its last one."""
    if turn.finish != "length" or index < len(turn.calls) - 1:
        return False
    try:
        return not parse_arguments(turn.calls[index].arguments)  # blank: nothing arrived at all
    except ArgumentsError:
        return True


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


def _stop_reason(limits: Limits, number: int, usage: Usage, streak: int) -> str:
    checks = (
        ("same_call", limits.same_call, streak),
        ("tokens", limits.tokens, usage.input + usage.output),
        ("turns", limits.turns, number),
    )
    return next((name for name, limit, value in checks if limit and value >= limit), "")


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
    usage, memory, text = Usage(), _Memory(), ""
    used = {call.get("id") for m in messages for call in m.get("tool_calls") or ()}
    for number in itertools.count(1):
        yield ModelAsked(number)
        begin = clock() if clock else 0.0
        turn = _sound_turn(model.chat(messages, tools.schemas(), tool_choice, on_delta), used)
        seconds = clock() - begin if clock else None
        jobs = [_Job(call, tools.get(call.name), limits) for call in turn.calls]
        messages.extend([assistant_message(turn), *(job.message for job in jobs)])
        usage, text = usage.plus(turn.usage or Usage()), turn.text or text
        try:
            yield ModelAnswered(number, turn, seconds)
            if not jobs:
                reason = "length" if turn.finish == "length" else "answered"
                yield Finished(text, reason, usage, number)
                return
            reason = _stop_reason(limits, number, usage, memory.count(jobs))
            _settle(jobs, turn, reason, memory, approve)
            waiting = [job for job in jobs if not job.done.is_set()]
            for job in waiting:
                yield CallStarted(job.call)
            started = time.monotonic()
            _start(waiting, tools, limits.characters, clock)
            for job in jobs:
                job.wait(started)
                yield CallFinished(job.call, job.result, job.seconds)
        finally:
            for job in jobs:
                job.finish(ToolResult(INTERRUPTED, "cancelled"))
                job.message.update(tool_message(job.call, job.result))
        memory.ran += [job for job in waiting if job.started]
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
# § 14  JSON-RPC      uses §1, §3 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# MCP is JSON-RPC 2.0 with one message per line. A *request* has method and id and gets exactly one
# *reply* with the same id; a *notification* has no id and gets none, not even an error. Here bytes
# become messages and back, and what is neither kind of message is told what is wrong with it.
# Sources: jsonrpc.org/specification; modelcontextprotocol.io, "Base Protocol" of each revision.

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # until 2025-11-25; since then a missing resource is INVALID_PARAMS
UNSUPPORTED_VERSION = -32022  # since 2026-07-28; its data lists what the server speaks

ERROR_MEANINGS = {
    PARSE_ERROR: "这一行不是 JSON",
    INVALID_REQUEST: "是 JSON，但不是合法的请求",
    METHOD_NOT_FOUND: "没有这个方法",
    INVALID_PARAMS: "参数不对，或没有这个工具、提示词、资源",
    INTERNAL_ERROR: "服务器内部出错",
    RESOURCE_NOT_FOUND: "没有这个资源（2025-11-25 及以前）",
    UNSUPPORTED_VERSION: "不支持这个协议版本（2026-07-28 起）",
}


def _refuse_word(word: str) -> object:
    raise ValueError(word)  # Python reads and writes NaN; no other language does


_WIRE_DECODER = json.JSONDecoder(parse_constant=_refuse_word)
# No ASCII escaping: half the bytes for Chinese, and a learner can read the wire.
_WIRE_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate hangs Python SDKs (mcp 2.3.0)


def _why_unreadable(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "不是 UTF-8 编码"
        case json.JSONDecodeError():
            return f"第 {error.pos + 1} 个字符处读不下去"
        case RecursionError():
            return "嵌套太深"
        case _:
            return "有 NaN、Infinity，或者有太长的整数"


def decode(line: bytes) -> object:
    """The JSON value in one line; a byte-order mark and CRLF do no harm. RpcError -32700."""
    try:
        return _WIRE_DECODER.decode(line.decode("utf-8").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        reason = f"{ERROR_MEANINGS[PARSE_ERROR]}：{_why_unreadable(error)}"
        raise RpcError(PARSE_ERROR, reason) from None


def encode(message: object) -> bytes:
    """The message as one line of UTF-8. Raises ValueError or TypeError for what is no JSON.

    >>> encode({"id": 1, "result": {"text": "缓存"}}).decode()
    '{"id":1,"result":{"text":"缓存"}}\\n'
    """
    text = _WIRE_ENCODER.encode(message) + "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _HALF_CHARACTER.sub("\ufffd", text).encode("utf-8")


def request_message(id: int | str, method: str, params: dict | None = None) -> dict:
    """A request; params None leaves them out, for a null there is no valid message."""
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else message | {"params": params}


def notification_message(method: str, params: dict | None = None) -> dict:
    """A message that gets no reply."""
    message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def result_reply(id: int | str, result: dict) -> dict:
    """The reply of a request that went well, or of a tool that failed in its own way."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def error_reply(id: int | str | None, error: RpcError) -> dict:
    """The reply of a request that could not be served.

    Without a readable id the key is left out: JSON-RPC asks for null, but no MCP schema allows
    null there, and the newer ones make `id` optional. All official clients accept the missing key.
    """
    body = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    message = {"jsonrpc": "2.0", "error": body}
    return message if id is None else {"jsonrpc": "2.0", "id": id, "error": body}


def readable_id(message: object) -> int | str | None:
    """The id of a message if it is a string or an integer, else None."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if type(id) in (int, str) else None  # type(), because True is an int too


def kind_of(message: object) -> str:
    """"request", "notification" or "response". Raises RpcError -32600 for anything else."""
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, f"一条消息应该是 JSON 对象，收到的是 {show(message)}")
    if "method" not in message and ("result" in message or "error" in message):
        return "response"
    if message.get("jsonrpc") != "2.0":
        version = show(message.get("jsonrpc"))
        raise RpcError(INVALID_REQUEST, f'jsonrpc 应该是 "2.0"，收到的是 {version}')
    if not isinstance(message.get("method"), str):
        name = show(message.get("method"))
        raise RpcError(INVALID_REQUEST, f"method 应该是字符串，收到的是 {name}")
    if "id" not in message:
        return "notification"
    if readable_id(message) is None:
        raise RpcError(INVALID_REQUEST, f"id 应该是字符串或整数，收到的是 {show(message['id'])}")
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

_KEY = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = _KEY + "protocolVersion", _KEY + "clientCapabilities"
CLIENT_KEY, LOG_LEVEL_KEY = _KEY + "clientInfo", _KEY + "logLevel"
SERVER_KEY, SUBSCRIPTION_KEY = _KEY + "serverInfo", _KEY + "subscriptionId"
ENVELOPE_KEYS = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY})
LIMIT_KEY = "cme295-notes/maxCharacters"  # of a tool's result, told to our own client

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


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
    **dict.fromkeys(("annotations", "completions", "message"), "2025-03-26"),
    **dict.fromkeys(("title", "resource_link", "outputSchema", "structuredContent"), "2025-06-18"),
}


def known_fields(item: dict, revision: Revision) -> dict:
    """The item without the fields that came after that revision."""
    return {
        key: value for key, value in item.items() if FIELDS_SINCE.get(key, "") <= revision.name
    }


class Method(NamedTuple):
    """One row of METHODS: the function that answers, and what its requests have in common."""

    answer: Callable[[McpServer, Request], dict | None]  # None: no reply for now
    legacy: bool
    modern: bool
    cacheable: bool  # the result must say how long it may be kept
    slow: bool  # may take long: the driver can go on with other messages meanwhile


METHODS: dict[str, Method] = {}


def method(name: str, *, legacy=True, modern=True, cacheable=False, slow=False) -> Callable:
    """Register the decorated function as the one that answers `name`."""

    def add(answer: Callable) -> Callable:
        METHODS[name] = Method(answer, legacy, modern, cacheable, slow)
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


class Request:
    """A request on its way. `run` may be called on any thread; the first to end it wins.

    It ends once: by its reply, or by the client's cancellation, after which nothing more is sent.
    """

    def __init__(self, server: McpServer, message: dict, revision: Revision):
        self.server, self.revision = server, revision
        self.id, self.method = message["id"], message["method"]
        self.params = message.get("params") or {}
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

    def param(self, name: str, kind: type, default: object = None) -> Any:
        """A parameter of that JSON type. Raises RpcError -32602 if it is missing or of another."""
        value = self.params.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not kind:
            raise RpcError(
                INVALID_PARAMS, f"params.{name} 应该是{_KINDS[kind]}，收到的是 {show(value)}",
            )
        return value

    def notify(self, method: str, params: dict) -> None:
        """Send a notification that belongs to this request."""
        self._emit(notification_message(method, known_fields(params, self.revision)))

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Send how far it is, if the client asked for that and it is further than before."""
        if not self.alive:
            raise ToolError("客户端已取消这次调用")
        token = self.params.get("_meta", {}).get("progressToken")
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
        reply = self._reply()
        if reply and self.end():
            emit(reply)

    def _reply(self) -> dict | None:
        row = METHODS[self.method]
        before = _RUNNING.set(self)
        try:
            result = row.answer(self.server, self)
        except RpcError as error:
            return error_reply(self.id, error)
        except BaseException as error:  # whatever happens, a client must not wait for ever
            reason = f"服务器内部出错：{error_text(error)}"
            return error_reply(self.id, RpcError(INTERNAL_ERROR, reason))
        finally:
            _RUNNING.reset(before)
        if result is None:
            return None
        if self.revision.modern:
            result = {"resultType": "complete", **result, "_meta": {SERVER_KEY: self.server.info}}
            if row.cacheable:
                result |= {"ttlMs": 0, "cacheScope": "private"}
        return result_reply(self.id, result)


class Batch:
    """An array of messages (2025-03-26 only): its replies come as one array."""

    def __init__(self, started: list[list[dict] | Request]):
        self._started = started

    @property
    def alive(self) -> bool:
        """Whether one of its replies is still owed."""
        return any(item.alive for item in self._started if isinstance(item, Request))

    def run(self, emit: Callable[[object], None]) -> None:
        """As Request.run, for all of them; only notifications do not wait for the end."""
        replies = []

        def sort(message: dict) -> None:
            (emit if "method" in message else replies.append)(message)

        for item in self._started:
            if isinstance(item, Request):
                item.run(sort)
            else:
                replies += item
        if replies:
            emit(replies)


def _replies(started: list | Request | Batch) -> list:
    if isinstance(started, list):
        return started
    messages: list = []
    started.run(messages.append)
    return messages


def _is_enveloped(message: object) -> bool:
    match message:
        case {"params": {"_meta": dict() as meta}}:
            return not ENVELOPE_KEYS.isdisjoint(meta)
    return False


def _enveloped_revision(meta: dict) -> Revision:
    """The revision that an envelope names. Raises RpcError in the order of the official servers."""
    for key, kind in ((VERSION_KEY, str), (CAPABILITIES_KEY, dict)):
        if type(meta.get(key)) is not kind:
            text = f"params._meta 里 {key} 应该是{_KINDS[kind]}，收到的是 {show(meta.get(key))}"
            raise RpcError(INVALID_PARAMS, text)
    revision = REVISIONS.get(meta[VERSION_KEY])
    if revision is None or not revision.modern:
        raise RpcError(
            UNSUPPORTED_VERSION, f"不支持协议版本 {show(meta[VERSION_KEY])}",
            {"supported": list(REVISIONS), "requested": meta[VERSION_KEY]},
        )
    if (level := meta.get(LOG_LEVEL_KEY, "debug")) not in LOG_LEVELS:
        levels = "、".join(LOG_LEVELS)
        raise RpcError(INVALID_PARAMS, f"logLevel 只能是 {levels}，收到的是 {show(level)}")
    return revision


class McpServer:
    """The server without its pipe: `handle(message)` gives the messages to send back, in order.

    >>> server = McpServer(ToolRegistry())
    >>> server.handle({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    [{'jsonrpc': '2.0', 'id': 1, 'result': {}}]
    """

    def __init__(
        self, tools: ToolRegistry, notes: NotesIndex | None = None, *, page_items: int = PAGE_ITEMS,
    ):
        self.tools, self.notes, self.page_items = tools, notes, page_items
        self.instructions = INSTRUCTIONS
        self.info = {"name": SERVER_NAME, "title": SERVER_TITLE, "version": VERSION}
        self.negotiated = LATEST_LEGACY  # what messages without an envelope mean, until agreed
        self.open: dict[int | str, Request] = {}  # requests without a reply so far, by id

    def handle(self, message: object) -> list:
        """All messages that answer this one; slow tools are waited for."""
        return _replies(self.begin(message))

    def begin(self, message: object) -> list[dict] | Request | Batch:
        """The answer, if it is quick; else something whose `run(emit)` the caller owes.

        Keep calling `begin` meanwhile: that is how pings are answered and calls cancelled.
        """
        if isinstance(message, list):
            return self._begin_batch(message)
        try:
            match kind_of(message):
                case "request":
                    return self._begin_request(message)
                case "notification":
                    self._notice(message)
        except RpcError as error:
            return [error_reply(readable_id(message), error)]
        return []

    def _begin_request(self, message: dict) -> list[dict] | Request:
        revision = self._revision_of(message)
        row = METHODS.get(message["method"])
        if row is None or not (row.modern if revision.modern else row.legacy):
            raise RpcError(
                METHOD_NOT_FOUND, f"{revision.name} 版协议里没有方法 {show(message['method'])}",
            )
        if message["id"] in self.open:
            reason = f"id {show(message['id'])} 的请求还没有结束，请换一个 id"
            raise RpcError(INVALID_REQUEST, reason)
        request = Request(self, message, revision)
        self.open[request.id] = request
        return request if row.slow else _replies(request)

    def _revision_of(self, message: dict) -> Revision:
        """What this request alone says: the modern revision if it has an envelope, else legacy."""
        params = {} if message.get("params") is None else message["params"]
        meta = params.get("_meta", {}) if isinstance(params, dict) else {}
        for name, value in (("params", params), ("params._meta", meta)):
            if not isinstance(value, dict):
                raise RpcError(INVALID_PARAMS, f"{name} 应该是对象，收到的是 {show(value)}")
        if type(meta.get("progressToken", "")) not in (str, int):
            raise RpcError(INVALID_PARAMS, "params._meta.progressToken 应该是字符串或整数")
        return self.negotiated if ENVELOPE_KEYS.isdisjoint(meta) else _enveloped_revision(meta)

    def _begin_batch(self, messages: list) -> list[dict] | Batch:
        if not self.negotiated.batches or any(map(_is_enveloped, messages)):
            text = "只有 2025-03-26 版协议可以把几条消息放进一个数组，请一行发一条"
            return [error_reply(None, RpcError(INVALID_REQUEST, text))]
        if not messages:
            return [error_reply(None, RpcError(INVALID_REQUEST, "数组里没有消息"))]
        return Batch([self._begin_in_batch(message) for message in messages])

    def _begin_in_batch(self, message: object) -> list[dict] | Request:
        match message:
            case [*_] | {"method": "initialize"}:
                error = RpcError(INVALID_REQUEST, "这条消息不能放在数组里")
                return [error_reply(readable_id(message), error)]
        return self.begin(message)

    def _notice(self, message: dict) -> None:
        """Take a notification. Only one matters here: the rest needs no action."""
        if message["method"] != "notifications/cancelled":
            return
        match message.get("params"):
            case {"requestId": int() | str() as id} if not isinstance(id, bool):
                if request := self.open.get(id):
                    request.end()

    @functools.cached_property
    def outline(self) -> list[Note]:
        """Every section in reading order, without its text; [] if there are no notes."""
        try:
            return self.notes.outline if self.notes else []
        except ToolError:  # no folder, or nothing in it: then there are no resources
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
    revision = REVISIONS.get(request.param("protocolVersion", str), LATEST_LEGACY)
    server.negotiated = LATEST_LEGACY if revision.modern else revision
    return {
        "protocolVersion": server.negotiated.name,
        "capabilities": _capabilities(server, server.negotiated),
        "serverInfo": known_fields(server.info, server.negotiated),
        "instructions": server.instructions,
    }


@method("server/discover", legacy=False, cacheable=True)
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
    if request.param("level", str) not in LOG_LEVELS:
        raise RpcError(INVALID_PARAMS, f"level 只能是 {'、'.join(LOG_LEVELS)}")
    return {}


@method("subscriptions/listen", legacy=False)
def _listen(server: McpServer, request: Request) -> None:
    """Acknowledged with an empty subset, for nothing changes while we run; open until cancelled."""
    request.param("notifications", dict)
    meta = {SUBSCRIPTION_KEY: request.id}
    request.notify("notifications/subscriptions/acknowledged", {"notifications": {}, "_meta": meta})


# ── Lists in pages ──


def _page(request: Request, key: str, items: Iterable, entry: Callable[[Any], dict]) -> dict:
    """One page of a list. A cursor is opaque to clients; ours says which list goes on where."""
    size, items = request.server.page_items, list(items)
    starts = {f"{request.method}@{start}": start for start in range(size, len(items), size)}
    cursor = request.params.get("cursor")
    start = 0 if cursor is None else starts.get(cursor if isinstance(cursor, str) else "")
    if start is None:
        reason = f"cursor 无效：{show(cursor)}，请原样传回 nextCursor，或不传"
        raise RpcError(INVALID_PARAMS, reason)
    shown = items[start:start + size]
    page = {key: [known_fields(entry(item), request.revision) for item in shown]}
    if start + size < len(items):
        page["nextCursor"] = f"{request.method}@{start + size}"
    return page


def _listed_tool(tool: Tool) -> dict:
    listed = to_mcp_tool(tool)
    return listed | {"_meta": {LIMIT_KEY: tool.characters}} if tool.characters else listed


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
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def note_uri(name: str) -> str:
    """`notes://{note}` filled in as RFC 6570 asks.

    >>> note_uri("week1-day4"), note_uri("Week 1 §2")
    ('notes://week1-day4', 'notes://Week%201%20%C2%A72')
    """
    quoted = (chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in name.encode("utf-8"))
    return NOTE_URI + "".join(quoted)


def _resource(name: str, title: str) -> dict:
    return {"uri": note_uri(name), "name": name, "title": title, "mimeType": "text/markdown"}


def _links(value: object) -> Iterator[dict]:
    """The sections that search_notes found, as links a host can open with resources/read."""
    match value:
        case {"hits": [*hits]}:
            for hit in hits:
                match hit:
                    case {"section": str() as name, "title": str() as title}:
                        yield {"type": "resource_link", **_resource(name, title)}


@method("tools/call", slow=True)
def _call_tool(server: McpServer, request: Request) -> dict:
    """Whatever goes wrong inside the tool, bad arguments too, is a result the model can read."""
    name, arguments = request.param("name", str), request.param("arguments", dict, {})
    request.progress(0, message=f"开始运行 {name}")
    call = ToolCall(str(request.id), name, arguments)
    result = server.tools.call(call, characters=MCP_RESULT_CHARACTERS)
    if result.status == "unknown_tool":
        raise RpcError(INVALID_PARAMS, result.text)
    tool = server.tools[name]
    result = _checked(result, tool)
    answer = {"content": [{"type": "text", "text": result.text}], "isError": result.is_error}
    if tool.output and not result.is_error:
        answer["structuredContent"] = result.value
        if name == "search_notes" and request.revision.name >= FIELDS_SINCE["resource_link"]:
            answer["content"] += _links(result.value)
    return known_fields(answer, request.revision)


# ── Notes as resources ──


def _note_name(uri: str) -> str:
    name = uri.removeprefix(NOTE_URI).encode("utf-8", "replace")
    name = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), name)
    return name.decode("utf-8", "replace")


def _section(server: McpServer, name: str) -> Note | None:
    """The file or section of exactly that name, with all below it. No name becomes a path."""
    id = server.files[name].section if name in server.files else name
    try:
        note = server.notes.find(id) if server.notes else None
    except ToolError:
        return None
    return note if note and note.section == id else None


def _markdown(uri: str, note: Note) -> dict:
    text = f"# {note.section} {note.title}\n\n{note.text}"
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
        "title": "讲义的一天或一节",
        "description": "note 是文件名或章节编号，例如 week1-day4 或 Week 1 Day 4 §1.4",
    }
    return _page(request, "resourceTemplates", [template] if server.notes else [], dict)


@method("resources/read", cacheable=True, slow=True)
def _read_resource(server: McpServer, request: Request) -> dict:
    uri = request.param("uri", str)
    note = _section(server, _note_name(uri)) if uri.startswith(NOTE_URI) else None
    if note is None:
        code = INVALID_PARAMS if request.revision.modern else RESOURCE_NOT_FOUND
        raise RpcError(code, f"没有资源 {show(uri)}", {"uri": uri})
    return {"contents": [_markdown(uri, note)]}


# ── Prompts ──


class Prompt(NamedTuple):
    """A text that a person picks in the host. `write` makes texts and blocks from arguments."""

    title: str
    description: str
    arguments: dict[str, str]  # name → description
    write: Callable[..., list[str | dict]]
    optional: frozenset[str] = frozenset()


def _write_explain(server: McpServer, section: str) -> list[str | dict]:
    note = server.notes.find(section)
    text = (
        f"请讲解讲义 {note.section}《{note.title}》，原文附后。先用两三句话说清它解决什么问题，"
        "再逐步讲，每个公式代入一个具体数字算一遍（用 calculator），最后指出一个容易误解的地方。"
    )
    return [text, {"type": "resource", "resource": _markdown(note_uri(note.section), note)}]


def _write_quiz(server: McpServer, topic: str, count: str = "5") -> list[str]:
    if count not in map(str, range(1, 21)):
        raise ToolError(f"count 应该是 1 到 20 的整数，收到的是 {show(count)}")
    return [
        f"请围绕“{topic}”考我 {count} 道题。"
        "先用 search_notes 和 read_note 找到讲义原文，只考讲义里有的内容；"
        "一次只出一道，等我回答后再判断对错、说明理由并写出章节编号，然后出下一道；最后总结我薄弱的地方。",
    ]


def _write_find(server: McpServer, topic: str) -> list[str]:
    return [
        f"“{topic}”在讲义的哪一节讲？请用 search_notes 查（没找到就换两三种说法再查），"
        "按先后列出相关章节的编号和标题，各用一句话说明讲了什么，并建议先读哪一节。",
    ]


_TOPIC = {"topic": "知识点，例如 KV Cache"}
PROMPTS = {
    "explain_section": Prompt(
        "讲解一节", "用具体数字讲解讲义中的一节，原文会附上",
        {"section": "编号，如 Week 1 Day 4 §1.4"}, _write_explain,
    ),
    "quiz_me": Prompt(
        "考考我", "围绕一个知识点，一题一题地考",
        _TOPIC | {"count": "题数，1 到 20，默认 5"}, _write_quiz, frozenset({"count"}),
    ),
    "find_lesson": Prompt("在哪一节", "找出一个知识点在讲义的哪些章节", _TOPIC, _write_find),
}


def _listed_prompt(name: str) -> dict:
    title, description, texts, _, optional = PROMPTS[name]
    arguments = [
        {"name": argument, "description": text, "required": argument not in optional}
        for argument, text in texts.items()
    ]
    return {"name": name, "title": title, "description": description, "arguments": arguments}


@method("prompts/list", cacheable=True)
def _list_prompts(server: McpServer, request: Request) -> dict:
    return _page(request, "prompts", PROMPTS if server.notes else (), _listed_prompt)


def _known_prompt(server: McpServer, name: str) -> Prompt:
    if server.notes is None or name not in PROMPTS:
        raise RpcError(INVALID_PARAMS, f"没有提示词 {show(name)}，可用：{'、'.join(PROMPTS)}")
    return PROMPTS[name]


@method("prompts/get", slow=True)
def _get_prompt(server: McpServer, request: Request) -> dict:
    name, given = request.param("name", str), request.param("arguments", dict, {})
    prompt = _known_prompt(server, name)
    for argument, text in prompt.arguments.items():
        if not given.get(argument) and argument not in prompt.optional:
            raise RpcError(INVALID_PARAMS, f"提示词 {name} 缺少参数 {argument}：{text}")
    for argument, value in given.items():
        if argument not in prompt.arguments or not isinstance(value, str):
            reason = f"提示词 {name} 的参数不对：{argument} = {show(value)}"
            raise RpcError(INVALID_PARAMS, reason)
    try:
        blocks = prompt.write(server, **given)
    except ToolError as error:  # no such section, or a bad number: a person can correct it
        raise RpcError(INVALID_PARAMS, str(error)) from None
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
    messages = [{"role": "user", "content": block} for block in blocks]
    return {"description": prompt.description, "messages": messages}


# ── Completion of arguments ──


# what is completed → its choices; an argument that is not here has none
CHOICES: dict[str, Callable[[McpServer], Iterable[str]]] = {
    "section": lambda server: (note.section for note in server.outline),
    "topic": lambda server: (note.title for note in server.outline),
    "note": lambda server: (*server.files, *(note.section for note in server.outline)),
}


def _completed(server: McpServer, request: Request) -> tuple[str, str]:
    """(argument, what was typed so far), if the prompt or template of `ref` has that argument."""
    match request.params.get("argument"):
        case {"name": str() as name, "value": str() as typed}:
            pass
        case other:
            raise RpcError(INVALID_PARAMS, f"argument 应该有 name 和 value，收到的是 {show(other)}")
    match request.params.get("ref"):
        case {"type": "ref/prompt", "name": str() as prompt}:
            known = _known_prompt(server, prompt).arguments
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
    choices = dict.fromkeys(CHOICES[name](server) if name in CHOICES else ())
    found = [choice for choice in choices if typed in choice.casefold()]
    found.sort(key=lambda choice: not choice.casefold().startswith(typed))  # stable
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


def _value_of(text: str) -> object:
    """The JSON value behind the text, if writing it again gives the same text; else the text."""
    try:
        value = decode(text.encode("utf-8", "replace"))
        return value if json_text(value) == text else text
    except (RpcError, ValueError, RecursionError):
        return text


def _run_remote(client: McpClient, name: str, arguments: dict) -> object:
    """The value that the server's tool returns; every way to fail is a ToolError."""
    try:
        result = client.call_tool(name, arguments)
    except (RpcError, McpError) as error:
        raise ToolError(str(error)) from error
    text = result_text(result)
    if result.get("isError") is True:
        raise ToolError(text)
    return _value_of(text)


_HINT_LABELS = (
    ("readOnlyHint", False, "read_only"),  # hint, its default by the specification, our label
    ("destructiveHint", True, "irreversible"),
    ("openWorldHint", True, "untrusted"),
)


def as_object(value: object) -> dict:
    """The value if it is a dict, else {}: what a server sends may be anything."""
    return value if isinstance(value, dict) else {}


def _labels(listed: dict) -> frozenset[str]:
    hints = as_object(listed.get("annotations"))
    labels = {label for hint, default, label in _HINT_LABELS if hints.get(hint, default) is True}
    return frozenset(labels - {"irreversible"} if "read_only" in labels else labels)


def _local_name(name: object, taken: ToolRegistry) -> str:
    """A name that hosts and models accept, made from whatever the server calls the tool."""
    base = re.sub(r"[^A-Za-z0-9_-]", "_", str(name))[:45] or "tool"
    names = itertools.chain([base], (f"{base[:41]}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _local_schema(schema: object) -> dict:
    """The server's schema where ours can check it, else as much of it as can be checked."""
    if not isinstance(schema, dict):
        return {"type": "object"}
    parts = {
        name: part if isinstance(part, dict) and not check_schema(part) else {}
        for name, part in as_object(schema.get("properties")).items()
    }
    required = schema.get("required")
    required = [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
    outline = {"type": "object", "properties": parts, "required": required}
    candidates = ({**schema, "type": "object"}, outline, {"type": "object"})
    return next(candidate for candidate in candidates if not check_schema(candidate))


def _remote_tool(client: McpClient, listed: dict, taken: ToolRegistry) -> Tool:
    """The tool for one entry of tools/list. What had to be changed is noted in client.notices."""
    remote = listed.get("name")
    name, schema = _local_name(remote, taken), _local_schema(listed.get("inputSchema"))
    if name != remote:
        client.notices.append(f"工具 {show(remote)} 在这里叫 {name}：模型和主机不接受原来的名字")
    if schema != listed.get("inputSchema"):
        client.notices.append(f"工具 {name} 的参数模式有这里不支持的写法，参数由服务器自己检查")
    limit = as_object(listed.get("_meta")).get(LIMIT_KEY)
    description = str(listed.get("description") or listed.get("title") or f"远程工具 {name}")
    return Tool(
        name, cut(description, DESCRIPTION_LIMIT), schema,
        run=lambda arguments: _run_remote(client, remote, arguments),
        title=str(listed.get("title") or ""), labels=_labels(listed),
        characters=limit if type(limit) is int and limit > 0 else None,
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
    one is spoken; else the newest is tried first. `notices` says what had to be adapted.

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
        self.notices: list[str] = []

    # ── Opening ──

    def connect(self) -> McpClient:
        """Agree on a revision; returns self. Raises RpcError or McpError when there is none."""
        wanted = REVISIONS[self._wanted] if self._wanted else None
        if wanted and not wanted.modern:
            self._initialize(wanted.name)
        elif not self._discover():
            if wanted:
                raise McpError(f"服务器不支持 {wanted.name} 版协议")
            self._initialize(LATEST_LEGACY.name)
        return self

    def _discover(self) -> bool:
        """Ask as the modern era does; False means that the server is a legacy one.

        Not only -32601 but any other error, silence and nonsense mean that, too (spec, versioning).
        """
        try:
            result = self._exchange("server/discover", None, MODERN.name, self._probe_seconds)
            supported = result.get("supportedVersions")
        except RpcError as error:
            if error.code != UNSUPPORTED_VERSION or not isinstance(error.data, dict):
                return False
            result, supported = {}, error.data.get("supported")
        except ServerGoneError:
            if self._restart is None:
                raise
            self._restart()
            return False
        except McpError:
            return False
        if not isinstance(supported, list) or MODERN.name not in supported:
            return False
        self._agreed(MODERN.name, result, as_object(result.get("_meta")).get(SERVER_KEY))
        return True

    def _initialize(self, version: str) -> None:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT_INFO}
        result = self._exchange("initialize", params, version, self.seconds)
        agreed = REVISIONS.get(str(result.get("protocolVersion")))
        if agreed is None or agreed.modern:
            raise McpError(f"服务器要用协议版本 {show(result.get('protocolVersion'))}，这里不支持")
        self._agreed(agreed.name, result, result.get("serverInfo"))
        self._send(notification_message("notifications/initialized"), self.seconds)

    def _agreed(self, revision: str, result: dict, server: object) -> None:
        self.revision = revision
        self.server, self.capabilities = as_object(server), as_object(result.get("capabilities"))
        self.instructions = str(result.get("instructions") or "")

    # ── Asking ──

    def request(self, method: str, params: dict | None = None) -> dict:
        """The result of a request. Raises RpcError for an error reply, McpError for none at all."""
        return self._exchange(method, params, self.revision, self.seconds)

    def _exchange(self, method: str, params: dict | None, revision: str, seconds: float) -> dict:
        if revision == MODERN.name:
            envelope = {VERSION_KEY: revision, CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}
            given = params or {}
            params = {**given, "_meta": {**given.get("_meta", {}), **envelope}}
        message = request_message(next(self._ids), method, params)
        try:
            reply = self._send(message, seconds)
        except ServerSilentError:
            if self.revision:  # during the opening the server may not know this notification
                gone = {"requestId": message["id"], "reason": "等待超时"}
                self._send(notification_message("notifications/cancelled", gone), seconds)
            raise
        return _result_of(reply)

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
            try:
                registry.add(_remote_tool(self, listed, registry))
            except SchemaError as error:
                self.notices.append(str(error))
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

    text: the server's words; value: the JSON they came in; turn: what of the answer had arrived.
    """

    def __init__(self, status: int, text: str, value=None, headers: Mapping = {}, turn=None):
        super().__init__(text)
        self.status, self.text, self.value = status, text, value
        self.headers, self.turn = headers, turn


# --- addresses ---

# Patterns stay text in this section: most runs need none, and compiling them costs start-up time.
_PASTED_PATH = (  # the last are Ollama's own
    r"/((chat/)?completions|responses|models|messages|embeddings|api/(chat|generate|tags|show))$"
)
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # to listen on, not to call


def is_loopback(host: str) -> bool:
    """True for this machine: no proxy can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")


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

    text = text.strip().strip("\"'<>")
    if "://" not in text:
        local = re.match(r"localhost\b|[\d.]+(?:[:/]|$)|\[|[^/]+:\d", text)
        text = ("http://" if local else "https://") + text
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    labels = host.removesuffix(".").split(".")
    legal = all(0 < len(label) < 64 for label in labels) and not re.search(r"[\s\\]", host)
    if not legal or parts.scheme not in ("http", "https"):
        raise BackendError(f"看不懂地址 {show(text)}，应该像 http://127.0.0.1:11434/v1")
    if parts.username:
        raise BackendError("地址里不要带用户名和密码，密钥请用 --key")
    host = _ANY_ADDRESS.get(host, host)
    host = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    path = re.sub(_PASTED_PATH, "", re.sub("/+", "/", parts.path).rstrip("/"))
    return f"{parts.scheme}://{host}{path}" + (f"?{parts.query}" if parts.query else "")


def ollama_base_url(text: str) -> str:
    """The base address behind OLLAMA_HOST, which may be an address to listen on.

    >>> ollama_base_url("0.0.0.0"), ollama_base_url(":8000")
    ('http://127.0.0.1:11434/v1', 'http://127.0.0.1:8000/v1')
    """
    text = text.strip()
    if "://" not in text:
        host, colon, port = text.rpartition(":") if re.search(r":\d+/?$", text) else (text, "", "")
        text = f"http://{host or '127.0.0.1'}:{port or 11434}"
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
    text = body.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        words = _sentence(value) or (json_text(json_value(value)) if value else "")
        return cut(" ".join(words.split()), 600), value
    if title := re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S):
        text = title[1]
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.I | re.S)
    return cut(" ".join(text.split()), 200), None


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
    for name, scale in (("retry-after-ms", 1000), ("retry-after", 1)):
        text = headers.get(name) or ""
        with contextlib.suppress(ValueError):
            seconds = float(text) / scale
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
    status, headers = failure.status, failure.headers
    if status == 503 and "loading model" in failure.text.lower():  # llama-server while it starts
        return min(15.0, 2.0**tries) if tries < LOADING_TRIES else None
    most = 2 if status in (408, 409, 429) or 500 < status < 600 else 0
    if status in (0, 500) or re.search(_UNREADABLE_CALL, failure.text):
        most = 1
    stop = headers.get("x-should-retry") == "false" or re.search(_HOPELESS, failure.text)
    asked = retry_after(headers, now)
    if tries >= most or stop or (asked or 0) > LONGEST_WAIT:
        return None
    jitter = 1 + os.urandom(1)[0] / 1024  # clients that failed together should not return together
    return asked if asked is not None else 0.5 * 2**tries * jitter


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
    way = f"（经过代理 {proxy}；不想用代理就设 NO_PROXY={host}）" if proxy else ""
    match error:
        case ConnectionRefusedError() if is_loopback(host):
            starts = "\n".join(f"  {name}：{start}" for name, start, _ in _servers_at(url))
            tried = "（::1 和 127.0.0.1 都试过）" if host == "localhost" else ""
            text = f"连不上 {url}{tried}：没有程序在监听。先启动服务：\n{starts}\n地址不对请改 "
            text += "--base-url；只想看看效果就用 --backend mock 提问"
        case socket.gaierror() | UnicodeError():
            text = f"找不到主机 {proxy or host}{way}，请检查地址和网络"
        case ssl.SSLCertVerificationError():
            text = f"{host} 的证书不可信（自签的请设 SSL_CERT_FILE）：{error.verify_message}{way}"
        case ssl.SSLError():
            text = f"和 {host} 不能建立加密连接{way}；服务若不是 https，地址请以 http:// 开头"
        case TimeoutError():
            text = f"连接 {url} 超时{way}，请检查地址和网络"
        case OSError():
            text = f"连不上 {url}：{error.strerror or error}{way}，请检查 --base-url"
        case _:
            text = f"{url} 回的不是 HTTP（{error_text(error)}）{way}，请检查 --base-url"
    return BackendError(text)


# --- the transport ---


class _TimedSocket(io.RawIOBase):
    """A connected socket for http.client; nothing on it, not even a header, outlasts `patience`."""

    def __init__(self, sock, patience: Patience, clock: Callable[[], float]):
        self._sock, self._patience, self._clock = sock, patience, clock
        self._deadline = clock() + patience.whole

    def _timed(self, work: Callable, argument):
        left, silence = self._deadline - self._clock(), self._patience.silence
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


def _body_chunks(response) -> Iterator[bytes]:
    """The body as it arrives. A broken connection just ends it: the fold sees what is missing."""
    from http.client import HTTPException

    with contextlib.suppress(OSError, HTTPException):
        while data := response.read1(65536):
            yield data


def _unpacked(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Chunks without their gzip or deflate; we ask for neither, some servers send it anyway."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BackendError(f"服务器用了不认识的压缩方式 {encoding}")
    import zlib

    decoder = None
    for chunk in chunks:
        unpacked = []
        while chunk:
            if decoder is None:  # "deflate" comes with or without zlib's header
                bare = encoding == "deflate" and chunk[0] & 15 != zlib.DEFLATED
                decoder = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
            try:
                unpacked.append(decoder.decompress(chunk))
            except zlib.error:
                raise HttpError(0, "服务器的压缩数据坏了") from None
            packed = decoder.unused_data[:2] == b"\x1f\x8b"  # a second part, else padding
            chunk, decoder = (decoder.unused_data, None) if packed else (b"", decoder)
        yield b"".join(unpacked)


def _plain_body(response) -> Iterator[bytes]:
    """The chunks of a body, unpacked, as UTF-8, and not without end."""
    chunks, total = _body_chunks(response), 0
    encoding = (response.headers.get("content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        chunks = _unpacked(chunks, encoding)
    charset = response.headers.get_content_charset("utf-8")
    if charset not in ("utf-8", "us-ascii", "iso-8859-1"):  # the last is most often not meant
        with contextlib.suppress(LookupError):
            codecs.lookup(charset)
            chunks = codecs.iterencode(codecs.iterdecode(chunks, charset, "replace"), "utf-8")
    for chunk in chunks:
        total += len(chunk)
        if total > LONGEST_REPLY:
            raise BackendError(f"服务器的回复超过 {LONGEST_REPLY // 2**20} MiB，已停止")
        yield chunk


@contextlib.contextmanager
def http_exchange(
    method: str, url: str, headers: dict, body: bytes | None, patience: Patience, clock: Callable,
):
    """Context with the response to one request. Raises BackendError and HttpError."""
    from http.client import HTTPException

    proxy = _proxy_for(url)
    connection, target, extra = _connection(url, proxy, min(patience.connect, patience.whole))
    sock = response = None
    try:
        try:
            connection.connect()
            sock = connection.sock
            connection.sock = _TimedSocket(sock, patience, clock)
            # a server may refuse a long body before it has read it, and its answer says why
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body, {**headers, **extra})
            response = connection.getresponse()
        except (OSError, UnicodeError, HTTPException) as error:
            if sock and isinstance(error, OSError):
                reason = error.strerror or "对方没有回答就关闭了"
                raise HttpError(0, f"连接中断（{reason}）") from error
            raise connection_problem(error, url, proxy) from error
        yield response
    finally:
        for opened in filter(None, (response, sock, connection)):
            opened.close()


# --- the reply: bytes → JSON objects, whatever the framing ---


def _whole_or_lines(chunks: Iterable[bytes]) -> list:
    """The JSON values of a body: one document, or one per line (NDJSON)."""
    body = b"".join(chunks)
    text = body.decode(json.detect_encoding(body), "replace")
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
        raise HttpError(404, "收到的是网页：" + read_error(b"".join(chunks))[0])
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
    tool_choice: str | dict = "auto"

    @property
    def choice(self) -> str | dict | None:
        """The choice, unless it is the default: LM Studio refuses the very key."""
        return self.tool_choice if self.tools and self.tool_choice != "auto" else None

    @property
    def used_ids(self) -> set[str]:
        """The ids of all calls in the history."""
        return {c["id"] for m in self.messages for c in m.get("tool_calls") or () if c.get("id")}


class Settings(NamedTuple):
    """What the user asked for; None and {} mean that the request does not mention it."""

    model: str = ""
    options: dict = {}  # sent as given
    max_tokens: int | None = None
    stream: bool = True


class Quirk(NamedTuple):
    """One way a server differs: how it refuses, how the request changes, what the user is told."""

    refusal: str  # a regular expression
    change: Callable[[dict], dict]
    notice: str


_ESSENTIAL = frozenset({"model", "messages", "contents", "system", "systemInstruction", "tools"})


def refused_field(text: str, body: dict) -> str | None:
    """The field of our request that a refusal names, longest first; short names only in quotes.

    >>> refused_field("Unrecognized request argument supplied: top_k", {"model": "m", "top_k": 5})
    'top_k'
    """
    for field in sorted(set(body) - _ESSENTIAL, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(field)}(?!\w)"
        if re.search(pattern if len(field) > 3 else rf"[`'\"]{pattern}[`'\"]", text):
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
    rest = tidy_history(question.messages)
    system = rest.pop(0)["content"] if rest and rest[0]["role"] == "system" else ""
    prompt = f"{system}\n\n{text_tools_prompt(question.tools)}".strip()
    messages = [{"role": "system", "content": prompt}]
    for message in rest:
        match message:
            case {"role": "tool", "content": text}:
                _add_user(messages, text_tool_result(text))
            case {"role": "assistant", "tool_calls": calls, "content": text}:
                for function in (call["function"] for call in calls):
                    arguments = arguments_object(function["arguments"])
                    value = {"name": function["name"], "arguments": arguments}
                    text += f"\n<tool_call>\n{json_text(value)}\n</tool_call>"
                messages.append({"role": "assistant", "content": text.strip()})
            case _:
                messages.append(message)
    return Question(messages, [])


def _unwrapped(call: ToolCall, tools: list[dict]) -> ToolCall:
    """The call without a list of one (gpt-oss), or a sole key (DeepSeek V3.2), around arguments."""
    schema = next((tool["parameters"] for tool in tools if tool["name"] == call.name), {})
    names = schema.get("properties", {}).keys()
    with contextlib.suppress(ValueError, RecursionError):
        text = isinstance(call.arguments, str)
        match json.loads(call.arguments) if text else call.arguments:
            case [inner] | {"arguments": inner} | {"input": inner} as outer if len(outer) == 1:
                inner = parse_arguments(inner)
                if inner.keys() <= names and not names & {"arguments", "input"}:
                    return call._replace(arguments=inner)
    return call


def sorted_text(turn: Turn, question: Question) -> Turn:
    """The turn with reasoning, and calls if there are no proper ones, taken out of its text."""
    if question.tools and not turn.calls:
        parts = parse_text_tool_calls(
            turn.text, question.tools, used_ids=question.used_ids, cut=turn.finish == "length",
        )
        if parts.calls:
            reasoning = turn.reasoning or parts.reasoning
            return turn._replace(text=parts.text, calls=parts.calls, reasoning=reasoning)
    whole = turn.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text, reasoning = split_reasoning(whole)  # whole: an emoji may come in halves, one per delta
    calls = tuple(_unwrapped(call, question.tools) for call in turn.calls)
    return turn._replace(text=text, calls=calls, reasoning=turn.reasoning or reasoning)


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
_TEXT_PROTOCOL = "改用文字协议：工具写进系统提示，从模型的文字里识别调用。"
_ADVICE = (  # the statuses or, below 500, the words of a refusal; what the user can do about it
    (range(201, 400), "", "程序不跟随跳转，请把 --base-url 改成最终的地址"),
    ((401, 403), r"(?i)api.?key|authenticat|unauthori[sz]ed", "{key}"),
    ((407,), "", "代理要登录：把 HTTPS_PROXY、HTTP_PROXY 写成 http://用户:密码@代理地址"),
    ((404, 405), "", "请求的地址是 {url}，请检查 --base-url（多数服务以 /v1 结尾）"),
    ((413,), _TOO_LONG, "对话太长，办法：{longer}"),
    ((402,), _HOPELESS, "账户的额度用完了，请充值或换一个服务"),
    ((429, *range(500, 1000)), "", "请稍后再试；一直这样就看服务器的日志"),
    (range(1000), "", "请检查 --base-url、--model 和 -o 的参数"),
)


class HttpModel:
    """A model behind HTTP; a vendor's class says how a request is written and a reply is read.

    notice(sentence) tells the user, once each, what the program had to work around. clock, now and
    sleep are parameters for tests; None means the real ones.
    """

    usual_url = url_variable = model_variable = ""  # variables of the environment
    key_variables: tuple[str, ...] = ()
    path, models_path = "", "/models"
    versions: tuple[str, ...] = ()  # ends of a pasted address that `path` has already
    key_header = ("Authorization", "Bearer {}")
    other_headers: dict[str, str] = {}
    quirks: tuple[Quirk, ...] = ()
    build: Callable[[Question, Settings], dict]  # the body, before what was learned
    fold: Callable[[set[str]], object]  # used ids → feed(object) → [(kind, text)] …, turn() → Turn

    def __init__(
        self, base_url: str, settings: Settings = Settings(), *, key: str = "", key_hint: str = "",
        patience: Patience = Patience(), notice: Callable[[str], None] | None = None,
        clock: Callable | None = None, now: Callable | None = None, sleep: Callable | None = None,
    ):
        if not key.isascii() or not key.isprintable():
            raise BackendError("密钥里有空白行或不是 ASCII 的字符，多半是复制时多带了内容")
        base, _, self.query = repair_base_url(base_url).partition("?")
        self.base_url = functools.reduce(str.removesuffix, self.versions, base)
        self.settings, self.patience = settings, patience
        self.key, self.key_hint = key.strip(), key_hint
        self.requests = 0  # for answers, so far, retries included
        self._clock, self._now = clock or time.monotonic, now or time.time
        self._sleep, self._tell = sleep or time.sleep, notice or (lambda sentence: None)
        self._said: set[str] = set()
        self._as_text = False  # the server takes no tools
        self._changes: list[Callable[[dict], dict]] = []  # of every request: learned from refusals

    def headers(self) -> dict:
        """The vendor's headers; a key that starts with "Bearer " is a token, as relays want it."""
        is_token = self.key.startswith("Bearer ")
        name, form = ("Authorization", "{}") if is_token else self.key_header
        return {**self.other_headers, **({name: form.format(self.key)} if self.key else {})}

    def notice(self, sentence: str) -> None:
        """Tell the user, unless they know already."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._tell(self._without_key(sentence))

    def _without_key(self, text: str) -> str:
        """Some servers quote the key in their errors."""
        secret = self.key.removeprefix("Bearer ")
        return text.replace(secret, "[已隐去]") if secret else text

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        """The model's answer. Raises BackendError with a sentence for the user."""
        # told "none", llama-server prints the call as text: offer nothing instead
        question = Question(messages, tools if tool_choice != "none" else [], tool_choice)
        show = on_delta or (lambda kind, piece: None)
        for attempt in range(2):
            turn = self._ask(question, show)
            if turn.calls or turn.text.strip():
                return turn
            if turn.finish == "length":
                raise BackendError("模型用完了长度上限还没有写出回答，请加大 --max-tokens")
            if attempt == 0:
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
                raise BackendError(self._explained(failure, known)) from failure
            code = f"HTTP {failure.status} " if failure.status else ""
            reason = self._without_key(cut(code + failure.text, 120))
            self._tell(f"{reason}；{wait:.1f} 秒后重试。")
            show("again", "")
            self._sleep(wait)
            tries += 1

    def _objects(self, method: str, path: str, body: dict | None = None) -> Iterator[dict]:
        """The objects of a good reply. Raises HttpError for any other."""
        data = None if body is None else json_text(body).encode()
        headers = {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity", "Connection": "close",
            "User-Agent": f"w4d3_tools_mcp/{VERSION}", **self.headers(),
        }
        mark = ("&" if "?" in path else "?") if self.query else ""
        url = self.base_url + path + mark + self.query
        self.requests += body is not None
        with http_exchange(method, url, headers, data, self.patience, self._clock) as response:
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
        fold, screen = self.fold(question.used_ids), TextStream(question.tools)
        for value in self._objects("POST", self.path, body):
            for kind, piece in fold.feed(value):
                for shown in screen.feed(piece) if kind == "text" else [(kind, piece)]:
                    show(*shown)
        for shown in screen.close():
            show(*shown)
        try:
            plain = fold.turn()
        except BackendError as error:
            raise HttpError(0, str(error), turn=error.turn) from None
        if not fold.done:
            raise HttpError(0, "连接断了，没有结束标记", turn=plain)
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
            flags = {"tool-call-parser": _SERVERS[8000], "jinja": _SERVERS[8080]}.items()
            why = "服务器说这个模型不支持工具。"
            for name, start, _ in (server for word, server in flags if word in text):
                why = f"这个 {name} 没有打开工具调用，要这样启动：{start}。"
            self.notice(why + _TEXT_PROTOCOL)
            return True
        for quirk in self.quirks:
            if re.search(quirk.refusal, text) and quirk.change(body) != body:
                self._changes.append(quirk.change)
                self.notice(quirk.notice)
                return True
        field = refused_field(text, body) if status in (200, 400, 422) else None
        if field:
            self._changes.append(functools.partial(_without, key=field))
            self.notice(f"服务器不接受 {field}，已去掉后重发。")
        return field is not None

    def _explained(self, failure: HttpError, advice: str = "") -> str:
        """What happened and what to do; `advice` is better than ours."""
        status, text = failure.status, self._without_key(failure.text)
        match failure.value:
            case {"error": {"n_ctx": room, "n_prompt_tokens": tokens}}:  # llama-server
                text = f"对话有 {tokens} 个 token，服务器的上下文只有 {room} 个"
                return f"{text}。办法：{_SERVERS[8080][2]}"
        if status == 0:
            begun = failure.turn.text if failure.turn else ""
            text += "，重试后还是这样；请看服务器的日志，检查 --base-url"
            return text + (f"。已收到：{cut(begun, 300)}" if begun else "")
        if re.search(_UNREADABLE_CALL, text):
            return f"模型写出了服务器读不懂的工具调用，重试也一样（{text}）。换个问法或换个模型再试"
        words = text.rstrip("。.") or "（没有说明）"
        said = f"{host_of(self.base_url)} 返回 HTTP {status}：{words}。"
        if (wait := retry_after(failure.headers, self._now()) or 0) > LONGEST_WAIT:
            return f"{said}服务器要求等 {wait:.0f} 秒，请晚些再试"
        fits = (
            advice for statuses, words, advice in _ADVICE
            if status in statuses or (words and status < 500 and re.search(words, text))
        )
        key, url = self.key_hint or "请用 --key 给出正确的密钥", self.base_url + self.path
        longer = _longer_context(self.base_url)
        return said + (advice or next(fits).format(key=key, url=url, longer=longer))

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
            reply = next(self._objects("GET", self.models_path))
        except HttpError as failure:
            if self.mended(failure, {}):
                return self.models()
            raise BackendError(self._explained(failure)) from failure
        listed = reply.get("data") or reply.get("models") or []
        names = [m.get("id") or m.get("name") for m in listed if isinstance(m, dict)]
        return [name.removeprefix("models/") for name in names if isinstance(name, str)]


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
    """Ids as Mistral wants them; those that fit stay, equal ones stay equal."""
    import zlib

    def short(id: str) -> str:
        return id if re.fullmatch("[A-Za-z0-9]{9}", id) else f"i{zlib.crc32(id.encode()):08x}"

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
OPENAI_QUIRKS = (
    Quirk(  # OpenAI o-series and GPT-5
        r"(?s)max_tokens.*max_completion_tokens",
        lambda body: {_NEW_NAMES.get(key, key): value for key, value in body.items()},
        "服务器要 max_completion_tokens，已代替 max_tokens 重发。",
    ),
    Quirk(
        _NO_STREAM, lambda body: _without(_without(body, "stream"), "stream_options"),
        "服务器不能边写边发，已改为一次收完。",
    ),
    Quirk(  # Mistral
        r"(?i)length of 9|\[?a-zA-Z0-9\]?\{9\}|9 (alphanumeric|characters)",
        _on_messages(_nine_letter_ids), "服务器要九个字符的调用 id，已改写后重发。",
    ),
    Quirk(  # gpt-oss template in llama-server
        r"(?i)both content and thinking", _on_messages(
            lambda message: {k: v for k, v in message.items() if not k.startswith("reasoning")}
        ), "服务器不要思考过程，已去掉后重发。",
    ),
    Quirk(  # Llama 3 templates
        r"(?i)single tool.calls? at once", _one_call_per_turn,
        "这个模型的模板一轮只容一个调用，已把历史拆开重发。",
    ),
    Quirk(  # Gemma 2 templates
        r"(?i)system role (is )?not supported|does not support.{0,9}system (role|message)",
        lambda body: {**body, "messages": tidy_history(
            [{**body["messages"][0], "role": "user"}, *body["messages"][1:]]
        )}, "这个模型的模板没有系统提示，已放进第一条用户消息重发。",
    ),
    Quirk(
        r"(?i)content[^.]{0,40}(non-empty|must not be empty|cannot be empty)",
        _on_messages(
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
        wrong_path = failure.status in (404, 405) or "Unexpected endpoint" in failure.text
        host = self.base_url.removesuffix("/api")  # right for Open WebUI, not for Ollama
        if wrong_path and host.count("/") == 2 and not re.search(_MODEL_UNKNOWN, failure.text):
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

    def __init__(self, folder: str, settings: Settings = Settings(), *, notice=None):
        try:
            import torch  # noqa: F401, transformers generates nothing without it
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            reason = f"少了 {error.name}" if error.name else error_text(error)
            raise BackendError(f"{reason}：请先 pip install transformers torch") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the packages raise what they like
            raise BackendError(f"{folder} 不是能读的模型目录：{error_text(error)}") from error
        if not (template := self._tokenizer.chat_template):
            raise BackendError(f"{folder} 没有对话模板（chat template），请换一个 instruct 模型")
        self._as_text = "tools" not in str(template)
        if self._as_text and notice:
            notice(f"这个模型的模板不认识工具。{_TEXT_PROTOCOL}")
        self.settings, self.requests, self.base_url = settings, 0, ""

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        question = Question(messages, tools if tool_choice != "none" else [], tool_choice)
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
        ended = bool(written) and written[-1] in self._tokenizer.all_special_ids
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
        hint = ""
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


# ── Serving ──


class Wire:
    """The pipe to the client: whole lines only, from any thread."""

    def __init__(self, descriptor: int):
        self._descriptor, self.lock = descriptor, threading.Lock()
        self._owner = os.getpid()

    def send(self, message: object) -> None:
        """Write one message. A client that has closed its end has no more use for this process."""
        if os.getpid() != self._owner:  # a tool forked and came back: the parent answers
            os._exit(0)
        try:
            line = encode(message)
        except (ValueError, TypeError, RecursionError) as error:  # such as NaN in a tool's schema
            reason = RpcError(INTERNAL_ERROR, f"答复不能写成 JSON：{error_text(error)}")
            line = encode(error_reply(readable_id(message), reason))
        with self.lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line):]
            except OSError:
                os._exit(0)


def _private_pipes() -> tuple[object, Wire]:
    """Standard input and output for us alone: (binary file to read, Wire)."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # a host may start us with one of them closed
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(nowhere, descriptor)
    source, wire = open(os.dup(0), "rb"), Wire(os.dup(1))  # noqa: SIM115 - open as long as we are
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
    """

    def __init__(self, source, wire: Wire, server: McpServer):
        self._lines, self._wire, self._server = read_lines(source), wire, server
        self._lock = threading.Lock()  # around the two fields below
        self._current: Request | Batch | None = None  # what the reading thread runs
        self._late: set[Request | Batch] = set()  # what runs on threads that no longer read
        self._begun, self._ended = threading.Event(), threading.Semaphore(0)

    def run(self) -> typing.NoReturn:
        """Keep one thread reading. Threads are daemons: a tool may never return."""
        while True:
            try:
                threading.Thread(target=self._read, daemon=True).start()
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
            if not self._answer(line):
                return
        self._finish()

    def _answer(self, line: bytes | None) -> bool:
        """Answer one line; False if another thread reads by now."""
        started = self._begin(line)
        if not isinstance(started, list):
            return self._run(started)
        for message in started:
            self._wire.send(message)
        return True

    def _begin(self, line: bytes | None) -> list[dict] | Request | Batch:
        try:
            if line is None:
                text = f"一行最多 {LINE_LIMIT} 字节，这一行已跳过"
                raise RpcError(INVALID_REQUEST, text)
            return [] if line.isspace() else self._server.begin(decode(line))
        except RpcError as error:
            return [error_reply(None, error)]
        except Exception as error:  # a fault of ours, or no memory: the reading must go on
            return [error_reply(None, RpcError(INTERNAL_ERROR, error_text(error)))]

    def _run(self, request: Request | Batch) -> bool:
        self._current = request
        if not self._begun.is_set():
            self._begun.set()
        request.run(self._wire.send)
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
        while any(request.alive for request in self._late.copy()) and quiet < QUIET_SLICES:
            used = time.process_time()
            if self._ended.acquire(timeout=SLICE_SECONDS):
                quiet = 0
            else:
                quiet += 1 if time.process_time() - used > WORKING_SECONDS else QUIET_SLICES
        self._wire.lock.acquire(timeout=LAST_LINE_SECONDS)
        os._exit(0)  # stderr is not flushed: nobody may read it, or a tool has closed it


def _end_at_once_on_ctrl_c() -> None:
    """Let SIGINT end the process as SIGTERM does, without Python's help.

    A handler in Python runs only when the main thread gets to it. A signal that comes just before
    `read` blocks would wait for the next line: seen in 1 of 100 ends by SDK 1.13.3, which sends
    SIGTERM and leaves our input open.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else: the parent ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def mcp_serve(make_server: Callable[[], McpServer]) -> typing.NoReturn:
    """Serve on standard input and output until the client closes its end; never returns.

    The pipes are taken first and the server is made after that, so that user tools which print
    while they are loaded do no harm.
    """
    source, wire = _private_pipes()
    _end_at_once_on_ctrl_c()
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
        self._lock = threading.Lock()  # around the table of waiting requests
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
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=os.name == "posix",  # so that its children can be ended with it
            )
        except FileNotFoundError:
            raise McpError(f"没有找到程序 {self.command[0]}，请检查命令和 PATH") from None
        except OSError as error:
            raise McpError(f"无法启动 {self.command[0]}：{error.strerror or error}") from error
        self._waiting: dict[str, Any] | None = {}  # id → queue for its reply; None: child gone
        self._lines = queue.SimpleQueue()  # to write; None ends the input of the child
        self.log = collections.deque(maxlen=LOG_LINES)
        work = {
            self._write_lines: self._lines, self._read: self._waiting, self._read_log: self.log,
        }
        for each, place in work.items():
            last = threading.Thread(target=each, args=(self.process, place), daemon=True)
            last.start()
        self._log_reader = last

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
        key, box = str(message["id"]), queue.SimpleQueue()  # str: some servers answer "1" for 1
        with self._lock:
            if self._waiting is not None:
                self._waiting[key] = box
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
        if self._waiting is None:
            raise self.gone()
        self._lines.put(line)

    def end_input(self) -> None:
        """Close the child's input once everything is written; that asks it to end."""
        self._lines.put(None)

    def _write_lines(self, process, lines) -> None:
        with process.stdin, contextlib.suppress(OSError):
            for line in iter(lines.get, None):
                while line:
                    line = line[process.stdin.write(line):]

    def _read(self, process, waiting: dict) -> None:
        lines = io.BufferedReader(process.stdout)
        with lines, contextlib.suppress(OSError, ValueError):
            for line in read_lines(lines):
                if line is None or not line.isspace():
                    self._receive(line, waiting)
        with self._lock:
            if self._waiting is waiting:  # not the table of a child that came after
                self._waiting = None
            for box in waiting.values():
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

    def _read_log(self, process, log) -> None:
        lines = io.BufferedReader(process.stderr)
        with lines, contextlib.suppress(OSError, ValueError):
            for line in read_lines(lines):
                log.append((line or b"").decode("utf-8", "replace").rstrip()[:500])

    def ended(self, seconds: float) -> bool:
        """Whether the child ends within so many seconds."""
        import subprocess

        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

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
_CONTROL = re.compile(
    "(?!\x1b\\[(?:[012]|3[1-6])m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def typed_instead(error: UnicodeError, *, typed: Mapping[int, str] = _TYPED) -> tuple[str, int]:
    """An error handler for `codecs`: what the console lacks is spelled out, or escaped as in JSON.

    >>> "x²中".encode("ascii", "typed_instead")
    b'x^2\\\\u4e2d'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start:error.end].translate(typed))[1:-1], error.end


codecs.register_error("typed_instead", typed_instead)
codecs.register_error("json_escapes", functools.partial(typed_instead, typed={}))


def printable(text: str) -> str:
    """The text for a terminal: control characters are escaped as in JSON, which stays JSON.

    >>> printable("a\\x1b[2J")
    'a\\\\u001b[2J'
    """
    return _CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def said(text: str, limit: int = 80) -> str:
    """What somebody wrote, fit for one line of a message."""
    return " ".join(printable(text if len(text) <= limit else text[:limit] + "…").split())


class Style(NamedTuple):
    """How wide the terminal is, in columns, and whether it shows colour."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, name: str) -> str:
        """The text in the colour of that name, or unchanged."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self.colour and text else text


@functools.lru_cache(2**14)
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
    return text + " " * max(0, width - columns(text))


# Between two of these a line may break: a word or one 汉字, with the marks that may not be parted
# from it, by the rules of Chinese typesetting, and the blank after it.
_PIECE = re.compile(
    r"[（《「『【“‘([{]*(?:[\u2e80-\uffff]|[^\s\u2e80-\uffff“‘”’…]+)"
    r"(?:\s?[，。、；：！？）》」』】”’…,.;:!?)\]}%]|\"(?=\W))*\s?|\S|\s"
)


def _chopped(piece: str, width: int) -> Iterator[str]:
    line, used = "", 0
    for char in piece:
        used += columns(char)
        if line and used > width:
            yield line
            line, used = "", columns(char)
        line += char
    yield line


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; existing line ends are kept.

    >>> wrap("工具调用 tool calling", 12)
    ['工具调用', 'tool calling']
    """
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        pieces = (_chopped(piece, width) for piece in _PIECE.findall(paragraph))
        for piece in itertools.chain.from_iterable(pieces):
            if line and columns(line) + columns(piece.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += piece
        lines.append(line.rstrip())
    return lines


def table(rows: Iterable[Iterable[object]], *, gap=2, right: Iterable[int] = ()) -> list[str]:
    """Rows as aligned lines; the columns numbered in `right` are set flush right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cells)]
    right = set(right)
    return [
        (" " * gap).join(
            " " * (width - columns(cell)) + cell if i in right else pad(cell, width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


def heading(text: str, style: Style) -> str:
    """A title on a rule across the screen."""
    return style.paint(f"── {text} " + "─" * max(2, style.width - columns(text) - 4), "title")


ROLE_WIDTH = 11  # "assistant" and two blanks
MARK_WIDTH = 3
_LONGEST_SHOWN = 400  # characters of one message on screen; --json has everything


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + " ……"


def message_lines(message: dict, style: Style, *, mark: str = "", remark: str = "") -> list[str]:
    """One history message: mark, role and remark on the first line, then its key fields.

    The remark says who acts and what for; without one the text starts on the first line.
    """
    role, calls = message["role"], message.get("tool_calls", ())
    fields = [f"tool_call_id={message['tool_call_id']}"] if role == "tool" else []
    if message.get("content") or not calls:
        fields.append(_shortened(message.get("content") or "（空）"))
    for call in calls:
        fields.append(f"{call['id']}  {call['function']['name']}")
        fields.append(_shortened(call["function"]["arguments"]))
    room = style.width - MARK_WIDTH - ROLE_WIDTH
    lines = [style.paint(line, "dim") for line in wrap(remark, room)] if remark else []
    lines += [line for field in fields for line in wrap(field, room)]
    first = pad(mark, MARK_WIDTH) + style.paint(pad(role, ROLE_WIDTH), role)
    return [first + lines[0], *(" " * (MARK_WIDTH + ROLE_WIDTH) + line for line in lines[1:])]


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 20  演示 Demos      uses §1, §3, §4, §7–§10, §12–§19
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The model is a script; the loop, the tools, the validation and every result are real.

SYSTEM_PROMPT = (
    "你是 CME295 课程的助教。先想清楚需不需要工具：能直接回答就直接回答。"
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


def kv_answer(messages: list[dict]) -> Turn:
    """The answer of scenario 1, quoting the tool's real result."""
    match last_result(messages):
        case {"GiB": gib, "per_token_KiB": kib}:
            return Turn(
                f"KV Cache 约 {gib} GiB（每 token {kib:g} KiB；公式见 Week 1 Day 4 §1.4）。",
            )
        case other:
            return Turn(f"没有算出来。工具说：{other}")


def _sections_answer(messages: list[dict]) -> Turn:
    results = [m["content"] for m in messages if m["role"] == "tool" and '"hits"' in m["content"]]
    found = [hit["section"] for text in results for hit in json.loads(text)["hits"][:1]]
    if len(found) < 2:
        return Turn("没有查到。工具说：" + str(last_result(messages)))
    return Turn(f"GRPO 在 {found[0]}，DPO 在 {found[1]}。")


def _failed_answer(messages: list[dict]) -> Turn:
    return Turn(f"没有查到，工具报错：{last_result(messages)}。我不会编一个数字；请稍后再试。")


WRITTEN_CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2**10"}}</tool_call>'


def _written_call(messages: list[dict]) -> Turn:
    """What a client makes of a model that knows no tool calls but was told how to write them."""
    parts = parse_text_tool_calls(WRITTEN_CALL)
    return Turn(parts.text, parts.calls, finish="stop")


def _number_answer(messages: list[dict]) -> Turn:
    return Turn(f"2 的 10 次方是 {last_result(messages)}。")


def gpu_memory(host: str) -> dict:
    """查询一台机器的 GPU 显存占用，返回已用和总量；查不到时报错。

    Args:
        host: 主机名，例如 "gpu-03"。
    """
    raise ConnectionError(f"连接 {host} 超时")


class Scenario(NamedTuple):
    """One demo: what the user asks, what the scripted model says, a remark for each step."""

    title: str
    lesson: str
    question: str
    script: tuple
    remarks: tuple[str, ...]  # one a step: a model turn, or all results of a turn
    tools: tuple[Callable, ...] = ()


SCENARIOS = (
    Scenario(
        "一次调用：模型开口，程序动手",
        "模型不能执行任何东西，它只写出“想调用什么”；执行、校验、权限都是程序的事。",
        KV_QUESTION,
        (calling(("kv_cache_gib", KV_ARGUMENTS)), kv_answer),
        (
            "模型只是说出要调用什么，这时什么都没有执行", "程序检查参数、执行，把结果交回去",
            "模型根据结果回答",
        ),
    ),
    Scenario(
        "并行调用：一轮两个调用",
        "两个调用互不依赖，就放在同一轮里同时执行；结果按调用顺序交回，一个调用一个结果。",
        "GRPO 和 DPO 分别在讲义的哪一节？",
        (
            calling(
                ("search_notes", {"query": "GRPO", "top_k": 1}),
                ("search_notes", {"query": "DPO", "top_k": 1}),
            ),
            _sections_answer,
        ),
        (
            "模型一次写出两个调用", "程序同时执行，两条 tool 消息按调用顺序排列",
            "模型把两个结果合成一个回答",
        ),
    ),
    Scenario(
        "出错与重试：错误也是给模型读的",
        "参数不对时不抛异常，把“哪里错、要什么、收到什么”写成文字交回：越具体，改得越准。",
        KV_QUESTION,
        (
            calling(("kv_cache_gib", KV_ARGUMENTS | {"seq_len": "8k"})),
            calling(("kv_cache_gib", KV_ARGUMENTS), first=1),
            kv_answer,
        ),
        (
            "模型把 seq_len 写成了 \"8k\"", "程序没有执行，把错误写成文字交回去",
            "模型读懂错误，改成 8192 再调用", "这次参数合格，程序执行", "模型根据结果回答",
        ),
    ),
    Scenario(
        "停不下来的模型：由程序踩刹车",
        "有的模型拿到结果还反复调用。第二次相同的调用只给旧结果和一句提醒，第三次就停。",
        "17*23+4 是多少？",
        tuple(calling(("calculator", {"expression": "17*23+4"}), first=n) for n in range(3)),
        (
            "模型调用计算器", "程序执行", "同样的调用又来一次", "不再执行：旧结果加一句提醒",
            "还是同样的调用", "程序拒绝执行，结束这一次运行",
        ),
    ),
    Scenario(
        "工具坏了：如实说，不编造",
        "工具内部的异常变成一句话（没有堆栈、路径和密钥），模型据此如实回答。",
        "gpu-03 的显存还剩多少？",
        (calling(("gpu_memory", {"host": "gpu-03"})), _failed_answer),
        ("模型调用监控工具", "工具抛出异常，程序把它变成一条结果", "模型承认没有查到"),
        tools=(gpu_memory,),
    ),
    Scenario(
        "调用写在文字里：没有原生调用的模型",
        "有的模型或服务把调用当普通文字写出来。客户端按格式认出它，后面的过程一模一样。",
        "2 的 10 次方是多少？",
        (_written_call, _number_answer),
        (
            f"模型写的文字是 {WRITTEN_CALL}；客户端认出调用，补上 id", "程序照常检查、执行",
            "模型根据结果回答",
        ),
    ),
)

STEP_MARKS = "①②③④⑤⑥⑦⑧⑨⑩"


def opening(question: str) -> list[dict]:
    """A new history: the system prompt and the user's question."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]


def _tools_of(scenario: Scenario, tools: ToolRegistry) -> ToolRegistry:
    """The scenario's own tools and the given ones, except those whose names it needs itself."""
    own = ToolRegistry(scenario.tools)
    return ToolRegistry([*(tool for tool in tools if tool.name not in own), *own])


def play(scenario: Scenario, tools: ToolRegistry) -> tuple[list[dict], list[Event], MockLLM]:
    """Run a scenario to its end: the history, the events, the model."""
    model, messages = MockLLM(scenario.script), opening(scenario.question)
    events = list(run_tool_loop(model, _tools_of(scenario, tools), messages))
    return messages, events, model


def _summary(end: Finished, model: MockLLM) -> str:
    growth = "、".join(map(str, model.asked))
    return (
        f"结束：{STOP_REASONS[end.reason]}。\n共请求模型 {len(model.asked)} 次，"
        f"各带 {growth} 条消息：接口不记事，每次都要重发全部历史。"
    )


def demo_text(number: int, tools: ToolRegistry, style: Style) -> Iterator[str]:
    """The lines of scenario `number` (from 1): each message with its step and who acts."""
    scenario = SCENARIOS[number - 1]
    messages, events, model = play(scenario, tools)
    yield heading(f"场景 {number}  {scenario.title}", style)
    yield from wrap(scenario.lesson, style.width)
    yield ""
    system, user, *rest = messages
    brief = system["content"].partition("。")[0]
    tools_apart = f"{brief}……（工具清单随请求另传，共 {len(_tools_of(scenario, tools))} 个）"
    yield from message_lines({**system, "content": tools_apart}, style)
    yield from message_lines(user, style)
    finishes = iter([e.turn.finish for e in events if isinstance(e, ModelAnswered)])
    steps = iter(zip(STEP_MARKS, scenario.remarks))
    for message, before in zip(rest, messages[1:]):
        mark = remark = ""
        if "assistant" in (message["role"], before["role"]):  # a turn, or the first of its results
            mark, remark = next(steps)
            yield ""
        if message["role"] == "assistant":
            remark += f"（finish_reason={next(finishes)}）"
        yield from message_lines(message, style, mark=mark, remark=remark)
    yield ""
    yield from wrap(_summary(events[-1], model), style.width)


# --- routing: forty tools, five shown ---

ROUTED_REQUEST = "计算 KV Cache 占多少显存"
ROUTED_TO = 5

# request → the tool that should be found; the last two share no word with its description
REQUESTS = (
    ("GRPO 在讲义的哪一节？", "search_notes"),
    ("读一下第 1 周第 4 天的讲义", "read_note"),
    ("17*23+4 等于多少，帮我算一下", "calculator"),
    ("加载 13B 的参数要多大显存", "weights_gib"),
    ("明天上海会下雨吗", "get_forecast"),
    ("给导师发一封邮件，说作业交了", "send_email"),
    ("草拟一个回复，先别发", "draft_reply"),
    ("100 美元能换多少人民币", "convert_currency"),
    ("下周二下午大家都有空的时间", "find_free_time"),
    ("哪个文件里写了 API key", "search_files"),
    ("出门要不要带伞", "get_forecast"),
    ("How much is 200 dollars in euros?", "convert_currency"),
)
# what a model would write when it looks for a tool itself: synonyms, both languages
SECOND_TRIES = {
    "出门要不要带伞": "天气 下雨 weather forecast",
    "How much is 200 dollars in euros?": "货币 汇率 currency",
}


def schema_characters(tools: Iterable[Tool]) -> int:
    """The length of the tool definitions as they are sent in every request."""
    return len(json.dumps([tool.schema() for tool in tools], ensure_ascii=False))


def routing_text(query: str, router: ToolRouter, style: Style) -> Iterator[str]:
    """One request: the tools found with scores and matched words, and what leaving out saves."""
    yield heading(f"路由  {query}", style)
    picked = router.pick(query, ROUTED_TO)
    everything = schema_characters(router.tools)
    if not picked:
        yield from wrap(
            f"{len(router.tools)} 个工具里没有一个和它有共同的词：不猜，全部提供"
            f"（模式文本 {everything:,} 个字符）。", style.width,
        )
        return
    rows = [
        (rank, routed.name, f"{routed.score:.2f}", "、".join(routed.words))
        for rank, routed in enumerate(picked, 1)
    ]
    yield from table([("名次", "工具", "得分", "对上的词"), *rows], right=(0, 2))
    few = schema_characters(routed.tool for routed in picked)
    yield ""
    yield from wrap(
        f"只提供 {len(picked)} 个：模式（schema）文本从 {everything:,} 个字符"
        f"降到 {few:,} 个，每次请求省 {1 - few / everything:.0%}。", style.width,
    )


def requests_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The dozen REQUESTS: at which rank the right tool came, and how many were found."""
    picked = [[found.name for found in router.pick(query, ROUTED_TO)] for query, _ in REQUESTS]
    ranks = [names.index(n) + 1 if n in names else None for names, (_, n) in zip(picked, REQUESTS)]
    rows = [
        (query, name, f"第 {rank}" if rank else "没找到")
        for (query, name), rank in zip(REQUESTS, ranks)
    ]
    yield heading(f"{len(rows)} 个请求，排得准不准", style)
    yield from table([("请求", "该用的工具", "名次"), *rows])
    yield ""
    found = sum(rank is not None for rank in ranks)
    yield f"排第 1：{ranks.count(1)}/{len(rows)}    前 {ROUTED_TO}：{found}/{len(rows)}"


def misses_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The requests that miss, why, and how a model finds the tool by itself with search_tools."""
    yield heading("没找到的，为什么", style)
    tools = {tool.name: tool for tool in router.tools}
    for query, words in SECOND_TRIES.items():
        name = dict(REQUESTS)[query]
        search = ToolCall("call_0", "search_tools", {"words": words})
        found = with_tool_search(router, query, k=ROUTED_TO).call(search)
        yield from wrap(f"“{query}”该用 {name}，它的说明是：{tools[name].description}", style.width)
        yield from wrap("两边没有一个词相同。让模型自己换个说法查：", style.width)
        yield from wrap(f"  search_tools({search.arguments['words']}) → {found.text}", style.width)
        yield ""
    yield from wrap(
        "按词路由不懂同义词，也不会翻译。"
        "办法：说明里写上用户会用的词（中英都写）；让模型用 search_tools "
        "换个说法再查；或者改用向量检索、混合检索（Week 4 Day 2 §2）。", style.width,
    )


def few_or_all_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The loop of scenario 1 with every tool and with the routed ones: same answer, less sent."""
    yield heading("同一个循环，全部工具和路由后的工具", style)
    yield from wrap(f"问：{KV_QUESTION}", style.width)
    for tools in (ToolRegistry(router.tools), router.subset(KV_QUESTION, ROUTED_TO)):
        model = MockLLM((calling(("kv_cache_gib", KV_ARGUMENTS)), kv_answer))
        *_, end = run_tool_loop(model, tools, opening(KV_QUESTION))
        sent = len(model.asked) * schema_characters(tools)
        names = f"（按这个问题挑的：{'、'.join(tools.names)}）" if len(tools) == ROUTED_TO else ""
        yield from wrap(
            f"\n带 {len(tools)} 个工具{names}：请求模型 {len(model.asked)} 次，"
            f"共发送模式文本 {sent:,} 个字符。", style.width,
        )
        yield from wrap(f"答：{end.text}", style.width)


def router_demo_text(query: str, tools: ToolRegistry, style: Style) -> Iterator[str]:
    """The whole demo, or with a query only how that one is routed."""
    router = ToolRouter(tools)
    yield from routing_text(query or ROUTED_REQUEST, router, style)
    if query:
        return
    for part in (requests_text, misses_text, few_or_all_text):
        yield ""
        yield from part(router, style)


# --- a run with a real model, as it happens ---

QUIET, NORMAL, FULL = range(3)  # what the user wants to see besides the answer
_CONTROLS = dict.fromkeys({*range(32), 127} - {9, 10})  # a model must not steer the terminal
_STATUS_WORDS = {word: f"{text}：" for word, text in RESULT_STATUS.items()} | {"ok": ""}


def call_text(call: ToolCall) -> str:
    """The call as one would write it in Python: name(key=value, …)."""
    arguments = arguments_object(call.arguments)
    return f"{call.name}({', '.join(f'{key}={show(value)}' for key, value in arguments.items())})"


def usage_text(end: Finished, seconds: float) -> str:
    """One line on what a run cost."""
    tokens = f"，输入 {end.usage.input}、输出 {end.usage.output} 个 token" if any(end.usage) else ""
    return f"请求模型 {end.turns} 次{tokens}，共 {seconds:.1f} 秒。"


class LiveScreen:
    """Shows a run while it happens. Only the answer may go to `answer`; all else goes to `write`.

    On a terminal a line counts the seconds of waiting, and, when `answer` is given, the text of the
    model appears as it is written. `shown` is then what of the last turn has been shown already.
    """

    def __init__(
        self, write: Callable[[str], None], style: Style, *,
        level: int = NORMAL, terminal: bool = False, answer: Callable[[str], None] | None = None,
    ):
        self._write, self._style, self._level = write, style, level
        self._ticking = terminal and level > QUIET
        self._answer, self.shown = answer, ""
        self._kind = ""  # of the text on the unfinished line: "text", "reasoning" or none
        self._stop: threading.Event | None = None

    def line(self, text: str, name: str = "dim") -> None:
        """One finished line for the user."""
        self._pause()
        for row in text.translate(_CONTROLS).split("\n"):
            self._write(self._style.paint(row, name) + "\n")

    def notice(self, sentence: str) -> None:
        """Something the program had to work around."""
        if self._level > QUIET:
            self.line(f"注意：{sentence}", "assistant")

    def event(self, event: Event) -> None:
        """Show one event of the loop."""
        if self._level > QUIET:
            match event:
                case ModelAsked(number):
                    self._wait("等模型回答" if number == 1 else "等模型读结果")
                case ModelAnswered(turn=turn):
                    self._show_turn(turn)
                case CallStarted(call):
                    self.line(f"→ {self._fitted(call_text(call))}", "assistant")
                    self._wait(f"{call.name[:40]} 运行中")
                case CallFinished(call, result, seconds):
                    took = f"（{seconds:.2f} 秒）" if seconds is not None else ""
                    text = f"← {call.name}{took} {_STATUS_WORDS[result.status]}{result.text}"
                    self.line(self._fitted(text), "bad" if result.is_error else "tool")
                    for repair in result.repairs:
                        self.line(f"  {repair}")
        if isinstance(event, ModelAsked):
            self.shown = ""

    def _show_turn(self, turn: Turn) -> None:
        self._pause()
        if self._level == FULL and turn.reasoning and not self._ticking:
            self.line(f"思考：{turn.reasoning}")
        if turn.calls and turn.text and not self.shown:
            self.line(self._fitted(turn.text))
        if self._level == FULL and turn.usage:
            used = f"本轮输入 {turn.usage.input}、输出 {turn.usage.output} 个 token"
            self.line(f"{used}，结束原因 {turn.finish}")

    def _fitted(self, text: str) -> str:
        """The text in one line of the screen, whole when the user wants all."""
        if self._level == FULL:
            return text
        text = " ".join(text.split())
        room = 2 * self._style.width
        short = text[: 2 * room]  # before it is chopped: that takes quadratic time
        return text if columns(text) <= room else next(iter(_chopped(short, room))) + " ……"

    def delta(self, kind: str, piece: str) -> None:
        """Show a piece of the answer, or of the reasoning, as it arrives."""
        if kind == "again":  # the stream broke, or was reasoning so far; the answer begins anew
            self._pause()
            self.shown = ""
        elif kind == "text" and self._answer:
            self._change_to("text")
            self._answer(piece.translate(_CONTROLS))
            self.shown += piece
        elif kind == "reasoning" and self._ticking and self._level == FULL:
            self._change_to("reasoning")
            self._write(self._style.paint(piece.translate(_CONTROLS), "dim"))

    def _change_to(self, kind: str) -> None:
        if self._kind != kind:
            self._pause()
            self._kind = kind

    def _wait(self, what: str) -> None:
        """Count the seconds in one line of the terminal until something else is shown."""
        self._pause()
        if not self._ticking:
            return
        stop = self._stop = threading.Event()

        def tick() -> None:
            for second in itertools.count():
                if stop.wait(1.0):
                    return
                self._write(f"\r{what} {second + 1} 秒 ")

        self._clock = threading.Thread(target=tick, daemon=True)
        self._clock.start()
        self._waiting = what

    def _pause(self) -> None:
        """End the unfinished line, be it the clock's or the model's."""
        if self._stop:
            self._stop.set()
            self._clock.join()
            self._write("\r" + " " * (columns(self._waiting) + 10) + "\r")
            self._stop = None
        if self._kind:
            (self._answer if self._kind == "text" else self._write)("\n")
            self._kind = ""

    close = _pause  # leaves the screen tidy, whatever happened


# --- the trace of a run: OpenTelemetry's GenAI attribute names, one JSON object a line ---


def _without_secrets(value: object, name: str = "") -> object:
    """A JSON value with what looks like a key or password left out of its texts."""
    match value:
        case str():
            text = f"{name}: {value}"
            for pattern, replacement in _PRIVATE:
                text = pattern.sub(replacement, text)
            return text.removeprefix(f"{name}: ")
        case dict():
            return {key: _without_secrets(inner, key) for key, inner in value.items()}
        case list():
            return [_without_secrets(inner, name) for inner in value]
        case _:
            return value


def _tokens(usage: Usage) -> dict:
    return {
        "gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output,
    }


class Trace:
    """Turns the events of a run into lines of JSON; `write` takes one line. Never holds a key.

    Attributes: opentelemetry.io/docs/specs/semconv/gen-ai. Ours have no prefix: time, duration_s,
    status, attempts, tool_result_tokens (an estimate: servers do not tell them apart).
    """

    def __init__(
        self, write: Callable[[str], None], model, *,
        provider: str, arguments: bool = False, now: Callable[[], str],
    ):
        self._write, self._model, self._now, self._arguments = write, model, now, arguments
        address = host_of(getattr(model, "base_url", ""))
        self._common = {"gen_ai.provider.name": provider, "server.address": address}
        self._requests = self._result_tokens = 0
        self._failures: dict[str, int] = {}  # tool → failed calls in a row

    def _record(self, operation: str, attributes: dict, **ours) -> None:
        record = {"time": self._now(), "gen_ai.operation.name": operation, **self._common, **ours}
        known = {key: value for key, value in attributes.items() if value is not None}
        self._write(json_text(json_value({**record, **known})) + "\n")

    def event(self, event: Event) -> None:
        """Write what is worth a line: model turns, tool calls, the end."""
        match event:
            case ModelAnswered(turn=turn, seconds=seconds):
                self._turn(turn, seconds)
            case CallFinished(call, result, seconds):
                self._call(call, result, seconds)
            case Finished(_, reason, usage, turns):
                self._record("invoke_agent", _tokens(usage), status=reason, turns=turns)

    def _turn(self, turn: Turn, seconds: float | None) -> None:
        sent = getattr(self._model, "requests", self._requests + 1)
        usage = turn.usage or Usage()
        attributes = {
            "gen_ai.request.model": self._model_name(),
            "gen_ai.response.finish_reasons": [turn.finish],
            **_tokens(usage),
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "tool_result_tokens": self._result_tokens,
        }
        attempts = sent - self._requests
        self._record("chat", attributes, duration_s=seconds, status="ok", attempts=attempts)
        self._requests, self._result_tokens = sent, 0

    def _call(self, call: ToolCall, result: ToolResult, seconds: float | None) -> None:
        attempts = self._failures.get(call.name, 0) + 1
        self._failures[call.name] = attempts if result.is_error else 0
        wide = sum(char >= "\u2e80" for char in result.text)
        self._result_tokens += round(0.6 * wide + (len(result.text) - wide) / 4)
        shown = {
            "gen_ai.tool.call.arguments": arguments_object(call.arguments),
            "gen_ai.tool.call.result": result.text,
        }
        attributes = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "error.type": result.status if result.is_error else None,
            **(_without_secrets(shown) if self._arguments else {}),
        }
        ours = {"duration_s": seconds, "status": result.status, "attempts": attempts}
        self._record("execute_tool", attributes, **ours)

    def failed(self, error: BaseException) -> None:
        """Write that the run ended without an answer."""
        attributes = {
            "gen_ai.request.model": self._model_name(), "error.type": type(error).__name__,
        }
        self._record("chat", attributes, status="failed")

    def _model_name(self) -> str | None:
        settings = getattr(self._model, "settings", None)
        return settings.model if settings else None


# --- a model for trying the command offline ---


def _mock_sum(messages: list[dict]) -> Turn:
    return Turn(f"（模拟模型）计算器给出：{last_result(messages)}")


def _mock_hits(messages: list[dict]) -> Turn:
    match last_result(messages):
        case {"hits": [_, *_] as hits}:
            found = "；".join(f"{hit['section']} {hit['title']}" for hit in hits)
            return Turn(f"（模拟模型）讲义里相关的有：{found}")
        case other:
            return Turn(f"（模拟模型）没有查到。工具说：{show(other)}")


def mock_model(question: str) -> MockLLM:
    """A scripted model for any question: it calculates what looks like a sum, else searches."""
    sums = re.findall(r"[\d(][\d.()\s+*/%-]*[\d)]", question.replace("×", "*").replace("÷", "/"))
    expression = next((text for text in sums if re.search(r"[+*/%-]", text)), "")
    if expression:
        return MockLLM([calling(("calculator", {"expression": expression})), _mock_sum])
    return MockLLM([calling(("search_notes", {"query": question[:200], "top_k": 3})), _mock_hits])


# What a learner sees of MCP: the lecture's session, message by message, then the same work without
# a handshake. Client, server, pipe and messages are real; only the remarks are written here.

MCP_SHOWN = 600  # characters of a message that is shown whole; --json has everything
MCP_TEXT = 60  # characters of a text in a longer one, of whose lists only the first entry is shown


class McpStep(NamedTuple):
    """Something the client does, and a remark for each message that this puts on the wire."""

    act: Callable[[McpClient], object]
    remarks: tuple[str, ...]


class McpSession(NamedTuple):
    """A walk through one revision of the protocol."""

    revision: str
    title: str
    lesson: str
    steps: tuple[McpStep, ...]


class McpMessage(NamedTuple):
    """A message that went over the wire: "→" sent, "←" received, "!" a line that is no message."""

    direction: str
    item: object
    remark: str = ""


def _same_steps(*remarks: tuple[str, str]) -> Iterator[McpStep]:
    """The same four requests in each session; a remark for the request and one for the reply."""
    attack = {"expression": "__import__('os').system('ls')"}
    acts = (
        McpClient.tools,
        lambda client: client.call_tool("kv_cache_gib", KV_ARGUMENTS),
        lambda client: client.call_tool("calculator", attack),
        lambda client: client.call_tool("format_disk", {}),
    )
    return map(McpStep, acts, remarks)


MCP_SESSIONS = (
    McpSession(
        "2025-06-18", "第一段  2025-06-18：先握手，再干活",
        "课上讲的会话。主机把服务器当子进程启动，一行一条 JSON：→ 写进它的标准输入，"
        "← 从它的标准输出读到。请求有 id，一定有一个同 id 的答复；通知没有 id，也没有答复。",
        (
            McpStep(McpClient.connect, (
                "打招呼：报上协议版本、自己的能力和名字",
                "服务器同意这个版本，报上能力、名字和使用说明；之后的消息都按这个版本理解",
                "握手完成。这是通知：没有 id，没有答复",
            )),
            *_same_steps(
                (
                    "有哪些工具？",
                    "每个工具的 inputSchema 由主机转给模型："
                    "OpenAI 叫 parameters，Anthropic 叫 input_schema",
                ),
                (
                    "模型说要调用工具，主机替它发出 tools/call",
                    "content 是给模型读的文字；structuredContent 是同一个结果，给程序用",
                ),
                (
                    "有人想借计算器执行命令",
                    "第一种错：工具说不行。这是正常的 result，isError 为 true，"
                    "原因交给模型读，模型可以改了再来",
                ),
                (
                    "调用一个不存在的工具",
                    "第二种错：请求本身不对。这是 JSON-RPC 的 error，只有程序能改，不交给模型",
                ),
            ),
            McpStep(lambda client: client.request("tools/destroy"), (
                "调用一个不存在的方法", "也是第二种错，只是代码不同：没有这个方法是 -32601",
            )),
        ),
    ),
    McpSession(
        "2026-07-28", "第二段  2026-07-28：没有握手，每个请求自带信封",
        "同一个进程，同一根管道，同样的四件事。版本和能力改写在每个请求的 params._meta 里，"
        "服务器不用记住前面说过什么。",
        (
            McpStep(McpClient.connect, (
                "先问一句服务器会什么；不问也行，直接 tools/list 一样有答复",
                "supportedVersions 列出它会的全部版本，双方都会的最新一版就是 2026-07-28",
            )),
            *_same_steps(
                (
                    "请求里多了 _meta，其余和第一段一样",
                    "结果多了 resultType（complete 是办完了）；"
                    "列表还有 ttlMs 和 cacheScope：能缓存多久、给谁用",
                ),
                ("同样只多了 _meta", "多了 resultType 和 _meta，内容一个字都没有变"),
                ("还是那条命令", "第一种错没有变：办完了，但工具说不行"),
                ("还是那个工具", "第二种错也没有变；error 里没有 resultType"),
            ),
            McpStep(lambda client: client.request("ping"), (
                "ping 在这一版里取消了", "所以它和别的不认识的方法一样，是 -32601",
            )),
        ),
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
    for path in getattr(args, "tools", None) or ():
        command += ["--tools", os.path.abspath(path)]
    if getattr(args, "notes", None):
        command += ["--notes", os.path.abspath(args.notes)]
    return command


def _traced(
    steps: Iterable[McpStep], client: McpClient, trace: list[tuple[str, object]],
) -> Iterator[McpMessage]:
    """The messages of each step; an error reply is one of them and no reason to stop."""
    for step in steps:
        remarks = itertools.chain(step.remarks, itertools.repeat(""))
        try:
            with contextlib.suppress(RpcError):
                step.act(client)
        finally:  # the last messages before a server fails say most
            while trace:
                direction, item = trace.pop(0)
                yield McpMessage(direction, item, "" if direction == "!" else next(remarks))


def mcp_sessions(command: Sequence[str]) -> Iterator[McpSession | McpMessage | ToolRegistry]:
    """Both sessions with one server process, each headed by its McpSession; last its tools.

    While the caller uses those tools the messages go on: they come after the registry.
    """
    trace: list[tuple[str, object]] = []
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        for session in MCP_SESSIONS:
            yield session
            client = McpClient(server.send, revision=session.revision)
            yield from _traced(session.steps, client, trace)
        tools = client.tools()
        trace.clear()
        yield tools
        yield from (McpMessage(*message) for message in trace)


def _mcp_kind(item: object) -> str:
    match item:
        case {"method": method, "id": id}:
            return f"请求 {method}  id={show(id)}"
        case {"method": method}:
            return f"通知 {method}"
        case {"error": {"code": code}, **rest}:
            return f"error {code}  id={show(rest.get('id'))}"
        case {"result": {"isError": True}, "id": id}:
            return f"result（isError）  id={show(id)}"
        case {"result": _, "id": id}:
            return f"result  id={show(id)}"
    return "不是消息的一行"


def _abridged(value: object) -> object:
    """The value with long texts cut and lists shown by their first entry."""
    match value:
        case str() if len(value) > MCP_TEXT:
            return value[:MCP_TEXT] + "…"
        case [dict() as first, _, *_]:
            return [_abridged(first), f"…… 还有 {len(value) - 1} 个"]
        case list():
            return [_abridged(item) for item in value]
        case dict():
            return {key: _abridged(item) for key, item in value.items()}
    return value


def mcp_message_lines(message: McpMessage, style: Style) -> list[str]:
    """One message: direction, what kind it is, the remark, and the JSON itself."""
    lines = [f"{message.direction} {style.paint(_mcp_kind(message.item), 'title')}"]
    if message.remark:
        lines += [style.paint("  " + line, "dim") for line in wrap(message.remark, style.width - 2)]
    value = json_value(message.item)
    text = message.item if isinstance(message.item, str) else json_text(value)
    if len(text) > MCP_SHOWN:
        notice = f"（共 {len(text)} 个字符，这里只写出一部分；加 --json 看全文）"
        text = json_text(_abridged(value)) + notice
    return lines + ["  " + line for line in wrap(text, style.width - 2)] + [""]


def mcp_message_json(message: McpMessage) -> str:
    """One line of a trace."""
    return json_text({"direction": message.direction, "message": json_value(message.item)})


def _chapter(title: str, lesson: str, style: Style) -> list[str]:
    return [heading(title, style), *wrap(lesson, style.width), ""]


def mcp_demo_text(command: Sequence[str], style: Style) -> Iterator[str]:
    """The lines of the demo: two sessions, then the loop of scenario 1 with the server's tools."""
    for item in mcp_sessions(command):
        if isinstance(item, McpSession):
            yield from _chapter(item.title, item.lesson, style)
        elif isinstance(item, McpMessage):
            yield from mcp_message_lines(item, style)
        else:
            yield "两代的差别"
            for line in table(MCP_DIFFERENCES):
                yield from wrap(f"  {line}", style.width)
            yield "同一台服务器同时会两代：每条消息自己说明是哪一代，不用先选定。"
            yield ""
            lesson = "场景 1 原样再来一遍：循环没有变，只是工具在另一个进程里。"
            yield from _chapter("第三段  模型通过 MCP 用工具", lesson, style)
            yield from demo_text(1, item, style)
            yield from ("", "这一次调用在管道上是这两条消息：", "")
    yield from wrap(
        "主机和工具之间是 MCP，主机和模型之间是 function calling：各管一段，互不代替。",
        style.width,
    )


def mcp_demo_json(command: Sequence[str]) -> Iterator[str]:
    """The same as a trace: one JSON object per line, {"direction", "message"}."""
    for item in mcp_sessions(command):
        if isinstance(item, McpMessage):
            yield mcp_message_json(item)
        elif isinstance(item, ToolRegistry):  # its messages follow
            play(SCENARIOS[0], item)


# ── Somebody else's server ──

_OFFERS = (  # capability, method, key of its result, what to call it
    ("tools", "tools/list", "tools", "工具"),
    ("resources", "resources/list", "resources", "资源"),
    ("resources", "resources/templates/list", "resourceTemplates", "资源模板"),
    ("prompts", "prompts/list", "prompts", "提示词"),
)


def _offered(client: McpClient, *, method: str, key: str, label: str) -> Iterator[str]:
    entries = client.pages(method, key)
    yield f"{label} {len(entries)} 个"
    for entry in entries:
        name = entry.get("name") or entry.get("uri") or entry.get("uriTemplate")
        about = str(entry.get("description") or entry.get("title") or "").strip().split("\n")[0]
        yield f"  {name}  {about}".rstrip()


def mcp_visit(command: Sequence[str]) -> Iterator[McpMessage | str]:
    """Connect to any server and ask what it offers: the messages, then a summary in lines."""
    trace: list[tuple[str, object]] = []
    offers: list[str] = []
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        client = McpClient(server.send, restart=server.restart)
        yield from _traced([McpStep(McpClient.connect, ())], client, trace)
        if not client.revision:
            raise McpError("服务器用 error 拒绝了握手，原因见它最后的答复")
        for capability, method, key, label in _OFFERS:
            if capability in client.capabilities:
                ask = functools.partial(_offered, method=method, key=key, label=label)
                step = McpStep(lambda client, ask=ask: offers.extend(ask(client)), ())
                yield from _traced([step], client, trace)
        name, version = client.server.get("name", "没有报名字"), client.server.get("version", "")
        yield f"服务器：{name} {version}".rstrip()
        yield f"协议版本：{client.revision}"
        yield from offers


def mcp_visit_text(command: Sequence[str], style: Style) -> Iterator[str]:
    """The lines of `--mcp-demo -- COMMAND …`."""
    yield heading(" ".join(command), style)
    for item in mcp_visit(command):
        if isinstance(item, McpMessage):
            yield from mcp_message_lines(item, style)
        else:
            yield from wrap(item, style.width)


# ── Examining a server ──
# Only its lines are looked at, so it may be written in anything. A finding is a key of FAULTS and a
# place. Observed with mcp 1.30.0 and 2.3.0, TypeScript SDK 1.32.2 and 2.4.0; hosts by their public
# issues; November 2026.

DOCTOR_SECONDS = 3.0  # for one answer
SLOWEST_START = 10.0  # seconds until Codex gives up
MOST_PLACES = 5  # shown of one fault: a server may have hundreds of tools, or log to its output
MOST_COMBINED = 60  # characters of server name and tool name together that Cursor accepts
GRAVE = "[会坏]"  # in front of a finding that breaks a host
_ALL, _LIST = "全部官方 SDK 收不到这条消息", "全部官方 SDK 拒绝整个列表"
_WAITS, _ANSWER = "全部主机一直等到超时", "不认识的请求也要回 error（-32601），不要不出声"

# what is wrong, which host it breaks and how (nothing: then it is advice), what to do
FAULTS = {
    # single lines
    "BOM": ("有一行以 BOM 开头", _ALL, "输出不带 BOM 的 UTF-8"),
    "bytes": ("有一行不是 UTF-8", "Python SDK 连接崩溃", "消息按 UTF-8 编码成字节再写出"),
    "NaN": ("JSON 里有 {}", "TypeScript SDK 一直等到超时", "换成 null 或字符串"),
    "half": ("文字里有半个字符（\\ud800 一类）", "Python SDK 一直等到超时", "换成 U+FFFD"),
    "noise": ("标准输出上有不是 JSON 的一行：{}", "Claude Desktop 弹出错误", "日志写到标准错误"),
    "no object": ("有一行 JSON 不是对象", "Claude Desktop 弹出错误", "一行写一个 JSON-RPC 对象"),
    "jsonrpc": ('有消息没有写 "jsonrpc": "2.0"', _ALL, "每条都写上"),
    "error": ("error 里没有整数 code 和文字 message：{}", _ALL, "两样都写上"),
    "null id": ("有消息的 id 是 null", "", "不写这个键，否则 Claude Desktop 弹出错误"),
    "long": ("有一行超过 10 MiB", "TypeScript SDK 断开连接", "截短结果，或者分页"),
    "twice": ("一个请求答复了两次", "mcp 1.30.0 崩溃", "每个请求只答复一次"),
    # opening
    "start": ("initialize（id 是 0）没有得到结果{}", "全部主机连接不上", "先让它在终端里跑起来"),
    "slow": ("第一次答复要 {} 秒", "Codex 只等 10 秒", "先答复，费时的准备用时再做"),
    "version": ("initialize 同意的版本是 {}", "全部官方 SDK 连接不上", "回 2025-11-25 或更早的"),
    "about": ("initialize 没有给 serverInfo 或 capabilities", "全部官方 SDK 连接不上", "补上"),
    "null": ("{} 是 null", "TypeScript SDK 拒绝整个结果", "没有值就不要写这个键"),
    "window": ("握手完成前不回答 {}", "VS Code 一直等到超时", _ANSWER),
    "again": ("不回答第二次 initialize", "Claude Desktop 一直等到超时", "再答复一次"),
    "probe": ("不回答 server/discover", "官方 SDK 启动时多等 10 到 60 秒", _ANSWER),
    "probe kills": ("收到 server/discover 就退出", "mcp 2.3.0 和 fastmcp 连接不上", _ANSWER),
    "no way back": ("答过 server/discover 就不再握手", "mcp 2.3.0 和 fastmcp 连接不上", _ANSWER),
    "locked": ("答过 server/discover 就不再握手", "Claude Code 连接不上", "按每条消息判断版本"),
    "stateless": ("没有先问 server/discover 就不答复", "TypeScript SDK 2.4.0 没有工具", "单独答复"),
    "modern": ("2026-07-28 的 {}", "", "规范要求写上"),
    # lists
    "list": ("{} 没有得到结果", "全部官方 SDK 列不出来", "没有内容就回空列表"),
    "undeclared": ("{} 没有得到结果", "", "没有内容就回空列表：没有声明，Claude 也会问"),
    "no list": ("结果里没有列表 {}", _LIST, "没有内容就写 []"),
    "field": ("{}", _LIST, "补上"),
    "kind": ("{} 不是文字", _LIST, "改成字符串"),
    "names": ("{} 里有同名的", "Claude 和 OpenAI 的接口拒绝请求", "改名"),
    "cursor": ("{} 的 nextCursor 没完没了", "有的客户端一直翻页", "最后一页不写它"),
    "name": ("工具 {} 的名字不合规", "Claude Desktop 不显示任何工具", "只用英文字母、数字、_、-"),
    "combined": ("工具 {} 的名字加上服务器名太长", "Cursor 丢掉这个工具", "合起来最多 60 个字符"),
    "no text": ("工具 {} 没有说明", "", "写清做什么、什么时候用，模型靠它选工具"),
    "text": ("工具 {} 的说明超过 1024 个字符", "OpenAI 的接口拒绝请求", "改短"),
    "root": ('{}最外层不是 "type": "object"', "TypeScript SDK 拒绝整个列表", "补上"),
    "$schema": ("{}声明了 $schema", "Claude Desktop 和 Claude Code 拒绝这个工具", "删掉 $schema"),
    "union": ("{}最外层有 anyOf、oneOf 或 allOf", "Claude 和 OpenAI 的接口拒绝", "移到属性里面"),
    "part": ("{}的 properties 里有 true 一类", "TypeScript SDK 拒绝整个列表", "用 {} 代替"),
    "big": ("{}超过 8 KB", "", "删去少用的参数，小模型读不下"),
    # calls
    "content": ("{}的结果没有 content 列表", "mcp 1.30.0 和 2.3.0 报错", "没有内容就写 []"),
    "block": ("{}的 content 里有不认识的内容", "全部官方 SDK 拒绝这个结果", "用 text 等五种"),
    "output": ("{}的结果不符合 outputSchema", "全部官方 SDK 拒绝这个结果", "两者要一致"),
    "too much": ("{}的结果接近 1 MiB", "Claude Desktop 拒绝这个结果", "截短"),
    "silent": ("{}没有答复", _WAITS, "出错也要回 isError 或 error"),
    "unknown": ("不回答不认识的方法", _WAITS, _ANSWER),
    # manners
    "fragile": ("收到{}之后不再答复", "对方只要发错一行，连接就断了", "回 error，继续读下一行"),
    "wrong lines": ("不回答：{}", "", "回 error（-32700、-32600 或 -32602），对方才不会空等"),
    "notified": ("回答了通知", "", "通知没有 id，不要答复，出错也不答"),
    "end": ("输入关闭 2 秒后还没有退出", "", "读到输入结束就退出，不然主机要强行结束它"),
    "died": ("中途断开：{}", "全部主机断开连接", "看它的日志，让它不要退出"),
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

Findings = Iterator[tuple[str, object]]
_HELLO = {"protocolVersion": LATEST_LEGACY.name, "capabilities": {}, "clientInfo": CLIENT_INFO}
_ENVELOPE = {"_meta": {VERSION_KEY: MODERN.name, CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}}


def _loose_json(line: bytes | None, on_constant: Callable[[str], object] | None = None) -> object:
    """The JSON value in a line, forgiving what some hosts do not; None if there is none."""
    text = (line or b"").decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, parse_constant=on_constant)
    except (ValueError, RecursionError):
        return None


class Patient(StdioServer):
    """A server under examination: its lines are kept as they came, and read if at all possible."""

    def __init__(self, command: Sequence[str], patience: float):
        self.patience = patience  # seconds for one answer
        self.lines: list[bytes | None] = []
        self.about: dict | None = {}  # the result of initialize; None: there was none
        self.tools: list[dict] = []
        self.name, self.modern = "", False
        self._ids = itertools.chain((0, "server-discover-probe-1"), itertools.count(2))
        super().__init__(command)

    def _receive(self, line: bytes | None, waiting: dict) -> None:
        self.lines.append(line)
        with contextlib.suppress(RecursionError):
            if isinstance(message := _loose_json(line), dict):
                super()._receive(encode(json_value({"jsonrpc": "2.0", **message})), waiting)

    def ask(self, method: str, params: dict | None = None) -> dict:
        """The reply; {} when there is none in time. Ids are as official clients choose them."""
        try:
            return self.send(request_message(next(self._ids), method, params), self.patience)
        except ServerSilentError:
            return {}

    def reaction(self, line: bytes) -> list[object]:
        """The replies that this line causes, told from others by a ping after it."""
        before = len(self.lines)
        self.write(line)
        if not self.ask("ping"):
            raise ServerSilentError("ping")
        time.sleep(DOCTOR_SECONDS / 30)  # it may answer in any order
        replies = [m for m in map(_loose_json, self.lines[before:]) if "method" not in (m or ())]
        return replies[1:]


def _nulls(value: object, path: str) -> Findings:
    """Every null that stands for a missing field; in defaults and enums it is a value."""
    match value:
        case None:
            yield "null", path
        case dict():
            for key, item in value.items():
                if key not in ("default", "enum", "const", "examples"):
                    yield from _nulls(item, f"{path}.{key}")
        case list():
            for number, item in enumerate(value):
                yield from _nulls(item, f"{path}[{number}]")


def _in_line(line: bytes | None) -> Findings:
    constants: list[str] = []
    value = _loose_json(line, constants.append)
    tests = {
        "long": line is None,
        "BOM": line and line.startswith(codecs.BOM_UTF8),
        "bytes": line and line.decode("utf-8", "ignore").encode("utf-8") != line,
        "noise": line and value is None and show(line.decode("utf-8", "replace").strip()),
        "NaN": " 和 ".join(dict.fromkeys(constants)),
        "half": _HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)),
        "no object": value is not None and not isinstance(value, dict),
        "jsonrpc": isinstance(value, dict) and value.get("jsonrpc") != "2.0",
        "error": isinstance(value, dict) and "error" in value and [
            type(as_object(value["error"]).get(key)) for key in ("code", "message")
        ] != [int, str] and show(value["error"]),
        "null id": isinstance(value, dict) and value.get("id", 0) is None,
    }
    yield from ((key, found) for key, found in tests.items() if found)


def _in_lines(lines: Sequence[bytes | None]) -> Findings:
    for line in lines:
        yield from _in_line(line)
    answered = [
        show(message["id"]) for line in lines
        if isinstance(message := _loose_json(line), dict)
        and "method" not in message and message.get("id") is not None
    ]
    if len(set(answered)) < len(answered):
        yield "twice", ""


def _in_schema(schema: object) -> Iterator[str]:
    schema = as_object(schema)
    parts = schema.get("properties", {})
    tests = {
        "root": schema.get("type") != "object",
        "$schema": "$schema" in schema,
        "union": {"anyOf", "oneOf", "allOf"} & schema.keys(),
        "part": not isinstance(parts, dict) or any(not isinstance(p, dict) for p in parts.values()),
        "big": len(json_text(json_value(schema))) > 8192,
    }
    yield from (key for key, found in tests.items() if found)


def _in_tool(tool: dict, server: str) -> Findings:
    name, text = tool.get("name"), str(tool.get("description") or "")
    tests = {
        "name": not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(name)),
        "combined": len(f"{server}{name}") > MOST_COMBINED,
        "no text": not text.strip(),
        "text": len(text) > DESCRIPTION_LIMIT,
    }
    yield from ((key, show(name)) for key, found in tests.items() if found)
    for key in ("inputSchema", "outputSchema"):
        if key in tool:
            yield from ((fault, f"工具 {show(name)} 的 {key} ") for fault in _in_schema(tool[key]))


_TEXTS = ("name", "title", "description", "uri", "uriTemplate", "mimeType")
_NEEDED = {
    "tools": ("name", "inputSchema"), "resources": ("uri", "name"),
    "resourceTemplates": ("uriTemplate", "name"), "prompts": ("name",),
}


def _in_list(key: str, result: dict, server: str) -> Findings:
    entries = result.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        yield "no list", key
        return
    yield from _nulls(result, "结果")
    for number, entry in enumerate(entries):
        for field in _NEEDED[key]:
            if field not in entry:
                yield "field", f"{key}[{number}] 没有 {field}"
        for field in _TEXTS:
            if not isinstance(entry.get(field), (str, type(None))):
                yield "kind", f"{key}[{number}].{field}"
        if key == "tools":
            yield from _in_tool(entry, server)
    names = [show(entry.get("name")) for entry in entries]
    if key in ("tools", "prompts") and len(set(names)) < len(names):
        yield "names", key


def _in_result(who: str, result: dict, output: object) -> Findings:
    """What is wrong with the result of a call."""
    content, value = result.get("content"), result.get("structuredContent")
    kinds = {"text", "image", "audio", "resource", "resource_link"}
    if not isinstance(content, list):
        yield "content", who
    elif not all(isinstance(block, dict) and block.get("type") in kinds for block in content):
        yield "block", who
    elif len(result_text(result)) > 1_000_000:
        yield "too much", who
    if isinstance(output, dict) and result.get("isError") is not True:
        checkable = not check_schema(output)
        if not isinstance(value, dict) or checkable and validate_arguments(value, output):
            yield "output", who


def _example(schema: object) -> object:
    """Some value that the schema may accept."""
    match schema:
        case {"default": value} | {"const": value} | {"enum": [value, *_]}:
            return value
        case {"examples": [value, *_]} | {"minimum": value}:
            return value
        case {"type": "object", **rest}:
            parts = rest.get("properties") or {}
            return {name: _example(parts.get(name)) for name in rest.get("required") or ()}
        case {"type": str() as kind}:
            return {"integer": 1, "number": 1, "boolean": False, "array": []}.get(kind, "test")
    return "test"


# The examination, one session after another; each stage asks and yields what it finds.


def _opening(patient: Patient) -> Findings:
    """The handshake as most hosts do it today."""
    begin, result = time.monotonic(), None
    with contextlib.suppress(ServerGoneError):
        result = patient.ask("initialize", _HELLO).get("result")
    took = time.monotonic() - begin
    if not isinstance(result, dict):
        patient.about = None
        yield "start", "".join(f"；它最后的日志：{line}" for line in list(patient.log)[-1:])
        return
    patient.about = result
    patient.patience = DOCTOR_SECONDS + 2 * took  # the next start takes as long
    if took > SLOWEST_START:
        yield "slow", round(took)
    if REVISIONS.get(str(result.get("protocolVersion")), MODERN).modern:
        yield "version", show(result.get("protocolVersion"))
    match result:
        case {"serverInfo": {"name": str() as name, "version": str()}, "capabilities": dict()}:
            patient.name = name
        case _:
            yield "about", ""
    yield from _nulls(result, "initialize")
    for method, params in (("logging/setLevel", {"level": "info"}), ("ping", None)):
        if not patient.ask(method, params):
            yield "window", method
    patient.write(encode(notification_message("notifications/initialized")))


def _offers(patient: Patient) -> Findings:
    """The four lists with all their pages; the tools are kept for calling."""
    offered = as_object(patient.about.get("capabilities"))
    for capability, method, key, _ in _OFFERS:
        params, cursors = None, set()
        for _ in range(MOST_PAGES):
            reply = patient.ask(method, params)
            result = reply.get("result")
            if not isinstance(result, dict):
                yield "list" if capability in offered or not reply else "undeclared", method
                break
            yield from _in_list(key, result, patient.name)
            if key == "tools" and isinstance(result.get(key), list):
                patient.tools += result[key]
            params = {"cursor": result.get("nextCursor")}
            if not isinstance(params["cursor"], str):
                break
            if params["cursor"] in cursors:
                yield "cursor", method
                break
            cursors.add(params["cursor"])
        else:
            yield "cursor", method


def _calls(patient: Patient) -> Findings:
    """Calls that do no harm: of no tool at all, and of tools that say they only read."""
    calls = [("不存在的工具", "no_such_tool", {}, None)]
    for tool in patient.tools:
        match tool:
            case {
                "name": name, "inputSchema": {"type": "object"} as schema,
                "annotations": {"readOnlyHint": True},
            } if not check_schema(schema):
                arguments = _example(schema)
                if not validate_arguments(arguments, schema):
                    calls.append((f"工具 {show(name)} ", name, arguments, tool.get("outputSchema")))
    for who, name, arguments, output in calls:
        reply = patient.ask("tools/call", {"name": name, "arguments": arguments})
        if not reply:
            yield "silent", f"调用{who}"
        elif isinstance(reply.get("result"), dict):
            yield from _in_result(who, reply["result"], output)
    if not patient.ask("no/such/method"):
        yield "unknown", ""
    if not patient.ask("initialize", _HELLO):
        yield "again", ""


def _manners(patient: Patient) -> Findings:
    """What it makes of wrong lines, of a notification, and of the end of its input."""
    silent = []
    for name, line in WRONG_LINES.items():
        try:
            if not patient.reaction(line):
                silent.append(name)
        except McpError:
            yield "fragile", name
            return
    if silent:
        yield "wrong lines", "、".join(silent)
    if patient.reaction(encode(notification_message("notifications/no_such"))):
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
    result = reply.get("result")
    versions = result.get("supportedVersions") if isinstance(result, dict) else None
    patient.modern = isinstance(versions, list) and MODERN.name in versions
    if patient.modern:
        yield from _modern_keys("server/discover", result)
    if "result" not in patient.ask("initialize", _HELLO):
        yield "locked" if patient.modern else "no way back", ""


def _stateless(patient: Patient) -> Findings:
    """The first line is an enveloped request: TypeScript clients probe another process."""
    result = patient.ask("tools/list", _ENVELOPE).get("result")
    if isinstance(result, dict):
        yield from _modern_keys("tools/list", result)
    else:
        yield "stateless", ""


_STAGES = ((_opening, _offers, _calls, _manners), (_probe,), (_stateless,))


def mcp_examine(command: Sequence[str]) -> Findings:
    """Every finding about a server, each once; it is started up to three times, as hosts do."""
    seen: dict[tuple[str, str], None] = {}
    patience = 3 * SLOWEST_START
    for stages in _STAGES:
        found: list[tuple[str, object]] = []
        with Patient(command, patience) as patient:
            try:
                for stage in stages:
                    if patient.about is not None:
                        found += stage(patient)
            except McpError as error:
                found.append(("died", " ".join(str(error).split())))
        found += _in_lines(patient.lines)
        patience = patient.patience
        seen |= dict.fromkeys((key, str(where)) for key, where in found)
        if patient.about is None or _probe in stages and not patient.modern:
            break
    yield from seen


def mcp_doctor_text(command: Sequence[str]) -> Iterator[str]:
    """One line for each finding, grave ones first, and a verdict."""
    places = collections.defaultdict(list)
    for key, where in mcp_examine(command):
        places[key].append(where)
    for key, found in sorted(places.items(), key=lambda item: not FAULTS[item[0]][1]):
        what, breaks, fix = FAULTS[key]
        mark = GRAVE if breaks else "[建议]"
        for where in found[:MOST_PLACES]:
            line = f"{mark} {what.format(where)}"
            yield "。".join(filter(None, (line, breaks, fix))) + "。"
        if more := found[MOST_PLACES:]:
            yield f"{mark} 同样的问题还有 {len(more)} 处。"
    total = sum(map(len, places.values()))
    grave = sum(len(found) for key, found in places.items() if FAULTS[key][1])
    yield f"{grave} 个问题会让主机出错，{total - grave} 条建议。" if total else SOUND


# ── Registering with a host ──


class Host(NamedTuple):
    """A program that starts MCP servers: the shape of its configuration, and where the file is."""

    title: str
    block: Callable[[str, list[str]], str]
    places: tuple[tuple[str, str], ...]  # (system or scope, path)
    hint: str


def _json_block(key: str, **extra: str) -> Callable[[str, list[str]], str]:
    def block(command: str, arguments: list[str]) -> str:
        entry = {**extra, "command": command, "args": arguments}
        return json.dumps({key: {SERVER_NAME: entry}}, ensure_ascii=False, indent=2)

    return block


def _toml_block(command: str, arguments: list[str]) -> str:
    """A JSON string is also a TOML basic string: the escapes are the same."""
    listed = ", ".join(json_text(argument) for argument in arguments)
    return f"[mcp_servers.{SERVER_NAME}]\ncommand = {json_text(command)}\nargs = [{listed}]"


HOSTS = {
    "claude": Host(
        "Claude Desktop", _json_block("mcpServers"),
        (
            ("macOS", "~/Library/Application Support/Claude/claude_desktop_config.json"),
            ("Windows", r"%APPDATA%\Claude\claude_desktop_config.json"),
            ("Linux", "~/.config/Claude/claude_desktop_config.json"),
        ),
        "改完要完全退出再打开 Claude Desktop。加 --write 可以直接写进去。",
    ),
    "cursor": Host(
        "Cursor", _json_block("mcpServers"),
        (("全部项目", "~/.cursor/mcp.json"), ("一个项目", ".cursor/mcp.json")),
        "Windows 上 ~ 是 %USERPROFILE%。",
    ),
    "vscode": Host(
        "VS Code", _json_block("servers", type="stdio"),
        (
            ("一个工作区", ".vscode/mcp.json"),
            ("macOS", "~/Library/Application Support/Code/User/mcp.json"),
            ("Windows", r"%APPDATA%\Code\User\mcp.json"),
            ("Linux", "~/.config/Code/User/mcp.json"),
        ),
        "也可以用命令 MCP: Open User Configuration 打开。",
    ),
    "codex": Host(
        "Codex", _toml_block,
        (("全部项目", "~/.codex/config.toml"), ("一个项目", ".codex/config.toml")),
        "Windows 上 ~ 是 %USERPROFILE%。",
    ),
}


def mcp_config_text(host: Host, command: Sequence[str], style: Style) -> list[str]:
    """For one host: a title, the block, ready to paste, and where it goes."""
    places = ["  " + line for line in table(host.places)]
    block = host.block(command[0], list(command[1:]))
    return [heading(host.title, style), block, "\n写进这个文件：", *places, host.hint]


def claude_config_path() -> str:
    """Where Claude Desktop keeps its configuration on this system."""
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux")
    return os.path.expanduser(os.path.expandvars(dict(HOSTS["claude"].places)[system]))


def _merged(text: str, block: dict, path: str) -> dict:
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise McpError(f"{path} 不是合法的 JSON（{error}），没有改动它；请先改好") from None
    servers = config.get("mcpServers", {}) if isinstance(config, dict) else None
    if not isinstance(servers, dict):
        raise McpError(f"{path} 里的内容不是预期的对象，没有改动它")
    return config | {"mcpServers": servers | block["mcpServers"]}


def write_claude_config(path: str, command: Sequence[str]) -> Iterator[str]:
    """Merge our block into the file, keeping everything else; a copy of the old file stays.

    Raises McpError, with nothing changed, when the file is no JSON.
    """
    import shutil

    old = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8-sig") as file:
            old = file.read()
    block = json.loads(HOSTS["claude"].block(command[0], list(command[1:])))
    new = json.dumps(_merged(old, block, path), ensure_ascii=False, indent=2) + "\n"
    if old == new:
        yield f"已经登记过了，没有改动：{path}"
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if old:
        names = (f"{path}.bak{number or ''}" for number in itertools.count())
        backup = next(name for name in names if not os.path.exists(name))
        shutil.copy2(path, backup)
        yield f"原来的文件备份在 {backup}"
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8", newline="\n") as file:
        file.write(new)
    os.replace(draft, path)  # at once: a crash leaves the old file or the new one
    yield f"已写入 {path}，请完全退出再打开 Claude Desktop。"


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 21  入口 Command line      uses everything above
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One table of commands, one of options. A command is a function from the parsed flags to lines of
# text; `main` prints them and turns every failure into one line and an exit code.

DEBUG_VARIABLE = "W4D3_DEBUG"  # set to 1 to see tracebacks
WIDEST = 120  # columns; longer lines are hard to read
NARROWEST = 30
PIPED_WIDTH = 80  # columns when the output is no terminal
IMPORT_SECONDS = 60.0  # for one --tools file: torch takes a while, an endless loop for ever
PRINTED = 1_000_000  # characters that user code may print
_FUNCTIONS = (types.FunctionType, types.MethodType, type(functools.cache(len)))


class UsageError(Exception):
    """The command line is wrong; the message says what to do. Exit code 2."""


# --- the user's own tools and notes ---


class _OwnStdout:
    """sys.stdout for our main thread alone: what user code prints, or its child, is stderr's."""

    def __init__(self):
        self._stream, self._printed = sys.stdout, 0
        with contextlib.suppress(OSError, ValueError):  # raised where it is no file, as in a test
            shared = sys.stdout.fileno()
            self._stream = open(  # noqa: SIM115 - open as long as we are
                os.dup(shared), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors,
            )
            os.dup2(sys.stderr.fileno(), shared)

    def __getattr__(self, name: str):
        if threading.current_thread() is threading.main_thread():
            return getattr(self._stream, name)
        return {"write": self._write, "close": bool}.get(name) or getattr(sys.stderr, name)

    def _write(self, text: str) -> int:
        self._printed += len(text)
        if self._printed > PRINTED:
            raise RuntimeError(f"打印了超过 {PRINTED:,} 个字符")
        return sys.stderr.write(text)


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
        if isinstance(error, SyntaxError):
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


def _silence(stream) -> None:
    """Let a stream that failed write to nowhere: Python flushes it again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _writer(stream) -> Callable[[str], None]:
    """Writes text at once. When stderr takes no more there is nobody to tell."""
    def write(text: str) -> None:
        if stream.isatty():  # \r is our own: it counts the seconds
            text = "\r".join(map(printable, text.split("\r")))
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            _silence(stream)
            if stream is not sys.stderr:
                raise

    return write


def _complain(text: str) -> None:
    _writer(sys.stderr)(text + "\n")


def _check_paths(args) -> None:
    """Raise UsageError for a --tools file or a --notes folder that cannot be read."""
    for path in args.tools or ():
        if os.path.isdir(path):
            raise UsageError(f"--tools {said(path)}：这是文件夹，请写出里面的 .py 文件")
        if not path.endswith(".py") or not os.path.isfile(path):
            reason = "不是 Python 文件（.py）" if os.path.exists(path) else "没有这个文件"
            raise UsageError(f"--tools {said(path)}：{reason}")
    if args.notes and not (os.path.isdir(args.notes) and os.access(args.notes, os.R_OK | os.X_OK)):
        reason = "没有权限读" if os.path.isdir(args.notes) else "没有这个文件夹"
        raise UsageError(f"--notes {said(args.notes)}：{reason}")


def chosen_notes(args, **options: Any) -> NotesIndex:
    """The notes of --notes, or the bundled ones; a large folder is indexed in the user's cache."""
    def progress(done: int, total: int) -> None:
        if total > PROGRESS_STEP:  # fewer files take no time
            _complain(f"正在为笔记建索引：{done}/{total} 个文件")

    if not args.notes:
        return NotesIndex(NOTES_FOLDER)
    cache = notes_cache(sys.platform, os.environ, os.path.expanduser("~"))
    return LargeNotesIndex(args.notes, cache, progress=progress, **options)


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
    if args.tools and sys.stdout is not sys.stderr:  # as the server has it
        sys.stdout = _OwnStdout()
    for path in dict.fromkeys(map(os.path.abspath, args.tools or ())):
        add_user_tools(registry, path)
    return registry


def _tell_missing_notes(args) -> None:
    """A word to those who took along this file alone: the rest works, so it is no failure."""
    if not args.notes and not os.path.isdir(NOTES_FOLDER):
        _complain("注意：脚本旁边没有 notes 文件夹，查不到讲义；请一起复制来，或加 --notes DIR")


def _pick_tools(registry: ToolRegistry, names: list[str]) -> ToolRegistry:
    for name in names:
        if name not in registry:
            near = closest(name, registry.names)
            hint = f"，是不是想写 {near}？" if near else "。"
            raise UsageError(f"没有工具 {said(name)}{hint}可用：{'、'.join(registry.names)}")
    return registry.subset(dict.fromkeys(names)) if names else registry


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _lint(picked: ToolRegistry, everything: ToolRegistry, style: Style) -> Iterator[str]:
    found = 0
    for tool in picked:
        advice = review_tool(tool, everything)
        found += len(advice)
        yield style.paint(f"{tool.name}：{len(advice)} 条建议", "bad" if advice else "good")
        for item in advice:
            yield from wrap(f"  {item.where}：{item.what}", style.width)
            for line in wrap(f"    为什么：{item.why}", style.width):
                yield style.paint(line, "dim")
    yield f"共检查 {len(picked)} 个工具，{found} 条建议。"


def run_schema(args, style: Style) -> Iterator[str]:
    """--schema: tool definitions as JSON, in one vendor's format, or a review of them."""
    registry = chosen_tools(args)
    picked = _pick_tools(registry, args.schema)
    if args.lint:
        yield from _lint(picked, registry, style)
    else:
        yield _pretty(tools_in_format(picked, args.format))


def run_call(args, style: Style) -> Iterator[str]:
    """--call: one tool with the arguments a model would write; the text the model would read."""
    name, *texts = args.call
    tools = chosen_tools(args)
    _pick_tools(tools, [name])
    model = MockLLM([Turn(calls=(ToolCall("call_0", name, " ".join(texts)),)), Turn()])
    events = run_tool_loop(model, tools, [])  # for its time limit
    result = next(event.result for event in events if isinstance(event, CallFinished))
    if result.is_error:
        hint = f"（参数的写法：--schema {name}）" if result.status == "bad_arguments" else ""
        raise ToolError(result.text + hint)
    yield result.text


def run_router_demo(args, style: Style) -> Iterator[str]:
    """--router-demo: how a request is routed among the 40 tools of the catalogue."""
    query = args.router_demo if isinstance(args.router_demo, str) else ""
    yield from router_demo_text(query, catalogue_tools(chosen_tools(args)), style)


ROUTE_ABOVE = 20  # --ask routes by itself when more tools are offered than this


def routed_tools(registry: ToolRegistry, question: str, args) -> ToolRegistry:
    """What --ask offers a model: all tools while they are few, else those that fit the question.

    With search_tools among them, so that what routing misses is one call away.
    """
    if args.no_route or (args.route is None and len(registry) <= ROUTE_ABOVE):
        return registry
    k = args.route or ROUTED_TO
    return registry if len(registry) <= k else with_tool_search(ToolRouter(registry), question, k=k)


SCENARIO_NUMBERS = [str(number) for number, _ in enumerate(SCENARIOS, 1)]


def run_demo(args, style: Style) -> Iterator[str]:
    """--demo: scenarios with a scripted model; --json gives their raw message lists."""
    numbers = [int(text) for text in args.demo or SCENARIO_NUMBERS]
    _tell_missing_notes(args)
    tools = chosen_tools(args)
    if args.json:
        runs = [plain_messages(play(SCENARIOS[number - 1], tools)[0]) for number in numbers]
        yield _pretty(runs[0] if len(runs) == 1 else runs)
        return
    for number in numbers:
        yield from demo_text(number, tools, style)
        yield ""


def run_mcp_server(args, style: Style) -> typing.NoReturn:
    """--mcp-server: serve until the host closes; standard output belongs to the protocol."""

    def make_server() -> McpServer:
        notes = chosen_notes(args)
        server = McpServer(chosen_tools(args, notes), notes)
        server.instructions = OWN_INSTRUCTIONS if args.notes or args.tools else INSTRUCTIONS
        return server

    mcp_serve(make_server)


def run_mcp_demo(args, style: Style) -> Iterator[str]:
    """--mcp-demo: every message of a session with our own server, or with the one after `--`."""
    if args.rest and args.json:
        messages = (item for item in mcp_visit(args.rest) if isinstance(item, McpMessage))
        return map(mcp_message_json, messages)
    if args.rest:
        return mcp_visit_text(args.rest, style)
    return mcp_demo_json(our_server(args)) if args.json else mcp_demo_text(our_server(args), style)


def run_mcp_doctor(args, style: Style) -> Iterator[str]:
    """--mcp-doctor: what would go wrong with a server in which host. Exit code 1 if anything."""
    *findings, verdict = mcp_doctor_text(args.rest or our_server(args))
    yield from findings
    yield verdict
    if any(line.startswith(GRAVE) for line in findings):
        raise SystemExit(1)


def run_mcp_config(args, style: Style) -> Iterator[str]:
    """--mcp-config: how to register this server with a host; --write does it."""
    _tell_missing_notes(args)
    if args.write:
        if args.mcp_config != "claude":
            raise UsageError("--write 只用于 --mcp-config claude，其他主机请自己粘贴")
        yield from write_claude_config(claude_config_path(), our_server(args))
        return
    if host := HOSTS.get(args.mcp_config):  # stdout is the file: the block and nothing else
        title, block, *where = mcp_config_text(host, our_server(args), style)
        _complain(title)
        yield block
        _complain("\n".join(where))
        return
    for host in HOSTS.values():
        yield from mcp_config_text(host, our_server(args), style)
        yield ""


def _is_whole(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def _read_question(text: str) -> str:
    """The question itself, or standard input for "-" in the first encoding that fits."""
    if text != "-":
        return os.fsencode(text).decode("utf-8", "replace") if not _is_whole(text) else text
    if sys.stdin.isatty():
        _complain("请输入问题，写完按 Ctrl-D（Windows 按 Ctrl-Z 再回车）")
    data = sys.stdin.buffer.read()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's `>`
    for encoding in ["utf-16"] if wide else ["utf-8-sig", sys.stdin.encoding, "gb18030"]:
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return data.decode(encoding)
    return data.decode("utf-8", "replace")


def _setting(text: str) -> tuple[str, object]:
    """(key, value) of -o KEY=VALUE; the value is JSON where it is JSON, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"-o 要写成 KEY=VALUE，例如 -o temperature=0.2，收到的是 {text}")
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(value)
        json.dumps(parsed, allow_nan=False)  # NaN stays a word
        return key, parsed
    if value[:1] in ("[", "{", '"'):
        raise UsageError(f"-o {key}= 后面不是完整的 JSON：{show(value)}；整段要用单引号括起来")
    return key, value


def _wanted_choice(text: str, tools: ToolRegistry) -> str | dict:
    if text in ("auto", "none", "required"):
        return text
    _pick_tools(tools, [text])
    return {"type": "function", "function": {"name": text}}


def _only_model(model: HttpModel) -> str:
    """The one model that the server lists. Raises UsageError with the list when it has several."""
    names = model.models()
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            "服务器上没有模型；Ollama 可以先 ollama pull qwen2.5:7b，再用 --model 指定"
        )
    raise UsageError("请用 --model 选一个模型：\n" + "\n".join(f"  {name}" for name in names))


def _connect(args, notice: Callable[[str], None]):
    """The model that the flags and the environment choose, without its name if none is given."""
    kind, name = BACKENDS[args.backend], (args.model or "").strip()
    options = dict(map(_setting, args.o or ()))
    settings = Settings(name, options, args.max_tokens, not args.no_stream)
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
    if args.backend not in BACKENDS or args.backend == "transformers":
        raise UsageError(f"--models 要连服务器，--backend {args.backend} 没有")
    yield from _connect(args, _complain).models()


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
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - open until the program ends
    except OSError as error:
        raise UsageError(f"--trace：写不了 {path}：{error.strerror}") from error
    failures = []

    def write(line: str) -> None:
        try:
            if not failures:
                file.write(line.encode())
        except OSError as error:
            failures.append(error)
            screen.line(f"--trace：写不进 {path}：{error.strerror}；记录不完整", "bad")

    return write


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
        error = {"error": str(failure) or "用户中断"} if failure else {}
        yield _pretty({**run, **error})
    elif end.text and screen.shown.strip() != end.text.strip():
        yield end.text
    if failure:
        raise failure
    if not args.q:
        screen.line(usage_text(end, seconds))
    if end.reason != "answered":
        raise BackendError(f"{STOP_REASONS[end.reason]}；{_WHAT_NEXT[end.reason]}")


def screen_style(stream) -> Style:
    """Width and colour of an output stream; NO_COLOR, TERM=dumb and COLUMNS are respected."""
    terminal = stream.isatty()
    wanted = os.environ.get("COLUMNS", "")
    width = PIPED_WIDTH
    if wanted.isdecimal() and int(wanted[:9]) > 0:
        width = int(wanted[:9])
    elif terminal:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if colour and os.name == "nt":
        os.system("")  # switches a Windows console to understanding colour codes
    return Style(max(NARROWEST, min(width, WIDEST)), bool(colour))


def run_ask(args, style: Style) -> Iterator[str]:
    """--ask: the answer of a model that may use the tools; everything else goes to stderr."""
    question = _read_question(args.ask).strip()
    if not question:
        raise UsageError("问题是空的，例如 --ask \"17*23+4 是多少？\"；--ask - 从标准输入读")
    if args.trace_args and not args.trace:
        raise UsageError("--trace-args 要和 --trace FILE.jsonl 一起用")
    both = sys.stdout.isatty() and sys.stderr.isatty() and not (args.json or args.q)
    screen = LiveScreen(
        _writer(sys.stderr), screen_style(sys.stderr),
        level=QUIET if args.q else FULL if args.v else NORMAL,
        terminal=sys.stderr.isatty(), answer=_writer(sys.stdout) if both else None,
    )
    registry = chosen_tools(args)
    registry.coerce = True  # real models write "4096" for 4096; each repair is shown
    tools = routed_tools(registry, question, args)
    choice = _wanted_choice(args.tool_choice, tools)
    approve = _ask_before(screen) if args.approve else None
    model = mock_model(question) if args.backend == "mock" else _connect(args, screen.notice)
    messages = opening(question)
    if args.system is not None:
        messages[0]["content"] = args.system
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

# A reader turns the text after an option into its value, or raises UsageError with what is wrong.


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
        if text not in choices:
            raise UsageError(f"不能是 {said(text)}，可选：{'、'.join(choices)}")
        return text

    return read


class Command(NamedTuple):
    """One thing the program does. `run` takes the parsed flags and yields lines for stdout.

    The metavar says how many words it takes: "N" one, "[N]" at most one, "[N …]" any number,
    "" and "[-- COMMAND …]" none.
    """

    flag: str
    metavar: str
    help: str
    run: Callable[[object, Style], Iterator[str]]
    read: Callable[[str], object] = str  # of one word


class Option(NamedTuple):
    """A flag that shapes commands, namely `commands`. Without a metavar it is a switch."""

    flag: str
    metavar: str
    help: str
    commands: tuple[str, ...]
    read: Callable[[str], object] = _not_blank
    default: object = None
    many: bool = False  # may be given several times; the value is a list


COMMANDS = (
    Command(
        "--demo", "[N …]", "离线看懂工具调用：六个场景，或只看场景 N",
        run_demo, _one_of(SCENARIO_NUMBERS),
    ),
    Command(
        "--router-demo", "[QUERY]", "演示路由：40 个工具里挑 5 个，可以写自己的 QUERY",
        run_router_demo,
    ),
    Command(
        "--schema", "[NAME …]", "打印工具的 JSON Schema，由函数签名和 docstring 生成", run_schema,
    ),
    Command("--call", "NAME [JSON]", "替模型调用一个工具，看参数校验和结果", run_call),
    Command(
        "--mcp-demo", "[-- COMMAND …]", "逐条看 MCP 的消息；-- 后面可写别家服务器的命令",
        run_mcp_demo,
    ),
    Command(
        "--mcp-doctor", "[-- COMMAND …]", "体检 MCP 服务器：在哪个主机里会出什么错、怎么改",
        run_mcp_doctor,
    ),
    Command("--mcp-server", "", "MCP 服务器，由 Claude、Cursor 等主机启动", run_mcp_server),
    Command(
        "--mcp-config", "[HOST]", f"打印主机的配置：{'、'.join(HOSTS)}",
        run_mcp_config, _one_of(("all", *HOSTS)),
    ),
    Command("--ask", "QUESTION", "问真实的模型，它会用这些工具；- 从标准输入读问题", run_ask),
    Command("--models", "", "列出服务器上的模型", run_models),
)
TOOLS = tuple(command.flag for command in COMMANDS if command.flag != "--models")
MESSAGES, MODEL, ASK = ("--demo", "--mcp-demo", "--ask"), ("--ask", "--models"), ("--ask",)

# In the order of --help: the most used first.
OPTIONS = (
    Option("--tools", "FILE.py", "把这个文件里的公开函数也当工具，可写多次", TOOLS, many=True),
    Option("--notes", "DIR", "笔记文件夹，默认是脚本旁边的 notes", TOOLS),
    Option("--json", "", "只打印原始消息：--demo、--mcp-demo、--ask 都能用", MESSAGES),
    Option("--model", "NAME", "模型；不写就用 OPENAI_MODEL，或服务器上唯一的一个", ASK, str),
    Option(
        "--base-url", "URL",
        "服务地址；不写就看 OPENAI_BASE_URL、OLLAMA_HOST，再没有就用本机的 Ollama", MODEL,
    ),
    Option("--key", "KEY", "密钥；不写就看环境变量，那里的密钥只发给它所属的地址", MODEL, str),
    Option(
        "--backend", "NAME",
        f"接口：{'、'.join(BACKENDS)}，或不联网的 mock；默认 openai（含兼容服务）",
        MODEL, _one_of((*BACKENDS, "mock")), "openai",
    ),
    Option("-q", "", "安静：只显示答案和错误", ASK),
    Option("-v", "", "详细：思考、完整的参数和结果", ASK),
    Option("--approve", "", "每次调用前先问我", ASK),
    Option("--system", "TEXT", "系统提示，代替默认的", ASK, str),
    Option("-o", "KEY=VALUE", "原样放进请求，可写多次，例如 -o temperature=0.2", ASK, many=True),
    Option("--max-tokens", "N", "一次回复最多多少 token，默认不限", ASK, _positive(int)),
    Option("--max-turns", "N", "最多请求模型几次，默认 8", ASK, _positive(int), 8),
    Option("--timeout", "SECONDS", "一次回复最多等多久", MODEL, _positive(float)),
    Option("--no-stream", "", "不用流式", ASK),
    Option(
        "--tool-choice", "CHOICE", "auto、none、required 或工具名；默认 auto，不发送",
        ASK, default="auto",
    ),
    Option(
        "--route", "K", f"先挑最合适的 K 个工具再问；多于 {ROUTE_ABOVE} 个时自动挑 {ROUTED_TO} 个",
        ASK, _positive(int),
    ),
    Option("--no-route", "", "不挑，全部工具都给模型", ASK),
    Option("--trace", "FILE.jsonl", "每个事件追加一行 JSON，字段名用 OpenTelemetry 的", ASK),
    Option("--trace-args", "", "同时记下参数和结果", ASK),
    Option(
        "--format", "FORMAT", f"哪家的写法：{'、'.join(TOOL_FORMATS)}；默认 openai",
        ("--schema",), _one_of(TOOL_FORMATS), "openai",
    ),
    Option("--lint", "", "检查工具定义写得好不好，逐条说明怎么改、为什么", ("--schema",)),
    Option("--write", "", "直接写进 Claude Desktop 的配置文件，原文件留备份", ("--mcp-config",)),
)
CONTRADICTIONS = (("--lint", "--format"), ("--route", "--no-route"), ("-q", "-v"))

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


def _flag_lines(rows: Iterable[Command | Option], width: int) -> Iterator[str]:
    indent = HELP_LEFT if width >= SIDE_BY_SIDE else 6
    for row in rows:
        left = f"  {row.flag} {row.metavar}".rstrip()
        first, *more = wrap(row.help, width - indent)
        if columns(left) >= indent:
            yield left
            left = ""
        yield pad(left, indent) + first
        yield from (" " * indent + line for line in more)


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
    yield from itertools.islice(short_help(style), len([*short_help(style)]) - 3)
    groups: dict[str, list[Option]] = {}
    for option in OPTIONS:
        of_one = f"{option.commands[0]} 的选项"
        groups.setdefault("通用选项" if len(option.commands) > 2 else of_one, []).append(option)
    for title, options in groups.items():
        yield from ("", title)
        yield from _flag_lines(options, width)
    yield from ("", "例子")
    for arguments, purpose in EXAMPLES:
        yield f"  # {purpose}"
        yield f"  python3 w4d3_tools_mcp.py {arguments}"
    codes = "0 成功，1 失败，2 命令写错，130 按了 Ctrl-C"
    yield from wrap(f"\n退出码：{codes}。设 {DEBUG_VARIABLE}=1 看堆栈。", width)


# --- the command line → one command and its flags ---


def _sorted_words(words: Iterable[str], rows: dict[str, Command | Option]) -> dict[str, list[str]]:
    """Flag → the texts given with it; words without a flag belong to the command before them."""
    given: dict[str, list[str]] = {}
    command, queue = None, iter(words)
    for word in queue:
        flag, equals, value = word.partition("=")
        row, values = rows.get(flag), [value] if equals else []
        if row is None:
            if command is None or re.fullmatch(r"-+[A-Za-z]\S*", word):
                dashed = flag if flag[:1] == "-" else f"--{flag}"
                near = closest(dashed, [*rows, "--help", "--version"])
                hint = f"是不是想写 {near}？" if near else "用 --help 看怎么写"
                raise UsageError(f"不认识 {said(word)}，{hint}")
            given[command].append(word)
        elif isinstance(row, Command):
            if command:
                twice = f"{flag} 写了两次，请合成一次"
                both = f"{command} 和 {flag} 不能同时用，请分两次运行"
                raise UsageError(twice if command == flag else both)
            command, given[flag] = flag, values
        else:
            if row.metavar and not equals:
                values = [*itertools.islice(queue, 1)]
                if not values or values[0].partition("=")[0] in rows:
                    raise UsageError(f"{flag} 后面要跟一个值")
            given[flag] = given.get(flag, []) + values
    return given


def _flag_value(row: Command | Option, words: list[str]) -> object:
    """What the texts given with a flag mean: a list, one value, or True for a switch."""
    no_words = not row.metavar or "--" in row.metavar
    many = getattr(row, "many", " " in row.metavar and not no_words)
    if not words and row.metavar[:1] not in ("", "["):
        raise UsageError(f"{row.flag} 后面{'至少' if many else ''}要跟一个值")
    if extra := [] if many else words[0 if no_words else 1:]:
        hint = "后面不用写值" if no_words else "只能有一个值，有空格时请加引号"
        raise UsageError(f"{row.flag} {hint}，多出来的是 {said(extra[0])}")
    try:
        values = [row.read(word) for word in words]
    except UsageError as error:
        raise UsageError(f"{row.flag} {error}") from None
    return values if many else (values or [True])[0]


def parse_command_line(own: list[str], rest: list[str]) -> tuple[Command | None, object]:
    """The chosen command (None: none given) and the flags as attributes. Raises UsageError.

    `rest` is what came after `--`: somebody else's command, not ours to read.
    """
    rows = {row.flag: row for row in (*COMMANDS, *OPTIONS)}
    given = _sorted_words(own, rows)
    command = next((row for row in COMMANDS if row.flag in given), None)
    takers = {row.flag: row.commands for row in OPTIONS if row.flag in given}
    if rest:
        takers["-- 后面的命令"] = [row.flag for row in COMMANDS if "--" in row.metavar]
    for what, commands in takers.items():
        if command is None or command.flag not in commands:
            raise UsageError(f"{what} 要和 {' 或 '.join(commands)} 一起用")
    for one, other in CONTRADICTIONS:
        if one in given and other in given:
            raise UsageError(f"{one} 和 {other} 不能同时用，请去掉一个")
    flags = types.SimpleNamespace(rest=rest)
    for flag, row in rows.items():
        value = _flag_value(row, given[flag]) if flag in given else getattr(row, "default", None)
        setattr(flags, flag.lstrip("-").replace("-", "_"), value)
    return command, flags


def _lines(argv: list[str]) -> Iterator[str]:
    style = screen_style(sys.stdout)
    own = list(itertools.takewhile(lambda word: word != "--", argv))
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
        _check_paths(args)
        if args.json or args.schema is not None and not args.lint:
            with contextlib.suppress(AttributeError):  # no text file, as in a test
                sys.stdout.reconfigure(errors="json_escapes")
        yield from command.run(args, style) if command else short_help(style)


# --- output and failure ---


class _OutputError(Exception):
    """Standard output takes nothing more. Exit code 1."""


def _put(line: str) -> None:
    try:
        print(printable(line) if sys.stdout.isatty() else line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputError(f"写不了标准输出：{error.strerror}") from error


def _failed(error: Exception) -> int:
    """Tell the user what went wrong, in one sentence; returns the exit code."""
    if isinstance(error, (BrokenPipeError, _OutputError)):
        _silence(sys.stdout)
    if isinstance(error, BrokenPipeError):  # the reader has seen enough, as in `… --schema | head`
        return 0
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, UsageError):
        _complain(str(error))
        return 2
    known = isinstance(error, (ToolError, SchemaError, BackendError, _OutputError))
    reason = str(error) if known else error_text(error)
    _complain(f"没有完成：{reason}" + ("" if known else f"（设 {DEBUG_VARIABLE}=1 可看堆栈）"))
    return 1


def _open_streams() -> None:
    """Make the three standard streams usable. Raises _OutputError when stdout is closed."""
    closed = sys.stdout is None
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # else the next file opened would take its number
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115 - for good
    for stream in (sys.stdout, sys.stderr):  # a GBK console must not crash on a rare character
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="typed_instead")
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
            _put(line)
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # a command whose lines have said all
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
