//! A hostile server on a socket, and a whole element whose calls have to go on as if it were not there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::demo::caller::Caller;
use sbe::demo::dns::{Dns, Zone};
use sbe::demo::instance::Instance;
use sbe::demo::world;
use sbe::flow::Transport;
use sbe::runtime::node::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::memory::{ALONE, most};

/// How long something may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// What it does with each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Closes it.
    Closes,
    /// Resets it in the middle of a body.
    Breaks,
    /// One octet of the body a second.
    SlowBody,
    /// One octet of the headers a second.
    SlowHeaders,
    /// Headers without end.
    EndlessHeaders,
    /// Informational answers without end.
    Continues,
    /// A body without end, in chunks.
    EndlessBody,
    /// Says that the body is the longest possible.
    HugeLength,
    /// No HTTP.
    Noise,
    /// Challenges without end.
    Challenges,
}

const ALL: [(Manner, &str); 10] = [
    (Manner::Closes, "the answer broke off"),
    (Manner::Breaks, "the answer broke off"),
    (Manner::SlowBody, "no whole answer within 5 s"),
    (Manner::SlowHeaders, "no whole answer within 5 s"),
    (Manner::EndlessHeaders, "the answer broke off"),
    (Manner::Continues, "no whole answer within 5 s"),
    (Manner::EndlessBody, "longer than 1048576 octets"),
    (Manner::HugeLength, "longer than 1048576 octets"),
    (Manner::Noise, "the answer broke off"),
    (Manner::Challenges, "HTTP 401"),
];

async fn behave(mut stream: TcpStream, manner: Manner) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let _ = stream.read(&mut buffer).await?;
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/alto-directory+json\r\n";
    match manner {
        Manner::Closes => return Ok(()),
        Manner::Breaks => {
            stream.write_all(head).await?;
            stream.write_all(b"Content-Length: 1000\r\n\r\n{\"meta\":").await?;
            return Ok(());
        }
        Manner::SlowBody => {
            stream.write_all(head).await?;
            stream.write_all(b"Content-Length: 1000\r\n\r\n").await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Manner::SlowHeaders => loop {
            stream.write_all(if stream.nodelay()? { b"x" } else { b"H" }).await?;
            stream.set_nodelay(true)?;
            tokio::time::sleep(Duration::from_secs(7)).await;
        },
        Manner::EndlessHeaders => {
            stream.write_all(head).await?;
            loop {
                stream
                    .write_all(
                        b"X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
                    )
                    .await?;
            }
        }
        Manner::Continues => loop {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        },
        Manner::EndlessBody => {
            stream.write_all(head).await?;
            stream.write_all(b"Transfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
            loop {
                stream.write_all(&chunk).await?;
            }
        }
        Manner::HugeLength => {
            stream.write_all(head).await?;
            stream.write_all(b"Content-Length: 4294967296\r\n\r\n{").await?;
        }
        Manner::Noise => stream.write_all(&[0xff; 4096]).await?,
        Manner::Challenges => {
            let many = "Digest realm=\"r\", nonce=\"n\", qop=\"auth\", stale=true, ".repeat(100);
            loop {
                let text = format!(
                    "HTTP/1.1 401 No\r\nWWW-Authenticate: {many}Basic realm=x\r\nContent-Length: 0\r\n\r\n"
                );
                stream.write_all(text.as_bytes()).await?;
                if stream.read(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
        }
    }
    // Kept open until the other end has enough of it.
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// Its address, and how many connections it has had.
async fn server(manner: Manner) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let had = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            had.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let _ = behave(stream, manner).await;
            });
        }
    });
    (addr, count)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn attack(manner: Manner, words: &str) {
    let instance =
        async |name, addr| Instance::start(name, SocketAddr::new(ip(addr), 0), Duration::ZERO).await.unwrap();
    let (one, two) = (instance("one", "127.0.0.61").await, instance("two", "127.0.0.62").await);
    let (alto, connections) = server(manner).await;
    let zone = Zone::new("dest.test", 60)
        .and_then(|z| z.srv("_sip._udp", 10, 50, one.addr().port(), "one"))
        .and_then(|z| z.srv("_sip._udp", 20, 50, two.addr().port(), "two"))
        .and_then(|z| z.address("one", one.addr().ip()))
        .and_then(|z| z.address("two", two.addr().ip()))
        .unwrap();
    let dns = Dns::start(ip("127.0.0.1"), zone).await.unwrap();
    let password = std::env::temp_dir().join(format!("sbe-hostile-{}", std::process::id()));
    std::fs::write(&password, "secret\n").unwrap();
    let config = world::parse(&format!(
        "[node]\nname = \"sbe.test\"\ndomains = [\"core.test\"]\n\n\
         [[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"core\"\n\n\
         [[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"peering\"\n\n\
         [runtime]\nworkers = 1\n\n[overload]\nenabled = false\n\n[dns]\nservers = [\"{}\"]\nsticky = \"none\"\n\n\
         [core]\nsources = [\"127.0.0.1/32\"]\nnext_hops = [\"sip:127.0.0.1:5060\"]\n\n\
         [[peer]]\nname = \"dest\"\ndomains = [\"dest.test\"]\n\n\
         [alto]\ndirectory = \"http://{alto}/\"\nrefresh = \"300ms\"\npersist = 1\nhold_down = \"0s\"\n\
         digest_user = \"sbe\"\ndigest_password_file = \"{}\"\n",
        dns.addr(),
        password.display(),
    ))
    .unwrap();
    let node = Node::start(config, None, &tokio::runtime::Handle::current()).unwrap();
    let core = world::listener(&node, Transport::Udp, Realm::Core);
    let caller = Caller::start(ip("127.0.0.1"), core, None).await.unwrap();
    let status = |node: &Node| node.alto().status(Instant::now()).unwrap();
    let start = Instant::now();
    let mut calls = 0;
    loop {
        let (outcome, dialog) =
            caller.call(Transport::Udp, "sip:bob@dest.test", &format!("{manner:?}-{calls}")).await.unwrap();
        assert_eq!(outcome.status, 200, "{manner:?}: call {calls}");
        if let Some(dialog) = dialog {
            let _ = caller.hang_up(dialog, Duration::ZERO).await;
        }
        calls += 1;
        let seen = status(&node);
        let error = seen.servers[0].last_error.as_ref().map_or("", |(_, e)| e);
        if error.contains(words) && calls >= 20 {
            assert_eq!(seen.servers[0].state.label(), "expired", "{manner:?}");
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{manner:?}: {words:?} is never told: {error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(two.watch().counts().answered, 0, "{manner:?}: priorities stand");
    assert_eq!(one.watch().counts().answered, calls, "{manner:?}");
    assert!(node.resolver().ranker().snapshot().is_empty(), "{manner:?}");
    let most = 3 + 4 * start.elapsed().as_secs();
    let had = connections.load(Ordering::Relaxed);
    assert!(had <= most, "{manner:?}: {had} connections, a storm");
    tokio::task::spawn_blocking(move || drop(node)).await.unwrap();
}

#[test]
fn calls_go_on_and_memory_stays_whatever_a_server_does_with_its_connections() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ((), highest, _) = most(|| {
        runtime.block_on(async {
            // Side by side, as most of them wait for a time-out.
            let all: Vec<_> =
                ALL.iter().map(|(manner, words)| tokio::spawn(attack(*manner, words))).collect();
            for task in all {
                task.await.unwrap();
            }
        });
    });
    assert!(highest < 400, "{highest} MiB for ten elements");
}
