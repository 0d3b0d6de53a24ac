//! The invariants: a second book kept of all that goes in and out of the element.
//!
//! Requests and attempts stand here; responses in [`super::responses`], orders of instances in
//! [`super::health`], untouched octets in [`super::bytes`]. Times are those of the element's clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::flow::{ConnId, Hop, Origin, SendFailure, Transport};
use sbe::location::Instance;
use sbe::proxy::Policy;
use sbe::shard::{Send, SendToken, Shard};

use super::bytes::{check_companion, check_request};
use super::health::HealthModel;
use crate::msg::Msg;

/// A server transaction of the element.
#[derive(Debug)]
pub struct Tx {
    pub request: Msg,
    pub origin: SocketAddr,
    pub came: Instant,
    pub cancelled: bool,
    /// Final responses sent, each once.
    pub finals: Vec<(u16, Vec<u8>)>,
    pub attempts: Vec<usize>,
    /// What responses to it must look like: those received, our Via off.
    pub received: Vec<Vec<u8>>,
    /// A 2xx has come from an attempt that was surely alive; from any.
    pub accepted: bool,
    pub maybe_accepted: bool,
    /// It may have begun anew.
    pub may_be_new: bool,
}

/// A client transaction of the element.
#[derive(Debug)]
pub struct Attempt {
    pub tx: usize,
    pub msg: Msg,
    pub to: Instance,
    pub listener: u16,
    pub sent: Instant,
    /// Its connection, and whether that had been open before.
    pub conn: Option<(ConnId, bool)>,
    /// The first provisional, and the last one above 100.
    pub provisional: Option<Instant>,
    pub rang: Option<Instant>,
    pub final_: Option<(u16, Instant, Option<String>)>,
    pub accepted: Option<Instant>,
    pub failed: Option<SendFailure>,
    pub cancel: Option<(Instant, Vec<u8>)>,
    /// The next one has been tried.
    pub abandoned: bool,
    /// It may have ended without our seeing it.
    pub doubtful: bool,
    pub t1: Duration,
    /// `try_timeout`, as it was then.
    pub patience: Duration,
    pub ack: Option<Vec<u8>>,
}

/// What must come out before the step is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    Ack(usize),
    Cancel(usize),
    /// This response to this server transaction.
    Up(usize, Vec<u8>),
}

/// What happened, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub failovers: u64,
    pub late_answers: u64,
    pub late_rings: u64,
}

pub struct Check {
    pub txs: Vec<Tx>,
    pub by_request: BTreeMap<(String, String), usize>,
    pub attempts: Vec<Attempt>,
    pub by_branch: BTreeMap<String, usize>,
    tokens: BTreeMap<u64, usize>,
    /// ACKs for 2xx that came, by branch.
    acks: BTreeMap<String, Msg>,
    pub expect: Vec<Expect>,
    pub health: HealthModel,
    pub counts: Counts,
    /// The clock has jumped: timers that ran out in the gap fire late, in their order.
    pub jumped: bool,
    pub policies: Vec<Arc<Policy>>,
}

impl Check {
    pub fn new(policies: Vec<Arc<Policy>>) -> Self {
        let health = &policies[0].config.health;
        Self {
            txs: Vec::new(),
            by_request: BTreeMap::new(),
            attempts: Vec::new(),
            by_branch: BTreeMap::new(),
            tokens: BTreeMap::new(),
            acks: BTreeMap::new(),
            expect: Vec::new(),
            health: HealthModel::new(health.hold_down, health.retry_after_max),
            counts: Counts::default(),
            jumped: false,
            policies,
        }
    }

    /// The smaller of both configurations: what holds under either.
    fn least<T: Ord>(&self, of: impl Fn(&Policy) -> T) -> T {
        self.policies.iter().map(|p| of(p)).min().expect("a policy")
    }

    pub fn timer_c(&self) -> Duration {
        self.least(|p| p.config.sip.timer_c)
    }

    pub fn fewest_tries(&self) -> usize {
        self.least(|p| p.config.sip.max_tries as usize)
    }

