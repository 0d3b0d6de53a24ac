"""An instance dies, or the DNS does, in the middle of traffic."""
import time

from calls import setup, setup_times
from world import CORE, ONE, PEERING, TWO, UAC

RATE, BEFORE, AFTER = 200, 4, 8         # calls per second; seconds of traffic before and after the death
RING, TALK = 100, 400                   # ms


class Attempt:
    """One INVITE to one instance: times in s."""

    def __init__(self, m):
        self.branch, self.to, self.sent, self.again = m.branch, m.dst_ip, m.time, []
        self.progress = self.final = None

    @property
    def code(self):
        return self.final.code if self.final else 0


class Call:
    """One call as seen on the wire."""

    def __init__(self, messages):
        self.came = self.bye = self.ended = None
        self.attempts, self.finals = [], []
        by_branch = {}
        for m in messages:
            if m.method == "INVITE":
                if not m.code and m.src_ip == UAC:
                    self.came = self.came or m.time
                elif not m.code and m.src_ip == PEERING:
                    if m.branch in by_branch:
                        by_branch[m.branch].again.append(m.time)
                    else:
                        by_branch[m.branch] = a = Attempt(m)
                        self.attempts.append(a)
                elif m.code > 100 and m.dst_ip == PEERING and m.branch in by_branch:
                    a = by_branch[m.branch]
                    if m.code < 200:
                        a.progress = a.progress or m
                    else:
                        a.final = a.final or m
                elif m.code >= 200 and m.dst_ip == UAC:
                    self.finals.append(m)
            elif m.method == "BYE" and m.src_ip == UAC:
                self.bye = self.bye or m
            elif m.method == "BYE" and m.code and m.dst_ip == UAC:
                self.ended = m

    @property
    def code(self):
        return self.finals[0].code if self.finals else 0

    def began_on(self, instance):
        """The instance gave a provisional above 100, or answered with other than a failover code."""
        return any(a.to == instance and (a.progress or (a.final and a.code != 503)) for a in self.attempts)


def traffic(w, die, domain="fo", transport="udp", sip="", more="", peer="", one="uas", values=None):
    """Calls at RATE to a domain with instances one (priority 10) and two (20). `die(world, one)` is called after BEFORE seconds.
    Returns (wire, calls, time of death)."""
    setup(w, sip=sip, more=more, peer=peer)
    first = w.sipp("one", one, ONE, 5080, transport, pause=RING, values=values)
    second = w.sipp("two", "uas", TWO, 5080, transport, pause=RING)
    n = RATE * (BEFORE + AFTER)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", RATE, n, TALK, dict(DOMAIN=f"{domain}.peer.test"), wait=6)
    time.sleep(BEFORE)
    death = die(w, first)
    uac.done(90)
    second.stop()
    first.stop()
    wire = w.finish(quiet=False)
    calls = {k: Call(v) for k, v in wire.calls().items()}
    calls = {k: c for k, c in calls.items() if c.came}
    w.equal("calls made", (uac.created, len(calls)), (n, n))
    # Both ends agree about every call.
    good = sum(c.code == 200 for c in calls.values())
    at_two = {k for k, c in calls.items() if any(a.to == TWO for a in c.attempts)}
    w.equal("calls at instance two", (second.created, second.ok, second.bad), (len(at_two), len(at_two), 0))
    if second.errors():
        w.fail(f"instance two reports: {second.errors()[:300]}")
    w.figures.update(calls=n, answered=good, on_two=len(at_two))
    judge(w, calls, death, uac)
    return wire, calls, death


def judge(w, calls, death, uac):
    """Every INVITE without a provisional above 100 from instance one ends in 200, and its call ends well."""
    caught = 0
    for k, c in calls.items():
        # Of the calls that began on instance one, those that were not over when it died.
        over = c.ended and c.ended.code == 200 and c.ended.time < death
        if c.began_on(ONE):
            good = c.code == 200 and c.ended and c.ended.code == 200
            if not good and not over:
                caught += 1
            if over and not good:
                w.fail(f"call {k} failed before anything was wrong")
            if len(c.attempts) > 1:
                w.fail(f"call {k} moved on after it had begun on instance one")
        elif c.code != 200 or not c.ended or c.ended.code != 200:
            w.fail(f"call {k}: INVITE ended in {c.code or 'nothing'}, BYE in {c.ended.code if c.ended else 'nothing'}, "
                   f"attempts {[(a.to, a.code) for a in c.attempts]}, {c.came - death:+.3f} s from the death")
    w.problems[:] = w.problems[:12]
    w.figures["caught_on_one"] = caught             # ringing or answered on it when it died
    w.equal("failed calls at the caller", uac.created - uac.ok, caught)


