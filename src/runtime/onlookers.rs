//! Whether somebody captures packets on this host (tcpdump, sngrep, a capture agent).
//!
//! A capture sees a run of datagrams ([`super::sys`]) before it is divided, as one datagram with many messages
//! in it, which no SIP tool can read. So runs are made only while nobody looks. Whoever captures outside of this
//! network namespace is not seen: `runtime.udp_segmentation = false` is for them.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counters::Counters;
use super::node::Node;

/// The kernel's list of packet sockets in the network namespace of the process (packet(7)).
const PACKET_SOCKETS: &str = "/proc/net/packet";
/// How often it is looked at. For so long a capture that has just begun may see runs.
const LOOK: Duration = Duration::from_millis(200);
/// Protocols under which a packet socket sees datagrams: all, IPv4, IPv6 (`ETH_P_ALL`, `ETH_P_IP`, `ETH_P_IPV6`).
const SEEN_BY: [&str; 3] = ["0003", "0800", "86dd"];

/// Whether a list of packet sockets has one that sees datagrams.
fn has_onlookers(list: &str) -> bool {
    // sk, reference count, type, protocol, …; the first row names them.
    list.lines().skip(1).filter_map(|row| row.split_whitespace().nth(3)).any(|p| SEEN_BY.contains(&p))
}

/// Whether runs may be made now, with the setting `wanted`.
fn may_run(wanted: bool) -> bool {
    wanted
        && match std::fs::read_to_string(PACKET_SOCKETS) {
            Ok(list) => !has_onlookers(&list),
            // A kernel without packet sockets has no list of them; one that may not be read may name some.
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        }
}

/// Decides anew whether runs are made; the first time before anything is sent.
pub(super) fn look(wanted: bool, counters: &Counters) {
    let may = may_run(wanted);
    let before = counters.segmentation.swap(may, Ordering::Relaxed);
    match (before, may) {
        (true, false) if wanted => {
            tracing::info!("packets are captured on this host: datagrams leave one by one")
        }
        (false, true) => tracing::info!("nobody captures packets: datagrams that are alike leave together"),
        _ => {}
    }
}

/// Looks again and again while the node lives.
pub(super) async fn run(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        look(node.policy().config.runtime.udp_segmentation, node.handle().counters());
        drop(node);
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";

    #[test]
    fn only_sockets_that_see_datagrams_count() {
        let row = |proto: &str| {
            format!("{HEAD}000000005d2c1f4a 3      3    {proto}   2     1 0      0      12345\n")
        };
        assert!(!has_onlookers(HEAD) && !has_onlookers(""));
        for proto in ["0003", "0800", "86dd"] {
            assert!(has_onlookers(&row(proto)), "{proto}");
        }
        for proto in ["88cc", "0806", "0000"] {
            assert!(!has_onlookers(&row(proto)), "{proto}");
        }
        assert!(has_onlookers(&format!("{}{}", row("88cc"), &row("0003")[HEAD.len()..])), "one of several");
    }

    #[test]
    fn the_setting_comes_first() {
        let counters = Counters::default();
        counters.segmentation.store(true, Ordering::Relaxed);
        look(false, &counters);
        assert!(!counters.segmentation.load(Ordering::Relaxed));
    }
}
