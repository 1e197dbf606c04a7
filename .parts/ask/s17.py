# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 17  HTTP      uses §1, §4, §9–§13 · http.client imported late
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Models behind a network address. Building a request and reading a reply are pure functions; one
# class sends, waits and tries again. "OpenAI-compatible" servers differ in a hundred small ways:
# the first request is minimal, and a server that refuses it says what it lacks. Each difference is
# one row of OPENAI_QUIRKS, learned from the refusal, told to the user once, kept for the run.
# http.client, not urllib.request: it follows no redirect, asks no proxy unless told to, and lets a
# connection time out in seconds while a slow model may think for minutes.

LONGEST_REPLY = 64 * 2**20  # bytes of one reply; more is a runaway or hostile server
LONGEST_WAIT = 120  # seconds a server may ask us to wait before a retry
LOADING_TRIES = 12  # of a server that is loading its model: about two minutes in all


class Patience(NamedTuple):
    """Seconds to wait. A small CPU can take minutes before the first token of a long prompt."""

    connect: float = 10.0
    silence: float = 600.0  # without a single byte
    whole: float = 1800.0  # for one reply from first to last byte, against endless streams


class HttpFailure(Exception):
    """A request that brought no whole answer. status 0: the connection or the stream broke.

    text: the server's words; value: the JSON they came in; turn: what of the answer had arrived.
    """

    def __init__(
        self, status: int, text: str, value: object = None, headers: Mapping = {},
        turn: Turn | None = None,
    ):
        super().__init__(text)
        self.status, self.text, self.value = status, text, value
        self.headers, self.turn = headers, turn


# --- addresses ---

# Patterns stay text in this section: most runs need none, and compiling them costs start-up time.
_PASTED_PATH = r"(/chat/completions|/completions|/responses|/models|/messages|/api/\w+|/api)$"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # to listen on, not to call


def is_loopback(host: str) -> bool:
    """True for this machine: no proxy can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")


def host_of(url: str) -> str:
    """The host name of an address."""
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


def repair_base_url(text: str) -> str:
    """The base address of an API, from whatever was pasted. Raises BackendError.

    >>> repair_base_url("localhost:11434/v1/chat/completions"), repair_base_url("api.deepseek.com/")
    ('http://localhost:11434/v1', 'https://api.deepseek.com')
    """
    from urllib.parse import urlsplit

    text = text.strip().strip("\"'<>")
    if "://" not in text:
        local = re.match(r"localhost\b|[\d.]+(?:[:/]|$)|\[|[^/]+:\d", text)
        text = ("http://" if local else "https://") + text
    try:
        parts = urlsplit(text)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BackendError(f"看不懂地址 {show(text)}，应该像 http://127.0.0.1:11434/v1")
    if parts.username:
        raise BackendError("地址里不要带用户名和密码，密钥请用 --key")
    host = _ANY_ADDRESS.get(parts.hostname, parts.hostname)
    host = f"[{host}]" if ":" in host else host
    path = re.sub(_PASTED_PATH, "", re.sub("/+", "/", parts.path).rstrip("/"))
    return f"{parts.scheme}://{host}{port}{path}"


def ollama_base_url(text: str) -> str:
    """The base address behind OLLAMA_HOST, which may be an address to listen on.

    >>> ollama_base_url("0.0.0.0"), ollama_base_url(":8000")
    ('http://127.0.0.1:11434/v1', 'http://127.0.0.1:8000/v1')
    """
    text = text.strip()
    if "://" not in text:
        host, colon, port = text.rpartition(":") if re.search(r":\d+/?$", text) else (text, "", "")
        text = f"http://{host or '127.0.0.1'}:{port or 11434}"
    return repair_base_url(text) + "/v1"


# --- what a failure says ---


def _sentence(value: object) -> str:
    """The sentence inside an error body; every server has its own shape."""
    match value:
        case str():
            return value
        case {"error": {"message": str(text), "metadata": {"raw": str(raw)}}}:  # OpenRouter
            return f"{text} {raw}"
        case {"msg": str(text), "loc": list(place)}:  # FastAPI
            return f"{'.'.join(map(str, place))}: {text}"
        case list():
            return "; ".join(filter(None, map(_sentence, value[:3])))
        case dict():
            inner = (value[key] for key in ("error", "message", "detail") if value.get(key))
            return _sentence(next(inner, "")) or json_text(json_value(value))
        case _:
            return ""


def read_error(body: bytes) -> tuple[str, object]:
    """(sentence, JSON value or None) of an error body: JSON of any shape, HTML, text or nothing."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
        return cut(" ".join(_sentence(value).split()), 600), value
    except (ValueError, RecursionError):
        pass
    if title := re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S):
        text = title[1]
    text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.I | re.S)
    return cut(" ".join(text.split()), 200), None


def retry_after(headers: Mapping, now: float) -> float | None:
    """Seconds a server asks us to wait, from milliseconds, seconds or a date; None: it did not say.

    >>> retry_after({"retry-after-ms": "1500"}, 0), retry_after({"retry-after": "-3"}, 0)
    (1.5, 0.0)
    """
    for name, scale in (("retry-after-ms", 1000), ("retry-after", 1)):
        text = headers.get(name) or ""
        with contextlib.suppress(ValueError):
            seconds = float(text) / scale
            return max(0.0, seconds) if math.isfinite(seconds) else None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


_HOPELESS = r"(?i)insufficient_quota|billing|exceeded your current quota|余额不足|欠费"
_UNREADABLE_CALL = r"(?i)pars\w+ tool call|does not match the expected|peg-native"


