# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 2  模式 Schema      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A Python function describes itself: names and types from its signature, texts from its docstring.
# Every type becomes one `Shape` with both directions: JSON Schema (draft 2020-12) for the model,
# and `read`, which turns the model's JSON into what the annotation promises; so the two cannot
# drift apart. A new type is one row of SCALARS, ARRAYS or OBJECTS; a new way of writing types is
# one function under `@_form`. What JSON cannot express is refused when the tool is defined, with
# the parameter's name; it never becomes a vague "object" or "string". Docstring text beats
# `Annotated` text. A return type never breaks a schema. `inspect` and `dataclasses` are imported
# inside the functions that need them: that saves 10 ms of start-up.
# Sources: json-schema.org/draft/2020-12; PEP 484, 589, 593, 655, 695.


# --- scalars: one table, Python type ⇄ JSON ---

def _write_text(value: object) -> str:
    text = str.__str__(value) if isinstance(value, str) else str(value)
    text.encode()  # raises UnicodeEncodeError, a ValueError: a lone surrogate is not JSON text
    return text


def _write_number(value: float) -> float:
    if not abs(value) < 1 << 14_000:  # about 4,200 digits; from 4,300 on CPython refuses to print
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
    return cls.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


class Scalar(NamedTuple):
    """One row of SCALARS."""

    types: str  # JSON types it is written as: "string", or several, "number string"
    extra: dict = {}  # further schema keywords
    read: Callable = lambda cls, value: cls(value)  # from JSON of that type; may raise anything
    write: Callable = _write_text  # value → JSON value, or ValueError


# The keys are text, so that a type is recognised without importing its module. Subclasses count.
SCALARS = {
    "builtins.str": Scalar("string"),
    "builtins.int": Scalar("integer", read=_read_whole, write=_write_number),
    "builtins.float": Scalar("number", write=_write_number),
    "builtins.bool": Scalar("boolean", write=bool),
    "builtins.NoneType": Scalar("null", read=lambda cls, _: None, write=lambda _: None),
    "builtins.complex": Scalar("string"),
    "builtins.bytes": Scalar("string", {"contentEncoding": "base16"},
                             lambda cls, text: cls.fromhex(text), bytes.hex),
    "typing.LiteralString": Scalar("string", read=lambda cls, text: text),
    "datetime.date": Scalar("string", {"format": "date"}, _read_iso),
    "datetime.datetime": Scalar("string", {"format": "date-time"}, _read_iso,
                                lambda v: v.isoformat()),
    "datetime.time": Scalar("string", {"format": "time"}, _read_iso),
    "datetime.timedelta": Scalar("number", {"description": "秒"},
                                 lambda cls, n: cls(seconds=n), lambda v: v.total_seconds()),
    "decimal.Decimal": Scalar("number string", read=lambda cls, n: cls(str(n))),
    "uuid.UUID": Scalar("string", {"format": "uuid"}),
    "pathlib.PurePath": Scalar("string"),
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
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), other) for name in names}
    for method in ("_asdict", "tolist"):  # a NamedTuple; an array or number of numpy or torch
        if callable(getattr(type(value), method, None)):
            return _plain(getattr(value, method)(), other)
    if isinstance(value, (set, frozenset)):
        items = [_plain(item, other) for item in value]  # sorted: the same order in every run
        return sorted(items, key=lambda v: (n := isinstance(v, (int, float)), v if n else str(v)))
    if isinstance(value, Sequence):
        return [_plain(item, other) for item in value]
    return other(value)


def _refuse(value: object) -> Any:
    raise ValueError(f"{type(value).__name__} 类型的值写不成 JSON")


