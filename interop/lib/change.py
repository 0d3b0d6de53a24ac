"""The element is changed while 200 calls of 3 s begin each second: none of them may notice."""
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from calls import both_sides, setup
from secure import metric
from world import CORE, CORE_UAS, HERE, LOOSE, ONE, PEERING, UAC, Failed, fill

RATE, TALK = 200, 3000
SECOND_CORE, SECOND_PEERING = "127.0.0.4", "127.0.0.5"


def ask(w, *command, fails=False):
    """An sbe command to the running node; its output."""
    r = subprocess.run([w.binary, *command, "--json"], capture_output=True, text=True, timeout=30)
    if bool(r.returncode) != fails:
        raise Failed(f"sbe {' '.join(command)} exits with {r.returncode}: {r.stdout}{r.stderr}")
    return json.loads(r.stdout)


class During:
    """What is done while calls are made. A failure of it is one of the scenario."""

    def __init__(self, w, do):
        self.w, self.do = w, do
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.do()
        except Exception as e:                          # told by the scenario, whatever it is
            self.w.fail(f"the change went wrong: {e!r}")

    def join(self, limit=120):
        self.thread.join(limit)
        self.w.expect(not self.thread.is_alive(), "the change does not come to an end")


def calls(w, seconds, do):
    """Calls for so long, with `do` from the fourth second on: when the first ones end, and 600 are under way."""
    n = RATE * seconds
    uas = w.sipp("uas", "uas", ONE, 5080, pause=0)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", RATE, n, TALK, dict(DOMAIN="udp.peer.test"))
    time.sleep(3)
    change = During(w, do)
    uac.done()
    change.join()
    uas.stop()
    uac.clean(n)
    uas.clean(n)
    return n


def change_reload(w):
    """200 calls/s, the configuration changed and read again eight times, once a faulty one: no call fails."""
    setup(w)
    values = dict(SIP="", PEER="", MORE="")
    path = w.path("sbe.toml")
    other = '[[peer]]\nname = "other"\ndomains = ["other.test"]\nsources = ["192.0.2.0/24"]\n'
    changes = [
        dict(MORE=other),                               # a peer comes
        dict(SIP='try_timeout = "2s"', MORE=other),
        dict(PEER="max_calls = 100000", MORE=other),    # limits of the peer that has the calls
        dict(PEER='t1 = "400ms"'),                      # a peer goes
        dict(MORE="nonsense = true"),                   # refused as a whole
        dict(MORE='[[route]]\nprefix = ""\npeers = ["peer"]\n'),
        dict(PEER="strip_headers = [\"x-none\"]"),
        dict(),
    ]

    def count():
        return int(metric("sbe_reloads_total", "ok")), int(metric("sbe_reloads_total", "error"))

    def change():
        for values_then in changes:
            before = sum(count())
            w.write("next.toml", fill(f"{HERE}/conf/sbe.toml", dict(values, **values_then)))
            os.replace(w.path("next.toml"), path)
            w.sbe.send_signal(signal.SIGHUP)
            w.until(lambda before=before: sum(count()) > before, 5, "no reload: " + w.text("sbe.err")[-300:])
            time.sleep(0.7)

    n = calls(w, 12, change)
    w.equal("reloads taken over and refused", count(), (len(changes) - 1, 1))
    sbe_counts(w, n)
    both_sides(w, w.finish(), n)


def sbe_counts(w, n):
    """The element's own count of the same calls."""
    w.equal("INVITEs by the element's count", int(metric("sbe_requests_total", 'realm="core"', 'method="INVITE"')), n)
    w.equal("BYEs by the element's count", int(metric("sbe_requests_total", 'realm="core"', 'method="BYE"')), n)
    w.equal("INVITEs and BYEs that were answered", int(metric("sbe_attempts_total", 'peer="peer"', 'outcome="ok"')), 2 * n)
    w.equal("failovers", int(metric("sbe_failovers_total")), 0)
    w.equal("calls left", int(metric("sbe_calls")), 0)


def change_drain(w):
    """200 calls/s, their node drained: the calls it has end there, new ones get 503 and go to a second node."""
    setup(w)
    text = fill(f"{HERE}/conf/sbe.toml", dict(SIP="", PEER="", MORE=f'[admin]\nbind = "{LOOSE}:9061"\n'))
    text = text.replace(f"{CORE}:", f"{SECOND_CORE}:").replace(f"{PEERING}:", f"{SECOND_PEERING}:")
    second = w.spawn("second", [w.binary, "run", "--config", w.write("second.toml", text)])
    w.until(lambda: "ready" in w.text("second.out").split(), 10, "the second node does not get ready")
    n = RATE * 12
    uas = w.sipp("uas", "uas", ONE, 5080, pause=0)
    uac = w.sipp("uac", "uac-drain", UAC, 5070, "udp", f"{CORE}:5060", RATE, n, TALK, dict(SECOND=SECOND_CORE))

    def change():
        w.figures["under_way"] = int(metric("sbe_calls"))
        ask(w, "drain")
        begun = time.monotonic()
        w.until(lambda: metric("sbe_calls") == 0, 10, "calls stay on the drained node")
        w.figures["empty_after_s"] = round(time.monotonic() - begun, 1)

    time.sleep(4)
    drain = During(w, change)
    uac.done()
    drain.join()
    uas.stop()
    uac.clean(n)
    uas.clean(n)
    answered = int(metric("sbe_attempts_total", 'peer="peer"', 'outcome="ok"')) / 2       # INVITEs and BYEs
    refused = int(metric("sbe_rejected_total", 'reason="draining"'))
    w.figures.update(on_first=answered, refused=refused)
    w.expect(w.figures["under_way"] > 500 and refused > 500, f"too few calls to show anything: {w.figures}")
    w.equal("calls that the first node served or refused", answered + refused, n)
    begun = time.monotonic()
    w.sbe.send_signal(signal.SIGTERM)
    w.equal("exit of the drained node", w.sbe.wait(10), 0)
    w.expect(time.monotonic() - begun < 1, "it does not end at once when nothing is under way")
    w.sbe = None
    second.send_signal(signal.SIGTERM)
    w.equal("exit of the second node", second.wait(10), 0)
    wire = w.finish(elsewhere={SECOND_CORE, SECOND_PEERING})
    both_sides(w, wire, n)
    told = [m for m in wire.messages if m.code == 503 and m.dst_ip == UAC]
    w.equal("503s on the wire, all with Retry-After", (len(told), sum("retry-after" in m.raw.lower().decode() for m in told)),
            (refused, refused))
    begun = {m.call_id for m in wire.messages if m.dst_ip == SECOND_CORE and m.method == "INVITE" and not m.code}
    w.equal("calls that the second node got", len(begun), refused)