    pub fn fails_over(policy: &Policy, to: SocketAddr, status: u16) -> bool {
        let party = policy.sources.find(to.ip());
        party
            .map_or(&policy.config.sip.failover_codes, |p| match p.peer().and_then(|p| policy.peer(p)) {
                Some(peer) => &peer.failover_codes,
                None => &policy.config.sip.failover_codes,
            })
            .contains(&status)
    }

    /// Whether a client transaction surely still takes responses.
    pub fn alive(&self, at: usize, now: Instant) -> bool {
        let a = &self.attempts[at];
        let life = a.t1 * 64;
        if a.failed.is_some() || a.doubtful {
            return false;
        }
        if let Some(accepted) = a.accepted
            && a.final_.as_ref().is_none_or(|f| f.0 < 300)
        {
            return now < accepted + life;
        }
        match (&a.final_, &a.cancel, a.provisional) {
            (Some((_, t, _)), _, _) => !a.to.transport.is_reliable() && now < *t + life,
            (None, Some((t, _)), _) => now < *t + life.min(self.least(|p| p.timers.timeout())),
            (None, None, Some(_)) => a.msg.method() == "INVITE" || now < self.txs[a.tx].came + life,
            // All attempts of another request share one deadline.
            (None, None, None) if a.msg.method() != "INVITE" => now < self.txs[a.tx].came + life,
            (None, None, None) => now < a.sent + life,
        }
    }

    pub fn received(&mut self, now: Instant, origin: &Origin, bytes: &[u8]) {
        let Some(msg) = Msg::parse(bytes) else { return };
        if !msg.is_request() {
            return self.response_received(now, msg);
        }
        let branch = msg.branch(0);
        if msg.method() == "ACK" {
            self.acks.insert(branch, msg);
            return;
        }
        let key = (branch, msg.method().to_string());
        if let Some(tx) = self.by_request.get(&key).copied() {
            // Its 64*T1 are over, or were by a clock that has jumped: it may have ended while its sender,
            // or the network, still repeats the request.
            let age = now.saturating_duration_since(self.txs[tx].came);
            let whole = self.least(|p| p.timers.timeout());
            let short = self.least(|p| p.timers.t4).min(whole);
            self.txs[tx].may_be_new |= age >= if self.jumped { short } else { whole };
            return;
        }
        if key.1 == "CANCEL"
            && let Some(&invite) = self.by_request.get(&(key.0.clone(), "INVITE".to_string()))
        {
            self.cancel_received(now, invite);
        }
        self.by_request.insert(key, self.txs.len());
        self.txs.push(Tx {
            request: msg,
            origin: origin.remote,
            came: now,
            cancelled: false,
            finals: Vec::new(),
            attempts: Vec::new(),
            received: Vec::new(),
            accepted: false,
            maybe_accepted: false,
            may_be_new: false,
        });
    }

    /// Forgets the answer that a transaction had, if that has ended.
    pub fn restarted(&mut self, tx: usize) {
        if !self.txs[tx].finals.is_empty() {
            self.renew(tx);
        }
    }

    /// A transaction that has begun anew: what was is forgotten.
    pub fn renew(&mut self, tx: usize) {
        let tx = &mut self.txs[tx];
        tx.may_be_new = false;
        tx.cancelled = false;
        tx.accepted = false;
        tx.finals.clear();
        tx.attempts.clear();
    }

    fn cancel_received(&mut self, now: Instant, invite: usize) {
        let tx = &mut self.txs[invite];
        if !tx.finals.is_empty() {
            return;
        }
        tx.cancelled = true;
        for at in self.txs[invite].attempts.clone() {
            let a = &self.attempts[at];
            if a.provisional.is_some() && a.final_.is_none() && a.cancel.is_none() && self.alive(at, now) {
                self.expect.push(Expect::Cancel(at));
            }
        }
    }

    /// A send of this token went to this connection.
    pub fn on_conn(&mut self, token: SendToken, conn: ConnId, reused: bool) {
        if let Some(at) = self.tokens.get(&token.0) {
            self.attempts[*at].conn = Some((conn, reused));
        }
    }

    pub fn send_failed(&mut self, _now: Instant, token: SendToken, failure: SendFailure) {
        if let Some(at) = self.tokens.get(&token.0).copied() {
            self.fail(at, failure);
        }
    }

