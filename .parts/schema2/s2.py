# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 2  模式 Schema      uses §1 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A Python function describes itself: names and types from its signature, texts from its docstring.
# Every type becomes one `Shape` with both directions: JSON Schema (draft 2020-12) for the model, and
# `read`, which turns the model's JSON into what the annotation promises; so the two cannot drift
# apart. A new type is one row of SCALARS, ARRAYS or OBJECTS; a new way of writing types is one
# function under `@_form`. What JSON cannot express is refused when the tool is defined, with the
# parameter's name; it never becomes a vague "object" or "string". Docstring text beats `Annotated`
# text. A return type never breaks a schema. `inspect` and `dataclasses` are imported inside the
# functions that need them: they are a third of the start-up time, and serving a tool needs neither.
# Sources: json-schema.org/draft/2020-12; PEP 484, 589, 593, 655, 695.


# --- scalars: one table, Python type ⇄ JSON ---


def _construct(cls: type, value: Any) -> Any:
    return cls(value)


def _write_text(value: object) -> str:
    text = str.__str__(value) if isinstance(value, str) else str(value)
    text.encode()  # raises UnicodeEncodeError, a ValueError: a lone surrogate is not JSON text
    return text


def _read_integer(cls: type, number: float) -> int:
    if number != int(number):  # 4096.0 is an integer in JSON Schema, 4096.5 is not
        raise ValueError(number)
    return cls(number)


def _write_number(value: float) -> float:
    if not abs(value) < 10**4200:  # from 4,300 digits on CPython refuses to print an int
        raise ValueError("JSON has no NaN, no infinity and no endless integers")
    return int(value) if isinstance(value, int) else float(value)


def _read_iso(cls: type, text: str) -> Any:
    """Date, time or both from RFC 3339 text; Python 3.10 knows neither `Z` nor odd fractions."""
    if cls.__name__ == "datetime" and ":" not in text:
        raise ValueError("a date alone is no date-time")
    text = re.sub(r"[.,](\d+)", lambda match: "." + match[1][:6].ljust(6, "0"), text.upper())
    return cls.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


class Scalar(NamedTuple):
    """One row of SCALARS."""

    types: str  # JSON types it is written as: "string", or several, "number string"
    extra: dict  # further schema keywords
    read: Callable[[Any, Any], Any]  # class, JSON value of that type → value, or any exception
    write: Callable[[Any], Any]  # value → JSON value, or ValueError


# The keys are text, so that a type is recognised without importing its module. Subclasses count.
SCALARS = {
    "builtins.str": Scalar("string", {}, _construct, _write_text),
    "builtins.int": Scalar("integer", {}, _read_integer, _write_number),
    "builtins.float": Scalar("number", {}, _construct, _write_number),
    "builtins.bool": Scalar("boolean", {}, _construct, bool),
    "builtins.NoneType": Scalar("null", {}, lambda cls, value: None, lambda value: None),
    "builtins.complex": Scalar("string", {}, _construct, _write_text),
    "builtins.bytes": Scalar("string", {"contentEncoding": "base16"},
                             lambda cls, text: cls.fromhex(text), bytes.hex),
    "typing.LiteralString": Scalar("string", {}, lambda cls, text: text, _write_text),
    "datetime.date": Scalar("string", {"format": "date"}, _read_iso, str),
    "datetime.datetime": Scalar("string", {"format": "date-time"}, _read_iso, str),
    "datetime.time": Scalar("string", {"format": "time"}, _read_iso, str),
    "datetime.timedelta": Scalar("number", {"description": "秒"},
                                 lambda cls, n: cls(seconds=n), lambda v: v.total_seconds()),
    "decimal.Decimal": Scalar("number string", {}, lambda cls, n: cls(str(n)), _write_text),
    "uuid.UUID": Scalar("string", {"format": "uuid"}, _construct, _write_text),
    "pathlib.PurePath": Scalar("string", {}, _construct, _write_text),
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
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses

        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), other) for name in names}
    for method in ("_asdict", "tolist"):  # a NamedTuple; an array or number of numpy or torch
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

    Records become objects, a set a sorted array, an Enum its value, dates ISO text, bytes hex. What
    JSON cannot hold (NaN, a lone surrogate, any other object, something that contains itself) goes
    to `other`, which returns a substitute or, by default, raises ValueError.

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
    "params": "args|arguments|parameters|params|keyword args|keyword arguments|other parameters|"
    "attributes|参数|参数说明|入参|形参|输入|输入参数|属性|字段",
    "returns": "returns|return|yields|yield|返回|返回值|返回结果|输出|产出",
    "other": "raises|raise|exceptions|warns|warning|warnings|note|notes|example|examples|see also|"
    "references|todo|异常|抛出|抛出异常|引发|注意|注意事项|注|备注|警告|示例|例子|例|样例|参见|参考",
}
_FIELDS_OF_REST = {  # `:param int days: text`, `:returns: text`
    "params": "param|parameter|arg|argument|key|keyword",
    "returns": "return|returns|yield|yields",
    "other": "type|rtype|raise|raises|except|exception",
}
_HEADING_KIND = {word: kind for kind, words in _HEADINGS.items() for word in words.split("|")}
_FIELD_KIND = {word: kind for kind, words in _FIELDS_OF_REST.items() for word in words.split("|")}
_HEADING = re.compile(
    r"[\s#*]*([^\W\d_]+(?: [a-z]+)?)\s*(?:[(（].*?[)）])?\**\s*[:：]\**\s*(.*)", re.I)
