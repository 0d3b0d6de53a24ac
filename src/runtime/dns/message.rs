//! What one DNS message says to one question: records, nothing, or a name to go on with. No I/O.

use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::MAX_ALIASES;
use super::upstream::Failure;

/// What a message says.
#[derive(Debug)]
pub(super) enum Said<'m> {
    /// The records asked for; the least TTL of them and of the aliases that led to them (RFC 2181 §5.2, §10.1).
    Records(Vec<&'m Record>, Duration),
    /// The name, or the one its aliases lead to, does not exist (RFC 2308 §2.1). For how long: `None` without SOA.
    NxDomain(Option<Duration>),
    /// It exists without such records (RFC 2308 §2.2).
    NoData(Option<Duration>),
    /// The aliases lead here, and the message says nothing of it.
    GoOn {
        /// The name to be asked next.
        name: Name,
        /// Least TTL of the aliases.
        ttl: Duration,
        /// Number of aliases followed so far.
        aliases: usize,
    },
    /// Nothing of use.
    Failure(Failure),
}

/// TTL of a record; one with the highest bit set counts as zero (RFC 2181 §8).
pub(super) fn ttl(record: &Record) -> Duration {
    Duration::from_secs(if record.ttl > 0x7fff_ffff { 0 } else { record.ttl.into() })
}

/// Reads `message` as the answer to (`name`, `kind`). The order of its records means nothing (RFC 1034 §3.6.2).
/// `so_far`: the TTL of, and number of, aliases that led to `name`.
pub(super) fn read<'m>(
    message: &'m Message,
    name: &Name,
    kind: RecordType,
    so_far: (Duration, usize),
) -> Said<'m> {
    let (mut least, mut aliases) = so_far;
    let mut owner = name;
    let mut answers: Vec<&Record> = Vec::new();
    loop {
        answers.extend(owned(&message.answers, owner).filter(|r| r.record_type() == kind));
        if !answers.is_empty() {
            break;
        }
        let alias = owned(&message.answers, owner).find_map(|r| match &r.data {
            RData::CNAME(target) => Some((r, &target.0)),
            _ => None,
        });
        let Some((record, target)) = alias else { break };
        aliases += 1;
        if aliases > MAX_ALIASES {
            return Said::Failure(Failure::Aliases);
        }
        least = least.min(ttl(record));
        owner = target;
    }
    if !answers.is_empty() {
        let least = answers.iter().map(|r| ttl(r)).fold(least, Duration::min);
        return Said::Records(answers, least);
    }
    let negative = soa(message).map(|soa| soa.min(least));
    if message.metadata.response_code == ResponseCode::NXDomain {
        return Said::NxDomain(negative);
    }
    // A referral is no answer: a server without recursion, or a broken one (RFC 2308 §2.2: NS without SOA).
    let referral =
        message.authorities.iter().any(|r| r.record_type() == RecordType::NS) && negative.is_none();
    if owner != name && negative.is_none() {
        return Said::GoOn { name: owner.clone(), ttl: least, aliases };
    }
    if referral && !message.metadata.authoritative && !message.metadata.recursion_available {
        return Said::Failure(Failure::Other);
    }
    Said::NoData(negative)
}

/// The names that the aliases of a message lead to from `name`, in order; a circle is gone through once.
pub(super) fn aliases<'m>(message: &'m Message, name: &'m Name) -> impl Iterator<Item = &'m Name> {
    let next = |owner: &Name| {
        owned(&message.answers, owner).find_map(|r| match &r.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        })
    };
    std::iter::successors(next(name), move |owner| next(owner)).take(MAX_ALIASES + 1)
}

/// Records of class IN with this owner, whatever its case.
pub(super) fn owned<'m, 'n>(
    section: &'m [Record],
    owner: &'n Name,
) -> impl Iterator<Item = &'m Record> + use<'m, 'n> {
    section.iter().filter(move |r| r.dns_class == DNSClass::IN && r.name == *owner)
}

/// How long a negative answer holds: the lesser of the SOA's TTL and its MINIMUM (RFC 2308 §5).
fn soa(message: &Message) -> Option<Duration> {
    message.authorities.iter().find_map(|r| match &r.data {
        RData::SOA(soa) => Some(ttl(r).min(Duration::from_secs(soa.minimum.into()))),
        _ => None,
    })
}
