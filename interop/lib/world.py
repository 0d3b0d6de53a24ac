"""One scenario's world: its own network, mount and process namespace, a DNS server, the element, SIPp and others."""
import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from audit import audit
from parts import expand
from wire import Wire

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORE, PEERING, LOOSE = "127.0.0.2", "127.0.0.3", "127.0.0.1"    # the element's two sides; the DNS server
UAC, CORE_UAS = "127.0.0.10", "127.0.0.11"
ONE, TWO, PEER_UAC, KAMAILIO = "127.0.0.21", "127.0.0.22", "127.0.0.23", "127.0.0.24"
BEHIND, BEHIND_UAC = "127.0.0.40", "127.0.0.41"                 # behind Kamailio; the element never meets them
KNOWN = {UAC, CORE_UAS, ONE, TWO, PEER_UAC, KAMAILIO}


class Failed(Exception):
    """The scenario can't go on."""


class LeftOut(Exception):
    """A program that the scenario is about is not to be had."""


def fill(path, values):
    """A template's text: @NAME@ replaced; a line that begins with @if NAME@ stays only if NAME has a value."""
    out = []
    with open(path) as f:
        for line in f:
            if line.startswith("@if "):
                name, _, line = line[4:].partition("@")
                if not values.get(name):
                    continue
            out.append(line)
    text = "".join(out)
    for k, v in values.items():
        text = text.replace(f"@{k}@", str(v))
    return text