_FIELD = re.compile(r"\s*[:@]([a-z]+)\b([^:：]*)[:：]\s*(.*)")
# `name (type) : text`, `a, b: text`, `- name：text`, `*rest: text`; the type may hold brackets.
_NAMES = r"([`*]*[^\W\d]\w*(?:`?\s*[,，、]\s*[`*]*[^\W\d]\w*)*`?)"
_ENTRY = re.compile(rf"([-*•]\s+)?{_NAMES}\s*(?:[(（].*?[)）])?\s*[:：]\s*(.*)")
_NUMPY_ENTRY = re.compile(rf"(){_NAMES}\s*(?:[:：].*)?()")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _dedented(lines: Iterable[str]) -> str:
    import inspect

    return inspect.cleandoc("\n".join(lines).strip())


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
        found: dict[str, list[str]] = {}
        lines, bulleted = [], None  # what stands above the first name is dropped
        for line in self.lines:
            entry = self.entry.fullmatch(line.strip()) if _indent(line) <= margin else None
            if entry and bulleted in (None, bool(entry[1])):
                bulleted, lines = bool(entry[1]), [entry[3]]
                found.update((name.strip("`* "), lines) for name in re.split("[,，、]", entry[2]))
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
    return _DocSection(kind, indent, _ENTRY, [" " * indent + text] if text else []) if kind else None


def _doc_sections(lines: list[str]) -> list[_DocSection]:
    """The docstring cut at its headings, by indentation: a colon inside a text cuts nothing."""
    section = _DocSection("text", -1, _ENTRY, [])
    sections = [section]
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""])):
        outside = section.indent < 0 or _indent(line) <= section.indent
        begun = _begin(line, below) if outside else None
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
    sections = _doc_sections(_dedented([text or ""]).splitlines())
    texts = [_dedented(section.lines) for section in sections if section.kind == "text"]
    returns = [_dedented(section.lines) for section in sections if section.kind == "returns"]
    params = [section.params() for section in sections if section.kind == "params"]
    description = "\n\n".join(filter(None, texts))
    summary = description.partition("\n\n")[0]
    return Docstring(summary, description, dict(collections.ChainMap(*params[::-1])), "\n".join(returns))


# --- types → shapes ---


class Shape(NamedTuple):
    """One type, both ways."""

    schema: dict  # JSON Schema; a `$ref` in it points to the `defs` of the scope
    read: Callable[[Any], Any]  # JSON value → Python value; raises if the value does not fit


def _excerpt(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "…"


class _Misfit(ToolError):
    """A JSON value and what it should have been; put into words only if somebody reads it."""

    def __str__(self) -> str:
        value, expected = self.args
        return f"{_excerpt(value)} 不能当作 {expected}"


# JSON type → what the JSON parser makes of it: True is no number, and 4096.0 is an integer as well.
_PARSED = {
    "string": {str}, "integer": {int, float}, "number": {int, float}, "boolean": {bool},
    "null": {type(None)}, "array": {list}, "object": {dict},
}


def _types(schema: dict) -> list[str]:
    """The words after `type` in a schema and its branches."""
    own = schema.get("type", [])
    return sum(map(_types, schema.get("anyOf", ())), [own] if isinstance(own, str) else own)


def _one_or_list(names: Iterable[str]) -> str | list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) > 1 else names[0]


