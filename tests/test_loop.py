"""§12 and §13: the loop with a scripted model. Events, no sleeping; every call one result."""

import contextvars
import itertools
import json
import math
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp
from w4d3_tools_mcp import (
    LATE,
    REPEATED,
    BackendError,
    CallFinished,
    CallStarted,
    Finished,
    Limits,
    MockLLM,
    ModelAnswered,
    ModelAsked,
    SchemaError,
    Tool,
    ToolCall,
    ToolError,
    ToolRegistry,
    Turn,
    Usage,
    assistant_message,
    call_key,
    last_result,
    run_tool_loop,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


def tool(name, run, **options):
    return Tool(name, f"{name} 的说明", SCHEMA, run, **options)


def calls(*pairs, finish="tool_calls", usage=None, text=""):
    return Turn(
        text,
        tuple(
            ToolCall(f"id{i}", name, args if isinstance(args, str) else json.dumps(args))
            for i, (name, args) in enumerate(pairs)
        ),
        finish,
        usage,
    )


def run(script, tools, **options):
    messages = [{"role": "user", "content": "问"}]
    events = list(run_tool_loop(MockLLM(script), ToolRegistry(tools), messages, **options))
    return messages, events


def results(messages):
    return [m["content"] for m in messages if m["role"] == "tool"]


def assert_every_call_has_one_result_in_order(messages):
    waiting = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert waiting == []


def statuses(events):
    return [e.result.status for e in events if isinstance(e, CallFinished)]


def assert_it_can_be_sent(messages):
    json.dumps(messages, ensure_ascii=False, allow_nan=False).encode("utf-8")
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) and all(map(str.strip, ids))
    assert_every_call_has_one_result_in_order(messages)


def test_an_answer_without_calls_ends_the_run():
    messages, events = run([Turn("你好")], [])
    assert events[:1] == [ModelAsked(1)] and isinstance(events[1], ModelAnswered)
    assert events[2] == Finished("你好", "answered", Usage(), 1)
    assert messages[1] == {"role": "assistant", "content": "你好"}


def test_a_call_is_run_and_its_result_goes_back():
    messages, events = run(
        [calls(("double", {"n": 21})), Turn("42")], [tool("double", lambda a: a["n"] * 2)]
    )
    kinds = [type(e) for e in events]
    assert kinds == [
        ModelAsked,
        ModelAnswered,
        CallStarted,
        CallFinished,
        ModelAsked,
        ModelAnswered,
        Finished,
    ]
    assert messages[2] == {"role": "tool", "tool_call_id": "id0", "content": "42"}


def test_the_whole_history_goes_with_every_request():
    model = MockLLM([calls(("t", {})), Turn("好")])
    list(
        run_tool_loop(
            model, ToolRegistry([tool("t", lambda a: 1)]), [{"role": "user", "content": "问"}]
        )
    )
    assert model.asked == [1, 3]


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        ({"type": "function", "function": {"name": "t"}}, "auto"),
    ],
    ids=str,
)
def test_a_call_is_forced_once_so_that_there_can_be_an_answer(choice, later):
    asked = []

    class Model(MockLLM):
        def chat(self, messages, tools, tool_choice="auto", on_delta=None):
            asked.append(tool_choice)
            return super().chat(messages, tools, tool_choice, on_delta)

    model = Model([calls(("t", {})), calls(("t", {"n": 1})), Turn("好")])
    messages = [{"role": "user", "content": "问"}]
    *_, end = run_tool_loop(
        model, ToolRegistry([tool("t", lambda a: 1)]), messages, tool_choice=choice
    )
    assert end.reason == "answered" and asked == [choice, later, later]


def test_calls_of_a_turn_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=5)  # breaks unless both tools are inside together
    messages, _ = run(
        [calls(("t", {"n": 1}), ("t", {"n": 2})), Turn("好")],
        [tool("t", lambda a: (meeting.wait(), a["n"])[1])],
    )
    assert results(messages) == ["1", "2"]


def test_results_stand_in_call_order_whatever_finishes_first():
    second_done = threading.Event()

    def slow_first(args):
        if args["n"] == 1:
            assert second_done.wait(5)
        else:
            second_done.set()
        return args["n"]

    messages, events = run(
        [calls(("t", {"n": 1}), ("t", {"n": 2})), Turn("好")], [tool("t", slow_first)]
    )
    assert results(messages) == ["1", "2"]
    assert [e.call.id for e in events if isinstance(e, CallFinished)] == ["id0", "id1"]


