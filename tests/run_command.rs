//! `sbe run` as a process: what it prints, how it ends, what signals do.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running `sbe`, ended when dropped.
struct Sbe {
    child: Child,
    out: BufReader<ChildStdout>,
    file: PathBuf,
    listener: String,
}

impl Sbe {
    fn start(name: &str, drain_timeout: &str) -> Self {
        Self::start_with(name, &configuration(drain_timeout))
    }

    fn start_with(name: &str, text: &str) -> Self {
        Self::start_in(name, text, &[])
    }

    /// With these variables in its environment.
    fn start_in(name: &str, text: &str, environment: &[(&str, &str)]) -> Self {
        let file = std::env::temp_dir().join(format!("sbe-run-{}-{name}.toml", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sbe"))
            .args(["run", "--config", file.to_str().unwrap()])
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "ended after {lines:?}");
            if line == "ready\n" {
                break;
            }
            lines.push(line);
        }
        assert!(lines[0].starts_with("listening udp 127.0.0.1:"), "{lines:?}");
        assert!(lines[0].ends_with(" realm=both\n"), "{lines:?}");
        let listener = lines[0].split(' ').nth(2).unwrap().to_owned();
        Self { child, out, file, listener }
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Waits for the end; gives the exit status and what the log said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing more on the standard output");
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Sbe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

fn configuration(drain_timeout: &str) -> String {
    format!(
        "[node]\nname = \"edge.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\n\
         [core]\nnext_hops = [\"sip:127.0.0.11:5999\"]\nsources = [\"127.0.0.11/32\"]\n\
         [dns]\nservers = [\"127.0.0.1:9\"]\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [runtime]\nworkers = 2\ndrain_timeout = \"{drain_timeout}\"\n\
         [[peer]]\nname = \"sp1\"\ndomains = [\"127.0.0.21\"]\nsources = [\"127.0.0.21/32\"]\n"
    )
}

/// An INVITE to a peer that never answers; returns once the 100 has come.
fn hanging_call(sbe: &Sbe) -> (UdpSocket, UdpSocket) {
    let core = UdpSocket::bind("127.0.0.11:0").unwrap();
    let peer = UdpSocket::bind("127.0.0.21:0").unwrap();
    core.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (from, to) = (core.local_addr().unwrap(), peer.local_addr().unwrap());
    let invite = format!(
        "INVITE sip:bob@{to} SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK1;rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@edge.test>;tag=1\r\nTo: <sip:bob@{to}>\r\nCall-ID: hanging@x\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n"
    );
    core.send_to(invite.as_bytes(), &sbe.listener).unwrap();
    let mut room = [0; 4096];
    let (n, _) = core.recv_from(&mut room).unwrap();
    assert!(room[..n].starts_with(b"SIP/2.0 100 "));
    (core, peer)
}

#[test]
fn an_idle_node_ends_with_0_on_either_signal() {
    for signal in ["-TERM", "-INT"] {
        let sbe = Sbe::start(&format!("idle{signal}"), "60s");
        sbe.signal(signal);
        let (status, log) = sbe.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(log.contains("draining"), "{log}");
    }
}

#[test]
fn a_call_under_way_is_waited_for_until_drain_timeout() {
    let sbe = Sbe::start("drain", "300ms");
    let _sockets = hanging_call(&sbe);
    sbe.signal("-TERM");
    let (status, log) = sbe.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("drain_timeout"), "{log}");
}

#[test]
fn a_second_signal_ends_a_draining_node_at_once() {
    let sbe = Sbe::start("second", "10m");
    let (core, _peer) = hanging_call(&sbe);
    sbe.signal("-TERM");
    // A new request is refused from then on; when it is, the first signal has been heard.
    let options = format!(
        "OPTIONS sip:bob@127.0.0.21 SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bKNR;rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@edge.test>;tag=2\r\nTo: <sip:bob@127.0.0.21>\r\nCall-ID: oNR@x\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n",
        core.local_addr().unwrap()
    );
    let mut room = [0; 4096];
    for n in 0.. {
        assert!(n < 1000, "it never drains");
        core.send_to(options.replace("NR", &n.to_string()).as_bytes(), &sbe.listener).unwrap();
        core.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        if core.recv_from(&mut room).is_ok_and(|(n, _)| room[..n].starts_with(b"SIP/2.0 503 ")) {
            break;
        }
    }
    sbe.signal("-TERM");
    let (status, log) = sbe.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("a second signal"), "{log}");
}

#[test]
fn a_faulty_configuration_read_again_changes_nothing_and_its_errors_are_logged() {
    let mut sbe = Sbe::start("hup", "60s");
    std::fs::write(&sbe.file, configuration("60s") + "wrong_key = 1\n").unwrap();
    sbe.signal("-HUP");
    let mut log = BufReader::new(sbe.child.stderr.take().unwrap());
    let mut lines = Vec::new();
    while !lines.iter().any(|l: &String| l.contains("not taken over")) {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "{lines:?}");
        lines.push(line);
    }
    assert!(lines.iter().any(|l| l.contains("-hup.toml:20:1: unknown key \"wrong_key\"")), "{lines:?}");
    sbe.signal("-TERM");
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(sbe.child.wait().unwrap().code(), Some(0), "{rest}");
}

