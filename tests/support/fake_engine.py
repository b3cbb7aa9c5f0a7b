"""A server process with just enough of the native API to be started, watched and killed.

`fake_engine.py --port P [--info JSON] [--crash SENTENCE] [--deaf] [--child] [--stubborn]`
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def handler(info: dict[str, object], deaf: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({**info, "pid": os.getpid(), "env": dict(os.environ)})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if deaf:
                self.send_error(503)
            else:
                self.reply({"output_ids": [1], "meta_info": {}})

        def reply(self, row: dict[str, object]) -> None:
            body = json.dumps(row).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--info", default="{}")
    parser.add_argument("--crash", default="")
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    args = parser.parse_args()
    if args.crash:
        sys.exit(args.crash)
    info = json.loads(args.info)
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.child:
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        info["child"] = child.pid
    ThreadingHTTPServer(("127.0.0.1", args.port), handler(info, args.deaf)).serve_forever()


if __name__ == "__main__":
    main()
