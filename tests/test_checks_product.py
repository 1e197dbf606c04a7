"""The constants and shapes that w4day3_checks.py shares with the product, checked against it.

The script imports nothing of the product; this file is where the two meet.
"""

from __future__ import annotations

import json

import pytest

import w4d3_tools_mcp as product
import w4day3_checks as checks

ARGUMENTS = checks.LLAMA3_8B | {"seq_len": 8192}


def run_product(rounds):
    """History of the product's own loop when the model makes rounds[i] calls in round i."""
    ids = iter(range(100))

    def call():
        return product.ToolCall(f"call_{next(ids)}", "kv_cache_gib", json.dumps(ARGUMENTS))

    asked = [tuple(call() for _ in range(n)) for n in rounds]
    turns = [product.Turn(calls=calls, finish="tool_calls") for calls in asked]
    model = product.MockLLM([*turns, product.Turn(text="KV Cache 约 1.0 GiB。")])
    registry = product.ToolRegistry()
    registry.register(product.kv_cache_gib)
    messages = checks.history([])[:2]
    for _ in product.run_tool_loop(model, registry, messages):
        pass
    return messages


def shape(message):
    """What the token count depends on, and what pairs calls with results."""
    calls = [(c["id"], c["function"]["name"]) for c in message.get("tool_calls") or ()]
    return message["role"], calls, message.get("tool_call_id")


@pytest.mark.parametrize("rounds", [[1], [2], [1, 1], [2, 1]])
def test_message_lists_have_the_shape_of_the_loops_own(rounds):
    assert list(map(shape, run_product(rounds))) == list(map(shape, checks.history(rounds)))


@pytest.mark.parametrize("n", [1, 2])
def test_token_formulas_hold_on_the_loops_own_messages(n):
    assert checks.play(run_product([1] * n)).sent == checks.serial_tokens(n)
    assert checks.play(run_product([n])).sent == checks.parallel_tokens(n)


@pytest.mark.parametrize(("seq_len", "batch_size"), [(1, 1), (8192, 4), (5350, 1)])
def test_kv_formula_is_that_of_the_tool(seq_len, batch_size):
    shape = checks.LLAMA3_8B | {"seq_len": seq_len, "batch_size": batch_size}
    result = product.kv_cache_gib(**shape)
    assert result["bytes"] == checks.kv_cache_bytes(**shape)
    assert result["GiB"] == pytest.approx(checks.kv_cache_bytes(**shape) / 2**30, rel=0.01)
    assert result["per_token_KiB"] == checks.kv_cache_bytes(**checks.LLAMA3_8B, seq_len=1) / 2**10
