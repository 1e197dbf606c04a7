# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 9  消息格式 Wire formats      uses §3, §4 · pure
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


def _tool_message(id: str, text: str, **rest) -> dict:
    return {"role": "tool", "tool_call_id": id, "content": text, **rest}


def _numbered(number: int) -> str:
    """An id of nine letters and digits: every known validator takes it (Mistral's is strictest)."""
    return f"call{number:05}"


def _tidy_assistant(message: dict, number: int) -> dict:
    """The message with `content`, and calls with an id and arguments as JSON text of an object."""
    result = {key: value for key, value in message.items() if value not in (None, [])}
    result["content"] = content_text(message.get("content"))
    if calls := message.get("tool_calls"):
        result["tool_calls"] = []
        for number, call in enumerate(calls, number):
            function = call.get("function") or {}
            text = _object_text(function.get("arguments"))
            tidy = _openai_call(call.get("id") or _numbered(number), "", text)
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


def to_hf_messages(messages: list[dict]) -> list[dict]:
    """Messages for a transformers chat template: arguments as an object, results with their name.

    `tidy_history` reads them back.
    """
    result, names = [], {}
    for message in tidy_history(messages):
        message = {key: value for key, value in message.items() if key not in OWN_KEYS}
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
            bad = {"is_error": True} if answer.get("is_error") else {}
            text = content_text(answer.get("content"))
            result.append(_tool_message(answer["tool_use_id"], text, **bad))
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
            bad = {"is_error": True} if "error" in response else {}
            result.append(_tool_message(next(waiting)["id"], text, **bad))
        if rest := [part for part in parts if "functionResponse" not in part]:
            _add_user(result, content_text(rest))
    return result
