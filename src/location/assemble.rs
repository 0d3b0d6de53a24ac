//! Answers to tiers of servers (RFC 2782, RFC 3263 §4.2, RFC 7984).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::candidate::{FOREVER, LeftOutReason, Located, Outcome, Server, Tier};
use super::question::{Answer, DnsStep, Question, RecordKind, Records, StepOutcome, normal_name};
use super::resolve::{
    Branch, LeftOutList, MAX_ADDRESSES, MAX_CANDIDATES, MAX_SRV, Reply, Resolution, UNANSWERED_HOLD,
    sorted_srv,
};
use crate::flow::{Host, Transport};

impl Resolution {
    /// The result, as far as it is known by now; see [`Resolution::finished`].
    pub fn into_located(mut self, now: Instant) -> Located {
        let mut left_out = std::mem::take(&mut self.left_out);
        let mut room = MAX_CANDIDATES;
        let mut tiers = Vec::new();
        for branch in &self.branches {
            self.tiers_of(branch, &mut tiers, &mut room, &mut left_out);
        }
        if let Some((transport, port)) = self.direct {
            tiers.extend(self.direct_tier(transport, port, &mut left_out));
        }
        let outcome = if tiers.is_empty() { self.failure() } else { Outcome::Found };
        let expires = self.expires(now);
        let steps = self.asked.iter().map(|a| step(&a.question, &a.reply, now)).collect();
        let mut located = Located::from_tiers(self.key, tiers, outcome, expires);
        located.left_out = left_out.0;
        located.steps = steps;
        located
    }

    /// The tiers of one SRV answer: one for each priority that has a server.
    fn tiers_of(&self, branch: &Branch, tiers: &mut Vec<Tier>, room: &mut usize, left_out: &mut LeftOutList) {
        let set = match self.reply(&branch.name, RecordKind::Srv) {
            Some(Reply::Answered(Answer::Records(set), _)) => set,
            Some(Reply::Answered(Answer::NoData | Answer::NxDomain, _)) => {
                if branch.naptr.is_some() {
                    left_out.push(LeftOutReason::NoSuchService, || format!("{}. SRV", branch.name));
                }
                return;
            }
            _ => {
                return left_out.push(LeftOutReason::LookupFailed, || format!("{}. SRV", branch.name));
            }
        };
        let records = sorted_srv(set);
        if set.len() > records.len() {
            left_out.push(LeftOutReason::OverLimit, || {
                format!(
                    "{}. SRV: {} records beyond the first {MAX_SRV}",
                    branch.name,
                    set.len() - records.len()
                )
            });
        }
        // Where a target and port are listed: in which tier and place.
        let mut seen: HashMap<(Arc<str>, u16), u16, ahash::RandomState> = HashMap::default();
        let mut group: Vec<Server> = Vec::new();
        let mut records = records.into_iter().peekable();
        while let Some(record) = records.next() {
            match self.server(
                record.target.clone(),
                record.port,
                record.weight,
                branch.transport,
                room,
                left_out,
            ) {
                Err(reason) => {
                    left_out.push(reason, || format!("{}. SRV {}", branch.name, record.describe()))
                }
                Ok(server) => {
                    let at = (Arc::clone(&server.target), server.port);
                    if let Some(priority) = seen.get(&at) {
                        left_out.push(LeftOutReason::Duplicate, || {
                            format!("{}. SRV {}", branch.name, record.describe())
                        });
                        // The order within an answer means nothing, so neither may it here.
                        let twin =
                            group.iter_mut().find(|s| s.target == server.target && s.port == server.port);
                        if *priority == record.priority
                            && let Some(twin) = twin
                        {
                            twin.weight = twin.weight.max(server.weight);
                        }
                    } else {
                        *room = room.saturating_sub(server.addrs.len());
                        seen.insert(at, record.priority);
                        group.push(server);
                    }
                }
            }
            let ends = records.peek().is_none_or(|next| next.priority != record.priority);
            if ends && !group.is_empty() {
                tiers.push(Tier::new(branch.naptr, record.priority, std::mem::take(&mut group)));
            }
        }
    }

    fn server(
        &self,
        target: Arc<str>,
        port: u16,
        weight: u16,
        transport: Transport,
        room: &usize,
        left_out: &mut LeftOutList,
    ) -> Result<Server, LeftOutReason> {
        if matches!(&*target, "" | ".") {
            return Err(LeftOutReason::NotOffered);
        }
        if port == 0 {
            return Err(LeftOutReason::NoPort);
        }
        let name = normal_name(&target).ok_or(LeftOutReason::BadName)?;
        let mut addrs = self.addresses(&name, transport, left_out)?;
        if *room == 0 {
            return Err(LeftOutReason::OverLimit);
        }
        addrs.truncate(*room);
        Ok(Server::new(transport, name, port, weight, addrs))
    }

    /// The host itself as the only server.
    fn direct_tier(&self, transport: Transport, port: u16, left_out: &mut LeftOutList) -> Option<Tier> {
        let (target, addrs) = match &self.key.host {
            Host::Addr(addr) => {
                let text: Arc<str> = addr.to_string().into();
                (text, self.usable(*addr, transport).map(|a| SmallVec::from_slice(&[a])))
            }
            Host::Name(name) => (Arc::clone(name), self.addresses(name, transport, left_out)),
        };
        match addrs {
            Ok(addrs) if port != 0 => {
                Some(Tier::new(None, 0, vec![Server::new(transport, target, port, 0, addrs)]))
            }
            Ok(_) => {
                left_out.push(LeftOutReason::NoPort, || target.to_string());
                None
            }
            Err(reason) => {
                left_out.push(reason, || target.to_string());
                None
            }
        }
    }

