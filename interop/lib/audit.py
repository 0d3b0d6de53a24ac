"""Checks that hold in every scenario, whatever it is about. They read only the capture."""
from collections import Counter, defaultdict


def audit(wire, sbe, known, quiet=True):
    """Findings (strings) in `wire` about an element at the addresses `sbe`. `known`: addresses of the others.
    `quiet`: nothing was lost on purpose, so nobody may have sent anything twice (2xx and their ACKs included)."""
    found = []
    dest, seen, finals = {}, Counter(), defaultdict(set)
    acked, answered, twice = set(), {}, Counter()
    inv_from, inv_to = {}, {}
    for m in wire.messages:
        out, into = m.src_ip in sbe, m.dst_ip in sbe
        if not out and not into:
            continue
        if out and m.dst_ip not in known and m.dst_ip not in sbe:
            found.append(f"the element wrote to a stranger: {m!r}")
        if not m.call_id:
            continue
        key = (m.src, m.dst, m.raw)
        seen[key] += 1
        if seen[key] == 2 and m.proto == "udp":
            twice[("element" if out else m.src_ip, m.start[:30].split(" sip:")[0])] += 1
        elif m.proto == "tcp" and seen[key] == 2 and m.method != "ACK":
            found.append(f"sent twice over TCP: {m!r}")
        if out and not m.code and m.method not in ("ACK", "CANCEL"):
            # A retransmission goes where the request went; a failover has a branch of its own.
            if dest.setdefault((m.branch, m.method), m.dst) != m.dst:
                found.append(f"one branch went to two places: {m!r}, before to {dest[m.branch, m.method]}")
        if out and not m.code and m.method in ("ACK", "CANCEL") and (m.branch, "INVITE") in dest:
            if dest[m.branch, "INVITE"] != m.dst:
                found.append(f"{m.method} went elsewhere than its INVITE: {m!r}")
            if m.method == "ACK":
                acked.add(m.branch)
        if m.method == "INVITE":
            if out and not m.code:
                inv_to.setdefault(m.branch, m)
            if into and not m.code:
                inv_from.setdefault((m.branch, m.cseq), m)
            if into and m.code >= 300:
                answered.setdefault(m.branch, m)
            if out and m.code >= 200:
                finals[m.branch, m.cseq].add((m.code, m.tag))
    for branch, m in answered.items():
        if branch in inv_to and branch not in acked:
            found.append(f"no ACK for {m!r}")
    for key, fs in finals.items():
        bad = [c for c, _ in fs if c >= 300]
        if len(bad) > 1 or (bad and len(fs) > 1):
            found.append(f"more than one final response: {sorted(fs)} for {inv_from.get(key)!r}")
        if key not in inv_from:
            found.append(f"final response to nothing: {key}")
    for key, m in inv_from.items():
        if key not in finals and quiet:
            found.append(f"no final response for {m!r}")
    if quiet and twice:
        found += [f"{n} retransmissions by {who}: {what}" for (who, what), n in twice.items()]
    return shorten(found), {f"{who} {what}": n for (who, what), n in twice.items()}


def shorten(found, keep=5):
    """The first few of many findings."""
    return found if len(found) <= keep else found[:keep] + [f"and {len(found) - keep} more"]
