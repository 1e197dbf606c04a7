"""w4day3_checks.py: closed forms against simulations, and what a user sees."""

from __future__ import annotations

import ast
import doctest
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import w4day3_checks as checks

SCRIPT = Path(checks.__file__)
DRAWS = 2_000


def run(*arguments, **environment):
    """The script as a user starts it: (exit code, stdout, stderr) as bytes."""
    environment = {"PYTHONIOENCODING": "utf-8", **environment}
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "W4D3_DEBUG")}
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, env=kept | environment, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def groups():
    return {index: checks.run_group(index, 0, DRAWS) for index in checks.GROUPS}


@pytest.fixture(scope="module")
def rows(groups):
    return {row.quantity: row for group in groups.values() for row in group.rows}


@pytest.fixture(scope="module")
def full_json():
    code, out, err = run("--json", "--draws", str(DRAWS))
    assert (code, err) == (0, b"")
    return json.loads(out)


# ── the groups ───────────────────────────────────────────────────────────────────────────────────


def failing(module, index, seed=0, draws=DRAWS):
    return {row.quantity: row for row in module.run_group(index, seed, draws).rows if row.fault}


@pytest.mark.parametrize("draws", [1_000, 10_000])
@pytest.mark.parametrize("index", checks.GROUPS)
def test_every_row_holds_for_any_seed(index, draws):
    for seed in [2**40, *range(12 if draws == 1_000 else 2)]:
        assert failing(checks, index, seed, draws) == {}, seed


def test_rows_have_different_names_and_a_known_kind(groups, rows):
    assert len(rows) == sum(len(group.rows) for group in groups.values())
    assert {row.kind for row in rows.values()} == set(checks.KINDS)


def test_every_figure_of_the_lecture_is_checked_by_one_row(rows):
    assert set(checks.LECTURE) <= set(rows)
    assert {row.quantity for row in rows.values() if row.printed} == set(checks.LECTURE)


def test_fitted_figures_are_called_fitted(rows):
    fitted = {name for name, row in rows.items() if row.kind == "拟合"}
    assert {"不路由 N=300", "路由 N=300", "串行秒数 n=5"} <= fitted
    assert rows["路由 N=1000"].kind == rows["并行 token n=5"].kind == "预测"


@pytest.mark.parametrize("quantity", checks.LECTURE)
def test_a_wrong_figure_of_the_lecture_fails_its_row(quantity, rows):
    row = rows[quantity]
    unit = 10.0 ** -len(row.printed.partition(".")[2])
    for figure in (row.figure + 2 * unit, row.figure - 2 * unit):
        assert "应为讲义的" in row._replace(printed=f"{figure:.4f}").fault


@pytest.mark.parametrize(
    ("index", "right", "wrong", "quantity"),
    [
        (1, '"system": 3_000', '"system": 3_001', "P+u，由并行 8,400"),
        (1, '"user": 50', '"user": 51', "P+u，由并行 8,400"),
        (1, '"assistant": 60', '"assistant": 61', "并行 token n=5"),
        (1, '"tool": 400', '"tool": 401', "串行 token n=5"),
        (1, "TOOL_SECONDS = 1.5, 0.8", "TOOL_SECONDS = 1.5, 1.0", "并行秒数 n=5"),
        (1, "TOOL_SECONDS = 1.5, 0.8", "TOOL_SECONDS = 1.7, 0.4", "串行秒数 n=5"),
        (1, '"num_kv_heads": 8', '"num_kv_heads": 32', "KV KiB，每 token"),
        (1, "bytes_per_value=2)", "bytes_per_value=4)", "KV GiB，8192 × batch 4"),
        (2, "TRIES = 0.005, 3", "TRIES = 0.005, 2", "三次之内 ε=0.005 L=500"),
        (3, "(0.1, 0.1, 0.8)", "(0.1, 0.2, 0.7)", "p(c|a)=0.8 时 aa 的上限"),
        (3, "TRIPLED = ((0.6, 0.3, 0.1)", "TRIPLED = ((0.6, 0.2, 0.2)", "一解：p(c|a)=0.9"),
        (3, "0.39, 0.01), (0.02", "0.3, 0.1), (0.02", "再推：p(c|a)=0.97"),
        (4, "USEFUL_SHARE = 100_000, 0.15", "USEFUL_SHARE = 100_000, 0.16", "有用调用占比"),
        (5, "CLASSES, CANDIDATE_LIMIT = 10", "CLASSES, CANDIDATE_LIMIT = 5", "不路由 N=300"),
        (5, "MODEL_NOISE, ROUTER_NOISE = 0.093", "MODEL_NOISE, ROUTER_NOISE = 0.1", "不路由 N=300"),
        (5, "0.093, 0.082", "0.093, 0.093", "路由 N=300"),
        (5, "SIBLING_GAP, OTHER_GAP = 0.20", "SIBLING_GAP, OTHER_GAP = 0.19", "不路由 N=300"),
        (7, "FACTOR, DAMAGE = 10", "FACTOR, DAMAGE = 2", "p 降为 1/10，n=1000"),
    ],
)
def test_a_planted_wrong_constant_fails_its_row(index, right, wrong, quantity):
    source = SCRIPT.read_text(encoding="utf-8")
    assert source.count(right) == 1
    changed = types.ModuleType("changed_checks")
    exec(compile(source.replace(right, wrong), "changed", "exec"), changed.__dict__)
    assert quantity in failing(changed, index)