def test_tools_that_act_on_the_world_run_one_by_one():
    inside, most = [], []

    def act(args):
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        return "好"

    acting = tool("send", act, labels=frozenset({"sends"}))
    run([calls(*[("send", {"n": i}) for i in range(20)]), Turn("好")], [acting])
    assert len(most) == 20 and max(most) == 1


def test_a_tool_that_never_returns_is_given_up_and_the_others_still_answer():
    never = threading.Event()
    tools = [tool("hang", lambda a: never.wait()), tool("quick", lambda a: "快", seconds=5)]
    messages, events = run(
        [calls(("hang", {}), ("quick", {})), Turn("好")],
        tools,
        limits=Limits(seconds=0.05),
    )
    assert "0.05 秒" in results(messages)[0] and results(messages)[1] == "快"
    assert [e.result.status for e in events if isinstance(e, CallFinished)] == ["timed_out", "ok"]
    assert_every_call_has_one_result_in_order(messages)


def test_all_tools_of_a_turn_share_one_deadline():
    never, starts = threading.Event(), [0.0]
    hanging = [tool(f"hang{i}", lambda a: never.wait()) for i in range(6)]
    clock = lambda: starts[0]
    messages, events = run(
        [calls(*[(t.name, {}) for t in hanging]), Turn("好")],
        hanging,
        limits=Limits(seconds=0.05),
        clock=clock,
    )
    assert [e.result.status for e in events if isinstance(e, CallFinished)] == ["timed_out"] * 6


def test_a_tool_may_set_its_own_time():
    never = threading.Event()
    messages, _ = run(
        [calls(("hang", {})), Turn("好")],
        [tool("hang", lambda a: never.wait(), seconds=0.02)],
    )
    assert "0.02 秒" in results(messages)[0]


class JumpingClock:
    """A clock that goes on by `step` at every look, and once, at look number `at`, by `jump`."""

    def __init__(self, step, at, jump, then=lambda: None):
        self.step, self.at, self.jump, self.then = step, at, jump, then
        self.now, self.looks = 1000.0, 0

    def monotonic(self):
        self.looks += 1
        self.now += self.jump if self.looks == self.at else self.step
        if self.looks == self.at + 1:
            self.then()
        return self.now


@pytest.mark.parametrize("at", [3, 4, 9])
@pytest.mark.parametrize("number", [1, 2])
def test_time_in_which_the_whole_machine_stood_still_does_not_count(monkeypatch, at, number):
    go = threading.Event()
    monkeypatch.setattr(w4d3_tools_mcp, "SLICE", 0.001)
    monkeypatch.setattr(w4d3_tools_mcp, "time", JumpingClock(0.0, at, 3600.0, go.set))
    script = [calls(*[("t", {"n": n}) for n in range(number)]), Turn("好")]
    messages, _ = run(script, [tool("t", lambda a: go.wait(20))], limits=Limits(seconds=60.0))
    assert results(messages) == ["true"] * number


@pytest.mark.parametrize("step", [0.5, 4.0])
def test_a_machine_that_is_only_slow_extends_no_deadline(monkeypatch, step):
    never, clock = threading.Event(), JumpingClock(step, 0, 0.0)
    monkeypatch.setattr(w4d3_tools_mcp, "SLICE", 0.001)
    monkeypatch.setattr(w4d3_tools_mcp, "time", clock)
    script = [calls(("t", {})), Turn("好")]
    _, events = run(script, [tool("t", lambda a: never.wait())], limits=Limits(seconds=8.0))
    assert statuses(events) == ["timed_out"] and clock.looks <= 8 / step + 3


def test_a_repeated_call_gets_the_old_result_and_the_third_time_stops():
    ran = []
    same = [calls(("t", {"n": 1}))] * 3
    messages, events = run(same, [tool("t", lambda a: ran.append(1) or "结果")])
    assert ran == [1]
    assert results(messages)[1] == f"结果\n{REPEATED}"
    assert events[-1].reason == "same_call" and events[-1].turns == 3
    assert_every_call_has_one_result_in_order(messages)


def test_the_same_arguments_in_another_order_or_spelling_are_the_same_call():
    script = [
        calls(("t", '{"a": 1, "b": 2}')),
        calls(("t", '{"b":2,"a":1}')),
        calls(("t", '{"a":1,"b":2}')),
    ]
    _, events = run(script, [tool("t", lambda a: "x")])
    assert events[-1].reason == "same_call"


