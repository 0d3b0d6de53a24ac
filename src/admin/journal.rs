//! What happened lately: instances that fell and came back, overload, draining. Seen by looking once a second, so
//! what comes and goes within a second may be missed. Bounded; knows no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::location::Instance;
use crate::runtime::glance::Fallen;

/// Happenings kept.
const KEPT: usize = 200;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instance is avoided, with the word for why.
    Down(Instance, &'static str),
    /// It is used again, after so long.
    Up(Instance, Duration),
    /// New calls are being shed, or are not any more.
    Shedding(bool),
    /// Draining has begun, or ended.
    Draining(bool),
}

/// The last happenings.
#[derive(Debug, Default)]
pub struct Journal {
    events: VecDeque<(Instant, Event)>,
    fallen: Fallen,
    shedding: bool,
    draining: bool,
}

impl Journal {
    /// Takes in how things stand.
    pub fn look(&mut self, now: Instant, fallen: Fallen, shedding: bool, draining: bool) {
        let before = std::mem::replace(&mut self.fallen, fallen);
        let mut news: Vec<(Instant, Event)> = Vec::new();
        for (instance, (since, _)) in &before {
            // Down again since another moment: it was up in between.
            if self.fallen.get(instance).is_none_or(|(again, _)| again != since) {
                news.push((now, Event::Up(*instance, now.saturating_duration_since(*since))));
            }
        }
        for (instance, (since, reason)) in &self.fallen {
            if before.get(instance).is_none_or(|(was, _)| was != since) {
                news.push((*since, Event::Down(*instance, reason)));
            }
        }
        if std::mem::replace(&mut self.shedding, shedding) != shedding {
            news.push((now, Event::Shedding(shedding)));
        }
        if std::mem::replace(&mut self.draining, draining) != draining {
            news.push((now, Event::Draining(draining)));
        }
        news.sort_by_key(|(at, _)| *at);
        self.events.extend(news);
        let over = self.events.len().saturating_sub(KEPT);
        self.events.drain(..over);
    }

    /// The last so many, newest first.
    pub fn last(&self, most: usize) -> impl Iterator<Item = &(Instant, Event)> {
        self.events.iter().rev().take(most)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::flow::Transport;

    fn at(n: u16) -> Instance {
        Instance { transport: Transport::Udp, addr: SocketAddr::from(([127, 0, 0, 1], n)) }
    }

    fn events(journal: &Journal) -> Vec<Event> {
        journal.last(usize::MAX).map(|(_, e)| *e).collect()
    }

    #[test]
    fn a_fall_and_a_return_are_told_once_each() {
        let (mut journal, t0) = (Journal::default(), Instant::now());
        let second = |n| t0 + Duration::from_secs(n);
        journal.look(t0, Fallen::new(), false, false);
        let down = Fallen::from([(at(1), (second(1), "silence"))]);
        journal.look(second(2), down.clone(), false, false);
        journal.look(second(3), down, false, false);
        assert_eq!(events(&journal), [Event::Down(at(1), "silence")]);
        assert_eq!(
            journal.last(1).next().map(|(t, _)| *t),
            Some(second(1)),
            "when it fell, not when it was seen"
        );
        journal.look(second(5), Fallen::new(), false, false);
        assert_eq!(events(&journal)[0], Event::Up(at(1), Duration::from_secs(4)));
        assert_eq!(journal.last(usize::MAX).count(), 2);
    }

    #[test]
    fn one_that_fell_again_between_two_looks_was_up() {
        let (mut journal, t0) = (Journal::default(), Instant::now());
        let second = |n| t0 + Duration::from_secs(n);
        journal.look(second(1), Fallen::from([(at(1), (t0, "icmp"))]), false, false);
        journal.look(second(3), Fallen::from([(at(1), (second(2), "tls"))]), false, false);
        assert_eq!(events(&journal).len(), 3);
        assert!(events(&journal).contains(&Event::Down(at(1), "tls")));
    }

    #[test]
    fn overload_and_draining_are_told_and_the_oldest_go() {
        let (mut journal, t0) = (Journal::default(), Instant::now());
        journal.look(t0, Fallen::new(), true, false);
        journal.look(t0, Fallen::new(), false, true);
        assert_eq!(events(&journal), [Event::Draining(true), Event::Shedding(false), Event::Shedding(true)]);
        for n in 0..1000 {
            journal.look(t0, Fallen::new(), n % 2 == 0, true);
        }
        assert_eq!(journal.last(usize::MAX).count(), KEPT);
    }
}
