"""Other people's SIP programs: a proxy as the peer, user agents at both ends."""
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import wave

from calls import both_sides, setup
from world import BEHIND, BEHIND_UAC, CORE, CORE_UAS, HERE, KAMAILIO, ONE, PEERING, UAC, fill, listening


def through_kamailio(w, transport, domain, n, more):
    """With Kamailio between the element and user agents behind it, by one transport: `n` calls each way, `more` that are
    cancelled and `more` that find a callee busy."""
    port = 5061 if transport == "tls" else 5060
    values = dict(DIR=w.dir, TRANSPORT=transport, PORT=port, TLS=transport == "tls")
    conf = w.write(f"{transport}.cfg", fill(f"{HERE}/conf/kamailio.cfg", values))
    proxy = w.spawn(f"kamailio-{transport}", [shutil.which("kamailio"), "-DD", "-E", "-Y", w.dir, "-P", w.path("kamailio.pid"), "-f", conf],
                    group=True)
    w.until(lambda: bound(KAMAILIO, 5060), 10, "Kamailio does not start: " + w.text(f"kamailio-{transport}.err")[-300:])
    if transport == "tls":
        w.until(lambda: listening(KAMAILIO, 5061, "tls"), 10, "Kamailio does not listen for TLS")
    to_peer = w.sipp(f"peer-{transport}", "uas", BEHIND, 5080, pause=50)
    to_core = w.sipp(f"core-{transport}", "uas", CORE_UAS, 5080, pause=50)
    out = w.sipp(f"out-{transport}", "uac", UAC, 5070, "udp", f"{CORE}:5060", 50, n, 200,
                 dict(DOMAIN=f"{domain}.peer.test"))
    into = w.sipp(f"in-{transport}", "uac", BEHIND_UAC, 5070, "udp", f"{KAMAILIO}:5060", 50, n, 200,
                  dict(DOMAIN="core.test"))
    for s in (out, into):
        s.done()
    for s in (to_peer, to_core):
        s.stop()
    for s in (out, into, to_peer, to_core):
        s.clean(n)
    for name, callee, caller, values in (
            ("cancel", "uas-cancel", "uac-cancel", dict(VIA3="@ANOTHER_VIA@", KEEP_VIA3="@KEEP_ANOTHER_VIA@")),
            ("busy", "uas-reject", "uac-reject", dict(CODE=486, REASON="Busy Here"))):
        uas = w.sipp(f"{name}-uas-{transport}", callee, BEHIND, 5080, pause=50, values=values)
        uac = w.sipp(f"{name}-uac-{transport}", caller, UAC, 5070, "udp", f"{CORE}:5060", 50, more, 100,
                     dict(DOMAIN=f"{domain}.peer.test", **values))
        uac.done()
        uas.stop()
        uac.clean(more)
        uas.clean(more)
    return proxy


def end_kamailio(w, transport, proxy):
    """That it lived to the end of its calls is ours to ask; how it shuts down is not: some of its processes now and then
    wait for a lock that another one took with it, for the minute that its own alarm allows them."""
    if proxy.poll() is not None:
        w.fail(f"Kamailio ended before its time with {proxy.returncode}: " + w.text(f"kamailio-{transport}.err")[-300:])
        return
    proxy.terminate()
    try:
        proxy.wait(5)
    except subprocess.TimeoutExpired:
        w.figures["kamailio_killed"] = w.figures.get("kamailio_killed", 0) + 1
    try:
        os.killpg(proxy.pid, signal.SIGKILL)                        # its children too: they hold the ports
    except ProcessLookupError:
        pass
    proxy.wait()
    w.until(lambda: not bound(KAMAILIO, 5060), 5, "Kamailio keeps its port")


