#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = []
# ///
"""工具调用（tool calling）与 MCP 的参考实现：一个文件，只用标准库。CME295 第 4 周第 3 天。

    python3 w4d3_tools_mcp.py --demo         离线看懂工具调用
    python3 w4d3_tools_mcp.py --schema       由函数生成的 JSON Schema
    python3 w4d3_tools_mcp.py --help         其余命令

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
    C  models
    § 9  消息格式 Wire formats
    § 12  循环 Loop
    § 13  模拟模型 Mock
    F  command line
    § 19  呈现 Rendering
    § 20  演示 Demos
    § 21  入口 Command line

§1 knows nothing. §2–§3 know types. §4 knows tools, not models. §12 knows models only as something
that answers. §21 knows everything and decides nothing.

How to read it: the first half of the lecture is §1, §4, §12, §13, about 800 lines; take §2 and §3
when you want to know how a schema is made and how arguments are checked. The rest can wait.

Extend it in one place: a tool is one function (§7, or your own file with --tools), a schema keyword
one row in §3, an operation of the calculator one row in §5, a command one row in §21.

Limits: lexical search only; arguments are validated, never guessed; tools run in threads of this
process, so a tool that hangs is abandoned, not killed.

Sources: JSON Schema 2020-12; OpenAI Chat Completions, Anthropic Messages and Gemini API references;
Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import marshal
import math
import operator
import os
import re
import sys
import threading
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

VERSION = "1.0.0"


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
    """One call as the model wrote it. `arguments` is untrusted: JSON text, or a parsed dict.

    `extra` holds keys of the wire that we do not know but must send back (such as signatures).
    """

    id: str
    name: str
    arguments: str | dict
    extra: dict | None = None


class Problem(NamedTuple):
    """One thing wrong with the arguments; `str(problem)` is one sentence for the model."""

    path: str  # "cfg.lr", "rows[1].x", "" for the arguments as a whole
    keyword: str  # the schema keyword that failed: "type", "required", "enum" ...
    text: str

    def __str__(self) -> str:
        return self.text


class ToolResult(NamedTuple):
    """What goes back to the model for one call: always text, and the value behind it if any.

    `status` is "ok" or one of the words in RESULT_STATUS.
    """

    text: str
    status: str = "ok"
    value: object = None  # JSON value behind the text; None for errors and plain text
    repairs: tuple[str, ...] = ()  # what was mended in the arguments, one sentence each

    @property
    def is_error(self) -> bool:
        return self.status != "ok"


RESULT_STATUS = {
    "ok": "工具正常返回",
    "unknown_tool": "没有这个工具",
    "bad_arguments": "参数不合格",
    "failed": "工具执行出错",
    "timed_out": "工具超时",
    "limited": "被限额拦下，没有执行",
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
# Every type is one `Shape` with both directions: the JSON Schema (draft 2020-12) for the model, and
# `read`, which turns the model's JSON into what the annotation promises; so the two cannot drift
# apart. A new type is one row of SCALARS, ARRAYS or OBJECTS; a new way of writing types is one
# function under `@_form` or `@_special`. A dataclass is described as a function is: by the
# signature of its constructor. What JSON cannot express is refused when the tool is defined, with
# the parameter's name in the message; it never becomes a vague "object" or "string". Docstring
# text beats `Annotated` text. A return type never breaks a schema.
# Sources: json-schema.org/draft/2020-12; PEP 484, 589, 593, 655, 695.


# --- scalars: one table, Python type ⇄ JSON ---


def _construct(cls: type, value: Any) -> Any:
    return cls(value)


def _keep(cls: type, value: Any) -> Any:
    return value


def _write_text(value: object) -> str:
    text = str.__str__(value) if isinstance(value, str) else str(value)
    if not text.isascii():
        text.encode()  # raises UnicodeEncodeError, a ValueError: a lone surrogate is not JSON text
    return text


def _read_int(cls: type, number: float) -> int:
    if number != int(number):  # 4096.0 is an integer in JSON Schema, 4096.5 is not
        raise ValueError(number)
    return cls(number)


def _write_int(value: int) -> int:
    if value.bit_length() > 14_000:  # about 4,200 digits; from 4,300 on CPython refuses to print
        raise ValueError("too long")
    return int(value)


def _write_float(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("JSON has no NaN and no infinity")
    return float(value)


def _read_iso(cls: type, text: str) -> Any:
    """Date, time or both from RFC 3339 text; Python 3.10 knows neither `Z` nor odd fractions."""
    if cls.__name__ == "datetime" and ":" not in text:
        raise ValueError("a date alone is no date-time")
    text = re.sub(r"[.,](\d+)", lambda match: "." + match[1][:6].ljust(6, "0"), text.upper())
    return cls.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


def _write_iso(value: Any) -> str:
    return value.isoformat()


class Scalar(NamedTuple):
    """One row of SCALARS."""

    types: str  # JSON types it is written as: "string", or several, "number string"
    extra: dict  # further schema keywords
    read: Callable[[Any, Any], Any]  # class, JSON value of that type → value, or any exception
    write: Callable[[Any], Any]  # value → JSON value, or ValueError


# The keys are text, so that a type is recognised without importing its module.
SCALARS = {
    "builtins.str": Scalar("string", {}, _construct, _write_text),
    "builtins.int": Scalar("integer", {}, _read_int, _write_int),
    "builtins.float": Scalar("number", {}, _construct, _write_float),
    "builtins.bool": Scalar("boolean", {}, _keep, bool),
    "builtins.NoneType": Scalar("null", {}, _keep, lambda value: None),
    "builtins.complex": Scalar("string", {}, _construct, _write_text),
    "builtins.bytes": Scalar(
        "string", {"contentEncoding": "base16"}, lambda cls, text: cls.fromhex(text), bytes.hex
    ),
    "typing.LiteralString": Scalar("string", {}, _keep, _write_text),
    "datetime.date": Scalar("string", {"format": "date"}, _read_iso, _write_iso),
    "datetime.datetime": Scalar("string", {"format": "date-time"}, _read_iso, _write_iso),
    "datetime.time": Scalar("string", {"format": "time"}, _read_iso, _write_iso),
    "datetime.timedelta": Scalar(
        "number", {"description": "秒"}, lambda cls, n: cls(seconds=n), lambda v: v.total_seconds()
    ),
    "decimal.Decimal": Scalar("number string", {}, lambda cls, n: cls(str(n)), _write_text),
    "fractions.Fraction": Scalar("number string", {}, lambda cls, n: cls(str(n)), _write_text),
    "uuid.UUID": Scalar("string", {"format": "uuid"}, _construct, _write_text),
    "pathlib.Path": Scalar("string", {}, _construct, _write_text),
    "pathlib.PurePath": Scalar("string", {}, _construct, _write_text),
}


def _type_key(tp: Any) -> str:
    """The key of a type in the tables: top module and name, "pathlib.Path" or "collections.Set"."""
    name = getattr(tp, "__qualname__", None) or type(tp).__qualname__
    return f"{getattr(tp, '__module__', '').partition('.')[0]}.{name}"


@functools.lru_cache(maxsize=256)
def _scalar_row(cls: Any) -> Scalar | None:
    """The row of a class or of its nearest base that has one: subclasses of `str` work as well."""
    keys = map(_type_key, getattr(cls, "__mro__", (cls,)))
    return next((SCALARS[key] for key in keys if key in SCALARS), None)


# --- value → JSON ---


# Methods by which classes of others export themselves: NamedTuple, numpy/torch/pandas, pydantic.
_EXPORTS = ("_asdict", "tolist", "model_dump")


def _sorted(values: list) -> list:
    """What was in a set, in the same order in every run."""
    try:
        return sorted(values)
    except TypeError:  # mixed types
        return sorted(values, key=repr)


def _plain(value: Any, other: Callable[[Any], Any]) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, other)
    if row := _scalar_row(type(value)):
        try:
            return row.write(value)
        except ValueError:
            return other(value)
    if isinstance(value, Mapping):
        items = [(_plain(key, other), _plain(item, other)) for key, item in value.items()]
        return {key if type(key) is str else json.dumps(key): item for key, item in items}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), other) for name in names}
    for method in _EXPORTS:
        if callable(getattr(type(value), method, None)):
            return _plain(getattr(value, method)(), other)
    if isinstance(value, (set, frozenset)):
        return _sorted([_plain(item, other) for item in value])
    if isinstance(value, Sequence):
        return [_plain(item, other) for item in value]
    return other(value)


def _refuse(value: object) -> Any:
    raise ValueError(f"{type(value).__name__} 类型的值写不成 JSON")


def plain(value: Any, *, other: Callable[[Any], Any] = _refuse) -> Any:
    """The value as strict JSON data, always a copy.

    Dataclass and NamedTuple become objects, a set a sorted array, an Enum its value, dates ISO
    text, bytes hexadecimal. What JSON cannot hold (NaN, a lone surrogate, any other object,
    something that contains itself) goes to `other`, which returns a substitute or, by default,
    raises ValueError.

    >>> plain({"b": (1, 2), "a": {3, 1}})
    {'b': [1, 2], 'a': [1, 3]}
    """
    try:
        return _plain(value, other)
    except RecursionError:
        return other(value)


# --- docstrings ---


class Docstring(NamedTuple):
    """A docstring taken apart."""

    summary: str = ""  # the first paragraph
    description: str = ""  # all running text, summary included, without the sections
    params: Mapping[str, str] = {}  # name → text
    returns: str = ""


# Headings by what stands below them; "other" never reaches the model.
_HEADINGS = {
    "params": "args|arguments|parameters|params|keyword args|keyword arguments|other parameters|"
    "attributes|参数|参数说明|入参|形参|输入|输入参数|属性|字段",
    "returns": "returns|return|yields|yield|返回|返回值|返回结果|输出|产出",
    "other": "raises|raise|exceptions|warns|warning|warnings|note|notes|example|examples|see also|"
    "references|todo|异常|抛出|抛出异常|引发|注意|注意事项|注|备注|警告|示例|例子|例|样例|参见|参考",
}
_FIELDS = {  # reST: `:param int days: text`, `:returns: text`
    "params": "param|parameter|arg|argument|key|keyword",
    "returns": "return|returns|yield|yields",
    "other": "type|rtype|raise|raises|except|exception",
}
_KIND_OF_HEADING = {word: kind for kind, words in _HEADINGS.items() for word in words.split("|")}
_KIND_OF_FIELD = {word: kind for kind, words in _FIELDS.items() for word in words.split("|")}
_HEADING = re.compile(
    r"[\s#*]*([^\W\d_]+(?: [a-z]+)?)\s*(?:[(（].*?[)）])?\**\s*[:：]\**\s*(.*)", re.I
)
_FIELD = re.compile(r"\s*[:@]([a-z]+)\b([^:：]*)[:：]\s*(.*)")
# `name (type) : text`, `a, b: text`, `- name：text`, `*rest: text`; the type may hold brackets.
_NAMES = r"([`*]*[^\W\d]\w*(?:`?\s*[,，、]\s*[`*]*[^\W\d]\w*)*`?)"
_ENTRY = re.compile(rf"([-*•]\s+)?{_NAMES}\s*(?:[(（].*?[)）])?\s*[:：]\s*(.*)")
_COMMA = re.compile("[,，、]")
_NUMPY_ENTRY = re.compile(rf"(){_NAMES}\s*(?:[:：].*)?()")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str]) -> str:
    text = "\n".join(lines).strip()
    return inspect.cleandoc(text) if "\n" in text else text


class _Section(NamedTuple):
    kind: str  # "text", "params", "returns" or "other"
    indent: int  # of its heading; -1 for running text, which only a heading ends
    entry: re.Pattern  # how a parameter begins in it
    lines: list[str]

    def takes(self, line: str) -> bool:
        """Whether a line still belongs here: by indentation, or right below without a blank."""
        if self.indent < 0 or not self.lines or not line.strip() or _indent(line) > self.indent:
            return True
        flat = self.lines[0].strip() and _indent(self.lines[0]) <= self.indent
        listed = self.kind == "params" and self.entry.fullmatch(line.strip())
        return self.entry is _NUMPY_ENTRY or bool(flat and (self.lines[-1].strip() or listed))


def _begin(line: str, below: str) -> _Section | None:
    """The section that a line begins, with what already follows its colon; None if it does not."""
    indent = _indent(line)
    if below.lstrip().startswith("---"):
        kind = _KIND_OF_HEADING.get(line.strip(" :：").lower())
        return _Section(kind, indent, _NUMPY_ENTRY, []) if kind else None
    kind = text = None
    if field := _FIELD.match(line):
        kind, names, text = _KIND_OF_FIELD.get(field[1]), field[2].split(), field[3]
        if kind == "params" and names:
            text = f"{names[-1]}: {text}"  # the name stands last, behind its type
    elif heading := _HEADING.match(line):
        kind, text = _KIND_OF_HEADING.get(heading[1].lower()), heading[2]
        if kind == "params" and text and not _ENTRY.match(text):
            return None  # "输入：一段文字" is running text
    return _Section(kind, indent, _ENTRY, [" " * indent + text] if text else []) if kind else None


def _sections(lines: list[str]) -> list[_Section]:
    """The docstring cut at its headings, by indentation: a colon inside a text cuts nothing."""
    section = _Section("text", -1, _ENTRY, [])
    sections = [section]
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""])):
        heading = ":" in line or "：" in line or "---" in below
        outside = section.indent < 0 or _indent(line) <= section.indent
        begun = _begin(line, below) if heading and outside else None
        if begun and begun.lines and number == 0 and line[0] not in ":@":
            begun = None  # "返回：今天的日期" as a whole docstring is its summary
        if begun or not section.takes(line):
            section = begun or _Section("text", -1, _ENTRY, [line])
            sections.append(section)
        elif section.entry is not _NUMPY_ENTRY or not line.lstrip().startswith("---"):
            section.lines.append(line)
    return sections


def _entries(section: _Section) -> dict[str, str]:
    """Name → text of a parameter section; what is indented deeper belongs to the name above."""
    margin = next((_indent(line) for line in section.lines if line.strip()), 0)
    found: dict[str, list[str]] = {}
    lines, bulleted = [], None  # what stands above the first name is dropped
    for line in section.lines:
        entry = section.entry.fullmatch(line.strip()) if _indent(line) <= margin else None
        if entry and bulleted in (None, bool(entry[1])):
            bulleted, lines = bool(entry[1]), [entry[3]]
            for name in _COMMA.split(entry[2]):
                found[name.strip("`* ")] = lines
        else:
            lines.append(line)
    return {name: _block(lines) for name, lines in found.items()}


def parse_docstring(text: str | None) -> Docstring:
    """A docstring's running text, and its text for each parameter.

    Understands Google, NumPy and reST style, headings in Chinese and English, `:` and `：`.
    What stands under Raises, Note, Example and the like is left out.

    >>> parse_docstring("天气。\\n\\n参数：\\n    city (str)：城市名\\n返回：\\n    一句话").params
    {'city': '城市名'}
    """
    if not text:
        return Docstring()
    running, params, returns = [], {}, []
    for section in _sections(inspect.cleandoc(text).splitlines()):
        if section.kind == "params":
            params.update(_entries(section))
        elif section.kind == "returns":
            returns.append(_block(section.lines))
        elif section.kind == "text":
            running.append("\n".join(section.lines).strip())
    description = "\n\n".join(filter(None, running))
    return Docstring(description.partition("\n\n")[0], description, params, "\n".join(returns))


# --- types → shapes ---


class Shape(NamedTuple):
    """One type, both ways."""

    schema: dict  # JSON Schema; a `$ref` in it points to the `defs` of the scope
    read: Callable[[Any], Any]  # JSON value → Python value; raises if the value does not fit


# Kinds of value the JSON parser makes; `bool` is no number here, and 1.0 is the same kind as 1.
_KIND = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _spelled_types(schema: dict) -> list[str]:
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else names


def _kinds(schema: dict) -> set[str]:
    """The kinds of value that the `type` words of a schema, or of its branches, allow."""
    own = {"number" if name == "integer" else name for name in _spelled_types(schema)}
    return own.union(*map(_kinds, schema.get("anyOf", ())))


def _one_or_list(names: Iterable[str]) -> str | list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) > 1 else names[0]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "…"


class _MisfitError(ToolError):
    """A JSON value and what it should have been; put into words only if somebody reads it."""

    def __str__(self) -> str:
        value, expected = self.args
        return f"{_shown(value)} 不能当作 {expected}"


@functools.lru_cache(maxsize=256)
def _scalar_reader(cls: Any) -> Callable[[Any], Any]:
    row = _scalar_row(cls)
    kinds = _kinds({"type": row.types.split()})

    def read(value: Any) -> Any:
        if _KIND.get(type(value)) in kinds:
            try:
                return row.read(cls, value)
            except Exception:  # each class has its own: ValueError, InvalidOperation ...
                pass
        raise _MisfitError(value, row.extra.get("format") or row.types.replace(" ", " 或 "))

    return read


_WRITE_INSTEAD = (
    "可以用 str、int、float、bool、list[...]、dict[str, ...]、Literal、Enum、dataclass、TypedDict"
)
# How one way of writing a type becomes a shape, make(type, scope): special forms by name, for below
# Python 3.11 some of them are typing_extensions' own; the others by the first test that matches.
_SPECIAL: dict[str, Callable] = {}
_FORMS: list[tuple[Callable, Callable]] = []


def _special(*names: str) -> Callable:
    def register(make: Callable) -> Callable:
        _SPECIAL.update(dict.fromkeys(names, make))
        return make

    return register


def _form(matches: Callable[[Any], bool]) -> Callable:
    def register(make: Callable) -> Callable:
        _FORMS.append((matches, make))
        return make

    return register


def _special_name(origin: Any) -> str | None:
    """The name of a special form of `typing`: "Union", "Literal", "Annotated" ..."""
    if getattr(origin, "__module__", None) not in ("typing", "typing_extensions", "types"):
        return None
    return getattr(origin, "_name", None) or getattr(origin, "__name__", None)


@dataclasses.dataclass(eq=False)
class _Scope:
    """Where names in annotations are looked up, and the `$defs` found so far."""

    module: dict[str, Any] = dataclasses.field(default_factory=dict)
    local: dict[str, Any] = dataclasses.field(default_factory=dict)
    defs: dict[str, Shape] = dataclasses.field(default_factory=dict)
    names: dict[Any, str] = dataclasses.field(default_factory=dict)  # type → its name in `defs`
    making: set[Any] = dataclasses.field(default_factory=set)  # aliases in the making

    def resolve(self, text: str) -> Any:
        """What annotation text means; it is the programmer's own code, as for `get_type_hints`."""
        return eval(text, self.module, self.local)

    def shape(self, tp: Any) -> Shape:
        """The shape of any annotation: scalars by their table, all else by its form."""
        tp = type(None) if tp is None else tp
        row = SCALARS.get(_type_key(tp)) if isinstance(tp, type) else None
        if not row:
            origin = typing.get_origin(tp) or tp
            make = _SPECIAL.get(_special_name(origin))
            make = make or next((make for matches, make in _FORMS if matches(origin)), None)
            if make:
                return make(tp, self)
            row = _scalar_row(tp)
        if not row:
            shown = inspect.formatannotation(tp)
            raise SchemaError(f"类型 {shown} 写不成 JSON Schema；{_WRITE_INSTEAD}")
        return Shape({"type": _one_or_list(row.types.split()), **row.extra}, _scalar_reader(tp))

    def _reference(self, key: Any, name: str) -> Shape:
        if key not in self.names:
            name = re.sub(r"\W", "_", name, flags=re.ASCII)
            while name in self.names.values():
                name += "_"  # another class of the same name
            self.names[key] = name
        name = self.names[key]
        return Shape({"$ref": f"#/$defs/{name}"}, lambda value: self.defs[name].read(value))

    def named(self, key: Any, name: str, make: Callable[[], Shape]) -> Shape:
        """A `$ref` to what `make` gives. It is made once, so a type may contain itself."""
        new = key not in self.names
        reference = self._reference(key, name)
        if new:
            self.defs[self.names[key]] = make()
        return reference

    def alias(self, key: Any, name: str, make: Callable[[], Shape]) -> Shape:
        """What `make` gives, in place; a `$ref` only if it contains itself."""
        if key in self.names or key in self.making:
            return self._reference(key, name)
        self.making.add(key)
        shape = make()
        self.making.remove(key)
        if key not in self.names:
            return shape
        self.defs[self.names[key]] = shape
        return self._reference(key, name)

    def schema(self, root: dict) -> dict:
        """A root schema together with the `$defs` that its references need."""
        defs = {name: shape.schema for name, shape in self.defs.items()}
        return {**root, "$defs": defs} if defs else root


