# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 3  参数 Arguments      uses §1 · pure
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
_MAX_MATCHED = 5_000  # characters that a `pattern` or `format` is tried on
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


_TYPE_NAMES = {
    str: "string", int: "integer", float: "number", bool: "boolean",
    list: "array", dict: "object", type(None): "null",
}
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
    fenced = re.fullmatch(r"(?s)```[\w-]*\s(.*?)(?:```)?", text.strip())
    text = (fenced[1] if fenced else text).strip()
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
    if isinstance(value, str):
        value = value.strip().removeprefix("\ufeff").strip()
        value = _read_layer(value) if value else {}
    for _ in range(2):  # an object encoded as a string, once or twice
        if isinstance(value, str) and value.strip().startswith(("{", '"', "```")):
            value = _read_layer(value)
    if isinstance(value, dict):
        return value
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
    if not words or not _ALIASES.keys() >= set(words):
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


def _rule_pattern(search, value, path, node):
    text = _cut(node.schema["pattern"], 100)
    if len(value) > _MAX_MATCHED:
        return _fault(path, "pattern", f"超过 {_MAX_MATCHED} 个字符，无法核对正则 {text}")
    return () if search(value) else _fault(path, "pattern", f"要符合正则 {text}", value)


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
    "ipv6": (r"[\da-fA-F:.]+:[\da-fA-F:.]*", "2001:db8::1"),
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
        for part in named.get(step) or node.at(step):
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

# A repeat inside a repeat with nothing fixed between, such as (a+)+ or (\w+\s?)*: exponential.
_UNIT = r"(?:\\.|\[[^\]]*\]|[^()\\|])"
_MANY = r"(?:[+*]|\{\d+,\d*\})"
_EXPLOSIVE = rf"\((?:\?:)?{_UNIT}{_MANY}(?:{_UNIT}(?:{_MANY}|\?))*\){_MANY}"


def _regex(pattern: str) -> Callable[[str], object]:
    """Return the search function of a pattern; SchemaError if it cannot be used."""
    if len(pattern) > 2_000 or re.search(_EXPLOSIVE, pattern):
        raise SchemaError(f"正则 {show(pattern, 80)} 可能耗时过长，不予检查")
    try:
        return re.compile(pattern).search
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise SchemaError(f"正则 {show(pattern, 80)} 无法使用（{error}），不予检查") from None


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
        raise SchemaError(f"$ref {show(pointer, 80)} {reason}，不予检查")
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
    "pattern": (["string"], None, lambda own, *_: _regex(own)),
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
        (_regex(pattern), (node.part(schema, word, pattern),)) for pattern, schema in own.items()
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
            return self.note(f"关键字 {keyword} 的值 {show(own, 40)} 不合规定，不予检查")
        try:
            self.own[keyword] = make(own, keyword, self) if make else own
        except SchemaError as error:
            return self.note(str(error))
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

    def at(self, step: str | int) -> Sequence[SchemaRules]:
        """Return the nodes for the part of a value at a name or index."""
        own = self.own
        if type(step) is int:
            return own.get("prefixItems", ())[step : step + 1] or own.get("items", ())
        found = own["properties"].get(step, ()) if "properties" in own else ()
        for search, part in own.get("patternProperties", ()):
            if search(step[:_MAX_MATCHED]):
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
        part = next((part for body in bodies for part in body.at(step)), None)
        if item is None and step in optional and "null" not in part.takes:
            repairs.append(f"参数 {_where(path + (step,))} 是 null，按没有传处理")
        else:
            kept[step] = _mended(item, part, path + (step,), repairs) if part else item
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