def test_a_live_tool_runs_every_time_and_is_never_a_repetition():
    progress = iter(range(100))
    live = tool("poll", lambda a: next(progress), labels={"live", "read_only"})
    messages, events = run([calls(("poll", {}))] * 6 + [Turn("好")], [live])
    assert results(messages) == list("012345") and events[-1].reason == "answered"


class Acting:
    """A tool that acts, and goes on after its time is up until `let_go`."""

    def __init__(self, label):
        self.began, self.go = [], threading.Event()
        self.tool = tool("pay", self._run, labels={label}, seconds=0.05)

    def _run(self, args):
        self.thread = threading.current_thread()
        self.began.append(args)
        assert self.go.wait(10)
        return "付了"

    def let_go(self, messages):
        """An answer of the model that waits for the end of the call and makes it again."""
        self.go.set()
        self.thread.join(10)
        return calls(("pay", {"n": 1}))


@pytest.mark.parametrize("label", ["sends", "irreversible"])
@pytest.mark.parametrize("again", [{"n": 1}, {"n": 2}])
def test_an_acting_tool_that_is_still_running_is_not_run_again(label, again):
    acting = Acting(label)
    script = [calls(("pay", {"n": 1})), calls(("pay", again)), calls(("pay", again)), Turn("好")]
    messages, events = run(script, [acting.tool])
    acting.go.set()
    assert acting.began == [{"n": 1}] and statuses(events) == ["timed_out", "limited", "limited"]
    assert "可能仍会发生" in results(messages)[0] and "再试" not in results(messages)[0]
    assert "没有执行" in results(messages)[1]


def test_the_same_call_twice_in_one_turn_does_not_hide_the_one_that_runs():
    acting = Acting("sends")
    twice = calls(("pay", {"n": 1}), ("pay", {"n": 1}))
    messages, events = run([twice, calls(("pay", {"n": 1})), Turn("好")], [acting.tool])
    acting.go.set()
    assert len(acting.began) == 1 and statuses(events) == ["timed_out", "timed_out", "limited"]


def test_a_late_result_is_given_to_the_same_call_which_is_not_run_again():
    acting = Acting("sends")
    other = [calls(("t", {}))]
    script = [calls(("pay", {"n": 1})), *other, acting.let_go, Turn("好")]
    messages, events = run(script, [acting.tool, tool("t", lambda a: 1)])
    assert len(acting.began) == 1 and results(messages)[2] == f"付了\n{LATE}"


def test_another_acting_tool_does_not_wait_for_one_that_is_still_running():
    acting, other = Acting("sends"), tool("send", lambda a: "发了", labels={"sends"})
    messages, _ = run([calls(("pay", {})), calls(("send", {})), Turn("好")], [acting.tool, other])
    acting.go.set()
    assert results(messages)[1] == "发了"


def test_a_call_that_never_got_its_turn_says_so():
    acting = Acting("sends")
    messages, events = run([calls(("pay", {"n": 1}), ("pay", {"n": 2})), Turn("好")], [acting.tool])
    acting.go.set()
    assert statuses(events) == ["timed_out"] * 2 and "没有执行" in results(messages)[1]
    assert len(acting.began) == 1 and "没有执行" not in results(messages)[0]


def test_a_failed_call_may_be_tried_again():
    ran = []

    def fails_once(args):
        ran.append(1)
        if len(ran) == 1:
            raise ToolError("忙")
        return "好了"

    messages, events = run(
        [calls(("t", {})), calls(("t", {})), Turn("行")], [tool("t", fails_once)]
    )
    assert results(messages) == ["忙", "好了"] and events[-1].reason == "answered"


def test_a_tool_that_raises_what_it_likes_still_gets_one_result():
    def run_(args):
        raise KeyboardInterrupt

    messages, events = run(
        [calls(("t", {})), Turn("好")], [tool("t", run_)], limits=Limits(seconds=None)
    )
    assert "KeyboardInterrupt" in results(messages)[0] and events[-1].reason == "answered"


def test_another_call_between_starts_the_count_again():
    script = [calls(("t", {"n": n})) for n in (1, 2, 1, 2, 1)] + [Turn("好")]
    _, events = run(script, [tool("t", lambda a: a["n"])])
    assert events[-1].reason == "answered"