# How one way of writing types becomes a shape, make(type, scope); for the keys see `_form_keys`.
_FORMS: dict[str, Callable[[Any, _Scope], Shape]] = {}


def _form(*keys: str) -> Callable:
    def register(make: Callable) -> Callable:
        _FORMS.update(dict.fromkeys(keys, make))
        return make

    return register


def _is_record(cls: Any) -> bool:
    """Whether a class has named fields: a TypedDict, a dataclass or a NamedTuple."""
    marks = ("__required_keys__", "__dataclass_fields__", "_field_defaults")
    return isinstance(cls, type) and any(hasattr(cls, mark) for mark in marks)


def _form_keys(tp: Any) -> Iterator[str]:
    yield _type_key(tp)  # a class or special form: "builtins.list", "typing.Union"
    yield type(tp).__name__  # neither: "TypeVar", "ForwardRef", "NewType" ...
    if isinstance(tp, type):
        yield "record" if _is_record(tp) else "enum" if issubclass(tp, enum.Enum) else "subclass"


_WRITE_INSTEAD = (
    "可以用 str、int、float、bool、list[...]、dict[str, ...]、Literal、Enum、dataclass、TypedDict"
)


class _Scope:
    """Where names in annotations are looked up, and the `$defs` found so far."""

    def __init__(self, module: dict, local: dict, *, outer: _Scope | None = None):
        self.module, self.local = module, local
        self.defs: dict[str, Shape] = outer.defs if outer else {}
        self.names: dict[Any, str] = outer.names if outer else {}  # type → its name in `defs`
        self.making: set[Any] = outer.making if outer else set()

    def resolve(self, text: str) -> Any:
        """What annotation text means; it is the programmer's own code, as for `get_type_hints`."""
        return eval(text, self.module, self.local)

    def shape(self, tp: Any) -> Shape:
        """The shape of any annotation."""
        tp = type(None) if tp is None else tp
        make = next(filter(None, map(_FORMS.get, _form_keys(typing.get_origin(tp) or tp))))
        return make(tp, self)

    def reference(self, key: Any, name: str) -> Shape:
        if key not in self.names:
            name = re.sub(r"\W", "_", name, flags=re.ASCII)
            while name in self.names.values():
                name += "_"  # another class of the same name
            self.names[key] = name
        name = self.names[key]
        return Shape({"$ref": f"#/$defs/{name}"}, lambda value: self.defs[name].read(value))

    def named(self, key: Any, name: str, make: Callable[[], Shape]) -> Shape:
        """What `make` gives, in place; a `$ref` to it where it contains itself."""
        if key in self.names or key in self.making:
            return self.reference(key, name)
        self.making.add(key)
        shape = make()
        self.making.remove(key)
        if key not in self.names:
            return shape
        self.defs[self.names[key]] = shape
        return self.reference(key, name)

    def schema(self, root: dict) -> dict:
        """A root schema together with the `$defs` that its references need."""
        defs = {name: shape.schema for name, shape in self.defs.items()}
        return {**root, "$defs": defs} if defs else root


@_form("subclass", *SCALARS)
def _scalar(tp: Any, scope: _Scope) -> Shape:
    row = _scalar_row(tp)
    if not row:
        raise SchemaError(f"类型 {typing._type_repr(tp)} 写不成 JSON Schema；{_WRITE_INSTEAD}")
    parsed = set().union(*(_PARSED[name] for name in row.types.split()))

    def read(value: Any) -> Any:
        try:
            if type(value) in parsed:
                return row.read(tp, value)
        except Exception:  # each class has its own: ValueError, InvalidOperation ...
            pass
        raise _Misfit(value, row.extra.get("format") or row.types.replace(" ", " 或 "))

    return Shape({"type": _one_or_list(row.types.split()), **row.extra}, read)


@_form("typing.Any", "builtins.object")
def _anything(tp: Any, scope: _Scope) -> Shape:
    return Shape({}, lambda value: value)


@_form("str", "ForwardRef")
def _forward(tp: Any, scope: _Scope) -> Shape:
    text = getattr(tp, "__forward_arg__", tp)
    return scope.named((text, scope), text, lambda: scope.shape(scope.resolve(text)))


@_form("TypeVar", "NewType", "InitVar", "typing.Required", "typing.NotRequired",
       "typing.ReadOnly", "typing.Final")
