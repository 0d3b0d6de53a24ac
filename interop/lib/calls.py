"""Scenarios of single calls, each made many times."""
from world import CORE, CORE_UAS, ONE, PEER_UAC, PEERING, TWO, UAC
from parts import large_sdp as sdp_of


def setup(w, **element):
    w.dns()
    w.element(**element)


def both_sides(w, wire, n, caller=UAC, callee=ONE):
    """As many calls left the caller as reached the callee, the same ones, and each got one 2xx and its BYE."""
    made = {m.call_id for m in wire.messages if m.method == "INVITE" and not m.code and m.src_ip == caller}
    got = {m.call_id for m in wire.messages if m.method == "INVITE" and not m.code and m.dst_ip == callee}
    w.equal("calls that left the caller", len(made), n)
    w.equal("calls that reached the callee", len(got), n)
    w.expect(made == got, "the calls of both sides are not the same ones")
    w.figures["calls"] = n


def setup_times(w, wire, caller=UAC):
    """Figures: how long the element held an INVITE, from its arrival to its leaving, in ms."""
    came, held = {}, []
    for m in wire.messages:
        if m.method == "INVITE" and not m.code and m.tag == "":
            if m.src_ip == caller:
                came.setdefault(m.call_id, m.time)
            elif m.src_ip in (CORE, PEERING) and m.call_id in came:
                held.append((m.time - came.pop(m.call_id)) * 1000)
    held.sort()
    if held:
        w.figures["held_ms_p50"] = round(held[len(held) // 2], 2)
        w.figures["held_ms_p99"] = round(held[int(len(held) * 0.99)], 2)
        w.figures["held_ms_max"] = round(held[-1], 2)
    return held


def plain(w, domain, up, down, rate=200, n=2000, values=None, xml="uac"):
    setup(w)
    uas = w.sipp("uas", "uas", ONE, 5080, down, pause=50)
    values = dict(DOMAIN=f"{domain}.peer.test", **(values or {}))
    uac = w.sipp("uac", xml, UAC, 5070, up, f"{CORE}:5060", rate, n, 200, values)
    uac.done()
    uas.stop()
    uac.clean(n)
    uas.clean(n)
    wire = w.finish()
    both_sides(w, wire, n)
    setup_times(w, wire)
    return wire


def plain_udp(w):
    """2,000 calls over UDP at 200 per second."""
    wire = plain(w, "udp", "udp", "udp")
    for m in wire.messages:
        if m.src_ip == PEERING and m.method == "INVITE" and not m.code:
            if m.one("x-probe") != "left;as=it;is" or m.start != "INVITE sip:+15551230001@udp.peer.test SIP/2.0":
                w.fail(f"changed on its way: {m!r}")
                break


def plain_tcp(w):
    """2,000 calls over TCP at 200 per second, over few connections."""
    wire = plain(w, "tcp", "tcp", "tcp")
    used = {(m.src, m.dst) for m in wire.messages if m.src_ip == PEERING and m.proto == "tcp" and not m.code}
    w.figures["connections"] = len(used)
    w.expect(len(used) <= 4, f"{len(used)} connections to one instance")


def udp_to_tcp(w):
    """The core speaks UDP, the peer TCP."""
    plain(w, "tcp", "udp", "tcp", n=1000)


def tcp_to_udp(w):
    """The core speaks TCP, the peer UDP."""
    plain(w, "udp", "tcp", "udp", n=1000)


def from_peer(w):
    """1,000 calls of the peer to the core."""
    setup(w)
    uas = w.sipp("uas", "uas", CORE_UAS, 5080, pause=50)
    uac = w.sipp("uac", "uac", PEER_UAC, 5070, "udp", f"{PEERING}:5060", 200, 1000, 200, dict(DOMAIN="core.test"))
    uac.done()
    uas.stop()
    uac.clean(1000)
    uas.clean(1000)
    wire = w.finish()
    both_sides(w, wire, 1000, PEER_UAC, CORE_UAS)
    setup_times(w, wire, PEER_UAC)
    w.equal("DNS queries for calls to an address", len([t for t in wire.dns if t > wire.messages[0].time]), 0)


def pair(w, callee_xml, caller_xml, n, rate, pause=100, values=None, callee_pause=50):
    """n calls of two scenarios that fit each other; the capture."""
    setup(w)
    uas = w.sipp("uas", callee_xml, ONE, 5080, pause=callee_pause, values=values)
    uac = w.sipp("uac", caller_xml, UAC, 5070, "udp", f"{CORE}:5060", rate, n, pause, values)
    uac.done()
    uas.stop()
    uac.clean(n)
    uas.clean(n)
    wire = w.finish()
    both_sides(w, wire, n)
    return wire


def cancel(w):
    """500 calls that the caller cancels while they ring."""
    n = 500
    wire = pair(w, "uas-cancel", "uac-cancel", n, 100)
    for name, side in (("caller", lambda m: m.src_ip == UAC), ("element", lambda m: m.src_ip == PEERING)):
        w.equal(f"CANCELs of the {name}", len([m for m in wire.messages if m.method == "CANCEL" and not m.code and side(m)]), n)
    w.equal("487 at the caller", len([m for m in wire.messages if m.code == 487 and m.dst_ip == UAC]), n)


def busy(w):
    """500 calls to somebody who is busy."""
    wire = pair(w, "uas-reject", "uac-reject", 500, 100, values=dict(CODE=486, REASON="Busy Here"))
    w.equal("486 at the caller", len([m for m in wire.messages if m.code == 486 and m.dst_ip == UAC]), 500)


def redirect(w):
    """500 calls answered 302: the response passes with its Contact, nobody follows it."""
    contact = "Contact: <sip:elsewhere@192.0.2.99:5080>;q=0.7\n      "
    wire = pair(w, "uas-reject", "uac-reject", 500, 100, values=dict(CODE=302, REASON="Moved Temporarily", MORE=contact))
    got = [m for m in wire.messages if m.code == 302 and m.dst_ip == UAC]
    w.equal("302 at the caller", len(got), 500)
    w.equal("Contacts of the 302s", {m.one("contact") for m in got}, {"<sip:elsewhere@192.0.2.99:5080>;q=0.7"})


def reinvite(w):
    """300 calls with a re-INVITE from each side."""
    wire = pair(w, "uas-reinvite", "uac-reinvite", 300, 60, callee_pause=150)
    both = [m for m in wire.messages if m.method == "INVITE" and not m.code and m.tag]
    w.equal("re-INVITEs", (sum(m.src_ip == UAC for m in both), sum(m.src_ip == ONE for m in both)), (300, 300))
    w.equal("re-INVITEs that arrived", (sum(m.dst_ip == ONE for m in both), sum(m.dst_ip == UAC for m in both)), (300, 300))


def late(w, first, n=50):
    """Instance one is silent until the element has moved on to instance two, then answers after all."""
    setup(w, sip='try_timeout = "800ms"')        # all calls begin before the first one is given up, and try it
    one = w.sipp("one", first, ONE, 5080, pause=1500)
    return one, n


def late_200(w):
    """The abandoned instance takes the call after all: its 200 counts, the other one is cancelled."""
    one, n = late(w, "uas-late")
    two = w.sipp("two", "uas-cancel", TWO, 5080)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", 200, n, 200, dict(DOMAIN="fo.peer.test"))
    uac.done()
    one.stop()
    two.stop()
    wire = w.finish(quiet=False)
    w.equal("calls, good calls at the caller", (uac.created, uac.ok), (n, n))
    took = {m.call_id for m in wire.messages if m.method == "INVITE" and m.code == 200 and m.src_ip == ONE}
    tried = {m.call_id for m in wire.messages if m.method == "INVITE" and not m.code and m.dst_ip == TWO}
    gone = {m.call_id for m in wire.messages if m.method == "INVITE" and m.code == 487 and m.src_ip == TWO}
    up = [m for m in wire.messages if m.method == "INVITE" and m.code == 200 and m.dst_ip == UAC]
    w.expect(took, "no call was answered late")
    w.expect(took & tried == gone & took, "an attempt that lost was not cancelled")
    w.equal("callers told of the 200", {m.call_id for m in up}, took)
    w.figures.update(calls=n, answered_late=len(took & tried))
    w.equal("calls answered late", len(took & tried), n)
    w.equal("487 that reached a caller", len([m for m in wire.messages if m.code == 487 and m.dst_ip == UAC]), 0)


def late_180(w):
    """The abandoned instance rings after all: it is cancelled, the call stays with the other one."""
    one, n = late(w, "uas-late-180")
    two = w.sipp("two", "uas", TWO, 5080, pause=1500)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", 200, n, 200, dict(DOMAIN="fo.peer.test"))
    uac.done()
    one.stop()
    two.stop()
    wire = w.finish(quiet=False)
    uac_ok, two_ok = (uac.created, uac.ok, uac.bad), (two.created, two.ok, two.bad)
    w.equal("calls, good, bad at the caller", uac_ok, (n, n, 0))
    w.equal("calls, good, bad at instance two", two_ok, (n, n, 0))
    rang = {m.call_id for m in wire.messages if m.code == 180 and m.src_ip == ONE}
    gone = {m.call_id for m in wire.messages if m.code == 487 and m.src_ip == ONE}
    w.equal("calls that rang late", len(rang), n)
    w.expect(rang == gone, f"{len(rang - gone)} late ringing attempts were not cancelled")
    w.equal("487 that reached a caller", len([m for m in wire.messages if m.code == 487 and m.dst_ip == UAC]), 0)
    w.figures.update(calls=n, rang_late=len(rang))


def large_sdp(w):
    """100 calls with an SDP of 4,000 octets to a peer that prefers UDP and offers TCP: TCP takes them."""
    setup(w)
    udp = w.sipp("uas-udp", "uas", ONE, 5080, "udp", pause=50)
    tcp = w.sipp("uas-tcp", "uas", ONE, 5080, "tcp", pause=50)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", 50, 100, 200, dict(DOMAIN="both.peer.test", SDP=sdp_of(4000)))
    uac.done()
    tcp.stop()
    udp.stop()
    uac.clean(100)
    tcp.clean(100)
    wire = w.finish()
    both_sides(w, wire, 100)
    big = [m for m in wire.messages if m.src_ip == PEERING and m.method == "INVITE" and not m.code]
    w.equal("transports of large INVITEs", {m.proto for m in big}, {"tcp"})
    w.figures["octets"] = max(len(m.raw) for m in big)
    w.equal("large INVITEs cut short", sum(len(m.raw) < 4000 for m in big), 0)


def large_udp(w):
    """100 calls with an SDP of 4,000 octets to a peer that has only UDP: UDP takes them."""
    wire = plain(w, "udp", "udp", "udp", 50, 100, dict(SDP=sdp_of(4000)))
    w.equal("transports of large INVITEs", {m.proto for m in wire.messages if m.src_ip == PEERING}, {"udp"})
