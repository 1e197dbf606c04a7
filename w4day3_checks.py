#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=1.22"]
# ///
"""Seven groups of numbers about tool calling, each derived twice (CME295, week 4 day 3).

    python w4day3_checks.py                 all groups; exit code 0 only if every row holds
    python w4day3_checks.py 3 5             these groups only, with the numbers of the full run
    python w4day3_checks.py --seed 7 --draws 50000 --json --plot pictures/

Every row sets a count or simulation, done step by step, against a closed form or an integral; where
the lecture prints a figure, the closed form must also round to it. A simulation may miss its closed
form by five standard errors (and Bernstein's term for rare events), never by a tuned amount.

Map, bottom up; a name refers only to names above it:

    § 0  数与容差 Rows and tolerances
    § 1  多轮调用的 token Tokens
    § 2  合法 JSON Valid JSON
    § 3  约束解码 Constrained decoding
    § 4  Toolformer 阈值 Threshold
    § 5  工具数与准确率 Number of tools
    § 6  集成数 Integrations
    § 7  注入 Injection
    § 8  表格 Text
    § 9  图 Pictures
    § 10 命令行 Command line
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

try:
    import numpy as np
except KeyboardInterrupt:
    raise SystemExit(130) from None
except ImportError:
    print("需要 numpy：python -m pip install numpy，或者 uv run w4day3_checks.py", file=sys.stderr)
    raise SystemExit(2) from None

# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 0  数与容差 Rows and tolerances
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A check returns a Group: parts of rows, tables to look at, notes. The lecture's figures stand in
# one table; a row finds its own by name.

KINDS = {
    "推导": "由讲义给的条件直接算出，没有可调的参数",
    "拟合": "有参数按讲义印出的数调过，相符不算证据",
    "预测": "参数定好之后算出，没有再调",
    "自设": "讲义没有给参数，由本脚本自选",
}
LECTURE = {  # quantity -> the figure as printed, and what agreeing with it is worth
    "串行 token n=5": ("25,200", "拟合"),
    "并行 token n=5": ("8,400", "预测"),
    "串行秒数 n=5": ("13", "拟合"),
    "并行秒数 n=5": ("3.8", "拟合"),
    "KV GiB，8192 × batch 4": ("4.0", "推导"),
    "KV KiB，每 token": ("128.0", "推导"),
    "一次合法 ε=0.005 L=500": ("0.082", "推导"),
    "三次之内 ε=0.005 L=500": ("0.225", "推导"),
    "有用调用占比": ("0.15", "推导"),
    "不路由 N=300": ("0.547", "拟合"),
    "路由 N=300": ("0.753", "拟合"),
    "逐对 10×100": ("1000", "推导"),
    "协议 10×100": ("110", "推导"),
    "风险 p=0.01 n=100": ("0.634", "推导"),
}


class Row(NamedTuple):
    """One number, derived twice."""

    quantity: str
    ours: float  # step by step, or simulated
    expected: float  # closed form, or integral
    tolerance: float
    kind: str = ""  # one of KINDS
    printed: str = ""  # the lecture's figure, digits as printed; "" where it prints none

    @property
    def figure(self) -> float | None:
        """`printed` as a number."""
        return float(self.printed.replace(",", "")) if self.printed else None

    @property
    def fault(self) -> str:
        """What was expected and what came; "" if the derivations agree and round as printed."""
        if not abs(self.ours - self.expected) <= self.tolerance:  # NaN, too
            return f"应为 {self.expected:.6g} ± {self.tolerance:.2g}，得到 {self.ours:.6g}"
        half_unit = 0.5 * 10.0 ** -len(self.printed.partition(".")[2]) + 1e-9
        if self.printed and abs(self.expected - self.figure) > half_unit:
            return f"应为讲义的 {self.printed}，闭式得到 {self.expected:.6g}"
        return ""


class Table(NamedTuple):
    """Something to look at, not to check; all cells are text."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Group(NamedTuple):
    title: str
    shows: str  # one sentence
    symbols: str  # what the letters in it stand for
    parts: dict[str, list[Row]]  # by their two derivations: "ours | expected"
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        return list(itertools.chain(*self.parts.values()))

    @property
    def ok(self) -> bool:
        return not any(row.fault for row in self.rows)


def of_kind(kind, rows: Iterable[Row]) -> list[Row]:
    """The rows with the lecture's figures, and of one kind unless the figure or the row has one."""
    known = ((row, *LECTURE.get(row.quantity, ("", row.kind or kind))) for row in rows)
    return [row._replace(printed=printed, kind=kind) for row, printed, kind in known]


Z = 5.0  # standard errors allowed: a false alarm in less than one row of a million


def spread(sd, reach, n) -> float:
    """Largest honest gap between a mean of n draws and its expectation, by Bernstein's inequality.

    `sd` is the standard deviation of one draw, `reach` the farthest it can lie from its mean. The
    second term matters only for rare events, where the bell curve is too optimistic.

    >>> round(spread(0.5, 1, 10_000), 4)
    0.0258
    """
    return float(Z * sd / math.sqrt(n) + Z * Z * reach / (3 * n)) if n else math.inf


def exactly(quantity, ours, expected) -> Row:
    """Two derivations without chance; they may differ by rounding only."""
    return Row(quantity, float(ours), float(expected), 1e-9 * max(1.0, abs(expected)))


def frequency(quantity, hits, p, *, scale=1.0) -> Row:
    """A simulated frequency against its probability p, both times `scale`; `hits` are booleans."""
    ours = scale * float(np.mean(hits)) if len(hits) else math.nan
    sd = math.sqrt(max(p * (1 - p), 0.0))
    return Row(quantity, ours, scale * float(p), scale * spread(sd, 1, len(hits)))


def ratio(quantity, top, bottom, expected) -> Row:
    """Mean of `top` per mean of `bottom`, over the same draws.

    It misses `expected` by the mean of top - expected·bottom, which chance alone keeps off 0: the
    spread of that difference is the tolerance, and no approximation enters.
    """
    gaps = (top - expected * bottom) / np.mean(bottom)
    tolerance = spread(gaps.std(), np.ptp(gaps), len(gaps))
    return Row(quantity, float(np.mean(top) / np.mean(bottom)), float(expected), tolerance)


def first_failure(steps, draws, fails) -> np.ndarray:
    """Step (from 1) at which each of `draws` runs first fails; steps + 1 where none did.

    `fails(size)` plays one step of the `size` runs that are still whole.
    """
    fate, whole = np.full(draws, steps + 1), np.arange(draws)
    for step in range(1, steps + 1):
        failed = fails(whole.size)
        fate[whole[failed]] = step
        whole = whole[~failed]
    return fate


def rare(rng, p) -> Callable[[int], np.ndarray]:
    """The plain kind of failure: probability p, independent at every step."""
    return lambda size: rng.random(size, dtype=np.float32) < p


def steps_until(quantity, p, target) -> Row:
    """Steps until a failure is as likely as `target`: multiplied one by one, and by logarithm."""
    whole, steps = 1.0, 0
    while 1 - whole < target:
        whole *= 1 - p
        steps += 1
    return exactly(quantity, steps, math.ceil(math.log(1 - target) / math.log1p(-p)))


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 1  多轮调用的 token Tokens
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The API is stateless: every model call sends the whole history again. Input tokens only.

PRICES = {  # tokens of one message by role; u is not in the lecture, but its totals leave no choice
    "system": 3_000,  # P: system prompt and tool schemas
    "user": 50,  # u
    "assistant": 60,  # a: for each tool call in it
    "tool": 400,  # o: one result
}
PREFIX, STEP = PRICES["system"] + PRICES["user"], PRICES["assistant"] + PRICES["tool"]
SHORT_RESULT = 100  # ours
MODEL_SECONDS, TOOL_SECONDS = 1.5, 0.8  # a model of latency, chosen to give 13 s and 3.8 s
CACHE_PRICE = 0.1  # of a cached input token, relative to a fresh one; our assumption
CALL_COUNTS = (1, 2, 3, 5, 10)
LLAMA3_8B = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128}  # scenario 1 of the lecture


def history(rounds: Iterable[int]) -> list[dict]:
    """Message list of a finished run; rounds[i] calls are made at once in round i."""
    ids = (f"call_{i}" for i in itertools.count())
    function = {"name": "kv_cache_gib", "arguments": json.dumps(LLAMA3_8B | {"seq_len": 8192})}
    messages = [
        {"role": "system", "content": "你是 CME295 课程的助教。"},
        {"role": "user", "content": "Llama 3 8B 在几种长度下的 KV Cache 各有多大？"},
    ]
    for size in rounds:
        calls = [{"id": next(ids), "type": "function", "function": function} for _ in range(size)]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "…"} for call in calls]
    return [*messages, {"role": "assistant", "content": "KV Cache 约 1.0 GiB。"}]


def prompts(messages) -> list[list[dict]]:
    """What each model call was sent: all messages before each assistant message."""
    return [messages[:i] for i, m in enumerate(messages) if m["role"] == "assistant"]


def tokens(messages, prices=PRICES) -> int:
    """Input tokens of some messages; an assistant message costs as much as it has calls."""
    pieces = (m.get("tool_calls") or () if m["role"] == "assistant" else [m] for m in messages)
    return sum(prices[m["role"]] * len(piece) for m, piece in zip(messages, pieces))


class Run(NamedTuple):
    """What a run sends and how long it waits."""

    sent: int  # input tokens of all its model calls; in them,
    prefix: int  # system prompt and user message,
    cached: int  # and what the call before had already sent as the same prefix
    seconds: float


def play(messages, prices=PRICES) -> Run:
    """A run added up message by message; the calls of one message run at the same time."""
    sent = prompts(messages)
    everything = list(itertools.chain(*sent))
    prefix = [m for m in everything if m["role"] in ("system", "user")]
    again = [old for old, new in itertools.pairwise(sent) if new[: len(old)] == old]
    turns = [m for m in messages if m["role"] == "assistant"]
    return Run(
        tokens(everything, prices),
        tokens(prefix, prices),
        tokens([*itertools.chain(*again)], prices),
        sum(MODEL_SECONDS + TOOL_SECONDS * bool(turn.get("tool_calls")) for turn in turns),
    )


def serial_tokens(n):
    """Closed form for n rounds of one call: (n+1)(P+u) + (a+o)n(n+1)/2."""
    return (n + 1) * PREFIX + STEP * n * (n + 1) // 2