def pause_before_retry(failure: HttpFailure, tries: int, now: float) -> float | None:
    """Seconds to wait before the same request goes out again; None: it would not help.

    `tries` have failed before this one. Sources: RFC 9110 10.2.3; the vendors' own clients.
    """
    status, headers = failure.status, failure.headers
    if status == 503 and "loading model" in failure.text.lower():  # llama-server while it starts
        return min(15.0, 2.0**tries) if tries < LOADING_TRIES else None
    most = 1 if status in (0, 500) else 2 if status in (408, 409, 429) or status > 500 else 0
    stop = headers.get("x-should-retry") == "false" or re.search(_HOPELESS, failure.text)
    asked = retry_after(headers, now)
    if tries >= most or stop or (asked or 0) > LONGEST_WAIT:
        return None
    jitter = 1 + os.urandom(1)[0] / 1024  # clients that failed together should not return together
    return asked if asked is not None else 0.5 * 2**tries * jitter


class _Server(NamedTuple):
    """A kind of local server: its usual port, how to start it, how to give it a longer context."""

    port: int
    name: str
    start: str
    longer: str


_SERVERS = (
    _Server(11434, "Ollama", "ollama serve", "设 OLLAMA_CONTEXT_LENGTH=16384 后重启 Ollama"),
    _Server(
        8000, "vLLM", "vllm serve MODEL --enable-auto-tool-choice --tool-call-parser hermes",
        "启动 vLLM 时加大 --max-model-len",
    ),
    _Server(
        8080, "llama-server", "llama-server -m MODEL.gguf --jinja -c 16384",
        "启动 llama-server 时加大 -c，例如 -c 16384",
    ),
    _Server(1234, "LM Studio", "lms server start", "在 LM Studio 里加大 Context Length 后重新加载"),
)


def _servers_at(url: str) -> list[_Server]:
    """The server that usually has this port, or all of them."""
    return [server for server in _SERVERS if f":{server.port}" in url] or list(_SERVERS)


def _longer_context(url: str) -> str:
    return "；".join(server.longer for server in _servers_at(url))


def connection_problem(error: OSError, url: str, proxy: str) -> BackendError:
    """What the user should do when nothing answers at that address."""
    import socket
    import ssl

    host = host_of(url)
    way = f"（经过代理 {proxy}；不想用代理就设 NO_PROXY={host}）" if proxy else ""
    match error:
        case ConnectionRefusedError() if is_loopback(host):
            starts = "\n".join(f"  {server.name}：{server.start}" for server in _servers_at(url))
            text = f"连不上 {url}：没有程序在监听。先启动服务：\n{starts}\n地址不对请改 --base-url"
        case socket.gaierror():
            text = f"找不到主机 {proxy or host}{way}，请检查地址和网络"
        case ssl.SSLCertVerificationError():
            text = f"{host} 的证书没有通过验证：{error.verify_message}{way}"
        case ssl.SSLError():
            text = f"和 {host} 不能建立加密连接{way}；服务若不是 https，地址请以 http:// 开头"
        case TimeoutError():
            text = f"连接 {url} 超时{way}，请检查地址和网络"
        case _:
            text = f"连不上 {url}：{error.strerror or error}{way}，请检查 --base-url"
    return BackendError(text)


# --- the transport ---


def _proxy_for(url: str) -> str:
    """The proxy that the environment names for this address; never one for this machine."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if is_loopback(parts.hostname):
        return ""
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme, "")


def _connection(url: str, proxy: str, seconds: float) -> tuple:
    """(connection, request target, headers for the proxy), not yet connected."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import quote, unquote, urlsplit

    url = quote(url, safe="!#$%&'()*+,/:;=?@[]~")
    parts = urlsplit(url)
    target = url.partition(parts.netloc)[2]
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    if not proxy:
        return make(parts.hostname, parts.port, timeout=seconds), target, {}
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if via.scheme not in ("http", "https"):
        raise BackendError(f"不支持 {via.scheme} 代理，请换成 http 代理，或设 NO_PROXY={parts.hostname}")
    headers = {}
    if via.username:
        import base64

        secret = unquote(f"{via.username}:{via.password or ''}").encode()
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(secret).decode()
    connection = make(via.hostname, via.port or 80, timeout=seconds)
    if parts.scheme == "http":
        return connection, url, headers
    connection.set_tunnel(parts.hostname, parts.port or 443, headers)
    return connection, target, {}


def _too_slow(patience: Patience) -> BackendError:
    return BackendError(
        f"模型 {patience.silence:g} 秒没有动静，或 {patience.whole:g} 秒还没有答完，已停止；"
        "可以用 --timeout 放宽",
    )


def _body_chunks(response, sock, patience: Patience, deadline: float, clock) -> Iterator[bytes]:
    """The body as it arrives. A broken connection just ends it: the fold sees what is missing."""
    from http.client import HTTPException

    while (left := deadline - clock()) > 0:
        sock.settimeout(min(patience.silence, left))
        try:
            data = response.read1(65536)
        except TimeoutError:
            break
        except (OSError, HTTPException):
            return
        if not data:
            return
        yield data
    raise _too_slow(patience)


