//! `sbe upgrade`, SIGUSR2 and socket activation with real processes: who takes over, who ends, and that calls go on.
#![allow(clippy::unwrap_used)]

mod node;

use std::io::BufReader;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use node::{LINGER, Line, Message, PATIENCE, Phone, Sbe, answer, request, running, within};

/// A call from the core to the peer, up to its INVITE there.
fn begin(sbe: &Sbe, core: &Phone, peer: &Phone, call: &str) -> Message {
    core.send(sbe.udp, &request("INVITE", &format!("sip:b@{}", peer.addr), core.addr, "udp", call));
    core.wait(" 100 ");
    loop {
        let invite = peer.wait("INVITE ");
        if invite.get("Call-ID") == format!("{call}@x") {
            return invite;
        }
    }
}

/// From the INVITE at the peer on to the end.
fn finish(sbe: &Sbe, core: &Phone, peer: &Phone, invite: &Message) {
    let ok = pick_up(sbe, core, peer, invite);
    hang_up(sbe, core, peer, &ok);
}

fn pick_up(sbe: &Sbe, core: &Phone, peer: &Phone, invite: &Message) -> Message {
    peer.answer(sbe.udp, invite, "180 Ringing");
    core.wait(" 180 ");
    peer.answer(sbe.udp, invite, "200 OK");
    let ok = core.wait(" 200 ");
    core.send(sbe.udp, &within(&ok, "ACK", core.addr, "udp", 1));
    peer.wait("ACK ");
    ok
}

fn hang_up(sbe: &Sbe, core: &Phone, peer: &Phone, ok: &Message) {
    core.send(sbe.udp, &within(ok, "BYE", core.addr, "udp", 2));
    let bye = peer.wait("BYE ");
    peer.answer(sbe.udp, &bye, "200 OK");
    while !core.wait(" 200 ").get("CSeq").contains("BYE") {}
}

#[test]
fn calls_go_on_over_three_upgrades_and_each_old_process_ends_with_0() {
    let mut sbe = Sbe::start("three");
    let (core, peer) = (Phone::new("127.0.0.11"), Phone::new("127.0.0.21"));
    assert_eq!(sbe.status()["generation"], 1);
    let first = u64::from(sbe.child.id());
    let mut established = None;
    for generation in 2..=4u64 {
        let invite = begin(&sbe, &core, &peer, &format!("rings{generation}"));
        let begun = Instant::now();
        let (status, text, errors) = sbe.ask("upgrade");
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{}", sbe.log());
        assert!(text.ends_with(&format!("has taken over, generation {generation}\n")), "{text}");
        assert_eq!(sbe.next_ready().len(), 3);
        let now = sbe.status();
        assert_eq!(now["generation"], generation);
        assert!(now["predecessor"].is_u64() && now["successor"].is_null(), "{now}");
        assert_eq!(sbe.metric("sbe_upgrade_stage"), 1.0);
        // Both processes have calls now.
        let later = begin(&sbe, &core, &peer, &format!("later{generation}"));
        finish(&sbe, &core, &peer, &invite);
        finish(&sbe, &core, &peer, &later);
        if let Some(ok) = established.take() {
            // Set up two processes ago.
            hang_up(&sbe, &core, &peer, &ok);
        }
        established =
            Some(pick_up(&sbe, &core, &peer, &begin(&sbe, &core, &peer, &format!("stays{generation}"))));
        sbe.until("the old one ends", |now| now["predecessor"].is_null());
        assert!(begun.elapsed() >= LINGER, "not before its transactions are over");
        // The new one reads the socket itself.
        let alone = begin(&sbe, &core, &peer, &format!("alone{generation}"));
        finish(&sbe, &core, &peer, &alone);
        assert_eq!(sbe.metric("sbe_upgrade_stage"), 0.0);
    }
    assert_eq!(sbe.first_ended(), Some(0));
    let pids = running(&sbe.dir);
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_ne!(pids, [first]);
    assert!(!sbe.log().contains("ERROR"), "{}", sbe.log());
}

