//! The decision record: why a request went where it went.
//!
//! One per request outside a dialog, kept in a bounded ring of each shard. What was located is shared; of the
//! request's octets the few that are shown are copied, so that the rest is let go of with the final response.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use crate::flow::{PeerId, TlsIdentity, Transport};
use crate::location::{Instance, Located, PickReason, Standing};
use crate::peering::Party;

/// How a target was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing was chosen: the request was refused before.
    Refused,
    /// The peer that owns the target's domain.
    PeerDomain,
    /// An own domain: the core's next hops.
    CoreNextHops,
    /// A `[[route]]` by number.
    Number,
    /// The route set of a dialog.
    RouteSet,
    /// Open federation.
    Federation,
    /// Answered by this element itself.
    Local,
}

impl Rule {
    /// A fixed word for the API.
    pub const fn label(self) -> &'static str {
        match self {
            Rule::Refused => "refused",
            Rule::PeerDomain => "peer_domain",
            Rule::CoreNextHops => "core_next_hops",
            Rule::Number => "number_route",
            Rule::RouteSet => "route_set",
            Rule::Federation => "federation",
            Rule::Local => "local",
        }
    }
}

/// One attempt at an instance.
#[derive(Clone, Debug)]
pub struct AttemptRecord {
    /// Where it went.
    pub instance: Instance,
    /// Its leg (index into [`Record::legs`]), tier and server there.
    pub place: (u8, u16, u16),
    /// Standing of the instance when it was picked.
    pub standing: Standing,
    /// Why it was picked.
    pub reason: PickReason,
    /// Random part of its branch.
    pub branch: u64,
    /// When it was sent.
    pub started: Instant,
    /// First response of any kind.
    pub first_response: Option<Instant>,
    /// First response other than 100 (Trying): what ends the caller's silence.
    pub rang: Option<Instant>,
    /// When its outcome was known.
    pub ended: Option<Instant>,
    /// `pending`, a status code's class word, or a failure's label.
    pub outcome: &'static str,
    /// Final status, where there was one.
    pub status: u16,
}

/// One party that was to be reached, and what was found.
#[derive(Clone, Debug)]
pub struct LegRecord {
    /// The Request-URI that is sent there, where that is not the one received; a very long one is cut off.
    pub uri: Option<Box<[u8]>>,
    /// Whom.
    pub party: Party,
    /// What the location gave; `None`: not asked, or not answered.
    pub located: Option<Arc<Located>>,
    /// When it was asked and when answered.
    pub asked: Option<Instant>,
    /// See above.
    pub answered: Option<Instant>,
    /// How those instances stood then that were not simply up; the first [`MAX_STANDINGS`] of them.
    pub standings: Box<[(Instance, Standing)]>,
}

/// Instances looked at for [`LegRecord::standings`].
pub const MAX_STANDINGS: usize = 64;

/// Octets that [`Words`] have room for without asking for memory; they seldom need more.
const ROOM: usize = 192;

/// What stood in a request: Call-ID, method, Request-URI and the value of From, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Words {
    text: SmallVec<[u8; ROOM]>,
    /// Where all but the last end.
    ends: [u32; 3],
}

impl Words {
    /// Of a request.
    pub fn new(call_id: &[u8], method: &[u8], uri: &[u8], caller: &[u8]) -> Self {
        let mut words = Self::default();
        words.set(call_id, method, uri, caller);
        words
    }

    /// Takes those of another request instead.
    pub fn set(&mut self, call_id: &[u8], method: &[u8], uri: &[u8], caller: &[u8]) {
        self.clear();
        for (part, end) in [call_id, method, uri].into_iter().zip(&mut self.ends) {
            self.text.extend_from_slice(part);
            *end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        }
        self.text.extend_from_slice(caller);
    }

    fn clear(&mut self) {
        if self.text.spilled() {
            self.text = SmallVec::new();
        }
        self.text.clear();
        self.ends = [0; 3];
    }

    fn part(&self, number: usize) -> &[u8] {
        let end = |number: usize| self.ends.get(number).map_or(self.text.len(), |end| *end as usize);
        let start = number.checked_sub(1).map_or(0, end);
        self.text.get(start..end(number)).unwrap_or_default()
    }
}

