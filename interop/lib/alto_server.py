"""A small ALTO server behind those that keep the doors; writes a line of JSON for each request to standard output."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPE = {"cost-mode": "numerical", "cost-metric": "routingcost"}
COSTS = {"ipv4:127.0.0.21": 10, "ipv4:127.0.0.22": 1}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind):
        seen = {k.lower(): v for k, v in self.headers.items()}
        print(json.dumps(dict(method=self.command, path=self.path, door=seen.get("x-door", ""), client=seen.get("x-client", ""),
                              authorization=seen.get("authorization", ""))), flush=True)
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", f"application/alto-{kind}+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        entry = {"uri": self.path + "/costs", "media-type": "application/alto-endpointcost+json",
                 "accepts": "application/alto-endpointcostparams+json", "capabilities": {"cost-type-names": ["n"]}}
        self.answer({"meta": {"cost-types": {"n": TYPE}}, "resources": {"e": entry}}, "directory")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["endpoints"]
        row = {d: COSTS[d] for d in asked["dsts"] if d in COSTS}
        self.answer({"meta": {"cost-type": TYPE}, "endpoint-cost-map": {s: row for s in asked["srcs"]}}, "endpointcost")

    def log_message(self, *args):
        pass


ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
