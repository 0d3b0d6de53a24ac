//! `sbe run`: from the configuration to a running node, and to its end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin;
use crate::config::{Config, Listen};
use crate::runtime::log;
use crate::runtime::node::{Node, drained};

use super::{NO, WRONG, check, print, service};

/// Threads for DNS, probes and the admin interface; messages are handled by the node's own.
const THREADS: usize = 2;
/// How long the admin interface may take to end.
const GRACE: Duration = Duration::from_millis(500);

/// Runs a node until a signal ends it.
pub fn run(named: Option<&Path>) -> u8 {
    let (path, config) = match check::load(named) {
        Ok(found) => found,
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            return WRONG;
        }
    };
    if let Err(error) = log::init(&config.log) {
        eprintln!("{error}");
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
            eprintln!("no event loop: {error}");
            return NO;
        }
    };
    let status = match runtime.block_on(serve(config, &path)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            NO
        }
    };
    runtime.shutdown_timeout(GRACE);
    status
}

/// Signals that a node heeds. Caught before anything starts, so that none is lost.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one that ends the node; reloads meanwhile.
    async fn end(&mut self, node: &Arc<Node>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    let node = Arc::clone(node);
                    service::reloading();
                    // Reading files may block. What came of it is in the log.
                    let _ = tokio::task::spawn_blocking(move || node.reload().is_ok()).await;
                    service::ready();
                }
            }
        }
    }
}

async fn serve(config: Config, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut signals = Signals::catch()?;
    let drain_timeout = config.runtime.drain_timeout;
    let admin: Option<TcpListener> = match config.admin {
        Some(bind) => Some(admin::bind(bind).await?),
        None => None,
    };
    admin::auth::Tokens::load(&config.admin_tokens).map_err(|e| format!("[admin] {e}"))?;
    let node = Node::start(config, Some(path.to_owned()), &tokio::runtime::Handle::current())?;
    let mut lines: String = node.listeners().iter().map(line).collect();
    let mut server = None;
    if let Some(listener) = admin {
        lines.push_str(&format!("admin http://{}\n", listener.local_addr()?));
        server = Some(tokio::spawn(admin::serve(Arc::clone(&node), listener)));
    }
    node.set_ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %path.display(), workers = node.shards(), "started");
    print(&format!("{lines}ready\n"));
    service::ready();
    let watch = tokio::spawn(service::watch(Arc::clone(&node)));
    signals.end(&node).await;

    service::stopping();
    node.drain(true);
    tokio::select! {
        all = drained(&node, drain_timeout) => {
            if !all {
                tracing::warn!(open = node.open(), "drain_timeout: requests are left without a final response");
            }
        }
        () = signals.end(&node) => tracing::warn!(open = node.open(), "a second signal: ending at once"),
    }
    watch.abort();
    let _ = watch.await;
    if let Some(server) = server {
        server.abort();
        let _ = server.await;
    }
    // Connections get a moment to write what is queued. A request to the admin interface may hold the node
    // a little longer; it is let go of with the event loop.
    tokio::task::spawn_blocking(move || drop(node)).await?;
    tracing::info!("ended");
    Ok(())
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
