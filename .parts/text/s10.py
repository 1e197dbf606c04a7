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


class TextParse(NamedTuple):
    """A reply taken apart: what is left to show, and the calls in the order they were written."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    format: str = ""  # the row of TEXT_FORMATS that read the first call
    reasoning: str = ""


class _Block(NamedTuple):
    """What a reader found: where it ends, and the calls in it."""

    end: int
    calls: list[ToolCall]


class _Reading:
    """What the readers of one reply share: the tools, and how often a long look led nowhere."""

    def __init__(self, tools: Iterable[dict] | None):
        plain = [tool.get("function", tool) for tool in tools or ()]
        self.schemas = {tool["name"]: tool.get("parameters") or {} for tool in plain}
        self.any_tool = tools is None
        self.bare = False  # in an answer without markers only exact calls count
        self.misses = 0

    def properties(self, name: str) -> dict:
        """The parameters of a tool; {} for one that is not known."""
        return self.schemas.get(name, {}).get("properties") or {}

    def fits(self, call: ToolCall) -> bool:
        """True when the call names a tool on offer and uses only parameters it has."""
        known = call.name in self.schemas and isinstance(call.arguments, dict)
        return known and call.arguments.keys() <= self.properties(call.name).keys()


def _match(pattern: str, text: str, pos: int = 0) -> re.Match | None:
    return re.compile(pattern).match(text, pos)  # re keeps what it has compiled


def _search(pattern: str, text: str, pos: int = 0) -> re.Match | None:
    return re.compile(pattern).search(text, pos)


def _skip(text: str, pos: int = 0) -> int:
    """The position behind blanks and separators."""
    return _match(r"[\s;,]*", text, pos).end()


# --- one call, however it is spelled ---


def clean_name(name: str) -> str:
    """The tool's name without what templates leak into it.

    >>> clean_name(" functions.search_notes<|channel|>commentary")
    'search_notes'
    """
    return name.split("<|")[0].strip(" \t\r\n\"'`").removeprefix("functions.")


def _new_call(reading: _Reading, name: str, arguments: object, *, id: object = "") -> ToolCall:
    """A call with its arguments as a dict, or as the model's own text where that is no object."""
    with contextlib.suppress(ArgumentsError):
        arguments = parse_arguments(arguments)
    properties = reading.properties(name).keys()
    match arguments:  # DeepSeek V3.2 may wrap them once more: {"input": "{…}"}
        case {"arguments": inner, **rest} | {"input": inner, **rest} if properties and not rest:
            with contextlib.suppress(ArgumentsError):
                inner = parse_arguments(inner)
                arguments = inner if inner.keys() <= properties else arguments
        case dict() | str():
            pass
        case _:
            arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id if isinstance(id, str) else "", name, arguments)


def _call_from(entry: object, reading: _Reading) -> ToolCall | None:
    """The call that a JSON object spells under any of the known keys; None when it spells none."""
    if not isinstance(entry, dict) or (reading.bare and not entry.keys() <= _CALL_KEYS):
        return None
    if isinstance(inner := entry.get("function"), dict):
        entry = {**entry, **inner}
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
    try:
        end = _DECODER.raw_decode(text, pos)[1]
        return _load_json(text[pos:end]), end  # §3 also refuses endless nesting and half characters
    except (ValueError, RecursionError):
        pass
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
        named = start.groupdict()
        found = _json_at(text, start.end(), reading)
        stop = _match(tail, text, found[1] if found else start.end())
        if not found and named and stop and stop[0].strip():
            found = {}, start.end()
        if not found or not stop:
            return None
        if not named:
            calls = _calls_from(found[0], reading)
        elif isinstance(found[0], dict):
            calls = [_new_call(reading, clean_name(start["name"]), found[0], id=named.get("id"))]
        else:
            calls = []
        return _Block(stop.end(), calls) if calls else None

    return read


_read_calls = _json_reader()
_kimi_json = _json_reader(
    r"<\|tool_call_begin\|>\s*(?P<name>(?P<id>[^\s<]{1,200}))\s*<\|tool_call_argument_begin\|>\s*",
    r"\s*(?:<\|tool_call_end\|>)?",
)


