//! The whole element as a value: messages and answers in, messages and questions out.
//!
//! A shard owns the transactions, attempts, health, limits and records of the calls whose Call-ID
//! hashes to it. It reads no clock, opens no socket, draws no randomness but from the generator it
//! was given: the same seed and the same inputs make the same run.

mod acks;
mod attempts;
mod calls;
mod candidates;
mod failures;
mod finish;
pub mod io;
mod leave;
mod literals;
pub mod overload;
mod owner;
mod probe;
mod record;
mod requests;
mod responses;
mod returns;
mod shed;
mod slots;
mod stats;
mod timers;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::RandomState;
use memchr::memmem::Finder;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::flow::{Origin, PeerId};
use crate::location::{Health, HealthPolicy, Instance, Observation, Standing};
use crate::peering::Party;
use crate::proxy::decision::{Record, Ring};
use crate::proxy::{Context, Policy};
use crate::transaction::key::{Hashed, LoopSecret};
use crate::transaction::{Effects, KeySecrets, Lanes, ServerKey, Timer};
use crate::wire::{Index, Message, Unusable};

pub use io::{CallEnd, CallEvent, Event, Input, Output, Passed, Send, SendToken, Ticket, Update};
pub use owner::{Reader, shard_of};
pub(crate) use returns::top_via;
pub use slots::Handle;
pub use stats::{BUCKETS, Histogram, Stats};

use calls::Calls;
use literals::Literals;
use overload::{Governor, Silence};
use slots::Slots;

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The server transaction's.
    Server,
    /// An attempt's.
    Attempt(u8),
    /// That of an attempt's CANCEL.
    Cancel(u8),
    /// The context's own.
    Context,
    /// That of a response on its way.
    Return,
    /// The shard's own: sweeping.
    Sweep,
}

/// A timer in its lane.
#[derive(Clone, Copy, Debug)]
struct TimerKey {
    handle: Handle,
    who: Who,
    timer: Timer,
}

/// Seeds of a shard; all shards of a node share the secrets, and differ in `seed`.
#[derive(Clone, Debug)]
pub struct Seeds {
    /// Of the generator: branches, draws, tags.
    pub seed: [u8; 32],
    /// Of the table of server transactions.
    pub keys: [u64; 8],
    /// Of stickiness and call counting.
    pub call: [u64; 4],
    /// Of loop detection.
    pub loops: [u64; 2],
    /// What the shell gives to [`shard_of`].
    pub owner: u64,
}

/// Everything but the contexts, so that a context can be worked on beside it.
struct Core {
    id: u16,
    policy: Arc<Policy>,
    rng: StdRng,
    keys: KeySecrets,
    call_hash: RandomState,
    loops: LoopSecret,
    owner: u64,
    timers: Lanes<TimerKey>,
    outputs: VecDeque<Output>,
    fx: Effects,
    health: Health,
    calls: Calls,
    literals: Literals,
    ring: Ring,
    stats: Stats,
    draining: bool,
    /// Another process takes over.
    leaving: bool,
    sweeping: bool,
    governor: Governor,
    /// What the governor has refused lately.
    silence: Silence,
    shed_tag: [u8; 12],
    /// Finds the tag in an ACK.
    shed_ack: Finder<'static>,
    /// Server transactions without a final response.
    open: usize,
    /// The index of a request that has been answered.
    unused: Option<Arc<Index>>,
}

/// One shard. See the module's documentation.
pub struct Shard {
    core: Core,
    slots: Slots,
    /// The keys are hashes already.
    by_key: HashMap<ServerKey, Handle, Hashed>,
    shards: usize,
    /// Room for the indexes of the next messages.
    spare: Vec<Arc<Index>>,
}

/// Indexes kept for the messages to come.
const SPARE: usize = 64;

/// How often old calls and health entries are looked through.
const SWEEP: Duration = Duration::from_secs(5);

