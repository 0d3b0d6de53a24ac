//! A running `sbe` that lets others take over, and who talks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// 64*T1 of the configuration: how long an old process has to stay at least.
pub const LINGER: Duration = Duration::from_millis(64 * 20);

/// The process that was started first, and what has come of it since.
pub struct Sbe {
    pub child: Child,
    out: BufReader<ChildStdout>,
    pub dir: PathBuf,
    pub udp: SocketAddr,
    pub tcp: SocketAddr,
    pub admin: SocketAddr,
}

impl Sbe {
    pub fn start(name: &str) -> Self {
        Self::start_in(name, &[])
    }

    /// With these variables in its environment.
    pub fn start_in(name: &str, environment: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("sbe-upgrade-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("sbe.toml"), CONFIG).unwrap();
        symlink(env!("CARGO_BIN_EXE_sbe"), dir.join("sbe")).unwrap();
        let mut child = Command::new(dir.join("sbe"))
            .args(["run", "--config", "sbe.toml"])
            .current_dir(&dir)
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let lines = until_ready(&mut out);
        let at = |n: usize, word: usize| {
            let text = lines[n].split(' ').nth(word).unwrap();
            text.trim().trim_start_matches("http://").parse::<SocketAddr>().unwrap()
        };
        Self { udp: at(0, 2), tcp: at(1, 2), admin: at(2, 1), child, out, dir }
    }

    /// What the next process prints until it is ready.
    pub fn next_ready(&mut self) -> Vec<String> {
        until_ready(&mut self.out)
    }

    pub fn signal(&self, signal: &str, pid: u64) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    /// The program that the next upgrade starts.
    pub fn install(&self, program: &Path) {
        let link = self.dir.join("sbe");
        std::fs::remove_file(&link).unwrap();
        symlink(program, link).unwrap();
    }

    /// `sbe COMMAND`: exit status, standard output, standard error.
    pub fn ask(&self, command: &str) -> (Option<i32>, String, String) {
        let url = format!("http://{}", self.admin);
        let done = Command::new(env!("CARGO_BIN_EXE_sbe")).args([command, "--admin", &url]).output().unwrap();
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }

    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.admin).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/api/v1/status")).unwrap()
    }

    pub fn metric(&self, row: &str) -> f64 {
        let text = self.get("/metrics");
        let value = text.lines().find_map(|l| l.strip_prefix(row)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {row} in {text}")).parse().unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// Asks until it is so.
    pub fn until(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if so(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {status}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the first process.
    pub fn first_ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Sbe {
    fn drop(&mut self) {
        // Whatever runs of it: all have this directory's file as their configuration, and the pipe is their output.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in running(&self.dir) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Processes whose working directory this is.
pub fn running(dir: &Path) -> Vec<u64> {
    let is = |pid: &u64| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir);
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u64>().ok()).filter(is).collect()
}

pub fn until_ready(out: &mut BufReader<ChildStdout>) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "ended after {lines:?}");
        if line == "ready\n" {
            return lines;
        }
        lines.push(line);
    }
}

/// T1 is short, so that transactions are over soon.
pub const CONFIG: &str = r#"
[node]
name = "edge.test"
[[listen]]
transport = "udp"
bind = "127.0.0.1:0"
[[listen]]
transport = "tcp"
bind = "127.0.0.1:0"
[sip]
t1 = "20ms"
[core]
next_hops = ["sip:127.0.0.11:5999"]
sources = ["127.0.0.11/32"]
[dns]
servers = ["127.0.0.1:9"]
[admin]
bind = "127.0.0.1:0"
[runtime]
workers = 2
drain_timeout = "10s"
[[peer]]
name = "sp1"
domains = ["127.0.0.21"]
sources = ["127.0.0.21/32"]
"#;

/// A message as far as the tests look at it.
#[derive(Clone, Debug)]
pub struct Message(pub String);

impl Message {
    pub fn start(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).collect()
    }

    pub fn get(&self, name: &str) -> &str {
        self.all(name).first().copied().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// One end of a call.
pub struct Phone {
    pub socket: UdpSocket,
    pub addr: SocketAddr,
}

impl Phone {
    pub fn new(ip: &str) -> Self {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let addr = socket.local_addr().unwrap();
        Self { socket, addr }
    }

    pub fn send(&self, to: SocketAddr, text: &str) {
        self.socket.send_to(text.as_bytes(), to).unwrap();
    }

    /// The next message whose start line holds this; others (repeated ones) are passed over.
    pub fn wait(&self, wanted: &str) -> Message {
        let mut room = [0; 65536];
        loop {
            let (n, _) = self.socket.recv_from(&mut room).unwrap_or_else(|e| panic!("no {wanted}: {e}"));
            let message = Message(String::from_utf8_lossy(&room[..n]).into_owned());
            if message.start().contains(wanted) {
                return message;
            }
        }
    }

    /// Answers a request.
    pub fn answer(&self, to: SocketAddr, request: &Message, status: &str) {
        self.send(to, &answer(request, status, self.addr, "udp"));
    }
}

pub fn answer(request: &Message, status: &str, at: SocketAddr, transport: &str) -> String {
    let mut text = format!("SIP/2.0 {status}\r\n");
    for name in ["Via", "Record-Route", "From", "Call-ID", "CSeq"] {
        for value in request.all(name) {
            text += &format!("{name}: {value}\r\n");
        }
    }
    let to = request.get("To");
    let tag = if to.contains(";tag=") { "" } else { ";tag=answered" };
    text +=
        &format!("To: {to}{tag}\r\nContact: <sip:b@{at};transport={transport}>\r\nContent-Length: 0\r\n\r\n");
    text
}

/// A request outside a dialog.
pub fn request(method: &str, uri: &str, from: SocketAddr, transport: &str, call: &str) -> String {
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{} {from};branch=z9hG4bK{call};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@edge.test>;tag=1\r\nTo: <{uri}>\r\nCall-ID: {call}@x\r\nCSeq: 1 {method}\r\n\
         Contact: <sip:a@{from};transport={transport}>\r\nContent-Length: 0\r\n\r\n",
        transport.to_uppercase()
    )
}

/// A request within the dialog that this 200 has made.
pub fn within(ok: &Message, method: &str, from: SocketAddr, transport: &str, cseq: u32) -> String {
    let uri = ok.get("Contact").trim_matches(['<', '>']);
    let mut text = format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{} {from};branch=z9hG4bK{method}{}{cseq};rport\r\nMax-Forwards: 70\r\n",
        transport.to_uppercase(),
        ok.get("Call-ID").trim_end_matches("@x")
    );
    for route in ok.all("Record-Route").iter().rev() {
        text += &format!("Route: {route}\r\n");
    }
    text +=
        &format!("From: {}\r\nTo: {}\r\nCall-ID: {}\r\n", ok.get("From"), ok.get("To"), ok.get("Call-ID"));
    text += &format!("CSeq: {cseq} {method}\r\nContent-Length: 0\r\n\r\n");
    text
}