class Heir:
    """The process that has taken over, which is nobody's child here until the one before has ended."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                pass
        return self.returncode

    def wait(self, limit):
        end = time.monotonic() + limit
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("sbe", limit)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)


def change_upgrade(w):
    """200 calls/s over UDP, three upgrades in a row and two that can't succeed: no call fails, nothing is sent twice."""
    installed, real = w.path("installed"), w.binary
    os.symlink(real, installed)
    w.binary = installed
    setup(w, sip='t1 = "100ms"')
    took = []

    def install(program):
        os.remove(installed)
        os.symlink(program, installed)

    def change():
        for generation in (2, 3, 4):
            begun, old = time.monotonic(), w.sbe
            said = subprocess.run([real, "upgrade", "--json"], capture_output=True, text=True, timeout=30)
            w.equal("exit of sbe upgrade: " + said.stderr, said.returncode, 0)
            w.sbe = Heir(json.loads(said.stdout)["pid"])
            status = status_of()
            w.equal("generation, predecessor", (status["generation"], status["predecessor"]), (generation, old.pid))
            w.equal("exit of the old process", old.wait(20), 0)
            took.append(round(time.monotonic() - begun, 1))
            w.equal("predecessor", status_of()["predecessor"], None)
        for broken in (install_false, faulty):
            broken()
            said = subprocess.run([real, "upgrade"], capture_output=True, text=True, timeout=30)
            w.equal("exit of an upgrade that can't succeed", said.returncode, 1)
            w.expect("cannot start" in said.stderr or "before it was ready" in said.stderr, said.stderr)
            w.equal("generation", status_of()["generation"], 4)

    def install_false():
        install("/bin/false")

    def faulty():
        install(real)
        with open(w.path("sbe.toml"), "a") as f:
            f.write("\nnonsense = true\n")

    def status_of():
        with urllib.request.urlopen("http://127.0.0.1:9060/api/v1/status", timeout=5) as answer:
            return json.load(answer)

    n = calls(w, 45, change)
    w.figures["old_stayed_s"] = took
    w.equal("upgrades that failed, by the element", int(metric("sbe_upgrades_total", 'outcome="failed"')), 2)
    w.equal("datagrams that could not be handed over", int(metric("sbe_dropped_total", 'reason="hand_over"')), 0)
    w.expect(metric("sbe_requests_total", 'method="INVITE"') > 0, "the last process had no calls")
    w.equal("calls left", int(metric("sbe_calls")), 0)
    both_sides(w, w.finish(), n)


def change_upgrade_tcp(w):
    """50 calls/s over TCP in both directions between two elements with persistent connections, three upgrades in a row:
    no call fails, and nothing that was written on a connection has to be sent again."""
    rate, n = 50, 3000
    hop = f"sip:{CORE_UAS}:5080"
    setup(w, sip='t1 = "100ms"', edit=lambda text: text.replace(f'"{hop}"', f'"{hop};transport=tcp"'))
    trunk = w.spawn("trunk", [
        sys.executable, f"{HERE}/lib/trunk.py", "--a", f"{CORE_UAS}:5080", "--a-to", f"{CORE}:5060", "--a-uri", "sip:alice@core.test",
        "--b", f"{ONE}:5080", "--b-to", f"{PEERING}:5060", "--b-uri", "sip:bob@tcp.peer.test",
        "--rate", str(rate), "--calls", str(n), "--ring", "0.02", "--talk", "2"])
    stayed = []

    def change():
        for generation in (2, 3, 4):
            begun, old = time.monotonic(), w.sbe
            w.sbe = Heir(ask(w, "upgrade")["pid"])
            w.equal("exit of the old process", old.wait(60), 0)
            stayed.append(round(time.monotonic() - begun, 1))
        w.expect(trunk.poll() is None, "the calls were over before the last upgrade was")

    time.sleep(4)
    change = During(w, change)
    trunk.wait(n / rate + 60)
    change.join()
    found = json.loads(w.text("trunk.out").splitlines()[-1])
    w.equal("calls, failed ones: " + w.text("trunk.err")[-400:], (found["calls"], found["failed"]), (n, 0))
    w.equal("requests that had to be sent again", found.get("again", []), [])
    w.equal("connections that the element reset", found.get("reset_by_element", 0), 0)
    w.equal("INVITEs that came twice", found.get("invites_twice", 0), 0)
    w.expect(found.get("closed_by_element", 0) >= 6, f"too few connections were left to show anything: {found}")
    w.figures.update(old_stayed_s=stayed, **{k: v for k, v in found.items() if k not in ("failed", "why")})
    wire = w.finish()
    for caller, callee in ((CORE_UAS, ONE), (ONE, CORE_UAS)):
        both_sides(w, wire, n // 2, caller, callee)
    w.figures["calls"] = n