def plain(value: Any, *, other: Callable[[Any], Any] = _refuse) -> Any:
    """The value as strict JSON data, always a copy.

    Records become objects, sets sorted arrays, an Enum its value, dates ISO text, bytes hex. What
    JSON cannot hold (NaN, a lone surrogate, any other object, a list that contains itself) goes to
    `other`, which returns a substitute or, by default, raises ValueError.

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


# Words by what stands below or behind them; "other" never reaches the model.
_HEADINGS = {
    "params": "args|arg|arguments|argument|parameters|parameter|params|param|keyword args|"
    "keyword arguments|other parameters|attributes|参数|参数说明|入参|形参|输入|输入参数|属性|字段",
    "returns": "returns|return|yields|yield|返回|返回值|返回结果|输出|产出",
    "other": "raises|raise|exceptions|exception|except|rtype|warns|warning|warnings|note|notes|"
    "example|examples|see also|references|todo|异常|抛出|抛出异常|引发|注意|注意事项|注|备注|警告|"
    "示例|例子|例|样例|参见|参考",
}
_HEADING_KIND = {word: kind for kind, words in _HEADINGS.items() for word in words.split("|")}
_FIELD_KIND = {**_HEADING_KIND, "type": "other", "key": "params", "keyword": "params"}
_HEADING = re.compile(
    r"[\s#*]*([^\W\d_]+(?: [a-z]+)?)\s*(?:[(（].*?[)）])?\**\s*[:：]\**\s*(.*)", re.I)
_FIELD = re.compile(r"\s*[:@]([a-z]+)\b([^:：]*)[:：]\s*(.*)")
# `name (type) : text`, `a, b: text`, `- name：text`, `*rest: text`; the type may hold brackets.
_NAMES = r"([`*]*[^\W\d]\w*(?:`?\s*[,，、]\s*[`*]*[^\W\d]\w*)*`?)"
_ENTRY = re.compile(rf"([-*•]\s+)?{_NAMES}\s*(?:[(（].*?[)）])?\s*[:：]\s*(.*)")
_COMMA = re.compile("[,，、]")
_NUMPY_ENTRY = re.compile(rf"(){_NAMES}\s*(?:[:：].*)?()")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _dedented(lines: list[str]) -> str:
    import inspect
    text = "\n".join(lines).strip()
    return inspect.cleandoc(text) if "\n" in text else text


class _DocSection(NamedTuple):
    kind: str  # "text", "params", "returns" or "other"
    indent: int  # of its heading; -1 for running text, which only a heading ends
    entry: re.Pattern  # how a parameter begins in it
    lines: list[str]

    def takes(self, line: str) -> bool:
        """Whether a line still belongs here: by indentation, or right below without a blank."""
        if self.indent < 0 or not self.lines or not line.strip() or _indent(line) > self.indent:
            return True
        flat = self.lines[0].strip() and _indent(self.lines[0]) <= self.indent
        named = self.kind == "params" and self.entry.fullmatch(line.strip())
        return self.entry is _NUMPY_ENTRY or bool(flat and (self.lines[-1].strip() or named))

    def params(self) -> dict[str, str]:
        """Name → text; what is indented deeper belongs to the name above."""
        margin = next((_indent(line) for line in self.lines if line.strip()), 0)
        found, lines, bulleted = {}, [], None  # what stands above the first name is dropped
        for line in self.lines:
            entry = self.entry.fullmatch(line.strip()) if _indent(line) <= margin else None
            if entry and bulleted in (None, bool(entry[1])):
                bulleted, lines = bool(entry[1]), [entry[3]]
                for name in _COMMA.split(entry[2]):
                    found[name.strip("`* ")] = lines
            else:
                lines.append(line)
        return {name: _dedented(lines) for name, lines in found.items()}


def _begin(line: str, below: str) -> _DocSection | None:
    """The section that a line begins, with what already follows its colon; None if it does not."""
    indent, kind, text = _indent(line), None, ""
    if below.lstrip().startswith("---"):
        kind = _HEADING_KIND.get(line.strip(" :：").lower())
        return _DocSection(kind, indent, _NUMPY_ENTRY, []) if kind else None
    if field := _FIELD.match(line):
        kind, names, text = _FIELD_KIND.get(field[1]), field[2].split(), field[3]
        if kind == "params" and names:
            text = f"{names[-1]}: {text}"  # the name stands last, behind its type
    elif heading := _HEADING.match(line):
        kind, text = _HEADING_KIND.get(heading[1].lower()), heading[2]
        if kind == "params" and text and not _ENTRY.match(text):
            return None  # "输入：一段文字" is running text
    lines = [" " * indent + text] if text else []
    return _DocSection(kind, indent, _ENTRY, lines) if kind else None


def _doc_sections(lines: list[str]) -> list[_DocSection]:
    """The docstring cut at its headings, by indentation: a colon inside a text cuts nothing."""
    section = _DocSection("text", -1, _ENTRY, [])
    sections = [section]
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""])):
        marked = ":" in line or "：" in line or "---" in below
        outside = section.indent < 0 or _indent(line) <= section.indent
        begun = _begin(line, below) if marked and outside else None
        if begun and begun.lines and number == 0 and line[0] not in ":@":
            begun = None  # "返回：今天的日期" as a whole docstring is its summary
        if begun or not section.takes(line):
            section = begun or _DocSection("text", -1, _ENTRY, [line])
            sections.append(section)
        elif section.entry is not _NUMPY_ENTRY or not line.lstrip().startswith("---"):
            section.lines.append(line)
    return sections


def parse_docstring(text: str | None) -> Docstring:
    """A docstring's running text, and its text for each parameter.

    Understands Google, NumPy and reST style, headings in Chinese and English, `:` and `：`.
    What stands under Raises, Note, Example and the like is left out.

    >>> parse_docstring("查天气。\\n\\n参数：\\n    city (str)：城市名\\n返回：\\n    一句话").params
    {'city': '城市名'}
    """
    import inspect
    sections = _doc_sections(inspect.cleandoc(text or "").splitlines())
    running = ["\n".join(section.lines).strip() for section in sections if section.kind == "text"]
    returns = [_dedented(section.lines) for section in sections if section.kind == "returns"]
    params = {}
    for section in sections:
        params.update(section.params() if section.kind == "params" else {})
    description = "\n\n".join(filter(None, running))
    return Docstring(description.partition("\n\n")[0], description, params, "\n".join(returns))


# --- types → shapes ---

# JSON type → what the JSON parser makes of it: True is no number, 4096.0 is an integer as well.
_PARSED = {
    "string": {str}, "integer": {int, float}, "number": {int, float}, "boolean": {bool},
    "null": {type(None)}, "array": {list}, "object": {dict},
}
_WRITE_INSTEAD = (
    "可以用 str、int、float、bool、list[...]、dict[str, ...]、Literal、Enum、dataclass、TypedDict"
)


class Shape(NamedTuple):
    """One type, both ways."""

    schema: dict  # JSON Schema; a `$ref` in it points to the `defs` of the scope
    read: Callable[[Any], Any]  # JSON value → Python value; raises if the value does not fit

    def accepts(self, value: Any) -> bool:
        try:
            self.read(value)
        except Exception:  # a record's own constructor may raise anything
            return False
        return True


class _Misfit(ToolError):
    """A JSON value and what it should have been; put into words only if somebody reads it."""

    def __str__(self) -> str:
        text = json.dumps(self.args[0], ensure_ascii=False)
        return f"{text if len(text) <= 80 else text[:80] + '…'} 不能当作 {self.args[1]}"


def _types(schema: dict) -> list[str]:
    """The words after `type` in a schema and its branches."""
    own = schema.get("type", [])
    return sum(map(_types, schema.get("anyOf", ())), [own] if isinstance(own, str) else own)


def _one_or_list(names: Iterable[str]) -> str | list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) > 1 else names[0]


# How one way of writing types becomes a shape, make(type, scope). The keys: of a class or special
# form its `_type_key`, of any other object its class, of all other classes their `_class_word`.
_FORMS: dict[str, Callable[[Any, _Scope], Shape]] = {}


def _form(*keys: str) -> Callable:
    return lambda make: _FORMS.update(dict.fromkeys(keys, make)) or make


def _class_word(cls: Any) -> str:
    marks = {
        "__members__": "enum", "__dataclass_fields__": "record",
        "__required_keys__": "record", "_field_defaults": "record",  # TypedDict, NamedTuple
    }
    found = (word for mark, word in marks.items() if hasattr(cls, mark))
    return next(found, "other") if isinstance(cls, type) else "other"


class _Scope:
    """Where names in annotations are looked up, and the `$defs` found so far."""

    def __init__(self, module: dict, local: dict, *, outer: _Scope | None = None):
        self.module, self.local = module, local
        self.defs: dict[str, Shape] = outer.defs if outer else {}
        self.names: dict[Any, str] = outer.names if outer else {}  # type → its name in `defs`

    def resolve(self, text: str) -> Any:
        """What annotation text means; it is the programmer's own code, as for `get_type_hints`."""
        return eval(text, self.module, self.local)

    def shape(self, tp: Any) -> Shape:
        """The shape of any annotation. SchemaError says what is wrong with it."""
        tp = type(None) if tp is None else tp
        origin = typing.get_origin(tp) or tp
        make = _FORMS.get(_type_key(origin)) or _FORMS.get(type(origin).__name__)
        try:
            return (make or _FORMS[_class_word(origin)])(tp, self)
        except SchemaError:
            raise
        except NameError as error:
            raise SchemaError(f"标注里的名字 {error.name} 找不到；请在模块顶层定义或导入它（延迟求值的"
                              "标注看不见函数里的局部类，也看不见 TYPE_CHECKING 下的导入）") from error
        except Exception as error:  # evaluating an annotation runs the programmer's own code
            shown = f"{type(error).__name__}: {error}"
            raise SchemaError(f"类型标注读不懂（{shown}）；{_WRITE_INSTEAD}") from error

    def shared(self, key: Any, name: str, make: Callable[[], Shape], *, inline: bool) -> Shape:
        """A `$ref` to what `make` gives. It is made once, so a type may contain itself.

        With inline=True the thing itself, in place, unless it does contain itself.
        """
        new = key not in self.names
        if new and inline:
            self.names[key] = ""  # until something inside refers to it
        elif not self.names.get(key):
            name = re.sub(r"\W", "_", name, flags=re.ASCII)
            while name in self.names.values():
                name += "_"  # another class of the same name
            self.names[key] = name
        if new:
            shape = make()
            if not self.names[key]:
                del self.names[key]
                return shape
            self.defs[self.names[key]] = shape
        name = self.names[key]
        return Shape({"$ref": f"#/$defs/{name}"}, lambda value: self.defs[name].read(value))

    def schema(self, root: dict) -> dict:
        """A root schema together with the `$defs` that its references need."""
        defs = {name: shape.schema for name, shape in self.defs.items()}
        return {**root, "$defs": defs} if defs else root


