//! `sbe run`: from the configuration to a running node, and to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::admin;
use crate::config::{Config, Listen};
use crate::runtime::log;
use crate::runtime::node::{Node, drained};
use crate::runtime::upgrade::{Aftermath, Heritage, Program, Request, Successor, UpgradeError, Upgraded};

use super::{NO, WRONG, check, print, service};

/// Threads for DNS, probes and the admin interface; messages are handled by the node's own.
const THREADS: usize = 2;
/// How long the admin interface may take to end.
const GRACE: Duration = Duration::from_millis(500);
/// As [`GRACE`], where another process takes over: somebody waits for the answer.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// One reload runs, and one more waits for it: that one reads what has been written since.
const RELOADS: usize = 2;

/// Runs a node until a signal ends it, or another process has taken over.
pub fn run(named: Option<&Path>) -> u8 {
    let program = Program::own();
    let heritage = match Heritage::take() {
        Ok(heritage) => heritage,
        Err(error) => {
            eprintln!("{error}");
            return NO;
        }
    };
    let predecessor = heritage.predecessor().cloned();
    // Who is to be taken over from is told too.
    let sorry = |why: Vec<String>| {
        for line in &why {
            eprintln!("{line}");
        }
        if let Some(predecessor) = &predecessor {
            predecessor.failed(why);
        }
    };
    let (path, config) = match check::load(named) {
        Ok(found) => found,
        Err(errors) => {
            sorry(errors.iter().map(ToString::to_string).collect());
            return WRONG;
        }
    };
    if let Err(error) = log::init(&config.log) {
        sorry(vec![error.to_string()]);
        return WRONG;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("sbe-control")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            sorry(vec![format!("no event loop: {error}")]);
            return NO;
        }
    };
    let status = match runtime.block_on(serve(config, &path, heritage, program)) {
        Ok(()) => 0,
        Err(error) => {
            sorry(vec![error.to_string()]);
            NO
        }
    };
    runtime.shutdown_timeout(GRACE);
    status
}

/// What somebody outside wants.
enum Wanted {
    /// The end.
    End,
    /// An upgrade.
    Upgrade(Request),
}

