# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 11  流式 Streams      uses §1, §9, §10 · pure
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


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(mapping: dict, *keys: str) -> int:
    """The first whole number under one of the keys, else 0."""
    found = (mapping[key] for key in keys if type(mapping.get(key)) is int)
    return max(0, next(found, 0))


def _parsed(arguments: object) -> object:
    """The arguments as an object, or what the model wrote when they are none."""
    try:
        return parse_arguments(arguments)
    except ArgumentsError:
        return arguments


def _broken(words: str, turn: Turn) -> BackendError:
    error = BackendError(words)
    error.turn = turn
    return error


class _Fold:
    """Text, reasoning, usage and ending of a reply while it arrives.

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

    def _calls(self) -> list[ToolCall]:
        raise NotImplementedError

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        raise NotImplementedError

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
        complete = turn.calls and all(isinstance(_parsed(c.arguments), dict) for c in turn.calls)
        if not self.done and not complete:
            raise _broken("回答没有结束，连接就断了", turn)
        return turn

    def _check(self, chunk: dict) -> None:
        """Raise BackendError when the chunk is an error instead of a piece of the reply."""
        error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)
        if error:
            words = _text(_dict(error).get("message")) or _text(error) or show(error, 300)
            code = _dict(error).get("code") or _dict(error).get("type")
            raise _broken(f"模型服务报错：{words}" + (f"（{code}）" if code else ""), self._assembled())


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
            self.finish, self.done = "tool_calls" if reason == "function_call" else reason, True
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


def turn_from_openai(reply: dict, used_ids: Iterable[str] = ()) -> Turn:
    """The Turn of a reply that was not streamed. Raises BackendError when it is an error."""
    fold = OpenAIFold(used_ids)
    fold.feed(reply)
    return fold.turn()


# --- Anthropic Messages ---

_STOP_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
}
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
            self.finish, self.done = _STOP_REASONS.get(reason, reason), True

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


def turn_from_anthropic(reply: dict, used_ids: Iterable[str] = ()) -> Turn:
    """The Turn of a message that was not streamed. Raises BackendError when it is an error."""
    fold = AnthropicFold(used_ids)
    fold.feed(reply)
    return fold.turn()