@_form("other", *SCALARS)
def _scalar(tp: Any, scope: _Scope) -> Shape:
    row = _scalar_row(tp)
    if not row:
        raise SchemaError(f"类型 {getattr(tp, '__name__', tp)} 写不成 JSON Schema；{_WRITE_INSTEAD}")
    types = row.types.split()
    parsed = set().union(*(_PARSED[name] for name in types))

    def read(value: Any) -> Any:
        if type(value) in parsed:
            with contextlib.suppress(Exception):  # each class has its own, not just ValueError
                return row.read(tp, value)
        raise _Misfit(value, row.extra.get("format") or " 或 ".join(types))

    return Shape({"type": _one_or_list(types), **row.extra}, read)


@_form("typing.Any", "builtins.object")
def _anything(tp: Any, scope: _Scope) -> Shape:
    return Shape({}, lambda value: value)


@_form("str", "ForwardRef")
def _forward(tp: Any, scope: _Scope) -> Shape:
    text = getattr(tp, "__forward_arg__", tp)
    return scope.shared(
        (text, scope), text, lambda: scope.shape(scope.resolve(text)), inline=True)


@_form("TypeVar", "NewType", "InitVar", "typing.Required", "typing.NotRequired",
       "typing.ReadOnly", "typing.Final")
def _stand_in(tp: Any, scope: _Scope) -> Shape:
    """Of the type meant: `Required[int]` means int, a TypeVar its bound or one of its choices."""
    if choices := getattr(tp, "__constraints__", ()):
        return scope.shape(typing.Union[choices])
    meant = [getattr(tp, name, None) for name in ("__supertype__", "__bound__", "type")]
    return scope.shape(next(filter(None, [*meant, *typing.get_args(tp)]), Any))


