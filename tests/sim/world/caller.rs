//! A caller: one INVITE with all that may follow, or one MESSAGE.

use std::net::SocketAddr;

use super::parts::{Act, Client, Dialog, Note, Path, odd_rows};
use super::plan::{Job, JobKind};
use super::{Ev, MS, Micros};
use crate::msg::{Msg, Request, reply};

/// A caller's own timers.
#[derive(Clone, Copy, Debug)]
pub enum Wake {
    Start,
    /// Repeat client transaction n.
    Again(usize),
    /// Its 64*T1 are over.
    Expire(usize),
    Cancel,
    Reinvite,
    /// Hang up dialog n.
    Bye(usize),
}

#[derive(Debug)]
pub struct Caller {
    pub n: usize,
    pub job: Job,
    path: Path,
    t1: Micros,
    clients: Vec<Client>,
    /// The INVITE in force (a digest retry makes a second one).
    invite: Option<(usize, Request)>,
    dialogs: Vec<Dialog>,
    /// ACKs of 2xx, by To tag and CSeq number.
    acks: Vec<(String, u32, Path, Vec<u8>)>,
    branches: u32,
    wants_cancel: bool,
    cancelled: bool,
    finals: u32,
}

impl Caller {
    pub fn new(n: usize, job: Job, to: SocketAddr, t1: Micros) -> Self {
        let ip = if job.core { format!("10.0.1.{}", n + 1) } else { format!("198.51.100.{}", 200 + n) };
        let from: SocketAddr = format!("{ip}:5060").parse().unwrap();
        let path = Path { tcp: job.tcp, from, to, conn: None };
        Self {
            n,
            job,
            path,
            t1,
            clients: Vec::new(),
            invite: None,
            dialogs: Vec::new(),
            acks: Vec::new(),
            branches: 0,
            wants_cancel: false,
            cancelled: false,
            finals: 0,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.path.from
    }

    /// Its connection has gone.
    pub fn lost(&mut self, conn: u64) {
        if self.path.conn == Some(conn) {
            self.path.conn = None;
        }
    }

    pub fn connected(&mut self, conn: u64) {
        self.path.conn = Some(conn);
    }

    fn branch(&mut self) -> String {
        self.branches += 1;
        format!("c{}n{}", self.n, self.branches)
    }

    pub fn wake(&mut self, wake: Wake, acts: &mut Vec<Act>) {
        match wake {
            Wake::Start => self.start(acts),
            Wake::Again(at) => {
                let n = self.n;
                let Some(client) = self.clients.get_mut(at) else { return };
                if let Some(after) = client.again() {
                    acts.push(Act::Send(client.path, client.bytes.clone()));
                    acts.push(Act::Later(after, Ev::Caller(n, Wake::Again(at))));
                }
            }
            Wake::Expire(at) => {
                let Some(client) = self.clients.get_mut(at) else { return };
                let waits = client.method == "INVITE" && client.provisional;
                if !(client.done || waits) {
                    client.done = true;
                    acts.push(Act::Note(Note::TimedOut));
                }
            }
            Wake::Cancel => {
                self.wants_cancel = true;
                self.try_cancel(acts);
            }
            Wake::Reinvite => self.in_dialog(0, "INVITE", acts),
            Wake::Bye(dialog) => self.in_dialog(dialog, "BYE", acts),
        }
    }

    fn start(&mut self, acts: &mut Vec<Act>) {
        let method = if matches!(self.job.kind, JobKind::Message) { "MESSAGE" } else { "INVITE" };
        let branch = self.branch();
        let call_id = format!("call{}-{}", self.n, if self.n.is_multiple_of(3) { "x@10.0.1.1" } else { "y" });
        let mut request = Request::new(method, &self.job.uri, &self.path.from.to_string(), &branch, &call_id);
        if self.job.tcp {
            request.vias = vec![format!("SIP/2.0/TCP {};branch=z9hG4bK{branch}", self.path.from)];
        } else if self.n % 4 == 1 {
            // Without rport: the answer goes to the port of the sent-by.
            request.vias = vec![format!("SIP/2.0/UDP {} ; branch = z9hG4bK{branch}", self.path.from)];
        }
        if self.n % 5 == 2 {
            request
                .vias
                .push("SIP/2.0/TCP inner.example.com;branch=z9hG4bKinner, SIP/2.0/UDP 1.2.3.4".into());
        }
        if self.n % 7 == 3 {
            request.max_forwards = None;
        }
        request.extra.push(format!("X-Sim: {}", self.job.script));
        request.extra.extend(odd_rows(self.job.at / MS + self.n as u64 * 37));
        request.body = if self.job.large {
            vec![b'z'; 1500]
        } else {
            vec![0, 1, b'\r', b'\n', b'\r', b'\n', 0xff, b'v']
        };
        if method == "INVITE" {
            self.invite = Some((self.clients.len(), request.clone()));
            if let JobKind::Call { cancel: Some(after), .. } = self.job.kind {
                acts.push(Act::Later(after, Ev::Caller(self.n, Wake::Cancel)));
            }
        }
        self.send(&request, self.path, acts);
    }

    fn send(&mut self, request: &Request, path: Path, acts: &mut Vec<Act>) {
        let client = Client::new(path, request, self.t1);
        let at = self.clients.len();
        acts.push(Act::Send(path, client.bytes.clone()));
        if !path.tcp {
            acts.push(Act::Later(self.t1, Ev::Caller(self.n, Wake::Again(at))));
        }
        acts.push(Act::Later(64 * self.t1, Ev::Caller(self.n, Wake::Expire(at))));
        self.clients.push(client);
    }

    fn try_cancel(&mut self, acts: &mut Vec<Act>) {
        let JobKind::Call { rash, .. } = self.job.kind else { return };
        let Some((at, invite)) = &self.invite else { return };
        let Some(client) = self.clients.get(*at) else { return };
        if self.cancelled || client.done || !(client.provisional || rash) {
            return;
        }
        self.cancelled = true;
        acts.push(Act::Note(Note::Cancelled));
        let mut cancel = invite.clone();
        cancel.method = "CANCEL".into();
        cancel.vias.truncate(1);
        cancel.extra.clear();
        cancel.body.clear();
        self.send(&cancel, self.path, acts);
    }

    /// A request within a dialog that is still there.
    fn in_dialog(&mut self, dialog: usize, method: &str, acts: &mut Vec<Act>) {
        let branch = self.branch();
        let Some(dialog) = self.dialogs.get_mut(dialog) else { return };
        let Some((to, tcp)) = dialog.first_hop() else { return };
        let path = Path { tcp, from: self.path.from, to, conn: self.path.conn.filter(|_| tcp) };
        let request = dialog.request(method, self.path.from, &branch, tcp);
        self.send(&request, path, acts);
    }

    /// Something has come for it.
    pub fn receive(&mut self, path: Path, msg: &Msg, acts: &mut Vec<Act>) {
        if msg.is_request() {
            let status = if msg.method() == "ACK" { return } else { 200 };
            let extra = [format!("Contact: <sip:alice@{}>", self.path.from)];
            acts.push(Act::Send(path, reply(msg, status, "caller", &extra, b"")));
            return;
        }
        let Some(at) = self.clients.iter().position(|c| c.matches(msg)) else { return };
        let status = msg.status();
        let client = &mut self.clients[at];
        if status < 200 {
            client.provisional = true;
            if self.wants_cancel {
                self.try_cancel(acts);
            }
            return;
        }
        let first = !client.done;
        client.done = true;
        let (path, bytes, method) = (client.path, client.bytes.clone(), client.method.clone());
        if method != "INVITE" {
            return;
        }
        if status >= 300 {
            acts.push(Act::Send(path, ack_of_failure(&bytes, msg)));
            if first && self.invite.as_ref().is_some_and(|(i, _)| *i == at) {
                self.failed(status, acts);
            }
            return;
        }
        self.answered(msg, acts);
    }

    fn failed(&mut self, status: u16, acts: &mut Vec<Act>) {
        self.finals += 1;
        acts.push(Act::Note(Note::Failed(status)));
        let Some((_, mut request)) = self.invite.take() else { return };
        if status == 407 && !self.cancelled {
            let branch = self.branch();
            let transport = if self.job.tcp { "TCP" } else { "UDP" };
            request.vias[0] = format!("SIP/2.0/{transport} {};branch=z9hG4bK{branch}", self.path.from);
            request.cseq += 1;
            request.extra.push("Proxy-Authorization: Digest username=\"a\"".into());
            self.invite = Some((self.clients.len(), request.clone()));
            self.send(&request, self.path, acts);
        }
    }

    /// A 2xx, perhaps once more, perhaps of another branch.
    fn answered(&mut self, msg: &Msg, acts: &mut Vec<Act>) {
        let tag = msg.to_tag().unwrap_or_default();
        if let Some((_, _, hop, ack)) = self.acks.iter().find(|(t, n, _, _)| *t == tag && *n == msg.cseq()) {
            acts.push(Act::Send(*hop, ack.clone()));
            return;
        }
        let branch = self.branch();
        let known = self.dialogs.iter().find(|d| d.remote_tag == tag).cloned();
        let mut dialog = known.clone().unwrap_or_else(|| Dialog::of_answer(msg));
        dialog.cseq = msg.cseq();
        let Some((to, tcp)) = dialog.first_hop() else { return };
        let hop = Path { tcp, from: self.path.from, to, conn: self.path.conn.filter(|_| tcp) };
        let ack = dialog.request("ACK", self.path.from, &branch, tcp).bytes();
        acts.push(Act::Send(hop, ack.clone()));
        self.acks.push((tag, msg.cseq(), hop, ack));
        if known.is_some() {
            // The answer to a re-INVITE.
            return;
        }
        let n = self.dialogs.len();
        self.dialogs.push(dialog);
        acts.push(Act::Note(if n == 0 { Note::Answered } else { Note::TwoAnswers }));
        let JobKind::Call { bye, reinvite, .. } = self.job.kind else { return };
        let hang_up: Option<Micros> = if n > 0 || self.cancelled { Some(20 * MS) } else { bye };
        if let Some(after) = hang_up {
            acts.push(Act::Later(after, Ev::Caller(self.n, Wake::Bye(n))));
        }
        if let (0, Some(after)) = (n, reinvite) {
            acts.push(Act::Later(after, Ev::Caller(self.n, Wake::Reinvite)));
        }
    }
}

/// RFC 3261 §17.1.1.3.
fn ack_of_failure(invite: &[u8], failure: &Msg) -> Vec<u8> {
    let Some(invite) = Msg::parse(invite) else { return Vec::new() };
    let mut out = format!("ACK {} SIP/2.0\r\nVia: {}\r\n", invite.uri(), invite.vias()[0]);
    for row in invite.rows.iter().filter(|r| r.name == "route") {
        out.push_str(&String::from_utf8_lossy(&row.raw));
    }
    out.push_str(&format!(
        "Max-Forwards: 70\r\nFrom: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {} ACK\r\nContent-Length: 0\r\n\r\n",
        invite.get("from").unwrap_or(""),
        failure.get("to").unwrap_or(""),
        invite.call_id(),
        invite.cseq(),
    ));
    out.into_bytes()
}
