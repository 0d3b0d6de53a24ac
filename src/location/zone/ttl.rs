//! Lifetimes: SRV about an hour, NAPTR about a day, one TTL for a set.

use std::time::Duration;

use super::super::question::{Question, RecordKind};
use super::Findings;
use super::facts::{Facts, Seen};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// What a lifetime is to be like, in seconds.
struct Usual {
    text: &'static str,
    /// Within these: as recommended.
    good: (u64, u64),
    /// Outside of these: far off.
    far: (u64, u64),
}

/// Recommended: SRV about one hour, so that a change of servers is known soon and yet not each call asks.
const SRV: Usual = Usual { text: "about 1h", good: (20 * MINUTE, 3 * HOUR), far: (MINUTE, DAY) };

/// Recommended: NAPTR about one day, as the services seldom change.
const NAPTR: Usual = Usual { text: "about 1d", good: (8 * HOUR, 3 * DAY), far: (HOUR, 7 * DAY) };

pub(super) fn judge(facts: &Facts, out: &mut Findings) {
    let mut through_cache = false;
    let mut srv: Vec<(String, u64)> = Vec::new();
    for (question, _) in facts.answers() {
        let Some(fact) = facts.fact(&question.name, question.kind) else { continue };
        let Seen::Records { ttl, uneven, .. } = &fact.seen else { continue };
        if *uneven {
            out.warning(
                "ttl_uneven",
                question.to_string(),
                "the records of this set have different TTLs",
                "a set has one TTL; caches take the least for all, or drop the set (RFC 2181 section 5.2)",
                "give all records of the set the same TTL",
            );
        }
        through_cache |= !fact.authoritative;
        if question.kind == RecordKind::Srv && fact.authoritative {
            srv.push((question.name.to_string(), ttl.as_secs()));
        }
        one(question, *ttl, fact.authoritative, out);
    }
    if let Some((first, ttl)) = srv.first()
        && let Some((other, differs)) = srv.iter().find(|(_, t)| t != ttl)
    {
        out.info(
            "ttl_differ",
            format!("{first}. SRV, {other}. SRV"),
            format!("TTLs of {} and {}", shown(*ttl), shown(*differs)),
            "a client that has the one and not the other asks again at different times, and may hold an old set \
             beside a new one (RFC 1034 section 3.6)",
            "give the SRV records of all services the same TTL, about 1h",
        );
    }
    if through_cache {
        out.info(
            "ttl_from_cache",
            format!("{}.", facts.domain()),
            "the answers came through a cache: TTLs are what is left of them, and only judged if too long",
            "a cache counts the TTL down (RFC 1034 section 4.3.4)",
            "ask a name server of the zone itself: --server",
        );
    }
}

fn one(question: &Question, ttl: Duration, authoritative: bool, out: &mut Findings) {
    let ttl = ttl.as_secs();
    let about = || question.to_string();
    if ttl == 0 && authoritative {
        out.warning(
            "ttl_zero",
            about(),
            "the TTL is 0",
            "every call asks the name servers anew and waits for them; when they fail, so do the calls (RFC 1035 \
             section 3.2.1)",
            "give it a TTL: NAPTR 1d, SRV and addresses 1h",
        );
        return;
    }
    let (usual, kind) = match question.kind {
        RecordKind::Srv => (SRV, "SRV"),
        RecordKind::Naptr => (NAPTR, "NAPTR"),
        RecordKind::A | RecordKind::Aaaa => {
            if ttl > 2 * DAY {
                out.info(
                    "ttl_long",
                    about(),
                    format!("the TTL is {}", shown(ttl)),
                    "a server that moves is called at its old address for so long (RFC 1035 section 3.2.1)",
                    "give addresses of servers a TTL of about 1h",
                );
            }
            return;
        }
    };
    let short = authoritative && ttl < usual.good.0;
    if !short && ttl <= usual.good.1 {
        return;
    }
    let far = (short && ttl < usual.far.0) || ttl > usual.far.1;
    let what = format!("the TTL is {}; recommended for {kind} is {}", shown(ttl), usual.text);
    let remedy = format!("give it a TTL of {}", usual.text);
    let (code, why) = if short {
        (
            "ttl_short",
            "clients ask often, calls wait for it, and an outage of the name servers is felt at once (RFC 1035 \
             section 3.2.1)",
        )
    } else {
        ("ttl_long", "a change is not known to all before that time has passed (RFC 1035 section 3.2.1)")
    };
    if far {
        out.warning(code, about(), what, why, remedy);
    } else {
        out.info(code, about(), what, why, remedy);
    }
}

fn shown(seconds: u64) -> String {
    for (unit, name) in [(DAY, "d"), (HOUR, "h"), (MINUTE, "m")] {
        if seconds >= unit && seconds.is_multiple_of(unit) {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}
