# What a learner sees of MCP: the lecture's session, message by message, then the same work without
# a handshake. Client, server, pipe and messages are real; only the remarks are written here.

MCP_SHOWN = 600  # characters of one message on screen; --json has everything


class McpStep(NamedTuple):
    """Something the client does, and a remark for each message that this puts on the wire."""

    act: Callable[[McpClient], object]
    remarks: tuple[str, ...]


class McpSession(NamedTuple):
    """A walk through one revision of the protocol."""

    revision: str
    title: str
    lesson: str
    steps: tuple[McpStep, ...]


class McpMessage(NamedTuple):
    """A message that went over the wire: "→" sent, "←" received, "!" a line that is no message."""

    direction: str
    item: object
    remark: str = ""


def _calling_tool(name: str, arguments: dict) -> Callable[[McpClient], object]:
    return lambda client: client.call_tool(name, arguments)


_KV_STEP = McpStep(
    _calling_tool("kv_cache_gib", KV_ARGUMENTS),
    (
        "模型说要调用工具，主机替它发出 tools/call",
        "content 是给模型读的文字；structuredContent 是同一个结果，给程序用",
    ),
)
_REFUSED_STEP = McpStep(
    _calling_tool("calculator", {"expression": "__import__('os').system('ls')"}),
    (
        "有人想借计算器执行命令",
        "第一种错：工具说不行。这是正常的 result，isError 为 true，原因交给模型读，模型可以改了再来",
    ),
)
_UNKNOWN_STEP = McpStep(
    _calling_tool("format_disk", {}),
    (
        "调用一个不存在的工具",
        "第二种错：请求本身不对。这是 JSON-RPC 的 error，只有程序能改，不交给模型",
    ),
)

MCP_SESSIONS = (
    McpSession(
        "2025-06-18", "第一段  2025-06-18：先握手，再干活",
        "课上讲的会话。请求有 id，一定有一个同 id 的答复；通知没有 id，也没有答复。",
        (
            McpStep(McpClient.connect, (
                "打招呼：报上协议版本、自己的能力和名字", "服务器同意这个版本，报上能力、名字和使用说明",
                "握手完成。这是通知：没有 id，没有答复",
            )),
            McpStep(McpClient.tools, (
                "有哪些工具？",
                "每个工具的 inputSchema 由主机转给模型：OpenAI 叫 parameters，Anthropic 叫 input_schema",
            )),
            _KV_STEP, _REFUSED_STEP, _UNKNOWN_STEP,
            McpStep(lambda client: client.request("tools/destroy"), (
                "调用一个不存在的方法", "没有这个方法：error，-32601",
            )),
        ),
    ),
    McpSession(
        "2026-07-28", "第二段  2026-07-28：没有握手，每个请求自带信封",
        "同一个进程，同一根管道。版本和能力写在每个请求的 params._meta 里，服务器不用记住任何事；"
        "结果多了 resultType，可缓存的结果还有 ttlMs 和 cacheScope。",
        (
            McpStep(McpClient.connect, (
                "先问一句服务器会什么；不问也行，直接 tools/list 一样有答复",
                "supportedVersions 列出它会的全部版本，双方都会的最新一版就是 2026-07-28",
            )),
            McpStep(McpClient.tools, ("有哪些工具？", "多了 resultType、ttlMs、cacheScope 和 _meta")),
            _KV_STEP, _REFUSED_STEP, _UNKNOWN_STEP,
            McpStep(lambda client: client.request("ping"), (
                "ping 在这一版里取消了", "所以它和别的不认识的方法一样：error，-32601",
            )),
        ),
    ),
)


def our_server(args) -> list[str]:
    """The command that starts this file as a server, with the tools and notes of these flags."""
    command = [sys.executable, os.path.abspath(__file__), "--mcp-server"]
    for path in getattr(args, "tools", None) or ():
        command += ["--tools", os.path.abspath(path)]
    if getattr(args, "notes", None):
        command += ["--notes", os.path.abspath(args.notes)]
    return command


def _traced(
    steps: Iterable[McpStep], client: McpClient, trace: list[tuple[str, object]],
) -> Iterator[McpMessage]:
    """The messages of each step; an error reply is one of them and no reason to stop."""
    for step in steps:
        with contextlib.suppress(RpcError):
            step.act(client)
        remarks = itertools.chain(step.remarks, itertools.repeat(""))
        while trace:
            direction, item = trace.pop(0)
            yield McpMessage(direction, item, "" if direction == "!" else next(remarks))