#[test]
fn a_configuration_or_a_program_that_cannot_serve_changes_nothing_and_is_told() {
    let sbe = Sbe::start("broken");
    let (core, peer) = (Phone::new("127.0.0.11"), Phone::new("127.0.0.21"));
    let invite = begin(&sbe, &core, &peer, "before");
    peer.answer(sbe.udp, &invite, "180 Ringing");
    core.wait(" 180 ");

    std::fs::write(sbe.dir.join("sbe.toml"), "[node]\nnmae = 1\n").unwrap();
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("the new process cannot start") && errors.contains("sbe.toml:2:"), "{errors}");

    // An address that is not ours: only binding tells.
    let elsewhere = node::CONFIG.replacen("127.0.0.1:0", "192.0.2.1:5060", 1);
    std::fs::write(sbe.dir.join("sbe.toml"), elsewhere).unwrap();
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("192.0.2.1:5060"), "{errors}");
    std::fs::write(sbe.dir.join("sbe.toml"), node::CONFIG).unwrap();

    sbe.install(Path::new("/bin/false"));
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("ended before it was ready (exit status: 1)"), "{errors}");

    sbe.install(Path::new("/nonexistent/sbe"));
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("cannot start"), "{errors}");

    let sleeper = sbe.dir.join("sleeper");
    std::fs::write(&sleeper, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&sleeper, PermissionsExt::from_mode(0o755)).unwrap();
    sbe.install(&sleeper);
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("was not ready within"), "{errors}");

    assert_eq!(sbe.metric("sbe_upgrades_total{outcome=\"failed\"}"), 5.0);
    assert_eq!(running(&sbe.dir), [u64::from(sbe.child.id())], "nothing else is left running");
    let now = sbe.status();
    assert_eq!((&now["generation"], &now["ready"]), (&1.into(), &true.into()));
    finish(&sbe, &core, &peer, &invite);
    let after = begin(&sbe, &core, &peer, "after");
    finish(&sbe, &core, &peer, &after);
}

#[test]
fn only_one_upgrade_at_a_time_and_none_while_draining() {
    let sbe = Sbe::start("once");
    let (core, peer) = (Phone::new("127.0.0.11"), Phone::new("127.0.0.21"));
    let _rings = begin(&sbe, &core, &peer, "rings");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    let (status, _, errors) = sbe.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("the last upgrade is not over"), "{errors}");
    assert_eq!(sbe.metric("sbe_upgrades_total{outcome=\"refused\"}"), 1.0);
    assert_eq!(sbe.ask("drain").0, Some(0));
    let audit = sbe.get("/api/v1/audit");
    assert!(audit.contains("/api/v1/upgrade"), "{audit}");
    let other = Sbe::start("draining");
    assert_eq!(other.ask("drain").0, Some(0));
    let (status, _, errors) = other.ask("upgrade");
    assert_eq!(status, Some(1));
    assert!(errors.contains("draining"), "{errors}");
}

#[test]
fn if_the_new_process_dies_the_old_one_serves_again() {
    let mut sbe = Sbe::start("dies");
    let (core, peer) = (Phone::new("127.0.0.11"), Phone::new("127.0.0.21"));
    let invite = begin(&sbe, &core, &peer, "rings");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    let pid = sbe.until("the new one answers", |now| now["generation"] == 2)["pid"].as_u64().unwrap();
    sbe.signal("-KILL", pid);
    let begun = Instant::now();
    while !sbe.log().contains("this one serves again") {
        assert!(begun.elapsed() < PATIENCE, "{}", sbe.log());
        std::thread::yield_now();
    }
    let now = sbe.until("the old one answers", |now| now["generation"] == 1);
    assert_eq!(now["pid"].as_u64(), Some(sbe.child.id().into()));
    assert_eq!(sbe.metric("sbe_upgrades_total{outcome=\"returned\"}"), 1.0);
    finish(&sbe, &core, &peer, &invite);
    let after = begin(&sbe, &core, &peer, "after");
    finish(&sbe, &core, &peer, &after);
    let mut line = Line::open("127.0.0.11", sbe.tcp);
    let options = request("OPTIONS", "sip:edge.test", line.addr, "tcp", "options");
    line.send(&options);
    line.wait(" 200 ");
    // And another try succeeds.
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    assert_eq!(sbe.first_ended(), Some(0));
}

#[test]
fn what_ends_the_new_process_ends_the_old_one_too() {
    let mut sbe = Sbe::start("ends");
    let (core, peer) = (Phone::new("127.0.0.11"), Phone::new("127.0.0.21"));
    let invite = begin(&sbe, &core, &peer, "rings");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    let pid = sbe.until("the new one answers", |now| now["generation"] == 2)["pid"].as_u64().unwrap();
    sbe.signal("-TERM", pid);
    // Both drain: the call under way in the old one still gets its answer.
    let begun = Instant::now();
    while sbe.log().matches("draining").count() < 2 {
        assert!(begun.elapsed() < PATIENCE, "{}", sbe.log());
        std::thread::yield_now();
    }
    peer.answer(sbe.udp, &invite, "486 Busy Here");
    core.wait(" 486 ");
    assert_eq!(sbe.first_ended(), Some(0));
    while !running(&sbe.dir).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{}", sbe.log());
        std::thread::yield_now();
    }
}