/// A TCP connection to the element.
pub struct Line {
    pub stream: TcpStream,
    pub addr: SocketAddr,
    unread: String,
}

impl Line {
    pub fn open(ip: &str, to: SocketAddr) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(ip.parse().unwrap(), 0).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        Self::of(TcpStream::from(socket))
    }

    pub fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let addr = stream.local_addr().unwrap();
        Self { stream, addr, unread: String::new() }
    }

    pub fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// The next message (none here has a body); `None`: the other end has closed.
    pub fn next(&mut self) -> Option<Message> {
        let mut room = [0; 65536];
        loop {
            if let Some(at) = self.unread.find("\r\n\r\n") {
                let rest = self.unread.split_off(at + 4);
                return Some(Message(std::mem::replace(&mut self.unread, rest)));
            }
            match self.stream.read(&mut room).unwrap() {
                0 => return None,
                n => self.unread += &String::from_utf8_lossy(&room[..n]),
            }
        }
    }

    pub fn wait(&mut self, wanted: &str) -> Message {
        loop {
            let message = self.next().unwrap_or_else(|| panic!("closed before {wanted}"));
            if message.start().contains(wanted) {
                return message;
            }
        }
    }

    /// Nothing comes for so long, the end of the connection neither.
    pub fn is_quiet_for(&self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let quiet = self.stream.peek(&mut [0]).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        quiet
    }
}

/// The next connection that comes, within [`PATIENCE`].
pub fn accepted(listener: &TcpListener) -> Line {
    listener.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return Line::of(stream);
            }
            Err(e) => assert!(begun.elapsed() < PATIENCE, "no connection comes: {e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