@pytest.mark.parametrize(
    "limits, turn, reason",
    [
        (Limits(turns=1), calls(("t", {}), text="先查一下"), "turns"),
        (Limits(tokens=10), calls(("t", {}), usage=Usage(8, 2), text="先查一下"), "tokens"),
        (Limits(same_call=1), calls(("t", {}), text="先查一下"), "same_call"),
    ],
)
def test_a_limit_refuses_the_pending_calls_and_keeps_the_last_text(limits, turn, reason):
    ran = []
    messages, events = run([turn], [tool("t", lambda a: ran.append(1))], limits=limits)
    assert ran == [] and events[-1].reason == reason and events[-1].text == "先查一下"
    assert "没有执行" in results(messages)[0]
    assert_every_call_has_one_result_in_order(messages)


BAD = [0, -1, math.inf, -math.inf, math.nan, 1e20, 10**20, "5", True, [5]]


@pytest.mark.parametrize("name", Limits._fields)
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_limits_that_make_no_sense_are_refused_by_name(name, bad):
    with pytest.raises(SchemaError, match=f"Limits.*{name}.*None"):
        run([Turn("好")], [], limits=Limits(**{name: bad}))


@pytest.mark.parametrize("limits", [Limits(seconds=10**9), Limits(*[1] * 5), Limits(seconds=1e-9)])
def test_limits_that_make_sense_are_taken(limits):
    messages, _ = run([calls(("t", {"n": 1})), Turn("好")], [tool("t", lambda a: 1)], limits=limits)
    assert_it_can_be_sent(messages)


def test_limits_can_be_switched_off():
    script = [calls(("t", {"n": 1}), usage=Usage(10**9, 0))] * 30 + [Turn("好")]
    off = Limits(*[None] * len(Limits._fields))
    messages, events = run(script, [tool("t", lambda a: "r" * 9999)], limits=off)
    assert events[-1].reason == "answered" and len(results(messages)[0]) == 9999
    assert results(messages)[-1].count(REPEATED) == 1


def test_the_limits_are_those_of_the_lecture():
    assert Limits() == (8, 30.0, 200_000, 3, 1500)


def test_the_loop_prints_nothing(capfd):
    run([calls(("t", {}), ("nope", {}), ("t", "{bad")), Turn("好")], [tool("t", lambda a: 1)])
    assert capfd.readouterr() == ("", "")


def test_an_answer_inside_the_limits_counts_even_when_the_budget_is_spent():
    _, events = run([Turn("好", usage=Usage(10**9, 5))], [])
    assert events[-1].reason == "answered" and events[-1].usage == Usage(10**9, 5)


def test_a_thousand_calls_in_one_turn_are_bounded_and_all_answered():
    ran = []
    messages, _ = run(
        [calls(*[("t", {"n": i}) for i in range(1000)]), Turn("好")],
        [tool("t", lambda a: ran.append(a["n"]))],
    )
    assert len(ran) == 32 and len(results(messages)) == 1000


@pytest.mark.parametrize(
    "arguments, runs",
    [
        ('{"n": 1}', True),
        ('{"n": 1', False),
        ("", False),
        ('{"n": "长', False),
    ],
)
def test_a_call_cut_off_at_the_token_limit_is_never_run(arguments, runs):
    ran = []
    messages, _ = run(
        [calls(("t", arguments), finish="length"), Turn("好")], [tool("t", lambda a: ran.append(1))]
    )
    assert bool(ran) is runs
    assert runs or "长度上限" in results(messages)[0]


def test_an_answer_cut_at_the_token_limit_says_so():
    _, events = run([Turn("半句", finish="length")], [])
    assert events[-1].reason == "length" and events[-1].text == "半句"


def test_unknown_tools_and_bad_arguments_are_results_not_exceptions():
    messages, events = run(
        [calls(("nope", {}), ("t", "{bad"), ("t", {"n": "x"})), Turn("好")],
        [tool("t", lambda a: 1)],
    )
    statuses = [e.result.status for e in events if isinstance(e, CallFinished)]
    assert statuses == ["unknown_tool", "bad_arguments", "bad_arguments"]
    assert_every_call_has_one_result_in_order(messages)


class Interrupt:
    """A trace function that raises KeyboardInterrupt once, after so many steps of the product."""

    def __init__(self, steps, opcodes):
        self.steps, self.opcodes = steps, opcodes

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename != w4d3_tools_mcp.__file__:
            return None
        frame.f_trace_opcodes = self.opcodes
        self.steps -= 1
        if self.steps == 0:
            raise KeyboardInterrupt
        return self