#[test]
fn connections_stay_with_the_old_process_until_nothing_is_under_way_on_them() {
    let mut sbe = Sbe::start("tcp");
    let peer = Phone::new("127.0.0.21");
    let mut line = Line::open("127.0.0.11", sbe.tcp);
    let mut idle = Line::open("127.0.0.11", sbe.tcp);
    let mut half = Line::open("127.0.0.11", sbe.tcp);
    let options = request("OPTIONS", "sip:edge.test", half.addr, "tcp", "half");
    half.send(&options[..100]);
    line.send(&request("INVITE", &format!("sip:b@{}", peer.addr), line.addr, "tcp", "rings"));
    line.wait(" 100 ");
    let invite = peer.wait("INVITE ");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    assert!(idle.next().is_none(), "nothing is under way: closed in an orderly way");
    // A half message is waited for, and served.
    half.send(&options[100..]);
    half.wait(" 200 ");
    assert!(half.next().is_none());
    // So is a request on a connection that has a call to wait for.
    line.send(&request("OPTIONS", "sip:edge.test", line.addr, "tcp", "meanwhile"));
    line.wait(" 200 ");
    peer.answer(sbe.udp, &invite, "200 OK");
    let ok = line.wait(" 200 ");
    line.send(&within(&ok, "ACK", line.addr, "tcp", 1));
    peer.wait("ACK ");
    assert!(line.next().is_none(), "the call is set up: closed");
    // The next request comes by a new connection, to the new process.
    let mut line = Line::open("127.0.0.11", sbe.tcp);
    line.send(&within(&ok, "BYE", line.addr, "tcp", 2));
    let bye = peer.wait("BYE ");
    peer.answer(sbe.udp, &bye, "200 OK");
    line.wait(" 200 ");
    assert_eq!(sbe.first_ended(), Some(0));
    // What it accepted is still there.
    line.send(&request("OPTIONS", "sip:edge.test", line.addr, "tcp", "after"));
    line.wait(" 200 ");
}

#[test]
fn a_connection_to_a_peer_serves_the_call_that_was_begun_on_it() {
    let mut sbe = Sbe::start("out");
    let core = Phone::new("127.0.0.11");
    let server = std::net::TcpListener::bind("127.0.0.21:0").unwrap();
    let at = server.local_addr().unwrap();
    core.send(sbe.udp, &request("INVITE", &format!("sip:b@{at};transport=tcp"), core.addr, "udp", "rings"));
    let (stream, _) = server.accept().unwrap();
    let mut line = Line::of(stream);
    let invite = line.wait("INVITE ");
    line.send(&answer(&invite, "180 Ringing", at, "tcp"));
    core.wait(" 180 ");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    line.send(&answer(&invite, "200 OK", at, "tcp"));
    let ok = core.wait(" 200 ");
    core.send(sbe.udp, &within(&ok, "ACK", core.addr, "udp", 1));
    // Of the dialog, so the new process's: by a connection of its own.
    let (stream, _) = server.accept().unwrap();
    let mut other = Line::of(stream);
    other.wait("ACK ");
    assert!(line.next().is_none(), "the old one's is closed");
    drop(line);
    core.send(sbe.udp, &within(&ok, "BYE", core.addr, "udp", 2));
    let bye = other.wait("BYE ");
    other.send(&answer(&bye, "200 OK", at, "tcp"));
    while !core.wait(" 200 ").get("CSeq").contains("BYE") {}
    assert_eq!(sbe.first_ended(), Some(0));
}

#[test]
fn requests_that_cross_the_farewell_of_a_connection_are_answered_at_their_sent_by() {
    let mut sbe = Sbe::start("cross");
    let home = std::net::TcpListener::bind("127.0.0.11:0").unwrap();
    let at = home.local_addr().unwrap();
    let mut line = Line::open("127.0.0.11", sbe.tcp);
    let mut ask = |call: &str| line.send(&request("OPTIONS", "sip:edge.test", at, "tcp", call));
    ask("before");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    // Nobody reads here: the farewell comes, and this end does not know of it yet.
    std::thread::sleep(Duration::from_millis(500));
    for call in ["first", "second", "third"] {
        ask(call);
        let answer = node::accepted(&home).wait(" 200 ");
        assert_eq!(answer.get("Call-ID"), format!("{call}@x"));
    }
    assert_eq!(line.wait(" 200 ").get("Call-ID"), "before@x");
    assert!(line.next().is_none(), "closed in an orderly way, not reset");
    drop(line);
    assert_eq!(sbe.first_ended(), Some(0));
}