def _substitute(tp: Any, generic: Any) -> Any:
    """A type with the variables of a generic filled in: list[T] in Page[int] is list[int]."""
    variables = getattr(typing.get_origin(generic), "__parameters__", ())
    meanings = dict(zip(variables, typing.get_args(generic)))
    if isinstance(tp, typing.TypeVar):
        return meanings.get(tp, tp)
    variables = getattr(tp, "__parameters__", ()) if typing.get_origin(tp) else ()
    return tp[tuple(meanings.get(v, v) for v in variables)] if meanings and variables else tp


@_form("TypeAliasType")
def _alias(tp: Any, scope: _Scope) -> Shape:
    alias = typing.get_origin(tp) or tp
    return scope.shared(
        tp, alias.__name__, lambda: scope.shape(_substitute(alias.__value__, tp)), inline=True)


# `Annotated` constraints, by the attribute that annotated_types, pydantic and re.Pattern share:
# (attribute, JSON type, schema keyword, whether value and limit agree).
CONSTRAINTS = (
    ("ge", "number", "minimum", operator.ge),
    ("gt", "number", "exclusiveMinimum", operator.gt),
    ("le", "number", "maximum", operator.le),
    ("lt", "number", "exclusiveMaximum", operator.lt),
    ("multiple_of", "number", "multipleOf", lambda v, n: math.isclose(v / n, round(v / n))),
    ("min_length", "string", "minLength", lambda v, n: len(v) >= n),
    ("max_length", "string", "maxLength", lambda v, n: len(v) <= n),
    ("min_length", "array", "minItems", lambda v, n: len(v) >= n),
    ("max_length", "array", "maxItems", lambda v, n: len(v) <= n),
    ("pattern", "string", "pattern", lambda v, text: re.search(text, v)),
)