def parallel_tokens(n):
    """Closed form for one round of n calls: 2(P+u) + n(a+o)."""
    return 2 * PREFIX + n * STEP


def cached_cost(total, n):
    """Price of `total` tokens when every prefix is cached: only the last prompt is paid in full."""
    fresh = PREFIX + n * STEP
    return fresh + CACHE_PRICE * (total - fresh)


def kv_cache_bytes(num_layers, num_kv_heads, head_dim, seq_len, batch_size=1, bytes_per_value=2):
    """Bytes of the keys and values of `seq_len` tokens (Week 1 Day 4 §1.4)."""
    return 2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size * bytes_per_value


def _memory_row(quantity, seq_len, batch_size, unit) -> Row:
    """Bytes of a float16 array (a broadcast, takes no memory) against the formula."""
    array = np.broadcast_to(np.float16(0), (2, batch_size, seq_len, *LLAMA3_8B.values()))
    closed = kv_cache_bytes(**LLAMA3_8B, seq_len=seq_len, batch_size=batch_size)
    return exactly(quantity, array.nbytes / unit, closed / unit)


def _message_table(rounds) -> Table:
    letters, rows, before = dict(zip(PRICES, "Puao")), [], 0
    for index, prompt in enumerate(prompts(history(rounds)), start=1):
        sent = " + ".join(f"{letters[m['role']]} {tokens([m])}" for m in prompt)
        rows.append((str(index), f"{tokens(prompt):,}", f"{before:,}", sent))
        before = tokens(prompt)
    return Table("两轮串行时，每次模型调用发出的消息：", ("次", "token", "已发过", "消息"), rows)


