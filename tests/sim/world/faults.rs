//! What goes wrong, done.

use std::sync::Arc;

use sbe::shard::Update;

use super::net::ConnState;
use super::plan::{Fault, Mode};
use super::{Ev, World};

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        self.traced(&format!("fault {fault:?}"), b"");
        match fault {
            Fault::Mode(n, mode) => {
                let was = std::mem::replace(&mut self.servers[n].mode, mode);
                if mode == Mode::Closed {
                    self.reset_conns(self.servers[n].addr);
                }
                if was == Mode::Closed {
                    self.servers[n].restart();
                }
            }
            Fault::Partition(n, on) => self.servers[n].partitioned = on,
            Fault::CallersOff(on) => self.callers_off = on,
            Fault::Reset(n) => self.reset_conns(self.servers[n].addr),
            Fault::ResetCallers => {
                for n in 0..self.callers.len() {
                    self.reset_conns(self.callers[n].addr());
                }
            }
            Fault::DnsDown(down) => self.dns.down = down,
            Fault::Unlisted(host) => self.dns.zone.drop_addr(&host),
            Fault::Jump(by) => {
                self.skew += by;
                self.check.jumped = true;
            }
            Fault::Reload => {
                self.policy = Arc::clone(&self.reload);
                self.dns.forget();
                self.update_all(&Update::Policy(Arc::clone(&self.reload)));
            }
            Fault::Drain(on) => self.update_all(&Update::Drain(on)),
        }
    }

    /// All connections to this address die; the element learns it a little later.
    fn reset_conns(&mut self, remote: std::net::SocketAddr) {
        let latency = self.net.latency();
        let mut dying = Vec::new();
        for conn in self.net.conns.iter_mut().filter(|c| c.remote == remote && c.state == ConnState::Open) {
            conn.state = ConnState::Dying;
            dying.push(conn.id);
        }
        for id in dying {
            self.later(latency, Ev::Gone(id));
        }
    }
}