@pytest.mark.parametrize(
    ("index", "name", "wrong", "quantity"),
    [
        (1, "kv_cache_bytes", lambda **shape: 1, "KV GiB，8192 × batch 4"),
        (2, "valid_chance", lambda eps, n: (1 - 2 * eps) ** n, "一次合法 ε=0.005 L=200"),
        (3, "legal_mass", lambda d: 0.5, "JSON Z，自动机前推"),
        (3, "fits_schema", lambda text: False, "JSON，逐步掩码的合法条数"),
        (4, "keep_shares", lambda tau: (0.15 * checks.normal_cdf(1 - tau), 0.2), "保留条数 τ=0.5"),
        (5, "unrouted", lambda tools: 1 / tools, "不路由 N=100"),
        (6, "list_implementations", lambda apps, tools: range(apps * tools), "协议 10×100"),
        (7, "both_miss", lambda shared: checks.MISS**2, "两道，总是同漏"),
    ],
)
def test_a_planted_wrong_derivation_fails_its_row(index, name, wrong, quantity, monkeypatch):
    monkeypatch.setattr(checks, name, wrong)
    assert quantity in failing(checks, index)


# ── tolerances ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [0.0, 0.001, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1_000, 20_000])
def test_honest_frequencies_stay_within_the_tolerance(p, n):
    hits = np.random.default_rng(1).binomial(n, p, size=100_000)
    tolerance = checks.frequency("量", np.zeros(n, dtype=bool), p).tolerance
    assert np.abs(hits / n - p).max() <= tolerance


def test_honest_ratios_stay_within_the_tolerance_and_wrong_ones_do_not():
    rng = np.random.default_rng(2)
    for _ in range(500):
        bottom = rng.exponential(size=1_000)
        top = bottom * 0.3 + rng.normal(0, 0.2, size=1_000)
        row = checks.ratio("量", top, bottom, 0.3)
        assert not row.fault and checks.ratio("量", top, bottom, 0.4).fault
        assert 1 < row.tolerance / (5 * 0.2 / bottom.mean() / 1_000**0.5) < 1.5


def test_tolerance_is_five_standard_errors_for_many_draws():
    assert checks.spread(0.3, 1, 10**8) == pytest.approx(5 * 0.3 / 10**4, rel=0.01)


def test_nothing_drawn_is_not_a_pass():
    assert checks.frequency("空", np.array([], dtype=bool), 0.5).fault


# ── group 1 ──────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 40))
def test_token_formulas_equal_the_sum_over_messages(n):
    assert checks.play(checks.history([1] * n)).sent == checks.serial_tokens(n)
    assert checks.play(checks.history([n])).sent == checks.parallel_tokens(n)
    assert 2 * checks.serial_tokens(n) == (n + 1) * checks.parallel_tokens(n)


def test_serial_is_a_parabola_that_starts_on_the_line():
    serial = np.array([checks.serial_tokens(n) for n in range(1, 12)])
    parallel = np.array([checks.parallel_tokens(n) for n in range(1, 12)])
    assert serial[0] == parallel[0]
    assert set(np.diff(serial, 2)) == set(np.diff(parallel)) == {460}


def test_history_answers_every_call_once_and_in_order():
    messages = checks.history([2, 1])
    asked = [call["id"] for m in messages for call in m.get("tool_calls", ())]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert asked == answered == ["call_0", "call_1", "call_2"]
    assert [len(prompt) for prompt in checks.prompts(messages)] == [2, 5, 7]


def test_cached_tokens_are_all_that_was_sent_before():
    messages = checks.history([1, 3, 2])
    run = checks.play(messages)
    assert run.sent - run.cached == checks.tokens(checks.prompts(messages)[-1])
    assert run.prefix == 4 * 3_050 and run.seconds == pytest.approx(4 * 1.5 + 3 * 0.8)