def mcp_sessions(command: Sequence[str]) -> Iterator[McpSession | McpMessage | ToolRegistry]:
    """Both sessions with one server process, each headed by its McpSession; last its tools.

    While the caller uses those tools the messages go on: they come after the registry.
    """
    trace: list[tuple[str, object]] = []
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        for session in MCP_SESSIONS:
            yield session
            client = McpClient(server.send, revision=session.revision)
            yield from _traced(session.steps, client, trace)
        tools = client.tools()
        trace.clear()
        yield tools
        yield from (McpMessage(*message) for message in trace)


def mcp_message_lines(message: McpMessage, style: Style) -> list[str]:
    """One message: direction, what kind it is, the remark, and the JSON itself."""
    lines = [f"{message.direction} {style.paint(_mcp_kind(message.item), 'title')}"]
    if message.remark:
        lines += [style.paint("  " + line, "dim") for line in wrap(message.remark, style.width - 2)]
    text = message.item if isinstance(message.item, str) else json_text(json_value(message.item))
    if len(text) > MCP_SHOWN:
        text = f"{text[:MCP_SHOWN]} …… 共 {len(text)} 个字符"
    return lines + ["  " + line for line in wrap(text, style.width - 2)] + [""]


def _mcp_kind(item: object) -> str:
    match item:
        case {"method": method, "id": id}:
            return f"请求 {method}  id={show(id)}"
        case {"method": method}:
            return f"通知 {method}"
        case {"error": {"code": code}, **rest}:
            return f"error {code}  id={show(rest.get('id'))}"
        case {"result": {"isError": True}, "id": id}:
            return f"result（isError）  id={show(id)}"
        case {"result": _, "id": id}:
            return f"result  id={show(id)}"
    return "不是消息的一行"


def mcp_message_json(message: McpMessage) -> str:
    """One line of a trace."""
    return json_text({"direction": message.direction, "message": json_value(message.item)})


def mcp_demo_text(command: Sequence[str], style: Style) -> Iterator[str]:
    """The lines of the demo: two sessions, then the loop of scenario 1 with the server's tools."""
    last = False
    for item in mcp_sessions(command):
        if isinstance(item, McpSession):
            yield heading(item.title, style)
            yield from wrap(item.lesson, style.width)
            yield ""
        elif isinstance(item, ToolRegistry):
            yield heading("第三段  模型通过 MCP 用工具", style)
            yield from wrap("场景 1 原样再来一遍：循环没有变，只是工具在另一个进程里。", style.width)
            yield ""
            yield from demo_text(1, item, style)
            yield ""
            yield from wrap("这一次调用在管道上是这两条消息：", style.width)
            yield ""
            last = True
        else:
            yield from mcp_message_lines(item, style)
    if last:
        yield from wrap(
            "主机和工具之间是 MCP，主机和模型之间是 function calling：两者各管一段，谁也不代替谁。",
            style.width,
        )


def mcp_demo_json(command: Sequence[str]) -> Iterator[str]:
    """The same as a trace: one JSON object per line, {"direction", "message"}."""
    for item in mcp_sessions(command):
        if isinstance(item, McpMessage):
            yield mcp_message_json(item)
        elif isinstance(item, ToolRegistry):
            play(SCENARIOS[0], item)


# ── Somebody else's server ──

_OFFERS = (  # capability, method, key of its result, what to call it
    ("tools", "tools/list", "tools", "工具"),
    ("resources", "resources/list", "resources", "资源"),
    ("resources", "resources/templates/list", "resourceTemplates", "资源模板"),
    ("prompts", "prompts/list", "prompts", "提示词"),
)


def mcp_visit(command: Sequence[str]) -> Iterator[McpMessage | str]:
    """Connect to any server and ask what it offers: the messages, then a summary in lines."""
    trace: list[tuple[str, object]] = []
    offers: list[str] = []
    with StdioServer(command, trace=lambda *message: trace.append(message)) as server:
        client = McpClient(server.send, restart=server.restart)
        yield from _traced([McpStep(McpClient.connect, ())], client, trace)
        for capability, method, key, label in _OFFERS:
            if capability in client.capabilities:
                ask = functools.partial(_offered, method=method, key=key, label=label)
                step = McpStep(lambda client: offers.extend(ask(client)), ())
                yield from _traced([step], client, trace)
        name, version = client.server.get("name", "没有报名字"), client.server.get("version", "")
        yield f"服务器：{name} {version}".rstrip()
        yield f"协议版本：{client.revision}"
        yield from offers


def _offered(client: McpClient, *, method: str, key: str, label: str) -> Iterator[str]:
    entries = client.pages(method, key)
    yield f"{label} {len(entries)} 个"
    for entry in entries:
        name = entry.get("name") or entry.get("uri") or entry.get("uriTemplate")
        about = str(entry.get("description") or entry.get("title") or "").strip().split("\n")[0]
        yield f"  {name}  {about}".rstrip()