class World:
    def __init__(self, binary, out, name):
        self.binary, self.name = binary, name
        self.dir = os.path.join(out, name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        self.problems, self.figures, self.procs = [], {}, []
        self.sbe = self.nsd = self.cap = None
        subprocess.check_call(["ip", "link", "set", "lo", "up"])
        subprocess.call(["mount", "-t", "tmpfs", "tmpfs", "/run"])
        self.cap = self.spawn("capture", [sys.executable, f"{HERE}/lib/wire.py", self.path("wire.pcap")])
        self.until(lambda: "capturing" in self.text("capture.out"), 5, "the capture does not start")

    # ------------------------------------------------------------ basics
    def path(self, name):
        return os.path.join(self.dir, name)

    def text(self, name):
        try:
            with open(self.path(name), errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def fail(self, *what):
        self.problems += [str(w) for w in what]

    def expect(self, ok, what):
        if not ok:
            self.fail(what)

    def equal(self, what, got, want):
        if got != want:
            self.fail(f"{what}: {got}, expected {want}")

    def until(self, cond, limit, what):
        end = time.monotonic() + limit
        while not cond():
            if time.monotonic() > end:
                raise Failed(what)
            time.sleep(0.02)

    def spawn(self, name, cmd, env=None, stdin=subprocess.DEVNULL, group=False):
        """`group`: in a process group of its own, so that it can be killed with its children."""
        p = subprocess.Popen(cmd, cwd=self.dir, stdin=stdin, stdout=open(self.path(f"{name}.out"), "ab"),
                             stderr=open(self.path(f"{name}.err"), "ab"), env=dict(os.environ, **(env or {})),
                             start_new_session=group)
        self.procs.append(p)
        return p

    def end(self, p, limit=10):
        """Ends somebody else's program; one that does not want to is killed: that is no fault of the element."""
        p.terminate()
        try:
            p.wait(limit)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()

    # ------------------------------------------------------------ DNS
    def dns(self, ttl=300):
        self.write("peer.test.zone", fill(f"{HERE}/conf/peer.test.zone", dict(TTL=ttl)))
        self.write("sbe.test.zone", f"$TTL 300\n@ SOA ns hostmaster 1 3600 600 86400 2\n@ NS ns\nns A {LOOSE}\n@ A {PEERING}\n")
        self.write("nsd.conf", fill(f"{HERE}/conf/nsd.conf", dict(DIR=self.dir)))
        self.dns_start()

    def dns_start(self):
        self.nsd = self.spawn("nsd", ["nsd", "-d", "-c", self.path("nsd.conf")])
        query = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\4peer\4test\0\0\6\0\1"

        def answers():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.settimeout(0.1)
                try:
                    s.connect((LOOSE, 53))
                    s.send(query)
                    return bool(s.recv(512))
                except OSError:
                    return False
        self.until(answers, 10, "nsd does not answer: " + self.text("nsd.err")[-300:])

    def dns_stop(self):
        """nsd forks: all of it goes."""
        for pid in [self.nsd.pid] + children(self.nsd.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.nsd.wait()

    def dns_freeze(self, stop):
        for pid in [self.nsd.pid] + children(self.nsd.pid):
            os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)

    # ------------------------------------------------------------ the element
    def element(self, sip="", peer="", more="", edit=lambda text: text):
        text = fill(f"{HERE}/conf/sbe.toml", dict(SIP=sip, PEER=peer, MORE=more))
        cfg = self.write("sbe.toml", edit(text))
        self.sbe = self.spawn("sbe", [self.binary, "run", "--config", cfg], env={"RUST_BACKTRACE": "1"})

        def ready():
            if self.sbe.poll() is not None:
                raise Failed("sbe exits at start: " + (self.text("sbe.err") + self.text("sbe.out"))[-600:])
            return "ready" in self.text("sbe.out").split()
        self.until(ready, 10, "sbe does not get ready: " + self.text("sbe.err")[-600:])

    def alive(self):
        return self.sbe is not None and self.sbe.poll() is None

    def rss(self):
        try:
            with open(f"/proc/{self.sbe.pid}/status") as f:
                return next((int(line.split()[1]) // 1024 for line in f if line.startswith("VmRSS")), 0)
        except OSError:
            return 0

    # ------------------------------------------------------------ others
    def nft(self, rules):
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    def sipp(self, name, xml, ip, port, transport="udp", target=None, rate=0, calls=0, pause=0, values=None, wait=60):
        """A SIPp: with `target` a caller (`calls` at `rate` per s), else an answerer. `pause` in ms."""
        with open(f"{HERE}/sipp/{xml}.xml") as f:
            sf = self.write(f"{name}.xml", expand(f.read(), values or {}))
        program = secure_sipp() if transport == "tls" else shutil.which("sipp")
        cmd = [program, "-sf", sf, "-i", ip, "-p", str(port), "-t", {"udp": "u1", "tcp": "t1", "tls": "l1"}[transport],
               "-nostdin", "-buff_size", "1048576", "-fd", "1", "-trace_stat", "-stf", self.path(f"{name}.csv"),
               "-trace_err", "-error_file", self.path(f"{name}.errors"), "-d", str(pause),
               "-default_behaviors", "all,-bye", "-recv_timeout", str(wait * 1000)]
        if transport == "tls":
            cmd += ["-tls_cert", self.path("sipp.pem"), "-tls_key", self.path("sipp.key"), "-tls_ca", self.path("ca.pem")]
        if target:
            cmd += ["-r", str(rate), "-m", str(calls), "-l", str(calls + 10), target]
        s = Sipp(self, name, self.spawn(name, cmd), calls, rate)
        if not target:
            def bound():
                if s.proc.poll() is not None:
                    raise Failed(f"{name} exits at start: {self.text(name + '.err')[-300:]}")
                return listening(ip, port, transport)
            self.until(bound, 5, f"{name} does not listen")
        return s

    # ------------------------------------------------------------ the end
    def finish(self, quiet=True, elsewhere=()):
        """Stops everything, checks the element's end, reads the capture and audits it. Returns the Wire."""
        if self.sbe is not None:
            if not self.alive():
                self.fail(f"sbe exited by itself with {self.sbe.returncode}")
            else:
                self.figures["rss_mb"] = self.rss()
                self.sbe.send_signal(signal.SIGTERM)
                try:
                    self.equal("exit of sbe after SIGTERM", self.sbe.wait(20), 0)
                except subprocess.TimeoutExpired:
                    self.fail("sbe does not end within 20 s of SIGTERM")
            log = self.text("sbe.err") + self.text("sbe.out")
            if "panicked at" in log:
                self.fail("panic: " + log[log.index("panicked at"):][:300])
        for p in self.procs:
            if p is not self.cap and p.poll() is None:
                p.kill()
                p.wait()
        time.sleep(0.1)
        self.cap.terminate()
        self.cap.wait(30)
        lost = self.text("capture.out").split()[-1]
        self.equal("packets lost by the capture", lost, "0")
        wire = Wire(self.path("wire.pcap"))
        found, twice = audit(wire, {CORE, PEERING}, KNOWN | set(elsewhere), quiet)
        self.fail(*found)
        if twice:
            self.figures["sent_again"] = twice
        return wire


def secure_sipp():
    """A SIPp that speaks TLS: the one that SIPP names, or the installed one. None: there is no such."""
    for program in (os.environ.get("SIPP"), shutil.which("sipp")):
        if program and "TLS" in subprocess.run([program, "-v"], capture_output=True, text=True).stdout:
            return os.path.abspath(program)
    return None


class Sipp:
    """A running SIPp and its statistics."""

    def __init__(self, world, name, proc, calls, rate):
        self.world, self.name, self.proc, self.calls, self.rate = world, name, proc, calls, rate

    def done(self, extra=60):
        """Waits until all calls have been made and are over."""
        try:
            self.proc.wait(self.calls / max(self.rate, 1) + extra)
        except subprocess.TimeoutExpired:
            self.world.fail(f"{self.name} does not come to an end")
            self.stop(2)

    def stop(self, limit=6):
        """Ends an answerer after its open calls."""
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGUSR1)
            try:
                self.proc.wait(limit)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stats(self):
        try:
            with open(self.world.path(f"{self.name}.csv")) as f:
                rows = [r for r in csv.reader(f, delimiter=";") if len(r) > 20]
        except OSError:
            rows = []
        if len(rows) < 2:
            self.world.fail(f"{self.name} left no statistics: {self.world.text(self.name + '.err')[-300:]}")
            return {}
        return dict(zip(rows[0], rows[-1]))

    def count(self, key):
        try:
            return int(self.stats().get(key, 0))
        except ValueError:
            return 0

    @property
    def created(self):
        s = self.stats()
        return int(s.get("OutgoingCall(C)", 0)) + int(s.get("IncomingCall(C)", 0))

    @property
    def ok(self):
        return self.count("SuccessfulCall(C)")

    @property
    def bad(self):
        return self.count("FailedCall(C)")

    def errors(self):
        rows = self.world.text(f"{self.name}.errors").splitlines()
        # SIPp's own way to wait for a handshake to go on.
        rows = [r for r in rows if "SSL_ERROR_WANT_READ" not in r]
        return "" if rows == ["The following events occurred:"] else "\n".join(rows).strip()

    def clean(self, calls):
        """All of `calls` succeeded and SIPp met nothing that it did not expect."""
        w = self.world
        w.equal(f"calls at {self.name}", (self.created, self.ok, self.bad), (calls, calls, 0))
        w.equal(f"retransmissions at {self.name}", self.count("Retransmissions(C)"), 0)
        w.equal(f"watchdog or unexpected messages at {self.name}", self.count("FailedUnexpectedMessage(C)"), 0)
        if self.errors():
            w.fail(f"{self.name} reports: {self.errors()[:400]}")


def children(pid):
    out = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                    out += [int(p)] + children(int(p))
        except OSError:
            pass
    return out


def listening(ip, port, transport):
    want = "%08X:%04X" % (int.from_bytes(socket.inet_aton(ip), "little"), port)
    with open(f"/proc/net/{'udp' if transport == 'udp' else 'tcp'}") as f:
        return any(line.split()[1] == want and (transport == "udp" or line.split()[3] == "0A") for line in list(f)[1:])
