"""fastmcp 4.1.6: py_fastmcp.py - COMMAND …; prints one JSON line."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}


async def main(command):
    seen = {"version": "2026-07-28"}
    async with Client(StdioTransport(command=command[0], args=command[1:])) as client:
        seen["tools"] = [tool.name for tool in await client.list_tools()]
        seen["GiB"] = (await client.call_tool("kv_cache_gib", KV)).structured_content["GiB"]
        refused = await client.call_tool("calculator", {"expression": "1/0"}, raise_on_error=False)
        seen["refused"] = refused.is_error
        try:
            await client.call_tool("no_such", {})
            seen["unknown"] = False
        except Exception as error:
            seen["unknown"] = getattr(getattr(error, "error", None), "code", type(error).__name__)
        resources = await client.list_resources()
        seen["resources"] = len(resources)
        seen["text"] = len((await client.read_resource(resources[0].uri))[0].text)
        seen["prompts"] = [prompt.name for prompt in await client.list_prompts()]
        seen["prompt"] = len((await client.get_prompt("quiz_me", {"topic": "KV"})).messages)
    print(json.dumps(seen))


asyncio.run(main(sys.argv[2:]))