@_form("typing.Annotated")
def _annotated(tp: Any, scope: _Scope) -> Shape:
    """`Annotated[int, "text", Ge(1)]`: the first text, and every constraint that fits the type."""
    bare, *notes = typing.get_args(tp)
    notes += [inner for note in notes for inner in getattr(note, "metadata", None) or ()]
    inner = scope.shape(bare)
    types = {"number" if name == "integer" else name for name in _types(inner.schema)}
    texts = [n if isinstance(n, str) else getattr(n, "description", None) for n in notes]
    schema = {"description": text for text in texts[::-1] if isinstance(text, str)}
    checks = []
    for note, (attribute, name, keyword, holds) in itertools.product(notes, CONSTRAINTS):
        limit = getattr(note, attribute, None)
        finite = isinstance(limit, (int, float)) and math.isfinite(limit)
        if name in types and (isinstance(limit, str) if keyword == "pattern" else finite):
            schema[keyword] = limit
            checks.append((_PARSED[name], keyword, limit, holds))

    def read(value: Any) -> Any:
        for parsed, keyword, limit, holds in checks:
            if type(value) in parsed and not holds(value, limit):
                raise _Misfit(value, f"{keyword} 为 {limit} 的值")
        return inner.read(value)

    return Shape({**inner.schema, **schema}, read)