def _stand_in(tp: Any, scope: _Scope) -> Shape:
    """Of the type meant: `Required[int]` means int, a TypeVar its bound or one of its choices."""
    if choices := getattr(tp, "__constraints__", ()):
        return scope.shape(typing.Union[choices])
    meant = [getattr(tp, name, None) for name in ("__supertype__", "__bound__", "type")]
    return scope.shape(next(filter(None, [*meant, *typing.get_args(tp)]), Any))


def _substitute(tp: Any, generic: Any) -> Any:
    """A type with the variables of a generic filled in: list[T], inside Page[int], is list[int]."""
    variables = getattr(typing.get_origin(generic), "__parameters__", ())
    meanings = dict(zip(variables, typing.get_args(generic)))
    if isinstance(tp, typing.TypeVar):
        return meanings.get(tp, tp)
    variables = getattr(tp, "__parameters__", ()) if typing.get_origin(tp) else ()
    return tp[tuple(meanings.get(v, v) for v in variables)] if meanings and variables else tp


@_form("TypeAliasType")
def _alias(tp: Any, scope: _Scope) -> Shape:
    alias = typing.get_origin(tp) or tp
    return scope.named(
        tp, alias.__name__, lambda: scope.shape(_substitute(alias.__value__, tp)))


# `Annotated` constraints by the attribute that annotated_types, pydantic and re.Pattern share:
# (attribute, JSON type, schema keyword, whether a value and the limit agree).
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
    ("pattern", "string", "pattern", lambda v, text: bool(re.search(text, v))),
)


@_form("typing.Annotated")
def _annotated(tp: Any, scope: _Scope) -> Shape:
    """`Annotated[int, "text", Ge(1)]`: the first text, and every constraint that fits the type."""
    bare, *notes = typing.get_args(tp)
    notes += [inner for note in notes for inner in getattr(note, "metadata", None) or ()]
    inner = scope.shape(bare)
    schema, checks = dict(inner.schema), []
    texts = (note if isinstance(note, str) else getattr(note, "description", 0) for note in notes)
    if text := next((text for text in texts if isinstance(text, str)), ""):
        schema["description"] = text
    types = {"number" if name == "integer" else name for name in _types(schema)}
    for note, (attribute, name, keyword, holds) in itertools.product(notes, CONSTRAINTS):
        limit = getattr(note, attribute, None)
        legal = isinstance(limit, str if keyword == "pattern" else (int, float)) and limit == limit
        if name in types and legal and limit not in (math.inf, -math.inf):
            schema[keyword] = limit
            checks.append((_PARSED[name], holds, limit))

    def read(value: Any) -> Any:
        for parsed, holds, limit in checks:
            if type(value) in parsed and not holds(value, limit):
                raise ToolError(f"{_excerpt(value)} 超出了限制 {limit}")
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
    merged = {**dict(*rich), "type": _one_or_list(sum(map(_types, schemas), [])), **text}
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
        raise _Misfit(value, "任何一种允许的写法")

    return Shape(_union_schema([shape.schema for shape in shapes]), read)


@_form("typing.Union", "types.UnionType")
def _union(tp: Any, scope: _Scope) -> Shape:
    return _any_of([scope.shape(branch) for branch in typing.get_args(tp)])


@_form("enum", "typing.Literal")
def _choice(tp: Any, scope: _Scope) -> Shape:
    """One of some constants, told apart as JSON does: 1 equals 1.0 but not true."""
    choices = [(plain(member), member) for member in typing.get_args(tp) or tp]
    values = [value for value, _ in choices]

    def read(value: Any) -> Any:
        for choice, member in choices:
            if choice == value and (type(choice) is bool) == (type(value) is bool):
                return member
        raise _Misfit(value, " 或 ".join(map(_excerpt, values)))

    words = {int: "integer", **{cls: name for name, (cls, *_) in _PARSED.items()}}
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
        if distinct and not all(isinstance(i, Hashable) for i in items):
            raise ToolError("集合里不能放 array 或 object")
        if distinct and len(set(items)) < len(items):
            raise ToolError("集合里的元素不能重复")
        return build(items)

    unique = {"uniqueItems": True} if distinct else {}
    return Shape({"type": "array", "items": item.schema, **unique}, read)


