# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 14  JSON-RPC      uses §1, §3 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# MCP is JSON-RPC 2.0 with one message per line. A *request* has method and id and gets exactly one
# *reply* with the same id; a *notification* has no id and gets none, not even an error. Here bytes
# become messages and back, and what is neither kind of message is told what is wrong with it.
# Sources: jsonrpc.org/specification; modelcontextprotocol.io, "Base Protocol" of each revision.

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # until 2025-11-25; since then a missing resource is INVALID_PARAMS
UNSUPPORTED_VERSION = -32022  # since 2026-07-28; its data lists what the server speaks

ERROR_MEANINGS = {
    PARSE_ERROR: "这一行不是 JSON",
    INVALID_REQUEST: "是 JSON，但不是合法的请求",
    METHOD_NOT_FOUND: "没有这个方法",
    INVALID_PARAMS: "参数不对，或没有这个工具、提示词、资源",
    INTERNAL_ERROR: "服务器内部出错",
    RESOURCE_NOT_FOUND: "没有这个资源（2025-11-25 及以前）",
    UNSUPPORTED_VERSION: "不支持这个协议版本（2026-07-28 起）",
}


def _refuse_word(word: str) -> object:
    raise ValueError(word)  # Python reads and writes NaN; no other language does


_WIRE_DECODER = json.JSONDecoder(parse_constant=_refuse_word)
# No ASCII escaping: half the bytes for Chinese, and a learner can read the wire.
_WIRE_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate hangs Python SDKs (mcp 2.3.0)


def _why_unreadable(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "不是 UTF-8 编码"
        case json.JSONDecodeError():
            return f"第 {error.pos + 1} 个字符处读不下去"
        case RecursionError():
            return "嵌套太深"
        case _:
            return "有 NaN、Infinity，或者有太长的整数"


def decode(line: bytes) -> object:
    """The JSON value in one line; a byte-order mark and CRLF do no harm. RpcError -32700."""
    try:
        return _WIRE_DECODER.decode(line.decode("utf-8").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        reason = f"{ERROR_MEANINGS[PARSE_ERROR]}：{_why_unreadable(error)}"
        raise RpcError(PARSE_ERROR, reason) from None


def encode(message: object) -> bytes:
    """The message as one line of UTF-8. Raises ValueError or TypeError for what is no JSON.

    >>> encode({"id": 1, "result": {"text": "缓存"}}).decode()
    '{"id":1,"result":{"text":"缓存"}}\\n'
    """
    text = _WIRE_ENCODER.encode(message) + "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _HALF_CHARACTER.sub("\ufffd", text).encode("utf-8")


def request_message(id: int | str, method: str, params: dict | None = None) -> dict:
    """A request; params None leaves them out, for a null there is no valid message."""
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else message | {"params": params}


def notification_message(method: str, params: dict | None = None) -> dict:
    """A message that gets no reply."""
    message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def result_reply(id: int | str, result: dict) -> dict:
    """The reply of a request that went well, or of a tool that failed in its own way."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def error_reply(id: int | str | None, error: RpcError) -> dict:
    """The reply of a request that could not be served.

    Without a readable id the key is left out: JSON-RPC asks for null, but no MCP schema allows
    null there, and the newer ones make `id` optional. All official clients accept the missing key.
    """
    body = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    message = {"jsonrpc": "2.0", "error": body}
    return message if id is None else {"jsonrpc": "2.0", "id": id, "error": body}


def readable_id(message: object) -> int | str | None:
    """The id of a message if it is a string or an integer, else None."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if type(id) in (int, str) else None  # type(), because True is an int too


def kind_of(message: object) -> str:
    """"request", "notification" or "response". Raises RpcError -32600 for anything else."""
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, f"一条消息应该是 JSON 对象，收到的是 {show(message)}")
    if "method" not in message and ("result" in message or "error" in message):
        return "response"
    if message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, f'jsonrpc 应该是 "2.0"，收到的是 {show(message.get("jsonrpc"))}')
    if not isinstance(message.get("method"), str):
        raise RpcError(INVALID_REQUEST, f"method 应该是字符串，收到的是 {show(message.get('method'))}")
    if "id" not in message:
        return "notification"
    if readable_id(message) is None:
        raise RpcError(INVALID_REQUEST, f"id 应该是字符串或整数，收到的是 {show(message['id'])}")
    return "request"