    pub fn icmp(&mut self, _now: Instant, to: SocketAddr, payload: &[u8]) {
        let text = String::from_utf8_lossy(payload);
        let whole = text.split_once("\r\n").map_or("", |(_, rest)| rest);
        let branch =
            whole.split_once(";branch=").map_or("", |(_, b)| b.split(['\r', ';']).next().unwrap_or(""));
        if let Some(at) = self.by_branch.get(branch).copied()
            && self.attempts[at].to.addr == to
        {
            self.fail(at, SendFailure::Icmp);
        }
    }

    pub fn conn_closed(&mut self, _now: Instant, conn: ConnId) {
        for at in 0..self.attempts.len() {
            if let Some((id, reused)) = self.attempts[at].conn
                && id == conn
            {
                self.attempts[at].conn = None;
                self.fail(at, SendFailure::Closed { reused });
            }
        }
    }

    /// An attempt that has rung, or been cancelled, is waited for all the same.
    fn fail(&mut self, at: usize, failure: SendFailure) {
        let a = &mut self.attempts[at];
        let waits = a.msg.method() == "INVITE" && a.final_.is_none();
        if !waits || (a.rang.is_none() && a.cancel.is_none()) {
            a.failed.get_or_insert(failure);
        }
    }

    /// The element sends.
    pub fn sent(&mut self, now: Instant, shard: &Shard, send: &Send) {
        let msg = Msg::parse(&send.bytes).expect("the element writes messages");
        if !msg.is_request() {
            return self.response_sent(now, shard, &send.hop, msg);
        }
        let known = self.by_branch.get(&msg.branch(0)).copied();
        match (msg.method(), known) {
            ("ACK", Some(at)) => self.ack_sent(at, &send.hop, &msg),
            ("ACK", None) => self.ack_forwarded(&send.hop, &msg),
            ("CANCEL", Some(at)) => self.cancel_sent(now, at, &send.hop, &msg),
            ("CANCEL", None) => panic!("a CANCEL without an INVITE: {}", msg.branch(0)),
            (_, Some(at)) => self.request_repeated(now, at, &send.hop, &msg),
            ("OPTIONS", None) if msg.vias().len() == 1 => {}
            (_, None) => self.attempt_begun(now, shard, send, msg),
        }
    }

    fn same_place(&self, at: usize, hop: &Hop, what: &str) {
        let a = &self.attempts[at];
        let to = Instance { transport: hop.transport, addr: hop.remote };
        assert_eq!((to, hop.listener.0), (a.to, a.listener), "{what} went elsewhere than its request");
    }

    fn ack_sent(&mut self, at: usize, hop: &Hop, msg: &Msg) {
        self.same_place(at, hop, "an ACK");
        let a = &mut self.attempts[at];
        let (status, _, tag) = a.final_.as_ref().expect("an ACK before a final response");
        assert!(*status >= 300, "we never acknowledge a 2xx");
        check_companion(&a.msg, msg);
        match &a.ack {
            Some(first) => assert!(*first == msg.raw, "the ACK changed"),
            None => assert_eq!(msg.to_tag(), *tag, "To tag of the ACK"),
        }
        a.ack = Some(msg.raw.clone());
        self.expect.retain(|e| *e != Expect::Ack(at));
    }

    /// The ACK for a 2xx goes where the dialog says.
    fn ack_forwarded(&mut self, hop: &Hop, msg: &Msg) {
        let came = self.acks.get(&msg.branch(1)).expect("an ACK out of nothing");
        check_request(came, msg, came.uri().ends_with("@example.com"), Self::strips(came));
        if self.by_request.contains_key(&(msg.branch(1), "INVITE".to_string())) {
            // That for a failure whose transaction was gone already: it cannot be told from one for a 2xx.
            return;
        }
        assert!(
            came.uri().contains(&hop.remote.to_string()),
            "an ACK for {} went to {}",
            came.uri(),
            hop.remote
        );
    }

