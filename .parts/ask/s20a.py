# --- a run with a real model, as it happens ---

QUIET, NORMAL, FULL = range(3)  # what the user wants to see besides the answer
_STATUS_WORDS = {word: f"{text}：" for word, text in RESULT_STATUS.items()} | {"ok": ""}


def call_text(call: ToolCall) -> str:
    """The call as one would write it in Python: name(key=value, …)."""
    arguments = arguments_object(call.arguments)
    return f"{call.name}({', '.join(f'{key}={show(value)}' for key, value in arguments.items())})"


def usage_text(end: Finished, seconds: float) -> str:
    """One line on what a run cost."""
    tokens = f"，输入 {end.usage.input}、输出 {end.usage.output} 个 token" if any(end.usage) else ""
    return f"请求模型 {end.turns} 次{tokens}，共 {seconds:.1f} 秒。"


class LiveScreen:
    """Shows a run while it happens. Only the answer may go to `answer`; all else goes to `write`.

    On a terminal a line counts the seconds of waiting, and, when `answer` is given, the text of the
    model appears as it is written. `shown` is then what of the last turn has been shown already.
    """

    def __init__(
        self, write: Callable[[str], None], style: Style, *,
        level: int = NORMAL, terminal: bool = False, answer: Callable[[str], None] | None = None,
    ):
        self._write, self._style, self._level = write, style, level
        self._ticking = terminal and level > QUIET
        self._answer, self.shown = answer, ""
        self._kind = ""  # of the text on the unfinished line: "text", "reasoning" or none
        self._stop: threading.Event | None = None

    def line(self, text: str, name: str = "dim") -> None:
        """One finished line for the user."""
        self._pause()
        for row in text.split("\n"):
            self._write(self._style.paint(row, name) + "\n")

    def notice(self, sentence: str) -> None:
        """Something the program had to work around."""
        if self._level > QUIET:
            self.line(f"注意：{sentence}", "assistant")

    def event(self, event: Event) -> None:
        """Show one event of the loop."""
        if self._level > QUIET:
            match event:
                case ModelAsked(number):
                    self._wait("等模型回答" if number == 1 else "等模型读结果")
                case ModelAnswered(turn=turn):
                    self._show_turn(turn)
                case CallStarted(call):
                    self.line(f"→ {self._fitted(call_text(call))}", "assistant")
                    self._wait(f"{call.name} 运行中")
                case CallFinished(call, result, seconds):
                    took = f"（{seconds:.2f} 秒）" if seconds is not None else ""
                    text = f"← {call.name}{took} {_STATUS_WORDS[result.status]}{result.text}"
                    self.line(self._fitted(text), "bad" if result.is_error else "tool")
        if isinstance(event, ModelAsked):
            self.shown = ""

    def _show_turn(self, turn: Turn) -> None:
        self._pause()
        if self._level == FULL and turn.reasoning and not self._ticking:
            self.line(f"思考：{turn.reasoning}")
        if turn.calls and turn.text and not self.shown:
            self.line(self._fitted(turn.text))
        if self._level == FULL and turn.usage:
            self.line(f"本轮输入 {turn.usage.input}、输出 {turn.usage.output} 个 token，结束原因 {turn.finish}")

    def _fitted(self, text: str) -> str:
        """The text in one line of the screen, whole when the user wants all."""
        if self._level == FULL:
            return text
        text = " ".join(text.split())
        room = 2 * self._style.width
        return text if columns(text) <= room else next(iter(_chopped(text, room))) + " ……"

    def delta(self, kind: str, piece: str) -> None:
        """Show a piece of the answer, or of the reasoning, as it arrives."""
        if kind == "again":  # the stream broke; the answer begins anew
            self.shown = ""
        elif kind == "text" and self._answer:
            self._change_to("text")
            self._answer(piece)
            self.shown += piece
        elif kind == "reasoning" and self._ticking and self._level == FULL:
            self._change_to("reasoning")
            self._write(self._style.paint(piece, "dim"))

    def _change_to(self, kind: str) -> None:
        if self._kind != kind:
            self._pause()
            self._kind = kind

    def _wait(self, what: str) -> None:
        """Count the seconds in one line of the terminal until something else is shown."""
        self._pause()
        if not self._ticking:
            return
        stop = self._stop = threading.Event()

        def tick() -> None:
            for second in itertools.count():
                if stop.wait(1.0):
                    return
                self._write(f"\r{what} {second + 1} 秒 ")

        self._clock = threading.Thread(target=tick, daemon=True)
        self._clock.start()
        self._waiting = what

    def _pause(self) -> None:
        """End the unfinished line, be it the clock's or the model's."""
        if self._stop:
            self._stop.set()
            self._clock.join()
            self._write("\r" + " " * (columns(self._waiting) + 10) + "\r")
            self._stop = None
        if self._kind:
            (self._answer if self._kind == "text" else self._write)("\n")
            self._kind = ""

    def close(self) -> None:
        """Leave the screen tidy, whatever happened."""
        self._pause()


