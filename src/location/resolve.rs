//! The step machine of RFC 3263 §4: questions out, answers in, a [`Located`](super::Located) at the end.
//!
//! ```text
//! numeric host ─────────────────────────────────────────────► done, no question
//! port given ───────────────────────────► A/AAAA of the host
//! transport given ───────► SRV of that one ─┐
//! else NAPTR ─ usable ───► SRV of each ─────┤ records: A/AAAA of their targets
//!        └─── none ──────► SRV by our list ─┘ none at all, and no failure: A/AAAA of the host
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::candidate::{LeftOut, LeftOutReason};
use super::enabled::Enabled;
use super::naptr::{self, Service};
use super::question::{
    Answer, AnswerMeta, Question, RecordKind, Records, RrSet, SrvRecord, StepOutcome, normal_name,
};
use super::target::LocateKey;
use crate::flow::{Host, Transport};

/// Most NAPTR records used of one answer.
pub const MAX_NAPTR: usize = 32;
/// Most SRV records used of one answer, lowest priorities first.
pub const MAX_SRV: usize = 1024;
/// Most host names looked up for one location.
pub const MAX_TARGETS: usize = 1024;
/// Most addresses used of one host name.
pub const MAX_ADDRESSES: usize = 64;
/// Most candidates (addresses of servers) of one location.
pub const MAX_CANDIDATES: usize = 4096;
/// Most left-out entries recorded.
pub const MAX_LEFT_OUT: usize = 64;
/// How long a result is believed that a question was left unanswered for.
pub const UNANSWERED_HOLD: Duration = Duration::from_secs(1);

/// One location under way.
#[derive(Debug)]
pub struct Resolution {
    pub(super) key: LocateKey,
    pub(super) enabled: Enabled,
    pub(super) asked: Vec<Asked>,
    index: HashMap<Question, usize, ahash::RandomState>,
    /// Questions before this one have been given out.
    given_out: usize,
    open: usize,
    stage: Stage,
    /// The SRV names, in the order of trying.
    pub(super) branches: Vec<Branch>,
    /// The host itself is to be used, by this transport and port.
    pub(super) direct: Option<(Transport, u16)>,
    /// Host names that addresses were asked for.
    targets: usize,
    pub(super) left_out: LeftOutList,
    /// Nothing of ours can reach it.
    pub(super) no_transport: bool,
}

/// A question and what came of it.
#[derive(Debug)]
pub(super) struct Asked {
    pub question: Question,
    pub reply: Reply,
}

#[derive(Debug)]
pub(super) enum Reply {
    Open,
    Answered(Answer, AnswerMeta),
    GivenUp(StepOutcome),
}

/// SRV records to be asked for, for one transport.
#[derive(Debug)]
pub(super) struct Branch {
    pub transport: Transport,
    pub naptr: Option<(u16, u16)>,
    pub name: Arc<str>,
    /// The addresses of its targets have been asked for.
    opened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The NAPTR records are open.
    Naptr,
    /// SRV records are open, named by NAPTR records.
    Named,
    /// SRV records are open, under the names of RFC 3263 §4.2.
    Conventional,
    /// Nothing but addresses can be open.
    Addresses,
}

/// Left-out entries, bounded.
#[derive(Debug, Default)]
pub(super) struct LeftOutList(pub Vec<LeftOut>);

impl LeftOutList {
    pub fn push(&mut self, reason: LeftOutReason, what: impl FnOnce() -> String) {
        if self.0.len() < MAX_LEFT_OUT {
            self.0.push(LeftOut { what: what(), reason });
        }
    }
}

impl Resolution {
    /// Begins to locate `key`. A numeric host needs no question.
    pub fn new(key: LocateKey, enabled: &Enabled) -> Self {
        let mut new = Self {
            key,
            enabled: enabled.clone(),
            asked: Vec::new(),
            index: HashMap::default(),
            given_out: 0,
            open: 0,
            stage: Stage::Addresses,
            branches: Vec::new(),
            direct: None,
            targets: 0,
            left_out: LeftOutList::default(),
            no_transport: false,
        };
        new.begin();
        new
    }