#[test]
fn errors_of_the_configuration_end_with_2() {
    for command in ["run", "check"] {
        let out = Command::new(env!("CARGO_BIN_EXE_sbe"))
            .args([command, "--config", "config/bad/syntax.toml"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2));
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(text.starts_with("config/bad/syntax.toml:"), "{text}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn an_address_that_another_program_has_ends_with_1_and_a_way_to_find_that_program() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = std::env::temp_dir().join(format!("sbe-run-{}-taken.toml", std::process::id()));
    let text = configuration("1s").replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string());
    std::fs::write(&file, text).unwrap();
    let run = ["run", "--config", file.to_str().unwrap()];
    let done = Command::new(env!("CARGO_BIN_EXE_sbe")).args(run).output().unwrap();
    let _ = std::fs::remove_file(&file);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("another program has it, `ss -lnptu` tells which"), "{said}");
}

#[test]
fn check_refuses_a_secret_that_run_would_refuse() {
    let dir = std::env::temp_dir();
    let file = dir.join(format!("sbe-run-{}-secret.toml", std::process::id()));
    let secret = dir.join(format!("sbe-run-{}-secret", std::process::id()));
    let text = format!("{}\n[sip]\ndialog_secret_file = \"{}\"\n", configuration("1s"), secret.display());
    std::fs::write(&file, text).unwrap();
    for (octets, want) in [("short", 2), ("0123456789abcdef0123456789abcdef", 0)] {
        std::fs::write(&secret, octets).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_sbe"))
            .args(["check", "--config", file.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(want), "{said}");
        assert_eq!(said.contains("dialog_secret_file"), want == 2, "{said}");
    }
    let _ = (std::fs::remove_file(file), std::fs::remove_file(secret));
}

/// Sends an INVITE that is refused at once, and waits for the answer.
fn refused_call(sbe: &Sbe, peer: &UdpSocket, number: usize) {
    let from = peer.local_addr().unwrap();
    let invite = format!(
        "INVITE sip:bob@elsewhere.test SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{number};rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:{0}@sp1.test>;tag=1\r\nTo: <sip:bob@elsewhere.test>\r\n\
         Call-ID: refused-{number}@x\r\nCSeq: 1 INVITE\r\nContact: <sip:a@{from}>\r\nContent-Length: 0\r\n\r\n",
        "a".repeat(800)
    );
    peer.send_to(invite.as_bytes(), &sbe.listener).unwrap();
    let mut room = [0; 4096];
    loop {
        let (n, _) = peer.recv_from(&mut room).unwrap();
        let answer = String::from_utf8_lossy(&room[..n]).into_owned();
        if answer.starts_with("SIP/2.0 4") && answer.contains(&format!("Call-ID: refused-{number}@x")) {
            return;
        }
    }
}

#[test]
fn records_on_the_standard_output_whose_reader_stops_hold_up_neither_calls_nor_the_end() {
    let text = configuration("1s") + "[records]\noutput = \"stdout\"\n";
    let mut sbe = Sbe::start_with("records", &text);
    let peer = UdpSocket::bind("127.0.0.21:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    refused_call(&sbe, &peer, 0);
    let mut line = String::new();
    sbe.out.read_line(&mut line).unwrap();
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&record["call_id"], &record["from"]), (&"refused-0@x".into(), &"sp1".into()));

    // Some 300 KiB of lines into a pipe that holds 64.
    for number in 1..=250 {
        refused_call(&sbe, &peer, number);
    }
    let begun = std::time::Instant::now();
    sbe.signal("-TERM");
    let status = loop {
        if let Some(status) = sbe.child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it hangs");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_service_manager_is_told_of_readiness_reloads_life_and_the_end() {
    let path = std::env::temp_dir().join(format!("sbe-notify-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let next = |wanted: &str| {
        let mut room = [0; 512];
        loop {
            let n = manager.recv(&mut room).unwrap();
            let text = String::from_utf8_lossy(&room[..n]).into_owned();
            if text.contains(wanted) {
                return text;
            }
            assert!(text.starts_with("WATCHDOG=1"), "{text} instead of {wanted}");
        }
    };
    let socket = path.to_str().unwrap();
    let environment = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "200000")];
    let sbe = Sbe::start_in("notify", &configuration("1s"), &environment);
    next("READY=1");
    next("WATCHDOG=1");
    sbe.signal("-HUP");
    assert!(next("RELOADING=1").contains("MONOTONIC_USEC="));
    next("READY=1");
    sbe.signal("-TERM");
    next("STOPPING=1");
    assert_eq!(sbe.end().0, Some(0));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_reload_that_hangs_on_a_pipe_does_not_hold_up_the_end() {
    let mut sbe = Sbe::start("pipe", "10s");
    std::fs::remove_file(&sbe.file).unwrap();
    assert!(Command::new("mkfifo").arg(&sbe.file).status().unwrap().success());
    for _ in 0..5 {
        sbe.signal("-HUP");
    }
    // It hangs once it has opened the pipe: a writer that need not wait shows that.
    let begun = std::time::Instant::now();
    let nonblocking = || {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&sbe.file)
    };
    let _writer = loop {
        match nonblocking() {
            Ok(writer) => break writer,
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(10), "it never reads its configuration"),
        }
    };
    let begun = std::time::Instant::now();
    sbe.signal("-TERM");
    let status = loop {
        if let Some(status) = sbe.child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "it hangs");
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(0));
}