def kamailio(w):
    """Kamailio as the peer's border proxy, over UDP and TCP: calls in both directions, CANCEL, busy."""
    setup(w)
    n = 500
    for transport, domain in (("udp", "kam"), ("tcp", "kamtcp")):
        end_kamailio(w, transport, through_kamailio(w, transport, domain, n, 100))
    wire = w.finish(elsewhere={BEHIND, BEHIND_UAC})
    between = [m for m in wire.messages if m.method == "INVITE" and not m.code and {m.src_ip, m.dst_ip} == {PEERING, KAMAILIO}]
    count = {(m.proto, m.src_ip == PEERING): 0 for m in between}
    for m in between:
        count[m.proto, m.src_ip == PEERING] += 1
    w.equal("INVITEs between the element and Kamailio", count,
            {("udp", True): n + 200, ("udp", False): n, ("tcp", True): n + 200, ("tcp", False): n})
    w.figures["calls"] = len(between)


def bound(ip, port):
    return listening(ip, port, "udp") and listening(ip, port, "tcp")


def sine(path, seconds=10):
    """A telephone's sample rate: baresip's own sine wave knows only 48 kHz."""
    with wave.open(path, "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(8000)
        f.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i * 2 * math.pi * 440 / 8000)))
                               for i in range(8000 * seconds)))


def agent(w, name, ip, port, account, more=""):
    """A baresip without sound devices or a screen; it sends a sine wave."""
    home = w.path(name)
    os.makedirs(home)
    sine(f"{home}/said.wav")
    w.write(f"{name}/config", fill(f"{HERE}/conf/baresip", dict(IP=ip, PORT=port, DIR=home)))
    w.write(f"{name}/accounts", account + "\n")
    w.write(f"{name}/contacts", "")
    return w.spawn(name, ["stdbuf", "-oL", shutil.which("baresip"), "-f", home, "-s", "-v"] + (["-e", more] if more else []))


def baresip(w):
    """Two baresip user agents call each other through the element, with media; both directions, each hangs up once."""
    # It refuses to start without an address that is not loopback.
    for cmd in ("tuntap add dev media0 mode tap", "addr add 10.99.0.1/24 dev media0", "link set media0 up"):
        subprocess.check_call(["ip", *cmd.split()])
    setup(w)
    for i, (caller, callee, target, proxy, src, dst) in enumerate((
            ("core", "peer", "sip:bob@udp.peer.test", CORE, UAC, ONE),
            ("peer2", "core2", f"sip:alice@{PEERING}:5060", None, ONE, CORE_UAS))):
        b = agent(w, callee, dst, 5080, f"<sip:{target[4:].split('@')[0]}@{dst}:5080>;regint=0;answermode=auto")
        w.until(lambda: bound(dst, 5080), 10, f"{callee} does not start: " + w.text(f"{callee}.out")[-300:])
        a = agent(w, caller, src, 5070, f"<sip:caller@{src}:5070>;regint=0" + (f";outbound=\"sip:{proxy}:5060\"" if proxy else ""), f"/dial {target}")
        w.until(lambda: "Call established" in w.text(f"{caller}.out") and "Call established" in w.text(f"{callee}.out"),
                15, f"no call between {caller} and {callee}: {w.text(caller + '.out')[-400:]}")
        time.sleep(3)
        # The first time the caller hangs up, by ending; the second time the callee.
        first, second = (a, b) if i == 0 else (b, a)
        w.end(first)
        gone = f"{callee if i == 0 else caller}.out"
        w.until(lambda: re.search(r"session closed|terminated", w.text(gone)), 10, f"{gone} was not told of the end")
        w.end(second)
    wire = w.finish()
    invites = {m.call_id for m in wire.messages if m.method == "INVITE" and not m.code and m.dst_ip in (CORE, PEERING)}
    byes = {m.call_id for m in wire.messages if m.method == "BYE" and m.code == 200 and m.src_ip in (CORE, PEERING)}
    w.equal("calls of the user agents", len(invites), 2)
    w.expect(invites == byes, "a BYE was not answered with 200")
    w.figures.update(calls=len(invites), rtp_packets=wire.rtp)
    w.expect(wire.rtp > 200, f"only {wire.rtp} RTP packets")