    /// The questions that can be asked now, side by side; each is given out once.
    pub fn next_questions(&mut self) -> SmallVec<[Question; 4]> {
        let fresh = self.asked.get(self.given_out..).unwrap_or_default();
        let questions = fresh.iter().map(|a| a.question.clone()).collect();
        self.given_out = self.asked.len();
        questions
    }

    /// The answer to a question given out before; any other is ignored.
    pub fn answer(&mut self, question: &Question, answer: Answer, meta: AnswerMeta) {
        self.settle(question, Reply::Answered(answer, meta));
    }

    /// Open address questions whose other address family has been answered with addresses: these
    /// need not be waited for long (`dns.addresses`); see [`Resolution::give_up`].
    pub fn lagging(&self) -> SmallVec<[Question; 4]> {
        let other = |kind| match kind {
            RecordKind::A => Some(RecordKind::Aaaa),
            RecordKind::Aaaa => Some(RecordKind::A),
            RecordKind::Naptr | RecordKind::Srv => None,
        };
        self.asked
            .iter()
            .filter(|a| matches!(a.reply, Reply::Open))
            .filter(|a| {
                other(a.question.kind).is_some_and(|kind| self.records(&a.question.name, kind).is_some())
            })
            .map(|a| a.question.clone())
            .collect()
    }

    /// Open address questions that the location can do without by now: every SRV question is
    /// settled, and addresses of another server are known.
    pub fn spare(&self) -> SmallVec<[Question; 4]> {
        let is_address = |a: &&Asked| matches!(a.question.kind, RecordKind::A | RecordKind::Aaaa);
        let open = |a: &&Asked| matches!(a.reply, Reply::Open);
        let known = self
            .asked
            .iter()
            .any(|a| is_address(&a) && matches!(a.reply, Reply::Answered(Answer::Records(_), _)));
        if !known || self.asked.iter().any(|a| open(&a) && !is_address(&a)) {
            return SmallVec::new();
        }
        self.asked.iter().filter(open).map(|a| a.question.clone()).collect()
    }

    /// Goes on without the answer to one question.
    pub fn give_up(&mut self, question: &Question) {
        self.settle(question, Reply::GivenUp(StepOutcome::NotWaitedFor));
    }

    /// The time for the whole location (`dns.timeout`) has run out: finishes with what is known.
    pub fn time_out(&mut self) {
        for asked in &mut self.asked {
            if matches!(asked.reply, Reply::Open) {
                asked.reply = Reply::GivenUp(StepOutcome::OutOfTime);
            }
        }
        self.open = 0;
        self.given_out = self.asked.len();
        self.stage = Stage::Addresses;
    }

    /// True once nothing is open: time for [`Resolution::into_located`].
    pub fn finished(&self) -> bool {
        self.open == 0
    }

    fn begin(&mut self) {
        let key = &self.key;
        let possible = match key.transport {
            Some(t) => self.enabled.has(t),
            None if key.sips => self.enabled.has(Transport::Tls),
            None if key.port.is_some() || matches!(key.host, Host::Addr(_)) => true,
            None => self.enabled.discoverable().next().is_some(),
        };
        if !possible {
            self.no_transport = true;
            return;
        }
        let name = match &key.host {
            // RFC 3263 §4.1, §4.2: a numeric TARGET or a port leaves nothing to be discovered.
            Host::Addr(addr) => {
                let addr = *addr;
                let transport = self.fixed_transport(|s, t| s.enabled.can_reach(t, addr));
                return self.go_direct(transport);
            }
            Host::Name(name) => name,
        };
        let Some(name) = normal_name(name) else {
            return self.left_out.push(LeftOutReason::BadName, || self.key.host.to_string());
        };
        self.key.host = Host::Name(Arc::clone(&name));
        if self.key.port.is_some() {
            let transport = self.fixed_transport(|s, t| s.enabled.has(t));
            self.go_direct(transport);
        } else if let Some(transport) = self.key.transport {
            self.ask_conventional(&[transport]);
        } else {
            self.stage = Stage::Naptr;
            self.ask(name, RecordKind::Naptr);
        }
    }

    /// The transport where nothing is left to discovery: the one given, TLS for SIPS, else UDP; our
    /// own preference decides only where we cannot send by UDP.
    fn fixed_transport(&self, can: impl Fn(&Self, Transport) -> bool) -> Option<Transport> {
        match self.key.transport {
            Some(t) => Some(t),
            None if self.key.sips => Some(Transport::Tls),
            None if can(self, Transport::Udp) => Some(Transport::Udp),
            None => self.enabled.discoverable().find(|t| can(self, *t)),
        }
    }