def check_1_tokens(rng, draws) -> Group:
    """Group 1: what a run of n tool calls sends, waits for and pays. Nothing here is random."""
    totals, waits, shares, savings = [], [], [], []
    for name, closed, rounds_of in (
        ("串行", serial_tokens, lambda n: [1] * n), ("并行", parallel_tokens, lambda n: [n]),
    ):
        for n in CALL_COUNTS:
            run, total, rounds = play(history(rounds_of(n))), closed(n), len(rounds_of(n))
            clock = MODEL_SECONDS * (rounds + 1) + TOOL_SECONDS * rounds
            share = PREFIX * (rounds + 1) / total
            totals.append(exactly(f"{name} token n={n}", run.sent, total))
            waits.append(exactly(f"{name}秒数 n={n}", run.seconds, clock))
            shares.append(exactly(f"{name}前缀占比 n={n}", run.prefix / run.sent, share))
        run, total = play(history(rounds_of(5))), closed(5)
        paid, cost = run.sent - (1 - CACHE_PRICE) * run.cached, cached_cost(total, 5)
        savings += [
            exactly(f"{name}命中缓存的 token n=5", run.cached, total - PREFIX - 5 * STEP),
            exactly(f"{name}折成全价 token n=5", paid, cost),
            exactly(f"{name}省下的比例 n=5", 1 - paid / run.sent, 1 - cost / total),
        ]
    longest = history([1] * 5)
    shorter = play(longest, PRICES | {"tool": SHORT_RESULT}).sent
    closed = serial_tokens(5) - (PRICES["tool"] - SHORT_RESULT) * 5 * 6 // 2
    savings.append(exactly(f"串行，结果缩到 {SHORT_RESULT} n=5", shorter, closed))
    solved = [  # one unknown, two totals: the first fixes P+u, the second confirms it
        exactly("P+u，由串行 25,200", (25_200 - 15 * STEP) / 6, PREFIX),
        exactly("P+u，由并行 8,400", (8_400 - 5 * STEP) / 2, PREFIX)._replace(kind="预测"),
    ]
    memory = [
        _memory_row("KV GiB，8192 × batch 4", 8192, 4, 2**30),
        _memory_row("KV KiB，每 token", 1, 1, 2**10),
        _memory_row("KV MiB，n=5 的全部历史", tokens(prompts(longest)[-1]), 1, 2**20),
    ]
    return Group(
        "多轮调用的 token 与时间",
        "每次调用都重发全部历史：串行的输入随轮数平方增长，并行只随调用数线性增长。",
        "n 是工具调用数；P={system} 系统提示和工具说明，u={user} 用户的话，a={assistant} 一次调用，"
        "o={tool} 一条结果，单位都是 token".format(**PRICES),
        {
            "输入 token：逐条相加 | (n+1)(P+u)+(a+o)n(n+1)/2，2(P+u)+n(a+o)":
                of_kind("预测", totals),
            "u=50 别无选择：由讲义的两个总数反解 | 本脚本的 P+u": of_kind("拟合", solved),
            "等待秒数：沿消息走一遍时钟 | 1.5(n+1)+0.8n，2×1.5+0.8": of_kind("预测", waits),
            "重发的前缀占全部输入：逐条相加 | (P+u)×模型调用数/总数": of_kind("推导", shares),
            "提示缓存与短结果：逐次比对前缀 | 末次全价，其余一成": of_kind("自设", savings),
            "缓存占的显存（Llama 3 8B）：numpy 数组的字节数 | KV 公式": of_kind("推导", memory),
        },
        (_message_table([1, 1]),),
        (
            "只算输入 token；1.5 秒与 0.8 秒、缓存价一成都是假设，不是测量。",
            "串行总数恰好是并行的 (n+1)/2 倍，所以两者的前缀占比相同。",
        ),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 2  合法 JSON Valid JSON
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Every token breaks the JSON with probability eps, independently of the others; one attempt of L
# tokens is valid with q = (1 - eps)^L.

LECTURE_EPS, TRIES = 0.005, 3
LENGTHS = {  # eps -> lengths L
    0.001: (100, 500, 1000),
    LECTURE_EPS: (20, 50, 100, 200, 500, 1000),
    0.02: (20, 100, 500),
}


def valid_chance(eps, length):
    return (1 - eps) ** length


def within_tries(q):
    return 1 - (1 - q) ** TRIES


def in_tries(valid) -> np.ndarray:
    """The same attempts, `TRIES` to a row; a rest that fills no row is left out."""
    return valid[: len(valid) // TRIES * TRIES].reshape(-1, TRIES)


def check_2_valid_json(rng, draws) -> Group:
    """Group 2: how often free-running JSON is valid, and what retrying buys."""
    single, retried, tries, halves = [], [], [], []
    for eps, lengths in LENGTHS.items():
        fate = first_failure(lengths[-1], draws, rare(rng, eps))
        halves.append(steps_until(f"半衰长度 ε={eps}", eps, 0.5))
        for length in lengths:
            valid, q = fate > length, valid_chance(eps, length)
            within = in_tries(valid).any(axis=1)
            single.append(frequency(f"一次合法 ε={eps} L={length}", valid, q))
            retried.append(frequency(f"三次之内 ε={eps} L={length}", within, within_tries(q)))
            if eps == LECTURE_EPS and length in (50, 200, 500):
                tries.append(ratio(f"平均次数，不限 L={length}", np.ones(draws), valid, 1 / q))
            if eps == LECTURE_EPS and length == 500:
                rows = in_tries(valid)
                used = 1 + sum(~rows[:, :i].any(axis=1) for i in range(1, TRIES))
                capped = "平均次数，至多三次 L=500"
                tries.append(ratio(capped, used, 1.0, within_tries(q) / q))
    return Group(
        "长 JSON 的合法率与重试",
        "单个 token 的错误率再小，长 JSON 也多半不合法，重试只能救回一部分。",
        "ε 是每个 token 写坏 JSON 的概率，L 是 JSON 的 token 数，q 是一次就合法的概率",
        {
            "一次就合法：逐 token 抽，抽到出错为止 | q=(1-ε)^L": of_kind("推导", single),
            "三次之内合法：把抽样三个一组 | 1-(1-q)^3": of_kind("推导", retried),
            f"平均要试几次（ε={LECTURE_EPS}）：数次数 | 1/q，(1-(1-q)^3)/q": of_kind("推导", tries),
            "合法率跌破一半的长度：逐个相乘 | ln2/-ln(1-ε) 向上取整": of_kind("推导", halves),
        },
        notes=("假设各 token 独立出错；真实的错误会扎堆，重试也往往犯同一个错。",),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 3  约束解码 Constrained decoding
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A real decoder: JSON Schema -> regular expression -> automaton over bytes -> over tokens.
# Every sampler is the same loop with another *gate*, which multiplies the odds of each next token:
#     free   1                                       illegal texts are thrown away afterwards
#     mask   1 where the text can still become legal vLLM, llama.cpp, strict mode
#     exact  the chance that it will end legal       exact conditioning on a legal text
# The mask is the 0/1 shadow of the exact gate. What the shadow loses is the distortion.
# A regular expression is a tuple of items, one after the other: a frozenset of bytes (one of them),
# a Star (any number of them) or an Alt (one of these expressions).


class Star(NamedTuple):
    allowed: frozenset[int]


class Alt(NamedTuple):
    options: tuple[tuple, ...]


def one_of(characters: str) -> frozenset[int]:
    return frozenset(characters.encode())


def literal(text: str) -> tuple:
    return tuple(frozenset([byte]) for byte in text.encode())


def schema_regex(schema: dict) -> tuple:
    """Regular expression of the compact JSON texts a schema allows; ValueError outside the subset.

    The subset is the core of strict mode: every property required, in the order written; free
    strings are printable ASCII without escapes.
    """
    match schema:
        case {"enum": values}:
            return (Alt(tuple(literal(json.dumps(x, ensure_ascii=False)) for x in values)),)
        case {"type": "boolean"}:
            return schema_regex({"enum": [True, False]})
        case {"type": "integer"}:
            digits = one_of("123456789"), Star(one_of("0123456789"))
            return Alt(((), literal("-"))), Alt((literal("0"), digits))
        case {"type": "string"}:
            plain = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"\\')
            return *literal('"'), Star(one_of(plain)), *literal('"')
        case {"type": "object", "properties": fields, "required": keys} if set(keys) == set(fields):
            inside = ()
            for name, field in fields.items():
                comma = literal(",") if inside else ()
                inside += comma + literal(json.dumps(name, ensure_ascii=False) + ":")
                inside += schema_regex(field)
            return literal("{") + inside + literal("}")
    raise ValueError(f"schema 不在支持的子集里：{schema}")


def pattern(regex) -> str:
    """The expression in Python's own notation: for the reader, and an oracle for the tests."""
    text = ""
    for item in regex:
        match item:
            case Alt(options):
                text += f"(?:{'|'.join(map(pattern, options))})"
            case Star(allowed):
                text += pattern((allowed,)) + "*"
            case _:
                letters = "".join(re.escape(chr(byte)) for byte in sorted(item))
                letters = letters.replace("0123456789", "0-9").replace("123456789", "1-9")
                text += letters if len(item) == 1 else f"[{letters}]"
    return text


def nullable(regex) -> bool:
    """Whether the empty text matches."""
    return all(
        any(map(nullable, item.options)) if isinstance(item, Alt) else isinstance(item, Star)
        for item in regex
    )


def derive(regex, byte: int) -> set[tuple]:
    """What can follow once `byte` has been read (partial derivatives, Antimirov 1996)."""
    match regex:
        case (Alt(options), *rest):
            return set().union(*(derive((*option, *rest), byte) for option in options))
        case (Star(allowed), *rest):
            return derive(tuple(rest), byte) | ({regex} if byte in allowed else set())
        case (allowed, *rest) if byte in allowed:
            return {tuple(rest)}
    return set()


def read(state: frozenset, text: str) -> frozenset:
    """The state of the automaton after `text`: all that can follow; none when it is dead."""
    for byte in text.encode():
        state = frozenset().union(*(derive(regex, byte) for regex in state))
    return state


def token_automaton(regex, words) -> tuple[np.ndarray, np.ndarray]:
    """(next states, whether the text can still become legal), both states × tokens with END last.

    State 0 is dead, 1 the start; the last one is reached by END alone.
    """
    states, moves = [frozenset(), frozenset([regex])], []
    for state in states:  # grows while we walk it
        ahead = [read(state, word) for word in words]
        states += [new for new in dict.fromkeys(ahead) if new not in states]
        moves.append([*map(states.index, ahead), -1 if any(map(nullable, state)) else 0])
    move = np.array([*moves, [0] * (len(words) + 1)]) % (len(moves) + 1)
    # A state may live on byte by byte and yet lead nowhere with these tokens: search backwards.
    alive = np.arange(len(move)) == len(move) - 1
    while (grown := alive | alive[move].any(axis=1)).sum() > alive.sum():
        alive = grown
    return move, alive[move]


class Decoder(NamedTuple):
    """A model and an automaton as one Markov chain over pairs of their states."""

    tokens: tuple[str, ...]
    odds: np.ndarray  # pairs × tokens: what the model would write
    move: np.ndarray  # pairs × tokens -> pair
    start: int  # pairs below it are dead
    done: int  # pairs from it on have ended
    legal: np.ndarray  # pairs: the chance of a free run from there to end legal
    gates: dict[str, np.ndarray]  # "free", "mask", "exact", each pairs × tokens


END = "<END>"


def _legal_chances(odds, move, done) -> np.ndarray:
    """`Decoder.legal`: grows backwards from the end until rounding stops it."""
    legal = (np.arange(len(odds)) >= done) * 1.0
    while True:
        grown = (odds * legal[move]).sum(axis=1)
        grown[done:] = 1.0
        if (grown <= legal).all():
            return legal
        legal = grown


def decoder(regex, words, likes, after) -> Decoder:
    """`likes`: model state -> {token: chance}; `after(state, token)`: the next. States are names.

    Mass that `likes` does not mention is spread over all tokens. The first state is the start.
    """
    names, minds = (*words, END), list(likes)
    odds = np.array([[likes[mind].get(token, 0.0) for token in names] for mind in minds])
    odds += (1 - odds.sum(axis=1, keepdims=True)).clip(0) / len(names)
    step = np.array([[minds.index(after(mind, token)) for token in names] for mind in minds])
    move, mask = token_automaton(regex, words)
    odds, done = np.tile(odds, (len(move), 1)), (len(move) - 1) * len(minds)
    move = (move[:, None, :] * len(minds) + step).reshape(-1, len(names))
    legal = _legal_chances(odds, move, done)
    mask = np.repeat(mask, len(minds), axis=0) * 1.0
    gates = {"free": np.ones_like(odds), "mask": mask, "exact": legal[move]}
    return Decoder(names, odds, move, len(minds), done, legal, gates)


def legal_mass(d: Decoder) -> float:
    """Z, the chance of a free run to end legal: mass carried forwards until all of it has ended."""
    mass, arrived = np.zeros(len(d.odds)), 0.0
    mass[d.start] = 1.0
    while mass.sum() > 1e-17:
        flow, mass = mass[:, None] * d.odds, np.zeros(len(d.odds))
        np.add.at(mass, d.move, flow)
        arrived += mass[d.done :].sum()
        mass[: d.start] = mass[d.done :] = 0.0
    return float(arrived)


def walk(d: Decoder, gate, words) -> Iterator[tuple[int, float, float]]:
    """For each of `words`: (pair before it, its chance, mass let through before renormalising)."""
    pair = d.start
    for token in map(d.tokens.index, words):
        odds = d.odds[pair] * d.gates[gate][pair]
        yield pair, float(odds[token] / odds.sum()), float(odds.sum())
        pair = d.move[pair, token]


def chances(d: Decoder, words) -> tuple[float, float]:
    """(masked, exact) chance that a text begins with `words`, multiplied up step by step."""
    masked, exact = (math.prod(p for _, p, _ in walk(d, gate, words)) for gate in ("mask", "exact"))
    return masked, exact


class Samples(NamedTuple):
    texts: np.ndarray  # str
    weights: np.ndarray  # product of the masses before renormalising: the importance weight
    legal: np.ndarray  # bool


def sample(rng, d: Decoder, gate, draws) -> Samples:
    """`draws` texts side by side, token by token, until each has ended or died."""
    pair, weights, texts = np.full(draws, d.start), np.ones(draws), np.full(draws, "", dtype=object)
    odds, words = (d.odds * d.gates[gate]).cumsum(axis=1), np.array([*d.tokens[:-1], ""], object)
    while (going := np.flatnonzero((pair >= d.start) & (pair < d.done))).size:
        here = odds[pair[going]]
        weights[going] *= here[:, -1]
        # 1 - random() lies in (0, 1], so that a token of probability 0 is never chosen.
        bar = (1 - rng.random((going.size, 1))) * here[:, -1:]
        token = (here < bar).sum(axis=1)
        texts[going] += words[token]
        pair[going] = d.move[pair[going], token]
    return Samples(texts, weights, pair >= d.done)


# The lecture's example: two letters out of a, b, c; legal are aa, ab, bc. An example is the chances
# of (the first letter, the second after a, the second after b); p(a) and p(c|a) are the lecture's.

LEGAL = ("aa", "ab", "bc")
TOY = ((0.6, 0.3, 0.1), (0.1, 0.1, 0.8), (0.05, 0.05, 0.9))
TRIPLED = ((0.6, 0.3, 0.1), (0.05, 0.05, 0.9), (0.05, 0.05, 0.9))  # the exercise, solved
EXTREME = ((0.6, 0.39, 0.01), (0.02, 0.01, 0.97), (0.015, 0.015, 0.97))


def toy_closed(first, after_a, after_b) -> tuple[dict, dict, float]:
    """({text: masked}, {text: exact}, Z) by p(y)/Πm and p(y)/Z."""
    p = dict(zip(LEGAL, (first[0] * after_a[0], first[0] * after_a[1], first[1] * after_b[2])))
    mass = (first[0] + first[1]) * np.array([after_a[0] + after_a[1]] * 2 + [after_b[2]])
    z = sum(p.values())
    return {y: p[y] / m for y, m in zip(LEGAL, mass)}, {y: p[y] / z for y in LEGAL}, z


def toy_ratio(example) -> float:
    """How far masking inflates aa."""
    masked, exact, _ = toy_closed(*example)
    return masked["aa"] / exact["aa"]


def toy_decoder(first, after_a, after_b) -> Decoder:
    """The same example for the general machinery: the second letter is followed by END."""
    rows = {"": first, "a": after_a, "b": after_b, "c": (1 / 3, 1 / 3, 1 / 3)}
    likes = {mind: dict(zip("abc", row)) for mind, row in rows.items()} | {"over": {END: 1.0}}

    def after(mind, token):
        return "over" if mind or token == END else token

    return decoder((Alt(tuple(map(literal, LEGAL))),), "abc", likes, after)


def sampler_rows(rng, draws, name, d: Decoder, z, fits, events) -> Iterator[Row]:
    """What the three samplers of one example write.

    `fits` tells a legal text without the automaton; events: {start of a text: (masked, exact)}.
    """
    free, masked, exact = (sample(rng, d, gate, draws) for gate in ("free", "mask", "exact"))
    for kind, s in (("逐步掩码", masked), ("精确条件", exact), ("自由生成", free)):
        legal = s.legal.sum() if s is free else draws
        yield exactly(f"{name}，{kind}的合法条数", sum(map(fits, s.texts)), legal)
    yield exactly(f"{name} Z，自动机前推", legal_mass(d), z)
    yield frequency(f"{name} Z，自由生成", free.legal, z)
    yield ratio(f"{name} Z，掩码的平均权重", masked.weights, 1.0, z)
    for start, (p_masked, p_exact) in events.items():
        in_free, in_masked, in_exact = (
            np.array([text.startswith(start) for text in s.texts]) for s in (free, masked, exact)
        )
        yield frequency(f"逐步掩码 {start}", in_masked, p_masked)
        yield frequency(f"精确条件 {start}", in_exact, p_exact)
        yield frequency(f"拒绝采样 {start}", in_free[free.legal], p_exact)
        yield ratio(f"掩码加权 {start}", masked.weights * in_masked, masked.weights, p_exact)


def _toy_rows() -> Iterator[Row]:
    d = toy_decoder(*TOY)
    masked, exact, _ = toy_closed(*TOY)
    steps = {y: chances(d, [*y, END]) for y in LEGAL}
    for y, (by_mask, by_gate) in steps.items():
        yield exactly(f"掩码/精确 {y}", by_mask / by_gate, masked[y] / exact[y])
    above = sum(max(by_mask - by_gate, 0.0) for by_mask, by_gate in steps.values())
    yield exactly("总变差距离", above, sum(abs(masked[y] - exact[y]) for y in LEGAL) / 2)


def _widest(c):
    """The toy whose aa is inflated most, given p(a) = 0.6 and p(c|a) = c."""
    return (0.6, 0.4, 0.0), ((1 - c) / 2, (1 - c) / 2, c), (0.0, 0.0, 1.0)


def _decoded_ratio(example) -> float:
    """`toy_ratio`, multiplied up by the decoder."""
    masked, exact = chances(toy_decoder(*example), ["a", "a", END])
    return masked / exact


def _exercise_rows() -> Iterator[Row]:
    """How far an innocent text can be inflated, with p(a) = 0.6 throughout."""
    grid = itertools.product(np.linspace(0, 0.4, 41), np.linspace(0.01, 1, 41))
    found = max(toy_ratio(((0.6, b, 0.4 - b), TOY[1], (0, 1 - c, c))) for b, c in grid)
    low, high = 0.5, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if _decoded_ratio(_widest(middle)) >= 3 else (middle, high)
    yield exactly("p(c|a)=0.8 时 aa 的上限", found, (0.6 * 0.2 + 0.4) / 0.2)
    yield exactly("到 3 倍至少要 p(c|a)", high, 5 / 6)
    yield exactly("一解：p(c|a)=0.9", _decoded_ratio(TRIPLED), (0.06 + 0.27) / (0.9 * 0.1))
    yield exactly("再推：p(c|a)=0.97", _decoded_ratio(EXTREME), (0.018 + 0.3783) / (0.99 * 0.03))


# The decoder on a schema. The model wants to write 8k, as in the lecture's scenario 3.

SCHEMA = {
    "type": "object",
    "properties": {"seq_len": {"type": "integer"}, "dtype": {"enum": ["fp16", "fp8"]}},
    "required": ["seq_len", "dtype"],
    "additionalProperties": False,
}
LIKES = {  # token -> what the model likes next; its last token is all that it remembers
    "": {'{"': 0.75, "好的": 0.2},
    '{"': {"seq_len": 0.95},
    "seq_len": {'":': 0.7, '":"': 0.25},
    '":': {"8": 0.6, "4": 0.3},
    "8": {"k": 0.8, "192": 0.1, ',"': 0.05},
    "4": {"096": 0.85, "k": 0.05, ',"': 0.05},
    ',"': {"dtype": 0.95},
    "dtype": {'":"': 0.95},
    '":"': {"fp16": 0.5, "bf16": 0.3, "fp8": 0.15},
    **dict.fromkeys(("fp16", "fp8", "bf16"), {'"}': 0.95}),
    **dict.fromkeys(("192", "096", "0", "1", "2", "6", "9", "k"), {',"': 0.8, "}": 0.1}),
    **dict.fromkeys(('"}', "}", "null", "好的"), {END: 0.9}),
    END: {END: 1.0},
}
BEFORE_NUMBER = ('{"', "seq_len", '":')  # the only legal way in


def json_decoder() -> Decoder:
    words = [token for token in LIKES if token not in ("", END)]
    return decoder(schema_regex(SCHEMA), words, LIKES, lambda _, token: token)


@functools.cache
def fits_schema(text: str) -> bool:
    """Whether a text satisfies SCHEMA, asked of the JSON parser and not of the automaton."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and list(value) == SCHEMA["required"]
        and type(value["seq_len"]) is int
        and value["dtype"] in SCHEMA["properties"]["dtype"]["enum"]
    )


def mask_table(words) -> Table:
    """The mask at each step of writing `words`, one sign per token of the vocabulary."""
    d, rows = json_decoder(), []
    for word, (pair, _, mass) in zip(words, walk(d, "mask", words)):
        mask = d.gates["mask"][pair]
        allowed = " ".join(itertools.compress(d.tokens, mask))
        bits = "".join(np.where(mask, "#", "."))
        rows.append((str(len(rows) + 1), bits, f"{mass:.3f}", word, allowed))
    title = f"每一步的掩码：{len(d.tokens)} 个 token，# 放行，. 挡住；m 是放行的概率质量"
    return Table(title, ("步", "掩码", "m", "写出", "放行的 token"), rows)


def check_3_constrained_decoding(rng, draws) -> Group:
    """Group 3: masking step by step is not conditioning, on the lecture's example and on JSON."""
    masked, exact, z = toy_closed(*TOY)
    letters = {y: (masked[y], exact[y]) for y in LEGAL}
    toy = sampler_rows(rng, draws, "字母", toy_decoder(*TOY), z, LEGAL.__contains__, letters)
    d, start = json_decoder(), "".join(BEFORE_NUMBER)
    digits = {start + digit: chances(d, (*BEFORE_NUMBER, digit)) for digit in "84"}
    real = sampler_rows(rng, draws, "JSON", d, d.legal[d.start], fits_schema, digits)
    masked, exact = digits[start + "8"]
    return Group(
        "约束解码：逐步掩码不等于精确条件",
        "掩码保证每条都合法，却夸大开头顺、后面多半走不通的序列；乘上权重能修回来。",
        "p(y) 是模型自由写出 y 的概率，m 是一步里合法 token 的概率质量，Πm 是各步 m 的乘积，"
        "Z 是全部合法文本的 p(y) 之和；“逐步掩码”每步只留合法 token，“精确条件”是 p(y)/Z",
        {
            "讲义的例子：抽样，m 的连乘积作权重 | p(y)/Πm，p(y)/Z": of_kind("自设", toy),
            "偏差多大：解码器逐步连乘 | Z/Πm，差的绝对值之和的一半": of_kind("自设", _toy_rows()),
            "练习，夸大 3 倍以上：网格、二分、解码器连乘 | Z/Πm": of_kind("自设", _exercise_rows()),
            "真的解码器（schema 到掩码）：抽样 | 自动机上逐状态算":
                of_kind("自设", real),
        },
        (mask_table((*BEFORE_NUMBER, "8", "192", ',"', "dtype", '":"', "fp16", '"}', END)),),
        (
            f"正则：{pattern(schema_regex(SCHEMA))}",
            f"8 后面八成是 k，不合法；掩码不往后看，把 8 开头的数夸大到 {masked / exact:.2f} 倍。",
        ),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 4  Toolformer 阈值 Threshold
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A call is kept when L- minus L+ >= tau, with L- = min(loss without call, loss with the call but
# without its result). The counts are the lecture's; the shapes of gain and noise are ours.

CANDIDATES, USEFUL_SHARE = 100_000, 0.15
GAIN_MEAN, GAIN_SD = 1.0, 0.5  # loss drop that a useful result brings
NOISE_SD = 0.5  # of the measured drop
LEAK_SHARE, LEAK_GAIN = 0.10, 1.0  # useless calls whose mere text lowers the loss, and how far
TAUS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def normal_cdf(x) -> np.ndarray:
    return (1 + np.vectorize(math.erf, otypes=[float])(np.asarray(x) / math.sqrt(2))) / 2


def keep_shares(tau) -> tuple:
    """Shares of all candidates that are kept: (useful, useless). Arrays give arrays."""
    useful = USEFUL_SHARE * normal_cdf((GAIN_MEAN - tau) / math.hypot(GAIN_SD, NOISE_SD))
    return useful, (1 - USEFUL_SHARE) * normal_cdf(-tau / NOISE_SD)


def leak_shares(tau) -> tuple:
    """Shares of all candidates that are kept and only leak: (with the min, without)."""
    with_min = LEAK_SHARE * normal_cdf(-tau / NOISE_SD)
    return with_min, LEAK_SHARE * normal_cdf((LEAK_GAIN - tau) / NOISE_SD)


def draw_candidates(rng) -> tuple[np.ndarray, ...]:
    """Of each candidate: (useful, leaks, L- minus L+ with the min, the same without the min).

    A call that leaks is useless, but the answer stands in its own text. Losses in nats per token.
    """
    useful = rng.random(CANDIDATES) < USEFUL_SHARE
    leaks = ~useful & (rng.random(CANDIDATES) < LEAK_SHARE / (1 - USEFUL_SHARE))
    no_call = rng.normal(3.0, 0.3, CANDIDATES)
    call_only = no_call + np.where(leaks, -LEAK_GAIN, 0.2)  # a call without result disturbs
    floor = np.minimum(no_call, call_only)
    gain = np.where(useful, rng.normal(GAIN_MEAN, GAIN_SD, CANDIDATES), 0.0)
    with_result = floor - gain - rng.normal(0.0, NOISE_SD, CANDIDATES)
    return useful, leaks, floor - with_result, no_call - with_result


def _threshold_rows(tau, useful, kept) -> tuple[Row, ...]:
    true, false = map(float, keep_shares(tau))
    at, f1 = f"τ={tau:g}", 2 * true / (true + false + USEFUL_SHARE)
    return (
        frequency(f"保留条数 {at}", kept, true + false, scale=CANDIDATES),
        frequency(f"精确率 {at}", useful[kept], true / (true + false)),
        frequency(f"召回率 {at}", kept[useful], true / USEFUL_SHARE),
        ratio(f"F1 {at}", 2.0 * (kept & useful), 1.0 * kept + useful, f1),
    )


def _minimum_rows(tau, useful, leaks, kept, naive) -> tuple[Row, ...]:
    (with_min, without), (true, false) = leak_shares(tau), keep_shares(tau)
    precision = true / (true + false - with_min + without)
    return (
        frequency(f"有 min，混入 τ={tau:g}", leaks & kept, with_min, scale=CANDIDATES),
        frequency(f"无 min，混入 τ={tau:g}", leaks & naive, without, scale=CANDIDATES),
        frequency(f"无 min，精确率 τ={tau:g}", useful[naive], precision),
    )


def check_4_toolformer(rng, draws) -> Group:
    """Group 4: what a threshold keeps of the lecture's 100,000 candidates, whatever `draws` is."""
    useful, leaks, drop, naive = draw_candidates(rng)
    share = frequency("有用调用占比", useful, USEFUL_SHARE)
    table = zip(*(_threshold_rows(tau, useful, drop >= tau) for tau in TAUS))
    minimum = zip(*(_minimum_rows(t, useful, leaks, drop >= t, naive >= t) for t in (0.5, 1.0)))
    return Group(
        "Toolformer 的过滤阈值",
        "阈值 τ 越高，留下的调用越准也越少；L- 里的 min 挡住只靠调用文本就降损失的调用。",
        "L+ 是插入调用和结果后的损失，L- 是不调用、只插调用不给结果两者中较小的损失（nat/token），"
        "L- 减 L+ ≥ τ 才留下；精确率是留下的里面有用的，召回率是有用的里面留下的，"
        "F1 是两者的调和平均",
        {
            "候选：抽 100,000 条 | 讲义给的占比": of_kind("推导", [share]),
            "阈值表：逐条比较 L- 减 L+ 与 τ | 正态分布函数 Φ":
                of_kind("自设", itertools.chain(*table)),
            "min 挡住什么：文本泄露答案的无用调用，条数 | 正态分布函数 Φ":
                of_kind("自设", itertools.chain(*minimum)),
        },
        notes=("候选固定为讲义的 100,000 条，不随 --draws 变；增益与噪声的分布是自设的。",),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 5  工具数与准确率 Number of tools
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Ten classes of N/10 tools. The right tool has similarity 0, its siblings -SIBLING_GAP, all others
# -OTHER_GAP. The model adds noise to each and takes the largest; a router with noise of its own
# first hands on the best k. Both noises were fitted to the lecture's two figures at 300 tools.

CLASSES, CANDIDATE_LIMIT = 10, 5
SIBLING_GAP, OTHER_GAP = 0.20, 0.60
MODEL_NOISE, ROUTER_NOISE = 0.093, 0.082
TOOL_COUNTS, SWEPT = (10, 30, 100, 300, 1000), 300  # k is varied at 300 tools
LIMITS = (1, 2, 3, 4, 5, 8, 10, 20, 50)

GRID = 0.005
SCORES = np.arange(-12, 9, GRID)  # in units of the noise, around the right tool


def density(x):
    return np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)


@functools.cache
def below(gap) -> np.ndarray:
    """Chance that a rival, `gap` noises behind, scores below each of SCORES."""
    return normal_cdf(SCORES + gap)


def wins(siblings, others) -> np.ndarray:
    """Chance that the right tool beats so many rivals; arrays give arrays."""
    near, far = below(SIBLING_GAP / MODEL_NOISE), below(OTHER_GAP / MODEL_NOISE)
    siblings, others = np.asarray(siblings)[..., None], np.asarray(others)[..., None]
    return (density(SCORES) * near**siblings * far**others).sum(axis=-1) * GRID


def _above(n, i, under):
    """Chance that exactly i of n rivals score above, each with chance 1 - under."""
    return math.comb(n, i) * (1 - under) ** i * under ** (n - i) if 0 <= i <= n else 0.0


def passes(tools, limit, noise) -> np.ndarray:
    """P_j: chance that the router hands on the right tool and j siblings with it, j < limit.

    The right tool must beat the rival of rank `limit`. Its score t, integrated over, belongs to a
    sibling or to another tool; limit - 1 rivals lie above t, j of them siblings.
    """
    near, far = SIBLING_GAP / noise, OTHER_GAP / noise
    siblings, others = tools // CLASSES - 1, tools - tools // CLASSES
    sibling_at, other_at = siblings * density(SCORES + near), others * density(SCORES + far)
    rows = []
    for j in range(limit):
        rest = limit - 1 - j
        if_sibling = _above(siblings - 1, j, below(near)) * _above(others, rest, below(far))
        if_other = _above(siblings, j, below(near)) * _above(others - 1, rest, below(far))
        rows.append((1 - below(0.0)) * (sibling_at * if_sibling + other_at * if_other))
    return np.sum(rows, axis=-1) * GRID


def unrouted(tools) -> float:
    siblings = tools // CLASSES - 1
    return float(wins(siblings, tools - 1 - siblings))


def routed(tools, limit, noise=ROUTER_NOISE) -> tuple[float, float]:
    """(the right tool is chosen, the right tool is among the candidates); limit < tools."""
    chances, siblings = passes(tools, limit, noise), np.arange(limit)
    return float(chances @ wins(siblings, limit - 1 - siblings)), float(chances.sum())


def _choose(rng, tools, limits, size, noise) -> tuple[np.ndarray, ...]:
    """One batch of `choices`. Tool 0 is right, its siblings come next, then the others."""
    gaps = np.full(tools, OTHER_GAP, dtype=np.float32)
    gaps[: tools // CLASSES], gaps[0] = SIBLING_GAP, 0.0
    model = rng.standard_normal((size, tools), dtype=np.float32) * np.float32(MODEL_NOISE) - gaps
    router = gaps - rng.standard_normal((size, tools), dtype=np.float32) * np.float32(noise)
    # `router` counts downwards: the best come first.
    best = np.argpartition(router, max(limits) - 1, axis=1)[:, : max(limits)]
    order = np.take_along_axis(router, best, axis=1).argsort(axis=1)
    best = np.take_along_axis(best, order, axis=1)
    # The highest model score among the first k candidates, for every k at once.
    leader = np.maximum.accumulate(np.take_along_axis(model, best, axis=1), axis=1)
    columns = np.array(limits) - 1
    recalled = np.logical_or.accumulate(best == 0, axis=1)[:, columns]
    chosen = recalled & (leader[:, columns] == model[:, :1])
    return model.argmax(axis=1) == 0, chosen, recalled


def choices(rng, tools, limits, draws, noise=ROUTER_NOISE) -> list[np.ndarray]:
    """Whether the right tool is (chosen of all, chosen of k candidates, among k candidates).

    The first has a row per draw, the others a column per k of `limits`, too. The draws are made in
    batches that fit the processor's cache.
    """
    batch = max(1, 200_000 // tools)
    sizes = [min(batch, draws - done) for done in range(0, draws, batch)]
    batches = [_choose(rng, tools, limits, size, noise) for size in sizes]
    return list(map(np.concatenate, zip(*batches)))


def _why_best(curve, best, more) -> str:
    """Why the accuracy is highest at `best` and not at the next larger k."""
    above = curve[best][0] - curve[CANDIDATE_LIMIT][0]
    (chosen, among), (chosen_more, among_more) = curve[best], curve[more]
    return (
        f"选对 = 入选 × 入选后选对。k 从 {best} 加到 {more}，入选 {among:.3f} 升到 "
        f"{among_more:.3f}，入选后选对却从 {chosen / among:.3f} 降到 {chosen_more / among_more:.3f}"
        f"，乘积变小，所以积分给出的最优是 k={best}；讲义取 k={CANDIDATE_LIMIT}，只低 {above:.4f}。"
    )


def check_5_tool_count(rng, draws) -> Group:
    """Group 5: accuracy against the number of tools, and against what the router hands on."""
    by_count, curve = [], {k: routed(SWEPT, k) for k in LIMITS}
    for n in TOOL_COUNTS:
        limits = LIMITS if n == SWEPT else (CANDIDATE_LIMIT,)
        direct, *hits = choices(rng, n, limits, draws)
        chosen, among = (dict(zip(limits, hit.T)) for hit in hits)
        accuracy, recall = routed(n, CANDIDATE_LIMIT)
        by_count += [
            frequency(f"不路由 N={n}", direct, unrouted(n)),
            frequency(f"路由 N={n}", chosen[CANDIDATE_LIMIT], accuracy),
            frequency(f"入选 N={n}", among[CANDIDATE_LIMIT], recall),
        ]
        if n == SWEPT:
            swept, recalled = chosen, among
    best = max(LIMITS[1:-1], key=lambda k: curve[k][0])
    less, more = (LIMITS[LIMITS.index(best) + step] for step in (-1, 1))
    by_limit = [frequency(f"选对 k={k}", swept[k], curve[k][0]) for k in LIMITS]
    by_limit += [frequency(f"入选 k={k}", recalled[k], curve[k][1]) for k in LIMITS]
    gains = []
    for k in sorted({LIMITS[0], less, more, LIMITS[-1]}):  # paired: the same draws for every k
        gap, closed = 1.0 * swept[best] - swept[k], curve[best][0] - curve[k][0]
        gains.append(ratio(f"k={best} 比 k={k} 高出", gap, 1.0, closed))
    same = choices(rng, SWEPT, (CANDIDATE_LIMIT,), draws, MODEL_NOISE)[1][:, 0]
    by_noise = [frequency("路由，噪声同模型", same, routed(SWEPT, CANDIDATE_LIMIT, MODEL_NOISE)[0])]
    heading = f"随工具数 N，路由留 k={CANDIDATE_LIMIT} 个：逐个打分取最大 | 积分"
    return Group(
        "工具数与选对的比例",
        "工具越多越难选对；先路由到几个候选能救回一截，候选太少会漏、太多等于没路由。",
        f"N 个工具分 {CLASSES} 类，同类的互相像；“不路由”由模型从 N 个里选，“路由”先留 k 个候选"
        "再由模型选；“入选”是对的工具在候选里",
        {
            heading: of_kind("预测", by_count),
            f"N={SWEPT} 时随候选数 k：同一批抽样 | 积分": of_kind("预测", by_limit),
            "最优的 k 在中间：同一批抽样的差 | 积分的差": of_kind("预测", gains),
            "路由必须比模型更准，否则到不了 0.753：抽样 | 积分": of_kind("预测", by_noise),
        },
        notes=(
            "N=300 的两个数是拟合来的，其余各行才是预测。",
            _why_best(curve, best, more),
            f"k={best} 与相邻的 k 相差很小，抽样未必分得出高下，由积分判定。",
            f"N 不超过 {CLASSES * CANDIDATE_LIMIT} 时，候选装得下全部同类，路由帮不上忙。",
        ),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 6  集成数 Integrations
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Without a protocol every application needs an adapter for every tool; with one, each side
# implements the protocol once.

LECTURE_APPS, LECTURE_TOOLS = 10, 100
SIZES = (1, 2, 3, 10, 100, 1000)


def list_adapters(apps, tools) -> list[tuple[str, str]]:
    return [(f"app {a}", f"tool {t}") for a in range(apps) for t in range(tools)]


def list_implementations(apps, tools) -> set[str]:
    """The ends that the same adapters touch: each speaks the protocol once."""
    return set(itertools.chain(*list_adapters(apps, tools)))


def saving(apps, tools):
    """Adapters without a protocol per implementation with one; arrays give arrays."""
    return apps * tools / (apps + tools)


def check_6_integrations(rng, draws) -> Group:
    """Group 6: a product against a sum. Nothing here is random."""
    n, m = LECTURE_APPS, LECTURE_TOOLS
    counts = []
    for apps, tools in ((n, m), (1, 100), (2, 2), (3, 3)):
        pairs, ends = len(list_adapters(apps, tools)), len(list_implementations(apps, tools))
        counts += [
            exactly(f"逐对 {apps}×{tools}", pairs, apps * tools),
            exactly(f"协议 {apps}×{tools}", ends, apps + tools),
            exactly(f"倍数 {apps}×{tools}", pairs / ends, 1 / (1 / apps + 1 / tools)),
        ]
    more = [
        exactly("逐对，多一个应用", len(list_adapters(n + 1, m)) - len(list_adapters(n, m)), m),
        exactly("协议，多一个应用", len(list_implementations(n + 1, m)) - n - m, 1),
    ]
    a, t = np.ogrid[1:101, 1:101]
    saves, rule = a * t > a + t, (a - 1) * (t - 1) > 1
    border = [
        exactly("划算的格数", saves.sum(), rule.sum()),
        exactly("两种判法不一致的格数", (saves != rule).sum(), 0),
    ]
    grid = [(f"N={a}", *(f"{saving(a, t):,.2f}" for t in SIZES)) for a in SIZES]
    return Group(
        "应用与工具的集成数",
        "没有协议要写 N×M 个适配器，有协议只写 N+M 个；(N-1)(M-1) > 1 时划算。",
        "N 个应用，M 个工具；“逐对”是每个应用给每个工具写一个，“协议”是每一方各实现一次",
        {
            "适配器个数：逐个列出再数 | N·M，N+M，倍数 1/(1/N+1/M)": of_kind("推导", counts),
            "再加一个应用：列出再数 | M，1": of_kind("推导", more),
            "100×100 格里何时划算：逐格比 N·M > N+M | (N-1)(M-1) > 1": of_kind("推导", border),
        },
        (Table("没有协议要多写几倍，N·M / (N+M)：", ("", *(f"M={size}" for size in SIZES)), grid),),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 7  注入 Injection
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One exposure (a page read, a result returned) misleads the model with chance p; n independent
# ones do so at least once with 1 - (1 - p)^n.

EXPOSURES = (1, 10, 100, 300, 1000)
CHANCES = (0.001, 0.01, 0.05)
MISS = 0.1  # chance that a defence misses an attack; ours
FACTOR, DAMAGE = 10, 100.0  # p or the damage is divided by FACTOR; loss of a breach; both ours


def risk(p, n):
    return -np.expm1(n * np.log1p(-p))


def both_miss(shared):
    """Chance that two defences miss an attack, if a share of attacks fools both in the same way."""
    return shared * MISS + (1 - shared) * MISS**2


def defended(rng, p, shared) -> Callable[[int], np.ndarray]:
    """One exposure behind two defences, played out: attack, first miss, second miss."""

    def breached(size):
        first, second = rng.random(size) < MISS, rng.random(size) < MISS
        second = np.where(rng.random(size) < shared, first, second)
        return (rng.random(size) < p) & first & second

    return breached


def _defence_rows(rng, draws, p=0.01, n=100) -> Iterator[Row]:
    one = first_failure(n, draws, lambda size: (rng.random(size) < p) & (rng.random(size) < MISS))
    yield frequency("一道，漏 10%", one <= n, risk(p * MISS, n))
    for name, shared in (("两道，互相独立", 0.0), ("两道，一半同漏", 0.5), ("两道，总是同漏", 1.0)):
        two = first_failure(n, draws, defended(rng, p, shared))
        yield frequency(name, two <= n, risk(p * both_miss(shared), n))


def _damage_rows(fates) -> Iterator[Row]:
    """p divided by a factor, and the damage divided by it: expected loss of the first breach."""
    for n in (10, 100, 1000):
        rarer, bare = fates[0.001] <= n, fates[0.01] <= n
        yield frequency(f"p 降为 1/10，n={n}", rarer, risk(0.01 / FACTOR, n), scale=DAMAGE)
        yield frequency(f"损失降为 1/10，n={n}", bare, risk(0.01, n), scale=DAMAGE / FACTOR)
    p, n, factor = np.meshgrid(np.logspace(-5, -0.1, 50), np.logspace(0, 4, 50), [2, 10, 100])
    worse = risk(p, n) / factor > risk(p / factor, n) * (1 + 1e-9)
    yield exactly("降损失反而更差的格数", worse.sum(), 0)


def check_7_injection(rng, draws) -> Group:
    """Group 7: many small risks, stacked defences, and what still holds after a breach."""
    fates = {p: first_failure(EXPOSURES[-1], draws, rare(rng, p)) for p in CHANCES}
    grid = [
        frequency(f"风险 p={p} n={n}", fate <= n, risk(p, n))
        for p, fate in fates.items()
        for n in EXPOSURES
    ]
    until = [
        steps_until(f"到 {target:.0%} 的 n，p={p}", p, target)
        for target in (0.5, 0.95)
        for p in CHANCES
    ]
    stacked = "防线叠加，p=1%，n=100：攻击与漏检逐次抽 | 独立时才是 1-(1-p·d1·d2)^n"
    damage = "期望损失，p=1%，一次得手损失 100：抽样 | 损失×(1-(1-p)^n)"
    return Group(
        "提示注入的累积风险",
        "单次 1% 的风险，一百次就是 63%；降 p 只是推迟，限制得手后的损失才封顶。",
        "p 是一次暴露（读一页、收一条结果）里攻击得手的概率，n 是暴露次数，"
        "d1、d2 是两道防线各自的漏检率，都取 10%",
        {
            "至少得手一次：逐次抽，抽到得手为止 | 1-(1-p)^n": of_kind("推导", grid),
            "风险过半、过 95% 要几次：逐次相乘 | ln(1-目标)/ln(1-p) 取整": of_kind("推导", until),
            stacked: of_kind("自设", _defence_rows(rng, draws)),
            damage: of_kind("自设", _damage_rows(fates)),
        },
        notes=(
            "风险是 p 的凹函数：除以同一个倍数，降损失总不比降 p 差，n 越大差得越远。",
            "若每次得手都另算损失，两者期望相同；最坏的情形仍只有限损能封顶。",
        ),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 8  表格 Text
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A Chinese character takes two columns; only characters that GBK has.

HEADER = ("数量", "逐步/模拟", "闭式/积分", "容差", "讲义", "性质", "结果")
NAME_WIDTH, NUMBER_WIDTHS = 26, (11, 11, 9, 7)
ONE_LINE = 80  # columns that a row takes; on a narrower screen it takes two lines
COLOURS = {"bold": "1", "red": "31", "green": "32"}


class Screen(NamedTuple):
    """Where text will be read."""

    columns: int = ONE_LINE
    colour: bool = False

    def paint(self, text, style) -> str:
        return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if self.colour else text


def width(text) -> int:
    """Columns on a terminal.

    >>> width("ε=0.005 合法")
    12
    """
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def fit(text, columns, *, right=False) -> str:
    """The text padded to so many columns, or cut with .. at its end."""
    while width(text) > columns:
        text = text.removesuffix("..")[:-1] + ".."
    space = " " * (columns - width(text))
    return space + text if right else text + space


def wrapped(text, columns) -> Iterator[str]:
    """Lines of at most so many columns; closing punctuation stays with what it closes."""
    line = ""
    for piece in re.findall(r"[“（]*(?:[!-~]{1,40}|.)[，。；：、）”]* *", text):
        if line and width(line + piece.rstrip()) > columns:
            yield line.rstrip()
            line = "  "
        line += piece
    yield line


def number(x) -> str:
    """Whole numbers with commas; others with four decimals, fewer where the number is large.

    >>> number(25200), number(0.08157), number(668.75)
    ('25,200', '0.0816', '668.75')
    """
    if 0 < abs(x) < 1e-3:
        return f"{x:.2g}"
    whole = not math.isfinite(x) or abs(x - round(x)) <= 1e-9 * abs(x)
    return f"{x:,.{0 if whole or abs(x) >= 10_000 else 4 if abs(x) < 10 else 2}f}"


def row_text(cells, screen) -> str:
    """The seven cells of a row, on two lines where one does not fit."""
    name, *numbers, kind, verdict = cells
    numbers = " ".join(fit(cell, w, right=True) for cell, w in zip(numbers, NUMBER_WIDTHS))
    name = fit(name, NAME_WIDTH)
    if screen.columns < ONE_LINE:
        return f"{name} {kind} {verdict}\n  {numbers}".rstrip()
    return f"{name} {numbers} {kind} {verdict}"


def row_cells(row, screen) -> tuple[str, ...]:
    exact = row.tolerance <= 1e-9 * max(1.0, abs(row.expected))
    tolerance = "舍入" if exact else number(row.tolerance)
    verdict = screen.paint("不符", "red") if row.fault else screen.paint("通过", "green")
    numbers = number(row.ours), number(row.expected), tolerance, row.printed
    return row.quantity, *numbers, row.kind, verdict


def table_lines(table, screen) -> Iterator[str]:
    """Columns as wide as their widest cell; the last one is cut at the edge of the screen."""
    rows = [table.header, *table.rows]
    columns = [max(map(width, column)) for column in zip(*rows)]
    room = screen.columns - sum(columns[:-1]) - 2 * len(columns[1:])
    columns[-1] = min(columns[-1], max(room, 2))
    yield from wrapped(table.title, screen.columns)
    for row in rows:
        yield "  ".join(map(fit, row, columns)).rstrip()


def opening_lines(seed, draws, screen) -> Iterator[str]:
    """How to read what follows."""
    for line in (
        f"种子 seed={seed}，每个模拟 draws={draws:,} 次。每个数算两遍：逐步数或抽样，"
        "再用闭式或积分；小标题里 | 的左右就是这两种算法。",
        f"容差：抽样的行允许 {Z:g} 个标准误；写“舍入”的行两边必须相等。讲义：讲义印的数。",
        "性质：" + "；".join(f"{kind}＝{meaning}" for kind, meaning in KINDS.items()) + "。",
    ):
        yield from wrapped(line, screen.columns)


def group_lines(index, group, screen) -> Iterator[str]:
    """One group as text: sentence, rows, tables, notes, and what failed."""
    yield screen.paint(f"第 {index} 组  {group.title}", "bold")
    for line in (group.shows, f"记号：{group.symbols}。"):
        yield from wrapped(line, screen.columns)
    yield row_text(HEADER, screen)
    for heading, rows in group.parts.items():
        yield from (screen.paint(line, "bold") for line in wrapped(f"- {heading}", screen.columns))
        yield from (row_text(row_cells(row, screen), screen) for row in rows)
    for table in group.tables:
        yield from ("", *table_lines(table, screen))
    for note in group.notes:
        yield from wrapped(f"注：{note}", screen.columns)
    for row in group.rows:
        if row.fault:
            yield screen.paint(f"不符：{row.quantity}：{row.fault}", "red")


def verdict_line(groups, screen) -> str:
    rows = [row for group in groups.values() for row in group.rows]
    failed = sum(bool(row.fault) for row in rows)
    text = f"{len(groups)} 组 {len(rows)} 行，" + (f"{failed} 行不符。" if failed else "全部通过。")
    return screen.paint(text, "red" if failed else "green")


def row_json(row) -> dict:
    """A row as JSON has it; NaN and infinity become null."""
    numbers = {name: float(getattr(row, name)) for name in ("ours", "expected", "tolerance")}
    finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
    return row._asdict() | finite | {"printed": row.figure, "ok": not row.fault}


def group_json(index, group) -> dict:
    fields = {"number": index, "ok": group.ok} | group._asdict()
    parts = fields.pop("parts").items()
    rows = [{"part": heading, **row_json(row)} for heading, rows in parts for row in rows]
    return fields | {"rows": rows, "tables": [table._asdict() for table in group.tables]}


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 9  图 Pictures
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Two panels per group. A label is written "中文 // English"; the picture has the half that the
# installed fonts can show.

CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Noto Sans CJK JP", "Source Han Sans SC", "Microsoft YaHei",
    "PingFang SC", "Hiragino Sans GB", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "SimHei",
    "Heiti SC", "Arial Unicode MS",
)
CAPTION = (
    "线：闭式或积分　空心点：本脚本逐步数出或抽样　×：讲义印出的数 // "
    "lines: closed forms or integrals   open dots: counted or sampled here   ×: printed figures"
)


class Curve(NamedTuple):
    """A closed form to draw, and the rows that stand on it."""

    xs: Iterable[float]
    ys: Iterable[float]
    style: str
    label: str = ""
    template: str = ""  # of the rows' names
    keys: Iterable[float] = ()  # fill the template, and are the rows' places on the x axis


def cjk_font() -> str | None:
    """Name of an installed font with Chinese characters, if matplotlib knows one."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def panel(axes, rows, title, x, y, *curves, log="") -> None:
    """Draw curves, with a dot for our value of each row and a cross for the lecture's.

    `log` is "", "x", "y" or "xy"; a linear y axis starts at 0.
    """
    for curve in curves:
        axes.plot(curve.xs, curve.ys, curve.style, label=curve.label, markerfacecolor="white")
        for key in curve.keys:
            row = rows[curve.template.format(key)]
            style = curve.style[:2] + "o"
            # A share of 0 lies infinitely far down a log axis: only there dots are clipped.
            axes.plot(key, row.ours, style, markerfacecolor="white", clip_on="y" in log)
            axes.plot(*(([key], [row.figure]) if row.figure else ([], [])), "kx", zorder=3)
    axes.set(title=title, xlabel=x, ylabel=y)
    if "y" not in log:
        axes.set_ylim(0, 1.05 * axes.dataLim.y1)
    for name in log:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter("{x:g}")  # powers of ten need a minus that CJK fonts lack
        axis.set_minor_formatter("")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(framealpha=0.85, edgecolor="none")


def plot_1(left, right, rows):
    n, x = np.arange(1, 11), "工具调用数 n（次） // tool calls n (count)"
    serial, parallel = serial_tokens(n), parallel_tokens(n)
    panel(
        left, rows, "输入：抛物线与直线 // Input: parabola and line",
        x, "输入（token） // input (tokens)",
        Curve(n, serial, "C1", "串行：n 轮，每轮一个 // serial: n rounds of one call",
              "串行 token n={}", CALL_COUNTS),
        Curve(n, parallel, "C0", "并行：一轮 n 个 // parallel: one round of n calls",
              "并行 token n={}", CALL_COUNTS),
    )
    panel(
        right, rows, "重发的前缀，与提示缓存 // Re-sent prefix, and prompt caching",
        x, "占输入的比例（0–1） // share of input (0–1)",
        Curve(n, PREFIX * (n + 1) / serial, "C2", "前缀占比（两者相同） // prefix (the same)",
              "串行前缀占比 n={}", CALL_COUNTS),
        Curve(n, 1 - cached_cost(serial, n) / serial, "C1--", "串行：缓存省下 // serial: saved",
              "串行省下的比例 n={}", [5]),
        Curve(n, 1 - cached_cost(parallel, n) / parallel, "C0--",
              "并行：缓存省下 // parallel: saved", "并行省下的比例 n={}", [5]),
    )


def plot_2(left, right, rows):
    n, x = np.arange(1, 1001), "长度 L（token） // length L (tokens)"
    once, thrice = [], []
    for (eps, lengths), colour in zip(LENGTHS.items(), ("C2", "C0", "C1")):
        q, label, names = valid_chance(eps, n), f"ε = {eps * 100:g}%", f"ε={eps} L={{}}"
        some = lengths if eps < 0.02 else lengths[:-1]  # 500 tokens: no hit, and log 0
        once.append(Curve(n, q, colour, label, f"一次合法 {names}", some))
        thrice.append(Curve(n, within_tries(q), colour, "", f"三次之内 {names}", lengths))
        thrice.append(Curve(n, q, colour + ":"))
    panel(
        left, rows, "试一次：斜率 ln(1-ε) // One try: slope ln(1-ε)",
        x, "合法率（0–1，对数） // valid share (0–1, log)", *once, log="y",
    )
    left.set_ylim(1e-4, 1.5)
    panel(
        right, rows, "最多试三次（颜色同左） // Up to three tries (colours as on the left)",
        x, "合法率（0–1） // valid share (0–1)",
        Curve([], [], "k", "三次 // three tries"), Curve([], [], "k:", "一次 // one try"), *thrice,
    )


def plot_3(left, right, rows):
    masked, exact, _ = toy_closed(*TOY)
    d = json_decoder()
    digits = zip(*(chances(d, (*BEFORE_NUMBER, digit)) for digit in "84"))
    for shift, closed, of_digits, colour, label in zip(
        (-0.2, 0.2), (masked, exact), digits, ("C1", "C0"),
        ("逐步掩码 // masked", "精确条件 // exact"),
    ):
        places = np.array([0, 1, 2, 3.5, 4.5]) + shift
        bars = left.bar(places, [*closed.values(), *of_digits], 0.38, color=colour, label=label)
        left.bar_label(bars, fmt="%.2f", fontsize=8)
    left.set_xticks([0, 1, 2, 3.5, 4.5], [*LEGAL, "8…", "4…"])
    panel(
        left, rows, "讲义的例子，与真的解码器 // The lecture's example, and a real decoder",
        "合法的文本（右：JSON 里数的首位） // legal text (right: first digit in the JSON)",
        "概率（0–1，闭式） // probability (0–1, closed form)",
    )
    c = np.linspace(0.5, 0.97, 95)
    ours = [toy_ratio((TOY[0], ((1 - x) / 2, (1 - x) / 2, x), TOY[2])) for x in c]
    panel(
        right, rows, "aa 被掩码夸大几倍 // How far masking inflates aa",
        "a 之后不合法的概率 p(c|a)（0–1） // chance p(c|a) of an illegal step after a (0–1)",
        "掩码 / 精确（倍） // masked / exact (times)",
        Curve(c, [toy_ratio(_widest(x)) for x in c], "C1", "p(b) = 0.4, p(c|b) = 1",
              "p(c|a)={} 时 aa 的上限", [0.8]),
        Curve(c, ours, "C0", "p(b) = 0.3, p(c|b) = 0.9", "一解：p(c|a)={}", [0.9]),
        Curve([0.5, 1], [3, 3], "k:", "3 倍 // 3 times"),
        Curve([0.8], [toy_ratio(TOY)], "C0s", "讲义：p(c|a) = 0.8 // lecture: p(c|a) = 0.8"),
        Curve([5 / 6], [3], "C1s", "p(c|a) = 5/6"),
    )
    right.set_ylim(0, 10)


def plot_4(left, right, rows):
    tau, x = np.linspace(0, 2, 81), "阈值 τ（nat/token） // threshold τ (nats per token)"
    (true, false), (leaks, naive_leaks) = keep_shares(tau), leak_shares(tau)
    kept = CANDIDATES * (true + false)
    f1 = 2 * true / (true + false + USEFUL_SHARE)
    panel(
        left, rows, "越严越准，也越少 // Stricter is purer and rarer",
        x, "比例（0–1） // share (0–1)",
        Curve(tau, true / (true + false), "C0", "精确率 // precision", "精确率 τ={:g}", TAUS),
        Curve(tau, true / USEFUL_SHARE, "C1", "召回率 // recall", "召回率 τ={:g}", TAUS),
        Curve(tau, f1, "C2", "F1", "F1 τ={:g}", TAUS),
    )
    naive = kept + CANDIDATES * (naive_leaks - leaks)
    panel(
        right, rows, "L- 里的 min 挡住多少 // What the min in L- keeps out",
        x, "保留（条） // kept (calls)",
        Curve(tau, naive, "C1", "没有 min // without the min"),
        Curve(tau, kept, "C0", "有 min // with the min", "保留条数 τ={:g}", TAUS),
        Curve(tau, CANDIDATES * true, "C2--", "其中有用的 // useful among them"),
    )


def plot_5(left, right, rows):
    counts = np.unique(np.geomspace(1, 100, 15).astype(int)) * CLASSES
    limits = [*range(1, 11), 12, 15, 20, 25, 28, 30, 32, 40, 50]
    chosen, among = zip(*(routed(SWEPT, k) for k in limits))
    best = limits[np.argmax(chosen)]
    panel(
        left, rows, "工具越多越难选对 // More tools, harder choice",
        "工具数 N（个，对数） // number of tools N (count, log)",
        "选对的比例（0–1） // right tool chosen (0–1)",
        Curve(counts, [unrouted(n) for n in counts], "C1", "不路由 // unrouted",
              "不路由 N={}", TOOL_COUNTS),
        Curve(counts, [routed(n, 5)[0] for n in counts], "C0", "路由到 5 个 // routed to 5",
              "路由 N={}", TOOL_COUNTS),
        log="x",
    )
    panel(
        right, rows, "N = 300：候选不宜太少也不宜太多 // N = 300: neither too few nor too many",
        "候选数 k（个，对数） // candidates k (count, log)", "比例（0–1） // share (0–1)",
        Curve(limits, among, "C2", "对的工具入选 // right tool among the k", "入选 k={}", LIMITS),
        Curve(limits, chosen, "C0", "最后选对 // right tool chosen", "选对 k={}", LIMITS),
        Curve([best] * 2, [0, max(chosen)], "C3:", f"最优 k = {best} // best k = {best}"),
        log="x",
    )
    right.set_xticks(LIMITS, map(str, LIMITS))


def plot_6(left, right, rows):
    n, x = np.geomspace(1, 1000, 121), "应用数 N（个，对数） // applications N (count, log)"
    times = saving(n[None, :], n[:, None])
    colours = {"cmap": "RdBu", "vmin": -2.7, "vmax": 2.7, "shading": "gouraud"}
    left.pcolormesh(n[::5], n[::5], np.log10(times[::5, ::5]), **colours)
    lines = left.contour(n, n, times, [1, 2, 10, 100], colors="k", linewidths=0.8)
    left.clabel(lines, [2, 10, 100], fmt="%g×")
    lecture = "讲义：10 × 100，9.1 倍 // lecture: 10 × 100, 9.1×"
    panel(
        left, rows, "没有协议要多写几倍：N·M / (N+M) // Adapters per implementation: N·M / (N+M)",
        x, "工具数 M（个，对数） // tools M (count, log)",
        Curve([LECTURE_APPS], [LECTURE_TOOLS], "kx", lecture), log="xy",
    )
    panel(
        right, rows, "工具数 M = 100 // With M = 100 tools",
        x, "要写的适配器（个，对数） // adapters to write (count, log)",
        Curve(n, n * 100, "C1", "逐对：N·M // pairwise: N·M", "逐对 {}×100", (1, 10)),
        Curve(n, n + 100, "C0", "协议：N+M // protocol: N+M", "协议 {}×100", (1, 10)),
        log="xy",
    )


def plot_7(left, right, rows):
    n, x = np.geomspace(1, 10_000, 200), "暴露次数 n（次，对数） // exposures n (count, log)"
    panel(
        left, rows, "至少得手一次 // Breached at least once", x, "风险（0–1） // risk (0–1)",
        *(Curve(n, risk(p, n), colour, f"p = {p * 100:g}%", f"风险 p={p} n={{}}", EXPOSURES)
          for p, colour in zip(CHANCES, ("C2", "C0", "C1"))),
        log="x",
    )
    some, rarer, milder = (10, 100, 1000), risk(0.01 / FACTOR, n), risk(0.01, n) / FACTOR
    panel(
        right, rows, "降 p 只是推迟，限损才封顶 // Lower p delays, less damage caps",
        x, "期望损失（一次得手 = 100） // expected loss (one breach = 100)",
        Curve(n, DAMAGE * risk(0.01, n), "k:", "不设防，p = 1% // nothing done, p = 1%"),
        Curve(n, DAMAGE * rarer, "C1", "p 降为 1/10 // p divided by 10", "p 降为 1/10，n={}", some),
        Curve(n, DAMAGE * milder, "C0", "损失降为 1/10 // damage divided by 10",
              "损失降为 1/10，n={}", some),
        log="x",
    )


def draw(plot, group, path, font=None):
    """Save one group's picture and return the Figure; `font` names one with Chinese characters."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    family = [font, "DejaVu Sans"] if font else ["DejaVu Sans"]
    with matplotlib.rc_context({"font.family": family, "axes.unicode_minus": False}):
        figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
        plot(*figure.subplots(1, 2), {row.quantity: row for row in group.rows})
        figure.supxlabel(CAPTION, fontsize=8, color="0.35")
        for text in figure.findobj(Text):
            text.set_text(text.get_text().split(" // ")[0 if font else -1])
        figure.savefig(path)
    return figure


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 10 命令行 Command line
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Exit codes: 0 all rows hold, 1 a row fails, 2 bad arguments, 130 Ctrl-C, 141 the reader went away.

CHECKS = (
    check_1_tokens, check_2_valid_json, check_3_constrained_decoding, check_4_toolformer,
    check_5_tool_count, check_6_integrations, check_7_injection,
)
PLOTS = plot_1, plot_2, plot_3, plot_4, plot_5, plot_6, plot_7
GROUPS = dict(enumerate(zip(CHECKS, PLOTS), start=1))
DEFAULT_DRAWS, FEWEST, MOST = 10_000, 1_000, 100_000  # fewer: too coarse; more: over 200 MB
NARROWEST, WIDEST = 40, 120
HELP = f"""\
用法：w4day3_checks.py [组号 ...] [--seed N] [--draws N] [--json] [--plot DIR]

核对讲义第 4 周第 3 天的七组数字：每个数用两种互相独立的办法各算一遍。

  组号        1 到 {len(GROUPS)}，可写几个，用空格隔开；不写就全跑
  --seed N    随机种子，非负整数，默认 0
  --draws N   每个模拟抽多少次，{FEWEST} 到 {MOST}，默认 {DEFAULT_DRAWS}
  --json      输出 JSON 而不是表格
  --plot DIR  每组画一张 PNG 存进 DIR（要装 matplotlib）
  -h, --help  显示这段说明

退出码：0 全部通过，1 有行不符，2 参数有误。"""


def run_group(index, seed, draws) -> Group:
    """One group with a generator of its own: its numbers do not depend on which others run."""
    check, _ = GROUPS[index]
    return check(np.random.default_rng([seed, index]), draws)


class UsageError(Exception):
    """A bad argument; the message is one line for the user."""


def _whole(text, name, low, high) -> int:
    """The integer in `text`, or a UsageError that says which ones are accepted."""
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise UsageError(f"{name}应是 {low} 到 {high} 的整数，收到的是 {text!r}")
    return int(text)


def read_arguments(words) -> dict:
    """The options without their dashes, or a UsageError; a value may follow an = sign."""
    given, groups, words = {"seed": "0", "draws": str(DEFAULT_DRAWS)}, set(), iter(words)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--seed", "--draws", "--plot"):
            given[name[2:]] = value = value if equals else next(words, None)
            if value is None:
                raise UsageError(f"{name} 后面要跟一个值")
        elif word in ("--json", "--help", "-h"):
            given["json" if word == "--json" else "help"] = True
        elif word.startswith("-"):
            raise UsageError(f"不认识的参数 {word!r}")
        else:
            groups.add(_whole(word, "组号", 1, len(GROUPS)))
    given["seed"] = _whole(given["seed"], "--seed ", 0, 2**63 - 1)
    given["draws"] = _whole(given["draws"], "--draws ", FEWEST, MOST)
    return given | {"groups": sorted(groups or GROUPS)}


def _prepare_folder(path) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except (OSError, ValueError):  # a file is in the way, a null byte, no permission
        writable = False
    if not writable:
        raise UsageError(f"--plot 的文件夹 {path!r} 建不了或写不进去")


def save_pictures(groups, folder, tell) -> list[str]:
    """Paths of one PNG per group; `tell` gets a line about each, or how to get matplotlib."""
    # A font that has only one weight makes matplotlib complain on stderr at every label.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        tell("没有装 matplotlib，不画图；安装：python -m pip install matplotlib")
        return []
    font, paths = cjk_font(), []
    for index, group in groups.items():
        check, plot = GROUPS[index]
        paths.append(os.path.join(folder, check.__name__.removeprefix("check_") + ".png"))
        draw(plot, group, paths[-1], font)
        tell(f"已画 {paths[-1]}")
    return paths


def _screen() -> Screen:
    """COLUMNS goes before the terminal's width; NO_COLOR (no-color.org) switches colour off."""
    columns = max(NARROWEST, min(shutil.get_terminal_size((ONE_LINE, 24)).columns, WIDEST))
    old_console = os.name == "nt" and "WT_SESSION" not in os.environ
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or old_console
    return Screen(columns, bool(sys.stdout and sys.stdout.isatty() and not refused))


def _complain(line) -> None:
    if sys.stderr:  # print would take stdout
        print(line, file=sys.stderr)


def _run(words) -> int:
    options = read_arguments(words)
    if "help" in options:
        print(HELP, flush=True)
        return 0
    seed, draws, quiet = options["seed"], options["draws"], "json" in options
    screen, groups, pictures = _screen(), {}, []
    if "plot" in options:
        _prepare_folder(options["plot"])
    if not quiet:
        print(*opening_lines(seed, draws, screen), "", sep="\n")
    for index in options["groups"]:
        groups[index] = run_group(index, seed, draws)
        if not quiet:
            print(*group_lines(index, groups[index], screen), "", sep="\n", flush=True)
    if "plot" in options:
        pictures = save_pictures(groups, options["plot"], _complain if quiet else print)
    ok = all(group.ok for group in groups.values())
    if quiet:
        found = [group_json(*item) for item in groups.items()]
        report = {"seed": seed, "draws": draws, "ok": ok, "groups": found, "pictures": pictures}
        print(json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        print(verdict_line(groups, screen))
    print(end="", flush=True)
    return 0 if ok else 1


def _drop_output() -> None:
    """Nobody can be written to: send what is still buffered nowhere, so that the exit is quiet."""
    if sys.stdout:  # None when it was closed before the start
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv=None) -> int:
    """Exit code of one run. What was not foreseen becomes one line; W4D3_DEBUG=1 shows it all."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console that lacks a character shows ? instead
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        _complain(f"参数有误：{error}（用法见 --help）")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except Exception as error:
        if isinstance(error, OSError):
            _drop_output()
        if os.environ.get("W4D3_DEBUG") == "1":
            raise
        _complain(f"出错了：{type(error).__name__}: {error}（W4D3_DEBUG=1 看详情）")
        return 1


if __name__ == "__main__":
    sys.exit(main())