# --- the trace of a run: OpenTelemetry's GenAI attribute names, one JSON object a line ---


def _without_secrets(value: object, name: str = "") -> object:
    """A JSON value with what looks like a key or password left out of its texts."""
    match value:
        case str():
            text = f"{name}: {value}"
            for pattern, replacement in _PRIVATE:
                text = pattern.sub(replacement, text)
            return text.removeprefix(f"{name}: ")
        case dict():
            return {key: _without_secrets(inner, key) for key, inner in value.items()}
        case list():
            return [_without_secrets(inner, name) for inner in value]
        case _:
            return value


class Trace:
    """Turns the events of a run into lines of JSON; `write` takes one line. Never holds a key.

    Attributes: opentelemetry.io/docs/specs/semconv/gen-ai. Ours have no prefix: time, duration_s,
    status, attempts, tool_result_tokens (an estimate: servers do not tell them apart).
    """

    def __init__(
        self, write: Callable[[str], None], model, *,
        provider: str, address: str, arguments: bool = False, now: Callable[[], str],
    ):
        self._write, self._model, self._now, self._arguments = write, model, now, arguments
        self._common = {"gen_ai.provider.name": provider, "server.address": address}
        self._requests = self._result_tokens = 0
        self._failures: dict[str, int] = {}  # tool → failed calls in a row

    def _record(self, operation: str, attributes: dict, **ours) -> None:
        record = {"time": self._now(), "gen_ai.operation.name": operation, **self._common, **ours}
        known = {key: value for key, value in attributes.items() if value is not None}
        self._write(json_text(json_value({**record, **known})) + "\n")

    def event(self, event: Event) -> None:
        """Write what is worth a line: model turns, tool calls, the end."""
        match event:
            case ModelAnswered(turn=turn, seconds=seconds):
                self._turn(turn, seconds)
            case CallFinished(call, result, seconds):
                self._call(call, result, seconds)
            case Finished(_, reason, usage, turns):
                tokens = {
                    "gen_ai.usage.input_tokens": usage.input,
                    "gen_ai.usage.output_tokens": usage.output,
                }
                self._record("invoke_agent", tokens, status=reason, turns=turns)

    def _turn(self, turn: Turn, seconds: float | None) -> None:
        sent = getattr(self._model, "requests", self._requests + 1)
        usage = turn.usage or Usage()
        attributes = {
            "gen_ai.request.model": self._model_name(),
            "gen_ai.response.finish_reasons": [turn.finish],
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "tool_result_tokens": self._result_tokens,
        }
        attempts = sent - self._requests
        self._record("chat", attributes, duration_s=seconds, status="ok", attempts=attempts)
        self._requests, self._result_tokens = sent, 0

    def _call(self, call: ToolCall, result: ToolResult, seconds: float | None) -> None:
        attempts = self._failures.get(call.name, 0) + 1
        self._failures[call.name] = attempts if result.is_error else 0
        wide = sum(char >= "\u2e80" for char in result.text)
        self._result_tokens += round(0.6 * wide + (len(result.text) - wide) / 4)
        shown = {
            "gen_ai.tool.call.arguments": arguments_object(call.arguments),
            "gen_ai.tool.call.result": result.text,
        }
        attributes = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "error.type": result.status if result.is_error else None,
            **(_without_secrets(shown) if self._arguments else {}),
        }
        ours = {"duration_s": seconds, "status": result.status, "attempts": attempts}
        self._record("execute_tool", attributes, **ours)

    def failed(self, error: BaseException) -> None:
        """Write that the run ended without an answer."""
        attributes = {
            "gen_ai.request.model": self._model_name(), "error.type": type(error).__name__,
        }
        self._record("chat", attributes, status="failed")

    def _model_name(self) -> str | None:
        settings = getattr(self._model, "settings", None)
        return settings.model if settings else None


# --- a model for trying the command offline ---


def _mock_sum(messages: list[dict]) -> Turn:
    return Turn(f"（模拟模型）计算器给出：{last_result(messages)}")


def _mock_hits(messages: list[dict]) -> Turn:
    match last_result(messages):
        case {"hits": [_, *_] as hits}:
            return Turn("（模拟模型）讲义里相关的有：" + "；".join(f"{h['section']} {h['title']}" for h in hits))
        case other:
            return Turn(f"（模拟模型）没有查到。工具说：{show(other)}")


def mock_model(question: str) -> MockLLM:
    """A scripted model for any question: it calculates what looks like a sum, else searches."""
    sums = re.findall(r"[\d(][\d.()\s+*/%-]*[\d)]", question.replace("×", "*").replace("÷", "/"))
    expression = next((text for text in sums if re.search(r"[+*/%-]", text)), "")
    if expression:
        return MockLLM([calling(("calculator", {"expression": expression})), _mock_sum])
    return MockLLM([calling(("search_notes", {"query": question[:200], "top_k": 3})), _mock_hits])