def interrupted_runs(opcodes):
    """The history of one run after the other, each interrupted one step later than the last."""
    pay = tool("pay", lambda a: "付了", labels={"sends"})
    tools = ToolRegistry([tool("t", lambda a: a["n"]), pay])
    for step in itertools.count(1, 31 if opcodes else 1):
        script = [calls(("t", {"n": 1}), ("pay", {})), calls(("t", {"n": 1})), Turn("好")]
        messages = [{"role": "user", "content": "问"}]
        interrupt, before = Interrupt(step, opcodes), sys.gettrace()
        sys.settrace(interrupt)
        try:
            list(run_tool_loop(MockLLM(script), tools, messages, approve=lambda call: True))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        yield messages
        if interrupt.steps > 0:
            return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("opcodes", [False, True])
def test_ctrl_c_at_any_step_leaves_a_history_that_can_be_sent_again(opcodes):
    lengths = set()
    for messages in interrupted_runs(opcodes):
        assert_it_can_be_sent(messages)
        lengths.add(len(messages))
    assert lengths == {1, 4, 6, 7}


def test_every_call_has_its_answer_at_every_event():
    messages = [{"role": "user", "content": "问"}]
    script = [calls(("t", {"n": 1}), ("t", {"n": 2})), calls(("t", {"n": 3})), Turn("好")]
    for _ in run_tool_loop(MockLLM(script), ToolRegistry([tool("t", lambda a: 1)]), messages):
        assert_it_can_be_sent(messages)


def test_ctrl_c_inside_a_tool_wait_leaves_a_complete_history():
    def interrupted(call):
        raise KeyboardInterrupt

    messages = [{"role": "user", "content": "问"}]
    model = MockLLM([calls(("t", {"n": 1}), ("t", {"n": 2}))])
    with pytest.raises(KeyboardInterrupt):
        list(
            run_tool_loop(
                model, ToolRegistry([tool("t", lambda a: 1)]), messages, approve=interrupted
            )
        )
    assert_every_call_has_one_result_in_order(messages)
    assert all("中断" in text for text in results(messages))


@pytest.mark.parametrize("stop_at", range(1, 5))
def test_closing_the_generator_anywhere_leaves_a_complete_history(stop_at):
    messages = [{"role": "user", "content": "问"}]
    loop = run_tool_loop(
        MockLLM([calls(("t", {"n": 1}), ("t", {"n": 2})), Turn("好")]),
        ToolRegistry([tool("t", lambda a: 1)]),
        messages,
    )
    for _ in range(stop_at):
        next(loop)
    loop.close()
    assert_every_call_has_one_result_in_order(messages)


def test_a_refused_call_is_not_run():
    ran = []
    messages, events = run(
        [calls(("t", {"n": 1}), ("t", {"n": 2})), Turn("好")],
        [tool("t", lambda a: ran.append(a["n"]))],
        approve=lambda call: "2" in call.arguments,
    )
    assert ran == [2] and "没有批准" in results(messages)[0]


def test_an_approval_that_fails_is_a_refusal_with_its_reason():
    def approve(call):
        raise OSError("no terminal")

    ran = []
    script = [calls(("t", {})), Turn("好")]
    messages, events = run(script, [tool("t", lambda a: ran.append(1))], approve=approve)
    assert ran == [] and "no terminal" in results(messages)[0]
    assert statuses(events) == ["cancelled"] and events[-1].reason == "answered"


class Loud:
    def __repr__(self):
        raise RuntimeError


