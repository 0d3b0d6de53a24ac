//! Which instance fails when, and comes back. The clock is the number of calls.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::instance::{Instance, Mode};
use super::screen::Screen;
use super::world::World;

/// A killed instance stays dead at least this long, so that its calls find the port closed.
const DEAD: Duration = Duration::from_millis(1200);

/// What the instances of the first priority usually cost, and what one of them costs now and then.
const EQUAL: f64 = 10.0;
const DEAR: f64 = 40.0;
/// How long the border element may take to learn of another cost.
const LEARNT: Duration = Duration::from_secs(3);

/// Something that happens to one of the two instances of the first priority.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Kill(usize),
    Restart(usize),
    Become(usize, Mode),
    /// The ALTO server says another cost of it.
    Cost(usize, f64),
}

/// A round: after how many thousandths of its calls what happens. Instances by number; they change roles
/// every other round.
const ROUND: [(u64, Step); 10] = [
    (50, Step::Cost(1, EQUAL)),
    (150, Step::Kill(0)),
    (400, Step::Restart(0)),
    (500, Step::Become(1, Mode::Unavailable)),
    (650, Step::Become(1, Mode::Answer)),
    (700, Step::Become(0, Mode::Silent)),
    // Both of the first priority fail now: the second one's turn.
    (760, Step::Become(1, Mode::Unavailable)),
    (820, Step::Become(1, Mode::Answer)),
    (850, Step::Become(0, Mode::Answer)),
    // When what the failures have delayed is over.
    (920, Step::Cost(0, DEAR)),
];

/// Makes the instances fail, round after round.
pub(super) struct Script {
    pub(super) instances: Vec<Instance>,
    /// Calls begun.
    pub(super) started: watch::Receiver<u64>,
    /// Calls in a round.
    pub(super) round: u64,
    pub(super) screen: Arc<Screen>,
    pub(super) world: Arc<World>,
}

impl Script {
    /// Goes on until its task is ended.
    pub(super) async fn run(mut self) {
        for round in 0.. {
            for (at, step) in ROUND {
                let due = (self.round * round).saturating_add(self.round * at / 1000);
                if self.started.wait_for(|n| *n >= due).await.is_err() {
                    // No more calls: all stays as it is.
                    return std::future::pending().await;
                }
                self.carry_out(step, usize::from(round % 2 == 1)).await;
            }
        }
    }

    async fn carry_out(&mut self, step: Step, swap: usize) {
        let (Step::Kill(i) | Step::Restart(i) | Step::Become(i, _) | Step::Cost(i, _)) = step;
        let Some(instance) = self.instances.get_mut(i ^ swap) else { return };
        let who = format!("instance {} ({})", instance.name(), instance.addr());
        match step {
            Step::Kill(_) => {
                let how = match instance.kill().await {
                    true => "killed: sockets closed, with INVITEs on their way to it",
                    false => "killed: sockets closed",
                };
                self.screen.failure(&format!("{who} {how}"));
                tokio::time::sleep(DEAD).await;
            }
            Step::Restart(_) => match instance.restart().await {
                Ok(()) => self.screen.recovery(&format!("{who} restarted")),
                Err(e) => self.screen.failure(&format!("{who} cannot be restarted: {e}")),
            },
            Step::Cost(_, cost) => {
                let (name, addr) = (instance.name().to_owned(), instance.addr().ip());
                self.change_cost(&name, addr, cost).await;
            }
            Step::Become(_, mode) => {
                instance.set_mode(mode);
                match mode {
                    Mode::Answer => self.screen.recovery(&format!("{who} answers again")),
                    Mode::Unavailable => self.screen.failure(&format!("{who} answers new calls with 503")),
                    Mode::Silent => self.screen.failure(&format!("{who} has gone silent")),
                }
            }
        }
    }

    /// Has the ALTO server say another cost, and tells when the border element knows of it.
    async fn change_cost(&self, name: &str, addr: IpAddr, cost: f64) {
        let known = || {
            let snapshot = self.world.node.resolver().ranker().snapshot();
            snapshot.cost(&addr, Instant::now()).map(|c| c.value)
        };
        if self.world.alto.cost(addr) == Some(cost) {
            return;
        }
        self.world.alto.set_cost(addr, cost);
        let asked = Instant::now();
        while known() != Some(cost) && asked.elapsed() < LEARNT {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let after = asked.elapsed().as_millis();
        self.screen.shift(&self.world, name, cost, after);
    }
}
