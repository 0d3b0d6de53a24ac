"""Seeing the wire: captures that tshark and sngrep read, and HEP that sngrep takes."""
import collections
import json
import os
import signal
import struct
import subprocess
import time

from calls import setup
from world import CORE, ONE, UAC, children

ADMIN = '[admin]\nbind = "127.0.0.1:9060"\n'


def messages(path, checksums=True):
    """What tshark sees in a file: (Call-ID, method or status, source, target), and its complaints."""
    fields = ["sip.Call-ID", "sip.Method", "sip.Status-Code", "ip.src", "ip.dst", "udp.srcport", "tcp.srcport", "udp.dstport", "tcp.dstport",
              "_ws.malformed", "ip.checksum.status", "udp.checksum.status", "tcp.checksum.status", "frame.protocols"]
    cmd = ["tshark", "-n", "-r", path, "-T", "json", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
           "-o", "tcp.check_checksum:TRUE"]
    for f in fields:
        cmd += ["-e", f]
    r = subprocess.run(cmd, capture_output=True, text=True)
    seen, faults = [], []
    for frame in json.loads(r.stdout or "[]"):
        layers = frame["_source"]["layers"]
        one = {f: layers.get(f, [""])[0] for f in fields}
        if "sip.Call-ID" not in layers or "_ws.malformed" in layers:
            faults.append(f"{path}: no SIP: {one}")
            continue
        for f in ("ip.checksum.status", "udp.checksum.status", "tcp.checksum.status"):
            if checksums and one[f] not in ("", "1"):
                faults.append(f"{path}: {f} is {one[f]}")
        what = one["sip.Method"] or one["sip.Status-Code"]
        seen.append((one["sip.Call-ID"], what, one["ip.src"], one["ip.dst"]))
    if r.returncode:
        faults.append(f"{path}: tshark: {r.stderr[-300:]}")
    return collections.Counter(seen), faults[:5]


def on_the_wire(wire):
    """The same of the network's own capture."""
    return collections.Counter((m.call_id, str(m.code) if m.code else m.method, m.src_ip, m.dst_ip) for m in wire.messages)


def same(w, what, got, want):
    if got != want:
        w.fail(f"{what}: {sum(got.values())} messages, {sum(want.values())} on the wire; missing {list((want - got).items())[:3]}, "
               f"too many {list((got - want).items())[:3]}")


def made(w, name, domain, transport, n):
    """Calls from the core to the first server, by one transport on both sides."""
    uas = w.sipp(f"{name}-uas", "uas", ONE, 5080, transport, pause=20)
    uac = w.sipp(name, "uac", UAC, 5070, transport, f"{CORE}:5060", 50, n, 100, dict(DOMAIN=f"{domain}.peer.test"))
    uac.done()
    uas.stop()
    for s in (uac, uas):
        s.clean(n)
    return uac


def sbe(w, *args):
    return subprocess.run([w.binary, "capture", *args], capture_output=True, text=True, timeout=20)


def capture(w):
    """sbe capture: all messages, those of a number, of a peer, of one call; read by tshark and sngrep."""
    setup(w, more=ADMIN)
    live = w.spawn("live", [w.binary, "capture", "--out", w.path("all.pcapng")])
    # As people do it: into tshark, which tells each message as it comes.
    pipe = w.spawn("piped", ["sh", "-c", f"'{w.binary}' capture --peer peer --seconds 600 | tshark -l -n -r - -T fields -e sip.Call-ID"])
    w.until(lambda: sbe(w, "--list").stdout.count("running") == 2, 10, "two captures do not run")
    for i, filter in enumerate((["--user", "@TCP.peer.test"], ["--call-id", "none@here"], [])):
        r = sbe(w, "--background", "--seconds", "10m", *filter)
        w.expect(r.returncode == 0 and f"capture {i + 3}:" in r.stdout, f"sbe capture --background {filter}: {r.stdout}{r.stderr}")
    w.until(lambda: sbe(w, "--list").stdout.count("running") == 5, 10, "five captures do not run")
    udp, tcp = 60, 40
    made(w, "udp", "udp", "udp", udp)
    made(w, "tcp", "tcp", "tcp", tcp)
    w.until(lambda: len(w.text("piped.out").split()) >= (udp + tcp) * 12, 15, "tshark behind a pipe does not see all messages")
    for i, name in ((3, "user"), (4, "none"), (5, "ring")):
        r = sbe(w, "--fetch", str(i), "--out", w.path(f"{name}.pcapng"))
        w.expect(r.returncode == 0, f"sbe capture --fetch {i}: {r.stderr}")
        w.expect(sbe(w, "--stop", str(i)).returncode == 0, f"capture {i} does not stop")
    # Ended as by Ctrl-C: the file is whole, and the node knows.
    live.send_signal(signal.SIGINT)
    live.wait(5)
    for child in children(pipe.pid) + [pipe.pid]:
        os.kill(child, signal.SIGTERM)
    w.until(lambda: "no captures" in sbe(w, "--list").stdout, 15, "captures outlive their followers: " + sbe(w, "--list").stdout)
    gone = sbe(w, "--fetch", "3", "--out", w.path("gone.pcapng"))
    w.expect(gone.returncode == 1 and "no such capture" in gone.stderr, f"a stopped capture: {gone.returncode} {gone.stderr}")
    wire = w.finish()
    want = on_the_wire(wire)
    both = {m.call_id for m in wire.messages if m.proto == "tcp"}
    for name, only in (("all", want), ("ring", want), ("user", collections.Counter({k: n for k, n in want.items() if k[0] in both})),
                       ("none", collections.Counter())):
        got, faults = messages(w.path(f"{name}.pcapng"))
        w.fail(*faults)
        same(w, name, got, only)
    same(w, "piped", collections.Counter(w.text("piped.out").split()), count(want))
    w.equal("TCP calls", len(both), tcp)
    w.figures["messages"] = sum(want.values())
    # sngrep needs a terminal even without its interface, and writes what it has understood.
    subprocess.run(["script", "-qec", f"sngrep -F -N -q -I {w.path('all.pcapng')} -O {w.path('sngrep.pcap')}", "/dev/null"],
                   timeout=30, stdout=open(w.path("sngrep.out"), "wb"), stdin=subprocess.DEVNULL)
    got, faults = messages(w.path("sngrep.pcap"))
    w.fail(*faults)
    same(w, "sngrep", got, want)


