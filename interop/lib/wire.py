"""What went over the wire: a capture of the loopback device, and the SIP messages in it.

Every scenario is judged by this capture beside the programs' own counters: it has one clock (the kernel's)
for both sides of the element, and it shows messages that a program would silently swallow.
"""
import os
import re
import signal
import socket
import struct
import sys

PCAP = struct.Struct("<IHHiIII")
REC = struct.Struct("<IIII")
ETH_P_ALL, SOL_PACKET, PACKET_STATISTICS = 3, 263, 6
ADMIN, HEP = 9060, 9061                                         # the element's HTTP, and where HEP goes in these scenarios
SO_TIMESTAMPNS, SO_RCVBUFFORCE, PACKET_OUTGOING = 35, 33, 4


def capture(path):
    """Writes every packet that arrives on lo to `path` (pcap, nanoseconds) until SIGTERM."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 128 << 20)
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    s.bind(("lo", 0))
    s.settimeout(0.2)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    with open(path, "wb", 1 << 20) as f:
        f.write(PCAP.pack(0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))
        print("capturing", flush=True)
        while True:
            try:
                data, anc, _, addr = s.recvmsg(1 << 18, 64)
            except TimeoutError:
                if stop:
                    break
                continue
            if addr[2] == PACKET_OUTGOING:      # loopback shows each packet twice
                continue
            sec = nsec = 0
            for level, kind, value in anc:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    sec, nsec = struct.unpack("qq", value[:16])
            f.write(REC.pack(sec, nsec, len(data), len(data)))
            f.write(data)
        _, drops = struct.unpack("II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    print("dropped", drops, flush=True)


def packets(path):
    """(time in s, frame) of each packet in the file."""
    with open(path, "rb") as f:
        data = f.read()
    at = PCAP.size
    while at + REC.size <= len(data):
        sec, nsec, n, _ = REC.unpack_from(data, at)
        at += REC.size
        yield sec + nsec / 1e9, data[at:at + n]
        at += n


FOLD = re.compile(rb"\r\n[ \t]+")
COMPACT = {b"v": "via", b"f": "from", b"t": "to", b"i": "call-id", b"l": "content-length", b"m": "contact"}


class Message:
    """One SIP message on its way from `src` to `dst` ("ip:port"); `time` in s, `raw` with its body."""
    __slots__ = ("time", "proto", "src", "dst", "raw", "start", "head", "code", "method")

    def __init__(self, time, proto, src, dst, raw):
        self.time, self.proto, self.src, self.dst, self.raw = time, proto, src, dst, raw
        top = FOLD.sub(b" ", raw.partition(b"\r\n\r\n")[0]).split(b"\r\n")
        self.start = top[0].decode("latin-1")
        self.head = {}
        for line in top[1:]:
            k, _, v = line.partition(b":")
            k = k.strip().lower()
            k = COMPACT.get(k) or k.decode("latin-1")
            self.head.setdefault(k, []).append(v.strip().decode("latin-1"))
        if self.start.startswith("SIP/2.0 "):
            self.code = int(self.start.split()[1])
            self.method = self.cseq.split()[-1]
        else:
            self.code, self.method = 0, self.start.split(" ", 1)[0]

    def one(self, name):
        return self.head.get(name, [""])[0]

    @property
    def call_id(self):
        return self.one("call-id")

    @property
    def cseq(self):
        return self.one("cseq")

    @property
    def branch(self):
        m = re.search(r"branch=([^;,\s]+)", self.one("via"))
        return m[1] if m else ""

    @property
    def tag(self):
        m = re.search(r";\s*tag=([^;,\s]+)", self.one("to"))
        return m[1] if m else ""

    @property
    def src_ip(self):
        return self.src.rpartition(":")[0]

    @property
    def dst_ip(self):
        return self.dst.rpartition(":")[0]

    def __repr__(self):
        return f"{self.time:.6f} {self.proto} {self.src}>{self.dst} {self.start} {self.call_id} {self.cseq}"


class Stream:
    """One direction of a TCP connection, put together by sequence number."""

    def __init__(self, seq):
        self.next, self.held, self.buf = seq, {}, b""

    def feed(self, seq, data):
        self.held.setdefault(seq, data)
        for s in sorted(self.held, key=lambda x: (x - self.next + (1 << 31)) & 0xFFFFFFFF):
            ahead = (s - self.next + (1 << 31)) % (1 << 32) - (1 << 31)
            if ahead > 0:
                break
            d = self.held.pop(s)[-ahead:] if ahead else self.held.pop(s)
            self.buf += d
            self.next = (self.next + len(d)) & 0xFFFFFFFF

    def messages(self):
        while True:
            self.buf = self.buf.lstrip(b"\r\n")
            head, sep, rest = self.buf.partition(b"\r\n\r\n")
            if not sep:
                return
            m = re.search(rb"(?im)^(?:content-length|l)\s*:\s*(\d+)", head)
            n = int(m[1]) if m else 0
            if len(rest) < n:
                return
            yield head + sep + rest[:n]
            self.buf = rest[n:]


class Wire:
    """messages: all SIP messages, in order. icmp: (time, "ip:port" that was unreachable, "ip:port" that sent).
    resets: (time, src, dst) of TCP RST segments. dns: times of DNS queries. rtp: number of RTP packets.
    hep: (time, datagram) sent to the port of capture servers."""

    def __init__(self, path):
        self.messages, self.icmp, self.resets, self.dns, self.rtp, self.hep = [], [], [], [], 0, []
        streams = {}
        for t, f in packets(path):
            if len(f) < 34 or f[12:14] != b"\x08\x00":
                continue
            ip = f[14:14 + struct.unpack(">H", f[16:18])[0]] if f[16:18] != b"\0\0" else f[14:]
            ihl = (ip[0] & 15) * 4
            src, dst, body = ip_str(ip[12:16]), ip_str(ip[16:20]), ip[ihl:]
            if ip[9] == 17 and len(body) > 8:
                sp, dp = struct.unpack(">HH", body[:4])
                if 53 in (sp, dp):
                    if dp == 53:
                        self.dns.append(t)
                    continue
                if dp == HEP:
                    self.hep.append((t, body[8:]))
                    continue
                if body[8] >> 6 == 2 and len(body) > 20 and body[9] & 127 in (0, 8):
                    self.rtp += 1
                    continue
                self.add(t, "udp", f"{src}:{sp}", f"{dst}:{dp}", body[8:])
            elif ip[9] == 6 and len(body) >= 20:
                sp, dp, seq, _, off, flags = struct.unpack(">HHIIBB", body[:14])
                if {53, ADMIN} & {sp, dp}:
                    continue
                a, b = f"{src}:{sp}", f"{dst}:{dp}"
                if flags & 4:
                    self.resets.append((t, a, b))
                if flags & 2:
                    streams[a, b] = Stream((seq + 1) & 0xFFFFFFFF)
                    continue
                data = body[(off >> 4) * 4:]
                if data and (a, b) in streams:
                    streams[a, b].feed(seq, data)
                    for raw in streams[a, b].messages():
                        self.add(t, "tcp", a, b, raw)
            elif ip[9] == 1 and len(body) >= 36 and body[0] == 3:
                q = body[8:]
                qb = q[(q[0] & 15) * 4:]
                if q[9] == 17 and len(qb) >= 4:
                    sp, dp = struct.unpack(">HH", qb[:4])
                    self.icmp.append((t, f"{ip_str(q[16:20])}:{dp}", f"{ip_str(q[12:16])}:{sp}"))

    def add(self, t, proto, src, dst, raw):
        if b"SIP/2.0" not in raw[:2048].split(b"\r\n", 1)[0]:
            return
        try:
            self.messages.append(Message(t, proto, src, dst, raw))
        except (ValueError, IndexError):
            pass

    def calls(self):
        """Call-ID -> its messages, in order."""
        out = {}
        for m in self.messages:
            out.setdefault(m.call_id, []).append(m)
        return out


def ip_str(b):
    return ".".join(map(str, b))


if __name__ == "__main__":
    os.nice(-5)
    capture(sys.argv[1])