impl Shard {
    /// Shard number `id` of `shards`.
    pub fn new(id: u16, shards: usize, policy: Arc<Policy>, seeds: &Seeds) -> Self {
        let [a, b, c, d] = seeds.call;
        let health = Health::new(health_policy(&policy));
        let records = policy.config.limits.records.div_ceil(shards.max(1));
        let mut rng = StdRng::from_seed(seeds.seed);
        let shed_tag = shed::shed_tag(&mut rng);
        let needle = [b";tag=".as_slice(), shed_tag.as_slice()].concat();
        Self {
            core: Core {
                id,
                rng,
                keys: KeySecrets::new(seeds.keys),
                call_hash: RandomState::with_seeds(a, b, c, d),
                loops: LoopSecret::new(&seeds.loops),
                owner: seeds.owner,
                timers: Lanes::new(),
                outputs: VecDeque::new(),
                fx: Effects::new(),
                health,
                calls: Calls::default(),
                literals: Literals::default(),
                ring: Ring::new(records),
                stats: Stats::default(),
                draining: false,
                leaving: false,
                sweeping: false,
                governor: Governor::new(policy.config.overload),
                silence: Silence::default(),
                shed_tag,
                shed_ack: Finder::new(&needle).into_owned(),
                open: 0,
                unused: None,
                policy,
            },
            slots: Slots::default(),
            by_key: HashMap::default(),
            shards: shards.max(1),
            spare: Vec::new(),
        }
    }

