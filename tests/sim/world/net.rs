//! Datagrams that get lost, doubled and late; connections that keep their order until they are reset.

use std::net::SocketAddr;

use sbe::flow::ConnId;
use sbe::shard::SendToken;

use super::Micros;
use super::dice::Dice;

/// A connection between the element and an agent.
#[derive(Clone, Debug)]
pub struct Conn {
    pub id: u64,
    /// The element's listener.
    pub listener: u16,
    /// The agent's end.
    pub remote: SocketAddr,
    pub by_element: bool,
    pub born: Micros,
    pub state: ConnState,
    /// Messages of the element that wait for it to open, with their tokens.
    pub waiting: Vec<(Vec<u8>, Option<SendToken>)>,
    /// Requests of the element went over it.
    pub carried_requests: bool,
    /// When the last message of each direction arrives: order is kept. [to agent, to element]
    last: [Micros; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    Connecting,
    Open,
    /// The agent's end is gone; the element does not know yet.
    Dying,
    Closed,
}

impl Conn {
    /// When a message sent now arrives.
    pub fn arrival(&mut self, now: Micros, latency: Micros, to_element: bool) -> Micros {
        let last = &mut self.last[usize::from(to_element)];
        *last = (now + latency).max(*last + 1);
        *last
    }

    pub fn usable(&self) -> bool {
        matches!(self.state, ConnState::Connecting | ConnState::Open | ConnState::Dying)
    }

    pub fn id(&self) -> ConnId {
        ConnId(self.id)
    }
}

#[derive(Debug)]
pub struct Net {
    pub dice: Dice,
    pub loss: u64,
    pub duplicates: u64,
    pub latency: (Micros, Micros),
    pub conns: Vec<Conn>,
}

impl Net {
    pub fn latency(&mut self) -> Micros {
        self.dice.range(self.latency.0, self.latency.1)
    }

    /// When the copies of a datagram arrive: none, one or two times.
    pub fn datagram(&mut self) -> Vec<Micros> {
        let mut all = Vec::new();
        if !self.dice.permille(self.loss) {
            all.push(self.latency());
        }
        if self.dice.permille(self.duplicates) {
            let late = self.dice.range(0, 300_000);
            all.push(self.latency() + late);
        }
        all
    }

    pub fn open(&mut self, listener: u16, remote: SocketAddr, by_element: bool, now: Micros) -> u64 {
        let id = self.conns.len() as u64 + 1;
        self.conns.push(Conn {
            id,
            listener,
            remote,
            by_element,
            born: now,
            state: if by_element { ConnState::Connecting } else { ConnState::Open },
            waiting: Vec::new(),
            carried_requests: false,
            last: [0; 2],
        });
        id
    }

    pub fn conn(&mut self, id: u64) -> Option<&mut Conn> {
        self.conns.get_mut(usize::try_from(id).ok()?.checked_sub(1)?)
    }

    /// The newest connection that the element may use for this hop, as its pool would find it.
    pub fn pooled(&self, listeners: &[u16], remote: SocketAddr, fresh: bool, now: Micros) -> Option<u64> {
        self.conns
            .iter()
            .rev()
            .find(|c| {
                c.usable()
                    && c.remote == remote
                    && listeners.contains(&c.listener)
                    && (!fresh || (c.by_element && now - c.born < 1_000_000))
            })
            .map(|c| c.id)
    }
}