/// The record of one request.
#[derive(Clone, Debug)]
pub struct Record {
    /// What stood in it.
    pub words: Words,
    /// Who sent it.
    pub from: Party,
    /// What its certificate says, where it showed one.
    pub identity: Option<Arc<TlsIdentity>>,
    /// From where.
    pub remote: SocketAddr,
    /// By which transport.
    pub transport: Transport,
    /// The rule that chose the target.
    pub rule: Rule,
    /// When it came.
    pub started: Instant,
    /// Parties, best first.
    pub legs: SmallVec<[LegRecord; 1]>,
    /// Attempts, in order.
    pub attempts: SmallVec<[AttemptRecord; 1]>,
    /// Final status sent upstream; 0: none yet, or none at all.
    pub status: u16,
    /// Why, where this element made the answer itself.
    pub reason: &'static str,
    /// When the final was sent.
    pub ended: Option<Instant>,
    /// A CANCEL came.
    pub cancelled: bool,
}

impl Record {
    /// Of nothing so far.
    pub fn blank(now: Instant) -> Self {
        Self {
            words: Words::default(),
            from: Party::Stranger,
            identity: None,
            remote: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            transport: Transport::Udp,
            rule: Rule::Refused,
            started: now,
            legs: SmallVec::new(),
            attempts: SmallVec::new(),
            status: 0,
            reason: "",
            ended: None,
            cancelled: false,
        }
    }

    /// Lets go of what it held.
    fn clear(&mut self) {
        self.words.clear();
        self.identity = None;
        self.legs.clear();
        self.attempts.clear();
        (self.status, self.reason, self.ended, self.cancelled) = (0, "", None, false);
    }

    /// Its Call-ID.
    pub fn call_id(&self) -> &[u8] {
        self.words.part(0)
    }

    /// Method.
    pub fn method(&self) -> &[u8] {
        self.words.part(1)
    }

    /// Request-URI as it came.
    pub fn uri(&self) -> &[u8] {
        self.words.part(2)
    }

    /// The From header field's value as it came.
    pub fn caller(&self) -> &[u8] {
        self.words.part(3)
    }

    /// The peer concerned: the one it came from, else the first one it was for.
    pub fn peer(&self) -> Option<PeerId> {
        self.from.peer().or_else(|| self.legs.first().and_then(|l| l.party.peer()))
    }
}

/// The recent records of a shard, oldest dropped first.
#[derive(Debug, Default)]
pub struct Ring {
    records: VecDeque<Box<Record>>,
    cap: usize,
    /// Records ever pushed: the number of the next one.
    pushed: u64,
    /// Dropped ones, empty, for the requests to come.
    spare: VecDeque<Box<Record>>,
}

/// Most of them.
const SPARE: usize = 16;

impl Ring {
    /// A ring of at most `cap` records.
    pub fn new(cap: usize) -> Self {
        Self { records: VecDeque::new(), cap, pushed: 0, spare: VecDeque::new() }
    }

    /// Changes the cap (reload); the oldest beyond it go.
    pub fn set_cap(&mut self, cap: usize) {
        self.cap = cap;
        while self.records.len() > cap {
            self.records.pop_front();
        }
    }

    /// An empty one for a request that has just come.
    pub fn begin(&mut self, now: Instant) -> Box<Record> {
        match self.spare.pop_back() {
            Some(mut record) => {
                record.started = now;
                record
            }
            None => Box::new(Record::blank(now)),
        }
    }

    /// Adds one.
    pub fn push(&mut self, record: Box<Record>) {
        if self.cap == 0 {
            return;
        }
        if self.records.len() >= self.cap
            && let Some(mut dropped) = self.records.pop_front()
            && self.spare.len() < SPARE
        {
            dropped.clear();
            self.spare.push_back(dropped);
        }
        self.records.push_back(record);
        self.pushed += 1;
    }

    /// All with this Call-ID, oldest first.
    pub fn find<'a>(&'a self, call_id: &'a [u8]) -> impl Iterator<Item = &'a Record> {
        self.records.iter().map(AsRef::as_ref).filter(move |r| r.call_id() == call_id)
    }

    /// Up to `most` records older than number `before`, newest first, for which `wanted` holds, out of the next
    /// `look` ones; and the number to go on before, `None` at the end. A search goes page by page, so that nobody
    /// waits for the whole of it.
    pub fn page(
        &self,
        before: u64,
        look: usize,
        most: usize,
        wanted: &dyn Fn(&Record) -> bool,
    ) -> (Vec<Record>, Option<u64>) {
        let oldest = self.pushed - self.records.len() as u64;
        let end = before.min(self.pushed);
        let mut found = Vec::new();
        let mut at = end;
        while at > oldest && end - at < look as u64 && found.len() < most {
            at -= 1;
            let record = usize::try_from(at - oldest).ok().and_then(|i| self.records.get(i));
            if let Some(record) = record.filter(|r| wanted(r)) {
                found.push(Record::clone(record));
            }
        }
        (found, (at > oldest).then_some(at))
    }