    /// Uses the host itself; asks for its addresses if it is a name.
    fn go_direct(&mut self, transport: Option<Transport>) {
        self.stage = Stage::Addresses;
        let Some(transport) = transport else {
            self.no_transport = true;
            return;
        };
        self.direct = Some((transport, self.key.port.unwrap_or(transport.default_port())));
        if let Host::Name(name) = &self.key.host {
            let name = Arc::clone(name);
            self.no_transport = !self.enabled.asks_a(transport) && !self.enabled.asks_aaaa(transport);
            self.ask_addresses(&name, transport);
        }
    }

    fn ask(&mut self, name: Arc<str>, kind: RecordKind) {
        let question = Question::new(name, kind);
        if !self.index.contains_key(&question) {
            self.index.insert(question.clone(), self.asked.len());
            self.asked.push(Asked { question, reply: Reply::Open });
            self.open += 1;
        }
    }

    /// Both families as far as they are of use (RFC 7984 §3); false if there is no room for more names.
    fn ask_addresses(&mut self, name: &Arc<str>, transport: Transport) -> bool {
        let known = [RecordKind::A, RecordKind::Aaaa]
            .into_iter()
            .any(|kind| self.index.contains_key(&Question::new(Arc::clone(name), kind)));
        if !known {
            if self.targets >= MAX_TARGETS {
                return false;
            }
            self.targets += 1;
        }
        if self.enabled.asks_aaaa(transport) {
            self.ask(Arc::clone(name), RecordKind::Aaaa);
        }
        if self.enabled.asks_a(transport) {
            self.ask(Arc::clone(name), RecordKind::A);
        }
        true
    }

    /// Asks for SRV under the names that RFC 3263 §4.2 gives to the host's transports.
    fn ask_conventional(&mut self, transports: &[Transport]) {
        self.stage = Stage::Conventional;
        let Host::Name(host) = &self.key.host else {
            return;
        };
        let host = Arc::clone(host);
        for &transport in transports {
            let prefix = match transport {
                Transport::Udp => "_sip._udp.",
                Transport::Tcp => "_sip._tcp.",
                Transport::Tls => "_sips._tcp.",
            };
            match normal_name(&format!("{prefix}{host}").into()) {
                Some(name) => self.add_branch(Branch { transport, naptr: None, name, opened: false }),
                // Longer than a name can be, so it does not exist.
                None => self.left_out.push(LeftOutReason::BadName, || format!("{prefix}{host}")),
            }
        }
        self.advance();
    }

    fn add_branch(&mut self, branch: Branch) {
        let known = self.branches.iter().any(|b| b.transport == branch.transport && b.name == branch.name);
        if !known {
            self.ask(Arc::clone(&branch.name), RecordKind::Srv);
            self.branches.push(branch);
        }
    }

    fn settle(&mut self, question: &Question, reply: Reply) {
        let Some(&at) = self.index.get(question) else {
            return;
        };
        let Some(asked) = self.asked.get_mut(at).filter(|_| at < self.given_out) else {
            return;
        };
        if matches!(asked.reply, Reply::Open) {
            asked.reply = reply;
            self.open -= 1;
            self.advance();
        }
    }

    /// Asks for whatever the answers so far call for.
    fn advance(&mut self) {
        match self.stage {
            Stage::Naptr => self.after_naptr(),
            Stage::Named | Stage::Conventional => {
                self.open_targets();
                self.after_srv();
            }
            Stage::Addresses => {}
        }
    }

    fn after_naptr(&mut self) {
        let Host::Name(name) = &self.key.host else {
            return;
        };
        if matches!(self.reply(name, RecordKind::Naptr), None | Some(Reply::Open)) {
            return;
        }
        // Without any we go on, even if there is no such name: servers exist that deny a name with
        // nothing but `_sip._udp` below it.
        let set = self.records(name, RecordKind::Naptr).cloned();
        let services = match set.as_ref().map(|s| &s.records) {
            Some(Records::Naptr(records)) => {
                naptr::services(records, &self.key, &self.enabled, &mut self.left_out)
            }
            _ => Vec::new(),
        };
        if services.is_empty() {
            let ours = self.our_transports();
            return self.ask_conventional(&ours);
        }
        self.stage = Stage::Named;
        for Service { naptr, transport, name } in services {
            self.add_branch(Branch { transport, naptr: Some(naptr), name, opened: false });
        }
    }

