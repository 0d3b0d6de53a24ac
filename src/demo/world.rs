//! The parts of the demo around a border element that is started just as `sbe run` does.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::admin;
use crate::config::{self, Config, Realm};
use crate::flow::Transport;
use crate::runtime::node::Node;

use super::alto::AltoServer;
use super::caller::Caller;
use super::dns::{Dns, Zone};
use super::instance::{Instance, Watch};
use super::tls::Authority;

/// Where everything is.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Where the instances are: each at an address of its own, since costs are those of addresses.
const fn place(at: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2 + at))
}
/// The border element's name.
const NODE: &str = "sbe.core.example";
/// The peer's domain.
pub const DOMAIN: &str = "demo.example";
/// The peer's instances: name, SRV priority and weight.
pub const INSTANCES: [(&str, u16, u16); 3] = [("alpha", 10, 60), ("beta", 10, 40), ("gamma", 20, 100)];
/// What an instance costs by ALTO, if nothing is the matter; the second priority's costs nothing, and that must not
/// matter.
pub const COSTS: [f64; 3] = [10.0, 10.0, 0.0];
/// TTL of all records, seconds.
const TTL: u32 = 60;
/// How long an instance rings.
pub const RING: Duration = Duration::from_millis(150);
/// `try_timeout` and `hold_down`, shorter than by default, so that a newcomer need not wait for what happens.
pub const SHORTENED: &str = "try_timeout 1s and hold_down 1s (3s and 2s by default)";

/// A running world. The instances belong to whoever makes them fail.
pub struct World {
    /// Views of the instances, in the order of [`INSTANCES`].
    pub instances: Vec<Watch>,
    /// The name server.
    pub dns: Dns,
    /// The ALTO server.
    pub alto: Arc<AltoServer>,
    /// The border element.
    pub node: Arc<Node>,
    /// The core's user agent.
    pub caller: Caller,
    /// Where the admin interface is.
    pub admin: SocketAddr,
    admin_server: JoinHandle<io::Result<()>>,
}

/// The configuration of a border element with listeners on free ports of loopback towards both sides. On a machine that is
/// busy with something else its threads, and those of the callers, wait for a core: that is no overload of the demo's.
fn config(dns: SocketAddr, alto: &str, certificates: &Path) -> String {
    let certificates = certificates.display();
    let listen: String = ["core", "peering"]
        .into_iter()
        .flat_map(|realm| ["udp", "tcp"].map(|transport| (realm, transport)))
        .chain([("peering", "tls")])
        .map(|(realm, transport)| {
            format!(
                "[[listen]]\ntransport = \"{transport}\"\nbind = \"{LOOPBACK}:0\"\nrealm = \"{realm}\"\n\n"
            )
        })
        .collect();
    format!(
        "[node]\nname = \"{NODE}\"\ndomains = [\"core.example\"]\n\n{listen}\
         [sip]\ntry_timeout = \"1s\"\n\n[health]\nhold_down = \"1s\"\n\n[dns]\nservers = [\"{dns}\"]\n\n\
         [tls]\ncertificate = \"{certificates}/node.pem\"\nkey = \"{certificates}/node.key\"\n\
         trust = [\"{certificates}/ca.pem\"]\n\n[core]\nsources = [\"{LOOPBACK}/32\"]\nnext_hops = [\"sip:{LOOPBACK}:5060\"]\n\n\
         [[peer]]\nname = \"demo\"\ndomains = [\"{DOMAIN}\"]\n\n\
         [alto]\ndirectory = \"{alto}\"\nrefresh = \"250ms\"\npersist = 1\nhold_down = \"0s\"\n\n\
         [overload]\ntarget_delay = \"500ms\"\n\n[admin]\nbind = \"{LOOPBACK}:0\"\n"
    )
}

/// The peer's zone: NAPTR, and SRV with two priorities for UDP, TCP and TLS (RFC 3263 §4).
fn zone(instances: &[Instance]) -> io::Result<Zone> {
    let mut zone = Zone::new(DOMAIN, TTL)?
        .naptr(10, 10, "SIP+D2U", "_sip._udp")?
        .naptr(20, 10, "SIP+D2T", "_sip._tcp")?
        .naptr(30, 10, "SIPS+D2T", "_sips._tcp")?;
    for (instance, (name, priority, weight)) in instances.iter().zip(INSTANCES) {
        let addr = instance.addr();
        for owner in ["_sip._udp", "_sip._tcp"] {
            zone = zone.srv(owner, priority, weight, addr.port(), name)?;
        }
        if let Some(secure) = instance.secure_addr() {
            zone = zone.srv("_sips._tcp", priority, weight, secure.port(), name)?;
        }
        zone = zone.address(name, addr.ip())?;
    }
    Ok(zone)
}

/// Reads a configuration that was written here.
pub fn parse(text: &str) -> io::Result<Config> {
    let (config, _) = config::parse(text, "demo").map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        io::Error::new(io::ErrorKind::InvalidInput, lines.join("\n"))
    })?;
    Ok(config)
}

/// The address of a node's first listener of this transport and realm.
pub fn listener(node: &Node, transport: Transport, realm: Realm) -> Option<SocketAddr> {
    node.listeners().iter().find(|l| l.transport == transport && l.realm == realm).map(|l| l.bind)
}

impl World {
    /// Starts everything, on the tokio runtime that it is called in.
    ///
    /// # Errors
    /// A part cannot be started.
    pub async fn start() -> io::Result<(Arc<Self>, Vec<Instance>)> {
        let authority = Authority::new()?;
        let mut instances = Vec::with_capacity(INSTANCES.len());
        for (at, (name, ..)) in (0..).zip(INSTANCES) {
            let instance = Instance::start(name, SocketAddr::new(place(at), 0), RING).await?;
            instances.push(instance.with_tls(authority.acceptor(DOMAIN)?)?);
        }
        let dns = Dns::start(LOOPBACK, zone(&instances)?).await?;
        // Read at the start and never again.
        let files = authority.files(NODE)?;
        let costs: Vec<(IpAddr, f64)> =
            instances.iter().zip(COSTS).map(|(instance, cost)| (instance.addr().ip(), cost)).collect();
        let alto = Arc::new(AltoServer::start(LOOPBACK, &costs).await?);
        let config = parse(&config(dns.addr(), &alto.url(), files.directory()))?;
        let bind = config.admin.unwrap_or(SocketAddr::new(LOOPBACK, 0));
        let node = Node::start(config, None, &tokio::runtime::Handle::current()).map_err(io::Error::other)?;
        drop(files);
        let listener_of = |transport| listener(&node, transport, Realm::Core);
        let caller =
            Caller::start(LOOPBACK, listener_of(Transport::Udp), listener_of(Transport::Tcp)).await?;
        let http = admin::bind(bind).await.map_err(io::Error::other)?;
        let admin = http.local_addr()?;
        let admin_server = tokio::spawn(admin::serve(Arc::clone(&node), http));
        node.set_ready();
        let watches = instances.iter().map(Instance::watch).collect();
        Ok((Arc::new(Self { instances: watches, dns, alto, node, caller, admin, admin_server }), instances))
    }

    /// The name of the instance at an address.
    pub fn name_of(&self, addr: SocketAddr) -> &str {
        let is_at = |i: &&Watch| i.addr() == addr || i.secure_addr() == Some(addr);
        self.instances.iter().find(is_at).map_or("?", Watch::name)
    }

    /// Ends the border element; the rest ends with the last owner.
    pub async fn stop(self: Arc<Self>) {
        self.admin_server.abort();
        // Ends threads, and waits for them.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}