def _decoded(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Chunks without their gzip or deflate; we ask for neither, some servers send it anyway."""
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BackendError(f"服务器用了不认识的压缩方式 {encoding}")
    import zlib

    decoder, total = None, 0
    for chunk in chunks:
        if encoding not in ("", "identity"):
            if decoder is None:  # "deflate" comes with or without zlib's header
                bare = encoding == "deflate" and chunk[0] & 15 != zlib.DEFLATED
                decoder = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
            try:
                chunk = decoder.decompress(chunk)
            except zlib.error:
                raise HttpFailure(0, "服务器的压缩数据坏了") from None
        total += len(chunk)
        if total > LONGEST_REPLY:
            raise BackendError(f"服务器的回复超过 {LONGEST_REPLY // 2**20} MiB，已停止")
        yield chunk


@contextlib.contextmanager
def http_exchange(
    method: str, url: str, headers: dict, body: bytes | None, patience: Patience, clock: Callable,
):
    """Context with (response, body chunks) of one request. Raises BackendError and HttpFailure."""
    from http.client import HTTPException

    proxy = _proxy_for(url)
    connection, target, extra = _connection(url, proxy, min(patience.connect, patience.whole))
    deadline, response = clock() + patience.whole, None
    try:
        try:
            connection.connect()
        except OSError as error:
            raise connection_problem(error, url, re.sub(r"//[^/@]*@", "//", proxy)) from error
        sock = connection.sock
        sock.settimeout(min(patience.silence, patience.whole))
        try:
            # a server may refuse a long body before it has read it, and its answer says why
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body, {**headers, **extra})
            response = connection.getresponse()
        except TimeoutError:
            raise _too_slow(patience) from None
        except OSError as error:
            raise HttpFailure(0, f"连接中断（{error.strerror or '对方没有回答就关闭了'}）") from error
        except HTTPException as error:
            raise BackendError(f"{url} 回的不是 HTTP：{error_text(error)}") from error
        encoding = (response.headers.get("content-encoding") or "").strip().lower()
        yield response, _decoded(_body_chunks(response, sock, patience, deadline, clock), encoding)
    finally:
        if response:
            response.close()
        connection.close()


# --- the reply: bytes → JSON objects, whatever the framing ---


def _whole_or_lines(body: bytes) -> list:
    """The JSON values of a body: one document, or one per line (NDJSON)."""
    try:
        return [json.loads(body)]
    except (ValueError, RecursionError):
        return [json.loads(line) for line in body.splitlines() if line.strip()]


def sse_json(chunks: Iterable[bytes]) -> Iterator[object]:
    """The JSON value of each event up to [DONE]; keep-alive comments, also as data, are skipped."""
    for data in sse_events(chunks):
        if data.strip() == "[DONE]":
            yield {"done": True}  # some servers keep the connection open: read no further
            return
        if data.strip() and not data.startswith(":"):
            yield json.loads(data)


def reply_objects(chunks: Iterable[bytes]) -> Iterator[dict]:
    """Every JSON object of a reply: server-sent events, NDJSON, or one document.

    The first byte decides, not the content type: servers that ignore `stream` forget that too.
    """
    head, chunks = b"", iter(chunks)
    for chunk in chunks:
        head += chunk
        if start := head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]:
            break
    else:
        raise HttpFailure(0, "服务器的回复是空的")
    everything = itertools.chain([head], chunks)
    if start == b"<":
        raise HttpFailure(404, "收到的是网页：" + read_error(b"".join(everything))[0])
    try:
        values = _whole_or_lines(b"".join(everything)) if start in b"{[" else sse_json(everything)
        for value in values:
            match value:
                case [{"error": _} as first, *_]:
                    value = first
            if not isinstance(value, dict):
                raise ValueError
            yield value
    except (ValueError, RecursionError):
        raise HttpFailure(0, "服务器的回复里有一段不是 JSON") from None


def raise_error_object(value: dict) -> None:
    """Raise HttpFailure when an object of a reply is an error, as some send under HTTP 200."""
    error = value.get("error") or (value if value.get("object") == "error" else None)
    if not error:
        return
    code = error.get("code") or error.get("status_code") if isinstance(error, dict) else None
    kind = str(error.get("type")) if isinstance(error, dict) else ""
    status = code if type(code) is int and code >= 400 else 529 if "overloaded" in kind else 400
    raise HttpFailure(status, read_error(json.dumps(value).encode())[0], value)


# --- asking, waiting, asking again ---


class Question(NamedTuple):
    """What one `.chat` is given; the same for every backend."""

    messages: list[dict]
    tools: list[dict]  # neutral definitions, as ToolRegistry.schemas gives them
    tool_choice: str | dict = "auto"

    @property
    def used_ids(self) -> set[str]:
        """The ids of all calls in the history."""
        return {c["id"] for m in self.messages for c in m.get("tool_calls") or () if c.get("id")}


class Settings(NamedTuple):
    """What the user asked for; None and {} mean that the request does not mention it."""

    model: str = ""
    options: dict = {}  # sent as given
    max_tokens: int | None = None
    stream: bool = True


class Quirk(NamedTuple):
    """One way a server differs: how it refuses, how the request changes, what the user is told."""

    refusal: str  # a regular expression
    change: Callable[[dict], dict]
    notice: str


_ESSENTIAL = frozenset({"model", "messages", "contents", "system", "systemInstruction", "tools"})


def refused_field(text: str, body: dict) -> str | None:
    """The field of our request that a refusal names, longest first; short names only in quotes.

    >>> refused_field("Unrecognized request argument supplied: top_k", {"model": "m", "top_k": 5})
    'top_k'
    """
    for field in sorted(set(body) - _ESSENTIAL, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(field)}(?!\w)"
        if re.search(pattern if len(field) > 3 else rf"[`'\"]{pattern}[`'\"]", text):
            return field
    return None


def estimated_tokens(body: dict) -> int:
    """A deliberately low estimate of what a request costs: real tokenizers count more."""
    sent = [body.get(key) for key in ("messages", "contents", "system", "tools")]
    text = re.sub(r"(\s|\\n)+", " ", json_text(sent))
    text = re.sub(r"(.)\1{3,}", r"\1", text)  # runs of one character cost next to nothing
    wide = (len(text.encode()) - len(text)) / 2  # 汉字 take three bytes
    return int(0.4 * wide + (len(text) - wide) / 7)


_WINDOWS = frozenset({2048, 4096, 8192, 16384, 32768})  # tokens; usual context sizes


def context_was_cut(usage: Usage, low: int) -> bool:
    """True when the server read far less than was sent, or exactly filled a usual window."""
    filled = {usage.input, usage.input + usage.output} & _WINDOWS and 2 * low >= usage.input
    return bool(low >= 1000 and 0 < usage.input < 0.8 * low or filled)


_MODEL_UNKNOWN = (
    r"(?is)model.{0,80}(not found|not exist|no such|unknown|invalid|不存在)"
    r"|(not found|no such|unknown|invalid).{0,20}model|模型.{0,40}不存在"
)


class HttpModel:
    """A model behind HTTP; a vendor's class says how a request is written and a reply is read.

    notice(sentence) tells the user, once each, what the program had to work around. clock, now and
    sleep are parameters for tests; None means the real ones.
    """

    path = ""
    quirks: tuple[Quirk, ...] = ()
    build: Callable[[Question, Settings], dict]  # the body, before what was learned
    fold: Callable[[set[str]], object]  # used ids → feed(object) → [(kind, text)] …, turn() → Turn

    def __init__(
        self, base_url: str, settings: Settings = Settings(), *, key: str = "", key_hint: str = "",
        patience: Patience = Patience(), notice: Callable[[str], None] | None = None,
        clock: Callable[[], float] | None = None, now: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
    ):
        import time

        if not key.isascii() or not key.isprintable():
            raise BackendError("密钥里有空白行或不是 ASCII 的字符，多半是复制时多带了内容")
        self.base_url, self.settings = repair_base_url(base_url), settings
        self.key, self.key_hint, self.patience = key.strip(), key_hint, patience
        self.requests = 0  # sent so far, retries included
        self._clock, self._now = clock or time.monotonic, now or time.time
        self._sleep, self._notice = sleep or time.sleep, notice
        self._said: set[str] = set()
        self._changes: list[Callable[[dict], dict]] = []  # of every request: learned from refusals

    def headers(self) -> dict:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def url(self) -> str:
        return self.base_url + self.path

    def models_url(self) -> str:
        return self.base_url + "/models"

    def notice(self, sentence: str) -> None:
        """Tell the user, unless they know already."""
        if self._notice and sentence not in self._said:
            self._said.add(sentence)
            self._notice(self._without_key(sentence))

    def _without_key(self, text: str) -> str:
        """Some servers quote the key in their errors."""
        secret = self.key.removeprefix("Bearer ")
        return text.replace(secret, "[已隐去]") if secret else text

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        """The model's answer. Raises BackendError with a sentence for the user."""
        # told "none", llama-server prints the call as text: offer nothing instead
        offered = tools if tool_choice != "none" else []
        question = Question(messages, offered, tool_choice)
        show = on_delta or (lambda kind, piece: None)
        turn = self._ask(question, show)
        if not turn.calls and not turn.text.strip() and turn.finish != "length":
            self.notice("模型的回答是空的，再问一次。")
            turn = self._ask(question, show)
        if turn.calls or turn.text.strip():
            return turn
        if turn.finish == "length":
            raise BackendError("模型用完了长度上限还没有写出回答（可能都用在思考上），请加大 --max-tokens")
        raise BackendError("模型两次都给了空的回答，换个问法或换个模型再试")

    def _ask(self, question: Question, show: Callable) -> Turn:
        """One answer, over as many requests as it takes."""
        tries = 0
        while True:
            body = self.build(question, self.settings)
            for change in self._changes:
                body = change(body)
            try:
                return self._once(question, body, show)
            except HttpFailure as failure:
                if turn := self.rescued(failure, question):
                    return turn
                if self.mended(failure, body):
                    continue
                wait = pause_before_retry(failure, tries, self._now())
                if wait is None:
                    raise BackendError(self._without_key(self._explain(failure))) from failure
                if self._notice:
                    code = f"HTTP {failure.status} " if failure.status else ""
                    reason = code + failure.text
                    self._notice(self._without_key(f"{cut(reason, 120)}；{wait:.1f} 秒后重试。"))
                show("again", "")
                self._sleep(wait)
                tries += 1

    def _objects(self, method: str, url: str, body: dict | None) -> Iterator[dict]:
        """The objects of a good reply. Raises HttpFailure for any other."""
        data = None if body is None else json_text(body).encode()
        headers = {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity", "Connection": "close",
            "User-Agent": f"w4d3_tools_mcp/{VERSION}", **self.headers(),
        }
        self.requests += 1
        exchange = http_exchange(method, url, headers, data, self.patience, self._clock)
        with exchange as (response, chunks):
            if response.status >= 300:
                text, value = read_error(b"".join(chunks))
                if response.status < 400:
                    text = f"要求跳转到 {response.headers.get('location', '别处')}"
                raise HttpFailure(response.status, text, value, response.headers)
            for value in reply_objects(chunks):
                raise_error_object(value)
                yield value

    def _once(self, question: Question, body: dict, show: Callable) -> Turn:
        """The answer to one request."""
        fold, screen = self.fold(question.used_ids), TextStream(question.tools)
        for value in self._objects("POST", self.url(), body):
            for kind, piece in fold.feed(value):
                for shown in screen.feed(piece) if kind == "text" else [(kind, piece)]:
                    show(*shown)
        for shown in screen.close():
            show(*shown)
        plain = self._whole_turn(fold)
        turn = self._sorted_text(plain, question)
        if turn.calls and "tools" in body and not plain.calls:
            self.notice("模型把调用写成了文字，已照样识别并执行。")
        low = estimated_tokens(body) if turn.usage else 0
        if turn.usage and context_was_cut(turn.usage, low):
            self.notice(
                f"上下文很可能被截断了：发出的内容至少约 {low} 个 token，服务器只读了 {turn.usage.input} 个，"
                f"系统提示和工具说明可能已经丢失。办法：{_longer_context(self.base_url)}。",
            )
        return turn

    def _whole_turn(self, fold) -> Turn:
        """What the fold holds. Raises HttpFailure when the server never said that it was done."""
        try:
            turn = fold.turn()
        except BackendError as error:
            raise HttpFailure(0, str(error), turn=error.turn) from None
        if not fold.done:
            raise HttpFailure(0, "连接断了，没有结束标记", turn=turn)
        return turn

    def _sorted_text(self, turn: Turn, question: Question) -> Turn:
        """The turn with reasoning, and calls if there are no proper ones, taken out of its text."""
        if question.tools and not turn.calls:
            parts = parse_text_tool_calls(turn.text, question.tools, used_ids=question.used_ids)
            if parts.calls:
                reasoning = turn.reasoning or parts.reasoning
                return turn._replace(text=parts.text, calls=parts.calls, reasoning=reasoning)
        text, reasoning = split_reasoning(turn.text)
        return turn._replace(text=text, reasoning=turn.reasoning or reasoning)

    def rescued(self, failure: HttpFailure, question: Question) -> Turn | None:
        """A turn made from what a failure carries, if it carries one."""
        return None

    def mended(self, failure: HttpFailure, body: dict) -> bool:
        """Learn what the server refuses; True when the next request will differ."""
        if failure.status not in (400, 404, 405, 422, 500, 501):
            return False
        for quirk in self.quirks:
            if re.search(quirk.refusal, failure.text) and quirk.change(body) != body:
                self._changes.append(quirk.change)
                self.notice(quirk.notice)
                return True
        if failure.status in (400, 422) and (field := refused_field(failure.text, body)):
            self._changes.append(functools.partial(_without, key=field))
            self.notice(f"服务器不接受 {field}，已去掉后重发。")
            return True
        return False

    def _explain(self, failure: HttpFailure) -> str:
        """One sentence: what happened and what to do."""
        status, text = failure.status, failure.text
        said = f"{host_of(self.base_url)} 返回 HTTP {status}：{text or '（没有说明）'}"
        wait = retry_after(failure.headers, self._now()) or 0
        match failure.value:
            case {"error": {"n_ctx": room, "n_prompt_tokens": tokens}}:  # llama-server
                longer = _longer_context(self.base_url)
                return f"对话太长：{tokens} 个 token，服务器的上下文只有 {room} 个。办法：{longer}"
        if status == 0:
            begun = failure.turn.text if failure.turn else ""
            return f"{text}，重试后还是这样" + (f"。已收到：{cut(begun, 300)}" if begun else "")
        if status < 400:
            return f"{self.url()} {text}。程序不跟随跳转，请把 --base-url 改成最终的地址"
        if status in (401, 403):
            return f"{said}。{self.key_hint or '请用 --key 给出正确的密钥'}"
        if status in (400, 404, 422) and re.search(_MODEL_UNKNOWN, text):
            return f"{said}。{self._known_models()}"
        if status in (404, 405):
            return f"{said}。请求的地址是 {self.url()}，请检查 --base-url（多数服务以 /v1 结尾）"
        if re.search(_UNREADABLE_CALL, text):
            return f"模型写出了服务器读不懂的工具调用，重试也一样（{text}）。换个问法或换个模型再试"
        return f"{said}。服务器要求等 {wait:.0f} 秒，请晚些再试" if wait > LONGEST_WAIT else said

    def _known_models(self) -> str:
        try:
            known = self.models()
        except BackendError:
            return "用 --model 换一个模型"
        near = closest(self.settings.model, known)
        hint = f"是不是想用 {near}？" if near else ""
        return f"{hint}可用的模型：{'、'.join(known) or '无'}"

    def models(self) -> list[str]:
        """The names that the server lists. Raises BackendError."""
        try:
            reply = next(self._objects("GET", self.models_url(), None))
        except HttpFailure as failure:
            if self.mended(failure, {}):
                return self.models()
            raise BackendError(self._without_key(self._explain(failure))) from failure
        listed = reply.get("data") or reply.get("models") or []
        names = [m.get("id") or m.get("name") for m in listed if isinstance(m, dict)]
        return [name.removeprefix("models/") for name in names if isinstance(name, str)]


# --- OpenAI and compatible ---


def openai_request(question: Question, settings: Settings) -> dict:
    """The smallest Chat Completions request that says it all."""
    messages = [
        {key: value for key, value in message.items() if key not in OWN_KEYS}
        for message in tidy_history(question.messages)
    ]
    body = {"model": settings.model, "messages": messages}
    if question.tools:  # an empty list is refused (vLLM)
        body["tools"] = tools_in_format(question.tools, "openai")
        if question.tool_choice != "auto":  # the default anyway, and LM Studio refuses the key
            body["tool_choice"] = question.tool_choice
    if settings.max_tokens:
        body["max_tokens"] = settings.max_tokens
    if settings.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {**body, **settings.options}


def _call_text(call: dict) -> str:
    function = call["function"]
    value = {"name": function["name"], "arguments": arguments_object(function["arguments"])}
    return f"<tool_call>\n{json_text(value)}\n</tool_call>"


def _tools_as_text(body: dict) -> dict:
    """The request in the text protocol: tools in the system message, calls and results as text."""
    if "tools" not in body:
        return body
    tools = [tool["function"] for tool in body["tools"]]
    system, *rest = [{"role": "system", "content": ""}, *body["messages"]]
    if rest and rest[0]["role"] == "system":
        system, *rest = rest
    prompt = f"{system['content']}\n\n{text_tools_prompt(tools)}".strip()
    messages = [{"role": "system", "content": prompt}]
    for message in rest:
        match message:
            case {"role": "tool", "content": text}:
                _add_user(messages, text_tool_result(text))
            case {"role": "assistant", "tool_calls": calls, "content": text}:
                text = "\n".join([text, *map(_call_text, calls)]).strip()
                messages.append({"role": "assistant", "content": text})
            case _:
                messages.append(message)
    return {**_without(_without(body, "tools"), "tool_choice"), "messages": messages}


def _nine_letter_ids(body: dict) -> dict:
    """Ids of nine letters and digits throughout (Mistral); those that fit stay."""
    old = [call["id"] for m in body["messages"] for call in m.get("tool_calls", ())]
    new = {
        id: id if re.fullmatch("[A-Za-z0-9]{9}", id) else f"id{number:07}"
        for number, id in enumerate(old)
    }
    messages = []
    for message in body["messages"]:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**c, "id": new[c["id"]]} for c in calls]}
        if message["role"] == "tool":
            message = {**message, "tool_call_id": new[message["tool_call_id"]]}
        messages.append(message)
    return {**body, "messages": messages}