    /// The transports of which SRV records are worth asking for, best first.
    fn our_transports(&self) -> SmallVec<[Transport; 3]> {
        if self.key.sips {
            SmallVec::from_slice(&[Transport::Tls])
        } else {
            self.enabled.discoverable().collect()
        }
    }

    /// Asks for the addresses of the targets of SRV answers that have come in.
    fn open_targets(&mut self) {
        for at in 0..self.branches.len() {
            let Some(branch) = self.branches.get(at).filter(|b| !b.opened) else {
                continue;
            };
            let transport = branch.transport;
            if matches!(self.reply(&branch.name, RecordKind::Srv), None | Some(Reply::Open)) {
                continue;
            }
            let set = self.records(&branch.name, RecordKind::Srv).cloned();
            if let Some(branch) = self.branches.get_mut(at) {
                branch.opened = true;
            }
            for record in set.iter().flat_map(|s| sorted_srv(s)) {
                if record.is_not_offered() || record.port == 0 {
                    continue;
                }
                if let Some(name) = normal_name(&record.target)
                    && !self.ask_addresses(&name, transport)
                {
                    break;
                }
            }
        }
    }

    /// Once all SRV answers are in: whether to look further.
    fn after_srv(&mut self) {
        let (mut found, mut failed) = (false, false);
        for branch in &self.branches {
            match self.reply(&branch.name, RecordKind::Srv) {
                None | Some(Reply::Open) => return,
                Some(Reply::Answered(Answer::Records(_), _)) => found = true,
                Some(Reply::Answered(Answer::NoData | Answer::NxDomain, _)) => {}
                Some(Reply::Answered(Answer::ServFail | Answer::Timeout, _) | Reply::GivenUp(_)) => {
                    failed = true
                }
            }
        }
        // Nor was a NAPTR record missing that could not be asked for.
        if let Host::Name(name) = &self.key.host {
            failed |= matches!(
                self.reply(name, RecordKind::Naptr),
                Some(Reply::Answered(Answer::ServFail | Answer::Timeout, _) | Reply::GivenUp(_))
            );
        }
        if found || failed {
            // What could not be looked up is not the same as what is not there: the host's own
            // address would be a guess (rule 16).
            self.stage = Stage::Addresses;
        } else if self.stage == Stage::Named {
            // Every NAPTR record leads nowhere. The transports it names still tell what is offered.
            let mut named: SmallVec<[Transport; 3]> = SmallVec::new();
            for branch in &self.branches {
                if !named.contains(&branch.transport) {
                    named.push(branch.transport);
                }
            }
            self.ask_conventional(&named);
        } else {
            // RFC 3263 §4.2, last paragraph but one: no SRV records.
            let named = self.branches.iter().find(|b| b.naptr.is_some()).map(|b| b.transport);
            let transport =
                named.or_else(|| self.fixed_transport(|s, t| s.enabled.discoverable().any(|d| d == t)));
            self.go_direct(transport);
        }
    }

    pub(super) fn reply(&self, name: &Arc<str>, kind: RecordKind) -> Option<&Reply> {
        let at = self.index.get(&Question::new(Arc::clone(name), kind))?;
        self.asked.get(*at).map(|a| &a.reply)
    }

    pub(super) fn records(&self, name: &Arc<str>, kind: RecordKind) -> Option<&Arc<RrSet>> {
        match self.reply(name, kind)? {
            Reply::Answered(Answer::Records(set), _) => Some(set),
            Reply::Answered(..) | Reply::Open | Reply::GivenUp(_) => None,
        }
    }
}

/// The SRV records of an answer by priority, as many as are used.
pub(super) fn sorted_srv(set: &RrSet) -> Vec<&SrvRecord> {
    let Records::Srv(records) = &set.records else {
        return Vec::new();
    };
    let mut sorted: Vec<&SrvRecord> = records.iter().collect();
    sorted.sort_by_key(|r| r.priority);
    sorted.truncate(MAX_SRV);
    sorted
}
