"""Two SIP elements that call each other over TCP, each by a persistent connection of its own to the element under test.

They do what RFC 3261 §18 asks of a peer: they listen at their sent-by, answer on the connection that a request came by while
it is there and by the sent-by of the Via else, and when the other end closes a connection in an orderly way they open a new
one. A request that was written on a connection that has gone and has had no response within GRACE, by whatever connection,
is sent again by a new transaction, and counted: an element that closes in an orderly way never makes that necessary.
"""
import argparse
import asyncio
import json
import random
import re
import sys

GRACE, GIVE_UP = 1.0, 10.0
LENGTH = re.compile(rb"(?im)^(?:content-length|l)[ \t]*:[ \t]*(\d+)")


class Message:
    def __init__(self, raw):
        lines = raw.decode().split("\r\n")
        self.start, self.head = lines[0], {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                self.head.setdefault(name.strip().lower(), []).append(value.strip())
        self.code = int(self.start[8:11]) if self.start.startswith("SIP/2.0 ") else 0
        self.method = self.one("cseq").split()[-1]
        self.call = self.one("call-id")

    def one(self, name):
        return self.head.get(name, [""])[0]

    @property
    def branch(self):
        return re.search(r"branch=([^;,\s]+)", self.one("via"))[1]


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, end):
        self.end, self.buf, self.open, self.transport = end, b"", False, None

    def connection_made(self, transport):
        self.transport, self.open = transport, True
        self.end.links.add(self)

    def data_received(self, data):
        self.buf += data
        while True:
            self.buf = self.buf.lstrip(b"\r\n")
            head, sep, rest = self.buf.partition(b"\r\n\r\n")
            if not sep:
                return
            length = LENGTH.search(head)
            n = int(length[1]) if length else 0
            if len(rest) < n:
                return
            self.buf = rest[n:]
            self.end.received(self, Message(head))

    def eof_received(self):
        self.end.count("closed_by_element")
        self.gone()
        return False                                    # what is still to be written is written, then it is closed

    def connection_lost(self, error):
        if error:
            self.end.count("reset_by_element")
        self.gone()
        self.end.links.discard(self)

    def gone(self):
        if self.open:
            self.open = False
            self.end.lost(self)

    def write(self, text):
        self.transport.write(text.encode())


class Transaction:
    def __init__(self, call, method, text):
        self.call, self.method, self.text = call, method, text
        self.link, self.heard = None, False


class Call:
    def __init__(self, ident, ends):
        self.ident, self.ends = ident, ends
        self.dialog, self.over, self.why, self.acked, self.invites = {}, asyncio.Event(), "", False, set()