    /// The addresses of a name, in the order of trying: IPv6 before IPv4 (the default policy table of
    /// RFC 6724 §2.1), within a family as received.
    fn addresses(
        &self,
        name: &Arc<str>,
        transport: Transport,
        left_out: &mut LeftOutList,
    ) -> Result<SmallVec<[IpAddr; 2]>, LeftOutReason> {
        let mut addrs: SmallVec<[IpAddr; 2]> = SmallVec::new();
        let (mut failed, mut over) = (false, false);
        let wanted = [
            (RecordKind::Aaaa, self.enabled.asks_aaaa(transport)),
            (RecordKind::A, self.enabled.asks_a(transport)),
        ];
        for (kind, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            let records: &[IpAddr] = match self.reply(name, kind) {
                Some(Reply::Answered(Answer::Records(set), _)) => match &set.records {
                    Records::Addr(records) => records,
                    Records::Naptr(_) | Records::Srv(_) => &[],
                },
                Some(Reply::Answered(Answer::NoData | Answer::NxDomain, _)) => &[],
                Some(_) => {
                    failed = true;
                    &[]
                }
                // There were too many names to ask for this one.
                None => {
                    over = true;
                    &[]
                }
            };
            for addr in records {
                match self.usable(*addr, transport) {
                    Ok(addr) if addrs.contains(&addr) => {}
                    Ok(_) if addrs.len() >= MAX_ADDRESSES => {
                        left_out
                            .push(LeftOutReason::OverLimit, || format!("{name}. {} {addr}", kind.label()));
                        break;
                    }
                    Ok(addr) => addrs.push(addr),
                    Err(reason) => left_out.push(reason, || format!("{name}. {} {addr}", kind.label())),
                }
            }
        }
        if !addrs.is_empty() {
            Ok(addrs)
        } else if failed {
            Err(LeftOutReason::LookupFailed)
        } else if over {
            Err(LeftOutReason::OverLimit)
        } else {
            Err(LeftOutReason::NoAddress)
        }
    }

    /// An address that can be sent to, an IPv4-mapped one as IPv4. Records may hold any address; those
    /// that mean this host or many hosts must not lead a request anywhere.
    fn usable(&self, addr: IpAddr, transport: Transport) -> Result<IpAddr, LeftOutReason> {
        let addr = addr.to_canonical();
        let broadcast = matches!(addr, IpAddr::V4(a) if a.is_broadcast());
        if addr.is_unspecified() || addr.is_multicast() || broadcast {
            Err(LeftOutReason::UnusableAddress)
        } else if self.enabled.can_reach(transport, addr) {
            Ok(addr)
        } else {
            Err(LeftOutReason::FamilyNotEnabled)
        }
    }

    /// Why there is no candidate.
    fn failure(&self) -> Outcome {
        if self.no_transport {
            return Outcome::NoTransport;
        }
        let (mut slow, mut failed) = (false, false);
        for asked in &self.asked {
            match &asked.reply {
                Reply::Answered(Answer::Timeout, _) | Reply::Open | Reply::GivenUp(_) => slow = true,
                Reply::Answered(Answer::ServFail, _) => failed = true,
                Reply::Answered(..) => {}
            }
        }
        // What is not known could have been a candidate.
        if slow {
            return Outcome::TimedOut;
        }
        if failed {
            return Outcome::DnsFailure;
        }
        let srv: Vec<_> =
            self.branches.iter().filter_map(|b| self.records(&b.name, RecordKind::Srv)).collect();
        if !srv.is_empty() {
            let mut records = srv.iter().flat_map(|set| sorted_srv(set)).peekable();
            let refused = records.peek().is_some() && records.all(|r| r.is_not_offered());
            return if refused { Outcome::NotOffered } else { Outcome::NoAddress };
        }
        match (&self.key.host, self.direct) {
            (Host::Addr(addr), Some((transport, _))) if !self.enabled.can_reach(transport, *addr) => {
                Outcome::NoTransport
            }
            (Host::Addr(_), _) => Outcome::NoAddress,
            (Host::Name(name), _) => {
                let replies = [RecordKind::A, RecordKind::Aaaa].map(|kind| self.reply(name, kind));
                let exists =
                    replies.into_iter().flatten().any(|r| !matches!(r, Reply::Answered(Answer::NxDomain, _)));
                if exists { Outcome::NoAddress } else { Outcome::NoSuchName }
            }
        }
    }

    /// The smallest lifetime of all answers; what is missing may be there a moment later.
    fn expires(&self, now: Instant) -> Instant {
        self.asked.iter().fold(now + FOREVER, |least, asked| {
            least.min(match &asked.reply {
                Reply::Answered(_, meta) => meta.expires,
                Reply::Open | Reply::GivenUp(_) => now + UNANSWERED_HOLD,
            })
        })
    }
}

fn step(question: &Question, reply: &Reply, now: Instant) -> DnsStep {
    match reply {
        Reply::Answered(answer, meta) => DnsStep::answered(question.clone(), answer, meta, now),
        Reply::GivenUp(outcome) => DnsStep::unanswered(question.clone(), *outcome),
        Reply::Open => DnsStep::unanswered(question.clone(), StepOutcome::OutOfTime),
    }
}
