//! The shell: threads, sockets and clocks around the shards.
//!
//! `runtime.workers` threads run an event loop each, with a socket of their own for every
//! listener. There are as many shards as workers; a message is handled by whoever receives it,
//! under the lock of the shard that owns its call ([`driver`]). Worker `i` keeps the timers of
//! shard `i`. Datagrams go in and out in batches ([`udp`]); a stream connection lives as one task
//! on the worker that accepted or opened it ([`stream`], [`dial`]) and is known to all through a
//! registry ([`pool`]). A worker without streams waits for its sockets on its own ([`alone`]). [`node`] puts it all together; [`probe`] sends OPTIONS to peers that want it.

mod alone;
pub mod alto;
pub mod call_records;
pub mod capture;
mod carrier;
pub mod costs;
mod counters;
mod dial;
pub mod dns;
mod driver;
mod element;
mod events;
mod fixed;
mod follow;
pub mod glance;
mod glue;
pub mod hep;
mod instances;
mod listen;
pub mod log;
pub mod node;
mod onlookers;
mod outcomes;
mod pace;
mod pool;
mod probe;
mod quoted;
mod random;
mod records;
mod rest;
mod runs;
pub mod secret;
mod stream;
mod sys;
mod tap;
#[cfg(test)]
mod tests;
pub mod tls;
mod udp;
pub mod upgrade;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::config::{Config, Listen};
use crate::flow::{ListenerId, Transport};
use crate::proxy::Policy;
use crate::shard::io::{Input, Update};
use crate::wire::Limits;

pub use counters::{Counters, Direction, DropReason};
pub use element::{BoxFuture, Element, Locator};
pub use listen::{StartError, bind_hint};
pub use sys::{Allocator, no_huge_pages};

use alone::Watch;
use driver::{Node, Settings, Slot, Worker};
use listen::Sockets;
use pool::Pool;
use tls::Tls;
use udp::UdpSocket;
use upgrade::beside::Stage;
use upgrade::channel::Channel;
use upgrade::{Heritage, Predecessor};

/// Timers fire on a grid, so that timers close to each other share a wake-up: T1/32 wide, within
/// these bounds.
const GRID_MIN: Duration = Duration::from_millis(1);
/// At T1 = 500 ms.
const GRID_MAX: Duration = Duration::from_millis(16);

/// How long connections may take to write what is queued when the node stops.
const STOP_GRACE: Duration = Duration::from_millis(1500);

/// Worker threads that a configuration asks for, and so the number of shards to make.
pub fn workers(config: &Config) -> usize {
    match config.runtime.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// Descriptors kept for everything else than stream connections: listeners, DNS, admin interface, files.
const RESERVE: usize = 512;

/// How many stream connections there can be: as configured, as far as the system grants descriptors for it.
fn connections(configured: usize) -> usize {
    let Some(granted) = sys::raise_descriptor_limit() else { return configured };
    let most = granted.saturating_sub(RESERVE).max(granted / 2);
    if most < configured {
        tracing::warn!(
            granted,
            most,
            configured,
            "the system grants too few descriptors for limits.connections (ulimit -n)"
        );
    }
    configured.min(most)
}

/// Opens the sockets and starts the workers. When this returns, traffic is being accepted.
///
/// One shard per worker ([`workers`]); `secret` keys the hash that assigns calls to shards.
/// Errors name the listener and the cause; nothing is left running then.
pub fn start<E: Element>(
    config: &Config,
    shards: Vec<E>,
    locator: Arc<dyn Locator>,
    secret: u64,
) -> Result<Handle<E>, StartError> {
    start_spread(config, shards, locator, secret, SpreadOver::AsNeeded, Heritage::default())
}

/// As [`start`], with sockets that another process has left.
fn start_from<E: Element>(
    config: &Config,
    shards: Vec<E>,
    locator: Arc<dyn Locator>,
    secret: u64,
    heritage: Heritage,
) -> Result<Handle<E>, StartError> {
    start_spread(config, shards, locator, secret, SpreadOver::AsNeeded, heritage)
}

/// Over which workers datagrams are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpreadOver {
    /// As many as the load needs, see [`pace`].
    AsNeeded,
    /// Always all of them.
    #[cfg(test)]
    All,
}

