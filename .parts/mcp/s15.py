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
    "annotations": "2025-03-26",
    "completions": "2025-03-26",
    "message": "2025-03-26",
    "title": "2025-06-18",
    "outputSchema": "2025-06-18",
    "structuredContent": "2025-06-18",
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
        self.token = self.params.get("_meta", {}).get("progressToken")
        self.cancelled = False
        self._done, self._emit = -1.0, None

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
        if self.cancelled:
            raise ToolError("客户端已取消这次调用")
        if self.token is None or not self._done < done < math.inf:
            return
        self._done = done
        params = {"progressToken": self.token, "progress": done}
        if total is not None:
            params["total"] = total
        if message:
            params["message"] = message
        self.notify("notifications/progress", params)

    def run(self, emit: Callable[[dict], None]) -> None:
        """Do the work: emit what belongs to it and, unless cancelled or held open, the reply."""
        self._emit = emit
        reply = self._reply()
        if reply and self.server.open.pop(self.id, None) is self:  # pop: one of two threads gets it
            emit(reply)

    def _reply(self) -> dict | None:
        row = METHODS[self.method]
        before = _RUNNING.set(self)
        try:
            result = row.answer(self.server, self)
        except RpcError as error:
            return error_reply(self.id, error)
        except BaseException as error:  # whatever happens, a client must not wait for ever
            return error_reply(self.id, RpcError(INTERNAL_ERROR, f"服务器内部出错：{error_text(error)}"))
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

    cancelled = False  # as a whole; its requests are cancelled one by one

    def run(self, emit: Callable[[object], None]) -> None:
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


def _meta_of(message: object) -> dict:
    match message:
        case {"params": {"_meta": dict() as meta}}:
            return meta
    return {}


def _method_of(message: object) -> object:
    return message.get("method") if isinstance(message, dict) else None


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
        raise RpcError(INVALID_PARAMS, f"logLevel 只能是 {'、'.join(LOG_LEVELS)}，收到的是 {show(level)}")
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
        self.info = {"name": SERVER_NAME, "title": SERVER_TITLE, "version": VERSION}
        self.negotiated = LATEST_LEGACY  # what messages without an envelope mean, until agreed
        self.open: dict[int | str, Request] = {}  # requests without a reply so far, by id

    def handle(self, message: object) -> list:
        """All messages that answer this one; slow tools are waited for."""
        started = self.begin(message)
        if isinstance(started, list):
            return started
        messages: list = []
        started.run(messages.append)
        return messages

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
            raise RpcError(INVALID_REQUEST, f"id {show(message['id'])} 的请求还没有结束，请换一个 id")
        request = Request(self, message, revision)
        self.open[request.id] = request
        if row.slow:
            return request
        messages: list[dict] = []
        request.run(messages.append)
        return messages

    def _revision_of(self, message: dict) -> Revision:
        """What this request alone says: the modern revision if it has an envelope, else legacy."""
        params = message.get("params")
        if not isinstance(params, dict | None):
            raise RpcError(INVALID_PARAMS, f"params 应该是对象，收到的是 {show(params)}")
        meta = (params or {}).get("_meta", {})
        if not isinstance(meta, dict):
            raise RpcError(INVALID_PARAMS, f"params._meta 应该是对象，收到的是 {show(meta)}")
        if type(meta.get("progressToken", "")) not in (str, int):
            raise RpcError(INVALID_PARAMS, "params._meta.progressToken 应该是字符串或整数")
        return _enveloped_revision(meta) if ENVELOPE_KEYS & meta.keys() else self.negotiated

    def _begin_batch(self, messages: list) -> list[dict] | Batch:
        enveloped = any(ENVELOPE_KEYS & _meta_of(message).keys() for message in messages)
        if not self.negotiated.batches or enveloped:
            text = "只有 2025-03-26 版协议可以把几条消息放进一个数组，请一行发一条"
            return [error_reply(None, RpcError(INVALID_REQUEST, text))]
        if not messages:
            return [error_reply(None, RpcError(INVALID_REQUEST, "数组里没有消息"))]
        return Batch([self._begin_in_batch(message) for message in messages])

    def _begin_in_batch(self, message: object) -> list[dict] | Request:
        if isinstance(message, list) or _method_of(message) == "initialize":
            error = RpcError(INVALID_REQUEST, "这条消息不能放在数组里")
            return [error_reply(readable_id(message), error)]
        return self.begin(message)

    def _notice(self, message: dict) -> None:
        """Take a notification. Only one matters here: the rest needs no action."""
        if message["method"] != "notifications/cancelled":
            return
        match message.get("params"):
            case {"requestId": int() | str() as id} if not isinstance(id, bool):
                if request := self.open.pop(id, None):
                    request.cancelled = True

    @functools.cached_property
    def sections(self) -> dict[str, Note]:
        """Sections by what stands for {note} in their URI: file name, or id of the section."""
        try:
            notes = self.notes.sections if self.notes else []
        except ToolError:  # no folder, or nothing in it: then there are no resources
            notes = []
        return {note.section: note for note in notes} | {
            note.name: note for note in notes if note.level == 0
        }