def _read_kimi(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Kimi's call: the id names the tool, or only counts and the arguments tell which it is."""
    if not (block := _kimi_json(text, pos, reading)):
        return None
    (call,) = block.calls
    name = re.sub(r":\d+\Z", "", call.name)
    if name.isdigit():
        fitting = [tool for tool in reading.schemas if reading.fits(call._replace(name=tool))]
        name = fitting[0] if len(fitting) == 1 and call.arguments else ""
    elif name == call.name and name not in reading.schemas:
        return None  # an id without a counter
    return _Block(block.end, [call._replace(name=name)]) if name else None


# --- readers: tagged parameters, each value as raw text ---


def _loose(raw: str) -> object:
    """The JSON value that the text spells, or the text."""
    try:
        return _load_json(raw)
    except ValueError:
        return raw


class _Tags(NamedTuple):
    """The tags of a family; group 1 of `call` and `key` is a name, group 2 of `key` DSML's kind."""

    call: str
    key: str
    value_end: str
    call_end: str
    untyped: Callable[[str], object] = str  # for a parameter whose type is not known


_XML = _Tags(
    r'\s*<(?:｜DSML｜)?(?:function=|invoke name=")([^"<>\n]{1,200})"?>',
    r'\s*<(?:｜DSML｜)?parameter(?:=| name=")([^"<>\n]{1,200})"?(?: string="(true|false)")?>',
    r"</(?:｜DSML｜)?parameter>|(?=<(?:｜DSML｜)?parameter\b|</(?:｜DSML｜)?(?:function|invoke)>)",
    r"\s*</(?:｜DSML｜)?(?:function|invoke)>",
)
_GLM = _Tags(
    r"\s*([\w.-]{1,200})\s*(?=<arg_key>|</tool_call>)",
    r"\s*<arg_key>([^<]{1,200})</arg_key>\s*()<arg_value>",
    r"</arg_value>",
    r"\s*</tool_call>",
    _loose,
)


def _typed(tool: str, key: str, reading: _Reading, untyped: Callable, raw: str) -> object:
    """The value that tagged text spells by the tool's schema, or the text when it fits no type."""
    names = _accepted(reading.properties(tool).get(key), reading.schemas.get(tool))
    word = raw.strip()
    if names >= _ANYTHING:
        return untyped(raw)
    if "null" in names and word.lower() in ("null", "none"):
        return None
    if "boolean" in names and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if names <= {"string", "null"}:
        return raw
    found = _json_at(word, 0, reading) if names & {"object", "array"} else None
    value = found[0] if found and found[1] == len(word) else _unquoted(word, names)
    return raw if value is word else value


def _tag_reader(tags: _Tags) -> Callable:
    """A reader of <call><key>value<key>value</call>."""
    def read(text: str, pos: int, reading: _Reading) -> _Block | None:
        if not (start := _match(tags.call, text, pos)):
            return None
        name, end, raw, kinds = clean_name(start[1]), start.end(), {}, {}
        while opened := _match(tags.key, text, end):
            if not (stop := _search(tags.value_end, text, opened.end())):
                break
            raw[opened[1]] = text[opened.end():stop.start()]
            kinds[opened[1]] = {"true": str, "false": _loose}.get(opened[2])
            end = stop.end()
        if not (stop := _match(tags.call_end, text, end)):
            reading.misses += 1
            return None
        arguments = {}
        for word, value in raw.items():
            value = re.sub(r"\A\r?\n|\r?\n\Z", "", value)
            read_as = kinds[word] or functools.partial(_typed, name, word, reading, tags.untyped)
            arguments[word] = read_as(value)
        return _Block(stop.end(), [_new_call(reading, name, arguments)]) if name else None

    return read


# --- readers: Python-like calls, read as syntax and never evaluated ---

_WORDS = {"true": True, "false": False, "null": None, "none": None}


def _python_literal(node: ast.expr) -> object:
    """The JSON value of a Python literal. Raises ValueError for anything that would be computed."""
    match node:
        case ast.Constant(value=bool() | int() | str() | None as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
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
    keys = [*list(reading.properties(name))[:len(node.args)], *(k.arg for k in node.keywords)]
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


def _python_reader(closer: str, begins: str = "") -> Callable:
    """A reader of calls, or lists of calls, up to the closer or the end of the text."""

    def read(text: str, pos: int, reading: _Reading) -> _Block | None:
        if not text.startswith(begins, pos):
            return None
        end = text.find(closer, pos) if closer else -1
        end = len(text) if end < 0 else end
        nodes = _python_nodes(text[pos:end].strip())
        calls = [call for node in nodes if (call := _python_call(node, reading))]
        whole = all(isinstance(node, ast.Call) for node in nodes)
        if calls and whole:
            return _Block(end, calls)
        reading.misses += end > pos
        return None

    return read


# --- readers of one family each ---

_GEMMA_CALL = r"\s*call:\s*([\w.-]{1,200})\s*(?=\{)"
_GEMMA_TOKEN = (
    r'(?s)(<escape>|<\|"\|>)(?P<text>.*?)\1|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
    r"|(?<![\w.$-])(?P<key>[\w.$-]+)(?=\s*:)"
)


def _gemma_token(token: re.Match) -> str:
    word = token["text"] if token[1] else token["key"]
    return token[0] if word is None else json.dumps(word)


def _gemma_reader(closer: str) -> Callable:
    """A reader of call:name{key:<escape>text<escape>,other:5}: JSON with quotes of its own."""

    def read(text: str, pos: int, reading: _Reading) -> _Block | None:
        if not (start := _match(_GEMMA_CALL, text, pos)):
            return None
        end = text.find(closer, start.end())
        end = len(text) if end < 0 else end
        body = re.sub(_GEMMA_TOKEN, _gemma_token, text[start.end():end]).strip()
        found = _json_at(body, 0, reading)
        whole = found and found[1] == len(body)
        reading.misses += not whole
        return _Block(end, [_new_call(reading, start[1], found[0])]) if whole else None

    return read


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
    call = _new_call(reading, name, text[start.end():stop.start()].strip())
    whole = stop[0] or (call.arguments and isinstance(call.arguments, dict))
    reading.misses += not whole
    return _Block(stop.end(), [call]) if whole else None


def _without_fence(text: str) -> str:
    """What is inside the one code fence that is the whole text, or the text as it is."""
    if len(text) < 6 or not text.startswith("```") or text.find("```", 3) != len(text) - 3:
        return text
    return re.sub(r"\A[\w-]*\s", "", text[3:-3]).strip()


_REACT_CALL = (
    r"Action:[ \t]*[`\"']?([\w.-]{1,200})[`\"']?[ \t]*\r?\n\s*"
    r"Action Input:\s*(?:```(?:json)?\s*(?=\{))?"
)
_REACT_END = r"\n[ \t]*(?:Observation|Thought|Action|Final Answer):|\Z"
_INVENTED = r"\s*(?:```\s*)?(Observation:)?"


def _read_react(text: str, pos: int, reading: _Reading) -> _Block | None:
    """Action and Action Input; a bare text is the tool's one required parameter.

    What follows `Observation:` is the model's invention and belongs to the block.
    """
    start = _match(_REACT_CALL, text, pos)
    if not start or text[pos - 1:pos] not in ("", "\n"):
        return None
    name = clean_name(start[1])
    end = _search(_REACT_END, text, start.end() - 1).start()
    if found := _json_at(text, start.end(), reading):
        call, end = _new_call(reading, name, found[0]), found[1]
    else:
        body = text[start.end():end].strip()
        call = _new_call(reading, name, body)
        keys = reading.schemas.get(name, {}).get("required") or list(reading.properties(name))
        bare = isinstance(call.arguments, str)
        if (keys and not body) or (bare and (len(keys) > 1 or body.startswith(("{", "[", "`")))):
            return None  # nothing to run: cut off, or text for one of several parameters
        if bare and name in reading.schemas:
            raw = body[1:-1] if re.fullmatch(r'"[^"\\]*"', body) else body
            given = {key: _typed(name, key, reading, str, raw) for key in keys}
            call = call._replace(arguments=given)
    after = _match(_INVENTED, text, end)
    return _Block(len(text) if after[1] else after.end(), [call])


# --- the table: a row per way of writing ---


class TextFormat(NamedTuple):
    """Markers and reader of one family; several markers of a kind are separated by blanks.

    opens stand before one or more calls, begins are part of a call, closes may follow; a row
    without the first two is bare. known: the marker is also an ordinary word, and believed only for
    tools on offer.
    """

    read: Callable[[str, int, _Reading], _Block | None]
    opens: str = ""
    closes: str = ""
    begins: str = ""
    known: bool = False


TEXT_FORMATS = {
    # Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 3.1 and 4, xLAM
    "hermes": TextFormat(_read_calls, "<tool_call>", "</tool_call>"),
    # Qwen3-Coder, Qwen3.5, Nemotron 3; the outer tag is often missing behind Ollama
    "qwen3_coder": TextFormat(_tag_reader(_XML), "<tool_call>", "</tool_call>"),
    "qwen3_coder_bare": TextFormat(
        _tag_reader(_XML), closes="</tool_call>", begins="<function=", known=True,
    ),
    # GLM-4.5, 4.6, 4.7
    "glm4_5": TextFormat(_tag_reader(_GLM), "<tool_call>"),
    # Functionary 3.1, Llama 3 behind Groq (which loses a `>`); Functionary 3.2
    "functionary": TextFormat(
        _json_reader(r"<function=(?P<name>[^<>{\s]{1,200})>?\s*", r"\s*</function>"),
        begins="<function=", known=True,
    ),
    "functionary_3_2": TextFormat(
        _json_reader(r">>>(?P<name>[\w.-]{1,200})\r?\n\s*"), begins=">>>", known=True,
    ),
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
    "llama3_built_in": TextFormat(_python_reader("\n"), "<|python_tag|>", known=True),
    # DeepSeek V3-0324, R1-0528 (with the word function and a fence), V3.1 (without)
    "deepseek": TextFormat(
        _json_reader(
            r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]{1,200})\s*"
            r"(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?\s*)?",
            r"\s*(?:```\s*)?<｜tool▁call▁end｜>",
        ),
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", begins="<｜tool▁call▁begin｜>",
    ),
    "deepseek_v3_2": TextFormat(
        _tag_reader(_XML), "<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
    ),
    "kimi_k2": TextFormat(
        _read_kimi, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        begins="<|tool_call_begin|>",
    ),
    # Granite 3.0, 3.2, 3.3 (always a list), 20B-FC
    "granite3": TextFormat(_json_reader(r"(?=\[)"), "<|tool_call|>"),
    "granite_20b": TextFormat(_read_calls, "<function_call>", "</function_call>"),
    # Phi-4-mini, Firefunction v2
    "phi4": TextFormat(_json_reader(r"functools(?=\[)"), begins="functools["),
    # Command R7B and A; R and R+ of 2024
    "command_a": TextFormat(_read_calls, "<|START_ACTION|>", "<|END_ACTION|>"),
    "command_r": TextFormat(
        _json_reader(r"Action:\s*```(?:json)?\s*(?=\[)", r"\s*```"), begins="Action:", known=True,
    ),
    "react": TextFormat(_read_react, begins="Action:", known=True),
    "internlm": TextFormat(
        _read_calls, "<|action_start|> <|plugin|>", "<|action_end|>", known=True,
    ),
    # Jamba (a list), MiniMax M1 (one object per line); MiniMax M2, whose outer tag may be missing
    "jamba": TextFormat(_read_calls, "<tool_calls>", "</tool_calls>"),
    "minimax_m2": TextFormat(_tag_reader(_XML), "<minimax:tool_call>", "</minimax:tool_call>"),
    "invoke": TextFormat(
        _tag_reader(_XML), "<function_calls>", "</function_calls> </minimax:tool_call>",
        begins="<invoke", known=True,
    ),
    # FunctionGemma; Gemma 4; Gemma 3 and CodeGemma
    "functiongemma": TextFormat(
        _gemma_reader("<end_function_call>"), "<start_function_call>", "<end_function_call>",
    ),
    "gemma4": TextFormat(_gemma_reader("<tool_call|>"), "<|tool_call>", "<tool_call|>"),
    "gemma3": TextFormat(_python_reader("```"), "```tool_code", "```", known=True),
    "gpt_oss": TextFormat(_read_harmony, begins="<|start|>assistant <|channel|> to=functions."),
    "llama4": TextFormat(_python_reader("<|python_end|>"), "<|python_start|>", "<|python_end|>"),
    # LFM2, LFM2.5; Olmo 3 (one call per line)
    "lfm2": TextFormat(
        _python_reader("<|tool_call_end|>"), "<|tool_call_start|>", "<|tool_call_end|>",
    ),
    "olmo3": TextFormat(
        _python_reader("</function_calls>"), "<function_calls>", "</function_calls>",
    ),
    # Without a marker: Llama 3, xLAM and any small model; Llama 3.2 1B and 3B, ToolACE; GLM-4-9B
    "json": TextFormat(_read_calls, closes="] </tool_call>"),
    "pythonic": TextFormat(_python_reader("", "[")),
    "glm4": TextFormat(_json_reader(r"(?P<name>[\w.-]{1,200})[ \t]*\r?\n\s*")),
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

_ROWS: dict[str, list[str]] = {}
for _name, _row in TEXT_FORMATS.items():
    for _marker in f"{_row.opens} {_row.begins}".split():
        _ROWS.setdefault(_marker, []).append(_name)
_MARKER = _either((*_ROWS, *_LONE, "```"))


def _read_block(row: TextFormat, text: str, pos: int, reading: _Reading) -> _Block | None:
    """All calls of one block that starts at `pos`, with the markers around them."""
    end, calls = pos, []
    for opener in row.opens.split():
        if text.startswith(opener, end):
            end = _skip(text, end + len(opener))
    while block := row.read(text, _skip(text, end), reading):
        calls += block.calls
        end = block.end
    believed = reading.any_tool or not row.known or all(c.name in reading.schemas for c in calls)
    if not calls or not believed:
        return None
    after = _skip(text, end)
    closer = next((word for word in row.closes.split() if text.startswith(word, after)), "")
    return _Block(after + len(closer) if closer else end, calls)


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
        self.begin = pos
        return pos

    def leave(self, end: int | None = None) -> None:
        """Keep the text up to a call or the end, without the blanks around calls and frames."""
        piece = self.text[self.begin:end]
        piece = piece.lstrip() if self.begin else piece
        self.said.append(piece if end is None else piece.rstrip())

    def marker(self, marker: str, at: int) -> int:
        """Act on a marker; returns where to look on."""
        after = at + len(marker)
        if marker == "```":
            return max(after, self.text.find("```", after) + 3)
        if marker in _LONE:
            if self.thought:
                return after
            self.thought, self.said, self.calls = [self.text[:at].strip()], [], []
            return self.enter(after)
        for name in _ROWS[marker] if self.text[at - 1:at] != "`" else ():
            if block := _read_block(TEXT_FORMATS[name], self.text, at, self.reading):
                if self.keep_calls:
                    return block.end
                self.leave(at)
                self.format = self.format if self.calls else name
                self.calls += block.calls
                return self.enter(block.end)
        return after

    def parse(self) -> TextParse:
        """Walk to the end; the calls have no ids of ours yet."""
        look = self.enter(0)
        while found := _search(_MARKER, self.text, look):
            if self.reading.misses > MOST_MISSES:
                break
            look = self.marker(found[0], found.start())
        self.leave()
        text, thought = ("\n".join(filter(None, part)) for part in (self.said, self.thought))
        return TextParse(text, tuple(self.calls), self.format if self.calls else "", thought)


def _take_apart(text: str, tools: Iterable[dict] | None) -> TextParse:
    """The reply as text, calls and reasoning; the calls have no ids of ours yet."""
    reading = _Reading(tools)
    parts = _Scan(text, reading).parse()
    said = parts.text.strip()
    answer = _without_fence(said)
    if parts.calls or not answer:
        return parts
    if answer is not said and answer.startswith(("<", "[", ">")):
        inner = _Scan(answer, reading).parse()
        if inner.calls and not inner.text:
            return inner._replace(reasoning=parts.reasoning)
    reading.bare = True
    for name, row in TEXT_FORMATS.items():
        block = None if row.opens or row.begins else _read_block(row, answer, 0, reading)
        if block and block.end == len(answer) and all(map(reading.fits, block.calls)):
            return TextParse("", tuple(block.calls), name, parts.reasoning)
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
    text: str, tools: Iterable[dict] | None = None, *, used_ids: Iterable[str] = (),
) -> TextParse:
    """The calls a model wrote into its text, and the text that is left.

    `tools` are the definitions the model was shown ({"name", "description", "parameters"}); None
    means they are not known, and then only marked calls count. Text without a call comes back as it
    was; beside calls it comes without reasoning and markers.

    >>> parse_text_tool_calls('好。<tool_call>{"name": "now", "arguments": {}}</tool_call>')[:2]
    ('好。', (ToolCall(id='call00001', name='now', arguments={}, extra=None),))
    """
    parts = _take_apart(text, tools)
    return parts._replace(calls=with_ids(parts.calls, used_ids)) if parts.calls else TextParse(text)


