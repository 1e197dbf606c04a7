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

import argparse
import functools
import itertools
import json
import logging
import math
import os
import re
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

    @property
    def printed(self) -> str:
        """The lecture's figure, digits as printed; "" where it prints none."""
        return LECTURE.get(self.quantity, ("", ""))[0]

    @property
    def figure(self) -> float | None:
        """`printed` as a number."""
        return float(self.printed.replace(",", "")) if self.printed else None

    @property
    def agrees(self) -> bool:
        """Whether the two derivations meet; false for NaN."""
        return bool(abs(self.ours - self.expected) <= self.tolerance)

    @property
    def as_printed(self) -> bool:
        """Whether the closed form rounds to the lecture's figure."""
        if self.figure is None:
            return True
        half_unit = 0.5 * 10.0 ** -len(self.printed.partition(".")[2])
        return bool(abs(self.expected - self.figure) <= half_unit + 1e-9)

    @property
    def ok(self) -> bool:
        return self.agrees and self.as_printed


class Part(NamedTuple):
    """Rows that share their two derivations, named in the heading: ours | expected."""

    heading: str
    rows: list[Row]


class Table(NamedTuple):
    """Something to look at, not to check; all cells are text."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Group(NamedTuple):
    title: str
    shows: str  # one sentence
    parts: list[Part]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        return [row for part in self.parts for row in part.rows]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


def part(heading, kind, rows: Iterable[Row]) -> Part:
    """A part whose rows are of one kind, unless the lecture prints a figure of theirs."""

    def own(row):
        return LECTURE.get(row.quantity, ("", row.kind or kind))[1]

    return Part(heading, [row._replace(kind=own(row)) for row in rows])


Z = 5.0  # standard errors allowed: a false alarm in less than one row of a million


def spread(sd, reach, n):
    """Largest honest gap between a mean of n draws and its expectation, by Bernstein's inequality.

    `sd` is the standard deviation of one draw, `reach` the farthest it can lie from its mean. The
    second term matters only for rare events, where the bell curve is too optimistic.
    """
    return Z * sd / math.sqrt(n) + Z * Z * reach / (3 * n)


def chance(p, n):
    """`spread` of the frequency of an event of probability p in n draws.

    >>> round(chance(0.5, 10_000), 4)
    0.0258
    """
    return spread(math.sqrt(max(p * (1 - p), 0.0)), 1.0, n) if n else math.inf


def exactly(quantity, ours, expected) -> Row:
    """Two derivations without chance; they may differ by rounding only."""
    return Row(quantity, float(ours), float(expected), 1e-9 * max(1.0, abs(expected)))


def frequency(quantity, hits, p, *, scale=1.0) -> Row:
    """A simulated frequency against its probability p, both times `scale`; `hits` are booleans."""
    n = len(hits)
    ours = scale * float(np.mean(hits)) if n else math.nan
    return Row(quantity, ours, scale * float(p), scale * chance(p, n))


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


def steps_until(p, target) -> int:
    """Steps, multiplied up one by one, until a failure has become as likely as `target`."""
    whole, steps = 1.0, 0
    while 1 - whole < target:
        whole *= 1 - p
        steps += 1
    return steps


def steps_closed(p, target) -> int:
    return math.ceil(math.log(1 - target) / math.log1p(-p))


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 1  多轮调用的 token Tokens
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# The API is stateless: every model call sends the whole history again. Input tokens only.

SYSTEM_TOKENS = 3_000  # P: system prompt and tool schemas
USER_TOKENS = 50  # u: not in the lecture, but its two totals leave no other value
CALL_TOKENS = 60  # a: one tool call in an assistant message
RESULT_TOKENS = 400  # o: one tool message
MODEL_SECONDS, TOOL_SECONDS = 1.5, 0.8  # a model of latency, chosen to give 13 s and 3.8 s
CACHE_PRICE = 0.1  # of a cached input token, relative to a fresh one; our assumption
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


def price(message) -> int:
    """Input tokens of one message; the last answer is never sent back and costs none."""
    fixed = {"system": SYSTEM_TOKENS, "user": USER_TOKENS, "tool": RESULT_TOKENS}
    return fixed.get(message["role"], CALL_TOKENS * len(message.get("tool_calls") or ()))


def tokens(messages) -> int:
    return sum(map(price, messages))


def input_tokens(messages) -> int:
    """Input tokens of a whole run, message by message."""
    return sum(map(tokens, prompts(messages)))


def cached_tokens(messages) -> int:
    """Input tokens that the call before had already sent, as the same prefix."""
    pairs = itertools.pairwise(prompts(messages))
    return sum(tokens(before) for before, now in pairs if now[: len(before)] == before)


def seconds(messages) -> float:
    """Waiting time of a run by the clock; the calls of one message run at the same time."""
    turns = [m for m in messages if m["role"] == "assistant"]
    return sum(MODEL_SECONDS + TOOL_SECONDS * bool(turn.get("tool_calls")) for turn in turns)


def serial_tokens(n):
    """Closed form for n rounds of one call: (n+1)(P+u) + (a+o)n(n+1)/2."""
    prefix, step = SYSTEM_TOKENS + USER_TOKENS, CALL_TOKENS + RESULT_TOKENS
    return (n + 1) * prefix + step * n * (n + 1) // 2


def parallel_tokens(n):
    """Closed form for one round of n calls: 2(P+u) + n(a+o)."""
    return 2 * (SYSTEM_TOKENS + USER_TOKENS) + n * (CALL_TOKENS + RESULT_TOKENS)


def fresh_tokens(n):
    """Tokens of the last prompt: all that is paid in full when every prefix is cached."""
    return SYSTEM_TOKENS + USER_TOKENS + n * (CALL_TOKENS + RESULT_TOKENS)


def cached_cost(total, n):
    return fresh_tokens(n) + CACHE_PRICE * (total - fresh_tokens(n))


def kv_cache_bytes(num_layers, num_kv_heads, head_dim, seq_len, batch_size=1, bytes_per_value=2):
    """Bytes of the keys and values of `seq_len` tokens (Week 1 Day 4 §1.4)."""
    return 2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size * bytes_per_value


def _prefix_share(messages) -> float:
    sent = list(itertools.chain(*prompts(messages)))
    return tokens(m for m in sent if m["role"] in ("system", "user")) / tokens(sent)


def _cache_rows(name, run, total) -> Iterator[Row]:
    """What prompt caching saves on one run of five calls; `total` is its closed form."""
    sent, hits = input_tokens(run), cached_tokens(run)
    paid, closed = sent - hits + CACHE_PRICE * hits, cached_cost(total, 5)
    yield exactly(f"{name}命中缓存的 token n=5", hits, total - fresh_tokens(5))
    yield exactly(f"{name}折成全价 token n=5", paid, closed)
    yield exactly(f"{name}省下的比例 n=5", 1 - paid / sent, 1 - closed / total)


def _memory_row(quantity, seq_len, batch_size, unit) -> Row:
    """Bytes of a float16 array (a broadcast, takes no memory) against the formula."""
    array = np.broadcast_to(np.float16(0), (2, batch_size, seq_len, *LLAMA3_8B.values()))
    closed = kv_cache_bytes(**LLAMA3_8B, seq_len=seq_len, batch_size=batch_size)
    return exactly(quantity, array.nbytes / unit, closed / unit)


def _message_table(rounds) -> Table:
    rows, before = [], 0
    for index, prompt in enumerate(prompts(history(rounds)), start=1):
        sent = " + ".join(f"{m['role']} {price(m)}" for m in prompt)
        rows.append((str(index), f"{tokens(prompt):,}", f"{before:,}", sent))
        before = tokens(prompt)
    return Table("两轮串行时，每次模型调用发出的消息：", ("次", "token", "已发过", "消息"), rows)


def _wait_row(name, n, run, turns, rounds) -> Row:
    return exactly(f"{name}秒数 n={n}", seconds(run), turns * MODEL_SECONDS + rounds * TOOL_SECONDS)


def _solved_rows() -> list[Row]:
    """One unknown, two totals: the first fixes P+u, the second confirms it."""
    prefix, step = SYSTEM_TOKENS + USER_TOKENS, CALL_TOKENS + RESULT_TOKENS
    return [
        exactly("P+u，由串行 25,200", (25_200 - 15 * step) / 6, prefix),
        exactly("P+u，由并行 8,400", (8_400 - 5 * step) / 2, prefix)._replace(kind="预测"),
    ]


def check_1_tokens(rng, draws) -> Group:
    """Group 1: what a run of n tool calls sends, waits for and pays. Nothing here is random."""
    serial = {n: history([1] * n) for n in (1, 2, 3, 5, 10)}
    parallel = {n: history([n]) for n in serial}
    prefix = SYSTEM_TOKENS + USER_TOKENS
    totals = [
        exactly(f"{name} token n={n}", input_tokens(run), closed(n))
        for name, runs, closed in [
            ("串行", serial, serial_tokens),
            ("并行", parallel, parallel_tokens),
        ]
        for n, run in runs.items()
    ]
    waits = [_wait_row("串行", n, serial[n], n + 1, n) for n in (1, 5, 10)]
    waits += [_wait_row("并行", n, parallel[n], 2, 1) for n in (5, 10)]
    shares = [
        exactly(f"串行前缀占比 n={n}", _prefix_share(run), prefix * (n + 1) / serial_tokens(n))
        for n, run in serial.items()
    ]
    closed = 2 * prefix / parallel_tokens(5)
    shares.append(exactly("并行前缀占比 n=5", _prefix_share(parallel[5]), closed))
    resent = sum(m["role"] == "tool" for prompt in prompts(serial[5]) for m in prompt)
    shorter = input_tokens(serial[5]) - 300 * resent
    savings = [
        *_cache_rows("串行", serial[5], serial_tokens(5)),
        *_cache_rows("并行", parallel[5], parallel_tokens(5)),
        exactly("串行，结果缩到 100 n=5", shorter, serial_tokens(5) - 300 * (5 * 6 // 2)),
    ]
    memory = [
        _memory_row("KV GiB，8192 × batch 4", 8192, 4, 2**30),
        _memory_row("KV KiB，每 token", 1, 1, 2**10),
        _memory_row("KV MiB，n=5 的全部历史", tokens(prompts(serial[5])[-1]), 1, 2**20),
    ]
    return Group(
        "多轮调用的 token 与时间",
        "每次调用都重发全部历史：串行的输入随轮数平方增长，并行只随调用数线性增长。",
        [
            part("输入 token：逐条相加 | (n+1)(P+u)+(a+o)n(n+1)/2，2(P+u)+n(a+o)", "预测", totals),
            part("u=50 别无选择：由讲义的两个总数反解 | 本脚本的 P+u", "拟合", _solved_rows()),
            part("等待秒数：沿消息走一遍时钟 | 1.5(n+1)+0.8n，2×1.5+0.8", "预测", waits),
            part("重发的前缀占全部输入：逐条相加 | (P+u)(n+1)/总数", "推导", shares),
            part("提示缓存与短结果：逐次比对前缀 | 末次全价，其余一成", "自设", savings),
            part("缓存占的显存（Llama 3 8B）：numpy 数组的字节数 | KV 公式", "推导", memory),
        ],
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


def _tries_row(length, fate) -> Row:
    """Attempts per valid JSON. 1/q bends: the tolerance of q is carried through the reciprocal."""
    q, n = valid_chance(LECTURE_EPS, length), len(fate)
    ours = n / max(1, np.sum(fate > length))
    return Row(f"平均次数，不限 L={length}", ours, 1 / q, 1 / (q - chance(q, n)) - 1 / q)


def _capped_tries_row(length, fate) -> Row:
    """The same with three tries at most: one, two or three are used."""
    q, valid = valid_chance(LECTURE_EPS, length), in_tries(fate > length)
    used = 1.0 + ~valid[:, 0] + ~valid[:, :2].any(axis=1)
    mean = within_tries(q) / q
    sd = math.sqrt(q + 4 * q * (1 - q) + 9 * (1 - q) ** 2 - mean**2)
    return Row(f"平均次数，至多三次 L={length}", used.mean(), mean, spread(sd, 2, len(used)))


def check_2_valid_json(rng, draws) -> Group:
    """Group 2: how often free-running JSON is valid, and what retrying buys."""
    fates = {e: first_failure(lengths[-1], draws, rare(rng, e)) for e, lengths in LENGTHS.items()}
    grid = [(eps, length) for eps, lengths in LENGTHS.items() for length in lengths]
    fate = fates[LECTURE_EPS]
    single, retried = [], []
    for eps, length in grid:
        valid, q = fates[eps] > length, valid_chance(eps, length)
        single.append(frequency(f"一次合法 ε={eps} L={length}", valid, q))
        within = in_tries(valid).any(axis=1)
        retried.append(frequency(f"三次之内 ε={eps} L={length}", within, within_tries(q)))
    tries = [*(_tries_row(n, fate) for n in (50, 200, 500)), _capped_tries_row(500, fate)]
    halves = [
        exactly(f"半衰长度 ε={eps}", steps_until(eps, 0.5), steps_closed(eps, 0.5))
        for eps in LENGTHS
    ]
    return Group(
        "长 JSON 的合法率与重试",
        "单个 token 的错误率再小，长 JSON 也多半不合法，重试只能救回一部分。",
        [
            part("一次就合法：逐 token 抽，抽到出错为止 | q=(1-ε)^L", "推导", single),
            part("三次之内合法：把抽样三个一组 | 1-(1-q)^3", "推导", retried),
            part(f"平均要试几次（ε={LECTURE_EPS}）：数次数 | 1/q，(1-(1-q)^3)/q", "推导", tries),
            part("合法率跌破一半的长度：逐个相乘 | ln2/-ln(1-ε) 向上取整", "推导", halves),
        ],
        notes=("假设各 token 独立出错；真实的错误会扎堆，重试也往往犯同一个错。",),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 3  约束解码 Constrained decoding
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# A real decoder: JSON Schema -> regular expression -> automaton over bytes -> over tokens.
# Every sampler is the same loop with another *gate*, which multiplies the odds of each next token:
#     1                                       free running; illegal texts are thrown away afterwards
#     1 where the text can still become legal masking: vLLM, llama.cpp, strict mode
#     the chance that it will end legal       exact conditioning on a legal text
# The mask is the 0/1 shadow of the exact gate. What the shadow loses is the distortion.

NEVER, EMPTY = ("never",), ("empty",)


def one_of(characters: str):
    return ("bytes", frozenset(characters.encode()))


def seq(*parts):
    """Concatenation. NEVER swallows the whole, so that a dead end is NEVER and nothing else."""
    whole = EMPTY
    for piece in reversed(parts):
        if NEVER in (piece, whole):
            return NEVER
        whole = piece if whole == EMPTY else whole if piece == EMPTY else ("seq", piece, whole)
    return whole


def alt(*options):
    """Alternation as a set; with a list the derivatives would never repeat."""
    flat = {x for option in options for x in (option[1] if option[0] == "alt" else [option])}
    flat.discard(NEVER)
    return ("alt", frozenset(flat)) if len(flat) > 1 else flat.pop() if flat else NEVER


def star(body):
    return ("star", body)


def literal(text: str):
    return seq(*(("bytes", frozenset([byte])) for byte in text.encode()))


def json_literal(value):
    return literal(json.dumps(value, ensure_ascii=False))


def schema_regex(schema: dict):
    """Regular expression of the compact JSON texts a schema allows; ValueError outside the subset.

    The subset is the core of strict mode: every property required, in the order written; free
    strings are printable ASCII without escapes.
    """
    match schema:
        case {"enum": values}:
            return alt(*map(json_literal, values))
        case {"type": "integer"}:
            digits = seq(one_of("123456789"), star(one_of("0123456789")))
            return seq(alt(EMPTY, literal("-")), alt(literal("0"), digits))
        case {"type": "boolean"}:
            return alt(literal("true"), literal("false"))
        case {"type": "string"}:
            plain = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"\\')
            return seq(literal('"'), star(one_of(plain)), literal('"'))
        case {"type": "object", "properties": fields, "required": keys} if set(keys) == set(fields):
            pairs = [seq(json_literal(k), literal(":"), schema_regex(v)) for k, v in fields.items()]
            inside = [piece for pair in pairs for piece in (literal(","), pair)][1:]
            return seq(literal("{"), *inside, literal("}"))
    raise ValueError(f"schema 不在支持的子集里：{schema}")


def _one_unit(text: str) -> str:
    """The expression as something that * and ? can follow."""
    return text if re.fullmatch(r"\\?.|\[[^]]*\]", text) else f"(?:{text})"


def pattern(regex) -> str:
    """The expression in Python's own notation: for the reader, and an oracle for the tests."""
    match regex:
        case ("bytes", allowed):
            letters = "".join(re.escape(chr(byte)) for byte in sorted(allowed))
            ranges = letters.replace("0123456789", "0-9").replace("123456789", "1-9")
            return letters if len(allowed) == 1 else f"[{ranges}]"
        case ("seq", first, rest):
            return pattern(first) + pattern(rest)
        case ("star", body):
            return _one_unit(pattern(body)) + "*"
        case ("alt", options):
            inside = _one_unit("|".join(sorted(map(pattern, options - {EMPTY}))))
            return inside + "?" * (EMPTY in options)
    return ""