HALF = "x\ud800"


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("a", "t", {}),
        ToolCall("a", "t", {"n": 1}),
        ToolCall("a", "t", {1: 2, None: {3}, "x": object()}),
        ToolCall("a", "t", {"n": math.nan}),
        ToolCall("a", "t", {"n": Loud()}),
        ToolCall("a", "t", None),
        ToolCall("a", "t", 5),
        ToolCall("a", "t", ["n"]),
        ToolCall("a", "t", b"\xff"),
        ToolCall("a", "t", {"n": 10**5000}),
        ToolCall("a", ["t"], "{}"),
        ToolCall("a", {"t": 1}, "{}"),
        ToolCall("a", None, "{}"),
        ToolCall(None, "t", "{}"),
        ToolCall(5, "t", "{}"),
        ToolCall(["a"], "t", "{}"),
        ToolCall(HALF, HALF, f'{{"n": "{HALF}"}}', {HALF: HALF}),
        ToolCall("a", "t", {HALF: HALF}),
        ToolCall("a", "t", "{}", {"id": "b", "type": "x", "function": None, "sig": {1, 2}}),
        ToolCall("a", "t", "{}", {"sig": Loud()}),
    ],
    ids=lambda call: str(type(call.arguments)),
)
def test_a_call_of_any_shape_gets_one_result(call):
    turn = Turn(HALF, (call, call), "tool_calls", None, HALF, {HALF: HALF})
    messages, events = run([turn, turn, Turn(HALF)], [tool("t", lambda a: HALF)])
    assert_it_can_be_sent(messages)
    assert len(results(messages)) == 4 and events[-1].reason == "answered"
    sent = messages[1]["tool_calls"][0]
    assert sent["type"] == "function" and set(sent["function"]) == {"name", "arguments"}
    assert sent["id"] == messages[2]["tool_call_id"] and type(sent["function"]["name"]) is str


@pytest.mark.parametrize("arguments", [{1: 2, None: {3}}, {"n": math.nan}, None, 5, "{", b"\xff"])
def test_a_call_of_any_shape_can_be_compared(arguments):
    assert call_key(ToolCall("a", ["t"], arguments)) == call_key(ToolCall("b", ["t"], arguments))


@pytest.mark.parametrize(
    "extra",
    [
        {"role": "user"},
        {"content": None},
        {"tool_calls": [{"id": "b"}]},
        {"role": 5, "x": {1}},
    ],
)
def test_unknown_keys_replace_nothing_that_the_loop_relies_on(extra):
    script = [calls(("t", {}), text="先查")._replace(extra=extra), Turn("好", extra=extra)]
    messages, _ = run(script, [tool("t", lambda a: 1)])
    assert_it_can_be_sent(messages)
    first, last = messages[1], messages[-1]
    assert (first["role"], first["content"], len(first["tool_calls"])) == ("assistant", "先查", 1)
    assert (last["role"], last["content"], "tool_calls" in last) == ("assistant", "好", False)


@pytest.mark.parametrize(
    "usage, total",
    [
        (Usage(None, 1), Usage(0, 1)),
        (Usage("7", 1.5, [1]), Usage()),
        (Usage(-5, math.nan, 2), Usage(0, 0, 2)),
        (Usage(3, 4), Usage(3, 4)),
        ({"input": 1}, Usage()),
    ],
)
def test_usage_that_is_no_number_counts_as_nothing(usage, total):
    _, events = run([Turn("好", usage=usage)], [])
    assert events[-1].usage == total


@pytest.mark.parametrize(
    "turn",
    [Turn(None), Turn("", None), Turn("", [], None), Turn(reasoning=None), Turn("", extra={})],
)
def test_a_field_that_is_missing_has_its_default(turn):
    messages, events = run([turn], [])
    assert events[-1].reason == "answered" and messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "好",
        {"text": "好"},
        5,
        Turn(5),
        Turn(["好"]),
        Turn(b"x"),
        Turn("", 5),
        Turn("", "abc"),
        Turn("", [None]),
        Turn("", [{"name": "t"}]),
        Turn("", (), 5),
        Turn("", usage=5),
        Turn("", reasoning=[1]),
        Turn("", extra=5),
    ],
    ids=str,
)
def test_an_answer_that_is_no_turn_ends_the_run_with_a_reason(answer):
    class Model:
        def chat(self, messages, tools, tool_choice, on_delta):
            return answer

    messages = [{"role": "user", "content": "问"}]
    with pytest.raises(BackendError, match="Turn"):
        list(run_tool_loop(Model(), ToolRegistry(), messages))
    assert messages == [{"role": "user", "content": "问"}]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.binary(max_size=3)
    # lone surrogates included
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["t", "{}", '{"n": 1}', "length"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=5,
)
odd_calls = st.builds(ToolCall, *[anything] * 4)
fields = [
    anything,
    st.lists(odd_calls | anything, max_size=3),
    anything,
    anything,
    anything,
    anything,
]
odd_turns = st.builds(Turn, *fields) | st.builds(Turn, calls=st.lists(odd_calls, max_size=3))


