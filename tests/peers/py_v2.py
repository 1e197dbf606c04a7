"""mcp 2.3.0 (or its client inside fastmcp): py_v2.py MODE COMMAND …; prints one JSON line."""

import asyncio
import json
import sys

import mcp

KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}


async def main(mode, command):
    seen = {}
    parameters = mcp.StdioServerParameters(command=command[0], args=command[1:])
    async with mcp.Client(parameters, mode=mode) as client:
        seen["version"] = client.protocol_version
        seen["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        called = await client.call_tool("kv_cache_gib", KV)
        seen["GiB"] = called.structured_content["GiB"]
        refused = await client.call_tool("calculator", {"expression": "1/0"})
        seen["refused"] = refused.is_error
        try:
            seen["unknown"] = (await client.call_tool("no_such", {})).is_error
        except mcp.MCPError as error:
            seen["unknown"] = error.error.code
        resources = (await client.list_resources()).resources
        seen["resources"] = len(resources)
        read = await client.read_resource(resources[0].uri)
        seen["text"] = len(read.contents[0].text)
        seen["prompts"] = [prompt.name for prompt in (await client.list_prompts()).prompts]
        got = await client.get_prompt("quiz_me", {"topic": "KV"})
        seen["prompt"] = len(got.messages)
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1], sys.argv[2:]))
