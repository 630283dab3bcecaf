#!/usr/bin/python3
"""Stands in for Dragonfly's client: a registry at 127.0.0.1 that hands each request on to the one behind, with the
account that the engine shows. It has no peers."""

import http.client
import http.server
import re
import ssl
import urllib.parse

with open("/etc/dragonfly/dfdaemon.yaml") as file:
    TEXT = file.read()
BEHIND = urllib.parse.urlsplit(re.search(r'addr: "(.*)"', TEXT)[1])
CERT = re.search(r"cert: (\S+)", TEXT)
TRUST = ssl.create_default_context(cafile=CERT[1] if CERT else None)
PORT = int(re.search(r"ip: 127\.0\.0\.1.*\n    port: (\d+)", TEXT)[1])
ASKED = ("Authorization", "Accept", "Range")
OWN = ("connection", "transfer-encoding", "date", "server")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        there = http.client.HTTPSConnection(BEHIND.hostname, BEHIND.port, context=TRUST)
        headers = {name: ", ".join(self.headers.get_all(name)) for name in ASKED if name in self.headers}
        there.request(self.command, self.path, headers=headers)
        answer = there.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OWN:
                self.send_header(name, value)
        self.end_headers()
        while data := answer.read(1 << 20):
            self.wfile.write(data)
        there.close()

    do_HEAD = do_GET

    def log_message(self, *words):
        with open("/var/log/stub-dfdaemon.log", "a") as log:
            log.write(f"{self.command} {self.path}\n")


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
