//! The whole element on real sockets of loopback, with a real name server: every port a free one.

#![allow(clippy::unwrap_used)]

mod agent;
mod calls;
mod hep;
mod probes;
mod record_route;
mod records;
mod returns;
mod sources;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sbe::config::Realm;
use sbe::demo::dns::{Dns, Zone};
use sbe::demo::world;
use sbe::flow::Transport;
use sbe::runtime::node::Node;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// A border element with its name server.
struct Edge {
    node: Arc<Node>,
    _dns: Dns,
}

impl Edge {
    /// With a zone below `example.test`; `rest` is its configuration but for `[node]` and `[dns]`.
    async fn start(zone: Zone, rest: &str) -> Self {
        let dns = Dns::start(ip("127.0.0.1"), zone).await.unwrap();
        let text = format!(
            "[node]\nname = \"edge.example.test\"\ndomains = [\"own.example.test\"]\n\n\
             [runtime]\nworkers = 2\n\n[dns]\nservers = [\"{}\"]\n\n{rest}",
            dns.addr()
        );
        let config = world::parse(&text).unwrap();
        let node = Node::start(config, None, &tokio::runtime::Handle::current()).unwrap();
        Self { node, _dns: dns }
    }

    fn at(&self, transport: Transport, realm: Realm) -> SocketAddr {
        world::listener(&self.node, transport, realm).unwrap()
    }
}

fn zone() -> Zone {
    Zone::new("example.test", 60).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits for something that nobody reports.
async fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let wait = async {
        while !seen() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