def _union_schema(schemas: list[dict]) -> dict:
    """Scalars share one `type` list; anything richer becomes `anyOf`. A lone text moves out."""
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
    merged = {**dict(*rich), "type": _one_or_list(sum(map(_types, schemas), [])), **text}
    if "enum" in merged and None not in merged["enum"]:
        merged["enum"] = [*merged["enum"], None]
    return merged


@_form("typing.Union", "types.UnionType")
def _union(tp: Any, scope: _Scope) -> Shape:
    shapes = [scope.shape(branch) for branch in typing.get_args(tp)]

    def read(value: Any) -> Any:
        for shape in shapes:  # the first branch that fits
            with contextlib.suppress(Exception):  # a record's own constructor may raise anything
                return shape.read(value)
        raise _Misfit(value, "任何一种允许的写法")

    return Shape(_union_schema([shape.schema for shape in shapes]), read)


@_form("enum", "typing.Literal")
def _choice(tp: Any, scope: _Scope) -> Shape:
    """One of some constants, told apart as JSON does: 1 equals 1.0 but not true."""
    choices = [(plain(member), member) for member in typing.get_args(tp) or tp]
    values = [value for value, _ in choices]

    def read(value: Any) -> Any:
        for choice, member in choices:
            if choice == value and (type(choice) is bool) == (type(value) is bool):
                return member
        raise _Misfit(value, f"{json.dumps(values, ensure_ascii=False)} 之一")

    words = {cls: name for name, parsed in _PARSED.items() for cls in parsed} | {int: "integer"}
    return Shape({"type": _one_or_list(words[type(v)] for v in values), "enum": values}, read)


# --- containers: origin → what the list or dict of its values, read one by one, is turned into ---

ARRAYS = {
    "builtins.list": list, "builtins.tuple": tuple, "builtins.set": set,
    "builtins.frozenset": frozenset, "collections.deque": collections.deque,
    "collections.Sequence": list, "collections.MutableSequence": list,
    "collections.Collection": list, "collections.Iterable": list,
    "collections.Set": set, "collections.MutableSet": set,
}
OBJECTS = {
    "builtins.dict": dict, "collections.Mapping": dict, "collections.MutableMapping": dict,
    "collections.OrderedDict": collections.OrderedDict,
}


def _fixed_tuple(items: list[Shape]) -> Shape:
    def read(value: Any) -> tuple:
        if type(value) is not list or len(value) != len(items):
            raise _Misfit(value, f"有 {len(items)} 个元素的 array")
        return tuple(item.read(element) for item, element in zip(items, value))

    prefix = {"prefixItems": [item.schema for item in items]} if items else {}
    return Shape({"type": "array", **prefix, "minItems": len(items), "maxItems": len(items)}, read)


@_form(*ARRAYS)
def _array(tp: Any, scope: _Scope) -> Shape:
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if origin is tuple and args[1:] != (...,) and tp not in (tuple, typing.Tuple):
        return _fixed_tuple([scope.shape(arg) for arg in args if arg != ()])
    item, build = scope.shape(args[0] if args else Any), ARRAYS[_type_key(origin)]
    distinct = issubclass(build, (set, frozenset))

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Misfit(value, "array")
        items = [item.read(element) for element in value]
        if distinct and not all(isinstance(element, Hashable) for element in items):
            raise _Misfit(value, "集合：里面不能有 array 或 object")
        if distinct and len(set(items)) < len(items):
            raise _Misfit(value, "集合：元素不能重复")
        return build(items)

    unique = {"uniqueItems": True} if distinct else {}
    return Shape({"type": "array", "items": item.schema, **unique}, read)


