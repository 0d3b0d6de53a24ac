"""ALTO servers behind nginx and lighttpd: who they are, and who we say that we are (RFC 7285 §8.3.5)."""
import base64
import json
import shutil
import subprocess
import sys
import urllib.request

from secure import authority, certificate
from wire import packets
from world import CORE, HERE, ONE, PEERING, TWO, UAC, Failed, fill, listening

BACK = ("127.0.0.6", 8190)
ADMIN = "http://127.0.0.1:9060"
BASIC = "Basic " + base64.b64encode(b"sbe:pass word").decode()


def ask(path, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(ADMIN + path, method=method), timeout=5) as answer:
        return json.load(answer)


def setup(w):
    hosts = w.write("hosts", "127.0.0.1 localhost\n127.0.0.5 alto.test wrong.test other.test\n127.0.0.6 back.test\n")
    subprocess.check_call(["mount", "--bind", hosts, "/etc/hosts"])
    authority(w)
    authority(w, "other")
    certificate(w, "alto", ["alto.test", "other.test"])
    certificate(w, "unknown", ["alto.test"], "other")
    certificate(w, "client", ["sbe.test"])
    w.write("password", "pass word\n")
    w.write("wrong", "password\n")
    w.write("token", "tok-en.1\n")
    w.write("users", "sbe:pass word\n")
    hashed = subprocess.run(["openssl", "passwd", "-apr1", "pass word"], capture_output=True, text=True, check=True).stdout
    w.write("htpasswd", f"sbe:{hashed}")
    w.spawn("back", [sys.executable, f"{HERE}/lib/alto_server.py", *map(str, BACK)])
    for name, cmd in (("nginx", ["-p", w.dir, "-c"]), ("lighttpd", ["-D", "-f"])):
        conf = w.write(f"{name}.conf", fill(f"{HERE}/conf/{name}.conf", dict(DIR=w.dir)))
        w.spawn(name, [shutil.which(name) or f"/usr/sbin/{name}", *cmd, conf])
    for ip, port in (BACK, ("127.0.0.5", 8441), ("127.0.0.5", 8480), ("127.0.0.5", 8481), ("127.0.0.5", 8482)):
        w.until(lambda: listening(ip, port, "tcp"), 10, f"nobody listens at {ip}:{port}: "
                + w.text("nginx.err")[-300:] + w.text("lighttpd.err")[-300:] + w.text("lighttpd.log")[-300:])


def seen(w):
    """What has come through to the ALTO server."""
    return [json.loads(line) for line in w.text("back.out").splitlines()]


def configure(w, directory, more):
    text = (f'[alto]\ndirectory = "{directory}"\nsource = "{PEERING}"\nrefresh = "1s"\nhold_down = "0s"\n'
            f'trust = ["{w.dir}/ca.pem"]\n{more}\n')
    return fill(f"{HERE}/conf/sbe.toml", dict(SIP="", PEER="", MORE=text))