@_special("Any")
@_form(lambda origin: origin is object or origin is inspect.Parameter.empty)
def _anything(tp: Any, scope: _Scope) -> Shape:
    return Shape({}, lambda value: value)


@_form(lambda origin: isinstance(origin, (str, typing.ForwardRef)))
def _forward(tp: Any, scope: _Scope) -> Shape:
    text = tp if isinstance(tp, str) else tp.__forward_arg__
    return scope.alias((text, scope), text, lambda: scope.shape(scope.resolve(text)))


@_form(lambda origin: isinstance(origin, typing.TypeVar))
def _type_variable(tp: Any, scope: _Scope) -> Shape:
    choices = typing.Union[tp.__constraints__] if tp.__constraints__ else tp.__bound__
    return scope.shape(choices or Any)


@_form(lambda origin: isinstance(origin, (typing.NewType, dataclasses.InitVar)))
def _stand_in(tp: Any, scope: _Scope) -> Shape:
    return scope.shape(getattr(tp, "__supertype__", None) or tp.type)


@_special("Required", "NotRequired", "ReadOnly", "Final")
def _qualified(tp: Any, scope: _Scope) -> Shape:
    return scope.shape(*(typing.get_args(tp) or (Any,)))


def _substitute(tp: Any, meanings: dict) -> Any:
    """A type with its type variables replaced: `list[T]` with {T: int} is `list[int]`."""
    if isinstance(tp, typing.TypeVar):
        return meanings.get(tp, tp)
    variables = getattr(tp, "__parameters__", ()) if typing.get_origin(tp) else ()
    return tp[tuple(meanings.get(v, v) for v in variables)] if meanings and variables else tp


@_form(lambda origin: type(origin).__name__ == "TypeAliasType")
def _alias(tp: Any, scope: _Scope) -> Shape:
    alias = typing.get_origin(tp) or tp
    meanings = dict(zip(alias.__type_params__, typing.get_args(tp)))
    return scope.alias(
        tp, alias.__name__, lambda: scope.shape(_substitute(alias.__value__, meanings))
    )


@_form(lambda origin: origin is Callable)
def _bare_function(tp: Any, scope: _Scope) -> Shape:
    raise SchemaError("模型传不了函数；请改成 Literal[...] 这样的名字，在函数里再按名字选")


# Constraints in `Annotated`, by the attribute that annotated_types, pydantic and re.Pattern use:
# kind of JSON value → schema keyword, and whether (value, limit) is fine.
CONSTRAINTS = {
    "ge": ({"number": "minimum"}, operator.ge),
    "gt": ({"number": "exclusiveMinimum"}, operator.gt),
    "le": ({"number": "maximum"}, operator.le),
    "lt": ({"number": "exclusiveMaximum"}, operator.lt),
    "multiple_of": ({"number": "multipleOf"}, lambda v, n: math.isclose(v / n, round(v / n))),
    "min_length": ({"string": "minLength", "array": "minItems"}, lambda v, n: len(v) >= n),
    "max_length": ({"string": "maxLength", "array": "maxItems"}, lambda v, n: len(v) <= n),
    "pattern": ({"string": "pattern"}, lambda v, text: bool(re.search(text, v))),
}


def _constraint(note: Any, attribute: str) -> float | str | None:
    limit = getattr(note, attribute, None)
    if attribute == "pattern":
        return limit if isinstance(limit, str) else None
    return limit if isinstance(limit, (int, float)) and math.isfinite(limit) else None


@_special("Annotated")
def _annotated(tp: Any, scope: _Scope) -> Shape:
    """`Annotated[int, "text", Ge(1)]`: the first text, and every constraint that fits the type."""
    bare, *notes = typing.get_args(tp)
    notes += [inner for note in notes for inner in getattr(note, "metadata", None) or ()]
    inner = scope.shape(bare)
    schema, checks = dict(inner.schema), []
    texts = (note if isinstance(note, str) else getattr(note, "description", 0) for note in notes)
    if text := next((text for text in texts if isinstance(text, str)), ""):
        schema["description"] = text
    for note, (attribute, (keywords, holds)) in itertools.product(notes, CONSTRAINTS.items()):
        if (limit := _constraint(note, attribute)) is not None:
            kinds = _kinds(schema) & keywords.keys()
            schema.update((keywords[kind], limit) for kind in kinds)
            checks.append((kinds, holds, limit))

    def read(value: Any) -> Any:
        for kinds, holds, limit in checks:
            if _KIND.get(type(value)) in kinds and not holds(value, limit):
                raise ToolError(f"{_shown(value)} 超出了限制 {limit}")
        return inner.read(value)

    return Shape(schema, read)


def _union_schema(schemas: list[dict]) -> dict:
    """Scalars share one `type` list; anything richer becomes `anyOf`. A lone text moves out.

    >>> _union_schema([{"type": "integer", "description": "days"}, {"type": "null"}])
    {'type': ['integer', 'null'], 'description': 'days'}
    """
    texts = [schema["description"] for schema in schemas if "description" in schema]
    text = {"description": texts[0]} if len(texts) == 1 else {}
    if text:
        schemas = [{k: v for k, v in schema.items() if k != "description"} for schema in schemas]
    if {} in schemas:
        return text
    rich = [schema for schema in schemas if schema.keys() != {"type"}]
    nullable = len(rich) == 1 and all(s in rich or s == {"type": "null"} for s in schemas)
    if rich and not (nullable and rich[0].get("type") not in (None, "array", "object")):
        return {"anyOf": schemas, **text}
    names = _one_or_list(name for schema in schemas for name in _spelled_types(schema))
    merged = {**dict(*rich), "type": names, **text}
    if "enum" in merged and None not in merged["enum"]:
        merged["enum"] = [*merged["enum"], None]
    return merged


def _any_of(shapes: list[Shape]) -> Shape:
    def read(value: Any) -> Any:
        for shape in shapes:  # the first branch that fits
            try:
                return shape.read(value)
            except Exception:  # a record's own constructor may raise anything
                continue
        raise _MisfitError(value, "任何一种允许的写法")

    return Shape(_union_schema([shape.schema for shape in shapes]), read)


@_special("Union", "UnionType")
def _union(tp: Any, scope: _Scope) -> Shape:
    return _any_of([scope.shape(branch) for branch in typing.get_args(tp)])


def _choice(members: Iterable[Any]) -> Shape:
    """One of some constants, told apart as JSON does: 1 equals 1.0 but not true."""
    choices = [(plain(member), member) for member in members]
    values = [value for value, _ in choices]

    def read(value: Any) -> Any:
        for choice, member in choices:
            if choice == value and _KIND[type(choice)] == _KIND.get(type(value)):
                return member
        raise _MisfitError(value, " 或 ".join(map(_shown, values)))

    words = {**_KIND, int: "integer"}
    return Shape({"type": _one_or_list(words[type(v)] for v in values), "enum": values}, read)


@_special("Literal")
def _literal(tp: Any, scope: _Scope) -> Shape:
    return _choice(typing.get_args(tp))


@_form(lambda origin: isinstance(origin, type) and issubclass(origin, enum.Enum))
def _enum(tp: Any, scope: _Scope) -> Shape:
    return _choice(tp)


# --- containers: two tables, class → what its values, read one by one, are built into ---


def _build_set(cls: type, items: list) -> Any:
    try:
        built = cls(items)
    except TypeError as error:
        raise ToolError("集合里不能放 array 或 object") from error
    if len(built) < len(items):
        raise ToolError("集合里的元素不能重复")
    return built


ARRAYS = {
    "builtins.list": _keep,
    "builtins.tuple": _construct,
    "builtins.set": _build_set,
    "builtins.frozenset": _build_set,
    "collections.deque": _construct,
    "collections.Sequence": _keep,
    "collections.MutableSequence": _keep,
    "collections.Collection": _keep,
    "collections.Iterable": _keep,
    "collections.Set": lambda cls, items: _build_set(set, items),
    "collections.MutableSet": lambda cls, items: _build_set(set, items),
}
OBJECTS = {
    "builtins.dict": _keep,
    "collections.Mapping": _keep,
    "collections.MutableMapping": _keep,
    "collections.OrderedDict": _construct,
    "collections.defaultdict": lambda cls, items: cls(None, items),
}


def _fixed_tuple(items: list[Shape]) -> Shape:
    def read(value: Any) -> tuple:
        if type(value) is not list or len(value) != len(items):
            raise _MisfitError(value, f"有 {len(items)} 个元素的 array")
        return tuple(item.read(element) for item, element in zip(items, value))

    size = {"minItems": len(items), "maxItems": len(items)}
    prefix = {"prefixItems": [item.schema for item in items]} if items else {}
    return Shape({"type": "array", **prefix, **size}, read)


@_form(lambda origin: _type_key(origin) in ARRAYS)
def _array(tp: Any, scope: _Scope) -> Shape:
    cls, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if cls is tuple and args[1:] != (...,) and tp not in (tuple, typing.Tuple):  # noqa: UP006
        return _fixed_tuple([scope.shape(arg) for arg in args if arg != ()])
    item, build = scope.shape(args[0] if args else Any), ARRAYS[_type_key(cls)]

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _MisfitError(value, "array")
        return build(cls, [item.read(element) for element in value])

    unique = {"uniqueItems": True} if issubclass(cls, typing.AbstractSet) else {}
    return Shape({"type": "array", "items": item.schema, **unique}, read)


def _key_shape(tp: Any, scope: _Scope) -> Shape:
    """The shape of dict keys, always text in JSON (8 travels as "8"); its schema, or {} for any."""
    inner = scope.shape(tp)
    kinds = _kinds(inner.schema)
    if not inner.schema or kinds == {"string"}:
        return Shape({} if inner.schema == {"type": "string"} else inner.schema, inner.read)
    if kinds != {"number"}:
        raise SchemaError(f"字典的键不能是 {inspect.formatannotation(tp)}，请用 str 或 int")
    names = {"enum": list(map(json.dumps, inner.schema.get("enum", ())))}
    digits = {"pattern": "^-?[0-9]+$"} if inner.schema["type"] == "integer" else {}
    return Shape(names if names["enum"] else digits, lambda text: inner.read(json.loads(text)))


@_form(lambda origin: _type_key(origin) in OBJECTS)
def _object(tp: Any, scope: _Scope) -> Shape:
    cls, args = typing.get_origin(tp) or tp, typing.get_args(tp) or (Any, Any)
    key, item, build = _key_shape(args[0], scope), scope.shape(args[1]), OBJECTS[_type_key(cls)]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _MisfitError(value, "object")
        return build(cls, {key.read(k): item.read(element) for k, element in value.items()})

    names = {"propertyNames": key.schema} if key.schema else {}
    values = {"additionalProperties": item.schema} if item.schema else {}
    return Shape({"type": "object", **values, **names}, read)


# --- signatures ---


class Parameter(NamedTuple):
    """One parameter of a function, or one field of a record."""

    name: str
    shape: Shape  # its schema holds description and default as well
    required: bool
    default: Any = None  # what to pass when a positional-only parameter was left out
    by_position: bool = False


