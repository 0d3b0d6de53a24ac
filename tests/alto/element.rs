//! A whole element between a caller and two instances, with an ALTO server that behaves, or lies, stalls and floods.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::demo::alto::{AltoServer, Manner, Offer};
use sbe::demo::caller::Caller;
use sbe::demo::dns::{Dns, Zone};
use sbe::demo::instance::Instance;
use sbe::demo::world;
use sbe::flow::Transport;
use sbe::runtime::node::Node;

/// How long something may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

struct World {
    alto: AltoServer,
    cheap: Instance,
    dear: Instance,
    node: Arc<Node>,
    caller: Caller,
    calls: u32,
    _dns: Dns,
}

impl World {
    /// The server behaves so from the start.
    async fn start(manner: Manner, offer: Offer) -> Self {
        let instance = async |name, addr| {
            Instance::start(name, SocketAddr::new(ip(addr), 0), Duration::ZERO).await.unwrap()
        };
        let (dear, cheap) = (instance("dear", "127.0.0.51").await, instance("cheap", "127.0.0.52").await);
        let costs = [(ip("127.0.0.51"), 10.0), (ip("127.0.0.52"), 1.0)];
        let alto = AltoServer::start(ip("127.0.0.1"), &costs).await.unwrap();
        alto.set_manner(manner);
        alto.set_offer(offer);
        let zone = Zone::new("dest.test", 60)
            .and_then(|z| z.srv("_sip._udp", 10, 50, dear.addr().port(), "dear"))
            .and_then(|z| z.srv("_sip._udp", 10, 50, cheap.addr().port(), "cheap"))
            .and_then(|z| z.address("dear", dear.addr().ip()))
            .and_then(|z| z.address("cheap", cheap.addr().ip()))
            .unwrap();
        let dns = Dns::start(ip("127.0.0.1"), zone).await.unwrap();
        let config = world::parse(&format!(
            "[node]\nname = \"sbe.test\"\ndomains = [\"core.test\"]\n\n\
             [[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"core\"\n\n\
             [[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:0\"\nrealm = \"peering\"\n\n\
             [runtime]\nworkers = 1\n\n[dns]\nservers = [\"{}\"]\nsticky = \"none\"\n\n\
             [core]\nsources = [\"127.0.0.1/32\"]\nnext_hops = [\"sip:127.0.0.1:5060\"]\n\n\
             [[peer]]\nname = \"dest\"\ndomains = [\"dest.test\"]\n\n\
             [alto]\ndirectory = \"{}\"\nrefresh = \"300ms\"\npersist = 1\nhold_down = \"0s\"\n",
            dns.addr(),
            alto.url(),
        ))
        .unwrap();
        let node = Node::start(config, None, &tokio::runtime::Handle::current()).unwrap();
        let core = world::listener(&node, Transport::Udp, Realm::Core);
        let caller = Caller::start(ip("127.0.0.1"), core, None).await.unwrap();
        Self { alto, cheap, dear, node, caller, calls: 0, _dns: dns }
    }

    /// Makes a call.
    async fn call(&mut self) {
        self.calls += 1;
        let id = format!("alto-{}", self.calls);
        let (outcome, dialog) = self.caller.call(Transport::Udp, "sip:bob@dest.test", &id).await.unwrap();
        assert_eq!(outcome.status, 200, "{id}");
        if let Some(dialog) = dialog {
            let _ = self.caller.hang_up(dialog, Duration::ZERO).await;
        }
    }

    /// Calls answered by the cheap and by the dear instance.
    fn answered(&self) -> (u64, u64) {
        (self.cheap.watch().counts().answered, self.dear.watch().counts().answered)
    }

    /// Where this many calls go.
    async fn calls(&mut self, n: u32) -> (u64, u64) {
        let before = self.answered();
        for _ in 0..n {
            self.call().await;
        }
        let after = self.answered();
        (after.0 - before.0, after.1 - before.1)
    }