# ── Opening ──


def _capabilities(server: McpServer, revision: Revision) -> dict:
    """What is really offered: no lists that change, no subscriptions, no log messages."""
    offered = {"tools": {}}
    if server.notes:
        offered |= {"resources": {}, "prompts": {}, "completions": {}}
    return known_fields(offered, revision)


@method("initialize", modern=False)
def _initialize(server: McpServer, request: Request) -> dict:
    """Agree on a revision: the one asked for if it is a legacy one, else our newest legacy one."""
    revision = REVISIONS.get(request.param("protocolVersion", str), LATEST_LEGACY)
    server.negotiated = LATEST_LEGACY if revision.modern else revision
    return {
        "protocolVersion": server.negotiated.name,
        "capabilities": _capabilities(server, server.negotiated),
        "serverInfo": known_fields(server.info, server.negotiated),
        "instructions": INSTRUCTIONS,
    }


@method("server/discover", legacy=False, cacheable=True)
def _discover(server: McpServer, request: Request) -> dict:
    """All revisions, newest first: a client that shares only a legacy one can fall back to it."""
    return {
        "supportedVersions": list(REVISIONS),
        "capabilities": _capabilities(server, request.revision),
        "instructions": INSTRUCTIONS,
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


def _page(request: Request, key: str, items: Sequence[dict]) -> dict:
    """One page of a list. A cursor is opaque to clients; ours says which list goes on where."""
    size = request.server.page_items
    cursor = request.params.get("cursor")
    pages = {f"{request.method}@{start}": start for start in range(size, len(items), size)}
    if cursor is not None and (not isinstance(cursor, str) or cursor not in pages):
        raise RpcError(INVALID_PARAMS, f"cursor 无效：{show(cursor)}，请原样传回 nextCursor，或不传")
    start = pages.get(cursor, 0)
    page = {key: [known_fields(item, request.revision) for item in items[start:start + size]]}
    if start + size < len(items):
        page["nextCursor"] = f"{request.method}@{start + size}"
    return page


@method("tools/list", cacheable=True)
def _list_tools(server: McpServer, request: Request) -> dict:
    return _page(request, "tools", [_listed_tool(tool) for tool in server.tools])


def _listed_tool(tool: Tool) -> dict:
    listed = to_mcp_tool(tool)
    return listed | {"_meta": {LIMIT_KEY: tool.characters}} if tool.characters else listed


# ── Calling a tool ──


def _checked(result: ToolResult, tool: Tool) -> ToolResult:
    """The result, or an error that says why it does not keep what the tool's outputSchema promises.

    Clients drop a result that breaks its schema, so the model would never learn what happened.
    """
    if tool.output is None or result.is_error:
        return result
    if problems := validate_arguments(result.value, tool.output):
        return ToolResult(f"工具 {tool.name} 的返回值不符合它声明的格式：{explain(problems)}", "failed")
    if len(result.text) < (tool.characters or MCP_RESULT_CHARACTERS):
        return result
    return ToolResult("结果太长，放不下完整的 JSON，请缩小范围再试", "failed")  # text was cut


def _links(server: McpServer, value: object) -> Iterator[dict]:
    """The sections that a search found, as links a host can open with resources/read."""
    match value:
        case {"hits": [*hits]}:
            for hit in hits:
                match hit:
                    case {"section": str() as name} if name in server.sections:
                        yield {"type": "resource_link", **_resource(name, server.sections[name])}


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
        if request.revision.name >= FIELDS_SINCE["structuredContent"]:  # links came with it
            answer["content"] += _links(server, result.value)
    return known_fields(answer, request.revision)


# ── Notes as resources ──

NOTE_URI = "notes://"
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def note_uri(name: str) -> str:
    """`notes://{note}` filled in as RFC 6570 asks.

    >>> note_uri("week1-day4"), note_uri("Week 1 §2")
    ('notes://week1-day4', 'notes://Week%201%20%C2%A72')
    """
    quoted = (chr(b) if b in _UNRESERVED else f"%{b:02X}" for b in name.encode("utf-8"))
    return NOTE_URI + "".join(quoted)


def _note_name(uri: str) -> str:
    raw = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]),
        uri.removeprefix(NOTE_URI).encode("utf-8", "replace"),
    )
    return raw.decode("utf-8", "replace")


