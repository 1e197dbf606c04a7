// @modelcontextprotocol/sdk, any 1.x: node ts_v1.mjs FOLDER COMMAND …
import path from "node:path";
import { pathToFileURL } from "node:url";
import { play } from "./session.mjs";

const [folder, command, ...args] = process.argv.slice(2);
const part = (name) =>
  import(pathToFileURL(path.resolve(folder, "node_modules/@modelcontextprotocol/sdk/dist", name)).href)
    .catch(() => import(pathToFileURL(path.resolve(folder, "node_modules/@modelcontextprotocol/sdk/dist/esm", name)).href));
const { Client } = await part("client/index.js");
const { StdioClientTransport } = await part("client/stdio.js");

const transport = new StdioClientTransport({ command, args });
let version = "";
const client = new Client({ name: "peer", version: "0" }, { capabilities: {} });
const connected = client.connect(transport);
const deliver = transport.onmessage;
transport.onmessage = (message, ...rest) => {
  version ||= message.result?.protocolVersion ?? "";
  return deliver(message, ...rest);
};
await connected;
await client.ping();
await play(client, () => version);