    /// Shows up to `look` records from number `from` on, oldest first; gives the number to go on from. What has
    /// been dropped meanwhile is passed over.
    pub fn after(&self, from: u64, look: usize, see: &mut dyn FnMut(&Record)) -> u64 {
        let oldest = self.pushed - self.records.len() as u64;
        let start = from.clamp(oldest, self.pushed);
        let skip = usize::try_from(start - oldest).unwrap_or(usize::MAX);
        let mut next = start;
        for record in self.records.iter().skip(skip).take(look) {
            see(record);
            next += 1;
        }
        next
    }

    /// Newest first.
    pub fn recent(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().rev().map(AsRef::as_ref)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u16) -> Box<Record> {
        Box::new(Record {
            words: Words::new(number.to_string().as_bytes(), b"INVITE", b"", b""),
            status: number,
            ..Record::blank(Instant::now())
        })
    }

    #[test]
    fn words_are_what_they_were_whatever_their_length_and_whoever_had_the_room_before() {
        let mut words = Words::default();
        for long in [0, 1, 150, 191, 192, 193, 2000, 7, 0] {
            let (call_id, caller) = (vec![b'a'; long], vec![b'b'; long / 2]);
            words.set(&call_id, b"INVITE", b"sip:x@y", &caller);
            let parts = [0, 1, 2, 3].map(|n| words.part(n));
            assert_eq!(parts, [call_id.as_slice(), b"INVITE", b"sip:x@y", &caller]);
        }
    }

    #[test]
    fn a_record_that_takes_the_place_of_a_dropped_one_has_nothing_of_it() {
        let now = Instant::now();
        let mut ring = Ring::new(1);
        let mut old = record(486);
        old.legs.push(LegRecord {
            uri: Some(Box::from(&b"sip:x"[..])),
            party: Party::Core,
            located: None,
            asked: Some(now),
            answered: None,
            standings: Box::default(),
        });
        (old.reason, old.ended, old.cancelled) = ("busy", Some(now), true);
        old.identity = Some(Arc::new(TlsIdentity { names: Vec::new() }));
        ring.push(old);
        ring.push(record(200));
        let new = ring.begin(now);
        assert_eq!(
            (new.call_id(), new.method(), new.uri(), new.caller()),
            (&b""[..], &b""[..], &b""[..], &b""[..])
        );
        assert_eq!((new.status, new.reason, new.ended, new.cancelled), (0, "", None, false));
        assert!(new.legs.is_empty() && new.attempts.is_empty() && new.identity.is_none());
    }

    #[test]
    fn a_search_sees_every_record_once_page_by_page_whatever_comes_in_between() {
        let mut ring = Ring::new(10);
        (0..25).for_each(|n| ring.push(record(n)));
        let (mut seen, mut before) = (Vec::new(), Some(u64::MAX));
        while let Some(at) = before {
            let (page, next) = ring.page(at, 3, 100, &|r| r.status % 2 == 1);
            seen.extend(page.iter().map(|r| r.status));
            before = next;
            ring.push(record(99));
        }
        // 15 to 24 were there; what the new ones push out on the way is no longer found.
        assert_eq!(seen, [23, 21, 19, 17]);
        let (page, next) = ring.page(u64::MAX, 100, 2, &|_| true);
        assert_eq!((page.len(), next.is_some()), (2, true), "no more than asked for");
        assert_eq!(Ring::new(0).page(u64::MAX, 3, 3, &|_| true).1, None);
    }

    #[test]
    fn what_is_new_is_seen_once_and_in_order_whatever_has_been_dropped() {
        let mut ring = Ring::new(10);
        (0..5).for_each(|n| ring.push(record(n)));
        let mut seen = Vec::new();
        let next = ring.after(0, 3, &mut |r| seen.push(r.status));
        let next = ring.after(next, 100, &mut |r| seen.push(r.status));
        assert_eq!((seen.as_slice(), next), ([0, 1, 2, 3, 4].as_slice(), 5));
        (5..30).for_each(|n| ring.push(record(n)));
        seen.clear();
        let next = ring.after(next, 100, &mut |r| seen.push(r.status));
        assert_eq!(seen, (20..30).collect::<Vec<_>>(), "5 to 19 are gone");
        assert_eq!(ring.after(next, 100, &mut |_| panic!("nothing is new")), 30);
        assert_eq!(ring.after(u64::MAX, 1, &mut |_| panic!("nor beyond the end")), 30);
    }
}