def _resource(name: str, note: Note) -> dict:
    return {
        "uri": note_uri(name), "name": name, "title": note.title, "mimeType": "text/markdown",
    }


def _note_text(server: McpServer, note: Note) -> str:
    """The section with its subsections, as Markdown; of a file, all of it."""
    following = itertools.dropwhile(lambda other: other != note, server.notes.sections)
    next(following)
    parts = [f"# {note.section} {note.title}\n\n{note.text}"]
    for below in following:
        if below.level <= note.level:
            break
        parts.append(f"{'#' * below.level} {below.heading}\n\n{below.text}")
    return "\n\n".join(parts)


@method("resources/list", cacheable=True, slow=True)
def _list_resources(server: McpServer, request: Request) -> dict:
    """The files; their sections are found by searching, or through the template."""
    days = [
        _resource(name, note) for name, note in server.sections.items()
        if note.level == 0 and name == note.name
    ]
    return _page(request, "resources", days)


@method("resources/templates/list", cacheable=True)
def _list_templates(server: McpServer, request: Request) -> dict:
    template = {
        "uriTemplate": NOTE_URI + "{note}", "name": "note", "title": "讲义的一天或一节",
        "description": "note 是文件名或章节编号，例如 week1-day4 或 Week 1 Day 4 §1.4",
        "mimeType": "text/markdown",
    }
    return _page(request, "resourceTemplates", [template] if server.notes else [])


@method("resources/read", cacheable=True, slow=True)
def _read_resource(server: McpServer, request: Request) -> dict:
    """Looked up among the sections that were read; the URI never becomes a path."""
    uri = request.param("uri", str)
    note = server.sections.get(_note_name(uri)) if uri.startswith(NOTE_URI) else None
    if note is None:
        code = INVALID_PARAMS if request.revision.modern else RESOURCE_NOT_FOUND
        raise RpcError(code, f"没有资源 {show(uri)}", {"uri": uri})
    text = _note_text(server, note)
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}


# ── Prompts ──


class PromptArgument(NamedTuple):
    """One argument of a prompt; its values are completed from `choices(note)` of all sections."""

    name: str
    description: str
    choices: Callable[[Note], str]
    required: bool = True


class Prompt(NamedTuple):
    """A text that a person picks in the host. `write` makes its content blocks from arguments."""

    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]
    write: Callable[..., list[dict]]


def _text_block(text: str) -> dict:
    return {"type": "text", "text": text}


def _write_explain(server: McpServer, section: str) -> list[dict]:
    note = server.notes.find(section)
    resource = {
        "uri": note_uri(note.section), "mimeType": "text/markdown",
        "text": f"# {note.section} {note.title}\n\n{note.text}",
    }
    return [
        _text_block(
            f"请讲解讲义 {note.section}《{note.title}》，原文附后。先用两三句话说清它解决什么问题，"
            "再逐步讲，每个公式代入一个具体数字算一遍（用 calculator），最后指出一个容易误解的地方。",
        ),
        {"type": "resource", "resource": resource},
    ]


def _write_quiz(server: McpServer, topic: str, count: str = "5") -> list[dict]:
    if not (count.isdecimal() and 1 <= int(count) <= 20):
        raise ToolError(f"count 应该是 1 到 20 的整数，收到的是 {show(count)}")
    return [_text_block(
        f"请围绕“{topic}”考我 {count} 道题。先用 search_notes 和 read_note 找到讲义原文，只考讲义里有的内容；"
        "一次只出一道，等我回答后再判断对错、说明理由并写出章节编号，然后出下一道；最后总结我薄弱的地方。",
    )]


def _write_find(server: McpServer, topic: str) -> list[dict]:
    return [_text_block(
        f"“{topic}”在讲义的哪一节讲？请用 search_notes 查（没找到就换两三种说法再查），"
        "按先后列出相关章节的编号和标题，各用一句话说明讲了什么，并建议先读哪一节。",
    )]