    async fn until(&self, why: &str, mut what: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !what(self) {
            let error = self.error();
            assert!(start.elapsed() < PATIENCE, "{why}: never; the last error: {error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn costs(&self) -> usize {
        self.node.resolver().ranker().snapshot().len()
    }

    fn cost(&self, addr: &str) -> Option<f64> {
        self.node.resolver().ranker().snapshot().cost(&ip(addr), Instant::now()).map(|c| c.value)
    }

    fn error(&self) -> String {
        let status = self.node.alto().status(Instant::now()).unwrap();
        status.servers[0].last_error.as_ref().map_or_else(String::new, |(_, e)| e.clone())
    }

    fn state(&self) -> &'static str {
        self.node.alto().status(Instant::now()).unwrap().servers[0].state.label()
    }

    async fn stop(self) {
        let node = self.node;
        tokio::task::spawn_blocking(move || drop(node)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_where_it_costs_less_and_follow_when_costs_change() {
    for offer in [Offer::Both, Offer::Maps] {
        let mut w = World::start(Manner::Good, offer).await;
        w.call().await;
        w.until("costs", |w| w.costs() == 2).await;
        assert_eq!(w.calls(20).await, (20, 0), "{offer:?}");
        assert_eq!(w.alto.requests("/endpointcost") > 0, offer == Offer::Both);
        assert_eq!(w.alto.requests("/costmap") > 0, offer == Offer::Maps, "by one of the services only");
        w.alto.set_cost(ip("127.0.0.52"), 99.0);
        w.until("the new cost", |w| w.cost("127.0.0.52") == Some(99.0)).await;
        assert_eq!(w.calls(20).await, (0, 20), "{offer:?}");
        w.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lies_or_floods_changes_nothing_and_is_seen() {
    for (manner, offer, words) in [
        (Manner::Flooding, Offer::Both, "longer than 1048576 octets"),
        (Manner::Nonsense, Offer::Both, "not JSON"),
        (Manner::Lying, Offer::Maps, "the cost map is for version \"v0\" of net"),
    ] {
        let mut w = World::start(manner, offer).await;
        w.call().await;
        w.until("an error", |w| w.error().contains(words)).await;
        let (cheap, dear) = w.calls(30).await;
        assert!(cheap > 3 && dear > 3, "{manner:?}: by weight: {cheap} {dear}");
        assert_eq!((w.costs(), w.state()), (0, "expired"), "{manner:?}");
        w.stop().await;
    }
    let mut w = World::start(Manner::Lying, Offer::Both).await;
    w.call().await;
    let bad = |w: &World| w.node.alto().status(Instant::now()).unwrap().bad_costs;
    w.until("negative costs refused", |w| bad(w) > 0).await;
    let (cheap, dear) = w.calls(30).await;
    assert!(cheap > 3 && dear > 3, "negative costs are none: {cheap} {dear}");
    w.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_serve_on_when_the_server_begins_to_fail() {
    let mut w = World::start(Manner::Good, Offer::Both).await;
    w.call().await;
    w.until("costs", |w| w.costs() == 2).await;
    w.alto.set_manner(Manner::Nonsense);
    w.until("the failure", |w| w.state() == "failing").await;
    assert_eq!(w.calls(10).await, (10, 0));
    w.alto.set_manner(Manner::Good);
    w.until("the recovery", |w| w.state() == "fresh").await;
    assert!(w.node.alto().flush(None, Instant::now()));
    w.until("costs again", |w| w.costs() == 2).await;
    w.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_no_server_be_it_fast_slow_or_a_black_hole() {
    let manners = [Manner::Good, Manner::Late(Duration::from_secs(5)), Manner::Silent];
    let mut worlds = Vec::new();
    for manner in manners {
        worlds.push(World::start(manner, Offer::Both).await);
    }
    // By turns. How long they take is measured by `cargo bench --bench alto_delay`.
    for _ in 0..60 {
        for w in &mut worlds {
            w.call().await;
        }
    }
    worlds[0].until("costs", |w| w.costs() == 2).await;
    let silent = &worlds[2];
    silent.until("a request", |w| w.alto.total() > 0).await;
    assert_eq!(silent.costs(), 0, "none of its calls can have had an answer to wait for");
    for w in worlds {
        let (cheap, dear) = w.answered();
        assert_eq!(cheap + dear, 60, "each call was answered");
        w.stop().await;
    }
}