#[test]
fn a_connection_is_kept_for_a_call_that_rings_longer_than_transactions_last() {
    let mut sbe = Sbe::start("rings-long");
    let mut line = Line::open("127.0.0.11", sbe.tcp);
    let server = std::net::TcpListener::bind("127.0.0.21:0").unwrap();
    let at = server.local_addr().unwrap();
    line.send(&request("INVITE", &format!("sip:b@{at};transport=tcp"), line.addr, "tcp", "rings"));
    line.wait(" 100 ");
    let (stream, _) = server.accept().unwrap();
    let mut called = Line::of(stream);
    let invite = called.wait("INVITE ");
    called.send(&answer(&invite, "180 Ringing", at, "tcp"));
    line.wait(" 180 ");
    assert_eq!(sbe.ask("upgrade").0, Some(0));
    sbe.next_ready();
    for side in [&mut line, &mut called] {
        assert!(side.is_quiet_for(LINGER), "a call rings on it");
    }
    called.send(&answer(&invite, "200 OK", at, "tcp"));
    let ok = line.wait(" 200 ");
    assert_eq!(ok.get("Call-ID"), "rings@x");
    assert!(called.next().is_none() && line.next().is_none(), "nothing is under way any more");
    drop((called, line));
    assert_eq!(sbe.first_ended(), Some(0));
}

#[test]
fn the_service_manager_is_told_which_process_to_follow() {
    let path = std::env::temp_dir().join(format!("sbe-upgrade-notify-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut room = [0; 512];
        loop {
            let n = manager.recv(&mut room).unwrap();
            let text = String::from_utf8_lossy(&room[..n]).trim().to_owned();
            if text != "WATCHDOG=1" {
                return text;
            }
        }
    };
    let mut sbe =
        Sbe::start_in("notify", &[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")]);
    assert_eq!(next(), "READY=1");
    sbe.signal("-USR2", sbe.child.id().into());
    sbe.next_ready();
    let pid = sbe.until("the new one answers", |now| now["generation"] == 2)["pid"].clone();
    assert_eq!(next(), format!("MAINPID={pid}"), "said by the old one, which is still the one to follow");
    assert_eq!(next(), "READY=1");
    assert_eq!(sbe.first_ended(), Some(0));
    // The old one says nothing more, the new one that it lives.
    let mut room = [0; 512];
    let n = manager.recv(&mut room).unwrap();
    assert_eq!(&room[..n].trim_ascii(), b"WATCHDOG=1");
    sbe.signal("-TERM", pid.as_u64().unwrap());
    assert_eq!(next(), "STOPPING=1");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn sockets_of_the_service_manager_are_taken_for_the_listeners_of_their_addresses() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, tcp_at) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
    let dir = std::env::temp_dir().join(format!("sbe-activated-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("sbe.toml");
    let config = node::CONFIG.replacen("127.0.0.1:0", &at.to_string(), 1).replacen(
        "127.0.0.1:0",
        &tcp_at.to_string(),
        1,
    );
    std::fs::write(&file, config).unwrap();
    // As the service manager does it: descriptors from 3 on, and who they are for.
    let script =
        "exec 3<&0 4<&2 2>/dev/null </dev/null; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" run --config \"$1\"";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_sbe"), file.to_str().unwrap()])
        .stdin(Stdio::from(OwnedFd::from(udp)))
        .stderr(Stdio::from(OwnedFd::from(tcp)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The addresses are taken, so that only the sockets left can have made it ready.
    let lines = node::until_ready(&mut BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(
        lines[..2],
        [format!("listening udp {at} realm=both\n"), format!("listening tcp {tcp_at} realm=both\n")]
    );
    let core = Phone::new("127.0.0.11");
    core.send(at, &request("OPTIONS", "sip:edge.test", core.addr, "udp", "o1"));
    core.wait(" 200 ");
    let mut line = Line::open("127.0.0.11", tcp_at);
    line.send(&request("OPTIONS", "sip:edge.test", line.addr, "tcp", "o2"));
    line.wait(" 200 ");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    std::fs::remove_dir_all(&dir).unwrap();
}