def mcp_visit_text(command: Sequence[str], style: Style) -> Iterator[str]:
    """The lines of `--mcp-demo -- COMMAND …`."""
    yield heading(" ".join(command), style)
    for item in mcp_visit(command):
        if isinstance(item, McpMessage):
            yield from mcp_message_lines(item, style)
        else:
            yield from wrap(item, style.width)


# ── Registering with a host ──


class Host(NamedTuple):
    """A program that starts MCP servers: the shape of its configuration, and where the file is."""

    title: str
    block: Callable[[str, list[str]], str]
    places: tuple[tuple[str, str], ...]  # (system or scope, path)
    hint: str


def _json_block(key: str, **extra: str) -> Callable[[str, list[str]], str]:
    def block(command: str, arguments: list[str]) -> str:
        entry = {**extra, "command": command, "args": arguments}
        return json.dumps({key: {SERVER_NAME: entry}}, ensure_ascii=False, indent=2)

    return block


def _toml_block(command: str, arguments: list[str]) -> str:
    """A JSON string is also a TOML basic string: the escapes are the same."""
    listed = ", ".join(json_text(argument) for argument in arguments)
    return f"[mcp_servers.{SERVER_NAME}]\ncommand = {json_text(command)}\nargs = [{listed}]"


HOSTS = {
    "claude": Host(
        "Claude Desktop", _json_block("mcpServers"),
        (
            ("macOS", "~/Library/Application Support/Claude/claude_desktop_config.json"),
            ("Windows", r"%APPDATA%\Claude\claude_desktop_config.json"),
            ("Linux", "~/.config/Claude/claude_desktop_config.json"),
        ),
        "改完要完全退出再打开 Claude Desktop。加 --write 可以直接写进去。",
    ),
    "cursor": Host(
        "Cursor", _json_block("mcpServers"),
        (("全部项目", "~/.cursor/mcp.json"), ("一个项目", ".cursor/mcp.json")),
        "Windows 上 ~ 是 %USERPROFILE%。",
    ),
    "vscode": Host(
        "VS Code", _json_block("servers", type="stdio"),
        (
            ("一个工作区", ".vscode/mcp.json"),
            ("macOS", "~/Library/Application Support/Code/User/mcp.json"),
            ("Windows", r"%APPDATA%\Code\User\mcp.json"),
            ("Linux", "~/.config/Code/User/mcp.json"),
        ),
        "也可以用命令 MCP: Open User Configuration 打开。",
    ),
    "codex": Host(
        "Codex", _toml_block,
        (("全部项目", "~/.codex/config.toml"), ("一个项目", ".codex/config.toml")),
        "Windows 上 ~ 是 %USERPROFILE%。",
    ),
}


def mcp_config_text(name: str, command: Sequence[str], style: Style) -> Iterator[str]:
    """The block for one host, ready to paste, and where it goes."""
    host = HOSTS[name]
    yield heading(host.title, style)
    yield host.block(command[0], list(command[1:]))
    yield ""
    yield "写进这个文件："
    yield from ("  " + line for line in table(host.places))
    yield host.hint


def claude_config_path() -> str:
    """Where Claude Desktop keeps its configuration on this system."""
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux")
    return os.path.expanduser(os.path.expandvars(dict(HOSTS["claude"].places)[system]))


def _merged(text: str, block: dict, path: str) -> dict:
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise McpError(f"{path} 不是合法的 JSON（{error}），没有改动它；请先改好") from None
    servers = config.get("mcpServers", {}) if isinstance(config, dict) else None
    if not isinstance(servers, dict):
        raise McpError(f"{path} 里的内容不是预期的对象，没有改动它")
    return config | {"mcpServers": servers | block["mcpServers"]}


def write_claude_config(path: str, command: Sequence[str]) -> Iterator[str]:
    """Merge our block into the file, keeping everything else; a copy of the old file stays.

    Raises McpError, with nothing changed, when the file is no JSON.
    """
    import shutil

    old = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8-sig") as file:
            old = file.read()
    block = json.loads(HOSTS["claude"].block(command[0], list(command[1:])))
    new = json.dumps(_merged(old, block, path), ensure_ascii=False, indent=2) + "\n"
    if old == new:
        yield f"已经登记过了，没有改动：{path}"
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if old:
        names = (f"{path}.bak{number or ''}" for number in itertools.count())
        backup = next(name for name in names if not os.path.exists(name))
        shutil.copy2(path, backup)
        yield f"原来的文件备份在 {backup}"
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8", newline="\n") as file:
        file.write(new)
    os.replace(draft, path)  # at once: a crash leaves the old file or the new one
    yield f"已写入 {path}，请完全退出再打开 Claude Desktop。"
