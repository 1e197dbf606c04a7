"""§9: one tool in four formats. The inner schema is the same; only the envelope differs."""

import enum
import json
from typing import Literal

import jsonschema
import pytest

from w4d3_tools_mcp import (
    TOOL_FORMATS,
    Tool,
    ToolRegistry,
    built_in_tools,
    to_anthropic_tool,
    to_gemini_tool,
    to_mcp_tool,
    to_openai_tool,
    tools_in_format,
)

TOOLS = built_in_tools()


@pytest.mark.parametrize("tool", list(TOOLS), ids=lambda t: t.name)
def test_the_same_schema_in_every_envelope(tool):
    assert to_openai_tool(tool) == {"type": "function", "function": tool.schema()}
    assert to_anthropic_tool(tool)["input_schema"] == tool.parameters
    assert to_mcp_tool(tool)["inputSchema"] == tool.parameters
    assert to_mcp_tool(tool).get("outputSchema") == tool.output


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_who_changes_what_was_listed_does_not_harm_the_tools(format):
    before = json.dumps([tool[:3] + tool[-1:] for tool in TOOLS], default=str)
    waiting = [tools_in_format(TOOLS, format)]
    while waiting:
        part = waiting.pop()
        waiting += [
            p
            for p in (part.values() if isinstance(part, dict) else part)
            if isinstance(p, (dict, list))
        ]
        part.clear()
    assert json.dumps([tool[:3] + tool[-1:] for tool in TOOLS], default=str) == before


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_every_format_names_every_tool(format):
    shown = tools_in_format(TOOLS, format)
    shown = shown[0]["function_declarations"] if format == "gemini" else shown
    assert [t.get("name", t.get("function", {}).get("name")) for t in shown] == TOOLS.names


def test_mcp_says_what_a_tool_does_to_the_world():
    assert to_mcp_tool(TOOLS["calculator"])["annotations"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "openWorldHint": False,
    }
    risky = Tool(
        "rm", "删除", {"type": "object"}, print, labels=frozenset({"irreversible", "sends"})
    )
    assert to_mcp_tool(risky)["annotations"] == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "openWorldHint": True,
    }


@pytest.mark.parametrize("key", ["title", "outputSchema"])
def test_mcp_leaves_out_what_is_not_there(key):
    assert key not in to_mcp_tool(Tool("t", "说明", {"type": "object"}, print))


def test_output_schemas_describe_the_real_results():
    cache = TOOLS["kv_cache_gib"]
    value = cache.run({"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192})
    jsonschema.validate(value, cache.output)
    jsonschema.validate(TOOLS["search_notes"].run({"query": "GRPO"}), TOOLS["search_notes"].output)


class Unit(enum.Enum):
    C = "C"
    F = "F"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def everything(
    a: int,
    b: str | None,
    c: list[int],
    d: Literal["x", "y"],
    e: Unit,
    f: int | str,
    g: dict[str, int],
    h: Level = Level.LOW,
    i: list = [],
    j: Literal[1, 2] = 1,
):
    """各种类型。"""


def walk(schema):
    yield schema
    for child in (
        *schema.get("properties", {}).values(),
        *schema.get("anyOf", ()),
        *([schema["items"]] if "items" in schema else []),
    ):
        yield from walk(child)


def test_gemini_gets_its_own_dialect():
    tool = ToolRegistry([everything])["everything"]
    parameters = to_gemini_tool(tool)["parameters"]
    properties = parameters["properties"]
    assert properties["a"] == {"type": "INTEGER"}
    assert properties["b"] == {"type": "STRING", "nullable": True}
    assert properties["c"] == {"type": "ARRAY", "items": {"type": "INTEGER"}}
    assert (
        properties["d"]
        == {"type": "STRING", "enum": ["x", "y"]}
        == {**properties["e"], "enum": ["x", "y"]}
    )
    assert properties["f"] == {"anyOf": [{"type": "INTEGER"}, {"type": "STRING"}]}
    assert properties["i"]["items"] == {}
    assert "enum" not in properties["h"] and "enum" not in properties["j"]
    allowed = {
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "maxItems",
        "minItems",
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "anyOf",
        "items",
        "minimum",
        "maximum",
    }
    assert all(set(schema) <= allowed for schema in walk(parameters))


def test_gemini_writes_references_out_and_survives_recursion():
    node = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    }
    schema = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": node},
    }
    shown = to_gemini_tool(Tool("t", "说明", schema, print))["parameters"]
    assert shown["properties"]["root"]["properties"]["kids"]["items"] == {"type": "OBJECT"}


def test_gemini_needs_no_union_for_what_may_be_null():
    null, node = {"type": "null"}, {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {
            "one": {"anyOf": [{"$ref": "#/$defs/Node"}, null], "description": "d"},
            "two": {"anyOf": [{"type": "string"}, {"type": "integer"}, null]},
            "list": {"type": ["array", "null"], "items": {"type": "string"}, "maxItems": 3},
        },
        "$defs": {"Node": node},
    }
    shown = to_gemini_tool(Tool("t", "说明", schema, print))["parameters"]["properties"]
    inner = {"n": {"type": "INTEGER"}}
    assert shown["one"] == {
        "type": "OBJECT", "properties": inner, "nullable": True, "description": "d",
    }  # fmt: skip
    assert shown["two"] == {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}], "nullable": True}
    assert shown["list"] == {
        "type": "ARRAY", "items": {"type": "STRING"}, "nullable": True, "maxItems": 3,
    }  # fmt: skip


def test_gemini_gets_no_empty_object():
    assert "parameters" not in to_gemini_tool(
        Tool("t", "说明", {"type": "object", "properties": {}}, print)
    )