    /// Something happened.
    pub fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Waited { delay, messages } => self.waited(now, delay, messages),
            Input::Message { bytes, .. } if self.core.is_shed_ack(bytes) => self.core.stats.drop("shed_ack"),
            Input::Read { bytes, ahead, .. } if self.core.is_shed_ack(bytes) => {
                self.core.stats.drop("shed_ack");
                self.keep_room(ahead.index);
            }
            Input::Message { origin, bytes } => {
                let mut index = self.spare.pop().unwrap_or_default();
                // Only what nobody else holds is kept.
                let Some(room) = Arc::get_mut(&mut index) else { return };
                let read = room.read(bytes, &self.core.policy.limits, owner::framing_of(origin));
                self.on_message(now, origin, bytes, index, read);
            }
            Input::Read { origin, bytes, ahead } if *ahead.limits == self.core.policy.limits => {
                self.on_message(now, origin, bytes, ahead.index, ahead.read);
            }
            // The limits have changed since.
            Input::Read { origin, bytes, .. } => self.handle_input(now, Input::Message { origin, bytes }),
            Input::Located { ticket, result } => self.on_located(now, ticket, result),
            Input::Sent { token, conn, reused } => self.on_sent(token, conn, reused),
            Input::SendFailed { token, failure } => self.on_send_failed(now, token, failure),
            Input::Undeliverable { to, payload } => self.on_undeliverable(now, to, payload),
            Input::ConnectionClosed { conn } => self.on_connection_closed(now, conn),
            Input::Update(update) => self.on_update(now, update),
        }
        self.check_invariants();
    }

    fn on_message(
        &mut self,
        now: Instant,
        origin: &Origin,
        bytes: &[u8],
        index: Arc<Index>,
        read: Result<(), Unusable>,
    ) {
        let msg = &Message::new(bytes, &index);
        match read {
            Ok(()) if self.core.leaving && self.pass_on(origin, msg) => {}
            Ok(()) if msg.is_request() => self.on_request(now, origin, msg, &index),
            Ok(()) => self.on_response(now, msg),
            Err(unusable) => self.core.stats.drop(unusable.label()),
        }
        if let Some(unused) = self.core.unused.take() {
            self.spare.push(unused);
        }
        self.keep_room(index);
    }

    /// Keeps an index for another message. A request under way may still need it.
    fn keep_room(&mut self, index: Arc<Index>) {
        if self.spare.len() < SPARE && Arc::strong_count(&index) == 1 {
            self.spare.push(index);
        }
    }

    /// As [`Input::Waited`]: messages are about to be handled; the oldest of them has waited for so long.
    pub fn waited(&mut self, now: Instant, delay: Duration, messages: u32) {
        self.core.waited(now, delay, messages);
    }

    /// A timer may have run out.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(key) = self.core.timers.pop_expired(now) {
            self.on_timer(now, key);
        }
        self.check_invariants();
    }

    /// The next thing to be done, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.core.outputs.pop_front()
    }

    /// When to call [`Self::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.core.timers.poll_timeout()
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// Live transactions: server and client ones.
    pub fn transactions(&self) -> (usize, usize) {
        use crate::proxy::{Cancel, Client, Server};
        self.slots.iter().fold((0, 0), |(servers, clients), c| {
            let attempts = c.attempts.iter().filter(|a| !matches!(a.client, Client::Gone)).count();
            let cancels = c.attempts.iter().filter(|a| matches!(a.cancel, Cancel::Sent(_))).count();
            (servers + usize::from(!matches!(c.server, Server::Gone)), clients + attempts + cancels)
        })
    }

    /// Contexts held, lingering ones included.
    pub fn contexts(&self) -> usize {
        self.slots.len()
    }

    /// Server transactions that still owe a final response.
    pub fn open(&self) -> usize {
        self.core.open
    }

    /// Calls counted now.
    pub fn calls(&self) -> usize {
        self.core.calls.len()
    }

    /// By what the ledger knows an instance of a party; the same in all shards.
    pub fn seat_key(&self, to: Party, instance: &Instance) -> u64 {
        self.core.call_hash.hash_one((to, instance))
    }

    /// Timers armed, stale ones included.
    pub fn timers(&self) -> usize {
        self.core.timers.len()
    }

    /// The decision records of a Call-ID: those of requests under way, then finished ones, oldest first.
    pub fn records(&self, call_id: &[u8]) -> Vec<Record> {
        let live = self.slots.iter().filter_map(|c| c.live.as_ref()?.record.as_deref());
        self.core.ring.find(call_id).chain(live.filter(|r| r.call_id() == call_id)).cloned().collect()
    }

    /// A page of finished records: see [`Ring::page`].
    pub fn page(
        &self,
        before: u64,
        look: usize,
        most: usize,
        wanted: &dyn Fn(&Record) -> bool,
    ) -> (Vec<Record>, Option<u64>) {
        self.core.ring.page(before, look, most, wanted)
    }

    /// Finished records from a number on: see [`Ring::after`].
    pub fn records_after(&self, from: u64, look: usize, see: &mut dyn FnMut(&Record)) -> u64 {
        self.core.ring.after(from, look, see)
    }

    /// Instances that are down, since when, and the word for why: see [`Health::fallen`].
    pub fn fallen(&self) -> Vec<(Instance, Instant, &'static str)> {
        self.core.health.fallen().collect()
    }

    /// Instances on their way back to a full share, and the part they get: see [`Health::ramps`].
    pub fn ramps(&self, now: Instant) -> Vec<(Instance, f64)> {
        self.core.health.ramps(now).collect()
    }

    /// What is remembered of instances.
    pub fn health(&self, now: Instant) -> Vec<(Instance, Standing)> {
        self.core.health.iter_sorted(now)
    }

    /// How one instance stands.
    pub fn standing(&self, now: Instant, instance: &Instance) -> Standing {
        self.core.health.standing(now, instance)
    }

    /// The health table, for a dry run of the selection.
    pub fn health_table(&mut self) -> &mut Health {
        &mut self.core.health
    }

    /// The policy in force.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.core.policy
    }

    /// True while draining.
    pub fn is_draining(&self) -> bool {
        self.core.draining
    }

    fn on_update(&mut self, now: Instant, update: Update) {
        match update {
            Update::Policy(policy) => {
                self.core.health.set_policy(health_policy(&policy));
                self.core.ring.set_cap(policy.config.limits.records.div_ceil(self.shards));
                self.core.governor.set_rules(policy.config.overload);
                if self.core.policy.dialog_secret != policy.dialog_secret {
                    self.core.calls.forget_tokens();
                }
                self.core.policy = policy;
                self.core.literals.clear();
            }
            Update::Health(instance, seen) => {
                self.core.health.observe(now, instance, seen);
                self.core.keep_sweeping(now);
            }
            Update::Drain(drain) => self.core.draining = drain,
            Update::Leave(leave) => self.core.leaving = leave,
            // Whoever takes over probes too, and nothing is to begin here any more.
            Update::Probe { .. } if self.core.leaving => {}
            Update::Probe { peer, hop, uri, timeout } => self.start_probe(now, peer, hop, &uri, timeout),
        }
    }

    /// Puts a context back, or frees it if nothing of it is needed any more.
    fn settle(&mut self, handle: Handle, context: Box<Context>) {
        if context.is_over() {
            if let Some(key) = context.key
                && self.by_key.get(&key) == Some(&handle)
            {
                self.by_key.remove(&key);
                if self.by_key.is_empty() && self.by_key.capacity() > 4096 {
                    self.by_key.shrink_to(1024);
                }
            }
            self.slots.release(handle);
        } else {
            self.slots.put(handle, context);
        }
    }

    #[cfg(debug_assertions)]
    fn check_invariants(&self) {
        if self.slots.len() > 64 {
            return;
        }
        let open = self.slots.iter().filter(|c| c.owes_final()).count();
        assert_eq!(open, self.core.open, "server transactions that owe a final response");
    }

    #[cfg(not(debug_assertions))]
    fn check_invariants(&self) {}
}