def _one_call_per_turn(body: dict) -> dict:
    """Each turn with several calls as several turns with one call and its result."""
    messages, waiting = [], {}
    for message in body["messages"]:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            messages += [waiting.pop(message["tool_call_id"], {}), message]
        elif len(calls) > 1:
            for i, call in enumerate(calls):
                alone = message if i == 0 else {"role": "assistant", "content": ""}
                waiting[call["id"]] = {**alone, "tool_calls": [call]}
        else:
            messages.append(message)
    return {**body, "messages": [message for message in messages if message]}


def _on_assistants(change: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """A change of the request that touches only its assistant messages."""

    def apply(body: dict) -> dict:
        messages = [change(m) if m["role"] == "assistant" else m for m in body["messages"]]
        return {**body, "messages": messages}

    return apply


def _without_reasoning(message: dict) -> dict:
    return {key: value for key, value in message.items() if not key.startswith("reasoning")}


def _null_content(message: dict) -> dict:
    empty = "tool_calls" in message and not message["content"]
    return {**message, "content": None} if empty else message


def _completion_tokens(body: dict) -> dict:
    if "max_tokens" not in body:
        return body
    return {**_without(body, "max_tokens"), "max_completion_tokens": body["max_tokens"]}


_TEXT_NOTICE = "改用文字协议：工具写进系统提示，从模型的文字里识别调用。"

OPENAI_QUIRKS = (
    Quirk(  # vLLM; must come before the rows that name a field
        r"enable-auto-tool-choice|tool-call-parser", _tools_as_text,
        "这个 vLLM 没有打开工具调用（启动时加 --enable-auto-tool-choice --tool-call-parser hermes）。"
        + _TEXT_NOTICE,
    ),
    Quirk(  # Ollama: gemma3, deepseek-r1; OpenRouter
        r"(?i)do(es)?( not|n't) support (tool|function)|endpoints found that support tool"
        r"|\b(tools?|function calling)\b[^.]{0,40} not supported",
        _tools_as_text, "服务器说这个模型不支持工具。" + _TEXT_NOTICE,
    ),
    Quirk(  # OpenAI o-series and GPT-5
        r"(?s)max_tokens.*max_completion_tokens", _completion_tokens,
        "服务器要 max_completion_tokens，已代替 max_tokens 重发。",
    ),
    Quirk(  # Mistral
        r"(?i)length of 9|\[?a-zA-Z0-9\]?\{9\}|9 (alphanumeric|characters)", _nine_letter_ids,
        "服务器要九个字符的调用 id，已改写后重发。",
    ),
    Quirk(  # gpt-oss template in llama-server
        r"(?i)both content and thinking", _on_assistants(_without_reasoning),
        "服务器不要思考过程，已去掉后重发。",
    ),
    Quirk(  # Llama 3 templates
        r"(?i)single tool.calls? at once", _one_call_per_turn,
        "这个模型的模板一轮只容一个调用，已把历史拆开重发。",
    ),
    Quirk(
        r"(?i)content[^.]{0,40}(non-empty|must not be empty|cannot be empty)",
        _on_assistants(_null_content), "服务器不要空的 content，已改成 null 重发。",
    ),
)


class OpenAICompatLLM(HttpModel):
    """Chat Completions at OpenAI, Ollama, vLLM, llama-server, LM Studio and all who copied it."""

    path = "/chat/completions"
    quirks = OPENAI_QUIRKS
    build = staticmethod(openai_request)
    fold = OpenAIFold

    def rescued(self, failure: HttpFailure, question: Question) -> Turn | None:
        """Groq refuses a call that it cannot parse, and hands over what the model wrote."""
        match failure.value:
            case {"error": {"failed_generation": str(written)}} if question.tools:
                turn = self._sorted_text(Turn(written), question)
                return turn if turn.calls else None

    def mended(self, failure: HttpFailure, body: dict) -> bool:
        odd = "Unexpected endpoint" in failure.text  # LM Studio, under HTTP 200
        wrong_path = odd or failure.status in (404, 405)
        host_only = self.base_url.count("/") == 2
        if wrong_path and host_only and not re.search(_MODEL_UNKNOWN, failure.text):
            self.base_url += "/v1"
            self.notice(f"地址里少了 /v1，已改用 {self.base_url}。")
            return True
        return super().mended(failure, body)


# --- Anthropic ---


def anthropic_request(question: Question, settings: Settings) -> dict:
    """A Messages request; `max_tokens` is mandatory there."""
    system, messages = to_anthropic_messages(question.messages)
    limit = settings.max_tokens or 8192
    body = {"model": settings.model, "max_tokens": limit, "messages": messages}
    if system:
        body["system"] = system
    if question.tools:
        body["tools"] = tools_in_format(question.tools, "anthropic")
        if question.tool_choice != "auto":
            body["tool_choice"] = to_anthropic_choice(question.tool_choice)
    if settings.stream:
        body["stream"] = True
    return {**body, **settings.options}


class AnthropicLLM(HttpModel):
    """The Messages API of Anthropic; Ollama, llama-server, vLLM and LM Studio serve it too.

    A key that starts with "Bearer " goes into the Authorization header, as relays want it.
    """

    path = "/v1/messages"
    build = staticmethod(anthropic_request)
    fold = AnthropicFold

    def __init__(self, base_url: str, settings: Settings = Settings(), **rest):
        super().__init__(re.sub(r"/v1$", "", repair_base_url(base_url)), settings, **rest)

    def headers(self) -> dict:
        name = "Authorization" if self.key.startswith("Bearer ") else "x-api-key"
        return {"anthropic-version": "2023-06-01", **({name: self.key} if self.key else {})}

    def models_url(self) -> str:
        return self.base_url + "/v1/models"


# --- Gemini ---


def gemini_request(question: Question, settings: Settings) -> dict:
    """A generateContent request; the model's name and `stream` are in its address."""
    system, contents = to_gemini_contents(question.messages)
    body: dict = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if question.tools:
        body["tools"] = [{"functionDeclarations": list(map(to_gemini_tool, question.tools))}]
        if question.tool_choice != "auto":
            body["toolConfig"] = to_gemini_choice(question.tool_choice)
    limit = {"maxOutputTokens": settings.max_tokens} if settings.max_tokens else {}
    config = {**limit, **settings.options}
    return {**body, "generationConfig": config} if config else body


_GEMINI_FINISH = {"STOP": "stop", "MAX_TOKENS": "length"}


class GeminiFold(_Fold):
    """GenerateContentResponse objects, one or a stream of them, folded into a Turn."""

    def __init__(self, used_ids: Iterable[str] = ()):
        super().__init__(used_ids)
        self._parts: list[dict] = []

    def feed(self, value: dict) -> list[tuple[str, str]]:
        """Take one object; returns what may be shown. Raises BackendError when Gemini refuses."""
        match value:
            case {"promptFeedback": {"blockReason": reason}}:
                raise BackendError(f"Gemini 拒绝了这个问题：{reason}")
        if usage := _dict(value.get("usageMetadata")):
            wrote = _number(usage, "candidatesTokenCount") + _number(usage, "thoughtsTokenCount")
            cached = _number(usage, "cachedContentTokenCount")
            self.usage = Usage(_number(usage, "promptTokenCount"), wrote, cached)
        candidate = _dict(next(iter(_list(value.get("candidates"))), None))
        if reason := _text(candidate.get("finishReason")):
            self.finish, self.done = _GEMINI_FINISH.get(reason, reason), True
        pieces = []
        for part in map(_dict, _list(_dict(candidate.get("content")).get("parts"))):
            self._parts.append(part)
            kind = "reasoning" if part.get("thought") else "text"
            pieces += self._add(kind, _text(part.get("text")))
        return pieces

    def _calls(self) -> list[ToolCall]:
        found = [_dict(part["functionCall"]) for part in self._parts if "functionCall" in part]
        return [
            ToolCall(_text(c.get("id")), _text(c.get("name")), _dict(c.get("args"))) for c in found
        ]

    def _extra(self, calls: tuple[ToolCall, ...]) -> dict | None:
        """All parts unchanged, for their signatures."""
        plain = all(part.keys() <= {"text"} for part in self._parts)
        return None if plain else {GEMINI_PARTS: self._parts}


class GeminiLLM(HttpModel):
    """Google's generateContent in its own format."""

    build = staticmethod(gemini_request)
    fold = GeminiFold

    def __init__(self, base_url: str, settings: Settings = Settings(), **rest):
        super().__init__(re.sub(r"/v1(beta)?$", "", repair_base_url(base_url)), settings, **rest)

    def headers(self) -> dict:
        return {"x-goog-api-key": self.key} if self.key else {}

    def url(self) -> str:
        method = "streamGenerateContent?alt=sse" if self.settings.stream else "generateContent"
        return f"{self.base_url}/v1beta/models/{self.settings.model}:{method}"

    def models_url(self) -> str:
        return self.base_url + "/v1beta/models"


# --- a local model without a server ---


class TransformersLLM:
    """A model directory on this machine, run by transformers with its own chat template.

    Raises BackendError when the packages or the model are missing.
    """

    def __init__(self, folder: str, settings: Settings = Settings(), *, notice=None, **rest):
        try:
            import torch  # noqa: F401, transformers generates nothing without it
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            reason = f"少了 {error.name}" if error.name else error_text(error)
            raise BackendError(f"{reason}：请先 pip install transformers torch") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BackendError(f"{folder} 不是能读的模型目录：{error_text(error)}") from error
        self.settings, self.requests, self.base_url = settings, 0, ""

    def chat(
        self, messages: list[dict], tools: list[dict], tool_choice="auto", on_delta=None,
    ) -> Turn:
        offered = tools if tool_choice != "none" else []
        question = Question(messages, offered, tool_choice)
        inputs = self._tokenizer.apply_chat_template(
            to_hf_messages(messages), tools=tools_in_format(offered, "openai") or None,
            add_generation_prompt=True, return_dict=True, return_tensors="pt",
        )
        self.requests += 1
        limit = self.settings.max_tokens or 1024
        output = self._model.generate(**inputs, max_new_tokens=limit, **self.settings.options)[0]
        read = inputs["input_ids"].shape[1]
        written = output[read:].tolist()
        ended = bool(written) and written[-1] in self._tokenizer.all_special_ids
        # markers of calls may be special tokens, so only the one that ends the answer is dropped
        text = self._tokenizer.decode(written[:-1] if ended else written, skip_special_tokens=False)
        parts = TextParse(text)
        if offered:
            parts = parse_text_tool_calls(text, offered, used_ids=question.used_ids)
        answer, reasoning = (parts.text, parts.reasoning) if parts.calls else split_reasoning(text)
        if on_delta and answer:
            on_delta("text", answer)
        finish = "tool_calls" if parts.calls else "stop" if ended else "length"
        return Turn(answer, parts.calls, finish, Usage(read, len(written)), reasoning)


# --- which model to ask ---

# Keys that belong to one host go there by themselves; any other key goes only where the user says.
_HOME_KEYS = {
    "api.openai.com": "OPENAI_API_KEY",
    "api.anthropic.com": "ANTHROPIC_API_KEY",
    "generativelanguage.googleapis.com": "GEMINI_API_KEY",
    "api.deepseek.com": "DEEPSEEK_API_KEY",
    "dashscope.aliyuncs.com": "DASHSCOPE_API_KEY",
    "api.moonshot.cn": "MOONSHOT_API_KEY",
    "open.bigmodel.cn": "ZHIPUAI_API_KEY",
    "api.siliconflow.cn": "SILICONFLOW_API_KEY",
    "api.mistral.ai": "MISTRAL_API_KEY",
    "api.groq.com": "GROQ_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
}


class Backend(NamedTuple):
    """A way to reach a model: its class, its usual address, the environment variables it reads."""

    make: Callable
    base_url: str = ""
    url_variable: str = ""
    key_variables: tuple[str, ...] = ()
    model_variable: str = ""


BACKENDS = {
    "openai": Backend(
        OpenAICompatLLM, "http://127.0.0.1:11434/v1", "OPENAI_BASE_URL", ("OPENAI_API_KEY",),
        "OPENAI_MODEL",
    ),
    "anthropic": Backend(
        AnthropicLLM, "https://api.anthropic.com", "ANTHROPIC_BASE_URL",
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), "ANTHROPIC_MODEL",
    ),
    "gemini": Backend(
        GeminiLLM, "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "GEMINI_MODEL",
    ),
    "transformers": Backend(TransformersLLM),
}


