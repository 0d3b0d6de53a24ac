//! `sbe demo`: a self-contained world on loopback. No privileges, no installed programs, no fixed ports.
//!
//! | file | holds |
//! |---|---|
//! | `dns` | an authoritative name server |
//! | `alto` | a strict ALTO server |
//! | `instance` | a SIP server instance of the peer, which can be killed |
//! | `caller` | a user agent of the core that makes calls |
//! | `message` | what the two say |
//! | `world` | all of them around a real border element, started as `sbe run` starts it |
//! | `script` | which instance fails when |
//! | `tally` | what became of the calls |
//! | `tls` | their certificates |
//! | `screen` | what is shown |
//!
//! The parts are usable on their own: the end-to-end tests are made of them.

pub mod alto;
pub mod caller;
pub mod dns;
pub mod instance;
pub mod message;
mod screen;
mod script;
mod tally;
pub mod tls;
pub mod world;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::flow::Transport;

use caller::Caller;
use screen::Screen;
use tally::Tally;
use world::World;

/// A whole round of failures takes this long, unless `--calls` makes it shorter.
const ROUND: Duration = Duration::from_secs(20);
/// How long BYEs may take to be answered at the end.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long the world may take to end.
const GRACE: Duration = Duration::from_millis(500);
/// How long calls last, in milliseconds, from answer to BYE.
const TALK: std::ops::Range<u64> = 300..900;

/// The transports that the core calls by, and that the peer is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transports {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// The core by TCP, the peer by TLS.
    Tls,
    /// UDP and TCP by turns.
    Both,
    /// All three by turns.
    All,
}

/// `sbe demo`
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Stop after so many calls, with a summary; exit 0 if every call succeeded [default: run until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub calls: Option<u64>,
    /// New calls per second
    #[arg(long, value_name = "R", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rate: u64,
    /// Transports used
    #[arg(long, value_enum, default_value_t = Transports::All)]
    pub transport: Transports,
    /// Seed of the called numbers and of how long calls last
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Transports {
    /// That of the call with this number.
    const fn of(self, call: u64) -> Transport {
        match self {
            Transports::Udp => Transport::Udp,
            Transports::Tcp => Transport::Tcp,
            Transports::Tls => Transport::Tls,
            Transports::Both if call.is_multiple_of(2) => Transport::Tcp,
            Transports::Both => Transport::Udp,
            Transports::All => match call % 3 {
                0 => Transport::Tls,
                1 => Transport::Udp,
                _ => Transport::Tcp,
            },
        }
    }
}

/// Runs the demo. True: every call succeeded, and both ends have counted the same.
pub fn run(options: &Options) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("sbe-demo")
        .enable_all()
        .build();
    let outcome = runtime.and_then(|runtime| {
        let outcome = runtime.block_on(play(options));
        runtime.shutdown_timeout(GRACE);
        outcome
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("the demo has failed: {error}");
        false
    })
}

async fn play(options: &Options) -> io::Result<bool> {
    let screen = Arc::new(Screen::new());
    let (world, instances) = World::start().await?;
    screen.welcome(&world, options);
    let tally = Arc::new(Tally::default());
    let started = watch::Sender::new(0);
    let round = options.rate.saturating_mul(ROUND.as_secs());
    let script = script::Script {
        instances,
        started: started.subscribe(),
        round: options.calls.map_or(round, |calls| calls.min(round)),
        screen: Arc::clone(&screen),
        world: Arc::clone(&world),
    };
    // Holds the instances, until it is dropped at the very end.
    let mut background = JoinSet::new();
    background.spawn(script.run());
    background.spawn(Arc::clone(&screen).tick(Arc::clone(&world), Arc::clone(&tally)));

    let mut calls = JoinSet::new();
    let mut pace = tokio::time::interval(Duration::from_secs(1).div_f64(options.rate as f64));
    let mut rng = StdRng::seed_from_u64(options.seed);
    let mut end = std::pin::pin!(tokio::signal::ctrl_c());
    let mut number = 0;
    while options.calls.is_none_or(|most| number < most) && !screen.is_closed() {
        tokio::select! {
            _ = pace.tick() => {}
            _ = calls.join_next(), if !calls.is_empty() => continue,
            _ = &mut end => break,
        }
        number += 1;
        calls.spawn(one_call(
            Arc::clone(&world),
            Arc::clone(&tally),
            Arc::clone(&screen),
            Plan {
                id: format!("demo-{number}"),
                transport: options.transport.of(number),
                user: rng.random_range(2_000_000..10_000_000),
                talk: Duration::from_millis(rng.random_range(TALK)),
            },
        ));
        started.send_replace(number);
    }
    // Each call gives up by itself in the end; a second Ctrl-C does not wait for that.
    let all = async { while calls.join_next().await.is_some() {} };
    let settled = async {
        tally.settled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = all => {}
        () = settled => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let good = screen.summary(&world, &tally);
    calls.shutdown().await;
    background.shutdown().await;
    world.stop().await;
    Ok(good)
}

/// One call to make.
struct Plan {
    id: String,
    transport: Transport,
    user: u32,
    talk: Duration,
}

/// Makes a call, and notes what becomes of it.
async fn one_call(world: Arc<World>, tally: Arc<Tally>, screen: Arc<Screen>, plan: Plan) {
    let uri = match plan.transport {
        Transport::Udp => format!("sip:{}@{}", plan.user, world::DOMAIN),
        other => format!("sip:{}@{};transport={other}", plan.user, world::DOMAIN),
    };
    tally.begin();
    let caller: &Caller = &world.caller;
    let core = if plan.transport == Transport::Udp { Transport::Udp } else { Transport::Tcp };
    let made = caller.call(core, &uri, &plan.id).await;
    let (outcome, dialog) = match made {
        Ok(made) => made,
        Err(_) => (caller::Outcome { status: 0, setup: Duration::ZERO, rang: false }, None),
    };
    tally.end(&plan.id, &outcome);
    screen.call(&world, &plan.id, &outcome);
    if let Some(dialog) = dialog {
        let status = caller.hang_up(dialog, plan.talk).await;
        tally.hung_up(status.is_ok_and(|s| (200..300).contains(&s)));
    }
}