def _key_shape(tp: Any, scope: _Scope) -> Shape:
    """The shape of dict keys, always text in JSON (8 travels as "8"); its schema, or {} for any."""
    inner = scope.shape(tp)
    types, names = _types(inner.schema), inner.schema.get("enum")
    if not inner.schema or types == ["string"]:
        return Shape({} if inner.schema == {"type": "string"} else inner.schema, inner.read)
    if types != ["integer"]:
        raise SchemaError("字典的键只能是 str、int，或值为它们的 Enum、Literal")
    schema = {"enum": list(map(str, names))} if names else {"pattern": "^-?[0-9]+$"}
    return Shape(schema, lambda text: inner.read(json.loads(text)))


@_form(*OBJECTS)
def _object(tp: Any, scope: _Scope) -> Shape:
    args, build = typing.get_args(tp) or (Any, Any), OBJECTS[_type_key(typing.get_origin(tp) or tp)]
    key, item = _key_shape(args[0], scope), scope.shape(args[1])

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
    default: Any  # what to pass when a positional-only parameter was left out
    by_position: bool = False
    shape: Shape | None = None  # made from the annotation; its schema holds text and default


_NO_DEFAULT = object()  # no JSON, so no schema ever shows it


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


def _accepts(shape: Shape, value: Any) -> bool:
    try:
        shape.read(value)
    except Exception:
        return False
    return True


def _described(parameter: Parameter, scope: _Scope, text: str) -> Shape:
    """The shape of one parameter: its type, its text, and its default if that is JSON."""
    shape, default = scope.shape(parameter.type), parameter.default
    if default is None and not _accepts(shape, None):  # `x: int = None` means Optional[int]
        shape = _any_of([shape, scope.shape(None)])
    schema = {**shape.schema, "description": text} if text else shape.schema
    try:
        value = plain(default)
    except ValueError:
        return Shape(schema, shape.read)
    return Shape({**schema, "default": value} if _accepts(shape, value) else schema, shape.read)


def _reason(error: Exception) -> str:
    if isinstance(error, SchemaError):
        return str(error)
    if isinstance(error, NameError):
        return (f"标注里的名字 {error.name} 找不到；请在模块顶层定义或导入它"
                "（延迟求值的标注看不见函数里的局部类，也看不见 TYPE_CHECKING 下的导入）")
    return f"类型标注读不懂（{type(error).__name__}: {error}）；{_WRITE_INSTEAD}"


def _with_shapes(
    parameters: Iterable[Parameter], scope: _Scope, *, owner: str, texts: Mapping[str, str],
) -> tuple[Parameter, ...]:
    made = []
    for parameter in parameters:
        try:
            shape = _described(parameter, scope, texts.get(parameter.name, ""))
        except Exception as error:  # evaluating an annotation runs the programmer's own code
            raise SchemaError(f"{owner} {parameter.name}：{_reason(error)}") from error
        made.append(parameter._replace(shape=shape))
    return tuple(made)


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
    if unknown := values.keys() - {parameter.name for parameter in parameters}:
        raise ToolError(f"没有参数 {'、'.join(sorted(unknown))}")
    for name, _, required, value, by_position, shape in parameters:
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


# --- records: types with named fields become JSON objects ---


def _is_required(key: str, hint: Any, cls: Any) -> bool:
    """Whether a TypedDict needs a key; `__required_keys__` misses postponed qualifiers."""
    while origin := typing.get_origin(hint):
        if _type_key(origin) in ("typing.Required", "typing.NotRequired"):
            return _type_key(origin) == "typing.Required"
        hint = typing.get_args(hint)[0]  # ReadOnly, Annotated
    return key in cls.__required_keys__


def _record_fields(tp: Any, scope: _Scope) -> list[Parameter]:
    """Keys of a TypedDict, otherwise the parameters of the constructor."""
    cls = typing.get_origin(tp) or tp
    try:
        hints = typing.get_type_hints(cls, localns=scope.local, include_extras=True)
    except NameError:  # a class made by `exec` has no module; its names are the function's
        names = {**scope.module, **scope.local}
        hints = typing.get_type_hints(cls, localns=names, include_extras=True)
    hints = {name: _substitute(hint, tp) for name, hint in hints.items()}
    if hasattr(cls, "__required_keys__"):
        return [Parameter(name, hint, _is_required(name, hint, cls), _NO_DEFAULT)
                for name, hint in hints.items()]
    return [field._replace(type=hints.get(field.name, field.type))
            for field in _signature(cls, cls.__name__)]