def _key_shape(inner: Shape) -> Shape:
    """The shape of dict keys, which are text in JSON: 8 travels as "8". Schema {} for any text."""
    types, names = _types(inner.schema), inner.schema.get("enum")
    if not inner.schema or types == ["string"]:
        return Shape({} if inner.schema == {"type": "string"} else inner.schema, inner.read)
    if types != ["integer"]:
        raise SchemaError("字典的键只能是 str、int，或值为它们的 Enum、Literal")
    schema = {"enum": list(map(str, names))} if names else {"pattern": "^-?[0-9]+$"}
    return Shape(schema, lambda text: inner.read(json.loads(text)))


@_form(*OBJECTS)
def _object(tp: Any, scope: _Scope) -> Shape:
    build, args = OBJECTS[_type_key(typing.get_origin(tp) or tp)], typing.get_args(tp)
    key, item = map(scope.shape, args or (str, Any))
    key = _key_shape(key)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(value, "object")
        return build((key.read(k), item.read(element)) for k, element in value.items())

    names = {"propertyNames": key.schema} if key.schema else {}
    values = {"additionalProperties": item.schema} if item.schema else {}
    return Shape({"type": "object", **values, **names}, read)


# --- signatures ---

class Parameter(NamedTuple):
    """One parameter of a function, or one field of a record."""

    name: str
    type: Any  # the annotation
    required: bool
    default: Any = object()  # what no schema shows, for it is not JSON
    by_position: bool = False
    shape: Shape | None = None  # made from the annotation; its schema holds text and default