    fn cancel_sent(&mut self, now: Instant, at: usize, hop: &Hop, msg: &Msg) {
        self.same_place(at, hop, "a CANCEL");
        let a = &self.attempts[at];
        assert_eq!(a.msg.method(), "INVITE", "a CANCEL for something else");
        if let Some((_, first)) = &a.cancel {
            assert!(*first == msg.raw, "the CANCEL changed");
            return;
        }
        check_companion(&a.msg, msg);
        assert!(a.provisional.is_some(), "a CANCEL before any provisional");
        assert!(a.final_.is_none(), "a CANCEL after the final response");
        let tx = &self.txs[a.tx];
        let since = a.rang.unwrap_or(a.sent);
        let timer_c = now >= since + self.timer_c();
        assert!(
            tx.cancelled || a.abandoned || tx.maybe_accepted || timer_c || !tx.finals.is_empty(),
            "a CANCEL that nobody asked for"
        );
        self.attempts[at].cancel = Some((now, msg.raw.clone()));
        self.expect.retain(|e| *e != Expect::Cancel(at));
    }

    fn request_repeated(&mut self, now: Instant, at: usize, hop: &Hop, msg: &Msg) {
        self.same_place(at, hop, "a retransmission");
        let a = &self.attempts[at];
        assert!(a.msg.raw == msg.raw, "a retransmission differs");
        assert!(!a.to.transport.is_reliable(), "a retransmission over a stream");
        assert!(!a.abandoned && a.failed.is_none() && a.final_.is_none(), "a retransmission of what is over");
        let in_time = now < a.sent + a.t1 * 64 || self.jumped || a.msg.method() != "INVITE";
        assert!(in_time, "a retransmission after 64*T1");
        if a.msg.method() == "INVITE" {
            assert!(a.provisional.is_none(), "an INVITE repeated after a provisional");
        }
    }

    fn attempt_begun(&mut self, now: Instant, shard: &Shard, send: &Send, msg: Msg) {
        let key = (msg.branch(1), msg.method().to_string());
        let tx =
            *self.by_request.get(&key).unwrap_or_else(|| panic!("a request out of nothing: {}", msg.start));
        let to = Instance { transport: send.hop.transport, addr: send.hop.remote };
        let request = self.txs[tx].request.clone();
        let own = request.uri().ends_with("@example.com");
        if self.txs[tx].may_be_new {
            let tried = self.txs[tx].attempts.iter().any(|at| self.attempts[*at].to == to);
            let over = !self.txs[tx].finals.is_empty();
            if tried || over || !self.in_turn(now, shard.policy(), tx) {
                self.renew(tx);
            }
        }
        check_request(&request, &msg, own, Self::strips(&request));
        assert!(!self.txs[tx].cancelled, "a new attempt after CANCEL");
        assert!(self.txs[tx].finals.is_empty(), "a new attempt after the final response");
        let policy = shard.policy();
        let stale = self.may_move_on(now, policy, tx, &to);
        if request.get("route").is_some() {
            let wanted = msg.values("route").first().cloned().unwrap_or_else(|| msg.uri().to_string());
            assert!(wanted.contains(&to.addr.to_string()), "in-dialog to {wanted} went to {to}");
        } else if !stale {
            self.right_order(now, shard, tx, &to);
        }
        if let Some(last) = self.txs[tx].attempts.last() {
            self.attempts[*last].abandoned = true;
        }
        let at = self.attempts.len();
        self.txs[tx].attempts.push(at);
        self.by_branch.insert(msg.branch(0), at);
        if let Some(token) = send.token {
            self.tokens.insert(token.0, at);
        }
        let party = policy.sources.find(to.addr.ip());
        let t1 = party.map_or(policy.timers, |p| *policy.timers_to(p)).t1;
        let patience = party.map_or(policy.config.sip.try_timeout.min(t1 * 64), |p| policy.try_timeout_to(p));
        self.attempts.push(Attempt {
            tx,
            msg,
            to,
            listener: send.hop.listener.0,
            sent: now,
            conn: None,
            provisional: None,
            rang: None,
            final_: None,
            accepted: None,
            failed: None,
            cancel: None,
            abandoned: false,
            doubtful: false,
            t1,
            patience,
            ack: None,
        });
    }

    /// The last attempt has failed, or was silent for long enough.
    fn in_turn(&self, now: Instant, policy: &Policy, tx: usize) -> bool {
        let Some(last) = self.txs[tx].attempts.last().map(|at| &self.attempts[*at]) else { return true };
        let silent = last.provisional.is_none() && last.final_.is_none();
        let waited = now >= last.sent + last.patience;
        let refused = last.final_.as_ref().is_some_and(|f| Self::fails_over(policy, last.to.addr, f.0));
        last.failed.is_some() || refused || (silent && waited)
    }

