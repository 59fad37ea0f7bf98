// Runs Perfetto's trace_processor (WebAssembly, as its user interface ships it) on the RPC messages of standard input.
// node trace_processor.js FOLDER_OF_THE_INTERFACE <requests >replies
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// The interface's engine expects to be a web worker that loads a file from beside it.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.name = path.basename(url);
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, this.name))).buffer;
  }
};
console.log = () => {};
delete globalThis.process;
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));

// Its module is ready some turns of the event loop later; then it takes a message port.
setTimeout(() => {
  const port = {
    postMessage(reply) {
      for (let at = 0; at < reply.length; ) at += fs.writeSync(1, reply, at);
    },
  };
  self.onmessage({ data: port });
  port.onmessage({ data: fs.readFileSync(0) });
}, 100);