class End:
    """One of the two: caller or callee of calls that `calls` tells of."""

    def __init__(self, args, ip, port, target, calls, counts):
        self.args, self.ip, self.port, self.target, self.calls, self.counts = args, ip, port, target, calls, counts
        self.links, self.main, self.dialling, self.waiting, self.open = set(), None, None, [], {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    async def start(self):
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Link(self), self.ip, self.port, backlog=256)

    # ------------------------------------------------------------ connections
    async def connect(self, to):
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Link(self), *to, local_addr=(self.ip, 0)))[1]

    def by_main(self, t):
        """By the persistent connection, which is opened if there is none."""
        if self.main and self.main.open:
            t.link = self.main
            return self.main.write(t.text)
        self.waiting.append(t)
        if not self.dialling:
            self.dialling = asyncio.ensure_future(self.dial())

    async def dial(self):
        for _ in range(5):
            try:
                self.main = await self.connect(self.target)
                self.count("connections")
                break
            except OSError as e:
                self.count(f"cannot connect: {e.strerror}")
                await asyncio.sleep(0.1)
        waiting, self.waiting, self.dialling = self.waiting, [], None
        for t in waiting:
            self.by_main(t)

    def lost(self, link):
        for branch, t in list(self.open.items()):
            if t.link is link and not t.heard:
                asyncio.get_running_loop().call_later(GRACE, self.again, branch)

    def again(self, branch):
        t = self.open.get(branch)
        if t and not t.heard:
            self.count("sent_again")
            self.counts.setdefault("again", []).append(f"{t.method} {t.call.ident}")
            del self.open[branch]
            new = self.branch()
            self.send(new, Transaction(t.call, t.method, t.text.replace(branch, new)))

    # ------------------------------------------------------------ messages
    def branch(self):
        return f"z9hG4bK{random.getrandbits(64):016x}"

    def send(self, branch, t, link=None):
        self.open[branch] = t
        if link and link.open:
            t.link = link
            link.write(t.text)
        else:
            self.by_main(t)

    def request(self, call, method, uri, dialog, cseq, routes=(), link=None):
        branch = self.branch()
        text = (f"{method} {uri} SIP/2.0\r\nVia: SIP/2.0/TCP {self.ip}:{self.port};branch={branch}\r\nMax-Forwards: 70\r\n"
                + "".join(f"Route: {r}\r\n" for r in routes)
                + f"From: {dialog[0]}\r\nTo: {dialog[1]}\r\nCall-ID: {call.ident}\r\nCSeq: {cseq} {method}\r\n"
                f"Contact: <sip:{self.ip}:{self.port};transport=tcp>\r\nContent-Length: 0\r\n\r\n")
        t = Transaction(call, method, text)
        if method == "ACK":
            return self.by_main(t)
        self.send(branch, t, link)

    def answer(self, link, m, code, reason):
        lines = [f"SIP/2.0 {code} {reason}"]
        lines += [f"Via: {v}" for v in m.head["via"]] + [f"Record-Route: {v}" for v in m.head.get("record-route", ())]
        to = m.one("to")
        tag = "" if "tag=" in to else f";tag=d{m.call}"
        lines += [f"From: {m.one('from')}", f"To: {to}{tag}", f"Call-ID: {m.call}", f"CSeq: {m.one('cseq')}",
                  f"Contact: <sip:{self.ip}:{self.port};transport=tcp>", "Content-Length: 0", "", ""]
        text = "\r\n".join(lines)
        if link.open:
            return link.write(text)
        self.count("answers_by_sent_by")
        asyncio.ensure_future(self.by_sent_by(m, text))

    async def by_sent_by(self, m, text):
        host, _, port = re.match(r"\S+\s+([^;\s]+)", m.one("via"))[1].partition(":")
        received = re.search(r"received=([^;,\s]+)", m.one("via"))
        link = await self.connect((received[1] if received else host, int(port or 5060)))
        link.write(text)
        link.transport.close()

    def received(self, link, m):
        call = self.calls.get(m.call)
        if call is None or call.over.is_set():
            return self.count("strays")
        if m.code:
            return self.response(link, call, m)
        if m.method == "INVITE":
            if call.invites:
                self.count("invites_twice")
            call.invites.add(m.branch)
            self.answer(link, m, 180, "Ringing")
            asyncio.get_running_loop().call_later(self.args.ring, self.pick_up, link, call, m)
        elif m.method == "ACK":
            call.acked = True
            if call.ends[call.ident.endswith("callee")] is self:
                asyncio.get_running_loop().call_later(self.args.talk, self.hang_up, call, link)
        elif m.method == "BYE":
            self.answer(link, m, 200, "OK")
        else:
            self.answer(link, m, 501, "Not Implemented")

    def pick_up(self, link, call, m):
        call.dialog[self] = ((m.one("to") + f";tag=d{m.call}", m.one("from")), m.one("contact"), m.head.get("record-route", []))
        self.answer(link, m, 200, "OK")

    def response(self, link, call, m):
        t = self.open.get(m.branch)
        if t is None:
            return self.count("strays")
        t.heard = True
        if link is not t.link:
            self.count("answered_by_sent_by")
        if m.code < 200:
            return
        del self.open[m.branch]
        if m.code != 200:
            return self.finish(call, f"{m.code} to {m.method}")
        if m.method == "BYE":
            return self.finish(call, "" if call.acked else "no ACK")
        call.dialog[self] = ((m.one("from"), m.one("to")), m.one("contact"), m.head.get("record-route", [])[::-1])
        self.within(call, "ACK", 1)
        if call.ends[call.ident.endswith("callee")] is self:
            asyncio.get_running_loop().call_later(self.args.talk, self.hang_up, call)

    def within(self, call, method, cseq, link=None):
        parties, contact, routes = call.dialog[self]
        self.request(call, method, contact.strip("<>"), parties, cseq, routes, link)

    def hang_up(self, call, link=None):
        # The callee's BYE goes as often by the connection that the element has opened as by its own.
        self.within(call, "BYE", 2, link if random.random() < 0.5 else None)

    def finish(self, call, why):
        call.why = why
        call.over.set()


async def run(args):
    calls, counts, failed = {}, {}, []
    address = lambda text: (text.rpartition(":")[0], int(text.rpartition(":")[2]))
    a = End(args, *address(args.a), address(args.a_to), calls, counts)
    b = End(args, *address(args.b), address(args.b_to), calls, counts)
    servers = [await end.start() for end in (a, b)]
    print("listening", flush=True)

    async def one(n):
        caller, callee, uri = (a, b, args.b_uri) if n % 2 == 0 else (b, a, args.a_uri)
        call = Call(f"{n}-{'caller' if n % 4 < 2 else 'callee'}", (caller, callee))
        calls[call.ident] = call
        caller.request(call, "INVITE", uri, (f"<sip:{n}@{caller.ip}>;tag=r{n}", f"<{uri}>"), 1)
        try:
            await asyncio.wait_for(call.over.wait(), args.ring + args.talk + GIVE_UP)
        except TimeoutError:
            stage = "no BYE" if call.acked else "no ACK" if call.dialog else "not answered" if call.invites else "did not arrive"
            call.why = f"{stage}, waits for {[t.method for e in (a, b) for t in e.open.values() if t.call is call]}"
            call.over.set()
        if call.why:
            failed.append(f"{call.ident}: {call.why}")
            print("failed", failed[-1], file=sys.stderr, flush=True)

    loop = asyncio.get_running_loop()
    begun, tasks = loop.time(), []
    for n in range(args.calls):
        await asyncio.sleep(max(0, begun + n / args.rate - loop.time()))
        tasks.append(asyncio.ensure_future(one(n)))
    await asyncio.gather(*tasks)
    took = loop.time() - begun
    for server in servers:
        server.close()
    print(json.dumps(dict(calls=args.calls, failed=len(failed), why=failed[:20], took_s=round(took, 1), **counts)))
    return 1 if failed else 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name, text in (("a", "address of one end"), ("b", "of the other"), ("a-to", "the element's address for the first"),
                       ("b-to", "for the other"), ("a-uri", "whom the other calls"), ("b-uri", "whom the first calls")):
        p.add_argument(f"--{name}", required=True, help=text)
    p.add_argument("--rate", type=float, default=100, help="calls per second, both directions together")
    p.add_argument("--calls", type=int, default=1000)
    p.add_argument("--ring", type=float, default=0.05, help="seconds")
    p.add_argument("--talk", type=float, default=2, help="seconds")
    sys.exit(asyncio.run(run(p.parse_args())))


if __name__ == "__main__":
    main()