    /// RFC 3263 §4.3 and rule 10: what lets a call go on to the next instance. True for the second try
    /// of the same one after a pooled connection was found dead.
    fn may_move_on(&self, now: Instant, policy: &Policy, tx: usize, to: &Instance) -> bool {
        let in_turn = self.in_turn(now, policy, tx);
        let tx = &self.txs[tx];
        let Some(last) = tx.attempts.last().map(|at| &self.attempts[*at]) else { return false };
        assert!(last.rang.is_none(), "failover after a provisional above 100");
        let stale = last.failed == Some(SendFailure::Closed { reused: true }) && last.to == *to;
        assert!(in_turn, "two live attempts: {} is not over, {to} was tried", last.to);
        if !stale {
            let again = tx.attempts.iter().any(|at| self.attempts[*at].to == *to);
            assert!(!again, "{to} was tried twice");
            let most = policy.config.sip.max_tries as usize;
            let second =
                |at: &&usize| self.attempts[**at].failed == Some(SendFailure::Closed { reused: true });
            let tries = tx.attempts.len() - tx.attempts.iter().filter(second).count();
            assert!(tries < most || tx.may_be_new, "more than {most} tries");
        }
        stale
    }

    /// What was located, by the decision record, and whether this was the one to try now.
    fn right_order(&self, now: Instant, shard: &Shard, tx: usize, to: &Instance) {
        let tx = &self.txs[tx];
        let records = shard.records(tx.request.call_id().as_bytes());
        let found = records.iter().rev().find_map(|r| {
            let entry = r.attempts.iter().rev().find(|a| a.instance == *to)?;
            r.legs.get(usize::from(entry.place.0))?.located.clone()
        });
        let located = found.expect("an attempt without a record of what was located");
        let mixed = located.instances().any(|i| i.transport != to.transport);
        if tx.request.raw.len() > 900 && mixed {
            // Large ones go over streams first (RFC 3261 §18.1.1).
            return;
        }
        let tried: Vec<Instance> = tx.attempts.iter().map(|at| self.attempts[*at].to).collect();
        self.health.judge(now, tx.came, &located, to, &tried);
    }

    /// The first peer's own secrets are stripped on the way to the core.
    fn strips(came: &Msg) -> bool {
        came.vias().first().is_some_and(|v| v.contains("198.51.100."))
    }

    /// Everything that had to come out has come out.
    pub fn step_end(&mut self) {
        if let Some(expect) = self.expect.first() {
            match expect {
                Expect::Ack(at) => {
                    panic!("no ACK for the {:?} of {}", self.attempts[*at].final_, self.attempts[*at].to)
                }
                Expect::Cancel(at) => panic!("no CANCEL for the INVITE at {}", self.attempts[*at].to),
                Expect::Up(_, bytes) => {
                    panic!("this did not go upstream:\n{}", String::from_utf8_lossy(bytes))
                }
            }
        }
    }

    /// The end of the world: no request is left without an answer or a good reason.
    pub fn finish(&self) {
        for tx in &self.txs {
            let method = tx.request.method();
            let sure = |a: &Attempt| a.final_.is_some() && a.failed.is_none() && !a.doubtful;
            let answered = |at: &usize| sure(&self.attempts[*at]);
            let reason = method != "INVITE" && !tx.attempts.iter().any(answered);
            assert!(!tx.finals.is_empty() || reason, "no final response for {}", tx.request.start);
        }
        for a in self.attempts.iter().filter(|a| a.msg.method() == "INVITE" && a.rang.is_some()) {
            let over = a.final_.is_some() || a.cancel.is_some() || a.failed.is_some();
            assert!(over, "timer C never ended the INVITE at {}", a.to);
        }
    }

    /// Transport of the server side of a transaction.
    pub fn came_by(&self, tx: usize) -> Transport {
        if self.txs[tx].request.vias()[0].contains("/TCP") { Transport::Tcp } else { Transport::Udp }
    }
}
