"""§8 Router: which tools are found, what is offered to a model, and the catalogue."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from w4d3_tools_mcp import (
    CATALOGUE,
    MockLLM,
    Style,
    ToolCall,
    ToolRegistry,
    ToolRouter,
    Turn,
    asked_lately,
    built_in_tools,
    calling,
    catalogue_tools,
    check_tool,
    opening,
    router_demo_text,
    run_tool_loop,
    tools_called,
    with_tool_search,
)


def plain(name, description="", **properties):
    return {"name": name, "description": description, "parameters": {"properties": properties}}


def names(picked):
    return [routed.name for routed in picked]


@pytest.fixture(scope="module")
def catalogue():
    return catalogue_tools()


@pytest.fixture(scope="module")
def router(catalogue):
    return ToolRouter(catalogue)


# --- what is matched ---

OTHERS = [plain(f"other_{i}", f"something else number {i}") for i in range(8)]


@pytest.mark.parametrize(
    ("tool", "request_"),
    [
        (plain("get_exchange_rate"), "exchange rate please"),
        (plain("getExchangeRate"), "the exchange rate"),
        (plain("HTTPServerRestart"), "restart the server"),
        (plain("math.factorial"), "factorial of 5"),
        (plain("x", "Converts currencies"), "convert this currency"),
        (plain("x", "Calculate a mortgage"), "a mortgage calculator"),
        (plain("x", "Translation of text"), "translate it"),
        (plain("x", "Ratings of films"), "rated highly"),
        (plain("x", "", postcode={"type": "string"}), "which postcode"),
        (plain("x", "", where={"type": "str", "description": "airport code"}), "airport code"),
        (plain("x", "", mode={"enum": ["bicycle", "tram"]}), "by tram"),
        (plain("x", "", a={"type": "dict", "properties": {"humidity": {}}}), "humidity"),
        (plain("x", "", a={"type": "array", "items": {"properties": {"iban": {}}}}), "my iban"),
        (plain("x", "", a={"anyOf": [{"description": "zip"}, {"type": "null"}]}), "a zip"),
        (plain("x", "查询天气预报"), "明天的天气怎么样"),
        (plain("x", "调整图片亮度"), "把亮度调高"),
        (plain("x", "ＧＰＵ 监控"), "gpu"),
    ],
)
def test_a_tool_is_found_by_its_name_text_parameters_and_accepted_values(tool, request_):
    assert names(ToolRouter([*OTHERS, tool]).pick(request_, k=1)) == [tool["name"]]


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        [],
        "text",
        7,
        {"properties": None},
        {"properties": []},
        {"properties": {"a": 1}},
        {"enum": "abc"},
        {"properties": {"a": {"enum": [1, None, {}, "x"], "description": 5}}},
        {"properties": {"properties": {"properties": {}}, "enum": {}, "description": {}}},
    ],
)
def test_parameters_of_any_shape_do_no_harm(parameters):
    tool = {"name": "send_mail", "description": "mail", "parameters": parameters}
    assert names(ToolRouter([*OTHERS, tool]).pick("mail", k=2)) == ["send_mail"]


@pytest.mark.parametrize("key", ["parameters", "inputSchema", "input_schema"])
def test_tools_may_be_written_as_any_vendor_writes_them(key):
    text = {"properties": {"city": {"description": "weather of a town"}}}
    tool = {"name": "t", "description": "d", key: text}
    others = [{"name": f"other{n}", "description": "mail"} for n in range(3)]
    for written in (tool, {"type": "function", "function": tool}):
        (found,) = ToolRouter([*others, written]).pick("the weather", k=1)
        assert (found.name, found.words) == ("t", ("weather",))


def test_a_message_without_text_asks_for_nothing():
    assert asked_lately([{"role": "user", "content": None}, {"role": "user"}]).strip() == ""


def test_a_description_may_be_missing():
    tools = [{"name": "send_mail"}, {"name": "b", "description": None}, *OTHERS]
    assert names(ToolRouter(tools).pick("mail")) == ["send_mail"]


def test_a_schema_nested_ten_thousand_deep_is_read():
    schema = {"description": "zeppelin"}
    for _ in range(10_000):
        schema = {"items": schema}
    tool = {"name": "x", "description": "", "parameters": schema}
    assert names(ToolRouter([*OTHERS, tool]).pick("zeppelin")) == ["x"]


def test_each_word_of_a_request_counts_once(router):
    once = router.pick("天气 weather")
    assert router.pick("天气 weather 天气 weather 天气 weather")[0].name == once[0].name


def test_words_side_by_side_beat_the_same_words_apart():
    tools = [
        plain("a", "credit for a student, and a report about cards"),
        plain("b", "report about a student, and credit cards"),
        *OTHERS,
    ]
    assert names(ToolRouter(tools).pick("credit cards", k=1)) == ["b"]


SIBLINGS = [plain(f"find_flight_{i}", "find a cheap flight, airline, airport") for i in range(6)]
CROWD = [plain(f"other_{i}", f"something else, number {i}") for i in range(200)]


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ("Find a cheap flight. Any airline is fine. From Turku airport. Then money rates.", True),
        ("找 find a cheap flight。任何 airline 都行；从 airport 走。再查 money rates！", True),
        ("Find a cheap flight, any airline, from Turku airport, then money rates.", False),
    ],
)
def test_in_a_request_of_several_sentences_one_need_does_not_fill_all_places(request_, found):
    picked = ToolRouter([*SIBLINGS, plain("x", "money and rates, daily"), *CROWD]).pick(request_)
    assert ("x" in names(picked)) == found and picked[0].name == "find_flight_0"
    assert [p.score for p in picked] == sorted((p.score for p in picked), reverse=True)


def test_a_word_that_most_tools_have_does_not_count_against_them():
    tools = [*(plain(f"mail_{i}", "mail") for i in range(8)), plain("other", "weather")]
    assert len(ToolRouter(tools).pick("mail please", k=5)) == 5


def test_the_words_that_matched_are_given_as_the_request_has_them(router):
    picked = router.pick("计算 KV Cache 占多少显存")
    assert picked[0].name == "kv_cache_gib"
    assert picked[0].words == ("计算", "kv", "cache", "显存")
    assert all(routed.score > 0 and routed.words for routed in picked)


def test_scores_fall_from_first_to_last(router):
    scores = [routed.score for routed in router.pick("查一下邮件里的附件", k=20)]
    assert scores == sorted(scores, reverse=True)


def test_equal_tools_stay_in_the_order_they_came():
    tools = [*OTHERS, *(plain(name, "weather") for name in ("cc", "aa", "bb"))]
    assert names(ToolRouter(tools).pick("weather")) == ["cc", "aa", "bb"]


# --- what is offered ---


@pytest.mark.parametrize(
    "request_",
    ["出门要不要带伞", "Will it rain?", "", "   ", "的了吗", "？！", "\ud800", "为什么"],
)
def test_nothing_in_common_means_nothing_picked_and_all_offered(router, catalogue, request_):
    assert router.pick(request_) == []
    assert router.subset(request_).names == catalogue.names


def test_the_demo_says_what_ask_does_when_nothing_is_in_common(catalogue):
    shown = "".join("\n".join(router_demo_text("asdfgh", catalogue, Style(200))).split())
    assert "--ask这时只给模型一个search_tools" in shown and "全部提供要1" in shown


def test_a_lone_chinese_character_in_common_is_no_match():
    router = ToolRouter([*OTHERS, plain("x", "把文字翻译成英文")])
    assert router.pick("他字写得好") == []


@pytest.mark.parametrize("k", [3, 5, 100])
def test_all_tools_are_given_when_there_are_no_more_than_k(k):
    tools = built_in_tools().subset(["search_notes", "calculator", "kv_cache_gib"])
    router = ToolRouter(tools)
    assert names(router.pick("计算显存", k))[0] == "kv_cache_gib"
    assert set(names(router.pick("计算显存", k))) == set(tools.names)
    assert router.subset("计算显存", k).names == router.subset("zzz", k).names == tools.names
    assert router.pick("zzz", k)[0].score == 0.0


@pytest.mark.parametrize("k", [0, -1])
def test_no_places_pick_nothing_but_what_is_kept(router, k):
    assert router.pick("天气", k) == []
    assert names(router.pick("天气", k, ["run_python"])) == ["run_python"]


def test_tools_in_use_are_kept_beyond_k(router):
    assert names(router.pick("天气 weather", 2, ["run_python", "get_weather", "gone"])) == [
        "get_weather",
        "get_forecast",
        "run_python",
    ]


def test_the_subset_has_the_order_of_the_registry(router, catalogue):
    for query in ("天气 weather 邮件 email", "邮件 email 天气 weather"):
        chosen = router.subset(query, 6, ["kv_cache_gib", "search_notes"]).names
        assert chosen == [name for name in catalogue.names if name in chosen]
        assert chosen[0] == "search_notes" and chosen[-1] == "kv_cache_gib"


def test_the_subset_keeps_the_registrys_way_of_mending_arguments():
    registry = ToolRegistry(built_in_tools(), coerce=True)
    assert ToolRouter(registry).subset("显存", 1).coerce is True


def test_plain_dicts_are_ranked_but_cannot_be_offered():
    with pytest.raises(TypeError):
        ToolRouter([plain("a", "weather"), *OTHERS]).subset("weather")


def test_an_empty_set_of_tools_gives_nothing():
    router = ToolRouter([])
    assert router.pick("x") == [] and len(router.subset("x")) == 0


def test_a_follow_up_is_routed_with_what_was_asked_before(router):
    messages = [
        {"role": "user", "content": "上海天气 weather 怎么样"},
        {"role": "assistant", "content": "晴"},
        {"role": "user", "content": "那明天呢？"},
    ]
    assert asked_lately(messages) == "上海天气 weather 怎么样\n那明天呢？"
    assert asked_lately(messages, turns=1) == "那明天呢？"
    assert "get_weather" in router.subset(asked_lately(messages)).names


def test_the_tools_a_conversation_used_are_known():
    messages = opening("17*23+4")
    script = [calling(("calculator", {"expression": "1+1"}), ("nope", {})), Turn("2")]
    list(run_tool_loop(MockLLM(script), built_in_tools(), messages))
    assert tools_called(messages) == ["calculator", "nope"]


# --- search_tools: what routing misses ---


def test_a_model_finds_a_missed_tool_by_itself(router):
    registry = with_tool_search(router, "出门要不要带伞")
    assert registry.names == ["search_tools"]
    script = [
        calling(("search_tools", {"words": "天气预报 forecast"})),
        calling(("get_forecast", {"city": "上海"}), first=1),
        Turn("不知道"),
    ]
    messages = opening("出门要不要带伞")
    list(run_tool_loop(MockLLM(script), registry, messages))
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert "get_forecast" in json.loads(results[0])
    assert "演示目录" in results[1]  # it was there to be called


def test_searching_twice_or_for_listed_tools_adds_nothing_twice(router):
    registry = with_tool_search(router, "天气 weather", k=2)
    before = registry.names
    for _ in range(2):
        result = registry.call(ToolCall("0", "search_tools", {"words": "weather 天气"}))
        assert not result.is_error and "get_weather" in result.value
    assert registry.names[: len(before)] == before
    assert len(set(registry.names)) == len(registry.names)


def test_searching_for_what_there_is_not_says_so(router):
    registry = with_tool_search(router, "天气")
    assert registry.call(ToolCall("0", "search_tools", {"words": "zzz"})).value == []


# --- the catalogue ---


def test_the_catalogue_has_ten_families_of_four(catalogue):
    rows = [row.partition("(")[0] for row in CATALOGUE.split("\n") if not row.startswith(" " * 8)]
    families = [at for at, row in enumerate(rows) if row[:1].strip()]
    assert families == [1 + 5 * n for n in range(10)] and len(rows) == 52
    assert len(catalogue) == 40 and set(built_in_tools().names) < set(catalogue.names)
    for tool in catalogue:
        check_tool(tool)


def test_further_tools_follow_the_catalogue():
    registry = built_in_tools()

    @registry.register
    def train_cost(hours: int) -> int:
        """训练费用。"""
        return hours

    assert catalogue_tools(registry).names[40:] == ["train_cost"]


def test_catalogue_entries_say_that_they_are_only_entries(catalogue):
    result = catalogue.call(ToolCall("0", "send_email", {"to": "a", "subject": "b", "body": "c"}))
    assert result.is_error and "没有接真实的服务" in result.text
    real = catalogue.call(ToolCall("0", "calculator", {"expression": "6*7"}))
    assert real.value == 42


def test_the_lectures_request_finds_five_and_saves_most_of_the_text(router, catalogue):
    subset = router.subset("计算 KV Cache 占多少显存")
    assert len(subset) == 5 and {"kv_cache_gib", "calculator"} <= set(subset.names)

    def size(tools):
        return len(json.dumps(tools.schemas(), ensure_ascii=False))

    assert 10_400 <= size(catalogue) <= 11_000
    assert 1_700 <= size(subset) <= 1_900


@pytest.mark.parametrize(
    ("request_", "right"),
    [
        ("What is the weather in Beijing", "get_weather"),
        ("未来三天会不会下雨", "get_forecast"),
        ("把这段话翻译成日语", "translate_text"),
        ("find a paper about RLHF", "search_papers"),
        ("最近有什么 AI 新闻", "search_news"),
        ("用 SQL 查一下订单数据库", "query_sql"),
        ("画个柱状图 bar chart", "plot_chart"),
        ("设一个七点的闹钟", "set_reminder"),
        ("特斯拉 stock 股票现在多少", "get_stock_price"),
        ("贷款 100 万每月还多少", "loan_payment"),
        ("训练 7B 模型要多少 FLOPs 算力", "training_flops"),
        ("在讲义里查找 DPO 那一节", "search_notes"),
    ],
)
def test_everyday_requests_come_first_in_the_catalogue(router, request_, right):
    assert router.pick(request_)[0].name == right


# --- anything may be asked ---


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.integers(-2, 45))
def test_any_request_gives_distinct_tools_within_bounds(router, request_, k):
    picked = router.pick(request_, k)
    assert len(set(names(picked))) == len(picked) <= max(0, k)
    assert len(router.subset(request_, k)) in ({len(picked), 40} if k < 40 else {40})


def test_a_huge_request_is_cut(router):
    assert "get_weather" in names(router.pick("zz " * 100_000 + "天气 weather"))