def split_reasoning(text: str) -> tuple[str, str]:
    """(answer, reasoning) of a reply whose reasoning stands in its text; calls stay in the answer.

    >>> split_reasoning("2+3 是 5</think>答案是 5")
    ('答案是 5', '2+3 是 5')
    """
    parts = _Scan(text, _Reading(None), keep_calls=True).parse()
    return parts.text, parts.reasoning


# --- the same while it streams ---

_HELD = _either((*_ROWS, *_LONE))
_WHOLE_MARKERS = (*_ROWS, *_LONE, "<|END_THINKING|>", "<channel|>", "<|end|>", "<|start|>")
_BEGUN = _either({word[:n] for word in _WHOLE_MARKERS for n in range(1, len(word))})
_HELD_PART = rf"(?:{_BEGUN})\Z"
_LONGEST = max(map(len, _WHOLE_MARKERS))
_BARE = (
    r"\{\s*(?:\Z|[\"'{])|\[\s*(?:\Z|\{|[\w.]+\s*(?:\Z|\())"
    r"|[\w.-]+[ \t]*(?:\Z|\r?\n\s*(?:\Z|\{))"
)
_PERHAPS_BARE = rf"{_BARE}|`{{1,2}}\Z|```[\w-]*\s*(?:\Z|[<>]|{_BARE})"
_UNDECIDED = 256  # characters; what may still be bare JSON by then is held to the end


