//! An authoritative name server on loopback, UDP and TCP on one port, for one zone.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::rdata::{A, AAAA, NAPTR, NS, SOA, SRV};
use hickory_proto::rr::{LowerName, Name, RData, Record, RecordSet, RrKey};
use hickory_server::Server;
use hickory_server::store::in_memory::InMemoryZoneHandler;
use hickory_server::zone_handler::{AxfrPolicy, Catalog, ZoneType};
use tokio::net::{TcpListener, UdpSocket};

/// A TCP client that says nothing for this long is dropped.
const TCP_IDLE: Duration = Duration::from_secs(30);
/// Answers queued for one TCP client.
const TCP_QUEUE: usize = 64;
/// Tries for a port that is free for both transports.
const PORT_TRIES: usize = 32;

/// The records of a zone, to be served by [`Dns`].
#[derive(Clone, Debug)]
pub struct Zone {
    origin: Name,
    ttl: u32,
    records: Vec<Record>,
}

impl Zone {
    /// An empty zone; `ttl` in seconds, of every record.
    ///
    /// # Errors
    /// The origin is no domain name.
    pub fn new(origin: &str, ttl: u32) -> io::Result<Self> {
        let mut origin = name(origin)?;
        origin.set_fqdn(true);
        Ok(Self { origin, ttl, records: Vec::new() })
    }

    fn add(mut self, owner: &str, data: RData) -> io::Result<Self> {
        let owner = match owner {
            "@" => self.origin.clone(),
            label => name(label)?.append_domain(&self.origin).map_err(invalid)?,
        };
        self.records.push(Record::from_rdata(owner, self.ttl, data));
        Ok(self)
    }

    /// `owner A address` or `owner AAAA address`; owners are relative to the origin, `@` is the origin itself.
    ///
    /// # Errors
    /// The owner is no domain name (so too below).
    pub fn address(self, owner: &str, address: IpAddr) -> io::Result<Self> {
        let data = match address {
            IpAddr::V4(a) => RData::A(A(a)),
            IpAddr::V6(a) => RData::AAAA(AAAA(a)),
        };
        self.add(owner, data)
    }

    /// `owner SRV priority weight port target` (RFC 2782), the target relative to the origin.
    ///
    /// # Errors
    /// See [`Zone::address`].
    pub fn srv(self, owner: &str, priority: u16, weight: u16, port: u16, target: &str) -> io::Result<Self> {
        let target = name(target)?.append_domain(&self.origin).map_err(invalid)?;
        self.add(owner, RData::SRV(SRV::new(priority, weight, port, target)))
    }

    /// `@ NAPTR order preference "s" service "" replacement` (RFC 3263 §4.1), the replacement relative to the origin.
    ///
    /// # Errors
    /// See [`Zone::address`].
    pub fn naptr(self, order: u16, preference: u16, service: &str, replacement: &str) -> io::Result<Self> {
        let replacement = name(replacement)?.append_domain(&self.origin).map_err(invalid)?;
        let text = |s: &str| s.as_bytes().to_vec().into_boxed_slice();
        let data = NAPTR::new(order, preference, text("s"), text(service), text(""), replacement);
        self.add("@", RData::NAPTR(data))
    }

    fn handler(self) -> io::Result<InMemoryZoneHandler> {
        let host = Name::from_ascii("ns").and_then(|n| n.append_domain(&self.origin)).map_err(invalid)?;
        let soa = SOA::new(host.clone(), host.clone(), 1, 3600, 600, 86_400, self.ttl);
        let own = [RData::SOA(soa), RData::NS(NS(host))];
        let own = own.map(|data| Record::from_rdata(self.origin.clone(), self.ttl, data));
        let mut sets: BTreeMap<RrKey, RecordSet> = BTreeMap::new();
        for record in own.into_iter().chain(self.records) {
            let key = RrKey::new(LowerName::new(&record.name), record.record_type());
            let set = || RecordSet::new(record.name.clone(), record.record_type(), 1);
            sets.entry(key).or_insert_with(set).insert(record, 1);
        }
        InMemoryZoneHandler::new(self.origin, sets, ZoneType::Primary, AxfrPolicy::Deny).map_err(invalid)
    }
}

/// A running name server; ends when dropped.
pub struct Dns {
    addr: SocketAddr,
    server: Server<Catalog>,
}

impl Dns {
    /// Serves `zone` on a free port of `ip`. Call it within a tokio runtime.
    ///
    /// # Errors
    /// No socket, or the zone makes no sense.
    pub async fn start(ip: IpAddr, zone: Zone) -> io::Result<Self> {
        let mut catalog = Catalog::new();
        catalog.upsert(LowerName::new(&zone.origin), vec![Arc::new(zone.handler()?)]);
        let (udp, tcp) = both(ip).await?;
        let addr = udp.local_addr()?;
        let mut server = Server::new(catalog);
        server.register_socket(udp);
        server.register_listener(tcp, TCP_IDLE, TCP_QUEUE);
        Ok(Self { addr, server })
    }

    /// Where it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.server.shutdown_token().cancel();
    }
}

/// A UDP and a TCP socket on one free port.
async fn both(ip: IpAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = 0;
    loop {
        let tcp = TcpListener::bind((ip, 0)).await?;
        match UdpSocket::bind(tcp.local_addr()?).await {
            Ok(udp) => return Ok((udp, tcp)),
            Err(e) if tries == PORT_TRIES => return Err(e),
            Err(_) => tries += 1,
        }
    }
}

/// A relative name.
fn name(text: &str) -> io::Result<Name> {
    let mut name = Name::from_ascii(text).map_err(invalid)?;
    name.set_fqdn(false);
    Ok(name)
}

fn invalid(e: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, e.to_string())
}