fn start_spread<E: Element>(
    config: &Config,
    shards: Vec<E>,
    locator: Arc<dyn Locator>,
    secret: u64,
    over: SpreadOver,
    mut heritage: Heritage,
) -> Result<Handle<E>, StartError> {
    let workers = workers(config);
    if shards.len() != workers || workers == 0 {
        return Err(StartError::Shards { shards: shards.len(), workers });
    }
    let mut listen = config.listen.clone();
    let tls = Tls::load(config)?;
    if let (None, Some((at, l))) =
        (&tls, listen.iter().enumerate().find(|(_, l)| l.transport == Transport::Tls))
    {
        let listener = ListenerId(u16::try_from(at).unwrap_or(u16::MAX));
        return Err(StartError::NoTls { listener, bind: l.bind });
    }
    let adaptive = over == SpreadOver::AsNeeded;
    let udp_workers = if adaptive { 1 } else { workers };
    let sockets = listen::open(&mut listen, workers, udp_workers, &mut heritage)?;
    let twins = twins(&sockets).map_err(|cause| StartError::Worker { worker: 0, cause })?;
    let predecessor = heritage.into_predecessor();
    let stage = if predecessor.is_some() { Stage::Waiting } else { Stage::Serving };
    let node = Arc::new(Node {
        slots: shards.into_iter().map(Slot::new).collect(),
        locator,
        pool: Pool::new(connections(config.limits.connections), config.limits.write_queue),
        counters: Arc::default(),
        listen: listen.into_boxed_slice(),
        settings: Settings {
            idle_timeout: config.sip.idle_timeout,
            message_timeout: config.sip.message_timeout,
            connect_timeout: config.sip.connect_timeout,
            answer_timeout: config.sip.t1.saturating_mul(64),
            timer_grid: (config.sip.t1 / 32).clamp(GRID_MIN, GRID_MAX),
            adaptive,
            limits: Limits {
                max_message: config.sip.max_message,
                max_headers: config.sip.max_headers,
                max_header: config.sip.max_header,
            },
        },
        tls: ArcSwapOption::new(tls.map(Arc::new)),
        gate: Arc::default(),
        failures: Default::default(),
        stop: watch::Sender::new(false),
        stage: watch::Sender::new(stage),
        leaving: AtomicBool::new(false),
        successor: ArcSwapOption::empty(),
        secret,
        epoch: Instant::now(),
        peers: Default::default(),
        policy: Arc::new(ArcSwapOption::empty()),
        records: OnceLock::new(),
        tap: Arc::default(),
    });
    Counters::add(&node.counters.udp_workers, udp_workers);
    node.counters.segmentation.store(config.runtime.udp_segmentation, Ordering::Relaxed);
    let mut handle = Handle { node, threads: Vec::with_capacity(workers), sockets: twins };
    let (report, reports) = std::sync::mpsc::channel();
    for (index, sockets) in sockets.into_iter().enumerate() {
        let (node, report) = (Arc::clone(&handle.node), report.clone());
        let predecessor = predecessor.clone();
        let thread = std::thread::Builder::new()
            .name(format!("sbe-worker-{index}"))
            .spawn(move || {
                run_worker(index, node, sockets, predecessor, |outcome| drop(report.send((index, outcome))))
            })
            .map_err(|cause| StartError::Worker { worker: index, cause })?;
        handle.threads.push(thread);
    }
    drop(report);
    for (worker, outcome) in reports.into_iter().take(workers) {
        outcome.map_err(|cause| StartError::Worker { worker, cause })?;
    }
    Ok(handle)
}

