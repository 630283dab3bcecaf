#!/usr/bin/python3
"""Stands in for Dragonfly's scheduler: it listens."""

import re
import socketserver
import sys

with open(sys.argv[sys.argv.index("--config") + 1]) as file:
    port = int(re.search(r"^  port: (\d+)", file.read(), re.MULTILINE)[1])
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("", port), socketserver.BaseRequestHandler).serve_forever()
