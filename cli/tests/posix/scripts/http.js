// An HTTP server that answers a body with its hash and its length's worth of bytes, and its load.
//
// usage: http.js serve PORT | http.js load PORT REQUESTS CONNECTIONS
'use strict';
const crypto = require('crypto');
const http = require('http');

const [what, port, requests, connections] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const hash = (data) => crypto.createHash('sha256').update(data).digest('hex');

function body(number) {
  const sizes = [0, 1, 1000, 20000, number % 50 === 0 ? 1000000 : 10];
  return Buffer.alloc(sizes[number % sizes.length], `${number} `);
}

function serve() {
  const server = http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      const all = Buffer.concat(parts);
      response.setHeader('X-Hash', hash(all));
      response.end(all);
    });
  });
  server.listen(port, '127.0.0.1');
  process.on('SIGTERM', () => {
    server.close();
    server.closeAllConnections();
  });
}

function one(agent, number) {
  return new Promise((resolve, reject) => {
    const sent = body(number);
    const options = { agent, host: '127.0.0.1', port, method: 'POST', timeout: 60000 };
    const request = http.request(options, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('error', reject);
      response.on('end', () => {
        const right = response.headers['x-hash'] === hash(sent) && Buffer.concat(parts).equals(sent);
        right ? resolve() : reject(new Error(`request ${number}: another body`));
      });
    });
    request.on('timeout', () => request.destroy(new Error(`request ${number}: no answer`)));
    request.on('error', reject);
    request.end(sent);
  });
}

async function load() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  let next = 0;
  const worker = async () => {
    while (next < requests) await one(agent, next++);
  };
  await Promise.all(Array.from({ length: connections }, worker));
  agent.destroy();
  console.log('all right');
}

if (what === 'serve') {
  serve();
} else {
  load().catch((cause) => {
    console.error(cause);
    process.exit(1);
  });
}