/// A running node. Dropping it stops the node like [`Handle::stop`].
pub struct Handle<E: Element> {
    node: Arc<Node<E>>,
    threads: Vec<JoinHandle<()>>,
    /// Every socket of every listener again, to be handed over.
    sockets: Vec<(usize, OwnedFd)>,
}

impl<E: Element> Handle<E> {
    /// The listeners with the addresses they are bound to (port 0 resolved), in file order.
    pub fn listeners(&self) -> &[Listen] {
        &self.node.listen
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.node.slots.len()
    }

    /// What the sockets have counted.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.node.counters
    }

    /// Stream connections there are, those being made included.
    pub fn connections(&self) -> usize {
        self.node.pool.len()
    }

    /// Gives news to every shard.
    pub fn update(&self, update: &Update) {
        for shard in 0..self.shards() {
            self.update_one(shard, update.clone());
        }
    }

    /// Gives news to one shard; one that does not exist hears nothing.
    pub fn update_one(&self, shard: usize, update: Update) {
        self.node.post(shard, Input::Update(update));
    }

    /// Looks at a shard while nothing else touches it: keep it short, calls wait meanwhile.
    /// `None`: no such shard.
    pub fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut E) -> R) -> Option<R> {
        self.node.slots.get(shard).map(|slot| f(&mut *slot.lock()))
    }

    /// What the log calls the peers, by their numbers and by their addresses.
    pub fn name_peers(&self, names: Vec<Arc<str>>, policy: Arc<Policy>) {
        self.node.peers.store(Arc::new(names));
        self.node.policy.store(Some(policy));
    }

    /// Where the events of calls go; told once, by whoever starts the node.
    fn watch(&self, records: Option<&call_records::CallRecords>) {
        if let Some(records) = records {
            let _ = self.node.records.set(records.offers());
        }
    }

    /// Where copies of messages come from.
    fn tap(&self) -> &Arc<tap::Tap> {
        &self.node.tap
    }

    /// Certificates and authorities in force; `None` without `[tls]`.
    pub fn tls(&self) -> Option<Arc<Tls>> {
        self.node.tls.load_full()
    }

    /// Other certificates and authorities for handshakes from now on; open connections stay as they are.
    pub fn set_tls(&self, tls: Tls) {
        self.node.tls.store(Some(Arc::new(tls)));
    }

    /// The sockets, each with the place of its listener in file order; for each listener one for every worker.
    fn sockets(&self) -> &[(usize, OwnedFd)] {
        &self.sockets
    }

    fn stage(&self) -> Stage {
        *self.node.stage.borrow()
    }

    fn stages(&self) -> watch::Receiver<Stage> {
        self.node.stage.subscribe()
    }

    /// Another process takes over (its end of the channel), or does not after all.
    fn leave(&self, successor: Option<Arc<Channel>>) {
        let leave = successor.is_some();
        if leave {
            self.node.successor.store(successor);
        }
        self.node.leaving.store(leave, Ordering::SeqCst);
        let since = Instant::now();
        self.node.stage.send_replace(if leave { Stage::Leaving { since } } else { Stage::Serving });
        self.update(&Update::Leave(leave));
        if !leave {
            self.node.successor.store(None);
        }
        self.node.pool.ring_all();
    }

    /// Stops accepting, lets connections write what is queued (at most a second and a half), ends
    /// the workers and waits for them. Calls are not waited for: draining comes before this.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.node.stop.send_replace(true);
        for slot in &self.node.slots {
            slot.attend();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread had panicked");
            }
        }
    }
}

