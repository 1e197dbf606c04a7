// What every TypeScript client does with our server; prints one JSON line.
const KV = { num_layers: 32, num_kv_heads: 8, head_dim: 128, seq_len: 8192, batch_size: 4 };

export async function play(client, version) {
  const seen = {};
  seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
  const called = await client.callTool({ name: "kv_cache_gib", arguments: KV });
  seen.GiB = JSON.parse(called.content[0].text).GiB;
  seen.refused = (await client.callTool({ name: "calculator", arguments: { expression: "1/0" } })).isError;
  try {
    seen.unknown = (await client.callTool({ name: "no_such", arguments: {} })).isError ?? false;
  } catch (error) {
    seen.unknown = error.code;
  }
  const { resources } = await client.listResources();
  seen.resources = resources.length;
  seen.text = (await client.readResource({ uri: resources[0].uri })).contents[0].text.length;
  seen.prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
  seen.prompt = (await client.getPrompt({ name: "quiz_me", arguments: { topic: "KV" } })).messages.length;
  seen.version = version();
  await client.close();
  console.log(JSON.stringify(seen));
}