impl Core {
    /// What a call is counted by: its Call-ID and the tag of its caller.
    fn dialog_key(&self, call_id: &[u8], caller: Option<&[u8]>) -> u64 {
        self.call_hash.hash_one((call_id, caller.unwrap_or_default()))
    }

    /// A tag, for comparison only; never 0.
    fn tag_hash(&self, tag: Option<&[u8]>) -> u64 {
        self.call_hash.hash_one(tag.unwrap_or_default()).max(1)
    }

    /// A hash of the Call-ID, for stickiness.
    fn call_key(&self, call_id: &[u8]) -> u64 {
        self.call_hash.hash_one(call_id)
    }

    /// Learns something of an instance, and tells the other shards what they would not know.
    fn observe(&mut self, now: Instant, peer: Option<PeerId>, instance: Instance, seen: Observation) {
        if seen == Observation::Answered && self.health.is_clean(&instance) {
            return;
        }
        if let Some(change) = self.health.observe(now, instance, seen) {
            self.outputs.push_back(Output::Event(Event::InstanceChanged {
                peer,
                instance,
                up: change.up,
                reason: change.reason,
            }));
        }
        self.outputs.push_back(Output::Event(Event::Health(instance, seen)));
        self.keep_sweeping(now);
    }

    fn keep_sweeping(&mut self, now: Instant) {
        let nothing = self.health.is_empty() && self.calls.is_empty() && self.silence.is_empty();
        if !self.sweeping && !nothing {
            self.sweeping = true;
            let handle = Handle { slot: u32::MAX, generation: 0 };
            self.timers.arm(now, SWEEP, TimerKey { handle, who: Who::Sweep, timer: Timer::C });
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.sweeping = false;
        self.health.sweep(now);
        self.silence.sweep(now, self.policy.config.overload.silence);
        let (recording, outputs) = (self.policy.config.records.is_some(), &mut self.outputs);
        let aged = self.calls.sweep(now, &self.policy.ledger, |call| {
            if recording {
                let how = CallEnd::Aged;
                outputs.push_back(Output::Event(Event::Call(CallEvent::Ended { call, at: now, how })));
            }
        });
        self.stats.calls_aged += u64::try_from(aged).unwrap_or(0);
        self.keep_sweeping(now);
    }

    fn token(&self, handle: Handle, who: u8) -> SendToken {
        SendToken(
            (u64::from(self.id) << 48)
                | (u64::from(handle.slot) << 24)
                | (u64::from(handle.generation & 0xffff) << 8)
                | u64::from(who),
        )
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

impl SendToken {
    /// `who` of the token for responses; less the number of the way they go, which is below 8.
    const SERVER: u8 = 255;

    /// The shard it belongs to.
    pub const fn shard(self) -> u16 {
        (self.0 >> 48) as u16
    }

    fn parts(self) -> (u32, u16, u8) {
        let bits = |shift: u32, mask: u64| (self.0 >> shift) & mask;
        (bits(24, 0xff_ffff) as u32, bits(8, 0xffff) as u16, bits(0, 0xff) as u8)
    }
}

fn health_policy(policy: &Policy) -> HealthPolicy {
    HealthPolicy::new(&policy.config.health, policy.config.sip.try_timeout)
}
