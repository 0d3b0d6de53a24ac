"""A SIP element of a test over TLS that does what no program can be told to: it cuts its connections, looks at
certificates, and counts each response by the way that it came."""
import asyncio
import socket
import ssl
import struct
import time

from wire import Message, Stream


class Identity:
    """A certificate, its key and the authority that it trusts, as paths."""

    def __init__(self, pem, key, ca):
        self.pem, self.key, self.ca = pem, key, ca

    def context(self, server):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(self.pem, self.key)
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class Connection:
    """One TLS connection; `took(message, connection)` is told of all that comes."""

    def __init__(self, reader, writer, took):
        self.reader, self.writer, self.took = reader, writer, took
        self.name = "%s:%d" % writer.get_extra_info("peername")[:2]
        self.task = asyncio.ensure_future(self.read())

    async def read(self):
        stream = Stream(0)
        try:
            while data := await self.reader.read(65536):
                stream.buf += data
                for raw in stream.messages():
                    self.took(Message(time.monotonic(), "tls", self.name, "", raw), self)
        except (OSError, ssl.SSLError):
            pass
        finally:
            self.writer.close()

    def send(self, text):
        self.writer.write(text.encode())

    def certificate(self):
        """What the other end has shown, DER."""
        return self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    def close(self):
        """Says goodbye, and reads on until the other end has done so too."""
        self.task.cancel()
        self.writer.close()

    def cut(self, reset=False):
        """Closes it without a word of TLS; or even with a reset, which destroys what the other end has not read."""
        self.task.cancel()
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class Agent:
    """Calls over TLS from `ip`. `home`: the name in its Via, whose SRV records lead to where it listens."""

    def __init__(self, identity, ip, home):
        self.identity, self.ip, self.home = identity, ip, home
        self.client = identity.context(server=False)
        self.seen, self.waiting, self.strays = {}, {}, []

    async def listen(self, ip, port):
        async def accepted(reader, writer):
            Connection(reader, writer, lambda m, c: self.took(m, c, True))
        await asyncio.start_server(accepted, ip, port, ssl=self.identity.context(server=True), backlog=1024)

    async def connect(self, to, name):
        reader, writer = await asyncio.open_connection(*to, ssl=self.client, server_hostname=name,
                                                       local_addr=(self.ip, 0))
        return Connection(reader, writer, lambda m, c: self.took(m, c, False))

    def took(self, message, connection, home):
        """`home`: by a connection that the other end has opened."""
        if not message.code:
            self.strays.append(message)
            return
        key = (message.call_id, message.method, message.code)
        self.seen.setdefault(key, []).append(home)
        self.waiting.setdefault(key, asyncio.get_event_loop().create_future())
        if not self.waiting[key].done():
            self.waiting[key].set_result(message)

    async def expect(self, call, method, code, limit=10):
        """The first response of this kind."""
        waiting = self.waiting.setdefault((call, method, code), asyncio.get_event_loop().create_future())
        return await asyncio.wait_for(asyncio.shield(waiting), limit)

    def count(self, method, code, home=None):
        """Calls that had such a response, by the way home, by their own connection, or by either."""
        return sum(home is None or home in ways for (_, m, c), ways in self.seen.items() if (m, c) == (method, code))

    # ------------------------------------------------------------ messages
    def invite(self, call, uri):
        body = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 8\r\n"
        return self.request("INVITE", call, uri, 1, "", "", "Content-Type: application/sdp\r\n", body)

    def in_dialog(self, method, cseq, answer):
        """A request of the caller in the dialog that this 200 has made."""
        routes = [r for row in answer.head.get("record-route", []) for r in row.split(",")]
        more = "".join(f"Route: {r.strip()}\r\n" for r in reversed(routes))
        contact = answer.one("contact").partition("<")[2].partition(">")[0]
        return self.request(method, answer.call_id, contact, cseq, f"-{method}", f";tag={answer.tag}", more, "")

    def request(self, method, call, uri, cseq, branch, tag, more, body):
        return (f"{method} {uri} SIP/2.0\r\nVia: SIP/2.0/TLS {self.home};branch=z9hG4bK-{call}{branch}\r\n"
                f"From: <sip:alice@peer.test>;tag=f{call}\r\nTo: <sip:bob@core.test>{tag}\r\nCall-ID: {call}\r\n"
                f"CSeq: {cseq} {method}\r\nMax-Forwards: 70\r\nContact: <sip:alice@{self.home};transport=tls>\r\n{more}"
                f"Content-Length: {len(body)}\r\n\r\n{body}")


async def paced(rate, n, one):
    """Runs `one(i)` for each of `n` numbers, `rate` a second; what they raise, as text."""
    begun, tasks = time.monotonic(), []
    for i in range(n):
        await asyncio.sleep(max(0, begun + i / rate - time.monotonic()))
        tasks.append(asyncio.ensure_future(one(i)))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"{type(e).__name__} {e}".strip() for e in ends if isinstance(e, BaseException)]