class TextStream:
    """Takes a reply in pieces and tells what may be shown: all that stands before a possible call.

    `feed` and `close` return (kind, piece) pairs, kind "text" or "reasoning". After `close`,
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
        self._closes = _HELD
        self._thought = False

    def feed(self, piece: str) -> list[tuple[str, str]]:
        """Take a piece; returns what may be shown now."""
        out: list[tuple[str, str]] = []
        self._whole.append(piece)
        if not self._pending and piece.isspace():
            self._blanks.append(piece)
            return out
        self._pending += piece
        steps = {"start": self._enter, "reasoning": self._think, "text": self._say}
        while self._kind in steps and steps[self._kind](out):
            pass
        self._pending = "" if self._kind == "held" else self._pending
        return out

    def close(self) -> list[tuple[str, str]]:
        """Returns what is left to show at the end of the reply."""
        self.parts = _take_apart("".join(self._whole), self._tools)
        shown = "".join(self._shown)
        left = self.parts.text[len(shown) if self.parts.text.startswith(shown) else 0:]
        thought = self._pending if self._kind == "reasoning" else ""
        return [pair for pair in (("reasoning", thought), ("text", left)) if pair[1]]

    def _enter(self, out: list) -> bool:
        """An answer begins: with a frame, with what may be a bare call, or as text?"""
        head = self._pending.lstrip()
        if frame := _match(_FRAME, head):
            self._closes, holds = _FRAMES[frame[0]]
            self._go_on("reasoning" if holds == "reasoning" else "held", head[frame.end():])
            return True
        half_a_frame = any(word.startswith(head) for word in _FRAMES)
        if not head or half_a_frame or _match(_PERHAPS_BARE, head):
            self._kind = "start" if len(head) < _UNDECIDED else "held"
            return False
        self._kind = "text"
        if self._thought:
            self._go_on("text", head)
        return True

    def _go_on(self, kind: str, pending: str) -> None:
        """What came before is reasoning; the blanks after it are nobody's."""
        self._kind, self._pending, self._thought = kind, pending, True
        self._blanks.clear()

    def _think(self, out: list) -> bool:
        if found := _search(self._closes, self._pending):
            rest = self._pending[found.end():]
            self._emit(found.start(), out)
            self._go_on("start", rest)
            return True
        self._emit(self._safe(), out)
        return False

    def _say(self, out: list) -> bool:
        found = _search(_HELD, self._pending)
        while found and found[0] in _LONE and self._thought:
            found = _search(_HELD, self._pending, found.end())
        if found and found[0] in _LONE:  # all of it was reasoning
            self._shown.clear()
            self._go_on("start", self._pending[found.end():])
            return True
        self._emit(found.start() if found else self._safe(), out)
        self._kind = "held" if found else "text"
        return False

    def _safe(self) -> int:
        """How much of what is pending cannot be the beginning of a marker."""
        part = _search(_HELD_PART, self._pending, max(0, len(self._pending) - _LONGEST))
        return part.start() if part else len(self._pending)

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