# ── group 2 and 7: many small risks ──────────────────────────────────────────────────────────────


def test_first_failure_is_geometric():
    fate = checks.first_failure(50, 200_000, checks.rare(np.random.default_rng(3), 0.05))
    for step in (1, 10, 50):
        expected = 0.05 * 0.95 ** (step - 1)
        assert not checks.frequency("步", fate == step, expected).fault


@given(st.floats(1e-4, 0.5), st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_steps_until_is_the_first_step_that_reaches_the_target(p, target):
    row = checks.steps_until("步", p, target)
    n = row.ours
    assert checks.risk(p, n) >= target - 1e-9 and checks.risk(p, n - 1) < target + 1e-9
    assert abs(n - row.expected) <= 1  # they part only where rounding decides


@given(st.floats(1e-6, 0.999), st.integers(1, 10_000), st.floats(1, 1000))
def test_risk_grows_and_limiting_the_damage_is_never_worse(p, n, factor):
    assert checks.risk(p, n) <= checks.risk(p, n + 1) <= 1
    assert checks.risk(p, n) <= -math.expm1(-p * n) / (1 - p) + 1e-9
    assert checks.risk(p, n) / factor <= checks.risk(p / factor, n) * (1 + 1e-9)


def test_risk_tends_to_the_exponential_limit():
    assert checks.risk(1e-6, 10**6) == pytest.approx(1 - math.exp(-1), abs=1e-6)


def test_defences_multiply_only_when_independent():
    assert checks.both_miss(0.0) == pytest.approx(checks.MISS**2)
    assert checks.both_miss(1.0) == pytest.approx(checks.MISS)


def test_retrying_helps_and_longer_hurts():
    lengths = np.arange(1, 2000)
    q = checks.valid_chance(0.005, lengths)
    assert (np.diff(q) < 0).all() and (checks.within_tries(q) >= q).all()
    assert np.diff(np.log(q)) == pytest.approx(math.log(0.995))


# ── group 3: the decoder ─────────────────────────────────────────────────────────────────────────

SCHEMAS = st.recursive(
    st.one_of(
        st.just({"type": "integer"}),
        st.just({"type": "boolean"}),
        st.just({"type": "string"}),
        st.lists(st.sampled_from(["k", "约", 'a"b', 8, None, True]), min_size=1).map(
            lambda values: {"enum": values}
        ),
    ),
    lambda inner: st.dictionaries(st.sampled_from(["a", "长度", "x y"]), inner, max_size=2).map(
        lambda fields: {"type": "object", "properties": fields, "required": list(fields)}
    ),
    max_leaves=4,
)
SIMPLE = {"boolean": [True, False], "integer": [0, -7, 1200], "string": ["", "a b", "x,}"]}


def instances(schema):
    """A few values that a schema of the subset allows."""
    match schema:
        case {"enum": values}:
            return values
        case {"type": "object", "properties": fields}:
            choices = itertools.product(*map(instances, fields.values()))
            return [dict(zip(fields, values)) for values in itertools.islice(choices, 20)]
        case {"type": kind}:
            return SIMPLE[kind]


def accepts(regex, text):
    return any(map(checks.nullable, checks.read(frozenset([regex]), text)))


@given(SCHEMAS, st.data())
@settings(max_examples=80, deadline=None)
def test_schema_regex_agrees_with_python_and_jsonschema(schema, data):
    jsonschema = pytest.importorskip("jsonschema")
    regex = checks.schema_regex(schema)
    python = re.compile(checks.pattern(regex).encode("latin-1"), re.DOTALL)
    for value in instances(schema):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert accepts(regex, text) and python.fullmatch(text.encode())
    text = data.draw(st.text('{}":,-01k约 ae', max_size=12))
    assert accepts(regex, text) == bool(python.fullmatch(text.encode()))
    if accepts(regex, text):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("text", "legal"),
    [("0", 1), ("-12", 1), ("012", 0), ("-", 0), ("8k", 0), ("1.0", 0), ("", 0)],
)
def test_integer_regex(text, legal):
    assert accepts(checks.schema_regex({"type": "integer"}), text) == legal


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"anyOf": []},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": []},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
    ],
)
def test_schema_outside_the_subset_is_refused(schema):
    with pytest.raises(ValueError, match="子集"):
        checks.schema_regex(schema)