def nullable(regex) -> bool:
    """Whether the empty text matches."""
    match regex:
        case ("seq", first, rest):
            return nullable(first) and nullable(rest)
        case ("alt", options):
            return any(map(nullable, options))
    return regex[0] in ("empty", "star")


def derive(regex, byte: int):
    """What must follow once `byte` has been read (Brzozowski 1964)."""
    match regex:
        case ("bytes", allowed) if byte in allowed:
            return EMPTY
        case ("seq", first, rest):
            ahead = seq(derive(first, byte), rest)
            return alt(ahead, derive(rest, byte)) if nullable(first) else ahead
        case ("alt", options):
            return alt(*(derive(option, byte) for option in options))
        case ("star", body):
            return seq(derive(body, byte), regex)
    return NEVER


def byte_automaton(regex, alphabet: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """(states × 256 next states, which states may end); state 0 is dead, 1 the start."""
    states, moves = [NEVER, regex], []
    for state in states:  # grows while we walk it
        moves.append(np.zeros(256, dtype=int))
        for byte in alphabet:
            after = derive(state, byte)
            if after not in states:
                states.append(after)
            moves[-1][byte] = states.index(after)
    return np.array(moves), np.array([nullable(state) for state in states])


def token_automaton(regex, words) -> tuple[np.ndarray, np.ndarray]:
    """(next states, whether the text can still become legal), both states × tokens with END last.

    Each token is walked through the byte automaton from all states at once. State 0 is dead, 1 the
    start; the last one is reached by END alone.
    """
    moves, accepts = byte_automaton(regex, sorted(set("".join(words).encode())))
    done, columns = len(moves), []
    for word in words:
        state = np.arange(done)
        for byte in word.encode():
            state = moves[state, byte]
        columns.append(state)
    columns.append(np.where(accepts, done, 0))
    move = np.vstack([np.stack(columns, axis=1), np.zeros(len(columns), dtype=int)])
    # A state may live on byte by byte and yet lead nowhere with these tokens: search backwards.
    alive = np.arange(done + 1) == done
    while (grown := alive | alive[move].any(axis=1)).sum() > alive.sum():
        alive = grown
    return move, alive[move]


class Decoder(NamedTuple):
    """A model and an automaton as one Markov chain over pairs of their states."""

    tokens: tuple[str, ...]
    odds: np.ndarray  # pairs × tokens: what the model would write
    move: np.ndarray  # pairs × tokens -> pair
    mask: np.ndarray  # pairs × tokens
    start: int  # pairs below it are dead
    done: int  # pairs from it on have ended


END = "<END>"


def decoder(regex, words, likes, after) -> Decoder:
    """`likes`: model state -> {token: chance}; `after(state, token)`: the next. States are names.

    Mass that `likes` does not mention is spread over all tokens. The first state is the start.
    """
    names, minds = (*words, END), list(likes)
    odds = np.array([[likes[mind].get(token, 0.0) for token in names] for mind in minds])
    odds += (1 - odds.sum(axis=1, keepdims=True)).clip(0) / len(names)
    step = np.array([[minds.index(after(mind, token)) for token in names] for mind in minds])
    move, mask = token_automaton(regex, words)
    pairs = (move[:, None, :] * len(minds) + step).reshape(-1, len(names))
    return Decoder(
        names,
        np.tile(odds, (len(move), 1)),
        pairs,
        np.repeat(mask, len(minds), axis=0),
        len(minds),
        len(pairs) - len(minds),
    )


class Gates(NamedTuple):
    """What multiplies the odds, each pairs × tokens: the three samplers of this section."""

    free: np.ndarray
    mask: np.ndarray
    exact: np.ndarray


def gates(d: Decoder) -> Gates:
    """The chance of a legal end grows backwards from the end until rounding stops it."""
    legal = (np.arange(len(d.odds)) >= d.done) * 1.0
    while True:
        exact = legal[d.move]
        grown = (d.odds * exact).sum(axis=1)
        grown[d.done :] = 1.0
        if (grown <= legal).all():
            return Gates(np.ones(d.odds.shape), d.mask * 1.0, exact)
        legal = grown


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


def next_odds(d: Decoder, gate, words=()) -> tuple[np.ndarray, float]:
    """Distribution of the token after `words`, and its mass before renormalising."""
    pair = d.start
    for word in words:
        pair = d.move[pair, d.tokens.index(word)]
    odds = d.odds[pair] * gate[pair]
    return odds / odds.sum(), float(odds.sum())


def text_chance(d: Decoder, gate, words) -> float:
    """Chance of one token sequence and its END, multiplied up step by step."""
    steps = [*words, END]
    return math.prod(
        next_odds(d, gate, steps[:i])[0][d.tokens.index(word)] for i, word in enumerate(steps)
    )


class Samples(NamedTuple):
    texts: np.ndarray  # str
    weights: np.ndarray  # product of the masses before renormalising: the importance weight
    legal: np.ndarray  # bool


def sample(rng, d: Decoder, gate, draws) -> Samples:
    """`draws` texts side by side, token by token, until each has ended or died."""
    pair, weights, written = np.full(draws, d.start), np.ones(draws), []
    end = len(d.tokens) - 1
    while (going := np.flatnonzero((pair >= d.start) & (pair < d.done))).size:
        odds = (d.odds[pair[going]] * gate[pair[going]]).cumsum(axis=1)
        weights[going] *= odds[:, -1]
        # 1 - random() lies in (0, 1], so that a token of probability 0 is never chosen.
        bar = (1 - rng.random((going.size, 1))) * odds[:, -1:]
        written.append(np.full(draws, end, dtype=np.uint8))
        written[-1][going] = (odds < bar).sum(axis=1)
        pair[going] = d.move[pair[going], written[-1][going]]
    paths = np.stack(written, axis=1)  # each is spelled out once, however often it was drawn
    rows = paths.view(f"S{len(written)}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    words = np.array([*d.tokens[:end], ""])
    texts = np.array(["".join(words[path]) for path in paths[first]])
    return Samples(texts[which], weights, pair >= d.done)


def repaired(quantity, samples: Samples, hits, p) -> Row:
    """Share of `hits` by importance weight against the exact p; tolerance by the delta method."""
    weights = samples.weights
    gaps = weights * (hits - p) / weights.mean()
    tolerance = spread(gaps.std(), np.abs(gaps).max(), len(gaps))
    return Row(quantity, weights[hits].sum() / weights.sum(), p, tolerance)


def mean_weight(quantity, samples: Samples, z) -> Row:
    weights = samples.weights
    return Row(quantity, weights.mean(), z, spread(weights.std(), np.ptp(weights), len(weights)))


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


def toy_ratio(example, text="aa") -> float:
    masked, exact, _ = toy_closed(*example)
    return masked[text] / exact[text]


def toy_decoder(first, after_a, after_b) -> Decoder:
    """The same example for the general machinery: the second letter is followed by END."""
    rows = {"": first, "a": after_a, "b": after_b, "c": (1 / 3, 1 / 3, 1 / 3)}
    likes = {mind: dict(zip("abc", row)) for mind, row in rows.items()} | {"over": {END: 1.0}}

    def after(mind, token):
        return "over" if mind or token == END else token

    return decoder(alt(*map(literal, LEGAL)), "abc", likes, after)


def toy_steps(example, text="aa") -> tuple[float, float]:
    """(masked, exact) chance of a text, multiplied up by the decoder."""
    d = toy_decoder(*example)
    g = gates(d)
    return text_chance(d, g.mask, text), text_chance(d, g.exact, text)


def _toy_parts(rng, draws) -> list[Part]:
    d = toy_decoder(*TOY)
    masked_closed, exact_closed, z = toy_closed(*TOY)
    g = gates(d)
    masked, free = sample(rng, d, g.mask, draws), sample(rng, d, g.free, draws)
    kept = free.texts[free.legal]
    steps = {y: toy_steps(TOY, y) for y in LEGAL}
    above = sum(max(m - e, 0.0) for m, e in steps.values())
    variation = sum(abs(masked_closed[y] - exact_closed[y]) for y in LEGAL) / 2
    return [
        part("讲义的例子：逐步掩码、拒绝采样 | p(y)/Πm，p(y)/Z", "自设", [
            *(frequency(f"逐步掩码 {y}", masked.texts == y, masked_closed[y]) for y in LEGAL),
            *(frequency(f"精确条件 {y}", kept == y, exact_closed[y]) for y in LEGAL),
        ]),
        part("偏差多大：解码器逐步连乘 | Z/Πm，差的绝对值之和的一半", "自设", [
            *(exactly(f"掩码/精确 {y}", m / e, toy_ratio(TOY, y)) for y, (m, e) in steps.items()),
            exactly("总变差距离", above, variation),
        ]),
        part("能修：各步合法质量 m 的乘积就是权重；抽样 | Z，p(y)/Z", "自设", [
            frequency("自由生成的合法率 Z", free.legal, z),
            exactly("自动机前推的 Z", legal_mass(d), z),
            mean_weight("掩码样本的平均权重", masked, z),
            *(repaired(f"加权后 {y}", masked, masked.texts == y, exact_closed[y]) for y in LEGAL),
        ]),
    ]  # fmt: skip


def _widest(c):
    """The toy whose aa is inflated most, given p(a) = 0.6 and p(c|a) = c."""
    return (0.6, 0.4, 0.0), ((1 - c) / 2, (1 - c) / 2, c), (0.0, 0.0, 1.0)


def _exercise() -> Part:
    """How far an innocent text can be inflated, with p(a) = 0.6 throughout."""
    grid = itertools.product(np.linspace(0, 0.4, 41), np.linspace(0.01, 1, 41))
    found = max(toy_ratio(((0.6, b, 0.4 - b), TOY[1], (0, 1 - c, c))) for b, c in grid)
    low, high = 0.5, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if toy_ratio(_widest(middle)) >= 3 else (middle, high)
    (m3, e3), (m13, e13) = toy_steps(TRIPLED), toy_steps(EXTREME)
    return part("练习，夸大 3 倍以上：网格、二分、解码器连乘 | Z/Πm", "自设", [
        exactly("p(c|a)=0.8 时 aa 的上限", found, (0.6 * 0.2 + 0.4) / 0.2),
        exactly("到 3 倍至少要 p(c|a)", high, 5 / 6),
        exactly("一解：p(c|a)=0.9", m3 / e3, (0.06 + 0.27) / (0.9 * 0.1)),
        exactly("再推：p(c|a)=0.97", m13 / e13, (0.018 + 0.3783) / (0.99 * 0.03)),
    ])  # fmt: skip


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


def number_odds(d: Decoder, gate) -> dict[str, float]:
    """Chance of each token as the first of the number."""
    return dict(zip(d.tokens, next_odds(d, gate, BEFORE_NUMBER)[0]))


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


def count_valid(texts) -> int:
    unique, counts = np.unique(texts, return_counts=True)
    return sum(count for text, count in zip(unique, counts) if fits_schema(str(text)))


def _decoder_part(rng, draws) -> Part:
    d = json_decoder()
    g = gates(d)
    free, masked, exact = (sample(rng, d, gate, draws) for gate in g)
    z = next_odds(d, g.exact)[1]
    rows = [
        exactly("掩码样本中合法的条数", count_valid(masked.texts), draws),
        exactly("精确条件样本中合法的条数", count_valid(exact.texts), draws),
        exactly("自由生成中合法的条数", count_valid(free.texts), free.legal.sum()),
        exactly("解码器 Z，前推", legal_mass(d), z),
        frequency("解码器 Z，自由生成", free.legal, z),
        mean_weight("解码器 Z，平均权重", masked, z),
    ]
    for digit in "84":
        start = "".join(BEFORE_NUMBER) + digit
        p_masked, p_exact = number_odds(d, g.mask)[digit], number_odds(d, g.exact)[digit]
        hits = [np.char.startswith(s.texts, start) for s in (free, masked, exact)]
        rows += [
            frequency(f"以 {digit} 开头，掩码", hits[1], p_masked),
            frequency(f"以 {digit} 开头，精确条件", hits[2], p_exact),
            frequency(f"以 {digit} 开头，拒绝采样", hits[0][free.legal], p_exact),
            repaired(f"以 {digit} 开头，掩码加权", masked, hits[1], p_exact),
        ]
    return part("真的解码器（schema 到掩码）：抽样 | 自动机上逐状态算", "自设", rows)


def mask_table(words) -> Table:
    """The mask at each step of writing `words`, one sign per token of the vocabulary."""
    d, rows = json_decoder(), []
    gate, pair = gates(d).mask, d.start
    for step, word in enumerate((*words, END)):
        bits, mass = "".join(np.where(d.mask[pair], "#", ".")), next_odds(d, gate, words[:step])[1]
        allowed = " ".join(itertools.compress(d.tokens, d.mask[pair]))
        rows.append((str(step + 1), bits, f"{mass:.3f}", word, allowed))
        pair = d.move[pair, d.tokens.index(word)]
    title = f"每一步的掩码：{len(d.tokens)} 个 token，# 放行，. 挡住；m 是放行的概率质量"
    return Table(title, ("步", "掩码", "m", "写出", "放行的 token"), rows)


def check_3_constrained_decoding(rng, draws) -> Group:
    """Group 3: masking step by step is not conditioning, on the lecture's example and on JSON."""
    d = json_decoder()
    masked, exact = (number_odds(d, gate)["8"] for gate in (gates(d).mask, gates(d).exact))
    return Group(
        "约束解码：逐步掩码不等于精确条件",
        "掩码保证每条都合法，却夸大开头顺、后面多半走不通的序列；乘上权重能修回来。",
        [*_toy_parts(rng, draws), _exercise(), _decoder_part(rng, draws)],
        (mask_table((*BEFORE_NUMBER, "8", "192", ',"', "dtype", '":"', "fp16", '"}')),),
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


class Candidates(NamedTuple):
    useful: np.ndarray
    leaks: np.ndarray  # useless, but the answer stands in the call's own text
    drop: np.ndarray  # L- minus L+ with the min
    naive_drop: np.ndarray  # the same with L- = loss without call


def draw_candidates(rng) -> Candidates:
    """Three losses for each candidate, in nats per token, and the drop by either rule."""
    useful = rng.random(CANDIDATES) < USEFUL_SHARE
    leaks = ~useful & (rng.random(CANDIDATES) < LEAK_SHARE / (1 - USEFUL_SHARE))
    no_call = rng.normal(3.0, 0.3, CANDIDATES)
    call_only = no_call + np.where(leaks, -LEAK_GAIN, 0.2)  # a call without result disturbs
    floor = np.minimum(no_call, call_only)
    gain = np.where(useful, rng.normal(GAIN_MEAN, GAIN_SD, CANDIDATES), 0.0)
    with_result = floor - gain - rng.normal(0.0, NOISE_SD, CANDIDATES)
    return Candidates(useful, leaks, floor - with_result, no_call - with_result)


def f1_row(quantity, kept, useful, true, false) -> Row:
    """F1 = 2·both/(kept + useful): a ratio of sums, its tolerance by the delta method."""
    mean = true + false + USEFUL_SHARE
    f1 = 2 * true / mean
    sd = math.sqrt(true * (2 - 2 * f1) ** 2 + (false + USEFUL_SHARE - true) * f1**2) / mean
    ours = 2 * np.sum(kept & useful) / (np.sum(kept) + np.sum(useful))
    return Row(quantity, float(ours), float(f1), spread(sd, 2 / mean, len(kept)))


def _threshold_rows(tau, candidates) -> Iterator[Row]:
    useful, kept = candidates.useful, candidates.drop >= tau
    true, false = keep_shares(tau)
    yield frequency(f"保留条数 τ={tau:g}", kept, true + false, scale=CANDIDATES)
    yield frequency(f"精确率 τ={tau:g}", useful[kept], true / (true + false))
    yield frequency(f"召回率 τ={tau:g}", kept[useful], true / USEFUL_SHARE)
    yield f1_row(f"F1 τ={tau:g}", kept, useful, true, false)


def _minimum_rows(tau, candidates) -> Iterator[Row]:
    useful, leaks, kept, naive = candidates[:2] + tuple(drop >= tau for drop in candidates[2:])
    with_min, without = leak_shares(tau)
    true, false = keep_shares(tau)
    precision = true / (true + false - with_min + without)
    yield frequency(f"有 min，混入 τ={tau:g}", leaks & kept, with_min, scale=CANDIDATES)
    yield frequency(f"无 min，混入 τ={tau:g}", leaks & naive, without, scale=CANDIDATES)
    yield frequency(f"无 min，精确率 τ={tau:g}", useful[naive], precision)


def check_4_toolformer(rng, draws) -> Group:
    """Group 4: what a threshold keeps of the lecture's 100,000 candidates, whatever `draws` is."""
    candidates = draw_candidates(rng)
    share = frequency("有用调用占比", candidates.useful, USEFUL_SHARE)
    table = [row for tau in TAUS for row in _threshold_rows(tau, candidates)]
    minimum = [row for tau in (0.5, 1.0) for row in _minimum_rows(tau, candidates)]
    return Group(
        "Toolformer 的过滤阈值",
        "阈值 τ 越高，留下的调用越准也越少；L- 里的 min 挡住只靠调用文本就降损失的调用。",
        [
            part("候选：抽 100,000 条 | 讲义给的占比", "推导", [share]),
            part("阈值表：逐条比较 L- 减 L+ 与 τ | 正态分布函数 Φ", "自设", table),
            part("min 挡住什么：文本泄露答案的无用调用，条数 | 正态分布函数 Φ", "自设", minimum),
        ],
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

STEP = 0.005
SCORES = np.arange(-12, 9, STEP)  # in units of the noise, around the right tool


def integral(values) -> np.ndarray:
    return values.sum(axis=-1) * STEP


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
    return integral(density(SCORES) * near**siblings * far**others)


def _above(n, i, under):
    """Chance that exactly i of n rivals score above, each with chance 1 - under."""
    return math.comb(n, i) * (1 - under) ** i * under ** (n - i) if 0 <= i <= n else 0.0


def passes(tools, limit, noise=ROUTER_NOISE) -> np.ndarray:
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
    return integral(np.array(rows))


def unrouted(tools) -> float:
    siblings = tools // CLASSES - 1
    return float(wins(siblings, tools - 1 - siblings))


def routed(tools, limit, noise=ROUTER_NOISE) -> tuple[float, float]:
    """(the right tool is chosen, the right tool is among the candidates); limit < tools."""
    chances, siblings = passes(tools, limit, noise), np.arange(limit)
    return float(chances @ wins(siblings, limit - 1 - siblings)), float(chances.sum())


class Choices(NamedTuple):
    """Which draws hit: chosen of all, chosen of k candidates, among k candidates."""

    unrouted: np.ndarray  # draws
    routed: np.ndarray  # draws × limits
    recalled: np.ndarray  # draws × limits


def _choose(rng, tools, limits, size, noise) -> Choices:
    """One batch. Tool 0 is right, its siblings come next, then the others."""
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
    return Choices(model.argmax(axis=1) == 0, chosen, recalled)


def simulate_choices(rng, tools, limits, draws, noise=ROUTER_NOISE) -> Choices:
    """`draws` requests, in batches that fit the processor's cache."""
    batch = max(1, 200_000 // tools)
    sizes = [min(batch, draws - done) for done in range(0, draws, batch)]
    batches = [_choose(rng, tools, limits, size, noise) for size in sizes]
    return Choices(*map(np.concatenate, zip(*batches)))


def _count_rows(tools, run) -> Iterator[Row]:
    accuracy, recall = routed(tools, CANDIDATE_LIMIT)
    column = LIMITS.index(CANDIDATE_LIMIT) if tools == SWEPT else 0
    yield frequency(f"不路由 N={tools}", run.unrouted, unrouted(tools))
    yield frequency(f"路由 N={tools}", run.routed[:, column], accuracy)
    yield frequency(f"入选 N={tools}", run.recalled[:, column], recall)


def _gain_row(run, curve, best, other) -> Row:
    """How much better the best k is; the difference is paired, draw by draw."""
    gain = run.routed[:, LIMITS.index(best)] * 1.0 - run.routed[:, LIMITS.index(other)]
    closed = curve[best][0] - curve[other][0]
    return Row(f"k={best} 比 k={other} 高出", gain.mean(), closed, spread(gain.std(), 2, len(gain)))


def check_5_tool_count(rng, draws) -> Group:
    """Group 5: accuracy against the number of tools, and against what the router hands on."""
    limits = {n: LIMITS if n == SWEPT else (CANDIDATE_LIMIT,) for n in TOOL_COUNTS}
    runs = {n: simulate_choices(rng, n, limits[n], draws) for n in TOOL_COUNTS}
    same = simulate_choices(rng, SWEPT, (CANDIDATE_LIMIT,), draws, MODEL_NOISE).routed[:, 0]
    same_closed = routed(SWEPT, CANDIDATE_LIMIT, MODEL_NOISE)[0]
    curve, swept = {k: routed(SWEPT, k) for k in LIMITS}, runs[SWEPT]
    best = max(LIMITS, key=lambda k: curve[k][0])
    by_limit = [
        row
        for column, k in enumerate(LIMITS)
        for row in (
            frequency(f"准确率 k={k}", swept.routed[:, column], curve[k][0]),
            frequency(f"入选 k={k}", swept.recalled[:, column], curve[k][1]),
        )
    ]
    behind = curve[best][0] - curve[CANDIDATE_LIMIT][0]
    return Group(
        "工具数与选对的比例",
        "工具越多越难选对；先路由到几个候选能救回一截，候选太少会漏、太多等于没路由。",
        [
            part(
                f"随工具数 N，路由留 k={CANDIDATE_LIMIT} 个：逐个打分取最大 | 积分",
                "预测",
                [row for tools, run in runs.items() for row in _count_rows(tools, run)],
            ),
            part(f"N={SWEPT} 时随候选数 k：同一批抽样 | 积分", "预测", by_limit),
            part(
                "最优的 k 在中间：同一批抽样的差 | 积分的差",
                "预测",
                [_gain_row(swept, curve, best, other) for other in (LIMITS[0], LIMITS[-1])],
            ),
            part(
                "路由必须比模型更准，否则到不了 0.753：抽样 | 积分",
                "预测",
                [frequency("路由，噪声同模型", same, same_closed)],
            ),
        ],
        notes=(
            "入选：对的工具在 k 个候选里。N=300 的两个数是拟合来的，其余各行才是预测。",
            f"积分给出的最优是 k={best}；讲义取 k={CANDIDATE_LIMIT}，低 {behind:.4f}，相差很小。",
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
        pairs, ends = list_adapters(apps, tools), list_implementations(apps, tools)
        counts.append(exactly(f"逐对 {apps}×{tools}", len(pairs), apps * tools))
        counts.append(exactly(f"协议 {apps}×{tools}", len(ends), apps + tools))
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
        [
            part("适配器个数：逐个列出再数 | N·M，N+M", "推导", counts),
            part("再加一个应用：列出再数 | M，1", "推导", more),
            part("100×100 格里何时划算：逐格比 N·M > N+M | (N-1)(M-1) > 1", "推导", border),
        ],
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
        exactly(f"到 {target:.0%} 的 n，p={p}", steps_until(p, target), steps_closed(p, target))
        for target in (0.5, 0.95)
        for p in CHANCES
    ]
    return Group(
        "提示注入的累积风险",
        "单次 1% 的风险，一百次就是 63%；降 p 只是推迟，限制得手后的损失才封顶。",
        [
            part("至少得手一次：逐次抽，抽到得手为止 | 1-(1-p)^n", "推导", grid),
            part("风险过半、过 95% 要几次：逐次相乘 | ln(1-目标)/ln(1-p) 向上取整", "推导", until),
            part(
                "防线叠加，p=1%，n=100：攻击与漏检逐次抽 | 独立时才是 1-(1-p·d1·d2)^n",
                "自设",
                _defence_rows(rng, draws),
            ),
            part(
                "期望损失，p=1%，一次得手损失 100：抽样 | 损失×(1-(1-p)^n)",
                "自设",
                _damage_rows(fates),
            ),
        ],
        notes=(
            "风险是 p 的凹函数：除以同一个倍数，降损失总不比降 p 差，n 越大差得越远。",
            "若每次得手都另算损失，两者期望相同；最坏的情形仍只有限损能封顶。",
        ),
    )


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 8  表格 Text
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Lines of at most 80 columns, where a Chinese character takes two; only characters that GBK has.

HEADER = ("数量", "逐步/模拟", "闭式/积分", "容差", "讲义", "性质", "结果")
WIDTHS = (26, 11, 11, 9, 7, 4, 4)
SCREEN = 80
COLOURS = {"bold": "1", "red": "31", "green": "32"}


def plain(text, style) -> str:
    return text


def coloured(text, style) -> str:
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m"


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


def number(x) -> str:
    """Whole numbers with commas; others with four decimals, fewer where the number is large.

    >>> number(25200), number(0.08157), number(668.75)
    ('25,200', '0.0816', '668.75')
    """
    if 0 < abs(x) < 1e-3:
        return f"{x:.2g}"
    whole = abs(x - round(x)) < 1e-9 * abs(x) if math.isfinite(x) else True
    return f"{x:,.{0 if whole or abs(x) >= 10_000 else 4 if abs(x) < 10 else 2}f}"


def row_line(row, paint) -> str:
    exact = row.tolerance <= 1e-9 * max(1.0, abs(row.expected))
    tolerance = "舍入" if exact else number(row.tolerance)
    cells = (number(row.ours), number(row.expected), tolerance, row.printed)
    numbers = (fit(cell, columns, right=True) for cell, columns in zip(cells, WIDTHS[1:]))
    verdict = paint("通过", "green") if row.ok else paint("不符", "red")
    return " ".join([fit(row.quantity, WIDTHS[0]), *numbers, row.kind, verdict])


def complaint(row) -> str:
    """One line about a failing row: what was expected, what came."""
    if row.agrees:
        return f"不符：{row.quantity}：应为讲义的 {row.printed}，闭式得到 {row.expected:.6g}"
    wanted = f"{row.expected:.6g} ± {row.tolerance:.2g}"
    return f"不符：{row.quantity}：应为 {wanted}，得到 {row.ours:.6g}"


def table_lines(table) -> Iterator[str]:
    """Columns as wide as their widest cell; the last one is cut at the edge of the screen."""
    rows = [table.header, *table.rows]
    columns = [max(map(width, column)) for column in zip(*rows)]
    columns[-1] = min(columns[-1], SCREEN - sum(columns[:-1]) - 2 * len(columns[1:]))
    yield table.title
    for row in rows:
        yield "  ".join(map(fit, row, columns)).rstrip()


def group_lines(index, group, paint) -> Iterator[str]:
    """One group as text: sentence, rows, tables, notes, and what failed."""
    yield paint(f"第 {index} 组  {group.title}", "bold")
    yield group.shows
    yield " ".join(fit(name, w, right=0 < i < 5) for i, (name, w) in enumerate(zip(HEADER, WIDTHS)))
    for heading, rows in group.parts:
        yield paint(f"- {heading}", "bold")
        yield from (row_line(row, paint) for row in rows)
    for table in group.tables:
        yield from ("", *table_lines(table))
    yield from (f"注：{note}" for note in group.notes)
    yield from (paint(complaint(row), "red") for row in group.rows if not row.ok)
    yield ""


def summary_lines(groups, paint) -> Iterator[str]:
    """What the kinds mean, and the verdict over {number: group}."""
    yield from (f"{kind}：{meaning}。" for kind, meaning in KINDS.items())
    rows = [row for group in groups.values() for row in group.rows]
    failed = sum(not row.ok for row in rows)
    text = f"{len(groups)} 组 {len(rows)} 行，" + (f"{failed} 行不符。" if failed else "全部通过。")
    yield paint(text, "red" if failed else "green")


def row_json(row) -> dict:
    """A row as JSON has it; NaN and infinity become null."""
    numbers = {name: float(getattr(row, name)) for name in ("ours", "expected", "tolerance")}
    finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
    rest = {"printed": row.figure, "kind": row.kind, "ok": row.ok}
    return {"quantity": row.quantity, **finite, **rest}


def group_json(index, group) -> dict:
    return {
        "number": index,
        "title": group.title,
        "shows": group.shows,
        "ok": group.ok,
        "rows": [{"part": p.heading, **row_json(row)} for p in group.parts for row in p.rows],
        "tables": [table._asdict() for table in group.tables],
        "notes": group.notes,
    }


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 9  图 Pictures
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Two panels per group: lines are closed forms, dots our own counts and simulations from the rows. A
# label is written "中文 // English"; `say` picks the half that the installed fonts can show.

CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Noto Sans CJK JP", "Source Han Sans SC", "Microsoft YaHei",
    "PingFang SC", "Hiragino Sans GB", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "SimHei",
    "Heiti SC", "Arial Unicode MS",
)  # fmt: skip

Say = Callable[[str], str]


def cjk_font() -> str | None:
    """Name of an installed font with Chinese characters, if matplotlib knows one."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def dots(group, template, keys, style, label="") -> tuple:
    """Our values of the rows named by `template`, as one line of a panel."""
    ours = {row.quantity: row.ours for row in group.rows}
    return list(keys), [ours[template.format(key)] for key in keys], style, label


def panel(axes, say: Say, names, lines=(), *, log="") -> None:
    """Draw lines (x, y, style, label); `names` are title, x, y; `log` is "", "x", "y" or "xy"."""
    for xs, ys, style, label in lines:
        axes.plot(xs, ys, style, label=say(label) or None, markerfacecolor="white")
    axes.set(**dict(zip(("title", "xlabel", "ylabel"), map(say, names))))
    for name in log:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter("{x:g}")  # powers of ten need a minus that CJK fonts lack
        axis.set_minor_formatter("")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(framealpha=0.85, edgecolor="none")


def plot_1(left, right, group, say: Say):
    n, counts, prefix = np.arange(1, 11), (1, 2, 3, 5, 10), SYSTEM_TOKENS + USER_TOKENS
    serial, parallel = serial_tokens(n), parallel_tokens(n)
    x = "工具调用数 n（次） // tool calls n (count)"
    names = "输入：抛物线与直线 // Input: parabola and line", x, "输入（token） // input (tokens)"
    panel(left, say, names, [
        (n, serial, "C1-", "串行：n 轮，每轮一个 // serial: n rounds of one call"),
        (n, parallel, "C0-", "并行：一轮 n 个 // parallel: one round of n calls"),
        dots(group, "串行 token n={}", counts, "C1o", "逐条消息相加 // message by message"),
        dots(group, "并行 token n={}", counts, "C0o"),
    ])  # fmt: skip
    names = (
        "重发的前缀，与提示缓存 // Re-sent prefix, and prompt caching",
        x,
        "占输入的比例（0–1） // share of input (0–1)",
    )
    panel(right, say, names, [
        (n, prefix * (n + 1) / serial, "C2-", "前缀占比（两者相同） // prefix (the same)"),
        (n, 1 - cached_cost(serial, n) / serial, "C1--", "串行：缓存省下 // serial: saved"),
        (n, 1 - cached_cost(parallel, n) / parallel, "C0--", "并行：缓存省下 // parallel: saved"),
    ])  # fmt: skip
    right.set_ylim(0, 1.05)


def plot_2(left, right, group, say: Say):
    n, once, thrice = np.arange(1, 1001), [], []
    for (eps, lengths), colour in zip(LENGTHS.items(), ("C2", "C0", "C1")):
        q = valid_chance(eps, n)
        some = lengths if eps < 0.02 else lengths[:-1]  # 500 tokens: no hit, and log 0
        once.append((n, q, colour, f"ε = {eps:.1%}"))
        once.append(dots(group, f"一次合法 ε={eps} L={{}}", some, colour + "o"))
        thrice += [(n, within_tries(q), colour, ""), (n, q, colour + ":", "")]
        thrice += [dots(group, f"三次之内 ε={eps} L={{}}", lengths, colour + "o")]
    thrice.append(([], [], "k:", "只试一次 // one try only"))
    x, y = "长度 L（token） // length L (tokens)", "合法率（0–1{}） // valid share (0–1{})"
    names = "试一次：斜率 ln(1-ε) // One try: slope ln(1-ε)", x, y.format("，对数", ", log")
    panel(left, say, names, once, log="y")
    left.set_ylim(1e-4, 1.5)
    panel(right, say, ("最多试三次 // Up to three tries", x, y.format("", "")), thrice)


def plot_3(left, right, group, say: Say):
    masked, exact, _ = toy_closed(*TOY)
    d, places = json_decoder(), np.array([0, 1, 2, 3.5, 4.5])
    for shift, closed, gate, colour, label in (
        (-0.2, masked, gates(d).mask, "C1", "逐步掩码 // masked"),
        (0.2, exact, gates(d).exact, "C0", "精确条件 // exact"),
    ):
        odds = number_odds(d, gate)
        heights = [*closed.values(), odds["8"], odds["4"]]
        bars = left.bar(places + shift, heights, 0.38, color=colour, label=say(label))
        left.bar_label(bars, fmt="%.2f", fontsize=8)
    left.set_xticks(places, [*LEGAL, "8…", "4…"])
    names = (
        "讲义的例子，与真的解码器 // The lecture's example, and a real decoder",
        "合法的文本（右：JSON 里数的首位） // legal text (right: first digit in the JSON)",
        "概率（0–1） // probability (0–1)",
    )
    panel(left, say, names)
    c = np.linspace(0.5, 0.97, 95)
    ours = [toy_ratio((TOY[0], ((1 - x) / 2, (1 - x) / 2, x), TOY[2])) for x in c]
    names = (
        "aa 被掩码夸大几倍 // How far masking inflates aa",
        "a 之后不合法的概率 p(c|a)（0–1） // chance p(c|a) of an illegal step after a (0–1)",
        "掩码 / 精确（倍） // masked / exact (times)",
    )
    panel(right, say, names, [
        (c, [toy_ratio(_widest(x)) for x in c], "C1-", "p(b) = 0.4, p(c|b) = 1"),
        (c, ours, "C0-", "p(b) = 0.3, p(c|b) = 0.9"),
        ([0.5, 1], [3, 3], "k:", "3 倍 // 3 times"),
        ([5 / 6], [3], "C1o", "p(c|a) = 5/6"),
        ([0.8], [toy_ratio(TOY)], "C0s", "讲义：p(c|a) = 0.8 // lecture: p(c|a) = 0.8"),
    ])  # fmt: skip
    right.set_ylim(0, 10)


def plot_4(left, right, group, say: Say):
    tau, x = np.linspace(0, 2, 81), "阈值 τ（nat/token） // threshold τ (nats per token)"
    (true, false), (leaks, naive_leaks) = keep_shares(tau), leak_shares(tau)
    kept = CANDIDATES * (true + false)
    precision, recall = true / (true + false), true / USEFUL_SHARE
    names = "越严越准，也越少 // Stricter is purer and rarer", x, "比例（0–1） // share (0–1)"
    panel(left, say, names, [
        (tau, precision, "C0-", "精确率 // precision"),
        (tau, recall, "C1-", "召回率 // recall"),
        (tau, 2 * precision * recall / (precision + recall), "C2-", "F1"),
        dots(group, "精确率 τ={:g}", TAUS, "C0o"),
        dots(group, "召回率 τ={:g}", TAUS, "C1o"),
        dots(group, "F1 τ={:g}", TAUS, "C2o"),
    ])  # fmt: skip
    names = "L- 里的 min 挡住多少 // What the min in L- keeps out", x, "保留（条） // kept (calls)"
    panel(right, say, names, [
        (tau, kept + CANDIDATES * (naive_leaks - leaks), "C1-", "没有 min // without the min"),
        (tau, kept, "C0-", "有 min // with the min"),
        (tau, CANDIDATES * true, "C2--", "其中有用的 // useful among them"),
        dots(group, "保留条数 τ={:g}", TAUS, "C0o"),
    ])  # fmt: skip
    right.set_ylim(0)


def plot_5(left, right, group, say: Say):
    counts = np.unique(np.geomspace(1, 100, 15).astype(int)) * CLASSES
    limits = [*range(1, 11), 12, 15, 20, 25, 28, 30, 32, 40, 50]
    chosen, among = zip(*(routed(SWEPT, k) for k in limits))
    best = limits[np.argmax(chosen)]
    names = (
        "工具越多越难选对 // More tools, harder choice",
        "工具数 N（个，对数） // number of tools N (count, log)",
        "选对的比例（0–1） // right tool chosen (0–1)",
    )
    panel(left, say, names, [
        (counts, [unrouted(n) for n in counts], "C1-", "不路由 // unrouted"),
        (counts, [routed(n, 5)[0] for n in counts], "C0-", "路由到 5 个 // routed to 5"),
        dots(group, "不路由 N={}", TOOL_COUNTS, "C1o"),
        dots(group, "路由 N={}", TOOL_COUNTS, "C0o"),
        ([300, 300], [0.547, 0.753], "kx", "讲义（拟合） // lecture (fitted)"),
    ], log="x")  # fmt: skip
    names = (
        "N = 300：候选不宜太少也不宜太多 // N = 300: neither too few nor too many",
        "候选数 k（个，对数） // candidates k (count, log)",
        "比例（0–1） // share (0–1)",
    )
    panel(right, say, names, [
        (limits, among, "C2-", "对的工具入选 // right tool among the k"),
        (limits, chosen, "C0-", "最后选对 // right tool chosen"),
        dots(group, "入选 k={}", LIMITS, "C2o"),
        dots(group, "准确率 k={}", LIMITS, "C0o"),
        ([best], [max(chosen)], "C3*", f"最优 k = {best} // best k = {best}"),
    ], log="x")  # fmt: skip
    left.set_ylim(0, 1.05)
    right.set_xticks(LIMITS, map(str, LIMITS))


def plot_6(left, right, group, say: Say):
    n = np.geomspace(1, 1000, 121)
    ratio = saving(n[None, :], n[:, None])
    colours = {"cmap": "RdBu", "vmin": -2.7, "vmax": 2.7, "shading": "gouraud"}
    left.pcolormesh(n[::5], n[::5], np.log10(ratio[::5, ::5]), **colours)
    lines = left.contour(n, n, ratio, [1, 2, 10, 100], colors="k", linewidths=0.8)
    left.clabel(lines, [2, 10, 100], fmt="%g×")
    x = "应用数 N（个，对数） // applications N (count, log)"
    names = (
        "没有协议要多写几倍：N·M / (N+M) // Adapters per implementation: N·M / (N+M)",
        x,
        "工具数 M（个，对数） // tools M (count, log)",
    )
    lecture = "讲义：10 × 100，9.1 倍 // lecture: 10 × 100, 9.1×"
    panel(left, say, names, [([LECTURE_APPS], [LECTURE_TOOLS], "ko", lecture)], log="xy")
    y = "要写的适配器（个，对数） // adapters to write (count, log)"
    names = "工具数 M = 100 // With M = 100 tools", x, y
    panel(right, say, names, [
        (n, n * LECTURE_TOOLS, "C1-", "逐对：N·M // pairwise: N·M"),
        (n, n + LECTURE_TOOLS, "C0-", "协议：N+M // protocol: N+M"),
        dots(group, "逐对 {}×100", (1, 10), "C1o"),
        dots(group, "协议 {}×100", (1, 10), "C0o"),
    ], log="xy")  # fmt: skip


def plot_7(left, right, group, say: Say):
    n, x = np.geomspace(1, 10_000, 200), "暴露次数 n（次，对数） // exposures n (count, log)"
    lines = []
    for p, colour in zip(CHANCES, ("C2", "C0", "C1")):
        lines.append((n, risk(p, n), colour, f"p = {p:.1%}"))
        lines.append(dots(group, f"风险 p={p} n={{}}", EXPOSURES, colour + "o"))
    lines.append(([100], [0.634], "kx", "讲义 // lecture"))
    names = "至少得手一次 // Breached at least once", x, "风险（0–1） // risk (0–1)"
    panel(left, say, names, lines, log="x")
    names = (
        "降 p 只是推迟，限损才封顶 // Lower p delays, less damage caps",
        x,
        "期望损失（一次得手 = 100） // expected loss (one breach = 100)",
    )
    panel(right, say, names, [
        (n, DAMAGE * risk(0.01, n), "k:", "不设防，p = 1% // nothing done, p = 1%"),
        (n, DAMAGE * risk(0.01 / FACTOR, n), "C1-", "p 降为 1/10 // p divided by 10"),
        (n, DAMAGE / FACTOR * risk(0.01, n), "C0-", "损失降为 1/10 // damage divided by 10"),
        dots(group, "p 降为 1/10，n={}", (10, 100, 1000), "C1o"),
        dots(group, "损失降为 1/10，n={}", (10, 100, 1000), "C0o"),
    ], log="x")  # fmt: skip


def draw(plot, group, path, font=None):
    """Save one group's picture and return the Figure; `font` names one with Chinese characters."""
    import matplotlib
    from matplotlib.figure import Figure

    family = [font, "DejaVu Sans"] if font else ["DejaVu Sans"]
    with matplotlib.rc_context({"font.family": family, "axes.unicode_minus": False}):
        figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
        plot(*figure.subplots(1, 2), group, lambda label: label.split(" // ")[0 if font else -1])
        figure.savefig(path)
    return figure


# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 10 命令行 Command line
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Exit codes: 0 all rows hold, 1 a row fails, 2 bad arguments, 130 Ctrl-C, 141 the reader went away.

GROUPS = {
    1: (check_1_tokens, plot_1),
    2: (check_2_valid_json, plot_2),
    3: (check_3_constrained_decoding, plot_3),
    4: (check_4_toolformer, plot_4),
    5: (check_5_tool_count, plot_5),
    6: (check_6_integrations, plot_6),
    7: (check_7_injection, plot_7),
}
DEFAULT_DRAWS, FEWEST, MOST = 10_000, 1_000, 100_000  # fewer: too coarse; more: over 200 MB


def run_group(index, seed, draws) -> Group:
    """One group with a generator of its own: its numbers do not depend on which others run."""
    check, _ = GROUPS[index]
    return check(np.random.default_rng([seed, index]), draws)


class UsageError(Exception):
    """A bad argument; the message is one line for the user."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        for english, chinese in (
            ("unrecognized arguments:", "不认识的参数"),
            ("expected one argument", "后面要跟一个值"),
            ("argument ", ""),
        ):
            message = message.replace(english, chinese)
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="w4day3_checks.py",
        usage="w4day3_checks.py [组号 ...] [--seed N] [--draws N] [--json] [--plot DIR]",
        description="核对讲义第 4 周第 3 天的七组数字：每个数用两种互相独立的办法各算一遍。",
        epilog="退出码：0 全部通过，1 有行不符，2 参数有误。",
        allow_abbrev=False,
        add_help=False,
    )
    parser._positionals.title, parser._optionals.title = "组号", "选项"
    parser.add_argument("groups", nargs="*", metavar="组号", help="1 到 7，可写几个；不写就全跑")
    parser.add_argument("--seed", default="0", metavar="N", help="随机种子，非负整数，默认 0")
    draws = f"每个模拟抽多少次，{FEWEST} 到 {MOST}，默认 {DEFAULT_DRAWS}"
    parser.add_argument("--draws", default=str(DEFAULT_DRAWS), metavar="N", help=draws)
    parser.add_argument("--json", action="store_true", help="输出 JSON 而不是表格")
    parser.add_argument("--plot", metavar="DIR", help="每组画一张 PNG 存进 DIR（要装 matplotlib）")
    parser.add_argument("-h", "--help", action="help", help="显示这段说明")
    return parser


def _whole(text, name, low, high) -> int:
    """The integer in `text`, or a UsageError that says which ones are accepted."""
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or not low <= int(text) <= high:
        raise UsageError(f"{name} 应是 {low} 到 {high} 的整数，收到的是 {text!r}")
    return int(text)


def _ready_folder(path) -> str:
    """The folder, made if missing, after a file could be written into it."""
    try:
        os.makedirs(path, exist_ok=True)
        probe = os.path.join(path, f".w4day3-{os.getpid()}")
        with open(probe, "wb"):
            pass
        os.remove(probe)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--plot 的文件夹 {path!r} 写不进去：{reason}") from None
    return path


def save_pictures(groups, folder, tell) -> list[str]:
    """Paths of one PNG per group; `tell` gets a line about each, or how to get matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        tell("没有装 matplotlib，不画图；安装：python -m pip install matplotlib")
        return []
    # A font that has only one weight makes matplotlib complain on stderr at every label.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    font, paths = cjk_font(), []
    for index, group in groups.items():
        check, plot = GROUPS[index]
        paths.append(os.path.join(folder, check.__name__.removeprefix("check_") + ".png"))
        draw(plot, group, paths[-1], font)
        tell(f"已画 {paths[-1]}")
    return paths


def _uses_colour(stream) -> bool:
    """Only on a terminal that shows it; NO_COLOR (no-color.org) switches it off."""
    old_console = os.name == "nt" and "WT_SESSION" not in os.environ
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(stream) and stream.isatty() and not refused and not old_console


def _run(argv) -> int:
    options = _parser().parse_args(argv)
    chosen = {_whole(text, "组号", 1, len(GROUPS)) for text in options.groups} or set(GROUPS)
    seed = _whole(options.seed, "--seed", 0, 2**63 - 1)
    draws = _whole(options.draws, "--draws", FEWEST, MOST)
    folder = _ready_folder(options.plot) if options.plot is not None else None
    paint = coloured if _uses_colour(sys.stdout) else plain
    groups = {}
    if not options.json:
        print(f"种子 seed={seed}，每个模拟 draws={draws:,} 次；模拟的容差是 {Z:g} 个标准误。\n")
    for index in sorted(chosen):
        groups[index] = run_group(index, seed, draws)
        if not options.json:
            print(*group_lines(index, groups[index], paint), sep="\n", flush=True)
    notice = functools.partial(print, file=sys.stderr if options.json else sys.stdout)
    pictures = save_pictures(groups, folder, notice) if folder is not None else []
    ok = all(group.ok for group in groups.values())
    if options.json:
        found = [group_json(*item) for item in groups.items()]
        report = {"seed": seed, "draws": draws, "ok": ok, "groups": found, "pictures": pictures}
        print(json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        print(*summary_lines(groups, paint), sep="\n")
    print(end="", flush=True)
    return 0 if ok else 1


def _drop_output() -> None:
    """Nobody can be written to: send what is still buffered nowhere, so that the exit is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv=None) -> int:
    """Exit code of one run. What was not foreseen becomes one line; W4D3_DEBUG=1 shows it all."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console that lacks a character shows ? instead
    try:
        return _run(argv)
    except UsageError as error:
        print(f"参数有误：{error}（用法见 --help）", file=sys.stderr)
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
        print(f"出错了：{type(error).__name__}: {error}（W4D3_DEBUG=1 看详情）", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
