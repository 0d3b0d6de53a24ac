//! Who may send as a peer by what the peer publishes.

use std::time::Duration;

use sbe::config::Realm;
use sbe::flow::Transport;

use super::agent::{Agent, invite};
use super::{Edge, until, zone};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_the_peers_zone_names_may_send_as_the_peer_and_nobody_else() {
    let core = Agent::start("127.0.0.11").await;
    core.auto(|_| Some(486));
    let (first, second, other) = (
        Agent::start("127.0.0.21").await,
        Agent::start("127.0.0.22").await,
        Agent::start("127.0.0.23").await,
    );
    let zone = zone().address("n1", first.addr().ip()).unwrap();
    let zone = zone.address("n2", second.addr().ip()).unwrap();
    let zone = zone.srv("_sip._udp.dest", 10, 0, 5060, "n1").unwrap();
    let zone = zone.srv("_sip._udp.dest", 20, 0, 5060, "n2").unwrap();
    let sides = format!(
        "[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.10:0\"\n\n\
         [core]\nsources = [\"127.0.0.11/32\"]\nnext_hops = [\"sip:{}\"]\n\n\
         [[peer]]\nname = \"peer\"\ndomains = [\"dest.example.test\"]\nsources = [\"dns:dest.example.test\"]\n",
        core.addr()
    );
    let edge = Edge::start(zone, &sides).await;
    until("its zone is known", || {
        let policy = edge.node.policy();
        policy.published().iter().any(|(_, _, found)| found.addrs.len() == 2)
    })
    .await;
    let to = edge.at(Transport::Udp, Realm::Both);
    let call = |from: &Agent, id: &str| invite(&from.sender(Transport::Udp), "sip:bob@own.example.test", id);
    // The workers hear of it one after the other: a sender repeats what nobody answers.
    for (from, id) in [(&first, "first"), (&second, "second")] {
        let come = || core.count(|r| r.sip.call_id() == id) > 0;
        for _ in 0..500 {
            if come() {
                break;
            }
            from.send(call(from, id), to).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(come(), "{id}");
    }
    other.send(call(&other, "other"), to).await;
    until("the stranger is seen", || edge.node.stats().dropped.get("stranger").is_some_and(|n| *n > 0)).await;
    assert_eq!(core.count(|r| r.sip.call_id() == "other"), 0);
}
