"""TLS with other people's programs. The capture cannot see inside, so the counts of both ends and of the element tell."""
import asyncio
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

from agent import Agent, Identity, paced
from programs import end_kamailio, through_kamailio
from world import (BEHIND, BEHIND_UAC, CORE, CORE_UAS, HERE, KAMAILIO, ONE, PEER_UAC, PEERING, TWO, UAC, Failed, LeftOut,
                   fill, secure_sipp)

NAME = "sbe.test"
LISTEN = f"""
[[listen]]
transport = "tls"
bind = "{PEERING}:5061"
realm = "peering"

[tls]
certificate = "@DIR@/sbe.pem"
key = "@DIR@/sbe.key"
trust = ["@DIR@/ca.pem"]
client_certificates = "require"
"""
NAMES = 'tls_names = ["peer.test", "kamtls.peer.test", "tls.peer.test", "ossl.peer.test", "home.peer.test"]'


def openssl(w, *args):
    subprocess.run(["openssl", *args], cwd=w.dir, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=open(w.path("openssl.err"), "ab"))


def authority(w, name="ca"):
    openssl(w, "req", "-x509", *EC, "-days", "2", "-subj", f"/CN=interop {name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def certificate(w, file, names, ca="ca", at=None):
    """`file`.pem and .key with these DNS names."""
    at = at or file
    san = ",".join(f"DNS:{n}" for n in names)
    w.write(f"{at}.ext", f"basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={san}\n")
    openssl(w, "req", *EC, "-subj", f"/CN={file}", "-keyout", f"{at}.key", "-out", f"{at}.csr")
    openssl(w, "x509", "-req", "-in", f"{at}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2",
            "-extfile", f"{at}.ext", "-out", f"{at}.pem")


EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def setup(w, peer=NAMES, **element):
    """Certificates, the DNS, and the element with a TLS listener for peers. All ask that DNS: Kamailio must find the
    element by our Record-Route."""
    resolver = w.write("resolv.conf", "nameserver 127.0.0.1\n")
    subprocess.check_call(["mount", "--bind", resolver, "/etc/resolv.conf"])
    authority(w)
    certificate(w, "sbe", [NAME])
    w.dns()
    w.element(peer=peer, more=LISTEN.replace("@DIR@", w.dir), **element)


def metric(name, *labels):
    """The sum of a metric's values whose labels hold all of these texts."""
    with urllib.request.urlopen("http://127.0.0.1:9060/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    at = [line.rsplit(" ", 1) for line in lines if line.startswith(name) and line[len(name):len(name) + 1] in "{ "]
    return sum(float(value) for key, value in at if all(part in key for part in labels))


def handshakes():
    return [int(metric("sbe_tls_handshakes_total", f'direction="{d}"')) for d in ("in", "out")]


def tls_kamailio(w):
    """Kamailio as the peer's border proxy over TLS, certificates on both sides: both directions, one connection."""
    setup(w)
    n = 200
    certificate(w, "kamailio", ["kamtls.peer.test"])
    w.write("kamailio-tls.cfg", fill(f"{HERE}/conf/kamailio-tls.cfg", dict(DIR=w.dir)))
    proxy = through_kamailio(w, "tls", "kamtls", n, 50)
    made, used = handshakes()
    w.figures.update(calls=2 * n + 100, handshakes_in=made, handshakes_out=used)
    w.equal("failed handshakes", metric("sbe_dropped_total", "tls_handshake"), 0)
    # Kamailio takes our alias, and uses our connection for its own calls if that was there first.
    w.expect(used == 1 and made <= 4, f"{made} connections from Kamailio and {used} to it")
    end_kamailio(w, "tls", proxy)
    wire = w.finish(elsewhere={BEHIND, BEHIND_UAC})
    plain = [m for m in wire.messages if {m.src_ip, m.dst_ip} == {PEERING, KAMAILIO}]
    w.equal("messages between the element and Kamailio that others could read", len(plain), 0)


def tls_sipp(w):
    """SIPp's TLS at either end: 1,000 calls to it and 1,000 from it, certificates on both sides."""
    if not secure_sipp():
        raise LeftOut("no SIPp with TLS: name one in SIPP, see interop/README.md")
    setup(w)
    n = 1000
    certificate(w, "sipp", ["tls.peer.test", "peer.test"])
    uas = w.sipp("uas", "uas", ONE, 5081, "tls", pause=50)
    out = w.sipp("out", "uac", UAC, 5070, "udp", f"{CORE}:5060", 100, n, 200, dict(DOMAIN="tls.peer.test"))
    core = w.sipp("core", "uas", CORE_UAS, 5080, pause=50)
    into = w.sipp("in", "uac", PEER_UAC, 5070, "tls", f"{PEERING}:5061", 100, n, 200, dict(DOMAIN="core.test"))
    for s in (out, into):
        s.done()
    for s in (uas, core):
        s.stop()
    for s in (out, uas, into, core):
        s.clean(n)
    w.figures.update(calls=2 * n)
    w.figures["handshakes_in"], w.figures["handshakes_out"] = handshakes()
    w.equal("failed handshakes", metric("sbe_dropped_total", "tls_handshake"), 0)
    w.finish()


# ---------------------------------------------------------------- openssl
def tls_openssl(w):
    """openssl s_client and s_server with TLS 1.2 and 1.3: served, refused without a certificate, with a strange one."""
    setup(w)
    certificate(w, "peer", ["ossl.peer.test"])
    certificate(w, "stranger", ["stranger.test"])
    authority(w, "other")
    certificate(w, "unknown", ["ossl.peer.test"], "other")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as core:
        core.bind((UAC, 5070))
        core.settimeout(5)
        for version in ("tls1_2", "tls1_3"):
            for who, want in (("peer", "SIP/2.0 200"), ("stranger", "SIP/2.0 403"), ("unknown", ""), (None, "")):
                got = s_client(w, version, who)
                w.expect(got.startswith(want) if want else "SIP/2.0" not in got, f"{version}, certificate {who}: {got[:200]!r}")
            s_server(w, version, core, "peer", 200)
            # It has a certificate, but not that of the domain that was called.
            s_server(w, version, core, "stranger", 0)
    log = w.text("sbe.err")
    told = [line for line in log.splitlines() if "TLS handshake failed" in line]
    w.figures.update(refused=int(metric("sbe_dropped_total", "tls_handshake")), told=len(told))
    w.equal("failed handshakes", metric("sbe_dropped_total", "tls_handshake"), 6)
    w.equal("log lines about them: one for each address and cause", len(told), 3)
    w.equal("those that name the peer", sum("peer=peer" in line for line in told), 3)
    w.finish()


def s_client(w, version, who):
    cmd = ["openssl", "s_client", "-connect", f"{PEERING}:5061", "-bind", f"{PEER_UAC}:0", f"-{version}", "-CAfile", "ca.pem",
           "-servername", NAME, "-verify_hostname", NAME, "-verify_return_error", "-quiet"]
    if who:
        cmd += ["-cert", f"{who}.pem", "-key", f"{who}.key"]
    text = (f"OPTIONS sip:{NAME} SIP/2.0\r\nVia: SIP/2.0/TLS ossl.peer.test;branch=z9hG4bK-{version}{who}\r\n"
            f"From: <sip:a@ossl.peer.test>;tag=1\r\nTo: <sip:{NAME}>\r\nCall-ID: client-{version}-{who}\r\nCSeq: 1 OPTIONS\r\n"
            "Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n")
    name = f"client-{version}-{who}"
    p = w.spawn(name, cmd, stdin=subprocess.PIPE)
    try:
        p.stdin.write(text.encode())
        p.stdin.flush()
    except BrokenPipeError:
        pass
    end = time.monotonic() + 5
    while "\r\n\r\n" not in w.text(f"{name}.out").replace("\n", "\r\n") and p.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    p.kill()
    p.wait()
    return w.text(f"{name}.out")


def s_server(w, version, core, who, want):
    """The core asks something of a domain whose server s_server is; `want` 0: it is told that there is none."""
    name = f"server-{version}-{who}"
    p = w.spawn(name, ["openssl", "s_server", "-accept", f"{ONE}:5082", f"-{version}", "-cert", f"{who}.pem", "-key", f"{who}.key",
                       "-CAfile", "ca.pem", "-Verify", "1", "-verify_return_error", "-quiet"], stdin=subprocess.PIPE)
    w.until(lambda: tcp_open(ONE, 5082), 5, "s_server does not listen: " + w.text(f"{name}.err")[-300:])
    call = f"server-{version}-{who}"
    core.sendto((f"OPTIONS sip:bob@ossl.peer.test SIP/2.0\r\nVia: SIP/2.0/UDP {UAC}:5070;branch=z9hG4bK-{call}\r\n"
                 f"From: <sip:a@core.test>;tag=1\r\nTo: <sip:bob@ossl.peer.test>\r\nCall-ID: {call}\r\nCSeq: 1 OPTIONS\r\n"
                 "Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n").encode(), (CORE, 5060))
    if want:
        w.until(lambda: f"Call-ID: {call}" in w.text(f"{name}.out"), 5, f"nothing came to {name}: {w.text('sbe.err')[-300:]}")
        w.until(lambda: "Content-Length: 0" in w.text(f"{name}.out"), 5, f"half a message came to {name}")
        text = w.text(f"{name}.out")
        rows = [r.strip("\r") for r in text[text.index("OPTIONS"):].splitlines()]
        keep = [r for r in rows if r.split(":")[0] in ("Via", "From", "To", "Call-ID", "CSeq")]
        answer = ["SIP/2.0 200 OK"] + [r + ";tag=2" if r.startswith("To:") else r for r in keep] + ["Content-Length: 0", "", ""]
        p.stdin.write("\r\n".join(answer).encode())
        p.stdin.flush()
        w.expect(any(";alias" in r for r in rows), f"no alias in what came to {name}")
    code = final(core, call)
    w.expect(code == want if want else code >= 400, f"{name}: the core got {code}")
    w.expect(want or call not in w.text(f"{name}.out"), f"{name} got what was not for it")
    p.kill()
    p.wait()


def final(core, call):
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            text = core.recv(65536).decode()
        except socket.timeout:
            break
        if f"Call-ID: {call}\r\n" in text and not text.startswith("SIP/2.0 1"):
            return int(text.split()[1])
    raise Failed(f"no answer to {call}")


def tcp_open(ip, port):
    want = "%08X:%04X" % (int.from_bytes(socket.inet_aton(ip), "little"), port)
    with open("/proc/net/tcp") as f:
        return any(line.split()[1] == want and line.split()[3] == "0A" for line in list(f)[1:])


# ---------------------------------------------------------------- the way back
def tls_way_back(w):
    """500 calls at 50/s whose connection is cut between request and response: all responses come by the sent-by's SRV."""
    setup(w)
    n, rate = 500, 50
    certificate(w, "peer", ["home.peer.test"])
    uas = w.sipp("uas", "uas-slow", CORE_UAS, 5080, pause=150)
    agent = Agent(Identity(w.path("peer.pem"), w.path("peer.key"), w.path("ca.pem")), PEER_UAC, "home.peer.test")

    async def call(i):
        name = f"cut-{i}"
        conn = await agent.connect((PEERING, 5061), NAME)
        conn.send(agent.invite(name, "sip:bob@core.test"))
        await agent.expect(name, "INVITE", 100)
        conn.cut(reset=i % 2 == 0)
        ok = await agent.expect(name, "INVITE", 200)
        conn = await agent.connect((PEERING, 5061), NAME)
        conn.send(agent.in_dialog("ACK", 1, ok) + agent.in_dialog("BYE", 2, ok))
        await conn.writer.drain()
        conn.cut()
        await agent.expect(name, "BYE", 200)

    async def run():
        await agent.listen(TWO, 5091)
        return await paced(rate, n, call)

    for problem in asyncio.run(run())[:5]:
        w.fail("a call failed: " + problem)
    uas.stop()
    uas.clean(n)
    w.equal("200s to INVITEs, those by SRV", (agent.count("INVITE", 200), agent.count("INVITE", 200, True)), (n, n))
    w.equal("180s to INVITEs, those by SRV", (agent.count("INVITE", 180), agent.count("INVITE", 180, True)), (n, n))
    w.equal("200s to BYEs", agent.count("BYE", 200), n)
    w.expect(agent.count("BYE", 200, True) > n / 2, "the BYEs' connections were not cut in time")
    w.equal("responses given up", metric("sbe_dropped_total", "response_undeliverable"), 0)
    w.figures.update(calls=n, ok=agent.count("INVITE", 200), by_srv=agent.count("INVITE", 200, True),
                     ringing_by_srv=agent.count("INVITE", 180, True), bye_by_srv=agent.count("BYE", 200, True))
    w.finish()


# ---------------------------------------------------------------- new certificates
def tls_renew(w):
    """2,000 calls over TLS at 200/s, the certificate replaced on disk and SIGHUP twice meanwhile: no call fails."""
    setup(w)
    n, rate = 2000, 200
    certificate(w, "peer", ["home.peer.test", "tls.peer.test"])
    for k in (1, 2):
        certificate(w, "sbe", [NAME], at=f"new{k}")
    uas = w.sipp("uas", "uas", CORE_UAS, 5080, pause=50)
    identity = Identity(w.path("peer.pem"), w.path("peer.key"), w.path("ca.pem"))
    agent = Agent(identity, PEER_UAC, "home.peer.test")
    shown, old = [], []

    async def call(i):
        # Four connections stay from the beginning to the end; every other call comes by one of its own.
        conn = old[i // 2 % 4] if i % 2 else await agent.connect((PEERING, 5061), NAME)
        if not i % 2:
            shown.append((time.monotonic(), conn.certificate()))
        name = f"renew-{i}"
        conn.send(agent.invite(name, "sip:bob@core.test"))
        ok = await agent.expect(name, "INVITE", 200)
        conn.send(agent.in_dialog("ACK", 1, ok))
        await asyncio.sleep(0.2)
        conn.send(agent.in_dialog("BYE", 2, ok))
        await agent.expect(name, "BYE", 200)
        if not i % 2:
            conn.close()

    async def renew():
        changes = []
        for k in (1, 2):
            await asyncio.sleep(3)
            for end in ("key", "pem"):
                os.replace(w.path(f"new{k}.{end}"), w.path(f"sbe.{end}"))
            with open(w.path("sbe.pem")) as f:
                der = ssl.PEM_cert_to_DER_cert(f.read())
            before = metric("sbe_reloads_total", "ok")
            w.sbe.send_signal(signal.SIGHUP)
            begun = time.monotonic()
            while await asyncio.to_thread(metric, "sbe_reloads_total", "ok") == before:
                if time.monotonic() > begun + 5:
                    raise Failed("no reload: " + w.text("sbe.err")[-300:])
                await asyncio.sleep(0.02)
            changes.append((time.monotonic(), der))
        return changes

    async def run():
        for _ in range(4):
            old.append(await agent.connect((PEERING, 5061), NAME))
        first = old[0].certificate()
        changing = asyncio.ensure_future(renew())
        problems = await paced(rate, n, call)
        return first, await changing, problems

    first, changes, problems = asyncio.run(run())
    for problem in problems[:5]:
        w.fail("a call failed: " + problem)
    uas.stop()
    uas.clean(n)
    w.equal("200s to INVITEs and BYEs", (agent.count("INVITE", 200), agent.count("BYE", 200)), (n, n))
    bounds = [(0, first), *changes]
    for k, (since, der) in enumerate(bounds):
        until = bounds[k + 1][0] - 0.5 if k + 1 < len(bounds) else time.monotonic()
        met = {got == der for at, got in shown if since <= at < until}
        w.equal(f"new connections of phase {k} that show certificate {k}", met, {True})
    w.equal("failed handshakes", metric("sbe_dropped_total", "tls_handshake"), 0)
    w.figures.update(calls=n, new_connections=len(shown), certificates=len({der for _, der in shown}))
    w.finish()