def test_token_mask_is_exactly_what_can_still_become_legal():
    """Brute force: allowed if some continuation of at most four tokens is in the language."""
    words, language = ("a", "ab", "b", "ba", "c"), {"ab", "abba", "bab", "cab"}
    choice = (checks.Alt(tuple(map(checks.literal, language))),)
    move, mask = checks.token_automaton(choice, words)
    prefixes = {(): 1}
    for size in range(3):
        for path in itertools.product(words, repeat=size):
            state = 1
            for word in path:
                state = move[state, words.index(word)]
            if state:
                prefixes[path] = state
    for path, state in prefixes.items():
        for word in words:
            begun = "".join(path) + word
            tails = (t for n in range(5) for t in itertools.product(words, repeat=n))
            reachable = any(begun + "".join(tail) in language for tail in tails)
            assert mask[state, words.index(word)] == reachable, (path, word)
        assert mask[state, -1] == ("".join(path) in language)


def test_state_without_a_way_on_in_tokens_is_masked():
    """Byte by byte "ab" is possible, but no token ends it."""
    _, mask = checks.token_automaton(checks.literal("ab"), ("a", "ba"))
    assert not mask[1].any()


def test_tokens_may_split_a_character():
    regex, words = checks.literal("约"), ("约", "k")
    move, mask = checks.token_automaton(regex, words)
    assert mask[1].tolist() == [True, False, False] and mask[move[1, 0], -1]


EXAMPLES = [
    checks.TOY,
    checks.TRIPLED,
    checks.EXTREME,
    ((0.2, 0.5, 0.3), (0.3, 0.3, 0.4), (0.6, 0.3, 0.1)),
    ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.5, 0.0), (0.0, 0.0, 1.0)),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_decoder_equals_the_closed_forms_of_the_toy(example):
    masked, exact, z = checks.toy_closed(*example)
    assert sum(masked.values()) == pytest.approx(1) and sum(exact.values()) == pytest.approx(1)
    d = checks.toy_decoder(*example)
    for y in checks.LEGAL:
        assert checks.chances(d, [*y, checks.END]) == pytest.approx((masked[y], exact[y]))
    assert checks.legal_mass(d) == pytest.approx(z) == d.legal[d.start]


def test_masking_is_exact_when_every_step_keeps_the_same_mass():
    masked, exact, _ = checks.toy_closed((0.3, 0.3, 0.4), (0.1, 0.1, 0.8), (0.4, 0.4, 0.2))
    assert masked == pytest.approx(exact)


@pytest.mark.parametrize(
    ("example", "ratio"), [(checks.TOY, 2.167), (checks.TRIPLED, 3.667), (checks.EXTREME, 13.34)]
)
def test_inflation_of_the_examples(example, ratio):
    assert checks.toy_ratio(example) == pytest.approx(ratio, abs=5e-3)
    masked, exact, _ = checks.toy_closed(*example)
    assert masked["bc"] < exact["bc"]


def test_json_decoder_solves_the_linear_system():
    d = checks.json_decoder()
    size = len(d.odds)
    step = np.zeros((size, size))
    np.add.at(step, (np.arange(size)[:, None], d.move), d.odds)
    live = slice(d.start, d.done)
    ends = np.linalg.solve(np.eye(d.done - d.start) - step[live, live], step[live, d.done :].sum(1))
    assert ends[0] == pytest.approx(checks.legal_mass(d), rel=1e-12)
    assert d.legal[d.start] == pytest.approx(ends[0], rel=1e-12)


@pytest.mark.parametrize("gate", ["mask", "exact"])
def test_every_sample_of_a_guided_decoder_is_valid(gate):
    jsonschema = pytest.importorskip("jsonschema")
    d = checks.json_decoder()
    samples = checks.sample(np.random.default_rng(5), d, gate, 3_000)
    assert samples.legal.all()
    for text in set(samples.texts.tolist()):
        jsonschema.validate(json.loads(text), checks.SCHEMA)
        assert checks.fits_schema(text) and "k" not in text


def test_free_samples_are_legal_exactly_when_the_parser_says_so():
    d = checks.json_decoder()
    samples = checks.sample(np.random.default_rng(6), d, "free", 3_000)
    assert list(map(checks.fits_schema, samples.texts)) == samples.legal.tolist()
    assert 0 < samples.legal.sum() < 3_000 and (samples.weights == pytest.approx(1.0))


@pytest.mark.parametrize(
    "text", ["", "3", "[]", '{"seq_len":8k}', '{"seq_len":true,"dtype":"fp8"}', '{"seq_len":1}']
)
def test_fits_schema_refuses_what_is_not_in_it(text):
    assert not checks.fits_schema(text)


