//! A server instance: does what the script in the request says, as far as its mode lets it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::parts::{Act, Client, Dialog, Path, T2};
use super::plan::Mode;
use super::{Ev, MS, Micros};
use crate::msg::{Msg, reply};

/// A server's own timers, each for the transaction of this key.
#[derive(Clone, Copy, Debug)]
pub enum Wake {
    Ring,
    Answer,
    /// Repeat the final response.
    Again,
    /// After a CANCEL.
    Cancelled,
    Bye,
    /// Repeat client transaction n.
    Resend(usize),
    Expire(usize),
}

#[derive(Debug)]
struct Tx {
    path: Path,
    request: Msg,
    last: Vec<u8>,
    status: u16,
    acked: bool,
    interval: Micros,
    waited: Micros,
    tag: String,
}

#[derive(Debug)]
pub struct Server {
    pub n: usize,
    pub addr: SocketAddr,
    pub mode: Mode,
    pub partitioned: bool,
    t1: Micros,
    txs: BTreeMap<u64, Tx>,
    keys: BTreeMap<(String, String), u64>,
    dialogs: BTreeMap<u64, Dialog>,
    clients: Vec<Client>,
    next: u64,
}

/// A number in the script: `name=123`.
fn number(script: &str, name: &str) -> Option<u64> {
    script.split(',').find_map(|p| p.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

impl Server {
    pub fn new(n: usize, addr: SocketAddr, t1: Micros) -> Self {
        Self {
            n,
            addr,
            mode: Mode::Normal,
            partitioned: false,
            t1,
            txs: BTreeMap::new(),
            keys: BTreeMap::new(),
            dialogs: BTreeMap::new(),
            clients: Vec::new(),
            next: 0,
        }
    }

    fn later(&self, after: Micros, key: u64, wake: Wake) -> Act {
        Act::Later(after, Ev::Server(self.n, key, wake))
    }

    fn contact(&self) -> String {
        format!("Contact: <sip:bob@{}>", self.addr)
    }

    /// It begins anew, with nothing remembered.
    pub fn restart(&mut self) {
        self.txs.clear();
        self.keys.clear();
        self.dialogs.clear();
        for client in &mut self.clients {
            client.done = true;
        }
    }

    /// It takes nothing in and lets nothing out.
    pub fn is_off(&self) -> bool {
        matches!(self.mode, Mode::Closed | Mode::BlackHole) || self.partitioned
    }

    pub fn receive(&mut self, path: Path, msg: &Msg, acts: &mut Vec<Act>) {
        if !msg.is_request() {
            if msg.status() >= 200
                && let Some(client) = self.clients.iter_mut().find(|c| c.matches(msg))
            {
                client.done = true;
            }
            return;
        }
        match msg.method() {
            "ACK" => return self.on_ack(msg),
            "CANCEL" => return self.on_cancel(path, msg, acts),
            _ => {}
        }
        let known = (msg.branch(0), msg.method().to_string());
        if let Some(key) = self.keys.get(&known) {
            if let Some(tx) = self.txs.get(key)
                && !tx.last.is_empty()
            {
                acts.push(Act::Send(path, tx.last.clone()));
            }
            return;
        }
        self.next += 1;
        let key = self.next;
        self.keys.insert(known, key);
        let tag = format!("s{}k{key}", self.n);
        let tx = Tx {
            path,
            request: msg.clone(),
            last: Vec::new(),
            status: 0,
            acked: false,
            interval: self.t1,
            waited: 0,
            tag,
        };
        self.txs.insert(key, tx);
        self.begin(key, msg, acts);
    }

    fn begin(&mut self, key: u64, msg: &Msg, acts: &mut Vec<Act>) {
        let late = match self.mode {
            Mode::Overloaded(after) => {
                let extra: Vec<String> = after.map(|s| format!("Retry-After: {s}")).into_iter().collect();
                return self.respond(key, 503, &extra, acts);
            }
            Mode::Slow(late) => late,
            _ => 0,
        };
        let script = msg.get("x-sim").unwrap_or("").to_string();
        if msg.method() != "INVITE" || msg.to_tag().is_some() {
            acts.push(self.later(late + 2 * MS, key, Wake::Answer));
            return;
        }
        if late == 0 && key.is_multiple_of(2) {
            self.respond(key, 100, &[], acts);
        }
        if let Some(ring) = number(&script, "ring") {
            acts.push(self.later(late + ring * MS, key, Wake::Ring));
        }
        if let Some(at) = number(&script, "at") {
            acts.push(self.later(late + at * MS, key, Wake::Answer));
        }
    }

    fn respond(&mut self, key: u64, status: u16, extra: &[String], acts: &mut Vec<Act>) {
        let contact = self.contact();
        let Some(tx) = self.txs.get_mut(&key) else { return };
        if tx.status >= 200 {
            return;
        }
        let mut rows = extra.to_vec();
        if status < 300 && status > 100 {
            rows.push(contact);
            rows.push("x-SECRET : of the server".into());
            rows.push("X-Answer:  spaced   out ,\r\n folded".into());
        }
        let body: &[u8] = if status == 200 { b"v=0\r\n\x00answer" } else { b"" };
        tx.status = status;
        tx.last = reply(&tx.request, status, &tx.tag, &rows, body);
        acts.push(Act::Send(tx.path, tx.last.clone()));
        let invite = tx.request.method() == "INVITE";
        if status < 200 || !invite {
            return;
        }
        if status == 200 || !tx.path.tcp {
            let after = tx.interval;
            acts.push(self.later(after, key, Wake::Again));
        }
        if status == 200 {
            let Some(tx) = self.txs.get(&key) else { return };
            if tx.request.to_tag().is_none() {
                self.dialogs.insert(key, Dialog::of_invite(&tx.request, &tx.tag));
                if let Some(bye) = tx.request.get("x-sim").and_then(|s| number(s, "bye")) {
                    acts.push(self.later(bye * MS, key, Wake::Bye));
                }
            }
        }
    }

    fn on_ack(&mut self, msg: &Msg) {
        let same = |t: &&mut Tx| {
            t.request.method() == "INVITE"
                && t.request.call_id() == msg.call_id()
                && t.request.cseq() == msg.cseq()
                && (msg.branch(0) == t.request.branch(0) || t.status < 300)
                && msg.to_tag().is_some_and(|tag| tag == t.tag || t.request.to_tag().as_ref() == Some(&tag))
        };
        if let Some(tx) = self.txs.values_mut().find(same) {
            tx.acked = true;
        }
    }

    fn on_cancel(&mut self, path: Path, msg: &Msg, acts: &mut Vec<Act>) {
        let invite = self.keys.get(&(msg.branch(0), "INVITE".to_string())).copied();
        let status = if invite.is_some() { 200 } else { 481 };
        acts.push(Act::Send(path, reply(msg, status, "cancel", &[], b"")));
        let Some(key) = invite else { return };
        let Some(tx) = self.txs.get(&key) else { return };
        if tx.status >= 200 || tx.waited > 0 {
            return;
        }
        match tx.request.get("x-sim").and_then(|s| s.split(',').find_map(|p| p.strip_prefix("cancel="))) {
            Some("deaf") => {}
            Some("race") => self.respond(key, 200, &[], acts),
            _ => acts.push(self.later(MS, key, Wake::Cancelled)),
        }
    }

    pub fn wake(&mut self, key: u64, wake: Wake, acts: &mut Vec<Act>) {
        match wake {
            Wake::Ring => self.ring(key, acts),
            Wake::Answer => self.answer(key, acts),
            Wake::Cancelled => self.respond(key, 487, &[], acts),
            Wake::Again => {
                let Some(tx) = self.txs.get_mut(&key) else { return };
                tx.waited += tx.interval;
                if tx.acked || tx.waited >= 64 * self.t1 {
                    return;
                }
                acts.push(Act::Send(tx.path, tx.last.clone()));
                tx.interval = (tx.interval * 2).min(T2);
                let after = tx.interval;
                acts.push(self.later(after, key, Wake::Again));
            }
            Wake::Bye => self.bye(key, acts),
            Wake::Resend(at) => {
                let Some(client) = self.clients.get_mut(at) else { return };
                if let Some(after) = client.again() {
                    acts.push(Act::Send(client.path, client.bytes.clone()));
                    acts.push(self.later(after, key, Wake::Resend(at)));
                }
            }
            Wake::Expire(at) => {
                if let Some(client) = self.clients.get_mut(at) {
                    client.done = true;
                }
            }
        }
    }

    fn ring(&mut self, key: u64, acts: &mut Vec<Act>) {
        let Some(tx) = self.txs.get(&key) else { return };
        if tx.status >= 200 {
            return;
        }
        let every = tx.request.get("x-sim").and_then(|s| number(s, "every"));
        let status = if tx.status < 180 { 180 } else { 183 };
        self.respond(key, status, &[], acts);
        // At most twelve times: a call that rings for ever is not the point.
        let Some(tx) = self.txs.get_mut(&key) else { return };
        tx.interval += 1;
        if let Some(every) = every
            && tx.interval < self.t1 + 12
        {
            acts.push(self.later(every * MS, key, Wake::Ring));
        }
    }

    fn answer(&mut self, key: u64, acts: &mut Vec<Act>) {
        let Some(tx) = self.txs.get_mut(&key) else { return };
        tx.interval = self.t1;
        let script = tx.request.get("x-sim").unwrap_or("").to_string();
        let status = match number(&script, "final") {
            Some(407) if tx.request.get("proxy-authorization").is_some() => 200,
            Some(status) if tx.request.to_tag().is_none() => u16::try_from(status).unwrap_or(200),
            _ => 200,
        };
        let status = if tx.request.method() == "MESSAGE" && status == 407 { 200 } else { status };
        self.respond(key, status, &[], acts);
    }

    fn bye(&mut self, key: u64, acts: &mut Vec<Act>) {
        let (n, addr) = (self.n, self.addr);
        let at = self.clients.len();
        let Some(dialog) = self.dialogs.get_mut(&key) else { return };
        let Some((to, tcp)) = dialog.first_hop() else { return };
        let request = dialog.request("BYE", addr, &format!("s{n}b{at}"), tcp);
        let path = Path { tcp, from: addr, to, conn: None };
        let client = Client::new(path, &request, self.t1);
        acts.push(Act::Send(path, client.bytes.clone()));
        if !tcp {
            acts.push(self.later(self.t1, key, Wake::Resend(at)));
        }
        acts.push(self.later(64 * self.t1, key, Wake::Expire(at)));
        self.clients.push(client);
    }
}