def _title_of(note: Note) -> str:
    return note.title


_TOPIC = PromptArgument("topic", "知识点，例如 KV Cache", _title_of)
PROMPTS = {
    prompt.name: prompt
    for prompt in (
        Prompt(
            "explain_section", "讲解一节", "用具体数字讲解讲义中的一节，原文会附上",
            (PromptArgument("section", "章节编号，例如 Week 1 Day 4 §1.4", lambda note: note.section),),
            _write_explain,
        ),
        Prompt(
            "quiz_me", "考考我", "围绕一个知识点，一题一题地考",
            (_TOPIC, PromptArgument("count", "题数，1 到 20，默认 5", lambda note: "", False)),
            _write_quiz,
        ),
        Prompt("find_lesson", "在哪一节", "找出一个知识点在讲义的哪些章节", (_TOPIC,), _write_find),
    )
}


def _listed_prompt(prompt: Prompt) -> dict:
    arguments = [
        {"name": a.name, "description": a.description, "required": a.required}
        for a in prompt.arguments
    ]
    return {
        "name": prompt.name, "title": prompt.title, "description": prompt.description,
        "arguments": arguments,
    }


@method("prompts/list", cacheable=True)
def _list_prompts(server: McpServer, request: Request) -> dict:
    offered = PROMPTS.values() if server.notes else ()
    return _page(request, "prompts", [_listed_prompt(prompt) for prompt in offered])


def _known_prompt(server: McpServer, name: str) -> Prompt:
    if server.notes is None or name not in PROMPTS:
        raise RpcError(INVALID_PARAMS, f"没有提示词 {show(name)}，可用：{'、'.join(PROMPTS)}")
    return PROMPTS[name]


@method("prompts/get", slow=True)
def _get_prompt(server: McpServer, request: Request) -> dict:
    prompt = _known_prompt(server, request.param("name", str))
    given = request.param("arguments", dict, {})
    known = {argument.name: argument for argument in prompt.arguments}
    for name, argument in known.items():
        if argument.required and not given.get(name):
            raise RpcError(INVALID_PARAMS, f"提示词 {prompt.name} 缺少参数 {name}：{argument.description}")
    for name, value in given.items():
        if name not in known or not isinstance(value, str):
            raise RpcError(INVALID_PARAMS, f"提示词 {prompt.name} 的参数不对：{name} = {show(value)}")
    try:
        blocks = prompt.write(server, **given)
    except ToolError as error:  # no such section, or a bad number: a person can correct it
        raise RpcError(INVALID_PARAMS, str(error)) from None
    messages = [{"role": "user", "content": block} for block in blocks]
    return {"description": prompt.description, "messages": messages}


# ── Completion of arguments ──


def _completion_choices(server: McpServer, request: Request, name: str) -> list[str]:
    """All values for the argument `name` of the prompt or template that `ref` names."""
    match request.params.get("ref"):
        case {"type": "ref/prompt", "name": str() as prompt}:
            arguments = {a.name: a for a in _known_prompt(server, prompt).arguments}
            if name in arguments:
                choices = map(arguments[name].choices, server.sections.values())
                return list(dict.fromkeys(filter(None, choices)))
        case {"type": "ref/resource", "uri": str() as uri} if uri == NOTE_URI + "{note}":
            if name == "note":
                return sorted(server.sections, key=lambda key: " " in key)  # file names first
    raise RpcError(INVALID_PARAMS, f"没有可补全的参数 {show(name)}，请检查 ref 和 argument.name")


@method("completion/complete", slow=True)
def _complete(server: McpServer, request: Request) -> dict:
    """Choices that begin with what was typed, then those that contain it."""
    match request.params.get("argument"):
        case {"name": str() as name, "value": str() as typed}:
            choices = _completion_choices(server, request, name)
        case other:
            raise RpcError(INVALID_PARAMS, f"argument 应该有 name 和 value，收到的是 {show(other)}")
    typed = typed.casefold()
    found = [choice for choice in choices if typed in choice.casefold()]
    found.sort(key=lambda choice: not choice.casefold().startswith(typed))  # stable
    return {
        "completion": {
            "values": found[:COMPLETIONS], "total": len(found), "hasMore": len(found) > COMPLETIONS,
        },
    }
