//! Puts together what the check of a zone judges: each question to each server, past all caches of ours.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{Client, Look, RESOLV_CONF, look};
use super::upstream::{Failure, Found};
use super::zone::ZoneFile;
use crate::location::Question;
use crate::location::zone::{Fact, Facts, Seen};

/// Questions under way at the same time.
const AT_ONCE: usize = 16;

/// Most servers that are asked.
pub const MAX_SURVEY_SERVERS: usize = 8;

/// Who is asked.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A name server.
    Server(SocketAddr),
    /// A zone file.
    File(Arc<ZoneFile>),
}

impl Asked {
    /// The name servers of the system.
    pub fn system() -> Vec<Self> {
        Client::new(&[], Path::new(RESOLV_CONF)).servers().into_iter().map(Self::Server).collect()
    }

    fn name(&self) -> String {
        match self {
            Self::Server(addr) => addr.to_string(),
            Self::File(file) => file.file().to_owned(),
        }
    }
}

enum Source {
    Server(Client),
    File(Arc<ZoneFile>),
}

impl Source {
    async fn ask(&self, question: &Question) -> Fact {
        match self {
            Self::Server(client) => fact(client.look(question).await),
            Self::File(file) => {
                let seen = look(&**file, question).await;
                let end = seen.aliases.last().unwrap_or(&question.name);
                if file.holds(end) { fact(seen) } else { Fact { seen: Seen::OutOfReach, ..fact(seen) } }
            }
        }
    }
}

fn fact(look: Look) -> Fact {
    let seen = match look.reply.found {
        Found::Records(set, ttl) => Seen::Records { set, ttl, uneven: look.uneven },
        Found::NxDomain(_) => Seen::NxDomain,
        Found::NoData(_) => Seen::NoData,
        Found::Failure(failure) => Seen::Failed(match failure {
            Failure::ServFail => "servfail",
            Failure::Refused => "refused",
            Failure::Other => "error",
            Failure::Malformed => "malformed",
            Failure::Aliases => "aliases",
            Failure::Timeout | Failure::Busy => SILENT,
        }),
    };
    Fact { seen, aliases: look.aliases, authoritative: look.authoritative }
}

/// The word for a server that says nothing.
const SILENT: &str = "timeout";

/// Asks all that is to be known of `domain`; a server that is silent to everything at first is not asked again.
/// `None`: this is no domain name.
pub async fn survey(domain: &str, asked: &[Asked]) -> Option<Facts> {
    let asked = asked.get(..MAX_SURVEY_SERVERS).unwrap_or(asked);
    let mut facts = Facts::new(domain, asked.iter().map(Asked::name).collect())?;
    let sources: Vec<Arc<Source>> = asked
        .iter()
        .map(|a| {
            Arc::new(match a {
                Asked::Server(addr) => Source::Server(Client::new(&[*addr], Path::new(RESOLV_CONF))),
                Asked::File(file) => Source::File(file.clone()),
            })
        })
        .collect();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut gone: HashSet<usize> = HashSet::new();
    loop {
        let questions = facts.questions();
        if questions.is_empty() || gone.len() == sources.len() {
            return Some(facts);
        }
        let mut running = JoinSet::new();
        for (index, source) in sources.iter().enumerate().filter(|(index, _)| !gone.contains(index)) {
            for question in &questions {
                let (source, question, permits) = (source.clone(), question.clone(), permits.clone());
                running.spawn(async move {
                    let _permit = permits.acquire_owned().await;
                    let fact = source.ask(&question).await;
                    (index, question, fact)
                });
            }
        }
        let mut spoken: HashSet<usize> = HashSet::new();
        while let Some(done) = running.join_next().await {
            // A task that was lost leaves a question open, which must not be asked for ever.
            let Ok((index, question, fact)) = done else { return Some(facts) };
            if fact.seen != Seen::Failed(SILENT) {
                spoken.insert(index);
            }
            facts.put(question, index, fact);
        }
        gone.extend((0..sources.len()).filter(|index| !spoken.contains(index)));
    }
}