/// Signals that a node heeds. Caught before anything starts, so that none is lost.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    upgrade: Signal,
    reloads: Arc<AtomicUsize>,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
            reloads: Arc::default(),
        })
    }

    /// Waits for a signal that ends the node, or for who wants an upgrade; reloads meanwhile.
    async fn next(&mut self, node: &Arc<Node>, requests: &mut mpsc::Receiver<Request>) -> Wanted {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Wanted::End,
                _ = self.interrupt.recv() => return Wanted::End,
                Some(request) = requests.recv() => return Wanted::Upgrade(request),
                _ = self.hang_up.recv() => self.reload(node),
                _ = self.upgrade.recv() => {
                    let node = Arc::clone(node);
                    // What came of it is in the log.
                    tokio::spawn(async move { drop(node.upgrade().await) });
                }
            }
        }
    }

    /// As [`Signals::next`], while nobody can have an upgrade.
    async fn end(&mut self, node: &Arc<Node>) {
        let (_, mut nobody) = mpsc::channel(1);
        while !matches!(self.next(node, &mut nobody).await, Wanted::End) {}
    }

    /// Beside everything else: reading files may block, and for ever if one of them is a pipe.
    fn reload(&self, node: &Arc<Node>) {
        if self.reloads.fetch_add(1, Ordering::SeqCst) >= RELOADS {
            self.reloads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let (node, reloads) = (Arc::clone(node), Arc::clone(&self.reloads));
        tokio::spawn(async move {
            service::reloading();
            // What came of it is in the log.
            let _ = tokio::task::spawn_blocking(move || node.reload().is_ok()).await;
            service::ready();
            reloads.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// The admin interface's socket: the one that was left to us, or a new one.
async fn admin_socket(
    config: &Config,
    heritage: &mut Heritage,
) -> Result<Option<OwnedFd>, Box<dyn std::error::Error>> {
    let Some(bind) = config.admin else { return Ok(None) };
    Ok(Some(match heritage.admin(bind) {
        Some(left) => left.into(),
        None => admin::bind(bind).await?.into_std()?.into(),
    }))
}

/// Serves the admin interface, but not while another process has taken over.
async fn serve_admin(node: Arc<Node>, socket: OwnedFd) -> std::io::Result<()> {
    loop {
        let listener = std::net::TcpListener::from(socket.try_clone()?);
        listener.set_nonblocking(true)?;
        admin::serve(Arc::clone(&node), TcpListener::from_std(listener)?).await?;
        node.until_leaving(false).await;
    }
}

async fn serve(
    config: Config,
    path: &Path,
    mut heritage: Heritage,
    program: Program,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut signals = Signals::catch()?;
    let drain_timeout = config.runtime.drain_timeout;
    let admin = admin_socket(&config, &mut heritage).await?;
    admin::auth::Tokens::load(&config.admin_tokens).map_err(|e| format!("[admin] {e}"))?;
    let node = Node::start_from(config, Some(path.to_owned()), &tokio::runtime::Handle::current(), heritage)?;
    let mut lines: String = node.listeners().iter().map(line).collect();
    tokio::select! {
        word = node.succeed() => if !word {
            return Err("the process that was to be taken over from has ended".into());
        },
        _ = signals.terminate.recv() => return Err("told to end before it has taken over".into()),
    }
    let mut requests = node.upgrade_requests();
    let mut server = None;
    if let Some(socket) = &admin {
        let at = std::net::TcpListener::from(socket.try_clone()?).local_addr()?;
        lines.push_str(&format!("admin http://{at}\n"));
        server = Some(tokio::spawn(serve_admin(Arc::clone(&node), socket.try_clone()?)));
    }
    node.set_ready();
    let generation = node.desk().generation();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %path.display(), workers = node.shards(), generation, "started");
    print(&format!("{lines}ready\n"));
    service::ready();
    let mut watch = tokio::spawn(service::watch(Arc::clone(&node)));
    let alone = Arc::clone(&node);
    let alone = tokio::spawn(async move { alone.until_alone().await });

    let mut heir = None;
    while let Wanted::Upgrade(request) = signals.next(&node, &mut requests).await {
        let upgrade = upgrade(&node, &program, admin.as_ref());
        let successor = tokio::select! {
            outcome = upgrade => match outcome {
                Ok((successor, upgraded)) => {
                    let _ = request.send(Ok(upgraded));
                    successor
                }
                Err(error) => {
                    let _ = request.send(Err(error));
                    continue;
                }
            },
            () = signals.end(&node) => break,
        };
        watch.abort();
        if left(&node, &successor, &mut signals, drain_timeout).await {
            heir = Some(successor);
            break;
        }
        service::main_is(std::process::id());
        node.come_back();
        watch = tokio::spawn(service::watch(Arc::clone(&node)));
    }
    if heir.is_none() {
        service::stopping();
        node.end_predecessor();
        node.drain(true);
        tokio::select! {
            all = drained(&node, drain_timeout) => {
                if !all {
                    tracing::warn!(open = node.open(), "drain_timeout: requests are left without a final response");
                }
            }
            () = signals.end(&node) => tracing::warn!(open = node.open(), "a second signal: ending at once"),
        }
    }
    watch.abort();
    let _ = watch.await;
    alone.abort();
    let _ = alone.await;
    end_admin(server, heir.is_some()).await;
    // Connections get a moment to write what is queued. A request to the admin interface may hold the node
    // a little longer; it is let go of with the event loop.
    tokio::task::spawn_blocking(move || drop(node)).await?;
    if let Some(successor) = heir {
        successor.done();
    }
    tracing::info!("ended");
    Ok(())
}

/// Ends the admin interface. If another process has taken over, it has stopped to accept already.
async fn end_admin(server: Option<JoinHandle<std::io::Result<()>>>, taken_over: bool) {
    let Some(mut server) = server else { return };
    if taken_over {
        // It waits for another leave to end, which does not come: what was asked before has its answer by then.
        let _ = tokio::time::timeout(LAST_ANSWERS, &mut server).await;
    }
    server.abort();
    let _ = server.await;
}

/// Starts the process that is to take over, and gives it the word.
async fn upgrade(
    node: &Arc<Node>,
    program: &Program,
    admin: Option<&OwnedFd>,
) -> Result<(Arc<Successor>, Upgraded), UpgradeError> {
    let admin = admin.map(OwnedFd::try_clone).transpose()?;
    let (starting, program) = (Arc::clone(node), program.clone());
    let launch = move || starting.launch(&program, admin.as_ref().map(AsFd::as_fd));
    let successor = tokio::task::spawn_blocking(launch).await.map_err(std::io::Error::other)??;
    // Before the word, so that what the new process tells the service manager is heeded.
    service::main_is(successor.pid);
    match node.leave(&successor) {
        Ok(upgraded) => Ok((Arc::new(successor), upgraded)),
        Err(error) => {
            service::main_is(std::process::id());
            Err(error)
        }
    }
}

/// Another process has taken over: waits until nothing is under way here. False: it is gone, and all is ours again.
async fn left(
    node: &Arc<Node>,
    successor: &Arc<Successor>,
    signals: &mut Signals,
    drain_timeout: Duration,
) -> bool {
    let (told, mut aftermath) = oneshot::channel();
    let listened = Arc::clone(successor);
    // A thread of its own, as the event loop would wait for it at the end.
    std::thread::spawn(move || {
        let _ = told.send(listened.aftermath());
    });
    let longest = node.longest_leave();
    tokio::select! {
        all = node.left(longest) => {
            if !all {
                tracing::warn!(open = node.open(), limit = longest.as_secs(), "not all calls have ended before the limit of an upgrade");
            }
            return true;
        }
        how = &mut aftermath => if how != Ok(Aftermath::Ending) {
            return false;
        },
        () = signals.end(node) => {}
    }
    node.drain(true);
    tokio::select! {
        _ = node.left(drain_timeout) => {}
        () = signals.end(node) => {}
    }
    true
}

/// `listening udp 127.0.0.10:5060 realm=both`
fn line(listen: &Listen) -> String {
    let realm = match listen.realm {
        crate::config::Realm::Peering => "peering",
        crate::config::Realm::Core => "core",
        crate::config::Realm::Both => "both",
    };
    format!("listening {} {} realm={realm}\n", listen.transport, listen.bind)
}
