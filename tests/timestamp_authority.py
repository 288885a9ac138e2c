"""A time-stamping authority of RFC 3161 on this machine, made with `openssl ts`."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = """
[tsa]
default_tsa = tsa_config
[tsa_config]
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
certs = {folder}/tsa.pem
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
[ext]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
basicConstraints = CA:FALSE
"""


class Authority:
    """The authority; `broken` makes it respond with an error."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.broken, self.url = folder, False, ""
        (folder / "tsa.cnf").write_text(CONFIG.format(folder=folder))
        (folder / "serial").write_text("01\n")
        new, days = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"], ["-days", "30"]
        self.openssl(*new, "/CN=root", "-x509", "-keyout", "root.key", "-out", "root.pem", *days)
        self.openssl(*new, "/CN=tsa", "-keyout", "tsa.key", "-out", "tsa.csr")
        sign = ["x509", "-req", "-in", "tsa.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial"]
        self.openssl(*sign, "-extfile", "tsa.cnf", "-extensions", "ext", "-out", "tsa.pem", *days)

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def stamp(self, query: bytes) -> bytes:
        (self.folder / "query").write_bytes(query)
        self.openssl(
            "ts", "-reply", "-queryfile", "query", "-out", "reply", "-config", "tsa.cnf", "-section", "tsa_config"
        )
        return (self.folder / "reply").read_bytes()


@contextmanager
def serve(folder: Path) -> Iterator[Authority]:
    """An authority that listens on this machine."""
    authority = Authority(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            query = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(500 if authority.broken else 200)
            self.end_headers()
            self.wfile.write(b"" if authority.broken else authority.stamp(query))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    authority.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield authority
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