class Parameters(NamedTuple):
    """What a function takes, read once: its description for a model, and the way to call it."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    schema: dict  # of the arguments, with `$defs`

    def bind(self, values: dict) -> tuple[list, dict]:
        """Positional and keyword arguments; see `call_arguments`."""
        read = {}
        if unknown := values.keys() - {parameter.name for parameter in self.parameters}:
            raise ToolError(f"没有参数 {'、'.join(sorted(unknown))}")
        for name, _, required, default, by_position, shape in self.parameters:
            if name in values:
                try:
                    read[name] = shape.read(values[name])
                except Exception as error:  # a record's own constructor may raise anything
                    raise ToolError(f"参数 {name}：{error}") from error
            elif required:
                raise ToolError(f"缺少必填参数 {name}")
            elif by_position:
                read[name] = default
        return [read.pop(p.name) for p in self.parameters if p.by_position], read


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
    shape = scope.shape(parameter.type)
    if parameter.default is None and not shape.accepts(None):  # `x: int = None`
        shape = scope.shape(typing.Optional[parameter.type])
    schema = {**shape.schema, "description": text} if text else shape.schema
    with contextlib.suppress(ValueError):
        if not parameter.required and shape.accepts(value := plain(parameter.default)):
            schema = {**schema, "default": value}
    return Shape(schema, shape.read)


def _describe(
    found: list[Parameter], scope: _Scope, *, name: str, owner: str, doc: Docstring,
) -> Parameters:
    parameters = []
    for parameter in found:
        try:
            shape = _described(parameter, scope, doc.params.get(parameter.name, ""))
        except SchemaError as error:
            raise SchemaError(f"{owner} {parameter.name}：{error}") from error
        parameters.append(parameter._replace(shape=shape))
    return Parameters(name, doc.description, tuple(parameters), {
        "type": "object",
        "properties": {parameter.name: parameter.shape.schema for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    })


# --- records: types with named fields become JSON objects ---

def _record_fields(tp: Any, scope: _Scope) -> list[Parameter]:
    """Keys of a TypedDict, otherwise the parameters of the constructor."""
    cls = typing.get_origin(tp) or tp
    try:
        hints = typing.get_type_hints(cls, localns=scope.local, include_extras=True)
    except Exception:  # then each is resolved by itself, so that an error names its field
        hints = getattr(cls, "__annotations__", {})
    hints = {name: _substitute(hint, tp) for name, hint in hints.items()}
    if not hasattr(cls, "__required_keys__"):
        fields = _signature(cls, cls.__name__)
        return [field._replace(type=hints.get(field.name, field.type)) for field in fields]
    known = {"typing.Required": True, "typing.NotRequired": False}  # lost if postponed
    qualifiers = {name: _type_key(typing.get_origin(hint)) for name, hint in hints.items()}
    return [Parameter(name, hint, known.get(qualifiers[name], name in cls.__required_keys__))
            for name, hint in hints.items()]


def _name_and_doc(fn: Any) -> tuple[str, str | None]:
    """Name and docstring, but not the "Point(x, y)" that dataclass and namedtuple make up."""
    if hasattr(fn, "__name__"):
        made_up = isinstance(fn, type) and (fn.__doc__ or "").startswith(f"{fn.__name__}(")
        return fn.__name__, None if made_up else fn.__doc__
    if isinstance(fn, functools.partial):
        return _name_and_doc(fn.func)
    return type(fn).__name__, type(fn).__call__.__doc__ or type(fn).__doc__


def _record_shape(tp: Any, scope: _Scope) -> Shape:
    import inspect
    cls = typing.get_origin(tp) or tp
    name, doc = cls.__name__, parse_docstring(_name_and_doc(cls)[1])
    module = {**scope.module, **vars(inspect.getmodule(cls) or types)}
    inside = _Scope(module, {**scope.local, name: cls}, outer=scope)
    fields = _describe(
        _record_fields(tp, inside), inside, name=name, owner=f"{name} 的字段", doc=doc)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(value, "object")
        positional, keyword = fields.bind(value)
        return cls(*positional, **keyword)

    text = {"description": doc.description} if doc.description else {}
    return Shape({**fields.schema, **text}, read)


@_form("record")
def _record(tp: Any, scope: _Scope) -> Shape:
    name = (typing.get_origin(tp) or tp).__name__
    return scope.shared(tp, name, lambda: _record_shape(tp, scope), inline=False)


# --- functions ---

def _underlying(fn: Any) -> Any:
    """The function that was written, beneath partial, decorators, methods and callable objects."""
    if isinstance(fn, functools.partial):
        return _underlying(fn.func)
    if inner := getattr(fn, "__wrapped__", None) or getattr(fn, "__func__", None):
        return _underlying(inner)
    return fn if hasattr(fn, "__name__") else type(fn).__call__


def _scope_of(fn: Any) -> _Scope:
    """Names for a function's postponed annotations: its module, closure and type parameters."""
    import inspect
    written, owner = _underlying(fn), getattr(fn, "__self__", None)
    body = vars(owner if isinstance(owner, type) else type(owner))
    names = {name: item for name, item in body.items() if isinstance(item, type)}
    free = getattr(getattr(written, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(written, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet
            names[name] = cell.cell_contents
    names.update((item.__name__, item) for item in getattr(written, "__type_params__", ()))
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
    scope = _Scope({}, {})
    return scope.schema(scope.shape(tp).schema)


def output_schema(fn: Callable) -> dict | None:
    """An object schema if the function returns a TypedDict or dataclass, else None; no error."""
    import dataclasses
    import inspect
    try:
        scope, tp = _scope_of(fn), inspect.signature(fn).return_annotation
        tp = scope.resolve(tp) if isinstance(tp, str) else tp
        cls = typing.get_origin(tp) or tp
        is_dataclass = dataclasses.is_dataclass(cls)
        if not (is_dataclass or hasattr(cls, "__required_keys__")):
            return None
        schema = _record_shape(tp, scope).schema
        names = [f.name for f in dataclasses.fields(cls)] if is_dataclass else schema["properties"]
        return scope.schema(schema) if set(names) == schema["properties"].keys() else None
    except Exception:  # a return type that cannot be described is no reason to refuse the tool
        return None