def _object_schema(parameters: Iterable[Parameter]) -> dict:
    return {
        "type": "object",
        "properties": {parameter.name: parameter.shape.schema for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def _bind(parameters: Iterable[Parameter], values: dict) -> tuple[list, dict]:
    """Positional and keyword arguments from JSON values; ToolError names what does not fit."""
    positional, keyword = [], {}
    unknown = values.keys() - {parameter.name for parameter in parameters}
    if unknown:
        raise ToolError(f"没有参数 {'、'.join(sorted(unknown))}")
    for name, shape, required, value, by_position in parameters:
        if name in values:
            try:
                value = shape.read(values[name])
            except Exception as error:  # a record's own constructor may raise anything
                raise ToolError(f"参数 {name}：{error}") from error
        elif required:
            raise ToolError(f"缺少必填参数 {name}")
        elif not by_position:
            continue
        if by_position:
            positional.append(value)
        else:
            keyword[name] = value
    return positional, keyword


def _accepts(shape: Shape, value: Any) -> bool:
    try:
        shape.read(value)
    except Exception:
        return False
    return True


_NO_DEFAULT = inspect.Parameter.empty


def _described(tp: Any, scope: _Scope, *, text: str, default: Any) -> Shape:
    """The shape of one parameter: its type, its text, and its default if that is JSON."""
    shape = scope.shape(tp)
    if default is None and not _accepts(shape, None):  # `x: int = None` means Optional[int]
        shape = _any_of([shape, scope.shape(None)])
    schema = {**shape.schema, "description": text} if text else shape.schema
    if default is _NO_DEFAULT:
        return Shape(schema, shape.read)
    try:
        value = plain(default)
    except ValueError:
        return Shape(schema, shape.read)
    fits = default is None or _accepts(shape, value)
    return Shape({**schema, "default": value} if fits else schema, shape.read)


def _reason(error: Exception) -> str:
    if isinstance(error, SchemaError):
        return str(error)
    if isinstance(error, NameError):
        return (
            f"标注里的名字 {error.name} 找不到；请在模块顶层定义或导入它"
            "（延迟求值的标注看不见函数里的局部类，也看不见 TYPE_CHECKING 下的导入）"
        )
    return f"类型标注读不懂（{type(error).__name__}: {error}）；{_WRITE_INSTEAD}"


def _parameter(
    name: str, tp: Any, scope: _Scope, *, owner: str, text: str, default: Any, **more: Any
) -> Parameter:
    try:
        shape = _described(tp, scope, text=text, default=default)
    except Exception as error:  # evaluating an annotation runs the programmer's own code
        raise SchemaError(f"{owner} {name}：{_reason(error)}") from error
    value = None if default is _NO_DEFAULT else default
    return Parameter(name, shape, more.pop("required", default is _NO_DEFAULT), value, **more)


def _signature(fn: Any, name: str) -> list[inspect.Parameter]:
    """The parameters a caller fills in: no `self`, no `*args`, no `**kwargs`."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError) as error:
        raise SchemaError(f"函数 {name} 没有可读的签名；请用 def 写一个函数把它包起来") from error
    first = parameters[0] if parameters and not isinstance(fn, type) else None
    if first and first.name in ("self", "cls") and first.annotation is first.empty:
        del parameters[0]  # `Class.method`, not yet bound
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _written_doc(thing: Any) -> str | None:
    """The docstring someone wrote: not the "Point(x, y)" that dataclass and namedtuple make up."""
    if not isinstance(thing, type):
        return thing.__doc__ or inspect.getdoc(thing)  # a method may inherit it
    made_up = (thing.__doc__ or "").startswith(f"{thing.__name__}(")
    return None if made_up else thing.__doc__


# --- records: types with named fields become JSON objects ---


def _is_typed_dict(cls: Any) -> bool:  # typing's own test does not know typing_extensions
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__total__")


def _is_record(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return named_tuple or dataclasses.is_dataclass(cls) or _is_typed_dict(cls)


def _is_required(key: str, hint: Any, cls: Any) -> bool:
    """Whether a TypedDict needs a key; `__required_keys__` misses postponed qualifiers."""
    while name := _special_name(typing.get_origin(hint)):
        if name in ("Required", "NotRequired"):
            return name == "Required"
        hint = typing.get_args(hint)[0]  # ReadOnly, Annotated
    return key in cls.__required_keys__


def _type_hints(cls: type, scope: _Scope) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns=scope.local, include_extras=True)
    except NameError:  # a class made by `exec` has no module; its names are the function's
        names = {**scope.module, **scope.local}
        return typing.get_type_hints(cls, localns=names, include_extras=True)


def _record_fields(tp: Any, scope: _Scope, texts: dict[str, str]) -> list[Parameter]:
    """Fields of a record: keys of a TypedDict, otherwise the parameters of the constructor."""
    cls = typing.get_origin(tp) or tp
    meanings = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(tp)))
    try:
        hints = _type_hints(cls, scope)
    except Exception as error:
        raise SchemaError(f"类 {cls.__name__} 的{_reason(error)}") from error
    hints = {name: _substitute(hint, meanings) for name, hint in hints.items()}

    def field(name: str, tp: Any, default: Any, **more: Any) -> Parameter:
        text = texts.get(name, "")
        owner = f"{cls.__name__} 的字段"
        return _parameter(name, tp, scope, owner=owner, text=text, default=default, **more)

    if _is_typed_dict(cls):
        return [
            field(name, hint, _NO_DEFAULT, required=_is_required(name, hint, cls))
            for name, hint in hints.items()
        ]
    return [
        field(parameter.name, hints.get(parameter.name, parameter.annotation), parameter.default)
        for parameter in _signature(cls, cls.__name__)
    ]


def _record_shape(tp: Any, scope: _Scope) -> Shape:
    cls = typing.get_origin(tp) or tp
    doc = parse_docstring(_written_doc(cls))
    module = {**scope.module, **vars(inspect.getmodule(cls) or types)}
    inside = dataclasses.replace(scope, module=module, local={**scope.local, cls.__name__: cls})
    fields = _record_fields(tp, inside, doc.params)
    text = {"description": doc.description} if doc.description else {}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _MisfitError(value, "object")
        positional, keyword = _bind(fields, value)
        return cls(*positional, **keyword)

    return Shape({**_object_schema(fields), **text}, read)


@_form(_is_record)
def _record(tp: Any, scope: _Scope) -> Shape:
    cls = typing.get_origin(tp) or tp
    return scope.named(tp, cls.__name__, lambda: _record_shape(tp, scope))


# --- functions ---


def _underlying(fn: Any) -> Any:
    """The function that was written, beneath partial, decorators, methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif not hasattr(fn, "__name__"):
            fn = type(fn).__call__
        else:
            return fn


def _name_and_doc(fn: Any) -> tuple[str, str | None]:
    if isinstance(fn, functools.partial) and "__name__" not in vars(fn):
        return _name_and_doc(fn.func)
    if name := getattr(fn, "__name__", None):
        return name, _written_doc(fn)
    return type(fn).__name__, type(fn).__call__.__doc__ or type(fn).__doc__


def _scope_of(fn: Any) -> _Scope:
    """Names for a function's postponed annotations: its module, closure and type parameters."""
    written, owner = _underlying(fn), getattr(fn, "__self__", None)
    names: dict[str, Any] = {}
    if owner is not None:
        body = vars(owner if isinstance(owner, type) else type(owner))
        names.update((name, item) for name, item in body.items() if isinstance(item, type))
    free = getattr(getattr(written, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(written, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet
            names[name] = cell.cell_contents
    names.update((item.__name__, item) for item in getattr(written, "__type_params__", ()))
    module = inspect.getmodule(written) if isinstance(written, type) else None
    return _Scope(getattr(written, "__globals__", vars(module) if module else {}), names)


class Parameters(NamedTuple):
    """What a function takes, read once: describes it to a model and binds the model's arguments."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    schema: dict  # of the arguments, with `$defs`

    def bind(self, values: dict) -> tuple[list, dict]:
        """Positional and keyword arguments; see `call_arguments`."""
        return _bind(self.parameters, values)


def read_parameters(fn: Callable) -> Parameters:
    """Everything about a function that a tool needs. SchemaError names function and parameter."""
    if not callable(fn):
        raise SchemaError(f"{fn!r} 不是函数，不能做工具")
    name, written = _name_and_doc(fn)
    if name == "<lambda>":
        raise SchemaError("lambda 没有名字，不能做工具；请用 def 写成函数，给它起个名字")
    doc, scope = parse_docstring(written), _scope_of(fn)
    parameters = tuple(
        _parameter(
            p.name,
            p.annotation,
            scope,
            owner=f"函数 {name} 的参数",
            text=doc.params.get(p.name, ""),
            default=p.default,
            by_position=p.kind is p.POSITIONAL_ONLY,
        )
        for p in _signature(fn, name)
    )
    schema = scope.schema(_object_schema(parameters))
    return Parameters(name, doc.description, parameters, schema)


def function_to_schema(fn: Callable) -> dict:
    """Name, description and parameters (a JSON Schema) of a function, as a model is shown them.

    Parameters without default are required; defaults appear if they are JSON. Raises SchemaError,
    naming function and parameter, for what cannot be expressed.

    >>> def double(n: int) -> int:
    ...     \"\"\"把一个整数乘以二。
    ...
    ...     参数：
    ...         n：任意整数
    ...     \"\"\"
    >>> function_to_schema(double)["parameters"]["properties"]
    {'n': {'type': 'integer', 'description': '任意整数'}}
    """
    read = read_parameters(fn)
    return {"name": read.name, "description": read.description, "parameters": read.schema}


def call_arguments(fn: Callable | Parameters, args: dict) -> tuple[list, dict]:
    """Positional and keyword arguments for calling `fn`, from arguments that its schema accepts.

    JSON values become what the annotations promise: 4096.0 an int, "2026-11-30" a date, an object
    a dataclass. Raises ToolError, which names the parameter, where that is impossible.

    >>> def repeat(text: str, times: int, /): ...
    >>> call_arguments(repeat, {"times": 3.0, "text": "a"})
    (['a', 3], {})
    """
    return (fn if isinstance(fn, Parameters) else read_parameters(fn)).bind(args)


def type_to_schema(tp: Any) -> dict:
    """The JSON Schema of one type, with `$defs` where it has records or contains itself.

    >>> type_to_schema(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    scope = _Scope()
    try:
        return scope.schema(scope.shape(tp).schema)
    except Exception as error:
        raise SchemaError(_reason(error)) from error


def output_schema(fn: Callable) -> dict | None:
    """The object schema of a returned TypedDict or dataclass, else None. Never raises."""
    try:
        scope, tp = _scope_of(fn), inspect.signature(fn).return_annotation
        tp = scope.resolve(tp) if isinstance(tp, str) else tp
        cls = typing.get_origin(tp) or tp
        schema = _record_shape(tp, scope).schema if _is_record(cls) else {}
        if dataclasses.is_dataclass(cls):  # the schema lacks fields the constructor does not take
            names = {field.name for field in dataclasses.fields(cls)}
            return scope.schema(schema) if names == schema["properties"].keys() else None
        return scope.schema(schema) if _is_typed_dict(cls) else None
    except Exception:  # a return type that cannot be described is no reason to refuse the tool
        return None


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 3  参数 Arguments      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# From what the model wrote to a dict the tool can trust, in two steps. `parse_arguments` turns text
# into one dict: it mends spelling (quotes, commas, fences), never meaning: cut-off text is not
# completed, one of two objects is not chosen, a failure does not become {}. `validate_arguments`
# holds the dict against its JSON Schema (draft 2020-12) and reports every problem at once, each in
# one sentence the model can act on. Work and text are bounded, whatever comes in.
# A keyword of the schema is one row of KEYWORDS; its rule turns the value of the keyword into a
# check, once per schema, so that a call only runs closures.

_MAX_TEXT = 2_000_000  # characters of argument text; a file to write fits, a runaway does not
_MAX_DEPTH = 200  # nested brackets; real arguments stay below 10
_MAX_DIGITS = 4_300  # of one integer: what CPython itself refuses to read (sys.int_info)
_MAX_ITEMS = 100_000  # lists and dicts inside one set of arguments
_MAX_MESSAGE = 400  # characters of one sentence for the model
_MAX_PROBLEMS = 20  # sentences per call; a model repairs no more at a time
_MAX_SCHEMA_DEPTH = 64
_MAX_SUBSCHEMAS = 10_000
_MAX_REFS = 10_000  # $ref steps per call: overlapping recursive branches take exponential time
_MAX_MATCHED = 5_000  # characters that a `pattern` or `format` is tried on

# ── Words for the model ──


def _cut(text: str, limit: int = _MAX_MESSAGE) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(value: object, limit: int = 100) -> str:
    """Return `value` as JSON text of at most `limit` characters; safe for every Python value.

    >>> show({"seq_len": "8k"}), show(float("nan")), show("x" * 500, 8)
    ('{"seq_len": "8k"}', 'NaN', '"xxxxxx…')
    """
    if isinstance(value, str):
        value = value[:limit]
    try:
        text = json.dumps(value, ensure_ascii=False, default=lambda x: f"<{type(x).__name__}>")
    except (ValueError, TypeError, RecursionError):  # 5,000 digits, a loop, a key like (1, 2)
        text = f"<{type(value).__name__}>"
    return _cut(text.encode("utf-8", "backslashreplace").decode("utf-8"), limit)


def _listed(words: list[str], last: str = "、") -> str:
    """Return `A、B、C`, or `A、B 或 C` with last=" 或 "; a long list is cut and says its length."""
    text = last.join(["、".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
    return text if len(text) <= 160 else f"{_cut(text, 150)}（共 {len(words)} 个）"


def _choose_from(values: list) -> str:
    """Return `只能是 "C"、"F" 之一`."""
    listed = _listed([show(value, 60) for value in values])
    return f"只能是 {listed} 之一" if len(values) > 1 else f"只能是 {listed}"


def _fold(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be, or None.

    >>> closest("maxTokens", ["min_p", "max_tokens"]), closest("learnig_rate", ["learning_rate"])
    ('max_tokens', 'learning_rate')
    """
    folded = {_fold(known): known for known in list(names)[:200]}
    wanted = _fold(name[:100])
    if wanted in folded:
        return folded[wanted]
    import difflib  # only wrong calls need it

    hits = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    return folded[hits[0]] if hits else None


# A path is a linked tuple (parent, step, fuel), so that going down costs next to nothing and text
# is made for problems only. `fuel` is a list of one number shared by the whole call (`_rule_ref`).
_PLAIN_STEP = re.compile(r"[\w$@-]{1,60}")


def _where(path: tuple) -> str:
    """Return a path as text: `cfg.opt.lr`, `rows[1].x`, "" for the arguments as a whole."""
    steps = []
    while path[0] is not None:
        path, step = path[0], path[1]
        plain = type(step) is str and _PLAIN_STEP.fullmatch(step)
        steps.append(f".{step}" if plain else f"[{show(step, 40)}]")
    text = "".join(reversed(steps)).removeprefix(".")
    return text if len(text) <= 100 else "…" + text[-99:]


def _fault(path: tuple, keyword: str, says: str) -> list[Problem]:
    """Return the one problem `参数 <path> <says>`."""
    where = _where(path)
    return [Problem(where, keyword, _cut((f"参数 {where} " if where else "参数整体") + says))]


# ── Reading JSON without its traps ──


def _equality_key(value: object) -> object:
    """Return something hashable that is equal for equal JSON values: 1 = 1.0, but 1 is not true."""
    match value:
        case bool():
            return (value,)
        case None | str() | int() | float():
            return value
        case list():
            return ("array", *map(_equality_key, value))
        case dict():
            return frozenset((name, _equality_key(item)) for name, item in value.items())
        case _:
            return ("not JSON", id(value))


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ArgumentsError(f"参数里有 {len(digits)} 位的整数，太长了，请改用较小的数或字符串")
    return int(digits)


def _read_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ArgumentsError(f"数 {_cut(digits, 40)} 超出范围，请改用绝对值小于 1e308 的数")
    return value


def _refuse_constant(word: str) -> object:
    raise ArgumentsError(f"JSON 里不能写 {word}，请改用普通的数；没有值就写 null 或不传这个参数")


def _read_pairs(pairs: list[tuple[str, object]]) -> dict:
    """Return the pairs as a dict; a key may come twice only with the same value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for name, value in pairs:
            if _equality_key(found[name]) != _equality_key(value):
                raise ArgumentsError(f"键 {show(name, 60)} 出现了两次而且值不同，请只保留一个")
    return found


_DECODER = json.JSONDecoder(
    strict=False,  # models write raw line breaks inside strings
    parse_int=_parse_int,
    parse_float=_read_float,
    parse_constant=_refuse_constant,
    object_pairs_hook=_read_pairs,
)
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'  # an open one goes to the end: no second try, no n²
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def _nesting(text: str) -> int:
    """Return how deep the brackets outside strings go."""
    deepest = depth = 0
    for bracket in re.findall(r"[][{}]", re.sub(_STRING, "", text, flags=re.DOTALL)):
        depth += 1 if bracket in "[{" else -1
        if depth > deepest:
            deepest = depth
    return deepest


def _load_json(text: str) -> object:
    """Return the JSON value in `text`; ArgumentsError for what json.loads wrongly lets through.

    json.loads reads NaN, turns 1e999 into inf, keeps the last of two equal keys, accepts half a
    surrogate pair, and meets deep nesting with RecursionError. Bad syntax: json.JSONDecodeError.
    """
    if len(text) > _MAX_TEXT:
        raise ArgumentsError(f"参数有 {len(text)} 个字符，超过上限 {_MAX_TEXT}，请分几次发送")
    if text.count("[") + text.count("{") > _MAX_DEPTH and _nesting(text) > _MAX_DEPTH:
        raise ArgumentsError(f"参数嵌套超过 {_MAX_DEPTH} 层，请改成较浅的结构")
    try:
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ArgumentsError("参数嵌套太深，请改成较浅的结构") from None
    except UnicodeEncodeError:
        raise ArgumentsError("文字里有不成对的 \\ud… 转义（半个字符），请写出完整的字符") from None
    return value


# ── Text → dict ──

_FENCE = re.compile(r"```[\w-]*\s(.*?)(?:```)?", re.DOTALL)
_SLIP = re.compile(
    rf"""
    {_STRING}                                                 # a JSON string: leave it alone
  | '(?P<python> [^'\\]*(?:\\.[^'\\]*)* )(?P<end>'|\\?\Z)     # a Python string
  | \b(?P<word>True|False|None)\b
  | (?<=[\w"'\]}}])\s*(?P<comma>,)(?=\s*[\]}}])               # a comma after the last item
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\'|\\x(?P<hex>[0-9a-fA-F]{2})|\\.|\"", re.DOTALL)


def _json_escape(match: re.Match) -> str:
    """Return an escape of a Python string as JSON writes it."""
    if match["hex"]:
        return "\\u00" + match["hex"]
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])


def _json_spelling(match: re.Match) -> str:
    """Return one token of `_SLIP` as JSON spells it."""
    if match["word"]:
        return {"True": "true", "False": "false", "None": "null"}[match["word"]]
    if match["comma"]:
        return ""
    if match["end"] == "'":
        return '"' + _ESCAPE.sub(_json_escape, match["python"]) + '"'
    return match[0]


_SYNTAX_REASONS = {
    "Expecting property name": "键要用英文双引号括起来",
    "Expecting ':'": "键的后面缺少英文冒号",
    "Expecting ','": '缺少英文逗号；如果是字符串里的双引号，要写成 \\"',
    "Expecting value": "这里缺少一个合法的值",
    "Invalid \\escape": "字符串里的反斜杠要写成 \\\\",
    "Invalid \\u": "\\u 后面要有四位十六进制数",
    "Extra data": "对象后面还有多余的内容，一次只能发一个对象，前后不要加说明文字",
}
_UNFINISHED = re.compile(r"[\w+.\\-]*\Z")  # nothing left but half a word or number


def _explain_syntax(text: str, error: json.JSONDecodeError) -> str:
    """Return what is wrong with JSON text, where, and what to send instead."""
    broken_off = error.msg.startswith("Unterminated") or _UNFINISHED.match(text, error.pos)
    if broken_off and error.msg != "Extra data" and text.startswith(("{", "[", '"')):
        tail = show(text[-30:], 60)
        return f"参数没有写完，在 {tail} 之后断了，请重新发送完整的 JSON 对象；内容太长就分几次发送"
    reasons = [says for start, says in _SYNTAX_REASONS.items() if error.msg.startswith(start)]
    place = f"第 {error.lineno} 行第 {error.colno} 列"
    near = show(text[max(0, error.pos - 15) : error.pos + 15], 60)
    why = f"{place} {near} 附近，{(reasons or [error.msg])[0]}"
    return f"参数不是合法的 JSON：{why}。请只发送一个 JSON 对象"


def _read_layer(text: str) -> object:
    """Return the value in `text`: strict JSON, else JSON once slips of spelling are mended.

    Python's spelling is translated token by token and read as JSON again: unlike `ast.literal_eval`
    that never joins 'a' 'b' to one string, which would be a guess at unescaped quotes.
    """
    fenced = _FENCE.fullmatch(text)
    text = fenced[1].strip() if fenced else text
    try:
        return _load_json(text)
    except json.JSONDecodeError as error:
        first = error
    try:
        return _load_json(_SLIP.sub(_json_spelling, text))
    except json.JSONDecodeError:
        raise ArgumentsError(_explain_syntax(text, first)) from None


def _as_text(text: object) -> str:
    """Return the argument text without byte-order mark and blanks; "" for None."""
    if isinstance(text, (bytes, bytearray)):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise ArgumentsError("参数不是 UTF-8 编码的文字，请重新发送一个 JSON 对象") from None
    if not isinstance(text, str):
        raise ArgumentsError(f"参数应该是一个 JSON 对象（object），收到的是 {show(text)}")
    return text.strip().removeprefix("\ufeff").strip()


def parse_arguments(text: str | bytes | dict | None) -> dict:
    """Return the arguments of a call as a dict; ArgumentsError says what to send instead.

    Accepts a JSON object, a dict, and nothing at all ({}). Mends what has one reading only: a code
    fence, a byte-order mark, raw control characters, trailing commas, Python's quotes and words, an
    object encoded as a string once or twice. Refuses the rest, also half a surrogate pair and a key
    with two different values.

    >>> parse_arguments('{"seq_len": 4096,}'), parse_arguments("{'dry': True}"), parse_arguments("")
    ({'seq_len': 4096}, {'dry': True}, {})
    """
    if isinstance(text, dict):
        return text
    value = _as_text("" if text is None else text)
    if not value:
        return {}
    for _ in range(3):  # the object itself, or encoded as a string once or twice
        value = _read_layer(value)
        if isinstance(value, dict):
            return value
        if not isinstance(value, str) or not value.strip().startswith(("{", '"', "```")):
            break
        value = value.strip()
    raise ArgumentsError(f"参数应该是一个 JSON 对象（object），写成 {{…}}，收到的是 {show(value)}")


# ── What a schema says about types ──

_CLASSES = {
    "number": (int, float),
    "integer": (int,),  # a float without fraction counts too
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_TYPE_NAMES = {cls: name for name, classes in _CLASSES.items() for cls in classes}
_ANYTHING = frozenset(_CLASSES)
# Which names a value of a class can pass under; 3.0 is an integer, so that floats and ints share.
_NAMES_OF = {cls: frozenset([name]) for cls, name in _TYPE_NAMES.items()}
_NAMES_OF[int] = _NAMES_OF[float] = frozenset(["integer", "number"])
# Type names of other languages in real tool sets (BFCL: dict in every tool, float 879 times);
# compared in lower case, which covers Gemini's STRING as well.
_ALIASES = {name: name for name in _CLASSES} | {
    "str": "string", "text": "string", "char": "string", "character": "string",
    "int": "integer", "long": "integer", "short": "integer", "byte": "integer", "bigint": "integer",
    "float": "number", "double": "number", "decimal": "number", "bool": "boolean",
    "list": "array", "tuple": "array", "set": "array", "arraylist": "array", "queue": "array",
    "dict": "object", "map": "object", "hashmap": "object", "hashtable": "object",
    "none": "null", "nonetype": "null",
}  # fmt: skip


def _of(schema: dict, keyword: str, kind: type) -> Any:
    """Return the value of a keyword, or an empty one if it is missing or malformed."""
    value = schema.get(keyword)
    return value if isinstance(value, kind) else kind()


def _type_names(schema: dict) -> tuple[list[str], list]:
    """Return the names of the JSON types a schema states ([] = any), and the names nobody knows."""
    stated = schema.get("type", "any")
    known, unknown = [], []
    for name in stated if isinstance(stated, list) else [stated]:
        if isinstance(name, str) and name.lower() == "any":
            return [], []
        plain = _ALIASES.get(name.lower()) if isinstance(name, str) else None
        (known if plain else unknown).append(plain or name)
    return ([] if unknown else known), unknown


def _unescaped(step: str) -> str:
    """Return one step of a JSON pointer in a URI fragment as plain text (RFC 6901, section 6)."""
    plain = re.sub(
        r"(?:%[0-9a-fA-F]{2})+",
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"),
        step,
    )
    return plain.replace("~1", "/").replace("~0", "~")


def _target(pointer: object, root: object) -> object:
    """Return the subschema that a `$ref` into this schema points to, or None."""
    if not isinstance(pointer, str) or not re.match(r"#(/|\Z)", pointer):
        return None
    found = root
    for step in map(_unescaped, pointer.split("/")[1:]):
        if isinstance(found, list) and re.fullmatch(r"[0-9]{1,6}", step):
            found = dict(enumerate(found)).get(int(step))
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _follow(schema: object, root: object) -> object:
    """Return what stands behind a chain of `$ref`."""
    for _ in range(8):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = _target(schema["$ref"], root)
    return None


def _choices(schema: object) -> list:
    """Return the values that `const` or `enum` allow; [] if there is neither."""
    if not isinstance(schema, dict):
        return []
    return [schema["const"]] if "const" in schema else _of(schema, "enum", list)


def _branches(schema: dict) -> list:
    """Return the alternatives of a schema; an allOf of one is an alternative without choice."""
    single = _of(schema, "allOf", list)
    return _of(schema, "anyOf", list) + _of(schema, "oneOf", list) + single * (len(single) == 1)


def _accepted(schema: object, root: object, hops: int = 4) -> frozenset[str]:
    """Return the names of the JSON types that may pass: never too few, perhaps too many."""
    if not isinstance(schema, dict) or not hops:
        return frozenset() if schema is False else _ANYTHING
    stated = _type_names(schema)[0] or _ANYTHING
    names = {*stated, "integer"} if "number" in stated else set(stated)
    if _choices(schema):
        kinds = [_NAMES_OF.get(type(value), frozenset()) for value in _choices(schema)]
        names &= frozenset().union(*kinds)
    if "$ref" in schema:
        names &= _accepted(_target(schema["$ref"], root), root, hops - 1)
    if _branches(schema):
        parts = [_accepted(branch, root, hops - 1) for branch in _branches(schema)]
        names &= frozenset().union(*parts)
    return frozenset(names | {"null"} if schema.get("nullable") is True else names)


def _expected(schema: object, root: object, hops: int = 4) -> list[str]:
    """Return words for what a schema wants: ["number", "null"], or the values of its enum."""
    schema = _follow(schema, root)
    if not isinstance(schema, dict) or not hops:
        return []
    words = [show(value, 60) for value in _choices(schema)] or _type_names(schema)[0]
    if not words:
        words = [word for part in _branches(schema) for word in _expected(part, root, hops - 1)]
    return list(dict.fromkeys(words))


def _unquoted(text: str, names: Iterable[str]) -> object:
    """Return the value that `text` spells in JSON if the types `names` want it, else `text`."""
    try:
        value = _load_json(text)
    except ValueError:
        return text
    if type(value) is float and value.is_integer() and "number" not in names:
        value = int(value)
    wanted = [cls for name in names if name not in ("string", "null") for cls in _CLASSES[name]]
    padded = type(value) not in (list, dict) and text != text.strip()
    return value if type(value) in wanted and not padded else text


def _hint(value: object, names: Iterable[str], optional: bool) -> str:
    """Return what to do about a value of the wrong type, or ""."""
    if value is None:
        return "；不需要就不要传" if optional else ""
    if type(value) is not str or "string" in names:
        return ""
    if "array" in names and value.lstrip().startswith("["):
        return "；请直接传数组，不要加引号"
    if "object" in names and value.lstrip().startswith("{"):
        return "；请直接传对象，不要加引号"
    bare = _unquoted(value, names)
    return f"；请直接写 {show(bare, 40)}，不要加引号" if bare is not value else ""


# ── Rules: the value of one keyword → a check ──
#
# A check takes (value, path) and returns problems, an empty sequence if all is well. `place` is
# where the compiler stands in the schema: rules ask it for checks of subschemas, or leave a note.

_ANY = tuple(_TYPE_NAMES)
_NUMBER = (int, float)


class _SchemaRun:
    """What is shared while one schema is compiled."""

    def __init__(self, root: object, compile_node: Callable):
        self.root, self.compile_node = root, compile_node
        self.notes: list[str] = []
        self.refs: dict[str, Callable] = {}
        self.pending: list[tuple] = []  # (pointer, subschema, place): compiled later, never nested
        self.left = _MAX_SUBSCHEMAS


class _SchemaPlace(NamedTuple):
    """A place in a schema; `trail` holds the `$ref`s passed on the way to this same value."""

    where: str  # JSON pointer
    depth: int
    trail: frozenset[str]
    optional: bool  # the value at this place may be left out
    run: _SchemaRun

    def note(self, text: str) -> None:
        if len(self.run.notes) < 50:
            self.run.notes.append(_cut(f"{_cut(self.where, 120)}：{text}", 240))

    def child(self, schema: object, *steps: object, optional: bool = False) -> Callable:
        """Return the check for a part of the value."""
        return self._compile(schema, steps, frozenset(), optional)

    def same(self, schema: object, *steps: object) -> Callable:
        """Return the check of another schema for this same value."""
        return self._compile(schema, steps, self.trail, self.optional)

    def _compile(self, schema: object, steps: tuple, trail: frozenset, optional: bool) -> Callable:
        where = "/".join([self.where, *map(str, steps)])
        place = _SchemaPlace(where, self.depth + 1, trail, optional, self.run)
        return self.run.compile_node(schema, place)


def _accept(value: object, path: tuple) -> tuple:
    return ()


def _limit(keyword, holds, says):
    """Return the rule for a keyword that compares the value with its own."""

    def rule(limit, schema, place):
        def check(value, path):
            if holds(value, limit):
                return ()
            size = len(value) if type(value) in (str, list, dict) else ""
            return _fault(path, keyword, says.format(show(limit), size, show(value)))

        return check

    return rule


def _is_long(value: str | list | dict, least: int) -> bool:
    return len(value) >= least


def _is_short(value: str | list | dict, most: int) -> bool:
    return len(value) <= most


def _is_multiple(value: int | float, step: int | float) -> bool:
    """Return whether value / step is whole in the decimal digits as written, so 0.07 by 0.01 is."""
    if type(value) is int and type(step) is int:
        return value % step == 0
    if type(value) is float and not math.isfinite(value):
        return True  # refused elsewhere
    from fractions import Fraction

    value, step = (n if type(n) is int else Fraction(repr(n)) for n in (value, step))
    return Fraction(value, step).denominator == 1


def _rule_ref(pointer, schema, place):
    run = place.run
    target = _target(pointer, run.root)
    if target is None or pointer in place.trail:
        reason = "找不到（只支持本模式之内的 #/…）" if target is None else "绕回了自己"
        place.note(f"$ref {show(pointer, 80)} {reason}，不予检查")
        return _accept
    if pointer not in run.refs:
        run.refs[pointer] = _accept
        here = _SchemaPlace(pointer, 0, place.trail | {pointer}, place.optional, run)
        run.pending.append((pointer, target, here))

    def check(value, path):
        path[2][0] -= 1
        if path[2][0] < 0:
            raise RecursionError  # SchemaRules turns it into a problem
        return run.refs[pointer](value, path)

    return check


def _rule_enum(choices, schema, place):
    allowed, says = {_equality_key(choice) for choice in choices}, _choose_from(choices or [None])
    words = [choice for choice in choices if type(choice) is str]

    def check(value, path):
        if _equality_key(value) in allowed:
            return ()
        meant = closest(value, words) if type(value) is str else None
        hint = f"，是不是想写 {show(meant, 60)}？" if meant else ""
        return _fault(path, "enum", f"{says}，收到的是 {show(value)}{hint}")

    return check


# A repeat inside a repeat with nothing fixed between, such as (a+)+ or (\w+\s?)*: exponential time.
_UNIT = r"(?:\\.|\[[^\]]*\]|[^()\\|])"
_MANY = r"(?:[+*]|\{\d+,\d*\})"
_EXPLOSIVE = re.compile(rf"\((?:\?:)?{_UNIT}{_MANY}(?:{_UNIT}(?:{_MANY}|\?))*\){_MANY}")


def _regex(pattern: str, place: _SchemaPlace) -> Callable[[str], object] | None:
    """Return the search function of a pattern, or None with a note if it cannot be used."""
    if len(pattern) > 2_000 or _EXPLOSIVE.search(pattern):
        place.note(f"正则 {show(pattern, 80)} 可能耗时过长，不予检查")
        return None
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as error:
        place.note(f"正则 {show(pattern, 80)} 无法使用（{error}），不予检查")
        return None


def _rule_pattern(pattern, schema, place):
    search, text = _regex(pattern, place), _cut(pattern, 100)

    def check(value, path):
        if len(value) > _MAX_MATCHED:
            return _fault(path, "pattern", f"超过 {_MAX_MATCHED} 个字符，无法核对正则 {text}")
        if search(value):
            return ()
        return _fault(path, "pattern", f"要符合正则 {text}，收到的是 {show(value)}")

    return check if search else _accept


def _is_day(text: str) -> bool:
    import datetime

    try:
        return bool(datetime.date(int(text[:4]), int(text[5:7]), int(text[8:10])))
    except ValueError:
        return False


def _is_address(text: str) -> bool:
    import ipaddress

    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
# format → (shape, further test, example for the message). Times as in RFC 3339, so with an offset.
# Any other format is an annotation (JSON Schema validation, section 7.2.1).
_FORMATS = {
    "date": (_DATE, _is_day, "2031-02-28"),
    "date-time": (f"{_DATE}[tT]{_TIME}", _is_day, "2031-02-28T10:00:00Z"),
    "time": (_TIME, len, "10:00:00Z"),
    "uuid": (_UUID, len, "3fa85f64-5717-4562-b3fc-2c963f66afa6"),
    "email": (r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*", len, "ada@example.org"),
    "uri": (r"[a-zA-Z][a-zA-Z\d+.-]*:[^\s<>\"{}|\\^`]+", len, "https://example.org/a"),
    "ipv4": (r"\d+(\.\d+){3}", _is_address, "192.0.2.1"),
    "ipv6": (f"({_HEX}|[:.])*:({_HEX}|[:.])*", _is_address, "2001:db8::1"),
}


def _rule_format(name, schema, place):
    if name not in _FORMATS:
        return _accept
    shape, test, example = _FORMATS[name]
    shape = re.compile(shape, re.ASCII)

    def check(value, path):
        if len(value) <= _MAX_MATCHED and shape.fullmatch(value) and test(value):
            return ()
        return _fault(path, "format", f"应该是 {name} 格式（如 {example}），收到的是 {show(value)}")

    return check


def _rule_prefix(schemas, schema, place):
    tests = [place.child(item, "prefixItems", number) for number, item in enumerate(schemas)]
    return lambda value, path: [
        problem
        for number, (test, item) in enumerate(zip(tests, value))
        for problem in test(item, (path, number, path[2]))
    ]


def _rule_items(rest, schema, place):
    if isinstance(rest, list):  # what draft 7 called prefixItems
        return _rule_prefix(rest, schema, place)
    start, test = len(_of(schema, "prefixItems", list)), place.child(rest, "items")

    def check(value, path):
        found = []
        for number in range(start, len(value)):
            found += test(value[number], (path, number, path[2]))
            if len(found) > _MAX_PROBLEMS:
                break
        return found

    return check


def _rule_unique(wanted, schema, place):
    def check(value, path):
        seen = {}
        for number, item in enumerate(value):
            first = seen.setdefault(_equality_key(item), number)
            if first != number:
                says = f"的元素不能重复，[{number}] 与 [{first}] 相同，收到的是 {show(item)}"
                return _fault(path, "uniqueItems", says)
        return ()

    return check if wanted else _accept


def _rule_contains(wanted, schema, place):
    test = place.child(wanted, "contains")
    words = _expected(wanted, place.run.root)
    want = f"是 {_listed(words, ' 或 ')}" if words else f"符合 {show(wanted)}"

    def check(value, path):
        if any(not test(item, (path, number, path[2])) for number, item in enumerate(value)):
            return ()
        return _fault(path, "contains", f"里至少要有一个元素{want}，收到的是 {show(value)}")

    return check


def _rule_required(names, schema, place):
    needed = frozenset(names)

    def check(value, path):
        if needed <= value.keys():
            return ()
        missing = [_where((path, name, None)) for name in names if name not in value]
        return [Problem(where, "required", f"缺少必填参数 {where}") for where in missing]

    return check


def _rule_properties(schemas, schema, place):
    required = _of(schema, "required", list)
    tests = {
        name: place.child(part, "properties", name, optional=name not in required)
        for name, part in schemas.items()
    }

    def check(value, path):
        found = []
        for name, test in tests.items():
            if name in value:
                found += test(value[name], (path, name, path[2]))
        return found

    return check


def _rule_patterns(schemas, schema, place):
    tests = [
        (search, place.child(part, "patternProperties", pattern, optional=True))
        for pattern, part in schemas.items()
        if (search := _regex(pattern, place))
    ]
    return lambda value, path: [
        problem
        for search, test in tests
        for name, item in value.items()
        if search(name[:_MAX_MATCHED])
        for problem in test(item, (path, name, path[2]))
    ]


def _unknown_name(name: str, known: list[str], value: dict, path: tuple) -> list[Problem]:
    """Return the problem with a name that the schema does not have."""
    meant = closest(name, [n for n in known if n not in value]) or closest(name, known)
    if meant:
        tail = f"，是不是想写 {_cut(meant, 60)}？"
    else:
        tail = f"，可用的有 {_listed(known)}" if known else "，这里不接受任何参数"
    where = _where((path, name, None))
    return [Problem(where, "additionalProperties", f"没有参数 {where}{tail}")]


def _rule_additional(rest, schema, place):
    known = list(_of(schema, "properties", dict))
    names = frozenset(known)
    patterns = [_regex(pattern, place) for pattern in _of(schema, "patternProperties", dict)]
    test = place.child(rest, "additionalProperties", optional=True)

    def check(value, path):
        found = []
        for name in () if value.keys() <= names else [n for n in value if n not in names]:
            if any(search and search(name[:_MAX_MATCHED]) for search in patterns):
                continue
            if rest is False:
                found += _unknown_name(name, known, value, path)
            else:
                found += test(value[name], (path, name, path[2]))
            if len(found) > _MAX_PROBLEMS:
                break
        return found

    return check


def _rule_names(wanted, schema, place):
    test = place.child(wanted, "propertyNames")

    def check(value, path):
        for name in value:
            for problem in test(name, (path, name, path[2])):
                return _fault(path, "propertyNames", f"的键 {show(name, 60)} 不合要求：{problem}")
        return ()

    return check


def _rule_dependent(needs, schema, place):
    return lambda value, path: [
        Problem(where, "dependentRequired", f"传了 {_cut(name, 60)} 就必须同时传 {where}")
        for name, others in needs.items()
        if name in value
        for where in [_where((path, other, None)) for other in others if other not in value]
    ]


def _rule_all(schemas, schema, place):
    tests = [place.same(part, "allOf", number) for number, part in enumerate(schemas)]
    return lambda value, path: [problem for test in tests for problem in test(value, path)]


def _rule_not(unwanted, schema, place):
    test, words = place.same(unwanted, "not"), _expected(unwanted, place.run.root)
    says = f"不能是 {_listed(words, ' 或 ')}" if words else f"不能符合 {show(unwanted)}"
    return lambda value, path: (
        () if test(value, path) else _fault(path, "not", f"{says}，收到的是 {show(value)}")
    )


def _rule_if(condition, schema, place):
    test = place.same(condition, "if")
    then, other = (place.same(schema.get(word, True), word) for word in ("then", "else"))
    return lambda value, path: other(value, path) if test(value, path) else then(value, path)


class _Tag(NamedTuple):
    """The property that tells the branches of a union apart, such as `kind`."""

    name: str
    values: list  # as the branches write them
    branch: dict  # key of a value → number of its branch


def _find_tag(branches: list, root: object) -> _Tag | None:
    """Return the tag if each branch that takes objects fixes one property to values of its own."""
    bodies = [(number, _follow(branch, root)) for number, branch in enumerate(branches)]
    bodies = [(number, body) for number, body in bodies if "object" in _accepted(body, root)]
    if len(bodies) < 2 or not all(isinstance(body, dict) for _, body in bodies):
        return None
    for name in _of(bodies[0][1], "properties", dict):
        parts = [(number, _of(body, "properties", dict).get(name)) for number, body in bodies]
        values = [(value, number) for number, part in parts for value in _choices(part)]
        branch = {_equality_key(value): number for value, number in values}
        if len(branch) == len(values) and len(set(branch.values())) == len(bodies):
            return _Tag(name, [value for value, _ in values], branch)
    return None


def _best_branch(results: list, path: tuple, keyword: str) -> list[Problem]:
    """Return what is wrong in the branch that fits best, the one with the fewest problems.

    A branch that refuses the value as such tells nothing; if all do, there is no best one: [].
    """
    here, flat = _where(path), ("type", "const", "enum", "anyOf", "oneOf", "false")
    near = [found for found in results if found[0].path != here or found[0].keyword not in flat]
    fewest = min(map(len, near), default=0)
    best = {found[0].text: found for found in near if len(found) == fewest}
    if fewest == 1 and len(best) > 1:
        return [Problem(here, keyword, _cut("；或者".join(best)))]
    return list(next(iter(best.values()), []))


def _rule_union(keyword, branches, place):
    """Return the check of anyOf and oneOf; a tag, or the type of the value, leads to the branch."""
    root = place.run.root
    accepted = [_accepted(branch, root) for branch in branches]
    tests = [place.same(branch, keyword, number) for number, branch in enumerate(branches)]
    likely = {
        kind: [(n, test) for n, test in enumerate(tests, 1) if accepted[n - 1] & _NAMES_OF[kind]]
        for kind in _ANY
    }
    words = list(dict.fromkeys(word for branch in branches for word in _expected(branch, root)))
    says = f"应该是 {_listed(words or ['别的值'], ' 或 ')}，收到的是 "
    names = frozenset().union(*accepted)
    tag = _find_tag(branches, root)

    def check(value, path):
        if tag and type(value) is dict and tag.name in value:
            number = tag.branch.get(_equality_key(value[tag.name]))
            if number is not None:
                return tests[number](value, path)
            wrong = f"{_choose_from(tag.values)}，收到的是 {show(value[tag.name])}"
            return _fault((path, tag.name, None), "const", wrong)
        failed, fits = [], []
        for number, test in likely[type(value)]:
            found = test(value, path)
            if found:
                failed.append(found)
            elif keyword == "anyOf":
                return ()
            else:
                fits.append(str(number))
        if len(fits) == 1:
            return ()
        if fits:
            both = f"只能符合一种写法，却同时符合第 {_listed(fits)} 种"
            return _fault(path, keyword, f"{both}，收到的是 {show(value)}")
        return _best_branch(failed, path, keyword) or _fault(
            path, keyword, says + show(value) + _hint(value, names, place.optional)
        )

    return check


# ── The table: a new keyword is a new row; problems are reported in the order of the rows ──

# keyword → (types of value it looks at, shape its own value must have, rule)
KEYWORDS = {
    "$ref": (_ANY, "text", _rule_ref),
    "enum": (_ANY, "list", _rule_enum),
    "const": (_ANY, "value", lambda only, *rest: _rule_enum([only], *rest)),
    "pattern": ((str,), "text", _rule_pattern),
    "format": ((str,), "text", _rule_format),
    "prefixItems": ((list,), "list", _rule_prefix),
    "items": ((list,), "items", _rule_items),
    "uniqueItems": ((list,), "flag", _rule_unique),
    "contains": ((list,), "schema", _rule_contains),
    "required": ((dict,), "names", _rule_required),
    "properties": ((dict,), "map", _rule_properties),
    "patternProperties": ((dict,), "map", _rule_patterns),
    "additionalProperties": ((dict,), "schema", _rule_additional),
    "propertyNames": ((dict,), "schema", _rule_names),
    "dependentRequired": ((dict,), "names map", _rule_dependent),
    "allOf": (_ANY, "list", _rule_all),
    "anyOf": (_ANY, "list", lambda parts, _, place: _rule_union("anyOf", parts, place)),
    "oneOf": (_ANY, "list", lambda parts, _, place: _rule_union("oneOf", parts, place)),
    "not": (_ANY, "schema", _rule_not),
    "if": (_ANY, "schema", _rule_if),
} | {
    keyword: (kinds, shape, _limit(keyword, holds, says))
    for keyword, kinds, shape, holds, says in [
        # In the wording: {0} the limit, {1} the length of the value, {2} the value.
        ("minimum", _NUMBER, "number", operator.ge, "不能小于 {0}，收到的是 {2}"),
        ("maximum", _NUMBER, "number", operator.le, "不能大于 {0}，收到的是 {2}"),
        ("exclusiveMinimum", _NUMBER, "number", operator.gt, "必须大于 {0}，收到的是 {2}"),
        ("exclusiveMaximum", _NUMBER, "number", operator.lt, "必须小于 {0}，收到的是 {2}"),
        ("multipleOf", _NUMBER, "positive", _is_multiple, "必须是 {0} 的倍数，收到的是 {2}"),
        ("minLength", (str,), "count", _is_long, "至少要有 {0} 个字符，收到的是 {2}"),
        ("maxLength", (str,), "count", _is_short, "最多 {0} 个字符，收到的有 {1} 个：{2}"),
        ("minItems", (list,), "count", _is_long, "至少要有 {0} 个元素，收到的是 {2}"),
        ("maxItems", (list,), "count", _is_short, "最多 {0} 个元素，收到的有 {1} 个：{2}"),
        ("minProperties", (dict,), "count", _is_long, "至少要有 {0} 个键，收到的是 {2}"),
        ("maxProperties", (dict,), "count", _is_short, "最多 {0} 个键，收到的有 {1} 个：{2}"),
    ]
}
# Of JSON Schema, but not honoured here: said at registration. `type`, `nullable`, `then` and `else`
# have no row of their own; any further word ("optional") is an annotation by the standard.
_UNSUPPORTED = frozenset(
    "unevaluatedProperties unevaluatedItems additionalItems dependencies dependentSchemas"
    " minContains maxContains $dynamicRef $recursiveRef".split()
)


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_SHAPES = {
    "value": lambda value: True,
    "flag": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "number": _is_number,
    "positive": lambda value: _is_number(value) and value > 0,
    "count": lambda value: _is_number(value) and value >= 0 and value % 1 == 0,
    "list": lambda value: isinstance(value, list),
    "names": _are_names,
    "schema": lambda value: isinstance(value, (dict, bool)),
    "items": lambda value: isinstance(value, (dict, bool, list)),
    "map": lambda value: isinstance(value, dict) and _are_names(list(value)),
    "names map": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
}


# ── Schema → check ──


def _compile_rules(schema: dict, place: _SchemaPlace) -> dict[type, list[Callable]]:
    """Return, for each type of value, the checks of the keywords that look at it."""
    rules = {kind: [] for kind in _ANY}
    for keyword, (kinds, shape, rule) in KEYWORDS.items():
        if keyword not in schema:
            continue
        if not _SHAPES[shape](schema[keyword]):
            place.note(f"关键字 {keyword} 的值 {show(schema[keyword], 40)} 不合规定，不予检查")
            continue
        check = rule(schema[keyword], schema, place)
        for kind in kinds if check is not _accept else ():
            rules[kind].append(check)
    for keyword in sorted(_UNSUPPORTED.intersection(schema)):
        place.note(f"不支持关键字 {keyword}，不予检查")
    return rules


def _compile_type(schema: dict, place: _SchemaPlace) -> tuple[frozenset, bool, Callable]:
    """Return the classes a schema allows, whether 3.0 passes too, and how it refuses a value."""
    names, unknown = _type_names(schema)
    if unknown or schema.get("type") == []:
        place.note(f"不认识的类型 {show(schema['type'], 60)}，不检查类型")
    nullable = ["null"] if schema.get("nullable") is True else []
    names = list(dict.fromkeys(names + nullable)) if names else list(_CLASSES)
    choices = f"，{_choose_from(_choices(schema))}" if _choices(schema) else ""
    says = f"应该是 {_listed(names, ' 或 ')}{choices}，收到的是 "

    def refuse(value, path):
        return _fault(path, "type", says + show(value) + _hint(value, names, place.optional))

    classes = frozenset(cls for name in names for cls in _CLASSES[name])
    return classes, "integer" in names, refuse


def _compile_node(schema: object, place: _SchemaPlace) -> Callable:
    """Return the check of one schema: its type, then the rules for that type."""
    place.run.left -= 1
    if place.depth > _MAX_SCHEMA_DEPTH or place.run.left < 0:
        place.note("模式太深或太大，从这里起不再检查")
        return _accept
    if schema is False:
        return lambda value, path: _fault(path, "false", "不允许出现，请去掉")
    if not isinstance(schema, dict):
        if schema is not True:
            place.note(f"模式应该是一个对象，现在是 {show(schema, 40)}，不予检查")
        return _accept
    classes, whole, refuse = _compile_type(schema, place)
    rules = {kind: tuple(checks) for kind, checks in _compile_rules(schema, place).items()}
    if schema.get("nullable") is True:
        rules[type(None)] = ()

    def check(value, path):
        kind = type(value)
        if kind not in classes and not (whole and kind is float and value.is_integer()):
            return refuse(value, path)
        found = ()
        for rule in rules[kind]:
            problems = rule(value, path)
            if problems:
                found = [*found, *problems]
        return found

    return check


_LEAVES = frozenset([str, int, bool, type(None)])
_NAME = frozenset([str])


def _not_json(args: dict, root: tuple) -> list[Problem]:
    """Return what keeps `args` from being finite JSON of bounded depth: [] for nearly every call.

    The rules rely on it: what they meet is str, int, float, bool, None, list or dict, exactly.
    """
    found, todo = [], [(args, root, 1)]
    for value, path, depth in todo:  # grows while it is read: no recursion, however deep
        if depth > _MAX_DEPTH or len(todo) > _MAX_ITEMS:
            return _fault(path, "depth", f"嵌套超过 {_MAX_DEPTH} 层或者太大，请改成较小的结构")
        if type(value) is dict and not _NAME.issuperset(map(type, value)):
            return _fault(path, "json", f"的键都应该是字符串，收到的是 {show(value)}")
        for step, item in value.items() if type(value) is dict else enumerate(value):
            kind = type(item)
            if kind in _LEAVES:
                continue
            if kind is dict or kind is list:
                todo.append((item, (path, step, None), depth + 1))
            elif kind is not float:
                return _fault((path, step, None), "json", f"不是 JSON 值，收到的是 {show(item)}")
            elif not math.isfinite(item) and len(found) < _MAX_PROBLEMS:
                says = f"要是有限的数，收到的是 {show(item)}"
                found += _fault((path, step, None), "finite", says)
    return found


class SchemaRules(NamedTuple):
    """A schema made ready for calls: `rules(args)` returns every problem, [] when all is well.

    `notes` tell the programmer which keywords, types and references are not checked.
    """

    check: Callable
    notes: tuple[str, ...]

    def __call__(self, args: object) -> list[Problem]:
        root = (None, None, [_MAX_REFS])
        if type(args) is not dict:
            return _fault(root, "type", f"应该是一个 JSON 对象（object），收到的是 {show(args)}")
        strange = _not_json(args, root)
        if strange and strange[-1].keyword != "finite":
            return strange
        try:
            found = list(self.check(args, root))
        except RecursionError:
            return _fault(root, "depth", "嵌套太深或组合太多，请改成较浅的结构")
        if strange:
            places = {problem.path for problem in strange}
            found = [problem for problem in found if problem.path not in places] + strange
        if len(found) > _MAX_PROBLEMS:
            found[_MAX_PROBLEMS - 1 :] = [Problem("", "more", "此外还有别的问题，请先改正以上各处")]
        return found


def _compiled(schema: object) -> SchemaRules:
    run = _SchemaRun(schema, _compile_node)
    try:
        check = _compile_node(schema, _SchemaPlace("#", 0, frozenset("#"), False, run))
        for pointer, target, place in run.pending:  # grows while it is read
            run.refs[pointer] = _compile_node(target, place)
    except RecursionError:  # an enum value a thousand levels deep
        return SchemaRules(_accept, ("#：模式嵌套太深，不予检查",))
    return SchemaRules(check, tuple(run.notes))


@functools.lru_cache(maxsize=512)
def _compiled_bytes(frozen: bytes) -> SchemaRules:
    return _compiled(marshal.loads(frozen))


def compile_schema(schema: dict | bool) -> SchemaRules:
    """Return the rules of a schema, compiled once per content. Never raises: see `.notes`.

    The cache knows a schema by its bytes (about 2 µs for six fields) and not by identity, so that a
    caller may change or free the dict at any time.
    """
    try:
        return _compiled_bytes(marshal.dumps(schema))
    except ValueError:  # holds something that is not plain data
        return _compiled(schema)


# ── Repairs: only what loses nothing and has one reading ──


def _body(value: object, schema: object, root: object) -> dict:
    """Return the schema that speaks about the parts of `value`, behind `$ref` and unions."""
    for _ in range(8):
        schema = _follow(schema, root)
        branches = _branches(schema) if isinstance(schema, dict) else []
        tag = _find_tag(branches, root) if isinstance(value, dict) else None
        if tag and _equality_key(value.get(tag.name)) in tag.branch:
            branches = [branches[tag.branch[_equality_key(value[tag.name])]]]
        kinds = _NAMES_OF[type(value)]
        branches = [branch for branch in branches if kinds & _accepted(branch, root)]
        if len(branches) != 1:
            break
        schema = branches[0]
    return schema if isinstance(schema, dict) else {}


class _Mender(NamedTuple):
    """Mends one set of arguments under a root schema; `repairs` gets a sentence for each repair."""

    root: object
    repairs: list[str]

    def value(self, value: object, schema: object, path: tuple) -> object:
        names = _accepted(schema, self.root)
        mended = value
        if type(value) is str and "string" not in names:
            mended = _unquoted(value, names)
        elif type(value) is float and value.is_integer() and "number" not in names:
            mended = int(value) if "integer" in names else value
        if mended is not value:
            says = f"参数 {_where(path)} 由 {show(value)} 改成了 {show(mended)}"
            self.repairs.append(_cut(says))
        if type(mended) is dict:
            return self.object(mended, _body(mended, schema, self.root), path)
        if type(mended) is list:
            return self.array(mended, _body(mended, schema, self.root), path)
        return mended

    def object(self, value: dict, body: dict, path: tuple) -> dict:
        parts, required = _of(body, "properties", dict), _of(body, "required", list)
        mended = {}
        for name, item in value.items():
            here, part = (path, name, None), parts.get(name, body.get("additionalProperties"))
            optional = name in parts and name not in required
            if item is None and optional and "null" not in _accepted(part, self.root):
                self.repairs.append(f"参数 {_where(here)} 是 null，按没有传处理")
            else:
                mended[name] = self.value(item, part, here)
        return mended

    def array(self, value: list, body: dict, path: tuple) -> list:
        schemas = _of(body, "prefixItems", list)[: len(value)]
        schemas = schemas + [body.get("items")] * (len(value) - len(schemas))
        return [
            self.value(item, schema, (path, number, None))
            for number, (item, schema) in enumerate(zip(value, schemas))
        ]


def repair_arguments(args: object, schema: dict | bool) -> tuple[object, list[str]]:
    """Return mended arguments and one sentence for each repair; `args` itself is never changed.

    Mends "4096" → 4096, "true" → true and a quoted array or object where the schema allows no
    string, 4096.0 → 4096 where it wants an integer, and leaves out null where a parameter is
    optional and cannot be null. Never: true ↔ 1, "yes", "8k", 5.5 → 5, x → [x], 5 → "5".

    >>> repair_arguments({"k": "5"}, {"type": "object", "properties": {"k": {"type": "integer"}}})
    ({'k': 5}, ['参数 k 由 "5" 改成了 5'])
    """
    root = (None, None, None)
    if type(args) is not dict or _not_json(args, root):
        return args, []
    mender = _Mender(schema, [])
    try:
        mended = mender.object(args, _body(args, schema, schema), root)
    except RecursionError:
        return args, []
    return mended, mender.repairs


# ── The two questions: are these arguments right, is this schema sound ──


def validate_arguments(
    args: object,
    schema: dict | bool,
    *,
    coerce: bool = False,
) -> list[Problem]:
    """Return every problem of `args` under `schema`; [] means valid.

    With coerce=True the arguments are judged as `repair_arguments` would mend them.

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
    rooted = _type_names(schema)[0] == ["object"]
    notes = [] if rooted else ['#：参数的模式应该写明 "type": "object"']
    return notes + list(compile_schema(schema).notes)


def explain(problems: list[Problem]) -> str:
    """Return the text a model reads: one line for one problem, else a numbered list; "" for none.

    >>> print(explain([Problem("city", "required", "缺少必填参数 city")]))
    缺少必填参数 city。请改正后重新调用。
    """
    if len(problems) < 2:
        text = "".join(f"{problem}。请改正后重新调用。" for problem in problems)
        return text.replace("？。", "？")
    lines, room = [f"参数有 {len(problems)} 处问题："], 1_200
    for number, problem in enumerate(problems, 1):
        room -= len(str(problem))
        if room < 0:
            lines.append(f"……另有 {len(problems) - number + 1} 处")
            break
        lines.append(f"{number}. {problem}")
    return "\n".join([*lines, "请全部改正后重新调用。"])


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 4  注册表 Registry      uses §1–§3 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A tool is a name, a text for the model, a schema, and something that runs on one dict. Mistakes of
# the programmer raise here, at registration; mistakes of the model become results it can read.

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,45}")  # dots, spaces and longer names: hosts drop the tool
DESCRIPTION_LIMIT = 1024  # characters; OpenAI refuses longer ones
RESULT_CHARACTERS = 1500  # of one result, as in the lecture; a tool may set its own
ERROR_CHARACTERS = 300  # of a failing tool's own message
STREAM_ITEMS = 1000  # taken from a generator, which may be endless

LABELS = {
    "read_only": "只读，不改动任何东西",
    "private": "读取私人数据",
    "untrusted": "读取不可信内容",
    "sends": "向外发送数据",
    "irreversible": "操作不可撤销",
}


class Tool(NamedTuple):
    """A tool as the registry keeps it. `run` takes one dict of valid arguments, never **kwargs.

    seconds and characters are the tool's own limits (None: the loop's); output is the JSON Schema
    of the result where it is an object.
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

        A function may carry them itself: `fn.tool = {"title": "训练算力", "seconds": 5}`.
        """
        read = read_parameters(fn)

        def run(args: dict) -> object:
            positional, keyword = read.bind(args)
            return fn(*positional, **keyword)

        return cls(**{
            "name": read.name, "description": read.description, "parameters": read.schema,
            "run": run, "output": output_schema(fn), **getattr(fn, "tool", {}), **options,
        })

    def schema(self) -> dict:
        """What a model needs to know: {"name", "description", "parameters"}."""
        return {
            "name": self.name, "description": self.description, "parameters": self.parameters,
        }


def check_tool(tool: Tool) -> None:
    """Raise SchemaError when hosts or models would stumble over the definition."""
    where = f"工具 {tool.name!r}"
    if not (isinstance(tool.name, str) and TOOL_NAME.fullmatch(tool.name)):
        raise SchemaError(f"{where}：名字只能用英文字母、数字、_ 和 -，最多 45 个字符")
    if not (isinstance(tool.description, str) and tool.description.strip()):
        raise SchemaError(f"{where}：缺少说明，模型靠它决定何时调用；请给函数写 docstring")
    if len(tool.description) > DESCRIPTION_LIMIT:
        raise SchemaError(
            f"{where}：说明有 {len(tool.description)} 个字符，上限是 {DESCRIPTION_LIMIT}",
        )
    if unknown := sorted(set(tool.labels) - set(LABELS)):
        raise SchemaError(f"{where}：没有标签 {'、'.join(unknown)}，可用：{'、'.join(LABELS)}")
    if faults := check_schema(tool.parameters):
        raise SchemaError(f"{where}：参数模式有问题：{'；'.join(faults)}")


# What a failing tool says may hold paths and keys of this machine; the model needs neither.
_PRIVATE = (
    (re.compile(r"\b(?:sk|pk|ghp|gho|xox[abp]|hf|AKIA|eyJ)[-_A-Za-z0-9.]{12,}"), "[已隐去]"),
    (re.compile(r"(?i)\bbearer\s+\S+"), "Bearer [已隐去]"),
    (
        re.compile(r"(?i)\b([\w-]*(?:api[_-]?key|token|password|passwd|secret))"
                   r"([\"']?\s*[=:]\s*)[\"']?[^\s\"',;&]+"),
        r"\1\2[已隐去]",
    ),
    (re.compile(r"://[^/\s:@]+:[^/\s@]+@"), "://[已隐去]@"),
    (re.compile(r"\b[A-Za-z]:\\(?:[^\\\s\"']+\\)*([^\\\s\"']*)"), r"\1"),
    (re.compile(r"(?<![\w:/.])~?/(?:[\w.@+ -]+/)+([\w.@+-]*)"), r"\1"),
)


def error_text(error: BaseException) -> str:
    """Class and message of an exception in one bounded line, without paths, keys or traceback."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # a broken __str__ must not turn one failure into two
        message = ""
    for pattern, replacement in _PRIVATE:
        message = pattern.sub(replacement, message)
    if len(message) > ERROR_CHARACTERS:
        message = message[:ERROR_CHARACTERS] + "…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _whole(text: str) -> str:
    """The text with lone surrogates replaced: half a character cannot be sent as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _odd_value(value: object) -> object:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, float):  # NaN and infinities are no JSON; their names at least say so
        return str(value)
    if isinstance(value, Iterator):
        return [plain(item, other=_odd_value) for item in itertools.islice(value, STREAM_ITEMS)]
    return _whole(repr(value))


def json_value(value: object) -> object:
    """Any Python value as a JSON value: what JSON cannot say is named in a string."""
    return plain(value, other=_odd_value)


def json_text(value: object) -> str:
    """Strict one-line JSON of a JSON value, Chinese left readable."""
    return _whole(json.dumps(value, ensure_ascii=False, allow_nan=False))


def cut(text: str, limit: int) -> str:
    """The text in at most `limit` characters; what is missing is said at the end."""
    if len(text) <= limit:
        return text
    notice = f"\n（结果过长：共 {len(text)} 个字符，只保留开头部分）"
    return text[:max(0, limit - len(notice))] + notice


def _awaited(value: object) -> object:
    """The value itself, or what the awaitable gives; also when an event loop already runs here."""
    if not hasattr(value, "__await__"):
        return value
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def finish() -> object:
        return await value

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, finish()).result()


def _run(tool: Tool, args: dict, characters: int) -> ToolResult:
    limit = tool.characters or characters
    try:
        value = json_value(_awaited(tool.run(args)))
        text = _whole(value) if isinstance(value, str) else json_text(value)
    except ToolError as error:
        return ToolResult(cut(_whole(str(error)), limit), "failed")
    except KeyboardInterrupt:  # the user's, not the tool's
        raise
    except BaseException as error:  # sys.exit() or a cancelled task in a tool must not end the host
        reason = _whole(error_text(error))
        return ToolResult(f"工具 {tool.name} 执行出错：{reason}", "failed")
    return ToolResult(cut(text, limit), value=value)


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
        """Register a finished tool. Raises SchemaError for a bad definition or a taken name."""
        check_tool(tool)
        if tool.name in self._tools:
            raise SchemaError(f"工具 {tool.name!r}：已有同名工具，请改名")
        self._tools[tool.name] = tool
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

    def call(self, call: ToolCall, *, characters: int = RESULT_CHARACTERS) -> ToolResult:
        """The result of one call, whatever the model wrote; never raises."""
        tool = self.get(call.name)
        if tool is None:
            return ToolResult(self._unknown(call.name), "unknown_tool")
        repairs: list[str] = []
        try:
            args = parse_arguments(call.arguments)
        except ArgumentsError as error:
            return ToolResult(str(error), "bad_arguments")
        if self.coerce:
            args, repairs = repair_arguments(args, tool.parameters)
        if problems := validate_arguments(args, tool.parameters):
            return ToolResult(explain(problems), "bad_arguments", None, tuple(repairs))
        return _run(tool, args, characters)._replace(repairs=tuple(repairs))

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
_SIMILAR = 0.3  # share of two-character pieces that two descriptions have in common


def _pieces(tool: Tool) -> set[str]:
    text = re.sub(r"\s+", "", f"{tool.name}{tool.description}".lower())
    return {text[i:i + 2] for i in range(len(text) - 1)}


def _likeness(one: Tool, other: Tool) -> float:
    a, b = _pieces(one), _pieces(other)
    return len(a & b) / (len(a | b) or 1)


def _review_name(tool: Tool, others: list[Tool]) -> Iterator[str]:
    if tool.name.lower() in _VAGUE_NAMES or len(tool.name) < 3:
        yield f"名字 {tool.name} 太笼统，改成“动词_对象”，例如 search_notes"


def _review_description(tool: Tool, others: list[Tool]) -> Iterator[str]:
    if len(tool.description) < 15:
        yield f"说明只有 {len(tool.description)} 个字符，请写清做什么、什么时候用"


def _review_result(tool: Tool, others: list[Tool]) -> Iterator[str]:
    if not _COMES_BACK.search(tool.description):
        yield "说明没有讲返回什么"
    if _LOOKS_UP.search(tool.name) and not _NOTHING_FOUND.search(tool.description):
        yield "说明没有讲查不到时返回什么"


def _review_siblings(tool: Tool, others: list[Tool]) -> Iterator[str]:
    for other in others:
        if _likeness(tool, other) >= _SIMILAR and other.name not in tool.description:
            yield f"和 {other.name} 很像，请写清两者的分工"


def _review_required(tool: Tool, others: list[Tool]) -> Iterator[str]:
    if (count := len(tool.parameters.get("required", []))) > _MOST_REQUIRED:
        yield f"必填参数有 {count} 个，请给常用值设默认值，或拆成两个工具"


def _review_shape(tool: Tool, others: list[Tool]) -> Iterator[str]:
    text = json.dumps(tool.parameters, ensure_ascii=False)
    if len(text) > _LARGEST_SCHEMA:
        yield f"参数模式有 {len(text)} 个字符，太大"
    if nested := [key for key in ("anyOf", "oneOf", "allOf", "$ref") if f'"{key}"' in text]:
        yield f"参数模式用了 {'、'.join(nested)}，能摊平就摊平"


def _review_parameter(text: str, schema: dict) -> Iterator[tuple[str, str]]:
    if not text:
        yield "没有说明", "模型只能猜这个参数填什么"
        return
    kinds = schema.get("type", ())
    if "enum" in schema or kinds == "boolean":
        return
    if _CHOICES.search(text) and kinds == "string":
        yield "取值有限，请改用 Literal 或 Enum", "enum 会进模式，模型和校验都能看到，文字里的不会"
    elif not _CONCRETE.search(text):
        yield "说明里没有单位、格式或例子", "“长度”可以是字符、token 或毫秒，一个例子就能说清"


# rule → why it matters; the rules of the lecture, Week 4 Day 3 §2.1
_REVIEWS = (
    (_review_name, "模型先看名字来选工具"),
    (_review_description, "模型靠说明判断什么时候该用"),
    (_review_result, "不知道会得到什么，模型就会多调一次或编一个结果"),
    (_review_siblings, "分工不清，模型就会选错"),
    (_review_required, "必填越多，越容易缺参数或编参数"),
    (_review_shape, "有的主机和小模型读不懂嵌套的模式，每次请求也更贵"),
)


def review_tool(tool: Tool, others: Iterable[Tool] = ()) -> list[Advice]:
    """What to improve in a definition and why, by the lecture's rules; [] when it reads well."""
    others = [other for other in others if other.name != tool.name]
    advice = [
        Advice(tool.name, what, why) for rule, why in _REVIEWS for what in rule(tool, others)
    ]
    for name, schema in tool.parameters.get("properties", {}).items():
        schema = schema if isinstance(schema, dict) else {}
        for what, why in _review_parameter(str(schema.get("description", "")), schema):
            advice.append(Advice(f"{tool.name}.{name}", what, why))
    return advice


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 5  计算器 Calculator      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Arithmetic a model may ask for, and nothing else. The text becomes a syntax tree, and only what
# stands in a table below is ever computed: no eval, no attribute, no string, no list. Python's
# integers grow without limit and one big power cannot be interrupted, so an operation whose result
# could be too large is refused *before* it runs. Every refusal is one Chinese line saying why.

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
    return sum(factor.bit_length() for factor in factors)


def _falling_bits(n: int, k: int | None = None) -> int:
    """n · (n-1) · … has k factors (n of them in a factorial), none longer than n."""
    return (n if k is None else k) * n.bit_length()


def _choose_bits(n: int, k: int) -> int:
    return _falling_bits(n, min(k, n - k))  # generous, but it bounds the time as well


def _round_bits(_: int, places: int = 0) -> float:
    return 0 if abs(places) <= MAX_ROUND else math.inf


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
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
PLAIN = "sqrt exp log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh degrees radians"
FUNCTIONS = {name: Operation(getattr(math, name)) for name in PLAIN.split()} | {
    "log": Operation(math.log, 1, 2),  # log(x) is natural, log(x, base) is not
    "ln": Operation(math.log),
    "pow": Operation(pow, 2, 3, bits=_power_bits),
    "abs": Operation(abs),
    "round": Operation(round, 1, 2, bits=_round_bits),
    "floor": Operation(math.floor),
    "ceil": Operation(math.ceil),
    "trunc": Operation(math.trunc),
    "int": Operation(int),
    "float": Operation(float),
    "min": Operation(min, 2, MANY),
    "max": Operation(max, 2, MANY),
    "hypot": Operation(math.hypot, 1, MANY),
    "fmod": Operation(math.fmod, 2, 2),
    "atan2": Operation(math.atan2, 2, 2),
    "deg": Operation(math.degrees),
    "rad": Operation(math.radians),
    "factorial": Operation(math.factorial, bits=_falling_bits),
    "comb": Operation(math.comb, 2, 2, bits=_choose_bits),
    "perm": Operation(math.perm, 1, 2, bits=_falling_bits),
    "gcd": Operation(math.gcd, 1, MANY),
    "lcm": Operation(math.lcm, 1, MANY, bits=_product_bits),
    "isqrt": Operation(math.isqrt),
}

# What people type for ASCII. An explicit table and not NFKC, which would turn 5² into 52. `^` is
# replaced in the text because Python's own ^ binds weaker than +, so that 1+2^3 would become 3^3.
TYPED = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
TYPED |= dict.fromkeys("×✕✖⋅·∙•∗", "*") | dict.fromkeys("÷∕⁄", "/") | dict.fromkeys("−–—﹣", "-")
TYPED |= dict.fromkeys("\u3000\u00a0\u2002\u2003\u2009\u202f", " ")
TYPED |= dict.fromkeys("\u200b\u2060\ufeff", "")
TYPED |= {"^": "**", "＾": "**", "≤": "<=", "≥": ">=", "≠": "!=", "π": "pi", "τ": "tau"}
TO_ASCII = str.maketrans(TYPED)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
SUPERSCRIPT_RUN = "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+"

FOREIGN = r"(?a)[^\w\s.,()+\-*/%<>=!]"  # everything else is refused unparsed
FOREIGN_HINTS = {
    "√": "开方写 sqrt(16)",
    "∞": "只算有限的数",
    "°": "角度先换成弧度，写 sin(radians(30))",
    ";": "一次只算一个式子",
    "[": "不支持列表，参数直接写在括号里，如 max(1, 2)",
    "|": "绝对值写 abs(x)",
    "$": "金额只写数字，单位去掉",
}

# Text that Python would read in a way its writer did not mean, or not without a warning.
MISREAD = (
    (r"\d\s*%\s*\+|\d%\s+-\s", "百分数写成小数，50% 写 0.5；取余写 7 % 3"),
    (r"\d,0\d\d(?!\d)", "数字里不要写千位分隔符，1,000 写 1000"),
    (r"\d(?:and|else|for|if|in|is|not|or)\b", "只支持算术、比较和函数"),
)
# What probably happened when Python could not read the text at all; the first that fits is told.
MALFORMED = (
    (r"^=|=$", "去掉等号，只写要算的式子"),
    (r"(?<![<>=!])=(?!=)", "不能赋值；判断相等写 =="),
    (r"[\w)]\s*!(?!=)", "阶乘写 factorial(5)"),
    (r"[\w)]\s*%\s*(?:$|[)*/%,]|of\b)", "百分数写成小数，50% 写 0.5 或 50/100"),
    (r"\d,\d{3}(?!\d)", "数字里不要写千位分隔符，1,000 写 1000"),
    (r"\d\s*[xX]\s*[\d(]", "乘号写 *，如 2 * 3"),
    (r"\bmod\b", "取余写 %，如 7 % 3"),
    (r"\b0\d", "整数前面不要补 0"),
    (r"\d\s+\d|\)\s*\d", "两个数之间缺运算符"),
    (r"[\d)]\s*[A-Za-z(]", "乘号不能省略，2(3+4) 写 2*(3+4)"),
)


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
    text = text.translate(TO_ASCII).strip()
    if not text.isascii():
        text = re.sub(SUPERSCRIPT_RUN, lambda run: f"**({run[0].translate(SUPERSCRIPTS)})", text)
    if not text:
        raise ToolError("算式是空的，请写一个式子，如 2*(3+4)")
    if foreign := re.search(FOREIGN, text):
        sign = foreign[0] if foreign[0].isprintable() else f"U+{ord(foreign[0]):04X}"
        hint = FOREIGN_HINTS.get(sign, "只写数字、运算符、括号和函数名，不写单位和文字")
        raise ToolError(f"算式里不能有“{sign}”：{hint}")
    if hint := _syntax_hint(text, MISREAD):
        raise ToolError(f"算式写得不对：{hint}")
    return text


def _check_brackets(text: str) -> None:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth > MAX_DEPTH:
            raise ToolError(f"括号嵌套超过 {MAX_DEPTH} 层，请分几步算")
        if depth < 0:
            break
    if depth:
        raise ToolError("括号不配对，请检查左右括号")


def _parse(text: str) -> ast.expr:
    """The syntax tree of one expression; whichever way Python's parser fails, it is a ToolError."""
    text = _normalize(text)
    _check_brackets(text)
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        hint = _syntax_hint(text, MALFORMED) or "缺运算符、数字或括号"
        raise ToolError(f"算式写得不对：{hint}") from None
    except (MemoryError, RecursionError):
        raise ToolError("算式嵌套太深，请分几步算") from None


TOO_LARGE = "数太大，溢出：整数最多约 4200 位，小数最大约 1.8e308"


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
    except ZeroDivisionError:
        raise ToolError(f"{_written(name, values)} 除以零，没有意义") from None
    except OverflowError:
        raise ToolError(TOO_LARGE) from None
    except ValueError:
        raise ToolError(f"{_written(name, values)} 超出定义域，没有结果") from None
    except TypeError:
        raise ToolError(f"{_written(name, values)} 需要整数，可以先用 // 或 round 取整") from None
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
    if name in FUNCTIONS:
        raise ToolError(f"{name} 是函数，要写参数，如 {name}(2)")
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
        case ast.BinOp():
            # 1+1+1+… is a chain that leans to the left: walked down, it costs no recursion.
            steps = []
            while isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
                steps.append(node)
                node = node.left
            if steps:
                value = _evaluate(node)
                for step in reversed(steps):
                    name, operation = OPERATORS[type(step.op)]
                    value = _apply(name, operation, [value, _evaluate(step.right)])
                return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in SIGNS:
            return SIGNS[type(op)](_evaluate(operand))
        case ast.Call(func=func, args=args, keywords=[]) if ast.Starred not in map(type, args):
            name = _identifier(func)
            operation = _math_function(name, len(args))
            return _apply(name, operation, [_evaluate(arg) for arg in args])
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
            raise ToolError("逗号只用来隔开函数的参数；数字里不要写千位分隔符，1,000 写 1000")
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
    tree = _parse(text)
    try:
        return _evaluate(tree)
    except RecursionError:
        raise ToolError("算式嵌套太深，请分几步算") from None


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
    "为什么|什么时候|什么|怎么办|怎么样|怎么|怎样|如何|多少|哪些|哪一节|哪个|哪里|是否|能否|可以|应该"
    "|有没有|是不是|能不能|要不要|请问|吗|呢|的|了"
)


def _fold_width(text: str) -> str:
    return text.translate(TO_HALF_WIDTH) if re.search(FULL_WIDTH, text) else text


def _split_word(word: str) -> list[str]:
    """A name in camelCase is itself and its parts: LoRA is looked up as lora, KVCache as cache."""
    if word.islower() or word.isupper() or not word.isascii():
        return [word.lower()]
    parts = re.findall(HUMPS, word)
    return [part.lower() for part in ([word, *parts] if len(parts) > 1 else parts)]


def tokenize(text: str) -> list[str]:
    """The words of a text in order, for documents and queries alike.

    >>> tokenize("num_kv_heads 占显存，Llama3 §1.4")
    ['num', 'kv', 'heads', '占显', '显存', 'llama', '3', '1.4']
    """
    words = []
    for han, number, word in re.findall(WORDS, _fold_width(text)):
        if han:
            words += map(operator.add, han, han[1:]) if len(han) > 1 else [han]
        elif number:
            words.append(number.replace(",", ""))
        else:
            words += _split_word(word)
    return words


SUFFIXES = (("sses", "ss"), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))


@functools.lru_cache(4096)  # texts repeat their words
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


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about, stemmed."""
    words = (word for word in tokenize(text) if word not in STOP_WORDS)
    return [stem(word) if word.isascii() else word for word in words]


def query_words(text: str) -> list[str]:
    """The words to look for. What only makes it a question is left out, unless nothing remains.

    >>> query_words("显存怎么算？"), query_words("注"), query_words("为什么")
    (['显存'], ['注'], ['为什', '什么'])
    """
    words = content_words(re.sub(QUESTION, " ", text)) or content_words(text)
    return [word for word in words if not re.fullmatch(f"[{HAN}]", word)] or words


def weigh_fields(*fields: tuple[Iterable[str], float]) -> dict[str, float]:
    """Weighted word counts of one document from (words, weight) pairs, as `BM25` takes them."""
    counts: dict[str, float] = {}
    for words, weight in fields:
        for word in words:
            counts[word] = counts.get(word, 0.0) + weight
    return counts


class BM25:
    """Documents ranked by the words of a query (Robertson and Zaragoza 2009, formula 3.15).

    A document is a list of words, or a dict of word → weighted count when its fields differ in
    weight (`weigh_fields`; their section 3.6). What a word adds to a document is worked out when
    the index is built, so that a query touches only the documents that hold its words.

    >>> BM25([["kv", "cache"], ["beam", "search"]]).search(["cache"])
    [(0, 0.6931471805599453)]
    """

    def __init__(self, documents: Iterable[Iterable[str] | Mapping[str, float]], *, k1=1.2, b=0.75):
        counts = [
            document if isinstance(document, Mapping) else weigh_fields((document, 1.0))
            for document in documents
        ]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self.size = len(counts)
        self.postings: dict[str, dict[int, float]] = {}  # word → document → share, below k1 + 1
        for position, (count, length) in enumerate(zip(counts, lengths)):
            damping = k1 * (1 - b + b * length / mean)
            for word, n in count.items():
                self.postings.setdefault(word, {})[position] = n * (k1 + 1) / (n + damping)

    def search(self, query: Iterable[str], top_k: int = 5) -> list[tuple[int, float]]:
        """(position, score) of the best documents, best first; on a tie the earlier one leads.

        Documents that share no word with the query are left out. A repeated word counts once.
        """
        from heapq import nsmallest

        scores: dict[int, float] = {}
        for word in dict.fromkeys(query):
            posting = self.postings.get(word, {})
            # The 1 + keeps a word that most documents contain from counting against them.
            idf = math.log(1 + (self.size - len(posting) + 0.5) / (len(posting) + 0.5))
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


def _front_matter_end(lines: list[str]) -> int:
    """How many lines a YAML head takes; a lone --- is a rule across the page, not a head."""
    if lines[0].rstrip() != "---":
        return 0
    ends = (i for i, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "..."))
    return next(ends, 0)


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
    skipped = _front_matter_end(lines)
    for number, line in enumerate(lines[skipped:], skipped + 1):
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
    return [note for note, after in zip(notes, levels) if note.text or after > note.level]


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


def _markdown_files(folder: str, notices: list[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of each .md file below the folder, sorted, nothing hidden, nothing outside."""
    import os

    def shown(path: str) -> str:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        return " ".join(relative.encode("utf-8", "replace").decode().split())  # may be any bytes

    def unreadable(error: OSError) -> None:
        notices.append(f"跳过读不了的文件夹 {shown(error.filename)}")

    root = os.path.join(os.path.realpath(folder), "")
    for place, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            path = os.path.join(place, file)
            if file.startswith(".") or not file.lower().endswith(".md"):
                continue
            if not os.path.realpath(path).startswith(root):
                notices.append(f"跳过指向文件夹外面的链接 {shown(path)}")
            elif os.path.isfile(path):  # a pipe called x.md would block the reader
                yield shown(path)[:-3], path


def _read_notes(folder: str) -> tuple[list[Note], list[str]]:
    """(sections, notices) of all Markdown files below a folder.

    Raises:
        ToolError: there is no such folder, or nothing to read in it.
    """
    import os

    if not os.path.isdir(folder):
        raise ToolError("没有找到笔记文件夹，请用 --notes DIR 指定一个放着 .md 文件的文件夹")
    notes: list[Note] = []
    notices: list[str] = []
    for name, path in _markdown_files(folder, notices):
        try:
            if os.path.getsize(path) > MAX_NOTE_BYTES:
                notices.append(f"跳过太大的文件 {name}.md（超过 {MAX_NOTE_BYTES:,} 字节）")
                continue
            with open(path, encoding="utf-8-sig") as file:  # -sig drops a byte order mark
                notes += _notes_of_file(name, file.read())
        except UnicodeDecodeError:
            notices.append(f"跳过不是 UTF-8 的文件 {name}.md")
        except OSError:  # vanished since it was listed, or not ours to read
            notices.append(f"跳过读不了的文件 {name}.md")
    if not notes:
        raise ToolError("笔记文件夹里没有可读的 .md 文件，请用 --notes DIR 换一个文件夹")
    return _with_unique_sections(notes), notices


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
    matches = list(re.finditer(pattern, _fold_width(line), re.IGNORECASE))[:SNIPPET_MATCHES]

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
    r"\b(?:week|w)[\s_-]*(\d+)[\s_-]*(?:day|d)[\s_-]*(\d+)(?:\.md)?"  # Week 1 Day 4, w1d4
    r"(?:[\s,:#§第]*(\d+(?:\.\d+)*)节?)?"  # §1.4, 1.4, 第1.4节
)


def _address(text: str) -> str:
    """What a reader wrote for a section, in the one form in which addresses are compared.

    >>> {_address(name) for name in ("Week 1 Day 4 §1.4", "week1-day4 1.4", "第一周第4天 § １.４")}
    {'week1day4§1.4'}
    """
    text = _fold_width(text).lower().strip()
    text = re.sub(CHINESE_DAY, lambda day: day[0].translate(CHINESE_DIGITS), text)
    text = re.sub(CHINESE_DAY, r"week\1day\2", text)
    text = re.sub(DAY_ADDRESS, r"week\1day\2§\3 ", text)
    return re.sub(r"[^\w.§]+|§(?!\s*\d)", "", text)


# How much a word counts for, measured on the bundled notes: where it stands …
TITLE_WEIGHT = 3.0
ABOVE_WEIGHT = 1.0  # in a heading further up, or in the section's id
TEXT_WEIGHT = 1.0
# … and what it is. A single character says little, but decides between sections with equal words.
CHARACTER_WEIGHT = 0.2
# A few words of opening must not lead over the sections that they introduce.
OPENING_WEIGHT = 0.5


def _characters(text: str) -> list[str]:
    return re.findall(f"[{HAN}]", text)


def _weighted_words(note: Note, above: list[Note], is_opening: bool) -> dict[str, float]:
    """The document that stands for a section in the ranking."""
    context = " ".join([note.section, *(upper.title for upper in above)])
    fields = ((note.heading, TITLE_WEIGHT), (context, ABOVE_WEIGHT), (note.text, TEXT_WEIGHT))
    scale = OPENING_WEIGHT if is_opening else 1.0
    return weigh_fields(
        *((content_words(text), weight * scale) for text, weight in fields),
        *((_characters(text), weight * scale * CHARACTER_WEIGHT) for text, weight in fields),
    )


class NotesIndex:
    """The sections of a folder of Markdown files, searched and looked up; read on first use."""

    def __init__(self, folder: str):
        self.folder = folder

    @functools.cached_property
    def _store(self) -> tuple[list[Note], list[str]]:
        return _read_notes(self.folder)

    @property
    def sections(self) -> list[Note]:
        """All sections in reading order, each with its own text only."""
        return self._store[0]

    @property
    def notices(self) -> list[str]:
        """What was skipped and why, one sentence each."""
        return self._store[1]

    def days(self) -> list[Note]:
        """The files, each as the note of level 0 that stands for the whole day."""
        return [note for note in self.sections if note.level == 0]

    @functools.cached_property
    def _ranking(self) -> BM25:
        documents: list[dict[str, float]] = []
        above: list[Note] = []  # the headings that the current section stands under
        for note, after in zip(self.sections, [*self.sections[1:], None]):
            above = [upper for upper in above if upper.level < note.level]
            is_opening = note.level == 0 and after is not None and after.level > 0
            documents.append(_weighted_words(note, above, is_opening))
            above.append(note)
        return BM25(documents)

    def search(self, query: str, top_k: int = 5) -> list[Hit]:
        """The best sections for a question in Chinese or English, best first; [] if no word fits.

        Raises:
            ToolError: the query is blank, or there are no notes.
        """
        if not query.strip():
            raise ToolError("query 是空的，请写要查的词，如 KV Cache 显存")
        if len(query) > MAX_QUERY:
            raise ToolError(f"query 有 {len(query)} 个字符，最多 {MAX_QUERY} 个，请只写要查的词")
        words, ranking = query_words(query), self._ranking
        matched = set().union(*(ranking.postings.get(word, ()) for word in words))
        ranked = ranking.search([*words, *_characters(query)], len(self.sections))
        best = [hit for hit in ranked if hit[0] in matched][:top_k]
        notes = [(self.sections[position], score) for position, score in best]
        return [Hit(note, score, _snippet(note.text, words)) for note, score in notes]

    @functools.cached_property
    def _addresses(self) -> dict[str, list[int]]:
        """Address → positions of the sections that may be called so."""
        addresses: dict[str, list[int]] = {}
        for position, note in enumerate(self.sections):
            names = {note.section, note.title, note.heading, f"{note.section} {note.title}"}
            if note.number:
                names.add(f"§{note.number}")
            if note.level == 0:
                file = note.name.rpartition("/")[2]
                names |= {note.name, file, f"{note.name}.md", f"{file}.md"}
            for address in {_address(name) for name in names}:
                addresses.setdefault(address, []).append(position)
        return addresses

    def _whole(self, position: int) -> Note:
        """The section with everything that stands under its heading."""
        note = self.sections[position]
        texts = [note.text]
        for below in self.sections[position + 1 :]:
            if below.level <= note.level:
                break
            texts.append(f"{'#' * below.level} {below.heading}\n\n{below.text}")
        return note._replace(text="\n\n".join(text.strip() for text in texts).strip())

    def find(self, name: str) -> Note:
        """The section that a search hit or a reader calls by `name`, with all its subsections.

        Accepted: an id (`Week 1 Day 4 §1.4`, `week1-day4 1.4`, `第1周第4天 §1.4`), a file or day
        (`week1-day4`), a heading, or a part of a heading that no other section has.

        Raises:
            ToolError: unknown or ambiguous, with the nearest sections.
        """
        address = _address(name[:MAX_QUERY])
        found = [i for i, note in enumerate(self.sections) if note.section == name.strip()]
        found = found or self._addresses.get(address, [])
        if not found and len(address) > 1:
            found = [i for i, note in enumerate(self.sections) if address in _address(note.title)]
        if len(found) == 1:
            return self._whole(found[0])
        reason = "有好几节符合" if found else "没有这一节"
        near = [self.sections[i] for i in found] or self._nearest(name)
        listed = "；".join(f"{note.section} {note.title}" for note in near[:5])
        how = "请写编号（如 Week 1 Day 4 §1.4）、文件名（如 week1-day4）或标题"
        raise ToolError(f"{reason}，{how}" + (f"。相近的有：{listed}" if listed else ""))

    def _nearest(self, name: str) -> list[Note]:
        from difflib import get_close_matches

        close = get_close_matches(_address(name)[:MAX_TITLE], self._addresses, n=3)
        near = [self._addresses[address][0] for address in close]
        near += [position for position, _ in self._ranking.search(query_words(name), 3)]
        return [self.sections[position] for position in dict.fromkeys(near)]


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 7  内置工具 Built-in tools      uses §1, §3–§6
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The same four for demos, --ask and the MCP server. Signatures and docstrings are all there is:
# schemas are generated from them and cannot drift. To add a tool, write one function.

NOTES_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "notes")
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
    factors = {
        "num_layers": num_layers, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
        "seq_len": seq_len, "batch_size": batch_size, "bytes_per_value": bytes_per_value,
    }
    for name, value in factors.items():
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
        if not query.strip():
            raise ToolError("参数 query 不能为空，请给出要查的关键词")
        if not 1 <= top_k <= MOST_HITS:
            raise ToolError(f"参数 top_k 应该在 1 到 {MOST_HITS} 之间，收到的是 {show(top_k)}")
        hits = [
            NoteHit(
                section=hit.note.section, title=hit.note.title, snippet=hit.snippet,
                score=round(hit.score, 2),
            )
            for hit in index.search(query, top_k)
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

BUILT_IN_TITLES = {
    "calculator": "计算器",
    "kv_cache_gib": "KV Cache 显存",
    "search_notes": "查找讲义",
    "read_note": "阅读讲义",
}


def built_in_tools(index: NotesIndex | None = None) -> ToolRegistry:
    """A new registry of the four, reading the bundled notes or those of `index`."""
    notes = (search_notes, read_note) if index is None else notes_tools(index)
    registry = ToolRegistry()
    for fn in (calculator, kv_cache_gib, *notes):
        registry.register(
            fn, title=BUILT_IN_TITLES[fn.__name__], labels=frozenset({"read_only"}),
        )
    return registry


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 9  消息格式 Wire formats      uses §4 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One tool, four spellings. The schema inside is the same; what differs is the envelope.


def to_openai_tool(tool: Tool) -> dict:
    """{"type": "function", "function": {name, description, parameters}} (Chat Completions)."""
    return {"type": "function", "function": tool.schema()}


def to_anthropic_tool(tool: Tool) -> dict:
    """{name, description, input_schema} (Messages API)."""
    return {
        "name": tool.name, "description": tool.description, "input_schema": tool.parameters,
    }


# What a Gemini `Schema` may hold (OpenAPI 3.0 subset); everything else is refused with HTTP 400.
_GEMINI_KEPT = frozenset(
    "description enum format maxItems minItems maxLength minLength maximum minimum pattern"
    " maxProperties minProperties required title".split()
)


def _without(mapping: dict, key: str) -> dict:
    return {k: v for k, v in mapping.items() if k != key}


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


def to_gemini_tool(tool: Tool) -> dict:
    """A function declaration: {name, description, parameters} with upper-case type names."""
    declaration = {"name": tool.name, "description": tool.description}
    if tool.parameters.get("properties"):  # an OBJECT without properties is refused
        defs = tool.parameters.get("$defs", {})
        declaration["parameters"] = _gemini_schema(tool.parameters, defs)
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


TOOL_FORMATS: dict[str, Callable[[Tool], dict]] = {
    "openai": to_openai_tool,
    "anthropic": to_anthropic_tool,
    "gemini": to_gemini_tool,
    "mcp": to_mcp_tool,
}


def tools_in_format(tools: Iterable[Tool], format: str) -> object:
    """The `tools` value of a request in that vendor's format, a key of TOOL_FORMATS."""
    converted = [TOOL_FORMATS[format](tool) for tool in tools]
    return [{"function_declarations": converted}] if format == "gemini" else converted


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 12  循环 Loop      uses §1, §3, §4 · threads, no print
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# ask the model → run what it calls → hand the results back → ask again, until it answers in text.
# The loop yields events and prints nothing. Whatever happens (limit, time-out, Ctrl-C), every call
# in the history gets exactly one result, in call order, so the history can always be sent again.

CALLS_PER_TURN = 32  # a runaway model can write thousands of calls in one answer
PARALLEL = 8  # tools running at the same time

REPEATED = "（这是同样的调用第二次，结果与上次相同：请直接用它回答，不要再调用。）"


class Limits(NamedTuple):
    """Guard rails of one run. None switches a limit off."""

    turns: int | None = 8  # model calls
    seconds: float | None = 30.0  # per tool; all tools of one turn share the same start
    tokens: int | None = 200_000  # input + output over the run, as the server reports them
    same_call: int | None = 3  # the same name and arguments in so many turns in a row
    characters: int = RESULT_CHARACTERS  # per result


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


def _wire_call(call: ToolCall) -> dict:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json_text(json_value(arguments))
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", **(call.extra or {}), "function": function}


def assistant_message(turn: Turn) -> dict:
    """The OpenAI assistant message of a turn; arguments become a JSON string again."""
    message = {"role": "assistant", "content": turn.text, **(turn.extra or {})}
    if turn.calls:
        message["tool_calls"] = [_wire_call(call) for call in turn.calls]
    return message


def tool_message(call: ToolCall, result: ToolResult) -> dict:
    """The OpenAI tool message that answers `call`."""
    return {"role": "tool", "tool_call_id": call.id, "content": result.text}


class _Job:
    """One call on its way: tool, deadline and Ctrl-C race, and the first to finish counts."""

    def __init__(self, call: ToolCall):
        self.call = call
        self.result: ToolResult | None = None
        self.seconds: float | None = None
        self.done = threading.Event()
        self._lock = threading.Lock()

    def finish(self, result: ToolResult, seconds: float | None = None) -> None:
        with self._lock:
            if self.result is None:
                self.result, self.seconds = result, seconds
                self.done.set()


def _work(job: _Job, tools: ToolRegistry, characters: int, slots, clock) -> None:
    with slots:
        if job.done.is_set():  # its time ran out, or the user left, while it waited for a slot
            return
        begin = clock() if clock else 0.0
        try:
            result = tools.call(job.call, characters=characters)
        except KeyboardInterrupt:  # Ctrl-C goes to the main thread: this one the tool raised itself
            result = ToolResult("工具自己中断了", "failed")
        job.finish(result, clock() - begin if clock else None)


def _expire(jobs: list[_Job], seconds: float) -> None:
    text = f"工具在 {seconds:g} 秒内没有返回结果，已放弃等待。可以换个参数再试，或如实告诉用户。"
    for job in jobs:
        job.finish(ToolResult(text, "timed_out"), seconds)


def _start(jobs: list[_Job], tools: ToolRegistry, limits: Limits, clock) -> list[threading.Timer]:
    """Start every open job at once in daemon threads; returns the timers that will end them.

    Daemon threads, not an executor: an executor waits at exit for a tool that never returns.
    """
    parallel, one_by_one = threading.Semaphore(PARALLEL), threading.Semaphore(1)
    deadlines: dict[float, list[_Job]] = {}
    for job in jobs:
        tool = tools.get(job.call.name)
        acts = tool is not None and tool.labels & {"sends", "irreversible"}
        slots = one_by_one if acts else parallel
        arguments = (job, tools, limits.characters, slots, clock)
        threading.Thread(target=_work, args=arguments, daemon=True).start()
        seconds = (tool.seconds if tool else None) or limits.seconds
        if seconds is not None:
            deadlines.setdefault(seconds, []).append(job)
    timers = [threading.Timer(s, _expire, (late, s)) for s, late in deadlines.items()]
    for timer in timers:
        timer.daemon = True
        timer.start()
    return timers


def call_key(call: ToolCall) -> tuple[str, str]:
    """Name and canonical arguments: equal for calls that ask for the same thing."""
    try:
        arguments = parse_arguments(call.arguments)
    except ArgumentsError:
        return call.name, str(call.arguments)
    return call.name, json.dumps(arguments, sort_keys=True)


class _Memory:
    """What was called before: finds the model that asks the same thing turn after turn."""

    def __init__(self):
        self.streak: dict[tuple[str, str], int] = {}  # in how many turns in a row
        self.results: dict[tuple[str, str], ToolResult] = {}

    def count(self, calls: Iterable[ToolCall]) -> int:
        """Note one turn's calls; returns the longest streak among them."""
        keys = {call_key(call) for call in calls}
        self.streak = {key: self.streak.get(key, 0) + 1 for key in keys}
        return max(self.streak.values(), default=0)

    def replay(self, call: ToolCall) -> ToolResult | None:
        """The old result when the call repeats one that went well in the turn before."""
        key = call_key(call)
        old = self.results.get(key)
        if self.streak[key] < 2 or old is None or old.is_error:
            return None
        return old._replace(text=f"{old.text}\n{REPEATED}")

    def keep(self, jobs: Iterable[_Job]) -> None:
        self.results |= {call_key(job.call): job.result for job in jobs}


def _cut_off(turn: Turn, index: int) -> bool:
    """True when the answer ended at the token limit inside this call, its last one."""
    if turn.finish != "length" or index < len(turn.calls) - 1:
        return False
    try:
        return not parse_arguments(turn.calls[index].arguments)  # blank: nothing arrived at all
    except ArgumentsError:
        return True


def _settle(jobs: list[_Job], turn: Turn, reason: str, memory: _Memory, approve) -> None:
    """Give a result at once to each call that must not run, or need not."""
    for index, job in enumerate(jobs):
        if reason:
            job.finish(ToolResult(f"{STOP_REASONS[reason]}，这次调用没有执行。", "limited"))
        elif index >= CALLS_PER_TURN:
            text = f"一轮最多 {CALLS_PER_TURN} 个调用，这一个没有执行。"
            job.finish(ToolResult(text, "limited"))
        elif _cut_off(turn, index):
            text = "调用写到一半就到了长度上限，没有执行。请缩短参数后重新调用。"
            job.finish(ToolResult(text, "limited"))
        elif old := memory.replay(job.call):
            job.finish(old)
        elif approve and not approve(job.call):
            job.finish(ToolResult("用户没有批准这次调用，不要再试；请说明情况。", "cancelled"))


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

    `messages` is the OpenAI message list; it grows in place and is complete at every event where
    the model is asked, and after the last one. Raises only what `model.chat` raises. Closing the
    generator, or Ctrl-C, leaves a history in which every call has its result.
    """
    usage, memory, text = Usage(), _Memory(), ""
    for number in itertools.count(1):
        yield ModelAsked(number)
        begin = clock() if clock else 0.0
        turn = model.chat(messages, tools.schemas(), tool_choice, on_delta)
        seconds = clock() - begin if clock else None
        messages.append(assistant_message(turn))
        usage, text = usage.plus(turn.usage or Usage()), turn.text or text
        jobs, timers = [_Job(call) for call in turn.calls], []
        try:
            yield ModelAnswered(number, turn, seconds)
            if not jobs:
                reason = "length" if turn.finish == "length" else "answered"
                yield Finished(text, reason, usage, number)
                return
            reason = _stop_reason(limits, number, usage, memory.count(turn.calls))
            _settle(jobs, turn, reason, memory, approve)
            waiting = [job for job in jobs if not job.done.is_set()]
            for job in waiting:
                yield CallStarted(job.call)
            timers = _start(waiting, tools, limits, clock)
            for job in jobs:
                job.done.wait()
                yield CallFinished(job.call, job.result, job.seconds)
        finally:
            for timer in timers:
                timer.cancel()
            for job in jobs:
                job.finish(ToolResult("用户中断，这次调用没有完成。", "cancelled"))
                messages.append(tool_message(job.call, job.result))
        memory.keep(waiting)
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
    """The newest tool message as a JSON value, or as text where it is no JSON."""
    text = next(m["content"] for m in reversed(messages) if m["role"] == "tool")
    try:
        return json.loads(text)
    except ValueError:
        return text


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 19  呈现 Rendering      uses §1, §12 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Values → text for a terminal. Columns are counted, not characters: 一个汉字占两列.

_COLOURS = {
    "system": "2", "user": "36", "assistant": "33", "tool": "32",
    "title": "1", "dim": "2", "bad": "31", "good": "32",
}
# No line may start with these, nor end with those (Chinese line breaking).
_NOT_FIRST = frozenset("，。、；：！？）》」』】”’…,.;:!?)]}%")
_NOT_LAST = frozenset("（《「『【“‘([{")


# Signs of formulas that a GBK console lacks, and how a person would type them.
_TYPED = str.maketrans({
    "−": "-", "²": "^2", "³": "^3", "⁴": "^4", "⁵": "^5", "⁺": "^+", "⁻": "^-", "ᵀ": "^T",
    "⟨": "<", "⟩": ">", "⌈": "ceil(", "⌉": ")", "ŵ": "w'", "•": "·", "⇄": "<->",
})


def typed_instead(error: UnicodeError) -> tuple[str, int]:
    """An error handler for `codecs`: what the encoding lacks is spelled out, or becomes "?"."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    spelled = error.object[error.start:error.end].translate(_TYPED)
    return spelled.encode(error.encoding, "replace").decode(error.encoding), error.end


class Style(NamedTuple):
    """How wide the terminal is, in columns, and whether it shows colour."""

    width: int = 80
    colour: bool = False

    def paint(self, text: str, name: str) -> str:
        """The text in the colour of that name, or unchanged."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self.colour and text else text


def columns(text: str) -> int:
    """Terminal columns of a text: wide characters take two, combining ones none.

    >>> columns("KV 缓存")
    7
    """
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def pad(text: str, width: int) -> str:
    """The text filled with blanks on the right to that many columns."""
    return text + " " * max(0, width - columns(text))


def _units(text: str) -> Iterator[str]:
    """The text in pieces between which a line may break: words with their blank, single 汉字."""
    yield from re.findall(r"[\u2e80-\uffff]|[^\s\u2e80-\uffff]+[ ]?|\s", text)


def _chopped(piece: str, width: int) -> Iterator[str]:
    while columns(piece) > width:
        head = next(i for i in range(len(piece), 0, -1) if columns(piece[:i]) <= width or i == 1)
        yield piece[:head]
        piece = piece[head:]
    yield piece


def _pieces_that_fit(text: str, width: int) -> Iterator[str]:
    glued = ""
    for unit in _units(text):
        if glued and unit[0] not in _NOT_FIRST and glued[-1] not in _NOT_LAST:
            yield from _chopped(glued, width)
            glued = ""
        glued += unit
    yield from _chopped(glued, width)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; existing line ends are kept.

    >>> wrap("工具调用 tool calling", 12)
    ['工具调用', 'tool calling']
    """
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces_that_fit(paragraph, width):
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


def _fields(message: dict) -> Iterator[str]:
    if message["role"] == "tool":
        yield f"tool_call_id={message['tool_call_id']}"
    if message.get("content") or not message.get("tool_calls"):
        yield _shortened(message.get("content") or "（空）")
    for call in message.get("tool_calls", ()):
        yield f"{call['id']}  {call['function']['name']}"
        yield _shortened(call["function"]["arguments"])


def message_lines(message: dict, style: Style, *, mark: str = "", remark: str = "") -> list[str]:
    """One history message: mark, role and remark on the first line, then its key fields.

    The remark says who acts and what for; without one the text starts on the first line.
    """
    role = message["role"]
    room = style.width - MARK_WIDTH - ROLE_WIDTH
    body = [line for part in _fields(message) for line in wrap(part, room)]
    head = [style.paint(line, "dim") for line in wrap(remark, room)] if remark else []
    lines = head + body
    first = pad(mark, MARK_WIDTH) + style.paint(pad(role, ROLE_WIDTH), role)
    return [first + lines[0], *(" " * (MARK_WIDTH + ROLE_WIDTH) + line for line in lines[1:])]


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 20  演示 Demos      uses §1, §4, §7, §12, §13, §19
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
    reason = last_result(messages)
    return Turn(f"GPU 监控没有查到，工具报错：{reason}。我不会编一个数字；请稍后再试。")


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
    limits: Limits = Limits()


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
        "两个调用互不依赖，就放在同一轮里同时执行；结果按调用的顺序交回，一个调用对一个结果。",
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
        "参数不对时不要抛异常，把“哪里错、要什么、收到什么”写成文字交回去：越具体，改得越准。",
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
)

STEP_MARKS = "①②③④⑤⑥⑦⑧⑨⑩"


def opening(question: str) -> list[dict]:
    """A new history: the system prompt and the user's question."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]


def play(scenario: Scenario, tools: ToolRegistry) -> tuple[list[dict], list[Event], MockLLM]:
    """Run a scenario to its end: the history, the events, the model."""
    model, messages = MockLLM(scenario.script), opening(scenario.question)
    registry = ToolRegistry([*tools, *scenario.tools])
    events = list(run_tool_loop(model, registry, messages, limits=scenario.limits))
    return messages, events, model


def _steps(messages: list[dict]) -> list[int]:
    """For each message its step, from 0: an assistant turn is one, all results after it one."""
    new = [
        message["role"] == "assistant" or before["role"] == "assistant"
        for before, message in itertools.pairwise([{"role": "user"}, *messages])
    ]
    return [number - 1 for number in itertools.accumulate(new)]


def _summary(end: Finished, model: MockLLM) -> str:
    growth = "、".join(map(str, model.asked))
    return (
        f"结束：{STOP_REASONS[end.reason]}。共请求模型 {len(model.asked)} 次，"
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
    tools_apart = f"{brief}……（工具清单随请求另传，共 {len(tools) + len(scenario.tools)} 个）"
    yield from message_lines({**system, "content": tools_apart}, style)
    yield from message_lines(user, style)
    finishes = iter([e.turn.finish for e in events if isinstance(e, ModelAnswered)])
    for step, group in itertools.groupby(zip(_steps(rest), rest), key=lambda pair: pair[0]):
        mark, remark = STEP_MARKS[step], scenario.remarks[step]
        yield ""
        for _, message in group:
            if message["role"] == "assistant":
                remark += f"（finish_reason={next(finishes)}）"
            yield from message_lines(message, style, mark=mark, remark=remark)
            mark = remark = ""
    yield ""
    yield from wrap(_summary(events[-1], model), style.width)


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 21  入口 Command line      uses everything above
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One table of commands, one of options. A command is a function from the parsed flags to lines of
# text; `main` prints them and turns every failure into one line and an exit code.

DEBUG_VARIABLE = "W4D3_DEBUG"  # set to 1 to see tracebacks
WIDEST = 120  # columns; longer lines are hard to read
NARROWEST = 48
PIPED_WIDTH = 80  # columns when the output is no terminal


class UsageError(Exception):
    """The command line is wrong; the message says what to do. Exit code 2."""


def _user_functions(module: object) -> list[Callable]:
    return [
        value for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, type) and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def _line_in(path: str, error: BaseException) -> int | None:
    """The line of that file where the exception came from."""
    if isinstance(error, SyntaxError):
        return error.lineno
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)


def _import_file(path: str) -> object:
    import importlib.util

    name = "user_tools_" + re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not os.path.isfile(path):
        raise UsageError(f"--tools：找不到 Python 文件 {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and postponed annotations look their module up here
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its prints must not mix with our output
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = _line_in(path, error)
        place = f"{path} 第 {line} 行" if line else path
        raise UsageError(f"--tools：{place}：{type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def add_user_tools(registry: ToolRegistry, path: str) -> None:
    """Register every public function defined in a Python file.

    Raises UsageError naming file, line and reason when the file or a function is unusable.
    """
    path = os.path.abspath(path)
    functions = _user_functions(_import_file(path))
    if not functions:
        raise UsageError(f"--tools：{path} 里没有公开的函数（名字不以 _ 开头，定义在该文件里）")
    from inspect import unwrap

    for fn in functions:
        try:
            registry.register(fn)
        except (SchemaError, TypeError) as error:
            code = getattr(unwrap(fn), "__code__", None)
            place = f"{path} 第 {code.co_firstlineno} 行" if code else path
            raise UsageError(f"--tools：{place}：{error}") from error


def chosen_tools(args) -> ToolRegistry:
    """The built-in tools and those of --tools, reading the notes of --notes."""
    registry = built_in_tools(NotesIndex(args.notes) if args.notes else None)
    for path in args.tools or ():
        add_user_tools(registry, path)
    return registry


def _pick_tools(registry: ToolRegistry, names: list[str]) -> ToolRegistry:
    for name in names:
        if name not in registry:
            near = closest(name, registry.names)
            hint = f"，是不是想写 {near}？" if near else "。"
            raise UsageError(f"没有工具 {name}{hint}可用：{'、'.join(registry.names)}")
    return registry.subset(dict.fromkeys(names)) if names else registry


def _lint(picked: ToolRegistry, everything: ToolRegistry, style: Style) -> Iterator[str]:
    found = 0
    for tool in picked:
        advice = review_tool(tool, everything)
        found += len(advice)
        yield style.paint(f"{tool.name}：{len(advice)} 条建议", "bad" if advice else "good")
        for item in advice:
            yield from wrap(f"  {item.where}：{item.what}", style.width)
            yield from wrap(style.paint(f"    为什么：{item.why}", "dim"), style.width)
    yield f"共检查 {len(picked)} 个工具，{found} 条建议。"


def run_schema(args, style: Style) -> Iterator[str]:
    """--schema: tool definitions as JSON, in one vendor's format, or a review of them."""
    registry = chosen_tools(args)
    picked = _pick_tools(registry, args.schema)
    if args.lint:
        yield from _lint(picked, registry, style)
        return
    yield json.dumps(tools_in_format(picked, args.format), ensure_ascii=False, indent=2)


def run_call(args, style: Style) -> Iterator[str]:
    """--call: one tool with the arguments a model would write; the text the model would read."""
    name, *texts = args.call
    tools = chosen_tools(args)
    _pick_tools(tools, [name])
    result = tools.call(ToolCall("call_0", name, " ".join(texts)))
    if result.is_error:
        raise ToolError(f"{RESULT_STATUS[result.status]}：{result.text}")
    yield result.text


def _demo_number(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= len(SCENARIOS):
        return int(text)
    raise UsageError(f"没有场景 {text}，可选 1 到 {len(SCENARIOS)}，例如 --demo 1 3")


def run_demo(args, style: Style) -> Iterator[str]:
    """--demo: scenarios with a scripted model; --json gives their raw message lists."""
    numbers = [_demo_number(text) for text in args.demo] or range(1, len(SCENARIOS) + 1)
    tools = chosen_tools(args)
    if args.json:
        runs = [play(SCENARIOS[number - 1], tools)[0] for number in numbers]
        yield json.dumps(runs[0] if len(runs) == 1 else runs, ensure_ascii=False, indent=2)
        return
    for number in numbers:
        yield from demo_text(number, tools, style)
        yield ""


class Command(NamedTuple):
    """One thing the program does. `run` takes the parsed flags and yields lines for stdout."""

    flag: str
    metavar: str
    help: str
    run: Callable[[object, Style], Iterator[str]]
    settings: dict  # for argparse


class Option(NamedTuple):
    """A flag that shapes commands; `commands` are those it goes with."""

    flag: str
    metavar: str
    help: str
    commands: tuple[str, ...]
    settings: dict = {}
    default: object = None


COMMANDS = (
    Command(
        "--demo", "[N …]", "离线演示：模拟模型走完整个工具调用过程；N 是场景编号，不写就全部演示",
        run_demo, {"nargs": "*"},
    ),
    Command(
        "--schema", "[NAME …]", "打印工具的 JSON Schema，由函数签名和 docstring 生成",
        run_schema, {"nargs": "*"},
    ),
    Command(
        "--call", "NAME [JSON]", "替模型调用一个工具，看参数校验和结果",
        run_call, {"nargs": "+"},
    ),
)

OPTIONS = (
    Option(
        "--format", "FORMAT", f"哪家的写法：{'、'.join(TOOL_FORMATS)}；默认 openai",
        ("--schema",), {"choices": tuple(TOOL_FORMATS)}, "openai",
    ),
    Option(
        "--lint", "", "检查工具定义写得好不好，逐条说明怎么改、为什么",
        ("--schema",), {"action": "store_true"}, False,
    ),
    Option(
        "--json", "", "只打印原始消息（JSON），不排版",
        ("--demo",), {"action": "store_true"}, False,
    ),
    Option(
        "--tools", "FILE.py", "把这个文件里的公开函数也注册为工具，可写多次",
        ("--schema", "--demo", "--call"), {"action": "append"},
    ),
    Option(
        "--notes", "DIR", "讲义文件夹，默认是脚本旁边的 notes", ("--schema", "--demo", "--call"),
    ),
)

EXAMPLES = (
    ("--demo", "看五个场景，不联网，什么都不用装"),
    ("--schema kv_cache_gib --format anthropic", "一个工具的 Anthropic 写法"),
    ("--schema --tools my_tools.py --lint", "检查自己写的工具"),
    ("--call calculator '{\"expression\": \"2**10\"}'", "替模型调用一次计算器"),
)
HELP_WIDTH = 98
HELP_LEFT = 26  # columns for the flags


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _flag_lines(rows: Iterable[Command | Option]) -> Iterator[str]:
    for row in rows:
        left = f"  {row.flag} {row.metavar}".rstrip()
        first, *rest = wrap(row.help, HELP_WIDTH - HELP_LEFT)
        if columns(left) >= HELP_LEFT:
            yield left
            left = ""
        yield pad(left, HELP_LEFT) + first
        yield from (" " * HELP_LEFT + line for line in rest)


def short_help() -> Iterator[str]:
    """What a run without arguments prints."""
    yield "工具调用（tool calling）与 MCP 的参考实现，CME295 第 4 周第 3 天。只用标准库。"
    yield ""
    yield "用法：python3 w4d3_tools_mcp.py 命令 [选项]"
    yield ""
    yield "命令（选一个）"
    yield from _flag_lines(COMMANDS)
    yield ""
    yield "先试：python3 w4d3_tools_mcp.py --demo        全部选项：--help"


def full_help() -> Iterator[str]:
    """What --help prints: commands, options by the command they go with, examples."""
    yield from itertools.islice(short_help(), 4)
    yield "命令（选一个）"
    yield from _flag_lines(COMMANDS)
    for commands in dict.fromkeys(option.commands for option in OPTIONS):
        yield ""
        yield f"选项（用于 {' '.join(commands)}）"
        yield from _flag_lines(option for option in OPTIONS if option.commands == commands)
    yield ""
    yield "例子"
    for arguments, purpose in EXAMPLES:
        yield f"  # {purpose}"
        yield f"  python3 w4d3_tools_mcp.py {arguments}"
    yield ""
    yield (
        "退出码：0 成功，1 失败，2 命令写错，130 按了 Ctrl-C。"
        f"{DEBUG_VARIABLE}=1 时出错会显示堆栈。"
    )


# argparse's own words → one Chinese sentence that says what to do
_PARSER_ERRORS = (
    (r"argument (\S+): expected one argument", "{0} 后面要跟一个值"),
    (r"argument (\S+): expected at least one argument", "{0} 后面至少要跟一个值"),
    (r"argument (\S+): invalid choice: (.+?) \(choose from (.*)\)", "{0} 不能是 {1}，可选：{2}"),
    (r"argument (\S+): invalid (?:int|float|\w+) value: (.+)", "{0} 要的是数字，收到的是 {1}"),
    (r"argument (\S+): ignored explicit argument (.+)", "{0} 不带值，收到的是 {1}"),
)


def _make_parser():
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str):
            for pattern, sentence in _PARSER_ERRORS:
                if match := re.fullmatch(pattern, message):
                    raise UsageError(sentence.format(*match.groups()).replace("'", ""))
            raise UsageError(message)

    parser = Parser(add_help=False, allow_abbrev=False, usage="")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    for row in (*COMMANDS, *OPTIONS):
        parser.add_argument(row.flag, default=None, dest=_name(row.flag), **row.settings)
    return parser


def parse_command_line(argv: list[str]) -> tuple[Command | None, object]:
    """The chosen command (None: none given) and the flags. Raises UsageError."""
    args, rest = _make_parser().parse_known_args(argv)
    flags = [row.flag for row in (*COMMANDS, *OPTIONS)] + ["--help", "--version"]
    for word in rest[:1]:
        near = closest(word.split("=")[0], flags) if word.startswith("-") else None
        hint = f"是不是想写 {near}？" if near else "用 --help 看怎么写"
        raise UsageError(f"不认识 {word}，{hint}")
    if args.help or args.version:
        return None, args
    given = [command for command in COMMANDS if getattr(args, _name(command.flag)) is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0].flag} 和 {given[1].flag} 不能同时用，请分两次运行")
    for option in OPTIONS:
        if getattr(args, _name(option.flag)) is None:
            setattr(args, _name(option.flag), option.default)
        elif not given or given[0].flag not in option.commands:
            raise UsageError(f"{option.flag} 要和 {' 或 '.join(option.commands)} 一起用")
    return (given[0] if given else None), args


def screen_style(stream) -> Style:
    """Width and colour of an output stream; NO_COLOR, TERM=dumb and COLUMNS are respected."""
    terminal = stream.isatty()
    wanted = os.environ.get("COLUMNS", "")
    width = PIPED_WIDTH
    if wanted.isdecimal() and int(wanted) > 0:
        width = int(wanted)
    elif terminal:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if colour and os.name == "nt":
        os.system("")  # switches a Windows console to understanding colour codes
    return Style(max(NARROWEST, min(width, WIDEST)), bool(colour))


def _lines(argv: list[str]) -> Iterator[str]:
    command, args = parse_command_line(argv)
    if args.version:
        yield f"w4d3_tools_mcp {VERSION}"
    elif args.help:
        yield from full_help()
    elif command is None:
        yield from short_help()
    else:
        yield from command.run(args, screen_style(sys.stdout))


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def _run_command(argv: list[str]) -> int:
    try:
        for line in _lines(argv):
            print(line)
        sys.stdout.flush()
        return 0
    except UsageError as error:
        _complain(str(error))
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough, as in `… --schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code 0, 1 (failed), 2 (wrong usage) or 130 (Ctrl-C)."""
    codecs.register_error("typed_instead", typed_instead)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a GBK console must not crash on a rare character
            stream.reconfigure(errors="typed_instead")
    try:
        return _run_command(sys.argv[1:] if argv is None else argv)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        known = isinstance(error, (ToolError, SchemaError, BackendError))
        reason = str(error) if known else error_text(error)
        _complain(f"没有完成：{reason}" + ("" if known else f"（设 {DEBUG_VARIABLE}=1 可看堆栈）"))
        return 1


if __name__ == "__main__":
    # A --tools file that imports ToolError must get this module, not a second copy of it.
    sys.modules.setdefault("w4d3_tools_mcp", sys.modules["__main__"])
    sys.exit(main())