impl<E: Element> Drop for Handle<E> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A worker thread: reports once whether its event loop stands, then serves until the node stops.
fn run_worker<E: Element>(
    index: usize,
    node: Arc<Node<E>>,
    sockets: Sockets,
    predecessor: Option<Predecessor>,
    report: impl Fn(io::Result<()>),
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(alone::wait_begins)
        .on_thread_unpark(alone::wait_ends)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return report(Err(e)),
    };
    sys::sleep_precisely();
    let local = LocalSet::new();
    let begun = local.block_on(&runtime, async { begin(index, Arc::clone(&node), sockets, predecessor) });
    let (worker, tasks, mut watch) = match begun {
        Ok(begun) => begun,
        Err(e) => return report(Err(e)),
    };
    report(Ok(()));
    while !*node.stop.borrow() {
        {
            // What is started meanwhile runs once the event loop is entered.
            let (_runtime, _local) = (runtime.enter(), local.enter());
            worker.stay_alone(&mut watch);
        }
        local.block_on(&runtime, worker.stay_with_tasks());
    }
    local.block_on(&runtime, async {
        for listener in tasks.accepting {
            listener.abort();
        }
        node.pool.end_all();
        let until = Instant::now() + STOP_GRACE;
        while node.pool.len() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    // What is left of the tasks is dropped with the set, and their sockets with them.
    drop(local);
}

/// Descriptors of the same sockets, each with the place of its listener.
fn twins(all: &[Sockets]) -> io::Result<Vec<(usize, OwnedFd)>> {
    let of = |listener: &ListenerId, fd: BorrowedFd<'_>| -> io::Result<(usize, OwnedFd)> {
        Ok((usize::from(listener.0), fd.try_clone_to_owned()?))
    };
    let mut twins = Vec::new();
    for sockets in all {
        for (listener, socket) in &sockets.udp {
            twins.push(of(listener, socket.as_fd())?);
        }
        for (listener, socket) in &sockets.tcp {
            twins.push(of(listener, socket.as_fd())?);
        }
    }
    Ok(twins)
}

/// Tasks of a worker that are ended before the others.
struct Tasks {
    accepting: Vec<tokio::task::JoinHandle<()>>,
}

/// Takes the sockets into the event loop and starts the worker's tasks.
fn begin<E: Element>(
    index: usize,
    node: Arc<Node<E>>,
    sockets: Sockets,
    predecessor: Option<Predecessor>,
) -> io::Result<(Rc<Worker<E>>, Tasks, Watch)> {
    let mut udp: Vec<Option<Rc<UdpSocket>>> = vec![None; node.listen.len()];
    for (listener, socket) in sockets.udp {
        if let Some(place) = udp.get_mut(usize::from(listener.0)) {
            *place = Some(UdpSocket::new(listener, socket)?);
        }
    }
    let worker = Worker::new(index, node, udp.clone());
    let room = Rc::new(RefCell::new(sys::RecvBatch::new()));
    let errors = Rc::new(RefCell::new(sys::ErrorReader::new()));
    let sockets_udp: Vec<Rc<UdpSocket>> = udp.into_iter().flatten().collect();
    for socket in &sockets_udp {
        let (socket, worker) = (Rc::clone(socket), Rc::clone(&worker));
        tokio::task::spawn_local(socket.receive(worker, Rc::clone(&room), Rc::clone(&errors)));
    }
    let mut accepting = Vec::new();
    let mut listeners = Vec::new();
    for (listener, socket) in sockets.tcp {
        let socket = tokio::net::TcpListener::from_std(socket)?;
        listeners.push(socket.as_raw_fd());
        accepting.push(tokio::task::spawn_local(Rc::clone(&worker).accept(listener, socket)));
    }
    if let Some(predecessor) = predecessor {
        // These keep the worker in its event loop until it may read the sockets itself.
        if index == 0 {
            worker.spawn(Rc::clone(&worker).listen_to(predecessor));
        }
        let waiting = Rc::clone(&worker);
        worker.spawn(async move { waiting.until_reading().await });
    }
    tokio::task::spawn_local(Rc::clone(&worker).rest());
    tokio::task::spawn_local(Rc::clone(&worker).keep_timers());
    let bell = &worker.node.slots[worker.index].bell;
    let watch = Watch::new(bell, sockets_udp, &listeners, room, errors)?;
    Ok((worker, Tasks { accepting }, watch))
}