def test_mask_table_shows_one_sign_per_token(groups):
    (table,) = groups[3].tables
    vocabulary = checks.json_decoder().tokens
    for _, bits, _, word, allowed in table.rows:
        assert len(bits) == len(vocabulary) and bits[vocabulary.index(word)] == "#"
        assert allowed.split() == list(itertools.compress(vocabulary, [bit == "#" for bit in bits]))


# ── group 4 ──────────────────────────────────────────────────────────────────────────────────────


def test_stricter_thresholds_keep_less_and_purer():
    tau = np.linspace(0, 3, 200)
    true, false = checks.keep_shares(tau)
    assert (np.diff(true + false) < 0).all() and (np.diff(true / (true + false)) > 0).all()


def test_threshold_limits():
    true, false = checks.keep_shares(-50.0)
    assert (true, false) == pytest.approx((0.15, 0.85))
    assert checks.keep_shares(checks.GAIN_MEAN)[0] == pytest.approx(0.15 / 2)


@pytest.mark.parametrize(
    ("tau", "kept", "precision", "recall"),
    [(0, 56_320, 0.2454, 0.9214), (0.75, 15_251, 0.6277, 0.6382), (2, 1_182, 0.9977, 0.0786)],
)
def test_threshold_table(tau, kept, precision, recall):
    true, false = checks.keep_shares(tau)
    assert 100_000 * (true + false) == pytest.approx(kept, abs=0.5)
    assert (true / (true + false), true / 0.15) == pytest.approx((precision, recall), abs=5e-5)


def test_the_min_changes_nothing_but_leaking_calls():
    useful, leaks, drop, naive_drop = checks.draw_candidates(np.random.default_rng(2))
    assert (naive_drop - drop)[leaks] == pytest.approx(checks.LEAK_GAIN)
    assert (naive_drop - drop)[~leaks] == pytest.approx(0.0, abs=1e-12)
    assert not (leaks & useful).any()


# ── group 5 ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tools", "direct", "accuracy", "recall"),
    [(30, 0.889, 0.889, 1.0), (100, 0.7185, 0.8115, 0.988), (1000, 0.3747, 0.6326, 0.770)],
)
def test_integrals_at_other_numbers_of_tools(tools, direct, accuracy, recall):
    assert checks.unrouted(tools) == pytest.approx(direct, abs=5e-4)
    assert checks.routed(tools, 5) == pytest.approx((accuracy, recall), abs=5e-4)


def test_one_candidate_is_chosen_whenever_it_is_right():
    accuracy, recall = checks.routed(300, 1)
    assert accuracy == pytest.approx(recall)


def test_recall_grows_with_k_and_accuracy_peaks_inside():
    accuracy, recall = np.array([checks.routed(300, k) for k in range(1, 25)]).T
    assert (np.diff(recall) > 0).all()
    assert 2 <= accuracy.argmax() + 1 <= 5 and np.diff(accuracy)[5:].max() < 0


def test_all_candidates_are_as_good_as_no_router():
    direct, chosen, among = checks.choices(np.random.default_rng(4), 40, (1, 40), 2_000)
    assert (chosen[:, 1] == direct).all() and among[:, 1].all()
    assert (chosen[:, 0] == among[:, 0]).all()


def test_the_best_k_is_explained():
    curve = {k: checks.routed(300, k) for k in range(1, 12)}
    assert max(curve, key=curve.get) == 4
    why = checks._why_best(curve, 4, 5)
    assert "入选 0.890 升到 0.917" in why and "0.852 降到 0.821" in why and "0.0057" in why


def test_a_fair_coin_when_nothing_tells_two_tools_apart():
    assert checks.wins(0, 0) == pytest.approx(1, abs=1e-9)
    even = checks.density(checks.SCORES) * checks.below(0.0)
    assert even.sum() * checks.GRID == pytest.approx(0.5)


def test_far_classes_hardly_matter(monkeypatch):
    near = checks.unrouted(300)
    monkeypatch.setattr(checks, "OTHER_GAP", 0.8)
    assert checks.unrouted(300) == pytest.approx(near, abs=1e-3)


# ── group 6 ──────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 30), st.integers(1, 30))
@settings(deadline=None)
def test_a_protocol_saves_exactly_when_the_rule_says(apps, tools):
    pairs, ends = checks.list_adapters(apps, tools), checks.list_implementations(apps, tools)
    assert len(set(pairs)) == apps * tools and len(ends) == apps + tools
    assert (checks.saving(apps, tools) > 1) == ((apps - 1) * (tools - 1) > 1)