def moved(calls, since=0.0):
    """(call, delay that the failover added in ms) for each call that came after `since` and went on to instance two.
    The delay: from the first attempt's leaving to the second's."""
    return [(c, (c.attempts[1].sent - c.attempts[0].sent) * 1000) for c in calls.values()
            if len(c.attempts) > 1 and c.came >= since]


def spread(w, name, values):
    values = sorted(values)
    if values:
        w.figures[f"{name}_ms_p50"] = round(values[len(values) // 2], 2)
        w.figures[f"{name}_ms_max"] = round(values[-1], 2)
    w.figures[f"{name}_n"] = len(values)


def quick(values, limit=20.0, pause=250.0):
    """All but one in a hundred below `limit` ms, and none beyond what a pause of a shared machine explains."""
    values = list(values)
    late = sum(v >= limit for v in values)
    return late <= len(values) // 100 + 1 and max(values, default=0) < pause


def held(w, calls, death, limit=20.0):
    """INVITEs that came after the instance's death left for the other one within `limit` ms of their arrival."""
    times = [(c.attempts[-1].sent - c.came) * 1000 for c in calls.values() if c.came > death and c.attempts]
    spread(w, "held_after", times)
    late = [t for t in times if t >= limit]
    w.expect(quick(times, limit), f"{len(late)} INVITEs after the death were held for {limit} ms or more: {sorted(late)[-5:]}")


def kill(w, one):
    w.killed = time.time()
    one.kill()
    return time.time()


def refused(w):
    """Instance one's port closes: ICMP errors. The next instance within 20 ms."""
    wire, calls, death = traffic(w, kill)
    held(w, calls, death)
    # From the ICMP error to the next attempt: also for INVITEs that lay unread in the dying socket.
    added = []
    for c, delay in moved(calls):
        first, second = c.attempts[:2]
        sent = max([first.sent] + [t for t in first.again if t < second.sent])
        added.append((second.sent - sent) * 1000)
        if delay >= 250 and c.came > death:
            w.fail(f"a refusal cost {delay:.1f} ms")
    spread(w, "failover", added)
    w.expect(added, "nothing failed over")
    w.expect(quick(added), f"a refusal cost {max(added, default=0):.1f} ms")
    w.figures["icmp_errors"] = sum(dst == f"{ONE}:5080" for _, dst, _ in wire.icmp)


def drop(w, _):
    w.nft(f"add table ip gone\nadd chain ip gone in {{ type filter hook input priority 0; }}\n"
          f"add rule ip gone in ip daddr {ONE} drop\nadd rule ip gone in ip saddr {ONE} drop\n")
    return time.time()


def black_hole(w, transport="udp"):
    """Instance one vanishes without a word: at most try_timeout until that is noticed, then nothing."""
    limit = 1000
    domain = "fo" if transport == "udp" else "fotcp"
    _, calls, death = traffic(w, drop, domain, transport, sip='try_timeout = "1s"\nconnect_timeout = "1s"')
    # From an INVITE's arrival to its leaving for instance two. (What TCP still held back for instance one was
    # never on the wire, so the first attempt cannot be seen for every call.)
    delays = [(c.came, (c.attempts[-1].sent - c.came) * 1000) for c in calls.values()
              if c.attempts and c.attempts[-1].to == TWO]
    noticed = min((came + d / 1000 for came, d in delays), default=death)
    w.figures["noticed_after_ms"] = round((noticed - death) * 1000)
    before = [d for came, d in delays if came <= noticed]
    after = [d for came, d in delays if came > noticed]
    w.expect(before, "nothing failed over")
    spread(w, "failover", before)
    late = [round(d) for _, d in delays if d > limit + 250]
    w.expect(not late, f"{len(late)} INVITEs waited for more than try_timeout: {sorted(late)[-3:]} ms")
    # After each hold_down (2 s, then 4 s) a single INVITE tries whether instance one is back.
    trials = [d for d in after if d >= 250]
    w.figures["trials"] = len(trials)
    w.expect(len(trials) <= 2, f"{len(trials)} INVITEs waited for the dead instance after that was known")
    spread(w, "held_after", [d for d in after if d < 250])


def tcp_black_hole(w):
    """As black-hole, with TCP connections that nobody closes."""
    black_hole(w, "tcp")


def says_503(w):
    """Instance one answers 503 to every new call. The next instance within 20 ms."""
    death = int(time.time()) + BEFORE + 3
    w.figures.clear()
    _, calls, _ = traffic(w, lambda *_: float(death), one="uas-turns-503", values=dict(T=death))
    held(w, calls, death)
    gone = moved(calls)
    added = [(c.attempts[1].sent - c.attempts[0].final.time) * 1000 for c, _ in gone if c.attempts[0].final]
    spread(w, "failover", [d for _, d in gone])
    w.expect(len(added) == len(gone) and gone, f"{len(gone)} failovers, {len(added)} of them for a 503")
    w.expect(quick(d for _, d in gone), f"a 503 cost {max((d for _, d in gone), default=0):.1f} ms")
    w.equal("calls that met a 503 yet were not answered", sum(c.code != 200 for c, _ in gone), 0)
    w.equal("503s that reached a caller", sum(c.code == 503 for c in calls.values()), 0)
    after = [c for c in calls.values() if c.came > death + 1]
    w.figures["asked_one_again"] = sum(c.attempts[0].to == ONE for c in after if c.attempts)


def tcp_reset(w):
    """Instance one's process ends, its TCP connections with it. The next instance within 20 ms."""
    def die(w, one):
        one.proc.send_signal(19)                # what it leaves unread makes the kernel send a reset
        time.sleep(0.03)
        return kill(w, one)
    wire, calls, death = traffic(w, die, "fotcp", "tcp")
    held(w, calls, death)
    gone = moved(calls)
    w.expect(gone, "nothing failed over")
    # INVITEs that were sent while the process stood still waited for its end, not for the element.
    spread(w, "failover", [(c.attempts[1].sent - max(c.attempts[0].sent, w.killed)) * 1000 for c, _ in gone])
    w.expect(w.figures.get("failover_ms_p50", 0) < 20 and w.figures.get("failover_ms_max", 0) < 250, "a reset cost 20 ms or more")
    w.figures["resets"] = sum(src == f"{ONE}:5080" for _, src, _ in wire.resets)
    w.expect(w.figures["resets"], "no TCP reset was seen")


def dns_outage(w):
    """The DNS server is silent, then gone, each time for four times the TTL of everything: no call fails."""
    w.dns(ttl=2)
    w.element(sip="")
    uas = w.sipp("uas", "uas", ONE, 5080, pause=50)
    n, rate = 1500, 50
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", rate, n, 200, dict(DOMAIN="udp.peer.test"))
    time.sleep(3)
    off = [time.time()]
    w.dns_freeze(True)
    time.sleep(8)
    w.dns_freeze(False)
    off.append(time.time())
    time.sleep(4)
    off.append(time.time())
    w.dns_stop()
    time.sleep(8)
    w.dns_start()
    off.append(time.time())
    uac.done()
    uas.stop()
    uac.clean(n)
    uas.clean(n)
    wire = w.finish()
    w.figures["calls"] = n
    times = setup_times(w, wire)
    # While an old answer is at hand, the DNS gets half a second, once; after that it is asked in the background.
    waited = [t for t in times if t > 20]
    w.figures["waited_for_dns"] = len(waited)
    w.expect(times and times[-1] < 600, f"an INVITE waited for the DNS: {w.figures.get('held_ms_max')} ms")
    w.expect(len(waited) <= 2 * rate, f"{len(waited)} INVITEs waited for the DNS")
    w.figures["queries_up"] = sum(not (off[0] < t < off[1] or off[2] < t < off[3]) for t in wire.dns)
    w.figures["queries_down"] = sum(off[0] < t < off[1] or off[2] < t < off[3] for t in wire.dns)
    w.expect(any(t > off[1] for t in wire.dns if t < off[2]), "the DNS was not asked again when it was back")