@settings(max_examples=100, deadline=None)
@given(st.lists(odd_turns, max_size=4))
def test_whatever_a_model_answers_the_history_can_be_sent(turns):
    messages = [{"role": "user", "content": "问"}]
    tools = ToolRegistry([tool("t", lambda a: a)])
    try:
        *_, end = run_tool_loop(MockLLM([*turns, Turn("好")]), tools, messages)
        assert isinstance(end, Finished)
    except BackendError as error:
        assert "Turn" in str(error)
    assert_it_can_be_sent(messages)


@pytest.mark.parametrize("id", ["a", "", " ", None, 7])
def test_an_id_or_name_that_servers_refuse_is_replaced(id):
    call = ToolCall(id, "t", "{}")
    turns = [Turn("", (call, call)), Turn("", (call, ToolCall("b", "", "{}"))), Turn("好")]
    messages, _ = run(turns, [tool("t", lambda a: 1)])
    functions = [c for m in messages for c in m.get("tool_calls", ())]
    ids = [c["id"] for c in functions]
    assert len(ids) == 4 and len(set(ids)) == 4 and all(map(str.strip, ids)) and ids[3] == "b"
    assert [c["function"]["name"] for c in functions] == ["t", "t", "t", "unnamed"]
    assert_it_can_be_sent(messages)


def test_a_clock_that_fails_in_a_tool_thread_costs_only_the_call():
    def clock():
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no clock")
        return 0.0

    off = Limits(seconds=None)
    script = [calls(("t", {})), Turn("好")]
    messages, _ = run(script, [tool("t", lambda a: 1)], clock=clock, limits=off)
    assert "no clock" in results(messages)[0]


VARIABLE = contextvars.ContextVar("VARIABLE", default="nothing")


def test_context_variables_reach_the_tools():
    async def read():
        return VARIABLE.get()

    VARIABLE.set("here")
    script = [calls(("plain", {}), ("later", {})), Turn("好")]
    tools = [tool("plain", lambda a: VARIABLE.get()), tool("later", lambda a: read())]
    assert results(run(script, tools)[0]) == ["here", "here"]


def test_a_backend_error_reaches_the_caller_with_a_history_that_can_be_sent_again():
    messages = [{"role": "user", "content": "问"}]
    with pytest.raises(BackendError, match="演完"):
        list(
            run_tool_loop(
                MockLLM([calls(("t", {}))]), ToolRegistry([tool("t", lambda a: 1)]), messages
            )
        )
    assert_every_call_has_one_result_in_order(messages)


def test_usage_adds_up():
    _, events = run(
        [calls(("t", {}), usage=Usage(10, 2, 1)), Turn("好", usage=Usage(20, 3, 4))],
        [tool("t", lambda a: 1)],
    )
    assert events[-1].usage == Usage(30, 5, 5)


def test_the_assistant_message_keeps_unknown_keys_and_writes_arguments_as_text():
    turn = Turn("", (ToolCall("a", "t", {"n": 1}, {"sig": "s"}),), extra={"reasoning": "想"})
    assert assistant_message(turn) == {
        "role": "assistant",
        "content": "",
        "reasoning": "想",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "sig": "s",
                "function": {"name": "t", "arguments": '{"n": 1}'},
            }
        ],
    }


def test_seconds_come_from_the_clock_that_was_given():
    ticks = iter(range(100))
    _, events = run(
        [calls(("t", {})), Turn("好")], [tool("t", lambda a: 1)], clock=lambda: next(ticks)
    )
    assert [e.seconds for e in events if isinstance(e, (ModelAnswered, CallFinished))] == [1, 1, 1]


def test_deltas_reach_the_caller():
    pieces = []
    run([Turn("你好")], [], on_delta=lambda kind, piece: pieces.append((kind, piece)))
    assert pieces == [("text", "你好")]


def test_the_mock_reads_the_history():
    model = MockLLM([lambda messages: Turn(str(last_result(messages)["x"]))])
    assert model.chat([{"role": "tool", "content": '{"x": 5}'}], []).text == "5"


@pytest.mark.parametrize("text, value", [("[" * 9000, "[" * 9000), ("文字", "文字"), ("[1]", [1])])
def test_the_last_result_is_json_or_text(text, value):
    assert last_result([{"role": "tool", "content": text}]) == value


def test_without_a_result_there_is_no_last_one():
    assert last_result([{"role": "user", "content": "问"}]) is None