# ── text and JSON ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("columns", [40, 48, 79, 80, 120])
def test_text_fits_the_screen(groups, columns):
    screen = checks.Screen(columns)
    for index, group in groups.items():
        text = "\n".join(checks.group_lines(index, group, screen))
        assert max(map(checks.width, text.splitlines())) <= max(columns, 48), index
        verdicts = [line for line in text.splitlines() if line.endswith(("通过", "结果"))]
        assert len({checks.width(line) for line in verdicts}) == 1
        assert len(verdicts) == len(group.rows) + 1
    for line in checks.opening_lines(0, DRAWS, screen):
        assert checks.width(line) <= columns


def test_no_quantity_or_number_is_cut(groups):
    for row in (row for group in groups.values() for row in group.rows):
        line = checks.row_text(checks.row_cells(row, checks.Screen()), checks.Screen())
        assert line.startswith(row.quantity) and row.printed in line
        assert checks.number(row.ours) in line and checks.number(row.expected) in line


def test_no_table_is_cut_at_eighty_columns(groups):
    for group in groups.values():
        for table in group.tables:
            text = "\n".join(checks.table_lines(table, checks.Screen()))
            assert all(cell in text for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("一二三四五", ["一二三四五"]),
        ("一二三四五六", ["一二三四五", "  六"]),
        ("一二三四五，六", ["一二三四", "  五，六"]),
        ("ab cd ef gh", ["ab cd ef", "  gh"]),
        ("x" * 50, ["x" * 40, "  " + "x" * 10]),
    ],
)
def test_prose_is_wrapped_by_width(text, lines):
    assert list(checks.wrapped(text, 10)) == lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (25200, "25,200"),
        (0.0816, "0.0816"),
        (13.0, "13"),
        (0.0, "0"),
        (1182.44, "1,182.44"),
        (4.1e-5, "4.1e-05"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert checks.number(value) == text


def test_a_failing_row_says_what_was_expected_and_what_came():
    assert checks.Row("量", 1.0, 2.0, 0.1).fault == "应为 2 ± 0.1，得到 1"
    assert checks.Row("量", 2.0, 2.0, 0.1, "", "2.5").fault == "应为讲义的 2.5，闭式得到 2"
    assert checks.Row("量", math.nan, 2.0, 0.1).fault and not checks.Row("量", 2, 2, 0).fault


def test_json_has_every_row(full_json, groups):
    assert (full_json["seed"], full_json["draws"], full_json["ok"]) == (0, DRAWS, True)
    assert [group["number"] for group in full_json["groups"]] == list(checks.GROUPS)
    for found, group in zip(full_json["groups"], groups.values()):
        assert list(found) == [
            "number",
            "ok",
            "title",
            "shows",
            "symbols",
            "tables",
            "notes",
            "rows",
        ]
        assert (found["title"], found["shows"], found["ok"]) == (group.title, group.shows, True)
        assert all(list(table) == ["title", "header", "rows"] for table in found["tables"])
        headings = [heading for heading, rows in group.parts.items() for _ in rows]
        for row, ours, heading in zip(found["rows"], group.rows, headings, strict=True):
            assert row == {"part": heading, **checks.row_json(ours)}
            assert abs(row["ours"] - row["expected"]) <= row["tolerance"]


def test_json_row_has_both_derivations_and_the_printed_figure(rows):
    row = checks.row_json(rows["串行 token n=5"])
    assert row.pop("tolerance") < 1e-4
    assert row == {
        "quantity": "串行 token n=5",
        "ours": 25_200,
        "expected": 25_200,
        "printed": 25_200,
        "kind": "拟合",
        "ok": True,
    }


def test_json_has_no_nan():
    row = checks.row_json(checks.Row("量", math.nan, 1.0, math.inf))
    assert (row["ours"], row["tolerance"], row["ok"]) == (None, None, False)


# ── command line ─────────────────────────────────────────────────────────────────────────────────


def test_selected_groups_have_the_numbers_of_the_full_run(full_json):
    code, out, _ = run("7", "2", "2", "--json", "--draws", str(DRAWS))
    assert code == 0
    assert json.loads(out)["groups"] == [full_json["groups"][1], full_json["groups"][6]]


def test_another_seed_gives_other_draws(full_json):
    code, out, _ = run("2", "--json", "--draws", str(DRAWS), "--seed", "99")
    assert code == 0 and json.loads(out)["groups"][0] != full_json["groups"][1]


def test_default_run_prints_the_figures_of_the_lecture():
    code, out, err = run()
    text = out.decode("utf-8")
    assert (code, err) == (0, b"") and "seed=0" in text and "draws=10,000" in text
    for printed, _ in checks.LECTURE.values():
        assert f" {printed} " in text
    assert "\x1b" not in text and text.rstrip().endswith("全部通过。")
    assert all(meaning in re.sub(r"\n  ", "", text) for meaning in checks.KINDS.values())
    text.encode("gbk")


@pytest.mark.parametrize("encoding", ["gbk", "ascii", "cp1252"])
def test_output_survives_any_console(encoding):
    for arguments in (["3"], ["--help"], ["9"]):
        code, out, err = run(*arguments, "--draws", "1000", PYTHONIOENCODING=encoding)
        assert code in (0, 2) and b"Traceback" not in err and out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["0"], ["8"], ["x"], ["-1"], ["3.0"], ["1", "99999999999999999999"], ["３"],
        ["--draws", "0"], ["--draws", "-5"], ["--draws", "999"], ["--draws", "100001"],
        ["--draws", "9" * 30], ["--draws", "1e4"], ["--draws", ""],
        ["--draws"], ["--seed", "-1"], ["--seed", "1.5"],
        ["--seed", "9" * 30], ["--nonsense"], ["--dra", "5000"],
        ["--plot", ""], ["--plot", "/dev/null/x"], ["--plot", str(SCRIPT)], ["--plot", "a\0b"],
        ["--plot"], ["--json=1"], ["-x"], ["3,5"], ["--seed=x"], ["--draws="], ["--seed", "--json"],
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line_and_exit_code_two(arguments, capsys):
    assert checks.main(["6", *arguments] if arguments[0].startswith("--") else arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("参数有误：")
    assert not re.search("argument|invalid|expected|unrecognized", err)


def test_a_failing_row_exits_one_and_is_explained(monkeypatch, capsys):
    monkeypatch.setitem(checks.LECTURE, "串行 token n=5", ("25,215", "拟合"))
    monkeypatch.setitem(checks.PRICES, "user", 51)
    assert checks.main(["1"]) == 1
    out = capsys.readouterr().out
    assert "不符：串行 token n=5：应为 25200 ± 2.5e-05，得到 25206" in out
    assert "行不符。" in out and "全部通过" not in out
    assert checks.main(["1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_values_may_follow_an_equals_sign_and_help_is_chinese(capsys):
    assert checks.read_arguments(["--seed=7", "5", "--draws=2000", "3", "--json"]) == {
        "seed": 7,
        "draws": 2000,
        "groups": [3, 5],
        "json": True,
    }
    for flag in ("-h", "--help"):
        assert checks.main([flag]) == 0
        out = capsys.readouterr().out
        assert out.startswith("用法：") and "usage" not in out
        assert max(map(checks.width, out.splitlines())) <= 80


def test_unforeseen_error_is_one_line_and_debug_shows_it(monkeypatch, capsys):
    monkeypatch.setitem(checks.GROUPS, 6, (lambda rng, draws: 1 / 0, None))
    assert checks.main(["6"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("W4D3_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        checks.main(["6"])


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "code"), [("6 >&-", 0), ("6 --json >&-", 0), ("6 >&- 2>&-", 0), ("9 2>&-", 2)]
)
def test_closed_streams_are_quiet(arguments, code):
    command = f'"{sys.executable}" "{SCRIPT}" {arguments}'
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_narrow_terminals_get_two_lines_per_row():
    narrow, wide = (run("6", COLUMNS=columns)[1].decode("utf-8") for columns in ("48", "120"))
    assert max(map(checks.width, narrow.splitlines())) <= 48
    assert "逐对 10×100                推导 通过\n" in narrow and " 1,000  " in wide


def test_unforeseen_error_without_a_stdout_is_one_line(monkeypatch, capsys):
    def full(rng, draws):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(checks.GROUPS, 6, (full, None))
    monkeypatch.setattr(sys, "stdout", None)
    assert checks.main(["6"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(SCRIPT), "1", "6"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, str(SCRIPT), "6"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_is_quiet_and_exits_130():
    command = [sys.executable, str(SCRIPT), "1", "5", "--draws", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, b"")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_only_on_a_terminal_without_no_color(no_color, coloured):
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    environment = os.environ | {"NO_COLOR": no_color, "TERM": "xterm"}
    command = [sys.executable, str(SCRIPT), "6"]
    with subprocess.Popen(command, stdout=side, env=environment) as child:
        os.close(side)
        text = b""
        while True:
            try:
                chunk = os.read(main, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not chunk:
                break
            text += chunk
    os.close(main)
    assert child.returncode == 0 and (b"\x1b[" in text) is coloured


def test_importing_draws_nothing_and_needs_numpy_only():
    program = (
        "import sys; before = {*sys.modules}; import numpy; with_numpy = {*sys.modules};"
        "import w4day3_checks; new = {m.split('.')[0] for m in {*sys.modules} - with_numpy};"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=SCRIPT.parent, capture_output=True)
    assert (done.stdout.decode().strip(), done.stderr) == ("['w4day3_checks']", b"")


def start_without(module, *arguments):
    program = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv = {['x', *arguments]!r};"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def test_missing_numpy_is_one_line():
    code, out, err = start_without("numpy")
    assert (code, out, err.count("\n")) == (2, "", 1) and "pip install numpy" in err


def test_missing_matplotlib_says_how_to_get_it(tmp_path):
    code, out, err = start_without("matplotlib", "6", "--plot", str(tmp_path))
    assert (code, err) == (0, "") and "pip install matplotlib" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="resource is POSIX")
def test_default_run_stays_under_200_megabytes():
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=-3, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", program, sys.executable, str(SCRIPT)]
    kilobytes = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert kilobytes < 200 * 1024


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("language", ["chinese", "english"])
def test_pictures_are_drawn_with_units_and_known_characters(groups, language, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager
    from matplotlib.text import Text

    font = checks.cjk_font() if language == "chinese" else None
    if language == "chinese" and font is None:
        pytest.skip("no font with Chinese characters is installed")
    files = [font_manager.findfont(name) for name in (font, "DejaVu Sans") if name]
    known = set().union(*(font_manager.get_font(file).get_charmap() for file in files))
    for index, group in groups.items():
        path = tmp_path / f"{index}.png"
        figure = checks.draw(checks.GROUPS[index][1], group, path, font)
        header = path.read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 20_000
        size = int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
        assert size == (1650, 690)
        written = "".join(text.get_text() for text in figure.findobj(Text))
        assert set(written) - {"\n"} <= set(map(chr, known)), index
        assert bool(re.search("[一-鿿]", written)) == (language == "chinese")
        assert " // " not in written and "$" not in written
        for axes in figure.axes:
            assert axes.get_title() and (axes.lines or axes.patches)
            assert axes.get_yscale() == "log" or axes.get_ylim()[0] == 0
            for label in (axes.get_xlabel(), axes.get_ylabel()):
                assert re.search(r"[（(].+[）)]", label), label


def test_plot_option_writes_one_picture_per_group(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "图"
    assert checks.main(["6", "1", "--draws", "1000", "--json", "--plot", str(folder)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(p.name for p in folder.iterdir()) == ["1_tokens.png", "6_integrations.png"]
    assert sorted(report["pictures"]) == sorted(map(str, folder.iterdir()))


def test_pictures_mark_every_row_on_a_curve_and_the_printed_figures(groups, tmp_path):
    pytest.importorskip("matplotlib")
    figure = checks.draw(checks.plot_5, groups[5], tmp_path / "5.png")
    marks = [line.get_marker() for axes in figure.axes for line in axes.lines]
    assert marks.count("o") == 2 * len(checks.TOOL_COUNTS) + 2 * len(checks.LIMITS)
    crosses = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "x"]
    assert sorted(float(y) for line in crosses for y in line.get_ydata()) == [0.547, 0.753]


@pytest.mark.filterwarnings("error")
def test_a_share_of_zero_does_not_break_a_log_axis(groups, tmp_path):
    pytest.importorskip("matplotlib")
    rare = "一次合法 ε=0.005 L=1000"
    parts = {
        heading: [row._replace(ours=0.0) if row.quantity == rare else row for row in rows]
        for heading, rows in groups[2].parts.items()
    }
    figure = checks.draw(checks.plot_2, groups[2]._replace(parts=parts), tmp_path / "2.png")
    assert all(axes.get_position().height > 0.5 for axes in figure.axes)


# ── the file itself ──────────────────────────────────────────────────────────────────────────────


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(checks).failed == 0


def test_map_in_the_docstring_is_the_headings_of_the_file():
    source = SCRIPT.read_text(encoding="utf-8")
    headings = re.findall(r"^# (§ .*?)$", source, re.MULTILINE)
    assert headings == re.findall(r"^    (§ .*?)$", checks.__doc__, re.MULTILINE)


def test_functions_are_short_and_lines_fit():
    source = SCRIPT.read_text(encoding="utf-8")
    assert max(map(checks.width, source.splitlines())) <= 100
    sizes = sorted(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    )
    assert sizes[-1] <= 60 and sizes[len(sizes) // 2] <= 12
