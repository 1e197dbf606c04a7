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
_MAX_WORK = 100_000  # per call: 1 for each list or dict, 10 for each step through a `$ref`
_MAX_MESSAGE = 400  # characters of one sentence for the model
_MAX_PROBLEMS = 20  # sentences per call; a model repairs no more at a time
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
    strange = lambda item: f"<{type(item).__name__}>"
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=strange).iterencode(value):
            text += piece[:limit]
            if len(text) > limit:
                break
    except (ValueError, TypeError):  # 5,000 digits, a loop, a key like (1, 2)
        text = strange(value)
    return _cut(text.encode("utf-8", "backslashreplace").decode("utf-8"), limit)


def _listed(words: list[str], last: str = "、") -> str:
    """Return `A、B、C`, or `A、B 或 C` with last=" 或 "; a long list is cut and says its length."""
    text = last.join(["、".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
    return text if len(text) <= 160 else f"{_cut(text, 150)}（共 {len(words)} 个）"


def _choose_from(values: list) -> str:
    """Return `只能是 "C"、"F" 之一`."""
    return f"只能是 {_listed([show(v, 60) for v in values])}" + " 之一" * (len(values) > 1)


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be, or None.

    >>> closest("maxTokens", ["min_p", "max_tokens"]), closest("learnig_rate", ["learning_rate"])
    ('max_tokens', 'learning_rate')
    """
    wanted, *known = (re.sub(r"[\W_]+", "", n[:100]).lower() for n in [name, *names][:200])
    folded = dict(zip(known, names))
    if wanted in folded:
        return folded[wanted]
    import difflib  # only wrong calls need it

    hits = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    return folded[hits[0]] if hits else None


# A path is a tuple: first the account of work left, a list of one number shared by the whole call,
# then the names and indices that lead to the value.


def _spend(path: tuple, work: int) -> None:
    """Pay for a step; RecursionError when the call asks too much, as when Python's stack ends."""
    path[0][0] -= work
    if path[0][0] < 0 or len(path) > _MAX_DEPTH:
        raise RecursionError


def _where(path: tuple) -> str:
    """Return a path as text: `cfg.opt.lr`, `rows[1].x`, "" for the arguments as a whole."""
    text = ""
    for step in path[1:][-60:]:
        plain = type(step) is str and re.fullmatch(r"[\w$@-]{1,60}", step)
        text += f".{step}" if plain else f"[{show(step, 40)}]"
    text = text.removeprefix(".")
    return text if len(text) <= 100 else "…" + text[-99:]


def _fault(path: tuple, keyword: str, says: str, *received: object, hint: str = "") -> list[Problem]:
    """Return the one problem `参数 <path> <says>，收到的是 <received><hint>`."""
    where = _where(path)
    came = "".join(f"，收到的是 {show(value)}" for value in received)
    return [Problem(where, keyword, _cut((f"参数 {where} " if where else "参数整体") + says + came + hint))]


# ── Plain JSON ──


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
    return ("not JSON", id(value))


def _inside(parts: Iterable[tuple], path: tuple) -> list[Problem]:
    """Return the problems of parts of a value, which come as (name or index, part, its check)."""
    found = []
    for step, part, check in parts:
        found += check(part, (*path, step))
        if len(found) > _MAX_PROBLEMS:
            break
    return found


def _is_leaf(value: object) -> bool:
    kind = type(value)
    return kind is str or kind is int or kind is bool or value is None or (
        kind is float and math.isfinite(value)
    )


def _not_json(value: object, path: tuple) -> list[Problem]:
    """Return what keeps `value` from being finite JSON; RecursionError if it is too deep or big.

    The rules rely on it: what they meet is str, int, float, bool, None, list or dict, exactly.
    """
    kind = type(value)
    if kind is float:
        return _fault(path, "finite", "要是有限的数", value)
    if kind is not dict and kind is not list:
        return _fault(path, "json", "不是 JSON 值", value)
    if kind is dict and not {str}.issuperset(map(type, value)):
        return _fault(path, "json", "的键都应该是字符串", value)
    _spend(path, 1)
    items = value.items() if kind is dict else enumerate(value)
    return _inside(((step, item, _not_json) for step, item in items if not _is_leaf(item)), path)


# ── Text → JSON, without the traps of json.loads ──


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ArgumentsError(f"参数里有 {len(digits)} 位的整数，太长了，请改用较小的数或字符串")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ArgumentsError(f"数 {_cut(digits, 40)} 超出范围，请改用绝对值小于 1e308 的数")
    return value


def _refuse_constant(word: str) -> object:
    raise ArgumentsError(f"JSON 里不能写 {word}，请改用普通的数；没有值就写 null 或不传这个参数")


def _parse_pairs(pairs: list[tuple[str, object]]) -> dict:
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
    parse_float=_parse_float,
    parse_constant=_refuse_constant,
    object_pairs_hook=_parse_pairs,
)


def _load_json(text: str) -> object:
    """Return the JSON value in `text`; ArgumentsError for what json.loads wrongly lets through.

    json.loads reads NaN, turns 1e999 into inf, keeps the last of two equal keys, accepts half a
    surrogate pair, and meets deep nesting with RecursionError. Bad syntax: json.JSONDecodeError.
    """
    if len(text) > _MAX_TEXT:
        raise ArgumentsError(f"参数有 {len(text)} 个字符，超过上限 {_MAX_TEXT}，请分几次发送")
    try:
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > _MAX_DEPTH:
            _not_json(value, ([_MAX_WORK],))
    except RecursionError:
        raise ArgumentsError(f"参数嵌套超过 {_MAX_DEPTH} 层或者太大，请改成较小的结构") from None
    if re.search(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ArgumentsError("文字里有不成对的 \\ud… 转义（半个字符），请写出完整的字符") from None
    return value


# Patterns stay text: `re` keeps what it has compiled, and importing this file costs nothing.
# A string that is not closed goes to the end of the text: no second try, no quadratic time.
_SLIP = r"""(?xs)
    " [^"\\]*(?:\\.[^"\\]*)* (?:"|\\?\Z)                        # a JSON string: leave it alone
  | '(?P<python> [^'\\]*(?:\\.[^'\\]*)* )(?P<end>'|\\?\Z)       # a Python string
  | \b(?P<word>True|False|None)\b
  | (?<=[\w"'\]}])\s*(?P<comma>,)(?=\s*[\]}])                   # a comma after the last item
"""


def _json_escape(match: re.Match) -> str:
    """Return an escape of a Python string as JSON writes it."""
    return "\\u00" + match["hex"] if match["hex"] else {"\\'": "'", '"': '\\"'}.get(match[0], match[0])


def _json_spelling(match: re.Match) -> str:
    """Return one token of `_SLIP` as JSON spells it."""
    if match["word"]:
        return {"True": "true", "False": "false", "None": "null"}[match["word"]]
    if match["comma"]:
        return ""
    if match["end"] == "'":
        escapes = r"(?s)\\'|\\x(?P<hex>[0-9a-fA-F]{2})|\\.|\""
        return '"' + re.sub(escapes, _json_escape, match["python"]) + '"'
    return match[0]


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
    broken_off = error.msg.startswith("Unterminated") or rest
    if broken_off and error.msg != "Extra data" and text.startswith(("{", "[", '"')):
        tail = show(text[-30:], 60)
        return f"参数没有写完，在 {tail} 之后断了，请重新发送完整的 JSON 对象；内容太长就分几次发送"
    reasons = [says for start, says in _SYNTAX_REASONS.items() if error.msg.startswith(start)]
    near = show(text[max(0, error.pos - 15) : error.pos + 15], 60)
    place = f"第 {error.lineno} 行第 {error.colno} 列 {near} 附近"
    return f"参数不是合法的 JSON：{place}，{(reasons or [error.msg])[0]}。请只发送一个 JSON 对象"


def _read_layer(text: str) -> object:
    """Return the value in `text`: strict JSON, else JSON once slips of spelling are mended.

    Python's spelling is translated token by token and read as JSON again: unlike `ast.literal_eval`
    that never joins 'a' 'b' to one string, which would be a guess at unescaped quotes.
    """
    if fenced := re.fullmatch(r"(?s)```[\w-]*\s(.*?)(?:```)?", text):
        text = fenced[1].strip()
    try:
        return _load_json(text)
    except json.JSONDecodeError as error:
        first = error
    try:
        return _load_json(re.sub(_SLIP, _json_spelling, text))
    except json.JSONDecodeError:
        raise ArgumentsError(_explain_syntax(text, first)) from None


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
    value = "" if text is None else text
    if isinstance(value, (bytes, bytearray)):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise ArgumentsError("参数不是 UTF-8 编码的文字，请重新发送一个 JSON 对象") from None
    if isinstance(value, str):
        value = value.strip().removeprefix("\ufeff").strip()
        if not value:
            return {}
        value = _read_layer(value)
    for _ in range(2):  # an object encoded as a string, once or twice
        if isinstance(value, str) and value.strip().startswith(("{", '"', "```")):
            value = _read_layer(value.strip())
    if not isinstance(value, dict):
        raise ArgumentsError(f"参数应该是一个 JSON 对象（object），写成 {{…}}，收到的是 {show(value)}")
    return value


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
# Which names a value of a class can pass under; 3.0 is an integer, so that floats and ints share.
_NAMES_OF = {cls: frozenset([name]) for name, classes in _CLASSES.items() for cls in classes}
_NAMES_OF[int] = _NAMES_OF[float] = frozenset(["integer", "number"])
# Type names of other languages in real tool sets (BFCL: dict in every tool, float 879 times);
# compared in lower case, which covers Gemini's STRING as well.
_ALIASES = {
    alias: name
    for name, aliases in {
        "string": "str text char character",
        "integer": "int long short byte bigint",
        "number": "float double decimal",
        "boolean": "bool",
        "array": "list tuple set arraylist queue",
        "object": "dict map hashmap hashtable",
        "null": "none nonetype",
    }.items()
    for alias in [name, *aliases.split()]
}


def _of(schema: dict, keyword: str, kind: type) -> Any:
    """Return the value of a keyword, or an empty one if it is missing or malformed."""
    value = schema.get(keyword)
    return value if isinstance(value, kind) else kind()


def _stated_types(schema: dict) -> tuple[list[str], list]:
    """Return the names of the JSON types a schema states ([] = any), and the names nobody knows."""
    stated = schema.get("type", "any")
    stated = stated if isinstance(stated, list) else [stated]
    plain = [name.lower() if isinstance(name, str) else None for name in stated]
    unknown = [name for name, word in zip(stated, plain) if word != "any" and word not in _ALIASES]
    if unknown or "any" in plain:
        return [], unknown
    nullable = ["null"] if schema.get("nullable") is True else []
    return list(dict.fromkeys([_ALIASES[word] for word in plain] + nullable)), []


def _unescaped(step: str) -> str:
    """Return one step of a JSON pointer in a URI fragment as plain text (RFC 6901, section 6)."""
    plain = re.sub(
        rb"%([0-9a-fA-F]{2})",
        lambda found: bytes.fromhex(found[1].decode()),
        step.encode("utf-8", "replace"),
    )
    return plain.decode("utf-8", "replace").replace("~1", "/").replace("~0", "~")


def _target(pointer: object, root: object) -> object:
    """Return the subschema that a `$ref` into this schema points to, or None."""
    if not isinstance(pointer, str) or not re.match(r"#(/|\Z)", pointer):
        return None
    found = root
    for step in map(_unescaped, pointer.split("/")[1:]):
        if isinstance(found, list):
            found = {str(number): item for number, item in enumerate(found)}
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _follow(schema: object, root: object) -> dict:
    """Return what stands behind a chain of `$ref`; {} if that is no schema with keywords."""
    for _ in range(8):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = _target(schema["$ref"], root)
    return schema if isinstance(schema, dict) else {}


def _choices(schema: dict) -> list:
    """Return the values that `const` or `enum` allow; [] if there is neither."""
    return [schema["const"]] if "const" in schema else _of(schema, "enum", list)


def _branches(schema: dict) -> list:
    """Return the alternatives of a schema; an allOf of one is an alternative without choice."""
    single = _of(schema, "allOf", list)
    return _of(schema, "anyOf", list) + _of(schema, "oneOf", list) + single * (len(single) == 1)


def _accepted(schema: object, root: object, hops: int = 4) -> frozenset[str]:
    """Return the names of the JSON types that may pass: never too few, perhaps too many."""
    if not isinstance(schema, dict) or not hops:
        return frozenset() if schema is False else frozenset(_CLASSES)
    names = frozenset(_stated_types(schema)[0] or _CLASSES)
    if "number" in names:
        names |= {"integer"}
    if choices := _choices(schema):
        names &= frozenset().union(*(_NAMES_OF.get(type(value), ()) for value in choices))
    if "$ref" in schema:
        names &= _accepted(_target(schema["$ref"], root), root, hops - 1)
    if branches := _branches(schema):
        names &= frozenset().union(*(_accepted(part, root, hops - 1) for part in branches))
    return names | {"null"} if schema.get("nullable") is True else names


def _expected(schema: object, root: object, hops: int = 4) -> list[str]:
    """Return words for what a schema wants: ["number", "null"], or the values of its enum."""
    schema = _follow(schema, root)
    words = [show(value, 60) for value in _choices(schema)] or _stated_types(schema)[0]
    if not words and hops:
        words = [word for part in _branches(schema) for word in _expected(part, root, hops - 1)]
    return list(dict.fromkeys(words))


def _lossless(value: object, names: Iterable[str]) -> object:
    """Return what a text spells in JSON, or a float as int, if the types `names` want just that."""
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
    wanted = [cls for name in names if name not in ("string", "null") for cls in _CLASSES[name]]
    return found if type(found) in wanted else value


def _advice(value: object, names: Iterable[str], optional: bool) -> str:
    """Return what to do about a value of the wrong type, or ""."""
    if value is None and optional:
        return "；不需要就不要传"
    if type(value) is not str or "string" in names:
        return ""
    for name, bracket, noun in [("array", "[", "数组"), ("object", "{", "对象")]:
        if name in names and value.lstrip().startswith(bracket):
            return f"；请直接传{noun}，不要加引号"
    bare = _lossless(value, names)
    return f"；请直接写 {show(bare, 40)}，不要加引号" if bare is not value else ""


# ── Rules: the value of one keyword → a check ──
#
# A check takes (value, path) and returns problems, an empty sequence if all is well. `place` is
# where the compiler stands in the schema: rules ask it for checks of subschemas, or leave a note.


def _accept(value: object, path: tuple) -> tuple:
    return ()


def _rule_limit(keyword: str, holds: Callable, says: str) -> Callable:
    """Return the rule of a keyword that compares the value, or its length, with its own number."""

    def rule(limit, schema, place):
        def check(value, path):
            if holds(value, limit):
                return ()
            size = "" if type(value) in (int, float) else len(value)
            return _fault(path, keyword, says.format(show(limit), size, show(value)))

        return check

    return rule


def _is_multiple(value: int | float, step: int | float) -> bool:
    """Return whether value / step is whole in the decimal digits as written, so 0.07 by 0.01 is."""
    if type(value) is type(step) is int:
        return value % step == 0
    if type(value) is float and not math.isfinite(value):
        return True  # refused elsewhere
    from fractions import Fraction

    value, step = (n if type(n) is int else Fraction(repr(n)) for n in (value, step))
    return Fraction(value, step).denominator == 1


def _rule_enum(choices, schema, place):
    allowed, says = {_equality_key(choice) for choice in choices}, _choose_from(choices)
    words = [choice for choice in choices if type(choice) is str]

    def check(value, path):
        if _equality_key(value) in allowed:
            return ()
        meant = closest(value, words) if type(value) is str else None
        hint = f"，是不是想写 {show(meant, 60)}？" if meant else ""
        return _fault(path, "enum", says, value, hint=hint)

    return check


# A repeat inside a repeat with nothing fixed between, such as (a+)+ or (\w+\s?)*: exponential time.
_UNIT = r"(?:\\.|\[[^\]]*\]|[^()\\|])"
_MANY = r"(?:[+*]|\{\d+,\d*\})"
_EXPLOSIVE = rf"\((?:\?:)?{_UNIT}{_MANY}(?:{_UNIT}(?:{_MANY}|\?))*\){_MANY}"


def _regex(pattern: str, place: _Place) -> Callable[[str], object] | None:
    """Return the search function of a pattern, or None with a note if it cannot be used."""
    if len(pattern) > 2_000 or re.search(_EXPLOSIVE, pattern):
        return place.note(f"正则 {show(pattern, 80)} 可能耗时过长，不予检查")
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as error:
        return place.note(f"正则 {show(pattern, 80)} 无法使用（{error}），不予检查")


def _rule_pattern(pattern, schema, place):
    search, text = _regex(pattern, place), _cut(pattern, 100)

    def check(value, path):
        if len(value) > _MAX_MATCHED:
            return _fault(path, "pattern", f"超过 {_MAX_MATCHED} 个字符，无法核对正则 {text}")
        return () if search(value) else _fault(path, "pattern", f"要符合正则 {text}", value)

    return check if search else _accept


def _read_day(text: str) -> object:
    import datetime

    return datetime.date(*map(int, text[:10].split("-")))


def _read_address(text: str) -> object:
    import ipaddress

    return ipaddress.ip_address(text)


_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)?"
_HEX = "[0-9a-fA-F]"
# format → (shape, reader that raises ValueError, example for the message). Times as in RFC 3339,
# but the offset may be missing, as `datetime.isoformat` writes it.
# Any other format is an annotation (JSON Schema validation, section 7.2.1).
_FORMATS = {
    "date": (_DATE, _read_day, "2031-02-28"),
    "date-time": (f"{_DATE}[tT]{_TIME}", _read_day, "2031-02-28T10:00:00Z"),
    "time": (_TIME, str, "10:00:00Z"),
    "uuid": (f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", str, "3fa85f64-5717-4562-b3fc-2c963f66afa6"),
    "email": (r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*", str, "ada@example.org"),
    "uri": (r"[a-zA-Z][a-zA-Z\d+.-]*:[^\s<>\"{}|\\^`]+", str, "https://example.org/a"),
    "ipv4": (r"\d+(\.\d+){3}", _read_address, "192.0.2.1"),
    "ipv6": (f"({_HEX}|[:.])*:({_HEX}|[:.])*", _read_address, "2001:db8::1"),
}


def _rule_format(name, schema, place):
    if name not in _FORMATS:
        return _accept
    shape, read, example = _FORMATS[name]

    def check(value, path):
        try:
            if len(value) <= _MAX_MATCHED and re.fullmatch(shape, value, re.ASCII):
                read(value)
                return ()
        except ValueError:
            pass
        return _fault(path, "format", f"应该是 {name} 格式（如 {example}）", value)

    return check


def _rule_prefix(schemas, schema, place):
    tests = [place.child(part, "prefixItems", number) for number, part in enumerate(schemas)]
    return lambda value, path: _inside(zip(itertools.count(), value, tests), path)


def _rule_items(rest, schema, place):
    if isinstance(rest, list):  # what draft 7 called prefixItems
        return _rule_prefix(rest, schema, place)
    start, test = len(_of(schema, "prefixItems", list)), place.child(rest, "items")
    return lambda value, path: _inside(
        ((number, value[number], test) for number in range(start, len(value))), path
    )


def _rule_unique(wanted, schema, place):
    def check(value, path):
        seen = {}
        for number, item in enumerate(value):
            first = seen.setdefault(_equality_key(item), number)
            if first != number:
                says = f"的元素不能重复，[{number}] 与 [{first}] 相同"
                return _fault(path, "uniqueItems", says, item)
        return ()

    return check if wanted else _accept


def _rule_contains(wanted, schema, place):
    test, words = place.child(wanted, "contains"), _expected(wanted, place.root)
    says = f"里至少要有一个元素{'是' if words else '符合'} {_listed(words or [show(wanted)], ' 或 ')}"

    def check(value, path):
        if any(not test(item, (*path, number)) for number, item in enumerate(value)):
            return ()
        return _fault(path, "contains", says, value)

    return check


def _rule_required(names, schema, place):
    needed = frozenset(names)

    def check(value, path):
        if needed <= value.keys():
            return ()
        missing = [_where((*path, name)) for name in names if name not in value]
        return [Problem(where, "required", f"缺少必填参数 {where}") for where in missing]

    return check


def _rule_dependent(needs, schema, place):
    return lambda value, path: [
        Problem(where, "dependentRequired", f"传了 {_cut(name, 60)} 就必须同时传 {where}")
        for name, others in needs.items()
        if name in value
        for where in [_where((*path, other)) for other in others if other not in value]
    ]


def _rule_properties(schemas, schema, place):
    required = _of(schema, "required", list)
    tests = {
        name: place.child(part, "properties", name, optional=name not in required)
        for name, part in schemas.items()
    }
    return lambda value, path: _inside(
        ((name, value[name], test) for name, test in tests.items() if name in value), path
    )


def _rule_patterns(schemas, schema, place):
    tests = [
        (search, place.child(part, "patternProperties", pattern, optional=True))
        for pattern, part in schemas.items()
        if (search := _regex(pattern, place))
    ]
    return lambda value, path: _inside(
        (
            (name, item, test)
            for search, test in tests
            for name, item in value.items()
            if search(name[:_MAX_MATCHED])
        ),
        path,
    )


def _unknown_name(name: str, known: list[str], value: dict, path: tuple) -> list[Problem]:
    """Return the problem with a name that the schema does not have."""
    where = _where((*path, name))
    meant = closest(name, [n for n in known if n not in value]) or closest(name, known)
    tail = f"，可用的有 {_listed(known)}" if known else "，这里不接受任何参数"
    if meant:
        tail = f"，是不是想写 {_cut(meant, 60)}？"
    return [Problem(where, "additionalProperties", f"没有参数 {where}{tail}")]


def _rule_additional(rest, schema, place):
    known = list(_of(schema, "properties", dict))
    names = frozenset(known)
    patterns = [_regex(pattern, place) for pattern in _of(schema, "patternProperties", dict)]
    searches = [search for search in patterns if search]
    test = place.child(rest, "additionalProperties", optional=True)

    def check(value, path):
        if value.keys() <= names:
            return ()
        others = [name for name in value if name not in names]
        others = [n for n in others if not any(search(n[:_MAX_MATCHED]) for search in searches)]
        if rest is False:
            unknown = others[: _MAX_PROBLEMS + 1]
            return [p for name in unknown for p in _unknown_name(name, known, value, path)]
        return _inside(((name, value[name], test) for name in others), path)

    return check


def _rule_names(wanted, schema, place):
    test = place.child(wanted, "propertyNames")

    def check(value, path):
        for name in value:
            for problem in test(name, (*path, name)):
                return _fault(path, "propertyNames", f"的键 {show(name, 60)} 不合要求：{problem}")
        return ()

    return check


def _rule_ref(pointer, schema, place):
    target = _target(pointer, place.root)
    if target is None or pointer in place.trail:
        reason = "找不到（只支持本模式之内的 #/…）" if target is None else "绕回了自己"
        place.note(f"$ref {show(pointer, 80)} {reason}，不予检查")
        return _accept
    refs = place.refs
    if pointer not in refs:
        refs[pointer] = _accept  # until it is compiled: it may well refer to itself
        refs[pointer] = place.beyond(target, pointer)

    def check(value, path):
        _spend(path, 10)
        return refs[pointer](value, path)

    return check


def _rule_all(schemas, schema, place):
    tests = [place.same(part, "allOf", number) for number, part in enumerate(schemas)]
    return lambda value, path: [problem for test in tests for problem in test(value, path)]


def _rule_not(unwanted, schema, place):
    test, words = place.same(unwanted, "not"), _expected(unwanted, place.root)
    says = f"不能{'是' if words else '符合'} {_listed(words or [show(unwanted)], ' 或 ')}"
    return lambda value, path: () if test(value, path) else _fault(path, "not", says, value)


def _rule_if(condition, schema, place):
    test = place.same(condition, "if")
    then, other = (place.same(schema.get(word, True), word) for word in ("then", "else"))
    return lambda value, path: (other if test(value, path) else then)(value, path)


class _Tag(NamedTuple):
    """The property that tells the branches of a union apart, such as `kind`."""

    name: str
    values: list  # as the branches write them
    branch: dict  # key of a value → number of its branch


def _find_tag(branches: list, root: object) -> _Tag | None:
    """Return the tag if each branch that takes objects fixes one property to values of its own."""
    takers = [n for n, branch in enumerate(branches) if "object" in _accepted(branch, root)]
    parts = {n: _of(_follow(branches[n], root), "properties", dict) for n in takers}
    for name in parts[takers[0]] if len(takers) > 1 else ():
        fixed = {n: part[name] for n, part in parts.items() if isinstance(part.get(name), dict)}
        values = [(value, n) for n, part in fixed.items() for value in _choices(part)]
        branch = {_equality_key(value): n for value, n in values}
        if len(branch) == len(values) and len(set(branch.values())) == len(takers):
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
    root, tag = place.root, _find_tag(branches, place.root)
    accepted = [_accepted(branch, root) for branch in branches]
    names = frozenset().union(*accepted)
    tests = [place.same(branch, keyword, number) for number, branch in enumerate(branches)]
    likely = {
        kind: [(n, test) for n, test in enumerate(tests) if accepted[n] & _NAMES_OF[kind]]
        for kind in _NAMES_OF
    }
    words = list(dict.fromkeys(word for branch in branches for word in _expected(branch, root)))
    says = f"应该是 {_listed(words or ['别的值'], ' 或 ')}"

    def check(value, path):
        if tag and type(value) is dict and tag.name in value:
            kind = value[tag.name]
            number = tag.branch.get(_equality_key(kind))
            if number is not None:
                return tests[number](value, path)
            return _fault((*path, tag.name), "const", _choose_from(tag.values), kind)
        failed, fits = [], []
        for number, test in likely[type(value)]:
            if found := test(value, path):
                failed.append(found)
            elif keyword == "anyOf":
                return ()
            else:
                fits.append(str(number + 1))
        if len(fits) > 1:
            both = f"只能符合一种写法，却同时符合第 {_listed(fits)} 种"
            return _fault(path, keyword, both, value)
        hint = _advice(value, names, place.optional)
        return () if fits else (
            _best_branch(failed, path, keyword) or _fault(path, keyword, says, value, hint=hint)
        )

    return check


# ── The table: a new keyword is a new row; problems are reported in the order of the rows ──

_ANY = tuple(_NAMES_OF)
_NUMBER = (int, float)
# keyword → (types of value it looks at, shape its own value must have, rule)
KEYWORDS = {
    "$ref": (_ANY, "text", _rule_ref),
    "enum": (_ANY, "options", _rule_enum),
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
    "anyOf": (_ANY, "options", lambda parts, _, place: _rule_union("anyOf", parts, place)),
    "oneOf": (_ANY, "options", lambda parts, _, place: _rule_union("oneOf", parts, place)),
    "not": (_ANY, "schema", _rule_not),
    "if": (_ANY, "schema", _rule_if),
} | {
    keyword: (kinds, shape, _rule_limit(keyword, holds, says))
    for keyword, kinds, shape, holds, says in [
        # In the wording: {0} the limit, {1} the length of the value, {2} the value.
        ("minimum", _NUMBER, "number", operator.ge, "不能小于 {0}，收到的是 {2}"),
        ("maximum", _NUMBER, "number", operator.le, "不能大于 {0}，收到的是 {2}"),
        ("exclusiveMinimum", _NUMBER, "number", operator.gt, "必须大于 {0}，收到的是 {2}"),
        ("exclusiveMaximum", _NUMBER, "number", operator.lt, "必须小于 {0}，收到的是 {2}"),
        ("multipleOf", _NUMBER, "positive", _is_multiple, "必须是 {0} 的倍数，收到的是 {2}"),
    ]
    + [
        row
        for noun, kind, unit in [
            ("Length", (str,), "个字符"), ("Items", (list,), "个元素"), ("Properties", (dict,), "个键"),
        ]
        for row in [
            (f"min{noun}", kind, "count", lambda value, least: len(value) >= least, f"至少要有 {{0}} {unit}，收到的是 {{2}}"),
            (f"max{noun}", kind, "count", lambda value, most: len(value) <= most, f"最多 {{0}} {unit}，收到的有 {{1}} 个：{{2}}"),
        ]
    ]
}
# Of JSON Schema, but not honoured here: said at registration. `type`, `nullable`, `then` and `else`
# have no row of their own; any further word ("optional") is an annotation by the standard.
_UNSUPPORTED = (
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
    "options": lambda value: isinstance(value, list) and value != [],
    "names": _are_names,
    "schema": lambda value: isinstance(value, (dict, bool)),
    "items": lambda value: isinstance(value, (dict, bool, list)),
    "map": lambda value: isinstance(value, dict) and _are_names(list(value)),
    "names map": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
}


# ── Schema → check ──


class _Place(NamedTuple):
    """A place in the schema being compiled; root, notes and refs are the same for all places."""

    root: object
    notes: list[str]
    refs: dict[str, Callable]  # pointer → check
    where: str = "#"  # JSON pointer
    trail: frozenset[str] = frozenset("#")  # `$ref`s passed on the way to this same value
    optional: bool = False  # the value at this place may be left out

    def note(self, text: str) -> None:
        self.notes.append(_cut(f"{_cut(self.where, 120)}：{text}", 240))

    def child(self, schema: object, *steps: object, optional: bool = False) -> Callable:
        """Return the check for a part of the value."""
        where = "/".join([self.where, *map(str, steps)])
        return self._replace(where=where, trail=frozenset(), optional=optional).compile(schema)

    def same(self, schema: object, *steps: object) -> Callable:
        """Return the check of another schema for this same value."""
        return self._replace(where="/".join([self.where, *map(str, steps)])).compile(schema)

    def beyond(self, schema: object, pointer: str) -> Callable:
        """Return the check of the schema behind a `$ref`."""
        return self._replace(where=pointer, trail=self.trail | {pointer}).compile(schema)

    def compile(self, schema: object) -> Callable:
        """Return the check of one schema: its type, then the rules for that type."""
        if schema is False:
            return lambda value, path: _fault(path, "false", "不允许出现，请去掉")
        if not isinstance(schema, dict):
            if schema is not True:
                self.note(f"模式应该是一个对象，现在是 {show(schema, 40)}，不予检查")
            return _accept
        names, refuse = self.types(schema)
        classes, whole = frozenset(c for name in names for c in _CLASSES[name]), "integer" in names
        rules = self.rules(schema)

        def check(value, path):
            kind = type(value)
            if kind not in classes and not (whole and kind is float and value.is_integer()):
                return refuse(value, path)
            found = ()
            for rule in rules[kind]:
                if problems := rule(value, path):
                    found = [*found, *problems]
            return found

        return check

    def types(self, schema: dict) -> tuple[list[str], Callable]:
        """Return the names of the types that a schema allows, and how it refuses a value."""
        names, unknown = _stated_types(schema)
        if unknown or schema.get("type") == []:
            self.note(f"不认识的类型 {show(schema['type'], 60)}，不检查类型")
        names, choices = names or list(_CLASSES), _choices(schema)
        says = f"应该是 {_listed(names, ' 或 ')}" + (f"，{_choose_from(choices)}" if choices else "")
        optional = self.optional
        return names, lambda value, path: _fault(
            path, "type", says, value, hint=_advice(value, names, optional)
        )

    def rules(self, schema: dict) -> dict[type, list[Callable]]:
        """Return, for each type of value, the checks of the keywords that look at it."""
        rules = {kind: [] for kind in _ANY}
        for keyword, (kinds, shape, rule) in KEYWORDS.items():
            if keyword not in schema:
                continue
            own = schema[keyword]
            if not _SHAPES[shape](own):
                self.note(f"关键字 {keyword} 的值 {show(own, 40)} 不合规定，不予检查")
                continue
            check = rule(own, schema, self)
            for kind in kinds if check is not _accept else ():
                rules[kind].append(check)
        for keyword in _UNSUPPORTED:
            if keyword in schema:
                self.note(f"不支持关键字 {keyword}，不予检查")
        if schema.get("nullable") is True:
            rules[type(None)] = []
        return rules


class SchemaRules(NamedTuple):
    """A schema made ready for calls: `rules(args)` returns every problem, [] when all is well.

    `notes` tell the programmer which keywords, types and references are not checked.
    """

    check: Callable
    notes: tuple[str, ...]

    def __call__(self, args: object) -> list[Problem]:
        path = ([_MAX_WORK],)
        if type(args) is not dict:
            return _fault(path, "type", "应该是一个 JSON 对象（object）", args)
        try:
            strange = _not_json(args, path)
            if any(problem.keyword == "json" for problem in strange):
                return strange[:_MAX_PROBLEMS]
            found = self.check(args, path)
        except RecursionError:
            return _fault(path, "depth", f"嵌套超过 {_MAX_DEPTH} 层或者太大，请改成较小的结构")
        places = {problem.path for problem in strange}
        found = [problem for problem in found if problem.path not in places] + strange
        if len(found) > _MAX_PROBLEMS:
            found[_MAX_PROBLEMS - 1 :] = [Problem("", "more", "此外还有别的问题，请先改正以上各处")]
        return found


def _compiled(schema: object) -> SchemaRules:
    place = _Place(schema, [], {})
    try:
        return SchemaRules(place.compile(schema), tuple(dict.fromkeys(place.notes[:50])))
    except RecursionError:
        return SchemaRules(_accept, ("#：模式嵌套太深，不予检查",))


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
        branches = _branches(schema)
        tag = _find_tag(branches, root) if isinstance(value, dict) else None
        if tag and (number := tag.branch.get(_equality_key(value.get(tag.name)))) is not None:
            branches = [branches[number]]
        kinds = _NAMES_OF[type(value)]
        branches = [branch for branch in branches if kinds & _accepted(branch, root)]
        if len(branches) != 1:
            break
        schema = branches[0]
    return _follow(schema, root)


class _Mender(NamedTuple):
    """Mends one set of arguments under a root schema; `repairs` gets a sentence for each repair."""

    root: object
    repairs: list[str]

    def value(self, value: object, schema: object, path: tuple) -> object:
        mended = _lossless(value, _accepted(schema, self.root))
        if mended is not value:
            says = f"参数 {_where(path)} 由 {show(value)} 改成了 {show(mended)}"
            self.repairs.append(_cut(says))
        mend = {dict: self.object, list: self.array}.get(type(mended))
        return mend(mended, _body(mended, schema, self.root), path) if mend else mended

    def object(self, value: dict, body: dict, path: tuple) -> dict:
        parts, required = _of(body, "properties", dict), _of(body, "required", list)
        mended = {}
        for name, item in value.items():
            here, part = (*path, name), parts.get(name, body.get("additionalProperties"))
            optional = name in parts and name not in required
            if item is None and optional and "null" not in _accepted(part, self.root):
                self.repairs.append(f"参数 {_where(here)} 是 null，按没有传处理")
            else:
                mended[name] = self.value(item, part, here)
        return mended

    def array(self, value: list, body: dict, path: tuple) -> list:
        schemas = itertools.chain(_of(body, "prefixItems", list), itertools.repeat(body.get("items")))
        return [self.value(item, part, (*path, n)) for n, item, part in zip(itertools.count(), value, schemas)]


def repair_arguments(args: object, schema: dict | bool) -> tuple[object, list[str]]:
    """Return mended arguments and one sentence for each repair; `args` itself is never changed.

    Mends "4096" → 4096, "true" → true and a quoted array or object where the schema allows no
    string, 4096.0 → 4096 where it wants an integer, and leaves out null where a parameter is
    optional and cannot be null. Never: true ↔ 1, "yes", "8k", 5.5 → 5, x → [x], 5 → "5".

    >>> repair_arguments({"k": "5"}, {"type": "object", "properties": {"k": {"type": "integer"}}})
    ({'k': 5}, ['参数 k 由 "5" 改成了 5'])
    """
    path, mender = ([_MAX_WORK],), _Mender(schema, [])
    try:
        if type(args) is not dict or _not_json(args, path):
            return args, []
        return mender.object(args, _body(args, schema, schema), path), mender.repairs
    except RecursionError:
        return args, []


# ── The two questions: are these arguments right, is this schema sound ──


def validate_arguments(args: object, schema: dict | bool, *, coerce: bool = False) -> list[Problem]:
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
    rooted = _stated_types(schema)[0] == ["object"]
    notes = [] if rooted else ['#：参数的模式应该写明 "type": "object"']
    return notes + list(compile_schema(schema).notes)


def explain(problems: list[Problem]) -> str:
    """Return the text a model reads: one line for one problem, else a numbered list; "" for none.

    >>> print(explain([Problem("city", "required", "缺少必填参数 city")]))
    缺少必填参数 city。请改正后重新调用。
    """
    if len(problems) < 2:
        return "".join(f"{problem}。请改正后重新调用。" for problem in problems).replace("？。", "？")
    lines, room = [f"参数有 {len(problems)} 处问题："], 1_200
    for number, problem in enumerate(problems, 1):
        room -= len(str(problem))
        if room < 0:
            lines.append(f"……另有 {len(problems) - number + 1} 处")
            break
        lines.append(f"{number}. {problem}")
    return "\n".join([*lines, "请全部改正后重新调用。"])