def _written_doc(thing: Any) -> str | None:
    """The docstring someone wrote: not the "Point(x, y)" that dataclass and namedtuple make up."""
    made_up = isinstance(thing, type) and (thing.__doc__ or "").startswith(f"{thing.__name__}(")
    return None if made_up else thing.__doc__


def _record_shape(tp: Any, scope: _Scope) -> Shape:
    import inspect

    cls = typing.get_origin(tp) or tp
    doc = parse_docstring(_written_doc(cls))
    module = {**scope.module, **vars(inspect.getmodule(cls) or types)}
    inside = _Scope(module, {**scope.local, cls.__name__: cls}, outer=scope)
    try:
        fields = _record_fields(tp, inside)
    except Exception as error:
        raise SchemaError(f"类 {cls.__name__} 的{_reason(error)}") from error
    fields = _with_shapes(fields, inside, owner=f"{cls.__name__} 的字段", texts=doc.params)

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(value, "object")
        positional, keyword = _bind(fields, value)
        return cls(*positional, **keyword)

    text = {"description": doc.description} if doc.description else {}
    return Shape({**_object_schema(fields), **text}, read)


@_form("record")
def _record(tp: Any, scope: _Scope) -> Shape:
    """A `$ref` always; the record itself is made once, so it may contain itself."""
    new = tp not in scope.names
    reference = scope.reference(tp, (typing.get_origin(tp) or tp).__name__)
    if new:
        scope.defs[scope.names[tp]] = _record_shape(tp, scope)
    return reference


# --- functions ---


def _underlying(fn: Any) -> Any:
    """The function that was written, beneath partial, decorators, methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inner := getattr(fn, "__wrapped__", None) or getattr(fn, "__func__", None):
            fn = inner
        elif hasattr(fn, "__name__"):
            return fn
        else:
            fn = type(fn).__call__


def _name_and_doc(fn: Any) -> tuple[str, str | None]:
    if isinstance(fn, functools.partial) and "__name__" not in vars(fn):
        return _name_and_doc(fn.func)
    if name := getattr(fn, "__name__", None):
        return name, _written_doc(fn)
    return type(fn).__name__, type(fn).__call__.__doc__ or type(fn).__doc__


def _scope_of(fn: Any) -> _Scope:
    """Names for a function's postponed annotations: its module, closure and type parameters."""
    import inspect

    written, owner = _underlying(fn), getattr(fn, "__self__", None)
    names = {k: v for k, v in vars(type(owner)).items() if isinstance(v, type)}
    free = getattr(getattr(written, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(written, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet
            names[name] = cell.cell_contents
    names.update((item.__name__, item) for item in getattr(written, "__type_params__", ()))
    module = getattr(written, "__globals__", None) or vars(inspect.getmodule(written) or types)
    return _Scope(module, names)


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
    found = _signature(fn, name)
    parameters = _with_shapes(found, scope, owner=f"函数 {name} 的参数", texts=doc.params)
    return Parameters(name, doc.description, parameters, scope.schema(_object_schema(parameters)))


def function_to_schema(fn: Callable) -> dict:
    """Name, description and parameters (a JSON Schema) of a function, as a model is shown them.

    Parameters without default are required; defaults appear if they are JSON. Raises SchemaError,
    naming function and parameter, for what cannot be expressed.

    >>> def double(n: int = 1):
    ...     "把一个整数乘以二。"
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
    try:
        return scope.schema(scope.shape(tp).schema)
    except Exception as error:
        raise SchemaError(_reason(error)) from error


def output_schema(fn: Callable) -> dict | None:
    """An object schema if the function returns a TypedDict or dataclass, else None. Never raises."""
    import dataclasses
    import inspect

    try:
        scope, tp = _scope_of(fn), inspect.signature(fn).return_annotation
        tp = scope.resolve(tp) if isinstance(tp, str) else tp
        cls = typing.get_origin(tp) or tp
        schema = _record_shape(tp, scope).schema if _is_record(cls) else {}
        if dataclasses.is_dataclass(cls):  # the schema lacks fields the constructor does not take
            names = {field.name for field in dataclasses.fields(cls)}
            return scope.schema(schema) if names == schema["properties"].keys() else None
        return scope.schema(schema) if hasattr(cls, "__required_keys__") else None
    except Exception:  # a return type that cannot be described is no reason to refuse the tool
        return None