def count(messages):
    out = collections.Counter()
    for (call, *_), n in messages.items():
        out[call] += n
    return out


CHUNKS = {1: "B", 2: "B", 3: "4s", 4: "4s", 7: "H", 8: "H", 9: "I", 10: "I", 11: "B", 12: "I", 14: "s", 15: "s"}


def taken_apart(packet):
    """A HEP packet by the specification: vendor 0, type, length with its own six octets, value; all of it."""
    magic, length = struct.unpack("!4sH", packet[:6])
    assert magic == b"HEP3" and length == len(packet), packet[:8]
    chunks, at = {}, 6
    while at < length:
        vendor, kind, size = struct.unpack("!HHH", packet[at:at + 6])
        assert vendor == 0 and kind in CHUNKS and kind not in chunks and size >= 6, (vendor, kind, size)
        value = packet[at + 6:at + size]
        chunks[kind] = value if CHUNKS[kind] == "s" else struct.unpack("!" + CHUNKS[kind], value)[0]
        at += size
    assert at == length
    return chunks


def hep(w):
    """[hep]: every message once, taken by sngrep as a capture server, and chunk by chunk as the specification has it."""
    server = w.spawn("sngrep", ["script", "-qefc", f"sngrep -F -N -q -L udp:127.0.0.1:9061 -O {w.path('hep.pcap')}", "/dev/null"])
    time.sleep(1)
    setup(w, more='[hep]\nserver = "127.0.0.1:9061"\nid = 77\npassword = "secret"\n')
    n = 50
    made(w, "udp", "udp", "udp", n)
    made(w, "tcp", "tcp", "tcp", n)
    time.sleep(0.5)
    for child in children(server.pid):
        os.kill(child, signal.SIGINT)
    wire = w.finish()
    want = on_the_wire(wire)
    came = collections.Counter()
    for at, packet in wire.hep:
        try:
            c = taken_apart(packet)
        except (AssertionError, struct.error) as e:
            w.fail(f"no HEP packet: {e}")
            continue
        w.expect(c[1] == 2 and c[11] == 1 and c[12] == 77 and c[14] == b"secret", f"{c}")
        w.expect(abs(c[9] + c[10] / 1e6 - at) < 0.5, f"{c[9]}.{c[10]:06} came at {at}")
        m = c[15].split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        call = next(line.split(":", 1)[1].strip() for line in m if line.lower().startswith("call-id:"))
        first = m[0].split()
        ip = ".".join
        what = first[1] if first[0] == "SIP/2.0" else first[0]
        came[call, what, ip(str(b) for b in c[3]), ip(str(b) for b in c[4])] += 1
        w.expect(c[2] in (6, 17) and c[7] > 0 and c[8] > 0, f"{c}")
    same(w, "HEP", came, want)
    # sngrep makes up headers around what HEP tells, without checksums.
    got, faults = messages(w.path("hep.pcap"), checksums=False)
    w.fail(*faults)
    # It may lose some itself on a busy machine; what it has must be right.
    w.expect(not got - want and sum(got.values()) > 0.9 * sum(want.values()),
             f"sngrep as the server: {sum(got.values())} of {sum(want.values())}, too many {list((got - want).items())[:3]}")
    w.figures["sngrep_took"] = sum(got.values())
    w.figures["messages"] = sum(came.values())
