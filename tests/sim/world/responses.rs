//! The invariants of responses: what must go upstream, what must not, and once only.

use std::time::Instant;

use sbe::flow::Hop;
use sbe::shard::Shard;

use super::bytes::upstream;
use super::check::{Check, Expect};
use crate::msg::Msg;

impl Check {
    /// A response arrives at the element.
    pub(super) fn response_received(&mut self, now: Instant, msg: Msg) {
        let Some(at) = self.by_branch.get(&msg.branch(0)).copied() else { return };
        if msg.method() == "CANCEL" || msg.method() != self.attempts[at].msg.method() {
            return;
        }
        let alive = self.alive(at, now);
        self.attempts[at].doubtful |= !alive;
        let (status, invite) = (msg.status(), msg.method() == "INVITE");
        let strips = self.attempts[at].to.addr.to_string().starts_with("198.51.100.");
        let up = upstream(&msg, strips);
        let tx = self.attempts[at].tx;
        self.txs[tx].received.push(up.clone());
        let cancelled = self.txs[tx].cancelled;
        let answered = !self.txs[tx].finals.is_empty();
        let accepted = self.txs[tx].accepted;
        let a = &mut self.attempts[at];
        let (over, abandoned) = (a.final_.is_some(), a.abandoned);
        if status < 200 {
            if over || !alive {
                return;
            }
            a.provisional.get_or_insert(now);
            if status > 100 {
                a.rang = Some(now);
            }
            if invite && a.cancel.is_none() && (cancelled || abandoned || accepted) {
                self.expect.push(Expect::Cancel(at));
                self.counts.late_rings += u64::from(abandoned);
            }
            if status > 100 && !abandoned && !answered {
                self.expect.push(Expect::Up(tx, up));
            }
            return;
        }
        if !over {
            a.final_ = Some((status, now, msg.to_tag()));
        }
        if invite && status < 300 {
            a.accepted.get_or_insert(now);
        }
        self.txs[tx].maybe_accepted |= invite && status < 300;
        if !alive {
            return;
        }
        if invite && status >= 300 && self.attempts[at].accepted.is_none() {
            self.expect.push(Expect::Ack(at));
        }
        let to = self.attempts[at].to.addr;
        let moves_on = status == 503 || self.policies.iter().any(|p| Self::fails_over(p, to, status));
        let decides = if abandoned { !invite && status < 300 } else { !moves_on };
        if !over && !answered && decides && !(invite && status < 300) {
            self.expect.push(Expect::Up(tx, up.clone()));
        }
        if invite && status < 300 {
            self.txs[tx].accepted = true;
            self.counts.late_answers += u64::from(abandoned && !over);
            self.expect.push(Expect::Up(tx, up));
        }
    }

    /// The element answers.
    pub(super) fn response_sent(&mut self, _now: Instant, shard: &Shard, hop: &Hop, msg: Msg) {
        let key = (msg.branch(0), msg.method().to_string());
        let tx = *self.by_request.get(&key).unwrap_or_else(|| panic!("an answer to nothing: {}", msg.start));
        let status = msg.status();
        assert_eq!(hop.remote, self.txs[tx].origin, "an answer went astray: {}", msg.start);
        assert_eq!(hop.transport, self.came_by(tx), "an answer by another transport");
        self.expect.retain(|e| !matches!(e, Expect::Up(n, bytes) if *n == tx && *bytes == msg.raw));
        let forwarded = self.txs[tx].received.contains(&msg.raw);
        if !forwarded {
            self.made_here(tx, &msg);
        }
        let invite = msg.method() == "INVITE";
        let known = self.txs[tx].finals.iter().any(|(_, bytes)| *bytes == msg.raw);
        if self.txs[tx].may_be_new && !known && !(invite && (200..300).contains(&status)) {
            self.restarted(tx);
        }
        let finals = &self.txs[tx].finals;
        let repeated = finals.iter().any(|(_, bytes)| *bytes == msg.raw);
        if repeated {
            return;
        }
        if status < 200 {
            assert!(finals.is_empty(), "a provisional after the final response: {}", msg.start);
            return;
        }
        let another_2xx = invite && status < 300;
        assert!(
            finals.is_empty() || another_2xx,
            "a second final response: {} after {}",
            msg.start,
            finals[0].0
        );
        if !forwarded && finals.is_empty() && invite && status >= 400 {
            self.nothing_left_untried(shard, tx, &msg);
        }
        self.txs[tx].finals.push((status, msg.raw));
    }

    /// What the element may say by itself.
    fn made_here(&self, tx: usize, msg: &Msg) {
        let (status, request) = (msg.status(), &self.txs[tx].request);
        match (status, msg.method()) {
            (100, _) | (400.., _) => {}
            (200, "CANCEL") => {}
            _ => panic!("{} made out of nothing", msg.start),
        }
        if status > 100 && request.to_tag().is_none() {
            let tag = msg.to_tag().unwrap_or_default();
            assert!(
                tag.starts_with("sbe-"),
                "an answer of ours with To tag {tag}: or one of others, changed:\n{}",
                { String::from_utf8_lossy(&msg.raw).into_owned() }
            );
        }
    }

    /// A call is given up only when every instance has had its turn.
    fn nothing_left_untried(&self, shard: &Shard, tx: usize, msg: &Msg) {
        let tx = &self.txs[tx];
        // A server that has said anything at all keeps the call.
        let kept = |a: &super::check::Attempt| {
            a.rang.is_some()
                || a.cancel.is_some()
                || (a.provisional.is_some() && a.final_.is_none() && a.failed.is_none())
        };
        let rang = tx.attempts.iter().any(|at| kept(&self.attempts[*at]));
        if tx.cancelled
            || self.jumped
            || rang
            || tx.request.get("route").is_some()
            || !matches!(msg.status(), 408 | 480 | 500)
        {
            return;
        }
        let records = shard.records(tx.request.call_id().as_bytes());
        let Some(record) = records.iter().rev().find(|r| r.attempts.len() == tx.attempts.len()) else {
            return;
        };
        let full = record.reason.starts_with("max_");
        if full || tx.attempts.len() >= self.fewest_tries() {
            return;
        }
        for located in record.legs.iter().filter_map(|l| l.located.as_ref()) {
            for instance in located.instances() {
                let tried = tx.attempts.iter().any(|at| self.attempts[*at].to == instance);
                assert!(tried, "{} although {instance} was never tried", msg.start);
            }
        }
    }
}
