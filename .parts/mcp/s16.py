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


class ServerSilent(McpError):
    """No answer in time; the server may still live."""


class ServerGone(McpError):
    """The server has ended or closed its output."""


def answer_server(message: dict) -> dict | None:
    """The reply to a request of the server: pings are answered, anything else is not offered."""
    if message["method"] == "ping":
        return result_reply(message["id"], {})
    return error_reply(message["id"], RpcError(METHOD_NOT_FOUND, "这个客户端不提供任何能力"))


class McpClient:
    """A session with one server, in whichever era it speaks.

    `send(message, seconds)` delivers; it raises ServerSilent or ServerGone. `restart()`, if given,
    starts the server anew when it dies of the first question. With `revision` only that one is
    spoken; else the newest is tried first. `notices` says what had to be adapted.

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
        except ServerGone:
            if self._restart is None:
                raise
            self._restart()
            return False
        except McpError:
            return False
        if not isinstance(supported, list) or MODERN.name not in supported:
            return False
        meta = result.get("_meta")
        self._agreed(MODERN.name, result, meta.get(SERVER_KEY) if isinstance(meta, dict) else None)
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
        self.server = server if isinstance(server, dict) else {}
        self.capabilities = result.get("capabilities") or {}
        self.instructions = str(result.get("instructions") or "")

    # ── Asking ──

    def request(self, method: str, params: dict | None = None) -> dict:
        """The result of a request. Raises RpcError for an error reply, McpError for none at all."""
        return self._exchange(method, params, self.revision, self.seconds)

    def _exchange(self, method: str, params: dict | None, revision: str, seconds: float) -> dict:
        if revision == MODERN.name:
            envelope = {VERSION_KEY: revision, CAPABILITIES_KEY: {}, CLIENT_KEY: CLIENT_INFO}
            params = {**(params or {}), "_meta": {**(params or {}).get("_meta", {}), **envelope}}
        message = request_message(next(self._ids), method, params)
        try:
            reply = self._send(message, seconds)
        except ServerSilent:
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


def _result_of(reply: dict | None) -> dict:
    """The result in a reply. Raises RpcError for an error in it, McpError for anything else."""
    match reply:
        case {"error": {"code": int() as code, "message": str() as message, **rest}}:
            raise RpcError(code, message, rest.get("data"))
        case {"result": dict() as result} if result.get("resultType", "complete") == "complete":
            return result
    raise McpError(f"服务器的答复不合协议：{show(reply)}")


def _local_name(name: object, taken: ToolRegistry) -> str:
    """A name that hosts and models accept, made from whatever the server calls the tool."""
    base = re.sub(r"[^A-Za-z0-9_-]", "_", str(name))[:45] or "tool"
    names = itertools.chain([base], (f"{base[:41]}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _local_schema(schema: object) -> dict:
    """The server's schema where ours can check it, else as much of it as can be checked."""
    if not isinstance(schema, dict):
        return {"type": "object"}
    whole = {**schema, "type": "object"}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    outline = {
        "type": "object",
        "properties": {
            name: part if isinstance(part, dict) and not check_schema(part) else {}
            for name, part in properties.items()
        },
        "required": [n for n in schema.get("required") or () if isinstance(n, str)],
    }
    candidates = (whole, outline, {"type": "object"})
    return next(candidate for candidate in candidates if not check_schema(candidate))


_HINT_LABELS = (
    ("readOnlyHint", False, "read_only"),  # hint, its default by the specification, our label
    ("destructiveHint", True, "irreversible"),
    ("openWorldHint", True, "untrusted"),
)


def _labels(listed: dict) -> frozenset[str]:
    hints = listed.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    labels = {label for hint, default, label in _HINT_LABELS if hints.get(hint, default) is True}
    return frozenset(labels - {"irreversible"} if "read_only" in labels else labels)


def _remote_tool(client: McpClient, listed: dict, taken: ToolRegistry) -> Tool:
    """The tool for one entry of tools/list. What had to be changed is noted in client.notices."""
    remote = listed.get("name")
    name, schema = _local_name(remote, taken), _local_schema(listed.get("inputSchema"))
    if name != remote:
        client.notices.append(f"工具 {show(remote)} 在这里叫 {name}：模型和主机不接受原来的名字")
    if schema != listed.get("inputSchema"):
        client.notices.append(f"工具 {name} 的参数模式有这里不支持的写法，参数由服务器自己检查")
    meta = listed.get("_meta")
    limit = meta.get(LIMIT_KEY) if isinstance(meta, dict) else None
    description = str(listed.get("description") or listed.get("title") or f"远程工具 {name}")
    return Tool(
        name, cut(description, DESCRIPTION_LIMIT), schema,
        run=lambda arguments: _run_remote(client, remote, arguments),
        title=str(listed.get("title") or ""), labels=_labels(listed),
        characters=limit if type(limit) is int and limit > 0 else None,
        output=listed.get("outputSchema") if isinstance(listed.get("outputSchema"), dict) else None,
    )


def _run_remote(client: McpClient, name: str, arguments: dict) -> object:
    """The value that the server's tool returns; every way to fail is a ToolError."""
    try:
        result = client.call_tool(name, arguments)
    except (RpcError, McpError) as error:
        raise ToolError(str(error)) from error
    text = content_text(result)
    if result.get("isError") is True:
        raise ToolError(text)
    return _value_of(text)


def _value_of(text: str) -> object:
    """The JSON value behind the text, if writing it again gives the same text; else the text."""
    try:
        value = decode(text.encode("utf-8", "replace"))
        return value if json_text(value) == text else text
    except (RpcError, ValueError, RecursionError):
        return text


def content_text(result: dict) -> str:
    """What a model can read of a tool's result: its text blocks, other blocks named in brackets."""
    content = result.get("content")
    blocks = content if isinstance(content, list) else [content]
    texts = [text for block in blocks if (text := _block_text(block))]
    if not texts and "structuredContent" in result:
        return json_text(json_value(result["structuredContent"]))
    return "\n".join(texts)


def _block_text(block: object) -> str:
    match block:
        case str():  # not in the protocol, but seen
            return block
        case {"type": "text", "text": str() as text}:
            return text
        case {"type": "resource", "resource": {"text": str() as text}}:
            return text
        case {"type": "resource_link", "uri": str()}:
            return ""  # for hosts to open; the text of the result names it
        case {"type": str() as kind, "mimeType": str() as mime}:
            return f"[{kind}：{mime}，这里不显示]"
        case None:
            return ""
    return f"[不认识的内容：{show(block)}]"
