"""mcp 1.30.0: py_v1.py - COMMAND …; prints one JSON line."""

import asyncio
import json
import sys

from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client

KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}


async def main(command):
    seen = {}
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(parameters) as pipes, ClientSession(*pipes) as session:
        seen["version"] = (await session.initialize()).protocolVersion
        await session.send_ping()
        seen["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        seen["GiB"] = (await session.call_tool("kv_cache_gib", KV)).structuredContent["GiB"]
        seen["refused"] = (await session.call_tool("calculator", {"expression": "1/0"})).isError
        try:
            seen["unknown"] = (await session.call_tool("no_such", {})).isError
        except McpError as error:
            seen["unknown"] = error.error.code
        resources = (await session.list_resources()).resources
        seen["resources"] = len(resources)
        seen["text"] = len((await session.read_resource(resources[0].uri)).contents[0].text)
        seen["prompts"] = [prompt.name for prompt in (await session.list_prompts()).prompts]
        seen["prompt"] = len((await session.get_prompt("quiz_me", {"topic": "KV"})).messages)
    print(json.dumps(seen))


asyncio.run(main(sys.argv[2:]))