class Place(NamedTuple):
    """Where to ask, and with which key; `key_hint` is for a server that refuses it."""

    base_url: str
    key: str = ""
    key_hint: str = ""


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


def find_place(backend: Backend, base_url: str, key: str, environ: Mapping) -> Place:
    """The address and the key: what the user gave, else the environment, else the usual address.

    A key from the environment goes only to the address that the environment names with it, or to
    the host it belongs to: OPENAI_API_KEY must not reach whatever --base-url names.
    """
    named = environ.get(backend.url_variable, "").strip()
    ollama = environ.get("OLLAMA_HOST", "").strip() if backend.make is OpenAICompatLLM else ""
    url = repair_base_url(
        base_url or named or (ollama_base_url(ollama) if ollama else backend.base_url),
    )
    if key:
        return Place(url, key)
    together = named and _origin(url) == _origin(repair_base_url(named))
    home = _HOME_KEYS.get(host_of(url), "") if url.startswith("https:") else ""
    found = [name for name in backend.key_variables if environ.get(name, "").strip()]
    usable = [name for name in (home, *found) if environ.get(name, "").strip()]
    if usable and (together or usable[0] == home or home in backend.key_variables):
        token = environ[usable[0]].strip()
        return Place(url, f"Bearer {token}" if usable[0].endswith("_AUTH_TOKEN") else token)
    if found:
        return Place(url, "", f"环境变量 {found[0]} 没有发给这个地址；要用它就加 --key \"${found[0]}\"")
    return Place(url, "", f"请用 --key 给出密钥{f'，或设环境变量 {home}' if home else ''}")