def alto_auth(w):
    """TLS with name check, client certificate, Basic, bearer and Digest, at nginx and lighttpd."""
    setup(w)
    w.dns()
    password = f'_user = "sbe"\n@_password_file = "{w.dir}/password"'
    basic, digest = ("@" + password).replace("@", "basic"), ("@" + password).replace("@", "digest")
    bad = ("@" + password).replace("@", "digest").replace(f"{w.dir}/password", f"{w.dir}/wrong")
    token = f'token_file = "{w.dir}/token"'
    mutual = f'certificate = "{w.dir}/client.pem"\nkey = "{w.dir}/client.key"'
    # Name, directory, what is added, words of the error; None: costs come.
    cases = [
        ("name", "https://alto.test:8441/d1", "", None),
        ("wrong-name", "https://wrong.test:8441/d2", "", "not valid for name"),
        ("unknown-authority", "https://alto.test:8442/d3", "", "UnknownIssuer"),
        ("client-certificate", "https://alto.test:8443/d4", mutual, None),
        ("no-client-certificate", "https://alto.test:8443/d5", "", "HTTP 400"),
        ("basic", "https://alto.test:8444/d6", basic, None),
        ("basic-wrong", "https://alto.test:8444/d7", basic.replace(f"{w.dir}/password", f"{w.dir}/wrong"), "HTTP 401"),
        ("bearer", "https://alto.test:8445/d8", token, None),
        ("no-bearer", "https://alto.test:8445/d9", "", "HTTP 401"),
        ("digest-sha256", "http://alto.test:8480/d10", digest, None),
        ("digest-md5", "http://alto.test:8481/d11", digest, None),
        ("digest-over-tls", "https://alto.test:8482/d12", digest, None),
        ("digest-wrong", "http://alto.test:8480/d13", bad, "HTTP 401"),
        ("digest-where-basic-is-wanted", "https://alto.test:8444/d14", digest, "HTTP 401, Basic instead of Digest"),
        ("to-http", "https://alto.test:8446/d15", basic, "from https to http"),
        ("elsewhere", "https://alto.test:8447/d16", basic + '\nredirect_allow = ["other.test"]', None),
    ]
    cfg = None
    for name, directory, more, wrong in cases:
        text = configure(w, directory, more)
        if cfg is None:
            cfg = w.write("sbe.toml", text)
            w.sbe = w.spawn("sbe", [w.binary, "run", "--config", cfg], env={"RUST_BACKTRACE": "1"})
            w.until(lambda: "ready" in w.text("sbe.out").split(), 10, "sbe does not get ready: " + w.text("sbe.err")[-600:])
        else:
            w.write("sbe.toml", text)
            ask("/api/v1/reload", "POST")
        ask("/api/v1/resolve?uri=sip:eq.peer.test")
        state = {}

        def settled():
            state.update(ask("/api/v1/alto"))
            error = (state["servers"][0]["last_error"] or {}).get("error", "")
            return state["count"] == 2 if wrong is None else wrong in error
        try:
            w.until(settled, 15, f"{name}: never {wrong or 'costs'}")
        except Failed as e:
            raise Failed(f"{e}: {json.dumps(state)[:900]}") from None
        w.equal(f"costs, {name}", state["count"], 0 if wrong else 2)
        path = directory.rsplit("/", 1)[1]
        came = [r for r in seen(w) if r["path"].split("/")[1] == path]
        w.figures[name] = len(came)
        # Neither did a refused one get through, nor did a served one get its costs from anywhere else.
        w.equal(f"methods that came through, {name}", {r["method"] for r in came}, set() if wrong else {"GET", "POST"})
        if name == "client-certificate":
            w.expect(all("CN=client" in r["client"] for r in came), f"certificates shown: {came[:2]}")
        if name == "basic":
            w.expect(all(r["authorization"] == BASIC for r in came), f"{name}: {came[:2]}")
        if name == "bearer":
            w.expect(all(r["authorization"] == "Bearer tok-en.1" for r in came), f"{name}: {came[:2]}")
        if name == "elsewhere":
            w.expect(all(r["authorization"] == "" for r in came), f"the password went to another origin: {came[:2]}")
        if name in ("digest-wrong", "basic-wrong", "digest-where-basic-is-wanted"):
            w.expect(state["requests"]["client_error"] < 12, f"{name}: a storm: {state['requests']}")
    # Without TLS, the configuration is refused.
    for name, more in (("basic", basic), ("bearer", token)):
        at = w.write("plain.toml", configure(w, "http://alto.test:8480/d", more))
        r = subprocess.run([w.binary, "check", "--config", at], capture_output=True, text=True)
        w.expect(r.returncode != 0 and "credentials are not sent without TLS" in r.stdout + r.stderr, f"{name} without TLS: {r}")
    # And calls go by those costs.
    n = 50
    one = w.sipp("one", "uas", ONE, 5080, pause=50)
    two = w.sipp("two", "uas", TWO, 5080, pause=50)
    uac = w.sipp("uac", "uac", UAC, 5070, "udp", f"{CORE}:5060", 50, n, 200, dict(DOMAIN="eq.peer.test"))
    uac.done()
    for s in (one, two):
        s.stop()
    uac.clean(n)
    w.equal("calls at the dear and at the cheap one", (one.created, two.created), (0, n))
    w.finish()
    # The secrets have gone through TLS only, or not at all: towards the servers that keep the doors they are never read.
    secrets = [b"pass word", BASIC.split()[1].encode(), b"tok-en.1"]
    towards = [frame for _, frame in packets(w.path("wire.pcap")) if frame[30:34] == bytes((127, 0, 0, 5))]
    w.figures["packets_to_servers"] = len(towards)
    w.equal("packets in which a secret can be read", sum(any(s in frame for s in secrets) for frame in towards), 0)
    w.expect(any(b"Authorization: Digest" in f or b"authorization: Digest" in f for f in towards), "the capture saw no Digest")
